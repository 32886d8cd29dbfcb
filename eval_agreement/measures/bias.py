"""What pulls a judge's scores away from people's: severity, length, language, task, answerer.

Arrays in, one `BiasEffect` a bias out. "At equal human score" means: least squares of the judge's score on one
indicator per human level (scores rounded half up) and on the property in question, by sums over rows, which are
resampled.

People's scores are noisy: among answers with the same score those of the better answerer are truly better, and a fair
judge that sees this looks biased (errors in variables: Fuller 1987, "Measurement Error Models", ch. 1).
`noise_explains` says how noisy people would have to be to explain the whole effect.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import ArrayLike, NDArray

from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import LEVEL, Estimate, holm
from eval_agreement.metrics import half_up
from eval_agreement.sample import JudgedRows
from eval_agreement.sentences import texts_of

FEWEST_LABEL_GROUPS = 20
"""A label that lies in fewer groups than this has no offset: the bootstrap's interval would be too narrow."""

_SINGULAR = 1e-9


class BiasEffect(Estimate, frozen=True, kw_only=True):
    """One bias of a judge. `value` is in `unit`, on `n` judged rows (of an offset, those with `label`); `failed` rows
    have no judgment. `p_value` tests that it is 0 (Holm-corrected inside a family of labels; `detectable` is not).
    `noise_explains` is the reliability (0..1) of people's scores at or below which noise alone would make such an
    effect; None where it cannot, or where there is no sign of an effect."""

    name: str
    label: str | None = None
    about: str
    unit: str
    failed: int
    noise_explains: float | None = None
    reading: str


class Offsets(Struct, frozen=True, kw_only=True):
    """The effects of a family of labels, the largest label first."""

    name: str
    effects: list[BiasEffect]


def severity(rows: JudgedRows) -> BiasEffect:
    """Severity (below 0) or leniency (above 0): the mean of judge - human, in points."""
    human, judge = rows.human, rows.judge
    n, difference = rows.resamples.resample_sums(np.arange(rows.n), np.stack([np.ones(rows.n), judge - human])).T
    return _effect("severity", ratio(difference, n), rows)


def verbosity(rows: JudgedRows, length: ArrayLike) -> BiasEffect:
    """Points per doubling of `length` (characters; 0 counts as 1), at equal human score, where that varies."""
    x = _centred(np.log2(np.maximum(np.asarray(length, dtype=np.float64)[rows.kept], 1)))
    alike = "answers with the same human score are all equally long"
    return _explained(_effect("verbosity", _at_equal_score(rows, x), rows, alike), rows, x)


def offsets(name: str, rows: JudgedRows, label: Sequence[str | None]) -> Offsets:
    """The offset of each value of a label (`name` says which: language, task, answerer), in points: rows with it
    against all others that have one, at equal human score. p-values are Holm-corrected; two labels are one test. None
    where the label, or the rest, lies in fewer than FEWEST_LABEL_GROUPS groups, or has no human score in common."""
    names = sorted({name for name in label if name is not None})
    code = {name: number for number, name in enumerate(names)}
    numbers = np.array([-1 if name is None else code[name] for name in label], dtype=np.intp)
    rows, numbers = rows.of(numbers >= 0), numbers[numbers >= 0]
    size = np.bincount(numbers[rows.kept], minlength=len(names))
    effects = []
    for number in np.argsort(-size, kind="stable"):
        failed = int(((numbers == number) & ~rows.kept).sum())
        effect = _offset(rows, numbers[rows.kept] == number, label=names[number], failed=failed)
        effects.append(replace(effect, name=name, about=effect.about.format(name=name)))
    return Offsets(name=name, effects=effects if len(names) == 2 else _holm(effects))


def _offset(rows: JudgedRows, has: NDArray[np.bool_], **about: Any) -> BiasEffect:
    """Of the rows that have a label."""
    x, reason = has.astype(np.float64), "no answer without it has the same human score"
    for side, inside in (("with", has), ("without", ~has)):
        groups = len(np.unique(rows.resamples.member[inside]))
        if groups < FEWEST_LABEL_GROUPS:
            few = f"{groups} groups {side} it; at least {FEWEST_LABEL_GROUPS} are needed"
            return _effect("offset", np.full(1, np.nan), rows, few, n=int(has.sum()), **about)
    effect = _effect("offset", _at_equal_score(rows, x), rows, reason, n=int(has.sum()), **about)
    return _explained(effect, rows, x)


def _centred(values: Floats) -> Floats:
    return values - (values.mean() if len(values) else 0)


def _at_equal_score(rows: JudgedRows, x: Floats) -> Floats:
    """Points per unit of `x`, (n,), at equal human score: (1 + resamples,), the sample first. The indicators of human
    levels are projected out (Frisch-Waugh-Lovell)."""
    values, level = np.unique(half_up(rows.human), return_inverse=True)
    y, levels = _centred(rows.judge), len(values)
    at = scipy.sparse.csr_array((np.ones(rows.n), (level, np.arange(rows.n))), shape=(levels, rows.n))
    columns = scipy.sparse.vstack([at, at * y, at * x, np.stack([x * x, x * y])], format="csr")
    sums = rows.resamples.resample_sums(np.arange(rows.n), columns)
    n, y_sum, x_sum, squares = np.split(sums, levels * np.arange(1, 4), axis=1)
    xx, xy = squares.T
    x_mean = ratio(x_sum, n, empty=0)
    spread = xx - (x_mean * x_sum).sum(axis=1)
    # Where length does not vary, what is left of the sum of squares is no more than rounding.
    spread = np.where(spread > _SINGULAR * xx, spread, 0.0)
    return ratio(xy - (x_mean * y_sum).sum(axis=1), spread)


def _effect(name: str, values: Floats, rows: JudgedRows, reason: str = "", **about: Any) -> BiasEffect:
    """The effect from its value on the sample and in each resample. `reason`: why it can be NaN."""
    words, undefined = texts_of("bias.toml")[name], reason if rows.n else "no judged rows"
    estimate = rows.resamples.estimate(values, rows.n, undefined=undefined, null=0.0)
    facts = {**asdict(estimate), "failed": rows.failed, **about}
    effect = BiasEffect(name=name, about=words["about"], unit=words["unit"], reading="", **facts)
    return replace(effect, reading=_reading(words, effect))


def _reading(words: Mapping[str, str], effect: BiasEffect) -> str:
    if effect.value is None:
        return f"Not measured: {effect.undefined}."
    if effect.interval is None:
        return f"{effect.value:.2f} {effect.unit}, which may be chance: {effect.undefined}."
    low, high = (f"{end:+z.2f}".replace("-", "−") for end in effect.interval)
    if effect.side:
        low, high = (f"{end:.2f}" for end in sorted(map(abs, effect.interval)))
    sentence = words[("none", "above", "below")[effect.side]]
    return sentence.format(effect=effect, size=abs(effect.value), low=low, high=high)


def _explained(effect: BiasEffect, rows: JudgedRows, x: Floats) -> BiasEffect:
    """With the reliability of people's scores that would explain it: with a judge of true quality, and people's scores
    that plus noise, r(x, judge) is r(x, human) r(human, judge) / reliability."""
    if not effect.side or effect.value is None:
        return effect
    human, judge, x = map(_centred, (rows.human, rows.judge, x))
    if np.ptp(human) == 0:
        return effect
    through, direct = (x @ human) * (human @ judge) / (human @ human), x @ judge
    if not (0 < through / direct < 1 and direct * effect.value > 0):
        return effect
    reliability = float(through / direct)
    note = f" Noise in people's scores could explain it if their reliability were {reliability:.2f} or less."
    return replace(effect, noise_explains=reliability, reading=effect.reading + note)


def _holm(effects: list[BiasEffect]) -> list[BiasEffect]:
    """The effects with their p-values held against the number of them."""
    adjusted = holm([effect.p_value for effect in effects])
    tested = sum(p is not None for p in adjusted)
    chance = f" Among {tested} such comparisons this may be chance."
    return [
        effect
        if p is None
        else replace(effect, p_value=p, reading=effect.reading + (chance if effect.side and p > 1 - LEVEL else ""))
        for effect, p in zip(effects, adjusted, strict=True)
    ]
