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
    """One item before one rater, at a `place` (0..1) among its tasks. `swapped`: the side B of the item is shown as
    A."""

    rater: str
    place: float
    item: int
    role: Role
    swapped: bool


def draw(*words: object) -> float:
    """A number in 0..1 (1 itself excluded) that the words alone decide."""
    digest = hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def is_swapped(seed: int, rater: str, item: str) -> bool:
    return draw(seed, "side", rater, item) < 0.5


def plan(
    items: Sequence[tuple[int, str]],
    checks: Sequence[tuple[int, str]],
    raters: Sequence[str],
    overlap: float = 0.0,
    repeat: float = 0.0,
    seed: int = 0,
) -> Iterator[Task]:
    """The tasks of `items` and `checks`, (number, id) each. `overlap` and `repeat` are shares, 0..1."""
    order = sorted(items, key=lambda item: draw(seed, "deal", item[1]))
    shared = math.floor(overlap * len(order) + 0.5)
    for place, rater in enumerate(raters):
        mine = order[:shared] + order[shared + place :: len(raters)]
        again = sorted(mine, key=lambda item: draw(seed, "again", rater, item[1]))
        twice = {number for number, _ in again[: math.floor(repeat * len(mine) + 0.5)]}
        for number, key in mine:
            at, swapped = draw(seed, "order", rater, key), is_swapped(seed, rater, key)
            # What comes twice comes first early on, and again late: nobody remembers, and nobody grows tired of it.
            yield Task(rater, at / 3 if number in twice else at, number, "item", swapped)
            if number in twice:
                yield Task(rater, 2 / 3 + at / 3, number, "repeat", not swapped)
        for number, key in checks:
            yield Task(rater, draw(seed, "order", rater, key), number, "check", is_swapped(seed, rater, key))
