"""critic run: infer, judge and score in one command, killed and run again; files as published; a newcomer."""

import inspect
import json
import re
import shutil
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_one_line_error, completion, kill_after_output, run, sample
from scoring import CONV, MULTI, grades, judged, read_sample, scored
from stages.test_judge_conversations import answer_all, judge, judge_sample, replies

from critic import benchmarks, jsonl
from critic.records import Judgment, ModelTurn
from critic.stages.totals import name_forms


def answer(body: dict[str, Any]) -> Any:
    """A model under test without a schema, a judge with one."""
    time.sleep(0.01)
    return answer_all(body) if "response_format" in body else completion("A kite.")


@pytest.mark.e2e
@pytest.mark.parametrize("benchmark", ["convbench", "multiverse"])
def test_a_run_that_was_killed_goes_on_to_the_scores(tmp_path: Path, scripted: Any, benchmark: str) -> None:
    server = scripted(answer)
    words = ["critic", "run", benchmark, sample(benchmark), "--model", server.url, "--name", "m"]
    words += ["--judge", server.url, "--as", "published", "--out", tmp_path / "out", "--concurrency", "2"]
    judged_file, replies_file = tmp_path / "out/judged.jsonl", tmp_path / "out/replies.jsonl"
    for growing in (replies_file, judged_file):
        kill_after_output(words, growing)
        assert not (tmp_path / "out/score").exists(), "the kill came too late to prove anything"
    run(*words, code=0)
    published = benchmarks.load(benchmark)
    turns = [(line.condition, line.conversation.id, line.turn) for _, line in jsonl.read(replies_file, ModelTurn)]
    assert {condition for condition, _, _ in turns} == {*published.conditions} and len({*turns}) == len(turns)
    verdicts = [line for _, line in jsonl.read(judged_file, Judgment)]
    assert {line.protocol for line in verdicts} == {*published.protocols}
    page = (tmp_path / "out/score/report.html").read_text("utf-8")
    assert "m: as published." in page and "not as published" not in page
    assert f"{len(verdicts)} judged before, 0 to go" in run(*words, code=0).stderr


SHARES = [0.0] * 6 + [1.0] + [0.0] * 3


def judge_or_head(body: dict[str, Any]) -> Any:
    """A judge that writes what the schema asks for, or a head that rates everything 7."""
    return answer_all(body) if "response_format" in body else {"data": [{"probs": SHARES}], "usage": {}}


def is_judging(body: dict[str, Any]) -> bool:
    """Return False for the question that shows whether a judge is a head."""
    return bool(body["messages"][0]["content"] != "?")


def run_benchmark(benchmark: str, model: Any, server: Any, out: Path, *words: object, code: int | None = None) -> Any:
    given = ["--model", model.url, "--name", "m", "--judge", server.url, "--out", out]
    return run("critic", "run", benchmark, sample(benchmark), *given, *words, code=code)


LEARNED: dict[str, tuple[str, list[str], list[str], list[str]]] = {
    "short": ("alignmmbench", ["pointwise_short"], [], ["pointwise_short"]),
    "head": ("alignmmbench", ["pointwise_short"], [], ["pointwise_short"]),
    "head of another benchmark": (
        "multiverse", ["pointwise_short"], ["--protocol", "pointwise"], ["pointwise_short"],
    ),
    "the usual form first": ("alignmmbench", ["pointwise_short", "pointwise"], [], ["pointwise"]),
    "a rating on another scale last": ("alignmmbench", ["scale_5", "pointwise_one_shot"], [], ["pointwise_one_shot"]),
    "the reason first": (
        "convbench", ["direct_turn_reason_first", "direct_whole_reason_first"], ["--protocol", "direct"],
        ["direct_turn_reason_first", "direct_whole_reason_first"],
    ),
    "no ties": ("visitbench", ["pairwise_turn_forced"], [], ["pairwise_turn_forced"]),
    "all turns in sight": (
        "convbench", ["direct_turn_in_full", "direct_whole"], ["--protocol", "direct"],
        ["direct_turn_in_full", "direct_whole"],
    ),
    "a form that is forced": ("visitbench", ["pointwise_short"], ["--force-form"], ["pairwise_turn"]),
    "a name that is given": (
        "alignmmbench", ["pointwise", "pointwise_short"], ["--prompt", "pointwise_short"], ["pointwise_short"],
    ),
}  # fmt: skip
"""Case -> benchmark, forms that the judge learned, options, and the forms in which it is asked."""


@pytest.mark.parametrize("case", LEARNED)
def test_the_form_follows_from_the_judge(tmp_path: Path, scripted: Any, case: str) -> None:
    """The form is said on the terminal, in the sidecar and on the page."""
    benchmark, learned, words, forms = LEARNED[case]
    head = case.startswith("head")
    model, server = scripted(answer), scripted(judge_or_head, owner="vllm" if head else "someone", head=head)
    server.told = {"forms": learned}
    done = run_benchmark(benchmark, model, server, tmp_path / "out", *words, code=0)
    lines = [line for _, line in jsonl.read(tmp_path / "out/judged.jsonl", Judgment)]
    assert {line.prompt for line in lines} == {*forms} and not any(line.failure for line in lines)
    forced = "--force-form" in words
    assert {line.setup.unlearned or None for line in lines} == {forms[0] if forced else None}
    assert ("did not learn pairwise_turn" in done.stdout) == forced
    lacks = "; it did not learn pairwise_turn (--force-form)\n" if forced else ", as it learned"
    said = f"tiny is asked in {name_forms(forms)}{lacks}"
    assert done.stderr.index(said) < done.stderr.index("1/3 infer"), "before inference"
    assert jsonl.facts(tmp_path / "out/judged.jsonl")["forms"] == forms
    page = (tmp_path / "out/score/report.html").read_text("utf-8")
    assert f"judged by tiny in {name_forms(forms)}, {len(lines)} verdicts" in page
    calls = len(model.requests), sum(map(is_judging, server.requests))
    again = run_benchmark(benchmark, model, server, tmp_path / "out", *words)
    assert again.returncode == 0 and f"{len(lines)} judged before, 0 to go" in again.stderr, again.stderr
    assert (len(model.requests), sum(map(is_judging, server.requests))) == calls


CANNOT: dict[str, tuple[str, list[str], list[str], list[str]]] = {
    "conversations": (
        "convbench", ["pointwise_short"], [],
        ["learned pointwise_short, and not direct_turn, direct_whole, pairwise_turn, pairwise_whole (--protocol)",
         "these replies it can judge by --protocol pointwise, or all the same with --force-form"],
    ),
    "checklists": ("multiverse", ["quality"], [], ["and not checklist", "--protocol quality", "--force-form"]),
    "comparisons": ("visitbench", ["pointwise"], [], ["and not pairwise_turn", "--protocol pointwise"]),
    "the paper's reasons": (
        "visitbench", ["pairwise_turn"], ["--as", "published"],
        ["and not pairwise_turn_forced_reason_first", "leave out --as published to ask as it learned"],
    ),
    "the paper's example": (
        "alignmmbench", ["pointwise"], ["--as", "published"],
        ["and not pointwise_one_shot", "leave out --as published"],
    ),
    "the paper's lack of reasons": (
        "multiverse", ["quality_reason_first", "checklist_reason_first"], ["--as", "published"],
        ["and not checklist, quality", "leave out --as published to ask as it learned"],
    ),
    "a form that is named": (
        "alignmmbench", ["pointwise_short"], ["--prompt", "pointwise"],
        ["and not pointwise (--protocol)", "leave out --prompt to ask as it learned"],
    ),
    "a reason that it learned": (
        "alignmmbench", ["pointwise_reason_first"], ["--no-reason"], ["leave out --no-reason to ask as it learned"],
    ),
    "two orders at once": (
        "convbench", ["direct_turn_reason_first", "direct_whole_reason_first", "pairwise_turn", "pairwise_whole"], [],
        ["and not direct_turn, direct_whole", "by --protocol direct or pairwise, or all the same"],
    ),
    "nothing here": ("alignmmbench", ["correct"], [], ["learned correct", "by no protocol", "--force-form"]),
    "an ablation": (
        "convbench", ["direct_turn", "direct_whole"], ["--protocol", "direct", "--judging", "no_fokus"],
        ["--judging no_fokus: unknown; choose standard, no_focus, no_turn_verdicts"],
    ),
    "a score": ("visitbench", ["pairwise_turn"], ["--score", "median"], ["--score median is one of --protocol"]),
    "a protocol": ("visitbench", ["pairwise_turn"], ["--protocol", "quick"], ["--protocol quick: unknown"]),
    "a checklist that is not there": (
        "visitbench", ["checklist"], ["--protocol", "checklist"], ["nothing to judge: checklist: no checklist"],
    ),
    "images": ("alignmmbench", ["pointwise"], ["--images", "show", "--data-root", "nowhere"], ["nowhere"]),
    "a condition": (
        "convbench", [], ["--as", "published", "--condition", "own"], ["--as published", "leave --condition out"],
    ),
}  # fmt: skip
"""Case -> benchmark, forms that the judge learned, options, and what the one line says."""


@pytest.mark.parametrize("case", CANNOT)
def test_what_the_judge_cannot_do_is_refused_before_inference(tmp_path: Path, scripted: Any, case: str) -> None:
    benchmark, learned, words, parts = CANNOT[case]
    model, server = scripted(answer), scripted(judge_or_head)
    server.told = {"forms": learned}
    assert_one_line_error(run_benchmark(benchmark, model, server, tmp_path / "out", *words), *parts)
    assert not model.requests and not server.requests and not (tmp_path / "out").exists()


@pytest.mark.parametrize("benchmark", ["convbench", "multiverse", "visitbench"])
def test_a_head_is_refused_before_inference_with_what_it_can_do(tmp_path: Path, scripted: Any, benchmark: str) -> None:
    """--force-form asks it nothing else, since it writes nothing."""
    model, server = scripted(answer), scripted(judge_or_head, owner="vllm", head=True)
    server.told = {"forms": ["pointwise_short"]}
    for words in ([], ["--force-form"], ["--as", "published"]):
        done = run_benchmark(benchmark, model, server, tmp_path / "out", *words)
        instead = "which gives one rating on 1..10; these replies it can judge by --protocol pointwise"
        assert_one_line_error(done, f": tiny is a scoring head, {instead}")
        assert not model.requests and not any(map(is_judging, server.requests))


def test_a_full_disk_and_missing_images_are_seen_first(tmp_path: Path, scripted: Any, monkeypatch: Any) -> None:
    model, server = scripted(answer), scripted(judge_or_head)
    bare = tmp_path / "bare" / "metadata.jsonl"
    bare.parent.mkdir()
    bare.write_bytes(sample("alignmmbench").read_bytes())
    given = ["--model", model.url, "--judge", server.url, "--out", tmp_path / "out"]
    assert_one_line_error(run("critic", "run", "alignmmbench", bare, *given), "6 of 6 images are not there")
    assert_one_line_error(run("critic", "run", "convbnch", sample("convbench"), *given), "did you mean convbench")
    room = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room._replace(free=1000))
    full = run_benchmark("alignmmbench", model, server, tmp_path / "out")
    assert_one_line_error(full, "0 MB free, and the records take about 0 MB")
    assert not model.requests and not server.requests


def test_the_options_of_a_run_are_those_of_its_stages() -> None:
    """Each option has one definition: name, type, default and help are the very same objects."""
    run_options, infer_options, judge_options = (
        inspect.signature(import_module(f"critic.stages.{name}").main, eval_str=True).parameters
        for name in ("evaluate", "infer", "judge")
    )
    from_judge = {"images", "prompt", "score", "no_reason", "protocol", "judging", "force_form", "published"}
    from_infer = {"condition", "name", "limit", "published"}
    common = {"api_key", "data_root", "concurrency", "max_failed", "retry_failed", "cache", "budget", "timeout"}
    for names, theirs in ((from_judge | common, judge_options), (from_infer | common, infer_options)):
        for name in names:
            assert run_options[name].annotation == theirs[name].annotation, name
            assert run_options[name].default == theirs[name].default, name
            assert run_options[name].annotation.__metadata__[0] is theirs[name].annotation.__metadata__[0], name


def test_judge_takes_the_form_as_well(tmp_path: Path, scripted: Any) -> None:
    """A named form outranks what the judge learned first; a table of answers with its questions is a benchmark too.

    Questions without an answer are not among the judgments, from whose mean nobody would see that they are missing.
    """
    server, table = scripted(judge_or_head), tmp_path / "m.jsonl"
    server.told = {"forms": ["pointwise_short", "scale_5"]}
    first = next(iter(jsonl.read(sample("alignmmbench"), dict[str, Any])))[1]["question_id"]
    table.write_text(f'{{"question_id": "{first}", "predict": "A kite."}}\n', "utf-8")
    for words, form in (([], "pointwise_short"), (["--prompt", "scale_5"], "scale_5")):
        out = tmp_path / f"{form}.jsonl"
        given = ["--questions", sample("alignmmbench"), "--base-url", server.url, "--max-failed", "1", "--out", out]
        done = run("critic", "judge", table, *given, *words, code=0)
        assert re.search(r"7 of 8 conversations of .*metadata\.jsonl have no replies and are not judged", done.stderr)
        assert f"tiny is asked in the form {form}, as it learned" in done.stderr
        assert jsonl.facts(out)["forms"] == [form]
    assert_one_line_error(
        run("critic", "judge", table, *given[:-1], tmp_path / "p.jsonl", "--prompt", "pointwise"),
        "learned pointwise_short, scale_5, and not pointwise (--protocol); leave out --prompt to ask as it learned",
    )


def test_infer_begins_with_the_papers_own_condition(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer)
    for benchmark, words, expected in (
        ("multiverse", [], {"oracle"}),
        ("convbench", [], {"own"}),
        ("convbench", ["--as", "published"], {"own", "perfect_perception", "perfect_perception_reasoning"}),
    ):
        out = tmp_path / f"{benchmark}{len(words)}.jsonl"
        given = ["--benchmark", benchmark, "--base-url", server.url, "--out", out, "--limit", "1"]
        assert run("critic", "infer", sample(benchmark), *given, *words).returncode == 0
        assert {line.condition for _, line in jsonl.read(out, ModelTurn)} == expected


def test_calls_are_counted_before_the_first(tmp_path: Path, scripted: Any) -> None:
    """Six conversations: three turns and the whole, graded once, compared in both orders or, as published, in one."""
    server, file = scripted(answer), replies(tmp_path / "r.jsonl", "convbench")
    usual = judge(file, tmp_path / "a.jsonl", "convbench", server.url)
    assert "48 verdicts by at most 72 calls (--as published: 48)\n" in usual.stderr and len(server.requests) == 72
    paper = judge(file, tmp_path / "b.jsonl", "convbench", server.url, "--as", "published")
    assert "48 verdicts by at most 96 calls, 48 if every reply can be read\n" in paper.stderr
    assert len(server.requests) == 72 + 48


def test_a_page_says_what_is_not_as_published(tmp_path: Path, scripted: Any) -> None:
    server = scripted(answer)
    judge_sample(tmp_path, "convbench", server, "--protocol", "pairwise")
    _, page, _ = scored(tmp_path / "out", "convbench", tmp_path / "j.jsonl")
    assert "m: not as published: order both (paper: forced); reason first False (paper: True)" in page
    assert "no verdicts by direct; no condition perfect_perception;" in page
    refused = run("critic", "score", tmp_path / "j.jsonl", "--as", "published", "--out", tmp_path / "k")
    assert_one_line_error(refused, "--as published", "j.jsonl", "order both (paper: forced)")
    multi = judged(tmp_path / "m.jsonl", "multiverse", MULTI, lambda verdict: 0.5)
    refused = run("critic", "score", multi, "--as", "published")
    assert_one_line_error(refused, "reasons True (paper: False); images blind (paper: show);")


AS_PAPER: dict[str, tuple[str, list[str], str]] = {
    "figure 11's example": ("alignmmbench", [], "as published"),
    "another rubric": (
        "alignmmbench", ["--prompt", "pointwise_short"], "form pointwise_short (paper: pointwise_one_shot)",
    ),
    "sampled verdicts": ("alignmmbench", ["--temperature", "1.3"], "temperature 1.3 (paper: 0.0)"),
    "several verdicts": ("alignmmbench", ["--repeat", "2"], "calls a verdict 2 (paper: 1)"),
    "captions for images": ("convbench", [], "as published"),
    "table 1": ("convbench", ["--protocol", "pairwise"], "as published: table 1"),
    "table 8": ("convbench", ["--protocol", "direct"], "as published: table 8"),
    "a table judged otherwise": (
        "convbench", ["--protocol", "pairwise", "--order", "both"],
        "order both (paper: forced); no verdicts by direct",
    ),
    "images for captions": ("convbench", ["--images", "show"], "images show (paper: blind)"),
    "images in sight": ("multiverse", [], "as published"),
    "a judge that is blind": ("multiverse", ["--images", "blind"], "images blind (paper: show)"),
    "quality": ("multiverse", ["--protocol", "quality", "--no-reason"], "as published: quality assessment"),
    "both orders, no ties": ("visitbench", [], "as published"),
    "a tie on offer": ("visitbench", ["--order", "both"], "order both (paper: both_forced)"),
    "no reference": (
        "visitbench", ["--against", "other", "--reference-free"], "as published: reference-free (figure 16)",
    ),
}  # fmt: skip
"""Case -> benchmark, options beside --as published, and what the page says."""


@pytest.mark.parametrize("case", AS_PAPER)
def test_as_published_is_said_of_nothing_else(tmp_path: Path, scripted: Any, case: str) -> None:
    """Rows 4, 14, 21, 27 and 29: each constant of a paper is asked for, or named as one that differs."""
    benchmark, words, said = AS_PAPER[case]
    server, out = scripted(answer_all), tmp_path / "j.jsonl"
    conditions = benchmarks.load(benchmark).conditions
    other = replies(tmp_path / "other.jsonl", benchmark, conditions, system="n")
    words = [str(other) if word == "other" else word for word in words]
    given = ["--as", "published", "--data-root", sample(benchmark).parent]
    judge_sample(tmp_path, benchmark, server, *given, *words, conditions=conditions)
    texts = [json.dumps(body["messages"], ensure_ascii=False) for body in server.requests]
    sees = "show" in words or (benchmark == "multiverse" and "blind" not in words)
    assert all(("image_url" in text) == sees for text in texts)
    if case == "both orders, no ties":
        pairs = [line for _, line in jsonl.read(out, Judgment)]
        assert all([call.first for call in line.calls] == ["model", "opponent"] for line in pairs)
        assert all("There is no tie" in text or "没有平局" in text for text in texts)
    if benchmark == "alignmmbench" and "short" not in said:
        assert all("分数与理由：9 分" in text for text in texts)
    _, page, _ = scored(tmp_path / "out", benchmark, out)
    told = said if said.startswith("as published") else f"not as published: {said}"
    assert f"{told}." in page or f"{told};" in page, page
    run("critic", "score", out, "--as", "published", code=0 if told == said else 2)


def test_a_model_judged_in_two_files_is_one_row(tmp_path: Path) -> None:
    """Each condition in a file of its own: table 8 has all cells, as of one file. What both files judge is two runs."""
    conditions = {condition for _, condition, _ in CONV}
    files = [
        judged(tmp_path / f"{condition}.jsonl", "convbench", [cell for cell in CONV if cell[1] == condition], grades)
        for condition in sorted(conditions)
    ]
    whole = judged(tmp_path / "whole.jsonl", "convbench", CONV, grades)
    apart, _, _ = scored(tmp_path / "apart", "convbench", *files)
    together, _, _ = scored(tmp_path / "together", "convbench", whole)
    assert apart["leaderboards"] == together["leaderboards"] and len(apart["files"]) == 3
    assert {*apart["leaderboards"]["direct"]} == {"m"}
    twice, _, _ = scored(tmp_path / "twice", "convbench", files[0], whole)
    assert len({*twice["leaderboards"]["direct"]} - {"mean"}) == 2


def test_a_newcomer_plays_only_its_own_battles(tmp_path: Path, scripted: Any) -> None:
    """Of a finished tournament of three, its battles and the newcomer's are rated together; the files stay as they
    are."""
    server = scripted(answer)
    files = [replies(tmp_path / f"{name}.jsonl", "visitbench", system=name) for name in "abcd"]
    others = [word for file in files[1:3] for word in ("--against", file)]
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    battles = ["--battles", "all", "--order", "random"]
    assert judge(files[0], old, "visitbench", server.url, *others, *battles).returncode == 0
    before = old.read_bytes()
    against = [word for file in files[:3] for word in ("--against", file)]
    newcomer = ["--battles", "newcomer", "--order", "random", "--seed", "1"]
    judge(files[3], new, "visitbench", server.url, *against, *newcomer, code=0)
    fought = [line for _, line in jsonl.read(new, Judgment)]
    backed = sum(conversation.turns[0].reference is not None for conversation in read_sample("visitbench"))
    assert len(fought) == backed, "one opponent is drawn for each instruction"
    assert all("d" in (line.system, line.opponent) for line in fought)
    assert len({line.opponent if line.system == "d" else line.system for line in fought}) > 1
    summary, page, _ = scored(tmp_path / "out", "visitbench", old, new)
    rated = summary["leaderboards"]["tournament"]
    assert {*rated} == {*"abcd"} and rated["d"]["win rate, %"]["n"] == backed and old.read_bytes() == before
    assert "which the ratings mix" not in page


def test_agreement_is_pooled_over_models(tmp_path: Path) -> None:
    """Judges agree on all six conversations of m, on the first two of n: on 8 of 12, one image's answers together."""
    first_turn = [("direct", "own", 1)]

    def other(verdict: Judgment) -> float:
        return 5.0 if verdict.system == "m" or int(verdict.sample.id) <= 2 else 4.0

    files = []
    for system in ("m", "n"):
        files.append(judged(tmp_path / f"{system}-j.jsonl", "convbench", first_turn, lambda _: 5.0, system, answer="x"))
        second = judged(tmp_path / f"{system}-k.jsonl", "convbench", first_turn, other, system, judge="k", answer="x")
        files.insert(0 if system == "n" else len(files), second)  # the judges' order in the call says nothing
    summary, _, _ = scored(tmp_path / "out", "convbench", *files)
    pooled = summary["leaderboards"]["agreement-direct-pooled"]
    rows = summary["leaderboards"]["agreement-direct"] | pooled
    shares = {name.split(":")[0]: (cells["S1"]["value"], cells["S1"]["n"]) for name, cells in rows.items()}
    of_n = (pytest.approx(100 / 3), 6)
    mean = shares.pop("mean of the models")
    assert mean[0] == pytest.approx(200 / 3) and [*pooled] == ["all 2 models: k and j"], "a table of its own"
    assert shares == {"all 2 models": (pytest.approx(100 * 8 / 12), 12), "m": (100, 6), "n": of_n}
    low, high = next(cells for name, cells in rows.items() if name.startswith("all"))["S1"]["interval"]
    assert high - low > 40, "six groups, not twelve"
