"""Benchmarks, one per module of this folder, and the runs that are scored. README.md explains how to add one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from critic.errors import UsageError, did_you_mean
from critic.judging import protocols
from critic.page.blocks import Section
from critic.records import Conversation, JudgeConfig, Judgment

if TYPE_CHECKING:  # the commands that only list benchmarks need no NumPy
    from critic.stats.leaderboard import LeaderboardRow

Verdicts = Sequence[Judgment]
Conversations = Sequence[Conversation]

PAPER_SETTINGS = {
    "order": "order",
    "unread": "unparsed comparisons",
    "reason_first": "reason first",
    "sight": "turn context",
    "score_kind": "score",
    "reference_backed": "reference in sight",
}
"""Fields of JudgeConfig that the papers determine -> their names on a page."""

BENCHMARKS = tuple(sorted(module.name for module in iter_modules(__path__)))


class Run(Struct, frozen=True, kw_only=True):
    """One model's verdicts by one judge in one setup, from the file `path`. `name` is its name in a report."""

    name: str
    path: Path
    system: str
    judge: str
    setup: JudgeConfig
    turns: list[Judgment]

    @property
    def verdicts(self) -> list[Judgment]:
        """Return the verdicts on this model only, not on a pair of models."""
        return [judgment for judgment in self.turns if judgment.opponent is None]

    @property
    def battles(self) -> list[Judgment]:
        """Return the verdicts between two models."""
        return [judgment for judgment in self.turns if judgment.opponent is not None]

    def protocols(self) -> list[str]:
        """Return the protocols of the verdicts, in order of first use."""
        return list(dict.fromkeys(judgment.protocol for judgment in self.verdicts if judgment.protocol))

    def conditions(self) -> list[str]:
        """Return the conditions of the verdicts, in order of first use."""
        return list(dict.fromkeys(judgment.condition for judgment in self.verdicts))

    @property
    def replies(self) -> dict[tuple[str, str, int | None], str]:
        """Return the judged replies by conversation, condition and turn.

        Replies that the file does not hold, as in older files or for verdicts on whole conversations, are left out.
        """
        samples = [judgment.sample for judgment in self.turns if judgment.sample.answer]
        return {(sample.id, sample.condition, sample.turn): sample.answer or "" for sample in samples}


class Report(Struct, frozen=True, kw_only=True):
    """Additions to the scores of each run: `rows` of further tables, sections, and their numbers for summary.json
    (anything msgspec encodes)."""

    rows: "list[LeaderboardRow]" = []
    sections: list[Section] = []
    summary: Mapping[str, Any] = {}


class Benchmark(Struct, frozen=True, kw_only=True):
    """Everything about one benchmark; the module of its name in this folder defines `BENCHMARK = Benchmark(…)`.

    `read` parses its published file into conversations. `protocols` are the default protocols of its judge.
    `conditions` are the histories of the paper's main tables, the usual one first. `published` is the paper's
    judge setup, if it is not the default (`--as published`). `entries` returns a run's rows, one per table, from
    the verdicts by these protocols that are `scored`; means of all other verdicts are shown below. `report` adds
    what concerns several runs, or is no table over models.
    """

    title: str
    read: Callable[[Path], list[Conversation]]
    protocols: tuple[str, ...]
    conditions: tuple[str, ...] = ("own",)
    entries: "Callable[[Run, Conversations], list[LeaderboardRow]]"
    report: Callable[[Sequence[Run], Conversations], Report] = lambda *_: Report()
    published: JudgeConfig = JudgeConfig(judge="", score_kind="argmax")
    scored: Callable[[Judgment], bool] = lambda judgment: judgment.judging == "standard" and judgment.opponent is None

    def paper_setup(self, used: Iterable[str]) -> JudgeConfig:
        """Return how the paper asks a judge for verdicts by these protocols."""
        # Only comparisons have an order, and ties: other protocols refuse what sets them.
        return self.published if any_compares(used) else replace(self.published, order="both", unread="fail")

    @property
    def compares(self) -> bool:
        """Return True if one of the benchmark's protocols compares answers."""
        return any_compares(self.protocols)

    def departures(self, run: Run) -> list[str]:
        """List the run's deviations from the paper's setup; empty if as published."""
        used = list(dict.fromkeys(judgment.protocol for judgment in run.turns if judgment.protocol))
        paper = self.paper_setup(used)
        words = [
            f"{option} {getattr(run.setup, name)} (paper: {getattr(paper, name)})"
            for name, option in PAPER_SETTINGS.items()
            if getattr(run.setup, name) != getattr(paper, name)
        ]
        if not run.setup.decoding.reason:
            words.append("no reasons")
        if run.battles and not all(map(self.scored, run.battles)):
            words.append("battles between models (paper: none)")
        if not run.verdicts:
            return words  # what the paper asks of each answer is not asked of a battle
        words += [f"no verdicts by {protocol}" for protocol in self.protocols if protocol not in used]
        seen = {judgment.condition for judgment in run.turns}
        return words + [f"no condition {condition}" for condition in self.conditions if condition not in seen]


class Runs(Struct, frozen=True, kw_only=True):
    """The judgments of a score, read once: the benchmark by `name`, its runs, and the conversations that were asked.

    The runs' names differ, and each verdict is in one run.
    """

    name: str
    benchmark: Benchmark
    runs: list[Run]
    conversations: list[Conversation]

    @property
    def verdicts(self) -> list[Judgment]:
        """Return the verdicts of all runs, battles included."""
        return list(chain.from_iterable(run.turns for run in self.runs))

    @property
    def failures(self) -> int:
        """Return the number of failed verdicts."""
        return sum(judgment.failure is not None for judgment in self.verdicts)


def any_compares(names: Iterable[str]) -> bool:
    """Return True if one of the protocols compares two answers."""
    return any(protocols.load(name).compares for name in names)


def name_row(row: "LeaderboardRow", run: Run) -> "LeaderboardRow":
    """Return a row with its judge and the model's name, followed by its condition unless it is the usual one."""
    suffix = {"own": "", "no_image": ", without image"}.get(row.condition, f", {row.condition}")
    return replace(row, system=run.system, name=f"{run.name}{suffix}", judge=run.judge)


def load(name: str) -> Benchmark:
    """Return a benchmark by name. Raises UsageError for an unknown one."""
    if name not in BENCHMARKS:
        raise UsageError(f"{name}: unknown benchmark; {did_you_mean(name, BENCHMARKS)}choose {', '.join(BENCHMARKS)}")
    benchmark: Benchmark = import_module(f"{__name__}.{name}").BENCHMARK
    return benchmark


def read(name: str, path: Path) -> list[Conversation]:
    """Read a benchmark's published file into conversations.

    Raises UsageError for an unknown benchmark, or naming file, line and key.
    """
    return load(name).read(path)


def count_equal_replies(first: Run, second: Run) -> tuple[int, int]:
    """Return the number of equal replies, and the number of turns to which both runs have a reply."""
    mine, theirs = first.replies, second.replies
    return len(mine.items() & theirs.items()), len(mine.keys() & theirs.keys())


BIASED, FEWEST_PAIRS, FEWEST_DRAWN = 0.2, 20, 100
"""Order effects are shown at the head of a page from this share of this many pairs. If each place was drawn, more
comparisons are needed."""


def order_effects(runs: Iterable[Run]) -> dict[str, bool]:
    """Return, for each judge over all its files, a sentence on its order effect and whether the effect is large."""
    compared: dict[str, list[Judgment]] = {}
    for run in runs:
        pairwise = (judgment for judgment in run.turns if judgment.protocol and any_compares([judgment.protocol]))
        # A scoring head rates each answer separately, in no order.
        compared.setdefault(run.judge, []).extend(line for line in pairwise if any(call.first for call in line.calls))
    return dict(_order_effect(judge, judgments) for judge, judgments in compared.items() if judgments)


def _order_effect(judge: str, compared: Sequence[Judgment]) -> tuple[str, bool]:
    """Return the sentence on one judge's order effect, and whether the effect is large."""
    pairs = [[(call.first, call.value) for call in judgment.calls if call.value] for judgment in compared]
    values = [value for calls in pairs for _, value in calls]
    decided, first = len(values) - values.count("tie"), values.count("A")
    words = f"of {decided} comparisons with a winner, the first answer won {first}"
    # The last verdict of each order counts: an unreadable reply was requested once more.
    both = [last for calls in pairs if {"model", "opponent"} <= (last := dict(calls)).keys()]
    if both:
        turned = {"A": "B", "B": "A", "tie": "tie"}
        differ = sum(last["opponent"] != turned[last["model"]] for last in both)
        turned_share = f"{differ} of {len(both)} pairs ({differ / len(both):.0%})"
        words = f"{turned_share} were judged otherwise in the other order and count as ties; {words}"
        large = len(both) >= FEWEST_PAIRS and differ >= BIASED * len(both)
    else:  # with drawn places, the surplus of first wins estimates the share that follows the order
        large = decided >= FEWEST_DRAWN and abs(2 * first - decided) >= BIASED * decided
    # Ties that nobody gave would hide a judge that cannot read the prompt.
    if unread := sum(judgment.unread for judgment in compared):
        words += f"; {unread} of {len(pairs)} comparisons came to no verdict and count as ties"
    return f"{judge}: {words}.", large
