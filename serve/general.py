"""The general contract: the form of a verdict that no entry of the table knows, read from the request's own words.

It finds a JSON Schema or an example object that the reply has to follow, a set of labels of which the reply is one, or
named lines. A request is left alone unless its words judge something, ask for the form by name, and name one form only.
Everything here is pure.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from reading import names_verdict, range_in, rubric_range

Schema = dict[str, Any]

HEAD, TAIL = 20_000, 6_000
"""Characters of a long request that are read, at its beginning and at its end."""

JUDGING = re.compile(
    r"(?i)\b(evaluat\w*|grad(?:e|es|er|ing)\b|judg\w+|rat(?:e|es|ing|ings|er)\b|scor(?:e|es|ing|er)\b|assess\w*|rubric|"
    r"criteri(?:on|a)|verdict|critique|ground[ -]truth|gold|reference answer|submission|hallucinat\w*|faithful\w*|"
    r"classif(?:y|ies|ier)\b|"
    r"match an answer|(?:two|both) (?:assistants|responses|answers)|determine (?:if|whether))"
)
ASKS = r"(?:return|respond|reply|output|answer|provide|produce|generate|give|write|format|print|use|using)"
OBJECT = re.compile(
    rf"(?i)\b{ASKS}\b[^{{}}]{{0,160}}\b(?:json|object|dictionary|structure|format|fields|keys|schema|following)\b"
)
INSTANCE = re.compile(r"(?i)\b(?:return|respond|reply|answer|output|provide)\b[^{}]{0,200}\bschema\b")
"""What asks for an instance of a schema whatever it is about."""

CODING = re.compile(
    r"(?i)\b(function|method|class|endpoint|script|program|code|python|javascript|typescript|sql|regex|api|html|"
    r"validat(?:e|es|or)|parse[rs]?|file|component|app)\b"
)
SCHEMA_CUE = re.compile(r"(?i)(schema|json format)\W[^{}]{0,80}$")
EXAMPLE_CUE = re.compile(r"(?i)\b(example|instance|e\.g)\b[^{}]{0,60}$")
ABOUT = re.compile(
    r"(?i)\A\W*(?:please )?(?:(?:can|could) you )?(?:summari[sz]e|paraphrase|translate|rewrite|explain|shorten|extract|"
    r"continue|convert|(?:write|draft|create|design|make|generate|improve|suggest|implement|give me) (?:me )?"
    r"(?:an?|the|some|my|our|three)\b)"
)
"""How requests begin that are about a text, not under it: forms that they name are its."""

WORD = r"[A-Za-z0-9][A-Za-z0-9_ +-]{0,23}"
QUOTED = rf"(?:\"{WORD}\"|'{WORD}'|`{WORD}`|“{WORD}”|\*\*{WORD}\*\*)"
BARE = (
    r"(?:[A-Z]\b|[01]\b|(?i:yes|no|true|false|correct|incorrect|partial|unknown|tie|pass|fail)\b|[A-Z][A-Z_]{1,20}\b)"
)
SEPARATOR = r"(?: ?\([^()\n]{0,40}\))?(?:, and |, or |, | or | and | ?/ ?| ?\| ?)"
LABELS = re.compile(rf"(?P<list>(?:{QUOTED}(?:{SEPARATOR}{QUOTED}){{1,9}})|(?:{BARE}(?:{SEPARATOR}{BARE}){{1,9}}))")
ANSWERS = re.compile(r"(?i)\b(?:return|respond|reply|output|answer|write|print|say)\b")
ONLY = re.compile(
    r"(?i)\b(only|just|single|exactly one|nothing else|one of the following|among the following|"
    r"no (?:other|additional|extra|text)|without any)\b"
)
BRACKETED = re.compile(r"\[\[([A-Z](?:[<>=]{1,2}[A-Z])?|(?i:tie|yes|no))\]\]")
LINES = re.compile(
    r"(?i)\b(?:following|this|these)\b[^\n]{0,60}\b(?:format|fields|lines)\b[^\n]{0,80}:?\n"
    r"(?P<lines>(?:\W{0,3}[A-Za-z][\w ]{0,24}: ?[^\n]+\n?){2,4})"
)
CLOSING = re.compile(
    r"(?i)\b(?:end|finish|conclude|final line|last line)\b[^\n\"'`]{0,80}[\"'`](?P<name>[A-Za-z][A-Za-z ]{1,20}): ?"
    r"[\[<{(]{0,2}(?P<value>[^\"'`\n\]>})]{1,40})[\]>})]{0,2}[\"'`](?P<rest>[^\n]{0,120})"
)


class Found(NamedTuple):
    """What the words ask for: `kind` names it, `what` says it in a line; of a JSON object its schema, of a text the
    fields of a contract."""

    kind: str
    what: str
    schema: Schema | None = None
    text: dict[str, Any] | None = None


def find(texts: list[tuple[str, str]], wants_object: bool) -> Found | None:
    """The form that the messages (role and text) ask their reply in; None where that is not sure. `wants_object`
    says that the request asks for a JSON object by itself."""
    system = "\n\n".join(text for role, text in texts if role == "system")
    whole = "\n\n".join(text for _, text in texts)
    whole = whole if len(whole) <= HEAD + TAIL else f"{whole[:HEAD]}\n\n{whole[-TAIL:]}"
    judging = bool(JUDGING.search(whole))
    if not judging and not INSTANCE.search(whole):
        return None
    for text in (system[:HEAD], whole):
        if ABOUT.match(texts[-1][1] if texts and text is whole else text):
            continue
        found = _one([*_objects(text, wants_object, judging), *(_listed(text) if judging else ())])
        if found is None and judging and not wants_object:
            found = _one(list(_labels(text))) or _one(list(_brackets(text))) or _closing(text) or _lines(text)
        if found and found.kind != "several":
            return found
        if found:
            return None
    return None


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
        if not any(names_verdict(name) or (name == "category" and "enum" in field) for name, field in fields.items()):
            continue
        if wants_object or tuple(fields) in known or _asked_for(before, sentence):
            known.add(tuple(fields))
            schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
            yield Found("json", ", ".join(fields), schema=schema)


LISTED = re.compile(
    r"^ *[-*•] ?[`\"*]{0,2}(?P<name>[A-Za-z_]\w{0,30})[`\"*]{0,2} ?\((?P<type>[^()\n]{1,60})\) ?:", re.MULTILINE
)


def _listed(text: str) -> Iterator[Found]:
    """An object whose fields stand in a list, each with its type."""
    asked = OBJECT.search(text)
    lines = list(LISTED.finditer(text, asked.end())) if asked and not CODING.search(asked[0]) else []
    fields = {
        line["name"]: _scalar(re.sub(r"^Literal|\bstr\b", "", line["type"]).strip("[] ").replace(",", "|"))
        for line in lines
    }
    if len(fields) > 1 and any(names_verdict(name) for name in fields):
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        yield Found("json", ", ".join(fields), schema=schema)


def _told(name: str, field: Schema, text: str) -> Schema:
    """The field, with the labels that the words allow for it by name."""
    if field != {"type": "string"}:
        return field
    said = re.search(
        rf"[\"'`]{re.escape(name)}[\"'`] (?:field )?(?:must|should|has to|can only) be [^.\n]{{2,120}}", text
    )
    labels = LABELS.search(said[0], said[0].index(" ")) if said else None
    return {"enum": _labels_of(labels)} if labels else field


def _asked_for(before: str, sentence: str) -> bool:
    """Whether the words before an object ask for a reply like it, and not for a program that gives one."""
    return bool(OBJECT.search(before)) and not CODING.search(sentence) and not CODING.search(OBJECT.search(before)[0])  # type: ignore[index]


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


FIELD = re.compile(r"\s*(?:\"(?P<quoted>[\w -]{1,40})\"|'(?P<single>[\w -]{1,40})'|(?P<bare>[A-Za-z_]\w{0,39}))\s*:\s*")
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
    schema: Schema = {"type": ["string", "null"] if bare == "null" else "string"}
    if text and len(told := set(re.findall(r"(?<!\w)['`]([A-Za-z_]{1,20})['`]", value[1:-1]))) > 1:
        return {"enum": sorted(told)}
    options = [option.strip("\"'` ") for option in re.split(r"\s*(?:\||/|\bor\b)\s*", bare)]
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        schema = {"type": "number" if "." in value else "integer", "default": float(value)}
    elif re.fullmatch(r"(?i)(true|false|bool(ean)?)(\s*(\||/|or)\s*(true|false))?", bare):
        schema = {"type": "boolean"}
    elif len(options) > 1 and all(re.fullmatch(r"[A-Za-z0-9_-]{1,20}", option) for option in options):
        schema = {"enum": [int(one) if one.isdigit() and not text else one for one in options]}
    elif found := range_in(bare):
        whole = "." not in bare and not re.search(r"(?i)float|decimal", bare)
        schema = {"type": "integer" if whole else "number", "minimum": found[0], "maximum": found[1]}
    elif not text and (number := re.search(r"(?i)\b(int(eger)?|number|float|numeric|decimal)\b", bare)):
        schema = {"type": "integer" if number[2] or number[1].lower() == "int" else "number"}
    return schema


def _labels(text: str) -> Iterator[Found]:
    """Sets of labels of which the reply has to be one and nothing else."""
    for sentence in re.findall(r"[^\n.?]+[.?\n]?", text):
        if len(sentence) > 500 or sentence.endswith("?") or CODING.search(sentence) or not ONLY.search(sentence):
            continue
        asked = ANSWERS.search(sentence)
        if asked and (found := LABELS.search(sentence, asked.end())):
            labels = _labels_of(found)
            if 2 <= len(set(labels)) == len(labels):
                yield _text("labels", labels, "none")


def _labels_of(found: re.Match[str]) -> list[str]:
    return [re.sub(r"^\W+|\W+$", "", one) for one in re.findall(rf"{QUOTED}|{BARE}", found["list"])]


def _brackets(text: str) -> Iterator[Found]:
    labels = list(dict.fromkeys(BRACKETED.findall(text)))
    if 2 <= len(labels) <= 8:
        yield _text("labels", [f"[[{label}]]" for label in labels], "before", lead="\n\n")


def _closing(text: str) -> Found | None:
    found = list(CLOSING.finditer(text))
    if len({(one["name"].lower(), one["value"].strip()) for one in found}) != 1:
        return None
    name, value, rest = found[0]["name"], found[0]["value"].strip(), found[0]["rest"]
    options = _options(value) or _options(rest)
    return (
        _text("line", options, "before", f"\n{name}: ", rf"(?i:{re.escape(name)}): ?[A-Za-z0-9]") if options else None
    )


def _lines(text: str) -> Found | None:
    """Named lines, the first with the verdict and the second with the reason for it."""
    found = {one["lines"].strip() for one in LINES.finditer(text)}
    if len(found) != 1:
        return None
    lines = [line.strip(" -*\t").partition(":") for line in found.pop().split("\n")]
    names = [name for name, _, _ in lines]
    if len(names) != 2 or not names_verdict(names[0]):
        return None
    options = _options(lines[0][2]) or _numbers(rubric_range(text) or range_in(text))
    if not options:
        return None
    shown = _text("lines", options, "after", f"{names[0]}: ")
    assert shown.text is not None
    return shown._replace(what=", ".join(names), text={**shown.text, "follow": f"\n{names[1]}: "})


def _options(words: str) -> list[str]:
    """The values that a placeholder or the words about it allow."""
    if found := range_in(words):
        return _numbers(found)
    if labels := LABELS.search(words):
        return _labels_of(labels)
    return []


def _numbers(found: tuple[float, float] | None) -> list[str]:
    if not found or found[1] > 100 or not all(value == int(value) for value in found):
        return []
    return [str(number) for number in range(int(found[0]), int(found[1]) + 1)]


def _text(kind: str, options: list[str], reasoning: str, lead: str = "", never: str | None = None) -> Found:
    """A form in which the verdict is one of `options`, behind `lead`. Free text must not look like it."""
    choice = "|".join(re.escape(option) for option in sorted(options, key=len, reverse=True))
    longest = max(len(option.encode()) for option in options)
    fields: dict[str, Any] = {"reasoning": reasoning, "verdict": f"({choice})", "room": longest}
    if reasoning == "before":
        own = lead if lead.strip() else ""
        fields |= {"verdict": f"{re.escape(own)}({choice})", "lead": lead[: len(lead) - len(lead.lstrip())]}
        fields |= {"never": never or f"({choice})", "room": longest + len(lead.encode()) + 2}
        if own:
            fields |= {"lead": "", "verdict": f"{own}({choice})".replace("\n", "\\n")}
    elif lead:
        fields |= {"verdict": f"{re.escape(lead)}({choice})", "room": longest + len(lead.encode())}
    return Found(kind, " | ".join(options), text=fields)
