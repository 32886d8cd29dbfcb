"""MultiVerse: its data-set rows as documented on their page, and its scores.

A row is one conversation about one image, user and assistant in turn, with a checklist of yes/no questions each turn:

    {"index": "17", "image": "beach.png", "main_goal_category": "Exploration", "main_task_category": "Recognition",
     "image_main_category": "Outdoor", "conversation": [
       {"speaker": "user", "utterance": "What flies there?", "checklist": [{"question": "Is a kite named?",
        "main_criteria": "Perceptual Accuracy", "sub_criteria": "Object Naming"}]},
       {"speaker": "assistant", "utterance": "A red kite.", "checklist": []}, …]}

A turn's score is completion ratio x quality (MultiVerse §4, table 2).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from critic import tables
from critic.benchmarks import Benchmark, Conversations, Report, Run, Verdicts
from critic.errors import UsageError
from critic.judging.history import CONDITIONS
from critic.page import blocks
from critic.page.aggregates import differences
from critic.page.blocks import Section, Table, TableRow
from critic.records import Conversation, ConversationTurn
from critic.stats.aggregate import Cell, Difference, Scale, by_cell, combine, difference, means
from critic.stats.leaderboard import LeaderboardRow, Score, Term, score_of
from critic.stats.least_squares import Fit, fit

FORMATS = (".parquet", ".jsonl")

TURNS = 4
"""Turns of the longest conversation (table 1); a few have three."""

ORACLE, SELF_PREDICTION = "oracle", "own"

SCALE: Scale = (0, 100)
SCALES: dict[str, Scale] = {"score": SCALE, "completion": SCALE, "quality": (10, 100)}
"""Those of the measures of a turn."""


class _Item(Struct):
    question: str
    main_criteria: str | None = None
    sub_criteria: str | None = None


class _Utterance(Struct):
    speaker: str
    utterance: str
    checklist: list[_Item] | None = None


class _Row(Struct):
    index: str
    conversation: list[_Utterance]
    main_goal_category: str
    main_task_category: str
    image_main_category: str


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of the data set (.parquet, images embedded; .jsonl with the same keys, `image` a path).

    A checklist may be with either utterance of its turn. An optional key `lang` marks Chinese rows. Raises UsageError
    naming place and key for a checklist item without a question, a turn without a reference or a checklist, more than
    TURNS turns, speakers that do not alternate, or a duplicate index.
    """
    ids, found = tables.Ids(), []
    for place, raw in tables.rows(path, FORMATS):
        try:
            row = msgspec.convert({**raw, "conversation": _utterances(place, raw.get("conversation"))}, _Row)
        except msgspec.ValidationError as error:
            raise UsageError(f"{place}: {error}") from None
        key = ids.add(place, row.index)
        found.append(
            Conversation(
                id=key,
                benchmark="multiverse",
                lang=tables.language(place, raw),
                group=key,  # each conversation has an image of its own
                turns=_turns(place, row, tables.image(place, raw.get("image"))),
                goal=row.main_goal_category,
                domain=row.image_main_category,
            )
        )
    return found


def _utterances(place: str, value: Any) -> Any:
    """The conversation as a list of utterances."""
    spoken = _listed(place, "conversation", value)
    if not isinstance(spoken, list):
        return spoken
    return [
        {**one, "checklist": _listed(place, f"conversation[{number}].checklist", one.get("checklist"))}
        if isinstance(one, dict)
        else one
        for number, one in enumerate(spoken)
    ]


def _listed(place: str, key: str, value: Any) -> Any:
    """Parquet files hold lists of objects as objects of lists."""
    if not isinstance(value, dict):
        return value
    columns = {name: cells for name, cells in value.items() if cells is not None}
    try:
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    except (TypeError, ValueError):
        raise UsageError(f"{place}: {key!r} has lists of different lengths; expected one entry each") from None


def _turns(place: str, row: _Row, image: str) -> list[ConversationTurn]:
    spoken = row.conversation
    if not spoken:
        raise UsageError(f"{place}: 'conversation' is empty")
    if len(spoken) > 2 * TURNS:
        raise UsageError(f"{place}: {(len(spoken) + 1) // 2} turns; a conversation has at most {TURNS}")
    # The user begins, and two names alternate, whatever they are.
    names = [one.speaker.strip().lower() for one in spoken]
    if "assistant" in names[0]:
        raise UsageError(f"{place}: conversation[0].speaker is {spoken[0].speaker!r}; expected the user to begin")
    for number, name in enumerate(names):
        if name != names[number % 2] or (number % 2 and name == names[0]):
            said = f"conversation[{number}].speaker is {spoken[number].speaker!r}"
            raise UsageError(f"{place}: {said}; user and assistant must alternate")
    if len(spoken) % 2:
        raise UsageError(f"{place}: turn {len(spoken) // 2 + 1} has no reference: the last word is the user's")
    return [
        ConversationTurn(
            prompt=_spoken(place, spoken, 2 * turn),
            reference=_spoken(place, spoken, 2 * turn + 1),
            task=row.main_task_category,
            images=[image] if turn == 0 else [],
            checklist=[item.question.strip() for item in items],
            aspects=_aspects(items),
        )
        for turn, items in enumerate(
            _checklist(place, turn + 1, spoken[2 * turn : 2 * turn + 2]) for turn in range(len(spoken) // 2)
        )
    ]


def _aspects(items: Sequence[_Item]) -> list[tuple[str, str]]:
    """The main and the sub-aspect of each item, where any names one."""
    named = [((item.main_criteria or "").strip(), (item.sub_criteria or "").strip()) for item in items]
    return named if any(main for main, _ in named) else []


def _spoken(place: str, spoken: Sequence[_Utterance], number: int) -> str:
    if found := spoken[number].utterance.strip():
        return found
    what = f"turn {number // 2 + 1} has no reference" if number % 2 else f"turn {number // 2 + 1} asks nothing"
    raise UsageError(f"{place}: {what}: conversation[{number}].utterance is empty")


def _checklist(place: str, turn: int, spoken: Sequence[_Utterance]) -> list[_Item]:
    lists = [one.checklist for one in spoken if one.checklist]
    if not lists or [item.question for item in lists[0]] != [item.question for item in lists[-1]]:
        how_many = "two checklists" if lists else "no checklist"
        raise UsageError(f"{place}: turn {turn} has {how_many}; expected one")
    questions = [item.question.strip() for item in lists[0]]
    if "" in questions:
        raise UsageError(f"{place}: turn {turn}: checklist item {questions.index('') + 1} has no question")
    return lists[0]


Turn = tuple[str, int]
"""A conversation's id, and the number of its turn."""


class TurnScore(Struct, frozen=True, kw_only=True):
    """A turn judged twice: completion ratio (0..1) and quality (1..10), None where that judgment failed or was never
    made (`never` says which); the answer's length in characters."""

    ratio: float | None
    quality: float | None
    length: int | None = None
    never: str | None = None

    @property
    def score(self) -> float | None:
        """Ratio x 10 x quality, 0..100; None where either judgment failed."""
        return None if self.ratio is None or self.quality is None else self.ratio * 10 * self.quality

    @property
    def measures(self) -> dict[str, float | None]:
        """Score, completion and quality on the SCALES, None where a judgment failed, without what was never judged."""
        found = {
            "completion": None if self.ratio is None else 100 * self.ratio,
            "quality": None if self.quality is None else 10 * self.quality,
        }
        found.pop(self.never or "", None)
        return found if self.never and None not in found.values() else {"score": self.score, **found}


def turn_scores(verdicts: Verdicts, condition: str) -> dict[Turn, TurnScore]:
    """Both judgments of every turn under a condition, first turns first. Raises UsageError as `aggregate.by_cell`
    does."""
    ratios, qualities = by_cell(verdicts, "checklist"), by_cell(verdicts, "quality")
    lengths = {(one.sample.id, one.turn): one.length for one in verdicts if one.condition == condition}
    found = {}
    for turn in sorted({cell.turn for cell in (*ratios, *qualities) if cell.turn and cell.condition == condition}):
        ratio, quality = ratios.get(Cell(condition, turn), {}), qualities.get(Cell(condition, turn), {})
        for key in {**ratio, **quality}:
            length = lengths.get((key, turn))
            never = "completion" if key not in ratio else "quality" if key not in quality else None
            found[key, turn] = TurnScore(ratio=ratio.get(key), quality=quality.get(key), length=length, never=never)
    return found


def _scores(judged: Mapping[Turn, TurnScore], measure: str = "score") -> dict[Turn, float | None]:
    given = ((turn, one.measures) for turn, one in judged.items())
    return {turn: found[measure] for turn, found in given if measure in found}


def _turns_of(conversations: Iterable[Conversation], condition: str) -> list[tuple[Conversation, Turn]]:
    """The turns that a model is asked under a condition."""
    asked = CONDITIONS.get(condition, CONDITIONS[SELF_PREDICTION]).asked
    return [(one, (one.id, number)) for one in conversations for number in asked(len(one.turns))]


def _named(turn: Turn, condition: str) -> str:
    """Where each conversation has one turn that is asked, these are taken together, whatever their numbers."""
    return "last" if condition in CONDITIONS and CONDITIONS[condition].first is None else str(turn[1])


def turn_means(judged: Mapping[Turn, float | None], by_turn: Mapping[str, Mapping[Turn, str]]) -> dict[str, Score]:
    """The columns of table 2: the average of the turns' means, the slope of their least-squares line over turn number
    where there are several, and each of them. `by_turn` are the turns, with their groups, of each turn that is asked
    ("1" to "4", or "last")."""
    terms = {number: Term(1.0, judged, turns, SCALE) for number, turns in by_turn.items()}
    average = [replace(term, weight=1 / len(terms)) for term in terms.values()]
    found = {"average": Score(parts=average)}
    if len(terms) > 1:
        centred = [number - (len(terms) - 1) / 2 for number in range(len(terms))]
        square = sum(position**2 for position in centred)
        weights = [position / square for position in centred]
        slopes = [replace(term, weight=by) for by, term in zip(weights, terms.values(), strict=True)]
        found["slope"] = Score(parts=slopes)
    return found | {f"turn {number}": Score(parts=[term]) for number, term in terms.items()}


def oracle_effect(verdicts: Verdicts, conversations: Conversations) -> dict[str, Difference]:
    """What the data set's own answers as history add over the model's own: oracle - self-prediction, per turn ("1" to
    "4") and for the conversations' mean scores ("all", of those with all their turns), paired."""
    own, oracle = (_scores(turn_scores(verdicts, condition)) for condition in (SELF_PREDICTION, ORACLE))
    groups: dict[int, dict[Turn, str]] = {}
    asked = _turns_of(conversations, ORACLE)
    for one, turn in asked:
        groups.setdefault(turn[1], {})[turn] = one.group
    found = {str(number): difference(own, oracle, groups[number], SCALE) for number in sorted(groups)}
    parts = [(one.id, turn) for one, turn in asked]
    mine, theirs = (means(judged, parts, SCALE) for judged in (own, oracle))
    before, after = (
        {key: whole.value if whole.n == whole.asked else None for key, whole in some.items()} for some in (mine, theirs)
    )
    every = difference(before, after, {one.id: one.group for one in conversations}, SCALE)
    # Of a conversation that lacks a turn the others are known.
    ends = combine([(sign / len(mine), part) for sign, some in ((1, theirs), (-1, mine)) for part in some.values()])
    return {**found, "all": replace(every, low=ends.low, high=ends.high)}


def ratio_against_quality(verdicts: Verdicts, condition: str = ORACLE) -> Fit:
    """How far completion ratio and quality say the same (figure 5): quality on the ratio, over all turns."""
    return fit((one.ratio, one.quality) for one in turn_scores(verdicts, condition).values())


def length_against_score(verdicts: Verdicts, condition: str = ORACLE) -> dict[int, Fit]:
    """How far longer answers score higher, per turn (figure 9): the score on the answer's length."""
    pairs: dict[int, list[tuple[float | None, float | None]]] = {}
    for (_, number), one in turn_scores(verdicts, condition).items():
        pairs.setdefault(number, []).append((one.length, one.score))
    return {number: fit(found) for number, found in pairs.items()}


NAMES = {ORACLE: "the references as history (oracle)", SELF_PREDICTION: "its own replies as history (self-prediction)"}


def report(runs: Sequence[Run], conversations: Conversations) -> Report:
    sections, summary = [], dict[str, Any]()
    for run in runs:
        facts: dict[str, Any] = {}
        tables = list[Table]()
        for condition in run.conditions():
            ratio = ratio_against_quality(run.verdicts, condition)
            lengths = length_against_score(run.verdicts, condition)
            rows = [_fit("quality on completion ratio, all turns", ratio)]
            rows += [_fit(f"score on length in {run.unit}, turn {turn}", one) for turn, one in lengths.items()]
            caption = f"What explains what, with {NAMES.get(condition, condition)}"
            tables.append(Table(caption=caption, head=["", "R²", "p", "slope", "n", "missing"], rows=rows))
            facts[condition] = {"ratio_against_quality": ratio, "length_against_score": lengths}
        if {ORACLE, SELF_PREDICTION} <= set(run.conditions()):
            effect = oracle_effect(run.verdicts, conversations)
            by_name = {f"turn {turn}" if turn != "all" else "all": one for turn, one in effect.items()}
            tables.insert(0, differences("What the references as history add (oracle less self-prediction)", by_name))
            facts["oracle_effect"] = effect
        note = "A turn's score is completion ratio (share of yes) × 10 × quality (1 to 10)."
        sections.append(Section(heading=f"{run.name}, judged by {run.judge}", tables=tables, note=note))
        summary[run.name] = facts
    return Report(sections=sections, summary=summary)


def _fit(name: str, found: Fit) -> TableRow:
    why = next(iter(found.undefined.values()), "")
    r_squared = f"– ({why})" if why else blocks.number(found.r_squared, 3)
    p_value = "–" if found.p_value is None else f"{found.p_value:.4f}"
    return blocks.row(name, r_squared, p_value, blocks.number(found.slope, 4), found.n, found.missing)


def _differences(one: Run, other: Run, conversations: Conversations) -> dict[str, Difference]:
    """other - one in the scores of turns, by condition: a turn judged by one protocol only has none."""
    found = {}
    for condition in one.conditions():
        groups = {turn: each.group for each, turn in _turns_of(conversations, condition)}
        mine, theirs = (_scores(turn_scores(run.verdicts, condition)) for run in (one, other))
        if mine and theirs:
            found[f"completion ratio × quality, {condition}, all turns"] = difference(mine, theirs, groups, SCALE)
    return found


def _parts(asked: Iterable[tuple[Conversation, Turn]]) -> dict[str, dict[str, dict[Turn, str]]]:
    """The turns of each goal, task, image domain and main aspect, with their groups."""
    found: dict[str, dict[str, dict[Turn, str]]] = {"goal": {}, "task": {}, "image domain": {}, "aspect": {}}
    for one, turn in asked:
        on = one.turns[turn[1] - 1]
        named = [("goal", one.goal or "none"), ("task", on.task or "none"), ("image domain", one.domain or "none")]
        for what, part in (*named, *(("aspect", main) for main, _ in on.aspects if main)):
            found[what].setdefault(part, {})[turn] = one.group
    return {what: dict(sorted(parts.items())) for what, parts in found.items()}


def completion_of_aspects(run: Run, condition: str, conversations: Conversations) -> dict[str, Score]:
    """The share of yes, in per cent, among the checklist items of each main aspect."""
    answers = {
        (one.sample.id, one.turn): one.verdict.answers
        for one in run.turns
        if one.protocol == "checklist" and one.condition == condition
    }
    verdicts = dict[tuple[str, int, int], float | None]()
    asked: dict[str, dict[tuple[str, int, int], str]] = {}
    for one, turn in _turns_of(conversations, condition):
        answered = answers.get(turn)
        for item, (main, _) in enumerate(one.turns[turn[1] - 1].aspects):
            if answered is not None:
                answer = answered[item] if item < len(answered) else None
                verdicts[(*turn, item)] = None if answer is None else 100.0 * answer
            if main:
                asked.setdefault(main, {})[(*turn, item)] = one.group
    return {main: score_of(verdicts, asked[main], SCALE) for main in sorted(asked)}


_DRAWN = {("goal", "score"), ("task", "score"), ("aspect", "completion")}
"""Tables over models, by part and measure, that are drawn as well."""


def _entries(run: Run, conversations: Conversations) -> list[LeaderboardRow]:
    """The rows of table 2, of table 3, and of the like for whatever else turns can be told apart by."""
    made, averages = list[LeaderboardRow](), dict[str, Score]()

    def add(what: str, caption: str, scores: dict[str, Score], drawn: str = "", folded: bool = True) -> None:
        shown = [name for name in scores if name not in ("all", "average", "slope")]
        made.append(
            LeaderboardRow(
                key=what.replace(" ", "-"),
                caption=caption,
                system=run.system,
                name=run.name,
                scores=scores,
                drawn={drawn: shown} if drawn else {},
                scale=(0, 100),
                folded=folded,
            )
        )

    for condition in run.conditions():
        judged, words = turn_scores(run.verdicts, condition), NAMES.get(condition, condition)
        items = completion_of_aspects(run, condition, conversations)
        asked, by_turn = _turns_of(conversations, condition), dict[str, dict[Turn, str]]()
        for one, turn in asked:
            by_turn.setdefault(_named(turn, condition), {})[turn] = one.group
        parts, groups = _parts(asked), {turn: one.group for one, turn in asked}
        found = turn_means(_scores(judged), by_turn)
        averages[condition] = found["average"]
        caption = f"Score by turn, with {words}" + (" (table 2)" if condition == ORACLE else "")
        add(f"turn-score-{condition}", caption, found, "lines", folded=False)
        for measure, what in product(SCALES, parts):
            verdicts, scale = _scores(judged, measure), SCALES[measure]
            found = {part: score_of(verdicts, turns, scale) for part, turns in parts[what].items()}
            if (what, measure) == ("aspect", "completion"):
                found = items
            if found and (what, measure) != ("aspect", "score"):
                caption = f"{measure.capitalize()} by {what}, with {words}"
                every = {"all": score_of(verdicts, groups, scale), **found}
                drawn = "bars" if (what, measure) in _DRAWN else ""
                folded = (what, measure) != ("goal", "score")
                add(f"{what}-{measure}-{condition}", caption, every, drawn, folded)
    if len(averages) > 1:
        add("history-score", "Average score by what the model saw as history", averages, "bars", folded=False)
    return made


BENCHMARK = Benchmark(
    title="MultiVerse",
    read=read_conversations,
    protocols=("checklist", "quality"),
    report=report,
    differences=_differences,
    entries=_entries,
)
