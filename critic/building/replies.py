"""What a model is asked for while a benchmark is made: the reply of each step, which its JSON schema is made from, and
the names by which a reply is turned down."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, field

from critic.records import Language
from critic.stats.diversity import words

Score = Annotated[int, Meta(ge=1, le=5)]
Text = Annotated[str, Meta(min_length=1)]

SHORTEST = 2
"""Words (Chinese: characters, twice as many) of a question or an answer, at least."""

REPEATS = 0.5
"""The share of a text's three-word runs that say again what stood before, from which on it goes round in circles."""


class StepReply(Struct, forbid_unknown_fields=True):
    """What a step asks for."""


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
    """A conversation whose questions become harder, with a reference for each (MultiVerse §2.1, step 3)."""

    task: Text
    sub_task: Text
    turns: list[QuestionAnswer]


class Levels(StepReply):
    """ConvBench's three turns (§3.1): what is to be seen, what follows from it, what can be made of it, and what the
    last has to achieve. `tasks` names what each asks for, `caption` tells the image to a judge that does not see it."""

    caption: Text
    turns: list[QuestionAnswer]
    tasks: list[Text]
    focus: Text


_TASKS = "Description|Recognition|Counting|OCR|Meme|Knowledge|Reasoning|Chart|Problem|Comparison|Writing"
Task = Annotated[str, Meta(pattern=f"^({_TASKS}|Coherence|Incoherence)$")]
"""One of AlignMMBench's thirteen."""


class Single(StepReply):
    """A question of one of AlignMMBench's tasks with its reference. The dialogue of its last two tasks comes before."""

    task: Task
    question: Text
    answer: Text
    dialogue: list[QuestionAnswer] = []


class Wordings(StepReply):
    """A seed question in other words (AlignMMBench §3.3)."""

    wordings: list[Text]


class Item(StepReply):
    """A yes/no question about an answer, and the main and the sub-aspect that it is about."""

    question: Text
    main: Text
    sub: Text


class Checklist(StepReply):
    """The items of one turn (MultiVerse §2.3)."""

    items: list[Item]


class HeldItems(StepReply):
    """Of a turn's items, in their order, whether the reference fulfils them; `unclear` where neither yes nor no can be
    said of it."""

    answers: list[Literal["yes", "no", "unclear"]]


class DraftTurn(Struct, kw_only=True, omit_defaults=True):
    """A question with its reference; `items` are its checklist, those of them `disputed` on which two models differ;
    `focus` is what ConvBench's last answer has to achieve."""

    question: str
    answer: str
    task: str | None = None
    items: list[Item] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)
    focus: str | None = None


class DraftConversation(Struct, kw_only=True, omit_defaults=True):
    """A conversation that was made of the image at the path `image`; `dialogue` is what comes before it."""

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

    def turn_keys(self) -> list[str]:
        """A name for each turn."""
        return [f"{self.id}/{number}" for number in range(1, len(self.turns) + 1)]

    def text(self) -> str:
        """What is asked and answered."""
        return "\n".join(part for turn in self.turns for part in (turn.question, turn.answer))


def example(kind: Any) -> Any:
    """A reply's keys as JSON has them, with an ellipsis for each value."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {field.name: example(field.type) for field in msgspec.structs.fields(kind)}
    return [example(get_args(kind)[0])] if get_origin(kind) is list else "…"


Problem = str | None
"""The name of the rejection, None for a reply that can be used."""


def degenerate(text: str) -> bool:
    """Whether a text goes round in circles: REPEATS of its runs of three words (Chinese: characters) repeat another."""
    tokens = words(text)
    runs = Counter(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return sum(runs.values()) >= 12 and 1 - len(runs) / sum(runs.values()) >= REPEATS


def in_language(text: str, language: Language) -> bool:
    """Whether a text is in Chinese or not: by the share of Chinese characters among its letters. Names and formulas of
    the other do not count where they are few."""
    letters = [char for char in text if char.isalpha()]
    chinese = sum("\u4e00" <= char <= "\u9fff" for char in letters) / max(1, len(letters))
    return not letters or (chinese >= 0.3 if language == "zh" else chinese <= 0.3)


def texts(passages: Sequence[str], language: Language, shortest: int = SHORTEST) -> Problem:
    """What is wrong with the texts of a reply: too short, going round in circles, or in the other language."""
    least = 2 * shortest if language == "zh" else shortest
    rules: dict[str, Callable[[str], bool]] = {
        "too_short": lambda text: len(words(text)) < least,
        "degenerate": degenerate,
        "wrong_language": lambda text: not in_language(text, language),
    }
    return next((name for name, broken in rules.items() if any(map(broken, passages))), None)


def _exchanges(turns: Sequence[QuestionAnswer], counts: Iterable[int], language: Language) -> Problem:
    if len(turns) not in counts:
        return "too_few_turns" if len(turns) < min(counts) else "too_many_turns"
    questions = [turn.question.strip().lower() for turn in turns]
    if len(set(questions)) < len(questions):
        return "repeated"
    answers = [turn.answer for turn in turns]
    # An answer may be a number or a name; a question may not.
    return texts(questions, language) or ("too_short" if not all(map(words, answers)) else texts(answers, language, 0))


def check_conversation(reply: GeneratedConversation, row: Any) -> Problem:
    return _exchanges(reply.turns, (3, 4), row.lang)


def check_levels(reply: Levels, row: Any) -> Problem:
    if len(reply.tasks) != len(reply.turns):
        return "too_few_turns"
    return _exchanges(reply.turns, (3,), row.lang) or texts([reply.caption, reply.focus], row.lang)


def check_single(reply: Single, row: Any) -> Problem:
    if reply.task != row.facts["task"]:
        return "other_task"
    within = reply.task in ("Coherence", "Incoherence")
    if bool(reply.dialogue) != within:
        return "no_dialogue" if within else "too_many_turns"
    return _exchanges([*reply.dialogue, QuestionAnswer(reply.question, reply.answer)], range(1, 9), row.lang)


def check_wordings(reply: Wordings, row: Any) -> Problem:
    wordings = list(dict.fromkeys(wording.strip() for wording in reply.wordings))
    if len(wordings) < len(reply.wordings) or row.facts["question"].strip() in wordings:
        return "repeated"
    if len(wordings) != row.facts["count"]:
        return "too_few_variants" if len(wordings) < row.facts["count"] else "too_many_variants"
    return texts(wordings, row.lang)


def check_checklist(reply: Checklist, row: Any) -> Problem:
    questions = [item.question.strip() for item in reply.items]
    if not questions:
        return "no_items"
    return "repeated" if len(set(questions)) < len(questions) else texts(questions, row.lang)


def check_held(reply: HeldItems, row: Any) -> Problem:
    return None if len(reply.answers) == len(row.facts["items"]) else "wrong_count"
