"""Identify a judge by its checkpoint folder: its name, its training notes, and settings that change its verdicts."""

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import toml

from critic import jsonl
from critic.errors import UsageError, loads, located

PROCESSOR = ("tokenizer*", "special_tokens_map.json", "chat_template*", "*processor_config.json")
"""Patterns of the files in a model folder that define how text and images are preprocessed."""

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
MOST_HEADER = 100_000_000
"""Longest header of a safetensors file, in bytes (the format's own limit)."""

OTHERS: list[str] = toml.decode(Path(__file__).with_suffix(".toml").read_bytes())["settings"]
"""vLLM settings that can change the verdicts of the same checkpoint folder."""

SIGHT = ("vision", "visual", "image", "img", "video", "mm_vision", "vit_")
"""Prefixes of keys in config.json that belong to image input."""


def read_notes(folder: Path) -> dict[str, Any]:
    """Return the training notes of a judge (critic.json), with `architectures` from config.json added.

    Return {} for a model without training notes. Raises UsageError if the folder has no model, or if critic.json is not
    what training writes.
    """
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{folder} is no model folder: {' and '.join(missing)} missing")
    file = folder / "critic.json"
    if not file.is_file():
        return {}
    with located(file, ValueError):
        facts: dict[str, Any] = loads(file.read_bytes())
    recipe = facts.get("recipe", {}) if isinstance(facts, dict) else None
    if not isinstance(recipe, dict) or (recipe and not recipe.keys() >= {"max_source_tokens", "max_target_tokens"}):
        raise UsageError(f"{file}: not what training wrote (a recipe with its limits); copy the judge's folder anew")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return {**facts, "architectures": config.get("architectures") or []}


def own_name(model: str, facts: dict[str, Any], extra: Sequence[str] = (), settings: str = "") -> str:
    """Return a judge's name: the folder's name, "@" and a hash of everything that determines its verdicts.

    `model`: the checkpoint folder. A name that is not a folder (a model of a hub) is returned unchanged.
    `facts`: the judge's training notes (`read_notes`).
    `extra`: additional vLLM options; settings of the image processor among them count as part of the processor.
    `settings`: changed vLLM settings (`describe_settings`), or "".

    The hash covers the weights, `settings`, and `facts["adopted"]`: the prompts of a judge trained elsewhere, and its
    map from scores to ratings. It also covers the processor (tokenizer, chat template and image processor) if the model
    accepts images, or if the processor is not the one of training. Without weights, the name has no hash.
    """
    if not Path(model).is_dir():
        return model
    made_of = "".join(facts.get("weights", {}).values()) or _hash_weights(Path(model))
    if made_of:
        # A text judge with the processor of its training keeps the name that it has in older files.
        processor = hash_processor(model, extra) or ""
        made_of += processor if sees_images(model) or facts.get("processor", processor) != processor else ""
        made_of += settings
        # The same weights with another map or other prompts are another judge.
        made_of += json.dumps(facts["adopted"], sort_keys=True) if "adopted" in facts else ""
    mark = f"@{hashlib.sha256(made_of.encode()).hexdigest()[:8]}" if made_of else ""
    return Path(model).resolve().name + mark


EDGE = 65_536
"""Number of bytes that are hashed at the end of each weights file. The header alone is equal for all trained judges of
one base model."""


def _hash_weights(folder: Path) -> str:
    """Return a hash of the weights in a model folder that has no training notes, or "" if it has no weights.

    The hash covers config.json, and of each weights file the name, the size, the header (tensor names, types and
    shapes) and the last EDGE bytes. Hashing whole files would take minutes.
    """
    config = folder / "config.json"
    digest = hashlib.sha256(config.read_bytes() if config.is_file() else b"")
    files = sorted(file for kind in WEIGHTS for file in folder.glob(kind))
    for path in files:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(8)
            header = int.from_bytes(start, "little") if path.suffix == ".safetensors" else 0
            digest.update(f"{path.name} {size} ".encode() + start + file.read(min(header, size, MOST_HEADER)))
            file.seek(max(0, size - EDGE))
            digest.update(file.read())
    return digest.hexdigest() if files else ""


def parse_options(parser: Any, words: Sequence[str]) -> dict[str, Any]:
    """Parse the command-line options `words` with vLLM's `parser`. Return setting name -> value, defaults included.

    Raises UsageError for an invalid option.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return dict(vars(parser.parse_args(list(words))))
    except SystemExit:
        # argparse prints its usage before the error; for --help it prints no error.
        problem = re.search("error: (.+)", output.getvalue())
        raise UsageError(f"behind the --: {problem[1] if problem else 'only options of vLLM'}") from None
    except Exception as error:
        raise UsageError(f"behind the --: {error}") from None


def describe_settings(plain: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the vLLM settings that can change a judge's verdicts (OTHERS) and are not at their default, as JSON.

    Return "" if there are none. Values that name a file or folder are replaced by its hash.

    Args:
        plain: The settings that a judge is run with by default, by name.
        settings: The settings to describe, by name.
    """
    others = {name: _describe_value(settings[name]) for name in OTHERS if settings.get(name) != plain.get(name)}
    return json.dumps(others, sort_keys=True, default=repr) if others else ""


def _describe_value(value: Any) -> Any:
    """Return a hash if `value` is the path of a file or of a folder with processor files, else `value` unchanged."""
    # A chat template may be given as text, which no file system takes as a name.
    if not isinstance(value, str) or len(value) > 255 or "\n" in value:
        return value
    return jsonl.sha256(Path(value)) if Path(value).is_file() else hash_processor(value) or value


def hash_processor(model: str, extra: Sequence[str] = ()) -> str | None:
    """Return a hash of the tokenizer, chat template and image processor in the folder `model`, or None if it has none.

    `extra`: additional vLLM options; those that set up the processor (pixels, tiles) are hashed too.
    """
    files = sorted(path for part in PROCESSOR for path in Path(model).glob(part)) if Path(model).is_dir() else []
    digests = "".join(f"{path.name} {jsonl.sha256(path)}\n" for path in files)
    for index, word in enumerate(extra):
        name, equals, _ = word.partition("=")
        # vLLM takes underscores and abbreviations; without "=" the value is the next word.
        if name.replace("_", "-").startswith(("--mm-processor-k", "--media-io-k")):
            digests += f"{extra[index : index + (1 if equals else 2)]}\n"
    return hashlib.sha256(digests.encode()).hexdigest() if files else None


def sees_images(model: str) -> bool | None:
    """Return True if the model in the folder `model` accepts images, by its configuration or processor, else False.

    Return None if there is no config.json.
    """
    config = Path(model) / "config.json"
    if not config.is_file():
        return None
    if any(key.startswith(SIGHT) for key in json.loads(config.read_text("utf-8"))):
        return True
    # Some remote code keeps its vision settings out of the configuration.
    processors = Path(model).glob("*processor_config.json")
    return any(re.search("(?i)image", file.read_text("utf-8")) for file in processors)


def is_classifier(facts: dict[str, Any]) -> bool:
    """Return True if a judge is a scoring head, by its training notes `facts` (`read_notes`)."""
    return any(name.endswith("ForSequenceClassification") for name in facts.get("architectures", ()))


def reads_answer(facts: dict[str, Any]) -> bool:
    """Return True if a judge is a scoring head that also reads the answer's tokens (critic.backends.answers).

    `facts`: its training notes (`read_notes`).
    """
    recipe = facts.get("recipe", {})
    return bool(recipe.get("read_answer")) and recipe.get("objective") == "head"


def describe(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that a server publishes about a judge, from its training notes `facts` (`read_notes`).

    `forms`: the prompt forms that it was trained on.
    `trained_on`: SHA-256 of the files of its training rows.
    `gives`: the output of a scoring head, in words.
    `read_answer`: True if a scoring head also reads the tokens of the judged answer.
    `criteria`: criterion -> (lowest, highest score), for a head that rates by criteria.
    `apart`: True if not all training rows were scored by the same criteria.
    `tie_band`: the largest score difference that is a tie, for a head that compares answers by their scores.
    `pack`, `ordinal`, `calibrated_on`: the prompts of a judge trained elsewhere, its map from scores to ratings
        (`grader.spread_score`), and hashes of the rows that the map was fitted on (written by `critic adopt`).

    Facts that do not apply to the judge are left out.
    """
    about: dict[str, Any] = {"forms": forms} if (forms := list_learned_forms(facts)) else {}
    about |= {"read_answer": True} if reads_answer(facts) else {}
    # Another objective's recipe may have the key too, which means nothing there.
    if "apart" in facts:
        about |= {"criteria": facts["recipe"]["criteria"], "apart": facts["apart"]}
    about |= {"trained_on": sorted({*facts["data"].values()})} if facts.get("data") else {}
    adopted = facts.get("adopted", {})
    compares, rates = "tie_band" in facts, "tie_band" not in facts or "ordinal" in adopted
    if compares or is_classifier(facts):
        score = ["one score of each answer that is compared"] * compares
        about["gives"] = " and ".join(["one rating on 1..10"] * rates + score)
    return {**about, **({"tie_band": float(facts["tie_band"])} if compares else {}), **adopted}


def list_learned_forms(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the prompt forms that a judge was trained on, without the language.

    `facts`: its training notes (`read_notes`). Forms without a single training row (`untaught`) are left out.

    >>> list_learned_forms({"recipe": {"forms": {"pointwise@en": 0.5, "pointwise@zh": 0.5, "pairwise": 0.0}}})
    ('pointwise',)
    """
    shares: dict[str, float] = facts.get("recipe", {}).get("forms", {})
    taught = (form for form, share in shares.items() if share > 0.0 and form not in facts.get("untaught", []))
    return tuple(dict.fromkeys(form.partition("@")[0] for form in taught))
