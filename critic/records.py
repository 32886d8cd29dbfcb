"""Records that all stages share. Each record contains the one before, so no stage joins files by id."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

Language = Literal["zh", "en"]
Message = Mapping[str, Any]
"""A chat message with `role` and `content`.

The content is a text, or parts as chat templates of vision models take them: `{"type": "text", "text": …}` and
`{"type": "image", "image": name of an image}`.
"""

Showing = Literal["blind", "show"]
"""Images of the answer: hidden from the judge, or shown to it."""

CUT_OFF = "the answer ends within the model's thoughts"
"""Reason to leave out an answer without its end: a score of it is no label of a complete answer."""

RATINGS = tuple(range(1, 11))
"""Ratings that a judge may give (AlignMMBench, section 4.1): whole numbers 1..10."""

NO_VERDICT = -1.0
"""Score that FastChat writes for a reply without a verdict."""

NOT_LEARNED = "did not learn {}, in which it was asked (--force-form): its verdicts there do not measure it"
"""Warning about a form that a judge was asked in without training."""
Position = Literal["model", "opponent"]
PLAYERS: tuple[Position, Position] = ("model", "opponent")
"""The two sides of a comparison."""

Scale = tuple[int, int]
"""Lowest and highest rating of a scale."""

TEN: Scale = (RATINGS[0], RATINGS[-1])
"""Scale of RATINGS."""


def to_ten(score: float, low: float, high: float) -> float:
    """Return a score on low..high moved linearly onto 1..10.

    >>> to_ten(3, 1, 5)
    5.5
    """
    return TEN[0] + (TEN[1] - TEN[0]) * (score - low) / (high - low)


class Turn(Struct, frozen=True):
    """A finished exchange of a dialogue history."""

    user: str
    assistant: str


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question to a model.

    `group` is the unit of splitting and resampling: rows of a group share a question or an image. For a judge only:
    `caption` describes the image to a judge that cannot see it, `focus` is the aim of an open answer, `checklist` are
    yes/no questions about the answer, `criteria` are rated besides it (name -> meaning).
    """

    id: str
    prompt: str
    task: str
    group: str
    lang: Language
    reference: str | None = None
    references: list[str] = field(default_factory=list)
    category: str | None = None
    history: list[Turn] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    caption: str | None = None
    focus: str | None = None
    checklist: list[str] = field(default_factory=list)
    criteria: dict[str, str] = field(default_factory=dict)


Scope = Literal["turn", "conversation"]
"""Unit that was scored: the answer to the last question, or the whole conversation that ends with it."""


class HumanScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """People's score of a response.

    `score` is the raters' mean on 1..10; `raters` holds each rater's score on 1..10 if known. `reason` is a short
    reason. `answers` are to the question's checklist, in its order; `criteria` are scores on 1..10 by criterion.
    `probability` (0..1) is the chance of the response to be sampled for rating; None if all had the same.
    """

    score: float
    raters: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    scope: Scope = "turn"
    answers: list[bool | None] = field(default_factory=list)
    criteria: dict[str, float] = field(default_factory=dict)
    probability: float | None = None


class Exchange(Struct, frozen=True, omit_defaults=True):
    """A question, its images, and the reply."""

    question: str
    answer: str
    images: list[str] = []


class Candidate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One assistant's side.

    `earlier` are the exchanges that count, oldest first. If a turn is judged, `answer` is the reply to it and `later`
    are the exchanges after it, if they are shown.
    """

    earlier: list[Exchange] = field(default_factory=list)
    answer: str | None = None
    later: list[Exchange] = field(default_factory=list)


class TurnJudgment(Struct, frozen=True, omit_defaults=True):
    """The judgment of an earlier turn: a grade or a side's label, and the reason or None."""

    turn: int
    verdict: str
    reason: str | None = None


class PromptInputs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a prompt shows. A single answer is a conversation of one turn and one side; two `sides` are
    compared.

    `question` is None if a whole conversation is judged. `references` are by turn from 1, None if a turn has none.
    `focus`, `checklist` and `criteria` are as in Question. `verdicts` on single turns are shown if the whole is judged;
    `turned` are the same for the other order of the sides, if they differ in more than names. `own_answer` is the
    judge's own answer, given before it saw the one it judges. `images` are shown with the question: paths below a data
    root, or other names of images.
    """

    sides: list[Candidate] = field(default_factory=list)
    question: str | None = None
    references: list[str | None] = field(default_factory=list)
    task: str = ""
    caption: str | None = None
    focus: str | None = None
    checklist: list[str] = field(default_factory=list)
    criteria: dict[str, str] = field(default_factory=dict)
    verdicts: list[TurnJudgment] = field(default_factory=list)
    turned: list[TurnJudgment] | None = None
    own_answer: str | None = None
    images: list[str] = field(default_factory=list)

    def pictures(self) -> list[str]:
        """Return all images that are shown, each once."""
        names = list[str]()
        for side in self.sides:
            for exchange in (*side.earlier, *side.later):
                names += exchange.images
        return list(dict.fromkeys([*names, *self.images]))


class Response(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's answer to a question.

    `columns` holds other judges' scores on 1..10, by column name (`gpt4_score_1_10`). `preference`, from people: 1.0 if
    this answer is better, 0.5 for a tie, 0.0 if `other` is. `shown` is the input of a judge in the form `form`, for a
    turn or a whole conversation. `cut_off`: the reply ended within the model's thoughts, so `text` is empty.
    """

    id: str
    question: Question
    text: str
    system: str | None = None
    human: HumanScore | None = None
    columns: dict[str, float] = field(default_factory=dict)
    other: "Response | None" = None
    preference: float | None = None
    shown: PromptInputs | None = None
    form: str = ""
    cut_off: bool = False


ImageFailure = Literal["image_missing", "image_outside_root", "image_too_large", "image_unreadable"]

TurnFailure = (
    Literal["empty", "truncated", "context_length_exceeded", "refused", "content_filter", "server_error", "budget"]
    | Literal["not_run"]
    | ImageFailure
)
"""Reasons why a turn has no reply.

`refused`: by the server or by the model. `budget`: nothing was asked since the token budget was spent. `not_run`: an
earlier turn failed whose reply was to be shown.
"""

Failure = TurnFailure | Literal["no_rating", "no_verdict", "out_of_range", "no_distribution"]
"""Reasons why a judgment has no score.

`truncated`: the reply ended at the token limit before a rating. `not_run`: there is no answer to judge.
"""


class Summary(Struct, frozen=True, kw_only=True):
    """Statistics of a rating distribution over 1..10.

    The most probable rating, mean, median and standard deviation are in rating points. The entropy is in bits: 0 for
    certainty, 3.32 for a uniform distribution.
    """

    argmax: float
    expected: float
    median: float
    deviation: float
    entropy: float


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A judge's reply, parsed; `failure` is set if it holds no verdict.

    A form asks for a `rating`, moved onto 1..10; for a `value` (A, B or tie; yes or no; the judge's own answer); or for
    `answers` to a checklist, in its order, None for a missing one. `criteria` holds the ratings by criterion, each with
    its own failure.

    `distribution[i]` is the probability of the scale's rating lowest + i (they sum to 1); `summary` is on 1..10. Both
    are None if the judge gave no log probabilities. `scale` is None for 1..10. For a pair that a scoring head compared,
    `distribution` is the probability that B is better, and that A is.
    """

    rating: float | None = None
    reason: str | None = None
    failure: Failure | None = None
    distribution: list[float] | None = None
    summary: Summary | None = None
    value: str | None = None
    answers: list[bool | None] = field(default_factory=list)
    criteria: dict[str, "Verdict"] = field(default_factory=dict)
    scale: Scale | None = None


class SamplingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling of verdicts.

    `reason`: a reason is written beside the rating. `images`: shown to the judge or not, shrunk to at most
    `max_image_pixels` pixels.
    """

    reason: bool = True
    temperature: float = 0.0
    images: Showing = "blind"
    max_image_pixels: int | None = None


GREEDY = SamplingParams()
"""Default sampling: temperature 0, with a reason."""


class Example(Struct, frozen=True, kw_only=True):
    """A training example: the messages of a judging prompt in one form (`critic.judging.forms`), and the target
    verdict.

    `id` is the response's, or both ("ID1+ID2") for a pair. `score` is people's mean on 1..10, None for a pair.
    `label[i]` is the share of raters who gave the form's rating lowest + i; a score between two ratings is split
    between them (the shares sum to 1). It is None if the raters are unknown or the verdict is no rating. `free`: the
    target is free text. `images` are those in the messages, in order. For a head that scores each answer of a pair,
    `messages` ask for the first and `other` for the second; `label` is how far people prefer the first: -1..1, 0 for a
    tie.
    """

    id: str
    form: str
    messages: list[Message]
    target: str
    score: float | None = None
    label: list[float] | None = None
    shortened: dict[str, int] = field(default_factory=dict)
    free: bool = False
    images: list[str] = field(default_factory=list)
    other: list[Message] = field(default_factory=list)


class ConversationTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation with a model.

    `images` are shown with this turn: paths relative to a data root, or data URIs. `focus` is the aim on which open
    answers are compared (ConvBench's creation turn). `checklist` are yes/no questions about the answer, `aspects` the
    main aspect and sub-aspect of each (MultiVerse). `references` are as in Question.
    """

    prompt: str
    reference: str | None = None
    references: list[str] = field(default_factory=list)
    task: str | None = None
    images: list[str] = field(default_factory=list)
    focus: str | None = None
    checklist: list[str] = field(default_factory=list)
    aspects: list[tuple[str, str]] = field(default_factory=list)


_OF_TURN = ("reference", "references", "images", "focus", "checklist")
_OF_ALL = ("lang", "group", "caption", "category", "history", "criteria")
_OF_LABELS = ("human", "columns", "preference", "shown")
"""Fields that two records share: a question and its turn, a question and its conversation, a response and its
sample."""


def _copy_fields(record: Struct, names: Sequence[str]) -> dict[str, Any]:
    """Return the named fields of a record."""
    return {name: getattr(record, name) for name in names}


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The turns that a model is asked.

    `history` is given, not generated, and comes before turn 1. `group` is the unit of resampling; `criteria` are as in
    Question. `caption` describes the image to a judge that cannot see it. `benchmark` is empty for a question from the
    user's own rows.
    """

    id: str
    benchmark: str = ""
    lang: Language
    group: str
    turns: list[ConversationTurn]
    caption: str | None = None
    category: str | None = None
    goal: str | None = None
    domain: str | None = None
    history: list[Turn] = field(default_factory=list)
    criteria: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, question: Question, benchmark: str = "") -> "Conversation":
        """Return a single question as a conversation of one turn, after its history."""
        turn = ConversationTurn(prompt=question.prompt, task=question.task, **_copy_fields(question, _OF_TURN))
        return cls(id=question.id, benchmark=benchmark, turns=[turn], **_copy_fields(question, _OF_ALL))


NOTHING_ASKED = Conversation(id="", lang="en", group="", turns=[])
"""Conversation of a sample that keeps only its id."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling of replies and the limits of prompts: the same for all turns of a file."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    max_image_pixels: int | None = None


class SentImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image that was sent. `sha256` is of the bytes sent; `resized`: smaller than its file."""

    path: str
    sha256: str
    resized: bool = False


class SentMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it was sent, its images before its text."""

    role: Literal["user", "assistant"]
    content: str
    images: list[SentImage] = field(default_factory=list)


class ModelTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's reply to one turn (from 1) of a conversation under a condition.

    `reply` is None exactly if `failure` is set. `seen` is what was sent, empty if nothing was. Records with the same
    `call` share one generation: its tokens and seconds count once. Token counts are None if the server does not report
    them. `finish` is the server's word for why the reply ended ("length": at `max_tokens`). `answered_by` is the
    model's name in the reply and, in brackets, its fingerprint. `thoughts` came before the reply or apart from it:
    nobody judges them, and no later turn shows them.
    """

    conversation: Conversation
    condition: str
    turn: int
    system: str
    sampling: Sampling
    call: str | None = None
    seen: list[SentMessage] = field(default_factory=list)
    reply: str | None = None
    thoughts: str | None = None
    finish: str | None = None
    failure: TurnFailure | None = None
    detail: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    attempts: int = 1
    answered_by: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise ValueError if the fields contradict each other."""
        turns, behind = len(self.conversation.turns), len(self.conversation.history) + self.turn
        if not 1 <= self.turn <= turns:
            raise ValueError(f"turn {self.turn} of a conversation that has {turns}")
        if (self.reply is None) == (self.failure is None):
            raise ValueError("expected either a `reply` or a `failure`")
        # A file of another tool may lack `seen`; its turns are then judged without what was said before.
        if self.reply is not None and self.seen and (len(self.seen) % 2 == 0 or len(self.seen) >= 2 * behind):
            raise ValueError(
                f"`seen` has {len(self.seen)} messages; expected those before turn {self.turn}, and its own"
            )


Order = Literal["both", "random", "forced"]
"""Order of two answers: both orders, a tie if the verdicts differ; a random order; a random order without ties
(ConvBench)."""

OnUnparsed = Literal["fail", "tie"]
"""Result of a comparison without a readable verdict: a named failure, or a tie (VisIT-Bench, appendix F)."""

TurnContext = Literal["before", "all"]
"""Turns shown when a turn is judged: those before it, or all (ConvBench's own prompts)."""

Pairing = Literal["all", "random", "newcomer"]
"""Comparisons among several models, by conversation: every pair; each model with a random opponent; or the first with a
random opponent, which adds it to a finished tournament (VisIT-Bench, appendix F)."""

Ablation = Literal["standard", "no_focus", "no_turn_verdicts"]
"""Variants of judging: as the protocol says; without focus points; a whole conversation without the judgments of its
turns (ConvBench's ablations)."""


class JudgeConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling and scoring of verdicts: the same for all judgments of a file.

    `seed` is for random orders. `reference_backed`: two models are compared with the reference in view. `unread` is the
    result of a comparison without a verdict. `reason_first`: conversations use the forms with the reason before the
    verdict. `sight` is the turns shown when a turn is judged. `battles` is the pairing of several models, None if one
    meets all others. `unlearned` names the forms that the judge was asked in without training.
    """

    judge: str
    score_kind: str
    order: Order = "both"
    seed: int = 0
    reference_backed: bool = True
    pointwise_prompt: str = "pointwise"
    decoding: SamplingParams = GREEDY
    unread: OnUnparsed = "fail"
    reason_first: bool = False
    sight: TurnContext = "before"
    battles: Pairing | None = None
    unlearned: str = ""


def describe_difference(before: JudgeConfig, now: JudgeConfig, where: str = "now") -> str:
    """Return the first difference of two setups, which must differ; `where` says where `now` holds.

    >>> describe_difference(JudgeConfig(judge="a", score_kind="mean"), JudgeConfig(judge="b", score_kind="mean"))
    "judge 'a', now 'b'"
    """
    name = next(name for name in JudgeConfig.__struct_fields__ if getattr(before, name) != getattr(now, name))
    return f"{name} {getattr(before, name)!r}, {where} {getattr(now, name)!r}"


TOKEN_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")
"""Fields of judgments, calls and replies that count tokens."""


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to the judge and what was parsed from its reply: a grade, A, B or tie, or yes and no by item.

    `first` is the side that came first. `shortened` counts what was left out of the prompt: exchanges of the history,
    characters of references and of replies. `images` is how many were sent. Token counts include replies that were
    discarded for lack of room. `answered_by` is the model's name in the reply.
    """

    reply: str
    value: str | None = None
    failure: str | None = None
    first: Position | None = None
    shortened: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
    images: int = 0
    answered_by: str = ""


class Sample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The subject of a judgment: an answer, or a whole conversation (`turn` None).

    `answer` is the reply of the model `system` to a turn (from 1), given after the history of the `condition`. A
    question from the user's own rows is a conversation of one turn. `id` is the answer's own, or the conversation's.
    `length` is the answer's, in characters. If two are compared, `opponent` is the other model (None: the reference)
    and `other` its answer, if it is a row of its own. `human`, `columns`, `preference` and `shown` are as in Response.
    """

    id: str = ""
    conversation: Conversation = NOTHING_ASKED
    system: str | None = None
    condition: str = "own"
    turn: int | None = None
    answer: str | None = None
    length: int | None = None
    opponent: str | None = None
    other: "Sample | None" = None
    human: HumanScore | None = None
    columns: dict[str, float] = field(default_factory=dict)
    preference: float | None = None
    shown: PromptInputs | None = None

    @classmethod
    def of(cls, response: Response, other: Response | None = None) -> "Sample":
        """Build a sample from a row's answer, and another answer to the same question if two are compared."""
        return cls(
            id=response.id,
            conversation=Conversation.of(response.question),
            system=response.system,
            turn=1,
            answer=response.text,
            length=len(response.text),
            opponent=None if other is None else other.system or "another",
            other=None if other is None else cls.of(other),
            **_copy_fields(response, _OF_LABELS),
        )

    @property
    def response(self) -> Response:
        """The sample as a row: earlier turns are its history, a whole conversation is represented by its last turn."""
        conversation = self.conversation
        turns = conversation.turns[: self.turn] or [ConversationTurn(prompt="")]
        turn = turns[-1]
        shared = {**_copy_fields(turn, _OF_TURN), **_copy_fields(conversation, _OF_ALL)}
        question = Question(id=conversation.id, prompt=turn.prompt, task=turn.task or "none", **shared)
        labels = _copy_fields(self, _OF_LABELS)
        return Response(id=self.id, question=question, text=self.answer or "", system=self.system, **labels)

    @property
    def key(self) -> str:
        """Key of the sample within a file; both ids if two answers with own ids are compared."""
        return self.id if self.other is None or not self.other.id else f"{self.id}+{self.other.id}"

    @property
    def asked(self) -> ConversationTurn | None:
        """The turn that was answered, or None for a whole conversation."""
        return None if self.turn is None else self.conversation.turns[self.turn - 1]


class Judgment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sample judged once, by the form `prompt`, which a `protocol` (critic.judging.protocols) chose if a benchmark's
    conversations are judged.

    `score` is the result, None exactly if `verdict.failure` is set. A rating gives 1..10: the rating, or the mean or
    median of its distribution (`setup.score_kind`). A comparison gives 1 if the sample's answer is better, 0 if the
    other is, 1/2 for a tie. Yes gives 1 and no 0; a checklist gives the share of yes.

    `members` holds the parts of a panel's judges, without what they share with the panel. `score` and `verdict.rating`
    are then the panel's aggregate, and `verdict.distribution` is the mean of the members'. `calls` holds each request
    if a form or protocol needs several. Judgments of one conversation with the same `asked` share their calls, and
    tokens count once; `asked` is None if nothing was asked.

    `judging` is the ablation ("no_focus": without focus points). `unread`: a tie since no verdict could be parsed
    (Setup.unread). `unjudged` is the number of failed turn judgments that the judgment of the whole went without.
    `shortened` counts the characters left out of the prompt, by section. `images` is how many reached the judge with
    the answer, the fewest among a panel's members. `answered_by` are the names in the judge's replies (model and
    fingerprint), several if another model answered under the same name.
    """

    sample: Sample
    setup: JudgeConfig
    verdict: Verdict
    prompt: str = ""
    prompt_hash: str = ""
    protocol: str | None = None
    judging: str = "standard"
    score: float | None = None
    unread: bool = False
    unjudged: int = 0
    asked: str | None = None
    reply: str = ""
    detail: str | None = None
    shortened: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
    images: int = 0
    answered_by: list[str] = field(default_factory=list)
    members: list["Judgment"] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def check(self) -> None:
        """Raise ValueError for a verdict on a turn that the conversation does not have."""
        turn, turns = self.sample.turn, len(self.sample.conversation.turns)
        # A line edited by hand, or of another file's conversation: every later stage indexes the turns.
        if turn is not None and not 1 <= turn <= turns:
            raise ValueError(f"a verdict on turn {turn} of a conversation that has {turns}")

    @property
    def judge(self) -> str:
        return self.setup.judge

    @property
    def id(self) -> str:
        """The id that people's labels of the same sample have."""
        sample = self.sample
        # A row of the user's own keeps its id, by which people's labels name it.
        if self.protocol is None:
            return sample.key
        return build_verdict_id(sample.id, sample.condition, self.protocol, sample.turn, self.judging, sample.opponent)

    @property
    def score_kind(self) -> str:
        return self.setup.score_kind

    @property
    def conversation(self) -> Conversation:
        return self.sample.conversation

    @property
    def system(self) -> str:
        return self.sample.system or ""

    @property
    def condition(self) -> str:
        return self.sample.condition

    @property
    def turn(self) -> int | None:
        return self.sample.turn

    @property
    def opponent(self) -> str | None:
        return self.sample.opponent

    @property
    def failure(self) -> Failure | None:
        return self.verdict.failure

    @property
    def part(self) -> "Judgment":
        """The part of a member's judgment that a panel keeps: how it judged, and the result."""
        # The id stays in the sample: Parquet cannot store a struct without fields.
        names = ("setup", "verdict", "score", "answered_by")
        return Judgment(sample=Sample(id=self.sample.id), **_copy_fields(self, names))

    @classmethod
    def upgrade(cls, row: Any) -> "Judgment | None":
        """Return the judgment in a line of versions before 2026-11-26, or None if it is none.

        It was of an answer (`response`), or of a conversation (`conversation`, and what was judged and the score in
        `verdict`). Raises ValidationError.
        """
        # The two kinds of judgment were two records then.
        match row:
            case {"verdict": dict(), "response": dict()}:
                return msgspec.convert(_upgrade_answer(row), cls)
            case {"verdict": dict(), "conversation": dict(), "setup": dict()}:
                return msgspec.convert(_upgrade_conversation(row), cls)
        return None


def build_verdict_id(
    key: str,
    condition: str,
    protocol: str,
    turn: int | None = None,
    judging: str = "standard",
    opponent: str | None = None,
) -> str:
    """Return the id of people's labels of a verdict on the conversation `key` (see eval_agreement.items).

    >>> build_verdict_id("7", "own", "pairwise", turn=2, opponent="llava")
    '7/own/pairwise/2/opponent=llava'
    """
    named = {"judging": judging, "opponent": opponent}
    # Defaults are left out, so that labels collected before these options existed still match.
    extras = [f"{name}={value}" for name, value in named.items() if value not in (None, "standard")]
    return "/".join([key, condition, protocol, str(turn or "whole"), *extras])


def sum_usage(records: Sequence[Judgment | Call]) -> dict[str, Any]:
    """Return the tokens of several judgments or calls together, and the most attempts of one."""
    tokens = {name: sum(getattr(record, name) for record in records) for name in TOKEN_COUNTS}
    return {**tokens, "attempts": max((record.attempts for record in records), default=0)}


def _upgrade_answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return an older judgment of an answer with today's keys."""
    other = row.pop("other", None)
    answers = [msgspec.convert(row.pop("response"), Response)]
    if other is not None:
        answers.append(msgspec.convert(other, Response))
    setup: dict[str, Any] = {"pointwise_prompt": row.get("prompt")}
    setup |= {name: row.pop(name) for name in ("judge", "score_kind", "decoding") if name in row}
    members = []
    for member in row.pop("members", []):
        members.append({**member, "sample": {"id": answers[0].id}, "setup": setup | {"judge": member.get("judge")}})
    return row | {"sample": Sample.of(*answers), "setup": setup, "members": members}


def _upgrade_conversation(row: dict[str, Any]) -> dict[str, Any]:
    """Return an older judgment of a turn or a whole conversation with today's keys."""
    old, setup, conversation = row.pop("verdict"), row["setup"], row.pop("conversation")
    names = ("system", "condition", "turn", "opponent", "length")
    sample = {name: old[name] for name in names if name in old}
    sample |= {"id": old.get("conversation"), "conversation": conversation, "answer": row.pop("answer", None)}
    protocol = old.get("protocol")
    form = setup.get("pointwise_prompt", "pointwise") if protocol == "pointwise" else protocol
    if protocol in ("direct", "pairwise"):
        form = f"{protocol}_{'turn' if 'turn' in old else 'whole'}"
    verdict = row.pop("rating", None) or {}
    verdict |= {"failure": old.get("failure"), "answers": row.pop("answers", []), "reason": row.pop("reason", None)}
    # The side was not written then, but follows from the score.
    if protocol == "pairwise":
        verdict["value"] = {1.0: "A", 0.5: "tie", 0.0: "B"}.get(old.get("score"))
    kept = ("protocol", "judging", "score", "unread", "unjudged")
    upgraded = row | {name: old[name] for name in kept if name in old}
    upgraded |= {"sample": sample, "verdict": verdict, "prompt": form}
    # The totals of the calls were not written then.
    if calls := msgspec.convert(row.get("calls", []), list[Call]):
        upgraded |= {"reply": calls[0].reply, **sum_usage(calls)}
    return upgraded


def is_judgment(row: Any) -> bool:
    """Return whether a line of JSON is meant as a judgment, of this version or an earlier one.

    >>> is_judgment({"sample": {"id": "7"}, "verdict": {"rating": 8}})
    True
    """
    if not isinstance(row, dict) or not isinstance(row.get("verdict"), dict):
        return False
    return bool({"sample", "response"} & row.keys()) or {"conversation", "setup"} <= row.keys()
