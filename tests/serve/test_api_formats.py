"""Tools that need not be named, and calls that come of a text."""

import json
from typing import Any

import pytest
from clients.inner import Ask, Inner, streamed

pytest_plugins = ["clients.asking"]
SCORE = {"type": "integer", "description": "from 1 to 5"}
PARAMETERS = {"type": "object", "properties": {"score": SCORE, "why": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "grade", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "skip", "parameters": {"type": "object", "properties": {}}}}
WORDS = {"messages": [{"role": "user", "content": "Score it from 1 to 5."}], "max_tokens": 200}
CALL = '{"score":3,"why":"so"}'


def sent(inner: Inner) -> Any:
    return json.loads(inner.chats[0])


def test_the_only_tool_is_called(ask: Ask) -> None:
    inner = Inner(CALL)
    answer = ask(inner, {**WORDS, "tools": [TOOL], "tool_choice": "required"})
    assert answer.headers["x-critic-contract"] == "tool-call"
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "grade", "arguments": CALL}
    score = sent(inner)["structured_outputs"]["json"]["properties"]["score"]
    assert (score["minimum"], score["maximum"]) == (1, 5) and sent(inner)["tool_choice"] == "none"


def test_a_tool_that_need_not_be_called_is_the_models_to_call(ask: Ask) -> None:
    for tools, choice in (([TOOL], "auto"), ([TOOL], None), ([TOOL, OTHER], "required"), ([TOOL], "none")):
        inner = Inner()
        request = {**WORDS, "tools": tools, "tool_choice": choice}
        assert ask(inner, request).headers["x-critic-contract"] == "none"
        assert sent(inner) == request


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_ends_with_a_call_unless_the_client_named_its_function(ask: Ask, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "grade"}}
    for fields, end in (
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_calls"),
        ({"tools": [TOOL], "tool_choice": named}, "stop"),
    ):
        answer = ask(Inner(CALL), {**WORDS, **fields, "stream": stream})
        choices = streamed(answer) if stream else answer.json()["choices"]
        assert [one["finish_reason"] for one in choices if one["finish_reason"]] == [end], fields
