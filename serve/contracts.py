"""Reply contracts: from a chat request to the reply form it asks for, and to decoding that keeps to it.

    python serve/contracts.py explain REQUEST.json [--contracts FILE]
    python serve/contracts.py draft PROMPT.txt [--name NAME]

The first says which contract a request falls under and what its reply is held to, the second writes an entry for a
table of one's own. The table is `contracts.toml`, which says what each field means. Everything here is pure.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import reader
from chinese import in_english
from dialects import forced_tool, parameters
from labels import JUDGING, SEVERAL, any_of, choices, escaped, scale
from reader import closed
from scales import filler, with_verdict
from schemas import Limits, Unbounded, bounded

from critic.errors import UsageError

Request = dict[str, Any]
Schema = dict[str, Any]
Form = Literal["text", "json_object", "json_schema", "tool"]
Tight = Callable[[int], tuple[Request, Limits]]

TABLE = Path(__file__).with_name("contracts.toml")
REASONING_TOKENS = 400
"""The most that a model may write besides its verdict, in tokens: a judge that rambles costs no more."""

TEMPLATE = 40
"""Characters with which a request begins: they name its template, whatever data follows."""

ENDINGS = ("response_format", "stop", "min_tokens", "ignore_eos")
"""Fields that say what a reply is and when it ends: under a contract its form says that."""

EDGE = 100_000
"""Characters at either end of a long request that are looked at: while Python searches a text, nobody is answered."""

LEAST_REASONING = 16
"""Tokens of reasoning below which a request counts as too long, where its form allows reasoning."""


class Held(NamedTuple):
    """A request with decoding held to its contract. More than `enough` tokens would not change it, or cut no reply off.
    `tight` is the request of a JSON reply that ends within so many tokens, and what that limits."""

    request: "Request"
    enough: int
    tight: "Tight | None" = None

    def sent(self, tokens: int) -> "tuple[Request, Limits | None]":
        """The request as it is sent first: within limits, and these, if it is a stream, as what that has said cannot be
        taken back."""
        if self.tight is None or not self.request.get("stream") or tokens >= self.enough:
            return self.request, None
        return self.tight(tokens)


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    section: str
    each: str


class Contract(msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the table."""

    name: str
    client: str
    room: int
    asks: str | None = None
    where: Literal["head", "tail", "asked"] = "head"
    data: str | None = None
    forms: tuple[Form, ...] = ("text",)
    tool: str | None = None
    verdict: str | None = None
    reasoning: Literal["none", "before", "after"] = "none"
    lead: str = ""
    never: str | None = None
    opening: str | None = None
    begin: str = ""
    properties: dict[str, Schema] | None = None
    bounds: str | None = None
    keys: Keys | None = None
    schema: Schema | None = None
    follow: str = ""
    found: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """What recognises the words asked with; of a tail only at the end of a text without space behind it."""
        if self.asks is None:
            return None
        return re.compile(rf"(?:{self.asks})\Z" if self.where == "tail" else self.asks, re.DOTALL)

    @property
    def least_tokens(self) -> int:
        """Tokens without which a reply cannot be given, the end of the text among them."""
        follow = len(self.follow.encode()) + LEAST_REASONING if self.follow else 0
        return len(self.begin.encode()) + self.room + 1 + (LEAST_REASONING if self.reasoning == "before" else follow)


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    contract: list[Contract]


class Contracts(msgspec.Struct, frozen=True, dict=True):
    """Tables of contracts, in the order in which they are tried."""

    tables: list[list[Contract]]

    @cached_property
    def data(self) -> re.Pattern[str]:
        """What opens the data of a request of any of the forms."""
        openings = [f"(?:{entry.data})" for table in self.tables for entry in table if entry.data]
        return re.compile("|".join(openings) or r"\Z", re.DOTALL)


def load(files: Sequence[Path] = ()) -> Contracts:
    """The operator's contracts, in the order of their files, and then the built-in ones.

    Raises UsageError, with file and entry, for what is not a table of contracts.
    """
    return Contracts([_read_table(file) for file in (*files, TABLE)])


def _read_table(file: Path) -> list[Contract]:
    try:
        table = msgspec.convert(tomllib.loads(file.read_text("utf-8")), File).contract
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: no table of contracts: {error}") from None
    for contract in table:
        _check(file, contract)
    return table


def _check(file: Path, contract: Contract) -> None:
    where = f"{file}: contract {contract.name!r}"
    try:
        _ = contract.pattern
        for pattern in (contract.data or "", *((contract.keys.section, contract.keys.each) if contract.keys else ())):
            re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{where}: no regular expression: {error.pattern!r}: {error}") from None
    given = [name for name in ("verdict", "properties", "keys", "schema") if getattr(contract, name) is not None]
    if len(given) > 1:
        raise UsageError(f"{where}: {' and '.join(given)} exclude each other")
    if contract.verdict is not None and contract.forms != ("text",):
        raise UsageError(f"{where}: a verdict is plain text; forms must be ['text']")
    if not given and {"text", "json_object"} & set(contract.forms):
        raise UsageError(f"{where}: verdict, properties or keys must say what the reply is")
    if wide := re.search(r"(?<!\\)\\[wWsSdDpPbB]", f"{contract.verdict} {contract.never}"):
        raise UsageError(f"{where}: {wide[0]} is too wide for the decoder; write the characters themselves")
    if contract.verdict is None and (
        contract.reasoning != "none" or contract.never or contract.opening or contract.lead or contract.begin
    ):
        raise UsageError(f"{where}: reasoning, never, opening, begin and lead belong to a verdict")
    if contract.bounds is not None and not (
        contract.bounds in (contract.properties or {})
        and contract.pattern
        and {"low", "high"} <= contract.pattern.groupindex.keys()
    ):
        raise UsageError(f"{where}: bounds is one of properties, and asks has the groups low and high")
    if contract.opening is not None and (
        contract.never
        or not contract.opening
        or not (PLACE.search(contract.opening) or _begins(contract.verdict or "", contract.opening))
    ):
        raise UsageError(f"{where}: opening is what the verdict begins with, and takes the place of never")
    if contract.begin and contract.reasoning != "before":
        raise UsageError(f"{where}: begin stands before the reasoning, and reasoning before the verdict")
    check_name(where, contract.name)
    if contract.room < 1:
        raise UsageError(f"{where}: room must be at least 1")


def _begins(verdict: str, opening: str) -> str:
    """The part of a verdict's expression that is its opening; nothing where it begins with something else."""
    plain = re.sub(r"[][\\.^$*+?{}|()]", r"\\\g<0>", opening).replace("\n", "\\n")
    return next((words for words in (escaped(opening), plain) if verdict.startswith(words)), "")


def check_name(where: str, name: str) -> None:
    """Raises UsageError for what can be no contract's name."""
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise UsageError(f"{where}: the name must be of a-z, 0-9 and -")


def recognise(request: Request, contracts: Contracts) -> Contract | None:
    """The contract that the request asks for. None for other requests, and for those that constrain the
    reply themselves or begin it.

    What stands in the data cannot change it: a head is looked for before the data, where the earliest counts,
    a tail at the very end, where the one that begins last does.
    """
    form = form_of(request)
    if form is None:
        return None
    tool, text = forced_tool(request), wording(request)
    data = contracts.data.search(text)
    head = text[: data.start()] if data else text
    for table in contracts.tables:
        fitting = [one for one in table if form in one.forms and one.tool in (None, tool)]
        if contract := _asked_for(fitting, head, text):
            return contract
    return _read(request, form, [one for table in contracts.tables for one in table if one.where == "asked"])


def _read(request: Request, form: Form, laid_out: list[Contract]) -> Contract | None:
    """A contract for this request alone, of what its own words say: in the system's message before all."""
    if form not in ("text", "json_object"):
        return None
    for part in reader.parts(_turns(request)):
        if form == "text" and (contract := _laid_out(laid_out, part.text)):
            return contract
        if found := reader.find(part, form != "text"):
            fields = found.text if found.schema is None else {"schema": found.schema, "room": 32}
            said = {"name": f"general-{found.kind}", "client": "any whose words say it", "found": found.what}
            return msgspec.convert({**said, **(fields or {})}, Contract) if found is not SEVERAL else None
    return None


REGEXES, TEXTS = ("verdict", "never"), ("lead", "opening", "begin", "follow")
"""Fields in which a place is filled with an expression, or with the text itself."""

PLACE = re.compile(r"\{(?P<name>[a-z]+)\}")


def _laid_out(contracts: list[Contract], text: str) -> Contract | None:
    """The first of the contracts whose words stand in what a request asks that judges answers, with what is put in the
    place of `{scale}`, `{labels}`, `{options}` and the other groups of `asks`; none that lacks one."""
    if not reader.ABOUT_ANSWERS.search(text):
        return None
    for contract in contracts:
        match = contract.pattern.search(text) if contract.pattern else None
        if match is None:
            continue
        places = {name: [group] for name, group in match.groupdict().items() if group}
        places["scale"] = scale(text, match.groupdict().get("name") or "")
        places["options"] = reader.options(text)
        places["labels"] = choices(match["labels"]) or [] if "labels" in places else []
        if all(places.get(place["name"]) for place in PLACE.finditer(contract.verdict or "")):
            return _in_places(contract, places)
    return None


def _in_places(contract: Contract, places: dict[str, list[str]]) -> Contract:
    as_regex = {name: any_of(values) for name, values in places.items()}
    as_text = {name: values[0] for name, values in places.items() if values}
    done = {
        field: PLACE.sub(lambda place: as_regex[place["name"]], getattr(contract, field) or "") for field in REGEXES
    }
    done |= {field: PLACE.sub(lambda place: as_text[place["name"]], getattr(contract, field) or "") for field in TEXTS}
    longest = re._parser.parse(done["verdict"]).getwidth()[1]  # type: ignore[attr-defined]
    kept = {field: words or None if field in ("never", "opening") else words for field, words in done.items()}
    return msgspec.structs.replace(contract, **kept, room=len(done["lead"].encode()) + 4 * longest)


def fingerprint(request: Request) -> str:
    """Eight characters that the requests of one template share: a hash of how it begins, from which no text can be
    read."""
    begins = re.sub(r"\W+", " ", next(texts(request), "")[:TEMPLATE]).lower()
    return hashlib.sha256(f"{form_of(request)} {begins}".encode()).hexdigest()[:8]


def judges(request: Request) -> bool:
    """Whether the request's words speak of judging."""
    return any(JUDGING.search(in_english(text[: reader.HEAD])) for text in texts(request))


def _known(request: Request, form: Form) -> dict[str, Schema]:
    """The fields of the object that the request's words show, for what a schema beside them leaves open."""
    found = (reader.find(part, form != "text") for part in reader.parts(_turns(request)))
    schema: Schema = next((each.schema for each in found if each and each.schema), {})
    fields: dict[str, Schema] = schema.get("properties", {})
    return fields


def _turns(request: Request) -> list[tuple[str, str]]:
    """The role and the text of each message."""
    return [(str(one.get("role")), " ".join(texts({"messages": [one]}))) for one in request.get("messages") or []]


def _asked_for(contracts: list[Contract], head: str, text: str) -> Contract | None:
    heads: list[tuple[int, Contract]] = []
    tails: list[tuple[int, Contract]] = []
    wordless: list[Contract] = []
    for contract in contracts:
        if contract.pattern is None:
            wordless.append(contract)
        elif contract.where == "asked":
            continue
        elif found := contract.pattern.search(head if contract.where == "head" else text):
            (heads if contract.where == "head" else tails).append((found.start(), contract))
    if heads:
        return min(heads, key=lambda one: one[0])[1]
    if tails:
        return max(tails, key=lambda one: one[0])[1]
    return wordless[0] if wordless else None


def form_of(request: Request) -> Form | None:
    """How the request asks for its reply; None if it leaves nothing to a contract."""
    if request.get("structured_outputs") or request.get("continue_final_message"):
        return None
    if request.get("use_beam_search"):  # which follows no grammar
        return None
    if forced_tool(request) is not None:
        return "tool"
    if request.get("tools") and request.get("tool_choice") not in (None, "none"):
        return None
    response_format = request.get("response_format") or {}
    kind = response_format.get("type", "text")
    if kind == "json_schema":
        named = response_format.get("json_schema")
        return kind if isinstance(named, dict) and isinstance(named.get("schema"), dict) else None
    return kind if kind in ("text", "json_object", "json_schema") else None


def texts(request: Request) -> Iterator[str]:
    """The text of all messages, in order."""
    for message in request.get("messages") or []:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (
                part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
            )


def wording(request: Request) -> str:
    """What the request says, of a very long one only its beginning and its end."""
    text = "\n\n".join(texts(request)).rstrip()
    return text if len(text) <= 2 * EDGE else f"{text[:EDGE]}\n\n{text[-EDGE:]}"


def _by_trust(request: Request) -> tuple[str, str]:
    """What the system's messages say, and the others: what is judged stands in these."""
    turns = [one for one in request.get("messages") or [] if isinstance(one, dict)]
    system = [one for one in turns if one.get("role") in ("system", "developer")]
    others = [one for one in turns if one not in system]
    return wording({"messages": system}), wording({"messages": others})


def constrain(contract: Contract, request: Request, tokens: int) -> Held | None:
    """The request with decoding held to the contract in at most `tokens` tokens; None if it needs no change, or if its
    schema is none that can be bounded.

    A forced function is asked for as a plain JSON reply: the dialect makes a call of it.
    """
    free = {name: value for name, value in request.items() if name not in ENDINGS}
    if contract.verdict is not None:
        besides = len(contract.begin.encode()) + contract.room + len(contract.follow) + 1
        written = grammar(contract, tokens - besides)
        reasoning = 0 if contract.reasoning == "none" else REASONING_TOKENS
        return Held(free | {"structured_outputs": {"grammar": written}}, besides + reasoning)
    form, properties = form_of(request), _properties(contract, request)
    if form == "tool":
        free["tool_choice"] = "none"
        schema = parameters(request)
    elif form == "json_schema":
        schema = request["response_format"]["json_schema"]["schema"]
    elif properties or contract.schema:
        schema = contract.schema or closed(properties)
    else:
        return None
    wanted = with_verdict(_overlaid(schema, properties))
    known = {} if contract.schema or properties else _known(request, form or "text")
    texts = (
        ()
        if properties
        else tuple(reader.asked(in_english(reader.clipped(text)), all_data=True) for text in _by_trust(request))
    )
    fill = filler(wanted, texts, known, form == "text")

    def asking(schema: Schema) -> Request:
        return free | {"structured_outputs": {"json": schema}}

    try:
        loosest = bounded(wanted, fill=fill)
    except Unbounded:
        return Held(asking(wanted), tokens) if form == "tool" else None
    if form == "json_schema" and loosest.schema == schema and loosest.size < tokens:
        return None

    def tight(tokens: int) -> tuple[Request, Limits]:
        tightest = bounded(wanted, tokens, fill)
        return asking(tightest.schema), tightest.limits

    return Held(asking(loosest.schema), loosest.size + 1, tight)


def _overlaid(schema: Schema, properties: dict[str, Schema]) -> Schema:
    own = schema.get("properties") or {}
    replaced = {key: properties.get(key, value) for key, value in own.items()}
    return {**schema, "properties": replaced} if replaced != own else schema


def _properties(contract: Contract, request: Request) -> dict[str, Schema]:
    """The keys of the object that the contract wants, with what the request says of them."""
    if contract.keys is not None:
        return _from_keys(contract.keys, request)
    properties = contract.properties or {}
    if contract.bounds is None:
        return properties
    assert contract.pattern is not None
    asked = contract.pattern.search(wording(request))
    assert asked is not None
    low, high = sorted(int(asked[group]) for group in ("low", "high"))
    return {**properties, contract.bounds: {**properties[contract.bounds], "minimum": low, "maximum": high}}


def _from_keys(keys: Keys, request: Request) -> dict[str, Schema]:
    section = re.search(keys.section, wording(request), re.DOTALL)
    found = re.findall(keys.each, section[1]) if section else []
    return {key: {"type": "integer", "minimum": 0, "maximum": 10} for key in found}


def grammar(contract: Contract, reasoning: int) -> str:
    """A grammar (Lark, as llguidance reads it) of the contract's reply with up to `reasoning` tokens besides
    the verdict."""
    assert contract.verdict is not None
    verdict = _literal(contract.verdict)
    budget = min(reasoning, REASONING_TOKENS)
    if contract.reasoning == "none" or budget < 1:
        return f"start: {verdict}\n"
    if contract.reasoning == "after":
        if contract.follow:
            after = f"after[max_tokens={budget}]: /[^ \\n](?s:.*)/\n"
            return f"start: {verdict} {json.dumps(contract.follow)} after\n{after}"
        return f"start: {verdict} after?\nafter[max_tokens={budget}]: /\\n(?s:.*)/\n"
    lead, start = json.dumps(contract.lead), "cut | whole"
    if contract.begin:
        start = f"{json.dumps(contract.begin)} ({start})"
    if contract.opening:
        opening = _begins(contract.verdict, contract.opening)
        rest = _literal(contract.verdict.removeprefix(opening))
        before = f"~{_literal(f'(?s:.*){opening}(?s:.*)')}"
        return (
            f"start: {start}\n"
            f"cut: reasoning {json.dumps(contract.lead + contract.opening)} {rest}\n"
            f"reasoning[max_tokens={budget}]: REASONING\n"
            f"whole: opened {rest}\n"
            f"opened[max_tokens={budget}]: OPENED\n"
            f"REASONING: /(?s:.*)/ & {before}\n"
            f"OPENED: {_literal(f'(?s:.*){opening}')} & ~{_literal(f'(?s:.*){opening}(?s:.+)')}\n"
        )
    once = twice = ""
    if contract.never:
        once = f" & ~{_literal(f'(?s:.*)({contract.never})(?s:.*)')}"
        twice = f" & ~{_literal(f'(?s:.*)({contract.never})(?s:.*)({contract.never})(?s:.*)')}"
    # A model that comes to its verdict by itself may stop there (whole); one that does not is cut off at the
    # budget and made to give it (cut). Where both match, the first named is taken: it must be the cut.
    return (
        f"start: {start}\n"
        f"cut: reasoning {lead} {verdict}\n"
        f"reasoning[max_tokens={budget}]: REASONING\n"
        f"whole[max_tokens={budget}]: WHOLE\n"
        f"REASONING: /(?s:.*)/{once}\n"
        f"WHOLE: {_literal(f'(?s:.*)({contract.verdict})')}{twice}\n"
    )


def _literal(pattern: str) -> str:
    escaped = re.sub(r"(?<!\\)/", r"\\/", pattern).replace("\n", "\\n")
    return f"/{escaped}/"


if __name__ == "__main__":
    from explain import main

    from critic.cli import run_program

    run_program(main)
