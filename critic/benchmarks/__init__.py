"""The benchmarks: each module of this folder is one, with all that is known of it. README.md says how to add one."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
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
"""Fields of a JudgeConfig that the papers determine -> what they are called on a page."""

BENCHMARKS = tuple(sorted(module.name for module in iter_modules(__path__)))


class Run(Struct, frozen=True, kw_only=True):
    """A file of judgments: one model's verdicts by one judge, asked in one way. `name` is its name in a report."""

    name: str
    path: Path
    system: str
    judge: str
    setup: JudgeConfig
    turns: list[Judgment]

    @property
    def verdicts(self) -> list[Judgment]:
        """Those that are not on another model's answers as well."""
        return [judgment for judgment in self.turns if judgment.opponent is None]

    @property
    def battles(self) -> list[Judgment]:
        """Those between two models."""
        return [judgment for judgment in self.turns if judgment.opponent is not None]

    def counted(self, of: Callable[[Judgment], Any]) -> Counter[Any]:
        """Count the verdicts by the value of `of`."""
        return Counter(map(of, self.turns))

    def protocols(self) -> list[str]:
        return list(dict.fromkeys(judgment.protocol for judgment in self.verdicts if judgment.protocol))

    def conditions(self) -> list[str]:
        return list(dict.fromkeys(judgment.condition for judgment in self.verdicts))


class Report(Struct, frozen=True, kw_only=True):
    """What is shown beside the scores of each run: tables of other `rows`, sections, and their numbers for
    summary.json, anything that msgspec encodes."""

    rows: "list[LeaderboardRow]" = []
    sections: list[Section] = []
    summary: Mapping[str, Any] = {}


class Benchmark(Struct, frozen=True, kw_only=True):
    """A benchmark, as the module of its name in this folder has to define it: `BENCHMARK = Benchmark(…)`.

    `read` makes conversations of its published file, `protocols` are how answers are judged unless the user says
    otherwise, `conditions` the histories of the paper's main tables, its usual one first, `published` how its paper
    asks a judge where that is not our way (`--as published`). `entries` are a run's scores, a row for each table over
    models, of the verdicts by these protocols that are `scored`; the means of all other verdicts are shown below.
    `report` adds what is not about one run, or no table over models.
    """

    title: str
    read: Callable[[Path], list[Conversation]]
    protocols: tuple[str, ...]
    conditions: tuple[str, ...] = ("own",)
    entries: "Callable[[Run, Conversations], list[LeaderboardRow]]"
    report: Callable[[Sequence[Run], Conversations], Report] = lambda *_: Report()
    published: JudgeConfig = JudgeConfig(judge="", score_kind="argmax")
    scored: Callable[[Judgment], bool] = lambda judgment: judgment.judging == "standard" and judgment.opponent is None

    def paper_setup(self, used: Collection[str] = ()) -> JudgeConfig:
        """Return how the paper asks a judge for verdicts by these protocols (default: its own)."""
        # Only comparisons have an order, and ties: other protocols refuse what sets them.
        compares = any_compares(used or self.protocols)
        return self.published if compares else replace(self.published, order="both", unread="fail")

    @property
    def compares(self) -> bool:
        """Whether answers are compared, by one of the benchmark's protocols."""
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


def any_compares(names: Iterable[str]) -> bool:
    """Return whether one of the protocols compares two answers."""
    return any(protocols.load(name).compares for name in names)


def named(row: "LeaderboardRow", run: Run) -> "LeaderboardRow":
    """Return a row with the model's name, and its condition if that is not the usual one."""
    name = {"own": run.name, "no_image": f"{run.name}, without image"}.get(
        row.condition, f"{run.name}, {row.condition}"
    )
    return replace(row, system=run.system, name=name)


def load(name: str) -> Benchmark:
    """Return the benchmark of a name. Raises UsageError for an unknown one."""
    if name not in BENCHMARKS:
        raise UsageError(f"{name}: unknown benchmark; {did_you_mean(name, BENCHMARKS)}choose {', '.join(BENCHMARKS)}")
    benchmark: Benchmark = import_module(f"{__name__}.{name}").BENCHMARK
    return benchmark


def read(name: str, path: Path) -> list[Conversation]:
    """The conversations of a benchmark's published file. Raises UsageError for an unknown benchmark, or naming file,
    line and key."""
    return load(name).read(path)


def answers_of(run: Run) -> dict[tuple[str, str, int | None], int]:
    """A hash of each reply that a file judges, by conversation, condition and turn; of those that it does not say,
    as older files, or verdicts on whole conversations, none."""
    return {
        (judgment.sample.id, judgment.condition, judgment.turn): hash(judgment.sample.answer)
        for judgment in run.turns
        if judgment.sample.answer
    }


def alike(mine: Mapping[Any, int], theirs: Mapping[Any, int]) -> bool | None:
    """Return whether two files' replies (`answers_of`) are equal on all shared turns, or None if they share none."""
    shared = mine.keys() & theirs.keys()
    return all(mine[key] == theirs[key] for key in shared) if shared else None


BIASED, FEWEST_PAIRS, FEWEST_DRAWN = 0.2, 20, 100
"""From which share of so many pairs on the order of answers is at a page's head; of places drawn it takes more."""


def order_effects(runs: Iterable[Run]) -> dict[str, bool]:
    """How far the comparisons of each judge, over all its files, follow the places of the answers, in words, and
    whether that is much."""
    compared: dict[str, list[Judgment]] = {}
    for run in runs:
        pairwise = (judgment for judgment in run.turns if judgment.protocol and any_compares([judgment.protocol]))
        # A head scores each answer alone, in no order.
        compared.setdefault(run.judge, []).extend(line for line in pairwise if any(call.first for call in line.calls))
    return dict(_order_effect(judge, judgments) for judge, judgments in compared.items() if judgments)


def _order_effect(judge: str, compared: Sequence[Judgment]) -> tuple[str, bool]:
    pairs = [[(call.first, call.value) for call in judgment.calls if call.value] for judgment in compared]
    values = [value for calls in pairs for _, value in calls]
    decided, first = len(values) - values.count("tie"), values.count("A")
    words = f"of {decided} comparisons with a winner, the first answer won {first}"
    # The last verdict of each order counts: a reply that could not be read was asked about once more.
    both = [last for calls in pairs if {"model", "opponent"} <= (last := dict(calls)).keys()]
    if both:
        turned = {"A": "B", "B": "A", "tie": "tie"}
        differ = sum(last["opponent"] != turned[last["model"]] for last in both)
        turned_share = f"{differ} of {len(both)} pairs ({differ / len(both):.0%})"
        words = f"{turned_share} were judged otherwise in the other order and count as ties; {words}"
        large = len(both) >= FEWEST_PAIRS and differ >= BIASED * len(both)
    else:  # where a place is drawn for each, the first wins as often more than half as if so many followed it alone
        large = decided >= FEWEST_DRAWN and abs(2 * first - decided) >= BIASED * decided
    if unread := sum(judgment.unread for judgment in compared):
        words += f"; {unread} of {len(pairs)} comparisons came to no verdict and count as ties"
    return f"{judge}: {words}.", large
