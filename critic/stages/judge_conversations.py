"""The part of `critic judge` that judges conversations: the replies of `critic infer` -> judgments by protocol.

critic judge replies.jsonl --benchmark convbench --out judged.jsonl --protocol direct
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from critic import benchmarks, jsonl
from critic.asking import protocols
from critic.asking.forms import RatingKind, form_of, prompt_name
from critic.asking.judge import ConversationJudge
from critic.asking.prompt import LANGUAGES, load, prompt_hash
from critic.asking.protocols import (
    Pair,
    PlannedVerdict,
    Transcript,
    VerdictKey,
    VerdictPlan,
    judge_all,
    key,
    paired,
    read_transcripts,
)
from critic.backends import Backend
from critic.errors import UsageError
from critic.images import named_images
from critic.records import ConversationJudgment, Judging, Protocol, Setup, differing
from critic.stages.run import Outage, RunOptions, Stage, Tally, listed


class ConversationOptions(Struct, frozen=True, kw_only=True):
    """What is judged of a file of replies. `questions` is the benchmark's file, `against` another model's replies; no
    `protocols` are the benchmark's own."""

    replies: Path
    benchmark: str
    questions: Path | None
    against: Path | None
    protocols: list[Protocol]
    judgings: list[Judging]
    max_tokens: int


class ConversationTally(Tally[ConversationJudgment]):
    """Verdicts, counted. What several judgments share was asked once, and its tokens count once."""

    def __init__(self, out: Path, not_judged: Counter[str]) -> None:
        super().__init__()
        self._out, self._not_judged = out, not_judged
        self._shortened: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._asked: set[tuple[str, str]] = set()
        self._extracted = self._unanswered = 0

    def add(self, record: ConversationJudgment) -> None:
        self.note(record.verdict.failure)
        self._unanswered += record.asked is None
        if record.asked is None or (record.conversation.id, record.asked) in self._asked:
            return
        self._asked.add((record.conversation.id, record.asked))
        self._extracted += any(call.extracted for call in record.calls)
        for call in record.calls:
            self._shortened.update(list(call.shortened))
            self._tokens["prompt"] += call.prompt_tokens
            self._tokens["cached"] += call.cached_tokens
            self._tokens["completion"] += call.completion_tokens

    def facts(self) -> dict[str, Any]:
        return {
            "verdicts": self.count,
            "failed": dict(self.failures),
            "without_an_answer": self._unanswered,
            "asked": len(self._asked),
            "extractions": self._extracted,
            "shortened_prompts": dict(self._shortened),
            "tokens": dict(self._tokens),
        }

    def lines(self) -> Iterable[str]:
        yield f"{self._out}: {self.count} verdicts, {self.failed()}"
        if self._not_judged:
            yield f"turns not judged: {listed(self._not_judged)}"
        if self._unanswered:
            yield f"{self._unanswered} verdicts had no answer to judge, or no judgment of a turn to go by"
        if self._shortened:
            yield f"prompts shortened to fit: {listed(self._shortened)}"


class JudgeConversations(Stage[list[Pair], ConversationJudgment]):
    """The verdicts of a plan; an item is a conversation, all its conditions: what is shown alike is asked once."""

    name, unit, counted = "judge", "verdict", "judged"
    too_many = "failed; --retry-failed judges them again"

    def __init__(
        self, run: RunOptions, options: ConversationOptions, judge: ConversationJudge, plan: VerdictPlan
    ) -> None:
        super().__init__(run, ConversationJudgment, judge.backend)
        self._options, self._judge, self._plan = options, judge, plan
        self._wanted = set(plan.wanted())
        self._known: dict[VerdictKey, ConversationJudgment] = {}
        self._answered: dict[tuple[str, str], ConversationJudgment] = {}
        # An item has many verdicts, which are asked for at once: what is under way is bounded here, not by the items.
        self._gate = asyncio.Semaphore(self.concurrency)
        self._outage = Outage(judge.backend, self.concurrency, "judgments")

    def problem(self, record: ConversationJudgment) -> str | None:
        if record.setup != self._judge.setup:
            return f"made with {differing(record.setup, self._judge.setup)}; choose another --out"
        if key(record.verdict) not in self._wanted:
            return "judges what is not asked for now; choose another --out"
        return None

    def failure(self, record: ConversationJudgment) -> str | None:
        return record.verdict.failure

    def know(self, record: ConversationJudgment) -> None:
        self._known[key(record.verdict)] = record
        if record.asked is not None:
            self._answered.setdefault((record.conversation.id, record.asked), record)

    def left(self) -> int:
        return len(self._wanted) - len(self._known)

    def items(self) -> Iterable[list[Pair]]:
        return self._plan.by_conversation()

    async def work(self, item: list[Pair], keep: Callable[..., None]) -> None:
        asked: dict[str, asyncio.Task[ConversationJudgment]] = {}

        async def judged(planned: PlannedVerdict) -> ConversationJudgment:
            line = self._before(planned)
            if line is None:
                line = await self._once(planned, asked)
                keep(line)
            return line

        for pair in item:
            await judge_all(pair, self._plan.protocols, self._plan.judgings, self._judge.setup, judged)

    def nothing_left(self) -> None:
        """Raises UsageError where what is known was made of other replies."""

        def keep(*_: ConversationJudgment) -> None:
            raise AssertionError("all verdicts are known")

        async def look() -> None:
            for item in self.items():
                await self.work(item, keep)

        asyncio.run(look())

    def _before(self, planned: PlannedVerdict) -> ConversationJudgment | None:
        line = self._known.get(key(planned.verdict))
        made_of = self._judge.asked(planned), prompt_hash(prompt_name(planned.form))
        if line is not None and (line.asked, line.prompt_hash) != made_of:
            shown = f"conversation {line.verdict.conversation!r}, turn {line.verdict.turn} ({line.verdict.condition})"
            raise UsageError(
                f"{shown}: judged before on another reply or by another prompt; choose another --out, or "
                "--retry-failed where that failed"
            )
        return line

    async def _once(
        self, planned: PlannedVerdict, asked: dict[str, asyncio.Task[ConversationJudgment]]
    ) -> ConversationJudgment:
        name = self._judge.asked(planned)
        if name is None:
            return await self._judge.judge(planned)
        made = self._answered.get((planned.conversation.id, name))
        if made is None:
            if name not in asked:
                asked[name] = asyncio.create_task(self._ask(planned))
            made = await asked[name]
        return replace(
            made,
            conversation=planned.conversation,
            verdict=replace(planned.verdict, score=made.verdict.score, failure=made.verdict.failure),
        )

    async def _ask(self, planned: PlannedVerdict) -> ConversationJudgment:
        async with self._gate:
            line = await self._judge.judge(planned)
        self._outage.note(line.verdict.failure, line.detail)
        return line

    def facts(self) -> dict[str, Any]:
        options, setup = self._options, self._judge.setup
        return {
            "replies": {"file": str(options.replies), "sha256": jsonl.sha256(options.replies)},
            "benchmark": options.benchmark,
            "protocols": self._plan.protocols,
            "judgings": self._plan.judgings,
            "against": str(options.against) if options.against else None,
            "judge": setup.judge,
            "model": self.backend.served.name,
            "server": self.backend.place,
            "setup": msgspec.to_builtins(setup),
            "max_tokens": options.max_tokens,
            "constrained": "json_schema",
            "not_judged": dict(self._plan.lacking()),
        }

    def tally(self) -> ConversationTally:
        return ConversationTally(self.out, self._plan.lacking())


def judge_file(run: RunOptions, options: ConversationOptions, backend: Backend, setup: Setup) -> int:
    """Judge the conversations of a file of replies; the exit code: 3 when too many verdicts failed.

    Raises UsageError for what the caller has to mend.
    """
    chosen = options.protocols or benchmarks.load(options.benchmark).protocols
    mine = read_transcripts(options.replies, options.benchmark)
    for path in filter(None, (options.replies, options.against)):
        if not jsonl.sidecar(path).is_file():
            print(f"{path}: critic infer has not finished it; what it lacks is not judged", file=sys.stderr)
    if options.questions is not None:
        _check_questions(options.questions, options.benchmark, mine.values())
    _check_options(options, setup, chosen)
    if setup.pack is not None:
        _say_pack(setup, chosen)
    pairs: list[Pair] = [(one, None) for one in mine.values()]
    if options.against is not None:
        pairs = paired(mine, options.against, options.benchmark)
    plan = VerdictPlan(pairs, list(dict.fromkeys(chosen)), options.judgings)
    if not any(plan.wanted()):
        raise UsageError(f"{options.replies}: nothing to judge: {listed(plan.lacking()) or 'no such turn'}")
    return JudgeConversations(run, options, ConversationJudge(backend, setup, options.max_tokens), plan).run()


def _check_questions(path: Path, benchmark: str, replied: Iterable[Transcript]) -> None:
    """Says how many of the benchmark's conversations have no reply. Raises UsageError where one reads otherwise."""
    asked = {one.id: one for one in named_images(benchmarks.read(benchmark, path))[0]}
    seen = set()
    for one in replied:
        seen.add(one.conversation.id)
        if asked.get(one.conversation.id) != one.conversation:
            raise UsageError(
                f"{path}: conversation {one.conversation.id!r} of the replies is not there, or not as here"
            )
    if missing := len(asked) - len(seen):
        print(f"{missing} of {len(asked)} conversations of {path} have no replies and are not judged", file=sys.stderr)


def _check_options(options: ConversationOptions, setup: Setup, chosen: Sequence[str]) -> None:
    """Raises UsageError for options that none of the chosen protocols heeds."""
    compares = "pairwise" in chosen
    drawn = setup.decoding.samples > 1 or setup.decoding.temperature > 0
    for wrong, problem in (
        (options.against is not None and not compares, "--against compares two models: it needs --protocol pairwise"),
        (setup.order != "both" and not compares, f"--order {setup.order} is one of --protocol pairwise"),
        (not setup.reference_backed and options.against is None, "--reference-free needs --against"),
        (
            not f"/{setup.pointwise_prompt}".endswith("/pointwise") and "pointwise" not in chosen,
            "--prompt is one of --protocol pointwise",
        ),
        (
            not _rates_answers(setup.pointwise_prompt),
            f"--prompt {setup.pointwise_prompt}: --protocol pointwise takes a form that rates single answers",
        ),
        (drawn and {"pairwise", "checklist"} & {*chosen}, "--samples and --temperature draw ratings, not choices"),
    ):
        if wrong:
            raise UsageError(problem)


def _rates_answers(name: str) -> bool:
    form = form_of(name)
    return isinstance(form.kind, RatingKind) and form.scope == "turn" and not form.pair


def _say_pack(setup: Setup, chosen: Sequence[str]) -> None:
    """Says which of the prompts that are used come from the pack. Raises UsageError where none does, or where one that
    does cannot be asked for a verdict without a reason."""
    names = protocols.form_names(chosen, setup)
    used = [(name, lang) for name in [*names, *_extractions(names)] for lang in LANGUAGES]
    theirs = [(name, lang) for name, lang in used if load(name, lang) != load(_plain(name), lang)]
    free = [_plain(name) for name, lang in theirs if not load(name, lang).constrained]
    named = [f"{_plain(name)} ({lang})" for name, lang in theirs]
    named += ["pointwise"] if "pointwise" in chosen and "/" in setup.pointwise_prompt else []
    if not named:
        raise UsageError(f"--prompt-pack: {setup.pack} has no prompt of {', '.join(chosen)}")
    if free and not setup.decoding.reason:
        raise UsageError(f"--no-reason: {', '.join(free)} of {setup.pack} ask for a verdict in free text")
    if free and not setup.extraction:
        raise UsageError(f"--no-extraction: {', '.join(free)} of {setup.pack} end in free text, which is read that way")
    print(f"prompts of {setup.pack}: {', '.join(named)}; the others are ours", file=sys.stderr)


def _plain(name: str) -> str:
    return name.rpartition("/")[2]


def _extractions(names: Iterable[str]) -> list[str]:
    """The prompts of the second questions of these forms, in the same pack."""
    found = ((name.rpartition("/")[0], form_of(name).extraction) for name in names)
    return sorted({prompt_name(f"{pack}/{form}") for pack, form in found if form})
