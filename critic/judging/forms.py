"""The forms: the ways in which a judge is asked for a verdict. One table says of each how it is asked and read.

A form is an entry in FORMS and its prompt files (`critic/prompts/`), its flags are endings of its name. Whatever is in
the table can be put into a recipe, asked with `critic judge --prompt`, read, scored and audited.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from critic import records
from critic.backends import Reply, embed_images, find_failure
from critic.errors import UsageError, did_you_mean, replace_surrogates
from critic.judging.kinds import Kind
from critic.judging.kinds import load as kind
from critic.judging.prompt import Prompt, load
from critic.judging.render import TruncatedPrompt, of_response, render
from critic.judging.targets import REASON
from critic.records import Call, Language, Message, PromptInputs, Response, Verdict

UNREADABLE = ("no_rating", "no_verdict", "out_of_range", "truncated")
"""Failures of a reply that says something, in which another reading may find a verdict."""

LONGEST_FIRST_REASON = 400
"""Characters of a reason that comes before the value."""

LONGEST_STEPS: dict[Language, int] = {"en": 2000, "zh": 1000}
"""The same where the judge is to think step by step: twice the 250 tokens that VisIT-Bench's judge wrote on average."""

REASON_FIRST = "_reason_first"
"""How the names of forms end that have the reason before the verdict."""


Flag = Mapping[str, Mapping[str, Any]]
"""A choice of endings of a form's name, "" for none -> what of the form is otherwise with each."""


class Form(Struct, frozen=True, kw_only=True):
    """A way to ask for a verdict. `scope` says what is judged; a `pair` is two answers to one question, or two whole
    conversations. The form `first` is asked before, for the judge's own answer. `steps`: the reason that comes first is
    one of many steps. `protocol` asks of conversations in it, of a turn in sight of `all_turns` or of those before it.
    `has_checklist`: the judge sees the question's checklist, as by its protocol.
    `flags` are the form's variants, worded in its prompt file (`flags.ENDING`)."""

    kind: Kind
    scope: records.Scope = "turn"
    pair: bool = False
    first: str | None = None
    steps: bool = False
    protocol: str = "pointwise"
    all_turns: bool = False
    has_checklist: bool = False
    flags: tuple[Flag, ...] = ()

    @property
    def shown(self) -> int:
        """Return how many answers an example shows: a second one is compared, or stands for the judge's own."""
        return 2 if self.pair or self.first else 1

    def lacking(self, response: Response) -> str | None:
        """Return why a response cannot be judged in this form, or None."""
        if (response.preference is not None or response.other) and not self.pair:
            return "two answers that were compared, for the forms pairwise, pairwise_turn, pairwise_whole"
        scope = response.human.scope if response.human else "turn"
        if response.shown is not None:
            was = form_of(response.form)
            if (was.protocol, was.scope, was.all_turns) != (self.protocol, self.scope, self.all_turns):
                return f"a judgment of another form, {response.form}"
        elif scope != self.scope:
            return _SCOPES[scope]
        return self.kind.lacking(response.question)

    def material(self, response: Response, other: Response | None = None) -> PromptInputs:
        """Return what a judge is shown of a response. `other` is compared with it, or stands for the judge's answer."""
        shown = response.shown or of_response(response, other if self.pair else None, self.scope)
        # A judge of the other protocols never meets one in a benchmark.
        if response.shown is None and not self.has_checklist:
            shown = replace(shown, checklist=[])
        return replace(shown, own_answer=other.text) if other is not None and self.first else shown


_SCOPES: dict[records.Scope, str] = {
    "turn": "people scored the last answer alone",
    "conversation": "people scored the whole conversation",
}


BETTER = kind("better")
FORCED: Flag = {"": {}, "forced": {"kind": kind("forced")}}
STEPS: Flag = {"": {}, "reason_first": {"steps": True}}
ALL_TURNS: Flag = {"": {}, "in_full": {"all_turns": True}}
"""Flags: no ties; the reason first, in many steps; a turn in sight of the turns behind it as well."""

FORMS: dict[str, Form] = {
    "pointwise": Form(kind=kind("rating"), flags=({"": {}, "reason_first": {}, "one_shot": {}, "short": {}},)),
    "scale": Form(kind=kind("rating"), flags=({"5": {}, "0_10": {}},)),
    "correct": Form(kind=kind("correct")),
    "pairwise": Form(kind=BETTER, pair=True),
    "criteria": Form(kind=kind("criteria")),
    "answer": Form(kind=kind("answer")),
    "commit_first": Form(kind=kind("rating"), first="answer"),
    "direct_turn": Form(kind=kind("rating"), protocol="direct", flags=(STEPS, ALL_TURNS)),
    "direct_whole": Form(kind=kind("rating"), protocol="direct", scope="conversation", flags=(STEPS,)),
    "quality": Form(kind=kind("rating"), protocol="quality", has_checklist=True, flags=(STEPS,)),
    "checklist": Form(kind=kind("checklist"), protocol="checklist", has_checklist=True, flags=(STEPS,)),
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
    """Return the form of a name. Raises UsageError for an unknown one.

    >>> form_of("pairwise_turn_forced").kind.choices
    ('A', 'B')
    """
    if name not in BY_NAME:
        choices = f"choose {', '.join(sorted(FORMS))}, with its flags (critic/README.md)"
        raise UsageError(f"unknown form {name!r}; {did_you_mean(name, BY_NAME)}{choices}")
    return BY_NAME[name]


def rates(name: str) -> bool:
    """Return whether a form asks for one rating on 1..10 only, which a scoring head can give without a reply."""
    form = form_of(name)
    return form.kind.single_rating and form.first is None and load(name, "en").on_ten


ONE_SIDE = {
    "pairwise": "pointwise_short",
    "pairwise_turn": "direct_turn",
    "pairwise_turn_in_full": "direct_turn_in_full",
    "pairwise_whole": "direct_whole",
}
"""The forms that a head which scores answers one at a time decides, and those in whose words it is shown each."""
COMPARED = {alone: compared for compared, alone in ONE_SIDE.items()}


def head_gives(name: str, compares: bool) -> bool:
    """Return whether a scoring head, which `compares` or rates answers, can give what a form asks for."""
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
        """Return the prompt as it was sent; before that the whole prompt."""
        return self.sent(self.fitted.messages if self.fitted else render(self.prompt, self.material))

    def sent(self, messages: Sequence[Message]) -> list[Message]:
        """Messages as they are sent, each image as its data URI."""
        return [embed_images(message, self.uris) for message in messages] if self.prompt.sees else [*messages]

    def keys(self, reason: bool = True) -> tuple[str, ...]:
        """Return the keys of a verdict in the output format's order, with the `reason` if the format has one."""
        kind, template = self.form.kind, self.prompt.template
        values, first = tuple(kind.values(self.prompt, self.material)), kind.key(self.prompt)
        reason_at, value_at = (template.find(f'"{name}"') for name in (REASON, first))
        if not values or not reason or reason_at < 0 <= value_at:
            return values
        if reason_at < value_at and first in values:
            return (REASON, *values)
        return (*values, REASON) if kind.reason_last else values

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
        """Read the verdict in a text: in our form, or as the papers' judges state one."""
        verdict = self.form.kind.read(self.prompt, self.material, text, truncated)
        return replace(
            verdict, reason=replace_surrogates(verdict.reason)
        )  # JSON in the text can spell half a character

    def answer(self, reply: Reply) -> Verdict:
        """Read the verdict in a reply, or name why there is none."""
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
    """Return the request for each side, for a head that scores answers one at a time."""
    # The judgments of a conversation's turns are of both sides, and would tell of the other one.
    shown = (replace(asked.material, sides=[side], verdicts=[], turned=None) for side in asked.material.sides)
    alone = [inquiry(ONE_SIDE[asked.name], asked.prompt.language, material, asked.prompt.sees) for material in shown]
    return [replace(side, uris=asked.uris, paid=asked.paid) for side in alone]


def check_mix(mix: Mapping[str, float]) -> None:
    """Raises UsageError for an unknown form, a share outside 0..1, or no share above 0."""
    for form, share in mix.items():
        form_of(form)
        load(form, "en")
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"form {form!r}: the share of rows must lie in 0..1, got {share:g}")
    if not any(mix.values()):
        raise UsageError(f"no form has a share above 0, got {dict(mix)}")
