"""critic pack on clones laid out as the papers' own are, with words of ours, and judging by what comes of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Done, Servers, assert_one_line_error, completion, run
from stages.test_judge_conversations import judge, judged, replies

Entry = dict[str, Any]
"""A table of the mapping."""

TALK = "[{side} begins]\\n### First question:\\n{{}}\\n### {side} says:\\n{{}}\\n"
TALK += "### Second:\\n{{}}\\n### {side}:\\n{{}}\\n### Third:\\n{{}}\\n### {side}:\\n{{}}\\n[{side} ends]\\n"
BOTH = f"OK. Here it all is.\\nThe picture: {{}}\\n{TALK.format(side='A')}{TALK.format(side='B')}"
END = 'Compare the {} answers and close with \\"Overall, Response X is better.\\"'
ARGUMENTS = "picture, q1, a1, q2, a2, q3, a3, q1, b1, q2, b2, q3, b3"

SECTIONS = {
    "overall_conversation": (f"{BOTH}First turn: {{}}.\\nSecond turn: {{}}.\\nThird turn: {{}}.\\n{END}", ", p, r, c"),
    "third_turn": (f"{BOTH}What matters here: {{}}.\\n{END}", ", demands"),
    "first_turn": (BOTH + END, ""),
    "second_turn": (BOTH + END, ""),
}
"""As ConvBench's script has them: one branch each, all under one name, filled in by their places."""

EXTRACTION = "\\nNow name the answer of the text above."


def convbench(folder: Path) -> Path:
    """prompts.py beside ConvBenchEval/, whose three scripts are alike but for a few lines."""
    lines = ["### Extraction", "_SYSTEM_EXTRACT = '''You find answers.'''", "_ICL_EXTRACT = ["]
    lines += [
        "    ('''First A, then\nagain B wins.''', 'Final Answer: Response B'),",
        "    ('A it is.', 'Final Answer: A')]",
    ]
    for name in SECTIONS:
        lines += [f"_SYSTEM_PAIR_{name} = '''You judge the {name}.\n- Be fair.'''"]
        lines += [f"_USER_PAIR_{name} = '''I will show you the {name}.'''", f"_ASSISTANT_PAIR_{name} = '''Sure.'''"]
    folder.mkdir()
    (folder / "prompts.py").write_text("\n".join(lines), "utf-8")
    (folder / "ConvBenchEval").mkdir()
    for script in ("convbencheval", "convbencheval_with_perfect_perception", "score"):
        branches = "".join(
            f"    {'if' if number == 0 else 'elif'} turn == '_{name}':\n"
            f"        system_p = prompts._SYSTEM_PAIR_{name}\n"
            f'        user_content = ("{text}".format({ARGUMENTS}{more}, turn_string))\n'
            for number, (name, (text, more)) in enumerate(SECTIONS.items())
        )
        (folder / "ConvBenchEval" / f"{script}.py").write_text(
            "import openai, prompts\nos.environ['KEY'] = 'x'\n"
            f"def generate_request(turn, {ARGUMENTS.replace(' q1, b1, q2, b2, q3, b3', ' b1, b2, b3')}, **more):\n"
            f"{branches}"
            "    return [{'role': 'system', 'content': system_p}, {'role': 'user', 'content': user_content}]\n\n"
            "def generate_parsing_answer_request(query):\n"
            "    messages = [{'role': 'system', 'content': prompts._SYSTEM_EXTRACT}]\n"
            "    for ex, res in prompts._ICL_EXTRACT:\n"
            f"        messages.append({{'role': 'user', 'content': ex + '{EXTRACTION}'}})\n"
            "        messages.append({'role': 'assistant', 'content': res})\n"
            f"    messages.append({{'role': 'user', 'content': query + '{EXTRACTION}'}})\n"
            "    return messages\n",
            "utf-8",
        )
    return folder


def mapped(file: Path, entries: list[Entry]) -> Path:
    """The mapping that the user fills in."""
    lines = []
    for entry in entries:
        shown = {key: value for key, value in entry.items() if key != "placeholders"}
        lines += ["[[prompt]]", *(f"{key} = {json.dumps(value)}" for key, value in shown.items())]
        lines += [
            "[prompt.placeholders]",
            *(f'"{{{key}}}" = "{value}"' for key, value in entry["placeholders"].items()),
        ]
    file.write_text("\n".join(lines), "utf-8")
    return file


def conversations() -> list[Entry]:
    """What a user says of ConvBench's clone: the four sections, and the second question with its examples."""
    shown = {f"{side}{n}": f"raw.answers_{side}[{n - 1}]" for side in "ab" for n in (1, 2, 3)}
    shown |= {f"q{n}": f"raw.questions[{n - 1}]" for n in (1, 2, 3)} | {"picture": "raw.caption"}
    entries = []
    for number, name in enumerate(SECTIONS, 1):
        more = {"turn_string": f"'{name.replace('_', ' ')}'"}
        more |= {"demands": "raw.focus"} if name == "third_turn" else {}
        more |= {letter: f"raw.judgments[{n}]" for n, letter in enumerate("prc")} if number == 1 else {}
        kind = (
            {"kind": "pairwise_whole"} if number == 1 else {"kind": "pairwise_turn", "turn": (0, 3, 1, 2)[number - 1]}
        )
        entries.append(
            {"constant": f"generate_request.user_content#{number}", **kind, "system": f"_SYSTEM_PAIR_{name}",
             "before": [f"_USER_PAIR_{name}", f"_ASSISTANT_PAIR_{name}"], "placeholders": shown | more}
        )  # fmt: skip
    asked, content = "_ICL_EXTRACT", "generate_parsing_answer_request.content"
    examples = [f"{asked}[0][0] in {content}#1", f"{asked}[0][1]", f"{asked}[1][0] in {content}#1", f"{asked}[1][1]"]
    return [*entries, {"constant": f"{content}#2", "kind": "extraction", "system": "_SYSTEM_EXTRACT",
                       "before": examples, "placeholders": {"query": "raw.text"}}]  # fmt: skip


def made(clone: Path, entries: list[Entry]) -> tuple[Path, Done]:
    out = clone.with_name("theirs")
    done = run("critic", "pack", clone, "--mapping", mapped(clone.with_suffix(".toml"), entries), "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done


def scored(folder: Path, file: Path) -> tuple[str, str]:
    """What is printed, and the page."""
    done = run("critic", "score", file, "--out", folder / "page")
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "page/report.html").read_text("utf-8")


def test_convbenchs_clone_from_its_files_to_the_page(tmp_path: Path, scripted: Servers) -> None:
    """Its three turn prompts in sight of all turns, the whole with the turns' judgments, preambles, examples and the
    second question, as its own script would send them."""
    clone = convbench(tmp_path / "ConvBench")
    begun = run("critic", "pack", clone, "--mapping", tmp_path / "map.toml")
    assert begun.returncode == 0, begun.stderr
    text = (tmp_path / "map.toml").read_text("utf-8")
    assert '"generate_request.user_content#4"' in text and '"{turn_string}" = ""' in text
    assert '"_ICL_EXTRACT[1][0]"' in text and '"score:generate_request.user_content#1"' in text
    pack, done = made(clone, conversations())
    assert "lacks" not in done.stdout, done.stdout

    def answer(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]["content"]
        if "Now name the answer" in last:
            return completion("Final Answer: Response B")
        return completion("Hard." if "the second turn answers" in last else "Well.\n\nOverall, Response A is better.")

    server, file, out = scripted(answer), replies(tmp_path / "r.jsonl", "convbench"), tmp_path / "j.jsonl"
    words = ["--protocol", "pairwise", "--prompt-pack", pack, "--order", "forced", "--sight", "all"]
    done = judge(file, out, "convbench", server.url, *words)
    assert done.returncode == 0, done.stderr
    lines = {line.verdict.turn: line for line in judged(out) if line.conversation.id == "1"}
    assert {turn: line.calls[-1].value for turn, line in lines.items()} == {1: "A", 2: "B", 3: "A", None: "A"}
    sent = [body["messages"] for body in server.requests if "You judge the" in body["messages"][0]["content"]]
    first = next(one for one in sent if "the first turn answers" in one[-1]["content"] and "m on 1" in str(one))
    assert [one["content"] for one in first[:3]] == [
        "You judge the first_turn.\n- Be fair.", "I will show you the first_turn.", "Sure.",
    ]  # fmt: skip
    turns, asked = lines[1].conversation.turns, first[-1]["content"]
    begins = {"A": asked.index("[A begins]"), "B": asked.index("[B begins]")}
    assert all(asked.count(turn.prompt) == 2 and turn.reference in asked for turn in turns if turn.reference)
    assert begins["A"] < asked.index("### Third:") < begins["B"] and asked.count("m on 1 turn") == 3
    third = next(one[-1]["content"] for one in sent if "the third turn answers" in one[-1]["content"])
    assert "What matters here: " in third and "What matters here: ." not in third
    whole = next(one[-1]["content"] for one in sent if "the overall conversation answers" in one[-1]["content"])
    assert "First turn: Well.\n\nOverall, Response A is better..\nSecond turn: Hard..\nThird turn: Well." in whole
    second = next(body["messages"] for body in server.requests if "Now name" in body["messages"][-1]["content"])
    suffix = EXTRACTION.replace("\\n", "\n")
    assert [one["content"] for one in second] == [
        "You find answers.", f"First A, then\nagain B wins.{suffix}", "Final Answer: Response B",
        f"A it is.{suffix}", "Final Answer: A", f"Hard.{suffix}",
    ]  # fmt: skip
    printed, page = scored(tmp_path, out)
    assert re.search(r"S2 .* 6 +0", printed) and "table 1 of the paper" in page and not re.search("S1 +–", printed)


@pytest.mark.parametrize("left", range(5))
def test_a_piece_that_is_missing_is_named_when_the_pack_is_made(tmp_path: Path, left: int) -> None:
    entries = conversations()
    gone = entries.pop(left)
    pack, done = made(convbench(tmp_path / "ConvBench"), entries)
    name = gone["kind"] + (f"_{gone['turn']}" if "turn" in gone else "")
    assert f"it lacks {name}: judging asks by ours" in done.stdout, done.stdout
    assert not list(pack.glob(f"{name}_en.toml"))


def test_multiverses_two_questions(tmp_path: Path, scripted: Servers) -> None:
    """Checklist and quality, each an f-string within its function; the page has the scores of both."""
    folder = tmp_path / "multiverse"
    folder.mkdir()
    (folder / "evaluate.py").write_text(
        "def checklist_prompt(history, item):\n"
        '    return [{"role": "user", "content": f"Talk:\\n{history}\\n{item.reply}\\nTick: {item.questions}"}]\n'
        "def quality_prompt(history, item):\n    ask = f'Of 10: {item.reply} after {history}; best: {item.gold}'\n"
        "    return ask + '\\nRating: [[X]]'\n",
        "utf-8",
    )
    shown = {"history": "raw.history", "item.reply": "raw.answer"}
    entries: list[Entry] = [
        {"constant": "checklist_prompt.content", "kind": "checklist",
         "placeholders": shown | {"item.questions": "raw.checklist"}},
        {"constant": "quality_prompt.ask", "kind": "quality", "placeholders": shown | {"item.gold": "raw.reference"}},
    ]  # fmt: skip
    _, done = made(folder, entries[:1])
    assert "it lacks extraction_checklist, quality: judging asks by ours" in done.stdout
    for file in folder.with_name("theirs").iterdir():
        file.unlink()
    pack, done = made(folder, [one | {"constrained": True} for one in entries])
    assert "lacks" not in done.stdout
    for file in pack.iterdir():
        file.unlink()
    pack, done = made(folder, entries)
    assert "it lacks extraction_checklist, extraction_rating: judging asks by ours" in done.stdout

    def answer(body: dict[str, Any]) -> Any:
        said = body["messages"][-1]["content"]
        if "response_format" in body:  # our second question, of what was said to the checklist
            names = body["response_format"]["json_schema"]["schema"]["properties"]
            return completion(json.dumps({name: 7 if name == "Rating" else "yes" for name in names}))
        return completion("All of it is there." if "Tick:" in said else "Good.\nRating: [[7]]")

    server, file, out = scripted(answer), replies(tmp_path / "r.jsonl", "multiverse"), tmp_path / "j.jsonl"
    done = judge(file, out, "multiverse", server.url, "--prompt-pack", pack)
    assert done.returncode == 0, done.stderr
    english = [line.verdict for line in judged(out) if line.conversation.lang == "en"]
    assert {(one.protocol, one.score) for one in english} == {("checklist", 1.0), ("quality", 7.0)}
    printed, page = scored(tmp_path, out)
    assert "Score by turn" in page and "turn 4" in printed


def test_visitbenchs_two_comparisons(tmp_path: Path, scripted: Servers) -> None:
    """With and without the reference, each with its own preamble; between models the one in sight of the reference."""
    folder = tmp_path / "visit"
    folder.mkdir()
    for name, more in (("PAIR", ""), ("PAIR_REF", "Good: {}\\n")):
        with (folder / "prompts.py").open("a", encoding="utf-8") as file:
            file.write(f"_S_{name} = 'You judge {name}.'\n_U_{name} = 'I ask {name}.'\n_A_{name} = 'Sure.'\n")
        with (folder / f"run_{name.lower()}.py").open("w", encoding="utf-8") as file:
            last = ", ref" if more else ""
            file.write(
                f"def ask(image, task, a, b{last}):\n    text = 'Image: {{}}\\n{{}}\\nA: {{}}\\nB: {{}}\\n{more}'"
            )
            file.write(f".format(image, task, a, b{last})\n    return text\n")
    shown = {"image": "raw.caption", "task": "raw.question", "a": "raw.answer_a", "b": "raw.answer_b"}
    entries: list[Entry] = [
        {"constant": constant, "kind": "pairwise_turn", "system": f"_S_{name}", "before": [f"_U_{name}", f"_A_{name}"],
         "placeholders": shown | more, "backed": bool(more)}
        for constant, name, more in (
            ("ask.text", "PAIR", {}), ("run_pair_ref:ask.text", "PAIR_REF", {"ref": "raw.reference"}),
        )
    ]  # fmt: skip
    pack, done = made(folder, entries)
    assert "it lacks extraction" in done.stdout
    server = scripted(lambda body: completion("Overall, Response B is better."))
    mine, theirs = (replies(tmp_path / f"{name}.jsonl", "visitbench", system=name) for name in "mn")
    for words, name in (([], "PAIR"), (["--against", theirs], "PAIR_REF")):
        server.requests.clear()
        out = tmp_path / f"{name}.jsonl"
        assert judge(mine, out, "visitbench", server.url, "--prompt-pack", pack, *words).returncode == 0
        said = [body["messages"] for body in server.requests if body["messages"][0]["role"] == "system"]
        assert said and {(one[0]["content"], one[1]["content"], "Good: " in one[3]["content"]) for one in said} == {
            (f"You judge {name}.", f"I ask {name}.", bool(words))
        }
        printed, _ = scored(tmp_path, out)
        assert "m against n" in printed if words else "Win rate" in printed


def test_mistakes_in_a_mapping_of_a_clone_end_in_one_line(tmp_path: Path) -> None:
    clone, file = convbench(tmp_path / "ConvBench"), tmp_path / "m.toml"
    wrong: list[tuple[str, Any, str]] = [
        ("before", ["_ICL_EXTRACT[0][0] in _SYSTEM_EXTRACT", "_ICL_EXTRACT[0][1]"], "has 0 placeholders; expected one"),
        ("before", ["_ICL_EXTRACT[0][0] in nothing", "_ICL_EXTRACT[0][1]"], "no string constant 'nothing'"),
        ("placeholders", {"query": "'so {% it %}'"}, "expected raw. and one of"),
    ]
    for key, value, said in wrong:
        entries = [*conversations()[:4], conversations()[4] | {key: value}]
        done = run("critic", "pack", clone, "--mapping", mapped(file, entries), "--out", tmp_path / "out")
        assert_one_line_error(done, said)
    (clone / "old.py").write_text("print 'no Python 3'")
    assert_one_line_error(run("critic", "pack", clone, "--mapping", tmp_path / "n.toml"), "old.py", "read as Python")
