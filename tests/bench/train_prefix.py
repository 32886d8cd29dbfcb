"""Rows a second of training that computes what rows begin with once, against packing alone or padded rows.

    python tests/bench/train_prefix.py --train runs/llmeval2/data/train.jsonl [--base FOLDER]

The same model trains on the same rows, in turn, several times; the first step of each does not count. Packing alone is
ours without sharing; `--against padded` takes one row a sequence instead, as bases that cannot pack are trained. The
fastest of several sizes of micro-batch counts. Without `--base` the model is random and a tokenizer is trained on the
rows' texts. Ends in one JSON line: `ratio` is ours over the other, in rows a second of processor time, which a load
changes less than the clock.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import datasets  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from _judge import ratios, tokenizer_of  # noqa: E402
from batches import Batches  # noqa: E402
from recipe import objective_of, read_recipe  # noqa: E402
from rows import prepare  # noqa: E402

from critic import human_scored  # noqa: E402

ALONE = (2, 4, 16)
"""Rows of a micro-batch in packing alone, or padded. Fewer can be faster."""


class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # a base of type Any
    """CPU seconds of the steps behind the first."""

    def __init__(self) -> None:
        self.seconds = self.last = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.process_time()
        if state.global_step > 1:
            self.seconds += now - self.last
        self.last = now


def texts(train: Path) -> Iterator[str]:
    for response in human_scored.load(train).responses:
        yield from (response.question.prompt, response.question.reference or "", response.text)


def model_of(given: argparse.Namespace, vocabulary: int) -> Any:
    """The base in fp32, or a random model; the same each time."""
    options = {"attn_implementation": "sdpa", "dtype": torch.float32}
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=given.hidden,
        intermediate_size=3 * given.hidden,
        num_hidden_layers=given.layers,
        num_attention_heads=given.hidden // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model_class = transformers.AutoModelForCausalLM
    model = (
        model_class.from_pretrained(given.base, **options) if given.base else model_class.from_config(config, **options)
    )
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def trained(make: Callable[[], Any], rows: Any, batches: Batches, given: argparse.Namespace, size: int) -> float:
    """Rows a CPU second, `size` of them in a micro-batch."""
    model = make()
    clock = Clock()
    settings = transformers.TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=given.steps,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=given.rows // size,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        bf16=False,
        remove_unused_columns=False,
        label_names=["labels"],
    )
    transformers.Trainer(
        model=model, args=settings, train_dataset=rows, data_collator=batches, callbacks=[clock]
    ).train()
    return float(given.rows * (given.steps - 1) / clock.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="human-scored rows, JSONL")
    parser.add_argument("--sample", type=int, default=480, help="how many of them")
    parser.add_argument("--base", type=Path, help="model folder")
    parser.add_argument("--rows", type=int, default=16, help="rows a step")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--alone", type=int, nargs="*", default=ALONE, help="rows of a micro-batch of the other")
    parser.add_argument("--against", choices=["alone", "padded"], default="alone", help="what ours is compared with")
    parser.add_argument("--objective", default="sft", help="sft or raft, of which padded rows are computed twice")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    datasets.disable_progress_bars()
    lines = given.train.read_text("utf-8").splitlines(keepends=True)
    sample = scratch / "rows.jsonl"
    sample.write_text("".join(random.Random(0).sample(lines, min(len(lines), given.sample))), "utf-8")
    if given.base is None:
        tokenizer_of(texts(given.train), given.vocabulary).save_pretrained(scratch / "tokenizer")
    recipe = read_recipe(
        ROOT / "train/recipes/tiny-real.yaml",
        [
            *("tiny=null", "max_source_tokens=2048", "rating_weight=1.0"),
            *(f"objective={given.objective}", f"base={given.base or scratch / 'tokenizer'}"),
        ],
    )
    data, tokenizer = prepare(recipe, sample, scratch / "cache", os.cpu_count() or 1)
    rows = data.rows
    lengths = sorted(rows["length"])

    objective = objective_of(recipe, objective_of(recipe).read_tokens(tokenizer))

    def make() -> Any:
        model = model_of(given, len(tokenizer))
        objective.install(model)
        return model

    weighing = objective.weights(rows)
    shared, alone = (
        Batches(tokenizer.pad_token_id, weighing, objective, packing=share or given.against == "alone", share=share)
        for share in (True, False)
    )
    chosen = [rows[place] for place in range(given.rows)]
    computed = [batches(chosen)["input_ids"].numel() for batches in (shared, alone)]
    print(
        f"{len(rows)} rows, median {lengths[len(lengths) // 2]} tokens; of {given.rows} rows' {computed[1]} tokens "
        f"{computed[0]} are computed; {sum(each.numel() for each in make().parameters()) / 1e6:.1f} M parameters"
    )
    rates: dict[str, list[float]] = {}
    for number in range(given.rounds):
        for name, batches, size in (("shared", shared, given.rows), *((f"alone {n}", alone, n) for n in given.alone)):
            rates.setdefault(name, []).append(trained(make, rows, batches, given, size))
            print(f"round {number}: {name} {rates[name][-1]:.2f} rows a CPU second", flush=True)
    fastest = max((name for name in rates if name != "shared"), key=lambda name: statistics.median(rates[name]))
    facts = {"tokens": round(computed[1] / computed[0], 2), "rows": given.rows, "threads": torch.get_num_threads()}
    print(json.dumps({"name": "train_prefix", **ratios(rates, "shared", fastest), **facts, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
