"""Read the form of the requested verdict from the English or Chinese instructions of a prompt. All functions are pure.

The form is a JSON Schema, an example object or a list of named keys. Forms that are not JSON are entries of the
contract table with `where = "asked"`; contracts.py searches for them in the instructions that this module returns. A
request gets a form only if it names exactly one, and asks to judge answers or for an instance of a JSON Schema.
"""

import functools
import itertools
import json
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Any, NamedTuple

import regex as re
from chinese import translate_to_english
from patterns import pattern
from scales import BINARY, Schema, count_digits, find_labels, find_range, find_scale, is_verdict, limits, value_pattern

HEAD, TAIL = 20_000, 6_000
"""Characters that are read at the beginning (HEAD) and the end (TAIL) of a long request."""

SPEAKS = pattern("speaks", re.IGNORECASE)
JUDGING = pattern("judging", re.IGNORECASE)
"""Words that ask to judge answers. Forms that occur in all kinds of texts are only read as a verdict's if these occur.
"""

ABOUT = pattern("writes", re.IGNORECASE)
"""Beginnings of requests to write or edit a text. A form in such a request is the text's, not a verdict's."""

INSTANCE = re.compile(r"(?i)\b(?:return|respond|reply|answer|output|provide)\b[^{}]{0,200}\bschema\b")
"""Words that ask for an instance of a schema, on any subject."""

EXAMPLE = re.compile(r"(?i)\b(?:example|instance|e\.g)\b[^{}]{0,60}$")
OBJECT = pattern("wants_object", re.IGNORECASE)
SCHEMA = re.compile(r"(?i)(?:schema|json format)\W[^{}]{0,80}$")
NEAR = 250
"""Characters before an object in which the words that ask for it may be."""

MOST_OBJECTS = 100
"""Most objects that are read in a text, and most keys of an object."""

LISTED = pattern("listed", re.MULTILINE)
"""A bullet or a numbered line that explains a key, with its continuation lines."""

KEYED = re.compile(r"(?i)\b(?:keys|fields|properties)\b[^{}\n]{0,80}\n(?=\s{0,6}[-*•1])")
"""Words that directly precede a list of keys."""

NAMED = re.compile(r"(?i)\bJSON\b[^.{}\n]{0,60}\b(?:keys|fields|properties)\b(?P<names>(?:[^.{}\n]|\.(?!\s)){4,1500})")
KEY_LIST = re.compile(r"(?i)\bJSON\b[^.{}\n]{0,60}\b(?:keys|fields)\b:?\s{0,4}\[(?P<names>[^\[\]{}\n]{2,300})\]")
NAME = re.compile(r"[`\"'](?P<name>[A-Za-z_]\w{0,30})[`\"'](?: ?\((?P<type>[^()\n]{1,300})\))?")
NOTE = re.compile(r"\{\w+\}\s*# note: the value you produce must (?:be )?(?P<words>.+)", re.DOTALL)
"""DSPy's note about the value of a key, inside its example object."""

TEXT = re.compile(r"(?i)\b(?:str|strings?|texts?|sentences?|words?)\b")
STRING: Schema = {"type": "string"}
TRUTH = re.compile(r"(?i)\A\W*+(?:an? )?(?:bool(?:ean)?\b|true ?(?:or\b|if\b|/|\|))")
LIST = re.compile(r"(?i)(?:list|array)(?:\[(?P<item>.+)\]| of (?P<items>.+))")
NUMERIC = re.compile(r"(?i)\b(?:(?P<whole>int(?:eger)?|whole)|number|float|numeric|decimal)s?\b")
NULL = re.compile(r"\b(?:null|None(?:Type)?)\b|\bOptional\[")
FIELD = pattern("field")
"""DSPy's fields in the order of the reply, with their types."""

RULE = pattern("rule")
"""A sentence that says what the field with a quoted name must be."""

OUTPUT = re.compile(r"Outputs?:\s*\Z")
"""The line before an example reply, in prompts that list their keys."""

SKETCHED = pattern("sketched")
"""A value after its key that is described instead of written out, such as `<1-5>`."""

SEVERAL = re.compile(r"(?<=:)\s*\[([A-Za-z<][^\[\]\"'{},]{0,60})(?:,[^\[\]\"'{}]{0,200})?\]")
"""A list with a described value: `[score1, score2]`."""

ENDING = re.compile(r"(?<![\s,.…])(?:[\s,…]|\.\.\.)++(?=[}\]])")

BRACES = r"\{[^{}]*+\}"
for _ in range(8):
    BRACES = rf"\{{(?:[^{{}}]++|{BRACES})*+\}}"
OBJECTS = re.compile(BRACES)
"""Outermost pairs of braces."""


class Unread(Exception):
    """Raised for a type or verdict that a request names, but that is not understood. The request then gets no form."""


def read_instructions(turns: list[tuple[str, str]]) -> list[str]:
    """Return two texts without judged data: the instructions of the system messages, and those of all messages.

    `turns` holds the role and text of each message. Chinese words about the form are translated to English. Return only
    the second text if the system messages ask to write or edit a text. Return [] if the last message asks for that, or
    if the request asks neither to judge answers nor for an instance of a JSON Schema.
    """
    system = drop_data(translate_to_english("\n\n".join(text for role, text in turns if role == "system")[:HEAD]))
    whole = drop_data(translate_to_english(clip("\n\n".join(text for _, text in turns))))
    last = translate_to_english(turns[-1][1][:600]) if turns else ""
    # A text that happens to hold a form must not be held to one.
    if ABOUT.search(last) or not (judges(whole) or INSTANCE.search(whole)):
        return []
    return [whole] if ABOUT.search(system) else [system, whole]


def clip(text: str, head: int = HEAD, tail: int = TAIL) -> str:
    """Return a long text reduced to its first `head` and last `tail` characters."""
    return text if len(text) <= head + tail else f"{text[:head]}\n\n{text[-tail:]}"


def read_object(text: str, *, wanted: bool) -> Schema | None:
    """Infer the JSON schema that a request asks for from the objects in its text.

    Return None if the text shows no object, and {} (any object) if its objects conflict or hold an unknown type.
    `wanted`: True if the request's response_format requires an object. Then objects count even if the text does not say
    that the reply should look like them.

    >>> text = 'Judge the answer. Return JSON: {"grade": "A|B", "why": "..."}'
    >>> text += chr(10) + 'If it is empty, return: {"grade": "C|D", "why": null}'
    >>> read_object(text, wanted=False)["properties"]["grade"]
    {'enum': ['A', 'B', 'C', 'D']}
    >>> text = 'Judge the answer. Return JSON: {"correct": true}'
    >>> text += chr(10) + 'If it is wrong, return: {"correct": false, "reason": null}'
    >>> schema = read_object(text, wanted=False)
    >>> schema["required"], schema["properties"]["reason"]
    (['correct'], {'anyOf': [{'type': 'string'}, {'type': 'null'}]})
    """
    try:
        schemas = [*objects(text, wanted)]
    except Unread:
        return {}
    # A client's own JSON Schema is taken as it is: only an object that is shown has exactly the fields of `closed`.
    shown = [schema["properties"] if set(schema) == set(closed({})) else schema for schema in schemas]
    return _joined(shown) if shown else None


def _joined(shown: list[Schema]) -> Schema:
    """Combine the schemas of all objects that a request shows, or return {} if their keys are incompatible.

    Clients often show one object per outcome, so a key may have the values of any of them. A key that is not in every
    object is optional; one object must contain all keys.
    """
    # Two JSON Schemas of a client cannot be joined: they have to be equal.
    if "properties" in shown[0]:
        return shown[0] if all([*other.get("properties", {})] == [*shown[0]["properties"]] for other in shown) else {}
    largest = max(shown, key=len)
    # Objects for different questions share no keys: nobody knows which one is meant.
    if any(other.keys() - largest.keys() for other in shown) or not set.intersection(*map(set, shown)):
        return {}
    fields = {name: _either([other[name] for other in shown if name in other]) for name in largest}
    return {**closed(fields), "required": [name for name in largest if all(name in other for other in shown)]}


def _either(fields: list[Schema]) -> Schema:
    """Return a schema for all values that one key may have in different objects.

    `fields`: the key's schema in each object. Schemas of different types become branches of an anyOf. Lists of allowed
    values (enum) are merged. Of two other schemas with the same type, the one with bounds is kept.
    """
    kinds: dict[str, Schema] = {}
    for field in (branch for shown in fields for branch in shown.get("anyOf", [shown])):
        words = all(isinstance(value, str) for value in field.get("enum", []))
        kind = field.get("type", "string" if words else "number").replace("integer", "number")
        known = kinds.get(kind, {})
        if "enum" in field:
            kinds[kind] = {"enum": [*dict.fromkeys(known.get("enum", []) + field["enum"])]}
        elif "enum" not in known and len(field) > len(known):
            kinds[kind] = field
    # A key that is null in each object has a text where it is given.
    branches = [*kinds.values()] if set(kinds) != {"null"} else [STRING, *kinds.values()]
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


@functools.lru_cache(8)
def judges(text: str) -> bool:
    """Return True if the text, outside its JSON objects, asks to judge answers."""
    return bool(JUDGING.search(OBJECTS.sub(" ", text)))


def closed(fields: Schema) -> Schema:
    """Return the schema of an object with exactly these keys, in this order."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def objects(text: str, wanted: bool) -> Iterator[Schema]:
    """Yield the schema of each object that the text describes for the reply.

    A description is a JSON Schema, an example object, or a list of keys with types or ranges. `wanted` is as in
    `read_object`. Raise Unread if a type or verdict is not understood.
    """
    judging = judges(text)
    listed = _key_list(text) if judging else {}
    yield from _object(listed)
    for match in _objects(text):
        before, sketch = text[max(0, match.start() - NEAR) : match.start()], _sketch(match[0]) or {}
        asked_for = OBJECT.search(before)
        # An example's reply has told the types of the listed keys already.
        if listed and sketch.keys() == listed.keys():
            continue
        if isinstance(sketch.get("properties"), dict):
            if asked_for and SCHEMA.search(before) and not EXAMPLE.search(before):
                yield sketch
        elif judging and (wanted or asked_for):
            yield from _object({name: _described(name, value, text) for name, value in sketch.items()})
    if judging and not listed and (wanted or OBJECT.search(text)):
        yield from _object(_rows(text) or _named(text))


def _objects(text: str) -> Iterator[re.Match[str]]:
    """Yield a match for each of the first MOST_OBJECTS objects in a text. Skip objects with more keys than that."""
    for match in itertools.islice(OBJECTS.finditer(text), MOST_OBJECTS):
        if match[0].count(":") <= MOST_OBJECTS:
            yield match


def _named(text: str) -> dict[str, Schema]:
    """Return the schemas of the JSON keys that a sentence of the text names, by key.

    Return {} if there are none, or if a key that holds a verdict has no type.
    """
    named = NAMED.search(text)
    keys = [*NAME.finditer(named["names"])] if named else []
    # A verdict without a type could be anything.
    if not all(key["type"] or not is_verdict(key["name"]) for key in keys):
        return {}
    return {key["name"]: _typed(key["name"], key["type"] or "", "", text) for key in keys}


def _rows(text: str) -> dict[str, Schema]:
    """Return the schemas of the JSON keys that a bullet list explains, by key, or {} if there is no such list.

    The list must be introduced as keys, or its bullets must name types.
    """
    header = KEYED.search(text)
    rows, at = list[re.Match[str]](), header.end() if header else len(text)
    while row := LISTED.search(text, at):
        # Bullets behind other words are of another list.
        if text[at : row.start()].strip():
            break
        rows, at = [*rows, row], row.end()
    rows = rows or [row for row in itertools.islice(LISTED.finditer(text), MOST_OBJECTS) if row["type"]]
    return {row["name"]: _typed(row["name"], row["type"] or "", row["words"], text) for row in rows[:MOST_OBJECTS]}


def _key_list(text: str) -> dict[str, Schema]:
    """Return the schemas of the JSON keys in a bracketed list of names, by key, or {} if there is no such list.

    The schemas are derived from the example replies in the text.
    """
    if not (listed := KEY_LIST.search(text)):
        return {}
    replies = [reply for match in _objects(text) if isinstance(reply := _sketch(match[0]), dict)]
    names = [key["name"] for key in NAME.finditer(listed["names"])]
    return {name: _of_examples(name, [reply[name] for reply in replies if name in reply], text) for name in names}


def _of_examples(name: str, values: list[Any], text: str) -> Schema:
    """Return a schema that fits all `values` which the key `name` has in example replies."""
    # A key that no example shows has only its name.
    if not values:
        return _typed(name, "", "", text)
    if all(isinstance(value, list) for value in values):
        return {"type": "array", "items": _of_examples(name, [item for value in values for item in value], text)}
    if all(value in (0, 1) and type(value) is int for value in values) and find_scale(text) is None:
        return {"enum": [0, 1]}
    return _either([_described(name, value, text) for value in values])


class Key(NamedTuple):
    """A key of an object as a request describes it: its name, its type, the words about it, and the request's whole
    text.

    `type_name` and `words` are "" if the request has none.
    """

    name: str
    type_name: str
    words: str
    text: str

    @property
    def spoken(self) -> str:
        return f"{self.type_name}: {self.words}".strip(": ")


def _typed(name: str, kind: str, words: str, text: str) -> Schema:
    """Return the schema of the key `name` from its type and description.

    - `kind`: the type in brackets or in Python's notation, "" if there is none.
    - `words`: the description of the key, "" if there is none.
    - `text`: the whole request.

    Raise Unread if the type is not understood, or if a verdict has no type, scale or labels.
    """
    type_name = re.sub(r"\A(?:must be formatted as an? )?(?:valid )?Python ", "", kind.strip())
    key = Key(name, type_name, words, text)
    # The ways to describe a key's values, in the order in which they are tried.
    field = _truth(key) or _list(key) or _listed(key) or _number(key) or _labels(key) or _open(key)
    other = re.search(r"(?i)\bset [`\"'*]{0,2}(\w+)[`\"'*]{0,2} to (?:null|None)\b", key.spoken)
    is_nullable = NULL.search(key.spoken) and (not other or other[1] in (name, "it", "this"))
    return {"anyOf": [field, {"type": "null"}]} if is_nullable else field


def _truth(key: Key) -> Schema | None:
    return {"type": "boolean"} if TRUTH.match(key.spoken) else None


def _list(key: Key) -> Schema | None:
    if not (match := LIST.fullmatch(key.type_name)):
        return None
    items = _typed(key.name, match["item"] or match["items"], key.words, key.text)
    return {"type": "array", "items": items, "minItems": int(is_verdict(key.name))}


def _listed(key: Key) -> Schema | None:
    """Read an enumeration of values, or return None if there is none.

    Enumerations are Python's Literal, "0 if …, 1 if …", quoted values after "one of", and DSPy's list after "one of:".
    """
    # DSPy and Pydantic write Python's types.
    if literal := re.fullmatch(r"Literal\[(.+)\]", key.type_name):
        values = re.findall(r"'[^']*'|\"[^\"]*\"|[^,\s'\"]+", literal[1])
        whole = all(re.fullmatch("-?[0-9]+", value) for value in values)
        return {"enum": [int(value) if whole else value.strip("\"'") for value in values]}
    if BINARY.search(key.spoken) and not TEXT.match(key.type_name):
        return {"enum": [0, 1]}
    listed = re.split(r"(?i)\bone of\b", key.spoken, maxsplit=1)[1:]
    quoted = re.findall(r"[\"'`]([\w -]{1,30})[\"'`]", listed[0]) if listed else []
    if listed and not quoted and ";" in listed[0]:
        quoted = [value.strip() for value in listed[0].strip(": ").split(";")]
    return {"enum": [*dict.fromkeys(quoted)]} if quoted else None


def _number(key: Key) -> Schema | None:
    number = NUMERIC.search(key.spoken[:60])
    own = re.split(r"\.\s", key.spoken)[0]
    bounds = find_range(own) or find_range(find_range_words(key.name, key.text) if number else "")
    # A text may speak of numbers, and only a verdict has a range without the word.
    if TEXT.match(key.type_name) or not (number or (bounds and is_verdict(key.name))):
        return None
    bounds = bounds or (find_scale(key.text) if is_verdict(key.name) else None)
    whole = number["whole"] if number else not count_digits(bounds, key.spoken)
    return {"type": "integer" if whole else "number", **limits(bounds)}


def _labels(key: Key) -> Schema | None:
    field = STRING if TEXT.match(key.type_name) else _in_words(key.type_name, is_text=False)
    if field != STRING:
        return field
    labels = find_labels(key.words) if is_verdict(key.name) else None
    return {"enum": labels} if labels else None


def _open(key: Key) -> Schema:
    """Return the schema of a key without usable description: a number on the request's scale for a verdict, else text.

    Raise Unread if a verdict has no scale, or if the key has an unknown type.
    """
    if TEXT.search(key.spoken):
        return STRING
    if is_verdict(key.name) and (bounds := find_scale(key.text)):
        return {"type": "number" if count_digits(bounds, key.text) else "integer", **limits(bounds)}
    # DSPy says of objects that they "adhere to the JSON schema".
    is_type = re.fullmatch(r"(?!(?i:any|optional)\Z)[A-Za-z_][\w.]*(?:\[.*\])?|adhere to .*", key.type_name, re.DOTALL)
    if is_verdict(key.name) or is_type:
        raise Unread(key.name)
    return STRING


@functools.lru_cache(64)
def find_range_words(name: str, text: str) -> str:
    """Return the first words that give a range for the key `name` in a bullet or sentence, or "" if there are none."""
    key = rf"(?:^[ \t]*(?:[-*•]|[0-9]{{1,2}}[.)])? ?|[\"'`*]|\b(?:the|a) ){re.escape(name)}[\"'`*]{{0,3}}"
    begins = r"\(|:|is |must |should |from |between |ranges "
    for match in re.finditer(rf"(?im){key} ?(?P<words>(?:{begins})[^\n]{{1,200}})", text):
        words: str = re.split(r"\.\s", match["words"])[0]
        words = re.sub(r"(?i)out of 1(?:\.0)?(?![\w.]*[0-9])", "from 0 to 1", words)
        if find_range(words):
            return words
    return ""


def read_marked_fields(text: str, whole: str) -> list[tuple[str, str]]:
    """Return the name of each DSPy field and a regular expression for its value, "" for free text.

    `text` is the list of fields, `whole` the complete request. Return [] if a type is not understood or all fields are
    free text.
    """
    fields = list[tuple[str, str]]()
    for field in FIELD.finditer(text):
        name, type_name = field["name"], field["type"] or "str"
        # DSPy's end marker is no field.
        if name == "completed":
            break
        try:
            schema = _typed(name, type_name, find_range_words(name, whole), whole)
        except Unread:
            return []
        if not (pattern := value_pattern(schema)) and type_name != "str":
            return []
        fields.append((name, pattern if type_name != "str" else ""))
    return fields if any(pattern for _, pattern in fields) else []


def _object(fields: Schema) -> Iterator[Schema]:
    inner = [name for field in fields.values() for name in field.get("properties", {})]
    # An object without a verdict may be data that the request shows.
    if any(map(is_verdict, (*fields, *inner))) or any("enum" in field for field in fields.values()):
        yield closed(fields)


def _sketch(written: str) -> Any:
    """Parse an object whose values may be placeholders (`{"score": <1-5>}`), which become strings.

    Return None if it cannot be parsed.
    """
    plain = SEVERAL.sub(' ["<\\1>"]', written)
    plain = ENDING.sub("", plain.replace("{{", "{").replace("}}", "}"))
    plain = plain if '"' in plain else plain.replace("'", '"')
    # What is JSON as it stands needs no repair.
    for words in (written, SKETCHED.sub(_quoted, plain)):
        try:
            return json.loads(words)
        except (ValueError, RecursionError):
            continue
    return None


def _quoted(match: re.Match[str]) -> str:
    words: str = match["value"].strip()
    if re.fullmatch(r"-?[0-9.]+|true|false|null|\"[^\"]*\"", words):
        return words
    words = words.strip(" <>").replace('"', "'" if words.startswith('"') else "")
    return json.dumps(f"<{words}>", ensure_ascii=False)


def _described(name: str, value: Any, text: str) -> Schema:
    """Infer the schema of the key `name` from its value in an object that the request shows.

    `value`: an example of the key's value, or a description of it. `text`: the request's text, in which the key's range
    may stand.
    """
    # Nested objects are read key by key.
    if isinstance(value, dict):
        return closed({key: _described(key, inner, text) for key, inner in value.items()})
    if isinstance(value, list):
        items = _described(name, value[0], text) if value else STRING
        if value and all(isinstance(item, dict) for item in value):
            items = _joined([_described(name, item, text)["properties"] for item in value]) or items
        return {"type": "array", "items": items, "minItems": int(is_verdict(name))}
    if value is None or isinstance(value, bool):
        return {"type": "null" if value is None else "boolean"}
    if isinstance(value, int | float):
        bounds = find_scale(text) or find_range(find_range_words(name, text))
        whole = isinstance(value, int) and not count_digits(bounds, text)
        return {"type": "integer" if whole else "number", **(limits(bounds) if is_verdict(name) else {})}
    return _sketched(name, value, text)


def _sketched(name: str, value: str, text: str) -> Schema:
    """Return the schema of the key `name` from the description `value` that stands in place of its value.

    If `value` only says that it is a string, a rule about the key in `text` may list its labels. `value` is in <>
    unless it was quoted. Raise Unread if it names an unknown type.
    """
    word = value.strip("<>[] ")
    field = _in_words(word, is_text=not value.startswith("<"))
    note = NOTE.fullmatch(value)
    is_type = field == STRING and re.fullmatch(r"<\s*[A-Za-z_][\w.]*\s*>", value) and not TEXT.search(word)
    if note or (is_type and is_verdict(name)):
        return _typed(name, note["words"] if note else word, "", text)
    if is_verdict(name) and field in ({"type": "integer"}, {"type": "number"}):
        return field | limits(find_range(find_range_words(name, text)) or find_scale(text))
    rule = _rules(text).get(name) if field == STRING else None
    labels = find_labels(rule) if rule else None
    return {"enum": labels} if labels else field


@functools.lru_cache(8)
def _rules(text: str) -> dict[str, str]:
    """Return the first rule ("… must be …") that the text gives for each quoted field name, by name."""
    return {rule["name"]: rule["says"] for rule in reversed([*RULE.finditer(text)])}


def _in_words(words: str, is_text: bool) -> Schema:
    """Return the schema for words in place of a value or type: labels, a boolean or a number, else a string.

    `is_text` is True if the words were quoted as a string, so that numbers in them are labels.
    """
    options = [option.strip("\"'` ") for option in re.split(r"\s*(?:\||(?<!\bN)/|/(?!A\b)|\bor\b)\s*", words)]
    quoted = sorted({*re.findall(r"(?<!\w)['`]([A-Za-z_]{1,20})['`]", words)})
    # Quoted values are labels even among other words.
    if len(quoted) > 1:
        return {"enum": quoted}
    if re.fullmatch(r"(?i)(?:true|false|bool(?:ean)?)(?:\s*(?:\||/|or)\s*(?:true|false))?", words):
        return {"type": "boolean"}
    if len(options) > 1 and all(re.fullmatch(r"[\w+=<>-]{1,20}|N/A", option) for option in options):
        whole = not is_text and all(re.fullmatch("-?[0-9]+", option) for option in options)
        return {"enum": [*map(int, options)] if whole else options}
    if bounds := find_range(words):
        kind = "number" if count_digits(bounds, words) or "." in words else "integer"
        return {"type": kind, **limits(bounds)}
    number = NUMERIC.search(words)
    if is_text or not number:
        return STRING
    return {"type": "integer" if number["whole"] else "number"}


def options(text: str) -> list[str]:
    """Return the letters of the question's options and Z, which means none of them. Without options return A to Z."""
    letters = {*re.findall(r"(?<![\w'’.-])([A-Z])[.):](?=\s)", text)}
    return sorted(letters | {"Z"} if {"A", "B"} <= letters else ascii_uppercase)


ASKS = pattern("instructs", re.IGNORECASE)
"""Beginning of a sentence that gives an instruction."""

CLOSING = re.compile(r"(?i)(?:stars|score|rating|grade) ?: *\Z")
"""Last line of a request that the reply completes, such as `Score:`."""

DATA = pattern("introduces", re.IGNORECASE)
"""Beginning of a line that introduces judged data."""

TAG = pattern("tag", re.IGNORECASE)


def drop_data(text: str) -> str:
    """Remove the judged data from a text. The labels that introduce the data, and the instructions after it, are kept.

    Data ends at a line that gives an instruction. Between two pieces of data that line must also speak of judging,
    because it could belong to the first piece. Return the text unchanged if only the data speaks of judging.
    """
    lines = _without_tagged(text).rstrip().split("\n")
    opens = {at: match for at, line in enumerate(lines) if (match := DATA.match(line)) and not ASKS.match(line)}
    # Read from the end, so that each line is looked at once however many pieces of data there are.
    speaks, last = list[bool](), True
    for line in reversed(lines):
        last = bool(SPEAKS.search(line)) or last
        speaks.append(last)
        last = last and len(lines) - len(speaks) not in opens
    # A client that lists its keys encodes its data: no line of these is an example's reply.
    listed = KEY_LIST.search(text)
    in_data, kept = False, []
    for at, line in enumerate(lines):
        is_last = at == len(lines) - 1
        asks = (speaks[-1 - at] and ASKS.match(line)) or (is_last and CLOSING.match(line))
        in_data = at in opens or (in_data and not asks)
        shown = in_data and listed and line.startswith("{") and OUTPUT.match(lines[at - 1])
        kept.append(line if shown else opens[at][0] if at in opens else "" if in_data else line)
    left = "\n".join(kept)
    return text if opens and not judges(left) else left


def _without_tagged(text: str) -> str:
    """Return the text without `<answer>…</answer>` and similar elements, in linear time."""
    kept, start, unclosed = list[str](), 0, set[str]()
    while opening := TAG.search(text, start):
        name = opening[1].lower()
        closing = None if name in unclosed else re.compile(rf"(?i)</{name}>").search(text, opening.end())
        if closing is None:
            unclosed.add(name)
        kept.append(text[start : opening.start() if closing else opening.end()])
        start = (closing or opening).end()
    return "".join((*kept, text[start:]))
