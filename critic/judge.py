"""critic judge: responses -> judgments, by one judge or a panel.

critic judge test.jsonl --out judged.jsonl --base-url http://127.0.0.1:8000/v1
critic judge test.jsonl --out judged.jsonl --judge runs/demo/judge --judge http://127.0.0.1:8000/v1#gpt-4
"""

import asyncio
import hashlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import msgspec
import typer
from msgspec import Struct
from tqdm import tqdm

from critic import human_scored, jsonl, rating, verdict
from critic.backends import Backend, Reply, Request, Token
from critic.backends.openai import OpenAIBackend
from critic.backends.scripted import from_file
from critic.backends.vllm import VllmBackend
from critic.benchmarks import alignmmbench
from critic.errors import Refused, Transient, UsageError
from critic.examples import verdict_keys
from critic.judge_prompt import VERDICT_SCHEMA, Fitted, Prompt, fit, load, prompt_hash, render
from critic.records import GREEDY, Decoding, Failure, Judgment, Member, Response, Verdict

ALTERNATIVES = 20
"""Alternatives asked for each token: the most that OpenAI-compatible servers give by default."""

NEGLIGIBLE = 1e-4
"""Probability of a first "1" below which it is not worth asking whether a 0 follows."""

BEGUN = '{"Rating":'
"""How a verdict starts whose reason is left out."""

WINDOW = 4096
"""Responses that are put in order at once, so that those whose prompts begin alike are judged one after another."""

DEFAULT_URL = "http://127.0.0.1:8000/v1"


def schema(keys: Sequence[str]) -> dict[str, Any]:
    """JSON Schema of a verdict that has these keys, in this order."""
    properties = {key: VERDICT_SCHEMA["properties"][key] for key in keys}
    return {**VERDICT_SCHEMA, "properties": properties, "required": list(keys)}


class _Reading(Struct, frozen=True):
    """One verdict of the model, and the calls it took; the first call's reply is the verdict's text."""

    verdict: Verdict
    calls: list[Reply]


class Judge:
    """A judge model with one prompt and one way of scoring."""

    def __init__(
        self,
        backend: Backend,
        name: str,
        prompt: str,
        score_kind: str,
        max_tokens: int,
        decoding: Decoding = GREEDY,
    ) -> None:
        self.backend, self.name, self.prompt = backend, name, prompt
        self.score_kind, self.max_tokens, self.decoding = score_kind, max_tokens, decoding
        self.prompt_hash = prompt_hash(prompt)

    async def judge(self, response: Response) -> Judgment:
        """One judgment: a score, or a named failure. Never raises for what a server does."""
        try:
            return await self._judge(response)
        except Transient as error:
            return self._failed(response, "server_error", str(error))
        except Refused as error:
            return self._failed(response, error.failure, str(error))

    def origin(self) -> dict[str, Any]:
        """The fields of a judgment that say how it was made: those of one file are all alike."""
        return {
            "judge": self.name,
            "prompt": self.prompt,
            "prompt_hash": self.prompt_hash,
            "score_kind": self.score_kind,
            "decoding": self.decoding,
        }

    async def _judge(self, response: Response) -> Judgment:
        prompt = load(self.prompt, response.question.lang)
        fitted, reply = await self._fitted(prompt, response)
        first = self._read(prompt, fitted, reply)
        others = (self._sample(prompt, fitted, response.id, n) for n in range(1, self.decoding.samples))
        return self._judgment(response, fitted, await asyncio.gather(first, *others))

    async def _fitted(self, prompt: Prompt, response: Response) -> tuple[Fitted, Reply]:
        """The judge's first reply to the whole prompt or, where prompt and reply do not fit together, to one
        that fits. Raises Refused where none does.

        vLLM refuses a prompt longer than its context; one that only leaves too little room for the
        reply it answers with a reply cut short.
        """
        context = self.backend.served.context
        whole = Fitted(render(prompt, response), {})
        try:
            reply = await self.backend.chat(self._request(prompt, whole, response.id, 0))
            if context is None or reply.prompt_tokens + self.max_tokens <= context:
                return whole, reply
        except Refused as error:
            if error.failure != "context_length_exceeded" or context is None:
                raise
        limit = context - self.max_tokens
        fitted = await asyncio.to_thread(fit, prompt, response, limit, self.backend.count_tokens)
        if fitted is None:
            raise Refused("context_length_exceeded", "rubric and question alone do not fit")
        return fitted, await self.backend.chat(self._request(prompt, fitted, response.id, 0))

    async def _sample(self, prompt: Prompt, fitted: Fitted, response_id: str, number: int) -> _Reading:
        return await self._read(
            prompt, fitted, await self.backend.chat(self._request(prompt, fitted, response_id, number))
        )

    def _request(self, prompt: Prompt, fitted: Fitted, response_id: str, number: int) -> Request:
        """What is asked for the verdict with this number, from 0."""
        alternatives = 0 if self.score_kind == "argmax" and not self.backend.served.is_vllm else ALTERNATIVES
        if self._rating_alone:
            messages = [*fitted.messages, {"role": "assistant", "content": BEGUN}]
            regex = "(10|[1-9]),.*"
            return Request(messages=messages, max_tokens=1, regex=regex, continue_final=True, top_logprobs=alternatives)
        sampled = self.decoding.temperature > 0.0
        return Request(
            messages=fitted.messages,
            max_tokens=self.max_tokens,
            temperature=self.decoding.temperature,
            seed=_seed(self.decoding.seed, response_id, number) if sampled else None,
            schema=schema(verdict_keys(prompt) if self.decoding.reason else ("Rating",)),
            top_logprobs=alternatives,
        )

    @property
    def _rating_alone(self) -> bool:
        """Whether one token is asked for, behind a verdict that is begun for the model."""
        return not self.decoding.reason and self.backend.served.is_vllm

    async def _read(self, prompt: Prompt, fitted: Fitted, reply: Reply) -> _Reading:
        if self._rating_alone:
            reply = _behind(BEGUN, reply)
        found = verdict.parse(reply.text, reply.truncated and not self._rating_alone)
        probabilities, follow_up = await self._distribution(prompt, fitted, reply)
        if probabilities is not None:
            found = msgspec.structs.replace(found, distribution=probabilities, summary=rating.summary(probabilities))
            if self._rating_alone:  # its 1 may be the first digit of a 10
                found = msgspec.structs.replace(found, rating=rating.score(probabilities, "argmax"), failure=None)
        elif self._rating_alone or (found.failure is None and self.score_kind != "argmax"):
            found = msgspec.structs.replace(found, failure="no_distribution")
        return _Reading(found, [reply, follow_up] if follow_up else [reply])

    async def _distribution(
        self, prompt: Prompt, fitted: Fitted, reply: Reply
    ) -> tuple[list[float] | None, Reply | None]:
        """The probabilities of the ratings, as far as the reply's tokens tell, and the second call where one
        was needed to tell a 10 from a 1."""
        first = rating.first_digit(reply.tokens)
        if first is None:
            return None, None
        follow_up: Reply | None = None
        ten_given_one = first.ten_given_one
        if ten_given_one is None and first.mass[0] < NEGLIGIBLE:
            ten_given_one = 0.0
        if ten_given_one is None and self.backend.served.is_vllm:
            # Token texts are no beginning to go on from where a character is spelt by several tokens.
            whole = reply.text.startswith(first.prefix.removesuffix("1"))
            follow_up = await self._after_one(prompt, fitted, first.prefix if whole else rating.begun(reply.text))
            ten_given_one = rating.zero_share(follow_up.tokens[0]) if follow_up.tokens else None
        return None if ten_given_one is None else rating.distribution(first, ten_given_one), follow_up

    async def _after_one(self, prompt: Prompt, fitted: Fitted, begun: str) -> Reply:
        messages = [*fitted.messages, {"role": "assistant", "content": begun}]
        regex = "[0}].*" if verdict_keys(prompt)[-1] == "Rating" else "[0,].*"
        return await self.backend.chat(
            Request(messages=messages, max_tokens=1, regex=regex, continue_final=True, top_logprobs=ALTERNATIVES)
        )

    def _judgment(self, response: Response, fitted: Fitted, readings: list[_Reading]) -> Judgment:
        verdicts = [reading.verdict for reading in readings]
        found = verdicts[0] if len(verdicts) == 1 else pooled(verdicts)
        calls = [call for reading in readings for call in reading.calls]
        return Judgment(
            response=response,
            **self.origin(),
            verdict=found,
            score=self._score(found),
            reply=readings[0].calls[0].text,
            shortened=fitted.shortened,
            prompt_tokens=sum(call.prompt_tokens for call in calls),
            cached_tokens=sum(call.cached_tokens for call in calls),
            completion_tokens=sum(call.completion_tokens for call in calls),
            attempts=max(call.attempts for call in calls),
            samples=verdicts if len(verdicts) > 1 else [],
        )

    def _score(self, found: Verdict) -> float | None:
        if found.failure is not None:
            return None
        return found.rating if found.distribution is None else rating.score(found.distribution, self.score_kind)

    def _failed(self, response: Response, failure: Failure, detail: str) -> Judgment:
        return Judgment(response=response, **self.origin(), verdict=Verdict(failure=failure), detail=detail)


def _seed(seed: int, response_id: str, number: int) -> int:
    """A seed of its own for each verdict of each response, the same in every run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}/{response_id}".encode()).digest()[:4], "big")


def _behind(begun: str, reply: Reply) -> Reply:
    """A reply that went on with `begun`, as if the model had written all of it."""
    return msgspec.structs.replace(reply, text=begun + reply.text, tokens=[Token(begun, []), *reply.tokens])


def pooled(verdicts: Sequence[Verdict]) -> Verdict:
    """Several verdicts by one judge on one response as one: the mean of their distributions, the most frequent
    rating (the lowest of equals), and the first reason that came with it. Verdicts that failed are left out; if
    all did, the first one's failure stands for all."""
    valid = [found for found in verdicts if found.failure is None and found.rating is not None]
    if not valid:
        return verdicts[0]
    most = rating.majority(found.rating for found in valid if found.rating is not None)
    reasons = [found.reason for found in valid if found.rating == most and found.reason]
    return _with_mixture(Verdict(rating=most, reason=reasons[0] if reasons else None), valid)


def _with_mixture(found: Verdict, parts: Sequence[Verdict]) -> Verdict:
    """`found` with the mean of its parts' distributions, where each of them has one."""
    distributions = [part.distribution for part in parts if part.distribution is not None]
    if len(distributions) < len(parts):
        return found
    mixture = rating.mixture(distributions)
    return msgspec.structs.replace(found, distribution=mixture, summary=rating.summary(mixture))


def panel_judgment(members: Sequence[Judgment], how: str, name: str) -> Judgment:
    """One response judged by a panel: the members' scores and ratings made one by `how` (rating.AGGREGATES).

    A panel judges whole or not at all: where a member failed, the judgment fails with the member's failure and
    `detail` names the member, because a mean over those who are left is another panel's.
    """
    parts = [Member(judge=one.judge, score=one.score, verdict=one.verdict) for one in members]
    first = members[0]
    common: dict[str, Any] = {
        "response": first.response,
        "judge": name,
        "prompt": first.prompt,
        "prompt_hash": first.prompt_hash,
        "score_kind": first.score_kind,
        "decoding": first.decoding,
        "members": parts,
        "prompt_tokens": sum(one.prompt_tokens for one in members),
        "cached_tokens": sum(one.cached_tokens for one in members),
        "completion_tokens": sum(one.completion_tokens for one in members),
        "attempts": max(one.attempts for one in members),
    }
    for one in members:
        if one.verdict.failure is not None:
            detail = f"{one.judge}: {one.detail or one.verdict.failure}"
            return Judgment(**common, verdict=Verdict(failure=one.verdict.failure), detail=detail)
    aggregate = rating.AGGREGATES[how]
    ratings = [one.verdict.rating for one in members if one.verdict.rating is not None]
    found = _with_mixture(Verdict(rating=float(aggregate(ratings))), [one.verdict for one in members])
    score = float(aggregate([one.score for one in members if one.score is not None]))
    return Judgment(**common, verdict=found, score=score)


def _already_judged(out: Path, origin: dict[str, Any], wanted: set[str]) -> tuple[set[str], Counter[str]]:
    """Ids and failures of the judgments in `out`. Raises UsageError if another judge made them, or
    if they judge other responses."""
    done: set[str] = set()
    failures: Counter[str] = Counter()
    jsonl.repair(out)
    if not out.is_file() or out.stat().st_size == 0:
        return done, failures
    for number, line in jsonl.read(out, Judgment):
        for name, value in origin.items():
            if getattr(line, name) != value:
                found = getattr(line, name)
                raise UsageError(f"{out}:{number}: made with {name} {found!r}, now {value!r}; choose another --out")
        if line.response.id not in wanted:
            raise UsageError(
                f"{out}:{number}: judges {line.response.id!r}, which is not among the responses; choose another --out"
            )
        done.add(line.response.id)
        if line.verdict.failure:
            failures[line.verdict.failure] += 1
    return done, failures


def in_order(responses: Iterable[Response], window: int) -> Iterator[Response]:
    """The same responses, those whose prompts begin alike side by side: language (the rubric), task (its rules),
    question. Only `window` of them are held at a time."""
    waiting = iter(responses)
    while part := list(islice(waiting, window)):
        part.sort(key=lambda one: (one.question.lang, one.question.task, one.question.id))
        yield from part


class _Writer:
    """Appends judgments to `out`, none behind a line that could not be written whole."""

    def __init__(self, out: Path) -> None:
        self._out, self._broken = out, False
        with _writing(out):
            self._file = jsonl.Appender(out)

    def append(self, judgment: Judgment) -> None:
        if self._broken:
            return
        self._broken = True
        with _writing(self._out):
            self._file.append(judgment)
        self._broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with _writing(self._out):
                self._file.__exit__(kind, error, trace)
        except UsageError:
            if kind is None:  # else the first error says more
                raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises UsageError for what the system says against writing: a full disk, a missing right."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        raise UsageError(f"{path}: cannot be written: {problem}; then run the same command again to go on") from None


class _Settings(Struct, frozen=True, kw_only=True):
    """What is alike for every judge of a run."""

    source: dict[str, str] | str
    concurrency: int | None
    max_failed: float
    retry_failed: bool
    check_repeat: int


async def _run(
    judge: Judge, responses: Iterable[Response], total: int, out: Path, settings: _Settings, failures: Counter[str]
) -> dict[str, Any] | None:
    """Judge `total` responses, several at a time; each judgment is in the file once it is known. Gives what
    judging some again has shown, where that was asked for."""
    waiting = in_order(responses, WINDOW)
    with _Writer(out) as file, tqdm(total=total, desc="judge", unit="row") as bar:
        async with judge.backend as backend:
            concurrency = settings.concurrency or backend.in_flight
            lost_in_a_row = 0

            async def work() -> None:
                nonlocal lost_in_a_row
                for response in waiting:
                    judgment = await judge.judge(response)
                    lost_in_a_row = lost_in_a_row + 1 if judgment.verdict.failure == "server_error" else 0
                    file.append(judgment)
                    if judgment.verdict.failure:
                        failures[judgment.verdict.failure] += 1
                    bar.set_postfix(failed=failures.total(), retries=backend.retries, refresh=False)
                    bar.update()
                    if lost_in_a_row >= 2 * concurrency:
                        raise UsageError(
                            f"{backend.place} failed {lost_in_a_row} rows in a row ({judgment.detail}); "
                            f"see to the server, then run again with --retry-failed"
                        )

            await _all(work() for _ in range(min(concurrency, total)))
            if settings.check_repeat:
                return await _judged_again(judge, out, settings.check_repeat, concurrency)
    return None


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run side by side; the first error ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _judged_again(judge: Judge, out: Path, rows: int, concurrency: int) -> dict[str, Any]:
    """Judge the first `rows` scored responses of `out` once more in another order, hence in other batches, and
    count how many ratings changed: the same input should get the same score whatever is judged beside it."""
    before = {
        line.response.id: line
        for line in islice((line for _, line in jsonl.read(out, Judgment) if line.score is not None), rows)
    }
    responses = [line.response for line in before.values()]
    random.Random(0).shuffle(responses)
    waiting, after = iter(responses), dict[str, Judgment]()

    async def work() -> None:
        for response in waiting:
            after[response.id] = await judge.judge(response)

    await _all(work() for _ in range(concurrency))
    pairs = [(line, after[name]) for name, line in before.items()]
    moves = [abs(one.score - other.score) for one, other in pairs if one.score is not None and other.score is not None]
    return {
        "rows": len(pairs),
        "ratings_changed": sum(one.verdict.rating != other.verdict.rating for one, other in pairs),
        "replies_changed": sum(one.reply != other.reply for one, other in pairs),
        "largest_move_of_a_score": max(moves, default=0.0),
    }


def _complete(judge: Judge, responses: Sequence[Response], out: Path, settings: _Settings) -> int:
    """Judge what `out` lacks; the exit code. Raises UsageError for what the caller has to mend."""
    ids = {response.id for response in responses}
    done, failures = _already_judged(out, judge.origin(), ids)
    if settings.retry_failed and failures:
        with _writing(out):
            jsonl.rewrite(out, Judgment, lambda line: line.verdict.failure is None)
        done, failures = _already_judged(out, judge.origin(), ids)
    total = len(ids) - len(done)
    if done:
        print(f"{out}: {len(done)} judged before, {total} to go", file=sys.stderr)
    start = time.monotonic()
    repeated = None
    if total or settings.check_repeat:
        todo = (response for response in responses if response.id not in done)
        repeated = asyncio.run(_run(judge, todo, total, out, settings, failures))
    facts = {
        "responses": settings.source,
        "judge": judge.name,
        "model": judge.backend.served.name,
        "server": judge.backend.place,
        "prompt": {"name": judge.prompt, "hash": judge.prompt_hash},
        "sampling": {
            "temperature": judge.decoding.temperature,
            "samples": judge.decoding.samples,
            "seed": judge.decoding.seed,
            "reason": judge.decoding.reason,
            "max_tokens": judge.max_tokens,
            "constrained": "json_schema",
            "score": judge.score_kind,
        },
        "retries": judge.backend.retries,
        "seconds": round(time.monotonic() - start, 1),
        "judged_in_this_run": total,
    }
    if repeated is not None:
        print(
            f"judged again in another order: {repeated['ratings_changed']} of {repeated['rows']} ratings changed, "
            f"scores by {repeated['largest_move_of_a_score']:.4f} at most"
        )
        facts["judged_again"] = repeated
    return _finish(out, facts, failures, settings.max_failed)


def _panel(
    judges: Sequence[Judge], how: str, name: str | None, responses: Sequence[Response], out: Path, settings: _Settings
) -> int:
    """Each judge's judgments in a file beside `out` (`NAME.1.jsonl`, …), then the panel's in `out`."""
    panel = name or f"{how}({', '.join(judge.name for judge in judges)})"
    _already_judged(out, {**judges[0].origin(), "judge": panel}, {response.id for response in responses})
    files = [out.with_name(f"{out.stem}.{number}{out.suffix}") for number in range(1, len(judges) + 1)]
    for judge, file in zip(judges, files, strict=True):
        _complete(judge, responses, file, settings)
    failures: Counter[str] = Counter()
    with _writing(out):
        jsonl.write(out, _merged(files, how, panel, failures))
    facts = {
        "responses": settings.source,
        "judge": panel,
        "aggregate": how,
        "members": [{"judge": judge.name, "file": str(file)} for judge, file in zip(judges, files, strict=True)],
        "judged_in_this_run": len(responses),
    }
    return _finish(out, facts, failures, settings.max_failed)


def _merged(files: Sequence[Path], how: str, panel: str, failures: Counter[str]) -> Iterator[Judgment]:
    """The panel's judgment of each response, from files that judge the same ones in any order."""
    first, *others = files
    places = [_places(file) for file in others]
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open("rb")) for file in others]
        for _, one in jsonl.read(first, Judgment):
            members = [one]
            for file, place in zip(opened, places, strict=True):
                file.seek(place[one.response.id])
                members.append(msgspec.json.decode(file.readline(), type=Judgment))
            made = panel_judgment(members, how, panel)
            if made.verdict.failure:
                failures[made.verdict.failure] += 1
            yield made


def _places(file: Path) -> dict[str, int]:
    """Where in the file each response's line starts, in bytes."""
    found, place = {}, 0
    with file.open("rb") as lines:
        for line in lines:
            found[msgspec.json.decode(line, type=_Line).response.id] = place
            place += len(line)
    return found


class _Id(Struct):
    id: str


class _Line(Struct):
    """Of a judgment no more than whom it judges."""

    response: _Id


def _responses(path: Path, questions: Path | None, system: str | None) -> list[Response]:
    if questions is not None:
        return alignmmbench.read_responses(path, alignmmbench.read_questions(questions), system)
    loaded = human_scored.load(path)
    for reason, count in loaded.left_out.most_common():
        print(f"left out {count} rows: {reason}", file=sys.stderr)
    if not loaded.responses:
        raise UsageError(f"{path}: no usable row to judge")
    return loaded.responses


def _backend(
    judge: str, connect: Callable[[str], OpenAIBackend], model: str | None, vllm_options: list[str]
) -> Backend:
    """What `--judge` names: a server (URL or URL#MODEL), a checkpoint folder, or a file of scripted replies."""
    url, _, named = judge.partition("#")
    if "://" in judge:
        backend = connect(url)
        backend.choose(named or model)
        return backend
    path = Path(judge)
    if path.is_dir():
        return VllmBackend(path, vllm_options)
    if path.is_file():
        return from_file(path)
    raise UsageError(f"--judge {judge}: expected a checkpoint folder, a server's URL, URL#MODEL, or a file of replies")


def _decoding(prompt: str, samples: int, temperature: float | None, seed: int, no_reason: bool) -> Decoding:
    if temperature is None:
        temperature = 1.0 if samples > 1 else 0.0
    if samples > 1 and temperature == 0.0:
        raise UsageError("--samples draws verdicts, and at --temperature 0 they are all the same")
    if no_reason and samples > 1:
        raise UsageError("--no-reason reads the rating's distribution at once; --samples adds nothing to it")
    if no_reason and verdict_keys(load(prompt, "en"))[0] != "Rating":
        raise UsageError(f"--no-reason: prompt {prompt!r} has the reason before the rating")
    made = Decoding(reason=not no_reason, samples=samples, temperature=temperature, seed=seed if temperature else 0)
    return GREEDY if made == GREEDY else made  # the very object is what records leave out


def main(
    responses: Annotated[
        Path,
        typer.Argument(help="Human-scored rows (JSONL, CSV, a folder), or a benchmark's responses with --questions."),
    ],
    out: Annotated[Path, typer.Option(help="Where judgments go (JSONL). Run again to resume.")],
    vllm_options: Annotated[
        list[str] | None, typer.Argument(help="Behind --: options passed to vLLM in this process.")
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            help="A checkpoint folder (vLLM in this process), a server's URL or URL#MODEL, or a JSONL file of "
            "scripted replies. Several make a panel.",
            show_default="the server at --base-url",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="An OpenAI-compatible server, such as serve/judge.py starts.", show_default=DEFAULT_URL),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for.", show_default="the server's first")] = None,
    name: Annotated[
        str | None, typer.Option(help="The judge's name in the records.", show_default="the model's")
    ] = None,
    aggregate: Annotated[str, typer.Option(help="How a panel's scores become one: mean, median or majority.")] = "mean",
    questions: Annotated[
        Path | None, typer.Option(help="AlignMMBench questions; RESPONSES then holds question_id/predict lines.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="Name of the model that gave the responses.", show_default="the file's stem")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Judging prompt (critic/prompts/).")] = "pointwise",
    score: Annotated[
        str, typer.Option(help="What counts as the score: expected, median or argmax of the rating distribution.")
    ] = "expected",
    no_reason: Annotated[
        bool, typer.Option("--no-reason", help="Ask for the rating alone: the same scores, several times as fast.")
    ] = False,
    samples: Annotated[int, typer.Option(min=1, help="Verdicts drawn for each response, pooled.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature.", show_default="0, with --samples 1")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is sampled.")] = 0,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Responses judged at once.", show_default="32; in this process 256")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=8, help="Longest reply, in tokens.")] = 256,
    max_failed: Annotated[float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share failed.")] = 0.02,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Judge again what failed in an earlier run.")
    ] = False,
    check_repeat: Annotated[
        int, typer.Option(min=0, help="Judge this many again in another order and say how many ratings changed.")
    ] = 0,
    attempts: Annotated[int, typer.Option(min=1, help="Tries for each request.")] = 5,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request counts as lost.")] = 300.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's API key.", show_default=False)
    ] = None,
) -> int:
    """Score responses 1..10 with a judge: a served one, a checkpoint in this process, or a panel."""
    for option, value, choices in (("score", score, rating.SCORE_KINDS), ("aggregate", aggregate, rating.AGGREGATES)):
        if value not in choices:
            raise UsageError(f"--{option} must be one of {', '.join(choices)}, got {value!r}")
    if judge and base_url:
        raise UsageError("give either --judge or --base-url; a URL is a --judge, too")
    decoding = _decoding(prompt, samples, temperature, seed, no_reason)
    wanted = _responses(responses, questions, system)

    def connect(url: str) -> OpenAIBackend:
        return OpenAIBackend(url, api_key=api_key, timeout=timeout, attempts=attempts, connections=concurrency or 32)

    if not judge:
        served = connect(base_url or DEFAULT_URL)
        served.choose(model)
        backends: list[Backend] = [served]
    else:
        backends = [_backend(one, connect, model, vllm_options or []) for one in judge]
    if vllm_options and not any(isinstance(backend, VllmBackend) for backend in backends):
        raise UsageError(f"{' '.join(vllm_options)}: options of vLLM need a --judge that is a checkpoint folder")
    alone = len(backends) == 1
    judges = [
        Judge(backend, (name if alone else None) or backend.served.name, prompt, score, max_tokens, decoding)
        for backend in backends
    ]
    source = {"file": str(responses), "sha256": jsonl.sha256(responses)} if responses.is_file() else str(responses)
    settings = _Settings(
        source=source,
        concurrency=concurrency,
        max_failed=max_failed,
        retry_failed=retry_failed,
        check_repeat=check_repeat,
    )
    if alone:
        return _complete(judges[0], wanted, out, settings)
    return _panel(judges, aggregate, name, wanted, out, settings)


def _finish(out: Path, facts: dict[str, Any], failures: Counter[str], max_failed: float) -> int:
    """Write the sidecar, say what happened, and give the exit code: 3 when too many failed."""
    rows = prompt_tokens = cached_tokens = completion_tokens = 0
    shortened: Counter[str] = Counter()
    for _, judgment in jsonl.read(out, Judgment):
        rows += 1
        prompt_tokens += judgment.prompt_tokens
        cached_tokens += judgment.cached_tokens
        completion_tokens += judgment.completion_tokens
        shortened.update(list(judgment.shortened))
    if facts["judged_in_this_run"] or "judged_again" in facts or not jsonl.sidecar(out).is_file():
        tokens = {"prompt": prompt_tokens, "cached": cached_tokens, "completion": completion_tokens}
        counts = {"rows": rows, "failed": dict(failures), "shortened_rows": dict(shortened), "tokens": tokens}
        with _writing(out):
            jsonl.write_sidecar(out, {**facts, **counts})
    failed = failures.total()
    print(f"{out}: {rows} judged, {failed} failed" + (f" ({_listed(failures)})" if failed else ""))
    if shortened:
        print(f"prompts shortened to fit: {_listed(shortened)}")
    if failed > max_failed * rows:
        print(f"more than {max_failed:.0%} failed; --retry-failed judges them again", file=sys.stderr)
        return 3
    return 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
