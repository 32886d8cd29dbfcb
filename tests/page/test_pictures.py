"""Pictures of a page, and the files beside it."""

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from critic.page import blocks, page


def test_a_picture_for_a_paper_has_its_letters(tmp_path: Path) -> None:
    """Each name has ink of its own where it must stand, on any machine: an empty place or a box is no letter."""
    names = ["mean", "Qwen2", "直直直直", "评评评评", "S\u0303S\u0303S\u0303S\u0303", "ŜŜŜŜ"]
    table = blocks.Table(
        caption="c",
        head=["", "x"],
        rows=[blocks.row(name, "1") for name in names],
        panels=[blocks.Panel(heading="x", bars=[blocks.Bar(1, None)] * len(names), ticks=[0, 1])],
        picture="p",
    )
    page.write(tmp_path / "r.html", "t", [blocks.Section(heading="h", tables=[table])], {})
    picture = Image.open(tmp_path / "p.png").convert("L")
    # The SVG has name n (from 1) at x 14, on a line at y 17 n + 18; the PNG is twice as large.
    boxes = [picture.crop((28, 34 * n + 10, 28 + 4 * 26, 34 * n + 44)) for n in range(1, len(names) + 1)]
    ink = [sum(value < 128 for value in box.tobytes()) for box in boxes]
    assert min(ink) > 60 and len({box.tobytes() for box in boxes}) == len(names)
    # Four equal letters are no boxes with a cross: resvg would draw nothing, or the same box for each.
    assert ink[2] != ink[3] and ink[4] != ink[5]
    written = (tmp_path / "r.html").read_text("utf-8")
    linked = set(re.findall(r'href="([^"#]+)"', written))
    assert linked == {"p.svg", "p.png", "p.tex"} and all((tmp_path / name).is_file() for name in linked)
    assert Image.open(io.BytesIO(page.rasterize(written[written.index("<svg") : written.index("</svg>\n</div>") + 6])))


def test_chinese_characters_have_chinese_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="99" height="60" font-family="{}"><text y="50">直</text></svg>'
    )
    drawn = page.rasterize(picture.format("sans-serif"))
    monkeypatch.setattr(page, "_WIDE_TEXT", re.compile("(?!)"))
    forms = [page.rasterize(picture.format(f"Noto Sans CJK {land}")) for land in ("SC", "JP")]
    assert drawn == forms[0] != forms[1]
