"""Build pictures from leaderboards: models over the parts of a score, and many points with their fit."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from critic.page.blocks import Bar, Figure, Grid, GridRow, Mark, Scatter, axis, bar, number

if TYPE_CHECKING:  # only a type: importing it would load NumPy wherever this module is imported
    from critic.stats.leaderboard import Leaderboard

MOST_SHAPES = 5
"""The most models in a radar; more hide each other."""

CELLS = 40
"""Cells of a scatter of many points in each direction. The points of a cell are drawn as one."""


class ModelSize(Struct, frozen=True, forbid_unknown_fields=True):
    """A model's number of parameters in billions, and the family within which sizes are compared."""

    size: Annotated[float, Meta(gt=0)]
    family: str = ""


Sizes = Mapping[str, ModelSize]


def list_models(board: "Leaderboard") -> dict[str, str]:
    """Return row name -> model, in the table's order; rows that stand apart (`LeaderboardRow.apart`) are left out."""
    rows = (board.entries[name] for name in board.standings if name in board.entries)
    return {row.name: row.system for row in rows if not row.apart}


def compare_parts(board: "Leaderboard | None", columns: Sequence[str], caption: str, sizes: Sizes) -> Iterator[Figure]:
    """Yield a heat map and radars of all models over the scores `columns`, which share a scale.

    A radar shows the models of one family, smallest first, if `sizes` is not empty (model -> size and family).
    Otherwise it shows MOST_SHAPES successive models of the table. There are no pictures of a single model, or of fewer
    than three scores.
    """
    models = list_models(board) if board else {}
    if board is None or len(models) < 2 or len(columns) < 3:
        return
    cells = {name: [board.standings[name].get(column) for column in columns] for name in models}
    values = {name: [cell.value if cell else None for cell in own] for name, own in cells.items()}
    scale = axis("", [Bar(0.0), *(bar(value, None) for own in values.values() for value in own)], 5)
    lowest, *_, highest = scale.ticks
    rings = {(tick - lowest) / (highest - lowest): label for tick, label in scale.ticks.items() if tick > lowest}
    shapes = {}
    for name, own in values.items():
        places = [None if value is None else ((value - lowest) / (highest - lowest), number(value)) for value in own]
        shapes[name] = GridRow(name=name, model=models[name], values=places)
    heat, radars = [Grid(columns=columns, shapes=list(shapes.values()))], []
    for heading, names in _group_models(models, sizes):
        radars.append(Grid(heading=heading, columns=columns, shapes=[shapes[name] for name in names], rings=rings))
    darker, centre = f"{caption}: the darker, the higher", f"{caption}: from {number(lowest, 0)} in the centre"
    yield Figure(caption=darker, picture=f"heat-{board.key}", kind="heatmap", panels=heat)
    yield Figure(caption=centre, picture=f"radar-{board.key}", kind="radar", panels=radars)


def _group_models(models: Mapping[str, str], sizes: Sizes) -> list[tuple[str, Sequence[str]]]:
    """Return the heading and the row names of each radar: one per family, or MOST_SHAPES rows each without sizes."""
    if not sizes:
        names = list(models)
        return [("", names[first : first + MOST_SHAPES]) for first in range(0, len(names), MOST_SHAPES)]
    families = defaultdict[str, list[str]](list)
    for name in sorted((name for name in models if models[name] in sizes), key=lambda name: sizes[models[name]].size):
        families[sizes[models[name]].family].append(name)
    return list(families.items())


def plot_models(board: "Leaderboard", across: str, up: str) -> Scatter:
    """Return the scatter of the models by the scores `across` (x) and `up` (y).

    Models without one of the scores, or with a score `across` that lacks a part, are left out.
    """
    marks = list[Mark]()
    for name, model in list_models(board).items():
        x, y = (board.standings[name].get(column) for column in (across, up))
        if x and y and x.value is not None and y.value is not None and not x.partly:
            marks.append(Mark(x=Bar(x.value, x.interval), y=Bar(y.value, y.interval), label=name, model=model))
    return Scatter(x=axis(across, [mark.x for mark in marks]), y=axis(up, [mark.y for mark in marks]), marks=marks)


def plot_many(heading: str, x: str, y: str, pairs: Sequence[tuple[float, float]], line: tuple[float, float]) -> Scatter:
    """Return the scatter of many points. All points of a small cell become one mark, larger for more points.

    `x`, `y`: names of the axes. `pairs`: the points (x, y). `line`: slope and intercept of a fit.
    """
    across, up = (axis(name, map(Bar, values)) for name, values in zip((x, y), zip(*pairs, strict=True), strict=True))
    wide, high = ((max(side.ticks) - min(side.ticks)) / CELLS for side in (across, up))
    cells = Counter((round(left / wide) * wide, round(height / high) * high) for left, height in pairs)
    most, ends = max(cells.values()), [min(pairs)[0], max(pairs)[0]]
    marks = [Mark(x=Bar(x), y=Bar(y), radius=1 + 5 * (count / most) ** 0.5) for (x, y), count in cells.items()]
    fit = [(end, line[0] * end + line[1]) for end in ends]
    return Scatter(heading=heading, x=across, y=up, marks=marks, line=fit)
