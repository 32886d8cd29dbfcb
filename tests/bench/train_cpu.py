"""How much of a processor training uses: the model FLOP/s of its steps, over those of its own matmuls alone.

    python tests/bench/train_cpu.py runs/base/gemma-3-270m --recipe train/recipes/gemma-270m.yaml

Rows of the sample world in English, some steps through the launcher as a user starts it; the first two are not
counted. The matmuls are those of the weights of one layer, forward and both gradients, at the tokens of a micro-batch,
in the precision and with the threads of the run. Ends in one JSON line: `ratio` is the share over one half, which is
what may be asked of a step; `cpu_share` is the same in FLOP a CPU second, which others' load changes less.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]

import torch  # noqa: E402
import transformers  # noqa: E402
from recipe import read_recipe  # noqa: E402

from critic import jsonl  # noqa: E402

GOAL = 0.5


def alone(base: Path, dtype: torch.dtype, tokens: int, seconds: float = 0.5) -> tuple[float, float]:
    """FLOP/s, and FLOP a CPU second, of the matmuls of one layer's weights at `tokens` tokens: forward, gradient of
    input and of weights."""
    config = transformers.AutoConfig.from_pretrained(base)
    with torch.device("meta"):
        layer = transformers.AutoModelForCausalLM.from_config(config).model.layers[0]
    spent = used = work = 0.0
    for linear in (each for each in layer.modules() if isinstance(each, torch.nn.Linear)):
        x, w = torch.randn(tokens, linear.in_features), torch.randn(linear.out_features, linear.in_features)
        x, w = x.to(dtype), w.to(dtype)
        y = x @ w.T
        for left, right in ((x, w.T), (y, w), (y.T, x)):
            found: list[tuple[float, float]] = []
            end = time.monotonic() + seconds
            while len(found) < 3 or time.monotonic() < end:
                start, cpu = time.perf_counter(), time.process_time()
                left @ right
                found.append((time.perf_counter() - start, time.process_time() - cpu))
            spent += statistics.median(wall for wall, _ in found)
            used += statistics.median(cpu for _, cpu in found)
            work += 2.0 * tokens * linear.in_features * linear.out_features
    return work / spent, work / used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, help="a step, by default as many as the recipe's")
    parser.add_argument("--tokens", type=int, default=2048, help="of a micro-batch, for the matmuls alone")
    given = parser.parse_args()
    given.rows = given.rows or read_recipe(given.recipe).global_batch
    scratch = Path(tempfile.mkdtemp())
    world, rows, out = scratch / "world.jsonl", scratch / "rows.jsonl", scratch / "out"
    subprocess.run([sys.executable, str(ROOT / "data/sample_world.py"), "--out", str(world)], check=True)
    lines = [json.loads(line) for _, line in jsonl.lines(world)]
    jsonl.write(rows, [line for line in lines if line["lang"] == "en"][: given.rows * given.steps])
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    words = [str(Path(sys.executable).with_name("deepspeed")), "--log_level", "error", "--master_port", str(port)]
    words += [str(ROOT / "train/sft.py")]
    words += [str(given.recipe), "--train", str(rows), "--out", str(out), "--cache", str(scratch / "cache")]
    settings = {"base": given.base, "global_batch": given.rows, "training.max_steps": given.steps}
    settings |= {"training.logging_steps": 1, "training.save_strategy": "no"}
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    subprocess.run(words, check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    log = [json.loads(line) for line in (out / "loss.jsonl").read_text("utf-8").splitlines()][2:]
    step = statistics.median(line["gflops"] for line in log)
    notes = json.loads((out / "critic.json").read_text("utf-8"))
    torch.set_num_threads(notes["threads"])
    dtype = torch.bfloat16 if notes.get("precision") == "bf16" else torch.float32
    matmuls, per_cpu = (each / 1e9 for each in alone(given.base, dtype, given.tokens))
    cpu_step = statistics.median(line["cpu_gflops"] for line in log)
    found = {
        "name": "train_cpu",
        "gflops": step,
        "matmul_gflops": round(matmuls, 1),
        "share": round(step / matmuls, 3),
        "ratio": round(step / matmuls / GOAL, 2),
        "cpu_gflops": cpu_step,
        "matmul_cpu_gflops": round(per_cpu, 1),
        "cpu_share": round(cpu_step / per_cpu, 3),
        "tokens_per_second": statistics.median(line["tokens_per_second"] for line in log),
        "threads": notes["threads"],
        "precision": str(dtype),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
