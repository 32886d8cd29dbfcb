"""Build a benchmark's data card: totals, lengths and distributions of classes.

After MultiVerse's table 1 and figure 4 and AlignMMBench's figure 2, for any benchmark.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct, to_builtins

from critic import benchmarks, jsonl
from critic.page import page
from critic.page.blocks import Part, Section, Table, axis_of, bar, number, row, share
from critic.records import Conversation, ConversationTurn
from critic.stats.diversity import mtld, words

_READING = "Lengths are in words; of Chinese every character is one. MTLD is a measure of lexical diversity."

ASKED = "verb and noun"
"""Name of a class of English questions: their first verb (no auxiliary) and the first noun after it. Words are tagged,
not parsed (cf. VisIT-Bench's figure of root verbs and their objects)."""

KINDS = ("task", "task and turn", ASKED, "category", "interaction goal", "image domain", "language", "main aspect")
"""Kinds of class, in the order of the card."""

MOST_ASKED = 20
"""Number of rows shown of the ASKED table; card.json has all."""

_AUXILIARIES = frozenset(("please", "be", "am", "are", "is", "was", "were", "do", "does", "did", "have", "has", "had"))


class Spread(Struct, frozen=True):
    """Mean and maximum of `count` values; None without values."""

    mean: float | None
    maximum: float | None
    count: int


class CardFacts(Struct, frozen=True):
    """The content of a data card.

    `counts` are totals by name. `spreads` are lengths over all turns, and the MTLD of each conversation's questions
    and references (undefined if no word repeats). `classes` maps each kind of class to its names with (number of
    turns or conversations, number of images).
    """

    counts: dict[str, int]
    spreads: dict[str, Spread]
    classes: dict[str, dict[str, tuple[int, int]]]


def _measure(values: Iterable[float | None]) -> Spread:
    """Return mean, maximum and count of the values that are not None.

    >>> _measure([1.0, None, 3.0])
    Spread(mean=2.0, maximum=3.0, count=2)
    """
    defined = [value for value in values if value is not None]
    return Spread(fmean(defined) if defined else None, max(defined, default=None), len(defined))


def collect_facts(conversations: Sequence[Conversation]) -> CardFacts:
    """Compute the content of a data card from a benchmark's conversations.

    The printed counts are those of `_count_totals`, in its order.

    >>> def talk(key, *prompts, lang="en", **fields):
    ...     turn = {"reference": "yes yes", "task": "Counting", "images": ["a.png"]}
    ...     turns = [ConversationTurn(prompt=prompt, **turn) for prompt in prompts]
    ...     return Conversation(id=key, lang=lang, group=key, turns=turns, **fields)
    >>> facts = collect_facts([talk("1", "how many", "and now then", goal="Analysis"), talk("2", "who is it")])
    >>> list(facts.counts.values())
    [2, 3, 1, 2, 0, 0, 0, 0]
    >>> for name, spread in facts.spreads.items():
    ...     print(f"{name}:", spread.count, *(value and round(value, 3) for value in (spread.mean, spread.maximum)))
    turns of a conversation: 2 1.5 2
    length of a question: 3 2.667 3
    length of a caption: 0 None None
    length of an answer: 3 2.0 2
    diversity of questions (MTLD): 0 None None
    diversity of answers (MTLD): 2 1.307 1.493
    >>> facts.classes["task"], facts.classes["interaction goal"]
    ({'Counting': (3, 1)}, {'Analysis': (1, 1)})

    English questions are classified by their first verb that is not an auxiliary, and the first noun after it:

    >>> one = talk("1", "Describe the image in detail.", "Can you identify the plant?", "Is it red?")
    >>> two = talk("2", "Write a poem about dogs.", "Please describe the images, and the image.")
    >>> list(collect_facts([one, two, talk("3", "Describe the image.", lang="zh")]).classes[ASKED].items())
    [('describe image', (1, 1)), ('identify plant', (1, 1)), ('write poem', (1, 1)), ('describe images', (1, 1))]
    """
    turns = [turn for conversation in conversations for turn in conversation.turns]
    questions = ["\n".join(turn.prompt for turn in conversation.turns) for conversation in conversations]
    answers = ["\n".join(turn.reference or "" for turn in conversation.turns) for conversation in conversations]
    spreads = {
        "turns of a conversation": _measure(len(conversation.turns) for conversation in conversations),
        "length of a question": _measure(len(words(turn.prompt)) for turn in turns),
        "length of a caption": _measure(len(words(talk.caption)) for talk in conversations if talk.caption),
        "length of an answer": _measure(len(words(turn.reference)) for turn in turns if turn.reference),
        "diversity of questions (MTLD)": _measure(mtld(words(text)) for text in questions),
        "diversity of answers (MTLD)": _measure(mtld(words(text)) for text in answers),
    }
    return CardFacts(_count_totals(conversations, turns), spreads, _count_classes(conversations))


def _count_totals(conversations: Sequence[Conversation], turns: Sequence[ConversationTurn]) -> dict[str, int]:
    """Count conversations, questions, images, groups and checklist items; return the totals by their names in the
    card."""
    aspects = {aspect for turn in turns for aspect in turn.aspects}
    return {
        "conversations": len(conversations),
        "questions": len(turns),
        "images": len({image for turn in turns for image in turn.images}),
        "groups (rows that share an image or a seed question)": len({talk.group for talk in conversations}),
        "questions without reference": sum(not turn.reference for turn in turns),
        "different checklist items": len({item for turn in turns for item in turn.checklist}),
        "main aspects": len({main for main, _ in aspects}),
        "sub-aspects": len({sub for _, sub in aspects}),
    }


def _find_request(question: str) -> str | None:
    """Return "verb noun" of an English question, or None if it lacks one of them or the extra `card` is missing."""
    try:
        from textblob.en.taggers import PatternTagger  # noqa: PLC0415 - an extra of its own
    # The card is useful without this one table, so the extra stays optional.
    except ImportError:
        return None
    tags = iter(PatternTagger().tag(question))
    verb = next((word for word, tag in tags if tag in ("VB", "VBP") and word.lower() not in _AUXILIARIES), None)
    noun = next((word for word, tag in tags if tag.startswith("NN")), None)
    return f"{verb} {noun}".lower() if verb and noun else None


def _list_classes(conversation: Conversation) -> Iterator[tuple[str, str | None]]:
    """Yield the classes of a conversation and of its turns, as pairs of a kind (KINDS) and a class name or None."""
    for place, turn in enumerate(conversation.turns, 1):
        yield "task", turn.task
        # ConvBench's three levels (figure 5).
        if conversation.turns[0].task != conversation.turns[-1].task:
            yield "task and turn", f"{place}. {turn.task}"
        if conversation.lang == "en":
            yield ASKED, _find_request(turn.prompt)
        for main, _ in turn.aspects:
            yield "main aspect", main
    yield "category", conversation.category
    yield "interaction goal", conversation.goal
    yield "image domain", conversation.domain
    yield "language", conversation.lang


def _count_classes(conversations: Sequence[Conversation]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the classes of each kind in KINDS, as class name -> (count, number of images), most frequent first.

    Kinds without any class are left out.
    """
    counts, images = {kind: Counter[str]() for kind in KINDS}, defaultdict[tuple[str, str], set[str]](set)
    for conversation in conversations:
        for kind, name in _list_classes(conversation):
            if name:
                counts[kind][name] += 1
                images[kind, name].update(*(turn.images for turn in conversation.turns))
    classes = {}
    # A benchmark without tasks, goals or domains gets no empty table.
    for kind in filter(counts.__getitem__, KINDS):
        classes[kind] = {name: (count, len(images[kind, name])) for name, count in counts[kind].most_common()}
    return classes


def _build_origin(steps: Sequence[Mapping[str, Any]]) -> Section:
    """Build the section on how the benchmark was made: how many items each step of `critic build` kept, and why others
    were dropped."""
    rows = []
    for step in steps:
        why = ", ".join(f"{name} {count}" for name, count in step["reasons"].items()) or "–"
        rows.append(row(step["step"], step["unit"], step["before"], step["after"], why))
    head = ["step", "of", "before", "after", "why others went"]
    table = Table(caption="What is left behind each step", head=head, rows=rows)
    return Section(heading="How it was made", tables=[table])


def _build_statistics(title: str, card: CardFacts) -> Section:
    """Build the section with totals and lengths; `title` is the benchmark's."""
    rows = [row(name, count, "") for name, count in card.counts.items() if count]
    for name, spread in card.spreads.items():
        most = number(spread.maximum, 0 if isinstance(spread.maximum, int) else 2)
        # Most benchmarks have no captions at all.
        if spread.count or "caption" not in name:
            rows.append(row(name, number(spread.mean, 2), most))
    rows += [row(f"classes: {kind}", len(names), "") for kind, names in card.classes.items() if len(names) > 1]
    table = Table(caption=title, head=["", "number or mean", "most"], rows=rows)
    return Section(heading="Statistics", tables=[table], readings=[_READING])


def _build_distribution(kind: str, names: Mapping[str, tuple[int, int]]) -> Part:
    """Build the table of one kind of class, with a bar for the share of each name.

    `names` maps each name to (count, number of images).
    """
    total = sum(count for count, _ in names.values())
    # Only this class has thousands of names.
    shown = list(names.items())[: MOST_ASKED if kind == ASKED else None]
    bars = {name: bar(count / total, None) for name, (count, _) in shown}
    rows = [row(name, count, share(count / total), images, bar=bars[name]) for name, (count, images) in shown]
    units = {"task": "questions", "task and turn": "questions", ASKED: "questions", "main aspect": "checklist items"}
    head, axis = [kind, units.get(kind, "conversations"), "share", "images"], axis_of(bars.values())
    return Part(tables=[Table(caption=f"By {kind}", head=head, rows=rows, axis=axis)])


def write(out: Path, name: str, file: Path, steps: Sequence[Mapping[str, Any]] = ()) -> str:
    """Write card.html and card.json for a benchmark's file into the folder `out`, and return the statistics as text.

    `name` is the benchmark. With the `steps` of `critic build`, the card also says how the benchmark was made.
    """
    benchmark = benchmarks.load(name)
    card = collect_facts(benchmarks.read(name, file))
    parts = [_build_distribution(kind, names) for kind, names in card.classes.items()]
    sections = [_build_statistics(benchmark.title, card), Section(heading="Distributions", parts=parts)]
    sections += [_build_origin(steps)] if steps else []
    about = f"{card.counts['conversations']} conversations, {card.counts['images']} images"
    origin = {file.name: {"benchmark": name, "sha256": jsonl.sha256(file)}}
    page.write(out / "card.html", f"Data card: {benchmark.title}", sections, origin, about=about)
    jsonl.write_json(out / "card.json", {"title": benchmark.title, **to_builtins(card)})
    return page.as_text([sections[0], *sections[2:]])
