"""Find material and mentions of a verdict in a judge's answer.

Material is text in the answer that is not the judge's own opinion: the judged reply, an injected line, or an example.

- A heading, or a line that ends with a colon, may introduce material. The material ends at the next heading.
- If a code fence, a quoted block or a list follows a line that ends with a colon, the material ends with that block.
- A label with text on the same line (`Reply: two cats.`) introduces the rest of its paragraph.

A sentence or a line mentions a verdict if it consists of one value and words about judging (words.toml), in any
notation: `I'd put it at 7/10.`, `<answer>7</answer>`, ★★★★☆. If it has a word such as "rating" or "winner", or a mark
such as `[RESULT]`, it states the verdict. Otherwise, like a `7` by itself, it can only contradict a verdict. So can a
sentence that refuses to give a verdict.
"""

import re
from collections.abc import Callable, Iterator
from itertools import accumulate

from critic.judging.patterns import any_of, pattern, word_pattern

RETOLD, MATERIAL, JUDGING, TELLER, ASSESSING, RETELLING, ARGUING = map(
    word_pattern, ("retold", "material", "judging", "teller", "assessing", "retelling", "arguing")
)

_CLAUSE_END = re.compile(r"(?<!e\.g)[.!?;](?=\s|\Z)|(?<=\d)['*]*,|[。！？；\n]")

_SIDE = re.compile(r"[A-D1-4甲乙]$")
"""Ending of a label that names one of several answers, such as "Response A". Judges write their opinion below it."""

_LABEL = re.compile(r"[^\w\n]*([^:.,;!?。，、；！？\n]{2,60}):(?=.*\w)")
_ASIDE = re.compile(r"\([^()]*\)")
_ANNOUNCES = pattern("announces", re.IGNORECASE)
_LISTED = re.compile(r"[ \t]*(?:[-*•+]|\d{1,2}[.)、])[ \t]")
_QUOTED_LINE = re.compile(r"""[ \t]*["“「『>]""")
_UNDERLINE = re.compile(r"[ \t]*[=-]{3,}[ \t]*\Z")
_FENCE_LINE = re.compile(r"[ \t]*(?:```|~~~)")

_HEADING = pattern("heading")
_ENDING = re.compile(r"\W*(?:end\b|结束|完\b)", re.IGNORECASE)


def is_material(words: str) -> bool:
    """Return True if the last clause of `words` introduces text that is not the judge's own verdict.

    The clause may quote ("the answer said:") or reject ("not like this:") what follows it.
    """
    clause = _CLAUSE_END.split(words)[-1]
    last = clause.rpartition(",")[2]
    if JUDGING.search(last) and not RETOLD.search(last):
        return False
    return bool(RETOLD.search(clause) or (MATERIAL.search(clause) and not JUDGING.search(clause)))


def find_material(plain: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each span of material in an answer, in order and without overlap.

    `plain`: the answer with half-width punctuation (statements.half_width).

    >>> text = "The reply says:\\n> Rating: 10\\nIt is wrong."
    >>> [text[start:end] for start, end in find_material(text)]
    ['> Rating: 10\\n']
    """
    lines = plain.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    end_of_label, governed = -1, False
    number = 0
    while number < len(lines):
        line, follows = lines[number], lines[number + 1] if number + 1 < len(lines) else ""
        title = _read_title(line, follows)
        label = None if title is not None or governed else _LABEL.match(line)
        behind, begins = number + 1, starts[number]
        if title is not None:
            governed = not _ENDING.match(title) and not (_is_own(title) and not is_material(title))
            # Below the name of one of several answers, judges give their opinion of it.
            if governed and _SIDE.search(title):
                first = next((at for at in range(number + 1, len(lines)) if lines[at].strip()), number)
                governed, behind = False, _find_paragraph_end(lines, first) + 1
        elif line.rstrip(" \t*_").endswith(":") or (_ANNOUNCES.match(line) and is_material(line.rstrip(" .。"))):
            governed, behind = _read_introduction(lines, number, governed)
        elif label and number > end_of_label and not _is_own(label[1]) and not is_material(label[1]):
            # It is unknown whose words these are. After the first sentence they cannot be the judge's verdict.
            ends = re.compile(r"[.!?。][ \t]*").search(line, label.end())
            if ends:
                yield starts[number] + ends.end(), starts[number + 1]
        elif label and number > end_of_label and _introduces(label[1]):
            governed = RETELLING.search(label[1]) is not None
            end_of_label = number if _SIDE.search(label[1]) else _find_paragraph_end(lines, number)
            begins = starts[number] + label.end(1)
        if number <= end_of_label or governed:
            yield begins, starts[number + 1]
        if behind > number + 1:
            yield starts[number + 1], starts[behind]
        number = behind


def _is_own(title: str) -> bool:
    """Return True if a heading or label says that the judge's own verdict, reasons or comments follow."""
    return any(words.search(title) for words in (JUDGING, ARGUING, ASSESSING))


def _introduces(label: str) -> bool:
    """Return True if a label with text on the same line introduces material, and is not a comment on material."""
    return not ASSESSING.search(label) and is_material(_ASIDE.sub("", label))


def _read_title(line: str, follows: str) -> str | None:
    """Return the text of a line that is a heading, or None if the line is not a heading.

    `follows`: the next line, which may be the heading's underline.
    """
    heading = _HEADING.match(line) if len(line) <= 120 else None
    if heading:
        text = heading["marked"] or heading["wrapped"] or heading["capitals"] or ""
        return None if re.search(r":\W*\w|^\W*\w\W*$", text) else text
    return line if _UNDERLINE.match(follows) and 2 < len(line.strip()) <= 80 and ":" not in line else None


def _read_introduction(lines: list[str], number: int, governed: bool) -> tuple[bool, int]:
    """Find the material that line `number`, which ends with a colon, introduces.

    Return two values: True if all lines from the end of that material up to the next heading are material as well, and
    the number of the line after the material.

    Args:
        lines: The lines of the answer.
        governed: True if the line is already within material that a heading or an earlier line introduces.
    """
    words = lines[number].rstrip(" \t*_:.。")
    clause = _CLAUSE_END.split(words)[-1]
    if JUDGING.search(clause) and not is_material(words):
        return False, number + 1
    first = next((at for at in range(number + 1, len(lines)) if lines[at].strip()), len(lines))
    assessed = ASSESSING.search(clause) and not RETOLD.search(clause)
    material = is_material(words) and not assessed
    own = assessed or governed or ARGUING.search(clause) or len(re.findall(r"\w+|[^\x00-\x7f]", clause)) < 2
    if own and not material:
        return governed, number + 1
    end = _find_delimited_end(lines, first)
    if not material:
        # It is unknown whose text follows. The next paragraph is not the judge's verdict; later ones may be.
        return governed, max(end, min(_find_paragraph_end(lines, first) + 1, len(lines)))
    if end == first and _SIDE.search(words):
        return False, _find_paragraph_end(lines, first) + 1
    return (False, end) if end > first else (True, number + 1)


def _find_delimited_end(lines: list[str], first: int) -> int:
    """Return the number of the line after the code fence, quoted block or list that begins at line `first`.

    Return `first` if none begins there.
    """
    if first >= len(lines):
        return first
    if _FENCE_LINE.match(lines[first]):
        closing = (at for at in range(first + 1, len(lines)) if _FENCE_LINE.match(lines[at]))
        return next(closing, len(lines) - 1) + 1
    for kind in (_QUOTED_LINE, _LISTED):
        if kind.match(lines[first]):
            return next((at for at in range(first, len(lines)) if not kind.match(lines[at])), len(lines))
    return first


def _find_paragraph_end(lines: list[str], number: int) -> int:
    return next((at for at in range(number, len(lines)) if not lines[at].strip()), len(lines)) - 1


_LONGEST = 120
"""The most characters of a sentence that counts as a mention of a verdict."""

_SENTENCE = re.compile(r"(?:[^\n.!;。]|[.!;](?!\s|\Z|[^\x00-\x7f]))+")
_ENGLISH, _CHINESE = re.compile(r"[A-Za-z]+(?:'[a-z]+)?"), re.compile(r"[\u4e00-\u9fff]")
_LIST_NUMBER = re.compile(r"[.)、][ \t]+\S")
_STATING = re.compile(rf"{word_pattern('stating').pattern}|\d\s*/\s*\d|★", re.IGNORECASE)
_UNREAD = re.compile(rf"{any_of('unread')}|[+½⁄~→×]|\.\.|\?\W*\Z", re.IGNORECASE)
_JUDGING = re.compile("|".join(any_of(name) for name in ("unread", "stating", "judging_sentence")), re.IGNORECASE)

_NO_VERDICT = pattern("no_verdict", re.IGNORECASE | re.MULTILINE)
"""Pattern of the sentences in which judges refuse a verdict."""


Values = Callable[[str], tuple[list[float | str | None], str]]
"""Function that returns the verdict values in a sentence (None: a value that the form lacks), and the rest of it."""


def mentions(plain: str, values_in: Values | None) -> Iterator[tuple[float | str | None, int, int, bool]]:
    """Yield the verdicts that sentences of an answer mention, and the refusals to give a verdict.

    Each item is a tuple: the value (None for a refusal, and for a value that is unclear or that the form lacks), start
    and end of its text in the answer, and True if the sentence states that the value is the verdict.

    Args:
        plain: The answer with half-width punctuation.
        values_in: Finds the values in a sentence. With None, only refusals are found.
    """
    for refusal in _NO_VERDICT.finditer(plain):
        yield None, *refusal.span(), False
    for sentence in _SENTENCE.finditer(plain) if values_in else ():
        text = sentence[0].strip()
        # The "1" in "1. Is it named?" is not a value.
        listed = text.isdigit() and _LIST_NUMBER.match(plain, sentence.end())
        if values_in is None or listed or not text or len(text) > _LONGEST:
            continue
        # A side's name before a colon, or after "#", is a heading.
        if text.startswith("#") or text.rstrip("*_ ").endswith(":"):
            continue
        values, rest = values_in(text)
        if not values or not _is_judging(rest):
            continue
        states = _STATING.search(text.replace("_", " ")) is not None
        unread = _UNREAD.search(text) is not None
        value = values[0] if len(set(values)) == 1 and not unread else None
        if value is not None or states or unread:
            start = sentence.start() + sentence[0].index(text)
            yield value, start, start + len(text), states


def _is_judging(rest: str) -> bool:
    """Return True if all words of `rest` are about judging, such as "rating", "is" or "final".

    `rest`: a sentence without its values.
    """
    if _CHINESE.search(_JUDGING.sub("", rest)):
        return False
    return all(_JUDGING.fullmatch(word) for word in _ENGLISH.findall(rest))
