"""Another score of judgments that are there: of their probabilities or, where those never came, of what they state."""

from msgspec.structs import replace

from critic.judging import distribution
from critic.judging.asker import pooled
from critic.records import Judgment, Verdict


def has_distribution(one: Judgment) -> bool:
    """Whether probabilities came with a verdict, one of its samples or of its criteria."""
    verdicts = [one.verdict, *one.samples]
    verdicts += [part for found in verdicts for part in found.criteria.values()]
    return any(found.distribution is not None for found in verdicts)


def _stated(found: Verdict) -> Verdict:
    """A verdict that failed for want of a distribution, with the rating that it states."""
    lacks = found.failure == "no_distribution" and found.rating is not None
    criteria = {name: _stated(one) for name, one in found.criteria.items()}
    return replace(found, failure=None if lacks else found.failure, criteria=criteria)


def scored_by(kind: str, one: Judgment) -> Judgment | None:
    """With the score that `kind` takes of its probabilities, or argmax of the rating that is stated where it failed for
    having none. None where its score is not of its own ones (a panel's, by several criteria, of a rating alone)."""
    if one.members:
        return None
    if one.score_kind == kind:
        return one
    setup = replace(one.setup, score_kind=kind)
    if one.verdict.failure == "no_distribution" and kind == "argmax":
        samples = [_stated(each) for each in one.samples]
        found = pooled(samples) if samples else _stated(one.verdict)
        return replace(one, setup=setup, verdict=found, samples=samples, score=distribution.scored(found, kind))
    if one.verdict.failure is not None:
        return replace(one, setup=setup)
    if one.score != distribution.of_distribution(one.verdict, one.score_kind):
        return None
    return replace(one, setup=setup, score=distribution.of_distribution(one.verdict, kind))
