"""Where an answer states a value: in a whole JSON object, in the rest of a torn one, on a line of its own, in prose.

Only what stands where a verdict stands may be one. What is quoted in a block (`> `), told of the response ("it ends
with …"), in the middle of a sentence, or inside an unfinished object can only contradict it; what stands in quotation
marks, in thoughts or inside a reason says nothing.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from msgspec import Struct

from critic.asking.thoughts import QUOTED_TEXT, answer_at, later_thoughts

REASON = "(?:Reason|理由|原因)"
"""How judges call the reason, as a pattern."""

_MASK = "\ufffc"
"""Stands for each character of a whole object, whose strings are settled."""

# A key in an object: quoted, behind a brace, a comma or the beginning of a line.
_OBJECT_KEY = r"""(?:[{,]\s*|^[ \t>*#`-]*)["'“”](?P<name>%s)["'“”]\s*%s\s*"""

# One of several keys, in an object without quotation marks or in a list on one line.
_BARE_KEY = r"""[{,;]\s*["'“”*]{0,3}(?P<name>%s)["'“”*]{0,3}\s*%s\s*"""

# A key on a line of its own, behind the marks of lists, headings and quotations.
_LINE_KEY = r"""^[ \t>*#_•·`|(\[-]*(?:\d{1,2}[.)、][ \t]+)?[*_]*["'“*_]{0,3}(?P<name>%s)["'”*_]{0,3}\s*%s\s*[*_]*"""

_QUALIFIER = r"(?:(?:(?:my|the|final|overall)\s+){1,3}|最终|综合|总体)?"
"""What a judge may call its only verdict; of several keys another one may begin so."""

_PROSE_KEY = r"""(?<![A-Za-z])(?P<name>%s)["'”*_]{0,3}\s*%s\s*[*_]*"""

# The mark that ends a reason, the comma, and the quoted key of the value behind it: what follows an unfinished reason
# counts only where it stands between two values of the same object. An escaped mark is part of the reason.
_AFTER_REASON = r"""(?<!\\)(["'”])\s*,\s*["'“](?P<name>%s)["'”]\s*%s\s*"""

_CLOSING = {"“": "”"}

_QUOTED_REASON = re.compile(rf"""["'“]{REASON}["'”]\s*:""", re.IGNORECASE)
_OPEN_REASON = re.compile(rf"(?:^|[.!?;,。{{])[\s*_#>-]*{REASON}[\s*_]*:", re.IGNORECASE | re.MULTILINE)
_REASON_LINE = re.compile(
    r"[\s>*#_-]*(?:Reason|Reasoning|Explanation|Justification|Rationale|Feedback|理由|原因|解释|说明)[\s*_]*:",
    re.IGNORECASE,
)

# What a judge quotes, of one paragraph at most, or of a line where the mark may also be an apostrophe or a fence.
_QUOTATION = re.compile(
    r"""(?<![A-Za-z0-9])"(?:[^"\n]|\n(?!\s*\n))*"(?![A-Za-z0-9])"""
    r"""|(?<![A-Za-z0-9])'(?:[^'\n]|(?<=[A-Za-z])'(?=[A-Za-z]))*'(?![A-Za-z0-9])"""
    r"|“(?:[^“”\n]|\n(?!\s*\n))*”|‘[^‘’\n]*’|「[^「」]*」|『[^『』]*』|`[^`\n]+`"
)

# What may stand before a judge's own statement in its line or sentence.
_LEAD = (
    r"[\s*_#>`{-]*(?:(?:so|therefore|thus|hence|my|the|final|overall|verdict|answer|judge?ment|choice|rating|score|is)\b"
    r"""[\s*_:,]*)*["'“]?"""
)
_LINE_BEGINS = re.compile(rf"^{_LEAD}\Z", re.IGNORECASE | re.MULTILINE)
_SENTENCE_BEGINS = re.compile(rf"(?:^|[.!?。]\s){_LEAD}\Z", re.IGNORECASE | re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?;。！？；](?=\s|$|[^\x00-\x7f])|\n\s*\n")
_WORD = re.compile(r"\w")
_MARKS = re.compile(r"""[.!?:;。]?[\s*_#>"“-]*""")
_LONGEST_LEAD = 80
"""Characters: a search for where a line begins must not go through all of it for each mark in it."""

_FENCE = re.compile(r"^[ \t>]*```\w*[ \t]*$", re.MULTILINE)
_TAG = re.compile(r"```\w*|<[^<>\n]{1,40}>")
_BEFORE_QUOTED = re.compile(
    r"""(?:\s*```\w*\s*|(?:(?<![A-Za-z])(?:rating|score|verdict)|评分|分数|裁决)?:\s*|[ \t>*_`"“'#-])+\Z""",
    re.IGNORECASE,
)

# What leads to words that are not the judge's: whose they are, a verb of saying, and three words at most.
_RETOLD = re.compile(
    r"(?:\b(?:response|answer|reply|assistant|candidate|model|student|material|it|he|she|they|which|that|who)\b"
    r"(?:\s+[\w']+){0,2}?\s+(?:says?|said|saying|claims?|claimed|claiming|contains?|contained|containing|writes?|wrote"
    r"|writing|ends?|ended|ending|asks?|asked|asking|states?|stated|stating|includes?|included|including|inserts?"
    r"|inserted|requests?|requested|demands?|demanded|plants?|planted|reads?|forges?|forged|begins?|began|quotes?)"
    r"(?:\s+[\w']+){0,3}|(?:回答|回复|作答|答案|助手|模型|材料|原文|其|它|他)[^,，。\n]{0,8}?"
    r"(?:说|称|写|含|要求|结尾|给出|植入|提到)[^,，。\n]{0,6})\Z",
    re.IGNORECASE,
)


class Statement(Struct, frozen=True):
    """A value that an answer states, None where it is no value of the form; it begins at `at` in the answer and ends at
    `end`. `stands`: it may be the verdict by itself; another can only contradict one. `own`: it is under one of the
    form's own keys. `whole`: it is in a whole object, whose reason is `reason`."""

    value: float | str | None
    at: int
    end: int
    stands: bool = True
    own: bool = True
    whole: bool = False
    reason: str | None = None


class Sought(Struct, frozen=True):
    """What is looked for in an answer. `own` are the names of the form's key and `names` those of any key that says the
    same, as patterns; `value` is how a value looks behind one (its group `value`); `convert` makes a value of what JSON
    or text has, None of what is none. `papers`: how other benchmarks' judges state it without a key, in a group `value`
    as well, of which `compared` makes a value. `several`: it is one of several keys, which may stand on any line and
    bare in an object. `prose`: a key in a sentence counts where nothing else does."""

    own: str
    names: str
    value: re.Pattern[str]
    convert: Callable[[Any], float | str | None]
    papers: tuple[re.Pattern[str], ...] = ()
    compared: Callable[[Any], float | str | None] | None = None
    several: bool = False
    prose: bool = False
    separator: str = ":"

    def key(self, pattern: str, names: str | None = None) -> re.Pattern[str]:
        return _compiled(pattern, names or self.names, self.separator)

    def is_own(self, name: str) -> bool:
        return re.fullmatch(f"{_QUALIFIER}{self.own}", name.strip(), re.IGNORECASE) is not None


@cache
def _compiled(pattern: str, names: str, separator: str) -> re.Pattern[str]:
    return re.compile(pattern % (names, separator), re.IGNORECASE | re.MULTILINE)


class _Object(Struct, frozen=True):
    """A whole JSON object: under each key, in lower case, every value that stands there; and where it stands."""

    content: dict[str, list[Any]]
    start: int
    end: int


class _Torn(Struct, frozen=True):
    """What is left of an object that is no valid JSON: from its first key to its end. `closed`: no brace is missing."""

    key: re.Match[str]
    end: int
    closed: bool


class AnswerText:
    """A reply behind its thoughts, and what is found in it. `text` is the answer, `start` where it begins in the reply;
    `plain` is as long, with full-width digits and punctuation as their plain forms and whole objects masked."""

    def __init__(self, reply: str) -> None:
        self.start = answer_at(reply)
        self.text = reply[self.start :]
        objects = list(_whole_objects(self.text))
        masked = self.text
        for each in objects:
            masked = masked[: each.start] + _MASK * (each.end - each.start) + masked[each.end :]
        thoughts = list(later_thoughts(masked))
        for start, end in thoughts:
            # A verdict behind them begins a line.
            masked = masked[:start] + "\n" * (end - start) + masked[end:]
        self.objects = [each for each in objects if not any(start <= each.start < end for start, end in thoughts)]
        self.plain = half_width(masked)
        self.quotations = [
            quotation.span()
            for quotation in _QUOTATION.finditer(self.plain)
            # In a line or a sentence of its own it is said, not quoted.
            if not _led(_SENTENCE_BEGINS, self.plain, quotation.start())
        ]

    def statements(self, sought: Sought) -> list[Statement]:
        """What the answer states of what is `sought`; prose only where it has neither an object nor a line of it."""
        torn = list(self._torn(sought))
        structured = [
            *self._in_objects(sought, torn),
            *self._in_torn(sought, torn),
            *self._on_lines(sought, torn),
        ]
        return structured or list(self._in_prose(sought))

    def unfinished_at(self, sought: Sought) -> int | None:
        """Where the value of the last key stands; None where there is no key."""
        keys = [*sought.key(_OBJECT_KEY, sought.own).finditer(self.plain)]
        keys += sought.key(_LINE_KEY, sought.own).finditer(self.plain)
        return max((key.end() for key in keys if not self._is_quoted(key.end() - 1, key.end())), default=None)

    def loose_reason(self, several: bool) -> str | None:
        """The reason of a verdict that is no valid JSON, one of `several` keys or not."""
        patterns = (_BARE_KEY, _LINE_KEY) if several else (_PROSE_KEY,)
        keys = (_compiled(pattern, REASON, ":").search(self.plain) for pattern in patterns)
        key = next((key for key in keys if key is not None), None)
        if key is None:
            return None
        rest = self.text[key.end() :]
        quoted = QUOTED_TEXT.match(rest)
        return (quoted[1] if quoted else rest.strip().strip("\"'“”}`").strip()) or None

    def _in_objects(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        """What whole objects state. One right behind the first thing in the answer, on the same line, is the model
        running on behind a finished verdict (AlignMMBench's script takes the first)."""
        before: _Object | None = None
        for each in self.objects:
            stated = list(_under(each.content, sought))
            if not stated or self._is_inside(each, torn):
                continue
            between = None if before is None else self.plain[before.end : each.start]
            runs_on = between is not None and not between.strip(" \t") and not _WORD.search(self.plain[: each.start])
            before = each
            if runs_on:
                continue
            reasons = [*_under(each.content, Sought(REASON, REASON, sought.value, lambda value: value))]
            reason = next((reason for _, reason in reasons if isinstance(reason, str)), None)
            stands = self._stands(each.start, torn) and not self._in_a_sentence(each.start, each.end)
            for name, value in stated:
                own = sought.is_own(name)
                yield Statement(value, each.start, each.end, stands, own, whole=True, reason=reason)

    def _torn(self, sought: Sought) -> Iterator[_Torn]:
        """What is left of objects that are no valid JSON. One goes on to the next line that begins with a brace."""
        key = sought.key(_OBJECT_KEY, f"{sought.names}|{REASON}")
        begins = [line.start() for line in re.finditer(r"^[^\w\n{]*\{", self.plain, re.MULTILINE)]
        for start, end in zip([0, *begins], [*begins, len(self.plain)], strict=True):
            first = next(
                (
                    each
                    for each in key.finditer(self.plain, start, end)
                    if not self._is_quoted(each.start(), each.end())
                ),
                None,
            )
            if first is not None:
                rest = self.plain[max(start, self.plain.rfind("{", start, first.end())) : end]
                yield _Torn(first, end, rest.count("{") <= rest.count("}"))

    def _in_torn(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        for each in torn:
            key: re.Match[str] | None = each.key
            if re.fullmatch(REASON, each.key["name"], re.IGNORECASE):
                # Only a key between two values counts, and the mark that closes the first is the one that opened it:
                # the reason may quote a verdict that the response tried to forge.
                opening = self.text[each.key.end() : each.key.end() + 1]
                behind = sought.key(_AFTER_REASON).finditer(self.plain, each.key.end(), each.end)
                keys = [key for key in behind if self.text[key.start(1)] == _CLOSING.get(opening, opening)]
                key = keys[-1] if keys else None
            value = None if key is None else sought.value.match(self.plain, key.end())
            # Without a value it is the output format restated, or cut off.
            if key is not None and value is not None:
                stands = self._stands(each.key.start(), torn)
                yield _statement(sought, key["name"], value, stands)

    def _on_lines(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        names = sought.names if sought.several else f"{_QUALIFIER}{sought.names}"
        lines = [*sought.key(_LINE_KEY, names).finditer(self.plain)]
        if sought.several:
            lines += [key for key in sought.key(_BARE_KEY).finditer(self.plain) if self._is_listed(key.start())]
        in_objects = {each.key.end() for each in torn}
        for key in lines:
            value = sought.value.match(self.plain, key.end())
            if value is None or key.end() in in_objects or self._is_quoted(key.start("name"), value.end()):
                continue
            stands = self._stands(key.start("name"), torn) and not self._is_within(key.start(), torn)
            stands = stands and (sought.several or self._opens_or_closes(key.start(), value.end()))
            yield _statement(sought, key["name"], value, stands)
        stated = [value for form in sought.papers for value in self._own_words(form)]
        led = [_led(_LINE_BEGINS, self.plain, _words_at(self.plain, value)) for value in stated]
        if any(led):
            for value, begins_line in zip(stated, led, strict=True):
                stands = begins_line and self._stands(value.start(), torn)
                yield _statement(sought, None, value, stands)

    def _in_prose(self, sought: Sought) -> Iterator[Statement]:
        keys = [sought.key(_PROSE_KEY)] if sought.prose else []
        for form in (*keys, *sought.papers):
            for key in self._own_words(form):
                keyed = "name" in form.groupindex
                value = sought.value.match(self.plain, key.end()) if keyed else key
                if value is None:
                    continue
                stands = self._stands(key.start(), []) and (
                    not keyed or self._opens_or_closes(key.start(), value.end())
                )
                yield _statement(sought, key["name"] if keyed else None, value, stands)

    def _own_words(self, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Where a judge says what a `form` looks for, and does not quote what the response claims: not within quotation
        marks, nor in a reason, behind whose key a statement begins its own line or is the last sentence, and none at
        all counts in an object."""
        if _QUOTED_REASON.search(self.plain):  # unfinished
            return
        reason = _OPEN_REASON.search(self.plain)
        for match in form.finditer(self.plain):
            at = _words_at(self.plain, match)
            begins = _LINE_BEGINS if _WORD.search(self.plain, match.end()) else _SENTENCE_BEGINS
            argued = reason is not None and at >= reason.end() and not _led(begins, self.plain, at)
            if not argued and not self._is_quoted(at, match.end()):
                yield match

    def _stands(self, at: int, torn: list[_Torn]) -> bool:
        """Whether what begins at a place may be a verdict: neither a line of a quoted block, nor told of the response,
        nor behind an object that was not finished."""
        line = self.plain[self.plain.rfind("\n", 0, at) + 1 : at]
        lead = _BEFORE_QUOTED.sub("", self.plain[max(0, at - 200) : at])
        unfinished = any(each.end <= at and not each.closed for each in torn)
        return not line.lstrip().startswith(">") and not _RETOLD.search(lead) and not unfinished

    def _is_inside(self, each: _Object, torn: list[_Torn]) -> bool:
        """Whether an object is quoted in a reason: in the middle of its line behind the reason's key."""
        line = self.plain[self.plain.rfind("\n", 0, each.start) + 1 : each.start]
        reason = _OPEN_REASON.search(self.plain, 0, each.start)
        argued = self._is_within(each.start, torn) or reason is not None
        return argued and bool(_WORD.search(line)) and not _led(_SENTENCE_BEGINS, self.plain, each.start)

    def _is_within(self, at: int, torn: list[_Torn]) -> bool:
        return any(each.key.end() <= at < each.end for each in torn)

    def _in_a_sentence(self, start: int, end: int) -> bool:
        """Whether words stand before and behind on the same line."""
        before = self.plain[self.plain.rfind("\n", 0, start) + 1 : start]
        behind = self.plain[end:].partition("\n")[0]
        return all(_WORD.search(_TAG.sub("", words)) for words in (before, behind))

    def _is_quoted(self, at: int, end: int) -> bool:
        return any(first <= at and end <= last for first, last in self.quotations)

    def _is_listed(self, at: int) -> bool:
        """Whether a bare key is in an object or in a list on one line, not behind a comma in a sentence."""
        line = self.plain[self.plain.rfind("\n", 0, at) + 1 : at + 1]
        return "{" in line or re.match(r"[ \t>*#-]*[\w*]+(?: \w+)?\s*[:.)]", line) is not None

    def _opens_or_closes(self, start: int, end: int) -> bool:
        """Whether a statement is the first or the last thing in the answer, but for a line that leads to it, or stands
        beside the reason."""
        before, behind = _FENCE.sub("", self.plain[:start]).rstrip(), _FENCE.sub("", self.plain[end:])
        sentence = _SENTENCE_END.search(behind)
        opens = not _WORD.search(before) or ("\n" not in before.strip() and before.endswith(":"))
        first_sentence = not _SENTENCE_END.search(before.strip()) and "\n" not in before.strip()
        closes = sentence is None or not _WORD.search(behind, sentence.end())
        lines = [before.rpartition("\n")[2], behind.partition("\n")[2].lstrip()]
        return opens or first_sentence or closes or any(_REASON_LINE.match(line) for line in lines)


def _statement(sought: Sought, name: str | None, value: re.Match[str], stands: bool) -> Statement:
    convert = sought.convert if name is not None or sought.compared is None else sought.compared
    own = name is not None and sought.is_own(name)
    return Statement(convert(value["value"]), value.start("value"), value.end(), stands, own)


def _words_at(plain: str, match: re.Match[str]) -> int:
    """Where the words of a match begin, behind the marks of the sentence before."""
    marks = _MARKS.match(plain, match.start())
    return marks.end() if marks else match.start()


def _led(begins: re.Pattern[str], plain: str, at: int) -> bool:
    """Whether nothing but what may lead to a statement stands before a place, behind where its line or sentence
    `begins`."""
    return begins.search(plain, max(0, at - _LONGEST_LEAD), at) is not None


def _whole_objects(text: str) -> Iterator[_Object]:
    """The outermost JSON objects in a text."""

    def every_value(pairs: list[tuple[str, Any]]) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {}
        for name, value in pairs:
            values.setdefault(name.strip().lower(), []).append(value)
        return values

    decoder = json.JSONDecoder(strict=False, object_pairs_hook=every_value)
    at = text.find("{")
    while at >= 0:
        try:
            content, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield _Object(content, at, end)
        at = text.find("{", end)


def _under(content: Any, sought: Sought) -> Iterator[tuple[str, Any]]:
    """The names of keys that are sought and the converted values under them, of the outermost objects that have one."""
    if isinstance(content, list):
        for item in content:
            yield from _under(item, sought)
    if not isinstance(content, dict):
        return
    keyed = [name for name in content if re.fullmatch(sought.names, name, re.IGNORECASE)]
    for name in keyed:
        for value in content[name]:
            yield name, sought.convert(value)
    if not keyed:
        for values in content.values():
            yield from _under(values, sought)


def half_width(text: str) -> str:
    """Full-width digits and punctuation as their plain forms, one character for one, so that positions stay
    comparable."""
    if text.isascii():
        return text
    wide = (unicodedata.normalize("NFKC", char) for char in text)
    return "".join(plain if len(plain) == 1 else char for char, plain in zip(text, wide, strict=True))
