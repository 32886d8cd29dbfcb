"""The same request in other forms: `/v1/responses`, `functions`, and tools that need not be named."""

import json
from typing import Any

import pytest
from clients.dialects import as_response
from clients.forms import FORMS, RESPONSE
from clients.inner import Ask, Inner, streamed

pytest_plugins = ["clients.asking"]
PARAMETERS = {"type": "object", "properties": {"score": {"type": "integer"}, "why": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "grade", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "skip", "parameters": {"type": "object", "properties": {}}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {"city": {}}}}}
WORDS = {"messages": [{"role": "user", "content": "Score it from 1 to 5."}], "max_tokens": 200}
CALL = '{"score":3,"why":"so"}'


def sent(inner: Inner) -> Any:
    return json.loads(inner.chats[0])


@pytest.mark.parametrize("choice", ["required", "auto", None])
def test_the_only_tool_is_called(ask: Ask, choice: Any) -> None:
    inner = Inner(CALL)
    answer = ask(inner, {**WORDS, "tools": [TOOL]} | ({"tool_choice": choice} if choice else {}))
    assert answer.headers["x-critic-contract"] == "tool-call"
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "grade", "arguments": CALL}
    score = sent(inner)["structured_outputs"]["json"]["properties"]["score"]
    assert (score["minimum"], score["maximum"]) == (1, 5) and sent(inner)["tool_choice"] == "none"


def test_a_tool_that_takes_no_verdict_is_the_models_to_call(ask: Ask) -> None:
    for tools, choice in (([WEATHER], "auto"), ([TOOL, OTHER], "auto"), ([TOOL, OTHER], "required"), ([TOOL], "none")):
        inner = Inner()
        request = {**WORDS, "tools": tools, "tool_choice": choice}
        assert ask(inner, request).headers["x-critic-contract"] == "none"
        assert sent(inner) == request
    assert ask(Inner("{}"), {**WORDS, "tools": [WEATHER], "tool_choice": "required"}).json()["choices"][0]["message"][
        "tool_calls"
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_ends_with_a_call_unless_the_client_named_its_function(ask: Ask, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "grade"}}
    for fields, end in (
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_calls"),
        ({"tools": [TOOL]}, "tool_calls"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_calls"),
        ({"tools": [TOOL], "tool_choice": named}, "stop"),
    ):
        answer = ask(Inner(CALL), {**WORDS, **fields, "stream": stream})
        choices = streamed(answer) if stream else answer.json()["choices"]
        assert [one["finish_reason"] for one in choices if one["finish_reason"]] == [end], fields


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.contract)
def test_responses_are_held_to_the_same_contracts(ask: Ask, form: Any) -> None:
    chat, responses = Inner("{}"), Inner("{}")
    ask(chat, form.request)
    request = as_response(form.request)
    answer = ask(responses, request, path="/v1/responses")
    assert answer.headers["x-critic-contract"] == form.contract and answer.headers["x-critic-model"] == "judge@1"
    assert sent(responses)["structured_outputs"] == sent(chat)["structured_outputs"]
    assert sent(responses)["input"] == request["input"] and "format" not in sent(responses).get("text", {})
    (output,) = answer.json()["output"]
    if "tools" in request:
        assert output["type"] == "function_call" and output["arguments"] == "{}" and output["call_id"]
    else:
        assert output["type"] == "message"


def test_an_unknown_response_goes_on_byte_for_byte(ask: Ask) -> None:
    for said in ("hello", [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]):
        inner = Inner()
        body = json.dumps({"input": said, "max_output_tokens": 9, "seed": 1}).encode()
        answer = ask(inner, body, path="/v1/responses/")
        assert inner.chats == [body] and answer.headers["x-critic-contract"] == "none"
    for fields in ({"previous_response_id": "resp_0"}, {"input": [{"type": "item_reference", "id": "x"}]}):
        inner = Inner()
        body = json.dumps({"input": "hello", **fields}).encode()
        assert ask(inner, body, path="/v1/responses").headers["x-critic-model"] == "judge@1"
        assert inner.chats == [body]


def test_instructions_and_parts_are_read(ask: Ask) -> None:
    form = next(form for form in FORMS if form.contract == "bracketed-choice")
    system, user = (message["content"] for message in form.request["messages"])
    parts = [{"type": "input_text", "text": user}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    inner = Inner(RESPONSE)
    request = {"instructions": system, "input": [{"role": "user", "content": parts}]}
    answer = ask(inner, request, path="/v1/responses")
    assert answer.headers["x-critic-contract"] == form.contract and answer.headers["x-critic-left-out"] == "images=1"
    assert sent(inner)["input"][0]["content"] == parts[:1] and "1 image parts" in answer.json()["warnings"][0]


def test_a_streamed_response_with_tools_is_vllms(ask: Ask) -> None:
    """Its events are those of a text; its images are counted in a header."""
    tools = [{"type": "function", "name": "grade", "parameters": PARAMETERS}]
    for choice in ("required", "auto", "none", None):
        inner = Inner()
        request = {"input": "Score it from 1 to 5.", "stream": True, "tools": tools, "tool_choice": choice}
        assert ask(inner, request, path="/v1/responses").headers["x-critic-contract"] == "none"
        assert sent(inner) == request


def test_a_response_that_was_cut_off_is_asked_for_once_more_in_short(ask: Ask) -> None:
    class Rambling(Inner):
        def response(self, reply: str) -> dict[str, Any]:
            cut = {"reason": "max_output_tokens"} if reply == "{..." else None
            return {**super().response(reply), "incomplete_details": cut}

    schema = {"type": "json_schema", "name": "n", "schema": PARAMETERS}
    inner = Rambling("{...", CALL)
    answer = ask(
        inner, {"input": "Score it.", "max_output_tokens": 200, "text": {"format": schema}}, path="/v1/responses"
    )
    assert answer.json()["output"][0]["content"][0]["text"] == CALL and "x-critic-limits" in answer.headers
    first, second = (json.loads(one)["structured_outputs"]["json"]["properties"]["why"] for one in inner.chats)
    assert first["maxLength"] == 600 > second["maxLength"]
