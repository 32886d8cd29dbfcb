"""Learned tokens a second of our training against TRL's SFTTrainer, padded and packed: same model, rows, precision.

    pip install trl
    python tests/bench/train_tokens.py --train runs/llmeval2/data/train.jsonl

Each system trains the same random model for a few steps, in turn, several times; the first round warms up and does not
count. That the losses are the same is checked on one batch before. Ends in one JSON line: `ratio` is ours over TRL
padded, `packed` ours over TRL packed, `memory` the peak memory of a plain loss and its gradient over that of ours.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import datasets  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from batches import Batches, weights  # noqa: E402
from objective import learn  # noqa: E402
from recipe import read_recipe  # noqa: E402
from rows import prepare  # noqa: E402
from tiny import random_model  # noqa: E402

from critic.judging.targets import IGNORED  # noqa: E402

BATCH = 16
PACKED_LENGTH = 1024
VOCABULARY = 64000
"""Of the memory measurement: the real recipe's."""


class Clock(transformers.TrainerCallback):
    """Seconds and learned tokens of the steps behind the first."""

    def __init__(self) -> None:
        self.seconds = self.learned = self.last = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.monotonic()
        if state.global_step > 1:
            self.seconds += now - self.last
        self.last = now


def counting(collator: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    """The collator, with the learned tokens of the batches behind the first counted."""
    seen = 0

    def collate(rows: list[Any]) -> Any:
        nonlocal seen
        batch = collator(rows)
        clock.learned += int((batch["labels"][:, 1:] != IGNORED).sum()) if seen else 0
        seen += 1
        return batch

    return collate


def ours(model: Any, data: Any, pad: int, weighing: Any, steps: int, folder: str) -> float:
    learn(model, None, None)
    clock = Clock()
    settings = transformers.TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        label_names=["labels"],
        **_common(),
    )
    collator = counting(Batches(pad, weighing), clock)
    own = {"model": model, "train_dataset": data, "data_collator": collator}
    transformers.Trainer(args=settings, callbacks=[clock], **own).train()
    return clock.learned / clock.seconds


def theirs(model: Any, data: Any, tokenizer: Any, steps: int, folder: str, packing: bool) -> float:
    from trl import SFTConfig, SFTTrainer

    clock = Clock()
    settings = SFTConfig(
        folder,
        max_steps=steps,
        per_device_train_batch_size=BATCH // 2 if packing else BATCH,  # about as many rows a step
        max_length=PACKED_LENGTH if packing else None,
        packing=packing,
        completion_only_loss=True,
        **_common(),
    )
    trainer = SFTTrainer(model=model, args=settings, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
    trainer.data_collator = counting(trainer.data_collator, clock)
    trainer.train()
    return clock.learned / clock.seconds


def _common() -> dict[str, Any]:
    return {
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "learning_rate": 1e-3,
        "seed": 0,
        "dataloader_pin_memory": False,
        "bf16": False,
    }


def same_loss(make: Callable[[], Any], rows: Any, other: Any, tokenizer: Any, weighing: Any) -> tuple[float, float]:
    """Ours and TRL's loss of one batch, from the same weights."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    model = make()
    batch = DataCollatorForLanguageModeling(pad_token_id=tokenizer.pad_token_id)([other[i] for i in range(8)])
    with torch.no_grad():
        plain = float(model(**batch).loss)
        learn(model, None, None)
        own = float(model(**Batches(tokenizer.pad_token_id, weighing)([rows[i] for i in range(8)])).loss)
    return own, plain


def peak(which: str) -> None:
    """Print the growth of this process's peak memory, in MB, over one loss and its gradient of 2,048 tokens."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=1
    )
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, VOCABULARY, (4, 512))
    labels = torch.where(torch.arange(512) < 480, IGNORED, ids)
    if which == "ours":
        learn(model, None, None)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    model(input_ids=ids, labels=labels).loss.backward()
    print(resident("VmHWM") - before)


def resident(what: str) -> float:
    """This process's memory now (VmRSS) or at its peak (VmHWM), in MB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def memory(which: str) -> float:
    done = subprocess.run([sys.executable, __file__, "--peak", which], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, help="human-scored rows")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--peak", choices=["ours", "plain"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        peak(given.peak)
        return
    recipe = read_recipe(ROOT / "train/recipes/tiny-real.yaml", ["max_source_tokens=4096", "rating_weight=1.0"])
    scratch = tempfile.mkdtemp()
    data, tokenizer = prepare(recipe, given.train, Path(scratch) / "cache", 2)
    weighing = weights(recipe, data.rows)
    pairs = [
        {"input_ids": row["input_ids"], "labels": [IGNORED] * row["source"] + row["input_ids"][row["source"] :]}
        for row in data.rows
    ]
    other = datasets.Dataset.from_list(pairs)

    def make() -> Any:
        assert recipe.tiny is not None
        torch.manual_seed(0)
        return random_model(recipe.tiny, tokenizer, 5120)

    own, plain = same_loss(make, data.rows, other, tokenizer, weighing)
    print(f"loss of one batch: ours {own:.7f}, TRL's {plain:.7f}")
    assert abs(own - plain) < 1e-5 * plain
    systems: dict[str, Callable[[], float]] = {
        "ours": lambda: ours(make(), data.rows, tokenizer.pad_token_id, weighing, given.steps, scratch),
        "padded": lambda: theirs(make(), other, tokenizer, given.steps, scratch, False),
        "packed": lambda: theirs(make(), other, tokenizer, given.steps, scratch, True),
    }
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(given.rounds):
        for name, run in systems.items():
            rate = run()
            print(f"round {number}: {name} {rate:.1f} learned tokens/s", flush=True)
            if number:
                rates[name].append(rate)

    def ratio(name: str) -> float:
        return round(statistics.median(a / b for a, b in zip(rates["ours"], rates[name], strict=True)), 3)

    before, after = memory("plain"), memory("ours")
    print(f"peak memory of a loss and its gradient, 2,048 tokens x {VOCABULARY}: {before:.0f} MB, ours {after:.0f} MB")
    ratios = {"ratio": ratio("padded"), "packed": ratio("packed"), "memory": round(before / after, 2)}
    print(json.dumps({"name": "train_tokens", **ratios}))


if __name__ == "__main__":
    main()
