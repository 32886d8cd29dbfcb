"""critic rewrite: AlignMMBench's rewrites of seed questions, each confirmed by a person before it is used.

critic rewrite seeds.jsonl --out review.jsonl --base-url http://127.0.0.1:8000/v1
critic rewrite seeds.jsonl --out questions.jsonl --apply review.jsonl
"""

import asyncio
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import jinja2
import typer
from msgspec import Struct
from tqdm import tqdm

from critic import jsonl
from critic.asking.prompt import quote
from critic.backends import Backend, Reply, Request
from critic.backends.openai import OpenAIBackend
from critic.benchmarks import alignmmbench
from critic.errors import Refused, Transient, UsageError
from critic.records import Language, Message, Question
from critic.stages.run import Writer, listed, open_backend, side_by_side, writing

VARIANTS = 5
"""Rewrites of a seed question (AlignMMBench §3.3)."""

_IN_FRONT = re.compile(r"""^\s*(?:[-*•]|\(?\d{1,2}[.)、．：:](?!\d)|（\d{1,2}）)\s*""")


class Rewrite(Struct, kw_only=True):
    """One line of a review file. A person sets `accepted`; `failure` says why a seed has no rewrites."""

    seed: str
    question: str
    variant: int
    prompt: str | None
    accepted: bool | None = None
    failure: str | None = None


@cache
def _template(language: Language) -> jinja2.Template:
    content = tomllib.loads((files("critic") / "prompts" / "rewrite" / f"{language}.toml").read_text("utf-8"))
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    return environment.from_string(content["template"].strip())


def prompt(question: str, language: Language) -> list[Message]:
    """What a model is asked for the rewrites of a question."""
    content = _template(language).render(count=VARIANTS, question=quote(question))
    return [{"role": "user", "content": content}]


def variants(text: str, question: str) -> list[str]:
    """The rewrites in a reply, one a line: without numbers or dashes in front, each once, the question itself not."""
    found = dict.fromkeys(_IN_FRONT.sub("", line).strip().strip('"“”') for line in text.splitlines())
    return [line for line in found if line and line != question.strip()]


def rewrites(question: Question, reply: Reply) -> list[Rewrite]:
    """The lines of a review file for one seed: its rewrites, or why there are none."""
    found = variants(reply.text, question.prompt)
    failure = "empty" if not reply.text.strip() else None if len(found) >= VARIANTS else "too_few_variants"
    failure = failure or ("too_many_variants" if len(found) > VARIANTS else None)
    if failure is not None:
        return [_failed(question, failure)]
    return [
        Rewrite(seed=question.id, question=question.prompt, variant=number, prompt=line)
        for number, line in enumerate(found, 1)
    ]


def _failed(question: Question, failure: str) -> Rewrite:
    return Rewrite(seed=question.id, question=question.prompt, variant=0, prompt=None, failure=failure)


def seeds(questions: Iterable[Question]) -> list[Question]:
    """The first question of each group."""
    found: dict[str, Question] = {}
    for question in questions:
        found.setdefault(question.group, question)
    return list(found.values())


async def _ask(backend: Backend, question: Question, max_tokens: int, temperature: float, seed: int) -> list[Rewrite]:
    request = Request(
        messages=prompt(question.prompt, question.lang),
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed if temperature else None,
    )
    try:
        return rewrites(question, await backend.chat(request))
    except Transient:
        return [_failed(question, "server_error")]
    except Refused as error:
        return [_failed(question, error.failure)]


def _whole(out: Path, asked: Sequence[Question]) -> set[str]:
    """The seeds that a review file has all lines of; of others its lines are taken out. Raises UsageError for a seed
    that is not asked for, and for a file that a person has begun to review."""
    jsonl.repair(out)
    if not out.is_file() or out.stat().st_size == 0:
        return set()
    known = {question.id: question.prompt for question in asked}
    counts: Counter[str] = Counter()
    for number, line in jsonl.read(out, Rewrite):
        if known.get(line.seed) != line.question:
            raise UsageError(f"{out}:{number}: {line.seed!r} is no seed, or asks something else; choose another --out")
        if line.accepted is not None:
            raise UsageError(f"{out}:{number}: reviewed already; --apply it, or choose another --out")
        counts[line.seed] += VARIANTS if line.failure else 1
    whole = {seed for seed, count in counts.items() if count >= VARIANTS}
    if whole != set(counts):
        jsonl.rewrite(out, Rewrite, lambda line: line.seed in whole)
    return whole


def apply(review: Sequence[tuple[int, Rewrite]], rows: Sequence[dict[str, Any]], place: str) -> list[dict[str, Any]]:
    """The rows of a questions file, and behind each seed its accepted rewrites: the same row with another prompt and
    the next free number. Raises UsageError for a line whose seed is not in the rows or asks something else."""
    by_id = {row["question_id"]: row for row in rows}
    accepted: dict[str, list[str]] = defaultdict(list)
    for number, line in review:
        row = by_id.get(line.seed)
        if row is None or row["prompt"] != line.question:
            raise UsageError(f"{place}:{number}: {line.seed!r} is not in the questions, or asks something else there")
        if line.accepted and line.prompt:
            accepted[line.seed].append(line.prompt)
    taken: Counter[str] = Counter()
    for name in by_id:
        group, _, last = name.rpartition("-")
        taken[group] = max(taken[group], int(last) if last.isdigit() else 0)
    made = []
    for row in rows:
        made.append(row)
        group = row["question_id"].rpartition("-")[0]
        for wording in accepted[row["question_id"]]:
            taken[group] += 1
            made.append({**row, "question_id": f"{group}-{taken[group]}", "prompt": wording})
    return made


def _apply(questions: Path, review: Path, out: Path) -> int:
    lines = list(jsonl.read(review, Rewrite))
    rows = [row for _, row in jsonl.read(questions, dict[str, Any])]
    with writing(out):
        count = jsonl.write(out, apply(lines, rows, str(review)))
    said = Counter(
        "failed" if line.failure else {True: "accepted", False: "rejected", None: "undecided"}[line.accepted]
        for _, line in lines
    )
    print(f"{out}: {count} questions, {count - len(rows)} of them rewrites ({listed(said)})")
    return 0


async def _run(
    backend: Backend,
    asked: Sequence[Question],
    out: Path,
    concurrency: int,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> Counter[str]:
    waiting, failures = iter(asked), Counter[str]()
    with Writer(out) as file, tqdm(total=len(asked), desc="rewrite", unit="seed") as bar:
        async with backend:

            async def work() -> None:
                for question in waiting:
                    for line in await _ask(backend, question, max_tokens, temperature, seed):
                        file.append(line)
                        if line.failure:
                            failures[line.failure] += 1
                    bar.update()

            await side_by_side(work() for _ in range(min(concurrency, len(asked))))
    return failures


def main(
    questions: Annotated[Path, typer.Argument(help="AlignMMBench questions; the first of each group is its seed.")],
    out: Annotated[Path, typer.Option(help="The review file (JSONL); with --apply the questions file to write.")],
    review: Annotated[
        Path | None, typer.Option("--apply", help="A reviewed file: write the questions and its accepted rewrites.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A checkpoint folder (vLLM in this process); with --base-url the model to ask for."),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of what is sampled.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=8, help="Longest reply, in tokens.")] = 1024,
    concurrency: Annotated[int, typer.Option(min=1, help="Seeds asked at once.")] = 32,
    max_failed: Annotated[float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share failed.")] = 0.02,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask again what failed before.")] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's API key.", show_default=False)
    ] = None,
) -> int:
    """Rewrite seed questions in five wordings each. Set "accepted" in the review file to true or false, then --apply
    it: only what a person accepted is used."""
    if review is not None:
        return _apply(questions, review, out)
    asked = seeds(alignmmbench.read_questions(questions).values())
    if base_url is None and model is None:
        raise UsageError("give --model FOLDER (vLLM in this process) or --base-url URL")

    def connect(url: str) -> OpenAIBackend:
        return OpenAIBackend(url, api_key=api_key, timeout=300.0, attempts=5, connections=concurrency)

    value = model if base_url is None else base_url
    backend = open_backend("--model", value or "", connect, model if base_url else None, [])
    done = _whole(out, asked)
    if retry_failed and done:
        with writing(out):
            jsonl.rewrite(out, Rewrite, lambda line: line.failure is None)
        done = _whole(out, asked) if out.stat().st_size else set()
    todo = [question for question in asked if question.id not in done]
    if todo:
        asyncio.run(_run(backend, todo, out, concurrency, max_tokens, temperature, seed))
    lines = [line for _, line in jsonl.read(out, Rewrite)]
    failures = Counter(line.failure for line in lines if line.failure)
    facts = {
        "questions": {"file": str(questions), "sha256": jsonl.sha256(questions)},
        "model": backend.served.name,
        "sampling": {"temperature": temperature, "seed": seed if temperature else 0, "max_tokens": max_tokens},
        "seeds": len(asked),
        "failed": dict(failures),
    }
    with writing(out):
        jsonl.write_sidecar(out, facts)
    print(
        f"{out}: {len(asked)} seeds, {len(lines) - failures.total()} rewrites to review, "
        f"{failures.total()} seeds failed" + (f" ({listed(failures)})" if failures else "")
    )
    return 3 if failures.total() > max_failed * len(asked) else 0
