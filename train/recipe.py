"""What a training recipe may say, and reading one with overrides from the command line."""

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta, Struct, field
from tiny import TinySpec

from critic.backends.identity import HEADS
from critic.errors import UsageError
from critic.judging.forms import ONE_SIDE, REASON_FIRST, check_mix, form_of, head_gives, rates
from critic.judging.prompt import load
from critic.records import Showing

Count = Annotated[int, Meta(ge=1)]
Weight = Annotated[float, Meta(ge=0.0)]
Points = Annotated[float, Meta(ge=1.0, le=9.0)]


class LoraSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Low-rank adapters instead of a full fine-tune; the names are peft's. `bits: 4` reads the base's matrices as NF4
    (QLoRA, arXiv 2305.14314), for cards that its 16 bits do not fit; the judge that is saved has 16 all the same."""

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


class RaftSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """The term that `objective: raft` adds to the cross-entropy of a rated row: the error of the rating
    distribution against people's score, which weighs as much as `weight` target tokens (see objective.py)."""

    kind: Literal["squared", "rps"] = "rps"
    weight: Weight = 4.0


class VisionSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a tiny model looks with: squares of `image_size` pixels in patches of `patch_size`, `scale` x `scale` of
    which become one token; the rest as in Idefics3VisionConfig."""

    image_size: Count
    patch_size: Count
    scale: Count = 1
    hidden_size: Count
    intermediate_size: Count
    layers: Count
    heads: Count
    initializer_range: float = 0.02


class ArmsSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Answers that `critic attack --images` changed: `file` is what it made of the training rows. With one fact
    `edited`, or with another image (`swapped`), an answer is learned as worth so many points (1..9, on 1..10) less than
    people gave it before, an assumption; those without points are left out. A row counts `weight`."""

    file: str
    edited: Points | None = None
    swapped: Points | None = None
    weight: Weight = 1.0


class EvaluationSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Judging held-out rows every `every` steps, at most `rows` of them, with the averaged weights where there are
    some; the score is the expected rating."""

    every: Count
    rows: Count = 1000
    batch_size: Count = 16


class Recipe(Struct, forbid_unknown_fields=True, kw_only=True):
    """A training recipe. Exactly one of `base` (a model folder or hub id) and `tiny` (a random model).

    - `revision`: the branch, tag or commit of a base by a hub's name; the commit that it was goes into critic.json.
    - `chat_template_kwargs`: variables of the base's chat template, such as {enable_thinking: false}; the judge's own
      template sets them, so that whoever serves it renders as in training.
    - `images`: `show` trains a judge that is shown its rows' images, by a base that sees; `max_image_pixels` makes
      larger ones smaller. `vision` is what a tiny one looks with.
    - `frozen`: names of parts that are not trained; without it the part of a base that looks.
    - `forms`: judging form -> how often a row is rendered in it, 0..1 each (`critic.judging.forms`).
    - `labels`: whose scores are learned -> how much an example counts: `people`, by NAME judges whose column is
      NAME_score_1_10, by FILE.jsonl what `critic judge` wrote; each is an example of its own. Without it people's.
    - `arms`: changed answers, each worth less than it was; of `pairwise` the worse answer beside what it was.
    - `foreign`: rows of a set that is not trained on; weights that are worse on them than the base are not kept.
    - `global_batch`: rows a step, over all processes; the accumulation follows from it.
    - `rating_weight`: how much more than a verdict's other tokens its value counts in the loss.
    - `balance`: weight of a rated row is (frequency of its rating) ** -balance: 0 leaves the data as it is, 1 lets
      every rating count alike.
    - `packing`: the rows of a micro-batch become one sequence without padding; what several begin with is computed once
      (`packing.py`). Other objectives than `sft` pack in any case.
    - `together`: rows about the same images, or of the same `group`, come in one step; a number: at most so many.
    - `attention`: `auto` (`flex_attention` for packed rows on a GPU, else `sdpa`) or one of transformers.
    - `precision`: `bf16` (with fp32 master weights), `fp32`, or `auto`, which measures what is faster; without it the
      sections below decide.
    - `objective`: `sft` learns verdicts, `raft` the error of the rating too; `head` learns no text but ten classes, the
      ratings, on a prompt's last token, `pairwise` one score there, from what people preferred.
    - `margin`: by how much the scores of the most unequal answers are to differ more than those of the least unequal.
    - `probe`: a scoring head begins as a logistic regression on what the base makes of so many rows (`linear_head.py`).
    - `keep`: checkpoints that stay.
    - `training` goes to transformers.TrainingArguments and `deepspeed` to DeepSpeed as they are.
    """

    forms: dict[str, float] = field(default_factory=lambda: {"pointwise": 1.0})
    labels: dict[str, Weight] | None = None
    arms: ArmsSpec | None = None
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
    objective: Literal["sft", "raft", "head", "pairwise"] = "sft"
    margin: Weight = 1.0
    raft: RaftSpec = field(default_factory=RaftSpec)
    rating_weight: Annotated[float, Meta(gt=0.0)] = 1.0
    balance: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    packing: bool = False
    together: bool | Count = False
    probe: Count | None = None
    attention: str = "auto"
    precision: Literal["auto", "bf16", "fp32"] | None = None
    ema: EmaSpec | None = None
    evaluation: EvaluationSpec | None = None
    foreign: str | None = None
    keep: Count = 2
    training: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any]


PEOPLE = "people"


def labels(recipe: Recipe) -> dict[str, float]:
    """Whose scores count, and how much each."""
    return {name: weight for name, weight in (recipe.labels or {PEOPLE: 1.0}).items() if weight > 0.0}


def made_files(recipe: Recipe) -> list[str]:
    """The files beside --train that rows are made of: judgments of teachers, changed answers."""
    return [*judges(recipe)[1], *([recipe.arms.file] if recipe.arms else [])]


def judges(recipe: Recipe) -> tuple[list[str], list[str]]:
    """Whose scores are learned beside people's: judges by their columns, teachers by their files."""
    names = [name for name in labels(recipe) if name != PEOPLE]
    files = [name for name in names if name.endswith((".jsonl", ".jsonl.gz"))]
    return [name for name in names if name not in files], files


def watched(recipe: Recipe) -> str:
    """The form in which held-out rows are judged while training: pointwise, or the commonest on 1..10 that is; of a
    judge that writes one that begins with the rating."""
    shares = {form: share for form, share in recipe.forms.items() if share > 0.0 and rates(form)}
    if recipe.objective != "head":
        shares = {form: share for form, share in shares.items() if REASON_FIRST not in form}
    return "pointwise" if "pointwise" in shares or not shares else max(shares, key=lambda form: shares[form])


class _Loader(yaml.SafeLoader):
    """YAML 1.2 where PyYAML is still at 1.1: 1e-5 is a number, and `no` is a word (of save_strategy), not false."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """The recipe in a YAML file, with `overrides` such as `training.max_steps=100` put in.

    Raises UsageError naming the key that is wrong and the nearest right one.
    """
    content = _parsed(path.read_bytes(), str(path))
    for override in (overrides or []) if isinstance(content, dict) else []:
        _put(content, override)
    try:
        recipe = msgspec.convert(content, Recipe)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_with_nearest(str(error).splitlines()[0])}") from None
    _check(recipe, path)
    return recipe


def read_with_options(config: Path, overrides: list[str] | None, internal: Path | None) -> Recipe:
    """The recipe as the options of a training change it. Raises UsageError where the two do not fit together."""
    recipe = read_recipe(config, overrides)
    if (recipe.evaluation is None) != (internal is None):
        missing = "--internal FILE" if internal is None else "an evaluation section in the recipe"
        raise UsageError(f"to evaluate while training, give {missing} too")
    return recipe


def _parsed(text: str | bytes, location: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{location}{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{location}: not YAML: {str(error).splitlines()[0]}") from None


def _put(content: Any, override: str) -> None:
    name, equals, value = override.partition("=")
    if not equals:
        raise UsageError(f"--set takes KEY=VALUE, such as training.max_steps=100; got {override!r}")
    *folders, last = name.split(".")
    for folder in folders:
        content = content.setdefault(folder, {}) if isinstance(content, dict) else None
    if not isinstance(content, dict):
        raise UsageError(f"--set {override}: {name} is no place in a recipe")
    content[last] = _parsed(value, f"--set {override}")


def _with_nearest(message: str) -> str:
    unknown = re.search(r"contains unknown field `([^`]+)`", message)
    if unknown is None:
        return message
    sections = (Recipe, TinySpec, VisionSpec, LoraSpec, EmaSpec, RaftSpec, ArmsSpec, EvaluationSpec)
    known = [key for section in sections for key in section.__struct_fields__]
    near = difflib.get_close_matches(unknown[1], known, n=1)
    return f"{message}; did you mean {near[0]}?" if near else message


def _check(recipe: Recipe, path: Path) -> None:
    """Raises UsageError for keys that do not fit together."""

    def require(good: bool, problem: str) -> None:
        if not good:
            raise UsageError(f"{path}: {problem}")

    require((recipe.base is None) != (recipe.tiny is None), "give either base (a model) or tiny (a random one)")
    _check_base(recipe, require)
    sees = recipe.images == "show"
    whole = (recipe.vision is not None) == (sees and recipe.tiny is not None)
    require(whole, "a tiny model needs a vision section to be shown images, and no other has one")
    fitted = recipe.probe is None or (recipe.objective == "head" and not sees)
    require(fitted, "probe is for a scoring head that sees no images; set objective: head, images: blind")
    require(recipe.foreign is None or recipe.evaluation is not None, "foreign needs evaluation and --internal FILE")
    ordered = recipe.training.get("train_sampling_strategy", "random") != "random"
    require(not (recipe.together and ordered), "together decides on the order; set train_sampling_strategy: random")
    _check_forms(recipe, path, require)
    over_trees = recipe.attention in {"auto", "sdpa", "flex_attention"}
    packs = recipe.packing or recipe.objective != "sft"
    require(over_trees or not packs, f"rows are packed with auto, sdpa or flex_attention, not {recipe.attention}")
    also = {"bf16", "fp16"} & (set(recipe.training) | set(recipe.deepspeed))
    require(recipe.precision is None or not also, f"precision decides on {', '.join(sorted(also))}; give one of them")


def _check_base(recipe: Recipe, require: Callable[[bool, str], None]) -> None:
    require(recipe.lora is None or recipe.base is not None, "lora adapts a base; a tiny model is trained whole")
    on_hub = recipe.revision is None or not Path(str(recipe.base)).exists()
    require(on_hub, f"revision is for a base by a hub's name; {recipe.base} is a folder")
    if recipe.lora is not None and recipe.lora.bits is not None:
        zero = recipe.deepspeed.get("zero_optimization")
        sharded = isinstance(zero, dict) and zero.get("stage") == 3
        require(not sharded, "lora bits 4 needs the base whole on each GPU; set zero_optimization stage 2 instead of 3")
        writes = recipe.objective not in HEADS
        require(writes, f"lora bits 4 is for judges that write, not for objective {recipe.objective}")


def _check_forms(recipe: Recipe, path: Path, require: Callable[[bool, str], None]) -> None:
    try:
        check_mix(recipe.forms)
    except UsageError as error:
        raise UsageError(f"{path}: forms: {error}") from None
    used = [form for form, share in recipe.forms.items() if share > 0.0]
    on_ten = any(load(form, "en").on_ten for form in used)
    require(recipe.objective != "raft" or on_ten, "objective raft needs a form on 1..10 in forms, such as pointwise")
    compares = recipe.objective == "pairwise"
    others = ", ".join(form for form in used if not head_gives(form, compares))
    learns = f"preferences (forms {', '.join(ONE_SIDE)})" if compares else "ratings on 1..10"
    alone = f"objective {recipe.objective} learns {learns} alone, not {others}"
    require(recipe.objective not in HEADS or not others, alone)
    if recipe.arms is not None:
        require(bool(recipe.arms.edited or recipe.arms.swapped), "arms: say how many points edited or swapped costs")
        shown = recipe.images == "show" and not compares
        require(shown or not recipe.arms.swapped, "arms: swapped teaches ratings by images (images: show) alone")
        rated = any(form == "pairwise" if compares else form_of(form).kind.single_rating for form in used)
        require(rated, "arms teach ratings, in forms such as pointwise, or the form pairwise by objective pairwise")
    judged = f"evaluation judges ratings, which objective pairwise has none of; critic judge --prompt {used[0]} later"
    require(not compares or recipe.evaluation is None, judged)
    if recipe.evaluation is None:
        return
    ratings = [form for form in used if rates(form)]
    at_once = recipe.objective == "head" or not ratings or any(REASON_FIRST not in form for form in ratings)
    require(at_once, f"evaluation needs a form that begins with the rating, not {', '.join(ratings)} alone")
