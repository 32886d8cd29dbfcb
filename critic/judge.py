"""critic judge: responses -> judgments, through a judge behind an OpenAI-compatible server.

critic judge test.jsonl --out judged.jsonl --base-url http://127.0.0.1:8000/v1
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from tqdm import tqdm

from critic import human_scored, jsonl, rating, verdict
from critic.backends import Reply, Request
from critic.backends.openai import OpenAIBackend, Served
from critic.benchmarks import alignmmbench
from critic.errors import Refused, Transient, UsageError
from critic.judge_prompt import VERDICT_SCHEMA, Fitted, fit, load, prompt_hash, render
from critic.records import Failure, Judgment, Response, Verdict

ALTERNATIVES = 20
"""Alternatives asked for each token: the most that OpenAI-compatible servers give by default."""

NEGLIGIBLE = 1e-4
"""Probability of a first "1" below which it is not worth asking whether a 0 follows."""


class Judge:
    """A judge model with one prompt and one way of scoring."""

    def __init__(self, backend: OpenAIBackend, name: str, prompt: str, score_kind: str, max_tokens: int) -> None:
        self.backend, self.name, self.prompt = backend, name, prompt
        self.score_kind, self.max_tokens = score_kind, max_tokens
        self.prompt_hash = prompt_hash(prompt)

    async def judge(self, response: Response) -> Judgment:
        """One judgment: a score, or a named failure. Never raises for what a server does."""
        try:
            return await self._judge(response)
        except Transient as error:
            return self._failed(response, "server_error", str(error))
        except Refused as error:
            return self._failed(response, error.failure, str(error))

    async def _judge(self, response: Response) -> Judgment:
        fitted, reply = await self._reply(response)
        if fitted is None or reply is None:
            return self._failed(response, "context_length_exceeded", "rubric and question alone do not fit")
        found = verdict.parse(reply.text, reply.truncated)
        follow_up: Reply | None = None
        probabilities: list[float] | None = None
        first = rating.first_digit(reply.tokens)
        if first is not None:
            ten_given_one = first.ten_given_one
            if ten_given_one is None and first.mass[0] < NEGLIGIBLE:
                ten_given_one = 0.0
            if ten_given_one is None and self._served.is_vllm:
                follow_up = await self._after_one(fitted, first.prefix)
                ten_given_one = rating.zero_share(follow_up.tokens[0]) if follow_up.tokens else None
            if ten_given_one is not None:
                probabilities = rating.distribution(first, ten_given_one)
        return self._judgment(response, fitted, reply, found, probabilities, follow_up)

    async def _reply(self, response: Response) -> tuple[Fitted | None, Reply | None]:
        """The judge's reply to the whole prompt or, where prompt and reply do not fit together, to one that fits.

        vLLM refuses a prompt longer than its context; one that only leaves too little room for the
        reply it answers with a reply cut short.
        """
        prompt, context = load(self.prompt, response.question.lang), self._served.context
        fitted: Fitted | None = Fitted(render(prompt, response), {})
        assert fitted is not None
        try:
            reply = await self.backend.chat(self._request(fitted))
            if context is None or reply.prompt_tokens + self.max_tokens <= context:
                return fitted, reply
        except Refused as error:
            if error.failure != "context_length_exceeded" or context is None:
                raise
        try:
            fitted = await asyncio.to_thread(
                fit, prompt, response, context - self.max_tokens, self.backend.count_tokens
            )
        except httpx.HTTPError as error:
            raise Refused("context_length_exceeded", f"too long, and no tokens can be counted: {error}") from None
        if fitted is None:
            return None, None
        return fitted, await self.backend.chat(self._request(fitted))

    def _request(self, fitted: Fitted) -> Request:
        alternatives = 0 if self.score_kind == "argmax" and not self._served.is_vllm else ALTERNATIVES
        return Request(
            messages=fitted.messages, max_tokens=self.max_tokens, schema=VERDICT_SCHEMA, top_logprobs=alternatives
        )

    async def _after_one(self, fitted: Fitted, prefix: str) -> Reply:
        messages = [*fitted.messages, {"role": "assistant", "content": prefix}]
        return await self.backend.chat(
            Request(messages=messages, max_tokens=1, regex="[0,].*", continue_final=True, top_logprobs=ALTERNATIVES)
        )

    @property
    def _served(self) -> Served:
        assert self.backend.served is not None
        return self.backend.served

    def _judgment(
        self,
        response: Response,
        fitted: Fitted,
        reply: Reply,
        found: Verdict,
        probabilities: list[float] | None,
        follow_up: Reply | None,
    ) -> Judgment:
        failure, score = found.failure, None
        if failure is None:
            if probabilities is not None:
                score = rating.score(probabilities, self.score_kind)
            elif self.score_kind == "argmax":
                score = found.rating
            else:
                failure = "no_distribution"
        calls = [reply, follow_up] if follow_up else [reply]
        return Judgment(
            response=response,
            **self._origin(),
            verdict=Verdict(rating=found.rating, reason=found.reason, failure=failure, distribution=probabilities),
            score=score,
            reply=reply.text,
            shortened=fitted.shortened,
            prompt_tokens=sum(call.prompt_tokens for call in calls),
            cached_tokens=sum(call.cached_tokens for call in calls),
            completion_tokens=sum(call.completion_tokens for call in calls),
            attempts=max(call.attempts for call in calls),
        )

    def _failed(self, response: Response, failure: Failure, detail: str) -> Judgment:
        return Judgment(response=response, **self._origin(), verdict=Verdict(failure=failure), detail=detail)

    def _origin(self) -> dict[str, Any]:
        return {
            "judge": self.name,
            "prompt": self.prompt,
            "prompt_hash": self.prompt_hash,
            "score_kind": self.score_kind,
        }


def _already_judged(out: Path, judge: Judge, wanted: set[str]) -> tuple[set[str], Counter[str]]:
    """Ids and failures of the judgments in `out`. Raises UsageError if another judge made them, or
    if they judge other responses."""
    done: set[str] = set()
    failures: Counter[str] = Counter()
    jsonl.repair(out)
    if not out.is_file() or out.stat().st_size == 0:
        return done, failures
    ours = judge._origin()
    for number, line in jsonl.read(out, Judgment):
        for name, value in ours.items():
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


async def _run(judge: Judge, responses: list[Response], out: Path, concurrency: int, failures: Counter[str]) -> None:
    """Judge all responses, `concurrency` at a time; each judgment is in the file once it is known."""
    waiting: Iterator[Response] = iter(responses)
    async with judge.backend:
        with jsonl.Appender(out) as file, tqdm(total=len(responses), desc="judge", unit="row") as bar:
            lost_in_a_row = 0

            async def work() -> None:
                nonlocal lost_in_a_row
                for response in waiting:
                    judgment = await judge.judge(response)
                    lost_in_a_row = lost_in_a_row + 1 if judgment.verdict.failure == "server_error" else 0
                    file.append(judgment)
                    if judgment.verdict.failure:
                        failures[judgment.verdict.failure] += 1
                    bar.set_postfix(failed=failures.total(), retries=judge.backend.retries, refresh=False)
                    bar.update()
                    if lost_in_a_row >= 2 * concurrency:
                        raise UsageError(
                            f"{judge.backend.root} failed {lost_in_a_row} rows in a row ({judgment.detail}); "
                            f"see to the server, then run again with --retry-failed"
                        )

            tasks = [asyncio.create_task(work()) for _ in range(min(concurrency, len(responses)))]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()


def _responses(path: Path, questions: Path | None, system: str | None) -> list[Response]:
    if questions is not None:
        return alignmmbench.read_responses(path, alignmmbench.read_questions(questions), system)
    loaded = human_scored.load(path)
    for reason, count in loaded.left_out.most_common():
        print(f"left out {count} rows: {reason}", file=sys.stderr)
    if not loaded.responses:
        raise UsageError(f"{path}: no usable row to judge")
    return loaded.responses


def main(
    responses: Annotated[
        Path,
        typer.Argument(help="Human-scored rows (JSONL, CSV, a folder), or a benchmark's responses with --questions."),
    ],
    out: Annotated[Path, typer.Option(help="Where judgments go (JSONL). Run again to resume.")],
    base_url: Annotated[
        str, typer.Option(help="An OpenAI-compatible server, such as serve/judge.py starts.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[str | None, typer.Option(help="The model to ask for.", show_default="the server's first")] = None,
    name: Annotated[
        str | None, typer.Option(help="The judge's name in the records.", show_default="the model's")
    ] = None,
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
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 32,
    max_tokens: Annotated[int, typer.Option(min=8, help="Longest reply, in tokens.")] = 256,
    max_failed: Annotated[float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share failed.")] = 0.02,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Judge again what failed in an earlier run.")
    ] = False,
    attempts: Annotated[int, typer.Option(min=1, help="Tries for each request.")] = 5,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request counts as lost.")] = 300.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's API key.", show_default=False)
    ] = None,
) -> int:
    """Score responses 1..10 with a judge behind an OpenAI-compatible server."""
    if score not in rating.SCORE_KINDS:
        raise UsageError(f"--score must be one of {', '.join(rating.SCORE_KINDS)}, got {score!r}")
    wanted = _responses(responses, questions, system)
    backend = OpenAIBackend(base_url, api_key=api_key, timeout=timeout, attempts=attempts, connections=concurrency)
    served = backend.choose(model)
    judge = Judge(backend, name or served.name, prompt, score, max_tokens)
    ids = {response.id for response in wanted}
    done, failures = _already_judged(out, judge, ids)
    if retry_failed and failures:
        jsonl.rewrite(out, Judgment, lambda line: line.verdict.failure is None)
        done, failures = _already_judged(out, judge, ids)
    todo = [response for response in wanted if response.id not in done]
    if done:
        print(f"{out}: {len(done)} judged before, {len(todo)} to go", file=sys.stderr)
    start = time.monotonic()
    asyncio.run(_run(judge, todo, out, concurrency, failures))
    facts = {
        "responses": {"file": str(responses), "sha256": jsonl.sha256(responses)}
        if responses.is_file()
        else str(responses),
        "judge": judge.name,
        "model": served.name,
        "server": backend.root,
        "prompt": {"name": prompt, "hash": judge.prompt_hash},
        "sampling": {"temperature": 0.0, "max_tokens": max_tokens, "constrained": "json_schema", "score": score},
        "seconds": round(time.monotonic() - start, 1),
        "judged_in_this_run": len(todo),
    }
    return _finish(out, facts, failures, max_failed)


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
    if facts["judged_in_this_run"] or not jsonl.sidecar(out).is_file():
        jsonl.write_sidecar(
            out,
            {
                **facts,
                "rows": rows,
                "failed": dict(failures),
                "shortened_rows": dict(shortened),
                "tokens": {"prompt": prompt_tokens, "cached": cached_tokens, "completion": completion_tokens},
            },
        )
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
