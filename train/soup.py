"""Average the weights of judges that differ only in their seed into one judge (`critic train --soup`).

With validation rows it is a greedy soup (Wortsman et al. 2022, arXiv 2203.05482): judges are added in the order of
their error on the rows, each only if the average is then no worse. Without rows it is the average of all.
"""

import math
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import export
import msgspec
import torch
from base import build_folder, copy_terms, quiet_libraries
from checkpoints import let_others_read, list_changes
from evaluation import compute_metrics, rate_held_out, read_held_out
from recipe import FullRecipe, objective_of
from recipe_keys import EvaluationSpec, Recipe, used_forms
from rows import base_tokenizer, sees
from safetensors import safe_open
from safetensors.torch import save_file

from critic import jsonl
from critic.backends import identity
from critic.errors import UsageError, refusing
from critic.images import Images

COPIED = (*identity.PROCESSOR, "config.json", "generation_config.json", "*.index.json")
"""Patterns of the files that all judges of a soup have alike, besides licence terms."""

MAY_DIFFER = ("seed", "data_seed", "run_name")
"""Keys of the recipe's section `training` in which the judges may differ."""


def read_judge(folder: Path) -> tuple[dict[str, Any], Recipe]:
    """Return the contents of a judge's critic.json, and its recipe.

    Raise UsageError if training did not finish there, or if the judge has more than weights that can be averaged.
    """
    facts = identity.read_notes(folder)
    facts.pop("architectures", None)
    weights = {file.name: jsonl.sha256(file) for file in folder.glob("*.safetensors")}
    if not weights or weights != facts.get("weights") or "adopted" in facts:
        raise UsageError(f"{folder} is no judge as critic train left it; --soup averages such folders")
    if "tie_band" in facts:
        raise UsageError(f"{folder}: its ties fit its own scores alone (objective pairwise); it cannot be averaged")
    with refusing(folder / "critic.json", "not this version's"):
        return facts, msgspec.convert(facts["recipe"], FullRecipe)


def identify(facts: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return the facts that all judges of a soup must have in common, from a judge's critic.json and recipe."""
    training = {name: value for name, value in recipe.training.items() if name not in MAY_DIFFER}
    alike = {name: facts.get(name) for name in ("prompts", "data", "base_weights")}
    return {"recipe": {**msgspec.to_builtins(recipe), "training": training}, **alike, "files": [*facts["weights"]]}


def average(files: list[Path], out: Path) -> None:
    """Write the mean of safetensors files to the file `out`, tensor by tensor.

    The files are those of whole or merged judges. The factors of adapters are not averaged, because a mean of products
    is not the product of the means. Raise UsageError if the files do not hold the same tensors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     files = [Path(place, name) for name in "abc"]
    ...     for value, file in enumerate(files):
    ...         save_file({"layer": torch.tensor([1.0, value**2])}, file)
    ...     average(files[1:], files[0])
    ...     with safe_open(files[0], "pt") as averaged:
    ...         averaged.get_tensor("layer")
    tensor([1.0000, 2.5000])
    """
    mean = dict[str, torch.Tensor]()
    with ExitStack() as opened, refusing(files[0], "cannot be averaged with the other judges' weights"):
        first, *others = [opened.enter_context(safe_open(file, "pt")) for file in files]
        for name in first.keys():  # noqa: SIM118 - it cannot be iterated
            mean[name] = first.get_tensor(name)
            # Sums of a few numbers in fp32 are exact in fp64, so that equal weights stay as they are.
            total = sum((other.get_tensor(name).expand_as(mean[name]) for other in others), mean[name].double())
            mean[name] = (total / len(files)).to(mean[name].dtype)
        save_file(mean, out, first.metadata())


def choose(count: int, score: Callable[[list[int]], float]) -> list[int]:
    """Return the judges 0..count-1 of a greedy soup, in the order in which they are added.

    `score` returns the error of the average of the given judges. A judge that leaves the error unchanged is added.

    >>> biases = [0.3, -0.1, 0.4, 0.0, -0.3]
    >>> choose(5, lambda judges: abs(sum(biases[judge] for judge in judges)) / len(judges))
    [3]
    >>> choose(5, lambda judges: round(abs(sum(biases[judge] for judge in judges) + 0.1) / len(judges), 2))
    [1, 3]
    """
    alone = [score([judge]) for judge in range(count)]
    first, *others = sorted(range(count), key=alone.__getitem__)
    taken, best = [first], alone[first]
    for judge in others:
        if (error := score([*taken, judge])) <= best:
            taken, best = [*taken, judge], error
    return taken


def prepare_scoring(recipe: Recipe, like: Path, rows: Path, data_root: Path) -> Callable[[Path], dict[str, float]]:
    """Return a function that takes a judge's folder, judges `rows` with that judge, and returns the metrics by name.

    Rows are judged as in an evaluation during training. `like` is the folder of a judge with the same tokenizer.
    `data_root` is the folder that image paths start from.
    """
    every = EvaluationSpec(every=1, rows=2**31)
    recipe = msgspec.structs.replace(recipe, base=str(like), tiny=None, revision=None, evaluation=every)
    objective_of(recipe).check_evaluation(used_forms(recipe))
    images = Images(data_root, resize_to=recipe.max_image_pixels, frames=recipe.frames) if sees(recipe) else None
    tokenizer = base_tokenizer(recipe, images)
    objective = objective_of(recipe, objective_of(recipe).read_tokens(tokenizer))
    held = read_held_out(rows, objective, tokenizer)

    def score(folder: Path) -> dict[str, float]:
        model = export.read_base(str(folder), objective.head_config(), recipe.images, dtype="auto")
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        return compute_metrics(rate_held_out(model, tokenizer, objective, held), held)

    return score


def main(names: list[str], out: Path, rows: Path | None, data_root: Path | None) -> int:
    """Write the soup of the judges in the folders `names` to `out`, and return 0.

    `rows` is the file of validation rows, or None to take all judges. `data_root` is as in `prepare_scoring`; default:
    the rows' folder. Raise UsageError if the judges are not alike or `out` is not empty.
    """
    if len(names) < 2:
        raise UsageError("--soup averages two judges or more: critic train --soup JUDGE JUDGE --out OUT")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} is not empty; choose another --out")
    quiet_libraries()
    folders = [*map(Path, names)]
    judges = [read_judge(folder) for folder in folders]
    for name, judge in zip(names, judges, strict=True):
        if changed := list_changes(identify(*judges[0]), identify(*judge)):
            raise UsageError(f"{name} was made with another {' and '.join(changed)} than {names[0]}")
    facts, recipe = judges[0]
    found: dict[tuple[int, ...], dict[str, float]] = {}
    with build_folder(out) as fresh:
        for file in chain.from_iterable(map(folders[0].glob, COPIED)):
            shutil.copyfile(file, fresh / file.name)
        copy_terms(folders[0], fresh)

        def mix(taken: list[int]) -> None:
            for file in facts["weights"]:
                average([folders[judge] / file for judge in taken], fresh / file)

        def score(taken: list[int]) -> float:
            mix(taken)
            found[*taken,] = metrics = measure(fresh)
            # Of weights that are no numbers there is no MAE.
            error = metrics.get("mae", math.inf)
            print(f"{' + '.join(names[judge] for judge in taken)}: MAE {error:.4f}", flush=True)
            return error

        taken = [*range(len(names))]
        if rows is not None:
            measure = prepare_scoring(recipe, folders[0], rows, data_root or rows.parent)
            taken = choose(len(names), score)
        mix(taken)
        let_others_read(fresh / "config.json")
        soup = list[dict[str, Any]]()
        for number, (own, settings) in enumerate(judges):
            about = {"judge": identity.own_name(names[number], own), "seed": settings.training.get("seed", 42)}
            soup.append({**about, "mae": found.get((number,), {}).get("mae"), "taken": number in taken})
        whole = {**facts, "evaluation": found.get((*taken,)), "soup": soup}
        export.write_notes(fresh, whole, facts.get("base"), is_head=objective_of(recipe).is_head())
    print(f"soup of {len(taken)} of {len(names)} judges saved in {out}", flush=True)
    return 0
