"""Turns of models that think aloud: their thoughts stand beside the reply, and no judge or later turn is shown them."""

import sys
from pathlib import Path

from msgspec.structs import replace

from critic.judging.thoughts import split_thoughts
from critic.records import ModelTurn, TurnFailure


def with_reply(turn: ModelTurn, text: str) -> ModelTurn:
    """Return a turn with the answer in a model's `text` as its reply, and the thoughts in it behind those it has.

    A reply that ends within its thoughts at its token limit has the failure `truncated`, also where a file does not say
    why it ended; one of thoughts only that the model ended itself is `empty`.
    """
    split = split_thoughts(text, cut_off=turn.finish == "length")
    thoughts = "\n\n".join(filter(None, (turn.thoughts, split.thoughts))) or None
    at_limit = turn.finish == "length" or (turn.finish is None and not split.closed)
    if at_limit and not (split.closed and split.answer):
        failure: TurnFailure = "truncated"
    elif not split.answer.strip():
        failure = "empty"
    else:
        return replace(turn, reply=split.answer, thoughts=thoughts)
    detail = "the reply ends within the model's thoughts" if thoughts else None
    return replace(turn, reply=None, thoughts=thoughts, failure=failure, detail=detail)


def without_thoughts_in(turn: ModelTurn) -> ModelTurn:
    """Return a turn of a file as it is recorded today: earlier versions kept thoughts in the reply, and showed them to
    the model with the turns behind it."""
    if turn.thoughts is None and turn.reply is not None:
        turn = with_reply(turn, turn.reply)
    seen = [
        replace(message, content=split_thoughts(message.content).answer) if message.role == "assistant" else message
        for message in turn.seen
    ]
    return turn if seen == turn.seen else replace(turn, seen=seen)


def say_thoughts(path: Path, count: int, answers: int) -> None:
    """Print to stderr how many of a file's answers have thoughts, if any."""
    if count:
        print(f"{path}: {count} of {answers} answers have thoughts, which are no part of the answer", file=sys.stderr)
