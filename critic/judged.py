"""What a judge said of conversations: the records that `critic judge --benchmark` writes."""

from typing import Literal

from msgspec import Struct, field

from critic.records import GREEDY, Conversation, Decoding, TurnVerdict, Verdict

Order = Literal["both", "random", "forced"]
ORDERS = ("both", "random", "forced")
"""Of two answers: shown in both orders, a tie where the two verdicts differ; in a random order; in a random order
without ties (ConvBench)."""

JUDGINGS = ("standard", "no_focus", "no_turn_verdicts")
"""How a judge is asked: as the protocol says; a turn without its focus points; a whole conversation without the
judgments of its turns (ConvBench's ablations)."""


class Setup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How verdicts are asked for and scored: alike for all judgments of a file. `seed` is that of random orders.

    `extraction`: a verdict that cannot be read is asked for once more, of the reply's text alone. `reference_backed`:
    two models are compared in sight of the reference. `pack`: whose prompts stand in for ours, NAME@HASH.
    """

    judge: str
    score_kind: str
    order: Order = "both"
    seed: int = 0
    extraction: bool = True
    reference_backed: bool = True
    pointwise_prompt: str = "pointwise"
    decoding: Decoding = GREEDY
    pack: str | None = None


def differing(before: Setup, now: Setup) -> str:
    """The first thing in which two setups differ; they must differ in one."""
    name = next(name for name in Setup.__struct_fields__ if getattr(before, name) != getattr(now, name))
    return f"{name} {getattr(before, name)!r}, now {getattr(now, name)!r}"


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to the judge and what was read in its reply: a grade, A, B or tie, or yes and no by item.

    `first` says who stood first of two; `extracted`: the reply is that of the second, short question. `shortened`
    counts what was left out of the prompt: exchanges of the history, characters of references and of replies.
    """

    reply: str
    value: str | None = None
    failure: str | None = None
    first: Literal["model", "opponent"] | None = None
    extracted: bool = False
    shortened: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1


class ConversationJudgment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One verdict on a turn of a model's conversation or on the whole, and how it came about.

    `asked` names what was shown to the judge, None where nothing could be; judgments with one name share their calls,
    and tokens count once. `rating` is the verdict of a grade, `answers` are those of a checklist, in its order.
    """

    conversation: Conversation
    verdict: TurnVerdict
    setup: Setup
    prompt_hash: str
    asked: str | None = None
    answer: str | None = None
    rating: Verdict | None = None
    answers: list[bool | None] = field(default_factory=list)
    reason: str | None = None
    detail: str | None = None
    calls: list[Call] = field(default_factory=list)
