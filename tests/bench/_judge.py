"""What the judging benchmarks share: rows, a random judge of a size where the model's work counts, its prompts."""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from critic.judging.forms import inquiry
from critic.judging.judge import Judge, plan_response
from critic.judging.prompt import of_response
from critic.records import Judgment, Message, PromptInputs, Question, Response
from critic.stages.judge_responses import in_order

ROWS, REPLY_TOKENS = 96, 48


TASKS = ("Counting", "OCR", "Meme", "Chart")


def responses(count: int = ROWS) -> list[Response]:
    """Answers of a few dozen words to as many questions."""
    rows = []
    for n in range(count):
        task, prompt = TASKS[n % len(TASKS)], f"How many red boats lie in harbour {n}, and which one is the largest?"
        reference = f"There are {n % 9} red boats; the largest one is named Swallow {n}."
        question = Question(id=f"q{n}", group=f"q{n}", lang="en", task=task, prompt=prompt, reference=reference)
        text = f"I can see {n % 7} red boats in the picture, and number {n} is the largest of them. " * 2
        rows.append(Response(id=f"row-{n}", question=question, text=text))
    return rows


def prompts(rows: list[Response]) -> list[list[Message]]:
    return [inquiry("pointwise", row.question.lang, of_response(row)).messages for row in rows]


POINTWISE = inquiry("pointwise", "en", PromptInputs())
"""What is asked of every row, its material apart: the keys and the schema of the verdicts."""


def tokenizer_of(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-level BPE of the texts, which gives a prompt the hundreds of tokens that it has in a real one."""
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "train")]
    from byte_pairs import train_byte_pairs
    from tiny import CHAT_TEMPLATE, SPECIAL_TOKENS
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    split = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return train_byte_pairs(
        texts, vocabulary, SPECIAL_TOKENS, SPECIAL_TOKENS[1], pre_tokenizer=split, chat_template=CHAT_TEMPLATE
    )


def checkpoint(folder: Path, rows: list[Response], hidden: int = 256, layers: int = 4) -> Path:
    """A random Llama, of 3 M parameters unless told otherwise."""
    tokenizer = tokenizer_of((messages[0]["content"] for messages in prompts(rows)), 600)
    from recipe_keys import TinySpec
    from tiny import random_model

    spec = TinySpec(
        vocab_size=600, hidden_size=hidden, intermediate_size=hidden * 11 // 4, layers=layers, heads=hidden // 64
    )
    random_model(spec, tokenizer, 4096).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def ordered(rows: list[Response]) -> list[Response]:
    """Rows in the order in which `critic judge` asks for them."""
    return [row for row, _ in in_order((row, None) for row in rows)]


async def judged(judge: Judge, rows: list[Response], in_flight: int) -> list[Judgment]:
    """Judge rows one by one, so many at a time, in the order in which `critic judge` asks for them."""
    waiting, judgments = iter(ordered(rows)), []

    async def work() -> None:
        for row in waiting:
            judgments.append(await judge.verdict_on(judge.prepare(plan_response("pointwise", row))))

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return judgments


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def laps(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each piece of work; all are run in turn, so that a busy machine slows all alike."""
    seconds_of: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds_of[name].append(seconds(work))
    return seconds_of


def ratios(took: Mapping[str, list[float]], over: str, under: str) -> dict[str, float]:
    """How many times as fast `under` is as `over`, round by round: the median, the least, the most."""
    values = sorted(numerator / denominator for numerator, denominator in zip(took[over], took[under], strict=True))
    spread = {"ratio": statistics.median(values), "least": values[0], "most": values[-1]}
    return {name: round(value, 3) for name, value in spread.items()}
