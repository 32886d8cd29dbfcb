"""Fine-tuning a model of the 6B recipe's real shape on one GPU: tokens a second, model FLOPs utilisation, peak memory.

    python tests/bench/train_6b.py --train runs/llmeval2/data/train.jsonl

Weights are random (the shape of Yi-1.5-6B), everything else is train/sft.py with the recipe as it is. Each variant runs
a few steps; the first, in which kernels are compiled and memory is found, does not count. Needs a GPU of 141 GB for the
full fine-tune. Ends in one JSON line: `ratio` is its model FLOPs utilisation (formula: train/loop.py).
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]

from tiny import train_tokenizer  # noqa: E402

from critic import human_scored  # noqa: E402
from critic.judging.examples import build_example, plan  # noqa: E402

YI_6B = {
    "vocab_size": 64000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
FULL = ["deepspeed.zero_optimization.stage=2", "training.save_strategy=no"]
LORA = [*FULL, "ema=null", "lora={r: 16, alpha: 32}", "training.learning_rate=1e-4"]
VARIANTS = {
    "full, checkpointed": FULL,
    "full, not checkpointed": [*FULL, "training.gradient_checkpointing=false"],
    "lora, checkpointed": LORA,
    "lora, not checkpointed": [*LORA, "training.gradient_checkpointing=false"],
}


def make_base(folder: Path, train: Path) -> None:
    loaded = human_scored.load(train).responses[:2000]
    by_id = {response.id: response for response in loaded}
    examples = [build_example(each, by_id, None, lambda _: 0) for each in plan(loaded, {"pointwise": 1.0}).examples]
    texts = [(each.messages[0]["content"], each.target) for each in examples if each is not None]
    tokenizer: PreTrainedTokenizerFast = train_tokenizer(texts, 6000)
    tokenizer.save_pretrained(folder)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        config = LlamaConfig(**YI_6B, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    running = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process.pid)
    return running


def end_all(program: "subprocess.Popen[bytes]", patience: float = 60.0) -> None:
    """End the launcher and what it started, and wait until all are gone: the launcher ends before the process that
    trains, whose memory and port the next variant wants."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, how)
        end = time.monotonic() + patience
        while (program.poll() is None or members(program.pid)) and time.monotonic() < end:
            time.sleep(0.1)


def why_none(log: Path) -> str:
    """What a variant that logged no step said last, first of all its error."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or line.startswith("error:")]
    return (errors or lines or ["it said nothing"])[-1]


def measure(
    base: Path, train: Path, out: Path, settings: list[str], steps: int, timeout: float
) -> list[dict[str, Any]]:
    # What a variant has used stays taken for a while after it has ended.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "1", "--master_port", str(port)]
    words.append(str(ROOT / "train/sft.py"))
    words += [str(ROOT / "train/recipes/critic-6b-full.yaml"), "--train", str(train), "--out", str(out)]
    words += ["--cache", str(base / "cache")]
    changes = [f"base={base}", f"training.max_steps={steps}", "training.logging_steps=1", *settings]
    for change in changes:
        words += ["--set", change]
    log, losses = out.with_suffix(".log"), out / "loss.jsonl"
    lines: list[str] = []
    with log.open("w") as file:
        program = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        end = time.monotonic() + timeout
        while program.poll() is None and time.monotonic() < end and len(lines) < steps:
            time.sleep(1.0)
            lines = losses.read_text("utf-8").splitlines() if losses.is_file() else []
        end_all(program)  # writing 12 GB is not what is measured
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="human-scored rows")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8, help="rows a micro-batch, on average")
    parser.add_argument("--only", choices=list(VARIANTS), action="append")
    parser.add_argument("--set", action="append", default=[], help="more settings, as for train/sft.py")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a variant may take")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "critic-train-6b")
    given = parser.parse_args()
    base = given.scratch / "base"
    if not (base / "config.json").is_file():
        base.mkdir(parents=True, exist_ok=True)
        make_base(base, given.train)
    results: dict[str, dict[str, Any]] = {}
    for name in given.only or VARIANTS:
        out = given.scratch / name.replace(", ", "-").replace(" ", "-")
        shutil.rmtree(out, ignore_errors=True)
        settings = [*VARIANTS[name], f"training.per_device_train_batch_size={given.rows}", *given.set]
        steps = measure(base, given.train, out, settings, given.steps, given.timeout)[1:]
        shutil.rmtree(out, ignore_errors=True)
        if not steps:
            print(f"{name}: no figures: {why_none(out.with_suffix('.log'))} ({out.with_suffix('.log')})", flush=True)
            continue
        kept = [key for key in ("tokens_per_second", "mfu") if key in steps[0]]
        results[name] = {key: statistics.median(step[key] for step in steps) for key in kept}
        results[name]["memory_gib"] = max(step.get("memory_gib", 0.0) for step in steps)
        results[name]["steps"] = len(steps)
        print(f"{name}: {results[name]}", flush=True)
    full = [measured["mfu"] for name, measured in results.items() if name.startswith("full") and "mfu" in measured]
    print(json.dumps({"name": "train_6b", "ratio": max(full) if full else None, "variants": results}))


if __name__ == "__main__":
    main()
