"""Bound JSON schemas so that every reply ends and fits into a number of tokens. All functions are pure.

Unlimited strings, lists and numbers get limits, objects are closed, and references are expanded. Every reply that is
valid for the bounded schema is valid for the original one. Whether the branches of a `oneOf` exclude each other is left
to the decoder.
"""

import json
import math
from contextlib import suppress
from typing import Any, NamedTuple

from scales import Schema, described, is_verdict

LARGEST_NUMBER = 1_000_000
BYTES_PER_CHARACTER = 6
"""Most bytes of a character: a control character is written as `\\u001f`, and UTF-8 takes at most 4. A token has at
least one byte.
"""

NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "discriminator"}
DEFINITIONS = {"$defs", "definitions"}
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
UNCOMMON = {"patternProperties", "minProperties", "maxProperties", "prefixItems"}
ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}


class Unbounded(Exception):
    """Raised for a schema that these rules cannot bound. vLLM then decodes with the client's own schema."""


class Endless(Unbounded):
    """Raised for a schema that no finite reply is valid for."""


class Limits(NamedTuple):
    """The most characters of a string and the most items of a list, unless the schema itself requires more."""

    string: int
    items: int

    def __str__(self) -> str:
        return f"characters={self.string}, items={self.items}"


LADDER = [Limits(string, 64) for string in (600, 400, 250, 160, 100, 60, 40)]
LADDER += [Limits(40, items) for items in (32, 16, 8, 4, 2, 1)]
LADDER += [Limits(20, 1), Limits(10, 1), Limits(4, 1), Limits(1, 1), Limits(1, 0)]
"""Limits to try, from loose to tight. Lists are shortened before strings become too short to be useful."""


class Bounded(NamedTuple):
    """A bounded schema, the size in bytes of the longest valid reply, and the limits that were used."""

    schema: Schema
    size: int
    limits: Limits


def bounded(schema: Schema, tokens: float = math.inf, pattern: str = "") -> Bounded:
    """Return the schema with the loosest limits under which the longest valid reply has fewer bytes than `tokens`.

    If no limits achieve this, use the tightest. `pattern` is a regular expression for strings without a maxLength, ""
    for none. Raise Unbounded if the schema cannot be bounded.

    >>> digits = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}}
    >>> bounded(digits, 500).schema["maxItems"], bounded({"type": "array", "items": {"type": "string"}}, 20_000).limits
    (64, Limits(string=40, items=64))
    """
    for limits in LADDER:
        restricted = within(schema, limits, pattern)
        if restricted.size < tokens:
            break
    return restricted


def within(schema: Schema, limits: Limits, pattern: str = "") -> Bounded:
    """Return the schema with `limits` for everything unlimited. Replies may have only the properties that it names.

    `pattern` is as in `bounded`. Raise Unbounded if the schema cannot be bounded.

    >>> within({"type": "array", "items": {"type": "string"}}, Limits(40, 8)).schema
    {'type': 'array', 'items': {'type': 'string', 'maxLength': 40}, 'maxItems': 8}

    The rules cannot bound these schemas:

    >>> def problems(*schemas):
    ...     for schema in schemas:
    ...         try:
    ...             yield within(schema, LADDER[0]).schema
    ...         except Unbounded as problem:
    ...             yield str(problem) or type(problem).__name__
    >>> null, text = {"type": "null"}, {"type": "string"}
    >>> uncommon = {"patternProperties": {"^x": text}}, {"prefixItems": [text], "items": False}
    >>> [*problems(*uncommon, {"type": "object", "properties": {"a": null}, "minProperties": 1})]
    ['a schema with patternProperties', 'a schema with prefixItems', 'a schema with minProperties']
    >>> {*problems({"type": "object"}, {"type": "object", "additionalProperties": {"type": "integer"}})}
    {'keys that the model chooses'}
    >>> two = [text, null], [{"enum": [1, 2]}, {"enum": [2, 3]}], [{"enum": [1]}, {"enum": [2]}]
    >>> rules = [{"minimum": 1}, {"type": "integer"}], [{"format": "date"}, {"format": "email"}]
    >>> items = [{"prefixItems": [text]}, {"items": {"maxLength": 2}}]
    >>> keys = [{"properties": {"a": {"enum": [1, 2]}}}, {"properties": {"a": {"enum": [2, 3]}}}]
    >>> others = [{"additionalProperties": null}, {"properties": {"a": text}}]
    >>> {*problems(*({"allOf": both} for both in (*two, *rules, items, keys, others)))}
    {'parts of a schema that all have to fit'}
    >>> decimals = {"minimum": -1, "maximum": 1}, {"minimum": 0.121, "maximum": 0.125}
    >>> above_zero = {"exclusiveMinimum": 0, "maximum": 0.5}
    >>> {*problems(*({"type": "number", **bounds} for bounds in (*decimals, above_zero)))}
    {'a range of decimals that is negative or narrow'}
    >>> {*problems({**text, "pattern": "^a{7,}$"}, {**text, "format": "date"})}
    {'a text of a pattern or a format'}
    >>> wrong = {"minimum": 3}, {"type": "number", "minimum": "1"}, {"type": "object", "properties": 5}
    >>> {*problems({"$ref": "elsewhere.json"}, {"$ref": "#/$defs/none"}, *wrong)}
    {'no schema that can be read'}
    >>> itself = {"$ref": "#"}
    >>> {*problems(itself, {"allOf": [itself]}, {"type": "object", "properties": {"a": itself}, "required": ["a"]})}
    {'Endless'}
    """
    try:
        return Bounded(*_Writer(schema, limits, pattern).write(schema, _Position()), limits)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        raise Unbounded("no schema that can be read") from None


def ends(schema: Schema) -> bool:
    """Return False if no finite reply is valid for the schema, as far as these rules can tell.

    Raise RecursionError if the schema is nested too deeply.
    """
    try:
        within(schema, LADDER[-1])
    except Unbounded as problem:
        return not isinstance(problem, Endless)  # vLLM reports any other problem
    return True


class _Position(NamedTuple):
    """Context of a subschema: the descriptions around it, and the names of the definitions that contain it."""

    description: str = ""
    within: tuple[str, ...] = ()


class _Writer:
    """Expands references, applies limits, and adds up the size of the longest valid reply."""

    def __init__(self, root: Schema, limits: Limits, pattern: str) -> None:
        self.root, self.limits, self.pattern, self.nodes = root, limits, pattern, 0
        self.kinds = {"string": self._string, "array": self._array, "object": self._object}
        self.kinds |= {"integer": self._number, "number": self._number}

    def write(self, schema: Any, position: _Position) -> tuple[Schema, int]:
        """Return the bounded schema and the size in bytes of its longest valid reply.

        Raise Endless if no finite reply is valid, and Unbounded if the schema cannot be bounded.
        """
        self.nodes += 1
        # Nested references can grow exponentially and take minutes to expand.
        if self.nodes > 2000:
            raise Unbounded("the schema is too large")
        schema, position = self._resolved(ANYTHING if schema is True else schema, position)
        position = position._replace(description=f"{position.description} {schema.get('description', '')}")
        schema = {key: value for key, value in schema.items() if key not in DEFINITIONS}
        # A schema without keywords allows any value; restrict it to plain values, which are finite.
        if not schema.keys() - NOTES:
            return self.write({**schema, **ANYTHING}, position)
        if "anyOf" in schema or "oneOf" in schema:
            return self._choice(schema, "anyOf" if "anyOf" in schema else "oneOf", position)
        if "const" in schema or "enum" in schema:
            return schema, max(map(_length, schema.get("enum") or [schema["const"]]))
        if uncommon := UNCOMMON & schema.keys():
            raise Unbounded(f"a schema with {min(uncommon)}")
        kind: Any = schema.get("type") or ("object" if "properties" in schema else "items" in schema and "array")
        if isinstance(kind, list):
            return self.write({"anyOf": [{**schema, "type": type_name} for type_name in kind]}, position)
        if kind in ("boolean", "null"):
            return schema, len("false")
        return self.kinds[kind]({**schema, "type": kind}, position)

    def _resolved(self, schema: Any, position: _Position) -> tuple[Any, _Position]:
        """Return the schema with `$ref` and an `allOf` of one item expanded, and its new position.

        Raise Unbounded if two schemas must hold at once. Raise Endless if a definition contains itself more than three
        times, or if no value is allowed.
        """
        while isinstance(schema, dict) and ("$ref" in schema or "allOf" in schema):
            beside = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
            if beside.keys() - NOTES - DEFINITIONS or ("allOf" in schema and ("$ref" in schema or schema["allOf"][1:])):
                raise Unbounded("parts of a schema that all have to fit")
            if "allOf" in schema:
                schema = {**schema["allOf"][0], **beside}
                continue
            name, definition = schema["$ref"], {"#": self.root}
            if position.within.count(name) == 3:
                raise Endless  # a definition may contain itself at most three times
            for part in name.split("/"):
                definition = definition[part.replace("~1", "/").replace("~0", "~")]
            position = position._replace(within=(*position.within, name))
            schema = {**definition, **beside}
        if not isinstance(schema, dict):
            raise Endless  # false: no value is valid
        return schema, position

    def _choice(self, schema: Schema, kind: str, position: _Position) -> tuple[Schema, int]:
        if schema.keys() - NOTES - {kind}:
            raise Unbounded("a choice beside other rules")
        written = list[tuple[Schema, int]]()
        for branch in schema[kind]:
            with suppress(Endless):
                written.append(self.write(branch, position))
        if not written:
            raise Endless
        branches, sizes = zip(*written, strict=True)
        return {kind: [*branches]}, max(sizes)

    def _string(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        if {"pattern", "format"} & schema.keys():
            raise Unbounded("a text of a pattern or a format")  # its length is known only to the decoder
        least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        # A string that the client has bounded gets no pattern.
        if self.pattern and most == math.inf:
            schema["pattern"] = self.pattern
        length = int(min(most, max(least, self.limits.string)))
        return {**schema, "maxLength": length}, 2 + length * BYTES_PER_CHARACTER

    def _number(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        if not BOUNDS & schema.keys():
            schema |= described(position.description[:1000])
            if "enum" in schema:
                return schema, max(map(_length, schema["enum"]))
        low, high = _range(schema)
        whole = max(len(str(math.floor(low))), len(str(math.ceil(high))))
        if schema["type"] == "integer":
            return schema, whole
        if "multipleOf" in schema:
            return schema, whole + 2 + len(f"{schema['multipleOf']:.20f}".rstrip("0").partition(".")[2])
        # The decoder supports no negative multiples of 0.01, may find none in a narrow range, and accepts 0 as above 0.
        if low < 0 or high - low < 0.1 or ("exclusiveMinimum" in schema and high < 1):
            raise Unbounded("a range of decimals that is negative or narrow")
        return {**schema, "multipleOf": 0.01}, whole + 4

    def _array(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        most = int(min(most, max(least, self.limits.items)))
        try:
            item, length = self.write(schema.get("items", {}), position)
        except Endless:
            # A list that may be empty ends without such items.
            if least:
                raise
            return {**schema, "items": {"type": "null"}, "maxItems": 0}, 2
        return {**schema, "items": item, "maxItems": most}, 2 + most * (length + 1)

    def _object(self, schema: Schema, position: _Position) -> tuple[Schema, int]:
        named = schema.get("properties") or {}
        # If the client requires nothing, the verdicts are required.
        if required := schema.get("required") or list(filter(is_verdict, named)):
            schema["required"] = required
        if not named or set(required) - named.keys():
            raise Unbounded("keys that the model chooses")
        properties, size = {}, 2
        for name, value in named.items():
            try:
                properties[name], length = self.write(value, _Position("", position.within))
            except Endless:
                # An optional key that never ends is left out.
                if name in required:
                    raise
                continue
            size += _length(name) + 2 + length
        return {**schema, "properties": properties, "additionalProperties": False}, size


def _length(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _range(schema: Schema) -> tuple[float, float]:
    """Return the bounds (low, high) of a number schema. Bounds that are missing are added to `schema`.

    Raise Unbounded if a bound is not a number.
    """
    if any(isinstance(schema.get(bound), bool) for bound in BOUNDS):
        raise Unbounded("bounds that are no numbers")
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    # The decoder needs both ends to bound the digits.
    if low == -math.inf:
        least = -LARGEST_NUMBER if schema["type"] == "integer" else 0  # a number without bounds has decimals
        low = schema["minimum"] = least if high > least else high - LARGEST_NUMBER
    if high == math.inf:
        high = schema["maximum"] = max(LARGEST_NUMBER, low + LARGEST_NUMBER)
    return low, high
