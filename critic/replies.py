"""What a model replied in a conversation, turn by turn: the records that `critic infer` writes."""

from typing import Literal

from msgspec import Struct, field

from critic.images import ImageFailure
from critic.records import Conversation

Overflow = Literal["fail", "drop-oldest"]
OVERFLOWS = ("fail", "drop-oldest")
"""What becomes of a prompt that does not fit: a named failure, or the oldest exchanges are left out."""

TurnFailure = Literal["empty", "context_length_exceeded", "refused", "server_error", "not_run"] | ImageFailure
"""Why a turn has no reply. `not_run`: an earlier turn of its conversation failed."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How replies are drawn and prompts are made to fit: alike for all turns of a file."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    overflow: Overflow = "fail"
    max_image_pixels: int | None = None


class SeenImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image that was sent; `sha256` is that of the bytes sent. `resized`: made smaller than its file."""

    path: str
    sha256: str
    resized: bool = False


class Seen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message as it was sent, its images before its text."""

    role: Literal["user", "assistant"]
    content: str
    images: list[SeenImage] = field(default_factory=list)


class ModelTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's reply to one turn (from 1) of a conversation under a condition.

    `reply` is None exactly when `failure` is set; `seen` is what was really sent, empty when nothing was. Records with
    one `call` share one generation: its tokens and seconds are counted once. Token counts are None where the server
    does not give them. `dropped` counts the oldest exchanges left out to make the prompt fit, `finish` is the server's
    word for why the reply ended ("length": at `max_tokens`).
    """

    conversation: Conversation
    condition: str
    turn: int
    system: str
    sampling: Sampling
    call: str | None = None
    seen: list[Seen] = field(default_factory=list)
    reply: str | None = None
    finish: str | None = None
    failure: TurnFailure | None = None
    detail: str | None = None
    dropped: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    attempts: int = 1
