"""Rows a second of training that computes what rows begin with once, against packing alone and against TRL's packing.

    pip install trl
    python tests/bench/train_prefix.py --train runs/llmeval2/data/train.jsonl [--base FOLDER]

The same model trains on the same rows, in turn, several times; the first step of each does not count.
Packing alone is ours without sharing and transformers' own attention, TRL's is SFTTrainer's; of both the fastest of
several sizes of micro-batch counts. Without `--base` the model is random and a tokenizer is trained on the rows' texts.
That losses and gradients are the same is checked before. Ends in one JSON line: `ratio` is ours over packing alone,
`trl` over TRL packed, in rows a second; `cpu_ratio` and `cpu_trl` are the same in rows a CPU second, which a load
changes less.
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
from functools import partial
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
from tiny import CHAT_TEMPLATE, SPECIAL_TOKENS  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from critic import human_scored  # noqa: E402

ALONE = (2, 4, 16)
"""Rows of a micro-batch in packing alone: its attention is of [tokens × tokens], so that fewer can be faster."""

PACKS = (1, 4)
"""Sequences of PACKED_LENGTH tokens of a micro-batch in TRL's packing."""

PACKED_LENGTH = 1024


Rates = tuple[float, float]
"""Rows a second and a CPU second."""


class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # a base of type Any
    """Seconds and CPU seconds of the steps behind the first, and their rows."""

    def __init__(self) -> None:
        self.seconds = self.last = self.cpu = self.last_cpu = 0.0
        self.steps: list[int] = []
        self.rows = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now, cpu = time.monotonic(), time.process_time()
        if state.global_step > 1:
            self.seconds += now - self.last
            self.cpu += cpu - self.last_cpu
            self.rows += self.steps[state.global_step - 1]
        self.last, self.last_cpu = now, cpu

    def rates(self) -> Rates:
        return self.rows / self.seconds, self.rows / self.cpu

    def counting(self, collator: Any, at_once: int) -> Callable[..., Any]:
        """The collator, its rows counted by the step of `at_once` micro-batches that they are of."""
        calls = 0

        def collate(rows: list[Any]) -> Any:
            nonlocal calls
            if calls % at_once == 0:
                self.steps.append(0)
            calls += 1
            self.steps[-1] += sum(len(row["seq_lengths"]) if "seq_lengths" in row else 1 for row in rows)
            return collator(rows)

        return collate


def texts(train: Path) -> Iterator[str]:
    for response in human_scored.load(train).responses:
        yield from (response.question.prompt, response.question.reference or "", response.text)


def tokenizer_of(train: Path, vocabulary: int) -> Any:
    """A byte-level BPE of the rows' texts, not of the prompt around them, so that it knows that as little by heart as a
    pretrained one does."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts(train),
        trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|pad|>", eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


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
    made = transformers.AutoModelForCausalLM
    model = made.from_pretrained(given.base, **options) if given.base else made.from_config(config, **options)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def common(folder: str, steps: int, size: int, at_once: int) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": at_once,
        "use_cpu": not torch.cuda.is_available(),
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "learning_rate": 1e-4,
        "seed": 0,
        "dataloader_pin_memory": False,
        "bf16": False,
    }


def ours(
    model: Any, rows: Any, batches: Batches, given: argparse.Namespace, size: int, folder: str, **options: Any
) -> Rates:
    learn(model, None, None)
    if not batches.share:
        model.set_attn_implementation("sdpa")
    clock, at_once = Clock(), given.rows // size
    transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            **common(folder, given.steps, size, at_once), **options, remove_unused_columns=False, label_names=["labels"]
        ),
        train_dataset=rows,
        data_collator=clock.counting(batches, at_once),
        callbacks=[clock],
    ).train()
    return clock.rates()


def theirs(model: Any, rows: Any, tokenizer: Any, given: argparse.Namespace, size: int, folder: str) -> Rates:
    from trl import SFTConfig, SFTTrainer

    clock, at_once = Clock(), max(1, given.rows * 2 // 3 // size)  # about as many rows a step
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            **common(folder, given.steps, size, at_once),
            max_length=PACKED_LENGTH,
            packing=True,
            completion_only_loss=True,
        ),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.data_collator = clock.counting(trainer.data_collator, at_once)
    trainer.train()
    return clock.rates()


def same(make: Callable[[], Any], shared: Batches, alone: Batches, rows: list[Any]) -> Rates:
    """How far loss and gradients of sharing are from those of packing alone with transformers' own attention, as shares
    of the loss and of the largest gradient."""
    found = []
    for batches in (shared, alone):
        model = make()
        learn(model, None, None)
        if not batches.share:
            model.set_attn_implementation("sdpa")
        loss = model(**batches(rows)).loss
        loss.backward()
        found.append((loss.item(), [each.grad for each in model.parameters()]))
    (loss, gradients), (other, others) = found
    scale = max(float(each.abs().max()) for each in others)
    gap = max(float((a - b).abs().max()) for a, b in zip(gradients, others, strict=True))
    return abs(1 - loss / other), gap / scale


def measure(systems: dict[str, Callable[[], Rates]], rounds: int) -> dict[str, float | None]:
    """Each system in turn, `rounds` times; and ours over the fastest of the others, in the median of the rounds."""
    rates: dict[str, list[Rates]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, run in systems.items():
            rates[name].append(run())
            wall, cpu = rates[name][-1]
            print(f"round {number}: {name} {wall:.2f} rows/s, {cpu:.2f} rows a CPU second", flush=True)

    def ratio(kind: str, clock: int) -> float | None:
        kinds = [[rate[clock] for rate in found] for name, found in rates.items() if name.startswith(kind)]
        fastest = max(kinds, key=statistics.median, default=None)
        if fastest is None:
            return None
        mine = [rate[clock] for rate in rates["shared"]]
        return round(statistics.median(a / b for a, b in zip(mine, fastest, strict=True)), 2)

    names = {"ratio": ("alone", 0), "trl": ("trl", 0), "cpu_ratio": ("alone", 1), "cpu_trl": ("trl", 1)}
    return {name: ratio(*which) for name, which in names.items()}


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
    parser.add_argument("--alone", type=int, nargs="*", default=ALONE, help="rows of a micro-batch in packing alone")
    parser.add_argument("--packs", type=int, nargs="*", default=PACKS, help="sequences of one in TRL's packing")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    datasets.disable_progress_bars()
    lines = given.train.read_text("utf-8").splitlines(keepends=True)
    sample = scratch / "rows.jsonl"
    sample.write_text("".join(random.Random(0).sample(lines, min(len(lines), given.sample))), "utf-8")
    if given.base is None:
        tokenizer_of(given.train, given.vocabulary).save_pretrained(scratch / "tokenizer")
    recipe = read_recipe(
        ROOT / "train/recipes/tiny-real.yaml",
        ["tiny=null", f"base={given.base or scratch / 'tokenizer'}", "max_source_tokens=2048", "rating_weight=1.0"],
    )
    data, tokenizer = prepare(recipe, sample, scratch / "cache", os.cpu_count() or 1)
    rows = data.rows
    lengths = sorted(rows["length"])

    make = partial(model_of, given, len(tokenizer))
    weighing = weights(recipe, rows)
    shared, alone = (Batches(tokenizer.pad_token_id, weighing, packing=True, share=share) for share in (True, False))
    chosen = [rows[place] for place in range(given.rows)]
    computed = [batches(chosen)["input_ids"].shape[1] for batches in (shared, alone)]
    print(
        f"{len(rows)} rows, median {lengths[len(lengths) // 2]} tokens; of {given.rows} rows' {computed[1]} tokens "
        f"{computed[0]} are computed; {sum(each.numel() for each in make().parameters()) / 1e6:.1f} M parameters"
    )
    loss, gradient = same(make, shared, alone, chosen[:8])
    print(f"sharing and packing alone differ by {loss:.1e} of the loss and {gradient:.1e} of the largest gradient")
    assert loss < 1e-6 and gradient < 1e-5
    pairs = [{"input_ids": row["input_ids"], "labels": Batches._labels(row)} for row in rows]
    other = datasets.Dataset.from_list(pairs)
    folder = str(scratch)
    systems: dict[str, Callable[[], Rates]] = {"shared": lambda: ours(make(), rows, shared, given, given.rows, folder)}
    for size in given.alone:
        systems[f"alone {size}"] = partial(lambda n: ours(make(), rows, alone, given, n, folder), size)
    for size in given.packs:
        systems[f"trl {size}"] = partial(lambda n: theirs(make(), other, tokenizer, given, n, folder), size)
    found = measure(systems, given.rounds)
    facts = {"tokens": round(computed[1] / computed[0], 2), "rows": given.rows, "threads": torch.get_num_threads()}
    print(json.dumps({"name": "train_prefix", **found, **facts, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
