"""The general contract: the form of a verdict that no entry of the table knows, read from the request's own words.

It finds a JSON Schema or an example object that the reply has to follow, a set of labels of which the reply is one, or
named lines. A request is left alone unless its words judge something, ask for the form by name, and name one form only.
Everything here is pure.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from reading import JUDGED, names_verdict, range_in, rubric_range

Schema = dict[str, Any]

HEAD, TAIL, EDGE = 20_000, 6_000, 300
"""Characters of a long request that are read, at its beginning and at its end."""

JUDGING = re.compile(
    r"(?i)\b(evaluat\w*|grad(?:e|es|er|ing)\b(?! \d)|judg\w+|rat(?:e|es|ing|ings|er)\b(?! of \d)|"
    r"scor(?:e|es|ing|er)\b|assess\w*|rubric|"
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

WORD = r"[A-Za-z0-9][A-Za-z0-9_ ()+-]{0,23}"
QUOTED = rf"(?:\"{WORD}\"|'{WORD}'|`{WORD}`|“{WORD}”|\*\*{WORD}\*\*)"
BARE = (
    r"(?:[A-Z]\b|[01]\b|(?i:yes|no|true|false|correct|incorrect|partial|unknown|tie|pass|fail)\b|[A-Z][A-Z_]{1,20}\b)"
)
SEPARATOR = r"(?: ?\([^()\n]{0,40}\))?(?:, and |, or |, | or | and | ?/ ?| ?\| ?)"
LABELS = re.compile(rf"(?P<list>(?:{QUOTED}(?:{SEPARATOR}{QUOTED}){{1,9}})|(?:{BARE}(?:{SEPARATOR}{BARE}){{1,9}}))")
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

WHY = re.compile(
    r"(?i)\b(?:template|step[- ]by[- ]step|explain\w*|explanations?|reason(?:s|ing)?|rationale|justif\w+)\b"
)
"""What asks for more than a number."""

ONLY_NUMBER = re.compile(
    r"(?i)\b(?:only|just|single)(?: (?:as|with|the|an?|your|single|final|overall|integer|numeric(?:al)?))*"
    r" (?:number|integer|score|rating|float|decimal|digit)(?: rating| score| value)?"
    r"(?= ?(?:[.,;:()\n]|\Z|from |between |in |on |and nothing))"
)
BRACKETED = re.compile(r"\[\[([A-Z](?:[<>=]{1,2}[A-Z])?|(?i:tie|yes|no))\]\]")
LINES = re.compile(
    r"(?i)\b(?:following|this|these)\b[^\n]{0,60}\b(?:format|fields|lines|template|structure)\b[^\n]{0,80}:?\n+"
    r"(?P<lines>(?:[^\w\n]{0,3}[A-Za-z][\w ]{0,24}: ?[^\n]+\n?){2,4})"
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
    judging = bool(JUDGING.search(_without_objects(whole)))
    if not judging and not INSTANCE.search(whole):
        return None
    for text in (system[:HEAD], whole):
        last = texts[-1][1] if texts and text is whole else text
        if ABOUT.search(last if len(last) < 2 * EDGE else last[:EDGE]):
            continue
        found = _one([*_objects(text, wants_object, judging), *(_listed(text) if judging else ())])
        if found is None and judging and not wants_object:
            found = _one(list(_labels(text))) or _one(list(_brackets(text))) or _closing(text) or _lines(text)
            found = found or (None if WHY.search(text) else _one(list(_only_numbers(text))))
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
    asked = OBJECT.search(text)
    lines = list(LISTED.finditer(text, asked.end())) if asked and not CODING.search(asked[0]) else []
    named = NAMED.search(text)
    if named and not lines and not CODING.search(named[0]) and JUDGING.search(text.replace(named[0], "")):
        lines = list(NAME.finditer(re.split(r"\.\s", named["names"])[0]))
    fields = {line["name"]: _typed(line["type"] or "") for line in lines}
    open_verdict = any(names_verdict(line["name"]) and not line["type"] for line in lines)
    if len(fields) > 1 and any(names_verdict(name) for name in fields) and not open_verdict:
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        yield Found("json", ", ".join(fields), schema=schema)


def _typed(words: str) -> Schema:
    """What the words behind a field's name allow."""
    if re.search("[\"'`]", words) and (labels := LABELS.search(words)):
        return {"enum": _labels_of(labels)}
    return _scalar(re.sub(r"\bstr\b", "", words))


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
    for match in re.finditer(r"[^\n.?]+[.?\n]?", text):
        sentence, before = match[0], text[max(0, match.start() - 400) : match.start()]
        if len(sentence) > 500 or sentence.endswith("?") or CODING.search(sentence) or not ONLY.search(sentence):
            continue
        asked = ANSWERS.search(sentence)
        if asked and (found := LABELS.search(sentence, asked.end())):
            labels = _labels_of(found)
            if not 2 <= len(set(labels)) == len(labels):
                continue
            if REASONS.search(before + sentence):
                yield _text("labels", labels, "before", own="\n\n")
            else:
                yield _text("labels", labels, "none")


def _labels_of(found: re.Match[str]) -> list[str]:
    return [one.strip("\"'`“”*") for one in re.findall(rf"{QUOTED}|{BARE}", found["list"])]


def _only_numbers(text: str) -> Iterator[Found]:
    """A number and nothing else, of a range that the words name."""
    for match in re.finditer(r"[^\n.?]+(?:\.\d[^\n.?]*)*[.?\n]?", text):
        sentence = match[0]
        if ANSWERS.search(sentence) and ONLY_NUMBER.search(sentence) and not CODING.search(sentence):
            options = _numbers(range_in(sentence) or range_in(text, JUDGED) or rubric_range(text))
            if options:
                yield _text("number", options, "none")._replace(what=f"{options[0]} … {options[-1]}")


def _brackets(text: str) -> Iterator[Found]:
    labels = list(dict.fromkeys(BRACKETED.findall(text)))
    if 2 <= len(labels) <= 8:
        yield _text("labels", [f"[[{label}]]" for label in labels], "before", lead="\n\n")


def _closing(text: str) -> Found | None:
    found = list(CLOSING.finditer(text))
    if len({(one["name"].lower(), one["value"].strip()) for one in found}) != 1:
        return None
    if not JUDGING.search(text.replace(found[0][0], "")):
        return None
    name, value, rest = found[0]["name"], found[0]["value"].strip(), found[0]["rest"]
    each = re.findall(rf"[\"'`]{re.escape(name)}: ?({WORD})[\"'`]", found[0][0])
    options = list(dict.fromkeys(each)) if len(set(each)) > 1 else _options(value) or _options(rest)
    return _text("line", options, "before", f"\n{name}: ", never=_any_value(name)) if options else None


def _lines(text: str) -> Found | None:
    """Named lines: the verdict and then the reason for it, or reasons and then the verdict."""
    matches = list(LINES.finditer(text))
    found = {one["lines"].strip() for one in matches}
    if len(found) != 1 or not JUDGING.search(text.replace(matches[0]["lines"], "")):
        return None
    lines = [line.strip(" -*\t").partition(":") for line in found.pop().split("\n")]
    names = [name for name, _, _ in lines]
    verdicts = [at for at, name in enumerate(names) if names_verdict(name)]
    if len(verdicts) != 1:
        return None
    verdict = verdicts[0]
    options = _options(lines[verdict][2]) or _numbers(rubric_range(text) or range_in(text))
    if not options:
        return None
    if verdict == len(names) - 1:
        return _text("line", options, "before", f"\n{names[-1]}: ", never=_any_value(names[-1]))
    if verdict or len(names) != 2:
        return None
    shown = _text("lines", options, "after", f"{names[0]}: ")
    assert shown.text is not None
    return shown._replace(what=", ".join(names), text={**shown.text, "follow": f"\n{names[1]}: "})


def _any_value(name: str) -> str:
    return rf"(?i:{re.escape(name)}): ?[A-Za-z0-9]"


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


def _text(
    kind: str, options: list[str], reasoning: str, own: str = "", *, lead: str = "", never: str | None = None
) -> Found:
    """A form in which the verdict is `own` and one of `options`, behind `lead` where it has to be forced. What is said
    before must not look like it."""
    choice = "|".join(re.escape(option) for option in sorted(options, key=len, reverse=True))
    longest = max(len((own + lead + option).encode()) for option in options)
    fields: dict[str, Any] = {"reasoning": reasoning, "verdict": f"{re.escape(own)}({choice})", "room": longest}
    if reasoning == "before":
        verdict = f"{own}({choice})".replace("\n", "\\n")
        fields |= {"verdict": verdict, "lead": lead, "never": never or verdict, "room": longest + 2}
    return Found(kind, " | ".join(options), text=fields)
