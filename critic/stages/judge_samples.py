"""The stage of `critic judge` for answers and conversations: request each planned verdict once, write it, sum up."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from critic import certificate, jsonl
from critic.backends import collect_processors
from critic.errors import UsageError, quoted
from critic.judging.forms import PlannedVerdict
from critic.records import Judgment, describe_difference
from critic.stages.run import Item, RunOptions, Stage, known, once
from critic.stages.totals import RunSummary, sum_judgments

if TYPE_CHECKING:
    from critic.judging.judge import Judge


def print_certified(run: RunOptions, judges: Sequence["Judge"], forms: Iterable[str], panel: str = "") -> None:
    """Check that the run's certificate is about these judges and forms, and print its line for a paper.

    Without a certificate, do nothing.

    `panel`: the name of the panel that the judges make, or "" for a single judge. Raises UsageError if judge, members,
    prompts, setup or map differ from the certificate (`check_certificate`).
    """
    if run.certificate is None:
        return
    judge, applied = judges[0], run.recalibration.map.digest if run.recalibration else ""
    held = certificate.check_certificate(
        run.certificate,
        collect_processors(member.backend for member in judges),
        {judge.hash_prompt(form): form for form in forms},
        judge=panel or judge.setup.judge,
        members=[member.setup.judge for member in judges] if panel else [],
        setup=certificate.select_sampling(judge.setup),
        recalibrated=applied,
    )
    print(held.line(recalibrated=bool(applied)))


class JudgeSamples(Stage[Item, Judgment]):
    """The stage that makes judgments; a subclass plans the verdicts on each item, and passes them to `_judge`.

    `wanted` holds the keys of all judgments, as in Stage. `source` holds facts about the samples for the sidecar.
    """

    name, counted = "judge", "judged"

    def __init__(self, run: RunOptions, judge: "Judge", wanted: Mapping[Any, Any], source: dict[str, Any]) -> None:
        super().__init__(run, Judgment, judge.backend, wanted)
        judge.recalibrate(run.recalibration)
        self.judge, self._answered = judge, dict[tuple[str, str | None], Judgment]()
        if run.certificate is not None:
            self.certified_by = certificate.read(run.certificate).how.answered_by
        self.facts = {
            **source,
            "judge": judge.setup.judge,
            "model": judge.backend.served.name,
            "server": judge.backend.endpoint,
            "processors": collect_processors([judge.backend]),
            "learned": [*judge.backend.served.forms, *(["head"] if judge.backend.served.is_classifier else [])],
            "max_tokens": judge.max_tokens,
            "images": judge.images.facts() if judge.images else None,
            "recalibration": run.recalibration,
            **{name: judge.backend.served.about.get(name) for name in ("calibrated_on", "trained_on")},
        }

    def problem(self, record: Judgment) -> str | None:
        # What failed before the first reply showed whether there are log probabilities has no kind of score yet.
        setup = self.judge.current_setup
        if record.score is None:
            setup = replace(setup, score_kind=record.score_kind)
        if record.setup != setup:
            return f"made with {describe_difference(record.setup, setup)}; choose another --out"
        if record.key not in self.wanted:
            of_shard = "" if self.options.shard is None else f" of shard {self.options.shard}"
            return f"judges {quoted(record.key)}, which is not asked for now{of_shard}; choose another --out"
        return None

    def should_retry(self, record: Judgment) -> bool:
        return super().should_retry(record) or record.unjudged > 0

    def load_existing(self, record: Judgment) -> None:
        super().load_existing(record)
        if record.asked is not None:
            self._answered.setdefault((record.conversation.id, record.asked), record)

    def resume(self) -> None:
        """Continue an earlier run with the same kind of score that its judgments have.

        The kind is the rating that the judge states, if that run had no log probabilities, else a score computed from
        the rating distribution.
        """
        grader = self.judge.grader
        if grader.score_kind != "argmax" and grader.needs is None:
            earlier = known(self.out, Judgment)
            kinds = {judgment.score_kind for judgment in earlier if judgment.score is not None}
            if kinds == {"argmax"}:
                grader.use_stated_ratings(f"{self.out} was judged without log probabilities")
            elif kinds:
                grader.needs = f"what {self.out} has"
        super().resume()

    async def ask(self, left: int) -> None:
        await super().ask(left)
        if self.judge.grader.strategy.logprobs is False:
            self.without.add("logprobs")

    async def _judge(
        self, planned: PlannedVerdict, in_flight: dict[str, asyncio.Task[Judgment]], keep: Callable[..., None]
    ) -> Judgment:
        """Return the judgment of a planned verdict: from the file, or made now and passed to `keep`.

        `in_flight` holds the running requests by hash, so that verdicts with equal prompts share one. Raises UsageError
        if the judgment in the file was made from another reply or prompt.
        """
        prepared = self.judge.prepare(planned)
        line = self.done.get(planned.sample.key_of(planned.protocol, planned.judging))
        if line is not None:
            if (line.asked, line.prompt_hash) != (prepared.asked, prepared.prompt_hash):
                where = f"conversation {quoted(line.conversation.id)}, turn {line.turn or 'whole'} ({line.condition})"
                raise UsageError(
                    f"{where}: judged before on another reply or by another prompt; choose another --out ({self.out} "
                    "can be scored as it is), or --retry-failed where that failed"
                )
            return line
        # Nothing is asked, so this says nothing about the server.
        if not prepared.requests:
            line = await self.judge.verdict_on(prepared)
        else:
            # A row has no hash, and only one verdict.
            line = prepared.of(await once(in_flight, prepared.asked or "", self._ask, prepared))
        keep(line)
        return line

    async def _ask(self, prepared: PlannedVerdict) -> Judgment:
        if answered := self._answered.get((prepared.sample.conversation.id, prepared.asked)):
            return answered
        async with self._gate:
            line = await self.judge.verdict_on(prepared)
        self.note_answered(line.answered_by)
        self.note(line.verdict.failure, line.detail)
        return line

    def summary(self, records: Iterable[Judgment]) -> RunSummary:
        """Return the totals, after setting the same kind of score in all judgments.

        Judgments that failed before the first rating was read do not state that kind yet, but scoring and merging
        require it.
        """
        judgments, kind = list(records), self.judge.grader.score_kind
        if any(judgment.score_kind != kind for judgment in judgments):
            judgments = [replace(judgment, setup=replace(judgment.setup, score_kind=kind)) for judgment in judgments]
            jsonl.write(self.out, judgments)
        totals = sum_judgments(judgments, self.out, self.unit)
        totals.facts["setup"] = self.judge.current_setup
        return totals
