"""JSON schemas put together: one that a reply fits if it fits both. Everything here is pure."""

import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

Schema = dict[str, Any]


class Unbounded(Exception):
    """A schema that cannot be restricted here: it goes on as the client sent it."""


class Endless(Exception):
    """Only an endless reply, or none, fits."""


NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly"}
ALSO = "x-also"
"""Patterns beside a string's own, until they are written as its `allOf`."""

_IN_ORDER = ("prefixItems", "items")
_BY_KEY = ("properties", "patternProperties", "additionalProperties")
MOST_BRANCHES = 64


def both(one: Any, other: Any) -> Any:
    """A schema that both fit, written out where it is met."""
    if one is False or other is False:
        return False
    if other in (True, {}) or (one == other and json.dumps(one) == json.dumps(other)):  # 1 equals true in Python
        return one
    return other if one in (True, {}) else {"allOf": [one, other]}


def merged(one: Schema, other: Any) -> Schema:
    """A schema that both fit. Raises Unbounded where that cannot be written."""
    if other is True:
        return one
    if not isinstance(other, dict):
        raise Endless
    done = {**other, **one}
    for key in one.keys() & other.keys() - NOTES - {"$defs", "definitions", *_IN_ORDER, *_BY_KEY}:
        done[key] = _agreed(key, one[key], other[key])
    if {"const", "enum"} <= done.keys():
        done["enum"] = _shared(done["enum"], [done.pop("const")])
    if "pattern" in one and one.get("pattern") != other.get("pattern", one["pattern"]):
        done[ALSO] = [*done.get(ALSO, []), {"pattern": other["pattern"]}]
    if any(key in whole for whole in (one, other) for key in _BY_KEY):
        names = dict.fromkeys([*one.get("properties", {}), *other.get("properties", {})])
        done["properties"] = {name: both(of_key(name, one), of_key(name, other)) for name in names}
        done["additionalProperties"] = both(
            one.get("additionalProperties", True), other.get("additionalProperties", True)
        )
        patterns = [one.get("patternProperties") or {}, other.get("patternProperties") or {}]
        patterned = {
            name: both(patterns[0].get(name, True), patterns[1].get(name, True))
            for name in {**patterns[0], **patterns[1]}
        }
        done |= {"patternProperties": patterned} if patterned else {}
    if any(key in whole for whole in (one, other) for key in _IN_ORDER):
        count = max(len(whole.get("prefixItems", [])) for whole in (one, other))
        done["items"] = both(one.get("items", True), other.get("items", True))
        if count:
            done["prefixItems"] = [both(_of_place(at, one), _of_place(at, other)) for at in range(count)]
    return done


def of_key(name: str, schema: Schema) -> Any:
    """What a schema wants of the property of this name."""
    wanted = schema.get("properties", {}).get(name, True)
    matching = [one for pattern, one in (schema.get("patternProperties") or {}).items() if re.search(pattern, name)]
    for one in matching:
        wanted = both(wanted, one)
    return wanted if matching or name in schema.get("properties", {}) else schema.get("additionalProperties", True)


def _of_place(at: int, schema: Schema) -> Any:
    first = schema.get("prefixItems", [])
    return first[at] if at < len(first) else schema.get("items", True)


def _agreed(key: str, one: Any, other: Any) -> Any:
    """What satisfies both values of a keyword. Raises Unbounded where none is known to, Endless where none can."""
    if one == other and type(one) is type(other):
        return one
    if key == "format":
        raise Endless  # few texts are of two formats, if any
    if key not in AGREED:
        raise Unbounded(f"a schema that says two things of {key}")
    return AGREED[key](one, other)


def _each_with_each(one: list[Any], other: list[Any]) -> list[Any]:
    if len(one) * len(other) > MOST_BRANCHES:
        raise Unbounded("a schema of too many branches")
    return [both(first, second) for first, second in product(one, other)]


def _multiple(one: float, other: float) -> float:
    first, second = Fraction(str(one)), Fraction(str(other))
    least = Fraction(math.lcm(first.numerator, second.numerator), math.gcd(first.denominator, second.denominator))
    return least.numerator if least.denominator == 1 else float(least)


def _shared(one: list[Any], other: list[Any]) -> list[Any]:
    known = {json.dumps(value, sort_keys=True) for value in other}
    values = [value for value in one if json.dumps(value, sort_keys=True) in known]
    if not values:
        raise Endless
    return values


def _shared_types(one: Any, other: Any) -> Any:
    first, second = (types if isinstance(types, list) else [types] for types in (one, other))
    types = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    types += [kind for kind in second if kind == "integer" and kind not in first and "number" in first]
    if not types:
        raise Endless
    return types if isinstance(one, list) or isinstance(other, list) else types[0]


def values_of(schema: Schema) -> list[Any]:
    values: list[Any] = schema["enum"] if "enum" in schema else [schema["const"]]
    return _shared(values, [schema["const"]]) if "const" in schema else values


AGREED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    **dict.fromkeys(("allOf", ALSO), lambda one, other: [*one, *other]),
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    # Of pairs just one fits if of each list just one does.
    **dict.fromkeys(("anyOf", "oneOf"), _each_with_each),
    "multipleOf": _multiple,
    "pattern": lambda one, _: one,
    "type": _shared_types,
    "enum": _shared,
    "const": lambda one, other: _shared([one], [other])[0],
}
"""Of each keyword, what satisfies two values of it."""
