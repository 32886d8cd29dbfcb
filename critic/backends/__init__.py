"""Requests to models, their replies, and the interface of every source of replies (backend)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Protocol, Self

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from critic.errors import Refused
from critic.records import TOKEN_COUNTS

ChatMessage = Mapping[str, Any]
"""A message with `role` and `content`: a text, or a list of parts as OpenAI-compatible servers take them.

Parts are `{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}` or `{"type": "text", "text": …}`.
"""

CONNECTIONS, ATTEMPTS, TIMEOUT = 32, 5, 300.0
"""Default number of requests in flight per server, tries per request, and seconds per try."""

FAVOUR = 100.0
"""Bias that is added to the logit of a forced token: the largest value that OpenAI-compatible servers accept."""


NO_ANSWER = "no OpenAI-compatible server answers"
"""Beginning of every error message about a server that does not answer. Callers recognize the problem by it."""

NO_TEXT = "a scoring head writes no text: it gives only ratings on 1..10, or scores of answers to compare"
"""Error message if text is requested from a scoring head."""


NoAnswer = Literal["empty", "truncated", "refused", "content_filter"]
"""Failures of a reply that contains no answer."""


class Request(Struct, frozen=True, kw_only=True):
    """A chat completion request.

    `schema`, `regex`: a JSON Schema or a regular expression that the reply must match.
    `continue_final`: True to continue the last message instead of answering it.
    `top_logprobs`: number of top log probabilities per generated token. A backend may return those of digits only.
    `forced_token`: text of a single token to generate wherever `regex` allows it, if the backend supports that. The
        log probabilities that are returned stay those of the model without forcing.
    `classify`: True to get only the class probabilities of a scoring head.
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
    """A generated token. `alternatives`: the most probable tokens as pairs (text, log probability), itself included."""

    text: str
    alternatives: list[tuple[str, float]]


class Reply(Struct, frozen=True, kw_only=True):
    """A reply to a request.

    `truncated`: True if the reply ended at `max_tokens`.
    `finish`: the server's finish reason; "refusal" if `text` is the model's refusal.
    `tokens`: empty unless log probabilities were requested and returned.
    `counted`: True if the server reports token usage.
    `reasoned`: True if the model reasoned before `text`.
    `thoughts`: that reasoning, if the server returns it; else "".
    `classes`: class probabilities of a scoring head, or a list with its single score; None for other models.
    `attempts`: number of tries; 0 for a reply from the cache.
    `ten_given_one`: the probability (0..1) that the rating 1 would have continued as 10. Set only if another rating was
        generated and the backend reports it.
    `answered_by`: the model name in the server's answer, followed by its system fingerprint in brackets; "" if the
        answer names no model.
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


class OwnPrompt(Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt that belongs to a judge trained elsewhere: the fields of `critic.judging.prompt.Prompt` to replace."""

    opening: list[dict[str, str]] = []
    pieces: list[str] = []
    verdict: str = ""
    as_chat: bool = False


class OwnPack(Struct, frozen=True, forbid_unknown_fields=True):
    """The prompts that belong to a judge trained elsewhere.

    `name`: NAME@HASH, or "chat" if the judge gets the conversation itself.
    `prompts`: form, or stem of a prompt file -> prompt.
    """

    name: str
    prompts: dict[str, OwnPrompt]


class Told(Struct, frozen=True):
    """The published facts about a judge that critic uses (`ModelInfo.about`); `identity.describe` explains them."""

    forms: list[str] = []
    tie_band: float | None = None
    pack: OwnPack | None = None
    read_answer: bool = False
    criteria: dict[str, tuple[int, int]] = {}
    apart: bool = False
    ordinal: Annotated[list[float], Meta(min_length=11, max_length=11)] | None = None
    calibrated_on: list[str] = []
    trained_on: list[str] = []


class ModelInfo(Struct, frozen=True):
    """What is known about the model that a backend uses.

    `name`: the model's name; NAME@HASH for a judge, with a hash of its weights (`identity.own_name`).
    `context`: most tokens of prompt and reply together; None if unknown.
    `is_vllm`: True if the backend supports `Request.continue_final` and `Request.regex`.
    `processor`: hash of the model's tokenizer, chat template and image processor; None if unknown.
    `is_classifier`: True for a scoring head, which answers only requests with `classify`.
    `about`: facts about the model from the server's list of models or from its folder (`identity.describe`), such as
        the certificate that `critic serve` publishes.
    """

    name: str
    context: int | None
    is_vllm: bool
    processor: str | None = None
    is_classifier: bool = False
    about: Mapping[str, Any] = {}

    @property
    def forms(self) -> tuple[str, ...]:
        """Return the names of the prompt forms that the model was trained on; () if unknown."""
        return tuple(map(str, self.about.get("forms") or ()))

    @property
    def writes_freely(self) -> bool:
        """Return True if the model writes verdicts as free text, in the format of its own prompts (`critic adopt`)."""
        return "pack" in self.about and not self.is_classifier

    @property
    def reads_answer(self) -> bool:
        """Return True for a scoring head that reads all tokens of the judged answer (critic.backends.answers)."""
        return bool(self.about.get("read_answer"))

    @property
    def tie_band(self) -> float | None:
        """Return the largest score difference that is a tie, for a head that compares answers by scores; else None."""
        return self.about.get("tie_band")

    def check(self, request: Request) -> None:
        """Raise Refused if the model is a scoring head and text is requested from it."""
        if self.is_classifier and not request.classify:
            raise Refused("refused", NO_TEXT)


class Backend(Protocol):
    """A source of replies, used as an async context manager.

    `endpoint`: the backend's name in messages.
    `max_concurrency`: number of concurrent requests that keeps the backend busy.
    `retries`: number of repeated tries so far.
    `served`: the model that replies.

    The context manager of this class does nothing, for backends that have nothing to open or close.
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
        """Return the reply to a request.

        Raises Refused if the request can never succeed, or Transient after the last try failed.
        """

    def sees(self) -> bool | None:
        """Return True if the model accepts images, False if not, or None if unknown."""

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the number of tokens of a prompt in the model's chat template. Raises Refused if that is unknown."""

    def count_prefix_hits(self) -> Counter[str]:
        """Return vLLM's counters of its prefix cache: prompt tokens looked up (`queries`) and found (`hits`).

        They count from the start of the server and over all of its clients. Return an empty counter if there are none.
        This call blocks: make it outside the event loop's thread.
        """
        return Counter()


def find_failure(reply: Reply) -> tuple[NoAnswer, str | None] | None:
    """Return the failure of a reply and the server's explanation (or None). Return None if the reply has an answer.

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
    """Return the token counts of a reply, field name -> count. All are 0 for a reply from the cache."""
    return {name: getattr(reply, name) if reply.attempts else 0 for name in TOKEN_COUNTS}


def add_cost(reply: Reply, lost: Reply | None) -> Reply:
    """Return `reply` with the token counts of `lost` added. `lost`: an earlier reply that was discarded, or None."""
    if lost is None:
        return reply
    before, now = read_usage(lost), read_usage(reply)
    both = {name: count + before[name] for name, count in now.items()}
    return replace(reply, attempts=max(reply.attempts, lost.attempts), **both)


def collect_processors(sources: Iterable[Backend]) -> dict[str, str]:
    """Return model name -> processor hash (`ModelInfo.processor`) for the models whose hash is known."""
    return {source.served.name: source.served.processor for source in sources if source.served.processor}


def count_images(messages: Sequence[ChatMessage]) -> int:
    """Return the number of images in messages that are ready to be sent."""
    return sum(part["type"] == "image_url" for message in messages for part in parts_of(message))


def list_image_names(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the names of the images in rendered messages, in order.

    Rendered messages contain images as names, which `embed_images` replaces.
    """
    parts = (part for message in messages for part in parts_of(message))
    return [part["image"] for part in parts if part["type"] == "image"]


def parts_of(message: ChatMessage) -> Sequence[Mapping[str, Any]]:
    """Return a message's content as a list of parts; a plain string becomes one text part."""
    content: Any = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def ends_open(messages: Sequence[ChatMessage]) -> bool:
    """Return True if a chat ends with a message to answer, False if it ends with an assistant's answer.

    A reward model scores such a chat as it is, without a generation prompt.
    """
    return [message["role"] for message in messages[-1:]] != ["assistant"]


def embed_images(message: ChatMessage, shown: Mapping[str, Sequence[Mapping[str, Any]]]) -> ChatMessage:
    """Return a rendered message ready to be sent, with the names of images replaced.

    `shown`: image name -> message parts that show the image.
    """
    if isinstance(message["content"], str):
        return message
    parts = [shown[part["image"]] if part["type"] == "image" else [part] for part in message["content"]]
    return {**message, "content": [*chain.from_iterable(parts)]}


def join_text(message: ChatMessage) -> str:
    """Return the content of a message as one string, with its parts on separate lines and each image as its URL."""
    parts = parts_of(message)
    return "\n".join(part["image_url"]["url"] if part["type"] == "image_url" else part["text"] for part in parts)
