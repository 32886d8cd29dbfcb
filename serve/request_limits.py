"""Refuse requests on any route that would block or crash vLLM, with status 400, before vLLM reads them.

The decoder processes every choice, pattern and branch of a schema before its first token, and a tokenizer fails on half
of a surrogate pair. All functions are pure.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from api_formats import Refusal
from contracts import FORBIDDING
from schemas import ends

from critic.errors import loads, replace_surrogates

MOST_VALUES = 500_000
"""Most commas in a body. Parsing a larger body would block the event loop."""

MOST_REPEATED = 99_999
"""Largest minItems or maxItems of a list. The decoder expands them, and a larger number would exhaust the memory."""

MOST_ITEMS = 2000
"""Most entries of any list or object in a constraint: choices, `enum` values, branches, properties, tools."""

FEWER = {"oneOf": 64, "patternProperties": 64, "properties": 400}
"""Lower limits for keywords whose entries the decoder compares or combines with each other."""

MOST_PATTERN = 20_000
"""Most characters of a pattern or grammar. One with 50,000 optional letters takes the decoder more than a second."""

MOST_CONSTRAINT = 500_000
"""Most characters of one constraint, written as JSON."""

PATTERNS = {"regex", "pattern", "grammar", "whitespace_pattern", "structural_tag"}
CONSTRAINTS = {"structured_outputs", "response_format", "text", "tools", "functions", "stop", "bad_words"}
"""Request fields that can constrain a reply. They are checked if their value is a list or object."""

SCHEMAS = {"json", "schema", "parameters", "input_schema"}
WRITTEN = {"json", "structural_tag"}
"""Fields whose string value is itself JSON."""

GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
GUIDED |= {"guided_whitespace_pattern": "whitespace_pattern"}
"""Fields of vLLM before 0.12, which it now ignores -> their names in `structured_outputs`."""

ESCAPED_HALF = re.compile(rb"(?i)\\ud[89a-f]")


def read(body: bytes) -> tuple[Any, bool]:
    """Return the parsed JSON of a body, and whether `guided_*` fields in it were converted.

    The JSON is None if the body is not valid JSON; vLLM then reports the error. Raise Refusal if the request exceeds a
    limit.
    """
    # Counting commas is fast; parsing could block the event loop for seconds.
    if body.count(b",") > MOST_VALUES:
        raise Refusal(f"a request has at most {MOST_VALUES:,} values")
    with suppress(ValueError, RecursionError):
        sent = json.loads(body)
        request = _with_a_form(sent) if isinstance(sent, dict) else sent
        # Only an escape can spell half a pair: UTF-8 itself cannot.
        if ESCAPED_HALF.search(body) and replace_surrogates(request) != request:
            raise Refusal("the request holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")
        for name, value in _fields(request):
            if name in CONSTRAINTS and isinstance(value, dict | list):
                _check_constraint(name, value)
        return request, request is not sent
    return None, False


def _with_a_form(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with its `guided_*` fields converted to `structured_outputs`.

    Raise Refusal if the request has two constraints. Raise it too if the request has a constraint and also forbids
    words: that may leave nothing to generate, which vLLM answers with a 500 error.
    """
    guided = {GUIDED[name]: request[name] for name in GUIDED if request.get(name) is not None}
    named = sorted(guided.keys() - {"whitespace_pattern"})
    if len(named) > 1 or (named and request.get("structured_outputs")):
        names = " and ".join(f"guided_{name}" for name in named)
        raise Refusal(f'{names}: write one form only, as "structured_outputs": {{"{named[0]}": ...}}')
    if named:
        request = {name: value for name, value in request.items() if name not in GUIDED}
        request["structured_outputs"] = guided
    # /v1/responses has its form in `text`.
    text = request.get("text")
    forms = (request.get("response_format"), text.get("format") if isinstance(text, dict) else None)
    kinds = [form.get("type") for form in forms if isinstance(form, dict)]
    held = request.get("structured_outputs") or any(kind not in (None, "text") for kind in kinds)
    forbidding = next(filter(request.get, FORBIDDING), None)
    if forbidding and (held or (request.get("tools") and request.get("tool_choice") not in (None, "none", "auto"))):
        raise Refusal(
            f"{forbidding} may leave the form of the reply nothing to write: leave {forbidding} or the form out"
        )
    return request


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value of nested lists and objects, at any depth."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from part.items()
        inner = part.values() if isinstance(part, dict) else part
        waiting += [item for item in inner if isinstance(item, dict | list)] if isinstance(part, dict | list) else []


def _check_constraint(name: str, constraint: Any) -> None:
    """Raise Refusal if a constraint of the reply is too large, nested too deeply, or allows no finite reply.

    `name` is the request field that holds it.
    """
    waiting: list[tuple[str, Any, bool]] = [(name, constraint, False)]
    schemas: list[dict[str, Any]] = []
    while waiting:
        key, value, in_schema = waiting.pop()
        # A schema given as a JSON string costs the decoder as much.
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
        raise Refusal(f"{name} has more than {MOST_CONSTRAINT:,} characters")
    try:
        endless = not all(map(ends, schemas))
    except RecursionError:
        raise Refusal("a schema is nested too deep") from None
    if endless:
        raise Refusal("a schema requires itself, so that no reply to it ends: make that part optional")


def _check_size(key: str, value: Any) -> None:
    if isinstance(value, str) and key in PATTERNS and len(value) > MOST_PATTERN:
        raise Refusal(f"{key} has {len(value):,} characters; at most {MOST_PATTERN:,}")
    if key in ("minItems", "maxItems") and isinstance(value, int | float) and value > MOST_REPEATED:
        raise Refusal(f"{key} of a schema is {value:g}; at most {MOST_REPEATED:,}")
    most = FEWER.get(key, MOST_ITEMS)
    if isinstance(value, dict | list) and len(value) > most:
        raise Refusal(f"{key} has {len(value):,} entries; at most {most:,}")
