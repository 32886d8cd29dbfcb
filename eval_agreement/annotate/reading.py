"""Read items to label from files: rows, a model's conversations, tables, and benchmarks to correct."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from critic import benchmarks, human_scored, jsonl, records, tables
from critic.errors import UsageError, quoted
from critic.human_scored import OwnColumns
from critic.judging.thoughts import without_thoughts
from critic.judging.transcripts import Transcripts, read_transcripts
from critic.records import CUT_OFF, Conversation, Judgment, ModelTurn, Response, Turn, build_verdict_id
from critic.stages.judge_responses import read_responses
from eval_agreement.annotate.schemes import OVERALL, SCHEMES, Ask, Kind, LabelItem, Scheme, ShownPart, exchanged


def read_items(
    scheme: str, path: Path, against: Path | None = None, own: OwnColumns | None = None, benchmark: str | None = None
) -> list[LabelItem]:
    """Read the items of a file for a labelling scheme.

    `against`: file of another model's replies, for a comparison of whole conversations; or of another judge's verdicts,
        by default `path` itself with its ablations.
    `own`: the meaning of columns in the user's own table, or None.
    `benchmark`: name of the benchmark to correct, or None.
    Raises UsageError for an unknown scheme, options that do not fit it, or a file without items.
    """
    if scheme not in SCHEMES:
        raise UsageError(f"--scheme {scheme}: unknown; choose {', '.join(SCHEMES)}")
    definition = SCHEMES[scheme]
    if against is not None and not (definition.two and definition.source in ("replies", "judgments")):
        raise UsageError("--against compares whole conversations; it needs --scheme pairwise_conversation or judgments")
    if (definition.source == "benchmark") != (benchmark is not None):
        raise UsageError("--scheme review and --benchmark go together: they say whose file it is that people correct")
    if definition.source == "replies":
        read = _read_replies(definition, path, against)
    elif definition.source == "judgments":
        read = _read_judgments(path, against or path)
    elif definition.source == "rows":
        read = _read_rows(definition, path, own)
    else:
        read = _read_benchmark(path, benchmark) if benchmark else _read_columns(definition, path)
    items = list(read)
    # A page without items would look as if everything were labelled.
    if not items:
        raise UsageError(f"{path}: nothing to label by the scheme {scheme}")
    return items


def _read_rows(scheme: Scheme, path: Path, own: OwnColumns | None) -> Iterator[LabelItem]:
    """Yield an item per answer, or per pair of answers to one question, formed as in `critic judge`."""
    raw: dict[str, dict[str, Any]] = {}

    def read(left_out: Counter[str]) -> Iterator[Response]:
        flags = frozenset(human_scored.UNUSABLE_FLAGS)
        for _row, cells, response in human_scored.walk(path, Counter(), flags, scored=False, own=own):
            if response.cut_off:
                left_out[CUT_OFF] += 1
                continue
            raw[response.id] = cells
            yield response

    for first, second in read_responses(read, path, scheme.form or "pointwise").values():
        question, both = first.question, [first] if second is None else [first, second]
        # A rater who sees the image needs no caption, unless it is to be corrected.
        caption = None if question.images and not scheme.edits else question.caption
        kinds = (*_MATERIAL, "checklist") if scheme.edits else _MATERIAL
        parts = _list_dialogue(question.history, caption) + _list_material(question, kinds)
        parts += [ShownPart("answer", answer.text, side=side) for answer, side in zip(both, scheme.sides, strict=True)]
        # The second of two answers in one row has no id of its own.
        key = "+".join(answer.id for answer in both if answer.id)
        row = raw[first.id] if second is None else _build_pair_row(first, second, raw)
        about: dict[str, Any] = {"lang": question.lang, "task": question.task, "group": question.group}
        yield LabelItem(id=key, parts=parts, asks=_list_asks(scheme, first), row=row, images=question.images, **about)


def _build_pair_row(first: Response, second: Response, raw: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Build the exported row of a pair of responses. `raw`: the source rows by response id."""
    question = first.question
    # The known answer may stand in either row, each from its own side.
    known = raw[first.id].get("known") or exchanged(str(raw.get(second.id, {}).get("known", "")), True)
    row = {"task": question.task, "category": question.category, "lang": question.lang, "known": known}
    row |= {"length_a": len(first.text), "length_b": len(second.text), "response_a": first.text}
    row |= {"response_b": second.text, "system_a": first.system, "system_b": second.system}
    row |= {"question": question.prompt, "reference": question.reference, "images": question.images}
    return {**row, "history": msgspec.to_builtins(question.history)}


def _conversation_facts(talk: Conversation) -> dict[str, Any]:
    """Return a conversation's language, group and images as keyword arguments for LabelItem."""
    images = list(chain.from_iterable(turn.images for turn in talk.turns))
    return {"lang": talk.lang, "group": talk.group, "images": images}


def _list_dialogue(history: Sequence[Turn], caption: str | None = None) -> list[ShownPart]:
    """Return the caption, if there is one, and the texts of user and assistant in earlier turns, in order."""
    parts = [ShownPart("caption", caption)] if caption else []
    for turn in history:
        parts += [ShownPart("user", turn.user), ShownPart("assistant", turn.assistant)]
    return parts


_MATERIAL: tuple[Kind, ...] = ("question", "reference", "focus")


def _list_material(
    question: records.Question | records.ConversationTurn, kinds: Iterable[Kind], turn: int = 0
) -> list[ShownPart]:
    """Return the texts of a question or turn, of these kinds, that are not answers. `turn`: its number, or 0."""
    texts: dict[Kind, str | None] = {"question": question.prompt, "checklist": "\n".join(question.checklist)}
    texts |= {"reference": question.reference, "focus": question.focus}
    return [ShownPart(kind, text, turn) for kind in kinds if (text := texts[kind])]


def _list_asks(scheme: Scheme, response: Response) -> list[Ask]:
    """List the questions about an answer: one per checklist item, or one per criterion and one about the whole."""
    if scheme.form == "checklist":
        return [Ask(f"item={number}", text) for number, text in enumerate(response.question.checklist, 1)]
    named = response.question.criteria if scheme.form == "criteria" else {}
    return [*(Ask(f"criterion={name}", f"{name}: {about}") for name, about in named.items()), Ask(OVERALL)]


def _read_replies(scheme: Scheme, path: Path, against: Path | None) -> Iterator[LabelItem]:
    """Yield an item per completely answered conversation, beside another model's answers or the references.

    `against`: file of the other model's replies; None to show the references.
    A comparison of two sides leaves out conversations that the other side lacks or answered only in part.
    """
    others = {} if against is None else _read_answered(against)
    for key, transcript in _read_answered(path).items():
        conversation, opponent = transcript.conversation, others.get(key)
        theirs = [turn.reference for turn in conversation.turns] if against is None else []
        if opponent:
            theirs = [opponent.answer(number) for number in sorted(opponent.turns)]
        # There is nothing to compare with if the other side lacks an answer.
        if scheme.two and (not theirs or None in theirs):
            continue
        parts, asks = _list_dialogue(conversation.history), list[Ask]()
        # With two sides the reference is an answer, and must not be told from the other one.
        kinds: tuple[Kind, ...] = ("question", "focus") if scheme.two else ("question", "focus", "reference")
        for number, (question, counterpart) in enumerate(zip(conversation.turns, theirs, strict=False), 1):
            parts += _list_material(question, kinds, number)
            for text, side in zip([transcript.turns[number].reply, counterpart], scheme.sides, strict=False):
                parts.append(ShownPart("answer", text or "", number, side))
            asks.append(Ask(str(number), turn=number))
        protocol, system = "pairwise" if scheme.two else "direct", opponent.system if opponent else None
        verdict = build_verdict_id(conversation.id, transcript.condition, protocol, opponent=system)
        row = {"category": conversation.category, "lang": conversation.lang, "system": transcript.system}
        asks.append(Ask("whole"))
        yield LabelItem(id=verdict, parts=parts, asks=asks, row=row, **_conversation_facts(conversation))


def _read_answered(path: Path) -> Transcripts:
    """Read a model's transcripts, except those with a missing reply. Raises UsageError as `read_transcripts` does."""
    _, first = next(jsonl.read(path, ModelTurn))
    complete = Transcripts()
    for key, transcript in read_transcripts(path, first.conversation.benchmark).items():
        if not transcript.problem(range(1, len(transcript.conversation.turns) + 1)):
            complete[key] = transcript
    return complete


def _read_judgments(path: Path, against: Path) -> Iterator[LabelItem]:
    """Yield an item per pair of judgments of one reply, which raters compare (ConvBench §I.2).

    The first is the standard judgment in `path`. The second, in `against`, is by another judge or an ablation. Failed
    judgments and comparisons of two models are left out.
    """
    theirs = defaultdict[Any, list[Judgment]](list)
    for _, line in jsonl.read(against, Judgment):
        theirs[line.sample.key_of(line.protocol, "")].append(line)
    for _, mine in jsonl.read(path, Judgment):
        for other in theirs[mine.sample.key_of(mine.protocol, "")] if mine.judging == "standard" else []:
            # A file that is given twice holds each standard judgment twice.
            same = (mine.judge, mine.judging) == (other.judge, other.judging)
            if not (same or mine.failure or other.failure or mine.opponent):
                yield _build_judgments_item(mine, other)


def _build_judgments_item(mine: Judgment, other: Judgment) -> LabelItem:
    """Build the item that shows a reply, or a whole conversation, and two judgments of it without their judges."""
    talk, shown = mine.conversation, mine.sample.shown
    turns = talk.turns if mine.turn is None else [talk.turns[mine.turn - 1]]
    earlier = shown.sides[0].earlier if shown else []
    parts = _list_dialogue([Turn(user=before.question, assistant=before.answer) for before in earlier])
    for turn in turns:
        # The questions of a whole conversation stand in its dialogue.
        parts += _list_material(turn, _MATERIAL if mine.turn else _MATERIAL[1:])
    parts += [ShownPart("answer", mine.sample.answer)] if mine.sample.answer else []
    pairs = zip(("A", "B"), (mine, other), strict=True)
    parts += [ShownPart("judgment", _show_judgment(judgment), side=side) for side, judgment in pairs]
    ways = {"system_a": f"{mine.judge}, {mine.judging}", "system_b": f"{other.judge}, {other.judging}"}
    row = {"category": talk.category, "lang": talk.lang, "system": mine.system, **ways}
    asks, key = [Ask(OVERALL)], f"{mine.id}, {ways['system_b']}"
    return LabelItem(id=key, parts=parts, asks=asks, row=row, **_conversation_facts(talk))


def _show_judgment(judgment: Judgment) -> str:
    """Return a judgment's value and reason as raters read it."""
    call, value = judgment.calls[0], judgment.calls[0].value
    # Only this judge's prompt says who its A was.
    named = {"model": " (A: answer, B: reference)", "opponent": " (A: reference, B: answer)"}.get(call.first or "", "")
    return f"{value}{named}. {judgment.verdict.reason or without_thoughts(call.reply)}"


def _read_columns(scheme: Scheme, path: Path) -> Iterator[LabelItem]:
    """Yield an item per row of a table, from the columns that the scheme names."""
    ids = tables.Ids()
    for number, (location, row) in enumerate(tables.rows(path), 1):
        key = ids.add(location, tables.optional_text(row, "id") or str(number))
        lang = tables.parse_language(location, row)
        images = []
        if scheme.images:
            # An image given as an address lies here under its file name.
            images = [re.sub(r"https?://.*/", "", tables.parse_image(location, row.get(scheme.images)))]
        parts = [ShownPart(kind, tables.require_text(location, row, column)) for kind, column in scheme.shows.items()]
        group = images[0] if images else key
        yield LabelItem(id=key, lang=lang, group=group, parts=parts, asks=scheme.asks, images=images, row=row)


def _read_benchmark(path: Path, name: str) -> Iterator[LabelItem]:
    """Yield an item per conversation of the benchmark `name`, with its texts to correct and its line of the file.

    Raises UsageError if the file does not have one line per conversation.
    """
    talks, lines = benchmarks.read(name, path), [row for _, row in tables.rows(path)]
    if path.suffix == ".parquet" or len(talks) != len(lines):
        raise UsageError(f"{path}: a file to review needs one line per conversation, as .jsonl, .csv or .xlsx")
    for talk, row in zip(talks, lines, strict=True):
        parts = _list_dialogue(talk.history, talk.caption)
        for number, turn in enumerate(talk.turns, 1):
            parts += _list_material(turn, (*_MATERIAL, "checklist"), number)
        yield LabelItem(id=talk.id, parts=parts, asks=[Ask(OVERALL)], row=row, **_conversation_facts(talk))


def read_known_answers(scheme: str, checks: Sequence[LabelItem]) -> dict[str, dict[str, str]]:
    """Return the known answers of the check items, keyed by item id and question key.

    Raises UsageError if an answer is not a choice of the scheme.
    """
    choices, answers = SCHEMES[scheme].choices, {}
    for item in checks:
        known = tables.cell_text(item.row.get("known"))
        if known not in choices:
            expected = f"expected one of {', '.join(choices)}"
            raise UsageError(f"--checks: {quoted(item.id)}: `known` is {quoted(known)}; {expected}")
        answers[item.id] = dict.fromkeys((ask.key for ask in item.asks), known)
    return answers
