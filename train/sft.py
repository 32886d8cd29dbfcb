"""Fine-tune a judge on human-scored rows.

    deepspeed train/sft.py --config train/recipes/tiny.yaml --train runs/demo/data/train.jsonl --out runs/demo/judge

The prompt is rendered exactly as in judging; only the verdict is learned. Writes a Hugging Face
folder that vLLM serves as it is. (AlignMMBench §5.2)
"""

import json
import math
import os
import re
import time
import types
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import datasets
import deepspeed
import matplotlib.pyplot as plt
import msgspec
import torch
import transformers
import typer
import yaml
from msgspec import Struct, field
from tiny import TinySpec, random_model, train_tokenizer

from critic import human_scored, jsonl
from critic.cli import run_program
from critic.errors import UsageError
from critic.examples import IGNORED, encode, example, source_ids, with_reason_first
from critic.judge_prompt import prompt_hash
from critic.records import Response

Form = Literal["rating_first", "reason_first"]


class Recipe(Struct, forbid_unknown_fields=True, kw_only=True):
    """A training recipe. Exactly one of `base` (a model folder or hub id) and `tiny` (a random model).

    `forms` is the share of the rows that are shown each form of the verdict, rating first (`prompt` itself) or
    reason first (the prompt `prompt`_reason_first); the shares sum to 1.
    `rating_weight` is how much more than the other tokens of a verdict its rating counts in the loss.
    `training` goes to transformers.TrainingArguments and `deepspeed` to DeepSpeed as they are.
    """

    prompt: str = "pointwise"
    forms: dict[Form, float] = field(default_factory=lambda: {"rating_first": 1.0})
    base: str | None = None
    tiny: TinySpec | None = None
    max_source_tokens: int
    max_target_tokens: int
    rating_weight: float = 1.0
    deepspeed: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """Reads 1e-5 as a number, as YAML 1.2 and everybody who writes a learning rate do; PyYAML wants 1.0e-5."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_recipe(path: Path) -> Recipe:
    """Raises UsageError naming the key that is wrong."""
    if not path.is_file():
        choices = ", ".join(sorted(str(found) for found in path.parent.glob("*.yaml"))) or "none beside it"
        raise UsageError(f"{path}: no such recipe; there are {choices}")
    try:
        recipe = msgspec.convert(yaml.load(path.read_bytes(), _Loader), Recipe)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}") from None
    if (recipe.base is None) == (recipe.tiny is None):
        raise UsageError(f"{path}: give either base (a model) or tiny (a random one)")
    if not math.isclose(sum(recipe.forms.values()), 1.0) or min(recipe.forms.values()) < 0.0:
        raise UsageError(f"{path}: forms must be shares that sum to 1, got {recipe.forms}")
    return recipe


def prompt_of(recipe: Recipe, response: Response) -> str:
    """The prompt that a row is trained with."""
    reason_first = with_reason_first(response.id, recipe.forms.get("reason_first", 0.0))
    return f"{recipe.prompt}_reason_first" if reason_first else recipe.prompt


def prompts(recipe: Recipe) -> list[str]:
    """The prompts that some row is trained with."""
    names = {"rating_first": recipe.prompt, "reason_first": f"{recipe.prompt}_reason_first"}
    return [names[form] for form, share in recipe.forms.items() if share > 0.0]


def arguments(recipe: Recipe, out: Path) -> transformers.TrainingArguments:
    on_cpu = not torch.cuda.is_available()
    fixed = {
        "output_dir": str(out),
        "deepspeed": recipe.deepspeed,
        "use_cpu": on_cpu,
        "dataloader_pin_memory": not on_cpu,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "length_column_name": "length",
        "disable_tqdm": True,
    }
    try:
        return transformers.TrainingArguments(**{**recipe.training, **fixed})
    except (TypeError, ValueError) as error:
        raise UsageError(f"the recipe's training section: {str(error).splitlines()[0]}") from None


def model_and_tokenizer(recipe: Recipe, responses: list[Response]) -> tuple[Any, Any]:
    longest = recipe.max_source_tokens + recipe.max_target_tokens
    if recipe.tiny is not None:
        tokenizer = train_tokenizer(
            (_rendered(prompt_of(recipe, response), response) for response in responses), recipe.tiny
        )
        torch.manual_seed(recipe.tiny.seed)
        return random_model(recipe.tiny, tokenizer, longest), tokenizer
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(recipe.base)
        model = transformers.AutoModelForCausalLM.from_pretrained(recipe.base, dtype="auto")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"base {recipe.base!r} is no model that transformers can load: {str(error).splitlines()[0]}"
        ) from None
    if tokenizer.chat_template is None:
        raise UsageError(f"base {recipe.base!r} has no chat template; take the chat version of the model")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _rendered(prompt: str, response: Response) -> tuple[str, str]:
    made = example(response, prompt, None, lambda messages: 0)
    assert made is not None
    return made.messages[0]["content"], made.target


def learn_target_rows_only(model: Any) -> None:
    """Give `model` a forward pass that turns only the learned positions into logits.

    A judging prompt is thirty times as long as its verdict, and logits of the prompt are never used:
    without them the memory of the loss is [target tokens × vocabulary] instead of [tokens × vocabulary].
    """

    def forward(
        self: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **options: Any,
    ) -> Any:
        if labels is None:
            return plain_forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        learned = labels[:, 1:] != IGNORED
        logits = self.lm_head(hidden[:, :-1][learned])
        nll = torch.nn.functional.cross_entropy(logits.float(), labels[:, 1:][learned], reduction="none")
        if weights is not None:
            nll = nll * weights[:, 1:][learned]
        loss = nll.sum() / (num_items_in_batch if num_items_in_batch is not None else learned.sum())
        return transformers.modeling_outputs.CausalLMOutputWithPast(loss=loss)

    plain_forward = model.forward
    model.forward = types.MethodType(forward, model)


class Batches:
    """Pads to the longest of a batch, on the right."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)

        def padded(name: str, value: float) -> torch.Tensor:
            return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])

        ids = padded("input_ids", self.pad)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        mask = (torch.arange(longest) < lengths[:, None]).long()
        labels, weights = padded("labels", IGNORED), padded("weights", 0.0)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels, "weights": weights}


def encoded(recipe: Recipe, tokenizer: Any, responses: list[Response]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Token ids and labels of every row that fits, and what was shortened or refused."""
    rows: list[dict[str, Any]] = []
    shortened, refused = Counter[str](), list[str]()
    for response in responses:
        made = example(
            response,
            prompt_of(recipe, response),
            recipe.max_source_tokens,
            lambda messages: len(source_ids(tokenizer, messages)),
        )
        if made is None:
            refused.append(response.id)
            continue
        tokens = encode(tokenizer, made)
        if sum(label != IGNORED for label in tokens.labels) > recipe.max_target_tokens:
            refused.append(response.id)
            continue
        shortened.update(list(made.shortened))
        weights = [recipe.rating_weight if rating else 1.0 for rating in tokens.rating]
        rows.append({"input_ids": tokens.ids, "labels": tokens.labels, "weights": weights, "length": len(weights)})
    # Weights average 1 over the learned tokens of the data set, so that the loss stays one per token.
    learned = [w for row in rows for w, label in zip(row["weights"], row["labels"], strict=True) if label != IGNORED]
    scale = len(learned) / sum(learned) if learned else 1.0
    for row in rows:
        row["weights"] = [weight * scale for weight in row["weights"]]
    return rows, {"rows": len(rows), "shortened": dict(shortened), "refused": refused}


class LossLog(transformers.TrainerCallback):  # type: ignore[misc]  # a base of type Any
    """Writes every logged loss as a line of `path`, shows the rate, and stops on a loss that is no number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.start = time.monotonic()
        if state.is_world_process_zero:
            self.path.write_text("", "utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise UsageError(f"the loss is {loss} at step {state.global_step}; lower learning_rate")
        if state.is_world_process_zero:
            kept = {name: float(logs[name]) for name in ("loss", "learning_rate", "grad_norm") if name in logs}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **kept}) + "\n")
            rate = state.global_step / (time.monotonic() - self.start)
            left = (state.max_steps - state.global_step) / rate
            print(
                f"step {state.global_step}/{state.max_steps}  loss {loss:.3f}  {rate:.2f} steps/s  {left:.0f} s left",
                flush=True,
            )


def draw_loss(log: Path, picture: Path) -> None:
    points = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot([point["step"] for point in points], [point["loss"] for point in points], color="#2f6f9f")
    axes.set(xlabel="step", ylabel="loss per target token", yscale="log")
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def main(
    config: Annotated[Path, typer.Option(help="A recipe (train/recipes/*.yaml).")],
    train: Annotated[Path, typer.Option(help="Human-scored rows to learn from: JSONL, CSV or a folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the judge, a Hugging Face model folder.")],
    local_rank: Annotated[int, typer.Option("--local_rank", hidden=True)] = -1,
) -> None:
    """Fine-tune a judge on human-scored rows."""
    recipe = read_recipe(config)
    loaded = human_scored.load(train)
    facts = {
        "recipe": msgspec.to_builtins(recipe),
        "prompt": {"name": recipe.prompt, "hash": prompt_hash(recipe.prompt)},
        "prompts": {name: prompt_hash(name) for name in prompts(recipe)},
        "data": {str(file): jsonl.sha256(file) for file in human_scored.files(train)},
        "left_out": dict(loaded.left_out),
    }
    if not loaded.responses:
        raise UsageError(f"{train}: no usable row to learn from")
    if finished(out, facts):
        print(f"{out} holds this judge already")
        return
    if not torch.cuda.is_available():
        # One process has all cores; the launcher sets OMP_NUM_THREADS=1 for any number of processes.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("WORLD_SIZE", "1"))))
        # Compiling DeepSpeed's shared-memory collectives takes most of a minute and needs a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    transformers.set_seed(recipe.training.get("seed", 42))
    settings = arguments(recipe, out)
    deepspeed.init_distributed()
    first = settings.process_index == 0
    model, tokenizer = model_and_tokenizer(recipe, loaded.responses)
    learn_target_rows_only(model)
    rows, counts = encoded(recipe, tokenizer, loaded.responses)
    if not rows:
        raise UsageError(f"{train}: no row fits into {recipe.max_source_tokens} source tokens")
    if first:
        out.mkdir(parents=True, exist_ok=True)
        size = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())
        print(f"{size / 1e6:.1f} M parameters, {len(rows)} rows, {_told(counts)}", flush=True)
    trainer = transformers.Trainer(
        model=model,
        args=settings,
        train_dataset=datasets.Dataset.from_list(rows),
        data_collator=Batches(tokenizer.pad_token_id),
        callbacks=[LossLog(out / "loss.jsonl")],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    start = time.monotonic()
    trainer.train()
    trainer.save_model(str(out))
    if first:
        tokenizer.save_pretrained(out)
        (out / "training_args.bin").unlink(missing_ok=True)  # a pickle; critic.json says the same in JSON
        draw_loss(out / "loss.jsonl", out / "loss.png")
        weights = {file.name: jsonl.sha256(file) for file in sorted(out.glob("*.safetensors"))}
        jsonl.write_json(
            out / "critic.json", {**facts, **counts, "weights": weights, "seconds": round(time.monotonic() - start, 1)}
        )
        print(f"judge saved in {out}", flush=True)


def finished(out: Path, facts: dict[str, Any]) -> bool:
    """Whether `out` holds a judge made from the same recipe, prompt and data.

    Raises UsageError when it holds another one.
    """
    notes = out / "critic.json"
    if not notes.is_file():
        return False
    before = json.loads(notes.read_text("utf-8"))
    changed = [
        name
        for name in ("recipe", "prompt", "prompts", "data")
        if before.get(name) != json.loads(json.dumps(facts[name]))
    ]
    if changed:
        raise UsageError(f"{out} holds a judge made with another {' and '.join(changed)}; choose another --out")
    return True


def _told(counts: dict[str, Any]) -> str:
    refused = counts["refused"]
    parts = [f"{n} with a shortened {section}" for section, n in counts["shortened"].items()]
    parts.append(f"{len(refused)} refused as too long" + (f" ({', '.join(refused[:3])}, …)" if refused else ""))
    return ", ".join(parts)


if __name__ == "__main__":
    run_program(main)
