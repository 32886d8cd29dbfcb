"""The benchmarks: each module of this folder is one, with all that is known of it. README.md says how to add one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from critic.errors import UsageError, did_you_mean
from critic.page.blocks import Section
from critic.records import Conversation, JudgeConfig, Judgment, Protocol

if TYPE_CHECKING:  # the commands that only list benchmarks need no NumPy
    from critic.stats.aggregate import Difference
    from critic.stats.leaderboard import LeaderboardRow

Verdicts = Sequence[Judgment]
Conversations = Sequence[Conversation]

BENCHMARKS = tuple(sorted(module.name for module in iter_modules(__path__)))


class Run(Struct, frozen=True, kw_only=True):
    """A file of judgments: one model's verdicts by one judge, asked in one way. `name` tells the runs of a report
    apart, `unit` is what its answers' lengths are counted in."""

    name: str
    path: Path
    system: str
    judge: str
    setup: JudgeConfig
    turns: list[Judgment]
    unit: str = "characters"

    @property
    def verdicts(self) -> list[Judgment]:
        """Those that are not on another model's answers as well."""
        return [one for one in self.turns if one.opponent is None]

    @property
    def battles(self) -> list[Judgment]:
        """Those between two models."""
        return [one for one in self.turns if one.opponent is not None]

    def counted(self, of: Callable[[Judgment], Any]) -> Counter[Any]:
        """How many verdicts there are of what `of` says of one."""
        return Counter(map(of, self.turns))

    def protocols(self) -> list[Protocol]:
        return list(dict.fromkeys(one.protocol for one in self.verdicts if one.protocol))

    def conditions(self) -> list[str]:
        return list(dict.fromkeys(one.condition for one in self.verdicts))


class Report(Struct, frozen=True, kw_only=True):
    """What is shown of a benchmark's scores, and the numbers for summary.json: anything that msgspec encodes."""

    sections: list[Section]
    summary: Mapping[str, Any]


class Benchmark(Struct, frozen=True, kw_only=True):
    """A benchmark, as the module of its name in this folder has to define it: `BENCHMARK = Benchmark(…)`.

    `read` makes conversations of its published file, `protocols` are how answers are judged unless the user says
    otherwise, and `report` makes tables of one or more runs and the conversations that were asked. `published` is how
    its paper asks a judge, where that is not our way (`--as published`). Verdicts by these
    protocols that are `scored` are part of that report; the means of all others are shown below it. `differences` are
    rows, by name, that a comparison of two runs has beside those by protocol, condition and turn: the second run less
    the first. `entries` are a run's rows in the tables over models (critic.page.leaderboards).
    """

    title: str
    read: Callable[[Path], list[Conversation]]
    protocols: tuple[Protocol, ...]
    report: Callable[[Sequence[Run], Conversations], Report]
    published: JudgeConfig = JudgeConfig(judge="", score_kind="argmax")
    scored: Callable[[Judgment], bool] = lambda one: one.judging == "standard" and one.opponent is None
    differences: "Callable[[Run, Run, Conversations], dict[str, Difference]]" = lambda *_: {}
    entries: "Callable[[Run, Conversations], list[LeaderboardRow]]" = lambda *_: []


def load(name: str) -> Benchmark:
    """Raises UsageError for an unknown benchmark."""
    if name not in BENCHMARKS:
        raise UsageError(f"{name}: unknown benchmark; {did_you_mean(name, BENCHMARKS)}choose {', '.join(BENCHMARKS)}")
    found: Benchmark = import_module(f"{__name__}.{name}").BENCHMARK
    return found


def read(name: str, path: Path) -> list[Conversation]:
    """The conversations of a benchmark's published file. Raises UsageError for an unknown benchmark, or naming file,
    line and key, and the benchmark that the file can be read as if it is another's."""
    try:
        return load(name).read(path)
    except UsageError as error:
        others = [other for other in BENCHMARKS if other != name and _reads(other, path)]
        if name not in BENCHMARKS or not others:
            raise
        raise UsageError(f"{error}; --benchmark {name} was given, it reads as {' or '.join(others)}") from None


def _reads(name: str, path: Path) -> bool:
    try:
        return bool(load(name).read(path))
    except UsageError:
        return False


def labelled(name: str, condition: str) -> str:
    """A row of a table over models: the model, and the condition where it is not the usual one."""
    return {"own": name, "no_image": f"{name}, without image"}.get(condition, f"{name}, {condition}")


def answers_of(run: Run) -> dict[tuple[str, str, int | None], int]:
    """A hash of each reply that a file judges, by conversation, condition and turn; of those that it does not say,
    as older files, or verdicts on whole conversations, none."""
    return {(one.sample.id, one.condition, one.turn): hash(one.sample.answer) for one in run.turns if one.sample.answer}


def alike(mine: Mapping[Any, int], theirs: Mapping[Any, int]) -> bool | None:
    """Whether the replies of two files, `answers_of`, are the same wherever both judge a turn; None where they share
    none."""
    shared = mine.keys() & theirs.keys()
    return all(mine[key] == theirs[key] for key in shared) if shared else None


def order_reading(run: Run, battles: bool = False) -> list[str]:
    """How far pairwise verdicts, on the reference's answers or on another model's, follow the places of the answers,
    and how many of them are ties for want of a verdict."""

    compared = [one for one in (run.battles if battles else run.verdicts) if one.protocol == "pairwise"]
    unread = sum(one.unread for one in compared)
    pairs = [[(call.first, call.value) for call in one.calls if call.value] for one in compared]
    values = [value for calls in pairs for _, value in calls]
    readings = list[str]()
    if values:
        decided = sum(value != "tie" for value in values)
        first_won = f"the first of the two answers won {values.count('A')}"
        reading = f"{run.name}: of {decided} comparisons with a winner, {first_won}"
        readings.append(f"{reading}{_differing(pairs)}.")
    if unread:
        readings.append(f"{run.name}: {unread} of {len(pairs)} comparisons came to no verdict and count as ties.")
    return readings


def _differing(pairs: Sequence[Sequence[tuple[str | None, str]]]) -> str:
    """How many pairs were judged otherwise in the other order, in words; nothing where none was asked in both."""
    # The last verdict of each order counts: a reply that could not be read was asked about once more.
    both = [last for calls in pairs if {"model", "opponent"} <= (last := dict(calls)).keys()]
    turned = {"A": "B", "B": "A", "tie": "tie"}
    differ = sum(last["opponent"] != turned[last["model"]] for last in both)
    return f"; {differ} of {len(both)} pairs were judged otherwise in the other order and count as ties" if both else ""
