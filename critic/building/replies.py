"""The replies a model gives while a benchmark is generated: one type per step, from which its JSON schema is built,
and the names of the reasons for rejecting a reply."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta, Struct, field, structs

from critic.records import Language
from critic.stats.diversity import words

Score = Annotated[int, Meta(ge=1, le=5)]
Text = Annotated[str, Meta(min_length=1)]

SHORTEST = 2
"""Smallest number of words of a question or an answer; a Chinese text needs twice as many characters."""

REPEATS = 0.5
"""A text is degenerate if at least this fraction of its word trigrams repeat an earlier one."""

Problem = str | None
"""The name of the reason for rejecting a reply, or None if the reply is usable."""


class StepReply(Struct, forbid_unknown_fields=True):
    """The reply to one step."""

    def find_problem(self, row: Any) -> Problem:
        """Return why this reply is rejected, or None if it is usable. `row`: the request's BuildRow."""
        return None


class Quality(StepReply):
    """An image's clarity, resolution and plausibility in a real conversation (MultiVerse, appendix E)."""

    clarity: Score
    resolution: Score
    plausibility: Score


class Category(StepReply):
    category: Text
    sub_category: Text


Goal = Literal[
    "Verification", "Analysis", "Exploration", "Optimization", "Calculation", "Understanding", "Research", "Creation"
]
"""MultiVerse's eight interaction goals (appendix C.1)."""


class Persona(StepReply):
    """Who brings the image, in which situation, and what for (MultiVerse §2.1, step 2)."""

    character: Text
    scenario: Text
    goal: Goal
    sub_goal: Text


class QuestionAnswer(StepReply):
    question: Text
    answer: Text


class GeneratedConversation(StepReply):
    """A conversation with increasingly hard questions and a reference for each (MultiVerse §2.1, step 3).

    >>> from types import SimpleNamespace
    >>> def problem(*turns, lang="en"):
    ...     reply = GeneratedConversation("Recognition", "colours", [QuestionAnswer(*turn) for turn in turns])
    ...     return reply.find_problem(SimpleNamespace(lang=lang))
    >>> kite = [("What colour is the kite?", "Red and blue."), ("Who holds the string of it?", "A child.")]
    >>> problem(*kite, ("Why is it up there?", "Wind."))
    >>> [problem(*kite, turn) for turn in (("Why?", "Wind."), ("Why is it up there?", "the kite is " * 9), kite[0])]
    ['too_short', 'degenerate', 'repeated']
    >>> problem(*kite), problem(*((f"Is number {number} red?", "Yes.") for number in range(5)))
    ('too_few_turns', 'too_many_turns')
    >>> problem(*kite, ("Why is it up there?", "风把它吹起来了"))
    'wrong_language'
    >>> cat = [("图里有什么动物？", "一只猫"), ("它在做什么呢？", "睡觉"), ("请写一首诗吧", "猫儿睡")]
    >>> problem(*cat, lang="zh"), problem(cat[0], ("What is it doing?", "睡觉"), cat[2], lang="zh")
    (None, 'wrong_language')
    """

    task: Text
    sub_task: Text
    turns: list[QuestionAnswer]

    def find_problem(self, row: Any) -> Problem:
        return _check_exchanges(self.turns, (3, 4), row.lang)

    def list_turns(self) -> list[dict[str, Any]]:
        """Return the turns as dicts with the fields of DraftTurn."""
        return [{**structs.asdict(turn), "task": self.task} for turn in self.turns]


class Levels(StepReply):
    """ConvBench's three turns (§3.1): perception, reasoning and creation.

    `tasks` names each turn's task. `focus` says what the last answer must achieve. `caption` describes the image to a
    judge that does not see it.
    """

    caption: Text
    turns: list[QuestionAnswer]
    tasks: list[Text]
    focus: Text

    def find_problem(self, row: Any) -> Problem:
        if len(self.tasks) != len(self.turns):
            return "too_few_turns"
        return _check_exchanges(self.turns, (3,), row.lang) or check_texts([self.caption, self.focus], row.lang)

    def list_turns(self) -> list[dict[str, Any]]:
        """Return the turns as dicts with the fields of DraftTurn."""
        turns = [{**structs.asdict(turn), "task": task} for turn, task in zip(self.turns, self.tasks, strict=True)]
        # Only the creation turn is judged by what it has to achieve.
        turns[-1]["focus"] = self.focus
        return turns


_TASKS = "Description|Recognition|Counting|OCR|Meme|Knowledge|Reasoning|Chart|Problem|Comparison|Writing"
Task = Annotated[str, Meta(pattern=f"^({_TASKS}|Coherence|Incoherence)$")]
"""One of AlignMMBench's thirteen tasks."""


class Single(StepReply):
    """A question of one AlignMMBench task with its reference; the last two tasks have a dialogue before it."""

    task: Task
    question: Text
    answer: Text
    dialogue: list[QuestionAnswer] = []

    def find_problem(self, row: Any) -> Problem:
        # Tasks are balanced in advance, so a reply may not choose another.
        if self.task != row.facts["task"]:
            return "other_task"
        # These two tasks are about the dialogue itself; the others must stand without one.
        needs_dialogue = self.task in ("Coherence", "Incoherence")
        if bool(self.dialogue) != needs_dialogue:
            return "no_dialogue" if needs_dialogue else "too_many_turns"
        return _check_exchanges([*self.dialogue, QuestionAnswer(self.question, self.answer)], range(1, 9), row.lang)

    def list_turns(self) -> list[dict[str, Any]]:
        """Return the only turn as a dict with the fields of DraftTurn, in a list."""
        return [{"question": self.question, "answer": self.answer, "task": self.task}]


class Wordings(StepReply):
    """Rewordings of a seed question (AlignMMBench §3.3)."""

    wordings: list[Text]

    def find_problem(self, row: Any) -> Problem:
        """Return a problem unless there are as many rewordings as requested, all different, and none is the seed's
        text."""
        wordings = list(dict.fromkeys(wording.strip() for wording in self.wordings))
        # The seed among its own rewordings would count twice within the group.
        if len(wordings) < len(self.wordings) or row.facts["question"].strip() in wordings:
            return "repeated"
        if len(wordings) != row.facts["count"]:
            return "too_few_variants" if len(wordings) < row.facts["count"] else "too_many_variants"
        return check_texts(wordings, row.lang)


class Item(StepReply):
    """A yes/no question about an answer, with its main and sub-aspect."""

    question: Text
    main: Text
    sub: Text


class Checklist(StepReply):
    """The items of one turn (MultiVerse §2.3)."""

    items: list[Item]

    def find_problem(self, row: Any) -> Problem:
        questions = [item.question.strip() for item in self.items]
        if not questions:
            return "no_items"
        return "repeated" if len(set(questions)) < len(questions) else check_texts(questions, row.lang)


class HeldItems(StepReply):
    """One answer per checklist item of a turn, in order: does the reference fulfil the item? `unclear`: neither yes nor
    no."""

    answers: list[Literal["yes", "no", "unclear"]]

    def find_problem(self, row: Any) -> Problem:
        """Return a problem unless there is one answer per item."""
        return None if len(self.answers) == len(row.facts["items"]) else "wrong_count"


class DraftTurn(Struct, kw_only=True, omit_defaults=True):
    """A question with its reference (`answer`) and its checklist `items`.

    `disputed`: the questions of the items on which two models differ.
    `focus`: what the last answer must achieve (ConvBench); None in other turns.
    """

    question: str
    answer: str
    task: str | None = None
    items: list[Item] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)
    focus: str | None = None


class DraftConversation(Struct, kw_only=True, omit_defaults=True):
    """A conversation generated from the image at the path `image`. `dialogue` holds given exchanges before turn 1."""

    id: str
    image: str
    lang: Language
    turns: list[DraftTurn]
    category: str
    sub_category: str
    goal: str | None = None
    sub_goal: str | None = None
    task: str | None = None
    sub_task: str | None = None
    caption: str | None = None
    dialogue: list[QuestionAnswer] = field(default_factory=list)

    @property
    def keyed_turns(self) -> dict[str, DraftTurn]:
        """The turns in order, by the key "ID/NUMBER" (number from 1)."""
        return {f"{self.id}/{number}": turn for number, turn in enumerate(self.turns, 1)}

    def join_texts(self) -> str:
        """Return all questions and answers, one per line, as one text."""
        return "\n".join(part for turn in self.turns for part in (turn.question, turn.answer))


def build_example(kind: Any) -> Any:
    """Return an example of a reply type's JSON, with an ellipsis in place of each value.

    >>> build_example(Checklist)
    {'items': [{'question': '…', 'main': '…', 'sub': '…'}]}
    """
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {field.name: build_example(field.type) for field in structs.fields(kind)}
    return [build_example(get_args(kind)[0])] if get_origin(kind) is list else "…"


def is_degenerate(text: str) -> bool:
    """Return True if a text repeats itself: at least the fraction REPEATS of its word trigrams are repetitions.

    In Chinese the trigrams are of characters. Texts with fewer than 12 trigrams are too short to tell.

    >>> is_degenerate("a red dot " * 12), is_degenerate("A red kite flies over the beach.")
    (True, False)
    """
    tokens = words(text)
    runs = Counter(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return sum(runs.values()) >= 12 and 1 - len(runs) / sum(runs.values()) >= REPEATS


def is_in_language(text: str, language: Language) -> bool:
    """Return True if a text is in the language, judged by the share of Chinese characters among its letters.

    Some names or formulas in the other language are allowed.

    >>> is_in_language("两只 kite 在天上飞", "zh"), is_in_language("两只风筝", "en")
    (True, False)
    """
    letters = [char for char in text if char.isalpha()]
    chinese = sum("\u4e00" <= char <= "\u9fff" for char in letters) / max(1, len(letters))
    return not letters or (chinese >= 0.3 if language == "zh" else chinese <= 0.3)


def check_texts(passages: Sequence[str], language: Language, fewest_words: int | None = None) -> Problem:
    """Return the first problem of a reply's texts ("too_short", "degenerate" or "wrong_language"), or None.

    `fewest_words` is the smallest number of words (Chinese: characters) of a text; None means SHORTEST.
    """
    if fewest_words is None:
        # A Chinese word has about two characters.
        fewest_words = 2 * SHORTEST if language == "zh" else SHORTEST
    if any(len(words(text)) < fewest_words for text in passages):
        return "too_short"
    if any(map(is_degenerate, passages)):
        return "degenerate"
    return None if all(is_in_language(text, language) for text in passages) else "wrong_language"


def _check_exchanges(turns: Sequence[QuestionAnswer], counts: Iterable[int], language: Language) -> Problem:
    """Return the problem of a reply's turns, or None; `counts` holds the allowed numbers of turns."""
    if len(turns) not in counts:
        return "too_few_turns" if len(turns) < min(counts) else "too_many_turns"
    questions = [turn.question.strip().lower() for turn in turns]
    # A conversation that asks the same again does not become harder.
    if len(set(questions)) < len(questions):
        return "repeated"
    # An answer may be a number or a name; a question may not.
    return check_texts(questions, language) or check_texts([turn.answer for turn in turns], language, fewest_words=1)
