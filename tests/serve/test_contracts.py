"""Reply contracts: each client's request is recognised, and whatever the model says, the client reads a verdict.

The decoder is the real one (llguidance), the model a random one with a token a byte: the worst case for lengths.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.decoder import Decoder, shortest
from clients.forms import FORMS, RESPONSE, Form
from clients.words import ASKED
from serving import api_formats, contracts

from critic.errors import UsageError

TABLE = contracts.load()
BUILT_IN = TABLE.tables[-1]
BY_NAME = {contract.name: contract for contract in BUILT_IN}
FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.contract)


def wanting(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a request for a reply by a JSON Schema."""
    return {"messages": [], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def test_every_contract_has_a_form_and_every_name_one_contract() -> None:
    laid_out = {contracts.recognise(form.request, TABLE).name for form in ASKED}
    assert {form.contract for form in FORMS} | (laid_out & {*BY_NAME}) == {*BY_NAME}
    assert len(BY_NAME) == len(BUILT_IN) == 37 + 29


def test_there_is_room_for_the_longest_verdict() -> None:
    for contract in BUILT_IN:
        if contract.verdict and contract.where != "asked":  # there it is counted when its places are filled
            longest = re._parser.parse(contract.verdict).getwidth()[1]  # type: ignore[attr-defined]
            assert longest + len(contract.lead) <= contract.room <= longest + len(contract.lead) + 12, contract.name


@FORM
def test_recognised_whatever_stands_in_the_response(form: Form) -> None:
    """A response that quotes the instructions of all other forms changes nothing."""
    assert contracts.recognise(form.request, TABLE).name == form.contract
    others = [contracts.join_words(other.request) for other in FORMS]
    for attack in ("\n".join(others), "\n".join(reversed(others)), *others):
        if RESPONSE in json.dumps(form.request):
            assert contracts.recognise(form.with_response(attack), TABLE).name == form.contract


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "user", "content": "hello"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
        {"messages": [{"role": "user", "content": "Rate 1 to 10."}], "response_format": {"type": "json_object"}},
        {"messages": FORMS[0].request["messages"], "structured_outputs": {"regex": "a"}},
        {"messages": FORMS[0].request["messages"], "continue_final_message": True},
        {"messages": FORMS[0].request["messages"], "tools": [{}], "tool_choice": "auto"},
        {"messages": []},
    ],
)
def test_other_requests_are_not_recognised(request_: dict[str, Any]) -> None:
    assert contracts.recognise(request_, TABLE) is None


@pytest.mark.usefixtures("without_collection")
def test_recognition_takes_no_longer_than_the_text_is_long() -> None:
    """A response under judgment must not stop the server: no pattern looks twice at what it can fill at will."""
    began = time.process_time()
    for form in FORMS:
        text = contracts.join_words(form.request)
        for filling in (" " * 40_000, "\n" * 40_000):
            for content in (f"{text}{filling}x", re.sub(r"\n+(\*\*)?", filling, text) + "x"):
                contracts.recognise({"messages": [{"role": "user", "content": content}]}, TABLE)
    assert time.process_time() - began < 5


@pytest.mark.usefixtures("without_collection")
@FORM
def test_a_request_of_megabytes_is_recognised_by_its_ends(form: Form) -> None:
    """While it is read nobody else is answered; what stands between does not matter."""
    longer = form.with_response("The answer says four. " * 400_000)
    began = time.process_time()
    assert contracts.recognise(longer, TABLE).name == form.contract
    contracts.constrain(BY_NAME[form.contract], longer, 600)
    assert time.process_time() - began < 0.15


def as_choice(form: Form, said: str) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": said}}
    name = contracts.forced_tool(form.request)
    return api_formats.as_tool_call(choice, name, "call_0") if name else choice


@FORM
@pytest.mark.parametrize("more", [0, 150])
def test_the_verdict_is_where_the_client_looks(form: Form, more: int) -> None:
    """Of a model that never stops by itself, with the least tokens and with more; one of them is for the end."""
    contract = BY_NAME[form.contract]
    tokens = contract.least_tokens + more if contract.verdict else 250 + more
    held = contracts.constrain(contract, form.request, tokens)
    for seed in range(5):
        said, length = Decoder(shortest(held, tokens)).babble(seed)
        assert length < tokens, said
        assert form.parse(as_choice(form, said)) is not None, said


def babble_verdict(contract: Any, seed: int) -> str:
    """Return some verdict of a contract, by itself."""
    return Decoder({"structured_outputs": {"grammar": f"start: /{contract.verdict}/\n"}}).babble(seed)[0]


BEFORE = [form for form in FORMS if BY_NAME[form.contract].reasoning == "before"]


@pytest.mark.parametrize("form", BEFORE, ids=lambda form: form.contract)
def test_a_model_may_come_to_its_verdict_by_itself(form: Form) -> None:
    contract = BY_NAME[form.contract]
    held = contracts.constrain(contract, form.request, 1000)
    verdict = babble_verdict(contract, 1)
    decoder = Decoder(held.request)
    said = f"The answer says four, 理由。{contract.lead}{verdict}"
    assert decoder.feed("The answer says four, 理由。") == len("The answer says four, 理由。".encode())
    assert not decoder.may_end, "without a verdict there is no end"
    assert decoder.feed(contract.lead + verdict) == len((contract.lead + verdict).encode())
    assert decoder.may_end
    assert form.parse({"message": {"content": said}}) is not None
    again = f" No: {contract.lead}{verdict}"
    assert decoder.feed(again) < len(again.encode()), "a second verdict"


@pytest.mark.parametrize("form", BEFORE, ids=lambda form: form.contract)
def test_a_verdict_cut_off_at_the_limit_is_given_once_more(form: Form) -> None:
    contract, budget = BY_NAME[form.contract], 250
    held = contracts.constrain(contract, form.request, budget + contract.room + 1)
    verdict = contract.lead + babble_verdict(contract, 2)
    for said_before in range(1, len(verdict)):
        said = "x" * (budget - said_before) + verdict[:said_before]
        decoder = Decoder(held.request)
        assert decoder.feed(said) == budget
        said += decoder.babble(said_before)[0]
        assert form.parse({"message": {"content": said}}) is not None, said


def test_an_explanation_after_the_verdict_is_limited_and_free_to_end() -> None:
    held = contracts.constrain(BY_NAME["two-scores"], FORMS[2].request, 60)
    decoder = Decoder(held.request)
    assert decoder.feed("8 10") == 4 and decoder.may_end
    assert decoder.feed("\nBecause 1 2 3.") == 15 and decoder.may_end
    assert Decoder(held.request).babble(3)[1] <= 60


def test_a_schema_that_needs_nothing_goes_on_as_it_is() -> None:
    properties: dict[str, Any] = {"r": {"type": "integer", "minimum": 1, "maximum": 10}}
    properties |= {"s": {"type": "string", "maxLength": 20}, "t": {"type": "string", "enum": ["x"]}}
    own = {"type": "object", "properties": properties, "additionalProperties": False}
    assert contracts.constrain(BY_NAME["json-schema"], wanting(own), 256) is None


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"faithfulness": {"type": "array"}, "notes": {"type": "string"}}, {"faithfulness"}),
        ({"email": {"type": "string"}, "phone": {"type": "string"}}, set()),
    ],
)
def test_a_schema_that_requires_nothing_still_wants_its_verdict(properties: dict[str, Any], said: set[str]) -> None:
    request = wanting({"type": "object", "properties": properties})
    held = contracts.constrain(BY_NAME["json-schema"], request, 300)
    for seed in range(8):
        assert json.loads(Decoder(shortest(held, 300)).babble(seed)[0]).keys() >= said
    allowed = Decoder(held.request)
    assert allowed.feed("{}") == (1 if said else 2)


def test_a_definition_that_branches_into_itself_is_held_too() -> None:
    properties = {name: {"$ref": "#/$defs/n"} for name in "abcde"} | {"text": {"type": "string"}}
    tree = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": properties, "required": ["text"]}}}
    held = contracts.constrain(BY_NAME["json-schema"], wanting(tree), 500)
    said, length = Decoder(shortest(held, 500)).babble(1)
    assert length < 500 and json.loads(said)["text"] is not None
    assert json.loads(Decoder(held.request).babble(1, 200_000)[0]), "nothing goes on for ever"


def test_a_model_that_rambles_is_asked_once_more_under_tighter_limits() -> None:
    free = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}
    held = contracts.constrain(BY_NAME["json-schema"], wanting(free), 400)
    first = held.request["structured_outputs"]["json"]["properties"]
    tighter, limits = held.shorten(400)
    second = tighter["structured_outputs"]["json"]["properties"]
    assert first["a"]["maxLength"] == 600 and second["a"]["maxLength"] == limits.string < 60
    assert first["b"]["maxItems"] == 64 and second["b"]["maxItems"] == limits.items
    assert 400 < held.min_tokens < 400_000


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("[[contract]", ["no table"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nverdct = "a"', ["verdct"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nasks = "("\nverdict = "a"', ["'x'", "regular"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3', ["'x'", "verdict"]),
        ('[[contract]]\nname = "X"\nclient = "y"\nroom = 3\nverdict = "a"', ["name"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nverdict = "a"\nforms = ["tool"]', ["'x'", "text"]),
        ("[[contract]]\nname = 'x'\nclient = 'y'\nroom = 3\nverdict = '\\d'", ["'x'", "\\d", "too wide"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nverdict = "a"\nopening = "ab"', ["'x'", "opening"]),
        ('[[contract]]\nname = "x"\nclient = "y"\nroom = 3\nproperties = {}\nverdict = "a"', ["exclude"]),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, table: str, parts: list[str]) -> None:
    file = tmp_path / "own.toml"
    file.write_text(table)
    with pytest.raises(UsageError) as error:
        contracts.load([file])
    for part in ["own.toml", *parts]:
        assert part in str(error.value)


def test_the_operators_contracts_come_first(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        "[[contract]]\nname = 'mine'\nclient = 'me'\nroom = 5\nasks = 'BEGIN DATA.*'\nwhere = 'tail'\nverdict = 'hello'"
    )
    table = contracts.load([file])
    assert [contract.name for contract in table.tables[0]] == ["mine"] and table.tables[1:] == TABLE.tables
    assert contracts.recognise(FORMS[0].request, table).name == "mine"


def golden(shared: Path, peer: str) -> dict[str, tuple[str, Any]]:
    parsers = json.loads((shared / "fixtures/golden.json").read_text("utf-8"))["parsers"]
    return {name: (parsers["replies"][name], value) for name, value in parsers["by_peer"][peer]["parsed"].items()}


@pytest.mark.parametrize(
    ("peer", "contract", "wanted"),
    [
        ("inspect", "grade-cpi", lambda value: value["partial"]),
        ("prometheus", "prometheus-relative", lambda value: value["relative"]),
        ("fastchat", "bracketed-choice", lambda value: value if value in ("A", "B") else None),
        ("vlmevalkit", "correctness-float", lambda value: value["mmvet"] if value["mmvet"] == 0.7 else None),
    ],
)
def test_our_parsers_refuse_what_the_clients_refuse(
    shared: Path, peer: str, contract: str, wanted: Callable[[Any], Any]
) -> None:
    """A parser of ours that read more than the client's would hide a verdict that the client misses."""
    form = next(form for form in FORMS if form.contract == contract)
    for name, (reply, value) in golden(shared, peer).items():
        read = form.parse({"message": {"content": reply}})
        if read is not None and not (peer == "fastchat" and read == "C"):
            assert read == wanted(value), (name, reply)
