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
from msgspec import UNSET, Struct, UnsetType
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
    """One line of a review file. A person sets `accepted`; `failure` says why a seed has no rewrites. `repeated` counts
    the lines of the reply that said again what another line or the question says, in the seed's first line."""

    seed: str
    question: str
    variant: int
    prompt: str | None
    accepted: bool | None = None
    failure: str | None = None
    repeated: int | UnsetType = UNSET


@cache
def _template(language: Language) -> jinja2.Template:
    content = tomllib.loads((files("critic") / "prompts" / "rewrite" / f"{language}.toml").read_text("utf-8"))
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    return environment.from_string(content["template"].strip())


def prompt(question: str, language: Language) -> list[Message]:
    """What a model is asked for the rewrites of a question."""
    content = _template(language).render(count=VARIANTS, question=quote(question))
    return [{"role": "user", "content": content}]


def variants(text: str, question: str) -> tuple[list[str], int]:
    """The rewrites in a reply, one a line: without numbers or dashes in front or quotation marks around it, each once,
    the question itself not; and how many lines are left out as repetitions."""
    bare = (_IN_FRONT.sub("", line).strip() for line in text.splitlines())
    said = [_IN_QUOTES.sub(r"\1", one).strip() if _IN_QUOTES.fullmatch(one) else one for one in bare]
    said = [one for one in said if one.strip('"“”')]
    found = [line for line in dict.fromkeys(said) if line != question.strip()]
    return found, len(said) - len(found)


def rewrites(question: Question, text: str) -> list[Rewrite]:
    """The lines of a review file for one seed: its rewrites out of a reply, or why there are none."""
    found, repeated = variants(text, question.prompt)
    if len(found) != VARIANTS:
        failure = "too_many_variants" if len(found) > VARIANTS else "too_few_variants" if text.strip() else "empty"
        return [replace(_failed(question, failure), repeated=repeated or UNSET)]
    return [
        Rewrite(
            seed=question.id,
            question=question.prompt,
            variant=number,
            prompt=line,
            repeated=repeated if number == 1 and repeated else UNSET,
        )
        for number, line in enumerate(found, 1)
    ]


def _failed(question: Question, failure: str) -> Rewrite:
    return Rewrite(seed=question.id, question=question.prompt, variant=0, prompt=None, failure=failure)


def seeds(questions: Iterable[Question]) -> tuple[list[Question], list[Question]]:
    """The first question of each group, and those that are left alone: a question within a dialogue is asked in its own
    words (AlignMMBench §A.4)."""
    found: dict[str, Question] = {}
    for question in questions:
        found.setdefault(question.group, question)
    alone = [one for one in found.values() if one.history or one.category == DIALOGUE]
    return [one for one in found.values() if one not in alone], alone


class AskForRewrites(Stage[Question, Rewrite]):
    """The rewrites of seed questions, by id; `request` is what is asked but for its messages. Of the questions left
    `alone` a file of before may have rewrites, which stay for the person who looks through it."""

    name, unit, counted = "rewrite", "seed", "seeds"

    def __init__(
        self,
        options: RunOptions,
        backend: Backend,
        source: dict[str, str],
        asked: Sequence[Question],
        request: Request,
        alone: Sequence[Question] = (),
    ) -> None:
        self._asked, self._request = {question.id: question for question in asked}, request
        self._alone = {question.id: question for question in alone}
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
        question = self._asked.get(record.seed) or self._alone.get(record.seed)
        if question is None or question.prompt != record.question:
            return f"{record.seed!r} is no seed, or asks something else; choose another --out"
        if record.accepted is not None:
            return "reviewed already; --apply it, or choose another --out"
        return None

    def know(self, record: Rewrite) -> None:
        if record.seed in self._alone:
            return
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
        failures: Counter[str] = Counter()
        wordings, repeated, of_seeds = 0, 0, set[str]()
        for one in records:
            of_seeds.add(one.seed)
            repeated += one.repeated or 0
            if one.failure is None:
                wordings += 1
            else:
                failures[one.failure] += 1
        line = f"{self.out}: {len(of_seeds)} seeds, {wordings} rewrites to review, {failed(failures, 'seeds failed')}"
        facts = {"seeds": len(of_seeds), "failed": dict(failures), "repeated": repeated}
        more = [f"{repeated} lines repeated the question or another line and are left out"] if repeated else []
        return RunSummary(count=len(of_seeds), failures=failures, facts=facts, lines=[*more, line])


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
    taken: Counter[str] = Counter()
    prompts: set[tuple[str, str]] = set()
    for name in by_id:
        group = alignmmbench.group_of(name)
        last = name.removeprefix(group).removeprefix("-")
        prompts.add((group, by_id[name]["prompt"].strip()))
        taken[group] = max(taken[group], int(last) if last.isdigit() else 0)
    made = []
    for row in rows:
        made.append(row)
        group = alignmmbench.group_of(row["question_id"])
        for wording in accepted[row["question_id"]]:
            if (group, wording.strip()) in prompts:
                print(f"{row['question_id']}: asked already, not added again: {wording}", file=sys.stderr)
                continue
            prompts.add((group, wording.strip()))
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
    asked, alone = seeds(alignmmbench.read_questions(questions).values())
    if alone:
        print(f"{len(alone)} seeds ask within a dialogue and are left alone", file=sys.stderr)
    if not asked:
        raise UsageError(f"{questions}: no seed question outside of dialogues")
    source = {"file": str(questions), "sha256": jsonl.sha256(questions)}
    drawn = seed if temperature else None
    request = Request(messages=[], max_tokens=max_tokens, temperature=temperature, seed=drawn)
    endpoint = Endpoint(model=model, base_url=base_url, api_key=api_key, concurrency=concurrency)
    run = RunOptions(out=out, concurrency=concurrency, max_failed=max_failed, retry_failed=retry_failed)
    return AskForRewrites(run, endpoint.open_one(), source, asked, request, alone).run()
