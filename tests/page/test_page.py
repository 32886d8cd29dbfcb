"""The vocabulary of pages: text and HTML."""

import re
from pathlib import Path

from msgspec.structs import replace

from critic.page.blocks import Bar, Part, Section, Table, TableCell, row, ticks_of
from critic.page.leaderboards import leaderboards, state_leaders, table_of
from critic.page.page import as_text, render, write
from critic.stats.leaderboard import LeaderboardRow, score_of


def test_the_page_escapes_what_comes_from_files(tmp_path: Path) -> None:
    hostile = "</pre><script>alert(1)</script>"
    section = Section(heading=hostile, readings=[hostile], tables=[Table(caption=hostile, head=[hostile], rows=[])])
    write(tmp_path / "p.html", hostile, [section], {hostile: {"x": hostile}}, about=hostile)
    page = (tmp_path / "p.html").read_text("utf-8")
    assert page.count("<script") == page.count('<script>"use strict"') == 1 and "alert(1)" in page


def test_parts_of_a_section_are_told_apart_in_text_and_page(tmp_path: Path) -> None:
    """Parts print under their heading, small print in brackets; a part with only collapsed tables is empty."""
    table = Table(caption="c", head=["", "x"], rows=[row("a", TableCell("1.0", "0.9–1.1"), about="why")])
    quiet = Part(heading="quiet", tables=[Table(caption="hidden", head=[""], rows=[], collapsed=True)])
    section = Section(key="k", heading="h", parts=[Part(heading="loud", readings=["said"], tables=[table]), quiet])
    printed = as_text([section])
    assert printed.index("loud") < printed.index("said") < printed.index("1.0 (0.9–1.1)")
    assert "quiet" not in printed and "hidden" not in printed
    write(tmp_path / "p.html", "t", [section], {})
    page = (tmp_path / "p.html").read_text("utf-8")
    assert '<section id="k">' in page and 'href="#k"' in page and "<h3>loud</h3>" in page and "<h3>quiet</h3>" in page
    assert "<small>why</small>" in page and "<small>0.9–1.1</small>" in page


def test_ticks_differ_and_hold_every_bar() -> None:
    for low, high in ((0, 1), (41.2, 58.8), (-3.3, 12), (987, 1013), (5, 5), (0, 0), (0.401, 0.402), (-2, -1)):
        for most in (3, 4, 6, 8):
            ticks = ticks_of([None, Bar(low, (low, high))], most)
            assert ticks[0] <= low and high <= ticks[-1] and 2 <= len(ticks) <= most + 1
            assert len({f"{tick:g}" for tick in ticks}) == len(ticks)
    assert ticks_of([Bar(23, (12, 58))], 4) == [0, 20, 40, 60]


def test_a_page_of_another_package_extends_the_same_base() -> None:
    """The audit's template is its own, its head, styles and tables are those of every page."""
    facts = {"title": "t", "about": "", "verdicts": {}, "sections": [Section(key="k", heading="h")]}
    facts |= {"confusion": {}, "answers": {}, "origin": {"samples": {}}}
    shared = render("critic.page", "base.html.jinja", {**facts, "origin": {}})
    audit = render("eval_agreement.page", "report.html.jinja", facts)
    head = shared[: shared.index("@media (max-width")].splitlines()
    assert len(head) > 40 and set(head) <= set(audit.splitlines())


def entry(name: str, mark: float, condition: str = "own", period: int = 2, judge: str = "") -> LeaderboardRow:
    """Return a row with scores `mark`, `mark` + 1, … of 0 to 10 on 30 questions, repeated every `period`."""
    marks = {number: mark + number % period for number in range(30)}
    score = score_of(marks, {number: str(number) for number in marks}, (0, 10))
    scores = {"mean": score}
    return LeaderboardRow(key="k", caption="c", scores=scores, name=name, system=name, condition=condition, judge=judge)


def test_the_headline_says_who_is_first_and_whether_that_is_shown() -> None:
    rows = [entry("a", 3), entry("b", 5), entry("b, blind", 8, "no_image")]
    (sentence,) = state_leaders(leaderboards(rows))
    assert re.fullmatch(
        r"b is first with 5\.50 in “mean” \(95 % interval 5\.\d\d–5\.\d\d\), shown to be ahead of a \(3\.50\)\.",
        sentence,
    )
    assert state_leaders([]) == []
    tied = [entry("a", 5), *(entry(name, 4.6, period=3) for name in "cdef")]
    leaders = "c (5.60), d (5.60), e (5.60) and 2 others are tied in the first place by “mean”"
    assert state_leaders(leaderboards(tied)) == [f"{leaders}: none is shown to be ahead of another."]


def test_the_headline_of_one_model_compares_it_with_nobody() -> None:
    """It says what the score is out of, and over; a row without the image is no other model."""
    for rows in ([entry("a", 3)], [entry("a", 3), entry("a, blind", 8, "no_image")]):
        (sentence,) = state_leaders(leaderboards(rows))
        assert re.fullmatch(r"a has 3\.50 of 10 over 30 verdicts in “mean” \(95 % interval [\d.–]+\)\.", sentence)
    # Another model without a score is nobody to be ahead of.
    unrated = replace(entry("b", 0), scores={"mean": score_of({}, {1: "1"}, (0, 10))})
    (sentence,) = state_leaders(leaderboards([entry("a", 3), unrated]))
    assert sentence.startswith("a is first with 3.50 in “mean”") and "ahead" not in sentence


def test_models_of_two_judges_are_ranked_apart() -> None:
    """Judge k gives 4 points more: its worse model would be ahead of j's better one."""
    rows = [entry("a", 3, judge="j"), entry("b", 5, judge="j"), entry("c", 7, judge="k"), entry("d", 9, judge="k")]
    boards = leaderboards(rows)
    assert list(boards[0].standings) == ["b", "a", "d", "c"], "each judge's models best first, and no mean over judges"
    assert boards[0].places == {"a": (2, 2), "b": (1, 1), "c": (2, 2), "d": (1, 1)}
    lines = {line.name: line.cells[0] for line in table_of(boards[0]).rows}
    assert (lines["a"].text, lines["a"].small, lines["c"].small) == ("2", "by j", "by k")
    first, second = state_leaders(boards)
    assert first.startswith("By j: b is first with 5.50") and first.endswith("shown to be ahead of a (3.50).")
    assert second.startswith("By k: d is first with 9.50") and second.endswith("shown to be ahead of c (7.50).")
    # One model each: nobody is first.
    alone = state_leaders(leaderboards([rows[0], rows[2]]))
    assert [sentence[:21] for sentence in alone] == ["By j: a has 3.50 of 1", "By k: c has 7.50 of 1"]
    assert "mean of the models" in leaderboards([replace(row, judge="j") for row in rows])[0].standings
