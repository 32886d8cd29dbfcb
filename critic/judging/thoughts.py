"""Separate the thoughts (reasoning) in a reply from the answer. Thoughts are no verdict and no part of a judged answer.

Models mark their thoughts in many ways: `<think>` and similar tags, `[THINK]`, `◁think▷`, `<|begin_of_thought|>`, and
channels. Servers strip some of the marks; of channels, they may leave only the names (`analysis…assistantfinal…`). In
recorded turns the thoughts are kept in a field of their own. Judges and later turns do not see them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from critic.errors import notify
from critic.judging.patterns import pattern
from critic.records import ModelTurn, TurnFailure

_NAMES = "think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad|rationale|monologue|思考|推理"
"""Pattern of the words for thoughts that occur in marks."""

_WORD = rf"(?:\w+[:_])?(?:{_NAMES})"

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
"""Pairs of patterns: a mark that opens thoughts, and the mark that closes them. Case is ignored."""

_OPENING = re.compile(
    "|".join(f"(?P<m{number}>{opening})" for number, (opening, _) in enumerate(_MARKS)), re.IGNORECASE
)
_CLOSING = [re.compile(closing, re.IGNORECASE) for _, closing in _MARKS]
_ANY_CLOSING = "|".join(closing for _, closing in _MARKS)

_ORPHAN = pattern("orphan", re.MULTILINE | re.IGNORECASE, closing=_ANY_CLOSING, final_channel=_MARKS[-1][1])
"""Pattern of a closing mark without an opening mark, because the chat template wrote the opening mark."""

_VERDICT_FIRST = pattern("verdict_first", re.IGNORECASE)

_CORE = re.compile(rf"{_NAMES}|channel|commentary|assistant\n?final")
"""Pattern of the words of which every mark contains one. Searching for it is ten times as fast as for the marks."""

_FENCED = re.compile(r"^[ ]{0,3}(```+|~~~+).*?^[ ]{0,3}\1", re.MULTILINE | re.DOTALL)

_INDENTS = ("", " ", "  ", "   ")
"""Blanks that may precede a mark at the start of a line. Four blanks would begin a code block (CommonMark 4.4)."""

_SPOKEN_OF, _SPEAKS_OF = pattern("spoken_of"), pattern("speaks_of")
"""Patterns of words after and before a mark which show that a sentence only talks about the mark."""

_HEADING = re.compile(r"[\[【](?!\w*(?:think|thought|思考))", re.IGNORECASE)
"""Pattern of a mark that may be a heading of the answer if no closing mark follows: `[Analysis]`, `【推理】`."""

_NEVER_A_WORD = re.compile(r"think|thought|思考|\|", re.IGNORECASE)
"""Pattern of a part of those marks that open thoughts within an answer even if no closing mark follows."""

REASON = "(?:Reason|理由|原因)"
"""Pattern of the keys by which judges name their reason."""

QUOTED_REASON = re.compile(rf"""["'“]{REASON}["'”]\s*:""", re.IGNORECASE)

QUOTED_TEXT = re.compile(r"""^["'“](.*?)(?<!\\)["'”]\s*(?:[,}]|$)""", re.DOTALL)
"""Pattern of a quoted text. It ends at an unescaped quotation mark before a comma, a brace or the end of the text."""


def answer_at(text: str) -> int:
    """Return the position in a reply where the answer begins, after the thoughts.

    If the thoughts have no closing mark, return the length of the reply. The opening mark may be missing, because chat
    templates can write it.

    >>> reply = "So it is a 7.\\n</think>\\nRating: 7"
    >>> reply[answer_at(reply) :].strip()
    'Rating: 7'
    """
    start = _skip_blocks(text, 0)
    if start == len(text) or _VERDICT_FIRST.match(text[start:].lstrip()):
        return start
    orphans = (mark.end() for mark in _ORPHAN.finditer(text, start) if not _is_in_reason(text[start : mark.start()]))
    end = next(orphans, None)
    return start if end is None else _skip_blocks(text, end)


def without_thoughts(text: str) -> str:
    """Return a reply without the thoughts before its answer."""
    return text[answer_at(text) :].strip()


class SplitReply(NamedTuple):
    """The answer and the thoughts in a reply of a model under test.

    - `thoughts`: the thoughts without their marks; "" if there are none.
    - `closed`: False if the last thoughts have no closing mark.
    """

    answer: str
    thoughts: str = ""
    closed: bool = True


def split_thoughts(text: str, *, cut_off: bool = False) -> SplitReply:
    """Separate the thoughts of a model under test from its answer.

    Thoughts are recognized at the beginning of the reply, where the chat template may have written the opening mark,
    and at the beginning of later lines. Marks that a sentence talks about, and marks in code, are ignored. If there are
    no thoughts, the answer is the unchanged reply.

    `cut_off`: the reply ended at its token limit. Then `[Analysis]` at its beginning, without a closing mark, counts as
    thoughts and not as a heading.

    >>> split_thoughts("<think>Four? No, five.</think>\\n\\nFive apples.")
    SplitReply(answer='Five apples.', thoughts='Four? No, five.', closed=True)
    >>> split_thoughts("Let me look.\\n<think>Four?</think>\\nFive.").answer
    'Let me look.\\n\\nFive.'
    >>> split_thoughts("Five.\\n<think>Or four")
    SplitReply(answer='Five.', thoughts='Or four', closed=False)
    >>> split_thoughts("Models put their thoughts between <think> and </think>.").thoughts
    ''
    """
    blocks = list(_find_blocks(text, cut_off=cut_off)) if _CORE.search(text.lower()) else []
    if not blocks:
        return SplitReply(text)
    kept, at = list[str](), 0
    for start, _, _, end in blocks:
        kept.append(text[at:start])
        at = len(text) if end is None else end
    thoughts = (text[inside:outside].strip() for _, inside, outside, _ in blocks)
    answer = "".join([*kept, text[at:]]).strip()
    return SplitReply(answer, "\n\n".join(filter(None, thoughts)), blocks[-1][3] is not None)


def _find_blocks(text: str, *, cut_off: bool) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield four positions for each block of thoughts: start and end of its opening mark and of its closing mark.

    If a block has no closing mark, the third position is the end of the text and the fourth is None. `cut_off`: as in
    `split_thoughts`.
    """
    code = [block.span() for block in _FENCED.finditer(text)]

    def is_mark(mark: re.Match[str]) -> bool:
        return not (
            any(start <= mark.start() < end for start, end in code)
            or _SPOKEN_OF.match(text, mark.end())
            or _SPEAKS_OF.search(text[max(0, mark.start() - 12) : mark.start()])
        )

    done, searched, orphan_sought, closable = 0, 0, True, True
    while True:
        opening = _OPENING.search(text, searched)
        leads = opening is not None and not text[done : opening.start()].strip() and is_mark(opening)
        if orphan_sought and not leads:
            # If the chat template wrote the opening mark, no opening mark comes before the closing one.
            orphan_sought, limit = False, opening.start() if opening else len(text)
            orphan = next((mark for mark in _ORPHAN.finditer(text, done) if is_mark(mark)), None)
            if orphan is not None and orphan.start() < limit:
                yield done, done, orphan.start(), orphan.end()
                done = searched = orphan.end()
                continue
        if opening is None:
            return
        searched = opening.end()
        if not leads and not (text[done : opening.start()].rpartition("\n")[2] in _INDENTS and is_mark(opening)):
            continue
        # If no closing mark follows one opening mark, none follows a later one.
        closing = _find_closing(text, opening) if closable else None
        if closing is None:
            closable, mark = False, opening.group()
            if (_HEADING.match(mark) and not cut_off) if leads else not _NEVER_A_WORD.search(mark):
                continue
            yield opening.start(), opening.end(), len(text), None
            return
        yield opening.start(), opening.end(), closing.start(), closing.end()
        done = searched = closing.end()


def later_thoughts(answer: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the thoughts within a judge's answer, marks included.

    Thoughts without a closing mark count only if they begin a line; they extend to the end of the answer.
    """
    at = 0
    while opening := _OPENING.search(answer, at):
        begins_line = not answer[: opening.start()].rpartition("\n")[2].strip()
        closing = _find_closing(answer, opening)
        if closing is None and not begins_line:
            at = opening.end()
            continue
        at = closing.end() if closing else len(answer)
        yield opening.start(), at


def _skip_blocks(text: str, at: int) -> int:
    """Return the position after the consecutive blocks of thoughts that begin at position `at`.

    Return `at` if there is no block, and the length of the text if a block is not closed.
    """
    while True:
        opening = _OPENING.match(text, at + len(text[at:]) - len(text[at:].lstrip()))
        if opening is None:
            return at
        closing = _find_closing(text, opening)
        if closing is None:
            return len(text)
        at = closing.end()


def _find_closing(text: str, opening: re.Match[str]) -> re.Match[str] | None:
    """Return the next closing mark of the same kind as the mark `opening`, else of any kind, or None without one."""
    kind = int((opening.lastgroup or "m0")[1:])
    own = _CLOSING[kind].search(text, opening.end())
    return own or re.compile(_ANY_CLOSING, re.IGNORECASE).search(text, opening.end())


def _is_in_reason(before: str) -> bool:
    """Return True if the text `before` a mark ends within a quoted reason, where the mark has no meaning."""
    keys = [*QUOTED_REASON.finditer(before)]
    return bool(keys) and QUOTED_TEXT.match(before[keys[-1].end() :].lstrip()) is None


def with_reply(turn: ModelTurn, text: str) -> ModelTurn:
    """Return the turn with the answer in `text` as its reply, and the thoughts in `text` appended to its thoughts.

    If there is no answer, the turn gets a failure instead of a reply: "truncated" if `text` was cut off within the
    thoughts or before the answer, else "empty". Without a finish reason (`turn.finish`), thoughts without a closing
    mark count as cut off.

    >>> from critic.records import Conversation, ConversationTurn, Sampling
    >>> talk = Conversation(id="c", lang="en", group="c", turns=[ConversationTurn(prompt="How many?")])
    >>> asked = ModelTurn(conversation=talk, condition="own", turn=1, system="m", sampling=Sampling(max_tokens=9))
    >>> def read(text, *finishes):
    ...     turns = [with_reply(replace(asked, finish=finish), text) for finish in finishes]
    ...     _ = [turn.check() for turn in turns]
    ...     return [turn.reply if turn.failure is None else turn.failure for turn in turns]
    >>> read("<think>Four? No", "length", None, "stop"), read("<think>Four?</think>", "length", "stop")
    (['truncated', 'truncated', 'empty'], ['truncated', 'empty'])
    >>> read("Five.\\n<think>Or four", "length", "stop"), read("[Analysis] Four", "length", "stop")
    (['truncated', 'Five.'], ['truncated', '[Analysis] Four'])
    >>> read("<think>Four?</think>Five app", "length")
    ['Five app']
    """
    split = split_thoughts(text, cut_off=turn.finish == "length")
    thoughts = "\n\n".join(filter(None, (turn.thoughts, split.thoughts))) or None
    at_limit = turn.finish == "length" or (turn.finish is None and not split.closed)
    if at_limit and not (split.closed and split.answer):
        failure: TurnFailure = "truncated"
    elif not split.answer.strip():
        failure = "empty"
    else:
        return replace(turn, reply=split.answer, thoughts=thoughts)
    detail = "the reply ends within the model's thoughts" if thoughts else None
    return replace(turn, reply=None, thoughts=thoughts, failure=failure, detail=detail)


def without_thoughts_in(turn: ModelTurn) -> ModelTurn:
    """Convert a recorded turn to the current layout: no thoughts in its reply or in the messages that the model saw.

    Earlier versions kept thoughts in the reply and showed them to the model in later turns.
    """
    if turn.thoughts is None and turn.reply is not None:
        turn = with_reply(turn, turn.reply)
    seen = [
        replace(message, content=split_thoughts(message.content).answer) if message.role == "assistant" else message
        for message in turn.seen
    ]
    return turn if seen == turn.seen else replace(turn, seen=seen)


def say_thoughts(path: Path, count: int, answers: int) -> None:
    """Print to stderr that `count` of the `answers` answers in a file have thoughts; print nothing if `count` is 0."""
    if count:
        notify(f"{path}: {count} of {answers} answers have thoughts, which are no part of the answer")
