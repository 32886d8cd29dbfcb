"""The keys of a training recipe: the sections of its file, and whose scores it learns from."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from tiny import TinySpec

from critic.records import Showing

Count = Annotated[int, Meta(ge=1)]
Weight = Annotated[float, Meta(ge=0.0)]
Points = Annotated[float, Meta(ge=1.0, le=9.0)]


class LoraSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Low-rank adapters instead of a full fine-tune; the names are peft's.

    `bits: 4` reads the base's matrices as NF4 (QLoRA, arXiv 2305.14314), for GPUs that its 16 bits do not fit. The
    saved judge has 16 bits all the same.
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"
    bits: Literal[4] | None = None


class EmaSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """A moving average of the trained weights: after update n, average += (1 - d) (weights - average) with
    d = min(decay, (1 + n) / (10 + n)), so that the random or unadapted start is soon forgotten.

    `device` same keeps it where the weights are, cpu in the host's memory; auto where the first step leaves room.
    """

    decay: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.999
    device: Literal["auto", "same", "cpu"] = "auto"


class VisionSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """The part of a tiny model that sees: squares of `image_size` pixels in patches of `patch_size`.

    `scale` x `scale` patches become one token; the other keys are as in Idefics3VisionConfig.
    """

    image_size: Count
    patch_size: Count
    scale: Count = 1
    hidden_size: Count
    intermediate_size: Count
    layers: Count
    heads: Count
    initializer_range: float = 0.02


class CounterfactualsSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Answers that `critic attack --images` changed: `file` is what it made of the training rows.

    An answer with one fact `edited`, or with another image (`swapped`), is learned as worth so many points (1..9, on
    1..10) less than people gave the original. That is an assumption. Changed answers without points are left out. A row
    counts `weight`.
    """

    file: str
    edited: Points | None = None
    swapped: Points | None = None
    weight: Weight = 1.0


class EvaluationSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Evaluation every `every` steps on at most `rows` held-out rows, with the averaged weights if there are any.

    The score is the expected rating.
    """

    every: Count
    rows: Count = 1000
    batch_size: Count = 16


SECTIONS = (TinySpec, LoraSpec, EmaSpec, VisionSpec, CounterfactualsSpec, EvaluationSpec)
"""Sections of a recipe whose keys are known here; those of transformers and DeepSpeed have checks of their own."""

SAVED_AS = {"group_by_question": "together", "counterfactuals": "arms"}
"""Key of a recipe -> its name until version 0.2, which recipes may use as well. critic.json, checkpoints and the cache
keep the old names, so that earlier runs and judges are recognised."""


class Recipe(Struct, forbid_unknown_fields=True, kw_only=True, rename=SAVED_AS):
    """A training recipe but for the keys that belong to one objective (`objective_table.FullRecipe` has those too).

    Exactly one of `base` (a model folder or hub id) and `tiny` (a random model) is given.

    - `revision`: the branch, tag or commit of a base by a hub's name; the commit that it was goes into critic.json.
    - `chat_template_kwargs`: variables of the base's chat template, such as {enable_thinking: false}; the judge's own
      template sets them, so that whoever serves it renders as in training.
    - `images`: `show` trains a judge that is shown its rows' images, by a base that sees; `max_image_pixels` makes
      larger ones smaller. `vision` is what a tiny one looks with.
    - `frozen`: names of parts that are not trained; without it the part of a base that looks.
    - `forms`: judging form -> how often a row is rendered in it, 0..1 each (`critic.judging.forms`).
    - `labels`: whose scores are learned -> how much an example counts: `people`, by NAME judges whose column is
      NAME_score_1_10, by FILE.jsonl what `critic judge` wrote; each is an example of its own. Without it people's.
    - `counterfactuals`: changed answers, each worth less than it was; with `pairwise` beside the original.
    - `foreign`: rows of a set that is not trained on; weights that are worse on them than the base are not kept.
    - `global_batch`: rows a step, over all processes; the accumulation follows from it.
    - `rating_weight`: how much more than a verdict's other tokens its value counts in the loss.
    - `balance`: weight of a rated row is (frequency of its rating) ** -balance: 0 leaves the data as it is, 1 lets
      every rating count alike.
    - `packing`: the rows of a micro-batch become one sequence without padding; what several begin with is computed once
      (`packing.py`). Other objectives than `sft` pack in any case.
    - `group_by_question`: rows about the same images, or of the same `group`, come in one step; a number: the most.
    - `attention`: `auto` (`flex_attention` for packed rows on a GPU, else `sdpa`) or one of transformers.
    - `precision`: `bf16` (with fp32 master weights), `fp32`, or `auto`, which measures what is faster; without it the
      sections below decide.
    - `objective`: `sft` learns verdicts, `raft` the error of the rating too; `head` learns no text but ten classes, the
      ratings, on a prompt's last token, `pairwise` one score there, from what people preferred.
    - `probe`: a scoring head begins as a logistic regression on what the base makes of so many rows (`linear_head.py`).
    - `keep`: checkpoints that stay.
    - `training` goes to transformers.TrainingArguments and `deepspeed` to DeepSpeed as they are.
    """

    forms: dict[str, float] = field(default_factory=lambda: {"pointwise": 1.0})
    labels: dict[str, Weight] | None = None
    counterfactuals: CounterfactualsSpec | None = None
    base: str | None = None
    revision: str | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    tiny: TinySpec | None = None
    vision: VisionSpec | None = None
    images: Showing = "blind"
    max_image_pixels: Count | None = None
    lora: LoraSpec | None = None
    frozen: list[str] | None = None
    max_source_tokens: Count
    max_target_tokens: Count
    global_batch: Count
    objective: str = "sft"
    rating_weight: Annotated[float, Meta(gt=0.0)] = 1.0
    balance: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    packing: bool = False
    group_by_question: bool | Count = False
    probe: Count | None = None
    attention: str = "auto"
    precision: Literal["auto", "bf16", "fp32"] | None = None
    ema: EmaSpec | None = None
    evaluation: EvaluationSpec | None = None
    foreign: str | None = None
    keep: Count = 2
    training: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any]


def used_forms(recipe: Recipe) -> list[str]:
    """Return the forms that have a share of the rows."""
    return [form for form, share in recipe.forms.items() if share > 0.0]


PEOPLE = "people"


def labels(recipe: Recipe) -> dict[str, float]:
    """Return whose scores count, and how much each.

    >>> labels(Recipe(labels={"people": 1.0, "gpt4": 0.3, "old": 0.0}, max_source_tokens=1, max_target_tokens=1,
    ...               global_batch=1, deepspeed={}))
    {'people': 1.0, 'gpt4': 0.3}
    """
    return {name: weight for name, weight in (recipe.labels or {PEOPLE: 1.0}).items() if weight > 0.0}


def list_made_files(recipe: Recipe) -> list[str]:
    """Return the files beside --train that rows are made of: judgments of teachers, changed answers."""
    return [*judges(recipe)[1], *([recipe.counterfactuals.file] if recipe.counterfactuals else [])]


def judges(recipe: Recipe) -> tuple[list[str], list[str]]:
    """Return whose scores are learned beside people's: judges by their columns, and teachers by their files."""
    names = [name for name in labels(recipe) if name != PEOPLE]
    files = [name for name in names if name.endswith((".jsonl", ".jsonl.gz"))]
    return [name for name in names if name not in files], files
