"""Training loop: transformers' Trainer with complete checkpoints, averaged weights, evaluation, log and speed."""

import json
import math
import resource
import shutil
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import checkpoints
import cpu
import datasets
import evaluation
import export
import torch
import transformers
from ema import ShardedEma
from objective import Objective
from packing import order_by_prefix
from vision import TOWERS, number_images

from critic import jsonl
from critic.errors import UsageError

PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12}
"""Part of a GPU's name -> dense bf16 FLOP/s from the vendor's data sheet (SXM parts)."""


class PrefixSharingSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # a base of type Any
    """Reorders rows within each optimizer step so that rows with a common prefix share a micro-batch.

    - `order`: the sampler to reorder, which yields row indices. `rows`: the tokenized rows.
    - `step`: rows per optimizer step. `micro_batch`: rows per micro-batch.
    - `image_token`: id of the image token, -1 if there is none.

    >>> rows = [{"input_ids": [number % 3] * 20 + [number]} for number in range(23)]
    >>> order = [(number * 7) % 23 for number in range(23)]
    >>> sampler = PrefixSharingSampler(order, rows, step=9, micro_batch=3)
    >>> met = [*sampler]
    >>> len(sampler), [sorted(met[at : at + 9]) == sorted(order[at : at + 9]) for at in (0, 9, 18)]
    (23, [True, True, True])
    >>> [[len({row % 3 for row in rows[at : at + 3]}) for at in range(0, 21, 3)] for rows in (order, met)]
    [[3, 2, 2, 2, 2, 2, 2], [2, 2, 1, 2, 1, 1, 2]]
    """

    def __init__(self, order: Any, rows: Any, step: int, micro_batch: int, image_token: int = -1) -> None:
        self.sampler, self.rows, self.step, self.micro_batch = order, rows, step, micro_batch
        self.image_token = image_token

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        order = list(self.sampler)
        for start in range(0, len(order), self.step):
            chosen = order[start : start + self.step]
            rows = number_images([self.rows[index] for index in chosen], self.image_token)
            yield from (chosen[index] for index in order_by_prefix(rows, self.micro_batch))


class GroupedSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # a base of type Any
    """Shuffles groups of examples with `generator`, anew in each epoch, and keeps each group together.

    A group has the same images or, without images, the same `group`. A step then computes an image, or the common
    prefix of a question's prompts, once, and learns how the answers differ. `most` is the most rows of a group that
    stay together (None: all).

    >>> images = [["a"], ["b"], [], ["a"], ["b"], [], ["a", "b"]]
    >>> rows = datasets.Dataset.from_dict({"id": [*"abcdefg"], "group": [*"tuvwxyz"], "images": images})
    >>> orders = [[*GroupedSampler(rows, torch.Generator().manual_seed(seed))] for seed in range(5)]
    >>> [sorted({abs(order.index(one) - order.index(other)) for order in orders}) for one, other in ((0, 3), (1, 4))]
    [[1], [1]]
    >>> {tuple(sorted(order)) for order in orders}, len(set(map(tuple, orders))) > 1
    ({(0, 1, 2, 3, 4, 5, 6)}, True)
    """

    def __init__(self, rows: datasets.Dataset, generator: torch.Generator, most: int | None = None) -> None:
        self.groups: dict[Any, dict[Any, list[int]]] = {}
        ids, images, groups = rows["id"], rows["images"], rows["group"]
        for index in sorted(range(len(rows)), key=lambda index: str(ids[index])):
            group = self.groups.setdefault(tuple(images[index]) or groups[index], {})
            group.setdefault(ids[index], []).append(index)
        self.count, self.generator, self.most = len(rows), generator, most

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        parts = [*chain.from_iterable(self._parts(list(group.values())) for group in self.groups.values())]
        for index in torch.randperm(len(parts), generator=self.generator).tolist():
            yield from chain(*parts[index])

    def _parts(self, rows: list[list[int]]) -> list[list[list[int]]]:
        """Split a group into shuffled parts of at most `most` rows. `rows` holds the indices of each row's examples."""
        if self.most is None:
            # Without a limit a group stays together.
            return [rows]
        rows = [rows[index] for index in torch.randperm(len(rows), generator=self.generator).tolist()]
        return [rows[start : start + self.most] for start in range(0, len(rows), self.most)]


class Meter:
    """Counts the tokens and FLOPs that a process computes between two calls of `take`.

    Model FLOPs of a row of s tokens, t of them learned: 3 x (2 N s + 2 A s² + 2 V h t). N is the number of weights in
    the decoder's matrices. A is layers x heads x head size (half of 4 A s², because attention is causal). V h is the
    size of the output matrix, which only learned positions pass. The factor 3 stands for one forward and two backward
    products; for frozen weights (LoRA) it is 2 in matrices. The fraction `below` of the decoder, before its first
    trained weight, has only a forward pass. Recomputation for gradient checkpointing is not counted. Common prefixes of
    a prefix tree count once; a segment that ends at position d and has s tokens takes d² - (d - s)². An image counts as
    its tokens; the vision part is not counted.
    """

    def __init__(self, model: Any, pad: int) -> None:
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.attention = config.num_hidden_layers * heads * head_size
        # A scoring head has a few outputs, not the vocabulary.
        scores = any(name.endswith("score.weight") for name, _ in model.named_parameters())
        self.head = (config.num_labels if scores else config.vocab_size) * config.hidden_size
        self.matrices = below = 0
        self.passes, learns = 2, False
        for name, weight in model.named_parameters():
            if set(TOWERS) & set(name.split(".")):
                continue
            # From the first trained weight on there is a backward pass.
            learns = learns or weight.requires_grad
            if "layers." in name and "lora_" not in name:
                self.matrices += export.size_of(weight)
                below += 0 if learns else export.size_of(weight)
                self.passes = 3 if weight.requires_grad else self.passes
        self.below: float = below / self.matrices
        self.pad = pad
        self._clear()

    def _clear(self) -> None:
        # Counted on the GPU, which is not waited for until they are looked at.
        self.tokens, self.flops = torch.zeros(2, dtype=torch.float64)
        self.seconds = self.cpu_seconds = 0.0
        self._started: tuple[float, float] | None = None

    def add(self, inputs: dict[str, Any]) -> None:
        """Add a micro-batch, and start the clock unless it is running. Call it before the micro-batch is computed."""
        self._started = self._started or (time.monotonic(), time.process_time())
        ids = inputs["input_ids"]
        present = torch.ones_like(ids) if "position_ids" in inputs else ids != self.pad
        positions = inputs.get("position_ids", torch.arange(ids.shape[1], device=ids.device))
        # A token behind p others adds (p + 1)² - p².
        squares, tokens = (present * (2 * positions + 1)).sum().double(), present.sum().double()
        learned = (inputs["labels"] >= 0).sum().double()
        self.tokens = self.tokens + tokens
        layers = self.matrices * tokens * (self.below + (1.0 - self.below) * self.passes)
        pairs = self.attention * squares * (self.below + (1.0 - self.below) * 3)
        self.flops = self.flops + 2 * (layers + self.head * learned * self.passes + pairs)

    def stop(self) -> None:
        """Wait for the GPU and stop the clock until the next micro-batch."""
        if self._started is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds += time.monotonic() - self._started[0]
        self.cpu_seconds += time.process_time() - self._started[1]
        self._started = None

    def take(self) -> dict[str, float]:
        """Return this process's figures since the last call, and reset them. Return {} if no time was measured.

        - `tokens_per_second`, and `memory_gib`: peak memory in GiB.
        - `gflops`, `cpu_gflops` (CPU): model GFLOP per second, and per CPU second of all threads.
        - `mfu` (GPU with known peak): model FLOPs utilisation (0..1).
        """
        self.stop()
        if not self.seconds:
            return {}
        figures = {"tokens_per_second": round(float(self.tokens) / self.seconds, 1)}
        if torch.cuda.is_available():
            name = torch.cuda.get_device_name()
            peak = next((value for part, value in PEAK_BF16.items() if part in name), None)
            if peak is not None:
                figures["mfu"] = round(float(self.flops) / self.seconds / peak, 4)
            figures["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        else:
            figures["gflops"] = round(float(self.flops) / self.seconds / 1e9, 1)
            figures["cpu_gflops"] = round(float(self.flops) / self.cpu_seconds / 1e9, 1)
            figures["memory_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1)
        self._clear()
        return figures


class JudgeTrainer(transformers.Trainer, transformers.TrainerCallback):  # type: ignore[misc]  # bases of type Any
    """Trainer that averages weights, logs, evaluates, keeps the best weights, and writes the finished judge.

    It is also its own TrainerCallback. Checkpoints include DeepSpeed's state and count as complete only after they are
    sealed. Losses are logged to loss.jsonl in the output folder, and the best weights are kept in best/.

    - `trained_for`: the objective. `facts`: identify the run (`run.describe`). `notes`: contents of critic.json.
    - `watched`: held-out rows by name: `own`, and `foreign` for rows of another data set.
    - `options`: those of transformers' Trainer.
    """

    def __init__(
        self,
        trained_for: Objective,
        facts: dict[str, Any],
        notes: dict[str, Any],
        tokenizer: Any,
        watched: dict[str, evaluation.HeldOut],
        **options: Any,
    ) -> None:
        self.trained_for, self.recipe = trained_for, trained_for.recipe
        self.facts, self.notes = facts, notes
        self.tokenizer = tokenizer
        self.watched = watched
        self.meter = Meter(options["model"], tokenizer.pad_token_id)
        self.order, self.numbered = torch.Generator(), None
        self.usual_memory = 0
        self.ema: ShardedEma | None = None
        self.evaluated: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        # The base's scores of the watched rows.
        self.base: dict[str, list[float]] = {}
        self.seconds = self.began = 0.0
        super().__init__(callbacks=[self], **options)
        self.remove_callback(transformers.PrinterCallback)
        self.out = Path(self.args.output_dir)
        self.losses = self.out / "loss.jsonl"

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        self.meter.add(inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    # The methods with an underscore below are private in transformers' Trainer and may change without notice: the pin
    # on transformers in pyproject.toml is theirs, and tests/train/test_checkpoints.py fails where one is gone.

    def _get_train_sampler(self, *args: Any) -> Any:
        # The sampler takes its random numbers from a generator of ours, which _run_epoch seeds anew.
        sampler = super()._get_train_sampler(*args)
        if hasattr(sampler, "generator"):
            sampler.generator = self.order
        elif hasattr(sampler, "set_epoch"):
            # It draws by seed and epoch.
            sampler.seed, self.numbered = self.args.seed, sampler
        if hasattr(sampler, "batch_size"):
            # Sorted within a number of steps, which transformers counts by one process's rows: another number of
            # processes would have another order.
            sampler.batch_size = self.recipe.global_batch
        if most := self.recipe.group_by_question:
            sampler = GroupedSampler(self.train_dataset, self.order, None if most is True else most)
        if self.data_collator.packing and not hasattr(sampler, "effective_batch_size"):
            step, image_token = self.recipe.global_batch, self.data_collator.image_token
            return PrefixSharingSampler(sampler, self.train_dataset, step, self.args.train_batch_size, image_token)
        return sampler

    def _run_epoch(self, **options: Any) -> None:
        # The order of an epoch follows from the seed and its number alone, so that a run continued within it sees the
        # rows that are left; transformers' own, grouped by length, follows from all random numbers drawn before.
        self.order.manual_seed(self.args.seed + options["epoch"])
        # Within an epoch transformers does not reach it.
        if self.numbered is not None:
            self.numbered.set_epoch(options["epoch"])
        # A run killed behind its last checkpoint has no step left to take; transformers would take one more.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(**options)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log({**logs, **self.meter.take()} if "loss" in logs else logs, start_time)
        if self.args.use_cpu:
            self.usual_memory = cpu.trim_memory(self.usual_memory)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        # Called from within _save_checkpoint, transformers would write the weights a second time, beside DeepSpeed's.
        if not _internal_call:
            super().save_model(output_dir)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # What a killed run left half written goes first; the seal, written last, says that a checkpoint is whole.
        folder = self.out / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)
        if self.ema is not None:
            self.ema.save(folder / f"ema_{self.args.process_index}.pt")
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            spent = self.seconds + time.monotonic() - self.began
            state = {"best": self.best, "evaluated": self.evaluated, "seconds": spent, "base": self.base}
            jsonl.write_json(folder / "watch.json", state)
            checkpoints.seal(folder, self.facts)
            checkpoints.discard(self.out, self.recipe.keep)
        self.accelerator.wait_for_everyone()

    def _restore(self, folder: Path) -> None:
        """Restore what `_save_checkpoint` added to a checkpoint."""
        if self.ema is not None:
            self.ema.load(folder / f"ema_{self.args.process_index}.pt")
        saved = json.loads((folder / "watch.json").read_text("utf-8"))
        self.best, self.evaluated, self.seconds = saved["best"], saved["evaluated"], saved["seconds"]
        self.base = saved["base"]

    # Events of the training, as transformers calls them.

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The average begins with the fp32 weights, which exist only now.
        if self.recipe.ema is not None:
            self.ema = ShardedEma(self.deepspeed, self.recipe.ema)
        self.began, self.first_step = time.monotonic(), state.global_step
        if state.global_step:
            self._restore(self.out / f"checkpoint-{state.global_step}")
        if state.is_world_process_zero:
            export.mend(self.out / "best")
            jsonl.repair(self.losses)
            lines = self.losses.read_text("utf-8").splitlines() if state.global_step and self.losses.is_file() else []
            earlier = [line for line in lines if json.loads(line)["step"] <= state.global_step]
            jsonl.write_text(self.losses, "".join(line + "\n" for line in earlier))
        if "foreign" in self.watched and not state.global_step:
            self._judge_held_out(0)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log = control.should_log or control.should_save

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.ema is not None:
            self.ema.update()
            cpu.say(self.ema.settle())
        # Each loss is looked at before what it was learned with is saved; a run that goes on then logs the same.
        control.should_log = control.should_log or control.should_save or state.global_step >= state.max_steps
        spec = self.recipe.evaluation
        if spec is not None and (state.global_step % spec.every == 0 or state.global_step == state.max_steps):
            self.meter.stop()
            logged = control.should_log
            self._judge_held_out(state.global_step)
            # Logging the metrics resets this flag, but the loss is not logged yet.
            control.should_log = logged

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        # The last log of a run has only its times.
        if not logs or not {"loss", "eval_mae", "eval_n"} & set(logs):
            return
        self._require_finite(state.global_step, logs)
        if not state.is_world_process_zero:
            return
        with self.losses.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **logs}) + "\n")
        print(self._line(state, logs), flush=True)

    def _require_finite(self, step: int, logs: dict[str, float]) -> None:
        """Raise UsageError if the loss or the gradient norm is not finite, before spoilt weights are saved.

        DeepSpeed reports the norm of such a gradient as -1, and the loss shows the damage only a step later. In fp16
        such a step is skipped, so the norm is not checked.
        """
        norm = 0.0 if self.args.fp16 else logs.get("grad_norm", 0.0)
        if not math.isfinite(logs.get("loss", 0.0)) or not 0.0 <= norm < math.inf:
            raise UsageError(
                f"the loss is {logs['loss']} and the norm of its gradient {norm} at step {step}; the newest checkpoint "
                "is from before: lower learning_rate and choose another --out"
            )

    def _line(self, state: Any, logs: dict[str, float]) -> str:
        """Return the line to print for a log entry, either of an evaluation or of a training step."""
        step = f"step {state.global_step}/{state.max_steps}"
        if "loss" not in logs:
            metrics = [f"{name.removeprefix('eval_')} {value:.3f}" for name, value in logs.items() if name != "epoch"]
            refused = sum(len(held.refused) for held in self.watched.values())
            parts = [*metrics, f"{refused} refused"] if refused else metrics
            return f"{step}  held-out rows: {'  '.join(parts)}"
        rate = (state.global_step - self.first_step) / (time.monotonic() - self.began)
        # The rate counts only the steps of this process, not those before a resume.
        remaining = (state.max_steps - state.global_step) / rate
        parts = [step, f"loss {logs['loss']:.3f}", f"{rate:.2f} steps/s"]
        if "tokens_per_second" in logs:
            parts.append(f"{logs['tokens_per_second'] * self.args.world_size:.0f} tokens/s")
            parts += [f"MFU {logs['mfu']:.1%}"] if "mfu" in logs else []
            parts.append(f"{logs['memory_gib']:.0f} GiB")
        return "  ".join([*parts, f"{remaining:.0f} s left"])

    def _use_average(self) -> Any:
        """Return a context manager in which the model has the averaged weights, or its own if there is no average."""
        return self.ema.in_place() if self.ema is not None else torch.no_grad()

    def _judge_held_out(self, step: int) -> None:
        """Judge the held-out rows, log the metrics, and save the weights to `out`/best if they are the best so far.

        The best weights have the lowest MAE. With foreign rows, weights that are worse on them than the base do not
        count.
        """
        model = export.unwrap(self.model)
        with self._use_average():
            scores, worse, chooses = {}, [], "foreign" in self.watched
            for name, held in self.watched.items():
                scores[name] = evaluation.rate_held_out(model, self.tokenizer, self.trained_for, held)
            metrics = evaluation.compute_metrics(scores["own"], self.watched["own"])
            self.evaluated = {"step": step, **metrics}
            # The first evaluation, before any step, is that of the base.
            if chooses:
                self.base = self.base or scores
                beside = {}
                for name, held in self.watched.items():
                    beside[name] = evaluation.compare_with_base(held, self.base[name], scores[name])
                self.evaluated["beside_base"] = beside
                worse = [name for name in ("mae", "pearson") if name in beside["foreign"]["worse"]]
                foreign = beside["foreign"]["metrics"].items()
                metrics |= {f"foreign_{name}": sides["judge"][0] for name, sides in foreign if "judge" in sides}
            # Undefined metrics are left out, and so may be MAE.
            if "mae" in metrics and not worse and (self.best is None or metrics["mae"] < self.best["mae"]):
                self.best = self.evaluated
                export.replace(self, self.out / "best", merge=chooses)
        if worse:
            cpu.say(f"step {step} is not kept: worse than its base on foreign rows ({', '.join(worse)})")
        self.log({f"eval_{name}": value for name, value in metrics.items()})

    def describe(self) -> dict[str, Any]:
        """Return the contents of critic.json about how the judge was trained."""
        return {
            **self.notes,
            "steps": self.state.global_step,
            "set": "raw" if self.ema is None else "ema",
            "seconds": round(self.seconds + time.monotonic() - self.began, 1),
            "evaluation": self.evaluated,
        }

    def finish(self) -> None:
        """Write the finished judge to `out`.

        It has the averaged weights if there is an average. With foreign rows it is a copy of `out`/best, which may be
        the base.
        """
        if "foreign" not in self.watched:
            with self._use_average():
                model = export.unwrap(self.model)
                self.notes |= self.trained_for.notes(model, self.tokenizer, self.train_dataset)
                export.save(self, self.out)
        elif self.args.should_save:
            best, note = self.out / "best", "critic.json"
            shutil.copytree(best, self.out, ignore=shutil.ignore_patterns(note), dirs_exist_ok=True)
            # Copied last, because it marks the folder as complete.
            shutil.copy(best / note, self.out / note)
            step, steps = json.loads((best / note).read_text("utf-8"))["steps"], self.state.global_step
            cpu.say(f"kept: step {step} of {steps}, 0 is the base; the best of those not worse on foreign rows")
