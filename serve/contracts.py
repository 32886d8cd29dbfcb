"""Reply contracts: from a chat request to the reply form it asks for, and to decoding that keeps to it.

    python serve/contracts.py draft PROMPT.txt [--name NAME]

writes an entry for a table of one's own. The table is `contracts.toml`, which says what each field means. Everything
here is pure.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import reader
import regex
import typer
from api_formats import Request, forced_tool, list_parts, parameters
from chinese import translate_to_english
from reader import ASKS, OBJECT, closed
from scales import OUT_OF, Schema, any_of, choices, escaped, find_labels, find_range, limits, points_pattern
from schemas import Limits, Unbounded, bounded

from critic.cli import run_program
from critic.errors import UsageError

Form = Literal["text", "json_object", "json_schema", "tool"]

TABLE = Path(__file__).with_name("contracts.toml")
REASONING_TOKENS = 400
"""The most that a model may write besides its verdict, in tokens: a judge that rambles costs no more."""

ENDINGS = ("response_format", "stop", "min_tokens", "ignore_eos")
"""Fields that say what a reply is and when it ends: under a contract its form says that."""

FORBIDDING = ("bad_words", "allowed_token_ids")
"""Fields that forbid words or tokens."""

EDGE = 100_000
"""Characters at either end of a long request that are looked at: while Python searches a text, nobody is answered."""

SEARCH_SECONDS = 3.0
"""Seconds of processor time that one expression of a table may take for a text: an operator's own may be slow. Unlike
those of `re`, searches of `regex` leave the interpreter to other threads meanwhile."""

LEAST_REASONING = 16
"""Tokens of reasoning below which a request counts as too long, where its form allows reasoning."""

LABELLED = "labelled"
"""In place of a frame: lines of the request name its parts."""

PART = regex.compile(r"\{([a-z]+(?:_[0-9])?)\}")
"""A placeholder of a frame."""

NAME = "^[a-z0-9-]+$"
"""Of a contract: it stands in a header."""


class Unanswerable(Exception):
    """A request that is not asked as the judge learned; the message says why in a clause."""


class ConstrainedRequest(NamedTuple):
    """A request with decoding held to its contract.

    A limit above `min_tokens` changes nothing in it and cuts no reply off. `shorten` makes the request of a JSON reply
    that ends within a number of tokens, and says what it limits; None if only the reasoning can become shorter.
    """

    request: Request
    min_tokens: int
    shorten: Callable[[int], tuple[Request, Limits]] | None = None

    def for_budget(self, tokens: int) -> Request:
        """Return the request as it is sent first for a reply of up to `tokens` tokens."""
        # What a stream has said cannot be taken back, so it gets the limits at once.
        if self.shorten is None or not self.request.get("stream") or tokens >= self.min_tokens:
            return self.request
        return self.shorten(tokens)[0]


@lru_cache(256)
def compile_frame(frame: str, greedy: tuple[str, ...]) -> regex.Pattern[str]:
    """Return the expression of a frame, in which the parts named `greedy` reach as far as they can.

    >>> compile_frame("Q: {question}\\nA: {answer}\\nEnd", ("answer",)).search("Q: 1?\\nA: 2\\nEnd\\nEnd").groupdict()
    {'question': '1?', 'answer': '2\\nEnd'}
    """
    filled = PART.sub(lambda part: rf"(?P<{part[1]}>.*{'' if part[1] in greedy else '?'})", frame)
    return regex.compile(filled, regex.DOTALL)


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    section: str
    each: str


class Contract(msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the table."""

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
        """What recognises the words asked with; of a tail only at the end of a text without space behind it."""
        if self.asks is None:
            return None
        return regex.compile(rf"(?:{self.asks})\Z" if self.where == "tail" else self.asks, regex.DOTALL)

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
    def data(self) -> regex.Pattern[str]:
        """What opens the data of a request of any of the forms."""
        openings = [f"(?:{entry.data})" for table in self.tables for entry in table if entry.data]
        return regex.compile("|".join(openings) or r"\Z", regex.DOTALL)

    @cached_property
    def laid_out(self) -> list[Contract]:
        """The contracts whose words are looked for in what a request asks."""
        return [entry for table in self.tables for entry in table if entry.where == "asked"]


def load(files: Sequence[Path] = ()) -> Contracts:
    """Load the operator's contracts, in the order of their files, and then the built-in ones.

    Raises UsageError, with file and entry, for what is not a table of contracts.
    """
    return Contracts([*map(_read_table, (*files, TABLE))])


def _read_table(file: Path) -> list[Contract]:
    try:
        table = msgspec.convert(tomllib.loads(file.read_text("utf-8")), File).contract
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: no table of contracts: {error}") from None
    for contract in table:
        if problem := _problem(contract):
            raise UsageError(f"{file}: contract {contract.name!r}: {problem}")
    return table


def _problem(contract: Contract) -> str | None:
    """Return what is wrong with an entry, or None."""
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
    """Return the part of a verdict's expression that is its opening; "" if it begins with something else."""
    plain = re.sub(r"[][\\.^$*+?{}|()]", r"\\\g<0>", opening).replace("\n", "\\n")
    return next((words for words in (escaped(opening), plain) if verdict.startswith(words)), "")


def recognise(request: Request, contracts: Contracts) -> Contract | None:
    """Return the contract that the request asks for.

    None for other requests, and for those that constrain the reply themselves or begin it. Text in the data cannot
    change it: a head is looked for before the data, where the earliest counts, a tail at the very end, where the one
    that begins last does.
    """
    form = read_form(request)
    # The client holds its reply itself, or a contract could leave the decoder nothing to write.
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
    candidates = (_read(part, form == "text", contracts.laid_out) for part in instructions)
    contract = next(filter(None, candidates), None)
    return contract if contract and (contract.schema or contract.verdict) else None


def _in_words(contracts: list[Contract], head: str, text: str) -> Contract | None:
    matches: list[tuple[bool, int, Contract]] = []
    for contract in contracts:
        # Entries without words are the last choice; the laid-out ones look elsewhere.
        if contract.pattern is None or contract.where == "asked":
            continue
        is_tail = contract.where == "tail"
        if match := contract.pattern.search(text if is_tail else head, timeout=SEARCH_SECONDS):
            matches.append((is_tail, -match.start() if is_tail else match.start(), contract))
    if matches:
        return min(matches, key=lambda entry: entry[:2])[2]
    return next((contract for contract in contracts if contract.pattern is None), None)


def _read(text: str, free: bool, laid_out: list[Contract]) -> Contract | None:
    """Read a contract for one request only from its own words; of a `free` reply also one in text."""
    schema = reader.read_object(text, wanted=not free)
    if schema is None:
        filled = (_filled(entry, text) for entry in laid_out) if free and reader.judges(text) else iter(())
        return next(filter(None, filled), None)
    # An empty one: the first words that name a form count, and these name several.
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
"""Fields in which a placeholder is filled with an expression, or with the text itself."""

PLACEHOLDER = re.compile(r"\{(?P<name>[a-z]+)\}")


def _filled(contract: Contract, text: str) -> Contract | None:
    """Return the contract if its words stand in what a request asks, with `{scale}`, `{labels}`, `{options}` and the
    other groups of `asks` filled in, or None if one of them is missing or two places differ."""
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
    """Return the contract of a reply in DSPy's fields, or None if the text names none or several lists of them."""
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
    """Return the values in place of each placeholder, none for words that are not understood."""
    name, labels = groups.get("name") or "", groups.get("labels") or ""
    if name:
        # It stands before each of the labels: 'Verdict: A' or 'Verdict: B'.
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
    """Return eight characters that the requests of one template share: a hash of how it begins, which tells no text."""
    first = next((text for _, text in list_turns(request)), "")
    begins = re.sub(r"\W+", " ", first[:40]).lower()  # names the template, whatever data follows
    return hashlib.sha256(f"{read_form(request)} {begins}".encode()).hexdigest()[:8]


def judges(request: Request) -> bool:
    """Return whether the request's words speak of judging answers."""
    return any(reader.judges(translate_to_english(text[: reader.HEAD])) for _, text in list_turns(request))


def read_form(request: Request) -> Form | None:
    """Return how the request asks for its reply, or None if it leaves nothing to a contract."""
    constrained = request.get("structured_outputs") or request.get("continue_final_message")
    # Words that may not be written could leave a form nothing to go on with, which ends in vLLM's error 500.
    constrained = constrained or any(map(request.get, FORBIDDING))
    # Beam search follows no grammar.
    if constrained or request.get("use_beam_search"):  # which follows no grammar
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
    """Return the role and the text of each message."""
    turns = []
    for message in request.get("messages") or []:
        texts = [part["text"] for part in list_parts(message) if isinstance(part.get("text"), str)]
        turns += [(str(message.get("role")), "\n\n".join(texts))] if texts else []
    return turns


def join_words(request: Request) -> str:
    """Return the text of a request; of a very long one only its beginning and its end."""
    return reader.clip("\n\n".join(text for _, text in list_turns(request)).rstrip(), EDGE, EDGE)


def constrain(contract: Contract, request: Request, tokens: int) -> ConstrainedRequest | None:
    """Return the request with decoding held to the contract in at most `tokens` tokens, or None if it needs no change
    or its schema cannot be bounded.

    A forced function is asked for as a plain JSON reply: its reply is made a call.
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
    # Who looks for an object in a free reply often only counts its braces.
    pattern = "^[^{}]*$" if form == "text" else ""
    free |= {"tool_choice": "none"} if form == "tool" else {}
    try:
        loosest = bounded(schema, pattern=pattern)
    except Unbounded:
        # A forced function has no other way to be called; other schemas go on as the client sent them.
        held = free | {"structured_outputs": {"json": schema}}
        return ConstrainedRequest(held, tokens) if form == "tool" else None
    # The client's own schema ends by itself: vLLM holds the reply to it without us.
    if form == "json_schema" and loosest.schema == schema and loosest.size < tokens:
        return None

    def shorten(left: int) -> tuple[Request, Limits]:
        tightest = bounded(schema, left, pattern)
        return free | {"structured_outputs": {"json": tightest.schema}}, tightest.limits

    return ConstrainedRequest(free | {"structured_outputs": {"json": loosest.schema}}, loosest.size + 1, shorten)


def reply_schema(contract: Contract, request: Request, form: Form | None) -> Schema | None:
    """Return the schema of the reply, by its contract or by the client, or None if neither names a key."""
    properties = _from_keys(contract.keys, request) if contract.keys else _in_range(contract, request)
    schema = contract.schema or closed(properties)
    if form == "tool":
        schema = parameters(request)
    elif form == "json_schema":
        schema = request["response_format"]["json_schema"]["schema"]
    elif not (contract.schema or properties):
        return None
    if form in ("tool", "json_schema"):
        schema = _with_ranges(schema, request)
    own = schema.get("properties") or {}
    ours = {name: properties[name] for name in own.keys() & properties.keys()}
    return {**schema, "properties": {**own, **ours}} if ours else schema


def _with_ranges(schema: Schema, request: Request) -> Schema:
    """Return the client's schema in which a key without a range is described by the system message's words on it."""
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
    """Return the properties of a contract.

    A whole number without bounds has the range that the words of `asks` name.
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
    """Return a grammar of the reply (Lark, as llguidance reads it), with up to `reasoning` tokens of reasoning."""
    assert contract.verdict is not None
    verdict = _literal(contract.verdict)
    budget = min(reasoning, REASONING_TOKENS)
    if contract.fields:
        return _in_order(contract, budget)
    # Without room for a reason the verdict is all that fits.
    if contract.reasoning == "none" or budget < 1:
        return f"start: {verdict}\n"
    # A verdict that stands first is given before the reason is known: nothing can precede it.
    if contract.reasoning == "after":
        if contract.follow:
            after = f"after[max_tokens={budget}]: /[^ \\n](?s:.*)/\n"
            return f"start: {verdict} {json.dumps(contract.follow)} after\n{after}"
        return f"start: {verdict} after?\nafter[max_tokens={budget}]: /\\n(?s:.*)/\n"
    start = "cut | whole"
    if contract.begin:
        start = f"{json.dumps(contract.begin)} ({start})"
    opening = _begins(contract.verdict, contract.opening) if contract.opening else ""
    rest = _literal(contract.verdict.removeprefix(opening))
    # A model that comes to its verdict by itself may stop there (whole); one that does not is cut off at the
    # budget and made to give it (cut). Where both match, the first named is taken: it must be the cut.
    rules = [
        f"start: {start}",
        f"cut: reasoning {json.dumps(contract.lead + (contract.opening or ''))} {rest}",
        f"reasoning[max_tokens={budget}]: REASONING",
    ]
    never = opening or contract.never
    once = f" & ~{_literal(f'(?s:.*)({never})(?s:.*)')}" if never else ""
    rules.append(f"REASONING: /(?s:.*)/{once}")
    # The opening never stands in the reasoning, so that the client's first match is the verdict.
    if opening:
        rules += [f"whole: opened {rest}", f"opened[max_tokens={budget}]: OPENED"]
        rules.append(f"OPENED: {_literal(f'(?s:.*){opening}')} & ~{_literal(f'(?s:.*){opening}(?s:.+)')}")
        return "\n".join([*rules, ""])
    # Without this a client that takes the first match would read a draft in the reasoning.
    twice = f" & ~{_literal(f'(?s:.*)({never})(?s:.*)({never})(?s:.*)')}" if never else ""
    rules += [f"whole[max_tokens={budget}]: WHOLE", f"WHOLE: {_literal(f'(?s:.*)({contract.verdict})')}{twice}"]
    return "\n".join([*rules, ""])


def _in_order(contract: Contract, budget: int) -> str:
    """Write a grammar of fields in their order, with up to `budget` tokens shared by those of free text."""
    free = sum(not pattern for _, pattern in contract.fields)
    share = max(budget // max(free, 1), 1)
    openings = [opening for opening, _ in contract.fields] + [contract.follow]
    never = any_of(openings)
    parts, rules = [json.dumps(openings[0])], []
    for at, (_, pattern) in enumerate(contract.fields):
        after = openings[at + 1]
        if pattern:
            parts += [_literal(pattern), json.dumps(f"{contract.lead}{after}")]
            continue
        parts.append(f"(cut{at} | opened{at})")
        rules += [
            f"cut{at}: text{at} {json.dumps(contract.lead + after)}",
            f"text{at}[max_tokens={share}]: TEXT",
            f"opened{at}[max_tokens={share}]: OPENED{at}",
            f"OPENED{at}: {_literal(f'(?s:.*){escaped(after)}')} & ~{_literal(f'(?s:.*)({never})(?s:.+)')}",
        ]
    text = [f"TEXT: /(?s:.*)/ & ~{_literal(f'(?s:.*)({never})(?s:.*)')}"] if rules else []
    return "\n".join([f"start: {' '.join(parts)}", *rules, *text, ""])


def _literal(pattern: str) -> str:
    escaped = re.sub(r"(?<!\\)/", r"\\/", pattern).replace("\n", "\\n")
    return f"/{escaped}/"


DRAFTED = ("verdict", "reasoning", "lead", "never", "opening", "begin", "follow", "room", "properties", "keys")


def main(
    what: Annotated[Literal["draft"], typer.Argument(help="Write an entry.")],
    prompt: Annotated[Path, typer.Argument(help="The prompt's text.")],
    name: Annotated[str, typer.Option(help="The name of the entry.")] = "mine",
) -> None:
    """Write an entry for your own table of contracts, from what a prompt's words say."""
    if not re.fullmatch(NAME, name):
        raise UsageError(f"--name {name!r}: the name must be of a-z, 0-9 and -")
    try:
        text = prompt.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{prompt}: {error}") from None
    contract = recognise({"messages": [{"role": "user", "content": text}]}, load())
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
        fields = {field: getattr(contract, field) for field in DRAFTED}
        entry |= {field: value for field, value in fields.items() if value}
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
