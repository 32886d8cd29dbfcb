"""JSON Lines files: errors with their place, and resuming after a torn write."""

import hashlib
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_one_line_error, human_row, run, write_csv, write_jsonl
from hypothesis import given
from hypothesis import strategies as st

from critic import jsonl
from critic.errors import UsageError
from critic.records import Turn


def test_errors_say_file_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    for text, message in [
        (b'{"user": "a", "assistant": "b"}\n{"user": 1, "assistant": "b"}\n', r"turns.jsonl:2: .*`\$.user`"),
        (b'{"user": "a"}\n', r"turns.jsonl:1: .*`assistant`"),
        (b'{"user": "a", "assistant": "b"}\n\n{"user"\n', r"turns.jsonl:3: "),
        (b'{"user": "a", "assistant": NaN}\n', r"turns.jsonl:1: .*byte 27\); NaN and Infinity are no JSON: write null"),
        (b'{"user": "a", "assistant": "\xff"}\n', r"turns.jsonl:1: not UTF-8"),
        (b" \n", r"turns.jsonl: the file is empty"),
    ]:
        path.write_bytes(text)
        with pytest.raises(UsageError, match=message):
            list(jsonl.read(path, Turn))
    with pytest.raises(UsageError, match="no such file"):
        list(jsonl.read(tmp_path / "none.jsonl", Turn))
    with pytest.raises(UsageError, match="a folder; expected a file"):
        list(jsonl.read(tmp_path, Turn))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"id": "a", "human_score": 1, "human_score": 10}', "human_score"),
        ('{"id": "a: b", "annotators": {"A": 1, "B": {"x": 2}, "A": 5}}', "A"),
        ('{"id": "a", "history": [{"user": "a"}, {"user": "b", "user": "c"}]}', "user"),
        ('{"id": {"a": 1}, "id": "\\ud83d"}', "id"),
        ('{"a": 1, "\\u0061": 2}', "a"),
        ('{"' + "k" * 1000 + '": 1, "' + "k" * 1000 + '": 2}', "k" * 100),
    ],
)
def test_a_key_that_comes_twice_is_refused_by_line(tmp_path: Path, line: str, key: str) -> None:
    """JSON readers keep the last one silently."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"id": "x"}}\n{line}\n', "utf-8")
    with pytest.raises(UsageError, match=r"rows.jsonl:2: the key '.* is there twice") as raised:
        list(jsonl.read(path, dict[str, Any]))
    assert key in str(raised.value) and len(str(raised.value).removeprefix(str(path))) < 300


LONG = "long " * 1000


@pytest.mark.parametrize(
    ("name", "changes", "parts"),
    [
        ("rows.jsonl", {"lang": LONG}, ["rows.jsonl:2", "$.lang"]),
        ("rows.jsonl", {"human_score": None, "annotators": {"r": LONG}}, ["rows.jsonl:2", "is not a number"]),
        ("rows.jsonl", {"gpt4_score_1_10": LONG}, ["rows.jsonl:2", "is not a number"]),
        ("rows.jsonl", {LONG: 1, "human_score": "x", "response": None}, ["rows.jsonl:2"]),
        ("rows.csv", {"human_score": LONG}, ["rows.csv:3", "is not a number"]),
        ("rows.csv", {"preference": LONG, "other": "a"}, ["rows.csv:3", "preference"]),
        ("rows.csv", {"annotators": LONG}, ["rows.csv:3", "must hold JSON"]),
        ("rows.csv", {LONG: "1", "lang": "xx"}, ["rows.csv:3"]),
    ],
)
def test_error_lines_quote_at_most_200_characters(
    tmp_path: Path, name: str, changes: dict[str, Any], parts: list[str]
) -> None:
    rows = [human_row(0), human_row(1) | changes]
    path = tmp_path / name
    if name.endswith(".csv"):
        write_csv(path, rows)
    else:
        write_jsonl(path, rows)
    done = run("data/human_scores.py", path, "--out", tmp_path / "out")
    assert_one_line_error(done, *parts)
    assert len(done.stderr.replace(str(path), "")) < 500, done.stderr


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"a\ud83d", "a\ufffd"),
        (r"\uDC00 b", "\ufffd b"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"a \\ud83d stays", r"a \ud83d stays"),
    ],
)
def test_half_a_character_in_a_line_is_replaced(tmp_path: Path, escaped: str, text: str) -> None:
    """A byte-order mark and a missing last line end are no matter."""
    path = tmp_path / "turns.jsonl"
    for mark, end in ((b"", b"\n"), (b"\xef\xbb\xbf", b"")):
        path.write_bytes(mark + f'{{"user": "{escaped}", "assistant": "b"}}'.encode() + end)
        assert [turn for _, turn in jsonl.read(path, Turn)] == [Turn(user=text, assistant="b")]


def test_a_line_that_is_nested_too_deep_is_named(tmp_path: Path) -> None:
    # Libraries of other tests raise the limit, and then deeper lines can be read.
    sys.setrecursionlimit(1000)
    path = tmp_path / "turns.jsonl"
    for deep in ("[" * 2000 + "]" * 2000, '{"a":' * 50_000 + "1" + "}" * 50_000):
        path.write_text(f'{{"user": "a", "assistant": "b"}}\n{{"user": "a", "assistant": "b", "more": {deep}}}\n')
        with pytest.raises(UsageError, match=r"turns.jsonl:2: nested too deep"):
            list(jsonl.read(path, Turn))


TEXTS = st.text(st.characters() | st.sampled_from("\ud83d\ude00\udc80\udce4\0"), max_size=6)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)
"""JSON values and what only looks like one: halves of characters, NaN, numbers of any size."""


@given(st.lists(ANYTHING, max_size=3))
def test_what_is_written_can_be_read(values: list[Any]) -> None:
    """Both writers are tried."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.jsonl"
        with jsonl.Appender(path) as file:
            for value in values:
                file.append({"value": value})
        read_back = [record["value"] for _, record in jsonl.read(path, dict[str, Any])] if values else []
        assert len(read_back) == len(values)
        jsonl.write(path, [{"value": value} for value in values])
        assert not values or [record["value"] for _, record in jsonl.read(path, dict[str, Any])] == read_back


@given(st.integers(0, 400))
def test_after_a_cut_at_any_byte_whole_lines_stay(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "turns.jsonl"
        turns = [Turn(user=f"用户{i}", assistant="x" * i) for i in range(6)]
        with jsonl.Appender(path) as file:
            for turn in turns:
                file.append(turn)
        content = path.read_bytes()
        path.write_bytes(content[:cut])
        with jsonl.Appender(path) as file:
            kept = path.read_bytes().count(b"\n")
            assert kept == content[: cut + 1].count(b"\n"), "a line that lacks but its end is whole"
            for turn in turns[kept:]:
                file.append(turn)
        assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b'{\n  "a": 1\n}', b"notes", b"# Title\n\nno end", b"1\n2\n3", b"a,b\n1,2"])
def test_a_file_that_is_none_of_ours_is_not_cut(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="given: not JSON Lines"):
        jsonl.repair(path)
    with pytest.raises(UsageError, match="given: not JSON Lines"):
        jsonl.Appender(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("how", ["link", "link to nothing yet", "linked folder"])
def test_what_another_name_leads_to_is_written_and_the_name_stays(how: str, tmp_path: Path) -> None:
    real, other, turns = tmp_path / "a" / "real.jsonl", tmp_path / "b" / "other.jsonl", [Turn(user="a", assistant="b")]
    if how == "link to nothing yet":
        real.parent.mkdir()
    else:
        jsonl.write(real, [*turns, Turn(user="c", assistant="d"), Turn(user="e", assistant="f" * 100)])
    if how == "linked folder":
        other = other.with_name(real.name)
        other.parent.symlink_to(real.parent)
    else:
        other.parent.mkdir()
        other.symlink_to(real)
    with jsonl.Appender(other) as file:
        file.append(Turn(user="g", assistant="h"))
    jsonl.write_sidecar(other, {"made": "by other"})
    assert jsonl.facts(real)["made"] == jsonl.facts(other)["made"]
    jsonl.write(other, (turn for _, turn in jsonl.read(other, Turn) if turn.user == "g"))
    assert real.samefile(other) and other.is_symlink() == (how in ("link", "link to nothing yet"))
    assert [turn.user for _, turn in jsonl.read(real, Turn)] == ["g"]
    assert not jsonl.sidecar(other).exists() and not jsonl.sidecar(real).exists()
    jsonl.write(other, turns * 2)
    assert real.samefile(other) and len([*jsonl.read(real, Turn)]) == 2
    jsonl.write_sidecar(other, {})
    with jsonl.Appender(other):
        assert not jsonl.sidecar(other).exists()
    with jsonl.lock_file(other):
        assert real.with_name(f"{real.name}.lock").is_file()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {real.name, other.name}
    with pytest.raises(UsageError, match="a device or a pipe"):
        jsonl.write(Path("/dev/null"), turns)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_what_a_full_disk_stops_leaves_what_was_there_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    path, limits = tmp_path / f"rows{suffix}", resource.getrlimit(resource.RLIMIT_FSIZE)
    jsonl.write(path, [{"a": "old"}])
    jsonl.write_sidecar(path, {"rows": 1})
    for count in (40, 4000):  # what stays in a buffer until the end, and what does not
        rows = [{"a": hashlib.sha256(bytes([number % 251, count % 251])).hexdigest()} for number in range(count)]
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
            with pytest.raises(UsageError, match=rf"rows{suffix}\S*: cannot be written: .*run the same command again"):
                jsonl.write(path, rows)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert {file.name for file in tmp_path.iterdir()} == {path.name, jsonl.sidecar(path).name}
        assert [row for _, row in jsonl.read(path, dict[str, Any])] == [{"a": "old"}]
    assert jsonl.write(path, rows) == 4000 and [file.name for file in tmp_path.iterdir()] == [path.name]
