"""Tokens, seconds and failures of a file of replies, and what its calls would have cost at prices the user gives.

The price file (`critic infer --prices FILE`) is TOML, one table a price list, per million tokens and in any currency;
without `cached_input`, cached tokens of a prompt cost what the others do:

    [some-provider-model-x]     # an example: put in the prices you were quoted
    currency = "EUR"
    input = 1.0
    cached_input = 0.5
    output = 4.0
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from critic.errors import UsageError
from critic.records import ModelTurn
from critic.stages.run import Tally


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices per million tokens, none below 0."""

    input: float
    output: float
    cached_input: float | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        if not all(0 <= price < math.inf for price in (self.input, self.output, self.cached_input or 0.0)):
            raise ValueError("a price is a number from 0 up")


def read_prices(path: Path) -> dict[str, Price]:
    """The price lists of a file by name. Raises UsageError naming file and key."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Price])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: {error}; expected [NAME] tables with input, output, cached_input?, currency?"
        ) from None


def cost(price: Price, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
    """In the price's currency. `cached_tokens` are those of the prompt tokens that were cached."""
    cached = price.input if price.cached_input is None else price.cached_input
    fresh = prompt_tokens - cached_tokens
    return (fresh * price.input + cached_tokens * cached + completion_tokens * price.output) / 1e6


class Totals(Tally[ModelTurn]):
    """What the records of a file of replies add up to, at the prices of each list; a generation that several records
    share counts once."""

    def __init__(self, out: Path, prices: Mapping[str, Price]) -> None:
        super().__init__()
        self._out, self._prices = out, prices
        self.by_condition: dict[str, Counter[str]] = {}
        self.details: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.by_turn: dict[int, Counter[str]] = {}
        self.seconds = 0.0
        self._calls: set[str] = set()
        self._resized: set[str] = set()

    def add(self, record: ModelTurn) -> None:
        result = "answered" if record.failure is None else "not_run" if record.failure == "not_run" else "failed"
        self.by_condition.setdefault(record.condition, Counter())[result] += 1
        self.note(record.failure)
        if record.failure is not None and record.detail:
            self.details.setdefault(record.failure, record.detail)
        if record.call is not None and record.call not in self._calls:
            self._calls.add(record.call)
            self._add_call(record)

    def _add_call(self, line: ModelTurn) -> None:
        self.seconds += line.seconds
        self.counts["calls"] += 1
        self.counts["calls_cut_at_max_tokens"] += line.finish == "length" and line.failure is None
        self.counts["calls_shortened"] += line.dropped > 0
        self.counts["exchanges_dropped"] += line.dropped
        self.counts["images"] += sum(len(message.images) for message in line.seen)
        self._resized |= {image.path for message in line.seen for image in message.images if image.resized}
        if line.prompt_tokens is None or line.completion_tokens is None:
            self.counts["calls_without_token_counts"] += bool(line.seen)
            return
        self.counts["prompt_tokens"] += line.prompt_tokens
        self.counts["completion_tokens"] += line.completion_tokens
        if line.cached_tokens is None:
            self.counts["calls_without_cached_counts"] += 1
            return
        turn = self.by_turn.setdefault(line.turn, Counter())
        for name, count in (("prompt", line.prompt_tokens), ("cached", line.cached_tokens)):
            turn[name] += count
        self.counts["cached_tokens"] += line.cached_tokens

    def costs(self) -> dict[str, float]:
        """By price list, of the calls whose tokens are known."""
        count = self.counts
        spent = count["prompt_tokens"], count["cached_tokens"], count["completion_tokens"]
        return {name: round(cost(price, *spent), 6) for name, price in self._prices.items()}

    def facts(self) -> dict[str, Any]:
        return {
            "conditions": {name: dict(found) for name, found in sorted(self.by_condition.items())},
            "failed": dict(self.failures),
            "images_resized": len(self._resized),
            "turns": self.count,
            **{name: count for name, count in self.counts.items() if count},
            "tokens_by_turn": {str(turn): dict(found) for turn, found in sorted(self.by_turn.items())},
            "seconds_of_calls": round(self.seconds, 1),
            "costs": self.costs(),
        }

    def lines(self) -> Iterable[str]:
        counts = self.counts
        yield f"{'condition':<30}{'answered':>9}{'failed':>8}{'not run':>9}"
        for name, found in sorted(self.by_condition.items()):
            yield f"{name:<30}{found['answered']:>9}{found['failed']:>8}{found['not_run']:>9}"
        yield f"{self.count} turns by {counts['calls']} calls"
        yield f"tokens: {counts['prompt_tokens']} in, {counts['completion_tokens']} out, {self._cached()}"
        for name, amount in self.costs().items():
            yield f"at the prices of {name}: {amount:.4f} {self._prices[name].currency}"
        for name, text in (
            ("calls_without_token_counts", "calls without token counts: they are in no sum of tokens or costs"),
            ("calls_cut_at_max_tokens", "replies cut at --max-tokens"),
            ("calls_shortened", f"prompts shortened to fit ({counts['exchanges_dropped']} oldest exchanges left out)"),
        ):
            if counts[name]:
                yield f"{counts[name]} {text}"
        if self._resized:
            yield f"{len(self._resized)} images made smaller to fit --max-image-pixels"
        for name, count in self.failures.most_common():
            yield f"{name}: {count} turns" + (f", first: {self.details[name]}" if name in self.details else "")
        yield f"{self._out}: {self.count} turns"

    def _cached(self) -> str:
        if not self.by_turn:
            return "cached: not said by the server"
        shares = (
            f"turn {turn} {found['cached'] / found['prompt']:.0%}" for turn, found in sorted(self.by_turn.items())
        )
        return f"{self.counts['cached_tokens']} cached ({', '.join(shares)} of the prompt)"
