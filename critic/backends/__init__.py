"""How text is generated: what is asked, what comes back, and what every source of replies can do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import replace

ChatMessage = Mapping[str, Any]
"""`role` and `content`: a text, or the parts of a message as OpenAI-compatible servers take them
(`{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}`, `{"type": "text", "text": …}`)."""

CONNECTIONS, ATTEMPTS, TIMEOUT = 32, 5, 300.0
"""Requests under way at once to a server, tries of each, and seconds of a try."""

FAVOUR = 100.0
"""What is added to the logit of a favoured token: the most that OpenAI-compatible servers take."""


NO_ANSWER = "no OpenAI-compatible server answers"

NO_TEXT = "a scoring head writes no text: it gives ratings on 1..10, or scores of answers that are compared, alone"


NoAnswer = Literal["empty", "truncated", "refused", "content_filter"]


class Request(Struct, frozen=True, kw_only=True):
    """One chat completion. `schema` (JSON Schema) or `regex` constrains the reply; `continue_final`: go on with the
    last message instead of answering it; `top_logprobs`: so many alternatives of every generated token, of which a
    source may give the digits alone, and only where one stands. `forced_token`, a text that is one token, is written
    wherever `regex` allows it, if the source of replies can do that; the alternatives' probabilities stay those of the
    model. `classify` asks a scoring head for its classes alone."""

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
    """A generated token and its most probable alternatives (itself among them): text, log probability."""

    text: str
    alternatives: list[tuple[str, float]]


class Reply(Struct, frozen=True, kw_only=True):
    """What came back. `truncated`: it ended at `max_tokens`; `finish` is the server's own word for why it ended
    ("refusal": the text is the model's refusal). `tokens` is empty unless log probabilities were asked for and given.
    `counted`: the server says how many tokens it took. `reasoned`: the model reasoned before `join_text`, out of sight;
    `thoughts` is that reasoning, if the server gives it.
    `classes` are a scoring head's probabilities, or its one score. `attempts` is 0 of a reply from a cache.
    `ten_given_one`: the probability that a 1 at the rating would have been a 10, where another rating was written and
    the source of replies tells. `answered_by`: the model's name and, in brackets, its fingerprint, if the
    reply says so."""

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
    """A model that gives replies; `context` is its longest prompt plus reply, in tokens. `is_vllm`: it obeys
    `Request.continue_final` and `regex`. `processor` is the hash of what makes text and images ready for it, `forms`
    are those that it was trained in, where known. `is_classifier`: it answers `Request.classify` alone. A head that
    scores answers one at a time has a `tie_band`: two whose scores differ by no more are equally good."""

    name: str
    context: int | None
    is_vllm: bool
    processor: str | None = None
    is_classifier: bool = False
    forms: tuple[str, ...] = ()
    tie_band: float | None = None


class Backend(Protocol):
    """A source of replies, open while it is used as a context. `endpoint` says in messages where it is; so many
    requests as `max_concurrency` keep it busy; `retries` counts the calls that were tried again."""

    @property
    def endpoint(self) -> str: ...

    @property
    def max_concurrency(self) -> int: ...

    @property
    def retries(self) -> int: ...

    @property
    def served(self) -> ModelInfo: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def chat(self, request: Request) -> Reply:
        """Raises Refused for what will never be answered, Transient when the tries are used up."""

    def sees(self) -> bool | None:
        """Whether the model takes images; None where that is not known."""

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of a prompt as the model's chat template renders it. Raises Refused where that cannot be told."""


def find_failure(reply: Reply) -> tuple[NoAnswer, str | None] | None:
    """Why a reply is no answer and, where more is known, how the server says that; None where it may be one."""
    if reply.finish == "refusal":
        return "refused", " ".join(reply.text.split())[:300] or None
    if reply.text.strip():
        return None
    if reply.finish == "content_filter":
        return "content_filter", "the server's content filter ended the reply"
    return "truncated" if reply.truncated else "empty", None


def read_usage(reply: Reply) -> dict[str, Any]:
    """The tokens that a reply took: none of one from a cache, which nobody was asked for."""
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    return {name: getattr(reply, name) if reply.attempts else 0 for name in names}


def add_cost(reply: Reply, lost: Reply | None) -> Reply:
    """A reply that was asked for in place of another, which is paid for and read by nobody: with the tokens of both."""
    if lost is None:
        return reply
    before, now = read_usage(lost), read_usage(reply)
    both = {name: count + before[name] for name, count in now.items()}
    return replace(reply, attempts=max(reply.attempts, lost.attempts), **both)


def collect_processors(sources: Iterable[Backend]) -> dict[str, str]:
    """The hashes of what makes text and images ready for models, by their names, where they are known."""
    return {source.served.name: source.served.processor for source in sources if source.served.processor}


def count_images(messages: Sequence[ChatMessage]) -> int:
    """How many images are in the messages."""
    return sum(part["type"] == "image_url" for message in messages for part in parts_of(message))


def parts_of(message: ChatMessage) -> Sequence[Mapping[str, Any]]:
    """The message's content in parts, a plain text as one."""
    content: Any = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def embed_images(message: ChatMessage, uris: Mapping[str, str]) -> ChatMessage:
    """The message as servers take it, each image that it names as its data URI."""
    if isinstance(message["content"], str):
        return message

    def sent(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return image_part(uris[part["image"]]) if part["type"] == "image" else part

    return {**message, "content": [sent(part) for part in message["content"]]}


def image_part(uri: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri}}


def join_text(message: ChatMessage) -> str:
    """The message's content as one string, an image as its URL."""
    parts = parts_of(message)
    return "\n".join(part["image_url"]["url"] if part["type"] == "image_url" else part["text"] for part in parts)
