"""The part of `critic build` behind the images: conversations with references and checklists, what the machine checks
of them, what people decide, and the frozen benchmark."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from critic import benchmarks, jsonl, tables
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.building import bench, card, difficulty, review
from critic.building.bench import SharedText
from critic.building.replies import Item, Made, MadeTurn
from critic.errors import UsageError
from critic.records import Judgment, ModelTurn, Protocol, alike
from critic.stages.ask_rows import Building, BuildRow
from critic.stages.run import known, listed

Chosen = Mapping[str, dict[str, Any]]
"""The images that were chosen, by path: the fields of ImageFile, `category` and `sub_category`."""


class BuildPlan(Struct, frozen=True):
    """A kind of benchmark: how conversations are made of images, how those without the image are judged, and whether
    each question gets a checklist. Its file has the form of the benchmark of the plan's name."""

    make: Callable[[Building, Chosen], list[Made]]
    protocol: Protocol
    checklists: bool


def _made(one: dict[str, Any], building: Building, turns: list[MadeTurn], **more: Any) -> Made:
    about = {"category": one["category"], "sub_category": one["sub_category"], "source": one.get("source")}
    return Made(id=one["md5"][:12], image=one["path"], lang=building.lang, turns=turns, **about, **more)


def _talks(building: Building, chosen: Chosen) -> list[Made]:
    """MultiVerse §2.1, steps 2 and 3: a person with a goal first, then the conversation."""
    people = building.ask("persona", building.rows())
    rows = [
        BuildRow(key=path, lang=building.lang, image=path, facts=msgspec.to_builtins(one))
        for path, one in people.items()
    ]
    made = []
    for path, talk in building.ask("talk", rows).items():
        turns = [MadeTurn(question=turn.question, answer=turn.answer, task=talk.task) for turn in talk.turns]
        about = {"goal": people[path].goal, "sub_goal": people[path].sub_goal}
        made.append(_made(chosen[path], building, turns, task=talk.task, sub_task=talk.sub_task, **about))
    return made


def _levels(building: Building, chosen: Chosen) -> list[Made]:
    """ConvBench §3: perception, reasoning, creation."""
    made = []
    for path, said in building.ask("levels", building.rows()).items():
        turns = [
            MadeTurn(question=turn.question, answer=turn.answer, task=task)
            for turn, task in zip(said.turns, said.tasks, strict=True)
        ]
        turns[-1].focus = said.focus
        made.append(_made(chosen[path], building, turns, caption=said.caption))
    return made


def _singles(building: Building, chosen: Chosen) -> list[Made]:
    """AlignMMBench §3: a question of one task an image, the tasks in turn; those outside of dialogues in five wordings
    more. Which task an image has is kept in a file: it stays where there are other images beside it."""
    if building.lang != "zh":
        raise UsageError("--plan alignmmbench: its file has no language, and is read as Chinese: --lang zh")
    tasks = _tasks(building.out / "tasks.jsonl", sorted(chosen))
    rows = [BuildRow(key=path, lang="zh", image=path, facts={"task": tasks[path]}) for path in sorted(chosen)]
    found = building.ask("single", rows)
    alone = {path: one.question for path, one in found.items() if not one.dialogue}
    facts = [
        BuildRow(key=path, lang="zh", image=path, facts={"question": said, "count": 5}) for path, said in alone.items()
    ]
    wordings = building.ask("wordings", facts)
    made = []
    for path, one in found.items():
        if path in alone and path not in wordings:
            continue
        turn = MadeTurn(question=one.question, answer=one.answer, task=one.task)
        others = wordings[path].wordings if path in alone else []
        made.append(_made(chosen[path], building, [turn], task=one.task, dialogue=one.dialogue, wordings=others))
    return made


def _tasks(file: Path, paths: Sequence[str]) -> dict[str, str]:
    """The task of each image by its path, as the file says; what it does not say yet goes to the rarest in turn."""
    kept = {row["image"]: row["task"] for _, row in jsonl.read(file, dict[str, str])} if file.is_file() else {}
    counts = dict.fromkeys(sorted(CATEGORY_OF), 0)
    for path in paths:
        if path in kept:
            counts[kept[path]] += 1
    new = dict[str, str]()
    for path in paths:
        if path not in kept:
            new[path] = min(counts, key=counts.__getitem__)
            counts[new[path]] += 1
    if new:
        jsonl.write(file, ({"image": path, "task": task} for path, task in {**kept, **new}.items()))
    return {**kept, **new}


PLANS = {
    "multiverse": BuildPlan(_talks, "checklist", checklists=True),
    "convbench": BuildPlan(_levels, "direct", checklists=False),
    "alignmmbench": BuildPlan(_singles, "pointwise", checklists=False),
}
"""Plan -> how its conversations are made."""


class BuildRules(Struct, frozen=True, kw_only=True):
    """How conversations are checked and split: those whose mean score without the image, 0 to 1, is `blind` or more go;
    so do those that say what a text of `against` says. People decide in the files `reviewed`, unless nobody is asked
    (`unreviewed`). `judge` is where the blind answers are judged."""

    plan: str
    blind: float
    judge: str | None
    against: Path | None
    reviewed: Sequence[Path]
    unreviewed: bool
    internal: float
    external: str | None
    tokenizer: str
    bits: int


def _turn_rows(building: Building, made: Sequence[Made], items: bool) -> list[BuildRow]:
    """A row a turn: the question with what was said before, and, once there are any, its checklist's `items`."""
    rows = []
    for one in made:
        before: list[dict[str, str]] = []
        for number, turn in enumerate(one.turns, 1):
            facts: dict[str, Any] = {"before": list(before), "question": turn.question, "answer": turn.answer}
            if items:
                facts["items"] = [item.question for item in turn.items]
            rows.append(BuildRow(key=f"{one.id}/{number}", lang=one.lang, image=one.image, facts=facts))
            before.append({"question": turn.question, "answer": turn.answer})
    return rows


Items = dict[str, list[Item]]
"""By turn, "ID/NUMBER"."""


def add_checklists(building: Building, made: Sequence[Made], kept: Path) -> tuple[list[Made], Items]:
    """The conversations with a checklist for every turn. Items that the reference does not fulfil, or of which neither
    yes nor no can be said, are left out and put on a sheet. A conversation with a turn that has no item left goes. And
    those that people `keep` on the sheet, by turn: they come back behind the checks, which were made without them."""
    items = building.ask("checklist", _turn_rows(building, made, False))
    total = 0
    whole = [one for one in made if all(f"{one.id}/{number}" in items for number in range(1, len(one.turns) + 1))]
    for one in whole:
        for number, turn in enumerate(one.turns, 1):
            turn.items = items[f"{one.id}/{number}"].items
    held = building.ask("held", _turn_rows(building, whole, True))
    wanted, stale = _kept(kept), 0
    sheet, left, back = list[dict[str, str]](), list[Made](), dict[str, list[Item]]()
    for one in whole:
        for number, turn in enumerate(one.turns, 1):
            key = f"{one.id}/{number}"
            answers = held[key].answers if key in held else ["unclear"] * len(turn.items)
            total += len(turn.items)
            good: list[Item] = []
            for item, answer in zip(turn.items, answers, strict=True):
                if answer == "yes":
                    good.append(item)
                else:
                    said = {"question": turn.question, "answer": turn.answer}
                    row = wanted.get((key, tables.harmless(item.question)))
                    another = row is not None and review.on_another(row, said)
                    keep = row is not None and not another
                    stale += another
                    if keep:
                        back.setdefault(key, []).append(item)
                    about = {"turn": key, "item": item.question, "the reference fulfils it": answer}
                    sheet.append({**about, **said, "keep": "yes" if keep else ""})
            turn.items = good or back.pop(key, [])
        if all(turn.items for turn in one.turns):
            left.append(one)
    if sheet:
        tables.write_csv(kept, sheet)
    why = [f"reference: {row['the reference fulfils it']}" for row in sheet]
    print(building.count("items", "checklist items", total, total - len(sheet), why))
    if sheet:
        print(f"{kept}: what was left out, for people to keep")
    if stale:
        print(f"{stale} items that people keep are on a question or an answer made anew since, and do not count")
    print(building.count("checklists", "conversations", len(made), len(left), []))
    return left, back


def _kept(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the turns and items that people keep, as the sheet has them. Raises UsageError for a sheet without
    them."""
    found = dict[tuple[str, str], dict[str, Any]]()
    for place, row in tables.rows(path) if path.is_file() else ():
        tables.text(place, row, "turn"), tables.text(place, row, "item")
        if (tables.optional_text(row, "keep") or "").lower() in review.YES:
            found[row["turn"], tables.harmless(row["item"])] = row
    return found


def solved_blind(
    building: Building, made: Sequence[Made], rules: BuildRules, endpoint: Mapping[str, Any]
) -> dict[str, float]:
    """What a model gets without the image, 0 to 1, by conversation: the mean over its turns. A turn that could not be
    answered or judged counts as 0: people look at it in any case."""
    from critic.stages import infer, judge  # noqa: PLC0415 - all that judges know: this step alone needs it

    draft, replies, judged = (building.out / f"{name}.jsonl" for name in ("draft", "blind_replies", "blind"))
    bench.write(draft, rules.plan, made)
    # What is no longer made, because a rule is stricter or an image gone, is no other run's.
    asked = {one.id: one for one in benchmarks.read(rules.plan, draft)}
    for path, record in ((replies, ModelTurn), (judged, Judgment)):
        _drop_others(path, record, lambda one: alike(asked.get(one.conversation.id), one.conversation))
    name, protocol = rules.plan, PLANS[rules.plan].protocol
    told = {**endpoint, "max_failed": 1.0}
    code = infer.main(draft, name, replies, condition=["no_image"], data_root=building.root, **told)
    # Without a URL the model is a folder, and a judge as it is a model.
    if named := rules.judge or (None if told["base_url"] else told["model"]):
        told = {**told, "judge": [named], "base_url": None, "model": None}
    code |= judge.main(replies, judged, benchmark=name, protocol=[protocol], images="blind", **told)
    building.code = max(building.code, code)
    verdicts = (line for _, line in jsonl.read(judged, Judgment))
    scores = difficulty.of_turns(verdicts, protocol, "no_image")
    shares = difficulty.by_conversation({turn: score or 0.0 for turn, score in scores.items()}).scores
    # A single question's wordings are conversations of their own: the best of them counts.
    best: dict[str, float] = {}
    for key, share in shares.items():
        seed = key.rpartition("-")[0] if name == "alignmmbench" else key
        best[seed] = max(best.get(seed, 0.0), share)
    return best


def _drop_others(path: Path, record: type[Any], wanted: Callable[[Any], bool]) -> None:
    """Drop the records of a file that are not wanted; it is left as it is where there is none."""
    if not all(map(wanted, known(path, record, lambda _: None))):
        jsonl.rewrite(path, record, wanted)


def build(building: Building, chosen: Chosen, rules: BuildRules, endpoint: Mapping[str, Any]) -> None:
    """From the chosen images to the frozen benchmark, or to the sheet that people are to fill in."""
    plan = PLANS[rules.plan]
    named = sorted({one["source"] for one in chosen.values() if one.get("source")})
    if rules.external is not None and rules.external not in named:
        raise UsageError(
            f"--external {rules.external}: no image is from there; there is {', '.join(named) or 'no source'}"
        )
    made = plan.make(building, chosen)
    back: Items = {}
    if plan.checklists:
        made, back = add_checklists(building, made, building.out / "items.csv")
    made, removed = _check(building, made, rules, endpoint)
    for one in made:
        for number, turn in enumerate(one.turns, 1):
            turn.items += back.get(f"{one.id}/{number}", [])
    jsonl.write(building.out / "removed.jsonl", removed)
    jsonl.write(building.out / "made.jsonl", made)
    for line in card.balances(rules.plan, _classes(made)):
        print(line)
    if made and not rules.unreviewed:
        decided = _review(building, made, rules.reviewed, [one["id"] for one in removed])
        if decided is None:
            return
        building.count("people", "conversations", len(made), len(decided.accepted), decided.reasons())
        made = [one for one in made if one.id in set(decided.accepted)]
    if not made:
        raise UsageError(f"{building.out}: no conversation is left; removed.jsonl and the review say why")
    found = bench.overlaps({one.id: one.text() for one in made})
    group_of = bench.groups([one.id for one in made], ((pair.one, pair.other) for pair in found))
    split_of = bench.splits(made, group_of, rules.internal, rules.external)
    folder = building.out / "benchmark"
    counts, reviewed = Counter(split_of.values()), not rules.unreviewed
    about: dict[str, Any] = {"plan": rules.plan, "lang": building.lang, "conversations": len(made)}
    about |= {"reviewed": reviewed, "splits": dict(sorted(counts.items())), "steps": building.steps}
    about["models"] = building.models
    md5_of = {path: one["md5"] for path, one in chosen.items()}
    whole = bench.freeze(folder, rules.plan, made, building.root, md5_of, split_of, about)
    file = folder / "benchmark.jsonl"
    shared = bench.leaks(folder, rules.plan)
    card.write(folder, rules.plan, file, folder, rules.tokenizer, rules.bits, steps=building.steps, leaks=shared)
    print(f"{file}: {len(made)} conversations ({listed(counts)}), frozen as {whole}")


def _check(
    building: Building, made: list[Made], rules: BuildRules, endpoint: Mapping[str, Any]
) -> tuple[list[Made], list[dict[str, Any]]]:
    """What is left when what is solved blind, or says what other texts say, is gone; and what is gone, with reasons."""
    reasons = dict[str, dict[str, Any]]()
    if made and rules.blind <= 1:
        for key, share in solved_blind(building, made, rules, endpoint).items():
            if share >= rules.blind:
                reasons[key] = {"reason": "solved_blind", "score": round(share, 3)}
    if rules.against is not None:
        known = {place: list(_texts_of(row)) for place, row in tables.rows(rules.against)}
        for pair in bench.overlaps({one.id: one.text() for one in made}, known):
            reasons.setdefault(pair.one, {"reason": "contaminated", "of": pair.other, "share": round(pair.share, 3)})
    for pair in _repeated(made):
        reasons.setdefault(pair.other, {"reason": "repeats_another", "of": pair.one, "share": round(pair.share, 3)})
    removed = [{"id": one.id, "image": one.image, **reasons[one.id]} for one in made if one.id in reasons]
    left = [one for one in made if one.id not in reasons]
    print(building.count("checks", "conversations", len(made), len(left), (one["reason"] for one in removed)))
    return left, removed


def _classes(made: Sequence[Made]) -> dict[str, Counter[str]]:
    """How many there are of each task, goal and language."""
    tasks = [turn.task or one.task for one in made for turn in one.turns]
    named: dict[str, list[str | None]] = {
        "task": tasks,
        "interaction goal": [one.goal for one in made],
        "language": [one.lang for one in made],
    }
    counts = {kind: Counter(name for name in some if name) for kind, some in named.items()}
    return {kind: some for kind, some in counts.items() if some}


def _repeated(made: Sequence[Made]) -> list[SharedText]:
    """Pairs that say the very same: of those the second goes. What only says much of the same stays in one split."""
    return [pair for pair in bench.overlaps({one.id: one.text() for one in made}) if pair.share == 1]


def _texts_of(row: Any) -> Iterator[str]:
    """All texts within a row."""
    if isinstance(row, str):
        yield row
    inner: Iterable[Any] = row.values() if isinstance(row, dict) else row if isinstance(row, list) else ()
    for one in inner:
        yield from _texts_of(one)


def _review(building: Building, made: list[Made], given: Sequence[Path], gone: Sequence[str]) -> review.Reviewed | None:
    """What people decided, of rewrites as well: those that they did not accept are taken out of `made`. None where they
    are still to be asked, which is said. Sheets may name those that are `gone` by now, and what was written onto them
    for people; what they do not name yet is written onto them."""
    folder = building.out / "review"
    sheet, third, rewrites = folder / "sheet.csv", folder / "third.csv", folder / "rewrites.jsonl"
    several = any(one.wordings for one in made)
    before = [rewrites] if rewrites.is_file() else []
    rewritten = review.accepted(made, [*before, *given] if several else [])
    if several:
        review.write_rewrites(rewrites, made)
    review.write_rows(folder / "rows.jsonl", made)
    review.write_sheet(sheet, made, map(str, range(1, review.REVIEWERS + 1)))
    read = [*given, *(path for path in (sheet, third) if path.is_file())]
    asked = review.ids_on(folder / "rows.jsonl") | review.ids_on(sheet)
    votes, stale = review.read(read, made, {*gone, *asked})
    decided = review.decide(made, votes)
    print(decided.line())
    if stale := stale + rewritten.stale:
        print(f"{stale} lines of reviewers are on texts that were made anew since, and do not count")
    command = f"critic annotate {{}} --raters {review.REVIEWERS} --overlap 1 --data-root {building.root}"
    if rewritten.unseen:
        print(f"{rewrites}: {rewritten.unseen} rewrites to look at: set accepted to true or false")
        print(f"or: {command.format(rewrites)} --scheme rewrite, --export, and --reviewed what it exports")
    if decided.open or decided.differing:
        if not decided.open:
            review.write_sheet(third, [one for one in made if one.id in decided.differing], ["3"])
        where = sheet if decided.open else third
        print(f"{where}: fill in {', '.join(review.CRITERIA)} with yes or no, then run the same command again")
        rows = folder / "rows.jsonl"
        print(f"or: {command.format(rows)} --scheme checklist, --export, and --reviewed what it exports")
    if rewritten.unseen or decided.open or decided.differing:
        return None
    if several:
        total, left = sum(len(one.wordings) for one in made), sum(map(len, rewritten.kept.values()))
        print(building.count("rewrites", "rewrites", total, left, ["not_accepted"] * (total - left)))
        for one in made:
            one.wordings = rewritten.kept[one.id]
    return decided
