"""JSON schemas whose replies end: a client's own, bounded by a few rules until the longest reply fits its tokens.

Open texts, lists and numbers get limits, objects are closed, references and the parts of `allOf` are written out. Every
reply to the bounded schema is one to the client's. Whether branches of `oneOf` are apart is the decoder's to say.
Everything here is pure.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from scales import described

Schema = dict[str, Any]

LARGEST_NUMBER = 1_000_000
MOST_NODES = 2000
"""Parts of a schema that is written out."""

MOST_WRITTEN = 400
"""Values of a range with negative numbers that are written out."""

BYTES_PER_CHARACTER = 6
"""A control character as `\\u001f`; no character of UTF-8 has more than 4. A token has at least one byte."""

LEAST_PATTERN = 40
"""Characters that a text of a pattern or format gets at least: fewer could fit none."""

KEY = r"^[^\u0000-\u001f\"\\]{1,40}$"
NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "discriminator"}
DEFINITIONS = {"$defs", "definitions"}
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
CONTENTS = {"properties", "additionalProperties", "items"}
UNCOMMON = {"patternProperties", "minProperties", "maxProperties", "prefixItems"}
FREE: Schema = {}
ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}


class Unbounded(Exception):
    """A schema beyond the rules: it goes on as the client sent it."""


class Endless(Unbounded):
    """Only an endless reply, or none, fits."""


@dataclass(frozen=True)
class Limits:
    """The most characters of a string and items of a list, where the schema allows that few, and how deep a
    definition may stand within itself."""

    string: int
    items: int
    depth: int = 3

    def __str__(self) -> str:
        return f"characters={self.string}, items={self.items}"


LADDER = [Limits(string, 64) for string in (600, 400, 250, 160, 100, 60, 40)]
LADDER += [Limits(40, items) for items in (32, 16, 8, 4, 2, 1)]
LADDER += [Limits(40, 2, 1), Limits(20, 1, 1), Limits(10, 1, 1), Limits(4, 1, 1), Limits(1, 1, 1), Limits(1, 0, 1)]
"""Limits to try, the loosest first: strings are not shortened below what can be read as long as lists can be."""


class Bounded(NamedTuple):
    """A schema within limits, and the most bytes that a reply to it can have."""

    schema: Schema
    size: int
    limits: Limits


def bounded(schema: Schema, tokens: float = math.inf, text: Schema = FREE) -> Bounded:
    """The schema within the loosest limits under which its longest reply has fewer bytes than `tokens`; where even the
    shortest that the client asks for may be longer, within the tightest. Open texts are `text`. Raises Unbounded."""
    for limits in LADDER:
        with suppress(Unbounded):
            done = within(schema, limits, text)
            if done.size < tokens:
                return done
    return within(schema, LADDER[-1], text)


def within(schema: Schema, limits: Limits, text: Schema = FREE) -> Bounded:
    """The schema with limits on all that has none, and nothing in it that the client does not name. Raises
    Unbounded."""
    try:
        return Bounded(*_Writer(schema, limits, text).write(schema, _Position()), limits)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise Unbounded("no schema that can be read") from None


def ends(schema: Schema) -> bool:
    """Whether some reply to the schema ends, as far as the rules can tell. Raises RecursionError."""
    try:
        within(schema, LADDER[-1])
    except Endless:
        return False
    except Unbounded:
        pass  # vLLM says what is wrong with it
    return True


@dataclass(frozen=True)
class _Position:
    """Where a part of a schema stands: in a field of this description, within so many of each definition."""

    description: str = ""
    within: Mapping[str, int] = field(default_factory=dict)


class _Writer:
    """Writes a schema out: references resolved, limits set, the size of the longest reply added up."""

    def __init__(self, root: Schema, limits: Limits, text: Schema) -> None:
        self.root, self.limits, self.text, self.nodes = root, limits, text, 0
        self.kinds = {"string": self._string, "array": self._array, "object": self._object}
        self.kinds |= {"integer": self._number, "number": self._number, "boolean": self._word, "null": self._word}

    def write(self, schema: Any, position: _Position) -> tuple[Schema, int]:
        """The schema and its longest reply in bytes. Raises Endless for one that only an endless reply fits."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise Unbounded("the schema is too large")
        schema, position = self._resolved(ANYTHING if schema is True else schema, position)
        position = replace(position, description=f"{position.description} {schema.get('description', '')}")
        schema = {key: value for key, value in schema.items() if key not in DEFINITIONS}
        if not schema.keys() - NOTES:
            return self.write({**schema, **ANYTHING}, position)
        if "anyOf" in schema or "oneOf" in schema:
            return self._choice(schema, "anyOf" if "anyOf" in schema else "oneOf", position)
        if "const" in schema or "enum" in schema:
            return schema, max(map(_length, schema.get("enum") or [schema["const"]]))
        if uncommon := UNCOMMON & schema.keys():
            raise Unbounded(f"a schema with {min(uncommon)}")
        kind: Any = schema.get("type") or (
            "object" if "properties" in schema else "array" if "items" in schema else None
        )
        if isinstance(kind, list):
            return self.write({"anyOf": [{**schema, "type": each} for each in kind]}, position)
        return self.kinds[kind]({**schema, "type": kind}, position)

    def _resolved(self, schema: Any, position: _Position) -> tuple[Any, _Position]:
        """The schema itself, where it names a definition, or parts that all have to fit."""
        while isinstance(schema, dict) and "$ref" in schema:
            name = schema["$ref"]
            position = replace(position, within={**position.within, name: position.within.get(name, 0) + 1})
            if position.within[name] > self.limits.depth:
                raise Endless
            if not name.startswith("#"):
                raise Unbounded(f"$ref {name!r} is not in the schema")
            definition: Any = self.root
            for part in name.split("/")[1:]:
                definition = definition[part.replace("~1", "/").replace("~0", "~")]
            schema = _joined({key: value for key, value in schema.items() if key != "$ref"}, definition)
        if isinstance(schema, dict) and (parts := schema.get("allOf")):
            schema = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                whole, position = self._resolved(part, position)
                schema = _joined(schema, whole)
            return self._resolved(schema, position)
        if not isinstance(schema, dict):
            raise Endless  # false: nothing fits it
        return schema, position

    def _choice(self, schema: Schema, kind: str, position: _Position) -> tuple[Schema, int]:
        beside = {key: value for key, value in schema.items() if key not in NOTES and key != kind}
        branches, size = list[Schema](), 0
        for branch in schema[kind]:
            with suppress(Endless):
                restricted, length = self.write(_joined(beside, branch) if beside else branch, position)
                branches.append(restricted)
                size = max(size, length)
        if not branches:
            raise Endless
        return {kind: branches}, size

    def _word(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        return schema, len("false")

    def _string(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        if not {"pattern", "format", "maxLength"} & schema.keys():
            schema |= self.text
        if "pattern" in schema and "format" in schema:
            raise Unbounded("a pattern and a format")  # of which the decoder rarely tells whether any text fits
        least, most, limit = schema.get("minLength", 0), schema.get("maxLength", math.inf), self.limits.string
        if pattern := schema.get("pattern"):
            try:
                shortest, widest = re._parser.parse(pattern).getwidth()  # type: ignore[attr-defined]
            except (re.error, OverflowError, RecursionError):
                raise Unbounded("a pattern that cannot be measured") from None
            most = min(most, widest) if re.fullmatch(r"\^[^|]*\$", pattern) else most
            limit = max(limit, 2 * int(shortest) + LEAST_PATTERN) if shortest else limit
        limit = max(limit, LEAST_PATTERN) if "format" in schema else limit
        if least > most:
            raise Endless
        length = int(max(least, min(most, limit)))
        return {**schema, "maxLength": length}, 2 + length * BYTES_PER_CHARACTER

    def _number(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        if not BOUNDS & schema.keys():
            schema |= described(position.description)
            if "enum" in schema:
                return schema, max(map(_length, schema["enum"]))
        low, high = _range(schema)
        whole = max(len(str(math.floor(low))), len(str(math.ceil(high))))
        if schema["type"] == "integer":
            return schema, whole
        if low == high:
            return {"enum": [low]}, len(repr(low))
        # A narrow range takes more digits, so that a hundred steps lie in it.
        digits = max(2, 2 - math.floor(math.log10(high - low)))
        if "multipleOf" in schema:
            digits = len(f"{schema['multipleOf']:.20f}".rstrip("0").partition(".")[2])
        elif low < 0 or (high < 1 and "exclusiveMinimum" in schema):
            schema = _written_out(schema, low, high)
        else:
            schema["multipleOf"] = float(f"1e-{digits}")
        return schema, whole + digits + 2

    def _array(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if least > most:
            raise Endless
        most = int(max(least, min(most, self.limits.items)))
        try:
            item, length = self.write(schema.get("items", {}), position)
        except Endless:
            if least:
                raise
            return {**schema, "items": {"type": "null"}, "maxItems": 0}, 2
        return {**schema, "items": item, "maxItems": most}, 2 + most * (length + 1)

    def _object(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        named, required = schema.get("properties") or {}, set(schema.get("required", []))
        more = schema.get("additionalProperties", {})
        if not named and not required and more is not False:
            return self._dictionary(more, position)
        wanted = {**named, **dict.fromkeys(sorted(required - named.keys()), more)}
        properties, size = {}, 2
        for name, value in wanted.items():
            try:
                properties[name], length = self.write(value, _Position("", position.within))
            except Endless:
                if name in required:
                    raise
                continue
            size += _length(name) + 2 + length
        return {**schema, "properties": properties, "additionalProperties": False}, size

    def _dictionary(self, value: Any, position: _Position) -> tuple[Schema, int]:
        """An object of keys that the model chooses."""
        try:
            restricted, length = self.write(value, position)
        except Endless:
            return {"type": "object", "properties": {}, "additionalProperties": False}, 2
        most = self.limits.items
        schema = {"type": "object", "patternProperties": {KEY: restricted}, "maxProperties": most}
        return {**schema, "additionalProperties": False}, 2 + most * (2 + 40 * 4 + 2 + length)


def _length(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _joined(one: Schema, other: Any) -> Schema:
    """A schema that fits both, where they say nothing twice. Raises Unbounded elsewhere."""
    if other is True:
        return one
    if not isinstance(other, dict):
        raise Endless
    for key in one.keys() & other.keys() - NOTES - DEFINITIONS:
        if one[key] != other[key]:
            raise Unbounded(f"a schema that says two things of {key}")
    mine, theirs = CONTENTS & one.keys(), CONTENTS & other.keys()
    if mine and theirs and mine != theirs:
        raise Unbounded("parts of a schema that have to be put together field by field")
    return {**other, **one}


def _written_out(schema: Schema, low: float, high: float) -> Schema:
    """A range with negative numbers, or small ones and not 0: the decoder knows no negative multiples of a decimal, and
    takes 0 for more than 0. A wide one has whole numbers."""
    if high - low > MOST_WRITTEN:
        return {"type": "integer", "minimum": math.ceil(low), "maximum": math.floor(high)}
    ten = next(ten for ten in (10**6, 10**5, 10**4, 1000, 100, 10, 1) if (high - low) * ten <= MOST_WRITTEN)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    values = [step / ten for step in range(math.ceil(low * ten), math.floor(high * ten) + 1)]
    return {"enum": [int(value) if value == int(value) else value for value in values if above < value < below]}


def _range(schema: Schema) -> tuple[float, float]:
    """The bounds of a number; missing ones are set, far beyond those that there are."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    if any(isinstance(bound, bool) or not isinstance(bound, int | float) for bound in (*lows, *highs)):
        raise Unbounded("bounds that are no numbers")
    width = max(LARGEST_NUMBER, 10 * schema.get("multipleOf", 1))
    if not lows:
        least = -width if schema["type"] == "integer" else 0  # a number without bounds has decimals
        lows = [least if not highs or min(highs) > least else min(highs) - width]
        schema["minimum"] = lows[0]
    if not highs:
        highs = [max(width, max(lows) + width)]
        schema["maximum"] = highs[0]
    if max(lows) > min(highs):
        raise Endless
    return max(lows), min(highs)
