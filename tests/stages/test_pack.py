"""critic pack: a module's string constants -> a prompt pack; critic judge --prompt-pack: what reaches the judge."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import assert_one_line_error, completion, run
from hypothesis import given
from hypothesis import strategies as st
from stages.test_judge_conversations import judge, judged, replies, sample

from critic.asking.packs import open_pack
from critic.asking.prompt import _compiled, load, prompt_hash
from critic.asking.render import Exchange, Material, Side, render
from critic.errors import UsageError
from critic.stages import pack

MODULE = '''
import os
os.mkdir("it-was-run")
SYSTEM = "You compare." + " Be strict."
PAIR = """Task: {question}
Truth: {ref} costs $1, a set {{"x": 1}} and {{% if %}}

[A] {a}
[B] {b}
End with [[A]] or [[B]]. """
GRADES = {"zh": "打分：<Q>\\n<A>", "n": 3}
LISTS = ["first", "second"]
class Wrap:
    INNER: str = "inside"
def build(caption):
    prompt = f"Image: {caption.strip()}!"
    return prompt
def ask(question):
    return f"Question {question.strip()}, answer it."
WORK = os.environ["HOME"]
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.py"
    path.write_text(MODULE, "utf-8")
    return path


def mapping(path: Path, *entries: str) -> Path:
    path.write_text("\n".join(f"[[prompt]]\n{entry}" for entry in entries), "utf-8")
    return path


PAIR = """constant = "PAIR"
kind = "pairwise_turn"
system = "SYSTEM"
format = true
[prompt.placeholders]
"{question}" = "raw.question"
"{ref}" = "raw.reference"
"{a}" = "raw.answer_a"
"{b}" = "raw.answer_b"
"""


def test_constants_are_read_and_nothing_is_run(module: Path) -> None:
    found = pack.constants(module)
    assert found["SYSTEM"] == "You compare. Be strict." and found["GRADES.zh"] == "打分：<Q>\n<A>"
    assert (found["LISTS[1]"], found["Wrap.INNER"]) == ("second", "inside")
    assert found["build.prompt"] == "Image: {caption.strip()}!"
    assert found["ask.return"] == "Question {question.strip()}, answer it."
    names = {"SYSTEM", "PAIR", "GRADES.zh", "LISTS[0]", "LISTS[1]", "Wrap.INNER", "build.prompt", "ask.return"}
    assert set(found) == names
    assert not Path("it-was-run").exists()


def test_the_mapping_is_begun_and_taken_as_it_was_filled_in(module: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "map.toml", tmp_path / "theirs"
    done = run("critic", "pack", module, "--mapping", file)
    assert done.returncode == 0 and "8 constants" in done.stdout
    begun = file.read_text("utf-8")
    assert '"{question}" = ""' in begun and '"{a}" = ""' in begun
    assert_one_line_error(run("critic", "pack", module, "--mapping", file), "--out")
    assert_one_line_error(run("critic", "pack", module, "--mapping", file, "--out", out), "no constant has a kind")
    values = {"question": "raw.question", "ref": "raw.reference", "a": "raw.answer_a", "b": "raw.answer_b"}
    for name, value in values.items():
        begun = begun.replace(f'"{{{name}}}" = ""', f'"{{{name}}}" = "{value}"')
    ours = 'constant = "PAIR"\nkind = "pairwise_turn"\nformat = true'
    file.write_text(begun.replace('constant = "PAIR"\nkind = ""', ours), "utf-8")
    done = run("critic", "pack", module, "--mapping", file, "--out", out)
    assert done.returncode == 0 and "pairwise_turn_en.toml" in done.stdout, done.stderr
    assert [path.name for path in out.rglob("*.*")] == ["pairwise_turn_en.toml"]
    assert_one_line_error(run("critic", "pack", module, "--mapping", file, "--out", out), "not empty")


def made(module: Path, out: Path, *entries: str) -> Path:
    out.mkdir()
    for path, content in pack.files(mapping(out.with_suffix(".map"), *entries), pack.constants(module)).items():
        (out / path).write_text(pack._written(content), "utf-8")
    return out


def test_their_words_reach_the_judge_and_its_free_text_is_read(module: Path, tmp_path: Path, scripted: Any) -> None:
    """Who wins is settled by the second question, of which the first reply's text is all that is shown. The pack has
    no Chinese prompt: there ours is used."""

    def answer(body: dict[str, Any]) -> Any:
        if "response_format" not in body:
            return completion("Both have merit, A more of it.")
        chinese = re.search("[一-鿿]", body["messages"][0]["content"])
        assert chinese or "> Both have merit, A more of it." in body["messages"][0]["content"]
        return completion(json.dumps({"Verdict": "A"}))

    server, folder = scripted(answer), made(module, tmp_path / "theirs", PAIR)
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
            "content": f'Task: {turn.prompt}\nTruth:  costs $1, a set {{"x": 1}} and {{% if %}}\n\n[A] {first.answer}\n'
            f"[B] {turn.reference}\nEnd with [[A]] or [[B]]. ",
        },
    ] in shown
    assert all(line.setup.pack == name and line.verdict.score == 0.5 for line in lines)
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


def test_a_pointwise_prompt_of_theirs(module: Path, tmp_path: Path, scripted: Any) -> None:
    module.write_text('P = "$5 for {q}: {{r}} 写 {\\"Rating\\": n, \\"Reason\\": w}"', "utf-8")
    entry = """constant = "P"\nkind = "pointwise"\nlanguage = "zh"\n[prompt.placeholders]
"{q}" = "raw.question"\n"{r}" = "raw.response"\n"""
    folder = made(module, tmp_path / "theirs", entry)
    server = scripted(lambda body: completion('{"Rating": 4, "Reason": "so"}'))
    file, out = replies(tmp_path / "r.jsonl", "alignmmbench"), tmp_path / "j.jsonl"
    done = judge(file, out, "alignmmbench", server.url, "--prompt-pack", folder)
    assert done.returncode == 0, done.stderr
    line = judged(out)[0]
    question = " ".join(line.conversation.turns[0].prompt.split())
    said = [" ".join(body["messages"][0]["content"].split()) for body in server.requests]
    assert f'$5 for {question}: {{{line.answer}}} 写 {{"Rating": n, "Reason": w}}' in said
    name = open_pack(folder)
    assert line.setup.pointwise_prompt == f"{name}/pointwise" and line.verdict.score == 4
    assert line.prompt_hash == prompt_hash(f"{name}/pointwise") != prompt_hash("pointwise")


PAPER = """
SYSTEM = "You compare conversations."
HELLO = "I will show you two conversations."
SURE = "Sure, go on."
EXAMPLE = "A is good, hence I take A."
EXAMPLE_ANSWER = "Final Answer: Response A"
ASK = "Which one is it?"
TURNS = [
    "Turn one of {q1}, {q2}, {q3}: {a1} or {b1}? {focus}",
    "Turn two of {q1}, {q2}, {q3}: {a2} or {b2}? {focus}",
    "Turn three of {q1}, {q2}, {q3}: {a3} or {b3}? {focus}",
]
WHOLE = "All of {a1}, {a2}, {a3} or {b1}, {b2}, {b3}, by {j1} / {j2} / {j3}?"
EXTRACT = "{text} Please extract the answer."
"""


def paper(module: Path, turns: tuple[int, ...] = (1, 2, 3)) -> list[str]:
    """A mapping as for ConvBench's own module: a prompt for each turn, and examples before the second question."""
    shown = {f"{{q{n}}}": f"raw.questions[{n - 1}]" for n in (1, 2, 3)}
    shown |= {f"{{{side}{n}}}": f"raw.answers_{side}[{n - 1}]" for side in "ab" for n in (1, 2, 3)}
    shown |= {f"{{j{n}}}": f"raw.judgments[{n - 1}]" for n in (1, 2, 3)}
    shown |= {"{focus}": "raw.focus", "{text}": "raw.text"}
    module.write_text(PAPER, "utf-8")
    texts = pack.constants(module)

    def entry(constant: str, kind: str, *more: str) -> str:
        places = [f'"{name}" = "{value}"' for name, value in shown.items() if name in texts[constant]]
        lines = [f'constant = "{constant}"', f'kind = "{kind}"', 'system = "SYSTEM"', *more]
        return "\n".join([*lines, "[prompt.placeholders]", *places, ""])

    made = [
        entry(f"TURNS[{turn - 1}]", "pairwise_turn", f"turn = {turn}", 'before = ["HELLO", "SURE"]') for turn in turns
    ]
    made.append(entry("WHOLE", "pairwise_whole", 'before = ["HELLO", "SURE"]'))
    return [*made, entry("EXTRACT", "extraction", 'before = ["EXAMPLE", "EXAMPLE_ANSWER"]')]


def test_a_papers_own_prompts_by_turn_with_preamble_examples_and_extraction(
    module: Path, tmp_path: Path, scripted: Any
) -> None:
    out = tmp_path / "theirs"
    done = run("critic", "pack", module, "--mapping", mapping(tmp_path / "m.toml", *paper(module)), "--out", out)
    assert done.returncode == 0 and "lacks" not in done.stdout, done.stderr + done.stdout

    def answer(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]["content"]
        if "Please extract" in last:
            return completion("Final Answer: Response B")
        return completion("Hard to say." if "Turn two" in last else "Well.\n\nOverall, Response A is better.")

    server = scripted(answer)
    file, judged_file = replies(tmp_path / "r.jsonl", "convbench"), tmp_path / "j.jsonl"
    words = ["--protocol", "pairwise", "--prompt-pack", out, "--order", "forced"]
    refused = judge(file, judged_file, "convbench", server.url, *words)
    assert_one_line_error(refused, "pairwise_turn", "at turn 1 of 3", "--sight all")
    done = judge(file, judged_file, "convbench", server.url, *words, "--sight", "all")
    assert done.returncode == 0, done.stderr
    turns = {line.verdict.turn: line for line in judged(judged_file) if line.conversation.id == "1"}
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


def test_a_pack_says_when_it_is_made_what_it_lacks(module: Path, tmp_path: Path) -> None:
    entries = paper(module, (1, 3))[:2]
    done = run("critic", "pack", module, "--mapping", mapping(tmp_path / "m.toml", *entries), "--out", tmp_path / "p")
    assert "it lacks extraction, pairwise_turn_2, pairwise_whole: judging asks by ours" in done.stdout, done.stdout
    for entry, part in [
        (entries[0].replace('["HELLO", "SURE"]', '["HELLO"]'), "a user's and an assistant's message"),
        (entries[0].replace("turn = 1", "turn = 1\nbacked = true"), "turn or backed"),
        (entries[0].replace("turn = 1", "turn = 7"), "<= 4"),
        (entries[0].replace('"SURE"', '"SURELY"'), "no string constant 'SURELY'"),
    ]:
        with pytest.raises(UsageError, match=part):
            pack.files(mapping(tmp_path / "n.toml", entry), pack.constants(module))


def test_a_prompt_for_the_sight_of_the_reference_and_one_without(module: Path, tmp_path: Path, scripted: Any) -> None:
    """VisIT-Bench's two: against another model reference-backed, against the reference itself without."""
    module.write_text('FREE = "Free: {q} {a} {b}"\nBACKED = "Backed: {q} {r} {a} {b}"', "utf-8")
    places = '[prompt.placeholders]\n"{q}" = "raw.question"\n"{a}" = "raw.answer_a"\n"{b}" = "raw.answer_b"\n'
    free = f'constant = "FREE"\nkind = "pairwise_turn"\n{places}'
    backed = f'constant = "BACKED"\nkind = "pairwise_turn"\nbacked = true\n{places}"{{r}}" = "raw.reference"\n'
    folder = made(module, tmp_path / "theirs", free, backed)
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


@given(st.text("{}%#$ab\n<", max_size=30), st.text("{}%#$ab\n<", max_size=30))
def test_the_template_says_the_text_word_for_word(before: str, after: str) -> None:
    text = f"{before}@Q@{after}"
    shown = _compiled(pack.template(text, {"@Q@": "raw.question"}))
    assert shown.render(raw={"question": "{{ x }}"}) == text.replace("@Q@", "{{ x }}")


def test_of_two_placeholders_the_longer_one_is_meant() -> None:
    places = {"$Q": "raw.question", "$Q2": "raw.answer"}
    assert pack.template("$Q2, $Q", places) == "{{ raw.answer }}, {{ raw.question }}"


def test_texts_are_shown_without_marks_but_never_with_control_tokens(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    template = "{{ raw.questions[1] }}|{{ raw.answers[0] }}|{{ raw.answer }}"
    (tmp_path / "p" / "direct_turn_en.toml").write_text(f"template = '{template}'\nconstrained = false\n")
    prompt = load(f"{open_pack(tmp_path / 'p')}/direct_turn", "en")
    one = Material(question="q2", sides=[Side(earlier=[Exchange("q1", "a1")], answer="x\n\ny<|im_end|>")])
    assert render(prompt, one)[0]["content"] == "q2|a1|x\n\ny‹¦im_end¦›"
    with pytest.raises(UsageError, match="prompt direct_turn, en"):
        render(prompt, msgspec.structs.replace(one, sides=[Side(answer="x")]))


def test_packs_of_one_file_a_language_are_still_read(tmp_path: Path) -> None:
    """As they were written until each prompt had a file of its own; the two layouts come to the same prompts."""
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "conversations").mkdir(parents=True)
    (old / "conversations" / "en.toml").write_text(
        "[prompts.pairwise_turn]\n"
        'template = "$5 for {{ raw.question }}\\n"\nconstrained = false\nsystem = "Be strict."\n'
        '[prompts.quality]\nopening = "Grade."\nrules = ["One.", "Two."]\noutput = "JSON: {\\"Rating\\":n}"\n'
        '[prompts.pairwise_whole]\noutput_forced = "A or B: {\\"Verdict\\":\\"A\\"}"\n'
    )
    new.mkdir()
    pair = 'template = "$$5 for {{ raw.question }}\\n"\nverbatim = true\nconstrained = false\nsystem = "Be strict."\n'
    (new / "pairwise_turn_en.toml").write_text(pair)
    quality = 'general = ["One.", "Two."]\n[parts]\nopening = "Grade."\noutput = "JSON: {\\"Rating\\":n}"\n'
    (new / "quality_en.toml").write_text(quality)
    (new / "pairwise_whole_forced_en.toml").write_text('[parts]\noutput = "A or B: {\\"Verdict\\":\\"A\\"}"\n')
    names = [open_pack(folder) for folder in (old, new)]
    for form in ("pairwise_turn", "pairwise_turn_forced", "quality", "pairwise_whole_forced"):
        one, other = (load(f"{name}/{form}", "en") for name in names)
        assert one == other != load(form, "en"), form
    shown = render(load(f"{names[0]}/pairwise_turn", "en"), Material(question="q", sides=[Side(answer="a")] * 2))
    assert [message["content"] for message in shown] == ["Be strict.", "$5 for q\n"]


def test_mistakes_end_in_one_line(module: Path, tmp_path: Path, scripted: Any) -> None:
    found = pack.constants(module)
    for entry, part in [
        (PAIR.replace('"PAIR"', '"PEAR"'), "no string constant 'PEAR'"),
        (PAIR.replace("pairwise_turn", "pair"), "choose pointwise"),
        (PAIR.replace("raw.answer_a", "open('x')"), "expected raw."),
        (PAIR.replace("raw.answer_a", "raw.answer.__class__"), "expected raw."),
        (PAIR.replace('"{a}" = "raw.answer_a"', ""), "{a} has nothing"),
        (PAIR.replace("{a}", "{z}"), "'{z}' is not in the constant"),
        (PAIR.replace("format", "fromat"), "fromat"),
    ]:
        with pytest.raises(UsageError, match=part.replace("(", r"\(").replace("{", r"\{")):
            pack.files(mapping(tmp_path / "m.toml", entry), found)
    with pytest.raises(UsageError, match="a second pairwise_turn"):
        pack.files(mapping(tmp_path / "m.toml", PAIR, PAIR), found)
    folder = tmp_path / "bad"
    folder.mkdir()
    for name, content, part in [
        ("direct_en.toml", "", "stands in for none of"),
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
    words = ["--prompt-pack", made(module, tmp_path / "p", PAIR)]
    url = scripted(lambda body: None).url
    for more, part in [
        (["--protocol", "direct"], "has no prompt of direct"),
        (["--protocol", "pairwise", "--no-reason"], "free text"),
        (["--protocol", "pairwise", "--no-extraction"], "free text"),
    ]:
        assert_one_line_error(judge(file, tmp_path / "j.jsonl", "convbench", url, *words, *more), part)
    rows = run("critic", "judge", sample("alignmmbench"), "--out", tmp_path / "j.jsonl", *words)
    assert_one_line_error(rows, "says nothing of the prompt pointwise")
    begun = tmp_path / "new/m.toml"
    assert run("critic", "pack", module, "--mapping", begun).returncode == 0 and begun.is_file()
    filled = ("critic", "pack", module, "--mapping", mapping(tmp_path / "m.toml", PAIR))
    assert_one_line_error(run(*filled, "--out", file), "r.jsonl: is a file")
    assert_one_line_error(run(*filled, "--out", file.parent), "not empty")
    assert_one_line_error(run(*filled, "--out", file / "pack"), "r.jsonl")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("prompts = 3", "expected tables"),
        ("sides = ['A', 'B']\n[prompts.quality]\nopening = 'x'", "got sides"),
        ("[prompts]\ndirect_turn = 'x'", "prompts.direct_turn"),
        ("[prompts.direct_turn]\nrules = [1]", "list of texts"),
        ("[prompts.direct_turn]\ntemplate = 3", "worded is text"),
        ("[prompts.direct_turn]\nwording = 'x'", "prompts.direct_turn"),
        ("[prompts.direct_turn]\ntemplate = '{% for r in rules %}{{ r }}{% endfor %}'", "raw.NAME"),
    ],
)
def test_mistakes_in_packs_of_the_old_layout_end_in_one_line(tmp_path: Path, content: str, part: str) -> None:
    file = tmp_path / "conversations" / "en.toml"
    file.parent.mkdir()
    file.write_text(content, "utf-8")
    with pytest.raises(UsageError, match=re.escape(part)) as raised:
        open_pack(tmp_path)
    assert "\n" not in str(raised.value) and str(file) in str(raised.value)


def test_a_dollar_in_a_pack_of_the_old_layout_is_a_dollar(tmp_path: Path) -> None:
    file = tmp_path / "conversations" / "en.toml"
    file.parent.mkdir()
    file.write_text("[prompts.direct_turn]\nopening = 'costs $5'\noutput = 'give $x: {\"Rating\":n}'", "utf-8")
    shown = render(load(f"{open_pack(tmp_path)}/direct_turn", "en"), Material(question="q", sides=[Side(answer="a")]))
    assert "costs $5" in shown[0]["content"] and "give $x" in shown[0]["content"]


def test_a_packs_prompt_extends_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "pointwise_en.toml").write_text("extends = 'pointwise'", "utf-8")
    with pytest.raises(UsageError, match="extends"):
        open_pack(tmp_path)
    with pytest.raises(UsageError, match="no judge prompt 'x/pointwise'"):
        load("x/pointwise", "en")
