"""What a request's own words say of its reply where its schema leaves it open. Everything here is pure."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import chinese
from sections import IMPERATIVE, SENTENCE_END, told

Schema = dict[str, Any]
Range = tuple[float, float]
"""The least and the most."""

NUMBER = r"-?[0-9]{1,4}(?:\.[0-9]{1,3})?"
MEANING = r"(?: ?(?:\([^()\n]{0,60}\)|=[^,;.\n]{0,40}))?"
TO = r"(?:\s?(?:-|–|—|~|\.\.|…)\s?|,? (?:up )?(?:to|through) )"
RANGE = re.compile(rf"(?<![\w.-])(?P<low>{NUMBER})%?{MEANING}{TO}(?P<high>{NUMBER})(?![\w-]|\.[0-9])")
AND = re.compile(rf"(?i)\bbetween (?P<low>{NUMBER})%?{MEANING},? and (?P<high>{NUMBER})(?![\w-]|\.[0-9])")
BINARY = re.compile(r"(?<![\w.-])(?P<low>0)(?:{0},? or | ?/ ?)(?P<high>1)(?![\w-]|\.[0-9])".replace("{0}", MEANING))
EITHER = re.compile(
    r"\b(?:1 (?:if|when|for) [^.;]{1,120}\b0|0 (?:if|when|for) [^.;]{1,120}\b1) (?:if|when|for|otherwise)\b"
)
YES_NO = re.compile(r"\(1\)[^.\n]{1,30}\bor\b[^.\n]{1,30}\(0\)|\(0\)[^.\n]{1,30}\bor\b[^.\n]{1,30}\(1\)")
SEVERAL = re.compile(r"(?<![\w.-])(?P<values>[0-9]{1,3}(?:, ?[0-9]{1,3}){1,10},? or [0-9]{1,3})(?![\w-]|\.[0-9])")
INTERVAL = re.compile(rf"\[(?P<low>{NUMBER}), ?(?P<high>{NUMBER})\]")
SAID = r"[ :=]{0,3}(?:(?:is|of|score|value|rating)[ :=]{1,3}){0,2}"
LEAST = rf"(?:>=|≥|\bat least\b|\bmin(?:imum)?\b){SAID}(?P<low>{NUMBER})(?![\w-]|\.[0-9])"
MOST = rf"(?:<=|≤|\bat most\b|\bmax(?:imum)?\b){SAID}(?P<high>{NUMBER})(?![\w-]|\.[0-9])"
LIMITS = (
    re.compile(rf"(?i){LEAST}[^.;\n0-9]{{1,25}}{MOST}"),
    re.compile(rf"(?i){MOST}[^.;\n0-9]{{1,25}}{LEAST}"),
    re.compile(rf"(?<![\w.-])(?P<low>{NUMBER}) ?(?:<=?|≤) ?[^<≤.;\n0-9]{{1,25}}? ?{MOST}"),
)
JUDGED = re.compile(r"(?i)\b(scale|scor|rat(?:ed?|ing)\b|grad)")
SAID_OF_IT = re.compile(r"(?i)\b(?:scale|scor|rat(?:ed?|ing)\b|grad)(?:[^,;.!?\n]|\.\S)*\Z")
"""A cue with nothing between it and the range that could be what the range is of."""

STARS = re.compile("(?i) ?(?:stars|points)|[- ](?:rating|scale)")
LENGTH = re.compile(
    r"(?i)[ -](?:(?:short|brief|concise|full|complete|clear|simple|bullet) )?"
    r"(?:words?|sentences?|characters?|chars|tokens?|paragraphs?|lines?|bullets?|points? on|pages?)\b"
)
"""Behind a range: what makes it one of a text's length."""

BAND = re.compile(
    r"(?i) ?%?(?: points?)?(?: ?=|(?: of \w{1,20})? (?:means?|indicates?|denotes?|represents?|reflects?|corresponds?|"
    r"if|when|do(?:es)? not|"
    r"(?:is|are) (?!(?:used|allowed|valid|possible|permitted|expected|required|accepted|given|the)\b))\b|"
    r" (?!(?:points|stars|marks|levels|steps|scales|scores|across|always|this|its|has|was|plus|thus|towards|unless|"
    r"regardless|whereas)\b)[a-z]{2,20}s\b)"
)
"""Behind a range: what makes it the part of a scale that has one meaning, or a count of things."""

HEADED = re.compile(rf"(?m)^[^\w\n]{{0,8}}(?:from |between )?(?={NUMBER})")
"""Where a line begins with a range."""

VERDICTS = re.compile(
    r"(?i)(?<![a-z])(score|rating|rate|grade|graded|verdict|judge?ment|judge|evaluation|evaluate|assessment|result|pass|"
    r"passed|correct|correctness|criteria met|winner|preference|preferred|better|best|choice|decision|label|relevant|"
    r"relevance|faithful|faithfulness|attributed|hallucinated|ranking)s?(?![a-z])"
)
"""Names of fields and functions that speak of a verdict."""

VERDICT = re.compile(r"(?i)(^|_)(score|rating|grade|mark|points?|value|result|rank)(_|$)")
"""Names of fields that hold the verdict itself."""

SCORES = re.compile(r"(?im)^\W{0,6}score ([0-9]{1,2})\b ?[:=(–-]|(?<![\w.-])([0-9]{1,2}) ?= ?(?=[a-z])")
COUNT = {"zero": 0, "one": 1, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "nine": 9, "ten": 10}
COUNTED = rf"[0-9]{{1,3}}|{'|'.join(COUNT)}"
SCALE = re.compile(
    rf"(?i)\bout of (?P<most>{COUNTED})\b|(?<!\.)\b(?P<points>{COUNTED})[- ]point\b|"
    rf"\b(?P<low>zero|one) (?:to|through|and) (?P<high>{COUNTED})\b"
)
NO_NUMBER = ("string", "boolean", "array", "object", "null")
MOST_TEXT = 100_000
"""Characters of a request that are read for what its schema leaves open."""

STEP = (
    r"\b(?:steps?|increments?|intervals?|multiples) of (?:0?\.[0-9]{1,2}|(?:a )?half\b|1/2)|"
    r"(?<![\w.])0?\.[0-9]{1,2}[- ](?:points? )?(?:steps?|increments?|intervals?)\b"
)
REAL = re.compile(
    r"(?i)\bfloat|\bdecimal|\bprobabilit|\bfraction|\breal[- ]valued|\breal number|"
    rf"\bhalf[- ](?:points?|steps?|marks?)|\bhalves\b|{STEP}"
)
ALLOWED = re.compile(
    r"(?i)\bhalf[- ](?:points?|steps?|marks?)|\b(?:use|allow|give)[^.\n]{0,20} (?:decimals|halves)\b|"
    rf"\bdecimals? [^.\n]{{0,20}}allowed\b|{STEP}"
)
WHOLE = re.compile(
    r"(?i)\b(?:integers?|int|whole[- ](?:numbers?|points?|scores?|values?|digits?|steps?)|binary|"
    r"(?:no|without) (?:decimals?|fractions?)|(?<!decimal )digit(?! (?:after|behind|past|of)\b))\b|"
    r"(?<![\w.-])(?:0{0}(?:,? or | ?[/|] ?)1|1{0}(?:,? or | ?[/|] ?)0)(?![\w-]|\.[0-9])".replace("{0}", MEANING)
)
HUNDREDTHS = re.compile(rf"(?i)(?=[^.\n]{{0,40}}\.[0-9]{{2}})(?:{STEP})")
REPLY = re.compile(r"(?im)^\W{0,4}(?:example|sample)\b[^\n:]{0,30}:\s*(?=-?[0-9]{1,3}\.[0-9]{1,3}[ \t]*$)")
"""What stands before the example of a reply that is a number with a point."""

DECIMALS = re.compile(r"(?<![\w.])-?[0-9]{1,3}\.[0-9]{1,3}(?![\w.]?[0-9])")
DIGIT = re.compile("[0-9]")
"""What tells whether a score takes digits behind its point."""


def ranges(
    text: str, cue: re.Pattern[str] | None = None, *, bands: bool = True, lengths: bool = False
) -> Iterator[tuple[int, Range]]:
    """The ranges of numbers that the text names ("from 0.0 to 1.0", "1-5") and where, behind a cue if one is given;
    none of a text's length, nor the parts of a scale if no `bands` are wanted."""
    found = [match for pattern in (RANGE, AND, BINARY, INTERVAL, *LIMITS) for match in pattern.finditer(text)]
    found = [
        match
        for match in sorted(found, key=lambda one: one.start())
        if (lengths or not LENGTH.match(text, match.end())) and (bands or not BAND.match(text, match.end()))
    ]
    lows, highs = ({float(match[side]) for match in found} for side in ("low", "high"))
    for match in found:
        low, high = float(match["low"]), float(match["high"])
        near = (
            cue is None or cue.search(text, max(0, match.start() - 60), match.start()) or STARS.match(text, match.end())
        )
        if low < high <= 1000 and near and (bands or not (high + 1 in lows or low - 1 in highs)):
            yield match.start(), (low, high)


def range_in(text: str, *, lengths: bool = False) -> Range | None:
    """The first range of numbers that the text names."""
    return next((found for _, found in ranges(text, lengths=lengths)), None)


def rubric_ranges(text: str, cue: re.Pattern[str] | None = JUDGED) -> Iterator[Range]:
    """The range of a rubric that describes each score, on a line of its own or as in "1 = bad"; or what is said in
    words ("out of ten", "a 5-point scale"), near a cue if one is given."""
    values = sorted({int(match[1] or match[2]) for match in SCORES.finditer(text)})
    if len(values) > 1:
        yield values[0], values[-1]
    for said in SCALE.finditer(text):
        low, high = said["low"] or ("1" if said["points"] else "0"), said["most"] or said["points"] or said["high"]
        first, last = (float(COUNT.get(one.lower(), one)) for one in (low, high))
        near = not cue or cue.search(text, max(0, said.start() - 60), said.end() + 10)
        if first < last and near:
            yield first, last


def named_ranges(name: str, text: str) -> Iterator[Range]:
    """The ranges that are named behind a field's name, in the same sentence: the first behind each."""
    words = re.escape(name).replace("_", "[ _-]")
    for match in re.finditer(rf"(?i)(?<!\w){words}(?!\w)(?:(?![.;] )[^\n]){{0,100}}", text):
        if found := range_in(match[0].rstrip(".;")):
            yield found


def widest(found: Iterable[Range]) -> Range | None:
    """The range that holds all others; None where none does. Of the ranges in a text, one that stands in what is judged
    can so never make a scale narrower."""
    all_of_them = {*found}
    bounds = (min((low for low, _ in all_of_them), default=0.0), max((high for _, high in all_of_them), default=0.0))
    return bounds if bounds in all_of_them else None


def _first(texts: Iterable[str], read: Callable[[str], Iterable[Range]]) -> Range | None:
    """The widest range in the first of the texts that names any."""
    return next((widest(found) for text in texts if (found := {*read(text)})), None)


def _said_in(line: str, name: str | None) -> set[Range]:
    """The scales that a line names: what it asks of a field by name counts alone there, then what is said of a score in
    one breath, then what stands near one."""
    whole = {found for _, found in ranges(line, bands=False)}
    if not whole:
        return whole
    asked = (named_ranges(name, one) for one in SENTENCE_END.split(line) if name and IMPERATIVE.match(one))
    if mine := {found for one in asked for found in one} & whole:
        return mine
    spoken, near = ({found for _, found in ranges(line, cue, bands=False)} for cue in (SAID_OF_IT, JUDGED))
    return ({*named_ranges(name, line)} & whole if name else set()) | spoken or near


def _scales(text: str, name: str | None = None, others: Iterable[str] = ()) -> set[Range]:
    """The ranges of a text that can be the scale of its verdict: none of the `others`, which have names of their own.
    Parts of a scale count only where nothing else is named."""
    named = {*named_ranges(name, text)} if name else set()
    theirs = {found for other in others for found in named_ranges(other, text)}
    theirs -= (named - theirs) or named
    lines = dict.fromkeys(text.split("\n"))
    found = {one for line in lines if DIGIT.search(line) for one in _said_in(line, name)} - theirs
    near = {where: one for where, one in ranges(text, JUDGED, bands=False) if one not in theirs}
    starts = {match.end() for match in HEADED.finditer(text)}
    found |= {one for where, one in near.items() if where in starts} if found else {*near.values()}
    found |= {*rubric_ranges(text)} - theirs
    return found or named | {one for _, one in ranges(text, JUDGED)} - theirs


def scale_of(text: str, name: str | None = None) -> Range | None:
    """The range of the verdict that the text names, be it by its field's `name`."""
    return _first(told(text), lambda part: _scales(part, name))


def digits_of(found: Range | None, words: str) -> int:
    """How many digits behind its point a number of the range takes, by the words that name it. From 0 to 1 it has some
    unless they say otherwise."""
    if found is None or WHOLE.search(words):
        return 0
    low, high = found
    small = low >= -1 and high <= 1
    decimals = any(low <= float(one) <= high for one in DECIMALS.findall(words))
    if small or HUNDREDTHS.search(words):
        return 2
    return 1 if decimals or REAL.search(words) else 0


def said_of(found: Range | None, text: str) -> str:
    """The sentences of the text that name the range, or allow parts of a point, or are a reply that has some."""
    ends = [0, *(one.end() for one in SENTENCE_END.finditer(text)), len(text)]
    at = {where for where, one in ranges(text) if one == found} | {one.start() for one in ALLOWED.finditer(text)}
    at |= {one.end() for one in REPLY.finditer(text)}
    named = sorted({bisect_right(ends, where) for where in at})
    return " ".join(text[ends[one - 1] : ends[one]] for one in named)


def with_ranges(schema: Schema, *texts: str) -> Schema:
    """The schema with the ranges that its descriptions and the request's words name for numbers that it leaves
    open. What stands by no field's name is the range of the verdict, if only one field can be that. Of the texts the
    first that names any range for a field counts."""
    told_in = [part for text in texts for part in told(text[:MOST_TEXT])]
    open_fields = [name for name, field in _fields(schema).items() if _open_numbers(field, schema)]
    verdicts = [name for name in open_fields if VERDICT.search(name) or names_verdict(name)]
    numbers = {name for name, field in _fields(schema).items() if field.get("type") not in NO_NUMBER}

    def of(name: str, field: Schema) -> Schema:
        told = " ".join(str(part.get("description") or "") for part in (field, *_open_numbers(field, schema)))
        if values := SEVERAL.search(told):
            return {"enum": sorted({int(one) for one in re.findall("[0-9]+", values["values"])})}
        if EITHER.search(told) or (verdicts == [name] and any(map(YES_NO.search, told_in))):
            return {"enum": [0, 1]}
        found = range_in(told, lengths=True) or next(rubric_ranges(told, None), None)
        if not found and verdicts == [name]:
            found = _first(told_in, lambda text: _scales(text, name, numbers - {name}))
        elif not found:
            found = _first(told_in, lambda text: named_ranges(name, text))
        return _bounds(found)

    ranges = {name: of(name, field) for name, field in _fields(schema).items() if _open_numbers(field, schema)}
    filled: Schema = _filled(schema, {name: found for name, found in ranges.items() if found}, schema)
    return filled


BRANCHES = ("anyOf", "oneOf", "allOf")
SET = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"}


def _unfolded(field: Any, root: Schema, within: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
    """The field with the definition that it names written out, and the definitions that it then stands in; nothing
    where that is one of these."""
    while isinstance(field, dict) and "$ref" in field:
        name = str(field["$ref"])
        if name in within:
            return {}, within
        rest = {key: value for key, value in field.items() if key != "$ref"}
        within, field = (*within, name), {**(_named(field, root) or {}), **rest}
    return (field if isinstance(field, dict) else {}), within


def _has_number(field: Schema) -> bool:
    types = field.get("type")
    return not SET & field.keys() and bool({"integer", "number"} & set(types if isinstance(types, list) else [types]))


def _open_numbers(field: Any, root: Schema, within: tuple[str, ...] = ()) -> list[Schema]:
    """The parts of a field that are numbers without limits: itself, or what its branches and references come to, as
    where it may be null."""
    field, within = _unfolded(field, root, within)
    if SET & field.keys():
        return []
    branches = [part for key in BRANCHES for part in field.get(key) or []]
    found = [number for part in branches for number in _open_numbers(part, root, within)]
    return [field, *found] if _has_number(field) else found


def _narrowed(field: Any, bounds: Schema, root: Schema, within: tuple[str, ...] = ()) -> Any:
    """The field with these bounds for the numbers that it leaves open."""
    if not _open_numbers(field, root, within):
        return field
    field, within = _unfolded(field, root, within)
    branched = {key: [_narrowed(part, bounds, root, within) for part in field[key]] for key in BRANCHES if key in field}
    if not _has_number(field):
        return {**field, **branched}
    nullable = "enum" in bounds and "null" in field["type"]
    return {**field, **branched, **bounds} | ({"enum": [*bounds["enum"], None]} if nullable else {})


def _fields(schema: Any) -> dict[str, Schema]:
    """The properties of all objects in the schema, by name."""
    found: dict[str, Schema] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            properties = one.get("properties")
            if isinstance(properties, dict):
                found |= {name: field for name, field in properties.items() if isinstance(field, dict)}
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def _filled(schema: Any, ranges: dict[str, Schema], root: Schema) -> Any:
    """The schema with these ranges for the open numbers of these names."""
    if not ranges:
        return schema
    if isinstance(schema, list):
        return [_filled(one, ranges, root) for one in schema]
    if not isinstance(schema, dict):
        return schema
    filled = {}
    for key, value in schema.items():
        filled[key] = value if key in ("enum", "const", "default", "examples") else _filled(value, ranges, root)
    properties = filled.get("properties")
    if isinstance(properties, dict):
        filled["properties"] = {
            name: _narrowed(field, ranges[name], root) if name in ranges else field
            for name, field in properties.items()
        }
    return filled


def _bounds(found: Range | None) -> Schema:
    if found is None:
        return {}
    low, high = (int(value) if value == int(value) else value for value in found)
    return {"minimum": low, "maximum": high}


def names_verdict(name: str) -> bool:
    """Whether the name of a field or function speaks of a verdict."""
    return bool(chinese.VERDICT.search(name) or VERDICTS.search(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)))


def with_fields(schema: Schema, known: dict[str, Schema]) -> Schema:
    """The schema with what the request's example says of texts and numbers that its properties leave open."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    filled = {}
    for name, field in properties.items():
        open_text = isinstance(field, dict) and field.get("type") == "string" and not OPEN & field.keys()
        told = known.get(name, {})
        limits: Schema = {key: told[key] for key in ("enum", "minimum", "maximum") if key in told}
        if open_text and all(isinstance(one, str) for one in told.get("enum", [0])):
            filled[name] = {**field, **limits}
        else:
            filled[name] = _narrowed(field, limits, schema) if "minimum" in told else field
    return {**schema, "properties": filled}


def with_verdict(schema: Schema) -> Schema:
    """The schema with what names a verdict required, or all that there is, where it requires nothing at all, and with
    at least one verdict in its lists of them: a reply may not leave out what it is asked for."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    lists = {
        name: {**field, "minItems": 1}
        for name, field in properties.items()
        if isinstance(field, dict) and field.get("type") == "array" and not {"minItems", "maxItems"} & field.keys()
        if any(map(names_verdict, (name, *_fields(_named(field.get("items"), schema)))))
    }
    schema = {**schema, "properties": {**properties, **lists}} if lists else schema
    if "required" in schema:
        return schema
    verdicts = [name for name in properties if names_verdict(name)] or list(properties)[:1] * (len(properties) == 1)
    whole = [name for name in verdicts if '"$ref": "#"' not in json.dumps(properties[name])]
    return {**schema, "required": whole} if whole else schema


def _named(schema: Any, root: Schema) -> Any:
    """The schema, or the definition that it only names."""
    name = schema.get("$ref") if isinstance(schema, dict) else None
    kind, _, key = name.removeprefix("#/").partition("/") if isinstance(name, str) else ("", "", "")
    return (root.get(kind) or {}).get(key) if key else schema


def without_braces(schema: Any) -> Any:
    """The schema with no braces in the texts that it leaves open: who looks for an object in a free reply often only
    counts them."""
    if isinstance(schema, list):
        return [without_braces(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {
        key: value if key in ("enum", "const", "default") else without_braces(value) for key, value in schema.items()
    }
    return inner | {"pattern": NO_BRACES} if schema.get("type") == "string" and not OPEN & schema.keys() else inner


NO_BRACES = "^[^{}]*$"
OPEN = {"enum", "const", "pattern", "format", "maxLength"}
