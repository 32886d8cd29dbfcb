"""The range of a verdict that words name, and a client's own schema filled with what its words say of its fields.

Everything here is pure.
"""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import chinese
from schemas import Fill

Schema = dict[str, Any]
Range = tuple[float, float]
"""The least and the most."""

NUMBER = r"-?[0-9]{1,4}(?:\.[0-9]{1,3})?"
NO_MORE = r"(?![\w-]|\.[0-9])"
MEANING = r"%?(?: ?(?:\([^()\n]{0,60}\)|=[^,;.\n]{0,40}))?"
LEAST = rf"(?:>=|≥|\bat least|\bmin(?:imum)?)[a-z :=]{{1,16}}(?P<low>{NUMBER})"
MOST = rf"(?:<=|≤|\bat most|\bmax(?:imum)?)[a-z :=]{{1,16}}(?P<high>{NUMBER})"
RANGES = [
    re.compile(rf"(?i){pattern}{NO_MORE}")
    for pattern in (
        rf"(?<![\w.-])(?P<low>{NUMBER}){MEANING}(?:\s?(?:-|–|—|~|\.\.)\s?|,? (?:up )?(?:to|through) )"
        rf"(?P<high>{NUMBER})",
        rf"\bbetween (?P<low>{NUMBER}){MEANING},? and (?P<high>{NUMBER})",
        rf"(?<![\w.-])(?P<low>0){MEANING}(?:,? or | ?/ ?)(?P<high>1)",
        rf"\[(?P<low>{NUMBER}), ?(?P<high>{NUMBER})(?=\])",
        rf"{LEAST}[^.;\n0-9]{{1,25}}{MOST}",
        rf"{MOST}[^.;\n0-9]{{1,25}}{LEAST}",
        rf"(?<![\w.-])(?P<low>{NUMBER}) ?(?:<=?|≤) ?[a-z ]{{1,25}}{MOST}",
    )
]
NO_SCALE = re.compile(
    r"(?i)[ -](?:(?:short|brief|concise|full|complete|clear|simple) )?"
    r"(?:words?|sentences?|characters?|tokens?|paragraphs?|lines?|bullets?|pages?)\b|"
    r" ?%?(?: points?)?(?: ?=|(?: of \w{1,20})? (?:means?|indicates?|if|when|do(?:es)? not|(?:is|are) (?!used|"
    r"allowed))\b|"
    r" (?!(?:points|stars|scales|scores|this|its|plus|across)\b)[a-z]{2,20}s\b)"
)
"""Behind a range: what makes it a length, a count of things, or the part of a scale that has one meaning."""

JUDGED = re.compile(r"(?i)\b(?:scale|scor|rat(?:ed?|ing)\b|grad)")
SPOKEN = re.compile(rf"{JUDGED.pattern}(?:[^,;.!?\n]|\.\S|:\n)*\Z")
"""A cue with nothing between it and the range that could be what the range is of."""

STARS = re.compile("(?i) ?(?:stars|points)|[- ](?:rating|scale)")
SCORES = re.compile(r"(?im)^\W{0,6}score ([0-9]{1,2})\b ?[:=(–-]|(?<![\w.-])([0-9]{1,2}) ?= ?(?=[a-z])")
COUNT = {"zero": 0, "one": 1, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "nine": 9, "ten": 10}
IN_WORDS = re.compile(
    rf"(?i)\bout of (?P<most>[0-9]{{1,3}}|{'|'.join(COUNT)})\b|(?<!\.)\b(?P<points>[0-9]{{1,3}}|"
    rf"{'|'.join(COUNT)})[- ]point\b|"
    rf"\b(?P<low>zero|one) (?:to|through|and) (?P<high>{'|'.join(COUNT)})\b"
)
SEVERAL = re.compile(r"(?<![\w.-])(?P<values>[0-9]{1,3}(?:, ?[0-9]{1,3}){1,10},? or [0-9]{1,3})(?![\w-]|\.[0-9])")
EITHER = re.compile(
    r"\b(?:1 (?:if|when|for) [^.;]{1,120}\b0|0 (?:if|when|for) [^.;]{1,120}\b1) (?:if|when|for|otherwise)\b"
)
YES_NO = re.compile(r"\(1\)[^.\n]{1,30}\bor\b[^.\n]{1,30}\(0\)|\(0\)[^.\n]{1,30}\bor\b[^.\n]{1,30}\(1\)")
WHOLE = re.compile(
    r"(?i)\b(?:integers?|int|whole[- ](?:numbers?|points?|scores?|values?)|binary|(?:no|without) decimals?|"
    r"(?<!decimal )digit(?! (?:after|behind)\b))\b|"
    r"(?<![\w.-])(?:0{0}(?:,? or | ?[/|] ?)1|1{0}(?:,? or | ?[/|] ?)0)(?![\w-]|\.[0-9])".replace("{0}", MEANING)
)
REAL = re.compile(
    r"(?im)^\W{0,4}(?:example|sample)\b[^\n:]{0,30}:\s{0,3}[0-9]{1,3}\.[0-9]{1,3}[ \t]*$|\bfloat|\bdecimal|"
    r"\breal number|\bhalf[- ](?:points?|steps?)|"
    r"(?:steps?|increments?) of 0?\.[0-9]|0?\.[0-9]{1,2}[- ](?:points? )?(?:steps?|increments?)"
)
VERDICTS = re.compile(
    r"(?i)(?<![a-z])(score|rating|rate|grade|graded|verdict|judge?ment|judge|evaluation|evaluate|assessment|"
    r"result|pass|"
    r"passed|correct|correctness|criteria met|winner|preference|preferred|better|best|choice|decision|label|relevant|"
    r"relevance|faithful|faithfulness|attributed|hallucinated|ranking)s?(?![a-z])"
)
"""Names of fields and functions that speak of a verdict."""


def names_verdict(name: str) -> bool:
    """Whether the name of a field or function speaks of a verdict."""
    return bool(chinese.VERDICT.search(name) or VERDICTS.search(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)))


def ranges(text: str, *, counts: bool = False) -> Iterator[tuple[re.Match[str], Range]]:
    """The ranges of numbers that the text names; what counts something else than a score only if that is wanted."""
    for pattern in RANGES:
        for match in pattern.finditer(text):
            low, high = float(match["low"]), float(match["high"])
            if low < high <= 1000 and (counts or not NO_SCALE.match(text, match.end())):
                yield match, (low, high)


def range_in(text: str, *, counts: bool = False) -> Range | None:
    """The first range of numbers that the text names, in figures or in words."""
    named = min(ranges(text, counts=counts), key=lambda each: each[0].start(), default=None)
    return named[1] if named else next(iter(_rubric(text)), None)


def _rubric(text: str) -> Iterator[Range]:
    """The range of a rubric that describes each score, or what is said in words ("out of ten", "a 5-point scale")."""
    values = sorted({int(match[1] or match[2]) for match in SCORES.finditer(text)})
    if len(values) > 1:
        yield values[0], values[-1]
    for match in IN_WORDS.finditer(text):
        low = match["low"] or ("1" if match["points"] else "0")
        first, last = (
            float(COUNT.get(word.lower(), word)) for word in (low, match["most"] or match["points"] or match["high"])
        )
        if first < last:
            yield first, last


def scale_of(text: str, name: str = "", others: tuple[str, ...] = ()) -> Range | None:
    """The range of the verdict that the text names: what stands by the field's `name`, or is said of a score; of
    several the one that holds all others, or none. What stands by the names of `others` is theirs."""
    mine = {*by_name(name, text)} if name else set[Range]()
    theirs = {found for other in others for found in by_name(other, text)}
    mine = mine - theirs or mine
    theirs -= mine
    spoken, near = set[Range](), set[Range]()
    for match, found in ranges(text):
        before = text[max(0, match.start() - 60) : match.start()]
        if found not in theirs and SPOKEN.search(before):
            spoken.add(found)
        elif found not in theirs and (JUDGED.search(before) or STARS.match(text, match.end())):
            near.add(found)
    whole = spoken | mine or near or ({*_rubric(text)} if JUDGED.search(text) else set())
    bounds = (min((low for low, _ in whole), default=0.0), max((high for _, high in whole), default=0.0))
    return bounds if bounds in whole else None


def by_name(name: str, text: str) -> Iterator[Range]:
    """The first range that stands behind each mention of a field, in the same sentence."""
    for mention in re.finditer(rf"(?i)(?<!\w){re.escape(name).replace('_', '[ _-]')}(?!\w)", text):
        sentence = re.split(r"[.;!?]\s|\n", text[mention.end() : mention.end() + 100])[0]
        first = min(ranges(sentence), key=lambda each: each[0].start(), default=None)
        if first:
            yield first[1]


def digits_of(found: Range | None, words: str) -> int:
    """How many digits behind its point a number of the range takes: from 0 to 1 it has some unless the words say
    otherwise."""
    if found is None or WHOLE.search(words):
        return 0
    fine = re.search(r"\.[0-9]{2}[- ](?:point|step|increment)", words)
    return 2 if (found[0] >= -1 and found[1] <= 1) or fine else int(bool(REAL.search(words)))


def bounds_of(found: Range | None) -> Schema:
    """The range as keywords of a schema."""
    if found is None:
        return {}
    low, high = (int(value) if value == int(value) else value for value in found)
    return {"minimum": low, "maximum": high}


LIMITED = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"}


def filler(schema: Schema, texts: tuple[str, ...], known: dict[str, Schema], no_braces: bool) -> Fill:
    """What descriptions, an example's fields (`known`) and the texts say of what a schema leaves open. A range by no
    field's name is the verdict's, if only one field can be that; of the texts the first that names any counts. Who
    looks for an object in a free reply often only counts its braces: there texts have none (`no_braces`)."""
    fields = _fields(schema)
    others = tuple(
        name for name, field in fields.items() if field.get("type") not in ("string", "boolean", "array", "object")
    )
    numbers = [name for name in others if not LIMITED & fields[name].keys()]
    verdicts = [name for name in numbers if names_verdict(name)]

    def fill(name: str, description: str, kind: str) -> Schema:
        said = known.get(name, {})
        if kind == "string":
            labels = said.get("enum", [0])
            free = {"pattern": "^[^{}]*$"} if no_braces else {}
            return {"enum": labels} if all(isinstance(label, str) for label in labels) else free
        if values := SEVERAL.search(description):
            return {"enum": sorted({int(value) for value in re.findall("[0-9]+", values["values"])})}
        if EITHER.search(description) or (verdicts == [name] and any(map(YES_NO.search, texts))):
            return {"enum": [0, 1]}
        found = range_in(description, counts=True)
        if not found and "minimum" in said:
            return {key: said[key] for key in ("minimum", "maximum")}
        if not found and verdicts == [name]:
            hers = tuple(other for other in others if other != name)
            found = next(filter(None, (scale_of(text, name, hers) for text in texts)), None)
        elif not found:
            found = next((each for text in texts for each in by_name(name, text)), None)
        return bounds_of(found)

    return functools.cache(fill)


def _fields(schema: Any) -> dict[str, Schema]:
    """The properties of all objects in the schema, by name."""
    found: dict[str, Schema] = {}
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and isinstance(properties := part.get("properties"), dict):
            found |= {name: field for name, field in properties.items() if isinstance(field, dict)}
        waiting += list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []
    return found


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
        if any(map(names_verdict, (name, *_fields(_definition(field.get("items"), schema)))))
    }
    schema = {**schema, "properties": {**properties, **lists}} if lists else schema
    if "required" in schema:
        return schema
    verdicts = [name for name in properties if names_verdict(name)] or list(properties)[:1] * (len(properties) == 1)
    whole = [name for name in verdicts if '"$ref": "#"' not in json.dumps(properties[name])]
    return {**schema, "required": whole} if whole else schema


def _definition(schema: Any, root: Schema) -> Any:
    """The schema, or the definition that it only names."""
    name = schema.get("$ref") if isinstance(schema, dict) else None
    kind, _, key = name.removeprefix("#/").partition("/") if isinstance(name, str) else ("", "", "")
    return (root.get(kind) or {}).get(key) if key else schema
