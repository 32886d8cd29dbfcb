"""The cost of models and judges, from the sidecars of their files (ConvBench, table 10), and prices that a user gives.

A price file is TOML, one table per model or judge, with prices per million tokens in any currency. Without
`cached_input`, cached tokens cost as much as the others:

    [some-model]    # an example: put in the prices that you were quoted
    currency = "EUR"
    input = 1.0
    cached_input = 0.5
    output = 4.0
"""

import resource
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from critic import jsonl
from critic.errors import UsageError, one_line
from critic.page.blocks import Section, Table, number, row

Amount = Annotated[float, Meta(ge=0)]


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices per million tokens."""

    input: Amount
    output: Amount
    cached_input: Amount | None = None
    currency: str = "USD"

    def of(self, tokens: Mapping[str, int]) -> float:
        """Return the price of `tokens`, counted as prompt, cached (a part of the prompt) and completion tokens."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = tokens["prompt"] - tokens["cached"]
        return (fresh * self.input + tokens["cached"] * cached + tokens["completion"] * self.output) / 1e6


def _read_prices(path: Path | None, models: Collection[str]) -> dict[str, Price]:
    """Read a price file; {} without one.

    Raises UsageError if it cannot be read, lacks or misspells a key, or names none of `models`.
    """
    try:
        prices = msgspec.toml.decode(path.read_bytes() if path else b"", type=dict[str, Price])
    except (OSError, ValueError) as error:
        keys = ", ".join(Price.__struct_fields__)
        raise UsageError(f"--prices {path}: {one_line(error)}; expected tables [MODEL] with {keys}") from None
    if strange := sorted(prices.keys() - models):
        raise UsageError(f"--prices {path}: [{strange[0]}] is no model of these files; they are {', '.join(models)}")
    return prices


def measure_memory() -> int:
    """Return the most memory, in MiB, that this process had, or one that it started and that has ended."""
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
    """Build the section with the cost of each stage that made the files of judgments, and of the replies to them.

    `systems` names the model of a file. Files without a sidecar, as other programs write them, are left out.
    Raises UsageError for prices that cannot be used.
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
    prices = _read_prices(price_file, [*dict.fromkeys((*systems.values(), *(model for _, model, _ in counted)))])
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
