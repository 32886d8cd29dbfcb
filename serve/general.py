"""The general contract: the form of a verdict that no entry of the table knows, read from the request's own words.

It finds a JSON Schema or an example object that the reply has to follow, a set of labels of which the reply is one, or
named lines. A request is left alone unless its words judge something, ask for the form by name, and name one form only.
Everything here is pure.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from chinese import in_english
from layouts import (
    WHY,
    Found,
    blocks,
    brackets,
    closing,
    ending,
    held,
    labels,
    laid_out,
    lines,
    numbers,
)
from reading import digits_of, names_verdict, range_in, said_of, scale_of
from sections import JUDGING, without_data

Schema = dict[str, Any]

HEAD, TAIL, EDGE = 20_000, 6_000, 300
"""Characters of a long request that are read, at its beginning and at its end."""

ASKS = r"(?:return|respond|reply|output|answer|provide|produce|generate|give|write|format|print|use|using)"
OBJECT = re.compile(
    rf"(?i)\b{ASKS}\b[^{{}}]{{0,160}}\b(?:json|object|dictionary|structure|format|fields|keys|schema|following)\b"
)
INSTANCE = re.compile(r"(?i)\b(?:return|respond|reply|answer|output|provide)\b[^{}]{0,200}\bschema\b")
"""What asks for an instance of a schema whatever it is about."""

CODING = re.compile(
    r"(?i)\b(function|method|class|endpoint|script|program|code|python|javascript|typescript|sql|regex|api|html|"
    r"validat(?:e|es|or)|unit tests?|parse[rs]?|file|component|app)\b"
)
SCHEMA_CUE = re.compile(r"(?i)(schema|json format)\W[^{}]{0,80}$")
EXAMPLE_CUE = re.compile(r"(?i)\b(example|instance|e\.g)\b[^{}]{0,60}$")
ABOUT = re.compile(
    r"(?i)\A\W*(?:please )?(?:(?:can|could) you )?(?:summari[sz]e|paraphrase|translate|rewrite|explain|shorten|extract|"
    r"continue|convert|proofread|repeat|document|let['’]?s|what do(?:es)? (?:this|the|my|our)|"
    r"how (?:do|can|should) (?:i|we)|"
    r"(?:write|draft|create|design|make|generate|improve|suggest|implement|give me) (?:me )?"
    r"(?:an?|the|this|some|my|our|two|three)\b(?! (?:answer|response|reply|output)))|"
    r"\A[^\n]+\b(?:how (?:do|can|should|could) (?:i|we)|why (?:does|do|is)|what do you think)\b[^.?\n]{0,120}\?\s*\Z"
)
"""How requests begin, or end if they are one line, that are about a text and not under it: forms that they name are
its."""

ABOUT_OBJECT = re.compile(
    r"(?i)\?\s*$|"
    r"\b(?:parse|explain|convert|fix|check|validate|read|describe) (?:this|the following) (?:json|object)\b[^{}]*$"
)
"""What is said before an object that is given, and not asked for."""

ANSWERS = re.compile(
    r"(?i)\b(?:return|respond|reply|output|answer(?:ing)?|write|print(?:ing)?|say|response (?:should|must) be)\b"
)
ONLY = re.compile(
    r"(?i)\b(only|just|single|exactly one|nothing else|one of the following|among the following|"
    r"no (?:other|additional|extra|text)|without any)\b"
)
REASONS = re.compile(
    r"(?is)\b(?:first|step[- ]by[- ]step|reasoning|explanation|think)\b.{0,300}"
    r"\b(?:then|finally|at the end|after that)\b"
)
"""What comes before a sentence that asks for reasons first."""

AFTER = re.compile(
    r"(?i)\b(?:separate|next|new|second) lines?\b[^.\n]{0,60}"
    r"\b(?:reason(?:s|ing)?|expla(?:in|nation)|justif\w+|rationale)\b"
)
ONLY_NUMBER = re.compile(
    r"(?i)\b(?:only|just|single)"
    r"(?: (?:as|with|the|an?|your|single|final|overall|integer|float|decimal|real|numeric(?:al)?))*"
    r" (?:number|integer|score|rating|float|decimal|digit)(?: rating| score| value)?"
    r"(?= ?(?:[.,;:()\n]|\Z|from |between |in |on |and nothing))"
)


SENTENCE = re.compile(
    r"(?:[^\n.?]+|(?<=,)\.{3}|(?<=, )\.{3}|\.(?=[0-9])|(?<=\be)\.(?=g\b)|(?<=\be\.g)\.(?= ?[^\sA-Z]))+[.?\n]?"
)


ELSE = re.compile(
    r"(?i) or (?:N/?A\b|none\b|null\b|nan\b|un\w+\b|[\"'`“]|the (?:word|letter|string|text)|(?:write|say|output|return|"
    r"reply|respond|answer|print)\b)|\b(?:otherwise|unless)\b"
)
"""What a sentence allows beside a number."""


def find(texts: list[tuple[str, str]], wants_object: bool) -> Found | None:
    """The form that the messages (role and text) ask their reply in; None where that is not sure. `wants_object`
    says that the request asks for a JSON object by itself."""
    system = in_english("\n\n".join(text for role, text in texts if role == "system")[:HEAD])
    whole = in_english(_clipped("\n\n".join(text for _, text in texts)))
    last = in_english(texts[-1][1][: 2 * EDGE]) if texts else ""
    given = whole
    system, whole = (without_data(text, _spans(text)) for text in (system[:HEAD], whole))
    judging = bool(JUDGING.search(_without_objects(whole)))
    if not judging and not INSTANCE.search(whole):
        return None
    for text, begins in ((system, system), (whole, last)):
        if ABOUT.search(begins if len(begins) < 2 * EDGE else begins[:EDGE]):
            continue
        found = _one([*_objects(text, wants_object, judging), *(_listed(text) if judging else ())])
        if found is None and judging and not wants_object:
            found = laid_out(text) or _one(list(_labels(text, given))) or _one(list(brackets(text)))
            found = found or closing(text) or lines(text) or blocks(text)
            found = found or _one(list(_only_numbers(text))) or ending(text)
        if found and found.kind != "several":
            return found
        if found:
            return None
    return None


def _clipped(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n\n{text[-TAIL:]}"


def _one(found: list[Found]) -> Found | None:
    """The form that is found, or one of the kind "several" where it is not the only one."""
    if len({one.what for one in found}) > 1:
        return Found("several", "")
    if len(found) > 1 and found[0].schema:
        return found[0]._replace(schema=_widened([one.schema for one in found if one.schema]))
    return found[0] if found else None


def _widened(schemas: list[Schema]) -> Schema:
    """The first schema, with the range of numbers that differ from example to example."""
    first: Schema = json.loads(json.dumps(schemas[0]))
    for name, field in first["properties"].items():
        examples = [one["properties"].get(name, {}) for one in schemas]
        values = {one["default"] for one in examples if isinstance(one.get("default"), float)}
        if field.get("type") in ("integer", "number") and "minimum" not in field and values == {0, 1}:
            first["properties"][name] = {"type": "number", "minimum": 0, "maximum": 1}
    return first


def _objects(text: str, wants_object: bool, judging: bool) -> Iterator[Found]:
    known: set[tuple[str, ...]] = set()
    for start, end in _spans(text):
        before, written = text[max(0, start - 250) : start], text[start:end]
        sentence = re.split(r"[.!?]\s|\n\n", before)[-1]
        try:
            given = json.loads(written)
        except ValueError:
            given = None
        if isinstance(given, dict) and isinstance(given.get("properties"), dict):
            if (
                SCHEMA_CUE.search(before)
                and not EXAMPLE_CUE.search(before)
                and _asked_for(before, sentence)
                and (judging or INSTANCE.search(before))
            ):
                yield Found("json", "schema of " + ", ".join(given["properties"]), schema=given)
            continue
        fields = _fields_of(written) if judging else {}
        fields = {name: _told(name, field, text) for name, field in fields.items()}
        if not any(map(_verdict_field, fields.items())):
            continue
        if ABOUT_OBJECT.search(before):
            continue
        if wants_object or tuple(fields) in known or _asked_for(before, sentence):
            known.add(tuple(fields))
            schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
            yield Found("json", ", ".join(fields), schema=schema)


LISTED = re.compile(
    r"^ *[-*•] ?[`\"*]{0,2}(?P<name>[A-Za-z_]\w{0,30})[`\"*]{0,2} ?\((?P<type>[^()\n]{1,60})\) ?:", re.MULTILINE
)


NAMED = re.compile(
    rf"(?i)\b{ASKS}\b[^.{{}}\n]{{0,40}}\bJSON\b[^.{{}}\n]{{0,40}}\b(?:keys|fields|properties)\b(?P<names>[^{{}}\n]{{4,300}})"
)
NAME = re.compile(r"[`\"'](?P<name>[A-Za-z_]\w{0,30})[`\"'](?: ?\((?P<type>[^()\n]{1,80})\))?")


def _listed(text: str) -> Iterator[Found]:
    """An object whose fields stand in a list or a sentence, each with its type; what has none is a text, if it
    cannot be a verdict."""
    if not LISTED.search(text) and not re.search("(?i)json", text):
        return  # neither is there, and to look for what asks for it takes ten times as long
    asked = OBJECT.search(text)
    lines = list(LISTED.finditer(text, asked.end())) if asked and not CODING.search(asked[0]) else []
    named = NAMED.search(text) if asked else None
    if named and not lines and not CODING.search(named[0]) and JUDGING.search(text.replace(named[0], "")):
        lines = list(NAME.finditer(re.split(r"\.\s", named["names"])[0]))
    fields = {line["name"]: _typed(line["type"] or "") for line in lines}
    open_verdict = any(names_verdict(line["name"]) and not line["type"] for line in lines)
    if len(fields) > 1 and any(names_verdict(name) for name in fields) and not open_verdict:
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        yield Found("json", ", ".join(fields), schema=schema)


def _typed(words: str) -> Schema:
    """What the words behind a field's name allow."""
    if re.search("[\"'`]", words) and (said := labels(words)):
        return {"enum": said}
    return _scalar(re.sub(r"\bstr\b", "", words))


def _verdict_field(field: tuple[str, Schema]) -> bool:
    name, schema = field
    named = names_verdict(name) or (name == "category" and "enum" in schema)
    return named or any(map(names_verdict, schema.get("properties", {})))


def _told(name: str, field: Schema, text: str) -> Schema:
    """The field, with the labels that the words allow for it by name; a whole number in an example is any number where
    their scale is one of decimals."""
    if field.get("type") == "integer" and "default" in field:
        found = scale_of(text, name)
        return {**field, "type": "number"} if digits_of(found, said_of(found, text)) else field
    if field != {"type": "string"}:
        return field
    said = re.search(
        rf"[\"'`]{re.escape(name)}[\"'`] (?:field )?(?:must|should|has to|can only) be [^.\n]{{2,120}}", text
    )
    told = labels(said[0], said[0].index(" ")) if said else None
    return {"enum": told} if told else field


def _asked_for(before: str, sentence: str) -> bool:
    """Whether the words before an object ask for a reply like it, and not for a program that gives one."""
    asked = OBJECT.search(before)
    return bool(asked and not CODING.search(sentence) and not CODING.search(asked[0]))


def _without_objects(text: str) -> str:
    """The words around objects: what their fields are called asks for nothing."""
    ends = [0, *(at for span in _spans(text) for at in span), len(text)]
    return " ".join(text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where outermost pairs of braces stand."""
    depth, start = 0, 0
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            start = match.start() if depth == 0 else start
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                yield start, match.end()


FIELD = re.compile(
    r"\s*(?:\"(?P<quoted>[\w =<>-]{1,40})\"|'(?P<single>[\w -]{1,40})'|(?P<bare>[A-Za-z_]\w{0,39}))\s*:\s*"
)
VALUE = re.compile(
    r"\"(?:[^\"\\\n]|\\.)*\"(?:\s*(?:\||/|or)\s*\"[^\"\n]*\")*|'[^'\n]*'(?:\s*(?:\||/|or)\s*'[^'\n]*')*|<[^<>\n]*>|[^,{}\[\]\n\"']+"
)


def _fields_of(written: str) -> dict[str, Schema]:
    """The fields of an object as an example or a sketch writes it (`{"score": 1-5, reason: string}`); none for what
    cannot be read to its end."""
    fields, end = _object(written.replace("{{", "{").replace("}}", "}"), 0)
    return fields if end > 0 else {}


def _object(written: str, at: int) -> tuple[dict[str, Schema], int]:
    fields: dict[str, Schema] = {}
    at += 1
    while True:
        if ended := re.compile(r"\s*(?:\.\.\.|…)?\s*,?\s*\}").match(written, at):
            return fields, ended.end()
        name = FIELD.match(written, at)
        if not name:
            return {}, -1
        field, at = _value(written, name.end())
        if at < 0:
            return {}, -1
        fields[name["quoted"] or name["single"] or name["bare"]] = field
        between = re.compile(r"\s*(?:,|(?://|#)[^\n]*)?\s*(?:(?://|#)[^\n]*\s*)?").match(written, at)
        at = between.end() if between else at


def _value(written: str, at: int) -> tuple[Schema, int]:
    if written[at : at + 1] == "{":
        fields, end = _object(written, at)
        return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}, end
    if written[at : at + 1] == "[":
        inner = at + 1 + len(written[at + 1 :]) - len(written[at + 1 :].lstrip())
        item: Schema = {"type": "string"}
        end = inner
        if written[inner : inner + 1] not in ("]", ""):
            item, end = _value(written, inner)
        closing = written.find("]", end) if end > 0 else -1
        return {"type": "array", "items": item}, closing + 1 if closing >= 0 else -1
    match = VALUE.match(written, at)
    return (_scalar(match[0].strip()), match.end()) if match else ({}, -1)


def _scalar(value: str) -> Schema:
    """What a value written in an example, or said in its place, allows."""
    bare, text = value.strip("\"'<>` "), value.startswith(('"', "'"))
    bare = bare[1:-1] if re.fullmatch(r"\[[^\[\]]*\]", bare) else bare
    schema: Schema = {"type": ["string", "null"] if bare == "null" else "string"}
    if text and len(told := set(re.findall(r"(?<!\w)['`]([A-Za-z_]{1,20})['`]", value[1:-1]))) > 1:
        return {"enum": sorted(told)}
    options = [option.strip("\"'` ") for option in re.split(r"\s*(?:\||(?<!\bN)/|/(?!A\b)|\bor\b)\s*", bare)]
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        schema = {"type": "number" if "." in value else "integer", "default": float(value)}
    elif re.fullmatch(r"(?i)(true|false|bool(ean)?)(\s*(\||/|or)\s*(true|false))?", bare):
        schema = {"type": "boolean"}
    elif len(options) > 1 and all(re.fullmatch(r"[\w+=<>-]{1,20}|N/A", option) for option in options):
        schema = {"enum": [int(one) if re.fullmatch("-?[0-9]+", one) and not text else one for one in options]}
    elif found := range_in(bare):
        schema = {
            "type": "number" if digits_of(found, bare) or "." in bare else "integer",
            "minimum": found[0],
            "maximum": found[1],
        }
    elif not text and (number := re.search(r"(?i)\b(int(eger)?|number|float|numeric|decimal)\b", bare)):
        schema = {"type": "integer" if number[2] or number[1].lower() == "int" else "number"}
    return schema


def _labels(text: str, given: str) -> Iterator[Found]:
    """Sets of labels of which the reply has to be one and nothing else; `given` is the whole request."""
    for match in SENTENCE.finditer(text):
        sentence, before = match[0], text[max(0, match.start() - 400) : match.start()]
        if len(sentence) > 500 or sentence.endswith("?") or CODING.search(sentence) or not ONLY.search(sentence):
            continue
        asked = ANSWERS.search(sentence)
        if not asked or (said := labels(sentence, asked.end(), given)) is None:
            continue
        if not said:
            yield Found("several", "")
        elif len(set(said)) == len(said):
            reasoned = REASONS.search(before + sentence)
            yield held("labels", said, "before", own="\n\n") if reasoned else held("labels", said, "none")


def _only_numbers(text: str) -> Iterator[Found]:
    """A number of a range that the words name and nothing else, or reasons on the lines after it."""
    after = bool(AFTER.search(text))
    if WHY.search(text) and not after:
        return
    for match in SENTENCE.finditer(text):
        sentence = match[0]
        asked = ANSWERS.search(sentence) and ONLY_NUMBER.search(sentence)
        if asked and not CODING.search(sentence) and not ELSE.search(sentence, asked.start()):
            found = range_in(sentence) or scale_of(text)
            options = numbers(found, digits_of(found, f"{sentence} {said_of(found, text)}"))
            if options:
                yield held("number", options, "after" if after else "none")._replace(
                    what=f"{options[0]} … {options[-1]}"
                )
