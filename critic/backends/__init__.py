"""Requests, replies and the interface that every source of replies has."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import replace

from critic.records import TOKEN_COUNTS

ChatMessage = Mapping[str, Any]
"""`role` and `content`: a text, or the parts of a message as OpenAI-compatible servers take them
(`{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}`, `{"type": "text", "text": …}`)."""

CONNECTIONS, ATTEMPTS, TIMEOUT = 32, 5, 300.0
"""Default number of requests in flight per server, tries per request, and seconds per try."""

FAVOUR = 100.0
"""Bias added to the logit of a favoured token: the most that OpenAI-compatible servers take."""


NO_ANSWER = "no OpenAI-compatible server answers"
"""Begins every message about a server that does not answer, so that callers can tell it from other problems."""

NO_TEXT = "a scoring head writes no text: it gives only ratings on 1..10, or scores of answers to compare"
"""Message for a request for text that goes to a scoring head."""


NoAnswer = Literal["empty", "truncated", "refused", "content_filter"]
"""Failures of a reply that holds no answer."""


class Request(Struct, frozen=True, kw_only=True):
    """A chat completion request.

    `schema` (JSON Schema) or `regex` constrains the reply. `continue_final`: continue the last message instead of
    answering it. `top_logprobs` is the number of alternatives per generated token; a source may give those of digits
    only. `forced_token`, a text that is one token, is written wherever `regex` allows it if the source can do that; the
    log probabilities stay those of the model. `classify` asks a scoring head for its classes only.
    """

    messages: Sequence[ChatMessage]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    schema: dict[str, Any] | None = None
    regex: str | None = None
    continue_final: bool = False
    top_logprobs: int = 0
    forced_token: str | None = None
    classify: bool = False


class Token(Struct, frozen=True):
    """A generated token and its most probable alternatives (itself included): text, log probability."""

    text: str
    alternatives: list[tuple[str, float]]


class Reply(Struct, frozen=True, kw_only=True):
    """A reply to a request.

    `truncated`: it ended at `max_tokens`. `finish` is the server's own word for why it ended ("refusal": `text` is the
    model's refusal). `tokens` is empty unless log probabilities were requested and given. `counted`: the server reports
    token usage. `reasoned`: the model reasoned before `text`; `thoughts` is that reasoning if the server gives it.
    `classes` are a scoring head's probabilities, or its one score. `attempts` is 0 for a reply from the cache.
    `ten_given_one` is the probability (0..1) that a 1 at the rating would have become a 10, if another rating was
    written and the source reports it. `answered_by` is the model's name and, in brackets, its fingerprint, if the reply
    names them.
    """

    text: str
    truncated: bool = False
    tokens: list[Token] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
    finish: str = "stop"
    reasoned: bool = False
    thoughts: str = ""
    classes: list[float] | None = None
    counted: bool = True
    ten_given_one: float | None = None
    answered_by: str = ""


class ModelInfo(Struct, frozen=True):
    """A model that gives replies.

    `context` is the longest prompt plus reply, in tokens. `is_vllm`: it obeys `Request.continue_final` and `regex`.
    `processor` is the hash of its tokenizer, chat template and image processor. `forms` are the forms it was trained
    in, if known. `is_classifier`: it answers only `Request.classify`. `tie_band` belongs to a head that scores answers
    one at a time: two scores that differ by no more are a tie.
    """

    name: str
    context: int | None
    is_vllm: bool
    processor: str | None = None
    is_classifier: bool = False
    forms: tuple[str, ...] = ()
    tie_band: float | None = None


class Backend(Protocol):
    """A source of replies, open while it is used as a context. One with nothing to open or close inherits from it.

    `endpoint` names it in messages. `max_concurrency` requests keep it busy. `retries` counts calls that were tried
    again. `served` is the model that replies.
    """

    endpoint: str
    max_concurrency: int
    retries: int
    served: ModelInfo

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def chat(self, request: Request) -> Reply:
        """Return the reply. Raises Refused for a request that will never be answered, Transient when the tries are used
        up."""

    def sees(self) -> bool | None:
        """Return whether the model takes images, or None if that is not known."""

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the tokens of a prompt in the model's chat template. Raises Refused if they cannot be counted."""


def find_failure(reply: Reply) -> tuple[NoAnswer, str | None] | None:
    """Return the failure of a reply that holds no answer, and the server's detail or None; None for an answer.

    >>> find_failure(Reply(text=" ", truncated=True))
    ('truncated', None)
    >>> find_failure(Reply(text="Rating: 7")) is None
    True
    """
    # A refusal has text, which must not pass for an answer.
    if reply.finish == "refusal":
        return "refused", " ".join(reply.text.split())[:300] or None
    if reply.text.strip():
        return None
    if reply.finish == "content_filter":
        return "content_filter", "the server's content filter ended the reply"
    return "truncated" if reply.truncated else "empty", None


def read_usage(reply: Reply) -> dict[str, Any]:
    """Return a reply's token counts by name; all 0 for a reply from the cache, which cost nothing."""
    return {name: getattr(reply, name) if reply.attempts else 0 for name in TOKEN_COUNTS}


def add_cost(reply: Reply, lost: Reply | None) -> Reply:
    """Return `reply` with the tokens of `lost` added, a paid reply that it replaces and nobody reads."""
    if lost is None:
        return reply
    before, now = read_usage(lost), read_usage(reply)
    both = {name: count + before[name] for name, count in now.items()}
    return replace(reply, attempts=max(reply.attempts, lost.attempts), **both)


def collect_processors(sources: Iterable[Backend]) -> dict[str, str]:
    """Return processor hashes by model name, of the sources that have one."""
    return {source.served.name: source.served.processor for source in sources if source.served.processor}


def count_images(messages: Sequence[ChatMessage]) -> int:
    """Return the number of images in the messages."""
    return sum(part["type"] == "image_url" for message in messages for part in parts_of(message))


def list_image_names(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the names of the images in rendered messages, in their order."""
    parts = (part for message in messages for part in parts_of(message))
    return [part["image"] for part in parts if part["type"] == "image"]


def parts_of(message: ChatMessage) -> Sequence[Mapping[str, Any]]:
    """Return the message's content as parts; a plain text is one part."""
    content: Any = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def embed_images(message: ChatMessage, uris: Mapping[str, str]) -> ChatMessage:
    """Return the message as servers take it: each image name becomes its data URI from `uris`."""
    if isinstance(message["content"], str):
        return message

    def embed(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return image_part(uris[part["image"]]) if part["type"] == "image" else part

    return {**message, "content": [embed(part) for part in message["content"]]}


def image_part(uri: str) -> dict[str, Any]:
    """Return the message part that shows the image at `uri`."""
    return {"type": "image_url", "image_url": {"url": uri}}


def join_text(message: ChatMessage) -> str:
    """Return the message's content as one string, each image as its URL."""
    parts = parts_of(message)
    return "\n".join(part["image_url"]["url"] if part["type"] == "image_url" else part["text"] for part in parts)
