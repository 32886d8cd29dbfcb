"""Labels from a teacher: what `critic judge` wrote of the rows, each rating as likely as the teacher found it."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from critic import jsonl
from critic.errors import UsageError
from critic.judging.distribution import probabilities
from critic.judging.forms import RatingKind, form_of
from critic.judging.prompt import load
from critic.records import Judgment, Response

Shares = dict[str, list[float]]
"""Probabilities (10,) of 1..10, by a row's id."""


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _content(response: Response) -> str:
    """The same for the same answer to the same question, by whatever id."""
    text = [response.question.prompt, response.question.history, response.text]
    return hashlib.sha256(msgspec.json.encode(text)).hexdigest()


def _rates(form: str) -> bool:
    return isinstance(form_of(form).kind, RatingKind) and load(form, "en").on_ten


def taught(name: str, responses: Sequence[Response]) -> tuple[Shares, Counter[str]]:
    """What the teacher whose judgments are the file `name` says of rows: of each the judgment of the same answer to the
    same question, that of its own id where there are several; and why others have none. Raises UsageError, with counts,
    for judgments that are no ratings on 1..10, and where they are of none of the rows."""
    judgments = [one for _, one in jsonl.read(Path(name), Judgment)]
    if strange := Counter(f"in {one.prompt}" for one in judgments if not _rates(one.prompt)):
        problem = f"{strange.total()} of {len(judgments)} judgments are in a form that does not rate on 1..10"
        raise UsageError(f"labels: {name}: {problem} ({_listed(strange)}); judge by one that does, such as pointwise")
    keys = [(one.sample.id, _content(one.sample.response)) for one in judgments]
    by_key = dict(zip(keys, judgments, strict=True))
    by_content = {content: one for (_, content), one in by_key.items()}
    ids, shares, lacking = {one for one, _ in keys}, Shares(), Counter[str]()
    for response in responses:
        content = _content(response)
        one = by_key.get((response.id, content)) or by_content.get(content)
        if one is None:
            lacking[f"not in {name}{', which has another answer by their id' if response.id in ids else ''}"] += 1
        elif one.score is None:
            lacking[f"failed in {name}"] += 1
        else:
            shares[response.id] = one.verdict.distribution or probabilities(one.score)
    if not shares:
        raise UsageError(
            f"labels: {name}: its {len(judgments)} judgments are labels of no row of --train ({_listed(lacking)})"
        )
    return shares, lacking
