"""Split a client's request into question, reference, answers, rubric and history, to show them in the judge's own form.

A contract describes the parts by frames or says that labelled lines mark them (`Question:`, `Answer:`). A frame is the
client's template with a placeholder for each part. An answer may contain text that looks like the template or a label.
If this makes the parts ambiguous, the request is refused, so that no part is mistaken for another. All functions are
pure.
"""

from itertools import pairwise

import msgspec
import regex
from api_formats import Request
from contracts import LABELLED, SEARCH_SECONDS, Contract, Unanswerable, compile_frame, list_turns
from patterns import pattern
from reader import ASKS, CLOSING, DATA

JUDGED = ("answer", "other", "answer_1")
"""Parts that the judged models wrote. Their text may imitate the template that separates the parts."""

ANSWERS = pattern("names_answer", regex.IGNORECASE)
REFERENCES = regex.compile(r"(?i)\b(?:reference|correct|expected|standard)\b")


class RequestParts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a request to a judge. `None` means that the request has no such part.

    - `answer`: the answer to judge. `other`: the answer to compare it with, or None if one answer is judged.
    - `rubric`: the criteria, "" if there are none.
    - `question_1`, `answer_1`: the previous turn of the conversation; `answer_1` is None if there is none.
    """

    answer: str
    question: str = ""
    reference: str | None = None
    other: str | None = None
    rubric: str = ""
    question_1: str = ""
    answer_1: str | None = None


def find_parts(contract: Contract, request: Request) -> RequestParts:
    """Split the last message of a request into its parts, as the contract describes.

    Try each template (frame) of the contract first, then labelled lines if the contract allows them. Raise Unanswerable
    if the contract defines no parts, if none of its templates matches, or if the match is ambiguous. Raise TimeoutError
    if a template takes too long to match.
    """
    if not contract.parts:
        raise Unanswerable("its parts are not known")
    text = (list_turns(request) or [("", "")])[-1][1].rstrip()
    readings = list[tuple[int, str, dict[str, str]]]()
    for frame in contract.parts:
        # The answer may contain the text that closes it: the last match is the client's.
        pattern = compile_frame(frame, ("answer",))
        if frame != LABELLED and (match := pattern.search(text, timeout=SEARCH_SECONDS)):
            readings.append((match.start("answer"), frame, match.groupdict()))
    if not readings and LABELLED in contract.parts:
        return _read_labelled(contract, text)
    if not readings:
        raise Unanswerable("its parts do not stand as its client writes them")
    # Everything after the first opening of an answer may be the answer's own text, even a match of another frame.
    _, frame, parts = min(readings, key=lambda reading: reading[0])
    if len(parts.keys() & {*JUDGED}) > 1:
        for greedy in ((), JUDGED):
            other = compile_frame(frame, greedy).search(text, timeout=SEARCH_SECONDS)
            if other is None or other.groupdict() != parts:
                raise Unanswerable("its answers cannot be told apart: one imitates what stands between them")
    return msgspec.convert({name: part.strip() for name, part in parts.items()}, RequestParts)


def _read_labelled(contract: Contract, text: str) -> RequestParts:
    """Split a prompt into its parts by labelled lines such as `Question:` and `Answer:`.

    The answer must be the last part. Everything after its label belongs to it, up to the line that asks for the verdict
    at the end of `text`. Raise Unanswerable if the question or the answer is missing or empty, or if the end of the
    answer is ambiguous.
    """
    lines = text.split("\n")
    opened = {at: match for at, line in enumerate(lines) if (match := DATA.match(line)) and not ASKS.match(line)}
    first = next((at for at, match in opened.items() if _is_answer(match[0])), None)
    if first is None:
        raise Unanswerable("no line names its answer, as `Answer:` does")
    behind = [at for at, line in enumerate(lines) if at > first and at not in opened and ASKS.match(line)]
    end = behind[0] if behind else len(lines) - bool(CLOSING.match(lines[-1]))

    def asks(part: list[str]) -> bool:
        pattern = contract.pattern
        return pattern is not None and bool(pattern.search("\n" + "\n".join(part), timeout=SEARCH_SECONDS))

    # A line that only looks like an instruction may be part of the answer.
    foreign = end < len(lines) and contract.pattern is not None and not asks(lines[end:])
    if len(behind) > 1 or foreign or asks(lines[first:end]):
        raise Unanswerable("it does not show where its answer ends; ask for the verdict in one last line")
    parts: dict[str, list[str]] = {"question": [], "reference": [], "answer": []}
    for at, until in pairwise([*opened, end]):
        name = opened[at][0]
        kind = "answer" if _is_answer(name) else "reference" if REFERENCES.search(name) else "question"
        if at > first:
            raise Unanswerable("another line behind its answer names a part; put the answer last, on one line")
        parts[kind].append("\n".join([lines[at][len(name) :], *lines[at + 1 : until]]).strip())
    question, reference, (answer,) = "\n\n".join(parts["question"]), "\n\n".join(parts["reference"]), parts["answer"]
    # If a label was only a similar word, the question or the answer is empty.
    if not question or not answer:
        raise Unanswerable("no line names its question, as `Question:` does, or nothing stands there")
    return RequestParts(answer=answer, question=question, reference=reference or None)


def _is_answer(name: str) -> bool:
    return bool(ANSWERS.search(name)) and not REFERENCES.search(name)
