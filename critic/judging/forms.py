"""The forms: ways to ask a judge for a verdict, such as a rating of one answer or the better of two.

A form is an entry in `forms.toml` with a prompt file per language (`critic/prompts/`). Flags change a form; each flag
that applies is an ending of the form's name, as in `pairwise_turn_forced`. Every form can be used in a training recipe
and in `critic judge --prompt`, and its verdicts can be read, scored and audited.
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
"""The most characters of a reason that the judge writes before its verdict."""

LONGEST_STEPS: dict[Language, int] = {"en": 2000, "zh": 1000}
"""The most characters of a step-by-step reason: twice the 250 tokens that VisIT-Bench's judge wrote on average."""

REASON_FIRST = "_reason_first"
"""Ending of the names of forms in which the reason comes before the verdict."""


class Form(Struct, frozen=True, kw_only=True):
    """A way to ask for a verdict, with its flags applied.

    - `kind`: the kind of verdict (critic.judging.kinds).
    - `scope`: what is judged: "turn" (one answer) or "conversation" (the whole).
    - `pair`: True if two answers to one question, or two whole conversations, are compared.
    - `first`: name of the form in which the judge answers the question itself before it judges, or None.
    - `steps`: True if the verdict begins with a step-by-step reason.
    - `protocol`: name of the protocol that judges conversations in this form.
    - `all_turns`: True if the judge of a turn also sees the later turns.
    - `has_checklist`: True if the judge sees the question's checklist.
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
        """Return the number of answers in a training example in this form, 1 or 2.

        A second answer is compared with the first, or stands for the judge's own answer.
        """
        return 2 if self.pair or self.first else 1

    def lacking(self, response: Response) -> str | None:
        """Return why a row cannot be judged in this form, in words, or None if it can."""
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
        """Return the inputs of a prompt in this form for a response.

        `other`: a second response, or None. It is compared with the first. In a form with `first`, it stands for the
        judge's own answer.
        """
        shown = response.shown or of_response(response, other if self.pair else None, self.scope)
        # In benchmarks, only forms with `has_checklist` show one.
        if response.shown is None and not self.has_checklist:
            shown = replace(shown, checklist=[])
        return replace(shown, own_answer=other.text) if other is not None and self.first else shown


_FILE = toml.decode(Path(__file__).with_name("forms.toml").read_bytes())


Flag = dict[str, dict[str, Any]]
"""Ending of a form's name -> fields of Form that the ending changes. One ending of each flag applies; "" is none."""

FORMS: dict[str, list[Flag]] = {
    base: [_FILE["flags"][name] for name in entry.pop("flags", ())] for base, entry in _FILE["forms"].items()
}
"""Base name of a form -> its flags. The form's prompt file holds the texts that an ending changes (`flags.ENDING`)."""


def _name_variants() -> Iterator[tuple[str, Form]]:
    for base, entry in _FILE["forms"].items():
        for chosen in product(*(flag.items() for flag in FORMS[base])):
            name = "_".join([base, *(ending for ending, _ in chosen if ending)])
            fields = {**entry, **ChainMap(*(changes for _, changes in chosen))}
            yield name, Form(**{**fields, "kind": kinds.load(fields["kind"])})


BY_NAME = dict(_name_variants())
"""Full name, flags included (`pairwise_turn_forced_in_full`) -> form with these flags applied."""


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
    """Return True if the form called `name` asks for a single rating on 1..10 and nothing else.

    A scoring head can give such a verdict.
    """
    form = form_of(name)
    return form.kind.single_rating and form.first is None and load(name, "en").on_ten


def can_give(head: Mapping[str, Any], name: str) -> bool:
    """Return True if a scoring head can give verdicts in the form called `name`.

    `head`: the facts that are published about the judge (`identity.describe`).
    """
    return ("tie_band" in head and name in ONE_SIDE) or (("tie_band" not in head or "ordinal" in head) and rates(name))


ONE_SIDE: dict[str, str] = _FILE["one_side"]
"""Form that compares two answers -> form in which a scoring head scores each of them, to decide the comparison."""
COMPARED = {shown_as: compared for compared, shown_as in ONE_SIDE.items()}
"""The inverse of ONE_SIDE: form in which a scoring head scores one answer -> form that compares two."""


class JudgeRequest(Struct, frozen=True, kw_only=True):
    """A request for a verdict.

    - `name`, `form`, `prompt`: the form's name, the form, and its prompt in the sample's language.
    - `material`: the inputs of the prompt.
    - `fitted`: the rendered prompt, truncated if necessary; empty before it is rendered.
    - `shown`: image name -> parts of a message that show the image.
    - `seed`: the sampling seed; None for greedy decoding.
    - `first`: the side of a comparison that is shown first (A); None if nothing is compared.
    - `paid`: list to which the record of every call for this verdict is added.
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
        """Return the messages to send: the rendered prompt with its images."""
        return self.sent(self.rendered().fitted.messages)

    def rendered(self) -> "JudgeRequest":
        """Return the request with its prompt rendered, untruncated. If it is already rendered, return it unchanged."""
        if self.fitted.messages:
            return self
        return replace(self, fitted=TruncatedPrompt(render(self.prompt, self.material)))

    def sent(self, messages: Sequence[Message]) -> list[Message]:
        """Return rendered messages with each image name replaced by the message parts that show the image."""
        return [embed_images(message, self.shown) for message in messages] if self.prompt.sees else [*messages]

    def keys(self, reason: bool = True) -> tuple[str, ...]:
        """Return the JSON keys of the verdict in the order of the prompt's output format; () for free text.

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
        """Return the JSON Schema of the verdict, with its keys in the order of `keys`, or None for free text.

        `reason`: include the reason, if the format has one.
        """
        order, values = self.keys(reason), self.form.kind.values(self.prompt, self.material)
        # Prompts of a prompt pack ask for free text.
        if not order or self.prompt.pieces:
            return None
        # A reason before the value is limited, so that the value fits into the reply. A reason after it is not, since
        # constrained decoding with a length limit is slow.
        longest = LONGEST_STEPS[self.prompt.language] if self.form.steps else LONGEST_FIRST_REASON
        first = {"type": "string", **({"maxLength": longest} if order[0] == REASON else {})}
        return {
            "type": "object",
            "properties": {key: first if key == REASON else values[key] for key in order},
            "required": list(order),
            "additionalProperties": False,
        }

    def read(self, text: str, truncated: bool) -> Verdict:
        """Parse the verdict in a judge's text, in this project's format or in the notations of the papers' judges.

        If the prompt has a pattern of its own for verdicts (`Prompt.verdict`), the pattern's last match is parsed.
        `truncated`: the text ended at its token limit.
        """
        if self.prompt.verdict:
            found = list[str]()
            # A prompt pack's pattern may take for ever.
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
        """Parse the verdict in a reply. If the reply has none, `failure` says why."""
        if lost := find_failure(reply):
            return Verdict(failure=lost[0])
        verdict = self.read(reply.text, reply.truncated)
        cut_off = verdict.failure is not None and reply.finish == "content_filter"
        return replace(verdict, failure="content_filter") if cut_off else verdict


def inquiry(name: str, language: Language, material: PromptInputs, sees: bool = False) -> JudgeRequest:
    """Build the request for a verdict in the form `name`, with its prompt in `language`.

    Args:
        material: The inputs of the prompt.
        sees: The judge sees the images of `material`. Without images, the prompt for a judge that sees none is used.

    Raises UsageError for an unknown form.
    """
    form, prompt = form_of(name), load(name, language, sees and bool(material.pictures()))
    return JudgeRequest(name=name, form=form, prompt=prompt, material=material)


def split_sides(request: JudgeRequest) -> Iterator[JudgeRequest]:
    """Split the request for a comparison into one request per side, the model's first.

    A scoring head that compares scores each side by itself.
    """
    sides = request.material.sides
    for side in sides[::-1] if request.first == "opponent" else sides:
        # Judgments of the turns compare both sides, so they are removed.
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
    """A verdict to request from a judge.

    - `sample`: the answer or conversation to judge.
    - `form`: the full name of the form.
    - `protocol`, `judging`, `unjudged`: as in Judgment.
    - `problem`: failure and explanatory sentence if there is nothing to judge (`material` is then None), else None.
    - `material`: the inputs of the prompt. In a comparison the model's side is first.

    `Judge.prepare` sets the other fields:

    - `requests`: one request per presentation order; [] if there is nothing to judge.
    - `prompt_hash`, `asked`: as in Judgment. Verdicts on one conversation with the same `asked` have identical prompts,
      which are sent once.
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
        """Return a copy of `judgment` that names the sample, protocol and form of this planned verdict.

        `judgment` was made for this planned verdict, or for another one with an identical prompt.
        """
        names = ("sample", "protocol", "judging", "unjudged", "prompt_hash", "asked")
        return replace(judgment, prompt=self.form, **{name: getattr(self, name) for name in names})
