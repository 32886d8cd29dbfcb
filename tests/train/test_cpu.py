"""What is found out of the processor before training, and that a run which goes on stays with it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from training import Processes, run_sft_without, train, write_recipe, write_rows

import checkpoints  # isort: skip
import cpu  # isort: skip
import run as training_run  # isort: skip
import torch  # isort: skip
import transformers  # isort: skip
from recipe import read_recipe  # isort: skip


FAULTS = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import cpu, torch
for how in ("given back", "kept"):
    assert how == "given back" or cpu.keep_memory()
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**24)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(faults)
"""


@pytest.mark.e2e
def test_memory_that_is_kept_costs_no_page_faults() -> None:
    words = [sys.executable, "-c", FAULTS, str(ROOT / "train")]
    given_back, kept = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert int(given_back) > 16_000 and int(kept) < 100


@pytest.mark.parametrize(("load", "free"), [([0, 0, 0, 0], 4), ([96, 3, 51, 0], 2), ([100, 100, 100, 100], 1)])
def test_cores_that_others_use_are_not_free(load: list[float], free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("psutil.cpu_percent", lambda *_, **__: load)
    for allowed in (4, 1):
        monkeypatch.setattr(cpu, "cpu_count", lambda allowed=allowed: allowed)
        assert cpu.count_free_cores() == min(free, allowed), "a container's quota is a limit"


@pytest.mark.parametrize(("bf16", "chosen"), [(0.002, "bf16"), (0.009, "fp32"), (0.2, "fp32")])
def test_bf16_must_pay(bf16: float, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cpu, "time_matmul", lambda dtype: bf16 if dtype == torch.bfloat16 else 0.01)
    precision, why = cpu.choose_precision()
    assert precision == chosen and f"{1000 * bf16:.1f} ms in bf16, 10.0 ms in fp32" in why


@pytest.mark.parametrize(("cuda", "built"), [("13.0", "for CUDA 13.0"), (None, "without CUDA")])
def test_why_a_cpu_trains(cuda: str | None, built: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    note = f"no GPU is seen by PyTorch, built {built} (nvidia-smi shows the driver's); training on the CPU, "
    for bf16 in (False, True):
        assert (cpu.describe_device(bf16) or "").startswith(note)


@pytest.mark.parametrize(
    ("name", "capability", "emulates"), [("Tesla V100", (7, 0), True), ("NVIDIA H200", (9, 0), False)]
)
def test_a_gpu_that_emulates_bf16(
    name: str, capability: tuple[int, int], emulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method, value in (
        ("is_available", True),
        ("current_device", 0),
        ("get_device_name", name),
        ("get_device_capability", capability),
        ("get_device_properties", SimpleNamespace(major=capability[0], minor=capability[1])),
    ):
        monkeypatch.setattr(torch.cuda, method, lambda *_, value=value: value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    words = f"{name} (compute capability {capability[0]}.{capability[1]}, below 8.0) only emulates bf16"
    assert cpu.choose_precision() == (("fp32", words) if emulates else ("bf16", "the GPU has it"))
    assert cpu.describe_device(True) == (f"{words}, which is slow: fp32 may be faster" if emulates else None)
    assert cpu.describe_device(False) is None


@pytest.mark.e2e
@pytest.mark.parametrize("library", ["torch", "deepspeed", "transformers"])
def test_training_without_torch_is_one_line(library: str, tmp_path: Path) -> None:
    lacking = tmp_path / f"{library}.py"
    lacking.write_text(f"raise ModuleNotFoundError(\"No module named '{library}'\")\n", "utf-8")
    done = Processes(tmp_path / "log", 1, run_sft_without, library, str(tmp_path))
    assert done.wait() == 2
    assert done.stderr == f"error: train/sft.py: No module named '{library}'; pip install -e '.[train]'\n"


def test_a_run_that_goes_on_stays_with_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(cpu, "count_free_cores", lambda: 1)
    monkeypatch.setattr(cpu, "keep_memory", lambda: True)
    monkeypatch.setattr(cpu, "cpu_count", lambda: 3)
    monkeypatch.setattr(cpu, "choose_precision", lambda: ("fp32", "today it is slow"))
    monkeypatch.setattr(cpu, "describe_device", lambda bf16: f"a CPU in {'bf16' if bf16 else 'fp32'}")
    recipe = read_recipe(write_recipe(tmp_path, precision="auto"))
    decided, on = training_run._prepare_device(recipe, {}, None)
    assert on == {"precision": "fp32", "threads": 1} and decided.training["bf16"] is False
    assert capsys.readouterr().out.splitlines() == [
        "fp32: today it is slow",
        "a CPU in fp32",
        "1 of 3 cores: the others are in use (--threads)",
    ]
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    checkpoints.seal(folder, {"precision": "bf16", "threads": 2})
    _, earlier = checkpoints.read_newest(tmp_path)
    decided, on = training_run._prepare_device(recipe, earlier, None)
    assert on == {"precision": "bf16", "threads": 2}
    assert decided.precision == "bf16" and decided.training["bf16"] and decided.deepspeed["bf16"] == {"enabled": True}
    assert training_run._prepare_device(recipe, earlier, 3)[1]["threads"] == 3
    torch.set_num_threads(1)


@pytest.mark.e2e
def test_the_precision_is_what_is_trained_in(tmp_path: Path) -> None:
    for precision, line in (("bf16", "bf16 with fp32 master weights: as the recipe says"), ("fp32", "fp32: as the")):
        steps = {"max_steps": 2, "save_steps": 2}
        recipe = write_recipe(tmp_path / precision, precision=precision, ema=None, evaluation=None, training=steps)
        run = train(recipe, write_rows(tmp_path), tmp_path / precision / "out", internal=False)
        assert line in run.stdout
        notes = json.loads((tmp_path / precision / "out/critic.json").read_text("utf-8"))
        assert notes["precision"] == precision and notes["threads"] == 1
        dtype = json.loads((tmp_path / precision / "out/config.json").read_text("utf-8"))["dtype"]
        assert dtype == {"bf16": "bfloat16", "fp32": "float32"}[precision]


def test_a_base_in_bf16_is_read_in_fp32_where_that_is_trained(tmp_path: Path) -> None:
    shape = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_attention_heads=2, **shape))
    model.bfloat16().save_pretrained(tmp_path / "base")
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        recipe = read_recipe(write_recipe(tmp_path, tiny=None, base=str(tmp_path / "base"), precision=precision))
        assert next(training_run.build_model(recipe, None, None).parameters()).dtype == dtype


GROWING = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import cpu, psutil, torch
assert cpu.keep_memory()
usual = cpu.trim_memory(0) * int(sys.argv[2])
psutil.virtual_memory = lambda: SimpleNamespace(available=int(sys.argv[3]))
kept = torch.ones(2**20)
blocks = [torch.ones(2**16) for _ in range(4000)]
between = blocks[::100]
del blocks
before = psutil.Process().memory_info().rss
print((before - psutil.Process().memory_info().rss) // 2**20)
cpu.trim_memory(usual)
print((before - psutil.Process().memory_info().rss) // 2**20)
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("usual", "available", "given"), [(1, 2**40, True), (9, 2**20, True), (9, 2**40, False)])
def test_free_memory_is_given_back_beyond_what_is_usual_and_where_little_is_left(
    usual: int, available: int, given: bool
) -> None:
    words = [sys.executable, "-c", GROWING, str(ROOT / "train"), str(usual), str(available)]
    kept, trimmed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert abs(int(kept)) < 50 and (int(trimmed) > 700) == given
