"""Find statements of a value in a judge's answer: in a JSON object, in a broken one, on a line, or in prose.

A statement may be the verdict only if it stands where a judge puts a verdict. It can only contradict the verdict if it
is quoted in a block (`> `), attributed to the response ("it ends with …"), shown as material (material.py), in the
middle of a sentence, or in an unfinished object. The same holds for a sentence that mentions a verdict in its own
notation. Quotations, thoughts and reasons state nothing.
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
"""Words before the name of a single verdict. With several keys they may begin another key's name."""

_FLAGS = re.IGNORECASE | re.MULTILINE
"""Flags of the patterns of keys."""

_CLOSING = {"“": "”"}

_OPEN_REASON = re.compile(rf"(?:^|[.!?;,。{{]\s*+)[ \t*_#>-]*+{REASON}[\s*_]*:", re.IGNORECASE | re.MULTILINE)
_REASON_LINE = re.compile(rf"[\s>*#_-]*{any_of('reason')}[\s*_]*:", re.IGNORECASE)
_REASON_FOLLOWS = re.compile(rf"""[\s"'”’*_`,;.)\]}}>#-]*{any_of("reason")}["'”’*_]*\s*:""", re.IGNORECASE)

_QUOTATION = pattern("quotation")
"""What a judge quotes."""

_LINE_BEGINS = re.compile(rf"^{expand('led')}\Z", _FLAGS)
_SENTENCE_BEGINS = re.compile(rf"(?:^|[.!?]\s|[。!?]){expand('led')}\Z", _FLAGS)
_CLAUSE_BEGINS = re.compile(rf"(?:^|[.!?:;,。)\]}}>〉》】{_MASK}]\s*){expand('led')}\Z", _FLAGS)
_SENTENCE_END = re.compile(r"[.!?;。！？；](?=\s|$|[^\x00-\x7f])|\n\s*\n")
_WORD = re.compile(r"\w")
_MARKS = re.compile(r"""[.!?:;。]?[\s*_#>"“-]*""")
_LONGEST_LEAD = 80
"""Characters before a place that are searched for the beginning of its line, which bounds the time of the search."""

_SHOWN = pattern("shown", re.DOTALL | re.IGNORECASE)
"""Material that a judge shows as such."""

_FENCE = re.compile(r"^[ \t>]*```\w*[ \t]*$", re.MULTILINE)
_BEFORE = pattern("before", re.IGNORECASE)
_POSSESSOR = re.compile(r"(?:the\s+(?:response|reply|answer)'s|(?:该|此|这份|本)?(?:作答|回答)的?)\s*\Z", re.IGNORECASE)

_OPEN_END = pattern("open_end", re.IGNORECASE)
_LIST_BEGINS = pattern("list_begins", _FLAGS)
_GOES_ON = re.compile(r"^(?![ \t]*(?:[-*•+|>#]|\d{1,2}[.)、]))[^:\n]*\w\Z", re.MULTILINE)
_TAKEN_BACK = pattern("taken_back_behind", re.IGNORECASE)

_MOST_TORN = 50
"""The most braces that open no valid JSON. Each is parsed up to its error, so that many would take long."""

_MOST_WEIGHED = 50
"""The most statements of one value that may be the verdict. Further ones can only contradict it."""

_LINE_ENDS = re.compile(r"""[\s.!。"'”*_`)\]}]*?$""", re.MULTILINE)
_OBJECT_ENDS = re.compile(r"\}[ \t`]*\n|\n[ \t]*\n")


class Statement(Struct, frozen=True):
    """A value stated by an answer from `at` to `end`; None if the form has no such value.

    - `stands`: the statement may be the verdict. Other statements can only contradict one.
    - `told`: the surrounding words attribute it to somebody else, such as the response.
    - `whole`: it is in a complete JSON object, whose reason is `reason` (None without one).
    """

    value: float | str | None
    at: int
    end: int
    stands: bool = True
    told: bool = False
    whole: bool = False
    reason: str | None = None


class Sought(Struct, frozen=True):
    """A value to look for in an answer.

    - `names`: pattern of its keys.
    - `value`: pattern of the value after a key, in the group `value`. `convert` converts the text, or the value in
      JSON.
    - `papers`: patterns by which judges of other benchmarks state it without a key. `compared` converts their text
      (default: `convert`).
    - `several`: the verdict has several keys, and the value is under one of them.
    - `prose`: a key in a sentence counts if there is no other statement.
    - `mentioned`: function that finds the values in a sentence that only mentions a verdict, or None.
    - `separator`: pattern between key and value.
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
        """Return the pattern of a key; `kind` is its name in patterns.toml."""
        return pattern(kind, _FLAGS, names=names or self.names, separator=self.separator)

    @property
    def key_names(self) -> str:
        return self.names if self.several else f"{_QUALIFIER}{self.names}"


class _Object(Struct, frozen=True):
    """A complete JSON object from `start` to `end`. `content` has all values of each key, with keys in lower case."""

    content: dict[str, list[Any]]
    start: int
    end: int


class _Torn(Struct, frozen=True):
    """A broken JSON object, from its first key to `end`. `closed`: no closing brace is missing."""

    key: re.Match[str]
    end: int
    closed: bool


class AnswerText:
    """A judge's answer, and the statements in it.

    `text` is the `reply` after its thoughts; `start` is where it begins in the reply. `plain` has the same length, with
    half-width digits and punctuation, and with complete JSON objects masked.
    """

    def __init__(self, reply: str) -> None:
        self.reply, self.start = reply, answer_at(reply)
        self.text = reply[self.start :]
        objects = list(_read_objects(self.text))
        masked = _replace_spans(self.text, [(obj.start, obj.end) for obj in objects], _MASK)
        shown = [element.span() for element in _SHOWN.finditer(masked)]
        masked = _replace_spans(masked, shown, "\n")
        thoughts = list(later_thoughts(masked))
        # A verdict behind them begins a line.
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
        """Return the statements of the value `sought`.

        Those in prose may be the verdict only if no object and no line states the value.
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
        # A sentence that says so at the end of its line can only contradict them.
        prose = [] if sought.several else self._read_prose(sought, True)
        ends = (statement for statement in prose if statement.stands and _LINE_ENDS.match(self.plain, statement.end))
        doubts = (statement for statement in ends if not self._is_within(statement.at, torn))
        return structured + mentioned + [replace(statement, stands=False) for statement in doubts]

    def _read_mentions(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        """Yield a statement for each value that a sentence mentions as or beside a verdict.

        If its sentence does not call it a verdict, the statement does not stand: it is never the reply's verdict, but
        it makes the reply contradictory if its value differs. `sought`: the verdict's values and how they are written.
        `torn`: the unfinished JSON objects of the reply; values inside them are passed over.
        """
        for value, at, end, states in mentions(self.plain, sought.mentioned):
            argued = self._reason is not None and self._reason.end() <= at and not _is_led(_LINE_BEGINS, self.plain, at)
            if argued or self._is_quoted(at, end) or self._is_within(at, torn):
                continue
            stands = states and self._may_stand(at, end, torn, False) and self._is_first_or_last(at, end)
            yield Statement(value, at, end, stands)

    def _find_keys(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield each match of a key pattern. Each search starts at the end of the previous key's name."""
        at = 0
        while key := pattern.search(self.plain, at):
            yield key
            at = key.end("name")

    def unfinished_at(self, sought: Sought) -> int | None:
        """Return the position after the last key, where its value should begin, or None if there is no key."""
        keys = [*sought.key("object_key").finditer(self.plain)]
        keys += sought.key("line_key").finditer(self.plain)
        return max((key.end() for key in keys if not self._is_quoted(key.end() - 1, key.end())), default=None)

    def loose_reason(self, several: bool) -> str | None:
        """Return the reason beside a verdict that is not valid JSON, or None. `several`: as in Sought."""
        kinds = ("bare_key", "line_key") if several else ("prose_key",)
        keys = (pattern(kind, _FLAGS, names=REASON, separator=":").search(self.plain) for kind in kinds)
        key = next((key for key in keys if key is not None), None)
        if key is None:
            return None
        rest = self.text[key.end() :]
        quoted = QUOTED_TEXT.match(rest)
        return (quoted[1] if quoted else rest.strip().strip("\"'“”}`").strip()) or None

    def _read_whole(self, sought: Sought, torn: list[_Torn]) -> Iterator[Statement]:
        """Yield the statements in complete JSON objects.

        An object that directly follows the first one of the answer, on the same line, is skipped: the model wrote on
        after a finished verdict (AlignMMBench's script takes the first as well).
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
        """Yield the broken JSON objects. Each ends before the next line that begins with a brace."""
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
                # Only a key between two values counts, and the mark that closes the first is the one that opened it:
                # the reason may quote a verdict that the response tried to forge.
                opening = self.text[fragment.key.end() : fragment.key.end() + 1]
                behind = sought.key("after_reason").finditer(self.plain, fragment.key.end(), fragment.end)
                keys = [key for key in behind if self.text[key.start(1)] == _CLOSING.get(opening, opening)]
                key = keys[-1] if keys else None
            value = None if key is None else sought.value.match(self.plain, key.end())
            # Without a value it is the output format restated, or cut off.
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
        """Yield the statements in which the judge itself says the value in a sentence: in the papers' words, or by key.

        Text in quotation marks or in a reason is left out, since it may repeat the response. After the key of a reason,
        only a line of its own or the last sentence is the judge's statement. `keyed`: a key and its value count too.
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

        It may not if it is in a quoted block, after words that refer to the judged material, after an unfinished JSON
        object (in `torn`), or if the judge retracts it. With `several` keys, words before the first key of the
        paragraph refer to all of its keys.
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
            # What leads to the first line of a list leads to all of them.
            head = _LIST_BEGINS.split(paragraph[: start - end], maxsplit=1)[0]
            told = self._is_retold(end - len(paragraph)) or bool(TELLER.search(head) and RETOLD.search(head))
            told = told or (head.endswith("\n") and self._is_retold(end - len(paragraph) + len(head)))
        if told or _TAKEN_BACK.match(self.plain, end, end + 120):
            self._told.add(end)
            return False
        return not unfinished and not block

    def _is_retold(self, at: int) -> bool:
        """Return True if the words before position `at` say that what follows is somebody else's.

        These words are in the same line, or above it up to a colon.
        """
        lead = _POSSESSOR.sub("", self.plain[max(0, at - 200) : at])
        words = _BEFORE.sub("", lead)
        between = lead[len(words) :]
        # A line that neither ends a sentence nor is one of a list goes on in the next one.
        goes_on = "\n\n" not in between and _GOES_ON.search(words)
        if "\n" in between and not re.search("[:,]", between) and not goes_on and not _OPEN_END.search(words):
            return False
        return is_material(words)

    def _is_inside(self, obj: _Object, torn: list[_Torn]) -> bool:
        """Return True if a JSON object is quoted within a reason: after the reason's key, in the middle of its line."""
        argued = self._is_within(obj.start, torn) or (self._reason is not None and self._reason.end() <= obj.start)
        if not argued or _is_led(_SENTENCE_BEGINS, self.plain, obj.start):
            return False
        return _WORD.search(self.plain, self.plain.rfind("\n", 0, obj.start) + 1, obj.start) is not None

    def _is_within(self, at: int, torn: list[_Torn]) -> bool:
        """Return True if position `at` is in a broken object, before the blank line or brace that ends it."""
        return any(
            fragment.key.end() <= at < fragment.end and not _OBJECT_ENDS.search(self.plain, fragment.key.end(), at)
            for fragment in torn
        )

    def _is_quoted(self, at: int, end: int) -> bool:
        """Return True if the judge quotes the text from `at` to `end`.

        A quotation that begins a line or a sentence with this text is the judge's own statement.
        """
        behind = bisect_right(self._quotations, (at, len(self.plain)))
        first, last = self._quotations[behind - 1] if behind else (0, 0)
        if end > last:
            return False
        return not _is_led(_SENTENCE_BEGINS, self.plain, first) or _WORD.search(self.plain, first, at) is not None

    def _is_listed(self, at: int) -> bool:
        """Return True if a key without quotation marks is in an object or a one-line list, not in a sentence."""
        line = self.plain[self.plain.rfind("\n", 0, at) + 1 : at + 1]
        return "{" in line or re.match(r"[ \t>*#-]*[\w*]+(?: \w+)?\s*[:.)]", line) is not None

    def opens_with(self, at: int) -> bool:
        """Return True if position `at` is in the first sentence and the first line of the answer."""
        before = self.plain[self._first_word : max(at, self._first_word)]
        return "\n" not in before and _SENTENCE_END.search(before) is None

    def is_settled(self, at: int, end: int, several: bool) -> bool:
        """Return True if a truncated answer had reached its verdict, which it states from `at` to `end`.

        It had if the verdict opens the answer or only the reason follows. With `several` keys, other values may follow
        too.
        """
        rest = self.plain[end:]
        later = re.search(r"\n\s*\n.*\w", rest, re.DOTALL) if several else _WORD.search(rest)
        return self.opens_with(at) or later is None or _REASON_FOLLOWS.match(rest) is not None

    def _is_first_or_last(self, start: int, end: int) -> bool:
        """Return True if the statement from `start` to `end` opens or closes the answer, or is next to the reason.

        A line that leads to the statement may come before it.
        """
        before = self.plain[self._first_word : start].rstrip(" \t\r\n`*_#>-")
        led = "\n" not in before and (before.endswith(":") or not _SENTENCE_END.search(before))
        lines = [before.rpartition("\n")[2], self.plain[end : end + 200].partition("\n")[2].lstrip()]
        return led or end > self._last_sentence or any(_REASON_LINE.match(line) for line in lines)


def _build_statement(convert: Callable[[Any], float | str | None], value: re.Match[str], stands: bool) -> Statement:
    return Statement(convert(value["value"]), value.start("value"), value.end(), stands)


def _replace_spans(text: str, spans: list[tuple[int, int]], char: str) -> str:
    """Return a text with each character in the sorted `spans` replaced by `char`."""
    chars = list(text)
    for start, end in spans:
        chars[start:end] = char * (end - start)
    return "".join(chars)


def _is_led(begins: re.Pattern[str], plain: str, at: int) -> bool:
    """Return True if nothing but introductory words stands between the start of a line or sentence and position `at`.

    `begins`: pattern of such a start, with the words that may follow it.
    """
    return begins.search(plain, max(0, at - _LONGEST_LEAD), at) is not None


def _read_objects(text: str) -> Iterator[_Object]:
    """Yield the outermost valid JSON objects in a text."""

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
    """Yield the converted values under the keys of `sought`, from the outermost objects that have such a key."""
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
            # What a key calls the response's, or quoted, is not searched.
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
