"""critic.stats.aggregate: means, against brute force."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgments import of_turn

from critic.errors import UsageError
from critic.records import Conversation, ConversationTurn, Judgment
from critic.stats.aggregate import Cell, asked_of, by_cell, mean

SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers(1, 10)), max_size=8)


@given(SCORES, st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_a_mean_counts_and_bounds_what_is_missing(scores: dict[str, int | None], keys: list[str]) -> None:
    aggregate = mean(scores, keys, (1, 10))
    assert aggregate.n + aggregate.failed <= aggregate.asked == len(keys)
    valid = [scores[key] for key in keys if scores.get(key) is not None]
    assert aggregate.n == len(valid)
    assert aggregate.failed == sum(key in scores and scores[key] is None for key in keys)
    if not keys:
        assert aggregate.low is aggregate.high is aggregate.value is None and aggregate.coverage == 0
        return
    assert aggregate.low == pytest.approx(fmean(1 if scores.get(key) is None else scores[key] for key in keys))
    assert aggregate.high == pytest.approx(fmean(10 if scores.get(key) is None else scores[key] for key in keys))
    assert (aggregate.value is None) == (not valid)
    if valid:
        assert aggregate.value == pytest.approx(fmean(valid))
        assert aggregate.low - 1e-9 <= aggregate.value <= aggregate.high + 1e-9
    assert aggregate.coverage == len(valid) / len(keys)


def verdict(protocol: str = "direct", **changes: object) -> Judgment:
    return of_turn("c1", protocol, **{"condition": "own", "turn": 1, "score": 5.0, **changes})


@pytest.mark.parametrize(
    ("verdicts", "message"),
    [
        ([verdict(), verdict(score=6.0)], "conversation 'c1', turn 1, condition own: two direct verdicts"),
        ([verdict(score=0.0)], "direct score 0; expected 1 to 10"),
        ([verdict(protocol="pairwise", score=50.0)], "pairwise score 50; expected 0 to 1"),
        ([verdict(score=None)], "either a score or a failure"),
        ([verdict(failure="empty")], "either a score or a failure"),
        ([verdict(turn=None, score=None)], "whole conversation"),
    ],
)
def test_verdicts_that_cannot_be_together_are_refused(verdicts: list[Judgment], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        by_cell(verdicts, verdicts[0].protocol)
    assert by_cell([verdict(protocol="quality", score=99.0)], "direct") == {}, "others' own"


def talks(turns: dict[str, list[ConversationTurn]]) -> list[Conversation]:
    return [Conversation(id=key, benchmark="b", lang="en", group=key, turns=some) for key, some in turns.items()]


def test_what_is_asked_depends_on_condition_protocol_and_judging() -> None:
    bare = ConversationTurn(prompt="q", reference="r")
    full = ConversationTurn(prompt="q", reference="r", checklist=["?"], focus="f")
    none = ConversationTurn(prompt="q")
    conversations = talks({"one": [full], "two": [bare, full], "three": [full, none, bare]})

    def ids(cell: Cell, protocol: str = "direct", backed: bool = True) -> set[str]:
        return set(asked_of(conversations, cell, protocol, backed=backed))

    assert ids(Cell("own", 1)) == {"one", "two", "three"} and ids(Cell("own", 2)) == {"two"}
    assert ids(Cell("own", 2), "pairwise", backed=False) == {"two", "three"}
    assert ids(Cell("own", None)) == {"two"} and ids(Cell("own", None), backed=False) == {"two", "three"}
    assert ids(Cell("single_turn", 3)) == {"three"} and ids(Cell("single_turn", 2)) == {"two"}
    assert ids(Cell("perfect_perception", 1)) == set() and ids(Cell("perfect_perception", 3)) == {"three"}
    assert ids(Cell("own", 1), "checklist") == {"one", "three"}
    assert ids(Cell("own", 2, "no_focus")) == {"two"} and ids(Cell("own", 3, "no_focus")) == set()
    focused = talks({"without": [bare], "with": [ConversationTurn(prompt="q", reference="r", focus="f")]})
    assert set(asked_of(focused, Cell("own", 1, "no_focus"), "direct")) == {"with"}
    assert set(asked_of(conversations, Cell("own", 2), "direct", ["three"])) == {"two", "three"}
    assert set(asked_of(conversations, Cell("own", None), "direct", ["one"])) == {"one", "two", "three"}
