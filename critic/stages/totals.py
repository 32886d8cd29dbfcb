"""The totals of a file of replies or judgments, for its sidecar and as sentences, and the cost of models and judges.

The cost comes from the sidecars (ConvBench, table 10), and from prices that a user gives. A price file is TOML, one
table per model or judge, with prices per million tokens in any currency. Without `cached_input`, cached tokens cost as
much as the others:

    [some-model]    # an example: put in the prices that you were quoted
    currency = "EUR"
    input = 1.0
    cached_input = 0.5
    output = 4.0
"""

import resource
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, toml

from critic import jsonl
from critic.errors import UsageError, located
from critic.judging.thoughts import without_thoughts_in
from critic.page.blocks import Section, Table, number, row
from critic.page.page import render
from critic.records import Call, Judgment, ModelTurn

T = TypeVar("T", bound=Struct)


class RunSummary(Struct, frozen=True, kw_only=True):
    """The totals of a file of records.

    `failures` counts them by name, out of `count` records. `facts` goes into the sidecar, `lines` is printed.
    """

    count: int
    failures: Counter[str]
    facts: dict[str, Any]
    lines: list[str]


class Spent:
    """The cost of a file's records: tokens by kind, number of shortened prompts by what was cut, and cached replies."""

    def __init__(self) -> None:
        self.uncounted = self.repeated = self.calls = 0
        self.tokens, self.shortened = Counter(prompt=0, cached=0, completion=0), Counter[str]()

    def add(self, record: Judgment | Call | ModelTurn) -> None:
        """Add the cost of one record."""
        # Nothing was tried for a reply from the cache.
        self.repeated += record.attempts == 0
        self.calls += bool(record.reply or record.prompt_tokens)
        self.shortened.update(list(getattr(record, "shortened", ())))
        self.uncounted += bool(record.reply) and not record.prompt_tokens and record.attempts > 0
        for kind in self.tokens:
            self.tokens[kind] += getattr(record, f"{kind}_tokens") or 0

    def facts(self) -> dict[str, Any]:
        """Return the cost as facts for the sidecar."""
        cached = {"from_cache": self.repeated} if self.repeated else {}
        return {"calls": self.calls, "tokens": dict(self.tokens), **cached}


def failed(failures: Counter[str]) -> str:
    """Return the total number of failures as text, with the number by name in brackets.

    >>> failed(Counter(empty=2))
    '2 failed (empty 2)'
    """
    return f"{failures.total()} failed" + (f" ({listed(failures)})" if failures else "")


def name_forms(forms: Collection[str]) -> str:
    """Return the names of prompt forms as part of a sentence.

    >>> name_forms(["quality", "checklist"])
    'the forms checklist, quality'
    """
    return f"the form{'s' if len(forms) > 1 else ''} {', '.join(sorted(forms))}"


def listed(counts: Counter[str]) -> str:
    """Return counts as text, such as "empty 2, refused 1", the largest first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def sum_replies(records: Iterable[ModelTurn], out: Path, before: Collection[str] = ()) -> RunSummary:
    """Return the totals of a file of replies.

    Records that share a generation count as one call. Turns for which nothing was sent count as no call. `before`: the
    hashes of the calls that earlier runs made.
    """
    conditions = defaultdict[str, Counter[str]](Counter)
    failures, details, calls, spent = Counter[str](), dict[str, str](), dict[str, ModelTurn](), Spent()
    for line in map(without_thoughts_in, records):
        conditions[line.condition][{None: "answered", "not_run": "not_run"}.get(line.failure, "failed")] += 1
        if line.failure is not None:
            failures[line.failure] += 1
            details.setdefault(line.failure, line.detail or "no more is known")
        # A record without budget was not sent.
        if line.call is not None and line.seen and line.failure != "budget":
            calls.setdefault(line.call, line)
    counts = Counter[str](calls=len(calls))
    for line in calls.values():
        spent.add(line)
        counts["calls_cut_at_max_tokens"] += line.finish == "length" and line.failure is None
        counts["images"] += sum(len(message.images) for message in line.seen)
        if line.thoughts is not None:
            counts["with_thoughts"] += 1
    turns = sum(tally.total() for tally in conditions.values())
    facts = {"conditions": dict(sorted(conditions.items())), "turns": turns}
    shown = {**facts, "counts": counts, "spent": spent, "out": out, "failures": failures, "details": details}
    shown["earlier"] = len(calls.keys() & before)
    lines = render("critic.page", "replies.jinja", shown).strip().split("\n")
    facts |= {"failed": dict(failures), **spent.facts(), **counts}
    return RunSummary(count=turns, failures=failures, facts=facts, lines=lines)


def sum_judgments(records: Iterable[Judgment], out: Path, unit: str) -> RunSummary:
    """Return the totals of a file of judgments. Requests that several judgments share count once, as do their tokens.

    `out`: the file. `unit`: what the totals call a judgment, "row" or "verdict".
    """
    failures, counts, spent = Counter[str](), Counter[str](), Spent()
    requests = set[tuple[str, str | None]]()
    count = 0
    for judgment in records:
        count += 1
        if judgment.failure is not None:
            failures[judgment.failure] += 1
        counts["unread_ties"] += judgment.unread
        counts["without_the_judgment_of_a_turn"] += judgment.unjudged > 0 and judgment.failure is None
        if judgment.protocol is None:
            spent.add(judgment)
        elif judgment.asked is None:
            counts["without_an_answer"] += 1
        elif (name := (judgment.conversation.id, judgment.asked)) not in requests:
            requests.add(name)
            # The calls of repeats are not in the record, but their tokens are.
            for call in [judgment] if judgment.repeats else judgment.calls:
                spent.add(call)
            counts["second_questions"] += sum(call.extracted for call in judgment.calls)
    facts = {f"{unit}s": count, "failed": dict(failures), **counts, "shortened_prompts": dict(spent.shortened)}
    facts |= {"asked": len(requests)} if requests else {}
    shown = {"out": out, "count": count, "unit": unit, "failed": failed(failures), "counts": counts, "spent": spent}
    lines = render("critic.page", "judgments.jinja", shown).strip().split("\n")
    return RunSummary(count=count, failures=failures, facts=facts | spent.facts(), lines=lines)


Amount = Annotated[float, Meta(ge=0)]


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices per million tokens."""

    input: Amount
    output: Amount
    cached_input: Amount | None = None
    currency: str = "USD"

    def of(self, tokens: Mapping[str, int]) -> float:
        """Return the price of `tokens`, counted as prompt, cached (a part of the prompt) and completion tokens.

        >>> tokens = {"prompt": 3_000_000, "cached": 1_000_000, "completion": 1_000_000}
        >>> Price(input=1, output=4, cached_input=0.5).of(tokens), Price(input=1, output=4).of(tokens)
        (6.5, 7.0)
        """
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = tokens["prompt"] - tokens["cached"]
        return (fresh * self.input + tokens["cached"] * cached + tokens["completion"] * self.output) / 1e6


def read_by_model(option: str, path: Path | None, kind: type[T], models: Collection[str] | None = None) -> dict[str, T]:
    """Read a TOML file with one table per model, and return each table as a `kind` by model name; {} without a file.

    `option`: the option that names the file, for messages. `models`: the valid model names; None accepts any.

    Raises UsageError if the file cannot be read, lacks or misspells a key, or names a model that is not in `models`.
    """
    keys = ", ".join(kind.__struct_fields__)
    with located(f"{option} {path}: expected tables [MODEL] with {keys}", OSError, ValueError):
        by_model = toml.decode(path.read_bytes() if path else b"", type=dict[str, kind])  # type: ignore[valid-type]
    if models is not None and (strange := sorted(by_model.keys() - models)):
        raise UsageError(f"{option} {path}: [{strange[0]}] is no model of these files; they are {', '.join(models)}")
    return by_model


def describe_speed(facts: Mapping[str, Any]) -> list[str]:
    """Return a line on the speed of the runs that made a file, from its sidecar; [] if none was measured.

    >>> describe_speed({"seconds": 40.0, "speed": {"tokens": 5000, "waiting_ms": 30000, "queries": 4000, "hits": 3000}})
    ['speed: 167 tokens a second, 75% of 40 s waiting for replies, 75% of the prompts in the prefix cache']
    """
    speed = Counter[str](facts.get("speed") or {})
    waiting = speed["waiting_ms"] / 1000
    # Replies from a file take no time.
    if not waiting:
        return []
    seconds = max(waiting, facts["seconds"])
    parts = [f"{waiting / seconds:.0%} of {seconds:.0f} s waiting for replies"]
    if speed["tokens"]:
        parts.insert(0, f"{speed['tokens'] / waiting:.0f} tokens a second")
    if looked_up := speed["queries"]:
        parts.append(f"{speed['hits'] / looked_up:.0%} of the prompts in the prefix cache")
    return [f"speed: {', '.join(parts)}"]


def measure_memory() -> int:
    """Return the peak memory in MiB of this process, or of an ended child process if that had more."""
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(peaks) // 1024


def measure_gpus() -> list[int]:
    """Return the memory in use on each GPU in MiB; [] without GPUs. An engine reserves its memory when it starts."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return [int(line) for line in subprocess.check_output(query, text=True, timeout=30).split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def describe_costs(paths: Sequence[Path], systems: Mapping[Path, str], price_file: Path | None) -> list[Section]:
    """Build the section with the costs of judging, and of generating the judged replies.

    `paths`: the files of judgments; their sidecars name the files of replies. `systems`: file of judgments -> model.
    `price_file`: a TOML file of prices by model, or None. Files without a sidecar, as other programs write them, are
    left out. The list is empty if no costs are known. Raises UsageError for prices that cannot be used.
    """
    stages: dict[Path, tuple[str, str, dict[str, Any]]] = {}
    for path in paths:
        facts = jsonl.restore_places(path)
        replies = Path((facts.get("replies") or {}).get("file", ""))
        asked, judge = jsonl.facts(replies), str(facts.get("judge"))
        model = asked.get("system") or systems.get(path, path.stem)
        stages[replies] = f"{model}: replies", model, asked
        stages[path] = f"{model}: judged by {judge}", judge, facts
    counted = [stage for stage in stages.values() if "tokens" in stage[2]]
    models = [*dict.fromkeys((*systems.values(), *(model for _, model, _ in counted)))]
    prices = read_by_model("--prices", price_file, Price, models)
    rows = []
    for name, model, facts in counted:
        count = next((facts[unit] for unit in ("turns", "verdicts", "rows") if unit in facts), 0)
        timed, seconds = facts.get("seconds_for", count), facts.get("seconds")
        # A killed run leaves no count of its seconds, so these are only those of its continuation.
        part = f" for {timed} of {count}" if timed < count else ""
        minutes = "–" if seconds is None else number(seconds / 60, 1) + part
        memory = facts.get("memory_mib", "–"), ", ".join(map(str, facts.get("gpus_mib", ())))
        price = f"{prices[model].of(facts['tokens']):.4f} {prices[model].currency}" if model in prices else ""
        rows.append(row(name, facts.get("calls", "–"), *facts["tokens"].values(), minutes, *memory, price))
    head = ["", "calls", "tokens in", "cached", "tokens out", "minutes", "memory, MiB", "of each GPU", "price"]
    caption = "Cost by model and stage (as in ConvBench's table 10)"
    note = "Memory is that of the process that asked, and of the GPUs beside it; a server elsewhere has its own."
    table = Table(caption=caption, head=head, rows=rows, details=True, picture="costs")
    return [Section(heading="Cost", tables=[table], note=note)] if rows else []
