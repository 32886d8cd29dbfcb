"""Turns of models that think aloud: their thoughts stand beside the reply, and no judge or later turn is shown them."""

import sys
from pathlib import Path

from msgspec.structs import replace

from critic.judging.thoughts import split_thoughts
from critic.records import ModelTurn, TurnFailure


def with_reply(turn: ModelTurn, text: str) -> ModelTurn:
    """Return the turn with the answer in `text` as its reply, and the thoughts in `text` appended to its thoughts.

    Without an answer the turn gets a failure instead of a reply: "truncated" if `text` was cut off within the thoughts
    or before the answer, else "empty". If the turn does not say why its reply ended, unclosed thoughts count as cut
    off.
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
    """Convert a recorded turn to today's layout: no thoughts in its reply or in the messages that the model saw.

    Earlier versions kept thoughts in the reply and showed them to the model in later turns.
    """
    if turn.thoughts is None and turn.reply is not None:
        turn = with_reply(turn, turn.reply)
    seen = [
        replace(message, content=split_thoughts(message.content).answer) if message.role == "assistant" else message
        for message in turn.seen
    ]
    return turn if seen == turn.seen else replace(turn, seen=seen)


def say_thoughts(path: Path, count: int, answers: int) -> None:
    """Print to stderr that `count` of the `answers` in a file have thoughts; print nothing if `count` is 0."""
    if count:
        print(f"{path}: {count} of {answers} answers have thoughts, which are no part of the answer", file=sys.stderr)
