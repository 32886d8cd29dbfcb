"""The vocabulary of pages: text and HTML."""

from pathlib import Path

from critic.page.blocks import Bar, Columns, Part, Section, Table, TableCell, as_text, axis_of, lean, number, row
from critic.page.page import render, write


def test_text_lines_up_with_wide_characters_and_hides_what_is_folded() -> None:
    table = Table(caption="c", head=["", "n"], rows=[row("描述", 1), row("abcd", 22)])
    folded = Table(caption="hidden", head=[""], rows=[], folded=True)
    printed = as_text([Section(heading="h", tables=[table, folded]), Section(heading="empty", tables=[folded])])
    assert "描述   1\nabcd  22" in printed and "hidden" not in printed and "empty" not in printed


def test_the_page_escapes_what_comes_from_files(tmp_path: Path) -> None:
    hostile = "</pre><script>alert(1)</script>"
    section = Section(heading=hostile, readings=[hostile], tables=[Table(caption=hostile, head=[hostile], rows=[])])
    write(tmp_path / "p.html", hostile, hostile, [section], {hostile: {"x": hostile}})
    assert "<script" not in (tmp_path / "p.html").read_text("utf-8")


def test_parts_of_a_section_are_told_apart_in_text_and_page(tmp_path: Path) -> None:
    """What a part says stands under its heading; small print in brackets; a part that only folds says nothing."""
    table = Table(caption="c", head=["", "x"], rows=[row("a", TableCell("1.0", "0.9–1.1"), about="why")])
    quiet = Part(heading="quiet", tables=[Table(caption="hidden", head=[""], rows=[], folded=True)])
    section = Section(key="k", heading="h", parts=[Part(heading="loud", readings=["said"], tables=[table]), quiet])
    printed = as_text([section])
    assert printed.index("loud") < printed.index("said") < printed.index("1.0 (0.9–1.1)")
    assert "quiet" not in printed and "hidden" not in printed
    write(tmp_path / "p.html", "t", "about", [section], {})
    page = (tmp_path / "p.html").read_text("utf-8")
    assert '<section id="k">' in page and 'href="#k"' in page and "<h3>loud</h3>" in page and "<h3>quiet</h3>" in page
    assert "<small>why</small>" in page and "<small>0.9–1.1</small>" in page


def test_a_last_column_that_says_nothing_is_left_out() -> None:
    full = Table(caption="c", head=["", "n", "range"], rows=[row("a", 1, ""), row("b", 2, "0 … 1")])
    empty = Table(caption="c", head=["", "n", "range"], rows=[row("a", 1, ""), row("b", 2, TableCell(""))])
    assert lean(full) == full and lean(Table(caption="c", head=["", "x"], rows=[])).head == ["", "x"]
    assert lean(empty).head == ["", "n"] and [len(one.cells) for one in lean(empty).rows] == [1, 1]


def test_columns_make_rows_whose_bars_share_an_axis() -> None:
    columns = Columns[tuple[str, float]](
        ("name", lambda pair: pair[0]),
        ("twice", lambda pair: number(2 * pair[1], 1)),
        ("n", lambda pair: 3),
        bar=lambda pair: Bar(pair[1], (pair[1] - 1, pair[1] + 1)),
        strong=lambda pair: pair[1] < 0,
    )
    made = columns.table("c", [("a", 1.5), ("b", -0.04)], axis=(-5, 5), drawn=2)
    assert made.head == ["name", "twice", "n"] and [one.strong for one in made.rows] == [False, True]
    assert [cell.text for one in made.rows for cell in one.cells] == ["3.0", "3", "−0.1", "3"]
    assert axis_of(one.bar for one in made.rows) == (0.0, 2.5)
    assert axis_of((one.bar for one in made.rows), centred=True) == (-2.5, 2.5)


def test_a_page_of_another_package_extends_the_same_base() -> None:
    """The audit's template is its own, its head, styles and tables are those of every page."""
    shared = render("critic.page", "report.html.jinja", {"title": "t", "about": "", "sections": [], "origin": {}})
    facts = {
        "title": "t", "verdicts": {}, "warnings": [], "sections": [Section(key="k", heading="h")], "confusion": {},
        "worst": {}, "failures": {}, "ratings": [], "long": 9,
        "origin": {"samples": {}, "train": None, "versions": {},
                   "interval": {"level": 0.95, "method": "m", "resamples": 1, "seed": 0}},
    }  # fmt: skip
    audit = render("eval_agreement.page", "report.html.jinja", facts)
    head = shared[: shared.index("@media (max-width")].splitlines()
    assert len(head) > 40 and set(head) <= set(audit.splitlines())
