"""Sections as one HTML page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from critic.page.blocks import Section


def write(
    path: Path, title: str, about: str, sections: Sequence[Section], origin: Mapping[str, dict[str, Any]]
) -> None:
    """Write the page in one step; `origin` says of each file what made it. Everything that comes from files is
    escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("critic.page", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shown = {name: json.dumps(facts, ensure_ascii=False, indent=2) for name, facts in origin.items()}
    text = environment.get_template("report.html.jinja").render(
        title=title, about=about, sections=sections, origin=shown
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, "utf-8")
    partial.replace(path)
