"""AlignMMBench: reading its published files, its scores (§5.1, table 3; §5.3.2) and its report.

A question, and an answer (an older layout repeats the question beside the answer and is read the same way):

    {"question_id": "17-0", "image_path": "beach.png", "history": [], "prompt": "有几只风筝？", "ref_answer": "两只。",
     "task": "Counting", "category": "Perception & Understanding"}
    {"question_id": "17-0", "predict": "有两只风筝。"}
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, pstdev

from msgspec import Struct, field, toml
from msgspec.structs import replace

from critic import jsonl
from critic.benchmarks import Benchmark, Conversations, Run, of_paper
from critic.errors import UsageError, quoted
from critic.page.blocks import Bounds, Figure
from critic.page.figures import Sizes, compare_parts, list_models, plot_models
from critic.records import TEN, VIDEO, Conversation, Question, Turn
from critic.stats.aggregate import Cell, Scores, by_cell, combine, groups_by, groups_of, mean
from critic.stats.leaderboard import Leaderboard, LeaderboardRow, Score, Term, score_of

CATEGORIES = toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, tuple[str, ...]])
TASKS = tuple(task for tasks in CATEGORIES.values() for task in tasks)
CATEGORY_OF = {task: category for category, tasks in CATEGORIES.items() for task in tasks}

MEAN_OF_TASKS, ALIGNMENT = "mean of tasks", "alignment"

QUADRANTS = ("Alignment-Driven", "Robust Convergence", "Baseline Limited", "Component-Centric")
"""The paper's classes of models (figure 1). Mean of tasks and alignment are each low or high; we split at the median.

The order is that of Scatter.corners: low mean and high alignment, both high, both low, high mean and low alignment.
"""

UNCLEAR = "in no class, since an interval holds a median"
HIDDEN = "not drawn, since a task is missing or alignment is infinite"


class _QuestionLine(Struct):
    question_id: str
    prompt: str
    ref_answer: str
    task: str
    image_path: str | None = None
    video: str | None = None
    history: list[Turn] = field(default_factory=list)


def group_of(question_id: str) -> str:
    """Return the id of the seed question that a question rewords: the part before the last hyphen, or the whole id.

    >>> group_of("17-0"), group_of("17")
    ('17', '17')
    """
    return question_id.rsplit("-", 1)[0]


def read_questions(path: Path) -> dict[str, Question]:
    """Read the benchmark's questions by id.

    Raises UsageError naming file and line for an unknown task, a duplicate id, or a missing key.
    """
    questions: dict[str, Question] = {}
    for number, line in jsonl.read(path, _QuestionLine):
        # A mistyped task would silently drop out of its category's mean.
        if line.task not in CATEGORY_OF:
            raise UsageError(f"{path}:{number}: unknown task {quoted(line.task)}; expected one of {', '.join(TASKS)}")
        if line.question_id in questions:
            raise UsageError(f"{path}:{number}: duplicate question_id {quoted(line.question_id)}")
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
            images=[name for name in (line.image_path, line.video and f"{VIDEO}{line.video}") if name],
        )
    return questions


def read_conversations(path: Path) -> list[Conversation]:
    """Read the questions as conversations of one turn. Some have a given history."""
    return [Conversation.of(question, "alignmmbench") for question in read_questions(path).values()]


def scores(ratings: Scores, conversations: Conversations) -> dict[str, Score]:
    """Return table 3's row for one model under one condition: the mean of the tasks, and each task.

    `ratings` maps question ids to ratings on 1..10, or None for a failed judgment. Tasks that are not AlignMMBench's
    own come last.

    >>> from critic.records import ConversationTurn
    >>> from critic.stats.leaderboard import aggregate_of
    >>> def rate(*rated, unjudged=()):
    ...     turns = [[ConversationTurn(prompt="?", task=task)] for task in (*(task for task, _ in rated), *unjudged)]
    ...     talks = [Conversation(id=str(n), lang="zh", group=str(n), turns=own) for n, own in enumerate(turns)]
    ...     return scores({str(n): rating for n, (_, rating) in enumerate(rated)}, talks)
    >>> list(rate(("zebra", 1), ("OCR", 8), ("ant", 2), ("Chart", 3), ("Description", 5)))
    ['mean of tasks', 'Description', 'OCR', 'Chart', 'ant', 'zebra']

    Missing scores are bounded by the lowest and the highest rating:

    >>> missing = rate(("OCR", 8), ("OCR", None), unjudged=["OCR"] * 2 + ["Meme"] * 6)
    >>> for task, score in missing.items():
    ...     mean = aggregate_of(score)
    ...     print(f"{task}: {mean.value}, {mean.low} to {mean.high}; {mean.n} of {mean.asked}, {mean.failed} failed")
    mean of tasks: 8.0, 1.875 to 9.75; 1 of 10, 1 failed
    OCR: 8.0, 2.75 to 9.5; 1 of 4, 1 failed
    Meme: None, 1.0 to 10.0; 0 of 6, 0 failed
    >>> missing["mean of tasks"].partly(1)
    '1 of 2'
    """
    terms = _build_terms(ratings, conversations)
    return mean_of_tasks(MEAN_OF_TASKS, terms) | {task: Score(parts=[term]) for task, term in terms.items()}


def _build_terms(ratings: Scores, conversations: Conversations) -> dict[str, Term]:
    """Return one term per task, in the paper's order."""
    parts = groups_by((talk.turns[0].task or "none", talk.id, talk.group) for talk in conversations)
    # Own tasks of a user's file follow the paper's, so that tables stay comparable.
    order = [task for task in dict.fromkeys((*TASKS, *sorted(parts))) if task in parts]
    return {task: Term(1.0, ratings, parts[task], TEN, task) for task in order}


def mean_of_tasks(name: str, tasks: Mapping[str, Term]) -> dict[str, Score]:
    """Return the unweighted mean of the tasks that have a score, as {name: mean}; {} if no task has one.

    Over all 13 tasks it is the paper's Avg. Counts and bounds cover all tasks: the bounds are the mean if every missing
    verdict were the lowest, or the highest, rating.
    """
    # The paper's tasks count even if the file holds none of their questions; a user's own tasks have no such list.
    total = len(TASKS) if tasks.keys() <= CATEGORY_OF.keys() else len(tasks)
    means = {task: mean(term.verdicts, term.asked, term.scale) for task, term in tasks.items()}
    scored = [task for task, of_task in means.items() if of_task.n]
    # Without a single rated task there is no mean to report, not a mean of 0.
    if not scored:
        return {}
    counts = combine([(1 / len(tasks), of_task) for of_task in means.values()])
    parts = [replace(tasks[task], weight=1 / len(scored)) for task in scored]
    basis = f"{len(scored)} of {total} tasks ({counts.n} questions)" if total > 1 else f"{counts.n} questions"
    return {name: Score(parts=parts, of=len(tasks), counts=counts, basis=basis)}


def overviews(ratings: Scores, conversations: Conversations) -> dict[str, Score]:
    """Return the mean of the tasks in each category, and the original script's mean over all questions.

    >>> from critic.records import ConversationTurn
    >>> from critic.stats.leaderboard import aggregate_of
    >>> tasks = {"a": "OCR", "b": "OCR", "c": "OCR", "d": "Chart"}
    >>> turns = {key: [ConversationTurn(prompt="?", task=task)] for key, task in tasks.items()}
    >>> talks = [Conversation(id=key, lang="zh", group=key, turns=own) for key, own in turns.items()]
    >>> rated = {"a": 8, "b": 6, "c": None, "d": 3}
    >>> for name, score in (scores(rated, talks) | overviews(rated, talks)).items():
    ...     aggregate = aggregate_of(score)
    ...     print(f"{name}: {aggregate.value:.3f} ({aggregate.n} of {aggregate.asked}, {aggregate.failed} failed)")
    mean of tasks: 5.000 (3 of 4, 1 failed)
    OCR: 7.000 (2 of 3, 1 failed)
    Chart: 3.000 (1 of 1, 0 failed)
    Perception & Understanding: 7.000 (2 of 3, 1 failed)
    Reasoning & Analysis: 3.000 (1 of 1, 0 failed)
    mean of the questions: 5.667 (3 of 4, 1 failed)
    """
    terms = _build_terms(ratings, conversations)
    means = dict[str, Score]()
    for category, own in CATEGORIES.items():
        means |= mean_of_tasks(category, {task: terms[task] for task in own if task in terms})
    return means | {"mean of the questions": score_of(ratings, groups_of(conversations), TEN)}


def alignment(ratings: Scores, conversations: Conversations) -> dict[str, Score]:
    """Return the consistency of ratings within the rewordings of a question (AlignMMBench §5.3.2).

    It is 1 divided by the mean of the groups' population standard deviations, and infinite if all of these are 0. The
    paper includes every group with a rating. A group with a single rating has the deviation 0 whatever the model does;
    a second score excludes such groups. Failures (None) are left out.

    >>> from critic.stats.leaderboard import aggregate_of
    >>> def measure(*groups):
    ...     ratings = {f"{group}-{n}": rating for group, own in enumerate(groups) for n, rating in enumerate(own)}
    ...     talks = [Conversation(id=key, lang="zh", group=key[0], turns=[]) for key in ratings]
    ...     scores = alignment(ratings, talks)
    ...     return {name: aggregate_of(score).value for name, score in scores.items()}
    >>> measure([7], [2, 4], [9, 9])
    {'alignment': 3.0, 'alignment without singletons': 2.0}
    >>> {name: round(value, 9) for name, value in measure([2, None, 4], [None], [None, 5], [3, 7]).items()}
    {'alignment': 1.0, 'alignment without singletons': 0.666666667}

    The value of an infinite score is None, even if the mean of equal ratings has rounding errors:

    >>> for groups in ([[7], [3]], [], [[3.3, 3.3, 3.3], [0.1 + 4.2] * 6]):
    ...     print(measure(*groups))
    {'alignment': None, 'alignment without singletons': None}
    {'alignment': None, 'alignment without singletons': None}
    {'alignment': None, 'alignment without singletons': None}
    """
    by_group: dict[str, list[float]] = {}
    for conversation in conversations:
        if (rating := ratings.get(conversation.id)) is not None:
            by_group.setdefault(conversation.group, []).append(rating)
    by_heading = {}
    # A single rating cannot deviate from itself, whatever the model does.
    for heading, fewest in ((ALIGNMENT, 1), ("alignment without singletons", 2)):
        spread = {group: pstdev(own) for group, own in by_group.items() if len(own) >= fewest}
        score = score_of(spread, {group: group for group in spread}, (0.0, 4.5))
        by_heading[heading] = replace(score, inverse=True, basis=f"{len(spread)} questions with their rewordings")
    return by_heading


def _list_rows(run: Run, conversations: Conversations) -> Iterator[LeaderboardRow]:
    """Yield a run's rows: table 3 (mean of the tasks, each task, alignment), and the means by category."""
    for cell, ratings in by_cell(run.verdicts, "pointwise").items():
        # Verdicts on whole conversations, or judged in another way, are on another scale of meaning.
        if cell != Cell(cell.condition, 1):
            continue
        of_tasks = scores(ratings, conversations) | alignment(ratings, conversations)
        caption = "Mean rating 1 to 10 (table 3 of the paper)"
        charted = [MEAN_OF_TASKS, ALIGNMENT]
        yield LeaderboardRow("tasks", caption, of_tasks, cell.condition, charted=charted, stated=[ALIGNMENT])
        over_tasks = overviews(ratings, conversations)
        caption = "Mean rating 1 to 10 by category, and over the questions"
        yield LeaderboardRow("categories", caption, over_tasks, cell.condition, charted=list(over_tasks))


def draw(boards: Mapping[str, Leaderboard], sizes: Sizes) -> Iterator[Figure]:
    """Yield figure 1, which plots the mean of the tasks against alignment, and pictures of the models' task scores.

    `boards`: leaderboards by key. `sizes`: model name -> size and family; empty if unknown.
    """
    board = boards.get("tasks")
    if board is None:
        return
    # A mean that lacks tasks is no place beside means of all tasks.
    scatter = plot_models(board, MEAN_OF_TASKS, ALIGNMENT)
    if len(marks := scatter.marks) > 1:
        bars = median(mark.x.value for mark in marks), median(mark.y.value for mark in marks)
        classes: dict[str, list[str]] = {name: [] for name in (*QUADRANTS, UNCLEAR, HIDDEN)}
        for mark in marks:
            classes[place_in_quadrant(mark.x.interval, mark.y.interval, bars)].append(mark.label)
        classes[HIDDEN] = [name for name in list_models(board) if name not in {mark.label for mark in marks}]
        told = "; ".join(f"{name}: {', '.join(models)}" for name, models in classes.items() if models)
        corners = [name if classes[name] else "" for name in QUADRANTS]
        # Lines would tell apart models that the data does not.
        scatter = replace(scatter, guides=bars if any(corners) else (None, None), corners=corners)
        caption = f"Mean of the tasks against alignment, 95 % intervals (figure 1): {told}"
        yield Figure(caption=caption, picture="mean-and-alignment", panels=[scatter])
    tasks = [column for column in board.columns if column in TASKS]
    yield from compare_parts(board, tasks, "Mean rating of each task", sizes)


def place_in_quadrant(mean: Bounds | None, aligned: Bounds | None, bars: Bounds) -> str:
    """Return a model's class (QUADRANTS), or UNCLEAR if one of its intervals contains the limit of low and high.

    `mean`, `aligned`: the intervals of its mean of tasks and its alignment. `bars`: the two limits, in the same order.

    >>> place_in_quadrant((6.1, 6.5), (1.2, 1.4), (5.8, 1.1))
    'Robust Convergence'
    """
    if not mean or not aligned or mean[0] <= bars[0] <= mean[1] or aligned[0] <= bars[1] <= aligned[1]:
        return UNCLEAR
    return QUADRANTS[2 * (aligned[0] < bars[1]) + (mean[0] > bars[0])]


BENCHMARK = Benchmark(**of_paper("alignmmbench"), read=read_conversations, entries=_list_rows, draw=draw)
