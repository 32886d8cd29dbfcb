"""Image grounding: the arms of `critic attack --images`, and whether a judge looks at the image.

The same answers are judged with the image, without it, with another question's image, and with one fact edited. Each
arm is a row of its own.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from critic.errors import UsageError, located
from critic.human_scored import BLIND, EDITED, SWAPPED, Loaded
from critic.records import Judgment
from critic.stats.estimate import Estimate
from critic.tables import SCORE_SUFFIX
from eval_agreement.measures import injection
from eval_agreement.measures.compare import MetricDifference, compare
from eval_agreement.sample import RatedSample
from eval_agreement.sentences import say, texts_of

ARMS = (BLIND, SWAPPED, EDITED)
"""Arms: without the image; with another question's image; with an edited fact that the image contradicts."""

HIGH, NOTICED = 7.0, 1.0
"""Human score from which an answer counts as right, so that another image or fact makes it wrong. Fall of the
judge's score, in points, that counts as noticing this."""

_NUMBER = re.compile(
    r"^[^\w\n]*\d{1,6}(?:[.)）．](?=[^\S\n]+\S|[^\s\d])|、)|(?<![\d.,])(\d{1,6})(?![\d.,]*\d)", re.MULTILINE
)
"""A number. List numbers at the start of a line match too, without group 1: they are no facts."""

_REASONS = {"en": "{old}, not {new}.", "zh": "应为{old}，而非{new}。"}


class Fact(Struct):
    """An edit of an answer, given in a row's column `edit` (as JSON in a table): `old` is replaced by `new`."""

    old: str
    new: str


def _parse_edit(row_id: str, edit: Any) -> Fact | None:
    """Parse a row's column `edit`, or return None if it is empty.

    Raises UsageError if it has not the fields of a Fact.
    """
    with located(f'{row_id}: edit is to be {{"old": …, "new": …}}, words of the answer', msgspec.DecodeError):
        return msgspec.json.decode(edit, type=Fact) if isinstance(edit, str) else msgspec.convert(edit, Fact | None)


def edit_fact(text: str, lang: str, key: str, given: Fact | None = None) -> tuple[str, str] | None:
    """Change one fact of a text; return the new text and the reason why it is wrong, or None if no fact is found.

    `given`: the edit to make. Without it, the first word of `edits.toml` or the first number in the text is changed;
    numbers of list items do not count.
    `key`: text whose hash decides the replacement, so that every run makes the same edit.

    >>> edit_fact("Two red apples.", lang="en", key="row-1", given=Fact(old="red", new="green"))
    ('Two green apples.', 'red, not green.')
    """
    if given:
        changed = text.replace(given.old, given.new, 1)
        return None if changed == text else (changed, _REASONS[lang].format(old=given.old, new=given.new))
    choice = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
    facts: list[tuple[int, int, str]] = []
    # Chinese words have no spaces around them.
    pattern = r"(?<![a-z])({})(?![a-z])" if lang == "en" else "({})"
    for words in texts_of("edits.toml")[lang]:
        if match := re.search(pattern.format("|".join(map(re.escape, words))), text, re.IGNORECASE):
            others = [word for word in words if word != match[1].lower()]
            new = others[choice % len(others)]
            facts.append((*match.span(1), new.capitalize() if match[1][:1].isupper() else new))
    for number in _NUMBER.finditer(text):
        if number[1]:
            facts.append((*number.span(1), str(int(number[1]) + 1 + choice % 3)))
    if not facts:
        return None
    start, end, new = min(facts)
    return text[:start] + new + text[end:], _REASONS[lang].format(old=text[start:end], new=new)


def arms(loaded: Loaded, drawn: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the arms of each sampled row (numbers in `drawn`).

    Each row comes unchanged and without its image (BLIND). Rows with a human score of at least HIGH also come with
    another question's image (SWAPPED) and with an edited fact (EDITED); their reason says what is wrong.
    Raises UsageError if a row's column `edit` is malformed.
    """
    images = [response.question.images for response in loaded.responses]
    with_images = [number for number, paths in enumerate(images) if paths]
    # In the order of their hashes, so that a row's other image does not depend on the file's order.
    shuffled = sorted(with_images, key=lambda number: hashlib.sha256(loaded.rows[number].id.encode()).digest())
    position = {number: index for index, number in enumerate(shuffled)}
    for number in drawn:
        row, raw, response = loaded.rows[number], loaded.raw[number], loaded.responses[number]
        typed = msgspec.to_builtins(row)
        # Other judges' scores belong to the row as it is, and not to its arms.
        columns = {name: value for name, value in raw.items() if not name.endswith(SCORE_SUFFIX)}
        base = {**columns, **typed}

        def arm(name: str, base: dict[str, Any] = base, **changes: Any) -> dict[str, Any]:
            return {**base, "id": f"{base['id']}{injection.SEPARATOR}{name}", **changes}

        yield arm(injection.CLEAN)
        yield arm(BLIND, flags=[*row.flags, BLIND])
        # A wrong answer may well be right of another image, or with another fact.
        if response.human is None or response.human.score < HIGH:
            continue
        for other in chain(shuffled[position[number] + 1 :], shuffled[: position[number]]):
            # The next row of another question that shares no image with this one.
            if loaded.rows[other].group != row.group and set(images[number]).isdisjoint(images[other]):
                yield arm(SWAPPED, image=None, images=images[other], reason=None, flags=[*row.flags, SWAPPED])
                break
        fact = _parse_edit(row.id, raw.get("edit"))
        if (changed := edit_fact(row.response, row.lang, key=row.id, given=fact)) is not None:
            yield arm(EDITED, response=changed[0], reason=row.reason and changed[1], flags=[*row.flags, EDITED])


class Looking(Struct, frozen=True, kw_only=True):
    """Evidence on whether a judge looks at the image, over `answers` answers.

    - reached: number of answers whose image reached the judge.
    - differences: agreement with people when the judge sees the image, minus agreement without it.
    - swap, edit: effects of another image and of an edited fact on the scores of right answers.
    """

    judge: str
    answers: int
    reached: int
    differences: list[MetricDifference]
    swap: injection.VariantEffect
    edit: injection.VariantEffect
    reading: str


def looking(judgments: Sequence[Judgment]) -> Looking:
    """Measure whether a judge looks at images, from its judgments of all arms.

    Raises UsageError as `by_mark` does, and if no answer was judged without the image.
    """
    judged = injection.by_mark(judgments, (injection.CLEAN, *ARMS))
    if not judged[BLIND]:
        raise UsageError("no answer was judged blind; judge the whole file of `critic attack --images`")
    # In the order of ids, so that resamples do not depend on the order of the file.
    ids = sorted(judged[injection.CLEAN])
    clean = [judged[injection.CLEAN][key] for key in ids]
    scores = {arm: injection.scores_of([answers.get(key) for key in ids]) for arm, answers in judged.items()}
    people = [judgment.sample.human.score if judgment.sample.human else None for judgment in clean]
    sample = RatedSample(
        name="images",
        ids=ids,
        human=np.array(people, dtype=np.float64),
        judges={"seeing": scores[injection.CLEAN], BLIND: scores[BLIND]},
        group=[judgment.conversation.group for judgment in clean],
    )

    def measure_arm(arm: str, aim: str) -> injection.VariantEffect:
        # Only right answers have these arms.
        rows = np.array([key in judged[arm] for key in ids], dtype=bool)
        pair = {"variant": scores[arm][rows], "clean": scores[injection.CLEAN][rows]}
        return injection.measure_variant(arm, aim=aim, group=sample.groups[rows], threshold=-NOTICED, **pair)

    swap, edit = measure_arm(SWAPPED, aim="another image"), measure_arm(EDITED, aim="one fact edited")
    differences = compare(sample.labelled, "seeing", BLIND).differences
    return Looking(
        judge=clean[0].judge,
        answers=len(ids),
        reached=sum(judgment.images > 0 for judgment in clean),
        differences=differences,
        swap=swap,
        edit=edit,
        reading=_read_out(differences, swap.change, edit.moved),
    )


def _read_out(differences: Sequence[MetricDifference], swap: Estimate, noticed: Estimate) -> str:
    """Return a sentence that says whether the judge looks at images.

    It does if it agrees more with people when it sees the image, and if another image lowers its scores.
    """
    pearson = next((difference for difference in differences if difference.metric == "pearson"), None)
    gains = bool(pearson and pearson.side > 0)
    loses = swap.side < 0
    parts = []
    if pearson:
        bounds = " [{:+.2f}, {:+.2f}]".format(*pearson.interval) if pearson.interval else ", no interval"
        parts.append(f"Pearson {pearson.value:+.2f}{bounds} seeing against blind")
    if swap.value is not None:
        parts.append(f"with another image right answers get {injection.format_points(swap)}")
    if noticed.value is not None:
        parts.append(f"{injection.format_count(noticed)} edits are noticed")
    decision = say(("looks_not", "looks_half", "looks")[gains + loses])
    return f"{decision} ({'; '.join(parts)})." if parts else f"{decision}."
