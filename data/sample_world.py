"""Write human-scored rows of a small made-up world: questions about pictures, references, answers, scores and reasons.

    python data/sample_world.py --out rows.jsonl [--seed 0] [--questions 1144] [--pictures] [--conversations]

The answers are by simulated systems, the scores and reasons by simulated raters. A question is a scene
(`sample_world.toml`) filled with facts: an object, a colour, a count. Reference and answers state the facts with the
same sentences, so only the comparison with the reference shows whether an answer is right. `EXTERNAL` is the system to
keep out of training.

Without `--pictures` the pictures do not exist. With it they are drawn next to the rows (`drawing.py`,
`sample_pictures.toml`), and half of the questions have no reference. The column `edit` names a fact of the answer that
the picture shows, and a wrong value to replace it with, as `critic attack --images` expects.

With `--conversations` each answer also has a checklist, and a second row scores the whole conversation that ends with
it. These labels teach every form used in the benchmarks' papers.
"""

import random
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import typer
from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from critic import jsonl
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.cli import run_program
from critic.errors import UsageError
from critic.human_scored import BLIND, Row
from critic.records import RATINGS, Language, Turn

EXTERNAL = "Nightjar-9B"
"""System whose answers are the external test. It phrases its openings and endings in its own way."""

Content = Literal["right", "slip", "poor", "wrong", "part", "off", "garbled", "evade"]
Manner = Literal["plain", "grounds", "brief", "verbose", "inject"]
Values = dict[str, str]


class Scene(Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of question in one language. sample_world.toml explains the fields."""

    lang: Language
    task: str
    picks: list[str]
    facts: list[str]
    ask: list[str]
    points: list[list[str]]
    brief: list[str]
    decisive: list[str] = []
    why: list[str] = []
    evade: list[str] = []
    history: list[tuple[str, str]] = []
    lure: dict[str, str] = {}
    picture: str | None = None


class World(Struct, frozen=True, forbid_unknown_fields=True):
    """All building blocks of questions, answers and reasons, by language."""

    labels: dict[Language, dict[str, str]]
    pools: dict[Language, dict[str, str]]
    phrases: dict[Language, dict[str, Any]]
    reasons: dict[Language, dict[str, Any]]
    systems: "dict[str, System]"
    raters: "dict[str, Rater]"
    scenes: list[Scene]

    def records(self, lang: Language, source: str) -> list[list[str]]:
        """Return the records of the pool `source`, or the integers of a range such as "2..19", both ends included."""
        low, dots, high = source.partition("..")
        if dots:
            return [[str(number)] for number in range(int(low), int(high) + 1)]
        return [record.split(":") for record in self.pools[lang][source].split("/")]


class System(Struct, frozen=True):
    """A simulated system that answers, with the probability of each `content` and `manner` of its answers.

    `share` is the fraction of questions that it answers. `own_style`: True to use openings and endings of its own.
    """

    content: dict[Content, float]
    manner: dict[Manner, float]
    share: float = 1.0
    own_style: bool = False


PLAIN = ("Drifter-3B", "Stutter-1B", "off", "garbled")
"""Names of systems and `content`s of answers that are recognizably bad without the picture. A world with pictures has
none of them.
"""

UNSEEN = 0.1
"""Fraction of questions whose pictures no judge is shown, so that it learns to rate without them. Otherwise a judge
tested without images would only meet an unfamiliar prompt.
"""


class Rater(Struct, frozen=True):
    """A simulated person who rates answers.

    `bias` is added to the true grade, `centre` (0..1) pulls the rating towards the middle of the scale, and `noise` is
    the standard deviation of the error.
    """

    bias: float
    centre: float
    noise: float

    def score(self, grade: float, draw: random.Random) -> int:
        """Return the rater's integer rating of an answer whose true grade is `grade`."""
        felt = grade + self.bias + self.centre * (fmean(RATINGS) - grade) + draw.gauss(0, self.noise)
        return min(max(round(felt), RATINGS[0]), RATINGS[-1])


class WorldQuestion(Struct, frozen=True):
    """A question with its scene, the true value of every slot (`truth`), and the columns that its rows share."""

    scene: Scene
    truth: Values
    columns: dict[str, Any]


class WorldAnswer(Struct, frozen=True, kw_only=True):
    """An answer of a simulated system.

    - `said`: fact -> the value that the answer states, right or wrong. Omitted facts are not in it.
    - `content`: how right the answer is. `manner`: its style.
    """

    text: str
    said: Values = field(default_factory=dict)
    content: Content
    manner: Manner


def pick(world: World, scene: Scene, draw: random.Random) -> Values:
    """Return a random value for every slot of a scene. Slots with the same source get different values."""
    values: Values = {}
    taken: set[tuple[str, str]] = set()
    for entry in scene.picks:
        names, source = entry.split("=")
        left, times, right = source.partition("*")
        # Computed numbers, such as a product, keep the facts of a scene consistent.
        if times:
            values[names] = str(int(values[left]) * int(values[right]))
            continue
        # Two slots with the same value would make some wrong answers right.
        record = draw.choice([each for each in world.records(scene.lang, source) if (source, each[0]) not in taken])
        taken.add((source, record[0]))
        values |= dict(zip(names.split(","), record, strict=True))
    return values


def change(world: World, scene: Scene, values: Values, fact: str, draw: random.Random) -> Values:
    """Return `values` with a wrong value for `fact`.

    The wrong value is one that the scene suggests (`lure`), or one that no slot of the question has. Slots that depend
    on the fact are changed with it.
    """
    # Half of the errors take a plausible wrong value that the scene names.
    if fact in scene.lure and draw.random() < 0.5:
        return values | {fact: values[scene.lure[fact]]}
    names, source = next(entry.split("=") for entry in scene.picks if fact in entry.split("=")[0].split(","))
    # A computed number: one of about its size.
    if "*" in source:
        source = f"{max(1, int(values[fact]) - 9)}..{int(values[fact]) + 9}"
    records = [dict(zip(names.split(","), record, strict=True)) for record in world.records(scene.lang, source)]
    wrong = draw.choice([record for record in records if record[fact] not in values.values()])
    # Columns that are no facts of their own must follow the changed one.
    return values | {name: value for name, value in wrong.items() if name == fact or name not in scene.facts}


def _find_facts(scene: Scene, wordings: list[str]) -> set[str]:
    """Return the facts that a point of a scene states. A point is one statement in several `wordings`."""
    return {fact for fact in scene.facts if f"{{{fact}}}" in wordings[0]}


def _word_points(scene: Scene, values: Values, kept: set[str], draw: random.Random) -> list[str]:
    """Return one sentence for each point of the scene whose facts are all in `kept`."""
    return [draw.choice(wordings).format(**values) for wordings in scene.points if _find_facts(scene, wordings) <= kept]


def garble(text: str, joint: str, draw: random.Random) -> str:
    """Return the text with its words shuffled and one of them repeated.

    `joint` separates words; if it is "", pairs of characters are shuffled instead.
    """
    pieces = text.split(joint) if joint else [text[i : i + 2] for i in range(0, len(text), 2)]
    draw.shuffle(pieces)
    stuck = draw.choice(pieces)
    for _ in range(draw.randint(2, 4)):
        pieces.insert(draw.randrange(len(pieces) + 1), stuck)
    return joint.join(pieces + [stuck] * draw.randint(2, 5))


def word_answer(
    world: World, scene: Scene, values: Values, draw: random.Random, *, kept: set[str], manner: Manner, own_style: bool
) -> str:
    """Return the text of an answer in its `manner`: sentences for the facts in `kept`, plus opening, filler, closing.

    `values` are the fact values to state. `own_style`: take the openings and closings of systems with their own style.
    """
    phrases = world.phrases[scene.lang]
    joint: str = phrases["joint"]
    # A brief answer states all facts at once, so none can be left out.
    if manner == "brief" and kept == set(scene.facts):
        return draw.choice(scene.brief).format(**values)
    sentences = _word_points(scene, values, kept, draw)
    # Only here does the order of sentences not matter.
    if scene.task in {"Description", "Chart", "Comparison"} and draw.random() < 0.3:
        draw.shuffle(sentences)
    if manner == "grounds" and scene.why:
        sentences.append(draw.choice(scene.why).format(**values))
    if manner == "verbose":
        for filler in draw.sample(phrases["filler"], draw.randint(1, 2)):
            sentences.insert(draw.randrange(len(sentences) + 1), filler)
    if manner == "inject":
        sentences.insert(draw.choice([0, len(sentences)]), draw.choice(phrases["inject"]).format())
    prefix, opens, closes, breaks = ("own_", 0.7, 0.4, 0.5) if own_style else ("", 0.3, 0.15, 0.15)
    if draw.random() < opens:
        sentences.insert(0, draw.choice(phrases[f"{prefix}opener"]))
    if draw.random() < closes:
        sentences.append(draw.choice(phrases[f"{prefix}closer"]))
    return ("\n" if draw.random() < breaks else joint).join(sentences)


def draw_question(world: World, scene: Scene, number: int, draw: random.Random) -> WorldQuestion:
    """Return a random question about a scene. `number` becomes part of its group and of its image's path."""
    values = pick(world, scene, draw)
    question = draw.choice(scene.ask).format(**values)
    reference = _word_points(scene, values, set(scene.facts), draw)
    if scene.why and draw.random() < 0.4:
        reference.append(draw.choice(scene.why).format(**values))
    has_no_reference = scene.picture is not None and draw.random() < 0.5
    columns = {"group": f"world/{scene.lang}/{scene.task}/{number:05d}", "lang": scene.lang, "task": scene.task}
    columns |= {"category": CATEGORY_OF[scene.task], "question": question, "image": f"images/{number:06d}.png"}
    history = [Turn(user.format(**values), reply.format(**values)) for user, reply in scene.history]
    joined = None if has_no_reference else world.phrases[scene.lang]["joint"].join(reference)
    flags = [BLIND] if scene.picture is not None and draw.random() < UNSEEN else []
    return WorldQuestion(scene, values, {**columns, "history": history, "reference": joined, "flags": flags})


def _draw_wrong_count(content: Content, facts: int, draw: random.Random) -> int:
    """Return a random number of wrong facts: less than half of `facts` for a slip, at least half for a poor answer."""
    if content == "wrong":
        return facts
    if content == "slip" and facts > 1:
        return draw.randint(1, max(1, (facts - 1) // 2))
    if content == "poor" and facts > 1:
        return draw.randint(facts // 2 + facts % 2, facts - 1) if facts > 2 else 1
    return draw.choice([0, facts]) if content in {"slip", "poor"} else 0


def draw_answer(
    world: World, question: WorldQuestion, other: WorldQuestion, system: System, draw: random.Random
) -> WorldAnswer:
    """Return a random answer of `system` to `question`. An off-topic answer is a refusal or an answer to `other`."""
    scene, phrases = question.scene, world.phrases[question.scene.lang]
    content = draw.choices(list(system.content), list(system.content.values()))[0]
    manner = draw.choices(list(system.manner), list(system.manner.values()))[0]
    # Not every scene has a way to evade; a wrong answer is the nearest replacement.
    if (content == "evade" and not scene.evade) or (content in PLAIN and scene.picture is not None):
        content = "wrong"
    worded = partial(word_answer, world, draw=draw, manner=manner, own_style=system.own_style)
    if content == "off":
        text = worded(other.scene, other.truth, kept=set(other.scene.facts))
        if draw.random() < 0.5:
            return WorldAnswer(text=draw.choice(phrases["refusal"]), content=content, manner="plain")
        return WorldAnswer(text=text, content=content, manner=manner)
    if content == "evade":
        return WorldAnswer(text=draw.choice(scene.evade), content=content, manner="plain")
    values, kept = question.truth, set(scene.facts)
    for fact in draw.sample(scene.facts, _draw_wrong_count(content, len(scene.facts), draw)):
        values = change(world, scene, values, fact, draw)
    if content == "part" and len(scene.points) > 1:
        kept -= _find_facts(scene, draw.choice(scene.points))
    text = worded(scene, values, kept=kept)
    if content == "garbled":
        return WorldAnswer(text=garble(text, phrases["joint"], draw), content=content, manner=manner)
    return WorldAnswer(text=text, said={fact: values[fact] for fact in kept}, content=content, manner=manner)


def grade(question: WorldQuestion, response: WorldAnswer) -> float:
    """Return the true grade (1..10) of an answer by the rubric (AlignMMBench §4.1), from its facts and manner."""
    scene, manner = question.scene, response.manner
    if response.content in {"off", "garbled"}:
        return 1 if response.content == "off" else 2
    wrong = {fact for fact, value in response.said.items() if value != question.truth[fact]}
    share = len(wrong) / len(scene.facts)
    # Nothing right is the same grade as nothing said.
    if not response.said or share == 1:
        return 3
    if wrong & set(scene.decisive):
        return 3.6
    if wrong:
        return 4.3 if share > 0.5 else 5 if share == 0.5 else 6.4 if share > 0.25 else 7.2
    if len(response.said) < len(scene.facts):
        return 6
    # All facts are present and correct, so the manner decides.
    if manner == "grounds" and not scene.why:
        manner = "plain"
    return {"brief": 7.5, "plain": 8.9, "inject": 8.7, "verbose": 8.7, "grounds": 9.8}[manner]


def word_reason(world: World, question: WorldQuestion, response: WorldAnswer, draw: random.Random) -> str:
    """Return a reason for the grade of an answer: a clause for each fact, and remarks about its manner."""
    scene, phrases, labels = question.scene, world.reasons[question.scene.lang], world.labels[question.scene.lang]
    if response.content in {"off", "garbled"}:
        text: str = draw.choice(phrases[response.content])
    else:
        parts = [draw.choice(phrases["nothing"])] if response.content == "evade" else []
        for fact in scene.facts:
            stated, true = response.said.get(fact), question.truth[fact]
            kind = "absent" if stated is None else "right" if stated == true else "differ"
            parts.append(phrases[kind].format(label=labels[fact], ref=true, got=stated))
        if response.manner == "brief":
            parts.append(phrases["brief"])
        if response.manner == "grounds" and scene.why:
            parts.append(phrases["reasoned"])
        text = phrases["and"].join(parts)
    if response.manner == "inject":
        text += phrases["asked"]
    return text[0].upper() + text[1:] + ("。" if scene.lang == "zh" else ".")


def build_row(world: World, question: WorldQuestion, system: str, response: WorldAnswer, draw: random.Random) -> Row:
    """Return the row of an answer, with the scores of three or four raters and one reason."""
    names = sorted(draw.sample(list(world.raters), draw.choice([3, 3, 4])))
    scores = {name: float(world.raters[name].score(grade(question, response), draw)) for name in names}
    number = f"{question.columns['group']}/{list(world.systems).index(system):02d}"
    own: dict[str, Any] = {"id": number, "response": response.text, "system": system, "annotators": scores}
    own |= {"human_score": round(fmean(scores.values()), 4), "scale_min": RATINGS[0], "scale_max": RATINGS[-1]}
    return Row(**question.columns, **own, reason=word_reason(world, question, response, draw))


def edit(world: World, question: WorldQuestion, response: WorldAnswer, seed: str) -> dict[str, str] | None:
    """Return one correct fact of the answer (`old`) and a wrong value for it (`new`), or None if none can be replaced.

    The seed determines the choice.
    """
    draw = random.Random(seed)
    for fact in draw.sample(question.scene.facts, len(question.scene.facts)):
        old = question.truth[fact]
        match = re.search(rf"\b{re.escape(old)}\b", response.text)
        # Whoever applies the edit replaces the first occurrence of these letters.
        if response.said.get(fact) == old and match is not None and response.text.index(old) == match.start():
            return {"old": old, "new": change(world, question.scene, question.truth, fact, draw)[fact]}
    return None


Scored = tuple[WorldQuestion, WorldAnswer, Row]
"""A question, an answer to it, and the row that people scored."""


def generate_rows(world: World, seed: int, count: int) -> Iterator[Scored]:
    """Yield (question, answer, row) for all answers to `count` questions, question by question.

    Scenes alternate, so all tasks occur.
    """
    draw = random.Random(f"sample-world-{seed}")
    questions = [draw_question(world, world.scenes[n % len(world.scenes)], n, draw) for n in range(count)]
    for question in questions:
        scene = question.scene
        others = [other for other in questions if other.scene.lang == scene.lang and other.scene.task != scene.task]
        for name, system in world.systems.items():
            # Their answers would teach a judge to ignore the picture.
            is_misleading = scene.picture is not None and name in PLAIN
            if not is_misleading and draw.random() < system.share:
                response = draw_answer(world, question, draw.choice(others or [question]), system, draw)
                yield question, response, build_row(world, question, name, response, draw)


def label_conversations(world: World, scored: Iterable[Scored], seed: int) -> Iterator[Scored]:
    """Yield each row with a checklist, followed by a row that scores the whole conversation ending with the answer.

    The checklist has an item for each fact; the human label is yes if the answer states the fact correctly.
    """
    # Separate draws, so that the answers and their scores are the same with and without conversations.
    draw = random.Random(f"conversations-{seed}")
    for question, response, scored_row in scored:
        scene, truth, system = question.scene, question.truth, str(scored_row.system)
        phrases, labels = world.phrases[scene.lang], world.labels[scene.lang]
        items = [phrases["item"].format(label=labels[fact], value=truth[fact]) for fact in scene.facts]
        answers = [response.said.get(fact) == truth[fact] for fact in scene.facts]
        checked = replace(scored_row, checklist=items, checklist_answers=answers)
        # A single exchange would be no conversation; the same beginning lets the answers be compared.
        before = scored_row.history or [Turn(*phrases["greeting"])]
        whole = replace(build_row(world, question, system, response, draw), id=f"{scored_row.id}/whole", history=before)
        yield question, response, checked
        yield question, response, replace(whole, scope="conversation")


def read_world(*files: Path) -> World:
    """Read a world from TOML files. A section of a later file takes the place of that of an earlier one."""
    sections: dict[str, Any] = {}
    for file in files:
        sections |= tomllib.loads(file.read_text("utf-8"))
    return convert(sections, World)


def main(
    out: Annotated[Path, typer.Option()],
    seed: int = 0,
    questions: Annotated[int, typer.Option(min=52)] = 1144,
    pictures: Annotated[bool, typer.Option("--pictures")] = False,
    conversations: Annotated[bool, typer.Option("--conversations")] = False,
) -> None:
    """Write made-up human-scored answers in Chinese and English for all AlignMMBench tasks.
    \f
    - out: The .jsonl file to write.
    - seed: Random seed; the same seed writes the same bytes.
    - questions: Number of questions; about nine rows each.
    - pictures: Ask in English about pictures, and draw them into images/ next to OUT.
    - conversations: Also label a checklist per answer, and whole conversations.
    """
    here = Path(__file__)
    world = read_world(here.with_suffix(".toml"), *([here.with_name("sample_pictures.toml")] if pictures else []))
    scored = [*generate_rows(world, seed, questions)]
    if conversations:
        scored = [*label_conversations(world, scored, seed)]
    rows = [to_builtins(row) for _, _, row in scored]
    if pictures:
        draw_all({str(row.image): question for question, _, row in scored}, out.parent, seed)
        for columns, (question, response, row) in zip(rows, scored, strict=True):
            columns |= {"image": None, "images": [row.image], "edit": edit(world, question, response, row.id)}
    jsonl.write(out, rows)
    print(f"{out}: {len(scored)} rows, {questions} questions, external system {EXTERNAL}")


def draw_all(questions: dict[str, WorldQuestion], root: Path, seed: int) -> None:
    """Draw the picture of every question into `root`. Raise UsageError if Pillow is not installed.

    `questions` maps paths of pictures to questions.
    """
    try:
        from drawing import draw  # noqa: PLC0415 - Pillow is not part of a plain installation
    except ImportError:
        raise UsageError("--pictures needs Pillow: pip install pillow") from None
    for name, question in questions.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        draw(str(question.scene.picture), question.truth, f"{seed}/{name}").save(root / name)


if __name__ == "__main__":
    run_program(main)
