"""JSON schemas whose replies end: the client's own, restricted until the longest reply fits its tokens.

Every reply to the restricted schema is one to the client's. Everything here is pure.
"""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

Schema = dict[str, Any]
Written = TypeVar("Written")

LONGEST_STRING = 600
MOST_ITEMS = 64
READABLE = 40
"""Characters below which strings are not shortened as long as lists can be."""

LARGEST_NUMBER = 1_000_000
MOST_VALUES = 400
"""Of a range with negative numbers that is written out."""

DEPTHS, MOST_NODES = (6, 3, 2, 1), 2000
"""How often a definition may stand within itself in a reply: the first that keeps the schema, written out, small."""

MOST_OPTIONAL = 300
"""Properties of an object that may be left out: of more the decoder says at the first token that they are too many."""

BYTES_PER_CHARACTER = 6
"""A control character as `\\u001f`; no character of UTF-8 has more than 4. A token has at least one byte."""

KEY = r"^[^\u0000-\u001f\"\\]{1,40}$"
ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
IMPLIED = {
    "object": ("properties", "additionalProperties", "required", "patternProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


class Unbounded(Exception):
    """A schema that cannot be restricted here: it goes on as the client sent it."""


@dataclass(frozen=True)
class Limits:
    """The most characters of a string and items of a list, where the schema allows that few, and how deep a
    definition may stand within itself."""

    string: int
    items: int
    depth: int = DEPTHS[0]

    def __str__(self) -> str:
        return f"characters={self.string}, items={self.items}"


def loose(schema: Schema) -> tuple[Schema, int]:
    """The schema with the loosest limits that are set, and the most bytes that a reply to it can have. Raises
    Unbounded."""
    return _by_depth(lambda depth: _written(schema, Limits(LONGEST_STRING, MOST_ITEMS, depth)))


def bounded(schema: Schema, tokens: int) -> tuple[Schema, Limits]:
    """The schema restricted so that its longest reply has fewer bytes than `tokens`, as loosely as that allows, and
    the limits it took. Where even the shortest that the client asks for may be longer, the tightest.

    Raises Unbounded.
    """
    return _by_depth(lambda depth: _loosest(schema, tokens, depth))


def _by_depth(write: Callable[[int], Written]) -> Written:
    for depth in DEPTHS[:-1]:
        with suppress(Unbounded):
            return write(depth)
    return write(DEPTHS[-1])


def _loosest(schema: Schema, tokens: int, depth: int) -> tuple[Schema, Limits]:
    shapes = [Limits(READABLE, items, depth) for items in (MOST_ITEMS, 32, 16, 12, 8, 6, 4, 3, 2, 1)]
    shapes += [Limits(1, 1, depth), Limits(1, 0, depth)]
    found = next((one for one in shapes if longest(schema, one) < tokens), shapes[-1])
    low, high = found.string, LONGEST_STRING
    while low < high:
        middle = (low + high + 1) // 2
        if longest(schema, Limits(middle, found.items, depth)) < tokens:
            low = middle
        else:
            high = middle - 1
    limits = Limits(low, found.items, depth)
    return _written(schema, limits)[0], limits


def longest(schema: Schema, limits: Limits) -> int:
    """The most bytes that a reply to the limited schema can have. Raises Unbounded."""
    return _written(schema, limits)[1]


def _written(schema: Schema, limits: Limits) -> tuple[Schema, int]:
    """The schema written out, with limits on all that has none, and nothing in it that the client does not name; and
    the bytes of its longest reply. Raises Unbounded."""
    try:
        return _Writer(schema, limits).write(schema, {})
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        raise Unbounded("no schema that can be read") from None
    except _Endless:
        raise Unbounded("no reply that ends fits the schema") from None


class _Writer:
    """Writes a schema out: references resolved, limits set, the size of the longest reply added up."""

    def __init__(self, root: Schema, limits: Limits) -> None:
        self.root, self.limits, self.nodes = root, limits, 0
        self.kinds = {
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "array": self._array,
            "object": self._object,
        }

    def write(self, schema: Any, seen: dict[str, int]) -> tuple[Schema, int]:
        """The schema and its longest reply in bytes. `seen` counts the definitions that it stands in. Raises
        _Endless for one that only an endless reply fits."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise Unbounded("the schema is too large")
        schema, seen = self._resolved(schema, seen)
        if schema is True or schema == {}:
            schema = ANYTHING
        if not isinstance(schema, dict):
            raise _Endless  # false: nothing fits it
        if parts := schema.get("allOf"):
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                whole, seen = self._resolved(part, seen)
                rest = _merged(rest, whole)
            return self.write(rest, seen)
        if choice := next((key for key in ("anyOf", "oneOf") if key in schema), None):
            return self._choice(schema, choice, seen)
        if "const" in schema or "enum" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return schema, max(len(json.dumps(value, ensure_ascii=False).encode()) for value in values)
        return self._typed(schema, seen)

    def _resolved(self, schema: Any, seen: dict[str, int]) -> tuple[Any, dict[str, int]]:
        """The schema itself, where it only names a definition."""
        while isinstance(schema, dict) and "$ref" in schema:
            name = schema["$ref"]
            seen = {**seen, name: seen.get(name, 0) + 1}
            if seen[name] > self.limits.depth:
                raise _Endless
            found: Any = self.root
            for part in name.split("/")[1:]:
                found = found[part.replace("~1", "/").replace("~0", "~")]
            if not name.startswith("#") or not isinstance(found, dict):
                raise Unbounded(f"$ref {name!r} is not in the schema")
            schema = _merged(found, {key: schema[key] for key in schema if key != "$ref"})
        return schema, seen

    def _choice(self, schema: Schema, kind: str, seen: dict[str, int]) -> tuple[Schema, int]:
        rest = {key: value for key, value in schema.items() if key not in (kind, "$defs", "definitions")}
        written, size = [], 0
        for branch in schema[kind]:
            try:
                one, length = self.write(_merged(rest, branch) if rest.keys() - _NOTES else branch, seen)
            except _Endless:
                continue
            written.append(one)
            size = max(size, length)
        if not written:
            raise _Endless
        return {kind: written}, size

    def _typed(self, schema: Schema, seen: dict[str, int]) -> tuple[Schema, int]:
        types = schema.get("type") or next(
            (kind for kind, words in IMPLIED.items() if any(word in schema for word in words)), None
        )
        if types is None:
            return self.write(_merged(schema, ANYTHING), seen)
        done = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")} | {"type": types}
        kept, size = [], 0
        for kind in types if isinstance(types, list) else [types]:
            try:
                size = max(size, self.kinds.get(kind, _other)(done, seen))
            except _Endless:
                continue
            kept.append(kind)
        if not kept:
            raise _Endless
        return done | {"type": kept if isinstance(types, list) else types}, size

    def _string(self, schema: Schema, seen: dict[str, int]) -> int:
        least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        limit = self.limits.string
        if "pattern" in schema:
            try:
                shortest, widest = re._parser.parse(schema["pattern"]).getwidth()  # type: ignore[attr-defined]
            except (re.error, OverflowError, RecursionError):
                raise Unbounded("a pattern that cannot be measured") from None
            anchored = schema["pattern"].startswith("^") and schema["pattern"].endswith("$")
            most = min(most, widest) if anchored and "|" not in schema["pattern"] else most
            limit = max(limit, 2 * int(shortest) + READABLE) if shortest else limit
        elif "format" in schema:
            limit = max(limit, READABLE)
        schema["maxLength"] = most = int(max(least, min(most, limit)))
        return 2 + most * BYTES_PER_CHARACTER

    def _integer(self, schema: Schema, seen: dict[str, int]) -> int:
        low, high = _range(schema, 1)
        return max(len(str(math.floor(low))), len(str(math.ceil(high))))

    def _number(self, schema: Schema, seen: dict[str, int]) -> int:
        low, high = _range(schema, 0)
        # A narrow range takes more digits, so that a hundred steps lie in it.
        digits = max(2, 2 - math.floor(math.log10(high - low))) if high > low else 2
        if "multipleOf" in schema:
            digits = -_exponent(schema["multipleOf"])
        elif low == high:
            schema["enum"] = [low]
            return len(repr(low))
        elif high > low and (low < 0 or (high < 1 and "exclusiveMinimum" in schema)):
            _written_out(schema, low, high, digits)
        else:
            schema["multipleOf"] = float(f"1e-{digits}")
        return max(len(str(math.floor(low))), len(str(math.ceil(high)))) + digits + 2

    def _array(self, schema: Schema, seen: dict[str, int]) -> int:
        first = [self.write(one, seen) for one in schema.get("prefixItems", [])]
        if first:
            schema["prefixItems"] = [one for one, _ in first]
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        most = int(max(least, min(most, max(self.limits.items, len(first)))))
        each = 0
        if schema.get("items") is not False:
            try:
                schema["items"], each = self.write(schema.get("items", {}), seen)
            except _Endless:
                if least > len(first):
                    raise
                most = len(first)
                schema["items"] = {"type": "null"}
        schema["maxItems"] = most
        return 2 + sum(size + 1 for _, size in first) + max(0, most - len(first)) * (each + 1)

    def _object(self, schema: Schema, seen: dict[str, int]) -> int:
        required = set(schema.get("required", []))
        properties, size = {}, 2
        optional = [name for name in schema.get("properties") or {} if name not in required]
        beyond = set(optional[MOST_OPTIONAL:])
        for name, value in (schema.get("properties") or {}).items():
            if name in beyond:
                continue
            try:
                properties[name], length = self.write(value, seen)
            except _Endless:
                if name in required:
                    raise
                continue
            size += len(json.dumps(name, ensure_ascii=False).encode()) + 2 + length
        more, named = schema.get("additionalProperties", {}), schema.pop("patternProperties", None)
        if named or properties or schema.get("properties") or more is False:
            more = False  # what the client does not name is not wanted; patterns of names are optional, too
        for name in sorted(required - properties.keys()):
            properties[name], length = self.write(schema.get("additionalProperties", {}), seen)
            size += len(json.dumps(name, ensure_ascii=False).encode()) + 2 + length
        schema["properties"], schema["additionalProperties"] = properties, False
        least = schema.pop("minProperties", 0)
        most = schema.pop("maxProperties", math.inf)
        if more is False or properties:
            if len(properties) < least or len(required) > most:
                raise Unbounded("a number of properties that cannot be held")
            if least > len(required):
                schema["required"] = list(properties)
            return size
        return size + self._dictionary(schema, more, int(least), most, seen)

    def _dictionary(self, schema: Schema, value: Any, least: int, most: float, seen: dict[str, int]) -> int:
        count = int(max(least, min(most, self.limits.items)))
        try:
            one, length = self.write(value, seen)
        except _Endless:
            if least:
                raise
            return 0
        del schema["properties"]
        schema |= {"patternProperties": {KEY: one}, "maxProperties": count}
        if least:
            schema["minProperties"] = least
        return count * (2 + 40 * 4 + 2 + length)


def _other(schema: Schema, seen: dict[str, int]) -> int:
    return len("false")


def _written_out(schema: Schema, low: float, high: float, digits: int) -> None:
    """Limits for numbers some of which are negative, or small and not 0: the decoder knows no negative multiples of a
    decimal, and takes 0 for more than 0. A narrow range is written out; of a wide one the negative numbers are whole.
    """
    steps = math.floor(math.log10(MOST_VALUES / (high - low)))
    if steps >= 0:
        ten = 10 ** min(digits, steps)
        values = [step / ten for step in range(math.ceil(low * ten), math.floor(high * ten) + 1)]
        low_open, high_open = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
        values = [int(value) if value == int(value) else value for value in values if low_open < value < high_open]
        parts: list[Schema] = [{"enum": values}]
    else:
        parts = [{"type": "integer", "minimum": math.ceil(low), "maximum": min(-1, math.floor(high))}]
        if high >= 0:
            parts.append({"type": "number", "minimum": 0, "maximum": high, "multipleOf": 0.01})
    types = schema["type"] if isinstance(schema["type"], list) else []
    schema["anyOf"] = parts + [{"type": other} for other in types if other != "number"]


class _Endless(Exception):
    """Only an endless reply, or none, fits."""


_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly"}
_LARGER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_SMALLER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}


def _merged(one: Schema, other: Any) -> Schema:
    """A schema that both fit. Raises Unbounded where that takes more than putting them together."""
    if other is True:
        return one
    if not isinstance(other, dict):
        raise Unbounded("a schema of parts that exclude each other")
    for whole, part in ((one, other), (other, one)):
        if whole.get("additionalProperties", True) not in (True, {}) and (
            part.get("properties", {}).keys() - whole.get("properties", {}).keys()
        ):
            raise Unbounded("a schema of parts that close each other")
    merged = dict(one)
    for key, value in other.items():
        if key not in merged or merged[key] == value or key in _NOTES or key in ("$defs", "definitions"):
            merged[key] = merged.get(key, value) if key in _NOTES else value
        elif key in _LARGER:
            merged[key] = max(merged[key], value)
        elif key in _SMALLER:
            merged[key] = min(merged[key], value)
        elif key == "required":
            merged[key] = list(dict.fromkeys([*merged[key], *value]))
        elif key == "properties":
            both = {name: _merged(merged[key][name], value[name]) for name in merged[key].keys() & value.keys()}
            merged[key] = {**merged[key], **value, **both}
        elif key == "type" and merged[key] in ("number", "integer") and value in ("number", "integer"):
            merged[key] = "integer"
        else:
            raise Unbounded(f"a schema that says two things of {key}")
    return merged


def _exponent(number: float) -> int:
    """The power of ten of a decimal's last digit: -2 for 0.05, at most 0."""
    written = f"{number:.20f}".rstrip("0") if abs(number) < 1e-6 else repr(float(number))
    mantissa, _, power = written.partition("e")
    return min(0, int(power or 0) - len(mantissa.partition(".")[2].rstrip("0")))


def _range(schema: Schema, step: int) -> tuple[float, float]:
    """The bounds of a number; missing ones are set, far beyond those that are given."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    if any(isinstance(bound, bool) or not isinstance(bound, int | float) for bound in (*lows, *highs)):
        raise Unbounded("bounds that are no numbers")
    width = max(LARGEST_NUMBER, 10 * schema.get("multipleOf", step))
    if not lows:
        lows = [min(-width, min(highs) - width if highs else -width)]
        schema["minimum"] = lows[0]
    if not highs:
        highs = [max(width, max(lows) + width)]
        schema["maximum"] = highs[0]
    return max(lows), min(highs)
