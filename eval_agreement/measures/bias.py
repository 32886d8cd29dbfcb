"""Biases of a judge: severity, length, and offsets by language, task and answerer.

An effect "at equal human score" is a coefficient of the least-squares regression of the judge's score on one indicator
per human level (scores rounded half up) and on the property. It is computed from sums over rows, which are resampled.

Human scores are noisy. Among answers with the same human score, those of a better answerer are truly better. A fair
judge that notices this looks biased (errors in variables: Fuller 1987, "Measurement Error Models", ch. 1).
`noise_explains` says how noisy human scores would have to be to explain the whole effect.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy
from msgspec import Struct
from msgspec.structs import asdict, replace

from critic.stats.arrays import Floats, ratio
from critic.stats.estimate import LEVEL, Bootstrap, Estimate, count_unshown, detectable, holm
from eval_agreement.metrics import half_up
from eval_agreement.sample import AuditRequest, Mask, RatedSample
from eval_agreement.sentences import texts_of

FEWEST_LABEL_GROUPS = 20
"""Fewest groups in which a label must occur to have an offset. With fewer, bootstrap intervals are too narrow. Here a
label is a value of a property, such as the language zh."""

OFFSET_PARTS = ("lang", "task", "answerer")
"""Properties whose values may have an offset."""

_SINGULAR = 1e-9
"""Share of a sum of squares below which the remainder after projection is taken for a rounding error."""


class BiasEffect(Estimate, frozen=True, kw_only=True):
    """A bias of a judge.

    - name: severity, verbosity, or for an offset the property, such as lang. label: the value of this property that the
      offset is about, such as zh; None for other effects. about: what the number measures, in words.
    - value: the effect in `unit`, on `n` judged rows (for an offset, the rows with `label`). `failed` rows have no
      judgment.
    - p_value: of the hypothesis that the effect is 0. For offsets of more than two labels, it and `detectable` are
      Holm-corrected over all labels of the property.
    - noise_explains: reliability (0..1) of human scores at or below which noise could cause the whole effect. None if
      noise cannot explain it, or if no effect is shown.
    - reading: the effect as a sentence.
    """

    name: str
    label: str | None = None
    about: str
    unit: str
    failed: int
    noise_explains: float | None = None
    reading: str


class Offsets(Struct, frozen=True, kw_only=True):
    """Offsets of a family of labels, the values of the property `name` (such as languages), the most frequent first."""

    name: str
    effects: list[BiasEffect]


class Biases(Struct, frozen=True):
    """All biases of a judge: effects on the whole sample, and offsets by family of labels."""

    effects: list[BiasEffect]
    offsets: list[Offsets]


def measure_biases(sample: RatedSample, _: AuditRequest) -> dict[str, Biases]:
    """Measure the biases of every judge of a sample on the labelled answers, and return them by judge name."""
    labelled = sample.labelled
    biases = {}
    for judge, scores in labelled.judges.items():
        rows = replace(labelled, judges={judge: scores})
        effects = [severity(rows)]
        if rows.length is not None and not np.isnan(rows.length).any():
            effects.append(verbosity(rows, rows.length))
        # One language, task or answerer has no others to be compared with.
        several = [part for part in OFFSET_PARTS if len(labelled.part_values(part)) > 1]
        biases[judge] = Biases(effects, [offsets(part, rows) for part in several])
    return biases


def severity(sample: RatedSample) -> BiasEffect:
    """Measure severity (below 0) or leniency (above 0), the mean of judge - human, in points.

    >>> def answers(human, judge, group):
    ...     scores = {"human": np.array(human, dtype=float), "judges": {"j": np.array(judge, dtype=float)}}
    ...     return RatedSample(name="s", ids=list(map(str, range(len(human)))), group=list(group), **scores)
    >>> effect = severity(answers([2, 4, 6, 8, 5], [3, 4, 7, 10, None], "aabcd"))
    >>> effect.value, effect.n, effect.failed, effect.interval, effect.p_value
    (1.0, 4, 1, None, None)
    >>> effect.reading
    '1.00 points, which may be chance: 3 groups; an interval needs at least 5.'
    >>> unjudged = severity(answers([3], [None], "a"))
    >>> unjudged.value, unjudged.undefined, severity(answers([], [], "")).undefined
    (None, 'no judged rows', 'no judged rows')
    """
    rows = sample.judged
    difference = np.stack([np.ones(len(rows.ids)), rows.scores - rows.human])
    count, total = Bootstrap(rows.groups).resample_sums(np.arange(len(rows.ids)), difference).T
    return _effect("severity", ratio(total, count), sample)


def verbosity(sample: RatedSample, length: Floats) -> BiasEffect:
    """Measure the effect of length at equal human score, in points per doubling of `length`.

    `length`: characters of each answer, (n,); values below 1 count as 1.

    Among answers with the same human score, twice the length earns a point here; better answers are shorter:

    >>> ids, human, judge = list(map(str, range(12))), np.array([3.0, 3, 7, 7] * 3), np.array([3.0, 4, 8, 9] * 3)
    >>> sample = RatedSample(name="s", ids=ids, group=ids, human=human, judges={"j": judge})
    >>> effect = verbosity(sample, np.array([400, 800, 50, 100] * 3))
    >>> round(effect.value, 9), np.round(effect.interval, 9).tolist(), effect.reading.partition(" points")[0]
    (1.0, [1.0, 1.0], 'Length pays: at equal human score, an answer twice as long gets 1.00')
    >>> alike = verbosity(sample, np.array([400, 400, 50, 50] * 3))
    >>> alike.value, alike.interval, alike.reading
    (None, None, 'Not measured: answers with the same human score are all equally long.')
    >>> verbosity(sample, np.array([0, 1, 0, 1] * 3)).undefined
    'answers with the same human score are all equally long'
    >>> round(verbosity(sample, np.array([0, 2, 1, 2] * 3)).value, 9)
    1.0
    """
    x = _centred(np.log2(np.maximum(length[~np.isnan(sample.scores)], 1)))
    undefined = "answers with the same human score are all equally long"
    effect = _effect("verbosity", _at_equal_score(sample.judged, x), sample, reason=undefined)
    return _with_noise(effect, sample.judged, x)


def offsets(name: str, sample: RatedSample) -> Offsets:
    """Measure the offset of each label of a family (the property `name`, such as language), in points.

    Answers without a label are left out. An offset compares the answers that have the label with all that have another
    one, at equal human score. With more than two labels, p-values are Holm-corrected. An offset is undefined if either
    set of answers lies in fewer than FEWEST_LABEL_GROUPS groups, or if they have no human score in common.
    """
    sample = sample.rows(np.array([label is not None for label in sample.parts[name]], dtype=bool))
    labels, judged = sample.parts[name], np.array(sample.judged.parts[name], dtype=object)
    sizes = Counter(judged)
    effects, groups = list[BiasEffect](), dict[str | None, int]()
    # The most frequent first, by name within ties.
    for label in sorted(set(labels), key=lambda label: (-sizes[label], label)):
        failed = labels.count(label) - sizes[label]
        effect = _offset(sample, judged == label, label=label, failed=failed)
        effects.append(replace(effect, name=name, about=effect.about.format(name=name)))
        groups[label] = len(np.unique(sample.judged.groups[judged == label]))
    # Two labels are one test: the offset of one is that of the other with its sign reversed.
    return Offsets(name=name, effects=[*_correct(effects, groups)] if len(groups) > 2 else effects)


def _offset(sample: RatedSample, has_label: Mask, **facts: Any) -> BiasEffect:
    """Measure the offset of one label, as `offsets` defines it.

    `has_label`: mask of the judged answers that have the label, (n,). `facts`: other fields of the effect.
    """
    rows, n = sample.judged, int(has_label.sum())
    for side, inside in (("with", has_label), ("without", ~has_label)):
        groups = len(np.unique(rows.groups[inside]))
        if groups < FEWEST_LABEL_GROUPS:
            few = f"{groups} groups {side} it; at least {FEWEST_LABEL_GROUPS} are needed"
            return _effect("offset", np.full(1, np.nan), sample, reason=few, n=n, **facts)
    x = has_label.astype(np.float64)
    undefined = "no answer without it has the same human score"
    effect = _effect("offset", _at_equal_score(rows, x), sample, reason=undefined, n=n, **facts)
    return _with_noise(effect, rows, x)


def _centred(values: Floats) -> Floats:
    """Return the values minus their mean. An empty array is returned unchanged."""
    return values - (values.mean() if len(values) else 0)


def _at_equal_score(rows: RatedSample, x: Floats) -> Floats:
    """Return the effect of `x` (n,) on the judge's score at equal human score, in points per unit of `x`.

    The result has shape (1 + resamples,), the sample first. Indicators of human levels are projected out
    (Frisch-Waugh-Lovell theorem).
    """
    values, level = np.unique(half_up(rows.human), return_inverse=True)
    levels, number = len(values), np.arange(len(x))
    # Centred scores keep the sums small, so that their differences lose no digits.
    y = _centred(rows.scores)
    at_level = scipy.sparse.csr_array((np.ones(len(x)), (level, number)), shape=(levels, len(x)))
    columns = scipy.sparse.vstack([at_level, at_level * y, at_level * x, np.stack([x * x, x * y])], format="csr")
    sums = Bootstrap(rows.groups).resample_sums(number, columns)
    n, y_sum, x_sum, squares = np.split(sums, levels * np.arange(1, 4), axis=1)
    xx, xy = squares.T
    x_mean = ratio(x_sum, n, empty=0)
    spread = xx - (x_mean * x_sum).sum(axis=1)
    # If x does not vary within levels, the rest of the sum of squares is rounding and would give a wild slope.
    spread = np.where(spread > _SINGULAR * xx, spread, 0.0)
    return ratio(xy - (x_mean * y_sum).sum(axis=1), spread)


def _effect(name: str, values: Floats, sample: RatedSample, reason: str = "", **facts: Any) -> BiasEffect:
    """Build an effect from its `values` on the sample and on the resamples, (1 + resamples,), the sample first.

    `name`: key of the effect's texts in `bias.toml`. `reason`: why the value is undefined if it is NaN. `facts`: other
    fields of the effect, which replace the computed ones.
    """
    texts = texts_of("bias.toml")[name]
    n = len(sample.judged.ids)
    undefined = reason if n else "no judged rows"
    estimate = Bootstrap(sample.judged.groups).estimate(values, n, undefined=undefined, null=0.0)
    fields = {**asdict(estimate), "failed": len(sample.ids) - n, **facts}
    effect = BiasEffect(name=name, about=texts["about"], unit=texts["unit"], reading="", **fields)
    return replace(effect, reading=_read_out(texts, effect))


def _read_out(texts: Mapping[str, str], effect: BiasEffect) -> str:
    """Return an effect as a sentence, from its templates in `bias.toml`."""
    if effect.value is None:
        return f"Not measured: {effect.undefined}."
    if effect.interval is None:
        return f"{effect.value:.2f} {effect.unit}, which may be chance: {effect.undefined}."
    low, high = (f"{end:+z.2f}".replace("-", "−") for end in effect.interval)
    # A shown effect has its direction in words, so that sizes stand without a sign.
    if effect.side:
        low, high = (f"{end:.2f}" for end in sorted(map(abs, effect.interval)))
    sentence = texts[("none", "above", "below")[effect.side]]
    return sentence.format(effect=effect, size=abs(effect.value), low=low, high=high)


def _with_noise(effect: BiasEffect, rows: RatedSample, x: Floats) -> BiasEffect:
    """Return the effect with `noise_explains` and a note if noise in human scores could explain it, else unchanged.

    `x`: the property whose effect was measured, for each row, (n,). Suppose the judge sees true quality, and human
    scores are true quality plus noise. With correlations r, r(x, judge) is then r(x, human) r(human, judge) /
    reliability. The equation is solved for the reliability.
    """
    if not effect.side or effect.value is None:
        return effect
    human, judge, x = map(_centred, (rows.human, rows.scores, x))
    if np.ptp(human) == 0:
        return effect
    through_human = (x @ human) * (human @ judge) / (human @ human)
    direct = x @ judge
    # Outside 0..1 it is no reliability: noise makes human scores weaker, never stronger, than the truth.
    if not (0 < through_human / direct < 1 and direct * effect.value > 0):
        return effect
    reliability = float(through_human / direct)
    note = f" Noise in people's scores could explain it if their reliability were {reliability:.2f} or less."
    return replace(effect, noise_explains=reliability, reading=effect.reading + note)


def _correct(effects: list[BiasEffect], groups: Mapping[str | None, int]) -> Iterator[BiasEffect]:
    """Apply Holm's correction to the p-values of a family, and add a note to effects that may then be chance.

    `groups`: number of groups in which each label occurs, from which the detectable effect is computed.

    >>> facts = {"about": "", "unit": "points", "failed": 0, "value": 0.5, "n": 50, "interval": (0.01, 0.9)}
    >>> effects = [BiasEffect(name="", reading="It is there.", p_value=p, **facts) for p in (0.04, 0.3, 0.001)]
    >>> for effect in _correct(effects, groups={None: 50}):
    ...     print(round(effect.p_value, 9), effect.reading)
    0.08 It is there. Among 3 such comparisons this may be chance.
    0.3 It is there. Among 3 such comparisons this may be chance.
    0.003 It is there.
    """
    adjusted = holm([effect.p_value for effect in effects])
    tested = sum(p is not None for p in adjusted)
    for effect, p in zip(effects, adjusted, strict=True):
        if p is not None and effect.interval:
            # The interval is not corrected, so that it may show an effect that the corrected p-value does not.
            by_chance = effect.side and p > 1 - LEVEL
            note = f" Among {tested} such comparisons this may be chance." if by_chance else ""
            needed = detectable(effect.interval, groups[effect.label], tests=count_unshown(adjusted))
            effect = replace(effect, p_value=p, detectable=needed, reading=effect.reading + note)  # noqa: PLW2901
        yield effect
