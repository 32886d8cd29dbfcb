"""Who labels which item, in which order, and on which side: all of it follows from hashes, before anybody begins.

- Each rater's share differs from another's by one item at most; a share `overlap` of the items goes to every rater.
- A share `repeat` of a rater's items comes a second time, in the second half, with the sides exchanged.
- Items with a known answer go to every rater, among the others.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Role = Literal["item", "repeat", "check"]


class Task(NamedTuple):
    """An item before a rater, at a `place` (0..1). `swapped`: the side B of the item is shown as A."""

    rater: str
    place: float
    item: str
    role: Role
    swapped: bool


def draw(*words: str) -> float:
    """A number in 0..1 (1 itself excluded) that the words alone decide."""
    digest = hashlib.blake2b("\0".join(words).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def is_swapped(rater: str, item: str) -> bool:
    """Whether a rater sees the sides exchanged; for programs whose raters share a file, `rater` is empty."""
    return draw("side", rater, item) < 0.5


def plan(
    items: Sequence[str], checks: Sequence[str], raters: Sequence[str], overlap: float = 0.0, repeat: float = 0.0
) -> Iterator[Task]:
    """The tasks of `items` and `checks`, by their ids. `overlap` and `repeat` are shares, 0..1."""
    order = sorted(items, key=lambda item: draw("deal", item))
    shared = math.floor(overlap * len(order) + 0.5)
    for first, rater in enumerate(raters):
        mine = order[:shared] + order[shared + first :: len(raters)]
        again = sorted(mine, key=lambda item: draw("again", rater, item))
        twice = set(again[: math.floor(repeat * len(mine) + 0.5)])
        for item in mine:
            place, swapped = draw("order", rater, item), is_swapped(rater, item)
            # What comes twice comes first early on, and again late: nobody remembers, and nobody grows tired of it.
            yield Task(rater, place / 3 if item in twice else place, item, "item", swapped)
            if item in twice:
                yield Task(rater, 2 / 3 + place / 3, item, "repeat", not swapped)
        for item in checks:
            yield Task(rater, draw("order", rater, item), item, "check", is_swapped(rater, item))
