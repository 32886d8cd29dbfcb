"""critic infer: a benchmark's conversations -> a model's replies, turn by turn, under one or more conditions.

critic infer convbench.csv --benchmark convbench --out replies.jsonl --model runs/vlm --condition own
critic infer questions.jsonl --benchmark alignmmbench --out replies.jsonl --base-url http://127.0.0.1:8000/v1
"""

import asyncio
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from tqdm import tqdm

from critic import benchmarks, jsonl
from critic.asking.history import (
    CONDITIONS,
    Condition,
    Said,
    call_id,
    exchanges,
    messages,
    missing_reference,
    without_oldest,
)
from critic.backends import Backend, ChatMessage, Reply, Request
from critic.backends.openai import OpenAIBackend
from critic.backends.vllm import VllmBackend
from critic.errors import Refused, Transient, UsageError
from critic.images import MAX_BYTES, Image, ImageError, Images, named_images
from critic.records import OVERFLOWS, Conversation, ModelTurn, Sampling, Seen, SeenImage, TurnFailure
from critic.stages import usage
from critic.stages.run import Writer, open_backend, side_by_side, writing
from critic.stages.usage import Totals


class _Talk:
    """One conversation while it runs: each of its prompts is generated once, each of its images read once."""

    def __init__(self, conversation: Conversation, known: Iterable[ModelTurn]) -> None:
        self.conversation = conversation
        self.known = {(line.condition, line.turn): line for line in known}
        self._calls: dict[str, Awaitable[ModelTurn]] = {}
        self._images: dict[str, asyncio.Task[Image]] = {}
        for line in self.known.values():
            if line.call is not None:
                done = asyncio.get_running_loop().create_future()
                done.set_result(line)
                self._calls[line.call] = done

    async def once(self, call: str, generate: Callable[[], Coroutine[Any, Any, ModelTurn]]) -> ModelTurn:
        if call not in self._calls:
            self._calls[call] = asyncio.create_task(generate())
        return await self._calls[call]

    async def image(self, name: str, load: Callable[[str], Image]) -> Image:
        if name not in self._images:
            self._images[name] = asyncio.create_task(asyncio.to_thread(load, name))
        return await self._images[name]


class Runner:
    """A model, the conditions it is run under, and how its prompts are made and its replies drawn.

    At most `concurrency` requests are under way at once. `load` gives an image by its name.
    """

    def __init__(
        self,
        backend: Backend,
        system: str,
        conditions: Sequence[str],
        sampling: Sampling,
        load: Callable[[str], Image],
        concurrency: int,
    ) -> None:
        self.backend, self.system, self.conditions = backend, system, conditions
        self.sampling, self.load, self.concurrency = sampling, load, concurrency
        self._gate = asyncio.Semaphore(concurrency)
        self._lost_in_a_row = 0

    async def converse(
        self, conversation: Conversation, known: Iterable[ModelTurn], keep: Callable[[ModelTurn], None]
    ) -> None:
        """Every turn under every condition that is not `known` yet; each is given to `keep` once it is there.

        Raises UsageError where known turns were asked something else, or where the server seems to be gone.
        """
        talk = _Talk(conversation, known)
        await side_by_side(self._turns(talk, name, keep) for name in self.conditions)

    async def _turns(self, talk: _Talk, name: str, keep: Callable[[ModelTurn], None]) -> None:
        condition, conversation = CONDITIONS[name], talk.conversation
        replies: dict[int, str] = {}
        ended: str | None = None
        for turn in condition.asked(len(conversation.turns)):
            line = talk.known.get((name, turn))
            if ended is not None:
                if line is None:
                    keep(self._record(conversation, condition=name, turn=turn, failure="not_run", detail=ended))
                continue
            said = messages(conversation, turn, replies, condition)
            call = call_id(conversation, said)
            if line is None:
                made = await talk.once(call, partial(self._answer, talk, said, call))
                line = msgspec.structs.replace(made, condition=name, turn=turn)
                keep(line)
            elif line.call != call:
                raise UsageError(f"{conversation.id}: turn {turn} ({name}) was asked otherwise; choose another --out")
            if line.failure is not None:
                ended = f"turn {turn} failed: {line.failure}"
            else:
                assert line.reply is not None
                replies[turn] = line.reply

    def _record(self, conversation: Conversation, **fields: Any) -> ModelTurn:
        made = {"condition": "", "turn": 0, **fields}
        return ModelTurn(conversation=conversation, system=self.system, sampling=self.sampling, **made)

    async def _answer(self, talk: _Talk, said: Sequence[Said], call: str) -> ModelTurn:
        """The reply to these messages, or why there is none; condition and turn are left to be filled in."""
        record = self._record(talk.conversation, call=call)
        try:
            images = {name: await talk.image(name, self.load) for one in said for name in one.images}
        except ImageError as error:
            return msgspec.structs.replace(record, failure=error.failure, detail=str(error))
        dropped, tries = 0, list[ModelTurn]()
        while True:
            tries.append(await self._ask(record, without_oldest(said, dropped), images, call))
            fits = tries[-1].failure != "context_length_exceeded"
            if fits or self.sampling.overflow == "fail" or dropped == exchanges(said):
                return _summed(tries, dropped)
            dropped += 1

    async def _ask(self, record: ModelTurn, said: Sequence[Said], images: Mapping[str, Image], call: str) -> ModelTurn:
        seen = [_seen(one, images) for one in said]
        sampled = self.sampling.temperature > 0
        request = Request(
            messages=[_sent(one, images) for one in said],
            max_tokens=self.sampling.max_tokens,
            temperature=self.sampling.temperature,
            seed=_seed(self.sampling.seed, call) if sampled else None,
        )
        async with self._gate:
            start = time.monotonic()
            try:
                reply = await self.backend.chat(request)
            except Transient as error:
                self._lost(str(error))
                return msgspec.structs.replace(record, seen=seen, failure="server_error", detail=str(error))
            except Refused as error:
                return msgspec.structs.replace(record, seen=seen, failure=error.failure, detail=str(error))
            seconds = time.monotonic() - start
        self._lost_in_a_row = 0
        failure, detail = self._problem(reply)
        return msgspec.structs.replace(
            record,
            seen=seen,
            reply=reply.text if failure is None else None,
            finish="length" if reply.truncated else reply.finish,
            failure=failure,
            detail=detail,
            prompt_tokens=reply.prompt_tokens or None,
            cached_tokens=reply.cached_tokens if reply.prompt_tokens and reply.cached_known else None,
            completion_tokens=reply.completion_tokens if reply.prompt_tokens else None,
            seconds=round(seconds, 4),
            attempts=reply.attempts,
        )

    def _problem(self, reply: Reply) -> tuple[TurnFailure | None, str | None]:
        """Why a reply cannot be used: it says nothing, or the context ended before it did."""
        context, used = self.backend.served.context, reply.prompt_tokens + reply.completion_tokens
        if reply.truncated and reply.completion_tokens < self.sampling.max_tokens and context and used >= context:
            return "context_length_exceeded", f"the reply was cut at the end of the context of {context} tokens"
        if reply.text.strip():
            return None, None
        if reply.finish == "content_filter":
            return "refused", "the server's content filter ended the reply"
        return "empty", None

    def _lost(self, detail: str) -> None:
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= 2 * self.concurrency:
            raise UsageError(
                f"{self.backend.place} failed {self._lost_in_a_row} turns in a row ({detail}); "
                f"see to the server, then run again with --retry-failed"
            )


def _seen(said: Said, images: Mapping[str, Image]) -> Seen:
    shown = [SeenImage(path=name, sha256=images[name].sha256, resized=images[name].resized) for name in said.images]
    return Seen(role=said.role, content=said.content, images=shown)


def _sent(said: Said, images: Mapping[str, Image]) -> ChatMessage:
    if not said.images:
        return {"role": said.role, "content": said.content}
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": images[name].uri}} for name in said.images
    ]
    return {"role": said.role, "content": [*parts, {"type": "text", "text": said.content}]}


def _seed(seed: int, call: str) -> int:
    """A seed of its own for each prompt, the same in every run."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{call}".encode()).digest()[:4], "big")


def _summed(tries: Sequence[ModelTurn], dropped: int) -> ModelTurn:
    """The last try, with the tokens and seconds of all."""

    def total(counts: Iterable[int | None]) -> int | None:
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    return msgspec.structs.replace(
        tries[-1],
        dropped=dropped,
        prompt_tokens=total(one.prompt_tokens for one in tries),
        cached_tokens=total(one.cached_tokens for one in tries),
        completion_tokens=total(one.completion_tokens for one in tries),
        seconds=round(sum(one.seconds for one in tries), 4),
    )


def _check(file: Path, conversations: Sequence[Conversation], names: Sequence[str]) -> None:
    """Raises UsageError for a condition that is unknown, asks nothing, or shows a reference that is not there."""
    for name in names:
        condition = CONDITIONS.get(name)
        if condition is None:
            raise UsageError(f"--condition {name}: unknown; choose {', '.join(CONDITIONS)}")
        if not any(condition.asked(len(one.turns)) for one in conversations):
            longest = max(len(one.turns) for one in conversations)
            raise UsageError(f"--condition {name} asks nothing: the longest conversation of {file} has {longest} turns")
        for one in conversations:
            if (turn := missing_reference(one, condition)) is not None:
                raise UsageError(f"{file}: {one.id}: turn {turn} has no reference, and --condition {name} shows it")


def _known(
    out: Path, conversations: Sequence[Conversation], names: Sequence[str], origin: dict[str, Any]
) -> dict[str, list[ModelTurn]]:
    """The turns that are in `out` already, by conversation. Raises UsageError if they were made otherwise."""
    found: dict[str, list[ModelTurn]] = {}
    jsonl.repair(out)
    if not out.is_file() or out.stat().st_size == 0:
        return found
    by_id = {one.id: one for one in conversations}
    for number, line in jsonl.read(out, ModelTurn):
        problem = None
        for name, value in origin.items():
            if getattr(line, name) != value:
                problem = f"made with {name} {_shown(getattr(line, name))}, now {_shown(value)}"
        if line.condition not in names:
            problem = f"made under --condition {line.condition}, which is not asked for now"
        elif line.conversation.id not in by_id:
            problem = f"conversation {line.conversation.id!r} is not among those asked for now"
        elif line.conversation != by_id[line.conversation.id]:
            problem = f"conversation {line.conversation.id!r} reads otherwise now"
        if problem is not None:
            raise UsageError(f"{out}:{number}: {problem}; choose another --out")
        found.setdefault(line.conversation.id, []).append(line)
    return found


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def _wanted(conversation: Conversation, names: Sequence[str]) -> int:
    return sum(len(CONDITIONS[name].asked(len(conversation.turns))) for name in names)


async def _run(
    runner: Runner, conversations: Sequence[Conversation], known: dict[str, list[ModelTurn]], total: int, out: Path
) -> None:
    """Run what is not known, several conversations at a time; each turn is in the file once it is known."""
    waiting = iter(conversations)
    failures: Counter[str] = Counter()
    with Writer(out) as file, tqdm(total=total, desc="infer", unit="turn") as bar:
        async with runner.backend as backend:

            def keep(line: ModelTurn) -> None:
                file.append(line)
                if line.failure is not None:
                    failures[line.failure] += 1
                bar.set_postfix(failed=failures.total(), retries=backend.retries, refresh=False)
                bar.update()

            async def work() -> None:
                for conversation in waiting:
                    await runner.converse(conversation, known.get(conversation.id, []), keep)

            await side_by_side(work() for _ in range(min(runner.concurrency, len(conversations))))


def _finish(out: Path, facts: dict[str, Any], max_failed: float, table: Mapping[str, usage.Price]) -> int:
    """Write the sidecar, say what happened, and give the exit code: 3 when too many turns have no reply."""
    totals = Totals()
    for _, line in jsonl.read(out, ModelTurn):
        totals.add(line)
    if facts["turns_in_this_run"] or not jsonl.sidecar(out).is_file():
        with writing(out):
            jsonl.write_sidecar(out, {**facts, **totals.facts(), "costs": totals.costs(table)})
    print("\n".join([*totals.lines(table), f"{out}: {totals.counts['turns']} turns"]))
    if totals.failures.total() > max_failed * totals.counts["turns"]:
        print(f"more than {max_failed:.0%} of the turns have no reply; --retry-failed asks again", file=sys.stderr)
        return 3
    return 0


def _backend(
    model: str | None, base_url: str | None, connect: Callable[[str], OpenAIBackend], vllm_options: list[str]
) -> Backend:
    if base_url is not None:
        served = connect(base_url)
        served.choose(model)
        backend: Backend = served
    elif model is not None:
        backend = open_backend("--model", model, connect, None, vllm_options)
    else:
        raise UsageError("give --model FOLDER (vLLM in this process) or --base-url URL")
    if vllm_options and not isinstance(backend, VllmBackend):
        raise UsageError(f"{' '.join(vllm_options)}: options of vLLM need a --model that is a checkpoint folder")
    return backend


def _loader(
    conversations: Iterable[Conversation],
    conditions: Iterable[Condition],
    uris: Mapping[str, str],
    make: Callable[[], Images],
) -> Callable[[str], Image]:
    """What gives an image by name. Where none will be shown, neither Pillow nor a folder is needed."""
    shown = any(condition.images for condition in conditions)
    if not shown or not any(turn.images for one in conversations for turn in one.turns):

        def none(name: str) -> Image:
            raise ImageError("image_missing", name)

        return none
    images = make()
    return lambda name: images.load(name, uris.get(name))


def main(
    benchmark_file: Annotated[Path, typer.Argument(help="The benchmark's published file.")],
    benchmark: Annotated[str, typer.Option(help=f"Which one: {', '.join(benchmarks.BENCHMARKS)}.")],
    out: Annotated[Path, typer.Option(help="Where replies go (JSONL). Run again to resume.")],
    vllm_options: Annotated[
        list[str] | None, typer.Argument(help="Behind --: options passed to vLLM in this process.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A checkpoint folder (vLLM in this process), a JSONL file of scripted replies; with "
            "--base-url the model to ask for.",
            show_default="the server's first",
        ),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name in the records.", show_default="the model's own")
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            help="What of a conversation the model sees; several are run together. "
            + "; ".join(f"{name}: {one.help}" for name, one in CONDITIONS.items()),
            show_default="own",
        ),
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(help="The folder of the images; none is read outside it.", show_default="that of the file"),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests under way at once.", show_default="32; in this process 256")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply, in tokens.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of what is sampled.")] = 0,
    overflow: Annotated[
        str,
        typer.Option(
            help="A prompt that does not fit: fail (a named failure), or drop-oldest (whole earlier exchanges are left "
            "out until it fits, and counted; their images stay)."
        ),
    ] = "fail",
    max_image_pixels: Annotated[
        int | None, typer.Option(min=1, help="Make larger images smaller, to at most this many pixels.")
    ] = None,
    max_image_bytes: Annotated[int, typer.Option(min=1, help="Refuse larger image files.")] = MAX_BYTES,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first conversations.")] = None,
    max_failed: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share of the turns has no reply.")
    ] = 0.02,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again where an earlier run failed, and go on from there.")
    ] = False,
    price_file: Annotated[
        Path | None, typer.Option("--prices", help="Price lists (TOML, see critic/usage.py): what it would cost.")
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Tries for each request.")] = 5,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request counts as lost.")] = 300.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's API key.", show_default=False)
    ] = None,
) -> int:
    """Run a vision-language model through whole conversations, each turn on the history that a condition says."""
    if overflow not in OVERFLOWS:
        raise UsageError(f"--overflow must be one of {', '.join(OVERFLOWS)}, got {overflow!r}")
    table = usage.read_prices(price_file) if price_file is not None else {}
    names = list(dict.fromkeys(condition or ["own"]))
    conversations, uris = named_images(benchmarks.read(benchmark, benchmark_file)[:limit])
    _check(benchmark_file, conversations, names)
    root = data_root or benchmark_file.parent
    load = _loader(
        conversations,
        [CONDITIONS[one] for one in names],
        uris,
        lambda: Images(root, max_bytes=max_image_bytes, resize_to=max_image_pixels),
    )

    def connect(url: str) -> OpenAIBackend:
        return OpenAIBackend(url, api_key=api_key, timeout=timeout, attempts=attempts, connections=concurrency or 32)

    backend = _backend(model, base_url, connect, vllm_options or [])
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed if temperature else 0,
        overflow="fail" if overflow == "fail" else "drop-oldest",
        max_image_pixels=max_image_pixels,
    )
    runner = Runner(backend, name or backend.served.name, names, sampling, load, concurrency or backend.in_flight)
    turns, seconds = _complete(runner, conversations, out, retry_failed)
    facts = {
        "benchmark": benchmark,
        "conversations": {"file": str(benchmark_file), "count": len(conversations)},
        "data_root": str(root),
        "system": runner.system,
        "model": backend.served.name,
        "server": backend.place,
        "sampling": msgspec.to_builtins(sampling),
        "concurrency": runner.concurrency,
        "retries": backend.retries,
        "seconds": seconds,
        "turns_in_this_run": turns,
    }
    if benchmark_file.is_file():
        facts["conversations"]["sha256"] = jsonl.sha256(benchmark_file)
    return _finish(out, facts, max_failed, table)


def _complete(
    runner: Runner, conversations: Sequence[Conversation], out: Path, retry_failed: bool
) -> tuple[int, float]:
    """Run what `out` lacks: how many turns that were, and the seconds it took."""
    origin = {"system": runner.system, "sampling": runner.sampling}
    known = _known(out, conversations, runner.conditions, origin)
    if retry_failed and any(line.failure is not None for lines in known.values() for line in lines):
        with writing(out):
            jsonl.rewrite(out, ModelTurn, lambda line: line.failure is None)
        known = _known(out, conversations, runner.conditions, origin)
    todo = [one for one in conversations if len(known.get(one.id, [])) < _wanted(one, runner.conditions)]
    done = sum(map(len, known.values()))
    total = sum(_wanted(one, runner.conditions) for one in conversations) - done
    if done:
        print(f"{out}: {done} turns before, {total} to go", file=sys.stderr)
    start = time.monotonic()
    if todo:
        asyncio.run(_run(runner, todo, known, total, out))
    return total, round(time.monotonic() - start, 1)
