"""Does a judge look at the image? The same answers judged seeing, blind, with another image, and with one fact edited:
the arms of `critic attack --images`, each a row of its own."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from critic.errors import UsageError
from critic.human_scored import BLIND, EDITED, SWAPPED, Loaded
from critic.records import Judgment
from critic.stats.estimate import Estimate
from eval_agreement.measures.compare import MetricDifference, compare
from eval_agreement.measures.injection import (
    CLEAN,
    SEPARATOR,
    VariantEffect,
    by_mark,
    count,
    points,
    scores_of,
    variant_effect,
)
from eval_agreement.reading.audit_items import COLUMN_SUFFIX
from eval_agreement.sample import RatedSample
from eval_agreement.sentences import say, texts_of

ARMS = (BLIND, SWAPPED, EDITED)
"""An answer judged without the image; with another question's; with one fact changed that the image decides."""

HIGH, NOTICED = 7.0, 1.0
"""Answers that people gave HIGH or more are right: another image, or another fact, makes them wrong. The judge has
noticed where it gives NOTICED points less."""

_NUMBER = re.compile(
    r"^[^\w\n]*\d{1,6}(?:[.)）．](?=[^\S\n]+\S|[^\s\d])|、)|(?<![\d.,])(\d{1,6})(?![\d.,]*\d)", re.MULTILINE
)
"""A number at the head of a line of a list, which is no fact, or one that is (group 1)."""

_REASONS = {"en": "{old}, not {new}.", "zh": "应为{old}，而非{new}。"}


class Fact(Struct):
    """What a row's column `edit` names, JSON in a table: this fact becomes that one."""

    old: str
    new: str


def _named(row_id: str, edit: Any) -> Fact | None:
    """Raises UsageError for an `edit` that names no fact."""
    try:
        return msgspec.json.decode(edit, type=Fact) if isinstance(edit, str) else msgspec.convert(edit, Fact | None)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UsageError(f'{row_id}: edit is to be {{"old": …, "new": …}}, words of the answer: {error}') from None


def edited(text: str, lang: str, key: str, given: Fact | None = None) -> tuple[str, str] | None:
    """The text with one fact changed, and why it is wrong now: the one `given`, else the first word of `edits.toml` or
    number that is not one of a list, the same in every run by `key`. None where there is nothing to change."""
    if given:
        changed = text.replace(given.old, given.new, 1)
        return None if changed == text else (changed, _REASONS[lang].format(old=given.old, new=given.new))
    lot = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
    facts: list[tuple[int, int, str]] = []
    for words in texts_of("edits.toml")[lang]:
        around = r"(?<![a-z])({})(?![a-z])" if lang == "en" else "({})"
        if hit := re.search(around.format("|".join(map(re.escape, words))), text, re.IGNORECASE):
            others = [word for word in words if word != hit[1].lower()]
            new = others[lot % len(others)]
            facts.append((*hit.span(1), new.capitalize() if hit[1][:1].isupper() else new))
    if hit := next((number for number in _NUMBER.finditer(text) if number[1]), None):
        facts.append((*hit.span(1), str(int(hit[1]) + 1 + lot % 3)))
    if not facts:
        return None
    start, end, new = min(facts)
    return text[:start] + new + text[end:], _REASONS[lang].format(old=text[start:end], new=new)


def arms(loaded: Loaded, drawn: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The rows of the arms beside the rows as they are; another image and an edit only of answers that people gave at
    least HIGH, with what is wrong in the place of people's reason. A row may name its fact in a column `edit`."""
    images = [response.question.images for response in loaded.responses]
    shuffled = sorted(
        (n for n, shown in enumerate(images) if shown),
        key=lambda n: hashlib.sha256(loaded.rows[n].id.encode()).digest(),
    )
    position = {number: index for index, number in enumerate(shuffled)}
    for number in drawn:
        row, raw, response = loaded.rows[number], loaded.raw[number], loaded.responses[number]
        typed = msgspec.to_builtins(row)
        columns = {name: value for name, value in raw.items() if name not in typed and not name.endswith(COLUMN_SUFFIX)}
        base = {**columns, **typed}

        def arm(name: str, base: dict[str, Any] = base, **changes: Any) -> dict[str, Any]:
            return {**base, "id": f"{base['id']}{SEPARATOR}{name}", **changes}

        yield arm(CLEAN)
        yield arm(BLIND, flags=[*row.flags, BLIND])
        if response.human is None or response.human.score < HIGH:
            continue
        own = set(images[number])
        others = chain(shuffled[position[number] + 1 :], shuffled[: position[number]])
        strange = (n for n in others if loaded.rows[n].group != row.group and own.isdisjoint(images[n]))
        if (other := next(strange, None)) is not None:
            yield arm(SWAPPED, image=None, images=images[other], reason=None, flags=[*row.flags, SWAPPED])
        if (changed := edited(row.response, row.lang, row.id, _named(row.id, raw.get("edit")))) is not None:
            yield arm(EDITED, response=changed[0], reason=row.reason and changed[1], flags=[*row.flags, EDITED])


class Looking(Struct, frozen=True, kw_only=True):
    """Whether a judge looks, over `answers` answers; `reached` images reached it. `differences` are of agreement seeing
    less blind; `swap` and `edit` what another image and a changed fact do to right answers."""

    judge: str
    answers: int
    reached: int
    differences: list[MetricDifference]
    swap: VariantEffect
    edit: VariantEffect
    reading: str


def looking(judgments: Sequence[Judgment]) -> Looking:
    """What the arms show. Raises UsageError as `by_mark` does, and where nothing was judged blind."""
    judged = by_mark(judgments, (CLEAN, *ARMS))
    if not judged[BLIND]:
        raise UsageError("no answer was judged blind; judge the whole file of `critic attack --images`")
    ids = sorted(judged[CLEAN])
    clean = [judged[CLEAN][key] for key in ids]
    scores = {arm: scores_of([answers.get(key) for key in ids]) for arm, answers in judged.items()}
    people = [judgment.sample.human.score if judgment.sample.human else None for judgment in clean]
    sample = RatedSample(
        name="images",
        ids=ids,
        human=np.array(people, dtype=np.float64),
        judges={"seeing": scores[CLEAN], BLIND: scores[BLIND]},
        group=[judgment.conversation.group for judgment in clean],
    )
    effects = []
    for arm, aim in ((SWAPPED, "another image"), (EDITED, "one fact edited")):
        rows = np.array([key in judged[arm] for key in ids], dtype=bool)  # made of right answers alone
        variant, answers = scores[arm][rows], scores[CLEAN][rows]
        effects.append(variant_effect(arm, aim, variant, answers, sample.groups[rows], -NOTICED))
    swap, edit = effects
    differences = compare(sample.labelled, "seeing", BLIND).differences
    return Looking(
        judge=clean[0].judge,
        answers=len(ids),
        reached=sum(judgment.images > 0 for judgment in clean),
        differences=differences,
        swap=swap,
        edit=edit,
        reading=_reading(differences, swap.change, edit.moved),
    )


def _reading(differences: Sequence[MetricDifference], swap: Estimate, noticed: Estimate) -> str:
    """A judge looks where both are shown: seeing it agrees more with people, and a swapped image costs points."""
    pearson = next((difference for difference in differences if difference.metric == "pearson"), None)
    gains, loses = bool(pearson and pearson.side > 0), swap.side < 0
    parts = []
    if pearson:
        bounds = " [{:+.2f}, {:+.2f}]".format(*pearson.interval) if pearson.interval else ", no interval"
        parts.append(f"Pearson {pearson.value:+.2f}{bounds} seeing against blind")
    if swap.value is not None:
        parts.append(f"with another image right answers get {points(swap)}")
    if noticed.value is not None:
        parts.append(f"{count(noticed)} edits are noticed")
    decision = say(("looks_not", "looks_half", "looks")[gains + loses])
    return f"{decision} ({'; '.join(parts)})." if parts else f"{decision}."
