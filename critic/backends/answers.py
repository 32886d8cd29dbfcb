"""Find the answer in a judge's prompt, for scoring heads that read the mean over its tokens beside the last token."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import eq
from statistics import fmean
from typing import Any

_QUOTED = re.compile(r"^> .*(?:\n> .*)*", re.MULTILINE)


def cut_answer(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a prompt without its last quoted text, which is the answer to be judged; unchanged with images.

    >>> cut_answer([{"role": "user", "content": "# Question\\n> ?\\n# Answer\\n> One.\\n> Two."}])[0]["content"]
    '# Question\\n> ?\\n# Answer\\n'
    """
    *before, last = messages
    content = last["content"]
    quoted = [*_QUOTED.finditer(content)] if isinstance(content, str) else []
    if not quoted:
        return [*messages]
    start, end = quoted[-1].span()
    return [*before, {**last, "content": content[:start] + content[end:]}]


def count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two rows of token ids.

    >>> count_common([7, 7, 1, 2], [7, 7, 3])
    2
    """
    return sum(takewhile(bool, map(eq, first, second)))


def find_answer(ids: Sequence[int], without: Sequence[int]) -> int:
    """Return the index of the token with which the answer of a prompt begins.

    `ids`: token ids of the prompt. `without`: those of the prompt as `cut_answer` returns it. If both are the same, all
    of the prompt counts as its answer.

    >>> find_answer([7, 7, 1, 2, 9], [7, 7, 9]), find_answer([7, 7], [7, 7])
    (2, 0)
    """
    common = count_common(ids, without)
    return common if common < len(ids) else 0


def rate_answer(logits: Sequence[Sequence[float]], start: int) -> list[float]:
    """Return the probabilities [ratings] by a head's logits [tokens × 2 ratings] of a prompt whose answer begins at
    token `start`.

    The first half of the classes reads the last token, the second half the mean over the tokens from `start` on.

    >>> rate_answer([[9, 9, 5, 5], [9, 9, 0, 2], [1, 1, 4, 2]], start=1)
    [0.5, 0.5]
    """
    half = len(logits[-1]) // 2
    sums = [logits[-1][k] + fmean(token[half + k] for token in logits[start:]) for k in range(half)]
    shares = [math.exp(value - max(sums)) for value in sums]
    return [share / sum(shares) for share in shares]
