"""Sections as one HTML page that needs no network. Other pages extend the same base, by way of `render`."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from critic import jsonl
from critic.page.blocks import Section, number, shortened


def render(package: str, template: str, facts: Mapping[str, Any]) -> str:
    """A package's template as text; it may extend `base.html.jinja` and import `macros.html.jinja` of this room. In
    HTML everything that comes from files is escaped."""
    return _environment(package, template.endswith(".html.jinja")).get_template(template).render(facts)


@cache
def _environment(package: str, html: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, "."), jinja2.PackageLoader("critic.page", ".")]),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = number
    environment.filters["shortened"] = shortened
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False, indent=2)
    return environment


def write(
    path: Path, title: str, about: str, sections: Sequence[Section], origin: Mapping[str, dict[str, Any]]
) -> None:
    """Write the page in one step; `origin` says of each file what made it."""
    facts = {"title": title, "about": about, "sections": sections, "origin": origin}
    jsonl.write_text(path, render("critic.page", "report.html.jinja", facts))
