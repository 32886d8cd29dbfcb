"""Read the values that a text allows: ranges of numbers and lists of labels. All functions are pure."""

import functools
from collections.abc import Iterator
from re import escape
from typing import Any

import regex as re
from patterns import expand, pattern

Schema = dict[str, Any]
Range = tuple[float, float]

RANGES = [pattern(name, re.IGNORECASE) for name in ("range_to", "range_between", "range_binary")]
LENGTH = re.compile(r"(?i)[ -](?:words?|sentences?|characters?|tokens?|lines?)\b")
"""Words after a range that make it a length instead of a scale."""

SPOKEN = pattern("spoken")
"""Words before a range that make it a scale: a cue such as "score", or the name of a criterion, directly before it."""

RUBRIC = re.compile(r"(?im)^\W{0,6}score ([0-9]{1,2})\b ?[:=(–-]")
BINARY = pattern("binary")
WHOLE = re.compile(rf"(?i)\b{expand('whole')}\b|(?<![\w.-])(?:0(?: or |/)1|1(?: or |/)0)(?![\w-]|\.[0-9])")
REAL = re.compile(r"(?i)\bfloat|\bdecimal|\bhalf[- ](?:points?|steps?)|\bpartial (?:marks|points)|steps of 0?\.[0-9]")
VERDICTS = re.compile(rf"(?i)(?<![a-z]){expand('verdicts')}|{expand('verdicts_zh')}")


def is_verdict(name: str) -> bool:
    """Return True if the name of a field or function indicates a verdict.

    >>> is_verdict("final_score"), is_verdict("reason")
    (True, False)
    """
    return bool(VERDICTS.search(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)))


def ranges(text: str) -> Iterator[tuple[re.Match[str], Range]]:
    """Yield each number range (low, high) in the text with its match, except ranges of lengths."""
    for form in RANGES:
        for match in form.finditer(text):
            low, high = float(match["low"]), float(match["high"])
            # A length in words or tokens is no scale.
            if low < high <= 1000 and not LENGTH.match(text, match.end()):
                yield match, (low, high)


def find_range(text: str) -> Range | None:
    """Return the first number range (low, high) in the text, or None. Ranges of lengths are skipped.

    >>> find_range("in 50 to 100 words, from 1 to 5")
    (1.0, 5.0)
    """
    named = min(ranges(text), key=lambda pair: pair[0].start(), default=None)
    return named[1] if named else None


@functools.lru_cache(16)
def find_scale(text: str) -> Range | None:
    """Return the range of the score that the text asks for, or of the levels of its rubric, or None.

    If the text names more than one range for scores, return the one that contains all others, or None.
    """
    named = [(text[max(0, match.start() - 60) : match.start()], bounds) for match, bounds in ranges(text)]
    spoken = {bounds for before, bounds in named if SPOKEN.search(before)}
    # A rubric names its scale by its own lines.
    if not spoken:
        values = sorted(set(map(int, RUBRIC.findall(text))))
        return (values[0], values[-1]) if len(values) > 1 else None
    lows, highs = zip(*spoken, strict=True)
    widest = (min(lows), max(highs))
    return widest if widest in spoken else None


@functools.lru_cache(64)
def count_digits(bounds: Range | None, words: str) -> int:
    """Return the number of decimals for numbers in a range.

    It is 2 for ranges within -1..1, 1 if `words` mention decimals, else 0. Words such as "integer" make it 0 in any
    case.
    """
    # `1 or 0` and `binary` rule decimals out even from 0 to 1.
    if bounds is None or WHOLE.search(words):
        return 0
    return 2 if bounds[0] >= -1 and bounds[1] <= 1 else int(bool(REAL.search(words)))


def numbers(bounds: Range | None, words: str) -> list[str]:
    """Return all numbers of a range as strings, with the decimals that `words` allow.

    Return [] if `bounds` is None, goes above 100 or has ends that are not whole.
    """
    # A wide range is too much for the decoder to list.
    if not bounds or bounds[1] > 100 or not all(value == int(value) for value in bounds):
        return []
    low, high = map(int, bounds)
    values = list[str]()
    for digits in range(count_digits(bounds, words) + 1):
        values += [f"{step / 10**digits:.{digits}f}" for step in range(low * 10**digits, high * 10**digits + 1)]
    return values


def number_pattern(bounds: Range | None, decimals: bool) -> str:
    """Return a regular expression for the numbers in a range (None: 0 to 100).

    With `decimals` the numbers may have up to two decimals. Return "" if the range is too wide or its ends are not
    whole.
    """
    if bounds is None:
        return r"100(\.0{1,2})?|[1-9]?[0-9](\.[0-9]{1,2})?" if decimals else "100|[1-9]?[0-9]"
    whole = numbers(bounds, "integer")
    # Below 0 the decimals of a number count downwards: such a range is listed.
    if not whole or not decimals or bounds[0] < 0:
        return any_of(numbers(bounds, "float" if decimals else "integer"))
    return rf"({any_of(whole[:-1])})(\.[0-9]{{1,2}})?|{whole[-1]}(\.0{{1,2}})?"


def points_pattern(words: str, text: str) -> str:
    """Return a regular expression for the number that a reply has after a marker such as `[RESULT]`.

    Scale and decimals come from `words`, the prompt's text next to the marker, or else from the whole `text`. Without a
    scale the number is from 0 to 100, with decimals unless an integer is asked for.
    """
    bounds = find_range(words) or find_scale(text)
    near = words if WHOLE.search(words) or REAL.search(words) else text
    return number_pattern(bounds, decimals=bool(count_digits(bounds, near)) if bounds else not WHOLE.search(near))


def value_pattern(field: Schema) -> str:
    """Return a regular expression for a schema's values in Python's notation, "" for strings, lists and objects."""
    field, *null = field.get("anyOf", [field])
    pattern = any_of([*map(str, field.get("enum", (True, False) if field.get("type") == "boolean" else ()))])
    if field.get("type") in ("integer", "number"):
        bounds = (field["minimum"], field["maximum"]) if "minimum" in field else None
        pattern = number_pattern(bounds, decimals=field["type"] == "number")
    return f"{pattern}|None" if pattern and null else pattern


def escaped(text: str) -> str:
    """Return a regular expression that matches `text` literally. Line ends are not escaped."""
    return escape(text).replace("\\\n", "\n")


def any_of(values: list[str]) -> str:
    """Return a regular expression that matches any of `values` literally, the longest first."""
    return "|".join(map(escaped, sorted(values, key=len, reverse=True)))


QUOTED = expand("quoted")
LIST, ITEM = pattern("list"), pattern("item")
LEADS = re.compile(rf"(?i)(?:\A[\"'`]?|[\[(]|\b{expand('leads')}),?:? ?\Z")
"""Text before a list of labels after which the list is understood as the complete choice."""

STOPS = pattern("stops")
"""Text after a list of labels that shows that the list is complete."""

MARKED = re.compile(r"\[\[([^\[\]\n#]{1,30})\]\]")
LABEL = re.compile(r"[A-Z]{1,12}(?:[<>=]{1,2}[A-Z])?|(?i:tie|yes|no|neither|equal|draw|both)")
OUT_OF = re.compile(r"[^\n/]{1,16}?(?P<out> ?/ ?(?P<most>[2-9]|[0-9]{2,3}))(?![\w/]|\.[0-9])")
"""A placeholder or example of a score out of a maximum: `n/10`."""

PLACEHOLDER = re.compile(rf"(?i:(?:(?:your|final) )?{expand('values')})|X|n|[^A-Za-z]*")


def find_labels(text: str) -> list[str] | None:
    """Return the labels of the first list of labels in `text`, or None if there is no list.

    Return [] if the words around the list are not understood, because they may allow other labels.

    >>> find_labels("Answer with only 'yes' or 'no'.")
    ['yes', 'no']
    """
    for match in LIST.finditer(text):
        words = re.sub(rf"({QUOTED})| ?\([^()\n]{{0,40}}\)", r"\1", match[0])
        labels = [label.strip("\"'`*") for label in ITEM.findall(words)]
        numeric = all(re.fullmatch(r"-?[0-9.]+", label) for label in labels)
        # Numbers with commas are more often an enumeration than a choice.
        if numeric and not ({"0", "1"} & {*labels} and re.search(r"or|\||^0 ?/ ?1$", words)):
            continue
        before = re.split(r"[.!?]\s|\n", text[: match.start()])[-1]
        understood = LEADS.search(before) and STOPS.match(text, match.end()) and len({*labels}) == len(labels)
        return labels if understood else []
    return None


def choices(words: str, text: str) -> list[str]:
    """Return the values that `words` allow: a client's placeholder such as `[rating]`, or the text that describes it.

    If the words name no values, return the numbers of the scale in the whole `text`. If the words write a score as
    "7/10", so do the values. Return [] if the words are not understood.
    """
    # `7/10` is written so only if 10 is the scale's end.
    if fraction := OUT_OF.match(words):
        bounds = find_range(words) or find_scale(text)
        is_most = bounds is not None and bounds[1] == int(fraction["most"])
        return [value + fraction["out"] for value in numbers(bounds, text)] if is_most else []
    marked = [value for value in dict.fromkeys(MARKED.findall(words)) if not PLACEHOLDER.fullmatch(value)]
    if marked:
        return marked if len(marked) > 1 and all(map(LABEL.fullmatch, marked)) else []
    if bounds := find_range(words):
        return numbers(bounds, text)
    if (labels := find_labels(words)) is not None:
        return labels
    return numbers(find_scale(text), text)


@functools.lru_cache(2000)
def described(words: str) -> Schema:
    """Return JSON Schema keywords (enum, or minimum and maximum) for the numbers that a description allows."""
    labels = find_labels(words)
    if labels and all(map(str.isdecimal, labels)):
        return {"enum": [*map(int, labels)]}
    return {"enum": [0, 1]} if BINARY.search(words) else limits(find_range(words))


def limits(bounds: Range | None) -> Schema:
    """Return a range as the JSON Schema keywords minimum and maximum, or {} for None."""
    if bounds is None:
        return {}
    low, high = (int(value) if value == int(value) else value for value in bounds)
    return {"minimum": low, "maximum": high}
