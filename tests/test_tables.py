"""Tables in files: one reader for scores, human-scored rows and benchmarks."""

import csv
import gzip
import io
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import human_row, write_xlsx
from msgspec.structs import replace

from critic import human_scored, jsonl, tables
from critic.errors import UsageError
from critic.records import Turn
from eval_agreement.reading.tables import Source

BROKEN: list[tuple[str, bytes, str]] = [
    ("empty.csv", b"", "empty.csv: no header"),
    ("head.csv", b"id,image\n", "head.csv: no rows"),
    ("short.csv", b"id,image\n1,2\n3\n", "short.csv:3: 1 cells, but the header has 2"),
    ("long.csv", b'id,image\n"a\nb",2\n1,2,3\n', "long.csv:4: 3 cells, but the header has 2"),
    ("twice.csv", b"id,id\n1,2\n", "twice.csv:1: the column 'id' is there twice"),
    ("mixed.csv", "id,image\n1,图片很大\n".encode() + b"3,\xff\n", "mixed.csv:3: not UTF-8"),
    ("cut.csv", "id,image\n图片,很大\n图".encode("gbk")[:-1], "cut.csv:3: not GB18030"),
    ("torn.csv", "id,image\n1,2\n".encode("utf-16")[:-1], "torn.csv:2: not UTF-16"),
    ("one.csv", b"id\na,b\n", "one.csv:2: 2 cells, but the header has 1"),
    ("marks.csv", b"marks\n3,4\n", "marks.csv:2: 2 cells, but the header has 1"),
    ("wide.csv", b"id;score\n1;2;5\n", "wide.csv:2: 3 cells, but the header has 2"),
    ("emptied.csv", b"id,image\n,\n", "emptied.csv: no rows"),
    ("quote.csv", b'id,image\n1,"a\n', "quote.csv:2: not CSV"),
    ("list.jsonl", b"[1]\n", "list.jsonl:1: "),
    ("torn.xlsx", b"PK\x03\x04", "torn.xlsx: cannot be read as .xlsx: BadZipFile"),
    ("torn.parquet", b"PAR1", "torn.parquet: cannot be read as .parquet: ArrowInvalid"),
    ("sheet.txt", b"id\n", "sheet.txt: cannot read .txt; expected .csv, .tsv, .jsonl, .parquet, .xlsx"),
    ("torn.json", b"[{", "torn.json: not .json"),
    ("empty.json", b"[]", "empty.json: no rows"),
    ("column.json", b'{"a": [1]}', "column.json: no table; expected a list of rows"),
    ("numbers.json", b"[1]", "numbers.json: no table; expected a list of rows"),
    ("packed.csv.zst", b"id\n", "packed.csv.zst: cannot read .zst; expected .csv"),
    ("torn.jsonl.gz", b"{}\n", "torn.jsonl.gz: not whole, or no .gz"),
]


TEXT = {
    **dict.fromkeys(("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"), "图，“é” – zu groß"),
    "gbk": "图片很大, 答案联通；a〇",
    "gb18030": "图片很大㐀",
    "cp1252": "“Café” naïve – Größe, 5 €",
}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", TEXT)
def test_a_csv_of_any_usual_encoding_and_separator_says_the_same(tmp_path: Path, encoding: str, separator: str) -> None:
    """The header's cells may contain other separators; lines are those of the file, blank ones included."""
    text = f"{TEXT[encoding]}\n\n"
    rows = [["id", '"text, with; marks"', "score"], ["a", f'"{text}"', "1"], [], ["b", text[:1], "2"]]
    path = tmp_path / "t.csv"
    path.write_bytes("\r\n".join(separator.join(row) for row in rows).encode(encoding))
    (first, first_row), (second, second_row) = tables.rows(path)
    assert (first, second) == (f"{path}:2", f"{path}:6")
    assert first_row == {"id": "a", "text, with; marks": text, "score": "1"}
    assert second_row == {"id": "b", "text, with; marks": text[:1], "score": "2"}


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
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="pip install pyarrow"):
        list(tables.rows(tmp_path / "t.parquet"))


def unpack(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def workbook(path: Path, formula: str, cached: str, mark: bytes, heading: str = "text", kind: bytes = b"") -> Path:
    """Write a sheet with a formula in B3, with the value, type and computing mark that a program would write."""
    import openpyxl

    book = openpyxl.Workbook()
    for row in ([" id ", heading], ["a", "=1+1 is 2"], ["b", f"={formula}"]):
        book.active.append(row)
    book.active["B2"].data_type = "s"  # a text, whatever it begins with
    book.save(path)
    parts = unpack(path)
    sheet, book_part = "xl/worksheets/sheet1.xml", "xl/workbook.xml"
    written = re.sub(rb"(</f>)<v ?/>|(</f>)<v></v>", rb"</f>" + cached.encode(), parts[sheet])
    assert b"</f>" + cached.encode() in written and b'fullCalcOnLoad="1"' in parts[book_part]
    written = written.replace(b'r="B3"', b'r="B3"' + kind)
    parts |= {sheet: written, book_part: parts[book_part].replace(b'fullCalcOnLoad="1"', mark)}
    return pack(path, parts)


@pytest.mark.parametrize(
    ("formula", "cached", "mark"),
    [
        # openpyxl and xlsxwriter write a text that begins with "=" so: nothing is computed, and the text is lost.
        ("12", "<v/>", b'fullCalcOnLoad="1"'),
        ("12", "<v>0</v>", b'fullCalcOnLoad="1"'),
        # A formula without a stored value is no empty cell.
        ("AVERAGE(C3:D3)", "<v/>", b""),
        ("AVERAGE(C3:D3)", "", b""),
    ],
)
def test_a_formula_that_may_not_be_computed_is_refused(tmp_path: Path, formula: str, cached: str, mark: bytes) -> None:
    path = workbook(tmp_path / "t.xlsx", formula, cached, mark)
    with pytest.raises(UsageError, match=r"t\.xlsx:row 3: B3 is a formula that may not be computed; .*\.csv"):
        list(tables.rows(path))
    aside = workbook(tmp_path / "aside.xlsx", "12", cached, mark, heading="")
    assert [row for _, row in tables.rows(aside)] == [{"id": "a"}, {"id": "b"}], "nobody reads what has no heading"


@pytest.mark.parametrize(
    ("cached", "kind", "value"), [("<v>0</v>", b"", 0), ("<v>7.5</v>", b"", 7.5), ("<v/>", b' t="str"', None)]
)
def test_a_formula_that_was_computed_has_its_value(
    tmp_path: Path, cached: str, kind: bytes, value: float | None
) -> None:
    """An empty text is a value too, which spreadsheet programs write with the type `str`."""
    path = workbook(tmp_path / "t.xlsx", "AVERAGE(C3:D3)", cached, b"", kind=kind)
    rows = [row for _, row in tables.rows(path)]
    assert rows == [{"id": "a", "text": "=1+1 is 2"}, {"id": "b", "text": value}]


ROUNDED = [1.12345678901235e17, 1.1234567890123e15, "1.12346E+17", "1.12346e+17", "1,12346E+17", "1E+20"]


@pytest.mark.parametrize("key", ROUNDED)
def test_an_id_that_a_spreadsheet_program_rounded_is_refused(tmp_path: Path, key: object) -> None:
    """In a column with intact ids the first rounded one is named, with their number."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"id": each, "score": 5}) + "\n" for each in ("a", key, key)), "utf-8")
    with pytest.raises(UsageError, match=r"t\.jsonl:2: the id '1.*, the first of 2, is a long number .* as text"):
        Source(path).keys()
    with pytest.raises(UsageError, match=r"here: the id .* is a long number"):
        tables.Ids().add("here", tables.cell_text(key) or "")
    if isinstance(key, float):  # as it stands in a sheet
        with pytest.raises(UsageError, match=r"t\.xlsx:row 3: the group '1"):
            cells: list[dict[str, object]] = [{"id": 1.0, "group": "g"}, {"id": 2.0, "group": key}]
            Source(write_xlsx(tmp_path / "t.xlsx", cells)).keys()


def test_what_spreadsheet_programs_leave_of_emptied_rows_and_columns_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfid, score ,,\r\na,1,,\r\n,,,\r\nb,,,note\r\n,,,\r\n")
    rows = [("t.csv:2", {"id": "a", "score": "1"}), ("t.csv:4", {"id": "b", "score": ""})]
    assert [(place.rpartition("/")[2], row) for place, row in tables.rows(tmp_path / "t.csv")] == rows
    with pytest.raises(UsageError, match=r"a folder; expected a file"):
        list(tables.rows(tmp_path))


XSTRINGS = {
    "one_x000D_\ntwo": "one\r\ntwo",
    "tab_x0009_bell_x0007_": "tab\tbell\a",
    "_x005F_x000D_": "_x000D_",  # a written `_x000D_`, which is no carriage return
    "_x005f_x005F_": "_x005F_",
    "_xD83D__xDE00_ _xD83D_": "\U0001f600 \ufffd",
    "_X000D_ _x00D_ a_x b_": "_X000D_ _x00D_ a_x b_",
    "plain x005F_": "plain x005F_",
}
"""Texts as workbooks hold them, and what they say (ECMA-376-1, 22.9.2.19)."""


@pytest.mark.parametrize("stored", ["inline", "shared", "formula"])
def test_escapes_in_a_workbook_are_read_as_their_characters(tmp_path: Path, stored: str) -> None:
    """The text may be in its cell, in the shared strings, the value of a formula, or a heading."""
    path = write_xlsx(tmp_path / "t.xlsx", [{"an_x000D_swer": text} for text in XSTRINGS])
    parts = unpack(path)
    sheet, strings = parts["xl/worksheets/sheet1.xml"].decode(), []

    def moved(cell: re.Match[str]) -> str:
        strings.append(cell[2])
        if stored == "shared" or cell[1] == "A1":
            return f'<c r="{cell[1]}" t="s"><v>{len(strings) - 1}</v></c>'
        return f'<c r="{cell[1]}" t="str"><f>A1</f><v>{cell[2]}</v></c>'

    if stored != "inline":
        sheet = re.sub(r'<c r="(\w+)" t="inlineStr"><is><t[^>]*>(.*?)</t></is></c>', moved, sheet, flags=re.DOTALL)
        assert len(strings) == len(XSTRINGS) + 1
        namespace = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        table = "".join(f'<si><t xml:space="preserve">{text}</t></si>' for text in strings)
        parts["xl/sharedStrings.xml"] = f'<sst xmlns="{namespace}">{table}</sst>'.encode()
        kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
        part = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
        parts["[Content_Types].xml"] = parts["[Content_Types].xml"].replace(b"</Types>", part.encode())
        parts["xl/worksheets/sheet1.xml"] = sheet.encode()
        parts["xl/workbook.xml"] = parts["xl/workbook.xml"].replace(b'fullCalcOnLoad="1"', b"")
        pack(path, parts)
    assert [row for _, row in tables.rows(path)] == [{"an\rswer": text} for text in XSTRINGS.values()]
    assert [row["an\rswer"] for _, row in tables.read_numbered(path)] == [*XSTRINGS.values()]


def test_what_a_workbook_is_written_with_comes_back(tmp_path: Path) -> None:
    texts = [*XSTRINGS, *XSTRINGS.values(), "_x_x000D__x000D_"]
    texts = [text for text in texts if not re.search("[\a\ufffd]", text)]  # XML holds no bell
    path = write_xlsx(tmp_path / "t.xlsx", [{"text": tables.encode_xstring(text)} for text in texts])
    assert [row["text"] for _, row in tables.rows(path)] == texts


def test_a_text_that_a_workbook_has_cut_is_named(tmp_path: Path) -> None:
    rows = [{"id": "a", "response": "x" * 32_766}, {"id": "b", "response": "x" * 40_000}]
    path = write_xlsx(tmp_path / "t.xlsx", rows)  # openpyxl, as other writers, cuts it without a word
    with pytest.raises(UsageError, match=r"t\.xlsx:row 3: 'response' has 32767 characters, .* \.csv or \.jsonl"):
        list(tables.rows(path))
    assert [len(row["response"]) for _, row in tables.read_numbered(path)] == [32_766, 32_767]
    tables.write_csv(tmp_path / "t.csv", rows)
    assert [row["response"] for _, row in tables.rows(tmp_path / "t.csv")] == [row["response"] for row in rows]


def test_no_line_of_a_csv_begins_with_what_a_cell_says(tmp_path: Path) -> None:
    cells = ["two cats\r=cmd|' /C calc'!A0", "\r\n", "a\rb,c", 'say "\r"', "=1+1", "@x", "\t1", "-2", -2]
    path = tmp_path / "t.csv"
    tables.write_csv(path, [{"=cmd()": cell, "+b\rc": "end"} for cell in cells])
    text = path.read_bytes().decode()
    lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    safe = [f"'{cell}" if cell in ("=1+1", "@x", "\t1", "-2", "\r\n") else str(cell) for cell in cells]
    assert lines == [["'=cmd()", "'+b\rc"], *([cell, "end"] for cell in safe)]
    assert [row["'=cmd()"] for _, row in tables.rows(path)] == safe
    outside = re.sub('"(""|[^"])*"', "", text)
    assert "\r" not in outside and outside.count("\n") == len(cells) + 1


def test_a_table_in_json_is_read_and_other_json_is_none(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"index": [7, 8], "prediction": ["two", ["a", "b"]]}')
    records = [{"index": 7, "prediction": "two"}, {"index": 8, "prediction": ["a", "b"]}]
    assert list(tables.rows(path)) == [(f"{path}:row {number}", row) for number, row in enumerate(records, 1)]
    assert [row for _, row in tables.read_numbered(path)] == records and tables.read_first_row(path) == records[0]
    path.write_text('{"a": 1}')
    assert tables.read_first_row(path) is None


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


def test_packed_rows_and_parquet_with_images_say_what_plain_rows_say(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [human_row(number) for number in range(5)]
    del rows[2]["history"]  # in Parquet each row has every column
    plain = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "rows.jsonl").write_bytes(plain)
    expected = human_scored.load(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(plain))
    loaded = human_scored.load(tmp_path / "rows.jsonl.gz")
    assert loaded.responses == expected.responses and loaded.raw == expected.raw
    (table := tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"id,score\na,3\nb,4\n"))
    cells = [{"id": "a", "score": "3"}, {"id": "b", "score": "4"}]
    assert list(tables.rows(table)) == [(f"{table}:2", cells[0]), (f"{table}:3", cells[1])]
    png = b"\x89PNG\r\n\x1a\n"
    pictured = [{**row, "image": {"bytes": png, "path": None} if number else None} for number, row in enumerate(rows)]
    parquet.write_table(pyarrow.Table.from_pylist(pictured), tmp_path / "rows.parquet")
    loaded = human_scored.load(tmp_path / "rows.parquet")
    address = "data:image/png;base64,iVBORw0KGgo="
    plain_bytes = [{**row, "image": png if number else None} for number, row in enumerate(rows)]
    parquet.write_table(pyarrow.Table.from_pylist(plain_bytes), tmp_path / "bytes.parquet")
    assert human_scored.load(tmp_path / "bytes.parquet").responses == loaded.responses
    for number, (each, same) in enumerate(zip(loaded.responses, expected.responses, strict=True)):
        assert each == replace(same, question=replace(same.question, images=[address] if number else []))


def test_what_is_packed_is_written_in_one_step_and_refused_where_it_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl.gz"
    turns = [Turn(user=str(number), assistant="b" * number) for number in range(300)]
    assert jsonl.write(path, turns) == 300 and not path.read_bytes().startswith(b"{")
    assert [turn for _, turn in jsonl.read(path, Turn)] == turns
    with pytest.raises(UsageError, match=r"name it \.jsonl"):
        jsonl.Appender(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"turns.jsonl.gz: not whole, or no \.gz"):
        list(jsonl.read(path, Turn))
