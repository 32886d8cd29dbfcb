"""Match a chat request to a reply contract, and constrain decoding to that contract.

A contract says how to recognise a client's prompt template, and which form its parser expects of the reply.

    python serve/contracts.py draft PROMPT.txt [--name NAME]

prints an entry for a contract table of your own. `contracts.toml` is the built-in table and explains every field. All
functions are pure.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jinja2
import msgspec
import reader
import regex
import typer
from api_formats import Request, forced_tool, list_parts, parameters, with_limit
from chinese import translate_to_english
from scales import OUT_OF, Schema, any_of, choices, escaped, find_labels, find_range, limits, points_pattern
from schemas import Limits, Unbounded, bounded

from critic.cli import run_program
from critic.errors import UsageError, hash_value, located

Form = Literal["text", "json_object", "json_schema", "tool"]

TABLE = Path(__file__).with_name("contracts.toml")
REASONING_TOKENS = 400
"""Most tokens of reasoning that a judge may write in addition to its verdict. It bounds the cost of long
reasoning.
"""

ENDINGS = ("response_format", "stop", "min_tokens", "ignore_eos")
"""Request fields for the form and the end of a reply. They are dropped under a contract, which defines both."""

FORBIDDING = ("bad_words", "allowed_token_ids")
"""Request fields that forbid words or tokens."""

EDGE = 100_000
"""Characters searched at each end of a long request. Longer searches would block the event loop."""

SEARCH_SECONDS = 3.0
"""Most seconds of CPU time for one regular expression of a table, since the operator's own may be slow. Unlike `re`,
`regex` releases the interpreter lock while it searches.
"""

LEAST_REASONING = 16
"""Fewest tokens of reasoning. If a contract allows reasoning and less room remains, the request counts as too long."""

LABELLED = "labelled"
"""Value of `parts` for requests whose parts are marked by labelled lines instead of a template."""

PART = regex.compile(r"\{([a-z]+(?:_[0-9])?)\}")
"""Placeholder in a template of `parts`."""

NAME = "^[a-z0-9-]+$"
"""Pattern of a contract's name, which is sent in a header."""


class Unanswerable(Exception):
    """Raised for a request that cannot be converted to a form that the judge was trained on.

    The message is a clause that says why.
    """


class ConstrainedRequest(NamedTuple):
    """A request with decoding constrained to its contract.

    - `min_tokens`: number of tokens that suffices for every reply, or the token limit if that number is unknown.
    - `shorten`: function that takes a number of tokens, and returns the request for a JSON reply that ends within them,
      with the limits in its schema. None if the reply is text, or if its schema cannot be bounded.
    """

    request: Request
    min_tokens: int
    shorten: Callable[[int], tuple[Request, Limits]] | None = None


@lru_cache(256)
def compile_frame(frame: str, greedy: tuple[str, ...]) -> regex.Pattern[str]:
    """Compile a template in a contract's `parts` to a regular expression with one group per placeholder.

    The groups named in `greedy` match as much as possible, all others as little as possible.

    >>> compile_frame("Q: {question}\\nA: {answer}\\nEnd", ("answer",)).search("Q: 1?\\nA: 2\\nEnd\\nEnd").groupdict()
    {'question': '1?', 'answer': '2\\nEnd'}
    """
    filled = PART.sub(lambda part: rf"(?P<{part[1]}>.*{'' if part[1] in greedy else '?'})", frame)
    return regex.compile(filled, regex.DOTALL)


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    section: str
    each: str


class Contract(msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of a contract table. The comments in contracts.toml explain the fields."""

    name: Annotated[str, msgspec.Meta(pattern=NAME)]
    client: str
    room: Annotated[int, msgspec.Meta(ge=1)]
    asks: str | None = None
    unless: str | None = None
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
    keys: Keys | None = None
    schema: Schema | None = None
    follow: str = ""
    found: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> regex.Pattern[str] | None:
        """Regular expression for the words that ask for this form, or None. With `where = "tail"` it matches only at
        the end.
        """
        if self.asks is None:
            return None
        return regex.compile(rf"(?:{self.asks})\Z" if self.where == "tail" else self.asks, regex.DOTALL)

    @property
    def least_tokens(self) -> int:
        """Fewest tokens that a complete reply can take, including the end-of-text token."""
        follow = len(self.follow.encode()) + LEAST_REASONING if self.follow else 0
        return len(self.begin.encode()) + self.room + 1 + (LEAST_REASONING if self.reasoning == "before" else follow)


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    contract: list[Contract]


class Contracts(msgspec.Struct, frozen=True, dict=True):
    """Contract tables in the order in which they are tried."""

    tables: list[list[Contract]]

    @cached_property
    def data(self) -> regex.Pattern[str]:
        """Regular expression for the words that introduce the judged data, in any of the contracts."""
        openings = [f"(?:{entry.data})" for table in self.tables for entry in table if entry.data]
        return regex.compile("|".join(openings) or r"\Z", regex.DOTALL)


def load(files: Sequence[Path] = ()) -> Contracts:
    """Load the operator's contract `files` in their order, followed by the built-in table.

    Raise UsageError, which names the file and the entry, if a file is not a valid contract table.
    """
    return Contracts([*map(_read_table, (*files, TABLE))])


def _read_table(file: Path) -> list[Contract]:
    with located(f"{file}: no table of contracts", OSError, ValueError):
        table = msgspec.toml.decode(file.read_bytes(), type=File).contract
    for contract in table:
        if problem := _problem(contract):
            raise UsageError(f"{file}: contract {contract.name!r}: {problem}")
    return table


def _problem(contract: Contract) -> str | None:
    """Return an error message for an invalid entry, or None if it is valid."""
    keys = contract.keys
    try:
        for pattern in (contract.asks, contract.unless, contract.data, keys and keys.section, keys and keys.each):
            regex.compile(pattern or "")
        for frame in contract.parts:
            compile_frame(frame, ())
    except regex.error as error:
        return f"no regular expression: {error.pattern!r}: {error}"
    replies = [name for name in ("verdict", "properties", "keys", "schema") if getattr(contract, name) is not None]
    wide = re.search(r"(?<!\\)\\[wWsSdDpPbB]", f"{contract.verdict} {contract.never}")
    begins = PLACEHOLDER.search(contract.opening or "") or _begins(contract.verdict or "", contract.opening or "")
    rules = {
        f"{' and '.join(replies)} exclude each other": len(replies) < 2,
        "a verdict is plain text; forms must be ['text']": contract.verdict is None or contract.forms == ("text",),
        "verdict, properties or keys must say what the reply is": replies
        or not {"text", "json_object"} & {*contract.forms},
        'each of parts is a frame with {answer}, or "labelled"': all(
            "{answer}" in frame or frame == LABELLED for frame in contract.parts
        ),
        f"{wide and wide[0]} is too wide for the decoder; write the characters themselves": not wide,
        "opening is what the verdict begins with, and takes the place of never": not contract.opening
        or (begins and not contract.never),
    }
    return next((rule for rule, holds in rules.items() if not holds), None)


def _begins(verdict: str, opening: str) -> str:
    """Return the prefix of the regular expression `verdict` that matches `opening`, or "" if it starts differently."""
    plain = re.sub(r"[][\\.^$*+?{}|()]", r"\\\g<0>", opening).replace("\n", "\\n")
    return next((words for words in (escaped(opening), plain) if verdict.startswith(words)), "")


def recognise(request: Request, contracts: Contracts) -> Contract | None:
    """Return the contract that a request matches.

    Return None if no contract matches, or if the request constrains or begins the reply itself. Text in the judged data
    cannot change the result. Contracts with `where = "head"` must match in the text before the data, and the earliest
    match wins. If there is none, contracts with `where = "tail"` must match at the very end, and the match that begins
    last wins. If no table has a match, the form is read from the instructions (reader.py). Raise TimeoutError if a
    search takes too long.
    """
    form = read_form(request)
    # The client constrains the reply itself, or a contract could leave the decoder nothing to write.
    if form is None:
        return None
    tool, text = forced_tool(request), join_words(request)
    data = contracts.data.search(text, timeout=SEARCH_SECONDS)
    head = text[: data.start()] if data else text
    for table in contracts.tables:
        fitting = [entry for entry in table if form in entry.forms and entry.tool in (None, tool)]
        # An operator's table comes first: its entries are meant for this server.
        if contract := _in_words(fitting, head, text):
            return contract
    instructions = reader.read_instructions(list_turns(request)) if form in ("text", "json_object") else []
    # The words of these entries are searched for in the instructions.
    laid_out = [entry for table in contracts.tables for entry in table if entry.where == "asked"]
    candidates = (_read(part, form == "text", laid_out) for part in instructions)
    contract = next(filter(None, candidates), None)
    return contract if contract and (contract.schema or contract.verdict) else None


def _in_words(contracts: list[Contract], head: str, text: str) -> Contract | None:
    matches: list[tuple[bool, int, Contract]] = []
    for contract in contracts:
        # Contracts without `asks` are the last choice; those with where = "asked" are matched in _filled.
        if contract.pattern is None or contract.where == "asked":
            continue
        is_tail = contract.where == "tail"
        if match := contract.pattern.search(text if is_tail else head, timeout=SEARCH_SECONDS):
            matches.append((is_tail, -match.start() if is_tail else match.start(), contract))
    if matches:
        return min(matches, key=lambda entry: entry[:2])[2]
    return next((contract for contract in contracts if contract.pattern is None), None)


def _read(text: str, free: bool, laid_out: list[Contract]) -> Contract | None:
    """Build a contract from a request's instructions `text`, or return None if they describe no form.

    - `free`: True if the reply may be text. Otherwise the request's fields already require JSON.
    - `laid_out`: entries of the tables with `where = "asked"`, to try if the instructions describe no JSON object.
    """
    schema = reader.read_object(text, wanted=not free)
    if schema is None:
        filled = (_filled(entry, text) for entry in laid_out) if free and reader.judges(text) else iter(())
        return next(filter(None, filled), None)
    # An empty schema still ends the search: these instructions describe forms that cannot be combined.
    keys = ", ".join(schema.get("properties", {}))
    return Contract(
        name="general-json",
        client="any whose words say it",
        room=32,
        schema=schema or None,
        found=keys,
        parts=(LABELLED,),
    )


REGEXES, TEXTS = ("verdict", "never"), ("lead", "opening", "begin", "follow")
"""Fields whose placeholders are filled with a regular expression (REGEXES) or with plain text (TEXTS)."""

PLACEHOLDER = re.compile(r"\{(?P<name>[a-z]+)\}")


def _filled(contract: Contract, text: str) -> Contract | None:
    """Return a contract with its placeholders filled in from the instructions `text`.

    Placeholders are `{scale}`, `{labels}`, `{options}` and the other groups of `asks`. Return None if the contract's
    words are not in the text, if a value is missing, or if two places in the text give different values.
    """
    # DSPy's fields are a list of any length, which no entry can spell.
    if contract.verdict == "{fields}":
        return _in_fields(contract, text)
    fields = {name: getattr(contract, name) or "" for name in (*REGEXES, *TEXTS)}
    wanted = {placeholder["name"] for words in fields.values() for placeholder in PLACEHOLDER.finditer(words)}
    if contract.unless and regex.search(contract.unless, text, timeout=SEARCH_SECONDS):
        return None
    matches = contract.pattern.finditer(text, timeout=SEARCH_SECONDS) if contract.pattern else ()
    groups = {match.groups(): match.groupdict() for match in matches}
    fillings = [_values_of(wanted, named, text) for named in list(groups.values())[:8]]
    # Two places that ask for different forms leave open which one counts.
    if not fillings or not all(fillings[0].values()) or any(filling != fillings[0] for filling in fillings):
        return None
    # Numbers with two decimals are too many to list: `points` is an expression already.
    regexes = {name: values[0] if name == "points" else any_of(values) for name, values in fillings[0].items()}
    texts = {name: values[0] for name, values in fillings[0].items()}
    for name, words in fields.items():
        values = regexes if name in REGEXES else texts
        fields[name] = PLACEHOLDER.sub(lambda placeholder, values=values: values[placeholder["name"]], words)
    room = len(fields["lead"].encode()) + 4 * _longest(fields["verdict"])
    return msgspec.structs.replace(contract, **fields, room=room, found=fields["verdict"])


def _in_fields(contract: Contract, text: str) -> Contract | None:
    """Return the contract for a reply in DSPy's fields, or None if the text does not contain exactly one list of
    fields.
    """
    lists = {match[0] for match in contract.pattern.finditer(text)} if contract.pattern else set()
    fields = reader.read_marked_fields(lists.pop(), text) if len(lists) == 1 else []
    if not fields:
        return None
    fields = [(f"[[ ## {name} ## ]]\n", pattern) for name, pattern in fields]
    room = sum(len(opening.encode()) + 2 + (4 * _longest(pattern) or LEAST_REASONING) for opening, pattern in fields)
    found = "".join(f"{escaped(opening)}({pattern or '.*'})" for opening, pattern in fields)
    return msgspec.structs.replace(contract, verdict=found, fields=tuple(fields), room=room, found=found)


def _longest(pattern: str) -> int:
    return int(re._parser.parse(pattern).getwidth()[1])  # type: ignore[attr-defined]


def _values_of(wanted: set[str], groups: dict[str, str | None], text: str) -> dict[str, list[str]]:
    """Return the values that each placeholder in `wanted` may have, [] if the words about it are not understood.

    - `groups`: named groups of the contract's pattern `asks` -> the text that they matched.
    - `text`: the whole instructions, for placeholders that the pattern has no group for.
    """
    name, labels = groups.get("name") or "", groups.get("labels") or ""
    if name:
        # Remove the name before each label: 'Verdict: A' or 'Verdict: B'.
        labels = labels.replace(name + (groups.get("colon") or ""), "")
    known: dict[str, Callable[[], list[str]]] = {
        "scale": lambda: choices(labels if OUT_OF.match(labels) else "", text),
        "options": lambda: reader.options(text),
        "labels": lambda: choices(labels, text),
        "points": lambda: [points_pattern(labels, text)],
        "list": lambda: find_labels(groups.get("list") or "") or [],
    }
    return {key: known[key]() if key in known else [groups[key] or ""] for key in wanted}


def fingerprint(request: Request) -> str:
    """Return a hash (8 hex digits) of the reply form and the first 40 characters of a request.

    Requests built from one template have the same hash, which does not reveal their text.

    >>> begins = "Evaluate the following answer of a student with care: "
    >>> asked = [begins + "four", begins + "five", "Write a story."]
    >>> first, second, other = [fingerprint({"messages": [{"role": "user", "content": words}]}) for words in asked]
    >>> first == second != other
    True
    """
    first = next((text for _, text in list_turns(request)), "")
    begins = re.sub(r"\W+", " ", first[:40]).lower()  # identifies the template, not the data
    return hash_value(f"{read_form(request)} {begins}", 8)


def judges(request: Request) -> bool:
    """Return True if the request asks to judge answers."""
    return any(reader.judges(translate_to_english(text[: reader.HEAD])) for _, text in list_turns(request))


def read_form(request: Request) -> Form | None:
    """Return the form of reply that a request's fields ask for, or None if no contract may constrain the reply."""
    constrained = request.get("structured_outputs") or request.get("continue_final_message")
    # Words that may not be written could leave a form nothing to go on with, which ends in vLLM's error 500.
    constrained = constrained or any(map(request.get, FORBIDDING))
    # Beam search ignores grammars.
    if constrained or request.get("use_beam_search"):
        return None
    # A forced function is a form even if its request names no other.
    if forced_tool(request) is not None:
        return "tool"
    if request.get("tools") and request.get("tool_choice") not in (None, "none"):
        return None
    response_format = request.get("response_format") or {}
    kind = response_format.get("type", "text")
    # A client may send this type with no schema in it.
    if kind == "json_schema":
        named = response_format.get("json_schema")
        return kind if isinstance(named, dict) and isinstance(named.get("schema"), dict) else None
    return kind if kind in ("text", "json_object") else None


def list_turns(request: Request) -> list[tuple[str, str]]:
    """Return the role and text of each message that has text."""
    turns = []
    for message in request.get("messages") or []:
        texts = [part["text"] for part in list_parts(message) if isinstance(part.get("text"), str)]
        turns += [(str(message.get("role")), "\n\n".join(texts))] if texts else []
    return turns


def join_words(request: Request) -> str:
    """Return the text of all messages, truncated in the middle if it is very long."""
    return reader.clip("\n\n".join(text for _, text in list_turns(request)).rstrip(), EDGE, EDGE)


def constrain(contract: Contract, request: Request, tokens: int) -> ConstrainedRequest | None:
    """Return the request with decoding constrained to the contract. `tokens` is the token limit of the reply.

    Return None if the request needs no change, or if its schema is missing or cannot be bounded. A forced function call
    is requested as plain JSON; the reply is turned into a call later.
    """
    free = {name: value for name, value in request.items() if name not in ENDINGS}
    if contract.verdict is not None:
        besides = len(contract.begin.encode()) + contract.room + len(contract.follow) + 1
        written = grammar(contract, tokens - besides)
        reasoning = 0 if contract.reasoning == "none" else REASONING_TOKENS
        return ConstrainedRequest(free | {"structured_outputs": {"grammar": written}}, besides + reasoning)
    form = read_form(request)
    schema = reply_schema(contract, request, form)
    if schema is None:
        return None
    # Clients that search a text reply for an object often only count braces.
    pattern = "^[^{}]*$" if form == "text" else ""
    free |= {"tool_choice": "none"} if form == "tool" else {}
    try:
        loosest = bounded(schema, pattern=pattern)
    except Unbounded:
        # A forced function has no other way to be called; other schemas go on as the client sent them.
        held = free | {"structured_outputs": {"json": schema}}
        return ConstrainedRequest(held, tokens) if form == "tool" else None
    # The client's own schema is already bounded, so vLLM alone can enforce it.
    if form == "json_schema" and loosest.schema == schema and loosest.size < tokens:
        return None

    def shorten(left: int) -> tuple[Request, Limits]:
        tightest = bounded(schema, left, pattern)
        return with_limit(free | {"structured_outputs": {"json": tightest.schema}}, left), tightest.limits

    return ConstrainedRequest(free | {"structured_outputs": {"json": loosest.schema}}, loosest.size + 1, shorten)


def reply_schema(contract: Contract, request: Request, form: Form | None) -> Schema | None:
    """Return the JSON schema of the reply, from the contract or the client's request. Return None if neither has one.

    `form` is the result of `read_form(request)`.
    """
    properties = _from_keys(contract.keys, request) if contract.keys else _in_range(contract, request)
    schema = contract.schema or reader.closed(properties)
    if form == "tool":
        schema = _with_ranges(parameters(request), request)
    elif form == "json_schema":
        schema = _with_ranges(request["response_format"]["json_schema"]["schema"], request)
    elif not (contract.schema or properties):
        return None
    own = schema.get("properties") or {}
    ours = {name: properties[name] for name in own.keys() & properties.keys()}
    return {**schema, "properties": {**own, **ours}} if ours else schema


def _with_ranges(schema: Schema, request: Request) -> Schema:
    """Return the client's schema with ranges from the system message added to the descriptions of its keys."""
    system = "\n\n".join(text for role, text in list_turns(request) if role == "system")[: reader.HEAD]
    fields = schema.get("properties")
    # More keys than an honest schema has would each search the message.
    if not isinstance(fields, dict) or len(fields) > 50:
        return schema
    properties = dict[str, Any]()
    for name, field in fields.items():
        words = reader.find_range_words(name, system) if isinstance(field, dict) else ""
        properties[name] = field | {"description": f"{field.get('description', '')} {words}"} if words else field
    return {**schema, "properties": properties}


def _in_range(contract: Contract, request: Request) -> dict[str, Schema]:
    """Return the properties of a contract (JSON key -> schema).

    An integer without bounds gets the range that is named in the text which the contract's `asks` matches.
    """
    properties = contract.properties or {}
    if not properties or contract.pattern is None:
        return properties
    match = contract.pattern.search(join_words(request), timeout=SEARCH_SECONDS)
    bounds = limits(find_range(match[0])) if match else {}
    return {name: {**field, **bounds} if field == {"type": "integer"} else field for name, field in properties.items()}


def _from_keys(keys: Keys, request: Request) -> dict[str, Schema]:
    section = regex.search(keys.section, join_words(request), regex.DOTALL, timeout=SEARCH_SECONDS)
    names = regex.findall(keys.each, section[1], timeout=SEARCH_SECONDS) if section else []
    return {key: {"type": "integer", "minimum": 0, "maximum": 10} for key in names}


def grammar(contract: Contract, reasoning: int) -> str:
    """Return a Lark grammar (llguidance dialect) for a contract's text reply, with up to `reasoning` tokens of
    reasoning. The template is grammar.jinja.
    """
    assert contract.verdict is not None
    opening = _begins(contract.verdict, contract.opening) if contract.opening else ""
    rest, never = contract.verdict.removeprefix(opening), opening or contract.never
    budget, facts = min(reasoning, REASONING_TOKENS), dict[str, Any]()
    if contract.fields:
        openings = [opening for opening, _ in contract.fields] + [contract.follow]
        free = sum(not pattern for _, pattern in contract.fields)
        facts = {"openings": openings, "free": free, "share": max(budget // max(free, 1), 1)}
        never = any_of(openings)
    return _GRAMMAR.render(contract=contract, budget=budget, opening=opening, rest=rest, never=never, **facts)


def _literal(pattern: str) -> str:
    """Escape a regular expression so that it can be written between slashes in a grammar."""
    return re.sub(r"(?<!\\)/", r"\\/", pattern).replace("\n", "\\n")


_LARK = jinja2.Environment(
    undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)
_LARK.filters |= {"json": json.dumps, "escaped": escaped, "literal": _literal}
_GRAMMAR = _LARK.from_string(Path(__file__).with_name("grammar.jinja").read_text("utf-8"))


DRAFTED = ("verdict", "reasoning", "lead", "never", "opening", "begin", "follow", "room", "properties", "keys")


def main(
    what: Annotated[Literal["draft"], typer.Argument(help="The only command: draft.")],
    prompt: Annotated[Path, typer.Argument(help="File with the text of a prompt.")],
    name: Annotated[str, typer.Option(help="Name of the contract.")] = "mine",
) -> None:
    """Draft a contract from the text of a prompt, and print it as an entry for your own contract table.

    A contract says how to recognise a prompt template and which form its reply has.
    """
    if not re.fullmatch(NAME, name):
        raise UsageError(f"--name {name!r}: the name must be of a-z, 0-9 and -")
    with located(prompt, OSError, ValueError):
        text = prompt.read_text("utf-8").strip()
    contract = recognise({"messages": [{"role": "user", "content": text}]}, load())
    lines = [line.strip() for line in text.split("\n") if len(line.strip()) > 20] or [text]
    words = ([line for line in lines if reader.ASKS.match(line) or reader.OBJECT.search(line)] or lines)[-1]
    entry: dict[str, Any] = {"name": name, "client": f"the prompt of {prompt.name}"}
    entry |= {"asks": re.escape(words[:120]).replace(r"\ ", " "), "where": "head", "room": 64}
    if contract is None:
        entry |= {"verdict": "[1-5]", "room": 1}
        print("# No form was found in the words: `verdict` is only an example.")
    elif contract.schema is not None:
        entry |= {"forms": ["text", "json_object"], "schema": contract.schema}
    else:
        entry |= {field: value for field in DRAFTED if (value := getattr(contract, field))}
    print("\n".join(["[[contract]]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str) and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    run_program(main)
