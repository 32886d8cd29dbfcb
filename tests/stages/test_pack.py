"""critic judge --prompt-pack: what reaches the judge of the prompts in a folder."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import assert_one_line_error, completion, run
from stages.test_judge_conversations import judge, judged, replies, sample

from critic.errors import UsageError
from critic.judging.packs import open_pack
from critic.judging.prompt import load, prompt_hash
from critic.judging.render import Candidate, Exchange, PromptInputs, render

PAIR = {
    "template": "Task: {{ raw.question }}\nTruth: {{ raw.reference }} costs $$1, a set {{ '{' }}x}\n\n"
    "[A] {{ raw.answer_a }}\n[B] {{ raw.answer_b }}\nEnd with [[A]] or [[B]]. ",
    "verbatim": True,
    "constrained": False,
    "system": "You compare. Be strict.",
}


def made(out: Path, prompts: dict[str, dict[str, Any]]) -> Path:
    """A pack of these files. JSON's values are TOML's, but for tables."""
    out.mkdir(exist_ok=True)
    for name, content in prompts.items():
        lines = [
            f"{key} = [{', '.join(map(inline, value))}]" if isinstance(value, list) else f"{key} = {json.dumps(value)}"
            for key, value in content.items()
        ]
        (out / f"{name}.toml").write_text("\n".join(lines), "utf-8")
    return out


def inline(message: dict[str, str]) -> str:
    return f"{{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in message.items())} }}"


def dialogue(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def test_their_words_reach_the_judge_and_its_free_text_is_read(tmp_path: Path, scripted: Any) -> None:
    """Who wins is settled by the second question, of which the first reply's text is all that is shown. The pack has
    no Chinese prompt: there ours is used."""

    def answer(body: dict[str, Any]) -> Any:
        if "response_format" not in body:
            return completion("Both have merit, A more of it.")
        chinese = re.search("[一-鿿]", body["messages"][0]["content"])
        assert chinese or "> Both have merit, A more of it." in body["messages"][0]["content"]
        return completion(json.dumps({"Verdict": "A"}))

    server, folder = scripted(answer), made(tmp_path / "theirs", {"pairwise_turn_en": PAIR})
    file, out = replies(tmp_path / "r.jsonl", "visitbench"), tmp_path / "j.jsonl"
    done = judge(file, out, "visitbench", server.url, "--prompt-pack", folder)
    assert done.returncode == 0, done.stderr
    name = open_pack(folder)
    assert name.startswith("theirs@") and f"prompts of {name}: pairwise_turn (en); the others are ours" in done.stderr
    lines = judged(out)
    first = next(line for line in lines if line.conversation.id == "1")
    turn = first.conversation.turns[0]
    shown = [body["messages"] for body in server.requests if "response_format" not in body]
    assert [
        {"role": "system", "content": "You compare. Be strict."},
        {
            "role": "user",
            "content": f"Task: {turn.prompt}\nTruth:  costs $1, a set {{x}}\n\n[A] {first.sample.answer}\n"
            f"[B] {turn.reference}\nEnd with [[A]] or [[B]]. ",
        },
    ] in shown
    assert all(line.setup.pack == name and line.score == 0.5 for line in lines)
    theirs = {line.conversation.lang for line in lines if [call.extracted for call in line.calls] == [False, True] * 2}
    assert theirs == {"en"} and {line.conversation.lang for line in lines} == {"en", "zh"}
    assert first.prompt_hash == prompt_hash(f"{name}/pairwise_turn") != prompt_hash("pairwise_turn")
    asked = len(server.requests)
    assert judge(file, out, "visitbench", server.url, "--prompt-pack", folder).returncode == 0
    assert len(server.requests) == asked
    assert_one_line_error(judge(file, out, "visitbench", server.url), "made with pack 'theirs@", "now None")
    prompt = folder / "pairwise_turn_en.toml"
    prompt.write_text(prompt.read_text("utf-8").replace("Task", "Exercise"), "utf-8")
    assert_one_line_error(
        judge(file, out, "visitbench", server.url, "--prompt-pack", folder), "made with pack 'theirs@", "now 'theirs@"
    )


def test_a_pointwise_prompt_of_theirs(tmp_path: Path, scripted: Any) -> None:
    template = '$$5 for {{ raw.question }}: {{ "{" }}{{ raw.response }}} 写 {"Rating": n, "Reason": w}'
    folder = made(tmp_path / "theirs", {"pointwise_zh": {"template": template, "verbatim": True}})
    server = scripted(lambda body: completion('{"Rating": 4, "Reason": "so"}'))
    file, out = replies(tmp_path / "r.jsonl", "alignmmbench"), tmp_path / "j.jsonl"
    done = judge(file, out, "alignmmbench", server.url, "--prompt-pack", folder)
    assert done.returncode == 0, done.stderr
    line = judged(out)[0]
    question = " ".join(line.conversation.turns[0].prompt.split())
    said = [" ".join(body["messages"][0]["content"].split()) for body in server.requests]
    assert f'$5 for {question}: {{{line.sample.answer}}} 写 {{"Rating": n, "Reason": w}}' in said
    name = open_pack(folder)
    assert line.setup.pointwise_prompt == f"{name}/pointwise" and line.score == 4
    assert line.prompt_hash == prompt_hash(f"{name}/pointwise") != prompt_hash("pointwise")


def paper() -> dict[str, dict[str, Any]]:
    """A pack as for ConvBench: a prompt for each turn, and examples before the second question."""
    common = {"system": "You compare conversations.", "verbatim": True, "constrained": False}
    hello = common | {"before": dialogue("I will show you two conversations.", "Sure, go on.")}
    asked = ", ".join(f"{{{{ raw.questions[{n}] }}}}" for n in range(3))
    prompts = {
        f"pairwise_turn_{turn}_en": hello
        | {
            "template": f"Turn {name} of {asked}: {{{{ raw.answers_a[{turn - 1}] }}}} or "
            f"{{{{ raw.answers_b[{turn - 1}] }}}}? {{{{ raw.focus }}}}"
        }
        for turn, name in enumerate(("one", "two", "three"), 1)
    }
    judged = " / ".join(f"{{{{ raw.judgments[{n}] }}}}" for n in range(3))
    prompts["pairwise_whole_en"] = hello | {"template": f"All of {{{{ raw.answers_a[0] }}}}, by {judged}?"}
    examples = dialogue("A is good, hence I take A.", "Final Answer: Response A")
    extraction = {"template": "{{ raw.text }} Please extract the answer.", "before": examples}
    return prompts | {"extraction_en": common | extraction}


def test_a_papers_own_prompts_by_turn_with_preamble_examples_and_extraction(tmp_path: Path, scripted: Any) -> None:
    out = made(tmp_path / "theirs", paper())

    def answer(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]["content"]
        if "Please extract" in last:
            return completion("Final Answer: Response B")
        return completion("Hard to say." if "Turn two" in last else "Well.\n\nOverall, Response A is better.")

    server = scripted(answer)
    file, judged_file = replies(tmp_path / "r.jsonl", "convbench"), tmp_path / "j.jsonl"
    words = ["--protocol", "pairwise", "--prompt-pack", out, "--order", "forced"]
    refused = judge(file, judged_file, "convbench", server.url, *words)
    assert_one_line_error(refused, "pairwise_turn", "has no element 1", "--sight all")
    done = judge(file, judged_file, "convbench", server.url, *words, "--sight", "all")
    assert done.returncode == 0, done.stderr
    turns = {line.turn: line for line in judged(judged_file) if line.conversation.id == "1"}
    assert [line.calls[0].value for turn, line in sorted(turns.items(), key=str)] == ["A", None, "A", "A"]
    assert turns[2].calls[1].extracted and turns[2].calls[1].value == "B"
    sent = [
        body["messages"] for body in server.requests if body["messages"][0]["content"] == "You compare conversations."
    ]
    first = next(one for one in sent if "Turn one" in one[-1]["content"] and "m on 1 turn 1." in one[-1]["content"])
    assert [one["role"] for one in first] == ["system", "user", "assistant", "user"] and first[2][
        "content"
    ] == "Sure, go on."
    assert turns[1].conversation.turns[2].prompt in first[-1]["content"]
    second = next(one for one in sent if "Please extract" in one[-1]["content"])
    assert [one["content"] for one in second[1:]] == [
        "A is good, hence I take A.", "Final Answer: Response A", "Hard to say. Please extract the answer.",
    ]  # fmt: skip
    whole = next(one[-1]["content"] for one in sent if one[-1]["content"].startswith("All of"))
    assert "by Well.\n\nOverall, Response A is better. / Hard to say. / Well." in whole


def test_a_prompt_for_the_sight_of_the_reference_and_one_without(tmp_path: Path, scripted: Any) -> None:
    """VisIT-Bench's two: against another model reference-backed, against the reference itself without."""
    shown = "{{ raw.question }} {{ raw.answer_a }} {{ raw.answer_b }}"
    free = {"template": f"Free: {shown}", "constrained": False}
    backed = {"template": f"Backed: {shown} {{{{ raw.reference }}}}", "constrained": False}
    folder = made(tmp_path / "theirs", {"pairwise_turn_en": free, "pairwise_turn_backed_en": backed})
    server = scripted(lambda body: completion("Overall, Response A is better."))
    one, other = (replies(tmp_path / f"{name}.jsonl", "visitbench", system=name) for name in ("m", "n"))
    for words, expected in [
        ([], "Free"),
        (["--against", other], "Backed"),
        (["--against", other, "--reference-free"], "Free"),
    ]:
        server.requests.clear()
        out = tmp_path / f"{len(words)}.jsonl"
        done = judge(one, out, "visitbench", server.url, "--prompt-pack", folder, *words)
        assert done.returncode == 0, done.stderr
        said = {body["messages"][-1]["content"].split(":")[0] for body in server.requests}
        assert expected in said and not said & ({"Free", "Backed"} - {expected})


def test_texts_are_shown_without_marks_but_never_with_control_tokens(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    template = "{{ raw.questions[1] }}|{{ raw.answers[0] }}|{{ raw.answer }}"
    (tmp_path / "p" / "direct_turn_en.toml").write_text(f"template = '{template}'\nconstrained = false\n")
    prompt = load(f"{open_pack(tmp_path / 'p')}/direct_turn", "en")
    one = PromptInputs(question="q2", sides=[Candidate(earlier=[Exchange("q1", "a1")], answer="x\n\ny<|im_end|>")])
    assert render(prompt, one)[0]["content"] == "q2|a1|x\n\ny‹¦im_end¦›"
    with pytest.raises(UsageError, match="prompt direct_turn, en"):
        render(prompt, msgspec.structs.replace(one, sides=[Candidate(answer="x")]))


def test_a_packs_prompt_stands_in_for_those_with_more_flags(tmp_path: Path) -> None:
    """Ours of a flag, and a pack's own, come over it."""
    whole = {"template": "{{ raw.question }}", "constrained": False}
    folder = made(tmp_path / "p", {"pairwise_turn_en": whole, "pairwise_turn_forced_2_en": {"template": "second"}})
    (folder / "direct_turn_reason_first_zh.toml").write_text("[parts]\noutput = '理由 {\"Rating\":1}'\n", "utf-8")
    name = open_pack(folder)
    flagged = load(f"{name}/pairwise_turn_forced_reason_first", "en")
    assert flagged.template == load(f"{name}/pairwise_turn", "en").template and not flagged.constrained
    assert load(f"{name}/pairwise_turn_forced_reason_first_2", "en").template == "second"
    output = '# 输出格式\n理由 {"Rating":1}\n'
    assert output in load(f"{name}/direct_turn_reason_first_in_full", "zh").template
    assert output not in load(f"{name}/direct_turn_in_full", "zh").template


def test_mistakes_end_in_one_line(tmp_path: Path, scripted: Any) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    for name, content, part in [
        ("direct_en.toml", "", "no judge prompt 'direct'; there is answer"),
        ("pointwise_en.toml", "a b", "pointwise_en.toml"),
        ("pointwise_en.toml", 'template = "{{ nothing }}\\"Rating\\""', "nothing"),
        ("pointwise_en.toml", 'template = "{{ question }}"', '"Rating"'),
        ("pointwise_en.toml", "wording = 1", "wording"),
        ("pointwise_en.toml", 'template = "{{ question.__class__.__mro__ }}\\"Rating\\""', "unsafe"),
    ]:
        (folder / name).write_text(content, "utf-8")
        with pytest.raises(UsageError, match=part):
            open_pack(folder)
        (folder / name).unlink()
    with pytest.raises(UsageError, match="no prompt pack"):
        open_pack(folder)
    file = replies(tmp_path / "r.jsonl", "convbench")
    words = ["--prompt-pack", made(tmp_path / "p", {"pairwise_turn_en": PAIR})]
    url = scripted(lambda body: None).url
    for more, part in [
        (["--protocol", "direct"], "has no prompt of direct"),
        (["--protocol", "pairwise", "--no-reason"], "free text"),
        (["--protocol", "pairwise", "--no-extraction"], "free text"),
    ]:
        assert_one_line_error(judge(file, tmp_path / "j.jsonl", "convbench", url, *words, *more), part)
    rows = run("critic", "judge", sample("alignmmbench"), "--out", tmp_path / "j.jsonl", *words)
    assert_one_line_error(rows, "says nothing of the prompt pointwise")


def test_a_packs_prompt_extends_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "pointwise_en.toml").write_text("extends = 'pointwise'", "utf-8")
    with pytest.raises(UsageError, match="extends"):
        open_pack(tmp_path)
    with pytest.raises(UsageError, match="no judge prompt 'x/pointwise'"):
        load("x/pointwise", "en")
