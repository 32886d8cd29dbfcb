"""The run that every stage shares, on a stage that knows nothing of judging: it squares numbers by asking a model."""

import asyncio
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Done, assert_one_line_error, completion, human_row, run, run_apart, write_jsonl
from msgspec import Struct

from critic import jsonl
from critic.backends import Reply, Request
from critic.backends.scripted import ScriptedBackend
from critic.errors import Transient, UsageError
from critic.stages import run as run_module
from critic.stages.run import RunOptions, Stage
from critic.stages.totals import RunSummary, failed

Answer = Callable[[Request], Reply]


class Square(Struct, omit_defaults=True):
    number: int
    square: int | None = None
    failure: str | None = None
    detail: str | None = None

    key = property(lambda self: self.number)


class Squares(Stage[int, Square]):
    name, unit, counted = "square", "number", "squared"

    def __init__(self, out: Path, numbers: Iterable[int], answer: Answer, **options: Any) -> None:
        run = {"out": out, "concurrency": 4, "max_failed": 0.1, "retry_failed": False, **options}
        wanted = dict.fromkeys(numbers) if isinstance(numbers, range) else {}
        super().__init__(RunOptions(**run), Square, ScriptedBackend(answer), wanted)
        self.numbers, self.facts = numbers, {"numbers": len(wanted)}

    def problem(self, record: Square) -> str | None:
        return "not asked for; choose another --out" if record.number not in self.wanted else None

    def items(self) -> Iterable[int]:
        return (number for number in self.numbers if number not in self.done)

    async def work(self, item: int, keep: Callable[..., None]) -> None:
        detail = None
        try:
            reply = await self.backend.chat(Request(messages=[{"role": "user", "content": str(item)}], max_tokens=8))
            record = Square(item, int(reply.text))
        except Transient as error:
            record, detail = Square(item, failure="server_error"), str(error)
        keep(record)
        self.note(record.failure, detail)

    def summary(self, records: Iterable[Square]) -> RunSummary:
        outcomes = [record.failure for record in records]
        failures = Counter(failure for failure in outcomes if failure)
        said = [f"{len(outcomes)} squares, {failed(failures)}"]
        return RunSummary(count=len(outcomes), failures=failures, facts={"squares": len(outcomes)}, lines=said)


def square(request: Request) -> Reply:
    return Reply(text=str(int(request.messages[0]["content"]) ** 2))


def gone(request: Request) -> Reply:
    raise Transient("connection refused")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def fails(*numbers: int) -> Answer:
    return lambda request: gone(request) if int(request.messages[0]["content"]) in numbers else square(request)


def squares(path: Path) -> list[int | None]:
    """Squares by number, each number once."""
    square_of = {record.number: record.square for _, record in jsonl.read(path, Square)}
    assert len(square_of) == path.read_bytes().count(b"\n"), "a number is in the file twice"
    return [square_of[number] for number in sorted(square_of)]


def test_a_run_keeps_all_and_says_so_and_asks_nothing_twice(out: Path, capsys: Any) -> None:
    assert Squares(out, range(20), square).run() == 0
    assert squares(out) == [n * n for n in range(20)] and "20 squares, 0 failed" in capsys.readouterr().out
    facts = json.loads(jsonl.sidecar(out).read_text("utf-8"))
    assert facts["numbers"] == facts["squares"] == facts["squared_in_this_run"] == 20
    assert Squares(out, range(20), gone).run() == 0
    assert Squares(out, range(22), square).run() == 0 and squares(out)[20:] == [400, 441]
    assert "20 squared before, 2 to go" in capsys.readouterr().err


def test_too_many_failures_exit_3_and_are_asked_again_on_request_only(out: Path, capsys: Any) -> None:
    assert Squares(out, range(20), fails(3, 5)).run() == 0
    assert Squares(out, range(20), gone, max_failed=0.09).run() == 3
    assert "more than 9% failed" in capsys.readouterr().err
    assert Squares(out, range(20), square, retry_failed=True, max_failed=0.0).run() == 0
    assert squares(out) == [n * n for n in range(20)]


@pytest.mark.parametrize("name", ["out.jsonl.gz", "out.parquet"])
@pytest.mark.parametrize("linked", ["", "from", "to"])
def test_an_output_that_grows_is_plain(name: str, linked: str, tmp_path: Path) -> None:
    """By its own name and by that of the file that a link leads to; what is there stays."""
    packed, plain = tmp_path / name, tmp_path / "out.jsonl"
    out = plain if linked == "to" else packed
    if linked:
        packed.write_bytes(b"as it is") if linked == "to" else plain.touch()
        out.symlink_to(packed if linked == "to" else plain)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=rf"{name}: --out grows line by line, .* give a name that ends in \.jsonl"):
        Squares(out, range(9), gone).run()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    if linked != "to":  # before anything is read or a model loaded
        for stage in ("judge", "infer"):
            done = run("critic", stage, tmp_path / "none.jsonl", "--benchmark", "convbench", "--out", out)
            assert_one_line_error(done, f"{out}: --out grows line by line")


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError, NotADirectoryError])
def test_what_the_system_says_of_a_file_is_one_line(kind: type[OSError], monkeypatch: Any, tmp_path: Path) -> None:
    """And what it says of no file is a bug, which shows where it is."""

    def says(*_: object) -> None:
        raise kind(2, "not there", str(tmp_path / "x"))

    monkeypatch.setattr("critic.stages.card.check_frozen", says)
    words = ("critic", "describe", tmp_path / "f", "--benchmark", "multiverse", "--out", tmp_path / "o")
    assert_one_line_error(run(*words), f"{tmp_path / 'x'}: not there")
    monkeypatch.setattr("critic.stages.card.check_frozen", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(*words)


def test_the_clock_starts_at_the_first_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while an engine starts, which would make rate and time left too slow for minutes."""
    bars, show = [], run_module.progress

    def keep_bar(*words: Any) -> Any:
        bars.append(show(*words))
        return bars[-1]

    class SlowToStart(ScriptedBackend):
        async def __aenter__(self) -> Any:
            await asyncio.sleep(0.5)
            return self

    monkeypatch.setattr(run_module, "progress", keep_bar)
    stage = Squares(tmp_path / "out.jsonl", range(9), square)
    stage.backend = SlowToStart(square)
    assert stage.run() == 0
    assert bars[0].n == 9 and bars[0].format_dict["elapsed"] < 0.4


def test_cut_off_at_any_byte_it_goes_on(out: Path) -> None:
    assert Squares(out, range(9), square).run() == 0
    whole = out.read_bytes()
    for cut in range(len(whole)):
        jsonl.sidecar(out).unlink()
        out.write_bytes(whole[:cut])
        assert Squares(out, range(9), square).run() == 0
        assert squares(out) == [n * n for n in range(9)], cut


def alias(out: Path, how: str, written: bool) -> Path:
    """Another name of a file, made before it is written or meanwhile."""
    other = out.parent / "other" / out.name
    if how == "itself":
        return out
    if how == "relative":
        return Path(os.path.relpath(out, ROOT))
    if how == "folder" and not written:
        other.parent.symlink_to(out.parent, target_is_directory=True)
    if how == "link":
        other.parent.mkdir(exist_ok=True)
    if how == "link" and not written:
        other.symlink_to(Path("..") / out.name)
    return other


def test_an_output_with_two_names_is_refused(tmp_path: Path, out: Path) -> None:
    """By each of two hard links a run could write the file, and neither would know of the other."""
    rows, judge = (
        write_jsonl(tmp_path / name, [row])
        for name, row in (("rows.jsonl", human_row(0)), ("judge.jsonl", {"text": '{"Rating":7}'}))
    )
    words = ["critic", "judge", rows, "--judge", judge, "--score", "argmax", "--out"]
    assert run(*words, out).returncode == 0
    before = out.read_bytes()
    (tmp_path / "other.jsonl").hardlink_to(out)
    for name in ("out.jsonl", "other.jsonl"):
        assert_one_line_error(run(*words, tmp_path / name), f"{name}: has 2 names (hard links)")
    assert out.read_bytes() == before
    out.unlink()
    assert run(*words, tmp_path / "other.jsonl").returncode == 0


@pytest.mark.parametrize("where", ["rows", "out"])
def test_a_link_that_leads_to_itself_is_one_line(where: str, tmp_path: Path) -> None:
    rows, loop = write_jsonl(tmp_path / "rows.jsonl", [human_row(0)]), tmp_path / "loop.jsonl"
    loop.symlink_to(loop.name)
    given, out = (loop, tmp_path / "out.jsonl") if where == "rows" else (rows, loop)
    judge = write_jsonl(tmp_path / "judge.jsonl", [{"text": "7"}])
    assert_one_line_error(run("critic", "judge", given, "--judge", judge, "--out", out), "loop.jsonl")
    assert_one_line_error(run("critic", "attack", given, "--out", out), "loop.jsonl")
    assert_one_line_error(run("critic", "score", loop, loop, "--out", tmp_path / "s.json"), "loop.jsonl")


@pytest.mark.parametrize("how", ["itself", "relative", "folder", "link"])
def test_two_runs_do_not_write_one_file_at_once(how: str, tmp_path: Path, scripted: Any) -> None:
    """Whatever name each of them has for it."""
    rows, out = write_jsonl(tmp_path / "rows.jsonl", [human_row(number) for number in range(6)]), tmp_path / "out.jsonl"
    second = list[Done]()
    first, linked = alias(out, how, written=False), how in ("link", "folder")

    def answer(_: dict[str, Any]) -> Any:
        if not second:
            second.append(Done([], 0, "", ""))
            second[0] = run_apart(*words, "--out", out if linked else alias(out, how, written=True))
        return completion('{"Rating":7,"Reason":"x"}')

    words = ["critic", "judge", rows, "--judge", scripted(answer).url, "--score", "argmax"]
    run(*words, "--out", first if linked else out, "--concurrency", 1, code=0)
    assert_one_line_error(second[0], "out.jsonl: another run is writing it; wait for its end, or give another --out")
    assert len([*jsonl.read_lines(out)]) == 6 and not [*tmp_path.rglob("*.lock")]
    assert jsonl.sidecar(out).is_file() and (how != "link" or first.is_symlink())


HOLDS = """
import os, sys, time
from pathlib import Path
from critic import jsonl
with jsonl.lock_file(Path(sys.argv[1])):
    if os.fork():
        print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_run_goes_with_it(tmp_path: Path, out: Path) -> None:
    """Also where it is killed and a process that it forked lives on; a folder that is built in has one as well."""
    for path in (out, tmp_path):
        words = [sys.executable, "-c", HOLDS, str(path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True) as other:
            assert other.stdout and other.stdout.readline() == b"held\n"
            try:
                with pytest.raises(UsageError, match="another run is writing it"), jsonl.lock_file(path):
                    pass
                if path == out:
                    path.write_bytes(torn := b'{"number":1}\n{"numb')
                    with pytest.raises(UsageError, match="another run is writing it"):
                        Squares(path, range(9), square).run()
                    assert path.read_bytes() == torn, "what the other is writing is no torn line"
                    path.unlink()
                else:
                    done = run("critic", "build", ROOT / "data" / "samples" / "multiverse", "--out", path)
                    assert_one_line_error(done, f"{path}: another run is writing it")
                other.kill()
                other.wait()
                assert Squares(out, range(9), square).run() == 0 and squares(out) == [n * n for n in range(9)]
                with jsonl.lock_file(path):
                    pass
            finally:
                os.killpg(other.pid, signal.SIGKILL)
    assert {entry.name for entry in tmp_path.iterdir()} == {"out.jsonl", "out.jsonl.run.json"}


def test_a_lock_that_its_run_took_away_is_none(tmp_path: Path, monkeypatch: Any) -> None:
    """And where the file system has no locks, a run goes on without."""
    out, taken, locks = tmp_path / "out.jsonl", list[int](), fcntl.lockf

    def first_ends(file: Any, how: int) -> None:
        if not taken:
            (tmp_path / "out.jsonl.lock").unlink()
        locks(file, how)
        taken.append(os.fstat(file.fileno()).st_ino)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", first_ends)
        with jsonl.lock_file(out):
            assert len(taken) == 2 and (tmp_path / "out.jsonl.lock").stat().st_ino == taken[1]

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", none)
    assert Squares(out, range(9), square).run() == 0 and squares(out) == [n * n for n in range(9)]


def test_records_that_two_runs_or_another_one_wrote_are_told(out: Path) -> None:
    assert Squares(out, range(9), fails(3)).run() == 3
    before = out.read_bytes()
    out.write_bytes(before + b'{"number":3,"square":9}\n')
    with pytest.raises(UsageError, match=r"out\.jsonl: 3 is there twice, .* the two out, or choose another --out"):
        Squares(out, range(9), square).run()
    # One of the two failed, and is made anew as all that failed: the other is left.
    assert Squares(out, range(9), square, retry_failed=True).run() == 0 and squares(out) == [n * n for n in range(9)]
    before = out.read_bytes()
    with pytest.raises(UsageError, match=r"out\.jsonl:\d+: not asked for; choose another --out"):
        Squares(out, range(8), square, retry_failed=True).run()
    assert out.read_bytes() == before and jsonl.sidecar(out).is_file()


def test_a_run_that_stops_leaves_no_sidecar(out: Path) -> None:
    """Whatever stops it, and whether it has added anything yet: what the sidecar says is of a whole file.

    It is gone before the first request, since a run that is killed removes nothing any more.
    """
    assert Squares(out, range(20), fails(7)).run() == 0

    def stop(request: Request) -> Reply:
        assert out.read_bytes().count(b"\n") == 19 and not jsonl.sidecar(out).exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Squares(out, range(20), stop, retry_failed=True).run()
    assert out.read_bytes().count(b"\n") == 19 and not jsonl.sidecar(out).exists()


def test_a_server_that_is_gone_ends_the_run_and_single_failures_do_not(out: Path) -> None:
    with pytest.raises(UsageError, match=r"scripted failed 8 numbers in a row \(connection refused\)"):
        Squares(out, range(100), gone).run()
    assert 8 <= out.read_bytes().count(b"\n") < 12 and not jsonl.sidecar(out).exists()
    assert Squares(out, range(100), fails(*range(0, 100, 2)), retry_failed=True).run() == 3
    assert Squares(out, range(100), square, retry_failed=True).run() == 0 and len(squares(out)) == 100


def test_a_full_disk_ends_the_run_and_nothing_follows_half_a_line(tmp_path: Path, monkeypatch: Any) -> None:
    out, lines = tmp_path / "out.jsonl", 0

    def full(self: Any, line: bytes) -> None:
        nonlocal lines
        lines += 1
        self._file.write(line[: len(line) // 2] if lines == 6 else line)
        if lines == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(jsonl.Appender, "_write", full)
        with pytest.raises(UsageError, match=r"out\.jsonl: cannot be written: No space left on device"):
            Squares(out, range(20), square).run()
    assert out.read_bytes().count(b"\n") == 5 and not out.read_bytes().endswith(b"\n")
    assert Squares(out, range(20), square).run() == 0 and squares(out) == [n * n for n in range(20)]
