"""AlignMMBench: its published files as they are, and its scores.

Questions: `question_id, image_path, history, prompt, ref_answer, task, category`. Responses:
`question_id, predict`; an older layout repeats the question beside them and is read the same way.
Scores: AlignMMBench §5.1, table 3.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import pstdev

from msgspec import Struct, field

from critic import jsonl
from critic.counting import aggregate
from critic.errors import UsageError
from critic.records import Conversation, ConversationTurn, Judgment, Question, Response, Turn

CATEGORIES = {
    "Perception & Understanding": ("Description", "Recognition", "Counting", "OCR", "Meme", "Knowledge"),
    "Reasoning & Analysis": ("Reasoning", "Chart", "Problem", "Comparison", "Writing"),
    "Dialogue Context": ("Coherence", "Incoherence"),
}
TASKS = tuple(task for tasks in CATEGORIES.values() for task in tasks)
CATEGORY_OF = {task: category for category, tasks in CATEGORIES.items() for task in tasks}


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
            group=line.question_id.rsplit("-", 1)[0],
            lang="zh",
            # 238 references hold a literal backslash-n where a line break was meant.
            reference=line.ref_answer.replace("\\n", "\n"),
            history=line.history,
            images=[line.image_path] if line.image_path else [],
        )
    return questions


def read_conversations(path: Path) -> list[Conversation]:
    """The questions as conversations of one turn, after the history that some of them carry."""
    return [
        Conversation(
            id=question.id,
            benchmark="alignmmbench",
            lang=question.lang,
            group=question.group,
            turns=[
                ConversationTurn(
                    prompt=question.prompt, reference=question.reference, task=question.task, images=question.images
                )
            ],
            category=question.category,
            history=question.history,
        )
        for question in read_questions(path).values()
    ]


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
            id=line.question_id, question=question, text=line.predict, system=system or path.stem
        )
    return list(responses.values())


class Cell(Struct, kw_only=True):
    """One line of a score table: the mean over the n scored of `asked` questions; `failed` were
    judged without a score, the rest was never judged. `low` and `high` are what the mean would be had all that is
    missing been rated lowest or highest, tasks without a score included."""

    mean: float | None
    n: int
    failed: int
    asked: int
    low: float | None = None
    high: float | None = None

    @property
    def coverage(self) -> float:
        return self.n / self.asked if self.asked else 0.0


def _mean(values: Iterable[float]) -> float | None:
    kept = list(values)
    return sum(kept) / len(kept) if kept else None


class Scores(Struct, kw_only=True):
    """`overall` is the unweighted mean of the task means, the paper's Avg; `weighted` the mean over
    questions. Tasks without a score are left out of `overall`: it is one of `tasks_scored` tasks."""

    tasks: dict[str, Cell]
    categories: dict[str, Cell]
    overall: Cell
    weighted: float | None
    tasks_scored: int


def scores(judgments: list[Judgment], asked: dict[str, int] | None = None) -> Scores:
    """Scores of one model by one judge. `asked` is the number of questions of each task (from the
    questions file); without it, what was judged counts as asked."""
    by_task: dict[str, list[Judgment]] = {}
    for judgment in judgments:
        by_task.setdefault(judgment.response.question.task, []).append(judgment)
    asked = asked or {task: len(found) for task, found in by_task.items()}
    order = [*TASKS, *sorted(set(asked) - set(TASKS))]
    tasks = {task: _cell(by_task.get(task, []), asked[task]) for task in order if asked.get(task)}
    categories = {}
    for category, members in CATEGORIES.items():
        cells = [tasks[task] for task in members if task in tasks]
        if cells:
            categories[category] = _macro(cells)
    everything = [judgment.score for judgment in judgments if judgment.score is not None]
    return Scores(
        tasks=tasks,
        categories=categories,
        overall=_macro(list(tasks.values())),
        weighted=_mean(everything),
        tasks_scored=sum(cell.n > 0 for cell in tasks.values()),
    )


def _cell(judgments: list[Judgment], asked: int) -> Cell:
    scores = {str(number): judgment.score for number, judgment in enumerate(judgments)}
    ids = map(str, range(max(asked, len(scores))))
    found = aggregate.mean(scores, ids, aggregate.SCALES["pointwise"])
    return Cell(mean=found.value, n=found.n, failed=found.failed, asked=asked, low=found.low, high=found.high)


def _macro(cells: list[Cell]) -> Cell:
    return Cell(
        mean=_mean(cell.mean for cell in cells if cell.mean is not None),
        n=sum(cell.n for cell in cells),
        failed=sum(cell.failed for cell in cells),
        asked=sum(cell.asked for cell in cells),
        low=_mean(cell.low for cell in cells if cell.low is not None),
        high=_mean(cell.high for cell in cells if cell.high is not None),
    )


def asked_per_task(questions: Iterable[Question]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for question in questions:
        counts[question.task] = counts.get(question.task, 0) + 1
    return counts


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
    given = [list(group) for group in groups]
    rated = [[rating for rating in group if rating is not None and not math.isnan(rating)] for group in given]
    found = {
        "score": [pstdev(group) for group in rated if group],
        "without_singletons": [pstdev(group) for group in rated if len(group) > 1],
    }
    scores = {name: len(sigmas) / sum(sigmas) if sum(sigmas) else None for name, sigmas in found.items()}
    return Alignment(
        groups=len(found["score"]),
        singletons=len(found["score"]) - len(found["without_singletons"]),
        empty=len(given) - len(found["score"]),
        failed=sum(map(len, given)) - sum(map(len, rated)),
        score=scores["score"],
        without_singletons=scores["without_singletons"],
        undefined={
            name: "infinite: no group's ratings differ" if sigmas else "no groups"
            for name, sigmas in found.items()
            if scores[name] is None
        },
    )
