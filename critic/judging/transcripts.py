"""A model's transcripts by condition, and the pairing of several models' transcripts."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path

from msgspec import Struct

from critic import jsonl, records
from critic.errors import UsageError, quoted, replace_surrogates
from critic.judging import replies
from critic.judging.answers import say_thoughts, without_thoughts_in
from critic.judging.history import CONDITIONS
from critic.judging.render import show_history
from critic.records import Exchange, ModelTurn


class Transcript(Struct, frozen=True, kw_only=True):
    """A model's conversation under a condition. `turns` holds the recorded turns by number, from 1."""

    conversation: records.Conversation
    condition: str
    system: str
    turns: dict[int, ModelTurn]

    @property
    def asked(self) -> range:
        """Return the turns, from 1, that the model answers under the condition."""
        return CONDITIONS[self.condition].asked(len(self.conversation.turns))

    def problem(self, turns: Iterable[int]) -> tuple[records.Failure, str] | None:
        """Return the failure and a sentence for the first of these turns without a reply, or None if all have one."""
        for number in turns:
            line = self.turns.get(number)
            if line is None:
                return "not_run", f"turn {number} of {self.system} is not in the file of replies"
            if line.failure is not None:
                return line.failure, f"turn {number} of {self.system} has no reply: {line.detail or line.failure}"
        return None

    def answer(self, turn: int) -> str:
        """Return the reply to a turn (from 1), or its reference if the condition uses that as the reply.

        The turn must have a reply: check `problem` first.
        """
        line = self.turns.get(turn)
        text = self.conversation.turns[turn - 1].reference if line is None else line.reply
        # A turn without a reply is a `problem`, which is asked for first.
        assert text is not None
        return text

    def earlier(self, turn: int) -> list[Exchange]:
        """Return the exchanges that the model saw before a turn (from 1), except any left out of its context."""
        sent = self.turns[turn].seen[:-1]  # without the question itself
        pairs = list(zip(sent[::2], sent[1::2], strict=True))
        whole = self.whole(lambda _: "", turn - 1)  # of which the oldest may have been left out
        shown = [exchange.images for exchange in whole[len(whole) - len(pairs) :]]
        return [Exchange(user.content, reply.content, names) for (user, reply), names in zip(pairs, shown, strict=True)]

    def whole(self, answers: Callable[[int], str], turns: int | None = None) -> list[Exchange]:
        """Return the given history and the turns as exchanges.

        `answers` returns the text for a turn's number. `turns` limits the result to the first turns; None means all.
        """
        # What was said before turn 1 is about its images.
        before = show_history(self.conversation.history, self.conversation.turns[0].images)
        numbered = enumerate(self.conversation.turns[:turns], 1)
        return [*before, *(Exchange(turn.prompt, answers(number), turn.images) for number, turn in numbered)]

    def later(self, turn: int, answers: Callable[[int], str] | None = None) -> list[Exchange]:
        """Return the exchanges after a turn (from 1) that have a reply; none under a condition without history.

        `answers` returns the text to show for a turn's number; by default, the model's reply.
        """
        # What a model saw apart is no conversation that goes on.
        numbered = enumerate(self.conversation.turns, 1) if CONDITIONS[self.condition].history else ()
        return [
            Exchange(question.prompt, (answers or self.answer)(number), question.images)
            for number, question in numbered
            if number > turn and (line := self.turns.get(number)) and line.reply is not None
        ]

    def reference(self, turn: int) -> str:
        return self.conversation.turns[turn - 1].reference or ""


Transcripts = dict[tuple[str, str], Transcript]
"""A model's transcripts by conversation id and condition."""

Pair = tuple[Transcript, Transcript | None]
"""A model's transcript, and the transcript of the model it is compared with, or None."""


def read_transcripts(
    path: Path, benchmark: str, conversations: Sequence[records.Conversation] = (), name: str | None = None
) -> Transcripts:
    """Read a model's transcripts from a file, in the file's order.

    Args:
        path: Output of critic infer, or a table of another program's replies to the `conversations`.
        benchmark: Name of the benchmark that the replies must belong to.
        conversations: The benchmark's conversations; required for a table.
        name: Name of the model in a table; defaults to the file's stem.

    Raises UsageError for replies to another benchmark, by several models or under an unknown condition, and for a turn
    that occurs twice.
    """
    transcripts: Transcripts = {}
    system: str | None = None
    # Only what critic infer wrote has the conversation beside each reply.
    if not replies.is_table(path):
        lines = jsonl.read(path, ModelTurn)
    elif conversations:
        lines = enumerate(replies.read(path, conversations, name or replace_surrogates(path.stem)), 1)
    else:
        raise UsageError(f"{path}: a table of replies, not critic infer's; give the benchmark's file with --questions")
    thinking = answers = 0
    for number, recorded in lines:
        line = without_thoughts_in(recorded)
        location, conversation = f"{path}:{number}", line.conversation
        thinking += line.thoughts is not None
        answers += line.thoughts is not None or line.reply is not None
        if conversation.benchmark != benchmark:
            raise UsageError(f"{location}: a conversation of {conversation.benchmark}, expected {benchmark}")
        # Transcripts are known by conversation and condition: another model's would mix with them.
        if system not in (None, line.system):
            raise UsageError(
                f"{location}: replies of {quoted(line.system)} after those of {quoted(system)}; one model a file"
            )
        if line.condition not in CONDITIONS:
            raise UsageError(
                f"{location}: unknown condition {quoted(line.condition)}; expected {', '.join(CONDITIONS)}"
            )
        system = line.system
        blank = Transcript(conversation=conversation, condition=line.condition, system=system, turns={})
        transcript = transcripts.setdefault((conversation.id, line.condition), blank)
        if line.turn in transcript.turns:
            raise UsageError(
                f"{location}: turn {line.turn} of {quoted(conversation.id)} ({line.condition}) is there twice"
            )
        transcript.turns[line.turn] = line
    say_thoughts(path, thinking, answers)
    return transcripts


def pair_up(models: Sequence[Transcripts], files: Sequence[Path], how: records.Pairing | None, seed: int) -> list[Pair]:
    """Return the transcripts to judge, each with the one that it is compared with, or None.

    `models` holds the transcripts of each of the `files`. The first model is compared with each other one, or the
    models with each other as `battles` pairs them by `how` and `seed`. Conversations that the first model lacks are
    left out.

    Raises UsageError if two files have one model, or if a file lacks a conversation of the first or has another version
    of it.
    """
    mine, *others = models
    systems = [next(iter(model.values())).system for model in models]
    for theirs, path, system in zip(others, files[1:], systems[1:], strict=True):
        # The first file says what is judged: conversations that another alone has are left out.
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


def battles(models: Sequence[Transcripts], how: records.Pairing, seed: int) -> list[Pair]:
    """Pair the transcripts of several models, conversation by conversation.

    `how`: "all" pairs every two models, "random" draws an opponent for each model, "newcomer" for the first model only.
    Draws depend only on `seed`, model and conversation. Two models that draw each other meet once.
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
    """Return the index of an opponent for model number `index`, never itself, by a hash of `words` and `index`."""
    digest = hashlib.sha256("/".join(map(str, (*words, index))).encode()).digest()
    return (index + 1 + int.from_bytes(digest[:6], "big") % (models - 1)) % models
