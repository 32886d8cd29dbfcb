"""What no request may ask for, whatever its route: each violation is a Refusal with status 400, before vLLM reads it.

The decoder works through every choice, pattern and branch of a schema before its first token, and a tokenizer takes
no half of a surrogate pair. Everything here is pure.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from api_formats import Refusal
from contracts import FORBIDDING
from schemas import ends

from critic.errors import loads, replace_surrogates

MOST_VALUES = 500_000
"""Commas in a body: while Python reads it, nobody is answered."""

MOST_REPEATED = 99_999
"""Items that a list in a reply may have or need: the decoder writes them out, and a large number takes all memory."""

MOST_ITEMS = 2000
"""Choices, values of an `enum`, branches, properties, tools: the length of any list or object in a constraint."""

FEWER = {"oneOf": 64, "patternProperties": 64, "properties": 400}
"""What is compared with every other, or with every property; properties that may all be left out are tried together."""

MOST_PATTERN = 20_000
"""Characters of a pattern or a grammar. One of 50,000 optional letters takes the decoder more than a second."""

MOST_CONSTRAINT = 500_000
"""Characters of all that constrains a reply."""

PATTERNS = {"regex", "pattern", "grammar", "whitespace_pattern", "structural_tag"}
CONSTRAINTS = {"structured_outputs", "response_format", "text", "tools", "functions", "stop", "bad_words"}
"""Fields that say what a reply may be; they count where they hold no plain text."""

SCHEMAS = {"json", "schema", "parameters", "input_schema"}
WRITTEN = {"json", "structural_tag"}
"""Fields whose text is JSON itself."""

GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
GUIDED |= {"guided_whitespace_pattern": "whitespace_pattern"}
"""Fields that vLLM had before 0.12 and now ignores, and their names in `structured_outputs`."""

ESCAPED_HALF = re.compile(rb"(?i)\\ud[89a-f]")


def read(body: bytes) -> tuple[Any, bool]:
    """Return the JSON of a body, None if it is none (vLLM says what is wrong with it), and whether it was changed: see
    `_with_a_form`. Raises Refusal beyond a bound."""
    # Counting commas is fast: Python's reader would keep the event loop for seconds.
    if body.count(b",") > MOST_VALUES:
        raise _refused(f"a request has at most {MOST_VALUES:,} values")
    try:
        sent = json.loads(body)
        request = _with_a_form(sent) if isinstance(sent, dict) else sent
        # Only an escape can spell half a pair: UTF-8 itself cannot.
        if ESCAPED_HALF.search(body) and replace_surrogates(request) != request:
            raise _refused("the request holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")
        for name, value in _fields(request):
            if name in CONSTRAINTS and isinstance(value, dict | list):
                _check_constraint(name, value)
    except (ValueError, RecursionError):
        return None, False
    return request, request is not sent


def _with_a_form(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with `guided_*` as `structured_outputs`.

    Raises Refusal if it names two forms, or words that it forbids beside a form: none of the form's may be left, and
    vLLM answers that with 500.
    """
    guided = {GUIDED[name]: request[name] for name in GUIDED if request.get(name) is not None}
    named = sorted(guided.keys() - {"whitespace_pattern"})
    if len(named) > 1 or (named and request.get("structured_outputs")):
        names = " and ".join(f"guided_{name}" for name in named)
        raise _refused(f'{names}: write one form only, as "structured_outputs": {{"{named[0]}": ...}}')
    if named:
        request = {name: value for name, value in request.items() if name not in GUIDED}
        request["structured_outputs"] = guided
    choice = request.get("tool_choice")
    # /v1/responses has its form in `text`.
    text = request.get("text")
    forms = (request.get("response_format"), text.get("format") if isinstance(text, dict) else None)
    kinds = [form.get("type") for form in forms if isinstance(form, dict)]
    held = request.get("structured_outputs") or any(kind not in (None, "text") for kind in kinds)
    forbidding = next(filter(request.get, FORBIDDING), None)
    if forbidding and (held or (request.get("tools") and choice not in (None, "none", "auto"))):
        raise _refused(
            f"{forbidding} may leave the form of the reply nothing to write: leave {forbidding} or the form out"
        )
    return request


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and its value, at any depth."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from part.items()
        inner = part.values() if isinstance(part, dict) else part
        waiting += [item for item in inner if isinstance(item, dict | list)] if isinstance(part, dict | list) else []


def _check_constraint(name: str, constraint: Any) -> None:
    """Raise Refusal if a constraint of the reply is too large, or asks for a reply without an end."""
    waiting: list[tuple[str, Any, bool]] = [(name, constraint, False)]
    schemas: list[dict[str, Any]] = []
    while waiting:
        key, value, in_schema = waiting.pop()
        # A schema that is written as text costs the decoder as much.
        if isinstance(value, str) and key in WRITTEN and not in_schema and len(value) <= MOST_CONSTRAINT:
            with suppress(ValueError):
                value = loads(value)
        _check_size(key, value)
        # A property called `schema` within a schema is no schema.
        if key in SCHEMAS and not in_schema and isinstance(value, dict):
            in_schema = True
            schemas.append(value)
        entries = value.items() if isinstance(value, dict) else []
        entries = [(key, item) for item in value] if isinstance(value, list) else entries
        waiting += [(inner, item, in_schema) for inner, item in entries]
    if len(json.dumps(constraint, ensure_ascii=False)) > MOST_CONSTRAINT:
        raise _refused(f"{name} has more than {MOST_CONSTRAINT:,} characters")
    try:
        endless = not all(map(ends, schemas))
    except RecursionError:
        raise _refused("a schema is nested too deep") from None
    if endless:
        raise _refused("a schema requires itself, so that no reply to it ends: make that part optional")


def _check_size(key: str, value: Any) -> None:
    if isinstance(value, str) and key in PATTERNS and len(value) > MOST_PATTERN:
        raise _refused(f"{key} has {len(value):,} characters; at most {MOST_PATTERN:,}")
    if key in ("minItems", "maxItems") and isinstance(value, int | float) and value > MOST_REPEATED:
        raise _refused(f"{key} of a schema is {value:g}; at most {MOST_REPEATED:,}")
    most = FEWER.get(key, MOST_ITEMS)
    if isinstance(value, dict | list) and len(value) > most:
        raise _refused(f"{key} has {len(value):,} entries; at most {most:,}")


def _refused(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, None, message)
