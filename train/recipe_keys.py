"""Keys of a training recipe, and the sources of the scores that it learns from."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from critic.records import FRAMES, Showing

Count = Annotated[int, Meta(ge=1)]
Weight = Annotated[float, Meta(ge=0.0)]
Points = Annotated[float, Meta(ge=1.0, le=9.0)]


class LoraSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Low-rank adapters instead of full fine-tuning. Keys are named as in peft.

    `bits: 4` loads the base's matrices as NF4 (QLoRA, arXiv 2305.14314), for GPUs too small for 16 bits. The saved
    judge still has 16 bits.
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"
    bits: Literal[4] | None = None


class EmaSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Moving average of the trained weights: after update n, average += (1 - d) (weights - average).

    d = min(decay, (1 + n) / (10 + n)), so that the random or unadapted start is soon forgotten. `device`: "same" stores
    the average where the weights are, "cpu" in host memory, "auto" on the GPU if the first step leaves enough memory.
    """

    decay: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.999
    device: Literal["auto", "same", "cpu"] = "auto"


class TransformerSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Shape of a random transformer. Keys are as in transformers' configurations, but for `layers` and `heads`."""

    hidden_size: Count
    intermediate_size: Count
    layers: Count
    heads: Count
    initializer_range: float = 0.02


class TinySpec(TransformerSpec, forbid_unknown_fields=True, kw_only=True):
    """Shape of the random model, a Llama."""

    vocab_size: Count
    seed: int = 0


class VisionSpec(TransformerSpec, forbid_unknown_fields=True, kw_only=True):
    """Vision part of a tiny model: square images of `image_size` pixels, in patches of `patch_size` pixels.

    `scale` × `scale` patches become one token.
    """

    image_size: Count
    patch_size: Count
    scale: Count = 1


class CounterfactualsSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Answers changed by `critic attack --images`, to learn from. `file` is the command's output for the training rows.

    - `edited`: points (1..9, on the scale 1..10) to subtract from the original's human score if one fact was edited.
    - `swapped`: points to subtract if the image was replaced by another.
    - `weight`: weight of a changed row in the loss.

    The points are an assumption. Changed answers without points are left out.
    """

    file: str
    edited: Points | None = None
    swapped: Points | None = None
    weight: Weight = 1.0


class EvaluationSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Evaluation on at most `rows` held-out rows after every `every` steps, with the averaged weights if there are any.

    The score is the expected rating. `batch_size` is the rows per process and batch.
    """

    every: Count
    rows: Count = 1000
    batch_size: Count = 16


class RankSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Loss term for the order of the expected ratings of the answers to one question.

    - `weight`: weight of the term. With 1, the loss of each row grows by half the mean error of its pairs, each error
      times the points between the pair's human scores. With `raft` the weight is in units of target tokens.
    - `margin`: the expected ratings of two answers should differ by at least `margin` times the points between their
      human scores.
    """

    weight: Weight = 0.5
    margin: Weight = 0.0


SAVED_AS = {"group_by_question": "together", "counterfactuals": "arms"}
"""Key of a recipe -> its name until version 0.2, which recipes may still use. critic.json, checkpoints and the cache
keep the old names, so that earlier runs and judges are recognised.
"""


class Recipe(Struct, forbid_unknown_fields=True, kw_only=True, rename=SAVED_AS):
    """A training recipe, without the keys that belong to one objective (`recipe.FullRecipe` adds those).

    Exactly one of `base` (a model folder or hub id) and `tiny` (a random model) is required.

    - `revision`: branch, tag or commit of a base from a hub. critic.json records the commit.
    - `chat_template_kwargs`: variables of the base's chat template, such as {enable_thinking: false}. They are set in
      the judge's own template, so that every server renders prompts as in training.
    - `images`: "show" trains a judge that sees its rows' images, which needs a base that sees images. Larger images
      than `max_image_pixels` are reduced. `frames` is the number of frames that show a video. `vision` describes the
      vision part of a tiny model.
    - `frozen`: names of model parts that are not trained. Default: the vision part of a base.
    - `forms`: judging form -> fraction of the rows (0..1) to render in it (`critic.judging.forms`).
    - `labels`: source of scores -> weight of its examples in the loss. Sources are `people`, a judge NAME with the
      column NAME_score_1_10, or a FILE.jsonl written by `critic judge`. Each source adds examples of its own. Default:
      `people` only.
    - `counterfactuals`: changed answers, each with a lower score than the original. `pairwise` compares them with the
      originals.
    - `foreign`: rows of a data set that is not trained on. Weights that are worse on them than the base are not kept.
    - `global_batch`: rows per optimizer step, over all processes. Gradient accumulation follows from it.
    - `rating_weight`: factor in the loss for the tokens of a verdict's value.
    - `balance`: rated rows have the weight (frequency of their rating) ** -balance: 0 leaves the data as it is, 1 gives
      every rating the same total weight.
    - `packing`: True packs the rows of a micro-batch into one sequence without padding, in which common prefixes are
      computed once (`packing.py`). All objectives except `sft` pack in any case. Rows of a base that cannot pack are
      padded.
    - `group_by_question`: True puts rows about the same images, or of the same `group`, into one step. A number is the
      most rows to keep together.
    - `attention`: `auto` (`flex_attention` for packed rows on a GPU, else `sdpa`) or a name in transformers.
    - `precision`: `bf16` (with fp32 master weights), `fp32`, or `auto`, which measures the faster one. Without it the
      sections `training` and `deepspeed` decide.
    - `objective`: `sft` learns verdicts as text, and `raft` also minimises the error of the rating. The scoring heads
      `head` (ten classes, the ratings) and `pairwise` (one score, learned from preferences) use a prompt's last token.
    - `rank`: adds the error of the order of the answers to one question to the loss of `raft` or `head` (`RankSpec`).
      It needs `group_by_question`, because only rows in one micro-batch are compared.
    - `probe`: number of rows for the logistic regression that initialises a scoring head (`linear_head.py`).
    - `keep`: number of checkpoints to keep.
    - `training` is passed to transformers.TrainingArguments and `deepspeed` to DeepSpeed.
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
    frames: Count = FRAMES
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
    rank: RankSpec | None = None
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
    """Return the forms with a fraction above 0."""
    return [form for form, share in recipe.forms.items() if share > 0.0]


PEOPLE = "people"


def labels(recipe: Recipe) -> dict[str, float]:
    """Return the sources of scores and their weights, without those of weight 0.

    >>> labels(Recipe(labels={"people": 1.0, "gpt4": 0.3, "old": 0.0}, max_source_tokens=1, max_target_tokens=1,
    ...               global_batch=1, deepspeed={}))
    {'people': 1.0, 'gpt4': 0.3}
    """
    return {name: weight for name, weight in (recipe.labels or {PEOPLE: 1.0}).items() if weight > 0.0}


def list_made_files(recipe: Recipe) -> list[str]:
    """Return the files besides --train that examples are made from: judgments of teachers, and changed answers."""
    return [*judges(recipe)[1], *([recipe.counterfactuals.file] if recipe.counterfactuals else [])]


def judges(recipe: Recipe) -> tuple[list[str], list[str]]:
    """Return the sources of scores besides people: names of judges that have a column, and files of judgments."""
    names = [name for name in labels(recipe) if name != PEOPLE]
    files = [name for name in names if name.endswith((".jsonl", ".jsonl.gz"))]
    return [name for name in names if name not in files], files
