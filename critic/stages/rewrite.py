"""critic rewrite: AlignMMBench's rewrites of seed questions, each confirmed by a person before it is used.

critic rewrite seeds.jsonl --out review.jsonl --base-url http://127.0.0.1:8000/v1
critic rewrite seeds.jsonl --out questions.jsonl --apply review.jsonl
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from critic import jsonl
from critic.benchmarks import alignmmbench
from critic.errors import UsageError, notify, quoted
from critic.records import Question
from critic.stages.ask_rows import AskedRow, AskRows, BuildRow
from critic.stages.options import Endpoint, check, takes_one_model
from critic.stages.totals import listed

DIALOGUE = "Dialogue Context"
"""Category of the questions that are never rewritten."""

TOKENS = 1024
"""Longest reply in tokens: enough for the rewrites of a question."""

VARIANTS = 5
"""Number of rewrites per seed question (AlignMMBench §3.3)."""


class Rewrite(Struct, kw_only=True):
    """One line of a review file: a rewrite of a seed question.

    `seed`: id of the seed question. `question`: its text.
    `prompt`: the rewrite, number `variant` of the seed.
    `accepted`: set to true or false by a person; None if still undecided.
    """

    seed: str
    question: str
    variant: int
    prompt: str | None
    accepted: bool | None = None


def seeds(questions: Iterable[Question]) -> list[Question]:
    """Return the first question of each group, except questions within a dialogue, which are not rewritten
    (AlignMMBench §A.4)."""
    first_of: dict[str, Question] = {}
    for question in questions:
        first_of.setdefault(question.group, question)
    return [question for question in first_of.values() if not question.history and question.category != DIALOGUE]


def ask(questions: Path, endpoint: Endpoint, out: Path) -> int:
    """Request rewrites of the seed questions, and add new ones to the review file `out`. Return the exit code.

    The replies are kept in a second file beside it, from which a killed run resumes.
    """
    check((out.suffix == ".jsonl", f"--out {out}: give a name that ends in .jsonl"))
    of_id = {question.id: question for question in seeds(alignmmbench.read_questions(questions).values())}
    if not of_id:
        raise UsageError(f"{questions}: no seed question outside of dialogues")
    rows = [
        BuildRow(key=question.id, lang=question.lang, facts={"question": question.prompt, "count": VARIANTS})
        for question in of_id.values()
    ]
    replies = out.with_suffix(".replies.jsonl")
    code = AskRows(endpoint.run_options(replies), endpoint.open_one(), "wordings", rows, TOKENS, None).run()
    review = [line for _, line in jsonl.read(out, Rewrite)] if out.is_file() else []
    # A person may have decided on lines of an earlier run: they stay as they are.
    known = {(line.seed, line.question, line.prompt) for line in review}
    for _, record in jsonl.read(replies, AskedRow):
        if record.key not in of_id or record.reply is None or record.failure is not None:
            continue
        question = of_id[record.key].prompt
        for variant, prompt in enumerate(record.reply["wordings"], 1):
            if (record.key, question, prompt) not in known:
                review.append(Rewrite(seed=record.key, question=question, variant=variant, prompt=prompt))
    if review:
        jsonl.write(out, review)
    print(f"{out}: {len(review)} rewrites to review")
    return code


def apply(questions: Path, review: Path, out: Path) -> int:
    """Write all questions to `out`, each seed question followed by its accepted rewrites. Return the exit code.

    A rewrite copies the seed's row with a new prompt. Its id takes the next free number in the seed's group. Raises
    UsageError if a seed in the review is not among the questions, or if its text there differs.
    """
    rows = [row for _, row in jsonl.read(questions, dict[str, Any])]
    accepted, decisions = _decided(review, {row["question_id"]: row["prompt"] for row in rows})
    highest, known = Counter[str](), set[tuple[str, str]]()
    for row in rows:
        group = alignmmbench.group_of(row["question_id"])
        number = row["question_id"].removeprefix(group).removeprefix("-")
        highest[group] = max(highest[group], int(number) if number.isdigit() else 0)
        known.add((group, row["prompt"].strip()))
    extended = []
    for row in rows:
        extended.append(row)
        group = alignmmbench.group_of(row["question_id"])
        for wording in accepted[row["question_id"]]:
            # The same question twice would count twice in the scores.
            if (group, wording.strip()) in known:
                notify(f"{row['question_id']}: asked already, not added again: {wording}")
                continue
            known.add((group, wording.strip()))
            highest[group] += 1
            extended.append({**row, "question_id": f"{group}-{highest[group]}", "prompt": wording})
    jsonl.write(out, extended)
    print(f"{out}: {len(extended)} questions, {len(extended) - len(rows)} of them rewrites ({listed(decisions)})")
    return 0


def _decided(review: Path, prompt_of: Mapping[str, str]) -> tuple[dict[str, list[str]], Counter[str]]:
    """Return the accepted rewrites of each seed, and the number of lines by decision.

    `prompt_of` maps ids of questions to their texts. Raises UsageError if a line's seed is missing or different there.
    """
    accepted, decisions = defaultdict[str, list[str]](list), Counter[str]()
    for number, line in jsonl.read(review, Rewrite):
        if prompt_of.get(line.seed) != line.question:
            raise UsageError(
                f"{review}:{number}: {quoted(line.seed)} is not in the questions, or asks something else there"
            )
        if line.accepted and line.prompt:
            accepted[line.seed].append(line.prompt)
        decisions[{True: "accepted", False: "rejected", None: "undecided"}[line.accepted]] += 1
    return accepted, decisions


@takes_one_model
def main(
    questions: Path,
    out: Annotated[Path, typer.Option()],
    endpoint: Endpoint,
    review: Annotated[Path | None, typer.Option("--apply")] = None,
) -> int:
    """Rewrite seed questions in five wordings each.

    Set "accepted" in the review file to true or false, and run again with --apply: only accepted rewrites are used.
    \f
    - questions: AlignMMBench questions; the first of each group is its seed.
    - out: The review file (JSONL); with --apply the questions file to write.
    - review: A reviewed file: write the questions and its accepted rewrites.
    """
    return ask(questions, endpoint, out) if review is None else apply(questions, review, out)
