"""The part of `critic judge` that judges conversations: the replies of `critic infer` -> judgments by protocol.

critic judge replies.jsonl --benchmark convbench --out judged.jsonl --protocol direct
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from tqdm import tqdm

from critic import benchmarks, jsonl
from critic.asking import protocols
from critic.asking.conversation_prompt import Kind, Prompts, load
from critic.asking.history import CONDITIONS
from critic.asking.protocols import Case, ConversationJudge, Told, judge_all, planned
from critic.backends import Backend
from critic.errors import UsageError
from critic.images import named_images
from critic.records import (
    JUDGINGS,
    ORDERS,
    Conversation,
    ConversationJudgment,
    Language,
    ModelTurn,
    Protocol,
    Setup,
    TurnVerdict,
    differing,
)
from critic.stages.run import Writer, listed, side_by_side, writing

LANGUAGES: tuple[Language, ...] = get_args(Language)

Key = tuple[str, str, Protocol, str, int | None, str | None]


class Options(Struct, frozen=True, kw_only=True):
    """What `critic judge` is asked to do with a file of replies. `questions` is the benchmark's file, `against` another
    model's replies; no `protocols` are the benchmark's own."""

    replies: Path
    out: Path
    benchmark: str
    questions: Path | None
    against: Path | None
    protocols: list[str]
    judgings: list[str]
    concurrency: int | None
    max_failed: float
    retry_failed: bool


def check(options: Options, order: str) -> None:
    """Raises UsageError for an unknown benchmark, protocol, judging or order."""
    choices: list[tuple[str, list[str], Sequence[str]]] = [
        ("benchmark", [options.benchmark], benchmarks.BENCHMARKS),
        ("protocol", options.protocols, get_args(Protocol)),
        ("judging", options.judgings, JUDGINGS),
        ("order", [order], ORDERS),
    ]
    for option, given, known in choices:
        for value in given:
            if value not in known:
                raise UsageError(f"--{option} {value}: unknown; choose {', '.join(known)}")


def told(path: Path, benchmark: str) -> dict[tuple[str, str], Told]:
    """What a model said, by conversation and condition, in the file's order. Raises UsageError for replies to another
    benchmark, by several models, or twice to one turn."""
    found: dict[tuple[str, str], Told] = {}
    system: str | None = None
    for number, line in jsonl.read(path, ModelTurn):
        place = f"{path}:{number}"
        if line.conversation.benchmark != benchmark:
            raise UsageError(f"{place}: a conversation of {line.conversation.benchmark}, expected {benchmark}")
        if system not in (None, line.system):
            raise UsageError(f"{place}: replies of {line.system!r} after those of {system!r}; one model a file")
        if line.condition not in CONDITIONS:
            raise UsageError(f"{place}: unknown condition {line.condition!r}; expected {', '.join(CONDITIONS)}")
        system = line.system
        key = line.conversation.id, line.condition
        if key not in found:
            found[key] = Told(conversation=line.conversation, condition=line.condition, system=line.system, turns={})
        if line.turn in found[key].turns:
            raise UsageError(f"{place}: turn {line.turn} of {key[0]!r} ({key[1]}) is there twice")
        found[key].turns[line.turn] = line
    return found


def _check_questions(path: Path, benchmark: str, replied: Iterable[Told]) -> None:
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


def _pairs(mine: dict[tuple[str, str], Told], options: Options) -> list[tuple[Told, Told | None]]:
    """Each conversation of the model with the other model's. Raises UsageError where the two are not alike."""
    if options.against is None:
        return [(one, None) for one in mine.values()]
    theirs = told(options.against, options.benchmark)
    for key, one in mine.items():
        if key not in theirs or theirs[key].conversation != one.conversation:
            raise UsageError(f"{options.against}: lacks conversation {key[0]!r} ({key[1]}), or has another of this id")
        if theirs[key].system == one.system:
            raise UsageError(f"{options.against}: the same model, {one.system!r}; infer with --name tells them apart")
    return [(one, theirs[key]) for key, one in mine.items()]


def _key(found: TurnVerdict) -> Key:
    return found.conversation, found.condition, found.protocol, found.judging, found.turn, found.opponent


class _Plan(Struct, frozen=True):
    pairs: list[tuple[Told, Told | None]]
    protocols: list[Protocol]
    judgings: list[str]

    def wanted(self) -> Iterator[Key]:
        for one, other in self.pairs:
            for protocol, judging, turn in planned(one, other, self.protocols, self.judgings):
                opponent = other.system if other is not None and protocol == "pairwise" else None
                yield one.conversation.id, one.condition, protocol, judging, turn, opponent

    def lacking(self) -> Counter[str]:
        """Turns that are not judged, by what they lack."""
        found: Counter[str] = Counter()
        for one, other in self.pairs:
            for protocol in self.protocols:
                against_model = other is not None and protocol == "pairwise"
                turns = [one.conversation.turns[turn - 1] for turn in one.asked]
                reasons = (protocols.lacking(turn, protocol, "standard", against_model) for turn in turns)
                found.update(f"{protocol}: no {reason}" for reason in reasons if reason)
        return found


def _known(out: Path, setup: Setup, wanted: set[Key]) -> dict[Key, ConversationJudgment]:
    """The judgments that are in `out`. Raises UsageError for one that was made otherwise or is not asked for now."""
    found: dict[Key, ConversationJudgment] = {}
    jsonl.repair(out)
    if not out.is_file() or out.stat().st_size == 0:
        return found
    for number, line in jsonl.read(out, ConversationJudgment):
        if line.setup != setup:
            raise UsageError(f"{out}:{number}: made with {differing(line.setup, setup)}; choose another --out")
        if _key(line.verdict) not in wanted:
            raise UsageError(f"{out}:{number}: judges what is not asked for now; choose another --out")
        found[_key(line.verdict)] = line
    return found


class _Run:
    """Judging what is not known yet: what is shown alike is asked once, and each judgment is kept as it comes."""

    def __init__(self, judge: ConversationJudge, known: dict[Key, ConversationJudgment], concurrency: int) -> None:
        self.judge, self.known = judge, known
        self.failures: Counter[str] = Counter()
        self._answered: dict[tuple[str, str], ConversationJudgment] = {}
        for line in known.values():
            if line.asked is not None:
                self._answered.setdefault((line.conversation.id, line.asked), line)
        self._gate = asyncio.Semaphore(concurrency)
        self._limit, self._lost_in_a_row = 2 * concurrency, 0

    async def conversation(
        self, pairs: Sequence[tuple[Told, Told | None]], plan: _Plan, file: Writer, bar: Any
    ) -> None:
        """Every condition of one conversation."""
        asked: dict[str, asyncio.Task[ConversationJudgment]] = {}

        async def judged(case: Case) -> ConversationJudgment:
            line = self._before(case)
            if line is None:
                line = await self._once(case, asked)
                file.append(line)
                if line.verdict.failure is not None:
                    self.failures[line.verdict.failure] += 1
                bar.set_postfix(failed=self.failures.total(), retries=self.judge.backend.retries, refresh=False)
                bar.update()
            return line

        setup = self.judge.setup
        for one, other in pairs:
            await judge_all(one, other, plan.protocols, plan.judgings, setup, judged)

    async def check(self, plan: _Plan) -> None:
        """Raises UsageError where what is known, which is all, was made of other replies."""

        async def known(case: Case) -> ConversationJudgment:
            line = self._before(case)
            assert line is not None
            return line

        for one, other in plan.pairs:
            await judge_all(one, other, plan.protocols, plan.judgings, self.judge.setup, known)

    def _before(self, case: Case) -> ConversationJudgment | None:
        line = self.known.get(_key(case.verdict))
        if line is not None and (line.asked, line.prompt_hash) != (
            self.judge.asked(case),
            protocols.hash_of(case, self.judge.setup),
        ):
            shown = f"conversation {line.verdict.conversation!r}, turn {line.verdict.turn} ({line.verdict.condition})"
            raise UsageError(
                f"{shown}: judged before on another reply or by another prompt; choose another --out, or "
                "--retry-failed where that failed"
            )
        return line

    async def _once(self, case: Case, asked: dict[str, asyncio.Task[ConversationJudgment]]) -> ConversationJudgment:
        name = self.judge.asked(case)
        if name is None:
            return await self.judge.judge(case)
        made = self._answered.get((case.conversation.id, name))
        if made is None:
            if name not in asked:
                asked[name] = asyncio.create_task(self._ask(case))
            made = await asked[name]
        return replace(
            made,
            conversation=case.conversation,
            verdict=replace(case.verdict, score=made.verdict.score, failure=made.verdict.failure),
        )

    async def _ask(self, case: Case) -> ConversationJudgment:
        async with self._gate:
            line = await self.judge.judge(case)
        self._lost_in_a_row = self._lost_in_a_row + 1 if line.verdict.failure == "server_error" else 0
        if self._lost_in_a_row >= self._limit:
            raise UsageError(
                f"{self.judge.backend.place} failed {self._lost_in_a_row} judgments in a row ({line.detail}); "
                f"see to the server, then run again with --retry-failed"
            )
        return line


async def _run(judge: ConversationJudge, plan: _Plan, known: dict[Key, ConversationJudgment], options: Options) -> None:
    by_conversation: dict[str, list[tuple[Told, Told | None]]] = {}
    for one, other in plan.pairs:
        by_conversation.setdefault(one.conversation.id, []).append((one, other))
    waiting = iter(by_conversation.values())
    total = sum(1 for _ in plan.wanted()) - len(known)
    with Writer(options.out) as file, tqdm(total=total, desc="judge", unit="verdict") as bar:
        async with judge.backend as backend:
            concurrency = options.concurrency or backend.in_flight
            run = _Run(judge, known, concurrency)

            async def work() -> None:
                for pairs in waiting:
                    await run.conversation(pairs, plan, file, bar)

            await side_by_side(work() for _ in range(min(concurrency, len(by_conversation))))


def _check_options(options: Options, setup: Setup, chosen: Sequence[str]) -> None:
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
        (drawn and {"pairwise", "checklist"} & {*chosen}, "--samples and --temperature draw ratings, not choices"),
    ):
        if wrong:
            raise UsageError(problem)


def _say_pack(setup: Setup, chosen: Sequence[str]) -> None:
    """Says which of the prompts that are used come from the pack. Raises UsageError where none does, or where one that
    does cannot be asked for a verdict without a reason."""
    used = [(kind, lang) for kind in protocols.kinds(chosen) for lang in LANGUAGES]
    theirs = [(kind, lang) for kind, lang in used if _words(kind, lang, None) != _words(kind, lang, setup.pack)]
    free = [kind for kind, lang in theirs if not load(lang, setup.pack).prompts[kind].constrained]
    named = [f"{kind} ({lang})" for kind, lang in theirs]
    named += ["pointwise"] if "pointwise" in chosen and "/" in setup.pointwise_prompt else []
    if not named:
        raise UsageError(f"--prompt-pack: {setup.pack} has no prompt of {', '.join(chosen)}")
    if free and not setup.decoding.reason:
        raise UsageError(f"--no-reason: {', '.join(free)} of {setup.pack} ask for a verdict in free text")
    if free and not setup.extraction:
        raise UsageError(f"--no-extraction: {', '.join(free)} of {setup.pack} end in free text, which is read that way")
    print(f"prompts of {setup.pack}: {', '.join(named)}; the others are ours", file=sys.stderr)


def _words(kind: Kind, language: Language, pack: str | None) -> Prompts:
    """What a prompt says: its own words and those of its language."""
    prompts = load(language, pack)
    return replace(prompts, prompts={kind: prompts.prompts[kind]})


def judge_file(options: Options, backend: Backend, setup: Setup, max_tokens: int) -> int:
    """Judge the conversations of a file of replies; the exit code: 3 when too many verdicts failed.

    Raises UsageError for what the caller has to mend.
    """
    mine = told(options.replies, options.benchmark)
    for path in filter(None, (options.replies, options.against)):
        if not jsonl.sidecar(path).is_file():
            print(f"{path}: critic infer has not finished it; what it lacks is not judged", file=sys.stderr)
    if options.questions is not None:
        _check_questions(options.questions, options.benchmark, mine.values())
    chosen = options.protocols or protocols.OF_BENCHMARK[options.benchmark]
    _check_options(options, setup, chosen)
    if setup.pack is not None:
        _say_pack(setup, chosen)
    plan = _Plan(_pairs(mine, options), msgspec.convert(list(dict.fromkeys(chosen)), list[Protocol]), options.judgings)
    wanted = set(plan.wanted())
    if not wanted:
        raise UsageError(f"{options.replies}: nothing to judge: {listed(plan.lacking()) or 'no such turn'}")
    known = _known(options.out, setup, wanted)
    if options.retry_failed and any(line.verdict.failure is not None for line in known.values()):
        with writing(options.out):
            jsonl.rewrite(options.out, ConversationJudgment, lambda line: line.verdict.failure is None)
        known = _known(options.out, setup, wanted)
    if known:
        print(f"{options.out}: {len(known)} judged before, {len(wanted) - len(known)} to go", file=sys.stderr)
    judge = ConversationJudge(backend, setup, max_tokens)
    start = time.monotonic()
    if len(known) < len(wanted):
        asyncio.run(_run(judge, plan, known, options))
    else:
        asyncio.run(_Run(judge, known, 1).check(plan))
    facts = {
        "replies": {"file": str(options.replies), "sha256": jsonl.sha256(options.replies)},
        "benchmark": options.benchmark,
        "protocols": plan.protocols,
        "judgings": plan.judgings,
        "against": str(options.against) if options.against else None,
        "judge": setup.judge,
        "model": backend.served.name,
        "server": backend.place,
        "setup": msgspec.to_builtins(setup),
        "max_tokens": max_tokens,
        "constrained": "json_schema",
        "not_judged": dict(plan.lacking()),
        "retries": backend.retries,
        "seconds": round(time.monotonic() - start, 1),
        "judged_in_this_run": len(wanted) - len(known),
    }
    return _finish(options, facts)


def _finish(options: Options, facts: dict[str, Any]) -> int:
    """Write the sidecar, say what happened, and give the exit code."""
    failures: Counter[str] = Counter()
    shortened: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    verdicts = extracted = unanswered = 0
    seen = set()
    for _, line in jsonl.read(options.out, ConversationJudgment):
        verdicts += 1
        if line.verdict.failure is not None:
            failures[line.verdict.failure] += 1
        unanswered += line.asked is None
        if line.asked is None or (line.conversation.id, line.asked) in seen:
            continue
        seen.add((line.conversation.id, line.asked))
        extracted += any(call.extracted for call in line.calls)
        for call in line.calls:
            shortened.update(list(call.shortened))
            tokens["prompt"] += call.prompt_tokens
            tokens["cached"] += call.cached_tokens
            tokens["completion"] += call.completion_tokens
    if facts["judged_in_this_run"] or not jsonl.sidecar(options.out).is_file():
        counts = {
            "verdicts": verdicts,
            "failed": dict(failures),
            "without_an_answer": unanswered,
            "asked": len(seen),
            "extractions": extracted,
            "shortened_prompts": dict(shortened),
            "tokens": dict(tokens),
        }
        with writing(options.out):
            jsonl.write_sidecar(options.out, {**facts, **counts})
    failed = failures.total()
    print(f"{options.out}: {verdicts} verdicts, {failed} failed" + (f" ({listed(failures)})" if failed else ""))
    if facts["not_judged"]:
        print(f"turns not judged: {listed(Counter(facts['not_judged']))}")
    if unanswered:
        print(f"{unanswered} verdicts had no answer to judge, or no judgment of a turn to go by")
    if shortened:
        print(f"prompts shortened to fit: {listed(shortened)}")
    if failed > options.max_failed * verdicts:
        print(f"more than {options.max_failed:.0%} failed; --retry-failed judges them again", file=sys.stderr)
        return 3
    return 0


def conversations(lines: Iterable[ConversationJudgment]) -> list[Conversation]:
    """The conversations that were judged, each once, in the file's order."""
    return list({line.conversation.id: line.conversation for line in lines}.values())
