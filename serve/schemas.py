"""JSON schemas whose replies end: a client's own, bounded by a few rules until the longest reply fits its tokens.

Open texts, lists and numbers get limits, objects are closed, references and `allOf` are written out, branches of
`oneOf` have to be apart. Every reply to the bounded schema is one to the client's. Everything here is pure.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

Schema = dict[str, Any]
Fill = Callable[[str, str, str], Schema]
"""What words say of a text or number that a schema leaves open, by its field's name, its description and its type."""

Written = TypeVar("Written")

LONGEST_STRING, MOST_ITEMS = 600, 64
READABLE = 40
"""Characters below which strings are not shortened as long as lists can be."""

LARGEST_NUMBER = 1_000_000
DEPTHS, MOST_NODES = (6, 3, 2, 1), 2000
"""How often a definition may stand within itself in a reply: the first that keeps the schema, written out, small."""

MOST_OPTIONAL = 300
"""Properties of an object that may be left out: of more the decoder says at the first token that they are too many."""

BYTES_PER_CHARACTER = 6
"""A control character as `\\u001f`; no character of UTF-8 has more than 4. A token has at least one byte."""

KEY = r"^[^\u0000-\u001f\"\\]{1,40}$"
NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "discriminator"}
DEFINITIONS, ITEMS, VALUES = {"$defs", "definitions"}, {"items", "prefixItems"}, {"enum", "const"}
HELD = {"enum", "const", "pattern", "format", "maxLength"}
ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
KEYWORDS = {
    "object": "properties required additionalProperties minProperties patternProperties",
    "array": "items prefixItems minItems maxItems",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
}
STRICTEST: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
}
"""Of a keyword, what satisfies two values of it."""


class Unbounded(Exception):
    """A schema beyond the rules: it goes on as the client sent it."""


class Endless(Unbounded):
    """Only an endless reply, or none, fits."""


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


def nothing(name: str, description: str, kind: str) -> Schema:
    """A `Fill` that says nothing."""
    return {}


def loose(schema: Schema, fill: Fill = nothing) -> tuple[Schema, int]:
    """The schema with the loosest limits that are set, and the most bytes that a reply to it can have. Raises
    Unbounded."""
    return _by_depth(lambda depth: _written(schema, Limits(LONGEST_STRING, MOST_ITEMS, depth), fill))


def bounded(schema: Schema, tokens: int, fill: Fill = nothing) -> tuple[Schema, Limits]:
    """The schema restricted so that its longest reply has fewer bytes than `tokens`, as loosely as that allows, and
    the limits it took. Where even the shortest that the client asks for may be longer, the tightest.

    Raises Unbounded.
    """
    return _by_depth(lambda depth: _loosest(schema, tokens, depth, fill))


def ends(schema: Schema) -> bool:
    """Whether some reply to the schema ends, as far as the rules can tell. Raises RecursionError."""
    try:
        _Writer(schema, Limits(1, 0, 1), nothing).write(schema, _Place())
    except Endless:
        return False
    except (AttributeError, KeyError, OverflowError, TypeError, Unbounded, ValueError):
        pass
    return True


def longest(schema: Schema, limits: Limits, fill: Fill = nothing) -> int:
    """The most bytes that a reply to the limited schema can have. Raises Unbounded."""
    return _written(schema, limits, fill)[1]


def _by_depth(write: Callable[[int], Written]) -> Written:
    for depth in DEPTHS[:-1]:
        with suppress(Unbounded):
            return write(depth)
    return write(DEPTHS[-1])


def _loosest(schema: Schema, tokens: int, depth: int, fill: Fill) -> tuple[Schema, Limits]:
    shapes = [Limits(READABLE, items, depth) for items in (MOST_ITEMS, 32, 16, 12, 8, 6, 4, 3, 2, 1)]
    shapes += [Limits(1, 1, depth), Limits(1, 0, depth)]
    shape = next((each for each in shapes if longest(schema, each, fill) < tokens), shapes[-1])
    low, high = shape.string, LONGEST_STRING
    while low < high:
        middle = (low + high + 1) // 2
        fits = longest(schema, Limits(middle, shape.items, depth), fill) < tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    limits = Limits(low, shape.items, depth)
    return _written(schema, limits, fill)[0], limits


def _written(schema: Schema, limits: Limits, fill: Fill) -> tuple[Schema, int]:
    """The schema with limits on all that has none, and nothing in it that the client does not name; and the bytes of
    its longest reply. Raises Unbounded."""
    try:
        return _Writer(schema, limits, fill).write(schema, _Place())
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        raise Unbounded("no schema that can be read") from None


@dataclass(frozen=True)
class _Place:
    """Where a part of a schema stands: in the field of this name and description, within so many of each definition."""

    name: str = ""
    description: str = ""
    within: Mapping[str, int] = field(default_factory=dict)


class _Writer:
    """Writes a schema out: references resolved, limits set, the size of the longest reply added up."""

    def __init__(self, root: Schema, limits: Limits, fill: Fill) -> None:
        self.root, self.limits, self.fill, self.nodes = root, limits, fill, 0
        self.kinds = {"string": self._string, "array": self._array, "object": self._object}
        self.kinds |= {"integer": self._number, "number": self._number}

    def write(self, schema: Any, place: _Place) -> tuple[Schema, int]:
        """The schema and its longest reply in bytes. Raises Endless for one that only an endless reply fits."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise Unbounded("the schema is too large")
        schema, place = self._resolved(ANYTHING if schema in (True, {}) else schema, place)
        if not isinstance(schema, dict):
            raise Endless  # false: nothing fits it
        place = replace(place, description=f"{place.description} {schema.get('description', '')}")
        schema = {key: value for key, value in schema.items() if key not in DEFINITIONS}
        if choice := next((key for key in ("anyOf", "oneOf") if key in schema), None):
            return self._choice(schema, choice, place)
        if VALUES & schema.keys():
            return schema, max(len(json.dumps(value, ensure_ascii=False).encode()) for value in _values(schema))
        types = schema.get("type") or next(
            (kind for kind, words in KEYWORDS.items() if {*words.split()} & schema.keys()), None
        )
        if types is None:
            return self.write({**schema, **ANYTHING}, place)
        done, kept, size = schema | {"type": types}, [], 0
        for kind in types if isinstance(types, list) else [types]:
            with suppress(Endless):
                size = max(size, self.kinds[kind](done, place, kind) if kind in self.kinds else len("false"))
                kept.append(kind)
        if not kept:
            raise Endless
        return done | {"type": kept if isinstance(types, list) else types}, size

    def _resolved(self, schema: Any, place: _Place) -> tuple[Any, _Place]:
        """The schema itself, where it names a definition, or parts that all have to fit."""
        while isinstance(schema, dict) and "$ref" in schema:
            name = schema["$ref"]
            place = replace(place, within={**place.within, name: place.within.get(name, 0) + 1})
            if place.within[name] > self.limits.depth:
                raise Endless
            definition: Any = self.root
            for part in name.split("/")[1:]:
                definition = definition[part.replace("~1", "/").replace("~0", "~")]
            if not name.startswith("#"):
                raise Unbounded(f"$ref {name!r} is not in the schema")
            schema = _joined({key: value for key, value in schema.items() if key != "$ref"}, definition)
        if isinstance(schema, dict) and (parts := schema.get("allOf")):
            schema = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                whole, place = self._resolved(part, place)
                schema = _joined(schema, whole)
            return self._resolved(schema, place)
        return schema, place

    def _choice(self, schema: Schema, kind: str, place: _Place) -> tuple[Schema, int]:
        beside = {key: value for key, value in schema.items() if key not in NOTES and key != kind}
        written, size = list[Schema](), 0
        for branch in schema[kind]:
            with suppress(Endless):
                one, length = self.write(_joined(beside, branch) if beside else branch, place)
                if kind == "oneOf" and not all(_apart(one, other) for other in written):
                    raise Overlap(
                        "oneOf: a reply could fit two of its branches; tell them apart by a const, or use anyOf"
                    )
                written.append(one)
                size = max(size, length)
        if not written:
            raise Endless
        return {"anyOf": written}, size

    def _string(self, schema: Schema, place: _Place, kind: str) -> int:
        least, most, limit = schema.get("minLength", 0), schema.get("maxLength", math.inf), self.limits.string
        if not HELD & schema.keys() and (values := self.fill(place.name, place.description, kind)):
            schema |= values
            if "enum" in values:
                return max(len(json.dumps(value, ensure_ascii=False).encode()) for value in values["enum"])
        if "pattern" in schema and "format" in schema:
            raise Unbounded("a pattern and a format")  # of which the decoder rarely tells whether any text fits
        if pattern := schema.get("pattern"):
            try:
                shortest, widest = re._parser.parse(pattern).getwidth()  # type: ignore[attr-defined]
            except (re.error, OverflowError, RecursionError):
                raise Unbounded("a pattern that cannot be measured") from None
            most = min(most, widest) if re.fullmatch(r"\^[^|]*\$", pattern) else most
            limit = max(limit, 2 * int(shortest) + READABLE) if shortest else limit
        limit = max(limit, READABLE) if "format" in schema else limit
        if least > most:
            raise Endless
        length = schema["maxLength"] = int(max(least, min(most, limit)))
        return 2 + length * BYTES_PER_CHARACTER

    def _number(self, schema: Schema, place: _Place, kind: str) -> int:
        if not {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} & schema.keys():
            schema |= (limits := self.fill(place.name, place.description, kind))
            if "enum" in limits:
                schema["enum"] = [*limits["enum"], *[None] * ("null" in schema["type"])]
                return max(len(str(value)) for value in limits["enum"])
        low, high = _range(schema, 1 if kind == "integer" else 0)
        whole = max(len(str(math.floor(low))), len(str(math.ceil(high))))
        if kind == "integer":
            return whole
        # A narrow range takes more digits, so that a hundred steps lie in it.
        digits = max(2, 2 - math.floor(math.log10(high - low))) if high > low else 2
        if "multipleOf" in schema:
            digits = len(f"{schema['multipleOf']:.20f}".rstrip("0").partition(".")[2])
        elif low == high:
            schema["enum"] = [low]
            return len(repr(low))
        elif low < 0 or (high < 1 and "exclusiveMinimum" in schema):
            _write_out(schema, low, high, 10**digits)
        else:
            schema["multipleOf"] = float(f"1e-{digits}")
        return whole + digits + 2

    def _array(self, schema: Schema, place: _Place, kind: str) -> int:
        first = [self.write(item, place) for item in schema.get("prefixItems", [])]
        schema |= {"prefixItems": [item for item, _ in first]} if first else {}
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if least > most:
            raise Endless
        most, each = int(max(least, min(most, max(self.limits.items, len(first))))), 0
        if schema.get("items") is not False:
            try:
                schema["items"], each = self.write(schema.get("items", {}), place)
            except Endless:
                if least > len(first):
                    raise
                most, schema["items"] = len(first), {"type": "null"}
        schema["maxItems"] = most
        return 2 + sum(size + 1 for _, size in first) + max(0, most - len(first)) * (each + 1)

    def _object(self, schema: Schema, place: _Place, kind: str) -> int:
        if schema.get("patternProperties"):
            raise Unbounded("properties by pattern")
        named, required = schema.get("properties") or {}, set(schema.get("required", []))
        more, least = schema.get("additionalProperties", {}), schema.pop("minProperties", 0)
        most = schema.pop("maxProperties", math.inf)
        beyond = [name for name in named if name not in required][MOST_OPTIONAL:]
        wanted = {name: value for name, value in named.items() if name not in beyond}
        wanted |= dict.fromkeys(sorted(required - named.keys()), more)
        properties, size = {}, 2
        for name, value in wanted.items():
            try:
                properties[name], length = self.write(value, _Place(name, "", place.within))
            except Endless:
                if name in required:
                    raise
                continue
            size += len(json.dumps(name, ensure_ascii=False).encode()) + 2 + length
        schema |= {"properties": properties, "additionalProperties": False}
        if not named and not properties and more is not False:
            return self._dictionary(schema, more, int(least), most, place)
        if len(required) > most:
            raise Unbounded("a number of properties that cannot be held")
        if least > len(properties):
            raise Endless
        schema |= {"required": list(properties)} if least > len(required) else {}
        return size

    def _dictionary(self, schema: Schema, value: Any, least: int, most: float, place: _Place) -> int:
        count = int(max(least, min(most, self.limits.items)))
        try:
            one, length = self.write(value, place)
        except Endless:
            if least:
                raise
            return 2
        del schema["properties"]
        schema |= {"patternProperties": {KEY: one}, "maxProperties": count} | (
            {"minProperties": least} if least else {}
        )
        return 2 + count * (2 + 40 * 4 + 2 + length)


def _joined(one: Schema, other: Any) -> Schema:
    """A schema that fits both. Raises Unbounded where the two say different things."""
    if other is True:
        return one
    if not isinstance(other, dict):
        raise Endless
    done = {**other, **one}
    for key in one.keys() & other.keys() - NOTES - DEFINITIONS:
        mine, theirs = one[key], other[key]
        if key in STRICTEST:
            done[key] = STRICTEST[key](mine, theirs)
        elif key == "properties" and all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys()):
            done[key] = {**mine, **theirs}
        elif mine != theirs or type(mine) is not type(theirs):
            raise Unbounded(f"a schema that says two things of {key}")
    for mine, theirs in ((one, other), (other, one)):
        strange = theirs.get("properties", {}).keys() - mine.get("properties", {}).keys()
        closed = mine.get("additionalProperties", True) is not True
        if (strange and closed) or len(ITEMS & (mine.keys() | theirs.keys())) > 1:
            raise Unbounded("parts of a schema that have to be put together field by field")
    return done


def _apart(one: Schema, other: Schema) -> bool:
    """Whether no reply fits both, which are written out: by their values, their types, or a key that both require."""
    if "anyOf" in one or "anyOf" in other:
        pairs = [(mine, theirs) for mine in one.get("anyOf", [one]) for theirs in other.get("anyOf", [other])]
        return all(_apart(mine, theirs) for mine, theirs in pairs)
    if VALUES & one.keys() and VALUES & other.keys():
        return not {json.dumps(value) for value in _values(one)} & {json.dumps(value) for value in _values(other)}
    if not _kinds(one) & _kinds(other):
        return True
    mine, theirs = one.get("properties"), other.get("properties")
    if _kinds(one) | _kinds(other) != {"object"} or mine is None or theirs is None:
        return False
    sure = [set(each.get("required", [])) for each in (one, other)]
    if sure[0] - theirs.keys() and sure[1] - mine.keys():
        return True
    return any(_apart(mine[name], theirs[name]) for name in sure[0] & sure[1])


def _kinds(schema: Schema) -> set[str]:
    """The types that a written schema takes, a whole number being a number."""
    if VALUES & schema.keys():
        names = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
        return {names.get(type(value), "null") for value in _values(schema)}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {"number" if kind == "integer" else kind for kind in types}


def _values(schema: Schema) -> list[Any]:
    values: list[Any] = [schema["const"]] if "const" in schema else schema["enum"]
    return values


def _write_out(schema: Schema, low: float, high: float, ten: int) -> None:
    """Limits for numbers some of which are negative, or small and not 0: the decoder knows no negative multiples of a
    decimal, and takes 0 for more than 0. A narrow range is written out; of a wide one negative numbers are whole."""
    while (high - low) * ten > MOST_WRITTEN and ten > 1:
        ten //= 10
    if (high - low) * ten <= MOST_WRITTEN:
        low_open, high_open = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
        values = [step / ten for step in range(math.ceil(low * ten), math.floor(high * ten) + 1)]
        whole = [int(value) if value == int(value) else value for value in values if low_open < value < high_open]
        parts: list[Schema] = [{"enum": whole}]
    else:
        parts = [{"type": "integer", "minimum": math.ceil(low), "maximum": min(-1, math.floor(high))}]
        parts += [{"type": "number", "minimum": 0, "maximum": high, "multipleOf": 0.01}] if high >= 0 else []
    types = schema["type"] if isinstance(schema["type"], list) else []
    schema["anyOf"] = parts + [{"type": other} for other in types if other != "number"]


MOST_WRITTEN = 400
"""Values of a range with negative numbers that are written out."""


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
