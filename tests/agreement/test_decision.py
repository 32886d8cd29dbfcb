"""The decision of an audit in twenty-four synthetic worlds: the sentence that a statistician would say of each."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from critic.stats.verdicts import TIE, A, B, Codes
from eval_agreement.measures.measure import AuditRequest, run_audit
from eval_agreement.measures.preferences import Preferences
from eval_agreement.page.decision import Decision, decide_scores, decide_verdicts
from eval_agreement.preference_measures import PREFERENCE_MEASURES
from eval_agreement.sample import RatedSample
from eval_agreement.score_measures import MEASURES

Scores = NDArray[Any]


def rate(values: Any) -> Scores:
    """Return ratings on 1..10."""
    return np.clip(np.round(values), 1, 10)


def build_scores(
    judge: Callable[[Scores, np.random.Generator, dict[str, Any]], dict[str, Scores]],
    questions: int = 60,
    models: int = 4,
    raters: int = 1,
    noise: float = 0.8,
    **changes: Any,
) -> RatedSample:
    """Build answers by models of different quality to questions in two languages and tasks, with people's scores."""
    random = np.random.default_rng(7)
    question = np.repeat(np.arange(questions), models)
    model = np.tile(np.arange(models), questions)
    truth = 5.7 + 0.5 * (model - (models - 1) / 2) + random.normal(0, 1.7, len(model))
    parts = {
        "lang": [["en", "zh"][number % 2] for number in question],
        "task": [["ocr", "chart", "scene"][number % 3] for number in question],
        "answerer": [f"model{number}" for number in model],
    }
    facts = {**parts, "model": model, "lang": np.array(parts["lang"]), "task": np.array(parts["task"])}
    by_rater = rate(truth[:, None] + random.normal(0, noise, (len(model), raters)))
    fields: dict[str, Any] = {
        "name": "s",
        "ids": [f"a{number}" for number in random.permutation(len(model))],
        "human": by_rater.mean(axis=1),
        "group": [f"q{number}" for number in question],
        "raters": [{f"r{number}": float(score) for number, score in enumerate(row)} for row in by_rater],
        "parts": parts,
    }
    fields |= {name: change(fields, truth, random) if callable(change) else change for name, change in changes.items()}
    facts |= {"human": fields["human"], "by_rater": by_rater}
    return RatedSample(**{"judges": judge(truth, random, facts), **fields})


def see(shift: float = 0.0, noise: float = 0.8) -> Callable[..., dict[str, Scores]]:
    """Return a judge that sees the truth with noise, and shifts it."""
    return lambda truth, random, facts: {"judge": rate(truth + shift + random.normal(0, noise, len(truth)))}


def see_with(shift: Callable[[dict[str, Any]], Scores]) -> Callable[..., dict[str, Scores]]:
    """Return a judge that shifts some answers."""
    return lambda truth, random, facts: {"judge": rate(truth + shift(facts) + random.normal(0, 0.7, len(truth)))}


def build_verdicts(
    n: int, yes: float, judge: Callable[[Codes, np.random.Generator], Codes], **changes: Any
) -> Preferences:
    """Build verdicts of yes or no on items, `yes` (0..1) of which are right."""
    random = np.random.default_rng(3)
    people = np.where(np.arange(n) < round(yes * n), A, B).astype(np.int8)
    fields: dict[str, Any] = {"ids": [f"i{place}" for place in random.permutation(n)], "group": list(range(n))}
    fields |= {"people": {"people": people}, "judges": {"judge": judge(people, random)}, "yes_or_no": True}
    return Preferences(**{**fields, **changes})


def flip(*rows: int) -> Callable[[Codes, np.random.Generator], Codes]:
    """Return a judge that errs on the rows."""
    return lambda people, random: np.where(np.isin(np.arange(len(people)), rows), A + B - people, people).astype(
        np.int8
    )


def err(of_yes: float, of_no: float) -> Callable[[Codes, np.random.Generator], Codes]:
    """Return a judge that errs on a share of people's yes, and of their no."""

    def judge(people: Codes, random: np.random.Generator) -> Codes:
        wrong = random.random(len(people)) < np.where(people == A, of_yes, of_no)
        return np.where(wrong, A + B - people, people).astype(np.int8)

    return judge


def build_preferences(errors: float, raters: float = 0.15) -> Preferences:
    """Build preferences of three raters and a judge who each err on a share of 150 pairs."""
    random = np.random.default_rng(5)
    truth = random.choice([A, B], 150).astype(np.int8)

    def noisy(share: float) -> Codes:
        return np.where(random.random(150) < share, random.choice([A, TIE, B], 150), truth).astype(np.int8)

    people = {f"r{number}": noisy(raters) for number in range(3)}
    ids = [str(place) for place in range(150)]
    return Preferences(ids=ids, group=ids, people=people, judges={"judge": noisy(errors)})


def decide(sample: RatedSample | Preferences, *accepted: str) -> Decision:
    """Audit a sample and decide."""
    if isinstance(sample, Preferences):
        audit = run_audit(sample, AuditRequest(), PREFERENCE_MEASURES)
        return decide_verdicts("s", audit, accepted=accepted)
    return decide_scores("s", run_audit(sample, AuditRequest(), MEASURES), accepted=accepted)


def permute(truth: Scores, random: np.random.Generator, _: dict[str, Any]) -> dict[str, Scores]:
    """Return two good judges of other answers than those that people scored."""
    order = random.permutation(len(truth))
    return {name: rate(truth[order] + random.normal(0, 0.7, len(truth))) for name in ("ours", "gpt4")}


def two_judges(truth: Scores, random: np.random.Generator, _: dict[str, Any]) -> dict[str, Scores]:
    """Return a weaker judge without a shift, under audit, and a better one that is severe."""
    return {
        "ours": rate(truth + random.normal(0, 2, len(truth))),
        "gpt4": rate(truth - 2 + random.normal(0, 0.6, len(truth))),
    }


WORLDS: dict[str, tuple[Callable[[], RatedSample | Preferences], str]] = {
    "severe": (
        lambda: build_scores(see(-2.9)),
        r"Use judge after recalibration: it is 2\.\d+ points more severe than people; recalibrated, its error is 0",
    ),
    "severe in one language": (
        lambda: build_scores(see_with(lambda facts: np.where(facts["lang"] == "zh", -2.0, 0.0))),
        r"Use judge after recalibration by language: it is .*more severe in zh than elsewhere; recalibrated",
    ),
    "lenient in one task": (
        lambda: build_scores(see_with(lambda facts: np.where(facts["task"] == "ocr", 2.2, 0.0)), questions=90),
        r"Use judge after recalibration by task: it is .*more lenient in ocr than elsewhere; recalibrated",
    ),
    "good": (
        lambda: build_scores(see(0, 0.6)),
        r"Use judge as it is: its error is 0\.\d+ points, against 1\.\d+ for a constant",
    ),
    "as good as a rater": (
        lambda: build_scores(see(0, 0.5), raters=3),
        r"Use judge unaided, in place of one of these raters",
    ),
    "a column of people's own": (
        lambda: build_scores(lambda truth, random, facts: {"judge": facts["human"]}),
        r"No decision on judge yet: judge repeats the column of people \(equal on 240 of 240\)\. .*--accept equal\.",
    ),
    "people's own on another scale": (
        lambda: build_scores(lambda truth, random, facts: {"judge": 1 + facts["human"] / 2}),
        r"No decision on judge yet: judge repeats the column of people \(one value for each of its values on 240",
    ),
    "people's own, rounded to five points": (
        lambda: build_scores(lambda truth, random, facts: {"judge": 1 + 2.25 * np.ceil(facts["human"] / 2 - 1)}),
        r"No decision on judge yet: judge repeats the column of people \(one value for each",
    ),
    "a rater who is the judge": (
        lambda: build_scores(lambda truth, random, facts: {"judge": facts["by_rater"][:, 1]}, raters=3),
        r"No decision on judge yet: judge is the rater r1 \(equal on 240 of 240\).*--accept rater",
    ),
    "reversed": (
        lambda: build_scores(
            lambda truth, random, facts: {"judge": rate(11 - truth + random.normal(0, 0.8, len(truth)))}
        ),
        r"No decision on judge yet: judge falls where people rise \(Pearson −0\.\d+\).*--accept reversed",
    ),
    "half of the scale": (
        lambda: build_scores(
            lambda truth, random, facts: {
                "judge": np.maximum(np.round(rate(truth + random.normal(0, 0.8, len(truth))) / 2), 1)
            }
        ),
        r"No decision on judge yet: judge gave no score in the upper half of the scale.*--judge-scale.*--accept scale",
    ),
    "people on half of the scale": (
        lambda: build_scores(
            see(), human=lambda fields, truth, random: np.maximum(np.round(fields["human"] / 2), 1), raters=1
        ),
        r"No decision on judge yet: people gave no score in the upper half.*--scale were another",
    ),
    "ids that tell": (
        lambda: build_scores(
            see(), ids=lambda fields, truth, random: [f"q7-s{score:.0f}-{n}" for n, score in enumerate(fields["human"])]
        ),
        r"No decision on judge yet: the ids tell people's labels .*--accept ids",
    ),
    "labels of other answers": (
        lambda: build_scores(permute),
        r"No decision on \w+ yet: \w+ and \w+ agree with each other .* but neither agrees with people.*--accept labels",
    ),
    "people at random": (
        lambda: build_scores(see(), noise=60, raters=3),
        r"These labels cannot test a judge: people do not agree with each other \(Krippendorff's alpha [−0]",
    ),
    "one value": (
        lambda: build_scores(see(), human=lambda fields, truth, random: np.where(np.arange(240) < 2, 5.0, 7.0)),
        r"These labels cannot test a judge: people give 238 of 240 answers the same score; label 2 more that differ",
    ),
    "few questions": (
        lambda: build_scores(see(), questions=12),
        r"No decision on judge: 12 questions are too few, 20 are needed",
    ),
    "too few to tell": (
        lambda: build_scores(see(0, 4), questions=26, models=1),
        r"Too few to tell whether judge knows more than .*; labels on \d+ questions would show it",
    ),
    "random": (
        lambda: build_scores(
            lambda truth, random, facts: {"judge": random.integers(1, 11, len(truth)) * 1.0}, questions=100
        ),
        r"Do not use judge here: it is not shown to know more than the trivial judge constant",
    ),
    "weak": (
        lambda: build_scores(see(0, 4), questions=120),
        r"judge cannot replace people \(Pearson 0\.[34]\d\): .*It saves labels: \d+ instead of \d+ for a mean",
    ),
    "favours a model": (
        lambda: build_scores(see_with(lambda facts: np.where(facts["model"] == 2, 2.0, 0.0)), questions=90),
        r"Use judge .* It may rank models, but not .*model2 \(\+[12]\.\d+ points at equal human score\)",
    ),
    "the better judge is severe": (
        lambda: build_scores(two_judges),
        r"Use gpt4 after recalibration: .*\n.*Use gpt4 rather than ours: .* errors are ours 1\.\d+ and gpt4 0\.\d+",
    ),
    "yes or no: 19 of 20": (
        lambda: build_verdicts(20, 0.85, flip(18)),
        r"Too few to tell whether judge knows more than|Use judge together with labels",
    ),
    "yes or no: says yes too often": (
        lambda: build_verdicts(300, 0.85, err(0.02, 0.55)),
        r"Use judge together with labels: it agrees with people .*it says yes on 9\d\.\d % of the items, people on 85",
    ),
    "yes or no: people's own column": (
        lambda: build_verdicts(25, 0.6, flip()),
        r"No decision on judge yet: judge repeats the column of people \(equal on 25 of 25\)",
    ),
    "preferences: as good as raters": (
        lambda: build_preferences(0.05),
        r"Use judge unaided in place of one of these raters",
    ),
    "preferences: a and b exchanged": (
        lambda: build_verdicts(150, 0.5, lambda people, random: A + B - err(0.1, 0.1)(people, random), yes_or_no=False),
        r"No decision on judge yet: judge falls where people rise .*--accept reversed",
    ),
}
"""World -> how it is made, and the beginning of the right decision."""


@pytest.mark.parametrize("world", WORLDS)
def test_the_decision_is_right(world: str) -> None:
    build, right = WORLDS[world]
    decision = decide(build())
    said = "\n".join(decision.judges)
    assert re.match(right, said), said
