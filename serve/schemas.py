"""JSON schemas whose replies end: the client's own, restricted until the longest reply fits its tokens.

Every reply to the restricted schema is one to the client's. Everything here is pure.
"""

import functools
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from merging import ALSO, NOTES, Endless, Unbounded, both, merged, of_key, values_of

Schema = dict[str, Any]
Written = TypeVar("Written")

LONGEST_STRING = 600
MOST_ITEMS = 64
READABLE = 40
"""Characters below which strings are not shortened as long as lists can be."""

DECIDED = 20
"""Characters for which the decoder can tell of most patterns and formats whether a text fits all of them."""

HELD = ("pattern", "format", "minLength", "allOf")
"""What a text has to fit besides its length."""

LARGEST_NUMBER = 1_000_000
MOST_VALUES = 400
"""Of a range with negative numbers that is written out."""

DEPTHS, MOST_NODES = (6, 3, 2, 1), 2000
"""How often a definition may stand within itself in a reply: the first that keeps the schema, written out, small."""

MOST_OPTIONAL = 300
"""Properties of an object that may be left out: of more the decoder says at the first token that they are too many."""

BYTES_PER_CHARACTER = 6
"""A control character as `\\u001f`; no character of UTF-8 has more than 4. A token has at least one byte."""

TEXTS = {"messages", "input", "prompt", "system", "instructions", "metadata"}
"""Fields of a request that hold no schema, whatever they quote."""

KEY = r"^[^\u0000-\u001f\"\\]{1,40}$"
ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
IMPLIED = {
    "object": ("properties", "additionalProperties", "required", "patternProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


class Overlap(Unbounded):
    """Branches of `oneOf` of which a reply could fit two: then the client would refuse it."""


@dataclass(frozen=True)
class Limits:
    """The most characters of a string and items of a list, where the schema allows that few, and how deep a
    definition may stand within itself."""

    string: int
    items: int
    depth: int = DEPTHS[0]

    def __str__(self) -> str:
        return f"characters={self.string}, items={self.items}"


def most_items(body: bytes) -> float:
    """The largest number of items that a schema of a request names, in whatever field but its texts, and 0 for a body
    that is no JSON. The decoder writes them out one by one: a large number takes all memory, and ends the server."""
    if json.detect_encoding(body) == "utf-8" and b"Items" not in body and b"\\u" not in body:
        return 0
    most, waiting = 0.0, []
    with suppress(ValueError, RecursionError, AttributeError):
        waiting = [one for key, one in json.loads(body).items() if key not in TEXTS]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and "Items" in value:
            with suppress(ValueError, RecursionError):
                waiting.append(json.loads(value))
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            named = [value.get(key) for key in ("minItems", "maxItems")]
            most = max(most, *(one for one in named if isinstance(one, int | float)), 0)
            waiting += value.values()
    return most


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
    except Endless:
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
        Endless for one that only an endless reply fits."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise Unbounded("the schema is too large")
        schema, seen = self._resolved(schema, seen)
        if schema is True or schema == {}:
            schema = ANYTHING
        if not isinstance(schema, dict):
            raise Endless  # false: nothing fits it
        if parts := schema.get("allOf"):
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                whole, seen = self._resolved(part, seen)
                rest = merged(rest, whole)
            return self.write(rest, seen)
        if choice := next((key for key in ("anyOf", "oneOf") if key in schema), None):
            return self._choice(schema, choice, seen)
        if "const" in schema or "enum" in schema:
            rest = {key: value for key, value in schema.items() if key not in ("const", "enum", "$defs", "definitions")}
            if rest.keys() - NOTES - {"type"} or {"const", "enum"} <= schema.keys():
                values = [one for one in values_of(schema) if self._fits(one, rest)]
                if not values:
                    raise Endless
                schema = {"enum": values}
            values = values_of(schema)
            return schema, max(len(json.dumps(value, ensure_ascii=False).encode()) for value in values)
        return self._typed(schema, seen)

    def _resolved(self, schema: Any, seen: dict[str, int]) -> tuple[Any, dict[str, int]]:
        """The schema itself, where it only names a definition."""
        while isinstance(schema, dict) and "$ref" in schema:
            name = schema["$ref"]
            seen = {**seen, name: seen.get(name, 0) + 1}
            if seen[name] > self.limits.depth:
                raise Endless
            found: Any = self.root
            for part in name.split("/")[1:]:
                found = found[part.replace("~1", "/").replace("~0", "~")]
            if not name.startswith("#") or not isinstance(found, dict):
                raise Unbounded(f"$ref {name!r} is not in the schema")
            schema = merged(found, {key: schema[key] for key in schema if key != "$ref"})
        return schema, seen

    def _choice(self, schema: Schema, kind: str, seen: dict[str, int]) -> tuple[Schema, int]:
        rest = {key: value for key, value in schema.items() if key not in (kind, "$defs", "definitions")}
        branches, written, size = list[Any](), list[Schema](), 0
        for branch in schema[kind]:
            with suppress(Endless):  # nothing fits it beside the rest
                branches.append(merged(rest, branch) if rest.keys() - NOTES else branch)
        for at, branch in enumerate(branches):
            try:
                one, length = self.write(branch, seen)
                if kind == "oneOf":
                    one = self._only(one, branches[:at] + branches[at + 1 :])
            except Endless:
                continue
            written.append(one)
            size = max(size, length)
        if not written:
            raise Endless
        return {"anyOf": written}, size

    def _only(self, one: Schema, others: list[Any]) -> Schema:
        """What is written, without what fits another branch as well. Raises Overlap where that cannot be told."""
        if {"enum", "const"} & one.keys():
            values = [value for value in values_of(one) if not any(self._fits(value, other) for other in others)]
            if not values:
                raise Endless
            return {"enum": values} | ({"type": one["type"]} if "type" in one else {})
        if not all(self._apart(one, other) for other in others):
            raise Overlap("oneOf: a reply could fit two of its branches; tell them apart by a const, or use anyOf")
        return one

    def _apart(self, one: Schema, other: Any) -> bool:
        """Whether surely no reply to `one`, which is written out, fits `other`."""
        with suppress(Endless):
            other, _ = self._resolved(other, {})
        if not isinstance(other, dict):
            return other is False
        if "anyOf" in one:
            return all(self._apart(branch, other) for branch in one["anyOf"])
        if any(self._apart(one, part) for part in other.get("allOf", [])) or any(
            all(self._apart(one, part) for part in other[key]) for key in ("anyOf", "oneOf") if key in other
        ):
            return True
        if {"enum", "const"} & (one.keys() | other.keys()):
            few, many = (one, other) if {"enum", "const"} & one.keys() else (other, one)
            return not any(self._fits(value, many) for value in values_of(few))
        common = _kinds(one) & _kinds(other)
        told_apart = {"object": self._keys_apart, "number": _ranges_apart}
        return all(told_apart.get(kind, _lengths_apart)(one, other) for kind in common)

    def _keys_apart(self, one: Schema, other: Schema) -> bool:
        """Whether no object fits both, by their required keys; `one` is closed."""
        has, wants = one.get("properties"), other.get("properties", {})
        if has is None:
            return False
        if set(other.get("required", [])) - has.keys():
            return True
        sure = set(one.get("required", []))
        if other.get("additionalProperties") is False and "patternProperties" not in other and sure - wants.keys():
            return True
        return any(self._apart(has[name], wants[name]) for name in sure & wants.keys())

    def _fits(self, value: Any, schema: Any) -> bool:
        import jsonschema  # type: ignore[import-untyped]  # noqa: PLC0415 - vLLM brings it; few schemas need it

        if not isinstance(schema, dict):
            return schema is not False
        known = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
        try:
            return bool(jsonschema.Draft202012Validator({**known, **schema}).is_valid(value))
        except Exception as error:  # of references and of patterns, each its own
            raise Unbounded(f"a schema that cannot be checked: {error}") from None

    def _typed(self, schema: Schema, seen: dict[str, int]) -> tuple[Schema, int]:
        types = schema.get("type") or next(
            (kind for kind, words in IMPLIED.items() if any(word in schema for word in words)), None
        )
        if types is None:
            return self.write(merged(schema, ANYTHING), seen)
        done = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")} | {"type": types}
        kept, size = [], 0
        for kind in types if isinstance(types, list) else [types]:
            try:
                size = max(size, self.kinds.get(kind, _other)(done, seen))
            except Endless:
                continue
            kept.append(kind)
        if not kept:
            raise Endless
        return done | {"type": kept if isinstance(types, list) else types}, size

    def _string(self, schema: Schema, seen: dict[str, int]) -> int:
        least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        limit = self.limits.string
        patterns = [schema["pattern"]] if "pattern" in schema else []
        patterns += [one["pattern"] for one in schema.get(ALSO, [])]
        several = len(patterns) + ("format" in schema) > 1
        if several:  # with a length of hundreds the decoder rarely can tell whether any text fits
            limit = min(limit, READABLE)
        for pattern in patterns:
            try:
                shortest, widest = re._parser.parse(pattern).getwidth()  # type: ignore[attr-defined]
            except (re.error, OverflowError, RecursionError):
                raise Unbounded("a pattern that cannot be measured") from None
            anchored = pattern.startswith("^") and pattern.endswith("$")
            most = min(most, widest) if anchored and "|" not in pattern else most
            limit = max(limit, 2 * int(shortest) + READABLE) if shortest else limit
        if ALSO in schema:
            schema["allOf"] = schema.pop(ALSO)
        if "format" in schema and not patterns:
            limit = max(limit, READABLE)
        if least > most:
            raise Endless
        lengths = [int(max(least, min(most, characters))) for characters in (limit, DECIDED)]
        if several:
            text = {key: schema[key] for key in HELD if key in schema} | {"type": "string"}
            lengths = [length for length in lengths if _decided(json.dumps({**text, "maxLength": length}))]
        if not lengths:
            raise Endless
        schema["maxLength"] = lengths[0]
        return 2 + lengths[0] * BYTES_PER_CHARACTER

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
        if least > most:
            raise Endless
        most = int(max(least, min(most, max(self.limits.items, len(first)))))
        each = 0
        if schema.get("items") is not False:
            try:
                schema["items"], each = self.write(schema.get("items", {}), seen)
            except Endless:
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
            for pattern, also in (schema.get("patternProperties") or {}).items():
                value = both(value, also) if re.search(pattern, name) else value  # noqa: PLW2901
            try:
                properties[name], length = self.write(value, seen)
            except Endless:
                if name in required:
                    raise
                continue
            size += len(json.dumps(name, ensure_ascii=False).encode()) + 2 + length
        more, named = schema.get("additionalProperties", {}), schema.pop("patternProperties", None)
        if named or properties or schema.get("properties") or more is False:
            more = False  # what the client does not name is not wanted; patterns of names are optional, too
        for name in sorted(required - properties.keys()):
            properties[name], length = self.write(of_key(name, {"patternProperties": named, **schema}), seen)
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
        except Endless:
            if least:
                raise
            return 0
        del schema["properties"]
        schema |= {"patternProperties": {KEY: one}, "maxProperties": count}
        if least:
            schema["minProperties"] = least
        return count * (2 + 40 * 4 + 2 + length)


@functools.lru_cache(maxsize=1024)
def _decided(text: str) -> bool:
    """Whether the decoder knows that some text fits; of several patterns it gives up early, and refuses the whole."""
    from llguidance import LLMatcher  # noqa: PLC0415 - vLLM brings it; few schemas need it

    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text))


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


def _kinds(schema: Schema) -> set[str]:
    """The types that a schema takes, a whole number being a number."""
    types = schema.get("type", ["object", "array", "string", "number", "boolean", "null"])
    return {"number" if kind == "integer" else kind for kind in (types if isinstance(types, list) else [types])}


def _ranges_apart(one: Schema, other: Schema) -> bool:
    lows = [max(found.get("minimum", -math.inf), found.get("exclusiveMinimum", -math.inf)) for found in (one, other)]
    highs = [min(found.get("maximum", math.inf), found.get("exclusiveMaximum", math.inf)) for found in (one, other)]
    return bool(lows[0] > highs[1] or lows[1] > highs[0])


def _lengths_apart(one: Schema, other: Schema) -> bool:
    return any(
        first.get(least, 0) > second.get(most, math.inf)
        for first, second in ((one, other), (other, one))
        for kind, least, most in (("string", "minLength", "maxLength"), ("array", "minItems", "maxItems"))
        if _kinds(one) & _kinds(other) == {kind}
    )


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
    if max(lows) > min(highs):
        raise Endless
    return max(lows), min(highs)
