"""The forms: ways to ask a judge for a verdict. One table says how each is requested and read.

A form is an entry in `forms.toml` and its prompt files (`critic/prompts/`). Its flags are endings of its name. Every
form in the table can be used in a training recipe and in `critic judge --prompt`, and its verdicts can be read, scored
and audited.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import regex
from msgspec import Struct, field, toml
from msgspec.structs import replace

from critic import records
from critic.backends import Reply, embed_images, find_failure
from critic.errors import UsageError, did_you_mean, replace_surrogates
from critic.judging import kinds
from critic.judging.prompt import Prompt, TruncatedPrompt, load, of_response, render
from critic.judging.targets import REASON, target
from critic.records import Call, Failure, Judgment, Language, Message, PromptInputs, Response, Sample, Verdict

LONGEST_FIRST_REASON = 400
"""The most characters of a reason that comes before the value."""

LONGEST_STEPS: dict[Language, int] = {"en": 2000, "zh": 1000}
"""The most characters of a step-by-step reason: twice the 250 tokens that VisIT-Bench's judge wrote on average."""

REASON_FIRST = "_reason_first"
"""Ending of the names of forms that put the reason before the verdict."""


class Form(Struct, frozen=True, kw_only=True):
    """A way to ask for a verdict.

    - `kind`: the kind of verdict.
    - `scope`: what is judged, a turn or the whole conversation.
    - `pair`: two answers to one question, or two whole conversations, are compared.
    - `first`: the form in which the judge first gives its own answer to the question, or None.
    - `steps`: the verdict begins with a step-by-step reason.
    - `protocol`: the protocol that judges conversations in this form.
    - `all_turns`: the judge of a turn also sees the later turns.
    - `has_checklist`: the judge sees the question's checklist.
    """

    kind: kinds.Kind
    scope: records.Scope = "turn"
    pair: bool = False
    first: str | None = None
    steps: bool = False
    protocol: str = "pointwise"
    all_turns: bool = False
    has_checklist: bool = False

    @property
    def shown(self) -> int:
        """Return the number of answers in a training example, 1 or 2.

        A second one is compared, or used as the judge's own answer.
        """
        return 2 if self.pair or self.first else 1

    def lacking(self, response: Response) -> str | None:
        """Return why a response cannot be judged in this form, or None if it can."""
        if (response.preference is not None or response.other) and not self.pair:
            return "two answers that were compared, for the forms pairwise, pairwise_turn, pairwise_whole"
        scope = response.human.scope if response.human else "turn"
        if response.shown is not None:
            was = form_of(response.form)
            if (was.protocol, was.scope, was.all_turns) != (self.protocol, self.scope, self.all_turns):
                return f"a judgment of another form, {response.form}"
        elif scope != self.scope:
            return str(_FILE["scored"][scope])
        return self.kind.lacking(response.question)

    def material(self, response: Response, other: Response | None = None) -> PromptInputs:
        """Return the prompt inputs for a response.

        `other`: the response that it is compared with or, in a form with `first`, that replaces the judge's own answer.
        """
        shown = response.shown or of_response(response, other if self.pair else None, self.scope)
        # A judge of the other protocols never meets one in a benchmark.
        if response.shown is None and not self.has_checklist:
            shown = replace(shown, checklist=[])
        return replace(shown, own_answer=other.text) if other is not None and self.first else shown


_FILE = toml.decode(Path(__file__).with_name("forms.toml").read_bytes())


Flag = dict[str, dict[str, Any]]
"""Endings of a form's name, of which one applies ("" for none) -> what this ending changes of the form's entry."""

FORMS: dict[str, list[Flag]] = {
    base: [_FILE["flags"][name] for name in entry.pop("flags", ())] for base, entry in _FILE["forms"].items()
}
"""Name of a form -> its flags, whose endings are worded in its prompt file (`flags.ENDING`)."""


def _name_variants() -> Iterator[tuple[str, Form]]:
    for base, entry in _FILE["forms"].items():
        for chosen in product(*(flag.items() for flag in FORMS[base])):
            name = "_".join([base, *(ending for ending, _ in chosen if ending)])
            fields = {**entry, **ChainMap(*(changes for _, changes in chosen))}
            yield name, Form(**{**fields, "kind": kinds.load(fields["kind"])})


BY_NAME = dict(_name_variants())
"""Full name, flags included (`pairwise_turn_forced_in_full`) -> variant of a form."""


def form_of(name: str) -> Form:
    """Return the form called `name`, flags included. Raise UsageError if there is none.

    >>> form_of("pairwise_turn_forced").kind.choices
    ('A', 'B')
    """
    if name not in BY_NAME:
        choices = f"choose {', '.join(sorted(FORMS))}, with its flags (critic/README.md)"
        raise UsageError(f"unknown form {name!r}; {did_you_mean(name, BY_NAME)}{choices}")
    return BY_NAME[name]


def rates(name: str) -> bool:
    """Return True if a form asks only for one rating on 1..10, which a scoring head can give."""
    form = form_of(name)
    return form.kind.single_rating and form.first is None and load(name, "en").on_ten


def can_give(head: Mapping[str, Any], name: str) -> bool:
    """Return True if a scoring head can give the verdict of a form. `head`: what `describe` says of the judge."""
    return ("tie_band" in head and name in ONE_SIDE) or (("tie_band" not in head or "ordinal" in head) and rates(name))


ONE_SIDE: dict[str, str] = _FILE["one_side"]
"""Form of a comparison that a scoring head can decide -> form in which the head scores each answer."""
COMPARED = {shown_as: compared for compared, shown_as in ONE_SIDE.items()}
"""The inverse: form in which a scoring head scores each answer -> form of the comparison."""


class JudgeRequest(Struct, frozen=True, kw_only=True):
    """A request for a verdict.

    - `name`, `form`, `prompt`: the form's name, the form, and its prompt in the sample's language.
    - `material`: the inputs of the prompt.
    - `fitted`: the rendered prompt, truncated if necessary; empty before it is rendered.
    - `shown`: image name -> parts of a message that show it.
    - `seed`: the sampling seed; None for greedy decoding.
    - `first`: the side that stands first in a comparison, else None.
    - `paid`: the list to which every call for this verdict is added.
    """

    name: str
    form: Form
    prompt: Prompt
    material: PromptInputs
    fitted: TruncatedPrompt = TruncatedPrompt()
    shown: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    seed: int | None = None
    first: records.Position | None = None
    paid: list[Call] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """Return the messages to send: the rendered prompt, images included."""
        return self.sent(self.rendered().fitted.messages)

    def rendered(self) -> "JudgeRequest":
        """Return the request with its prompt rendered in full. An existing rendering is kept."""
        if self.fitted.messages:
            return self
        return replace(self, fitted=TruncatedPrompt(render(self.prompt, self.material)))

    def sent(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with each image name replaced by the parts that show it."""
        return [embed_images(message, self.shown) for message in messages] if self.prompt.sees else [*messages]

    def keys(self, reason: bool = True) -> tuple[str, ...]:
        """Return the verdict's keys in the order of the output format; empty for free text.

        `reason`: include the key of the reason, if the format has one.
        """
        kind, template = self.form.kind, self.prompt.template
        values, first = tuple(kind.values(self.prompt, self.material)), kind.key(self.prompt)
        reason_at, value_at = (template.find(f'"{name}"') for name in (REASON, first))
        if not values or not reason or reason_at < 0 <= value_at:
            return values
        if reason_at < value_at and first in values:
            return (REASON, *values)
        return (*values, REASON) if kind.reason_last else values

    def schema(self, reason: bool = True) -> dict[str, Any] | None:
        """Return the JSON Schema of the verdict, with its keys in order, or None for free text.

        `reason`: as in `keys`.
        """
        order, values = self.keys(reason), self.form.kind.values(self.prompt, self.material)
        # Somebody else's words ask for free text.
        if not order or self.prompt.pieces:
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
        """Parse the verdict in a text, in this project's format or in that of the papers' judges.

        `truncated`: the text ended at its token limit.
        """
        if self.prompt.verdict:
            found = list[str]()
            # A pattern of somebody else's may search for ever.
            with suppress(TimeoutError):
                found = regex.findall(self.prompt.verdict, text, timeout=1)
            if not found:
                return Verdict(failure="truncated" if truncated else "no_verdict")
            # The reason may mention other values: the last one is the verdict.
            text = target(found[-1], text, (self.prompt.key, REASON))
        verdict = self.form.kind.read(self.prompt, self.material, text, truncated)
        # JSON in the text can spell half a character.
        return replace(verdict, reason=replace_surrogates(verdict.reason))

    def answer(self, reply: Reply) -> Verdict:
        """Return the verdict in a reply. Its `failure` is set if there is none."""
        if lost := find_failure(reply):
            return Verdict(failure=lost[0])
        verdict = self.read(reply.text, reply.truncated)
        cut_off = verdict.failure is not None and reply.finish == "content_filter"
        return replace(verdict, failure="content_filter") if cut_off else verdict


def inquiry(name: str, language: Language, material: PromptInputs, sees: bool = False) -> JudgeRequest:
    """Build the request for a verdict in the form `name`, by the prompt for `language`.

    `sees`: the judge can see images and is shown those of `material`. If there are none, the prompt mentions none.
    Raises UsageError for an unknown form.
    """
    form, prompt = form_of(name), load(name, language, sees and bool(material.pictures()))
    return JudgeRequest(name=name, form=form, prompt=prompt, material=material)


def split_sides(request: JudgeRequest) -> Iterator[JudgeRequest]:
    """Yield one request per side, the model's first, for a scoring head that scores answers one at a time."""
    sides = request.material.sides
    for side in sides[::-1] if request.first == "opponent" else sides:
        # The judgments of a conversation's turns are of both sides, and would tell of the other one.
        material = replace(request.material, sides=[side], verdicts=[], turned=None)
        single = inquiry(ONE_SIDE[request.name], request.prompt.language, material, request.prompt.sees)
        prompt = replace(single.prompt, as_chat=request.prompt.as_chat)
        yield replace(single, prompt=prompt, shown=request.shown, paid=request.paid)


def check_mix(mix: Mapping[str, float]) -> None:
    """Raise UsageError if `mix` (form -> share of rows) has an unknown form, a share outside 0..1, or only zeros.

    >>> shares = [{"pointwise": share} for share in (1.5, float("nan"), 0.0)]
    >>> for mix in ({"pointwize": 1.0}, {"scale": 1.0}, {"checklist_in_full": 1.0}, {"pointwise@en": 1.0}, *shares, {}):
    ...     try:
    ...         check_mix(mix)
    ...     except UsageError as error:
    ...         print(str(error).partition(" choose ")[0])
    unknown form 'pointwize'; did you mean pointwise?
    unknown form 'scale'; did you mean scale_5?
    unknown form 'checklist_in_full'; did you mean checklist?
    unknown form 'pointwise@en'; did you mean pointwise?
    form 'pointwise': the share of rows must lie in 0..1, got 1.5
    form 'pointwise': the share of rows must lie in 0..1, got nan
    no form has a share above 0, got {'pointwise': 0.0}
    no form has a share above 0, got {}
    >>> check_mix({"scale": 1.0})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    critic.errors.UsageError: ... choose answer, checklist, ... scale, with its flags (critic/README.md)
    """
    for form, share in mix.items():
        form_of(form)
        load(form, "en")
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"form {form!r}: the share of rows must lie in 0..1, got {share:g}")
    if not any(mix.values()):
        raise UsageError(f"no form has a share above 0, got {dict(mix)}")


class PlannedVerdict(Struct, frozen=True, kw_only=True):
    """A verdict to request from a judge in the form called `form`.

    - `judging`, `unjudged`: as in Judgment.
    - `problem`: failure and explanatory sentence if there is nothing to judge (`material` is then None), else None.
    - `material`: the inputs of the prompt. In a comparison the model's side is first.
    - `requests`: one per presentation order once a judge has prepared it; none if there is nothing to judge.
    - `prompt_hash`, `asked`: as in Judgment, also set then. Verdicts on one conversation with the same `asked` have
      identical prompts, which are sent once.
    """

    sample: Sample
    form: str
    protocol: str | None = None
    judging: str = "standard"
    unjudged: int = 0
    problem: tuple[Failure, str] | None = None
    material: PromptInputs | None = None
    requests: list[JudgeRequest] = []
    prompt_hash: str = ""
    asked: str | None = None

    def of(self, judgment: Judgment) -> Judgment:
        """Return `judgment`, made for this planned verdict or another one with the same prompt, as that of this one."""
        names = ("sample", "protocol", "judging", "unjudged", "prompt_hash", "asked")
        return replace(judgment, prompt=self.form, **{name: getattr(self, name) for name in names})
