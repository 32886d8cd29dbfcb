"""Identify a judge by its folder: its name, the notes of its training, and the settings that change it."""

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

    Return {} for a model that was not trained here. Raises UsageError if the folder holds no model, or if critic.json
    is not as training writes it.
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

    `model`: the checkpoint folder. A name that is no folder (a model of a hub) is returned unchanged.
    `facts`: its training notes (`read_notes`).
    `extra`: additional vLLM options; settings of the image processor among them count as part of the processor.
    `settings`: changed vLLM settings (`describe_settings`), or "".

    The hash covers the weights and `settings`. It covers the processor if the model accepts images, or if the processor
    is not the one of training.
    """
    if not Path(model).is_dir():
        return model
    made_of = "".join(facts.get("weights", {}).values()) or _hash_weights(Path(model))
    if made_of:
        # A text judge with the processor of its training keeps the name that older files know it by.
        processor = hash_processor(model, extra) or ""
        made_of += processor if sees_images(model) or facts.get("processor", processor) != processor else ""
        made_of += settings
        # The same weights with another map or other prompts are another judge.
        made_of += json.dumps(facts["adopted"], sort_keys=True) if "adopted" in facts else ""
    mark = f"@{hashlib.sha256(made_of.encode()).hexdigest()[:8]}" if made_of else ""
    return Path(model).resolve().name + mark


EDGE = 65_536
"""Number of bytes hashed at the end of each weights file; the header is equal for all trainings of one base model."""


def _hash_weights(folder: Path) -> str:
    """Return a hash of a model folder without training notes, or "" if it has no weights.

    It covers config.json, and for each weights file its name, size, header (tensor names, types and shapes) and last
    EDGE bytes. Hashing whole files would take minutes.
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
    """Parse vLLM's command-line options `words` with vLLM's `parser`, and return all settings by name.

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
    """Return, as JSON, those `settings` that change a judge's verdicts and differ from the defaults `plain`; "" if none
    do.

    Files and folders are represented by hashes.
    """
    others = {name: _describe_value(settings[name]) for name in OTHERS if settings.get(name) != plain.get(name)}
    return json.dumps(others, sort_keys=True, default=repr) if others else ""


def _describe_value(value: Any) -> Any:
    """Return the hash of a file or folder if `value` is a path to one; any other value unchanged."""
    # A chat template may be given as text, which no file system takes as a name.
    if not isinstance(value, str) or len(value) > 255 or "\n" in value:
        return value
    return jsonl.sha256(Path(value)) if Path(value).is_file() else hash_processor(value) or value


def hash_processor(model: str, extra: Sequence[str] = ()) -> str | None:
    """Return a hash of the tokenizer, chat template and image processor in the folder `model`, or None if it has none.

    The hash includes processor settings (pixels, tiles) among `extra`, additional vLLM options.
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
    """Return True if a model's configuration or processor mentions images, else False; None without config.json."""
    config = Path(model) / "config.json"
    if not config.is_file():
        return None
    if any(key.startswith(SIGHT) for key in json.loads(config.read_text("utf-8"))):
        return True
    # Some remote code keeps its vision settings out of the configuration.
    processors = Path(model).glob("*processor_config.json")
    return any(re.search("(?i)image", file.read_text("utf-8")) for file in processors)


def is_classifier(facts: dict[str, Any]) -> bool:
    """Return True if `facts`, a judge's training notes (`read_notes`), describe a scoring head."""
    return any(name.endswith("ForSequenceClassification") for name in facts.get("architectures", ()))


def reads_answer(facts: dict[str, Any]) -> bool:
    """Return True if `facts` (`read_notes`) describe a head that reads the answer's tokens beside the last one."""
    recipe = facts.get("recipe", {})
    return bool(recipe.get("read_answer")) and recipe.get("objective") == "head"


def describe(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a server publishes about a judge, from its training notes (`read_notes`).

    `forms`: those it learned. `trained_on`: SHA-256 of its files of training rows. `gives`: the output of a scoring
    head. `read_answer`: True if the head reads more than the last token. `criteria`: those by which a head rates, with
    the scale of each; `apart`: True if some of its rows were scored by other criteria than others. A head that compares
    answers also has `tie_band`: two scores that differ by at most this are a tie. A judge trained elsewhere has those
    that `critic adopt` wrote.
    """
    about: dict[str, Any] = {"forms": forms} if (forms := list_learned_forms(facts)) else {}
    about |= {"read_answer": True} if reads_answer(facts) else {}
    if criteria := facts.get("recipe", {}).get("criteria"):
        about |= {"criteria": criteria, "apart": facts["apart"]}
    about |= {"trained_on": sorted({*facts["data"].values()})} if facts.get("data") else {}
    adopted = facts.get("adopted", {})
    compares, rates = "tie_band" in facts, "tie_band" not in facts or "ordinal" in adopted
    if compares or is_classifier(facts):
        score = ["one score of each answer that is compared"] * compares
        about["gives"] = " and ".join(["one rating on 1..10"] * rates + score)
    return {**about, **({"tie_band": float(facts["tie_band"])} if compares else {}), **adopted}


def list_learned_forms(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the prompt forms that a judge was trained on, without their language, from its training notes
    (`read_notes`).

    Forms that no training row was in (`untaught`) are left out.

    >>> list_learned_forms({"recipe": {"forms": {"pointwise@en": 0.5, "pointwise@zh": 0.5, "pairwise": 0.0}}})
    ('pointwise',)
    """
    shares: dict[str, float] = facts.get("recipe", {}).get("forms", {})
    taught = (form for form, share in shares.items() if share > 0.0 and form not in facts.get("untaught", []))
    return tuple(dict.fromkeys(form.partition("@")[0] for form in taught))
