"""Where a reply's thoughts end and its answer begins. What stands in thoughts is a draft, never a verdict.

Models mark their thoughts in many ways, and servers strip some of the marks: `<think>` and its like, `[THINK]`,
`◁think▷`, `<|begin_of_thought|>`, and channels, of which only the names are left where special tokens are stripped
(`analysis…assistantfinal…`).
"""

import re
from collections.abc import Iterator

_WORD = (
    r"(?:\w+[:_])?(?:think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad|rationale|monologue|思考|推理)"
)

_MARKS = (
    (rf"<{_WORD}(?:\s[^<>]*)?>", rf"</\s*{_WORD}\s*>"),
    (rf"\[{_WORD}\]", rf"\[/\s*{_WORD}\s*\]"),
    (rf"【{_WORD}】", rf"【/\s*{_WORD}\s*】"),
    (rf"[◁⊲]{_WORD}[▷⊳]", rf"[◁⊲]/\s*{_WORD}[▷⊳]"),
    (r"<\|(?:begin|start)_of_(?:thought|thinking)\|>", r"<\|end_of_(?:thought|thinking)\|>"),
    (rf"<\|(?:start_)?{_WORD}\|>", rf"<\|(?:end_|/){_WORD}\|>"),
    # A chat's channels: with their tokens, and without. A comma or a colon behind the name makes it a word of prose.
    (
        r"(?:<\|start\|>assistant)?<\|channel\|>\s*(?:analysis|commentary)",
        r"<\|channel\|>\s*final\s*(?:<\|constrain\|>\s*\w+\s*)?<\|message\|>",
    ),
    (r"<\|channel>\s*thought", r"<channel\|>"),
    (r"(?-i:analysis|commentary)(?=[^\s:：,.;'’-]|\n)", r"(?-i:assistant\n?final)(?:\n?json(?=\s*[{\[]))?"),
)
"""How thoughts are opened and closed: patterns, without regard to case."""

_OPENING = re.compile(
    "|".join(f"(?P<m{number}>{opening})" for number, (opening, _) in enumerate(_MARKS)), re.IGNORECASE
)
_CLOSING = [re.compile(closing, re.IGNORECASE) for _, closing in _MARKS]
_ANY_CLOSING = "|".join(closing for _, closing in _MARKS)

# The end of thoughts whose beginning the chat template wrote: not a mark that is spoken of in a sentence.
_ORPHAN = re.compile(
    rf"^[ \t]*(?:{_ANY_CLOSING})|(?:{_ANY_CLOSING})(?=[ \t\r]*(?:$|[\[{{]|```))|{_MARKS[-1][1]}",
    re.MULTILINE | re.IGNORECASE,
)

# A reply that begins with its verdict has no thoughts before it.
_VERDICT_FIRST = re.compile(
    r"""(?:```\w*)?[\s"'“*#]*(?:\[?\{|\[\[|\d{1,3}["']?\s*[:.)：]\s*["']?(?:yes|no)\b"""
    r"""|(?:rating|score|verdict|correct|reason|评分|分数|裁决|正确|理由)["'”*]{0,3}\s*[:：])""",
    re.IGNORECASE,
)

REASON = "(?:Reason|理由|原因)"
"""How judges call the reason, as a pattern."""

QUOTED_REASON = re.compile(rf"""["'“]{REASON}["'”]\s*:""", re.IGNORECASE)

QUOTED_TEXT = re.compile(r"""^["'“](.*?)(?<!\\)["'”]\s*(?:[,}]|$)""", re.DOTALL)
"""A quoted text up to the unescaped mark that a comma, a brace or the end follows: marks inside it do not end it."""


def answer_at(text: str) -> int:
    """Where in a reply the answer begins, behind the thoughts; the reply's length where these are cut off. The chat
    template may have written the mark that opens them."""
    start = _behind_blocks(text, 0)
    if start == len(text) or _VERDICT_FIRST.match(text[start:].lstrip()):
        return start
    orphans = (mark.end() for mark in _ORPHAN.finditer(text, start) if not _in_reason(text[start : mark.start()]))
    end = next(orphans, None)
    return start if end is None else _behind_blocks(text, end)


def without_thoughts(text: str) -> str:
    """A reply without the thoughts that come before the answer."""
    return text[answer_at(text) :].strip()


def later_thoughts(answer: str) -> Iterator[tuple[int, int]]:
    """From where to where an answer thinks again. Thoughts without an end begin a line; elsewhere they are quoted."""
    at = 0
    while opening := _OPENING.search(answer, at):
        begins_line = not answer[: opening.start()].rpartition("\n")[2].strip()
        end = _end_of(answer, opening)
        if end is None and not begins_line:
            at = opening.end()
            continue
        at = len(answer) if end is None else end
        yield opening.start(), at


def _behind_blocks(text: str, at: int) -> int:
    """Behind one block of thoughts after another."""
    while True:
        opening = _OPENING.match(text, at + len(text[at:]) - len(text[at:].lstrip()))
        if opening is None:
            return at
        end = _end_of(text, opening)
        if end is None:
            return len(text)
        at = end


def _end_of(text: str, opening: re.Match[str]) -> int | None:
    """Where the thoughts that a mark opens end: at its own closing mark or, where there is none, at any."""
    kind = int((opening.lastgroup or "m0")[1:])
    own = _CLOSING[kind].search(text, opening.end())
    closing = own or re.compile(_ANY_CLOSING, re.IGNORECASE).search(text, opening.end())
    return closing.end() if closing else None


def _in_reason(before: str) -> bool:
    """Whether a text ends within a quoted reason, which may say anything."""
    keys = [*QUOTED_REASON.finditer(before)]
    return bool(keys) and QUOTED_TEXT.match(before[keys[-1].end() :].lstrip()) is None
