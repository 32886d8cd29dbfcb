"""The form of a verdict that people's own prompts ask for, read from their words, English or Chinese. All is pure.

A JSON Schema, an example object or named keys; other forms are entries of the table, whose words are looked for in the
same text, without the data. A request is left alone unless it judges answers and names one form only.
"""

import functools
import itertools
import json
from collections.abc import Iterator
from re import escape
from string import ascii_uppercase
from typing import Any

import regex as re
from chinese import in_english
from scales import Schema, digits_of, labels_in, limits, names_verdict, range_in, scale_of

HEAD, TAIL = 20_000, 6_000
"""Characters that are read of a long request, at its beginning and at its end."""

JUDGED = (
    r"(?:answers?|responses?|repl(?:y|ies)|submissions?|outputs?|solutions?|candidates?|assistants?|summar(?:y|ies)|"
    r"translations?|claims?|statements?|conversations?|essays?)"
)
RATES = r"(?:evaluat\w*|grad(?:e|es|ing)|judg\w+|rat(?:e|es|ing)|assess\w*|scor(?:e|es|ing))"
SPEAKS = re.compile(rf"(?i)\b(?:{RATES}|judge|criteria|rubric)\b")
JUDGING = re.compile(
    rf"(?i)\b(?:{RATES}|compar(?:e|ing)|check|determine|classify|correctness)\b[^.\n]{{0,90}}\b{JUDGED}\b|"
    rf"\b(?:two|both) (?:assistants|answers|responses|outputs)\b|\bmatch an answer\b|\byou (?:grade|judge|rate)\b|"
    rf"\byou are an? [^.\n]{{0,30}}(?:judge|grader|evaluator)\b|"
    rf"\b{JUDGED} (?:is|are) (?:supported|correct|better)\b|\b{JUDGED}[^.\n]{{0,3}} {RATES}\b"
)
"""What judges answers: forms that texts of all kinds have are a verdict's only there."""

ABOUT = re.compile(
    r"(?i)\A\W*(?:please )?(?:(?:can|could) you )?(?:summari[sz]e|translate|rewrite|explain|shorten|extract|continue|"
    r"convert|proofread|improve|document|let['’]?s|what do(?:es)? |how (?:do|can|should) (?:i|we)|"
    r"(?:write|draft|create|design|make|generate|suggest|implement|give me) (?:me )?(?:an?|the|this|my|our|\w+ing)\b)"
)
"""How requests begin that are about a text: forms that they name are its."""

INSTANCE = re.compile(r"(?i)\b(?:return|respond|reply|answer|output|provide)\b[^{}]{0,200}\bschema\b")
"""What asks for an instance of a schema whatever it is about."""

EXAMPLE = re.compile(r"(?i)\b(?:example|instance|e\.g)\b[^{}]{0,60}$")
OBJECT = re.compile(
    r"(?i)\b(?:return|respond|reply|output|answer|provide|produce|generate|give|write|format|use|using)\b[^{}]{0,160}"
    r"\b(?:json|object|dictionary|structure|format|fields|keys|schema)\b"
)
SCHEMA = re.compile(r"(?i)(?:schema|json format)\W[^{}]{0,80}$")
NEAR = 250
"""Characters before an object that may ask for it."""

MOST_OBJECTS = 100
"""Objects of a text that are read, and keys of each: what an answer's form may have, with room to spare."""

LISTED = re.compile(r"(?m)^ *[-*•] ?[`\"*]{0,2}(?P<name>[A-Za-z_]\w{0,30})[`\"*]{0,2} ?\((?P<type>[^()\n]{1,60})\) ?:")
NAMED = re.compile(r"(?i)\bJSON\b[^.{}\n]{0,40}\b(?:keys|fields|properties)\b(?P<names>(?:[^.{}\n]|\.(?!\s)){4,300})")
NAME = re.compile(r"[`\"'](?P<name>[A-Za-z_]\w{0,30})[`\"'](?: ?\((?P<type>[^()\n]{1,80})\))?")
RULE = re.compile(r"[\"'`](?P<name>[^\"'`\n]{1,80})[\"'`](?=(?P<says> (?:field )?(?:must|should) be [^.\n]{2,120}))")
SKETCHED = re.compile(
    r"(?<=:)\s*(?P<value><[^<>\n]*>|\"[^\"\n]*\"(?:\s*(?:\||/|or)\s*\"[^\"\n]*\")+|[^\s\"'{}\[\],<][^,{}\[\]\n\"]*)"
)
"""A value that is described and not written, behind its key."""

ENDING = re.compile(r"(?<![\s,.…])(?:[\s,…]|\.\.\.)++(?=[}\]])")

BRACES = r"\{[^{}]*+\}"
for _ in range(8):
    BRACES = rf"\{{(?:[^{{}}]++|{BRACES})*+\}}"
OBJECTS = re.compile(BRACES)
"""Outermost pairs of braces."""


def asked_texts(turns: list[tuple[str, str]]) -> list[str]:
    """What the system's messages ask, and then what all do (role and text of each), in the reader's words and without
    data; nothing of requests that judge no answers or are about a text."""
    system = without_data(in_english("\n\n".join(text for role, text in turns if role == "system")[:HEAD]))
    whole = without_data(in_english(clipped("\n\n".join(text for _, text in turns))))
    last = in_english(turns[-1][1][:600]) if turns else ""
    if ABOUT.search(last) or not (judges(whole) or INSTANCE.search(whole)):
        return []
    return [whole] if ABOUT.search(system) else [system, whole]


def clipped(text: str, head: int = HEAD, tail: int = TAIL) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= head + tail else f"{text[:head]}\n\n{text[-tail:]}"


def object_in(text: str, *, wanted: bool) -> Schema | None:
    """The schema of the JSON object that is asked for, empty where there are several. `wanted` says that the request
    asks for an object by itself."""
    schemas = [*objects(text, wanted)]
    if any([*schema["properties"]] != [*schemas[0]["properties"]] for schema in schemas):
        return {}
    return schemas[0] if schemas else None


@functools.lru_cache(8)
def judges(text: str) -> bool:
    """Whether the words around objects judge answers: what the fields of these are called asks for nothing."""
    return bool(JUDGING.search(OBJECTS.sub(" ", text)))


def closed(fields: Schema) -> Schema:
    """An object of exactly these keys, in this order."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def objects(text: str, wanted: bool) -> Iterator[Schema]:
    """JSON Schemas that a reply has to follow, objects that are shown as an example, and keys that are named with their
    types or ranges."""
    judging = judges(text)
    for match in itertools.islice(OBJECTS.finditer(text), MOST_OBJECTS):
        if match[0].count(":") > MOST_OBJECTS:
            continue
        before, sketch = text[max(0, match.start() - NEAR) : match.start()], _sketch(match[0]) or {}
        asked_for = OBJECT.search(before)
        if isinstance(sketch.get("properties"), dict):
            if asked_for and SCHEMA.search(before) and not EXAMPLE.search(before):
                yield sketch
        elif judging and (wanted or asked_for):
            yield from _object({name: _described(name, value, text) for name, value in sketch.items()})
    named = NAMED.search(text)
    keys = [*NAME.finditer(named["names"])] if named else []
    rows = [*itertools.islice(LISTED.finditer(text), MOST_OBJECTS)] if OBJECT.search(text) else []
    if judging and (rows or all(key["type"] or not names_verdict(key["name"]) for key in keys)):
        yield from _object(
            {row["name"]: _described(row["name"], f"<{row['type'] or ''}>", text) for row in rows or keys}
        )


def _object(fields: Schema) -> Iterator[Schema]:
    inner = [name for field in fields.values() for name in field.get("properties", {})]
    if any(map(names_verdict, (*fields, *inner))) or any("enum" in field for field in fields.values()):
        yield closed(fields)


def _sketch(written: str) -> Any:
    """The object that is written, with what stands for a value as a text: `{"score": <1-5>}`. None if it is none."""
    plain = ENDING.sub("", written.replace("{{", "{").replace("}}", "}"))
    plain = plain if '"' in plain else plain.replace("'", '"')
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
    words = words.strip(" <>").replace('"', "")
    return json.dumps(f"<{words}>", ensure_ascii=False)


def _described(name: str, value: Any, text: str) -> Schema:
    """What a value that is written as an example or described allows, or what the words say by its name."""
    if isinstance(value, dict):
        return closed({key: _described(key, inner, text) for key, inner in value.items()})
    if isinstance(value, list):
        items = _described(name, value[0], text) if value else {"type": "string"}
        return {"type": "array", "items": items, "minItems": int(names_verdict(name))}
    if isinstance(value, bool) or value is None:
        return {"type": "boolean" if value is not None else ["string", "null"]}
    if isinstance(value, int | float):
        bounds = scale_of(text)
        whole = isinstance(value, int) and not digits_of(bounds, text)
        return {"type": "integer" if whole else "number", **(limits(bounds) if names_verdict(name) else {})}
    field = _in_words(value.strip("<>[] "), is_text=not value.startswith("<"))
    rule = _rules(text).get(name) if field == {"type": "string"} else None
    labels = labels_in(rule) if rule else None
    return {"enum": labels} if labels else field


@functools.lru_cache(8)
def _rules(text: str) -> dict[str, str]:
    """Return what the text first says that the field of each quoted name must be."""
    return {rule["name"]: rule["says"] for rule in reversed([*RULE.finditer(text)])}


def _in_words(words: str, is_text: bool) -> Schema:
    options = [option.strip("\"'` ") for option in re.split(r"\s*(?:\||(?<!\bN)/|/(?!A\b)|\bor\b)\s*", words)]
    quoted = sorted({*re.findall(r"(?<!\w)['`]([A-Za-z_]{1,20})['`]", words)})
    if len(quoted) > 1:
        return {"enum": quoted}
    if re.fullmatch(r"(?i)(?:true|false|bool(?:ean)?)(?:\s*(?:\||/|or)\s*(?:true|false))?", words):
        return {"type": "boolean"}
    if len(options) > 1 and all(re.fullmatch(r"[\w+=<>-]{1,20}|N/A", option) for option in options):
        whole = not is_text and all(re.fullmatch("-?[0-9]+", option) for option in options)
        return {"enum": [int(option) for option in options] if whole else options}
    if bounds := range_in(words):
        kind = "number" if digits_of(bounds, words) or "." in words else "integer"
        return {"type": kind, "minimum": bounds[0], "maximum": bounds[1]}
    number = re.search(r"(?i)\b(?:(int(?:eger)?)|number|float|numeric|decimal)\b", words)
    if is_text or not number:
        return {"type": "string"}
    return {"type": "integer" if number[1] else "number"}


def escaped(text: str) -> str:
    return escape(text).replace("\\\n", "\n")


def any_of(values: list[str]) -> str:
    return "|".join(escaped(value) for value in sorted(values, key=len, reverse=True))


def options(text: str) -> list[str]:
    """The letters of a question's options, or all if it names none."""
    letters = {*re.findall(r"(?<![\w'’.-])([A-Z])[.):](?=\s)", text)}
    return sorted(letters | {"Z"} if {"A", "B"} <= letters else ascii_uppercase)


ASKS = re.compile(
    r"(?i)(?<!\W)\W*+(?:(?:now|then|please|finally|first|you(?: (?:must|should))?)\W++){0,8}"
    r"(?:(?:rate|score(?= (?:the|it|each|from)\b)|grade|evaluate|judge|give|provide|return|respond|reply|use|print|"
    r"(?:output|answer)(?= [\w\"'`\[(<{*])(?! \w\W{0,3}[:\]])|only|just|reason|think|explain|end|scores go|"
    r"(?:the|your) (?:\w{1,20} ){0,2}(?:score|answer|response|reply|output|verdict|judge?ment|line) (?:must|should|is)|"
    r"is\b[^?.\n]{0,80}\b(?:answer|response|it))\b|score ?\([0-9]|"
    r"[^\w\n]{0,8}(?:evaluation form|grading rubric)\b[^.:\n]{0,40}:)"
)
"""How a sentence begins that asks for something, and does not only tell it."""

NAMES = (
    r"(?:data|answer|response|reply|submission|output|completion|text|summary|translation|passage|context|document|"
    r"article|question|query|(?:instruction|prompt)(?!s)|input|conversation|dialogue|source|essay|assistant)s?"
)
WHO = r"model|assistant|student|user|ai|candidate|predicted|generated|given|standard|reference|correct|expected"
WHOSE = rf"(?:the )?(?:(?:{WHO})(?: [a-z0-9])?(?:['’]s)? ){{0,2}}"
DATA = re.compile(
    rf"(?i)[^\w\n\"']{{0,8}}(?:(?:the )?(?:begin|start)[ _](?:of[ _](?:the[ _])?)?)?{WHOSE}{NAMES}"
    rf"(?:[ _][a-z0-9])?(?:[^\w\n\"']{{0,3}}:|\|?[\]>]|\*\*$)|#{{1,6}} {WHOSE}{NAMES}(?: [a-z0-9])? *$"
)
"""How a line begins that opens data."""

TAG = re.compile(rf"(?i)<({NAMES})>")


def without_data(text: str) -> str:
    """The text without its data, but for the names that open each piece, up to a line that asks again. Between two
    pieces such a line has to speak of judging: it may be the first one's. A text that judges only within such a piece
    is left as it is."""
    lines = _without_tagged(text).split("\n")
    opens = {at: match for at, line in enumerate(lines) if (match := DATA.match(line)) and not ASKS.match(line)}
    # Read from the end, so that each line is looked at once however many pieces of data there are.
    speaks, last = list[bool](), True
    for line in reversed(lines):
        last = bool(SPEAKS.search(line)) or last
        speaks.append(last)
        last = last and len(lines) - len(speaks) not in opens
    in_data, kept = False, []
    for at, line in enumerate(lines):
        in_data = at in opens or (in_data and not (speaks[-1 - at] and ASKS.match(line)))
        kept.append(opens[at][0] if at in opens else "" if in_data else line)
    left = "\n".join(kept)
    return text if opens and not judges(left) else left


def _without_tagged(text: str) -> str:
    """Return the text without each `<answer>…</answer>` and its like, in time that grows with its length only."""
    kept, start, unclosed = list[str](), 0, set[str]()
    while opening := TAG.search(text, start):
        name = opening[1].lower()
        closing = None if name in unclosed else re.compile(rf"(?i)</{name}>").search(text, opening.end())
        if closing is None:
            unclosed.add(name)
        kept.append(text[start : opening.start() if closing else opening.end()])
        start = (closing or opening).end()
    return "".join((*kept, text[start:]))
