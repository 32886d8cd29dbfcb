"""The part of `critic judge` that judges single responses, by one judge or a panel."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic import jsonl
from critic.backends import collect_processors
from critic.certificate import print_quotable
from critic.errors import UsageError, quoted
from critic.human_scored import CUT_OFF, say_left_out
from critic.judging.distribution import Aggregation
from critic.judging.examples import ALONE, comparable, partner, question_key
from critic.judging.forms import form_of
from critic.judging.judge import ResponseJudge, panel_judgment
from critic.judging.planned import PlannedVerdict
from critic.records import Judgment, Response, Sample
from critic.stages.judge_samples import JudgeSamples, summary
from critic.stages.run import RunOptions, finish, growing, known

Shown = tuple[Response, Response | None]
"""What one judgment is of: a response, and where two are compared the other one."""


class FormResponses:
    """What is judged in a form, by key: each response that `read` gives or, in a form that compares, beside one other
    to its question, as in training; of all those that the `run` takes. Those that the form cannot judge are counted and
    said. `images` are those of the questions, of all shards. Raises UsageError when nothing is left."""

    def __init__(
        self, read: Callable[[Counter[str]], Iterable[Response]], path: Path, form: str, run: RunOptions | None = None
    ) -> None:
        how, left_out, usable = form_of(form), Counter[str](), list[Response]()
        for response in read(left_out):
            lacking = how.lacking(response)
            if lacking is None:
                usable.append(response)
            else:
                left_out[lacking] += 1
        shown: list[Shown] = _paired(usable, form, left_out) if how.pair else [(response, None) for response in usable]
        say_left_out(left_out)
        if not shown:
            raise UsageError(f"{path}: no usable row to judge")
        # Of all shards' rows: they decide how judgments are made, and those of all shards are merged.
        self.images = [name for response, _ in shown for name in response.question.images]
        self.by_key: dict[str, Shown] = {}
        for response, other in shown:
            if run is None or run.takes(response.question.group):
                self.by_key.setdefault(Sample.of(response, other).key, (response, other))

    def __iter__(self) -> Iterator[Shown]:
        return iter(self.by_key.values())

    def now(self, key: str) -> Sample:
        return Sample.of(*self.by_key[key])


def _as_shown(sample: Sample) -> Sample:
    """A sample without what people and others said of it, which no judge is shown."""
    other = None if sample.other is None else _as_shown(sample.other)
    return replace(sample, human=None, columns={}, other=other, preference=None)


def _paired(responses: Sequence[Response], form: str, left_out: Counter[str]) -> list[Shown]:
    """Each response with its partner among the answers to its question; two that chose each other are one pair."""
    answers: dict[bytes, list[Response]] = defaultdict(list)
    for response in responses:
        answers[question_key(response)].append(response)
    pairs: dict[frozenset[str], Shown] = {}
    for response in responses:
        candidates = [other for other in answers[question_key(response)] if comparable(response, other)]
        if response.other or response.shown:
            pairs[frozenset((response.id,))] = (response, response.other)
        elif candidates:
            other = partner(form, response, candidates)
            pairs.setdefault(frozenset((response.id, other.id)), (response, other))
        else:
            left_out[ALONE] += 1
    return list(pairs.values())


def in_order(shown: Iterable[Shown]) -> list[Shown]:
    """The same, those whose prompts begin alike side by side: language (the rubric), task (its rules), question."""
    return sorted(shown, key=lambda pair: (pair[0].question.lang, pair[0].question.task, pair[0].question.id))


class JudgeResponses(JudgeSamples[Shown]):
    """One judgment of each response, in a form."""

    unit = "row"

    def __init__(
        self, run: RunOptions, judge: ResponseJudge, responses: FormResponses, source: dict[str, str] | str
    ) -> None:
        prompt = {"name": judge.prompt, "hash": judge.prompt_hash}
        super().__init__(run, judge, responses.by_key, {"responses": source, "prompt": prompt})
        self._form, self._prompt, self._responses = judge.form, prompt, responses

    def problem(self, record: Judgment) -> str | None:
        if problem := super().problem(record):
            return problem
        if record.prompt_hash != self._prompt["hash"]:
            before, now = quoted(record.prompt_hash), quoted(self._prompt["hash"])
            return f"made with prompt_hash {before}, now {now}; choose another --out"
        if _as_shown(record.sample) != _as_shown(self._responses.now(record.sample.key)):
            now = "question, reference, criteria, answer, system or group are others now"
            return f"judges {quoted(self.key(record))}, of which {now}; choose another --out"
        return None

    def resume(self) -> None:
        """Where responses that were judged have other scores by people now, the judgments get them, in their order."""
        super().resume()
        now = {name: self._responses.now(name) for name in self._responses.by_key if name in self.done}
        changed = sum(self.done[name].sample != sample for name, sample in now.items())
        if changed:
            jsonl.write(self.out, (replace(self.done[name], sample=sample) for name, sample in now.items()))
            print(f"{self.out}: {changed} responses have other scores by people now; so has the file", file=sys.stderr)

    def items(self) -> Iterable[Shown]:
        return in_order(shown for name, shown in self._responses.by_key.items() if name not in self.done)

    async def plan(self, item: Shown, judged: Callable[[PlannedVerdict], Any]) -> None:
        planned = PlannedVerdict(sample=Sample.of(*item), form=self._prompt["name"])
        if any(answer is not None and answer.cut_off for answer in item):
            await judged(replace(planned, problem=("truncated", CUT_OFF)))
        else:
            await judged(replace(planned, material=self._form.material(*item)))


def judge_responses(
    run: RunOptions,
    judges: Sequence[ResponseJudge],
    responses: FormResponses,
    source: dict[str, str] | str,
    how: Aggregation,
    name: str | None,
) -> int:
    """By one judge into `run.out`, or by several into files beside it (`NAME.1.jsonl`, …), for the panel `name`."""
    names, first = [judge.name for judge in judges], judges[0]
    panel = name or f"{how}({', '.join(names)})" if len(judges) > 1 else ""
    if run.certificate is not None:
        setup = replace(first.setup, judge=panel or first.name)
        made_ready = collect_processors(judge.backend for judge in judges)
        print_quotable(run.certificate, made_ready, {first.prompt_hash: first.prompt}, setup, names if panel else ())
    if not panel:
        return JudgeResponses(run, first, responses, source).run()
    with growing(run.out) as out:
        run = replace(run, out=out)
        judged_by = (judgment.judge for judgment in known(out, Judgment, lambda _: None))
        if (before := next((judge_name for judge_name in judged_by if judge_name != panel), None)) is not None:
            raise UsageError(f"{out}: judged by {quoted(before)}, now by {quoted(panel)}; choose another --out")
        members = []
        for number, judge in enumerate(judges, 1):
            beside = replace(run, out=out.with_name(f"{out.stem}.{number}{out.suffix}"))
            members.append(JudgeResponses(beside, judge, responses, source))
            members[-1].run()
        return _finish_panel(run, members, how, panel)


def _finish_panel(run: RunOptions, members: Sequence[JudgeResponses], how: Aggregation, panel: str) -> int:
    """Make the panel's file of what its members said."""
    first, *rest = members
    files = (known(member.out, Judgment, lambda _: None) for member in rest)
    by_key = [{judgment.sample.key: judgment for judgment in file} for file in files]

    def judgments() -> Iterator[Judgment]:
        for judgment in known(first.out, Judgment, lambda _: None):
            yield panel_judgment([judgment, *(judged[judgment.sample.key] for judged in by_key)], how, panel)

    jsonl.write(run.out, judgments())
    facts = {
        "responses": first.facts["responses"],
        "judge": panel,
        "aggregate": how,
        "members": [{"judge": member.judge.setup.judge, "file": str(member.out)} for member in members],
        "processors": collect_processors(member.judge.backend for member in members),
    }
    lacking = {name for member in members for name in jsonl.facts(member.out).get("server_lacks", ())}
    if lacking:
        facts["server_lacks"] = sorted(lacking)
    if answered_by := sorted({name for member in members for name in member.answered_by}):
        facts["answered_by"] = answered_by
    return finish(run, summary(known(run.out, Judgment, lambda _: None), run, JudgeResponses.unit), facts)
