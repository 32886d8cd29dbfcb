"""AlignMMBench: its published files as they are, its scores (§5.1, table 3; §5.3.2) and its report.

A question, and an answer (an older layout repeats the question beside the answer and is read the same way):

    {"question_id": "17-0", "image_path": "beach.png", "history": [], "prompt": "有几只风筝？", "ref_answer": "两只。",
     "task": "Counting", "category": "Perception & Understanding"}
    {"question_id": "17-0", "predict": "有两只风筝。"}
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, pstdev
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from critic import jsonl
from critic.benchmarks import Benchmark, Conversations, Report, Run, labelled
from critic.errors import UsageError, whole
from critic.page import blocks
from critic.page import svg as pictures
from critic.page.blocks import Columns, Section
from critic.records import Conversation, Question, Response, Turn
from critic.stats.aggregate import SCALES, Cell, by_cell, combine, groups_by, groups_of, mean
from critic.stats.leaderboard import LeaderboardRow, Score, Term, aggregate_of, score_of

CATEGORIES = {
    "Perception & Understanding": ("Description", "Recognition", "Counting", "OCR", "Meme", "Knowledge"),
    "Reasoning & Analysis": ("Reasoning", "Chart", "Problem", "Comparison", "Writing"),
    "Dialogue Context": ("Coherence", "Incoherence"),
}
TASKS = tuple(task for tasks in CATEGORIES.values() for task in tasks)
CATEGORY_OF = {task: category for category, tasks in CATEGORIES.items() for task in tasks}

QUADRANTS = {
    (True, True): "Robust Convergence",
    (True, False): "Component-Centric",
    (False, True): "Alignment-Driven",
    (False, False): "Baseline Limited",
}
"""By (mean of the tasks, alignment), each high or low (§5.3.2); the paper names no bar, ours is the median."""


class _QuestionLine(Struct):
    question_id: str
    prompt: str
    ref_answer: str
    task: str
    image_path: str | None = None
    history: list[Turn] = field(default_factory=list)


class _ResponseLine(Struct):
    question_id: str
    predict: str
    question: str | list[str] | None = None


def group_of(question_id: str) -> str:
    """The seed question that a question is a wording of: "17" of "17-0", and of an id without a number itself."""
    return question_id.rsplit("-", 1)[0]


def read_questions(path: Path) -> dict[str, Question]:
    """The benchmark's questions by id. Raises UsageError naming file and line for an unknown task,
    a duplicate id, or a missing key."""
    questions: dict[str, Question] = {}
    for number, line in jsonl.read(path, _QuestionLine):
        if line.task not in CATEGORY_OF:
            raise UsageError(f"{path}:{number}: unknown task {line.task!r}; expected one of {', '.join(TASKS)}")
        if line.question_id in questions:
            raise UsageError(f"{path}:{number}: duplicate question_id {line.question_id!r}")
        questions[line.question_id] = Question(
            id=line.question_id,
            prompt=line.prompt,
            task=line.task,
            category=CATEGORY_OF[line.task],
            group=group_of(line.question_id),
            lang="zh",
            # 238 references hold a literal backslash-n where a line break was meant.
            reference=line.ref_answer.replace("\\n", "\n"),
            history=line.history,
            images=[line.image_path] if line.image_path else [],
        )
    return questions


def read_conversations(path: Path) -> list[Conversation]:
    """The questions as conversations of one turn, after the history that some of them carry."""
    return [Conversation.of(question, "alignmmbench") for question in read_questions(path).values()]


def read_responses(path: Path, questions: dict[str, Question], system: str | None = None) -> list[Response]:
    """One model's answers. Raises UsageError for an unknown or repeated question id, or when a line
    of the older layout asks something else than the question of its id."""
    responses: dict[str, Response] = {}
    for number, line in jsonl.read(path, _ResponseLine):
        place = f"{path}:{number}"
        question = questions.get(line.question_id)
        if question is None:
            raise UsageError(f"{place}: question_id {line.question_id!r} is not in the questions file")
        if line.question_id in responses:
            raise UsageError(f"{place}: duplicate question_id {line.question_id!r}")
        asked = line.question[-1] if isinstance(line.question, list) and line.question else line.question
        if isinstance(asked, str) and asked.strip() != question.prompt.strip():
            raise UsageError(
                f"{place}: question_id {line.question_id!r} asks {question.prompt!r}, the line has {asked!r}"
            )
        responses[line.question_id] = Response(
            id=line.question_id, question=question, text=line.predict, system=system or whole(path.stem)
        )
    return list(responses.values())


class Alignment(Struct, frozen=True, kw_only=True):
    """How alike a model's ratings are within the rewrites of one question, over `groups` seed questions.

    `score` is groups / sum of the groups' standard deviations. `singletons` of the groups have a single rating and
    hence a deviation of 0, whatever the model does: `without_singletons` leaves them out. Either is None exactly when
    `undefined` says why. `failed` judgments are left out, and so are the `empty` groups where all failed.
    """

    groups: int
    singletons: int
    empty: int
    failed: int
    score: float | None
    without_singletons: float | None
    undefined: dict[str, str] = field(default_factory=dict)


def alignment_score(groups: Iterable[Sequence[float | None]]) -> Alignment:
    """The alignment score of ratings 1..10 by seed question (AlignMMBench §5.3.2): N / sum of population deviations.

    None or NaN is a failed judgment. Where every deviation is 0 the score is infinite: None, and so named.
    """
    found: dict[str, list[float]] = {"score": [], "without_singletons": []}
    given, failed = 0, 0
    for group in groups:
        rated = [rating for rating in group if rating is not None and not math.isnan(rating)]
        given, failed = given + 1, failed + len(group) - len(rated)
        if rated:
            found["score"].append(pstdev(rated))
        if len(rated) > 1:
            found["without_singletons"].append(found["score"][-1])
    scores = {name: len(sigmas) / sum(sigmas) if sum(sigmas) else None for name, sigmas in found.items()}
    return Alignment(
        groups=len(found["score"]),
        singletons=len(found["score"]) - len(found["without_singletons"]),
        empty=given - len(found["score"]),
        failed=failed,
        score=scores["score"],
        without_singletons=scores["without_singletons"],
        undefined={
            name: "infinite: no group's ratings differ" if sigmas else "no groups"
            for name, sigmas in found.items()
            if scores[name] is None
        },
    )


def scores(ratings: Mapping[str, float | None], conversations: Conversations) -> dict[str, Score]:
    """Table 3's row for one model under one condition, from its ratings 1..10 by question id (None: failed): the mean
    of the tasks, and each. Tasks that are not AlignMMBench's own come behind it."""
    terms = _terms(ratings, conversations)
    return mean_of_tasks("mean of tasks", terms) | {task: Score(parts=[term]) for task, term in terms.items()}


def _terms(ratings: Mapping[str, float | None], conversations: Conversations) -> dict[str, Term]:
    parts = groups_by(conversations, _task)
    order = [task for task in dict.fromkeys((*TASKS, *sorted(parts))) if task in parts]
    return {task: Term(1.0, ratings, parts[task], SCALES["pointwise"], task) for task in order}


def mean_of_tasks(name: str, tasks: Mapping[str, Term]) -> dict[str, Score]:
    """The unweighted mean of the tasks that have a score, by its name; nothing where none has. Of all 13 it is the
    paper's Avg. Its counts and bounds are those of all tasks: what the mean would be had what is missing been rated
    lowest, or highest."""
    means = {task: mean(ratings.verdicts, ratings.asked, ratings.scale) for task, ratings in tasks.items()}
    scored = [task for task, found in means.items() if found.n]
    if not scored:
        return {}
    counts = combine([(1 / len(tasks), found) for found in means.values()])
    parts = [replace(tasks[task], weight=1 / len(scored)) for task in scored]
    return {name: Score(parts=parts, of=len(tasks), counts=counts)}


def overviews(ratings: Mapping[str, float | None], conversations: Conversations) -> dict[str, Score]:
    """The mean of each category's tasks, and that over the questions, which the original script prints."""
    terms, found = _terms(ratings, conversations), dict[str, Score]()
    for category, own in CATEGORIES.items():
        found |= mean_of_tasks(category, {task: terms[task] for task in own if task in terms})
    return found | {"mean of the questions": score_of(ratings, groups_of(conversations), SCALES["pointwise"])}


def by_group(ratings: Mapping[str, float | None], conversations: Conversations) -> dict[str, list[float | None]]:
    """The ratings of each group that has one or a failure, in the order of the first of each."""
    found: dict[str, list[float | None]] = {}
    for one in conversations:
        if one.id in ratings:
            found.setdefault(one.group, []).append(ratings[one.id])
    return found


def quadrants(placed: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """The quadrant of each model by its (mean of the tasks, alignment): high is above the median of the models."""
    if len(placed) < 2:
        return {}
    mean_bar, alignment_bar = map(median, zip(*placed.values(), strict=True))
    return {name: QUADRANTS[value > mean_bar, alignment > alignment_bar] for name, (value, alignment) in placed.items()}


def report(runs: Sequence[Run], conversations: Conversations) -> Report:
    """The alignment score of each model. Models with a task that has no score are in no quadrant: their means are of
    other tasks than the others'. Neither are ablations, which are no models."""
    found: dict[str, Alignment] = {}
    placed: dict[str, tuple[float, float]] = {}
    lengths: dict[str, list[int]] = {}
    summary: dict[str, Any] = {}
    for run in runs:
        for cell, ratings in by_cell(run.verdicts, "pointwise").items():
            if cell == Cell(cell.condition, 1):
                name = labelled(run.name, cell.condition)
                found[name] = alignment = alignment_score(by_group(ratings, conversations).values())
                summary.setdefault(run.name, {})[cell.condition] = {"alignment": alignment}
                tasks = scores(ratings, conversations).get("mean of tasks")
                whole = tasks and not tasks.partly(len(tasks.parts)) and aggregate_of(tasks).value
                if cell.condition == "own" and whole and alignment.without_singletons is not None:
                    placed[name] = whole, alignment.without_singletons
        for verdict in run.verdicts:
            if verdict.length is not None and verdict.protocol == "pointwise":
                name = labelled(run.name, verdict.condition)
                lengths.setdefault(name, []).append(verdict.length)
    if not found:
        return Report(sections=[], summary={})
    named = quadrants(placed)
    turns = [one.turns[0] for one in conversations]
    asked_lengths = {
        "questions": [len(turn.prompt) for turn in turns],
        "references": [len(turn.reference) for turn in turns if turn.reference is not None],
    }
    drawn = [
        pictures.lengths(f"Lengths of the answers in {runs[0].unit}: share of them from each number up.", lengths),
        pictures.lengths("Lengths of questions and references in characters (figure 6 of the paper).", asked_lengths),
    ]
    sections = [
        _alignment(found, named),
        Section(heading="Pictures", pictures=[picture for picture in drawn if picture]),
    ]
    return Report(sections=sections, summary=summary | ({"quadrants": named} if named else {}))


def _entries(run: Run, conversations: Conversations) -> list[LeaderboardRow]:
    """The rows of table 3: the mean of the tasks, each task, and the alignment score; and of the means over others."""
    made = []
    for cell, ratings in by_cell(run.verdicts, "pointwise").items():
        if cell != Cell(cell.condition, 1):
            continue
        of_tasks, spreads = scores(ratings, conversations), dict[str, Score]()
        for heading, spread in deviations(ratings, conversations).items():
            names = {group: group for group in spread}
            spreads[heading] = Score(parts=[Term(1.0, spread, names, (0.0, 4.5))], inverse=True)
        tasks = LeaderboardRow(
            key="tasks",
            caption="Mean rating 1 to 10 (table 3 of the paper)",
            system=run.system,
            name=labelled(run.name, cell.condition),
            scores=of_tasks | spreads,
            apart=cell.condition != "own",
            drawn={"bars": [task for task in of_tasks if task != "mean of tasks"]},
            scale=SCALES["pointwise"],
        )
        over = overviews(ratings, conversations)
        caption = "Mean rating 1 to 10 by category, and over the questions"
        made += [tasks, replace(tasks, key="categories", caption=caption, scores=over, drawn={})]
    return made


def _task(one: Conversation) -> str:
    return one.turns[0].task or "none"


def deviations(ratings: Mapping[str, float | None], conversations: Conversations) -> dict[str, dict[str, float]]:
    """The deviations within groups that the alignment scores are one over the mean of: of all that have a rating, and
    of those that have two."""
    every, several = dict[str, float](), dict[str, float]()
    for group, ratings_ in by_group(ratings, conversations).items():
        if known := [rating for rating in ratings_ if rating is not None]:
            every[group] = pstdev(known)
            if len(known) > 1:
                several[group] = every[group]
    return {"alignment": every, "alignment without singletons": several}


def _alignment(found: Mapping[str, Alignment], named: Mapping[str, str]) -> Section:
    def score(one: Alignment, which: str) -> str:
        value = getattr(one, which)
        return f"– ({one.undefined[which]})" if value is None else blocks.number(value)

    columns = Columns[tuple[str, Alignment]](
        ("", lambda pair: pair[0]),
        ("all groups", lambda pair: score(pair[1], "score")),
        ("without singletons", lambda pair: score(pair[1], "without_singletons")),
        ("groups", lambda pair: pair[1].groups),
        ("singletons", lambda pair: pair[1].singletons),
        ("empty", lambda pair: pair[1].empty),
        ("failed", lambda pair: pair[1].failed),
        ("quadrant", lambda pair: named.get(pair[0], "–")),
    )
    caption = "How alike the ratings of one question's rewrites are: groups / sum of their deviations"
    return Section(
        heading="Alignment",
        tables=[columns.table(caption, list(found.items()))],
        note="A group with one question has a deviation of 0 whatever the model does; one where all judgments failed "
        "is empty and left out. Quadrants are split at the medians, by mean of tasks and by alignment without "
        "singletons, of the models that have a score for every task; one alone has none.",
    )


BENCHMARK = Benchmark(
    title="AlignMMBench",
    read=read_conversations,
    protocols=("pointwise",),
    report=report,
    entries=_entries,
)
