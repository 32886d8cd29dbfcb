"""The real decoder (llguidance) over a random model with a token a byte: the worst case for lengths."""

import random
from typing import Any

import pytest

COMPACT = {"whitespace_flexible": False}


def refusal(schema: dict[str, Any]) -> str | None:
    """What the decoder says against a schema."""
    llguidance = pytest.importorskip("llguidance", reason="needs a serve extra")
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=COMPACT)
    except ValueError as error:
        return str(error)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar)
    return str(matcher.get_error()) if matcher.is_error() else None


def shortest(held: Any, tokens: int) -> dict[str, Any]:
    """The request for a reply that ends within so many tokens."""
    request: dict[str, Any] = held.shorten(tokens)[0] if held.shorten and held.min_tokens > tokens else held.request
    return request


class Decoder:
    """Decoding under what a request asks the server for; every token is a byte."""

    def __init__(self, request: dict[str, Any]) -> None:
        llguidance = pytest.importorskip("llguidance", reason="needs a serve extra")
        self.tokenizer = llguidance.LLTokenizer("byte")
        outputs = request.get("structured_outputs") or {"json": request["response_format"]["json_schema"]["schema"]}
        if "grammar" in outputs:
            grammar = llguidance.grammar_from("grammar", outputs["grammar"])
        else:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(outputs["json"], defaults=COMPACT)
        self.matcher = llguidance.LLMatcher(self.tokenizer, grammar)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def allowed(self) -> list[int]:
        bits = int.from_bytes(self.matcher.compute_bitmask(), "little")
        return [token for token in range(self.tokenizer.vocab_size) if bits >> token & 1]

    def take(self, token: int) -> bool:
        return token in self.allowed() and self.matcher.consume_token(token)

    def feed(self, text: str) -> int:
        """How many bytes of the text are accepted."""
        return next((at for at, byte in enumerate(text.encode()) if not self.take(byte)), len(text.encode()))

    @property
    def may_end(self) -> bool:
        return self.tokenizer.eos_token in self.allowed()

    def babble(self, seed: int, most: int = 3000) -> tuple[str, int]:
        """What a model says that ends only where it must, at most `most` tokens, and how many tokens it took."""
        chooser, said = random.Random(seed), b""
        while not self.matcher.is_stopped() and len(said) < most:
            tokens = [token for token in self.allowed() if token < 256]
            if not tokens:
                break
            token = chooser.choice(tokens)
            assert self.matcher.consume_token(token)
            said += bytes([token])
        assert not self.matcher.is_error(), self.matcher.get_error()
        return said.decode("utf-8", "replace"), len(said)
