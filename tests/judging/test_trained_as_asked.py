"""A judge is trained on the very prompts that it is asked with: made of the records of judging, byte for byte."""

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from conftest import sample, write_jsonl
from msgspec import to_builtins
from msgspec.structs import replace
from stages.test_judge_conversations import _turns

from critic import benchmarks, human_scored
from critic.backends import Reply, Request, embed_images
from critic.backends.scripted import ScriptedBackend
from critic.images import Images, name_images
from critic.judging import protocols
from critic.judging.assignments import VerdictPlan
from critic.judging.examples import build_example, plan
from critic.judging.forms import ONE_SIDE, PlannedVerdict, form_of
from critic.judging.judge import Judge
from critic.judging.protocols import PROTOCOLS
from critic.judging.transcripts import Transcript
from critic.records import Ablation, Example, HumanScore, JudgeConfig, Judgment, Language, SamplingParams

FLAGS: list[dict[str, Any]] = [
    {}, {"reason_first": True}, {"sight": "all"}, {"order": "forced", "sight": "all", "reason_first": True},
    {"order": "random", "seed": 3}, {"reference_backed": False}, {"decoding": SamplingParams(images="show")},
]  # fmt: skip
SIDES: list[dict[str, Any]] = [{"compares": 0.1}, {"compares": 0.1, "sight": "all"}]


def verdict(request: Request) -> Reply:
    """One that fits the schema and hangs on the prompt: grades, sides and reasons differ from turn to turn."""
    number = len(json.dumps(request.messages))
    if request.classify:
        return Reply(text="", classes=[number / 100])
    assert request.schema is not None
    values = {"Rating": 1 + number % 9, "Verdict": "AB"[number % 2], "Reason": f"Because of {number}."}
    return Reply(text=json.dumps({key: values.get(key, "yes") for key in request.schema["properties"]}))


def transcript(conversation: Any, condition: str, system: str) -> Transcript:
    turns = {line.turn: line for line in _turns(conversation, condition, system, ())}
    return Transcript(conversation=conversation, condition=condition, system=system, turns=turns)


def labelled(record: Judgment, mark: str) -> Judgment:
    """The record with what people might say of it, and a mark that tells it from those of other ways to ask."""
    sample = replace(record.sample, id=mark + record.sample.id)
    if form_of(record.prompt).pair:
        return replace(record, sample=replace(sample, preference=1.0))
    scope: Any = "turn" if sample.turn else "conversation"
    human = HumanScore(score=4.0, scope=scope, answers=[True for _ in (sample.asked.checklist if sample.asked else ())])
    return replace(record, sample=replace(sample, human=human))


@pytest.mark.parametrize("lang", get_args(Language))
@pytest.mark.parametrize("flags", [*FLAGS, *SIDES], ids=str)
@pytest.mark.parametrize("benchmark", benchmarks.BENCHMARKS)
def test_judges_are_taught_as_asked(benchmark: str, flags: dict[str, Any], lang: Language, tmp_path: Path) -> None:
    sees, sent, records = "decoding" in flags, list[Any](), list[Judgment]()

    def answer(request: Request) -> Reply:
        sent.append([message for message in request.messages if message["role"] == "user"])
        return verdict(request)

    talks, inside = name_images(benchmarks.read(benchmark, sample(benchmark)))
    images = Images(sample(benchmark).parent, uris=inside)
    tie_band, backend = flags.get("compares"), ScriptedBackend(answer)
    backend.served = replace(backend.served, is_classifier=bool(tie_band), about={"tie_band": tie_band})
    setup = JudgeConfig(judge="j", score_kind="argmax", **{name: flags[name] for name in {*flags} - {"compares"}})
    judge = Judge(backend, setup, 64, images if sees else None)

    async def judged(planned: PlannedVerdict) -> Judgment:
        records.append(await judge.verdict_on(judge.prepare(planned)))
        assert records[-1].failure is None
        return records[-1]

    for talk, condition, judging in itertools.product(talks[:3], ("own", "no_history"), get_args(Ablation)):
        mine, other = (transcript(replace(talk, lang=lang), condition, system) for system in "mn")
        chosen = [name for name in PROTOCOLS if judging == "standard" or protocols.load(name).whole_form]
        chosen = ["pairwise"] if tie_band else chosen
        for against in (None, other):
            asked_of = VerdictPlan(benchmark, [(mine, against)], chosen, [judging], setup.reference_backed)
            asyncio.run(asked_of.judge_all(setup, judged))
    rows = [to_builtins(labelled(record, f"{number}/")) for number, record in enumerate(records)]
    loaded = human_scored.load(write_jsonl(tmp_path / "judged.jsonl", rows)).responses
    by_id, mix = {row.id: row for row in loaded}, dict.fromkeys(sorted({record.prompt for record in records}), 1.0)
    planned = [item for item in plan(loaded, mix).examples if item.form == by_id[item.ids[0]].form]
    if tie_band:  # a pair is learned once, each of its sides alone
        planned = [replace(item, form=ONE_SIDE[item.form]) for item in planned if item.first == "model"]
    taught = [build_example(item, by_id, None, lambda _: 0, sees) for item in planned]
    names = {name for row in loaded if row.shown and sees for name in row.shown.pictures()}
    parts = {image.path: image.parts for image in map(images.load, names)}
    shown = [side for item in taught if isinstance(item, Example) for side in (item.messages, item.other) if side]
    prompts = [[embed_images(message, parts) for message in messages] for messages in shown]
    asked_for, learned = (Counter(map(json.dumps, messages)) for messages in (sent, prompts))
    assert asked_for == learned if setup.order == "both" else not asked_for - learned
    assert tie_band or {form_of(name).protocol for name in mix} >= {"pointwise", "direct", "pairwise", "quality"}
    assert tie_band or ("checklist" in mix) == (benchmark == "multiverse" and not setup.reason_first)
