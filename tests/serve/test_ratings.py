"""What the layer has vLLM's engine do for a whole rating, before an engine that writes what it is told."""

import asyncio
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from serving import chat_request, ratings

TEXTS = ['{"', "Rating", '":', "7", ',"', "1", "0", "3", "}"]
FORM = {"properties": {"Rating": {"type": "integer", "minimum": 1, "maximum": 10}}}


class Flat(SimpleNamespace):
    """vLLM's FlatLogprobs, as far as it is used."""

    def __getitem__(self, at: int) -> dict[int, Any]:
        span = range(self.start_indices[at], self.end_indices[at])
        each = {self.token_ids[i]: (self.logprobs[i], self.decoded_tokens[i]) for i in span}
        return {token: SimpleNamespace(logprob=share, decoded_token=text) for token, (share, text) in each.items()}


def flat(*positions: dict[str, float]) -> Flat:
    tokens = [(TEXTS.index(text), math.log(share), text) for each in positions for text, share in each.items()]
    ends = [sum(map(len, positions[: at + 1])) for at in range(len(positions))]
    numbers, logs, texts = map(list, zip(*tokens, strict=True))
    return Flat(start_indices=[0, *ends[:-1]], end_indices=ends, token_ids=numbers, logprobs=logs, decoded_tokens=texts)


class Params(SimpleNamespace):
    n, logprobs, structured_outputs = 1, 10, SimpleNamespace(json=FORM)


def told(whole: bool, *positions: dict[str, float], **params: Any) -> tuple[Any, list[list[int]], float | None]:
    """The alternatives of a reply that writes the first of each position, what the engine was asked, and `ten`."""
    room, prompts = chat_request.TokenBudget(lambda: None, whole=whole), list[list[int]]()

    async def generate(_: Any, prompt: Any, params: Any, name: str, **how: Any) -> AsyncIterator[Any]:
        prompts.append(prompt["prompt_token_ids"])
        second = name.endswith("-ten")
        assert not second or (params.max_tokens, params.structured_outputs.regex, how["lora"]) == (1, "[0,].*", "a")
        written = flat({"0": 0.25, ',"': 0.75}) if second else flat(*positions)
        tokens = [written.token_ids[start] for start in written.start_indices]
        yield SimpleNamespace(finished=True, outputs=[SimpleNamespace(token_ids=tokens, logprobs=written)])

    async def all_of() -> Any:
        chat_request.BUDGET.set(room)
        form = {"structured_outputs": type("Form", (SimpleNamespace,), {"json": FORM})(), **params}
        replies = ratings.wrap_generate(generate)(None, {"prompt_token_ids": [90]}, Params(**form), "chat", lora="a")
        return [reply async for reply in replies][-1]

    reply = asyncio.run(all_of())
    return [list(reply.outputs[0].logprobs[at]) for at in range(len(positions))], prompts, room.ten


BEGUN: list[dict[str, float]] = [{'{"': 0.9, "0": 0.1}, {"Rating": 0.9, "3": 0.1}, {'":': 0.9, "0": 0.1}]
END: list[dict[str, float]] = [{',"': 0.8, "}": 0.2}, {"3": 0.9, "0": 0.1}]


@pytest.mark.parametrize(
    ("rating", "asks"),
    [
        ({"7": 0.7, "1": 0.3}, True),
        ({"7": 1 - 1e-7, "1": 1e-7}, False),  # too little to matter
        ({"1": 0.7, "7": 0.3}, False),  # its own next token tells
        ({"7": 0.7, "3": 0.3}, False),
    ],
)
def test_what_a_one_goes_on_with_is_asked_for_where_it_is_open(rating: dict[str, float], asks: bool) -> None:
    shown, prompts, ten = told(True, *BEGUN, rating, *END)
    assert prompts == ([[90], [90, 0, 1, 2, 5]] if asks else [[90]])
    assert ten == (pytest.approx(0.25) if asks else None)
    assert list(map(len, shown)) == [1, 1, 1, 2, 2, 1] and shown[3] == [TEXTS.index(text) for text in rating]


def test_who_does_not_ask_gets_what_vllm_gives() -> None:
    for whole, params in ((False, {}), (True, {"n": 2}), (True, {"logprobs": None})):
        shown, prompts, ten = told(whole, *BEGUN, {"7": 0.7, "1": 0.3}, *END, **params)
        assert set(map(len, shown)) == {2} and len(prompts) == 1 and ten is None
    shown, prompts, ten = told(True, *BEGUN[:2], *END)  # no rating
    assert set(map(len, shown)) == {2} and len(prompts) == 1 and ten is None
