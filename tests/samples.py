"""Questions, conversations, and samples of answers and of pairs, as tests build them: what is alike is filled in."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import read_jsonl

from critic.benchmarks import alignmmbench
from critic.records import Conversation, ConversationTurn, Question
from critic.stats.leaderboard import Score
from eval_agreement.measures import ppi
from eval_agreement.measures.ppi import CorrectedMean
from eval_agreement.measures.preferences import Preferences
from eval_agreement.metrics import half_up
from eval_agreement.sample import RatedSample


def build_question(key: str = "q", **fields: Any) -> Question:
    """Build a question in English, which is a group of its own unless `fields` say otherwise."""
    return Question(**{"id": key, "prompt": "?", "task": "OCR", "group": key, "lang": "en", **fields})


def build_conversation(key: str, *turns: ConversationTurn, **fields: Any) -> Conversation:
    """Build a conversation in English, which is a group of its own unless `fields` say otherwise."""
    return Conversation(**{"id": key, "lang": "en", "group": key, "turns": list(turns), **fields})


def score_tasks(rated: Sequence[tuple[str, float | None]]) -> dict[str, Score]:
    """Return AlignMMBench's scores of ratings by task, each of a question of its own; None failed."""
    turns = [ConversationTurn(prompt="?", task=task) for task, _ in rated]
    talks = [build_conversation(str(place), turn) for place, turn in enumerate(turns)]
    ratings = {str(place): rating for place, (_, rating) in enumerate(rated)}
    return alignmmbench.scores(ratings, talks) | alignmmbench.overviews(ratings, talks)


def build_sample(human: Any, judge: Any, group: Iterable[Any] | None = None, **fields: Any) -> RatedSample:
    """Build answers with scores by people, (n,), and by a judge called "judge", or by several by name.

    `group`: the question of each answer; without it every answer is a group of its own.
    """
    ids = [str(row) for row in range(len(human))]
    groups = [None] * len(ids) if group is None else [f"q{name}" for name in group]
    judges = judge if isinstance(judge, dict) else {"judge": np.asarray(judge, dtype=np.float64)}
    fields = {"name": "s", "ids": ids, "judges": judges, "group": groups, **fields}
    return RatedSample(human=np.asarray(human, dtype=np.float64), **fields)


def corrected_mean(human: Any, judge: Any, group: Any = None, lam: float | None = None) -> CorrectedMean:
    """Correct the mean of answers, with a given factor `lam` in place of the tuned one."""
    tuned = ppi.parts_of
    with pytest.MonkeyPatch.context() as patch:
        if lam is not None:
            patch.setattr(ppi, "parts_of", lambda answers: tuned(answers)._replace(lam=lam))
        return ppi.corrected_mean(build_sample(human, judge, group))


def build_pairs(people: Any, judge: Any, group: Any = None, **fields: Any) -> Preferences:
    """Build pairs with verdicts by people, (n,), and by a judge called "j", or by several of either side by name.

    `group`: the question of each pair; without it every pair is a group of its own.
    """
    raters = people if isinstance(people, dict) else {"people": people}
    judges = judge if isinstance(judge, dict) else {"j": judge}
    ids = [str(place) for place in range(len(next(iter(raters.values()))))]
    return Preferences(ids=ids, group=ids if group is None else group, people=raters, judges=judges, **fields)


def read_golden(shared: Path, part: str) -> dict[str, Any]:
    """Return the figures of other libraries for a part of the statistics."""
    return json.loads((shared / "fixtures/golden.json").read_text("utf-8"))[part]  # type: ignore[no-any-return]


def read_llmeval2(shared: Path, system: str | None = None) -> tuple[list[dict[str, Any]], Any, Any, list[str]]:
    """Return the usable rows of LLMEval2, of a system or of all: people's scores, GPT-4's and questions, (n,) each."""
    lines = read_jsonl(shared / "data/human_scored/llmeval2.jsonl")
    rows = [line for line in lines if not line["flags"] and system in (None, line["system"])]
    human, judge = (np.array([row[name] for row in rows]) for name in ("score_1_10", "gpt4_score_1_10"))
    return rows, half_up(human), judge, [row["group"] for row in rows]
