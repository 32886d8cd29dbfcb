"""The part of `critic build` behind the images: conversations with references and checklists, what the machine checks
of them, what people decide, and the frozen benchmark."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from critic import benchmarks, jsonl
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.building import bench, card, review
from critic.building.replies import DraftConversation, DraftTurn, HeldItems
from critic.errors import UsageError
from critic.judging import protocols
from critic.page.blocks import interval, number
from critic.records import Conversation, Judgment, ModelTurn
from critic.stages.ask_rows import BenchmarkBuild, BuildRow
from critic.stages.run import known, listed
from critic.stats.aggregate import by_cell

Chosen = Mapping[str, dict[str, Any]]
"""The images that were chosen, by path: the fields of ImageFile, `category` and `sub_category`."""


class BuildPlan(Struct, frozen=True):
    """A kind of benchmark: how conversations are made of images, how those without the image are judged, and whether
    each question gets a checklist. Its file has the form of the benchmark of the plan's name."""

    make: Callable[[BenchmarkBuild, Chosen], list[DraftConversation]]
    protocol: str
    checklists: bool


def _conversation(
    image: dict[str, Any], building: BenchmarkBuild, turns: list[DraftTurn], **more: Any
) -> DraftConversation:
    about = {"category": image["category"], "sub_category": image["sub_category"]}
    return DraftConversation(
        id=image["md5"][:12], image=image["path"], lang=building.lang, turns=turns, **about, **more
    )


def _talks(building: BenchmarkBuild, chosen: Chosen) -> list[DraftConversation]:
    """MultiVerse §2.1, steps 2 and 3: a person with a goal first, then the conversation."""
    persons = building.ask("persona", building.rows())
    rows = [
        BuildRow(key=path, lang=building.lang, image=path, facts=msgspec.to_builtins(person))
        for path, person in persons.items()
    ]
    conversations = []
    for path, talk in building.ask("talk", rows).items():
        turns = [DraftTurn(question=turn.question, answer=turn.answer, task=talk.task) for turn in talk.turns]
        about = {"goal": persons[path].goal, "sub_goal": persons[path].sub_goal, "sub_task": talk.sub_task}
        conversations.append(_conversation(chosen[path], building, turns, task=talk.task, **about))
    return conversations


def _levels(building: BenchmarkBuild, chosen: Chosen) -> list[DraftConversation]:
    """ConvBench §3: perception, reasoning, creation."""
    conversations = []
    for path, reply in building.ask("levels", building.rows()).items():
        turns = [
            DraftTurn(question=turn.question, answer=turn.answer, task=task)
            for turn, task in zip(reply.turns, reply.tasks, strict=True)
        ]
        turns[-1].focus = reply.focus
        conversations.append(_conversation(chosen[path], building, turns, caption=reply.caption))
    return conversations


def _singles(building: BenchmarkBuild, chosen: Chosen) -> list[DraftConversation]:
    """AlignMMBench §3: a question of one task an image, by the hash of the image."""
    if building.lang != "zh":
        raise UsageError("--plan alignmmbench: its file has no language, and is read as Chinese: --lang zh")
    tasks = sorted(CATEGORY_OF)
    task_of = {path: tasks[int(chosen[path]["md5"], 16) % len(tasks)] for path in sorted(chosen)}
    rows = [BuildRow(key=path, lang="zh", image=path, facts={"task": task}) for path, task in task_of.items()]
    conversations = []
    for path, reply in building.ask("single", rows).items():
        turn = DraftTurn(question=reply.question, answer=reply.answer, task=reply.task)
        conversations.append(_conversation(chosen[path], building, [turn], task=reply.task, dialogue=reply.dialogue))
    return conversations


PLANS = {
    "multiverse": BuildPlan(_talks, "checklist", checklists=True),
    "convbench": BuildPlan(_levels, "direct", checklists=False),
    "alignmmbench": BuildPlan(_singles, "pointwise", checklists=False),
}
"""Plan -> how its conversations are made."""


def _turn_rows(building: BenchmarkBuild, conversations: Sequence[DraftConversation], items: bool) -> list[BuildRow]:
    """A row a turn: the question with what was said before, and, once there are any, its checklist's `items`."""
    rows = []
    for conversation in conversations:
        before: list[dict[str, str]] = []
        for key, turn in zip(conversation.turn_keys(), conversation.turns, strict=True):
            facts: dict[str, Any] = {"before": list(before), "question": turn.question, "answer": turn.answer}
            if items:
                facts["items"] = [item.question for item in turn.items]
            rows.append(BuildRow(key=key, lang=conversation.lang, image=conversation.image, facts=facts))
            before.append({"question": turn.question, "answer": turn.answer})
    return rows


def _written(building: BenchmarkBuild, conversations: Sequence[DraftConversation]) -> dict[str, DraftTurn]:
    """The turns of the conversations of which each has a checklist, of two models what either writes, by key."""
    checklists = building.ask_both("checklist", _turn_rows(building, conversations, items=False))
    keys, keyed = set[str]().union(*checklists), dict[str, DraftTurn]()
    for conversation in conversations:
        if keys >= set(conversation.turn_keys()):
            keyed |= zip(conversation.turn_keys(), conversation.turns, strict=True)
    for key, turn in keyed.items():
        for checklist in (by_key[key] for by_key in checklists if key in by_key):
            # Of what both write the first one's item stays.
            known = {item.question for item in turn.items}
            turn.items += [item for item in checklist.items if item.question not in known]
    return keyed


def add_checklists(building: BenchmarkBuild, conversations: Sequence[DraftConversation]) -> list[DraftConversation]:
    """The conversations with a checklist for every turn. Items that the reference does not fulfil, or of which neither
    yes nor no can be said, are left out: held.jsonl has them. Where two models differ on that, the item stays, and
    people are told. A conversation with a turn without any item goes."""
    keyed = _written(building, conversations)
    whole = [conversation for conversation in conversations if keyed.keys() >= set(conversation.turn_keys())]
    held = building.ask_both("held", _turn_rows(building, whole, items=True))
    votes = {key: _leave_out(turn, [by_key.get(key) for by_key in held]) for key, turn in keyed.items()}
    answers = [words for of_turn in votes.values() for words in of_turn]
    left = [conversation for conversation in whole if all(turn.items for turn in conversation.turns)]
    why = [f"reference: {words[0]}" for words in answers if "yes" not in words]
    print(building.count("items", "checklist items", len(answers), len(answers) - len(why), why))
    print(building.count("checklists", "conversations", len(conversations), len(left), []))
    if answers and held[1:]:
        _agreement(building, keyed, votes)
    return left


def _leave_out(turn: DraftTurn, held: Sequence[HeldItems | None]) -> list[tuple[str, ...]]:
    """Leave out the items of a turn of which no model says that the reference fulfils them; what each said of all."""
    votes = list(zip(*(reply.answers if reply else ["unclear"] * len(turn.items) for reply in held), strict=True))
    kept = [(item, words) for item, words in zip(turn.items, votes, strict=True) if "yes" in words]
    turn.items = [item for item, _ in kept]
    turn.disputed = [item.question for item, words in kept if len(set(words)) > 1]
    return votes


def _agreement(
    building: BenchmarkBuild, keyed: Mapping[str, DraftTurn], votes: Mapping[str, list[tuple[str, ...]]]
) -> None:
    """How far two models agree on which items the references fulfil, into checklist_agreement.json."""
    from critic.stats.verdicts import verdict_agreement  # noqa: PLC0415 - takes a second

    group = [key.rpartition("/")[0] for key, of_turn in votes.items() for _ in of_turn]
    words = [("yes", "unclear", "no").index(word) for of_turn in votes.values() for pair in of_turn for word in pair]
    first, second = np.array(words, np.int8).reshape(-1, 2).T
    agreement = verdict_agreement(first, second, group)
    disputed = [item for turn in keyed.values() for item in turn.disputed]
    facts = {"items": msgspec.to_builtins(agreement), "disputed": disputed}
    jsonl.write_json(building.out / "checklist_agreement.json", facts)
    estimates = (agreement.accuracy, agreement.kappa)
    equal, kappa = (f"{number(estimate.value)} {interval(estimate.interval)}".strip() for estimate in estimates)
    print(f"two models, {agreement.n} checklist items: equal answers {equal}, kappa {kappa}")


def solved_blind(
    building: BenchmarkBuild, conversations: Sequence[DraftConversation], name: str, endpoint: Mapping[str, Any]
) -> dict[str, float]:
    """What the model gets without the image, 0 to 1, by conversation: the mean over its turns, judged by the same
    model. A turn that could not be answered or judged counts as 0: people look at it in any case."""
    from critic.stages import infer, judge  # noqa: PLC0415 - all that judges know: this step alone needs it

    draft, replies, judged = (building.out / f"{name}.jsonl" for name in ("draft", "blind_replies", "blind"))
    bench.write(draft, name, conversations)
    # What is no longer made, because a rule is stricter or an image gone, is no other run's.
    by_id = {conversation.id: conversation for conversation in benchmarks.read(name, draft)}
    for path, record in ((replies, ModelTurn), (judged, Judgment)):
        _drop_others(path, record, by_id)
    protocol, options = PLANS[name].protocol, {**endpoint, "max_failed": 1.0}
    code = infer.main(draft, name, replies, condition=["no_image"], data_root=building.root, **options)
    if not options["base_url"]:
        options |= {"judge": [options["model"]], "model": None}
    code |= judge.main(replies, judged, benchmark=name, protocol=[protocol], images="blind", **options)
    building.code = max(building.code, code)
    verdicts = (line for _, line in jsonl.read(judged, Judgment))
    low, high = protocols.load(protocol).scale
    shares = defaultdict[str, list[float]](list)
    for cell, scores in by_cell(verdicts, protocol).items():
        if cell.turn is not None:
            for key, score in scores.items():
                shares[key].append(0.0 if score is None else (score - low) / (high - low))
    return {key: fmean(of_conversation) for key, of_conversation in shares.items()}


def _drop_others(path: Path, record: type[Any], by_id: Mapping[str, Conversation]) -> None:
    """Drop what is about other conversations; the file is left as it is where there is none of it."""

    def wanted(line: Any) -> bool:
        return bool(by_id.get(line.conversation.id) == line.conversation)

    if not all(map(wanted, known(path, record, lambda _: None))):
        jsonl.rewrite(path, record, wanted)


def build(
    building: BenchmarkBuild, chosen: Chosen, name: str, *, blind: float, unreviewed: bool, endpoint: Mapping[str, Any]
) -> None:
    """From the chosen images to the frozen benchmark of the plan `name`, or to the sheet that people are to fill in.
    Conversations whose mean score without the image, 0 to 1, is `blind` or more go."""
    plan = PLANS[name]
    conversations = plan.make(building, chosen)
    if plan.checklists:
        conversations = add_checklists(building, conversations)
    blind_scores = solved_blind(building, conversations, name, endpoint) if conversations and blind <= 1 else {}
    conversations = _check(
        building, conversations, {key: score for key, score in blind_scores.items() if score >= blind}
    )
    jsonl.write(building.out / "made.jsonl", conversations)
    if conversations and not unreviewed:
        decided = _review(building, conversations)
        if decided.open or decided.differing:
            return
        building.count("people", "conversations", len(conversations), len(decided.accepted), decided.reasons())
        conversations = [conversation for conversation in conversations if conversation.id in decided.accepted]
    if not conversations:
        raise UsageError(f"{building.out}: no conversation is left; removed.jsonl and the review say why")
    texts = {talk.id: talk.text() for talk in conversations}
    group_of = bench.groups(list(texts), bench.overlaps(texts))
    split_of = bench.splits(group_of)
    folder = building.out / "benchmark"
    counts = Counter(split_of.values())
    facts: dict[str, Any] = {
        "plan": name,
        "lang": building.lang,
        "conversations": len(conversations),
        "reviewed": not unreviewed,
    }
    facts |= {"splits": dict(sorted(counts.items())), "steps": building.steps, "models": building.models}
    md5_of = {path: image["md5"] for path, image in chosen.items()}
    whole = bench.freeze(folder, name, conversations, building.root, md5_of, split_of, facts)
    card.write(folder, name, folder / "benchmark.jsonl", building.steps)
    print(f"{folder / 'benchmark.jsonl'}: {len(conversations)} conversations ({listed(counts)}), frozen as {whole}")


def _check(
    building: BenchmarkBuild, conversations: Sequence[DraftConversation], solved: Mapping[str, float]
) -> list[DraftConversation]:
    """What is left when what is solved blind, or repeats another, is gone; and why is in removed.jsonl."""
    reasons = dict[str, dict[str, Any]]()
    for key, score in solved.items():
        reasons[key] = {"reason": "solved_blind", "score": round(score, 3)}
    for pair in bench.overlaps({talk.id: talk.text() for talk in conversations}):
        # What only says much of the same stays, in one split.
        if pair.share == 1:
            reasons.setdefault(pair.other, {"reason": "repeats_another", "of": pair.key})
    removed = [{"id": talk.id, "image": talk.image, **reasons[talk.id]} for talk in conversations if talk.id in reasons]
    jsonl.write(building.out / "removed.jsonl", removed)
    left = [talk for talk in conversations if talk.id not in reasons]
    print(building.count("checks", "conversations", len(conversations), len(left), (row["reason"] for row in removed)))
    return left


def _review(building: BenchmarkBuild, conversations: Sequence[DraftConversation]) -> review.Reviewed:
    """What people decided; they are asked where it is open."""
    sheet = building.out / "review/sheet.csv"
    review.ask(sheet, conversations, range(1, review.REVIEWERS + 1))
    decided = review.decide(conversations, sheet)
    print(decided.line())
    if decided.open or decided.differing:
        third = [conversation for conversation in conversations if conversation.id in decided.differing]
        review.ask(sheet, third, [review.REVIEWERS + 1])
        print(f"{sheet}: fill in {', '.join(review.CRITERIA)} with yes or no, then run the same command again")
    return decided
