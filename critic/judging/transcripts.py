"""Read a model's transcripts from the output of `critic infer` or of another program, and pair them with other models'.

A transcript is a model's replies to one conversation under one condition. The output of another program is a plain
table or the result file of an evaluation harness:

    id,turn,text                                     a table (.csv, .tsv, .jsonl, .xlsx, .parquet)
    {"question_id": "17-0", "predict": "两只。"}      AlignMMBench
    {"index": 3, "prediction": "A red kite."}        VLMEvalKit, of several turns prediction_0, prediction_1 …
    {"doc_id": 0, "filtered_resps": ["Two."]}        lmms-eval (--log_samples): doc_id counts the questions from 0

Ids are the benchmark's. A table may also have a column `condition` (default "own") and the question, which is checked.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, toml
from msgspec.structs import replace

from critic import jsonl, tables
from critic.errors import UsageError, hash_value, quoted, replace_surrogates, shorten_line
from critic.judging.history import CONDITIONS, messages
from critic.judging.prompt import show_history
from critic.judging.thoughts import say_thoughts, with_reply, without_thoughts_in
from critic.records import Conversation, Exchange, Failure, ModelTurn, Pairing, Sampling, SentMessage, TurnFailure

QUESTIONS = ("question", "instruction", "prompt", "query", "input")
"""Columns in which harnesses write the question, often with text around it."""

_IMAGE = re.compile(r"<\W*(image|img|video)\W*\d*\W*>|\\n", re.IGNORECASE)
"""Pattern of an image placeholder in a prompt, and of a line break that was written as the two characters \\n."""

LOST = "Failed to obtain answer"
"""Beginning of a failed reply in VLMEvalKit's files. It is followed by "via API." or the error."""


def lost(text: str | None) -> Literal["empty", "server_error"] | None:
    """Return the failure that another program recorded as a reply, or None if the reply is an answer.

    >>> lost("Failed to obtain answer via API.")
    'server_error'
    """
    if text is None or not text.strip():
        return "empty"
    return "server_error" if text.lstrip().startswith(LOST) else None


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The layout of another program's result file.

    - `id`: name of the column with the conversation's id.
    - `numbered`: True if ids are positions in the benchmark's file, from 0.
    - `text`: name of the column with the reply, or prefix of the columns TEXT_0, TEXT_1, … with one turn each.
    - `turn`: name of the column with the turn's number; None if the first reply is to turn 1.
    """

    id: str
    text: str
    turn: str | None = None
    numbered: bool = False

    def fits(self, row: tables.Row) -> bool:
        return self.id in row and (self.text in row or f"{self.text}_0" in row)

    def replies(self, location: str, row: tables.Row) -> Iterator[tuple[int, str | None]]:
        """Yield the replies of a row as pairs (number of the turn, from 1; text, or None if it is empty).

        `location`: the row's place in error messages. Raises UsageError if the turn is not a number.
        """
        if self.text not in row:
            for name in row:
                number = name.removeprefix(f"{self.text}_")
                if number.isdecimal() and (text := tables.optional_text(row, name)) is not None:
                    yield int(number) + 1, text
            return
        texts = list(_list_texts(row[self.text]))
        turn = tables.optional_text(row, self.turn) if self.turn else None
        if turn is not None and not turn.isdecimal():
            raise UsageError(f"{location}: {quoted(self.turn)} is {quoted(turn)}; expected a turn's number, from 1")
        yield from enumerate(texts or [None], int(turn or 1))


LAYOUTS = toml.decode(Path(__file__).with_name("layouts.toml").read_bytes(), type=dict[str, list[Layout]])["layouts"]


def _list_texts(value: Any) -> Iterator[str | None]:
    """Yield the texts in a table cell; lmms-eval writes lists of lists. An empty text is None."""
    if isinstance(value, list):
        for item in value:
            yield from _list_texts(item)
    else:
        yield tables.optional_text({"": value}, "")


def _fold(text: str) -> str:
    """Normalize a text for matching: lower case, no punctuation, one space between words and at both ends."""
    spoken = unicodedata.normalize("NFKC", _IMAGE.sub(" ", text)).casefold()
    return " ".join(["", *re.findall(r"[^\W_]+", spoken), ""])


def _find_contradiction(row: tables.Row, prompts: Sequence[str]) -> str | None:
    """Return a text that says how a row's question differs from the `prompts`, or None if it does not contradict them.

    There is no contradiction if the question contains one of the prompts or is contained in one, ignoring case and
    punctuation, or if the row has no question. `prompts`: the benchmark's questions to which the row replies.
    """
    doc = row.get("doc")
    cells = [part.get(name) for part in (row, doc if isinstance(doc, dict) else {}) for name in QUESTIONS]
    texts = {words: text for cell in cells for text in _list_texts(cell) if text and (words := _fold(text)).strip()}
    expected = {_fold(prompt) for prompt in prompts}
    if not texts or not expected or any(words in prompt or prompt in words for words in texts for prompt in expected):
        return None
    return f"asks {prompts[0][:200]!r}, the row has {next(iter(texts.values()))[:200]!r}"


def benchmark_of(path: Path, questions: Path | None) -> str | None:
    """Return the name of the benchmark that a file's records belong to, or None if they belong to none.

    `questions`: the benchmark's file (option --questions), or None. Raises UsageError for another program's replies,
    because these do not name their benchmark. Rows in AlignMMBench's layout are accepted if `questions` is given.
    """
    row = tables.read_first_row(path) or {}
    if isinstance(conversation := row.get("conversation"), dict):
        return str(conversation.get("benchmark"))
    if any(layout.fits(row) for layout in LAYOUTS) and not ("predict" in row and questions):
        kind = "answers to AlignMMBench" if "predict" in row else "replies of another program"
        raise UsageError(
            f"{path}: {kind}: give --benchmark NAME and --questions, its file (or rows of no benchmark: --map)"
        )
    return None


def is_table(path: Path) -> bool:
    """Return True if a file is a table of another program's replies, and False if `critic infer` wrote it."""
    if jsonl.suffix(path) == ".jsonl":
        row = tables.read_first_row(path)
        return row is not None and "conversation" not in row
    return jsonl.suffix(path) in tables.READABLE


def read_table(path: Path, conversations: Sequence[Conversation], system: str) -> Iterator[ModelTurn]:
    """Read a model's replies from another program's table. Yield turns like those of critic infer, but without images.

    Args:
        conversations: The benchmark's conversations.
        system: The model's name.

    Raises UsageError for unknown columns, for an unknown id, condition or turn, for a turn that occurs twice or without
    an earlier one, and for a question that differs from the benchmark's.
    """
    by_id = {conversation.id: conversation for conversation in conversations}
    replies: dict[tuple[str, str], dict[int, str | None]] = {}
    layout: Layout | None = None
    for location, row in tables.rows(path):
        layout = layout or _find_layout(location, row)
        key = tables.require_text(location, row, layout.id)
        tables.check_ids([key], location, layout.id)
        if layout.numbered and key.isdecimal() and int(key) < len(conversations):
            key = conversations[int(key)].id
        condition = tables.optional_text(row, "condition") or "own"
        if key not in by_id:
            raise UsageError(f"{location}: {layout.id} {quoted(key)} is not in the benchmark's file")
        if condition not in CONDITIONS:
            raise UsageError(f"{location}: no {quoted(condition)}")
        turns, texts = by_id[key].turns, replies.setdefault((key, condition), {})
        prompts = []
        for turn, text in layout.replies(location, row):
            if turn not in CONDITIONS[condition].asked(len(turns)) or turn in texts:
                twice = "is there twice" if turn <= len(turns) else f"is not there: it has {len(turns)}"
                raise UsageError(f"{location}: turn {turn} of {quoted(key)} ({condition}) {twice}")
            texts[turn] = text
            prompts.append(turns[turn - 1].prompt)
        if why := _find_contradiction(row, prompts):
            remedy = "give as --questions the file that was asked, in its order"
            raise UsageError(f"{location}: {layout.id} {quoted(key)} {why}; {remedy}")
    for (key, name), texts in replies.items():
        yield from _build_turns(by_id[key], name, texts, system, path)


def _find_layout(location: str, row: tables.Row) -> Layout:
    """Return the layout that fits a row's columns. Raise UsageError if none does."""
    layout = next((layout for layout in LAYOUTS if layout.fits(row)), None)
    if layout is None:
        layouts = "; ".join(f"{layout.id}, {layout.text}" for layout in LAYOUTS)
        raise UsageError(
            f"{location}: columns {shorten_line(', '.join(row))} are no known layout of replies: {layouts}"
        )
    return layout


def _build_turns(
    conversation: Conversation, name: str, replies: dict[int, str | None], system: str, path: Path
) -> Iterator[ModelTurn]:
    condition, earlier = CONDITIONS[name], dict[int, str]()
    unknown = Sampling(max_tokens=0)
    blank = ModelTurn(conversation=conversation, condition=name, turn=0, system=system, sampling=unknown)
    for turn in sorted(replies):
        text = replies[turn]
        behind = next((number for number in condition.own(turn) if number not in earlier), None)
        failure: TurnFailure | None = lost(text) or ("not_run" if behind in replies else None)
        record = replace(blank, turn=turn, failure=failure)
        if failure is None and text is not None:
            if behind is not None:
                raise UsageError(
                    f"{path}: turn {turn} of {quoted(conversation.id)} ({name}) is there, turn {behind} is not"
                )
            shown = messages(conversation, turn, earlier, condition)
            seen = [SentMessage(role=message.role, content=message.content) for message in shown]
            record = with_reply(replace(record, seen=seen), text)
            if record.reply is not None:
                earlier[turn] = record.reply
        yield record


class Transcript(Struct, frozen=True, kw_only=True):
    """A model's replies to one conversation under one condition.

    - `system`: the model's name.
    - `turns`: number of a turn (from 1) -> the recorded turn.
    """

    conversation: Conversation
    condition: str
    system: str
    turns: dict[int, ModelTurn]

    @property
    def asked(self) -> range:
        """Return the turns, from 1, that the model answers under the condition."""
        return CONDITIONS[self.condition].asked(len(self.conversation.turns))

    def problem(self, turns: Iterable[int]) -> tuple[Failure, str] | None:
        """Return failure and explanation for the first of `turns` (from 1) without a reply; None if all have one."""
        for number in turns:
            line = self.turns.get(number)
            if line is None:
                return "not_run", f"turn {number} of {self.system} is not in the file of replies"
            if line.failure is not None:
                return line.failure, f"turn {number} of {self.system} has no reply: {line.detail or line.failure}"
        return None

    def answer(self, turn: int) -> str:
        """Return the reply to a turn (from 1), or its reference if the condition shows that instead of a reply.

        The turn must have one of them: check `problem` first.
        """
        line = self.turns.get(turn)
        text = self.conversation.turns[turn - 1].reference if line is None else line.reply
        # Callers check `problem` first.
        assert text is not None
        return text

    def earlier(self, turn: int) -> list[Exchange]:
        """Return the exchanges that the model saw before it answered a turn (from 1), oldest first.

        Exchanges that were left out to fit the model's context are not included.
        """
        sent = self.turns[turn].seen[:-1]  # without the question itself
        pairs = list(zip(sent[::2], sent[1::2], strict=True))
        whole = self.whole(lambda _: "", turn - 1)  # of which the oldest may have been left out
        shown = [exchange.images for exchange in whole[len(whole) - len(pairs) :]]
        return [Exchange(user.content, reply.content, names) for (user, reply), names in zip(pairs, shown, strict=True)]

    def whole(self, answers: Callable[[int], str], turns: int | None = None) -> list[Exchange]:
        """Return the conversation's own history and its turns as exchanges, oldest first.

        Args:
            answers: Function that returns the answer to show for a turn's number.
            turns: How many turns to include, from the first on; None for all.
        """
        # What was said before turn 1 is about its images.
        before = show_history(self.conversation.history, self.conversation.turns[0].images)
        numbered = enumerate(self.conversation.turns[:turns], 1)
        return [*before, *(Exchange(turn.prompt, answers(number), turn.images) for number, turn in numbered)]

    def later(self, turn: int, answers: Callable[[int], str] | None = None) -> list[Exchange]:
        """Return the exchanges after a turn (from 1) to which the model replied.

        A judge sees them if `Assignment.looks_ahead` is True. `answers`: function that returns the answer to show for a
        turn's number; by default, the model's reply.
        """
        return [
            Exchange(question.prompt, (answers or self.answer)(number), question.images)
            for number, question in enumerate(self.conversation.turns, 1)
            if number > turn and (line := self.turns.get(number)) and line.reply is not None
        ]

    def reference(self, turn: int) -> str:
        return self.conversation.turns[turn - 1].reference or ""


Transcripts = dict[tuple[str, str], Transcript]
"""(conversation id, condition) -> transcript, for one model."""

Pair = tuple[Transcript, Transcript | None]
"""A model's transcript, and the transcript of the model that it is compared with, or None."""


def read_transcripts(
    path: Path, benchmark: str, conversations: Sequence[Conversation] = (), name: str | None = None
) -> Transcripts:
    """Read a model's transcripts from a file, in the file's order.

    Args:
        path: Output of `critic infer`, or a table of another program's replies.
        benchmark: Name of the benchmark that the replies must belong to.
        conversations: The benchmark's conversations; required for a table.
        name: Name of the model in a table; defaults to the file's stem.

    Raises UsageError for replies to another benchmark, by several models or under an unknown condition, for a turn that
    occurs twice, and for a table without `conversations`.
    """
    transcripts: Transcripts = {}
    system: str | None = None
    # Only what critic infer wrote has the conversation beside each reply.
    if not is_table(path):
        lines = jsonl.read(path, ModelTurn)
    elif conversations:
        lines = enumerate(read_table(path, conversations, name or replace_surrogates(path.stem)), 1)
    else:
        raise UsageError(f"{path}: a table of replies, not critic infer's; give the benchmark's file with --questions")
    thinking = answers = 0
    for number, recorded in lines:
        line = without_thoughts_in(recorded)
        conversation = line.conversation
        thinking += line.thoughts is not None
        answers += line.thoughts is not None or line.reply is not None
        blank = Transcript(conversation=conversation, condition=line.condition, system=line.system, turns={})
        transcript, problem = transcripts.setdefault((conversation.id, line.condition), blank), None
        if conversation.benchmark != benchmark:
            problem = f"a conversation of {conversation.benchmark}, expected {benchmark}"
        # Transcripts are known by conversation and condition: another model's would mix with them.
        elif system not in (None, line.system):
            problem = f"replies of {quoted(line.system)} after those of {quoted(system)}; one model a file"
        elif line.condition not in CONDITIONS:
            problem = f"unknown condition {quoted(line.condition)}; expected {', '.join(CONDITIONS)}"
        elif line.turn in transcript.turns:
            problem = f"turn {line.turn} of {quoted(conversation.id)} ({line.condition}) is there twice"
        if problem is not None:
            raise UsageError(f"{path}:{number}: {problem}")
        system = line.system
        transcript.turns[line.turn] = line
    say_thoughts(path, thinking, answers)
    return transcripts


def pair_up(models: Sequence[Transcripts], files: Sequence[Path], how: Pairing | None, seed: int) -> list[Pair]:
    """Return the transcripts to judge, each paired with the transcript that it is compared with, or None.

    Args:
        models: The transcripts of each model, in the order of `files`.
        files: The files that they were read from, for error messages.
        how: How to pair several models (`battles`); None compares the first model with each of the others.
        seed: Seed for random opponents.

    Conversations that the first model lacks are left out. Raises UsageError if two files are of the same model, or if a
    file lacks a conversation of the first file or has another version of it.
    """
    mine, *others = models
    systems = [next(iter(model.values())).system for model in models]
    for theirs, path, system in zip(others, files[1:], systems[1:], strict=True):
        # Only the conversations of the first file are judged.
        for name, transcript in mine.items():
            if name not in theirs:
                swap = "where it has fewer conversations or conditions, judge it, --against the other"
                raise UsageError(f"{path}: lacks conversation {quoted(name[0])} ({name[1]}); {swap}")
            # Another edition of the benchmark may ask something else under the same id.
            if theirs[name].conversation != transcript.conversation:
                raise UsageError(f"{path}: has another conversation {quoted(name[0])} ({name[1]})")
        # Verdicts are told apart by the models' names.
        if systems.count(system) > 1:
            told_apart = "as in another file; infer --name tells them apart"
            raise UsageError(f"{path}: the same model, {quoted(system)}, {told_apart}")
    if how is not None:
        return battles(models, how, seed)
    # A single model is compared with none.
    return [(transcript, theirs.get(name)) for theirs in others or [{}] for name, transcript in mine.items()]


def battles(models: Sequence[Transcripts], how: Pairing, seed: int) -> list[Pair]:
    """Pair the transcripts of several models for each conversation and condition.

    `how`: "all" pairs every two models, "random" draws an opponent for each model, "newcomer" draws one for the first
    model only. A draw depends only on `seed`, the conversation and condition, the model's position in `models`, and the
    number of models. If two models draw each other, they are paired once.
    """
    pairs: list[Pair] = []
    for name in models[0]:
        met = {frozenset(pair) for pair in combinations(range(len(models)), 2)}
        if how != "all":
            drawing = range(len(models) if how == "random" else 1)
            met = {frozenset((index, _draw_opponent(index, len(models), seed, *name))) for index in drawing}
        pairs += [(models[min(pair)][name], models[max(pair)][name]) for pair in sorted(met, key=sorted)]
    return pairs


def _draw_opponent(index: int, models: int, *words: object) -> int:
    """Return the index (0 to `models` - 1) of an opponent for the model with the index `index`, never itself.

    The opponent depends only on a hash of `words` and `index`.
    """
    drawn = int(hash_value("/".join(map(str, (*words, index))), 12), 16)
    return (index + 1 + drawn % (models - 1)) % models
