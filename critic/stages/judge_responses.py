"""The part of `critic judge` that judges single responses, by one judge or a panel."""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from critic import jsonl
from critic.backends import processors
from critic.backends.middleware import Cached, lacking, layers
from critic.certificate import say_held
from critic.errors import UsageError
from critic.judging.distribution import Aggregation
from critic.judging.examples import ALONE, comparable, partner, question_key
from critic.judging.forms import CriteriaKind, form_of
from critic.judging.judge import ResponseJudge, panel_judgment
from critic.judging.replies import lost
from critic.records import Judgment, Response, Sample, Verdict
from critic.stages import cascade
from critic.stages.rescoring import has_distribution, scored_by
from critic.stages.run import (
    RunOptions,
    RunSummary,
    Spent,
    Stage,
    failed,
    finish,
    gather_cancel_on_error,
    growing,
    known,
)

Shown = tuple[Response, Response | None]
"""What one judgment is of: a response, and where two are compared the other one."""


class FormResponses:
    """What is judged in a form, by key: each response once or, in a form that compares, beside one other to its
    question, as in training. `pictured`: a question has an image, in this shard or another.

    `read` gives the responses. Those that cannot be judged in the form are counted and said; of the others those are
    kept that the `run` takes. `replies`: they are a model's as it gave them, and one that is lost fails without being
    asked about; of rows, which people may have scored, none is. Raises UsageError when nothing is left.
    """

    def __init__(
        self,
        read: Callable[[Counter[str]], Iterable[Response]],
        place: Path,
        form: str,
        run: RunOptions | None = None,
        *,
        replies: bool = False,
    ) -> None:
        how, left_out, usable = form_of(form), Counter[str](), list[Response]()
        for one in read(left_out):
            lacking = how.lacking(one)
            if lacking is None:
                usable.append(one)
            else:
                left_out[lacking] += 1
        shown: list[Shown] = _paired(usable, form, left_out) if how.pair else [(one, None) for one in usable]
        for reason, count in left_out.most_common():
            print(f"left out {count} rows: {reason}", file=sys.stderr)
        if not shown:
            raise UsageError(f"{place}: no usable row to judge")
        # Of all shards' rows: it decides how judgments are made, and those of all shards are merged.
        self.pictured = any(one.question.images for one, _ in shown)
        self.replies, self._by_criteria = replies, isinstance(how.kind, CriteriaKind)
        self.by_key: dict[str, Shown] = {}
        for one, other in shown:
            if run is None or run.takes(one.question.group):
                self.by_key.setdefault(Sample.of(one, other).key, (one, other))

    def __iter__(self) -> Iterator[Shown]:
        return iter(self.by_key.values())

    def now(self, key: str) -> Sample:
        return Sample.of(*self.by_key[key])

    def reads_alike(self, before: Sample) -> bool:
        """Whether a judge would be shown the same today, of the question and of the answers."""
        return self._seen(before) == self._seen(self.now(before.key))

    def _seen(self, sample: Sample) -> list[object]:
        seen = list[object]()
        for one in filter(None, (sample, sample.other)):
            asked = one.conversation
            criteria = asked.criteria if self._by_criteria else None
            seen.append((one.answer, asked.lang, asked.turns, asked.history, asked.caption, criteria))
        return seen


def _paired(responses: Sequence[Response], form: str, left_out: Counter[str]) -> list[Shown]:
    """Each response with its partner among the answers to its question; two that chose each other are one pair."""
    answers: dict[bytes, list[Response]] = defaultdict(list)
    for one in responses:
        answers[question_key(one)].append(one)
    found: dict[frozenset[str], Shown] = {}
    for one in responses:
        others = [other for other in answers[question_key(one)] if comparable(one, other)]
        if others:
            other = partner(form, one, others)
            found.setdefault(frozenset((one.id, other.id)), (one, other))
        else:
            left_out[ALONE] += 1
    return list(found.values())


def in_order(shown: Iterable[Shown]) -> list[Shown]:
    """The same, those whose prompts begin alike side by side: language (the rubric), task (its rules), question."""
    return sorted(shown, key=lambda one: (one[0].question.lang, one[0].question.task, one[0].question.id))


class JudgeResponses(Stage[Shown, Judgment]):
    """One judgment of each response; `source` says in the sidecar where they are from. `check_repeat` of them are
    judged again at the end."""

    name, unit, counted, sources = "judge", "row", "judged", ("responses",)
    too_many = "failed; --retry-failed judges them again"

    def __init__(
        self,
        run: RunOptions,
        judge: ResponseJudge,
        responses: FormResponses,
        source: dict[str, str] | str,
        check_repeat: int = 0,
    ) -> None:
        super().__init__(run, Judgment, judge.backend, responses.by_key)
        self.judge, self._responses, self._check_repeat = judge, responses, check_repeat
        self.always_opens = check_repeat > 0
        self._again: dict[str, Any] | None = None
        self.repeats: list[Judgment] = []
        self.facts = {
            "responses": source,
            "judge": judge.name,
            "model": judge.backend.served.name,
            "server": judge.backend.place,
            "processors": processors([judge.backend]),
            "prompt": {"name": judge.prompt, "hash": judge.prompt_hash},
            "sampling": {
                "temperature": judge.decoding.temperature,
                "samples": judge.decoding.samples,
                "seed": judge.decoding.seed,
                "reason": judge.decoding.reason,
                "images": judge.decoding.images,
                "max_tokens": judge.max_tokens,
                "constrained": "json_schema",
                "score": judge.score_kind,
            },
            "images": judge.images.facts() if judge.images else None,
        }

    def key(self, record: Judgment) -> str:
        return record.sample.key

    def problem(self, record: Judgment, **other: Any) -> str | None:
        """`other` are fields of a panel's judgments that differ from its members'."""
        for name, value in {**self.judge.origin(), **other}.items():
            if (found := getattr(record, name)) != value:
                return f"made with {name} {found!r}, now {value!r}; choose another --out"
        key = self.key(record)
        if key not in self._responses.by_key:
            here = "" if self.options.shard is None else f" of shard {self.options.shard}"
            return f"judges {key!r}, which is not among the responses{here}; choose another --out"
        if not self._responses.reads_alike(record.sample):
            return (
                f"judges {key!r}, of which question, reference, criteria or answer are others now; choose another --out"
            )
        return None

    def resume(self) -> None:
        """Where nothing but the score differs that an earlier run took of the judgments' probabilities, and this run is
        told which one to take, it takes that one of them; the ratings as they are stated where those came without."""
        self.go_on_as_begun()
        if was := self._rescored():
            self._rescore(was)
        super().resume()
        self._renew()
        self.facts["sampling"]["score"] = self.judge.score_kind

    def go_on_as_begun(self) -> None:
        """Take ratings as they are stated where those in the file were taken so, or are all that came of its calls.
        Raises UsageError where they are, and something needs log probabilities."""
        asker, count, without, stated, came = self.judge.asker, 0, True, False, False
        if asker.score_kind == "argmax":
            return
        for one in self._of_any_score():
            count += 1
            without &= not has_distribution(one)
            stated |= one.score_kind == "argmax"
            came |= one.verdict.failure == "no_distribution" and one.verdict.rating is not None
            if one.score is not None and one.score_kind != "argmax" and not self._goes(one):
                asker.needs = asker.needs or f"what {self.out} has"
        # Where some are left to ask, their replies will tell.
        last = self.options.retry_failed or count >= len(self._responses.by_key)
        if without and (stated or (came and last)):
            asker.take_stated(f"{self.out} was judged without log probabilities")

    def _of_any_score(self) -> Iterator[Judgment]:
        """The judgments that are there, whichever score was taken of their probabilities."""
        return known(self.out, Judgment, lambda one: self.problem(one, score_kind=one.score_kind))

    def _rescore(self, was: str) -> None:
        kind, facts = self.judge.score_kind, jsonl.facts(self.out)
        count = jsonl.write(self.out, (scored_by(kind, one) for _, one in jsonl.read(self.out, Judgment)))
        if facts:  # they were made as it says there, and only the score is another
            facts |= {"sampling": facts.get("sampling", {}) | {"score": kind}}
            jsonl.write_sidecar(self.out, facts)
        print(f"{self.out}: of {count} judgments the {kind} rating is taken, before it was {was}", file=sys.stderr)

    async def ask(self, left: int) -> None:
        was = self.judge.score_kind
        await super().ask(left)
        if self.judge.asker.logprobs is False:
            self.without.add("logprobs")
        if self.judge.score_kind != was:
            self.facts["sampling"]["score"] = self.judge.score_kind
            if self._rescored():  # what failed before the first reply showed it
                self._rescore(was)

    def _renew(self) -> None:
        """Where responses that were judged have other scores by people, another system or group now, the judgments get
        them, in the order of the responses."""
        now = {key: self._responses.now(str(key)) for key in self.done}
        changed = sum(one.sample != now[key] for key, one in self.done.items())
        if changed:
            jsonl.write(
                self.out, (replace(self.done[key], sample=now[key]) for key in self._responses.by_key if key in now)
            )
            said = "responses that were judged have other scores by people, another system or group now"
            print(f"{self.out}: {changed} {said}; the judgments have them too", file=sys.stderr)

    def _rescored(self) -> str | None:
        """Which score judgments in the file have, if it is another one that can give way to this run's. Elsewhere than
        on vLLM a run that takes argmax asks for no probabilities: what it adds is of the kind of those without."""
        kind, kinds = self.judge.score_kind, set[str]()
        if kind != "argmax" and not self.options.rescores:
            return None
        whole = self.judge.backend.served.is_vllm or kind != "argmax"
        for one in self._of_any_score():
            if scored_by(kind, one) is None or (has_distribution(one) and not whole):
                return None
            kinds.add(one.score_kind)
        others = kinds - {kind}
        return others.pop() if len(others) == 1 else None

    def items(self) -> Iterable[Shown]:
        return in_order(shown for key, shown in self._responses.by_key.items() if self.is_left(key))

    def is_left(self, key: str) -> bool:
        """Whether an earlier run left it to this one."""
        return key in self.wanted and key not in self.done

    def only(self, keys: Collection[str]) -> None:
        """Judge no more than these, and speak of no others: the file may have some of an earlier run."""
        self.wanted = keys

    async def work(self, item: Shown, keep: Callable[..., None]) -> None:
        failure = lost(item[0].text) if self._responses.replies else None
        judgment = await self.judge.judge(*item, lost=failure)
        keep(judgment)
        if failure is None:
            self.note(judgment.verdict.failure, judgment.detail)

    async def afterwards(self) -> None:
        if self._check_repeat:
            how = self.out, self._check_repeat, self.concurrency
            self._again, self.repeats = await _judged_again(self.judge, *how)

    def summary(self, records: Iterable[Judgment]) -> RunSummary:
        if self.wanted is not self._responses.by_key:
            records = (one for one in records if self.key(one) in self.wanted)
        found = summary(records, self.options, self.repeats)
        if (again := self._again) is None:
            return found
        said = (
            f"judged again in another order: {again['ratings_changed']} of {again['rows']} ratings changed, "
            f"scores by {again['largest_move_of_a_score']:.4f} at most"
            + (f"; {again['failed']} failed" if again["failed"] else "")
        )
        return replace(found, facts={"judged_again": again, **found.facts}, lines=[said, *found.lines])


def summary(judgments: Iterable[Judgment], options: RunOptions, repeats: Iterable[Judgment] = ()) -> RunSummary:
    """What a file of judgments adds up to; what `repeats` took, which are not in it, is in the sums of tokens."""
    out, failures, spent, count = options.out, Counter[str](), Spent(), 0
    for one in judgments:
        count += 1
        spent.add(one)
        if one.verdict.failure is not None:
            failures[one.verdict.failure] += 1
    for one in repeats:
        spent.pay(one)
    facts = {
        "rows": count,
        "failed": dict(failures),
        "shortened_rows": dict(spent.shortened),
        **spent.facts(),
    }
    lines = [f"{out}: {count} judged, {failed(failures)}", *spent.lines()]
    return RunSummary(count=count, failures=failures, facts=facts, lines=lines)


async def _judged_again(
    judge: ResponseJudge, out: Path, rows: int, concurrency: int
) -> tuple[dict[str, Any], list[Judgment]]:
    """Judge the first `rows` scored responses of `out` once more in another order, hence in other batches, and
    count how many ratings changed: the same input should get the same score whatever is judged beside it."""
    scored = (line for _, line in jsonl.read(out, Judgment) if line.score is not None)
    before = {line.sample.key: line for line in islice(scored, rows)}
    shown = [line.sample for line in before.values()]
    random.Random(0).shuffle(shown)
    waiting, after = iter(shown), dict[str, Judgment]()
    for one in layers(judge.backend):
        if isinstance(one, Cached):
            one.fresh = True  # or it would hear what was said before

    async def work() -> None:
        for one in waiting:
            other = None if one.other is None else one.other.response
            after[one.key] = await judge.judge(one.response, other)

    await gather_cancel_on_error(work() for _ in range(concurrency))
    pairs = [(line, after[key]) for key, line in before.items() if after[key].score is not None]
    facts = {
        "rows": len(pairs),
        "failed": len(before) - len(pairs),
        "ratings_changed": sum(_said(one.verdict) != _said(other.verdict) for one, other in pairs),
        "largest_move_of_a_score": max(
            (abs((one.score or 0) - (other.score or 0)) for one, other in pairs), default=0.0
        ),
    }
    return facts, list(after.values())


def _said(found: Verdict) -> object:
    return found.rating, found.value, found.answers


def judge_responses(
    run: RunOptions,
    judges: Sequence[ResponseJudge],
    responses: FormResponses,
    source: dict[str, str] | str,
    check_repeat: int,
    how: Aggregation,
    name: str | None,
    labelled: str | None = None,
) -> int:
    """By one judge into `run.out`, or by several into files beside it (`NAME.1.jsonl`, …), of which the panel `name`'s
    are made; by the second of two only where the first is unsure, as `labelled` judgments of both tell
    (`cascade.choose`)."""
    if labelled is not None and len(judges) != 2:
        raise UsageError("--cascade: give two --judge, the cheap one first")
    out, names, first = run.out, [judge.name for judge in judges], judges[0]
    panel = name or f"{how if labelled is None else 'cascade'}({', '.join(names)})" if len(judges) > 1 else ""
    made_ready = processors(judge.backend for judge in judges)
    if run.certificate is not None:
        setup = replace(first.setup, judge=panel or first.name)
        say_held(run.certificate, made_ready, {first.prompt_hash: first.prompt}, setup, names if panel else ())
    if not panel or not responses.by_key:
        return JudgeResponses(run, first, responses, source, check_repeat).run()
    with growing(out) as out:
        run = replace(run, out=out)
        members = []
        for number, judge in enumerate(judges, 1):
            beside = replace(run, out=out.with_name(f"{out.stem}.{number}{out.suffix}"))
            members.append(JudgeResponses(beside, judge, responses, source, check_repeat))
            members[-1].go_on_as_begun()
        for _ in known(out, Judgment, partial(_other_panel, members[0], panel)):
            pass  # only looked at: another panel's file is not written over
        return _by_panel(run, members, how, panel, labelled)


def _other_panel(member: JudgeResponses, panel: str, one: Judgment) -> str | None:
    """Why a judgment is not of this panel; one that failed is of no kind of score."""
    kind = member.judge.score_kind if one.score is not None else one.score_kind
    return member.problem(one, judge=panel, score_kind=kind)


def _by_panel(
    run: RunOptions, members: Sequence[JudgeResponses], how: Aggregation, panel: str, labelled: str | None
) -> int:
    """By all judges, one after another; of a cascade by the second where the first is unsure, as `labelled` tells."""
    first, *others = members
    facts = {
        "responses": first.facts["responses"],
        "judge": panel,
        "members": [{"judge": member.judge.name, "file": str(member.out)} for member in members],
        "processors": processors(member.judge.backend for member in members),
    }
    threshold = None
    if labelled is not None:
        origin = {name: value for name, value in first.judge.origin().items() if name != "judge"}
        threshold = cascade.choose(labelled, [member.judge.name for member in members], origin)
        print(threshold.line())
    first.run()
    keys, lines = set(first.wanted), list[str]()
    if threshold is None:
        facts["aggregate"] = how
    else:
        (second,) = others
        keys = {key for key, one in _by_key(first.out).items() if cascade.deviation(one.verdict) > threshold.deviation}
        second.only(keys)
        facts |= {"cascade": msgspec.to_builtins(threshold), "asked_of_the_second": len(keys)}
        lines.append(f"{second.judge.name} was asked for {len(keys)} of {len(first.wanted)}")
    asked = [first, *(others if keys else [])]
    for member in asked[1:]:
        member.run()
    later = [_by_key(member.out) for member in asked[1:]]

    def judgments() -> Iterator[Judgment]:
        for _, one in jsonl.read(first.out, Judgment):
            key = one.sample.key
            parts = [one, *(judged[key] for judged in later if key in keys)]
            yield panel_judgment(parts, how, panel) if threshold is None else cascade.last(parts, panel)

    jsonl.write(run.out, judgments())
    return _finish_panel(run, asked, facts, lines)


def _by_key(path: Path) -> dict[str, Judgment]:
    """The judgments of a file by what tells them apart."""
    return {one.sample.key: one for _, one in jsonl.read(path, Judgment)}


def _finish_panel(run: RunOptions, asked: Sequence[JudgeResponses], facts: dict[str, Any], lines: list[str]) -> int:
    """The end of a run that made its file of what those members said that were `asked`."""
    now = 0

    def judgments() -> Iterator[Judgment]:
        nonlocal now
        for _, one in jsonl.read(run.out, Judgment):
            now += any(member.is_left(member.key(one)) for member in asked)
            yield one

    whole = summary(judgments(), run, (one for member in asked for one in member.repeats))
    whole.lines.extend(lines)
    facts = {**facts, "judged_in_this_run": now}
    if without := {name for member in asked for name in member.without | lacking(member.backend)}:
        facts["server_lacks"] = sorted(without)
    return finish(run, whole, facts, changed=True, too_many=JudgeResponses.too_many)
