"""Plan of labelling: the items of each rater, their order and their sides, fixed by hashes before labelling begins.

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
    """An item for a rater. `item`: its id. `place`: position in the rater's order, 0..1. `swapped`: B is shown as A."""

    rater: str
    place: float
    item: str
    role: Role
    swapped: bool


def draw(*words: str) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on `words`.

    >>> draw("side", "ann", "q1") == draw("side", "ann", "q1")
    True
    """
    digest = hashlib.blake2b("\0".join(words).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def is_swapped(rater: str, item: str) -> bool:
    """Return True if `rater` sees the two sides of `item` in swapped order, decided by a hash of both.

    Pass "" as `rater` for programs that give all raters one shared file.
    """
    return draw("side", rater, item) < 0.5


def plan(
    items: Sequence[str], checks: Sequence[str], raters: Sequence[str], overlap: float = 0.0, repeat: float = 0.0
) -> Iterator[Task]:
    """Yield the tasks of all raters for `items` and `checks` (ids). They are not sorted by `place`.

    `overlap`: share of the items that every rater gets, 0..1. `repeat`: share of a rater's items shown twice, 0..1.

    >>> [(task.rater, task.role) for task in plan(["q1"], ["c1"], ["ann", "ben"], overlap=1.0)]
    [('ann', 'item'), ('ann', 'check'), ('ben', 'item'), ('ben', 'check')]

    The order is each rater's own, follows neither the file nor another rater, and about half of the items are swapped:

    >>> items = [f"item-{number}" for number in range(200)]
    >>> tasks = sorted(plan(items, [], ["ann", "ben"], overlap=1.0), key=lambda task: task.place)
    >>> ann, ben = [task for task in tasks if task.rater == "ann"], [task for task in tasks if task.rater == "ben"]
    >>> order, other = [task.item for task in ann], [task.item for task in ben]
    >>> items == order, items == other, order == other, order == sorted(order), other == sorted(other)
    (False, False, False, False, False)
    >>> set(tasks) == set(plan(items[::-1], [], ["ann", "ben"], overlap=1.0))
    True
    >>> 60 < sum(task.swapped for task in ann) < 140
    True
    >>> {task.item for task in ann if task.swapped} == {task.item for task in ben if task.swapped}
    False
    """
    # By a hash, so that neighbours in the file, often alike, go to different raters.
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
        # Checks come among the other items, so that nobody can tell them from these.
        for item in checks:
            yield Task(rater, draw("order", rater, item), item, "check", is_swapped(rater, item))
