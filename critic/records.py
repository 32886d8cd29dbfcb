"""Records that all stages share. A judgment contains the answer and its question, so no stage joins files by id."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, convert, field

Language = Literal["zh", "en"]
Message = Mapping[str, Any]
"""A chat message with `role` and `content`.

The content is a string, or a list of parts as the chat templates of vision models expect them: `{"type": "text",
"text": …}` and `{"type": "image", "image": name of an image}`.
"""

Showing = Literal["blind", "show"]
"""Whether the judge sees the images: "blind" (no) or "show" (yes)."""

VIDEO = "video:"
"""Prefix of the names of videos, which stand among the names of images: "video:clip.mp4"."""

FRAMES = 8
"""Default number of frames that show a video."""

CUT_OFF = "the answer ends within the model's thoughts"
"""Printed reason for leaving out an answer that was cut off: people's score of it is no label of a complete answer."""

UNREADABLE = ("no_rating", "no_verdict", "out_of_range", "truncated")
"""Failures of a judge's reply that has text. Asking a second time about that text may yield a verdict (--extract)."""

RATINGS = tuple(range(1, 11))
"""Ratings that a judge may give (AlignMMBench, section 4.1): whole numbers 1..10."""

NO_VERDICT = -1.0
"""Score with which FastChat marks a reply that contains no verdict."""

NOT_LEARNED = "did not learn {}, in which it was asked (--force-form): its verdicts there do not measure it"
"""Warning printed after a judge's name: it was prompted in forms that it was not trained on. {} takes their names."""
Position = Literal["model", "opponent"]
PLAYERS: tuple[Position, Position] = ("model", "opponent")
"""The two sides of a comparison: the model under test and its opponent."""

Scale = tuple[int, int]
"""Lowest and highest rating of a scale."""

TEN: Scale = (RATINGS[0], RATINGS[-1])
"""The scale of RATINGS: 1 to 10."""


def to_ten(score: float, low: float, high: float) -> float:
    """Map a score linearly from the scale low..high onto 1..10.

    >>> to_ten(3, 1, 5)
    5.5
    """
    return TEN[0] + (TEN[1] - TEN[0]) * (score - low) / (high - low)


class Turn(Struct, frozen=True):
    """One exchange in a dialogue history: the user's message and the assistant's reply."""

    user: str
    assistant: str


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question to a model.

    `group` is the unit of splitting and resampling: rows of a group share a question or an image. Only judges see
    these:

    `caption`: description of the image, for a judge that cannot see it.
    `focus`: what a good answer to an open question must achieve.
    `checklist`: yes/no questions about the answer.
    `criteria`: additional criteria to rate, name -> meaning. `criteria_weights`: how much a point by each counts in the
        overall score, name -> weight above 0 (default: 1).
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
    criteria_weights: dict[str, float] = field(default_factory=dict)


Scope = Literal["turn", "conversation"]
"""What was scored: the answer to the last question, or the whole conversation that ends with it."""


class HumanScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The human label of a response.

    `score`: the raters' mean on 1..10. `raters`: each rater's score on 1..10; empty if unknown.
    `reason`: a short explanation of the score, or None.
    `answers`: yes/no answers to the question's checklist, in its order. `criteria`: scores on 1..10 by criterion.
    `probability`: chance (above 0, at most 1) that the response was sampled for rating; None if equal for all.
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
    """One side of a judging prompt: the exchanges of one assistant.

    `earlier`: the exchanges before the judged turn, or all if the whole conversation is judged; oldest first.
    `answer`: the reply to the judged turn, or None if the whole conversation is judged.
    `later`: the exchanges after the judged turn, if the judge sees them.
    """

    earlier: list[Exchange] = field(default_factory=list)
    answer: str | None = None
    later: list[Exchange] = field(default_factory=list)


class TurnJudgment(Struct, frozen=True, omit_defaults=True):
    """The judgment of one turn, as shown to the judge of the whole conversation.

    `verdict`: text: a grade, or the side that won ("A", "B" or a word for a tie); "not judged" if there is none.
    `reason`: the judge's reason, or None.
    """

    turn: int
    verdict: str
    reason: str | None = None


class PromptInputs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is filled into a judging prompt.

    A single answer is a conversation of one turn with one side; two `sides` are compared.

    `question`: None if a whole conversation is judged.
    `references`: one per turn, from turn 1; None for a turn without one.
    `focus`, `checklist`, `criteria`, `criteria_weights`: as in Question.
    `verdicts`: judgments of single turns, shown when the whole conversation is judged.
    `turned`: `verdicts` for the prompt with the sides in swapped order; None: swap the sides' names in `verdicts`.
    `text`: a judge's unreadable reply, if the prompt only asks which verdict that reply contains; else None.
    `own_answer`: the judge's own answer, written before it saw the answer to judge.
    `images`: paths under a data root, or other names of images and videos, shown with the question.
    """

    sides: list[Candidate] = field(default_factory=list)
    question: str | None = None
    references: list[str | None] = field(default_factory=list)
    task: str = ""
    caption: str | None = None
    focus: str | None = None
    checklist: list[str] = field(default_factory=list)
    criteria: dict[str, str] = field(default_factory=dict)
    criteria_weights: dict[str, float] = field(default_factory=dict)
    verdicts: list[TurnJudgment] = field(default_factory=list)
    turned: list[TurnJudgment] | None = None
    text: str | None = None
    own_answer: str | None = None
    images: list[str] = field(default_factory=list)

    def pictures(self) -> list[str]:
        """Return the names of all images that the prompt shows, each once."""
        names = list[str]()
        for side in self.sides:
            for exchange in (*side.earlier, *side.later):
                names += exchange.images
        return list(dict.fromkeys([*names, *self.images]))


class Response(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's answer to a question.

    `columns`: other judges' scores on 1..10, by column name (`gpt4_score_1_10`).
    `preference`: the human label of a pair: 1.0 if this answer is better, 0.5 for a tie, 0.0 if `other` is.
    `shown`: the inputs of a prompt in the form `form`, if the row holds those instead of a plain question.
    `cut_off`: True if the reply ended within the model's thoughts; `text` is empty then.
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

`refused`: the server or the model refused. `budget`: no request was made because the token budget was spent. `not_run`:
an earlier turn, whose reply the prompt would have shown, failed.
"""

Failure = TurnFailure | Literal["no_rating", "no_verdict", "out_of_range", "no_distribution"]
"""Reasons why a judgment has no score.

`truncated`: the reply reached the token limit before a rating. `not_run`: there is no answer to judge.
"""


class Summary(Struct, frozen=True, kw_only=True):
    """Statistics of a rating distribution over 1..10.

    `argmax` (most probable rating), `expected` (mean), `median` and `deviation` (standard deviation) are in rating
    points. `entropy` is in bits, from 0 (certain) to 3.32 (uniform).
    """

    argmax: float
    expected: float
    median: float
    deviation: float
    entropy: float


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A judge's parsed reply. `failure` is set if it contains no verdict.

    Depending on its form, a reply has one of these results:

    `rating`: moved onto 1..10.
    `value`: A, B or tie; yes or no; or the judge's own answer to the question.
    `answers`: to a checklist, in its order; None for a missing answer.

    `criteria` holds a rating per criterion, each with its own `failure`. `scale` is the form's scale, None for 1..10.
    `distribution[i]` is the probability of rating `lowest + i` of that scale; the values sum to 1. `summary` describes
    the distribution on 1..10. Both are None without log probabilities. If a scoring head compared a pair,
    `distribution` is [P(B is better), P(A is better)].
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
    """How verdicts are sampled.

    `reason`: True if the judge also writes a reason. `images`: whether it sees the images, each shrunk to at most
    `max_image_pixels` pixels (None: not shrunk), and `frames` frames of a video.
    """

    reason: bool = True
    temperature: float = 0.0
    images: Showing = "blind"
    max_image_pixels: int | None = None
    frames: int = FRAMES


GREEDY = SamplingParams()
"""Default sampling: temperature 0, with a reason."""


class Example(Struct, frozen=True, kw_only=True):
    """A training example: the messages of a judging prompt in one form (`critic.judging.forms`) and the target verdict.

    `id`: the response's id; "ID1+ID2" for a pair.
    `score`: the human mean on 1..10; None for a pair.
    `label[i]`: share of raters who gave rating `lowest + i` of the form's scale; the shares sum to 1. A score between
        two ratings is split between them. None if the raters are unknown or the verdict is not a rating.
    `shortened`: what was cut from the prompt, as counts by section.
    `free`: True if the target is free text.
    `images`: the images in the messages, in order.
    `other`: only for a head that scores each answer of a pair: the messages for the second answer (`messages` has the
        first). `label` then holds one number in -1..1: how much people prefer the first answer, 0 for a tie.
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
    """One turn of a conversation with a model: the prompt, and what a judge needs to judge the reply.

    `images`: shown with this turn; paths relative to a data root (a video's behind VIDEO), or data URIs.
    `references`: as in Question.
    `focus`: what an open answer is judged by (ConvBench's creation turn).
    `checklist`: yes/no questions about the answer; `aspects` holds the (main aspect, sub-aspect) of each (MultiVerse).
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
_OF_ALL = ("lang", "group", "caption", "category", "history", "criteria", "criteria_weights")
_OF_LABELS = ("human", "columns", "preference", "shown")
"""Names of the fields shared by a Question and a ConversationTurn, by a Question and a Conversation, and by a Response
and a Sample."""


def _copy_fields(record: Struct, names: Sequence[str]) -> dict[str, Any]:
    """Return the named fields of a record as a dict."""
    return {name: getattr(record, name) for name in names}


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The turns to put to a model.

    `history`: exchanges before turn 1, which are given and not generated.
    `group`: unit of splitting and resampling.
    `criteria`, `criteria_weights`: as in Question. `caption`: description of the image for a judge that cannot see it.
    `category`, `goal`, `domain`: the benchmark's classes of questions, user goals and images; scores are also reported
        by class.
    `benchmark`: "" for a question from the user's own rows.
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
    criteria_weights: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, question: Question, benchmark: str = "") -> "Conversation":
        """Convert a question to a conversation of one turn, keeping its history."""
        turn = ConversationTurn(prompt=question.prompt, task=question.task, **_copy_fields(question, _OF_TURN))
        return cls(id=question.id, benchmark=benchmark, turns=[turn], **_copy_fields(question, _OF_ALL))


NOTHING_ASKED = Conversation(id="", lang="en", group="", turns=[])
"""Placeholder conversation of a sample that keeps only its id."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How replies are sampled, limits on prompts, and how many frames show a video; equal for all turns of a file."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    max_image_pixels: int | None = None
    frames: int = FRAMES


class SentImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image as it was sent: `sha256` of the sent bytes, and `resized` if it was shrunk."""

    path: str
    sha256: str
    resized: bool = False


class SentMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it was sent; its images, and frames of videos with their times, came before its text."""

    role: Literal["user", "assistant"]
    content: str
    images: list[SentImage] = field(default_factory=list)


class ModelTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's reply to one turn (numbered from 1) of a conversation, under one condition.

    `reply`: None exactly if `failure` is set. `detail` explains the failure.
    `call`: hash of the request. Records with the same `call` share one generation; its tokens and seconds count once.
    `seen`: the messages sent; empty if none were.
    `thoughts`: the model's reasoning before or beside the reply; neither judged nor shown to later turns.
    `finish`: the server's finish reason ("length" means that `max_tokens` was reached).
    `prompt_tokens`, `cached_tokens`, `completion_tokens`: None if the server does not report them.
    `answered_by`: the model name that the reply states, followed by its fingerprint in brackets.
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

    @property
    def key(self) -> tuple[str, str, int]:
        """The key that tells the turns of a file apart: conversation id, condition and turn."""
        return self.conversation.id, self.condition, self.turn

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


Order = Literal["both", "random", "forced", "both_forced"]
"""How two answers are ordered. "both": both orders, a tie if the verdicts differ. "random": one random order. "forced":
one random order, and the judge may not answer tie (ConvBench). "both_forced": both orders, likewise without ties
(VisIT-Bench)."""

OnUnparsed = Literal["fail", "tie"]
"""How a comparison without a readable verdict counts: as a failure, or as a tie (VisIT-Bench, appendix F)."""

TurnContext = Literal["before", "all"]
"""Which turns the judge of a turn sees: only those before it, or all (ConvBench's own prompts)."""

Pairing = Literal["all", "random", "newcomer"]
"""Which of several models are compared in each conversation. "all": every pair. "random": each model with a random
opponent. "newcomer": the first model with a random opponent, to add it to a finished tournament (VisIT-Bench, appendix
F)."""

Ablation = Literal["standard", "no_focus", "no_turn_verdicts"]
"""Variants of judging (ConvBench's ablations). "standard": as the protocol says. "no_focus": without focus points.
"no_turn_verdicts": the whole conversation is judged without the judgments of its turns."""


class JudgeConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How verdicts are sampled and scored; equal for all judgments of a file.

    `score_kind`: how a rating becomes a score: "argmax", "expected" (mean) or "median" of its distribution.
    `seed`: for random orders.
    `reference_backed`: True if the judge of two models sees the reference.
    `pointwise_prompt`: the form in which single answers are rated.
    `unread`: how a comparison without a readable verdict counts.
    `second_question`: hash of the prompt that asks for the verdict of an unreadable reply; "" if that is not asked for.
    `reason_first`: True if conversations use the forms with the reason before the verdict.
    `sight`: which turns the judge of a turn sees.
    `battles`: which of several models are compared; None if the first is compared with all others.
    `unlearned`: names of the forms in use that the judge was not trained on, comma-separated; "" if none.
    `repeat`: how often each verdict was asked for; the first one counts.
    `recalibrated`: hash of the map that was applied to the scores (`certificate.ScoreMap`); "" if none was.
    `pack`: the prompt pack in place of our prompts, NAME@HASH; "" if none.
    """

    judge: str
    score_kind: str
    order: Order = "both"
    seed: int = 0
    reference_backed: bool = True
    pointwise_prompt: str = "pointwise"
    decoding: SamplingParams = GREEDY
    unread: OnUnparsed = "fail"
    second_question: str = ""
    reason_first: bool = False
    sight: TurnContext = "before"
    battles: Pairing | None = None
    unlearned: str = ""
    recalibrated: str = ""
    repeat: int = 1
    pack: str = ""

    @property
    def orders(self) -> int:
        """Return in how many orders two answers are compared: 1 or 2."""
        return 2 if self.order in ("both", "both_forced") else 1

    @property
    def forced(self) -> bool:
        """Return True if the judge of two answers may not answer tie."""
        return self.order in ("forced", "both_forced")


def describe_difference(before: JudgeConfig, now: JudgeConfig, where: str = "now") -> str:
    """Describe the first field in which two setups differ. They must differ.

    `where` is the word before the value of the second setup.

    >>> describe_difference(JudgeConfig(judge="a", score_kind="mean"), JudgeConfig(judge="b", score_kind="mean"))
    "judge 'a', now 'b'"
    """
    name = next(name for name in JudgeConfig.__struct_fields__ if getattr(before, name) != getattr(now, name))
    return f"{name} {getattr(before, name)!r}, {where} {getattr(now, name)!r}"


TOKEN_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")
"""Fields of judgments, calls and replies that count tokens."""


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to the judge, and the verdict parsed from its reply.

    `value`: the verdict as text: a grade; A, B or tie; or yes and no by checklist item.
    `first`: the side that the prompt showed first.
    `extracted`: True if this call showed the judge its own unreadable reply and asked which verdict it contains.
    `shortened`: what was left out of the prompt: number of history exchanges, characters of references and of replies.
    `images`: number of images sent.
    `prompt_tokens`, `cached_tokens`, `completion_tokens`: include replies discarded for not fitting the context.
    `answered_by`: the model name that the reply states.
    """

    reply: str
    value: str | None = None
    failure: str | None = None
    first: Position | None = None
    extracted: bool = False
    shortened: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
    images: int = 0
    answered_by: str = ""


VerdictKey = tuple[str, str, str, str, str, int | None, str | None]
"""System, conversation id, condition, protocol, judging, turn and opponent of a verdict."""


class Sample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one judgment is about: an answer, or a whole conversation (`turn` is None).

    `id`: the id of the answer's row, or of the conversation.
    `answer`: the reply of the model `system` to turn number `turn` (from 1).
    `condition`: which history that model was shown.
    `length`: characters of the answer.
    `opponent`: the other model of a comparison; None for the reference.
    `other`: the opponent's answer as a Sample, if answers from single rows are compared.
    `human`, `columns`, `preference`, `shown`: as in Response.

    A question from the user's own rows is a conversation of one turn.
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
        """Build a sample from a row's answer; `other` is the answer that it is compared with, or None."""
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
        """The sample as a Response. Its history is the one given with the conversation, without the earlier turns.

        A whole conversation is reduced to its last turn.
        """
        conversation = self.conversation
        turns = conversation.turns[: self.turn] or [ConversationTurn(prompt="")]
        turn = turns[-1]
        shared = {**_copy_fields(turn, _OF_TURN), **_copy_fields(conversation, _OF_ALL)}
        question = Question(id=conversation.id, prompt=turn.prompt, task=turn.task or "none", **shared)
        labels = _copy_fields(self, _OF_LABELS)
        return Response(id=self.id, question=question, text=self.answer or "", system=self.system, **labels)

    @property
    def key(self) -> str:
        """Key of the sample within a file: its id, or "ID1+ID2" if two answers with ids of their own are compared."""
        return self.id if self.other is None or not self.other.id else f"{self.id}+{self.other.id}"

    def key_of(self, protocol: str | None, judging: str) -> str | VerdictKey:
        """Return the key of a verdict on the sample within its file: `key` if `protocol` is None, else a VerdictKey."""
        if protocol is None:
            return self.key
        return self.system or "", self.id, self.condition, protocol, judging, self.turn, self.opponent

    @property
    def asked(self) -> ConversationTurn | None:
        """The turn that the answer replies to, or None for a whole conversation."""
        return None if self.turn is None else self.conversation.turns[self.turn - 1]


class Judgment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One verdict of a judge or a panel on a sample.

    `prompt`: the name of the prompt form.
    `protocol`: the protocol (critic.judging.protocols) that chose the form; None for single rows, which have none.
    `score`: the result, None exactly if `verdict.failure` is set. A rating gives 1..10 (`setup.score_kind`). A
        comparison gives 1 if the sample's answer is better, 0 if the opponent's is, 0.5 for a tie. Yes gives 1 and
        no 0; a checklist gives the share of yes.
    `raw_score`: the score before recalibration; None if none was applied.
    `members`: a panel's single judgments, without the fields they share. `score` and `verdict.rating` are then
        aggregates over the members, and `verdict.distribution` is their mean.
    `repeats`: the further judgments of the same sample (`setup.repeat`), as in `members`. The token counts of this
        judgment include theirs.
    `calls`: the requests, if a form or protocol needs several.
    `asked`: a hash of the requests; judgments of a conversation with the same hash share their calls, whose tokens
        count once. None if there was no request.
    `judging`: the ablation, such as "no_focus"; "standard" if none.
    `unread`: True if the score is a tie because no verdict could be parsed.
    `unjudged`: number of failed turn judgments that were missing when the whole conversation was judged.
    `shortened`: what was left out of the prompt, as in Call.
    `images`: number of images shown with the answer; for a panel the smallest number.
    `answered_by`: model names (with fingerprint) that the replies state; several if the model behind a name changed.
    """

    sample: Sample
    setup: JudgeConfig
    verdict: Verdict
    prompt: str = ""
    prompt_hash: str = ""
    protocol: str | None = None
    judging: str = "standard"
    score: float | None = None
    raw_score: float | None = None
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
    repeats: list["Judgment"] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def check(self) -> None:
        """Raise ValueError if the verdict is on a turn that the conversation does not have."""
        turn, turns = self.sample.turn, len(self.sample.conversation.turns)
        # A line edited by hand, or of another file's conversation: every later stage indexes the turns.
        if turn is not None and not 1 <= turn <= turns:
            raise ValueError(f"a verdict on turn {turn} of a conversation that has {turns}")

    @property
    def key(self) -> str | VerdictKey:
        """The key that tells the judgments of a file apart."""
        return self.sample.key_of(self.protocol, self.judging)

    @property
    def judge(self) -> str:
        return self.setup.judge

    @property
    def id(self) -> str:
        """The id under which human labels refer to the same sample."""
        sample = self.sample
        # A row of the user's own keeps its id, by which people's labels name it.
        if self.protocol is None:
            return sample.key
        return build_verdict_id(sample.id, sample.condition, self.protocol, sample.opponent, sample.turn, self.judging)

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
        """The fields of this judgment that a panel keeps for a member: setup, verdict, score and `answered_by`."""
        # The id stays in the sample: Parquet cannot store a struct without fields.
        names = ("setup", "verdict", "score", "answered_by")
        return Judgment(sample=Sample(id=self.sample.id), **_copy_fields(self, names))

    @classmethod
    def upgrade(cls, row: Any) -> "Judgment | None":
        """Convert a decoded line of a version before 2026-11-26 to a Judgment; return None if it is not a judgment.

        Those versions had two formats: one for an answer (key `response`) and one for a conversation (key
        `conversation`). Raises ValidationError if the line has one of these formats but wrong values.
        """
        # The two kinds of judgment were two records then.
        match row:
            case {"verdict": dict(), "response": dict()}:
                return convert(_upgrade_answer(row), cls)
            case {"verdict": dict(), "conversation": dict(), "setup": dict()}:
                return convert(_upgrade_conversation(row), cls)
        return None


def build_verdict_id(
    key: str, condition: str, protocol: str, opponent: str | None, turn: int | None = None, judging: str = "standard"
) -> str:
    """Return the id under which human labels refer to a verdict on the conversation with id `key`.

    The audit matches labels and judgments by it (eval_agreement/reading/audit_items.py). `turn` is None for the whole
    conversation.

    >>> build_verdict_id("7", "own", "pairwise", opponent="llava", turn=2)
    '7/own/pairwise/2/opponent=llava'
    """
    named = {"judging": judging, "opponent": opponent}
    # Defaults are left out, so that labels collected before these options existed still match.
    extras = [f"{name}={value}" for name, value in named.items() if value not in (None, "standard")]
    return "/".join([key, condition, protocol, str(turn or "whole"), *extras])


def sum_usage(records: Sequence[Judgment | Call]) -> dict[str, Any]:
    """Return the summed token counts of several judgments or calls, and the largest number of attempts."""
    tokens = {name: sum(getattr(record, name) for record in records) for name in TOKEN_COUNTS}
    return {**tokens, "attempts": max((record.attempts for record in records), default=0)}


def _upgrade_answer(row: dict[str, Any]) -> dict[str, Any]:
    """Convert an older judgment of an answer to the current keys."""
    rows = (row.pop(name, None) for name in ("response", "other"))
    answers = [convert(answer, Response) for answer in rows if answer is not None]
    setup: dict[str, Any] = {"pointwise_prompt": row.get("prompt")}
    setup |= {name: row.pop(name) for name in ("judge", "score_kind", "decoding") if name in row}
    members = []
    for member in row.pop("members", []):
        members.append({**member, "sample": {"id": answers[0].id}, "setup": setup | {"judge": member.get("judge")}})
    return row | {"sample": Sample.of(*answers), "setup": setup, "members": members}


def _upgrade_conversation(row: dict[str, Any]) -> dict[str, Any]:
    """Convert an older judgment of a turn or a whole conversation to the current keys."""
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
    if calls := convert(row.get("calls", []), list[Call]):
        upgraded |= {"reply": calls[0].reply, **sum_usage(calls)}
    return upgraded


def is_judgment(row: Any) -> bool:
    """Return True if a decoded JSON line looks like a judgment of this or an earlier version.

    >>> is_judgment({"sample": {"id": "7"}, "verdict": {"rating": 8}})
    True
    """
    if not isinstance(row, dict) or not isinstance(row.get("verdict"), dict):
        return False
    return bool({"sample", "response"} & row.keys()) or {"conversation", "setup"} <= row.keys()
