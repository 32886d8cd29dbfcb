"""The reply that a client's parser reads, composed from a judge's score. Everything here is pure.

The verdict stands where the contract says, on the client's own scale or among its labels; the judge's reason stands
where the client lets its judge reason.
"""

import json
import math
import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

import regex
from api_formats import Request
from contracts import Contract, Unanswerable, read_form, reply_schema
from scales import Schema, is_verdict
from schemas import Unbounded, bounded

from critic.judging.kinds.choices import is_right

NO_REASON = "The judge wrote no reason."
"""In the place of a reason, for clients that need one."""

RANKS = dict.fromkeys(("no", "n", "false", "incorrect", "wrong", "fail", "failed", "bad"), 0)
RANKS |= dict.fromkeys(("partial", "partially", "partially correct"), 1)
RANKS |= dict.fromkeys(("yes", "y", "true", "correct", "right", "pass", "passed", "good"), 2)
"""Labels that clients use and whose order needs no explanation."""


class ClientScore(NamedTuple):
    """A judge's score of an answer, or of the first of two.

    `shares` are from 0.0 (worst) to 1.0 (best) by criterion, "" if there is none. `order` is that of the client's
    labels, the worst first; empty if their own words say it.
    """

    shares: dict[str, float]
    order: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def share(self) -> float:
        return fmean(self.shares.values())


def compose(contract: Contract, request: Request, score: ClientScore) -> str:
    """Return the text of a reply. Raises Unanswerable."""
    if contract.verdict is None:
        return _compose_object(contract, request, score)
    verdict = _spell_verdict(contract.verdict, score)
    # A draft of a verdict in the reason would be what the client reads.
    drafts = [contract.verdict, contract.never or re.escape(contract.opening or contract.verdict)]
    reason = score.reason or ""
    reason = NO_REASON if not reason or any(regex.search(draft, reason) for draft in drafts) else reason
    if contract.reasoning == "before":
        return f"{contract.begin}{reason}{contract.lead}{verdict}"
    follow = contract.follow or "\n"
    return f"{verdict}{follow}{reason}" if contract.reasoning == "after" else verdict


def _spell_verdict(pattern: str, score: ClientScore) -> str:
    """Return the text of a verdict that is nearest to the score. Its expression has the value in its one group.

    >>> _spell_verdict(r"\\[\\[(10|[1-9])\\]\\]", ClientScore({"": 0.65}))
    '[[7]]'
    """
    shape = re.fullmatch(r"([^(]*)\((.*)\)([^)]*)", pattern, re.DOTALL)
    if shape is None:
        raise Unanswerable("its verdict is no single value")
    values = [*map(_plain, re.split(r"(?<!\\)\|", shape[2]))]
    scale = dict[str, float]()
    for value in (*values, *map(str, range(101))):
        # "7/10" is a 7.
        if (number := re.fullmatch(r"(-?[0-9.]+)(?: ?/ ?[0-9]+)?", value)) and re.fullmatch(shape[2], value):
            scale[value] = float(number[1])
    value = _label(values, score) if score.order or not scale else _nearest(scale, score.share)
    return f"{_plain(shape[1])}{value}{_plain(shape[3])}"


def _plain(pattern: str) -> str:
    """Return the text that an expression of one text stands for."""
    return re.sub(r"\\(.)", r"\1", pattern.replace("\\n", "\n"))


def _nearest(scale: Mapping[Any, float], share: float) -> Any:
    """Return the value of a scale that is nearest to a share of the way from its lowest to its highest number.

    >>> _nearest({"0": 0.0, "1": 1.0, "2": 2.0}, 0.8)
    '2'
    """
    low, high = min(scale.values()), max(scale.values())
    # Of two numbers one says that the answer is right.
    if len(scale) == 2:
        return max(scale, key=lambda value: scale[value] * (1 if is_right([share * 9 + 1]) == "yes" else -1))
    aim = low + share * (high - low)
    return min(scale, key=lambda value: (abs(scale[value] - aim), -scale[value]))


def _label(labels: list[str], score: ClientScore) -> str:
    """Return the label of a score. Raises Unanswerable if nothing says the order of the labels.

    Up to three labels say right, wrong and neither by people's scores (AlignMMBench, section 4.1): from 7 on 1..10 an
    answer is right. More labels have equal parts of the scale.

    >>> [_label(["incorrect", "partial", "correct"], ClientScore({"": (rating - 1) / 9})) for rating in (5, 6, 7)]
    ['incorrect', 'partial', 'correct']
    """
    ranks = {label: RANKS.get(label.strip(" []*\"'").lower()) for label in labels}
    if not score.order and (None in ranks.values() or len({*ranks.values()}) < len(labels)):
        raise Unanswerable(f"nothing says which of its labels is better: {', '.join(labels)}"[:200])
    order = score.order or sorted(labels, key=lambda label: ranks[label] or 0)
    if len(order) > 3:
        return order[min(math.floor(score.share * len(order)), len(order) - 1)]
    is_best = is_right([score.share * 9 + 1])
    return order[-1] if is_best == "yes" else order[0] if is_best == "no" or len(order) == 2 else order[1]


def _compose_object(contract: Contract, request: Request, score: ClientScore) -> str:
    """Return the JSON object of a reply, by the schema that a judge who writes is held to. Raises Unanswerable."""
    schema = reply_schema(contract, request, read_form(request))
    try:
        fields = bounded(schema).schema["properties"] if schema else {}
    except (Unbounded, LookupError):
        raise Unanswerable("its schema is none that a score fills") from None
    # Of several ratings each is another question, unless the request names a criterion for each.
    ratings = {name for name, field in fields.items() if field.get("type") in ("integer", "number")}
    if (len(ratings) > 1 and not ratings <= score.shares.keys()) or not (ratings or any(map(is_verdict, fields))):
        raise Unanswerable("it asks for several ratings, or for none")
    values = {name: _value(name, field, score) for name, field in fields.items()}
    return json.dumps(values, ensure_ascii=False)


def _value(name: str, field: Schema, score: ClientScore) -> Any:
    """Return the value of one key. Raises Unanswerable."""
    field = next((branch for branch in field.get("anyOf", ()) if branch.get("type") != "null"), field)
    share, values, kind = score.shares.get(name, score.share), field.get("enum") or [], field.get("type")
    if kind == "string" and not is_verdict(name):
        # The client may bound its texts.
        return (score.reason or NO_REASON)[: field.get("maxLength")]
    if values and all(isinstance(value, str) for value in values):
        return _label(values, score)
    if values and all(isinstance(value, int | float) for value in values):
        return _nearest(dict(zip(values, map(float, values), strict=True)), share)
    if kind == "boolean":
        return is_right([share * 9 + 1]) == "yes"
    if kind in ("integer", "number") and (is_verdict(name) or name in score.shares):
        number = field["minimum"] + share * (field["maximum"] - field["minimum"])
        return math.floor(number + 0.5) if kind == "integer" else round(number, 2)
    raise Unanswerable(f"its key {name!r} is none that a score fills"[:200])
