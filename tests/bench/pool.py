"""One judge behind many endpoints: what four do that one does not, what our layer takes, and what breaks.

python tests/bench/pool.py                # a few minutes; no judge is needed: stand-ins sleep

`ratio`: judgments a second by 4 endpoints that answer 4 a second each ÷ by 1. Of every fault, each row is looked for
afterwards: `lost` have neither a verdict nor a named failure, `doubled` are there twice.
"""

import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _standin import MODEL, StandIn

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import human_row, scored_response, write_jsonl

from critic.backends import Backend
from critic.judging.judge import Judge
from critic.records import JudgeConfig, Response, Sample
from critic.stages import options
from critic.stages.judge_responses import JudgeResponses, Shown
from critic.stages.run import RunOptions

SECONDS, SLOTS = 1.0, 4
"""What an answer takes, and how many a stand-in makes at once: few, so that a busy machine can keep up."""

FAULT_ROWS, TIMEOUT = 80, 1.5


def responses(count: int) -> Iterator[Response]:
    for number in range(count):
        prompt = f"How many apples lie on table {number // 6}? Look at the {number // 6}th photograph and count. " * 3
        yield scored_response(number, question=prompt, group=f"q{number // 6}", reference="Three.", image=None)


def judged(backend: Backend, count: int, concurrency: int | None = None) -> float:
    """Judgments a second."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        run = RunOptions(out=out, concurrency=concurrency, max_failed=0.0, retry_failed=False)
        judge = Judge(backend, JudgeConfig(judge=MODEL, score_kind="expected"), 64)
        rows: dict[str, Shown] = {Sample.of(each).key: (each, None) for each in responses(count)}
        stage = JudgeResponses(run, judge, rows, {"file": "rows"})
        start = time.perf_counter()
        assert stage.run() == 0
        return count / (time.perf_counter() - start)


def opened(servers: list[StandIn], **how: Any) -> Backend:
    return options.Endpoint(**how).connect(",".join(server.url for server in servers))


def spread() -> tuple[float, float]:
    """Judgments a second by one endpoint and by four."""
    servers = [StandIn(SECONDS, SLOTS) for _ in range(5)]
    single = judged(opened(servers[:1]), 240, 8)
    four = judged(opened(servers[1:]), 960, 32)
    for server in servers:
        server.close()
    return single, four


class Trial:
    """A run of `critic judge` on three endpoints, which are in a file; `harm` is done once it has asked for 15 rows."""

    process: subprocess.Popen[str]

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.file = folder, folder / "out.jsonl", folder / "endpoints"
        self.servers = [StandIn(0.05, 4) for _ in range(3)]
        self.words = ["--timeout", str(TIMEOUT), "--concurrency", "12", "--max-failed", "1"]
        self.limit: int | None = None
        self.rows = write_jsonl(folder / "rows.jsonl", [human_row(n, image=None) for n in range(FAULT_ROWS)])
        self.file.write_text("".join(f"{server.url}\n" for server in self.servers), "utf-8")

    def judge(self, harm: Callable[["Trial"], object] | None = None, *more: str) -> int:
        program = [sys.executable, "-c", "from critic.cli import main; main()", "judge", str(self.rows)]
        words = [*program, "--out", str(self.out), "--judge", f"@{self.file}", *self.words, *more]
        limit = self.limit
        log = (self.folder / "log").open("a")
        before = None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        self.process = subprocess.Popen(words, stderr=log, stdout=log, text=True, preexec_fn=before)  # noqa: PLW1509
        if harm is not None:
            already = sum(server.asked for server in self.servers)
            while self.process.poll() is None and sum(server.asked for server in self.servers) < already + 15:
                time.sleep(0.005)
            harm(self)
        return self.process.wait(300)

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def counted(self) -> tuple[int, int, Counter[str]]:
        """Rows lost and doubled, and failures by name."""
        # A line that ends in nothing was torn, and is cut off by the next run.
        written = self.out.read_bytes().split(b"\n")[:-1] if self.out.is_file() else []
        lines = [json.loads(line) for line in written]
        copies = Counter(line["sample"]["id"] for line in lines)
        named = [line for line in lines if "score" in line or line["verdict"].get("failure")]
        failures = Counter(line["verdict"]["failure"] for line in lines if "score" not in line)
        return FAULT_ROWS - len({line["sample"]["id"] for line in named}), copies.total() - len(copies), failures


def fault(name: str, seconds: float | None = None, which: slice = slice(1)) -> Callable[[Trial], None]:
    """The endpoints do so from then on, or for some seconds."""

    def harm(trial: Trial) -> None:
        for server in trial.servers[which]:
            server.fault = name
        if seconds is not None:
            time.sleep(seconds)
            for server in trial.servers[which]:
                server.fault = None

    return harm


def killed_and_back(trial: Trial) -> None:
    trial.servers[0].close()
    time.sleep(0.5)
    trial.servers[0] = trial.servers[0].again()


def other_judge(trial: Trial) -> None:
    """Restarted under its name with other weights."""
    killed_and_back(trial)
    trial.servers[0].rating = "3"


def all_but_one_killed(trial: Trial) -> None:
    for server in trial.servers[:2]:
        server.close()


def slow(trial: Trial) -> None:
    trial.servers[0].seconds = 1.0


def torn(trial: Trial) -> None:
    trial.process.send_signal(signal.SIGKILL)
    trial.process.wait()
    with trial.out.open("ab") as file:
        file.write(b'{"response": {"id": "r')


FAULTS: dict[str, Callable[[Trial], object]] = {
    "endpoint killed": lambda trial: trial.servers[0].close(),
    "endpoint killed and back": killed_and_back,
    "all endpoints killed but one": all_but_one_killed,
    "endpoint hangs": fault("hang"),
    "endpoint hangs for a while": fault("hang", 2.0),
    "endpoint is slow": slow,
    "429": fault("429"),
    "429 from all for a while": fault("429", 1.0, slice(3)),
    "500": fault("500"),
    "500 from all for a while": fault("500", 1.0, slice(3)),
    "500 from all": fault("500", None, slice(3)),
    "body truncated": fault("truncated"),
    "body stalled": fault("stalled"),
    "not a completion": fault("garbage"),
    "a proxy's page": fault("page"),
    "connection reset": fault("reset"),
    "model gone (404)": fault("404"),
    "another judge under its name": other_judge,
    "driver killed": lambda trial: trial.process.send_signal(signal.SIGKILL),
    "driver interrupted": lambda trial: trial.process.send_signal(signal.SIGINT),
    "driver terminated": lambda trial: trial.process.send_signal(signal.SIGTERM),
    "driver killed within a line": torn,
}


def broken(name: str, folder: Path) -> dict[str, Any]:
    """One fault, then the same command until it ends of itself, as an operator does."""
    trial = Trial(folder)
    start, codes = time.monotonic(), list[int]()
    try:
        if name == "another judge at the start":
            trial.servers[0].name = "other@00000000"
            codes.append(trial.judge())
            assert codes == [2] and not (trial.out.is_file() and trial.out.stat().st_size)
            trial.servers[0].name = MODEL
        elif name == "endpoint dead at the start":
            trial.servers[0].close()
        elif name == "disk full":
            trial.limit = 20_000
            codes.append(trial.judge())
            assert codes == [2], codes
            trial.limit = None
        else:
            codes.append(trial.judge(FAULTS[name]))
        lost, doubled, failures = trial.counted()
        for server in trial.servers:
            server.fault = None
        while (not codes or codes[-1] != 0 or lost) and len(codes) < 4:
            codes.append(trial.judge(None, "--retry-failed"))
            lost, doubled, failures = trial.counted()
        took = round(time.monotonic() - start, 1)
        return {"codes": codes, "lost": lost, "doubled": doubled, "failures": dict(failures), "seconds": took}
    finally:
        trial.close()


def main() -> None:
    single, four = spread()
    names = ["another judge at the start", "endpoint dead at the start", "disk full", *FAULTS]
    faults = dict[str, dict[str, Any]]()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            faults[name] = broken(name, Path(folder))
            print(f"{name:<32} {faults[name]}", flush=True)
    totals = {key: sum(outcome[key] for outcome in faults.values()) for key in ("lost", "doubled")}
    print(json.dumps({"name": "pool", "ratio": round(four / single, 2), "faults": len(faults), **totals}))


if __name__ == "__main__":
    main()
