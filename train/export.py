"""The folder that comes out: weights in safetensors, tokenizer, chat template, generation config, and a model card."""

import json
import shutil
from pathlib import Path
from typing import Any

import jinja2
import transformers
from checkpoints import let_others_read
from licenses import copy_terms, folder_of, made_from
from throughput import size_of
from tiny import with_head
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config
from transformers.models.auto import modeling_auto

from critic import jsonl
from critic.backends.identity import HEADS, hash_processor
from critic.records import RATINGS

CARD = Path(__file__).with_name("card.jinja")


def save(trainer: Any, tokenizer: Any, out: Path, facts: dict[str, Any], *, merge: bool = True) -> None:
    """Write what `trainer` holds now into `out`, a Hugging Face folder that vLLM serves as it is.

    With LoRA the adapter lies in `out`/adapter, and with `merge` `out` itself holds the base with the adapter added, so
    that both can be served. `facts` go into critic.json, written last, and into the card. Every process must call it.
    """
    adapted = hasattr(trainer.model, "peft_config")
    trainer.save_model(str(out / "adapter" if adapted else out))
    if not trainer.args.should_save:
        return
    objective = facts["recipe"]["objective"]
    if adapted and merge:
        _merge(facts, out, trainer.args.hf_deepspeed_config)
    if objective in HEADS and (out / "config.json").is_file():
        _name_as_vllm_does(out / "config.json")
    (out / "training_args.bin").unlink(missing_ok=True)  # a pickle; critic.json says the same in JSON
    (out / "adapter" / "training_args.bin").unlink(missing_ok=True)
    base = folder_of(facts["recipe"]["base"], facts["recipe"]["revision"]) if facts["recipe"]["base"] else None
    for folder in [out, out / "adapter"] if adapted else [out]:
        if base is not None:
            copy_terms(base, folder)
    tokenizer.save_pretrained(out)
    if adapted and facts["recipe"]["images"] == "show":
        tokenizer.save_pretrained(out / "adapter")
    if objective not in HEADS:
        _generation(trainer.model, tokenizer).save_pretrained(out)
    let_others_read(out / "tokenizer_config.json")
    weights = {file.name: jsonl.sha256(file) for file in sorted(out.glob("*.safetensors"))}
    origins: dict[str, Any] = {"base": base and made_from(base)}
    origins |= {"weights": weights, "processor": hash_processor(str(out))}
    whole = {**facts, **{name: value for name, value in origins.items() if value is not None}}
    (out / "README.md").write_text(card(whole), "utf-8")
    jsonl.write_json(out / "critic.json", whole)


def labels(objective: str) -> dict[str, Any]:
    """What a configuration says of the classes of a scoring head; nothing of a model that writes."""
    names = {"head": [*map(str, RATINGS)], "pairwise": ["score"]}.get(objective)
    if names is None:
        return {}
    # vLLM gives a regression's score as it is.
    kind = {"problem_type": "regression"} if len(names) == 1 else {}
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}, **kind}


def read_base(base: str, objective: str, images: str, **options: Any) -> Any:
    """A base by the class of transformers that it is trained as."""
    if not (classes := labels(objective)):
        writes = transformers.AutoModelForImageTextToText if images == "show" else transformers.AutoModelForCausalLM
        return writes.from_pretrained(base, **options)
    options |= {**classes, "ignore_mismatched_sizes": objective == "pairwise"}  # a base may rate, by another head
    if images != "show":
        return transformers.AutoModelForSequenceClassification.from_pretrained(base, **options)
    config = transformers.AutoConfig.from_pretrained(base, revision=options.get("revision"))
    return with_head(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]).from_pretrained(base, **options)


def _name_as_vllm_does(config: Path) -> None:
    """vLLM finds the model behind a head by the name of its family's class for text, as in Gemma3ForCausalLM; one that
    sees has its own (`with_head`)."""
    settings = json.loads(config.read_text("utf-8"))
    if (of_text := modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(settings["model_type"])) is None:
        return
    settings["architectures"] = [of_text.replace("ForCausalLM", "ForSequenceClassification")]
    jsonl.write_json(config, settings)


def _merge(facts: dict[str, Any], out: Path, deepspeed_config: Any) -> None:
    """The base read again at its own precision, with the adapter added to it, by this process alone."""
    from peft import PeftModel  # noqa: PLC0415  # takes seconds to import and only adapters need it

    recipe = facts["recipe"]
    unset_hf_deepspeed_config()  # under ZeRO-3 loading a model is a collective
    try:
        base, objective, images, revision = (recipe[key] for key in ("base", "objective", "images", "revision"))
        model = read_base(base, objective, images, dtype="auto", revision=revision)
        PeftModel.from_pretrained(model, out / "adapter").merge_and_unload().save_pretrained(out)
    finally:
        set_hf_deepspeed_config(deepspeed_config)


def _generation(model: Any, tokenizer: Any) -> transformers.GenerationConfig:
    """Greedy, and every token stops that the base stops on or that ends a turn here."""
    ends = model.generation_config.eos_token_id
    known = ends if isinstance(ends, list) else [ends] if ends is not None else []
    return transformers.GenerationConfig(
        do_sample=False,
        eos_token_id=sorted({*known, tokenizer.eos_token_id}),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=model.generation_config.bos_token_id,
    )


def replace(trainer: Any, tokenizer: Any, out: Path, facts: dict[str, Any], merge: bool) -> None:
    """Like `save`, but `out` is the old folder or the new one, whole, whenever the run is
    killed (`mend` puts back what was just being exchanged)."""
    out = jsonl.resolve_links(out)
    fresh, old = out.with_name(out.name + ".partial"), out.with_name(out.name + ".old")
    if trainer.args.should_save:
        shutil.rmtree(fresh, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    with jsonl.remove_on_failure(fresh):
        save(trainer, tokenizer, fresh, facts, merge=merge)
    if trainer.args.should_save:
        shutil.rmtree(old, ignore_errors=True)
        if out.is_dir():
            out.rename(old)
        fresh.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()


def mend(out: Path) -> None:
    """Put the old folder back where a `replace` was killed between taking it away and putting the new one there."""
    out = jsonl.resolve_links(out)
    old = out.with_name(out.name + ".old")
    if old.is_dir() and not out.is_dir():
        old.rename(out)


def card(facts: dict[str, Any]) -> str:
    """A model card in Markdown: what it was made from and how well it agreed with people on held-out rows."""
    recipe = facts["recipe"]
    task = "text-classification" if recipe["objective"] in HEADS else "text-generation"
    task = "image-text-to-text" if recipe["images"] == "show" else task
    return str(jinja2.Template(CARD.read_text("utf-8")).render({**facts, "task": task}))


def parameters(model: Any) -> tuple[int, int]:
    """Parameters in all and those trained."""
    sizes = [(size_of(parameter), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def bare(model: Any) -> Any:
    """The causal model itself, inside an adapter or not."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
