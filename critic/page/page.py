"""Render sections as one HTML page that needs no network, or as text; other pages extend the same base template."""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import jinja2

from critic import jsonl
from critic.errors import UsageError
from critic.images import ImageError, Images
from critic.page import blocks
from critic.page.blocks import Figure, Part, Section, Table
from critic.records import FRAMES, VIDEO

COLOURS = 16
"""Number of colours for models on a page (macros.html.jinja); the seventeenth model gets the first colour again."""

_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Matches the characters that turn the direction of writing, by which a name could reverse the sentence around it."""

MOST_ANSWERS = 10_000
"""Largest number of answers in a page."""

PAGE_IMAGES, PAGE_PIXELS = 100, 200_000
"""Largest number of images that a page shows, and the size of each in pixels: some 10 MB of JPEG in all."""


def render(package: str, template: str, facts: Mapping[str, Any]) -> str:
    """Render a package's template with the variables `facts`.

    The template may extend `base.html.jinja` and import `macros.html.jinja` of this folder. HTML templates escape all
    values, since they come from files.
    """
    page = _load_environment(package, template.endswith(".html.jinja")).get_template(template)
    text = page.render({"hues": _number_colours(facts.get("sections", ())), **facts})
    # Raters see an answer as it is.
    return _TURNS.sub("", text) if "sections" in facts else text


def as_text(sections: Sequence[Section]) -> str:
    """Render sections as fixed-width text for a terminal, without collapsed tables.

    >>> from critic.page.blocks import row
    >>> table = Table(caption="Numbers.", head=["", "n"], rows=[row("描述", 1), row("abcd", 22)])
    >>> hidden = Table(caption="Hidden.", head=[""], rows=[], collapsed=True)
    >>> print(as_text([Section(heading="Wide", tables=[table, hidden]), Section(heading="Empty", tables=[hidden])]))
    Wide
    ====
    <BLANKLINE>
    Numbers.
           n
    描述   1
    abcd  22
    """
    return render("critic.page", "text.jinja", {"shown": sections}).strip("\n")


def _list_parts(sections: Iterable[Section]) -> Iterator[Part]:
    """Yield each section and its parts, in the page's order."""
    for section in sections:
        yield from (section, *section.parts)


def _number_colours(sections: Iterable[Section]) -> dict[str, int]:
    """Return model -> number of its colour, 0..COLOURS-1, in the order in which the models first occur."""
    tables = chain.from_iterable(part.tables for part in _list_parts(sections))
    models = dict.fromkeys(row.model for table in tables for row in table.rows if row.model)
    return {model: number % COLOURS for number, model in enumerate(models)}


def embed_images(names: Iterable[str], files: Iterable[Path]) -> dict[str, list[str]]:
    """Return small copies of the first PAGE_IMAGES images as data URIs, for a page that needs no network.

    The result maps an image's name to a list of one URI, and a video's name to a URI per frame; a video counts as
    FRAMES images. `files`: the files whose records name the images. An image is searched for beside these files, and in
    the folders that their sidecars name. Images that cannot be read are left out; without Pillow, all are.
    """
    uris = dict[str, list[str]]()
    # A locale that cannot write a folder's name finds no image in it.
    with suppress(UsageError, UnicodeError):
        places = [place for path in files for source in jsonl.list_places(path) for place in jsonl.list_places(source)]
        folders = dict.fromkeys(place if place.is_dir() else place.parent for place in places)
        loaders = [Images(folder, resize_to=PAGE_PIXELS, shrunk="jpeg") for folder in folders if folder.is_dir()]
        each = chain.from_iterable([name] * (FRAMES if name.startswith(VIDEO) else 1) for name in dict.fromkeys(names))
        for name, images in product(dict.fromkeys(islice(each, PAGE_IMAGES)), loaders):
            if name not in uris:
                # Without PyAV a page has its images all the same.
                with suppress(ImageError, UsageError):
                    uris[name] = [image.uri for image in images.load(name).shown]
    return uris


@cache
def _load_environment(package: str, html: bool) -> jinja2.Environment:
    """Return the Jinja environment of a package's templates, which may also use the templates of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, "."), jinja2.PackageLoader("critic.page", ".")]),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.do"],
    )
    for name in ("align", "interval", "lean", "listed", "measure_width", "number", "shortened"):
        environment.filters[name] = getattr(blocks, name)
    environment.filters["latex"] = _escape_latex
    # A page's policy allows one inline script by this hash of its text (CSP 2, section 7.15.1).
    environment.filters["sha256"] = lambda text: b64encode(hashlib.sha256(text.encode()).digest()).decode()
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False, indent=2)
    # Options of the filter `tojson`, whose text cannot end a script element.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment


def write(path: Path, title: str, sections: Sequence[Section], origin: Mapping[str, Any], **facts: Any) -> None:
    """Write a page atomically, with its charts beside it as .svg and .png, and its tables as .tex.

    `origin` maps each input file to what produced it. `facts` are further variables of the template: `about` (one
    sentence), `verdicts` (test sample -> sentences, of which the first is emphasized), and `answers` with their `total`
    and their `pictures` (lists of data URIs by image name).
    """
    facts = {"answers": [], "title": title, "sections": sections, "origin": origin, **facts}
    for part in _list_parts(sections):
        for drawn in chain[Figure | Table](part.figures, part.tables):
            if isinstance(drawn, Figure) or drawn.panels:
                svg = render("critic.page", "picture.html.jinja", {"drawn": drawn, "sections": sections})
                jsonl.write_text(path.with_name(f"{drawn.picture}.svg"), svg)
                jsonl.write_bytes(path.with_name(f"{drawn.picture}.png"), rasterize(svg))
            if isinstance(drawn, Table) and drawn.picture:
                latex = render("critic.page", "table.tex.jinja", {"table": drawn})
                jsonl.write_text(path.with_name(f"{drawn.picture}.tex"), latex)
    jsonl.write_text(path, render("critic.page", "base.html.jinja", facts))


_WIDE_TEXT = re.compile("<text(?=[^>]*>[^<]*[\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef])")
"""The beginning of an SVG text with a Chinese, Japanese or Korean character."""


def rasterize(svg: str) -> bytes:
    """Return an SVG picture as the bytes of a PNG of twice its size, on white.

    The fonts come from installed packages, since many servers have none: Source Sans, and Noto Sans CJK for texts with
    Chinese, Japanese or Korean characters.
    """
    import font_source_sans_pro  # noqa: PLC0415 - pages without pictures need none of these
    import noto_cjk_sans_otc  # noqa: PLC0415
    import resvg_py  # noqa: PLC0415

    folder = Path(font_source_sans_pro.font_directory)
    fonts = [noto_cjk_sans_otc.FONT_PATH, folder / "SourceSansPro-Regular.ttf", folder / "SourceSansPro-Bold.ttf"]
    # Left to find a font for a letter by itself, resvg would take the Japanese forms of Chinese ones.
    svg = _WIDE_TEXT.sub('<text font-family="Noto Sans CJK SC"', svg)
    paper: dict[str, Any] = {"zoom": 2, "background": "white", "sans_serif_family": "Source Sans Pro"}
    return bytes(resvg_py.svg_to_bytes(svg, skip_system_fonts=True, font_files=[*map(str, fonts)], **paper))


_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--"}
    | {"∞": r"$\infty$", "Ŝ": r"$\hat{S}$", **{char: f"\\{char}" for char in "&%$#_{}"}}
)


def _escape_latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return text.translate(_LATEX).replace("S\u0303", r"$\tilde{S}$")
