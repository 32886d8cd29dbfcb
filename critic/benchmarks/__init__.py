"""The benchmarks: each module of this folder is one, with all that is known of it. README.md says how to add one."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from critic.errors import UsageError
from critic.page.blocks import Section
from critic.records import Conversation, Protocol, Setup, TurnVerdict

if TYPE_CHECKING:  # the commands that only list benchmarks need no NumPy
    from critic.counting.aggregate import Difference
    from critic.counting.leaderboard import Entry

Verdicts = Sequence[TurnVerdict]
Conversations = Sequence[Conversation]

BENCHMARKS = tuple(sorted(module.name for module in iter_modules(__path__)))


class JudgedTurn(Struct, frozen=True, kw_only=True):
    """What scores are made of: a verdict, the conversation and the answer that it is on, and for each of the judge's
    calls that came to a verdict who stood first ("model", "opponent") and the verdict ("A", "B", "tie"). `answers` are
    those to its checklist, in its order."""

    conversation: Conversation
    verdict: TurnVerdict
    answer: str | None = None
    calls: list[tuple[str | None, str]] = field(default_factory=list)
    answers: list[bool | None] = field(default_factory=list)


class Run(Struct, frozen=True, kw_only=True):
    """A file of judgments: one model's verdicts by one judge, asked in one way. `name` tells the runs of a report
    apart, `unit` is what its answers' lengths are counted in."""

    name: str
    path: Path
    system: str
    judge: str
    setup: Setup
    turns: Sequence[JudgedTurn]
    unit: str = "characters"

    @property
    def verdicts(self) -> "SomeVerdicts":
        """Those that are not on another model's answers as well."""
        return SomeVerdicts(self, battles=False)

    @property
    def battles(self) -> "SomeVerdicts":
        """Those between two models."""
        return SomeVerdicts(self, battles=True)

    def counted(self, of: Callable[[TurnVerdict], Any]) -> Counter[Any]:
        """How many verdicts there are of what `of` says of one, which is to look at no conversation, score or length:
        columns say it of all that are alike at once."""
        columns = getattr(self.turns, "counted", None)
        return columns(of) if columns else Counter(of(turn.verdict) for turn in self.turns)

    def protocols(self) -> list[Protocol]:
        return self._of_verdicts(lambda one: one.protocol)

    def conditions(self) -> list[str]:
        return self._of_verdicts(lambda one: one.condition)

    def _of_verdicts(self, of: Callable[[TurnVerdict], Any]) -> list[Any]:
        found = self.counted(lambda one: None if one.opponent else of(one))
        return [name for name in found if name is not None]


class SomeVerdicts(Sequence[TurnVerdict]):
    """A run's verdicts on the model's answers alone, or its `battles`, made again wherever they are gone through."""

    def __init__(self, run: Run, *, battles: bool) -> None:
        self._run, self._battles = run, battles

    def __iter__(self) -> Iterator[TurnVerdict]:
        columns = getattr(self._run.turns, "verdicts", None)
        every = columns() if columns else (turn.verdict for turn in self._run.turns)
        return (one for one in every if (one.opponent is not None) == self._battles)

    def __len__(self) -> int:
        return self._run.counted(lambda one: (one.opponent is not None) == self._battles)[True]

    def __getitem__(self, number: Any) -> Any:
        return list(self)[number]


class Report(Struct, frozen=True, kw_only=True):
    """What is shown of a benchmark's scores, and the numbers for summary.json: anything that msgspec encodes."""

    sections: list[Section]
    summary: Mapping[str, Any]


class Benchmark(Struct, frozen=True, kw_only=True):
    """A benchmark, as the module of its name in this folder has to define it: `BENCHMARK = Benchmark(…)`.

    `read` makes conversations of its published file, `protocols` are how answers are judged unless the user says
    otherwise, and `report` makes tables of one or more runs and the conversations that were asked. Verdicts by these
    protocols that are `scored` are part of that report; the means of all others are shown below it. `differences` are
    rows, by name, that a comparison of two runs has beside those by protocol, condition and turn: the second run less
    the first. `agreement` shows how far two judges agree on the same answers. `entries` are a run's rows in the tables
    over models (critic.page.leaderboards). `of_turns` gives the scores of turns, 0 to 1, by conversation and number,
    where several verdicts on a turn make one score: of the model's own replies under its own history. `rewrites`: the
    conversations of a group are wordings of one question.
    """

    title: str
    read: Callable[[Path], list[Conversation]]
    protocols: tuple[Protocol, ...]
    report: Callable[[Sequence[Run], Conversations], Report]
    scored: Callable[[TurnVerdict], bool] = lambda one: one.judging == "standard" and one.opponent is None
    differences: "Callable[[Run, Run, Conversations], dict[str, Difference]]" = lambda *_: {}
    agreement: Callable[[Run, Run, Conversations], Report] | None = None
    entries: "Callable[[Run, Conversations], list[Entry]]" = lambda *_: []
    of_turns: Callable[[Verdicts], Mapping[tuple[str, int], float | None]] | None = None
    rewrites: bool = False


def load(name: str) -> Benchmark:
    """Raises UsageError for an unknown benchmark."""
    if name not in BENCHMARKS:
        raise UsageError(f"{name}: unknown benchmark; choose {', '.join(BENCHMARKS)}")
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
    return {
        (turn.verdict.conversation, turn.verdict.condition, turn.verdict.turn): hash(turn.answer)
        for turn in run.turns
        if turn.answer
    }


def alike(mine: Mapping[Any, int], theirs: Mapping[Any, int]) -> bool | None:
    """Whether the replies of two files, `answers_of`, are the same wherever both judge a turn; None where they share
    none."""
    shared = mine.keys() & theirs.keys()
    return all(mine[key] == theirs[key] for key in shared) if shared else None


def same_answers(one: Run, other: Run) -> bool | None:
    """Whether two files judge the same replies, one model's; None where they do not say."""
    return alike(answers_of(one), answers_of(other)) if one.system == other.system else False


def order_reading(run: Run, battles: bool = False) -> list[str]:
    """How far pairwise verdicts, on the reference's answers or on another model's, follow the places of the answers,
    and how many of them are ties for want of a verdict."""

    def compared(one: TurnVerdict) -> bool:
        return one.protocol == "pairwise" and (one.opponent is not None) == battles

    unread = run.counted(lambda one: compared(one) and one.unread)[True]
    pairs = [turn.calls for turn in run.turns if compared(turn.verdict)] if run.counted(compared)[True] else []
    ties = [f"{run.name}: {unread} of {len(pairs)} comparisons came to no verdict and count as ties."] if unread else []
    values = [value for calls in pairs for _, value in calls]
    if not values:
        return ties
    decided = sum(value != "tie" for value in values)
    first_won = f"the first of the two answers won {values.count('A')}"
    reading = f"{run.name}: of {decided} comparisons with a winner, {first_won}"
    # The last verdict of each order counts: a reply that could not be read was asked about once more.
    both = [dict(calls) for calls in pairs if {first for first, _ in calls} == {"model", "opponent"}]
    if both:
        alike = {"A": "B", "B": "A", "tie": "tie"}
        differ = sum(calls["opponent"] != alike[calls["model"]] for calls in both)
        reading += f"; {differ} of {len(both)} pairs were judged otherwise in the other order and count as ties"
    return [reading + ".", *ties]
