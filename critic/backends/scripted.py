"""Backend that replies from a file or a function, for rehearsals and tests without a model."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from critic import jsonl
from critic.backends import CONNECTIONS, Backend, ChatMessage, ModelInfo, Reply, Request, join_text, parts_of
from critic.errors import hash_value, replace_surrogates

IMAGE_TOKENS = 100
"""Number of tokens that an image counts in a scripted prompt."""


class ScriptedBackend(Backend):
    """A backend that replies with `answer(request)`.

    `answer`: function from a request to a reply; it may raise Refused or Transient.
    `name`: name of the model, whose context is not limited.
    """

    def __init__(self, answer: Callable[[Request], Reply], name: str = "scripted") -> None:
        self.answer = answer
        self.endpoint, self.max_concurrency, self.retries = name, CONNECTIONS, 0
        self.served = ModelInfo(name, None, is_vllm=False)

    async def chat(self, request: Request) -> Reply:
        return self.answer(request)

    def sees(self) -> bool | None:
        return None

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the number of characters of a prompt, plus IMAGE_TOKENS per image.

        >>> ScriptedBackend(lambda _: Reply(text="7")).count_tokens([{"role": "user", "content": "Rate it."}])
        8
        """
        parts = chain.from_iterable(map(parts_of, messages))
        return sum(IMAGE_TOKENS if part["type"] == "image_url" else len(part["text"]) for part in parts)


def from_file(path: Path) -> ScriptedBackend:
    """Build a backend that replies from a JSONL file of `Reply` records (at least `{"text": …}`).

    A hash of the prompt selects the reply, so the same prompt always gets the same one. Raises UsageError, naming file
    and line, if a line is not a reply.
    """
    replies = [reply for _, reply in jsonl.read(path, Reply)]

    def answer(request: Request) -> Reply:
        # Only the prompt selects the reply, so that neither order nor concurrency changes it.
        drawn = int(hash_value("\0".join(map(join_text, request.messages)), 16), 16)
        return replies[drawn % len(replies)]

    return ScriptedBackend(answer, name=replace_surrogates(path.stem))
