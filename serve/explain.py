"""What the server makes of a request, and entries for an operator's own table: `python serve/contracts.py --help`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import contracts
import msgspec
import typer
from api_formats import Chat, Known, Responses
from reader import ASKS, OBJECT
from replies import Refusal
from token_budget import MOST_TOKENS, wish_of

from critic.errors import UsageError

FIELDS = ("verdict", "reasoning", "lead", "never", "opening", "begin", "follow", "room", "properties", "keys")


def explain(request: Path, tables: list[Path]) -> None:
    """Say which contract a request falls under, why, and what its reply is held to."""
    table = contracts.load(tables)
    try:
        body = json.loads(request.read_text("utf-8"))
        msgspec.convert(body, Known)
    except (OSError, ValueError) as error:
        raise UsageError(f"{request}: no request: {error}") from None
    try:
        chat = (Responses() if "input" in body else Chat()).as_chat(body, False)
        _explain(chat, contracts.recognise(chat, table))
    except Refusal as problem:
        raise UsageError(f"{request}: refused: {problem}") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{request}: goes on as it is, and vLLM says what is wrong with it") from None


def _explain(chat: contracts.Request, contract: contracts.Contract | None) -> None:
    form, wish = contracts.form_of(chat), wish_of(chat)
    print(f"form: {form or 'none: the request constrains or begins its reply itself, or asks for beams'}")
    if contract is None:
        print(f"contract: none\nfingerprint: {contracts.fingerprint(chat)}")
        return
    match = contract.pattern and contract.pattern.search(contracts.wording(chat))
    why = f"the words {match[0][:200]!r}" if match else contract.found or f"the request is of the form {form}"
    print(f"contract: {contract.name} ({contract.client})\nwhy: {why}")
    tokens = wish or max(MOST_TOKENS, contract.least_tokens)
    held = contracts.constrain(contract, chat, tokens)
    if held is None:
        print("held to: its own schema, as it is")
        return
    outputs = held.sent(tokens)[0]["structured_outputs"]
    print(f"held to, in {tokens} tokens:")
    print(outputs.get("grammar") or json.dumps(outputs["json"], ensure_ascii=False, indent=2))


def draft(prompt: Path, name: str) -> None:
    """Write an entry for a table of one's own, from what a prompt's words say."""
    if not re.fullmatch(contracts.NAME, name):
        raise UsageError(f"--name {name!r}: the name must be of a-z, 0-9 and -")
    try:
        text = prompt.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{prompt}: {error}") from None
    contract = contracts.recognise({"messages": [{"role": "user", "content": text}]}, contracts.load())
    lines = [line.strip() for line in text.split("\n") if len(line.strip()) > 20] or [text]
    words = ([line for line in lines if ASKS.match(line) or OBJECT.search(line)] or lines)[-1]
    entry: dict[str, Any] = {"name": name, "client": f"the prompt of {prompt.name}"}
    entry |= {"asks": re.escape(words[:120]).replace(r"\ ", " "), "where": "head", "room": 64}
    if contract is None:
        entry |= {"verdict": "[1-5]", "room": 1}
        print("# No form was found in the words: `verdict` is only an example.")
    elif contract.schema is not None:
        entry |= {"forms": ["text", "json_object"], "schema": contract.schema}
    else:
        fields = {field: getattr(contract, field) for field in FIELDS}
        entry |= {field: value for field, value in fields.items() if value}
    print("\n".join(["[[contract]]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str) and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)


def main(
    what: Annotated[str, typer.Argument(help="explain (a request) or draft (an entry for a prompt).")],
    file: Annotated[Path, typer.Argument(help="The request's body (JSON), or the prompt's text.")],
    tables: Annotated[
        list[Path] | None, typer.Option("--contracts", help="Reply contracts of your own (TOML).")
    ] = None,
    name: Annotated[str, typer.Option(help="The name of the entry.")] = "mine",
) -> None:
    """Say which contract a request falls under, why, and what its reply is held to; or write an entry for your own
    table, from what a prompt's words say."""
    if what == "explain":
        explain(file, tables or [])
    elif what == "draft":
        draft(file, name)
    else:
        raise UsageError(f"{what!r} is neither explain nor draft")
