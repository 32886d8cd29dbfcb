"""The forms: the ways in which a judge is asked for a verdict. One table says of each how it is asked and read.

A form is an entry in FORMS and its prompt files (`critic/prompts/`), its flags are endings of its name. Whatever is in
the table can be put into a recipe, asked with `critic judge --prompt`, read, scored and audited.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from critic import records
from critic.backends import Reply, embed_images, find_failure
from critic.errors import UsageError, did_you_mean, replace_surrogates
from critic.judging import parse
from critic.judging.distribution import whole_rating
from critic.judging.prompt import Prompt, load
from critic.judging.render import TruncatedPrompt, of_response, render
from critic.judging.targets import RATING, REASON, Label
from critic.judging.thoughts import without_thoughts
from critic.records import TEN, Call, HumanScore, Language, Message, PromptInputs, Response, Verdict

UNREADABLE = ("no_rating", "no_verdict", "out_of_range", "truncated")
"""Failures of a reply that says something, in which another reading may find a verdict."""

LONGEST_FIRST_REASON = 400
"""Characters of a reason that comes before the value."""

LONGEST_STEPS: dict[Language, int] = {"en": 2000, "zh": 1000}
"""The same where the judge is to think step by step: twice the 250 tokens that VisIT-Bench's judge wrote on average."""

REASON_FIRST, IN_FULL = "_reason_first", "_in_full"
"""How the names of forms end that have the reason before the verdict, and that judge a turn in sight of all turns."""


class RatingKind(Struct, frozen=True):
    """A rating on the prompt's scale."""

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {RATING: _grade(prompt)}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        verdict = parse.parse_rating(text, truncated, prompt.scale)
        return verdict if prompt.scale == TEN else replace(verdict, scale=prompt.scale)

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        return whole_rating(human_score(shown[0]).score, prompt.scale)


class CriteriaKind(Struct, frozen=True):
    """A rating by each of the material's criteria, and the overall one behind them."""

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {name: _grade(prompt) for name in [*material.criteria, RATING]}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        by_name = {name: parse.parse_rating(text, truncated, prompt.scale, name, True) for name in material.criteria}
        return replace(
            parse.parse_rating(text, truncated, prompt.scale, criteria=True),
            criteria={name: replace(verdict, reason=None) for name, verdict in by_name.items()},
        )

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        human, named = human_score(shown[0]), shown[0].question.criteria
        if named.keys() != human.criteria.keys():
            return None
        by_name = {name: whole_rating(human.criteria[name], prompt.scale) for name in named}
        return {**by_name, RATING: whole_rating(human.score, prompt.scale)}


class ChoiceKind(Struct, frozen=True):
    """One of a few `choices`, which `right` names from people's scores."""

    choices: tuple[str, ...]
    right: Callable[[Sequence[float]], str | None]

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {prompt.key: {"type": "string", "enum": list(self.choices)}}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        return parse.parse_choice(text, prompt.key, self.choices, truncated)

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        if (preference := shown[0].preference) is not None:
            choice: str | None = preferred(preference)
        else:
            choice = self.right([human_score(response).score for response in shown])
        return choice if choice in self.choices else None


class ChecklistKind(Struct, frozen=True):
    """Yes or no for each item of the material's checklist."""

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {
            str(number): {"type": "string", "enum": ["yes", "no"]} for number, _ in enumerate(material.checklist, 1)
        }

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        return parse.parse_checklist(text, len(material.checklist), truncated)

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        answers = human_score(shown[0]).answers
        if not answers or None in answers:
            return None
        return {str(number): "yes" if answer else "no" for number, answer in enumerate(answers, 1)}


class AnswerKind(Struct, frozen=True):
    """Free text: the judge's own answer to the question, without the thoughts before it; the reference is what it
    should have been."""

    def values(self, prompt: Prompt, material: PromptInputs) -> dict[str, dict[str, Any]]:
        return {}

    def read(self, prompt: Prompt, material: PromptInputs, text: str, truncated: bool) -> Verdict:
        answer = without_thoughts(text)
        cut_off = truncated and bool(text.strip())  # among the thoughts
        return Verdict(value=answer) if answer else Verdict(failure="truncated" if cut_off else "empty")

    def label(self, prompt: Prompt, shown: Sequence[Response]) -> Label | None:
        return shown[0].question.reference or None


Kind = RatingKind | CriteriaKind | ChoiceKind | ChecklistKind | AnswerKind
"""What a verdict of a form holds: `values` is the JSON Schema of each by key, none where the verdict is free text;
`read` finds the verdict in a reply, or a named failure; `label` is the verdict that people's scores of what is shown
make the right one, None where they leave it open."""

RIGHT, WRONG = 7, 5
"""On 1..10, rounded half up: from 7 on an answer is right, with few errors at most; to 5 more than half of it is
wrong (AlignMMBench §4.1). At 6 people's score leaves both open."""

TIE, APART = 0.5, 1.0
"""Points on 1..10: two answers whose scores differ by less than TIE are equal, by APART or more they are not. Between
the two, the difference is too small to teach either."""


def _right(scores: Sequence[float]) -> str | None:
    rating = whole_rating(scores[0])
    return "yes" if rating >= RIGHT else "no" if rating <= WRONG else None


def _better(scores: Sequence[float]) -> str | None:
    ahead = round(scores[0] - scores[1], 9)
    if abs(ahead) < TIE:
        return "tie"
    return None if abs(ahead) < APART else "A" if ahead > 0 else "B"


PAIR = ("A", "B", "tie")
FORCED_CHOICES = ("A", "B")

POINTS = {"A": 1.0, "yes": 1.0, "tie": 0.5, "B": 0.0, "no": 0.0}
"""What a choice is worth to the answer that stands first."""


def preferred(score: float) -> str:
    """The choice that 0..1, what a comparison is worth to the first, comes nearest to."""
    return "tie" if score == POINTS["tie"] else "A" if score > POINTS["tie"] else "B"


Flag = Mapping[str, Mapping[str, Any]]
"""A choice of endings of a form's name, "" for none -> what of the form is otherwise with each."""


class Form(Struct, frozen=True, kw_only=True):
    """A way to ask for a verdict. `scope` says what is judged; a `pair` is two answers to one question, or two whole
    conversations. The form `first` is asked before, for the judge's own answer. `steps`: the reason that comes first is
    one of many steps. `protocol` asks of conversations in it, of a turn in sight of `all_turns` or of those before it.
    `flags` are the form's variants, worded in its prompt file (`flags.ENDING`)."""

    kind: Kind
    scope: records.Scope = "turn"
    pair: bool = False
    first: str | None = None
    steps: bool = False
    protocol: records.Protocol = "pointwise"
    all_turns: bool = False
    flags: tuple[Flag, ...] = ()

    @property
    def shown(self) -> int:
        """How many answers an example of the form shows: a second one is compared, or stands for the judge's own."""
        return 2 if self.pair or self.first else 1

    def lacking(self, response: Response) -> str | None:
        """Why a response cannot be judged in this form; None if it can."""
        if (response.preference is not None or response.other) and not self.pair:
            return "two answers that were compared, for the forms pairwise, pairwise_turn, pairwise_whole"
        scope = response.human.scope if response.human else "turn"
        if response.shown is not None:
            was = form_of(response.form)
            if (was.protocol, was.scope, was.all_turns) != (self.protocol, self.scope, self.all_turns):
                return f"a judgment of another form, {response.form}"
        elif scope != self.scope:
            return _SCOPES[scope]
        if isinstance(self.kind, ChecklistKind) and not response.question.checklist:
            return "the question has no checklist"
        if isinstance(self.kind, CriteriaKind) and not response.question.criteria:
            return "the question has no criteria"
        return None

    def material(self, response: Response, other: Response | None = None) -> PromptInputs:
        """What a judge is shown of a response; `other` is the answer it is compared with, or stands for the judge's."""
        shown = response.shown or of_response(response, other if self.pair else None, self.scope)
        return replace(shown, own_answer=other.text) if other is not None and self.first else shown


_SCOPES: dict[records.Scope, str] = {
    "turn": "people scored the last answer alone",
    "conversation": "people scored the whole conversation",
}


BETTER = ChoiceKind(PAIR, _better)
FORCED: Flag = {"": {}, "forced": {"kind": ChoiceKind(FORCED_CHOICES, _better)}}
STEPS: Flag = {"": {}, "reason_first": {"steps": True}}
ALL_TURNS: Flag = {"": {}, "in_full": {"all_turns": True}}
"""Flags: no ties; the reason first, in many steps; a turn in sight of the turns behind it as well."""

FORMS: dict[str, Form] = {
    "pointwise": Form(kind=RatingKind(), flags=({"": {}, "reason_first": {}, "one_shot": {}, "short": {}},)),
    "scale": Form(kind=RatingKind(), flags=({"5": {}, "0_10": {}},)),
    "correct": Form(kind=ChoiceKind(("yes", "no"), _right)),
    "pairwise": Form(kind=BETTER, pair=True),
    "criteria": Form(kind=CriteriaKind()),
    "answer": Form(kind=AnswerKind()),
    "commit_first": Form(kind=RatingKind(), first="answer"),
    "direct_turn": Form(kind=RatingKind(), protocol="direct", flags=(STEPS, ALL_TURNS)),
    "direct_whole": Form(kind=RatingKind(), protocol="direct", scope="conversation", flags=(STEPS,)),
    "quality": Form(kind=RatingKind(), protocol="quality", flags=(STEPS,)),
    "checklist": Form(kind=ChecklistKind(), protocol="checklist", flags=(STEPS,)),
    "pairwise_turn": Form(kind=BETTER, protocol="pairwise", pair=True, flags=(FORCED, STEPS, ALL_TURNS)),
    "pairwise_whole": Form(kind=BETTER, protocol="pairwise", pair=True, scope="conversation", flags=(FORCED, STEPS)),
}


def _by_name() -> Iterator[tuple[str, Form]]:
    for base, form in FORMS.items():
        for endings in product(*form.flags):
            varied = form
            for flag, ending in zip(form.flags, endings, strict=True):
                varied = replace(varied, **flag[ending])
            yield "_".join(filter(None, (base, *endings))), varied


BY_NAME = dict(_by_name())
"""Every form by each of the names that it can be asked for by: with all its flags, `pairwise_turn_forced_in_full`."""


def form_of(name: str) -> Form:
    """The form by its name. Raises UsageError for an unknown one."""
    if name not in BY_NAME:
        choices = f"choose {', '.join(sorted(FORMS))}, with its flags (critic/README.md)"
        raise UsageError(f"unknown form {name!r}; {did_you_mean(name, BY_NAME)}{choices}")
    return BY_NAME[name]


def rates(name: str) -> bool:
    """Whether one rating on 1..10 is all that a form asks for, so that a scoring head can give it without a reply."""
    form = form_of(name)
    alone = isinstance(form.kind, RatingKind) and form.first is None
    return alone and load(name, "en").on_ten


ONE_SIDE = {
    "pairwise": "pointwise_short",
    "pairwise_turn": "direct_turn",
    "pairwise_turn_in_full": "direct_turn_in_full",
    "pairwise_whole": "direct_whole",
}
"""The forms that a head which scores answers one at a time decides, and those in whose words it is shown each."""
COMPARED = {alone: compared for compared, alone in ONE_SIDE.items()}


def head_gives(name: str, compares: bool) -> bool:
    """Whether a scoring head can give what a form asks for: one that `compares` answers, or one that rates them."""
    return name in ONE_SIDE if compares else rates(name)


class JudgeRequest(Struct, frozen=True, kw_only=True):
    """What a judge is asked: some material, in the form `name`; `fitted` is the prompt as it was sent, `uris` are the
    data URIs of its images by name, `seed` that of a sample. `paid` takes note of every call for it and beside it."""

    name: str
    form: Form
    prompt: Prompt
    material: PromptInputs
    fitted: TruncatedPrompt | None = None
    uris: Mapping[str, str] = {}
    seed: int | None = None
    paid: list[Call] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """The prompt as it was sent; before that the whole of it."""
        return self.sent(self.fitted.messages if self.fitted else render(self.prompt, self.material))

    def sent(self, messages: Sequence[Message]) -> list[Message]:
        """Messages as they are sent, each image as its data URI."""
        return [embed_images(message, self.uris) for message in messages] if self.prompt.sees else [*messages]

    def keys(self, reason: bool = True) -> tuple[str, ...]:
        """The keys of a verdict in the output format's order; a `reason` only where it shows one."""
        values = tuple(self.form.kind.values(self.prompt, self.material))
        template, key = self.prompt.template, self.prompt.key
        reason_at, value_at = (template.find(f'"{name}"') for name in (REASON, "1" if key == "Checklist" else key))
        if not values or not reason or reason_at < 0 <= value_at:
            return values
        if reason_at < value_at and (key in values or (key == "Checklist" and reason_at >= 0)):
            return (REASON, *values)
        return values if key == "Checklist" else (*values, REASON)

    def schema(self, reason: bool = True) -> dict[str, Any] | None:
        """JSON Schema of a verdict, the keys in their order; None where it is free text."""
        order, values = self.keys(reason), self.form.kind.values(self.prompt, self.material)
        if not order:
            return None
        # A reason before the value is bounded, so that the value comes at all. One behind it is not, since a decoder
        # that counts characters is slow.
        longest = LONGEST_STEPS[self.prompt.language] if self.form.steps else LONGEST_FIRST_REASON
        first = {"type": "string", **({"maxLength": longest} if order[0] == REASON else {})}
        return {
            "type": "object",
            "properties": {key: first if key == REASON else values[key] for key in order},
            "required": list(order),
            "additionalProperties": False,
        }

    def read(self, text: str, truncated: bool) -> Verdict:
        """The verdict in a reply: in our form, or as the papers' judges state one."""
        verdict = self.form.kind.read(self.prompt, self.material, text, truncated)
        return replace(
            verdict, reason=replace_surrogates(verdict.reason)
        )  # JSON in the text can spell half a character

    def answer(self, reply: Reply) -> Verdict:
        """The verdict in a reply, or why there is none."""
        if lost := find_failure(reply):
            return Verdict(failure=lost[0])
        verdict = self.read(reply.text, reply.truncated)
        cut_off = verdict.failure is not None and reply.finish == "content_filter"
        return replace(verdict, failure="content_filter") if cut_off else verdict


def inquiry(name: str, language: Language, material: PromptInputs, sees: bool = False) -> JudgeRequest:
    """What is asked of some material, by the prompt for `language`: a judge that `sees` is shown its images, and is
    told of none where there are none. Raises UsageError for an unknown form."""
    form, prompt = form_of(name), load(name, language, sees and bool(material.pictures()))
    return JudgeRequest(name=name, form=form, prompt=prompt, material=material)


def each_alone(asked: JudgeRequest) -> list[JudgeRequest]:
    """What a head that scores answers one at a time is asked of each side."""
    # The judgments of a conversation's turns are of both sides, and would tell of the other one.
    shown = (replace(asked.material, sides=[side], verdicts=[], turned=None) for side in asked.material.sides)
    alone = [inquiry(ONE_SIDE[asked.name], asked.prompt.language, material, asked.prompt.sees) for material in shown]
    return [replace(side, uris=asked.uris, paid=asked.paid) for side in alone]


def human_score(response: Response) -> HumanScore:
    """Raises ValueError for a response that people did not score."""
    if response.human is None:
        raise ValueError(f"response {response.id} has no human score")
    return response.human


def _grade(prompt: Prompt) -> dict[str, Any]:
    low, high = prompt.scale
    return {"type": "integer", "minimum": low, "maximum": high}


def graded(score: float) -> str:
    """A rating as a prompt shows it."""
    return f"{score:.3g}"


def check_mix(mix: Mapping[str, float]) -> None:
    """Raises UsageError for an unknown form, a share outside 0..1, or no share above 0."""
    for form, share in mix.items():
        form_of(form)
        load(form, "en")
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"form {form!r}: the share of rows must lie in 0..1, got {share:g}")
    if not any(mix.values()):
        raise UsageError(f"no form has a share above 0, got {dict(mix)}")
