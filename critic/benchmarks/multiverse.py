"""MultiVerse: reading its data set as documented on its page, and its scores.

A row is one conversation about one image, user and assistant in turn, with a checklist of yes/no questions each
turn:

    {"index": "17", "image": "beach.png", "main_goal_category": "Exploration", "main_task_category": "Recognition",
     "image_main_category": "Outdoor", "conversation": [
       {"speaker": "user", "utterance": "What flies there?", "checklist": [{"question": "Is a kite named?",
        "main_criteria": "Perceptual Accuracy", "sub_criteria": "Object Naming"}]},
       {"speaker": "assistant", "utterance": "A red kite.", "checklist": []}, …]}

A turn's score is completion ratio x quality (MultiVerse §4, table 2).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from critic import tables
from critic.benchmarks import Benchmark, Conversations, Report, Run, Verdicts, of_paper
from critic.errors import UsageError, located, quoted
from critic.judging.history import CONDITIONS
from critic.page.blocks import Columns, Figure, Section, TableCell, interval, number
from critic.page.figures import Sizes, compare_parts, plot_many
from critic.records import Conversation, ConversationTurn
from critic.stats.aggregate import Cell, Groups, Scale, Scores, by_cell, groups_by, paired
from critic.stats.arrays import ratio
from critic.stats.estimate import Bootstrap, Interval
from critic.stats.leaderboard import Leaderboard, LeaderboardRow, Score, score_of, scores_by_part

FORMATS = (".parquet", ".jsonl")

ORACLE, SELF_PREDICTION = "oracle", "own"

SCALE: Scale = (0, 100)
SCALES: dict[str, Scale] = {"score": SCALE, "completion": SCALE, "quality": (10, 100)}
"""Range of each measure of a turn."""


class ChecklistItem(Struct):
    """An item of a turn's checklist, as a row has it."""

    question: str
    main_criteria: str | None = None
    sub_criteria: str | None = None


class Utterance(Struct):
    """What one side says in a row, and the checklist of the turn."""

    speaker: str
    utterance: str
    checklist: list[ChecklistItem] | None = None


class _Row(Struct):
    index: str
    conversation: Annotated[list[Utterance], Meta(min_length=1)]
    main_goal_category: str
    main_task_category: str
    image_main_category: str


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of the published data set, in its order.

    Files are .parquet with embedded images, or .jsonl with the same keys and a path as `image` or `video`. A checklist
    may be with either utterance of its turn. An optional key `lang` marks Chinese rows. Raises UsageError, naming place
    and key, for a checklist item without a question, a turn without a reference or a checklist, speakers that do not
    alternate, or a duplicate index.
    """
    ids = tables.Ids()
    for location, raw in tables.rows(path, FORMATS):
        with located(location, ValidationError):
            row = convert({**raw, "conversation": _parse_utterances(location, raw.get("conversation"))}, _Row)
        key = ids.add(location, row.index)
        yield Conversation(
            id=key,
            benchmark="multiverse",
            lang=tables.parse_language(location, raw),
            group=key,  # each conversation has an image of its own
            turns=[*_build_turns(location, row, tables.list_pictures(location, raw, "image"))],
            goal=row.main_goal_category,
            domain=row.image_main_category,
        )


def _parse_utterances(location: str, value: Any) -> Any:
    """Return the stored conversation as a list of utterances, from either layout that `_parse_list` reads.

    `value` of any other type is returned unchanged; the validation that follows rejects it.
    """
    spoken = _parse_list(location, "conversation", value)
    # What is no list, or no object, is named by the conversion that follows.
    for index, utterance in enumerate(spoken if isinstance(spoken, list) else ()):
        if isinstance(utterance, dict):
            key = f"conversation[{index}].checklist"
            utterance["checklist"] = _parse_list(location, key, utterance.get("checklist"))
    return spoken


def _parse_list(location: str, key: str, value: Any) -> Any:
    """Convert an object of lists, as Parquet files may store it, to a list of objects. Return other values unchanged.

    `location` and `key` name the value in errors. Raises UsageError if the lists differ in length.

    >>> _parse_list("rows.parquet:1", "conversation", {"speaker": ["user", "assistant"], "utterance": ["Hi", "Hello"]})
    [{'speaker': 'user', 'utterance': 'Hi'}, {'speaker': 'assistant', 'utterance': 'Hello'}]
    """
    # JSON Lines store plain lists already.
    if not isinstance(value, dict):
        return value
    columns = {name: cells for name, cells in value.items() if cells is not None}
    try:
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    except (TypeError, ValueError):
        raise UsageError(f"{location}: {quoted(key)} has lists of different lengths; expected one entry each") from None


def _build_turns(location: str, row: _Row, images: list[str]) -> Iterator[ConversationTurn]:
    """Yield the turns of a row. Raises UsageError if speakers do not alternate or a turn is incomplete."""
    spoken = row.conversation
    # The user begins, and two names alternate, whatever they are.
    names = [utterance.speaker.strip().lower() for utterance in spoken]
    for position, name in enumerate(names):
        if name != names[position % 2] or (name == names[0] if position % 2 else "assistant" in name):
            speaker = f"conversation[{position}].speaker is {quoted(spoken[position].speaker)}"
            raise UsageError(f"{location}: {speaker}; user and assistant must alternate, and the user begin")
    # The assistant's last utterance is the reference of the last turn.
    if len(spoken) % 2:
        raise UsageError(f"{location}: turn {len(spoken) // 2 + 1} has no reference: the last word is the user's")
    for index in range(0, len(spoken), 2):
        items = _find_checklist(location, index // 2 + 1, spoken[index : index + 2])
        aspects = [((item.main_criteria or "").strip(), (item.sub_criteria or "").strip()) for item in items]
        yield ConversationTurn(
            prompt=_require_utterance(location, spoken, index),
            reference=_require_utterance(location, spoken, index + 1),
            task=row.main_task_category,
            images=[] if index else images,
            checklist=[item.question.strip() for item in items],
            aspects=aspects if any(main for main, _ in aspects) else [],
        )


def _require_utterance(location: str, spoken: Sequence[Utterance], number: int) -> str:
    """Return the text of utterance number `number` (from 0). Raises UsageError if it is empty."""
    if text := spoken[number].utterance.strip():
        return text
    problem = f"turn {number // 2 + 1} has no reference" if number % 2 else f"turn {number // 2 + 1} asks nothing"
    raise UsageError(f"{location}: {problem}: conversation[{number}].utterance is empty")


def _find_checklist(location: str, turn: int, spoken: Sequence[Utterance]) -> list[ChecklistItem]:
    """Return a turn's checklist, from whichever of its utterances `spoken` has one.

    Raises UsageError if there is none, if there are two different ones, or if an item has no question.
    """
    lists = [utterance.checklist for utterance in spoken if utterance.checklist]
    # Some releases repeat the list with both utterances, which is no conflict if they agree.
    if not lists or [item.question for item in lists[0]] != [item.question for item in lists[-1]]:
        raise UsageError(f"{location}: turn {turn} has {'two checklists' if lists else 'no checklist'}; expected one")
    questions = [item.question.strip() for item in lists[0]]
    if "" in questions:
        raise UsageError(f"{location}: turn {turn}: checklist item {questions.index('') + 1} has no question")
    return lists[0]


Turn = tuple[str, int]
"""A conversation's id, and the number of its turn."""


def measures(verdicts: Verdicts, condition: str) -> dict[str, Scores]:
    """Return the measures "score", "completion", "quality" and "length" of each turn under a condition, by name.

    Completion is the share of yes in per cent; quality is the rating times 10. The score is their product divided by
    100, for turns with both (ranges: SCALES). The length is the reply's number of characters, None if unknown. Raises
    UsageError as `aggregate.by_cell` does.
    """
    completion = _scale_by_turn(verdicts, "checklist", condition, 100)
    quality = _scale_by_turn(verdicts, "quality", condition, 10)
    score = paired(completion, quality, lambda share, grade: share * grade / 100)
    lengths: dict[Any, float | None] = {}
    for judgment in verdicts:
        sample = judgment.sample
        if sample.condition == condition and sample.turn:
            lengths[sample.id, sample.turn] = len(sample.answer) if sample.answer else sample.length
    return {"score": score, "completion": completion, "quality": quality, "length": lengths}


def _scale_by_turn(verdicts: Verdicts, protocol: str, condition: str, unit: float) -> Scores:
    """Return one protocol's scores of all turns under a condition, multiplied by `unit`."""
    cells = by_cell(verdicts, protocol, unit)
    turns = sorted(cell.turn for cell in cells if cell.turn and cell == Cell(condition, cell.turn))
    return {(key, turn): value for turn in turns for key, value in cells[Cell(condition, turn)].items()}


def _list_turns(conversations: Iterable[Conversation], condition: str) -> list[tuple[Conversation, Turn]]:
    """Return the turns that a model answers under a condition, each with its conversation."""
    asked = CONDITIONS.get(condition, CONDITIONS[SELF_PREDICTION]).asked
    return [(talk, (talk.id, number)) for talk in conversations for number in asked(len(talk.turns))]


def turn_means(judged: Scores, by_turn: Mapping[str, Groups]) -> dict[str, Score]:
    """Return the columns of table 2: the average of the turns' means, their slope, and each mean.

    The slope is that of the least-squares line over turn number; it needs several turns. `by_turn` maps turn numbers
    ("1" to "4", or "last") to the turns with that number, each with its group. `judged`: scores by turn.
    """
    means = {f"turn {number}": score_of(judged, turns, SCALE) for number, turns in by_turn.items()}
    scores = {"average": _weigh(means, [1 / len(means)] * len(means))}
    # One turn has no slope.
    if len(means) > 1:
        centred = np.arange(len(means)) - (len(means) - 1) / 2
        scores["slope"] = _weigh(means, (centred / (centred**2).sum()).tolist())
    return scores | means


def _weigh(means: Mapping[str, Score], weights: Sequence[float]) -> Score:
    """Build a score that is the weighted sum of plain means."""
    weighted = zip(means.values(), weights, strict=True)
    return Score(parts=[replace(mean.parts[0], weight=weight) for mean, weight in weighted])


def oracle_effect(verdicts: Verdicts, conversations: Conversations) -> dict[str, Score]:
    """Return how much the score gains if the history holds references instead of the model's own replies.

    The gain is the paired difference of the conditions oracle and self-prediction, over all turns and by turn number.
    """
    own, oracle = (measures(verdicts, condition)["score"] for condition in (SELF_PREDICTION, ORACLE))
    change = paired(oracle, own, lambda with_references, own_replies: with_references - own_replies)
    asked_turns = _list_turns(conversations, ORACLE)
    groups = groups_by((part, turn, talk.group) for talk, turn in asked_turns for part in ("all", f"turn {turn[1]}"))
    return scores_by_part(change, groups, (-100.0, 100.0))


class Fit(Struct, frozen=True, kw_only=True):
    """A least-squares line through `n` turns.

    `r_squared` is the explained share of variance (0..1), with a 95 % `interval` over conversations. All but `n` are
    None with fewer than three turns, or if either variable does not vary.
    """

    n: int
    r_squared: float | None = None
    interval: Interval | None = None
    slope: float | None = None
    intercept: float | None = None


Pairs = list[tuple[float, float]]


def fit_line(
    models: Iterable[Verdicts], condition: str, x: tuple[str, float], y: tuple[str, float], turn: int | None = None
) -> tuple[Fit, Pairs]:
    """Fit the measure `y` of turns to the measure `x` by least squares, pooled over models.

    `models`: the verdicts on each model. `x`, `y`: the name of a measure, and the number to divide its values by.
    `turn`: the number of the turns to use; None for all.

    Return the line, and the (x, y) of each turn.
    """
    pairs = Pairs()
    groups = list[str]()
    for verdicts in models:
        judged = measures(verdicts, condition)
        for key, score in judged["score"].items():
            across, up = (judged[measure].get(key) for measure, _ in (x, y))
            if score is not None and across is not None and up is not None and turn in (None, key[1]):
                pairs.append((across / x[1], up / y[1]))
                groups.append(key[0])
    xs, ys = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    # Two points always lie on a line, and a constant explains nothing.
    if len(pairs) < 3 or not xs.std() or not ys.std():
        return Fit(n=len(pairs)), pairs
    draws = Bootstrap(groups)
    terms = [np.ones(len(pairs)), xs, ys, xs**2, ys**2, xs * ys]
    sums = np.stack([np.bincount(draws.member, term) for term in terms], dtype=np.float64)
    n, sx, sy, sxx, syy, sxy = draws.resample_group_sums(sums).T
    slopes = ratio(n * sxy - sx * sy, n * sxx - sx**2)
    explained = slopes * ratio(n * sxy - sx * sy, n * syy - sy**2)
    bounds, slope = draws.interval(explained[1:]), float(slopes[0])
    middle = float(ys.mean() - slope * xs.mean())
    return Fit(n=len(pairs), r_squared=float(explained[0]), interval=bounds, slope=slope, intercept=middle), pairs


COMPLETION, QUALITY = ("completion", 100.0), ("quality", 10.0)
LENGTH, SCORE = ("length", 1.0), ("score", 1.0)
"""Measures of figures 5 and 9, and what they are divided by: completion ratio 0..1, quality 1..10."""

NAMES = {ORACLE: "the references as history (oracle)", SELF_PREDICTION: "its own replies as history (self-prediction)"}


_FITS = Columns[tuple[str, Fit]](
    ("", lambda pair: pair[0]),
    ("R²", lambda pair: TableCell(number(pair[1].r_squared, 3), interval(pair[1].interval, 3))),
    ("slope", lambda pair: number(pair[1].slope, 4)),
    ("turns", lambda pair: pair[1].n),
)


def _draw_fits(name: str, caption: str, axes: tuple[str, str], fits: Mapping[str, tuple[Fit, Pairs]]) -> list[Figure]:
    """Return a picture with one scatter per fit, in a list; [] if no fit has a line.

    `name`: file name of the picture. `axes`: names of the x and the y axis. `fits`: heading -> line and points; fits
    without a line are left out.
    """
    panels = []
    for heading, (fit, pairs) in fits.items():
        if fit.slope is not None and fit.intercept is not None:
            named = f"{heading}: R² {number(fit.r_squared, 2)} ({interval(fit.interval) or 'no interval'})"
            panels.append(plot_many(named, *axes, pairs, (fit.slope, fit.intercept)))
    return [Figure(caption=caption, picture=name, panels=panels)] if panels else []


def report(runs: Sequence[Run], conversations: Conversations) -> Report:
    """Build the sections on how well completion ratio predicts quality, and a reply's length its score.

    Lines are fitted per model and pooled over models, for each condition.
    """
    fits, pooled, lengths = dict[str, Fit](), dict[str, Fit](), dict[str, Fit]()
    ratios, clouds = list[Figure](), list[Figure]()
    turns = sorted({judgment.turn for run in runs for judgment in run.verdicts if judgment.turn})
    for condition in dict.fromkeys(condition for run in runs for condition in run.conditions()):
        seen = [run for run in runs if condition in run.conditions()]
        every, history = [run.verdicts for run in seen], NAMES.get(condition, condition)
        for run in seen:
            fits[f"{run.name}, {condition}"] = fit_line([run.verdicts], condition, COMPLETION, QUALITY)[0]
        both = {condition: fit_line(every, condition, COMPLETION, QUALITY)}
        # Pooling a single file would repeat its own row.
        if len(seen) > 1:
            pooled[f"all {len(seen)} files, {condition}"] = both[condition][0]
        caption, axes = f"{_FIGURE_5}: the larger a dot, the more turns", ("completion ratio", "quality")
        ratios += _draw_fits(f"ratio-and-quality-{condition}", caption, axes, both)
        by_turn = {f"turn {n}": fit_line(every, condition, LENGTH, SCORE, n) for n in turns}
        lengths |= {f"{condition}, {turn}": fit for turn, (fit, _) in by_turn.items() if fit.n}
        caption = f"Score of a turn by length of the reply, with {history} (figure 9)"
        clouds += _draw_fits(f"length-and-score-{condition}", caption, ("characters", "score"), by_turn)
    by_model = f"{_FIGURE_5}{', by model' if pooled else ''}"
    tables_ = [_FITS.table(_FIGURE_5, pooled.items(), picture="ratio-and-quality")] if pooled else []
    tables_.append(_FITS.table(by_model, fits.items(), details=bool(pooled), picture="ratio-and-quality-models"))
    note = "A turn's score is completion ratio (share of yes) × 10 × quality (1 to 10)."
    section = Section(heading="Completion ratio and quality", figures=ratios, tables=tables_, note=note)
    caption = "How far the score follows from the reply's length (figure 9)"
    table = _FITS.table(caption, lengths.items(), collapsed=True, picture="length-and-score")
    longer = Section(heading="Length and score", figures=clouds, tables=[table])
    sections = [section] * bool(fits) + [longer] * bool(clouds)
    return Report(sections=sections, summary={"ratio_against_quality": pooled | fits, "length_against_score": lengths})


_FIGURE_5 = "How far quality follows from completion ratio, over all turns (figure 5)"


def draw(boards: Mapping[str, Leaderboard], sizes: Sizes) -> Iterator[Figure]:
    """Yield figure 8: a heat map and radars of the models' scores by task, with references as history.

    `boards`: leaderboards by key. `sizes`: model name -> size and family, by which the radars are grouped; empty if
    unknown.
    """
    board = boards.get(f"task-score-{ORACLE}")
    tasks = [column for column in board.columns if column not in ("all", "none")] if board else []
    return compare_parts(board, tasks, "Score of each task, with the references as history (figure 8)", sizes)


PARTS: dict[str, Callable[[Conversation, Turn], str | None]] = {
    "goal": lambda conversation, _: conversation.goal,
    "task": lambda conversation, turn: conversation.turns[turn[1] - 1].task,
    "image domain": lambda conversation, _: conversation.domain,
}
"""Properties by which turns are scored in groups -> function that returns a turn's value of the property."""


def completion_of_aspects(run: Run, condition: str, conversations: Conversations) -> dict[str, Score]:
    """Return the share of yes, in per cent, among the checklist items of each main aspect, by aspect."""
    answers = {
        (judgment.sample.id, judgment.turn): judgment.verdict.answers
        for judgment in run.turns
        if judgment.protocol == "checklist" and judgment.condition == condition
    }
    verdicts = dict[tuple[str, int, int], float | None]()
    asked: dict[str, dict[tuple[str, int, int], str]] = {}
    for conversation, turn in _list_turns(conversations, condition):
        answered = answers.get(turn)
        for item, (main, _) in enumerate(conversation.turns[turn[1] - 1].aspects):
            if answered is not None:
                # A reply with too few answers leaves the last items failed, not absent.
                answer = answered[item] if item < len(answered) else None
                verdicts[(*turn, item)] = None if answer is None else 100.0 * answer
            # Items without an aspect count in the turn's ratio, but in no aspect's.
            if main:
                asked.setdefault(main, {})[(*turn, item)] = conversation.group
    return scores_by_part(verdicts, dict(sorted(asked.items())), SCALE)


def _list_rows(run: Run, conversations: Conversations) -> Iterator[LeaderboardRow]:
    """Yield a run's rows: tables 2 and 3, and the same scores by goal, task, image domain and aspect."""
    for condition in sorted(run.conditions(), key=lambda condition: condition != ORACLE):  # the paper's first
        judged = measures(run.verdicts, condition)
        asked_turns = _list_turns(conversations, condition)
        every = {turn: talk.group for talk, turn in asked_turns}
        # A condition that asks for one turn of each conversation asks for its last.
        is_last = condition in CONDITIONS and CONDITIONS[condition].only_last
        by_turn = groups_by(("last" if is_last else str(turn[1]), turn, group) for turn, group in every.items())
        by_measure = {measure: score_of(judged[measure], every, scale) for measure, scale in SCALES.items()}
        tables_ = {
            "turn-score": ("Score by turn", turn_means(judged["score"], by_turn)),
            "measures": ("Score, completion and quality of all turns", by_measure),
        }
        for kind, part in PARTS.items():
            parts = groups_by((part(talk, turn) or "none", turn, talk.group) for talk, turn in asked_turns)
            by_part = scores_by_part(judged["score"], {"all": every, **dict(sorted(parts.items()))}, SCALE)
            tables_[f"{kind}-score".replace(" ", "-")] = (f"Score by {kind}", by_part)
        if items := completion_of_aspects(run, condition, conversations):
            tables_["aspect-completion"] = ("Completion by aspect of the checklist's items", items)
        for key, (about, scores) in tables_.items():
            published = " (table 2)" if (key, condition) == ("turn-score", ORACLE) else ""
            yield LeaderboardRow(
                f"{key}-{condition}",
                f"{about}, with {NAMES.get(condition, condition)}{published}",
                scores,
                collapsed=key not in ("turn-score", "measures", "goal-score"),
                charted=list(scores) if key == "turn-score" else [],
            )
    # The effect pairs both histories, so both must have been judged.
    if {ORACLE, SELF_PREDICTION} <= set(run.conditions()):
        caption = "What the references as history add: oracle less self-prediction, paired"
        effect = oracle_effect(run.verdicts, conversations)
        # A history is no model: nothing is ahead by it.
        yield LeaderboardRow("history-effect", caption, effect, charted=list(effect), ranked=False)


BENCHMARK = Benchmark(**of_paper("multiverse"), read=read_conversations, report=report, draw=draw, entries=_list_rows)
