"""Which parts of a request tell what is asked, and which are the data under judgment: these decide neither the form nor
the scale of their own verdict. Everything here is pure.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

JUDGING = re.compile(
    r"(?i)\b(evaluat\w*|grad(?:e|es|er|ing)\b(?! \d)|judg\w+|rat(?:e|es|ing|ings|er)\b(?! of \d)|"
    r"scor(?:e|es|ing|er)\b|assess\w*|rubric|"
    r"criteri(?:on|a)|verdict|critique|ground[ -]truth|gold|reference answer|submission|hallucinat\w*|faithful\w*|"
    r"classif(?:y|ies|ier)\b|"
    r"match an answer|(?:two|both) (?:assistants|responses|answers)|determine (?:if|whether))"
)

WHOSE = (
    r"(?:the )?(?:(?:model|assistant|student|user|ai|candidate|predicted|generated|given|current|standard|reference|"
    r"correct|expected)(?: [a-z0-9])?(?:['’]s)? ){0,2}"
)
DATA = re.compile(
    rf"(?im)^[^\w\n]{{0,8}}(?:(?:the )?(?:begin|start)[ _](?:of[ _](?:the[ _])?)?)?{WHOSE}"
    r"(?:data|answer|response|reply|submission|output|completion|text|summary|translation|passage|context|document|"
    r"article|question|query|(?:instruction|prompt)(?!s)|input|conversation|dialogue|source|essay|assistant)s?"
    r"(?:[ _][a-z0-9])?(?:[^\w\n]{0,3}:|\|?[\]>]|\*\*\n)|"
    rf"^#{{1,6}} {WHOSE}(?:answer|response|question|query)(?: [a-z0-9])? *\n"
)
"""What opens the data of a request, at the beginning of a line."""

COUNTS = re.compile(
    r"(?i)[^\w\n]{0,8}(?:the |your )?(?:\w{1,20} ){0,2}"
    r"(?:rubrics?|criteri(?:a|on)|scales?|instructions|tasks?|guidelines?)\b[^.:\n]{0,40}(?::|\Z)"
)
"""A heading of what counts for the verdict."""

SCORE = r"(?:overall |final )?(?:score|rating|grade)"
POLITELY = (
    r"(?i)\W*(?:(?:based on|given|considering|according to|using|on|with|after|for|in)\b[^.,\n]{0,80}, )?"
    r"(?:(?:now|then|please|finally|first|remember(?: that)?|note that|(?:can|could|would|will) you|"
    r"(?:i|we)(?: would|['’]d)? (?:want|like|need) you to|(?:the|your) (?:task|job|goal) is to|"
    r"you(?: (?:must|should|will|can|may|have to|need to|are (?:asked )?to))?)\W+)*"
)
IMPERATIVE = re.compile(
    rf"{POLITELY}"
    r"(?:(?:rate|score(?= (?:the|it|each|this|from|how|on|between)\b)|grade|evaluate|assess|judge|give|assign|provide|"
    r"return|(?:output|answer)(?= [\w\"'`\[(<{*])(?! \w\W{0,3}[:\]])|respond|reply|use|produce|print|write|generate|"
    r"on a scale|how would you|"
    rf"(?:what|which) (?:(?:is|should be|would be) (?:the|your) )?{SCORE}|(?:valid|possible|allowed) {SCORE}s|"
    rf"(?:make sure|ensure)(?: that)? (?:the|your) {SCORE}|(?:scores?|ratings?|grades?) (?:go|ranges?|must|should|are)|"
    rf"(?:the|your) (?:{SCORE}|(?:{SCORE} |scoring )?scale) "
    r"(?:must|should|ranges?|goes|can|may|will|has to|is (?:an?|from|between|on))|"
    r"(?:the|this|it|each)(?: \w{1,20}){0,2} (?:must|should|has to|is to) be (?:scored|rated|graded)|"
    rf"output: (?:an? |the )?(?:\w{{1,20}} )?{SCORE})\b|"
    rf"(?:your )?{SCORE}(?: ?: ?(?:an? )?(?:whole |single )?(?:integer|number|float)\b| ?\([0-9]|"
    r" (?:from|between) [0-9]))"
)
"""How a sentence begins that asks for something, and does not only tell it."""

ORDER = re.compile(
    rf"{POLITELY}(?:only|just|simply|directly|strictly|always|do not|don['’]t|reason|think|explain|describe|analy[sz]e|"
    r"end|finish|conclude|begin|start|determine|decide|compare|check|verify|classify|put|place|select|choose|pick|say|"
    r"state|compute|follow|format|include|ensure|make sure|let['’]s|as an?|"
    r"(?:the|your|this|its) (?:\w{1,20} ){0,2}(?:answer|response|reply|output|verdict|judge?ment|decision|evaluation|"
    r"assessment|format|line) (?:must|should|has to|can only|is to|needs to|is (?:one of|either))|"
    r"you(?:['’]re| are)|your (?:task|job|goal|role)|for each|"
    r"(?:which|whose|is|are|does|do|how (?:good|well|much))\b[^?.\n]{0,80}\b"
    r"(?:answers?|responses?|submissions?|assistants?|claims?|statements?))\b"
)
"""How else a sentence begins that asks for a form."""

SHAPE = re.compile(
    r"(?i)[^\w\n]{0,8}(?:\w{1,20} ){0,3}(?:format|form|template|structure|schema)\b[^.:\n]{0,40}(?::|\Z)"
)
"""A heading of the form of a reply."""

CLOSES = re.compile(
    r"(?im)^[^\w\n]{0,6}(?:[<\[]/[\w -]{1,40}|(?:the )?end(?:[ _]of[ _][ \w'’]{1,40}|[ _]\w{1,20})?)[^\w\n]{1,6}$"
)
"""A line that ends a piece of data."""

TEMPLATE = re.compile(
    r"(?im)^[^\n]*\b(?:format|fields|template|structure)\b[^\n.]{0,60}\n+"
    r"(?:[^\w\n]{0,6}[A-Za-z][\w ]{0,30}(?:\]|\*\*)?:[^\n]*(?:\n|\Z)){2,8}"
)
"""A form that is laid out in lines: a name there opens no data."""

SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)[.!?]\s|\n")


def told(text: str) -> tuple[str, str]:
    """What a text says before its data, and of what stands behind it the sentences that ask for something and those
    below a heading of what counts."""
    opens = DATA.search(text)
    if opens is None:
        return text, ""
    kept, tells = [], False
    for one in SENTENCE_END.split(text[opens.start() :]):
        tells = bool(COUNTS.match(one)) or (tells and not DATA.match(one))
        if tells or IMPERATIVE.match(one):
            kept.append(one)
    return text[: opens.start()], "\n".join(kept)


def without_data(text: str, objects: Iterable[tuple[int, int]]) -> str:
    """The text without its data, but for line ends and the names that open each piece, up to where something is asked
    again. What stands between two pieces asks only if it speaks of judging: it may be the first one's. A name within
    `objects` (spans of the text) or a template opens nothing. A text that begins with such a name, or
    whose first one is of an instruction, and speaks of judging nowhere else is left as it is."""
    spans = sorted([*objects, *(found.span() for found in TEMPLATE.finditer(text))])
    starts, ends = [start for start, _ in spans], [0, *accumulate((end for _, end in spans), max)]
    filled = len(text.rstrip())
    opens = [
        found
        for found in DATA.finditer(text)
        if found.end() < filled
        and found.start() >= ends[bisect_left(starts, found.start())]
        and not IMPERATIVE.match(text, found.start())
    ]
    if not opens:
        return text
    parts, at = [], 0
    for one, following in zip(opens, [*(found.start() for found in opens[1:]), len(text)], strict=True):
        if one.start() >= at:
            end = _end_of(text, one, following)
            parts += [text[at : one.end()], "\n" * text.count("\n", one.end(), end)]
            at = end
    left = "".join(parts) + text[at:]
    alone = not text[: opens[0].start()].strip() or re.search("(?i)instruction|prompt", opens[0][0])
    return text if alone and not JUDGING.search(left) else left


def _end_of(text: str, opened: re.Match[str], following: int) -> int:
    """Where the piece of data ends that `opened` opens, at the latest where the `following` one does."""
    tag = re.fullmatch(r"[^\w\n]*<([A-Za-z]\w*)>", opened[0])
    if tag and (end := text.find(f"</{tag[1]}>", opened.end())) >= 0:
        return end
    if re.match(r"[^\w\n]*[<\[]/", opened[0]):
        return opened.end()
    if closing := CLOSES.search(text, opened.end(), following):
        return closing.start()
    first = re.compile(r"\s*[^\n]*\n?").match(text, opened.end(), following)
    assert first is not None
    at, judging = first.end(), len(text)
    if following < len(text):
        judging = max((one.start() for one in JUDGING.finditer(text, at, following)), default=-1)
    while at < following and at <= judging:
        found = SENTENCE_END.search(text, at, following)
        end = found.end() if found else following
        if any(one.match(text[at:end].rstrip()) for one in (COUNTS, SHAPE, IMPERATIVE, ORDER)):
            return at
        at = end
    return following
