"""The part of `critic build` behind the images: conversations with references and checklists, what the machine checks
of them, what people decide, and the frozen benchmark."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec import Struct

from critic import benchmarks, jsonl, tables
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.building import bench, card, review
from critic.building.replies import Made, MadeTurn
from critic.errors import UsageError
from critic.records import Judgment, ModelTurn, Protocol, alike
from critic.stages.ask_rows import Building, BuildRow
from critic.stages.run import known, listed
from critic.stats.aggregate import SCALES, by_cell

Chosen = Mapping[str, dict[str, Any]]
"""The images that were chosen, by path: the fields of ImageFile, `category` and `sub_category`."""


class BuildPlan(Struct, frozen=True):
    """A kind of benchmark: how conversations are made of images, how those without the image are judged, and whether
    each question gets a checklist. Its file has the form of the benchmark of the plan's name."""

    make: Callable[[Building, Chosen], list[Made]]
    protocol: Protocol
    checklists: bool


def _made(image: dict[str, Any], building: Building, turns: list[MadeTurn], **more: Any) -> Made:
    about = {"category": image["category"], "sub_category": image["sub_category"], "source": image.get("source")}
    return Made(id=image["md5"][:12], image=image["path"], lang=building.lang, turns=turns, **about, **more)


def _talks(building: Building, chosen: Chosen) -> list[Made]:
    """MultiVerse §2.1, steps 2 and 3: a person with a goal first, then the conversation."""
    persons = building.ask("persona", building.rows())
    rows = [
        BuildRow(key=path, lang=building.lang, image=path, facts=msgspec.to_builtins(person))
        for path, person in persons.items()
    ]
    made = []
    for path, talk in building.ask("talk", rows).items():
        turns = [MadeTurn(question=turn.question, answer=turn.answer, task=talk.task) for turn in talk.turns]
        about = {"goal": persons[path].goal, "sub_goal": persons[path].sub_goal}
        made.append(_made(chosen[path], building, turns, task=talk.task, sub_task=talk.sub_task, **about))
    return made


def _levels(building: Building, chosen: Chosen) -> list[Made]:
    """ConvBench §3: perception, reasoning, creation."""
    made = []
    for path, reply in building.ask("levels", building.rows()).items():
        turns = [
            MadeTurn(question=turn.question, answer=turn.answer, task=task)
            for turn, task in zip(reply.turns, reply.tasks, strict=True)
        ]
        turns[-1].focus = reply.focus
        made.append(_made(chosen[path], building, turns, caption=reply.caption))
    return made


def _singles(building: Building, chosen: Chosen) -> list[Made]:
    """AlignMMBench §3: a question of one task an image, by the hash of the image; those outside of dialogues in five
    wordings more."""
    if building.lang != "zh":
        raise UsageError("--plan alignmmbench: its file has no language, and is read as Chinese: --lang zh")
    tasks = sorted(CATEGORY_OF)
    task_of = {path: tasks[int(chosen[path]["md5"], 16) % len(tasks)] for path in sorted(chosen)}
    rows = [BuildRow(key=path, lang="zh", image=path, facts={"task": task}) for path, task in task_of.items()]
    replies = building.ask("single", rows)
    alone = {path: reply.question for path, reply in replies.items() if not reply.dialogue}
    rows = [
        BuildRow(key=path, lang="zh", image=path, facts={"question": question, "count": 5})
        for path, question in alone.items()
    ]
    wordings = building.ask("wordings", rows)
    made = []
    for path, reply in replies.items():
        if path in alone and path not in wordings:
            continue
        turn = MadeTurn(question=reply.question, answer=reply.answer, task=reply.task)
        others = wordings[path].wordings if path in alone else []
        made.append(_made(chosen[path], building, [turn], task=reply.task, dialogue=reply.dialogue, wordings=others))
    return made


PLANS = {
    "multiverse": BuildPlan(_talks, "checklist", checklists=True),
    "convbench": BuildPlan(_levels, "direct", checklists=False),
    "alignmmbench": BuildPlan(_singles, "pointwise", checklists=False),
}
"""Plan -> how its conversations are made."""


class BuildRules(Struct, frozen=True, kw_only=True):
    """How conversations are checked and split: those whose mean score without the image, 0 to 1, is `blind` or more go;
    so do those that say what a text of `against` says. People decide, unless nobody is asked (`unreviewed`). `judge` is
    where the blind answers are judged."""

    plan: str
    blind: float
    judge: str | None
    against: Path | None
    unreviewed: bool
    internal: float
    external: str | None
    tokenizer: str


def _turn_rows(building: Building, made: Sequence[Made], items: bool) -> list[BuildRow]:
    """A row a turn: the question with what was said before, and, once there are any, its checklist's `items`."""
    rows = []
    for conversation in made:
        before: list[dict[str, str]] = []
        for key, turn in zip(conversation.turn_keys(), conversation.turns, strict=True):
            facts: dict[str, Any] = {"before": list(before), "question": turn.question, "answer": turn.answer}
            if items:
                facts["items"] = [item.question for item in turn.items]
            rows.append(BuildRow(key=key, lang=conversation.lang, image=conversation.image, facts=facts))
            before.append({"question": turn.question, "answer": turn.answer})
    return rows


def add_checklists(building: Building, made: Sequence[Made], sheet: Path) -> list[Made]:
    """The conversations with a checklist for every turn. Items that the reference does not fulfil, or of which neither
    yes nor no can be said, are left out and listed in a table. A conversation with a turn without any item goes."""
    checklists = building.ask("checklist", _turn_rows(building, made, items=False))
    whole = [conversation for conversation in made if checklists.keys() >= set(conversation.turn_keys())]
    keyed = dict[str, MadeTurn]()
    for conversation in whole:
        keyed |= zip(conversation.turn_keys(), conversation.turns, strict=True)
    for key, turn in keyed.items():
        turn.items = checklists[key].items
    total = sum(len(turn.items) for turn in keyed.values())
    held = building.ask("held", _turn_rows(building, whole, items=True))
    left_out = list[dict[str, str]]()
    for key, turn in keyed.items():
        answers = held[key].answers if key in held else ["unclear"] * len(turn.items)
        left_out += _leave_out(key, turn, answers)
    without = {key.rpartition("/")[0] for key, turn in keyed.items() if not turn.items}
    left = [conversation for conversation in whole if conversation.id not in without]
    if left_out:
        tables.write_csv(sheet, left_out)
    why = [f"reference: {row['the reference fulfils it']}" for row in left_out]
    print(building.count("items", "checklist items", total, total - len(left_out), why))
    print(building.count("checklists", "conversations", len(made), len(left), []))
    return left


def _leave_out(key: str, turn: MadeTurn, answers: Sequence[str]) -> Iterator[dict[str, str]]:
    """Take the items out of a turn that its reference does not fulfil: a row for each."""
    answered = list(zip(turn.items, answers, strict=True))
    turn.items = [item for item, answer in answered if answer == "yes"]
    for item, answer in answered:
        if answer != "yes":
            about = {"question": turn.question, "answer": turn.answer}
            yield {"turn": key, "item": item.question, "the reference fulfils it": answer, **about}


def solved_blind(
    building: Building, made: Sequence[Made], rules: BuildRules, endpoint: Mapping[str, Any]
) -> dict[str, float]:
    """What a model gets without the image, 0 to 1, by conversation: the mean over its turns. A turn that could not be
    answered or judged counts as 0: people look at it in any case."""
    from critic.stages import infer, judge  # noqa: PLC0415 - all that judges know: this step alone needs it

    draft, replies, judged = (building.out / f"{name}.jsonl" for name in ("draft", "blind_replies", "blind"))
    bench.write(draft, rules.plan, made)
    # What is no longer made, because a rule is stricter or an image gone, is no other run's.
    asked = {conversation.id: conversation for conversation in benchmarks.read(rules.plan, draft)}
    for path, record in ((replies, ModelTurn), (judged, Judgment)):
        _drop_others(path, record, lambda line: alike(asked.get(line.conversation.id), line.conversation))
    name, protocol = rules.plan, PLANS[rules.plan].protocol
    options = {**endpoint, "max_failed": 1.0}
    code = infer.main(draft, name, replies, condition=["no_image"], data_root=building.root, **options)
    # Without a URL the model is a folder, and a judge as it is a model.
    if judge_name := rules.judge or (None if options["base_url"] else options["model"]):
        options = {**options, "judge": [judge_name], "base_url": None, "model": None}
    code |= judge.main(replies, judged, benchmark=name, protocol=[protocol], images="blind", **options)
    building.code = max(building.code, code)
    verdicts = (line for _, line in jsonl.read(judged, Judgment))
    low, high = SCALES[protocol]
    shares = defaultdict[str, list[float]](list)
    for cell, scores in by_cell(verdicts, protocol).items():
        if cell.turn is not None:
            for key, score in scores.items():
                shares[key].append(0.0 if score is None else (score - low) / (high - low))
    # A single question's wordings are conversations of their own: the best of them counts.
    best: dict[str, float] = {}
    for key, some in shares.items():
        seed = key.rpartition("-")[0] if name == "alignmmbench" else key
        best[seed] = max(best.get(seed, 0.0), fmean(some))
    return best


def _drop_others(path: Path, record: type[Any], wanted: Callable[[Any], bool]) -> None:
    """Drop the records of a file that are not wanted; it is left as it is where there is none."""
    if not all(map(wanted, known(path, record, lambda _: None))):
        jsonl.rewrite(path, record, wanted)


def build(building: Building, chosen: Chosen, rules: BuildRules, endpoint: Mapping[str, Any]) -> None:
    """From the chosen images to the frozen benchmark, or to the sheet that people are to fill in."""
    plan = PLANS[rules.plan]
    named = sorted({image["source"] for image in chosen.values() if image.get("source")})
    if rules.external is not None and rules.external not in named:
        there = ", ".join(named) or "no source"
        raise UsageError(f"--external {rules.external}: no image is from there; there is {there}")
    made = plan.make(building, chosen)
    if plan.checklists:
        made = add_checklists(building, made, building.out / "items.csv")
    made = _check(building, made, rules, endpoint)
    jsonl.write(building.out / "made.jsonl", made)
    if made and not rules.unreviewed:
        decided = _review(building, made)
        if decided is None:
            return
        building.count("people", "conversations", len(made), len(decided.accepted), decided.reasons())
        accepted = set(decided.accepted)
        made = [conversation for conversation in made if conversation.id in accepted]
    if not made:
        raise UsageError(f"{building.out}: no conversation is left; removed.jsonl and the review say why")
    _freeze(building, made, {path: image["md5"] for path, image in chosen.items()}, rules)


def _freeze(building: Building, made: Sequence[Made], md5_of: Mapping[str, str], rules: BuildRules) -> None:
    pairs = bench.overlaps({conversation.id: conversation.text() for conversation in made})
    group_of = bench.groups([conversation.id for conversation in made], pairs)
    split_of = bench.splits(made, group_of, rules.internal, rules.external)
    folder = building.out / "benchmark"
    counts = Counter(split_of.values())
    facts = {
        "plan": rules.plan,
        "lang": building.lang,
        "conversations": len(made),
        "reviewed": not rules.unreviewed,
        "splits": dict(sorted(counts.items())),
        "steps": building.steps,
        "models": building.models,
    }
    whole = bench.freeze(folder, rules.plan, made, building.root, md5_of, split_of, facts)
    card.write(folder, rules.plan, folder / "benchmark.jsonl", rules.tokenizer, steps=building.steps)
    print(f"{folder / 'benchmark.jsonl'}: {len(made)} conversations ({listed(counts)}), frozen as {whole}")


def _check(building: Building, made: list[Made], rules: BuildRules, endpoint: Mapping[str, Any]) -> list[Made]:
    """What is left when what is solved blind, or says what other texts say, is gone; and why is in removed.jsonl."""
    reasons = dict[str, dict[str, Any]]()
    if made and rules.blind <= 1:
        for key, share in solved_blind(building, made, rules, endpoint).items():
            if share >= rules.blind:
                reasons[key] = {"reason": "solved_blind", "score": round(share, 3)}
    texts = {conversation.id: conversation.text() for conversation in made}
    if rules.against is not None:
        rows = ((place, list(_texts_of(row))) for place, row in tables.rows(rules.against))
        for pair in bench.contamination(texts, rows):
            reasons.setdefault(pair.key, {"reason": "contaminated", "of": pair.other, "share": round(pair.share, 3)})
    for pair in bench.overlaps(texts):
        # What only says much of the same stays, in one split.
        if pair.share == 1:
            reasons.setdefault(pair.other, {"reason": "repeats_another", "of": pair.key, "share": 1.0})
    removed = [
        {"id": conversation.id, "image": conversation.image, **reasons[conversation.id]}
        for conversation in made
        if conversation.id in reasons
    ]
    jsonl.write(building.out / "removed.jsonl", removed)
    left = [conversation for conversation in made if conversation.id not in reasons]
    print(building.count("checks", "conversations", len(made), len(left), (row["reason"] for row in removed)))
    return left


def _texts_of(row: Any) -> Iterator[str]:
    """All texts within a row."""
    if isinstance(row, str):
        yield row
    inner: Iterable[Any] = row.values() if isinstance(row, dict) else row if isinstance(row, list) else ()
    for value in inner:
        yield from _texts_of(value)


def _review(building: Building, made: list[Made]) -> review.Reviewed | None:
    """What people decided, of rewrites as well: those that they did not accept are taken out of `made`. None where they
    are still to be asked, which is said."""
    folder = building.out / "review"
    sheet = review.conversation_sheet(folder)
    sheet.ask(review.conversation_rows(made, range(1, review.REVIEWERS + 1)))
    decided = review.decide(made, sheet)
    print(decided.line())
    if decided.stale:
        print(f"{decided.stale} lines of {sheet.path} are on texts that are not there any more, and do not count")
    if decided.open or decided.differing:
        third = [conversation for conversation in made if conversation.id in decided.differing]
        sheet.ask(review.conversation_rows(third, [review.REVIEWERS + 1]))
        print(f"{sheet.path}: fill in {', '.join(review.CRITERIA)} with yes or no, then run the same command again")
    rewrites = review.rewrite_sheet(folder / "rewrites.jsonl")
    if not _accept_rewrites(building, made, rewrites) or decided.open or decided.differing:
        return None
    return decided


def _accept_rewrites(building: Building, made: Sequence[Made], sheet: review.Sheet) -> bool:
    """Take those out that people did not accept; False, and all stay, where there are some to be looked at."""
    rows = [row for conversation in made for row in _rewrite_rows(conversation)]
    sheet.ask(rows)
    answers = sheet.filled()
    unseen = sum(sheet.key(row) not in answers for row in rows)
    if unseen:
        print(f"{sheet.path}: {unseen} rewrites to look at: set accepted to true or false")
        return False
    for conversation in made:
        conversation.wordings = [
            row["prompt"] for row in _rewrite_rows(conversation) if answers[sheet.key(row)] == [True]
        ]
    left = sum(len(conversation.wordings) for conversation in made)
    if rows:
        print(building.count("rewrites", "rewrites", len(rows), left, ["not_accepted"] * (len(rows) - left)))
    return True


def _rewrite_rows(conversation: Made) -> list[dict[str, Any]]:
    return review.rewrite_rows(conversation.id, conversation.turns[0].question, conversation.wordings)
