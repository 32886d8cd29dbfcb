"""Requests that no client should send: generated from a seed, for every route."""

import random
from collections.abc import Iterator
from typing import Any

ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/score"),
    *("/tokenize", "/detokenize", "/classify", "/pooling", "/score", "/rerank", "/invocations", "/generative_scoring"),
    *("/v1/chat/completions/batch", "/scale_elastic_ep", "/reset_prefix_cache", "/sleep", "/v1/load_lora_adapter"),
)
WRONG: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, -(10**30), float("nan"), float("inf"), "", "x", "\x00\x1b", "a" * 5000),
    *([], {}, [[]], [None], [{}], {"a": None}, ["1", "0"], {"type": "object"}, "<|end|>", "\U0001f600"),
)
SCHEMAS: tuple[Any, ...] = (
    *({"allOf": []}, {"anyOf": []}, {"oneOf": []}, {"enum": []}, {"type": []}, {"properties": []}, {"required": "a"}),
    *({"type": "object", "properties": []}, {"$ref": "#/nowhere"}, {"$ref": 1}, {"$ref": "#"}, {"items": []}, True),
    {"type": "object", "properties": {"Rating": {"type": "integer", "maximum": 10}}, "required": ["Rating"]},
    {"type": "object", "properties": {"Rating": {"type": "integer", "minimum": 1, "maximum": 10**9}}},
    {"type": "object", "properties": {"Rating": {"type": "integer", "minimum": 10**9, "maximum": 1}}},
    {"type": "object", "properties": {"Rating": {"enum": [1, 2, "x"]}}, "required": ["Rating", "Reason"]},
    {"type": "number", "minimum": float("nan")},
    {"type": "integer", "multipleOf": 0},
    {"type": "string", "pattern": "("},
    {"type": "string", "minLength": 5, "maxLength": 1},
    {"type": "array", "items": {"type": "string"}, "minItems": -1},
)
WORDS = (
    "Rate the response. End with [[rating]].",
    'Rate the response. Return JSON {"score": <1-5>, "why": "<text>"}',
    "Answer only yes or no: is the response correct?",
    "hello",
    "first then return " * 50,
)
FIELDS = (
    *("model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "n", "temperature", "top_p"),
    *("top_k", "seed", "stop", "stream", "logprobs", "top_logprobs", "bad_words", "allowed_token_ids", "logit_bias"),
    *("tools", "tool_choice", "response_format", "structured_outputs", "guided_choice", "guided_json", "guided_regex"),
    *("text", "min_tokens", "ignore_eos", "echo", "suffix", "use_beam_search", "chat_template_kwargs", "unknown"),
    *("metadata", "query", "documents", "text_1", "text_2", "tokens", "items", "stream_options"),
    *("continue_final_message", "priority"),
)


def bodies(count: int, seed: int = 1) -> Iterator[tuple[str, dict[str, str], Any]]:
    """Yield `count` requests: the route, the headers, and the body."""
    draw = random.Random(seed)
    for _ in range(count):
        route = draw.choice(ROUTES[:1] * 12 + ROUTES)
        headers = {"x-critic-rating": "whole"} if draw.random() < 0.3 else {}
        headers |= {"x-critic-contract": draw.choice(["none", "x" * 5000])} if draw.random() < 0.3 else {}
        yield route, headers, draw.choice(WRONG) if draw.random() < 0.03 else _body(draw)


def _body(draw: random.Random) -> dict[str, Any]:
    content: Any = draw.choice(WORDS)
    if draw.random() < 0.15:
        content = [{"type": "text", "text": draw.choice(WRONG)}, draw.choice(WRONG)]
    body: dict[str, Any] = {"max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    body |= {"prompt": "a", "input": "a", "query": "a", "documents": [{"text": "b"}], "text_1": "a", "text_2": "b"}
    if draw.random() < 0.5:
        form = {"type": "json_schema", "json_schema": {"name": "v", "schema": draw.choice(SCHEMAS)}}
        forms: list[dict[str, Any]] = [
            {"response_format": form},
            {"structured_outputs": {"json": draw.choice(SCHEMAS)}},
        ]
        forms += [{"structured_outputs": {"choice": ["1", "0"]}}, {"guided_json": draw.choice(SCHEMAS)}]
        function: Any = {"name": "f", "parameters": draw.choice(SCHEMAS)}
        named: Any = {"type": "function", "function": {"name": "f"}}
        forms += [
            {"tools": [{"type": "function", "function": function}], "tool_choice": draw.choice([named, "required"])}
        ]
        body |= draw.choice(forms)
    if draw.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": 5}
    if draw.random() < 0.2:
        body |= draw.choice(
            [{"bad_words": ["1", "0"]}, {"allowed_token_ids": [5]}, {"min_tokens": 3}, {"stream": True}]
        )
    for name in draw.sample(FIELDS, draw.choice([0, 0, 1, 2])):
        body[name] = draw.choice(WRONG)
    if draw.random() < 0.05:
        deep: Any = 1
        for _ in range(draw.choice([50, 900])):
            deep = draw.choice([[deep], {"a": deep}])
        body[draw.choice(FIELDS)] = deep
    return body
