"""critic rewrite: AlignMMBench's rewrites of seed questions, each confirmed by a person before it is used.

critic rewrite seeds.jsonl --out review.jsonl --base-url http://127.0.0.1:8000/v1
critic rewrite seeds.jsonl --out questions.jsonl --apply review.jsonl
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import jinja2
import typer
from msgspec import Struct

from critic import jsonl
from critic.asking.render import quote
from critic.backends import CONNECTIONS, Backend, Reply, Request
from critic.benchmarks import alignmmbench
from critic.errors import Refused, Transient, UsageError
from critic.records import Language, Message, Question
from critic.stages import options
from critic.stages.options import MAX_FAILED, ApiKey, BaseUrl, Endpoint, MaxFailed, Seed, Temperature
from critic.stages.run import Outage, RunOptions, Stage, Tally, listed

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


class RewriteTally(Tally[Rewrite]):
    """A review file, counted in seeds."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out, self._wordings = out, 0

    def add(self, record: Rewrite) -> None:
        self._wordings += record.failure is None
        if record.variant <= 1:  # a seed that failed has one line, with variant 0
            self.note(record.failure)

    def facts(self) -> dict[str, Any]:
        return {"seeds": self.count, "failed": dict(self.failures)}

    def lines(self) -> Iterable[str]:
        failed = self.failed("seeds failed")
        yield f"{self._out}: {self.count} seeds, {self._wordings} rewrites to review, {failed}"


class AskForRewrites(Stage[Question, Rewrite]):
    """The rewrites of seed questions, by id."""

    name, unit, counted = "rewrite", "seed", "seeds"

    def __init__(
        self,
        options: RunOptions,
        backend: Backend,
        questions: Path,
        asked: Sequence[Question],
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> None:
        super().__init__(options, Rewrite, backend)
        self._questions, self._asked = questions, {question.id: question for question in asked}
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed
        self._known: Counter[str] = Counter()
        self._outage = Outage(backend, self.concurrency, "seeds")

    def problem(self, record: Rewrite) -> str | None:
        question = self._asked.get(record.seed)
        if question is None or question.prompt != record.question:
            return f"{record.seed!r} is no seed, or asks something else; choose another --out"
        if record.accepted is not None:
            return "reviewed already; --apply it, or choose another --out"
        return None

    def failure(self, record: Rewrite) -> str | None:
        return record.failure

    def know(self, record: Rewrite) -> None:
        self._known[record.seed] += VARIANTS if record.failure else 1

    def resume(self) -> int:
        """A seed of which a killed run wrote some lines is asked again, without them."""
        super().resume()
        torn = {seed for seed, count in self._known.items() if count < VARIANTS}
        if torn:
            jsonl.rewrite(self.out, Rewrite, lambda record: record.seed not in torn)
        for seed in torn:
            del self._known[seed]
        return len(self._known)

    def left(self) -> int:
        return len(self._asked) - len(self._known)

    def items(self) -> Iterable[Question]:
        return (question for question in self._asked.values() if question.id not in self._known)

    async def work(self, item: Question, keep: Callable[..., None]) -> None:
        request = Request(
            messages=prompt(item.prompt, item.lang),
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            seed=self._seed if self._temperature else None,
        )
        detail = None
        try:
            found = rewrites(item, await self.backend.chat(request))
        except Transient as error:
            found, detail = [_failed(item, "server_error")], str(error)
        except Refused as error:
            found = [_failed(item, error.failure)]
        keep(*found)
        self._outage.note(found[0].failure, detail)

    def facts(self) -> dict[str, Any]:
        seed = self._seed if self._temperature else 0
        return {
            "questions": {"file": str(self._questions), "sha256": jsonl.sha256(self._questions)},
            "model": self.backend.served.name,
            "sampling": {"temperature": self._temperature, "seed": seed, "max_tokens": self._max_tokens},
        }

    def tally(self) -> RewriteTally:
        return RewriteTally(self.out)


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
    count = jsonl.write(out, apply(lines, rows, str(review)))
    said = Counter(
        "failed" if line.failure else {True: "accepted", False: "rejected", None: "undecided"}[line.accepted]
        for _, line in lines
    )
    print(f"{out}: {count} questions, {count - len(rows)} of them rewrites ({listed(said)})")
    return 0


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
    base_url: BaseUrl = None,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    max_tokens: Annotated[int, options.max_tokens(8)] = 1024,
    concurrency: Annotated[int, typer.Option(min=1, help="Seeds asked at once.")] = CONNECTIONS,
    max_failed: MaxFailed = MAX_FAILED,
    retry_failed: Annotated[bool, options.retry_failed("Ask again what failed before.")] = False,
    api_key: ApiKey = None,
) -> int:
    """Rewrite seed questions in five wordings each. Set "accepted" in the review file to true or false, then --apply
    it: only what a person accepted is used."""
    if review is not None:
        return _apply(questions, review, out)
    asked = seeds(alignmmbench.read_questions(questions).values())
    endpoint = Endpoint(model=model, base_url=base_url, api_key=api_key, concurrency=concurrency)
    run = RunOptions(out=out, concurrency=concurrency, max_failed=max_failed, retry_failed=retry_failed)
    return AskForRewrites(run, endpoint.open_one(), questions, asked, max_tokens, temperature, seed).run()
