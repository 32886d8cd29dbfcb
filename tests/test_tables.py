"""Tables in files: one reader for scores, human-scored rows and benchmarks."""

import sys
from pathlib import Path

import pytest
from conftest import human_row

from critic import human_scored, tables
from critic.errors import UsageError

BROKEN: list[tuple[str, bytes, str]] = [
    ("empty.csv", b"", "empty.csv: no header"),
    ("head.csv", b"id,image\n", "head.csv: no rows"),
    ("short.csv", b"id,image\n1,2\n3\n", "short.csv:3: 1 cells, but the header has 2"),
    ("long.csv", b'id,image\n"a\nb",2\n1,2,3\n', "long.csv:4: 3 cells, but the header has 2"),
    ("twice.csv", b"id,id\n1,2\n", "twice.csv:1: the column 'id' is there twice"),
    ("gbk.csv", "id,image\n1,2\n3,图片很大\n".encode("gbk"), "gbk.csv:3: not UTF-8"),
    ("quote.csv", b'id,image\n1,"a\n', "quote.csv:2: not CSV"),
    ("list.jsonl", b"[1]\n", "list.jsonl:1: "),
    ("torn.xlsx", b"PK\x03\x04", "torn.xlsx: not a spreadsheet"),
    ("torn.parquet", b"PAR1", "torn.parquet: not a parquet file"),
    ("sheet.tsv", b"id\n", "sheet.tsv: cannot read .tsv; expected .csv, .jsonl, .parquet, .xlsx"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_what_cannot_be_read_is_one_line_that_names_the_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        list(tables.rows(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path}/{message}") and "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="no such file"):
        list(tables.rows(tmp_path / "absent.csv"))


def test_a_missing_library_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "t.xlsx").write_bytes(b"")
    with pytest.raises(UsageError, match=r"pip install openpyxl or save the sheet as CSV UTF-8$"):
        list(tables.rows(tmp_path / "t.xlsx"))


def test_a_csv_row_is_named_by_the_line_that_it_begins_on(tmp_path: Path) -> None:
    """Behind cells of several lines, empty ones among them, and empty lines between rows."""
    path = tmp_path / "t.csv"
    path.write_text('\ufeffid,text\r\na,"one\n\nthree"\r\n\r\nb,x\r\n', "utf-8", newline="")
    found = list(tables.rows(path))
    assert found == [(f"{path}:2", {"id": "a", "text": "one\n\nthree"}), (f"{path}:6", {"id": "b", "text": "x"})]


def test_human_scored_rows_keep_empty_lines_and_say_where_they_are_wrong(tmp_path: Path) -> None:
    columns = [name for name in human_row(0) if not isinstance(human_row(0)[name], list | dict)]

    def written(**changes: object) -> Path:
        rows = [human_row(0) | {"response": "one\n\nthree"}, human_row(1) | changes]
        cells = [",".join(f'"{row[name]}"' for name in columns) for row in rows]
        path = tmp_path / "rows.csv"
        path.write_text("\n".join([",".join(columns), *cells]) + "\n", "utf-8")
        return path

    assert human_scored.load(written()).rows[0].response == "one\n\nthree"
    for changes, message in [
        ({"human_score": 99}, "rows.csv:5: human_score 99 is outside its scale"),
        ({"id": human_row(0)["id"]}, r"rows.csv:5: duplicate id '.*', first at .*rows.csv:2"),
    ]:
        with pytest.raises(UsageError, match=message):
            human_scored.load(written(**changes))
