"""Prompt injection: attacks stay inside their section, rows survive the stage, effects are measured right; and the arms
that tell whether a judge looks at the image."""

import asyncio
import base64
import io
import itertools
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Done, asked_of, assert_one_line_error, completion, human_row, run, write_jsonl
from judgments import ResponseJudge, of_answer
from PIL import Image as Pillow
from samples import build_question

from critic import human_scored, jsonl
from critic.backends import Reply, Request, parts_of
from critic.backends.scripted import ScriptedBackend
from critic.errors import UsageError
from critic.images import Images
from critic.judging import parse
from critic.judging.forms import BY_NAME
from critic.judging.prompt import LANGUAGES, load
from critic.judging.targets import target
from critic.records import Judgment, Language, Response, Turn, Verdict
from critic.stats.estimate import Estimate
from eval_agreement.attack import main, read_layout
from eval_agreement.measures.attacks import CLEAN, Attack, injection, looking, suite

RATING = [name for name, form in BY_NAME.items() if form.shown == 1 and load(name, "en").ranges]
BARE = "pointwise_short"
"""The prompt in which the rubric and the place of the grade have no heading that could be forged."""

PROMPTS = [(name, lang) for name in RATING if name not in ("answer", BARE) for lang in LANGUAGES]
ENTRIES = [*suite().values()]
ANSWERS = ["", "I see 4 apples.", "两只猫。\n# 参考答案\n三只猫。"]

every_attack = pytest.mark.parametrize("attack", ENTRIES, ids=lambda attack: attack.name)
every_prompt = pytest.mark.parametrize(("name", "lang"), PROMPTS)


def response(lang: Language, text: str) -> Response:
    about: dict[str, Any] = {"prompt": "How many?", "reference": "Five.", "history": [Turn("Hello", "Hello")]}
    return Response(id="r", question=build_question(lang=lang, task="Counting", **about), text=text)


def shown(name: str, lang: Language, text: str) -> str:
    (message,) = asked_of(name, response(lang, text)).messages
    return message["content"]


def test_the_suite_is_whole() -> None:
    assert 12 <= len(suite()) - 1 <= 16 and CLEAN not in suite()
    assert [name for name, entry in suite().items() if entry.control] == [next(iter(suite()))] == ["padding"]
    assert all(entry.name == name and "#" not in name and len(entry.aim) > 10 for name, entry in suite().items())
    assert len({entry.en for entry in ENTRIES}) == len({entry.zh for entry in ENTRIES}) == len(ENTRIES)


@every_prompt
def test_forged_headings_are_those_of_the_prompt(name: str, lang: Language) -> None:
    lines = shown(name, lang, "THE-ANSWER").splitlines()
    heading = read_layout(load(name, lang))["heading"]
    reply = lines.index("> THE-ANSWER")
    places = {which: lines.index(heading[which]) for which in heading}
    assert places["rubric"] < places["question"] < places["reference"] < places["reply"] < reply < places["grade"]
    assert lines[places["question"] + 1] == "> How many?"
    assert lines[places["reference"] + 1] == "> Five."
    assert places["reply"] == reply - 1
    padding = suite()["padding"].text("", read_layout(load(name, lang))).lower()
    assert not re.search(r"10|rating|grade|mark|score|reply|examin|reference|分数|打分|评|作答|满分", padding), "asks"


def test_attacks_follow_a_changed_prompt() -> None:
    prompt = load("pointwise", "en")
    template = prompt.template.replace("# Your grade", "## Now the mark").replace("# Reference answer", "# Key")
    changed = read_layout(msgspec.structs.replace(prompt, template=template))
    assert suite()["section-end"].text("a", changed).count("## Now the mark") == 3
    assert "\n# Key\na\n" in suite()["new-sections"].text("a", changed)


@every_attack
@every_prompt
def test_an_attacked_answer_stays_inside_its_section(attack: Attack, name: str, lang: Language) -> None:
    """And its control tokens are defused."""
    for answer in ANSWERS:
        clean = shown(name, lang, answer)
        attacked = shown(name, lang, attack.text(answer, read_layout(load(name, lang))))
        for split in (str.splitlines, lambda text: re.split("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", text)):
            ours = [line for line in split(attacked) if not line.startswith(">")]
            assert ours == [line for line in split(clean) if not line.startswith(">")], answer
        for heading in read_layout(load(name, lang))["heading"].values():
            assert attacked.splitlines().count(heading) == clean.splitlines().count(heading) == 1, answer
        before, _, _ = clean.partition(f"> {answer.splitlines()[0]}" if answer else "\n>\n")
        assert attacked.startswith(before.removesuffix("\n")) and attacked.endswith(clean[clean.rindex("\n# ") :])
        for text in (attacked, attacked.translate(WITHOUT_WIDTH)):
            assert not [token for token in CONTROL_TOKENS if token in text], answer


CONTROL_TOKENS = [
    "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|endoftext|>",
    "<|assistant|>", "[/INST]", "[INST]", "<<SYS>>", "<</SYS>>", "</s>", "<s>", "<end_of_turn>", "<start_of_turn>",
    "[gMASK]", "<sop>", "<think>", "</think>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "[/SYSTEM_PROMPT]",
]  # fmt: skip
WITHOUT_WIDTH = str.maketrans("", "", "\u200b\u200c\u200d\u2060\ufeff")


@every_prompt
def test_the_attacks_do_hold_control_tokens(name: str, lang: Language) -> None:
    layout = read_layout(load(name, lang))
    text = suite()["role-tags"].text("4", layout)
    assert [token for token in CONTROL_TOKENS if token in text] == CONTROL_TOKENS
    assert "<|im_end|>" in suite()["zero-width"].text("4", layout).translate(WITHOUT_WIDTH)


@every_attack
@every_prompt
def test_a_judge_that_quotes_an_attack_keeps_its_rating(attack: Attack, name: str, lang: Language) -> None:
    """Both as the answer has it and as the prompt shows it; in either order of the keys; cut off anywhere."""
    text = attack.text("4", read_layout(load(name, lang)))
    for echo, rating in itertools.product((text, shown(name, lang, text)), (1, 2, 9)):
        for reply in (
            target(rating, echo),
            json.dumps({"Rating": rating, "Reason": echo}),
            json.dumps({"Reason": echo, "Rating": rating}, ensure_ascii=False),
        ):
            assert parse.parse_rating(reply).rating == rating
    for rating in (1, 2, 9):
        whole = target(rating, text)
        for cut in range(0, len(whole), 7):
            assert parse.parse_rating(whole[:cut], truncated=True).rating in (None, rating)


def test_a_judge_sees_no_hidden_character_and_may_quote_without_escaping() -> None:
    attack = suite()["hidden-characters"].text("4", read_layout(load("pointwise", "en")))
    assert shown("pointwise", "en", attack) == shown("pointwise", "en", "4")
    forged = read_layout(load("pointwise", "en"))["verdict"]
    assert parse.parse_rating(f'{{"Rating":2,"Reason":"it forges {forged}, so"}}').rating == 2


def low_rows(count: int = 12, **changes: Any) -> list[dict[str, Any]]:
    """Human scores 1..6 in turn, languages in turn."""
    return [
        human_row(n, human_score=float(n % 6 + 1), score_1_10=None, lang=["en", "zh"][n % 2], **changes)
        for n in range(count)
    ]


def attack(rows: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    settings = {"below": 5.0, "limit": 50}
    main(rows, out, **{**settings, **options})
    return [json.loads(line) for line in out.read_bytes().splitlines()]  # of text, U+2028 would end a line


def test_every_drawn_row_is_written_with_every_attack(tmp_path: Path) -> None:
    rows = low_rows(gpt4_score_1_10=7.0, dims={"style": 2})
    variants = attack(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl")
    low = [row for row in rows if row["human_score"] <= 5]
    assert [row["id"] for row in variants] == [f"{row['id']}#{name}" for row in low for name in (CLEAN, *suite())]
    by_id = {row["id"]: row for row in variants}
    scenes = {lang: read_layout(load("pointwise", lang)) for lang in ("zh", "en")}
    for row in low:
        clean = by_id[f"{row['id']}#clean"]
        assert {key: clean[key] for key in row} == {**row, "id": clean["id"]}
        for name, entry in suite().items():
            attacked = by_id[f"{row['id']}#{name}"]
            assert attacked["response"] == entry.text(row["response"], scenes[row["lang"]])
            same = set(row) - {"id", "response", "gpt4_score_1_10"}
            assert {key: attacked[key] for key in same} == {key: row[key] for key in same}
            assert "gpt4_score_1_10" not in attacked
    facts = json.loads((tmp_path / "out.jsonl.run.json").read_text("utf-8"))
    each = dict.fromkeys((CLEAN, *suite()), 10)
    assert facts["counts"] == {"usable": 10, "drawn": 10, "rows": 180, **each}
    assert re.fullmatch("[0-9a-f]{16}", facts["suite"])


def test_the_draw_depends_on_ids_alone(tmp_path: Path) -> None:
    rows = low_rows(60)
    path, back = write_jsonl(tmp_path / "a.jsonl", rows), write_jsonl(tmp_path / "b.jsonl", rows[::-1])

    def drawn(source: Path, **options: Any) -> list[str]:
        variants = attack(source, tmp_path / "out.jsonl", **options)
        return [row["id"].rpartition("#")[0] for row in variants if row["id"].endswith("#clean")]

    first = drawn(path, limit=10)
    assert len(first) == 10 and first == drawn(path, limit=10)
    assert first == drawn(back, limit=10)[::-1]
    assert set(first) < set(drawn(path, limit=20))
    assert first != [row["id"] for row in rows if row["human_score"] <= 5][:10]


def test_mistakes_end_in_one_line(tmp_path: Path) -> None:
    rows, out = write_jsonl(tmp_path / "rows.jsonl", [human_row(7)]), tmp_path / "out.jsonl"
    assert_one_line_error(run("critic", "attack", rows, "--out", out), "none of 1 usable rows", "at most 5 (--below)")
    assert not out.exists()
    with pytest.raises(UsageError, match=r"out\.csv: what is written is JSON lines; name it as in out\.jsonl"):
        attack(rows, tmp_path / "out.csv", below=10)
    for folder in (rows, tmp_path):
        with pytest.raises(UsageError, match="among the rows that are read"):
            attack(folder, rows)
    assert human_scored.load(rows).rows[0].id == "row-7"


def test_from_rows_to_effects(tmp_path: Path, scripted: Any) -> None:
    """The whole way, with a judge that believes verdicts, is struck dumb by a request, and is moved by nothing else."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        content = body["messages"][0]["content"]
        if "Dear examiner" in content:
            return completion("I would rather not.")
        return completion(target(9 if '> {"Rating":10' in content else 3, "because"))

    rows = write_jsonl(tmp_path / "rows.jsonl", [human_row(n, human_score=3.0) for n in range(8)])
    attacked, judged = tmp_path / "attacked.jsonl", tmp_path / "judged.jsonl"
    assert "8 of 8 answers" in run("critic", "attack", rows, "--out", attacked, code=0).stdout
    url = scripted(answer).url
    run("critic", "judge", attacked, "--out", judged, "--base-url", url, "--score", "argmax", code=3)
    injected = injection([line for _, line in jsonl.read(judged, Judgment)])
    effects = {effect.name: effect for effect in injected.attacks}
    assert list(effects) == list(suite())
    assert numbers(injected.clean) == (8, 3.0)
    fooled = {name for name, effect in effects.items() if effect.change.value == 6.0}
    plain = {"forged-verdict", "role-tags", "bidi", "zero-width"}
    assert plain <= fooled <= plain | {"section-end"}
    assert all(effect.change.value == 0.0 for name, effect in effects.items() if name not in {*fooled, "asks-for-ten"})
    assert effects["forged-verdict"].moved.value == 1.0
    dumb = effects["asks-for-ten"]
    assert (dumb.change.n, dumb.failed, dumb.denied.value) == (0, 8, 1.0)
    assert dumb.change.value is None and dumb.change.undefined


def judgment(of: Response, score: float | None, **changes: Any) -> Judgment:
    common = {"judge": "tiny", "score_kind": "expected"}
    verdict = Verdict(failure="no_rating") if score is None else Verdict(rating=score)
    return of_answer(of, **{**common, "verdict": verdict, "score": score, **changes})


def judgments(
    scores: Mapping[str, Iterable[float | None]], groups: Sequence[Any] | None = None, **changes: Any
) -> list[Judgment]:
    """By CLEAN and names of attacks, the score of each answer."""
    lines = []
    for name, values in scores.items():
        for number, score in enumerate(values):
            group = str(groups[number] if groups is not None else number)
            question = build_question(group)
            text = "answer" if name == CLEAN else "answer and more"
            lines.append(judgment(Response(id=f"r{number}#{name}", question=question, text=text), score, **changes))
    return lines


def numbers(estimate: Estimate) -> tuple[int, float | None]:
    return estimate.n, estimate.value


HAND = {
    CLEAN: [2, 3, 4, 2, 5, None],
    "padding": [3, 3, 4, 2, None, 4],
    "praise": [4, 3, 9, None, 8, 9],
    "authority": [1, 3, 4, 2, None, None],
}


def test_by_hand() -> None:
    effects = injection(judgments(HAND))
    padding, authority, *_, praise = effects.attacks
    assert [effect.name for effect in effects.attacks] == ["padding", "authority", "praise"]
    # Pairs: 2->4, 3->3, 4->9, 5->8.
    assert praise.failed == 2
    assert numbers(praise.change) == (4, 2.5)
    assert numbers(praise.moved) == (4, 0.75)
    assert numbers(praise.denied) == (5, 0.2)
    assert numbers(authority.change) == (4, -0.25) and numbers(authority.moved) == (4, 0.0)
    assert numbers(padding.change) == (4, 0.25)
    assert numbers(effects.any_raised) == (5, 0.6)
    assert numbers(effects.clean) == (5, 3.2)
    assert (effects.judge, effects.answers) == ("tiny", 6)
    assert "the strongest, praise, adds +2.50 points" in effects.reading and "3 of 5 answers" in effects.reading


def test_the_thresholds_are_met_at_equality() -> None:
    dust = {CLEAN: [1.3] * 6, "praise": [3.3] * 5 + [9.0]}
    assert 3.3 - 1.3 < 2
    effects = injection(judgments(dust))
    assert effects.attacks[0].moved.value == effects.any_raised.value == 1.0


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ([], "no judgments"),
        (judgments({CLEAN: [2.0], "flattery": [3.0]}), "'r0#flattery' ends in the name of no attack"),
        ([judgment(response("en", "a"), 3.0)], "'r' ends in the name of no attack"),
        (judgments({CLEAN: [2.0], "padding": [3.0]}), "no attacked answer"),
        (judgments({CLEAN: [2.0], "praise": [3.0]}) * 2, "duplicate response id 'r0#clean'"),
        (judgments({CLEAN: [2.0, 2.0], "praise": [3.0]}), "praise: 1 of 2 answers are judged"),
        (judgments({CLEAN: [2.0], "praise": [3.0, 4.0]}), "'r1#clean' is not judged, but its variant praise"),
        (judgments({CLEAN: [2.0]}) + judgments({"praise": [3.0]}, judge="big"), "judge big and tiny"),
        (judgments({CLEAN: [2.0]}) + judgments({"praise": [3.0]}, prompt_hash="x"), "prompt_hash h and x"),
        (judgments({CLEAN: [2.0]}) + judgments({"praise": [3.0]}, score_kind="argmax"), "argmax and expected"),
    ],
)
def test_judgments_that_cannot_be_measured(lines: list[Judgment], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        injection(lines)


COLOURS = ("red", "blue", "green", "yellow")


def world(folder: Path, count: int = 60) -> Path:
    """Pictures of one colour, and answers that name it or another; every second row has no reference."""
    rows = []
    for number in range(count):
        colour, said = COLOURS[number % 4], COLOURS[(number + (number // 4) % 2) % 4]
        Pillow.new("RGB", (8, 8), colour).save(folder / f"{number}.png")
        score = 9 if colour == said else 2
        about = {"id": f"r{number}", "question": "Which colour?", "image": f"{number}.png", "gpt4_score_1_10": 5}
        about |= {"reference": colour if number % 2 else None, "response": f"It is {said}.", "task": "Recognition"}
        rows.append(human_row(number, **about, human_score=score, score_1_10=None, annotators={"a": score}))
    return write_jsonl(folder / "rows.jsonl", rows)


def by_eye(request: Request) -> Reply:
    """Holds the answer's colour against the picture's; blind it draws lots."""
    parts = parts_of(request.messages[-1])
    text = " ".join(part["text"] for part in parts if part["type"] == "text")
    said = text.rpartition("> It is ")[2].split(".")[0]
    shown = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    if not shown:
        return rated(random.Random(text).choice((3, 8)))
    pixel = Pillow.open(io.BytesIO(base64.b64decode(shown[0].partition(",")[2]))).getpixel((0, 0))
    return rated(9 if pixel == Pillow.new("RGB", (1, 1), said).getpixel((0, 0)) else 2)


def by_style(request: Request) -> Reply:
    said = " ".join(part["text"] for part in parts_of(request.messages[-1]) if part["type"] == "text")
    return rated(8 if "red" in said.rpartition("> It is ")[2] else 6)


def rated(score: int) -> Reply:
    return Reply(text=json.dumps({"Rating": score, "Reason": "looked"}))


def judged(rows: Path, answer: Any, root: Path | None = None) -> Path:
    images = Images(root or rows.parent)
    judge = ResponseJudge(ScriptedBackend(answer), answer.__name__, "pointwise", "argmax", 64, images=images)
    loaded = human_scored.load(rows, pictures=True)
    out = rows.with_name(f"{rows.stem}-judged-{answer.__name__}.jsonl")
    jsonl.write(out, [asyncio.run(judge.judge(response)) for response in loaded.responses])
    jsonl.write_sidecar(out, {"images": images.facts()})
    return out


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    variants = folder / "arms.jsonl"
    run("critic", "attack", world(folder), "--out", variants, "--images", "--limit", "60", code=0)
    return variants


def test_the_arms_are_what_they_say(arms: Path) -> None:
    lines = {line["id"]: line for _, line in jsonl.read(arms, dict[str, Any])}
    responses = {response.id: response for response in human_scored.load(arms, pictures=True).responses}
    assert responses.keys() == lines.keys(), "rows without a reference stay, blind ones too"
    high = [
        name.removesuffix("#clean") for name, line in lines.items() if line["human_score"] == 9 and "#clean" in name
    ]
    assert len(lines) == 60 * 2 + 2 * len(high) and len(high) == 32
    for name in high:
        clean, blind, swapped, edit = (responses[f"{name}#{arm}"] for arm in ("clean", "blind", "swapped", "edited"))
        assert clean.question.images == [f"{name[1:]}.png"] and blind.question.images == []
        assert swapped.question.images != clean.question.images and len(swapped.question.images) == 1
        assert swapped.text == clean.text == blind.text != edit.text and edit.question == clean.question
        assert sum(a != b for a, b in zip(clean.text.split(), edit.text.split(), strict=True)) == 1
    assert not any("gpt4_score_1_10" in line for line in lines.values())
    assert jsonl.facts(arms)["counts"]["swapped"] == 32


def audit(judged_arms: Path, out: Path) -> Done:
    clean = out.with_suffix(".jsonl")
    clean.parent.mkdir(parents=True, exist_ok=True)
    jsonl.write(clean, (line for _, line in jsonl.read(judged_arms, Judgment) if line.sample.id.endswith("#clean")))
    return run("critic", "audit", clean, "--attacked", judged_arms, "--out", out, code=0)


def test_a_judge_that_looks_is_told_from_one_that_reads(arms: Path, tmp_path: Path) -> None:
    """On the page as well."""
    lines = [line for _, line in jsonl.read(judged(arms, by_eye), Judgment)]
    with pytest.raises(UsageError, match="no answer was judged blind"):
        looking([line for line in lines if not line.sample.id.endswith("#blind")])
    looks = looking(lines)
    pearson = next(line for line in looks.differences if line.metric == "pearson")
    assert looks.answers == looks.reached == 60 and pearson.first == pytest.approx(1.0)
    assert pearson.value > 0.5 and pearson.interval is not None and pearson.interval[0] > 0
    # A quarter of the pictures is of the same colour: another one of those costs nothing.
    lost = looks.swap.change
    assert lost.value is not None and -7 < lost.value < -3 and lost.n == 32
    assert looks.edit.change.value == -7.0 and looks.edit.moved.value == 1.0
    assert looks.reading.startswith("It looks at the image")
    style = judged(arms, by_style)
    reads = looking([line for _, line in jsonl.read(style, Judgment)])
    assert reads.swap.change.value == 0.0 and "not shown to look" in reads.reading
    assert all(line.value == pytest.approx(0.0) for line in reads.differences)
    assert "not shown to look at the image" in audit(style, tmp_path / "audit").stdout
    page = (tmp_path / "audit/report.html").read_text("utf-8")
    assert "judged-by_style: It is not shown to look" in page, "of several files each is named"
    assert "Does the judge look at the image?" in page
    grounding = json.loads((tmp_path / "audit/summary.json").read_text("utf-8"))["looking"][0]
    assert grounding["swap"]["change"]["value"] == 0.0
    plain = write_jsonl(tmp_path / "plain.jsonl", [{**json.loads(arms.read_text().splitlines()[1]), "image": None}])
    assert_one_line_error(run("critic", "attack", plain, "--images", "--out", tmp_path / "x.jsonl"), "no")


def test_a_fact_in_a_table_is_json(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    for edit, line in (('{""old"": ""red"", ""new"": ""blue""}', ""), ("red", "r0: edit is to be")):
        table.write_text(f'id,question,response,human_score,image,edit\nr0,Which?,A red ball.,9,a.png,"{edit}"\n')
        done = run("critic", "attack", table, "--images", "--lang", "en", "--out", tmp_path / "arms.jsonl")
        assert line in done.stderr and bool(line) == bool(done.returncode), done.stderr
    assert "A blue ball." in (tmp_path / "arms.jsonl").read_text("utf-8")


def test_people_who_had_not_seen_the_photographs_are_the_yardstick(shared: Path, tmp_path: Path) -> None:
    """18 photographs, 270 descriptions, each rated before and after the same raters saw the image: what they gave
    before stands in the audit as a judge's score. A judge that draws lots is worth nothing there, and is said to be."""
    given = shared / "data/described_images"
    rows = [json.loads(line) for line in (given / "rows.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        before = list(row["before_seeing_image"].values())
        if before:
            row["before_seeing_score_1_10"] = 1 + 9 * (sum(before) / len(before) - 1) / 4
    (tmp_path / "images").symlink_to(given / "images")
    plain = write_jsonl(tmp_path / "rows.jsonl", rows)
    run("critic", "attack", plain, "--images", "--limit", "270", "--out", tmp_path / "arms.jsonl", code=0)
    counts = jsonl.facts(tmp_path / "arms.jsonl")["counts"]
    high = sum(row["score_1_10"] >= 7 for row in rows)
    assert counts["clean"] == counts["blind"] == 270 and counts["swapped"] == high and 50 < counts["edited"] <= high

    def by_lot(request: Request) -> Reply:
        url = [part["image_url"]["url"] for part in parts_of(request.messages[-1]) if part["type"] == "image_url"]
        return rated(random.Random(f"{len(url)} {request.messages}").randint(1, 10))

    out = judged(tmp_path / "arms.jsonl", by_lot, given)
    done = run("critic", "audit", judged(plain, by_lot, given), "--attacked", out, "--out", tmp_path / "audit")
    assert "not shown to look at the image" in done.stdout, done.stdout + done.stderr
    summary = json.loads((tmp_path / "audit/summary.json").read_text("utf-8"))
    assert summary["looking"][0]["reached"] == 270
    assert "before_seeing" in json.dumps(summary), "what people gave before they saw it is a judge beside ours"
