"""How text is generated: what is asked, what comes back."""

from typing import Any

from msgspec import Struct, field

from critic.records import Message


class Request(Struct, frozen=True, kw_only=True):
    """One chat completion. `schema` (JSON Schema) or `regex` constrains the reply;
    `continue_final` makes the model go on with the last message instead of answering it;
    `top_logprobs` asks for that many alternatives of every generated token (0 = none)."""

    messages: list[Message]
    max_tokens: int
    temperature: float = 0.0
    schema: dict[str, Any] | None = None
    regex: str | None = None
    continue_final: bool = False
    top_logprobs: int = 0


class Token(Struct, frozen=True):
    """A generated token and its most probable alternatives (itself among them): text, log probability."""

    text: str
    alternatives: list[tuple[str, float]]


class Reply(Struct, frozen=True, kw_only=True):
    """What came back. `truncated`: it ended at `max_tokens`. `tokens` is empty unless log
    probabilities were asked for and given."""

    text: str
    truncated: bool
    tokens: list[Token] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
