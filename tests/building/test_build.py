"""critic build behind the images: planted faults are found and sound ones stay, killed anywhere it ends in the same
bytes, and what it makes is a benchmark that the other stages take."""

import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from conftest import ROOT, Scripted, assert_golden, assert_one_line_error, completion, read_jsonl, run, write_jsonl
from PIL import Image

from critic import benchmarks, jsonl, tables
from critic.building import bench, replies, review
from critic.building.replies import DraftConversation, DraftTurn
from critic.errors import UsageError
from critic.stages import ask_rows
from critic.stages.ask_rows import STEPS, AskedRow, BuildRow

ROW: dict[str, dict[str, Any]] = {
    "persona": {},
    "talk": {"character": "Ada, a baker", "scenario": "at\nthe oven", "goal": "Analysis", "sub_goal": "heat"},
    "single": {"task": "Incoherence"},
    "wordings": {"question": "How many?", "count": 5},
    "checklist": {"before": [{"question": "q", "answer": "a"}], "question": "How many?", "answer": "Two."},
    "held": {"before": [], "question": "How many?", "answer": "Two.", "items": ["Is it two?", "Is it\nred?"]},
}


class Write(NamedTuple):
    """A line that is appended to a file, or a file that is replaced: the how many-th of this file. What a killed run
    has replaced is replaced again by the next, whose count begins anew; the lines stay."""

    file: str
    number: int
    replaced: bool


@contextmanager
def watched(out: Path, seen: Callable[[Write], bool | None]) -> Iterator[None]:
    """Everything that is written below `out` is shown before it is. Where `seen` says so, half of it is written, and
    this process kills itself."""
    counts, lines, replacing = Counter[str](), jsonl.Appender._write, jsonl.replace_file

    def append(self: Any, line: bytes) -> None:
        number = self._path.read_bytes().count(b"\n") + 1
        if seen(Write(self._path.relative_to(out).as_posix(), number, replaced=False)):
            lines(self, line[: len(line) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        lines(self, line)

    @contextmanager
    def replace(path: Path) -> Iterator[Any]:
        name = path.relative_to(out).as_posix() if path.is_relative_to(out) else ""
        counts[name] += 1
        kill = bool(name) and seen(Write(name, counts[name], replaced=True))
        with replacing(path) as file:
            yield file
            if kill:
                file.truncate(file.tell() // 2)
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl.Appender, "_write", append)
        patch.setattr(jsonl, "replace_file", replace)
        yield


SCRIPTS: dict[str, dict[str, Any]] = {
    "Quality": {"clarity": 5, "resolution": 5, "plausibility": 5},
    "Category": {"category": "图表", "sub_category": "柱状图"},
    "Persona": {
        "character": "小王，面包师", "scenario": "他在看销量", "goal": "Analysis", "sub_goal": "趋势分析",
    },
    "Checklist": {},
    "HeldItems": {},
    "Levels": {"caption": "一张柱状图", "tasks": ["识别", "比较", "写作"], "focus": "要写到两根柱子"},
    "Single": {},
    "GeneratedConversation": {"task": "推理", "sub_task": "比较"},
}  # fmt: skip
"""The model's reply to each step, except for the parts that follow from the image."""

QUESTIONS = {"en": "Is question {} about {}?", "zh": "第{}个问题是{}吗？"}
ITEMS = {"en": ["Is the bar named?", "Is a unicorn named?"], "zh": ["是否说出了红色的柱子？", "是否说出了独角兽？"]}


def model(fault_of: Mapping[str, str] | None = None) -> Callable[[dict[str, Any]], Any]:
    """A model that answers each step of a build by rules, in the language that it is asked in. `fault_of` an image, in
    base64, is what is wrong with what it says of it."""

    def reply(body: dict[str, Any]) -> Any:
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        text = json.dumps(body["messages"][-1]["content"], ensure_ascii=False)
        if schema is None:
            return completion("a line")
        fault = next((fault for image, fault in (fault_of or {}).items() if image in text), "")
        name = next((definition for definition in schema.get("$defs", {}) if definition in SCRIPTS), "")
        if not name:  # it judges: the question that asks for no image is answered well without it
            word = "yes" if "blindly" in text else "no"
            return completion(json.dumps({key: 1 if key == "Rating" else word for key in schema["properties"]}))
        return completion(json.dumps({**SCRIPTS[name], **_of_image(name, text, fault)}))

    return reply


def _of_image(name: str, text: str, fault: str) -> dict[str, Any]:
    lang = "en" if "One JSON object" in text else "zh"
    # Ten characters or words that are another image's ten: no two conversations say the same.
    drawn = random.Random("same" if fault == "repeats_another" else text)
    said = [chr(drawn.randrange(0x4E00, 0x9000)) for _ in range(10)]
    of_image = "".join(said) if lang == "zh" else " ".join(f"w{ord(char)}" for char in said)
    turns = [{"question": QUESTIONS[lang].format(number, of_image), "answer": of_image} for number in "一二三"]
    if fault in ("wrong_language", "degenerate"):
        turns[1]["answer"] = (
            "图里有三个红色的圆形和一个蓝色的方块。" if fault == "wrong_language" else "a red dot " * 12
        )
    if fault == "solved_blind":
        turns = [{**turn, "question": f"{turn['question']} blindly"} for turn in turns]
    if name == "Single":
        task = re.search(r"考察这种能力的问题：(\w+)", text)[1]  # type: ignore[index]
        before = [{"question": "这是什么图？", "answer": "柱状图"}] if task in ("Coherence", "Incoherence") else []
        return {"task": task, "question": f"{of_image}图里有几根柱子？", "answer": "三根", "dialogue": before}
    if name == "Checklist":
        items = ITEMS[lang] if fault == "failing_item" else ITEMS[lang][:1]
        return {"items": [{"question": item, "main": "事实正确", "sub": "颜色"} for item in items]}
    if name == "HeldItems":
        items = re.findall(r"> \d+\. ([^\\]*)", text)
        return {"answers": ["no" if item == ITEMS[lang][1] else "yes" for item in items]}
    if name == "Quality":
        return {"clarity": 2} if fault == "low_quality" else {}
    if name == "Category":
        return {"category": "少见"} if fault == "rare_category" else {}
    return {"turns": turns} if name in ("Levels", "GeneratedConversation") else {}


def draw(folder: Path, count: int) -> list[Path]:
    """Images of which no two look alike."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:02}.png" for number in range(count)]
    for number, path in enumerate(paths):
        Image.frombytes("L", (8, 8), random.Random(number).randbytes(64)).resize((240, 240)).save(path)
    return paths


FAULTS = (
    *("low_quality", "rare_category", "wrong_language", "degenerate", "solved_blind", "failing_item", "unnatural"),
    *("repeats_another", "repeats_another"),
)
"""One drawn image each; the others are sound."""


class Built:
    """A folder that a scripted model builds in; `writes` are those of each run of a whole build."""

    def __init__(self, root: Path) -> None:
        self.root, self.writes, images = root, list[list[Write]](), draw(root / "images", 16)
        self.fault_of = {path.name: fault for path, fault in zip(images, FAULTS, strict=False)}
        encoded = {
            b64encode((root / "images" / name).read_bytes()).decode(): fault for name, fault in self.fault_of.items()
        }
        self.server = Scripted(model(encoded))

    def by_fault(self, fault: str) -> set[str]:
        return {name for name, planted in self.fault_of.items() if planted == fault}

    def build(self, out: str) -> Any:
        words = ("--plan", "multiverse", "--base-url", self.server.url, "--rare", 2, "--concurrency", 1)
        return run("critic", "build", self.root / "images", "--out", self.root / out, *words)

    def fill_in(self, out: str) -> None:
        """All is well, but one conversation does not flow, and on one the two reviewers differ."""
        sheet, (unnatural,) = self.root / out / "review/sheet.csv", self.by_fault("unnatural")
        lines = [row for _, row in tables.rows(sheet)]
        differing = min(row["image"] for row in lines if row["image"] != unnatural)
        for row in lines:
            row |= {**dict.fromkeys(review.CRITERIA, "yes"), "natural": "no" if row["image"] == unnatural else "yes"}
            if (row["image"], row["reviewer"]) == (differing, "2"):
                row["correct"] = "no"
        tables.write_csv(sheet, lines)

    def whole(self, out: str) -> Any:
        for ends in (False, False, True):
            self.writes.append([])
            with watched(self.root / out, self.writes[-1].append):
                done = self.build(out)
            if not ends:
                assert done.returncode == 0 and "sheet.csv: fill in" in done.stdout, done.stderr
                assert not (self.root / out / "benchmark").exists()
                self.fill_in(out)
        return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Built, Any]]:
    project = Built(tmp_path_factory.mktemp("build"))
    yield project, project.whole("whole")
    project.server.close()


def test_planted_faults_are_found_and_sound_ones_stay(built: tuple[Built, Any]) -> None:
    """Row 28."""
    project, done = built
    assert done.returncode == 0, done.stderr
    out = project.root / "whole"
    for line in read_jsonl(out / "dropped.jsonl"):
        assert project.fault_of[line["path"]] == line["reason"] in ("low_quality", "rare_category")
    rejected = {line["key"]: line["failure"] for line in read_jsonl(out / "talk.jsonl") if line.get("failure")}
    assert sorted(rejected.values()) == ["degenerate", "wrong_language"]
    removed = {line["image"]: line["reason"] for line in read_jsonl(out / "removed.jsonl")}
    assert sorted(removed.values()) == ["repeats_another", "solved_blind"]
    assert all(project.fault_of[name] == why for name, why in (rejected | removed).items())
    assert "1 removed (1 unnatural_flow, 0 wrong_answer, 0 blind)" in done.stdout
    # Of the image with the failing item the conversation stays, without the item.
    (failing,) = project.by_fault("failing_item")
    assert failing in {line["image"] for line in read_jsonl(out / "made.jsonl")}
    assert "unicorn" not in (out / "benchmark/benchmark.jsonl").read_text("utf-8")
    assert len(read_jsonl(out / "benchmark/benchmark.jsonl")) == 9


def test_what_is_left_behind_each_step_is_in_the_card(built: tuple[Built, Any]) -> None:
    folder = built[0].root / "whole/benchmark"
    steps = {step["step"]: step for step in json.loads((folder / "frozen.json").read_text("utf-8"))["steps"]}
    images = [(name, step["before"], step["after"]) for name, step in steps.items() if step["unit"] == "images"]
    assert [name for name, *_ in images] == ["files", "duplicates", "quality", "category", "rare", "drawn"]
    # What one step leaves, the next one has.
    assert images[0][1] == 16 and [counts[2] for counts in images[:-1]] == [counts[1] for counts in images[1:]]
    assert steps["talk"]["reasons"] == {"degenerate": 1, "wrong_language": 1}
    assert (steps["people"]["before"], steps["people"]["after"]) == (10, 9)
    assert steps["people"]["reasons"] == {"unnatural_flow": 1} and steps["items"]["reasons"] == {"reference: no": 3}
    assert "degenerate 1, wrong_language 1" in (folder / "card.html").read_text("utf-8")


def test_the_frozen_benchmark_is_taken_as_it_is(built: tuple[Built, Any], tmp_path: Path) -> None:
    project, url = built[0], built[0].server.url
    folder = project.root / "whole/benchmark"
    conversations = benchmarks.read("multiverse", folder / "benchmark.jsonl")
    train, internal = (benchmarks.read("multiverse", folder / f"{name}.jsonl") for name in ("train", "internal"))
    ids, split = ({conversation.id for conversation in some} for some in (conversations, [*train, *internal]))
    assert ids == split and len(conversations) == len([*train, *internal]) == 9
    file, words = folder / "benchmark.jsonl", ("--benchmark", "multiverse", "--base-url", url)
    replies, judged = tmp_path / "replies.jsonl", tmp_path / "judged.jsonl"
    assert run("critic", "infer", file, *words, "--out", replies, "--condition", "own").returncode == 0
    refused = run("critic", "annotate", replies, "--db", tmp_path / "o.sqlite", "--data-root", folder)
    assert_one_line_error(refused, "condition own", "--condition oracle")
    assert run("critic", "judge", replies, *words, "--out", judged, "--protocol", "checklist").returncode == 0
    words = ("--benchmark", "multiverse", "--questions", file, "--out", tmp_path)
    assert run("critic", "score", judged, *words).returncode == 0
    card = ("critic", "describe", file, "--benchmark", "multiverse", "--out", tmp_path)
    assert "as it was frozen" in run(*card).stdout
    said = json.loads((folder / "frozen.json").read_text("utf-8"))
    assert bench.check_frozen(folder) == said and said["conversations"] == 9 and said["reviewed"]


@pytest.mark.parametrize("changed", ["images/*", "train.jsonl"])
def test_a_frozen_file_that_changed_is_found(built: tuple[Built, Any], tmp_path: Path, changed: str) -> None:
    folder = tmp_path / "benchmark"
    shutil.copytree(built[0].root / "whole/benchmark", folder)
    whole = bench.check_frozen(folder)["hash"]
    path = next(folder.glob(changed))
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UsageError, match=rf"{path.name}: is not as it was frozen .{whole}"):
        bench.check_frozen(folder)


def frozen_of(folder: Path, form: str, drafts: Sequence[DraftConversation], split_of: dict[str, str]) -> str:
    """A benchmark of conversations whose images are some bytes each, beside the folder."""
    for draft in drafts:
        (folder.parent / draft.image).write_bytes(draft.id.encode())
    md5_of = {draft.image: hashlib.md5(draft.id.encode()).hexdigest() for draft in drafts}
    return bench.freeze(folder, form, drafts, folder.parent, md5_of, split_of, {})


def test_a_freeze_that_fails_leaves_the_frozen_benchmark(tmp_path: Path) -> None:
    folder, drafts, splits = tmp_path / "benchmark", [draft_of("a"), draft_of("b")], {"a": "train", "b": "internal"}
    whole = frozen_of(folder, "multiverse", drafts, splits)
    before = content(folder)
    (tmp_path / "b.png").write_bytes(b"another")
    md5_of = {draft.image: hashlib.md5(draft.id.encode()).hexdigest() for draft in drafts}
    with pytest.raises(UsageError, match=r"b\.png: is another image"):
        bench.freeze(folder, "multiverse", drafts, tmp_path, md5_of, splits, {})
    assert content(folder) == before and bench.check_frozen(folder)["hash"] == whole
    assert frozen_of(folder, "multiverse", drafts[:1], splits) != whole
    assert sorted(path.name for path in folder.glob("images/*")) == [f"{md5_of['a.png']}.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "b.png", "benchmark"}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"sha256": {}}', '{"sha256": 1, "hash": ""}', "\udcff"])
def test_a_damaged_frozen_json_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "frozen.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=r"frozen\.json: not as critic build"):
        bench.check_frozen(tmp_path)


TIMED = re.compile(r"\.run\.json$|\.status\.json$|^blind_replies|^images/|\.partial$")
"""Files that say how long something took, and what is left of a file that was being written."""


def content(folder: Path) -> dict[str, bytes]:
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return {name: (folder / name).read_bytes() for name in names if not TIMED.search(name)}


def killed(build: Callable[[], Any], out: Path, at: Write) -> bool:
    """Build in a process of its own that is killed half-way through that write; whether it came to it."""

    def child() -> None:
        with watched(out, lambda write: write == at):
            done = build()
            if done.returncode:
                os.write(2, done.stderr.encode())
            os._exit(done.returncode)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def some_of(writes: Sequence[Write], before: Collection[Write] = ()) -> list[Write]:
    """Return the first and the middle write of each step that is not in `before`.

    All frozen images are one step; each writing of `dropped.jsonl` is one."""
    steps: dict[str, list[Write]] = {}
    for write in writes:
        if write not in before and not write.file.endswith(".run.json"):
            name = f"{write.number}" if write.file == "dropped.jsonl" else write.file
            steps.setdefault("images" if "/images/" in name else name, []).append(write)
    taken = {write for some in steps.values() for write in (some[0], some[len(some) // 2])}
    return [write for write in writes if write in taken]


def assert_same(folder: Path, other: Path) -> None:
    actual, expected = content(folder), content(other)
    assert actual.keys() == expected.keys()
    assert {name for name in actual if actual[name] != expected[name]} == set()


@pytest.mark.e2e
def test_killed_within_every_step_it_ends_in_the_same_bytes(built: tuple[Built, Any]) -> None:
    """At the first write and in the middle of every step."""
    project = built[0]
    out, before = project.root / "killed", set[Write]()
    for writes, ends in zip(project.writes, (False, False, True), strict=True):
        assert some_of(writes, before)
        for write in some_of(writes, before):
            assert killed(lambda: project.build(out.name), out, write), write
        # The sheet is written by each run: the third reviewer's lines are killed within as well.
        before |= {write for write in writes if write.file != "review/sheet.csv"}
        assert project.build(out.name).returncode == 0
        if not ends:
            project.fill_in(out.name)
    assert_same(out, project.root / "whole")


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("step", STEPS)
def test_the_exact_text_of_each_step_is_kept(step: str, lang: Any) -> None:
    text = ask_rows.prompt(step, BuildRow(key="1", lang=lang, facts=ROW.get(step, {})))
    assert_golden(f"build_{step}_{lang}", text)


def test_goals_and_aspects_are_data() -> None:
    """As many sub-goals as MultiVerse gives beside each goal (appendix C.1), 484 different ones (table 1), and 37 main
    aspects in both languages; a prompt shows some sub-goals, others for another image."""
    goals = ask_rows._content("en")["goals"]
    counts = {"Verification": 87, "Analysis": 123, "Exploration": 30, "Optimization": 48, "Calculation": 32}
    counts |= {"Understanding": 86, "Research": 72, "Creation": 43}
    assert {name: len(some) for name, some in goals.items()} == counts
    assert len({sub_goal for some in goals.values() for sub_goal in some}) == 484
    for lang in ("en", "zh"):
        content = ask_rows._content(lang)
        assert len(set(content["aspects"])) == 37 and list(content["goals"]) == list(get_args(replies.Goal))
    shown = {ask_rows.prompt("persona", BuildRow(key=str(key), lang="en")) for key in range(200)}
    assert len(shown) == 200 and all(
        any(sub_goal in text for text in shown) for some in goals.values() for sub_goal in some
    )


def draft_of(key: str) -> DraftConversation:
    turn = DraftTurn(question="What is it?", answer="A kite.")
    return DraftConversation(id=key, image=f"{key}.png", lang="en", turns=[turn], category="c", sub_category="s")


def test_two_reviewers_decide_and_a_third_where_they_differ(tmp_path: Path) -> None:
    drafts, sheet = [draft_of(name) for name in "abcdef"], tmp_path / "sheet.csv"
    review.ask(sheet, drafts, [1, 2])
    answers = {
        ("a", "1"): "yes,yes,yes", ("a", "2"): "yes,yes,yes", ("b", "1"): "no,yes,no", ("b", "2"): "no,yes,no",
        ("c", "1"): "yes,yes,yes", ("c", "2"): "yes,no,yes", ("d", "1"): "yes,yes,yes", ("d", "2"): ",,",
        ("f", "1"): "no,no,no",
    }  # fmt: skip

    def fill_in(key: str, reviewer: str, words: str) -> None:
        lines = [row for _, row in tables.rows(sheet)]
        for row in lines:
            if (row["image"], row["reviewer"]) == (f"{key}.png", reviewer):
                row |= {"conversation": "edited", **dict(zip(review.CRITERIA, words.split(","), strict=True))}
        tables.write_csv(sheet, lines)

    for (key, reviewer), words in answers.items():
        fill_in(key, reviewer, words)
    decided = review.decide(drafts, sheet)
    waiting = {"c": [review.DIFFERING], "d": [review.OPEN], "e": [review.OPEN], "f": [review.OPEN]}
    assert decided == {"a": [], "b": ["unnatural_flow", "blind"], **waiting}
    counts = "reviewed: 1 of 6 retained, 1 removed (1 unnatural_flow, 0 wrong_answer, 1 blind)"
    assert review.format_yield(decided).startswith(counts)
    review.ask(sheet, [drafts[2]], [3])
    fill_in("c", "3", "是,否,是")
    assert review.decide(drafts, sheet)["c"] == ["wrong_answer"]
    for words in ("maybe,no,no", ",no,no"):
        fill_in("c", "3", words)
        with pytest.raises(UsageError, match="expected yes or no"):
            review.decide(drafts, sheet)
    fill_in("c", "3", "yes,yes,yes")
    tables.write_csv(sheet, [row for _, row in tables.rows(sheet) for _ in range(2)])
    with pytest.raises(UsageError, match=r"duplicate id '.* by 1'"):
        review.decide(drafts, sheet)


class Small:
    """Six photographs that a model asked in Chinese builds of."""

    def __init__(self, folder: Path, server: Any, plan: str, *words: object) -> None:
        self.images, self.out, self.plan = folder / "images", folder / "out", plan
        self.words = ("--plan", plan, *words)
        shutil.copytree(ROOT / "data/samples/visitbench/images", self.images)
        self.server = server

    def build(self, *more: object, code: int | None = None) -> Any:
        words = ("--lang", "zh", "--base-url", self.server.url, "--rare", 1, "--min-side", 50)
        return run("critic", "build", self.images, "--out", self.out, *self.words, *words, *more, code=code)

    def replace(self, name: str) -> str:
        """Put another picture into the place of an image: its MD5."""
        Image.frombytes("L", (8, 8), random.Random(name).randbytes(64)).resize((90, 90)).save(self.images / name)
        return hashlib.md5((self.images / name).read_bytes()).hexdigest()

    def read_replies(self, step: str) -> dict[str, AskedRow]:
        return {record.key: record for _, record in jsonl.read(self.out / f"{step}.jsonl", AskedRow)}

    def fill_in(self) -> None:
        sheet = self.out / "review/sheet.csv"
        sheet.write_text(sheet.read_text("utf-8").replace(",,,\n", ",yes,yes,yes\n"), "utf-8")

    def frozen(self) -> list[Any]:
        return benchmarks.read(self.plan, self.out / "benchmark/benchmark.jsonl")


@pytest.fixture
def small(tmp_path: Path, scripted: Any) -> Callable[..., Small]:
    return lambda *words: Small(tmp_path, scripted(model()), *words)


@pytest.mark.parametrize(("plan", "turns"), [("multiverse", 3), ("convbench", 3), ("alignmmbench", 1)])
def test_other_rules_and_images_are_gone_on_with(plan: str, turns: int, small: Callable[..., Small]) -> None:
    """Of a replaced image every step asks anew, also those that see none; what was said of the others stays."""
    project = small(plan, "--unreviewed")

    def groups(*words: object) -> int:
        project.build(*words, code=0)
        return len({conversation.group for conversation in project.frozen()})

    assert [groups(), groups("--cap", 4), groups()] == [6, 4, 6]
    frozen = json.loads((project.out / "benchmark/frozen.json").read_text())
    assert {len(conversation.turns) for conversation in project.frozen()} == {turns} and not frozen["reviewed"]
    steps = [name for name in STEPS if (project.out / f"{name}.jsonl").is_file()]
    before = {name: project.read_replies(name) for name in steps}
    md5 = project.replace("chart.png")
    project.build(code=0)
    for name in steps:
        now = project.read_replies(name)
        new = {key for key, reply in now.items() if reply != before[name].get(key)}
        assert new and all(now[key].image == md5 for key in new), name
        assert not {key for key, reply in now.items() if reply.image != md5} - before[name].keys()
    shown = {image for conversation in project.frozen() for turn in conversation.turns for image in turn.images}
    assert f"images/{md5}.png" in shown and len(shown) == 6
    (project.images / "fruit.png").unlink()
    assert groups() == 5
    ids = {conversation.id for conversation in project.frozen()}
    assert {line["sample"]["id"] for line in read_jsonl(project.out / "blind.jsonl")} == ids
    # An image more changes nothing for the others, wherever it stands among them.
    project.replace("a.png")
    assert groups() == 6


def test_frozen_json_names_the_models_of_each_step(small: Callable[..., Small]) -> None:
    project = small("multiverse", "--blind", 2, "--unreviewed")
    assert project.build().returncode == 0
    models = json.loads((project.out / "benchmark/frozen.json").read_text("utf-8"))["models"]
    assert set(models) == {"quality", "category", "persona", "talk", "checklist", "held"}
    (name,) = {name for some in models.values() for name in some}
    (project.out / "held.jsonl").unlink()
    project.server.told["id"] = "other"
    assert project.build().returncode == 0
    models = json.loads((project.out / "benchmark/frozen.json").read_text("utf-8"))["models"]
    assert models["talk"] == [name] and models["held"] == ["other"]


def test_checklists_by_two_models_say_how_far_these_agree(small: Callable[..., Small], scripted: Any) -> None:
    """The second model writes an item more, and finds that the references fulfil none of the first's."""

    def other(body: dict[str, Any]) -> Any:
        reply, text = model()(body), json.dumps(body["messages"][-1]["content"], ensure_ascii=False)
        if "items" in (content := json.loads(reply["choices"][0]["message"]["content"])):
            content["items"].append({"question": "是否说出了颜色？", "main": "事实正确", "sub": "颜色"})
        if "answers" in content:
            content["answers"] = ["yes" if "颜色" in item else "no" for item in re.findall(r"> \d+\. ([^\\]*)", text)]
        return completion(json.dumps(content))

    project = small("multiverse", "--blind", 2)
    done = project.build("--second", scripted(other).url, code=0)
    assert "two models, 36 checklist items: equal answers 0.50 0.12–0.88, kappa" in done.stdout, done.stdout
    agreement = json.loads((project.out / "checklist_agreement.json").read_text("utf-8"))
    assert agreement["items"]["table"] == [[18, 0, 18], [0, 0, 0], [0, 0, 0]] and len(agreement["disputed"]) == 18
    notes = {row["note"] for _, row in tables.rows(project.out / "review/sheet.csv")}
    assert notes == {"; ".join([f"models differ on: {ITEMS['zh'][0]}"] * 3)}
    words = ("--out", project.out, "--plan", "convbench", "--second", "http://a/v1")
    refused = run("critic", "build", project.images, *words)
    assert_one_line_error(refused, "--second http://a/v1: checklists are made by --plan multiverse")


def test_conversations_that_come_and_go_are_reviewed(small: Callable[..., Small]) -> None:
    """Those that come, or are made anew, stand behind those that are there, whose answers stay."""
    project = small("multiverse", "--blind", 2)
    sheet = project.out / "review/sheet.csv"
    assert "4 open" in project.build("--cap", 4).stdout
    project.fill_in()
    before = sheet.read_text("utf-8")
    assert "2 open" in project.build().stdout and sheet.read_text("utf-8").startswith(before)
    project.fill_in()
    assert project.build().returncode == 0 and len(project.frozen()) == 6
    for conversation in project.frozen():
        assert (conversation.lang, conversation.goal, len(conversation.turns)) == ("zh", "Analysis", 3)
        assert {turn.aspects[0] for turn in conversation.turns} == {("事实正确", "颜色")}
    talks = read_jsonl(project.out / "talk.jsonl")
    talks[0]["reply"]["turns"][0]["question"] += "请说明。"
    write_jsonl(project.out / "talk.jsonl", talks)
    for path in (*project.out.glob("checklist.*"), *project.out.glob("held.*")):
        path.unlink()
    done = project.build()
    assert "5 of 6 retained" in done.stdout and "1 open" in done.stdout and "sheet.csv: fill in" in done.stdout
    project.fill_in()
    assert project.build().returncode == 0
    assert any("请说明。" in turn.prompt for conversation in project.frozen() for turn in conversation.turns)
    sheet.write_text(sheet.read_text("utf-8").replace(",yes,yes,yes\n", ",yes,no,yes\n"), "utf-8")
    assert_one_line_error(project.build(), "no conversation is left")


def test_a_file_of_another_question_is_left_as_it_is(built: tuple[Built, Any]) -> None:
    project = built[0]
    path = project.root / "whole/persona.jsonl"
    before = path.read_bytes()
    first = next(record for _, record in jsonl.read(path, AskedRow))
    path.write_bytes(before.replace(first.asked.encode(), b"0123456789abcdef"))
    assert_one_line_error(project.build("whole"), "was asked otherwise")
    path.write_bytes(before)


def test_conversations_sharing_text_share_a_split(built: tuple[Built, Any], monkeypatch: Any) -> None:
    """Near copies on both sides of a split would be trained on and tested."""
    project = built[0]
    out = project.root / "again"
    shutil.copytree(project.root / "whole", out, ignore=shutil.ignore_patterns("benchmark"))
    find_overlaps = bench.find_overlaps

    def find_near_copies(texts: dict[str, str]) -> list[bench.SharedText]:
        first, *others = texts
        # The repetitions found before are found again: only of these conversations there is a review.
        return [*find_overlaps(texts), *((first, other, 0.6) for other in others)]

    monkeypatch.setattr(bench, "find_overlaps", find_near_copies)
    assert project.build(out.name).returncode == 0
    assert len(read_jsonl(out / "benchmark/internal.jsonl")) == 9 and not (out / "benchmark/train.jsonl").exists()
