"""The values that words allow: ranges of numbers, lists of labels, and so what a client's own schema leaves open.

Everything here is pure.
"""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import chinese
from chinese import HAN
from schemas import Fill

Schema = dict[str, Any]
Range = tuple[float, float]
"""The least and the most."""

NUMBER = r"-?[0-9]{1,4}(?:\.[0-9]{1,3})?"
MEANING = r"%?(?: ?(?:\([^()\n]{0,60}\)|=[^,;.\n]{0,40}))?"
RANGES = [
    re.compile(rf"(?i){pattern}(?![\w-]|\.[0-9])")
    for pattern in (
        rf"(?<![\w.-])(?P<low>{NUMBER}){MEANING}(?:\s?[-–—~到至]\s?|,? (?:up )?(?:to|through) )(?P<high>{NUMBER})",
        rf"\bbetween (?P<low>{NUMBER}){MEANING},? and (?P<high>{NUMBER})",
        rf"(?<![\w.-])(?P<low>0){MEANING}(?:,? or | ?/ ?)(?P<high>1)",
        rf"\[(?P<low>{NUMBER}), ?(?P<high>{NUMBER})(?=\])",
    )
]
NO_SCALE = re.compile(
    r"(?i)[ -](?:(?:short|brief|concise|full|clear|simple) )?(?:words?|sentences?|characters?|tokens?|lines?)\b|"
    r" ?%?(?: points?)?(?: ?=|(?: of \w{1,20})? (?:means?|indicates?|if|when|do(?:es)? not|(?:is|are) (?!used))\b|"
    r" (?!(?:points|stars|scales|scores|this|its|plus|across)\b)[a-z]{2,20}s\b)"
)
"""Behind a range: what makes it a length, a count of things, or the part of a scale that has one meaning."""

JUDGED = r"(?i)\b(?:scale|scor|rat(?:ed?|ing)\b|grad)"
SPOKEN = re.compile(rf"{JUDGED}(?:[^,;.!?\n]|\.\S|:\n)*\Z")
"""A cue with nothing between it and the range that could be what the range is of."""

STARS = re.compile("(?i) ?(?:stars|points)|[- ](?:rating|scale)")
RUBRIC = re.compile(r"(?im)^\W{0,6}score ([0-9]{1,2})\b ?[:=(–-]|(?<![\w.-])([0-9]{1,2}) ?= ?(?=[a-z])")
ZERO_OR_ONE = re.compile(
    r"\b(?:1 (?:if|when|for) [^.;]{1,120}\b0|0 (?:if|when|for) [^.;]{1,120}\b1) (?:if|when|for|otherwise)\b|"
    r"\(1\)[^.\n]{1,30}\bor\b[^.\n]{1,30}\(0\)|\(0\)[^.\n]{1,30}\bor\b[^.\n]{1,30}\(1\)"
)
OUT_OF = re.compile(r"(?i)\bout of ([0-9]{1,3})\b")
POINTS = re.compile(r"(?i)(?<!\.)\b([0-9]{1,2})[- ]point\b")
WHOLE = re.compile(
    r"(?i)\b(?:integers?|int|whole[- ](?:numbers?|points?|scores?|values?)|binary|(?:no|without) decimals?|"
    r"(?<!decimal )digit(?! (?:after|behind)\b))\b|(?<![\w.-])(?:0{0}(?:,? or | ?[/|] ?)1|1{0}(?:,? or | ?[/|] ?)0)"
    r"(?![\w-]|\.[0-9])".replace("{0}", MEANING)
)
REAL = re.compile(
    r"(?im)^\W{0,4}(?:example|sample)\b[^\n:]{0,30}:\s{0,3}[0-9]{1,3}\.[0-9]{1,3}[ \t]*$|\bfloat|\bdecimal|"
    r"\breal number|\bhalf[- ](?:points?|steps?)|(?:steps?|increments?) of 0?\.[0-9]"
)
VERDICTS = re.compile(
    r"(?i)(?<![a-z])(score|rating|rate|grade|graded|verdict|judge?ment|judge|evaluation|evaluate|assessment|result|pass|"
    r"passed|correct|correctness|criteria met|winner|preference|preferred|better|best|choice|decision|label|relevant|"
    r"relevance|faithful|faithfulness|attributed|hallucinated|ranking)s?(?![a-z])"
)


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
    """The range of a rubric that describes each score, or of "out of 10" and "a 5-point scale"."""
    values = sorted({int(match[1] or match[2]) for match in RUBRIC.finditer(text)})
    if len(values) > 1:
        yield values[0], values[-1]
    for low, pattern in ((0, OUT_OF), (1, POINTS)):
        yield from ((low, float(match[1])) for match in pattern.finditer(text))


def scale_of(text: str, name: str = "", others: tuple[str, ...] = ()) -> Range | None:
    """The range of the verdict that the text names: what stands by the field's `name`, or is said of a score; of
    several the one that holds all others, or none. What stands by the names of `others` is theirs."""
    mine = {*by_name(name, text)} if name else set[Range]()
    theirs = {each for other in others for each in by_name(other, text)}
    mine = mine - theirs or mine
    spoken = {
        each
        for match, each in ranges(text)
        if each not in theirs - mine
        and (SPOKEN.search(text[max(0, match.start() - 60) : match.start()]) or STARS.match(text, match.end()))
    }
    whole = spoken | mine or ({*_rubric(text)} if re.search(JUDGED, text) else set())
    bounds = (min((low for low, _ in whole), default=0.0), max((high for _, high in whole), default=0.0))
    return bounds if bounds in whole else None


def by_name(name: str, text: str) -> Iterator[Range]:
    """The first range that stands behind each mention of a field, in the same sentence."""
    for mention in re.finditer(rf"(?i)(?<!\w){re.escape(name).replace('_', '[ _-]')}(?!\w)", text):
        sentence = re.split(r"[.;!?]\s|\n", text[mention.end() : mention.end() + 100])[0]
        first = min(ranges(sentence), key=lambda each: each[0].start(), default=None)
        if first:
            yield first[1]


def digits_of(bounds: Range | None, words: str) -> int:
    """How many digits behind its point a number of the range takes: from 0 to 1 it has some unless the words say
    otherwise."""
    if bounds is None or WHOLE.search(words):
        return 0
    return 2 if bounds[0] >= -1 and bounds[1] <= 1 else int(bool(REAL.search(words)))


def numbers(bounds: Range | None, words: str) -> list[str]:
    """All numbers of a range, with as many digits as its words allow; none of a wide one."""
    if not bounds or bounds[1] > 100 or not all(value == int(value) for value in bounds):
        return []
    low, high = map(int, bounds)
    digits = digits_of(bounds, words) if high - low <= 100 else 0
    ten = 10**digits
    exact = [f"{step / ten:.{digits}f}" for step in range(low * ten, high * ten + 1)]
    shorter = [value.rstrip("0").rstrip(".") for value in exact if digits and value.endswith("0")]
    return list(dict.fromkeys([*exact, *shorter]))


WORD = rf"(?:N/A|[A-Za-z0-9{HAN}][A-Za-z0-9{HAN}_ ()+-]{{0,23}})"
QUOTED = rf"(?:\"{WORD}\"|'{WORD}'|`{WORD}`|\*\*{WORD}\*\*)"
CAPITALS = r"(?!(?:ONLY|WITH|OR|AND|AS|IN|EITHER)\b)[A-Z]{2,20}\b"
BARE = (
    rf"(?:N/A\b|[A-Z]\b|-?[0-9]{{1,3}}(?:\.[0-9]{{1,2}})?(?![0-9]|\.[0-9])|{CAPITALS}|"
    r"(?i:yes|no|true|false|(?:in)?correct|partial(?:ly)?|unknown|tie|pass|fail|unsure|unclear|maybe|neither|none|"
    r"both|equal)\b)"
)
NO_MORE = (
    r"(?i:no (?:explanation|other|additional|extra|further|more|text|words|punctuation|need|preference)|nothing|do not|"
    r"don['’]t|with|without)\b"
)
NEXT = rf"(?: ?\([^()\n]{{0,40}}\))?(?:, and |, or |, | or | and | ?/ ?| ?\| ?)(?!{NO_MORE})"
LIST = re.compile(
    rf"(?<![\w./+-])(?:{QUOTED}(?:{NEXT}{QUOTED}){{1,14}}|"
    rf"{BARE}(?:{NEXT}(?:{CAPITALS} {CAPITALS}|{BARE}|{QUOTED})){{1,14}})"
)
ITEM = re.compile(rf"{QUOTED}|{CAPITALS} {CAPITALS}|{BARE}")
LEADS = re.compile(
    r"(?i)(?:\A[\"'`]?|[\[(]|\b(?:only|just|exactly|strictly|with|either|be|is|of|as|in|a|output|return|respond|reply|"
    r"answer|say|print|write|give|word|letters?|character|digit|number|options?|labels?|verdict|following)),?:? ?\Z"
)
"""Before a list: what it does not go on from."""

STOPS = re.compile(
    rf"(?: ?\([^()\n]{{0,40}}\))?[\"'`]?(?:\s*\Z|[.;:!?)\n\]](?![\w.])|,? {NO_MORE}|,? (?:and (?:nothing|repeat)|on)\b|"
    r" (?:only|alone|if|when|for|as|in|at|to|by|based|depending|according|here|from|that|which|is|are|answer|ONLY)\b)"
)
"""Behind a list: where it ends."""

OTHERWISE = re.compile(rf"(?i:\b(?:or|otherwise|else)\b)[^.\n\"'`]{{0,40}}(?:{QUOTED}| [A-Z]\b|N/A\b)")


MARKED = re.compile(r"\[\[([^\[\]\n#]{1,30})\]\]")
LABEL = re.compile(r"[A-Z]{1,12}(?:[<>=]{1,2}[A-Z])?|(?i:tie|yes|no|neither|equal|draw|both)")
PLACEHOLDER = re.compile(
    r"(?i:(?:(?:your|the|final) ){0,2}(?:scores?|rating|grade|verdict|judge?ment|decision|preference|winner|choice|"
    r"assessment|answer|letter|number|option))|X|n|[^A-Za-z]*"
)


def labels_in(text: str, start: int = 0) -> list[str] | None:
    """The labels of the first list of a text behind `start`; none at all where what stands around it is not understood:
    a reply could not say what it also allows. None where no labels are listed."""
    for match in LIST.finditer(text, start):
        words = re.sub(rf"({QUOTED})| ?\([^()\n]{{0,40}}\)", r"\1", match[0])
        labels = [label.strip("\"'`*") for label in ITEM.findall(words)]
        numeric = all(re.fullmatch(r"-?[0-9.]+", label) for label in labels)
        if numeric and not ({"0", "1"} & {*labels} and re.search(r"or|\||^0 ?/ ?1$", words)):
            continue
        before, behind = re.split(r"[.!?]\s|\n", text[: match.start()])[-1], text[match.end() :]
        other = OTHERWISE.search(re.split(r"[.!?]\s|\n", behind)[0])
        unknown = other and not any(label in other[0] for label in labels)
        understood = LEADS.search(before) and STOPS.match(behind) and len({*labels}) == len(labels)
        return labels if understood and not unknown else []
    return None


def choices(words: str, text: str, name: str = "") -> list[str]:
    """The values that a placeholder or the words about it allow, or else the numbers of the scale that the whole text
    names; none at all where they are not understood."""
    marked = [value for value in dict.fromkeys(MARKED.findall(words)) if not PLACEHOLDER.fullmatch(value)]
    if marked:
        return marked if len(marked) > 1 and all(map(LABEL.fullmatch, marked)) else []
    if bounds := range_in(words):
        return numbers(bounds, text)
    if (labels := labels_in(words)) is not None:
        return labels
    quoted = list(dict.fromkeys(re.findall(rf"[\"'`]({WORD})[\"'`]", words)))
    return quoted if 2 <= len(quoted) <= 4 else numbers(scale_of(text, name), text)


def filler(schema: Schema, texts: tuple[str, ...], shown: dict[str, Schema], no_braces: bool) -> Fill:
    """What descriptions, an example's fields (`shown`) and the texts say of what a schema leaves open. A range by no
    field's name is the verdict's, if only one field can be that; of the texts the first that names any counts. Who
    looks for an object in a free reply often only counts its braces: there texts have none (`no_braces`)."""
    fields = _fields(schema)
    words = ("string", "boolean", "array", "object")
    numeric = tuple(name for name, field in fields.items() if field.get("type") not in words)
    limited = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"}
    free = {"pattern": "^[^{}]*$"} if no_braces else {}
    verdicts = [name for name in numeric if names_verdict(name) and not limited & fields[name].keys()]

    def fill(name: str, description: str, kind: str) -> Schema:
        field = shown.get(name, {})
        if kind == "string":
            labels = [label for label in field.get("enum", []) if isinstance(label, str)]
            return {"enum": labels} if labels else free
        if values := _of_description(description):
            return values
        if "minimum" in field:
            return _limits((field["minimum"], field["maximum"]))
        if verdicts != [name]:
            return _limits(next((each for text in texts for each in by_name(name, text)), None))
        others = tuple(other for other in numeric if other != name)
        zero_or_one = any(map(ZERO_OR_ONE.search, texts))
        bounds = next(filter(None, (scale_of(text, name, others) for text in texts)), None)
        return {"enum": [0, 1]} if zero_or_one else _limits(bounds)

    return functools.cache(fill)


def _of_description(words: str) -> Schema:
    """What the description of a number says of its values."""
    if (values := labels_in(words)) and all(map(str.isdecimal, values)):
        return {"enum": [int(value) for value in values]}
    return {"enum": [0, 1]} if ZERO_OR_ONE.search(words) else _limits(range_in(words, counts=True))


def _limits(bounds: Range | None) -> Schema:
    if bounds is None:
        return {}
    low, high = (int(value) if value == int(value) else value for value in bounds)
    return {"minimum": low, "maximum": high}


def _fields(schema: Any) -> dict[str, Schema]:
    """The properties of all objects in the schema, by name."""
    fields: dict[str, Schema] = {}
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and isinstance(properties := part.get("properties"), dict):
            fields |= {name: field for name, field in properties.items() if isinstance(field, dict)}
        waiting += list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []
    return fields


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
        if any(map(names_verdict, (name, *_fields([field, schema.get("$defs") if "$ref" in str(field) else None]))))
    }
    schema = {**schema, "properties": {**properties, **lists}} if lists else schema
    if "required" in schema:
        return schema
    verdicts = [name for name in properties if names_verdict(name)] or list(properties)[:1] * (len(properties) == 1)
    whole = [name for name in verdicts if '"$ref": "#"' not in json.dumps(properties[name])]
    return {**schema, "required": whole} if whole else schema
