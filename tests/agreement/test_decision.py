"""The decision of an audit in synthetic worlds: the sentence that a statistician would say of each."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import assert_one_line_error, run
from msgspec.structs import replace
from numpy.typing import NDArray
from samples import build_pairs, build_sample

from critic.records import HumanScore, Question, Response
from critic.stats.verdicts import TIE, A, B, Codes
from eval_agreement.measure_tables import MEASURES, PREFERENCE_MEASURES
from eval_agreement.measures import gate
from eval_agreement.measures.calibration import cross_fit, folds, recalibrate
from eval_agreement.measures.measure import run_audit
from eval_agreement.measures.preferences import Preferences
from eval_agreement.page import decision
from eval_agreement.page.decision import Decision, decide_scores, decide_verdicts
from eval_agreement.sample import AuditRequest, RatedSample

Scores = NDArray[Any]


def rate(values: Any) -> Scores:
    """Return ratings on 1..10."""
    return np.clip(np.round(values), 1, 10)


def build_scores(
    judge: Callable[[Scores, np.random.Generator, dict[str, Any]], Scores | dict[str, Scores]],
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
    scores = judge(truth, random, facts)
    return RatedSample(**{"judges": scores if isinstance(scores, dict) else {"judge": scores}, **fields})


def see(shift: float = 0.0, noise: float = 0.8) -> Callable[..., Scores]:
    """Return a judge that sees the truth with noise, and shifts it."""
    return lambda truth, random, facts: rate(truth + shift + random.normal(0, noise, len(truth)))


def see_with(shift: Callable[[dict[str, Any]], Scores]) -> Callable[..., Scores]:
    """Return a judge that shifts some answers."""
    return lambda truth, random, facts: rate(truth + shift(facts) + random.normal(0, 0.7, len(truth)))


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


def err_alike(share: float, yes: int, no: int) -> dict[str, Codes]:
    """Return verdicts of three raters who each err on a share of so many yes and no."""
    truth = np.repeat([A, B], [yes, no])
    return {f"r{number}": err(share, share)(truth, np.random.default_rng(number)) for number in range(3)}


def build_preferences(errors: float, raters: float = 0.15) -> Preferences:
    """Build preferences of three raters and a judge who each err on a share of 150 pairs."""
    random = np.random.default_rng(5)
    truth = random.choice([A, B], 150).astype(np.int8)

    def noisy(share: float) -> Codes:
        return np.where(random.random(150) < share, random.choice([A, TIE, B], 150), truth).astype(np.int8)

    people = {f"r{number}": noisy(raters) for number in range(3)}
    return build_pairs(people, {"judge": noisy(errors)})


def decide(sample: RatedSample | Preferences, *accepted: str) -> Decision:
    """Audit a sample and decide."""
    if isinstance(sample, Preferences):
        return decide_verdicts("s", run_audit(sample, AuditRequest(accepted=accepted), PREFERENCE_MEASURES))
    return decide_scores("s", run_audit(sample, AuditRequest(accepted=accepted), MEASURES))


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
        r"Use judge after recalibration: it is 2\.65 points more severe than people; recalibrated, its error is 0\.90"
        r".*\(Pearson 0\.\d+\)\. Its map: critic audit --certificate FILE writes it, critic judge --recalibrate FILE",
    ),
    "severe in one language": (
        lambda: build_scores(see_with(lambda facts: np.where(facts["lang"] == "zh", -2.0, 0.0))),
        r"Use judge after recalibration by language: it is .*more severe in zh than elsewhere; recalibrated",
    ),
    "lenient in one task": (
        lambda: build_scores(see_with(lambda facts: np.where(facts["task"] == "ocr", 2.2, 0.0)), questions=90),
        r"Use judge after recalibration by task: it is .*more lenient in ocr than elsewhere; recalibrated",
    ),
    "as good as a rater": (
        lambda: build_scores(see(0, 0.5), raters=3),
        r"Use judge unaided, in place of one of these raters",
    ),
    "a column of people's own": (
        lambda: build_scores(lambda truth, random, facts: facts["human"]),
        r"No decision on judge yet: judge repeats the column of people \(equal on 240 of 240\)\. .*--accept equal\.",
    ),
    "people's own on another scale": (
        lambda: build_scores(lambda truth, random, facts: 1 + facts["human"] / 2),
        r"No decision on judge yet: judge repeats the column of people \(without scatter on 240",
    ),
    "people's own, rounded to five points": (
        lambda: build_scores(lambda truth, random, facts: 1 + 2.25 * np.ceil(facts["human"] / 2 - 1)),
        r"No decision on judge yet: judge repeats the column of people \(without scatter",
    ),
    "a rater who is the judge": (
        lambda: build_scores(lambda truth, random, facts: facts["by_rater"][:, 1], raters=3),
        r"No decision on judge yet: judge is the rater r1 \(equal on 240 of 240\).*--accept rater",
    ),
    "reversed": (
        lambda: build_scores(lambda truth, random, facts: rate(11 - truth + random.normal(0, 0.8, len(truth)))),
        r"No decision on judge yet: judge falls where people rise \(Pearson −0\.\d+\).*--accept reversed",
    ),
    "half of the scale": (
        lambda: build_scores(
            lambda truth, random, facts: np.maximum(np.round(rate(truth + random.normal(0, 0.8, len(truth))) / 2), 1)
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
    "ids that tell at their end": (
        lambda: build_scores(
            see(),
            ids=lambda fields, truth, random: [
                f"q{'-again' * (n % 3)}-{n}-{'bad' if score < 6 else 'good'}" for n, score in enumerate(fields["human"])
            ],
            human=lambda fields, truth, random: np.where(fields["human"] < 6, 3.0, 8.0),
        ),
        r"No decision on judge yet: the ids tell people's labels \((bad|good) in .*--accept ids",
    ),
    "labels of other answers": (
        lambda: build_scores(permute),
        r"No decision on \w+ yet: \w+ and \w+ agree with each other .* but neither agrees with people.*--accept labels",
    ),
    "people at random": (
        lambda: build_scores(see(), noise=60, raters=3),
        r"These labels cannot test a judge: people hardly agree with each other \(Krippendorff's alpha [−0]",
    ),
    "one value": (
        lambda: build_scores(see(), human=lambda fields, truth, random: np.where(np.arange(240) < 2, 5.0, 7.0)),
        r"These labels cannot test a judge: people give 238 of 240 answers the same score; label 2 more that differ",
    ),
    "few questions": (
        lambda: build_scores(see(), questions=12),
        r"No decision on judge: 12 questions are too few, 20 are needed; label answers to 8 more\.",
    ),
    "too few to tell": (
        lambda: build_scores(see(0, 4), questions=26, models=1),
        r"Too few to tell whether judge knows more than .*; labels on \d+ questions would show it",
    ),
    "random": (
        lambda: build_scores(lambda truth, random, facts: random.integers(1, 11, len(truth)) * 1.0, questions=100),
        r"Do not use judge here: it is not shown to know more than the trivial judge constant .* A second rater would",
    ),
    "always the same": (
        lambda: build_scores(lambda truth, random, facts: np.full(len(truth), 7.0)),
        r"Do not use judge here: it gives every answer the same verdict",
    ),
    "weak": (
        lambda: build_scores(see(0, 4), questions=120),
        r"judge cannot replace people \(Pearson 0\.[34]\d\): .*It saves labels: \d+ instead of \d+ for a mean",
    ),
    "noisy people": (
        lambda: build_scores(see(0, 0.3), questions=200, noise=1.5),
        r"Use judge as it is: .* It may rank models\. ",
    ),
    "favours a model": (
        lambda: build_scores(see_with(lambda facts: np.where(facts["model"] == 2, 2.0, 0.0)), questions=90),
        r"Use judge .* It may rank models, but not .*model2 \(\+[12]\.\d+ points at equal human score\)",
    ),
    "the better judge is severe": (
        lambda: build_scores(two_judges),
        r"Use gpt4 after recalibration: .*critic audit, with gpt4 as the first judge, --cert.*\n"
        r".*Use gpt4 rather than ours: .* errors are ours 1\.\d+ and gpt4 0\.\d+",
    ),
    "yes or no: 19 of 20": (
        lambda: build_verdicts(20, 0.85, flip(18)),
        r"Too few to tell whether judge knows more than|Use judge together with labels",
    ),
    "yes or no: says no too often": (
        lambda: build_verdicts(400, 0.85, err(0.15, 0.1)),
        r"Use judge together with labels: it agrees with people on 8.*it says yes on 7\d\.\d % of the items, people on",
    ),
    "yes or no: at random": (
        lambda: build_verdicts(300, 0.5, err(0.5, 0.5)),
        r"Do not use judge here: it is not shown to know more than the trivial judge constant \(it agrees",
    ),
    "yes or no: raters who hardly agree": (
        lambda: build_verdicts(600, 0.5, err(0.1, 0.1), people=err_alike(0.33, 300, 300)),
        r"These labels cannot test a judge: people hardly agree with each other",
    ),
    "yes or no: as close as a rater, and strict": (
        lambda: build_verdicts(300, 0.8, err(0.2, 0.02), people=err_alike(0.1, 240, 60)),
        r"Use judge together with labels: .*it says yes on 6\d\.\d % of the items, people on",
    ),
    "yes or no: weak": (
        lambda: build_verdicts(400, 0.5, err(0.35, 0.35)),
        r"judge cannot replace people: it agrees with them on [56]",
    ),
    "yes or no: people's own column": (
        lambda: build_verdicts(25, 0.6, flip()),
        r"No decision on judge yet: judge repeats the column of people \(equal on 25 of 25\)",
    ),
    "preferences: as good as raters": (
        lambda: build_preferences(0.05),
        r"Use judge unaided in place of one of these raters",
    ),
}
"""World -> how it is made, and the beginning of the right decision."""


@pytest.mark.parametrize("world", WORLDS)
def test_the_decision_is_right(world: str) -> None:
    build, right = WORLDS[world]
    decision = decide(build())
    said = "\n".join(decision.judges)
    assert re.match(right, said), said


def test_an_accepted_doubt_is_said_and_decided() -> None:
    """Only the doubt that was named is answered; another one stays."""
    build, _ = WORLDS["reversed"]
    decision = decide(build(), "reversed")
    assert decision.judges[0].startswith("Do not use judge here: it is not shown to know more than")
    assert any(step.startswith("Accepted: judge falls where people rise") for step in decision.steps)
    assert "--accept reversed" in decide(build(), "equal", "scale").judges[0]


def test_a_doubt_comes_before_the_gate_and_before_other_judges() -> None:
    """The better judge is under audit and its gate is broken; the doubt about the other one is said first."""

    def judges(truth: Scores, random: np.random.Generator, facts: dict[str, Any]) -> dict[str, Scores]:
        return {"ours": rate(truth + random.normal(0, 0.6, len(truth))), "copy": facts["human"]}

    findings = run_audit(build_scores(judges), AuditRequest(), MEASURES)
    outcomes = gate.check(gate.parse("mae<=0.1"), {"s": findings.scorers.judge})
    first, second = decide_scores("s", findings, outcomes).judges
    assert first.startswith("No decision on copy yet") and second.startswith("The gate is not kept: mae<=0.1")


def test_more_labels_are_advised_only_if_they_may_help() -> None:
    """Effects that point the other way, or are tiny, are no reason to label more."""
    weak = decide(build_scores(see(0, 4), questions=26, models=1)).judges[0]
    needed = re.search(r"labels on (\d+) questions", weak)
    assert needed and 26 < int(needed[1]) <= 260
    more = decide(build_scores(see(0, 4), questions=int(needed[1]), models=1)).judges[0]
    assert more.startswith("judge cannot replace people")


def test_the_length_of_an_answer_is_nothing_that_a_judge_knows() -> None:
    """People prefer long answers a little; the judge knows only that, on a scale of its own."""
    random = np.random.default_rng(2)
    length = np.exp(random.uniform(3, 7, 600))
    human = rate(1.2 * np.log(length) - 1 + random.normal(0, 1, 600))
    question = Question(id="q", group="q", task="t", lang="en", prompt="?")
    training = []
    for number in range(300):
        score = HumanScore(score=float(human[number]))
        training.append(Response(id=f"t{number}", question=question, text="x" * int(length[number]), human=score))
    judge = rate(1.5 * np.log(length[300:]) - 2.5 + random.normal(0, 0.3, 300))
    sample = build_sample(human[300:], judge, length=length[300:])
    alone, beside = (run_audit(sample, AuditRequest(training=rows), MEASURES) for rows in ([], training))
    assert decide_scores("s", alone).judges[0].startswith("Use judge as it is")
    said = decide_scores("s", beside).judges[0]
    assert said.startswith("Do not use judge here: it is not shown to know more than the trivial judge length"), said


def test_recalibration_is_what_scikit_learn_fits_on_the_other_folds() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    sample = build_scores(see(-2.9))
    human, judge, fold = sample.human, sample.judges["judge"], folds(sample.groups)
    assert len({*zip(sample.groups, fold, strict=True)}) == len({*sample.groups}), "a question is in one fold"
    mapped = np.empty(len(human))
    for number in range(5):
        out = fold == number
        model = isotonic.IsotonicRegression(out_of_bounds="clip").fit(judge[~out], human[~out])
        mapped[out] = model.predict(judge[out])
    assert cross_fit(human, judge, sample.groups) == pytest.approx(mapped)
    (result,) = recalibrate(sample, AuditRequest()).values()
    assert result.error == pytest.approx(np.abs(mapped - human).mean())
    constant = cross_fit(human, np.zeros(len(human)), sample.groups) - human
    assert result.explained == pytest.approx(1 - ((mapped - human) ** 2).mean() / (constant**2).mean())
    assert result.over["constant"].value == pytest.approx((constant**2).mean() - ((mapped - human) ** 2).mean())


def test_good_judges_are_not_doubted() -> None:
    """Raters who all agree, severe judges, sorted rows and running ids are no reason for a doubt."""
    alike = build_scores(see(0, 0.5), raters=3, noise=0.01)
    severe = build_scores(see(-2.5), questions=100)
    order = np.argsort(severe.human)
    severe = severe.rows(np.ones(len(order), dtype=bool))
    running = {"ids": [f"row-{place}" for place in np.argsort(order)]}
    for sample in (
        alike,
        replace(severe, **running),
        build_verdicts(60, 0.7, flip(3, 50)),
        build_preferences(0.05, 0.0),
    ):
        assert not any("--accept" in sentence for sentence in decide(sample).judges), decide(sample).judges


def test_the_command_names_a_doubt_and_takes_the_answer(tmp_path: Path) -> None:
    verdicts = "\n".join(["id,verdict", *(f"{number},{'yes' if number % 3 else 'no'}" for number in range(30))])
    (tmp_path / "people.csv").write_text(verdicts)
    words = ["critic", "audit", "--human", "people.csv", "--judge", "mine=people.csv", "--out", "out"]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("No decision on mine yet: mine repeats the column of people")
    assert "--accept equal." in done.stdout and "--accept equal." in (tmp_path / "out/report.html").read_text("utf-8")
    accepted = run(*words, "--accept", "equal", cwd=tmp_path)
    assert accepted.stdout.startswith("Use mine together with labels: it agrees with people on 100.0 %")
    assert_one_line_error(run(*words, "--accept", "all", cwd=tmp_path), "--accept all: unknown; choose equal, rater")


REVIEWED = {
    "severe.csv": r"Use judge after recalibration: it is 2\.91 points more severe .* is 0\.71 points, against 1\.44",
    "severe_in_zh.csv": r"Use judge after recalibration by language: .* more severe in zh than elsewhere",
    "weighted_kendall.csv": r"Use judge as it is: its error is 0\.48 points",
}
"""Files of the statisticians' review -> the right decision."""


@pytest.mark.parametrize("name", REVIEWED)
def test_the_reviewed_files_are_decided_rightly(name: str, tmp_path: Path, shared: Path) -> None:
    done = run("critic", "audit", shared / "cases/audit" / name, "--out", "out", cwd=tmp_path)
    assert re.search(f"{Path(name).stem}: {REVIEWED[name]}", done.stdout), done.stdout


def test_labels_are_counted_with_their_groups_and_the_answers_at_hand() -> None:
    """Questions that share all of their variance, with five answers each, take five times the labels of single ones."""
    random = np.random.default_rng(3)
    quality = random.normal(5.5, 1.5, 200)
    human, judge = quality.repeat(5), (quality + random.normal(0, 0.5, 200)).repeat(5)
    single = decision._count_labels(human, judge, np.arange(1000), half_width=0.2)
    grouped = decision._count_labels(human, judge, np.arange(200).repeat(5), half_width=0.2)
    assert single[1] == np.ceil((1.96 * human.std() / 0.2) ** 2) and grouped[1] == pytest.approx(5 * single[1], abs=5)
    # Of few answers the judge saves less, and nothing if all must be labelled.
    few, many = (decision._count_labels(human, judge, np.arange(1000), half_width=0.2, rows=n) for n in (250, 100_000))
    assert single[0] <= many[0] < few[0] <= few[1] == single[1] and (few[2], single[2]) == (250, 0)
