"""Pictures of a page: the letters of a PNG, models over tasks, quadrants, sizes and clouds of points."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PIL import Image

from critic.benchmarks import alignmmbench
from critic.page import blocks, figures, page
from critic.page.figures import ModelSize
from critic.page.leaderboards import leaderboards, sections, state_leaders, table_of
from critic.stats.leaderboard import Leaderboard, LeaderboardRow, score_of

SIZES = {"b": ModelSize(7, "f"), "a": ModelSize(72, "f"), "d": ModelSize(8)}


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


def board(places: Mapping[str, tuple[float, float]], noise: float = 0.2) -> Leaderboard:
    """Return the table of AlignMMBench with each model's rating and spread, a rating over 40 seeds in three tasks."""
    rows = []
    for model, (rating, spread) in places.items():
        ratings = {str(seed): rating + noise * (seed % 5 - 2) for seed in range(40)}
        spreads = {seed: spread * (1 + noise * (int(seed) % 3 - 1)) for seed in ratings}
        groups = {seed: seed for seed in ratings}
        aligned = replace(score_of(spreads, groups, (0, 4.5)), inverse=True)
        scores = {"mean of tasks": score_of(ratings, groups, (1, 10)), "alignment": aligned}
        scores |= dict.fromkeys(alignmmbench.TASKS[:3], scores["mean of tasks"])
        both: dict[str, Any] = {"stated": ["alignment"], "charted": ["mean of tasks", "alignment"]}
        rows.append(LeaderboardRow(key="tasks", caption="c", scores=scores, name=model, system=model, **both))
    (built,) = leaderboards(rows)
    return built


def test_models_are_in_a_quadrant_only_where_both_intervals_say_so() -> None:
    """Row 11: figure 1, with the models in no class named, and the alignment in the headline."""
    placed = {"rc": (8, 0.4), "cc": (8, 1.6), "ad": (4, 0.4), "bl": (4, 1.6), "mid": (6, 0.8), "sure": (7, 0.0)}
    built = board(placed)
    quadrants, heat, radar = alignmmbench.draw({"tasks": built}, {})
    told = "Alignment-Driven: ad; Robust Convergence: rc; Baseline Limited: bl; Component-Centric: cc; in no class"
    assert told in quadrants.caption and "holds a median: mid; " in quadrants.caption
    assert quadrants.caption.endswith("alignment is infinite: sure")
    for mean, aligned in (((6.1, 6.5), (1.0, 1.4)), ((5.7, 6.5), (1.2, 1.4)), (None, (1.2, 1.4))):
        assert alignmmbench.place_in_quadrant(mean, aligned, (5.8, 1.1)) == alignmmbench.UNCLEAR
    (scatter,) = quadrants.panels
    assert {mark.label for mark in scatter.marks} == {"rc", "cc", "ad", "bl", "mid"}
    assert scatter.guides == pytest.approx((6, 1.25), abs=0.01)
    drawn = {"drawn": table_of(built), "sections": sections([built])}
    assert ">∞</text>" in page.render("critic.page", "picture.html.jinja", drawn)
    assert all(mark.x.interval and mark.y.interval for mark in scatter.marks)
    first, second = state_leaders([built])
    assert "“mean of tasks”" in first and second.startswith("sure is first with ∞ in “alignment”")
    # Models that are not told apart are in no class, and no line parts them.
    (scatter,) = next(alignmmbench.draw({"tasks": board({"m": (6, 0.8), "n": (6.1, 0.81)}, 0.9)}, {})).panels
    assert scatter.guides == (None, None) and set(scatter.corners) == {""}
    assert [shape.name for shape in heat.panels[0].shapes] == list(figures.list_models(built))
    assert [len(panel.shapes) for panel in radar.panels] == [5, 1]
    assert heat.panels[0].columns == radar.panels[0].columns == list(alignmmbench.TASKS[:3])
    shades = {shape.name: shape.values[0] for shape in heat.panels[0].shapes}
    assert shades["rc"] == (1.0, "8.00") and shades["bl"] == (0.5, "4.00")
    assert radar.panels[0].rings == {0.25: "2", 0.5: "4", 0.75: "6", 1.0: "8"}


def test_models_by_size_are_joined_within_their_family() -> None:
    """Row 26: figure 8, a radar by family, smallest model first; a model of unknown size is in none."""
    built = board({name: (9 - n, 1) for n, name in enumerate("abcd")})
    _, radar = figures.compare_parts(built, alignmmbench.TASKS[:3], "c", SIZES)
    assert [(panel.heading, [shape.name for shape in panel.shapes]) for panel in radar.panels] == [
        ("f", ["b", "a"]),
        ("", ["d"]),
    ]
    assert not [*figures.compare_parts(built, ["Counting"], "c", {})]


def test_many_points_are_drawn_by_their_number() -> None:
    pairs = [(0.0, 0.0)] * 16 + [(1.0, 8.0)] * 4
    scatter = figures.plot_many("h", "x", "y", pairs, (8.0, 0.0))
    radii = {(mark.x.value, mark.y.value): mark.radius for mark in scatter.marks}
    assert radii == {(0, 0): 6, (1, 8): pytest.approx(3.5)}
    assert scatter.line == [(0.0, 0.0), (1.0, 8.0)]
