"""Write the judge's folder: weights (safetensors), tokenizer, chat template, generation config and model card."""

import json
import shutil
from pathlib import Path
from typing import Any

import jinja2
import torch
import transformers
from base import copy_terms, find_folder, read_origin
from checkpoints import let_others_read
from tiny import with_head
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config
from transformers.models.auto import modeling_auto

from critic import jsonl
from critic.backends.identity import hash_processor


def save(trainer: Any, out: Path, *, merge: bool = True) -> None:
    """Write the current model of a JudgeTrainer to `out`, a Hugging Face folder that vLLM can serve.

    critic.json is written last. With LoRA, `merge` writes the merged model to `out` in addition to the adapter in
    `out`/adapter. Every process must call it.
    """
    facts, head = trainer.describe(), trainer.trained_for.head_config()
    tokenizer = trainer.tokenizer
    adapted = hasattr(trainer.model, "peft_config")
    trainer.save_model(str(out / "adapter" if adapted else out))
    if not trainer.args.should_save:
        return
    # Programs that know no adapters can serve the merged model.
    if adapted and merge:
        _merge(facts, out, head, trainer.args.hf_deepspeed_config)
    if head and (out / "config.json").is_file():
        name_as_vllm_does(out / "config.json")
    base = find_folder(facts["recipe"]["base"], facts["recipe"]["revision"]) if facts["recipe"]["base"] else None
    for folder in [out, out / "adapter"] if adapted else [out]:
        # A pickle; critic.json says the same in JSON.
        (folder / "training_args.bin").unlink(missing_ok=True)
        if base is not None:
            copy_terms(base, folder)
    tokenizer.save_pretrained(out)
    # An adapter that is served by itself needs the processor too.
    if adapted and facts["recipe"]["images"] == "show":
        tokenizer.save_pretrained(out / "adapter")
    if not head:
        _build_generation_config(trainer.model, tokenizer).save_pretrained(out)
    let_others_read(out / "tokenizer_config.json")
    write_notes(out, facts, read_origin(base) if base else None, is_head=bool(head))


def write_notes(out: Path, facts: dict[str, Any], base: dict[str, Any] | None, *, is_head: bool) -> None:
    """Write the model card of the judge in `out`, and then critic.json with `facts` and the hashes of its files.

    `base` are the notes about its base, or None.
    """
    weights = {file.name: jsonl.sha256(file) for file in sorted(out.glob("*.safetensors"))}
    origins = {"base": base, "weights": weights, "processor": hash_processor(str(out))}
    whole = {**facts, **{name: value for name, value in origins.items() if value is not None}}
    (out / "README.md").write_text(render_card(whole, is_head=is_head), "utf-8")
    jsonl.write_json(out / "critic.json", whole)


def read_base(base: str, head: dict[str, Any], images: str, **options: Any) -> Any:
    """Load a base model with the transformers class that it is trained as. `options` go to `from_pretrained`.

    `head` is the configuration of a scoring head (`Objective.head_config`), empty for a generative judge. `images` is
    the recipe's `images`.
    """
    if not head:
        writes = transformers.AutoModelForImageTextToText if images == "show" else transformers.AutoModelForCausalLM
        return writes.from_pretrained(base, **options)
    # The base may have a head of another objective, with another size.
    options |= {**head, "ignore_mismatched_sizes": True}
    if images != "show":
        return transformers.AutoModelForSequenceClassification.from_pretrained(base, **options)
    config = transformers.AutoConfig.from_pretrained(base, revision=options.get("revision"))
    return with_head(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]).from_pretrained(base, **options)


def name_as_vllm_does(config: Path) -> None:
    """Rename a scoring head's class in the file `config` after the text class of its family.

    vLLM finds the model by that name, as in Gemma3ForCausalLM. A model that sees images has its own class (`with_head`)
    and is not changed.

    >>> import tempfile
    >>> named = {"architectures": ["Gemma3TextForSequenceClassification"], "id2label": {0: "1"}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     transformers.Gemma3TextConfig(**named).save_pretrained(folder)
    ...     name_as_vllm_does(Path(folder, "config.json"))
    ...     saved = json.loads(Path(folder, "config.json").read_text("utf-8"))
    >>> saved["architectures"], saved["id2label"]
    (['Gemma3ForSequenceClassification'], {'0': '1'})
    """
    settings = json.loads(config.read_text("utf-8"))
    if of_text := modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(settings["model_type"]):
        settings["architectures"] = [of_text.replace("ForCausalLM", "ForSequenceClassification")]
        jsonl.write_json(config, settings)


def _merge(facts: dict[str, Any], out: Path, head: dict[str, Any], deepspeed_config: Any) -> None:
    """Reload the base in its own precision, merge the adapter into it, and save it to `out`. Call it in one process
    only.
    """
    from peft import PeftModel  # noqa: PLC0415  # takes seconds to import and only adapters need it

    recipe = facts["recipe"]
    # Under ZeRO-3 loading a model is a collective.
    unset_hf_deepspeed_config()
    try:
        model = read_base(recipe["base"], head, recipe["images"], dtype="auto", revision=recipe["revision"])
        PeftModel.from_pretrained(model, out / "adapter").merge_and_unload().save_pretrained(out)
    finally:
        set_hf_deepspeed_config(deepspeed_config)


def _build_generation_config(model: Any, tokenizer: Any) -> transformers.GenerationConfig:
    """Return a generation config for greedy decoding that stops at the stop tokens of the base and of the tokenizer."""
    ends = model.generation_config.eos_token_id
    known = ends if isinstance(ends, list) else [ends] if ends is not None else []
    return transformers.GenerationConfig(
        do_sample=False,
        eos_token_id=sorted({*known, tokenizer.eos_token_id}),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=model.generation_config.bos_token_id,
    )


def replace(trainer: Any, out: Path, *, merge: bool) -> None:
    """Save as `save` does, to a new folder that then replaces `out`. A killed run leaves a complete folder, old or new.

    `mend` must be called if the run was killed between the two renames.
    """
    out = jsonl.resolve_links(out)
    fresh, old = out.with_name(out.name + ".partial"), out.with_name(out.name + ".old")
    if trainer.args.should_save:
        shutil.rmtree(fresh, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    with jsonl.remove_on_failure(fresh):
        save(trainer, fresh, merge=merge)
    if trainer.args.should_save:
        shutil.rmtree(old, ignore_errors=True)
        if out.is_dir():
            out.rename(old)
        fresh.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()


def mend(out: Path) -> None:
    """Rename the old folder back to `out` if `replace` was killed after it moved the old folder away.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     best, old = Path(place, "best"), Path(place, "best.old")
    ...     for _ in range(2):
    ...         old.mkdir()
    ...         mend(best)
    ...         print(sorted(folder.name for folder in Path(place).iterdir()))
    ['best']
    ['best', 'best.old']
    """
    out = jsonl.resolve_links(out)
    old = out.with_name(out.name + ".old")
    if old.is_dir() and not out.is_dir():
        old.rename(out)


def render_card(facts: dict[str, Any], is_head: bool = False) -> str:
    """Return the model card in Markdown. `facts` are the contents of critic.json.

    It says what the judge was made from and how well it agreed with human scores on held-out rows.
    """
    template = jinja2.Template(Path(__file__).with_name("card.jinja").read_text("utf-8"))
    return str(template.render({**facts, "is_head": is_head}))


def size_of(parameter: torch.Tensor) -> int:
    """Return the number of elements in a parameter, even if it is sharded (ZeRO-3) or quantized to 4 bits."""
    packed = getattr(parameter, "quant_state", None)
    return int(packed.shape.numel() if packed is not None else getattr(parameter, "ds_numel", parameter.numel()))


def count_parameters(model: Any) -> tuple[int, int]:
    """Return the number of all parameters of a model, and of those that are trained."""
    sizes = [(size_of(parameter), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def unwrap(model: Any) -> Any:
    """Return the model inside a peft wrapper, or `model` itself if there is none."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
