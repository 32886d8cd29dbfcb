"""Turn human-scored answers (rows) into training examples: plan each row's forms, then render prompt and target."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from critic.backends import list_image_names
from critic.errors import hash_value
from critic.judging import forms
from critic.judging.distribution import probabilities
from critic.judging.kinds import human_score
from critic.judging.prompt import Prompt, TokenCount, escape_control_tokens, in_order, load, truncate_to_fit
from critic.judging.targets import target
from critic.records import PLAYERS, TEN, Example, HumanScore, Position, Response


class Planned(msgspec.Struct, frozen=True):
    """A training example to build.

    - `form`: the form of its prompt (critic.judging.forms).
    - `ids`: the ids of the one or two rows whose answers it shows, in order.
    - `first`: the answer that is shown first if a single row holds a pair: "model" (its own) or "opponent" (`other`).
    """

    form: str
    ids: tuple[str, ...]
    first: Position = "model"


class Plan(msgspec.Struct, frozen=True):
    """The training examples to build, in the order of their forms.

    `left_out` counts the rows that were selected for a form but cannot be used in it, by "FORM: reason".
    """

    examples: list[Planned]
    left_out: dict[str, int]


OPEN = "people's score leaves the verdict open"
ALONE = "no other answer to the same question to compare with"
ASKED_ONCE = "another row asks the same question"


def plan(responses: Sequence[Response], mix: Mapping[str, float]) -> Plan:
    """Plan the training examples of human-scored rows.

    `mix`: form -> share (0..1) of the rows to use in this form.

    A hash of form and row id decides whether a form uses a row, so adding rows or changing another form's share does
    not change that decision. In a form that shows two answers, a row is paired with one other answer to its question
    (`partner`). If the form compares them, both orders are planned. Forms with the reason first use only rows that have
    a reason, if any row has one.

    Raises UsageError for an invalid mix, ValueError for a response without a human score.
    """
    forms.check_mix(mix)
    questions = [question_key(response) for response in responses]
    answers: dict[bytes, list[Response]] = defaultdict(list)
    for question, response in zip(questions, responses, strict=True):
        answers[question].append(response)
    planned: dict[Planned, None] = {}
    left_out = Counter[str]()
    reasoned = any(row.human is not None and row.human.reason for row in responses)
    silent = {row.id for row in responses if reasoned and row.human is not None and not row.human.reason}
    for form, share in mix.items():
        for question, response in zip(questions, responses, strict=True):
            if _draw(form, response.id) >= share:
                continue
            shown = _plan_row(form, load(form, response.question.lang), response, answers[question])
            if forms.REASON_FIRST in form and response.id in silent:
                shown = "no reason, which other rows have"
            if isinstance(shown, str):
                left_out[f"{form}: {shown}"] += 1
            else:
                planned |= dict.fromkeys(shown)
    return Plan(list(planned), dict(left_out))


def _plan_row(name: str, prompt: Prompt, response: Response, answers: Sequence[Response]) -> list[Planned] | str:
    """Plan a row's training examples in the form `name`. Return them, or the reason why there is none.

    Args:
        prompt: The form's prompt in the row's language.
        response: The row.
        answers: All rows that answer the same question, this one included.
    """
    form = forms.form_of(name)
    if (lacking := form.lacking(response)) is not None:
        return lacking
    if response.preference is not None:
        orders = [Planned(name, (response.id,), first) for first in PLAYERS]
        return OPEN if form.kind.label(prompt, [response]) is None else orders
    if form.shown == 1:
        if not form.kind.is_verdict and response.id != min(answers, key=lambda answer: _draw(name, answer.id)).id:
            return ASKED_ONCE
        return OPEN if form.kind.label(prompt, [response]) is None else [Planned(name, (response.id,))]
    # A score of an answer and a score of a whole conversation cannot be compared.
    others = [other for other in answers if comparable(response, other) and form.lacking(other) is None]
    decided = [other for other in others if form.kind.label(prompt, [response, other]) is not None]
    if not decided:
        return OPEN if others else ALONE
    other = partner(name, response, decided)
    both = (response.id, other.id), (other.id, response.id)
    return [Planned(name, ids) for ids in both[: 1 + form.pair]]


def comparable(response: Response, other: Response) -> bool:
    """Return True if two answers to one question can be compared.

    They can if they are by different systems (or the system is unknown) and differ in text. A row that itself holds a
    pair cannot be compared with another row.
    """
    by_another = response.system is None or response.system != other.system
    are_single = all(each.preference is None and each.other is None for each in (response, other))
    return are_single and by_another and response.id != other.id and response.text.strip() != other.text.strip()


def partner(form: str, response: Response, others: Sequence[Response]) -> Response:
    """Return the answer among `others` to pair with `response` in a form: the one with the lowest hash.

    The hash is of the form's name and of the ids of `response` and the other answer.
    """
    return min(others, key=lambda candidate: _draw(form, response.id, candidate.id))


def question_key(response: Response) -> bytes:
    """Return a key that is equal for all rows with the same question.

    All fields of the Question are part of it. Its id and group are left out for a row without a human score whose group
    is only the row's own id.
    """
    question = response.question
    if response.human is None and question.group == response.id:
        question = replace(question, id="", group="")
    return msgspec.json.encode(question)


def _draw(*words: str) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on `words`."""
    return int(hash_value("\0".join(words), 12), 16) / 2**48


def build_example(
    planned: Planned, by_id: Mapping[str, Response], limit: int | None, count: TokenCount, sees: bool = False
) -> Example | None:
    """Build a planned training example, with prompts truncated as in judging.

    If its form shows one answer but two are planned, the example is for a scoring head that compares: it has one prompt
    per answer. Returns None if a prompt is too long even when truncated.

    Args:
        planned: The form and the ids of the rows.
        by_id: Row id -> row.
        limit: Longest prompt in tokens; None for any length.
        count: Function that counts the tokens of messages.
        sees: True if the judge sees images.
    """
    form, answers = planned.form, [by_id[name] for name in planned.ids]
    response = answers[0]
    preference, human = response.preference, response.human or HumanScore(score=response.preference or 0.0)
    compared = forms.COMPARED.get(form) if len(answers) > 1 or preference is not None else None
    spec = forms.form_of(compared or form)
    # The second answer is that of another row, or stands in the row itself.
    material = spec.material(response, [*answers[1:], response.other][0])
    request = forms.inquiry(compared or form, response.question.lang, material, sees=sees)
    prompt = request.prompt
    if compared:
        requests = [*forms.split_sides(request)]
    else:
        requests = [replace(request, material=in_order(prompt, material, planned.first))]
        if preference is not None and planned.first == "opponent":
            answers = [replace(response, preference=1 - preference)]
    fitted = []
    for side in requests:
        truncated = truncate_to_fit(side.prompt, side.material, limit, count)
        if truncated is None:
            return None
        fitted.append(truncated)
    built = Example(
        id="+".join(planned.ids),
        form=form,
        messages=fitted[0].messages,
        target="",
        free=True,
        shortened={**fitted[0].shortened, **fitted[-1].shortened},
        images=list_image_names(fitted[0].messages),
    )
    label = spec.kind.label(prompt, answers)
    if compared:
        # The target of a head is the difference of the sides' scores, on -1..1.
        if preference is not None:
            ahead = 2 * preference - 1
        else:
            better, worse = (human_score(answer).score for answer in answers)
            ahead = (better - worse) / (TEN[1] - TEN[0])
        return replace(built, other=fitted[1].messages, label=[0.0 if label == "tie" else ahead])
    assert label is not None, "rows whose verdict people leave open are not planned"
    soft = None
    if human.raters and spec.kind.rates:
        of_raters = (probabilities(score, prompt.scale) for score in human.raters.values())
        soft = [fmean(shares) for shares in zip(*of_raters, strict=True)]
    reason, keys = escape_control_tokens(human.reason or ""), request.keys()
    stated = target(escape_control_tokens(label) if isinstance(label, str) else label, reason, keys)
    return replace(built, target=stated, score=None if spec.pair else human.score, label=soft, free=not keys)
