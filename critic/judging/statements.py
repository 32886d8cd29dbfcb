"""Find statements of a value in a judge's answer: in a JSON object, in a broken one, on a line, or in prose.

A statement may be the verdict only if it is where a judge puts a verdict. Some statements are never the verdict but can
contradict it: those in a quoted block (`> `), attributed to the response ("it ends with …"), within material
(material.py), in the middle of a sentence, or after an unfinished object. The same holds for sentences that mention a
value without calling it a verdict. Text in quotation marks, thoughts and reasons states nothing.
"""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from critic.judging.material import MATERIAL, RETOLD, TELLER, Values, find_material, is_material, mentions
from critic.judging.patterns import any_of, expand, pattern
from critic.judging.thoughts import QUOTED_REASON, QUOTED_TEXT, REASON, answer_at, later_thoughts

_MASK = "\ufffc"
"""Character that replaces each character of a complete JSON object, whose values are read separately."""

_QUALIFIER = r"(?:(?:(?:my|your|the|final|overall|updated|revised|corrected|actual)\s+){1,3}|最终|综合|总体)?"
"""Pattern of words before the name of a single verdict. Not used with several keys, whose names may begin with them."""

_FLAGS = re.IGNORECASE | re.MULTILINE
"""Flags of the patterns of keys."""

_CLOSING = {"“": "”"}

_OPEN_REASON = re.compile(rf"(?:^|[.!?;,。{{]\s*+)[ \t*_#>-]*+{REASON}[\s*_]*:", re.IGNORECASE | re.MULTILINE)
_REASON_LINE = re.compile(rf"[\s>*#_-]*{any_of('reason')}[\s*_]*:", re.IGNORECASE)
_REASON_FOLLOWS = re.compile(rf"""[\s"'”’*_`,;.)\]}}>#-]*{any_of("reason")}["'”’*_]*\s*:""", re.IGNORECASE)

_QUOTATION = pattern("quotation")
"""Pattern of a text in quotation marks."""

_LINE_BEGINS = re.compile(rf"^{expand('led')}\Z", _FLAGS)
_SENTENCE_BEGINS = re.compile(rf"(?:^|[.!?]\s|[。!?]){expand('led')}\Z", _FLAGS)
_CLAUSE_BEGINS = re.compile(rf"(?:^|[.!?:;,。)\]}}>〉》】{_MASK}]\s*){expand('led')}\Z", _FLAGS)
_SENTENCE_END = re.compile(r"[.!?;。！？；](?=\s|$|[^\x00-\x7f])|\n\s*\n")
_WORD = re.compile(r"\w")
_MARKS = re.compile(r"""[.!?:;。]?[\s*_#>"“-]*""")
_LONGEST_LEAD = 80
"""Number of characters before a position that are searched for the beginning of its line. It limits the time."""

_SHOWN = pattern("shown", re.DOTALL | re.IGNORECASE)
"""Pattern of material within marks, such as `<response>…</response>` or triple quotes."""

_FENCE = re.compile(r"^[ \t>]*```\w*[ \t]*$", re.MULTILINE)
_BEFORE = pattern("before", re.IGNORECASE)
_POSSESSOR = re.compile(r"(?:the\s+(?:response|reply|answer)'s|(?:该|此|这份|本)?(?:作答|回答)的?)\s*\Z", re.IGNORECASE)

_OPEN_END = pattern("open_end", re.IGNORECASE)
_LIST_BEGINS = pattern("list_begins", _FLAGS)
_GOES_ON = re.compile(r"^(?![ \t]*(?:[-*•+|>#]|\d{1,2}[.)、]))[^:\n]*\w\Z", re.MULTILINE)
_TAKEN_BACK = pattern("taken_back_behind", re.IGNORECASE)

_MOST_TORN = 50
"""The most braces without valid JSON that are tried as the start of an object. Each failed attempt takes time."""

_MOST_WEIGHED = 50
"""The most statements of one value that are considered as the verdict. Further ones can only contradict it."""

_LINE_ENDS = re.compile(r"""[\s.!。"'”*_`)\]}]*?$""", re.MULTILINE)
_OBJECT_ENDS = re.compile(r"\}[ \t`]*\n|\n[ \t]*\n")


class Statement(Struct, frozen=True):
    """A value that an answer states.

    - `value`: None if the stated text is no possible value of the verdict.
    - `at`, `end`: start and end of the statement in `AnswerText.plain`.
    - `stands`: True if the statement may be the verdict, False if it can only contradict one.
    - `told`: True if the surrounding words attribute it to somebody else, such as the response.
    - `whole`: True if it is in a complete JSON object.
    - `reason`: the reason in that object, or None.
    """

    value: float | str | None
    at: int
    end: int
    stands: bool = True
    told: bool = False
    whole: bool = False
    reason: str | None = None


class Sought(Struct, frozen=True):
    """A description of a value to look for in an answer.

    - `names`: pattern of the value's keys.
    - `value`: pattern of the text after a key, with the value in the group `value`.
    - `convert`: function from that text, or from a decoded JSON value, to the value; None if it is no possible value.
    - `papers`: patterns of notations without a key, by which judges of other benchmarks state the value.
    - `compared`: function from the text that `papers` match to the value; by default `convert`.
    - `several`: True if the verdict has several keys, one of which is the value's.
    - `prose`: True if a key within a sentence counts when there is no other statement.
    - `mentioned`: function that finds the values in a sentence that mentions a verdict (material.mentions), or None.
    - `separator`: pattern of the text between key and value.
    """

    names: str
    value: re.Pattern[str]
    convert: Callable[[Any], float | str | None]
    papers: tuple[re.Pattern[str], ...] = ()
    compared: Callable[[Any], float | str | None] | None = None
    several: bool = False
    prose: bool = False
    mentioned: Values | None = None
    separator: str = r"(?:(?:为|是)?[:=|]|[-–—](?=\s)|is\b|为|是)"

    def key(self, kind: str, names: str | None = None) -> re.Pattern[str]:
        """Return the pattern of a key in one notation.

        `kind`: the notation, an expression of patterns.toml such as "line_key". `names`: pattern of the keys; by
        default those of the value.
        """
        return pattern(kind, _FLAGS, names=names or self.names, separator=self.separator)

    @property
    def key_names(self) -> str:
        return self.names if self.several else f"{_QUALIFIER}{self.names}"


class _Object(Struct, frozen=True):
    """A complete JSON object from `start` to `end` of an answer. `content`: key in lower case -> all of its values."""

    content: dict[str, list[Any]]
    start: int
    end: int


class _Torn(Struct, frozen=True):
    """A broken JSON object, from its first key (`key`) to `end`. `closed`: True if no closing brace is missing."""

    key: re.Match[str]
    end: int
    closed: bool


class AnswerText:
    """A judge's answer, prepared for finding the statements in it.

    - `reply`: the whole reply.
    - `text`: the answer, without the thoughts before it. `start`: where it begins in the reply.
    - `plain`: the answer with half-width digits and punctuation, in which complete JSON objects, later thoughts and
      material within marks are masked. Positions are the same as in `text`.
    - `objects`: the complete JSON objects outside thoughts and material.
    """

    def __init__(self, reply: str) -> None:
        self.reply, self.start = reply, answer_at(reply)
        self.text = reply[self.start :]
        objects = list(_read_objects(self.text))
        masked = _replace_spans(self.text, [(obj.start, obj.end) for obj in objects], _MASK)
        shown = [element.span() for element in _SHOWN.finditer(masked)]
        masked = _replace_spans(masked, shown, "\n")
        thoughts = list(later_thoughts(masked))
        # Masked as line ends, so that a verdict after them begins a line.
        masked = _replace_spans(masked, thoughts, "\n")
        unsaid = [*shown, *thoughts]
        self.objects = [obj for obj in objects if not any(start <= obj.start < end for start, end in unsaid)]
        self.plain = half_width(masked)
        unfenced = _FENCE.sub(lambda fence: " " * len(fence[0]), self.plain)
        words = [word.start() for word in _WORD.finditer(unfenced)]
        self._first_word, self._last_word = (words[0], words[-1]) if words else (len(unfenced), -1)
        sentences = [mark.start() for mark in _SENTENCE_END.finditer(unfenced) if mark.end() <= self._last_word]
        self._last_sentence = sentences[-1] if sentences else -1
        self._unfinished = QUOTED_REASON.search(self.plain) is not None
        self._reason = _OPEN_REASON.search(self.plain)
        self._quotations = [quotation.span() for quotation in _QUOTATION.finditer(self.plain)]
        self._shown = [*find_material(self.plain)]
        self._weighed = 0  # number of statements checked by _may_stand
        self._told = set[int]()  # ends of statements attributed to somebody else

    def statements(self, sought: Sought) -> list[Statement]:
        """Return the statements of the value that `sought` describes.

        A statement in prose may be the verdict only if no object and no line of its own states the value.
        """
        self._weighed = 0
        self._told.clear()
        return [replace(statement, told=statement.end in self._told) for statement in self._find_statements(sought)]

    def _find_statements(self, sought: Sought) -> list[Statement]:
        torn = list(self._find_torn(sought))
        mentioned = list(self._read_mentions(sought, torn))
        structured = [*self._read_whole(sought, torn), *self._read_torn(sought, torn), *self._read_lines(sought, torn)]
        if not structured:
            return mentioned if self._unfinished else [*self._read_prose(sought, sought.prose), *mentioned]
        # A statement in prose at the end of its line can only contradict the structured ones.
        prose = [] if sought.several else self._read_prose(sought, True)
        ends = (statement for statement in prose if statement.stands and _LINE_ENDS.match(self.plain, statement.end))
        doubts = (statement for statement in ends if not self._is_within(statement.at, torn))
        return structured + mentioned + [replace(statement, stands=False) for statement in doubts]

    def _read_mentions(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        """Yield a statement for each sentence that mentions a value of the verdict (material.mentions).

        If the sentence does not call the value a verdict, the statement can only contradict one (`stands` is False).
        `torn`: the broken JSON objects of the answer; sentences inside them are skipped.
        """
        for value, at, end, states in mentions(self.plain, sought.mentioned):
            argued = self._reason is not None and self._reason.end() <= at and not _is_led(_LINE_BEGINS, self.plain, at)
            if argued or self._is_quoted(at, end) or self._is_within(at, torn):
                continue
            stands = states and self._may_stand(at, end, torn, False) and self._is_first_or_last(at, end)
            yield Statement(value, at, end, stands)

    def _find_keys(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield the matches of a key pattern. The search for the next match starts at the end of a key's name."""
        at = 0
        while key := pattern.search(self.plain, at):
            yield key
            at = key.end("name")

    def unfinished_at(self, sought: Sought) -> int | None:
        """Return the position after the last key of `sought`, where a value should follow, or None without a key."""
        keys = [*sought.key("object_key").finditer(self.plain)]
        keys += sought.key("line_key").finditer(self.plain)
        return max((key.end() for key in keys if not self._is_quoted(key.end() - 1, key.end())), default=None)

    def loose_reason(self, several: bool) -> str | None:
        """Return the reason of a verdict that is not in valid JSON, or None if it has none. `several`: as in Sought."""
        kinds = ("bare_key", "line_key") if several else ("prose_key",)
        keys = (pattern(kind, _FLAGS, names=REASON, separator=":").search(self.plain) for kind in kinds)
        key = next((key for key in keys if key is not None), None)
        if key is None:
            return None
        rest = self.text[key.end() :]
        quoted = QUOTED_TEXT.match(rest)
        return (quoted[1] if quoted else rest.strip().strip("\"'“”}`").strip()) or None

    def _read_whole(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        """Yield the statements in complete JSON objects. `torn`: the broken JSON objects of the answer.

        If the answer begins with several objects on one line, only the first one counts: the model wrote on after a
        finished verdict (AlignMMBench's script takes the first as well).
        """
        before: _Object | None = None
        for obj in self.objects:
            stated = list(_read_values(obj.content, sought))
            if not stated or self._is_inside(obj, torn):
                continue
            between = None if before is None else self.plain[before.end : obj.start]
            runs_on = between is not None and not between.strip(" \t") and self._first_word >= obj.start
            before = obj
            if runs_on:
                continue
            reasons = [*_read_values(obj.content, Sought(REASON, sought.value, lambda value: value))]
            reason = next((reason for reason in reasons if isinstance(reason, str)), None)
            stands = self._may_stand(obj.start, obj.end, torn, False)
            if self._is_quoted(obj.start, obj.end):
                stands = False
                self._told.add(obj.end)
            for value in stated:
                yield Statement(value, obj.start, obj.end, stands, whole=True, reason=reason)

    def _find_torn(self, sought: Sought) -> Iterator[_Torn]:
        """Yield the broken JSON objects that have a key of `sought` or a reason.

        Each ends before the next line that begins with a brace.
        """
        key = sought.key("object_key", f"{sought.key_names}|{REASON}")
        begins = [line.start() for line in re.finditer(r"^[^\w\n{]*\{", self.plain, re.MULTILINE)]
        for start, end in zip([0, *begins], [*begins, len(self.plain)], strict=True):
            keys = key.finditer(self.plain, start, end)
            first = next((match for match in keys if not self._is_quoted(match.start(), match.end())), None)
            if first is not None:
                rest = self.plain[max(start, self.plain.rfind("{", start, first.end())) : end]
                yield _Torn(first, end, rest.count("{") <= rest.count("}"))

    def _read_torn(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        for fragment in torn:
            key: re.Match[str] | None = fragment.key
            if re.fullmatch(REASON, fragment.key["name"], re.IGNORECASE):
                # Only a key after the end of the reason counts, and the reason ends with the quotation mark that opened
                # it: the reason itself may quote a verdict that the response tried to forge.
                opening = self.text[fragment.key.end() : fragment.key.end() + 1]
                behind = sought.key("after_reason").finditer(self.plain, fragment.key.end(), fragment.end)
                keys = [key for key in behind if self.text[key.start(1)] == _CLOSING.get(opening, opening)]
                key = keys[-1] if keys else None
            value = None if key is None else sought.value.match(self.plain, key.end())
            # A key without a value repeats the output format, or was cut off.
            if key is not None and value is not None:
                stands = self._may_stand(fragment.key.start(), value.end(), torn, sought.several)
                yield _build_statement(sought.convert, value, stands)

    def _read_lines(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        lines = list(self._find_keys(sought.key("line_key", sought.key_names)))
        if sought.several:
            lines += [key for key in sought.key("bare_key").finditer(self.plain) if self._is_listed(key.start())]
        in_objects = {fragment.key.end() for fragment in torn}
        for key in lines:
            value = sought.value.match(self.plain, key.end())
            if value is None or key.end() in in_objects or self._is_quoted(key.start("name"), value.end()):
                continue
            stands = self._may_stand(key.start("name"), value.end(), torn, sought.several)
            stands = stands and not self._is_within(key.start(), torn)
            stands = stands and (sought.several or self._is_first_or_last(key.start(), value.end()))
            yield _build_statement(sought.convert, value, stands)

    def _read_prose(self, sought: Sought, keyed: bool) -> Iterator[Statement]:
        """Yield the statements within sentences: in the notations of other benchmarks' judges, or by a key.

        Text in quotation marks or in a reason is skipped, since it may repeat the response. After the key of a reason,
        only a statement that begins a line, or the last one that begins a sentence, counts.

        `keyed`: a key with its value counts, not only the other notations (`Sought.papers`).
        """
        reason = self._reason
        for form in [*([sought.key("prose_key")] if keyed else []), *sought.papers]:
            has_key = "name" in form.groupindex
            convert = sought.convert if has_key else sought.compared or sought.convert
            for match in form.finditer(self.plain):
                marks = _MARKS.match(self.plain, match.start())  # of the sentence before
                at = marks.end() if marks else match.start()
                value = sought.value.match(self.plain, match.end()) if has_key else match
                if value is None or self._is_quoted(at, match.end()):
                    continue
                begins = _LINE_BEGINS if value.end() <= self._last_word else _SENTENCE_BEGINS
                if reason is not None and at >= reason.end() and not _is_led(begins, self.plain, at):
                    continue
                stands = self._may_stand(at, value.end(), [], False)
                if has_key and stands:
                    owner = _POSSESSOR.search(self.plain, max(0, match.start() - 40), match.start())
                    led = _is_led(_CLAUSE_BEGINS, self.plain, owner.start() if owner else match.start())
                    stands = led and self._is_first_or_last(match.start(), value.end())
                yield _build_statement(convert, value, stands)

    def _may_stand(self, start: int, end: int, torn: list[_Torn], several: bool) -> bool:
        """Return True if the statement from `start` to `end` may be the verdict.

        It may not if it is in a quoted block, within material or after words that attribute it to somebody else, after
        an unfinished JSON object (in `torn`), or if the judge takes it back.

        `several`: the verdict has several keys. Words before the first key of a paragraph then apply to all of them.
        """
        self._weighed += 1
        if self._weighed > _MOST_WEIGHED:
            return False
        gap = self.plain.rfind("\n\n", 0, start)
        paragraph = self.plain[gap + 2 if gap >= 0 else 0 : end]
        block = any(line.lstrip().startswith(">") for line in paragraph.splitlines())
        unfinished = any(fragment.end <= start and not fragment.closed for fragment in torn)
        place = bisect_right(self._shown, start, key=lambda span: span[0]) - 1
        told = (place >= 0 and start < self._shown[place][1]) or self._is_retold(start)
        if several and not told:
            # Words that introduce the first line of a list introduce all of its lines.
            head = _LIST_BEGINS.split(paragraph[: start - end], maxsplit=1)[0]
            told = self._is_retold(end - len(paragraph)) or bool(TELLER.search(head) and RETOLD.search(head))
            told = told or (head.endswith("\n") and self._is_retold(end - len(paragraph) + len(head)))
        if told or _TAKEN_BACK.match(self.plain, end, end + 120):
            self._told.add(end)
            return False
        return not unfinished and not block

    def _is_retold(self, at: int) -> bool:
        """Return True if the words before position `at` attribute the text that follows to somebody else.

        The words are on the same line, or on the line above if that line goes on, as with a colon at its end.
        """
        lead = _POSSESSOR.sub("", self.plain[max(0, at - 200) : at])
        words = _BEFORE.sub("", lead)
        between = lead[len(words) :]
        # The line above goes on if it neither ends a sentence nor belongs to a list.
        goes_on = "\n\n" not in between and _GOES_ON.search(words)
        if "\n" in between and not re.search("[:,]", between) and not goes_on and not _OPEN_END.search(words):
            return False
        return is_material(words)

    def _is_inside(self, obj: _Object, torn: list[_Torn]) -> bool:
        """Return True if a JSON object is part of a reason.

        It is if it comes after the reason's key and does not begin a line or a sentence.
        """
        argued = self._is_within(obj.start, torn) or (self._reason is not None and self._reason.end() <= obj.start)
        if not argued or _is_led(_SENTENCE_BEGINS, self.plain, obj.start):
            return False
        return _WORD.search(self.plain, self.plain.rfind("\n", 0, obj.start) + 1, obj.start) is not None

    def _is_within(self, at: int, torn: list[_Torn]) -> bool:
        """Return True if position `at` is within a broken object of `torn`.

        A blank line, or a closing brace at the end of a line, ends the object.
        """
        return any(
            fragment.key.end() <= at < fragment.end and not _OBJECT_ENDS.search(self.plain, fragment.key.end(), at)
            for fragment in torn
        )

    def _is_quoted(self, at: int, end: int) -> bool:
        """Return True if the text from `at` to `end` is within quotation marks, and so not the judge's own statement.

        If the quotation begins with this text and is at the start of a line or sentence, it counts as the judge's own.
        """
        behind = bisect_right(self._quotations, (at, len(self.plain)))
        first, last = self._quotations[behind - 1] if behind else (0, 0)
        if end > last:
            return False
        return not _is_led(_SENTENCE_BEGINS, self.plain, first) or _WORD.search(self.plain, first, at) is not None

    def _is_listed(self, at: int) -> bool:
        """Return True if the key at position `at`, without quotation marks, is in an object or a list on one line.

        Other keys are part of a sentence.
        """
        line = self.plain[self.plain.rfind("\n", 0, at) + 1 : at + 1]
        return "{" in line or re.match(r"[ \t>*#-]*[\w*]+(?: \w+)?\s*[:.)]", line) is not None

    def opens_with(self, at: int) -> bool:
        """Return True if position `at` is in the first sentence and the first line of the answer."""
        before = self.plain[self._first_word : max(at, self._first_word)]
        return "\n" not in before and _SENTENCE_END.search(before) is None

    def is_settled(self, at: int, end: int, several: bool) -> bool:
        """Return True if the statement from `at` to `end` of a truncated answer is certainly its verdict.

        That is so if the statement opens the answer, or if nothing but a reason follows it. With `several` keys, other
        values may follow in the same paragraph.
        """
        rest = self.plain[end:]
        later = re.search(r"\n\s*\n.*\w", rest, re.DOTALL) if several else _WORD.search(rest)
        return self.opens_with(at) or later is None or _REASON_FOLLOWS.match(rest) is not None

    def _is_first_or_last(self, start: int, end: int) -> bool:
        """Return True if the statement from `start` to `end` opens or closes the answer, or is next to the reason.

        An introduction that ends with a colon may come before a statement that opens the answer.
        """
        before = self.plain[self._first_word : start].rstrip(" \t\r\n`*_#>-")
        led = "\n" not in before and (before.endswith(":") or not _SENTENCE_END.search(before))
        lines = [before.rpartition("\n")[2], self.plain[end : end + 200].partition("\n")[2].lstrip()]
        return led or end > self._last_sentence or any(_REASON_LINE.match(line) for line in lines)


def _build_statement(convert: Callable[[Any], float | str | None], value: re.Match[str], stands: bool) -> Statement:
    return Statement(convert(value["value"]), value.start("value"), value.end(), stands)


def _replace_spans(text: str, spans: list[tuple[int, int]], char: str) -> str:
    """Return a text in which each character within one of the `spans` (start, end) is replaced by `char`."""
    chars = list(text)
    for start, end in spans:
        chars[start:end] = char * (end - start)
    return "".join(chars)


def _is_led(begins: re.Pattern[str], plain: str, at: int) -> bool:
    """Return True if position `at` begins a line, sentence or clause; introductory words may come before it.

    `begins`: pattern of the beginning with introductory words: one of _LINE_BEGINS, _SENTENCE_BEGINS, _CLAUSE_BEGINS.
    """
    return begins.search(plain, max(0, at - _LONGEST_LEAD), at) is not None


def _read_objects(text: str) -> Iterator[_Object]:
    """Yield the valid JSON objects in a text, without the objects nested in them."""

    def every_value(pairs: list[tuple[str, Any]]) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {}
        for name, value in pairs:
            values.setdefault(name.strip().lower(), []).append(value)
        return values

    decoder = json.JSONDecoder(strict=False, object_pairs_hook=every_value)
    at, failures = text.find("{"), 0
    while at >= 0 and failures < _MOST_TORN:
        try:
            content, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end, failures = at + 1, failures + 1
        else:
            yield _Object(content, at, end)
        at = text.find("{", end)


def _read_values(content: Any, sought: Sought) -> Iterator[Any]:
    """Yield the converted values under the keys of `sought` in a decoded JSON value.

    Nested objects are searched only if the object around them has no such key.
    """
    nested = [content]
    while nested:
        content = nested.pop()
        if isinstance(content, list):
            nested += reversed(content)
        if not isinstance(content, dict):
            continue
        keyed = [name for name in content if re.fullmatch(sought.key_names, name, re.IGNORECASE)]
        for name in keyed:
            for value in content[name]:
                yield sought.convert(value)
        if not keyed:
            # Values under a key such as "response" or "quoted" are not the judge's own.
            own = [values for name, values in content.items() if not RETOLD.search(name) and not MATERIAL.search(name)]
            nested += reversed(own)


def half_width(text: str) -> str:
    """Replace full-width digits and punctuation by their half-width forms. Positions in the text stay the same.

    >>> half_width("评分：８（好）")
    '评分:8(好)'
    """
    if text.isascii():
        return text
    wide = (unicodedata.normalize("NFKC", char) for char in text)
    return "".join(plain if len(plain) == 1 else char for char, plain in zip(text, wide, strict=True))
