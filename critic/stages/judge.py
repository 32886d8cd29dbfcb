"""critic judge: responses -> judgments, by one judge or a panel.

critic judge test.jsonl --out judged.jsonl --base-url http://127.0.0.1:8000/v1
critic judge test.jsonl --out judged.jsonl --judge runs/demo/judge --judge http://127.0.0.1:8000/v1#gpt-4
critic judge replies.jsonl --benchmark convbench --out judged.jsonl     # what critic infer wrote, by protocol
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from tqdm import tqdm

from critic import human_scored, jsonl
from critic.asking import prompt_files, rating
from critic.asking.examples import verdict_keys
from critic.asking.judge import Judge, panel_judgment
from critic.asking.packs import open_pack
from critic.asking.prompt import load, require_ten
from critic.benchmarks import BENCHMARKS, alignmmbench
from critic.errors import UsageError
from critic.records import GREEDY, Decoding, Judgment, Order, Response, Setup
from critic.stages import judge_conversations
from critic.stages.options import Endpoint
from critic.stages.run import Writer, listed, side_by_side, writing

WINDOW = 4096
"""Responses that are put in order at once, so that those whose prompts begin alike are judged one after another."""

DEFAULT_URL = "http://127.0.0.1:8000/v1"


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


class Rows:
    """Human-scored rows of a file or folder, read anew each time they are gone through: only their ids are in memory.
    All are checked when it is made; raises UsageError for a mistake in one, or when none is usable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        left_out: Counter[str] = Counter()
        self._count = sum(1 for _ in human_scored.walk(path, left_out))
        for reason, count in left_out.most_common():
            print(f"left out {count} rows: {reason}", file=sys.stderr)
        if not self._count:
            raise UsageError(f"{path}: no usable row to judge")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Response]:
        return (response for _, _, response in human_scored.walk(self._path, Counter()))


def in_order(responses: Iterable[Response], window: int) -> Iterator[Response]:
    """The same responses, those whose prompts begin alike side by side: language (the rubric), task (its rules),
    question. Only `window` of them are held at a time."""
    waiting = iter(responses)
    while part := list(islice(waiting, window)):
        part.sort(key=lambda one: (one.question.lang, one.question.task, one.question.id))
        yield from part


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
    with Writer(out) as file, tqdm(total=total, desc="judge", unit="row") as bar:
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

            await side_by_side(work() for _ in range(min(concurrency, total)))
            if settings.check_repeat:
                return await _judged_again(judge, out, settings.check_repeat, concurrency)
    return None


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

    await side_by_side(work() for _ in range(concurrency))
    pairs = [(line, after[name]) for name, line in before.items()]
    moves = [abs(one.score - other.score) for one, other in pairs if one.score is not None and other.score is not None]
    return {
        "rows": len(pairs),
        "ratings_changed": sum(one.verdict.rating != other.verdict.rating for one, other in pairs),
        "replies_changed": sum(one.reply != other.reply for one, other in pairs),
        "largest_move_of_a_score": max(moves, default=0.0),
    }


def _complete(judge: Judge, responses: Rows | list[Response], out: Path, settings: _Settings) -> int:
    """Judge what `out` lacks; the exit code. Raises UsageError for what the caller has to mend."""
    ids = {response.id for response in responses}
    done, failures = _already_judged(out, judge.origin(), ids)
    if settings.retry_failed and failures:
        with writing(out):
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
    judges: Sequence[Judge],
    how: str,
    name: str | None,
    responses: Rows | list[Response],
    out: Path,
    settings: _Settings,
) -> int:
    """Each judge's judgments in a file beside `out` (`NAME.1.jsonl`, …), then the panel's in `out`."""
    panel = name or f"{how}({', '.join(judge.name for judge in judges)})"
    _already_judged(out, {**judges[0].origin(), "judge": panel}, {response.id for response in responses})
    files = [out.with_name(f"{out.stem}.{number}{out.suffix}") for number in range(1, len(judges) + 1)]
    for judge, file in zip(judges, files, strict=True):
        _complete(judge, responses, file, settings)
    failures: Counter[str] = Counter()
    with writing(out):
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


def _responses(path: Path, questions: Path | None, system: str | None) -> Rows | list[Response]:
    if questions is not None:
        return alignmmbench.read_responses(path, alignmmbench.read_questions(questions), system)
    return Rows(path)


def _decoding(prompt: str, samples: int, temperature: float | None, seed: int, no_reason: bool) -> Decoding:
    require_ten(prompt)
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


def _refuse(where: str, **given: object) -> None:
    """Raises UsageError for options that do not go together."""
    for option, value in given.items():
        if value:
            raise UsageError(f"{_NAMES.get(option, '--' + option)} cannot be used {where}")


_NAMES = {"judge_panel": "several --judge", "check_repeat": "--check-repeat"}
_NAMES |= {"reference_free": "--reference-free", "no_extraction": "--no-extraction"}


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
        Path | None,
        typer.Option(
            help="AlignMMBench questions; RESPONSES then holds question_id/predict lines. With --benchmark its file, "
            "which the replies are checked against."
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            help=f"RESPONSES are replies to a benchmark's conversations (critic infer): {', '.join(BENCHMARKS)}."
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="How conversations are judged: pointwise, direct, pairwise, checklist, quality; several are judged "
            "together.",
            show_default="the benchmark's own",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another model's replies: pairwise against them.", show_default="against the reference"),
    ] = None,
    reference_free: Annotated[
        bool, typer.Option("--reference-free", help="Compare two models without showing the reference.")
    ] = False,
    order: Annotated[
        str,
        typer.Option(
            help="Two answers: both orders (verdicts that differ are a tie), random, or forced (random, no ties)."
        ),
    ] = "both",
    judging: Annotated[
        list[str] | None,
        typer.Option(
            help="ConvBench's ablations beside the usual judging: no_focus, no_turn_verdicts.", show_default="standard"
        ),
    ] = None,
    no_extraction: Annotated[
        bool, typer.Option("--no-extraction", help="Do not ask again for a verdict that cannot be read.")
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="Name of the model that gave the responses.", show_default="the file's stem")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Judging prompt (critic/prompts/).")] = "pointwise",
    prompt_pack: Annotated[
        Path | None,
        typer.Option(help="A folder of prompt files (critic pack) that stand in for ours.", show_default="our prompts"),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="What counts as the score: expected, median or argmax of the rating distribution.",
            show_default="expected; argmax with --benchmark, whose ratings are whole numbers",
        ),
    ] = None,
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
    """Score responses with a judge: a served one, a checkpoint in this process, or a panel. Conversations are judged
    by protocol (--benchmark), by one judge."""
    score = score or ("argmax" if benchmark else "expected")
    for option, value, choices in (("score", score, rating.SCORE_KINDS), ("aggregate", aggregate, rating.AGGREGATES)):
        if value not in choices:
            raise UsageError(f"--{option} must be one of {', '.join(choices)}, got {value!r}")
    if judge and base_url:
        raise UsageError("give either --judge or --base-url; a URL is a --judge, too")
    pack = None if prompt_pack is None else open_pack(prompt_pack)
    if pack is not None and prompt_files.has(pack, prompt):
        prompt = f"{pack}/{prompt}"
    elif pack is not None and benchmark is None:
        raise UsageError(f"--prompt-pack {prompt_pack} says nothing of the prompt {prompt}")
    decoding = _decoding(prompt, samples, temperature, seed, no_reason)
    talks = None
    if benchmark is not None:
        talks = judge_conversations.Options(
            replies=responses,
            out=out,
            benchmark=benchmark,
            questions=questions,
            against=against,
            protocols=protocol or [],
            judgings=list(dict.fromkeys(judging or ["standard"])),
            concurrency=concurrency,
            max_failed=max_failed,
            retry_failed=retry_failed,
        )
        judge_conversations.check(talks, order)
        _refuse("with --benchmark", judge_panel=len(judge or []) > 1, check_repeat=check_repeat > 0, system=system)
    else:
        _refuse("without --benchmark", protocol=protocol, against=against, judging=judging, order=order != "both")
        _refuse("without --benchmark", reference_free=reference_free, no_extraction=no_extraction)
    wanted = [] if talks is not None else _responses(responses, questions, system)

    backends = Endpoint(
        model=model,
        base_url=base_url or DEFAULT_URL,
        api_key=api_key,
        timeout=timeout,
        attempts=attempts,
        concurrency=concurrency,
        vllm_options=vllm_options or (),
    ).open("--judge", judge or [])
    if talks is not None:
        setup = Setup(
            judge=name or backends[0].served.name,
            score_kind=score,
            order=msgspec.convert(order, Order),
            seed=seed if order != "both" else 0,
            extraction=not no_extraction,
            reference_backed=not reference_free,
            pointwise_prompt=prompt,
            decoding=decoding,
            pack=pack,
        )
        return judge_conversations.judge_file(talks, backends[0], setup, max_tokens)
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
        with writing(out):
            jsonl.write_sidecar(out, {**facts, **counts})
    failed = failures.total()
    print(f"{out}: {rows} judged, {failed} failed" + (f" ({listed(failures)})" if failed else ""))
    if shortened:
        print(f"prompts shortened to fit: {listed(shortened)}")
    if failed > max_failed * rows:
        print(f"more than {max_failed:.0%} failed; --retry-failed judges them again", file=sys.stderr)
        return 3
    return 0
