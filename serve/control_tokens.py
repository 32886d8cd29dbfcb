"""Replace the judge's control tokens in client requests by look-alikes, so that no text can forge a turn.

The answers that are judged come from strangers. If one contains `<|im_end|>`, the tokenizer would end the client's turn
there.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import regex

from critic.judging.prompt import LOOKALIKES

RENDERED = {"messages", "tools", "functions", "documents", "system", "instructions", "chat_template_kwargs"}
"""Request fields that a chat template renders into the prompt, on every route."""

RESPONSES = "/v1/responses"
"""Route on which a template also renders `input`. On other routes `input` and `prompt` are the client's complete
prompt.
"""

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def list_tokens(folder: Path) -> list[str]:
    """Return the control tokens in a model's folder: special tokens, and added tokens that its chat template contains.

    Tokens without a bracket or bar are left out, because they may be parts of words (`sop` in "philosophy").
    """
    files = [json.loads((folder / name).read_text("utf-8")) for name in FILES if (folder / name).is_file()]
    templates = "".join(file.read_text("utf-8") for file in sorted(folder.rglob("*.jinja")))
    control, added = set[str](), set[str]()
    for content in files:
        templates += json.dumps(content.get("chat_template", ""), ensure_ascii=False)
        for token in (*content.get("added_tokens", ()), *content.get("added_tokens_decoder", {}).values()):
            (control if token.get("special") else added).add(token["content"])
        for name, value in content.items():
            # Configurations name their special tokens by role, in keys of these endings.
            if name.endswith(("_token", "special_tokens")):
                control.update(_texts(value))
    # An added token that the template writes opens or closes a turn, whatever it is declared.
    control.update(token for token in added if token in templates)
    return sorted(token for token in control if token.translate(LOOKALIKES) != token and len(token) > 2)


def _texts(value: Any) -> list[str]:
    """Return the tokens in an entry of a tokenizer's configuration.

    `value` is a token, an object with a token's settings, or a list of these.
    """
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, dict):
        return _texts(value.get("content"))
    return [value] if isinstance(value, str) else []


class ControlTokens:
    """Replaces the control tokens of a judge by look-alikes such as `‹¦im_end¦›`."""

    def __init__(self, tokens: Sequence[str]) -> None:
        # A shorter token may be the beginning of a longer one.
        longest_first = sorted(tokens, key=len, reverse=True)
        self._pattern = regex.compile("|".join(map(re.escape, longest_first)) or "(?!)", regex.IGNORECASE)
        parts = {token[:end] for token in tokens for end in range(1, len(token))}
        self._begun = regex.compile(rf"(?:{'|'.join(map(re.escape, sorted(parts, key=len, reverse=True)))})\Z")

    def respell(self, path: str, request: Any) -> Any:
        """Return the request for the route `path` with control tokens replaced.

        Return the same object if it contains none. If a token is split over two message parts, its beginning in the
        first part is replaced.

        >>> parts = [{"type": "text", "text": "a<|im_"}, {"type": "text", "text": "end|>b<"}]
        >>> turns = {"messages": [{"role": "user", "content": parts}]}
        >>> respelt = ControlTokens(["<|im_end|>"]).respell("/v1/chat/completions", turns)
        >>> [part["text"] for part in respelt["messages"][0]["content"]]
        ['a‹¦im_', 'end|>b<']
        """
        # Anything else is vLLM's to refuse.
        if not isinstance(request, dict):
            return request
        fields = RENDERED | {"input"} if path.startswith(RESPONSES) else RENDERED
        changed = {name: self._written(request[name]) for name in fields & request.keys()}
        return {**request, **changed} if any(changed[name] != request[name] for name in changed) else request

    def _written(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(_respell, value)
        # Names of tools and keys are written into the prompt, too.
        if isinstance(value, dict):
            return {self._written(key): self._written(item) for key, item in value.items()}
        if isinstance(value, list) and value:
            # A template may write parts without anything between them: no token may begin in one and end in the next.
            return [*(self._unfinished(self._written(item)) for item in value[:-1]), self._written(value[-1])]
        return value

    def _unfinished(self, part: Any) -> Any:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            return part
        text = self._begun.sub(_respell, text)
        return {**part, "text": text} if isinstance(part, dict) else text


def _respell(token: regex.Match[str]) -> str:
    text: str = token[0]
    return text.translate(LOOKALIKES)
