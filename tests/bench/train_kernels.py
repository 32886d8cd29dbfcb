"""What compiled norms and gates and joined adapters save of a forward and a backward pass on this machine.

    python tests/bench/train_kernels.py runs/base/qwen2.5-coder-1.5b --recipe train/recipes/qwen-1.5b.yaml

A micro-batch of the recipe, of rows of the sample world in English, by turns as transformers and peft compute it, with
norms and gates compiled, and with the adapters joined too (train/kernels.py). Ends in one JSON line: `ratio` is the
first over the last, in seconds of the clock, the median of the rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]

import export  # noqa: E402
import kernels  # noqa: E402
import machine  # noqa: E402
import torch  # noqa: E402
from batches import Batches, weights  # noqa: E402
from objective import rating_tokens  # noqa: E402
from recipe import read_recipe  # noqa: E402
from rows import prepare  # noqa: E402
from sft import build_model  # noqa: E402

from critic import jsonl  # noqa: E402

VARIANTS = ("plain", "compiled", "compiled and joined")


def changed(model: Any) -> dict[Any, Any]:
    """The modules whose forward pass is not that of their class, with the other one."""
    return {module: vars(module)["forward"] for module in model.modules() if "forward" in vars(module)}


def seconds(model: Any, batch: dict[str, Any]) -> float:
    start = time.perf_counter()
    model(**batch).loss.backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--recipe", type=Path, required=True, help="one that packs its rows")
    parser.add_argument("--train", type=Path, help="take the first rows of this file instead")
    parser.add_argument("--rows", type=int, default=16, help="of the micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=machine.allowed_cores())
    given = parser.parse_args()
    machine.keep_memory()
    torch.set_num_threads(given.threads)
    scratch = Path(tempfile.mkdtemp())
    rows, world = scratch / "rows.jsonl", given.train or scratch / "world.jsonl"
    if given.train is None:
        subprocess.run([sys.executable, str(ROOT / "data/sample_world.py"), "--out", str(world)], check=True)
    lines = [json.loads(line) for _, line in jsonl.lines(world)]
    jsonl.write(rows, [line for line in lines if given.train or line["lang"] == "en"][: given.rows])
    recipe = read_recipe(given.recipe, [f"base={given.base}", "precision=bf16", "packing=true"])
    data, tokenizer = prepare(recipe, rows, scratch / "cache", given.threads)
    tokens = None if recipe.objective == "head" else rating_tokens(tokenizer)
    model = build_model(recipe, tokenizer, tokens)
    for each in model.parameters():
        each.data = each.data.to(torch.bfloat16)  # as DeepSpeed does
    model.train()
    joined = {module: forward for module, forward in changed(model).items() if hasattr(module, "lora_A")}
    before = set(changed(model))
    failed = kernels.compile_all()
    if failed is not None:
        raise SystemExit(f"nothing can be compiled: {failed}")
    kernels.install(export.bare(model))
    compiled = {module: forward for module, forward in changed(model).items() if module not in before}
    of_raft = tokens if recipe.objective == "raft" else None
    head = recipe.objective == "head"
    batches = Batches(tokenizer.pad_token_id, weights(recipe, data.rows), packing=True, raft=of_raft, head=head)
    batch = batches([data.rows[place] for place in range(given.rows)])
    uses = dict(zip(VARIANTS, ({}, compiled, compiled | joined), strict=True))
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for turn in range(given.rounds + 2):  # it takes some passes until blocks of memory are used again
        for name, wanted in uses.items():
            for module in compiled | joined:
                vars(module).pop("forward", None)
            for module, forward in wanted.items():
                module.forward = forward
            taken = seconds(model, batch)
            if turn >= 2:
                found[name].append(taken)
    for name, each in found.items():
        print(f"{name}: {statistics.median(each):.2f} s ({min(each):.2f}–{max(each):.2f})")
    ratios = [plain / ours for plain, ours in zip(found["plain"], found["compiled and joined"], strict=True)]
    result = {
        "name": "train_kernels",
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "seconds": {name: round(statistics.median(each), 3) for name, each in found.items()},
        "tokens": batch["input_ids"].shape[1],
        "threads": given.threads,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
