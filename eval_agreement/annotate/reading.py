"""From files to items: rows to score, and conversations that a model had."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from critic import benchmarks, human_scored, jsonl, tables
from critic.errors import UsageError, quoted
from critic.human_scored import OwnColumns
from critic.judging.answers import without_thoughts_in
from critic.records import Conversation, ModelTurn, Response, Turn, build_verdict_id
from critic.stages.judge_responses import read_responses
from critic.tables import cell_text
from eval_agreement.annotate.schemes import OVERALL, SCHEMES, Ask, Kind, LabelItem, Scheme, ShownPart, exchanged


def items_of(
    scheme: str, path: Path, against: Path | None = None, own: OwnColumns | None = None, benchmark: str | None = None
) -> list[LabelItem]:
    """The items of a file. Raises UsageError for an unknown scheme, a file that cannot be read, and one without any."""
    if scheme not in SCHEMES:
        raise UsageError(f"--scheme {scheme}: unknown; choose {', '.join(SCHEMES)}")
    definition = SCHEMES[scheme]
    if against is not None and not (definition.two and definition.source == "replies"):
        raise UsageError("--against compares whole conversations; it needs --scheme pairwise_conversation")
    if (definition.source == "benchmark") != (benchmark is not None):
        raise UsageError("--scheme review and --benchmark go together: they say whose file it is that people correct")
    if definition.source == "replies":
        items = list(_of_replies(definition, path, against))
    elif definition.source == "rows":
        items = list(_of_rows(definition, path, own))
    else:
        items = list(_of_benchmark(path, benchmark) if benchmark else _of_columns(definition, path))
    if not items:
        raise UsageError(f"{path}: nothing to label by the scheme {scheme}")
    return items


def _of_rows(scheme: Scheme, path: Path, own: OwnColumns | None) -> Iterator[LabelItem]:
    """Answers, or pairs of answers to one question as `critic judge` pairs them."""
    raw: dict[str, dict[str, Any]] = {}

    def read(left_out: Counter[str]) -> Iterator[Response]:
        flags = frozenset(human_scored.UNUSABLE_FLAGS)
        for _row, cells, response in human_scored.walk(path, Counter(), flags, scored=False, own=own):
            if response.cut_off:
                left_out[human_scored.CUT_OFF] += 1
                continue
            raw[response.id] = cells
            yield response

    for first, second in read_responses(read, path, scheme.form or "pointwise").values():
        question, both = first.question, [first] if second is None else [first, second]
        parts = [
            ShownPart("caption", "" if question.images and not scheme.edits else question.caption or ""),
            ShownPart("question", question.prompt),
            ShownPart("reference", question.reference or ""),
            ShownPart("focus", question.focus or ""),
            ShownPart("checklist", "\n".join(question.checklist) if scheme.edits else ""),
            *(ShownPart("answer", answer.text, side=side) for answer, side in zip(both, scheme.sides, strict=True)),
        ]
        row = raw[first.id]
        if second is not None:
            # Where it is `known` how an answer fares against the other, it is so of both.
            known = row.get("known") or exchanged(str(raw.get(second.id, {}).get("known", "")), True)
            row = {"task": question.task, "category": question.category, "lang": question.lang, "known": known}
            row |= {"length_a": len(first.text), "length_b": len(second.text), "response_a": first.text}
            row |= {"response_b": second.text, "system_a": first.system, "system_b": second.system}
            row |= {"question": question.prompt, "reference": question.reference, "images": question.images}
            row["history"] = msgspec.to_builtins(question.history)
        about: dict[str, Any] = {"lang": question.lang, "task": question.task, "group": question.group}
        shown, key = _dialogue(question.history) + _nonempty(parts), "+".join(answer.id for answer in both if answer.id)
        yield LabelItem(id=key, parts=shown, asks=_asks(scheme, first), row=row, images=question.images, **about)


def _about(talk: Conversation) -> dict[str, Any]:
    images = [image for turn in talk.turns for image in turn.images]
    return {"lang": talk.lang, "group": talk.group, "images": images}


def _dialogue(history: Sequence[Turn]) -> list[ShownPart]:
    return [part for turn in history for part in (ShownPart("user", turn.user), ShownPart("assistant", turn.assistant))]


def _nonempty(parts: Sequence[ShownPart]) -> list[ShownPart]:
    """Those that say something; an empty answer is one as well."""
    return [part for part in parts if part.text or part.kind == "answer"]


def _asks(scheme: Scheme, response: Response) -> list[Ask]:
    if scheme.form == "checklist":
        return [Ask(f"item={number}", text) for number, text in enumerate(response.question.checklist, 1)]
    named = response.question.criteria if scheme.form == "criteria" else {}
    return [*(Ask(f"criterion={name}", f"{name}: {about}") for name, about in named.items()), Ask(OVERALL)]


def _of_replies(scheme: Scheme, path: Path, against: Path | None) -> Iterator[LabelItem]:
    """Whole conversations, turn by turn, in which every turn was answered; two of them, or one and its references."""
    others = {} if against is None else _conversations(against)
    for key, turns in _conversations(path).items():
        first, opponent = turns[0], others.get(key, [])
        conversation = first.conversation
        theirs = [turn.reply for turn in opponent]
        if against is None:
            theirs = [turn.reference for turn in conversation.turns]
        if scheme.two and (not theirs or None in theirs):
            continue
        parts = []
        for turn, counterpart in zip(turns, theirs, strict=True):
            parts += _turn(scheme, turn, counterpart)
        protocol, system = "pairwise" if scheme.two else "direct", opponent[0].system if opponent else None
        asks = [*(Ask(str(turn.turn), turn=turn.turn) for turn in turns), Ask("whole")]
        row = {"category": conversation.category, "lang": conversation.lang, "system": first.system}
        verdict = build_verdict_id(conversation.id, first.condition, protocol, opponent=system)
        shown = _dialogue(conversation.history) + _nonempty(parts)
        yield LabelItem(id=verdict, parts=shown, asks=asks, row=row, **_about(conversation))


def _turn(scheme: Scheme, turn: ModelTurn, counterpart: str | None) -> list[ShownPart]:
    """A turn with its answer, and the other one or the reference."""
    number, question = turn.turn, turn.conversation.turns[turn.turn - 1]
    parts = [ShownPart("question", question.prompt, number), ShownPart("focus", question.focus or "", number)]
    if not scheme.two:
        parts.append(ShownPart("reference", counterpart or "", number))
    answers = zip([turn.reply, counterpart], scheme.sides, strict=False)
    return parts + [ShownPart("answer", text or "", number, side) for text, side in answers]


def _conversations(path: Path) -> dict[tuple[str, str], list[ModelTurn]]:
    """The turns of each conversation and condition, in order, where all of them have a reply."""
    by_conversation: dict[tuple[str, str], list[ModelTurn]] = defaultdict(list)
    for _, recorded in jsonl.read(path, ModelTurn):
        turn = without_thoughts_in(recorded)
        if turn.reply is not None:
            by_conversation[turn.conversation.id, turn.condition].append(turn)
    whole = {key: turns for key, turns in by_conversation.items() if len(turns) == len(turns[0].conversation.turns)}
    return {key: sorted(turns, key=lambda turn: turn.turn) for key, turns in whole.items()}


def _of_columns(scheme: Scheme, path: Path) -> Iterator[LabelItem]:
    """Rows of a table whose columns a scheme of its own names; of a picture given as an address the file's name."""
    ids = tables.Ids()
    for number, (location, row) in enumerate(tables.rows(path), 1):
        key, lang = (
            ids.add(location, tables.optional_text(row, "id") or str(number)),
            tables.parse_language(location, row),
        )
        images = (
            [re.sub(r"https?://.*/", "", tables.parse_image(location, row.get(scheme.images)))] if scheme.images else []
        )
        parts = [ShownPart(kind, tables.require_text(location, row, column)) for kind, column in scheme.shows.items()]
        group = images[0] if images else key
        yield LabelItem(id=key, lang=lang, group=group, parts=parts, asks=scheme.asks, images=images, row=row)


def _of_benchmark(path: Path, name: str) -> Iterator[LabelItem]:
    """A benchmark's conversations with what may be corrected of them, and behind each the line of its file."""
    talks, lines = benchmarks.read(name, path), [row for _, row in tables.rows(path)]
    if path.suffix == ".parquet" or len(talks) != len(lines):
        raise UsageError(f"{path}: to be reviewed it has to be .jsonl, .csv or .xlsx, a line a conversation")
    for talk, row in zip(talks, lines, strict=True):
        parts = [ShownPart("caption", talk.caption or ""), *_dialogue(talk.history)]
        for number, turn in enumerate(talk.turns, 1):
            texts: dict[Kind, str | None] = {"question": turn.prompt, "reference": turn.reference, "focus": turn.focus}
            texts["checklist"] = "\n".join(turn.checklist)
            parts += [ShownPart(kind, text or "", number) for kind, text in texts.items()]
        yield LabelItem(id=talk.id, parts=_nonempty(parts), asks=[Ask(OVERALL)], row=row, **_about(talk))


def answers_of(scheme: str, checks: Sequence[LabelItem]) -> dict[str, dict[str, str]]:
    """The known answer to each question of items, by id. Raises UsageError for one that none may give."""
    choices, answers = SCHEMES[scheme].choices, {}
    for item in checks:
        known = cell_text(item.row.get("known"))
        if known not in choices:
            raise UsageError(
                f"--checks: {quoted(item.id)}: `known` is {quoted(known)}; expected one of {', '.join(choices)}"
            )
        answers[item.id] = {ask.key: known for ask in item.asks}
    return answers
