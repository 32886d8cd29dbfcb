"""Fine-tune a judge on human-scored rows, in one of the processes started by the launcher (sft.py).

The prompt is rendered exactly as in judging, and only the verdict is learned. A killed run resumes from the newest
complete checkpoint. The result is a Hugging Face folder that vLLM can serve. (AlignMMBench §5.2)
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import filterfalse
from pathlib import Path
from typing import Any

import attention
import checkpoints
import cpu
import deepspeed
import export
import linear_head
import msgspec
import preflight
import torch
import trainer_args
import transformers
from batches import Batches, Collation
from evaluation import HeldOut, read_held_out, require_foreign
from huggingface_hub.constants import HF_HOME
from loop import JudgeTrainer
from objective import Objective, RatingTokens
from recipe import objective_of
from recipe_keys import LoraSpec, Recipe, list_made_files
from rows import Data, prepare, prompt_hashes, sees
from tiny import random_model
from vision import TOWERS

from critic import jsonl, tables
from critic.errors import UsageError, hash_value, notify
from critic.images import Images


def build_model(recipe: Recipe, tokenizer: Any, tokens: RatingTokens | None) -> Any:
    """Return the model to train. Its `forward` computes the loss of the recipe's objective.

    `tokens` say how the tokenizer spells ratings, None for a scoring head. Raise UsageError if the base cannot be
    loaded or does not fit the recipe.
    """
    objective = objective_of(recipe, tokens)
    model = _read_model(recipe, objective, tokenizer)
    packed = choose_packing(objective, model, tokenizer)
    attention.install(model, attention.choose_attention(recipe.attention, packed=packed))
    _freeze(model, recipe)
    objective.install(model)
    if recipe.lora is not None:
        model = _add_adapters(model, recipe.lora, recipe.revision, "SEQ_CLS" if objective.is_head() else "CAUSAL_LM")
    _spare_gradients(model)
    return model


def choose_packing(objective: Objective, model: Any, tokenizer: Any, *, say: bool = False) -> bool:
    """Return True if rows are packed, and False if they are padded.

    They are packed if the recipe or the objective wants it and the base supports it. With `say`, print a line if rows
    are padded because of the base. Raise UsageError if the recipe asks for FlexAttention, and the base cannot pack.
    """
    recipe = objective.recipe
    obstacles = ", ".join(attention.list_obstacles(model, tokenizer))
    wanted = recipe.packing or objective.packs
    if obstacles and recipe.attention == attention.FLEX:
        raise UsageError(f"attention {attention.FLEX} is for packed rows, which this base cannot have ({obstacles})")
    if obstacles and wanted and say:
        twice = "" if type(objective).branch is Collation.branch else ", and of each rated row a second one"
        cost = f"all tokens of each row are computed, none is shared{twice}"
        print(f"rows are padded, {model.config.model_type} cannot pack them ({obstacles}): {cost}", flush=True)
    return wanted and not obstacles


def _freeze(model: Any, recipe: Recipe) -> None:
    """Freeze the model parts that the recipe names (`frozen`), by default the vision part of a base.

    Raise UsageError if a part does not exist or nothing is left to train.
    """
    words = ".".join(dict(model.named_parameters())).split(".")
    names = sorted(filterfalse(str.isdigit, set(words)))
    frozen = recipe.frozen
    if frozen is None:
        frozen = [name for name in TOWERS if name in names and recipe.images == "show" and recipe.base]
    for part in frozen:
        if part not in names:
            raise UsageError(f"frozen: {part!r} is no part of the model; parts are {', '.join(names)}")
    for name, parameter in model.named_parameters():
        if set(frozen) & set(name.split(".")):
            parameter.requires_grad_(False)
    # Adapters are trained whatever is frozen.
    if recipe.lora is None and not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"frozen: {', '.join(frozen)} leaves nothing of the model to train")


def _spare_gradients(model: Any) -> None:
    """Run a frozen vision part without gradients.

    With gradient checkpointing or adapters, transformers requires gradients of the vision part's inputs. The backward
    pass of that part would then be computed for nothing.
    """
    for name, part in model.named_modules():
        looks = name.rpartition(".")[2] in TOWERS
        if looks and not any(parameter.requires_grad for parameter in part.parameters()):
            part.forward = torch.no_grad()(part.forward)


def _read_model(recipe: Recipe, objective: Objective, tokenizer: Any) -> Any:
    """Return the base model or a random tiny model. Raise UsageError if the base cannot be loaded or trained."""
    if objective.is_head():
        # It would report the new layer as missing from the base.
        transformers.utils.logging.set_verbosity_error()
    # FlexAttention is only for the part that reads text, not for the one that looks at images.
    kind = "sdpa" if recipe.attention in {attention.AUTO, attention.FLEX} else recipe.attention
    try:
        if recipe.tiny is not None:
            longest = recipe.max_source_tokens + recipe.max_target_tokens
            model = random_model(recipe.tiny, tokenizer, longest, objective.head_config(), recipe.vision)
            model.set_attn_implementation(kind)
            return model
        model, loaded = export.read_base(
            str(recipe.base),
            objective.head_config(),
            recipe.images,
            dtype=torch.float32 if recipe.precision == "fp32" else "auto",
            revision=recipe.revision,
            attn_implementation=kind,
            output_loading_info=True,
            **_read_in_four_bits(recipe),
        )
    except (OSError, ValueError, ImportError) as error:
        why = str(error).strip().splitlines()[0]
        raise UsageError(f"base {recipe.base or 'tiny'!r} cannot be loaded: {why}") from None
    if not hasattr(model, "model") or not any("layers." in name for name, _ in model.named_parameters()):
        raise UsageError(f"base {recipe.base!r}: no layers are found in a {type(model).__name__}; take another family")
    resized = {name for name, *_ in loaded["mismatched_keys"]}
    # transformers would replace weights of another size by random ones, with a warning only.
    if others := sorted(resized - {"score.weight"}):
        raise UsageError(f"base {recipe.base!r}: {others[0]} has another size in its weights than by its config.json")
    if "score.weight" in {*loaded["missing_keys"], *resized}:
        # Start with equal probabilities: the gradients of a random head would be noise.
        with deepspeed.zero.GatheredParameters([model.score.weight], modifier_rank=0), torch.no_grad():
            model.score.weight.zero_()
    return model


def _read_in_four_bits(recipe: Recipe) -> dict[str, Any]:
    """Return the options to load a base as NF4 onto this process's GPU, or {} if the recipe does not ask for it.

    The output head and parameters other than matrices are not quantized.
    """
    if recipe.lora is None or recipe.lora.bits is None:
        return {}
    kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    packing = transformers.BitsAndBytesConfig(load_in_4bit=True, **kind)
    return {"quantization_config": packing, "device_map": {"": torch.cuda.current_device()}}


def _choose_adapted_layers(model: Any, wanted: str | list[str]) -> str | list[str]:
    """Return the layers that get adapters: `wanted`, the recipe's `target_modules`.

    In a model that sees images, "all-linear" becomes the names of the linear layers of its text part.
    """
    if wanted != "all-linear" or model.get_decoder() is getattr(model, "model", None):
        return wanted
    within = {*model.get_decoder().modules()}
    return [name for name, module in model.named_modules() if module in within and isinstance(module, torch.nn.Linear)]


def _add_adapters(model: Any, lora: LoraSpec, revision: str | None, task: str) -> Any:
    """Return the model with LoRA adapters. `task` is peft's task type. Raise UsageError for layers that cannot be
    adapted.
    """
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  # takes seconds to import

    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_choose_adapted_layers(model, lora.target_modules),
        # SEQ_CLS trains the new layer whole.
        task_type=task,
    )
    try:
        adapted = get_peft_model(model, config, revision=revision)
    except ValueError as error:
        raise UsageError(f"lora: {str(error).splitlines()[0]}") from None
    if hasattr(getattr(export.unwrap(adapted), "lm_head", None), "base_layer"):
        raise UsageError("lora: no adapter goes on lm_head, which computes the loss; leave it out of target_modules")
    return adapted


def describe(recipe: Recipe, train: Path, internal: Path | None = None) -> dict[str, Any]:
    """Return the facts that identify a run: prompts, data, and the recipe's keys that change the judge.

    The key `evaluation` counts only if foreign rows decide which weights are kept, `frames` only if images are shown.
    The weights of a base in a folder also count; only the first process hashes them. `internal` is the file of held-out
    rows, or None.
    """
    keys = msgspec.to_builtins(recipe)
    left_out = {"keep", *([] if recipe.foreign else ["evaluation"]), *([] if sees(recipe) else ["frames"])}
    folder = Path(str(recipe.base))
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]) if recipe.base and cpu.is_first() else []
    also = [*list_made_files(recipe), *([recipe.foreign, str(internal)] if recipe.foreign else [])]
    return {
        "recipe": {key: keys[key] for key in keys if key not in left_out},
        "prompts": prompt_hashes(recipe),
        "data": {file.name: jsonl.sha256(file) for file in tables.list_files(train)}
        | {name: jsonl.sha256(Path(name)) for name in also},
        **({"base_weights": {file.name: jsonl.sha256(file) for file in weights}} if weights else {}),
    }


def feature_folder(recipe: Recipe, facts: dict[str, Any], cache: Path) -> Path:
    """Return the cache folder for the base's features of prompts (`linear_head.compute_features`).

    `facts` are those of the run (`describe`).
    """
    # A random model also depends on the rows and the seed.
    made_of = facts if recipe.tiny else facts.get("base_weights") or [recipe.base, recipe.revision]
    return cache / "features" / hash_value([made_of, recipe.precision], 24)


def is_finished(out: Path, facts: dict[str, Any]) -> bool:
    """Return True if `out` holds a finished judge with these `facts`.

    Raise UsageError if it holds another judge.
    """
    notes = out / "critic.json"
    if not notes.is_file():
        return False
    # A judge is never overwritten: it may have taken days.
    if changed := checkpoints.list_changes(json.loads(notes.read_text("utf-8")), facts):
        raise UsageError(f"{out} holds a judge made with another {' and '.join(changed)}; choose another --out")
    return True


@contextmanager
def take_turns(first: bool) -> Iterator[None]:
    """Run the block in the first process, and afterwards in all others, which find the first one's results.

    `first` is True in the first process. If that process has died, the others exit with a message.
    """
    if not first:
        try:
            torch.distributed.barrier()
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            notify(f"process {os.environ['RANK']} ends: the first is not heard of any more ({why})")
            raise SystemExit(2) from None
    yield
    if first:
        torch.distributed.barrier()


class TrainingRun(msgspec.Struct, frozen=True):
    """A recipe and the options of the command (sft.py).

    - `data_root`: folder that image paths start from.
    - `internal`: file of held-out rows, or None for no evaluation.
    - `cache`: folder to cache token ids, or None for the default.
    - `threads`: CPU threads per process, or None for the idle cores.
    """

    recipe: Recipe
    train: Path
    out: Path
    data_root: Path
    internal: Path | None = None
    cache: Path | None = None
    threads: int | None = None


def main(run: TrainingRun) -> None:
    """Fine-tune a judge on human-scored rows, in one of the launcher's processes."""
    _, earlier = checkpoints.read_newest(run.out)
    run = msgspec.structs.replace(run, recipe=preflight.pin_revision(run.recipe, earlier.get("recipe")))
    facts = describe(run.recipe, run.train, run.internal)
    with jsonl.lock_folder(run.out) if cpu.is_first() else nullcontext():
        if is_finished(run.out, facts):
            print(f"{run.out} holds this judge already")
        else:
            _train(run, facts, earlier)


def _train(run: TrainingRun, facts: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Train the judge that `facts` describe. Resume from the newest complete checkpoint if there is one.

    `earlier` are the facts of that checkpoint, or {}.
    """
    out, first, cache = run.out, cpu.is_first(), run.cache or Path(HF_HOME) / "critic"
    recipe, machine = _prepare_device(run.recipe, earlier, run.threads)
    with trainer_args.report_bad_values():
        transformers.set_seed(recipe.training.get("seed", 42))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    resumed = checkpoints.find_newest(out, facts, _warn if first else lambda text: None)
    settings = trainer_args.arguments(recipe, out, facts)
    deepspeed.init_distributed()
    # First point at which the processes can communicate, before anything slow starts.
    preflight.require_alike(settings.device)
    images = Images(run.data_root, resize_to=recipe.max_image_pixels, frames=recipe.frames) if sees(recipe) else None
    with take_turns(first):
        if resumed is not None and (before := earlier.get("processes")) != processes:
            raise UsageError(
                f"{resumed} was made by {before} processes, this run has {processes}; "
                f"start {before} again, or choose another --out"
            )
        preflight.require_device(recipe)
        preflight.require_served_tokens(recipe)
        data, tokenizer = prepare(recipe, run.train, cache, os.cpu_count() or 1, images)
    tokens = objective_of(recipe).read_tokens(tokenizer)
    objective = objective_of(recipe, tokens)
    watched_rows = _read_watched(run, objective, tokenizer)
    if "foreign" in watched_rows:
        require_foreign(watched_rows["foreign"], data.rows, str(recipe.foreign))
    model = build_model(recipe, tokenizer, tokens)
    cpu.say(trainer_args.use_liger(settings, recipe, model))
    with take_turns(first):
        preflight.require_embeddings(export.unwrap(model), tokenizer, data.rows, recipe.base or "tiny")
        if first:
            checkpoint, most = preflight.estimate_disk_use(recipe, settings, *export.count_parameters(model))
            print(preflight.require_room(out, checkpoint, most, recipe.keep), flush=True)
    if recipe.probe is not None and resumed is None:
        folder = feature_folder(recipe, facts, cache)
        linear_head.fit(export.unwrap(model), recipe, data.rows, tokenizer, settings.device, folder)
    if first:
        _announce(model, data, resumed)
    collate = Batches(
        tokenizer.pad_token_id,
        objective.weights(data.rows),
        objective,
        packing=choose_packing(objective, export.unwrap(model), tokenizer, say=first),
        seeing=tokenizer if images is not None else None,
        several=processes > 1,
    )
    with trainer_args.report_bad_values():
        trainer = JudgeTrainer(
            objective,
            facts={**facts, **machine, "processes": processes},
            notes={**facts, **machine, **data.counts},
            tokenizer=tokenizer,
            watched=watched_rows,
            model=model,
            args=settings,
            train_dataset=data.rows,
            data_collator=collate,
        )
    with trainer_args.report_bad_values(lambda: trainer.began > 0.0):
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        trainer.finish()
    cpu.say(f"judge saved in {out}")


def _read_watched(run: TrainingRun, objective: Objective, tokenizer: Any) -> dict[str, HeldOut]:
    """Return the held-out rows to judge during training, by name (`own`, `foreign`); empty without evaluation."""
    recipe = objective.recipe
    if run.internal is None or recipe.evaluation is None:
        return {}
    files = {"own": run.internal, **({"foreign": Path(recipe.foreign)} if recipe.foreign else {})}
    return {name: read_held_out(file, objective, tokenizer) for name, file in files.items()}


def _warn(text: str) -> None:
    """Print a warning to stderr."""
    notify(f"warning: {text}")


def _prepare_device(recipe: Recipe, earlier: dict[str, Any], threads: int | None) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe with its precision decided, and facts about the machine (precision, threads).

    `threads` is the number of CPU threads, or None to choose it. A resumed run keeps both, from the facts of its
    `earlier` part, so that it computes the same.
    """
    transformers.utils.logging.disable_progress_bar()
    # It would print a dozen lines about memory.
    deepspeed.runtime.bf16_optimizer.see_memory_usage = lambda *_, **__: None
    # transformers leaves accelerate's own number at 1; DeepSpeed's is the one that counts, and the recipe's.
    logging.getLogger("accelerate.accelerator").addFilter(lambda record: "steps mismatch" not in str(record.msg))
    machine: dict[str, Any] = {}
    if recipe.precision is not None:
        precision, why = recipe.precision, "as the recipe says"
        if precision == "auto":
            before = earlier.get("precision")
            precision, why = (before, "as before") if before else cpu.choose_precision()
        chosen = precision == "bf16"
        recipe = msgspec.structs.replace(
            recipe,
            precision=precision,
            training={**recipe.training, "bf16": chosen},
            deepspeed={**recipe.deepspeed, "bf16": {"enabled": chosen}},
        )
        machine["precision"] = precision
        cpu.say(f"{precision}{' with fp32 master weights' if chosen else ''}: {why}")
    bf16 = recipe.training.get("bf16") or recipe.deepspeed.get("bf16", {}).get("enabled") is True
    cpu.say(cpu.describe_device(bf16))
    if not torch.cuda.is_available():
        cpu.keep_memory()
        machine["threads"] = threads or earlier.get("threads") or cpu.choose_threads()
        # The launcher sets OMP_NUM_THREADS=1 for any number of processes.
        os.environ["OMP_NUM_THREADS"] = str(machine["threads"])
        torch.set_num_threads(machine["threads"])
        # Compiling DeepSpeed's shared-memory collectives takes most of a minute and needs a compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return recipe, machine


def _announce(model: Any, data: Data, resumed: Path | None) -> None:
    """Print the size of the model, the counts of examples and left-out rows, and warnings about the rows."""
    whole, trained = export.count_parameters(model)
    counts = data.counts
    refused = counts["refused"]
    parts = [f"{n} with a shortened {section}" for section, n in counts["shortened"].items()]
    parts.append(f"{len(refused)} refused as too long" + (f" ({', '.join(refused[:3])}, …)" if refused else ""))
    parts += [f"{n} left out ({why})" for why, n in counts["left_out"].items()]
    parts += [f"{n} labelled by {name}" for name, n in counts.get("labels", {}).items()]
    part = "" if trained == whole else f", {trained / 1e6:.1f} M of them trained"
    print(f"{whole / 1e6:.1f} M parameters{part}; {len(data.rows)} examples, {', '.join(parts)}", flush=True)
    if counts["untaught"]:
        _warn(f"no row teaches {', '.join(counts['untaught'])}: the judge is not asked in these forms")
    for finding in ("one_class", "far_apart"):
        if counts.get(finding):
            _warn(counts[finding])
    if resumed is not None:
        print(f"continuing from {resumed}", flush=True)
