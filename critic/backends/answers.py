"""Find the judged answer in a prompt, for scoring heads that read the answer's tokens as well as the prompt's last."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import eq
from statistics import fmean
from typing import Any

_QUOTED = re.compile(r"^> .*(?:\n> .*)*", re.MULTILINE)


def cut_answer(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a prompt without its last quoted text, which is the judged answer.

    Messages with images (content in parts) are returned unchanged.

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
    """Return the length of the common prefix of two sequences of token ids.

    >>> count_common([7, 7, 1, 2], [7, 7, 3])
    2
    """
    return sum(takewhile(bool, map(eq, first, second)))


def find_answer(ids: Sequence[int], without: Sequence[int]) -> int:
    """Return the index of the first token of the judged answer in a prompt.

    Args:
        ids: Token ids of the prompt.
        without: Token ids of the prompt without the answer (`cut_answer`). If they equal `ids`, return 0: the whole
            prompt then counts as the answer.

    >>> find_answer([7, 7, 1, 2, 9], [7, 7, 9]), find_answer([7, 7], [7, 7])
    (2, 0)
    """
    common = count_common(ids, without)
    return common if common < len(ids) else 0


def rate_answer(logits: Sequence[Sequence[float]], start: int) -> list[float]:
    """Return the rating probabilities of a scoring head that reads the last token and the mean over the answer.

    The head has two classes per rating. A rating's logit is the sum of two logits: that of its class in the first half,
    at the last token, and that of its class in the second half, averaged over the tokens from `start` on.

    Args:
        logits: The head's logits for a prompt [tokens × classes].
        start: Index of the first token of the judged answer (`find_answer`).

    >>> rate_answer([[9, 9, 5, 5], [9, 9, 0, 2], [1, 1, 4, 2]], start=1)
    [0.5, 0.5]
    """
    half = len(logits[-1]) // 2
    sums = [logits[-1][k] + fmean(token[half + k] for token in logits[start:]) for k in range(half)]
    shares = [math.exp(value - max(sums)) for value in sums]
    return [share / sum(shares) for share in shares]
