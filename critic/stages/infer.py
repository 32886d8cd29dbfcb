"""critic infer: a benchmark's conversations -> a model's replies, turn by turn, under one or more conditions.

critic infer convbench.csv --benchmark convbench --out replies.jsonl --model runs/vlm --condition own
critic infer questions.jsonl --benchmark alignmmbench --out replies.jsonl --base-url http://127.0.0.1:8000/v1
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from critic import benchmarks
from critic.backends import Backend, ChatMessage, Reply, Request, find_failure, read_usage
from critic.cli import takes_options
from critic.errors import Refused, Transient, UsageError, hash_value, quoted
from critic.images import Image, ImageError, Images, name_images
from critic.judging import history
from critic.judging.history import CONDITIONS, HistoryMessage
from critic.judging.thoughts import with_reply, without_thoughts_in
from critic.records import Conversation, ModelTurn, Sampling, SentImage, SentMessage, TurnFailure
from critic.stages.gpus import on_gpus
from critic.stages.options import Endpoint, ModelOptions, choose
from critic.stages.run import RunOptions, Stage, check_plain, describe_source, gather_cancel_on_error, once
from critic.stages.totals import RunSummary, sum_replies


class Infer(Stage[Conversation, ModelTurn]):
    """The stage that gets a model's reply to each turn of each conversation, under each condition.

    `questions`: the conversations, and what the model sees of them. `system`: the model's name in the records.
    """

    name, unit, counted = "infer", "turn", "turns"

    def __init__(
        self, run: RunOptions, backend: Backend, questions: "Questions", system: str, sampling: Sampling
    ) -> None:
        wanted = dict[tuple[str, str, int], Conversation]()
        for talk, name in product(questions.conversations, questions.conditions):
            wanted |= {(talk.id, name, turn): talk for turn in _turns(talk, name)}
        super().__init__(run, ModelTurn, backend, wanted)
        self.system, self.conditions, self.sampling = system, questions.conditions, sampling
        self._images = questions.images
        # A reply that an earlier run generated under one condition serves every other that shows the same.
        self._generated: dict[str, ModelTurn] = {}
        # Replies of earlier versions as they stand in the file, with the thoughts that later turns were shown.
        self._with_thoughts: dict[tuple[str, str, int], str] = {}
        self.facts = {"system": system, "model": backend.served.name, "server": backend.endpoint, "sampling": sampling}

    def problem(self, record: ModelTurn) -> str | None:
        key, conversation = record.conversation.id, self.wanted.get(record.key)
        if conversation is None:
            turn = f"turn {record.turn} ({record.condition})"
            return f"conversation {quoted(key)}, {turn}, is not among those asked for now; choose another --out"
        if conversation != record.conversation:
            return f"conversation {quoted(key)} reads otherwise now; choose another --out"
        for name in ("sampling", "system"):
            if (before := getattr(record, name)) != (now := getattr(self, name)):
                return f"made with {name} {quoted(before)}, now {quoted(now)}; choose another --out"
        return None

    def should_retry(self, record: ModelTurn) -> bool:
        # A reply of thoughts only, which an earlier version took for an answer, is a failure.
        return super().should_retry(without_thoughts_in(record))

    def load_existing(self, record: ModelTurn) -> None:
        whole, record = record.reply, without_thoughts_in(record)
        if whole is not None and whole != record.reply:
            self._with_thoughts[record.key] = whole
        super().load_existing(record)
        if record.call is not None:
            self._generated[record.call] = record

    async def work(self, item: Conversation, keep: Callable[..., None]) -> None:
        """Request the replies to a conversation's turns under each condition, and pass each record to `keep`.

        Raises UsageError if a turn in the file had another prompt, or if the server seems to be down.
        """
        blank = ModelTurn(conversation=item, system=self.system, condition="", turn=0, sampling=self.sampling)
        # Each prompt of a conversation is generated once.
        calls = dict[str, asyncio.Task[ModelTurn]]()

        async def converse(name: str) -> None:
            replies, lost = dict[int, str](), dict[int, str]()
            for turn in _turns(item, name):
                line = self.done.get((item.id, name, turn))
                # The history would show the reply to a turn that failed.
                if why := next((lost[number] for number in CONDITIONS[name].own(turn) if number in lost), None):
                    if line is None:
                        keep(replace(blank, condition=name, turn=turn, failure="not_run", detail=why))
                    continue
                messages = history.messages(item, turn, replies, CONDITIONS[name])
                call = history.call_id(item, messages)
                if line is None:
                    # Another condition may show the same, and await the same call.
                    answer = await once(calls, call, self._answer, replace(blank, call=call), messages)
                    line = replace(answer, condition=name, turn=turn)
                    keep(line)
                elif line.call != call and line.call != self._call_with_thoughts(item, name, turn, replies):
                    raise UsageError(f"{item.id}: turn {turn} ({name}) was asked otherwise; choose another --out")
                if line.failure is not None:
                    lost[turn] = f"turn {turn} failed: {line.failure}"
                replies[turn] = line.reply or ""

        await gather_cancel_on_error(converse(name) for name in self.conditions)

    def _call_with_thoughts(self, conversation: Conversation, name: str, turn: int, replies: Mapping[int, str]) -> str:
        """Return the hash of the request that an earlier version made for a turn.

        Earlier versions showed later turns the model's thoughts. `replies` holds the replies without thoughts, by turn.
        """
        shown = {
            number: self._with_thoughts.get((conversation.id, name, number), replies[number]) for number in replies
        }
        return history.call_id(conversation, history.messages(conversation, turn, shown, CONDITIONS[name]))

    async def _answer(self, record: ModelTurn, messages: Sequence[HistoryMessage]) -> ModelTurn:
        """Return `record` with the reply to the messages, or with a failure; the caller sets condition and turn."""
        if (known := self._generated.get(record.call or "")) is not None:
            return known
        try:
            names = [name for message in messages for name in message.images]
            images = {name: await asyncio.to_thread(self._images.load, name) for name in names if self._images}
        except ImageError as error:
            return replace(record, failure=error.failure, detail=str(error))
        record = replace(record, seen=[_recorded(message, images) for message in messages])
        # Each prompt has a seed of its own, the same in every run and order.
        seed = int(hash_value(f"{self.sampling.seed}/{record.call}", 8), 16)
        request = Request(
            messages=[_sent(message, images) for message in messages],
            max_tokens=self.sampling.max_tokens,
            temperature=self.sampling.temperature,
            seed=seed if self.sampling.temperature > 0 else None,
        )
        async with self._gate:
            start = time.monotonic()
            try:
                reply = await self.backend.chat(request)
            except (Transient, Refused) as error:
                self.note(error.failure, str(error))
                return replace(record, failure=error.failure, detail=str(error), attempts=error.tries)
            seconds = time.monotonic() - start
        self.note(None)
        self.note_answered([reply.answered_by])
        failure, detail = self._problem_of(reply)
        # Tokens that the server did not count are unknown, and not zero.
        took = read_usage(reply) if reply.counted or not reply.attempts else {}
        record = replace(
            record,
            thoughts=reply.thoughts or None,
            finish="length" if reply.truncated else reply.finish,
            failure=failure,
            detail=detail,
            seconds=round(seconds, 4),
            attempts=reply.attempts,
            answered_by=[reply.answered_by] if reply.answered_by else [],
            **took,
        )
        return record if failure is not None else with_reply(record, reply.text)

    def _problem_of(self, reply: Reply) -> tuple[TurnFailure | None, str | None]:
        """Return the failure of a reply and its detail, or (None, None) if the reply is usable."""
        context, used = self.backend.served.context, reply.prompt_tokens + reply.completion_tokens
        if reply.truncated and reply.completion_tokens < self.sampling.max_tokens and context and used >= context:
            return "context_length_exceeded", f"the reply was cut at the end of the context of {context} tokens"
        return find_failure(reply) or (None, None)

    def summary(self, records: Iterable[ModelTurn]) -> RunSummary:
        return sum_replies(records, self.out, self._generated)


def _turns(conversation: Conversation, condition: str) -> range:
    """Return the numbers (from 1) of the turns to which the model replies under a condition."""
    return CONDITIONS[condition].asked(len(conversation.turns))


def _recorded(message: HistoryMessage, images: Mapping[str, Image]) -> SentMessage:
    """Convert a message to the form kept in records: images, and the frames of videos, by path and hash."""
    loaded = chain.from_iterable(images[name].shown for name in message.images)
    shown = [SentImage(path=image.path, sha256=image.sha256, resized=image.resized) for image in loaded]
    return SentMessage(role=message.role, content=message.content, images=shown)


def _sent(message: HistoryMessage, images: Mapping[str, Image]) -> ChatMessage:
    """Convert a message to the form that servers accept, with the images before the text."""
    parts = [*chain.from_iterable(images[name].parts for name in message.images)]
    content = [*parts, {"type": "text", "text": message.content}] if parts else message.content
    return {"role": message.role, "content": content}


class Questions(Struct, frozen=True, kw_only=True):
    """A benchmark's conversations, and what the model sees of them.

    `conditions`: names of what the model sees of the history (CONDITIONS).
    `uris`: data URIs of the images inside the benchmark's file, by name. `root`: folder of all other images.
    `images`: loads the images; None if none are shown.
    """

    conversations: list[Conversation]
    conditions: list[str]
    uris: dict[str, str]
    root: Path
    images: Images | None


def read_questions(file: Path, benchmark: str, endpoint: Endpoint, asked: ModelOptions) -> Questions:
    """Read a benchmark's file, and choose the history conditions: those of the options, or else those of the paper.

    `asked`: the options on the model under test. `endpoint`: the folder of images and their largest size.
    Raises UsageError if a condition selects no turn or needs a reference that the file lacks, or if no image is found.
    """
    if asked.condition and asked.published:
        raise UsageError("--as published has conditions of its own: leave --condition out")
    of_paper = benchmarks.load(benchmark).conditions
    usual = of_paper if asked.published else of_paper[:1]
    names = choose("condition", asked.condition or usual, CONDITIONS)
    conversations, uris = name_images(benchmarks.read(benchmark, file)[: asked.limit])
    for name in names:
        if not any(_turns(conversation, name) for conversation in conversations):
            longest = max(len(conversation.turns) for conversation in conversations)
            raise UsageError(f"--condition {name} asks nothing: the longest conversation of {file} has {longest} turns")
        for conversation in conversations:
            if (turn := history.missing_reference(conversation, CONDITIONS[name])) is not None:
                where = f"{file}: {conversation.id}: turn {turn}"
                raise UsageError(f"{where} has no reference, and --condition {name} shows it")
    root, images = endpoint.data_root or file.parent, None
    # Neither Pillow nor a folder is needed if no image is shown.
    paths = [path for conversation in conversations for turn in conversation.turns for path in turn.images]
    if paths and any(CONDITIONS[name].images for name in names):
        images = endpoint.images(root, paths, uris)
    return Questions(conversations=conversations, conditions=names, uris=uris, root=root, images=images)


@on_gpus
@takes_options
def main(
    benchmark_file: Annotated[Path, typer.Argument(help="The benchmark's published file.")],
    benchmark: Annotated[str, typer.Option(help=f"Benchmark of the file: {', '.join(benchmarks.BENCHMARKS)}.")],
    out: Annotated[Path, typer.Option(help="Output file (.jsonl); rerun to resume.", callback=check_plain)],
    endpoint: Endpoint,
    asked: ModelOptions,
) -> int:
    """Run a vision-language model through whole conversations, turn by turn. The conditions say what it sees of the
    history."""
    questions = read_questions(benchmark_file, benchmark, endpoint, asked)
    backend = endpoint.open_one()
    sampling = convert(asdict(endpoint) | asdict(asked), Sampling)
    # Without sampling the seed changes nothing, and must not tell two runs apart.
    sampling = sampling if sampling.temperature else replace(sampling, seed=0)
    file = {**describe_source(benchmark_file), "count": len(questions.conversations)}
    run = endpoint.run_options(out)
    conversations = [conversation for conversation in questions.conversations if run.takes(conversation.group)]
    questions = replace(questions, conversations=conversations)
    stage = Infer(run, backend, questions, asked.name or backend.served.name, sampling)
    stage.facts |= {"benchmark": benchmark, "conversations": file, "data_root": str(questions.root.resolve())}
    return stage.run()
