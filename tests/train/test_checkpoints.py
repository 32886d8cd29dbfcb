"""Killed and started again: the run goes on from the newest whole checkpoint as if nothing had happened."""

import errno
import fcntl
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training import (
    ON_GPU,
    Processes,
    Whole,
    logged,
    moments,
    refused,
    sample_rows,
    save_base,
    start,
    train,
    wait_for_lines,
    whole,
    whole_of_two,
    write_recipe,
    write_rows,
)

import checkpoints  # isort: skip
import loop  # isort: skip
import run as training_run  # isort: skip
from recipe import read_recipe  # isort: skip

from critic import jsonl
from critic.errors import UsageError

pytestmark = pytest.mark.e2e

FACTS = {"recipe": {"a": [1, 2]}, "data": {"x": "1"}, "processes": 2}


def made_checkpoint(out: Path, step: int, facts: dict[str, Any] = FACTS) -> Path:
    folder = out / f"checkpoint-{step}"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "weights.pt").write_bytes(bytes(range(200)))
    (folder / "deep/er/state.bin").write_bytes(b"0123456789")
    (folder / "empty").touch()
    checkpoints.seal(folder, facts)
    return folder


def truncate(file: Path, size: int = 5) -> None:
    file.write_bytes(file.read_bytes()[:size])


def old_format(folder: Path) -> None:
    manifest = json.loads((folder / "complete.json").read_text("utf-8"))
    (folder / "complete.json").write_text(json.dumps({**manifest, "format": 0}), "utf-8")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file cut short": (lambda folder: truncate(folder / "weights.pt"), "weights.pt has 5 bytes instead of 200"),
    "a file too long": (lambda folder: (folder / "empty").write_text("x"), "empty has 1 bytes instead of 0"),
    "a file gone": (lambda folder: (folder / "deep/er/state.bin").unlink(), "deep/er/state.bin is missing"),
    "no manifest": (lambda folder: (folder / "complete.json").unlink(), "never finished"),
    "half a manifest": (lambda folder: truncate(folder / "complete.json", 40), "complete.json is damaged"),
    "bytes": (lambda folder: (folder / "complete.json").write_bytes(b"\xff\xfe\x00"), "complete.json is damaged"),
    "another manifest": (lambda folder: (folder / "complete.json").write_text("[]"), "another format"),
    "an old format": (old_format, "another format"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_newest_whole_one_is_taken(name: str, tmp_path: Path) -> None:
    damage, reason = DAMAGES[name]
    whole_one = made_checkpoint(tmp_path, 9)
    assert checkpoints.find_newest(tmp_path, FACTS, warn=pytest.fail) == whole_one
    broken = made_checkpoint(tmp_path, 10)
    assert checkpoints.find_newest(tmp_path, FACTS, warn=pytest.fail) == broken
    damage(broken)
    (tmp_path / "checkpoint-old").mkdir()
    told: list[str] = []
    assert checkpoints.find_newest(tmp_path, FACTS, told.append) == whole_one
    assert len(told) == 1 and str(broken) in told[0] and reason in told[0]
    damage(whole_one) if name != "a file too long" else shutil.rmtree(whole_one)
    assert checkpoints.find_newest(tmp_path, FACTS, lambda text: None) is None


def test_a_base_that_was_made_anew_under_its_name_is_another(tmp_path: Path, rows: Path, base: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, tiny=None, base=str(base)))
    out = tmp_path / "out"
    made_checkpoint(out, 3, training_run.describe(recipe, rows))
    assert checkpoints.find_newest(out, training_run.describe(recipe, rows), warn=pytest.fail) is not None
    (base / "model.safetensors").write_bytes(b"anew")
    facts = training_run.describe(recipe, rows)
    with pytest.raises(UsageError, match="another base_weights;"):
        checkpoints.find_newest(out, facts, warn=pytest.fail)
    (out / "critic.json").write_text(json.dumps({**facts, "base_weights": {}}))
    with pytest.raises(UsageError, match="another base_weights;"):
        training_run.is_finished(out, facts)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_stay_and_the_broken_go(keep: int, tmp_path: Path) -> None:
    for step in (2, 4, 10, 12):
        made_checkpoint(tmp_path, step)
    (made_checkpoint(tmp_path, 11) / "complete.json").unlink()
    (tmp_path / "best").mkdir()
    checkpoints.discard(tmp_path, keep)
    left = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    assert left == [2, 4, 10, 12][-keep:] and (tmp_path / "best").is_dir()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with jsonl.lock_folder(tmp_path / "out"):
        assert (tmp_path / "out").is_dir()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def assert_same(out: Path, done: Whole) -> None:
    """Bit for bit: every loss, gradient norm and agreement, the averaged weights and the best ones."""
    if ON_GPU:  # whose sums have no order
        pairs = zip(logged(out), logged(done.out), strict=True)
        assert all(line == pytest.approx(other, rel=1e-3, abs=1e-3) for line, other in pairs)
        return
    assert logged(out) == logged(done.out)
    for name in ("model.safetensors", "best/model.safetensors"):
        assert digest(out / name) == digest(done.out / name), name
    card = [(folder / "README.md").read_text("utf-8") for folder in (out, done.out)]
    assert card[0] == card[1]


def torn_after(done: Whole, step: int, out: Path) -> Path:
    """A copy of a run that was killed after `step`: what it would have left, and checkpoints that do not count."""
    shutil.copytree(done.out, out)
    for name in ("critic.json", "README.md", "model.safetensors"):
        (out / name).unlink()
    later = [out / f"checkpoint-{number}" for number in range(step + 1, 9)]
    damages: list[Callable[[Path], Any]] = [
        lambda folder: truncate(next(folder.glob("global_step*/*optim_states.pt")), 999),
        lambda folder: (folder / "complete.json").unlink(),
        old_format,
        lambda folder: (folder / "ema_0.pt").unlink(),
    ]
    for folder, damage in zip(later, damages, strict=False):
        damage(folder)
    if json.loads((out / "best/critic.json").read_text("utf-8"))["steps"] > step:
        shutil.rmtree(out / "best")
    with (out / "loss.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 7, "lo')  # as a full disk leaves it
    return out


@pytest.mark.parametrize(
    "step",
    [pytest.param(7, marks=pytest.mark.gpu), *(pytest.param(step, marks=pytest.mark.slow) for step in (4, 6, 8))],
)
def test_what_was_torn_is_passed_over(step: int, tmp_path: Path, done: Whole) -> None:
    """Also from the end of an epoch (6), from within the second (7), whose order must be the same again, and from the
    very end, where only the judge is still to be written (8)."""
    out = torn_after(done, step, tmp_path / "out")
    run = train(done.recipe, done.rows, out)
    assert f"continuing from {out / f'checkpoint-{step}'}" in run.stdout
    torn = [line for line in run.stderr.splitlines() if line.startswith("warning: ") and "is passed over: " in line]
    assert len(torn) == 8 - step
    assert_same(out, done)


@pytest.mark.slow
def test_two_processes_go_on_too(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    done = whole_of_two(tmp_path_factory)
    out = torn_after(done, 7, tmp_path / "out")
    run = train(done.recipe, done.rows, out, processes=2)
    assert f"continuing from {out / 'checkpoint-7'}" in run.stdout
    assert run.stderr.count("is passed over: ") == 1, "it is told of once"
    assert_same(out, done)


def test_another_recipe_or_data_or_number_of_processes_is_refused(tmp_path: Path, done: Whole) -> None:
    out = torn_after(done, 5, tmp_path / "out")
    refused(start(done.recipe, done.rows, out, "--set", "training.learning_rate=0.01"), "another recipe")
    others = write_rows(tmp_path, sample_rows(25), done.rows.name)
    refused(start(done.recipe, others, out), "another data")
    manifest = out / "checkpoint-5" / checkpoints.MANIFEST
    facts = json.loads(manifest.read_text("utf-8"))
    facts["facts"]["processes"] = 2
    manifest.write_text(json.dumps(facts), "utf-8")
    refused(start(done.recipe, done.rows, out), "checkpoint-5 was made by 2 processes, this run has 1; start 2 again")


def kill_and_go_on(done: Whole, folder: Path, when: Callable[[Processes, Path], Any], *words: str) -> Path:
    """Start the run, kill it at a moment, start it again; the same command once more changes nothing."""
    out = folder / "out"
    killed = start(done.recipe, done.rows, out, *words, processes=done.processes)
    when(killed, out)
    killed.kill()
    train(done.recipe, done.rows, out, *words, processes=done.processes)
    assert_same(out, done)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    again = train(done.recipe, done.rows, out, *words, processes=done.processes)
    assert "holds this judge already" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    return out


def test_killed_while_it_saves(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    def when(run: Processes, out: Path) -> None:
        end = time.monotonic() + 120
        while not list(out.glob("checkpoint-[5-7]")):  # on a busy machine the fifth may be gone when one looks
            assert time.monotonic() < end and run.processes[0].exitcode is None, run.stderr
            time.sleep(0.001)
        run.kill()
        assert not (out / "critic.json").is_file(), "killed too late to show anything"

    out = kill_and_go_on(whole(tmp_path_factory), tmp_path, when, "--set", "keep=2")
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-7", "checkpoint-8"]


@pytest.mark.slow
@pytest.mark.parametrize("made", [whole, whole_of_two])
@pytest.mark.parametrize(("lines", "later"), moments(6))
def test_killed_at_any_moment(
    made: Any, lines: int, later: float, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    def when(run: Processes, out: Path) -> None:
        wait_for_lines(out, lines, run)
        time.sleep(later)

    kill_and_go_on(made(tmp_path_factory), tmp_path, when)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again(seed: int, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    done, out = whole(tmp_path_factory), tmp_path / "out"
    for number, (_, later) in enumerate(moments(4, seed)):
        run = start(done.recipe, done.rows, out)
        wait_for_lines(out, 1 + number, run)
        time.sleep(later)
        run.kill()
    train(done.recipe, done.rows, out)
    assert_same(out, done)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "group_by_length", "batch_rebalance"])
def test_shared_beginnings_go_on_too(strategy: str, tmp_path: Path) -> None:
    """From within an epoch, where rows that begin alike meet in micro-batches of two."""
    training = {"train_sampling_strategy": strategy, "per_device_train_batch_size": 2}
    done = Whole(tmp_path / "whole", 1, packing=True, objective="raft", training=training)
    out = torn_after(done, 7, tmp_path / "out")
    train(done.recipe, done.rows, out)
    assert_same(out, done)


@pytest.mark.slow
def test_dropout_and_adapters_go_on_too(tmp_path: Path, rows: Path) -> None:
    changes: dict[str, Any] = {"tiny": None, "base": str(save_base(tmp_path / "base", rows))}
    changes["lora"] = {"r": 4, "dropout": 0.3}
    recipe = write_recipe(tmp_path, **changes)
    train(recipe, rows, tmp_path / "whole")
    out = tmp_path / "out"
    run = start(recipe, rows, out)
    wait_for_lines(out, 6, run)
    run.kill()
    train(recipe, rows, out)
    assert logged(out) == logged(tmp_path / "whole")
    assert digest(out / "model.safetensors") == digest(tmp_path / "whole/model.safetensors")


def test_two_runs_in_one_folder(tmp_path: Path, done: Whole) -> None:
    with jsonl.lock_folder(tmp_path / "out"):
        refused(start(done.recipe, done.rows, tmp_path / "out"), "another run is writing it", str(tmp_path / "out"))


@pytest.mark.parametrize("every", [1, 10])
def test_a_loss_that_is_no_number_stops_the_run(every: int, tmp_path: Path) -> None:
    """The checkpoints from before stay, and none has weights that are not finite, however rarely losses are logged."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    rows, out = write_rows(tmp_path), tmp_path / "out"
    changes = {"learning_rate": 1e30, "lr_scheduler_type": "constant", "logging_steps": every, "save_steps": every}
    recipe = write_recipe(tmp_path, training=changes)
    line = refused(start(recipe, rows, out), "the loss is", "lower learning_rate")
    assert f"step {2 if every == 1 else 8}" in line
    if every > 1:
        assert not [*out.glob("checkpoint-*")] and not (out / "model.safetensors").exists()
        return
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-1"]
    assert checkpoints.find_fault(out / "checkpoint-1") is None
    weights = get_fp32_state_dict_from_zero_checkpoint(str(out / "checkpoint-1"))
    assert all(bool(each.isfinite().all()) for each in weights.values())
    assert not (out / "critic.json").is_file()


@pytest.mark.parametrize("norm", [math.nan, math.inf, -1.0])
def test_weights_that_a_gradient_has_spoilt_are_not_saved(norm: float) -> None:
    """The loss is still a number: it was found before the step. DeepSpeed calls such a norm -1 or inf."""
    trainer: Any = SimpleNamespace(args=SimpleNamespace(fp16=False))
    with pytest.raises(UsageError, match="at step 3"):
        loop.JudgeTrainer._require_finite(trainer, 3, {"loss": 1.0, "grad_norm": norm})
    loop.JudgeTrainer._require_finite(trainer, 3, {"loss": 1.0, "grad_norm": 0.0})
    loop.JudgeTrainer._require_finite(trainer, 3, {"eval_mae": 1.0})
    trainer.args.fp16 = True  # which then skips the step
    loop.JudgeTrainer._require_finite(trainer, 3, {"loss": 1.0, "grad_norm": norm})
