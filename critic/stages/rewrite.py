"""critic rewrite: AlignMMBench's rewrites of seed questions, each confirmed by a person before it is used.

critic rewrite seeds.jsonl --out review.jsonl --base-url http://127.0.0.1:8000/v1
critic rewrite seeds.jsonl --out questions.jsonl --apply review.jsonl
"""

import re
import sys
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
from msgspec.structs import replace

from critic import jsonl
from critic.asking.render import quote
from critic.backends import CONNECTIONS, Backend, Request, unanswered
from critic.benchmarks import alignmmbench
from critic.errors import Refused, Transient, UsageError
from critic.records import Language, Message, Question
from critic.stages import options
from critic.stages.options import MAX_FAILED, ApiKey, BaseUrl, Endpoint, MaxFailed, Seed, Temperature
from critic.stages.run import RunOptions, RunSummary, Stage, failed, listed

DIALOGUE = "Dialogue Context"
"""The category whose questions are never rewritten."""

VARIANTS = 5
"""Rewrites of a seed question (AlignMMBench §3.3)."""

_IN_FRONT = re.compile(r"""^\s*(?:[-*•]|\(?\d{1,2}[.)、．：:](?!\d)|（\d{1,2}）)\s*""")

_IN_QUOTES = re.compile(r"""["“]([^"“”]*)["”]""")
"""Quotation marks around a whole line, and none within it: those belong to the wording."""


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
    """The rewrites in a reply, one a line: without numbers or dashes in front or quotation marks around it, each once,
    the question itself not."""
    bare = (_IN_FRONT.sub("", line).strip() for line in text.splitlines())
    lines = [_IN_QUOTES.sub(r"\1", line).strip() if _IN_QUOTES.fullmatch(line) else line for line in bare]
    return [line for line in dict.fromkeys(lines) if line.strip('"“”') and line != question.strip()]


def rewrites(question: Question, text: str) -> list[Rewrite]:
    """The lines of a review file for one seed: its rewrites out of a reply, or why there are none."""
    lines = variants(text, question.prompt)
    if len(lines) != VARIANTS:
        return [_failed(question, "too_many_variants" if len(lines) > VARIANTS else "too_few_variants")]
    return [
        Rewrite(seed=question.id, question=question.prompt, variant=number, prompt=line)
        for number, line in enumerate(lines, 1)
    ]


def _failed(question: Question, failure: str) -> Rewrite:
    return Rewrite(seed=question.id, question=question.prompt, variant=0, prompt=None, failure=failure)


def seeds(questions: Iterable[Question]) -> list[Question]:
    """The first question of each group, but for those within a dialogue, which are asked in their own words
    (AlignMMBench §A.4)."""
    first_of: dict[str, Question] = {}
    for question in questions:
        first_of.setdefault(question.group, question)
    return [question for question in first_of.values() if not question.history and question.category != DIALOGUE]


class AskForRewrites(Stage[Question, Rewrite]):
    """The rewrites of seed questions, by id; `request` is what is asked but for its messages."""

    name, unit, counted = "rewrite", "seed", "seeds"

    def __init__(
        self,
        options: RunOptions,
        backend: Backend,
        source: dict[str, str],
        asked: Sequence[Question],
        request: Request,
    ) -> None:
        self._asked, self._request = {question.id: question for question in asked}, request
        super().__init__(options, Rewrite, backend, self._asked.keys())
        self._lines: Counter[str] = Counter()
        self.facts = {
            "questions": source,
            "model": backend.served.name,
            "sampling": {
                "temperature": request.temperature,
                "seed": request.seed or 0,
                "max_tokens": request.max_tokens,
            },
        }

    def key(self, record: Rewrite) -> str:
        return record.seed

    def problem(self, record: Rewrite) -> str | None:
        question = self._asked.get(record.seed)
        if question is None or question.prompt != record.question:
            return f"{record.seed!r} is no seed, or asks something else; choose another --out"
        if record.accepted is not None:
            return "reviewed already; --apply it, or choose another --out"
        return None

    def know(self, record: Rewrite) -> None:
        self.done[record.seed] = record
        self._lines[record.seed] += VARIANTS if record.failure else 1
        if self._lines[record.seed] > VARIANTS:
            raise self.twice(record)

    def resume(self) -> None:
        """A seed of which a killed run wrote some lines is asked again, without them."""
        super().resume()
        torn = {seed for seed, count in self._lines.items() if count < VARIANTS}
        if torn:
            jsonl.rewrite(self.out, Rewrite, lambda record: record.seed not in torn)
        for seed in torn:
            del self.done[seed]

    def items(self) -> Iterable[Question]:
        return (question for question in self._asked.values() if question.id not in self.done)

    async def work(self, item: Question, keep: Callable[..., None]) -> None:
        detail = None
        try:
            reply = await self.backend.chat(replace(self._request, messages=prompt(item.prompt, item.lang)))
            lost = unanswered(reply)
            found, detail = ([_failed(item, lost[0])], lost[1]) if lost else (rewrites(item, reply.text), None)
        except Transient as error:
            found, detail = [_failed(item, "server_error")], str(error)
        except Refused as error:
            found = [_failed(item, error.failure)]
        keep(*found)
        self.note(found[0].failure, detail)

    def summary(self, records: Iterable[Rewrite]) -> RunSummary:
        """A review file, counted in seeds."""
        failures, of_seeds, wordings = Counter[str](), set[str](), 0
        for record in records:
            of_seeds.add(record.seed)
            if record.failure is None:
                wordings += 1
            else:
                failures[record.failure] += 1
        line = f"{self.out}: {len(of_seeds)} seeds, {wordings} rewrites to review, {failed(failures, 'seeds failed')}"
        facts = {"seeds": len(of_seeds), "failed": dict(failures)}
        return RunSummary(count=len(of_seeds), failures=failures, facts=facts, lines=[line])


def apply(questions: Path, review: Path, out: Path) -> int:
    """Write the questions, and behind each seed its accepted rewrites: the same row with another prompt and the next
    free number. Raises UsageError for a line whose seed is not in the questions or asks something else."""
    rows = [row for _, row in jsonl.read(questions, dict[str, Any])]
    by_id = {row["question_id"]: row for row in rows}
    accepted = defaultdict[str, list[str]](list)
    said: Counter[str] = Counter()
    for number, line in jsonl.read(review, Rewrite):
        row = by_id.get(line.seed)
        if row is None or row["prompt"] != line.question:
            raise UsageError(f"{review}:{number}: {line.seed!r} is not in the questions, or asks something else there")
        if line.accepted and line.prompt:
            accepted[line.seed].append(line.prompt)
        word = {True: "accepted", False: "rejected", None: "undecided"}[line.accepted]
        said["failed" if line.failure else word] += 1
    taken, asked = Counter[str](), set[tuple[str, str]]()
    for name, row in by_id.items():
        group = alignmmbench.group_of(name)
        number = name.removeprefix(group).removeprefix("-")
        taken[group] = max(taken[group], int(number) if number.isdigit() else 0)
        asked.add((group, row["prompt"].strip()))
    made = []
    for row in rows:
        made.append(row)
        group = alignmmbench.group_of(row["question_id"])
        for wording in accepted[row["question_id"]]:
            if (group, wording.strip()) in asked:
                print(f"{row['question_id']}: asked already, not added again: {wording}", file=sys.stderr)
                continue
            asked.add((group, wording.strip()))
            taken[group] += 1
            made.append({**row, "question_id": f"{group}-{taken[group]}", "prompt": wording})
    jsonl.write(out, made)
    print(f"{out}: {len(made)} questions, {len(made) - len(rows)} of them rewrites ({listed(said)})")
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
        return apply(questions, review, out)
    asked = seeds(alignmmbench.read_questions(questions).values())
    if not asked:
        raise UsageError(f"{questions}: no seed question outside of dialogues")
    source = {"file": str(questions), "sha256": jsonl.sha256(questions)}
    drawn = seed if temperature else None
    request = Request(messages=[], max_tokens=max_tokens, temperature=temperature, seed=drawn)
    endpoint = Endpoint(model=model, base_url=base_url, api_key=api_key, concurrency=concurrency)
    run = RunOptions(out=out, concurrency=concurrency, max_failed=max_failed, retry_failed=retry_failed)
    return AskForRewrites(run, endpoint.open_one(), source, asked, request).run()
