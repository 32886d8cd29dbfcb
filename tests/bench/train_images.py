"""Rows a second of training on images and text, against TRL's SFTTrainer on the same model, rows and images.

    pip install trl
    python tests/bench/train_images.py [--data FOLDER] [--rounds 3]

A random Idefics3 trains on rows of the sample world with pictures (several answers to each), in fp32, in turn; the
first step of each does not count, and of TRL's sizes of micro-batches the fastest counts. Ours and TRL's go through the
same rows in the same steps, those of one image together, as `together: true` does. Ends in one JSON line: `ratio` is
ours over TRL in rows a second, `cpu_ratio` in rows a CPU second, which a load changes less, each the median of the
rounds with the lowest and the highest; `…_one_by_one` is ours in a random order.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from train_prefix import ROOT, Clock, Rates, common, ours  # isort: skip  # it puts train/ on the path
import datasets
import torch
from batches import Batches, weights
from loop import GroupedSampler
from recipe import read_recipe
from rows import prepare
from tiny import random_model

from critic.images import Images

SIZES = (4, 8, 24)
"""Rows of a micro-batch in TRL, unless said otherwise."""

AS_GIVEN = {"train_sampling_strategy": "sequential"}
"""The Trainer would shuffle what is put in order here."""


def theirs(model: Any, rows: Any, processor: Any, given: argparse.Namespace, size: int, folder: str) -> Rates:
    from trl import SFTConfig, SFTTrainer

    clock, at_once = Clock(), given.rows // size
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            **common(folder, given.steps, size, at_once), **AS_GIVEN, max_length=None, completion_only_loss=True
        ),
        train_dataset=rows,
        processing_class=processor,
        callbacks=[clock],
    )
    trainer.data_collator = clock.counting(trainer.data_collator, at_once)
    trainer.train()
    return clock.rates()


def conversations(rows: Any, tokenizer: Any) -> Any:
    """The same rows as TRL takes them: the prompt's text around its images, and the verdict."""
    made = []
    for row in rows:
        prompt, verdict = (
            tokenizer.decode(ids) for ids in (row["input_ids"][: row["source"]], row["input_ids"][row["source"] :])
        )
        for name in row["images"]:
            prompt = prompt.replace(tokenizer.expansion(name), "\0", 1)
        said = prompt.removeprefix("<|user|>\n").removesuffix("<|end|>\n<|assistant|>\n").split("\0")
        parts = [{"type": "text", "text": said[0]}]
        for text in said[1:]:
            parts += [{"type": "image", "text": ""}, {"type": "text", "text": text}]
        made.append(
            {
                "images": [tokenizer.image(name) for name in row["images"]],
                "prompt": [{"role": "user", "content": parts}],
                "completion": [
                    {"role": "assistant", "content": [{"type": "text", "text": verdict.removesuffix("<|end|>\n")}]}
                ],
            }
        )
    return datasets.Dataset.from_list(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with rows.jsonl and the images [default: the sample world]")
    parser.add_argument("--rows", type=int, default=48, help="rows a step")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--trl", type=int, nargs="*", default=SIZES, help="rows of a micro-batch in TRL")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    datasets.disable_progress_bars()
    if given.data is None:
        given.data = scratch
        words = ["data/sample_world.py", "--pictures", "--questions", "60", "--out", str(scratch / "rows.jsonl")]
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    # A token for 16 x 16 pixels, 36 for an image.
    vision = ["vision.patch_size=8", "vision.scale=2", "vision.layers=4"]
    size = [
        f"tiny.hidden_size={given.hidden}",
        f"tiny.intermediate_size={3 * given.hidden}",
        f"tiny.layers={given.layers}",
    ]
    recipe = read_recipe(ROOT / "train/recipes/tiny-vl.yaml", ["rating_weight=1.0", *vision, *size])
    assert recipe.tiny is not None
    data, tokenizer = prepare(recipe, given.data / "rows.jsonl", scratch / "cache", 1, Images(given.data))
    order = list(GroupedSampler(data.rows, torch.Generator().manual_seed(0)))
    make = partial(random_model, recipe.tiny, tokenizer, 4096, None, recipe.vision)
    batches = Batches(tokenizer.pad_token_id, weights(recipe, data.rows), packing=True, seeing=tokenizer)
    print(f"{len(order)} rows; {sum(each.numel() for each in make().parameters()) / 1e6:.1f} M parameters", flush=True)
    own = {"ours": data.rows.select(order), "one by one": data.rows.shuffle(seed=0)}
    other, folder = conversations(data.rows.select(order), tokenizer), str(scratch)
    systems = {
        name: partial(lambda rows: ours(make(), rows, batches, given, given.rows, folder, **AS_GIVEN), rows)
        for name, rows in own.items()
    }
    for count in given.trl:
        run = partial(lambda n: theirs(make(), other, tokenizer.processor, given, n, folder), count)
        systems[f"trl {count}"] = run
    rates: dict[str, list[Rates]] = {name: [] for name in systems}
    for number in range(given.rounds):
        for name, run in systems.items():
            rates[name].append(run())
            wall, cpu = rates[name][-1]
            print(f"round {number}: {name} {wall:.2f} rows/s, {cpu:.2f} rows a CPU second", flush=True)

    found: dict[str, float | list[float]] = {}
    for key, clock in (("ratio", 0), ("cpu_ratio", 1)):
        columns = {name: [rate[clock] for rate in each] for name, each in rates.items()}
        fastest = max((columns[f"trl {count}"] for count in given.trl), key=statistics.median)
        for name, suffix in (("ours", ""), ("one by one", "_one_by_one")):
            each = sorted(round(a / b, 2) for a, b in zip(columns[name], fastest, strict=True))
            found |= {key + suffix: round(statistics.median(each), 2), f"{key}{suffix}_spread": [each[0], each[-1]]}
    machine = {"threads": torch.get_num_threads(), "load": os.getloadavg()[0]}
    print(json.dumps({"name": "train_images", "ratio": found.pop("ratio"), **found, **machine}))


if __name__ == "__main__":
    main()
