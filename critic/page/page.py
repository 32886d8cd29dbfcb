"""Render sections as one HTML page that needs no network. Other pages extend the same base template with `render`."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from critic import jsonl
from critic.page.blocks import Section, Table, lean, number, shortened

COLOURS = 16
"""Number of colours for models on a page (macros.html.jinja); the seventeenth model gets the first colour again."""

PICTURE = '{% from "macros.html.jinja" import picture with context %}{{ picture(table) }}'


def render(package: str, template: str, facts: Mapping[str, Any]) -> str:
    """Render a package's template with the variables `facts`.

    The template may extend `base.html.jinja` and import `macros.html.jinja` of this folder. HTML templates escape all
    values, since they come from files.
    """
    page = _load_environment(package, template.endswith(".html.jinja")).get_template(template)
    return page.render({"hues": _number_colours(facts.get("sections", ())), **facts})


def _list_tables(sections: Iterable[Section]) -> Iterator[Table]:
    """Yield all tables in the page's order."""
    for section in sections:
        for part in (section, *section.parts):
            yield from part.tables


def _number_colours(sections: Iterable[Section]) -> dict[str, int]:
    """Number the models' colours in the order in which the models first occur."""
    models = dict.fromkeys(row.model for table in _list_tables(sections) for row in table.rows if row.model)
    return {model: number % COLOURS for number, model in enumerate(models)}


@cache
def _load_environment(package: str, html: bool) -> jinja2.Environment:
    """Return the Jinja environment of a package's templates, which may also use the templates of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, "."), jinja2.PackageLoader("critic.page", ".")]),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = number
    environment.filters |= {"shortened": shortened, "lean": lean}
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False, indent=2)
    return environment


def write(path: Path, title: str, sections: Sequence[Section], origin: Mapping[str, Any], **facts: Any) -> None:
    """Write a page atomically, with its charts beside it as .svg and .png.

    `origin` maps each input file to what produced it. `facts` are further variables of the template: `about` (one
    sentence) and `verdicts` (sentences by sample; a reader can act on the first of each).
    """
    facts |= {"title": title, "sections": sections, "origin": origin}
    import resvg_py  # noqa: PLC0415 - pages without pictures do not need it

    picture = _load_environment("critic.page", True).from_string(PICTURE)
    for table in (table for table in _list_tables(sections) if table.panels):
        drawn = picture.render(hues=_number_colours(sections), table=table)
        jsonl.write_text(path.with_name(f"{table.picture}.svg"), drawn)
        # Twice the size of the page, on white, as a paper wants it.
        png = resvg_py.svg_to_bytes(svg_string=drawn, zoom=2, background="white")
        jsonl.write_bytes(path.with_name(f"{table.picture}.png"), bytes(png))
    jsonl.write_text(path, render("critic.page", "base.html.jinja", facts))
