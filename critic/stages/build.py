"""critic build: build a benchmark of your own, from a folder of images to a frozen test.

critic build images/ --out runs/mine
critic build images/ --out runs/mine --plan multiverse --base-url http://127.0.0.1:8000/v1

Images are chosen first. With a plan, conversations are built from them: references, checklists, machine checks, review
by people, the frozen test.
"""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from msgspec.structs import replace

from critic import benchmarks, jsonl
from critic.backends import Backend
from critic.benchmarks.alignmmbench import CATEGORY_OF
from critic.building import bench, card, pictures, review
from critic.building.pictures import DroppedImage, ImageFile
from critic.building.replies import DraftConversation, DraftTurn, HeldItems
from critic.errors import UsageError
from critic.images import Images
from critic.judging import protocols
from critic.page.blocks import interval, number
from critic.records import Judgment, Language, ModelTurn
from critic.stages.ask_rows import STEPS, TOKENS, AskedRow, AskRows, BuildRow
from critic.stages.options import NAMES, Endpoint, choose, takes_one_model
from critic.stages.run import known
from critic.stages.totals import listed


class NeedsModelError(Exception):
    """A step has to ask a model, but the user names none."""


class BenchmarkBuild:
    """A benchmark under construction in the folder `out`, from the images under `root`.

    All replies are kept in files there, so that a rerun repeats no request.

    `endpoint`: the options of the model. `second`: the second model, which writes checklists too, or None.
    """

    def __init__(self, root: Path, out: Path, lang: Language, endpoint: Endpoint, second: str | None) -> None:
        self.root, self.out, self.lang, self.endpoint = root, out, lang, endpoint
        # Opens each model that the user names, by the ending of its files.
        self._connect = dict[str, Callable[[], Backend]]()
        if endpoint.model or endpoint.base_url:
            self._connect[""] = endpoint.open_one
        if second:
            other = replace(endpoint, model=None, base_url=None)
            self._connect["_second"] = lambda: other.open("--second", [second])[0]
        self.images, self.dropped = list[ImageFile](), list[DroppedImage]()
        self.steps, self.models = list[dict[str, Any]](), dict[str, list[str]]()
        self.code = 0

    def count(self, step: str, unit: str, before: int, after: int, reasons: Iterable[str]) -> str:
        """Record how many items were left `before` and `after` a step, and return a line to print.

        `reasons` has an entry for each reason of each dropped item; an item with two reasons counts for both.
        """
        # The largest first; equal counts have the same order in every run.
        counts = dict(sorted(Counter(reasons).items(), key=lambda reason: (-reason[1], reason[0])))
        self.steps.append({"step": step, "unit": unit, "before": before, "after": after, "reasons": counts})
        left = f"; {before - after} left out, {1 - after / before:.1%}" if before else ""
        return f"{step}: {before} -> {after} {unit}{left}" + (f" ({listed(Counter(counts))})" if counts else "")

    def drop(self, step: str, dropped: Sequence[DroppedImage]) -> None:
        """Drop images in a step: print how many and why, and write dropped.jsonl."""
        gone = {image.path for image in dropped}
        before, self.images = len(self.images), [image for image in self.images if image.path not in gone]
        self.dropped += dropped
        print(self.count(step, "images", before, len(self.images), (image.reason for image in dropped)))
        jsonl.write(self.out / "dropped.jsonl", self.dropped)

    def ask_both(self, step: str, rows: Sequence[BuildRow]) -> list[Mapping[str, Any]]:
        """Request a step's replies from the model and, if there is one, from the second model.

        Return the usable replies of each, by row key.
        """
        return [self.ask(step, rows, whose) for whose in self._connect]

    def ask(self, step: str, rows: Sequence[BuildRow], whose: str = "") -> Mapping[str, Any]:
        """Request a step's replies to `rows`, except those already in the step's file. Return all usable replies.

        The result maps row keys to replies, in the order of the rows. `whose` is "" for the model, "_second" for the
        second model. Raises NeedsModelError if the user names no model.
        """
        path = self.out / f"{step}{whose}.jsonl"
        if whose not in self._connect:
            raise NeedsModelError(step)
        if not rows:
            return {}
        backend, md5_of = self._connect[whose](), {image.path: image.md5 for image in self.images}
        hashed = [replace(row, md5=md5_of.get(row.image or "")) for row in rows]
        stage = AskRows(self.endpoint.run_options(path), backend, step, hashed, TOKENS, Images(self.root))
        self.code = max(self.code, stage.run())
        records = {record.key: record for _, record in jsonl.read(path, AskedRow)}
        current = [records[row.key] for row in rows if row.key in records]
        # Earlier runs may have asked another model.
        if models := sorted({record.model for record in current if record.model}):
            self.models[step + whose] = models
        good = {record.key: msgspec.convert(record.reply, STEPS[step]) for record in current if record.failure is None}
        failures = filter(None, (record.failure for record in current))
        self.count(step + whose, "replies", len(current), len(good), failures)
        return good

    def rows(self, facts: Mapping[str, dict[str, Any]] | None = None) -> list[BuildRow]:
        """Return one row per image that is left or, if `facts` is given, per image path in `facts`.

        `facts`: image path -> facts to fill into the prompt.
        """
        facts_of = {image.path: {} for image in self.images} if facts is None else facts
        return [BuildRow(key=path, lang=self.lang, image=path, facts=some) for path, some in facts_of.items()]


Chosen = Mapping[str, dict[str, Any]]
"""The chosen images: path -> the fields of ImageFile, `category` and `sub_category`."""


class BuildPlan(msgspec.Struct, frozen=True):
    """A kind of benchmark to build. It is named after the published benchmark whose file format it uses.

    `step`: the step that generates a conversation about an image.
    `facts`: function that returns facts about each image, by path. They are filled into that step's prompt, and copied
        into the conversation.
    `protocol`: the protocol that judges answers given without the image (`solve_blind`). If it is "checklist", each
        question gets a checklist.
    """

    step: str
    facts: Callable[[BenchmarkBuild, Chosen], Mapping[str, dict[str, Any]]]
    protocol: str


def _ask_persons(building: BenchmarkBuild, chosen: Chosen) -> dict[str, dict[str, Any]]:
    """Request a persona with a goal for each image; this persona then asks the questions (MultiVerse §2.1, step 2).

    Return the fields of each Persona by image path.
    """
    persons = building.ask("persona", building.rows())
    return {path: msgspec.to_builtins(person) for path, person in persons.items()}


def _draw_tasks(building: BenchmarkBuild, chosen: Chosen) -> dict[str, dict[str, Any]]:
    """Select a task for each image by its hash, so that it keeps the task when images are added (AlignMMBench §3).

    Return {"task": name} by image path. Raises UsageError unless the language is Chinese.
    """
    if building.lang != "zh":
        raise UsageError("--plan alignmmbench: its file has no language, and is read as Chinese: --lang zh")
    tasks = sorted(CATEGORY_OF)
    return {path: {"task": tasks[int(image["md5"], 16) % len(tasks)]} for path, image in sorted(chosen.items())}


PLANS = {
    "multiverse": BuildPlan("talk", _ask_persons, "checklist"),
    "convbench": BuildPlan("levels", lambda _, chosen: {path: {} for path in chosen}, "direct"),
    "alignmmbench": BuildPlan("single", _draw_tasks, "pointwise"),
}
"""Values of `critic build --plan` -> plans."""


def generate(building: BenchmarkBuild, chosen: Chosen, plan: BuildPlan) -> list[DraftConversation]:
    """Generate a conversation about each chosen image by the step of a plan.

    A conversation's id is the beginning of the image's MD5. Its other fields come from `chosen`, from the plan's facts
    and from the model's reply.
    """
    facts, conversations = plan.facts(building, chosen), []
    for path, reply in building.ask(plan.step, building.rows(facts)).items():
        image, said = chosen[path], msgspec.to_builtins(reply)
        own = {"id": image["md5"][:12], "image": path, "lang": building.lang, "turns": reply.list_turns()}
        conversations.append(msgspec.convert(dict(ChainMap(own, image, facts[path], said)), DraftConversation))
    return conversations


def _list_turns(conversations: Sequence[DraftConversation]) -> Iterator[BuildRow]:
    """Yield one row per turn: the question, its answer, its checklist (if written yet) and the exchanges before it."""
    for conversation in conversations:
        before: list[dict[str, str]] = []
        for key, turn in conversation.keyed_turns.items():
            exchange = {"question": turn.question, "answer": turn.answer}
            facts = {**exchange, "before": list(before), "items": [item.question for item in turn.items]}
            yield BuildRow(key=key, lang=conversation.lang, image=conversation.image, facts=facts)
            before.append(exchange)


def add_checklists(building: BenchmarkBuild, conversations: Sequence[DraftConversation]) -> list[DraftConversation]:
    """Add a checklist to every turn, and return the conversations in which each turn has at least one item.

    An item is dropped if no model says that the reference fulfils it (the answers are in held.jsonl). An item on which
    two models differ is kept, and noted in the review sheet.
    """
    checklists = building.ask_both("checklist", [*_list_turns(conversations)])
    answered = set[str]().union(*checklists)
    with_items = [conversation for conversation in conversations if answered.issuperset(conversation.keyed_turns)]
    keyed = {key: turn for conversation in with_items for key, turn in conversation.keyed_turns.items()}
    for key, turn in keyed.items():
        for checklist in filter(None, (checklist_of.get(key) for checklist_of in checklists)):
            # An item that both models write keeps the first one's aspects.
            present = {item.question for item in turn.items}
            turn.items += [item for item in checklist.items if item.question not in present]
    held = building.ask_both("held", [*_list_turns(with_items)])
    votes = {key: _keep_fulfilled(turn, [replies.get(key) for replies in held]) for key, turn in keyed.items()}
    judged = [*chain(*votes.values())]
    reasons = [f"reference: {words[0]}" for words in judged if "yes" not in words]
    left = [conversation for conversation in with_items if all(turn.items for turn in conversation.turns)]
    print(building.count("items", "checklist items", len(judged), len(judged) - len(reasons), reasons))
    print(building.count("checklists", "conversations", len(conversations), len(left), []))
    if judged and held[1:]:
        _write_agreement(building.out, keyed, votes)
    return left


def _keep_fulfilled(turn: DraftTurn, replies: Sequence[HeldItems | None]) -> list[tuple[str, ...]]:
    """Reduce a turn's checklist to the items that the reference fulfils according to at least one model.

    `replies` holds a reply per model, None if it failed. Return the models' answers ("yes", "no" or "unclear") to each
    of the original items.
    """
    columns = [reply.answers if reply else ["unclear"] * len(turn.items) for reply in replies]
    votes = list(zip(*columns, strict=True))
    kept = [(item, words) for item, words in zip(turn.items, votes, strict=True) if "yes" in words]
    turn.items = [item for item, _ in kept]
    turn.disputed = [item.question for item, words in kept if len(set(words)) > 1]
    return votes


def _write_agreement(out: Path, keyed: Mapping[str, DraftTurn], votes: Mapping[str, list[tuple[str, ...]]]) -> None:
    """Write `out`/checklist_agreement.json: how often two models agree on whether the references fulfil the items.

    `votes` maps turn keys to the two models' answers to each item.
    """
    from critic.stats.verdicts import verdict_agreement  # noqa: PLC0415 - takes a second

    codes, groups = list[list[int]](), list[str]()
    for key, answers in votes.items():
        codes += [[("yes", "unclear", "no").index(word) for word in words] for words in answers]
        # Turns of one conversation are about one image: they are resampled together.
        groups += [key.rpartition("/")[0]] * len(answers)
    first, second = np.array(codes, np.int8).T
    agreement = verdict_agreement(first, second, groups)
    disputed = [item for turn in keyed.values() for item in turn.disputed]
    jsonl.write_json(out / "checklist_agreement.json", {"items": agreement, "disputed": disputed})
    estimates = (agreement.accuracy, agreement.kappa)
    equal, kappa = (f"{number(estimate.value)} {interval(estimate.interval)}".strip() for estimate in estimates)
    print(f"two models, {agreement.n} checklist items: equal answers {equal}, kappa {kappa}")


def solve_blind(building: BenchmarkBuild, conversations: Sequence[DraftConversation], name: str) -> dict[str, float]:
    """Let the model answer without the image and judge its own answers; return the mean score (0..1) by conversation
    id.

    A turn that could not be answered or judged counts as 0. `name` is the plan.
    """
    from critic.stages import infer, judge  # noqa: PLC0415 - they import every judge; only this step needs them

    draft, replies, judged = (building.out / f"{name}.jsonl" for name in ("draft", "blind_replies", "blind"))
    jsonl.write(draft, map(bench.FORMS[name], conversations))
    # Lines about earlier drafts would count as another run's: a rule became stricter, or an image is gone.
    by_id = {conversation.id: conversation for conversation in benchmarks.read(name, draft)}

    def is_wanted(line: Any) -> bool:
        return bool(by_id.get(line.conversation.id) == line.conversation)

    for path, record in ((replies, ModelTurn), (judged, Judgment)):
        # Most reruns have the same drafts: nothing is rewritten.
        if not all(map(is_wanted, known(path, record))):
            jsonl.write(path, filter(is_wanted, known(path, record)))
    protocol = PLANS[name].protocol
    options = {option: getattr(building.endpoint, option) for option in NAMES["one_model"]} | {"max_failed": 1.0}
    code = infer.main(draft, name, replies, condition=["no_image"], data_root=building.root, **options)
    # Without a URL the model is a folder or a file, which critic judge takes as --judge.
    if not options["base_url"]:
        options |= {"judge": [options["model"]], "model": None}
    code |= judge.main(replies, judged, benchmark=name, protocol=[protocol], images="blind", **options)
    building.code = max(building.code, code)
    low, high = protocols.load(protocol).scale
    shares = defaultdict[str, list[float]](list)
    for _, line in jsonl.read(judged, Judgment):
        # Verdicts on whole conversations would count their turns twice.
        if line.turn is not None:
            shares[line.sample.id].append(0.0 if line.score is None else (line.score - low) / (high - low))
    return {key: fmean(by_turn) for key, by_turn in shares.items()}


def build_conversations(building: BenchmarkBuild, chosen: Chosen, name: str, *, blind: float, unreviewed: bool) -> None:
    """Build the benchmark of the plan `name` from the chosen images, up to the frozen test or the sheet that people
    must fill.

    `blind`: drop conversations whose mean score without the image (0..1) is at least this; above 1 the check is
        skipped.
    `unreviewed`: True to skip the review by people.

    Raises UsageError if no conversation is left.
    """
    plan = PLANS[name]
    conversations = generate(building, chosen, plan)
    if plan.protocol == "checklist":
        conversations = add_checklists(building, conversations)
    blind_scores = solve_blind(building, conversations, name) if conversations and blind <= 1 else {}
    solved = {key: score for key, score in blind_scores.items() if score >= blind}
    conversations = _drop_solved(building, conversations, solved)
    jsonl.write(building.out / "made.jsonl", conversations)
    if conversations and not unreviewed:
        sheet = building.out / "review/sheet.csv"
        review.ask(sheet, conversations, range(1, review.REVIEWERS + 1))
        outcomes = review.decide(conversations, sheet)
        print(review.format_yield(outcomes))
        if any(reasons in ([review.OPEN], [review.DIFFERING]) for reasons in outcomes.values()):
            # Only if two reviewers differ does a third one decide.
            third = [talk for talk in conversations if outcomes[talk.id] == [review.DIFFERING]]
            review.ask(sheet, third, [review.REVIEWERS + 1])
            print(f"{sheet}: fill in {', '.join(review.CRITERIA)} with yes or no, then run the same command again")
            return
        accepted = [talk for talk in conversations if not outcomes[talk.id]]
        building.count("people", "conversations", len(conversations), len(accepted), chain(*outcomes.values()))
        conversations = accepted
    if not conversations:
        raise UsageError(f"{building.out}: no conversation is left; removed.jsonl and the review say why")
    texts = {conversation.id: conversation.join_texts() for conversation in conversations}
    # Conversations that share text stay in one split, or the internal test would hold what was trained on.
    split_of = bench.assign_splits(bench.group_overlaps(list(texts), bench.find_overlaps(texts)))
    counts = Counter(split_of.values())
    facts: dict[str, Any] = {
        "plan": name,
        "lang": building.lang,
        "conversations": len(conversations),
        "reviewed": not unreviewed,
        "splits": dict(sorted(counts.items())),
        "steps": building.steps,
        "models": building.models,
    }
    folder = building.out / "benchmark"
    md5_of = {path: image["md5"] for path, image in chosen.items()}
    frozen_hash = bench.freeze(folder, name, conversations, building.root, md5_of, split_of, facts)
    card.write(folder, name, folder / "benchmark.jsonl", building.steps)
    print(
        f"{folder / 'benchmark.jsonl'}: {len(conversations)} conversations ({listed(counts)}), frozen as {frozen_hash}"
    )


def _drop_solved(
    building: BenchmarkBuild, conversations: Sequence[DraftConversation], solved: Mapping[str, float]
) -> list[DraftConversation]:
    """Return the conversations that are not `solved` without the image and do not repeat another one completely.

    `solved` maps ids to scores. The reasons for dropping the others are written to removed.jsonl.
    """
    reasons = dict[str, dict[str, Any]]()
    for key, score in solved.items():
        reasons[key] = {"reason": "solved_blind", "score": round(score, 3)}
    for key, other, share in bench.find_overlaps({talk.id: talk.join_texts() for talk in conversations}):
        # One that shares only a part stays, in the same split.
        if share == 1:
            reasons.setdefault(other, {"reason": "repeats_another", "of": key})
    removed = [{"id": talk.id, "image": talk.image, **reasons[talk.id]} for talk in conversations if talk.id in reasons]
    jsonl.write(building.out / "removed.jsonl", removed)
    left = [talk for talk in conversations if talk.id not in reasons]
    print(building.count("checks", "conversations", len(conversations), len(left), (row["reason"] for row in removed)))
    return left


def choose_images(building: BenchmarkBuild, *, min_side: int, quality: int, rare: int, cap: int) -> dict[str, Any]:
    """Choose the images of a benchmark. Return a dict for each chosen image, by path.

    The dict has the fields of ImageFile (size, MD5, perceptual hash) and the image's `category` and `sub_category`.

    `min_side`: drop images with a shorter side, in pixels. Near-duplicates are dropped, too.
    `quality`: drop an image if one of the model's grades (1..5) for it is lower.
    `rare`: merge categories with fewer images into one, and drop the merged category if it still has fewer.
    `cap`: sample at most this many of the remaining images.

    Raises NeedsModelError at the first step that needs a model if the user names none.
    """
    building.images = pictures.scan(building.root, building.out / "images.jsonl")
    building.drop("files", [*pictures.find_unusable(building.root, building.images, min_side)])
    building.drop("duplicates", pictures.find_duplicates(building.images))

    def leave_out(step: str, reasons: Mapping[str, str]) -> None:
        """Drop images in a step; `reasons` maps their paths to the reasons."""
        building.drop(step, [DroppedImage(path=path, step=step, reason=why) for path, why in sorted(reasons.items())])

    grades = building.ask("quality", building.rows())
    # A failed call is no grade: the image goes under a name of its own, and --retry-failed brings it back.
    reasons = {image.path: "not_graded" for image in building.images if image.path not in grades}
    reasons |= {path: "low_quality" for path, grade in grades.items() if min(msgspec.structs.astuple(grade)) < quality}
    leave_out("quality", reasons)
    named = building.ask("category", building.rows())
    leave_out("category", {image.path: "no_category" for image in building.images if image.path not in named})
    categories = pictures.merge_rare({path: image.category.strip() for path, image in named.items()}, rare)
    counts = Counter(categories.values())
    left = {path: name for path, name in categories.items() if counts[name] >= rare}
    leave_out("rare", dict.fromkeys(categories.keys() - left.keys(), "rare_category"))
    leave_out("drawn", dict.fromkeys(left.keys() - pictures.draw_sample(left, cap), "not_drawn"))
    kept = [
        {**msgspec.to_builtins(image), "category": left[image.path], "sub_category": named[image.path].sub_category}
        for image in building.images
    ]
    jsonl.write(building.out / "chosen.jsonl", kept)
    return {image["path"]: image for image in kept}


@takes_one_model
def main(
    folder: Path,
    out: Annotated[Path, typer.Option()],
    endpoint: Endpoint,
    plan: Annotated[
        str | None,
        typer.Option(help=f"Benchmark to build, in its file format: {', '.join(PLANS)}.", show_default="images alone"),
    ] = None,
    min_side: Annotated[int, typer.Option(min=1)] = 224,
    quality: Annotated[int, typer.Option(min=1, max=5)] = 5,
    rare: Annotated[int, typer.Option(min=1)] = 50,
    cap: Annotated[int, typer.Option(min=1)] = 1000,
    lang: Language = "en",
    blind: Annotated[float, typer.Option(min=0)] = 0.7,
    second: Annotated[str | None, typer.Option(metavar="MODEL")] = None,
    unreviewed: Annotated[bool, typer.Option("--unreviewed")] = False,
) -> int:
    """Build a benchmark from a folder of images.

    Without --plan, only choose images: remove near-duplicates and poor images, assign categories, draw a sample. With
    --plan, also generate conversations, references and checklists, check them, write a review sheet for people, and
    freeze the test with its data card. Every step writes a file in the folder --out; a rerun repeats no step.
    \f
    - folder: Folder of images; its subfolders count as well.
    - out: Output folder; rerun the same command to resume.
    - min_side: Leave out images with a shorter side, in pixels.
    - quality: Lowest grade, 1 to 5, that an image may have.
    - rare: Merge rarer categories; drop the merged one if still rarer.
    - cap: Most images to sample, from each category in proportion.
    - lang: Language of the prompts and of the conversations.
    - blind: Leave out conversations that score this or more without the image, 0 to 1.
    - second: Second model for checklists.
    - unreviewed: Skip the review by people.
    """
    choose("plan", [plan] if plan else [], PLANS)
    if second and not (plan and PLANS[plan].protocol == "checklist"):
        raise UsageError(f"--second {second}: checklists are made by --plan multiverse")
    # What is written there would be taken for images on a rerun.
    if out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--out {out}: lies in the folder of images")
    building = BenchmarkBuild(folder, out, lang, endpoint, second)
    try:
        with jsonl.lock_folder(out):
            chosen = choose_images(building, min_side=min_side, quality=quality, rare=rare, cap=cap)
            if plan is not None:
                build_conversations(building, chosen, plan, blind=blind, unreviewed=unreviewed)
    # The steps before it need no model, and are done.
    except NeedsModelError as step:
        print(f"{step} asks a model: give --base-url or --model, and run the same command again")
    return building.code
