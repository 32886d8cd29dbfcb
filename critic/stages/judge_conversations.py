"""The part of `critic judge` that judges conversations: the replies of `critic infer` -> judgments by protocol.

critic judge replies.jsonl --benchmark convbench --out judged.jsonl --protocol direct
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic import benchmarks, jsonl
from critic.backends import collect_processors
from critic.certificate import print_quotable
from critic.errors import UsageError, quoted
from critic.images import BY_HASH, Images, name_images
from critic.judging import protocols, transcripts
from critic.judging.assignments import VerdictPlan, form_name, judge_all
from critic.judging.forms import form_of
from critic.judging.judge import Judge
from critic.judging.planned import PlannedVerdict
from critic.judging.protocols import PROTOCOLS, Protocol
from critic.judging.replies import is_table
from critic.judging.transcripts import Pair, Transcripts
from critic.records import Ablation, Conversation, JudgeConfig, Judgment
from critic.stages.judge_samples import JudgeSamples
from critic.stages.options import check, not_learned
from critic.stages.run import RunOptions, RunSummary, listed, source


class JudgeConversations(JudgeSamples[list[Pair]]):
    """The verdicts of a plan; an item is a conversation, all its conditions: what is shown alike is asked once."""

    unit = "verdict"

    def __init__(self, run: RunOptions, judge: Judge, plan: VerdictPlan, source: dict[str, Any]) -> None:
        super().__init__(run, judge, set(plan.wanted()), source)
        self._plan, self._not_judged = plan, plan.lacking()
        self.facts["not_judged"] = dict(self._not_judged)

    def items(self) -> Iterable[list[Pair]]:
        by_conversation: dict[str, list[Pair]] = {}
        for pair in self._plan.pairs:
            by_conversation.setdefault(pair[0].conversation.id, []).append(pair)
        return by_conversation.values()

    async def plan(self, item: list[Pair], judged: Callable[[PlannedVerdict], Any]) -> None:
        for pair in item:
            await judge_all(pair, self._plan.protocols, self._plan.judgings, self.judge.setup, judged)

    async def nothing_left(self) -> None:
        """Raise UsageError if what is known was made of other replies."""
        for item in self.items():
            await self.work(item, lambda *_: None)

    def summary(self, records: Iterable[Judgment]) -> RunSummary:
        totals = super().summary(records)
        if self._not_judged:
            totals.lines.insert(1, f"turns not judged: {listed(self._not_judged)}")
        return totals


def judge_conversations(
    run: RunOptions,
    judge: Judge,
    replies: Path,
    benchmark: str,
    questions: Path | None,
    against: Sequence[Path],
    chosen: Sequence[str],
    judgings: Sequence[Ablation],
    force_form: bool = False,
) -> int:
    """Judge the conversations of a file of replies; the exit code: 3 when too many verdicts failed. `questions` is the
    benchmark's file, `against` are other models' replies; none `chosen` are the benchmark's own
    protocols. Raises UsageError for what the caller has to mend."""
    files, setup = (replies, *against), judge.setup
    several = len(files) > 2
    comparing = [name for name in PROTOCOLS if protocols.load(name).compares]
    own = benchmarks.load(benchmark).protocols
    if several:  # the benchmark's other protocols judge one model's answers
        own = tuple(name for name in own if name in comparing) or ("pairwise",)
    chosen = list(dict.fromkeys(chosen or own))
    only = f"more than two models are compared by --protocol {' and '.join(comparing)} alone"
    check(
        (not several or {*chosen} <= {*comparing}, only),
        (setup.battles is None or several, "--battles is one of three models or more: --against A --against B"),
    )
    _check_options(setup, chosen, judgings, len(files) > 1)
    published, uris = name_images(benchmarks.read(benchmark, questions)) if questions is not None else ([], {})
    models = [transcripts.read_transcripts(path, benchmark, published) for path in files]
    conversations = [transcript.conversation for transcript in models[0].values()]
    _say_unfinished(files)
    if questions is not None:
        _check_questions(questions, published, conversations)
    if judge.images is not None:
        judge.images.uris |= uris
        _check_images(judge.images, conversations, replies)
    whole = VerdictPlan(_pairs(models, files, setup), chosen, list(judgings), setup.reference_backed)
    plan = replace(whole, pairs=[pair for pair in whole.pairs if run.takes(pair[0].conversation.group)])
    if run.shard is None:
        _check_plan(plan, replies)
    _say_calls(plan, benchmark, setup)
    # Of all shards, which are merged: they say alike how they were judged.
    forms = sorted({form_name(protocol, turn, setup) for *_, protocol, _, turn, _ in whole.wanted()})
    judge.setup = setup = replace(setup, unlearned=not_learned(judge.backend, forms, "protocol", force_form))
    if run.certificate is not None:
        prompts = dict(zip(map(judge.hash_prompt, forms), forms, strict=True))
        print_quotable(run.certificate, collect_processors([judge.backend]), prompts, setup)
    sources = {
        "replies": source(replies),
        "benchmark": benchmark,
        "protocols": plan.protocols,
        "judgings": plan.judgings,
        "against": [source(path) for path in against] or None,
    }
    return JudgeConversations(run, judge, plan, sources).run()


def _say_calls(plan: VerdictPlan, benchmark: str, setup: JudgeConfig) -> None:
    """Print how many calls the verdicts take, and how many they would take as the paper asks.

    Prompts that are alike are asked once, which only the replies tell: there may be fewer.
    """
    by_protocol = Counter(protocol for *_, protocol, _, _, _ in plan.wanted())
    paper = benchmarks.load(benchmark).paper_setup(plan.protocols)

    def calls(order: str) -> int:
        compared = sum(count for name, count in by_protocol.items() if protocols.load(name).compares)
        return by_protocol.total() + (compared if order == "both" else 0)

    fewer = f" (--as published: {calls(paper.order)})" if calls(paper.order) != calls(setup.order) else ""
    print(f"{by_protocol.total()} verdicts by at most {calls(setup.order)} calls{fewer}", file=sys.stderr)


def _check_plan(plan: VerdictPlan, replies: Path) -> None:
    """Raise UsageError if nothing is to be judged."""
    if not any(plan.wanted()):
        lacking = listed(plan.lacking())
        free = "; --against OTHER --reference-free compares two models without one" if "no reference" in lacking else ""
        raise UsageError(f"{replies}: nothing to judge: {lacking or 'no such turn'}{free}")
    present = {judging for *_, judging, _, _ in plan.wanted()}
    for judging in plan.judgings:
        check((judging in present, f"--judging {judging}: no turn of {replies} can be judged so"))


def _say_unfinished(files: Iterable[Path]) -> None:
    for path in files:
        if not (is_table(path) or jsonl.sidecar(path).is_file()):
            print(f"{path}: critic infer has not finished it; what it lacks is not judged", file=sys.stderr)


def _pairs(models: Sequence[Transcripts], files: Sequence[Path], setup: JudgeConfig) -> list[Pair]:
    """Return what is judged: the first file's transcripts, paired with each other file's or in battles of all.

    Raises UsageError if two files are of one model, or of other conversations.
    """
    mine, *others = models
    if not others:
        return [(transcript, None) for transcript in mine.values()]
    met = [transcripts.paired(mine, theirs, path) for theirs, path in zip(others, files[1:], strict=True)]
    systems = [next(iter(model.values())).system for model in models]
    for system, path in zip(systems, files, strict=True):
        if systems.count(system) > 1:
            raise UsageError(
                f"{path}: the same model, {quoted(system)}, as in another file; infer --name tells them apart"
            )
    return transcripts.battles(models, setup.battles, setup.seed) if setup.battles else [*chain(*met)]


def _check_images(images: Images, conversations: Sequence[Conversation], replies: Path) -> None:
    """Raises UsageError for an image in the benchmark's file, where that is not given, and where no file is there."""
    names = [name for conversation in conversations for turn in conversation.turns for name in turn.images]
    for name in names:
        inside = name.startswith(BY_HASH) and name not in images.uris
        check((not inside, f"{replies}: {name} stands in the benchmark's file: give it with --questions"))
    images.require(names)


def _check_questions(path: Path, conversations: Sequence[Conversation], replied: Sequence[Conversation]) -> None:
    """Says how many of the benchmark's conversations have no reply. Raises UsageError where one reads otherwise."""
    by_id = {conversation.id: conversation for conversation in conversations}
    seen = {conversation.id for conversation in replied}
    for conversation in replied:
        if by_id.get(conversation.id) != conversation:
            raise UsageError(
                f"{path}: conversation {quoted(conversation.id)} of the replies is not there, or not as here"
            )
    if missing := len(by_id) - len(seen):
        print(f"{missing} of {len(by_id)} conversations of {path} have no replies and are not judged", file=sys.stderr)


def _heeding(heeds: Callable[[Protocol], bool]) -> list[str]:
    """Return the names of the protocols that heed an option."""
    return [name for name in PROTOCOLS if heeds(protocols.load(name))]


def _check_options(setup: JudgeConfig, chosen: Sequence[str], judgings: Sequence[str], two_models: bool) -> None:
    """Raise UsageError for an option that none of the chosen protocols heeds, or that contradicts another."""
    prompt = setup.pointwise_prompt
    form = form_of(prompt)
    rates_answers = form.kind.single_rating and form.scope == "turn" and not form.pair
    comparing = _heeding(lambda protocol: protocol.compares)
    of_wholes = _heeding(lambda protocol: protocol.whole_form is not None)
    limited: list[tuple[bool, str, list[str]]] = [
        (setup.order != "both", f"--order {setup.order}", comparing),
        (setup.unread != "fail", f"--on-unparsed {setup.unread}", comparing),
        (setup.sight != "before", f"--turn-context {setup.sight}", of_wholes),
        (setup.score_kind != "argmax", f"--score {setup.score_kind}", _heeding(lambda protocol: protocol.rates)),
        *((name != "standard", f"--judging {name}", of_wholes) for name in judgings),
    ]
    for is_given, option, heeding in limited:
        check((not is_given or {*heeding} & {*chosen}, f"{option} is one of --protocol {' and '.join(heeding)}"))
    asks_first = setup.reason_first and any(form_name(name, 1, setup) == protocols.load(name).form for name in chosen)
    takes_form = any(protocols.load(name).form is None for name in chosen)
    compares = bool({*comparing} & {*chosen})
    check(
        (not two_models or compares, f"--against compares two models: it needs --protocol {' or '.join(comparing)}"),
        (setup.reference_backed or two_models, "--reference-free needs --against"),
        (setup.unread == "fail" or setup.order != "forced", "--on-unparsed tie: --order forced has no ties"),
        (not asks_first, f"--prompt reason_first: --protocol {' or '.join(chosen)} has no such form"),
        (
            prompt == "pointwise" or setup.reason_first or takes_form,
            "--prompt is one of --protocol pointwise; reason_first is one of all",
        ),
        (rates_answers, f"--prompt {prompt}: --protocol pointwise takes a form that rates single answers"),
    )
