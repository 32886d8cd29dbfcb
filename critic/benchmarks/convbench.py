"""ConvBench: reading its sheet, its scores (§4, tables 1 and 8), the sources of errors (§3.3, §5.2), the agreement
of two judges, and its report.

A row of the sheet is one conversation of three turns (perception, reasoning and creation) about one image:

    image_id                        0001.jpg
    instruction-conditioned-caption A red kite flies over a beach; two children hold its string.
    The_first_turn_instruction      What is in the sky?          … second … third: Write a poem about this day.
    First_turn_instruction_category Object recognition           … Second … Third: Poetry
    first_turn_answer               A red kite.                  … second … third: Red above the sand …
    third_turn_demands              Mentions kite and children; has a rhyme.
"""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec import convert, toml
from msgspec.structs import replace

from critic import tables
from critic.benchmarks import Benchmark, Conversations, Report, Run, Verdicts, count_equal_replies, of_paper
from critic.errors import UsageError
from critic.records import Conversation, ConversationTurn, Judgment
from critic.stats.aggregate import Cell, Groups, Scale, Scores, by_cell, each, groups_by, groups_of, paired
from critic.stats.leaderboard import LeaderboardRow, Score, Term, score_of, scores_by_part

FORMATS = (".xlsx", ".csv", ".jsonl", ".parquet")

INSTRUCTIONS = ("The_first_turn_instruction", "The_second_turn_instruction", "The_third_turn_instruction")
TASKS = ("First_turn_instruction_category", "Second_turn_instruction_category", "Third_turn_instruction_category")
REFERENCES = ("first_turn_answer", "second_turn_answer", "third_turn_answer")
IMAGE, CAPTION, FOCUS = "image_id", "instruction-conditioned-caption", "third_turn_demands"
PUBLIC, ANNOTATED = (IMAGE, *INSTRUCTIONS), (CAPTION, *TASKS, *REFERENCES, FOCUS)
"""Columns that the benchmark's own script reads. The public sheet has only the first group."""

OWN = "own"

_FILE = toml.decode(Path(__file__).with_suffix(".toml").read_bytes())

CELLS = convert(_FILE["cells"], dict[str, Cell])
"""Name of a score in table 1 -> its cell. Hat: with perfect perception; tilde: with perfect perception and reasoning.

A capability is perfect if the references of the turns about it, instead of the model's replies, are the history.
"""

ALONE = {"S2": [Cell("no_history", 2)], "S3": [Cell("no_history", 3), Cell("single_turn", 3)]}
"""The cells of figure 8, in which the model sees a turn without the earlier ones. The first cell with verdicts counts.
"""

DERIVED: dict[str, dict[str, float]] = _FILE["derived"]
"""Derived score -> the weight of each cell in its sum, by name of the cell."""

STEPS = (("perception", "S2", "S2_hat"), ("perception", "S3", "S3_hat"), ("reasoning", "S3_hat", "S3_tilde"))
"""The steps of the hierarchical ablation: the capability that the step makes perfect, and a turn's cells before and
after it."""

UNIT = {"pairwise": 100.0, "direct": 1.0}
SCALE: dict[str, Scale] = {"pairwise": (0.0, 100.0), "direct": (1.0, 10.0)}
"""Factor and range of the scores as the paper prints them: pairwise in per cent, direct as grades."""

CHANGES: dict[str, Scale] = {"pairwise": (-100.0, 100.0), "direct": (-9.0, 9.0)}
"""The range of the difference of two scores."""

HEADINGS: dict[str, str] = _FILE["headings"]
"""Name of a score -> its column heading in tables 1 and 8, in the paper's order."""

TITLES: dict[str, str] = {"pairwise": "win rate against the reference, %", "direct": "direct grading, 1 to 10"}


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of a ConvBench sheet (.xlsx, or saved as .csv, .jsonl or .parquet), in its order.

    Images are paths as in the column `image_id`, and `video` may replace or join it; an optional column `lang` marks
    Chinese rows. The public sheet has no column of ANNOTATED: its turns have no reference, so they only allow comparing
    two models. Raises UsageError if a sheet has only some of these columns, for an empty cell, and for a duplicate id.
    """
    ids = tables.Ids()
    for number, (location, row) in enumerate(tables.rows(path, FORMATS), 1):
        # One annotated column is enough: a sheet with some of them is damaged, not public.
        annotated = not row.keys().isdisjoint(ANNOTATED)
        needed = (*PUBLIC, *(ANNOTATED if annotated else ()))
        if missing := [column for column in needed if column not in row and not (column == IMAGE and "video" in row)]:
            raise UsageError(f"{path}: the sheet lacks {', '.join(missing)}; ask ConvBench's authors for the full one")
        pictures = tables.list_pictures(location, row, IMAGE)
        turns = [
            ConversationTurn(
                prompt=tables.require_text(location, row, INSTRUCTIONS[turn]),
                reference=tables.require_text(location, row, REFERENCES[turn]) if annotated else None,
                task=tables.require_text(location, row, TASKS[turn]) if annotated else None,
                images=pictures if turn == 0 else [],
                focus=tables.require_text(location, row, FOCUS) if annotated and turn == 2 else None,
            )
            for turn in range(3)
        ]
        yield Conversation(
            id=ids.add(location, tables.optional_text(row, "ID") or str(number)),
            benchmark="convbench",
            lang=tables.parse_language(location, row),
            group=pictures[0],
            turns=turns,
            caption=tables.require_text(location, row, CAPTION) if annotated else None,
        )


def scores(verdicts: Verdicts, conversations: Conversations, protocol: str) -> dict[str, Score]:
    """Return the row of table 1 (pairwise: win rates in per cent) or table 8 (direct: 1..10), in the paper's order.

    The row has a score for each cell with verdicts, and each derived score (DERIVED) whose cells all have verdicts.
    """
    judged = by_cell(verdicts, protocol, UNIT[protocol])
    groups = groups_of(conversations)
    terms = {name: Term(1.0, judged[cell], groups, SCALE[protocol]) for name, cell in CELLS.items() if cell in judged}
    by_name = {}
    for name in HEADINGS:
        weights = DERIVED.get(name, {name: 1.0})
        # A derived score over some of its cells would not be the paper's.
        if weights.keys() <= terms.keys():
            by_name[name] = Score(parts=[replace(terms[cell], weight=weight) for cell, weight in weights.items()])
    return by_name


def _list_steps(judged: Mapping[Cell, Scores]) -> Iterator[tuple[str, int, Scores]]:
    """Yield the steps (STEPS, §3.3) that were judged: capability, turn, and change of score by conversation id."""
    for cause, base, perfect in STEPS:
        if CELLS[base] in judged and CELLS[perfect] in judged:
            yield cause, CELLS[base].turn or 0, _subtract(judged[CELLS[base]], judged[CELLS[perfect]])


def pairs_of_tasks(models: Sequence[Verdicts], conversations: Conversations, protocol: str) -> dict[str, Score]:
    """Return the points that a perfect step (STEPS) adds to a score (§5.1), by pair of tasks, pooled over models.

    A pair is the task of the perfected turn and the task of the scored turn. The points of all pairs of a step add up
    to the total that the step adds. `models`: the verdicts on each model.
    """
    changes = dict[Any, float | None]()
    asked: dict[str, dict[Any, str]] = {}
    for model, verdicts in enumerate(models):
        for cause, turn, change in _list_steps(by_cell(verdicts, protocol, UNIT[protocol])):
            changes |= _prefix(change, model, cause, turn)
            about = 1 if cause == "perception" else 2  # the turn that is about the capability
            for conversation in conversations:
                tasks = f"{_name_task(about, conversation)} → {_name_task(turn, conversation)}"
                of_pair = asked.setdefault(f"{tasks}: perfect {cause}, turn {turn}", {})
                of_pair[model, cause, turn, conversation.id] = conversation.group
    adds: dict[str, Score] = {}
    for name, of_pair in asked.items():
        # The share of the pair's conversations, so that the pairs of a turn add up to its whole change.
        share = len(of_pair) / len({model for model, *_ in of_pair}) / len(conversations)
        adds[name] = Score(parts=[Term(share, changes, of_pair, CHANGES[protocol])])
    return adds


def errors(verdicts: Verdicts, conversations: Conversations, protocol: str) -> dict[str, Score]:
    """Return the sources of a model's errors, one score per column. Columns whose verdicts are missing are left out.

    In % of conversations: the first turn that fails (scores below the middle of the scale), and verdicts that change
    with a perfect step (STEPS). In points: the gain from a perfect step (§5.1), R1 minus R2, and the change if the
    model sees a turn without the earlier ones (figure 8).
    """
    judged = by_cell(verdicts, protocol, UNIT[protocol])
    groups = groups_of(conversations)
    columns: dict[str, Score] = {}
    by_name = scores(verdicts, conversations, protocol)
    # The first failure is unknown while a turn has not been judged at all.
    if by_name.keys() >= {"S1", "S2", "S3"}:
        first = {key: _find_first_failure(judged, key, protocol) for key in groups}
        for turn in (1, 2, 3):
            columns[f"fails at {turn}"] = _score_percent(first, groups, float(turn).__eq__)
    columns |= _count_flips(judged, groups)
    columns |= {HEADINGS[name]: score for name, score in by_name.items() if name.startswith("delta")}
    # R1 needs every cell that R2 needs, so R2 is there as well.
    if "R1" in by_name:
        less = [replace(part, weight=-part.weight) for part in by_name["R2"].parts]
        columns["R1−R2"] = Score(parts=[*by_name["R1"].parts, *less])
    for name, cells in ALONE.items():
        cell = next((cell for cell in cells if cell in judged), None)
        if cell and CELLS[name] in judged:
            lost = _subtract(judged[CELLS[name]], judged[cell])
            columns[f"{name} alone−{name}"] = score_of(lost, groups, CHANGES[protocol])
    return columns


def ablations(verdicts: Verdicts, conversations: Conversations, protocol: str) -> dict[str, Score]:
    """Return how the score of each cell changes if the judge sees focus points, or the turns' judgments.

    Only cells that were judged with and without them are included. Differences are paired by conversation, in per cent
    for pairwise verdicts and in points for grades.
    """
    judged, groups = by_cell(verdicts, protocol, UNIT[protocol]), groups_of(conversations)
    columns = {}
    for judging in ("no_focus", "no_turn_verdicts"):
        for name, cell in CELLS.items():
            without = replace(cell, judging=judging)
            if cell in judged and without in judged:
                added = _subtract(judged[without], judged[cell])
                columns[f"{HEADINGS[name]}, {judging}"] = score_of(added, groups, CHANGES[protocol])
    return columns


def _count_flips(judged: Mapping[Cell, Scores], groups: Groups) -> dict[str, Score]:
    """Return the % of turns whose score changes, rises or falls with perfect perception (Ŝ) or reasoning (S̃)."""
    columns: dict[str, Score] = {}
    for mark, capability in (("Ŝ", "perception"), ("S̃", "reasoning")):
        changes = dict[Any, float | None]()
        asked = dict[Any, str]()
        for cause, turn, change in _list_steps(judged):
            if cause == capability:
                changes |= _prefix(change, turn)
                asked |= _prefix(groups, turn)
        if asked:
            columns[f"flips {mark}"] = _score_percent(changes, asked, bool)
            columns[f"{mark} up"] = _score_percent(changes, asked, (0.0).__lt__)
            columns[f"{mark} down"] = _score_percent(changes, asked, (0.0).__gt__)
    return columns


def _prefix(values: Mapping[str, Any], *parts: Any) -> dict[Any, Any]:
    """Return the mapping with `parts` in front of each key, so that several mappings can be merged.

    >>> _prefix({"c1": 5.0}, "S1", 2)
    {('S1', 2, 'c1'): 5.0}
    """
    return {(*parts, key): value for key, value in values.items()}


def _find_first_failure(judged: Mapping[Cell, Scores], conversation: str, protocol: str) -> float | None:
    """Return the number of the first turn that fails, 0 if none does, or None if a missing verdict hides it.

    A turn fails if its score is below the middle of the protocol's scale. `conversation`: the conversation's id.
    """
    for turn in (1, 2, 3):
        score = judged[Cell(OWN, turn)].get(conversation)
        if score is None or score < sum(SCALE[protocol]) / 2:
            return None if score is None else float(turn)
    return 0.0


def _subtract(before: Scores, after: Scores) -> dict[str, float | None]:
    """Return `after` minus `before` for each id that has both."""
    return paired(before, after, lambda old, new: new - old)


def _score_percent(values: Scores, asked: Groups, counts: Callable[[float], bool]) -> Score:
    """Build a score: the percentage of the `asked` cases for whose value the function `counts` returns True."""
    return score_of(each(values, lambda value: 100.0 * counts(value)), asked, (0, 100))


def agreement(pairs: Sequence[tuple[Run, Run]], conversations: Conversations, protocol: str) -> dict[str, Score]:
    """Return how often two judges, or a judge and a person, give equal scores, in per cent.

    `pairs`: for each model, its runs by the two judges. The score `all` covers all cells (table 3); each cell that both
    judged follows (tables 4 to 7). Verdicts on one conversation are resampled together.
    """
    groups = groups_of(conversations)
    equal: dict[Any, float | None] = {}
    asked: dict[str, dict[Any, str]] = defaultdict(dict)
    for model, pair in enumerate(pairs):
        mine, theirs = (by_cell(run.verdicts, protocol) for run in pair)
        for name, cell in CELLS.items():
            if cell in mine and cell in theirs:
                same = paired(mine[cell], theirs[cell], lambda one, other: 100.0 * (one == other))
                equal |= _prefix(same, name, model)
                asked[name] |= _prefix(groups, name, model)
    by_heading = {HEADINGS[name]: asked[name] for name in CELLS if name in asked}
    return scores_by_part(equal, {"all": ChainMap(*asked.values()), **by_heading}, (0, 100))


def _name_task(turn: int, conversation: Conversation) -> str:
    """Return the task of turn number `turn` (from 1), or "none" if it has no task."""
    return conversation.turns[turn - 1].task or "none"


def report(runs: Sequence[Run], conversations: Conversations) -> Report:
    """Build the tables of the points that perfect steps add by pair of tasks, and of the agreement between judges.

    The summary lists the conversations whose score changes with a perfect step, and by how much.
    """
    rows = [*_compare_judges(runs, conversations)]
    summary: dict[str, dict[str, Any]] = {}
    for protocol in TITLES:
        judged = [run for run in runs if protocol in run.protocols()]
        for run in judged:
            flips = {}
            for cause, turn, change in _list_steps(by_cell(run.verdicts, protocol, UNIT[protocol])):
                flips[f"perfect {cause}, turn {turn}"] = {key: by for key, by in change.items() if by}
            summary.setdefault(run.name, {})[protocol] = {"flips": flips}
        caption = f"What a perfect step adds to the score of all models by pair of tasks ({protocol})"
        for name, score in pairs_of_tasks([run.verdicts for run in judged], conversations, protocol).items():
            rows.append(LeaderboardRow(f"{protocol}-pairs", caption, {"adds": score}, name=name, collapsed=True))
    return Report(rows=rows, summary=summary)


def _compare_judges(runs: Sequence[Run], conversations: Conversations) -> Iterator[LeaderboardRow]:
    """Yield rows on the agreement of every two judges, people included, on the same model's replies.

    If the same two judged several models, a row pooled over them is added, in a table of its own.
    """
    pairs_by_judges = _pair_judges(runs)
    for protocol in TITLES:
        caption = f"Equal verdicts of two judges, or a judge and people, in % ({protocol}; tables 3 to 7)"
        for judges, pairs in pairs_by_judges.items():
            both = [pair for pair in pairs if all(protocol in run.protocols() for run in pair)]
            pooled = [both] if len(both) > 1 else []
            for models in [*pooled, *([pair] for pair in both)]:
                scores = agreement(models, conversations, protocol)
                system, key = models[0][0].system, f"agreement-{protocol}"
                row = LeaderboardRow(key, caption, scores, system=system)
                # A row of all models is no model's, in colour or in rank.
                if len(models) > 1:
                    system = f"all {len(models)} models"
                    row = replace(row, key=f"{key}-pooled", caption=f"{caption}, pooled over models", system="")
                yield replace(row, name=f"{system}: {' and '.join(judges)}")


def _pair_judges(runs: Sequence[Run]) -> dict[tuple[str, str], list[tuple[Run, Run]]]:
    """Return the pairs of runs in which two judges judged the same replies, by the judges' names.

    If a judge has several files for a model, the runs' names are used instead. Runs with different replies are not
    paired.
    """
    judged = [run for run in runs if run.verdicts]
    files = Counter((run.system, run.judge) for run in judged)
    pairs: dict[tuple[str, str], list[tuple[Run, Run]]] = {}
    for mine, theirs in combinations(judged, 2):
        if mine.system != theirs.system:
            continue
        equal, shared = count_equal_replies(mine, theirs)
        # Files without a common reply pass: older files hold none.
        if equal == shared:
            first, second = (run.judge if files[run.system, run.judge] == 1 else run.name for run in (mine, theirs))
            # Files come in any order, and agreement is symmetric.
            judges = (second, first) if (second, first) in pairs else (first, second)
            pairs.setdefault(judges, []).append((mine, theirs))
    return pairs


def _list_rows(run: Run, conversations: Conversations) -> Iterator[LeaderboardRow]:
    """Yield a run's rows: tables 1 and 8, the sources of errors, and figure 6 (scores by each turn's task)."""
    groups = groups_of(conversations)
    # One file may hold verdicts by both protocols, whose scales differ.
    for protocol, scale in SCALE.items():
        points = "points" if protocol == "direct" else "%"
        by_heading = {HEADINGS[name]: score for name, score in scores(run.verdicts, conversations, protocol).items()}
        if by_heading:
            caption = f"{TITLES[protocol].capitalize()} (table {8 if protocol == 'direct' else 1} of the paper)"
            main = [name for name in ("R1", "R2", "S1", "S2", "S3", "SO") if name in by_heading]
            yield LeaderboardRow(protocol, caption, by_heading, charted=main)
        if contrasts := ablations(run.verdicts, conversations, protocol):
            caption = f"What focus points and turns' judgments add: with less without, in {points} (ablations)"
            yield LeaderboardRow(f"{protocol}-ablations", caption, contrasts, charted=list(contrasts), ranked=False)
        if columns := errors(run.verdicts, conversations, protocol):
            drawn = [name for name in columns if "O" not in name and not name.endswith(("up", "down"))]
            caption = f"Where errors come from: fails and flips in %, what a perfect step adds ({protocol})"
            yield LeaderboardRow(f"{protocol}-errors", caption, columns, charted=drawn, ranked=False)
        for turn in (1, 2, 3):
            verdicts = by_cell(run.verdicts, protocol, UNIT[protocol]).get(Cell(OWN, turn), {})
            # A turn without verdicts would only fill a table with dashes.
            if verdicts:
                caption = f"S{turn} by task, {TITLES[protocol]} (figure 6 of the paper)"
                tasks = groups_by((_name_task(turn, talk), talk.id, talk.group) for talk in conversations)
                by_task = scores_by_part(verdicts, {"all": groups, **dict(sorted(tasks.items()))}, scale)
                yield LeaderboardRow(f"{protocol}-S{turn}-tasks", caption, by_task, collapsed=True)


def _is_scored(judgment: Judgment) -> bool:
    """Return True for a verdict that a cell of table 1 counts."""
    return judgment.opponent is None and Cell(judgment.condition, judgment.turn, judgment.judging) in CELLS.values()


BENCHMARK = Benchmark(
    **of_paper("convbench"), read=read_conversations, report=report, scored=_is_scored, entries=_list_rows
)
