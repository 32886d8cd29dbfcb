"""Who labels what is planned in advance: balanced, with an overlap and repeats, in an order nobody chose."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from eval_agreement.annotate.plan import plan

ITEMS = [f"item-{number}" for number in range(200)]


@given(
    count=st.integers(0, 60), raters=st.integers(1, 7), overlap=st.floats(0, 1), repeat=st.floats(0, 0.5),
    checks=st.integers(0, 4),
)  # fmt: skip
def test_shares_are_even_and_every_item_is_labelled(
    count: int, raters: int, overlap: float, repeat: float, checks: int
) -> None:
    names = [f"r{number}" for number in range(raters)]
    known = [f"check-{number}" for number in range(checks)]
    tasks = list(plan(ITEMS[:count], known, names, overlap, repeat))
    items = [task for task in tasks if task.role == "item"]
    share = Counter(task.rater for task in items)
    assert max((share[name] for name in names), default=0) - min(share[name] for name in names) <= 1
    times = Counter(task.item for task in items)
    shared = int(overlap * count + 0.5)
    assert sorted(times.values()) == sorted([raters] * shared + [1] * (count - shared))
    assert len({(task.rater, task.item, task.role) for task in tasks}) == len(tasks)
    assert Counter(task.rater for task in tasks if task.role == "check") == Counter(
        dict.fromkeys(names * bool(checks), checks)
    )
    place = {(task.rater, task.item): task for task in items}
    for again in (task for task in tasks if task.role == "repeat"):
        first = place[again.rater, again.item]
        assert first.place < 1 / 3 and again.place >= 2 / 3 and again.swapped != first.swapped
    for name in names:
        assert sum(task.role == "repeat" for task in tasks if task.rater == name) == int(repeat * share[name] + 0.5)


def test_the_order_is_each_raters_own_and_does_not_follow_the_file() -> None:
    tasks = list(plan(ITEMS, [], ["a", "b"], overlap=1.0))
    order = {
        name: [task.item for task in sorted(tasks, key=lambda one: one.place) if task.rater == name] for name in "ab"
    }
    assert order["a"] != order["b"] != sorted(order["b"])
    assert set(plan(ITEMS, [], ["a", "b"], 1.0)) == set(plan(ITEMS[::-1], [], ["a", "b"], 1.0))
    assert 60 < sum(task.swapped for task in tasks if task.rater == "a") < 140
    sides = {name: {task.item for task in tasks if task.rater == name and task.swapped} for name in "ab"}
    assert sides["a"] != sides["b"]
