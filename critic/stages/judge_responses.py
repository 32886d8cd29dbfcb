"""The part of `critic judge` that judges single responses, by one judge or a panel."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from critic import jsonl
from critic.backends import collect_processors
from critic.errors import UsageError, notify, quoted
from critic.human_scored import UNUSABLE_FLAGS, OwnColumns, say_left_out, walk
from critic.judging.distribution import Aggregation
from critic.judging.examples import ALONE, comparable, partner, question_key
from critic.judging.forms import form_of
from critic.judging.judge import Judge, panel_judgment, plan_response
from critic.records import JudgeConfig, Judgment, Response, Sample
from critic.stages import options
from critic.stages.judge_samples import JudgeSamples, print_certified
from critic.stages.options import Endpoint, JudgeOptions
from critic.stages.run import RunOptions, describe_source, finish, growing, join_facts, known
from critic.stages.totals import sum_judgments

Shown = tuple[Response, Response | None]
"""The responses in one judging prompt: the one to judge, and the one it is compared with or None."""


def read_responses(read: Callable[[Counter[str]], Iterable[Response]], path: Path, form: str) -> dict[str, Shown]:
    """Return the responses that can be judged in a form, by sample key; print how many others are left out, by reason.

    `read`: a function that yields responses, and adds the number of those it leaves out to its argument, by reason.
    `path`: the file, for messages.
    `form`: name of the prompt form. If it compares, each response is paired with another one to the same question.

    Raises UsageError if no response is left.
    """
    entry, left_out, usable = form_of(form), Counter[str](), list[Response]()
    for response in read(left_out):
        if (lacking := entry.lacking(response)) is None:
            usable.append(response)
        else:
            left_out[lacking] += 1
    shown = _pair_up(usable, form, left_out) if entry.pair else [(response, None) for response in usable]
    say_left_out(left_out)
    if not shown:
        raise UsageError(f"{path}: no usable row to judge")
    return {Sample.of(*pair).key: pair for pair in shown}


def _without_labels(sample: Sample) -> Sample:
    """Return a sample without human labels and without other judges' scores, which are not part of the prompt."""
    other = None if sample.other is None else _without_labels(sample.other)
    return replace(sample, human=None, columns={}, other=other, preference=None)


def _pair_up(responses: Sequence[Response], form: str, left_out: Counter[str]) -> list[Shown]:
    """Pair each response with another answer to the same question, and return the pairs.

    If two responses select each other, they form one pair. Responses without a partner are counted in `left_out`.
    """
    answers: dict[bytes, list[Response]] = defaultdict(list)
    for response in responses:
        answers[question_key(response)].append(response)
    pairs: dict[frozenset[str], Shown] = {}
    for response in responses:
        candidates = [other for other in answers[question_key(response)] if comparable(response, other)]
        # A row may hold both answers, or all that a judge was shown of them.
        if response.other or response.shown:
            pairs[frozenset((response.id,))] = (response, response.other)
        elif candidates:
            other = partner(form, response, candidates)
            pairs.setdefault(frozenset((response.id, other.id)), (response, other))
        else:
            left_out[ALONE] += 1
    return list(pairs.values())


def in_order(shown: Iterable[Shown]) -> list[Shown]:
    """Sort responses by language, task and question, so that prompts with a common prefix are neighbours."""
    return sorted(shown, key=lambda pair: (pair[0].question.lang, pair[0].question.task, pair[0].question.id))


class JudgeResponses(JudgeSamples[Shown]):
    """The stage that judges each response, or each pair of responses, once, in the form of the judge's setup."""

    unit = "row"

    def __init__(self, run: RunOptions, judge: Judge, responses: Mapping[str, Shown], source: dict[str, str]) -> None:
        form = judge.setup.pointwise_prompt
        self._prompt = {"name": form, "hash": judge.hash_prompt(form)}
        super().__init__(run, judge, responses, {"responses": source, "prompt": self._prompt})

    def problem(self, record: Judgment) -> str | None:
        if problem := super().problem(record):
            return problem
        # Verdicts of two wordings do not mix.
        if record.prompt_hash != self._prompt["hash"]:
            before, now = quoted(record.prompt_hash), quoted(self._prompt["hash"])
            return f"made with prompt_hash {before}, now {now}; choose another --out"
        if _without_labels(record.sample) != _without_labels(Sample.of(*self.wanted[record.sample.key])):
            now = "question, reference, criteria, answer, system or group are others now"
            return f"judges {quoted(record.key)}, of which {now}; choose another --out"
        return None

    def resume(self) -> None:
        """Refresh the human labels of judgments already in the output file from the current input.

        The judgments are rewritten in the input's order if a label has changed.
        """
        super().resume()
        now = {name: Sample.of(*shown) for name, shown in self.wanted.items() if name in self.done}
        changed = sum(self.done[name].sample != sample for name, sample in now.items())
        if changed:
            jsonl.write(self.out, (replace(self.done[name], sample=sample) for name, sample in now.items()))
            notify(f"{self.out}: {changed} responses have other scores by people now; so has the file")

    def items(self) -> Iterable[Shown]:
        return in_order(super().items())

    async def work(self, item: Shown, keep: Callable[..., None]) -> None:
        await self._judge(plan_response(self._prompt["name"], *item), in_flight={}, keep=keep)


def judge_rows(
    run: RunOptions, endpoint: Endpoint, how: JudgeOptions, path: Path, own: OwnColumns | None, aggregate: Aggregation
) -> int:
    """Judge the responses in a file of rows with one judge or a panel, and return the exit code.

    `run`: how the stage is run. A panel's members write files of their own beside `run.out` (`NAME.1.jsonl`, …).
    `endpoint`: the judges' models or servers. `how`: the options for judging.
    `path`: the file of rows. `own`: how to read the user's own columns, or None.
    `aggregate`: how the scores of a panel are combined.

    Raises UsageError if a judge was not trained on the form.
    """
    form = how.answer_form
    decoding = how.decoding([form])
    several = len(how.judge or []) > 1
    if several and not form_of(form).kind.rates:
        raise UsageError(f"several --judge make a panel of ratings, and --prompt {form} does not rate")
    backends = endpoint.open("--judge", how.judge)

    def read(left_out: Counter[str]) -> Iterator[Response]:
        for _, _, response in walk(path, left_out, pictures=True, scored=False, own=own):
            # A picture tells what is right if there is no reference; a judge of another kind may be shown none.
            is_backed = response.question.reference or response.other or response.shown or how.images is not None
            if is_backed or all("pack" in backend.served.about or backend.sees() for backend in backends):
                yield response
            else:
                left_out[UNUSABLE_FLAGS["no_reference"]] += 1

    every = read_responses(read, path, form)
    # All shards' rows decide how judgments are made: those of all shards are merged.
    image_names = [name for response, _ in every.values() for name in response.question.images]
    images = endpoint.shown(how, endpoint.data_root or options.root_of(path), backends, image_names)
    responses = {key: shown for key, shown in every.items() if run.takes(shown[0].question.group)}
    # Log probabilities are needed for a score that is named, or that was certified by them.
    needs = f"--score {how.score}" if how.score else str(run.certificate) if run.certificate else None
    writes_freely = any(backend.served.writes_freely for backend in backends)
    takes_steps = writes_freely or how.prompt == options.EVERY_REASON_FIRST
    tokens = how.max_tokens or (options.TOKENS_OF_STEPS if takes_steps else options.TOKENS)
    kind = how.score or ("argmax" if writes_freely else "expected")
    setup = JudgeConfig(judge="", score_kind=kind, decoding=decoding, pointwise_prompt=form, repeat=how.repeat)
    judges = []
    for backend in backends:
        # Each member of a panel has learned forms of its own.
        unlearned = options.force_unlearned(backend, [form], "prompt", how.force_form, "ask as it learned")
        name = backend.served.name if several or how.judge_name is None else how.judge_name
        judges.append(Judge(backend, replace(setup, judge=name, unlearned=unlearned), tokens, images, needs))
    names = ", ".join(judge.setup.judge for judge in judges)
    panel = how.judge_name or f"{aggregate}({names})" if several else ""
    print_certified(run, judges, [form], panel)
    if not several:
        return JudgeResponses(run, judges[0], responses, describe_source(path)).run()
    with growing(run.out) as out:
        return _judge_panel(replace(run, out=out), judges, responses, path, aggregate, panel)


def _judge_panel(
    run: RunOptions, judges: Sequence[Judge], responses: Mapping[str, Shown], path: Path, how: Aggregation, panel: str
) -> int:
    """Let each judge write a separate file, and combine these into the panel's file. Return the exit code.

    `responses`: the responses to judge, by sample key. `path`: the file that they are from.
    `how`: how the members' scores are combined. `panel`: the panel's name.

    Raises UsageError if the output file has judgments of another judge or panel.
    """
    # Members resume in their own files; the panel's is made anew from them.
    for judgment in known(run.out, Judgment):
        if judgment.judge != panel:
            before, now = quoted(judgment.judge), quoted(panel)
            raise UsageError(f"{run.out}: judged by {before}, now by {now}; choose another --out")
    source, members = describe_source(path), list[JudgeResponses]()
    for number, judge in enumerate(judges, 1):
        # The scores of a panel are mapped, and not those of its members.
        own = run.out.with_name(f"{run.out.stem}.{number}{run.out.suffix}")
        beside = replace(run, out=own, recalibration=None)
        members.append(JudgeResponses(beside, judge, responses, source))
        members[-1].run()
    first, *others = [{line.sample.key: line for _, line in jsonl.read(each.out, Judgment)} for each in members]
    # A row has the panel's verdict in the order of the first member's file.
    lines = ([judgment, *(other[key] for other in others)] for key, judgment in first.items())
    joint = (panel_judgment(judgments, how, panel) for judgments in lines)
    jsonl.write(run.out, map(run.recalibration.apply, joint) if run.recalibration else joint)
    facts: dict[str, Any] = {
        "responses": source,
        "judge": panel,
        "aggregate": how,
        "members": [{"judge": member.judge.setup.judge, "file": str(member.out)} for member in members],
        "processors": collect_processors(member.judge.backend for member in members),
        "recalibration": run.recalibration,
    }
    # What one member's server lacks is missing in the panel's scores.
    facts |= join_facts([jsonl.facts(member.out) for member in members])
    return finish(run, sum_judgments(known(run.out, Judgment), run.out, JudgeResponses.unit), facts)
