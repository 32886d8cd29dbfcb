"""Forms of a verdict in plain text that a request's words lay out: named lines, tags, boxes, marked fields.

What they say becomes the fields of a contract. Everything here is pure.
"""

import re
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Any, NamedTuple

from chinese import HAN
from reading import digits_of, named_ranges, names_verdict, range_in, said_of, scale_of, widest
from sections import JUDGING

Schema = dict[str, Any]

WHY = re.compile(
    r"(?i)\b(?:template|step[- ]by[- ]step|explain\w*|explanations?|reason(?:s|ing)?|rationale|justif\w+)\b"
)
"""What asks for more than a number."""

WORD = rf"(?:N/A|[A-Za-z0-9{HAN}][A-Za-z0-9{HAN}_ ()+-]{{0,23}})"
QUOTED = rf"(?:\"{WORD}\"|'{WORD}'|`{WORD}`|“{WORD}”|\*\*{WORD}\*\*)"
NUMERAL = r"-?[0-9]{1,3}(?:\.[0-9]{1,2})?(?![0-9]|\.[0-9])"
BARE = (
    rf"(?>N/A\b|[A-Z]\b|{NUMERAL}|(?i:yes|no|true|false|correct|incorrect|partial|unknown|tie|pass|fail)\b"
    r"|[A-Z][A-Z_]{1,20}\b)"
)
HEDGE = (
    r"(?i:unsure|unclear|uncertain|undecided|maybe|neither|none|both|equal|draw|same|neutral|mixed|other|partly|"
    r"partially|controversial|not sure|not applicable)\b"
)
"""What a list of labels may go on with, beside what it may begin with."""

CAPITALS = r"[A-Z]{2,20}(?: (?!(?:OR|AND|ONLY|NOTHING|WITH|WITHOUT|NO|IN|AS|IF|BUT)\b)[A-Z]{2,20}){1,2}\b"
NO_MORE = (
    r"(?i:no (?:explanations?|reasons?|reasoning|justifications?|rationale|other|additional|extra|further|more|text|"
    r"words|punctuation|preamble|introduction|comment(?:s|ary)?|elaboration|quot(?:es|ation)|markdown|formatting|prose|"
    r"spaces?|whitespace|periods?|need)|nothing (?:else|more)|do not|don['’]t)\b"
)
"""How a sentence goes on behind its labels to say that there is nothing else."""

MORE_OF_THEM = r"(?:\.\.\.|…)"
SEPARATOR = (
    rf"(?: ?\([^()\n]{{0,40}}\))?(?:, {MORE_OF_THEM},? (?:and |or |to )?|, and |, or |, | or | and | ?/ ?| ?\| ?)"
)
NEXT = rf"{SEPARATOR}(?!{NO_MORE})"
LISTS = re.compile(
    rf"(?<![\w./+-])(?:{QUOTED}(?:{NEXT}{QUOTED}){{1,14}}"
    rf"|{BARE}(?:{NEXT}(?:{CAPITALS}|{BARE}|{HEDGE}|{QUOTED})){{1,14}})"
)
ITEM = re.compile(rf"{QUOTED}|{CAPITALS}|{BARE}|{HEDGE}")
LEAD = (
    r"(?:only|just|exactly|simply|strictly|with|either|be|of|as|in|output|return|respond|reply|answer|say|print|write|"
    r"give|use|using|single|one|word|words|letter|letters|token|tokens|label|labels|character|digit|number|option|"
    r"options|response|verdict|response:|output:|verdict:|answer:)"
)
LISTED_BEFORE = re.compile(
    rf"(?i)\b(?:only|just|with|either|be|of|as|output|return|respond|reply|say|print|write):? "
    rf"(?:(?!{LEAD}\b)[\w'\"`+-]+,? ){{0,6}}(?!{LEAD}\b)[\w'\"`+-]+(?:, (?:or |and )?| or | and | ?[/|] ?)\Z"
)
"""Before a list: what it goes on from, as in "only unsure, yes or no"."""

QUALIFIED = re.compile(
    r"(?:\b(?i:very|not|somewhat|quite|(?!only|simply|exactly|strictly|directly|solely|merely|exclusively|purely|"
    r"explicitly|finally|briefly|reply|apply)[a-z]+ly)|"
    r"\b(?!(?i:only|output|answer|with|either|respond|return|reply|say|print|write|be|as|exactly|just)\b)"
    r"[A-Z]{2,20}) \Z"
)
"""Before a list: what belongs to its first word, as in "partially correct or wrong"."""

GOES_ON = re.compile(
    rf"(?i)[\w%+=’']|-\w|(?: ?\([^()\n]{{0,40}}\))?(?:, ?{MORE_OF_THEM}| {MORE_OF_THEM},? (?:or|and|to)\b|"
    r" ?\(?[,;]? ?(?:or|nor|otherwise|else|unless)\b| ?[/|] ?\S)"
)
"""Behind a list: what else it allows."""

STOPS = (
    r"(?i:only|with|without|for|if|when|where|as|in|on|at|to|by|based|depending|according|about|regarding|followed|per|"
    r"please|but|then|so|alone|here|from|that|which|whether|is|are|do|don|nothing|because|using|before|after|labels?|"
    r"answers?|verdicts?|responses?|values?|words?|reply|decision|judge?ment|choice|tokens?|characters?|letters?|"
    r"scores?|grades?|rating|output|inside|within|between|"
    rf"{NO_MORE})\b"
)
MORE = re.compile(rf"(?i) (?!(?:and\b|{STOPS}))\w")
MORE_LISTED = re.compile(rf"(?i)(?: ?\([^()\n]{{0,40}}\))?(?:, (?:and )?| and )(?!{STOPS})\w")
"""Behind a list: what may be its next item, or the rest of its last one."""

WHERE_THERE = re.compile(
    r"\b[A-Z]\W{1,5}[A-Z](?:,| or| and)\W{1,5}[A-Z] \(if (?:they|these|those) "
    r"(?:are )?(?:valid|available|applicable|present|given|listed|options|exist)\b[^()\n]{0,20}\)(?!.*\(if )"
)
"""Letters of which there are as many as a question has options."""

OPTION = re.compile(r"(?<![\w'’.-])([A-Z])[.):](?=\s)")

OTHERWISE = re.compile(rf"(?i:\b(?:or|otherwise|else)\b)(?:[^.\n\"'`“*]{{0,40}}({QUOTED})| ([A-Z]\b|N/A\b|{NUMERAL}))")
"""A label that a sentence allows behind its list."""

BRACKETED = re.compile(rf"\[\[([A-Z]{{1,12}}(?:[<>=]{{1,2}}[A-Z])?|(?i:tie|yes|no)|{HEDGE})\]\]")
IN_BRACKETS = re.compile(r"\[\[([^\[\]\n#]{1,30})\]\]")
LINES = re.compile(
    r"(?i)\b(?:following|this|these)\b[^\n]{0,60}\b(?:format|fields|lines|template|structure)\b[^\n]{0,80}:?\n+"
    r"(?P<lines>(?:[^\w\n]{0,3}[A-Za-z][\w ]{0,24}: ?[^\n]+\n?){2,4})"
)
CLOSING = re.compile(
    r"(?i)\b(?:end|finish|conclude|final line|last line)\b[^\n\"'`]{0,80}[\"'`]"
    rf"(?P<name>[A-Za-z{HAN}][A-Za-z{HAN} ]{{1,20}})(?P<colon>[:：]) ?"
    r"(?P<open>[\[<{(]{0,2})(?P<value>[^\"'`\n\]>})]{1,40})[\]>})]{0,2}[\"'`](?P<rest>[^\n]{0,120})"
)


ABOUT_ANSWERS = re.compile(
    r"(?i)\b(?:evaluat\w*|grad(?:e|ing|er)|judg(?:e|ing|e?ment)|rat(?:e|ing)|assess\w*|scor(?:e|ing)|compar(?:e|ing)|verify|"
    r"critique|check|determine|decide|classify|faithful|correctness|relevance|coherence|quality|better)\b[^.\n]{0,90}"
    r"\b(?:answers?|responses?|repl(?:y|ies)|submissions?|outputs?|completions?|solutions?|candidates?|assistants?|"
    r"(?:summar|stor)(?:y|ies)|translations?|generations?|agents?|claims?|statements?|conversations?|generated)\b|"
    r"\b(?:two|both) (?:assistants|answers|responses|outputs)\b"
)
"""What is judged, said by name: forms that texts of all kinds have are a verdict's only there."""

VERDICT_NOUN = r"(?:scores?|rating|grade|verdict|judge?ment|decision|preference|winner|choice|evaluation|assessment)"
PLACEHOLDER = re.compile(rf"(?i)(?:(?:your|the|final|my) ){{0,2}}(?:{VERDICT_NOUN}|answer|label|letter|number|option)")
TAG = re.compile(r"<(?P<name>[A-Za-z][\w-]{1,30})>(?P<inner>[^<>]{0,160}?)</(?P=name)>")
ALONE = re.compile(
    r"(?i)\b(?:in|inside|within|between|using|with|by)\b[^.<>\n]{0,40}<(?P<name>[A-Za-z][\w-]{1,30})>(?!\s*[^\s<.,)`\"'][^<]*<)"
)
FOR_A_VERDICT = re.compile(rf"(?i)\W*(?:\w+ ){{0,2}}{VERDICT_NOUN}\W*")
BOXED = re.compile(r"\\boxed\{(?P<inner>[^{}\n]{0,40})\}")
MARKED = re.compile(
    r"`\[\[ ## (?P<name>\w{1,40}) ## \]\]`(?: \(must be formatted as a valid Python (?P<type>[^()\n]{1,120})\))?"
)
COMPLETED = "[[ ## completed ## ]]"
NAMED_LINE = r"(?:\*\*|#+ |- )?\[?[A-Za-z][\w ]{1,30}\]?:(?:\*\*)? ?[^\n]+"
BLOCKS = re.compile(
    r"(?im)^(?=[^\n]{0,300}\b(?:following|these|below|strictly|example|exactly)\b)[^\n]{0,300}"
    r"\b(?:format|fields|template|structure|criteria|response|below|example)\b[^\n]{0,60}\n+(?:[-=*#`]{3,}\n+)?"
    rf"(?P<lines>(?:{NAMED_LINE}\n*){{2,8}})"
)
BLOCK = re.compile(r"(?m)^(?P<mark>(?:\*\*|#+ |- )?\[?(?P<name>[A-Za-z][\w ]{1,30})\]?:(?:\*\*)?) ?(?P<what>[^\n]+)$")
NUMBERS_ONLY = re.compile(r"(?i)\b(?:scores?|ratings?|numbers?) only\b|\bonly\b[^.\n]{0,20}\b(?:score|rating|number)\b")
ENDING = re.compile(
    r"(?i)(?:^|\n)\W{0,4}(?P<name>[A-Z][A-Z -]{1,30}?)(?P<told> ?\([^()\n]{1,40}\))?(?P<only> only)?"
    r"\W{0,3}:\W{0,3}\Z"
)
NUMBERED = re.compile(rf"(?i)\b{VERDICT_NOUN}\Z")


class Found(NamedTuple):
    """What the words ask for: `kind` names it, `what` says it in a line; of a JSON object its schema, of a text the
    fields of a contract."""

    kind: str
    what: str
    schema: Schema | None = None
    text: dict[str, Any] | None = None


def laid_out(text: str) -> Found | None:
    """A form that can be met beside labels and numbers, which are then its own."""
    return marked_fields(text) or tagged(text) or boxed(text)


def marked_fields(text: str) -> Found | None:
    """`[[ ## score ## ]]` and the like: each field's mark stands before its value, one mark behind the last."""
    if (end := text.rfind(f"`{COMPLETED}`")) < 0:
        return None
    marks = list(MARKED.finditer(text, max(0, text.rfind("\n", 0, end)), end))
    values = [_value(one["type"] or "", one["name"], text) for one in marks]
    free = next((at for at, value in enumerate(values) if value), len(values))
    if free > 1 or not all(values[free:]) or not any(names_verdict(one["name"]) for one in marks[free:]):
        return None
    said = [f"[[ ## {one['name']} ## ]]\n" for one in marks]
    parts = [escaped(mark) + f"({value})" for mark, value in zip(said[free:], values[free:], strict=True)]
    verdict = "\n\n".join([*parts, escaped(COMPLETED)])
    what = ", ".join(one["name"] for one in marks)
    return _opened("fields", what, said[free], verdict, begin=said[0] if free else "", lead="\n\n" if free else "")


def _value(kind: str, name: str, text: str) -> str:
    """What a value of a Python type may be; nothing for a text."""
    if kind.startswith("Literal"):
        return _any_of(re.findall(r"[\"']([^\"']{1,40})[\"']", kind))
    if kind == "bool":
        return "True|False"
    if kind not in ("int", "float"):
        return ""
    found = scale_of(text, name) if names_verdict(name) else widest(named_ranges(name, text))
    if kind == "int":
        return _any_of(numbers(found)) if numbers(found) else "-?[0-9]{1,6}"
    return _any_of(numbers(found, 2)) if numbers(found, 2) else r"-?[0-9]{1,6}(\.[0-9]{1,3})?"


def tagged(text: str) -> Found | None:
    """A verdict in tags of its own, `<score>4</score>`: the last of the tags, or the only one."""
    examples = [
        one for one in TAG.finditer(text) if names_verdict(one["name"]) or FOR_A_VERDICT.fullmatch(one["inner"])
    ]
    alone = [one for one in ALONE.finditer(text) if names_verdict(one["name"])]
    names = {one["name"] for one in (*examples, *alone)}
    if len(names) != 1 or not ABOUT_ANSWERS.search(TAG.sub(" ", text)):
        return None
    name = names.pop()
    inner = list(dict.fromkeys(one["inner"].strip() for one in examples if one["inner"].strip()))
    near = " ".join(_sentence(text, one) for one in (*examples, *alone))
    bare = [one for one in inner if re.fullmatch(r"[A-Za-z][\w+-]{0,20}", one)]
    values = bare if len(bare) > 1 else _first_said([*inner, near])
    if values is None and (any(map(_is_number, inner)) or re.search(r"(?i)\bscor|\brat|\bgrade", f"{name} {inner}")):
        values = _scale(text)
    if not values:
        return None
    return _opened("tag", f"<{name}>: {_listed(values)}", f"<{name}>", _closed_by(f"<{name}>", values, f"</{name}>"))


def boxed(text: str) -> Found | None:
    """A verdict in a box, as mathematics has it: only where the sentence calls it one."""
    found = [one for one in BOXED.finditer(text) if re.search(rf"(?i)\b{VERDICT_NOUN}\b", _sentence(text, one))]
    if not found or not ABOUT_ANSWERS.search(text):
        return None
    inner = list(
        dict.fromkeys(one["inner"].strip() for one in found if re.fullmatch(r"[A-Za-z]\w{0,20}", one["inner"]))
    )
    values = inner if len(inner) > 1 else choices(" ".join(_sentence(text, one) for one in found))
    values = _scale(text) if values is None else values
    opening = "\\boxed{"
    return _opened("boxed", _listed(values), opening, _closed_by(opening, values, "}"))


def blocks(text: str) -> Found | None:
    """Named lines or paragraphs that end with a verdict: free ones, and then those that a value is told for."""
    found = list(BLOCKS.finditer(text))
    if not found or len({one["lines"].strip() for one in found}) != 1:
        return None
    if not ABOUT_ANSWERS.search(text.replace(found[0]["lines"], "")):
        return None
    shown = list(BLOCK.finditer(found[0]["lines"].replace("|%|", "%")))
    values = [[] if WHY.search(one["name"]) else choices(one["what"][:400]) or [] for one in shown]
    free = max((at + 1 for at, value in enumerate(values) if not value), default=0)
    if not 0 < free < len(shown) or not any(names_verdict(one["name"]) for one in shown[free:]):
        return None
    if len(shown) - free == 1 and text.rstrip().endswith(f"\n{shown[-1]['name']}:"):
        return held("labels", values[-1], "none")
    percent = ["%?" if "%" in one["what"] else "" for one in shown]
    said = [f"{one['mark']} " for one in shown]
    parts = [f"{escaped(said[at])}({_any_of(values[at])}){percent[at]}" for at in range(free, len(shown))]
    gap = "\n\n" if "\n\n" in found[0]["lines"].strip() else "\n"
    what = ", ".join(one["name"] for one in shown)
    return _opened("lines", what, said[free], gap.join(parts), begin=said[0], lead=gap)


def ending(text: str) -> Found | None:
    """A request that ends with the name of a score and a colon, and tells its range."""
    found = ENDING.search(text.rstrip()[-120:])
    if not found or not ABOUT_ANSWERS.search(text):
        return None
    only = found["only"] or NUMBERS_ONLY.search(text)
    if not (only or (NUMBERED.search(found["name"]) and not WHY.search(text))):
        return None
    values = choices(found["told"] or "")
    if values is None:
        values = _scale(text, found["name"])
    return held("number", values, "none")._replace(what=_listed(values)) if values and _is_number(values[0]) else None


def _first_said(words: list[str]) -> list[str] | None:
    """`choices` of the first words that name some."""
    return next((found for one in words if (found := choices(one)) is not None), None)


def labels(text: str, start: int = 0, given: str = "") -> list[str] | None:
    """The labels of the first list of a text behind `start`; none at all where it goes on with what is not understood:
    a reply could not say that. None where no labels are listed. `given` is the whole request: if a list of letters says
    that it depends on a question's options, they stand there."""
    for found in LISTS.finditer(text, start):
        row = re.sub(rf"({QUOTED})| ?\([^()\n]{{0,40}}\)", r"\1", found[0])
        said, between = [one.strip("\"'`“”*") for one in ITEM.findall(row)], ITEM.sub("", row)
        if all(map(_is_number, said)) and (not _are_labels(said, between) or re.search(MORE_OF_THEM, between)):
            continue
        before, behind = re.split(r"[.!?]\s|\n", text[: found.start()])[-1], text[found.end() :]
        quoted = found[0][0] in "\"'`“*"
        closed = re.search("or|and", between)
        others = (
            one.strip("\"'`“”*") for pair in OTHERWISE.findall(re.split(r"[.!?]\s|\n", behind)[0]) for one in pair
        )
        if (
            LISTED_BEFORE.search(before)
            or (not quoted and QUALIFIED.search(before))
            or GOES_ON.match(behind)
            or (not closed and MORE_LISTED.match(behind))
            or (not quoted and MORE.match(behind))
            or not {*filter(None, others)} <= {*said}
        ):
            return []
        return _all_of(said, given, found[0] + re.split(r"[^ (]\(|(?<=\))", behind)[0])
    return None


def _all_of(said: list[str], given: str, row: str) -> list[str]:
    """The labels of a row and those that it leaves out: where it depends on the question which there are, letters of
    its options, or all if it names none; where dots stand in it, all between its ends. None where that is not sure."""
    depends, dots = WHERE_THERE.search(row), re.search(MORE_OF_THEM, row)
    if not depends and not dots:
        return said
    at = [ascii_uppercase.find(one) if len(one) == 1 else -1 for one in said]
    if at[0] < 0 or at != sorted({*at}):
        return []
    if dots:
        return list(ascii_uppercase[at[0] : at[-1] + 1])
    options = {*OPTION.findall(given)}
    return sorted({*said, *options} if {"A", "B"} <= options else ascii_uppercase)


def _are_labels(said: list[str], between: str) -> bool:
    """Whether numbers in a row are a list of scores to choose from, and no range, share or count."""
    signs = {"or" if "or" in one else one.strip() for one in re.findall(SEPARATOR, between)}
    binary = signs == {"/"} and {*said} == {"0", "1"}
    return bool({"0", "1"} & {*said}) and ("or" in signs or signs == {"|"} or binary)


def brackets(text: str) -> Iterator[Found]:
    """Labels in brackets; none at all where a line names one beside them that is not understood."""
    labels = [one for one in dict.fromkeys(BRACKETED.findall(text)) if not PLACEHOLDER.fullmatch(one)]
    told = {one for line in text.split("\n") if BRACKETED.search(line) for one in IN_BRACKETS.findall(line)}
    if len(labels) > 1 and not all(one in labels or PLACEHOLDER.fullmatch(one) for one in told):
        yield Found("several", "")
    elif 2 <= len(labels) <= 8:
        yield held("labels", [f"[[{label}]]" for label in labels], "before", lead="\n\n")


def closing(text: str) -> Found | None:
    found = list(CLOSING.finditer(text))
    if len({(one["name"].lower(), one["value"].strip()) for one in found}) != 1:
        return None
    if not JUDGING.search(text.replace(found[0][0], "")):
        return None
    name, value, rest = found[0]["name"], found[0]["value"].strip(), found[0]["rest"]
    named = name + found[0]["colon"] + " " * (found[0]["colon"] == ":")
    each = re.findall(rf"[\"'`]{escaped(name)}[:：] ?({WORD})[\"'`]", found[0][0])
    values = list(dict.fromkeys(each)) if len(set(each)) > 1 else _first_said([value, rest])
    if values and found[0]["open"] == "[[":  # the verdict's own; others stand around what is to be put in
        return held("line", [f"[[{one}]]" for one in values], "before", lead=f"\n{named}")
    return held("line", values, "before", f"\n{named}", never=_any_value(name)) if values else None


def lines(text: str) -> Found | None:
    """Named lines: the verdict and then the reason for it, or reasons and then the verdict."""
    matches = list(LINES.finditer(text))
    found = {one["lines"].strip() for one in matches}
    if len(found) != 1 or not JUDGING.search(text.replace(matches[0]["lines"], "")):
        return None
    rows = [line.strip(" -*\t").partition(":") for line in found.pop().split("\n")]
    names = [name for name, _, _ in rows]
    verdicts = [at for at, name in enumerate(names) if names_verdict(name)]
    if len(verdicts) != 1 or "**" in matches[0]["lines"]:
        return None
    verdict = verdicts[0]
    values = choices(rows[verdict][2])
    values = _scale(text) if values is None else values
    if not values:
        return None
    if verdict == len(names) - 1:
        return held("line", values, "before", f"\n{names[-1]}: ", never=_any_value(names[-1]))
    if verdict or len(names) != 2:
        return None
    shown = held("lines", values, "after", f"{names[0]}: ")
    assert shown.text is not None
    return shown._replace(what=", ".join(names), text={**shown.text, "follow": f"\n{names[1]}: "})


def _any_value(name: str) -> str:
    return rf"(?i:{escaped(name)})[:：] ?[A-Za-z0-9{HAN}]"


def choices(words: str) -> list[str] | None:
    """The values that a placeholder or the words about it allow; none at all where they are not understood, None where
    nothing is said of them."""
    if found := range_in(words):
        return numbers(found, digits_of(found, words))
    if (said := labels(words)) is not None:
        return said
    quoted = list(dict.fromkeys(re.findall(rf"[\"'`]({WORD})[\"'`]", words)))
    return quoted if 2 <= len(quoted) <= 4 else None


def numbers(found: tuple[float, float] | None, digits: int = 0) -> list[str]:
    """All numbers of a range of up to so many digits behind the point; none of a wide one."""
    if not found or found[1] > 100 or not all(value == int(value) for value in found):
        return []
    digits = max(one for one in range(digits + 1) if (found[1] - found[0]) * 10**one <= MOST_NUMBERS)
    steps = range(int(found[0]) * 10**digits, int(found[1]) * 10**digits + 1)
    return [
        f"{step / 10**digits:.{few}f}"
        for step in steps
        for few in range(digits + 1)
        if step % 10 ** (digits - few) == 0
    ]


MOST_NUMBERS = 1000


def _scale(text: str, name: str | None = None) -> list[str]:
    found = scale_of(text, name)
    return numbers(found, digits_of(found, said_of(found, text)))


def _sentence(text: str, found: re.Match[str]) -> str:
    """The sentence or line that something stands in."""
    before, after = text[max(0, found.start() - 200) : found.start()], text[found.end() : found.end() + 200]
    return re.split(r"[.!?]\s|\n", before)[-1] + found[0] + re.split(r"[.!?](?:\s|\Z)|\n", after)[0]


def _is_number(value: str) -> bool:
    return bool(re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?", value))


def _listed(values: list[str]) -> str:
    return " | ".join(values) if len(values) <= 12 else f"{values[0]} … {values[-1]}"


def escaped(text: str) -> str:
    return re.escape(text).replace("\\\n", "\n")


def _any_of(values: list[str]) -> str:
    return "|".join(escaped(one) for one in sorted(values, key=len, reverse=True))


def _closed_by(opening: str, values: list[str], end: str) -> str:
    return f"{escaped(opening)}({_any_of(values)}){escaped(end)}" if values else ""


def _opened(kind: str, what: str, opening: str, verdict: str, begin: str = "", lead: str = "\n") -> Found | None:
    """A form whose verdict begins with `opening`, which stands nowhere before it; the reply with `begin`."""
    if not verdict:
        return None
    longest = re._parser.parse(verdict).getwidth()[1]  # type: ignore[attr-defined]
    written = {"verdict": verdict, "opening": opening, "lead": lead, "begin": begin, "room": len(lead) + 4 * longest}
    if not lead:
        written = {"verdict": verdict, "room": longest}
    return Found(kind, what, text={"reasoning": "before" if lead else "none", **written})


def held(
    kind: str, values: list[str], reasoning: str, own: str = "", *, lead: str = "", never: str | None = None
) -> Found:
    """A form in which the verdict is `own` and one of `values`, behind `lead` where it has to be forced. What is said
    before must not look like it."""
    choice = _any_of(values)
    longest = max(len((own + lead + value).encode()) for value in values)
    fields: dict[str, Any] = {"reasoning": reasoning, "verdict": f"{escaped(own)}({choice})", "room": longest}
    if reasoning == "before":
        verdict = f"{own}({choice})".replace("\n", "\\n")
        fields |= {"verdict": verdict, "lead": lead, "never": never or verdict, "room": longest + 2}
    return Found(kind, " | ".join(values), text=fields)
