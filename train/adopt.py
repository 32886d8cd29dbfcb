"""Make a judge of a model that was trained elsewhere, without training it again.

    critic adopt reward-model runs/judges/reward --calibrate rows.jsonl
    critic adopt adapter runs/judges/reward --base runs/base/qwen
    critic adopt prometheus runs/judges/prometheus --prompt-pack packs/prometheus

FOLDER is a reward model of TRL, ms-swift or LLaMA-Factory (whole, or an adapter over its base), a classifier of up to
ten labels from worst to best, or a judge that writes, with the prompts that it was trained on (--prompt-pack). OUT gets
the files as links, or the weights merged into this project's layout, and critic.json: `critic judge`, `serve` and
`audit` take it like a judge that was trained here.

A reward model's score has no fixed scale, so it can only compare answers. With --calibrate, the model scores answers
that people rated, and a map from scores to probabilities of ratings is fitted. The model can then rate as well. Audits
refuse the answers that were used for the fit.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from base import build_folder, quiet_libraries
from export import name_as_vllm_does, read_base
from safetensors.torch import load_file

from critic import jsonl
from critic.backends import identity
from critic.certificate import row_key
from critic.cli import run_program
from critic.errors import UsageError, refusing
from critic.human_scored import walk
from critic.judging.forms import ONE_SIDE
from critic.judging.packs import open_pack
from critic.records import RATINGS, Judgment
from critic.stages.judge_responses import judge_rows
from critic.stages.options import Endpoint, JudgeOptions
from eval_agreement.measures.calibration import fit_ordinal

VALUE_HEAD = "value_head.safetensors"
"""File in which LLaMA-Factory saves the scoring head of a reward model."""

SCORES = ("regression", "multi_label_classification")
"""Values of transformers' `problem_type` for heads whose outputs are independent scores, not labels to choose from."""

PICKLES = (".bin", ".pt", ".pth")

CHAT_FORMS = ("pointwise", "direct_turn", "direct_whole", "pairwise", "pairwise_turn", "pairwise_whole")
"""Forms of reward models and classifiers, whose prompt is only the conversation to judge."""


class Found(NamedTuple):
    """Description of the model in a folder.

    - `title`: kind of model, for messages.
    - `base`: the folder with the configuration, which is that of the base if the model is an adapter.
    - `tokenizer`: the folder with the tokenizer and chat template, which is the base's if the adapter has none.
    - `labels`: number of outputs of the scoring head, 0 for a model that generates text.
    - `weights`: weights [labels × width] of the scoring head if it is saved apart from the model, else None.
    """

    title: str
    base: Path
    tokenizer: Path
    labels: int
    weights: torch.Tensor | None = None


def find(folder: Path, base: Path | None) -> Found:
    """Return a description of the model in `folder`. `base` is an adapter's base, None for the one that it names.

    Raise UsageError if the model cannot become a judge. The message says what is missing.
    """
    adapter = _read(folder / "adapter_config.json")
    base = (base or Path(adapter["base_model_name_or_path"])) if adapter else folder
    config = _read(base / "config.json")
    if not config:
        hint = f"an adapter over {base}; name its folder: --base" if adapter else "no model folder: config.json missing"
        raise UsageError(f"{folder}: {hint}")
    if code := config.get("auto_map"):
        raise UsageError(f"{base}: needs code of its own ({', '.join(code)}), which is not run; convert it first")
    # ms-swift saves none with an adapter.
    source = folder if (folder / "tokenizer_config.json").is_file() else base
    settings = _read(source / "tokenizer_config.json")
    if not settings or not ("chat_template" in settings or (source / "chat_template.jinja").is_file()):
        missing = "chat template" if settings else "tokenizer"
        raise UsageError(f"{folder}: no {missing}; copy that which it was trained with into the folder")
    name = ", ".join(config.get("architectures") or ["?"]) + " with an adapter" * bool(adapter)
    heads = dict[str, torch.Tensor]()
    for file in (folder / VALUE_HEAD, folder / "adapter_model.safetensors"):
        heads |= load_file(file) if file.is_file() else {}
    # TRL and ms-swift save the layer with the adapter, LLaMA-Factory beside it.
    weights = next((heads[key] for key in heads if key.endswith(("summary.weight", "score.weight"))), None)
    if weights is not None:
        labels = len(weights)
    elif (folder / "value_head.bin").is_file():
        raise UsageError(f"{folder}/value_head.bin: a pickle, which is not read; save it anew with safetensors")
    else:
        is_head = identity.is_classifier(config) and not adapter
        # transformers leaves out the number of labels if it is two.
        labels = len(config.get("id2label") or "12") if is_head else 0
    if labels > len(RATINGS):
        raise UsageError(f"{folder}: a classifier of {labels} labels; ratings are 1..10")
    if labels > 1 and ((folder / VALUE_HEAD).is_file() or config.get("problem_type") in SCORES):
        raise UsageError(
            f"{folder}: a reward model of {labels} scores; a judge has one, so keep that one's row of the head"
        )
    kinds = {0: "a judge that writes", 1: "a reward model"}
    return Found(f"{kinds.get(labels, f'a classifier of {labels} labels')} ({name})", base, source, labels, weights)


def _read(file: Path) -> dict[str, Any]:
    with refusing(file, "not JSON"):
        return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {}


def build(found: Found, folder: Path, out: Path) -> None:
    """Write the model in `folder` to `out`: links to its files, or its weights with adapter and scoring head merged.

    A classifier gets the ten ratings as labels. They are divided evenly among its N labels, and the ratings of one
    label get equal shares of its probability. Of five labels, for example, the first stands for the ratings 1 and 2.
    """
    files = {file.name: file for source in (found.tokenizer, folder) for file in source.iterdir()}
    for file in files.values():
        if file.is_file() and not file.name.startswith(("adapter_", "value_head")) and file.suffix not in PICKLES:
            (out / file.name).symlink_to(file.resolve())
    kind = {"problem_type": "regression"} if found.labels == 1 else {}
    head: dict[str, Any] = {"num_labels": found.labels, **kind} if found.labels else {}
    config = out / "config.json"
    if found.base == folder and found.weights is None and found.labels in (0, 1, 10) and [*out.glob("*.safetensors")]:
        config.unlink()
        # vLLM gives the score of a regression as it is, and else a probability.
        jsonl.write_json(config, {**_read(folder / "config.json"), **kind})
    else:
        # What is saved anew must not be written through its link.
        for file in [*out.glob("*.safetensors*"), config, out / "generation_config.json"]:
            file.unlink(missing_ok=True)
        with refusing(folder, "cannot be loaded"):
            _merge(found, folder, head).save_pretrained(out)
    if found.labels:
        name_as_vllm_does(config)


def _merge(found: Found, folder: Path, head: dict[str, Any]) -> Any:
    """Return the model with its adapter and scoring head merged, and with the ratings as labels if it is a classifier.

    `head` is the model configuration of the scoring head, {} for a model that generates text.
    """
    images = "show" if identity.sees_images(str(found.base)) else "blind"
    model = read_base(str(found.base), head, images, dtype="auto")
    if found.base != folder:
        from peft import PeftConfig, PeftModel  # noqa: PLC0415 - takes seconds, and only adapters need it

        adapter = PeftConfig.from_pretrained(str(folder))
        # LLaMA-Factory's says CAUSAL_LM, the wrapper of which asks the model for what only a model that writes has.
        adapter.task_type = None
        model = PeftModel.from_pretrained(model, folder, config=adapter).merge_and_unload()
    if found.weights is not None:
        model.score.weight.data = found.weights.to(model.dtype)
    if found.labels > 1:
        parts = [rating * found.labels // len(RATINGS) for rating in range(len(RATINGS))]
        model.score.weight.data = model.score.weight.data[parts]
        model.config.id2label = {index: str(rating) for index, rating in enumerate(RATINGS)}
    return model


def describe(found: Found, out: Path, pack: Path | None, context: int) -> dict[str, Any]:
    """Return the contents of critic.json, which identify the judge and say how to ask it.

    - `out`: the judge's folder, already built.
    - `pack`: folder with the prompts of a judge that generates text, else None.
    - `context`: most tokens of prompt and reply together. It is reduced to what the model supports.
    """
    adopted: dict[str, Any] = {}
    if found.labels:
        forms = [form for form in CHAT_FORMS if (form in ONE_SIDE) == (found.labels == 1)]
        adopted["pack"] = {"name": "chat", "prompts": {form: {"as_chat": True} for form in CHAT_FORMS}}
    else:
        opened = open_pack(Path(str(pack)))
        forms = opened.forms
        adopted["pack"] = {"name": opened.name, "prompts": opened.prompts}
    config = _read(out / "config.json")
    context = min(context, config.get("text_config", config).get("max_position_embeddings", context))
    longest = {"max_source_tokens": context - 1, "max_target_tokens": 1}
    weights = {file.name: jsonl.sha256(file) for file in sorted(out.glob("*.safetensors"))}
    return {
        "recipe": {"base": str(found.base.resolve()), "revision": None, "forms": dict.fromkeys(forms, 1.0), **longest},
        "weights": weights,
        "processor": identity.hash_processor(str(out)),
        "adopted": adopted,
        **({"tie_band": 0.0} if found.labels == 1 else {}),
    }


def calibrate(out: Path, facts: dict[str, Any], rows: Path) -> None:
    """Fit the map from a reward model's score to the probabilities of ratings (`spread_score`), and add it to `facts`.

    `facts` are the contents of critic.json. The model in `out` scores the answers in the file `rows`. Raise UsageError
    if human scores do not rise with the model's.
    """
    facts["recipe"]["forms"] = dict.fromkeys(CHAT_FORMS, 1.0)
    # With this map it rates; its score stands in the reply.
    facts["adopted"]["ordinal"] = [0.0] * (1 + len(RATINGS))
    jsonl.write_json(out / "critic.json", facts)
    judged = out / "calibration.jsonl"
    if code := judge_rows(
        Endpoint().run_options(judged), Endpoint(), JudgeOptions(judge=[str(out)]), rows, None, "mean"
    ):
        raise UsageError(f"{rows}: not all of its answers could be scored (exit code {code})")
    scored = [judgment for _, judgment in jsonl.read(judged, Judgment) if judgment.score is not None]
    pairs = [(judgment.sample.human.score, float(judgment.reply)) for judgment in scored if judgment.sample.human]
    ordinal = fit_ordinal(*np.array(pairs).T)
    if ordinal[0] <= 0.0:
        raise UsageError(f"--calibrate {rows}: people's scores do not rise with the model's on {len(pairs)} answers")
    for file in out.glob("calibration.jsonl*"):
        file.unlink()
    print(f"calibrated on {len(pairs)} answers")
    seen = {row_key(judgment) for judgment in scored if judgment.sample.human}
    facts["adopted"] |= {"ordinal": ordinal, "calibrated_on": sorted(seen)}


def main(
    folder: Path,
    out: Path,
    base: Annotated[Path | None, typer.Option(metavar="FOLDER", show_default="the one that it names")] = None,
    prompt_pack: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
    calibration: Annotated[Path | None, typer.Option("--calibrate", metavar="ROWS")] = None,
    context: Annotated[int, typer.Option(min=64)] = 4096,
) -> int:
    """Make a judge of a model that was trained elsewhere.
    \f
    - folder: The model: weights, configuration, tokenizer.
    - out: The judge's folder to write.
    - base: Base of an adapter.
    - prompt_pack: Prompts of a judge that writes, as .toml files.
    - calibration: Fit a reward model's scores to people's.
    - context: Longest prompt and reply together, in tokens.
    """
    if out.exists():
        raise UsageError(f"{out} exists already; choose another folder")
    quiet_libraries()
    found = find(folder, base)
    if calibration is not None and not any(one.human for _, _, one in walk(calibration, Counter(), scored=False)):
        raise UsageError(f"--calibrate {calibration}: no answer has people's score")
    if (found.labels == 0) != (prompt_pack is not None):
        words = "has its own words: add" if found.labels == 0 else "is shown the conversation alone: leave out"
        raise UsageError(f"{folder}: {found.title}, which {words} --prompt-pack")
    if calibration is not None and found.labels != 1:
        raise UsageError(f"--calibrate: {found.title} has a scale of its own; critic audit fits a map to it")
    print(f"found: {found.title}")
    with build_folder(out) as partial:
        build(found, folder, partial)
        facts = describe(found, partial, prompt_pack, context)
        if calibration is not None:
            calibrate(partial, facts, calibration)
        jsonl.write_json(partial / "critic.json", facts)
    print(f"asked in: {', '.join(facts['recipe']['forms'])}\njudge saved in {out}")
    return 0


if __name__ == "__main__":
    run_program(main)
