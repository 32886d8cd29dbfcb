"""critic judge --prompt-pack: what reaches the judge of the prompts in somebody else's clone."""

from pathlib import Path
from typing import Any

from conftest import assert_one_line_error, completion, run
from stages.test_judge_conversations import judge, judged, replies

TURN = """
system = "You compare two conversations."
before = ["Here they come.", "Sure."]
template = '''Turn one: {{ question.1 }} $1 {x}
[A] {{response}}
[B] {{ other }}
> end with [[A]] or [[B]]. '''
"""
WHOLE = """template = "All of {{ question.3 }}: {1} {{ response.2 }} or {{ history_other }}? {{ verdict.1 }}" """


def write_pack(folder: Path, **files: str) -> Path:
    (folder / "theirs").mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        (folder / f"theirs/{name}.toml").write_text(text, "utf-8")
    return folder / "theirs"


def test_the_words_of_a_clone_reach_the_judge(tmp_path: Path, scripted: Any, monkeypatch: Any) -> None:
    """Row 24: a paper's own prompts, word for word, with its system message and the dialogue before."""
    monkeypatch.chdir(tmp_path)
    pack = write_pack(tmp_path, pairwise_turn=TURN, pairwise_whole=WHOLE)
    server = scripted(lambda body: completion("Well.\n\nThe verdict is [[A]]."))
    file, out = replies(tmp_path / "r.jsonl", "convbench"), tmp_path / "j.jsonl"
    words = ["--protocol", "pairwise", "--order", "forced", "--prompt-pack", pack]
    done = judge(file, out, "convbench", server.url, *words, code=0)
    assert "pairwise_turn, pairwise_whole" in done.stderr
    lines = [line for line in judged(out) if line.conversation.id == "1"]
    assert {line.score for line in lines} <= {0.0, 1.0} and all(line.setup.pack[:7] == "theirs@" for line in lines)
    (first,) = (line for line in lines if line.turn == 1)
    (whole,) = (line for line in lines if line.turn is None)
    turns, talk = first.conversation.turns, [body["messages"] for body in server.requests]
    a, b = (turns[0].reference, first.sample.answer)[:: 1 if first.calls[0].first == "opponent" else -1]
    user = f"Turn one: {turns[0].prompt} $1 {{x}}\n[A] {a}\n[B] {b}\n> end with [[A]] or [[B]]. "
    texts = ["You compare two conversations.", "Here they come.", "Sure.", user]
    roles = ("system", "user", "assistant", "user")
    assert [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)] in talk
    assert all("response_format" not in body and body["max_tokens"] == 1024 for body in server.requests)
    said = [messages[0]["content"] for messages in talk if len(messages) == 1]
    reply = turns[1].reference if whole.calls[0].first == "opponent" else "m on 1 turn 2."
    assert any(text.startswith(f"All of {turns[2].prompt}: {{1}} {reply} or ") for text in said)
    assert any(text.endswith("? Well.\n\nThe verdict is [[A]].") for text in said)
    asked = len(server.requests)
    judge(file, out, "convbench", server.url, *words, code=0)
    assert len(server.requests) == asked
    assert f"by the prompts of {first.setup.pack}" in run("critic", "score", out, code=0).stdout
    write_pack(tmp_path, pairwise_turn=TURN.replace("two", "2"))
    assert_one_line_error(judge(file, out, "convbench", server.url, *words), "made with pack 'theirs@", "now 'theirs@")


def test_a_pack_that_lacks_a_part_is_refused(tmp_path: Path, scripted: Any) -> None:
    server, file = scripted(lambda body: completion("[[A]]")), replies(tmp_path / "r.jsonl", "convbench")
    cases: list[tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]] = [
        ({}, (), ("theirs: no folder with .toml files",)),
        ({"pairwise_turn": TURN.replace("template", "text")}, (), ("pairwise_turn.toml", "`text`")),
        ({"pairwise_turn": "system = 'x'"}, (), ("pairwise_turn.toml", "`template`")),
        ({"pairwise_turn": "system = "}, (), ("pairwise_turn.toml", "Invalid value")),
        ({"pairwise_turn": TURN}, (), ("has no pairwise_whole.toml, which is needed here",)),
        ({"pairwise_en_2": TURN}, (), ("pairwise_en_2.toml: name it FORM.toml",)),
        ({"pairwise_turn": TURN.replace("other", "focus")}, (), ("the template shows no {{ other }}",)),
        ({"pairwise_turn": TURN.replace("other", "others")}, (), ("{{ others }} is no part; expected question",)),
        ({"pairwise_turn": TURN.replace("{{ other }}", "{{ other }}{{ other | trim }}")}, (), ("around no part",)),
        ({"pairwise_turn": TURN.replace("question.1", "verdicts"), "pairwise_whole": WHOLE}, (), ("and no verdicts",)),
        ({"pairwise_turn": TURN.replace('"Here they come.", ', "")}, (), ("in turn",)),
        ({"pairwise_turn": TURN.replace("question.1", "question.2"), "pairwise_whole": WHOLE}, (),
         ("shows question.2 for pairwise_turn of turn 1, where 1 turns are seen", "--turn-context all")),
        ({"pairwise_turn": TURN, "pairwise_whole": WHOLE}, ("--no-reason",), ("--no-reason leaves out",)),
    ]  # fmt: skip
    for number, (files, words, parts) in enumerate(cases):
        pack = ("--protocol", "pairwise", "--prompt-pack", write_pack(tmp_path / str(number), **files))
        done = judge(file, tmp_path / "j.jsonl", "convbench", server.url, *pack, *words)
        assert_one_line_error(done, *parts)
    assert not [body for body in server.requests if "messages" in body]


def test_a_prompt_for_one_turn_and_one_language(tmp_path: Path, scripted: Any) -> None:
    """What a reply says is shown as it is, but for control tokens."""
    grade = 'template = "%s {{ response }}. {{ %s }}"'
    files = {"direct_turn": grade % ("Grade", "reference"), "direct_turn_2": grade % ("Turn two:", "reference.2")}
    files |= {"direct_whole": grade % ("All:", "verdict.2"), "direct_turn_3_zh": grade % ("评", "focus")}
    server = scripted(lambda body: completion("It lacks much. Rating: [[4]]"))
    file, out = replies(tmp_path / "r.jsonl", "convbench"), tmp_path / "j.jsonl"
    file.write_text(file.read_text("utf-8").replace('"reply":"m on 1 turn 3."', '"reply":"> m\\n<|im_end|>"'), "utf-8")
    files["direct_whole"] = files["direct_whole"].replace("response", "response.3")
    words = ["--protocol", "direct", "--prompt-pack", write_pack(tmp_path, **files)]
    judge(file, out, "convbench", server.url, *words, code=0)
    lines = judged(out)
    assert {line.score for line in lines} == {4.0}
    said = {body["messages"][-1]["content"] for body in server.requests}
    first = next(line for line in lines if line.conversation.id == "1")
    references = [turn.reference for turn in first.conversation.turns]
    assert f"Grade > m\n‹¦im_end¦›. {references[2]}" in said and f"Turn two: m on 1 turn 2.. {references[1]}" in said
    assert "All: > m\n‹¦im_end¦›. It lacks much. Rating: [[4]]" in said
    assert any(text.startswith("评 m on") for text in said)
