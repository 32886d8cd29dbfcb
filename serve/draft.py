"""Entries for an operator's own table of contracts: `python serve/contracts.py draft PROMPT.txt`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import contracts
import typer
from reader import ASKS, OBJECT

from critic.errors import UsageError

FIELDS = ("verdict", "reasoning", "lead", "never", "opening", "begin", "follow", "room", "properties", "keys")


def main(
    what: Annotated[Literal["draft"], typer.Argument(help="Write an entry.")],
    prompt: Annotated[Path, typer.Argument(help="The prompt's text.")],
    name: Annotated[str, typer.Option(help="The name of the entry.")] = "mine",
) -> None:
    """Write an entry for your own table of contracts, from what a prompt's words say."""
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
