"""critic audit, end to end on synthetic judgments, and the parts of its report."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from conftest import Done, assert_one_line_error, human_row, write_jsonl
from conftest import run as run_program
from judgments import of_answer
from lxml.html import document_fromstring
from samples import build_pairs, build_question, build_sample

from critic import jsonl
from critic.records import HumanScore, Judgment, Response, Turn, Verdict
from critic.stats.verdicts import FAILED, TIE, UNASKED, A, B
from eval_agreement import METRICS, measured
from eval_agreement.measures.baselines import trivial
from eval_agreement.measures.scorers import people
from eval_agreement.page.report import count_failures, count_pairs, rank_answers
from eval_agreement.reading.loaders import read_judgments
from eval_agreement.sample import RatedSample

HOSTILE = "</p><script>alert('owned')</script><img src=https://evil.example/x.png onerror=alert(1)>"


def judgment(number: int, human: float, score: float | None, **changes: Any) -> Judgment:
    about: dict[str, Any] = {"prompt": "图中有几只猫？", "reference": "图中有三只猫。"}
    about |= {"task": "Counting", "lang": "zh"} if number % 2 else {"task": "OCR", "lang": "en"}
    about |= {"history": [Turn("你好", "你好！")] if number % 3 == 0 else []}
    response = Response(
        id=f"r{number}",
        question=build_question(f"q{number // 2}", **about),
        text=changes.get("text", "三只猫" * (number % 5 + 1)),
        system="model-a",
        human=HumanScore(score=human, raters=changes.get("raters", {}), reason="数对了"),
        columns={"other_score_1_10": 5.0 + number % 3} if number % 4 else {},
    )
    verdict = Verdict(failure="truncated") if score is None else Verdict(rating=round(score), distribution=[0.1] * 10)
    return of_answer(
        response, judge="small-judge", prompt_hash="abc123", score_kind="expected", verdict=verdict, score=score
    )


def judgments(n: int = 40, failed: int = 0, seed: int = 0) -> list[Judgment]:
    random = np.random.default_rng(seed)
    human = random.integers(1, 11, n)
    scores = np.clip(human + random.normal(0, 1, n), 1, 10)
    lines = []
    for index, (mean, score) in enumerate(zip(human.tolist(), scores.tolist(), strict=True)):
        raters = {"a": float(mean), "b": float(min(mean + 1, 10))}
        lines.append(judgment(index, float(mean), None if index < failed else score, raters=raters))
    return lines


def training_rows(count: int = 60) -> list[dict[str, Any]]:
    about: dict[str, Any] = {"task": "OCR", "lang": "zh", "question": "写的是什么？", "reference": "欢迎光临本店"}
    about |= {"system": "model-b", "scale_min": 0, "scale_max": 9, "image": None, "score_1_10": None}
    return [
        human_row(n, **about, response=about["reference"][: n % 6 + 1], human_score=n % 6, group=f"t{n // 3}")
        for n in range(count)
    ]


def run(folder: Path, *arguments: str, code: int | None = None) -> Done:
    return run_program("critic", "audit", *arguments, cwd=folder, code=code)


def refused(folder: Path, *arguments: str) -> str:
    """The one line of a refusal; nothing may have been written."""
    done = run(folder, *arguments, code=2)
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert not (folder / "out").exists()
    return done.stderr


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished audit of two splits with everything switched on; one answer is hostile."""
    folder = tmp_path_factory.mktemp("audit")
    internal = judgments(60)
    internal[7] = judgment(7, 10.0, 1.0, text=HOSTILE, raters={"<b>a</b>": 10.0})
    jsonl.write(folder / "internal.jsonl", internal)
    jsonl.write_sidecar(folder / "internal.jsonl", {"judge": "small-judge", "note": "</pre><script>"})
    jsonl.write(folder / "external.jsonl", judgments(30, failed=3, seed=1))
    jsonl.write(folder / "train.jsonl", training_rows())
    arguments = ["internal=internal.jsonl", "external.jsonl", "--train", "train.jsonl", "--out", "out"]
    (folder / "stdout").write_text(run(folder, *arguments, "--max-failed", "0.2", code=0).stdout)
    return folder


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the summary, as strict JSON: a NaN in it is an error."""
    return msgspec.json.decode((folder / "out/summary.json").read_bytes(), type=dict[str, Any])


@pytest.fixture(scope="module")
def summary(audited: Path) -> dict[str, Any]:
    return summary_of(audited)


def test_summary_holds_what_agreement_says(audited: Path, summary: dict[str, Any]) -> None:
    assert " ".join(summary) == "internal external baselines judges people gate injection savings provenance"
    for name in ("internal", "external"):
        records = [record for _, record in jsonl.read(audited / f"{name}.jsonl", Judgment)]
        human = [record.sample.human.score for record in records if record.sample.human]
        group = [record.conversation.group for record in records]
        judged, others = summary[name], summary["judges"]["other"][name]
        columns = [record.sample.columns.get("other_score_1_10") for record in records]
        for measured_values, scores in ((judged, [record.score for record in records]), (others, columns)):
            expected = measured(human, scores, group)
            assert (measured_values["n"], measured_values["failed"]) == (expected.n, expected.failed)
            assert measured_values["coverage"] == pytest.approx(expected.n / len(records))
            assert measured_values["undefined"] == expected.undefined
            for metric in METRICS:
                assert measured_values[metric] == pytest.approx(getattr(expected, metric), abs=1e-12)
            assert measured_values["interval"] == {
                metric: ends and list(ends) for metric, ends in expected.interval.items()
            }


def test_failures_are_counted_and_baselines_use_every_row(audited: Path, summary: dict[str, Any]) -> None:
    assert (summary["external"]["n"], summary["external"]["failed"]) == (27, 3)
    assert summary["external"]["coverage"] == pytest.approx(0.9)
    assert set(summary["baselines"]) == {"constant", "length", "chrf"}
    for baseline in summary["baselines"].values():
        assert (baseline["external"]["n"], baseline["external"]["failed"]) == (30, 0)
    constant = summary["baselines"]["constant"]["external"]
    assert constant["pearson"] is None and "same score" in constant["undefined"]["pearson"]
    assert constant["mae"] is not None
    assert sum(part["failed"] for part in summary["external"]["by"]["task"].values()) == 3
    # The line of people, and where everything comes from.
    assert summary["people"]["external"]["n"] == 60
    facts = summary["provenance"]["samples"]["internal"]
    assert facts["files"]["small-judge"]["sha256"] == jsonl.sha256(audited / "internal.jsonl")
    assert (facts["judge"], facts["prompt_hash"], facts["rows"]) == ("small-judge", "abc123", 60)
    assert facts["runs"]["small-judge"]["judge"] == "small-judge"
    assert summary["provenance"]["samples"]["external"]["runs"] == {"small-judge": None}
    assert summary["provenance"]["train"]["rows"] == 60


def test_table(audited: Path, summary: dict[str, Any]) -> None:
    internal, external = (audited / "stdout").read_text().split("\n\n")[:2]
    assert internal.startswith("internal: 60 rows, 100.0% judged\n")
    assert external.startswith("external: 30 rows, 90.0% judged\n")
    names = [line.split()[0] for line in external.splitlines()[1:]]
    assert names == ["judge", "small-judge", "other", "people", "small-judge", "constant", "length", "chrf"]
    assert "small-judge as a rater" in external
    mae, (low, high) = summary["external"]["mae"], summary["external"]["interval"]["mae"]
    assert f"27  3       {mae:.3f} [{low:.2f}, {high:.2f}]" in external
    columns = {line.index(word) for line, word in zip(external.splitlines()[1:3], ("MAE", f"{mae:.3f}"), strict=True)}
    assert len(columns) == 1


def list_tags(page: str) -> list[tuple[str, dict[str, str]]]:
    """Return every tag with its attributes."""
    return [(node.tag, dict(node.attrib)) for node in document_fromstring(page).iter("*")]


def read_text(page: str) -> str:
    """Return the text of a page, in which a space stands for any white space."""
    return " ".join(document_fromstring(page).text_content().split())


def assert_whole(page: str) -> None:
    """Every table has a caption, and the contents name every section."""
    tags = list_tags(page)
    assert sum(tag == "caption" for tag, _ in tags) == sum(tag == "table" for tag, _ in tags) > 0
    targets = {attributes["id"] for _, attributes in tags if "id" in attributes}
    assert {attributes["href"] for tag, attributes in tags if tag == "a"} == {f"#{target}" for target in targets}


@pytest.fixture(scope="module")
def page(audited: Path) -> str:
    return (audited / "out" / "report.html").read_text("utf-8")


def test_report_loads_nothing_and_is_accessible(page: str) -> None:
    tags = list_tags(page)
    assert ("html", {"lang": "en"}) in tags
    assert all(attributes.get("aria-label") for tag, attributes in tags if tag == "svg")
    assert_whole(page)
    assert not {tag for tag, _ in tags} & {"link", "iframe", "object", "base", "image", "use"}
    for _, attributes in tags:
        assert attributes.get("href", "#x").startswith("#") and attributes.get("src", "data:").startswith("data:")
        assert not [name for name in attributes if name.startswith("on")]
    assert [attributes for tag, attributes in tags if tag == "script"] == [{"type": "application/json"}, {}]
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_report_escapes_what_comes_from_files(page: str) -> None:
    assert "&lt;script&gt;alert(" in page and "alert('owned')" in read_text(page)
    assert "&lt;b&gt;a&lt;/b&gt;" in page
    assert "<title>Audit of small-judge</title>" in page
    assert "&lt;/pre&gt;&lt;script&gt;" in page


def test_report_opens_with_the_verdict(summary: dict[str, Any], page: str) -> None:
    text, internal = read_text(page), summary["internal"]
    low, high = internal["interval"]["mae"]
    constant = summary["baselines"]["constant"]["internal"]["mae"]
    decision = "Use small-judge in place of other (no worse by more than 0.1 MAE and 0.05 Pearson) on such data."
    figures = (
        f"On internal small-judge is off by {internal['mae']:.2f} points on average "
        f"(95 % interval {low:.2f}–{high:.2f}), against {constant:.2f} for always answering 3.5; "
        f"Pearson {internal['pearson']:.2f}. 60 answers to 30 questions, 0 failed."
    )
    assert text.index("internal: ") < text.index(decision) < text.index(figures) < text.index("Correlations: −1 to 1")
    assert "truncated" in text[text.index("Failures external") :]


def decided(folder: Path, rows: list[Judgment], *arguments: str) -> str:
    jsonl.write(folder / "j.jsonl", rows)
    run(folder, "j.jsonl", "--out", "out", *arguments)
    page = (folder / "out" / "report.html").read_text("utf-8")
    ((headline, behind),) = re.findall(r'<p class="decision">(.*?)(?:</p>)?\s*<p>(.*)', page)
    # The first sentence is in large letters. The rest of the judge's entry follows, and then the steps.
    rest = "" if behind.startswith("On j ") else f" {behind.removesuffix('</p>')}"
    return unescape(headline + rest)


def test_decisions_rest_on_enough_questions_and_judgments(tmp_path: Path) -> None:
    def rows(n: int, failed: int = 0) -> list[Judgment]:
        random = np.random.default_rng(0)
        lines = []
        for i in range(n):
            human = float(random.integers(1, 11))
            score = float(np.clip(human + random.normal(0, 0.3), 1, 10))
            lines.append(change(judgment(2 * i, human, None if i < failed else score), columns={}))
        return lines

    with_labels = decided(tmp_path, rows(80))
    human = np.array([row.sample.human.score for row in rows(80) if row.sample.human])
    labels_only = np.ceil((1.96 * human.std() / 0.2) ** 2)
    assert with_labels.startswith("Use small-judge as it is: its error is 0.19 points")
    saved = f" It saves labels: 20 instead of {labels_only:.0f} for a mean of people's scores within ±0.2"
    assert saved in with_labels
    assert "within ±0.5 points (--target-half-width)" in decided(tmp_path, rows(80), "--target-half-width", "0.5")
    random = np.random.default_rng(1)
    human, noise = random.integers(1, 11, (2, 160)).astype(float).tolist()  # of counting it knows nothing
    tasks = [judgment(i, human[i], noise[i] if i % 2 else human[i]) for i in range(160)]
    said = decided(tmp_path, [change(row, columns={}) for row in tasks])
    assert re.search(r" Do not use it for Counting \(Pearson [−0-9.]+, −0.\d+ to 0.\d+\); more labels", said), said
    few = decided(tmp_path, rows(80, failed=40))
    allowed = "more than 2.0%. Judge these again, or allow more with --max-failed."
    assert few == f"No decision on small-judge: it has no verdict on 40 of 80 answers, {allowed}"
    assert decided(tmp_path, rows(80, failed=40), "--max-failed", "0.5").startswith("Use small-judge")
    assert "40 of 80 failed" in decided(tmp_path, rows(80, failed=40), "--gate", "failed<=0.1")
    assert "The gate is not kept: mae<=0.1 NOT kept" in decided(tmp_path, rows(80), "--gate", "mae<=0.1")


def test_too_many_failures_exit_3_after_writing(tmp_path: Path) -> None:
    jsonl.write(tmp_path / "j.jsonl", judgments(20, failed=20))
    assert "20 of 20 failed" in run(tmp_path, "j.jsonl", "--out", "out", code=3).stderr
    summary = summary_of(tmp_path)
    assert summary["j"]["mae"] is None and summary["j"]["undefined"]["mae"] == "no pairs"
    assert list(summary["baselines"]) == ["constant"] and summary["provenance"]["train"] is None
    assert "every judgment failed (20 of 20)" in (tmp_path / "out" / "report.html").read_text("utf-8")
    assert run(tmp_path, "j.jsonl", "--out", "out", "--max-failed", "1").returncode == 0


def test_a_column_with_the_judges_own_name_is_another_judge(tmp_path: Path) -> None:
    rows = [change(line, columns={"small-judge_score_1_10": 1.0}) for line in judgments(40)]
    jsonl.write(tmp_path / "j.jsonl", rows)
    (sample,) = read_judgments("j", tmp_path / "j.jsonl")
    assert list(sample.scores) == [line.score for line in rows]
    assert run(tmp_path, "j.jsonl", "--out", "out").returncode == 0
    summary = summary_of(tmp_path)
    assert summary["j"]["mae"] < 1.5 < summary["judges"]["small-judge_score_1_10"]["j"]["mae"]


def change(record: Judgment, **fields: Any) -> Judgment:
    return msgspec.structs.replace(record, sample=msgspec.structs.replace(record.sample, **fields))


def by(record: Judgment, judge: str) -> Judgment:
    return msgspec.structs.replace(record, setup=msgspec.structs.replace(record.setup, judge=judge))


MISTAKES: dict[str, tuple[Callable[[list[Judgment]], list[Judgment]], str]] = {
    "no human score": (lambda rows: [change(row, human=None) for row in rows], "j.jsonl: no people's verdicts"),
    "duplicate id": (lambda rows: [*rows, rows[2]], "j.jsonl:7: duplicate id 'r2', first at j.jsonl:3"),
    "human off scale": (lambda rows: [*rows, judgment(90, 11.0, 5)], ":7: the score 11 of 'r90' is outside 1..10"),
    "judge off scale": (lambda rows: [*rows, judgment(90, 5, 0.5)], "j.jsonl:7: the score 0.5"),
    "two judges": (lambda rows: [*rows, by(judgment(90, 5, 5), "other")], "j.jsonl:7: judged by 'other', line 1"),
    "empty": (lambda rows: [], "j.jsonl: the file is empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_file_are_one_line(tmp_path: Path, mistake: str) -> None:
    spoil, message = MISTAKES[mistake]
    jsonl.write(tmp_path / "j.jsonl", spoil(judgments(6)))
    assert message in refused(tmp_path, "j.jsonl", "--out", "out")


def test_mistakes_on_the_command_line_are_one_line(tmp_path: Path) -> None:
    jsonl.write(tmp_path / "j.jsonl", judgments(6))
    (tmp_path / "t.csv").write_text("id,score\na,3\n")
    write_jsonl(tmp_path / "rows.jsonl", [human_row(0)])
    human, tables = ["--human", "j.jsonl"], ["--human", "t.csv", "--judge", "j=t.csv"]
    for words, message in (
        (["a=missing.jsonl"], "missing.jsonl: no such file"),
        (["j.jsonl", "j=j.jsonl"], "the sample j is given twice"),
        (["people=j.jsonl"], "cannot be called people"),
        (["looking=j.jsonl"], "cannot be called looking"),
        (["j.jsonl", "--gate", "mea<=1"], "no metric 'mea'"),
        ([*human, "--judge", "j.jsonl"], "--judge 'j.jsonl': expected NAME=FILE"),
        (["j.jsonl", *human], "not both"),
        ([*human, "--judge", "people=j.jsonl"], "--judge people: people, a rater or a trivial judge are called that"),
        (["j.jsonl", "--scale", "1:5"], "--scale says nothing about judgments, which are on 1:10"),
        (["j.jsonl", "--judge-scale", "1:5"], "--judge-scale says nothing about judgments, which are on 1:10"),
        ([], "nothing to audit"),
        (["t.csv"], "t.csv: no "),
        (["rows.jsonl"], "rows.jsonl: no "),
        ([*tables, "--certificate", "c.json"], "takes judgments made in one way"),
        ([*tables, "--gate", "x:mae<=1"], "no sample 'x'; there are t"),
        (["j.jsonl", "--gate", ""], "--gate ''"),
        (["j.jsonl", "--target-half-width", "-1"], "--target-half-width"),
        (["j.jsonl", "--scale", "5:1"], "--scale '5:1': expected LOW:HIGH"),
    ):
        assert message in refused(tmp_path, *words, "--out", "out")
    assert "t.csv: File exists" in refused(tmp_path, *tables, "--out", "t.csv")


def of_responses(responses: list[Response], training: list[Response]) -> dict[str, Any]:
    """What the trivial judges give them."""
    fives, lengths = np.full(len(responses), 5.0), np.array([float(len(response.text)) for response in responses])
    sample = build_sample(fives, fives, length=lengths, responses=responses)
    return {name: scores for name, (scores, _) in trivial(sample, training).items()}


def test_baselines_learn_a_line_and_stay_on_the_scale() -> None:
    def response(number: int, text: str, score: float, reference: str | None = "甲乙丙丁戊己") -> Response:
        base = judgment(number, score, 5, text=text).sample.response
        return msgspec.structs.replace(base, question=msgspec.structs.replace(base.question, reference=reference))

    train = [response(i, "甲乙丙丁戊己"[: i + 1], 1 + 1.8 * i) for i in range(6)]
    scores = of_responses([*train, response(7, "甲" * 100_000, 5)], train)
    assert scores["constant"].tolist() == [5.5] * 7
    for name in ("length", "chrf"):
        assert np.corrcoef(scores[name][:6], [1 + 1.8 * i for i in range(6)])[0, 1] > 0.9, name
        assert scores[name].min() >= 1 and scores[name].max() <= 10, name
    assert "chrf" not in of_responses([response(8, "甲", 5, reference=None)], train)
    same = [response(i, "甲乙", 4.0 + i % 2) for i in range(4)]
    assert of_responses(same, same)["length"].tolist() == pytest.approx([4.5] * 4)


def sample_of(folder: Path, rows: list[Judgment]) -> RatedSample:
    jsonl.write(folder / "x.jsonl", rows)
    return read_judgments("x", folder / "x.jsonl")[0]


def test_people_compares_each_rater_with_the_mean_of_the_others(tmp_path: Path) -> None:
    rows = [judgment(0, 5, 5, raters={"a": 2, "b": 4, "c": 9}), judgment(2, 5, 5, raters={"a": 3})]
    line, judge = people(sample_of(tmp_path, rows))
    assert line.result.n == judge.result.n == 3
    assert judge.result.mae == pytest.approx((abs(6.5 - 5) + abs(5.5 - 5) + abs(3 - 5)) / 3)
    assert line.result.mae == pytest.approx((abs(6.5 - 2) + abs(5.5 - 4) + abs(3 - 9)) / 3)
    assert not [*people(sample_of(tmp_path, rows[1:]))]


def test_what_the_page_counts(tmp_path: Path) -> None:
    scores = [(1.0, 1.4), (1.0, 1.5), (9.5, 10.0), (3.0, None), (4.0, 2.0), (6.0, 2.0)]
    sample = sample_of(tmp_path, [judgment(i, h, j) for i, (h, j) in enumerate(scores)])
    table = np.array(count_pairs(sample.human, sample.scores))
    assert table.sum() == 5
    assert [table[0, 0], table[0, 1], table[9, 9], table[3, 1], table[5, 1]] == [1] * 5
    answers = [*rank_answers(sample, 6)]
    assert [sample.ids[row] for _, row, *_ in answers] == ["r5", "r4", "r1", "r2", "r0", "r3"]  # r1, r2: equally far
    assert np.isnan(answers[-1][0]) and [*rank_answers(sample, 2)] == answers[:2], "what failed is last"
    pairs = build_pairs(np.array([A, B, TIE, UNASKED, A]), np.array([A, A, A, B, FAILED]))
    assert [(apart, row) for apart, row, *_ in rank_answers(pairs, 3)] == [(1, 1), (0.5, 2), (0, 0)]
    assert [(line.name, line.cells[0].text) for line in count_failures(sample)] == [("truncated", "1")]
    refused = [msgspec.structs.replace(judgment(i, 5, None), verdict=Verdict(failure="refused")) for i in range(6, 11)]
    (most, few) = count_failures(sample_of(tmp_path, [judgment(3, 3, None), *refused]))
    assert [(line.name, line.cells[0].text) for line in (most, few)] == [("refused", "5"), ("truncated", "1")]
    assert most.about == "r6; r7; r8"


def test_two_columns_of_a_table_and_a_gate(tmp_path: Path) -> None:
    """A table without texts: every section that needs none is there; a gate that is not kept exits with 1."""
    random = np.random.default_rng(0)
    human = random.integers(1, 6, 200)
    lines = ["id,expert,ours,theirs,task"]
    for i, h in enumerate(human):
        ours, theirs = np.clip([h + random.integers(-1, 2), random.integers(1, 6)], 1, 5)
        lines.append(f"{i},{h},{ours},{theirs},{'abc'[i % 3]}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    table = ["--human", "t.csv:expert", "--judge", "ours=t.csv:ours", "--judge", "theirs=t.csv:theirs"]
    common = [*table, "--scale", "1:5", "--out", "out"]
    done = run(tmp_path, *common, "--gate", "mae<=2.5,pearson>=0.99", code=1)
    said = done.stderr.rpartition("\r")[2]  # what stands before it is a progress bar, on a slow machine
    assert said.startswith("gate: t: pearson>=0.99 NOT kept: 0.") and said.count("\n") == 1, done.stderr
    summary = summary_of(tmp_path)
    assert [line["holds"] for line in summary["gate"]] == [True, False]
    files = summary["provenance"]["samples"]["t"]["files"]
    assert [file["column"] for file in files.values()] == ["expert", "ours", "theirs"]
    assert [*files] == ["people", "ours", "theirs"]
    (pair,) = summary["t"]["comparisons"]
    assert (pair["first"], pair["second"], pair["differences"][0]["better"]) == ("ours", "theirs", "ours")
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "The gate is not kept: pearson&gt;=0.99" in page and "By task" in page
    assert run(tmp_path, *common, "--gate", "mae<=2.5").returncode == 0
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "Use ours in place of theirs (no worse by more" in page


def test_everything_an_audit_can_say_is_said(tmp_path: Path) -> None:
    """Raters, attacked answers, labels to plan and to correct with: numbers in the summary, readings on the page."""
    random = np.random.default_rng(0)
    rows = []
    for i in range(400):
        human = float(random.integers(1, 11))
        raters = {name: float(np.clip(human + random.integers(-2, 3), 1, 10)) for name in "abcd"[: 3 + i % 2]}
        mean = float(np.mean(list(raters.values())))
        score = float(np.clip(human + (i % 4 == 0) * 2 + random.normal(0, 0.5), 1, 10))
        line = change(judgment(i, mean, score, raters=raters), system=["own", "x", "y", "z"][i % 4])
        rows.append(line if i % 5 else change(line, human=None))
    attacked = []
    for i in range(8):
        for name, gain in {"clean": 0.0, "padding": 0.0, "praise": 3.0}.items():
            line = judgment(2 * i, 2.0, 2.0 + gain)
            attacked.append(change(line, id=f"{line.sample.id}#{name}"))
    jsonl.write(tmp_path / "j.jsonl", rows)
    jsonl.write(tmp_path / "attacked.jsonl", attacked)
    arguments = ["j.jsonl", "--target-half-width", "0.2", "--attacked", "attacked.jsonl"]
    run(tmp_path, *arguments, "--epsilon", "0.2", "--out", "out", code=0)
    summary = summary_of(tmp_path)
    sample = summary["j"]
    assert (sample["n"], sample["unlabelled"]) == (320, 80)
    assert sample["raters"]["people"]["value"] > 0.5 and sample["raters"]["with_judge"]["n"] == 320
    assert {line["rater"] for line in sample["replaces"]["lines"]} == set("abcd")
    biases = {effect["name"]: effect for effect in sample["biases"]["small-judge"]["effects"]}
    assert set(biases) == {"severity", "verbosity"}
    assert biases["severity"]["interval"][0] > 0
    assert {family["name"] for family in sample["biases"]["small-judge"]["offsets"]} == {"lang", "task", "answerer"}
    assert sample["calibration"]["change"]["interval"] and sample["widths"]["tasks"][0]["coverage"]["value"] > 0.8
    assert set(sample["corrected"]) == {"own", "x", "y", "z"}
    for mean in sample["corrected"].values():
        assert mean["labelled"] == 80 and mean["unlabelled"] == 20 and mean["effective"] > 80
    assert sample["plan"]["half_width"] == 0.2
    (injected,) = summary["injection"]
    assert [attack["change"]["value"] for attack in injected["attacks"]] == [0.0, 3.0]

    page = (tmp_path / "out/report.html").read_text("utf-8")
    shown = read_text(page)
    readings = [sample["replaces"]["reading"], sample["plan"]["reading"], injected["reading"]]
    readings += [effect["reading"] for effect in biases.values()]
    readings += sample["calibration"]["readings"]
    for reading in readings:
        assert reading in shown, reading
    assert_whole(page)
    wrong = run(tmp_path, "j.jsonl", "--attacked", "j.jsonl", "--out", "other").stderr
    assert "j.jsonl: response id 'r0' ends in the name of no attack" in wrong


def test_preferences_have_a_page_of_their_own(tmp_path: Path) -> None:
    """A judge that sides with people but for every fourth pair: its agreement and the longer answer are reported."""
    random = np.random.default_rng(0)
    people, judge = ["id,preference,length_a,length_b,task"], ["id,preference"]
    for i in range(200):
        verdict = random.choice(["a", "b", "tie"])
        people.append(f"{i},{verdict},{random.integers(1, 9)},{random.integers(1, 9)},{'xy'[i % 2]}")
        judge.append(f"{i},{'a' if i % 4 == 0 else verdict}")
    (tmp_path / "people.csv").write_text("\n".join(people))
    (tmp_path / "judge.csv").write_text("\n".join(judge))
    arguments = ["--human", "people.csv", "--judge", "j=judge.csv", "--out", "out"]
    done = run(tmp_path, *arguments, "--gate", "kappa>=0.9,failed<=0")
    assert done.returncode == 1 and "gate: people.csv: kappa>=0.9 NOT kept" in done.stderr, done
    sample = summary_of(tmp_path)["people.csv"]
    assert sample["baselines"]["longer"]["n"] == 200 and sample["by"]["j"]["task"]["x"]["n"] == 100
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    heads = re.findall("<h2>(.*?)</h2>", page)  # two scorers are no matrix, and one judge is compared with baselines
    assert heads == [
        "Agreement with people", "Gate", "Length", "Judge against judge", "Agreement by kind of pair",
        "Worst disagreements", "All answers", "Provenance",
    ]  # fmt: skip
    assert "Where it errs" not in page and 'id="failures"' not in page
    assert page.count('<td class="num">B</td><td class="num">A</td>') == 10, "people's and the judge's, far apart"
    assert_whole(page)
    assert "The gate is not kept: kappa>=0.9" in done.stdout
    # People's verdicts as 1, 1/2 and 0: what labels of their variance take for ±5 %, and what r² of it leaves.
    codes = [["a", "tie", "b"].index(line.split(",")[1]) / 2 for lines in (people, judge) for line in lines[1:]]
    human, judged = np.array(codes).reshape(2, 200)
    labels_only = (1.96 * human.std() / 0.05) ** 2
    corrected = np.ceil(labels_only * (1 - np.corrcoef(human, judged)[0, 1] ** 2))
    saved = f"It saves labels: {corrected:.0f} instead of {np.ceil(labels_only):.0f} for the share of people's verdicts"
    assert f"{saved} for a (ties half) within ±5 % (--target-half-width)." in run(tmp_path, *arguments).stdout
    cells = [line.split(",") for line in people[1:]]  # of task y it knows nothing
    noise = [f"{key},{random.choice(['a', 'b']) if task == 'y' else verdict}" for key, verdict, *_, task in cells]
    (tmp_path / "noise.csv").write_text("\n".join(["id,preference", *noise]))
    shown = run(tmp_path, *arguments[:2], "--judge", "j=noise.csv", "--out", "out").stdout
    assert re.search(r" Do not use it for y \(kappa [−0-9.]+, −0.\d+ to 0.\d+\); more labels there may", shown), shown
    assert "within ±10 % (--t" in run(tmp_path, *arguments, "--target-half-width", "0.1").stdout
    assert "of preferences it is that of a share" in run(tmp_path, *arguments, "--target-half-width", "2").stderr
    assert "--scale says nothing about preferences" in run(tmp_path, *arguments, "--scale", "1:5").stderr
    assert "no metric 'mae'; there are accuracy" in run(tmp_path, *arguments, "--gate", "mae<=1").stderr


def test_the_texts_of_a_table_are_shown_and_its_columns_named(tmp_path: Path) -> None:
    """60 questions and 4 systems: without the question's column the intervals are too narrow, and it is said."""
    random, lines = np.random.default_rng(0), ["key,score,judge,question,q,text"]
    for number in range(240):
        human = 2 + number // 4 % 8
        judge = np.clip(human + number // 4 % 3 - 1 + random.integers(0, 2), 1, 10)
        lines.append(f"{number},{human},{judge},What is {number}?,q{number // 4},{HOSTILE} {number}")
    (tmp_path / "t.csv").write_text("\n".join(lines), "utf-8")
    arguments = ["--human", "t.csv", "--judge", "j=t.csv:judge", "--out", "out"]
    done = run(tmp_path, *arguments)
    assert "240 answers without groups by question" in (tmp_path / "out/report.html").read_text("utf-8")
    assert "no column group says" in done.stdout and "not used: key, q\n" in done.stdout, done
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert "Without their texts" not in page and page.count('">What is ') == 10 and "<script>alert" not in page
    narrow = np.ptp(summary_of(tmp_path)["t"]["interval"]["mae"])
    done = run(tmp_path, *arguments, "--map", "q=group", "--map", "key=id")
    assert "no column group says" not in done.stdout and "not used" not in done.stdout, done
    assert "240 answers to 60 questions" in (tmp_path / "out/report.html").read_text("utf-8")
    assert np.ptp(summary_of(tmp_path)["t"]["interval"]["mae"]) > 1.3 * narrow
    for name, why in {
        "id": "no table has such a column; t.csv has key",
        "judge": "beside --human, FILE:COLUMN",
    }.items():
        assert f"error: --map x={name}: {why}" in run(tmp_path, *arguments, "--map", f"x={name}").stderr


@pytest.mark.parametrize(
    ("name", "copies"), [("authority", 39), ("padding", 39), ("blind", 1), ("clean", 0), ("padding-b", 0)]
)
def test_attacked_copies_are_no_answers(tmp_path: Path, name: str, copies: int) -> None:
    """As judgments, and joined from tables; the answers as they are, and ids like those of copies, are audited."""
    variants = [
        msgspec.structs.replace(line, sample=msgspec.structs.replace(line.sample, id=f"{line.sample.id}#{name}"))
        for line in judgments()[: copies or 40]
    ]
    rest = judgments()[len(variants) :]
    jsonl.write(tmp_path / "j.jsonl", [*rest, *variants])
    (tmp_path / "t.csv").write_text(
        "id,score\n" + "".join(f"{line.sample.id},5\n" for line in [*rest, *variants]), "utf-8"
    )
    for arguments in (["j.jsonl"], ["--human", "t.csv", "--judge", "j=t.csv"]):
        done = run(tmp_path, *arguments, "--out", "out")
        if copies:
            count = f", the first of {copies}," if copies > 1 else ""
            assert_one_line_error(done, f"#{name}'{count} is a copy of an answer that critic attack made")
        else:
            assert done.returncode == 0, done
