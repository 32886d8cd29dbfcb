"""Compose the reply that a client's parser expects from a judge's score. All functions are pure.

The contract says where the verdict is placed, and the scale or labels are the client's. The judge's reason is placed
where the client expects reasoning.
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
"""Text to use if a client needs a reason and the judge wrote none."""

RANKS = dict.fromkeys(("no", "n", "false", "incorrect", "wrong", "fail", "failed", "bad"), 0)
RANKS |= dict.fromkeys(("partial", "partially", "partially correct"), 1)
RANKS |= dict.fromkeys(("yes", "y", "true", "correct", "right", "pass", "passed", "good"), 2)
"""Common labels with an obvious order -> rank, 0 for the worst."""


class ClientScore(NamedTuple):
    """A judge's score of one answer, or of the first of two answers.

    - `shares`: criterion -> score from 0.0 (worst) to 1.0 (best). The key is "" if there are no criteria.
    - `order`: the client's labels from worst to best, or empty if RANKS has them.
    - `reason`: the judge's reason, or None to leave it out.
    """

    shares: dict[str, float]
    order: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def share(self) -> float:
        return fmean(self.shares.values())


def compose(contract: Contract, request: Request, score: ClientScore) -> str:
    """Return the text of the reply. Raise Unanswerable if the score does not determine the verdict."""
    if contract.verdict is None:
        return _compose_object(contract, request, score)
    verdict = _spell_verdict(contract.verdict, score)
    # A client might read a draft verdict in the reason instead of the verdict.
    drafts = [contract.verdict, contract.never or re.escape(contract.opening or contract.verdict)]
    reason = score.reason or ""
    reason = NO_REASON if not reason or any(regex.search(draft, reason) for draft in drafts) else reason
    if contract.reasoning == "before":
        return f"{contract.begin}{reason}{contract.lead}{verdict}"
    follow = contract.follow or "\n"
    return f"{verdict}{follow}{reason}" if contract.reasoning == "after" else verdict


def _spell_verdict(pattern: str, score: ClientScore) -> str:
    """Return the verdict text that is nearest to the score.

    `pattern` is a regular expression whose only group is the value. Raise Unanswerable if it has another form, or if
    the order of its labels is unknown.

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
    """Return the text that a regular expression of literal characters matches."""
    return re.sub(r"\\(.)", r"\1", pattern.replace("\\n", "\n"))


def _nearest(scale: Mapping[Any, float], share: float) -> Any:
    """Return the key of `scale` whose number is nearest to the position `share` (0..1) between its lowest and highest
    number.

    On a scale of two numbers the higher one means that the answer is right, as in `_label`.

    >>> _nearest({"0": 0.0, "1": 1.0, "2": 2.0}, 0.8)
    '2'
    """
    low, high = min(scale.values()), max(scale.values())
    # On a scale of two numbers, one means that the answer is right.
    if len(scale) == 2:
        return max(scale, key=lambda value: scale[value] * (1 if is_right([share * 9 + 1]) == "yes" else -1))
    aim = low + share * (high - low)
    return min(scale, key=lambda value: (abs(scale[value] - aim), -scale[value]))


def _label(labels: list[str], score: ClientScore) -> str:
    """Return the label for a score. Raise Unanswerable if the order of the labels is unknown.

    Two or three labels mean wrong, (partly right) and right, with the thresholds of AlignMMBench, section 4.1: an
    answer is right from 7 on the scale 1..10. With more labels, each gets an equal part of the scale.

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
    """Return the JSON object of the reply. Its schema is the one that a generative judge would be constrained to.

    Raise Unanswerable if the schema cannot be filled from the score.
    """
    schema = reply_schema(contract, request, read_form(request))
    try:
        fields = bounded(schema).schema["properties"] if schema else {}
    except (Unbounded, LookupError):
        raise Unanswerable("its schema is none that a score fills") from None
    # One score cannot fill more than one rating, unless each has a criterion of the request.
    ratings = {name for name, field in fields.items() if field.get("type") in ("integer", "number")}
    if (len(ratings) > 1 and not ratings <= score.shares.keys()) or not (ratings or any(map(is_verdict, fields))):
        raise Unanswerable("it asks for several ratings, or for none")
    values = {name: _value(name, field, score) for name, field in fields.items()}
    return json.dumps(values, ensure_ascii=False)


def _value(name: str, field: Schema, score: ClientScore) -> Any:
    """Return the value of the key `name`, whose schema is `field`. Raise Unanswerable if the score does not determine
    it.
    """
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
