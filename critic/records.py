"""The vocabulary of every stage. Each record wraps the one before, so no stage joins files by id."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

Language = Literal["zh", "en"]
Message = Mapping[str, Any]
"""A chat message, `role` and `content`: a text, or parts as chat templates of models that see take them, `{"type":
"text", "text": …}` and `{"type": "image", "image": name of an image}`."""

Showing = Literal["blind", "show"]
"""Whether a judge is shown the images of what it judges."""

RATINGS = tuple(range(1, 11))
"""The ratings a judge may give (AlignMMBench §4.1): whole numbers 1..10."""

NO_VERDICT = -1.0
"""What FastChat writes as the score of a reply in which it found no verdict."""

NOT_LEARNED = "did not learn {}, in which it was asked (--force-form): what it says there is no measure of it"
Position = Literal["model", "opponent"]
PLAYERS: tuple[Position, Position] = ("model", "opponent")

Scale = tuple[int, int]
"""The lowest and the highest rating of a scale."""

TEN: Scale = (RATINGS[0], RATINGS[-1])


def to_ten(score: float, low: float, high: float) -> float:
    """A score on low..high moved linearly onto 1..10."""
    return TEN[0] + (TEN[1] - TEN[0]) * (score - low) / (high - low)


class Turn(Struct, frozen=True):
    """One finished exchange of a dialogue history."""

    user: str
    assistant: str


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model was asked. `group` is the unit of splitting and resampling: rows that share it share a question or
    an image. For a judge only: `caption` describes the image to one that cannot see it, `focus` says what an open
    answer has to achieve, `checklist` are yes/no questions about the answer, `criteria` what it is rated on besides
    (name -> what the name means)."""

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
"""What was scored: an answer to the last question, or the whole conversation that ends with it."""


class HumanScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What people said of a response: `score` on 1..10 (the raters' mean), each rater's own
    score on 1..10 where known, and a short reason where one was written down. `answers` are theirs to the question's
    checklist, in its order, `criteria` their scores on 1..10 by the name of the criterion. `probability` (0..1) is the
    chance that the response had of being drawn for people, None where all had the same."""

    score: float
    raters: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    scope: Scope = "turn"
    answers: list[bool | None] = field(default_factory=list)
    criteria: dict[str, float] = field(default_factory=dict)
    probability: float | None = None


class Exchange(Struct, frozen=True, omit_defaults=True):
    """A question, with the images that are shown with it, and what was replied."""

    question: str
    answer: str
    images: list[str] = []


class Candidate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One assistant's part: the exchanges that count, oldest first, and where a turn is judged its reply to it and,
    where they are shown, the exchanges behind it."""

    earlier: list[Exchange] = field(default_factory=list)
    answer: str | None = None
    later: list[Exchange] = field(default_factory=list)


class TurnJudgment(Struct, frozen=True, omit_defaults=True):
    """The judgment of an earlier turn: a grade or a side's label, and the reason, if there was one."""

    turn: int
    verdict: str
    reason: str | None = None


class PromptInputs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a prompt shows. A single answer is a conversation of one turn and one side; two `sides` are compared.

    `question` is None where a whole conversation is judged. `references` are by turn from 1, None where a turn has
    none. `focus` says what an open answer has to achieve, `checklist` are yes/no questions about it, `criteria` what
    it is rated on besides (name -> what it means). `verdicts` are those on single turns, shown where the whole is
    judged, `turned` the same for the other order of the two sides, where they differ in more than names. `own_answer`
    is the judge's own answer to the question, given before it saw the one it judges. `images` are shown with the
    question: paths below a data root, or other names of them.
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
        """All images that are shown, each once."""
        exchanges = [exchange for side in self.sides for exchange in (*side.earlier, *side.later)]
        return list(dict.fromkeys([*(name for exchange in exchanges for name in exchange.images), *self.images]))


class Response(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's answer to a question. `columns` holds other judges' scores of it, on 1..10, by column name
    (`gpt4_score_1_10`). Where people compared it, `preference` is what they said: 1 it is better, 1/2 neither, 0 the
    `other` is. Of a turn or the whole of a model's conversation, `shown` is what a judge sees in the form `form`.
    `cut_off`: the reply ended within the model's thoughts, so that `text` is empty."""

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

Failure = (
    Literal[
        "empty",
        "no_rating",
        "no_verdict",
        "out_of_range",
        "truncated",
        "no_distribution",
        "context_length_exceeded",
        "refused",
        "content_filter",
        "server_error",
        "budget",
        "not_run",
    ]
    | ImageFailure
)
"""Why a judgment has no score. `truncated`: the reply ended at the token limit before a rating. `refused`: by the
server or by the model. `budget`: nothing was asked, for what the run might spend was spent. `not_run`: there is no
answer to judge."""


class Summary(Struct, frozen=True, kw_only=True):
    """What a distribution over 1..10 says: its most probable rating, mean, median and standard deviation
    (rating points), and its entropy (bits; 0 is certain, 3.32 knows nothing)."""

    argmax: float
    expected: float
    median: float
    deviation: float
    entropy: float


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A judge's reply, read: what it says, or `failure` for why it says nothing.

    A form asks for a `rating`, moved onto 1..10; for a `value` (A, B or tie; yes or no; the judge's own answer); for
    `answers` to a checklist, in its order, None where one is missing. `criteria` holds the ratings by several criteria
    beside the overall one, each with its own failure.

    `distribution[i]` is the judge's probability of the scale's rating lowest + i (numbers that sum to 1), and `summary`
    what it says, on 1..10; both are None where the judge gave no token probabilities. `scale` is None for 1..10. Of a
    pair that a scoring head compared, `distribution` is the probability that B is better, and that A is.
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
    """How verdicts are asked for: whether a reason is written beside the rating, at which `temperature`. `images`:
    whether the judge is shown them, made smaller to at most `max_image_pixels`."""

    reason: bool = True
    temperature: float = 0.0
    images: Showing = "blind"
    max_image_pixels: int | None = None


GREEDY = SamplingParams()


class Example(Struct, frozen=True, kw_only=True):
    """A training example: the messages of a judging prompt in one form (`critic.judging.forms`), the verdict to learn.

    `id` is the response's, of two answers both ("ID1+ID2"). `score` is people's mean on 1..10, None for two answers.
    `label[i]` is the share of raters who gave the form's rating lowest + i, a score between two ratings shared between
    them (the shares sum to 1); None where the raters are not known or the verdict is no rating. `free`: the target is
    no verdict with keys, but a text. `images` are those that the messages show, in their order. Of a pair for a head
    that scores each answer alone, `messages` ask for the first, `other` for the second, and `label` is how far people
    find the first ahead: -1..1, 0 for a tie.
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
    """One turn asked of a model. `images` are shown with this turn: paths relative to a data root, or data URIs.
    `focus` says what an open answer is compared on (ConvBench's creation turn); `checklist` are yes/no questions about
    the answer, `aspects` the main and the sub-aspect of each (MultiVerse). `references` are as in Question."""

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
"""What a question and its turn, it and its conversation, and a response and its sample say alike."""


def _copy_fields(record: Struct, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked of a model turn by turn. `history` is given, not generated, and comes before turn 1. `group` is the
    unit of resampling, `criteria` are what an answer is rated on besides, as in Question. `caption` describes the image
    to a judge that cannot see it. `benchmark` is empty of a question out of somebody's own rows."""

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
        """A single question as a conversation of one turn, after the history that it carries."""
        turn = ConversationTurn(prompt=question.prompt, task=question.task, **_copy_fields(question, _OF_TURN))
        return cls(id=question.id, benchmark=benchmark, turns=[turn], **_copy_fields(question, _OF_ALL))


NOTHING_ASKED = Conversation(id="", lang="en", group="", turns=[])


Protocol = Literal["pointwise", "direct", "pairwise", "checklist", "quality"]
"""How a turn is judged: 1..10 against a reference; 1..10 with the reference's rating fixed at 10 (ConvBench's direct
grading, MultiVerse's quality); against another answer; by yes/no questions."""


TurnFailure = (
    Literal["empty", "truncated", "context_length_exceeded", "refused", "content_filter", "server_error", "budget"]
    | Literal["not_run"]
    | ImageFailure
)
"""Why a turn has no reply. `not_run`: an earlier turn failed, and its reply was to be shown."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How replies are drawn and prompts are made to fit: alike for all turns of a file."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    max_image_pixels: int | None = None


class SentImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image that was sent; `sha256` is that of the bytes sent. `resized`: made smaller than its file."""

    path: str
    sha256: str
    resized: bool = False


class SentMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message as it was sent, its images before its text."""

    role: Literal["user", "assistant"]
    content: str
    images: list[SentImage] = field(default_factory=list)


class ModelTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's reply to one turn (from 1) of a conversation under a condition.

    `reply` is None exactly when `failure` is set; `seen` is what was really sent, empty when nothing was. Records with
    one `call` share one generation: its tokens and seconds are counted once. Token counts are None where the server
    does not give them. `finish` is the server's word for why the reply ended ("length": at `max_tokens`).
    `answered_by` is who the reply says it is from: the model's name and, in brackets, its fingerprint.
    `thoughts` stood before the reply, or came apart from it: they are judged by nobody, and no later turn shows them.
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
        """Raise ValueError if the parts of a record do not fit together."""
        turns, behind = len(self.conversation.turns), len(self.conversation.history) + self.turn
        if not 1 <= self.turn <= turns:
            raise ValueError(f"turn {self.turn} of a conversation that has {turns}")
        if (self.reply is None) == (self.failure is None):
            raise ValueError("expected either a `reply` or a `failure`")
        # Who makes such a file without `seen` has its turns judged without what was said before.
        if self.reply is not None and self.seen and (len(self.seen) % 2 == 0 or len(self.seen) >= 2 * behind):
            raise ValueError(
                f"`seen` has {len(self.seen)} messages; expected those before turn {self.turn}, and its own"
            )


Order = Literal["both", "random", "forced"]
"""Of two answers: shown in both orders, a tie where the two verdicts differ; in a random order; in a random order
without ties (ConvBench)."""

OnUnparsed = Literal["fail", "tie"]
"""What becomes of a comparison in which no verdict can be read: a named failure, or a tie
(VisIT-Bench, appendix F)."""

TurnContext = Literal["before", "all"]
"""In sight of which other turns a turn is judged: those before it, or all (ConvBench's own prompts)."""

Pairing = Literal["all", "random", "newcomer"]
"""Of several models: each conversation is fought by every two of them, by each with an opponent drawn for it, or by the
first alone with one drawn, which joins a finished tournament so (VisIT-Bench, appendix F)."""

Ablation = Literal["standard", "no_focus", "no_turn_verdicts"]
"""How a judge is asked: as the protocol says; a turn without its focus points; a whole conversation without the
judgments of its turns (ConvBench's ablations)."""


class JudgeConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How verdicts are asked for and scored: alike for all judgments of a file. `seed` is that of random orders.
    `reference_backed`: two models are compared in sight of the reference. `unread` is what becomes of a comparison
    without a verdict. `reason_first`: conversations are judged by the forms that have the reason before the verdict.
    `sight`: with which other turns a turn is judged. `battles`: which of several models meet, where it is not one that
    meets the others. `unlearned` names the forms that the judge did not learn, and was asked in all the same."""

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
    """The first thing in which two setups differ; they must differ in one. `where` the second one is so."""
    name = next(name for name in JudgeConfig.__struct_fields__ if getattr(before, name) != getattr(now, name))
    return f"{name} {getattr(before, name)!r}, {where} {getattr(now, name)!r}"


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to the judge and what was read in its reply: a grade, A, B or tie, or yes and no by item. `first`
    says who stood first of two. `shortened` counts what
    was left out of the prompt: exchanges of the history, characters of references and of replies. `images` is how many
    were sent with it. Tokens are those of all that was asked for the reply, also of one that there was no room for.
    `answered_by` is who the reply says it is from."""

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
    """What was judged: the `answer` of the model `system` to a turn of a conversation (from 1), which it gave in sight
    of the history that the `condition` says; or the whole conversation (`turn` None). A question out of somebody's own
    rows is a conversation of one turn.

    `id` is the answer's own, or the conversation's; `length` is what the answer has, in characters. Where two are
    compared, `opponent` is the other model (None: the reference), and `other` its answer where it stands in a row of
    its own. `human`, `columns`, `preference` and `shown` are as in Response.
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
        """An answer out of a row, beside another one to the same question where two are compared."""
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
        """The same as a row has it: of a turn what was said before it is its history, a whole conversation is shown
        by its last turn."""
        conversation = self.conversation
        turns = conversation.turns[: self.turn] or [ConversationTurn(prompt="")]
        turn = turns[-1]
        shared = {**_copy_fields(turn, _OF_TURN), **_copy_fields(conversation, _OF_ALL)}
        question = Question(id=conversation.id, prompt=turn.prompt, task=turn.task or "none", **shared)
        labels = _copy_fields(self, _OF_LABELS)
        return Response(id=self.id, question=question, text=self.answer or "", system=self.system, **labels)

    @property
    def key(self) -> str:
        """What tells the answers of a file apart: of two that are compared both ids, where each has its own."""
        return self.id if self.other is None or not self.other.id else f"{self.id}+{self.other.id}"

    @property
    def asked(self) -> ConversationTurn | None:
        """The turn that was answered, None of a whole conversation."""
        return None if self.turn is None else self.conversation.turns[self.turn - 1]


class Judgment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sample judged once: by the form `prompt`, which a `protocol` chose for it where a benchmark's conversations are
    judged.

    `score` is what counts; it is None exactly when `verdict.failure` is set. Of a rating it is 1..10: the rating, or
    the mean or median of its distribution (`setup.score_kind`). Of two answers it is 1 where the sample's is better, 0
    where the other is, 1/2 for a tie; of yes and no 1 or 0; of a checklist the share of yes.

    `members` holds each judge's part where a panel judged, without what it shares with the
    panel's: `score` and `verdict.rating` are then the panel's aggregate, `verdict.distribution` is the mean of the
    members'. `calls` holds each question to the judge where a form takes several, or a protocol asks. Judgments of one
    conversation whose `asked` is the same share their calls, and tokens count once; it is None where nothing was asked.

    `judging` is how the judge was asked ("no_focus": without focus points), `unread`: it is a tie because no verdict
    could be read (Setup.unread). `unjudged`: how many turns' judgments, which failed, that of the whole had to do
    without. `shortened` counts the characters left out of the prompt, by section. `images` is how many reached the
    judge with the answer, fewest of a panel's members. `answered_by` are those that the judge's replies say they are
    from (model and fingerprint): several where another model answered under the same name within one judgment.
    """

    sample: Sample
    setup: JudgeConfig
    verdict: Verdict
    prompt: str = ""
    prompt_hash: str = ""
    protocol: Protocol | None = None
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
        if turn is not None and not 1 <= turn <= turns:
            raise ValueError(f"a verdict on turn {turn} of a conversation that has {turns}")

    @property
    def judge(self) -> str:
        return self.setup.judge

    @property
    def id(self) -> str:
        """What people's labels of the same go by."""
        sample = self.sample
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
        """What a panel's judgment keeps of a member's: how it judged, and what came of it."""
        # Of the sample the id alone, for Parquet keeps no table without a key.
        names = ("setup", "verdict", "score", "answered_by")
        return Judgment(sample=Sample(id=self.sample.id), **_copy_fields(self, names))

    @classmethod
    def upgrade(cls, row: Any) -> "Judgment | None":
        """A line as versions before 2026-11-26 wrote it: of an answer (`response`), or of a conversation
        (`conversation` and, in `verdict`, what was judged and the score); or None. Raises ValidationError."""
        if not isinstance(row, dict) or not isinstance(row.get("verdict"), dict):
            return None
        if isinstance(row.get("response"), dict):
            return msgspec.convert(_upgrade_answer(row), cls)
        if isinstance(row.get("conversation"), dict) and isinstance(row.get("setup"), dict):
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
    """The id by which people's labels of a verdict on the conversation `key` go (see eval_agreement.items)."""
    named = {"judging": judging, "opponent": opponent}
    extras = [f"{name}={value}" for name, value in named.items() if value not in (None, "standard")]
    return "/".join([key, condition, protocol, str(turn or "whole"), *extras])


def sum_usage(records: Sequence[Judgment | Call]) -> dict[str, Any]:
    """What several judgments or calls took together."""
    return {
        "prompt_tokens": sum(record.prompt_tokens for record in records),
        "cached_tokens": sum(record.cached_tokens for record in records),
        "completion_tokens": sum(record.completion_tokens for record in records),
        "attempts": max((record.attempts for record in records), default=0),
    }


def _upgrade_answer(row: dict[str, Any]) -> dict[str, Any]:
    """An older judgment of an answer in the keys of today."""
    other = row.pop("other", None)
    answers = [msgspec.convert(answer, Response) for answer in (row.pop("response"), other) if answer is not None]
    setup: dict[str, Any] = {"pointwise_prompt": row.get("prompt")}
    setup |= {name: row.pop(name) for name in ("judge", "score_kind", "decoding") if name in row}
    members = [
        {
            "sample": {"id": answers[0].id},
            "setup": setup | {"judge": member.get("judge")},
            "verdict": member.get("verdict"),
            "score": member.get("score"),
        }
        for member in row.pop("members", [])
    ]
    return row | {"sample": Sample.of(*answers), "setup": setup, "members": members}


def _upgrade_conversation(row: dict[str, Any]) -> dict[str, Any]:
    """An older judgment of a turn or a whole conversation in the keys of today."""
    old, setup, conversation = row.pop("verdict"), row["setup"], row.pop("conversation")
    names = ("system", "condition", "turn", "opponent", "length")
    sample = {name: old[name] for name in names if name in old}
    sample |= {"id": old.get("conversation"), "conversation": conversation, "answer": row.pop("answer", None)}
    whole, protocol = "turn" not in old, old.get("protocol")
    form = setup.get("pointwise_prompt", "pointwise") if protocol == "pointwise" else protocol
    if protocol in ("direct", "pairwise"):
        form = f"{protocol}_{'whole' if whole else 'turn'}"
    verdict = row.pop("rating", None) or {}
    verdict |= {"failure": old.get("failure"), "answers": row.pop("answers", []), "reason": row.pop("reason", None)}
    if protocol == "pairwise":
        verdict["value"] = {1.0: "A", 0.5: "tie", 0.0: "B"}.get(old.get("score"))
    kept = ("protocol", "judging", "score", "unread", "unjudged")
    calls = row.get("calls", [])
    spent: dict[str, Any] = {
        f"{kind}_tokens": sum(call.get(f"{kind}_tokens", 0) for call in calls)
        for kind in ("prompt", "cached", "completion")
    }
    return (
        row
        | spent
        | {name: old[name] for name in kept if name in old}
        | {
            "sample": sample,
            "verdict": verdict,
            "prompt": form,
            "reply": calls[0].get("reply", "") if calls else "",
            "attempts": max((call.get("attempts", 1) for call in calls), default=1),
        }
    )


def is_judgment(row: Any) -> bool:
    """Return whether a line of JSON is meant as a judgment, of today or of an earlier version."""
    if not isinstance(row, dict) or not isinstance(row.get("verdict"), dict):
        return False
    return bool({"sample", "response"} & row.keys()) or {"conversation", "setup"} <= row.keys()
