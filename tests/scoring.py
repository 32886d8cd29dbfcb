"""Files of judgments as `critic judge --benchmark` writes them, and what `critic score` makes of them."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from conftest import run, sample
from judgments import of_turn

from critic import benchmarks
from critic.benchmarks import convbench
from critic.records import Conversation, Judgment, Verdict

Score = Callable[[Judgment], float | str]
"""A verdict's score, or the name of its failure."""


def read_sample(benchmark: str) -> list[Conversation]:
    """Return the conversations of a benchmark's sample file."""
    return benchmarks.read(benchmark, sample(benchmark))


def judged(
    path: Path,
    benchmark: str,
    cells: Sequence[tuple[Any, str, int | None]],
    score: Score,
    system: str = "m",
    opponent: str | None = None,
    only: int | None = None,
    judge: str = "j",
    answer: str | None = None,
) -> Path:
    """A file as `critic judge --benchmark` writes it, with a verdict by (protocol, condition, turn) of each
    conversation that has the turn."""
    lines = []
    for conversation in read_sample(benchmark)[:only]:
        for protocol, condition, turn in cells:
            if turn is not None and turn > len(conversation.turns):
                continue
            blank = of_turn(
                conversation, protocol, system=system, condition=condition, judge=judge, turn=turn, opponent=opponent,
                length=None if turn is None else 10 * turn + len(conversation.id), asked="a", answer=answer,
            )  # fmt: skip
            value = score(blank)
            outcome: dict[str, Any] = {"failure": value} if isinstance(value, str) else {"score": value}
            items = conversation.turns[turn - 1].checklist if protocol == "checklist" and turn is not None else []
            yes = 0.0 if isinstance(value, str) else value * len(items)
            answers: list[bool | None] = [place < yes for place in range(len(items))] if "score" in outcome else []
            verdict = Verdict(failure=outcome.pop("failure", None), answers=answers)
            lines.append(msgspec.structs.replace(blank, verdict=verdict, **outcome))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines) + b"\n")
    return path


def write_judged(
    folder: Path, benchmark: str, cells: Sequence[tuple[Any, str, int | None]], score: Score, systems: Iterable[str]
) -> list[Path]:
    """Write a file as `judged` does for each model."""
    paths = ((folder / f"{number}.jsonl", system) for number, system in enumerate(systems))
    return [judged(path, benchmark, cells, score, system) for path, system in paths]


CONV = [("direct", cell.condition, cell.turn) for cell in convbench.CELLS.values()]
MULTI = [
    (protocol, condition, turn)
    for protocol in ("checklist", "quality")
    for condition in ("own", "oracle")
    for turn in range(1, 5)
]

ASKED: dict[str, list[tuple[str, str, int | None]]] = {
    "alignmmbench": [("pointwise", "own", 1), ("pointwise", "no_image", 1)],
    "convbench": [entry for protocol in ("pairwise", "direct") for entry in ((protocol, *cell[1:]) for cell in CONV)],
    "multiverse": list(MULTI),
    "visitbench": [("pairwise", "own", 1), ("pairwise", "no_image", 1)],
}
"""Cells (protocol, condition, turn) that are judged of each benchmark, under two conditions or more."""


def scored(out: Path, benchmark: str, *words: object, code: int = 0) -> tuple[dict[str, Any], str, str]:
    """The summary, the page, and what was printed."""
    done = run("critic", "score", *words, "--benchmark", benchmark, "--out", out)
    assert done.returncode == code, done.stderr
    page = (out / "report.html").read_text("utf-8")
    return json.loads((out / "summary.json").read_text("utf-8")), page, done.stdout


def grades(verdict: Judgment) -> float:
    """A whole grade 1..10 that is another one for each verdict."""
    return float(random.Random(repr(verdict)).randint(1, 10))


def score_of_sample(verdict: Judgment) -> float:
    draw = random.Random(f"{verdict.system} {verdict.sample.id} {verdict.condition} {verdict.turn} {verdict.protocol}")
    if verdict.protocol in ("pairwise", "checklist"):
        return draw.choice([0.0, 0.5, 1.0])
    return float(draw.randint(1, 10))
