"""A benchmark's data card: MultiVerse's table 1 and figure 4 and AlignMMBench's figure 2, of any benchmark."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import msgspec
from msgspec import Struct

from critic import benchmarks, jsonl, tables
from critic.building import difficulty, pictures
from critic.building.replies import Goal, Task
from critic.counting.diversity import Tokens, mtld, tokenizer, words
from critic.images import ImageError, Images, named_images
from critic.page import blocks, page, svg
from critic.page.blocks import Part, Section, Table, number, row
from critic.records import Conversation, ConversationTurn

MOST = 40
"""Classes in a picture; a table has all."""

UNEVEN = 2
"""How often a class may be more or less frequent than it would be were all of its kind even."""

NAMED = 8
"""Classes that a sentence names."""

KNOWN: dict[str, dict[str, Sequence[str]]] = {
    "multiverse": {"interaction goal": get_args(Goal)},
    "alignmmbench": {"task": get_args(Task)},
}
"""Benchmark -> the classes of a kind that there are, whether or not it has any of them."""

SUB_CLASSES = {
    "sub_goal_category": "interaction goal",
    "sub_task_category": "task",
    "image_sub_category": "image domain",
}
"""Column of MultiVerse's rows -> the kind whose classes it divides."""


class Spread(Struct, frozen=True):
    """Mean and maximum over `count` values, None over none."""

    mean: float | None
    maximum: float | None
    count: int


class CardFacts(Struct, frozen=True, kw_only=True):
    """What a data card says. `turns` are a conversation's; lengths are in tokens of the `tokenizer`, over all turns;
    the MTLD is that of each conversation's questions and of its references, `undefined` where no word comes twice.
    `classes` counts turns (tasks) and conversations (all others) by name, and images beside them; `sub_classes` says
    how many different ones a kind has below them; `uneven` is what `balances` says."""

    title: str
    conversations: int
    questions: int
    images: int
    groups: int
    turns: Spread
    tokenizer: str
    question_length: Spread
    answer_length: Spread
    question_diversity: Spread
    answer_diversity: Spread
    without_reference: int
    checklist_items: int
    main_aspects: int
    sub_aspects: int
    sub_classes: dict[str, int]
    classes: dict[str, dict[str, tuple[int, int]]]
    uneven: list[str]


class ImageFacts(Struct, frozen=True, kw_only=True):
    """What the images' files say: how many are `missing`, equal in bytes to another (`same`), or near one."""

    seen: int
    missing: int
    same: int
    near: int
    bits: int


def _spread(values: Iterable[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    return Spread(fmean(known) if known else None, max(known, default=None), len(known))


def facts(
    title: str, conversations: Sequence[Conversation], counted: str, tokens: Tokens, rows: Iterable[Any] = ()
) -> CardFacts:
    """What a card says of conversations, and of the `rows` that they stand in as far as SUB_CLASSES are concerned."""
    classes, subs = _classes(conversations), dict[str, set[Any]]()
    for line in rows:
        for column in SUB_CLASSES.keys() & line.keys():
            subs.setdefault(SUB_CLASSES[column], set()).add(line[column])
    turns = [turn for one in conversations for turn in one.turns]
    references = [turn.reference for turn in turns if turn.reference]
    items = {item for turn in turns for item in turn.checklist}
    aspects = {aspect for turn in turns for aspect in turn.aspects}
    return CardFacts(
        title=title,
        conversations=len(conversations),
        questions=len(turns),
        images=len(set(_images(turns))),
        groups=len({one.group for one in conversations}),
        turns=_spread(len(one.turns) for one in conversations),
        tokenizer=counted,
        question_length=_spread(len(tokens(turn.prompt)) for turn in turns),
        answer_length=_spread(len(tokens(text)) for text in references),
        question_diversity=_spread(_diversity(turn.prompt for turn in one.turns) for one in conversations),
        answer_diversity=_spread(_diversity(turn.reference for turn in one.turns) for one in conversations),
        without_reference=len(turns) - len(references),
        checklist_items=len(items),
        main_aspects=len({main for main, _ in aspects}),
        sub_aspects=len({sub for _, sub in aspects}),
        sub_classes={kind: len(some) for kind, some in sorted(subs.items())},
        classes=classes,
        uneven=balances(
            conversations[0].benchmark,
            {kind: {name: count for name, (count, _) in some.items()} for kind, some in classes.items()},
        ),
    )


def _images(turns: Iterable[ConversationTurn]) -> Iterator[str]:
    return (image for turn in turns for image in turn.images)


def _diversity(texts: Iterable[str | None]) -> float | None:
    return mtld(words("\n".join(text for text in texts if text)))


def _classes(conversations: Sequence[Conversation]) -> dict[str, dict[str, tuple[int, int]]]:
    """Of each kind of class the counts and the images by name, the most frequent first."""
    kinds: dict[str, Callable[[Conversation], Iterable[str | None]]] = {
        "task": lambda one: (turn.task for turn in one.turns),
        "category": lambda one: [one.category],
        "interaction goal": lambda one: [one.goal],
        "image domain": lambda one: [one.domain],
        "language": lambda one: [one.lang],
        "main aspect": lambda one: (main for turn in one.turns for main, _ in turn.aspects),
    }
    found = {}
    for kind, names_of in kinds.items():
        counts, images = Counter[str](), dict[str, set[str]]()
        for one in conversations:
            for name in names_of(one):
                if name is not None:
                    counts[name] += 1
                    images.setdefault(name, set()).update(_images(one.turns))
        if counts:
            found[kind] = {name: (count, len(images[name])) for name, count in counts.most_common()}
    return found


def image_facts(conversations: Sequence[Conversation], root: Path, bits: int) -> ImageFacts | None:
    """How alike the images of a benchmark are; None where there is none, none is to be found, or Pillow is lacking."""
    if find_spec("PIL") is None:
        return None
    named, uris = named_images(conversations)
    names = sorted({name for one in named for name in _images(one.turns)})
    if not names or not root.is_dir():
        return None
    images, found = Images(root, uris=uris), []
    for name in names:
        try:
            found.append(pictures.of_data(name, images.read(name)))
        except ImageError:
            continue
    hashed = [one for one in found if one.failure is None]
    if not hashed:
        return None
    reasons = Counter(one.reason for one in pictures.duplicates(hashed, bits))
    missing = len(names) - len(hashed)
    same, near = reasons["same_file"], reasons["near_duplicate"]
    return ImageFacts(seen=len(hashed), missing=missing, same=same, near=near, bits=bits)


def balance(kind: str, counts: Mapping[str, int], known: Iterable[str] = ()) -> list[str]:
    """What to look at where the classes of a kind, those that are `known` among them, are not even: one sentence, or
    none."""
    every = {**dict.fromkeys(known, 0), **counts}
    total = sum(every.values())
    even = total / max(1, len(every))
    found = {"too many": sorted(name for name, count in every.items() if count > UNEVEN * even)}
    found["too few"] = sorted(name for name, count in every.items() if count < even / UNEVEN)
    said = []
    for word, names in found.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        said += [f"{word}: {', '.join(f'{name} {every[name]}' for name in names[:NAMED])}{more}"] if names else []
    return [f"By {kind} it is not balanced, {even:.3g} each of {total} were even; {'; '.join(said)}."] if said else []


def balances(benchmark: str, classes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The same over tasks, goals and languages."""
    known = KNOWN.get(benchmark, {})
    kinds = [kind for kind in ("task", "interaction goal", "language") if kind in classes]
    return [line for kind in kinds for line in balance(kind, classes[kind], known.get(kind, ()))]


def sections(card: CardFacts, images: ImageFacts | None, lengths: dict[str, list[int]]) -> list[Section]:
    """The card: counts, then distributions. `lengths` are those of questions and answers."""
    counts = Section(heading="Statistics", tables=[_statistics(card)], readings=_readings(card, images))
    drawn = svg.lengths(f"Lengths in {card.tokenizer}: the share of questions and answers", lengths)
    spread = Section(heading="Lengths", pictures=[drawn] if drawn else [])
    parts = [_distribution(kind, found) for kind, found in card.classes.items()]
    return [counts, spread, Section(heading="Distributions", readings=card.uneven, parts=parts)]


def _origin(steps: Sequence[Mapping[str, Any]]) -> Section:
    """How many are left behind each step of `critic build`, and why the others are not."""
    why = [", ".join(f"{name} {count}" for name, count in one["reasons"].items()) or "–" for one in steps]
    rows = [
        row(one["step"], one["unit"], one["before"], one["after"], said) for one, said in zip(steps, why, strict=True)
    ]
    head = ["step", "of", "before", "after", "why others went"]
    return Section(
        heading="How it was made", tables=[Table(caption="What is left behind each step", head=head, rows=rows)]
    )


def _statistics(card: CardFacts) -> Table:
    def both(name: str, spread: Spread, decimals: int) -> blocks.TableRow:
        return row(name, number(spread.mean, decimals), "–" if spread.maximum is None else f"{spread.maximum:.6g}")

    rows = [
        row("conversations", card.conversations, ""),
        row("questions", card.questions, ""),
        row("images", card.images, ""),
        row("groups", card.groups, "", about="rows that share an image or a seed question"),
        both("turns of a conversation", card.turns, 2),
        both("length of a question", card.question_length, 2),
        both("length of an answer", card.answer_length, 2),
        both("diversity of questions (MTLD)", card.question_diversity, 2),
        both("diversity of answers (MTLD)", card.answer_diversity, 2),
    ]
    classes = [row(f"classes: {kind}", len(found), "") for kind, found in card.classes.items() if len(found) > 1]
    classes += [row(f"sub-classes: {kind}", count, "") for kind, count in card.sub_classes.items()]
    if card.checklist_items:
        classes += [row("different checklist items", card.checklist_items, "")]
    if card.main_aspects:
        classes += [row("main aspects", card.main_aspects, ""), row("sub-aspects", card.sub_aspects, "")]
    return Table(caption=card.title, head=["", "number or mean", "most"], rows=[*rows, *classes])


def _readings(card: CardFacts, images: ImageFacts | None) -> list[str]:
    said = [f"Lengths are in {card.tokenizer}, the MTLD in words; of Chinese every character is one."]
    for kind, spread in (("questions", card.question_diversity), ("answers", card.answer_diversity)):
        if spread.count < card.conversations:
            undefined = card.conversations - spread.count
            said.append(f"The MTLD of {kind} is not defined for {undefined} conversations, where no word comes twice.")
    if card.without_reference:
        said.append(f"{card.without_reference} questions have no reference.")
    if images is None:
        why = "are not at hand" if find_spec("PIL") else "are not looked at, which needs Pillow (pip install pillow)"
        said.append(f"The images {why}: how alike they are is not known.")
    else:
        missing = f", {images.missing} could not be read" if images.missing else ""
        near = f"{images.near} are near another (at most {images.bits} bits of 64)"
        said.append(f"Of {images.seen} images{missing}, {images.same} are the same file as another, {near}.")
    return said


def _distribution(kind: str, found: dict[str, tuple[int, int]]) -> Part:
    total = sum(count for count, _ in found.values())
    rows = [row(name, count, blocks.share(count / total), images) for name, (count, images) in found.items()]
    counted = {"task": "questions", "main aspect": "checklist items"}.get(kind, "conversations")
    table = Table(caption=f"By {kind}", head=[kind, counted, "share", "images"], rows=rows)
    shares = {name: {f"% of {counted}": 100 * count / total} for name, (count, _) in list(found.items())[:MOST]}
    drawn = svg.bars(f"By {kind}", shares, (0.0, max(count for count, _ in found.values()) * 100 / total))
    return Part(heading=f"By {kind}", tables=[table], pictures=[drawn] if drawn and len(found) > 1 else [])


def write(
    out: Path,
    name: str,
    file: Path,
    root: Path,
    counted: str,
    bits: int,
    judged: Sequence[benchmarks.Run] = (),
    steps: Sequence[Mapping[str, Any]] = (),
    leaks: Iterable[str] = (),
) -> str:
    """Write card.md with its pictures, card.html and card.json of a benchmark's file into a folder; its statistics as
    text. With `judged` conversations of several models it says how hard it is, with the `steps` of `critic build` how
    it was made, and what its splits share in `leaks`."""
    tokens, known = tokenizer(counted), benchmarks.load(name)
    found = known.read(file)
    rows = (one for _, one in tables.rows(file)) if name == "multiverse" else ()
    said, images = facts(known.title, found, counted, tokens, rows), image_facts(found, root, bits)
    turns = [turn for one in found for turn in one.turns]
    lengths = {
        "questions": [len(tokens(turn.prompt)) for turn in turns],
        "answers": [len(tokens(turn.reference)) for turn in turns if turn.reference],
    }
    shown = sections(said, images, lengths) + ([difficulty.section(judged, name)] if judged else [])
    shown[0].readings.extend(leaks)
    shown += [_origin(steps)] if steps else []
    title, about = f"Data card: {known.title}", f"{said.conversations} conversations, {said.images} images"
    origin = {file.name: {"benchmark": name, "sha256": jsonl.sha256(file), "tokenizer": counted}}
    page.write(out / "card.html", title, about, shown, origin)
    content: dict[str, Any] = {"title": title, "about": about, "sections": shown}
    content["pictures"] = page.write_pictures(out, "pictures", shown)
    jsonl.write_text(out / "card.md", page.render("critic.page", "sections.md.jinja", content))
    jsonl.write_json(out / "card.json", {**msgspec.to_builtins(said), "image_files": msgspec.to_builtins(images)})
    return "\n".join([blocks.as_text([shown[0], *shown[3:]]), *said.uneven])
