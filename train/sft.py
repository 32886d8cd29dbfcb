"""Fine-tune a judge on human-scored rows.

    critic train tiny --train runs/demo/data/train.jsonl --out runs/demo/judge

The prompt is rendered exactly as in judging; only the verdict is learned. Killed and started again, it goes on from the
newest whole checkpoint. Writes a Hugging Face folder that vLLM serves as it is. (AlignMMBench §5.2)
"""

import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

try:
    import deepspeed
    import torch
    import transformers
except ImportError as error:
    print(f"error: train/sft.py: {error}; pip install 'critic[train]'", file=sys.stderr)
    raise SystemExit(2) from None

import adapters
import attention
import checkpoints
import cpu
import export
import linear_head
import msgspec
import preflight
import trainer_args
from batches import Batches, weights
from evaluation import HeldOut, held_out, require_foreign
from huggingface_hub.constants import HF_HOME
from loop import JudgeCallback, JudgeTrainer
from msgspec import Struct
from objective import RatingTokens, classify, learn, rating_tokens
from recipe import LoraSpec, Recipe, made_files, watched
from rows import Data, prepare, prompt_names, sees
from tiny import random_model
from vision import TOWERS

from critic import human_scored, jsonl
from critic.backends.identity import HEADS
from critic.cli import run_program
from critic.errors import UsageError
from critic.images import Images
from critic.judging.prompt import prompt_hash


def build_model(recipe: Recipe, tokenizer: Any, tokens: RatingTokens | None) -> Any:
    """The model to train, with the forward pass of training. Raises UsageError for a base that cannot be loaded."""
    kind = attention.decided(recipe.attention, packed=recipe.packing or recipe.objective != "sft")
    # FlexAttention is for what reads, whatever the model looks at images with.
    recipe = msgspec.structs.replace(recipe, attention="sdpa" if kind == attention.FLEX else kind)
    attention.register()
    model = _read_model(recipe, tokenizer)
    if (recipe.packing or recipe.objective != "sft") and not attention.packs(model):
        kinds = ", ".join(sorted(set(model.config.get_text_config().layer_types) - attention.KINDS))
        raise UsageError(
            f"base {recipe.base!r} has layers in which packed rows would mix ({kinds}); "
            "set packing: false and objective: sft"
        )
    attention.install(model, kind)
    _freeze(model, recipe)
    if recipe.objective in HEADS:
        classify(model)
    else:
        learn(model, recipe.raft if recipe.objective == "raft" else None, tokens)
    if recipe.lora is not None:
        model = _adapted(model, recipe.lora, recipe)
    _spare_gradients(model)
    return model


def _freeze(model: Any, recipe: Recipe) -> None:
    """Raises UsageError for a part that there is not, and where nothing is left to train."""
    words = {word for name, _ in model.named_parameters() for word in name.split(".")}
    names = sorted(word for word in words if not word.isdigit())
    frozen = recipe.frozen
    if frozen is None:
        frozen = [name for name in TOWERS if name in names and recipe.images == "show" and recipe.base]
    for part in frozen:
        if part not in names:
            raise UsageError(f"frozen: {part!r} is no part of the model; parts are {', '.join(names)}")
    for name, parameter in model.named_parameters():
        if set(frozen) & set(name.split(".")):
            parameter.requires_grad_(False)
    if recipe.lora is None and not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"frozen: {', '.join(frozen)} leaves nothing of the model to train")


def _spare_gradients(model: Any) -> None:
    """Let what looks at images and is frozen keep nothing for the backward pass: transformers' gradient checkpointing
    and adapters make inputs need gradients, its own too, and it would be gone through backwards for nothing."""
    for name, part in model.named_modules():
        looks = name.rpartition(".")[2] in TOWERS
        if looks and not any(parameter.requires_grad for parameter in part.parameters()):
            part.forward = torch.no_grad()(part.forward)


def _read_model(recipe: Recipe, tokenizer: Any) -> Any:
    if recipe.objective in HEADS:
        transformers.utils.logging.set_verbosity_error()  # it would report the new layer as missing from the base
    try:
        if recipe.tiny is not None:
            longest = recipe.max_source_tokens + recipe.max_target_tokens
            model = random_model(recipe.tiny, tokenizer, longest, export.labels(recipe.objective), recipe.vision)
            model.set_attn_implementation(recipe.attention)
            return model
        model, loaded = export.read_base(
            str(recipe.base),
            recipe.objective,
            recipe.images,
            dtype=torch.float32 if recipe.precision == "fp32" else "auto",
            revision=recipe.revision,
            attn_implementation=recipe.attention,
            output_loading_info=True,
            **_four_bits(recipe),
        )
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(
            f"base {recipe.base or 'tiny'!r} cannot be loaded: {str(error).strip().splitlines()[0]}"
        ) from None
    if not hasattr(model, "model") or not any("layers." in name for name, _ in model.named_parameters()):
        raise UsageError(f"base {recipe.base!r}: no layers are found in a {type(model).__name__}; take another family")
    new = {*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])}
    if recipe.objective in HEADS and "score.weight" in new:
        # All alike likely: a random head is far off at first, and what it tells the layers below is noise.
        with deepspeed.zero.GatheredParameters([model.score.weight], modifier_rank=0), torch.no_grad():
            model.score.weight.zero_()
    return model


def _four_bits(recipe: Recipe) -> dict[str, Any]:
    """How a base is read as NF4 onto this process's GPU; the output head and what is no matrix stay as they are."""
    if recipe.lora is None or recipe.lora.bits is None:
        return {}
    kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    packing = transformers.BitsAndBytesConfig(load_in_4bit=True, **kind)
    return {"quantization_config": packing, "device_map": {"": torch.cuda.current_device()}}


def _reading(model: Any, wanted: str | list[str]) -> str | list[str]:
    """Of a model that sees, all layers of the part that reads; the others it names itself."""
    if wanted != "all-linear" or model.get_decoder() is getattr(model, "model", None):
        return wanted
    within = {id(module) for module in model.get_decoder().modules()}
    linear = (torch.nn.Linear,)
    return [name for name, module in model.named_modules() if id(module) in within and isinstance(module, linear)]


def _adapted(model: Any, lora: LoraSpec, recipe: Recipe) -> Any:
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  # takes seconds to import

    if recipe.training.get("gradient_checkpointing"):  # which needs an input that has a gradient
        model.enable_input_require_grads()
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_reading(model, lora.target_modules),
        task_type="SEQ_CLS" if recipe.objective in HEADS else "CAUSAL_LM",  # the first trains the new layer whole
    )
    try:
        adapted = get_peft_model(model, config, revision=recipe.revision)
    except ValueError as error:
        raise UsageError(f"lora: {str(error).splitlines()[0]}") from None
    if hasattr(getattr(export.bare(adapted), "lm_head", None), "base_layer"):
        raise UsageError("lora: no adapter goes on lm_head, which computes the loss; leave it out of target_modules")
    return adapters.join_adapters(adapted)


def describe(recipe: Recipe, train: Path, internal: Path | None = None) -> dict[str, Any]:
    """What makes two runs the same: prompts, data, and the recipe but for what changes nothing in the judge. Where
    foreign rows decide on its weights evaluation counts. Of a base
    in a folder its weights are part of it, which the first process reads."""
    whole = msgspec.to_builtins(recipe)
    folder = Path(str(recipe.base))
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]) if recipe.base and cpu.is_first() else []
    also = [*made_files(recipe), *([recipe.foreign, str(internal)] if recipe.foreign else [])]
    return {
        "recipe": {key: whole[key] for key in whole if key not in ("keep", "" if recipe.foreign else "evaluation")},
        "prompts": {name: prompt_hash(name, sees(recipe)) for name in prompt_names(recipe)},
        "data": {file.name: jsonl.sha256(file) for file in human_scored.list_files(train)}
        | {name: jsonl.sha256(Path(name)) for name in also},
        **({"base_weights": {file.name: jsonl.sha256(file) for file in weights}} if weights else {}),
    }


def finished(out: Path, facts: dict[str, Any]) -> bool:
    """Whether `out` holds a judge made from the same recipe, prompts and data.

    Raises UsageError when it holds another one.
    """
    notes = out / "critic.json"
    if not notes.is_file():
        return False
    if changed := checkpoints.changed(json.loads(notes.read_text("utf-8")), facts):
        raise UsageError(f"{out} holds a judge made with another {' and '.join(changed)}; choose another --out")
    return True


@contextmanager
def one_after_the_other(first: bool) -> Iterator[None]:
    """The first process does it, then the others, who find it done; where it has ended they end too, with a line."""
    if not first:
        try:
            torch.distributed.barrier()
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            print(f"process {os.environ['RANK']} ends: the first is not heard of any more ({why})", file=sys.stderr)
            raise SystemExit(2) from None
    yield
    if first:
        torch.distributed.barrier()


class TrainingRun(Struct, frozen=True):
    """A recipe, and the options of the command (launch.py)."""

    recipe: Recipe
    train: Path
    out: Path
    internal: Path | None = None
    cache: Path | None = None
    data_root: Path | None = None
    threads: int | None = None


def main(run: TrainingRun) -> None:
    """Fine-tune a judge on human-scored rows, as one of a launcher's processes."""
    run = msgspec.structs.replace(run, recipe=preflight.pinned(run.recipe, checkpoints.noted(run.out, "recipe")))
    facts = describe(run.recipe, run.train, run.internal)
    with jsonl.lock_folder(run.out) if cpu.is_first() else nullcontext():
        if finished(run.out, facts):
            print(f"{run.out} holds this judge already")
        else:
            _train(run, facts)


def _train(run: TrainingRun, facts: dict[str, Any]) -> None:
    out, first = run.out, cpu.is_first()
    recipe, machine = _prepare_device(run.recipe, out, run.threads)
    with trainer_args.telling():
        transformers.set_seed(recipe.training.get("seed", 42))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    resumed = checkpoints.newest(out, facts, _warn if first else lambda text: None)
    settings = trainer_args.arguments(recipe, out)
    deepspeed.init_distributed()
    preflight.require_alike(settings.device)
    images = _images(run, recipe)
    with one_after_the_other(first):
        if resumed is not None and (before := checkpoints.noted(out, "processes")) != processes:
            raise UsageError(
                f"{resumed} was made by {before} processes, this run has {processes}; "
                f"start {before} again, or choose another --out"
            )
        preflight.require_device(recipe)
        preflight.require_served_tokens(recipe)
        data, tokenizer = prepare(recipe, run.train, run.cache or Path(HF_HOME) / "critic", os.cpu_count() or 1, images)
    recipe = _packed_or_not(recipe, tokenizer, first)
    tokens = None if recipe.objective in HEADS else rating_tokens(tokenizer)
    watched_rows = _watched(run, recipe, tokenizer, tokens)
    if "foreign" in watched_rows:
        require_foreign(watched_rows["foreign"], data.rows, str(recipe.foreign))
    model = build_model(recipe, tokenizer, tokens)
    if (kernels := trainer_args.use_liger(settings, recipe, model)) and first:
        print(kernels, flush=True)
    with one_after_the_other(first):
        if first:
            checkpoint, most = preflight.disk_use(recipe, settings, *export.parameters(model))
            print(preflight.require_room(out, checkpoint, most, recipe.keep), flush=True)
    if recipe.probe is not None and resumed is None:
        name = hashlib.sha256(json.dumps([facts, recipe.precision], sort_keys=True).encode()).hexdigest()
        folder = out / "probe" / name
        linear_head.begin(export.bare(model), recipe, data.rows, tokenizer.pad_token_id, settings.device, folder)
    watch = JudgeCallback(
        recipe,
        out,
        facts={**facts, **machine, "processes": processes},
        notes={**facts, **machine, **data.counts},
        model=model,
        tokenizer=tokenizer,
        tokens=tokens,
        watched=watched_rows,
    )
    if first:
        _announce(model, data, resumed)
    collate = Batches(
        tokenizer.pad_token_id,
        weights(recipe, data.rows),
        packing=recipe.packing,
        raft=tokens if recipe.objective == "raft" else None,
        head=recipe.objective in HEADS,
        seeing=tokenizer if images is not None else None,
        several=processes > 1,
    )
    with trainer_args.telling():
        trainer = JudgeTrainer(
            watch=watch, model=model, args=settings, train_dataset=data.rows, data_collator=collate, callbacks=[watch]
        )
    trainer.remove_callback(transformers.PrinterCallback)
    with trainer_args.telling(lambda: watch.began > 0.0):
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        watch.finish()
    if first:
        shutil.rmtree(out / "probe", ignore_errors=True)
        print(f"judge saved in {out}", flush=True)


def _images(run: TrainingRun, recipe: Recipe) -> Images | None:
    """The images of the rows, for a judge that sees."""
    if not sees(recipe):
        return None
    root = run.data_root or (run.train if run.train.is_dir() else run.train.parent)
    return Images(root, resize_to=recipe.max_image_pixels)


def _watched(run: TrainingRun, recipe: Recipe, tokenizer: Any, tokens: Any) -> dict[str, HeldOut]:
    """What is judged as training goes on."""
    if run.internal is None or recipe.evaluation is None:
        return {}
    files = {"own": run.internal, **({"foreign": Path(recipe.foreign)} if recipe.foreign else {})}
    settings = recipe.evaluation, tokenizer, tokens, recipe.max_source_tokens, watched(recipe)
    return {name: held_out(file, *settings) for name, file in files.items()}


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _packed_or_not(recipe: Recipe, tokenizer: Any, first: bool) -> Recipe:
    """The recipe without packing for a base whose tokens are more than a row of places: such as Qwen's, whose images
    have two dimensions of them, or Gemma's, which see an image's tokens behind them."""
    if not sees(recipe) or not tokenizer.types or not (recipe.packing or recipe.objective == "raft"):
        return recipe
    named = f"{type(tokenizer.processor).__name__.removesuffix('Processor')} tells images' tokens from others"
    if recipe.objective == "raft":
        raise UsageError(f"objective raft packs rows, but {named}, which packed rows cannot; set objective: sft")
    if first:
        print(f"packing is off: {named}, which packed rows cannot", flush=True)
    return msgspec.structs.replace(recipe, packing=False)


def _prepare_device(recipe: Recipe, out: Path, threads: int | None) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with its precision decided, and what was found out of the machine. A run that goes on stays with what
    it was begun with, so that it computes the same."""
    transformers.utils.logging.disable_progress_bar()
    deepspeed.runtime.bf16_optimizer.see_memory_usage = lambda *_, **__: None  # it would print a dozen lines of bytes
    # transformers leaves accelerate's own number at 1; DeepSpeed's is the one that counts, and the recipe's.
    logging.getLogger("accelerate.accelerator").addFilter(lambda record: "steps mismatch" not in str(record.msg))
    first = cpu.is_first()
    machine: dict[str, Any] = {}
    if recipe.precision is not None:
        precision, why = recipe.precision, "as the recipe says"
        if precision == "auto":
            before = checkpoints.noted(out, "precision")
            precision, why = (before, "as before") if before else cpu.choose_precision()
        chosen = precision == "bf16"
        recipe = msgspec.structs.replace(
            recipe,
            precision=precision,
            training={**recipe.training, "bf16": chosen},
            deepspeed={**recipe.deepspeed, "bf16": {"enabled": chosen}},
        )
        machine["precision"] = precision
        if first:
            print(f"{precision}{' with fp32 master weights' if chosen else ''}: {why}", flush=True)
    bf16 = recipe.training.get("bf16") or recipe.deepspeed.get("bf16", {}).get("enabled") is True
    if first and (note := cpu.device_note(bf16)):
        print(note, flush=True)
    if not torch.cuda.is_available():
        cpu.keep_memory()
        machine["threads"] = threads or checkpoints.noted(out, "threads") or cpu.threads_of_a_process()
        # The launcher sets OMP_NUM_THREADS=1 for any number of processes.
        os.environ["OMP_NUM_THREADS"] = str(machine["threads"])
        torch.set_num_threads(machine["threads"])
        # Compiling DeepSpeed's shared-memory collectives takes most of a minute and needs a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return recipe, machine


def _announce(model: Any, data: Data, resumed: Path | None) -> None:
    whole, trained = export.parameters(model)
    counts = data.counts
    refused = counts["refused"]
    parts = [f"{n} with a shortened {section}" for section, n in counts["shortened"].items()]
    parts.append(f"{len(refused)} refused as too long" + (f" ({', '.join(refused[:3])}, …)" if refused else ""))
    parts += [f"{n} left out ({why})" for why, n in counts["left_out"].items()]
    parts += [f"{n} labelled by {name}" for name, n in counts.get("labels", {}).items()]
    part = "" if trained == whole else f", {trained / 1e6:.1f} M of them trained"
    print(f"{whole / 1e6:.1f} M parameters{part}; {len(data.rows)} examples, {', '.join(parts)}", flush=True)
    if one_class := counts.get("one_class"):
        _warn(one_class)
    if resumed is not None:
        print(f"continuing from {resumed}", flush=True)


if __name__ == "__main__":
    import launch

    run_program(launch.main)
