"""The vocabulary of every stage. Each record wraps the one before, so no stage joins files by id."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

Language = Literal["zh", "en"]
Message = Mapping[str, str]

RATINGS = tuple(range(1, 11))
"""The ratings a judge may give (AlignMMBench §4.1): whole numbers 1..10."""


class Turn(Struct, frozen=True):
    """One finished exchange of a dialogue history."""

    user: str
    assistant: str


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model was asked. `group` is the unit of splitting and resampling: rows that share it
    share a question or an image."""

    id: str
    prompt: str
    task: str
    group: str
    lang: Language
    reference: str | None = None
    references: list[str] = field(default_factory=list)
    category: str | None = None
    history: list[Turn] = field(default_factory=list)
    images: list[str] = field(default_factory=list)


class HumanScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What people said of a response: `score` on 1..10 (the raters' mean), each rater's own
    score on 1..10 where known, and a short reason where one was written down."""

    score: float
    raters: dict[str, float] = field(default_factory=dict)
    reason: str | None = None


class Response(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's answer to a question. `columns` holds other judges' scores of the same answer, on
    1..10, by column name (`gpt4_score_1_10`)."""

    id: str
    question: Question
    text: str
    system: str | None = None
    human: HumanScore | None = None
    columns: dict[str, float] = field(default_factory=dict)


Failure = Literal[
    "empty",
    "no_rating",
    "out_of_range",
    "truncated",
    "no_distribution",
    "context_length_exceeded",
    "refused",
    "server_error",
]
"""Why a judgment has no score. `truncated`: the reply ended at the token limit before a rating."""


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A judge's reply, read. Either `rating` is on 1..10 or `failure` says why there is none.

    `distribution[i]` is the judge's probability of rating i + 1 (ten numbers that sum to 1).
    """

    rating: float | None = None
    reason: str | None = None
    failure: Failure | None = None
    distribution: list[float] | None = None


class Judgment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One response judged once. `score` is what counts: the rating, or the mean or median of its
    distribution, as `--score` said; None exactly when `verdict.failure` is set. `shortened` counts
    the characters left out of the prompt, by section."""

    response: Response
    judge: str
    prompt: str
    prompt_hash: str
    score_kind: str
    verdict: Verdict
    score: float | None = None
    reply: str = ""
    detail: str | None = None
    shortened: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1


class Example(Struct, frozen=True, kw_only=True):
    """A training example: the chat messages of a judging prompt and the verdict to learn."""

    id: str
    messages: list[Message]
    target: str
    shortened: dict[str, int] = field(default_factory=dict)
