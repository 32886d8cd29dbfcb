"""Labels and numbers that a request's words list as its verdict. Everything here is pure."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from chinese import HAN
from scales import Schema, digits_of, range_in, scale_of

JUDGING = re.compile(
    r"(?i)\b(evaluat\w*|grad(?:e|es|er|ing)\b(?! \d)|judg\w+|rat(?:e|es|ing|ings|er)\b(?! of \d)|"
    r"scor(?:e|es|ing|er)\b|assess\w*|rubric|criteri(?:on|a)|verdict|critique|ground[ -]truth|gold|reference answer|"
    r"submission|hallucinat\w*|faithful\w*|classif(?:y|ies|ier)\b|match an answer|"
    r"(?:two|both) (?:assistants|responses|answers)|determine (?:if|whether))"
)
CODING = re.compile(
    r"(?i)\b(function|method|class|endpoint|script|program|code|python|javascript|typescript|sql|regex|api|html|"
    r"validat(?:e|es|or)|unit tests?|parse[rs]?|file|component|app)\b"
)


class Found(NamedTuple):
    """What the words ask for: `kind` names it, `what` says it in a line; of a JSON object its schema, of a text the
    fields of a contract."""

    kind: str
    what: str
    schema: Schema | None = None
    text: dict[str, Any] | None = None


SEVERAL = Found("several", "")


WORD = rf"(?:N/A|[A-Za-z0-9{HAN}][A-Za-z0-9{HAN}_ ()+-]{{0,23}})"
QUOTED = rf"(?:\"{WORD}\"|'{WORD}'|`{WORD}`|\*\*{WORD}\*\*)"
WHERE_THERE = re.compile(
    r"\(if (?:they|these|those) (?:are )?(?:valid|available|applicable|present|given|listed|options|exist)"
)
CAPITALS = r"(?!(?:ONLY|WITH|OR|AND|AS|IN|EITHER)\b)[A-Z]{2,20}\b"
BARE = (
    rf"(?:N/A\b|[A-Z]\b|-?[0-9]{{1,3}}(?:\.[0-9]{{1,2}})?(?![0-9]|\.[0-9])|{CAPITALS}|"
    r"(?i:yes|no|true|false|(?:in)?correct|partial(?:ly)?|unknown|tie|pass|fail|unsure|unclear|maybe|neither|none|"
    r"both|equal)\b)"
)
NO_MORE = (
    r"(?i:no (?:explanation|other|additional|extra|further|more|text|words|punctuation|need|preference)|nothing|do not|"
    r"don['’]t|with|without)\b"
)
NEXT = rf"(?: ?\([^()\n]{{0,40}}\))?(?:, and |, or |, | or | and | ?/ ?| ?\| ?)(?!{NO_MORE})"
LIST = re.compile(
    rf"(?<![\w./+-])(?:{QUOTED}(?:{NEXT}{QUOTED}){{1,14}}|{BARE}(?:{NEXT}(?:{CAPITALS} {CAPITALS}|{BARE}|"
    rf"{QUOTED})){{1,14}})"
)
ITEM = re.compile(rf"{QUOTED}|{CAPITALS} {CAPITALS}|{BARE}")
LEADS = re.compile(
    r"(?i)(?:\A|\[|\b(?:only|just|exactly|simply|strictly|with|either|be|is|of|as|in|a|output|return|respond|reply|"
    r"answer|say|"
    r"print|write|give|using|word|letters?|number|digit|character|options?|labels?|verdict|following|"
    r"uppercase),?:? ?)\Z"
)
"""Before a list: what it does not go on from."""

STOPS = re.compile(
    rf"(?: ?\([^()\n]{{0,40}}\))?(?:\s*\Z|[.;:!?)\n](?![\w.])|,? {NO_MORE}|,? and (?:nothing|do)\b| (?:only|alone|if|"
    rf"when|for|as|in|on|"
    r"at|to|by|based|depending|according|here|from|that|which|whether|is|are|answer|ONLY)\b|,? (?:on its|and repeat)|"
    r"\])"
)
"""Behind a list: where it ends."""

OTHERWISE = re.compile(rf"(?i:\b(?:or|otherwise|else)\b)[^.\n\"'`]{{0,40}}(?:{QUOTED}| [A-Z]\b|N/A\b)")
ANSWERS = re.compile(
    r"(?i)\b(?:return|respond|reply|output|answer(?:ing)?|write|print(?:ing)?|say|response (?:should|must) be)\b"
)
ONLY = re.compile(
    r"(?i)\b(only|just|single|exactly one|nothing else|one of the following|among the following|"
    r"no (?:other|additional|extra|text)|without any)\b"
)
REASONS = re.compile(
    r"(?is)\b(?:first|step[- ]by[- ]step|reasoning|explanation|think)\b.{0,300}\b(?:then|finally|at the end|"
    r"after that)\b"
)
WHY = re.compile(
    r"(?i)\b(?:template|step[- ]by[- ]step|explain\w*|explanations?|reason(?:s|ing)?|rationale|justif\w+)\b"
)
SENTENCE = re.compile(r"(?:[^\n.?]+|\.(?=[0-9])|(?<=\be)\.(?=g\b)|(?<=\be\.g)\.(?= ?[^\sA-Z]))+[.?\n]?")
ELSE = re.compile(r"(?i) or (?:N/?A\b|none\b|null\b|[\"'`]|the (?:word|letter)|un\w+\b)|\b(?:otherwise|unless)\b")
AFTER = re.compile(
    r"(?i)\b(?:separate|next|new|second) lines?\b[^.\n]{0,60}\b(?:reason|expla(?:in|nation)|justif|rationale)"
)
ONLY_NUMBER = re.compile(
    r"(?i)\b(?:only|just|single)(?: (?:as|with|the|an?|your|single|final|overall|integer|float|decimal|numeric))*"
    r" (?:number|integer|score|rating|float|decimal|digit)(?: rating| score| value)?(?= ?(?:[.,;:()\n]|\Z|from |"
    r"between |in |on |and nothing))"
)


def list_in(text: str, start: int = 0) -> list[str] | None:
    """The labels of the first list of a text behind `start`; none at all where what stands around it is not understood:
    a reply could not say what it also allows. None where no labels are listed."""
    for row in LIST.finditer(text, start):
        words = re.sub(rf"({QUOTED})| ?\([^()\n]{{0,40}}\)", r"\1", row[0])
        labels = [label.strip("\"'`*") for label in ITEM.findall(words)]
        if all(map(is_number, labels)) and not ({"0", "1"} & {*labels} and re.search(r"or|\||^0 ?/ ?1$", words)):
            continue
        before, behind = re.split(r"[.!?]\s|\n", text[: row.start()])[-1], text[row.end() :]
        other = OTHERWISE.search(re.split(r"[.!?]\s|\n", behind)[0])
        unknown = other and not any(label in other[0] for label in labels)
        optional = WHERE_THERE.search(row[0] + behind[:60])
        return [] if unknown or optional or not LEADS.search(before) or not STOPS.match(behind) else labels
    return None


def is_number(value: str) -> bool:
    return bool(re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?", value))


def labels(text: str) -> Iterator[Found]:
    """Sets of labels of which the reply has to be one and nothing else."""
    for match in SENTENCE.finditer(text):
        sentence, before = match[0], text[max(0, match.start() - 400) : match.start()]
        verb = ANSWERS.search(sentence)
        if (
            len(sentence) > 500
            or sentence.endswith("?")
            or CODING.search(sentence)
            or not ONLY.search(sentence)
            or not verb
        ):
            continue
        labels = list_in(sentence, verb.end())
        if (labels is not None and len({*labels}) != len(labels)) or labels == []:
            yield SEVERAL
        elif labels:
            reasoned = REASONS.search(before + sentence)
            yield held("labels", labels, "before", "\n\n") if reasoned else held("labels", labels, "none")


def only_number(text: str) -> Iterator[Found]:
    """A number of a range that the words name and nothing else, or reasons on the lines after it."""
    after = bool(AFTER.search(text))
    if WHY.search(text) and not after:
        return
    for match in SENTENCE.finditer(text):
        sentence = match[0]
        wanted = ANSWERS.search(sentence) and ONLY_NUMBER.search(sentence)
        if wanted and not CODING.search(sentence) and not ELSE.search(sentence, wanted.start()):
            found = range_in(sentence) or scale_of(text)
            if values := numbers(found, digits_of(found, text)):
                yield held("number", values, "after" if after else "none")._replace(what=f"{values[0]} … {values[-1]}")


def numbers(found: tuple[float, float] | None, digits: int = 0) -> list[str]:
    """All numbers of a range of up to so many digits behind the point; none of a wide one."""
    if not found or found[1] > 100 or not all(value == int(value) for value in found):
        return []
    digits = max(each for each in range(digits + 1) if (found[1] - found[0]) * 10**each <= 1000)
    steps = range(int(found[0]) * 10**digits, int(found[1]) * 10**digits + 1)
    return [
        f"{step / 10**digits:.{few}f}"
        for step in steps
        for few in range(digits + 1)
        if step % 10 ** (digits - few) == 0
    ]


def choices(words: str) -> list[str] | None:
    """The values that a placeholder or the words about it allow; none at all where they are not understood, None where
    nothing is said of them."""
    if found := range_in(words):
        return numbers(found, digits_of(found, words))
    if (labels := list_in(words)) is not None:
        return labels
    quoted = list(dict.fromkeys(re.findall(rf"[\"'`]({WORD})[\"'`]", words)))
    return quoted if 2 <= len(quoted) <= 4 else None


def scale(text: str, name: str = "") -> list[str]:
    """The numbers of the scale that a request names, be it by the name of its score."""
    found = scale_of(text, name)
    return numbers(found, digits_of(found, text))


def escaped(text: str) -> str:
    return re.escape(text).replace("\\\n", "\n")


def any_of(values: list[str]) -> str:
    return "|".join(escaped(value) for value in sorted(values, key=len, reverse=True))


def held(
    kind: str, values: list[str], reasoning: str, own: str = "", *, lead: str = "", never: str | None = None
) -> Found:
    """A form in which the verdict is `own` and one of `values`, behind `lead` where it has to be forced. What is said
    before must not look like it."""
    longest = max(len((own + lead + value).encode()) for value in values)
    verdict = f"{escaped(own)}({any_of(values)})"
    fields: dict[str, Any] = {"reasoning": reasoning, "verdict": verdict, "room": longest}
    if reasoning == "before":
        plain = f"{own}({any_of(values)})".replace("\n", "\\n")
        fields |= {"verdict": plain, "lead": lead, "never": never or plain, "room": longest + 2}
    return Found(kind, " | ".join(values), text=fields)
