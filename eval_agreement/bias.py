"""What pulls a judge's scores away from people's: severity, a narrow range, length, language, task, answerer.

Arrays in, one `BiasEffect` a bias out. "At equal human score" means: least squares of the judge's score on one
indicator per human level (scores rounded half up) and on the property in question. Nothing is fitted row by
row: the sufficient statistics are sums over rows, so it is these sums that are resampled.

People's scores are noisy themselves, and equal scores are then not equal quality: among answers with the same
score, those of the better answerer (or the longer ones, where length goes with quality) are truly better, and a
fair judge that sees this looks biased (errors in variables: Fuller 1987, "Measurement Error Models", ch. 1).
Where several people rated an answer, `rating_noise` takes this out. Where not, `BiasEffect.noise_explains` says how
noisy people would have to be to explain the whole effect.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import sparse

from critic.counting.arrays import Codes, Floats, distinct, groups_in, ratio
from critic.counting.estimate import LEVEL, Interval, holm
from eval_agreement.metrics import Indices, half_up, same_length
from eval_agreement.rows import JudgedRows

FEWEST_LABEL_GROUPS = 20
"""A label that lies in fewer groups than this has no offset: the bootstrap's interval would be too narrow."""

MOST_LABELS = 20
"""Labels of a family that are reported: with many more, Holm's correction leaves no power."""

_SINGULAR = 1e-9


class BiasEffect(Struct, frozen=True, kw_only=True):
    """One bias of a judge, with the 95 % interval and the two-sided p of the bootstrap over groups.

    `value` is in `unit` and stands on `n` judged rows; `failed` rows have no judgment and are left out. An
    offset is that of the `n` rows with `label` against `others` rows. An unbiased judge has `neutral`, which
    is what `p` tests (Holm-corrected inside a family of labels). What is None has its reason in `undefined`.

    `noise_explains` is a reliability: the share, 0..1, of the variance of people's scores that is not noise.
    At this one or a lower one, noise in people's scores would make such an effect all by itself. None where
    noise cannot make it or has been taken out, and where there is no sign of an effect.
    """

    name: str
    label: str | None = None
    about: str
    unit: str
    neutral: float
    value: float | None
    interval: Interval | None
    p: float | None
    n: int
    others: int | None = None
    failed: int
    undefined: str | None = None
    noise_explains: float | None = None
    details: dict[str, float] = field(default_factory=dict)
    reading: str


class Offsets(Struct, frozen=True, kw_only=True):
    """The effects of a family of labels, the largest label first. `left_out` labels were too many to report
    (their rows are among the others still); `unlabelled` rows have no label and take no part."""

    name: str
    effects: list[BiasEffect]
    left_out: int
    unlabelled: int


class _Kind(NamedTuple):
    """What an effect is, and how it reads without a sign of it, above the neutral value and below it."""

    name: str
    about: str
    unit: str
    none: str
    above: str
    below: str
    neutral: float = 0.0


_SEVERITY = _Kind(
    "severity",
    "mean of judge - human",
    "points",
    "No sign of severity or leniency: on average the judge is {low} to {high} points from people.",
    "The judge is lenient: on average {size} points ({low} to {high}) above people.",
    "The judge is severe: on average {size} points ({low} to {high}) below people.",
)
_SPREAD = (
    "The judge's scores spread {size} times as widely as people's ({low} to {high}); noise on either side widens, and "
    "averaging raters narrows, so that alone is no bias."
)
_CENTRAL_TENDENCY = _Kind(
    "central_tendency",
    "spread of the judge's scores as a multiple of people's",
    "times",
    _SPREAD,
    _SPREAD,
    _SPREAD,
    neutral=1.0,
)
_VERBOSITY = _Kind(
    "verbosity",
    "points for an answer twice as long, at equal human score",
    "points per doubling",
    "No sign that length pays: at equal human score, an answer twice as long gets {low} to {high} points.",
    "Length pays: at equal human score, an answer twice as long gets {size} points ({low} to {high}) more.",
    "Length costs: at equal human score, an answer twice as long gets {size} points ({low} to {high}) less.",
)
_SELF_PREFERENCE = _Kind(
    "self_preference",
    "points for answers of the judge's own family, at equal human score",
    "points",
    "No sign of self-preference: its own family gets {low} to {high} points against answers that people scored alike.",
    "The judge favours its own family: {size} points ({low} to {high}) more than answers that people scored alike.",
    "The judge is hard on its own family: {size} points ({low} to {high}) less than answers that people scored alike.",
)
_OFFSET = _Kind(
    "",
    "points for one {} against all others, at equal human score",
    "points",
    "No sign of an offset for {label}: {low} to {high} points against other answers that people scored alike.",
    "{label} gets {size} points ({low} to {high}) more than other answers that people scored alike.",
    "{label} gets {size} points ({low} to {high}) less than other answers that people scored alike.",
)


def severity(rows: JudgedRows) -> BiasEffect:
    """Severity (below 0) or leniency (above 0): the mean of judge - human, in points."""
    first, cell = distinct(rows.human, rows.judge)
    columns = np.stack([np.ones(len(first)), rows.judge[first] - rows.human[first]])
    n, difference = rows.resamples.sums(cell, columns).T
    details = {"human_mean": float(rows.human.mean()), "judge_mean": float(rows.judge.mean())} if rows.n else {}
    return _effect(_SEVERITY, ratio(difference, n), rows, details=details)


def central_tendency(rows: JudgedRows) -> BiasEffect:
    """How much of the scale the judge uses: its standard deviation divided by people's; below 1 is narrow.

    The slope of judge on human (in `details`) would be below 1 for every judge, because noise in people's
    scores flattens it. The ratio has no such bias where both sides are about equally noisy; a noisier
    judge raises it, and so does averaging people's raters: it has an interval, but no p and no verdict. It says how
    wide the range is, not whether the right answers are at its ends.
    A constant judge has 0. None where people gave every answer the same score.
    """
    first, cell = distinct(rows.human, rows.judge)
    h, j = (scores[first] - (scores.mean() if rows.n else 0) for scores in (rows.human, rows.judge))
    columns = np.stack([np.ones(len(first)), h, j, h * h, j * j, h * j])
    n, h_sum, j_sum, hh, jj, hj = rows.resamples.sums(cell, columns).T
    h_spread, j_spread = _beyond(hh, ratio(h_sum**2, n)), _beyond(jj, ratio(j_sum**2, n))
    details = {"human_sd": float(rows.human.std()), "judge_sd": float(rows.judge.std())} if rows.n else {}
    if h_spread[0] > 0:
        details["slope"] = float((hj[0] - h_sum[0] * j_sum[0] / n[0]) / h_spread[0])
    values = np.sqrt(ratio(j_spread, h_spread))
    effect = _effect(_CENTRAL_TENDENCY, values, rows, "people gave every answer the same score", details=details)
    return replace(effect, p=None)


def verbosity(rows: JudgedRows, length: Sequence[float] | NDArray[np.number]) -> BiasEffect:
    """What length alone is worth: points per doubling of `length` (characters; 0 counts as 1), at equal human score.

    Where the noise of people's scores is known, "equal human score" is a straight line on the human score, with the
    variance of its noise taken off: unbiased where people's scores are noisy, as long as the judge's score rises
    linearly with quality.
    None where all answers with the same human score are equally long. Raises ValueError for a negative or missing
    length, or too few or many.
    """
    same_length(rows.kept, {"lengths": length})
    sizes = np.asarray(length, dtype=np.float64)
    if not (fine := sizes >= 0).all():
        raise ValueError(f"length {sizes[~fine][0]:g} is not a number of characters")
    doublings = np.log2(np.maximum(sizes[rows.kept], 1))
    first, cell = _cells(rows, doublings)
    x = doublings[first] - (doublings.mean() if rows.n else 0)
    values = _at_equal_score(rows, first, cell, sparse.csr_array(x[None, :]))[:, 0]
    effect = _effect(_VERBOSITY, values, rows, "answers with the same human score are all equally long")
    return _explained(effect, rows, first, np.bincount(cell, minlength=len(first)), x)


def offsets(name: str, rows: JudgedRows, label: Sequence[str | None]) -> Offsets:
    """The offset of each value of a label (`name` says which: language, task, answerer), in points.

    Each is that of the rows with the label against all other labelled rows, at equal human score, noise as in
    `verbosity`. The MOST_LABELS largest labels are reported. p-values are Holm-corrected over them; two labels
    are each other's mirror, so theirs is one test. A label is None where it, or the rest, lies in fewer than
    FEWEST_LABEL_GROUPS groups, or where no answer without it has the same human score. Rows whose label is None
    take no part. Raises ValueError for too few or many labels.
    """
    rows, names, code = _labelled(rows, label)
    order = np.argsort(-np.bincount(code[rows.kept], minlength=len(names)), kind="stable")[:MOST_LABELS]
    rank = np.full(len(names), len(order), dtype=np.uint8)
    rank[order] = np.arange(len(order))
    kind = _OFFSET._replace(name=name, about=_OFFSET.about.format(name))
    effects = _label_effects(kind, rows, rank[code], [names[place] for place in order])
    return Offsets(
        name=name,
        effects=effects if len(names) == 2 else _holm(effects),
        left_out=len(names) - len(order),
        unlabelled=len(label) - len(code),
    )


def self_preference(rows: JudgedRows, answerer: Sequence[str | None], own: Collection[str]) -> BiasEffect:
    """The offset, as in `offsets`, of answers whose `answerer` is in `own`: the judge's own model family.

    Answers whose answerer is None take no part. Where the family is simply better than noisy human scores can
    show, that looks like self-preference: `BiasEffect.noise_explains` says when.
    """
    rows, names, code = _labelled(rows, answerer)
    other = np.array([name not in own for name in names], dtype=np.uint8)
    return _label_effects(_SELF_PREFERENCE, rows, other[code], [", ".join(sorted(own))])[0]


def rating_noise(raters: Floats) -> Floats:
    """The variance of the noise in each row's mean rating, in points squared: shape (n, m) in, (n,) out.

    NaN in `raters` is a rating that was not made. A row's noise is the sample variance of its ratings divided
    by their number; a row with one rating gets the average variance of the others'. This assumes that raters
    err independently of each other. Raises ValueError where no row has two ratings, or one has none.
    """
    made = (~np.isnan(raters)).sum(axis=1)
    if not made.all():
        raise ValueError(f"row {int(np.argmin(made))} (from 0) has no rating")
    several = made > 1
    if not several.any():
        raise ValueError("no row has two ratings, so their noise is unknown")
    variance = np.full(len(raters), np.nan)
    variance[several] = np.nanvar(raters[several], axis=1, ddof=1)
    freedom = made[several] - 1
    variance[~several] = np.average(variance[several], weights=freedom)
    return np.asarray(variance / made)


def _labelled(rows: JudgedRows, label: Sequence[str | None]) -> tuple[JudgedRows, list[str], NDArray[Any]]:
    """The rows that have a label, the labels, sorted, and the number of each row's, those of failed rows too."""
    same_length(rows.kept, {"labels": label})
    names = sorted({str(value) for value in label if value is not None})
    number = {name: place for place, name in enumerate(names)}
    known = np.array([value is not None for value in label], dtype=bool)
    return rows.of(known), names, np.array([number[str(value)] for value in label if value is not None], dtype=np.intp)


def _label_effects(kind: _Kind, rows: JudgedRows, code: Codes, names: list[str]) -> list[BiasEffect]:
    """The offset of each of `names`. `code` is the label's number of each row, failed ones included, and
    len(names) where it is none of them."""
    failed = np.bincount(code[~rows.kept], minlength=len(names) + 1)
    code = code[rows.kept]
    first, cell = _cells(rows, code)
    times, label = np.bincount(cell, minlength=len(first)), code[first]
    reported = np.flatnonzero(label < len(names))
    ones = (np.ones(len(reported)), (label[reported].astype(np.intp), reported))
    values = _at_equal_score(rows, first, cell, sparse.csr_array(ones, shape=(len(names), len(first))))
    effects = []
    for number, name in enumerate(names):
        inside = code == number
        n = int(inside.sum())
        groups = [groups_in(rows.resamples.member, side) for side in (inside, ~inside)]
        reason = "no answer without it has the same human score"
        offset = values[:, number]
        if min(groups) < FEWEST_LABEL_GROUPS:
            offset = np.full(1, np.nan)
            few, whose = (groups[0], "with") if groups[0] < FEWEST_LABEL_GROUPS else (groups[1], "without")
            reason = f"{few} groups {whose} it; at least {FEWEST_LABEL_GROUPS} are needed"
        about = {"label": name, "n": n, "others": rows.n - n, "failed": int(failed[number])}
        effect = _effect(kind, offset, rows, reason, **about)
        effects.append(_explained(effect, rows, first, times, (label == number).astype(np.float64)))
    return effects


def _cells(rows: JudgedRows, x: Codes) -> tuple[Indices, Codes]:
    return distinct(rows.human, rows.judge, x, *([] if rows.noise is None else [rows.noise]))


def _at_equal_score(rows: JudgedRows, first: Indices, cell: Codes, x: sparse.csr_array) -> Floats:
    """Points per unit of each regressor, one regression each: shape (1 + resamples, k), the sample first.

    `x`, shape (k, cells), holds the regressors' values in each cell, `first` a row of each.
    """
    human, judge = rows.human[first], rows.judge[first]
    columns, solve = _levels(human, judge, x) if rows.noise is None else _line(human, judge, x, rows.noise[first])
    return solve(rows.resamples.sums(cell, columns))


_Regression = tuple[sparse.csr_array, Callable[[Floats], Floats]]
"""What each cell adds to the sufficient statistics, and the coefficients from their sums."""


def _levels(human: Floats, judge: Floats, x: sparse.csr_array) -> _Regression:
    """Each regressor in turn, beside one indicator per human level.

    The indicators are projected out level by level (Frisch-Waugh-Lovell), so that a level that a resample
    lacks adds nothing.
    """
    level = np.unique(half_up(human), return_inverse=True)[1]
    k, cells = x.shape
    levels = int(level.max()) + 1 if cells else 0
    y = judge - (judge.mean() if cells else 0)
    at = sparse.csr_array((np.ones(cells), (level, np.arange(cells))), shape=(levels, cells))
    entries = x.tocoo()
    row = entries.coords[0] * levels + level[entries.coords[1]]
    x_at = sparse.csr_array((entries.data, (row, entries.coords[1])), shape=(k * levels, cells))
    columns = sparse.vstack([at, at * y, x_at, x * x, x * y], format="csr")

    def solve(sums: Floats) -> Floats:
        ends = np.cumsum([levels, levels, k * levels, k])
        n, y_sum, x_sum, xx, xy = np.split(sums, ends, axis=1)
        x_sum = x_sum.reshape(len(sums), k, levels)
        x_mean = ratio(x_sum, n[:, None, :], empty=0)
        spread = _beyond(xx, (x_mean * x_sum).sum(axis=2))
        return ratio(xy - (x_mean * y_sum[:, None, :]).sum(axis=2), spread)

    return columns, solve


def _line(human: Floats, judge: Floats, x: sparse.csr_array, noise: Floats) -> _Regression:
    """Each regressor in turn, beside a straight line on the human score without its noise.

    Corrected least squares: the variance of the noise is taken off the sum of squares of the human score
    (Fuller 1987, "Measurement Error Models", ch. 2).
    """
    cells = x.shape[1]
    h, y = (scores - (scores.mean() if cells else 0) for scores in (human, judge))
    common = sparse.csr_array(np.stack([np.ones(cells), h, y, h * h, h * h - noise, h * y]))
    columns = sparse.vstack([common, x, x * x, x * h, x * y], format="csr")

    def solve(sums: Floats) -> Floats:
        n, h_sum, y_sum, raw, hh, hy = sums[:, :6].T[:, :, None]
        x_sum, xx, xh, xy = np.split(sums[:, 6:], 4, axis=1)
        xx, xh, xy = xx - ratio(x_sum**2, n), xh - ratio(x_sum * h_sum, n), xy - ratio(x_sum * y_sum, n)
        raw, hh, hy = (part - ratio(h_sum * other, n) for part, other in ((raw, h_sum), (hh, h_sum), (hy, y_sum)))
        determinant = xx * hh - xh**2
        possible = determinant > _SINGULAR * xx * raw
        return ratio(xy * hh - xh * hy, np.where(possible, determinant, 0.0))

    return columns, solve


def _beyond(total: Floats, part: Floats) -> Floats:
    """total - part of two sums of squares, exactly 0 where the rest is no more than rounding."""
    rest = total - part
    return np.where(rest > _SINGULAR * total, rest, 0.0)


def _effect(kind: _Kind, values: Floats, rows: JudgedRows, reason: str = "", **about: Any) -> BiasEffect:
    """The effect from its value on the sample and in each resample. `reason`: why it can be NaN."""
    undefined = reason if rows.n else "no judged rows"
    estimate = rows.resamples.estimate(values, rows.n, undefined=undefined, null=kind.neutral)
    effect = BiasEffect(
        name=kind.name,
        about=kind.about,
        unit=kind.unit,
        neutral=kind.neutral,
        value=estimate.value,
        interval=estimate.interval,
        p=estimate.p_value,
        undefined=estimate.undefined,
        reading="",
        **{"n": rows.n, "failed": rows.failed, **about},
    )
    return replace(effect, reading=_reading(kind, effect))


def _reading(kind: _Kind, effect: BiasEffect) -> str:
    label = "" if effect.label is None else effect.label
    if effect.value is None:
        return f"Not measured: {effect.undefined}."
    if effect.interval is None:
        return f"{effect.value:.2f} {kind.unit}, which may be chance: {effect.undefined}."
    low, high = effect.interval
    if low <= kind.neutral <= high:
        ends = (f"{low:.2f}", f"{high:.2f}") if kind.neutral else (_signed(low), _signed(high))
        return kind.none.format(label=label, size=f"{effect.value:.2f}", low=ends[0], high=ends[1])
    sentence = kind.above if effect.value > kind.neutral else kind.below
    near, far = sorted((abs(low), abs(high)))
    return sentence.format(label=label, size=f"{abs(effect.value):.2f}", low=f"{near:.2f}", high=f"{far:.2f}")


def _signed(points: float) -> str:
    return f"{points:+z.2f}".replace("-", "−")


def _seen(effect: BiasEffect) -> bool:
    return effect.interval is not None and not effect.interval[0] <= effect.neutral <= effect.interval[1]


def _explained(effect: BiasEffect, rows: JudgedRows, first: Indices, times: Indices, x: Floats) -> BiasEffect:
    """The effect with the reliability of people's scores that would explain all of it by itself; with their noise
    taken out, there is none. Of cells: `first` is a row of each, `times` how many it has, `x` the property.

    If the judge followed true quality only, and people's scores were quality plus noise, the correlation of
    `x` with the judge would be r(x, human) r(human, judge) / reliability.
    """
    if rows.noise is not None:
        return replace(effect, about=f"{effect.about}, without the noise in people's scores")
    if not _seen(effect) or effect.value is None:
        return effect
    human, judge, x = (one - times @ one / rows.n for one in (rows.human[first], rows.judge[first], x))
    if np.ptp(rows.human) == 0:
        return effect
    through = (times @ (x * human)) * (times @ (human * judge)) / (times @ human**2)
    direct = times @ (x * judge)
    if not (0 < through / direct < 1 and direct * effect.value > 0):
        return effect
    reliability = float(through / direct)
    note = f" Noise in people's scores could explain it if their reliability were {reliability:.2f} or less."
    return replace(effect, noise_explains=reliability, reading=effect.reading + note)


def _holm(effects: list[BiasEffect]) -> list[BiasEffect]:
    """The effects with their p-values held against the number of them."""
    adjusted = holm([effect.p for effect in effects])
    tested = sum(p is not None for p in adjusted)
    chance = f" Among {tested} such comparisons this may be chance."
    return [
        effect
        if p is None
        else replace(effect, p=p, reading=effect.reading + (chance if _seen(effect) and p > 1 - LEVEL else ""))
        for effect, p in zip(effects, adjusted, strict=True)
    ]
