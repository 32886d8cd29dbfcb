"""Restricted schemas: every reply ends within its tokens and is one that the client's own schema allows.

The oracles are the decoder's real grammar (llguidance, a token a byte) and the jsonschema package.
"""

import json
from typing import Any

import pytest
from clients.decoder import Decoder, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import schemas

Schema = dict[str, Any]


def check(schema: Schema, tokens: int, seeds: int = 3) -> None:
    """What babbling under the restricted schema says ends, in time where that can be had, and the client takes it."""
    jsonschema = pytest.importorskip("jsonschema")
    held, longest, _ = schemas.bounded(schema, tokens)
    assert refusal(held) is None, held
    for seed in range(seeds):
        said, length = Decoder({"structured_outputs": {"json": held}}).babble(seed, longest + 1)
        assert length <= longest, (said, held)
        jsonschema.validate(json.loads(said), schema)


def numbers(whole: bool) -> st.SearchStrategy[Schema]:
    bound = st.integers(-2000, 2000) if whole else st.floats(0, 2000).map(lambda value: round(value, 3))
    kind = "integer" if whole else "number"

    def made(low: float, width: float, parts: int) -> Schema:
        schema: Schema = {"type": kind}
        if parts & 1:
            schema["exclusiveMinimum" if parts & 4 else "minimum"] = low
        if parts & 2:
            schema["exclusiveMaximum" if parts & 8 else "maximum"] = low + abs(width) + (2 if whole else 1)
        return schema

    return st.builds(made, bound, bound, st.integers(0, 15))


STRINGS = st.one_of(
    st.just({"type": "string"}),
    st.builds(lambda least: {"type": "string", "minLength": least}, st.integers(0, 60)),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 2000)),
    st.just({"type": ["string", "null"]}),
)
LEAVES = st.one_of(
    STRINGS,
    numbers(True),
    numbers(False),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"enum": ["a", 2, None]}, {"const": {"k": [1]}}, {}]),
    st.sampled_from([{"$ref": "#/$defs/node"}, {"type": "array"}, {"type": ["array", "null"]}]),
    st.just({"type": "integer", "multipleOf": 5}),
)


def objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def made(properties: dict[str, Schema], required: int, closed: bool) -> Schema:
        names = [name for at, name in enumerate(properties) if required >> at & 1]
        schema: Schema = {"type": "object", "properties": properties, "required": names, "title": "T"}
        return schema | ({"additionalProperties": False} if closed else {})

    return st.builds(
        made,
        st.dictionaries(st.sampled_from(["a", "score", "理由", "x y"]), inner, min_size=1, max_size=3),
        st.integers(0, 7),
        st.booleans(),
    )


def arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(
        lambda items, least, more: (
            {"type": "array", "items": items, "minItems": least} | ({"maxItems": least + more} if more else {})
        ),
        inner,
        st.integers(0, 12),
        st.integers(0, 30),
    )


def choices(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    parts = st.lists(inner, min_size=1, max_size=3)
    return st.builds(lambda kind, parts: {kind: parts}, st.sampled_from(["anyOf", "anyOf", "oneOf"]), parts)


def together(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Schemas that a reply has to fit at once."""
    alike = (numbers(True), STRINGS, objects(inner), arrays(inner), inner)
    return st.one_of(*(st.lists(kind, min_size=1, max_size=2) for kind in alike)).map(lambda parts: {"allOf": parts})


SCHEMAS = st.recursive(LEAVES, lambda inner: st.one_of(*(m(inner) for m in (objects, arrays, choices, together))))
NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["name", "next"],
}


def beyond_the_rules(schema: Schema) -> bool:
    """Whether a schema puts others together: where that takes more than the rules, it goes on as the client sent it."""
    return "allOf" in json.dumps(schema)


@settings(max_examples=150)
@given(SCHEMAS, st.integers(20, 1500))
def test_replies_to_any_schema_end_and_are_the_clients(schema: Schema, tokens: int) -> None:
    whole = {**schema, "$defs": {"node": NODE}}
    try:
        held, longest, _ = schemas.bounded(whole, tokens)
    except schemas.Unbounded:
        assert refusal(whole) is not None or beyond_the_rules(schema)
        return
    assert longest < tokens or schemas.within(whole, schemas.LADDER[-1]).size >= tokens
    if refusal(held) is not None:
        assert refusal(whole) is not None, "only what no reply fits is made unsatisfiable"
        return
    check(whole, tokens)


@pytest.mark.parametrize(
    ("schema", "tokens"),
    [
        ({"type": "string", "minLength": 50}, 100),
        ({"type": "array", "items": {"type": "string"}, "minItems": 10}, 100),
        ({"type": "number", "minimum": 2e6}, 100),
        ({"type": "integer", "maximum": -5_000_000}, 100),
        ({"allOf": [{"$ref": "#/$defs/node"}], "description": "d"}, 300),
        ({"$ref": "#/$defs/node"}, 300),
        ({"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 2}, 900),
        (
            {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}]},
            90,
        ),
    ],
)
def test_limits_never_contradict_the_clients(schema: Schema, tokens: int) -> None:
    check({**schema, "$defs": {"node": NODE}}, tokens, 6)


def test_branches_that_a_reply_could_fit_twice_are_refused_by_the_decoder() -> None:
    """The client would refuse what fits two."""
    held = schemas.bounded({"oneOf": [{"type": "integer"}, {"type": "number", "maximum": 3}]}, 200).schema
    assert "oneOf" in str(refusal(held))


def test_nothing_is_invented_in_definitions_either() -> None:
    call = {"type": "object", "properties": {"v": {"$ref": "#/$defs/c"}}, "$defs": {"c": NODE | {"required": []}}}
    call["$defs"]["node"] = NODE
    decoder = Decoder({"structured_outputs": {"json": schemas.bounded(call, 500)[0]}})
    assert decoder.feed('{"v":{"') == 7 and bytes(t for t in decoder.allowed() if t < 256) == b"n"


def test_negative_whole_numbers_and_decimals_can_be_said() -> None:
    decoder = Decoder({"structured_outputs": {"json": schemas.bounded({"type": "integer"}, 100)[0]}})
    assert decoder.feed("-12") == 3 and decoder.may_end
    decoder = Decoder({"structured_outputs": {"json": schemas.bounded({"type": "number"}, 100)[0]}})
    assert decoder.feed("0.85") == 4 and decoder.may_end
