"""Benchmarks, one per module of this folder, and the runs that are scored. README.md explains how to add one."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from msgspec import Struct, toml
from msgspec.structs import asdict, replace

from critic.errors import UsageError, did_you_mean, quoted
from critic.judging import protocols
from critic.judging.prompt import prompt_hash
from critic.page.blocks import Figure, Section
from critic.records import UNREADABLE, Conversation, JudgeConfig, Judgment

if TYPE_CHECKING:  # the commands that only list benchmarks need no NumPy
    from critic.page.figures import Sizes
    from critic.stats.leaderboard import Leaderboard, LeaderboardRow

Verdicts = Sequence[Judgment]
Conversations = Sequence[Conversation]


class PaperTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a paper that a run may reproduce on its own, without the paper's other tables.

    `protocols`: the table's protocols; () for all of the paper's. `setup`: the fields of JudgeConfig that differ from
    the paper's usual setup, with their values.
    """

    protocols: tuple[str, ...] = ()
    setup: dict[str, Any] = {}


class Paper(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A benchmark as its paper describes it (`papers.toml`).

    - `protocols`: the default protocols of the judge.
    - `conditions`: the conditions (histories) of the paper's main tables, the usual one first.
    - `published`: the paper's judge setup (`--as published`): every constant of its protocol.
    - `parts`: table name, such as "table 1" -> PaperTable.
    """

    title: str
    protocols: tuple[str, ...]
    conditions: tuple[str, ...] = ("own",)
    published: JudgeConfig = JudgeConfig(judge="", score_kind="argmax")
    parts: dict[str, PaperTable] = {}


class _Papers(Struct, forbid_unknown_fields=True):
    """The content of `papers.toml`, which explains it."""

    settings: dict[str, str]
    papers: dict[str, Paper]


_PAPERS = toml.decode(Path(__file__).with_name("papers.toml").read_bytes(), type=_Papers)

BENCHMARKS = tuple(sorted(module.name for module in iter_modules(__path__)))


def of_paper(name: str) -> dict[str, Any]:
    """Return the fields of a Benchmark that its paper determines, by name, read from `papers.toml`."""
    paper = _PAPERS.papers[name]
    # A setup has the hash of the prompt, which the file names.
    second = paper.published.second_question and prompt_hash(paper.published.second_question)
    return asdict(paper) | {"published": replace(paper.published, second_question=second)}


class Run(Struct, frozen=True, kw_only=True):
    """One model's verdicts by one judge in one setup, read from the file `path`. `name` identifies it in a report."""

    name: str
    path: Path
    system: str
    judge: str
    setup: JudgeConfig
    turns: list[Judgment]

    @property
    def verdicts(self) -> list[Judgment]:
        """Return the verdicts on this model only, without comparisons of two models."""
        return [judgment for judgment in self.turns if judgment.opponent is None]

    @property
    def battles(self) -> list[Judgment]:
        """Return the verdicts that compare two models."""
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
    """A benchmark's additions to the scores: rows of further tables, page sections, and values for summary.json."""

    rows: "list[LeaderboardRow]" = []
    sections: list[Section] = []
    summary: Mapping[str, Any] = {}


class Benchmark(Paper, frozen=True, kw_only=True):
    """A benchmark. The module of its name in this folder defines `BENCHMARK = Benchmark(…)`.

    - `read`: parses the published file into conversations.
    - `entries`: function that returns a run's rows, one per table, from the verdicts for which `scored` is True. The
      means of all other verdicts are listed below these tables.
    - `report`: function that returns additions that concern several runs or are not tables over models.
    - `draw`: function that returns pictures of the leaderboards (by key), given the models' sizes if they are known.
    """

    read: Callable[[Path], Iterable[Conversation]]
    entries: "Callable[[Run, Conversations], Iterable[LeaderboardRow]]"
    report: Callable[[Sequence[Run], Conversations], Report] = lambda *_: Report()
    draw: "Callable[[Mapping[str, Leaderboard], Sizes], Iterable[Figure]]" = lambda *_: ()
    scored: Callable[[Judgment], bool] = lambda judgment: judgment.judging == "standard" and judgment.opponent is None

    def paper_setup(self, used: Iterable[str]) -> JudgeConfig:
        """Return the judge's setup in the paper for verdicts by the protocols `used`."""
        # Only comparisons have an order, and ties: other protocols refuse what sets them.
        return self.published if any_compares(used) else replace(self.published, order="both", unread="fail")

    def setup_departures(self, setup: JudgeConfig, used: Collection[str]) -> list[str]:
        """List the deviations of a judge's setup from the paper's, as text, for verdicts by the protocols `used`."""
        paper, words = self.paper_setup(used), list[str]()
        # Only this protocol leaves the form to the user.
        of_form = {"pointwise_prompt": "form"} if "pointwise" in used else {}
        for name, option in (_PAPERS.settings | of_form).items():
            here, there = map(attrgetter(name), (setup, paper))
            if here != there:
                words.append(f"{option} {here} (paper: {there})")
        return [*words, "recalibrated ratings"] if setup.recalibrated else words

    def compare_with_paper(self, run: Run) -> tuple[str, list[str]]:
        """Return the part of the paper that a run follows, and its deviations from the paper as text.

        The part is "" for the whole paper. If the run deviates from the whole but follows one table (`parts`), the part
        is that table's name and there are no deviations.
        """
        words = self._departures(run)
        for name, part in self.parts.items():
            setup = replace(self.published, **part.setup)
            table = replace(self, protocols=part.protocols or self.protocols, published=setup)
            if words and not table._departures(run):
                return name, []
        return "", words

    def _departures(self, run: Run) -> list[str]:
        """List the run's deviations from the paper's setup; empty if as published."""
        # Who imports people's grades asks no judge, so there is no setup to compare.
        if all(judgment.prompt_hash == "people" for judgment in run.turns):
            return ["judged by people (paper: by a model)"]
        used = list(dict.fromkeys(judgment.protocol for judgment in run.turns if judgment.protocol))
        words = self.setup_departures(run.setup, used)
        # Only an unreadable reply is asked about once more.
        unread = sum(judgment.unread or judgment.failure in UNREADABLE for judgment in run.turns)
        if self.published.second_question and not run.setup.second_question and unread:
            words.append(f"{unread} unreadable verdicts without a second question (paper: asks it)")
        if run.battles and not all(map(self.scored, run.battles)):
            words.append("battles between models (paper: none)")
        if not run.verdicts:
            return words  # what the paper asks of each answer is not asked of a battle
        words += [f"no verdicts by {protocol}" for protocol in self.protocols if protocol not in used]
        seen = {judgment.condition for judgment in run.turns}
        return words + [f"no condition {condition}" for condition in self.conditions if condition not in seen]


class Runs(Struct, frozen=True, kw_only=True):
    """The content of a report: a benchmark, its `name`, its runs, and its conversations.

    The runs' names differ, and each verdict is in one run. `conversations` are all of the benchmark's file or, if that
    is not given, those with a verdict.
    """

    name: str
    benchmark: Benchmark
    runs: list[Run]
    conversations: list[Conversation]

    @property
    def verdicts(self) -> list[Judgment]:
        """Return the verdicts of all runs, battles included."""
        return [judgment for run in self.runs for judgment in run.turns]

    @property
    def failures(self) -> int:
        """Return the number of failed verdicts."""
        return sum(judgment.failure is not None for judgment in self.verdicts)


def any_compares(names: Iterable[str]) -> bool:
    """Return True if one of the protocols compares two answers."""
    return any(protocols.load(name).compares for name in names)


def name_row(row: "LeaderboardRow", run: Run) -> "LeaderboardRow":
    """Return `row` with the judge, the model and the name of its run.

    The name ends with the condition if it is unusual.
    """
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

    Raises UsageError for an unknown benchmark, and for an error in the file, naming line and key.
    """
    return [*load(name).read(path)]


def check_asked(path: Path, published: Iterable[Conversation], asked: Iterable[tuple[Conversation, Path]]) -> None:
    """Raise UsageError if a conversation in `asked` is missing or different in the benchmark's file.

    `path`: the benchmark's file. `published`: its conversations. `asked`: conversations from other files, each with the
    path of such a file.
    """
    by_id = {conversation.id: conversation for conversation in published}
    for conversation, file in asked:
        # Replies to another edition of the benchmark would be judged by its references.
        if by_id.get(conversation.id) != conversation:
            raise UsageError(f"{path}: conversation {quoted(conversation.id)} of {file} is not there, or not as here")


def count_equal_replies(first: Run, second: Run) -> tuple[int, int]:
    """Return the number of turns with equal replies in two runs, and the number of turns with a reply in both."""
    mine, theirs = first.replies, second.replies
    return len(mine.items() & theirs.items()), len(mine.keys() & theirs.keys())


BIASED, FEWEST_PAIRS, FEWEST_DRAWN = 0.2, 20, 100
"""Thresholds for showing an order effect at the head of a page.

They are the share of affected pairs, the fewest pairs judged in both orders, and the fewest comparisons if each was
judged in one random order.
"""


def order_effects(runs: Iterable[Run]) -> dict[str, bool]:
    """Return a sentence on each judge's order effect over all its comparisons -> True if the effect is large.

    An order effect means that verdicts depend on which answer is shown first.
    """
    compared: dict[str, list[Judgment]] = {}
    for run in runs:
        pairwise = (judgment for judgment in run.turns if judgment.protocol and any_compares([judgment.protocol]))
        # A scoring head rates each answer separately, in no order.
        compared.setdefault(run.judge, []).extend(line for line in pairwise if any(call.first for call in line.calls))
    return dict(_order_effect(judge, judgments) for judge, judgments in compared.items() if judgments)


def _order_effect(judge: str, compared: Sequence[Judgment]) -> tuple[str, bool]:
    """Return the sentence on the order effect of `judge` in its comparisons, and True if the effect is large."""
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
