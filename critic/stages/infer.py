"""critic infer: a benchmark's conversations -> a model's replies, turn by turn, under one or more conditions.

critic infer convbench.csv --benchmark convbench --out replies.jsonl --model runs/vlm --condition own
critic infer questions.jsonl --benchmark alignmmbench --out replies.jsonl --base-url http://127.0.0.1:8000/v1
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from critic import benchmarks, jsonl
from critic.asking.history import (
    CONDITIONS,
    Condition,
    HistoryMessage,
    call_id,
    exchanges,
    messages,
    missing_reference,
    without_oldest,
)
from critic.backends import ATTEMPTS, TIMEOUT, Backend, ChatMessage, Reply, Request
from critic.errors import Refused, Transient, UsageError
from critic.images import MAX_BYTES, Image, ImageError, Images, named_images
from critic.records import Conversation, ModelTurn, Overflow, Sampling, SentImage, SentMessage, TurnFailure
from critic.stages import options, usage
from critic.stages.options import (
    MAX_FAILED,
    ApiKey,
    Attempts,
    BaseUrl,
    Endpoint,
    Seed,
    Temperature,
    Timeout,
    VllmOptions,
)
from critic.stages.run import Outage, RunOptions, Stage, side_by_side


class _ConversationRun:
    """One conversation while it runs: each of its prompts is generated once, each of its images read once."""

    def __init__(self, conversation: Conversation, known: Iterable[ModelTurn]) -> None:
        self.conversation = conversation
        self.known = {(line.condition, line.turn): line for line in known}
        self._calls: dict[str, Awaitable[ModelTurn]] = {}
        self._images: dict[str, asyncio.Task[Image]] = {}
        # What an earlier run generated under one condition is the reply under every other that shows the same.
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
        self._outage = Outage(backend, concurrency, "turns")

    async def converse(
        self, conversation: Conversation, known: Iterable[ModelTurn], keep: Callable[[ModelTurn], None]
    ) -> None:
        """Every turn under every condition that is not `known` yet; each is given to `keep` once it is there.

        Raises UsageError where known turns were asked something else, or where the server seems to be gone.
        """
        running = _ConversationRun(conversation, known)
        await side_by_side(self._turns(running, name, keep) for name in self.conditions)

    async def _turns(self, running: _ConversationRun, name: str, keep: Callable[[ModelTurn], None]) -> None:
        condition, conversation = CONDITIONS[name], running.conversation
        replies: dict[int, str] = {}
        ended: str | None = None
        for turn in condition.asked(len(conversation.turns)):
            line = running.known.get((name, turn))
            if ended is not None:
                if line is None:
                    keep(self._record(conversation, condition=name, turn=turn, failure="not_run", detail=ended))
                continue
            said = messages(conversation, turn, replies, condition)
            call = call_id(conversation, said)
            if line is None:
                made = await running.once(call, partial(self._answer, running, said, call))
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

    async def _answer(self, running: _ConversationRun, said: Sequence[HistoryMessage], call: str) -> ModelTurn:
        """The reply to these messages, or why there is none; condition and turn are left to be filled in."""
        record = self._record(running.conversation, call=call)
        try:
            images = {name: await running.image(name, self.load) for one in said for name in one.images}
        except ImageError as error:
            return msgspec.structs.replace(record, failure=error.failure, detail=str(error))
        dropped, tries = 0, list[ModelTurn]()
        while True:
            tries.append(await self._ask(record, without_oldest(said, dropped), images, call))
            fits = tries[-1].failure != "context_length_exceeded"
            if fits or self.sampling.overflow == "fail" or dropped == exchanges(said):
                return _summed(tries, dropped)
            dropped += 1

    async def _ask(
        self, record: ModelTurn, said: Sequence[HistoryMessage], images: Mapping[str, Image], call: str
    ) -> ModelTurn:
        seen = [_recorded(one, images) for one in said]
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
                self._outage.note("server_error", str(error))
                return msgspec.structs.replace(record, seen=seen, failure="server_error", detail=str(error))
            except Refused as error:
                self._outage.note(error.failure)
                return msgspec.structs.replace(record, seen=seen, failure=error.failure, detail=str(error))
            seconds = time.monotonic() - start
        self._outage.note(None)
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


def _recorded(said: HistoryMessage, images: Mapping[str, Image]) -> SentMessage:
    shown = [SentImage(path=name, sha256=images[name].sha256, resized=images[name].resized) for name in said.images]
    return SentMessage(role=said.role, content=said.content, images=shown)


def _sent(said: HistoryMessage, images: Mapping[str, Image]) -> ChatMessage:
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
    options.check_choices("condition", names, CONDITIONS)
    for name in names:
        condition = CONDITIONS[name]
        if not any(condition.asked(len(one.turns)) for one in conversations):
            longest = max(len(one.turns) for one in conversations)
            raise UsageError(f"--condition {name} asks nothing: the longest conversation of {file} has {longest} turns")
        for one in conversations:
            if (turn := missing_reference(one, condition)) is not None:
                raise UsageError(f"{file}: {one.id}: turn {turn} has no reference, and --condition {name} shows it")


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


class Infer(Stage[Conversation, ModelTurn]):
    """The turns of conversations under conditions. `source` says in the sidecar where the conversations are from."""

    name, unit, counted = "infer", "turn", "turns"
    too_many = "of the turns have no reply; --retry-failed asks again"

    def __init__(
        self,
        options: RunOptions,
        runner: Runner,
        conversations: Sequence[Conversation],
        source: Mapping[str, Any],
        prices: Mapping[str, usage.Price],
    ) -> None:
        super().__init__(options, ModelTurn, runner.backend)
        self._runner, self._source, self._prices = runner, source, prices
        self._conversations = {one.id: one for one in conversations}
        self._known: dict[str, list[ModelTurn]] = {}

    def problem(self, record: ModelTurn) -> str | None:
        runner, one = self._runner, self._conversations.get(record.conversation.id)
        if record.condition not in runner.conditions:
            wrong = f"made under --condition {record.condition}, which is not asked for now"
        elif one is None:
            wrong = f"conversation {record.conversation.id!r} is not among those asked for now"
        elif record.conversation != one:
            wrong = f"conversation {record.conversation.id!r} reads otherwise now"
        elif record.sampling != runner.sampling:
            wrong = f"made with sampling {_shown(record.sampling)}, now {_shown(runner.sampling)}"
        elif record.system != runner.system:
            wrong = f"made with system {_shown(record.system)}, now {_shown(runner.system)}"
        else:
            return None
        return f"{wrong}; choose another --out"

    def failure(self, record: ModelTurn) -> str | None:
        return record.failure

    def know(self, record: ModelTurn) -> None:
        self._known.setdefault(record.conversation.id, []).append(record)

    def left(self) -> int:
        return sum(map(self._lacking, self._conversations.values()))

    def items(self) -> Iterable[Conversation]:
        return (one for one in self._conversations.values() if self._lacking(one))

    def _lacking(self, one: Conversation) -> int:
        """How many turns of a conversation are not known."""
        asked = sum(len(CONDITIONS[name].asked(len(one.turns))) for name in self._runner.conditions)
        return asked - len(self._known.get(one.id, []))

    async def work(self, item: Conversation, keep: Callable[..., None]) -> None:
        await self._runner.converse(item, self._known.get(item.id, []), keep)

    def facts(self) -> dict[str, Any]:
        return {
            **self._source,
            "system": self._runner.system,
            "model": self.backend.served.name,
            "server": self.backend.place,
            "sampling": msgspec.to_builtins(self._runner.sampling),
            "concurrency": self.concurrency,
        }

    def tally(self) -> usage.Totals:
        return usage.Totals(self.out, self._prices)


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


Model = Annotated[
    str | None,
    typer.Option(
        help="A checkpoint folder (vLLM in this process), a JSONL file of scripted replies; with "
        "--base-url the model to ask for.",
        show_default="the server's first",
    ),
]
Conditions = Annotated[
    list[str] | None,
    typer.Option(
        help="What of a conversation the model sees; several are run together. "
        + "; ".join(f"{name}: {one.help}" for name, one in CONDITIONS.items()),
        show_default="own",
    ),
]
HowToFit = Annotated[
    Overflow,
    typer.Option(
        help="A prompt that does not fit: fail (a named failure), or drop-oldest (whole earlier exchanges are left "
        "out until it fits, and counted; their images stay)."
    ),
]


def main(
    benchmark_file: Annotated[Path, typer.Argument(help="The benchmark's published file.")],
    benchmark: Annotated[str, typer.Option(help=f"Which one: {', '.join(benchmarks.BENCHMARKS)}.")],
    out: Annotated[Path, typer.Option(help="Where replies go (JSONL). Run again to resume.")],
    vllm_options: VllmOptions = None,
    model: Model = None,
    base_url: BaseUrl = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name in the records.", show_default="the model's own")
    ] = None,
    condition: Conditions = None,
    data_root: Annotated[
        Path | None,
        typer.Option(help="The folder of the images; none is read outside it.", show_default="that of the file"),
    ] = None,
    concurrency: Annotated[int | None, options.concurrency("Requests under way at once.")] = None,
    max_tokens: Annotated[int, options.max_tokens(1)] = 1024,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    overflow: HowToFit = "fail",
    max_image_pixels: Annotated[
        int | None, typer.Option(min=1, help="Make larger images smaller, to at most this many pixels.")
    ] = None,
    max_image_bytes: Annotated[int, typer.Option(min=1, help="Refuse larger image files.")] = MAX_BYTES,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first conversations.")] = None,
    max_failed: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share of the turns has no reply.")
    ] = MAX_FAILED,
    retry_failed: Annotated[
        bool, options.retry_failed("Ask again where an earlier run failed, and go on from there.")
    ] = False,
    price_file: Annotated[
        Path | None, typer.Option("--prices", help="Price lists (TOML: critic/stages/usage.py): what it would cost.")
    ] = None,
    attempts: Attempts = ATTEMPTS,
    timeout: Timeout = TIMEOUT,
    api_key: ApiKey = None,
) -> int:
    """Run a vision-language model through whole conversations, each turn on the history that a condition says."""
    prices = usage.read_prices(price_file) if price_file is not None else {}
    names = list(dict.fromkeys(condition or ["own"]))
    conversations, uris = named_images(benchmarks.read(benchmark, benchmark_file)[:limit])
    _check(benchmark_file, conversations, names)
    root = data_root or benchmark_file.parent
    images = partial(Images, root, max_bytes=max_image_bytes, resize_to=max_image_pixels)
    load = _loader(conversations, [CONDITIONS[one] for one in names], uris, images)
    backend = Endpoint(
        model=model, base_url=base_url, api_key=api_key, timeout=timeout, attempts=attempts, concurrency=concurrency,
        vllm_options=vllm_options or (),
    ).open_one()  # fmt: skip
    sampling = Sampling(
        max_tokens=max_tokens, temperature=temperature, seed=seed if temperature else 0,
        overflow=overflow, max_image_pixels=max_image_pixels,
    )  # fmt: skip
    system = name or backend.served.name
    runner = Runner(backend, system, names, sampling, load, concurrency or backend.in_flight)
    file: dict[str, Any] = {"file": str(benchmark_file), "count": len(conversations)}
    if benchmark_file.is_file():
        file["sha256"] = jsonl.sha256(benchmark_file)
    source = {"benchmark": benchmark, "conversations": file, "data_root": str(root)}
    run = RunOptions(out=out, concurrency=concurrency, max_failed=max_failed, retry_failed=retry_failed)
    return Infer(run, runner, conversations, source, prices).run()
