"""Identify a judge by its folder: its name, the notes of its training, and the settings that change it."""

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from critic import jsonl
from critic.errors import UsageError, loads

PROCESSOR = ("tokenizer*", "special_tokens_map.json", "chat_template*", "*processor_config.json")
"""Files of a model's folder that prepare text and images."""

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
MOST_HEADER = 100_000_000
"""Longest header of a safetensors file, in bytes (the format's own limit)."""

OTHERS = (
    *("tokenizer", "tokenizer_mode", "tokenizer_revision", "revision", "code_revision", "dtype", "kv_cache_dtype"),
    *("quantization", "quantization_config", "load_format", "config_format", "hf_config_path"),
    *("hf_overrides", "model_impl", "runner", "convert", "pooler_config", "enable_lora", "lora_modules"),
    *("language_model_only", "logits_processors", "generation_config", "override_generation_config"),
    *("chat_template", "chat_template_content_format", "default_chat_template_kwargs", "trust_request_chat_template"),
)
"""Settings of vLLM that make another judge of the same folder."""

SIGHT = ("vision", "visual", "image", "img", "video", "mm_vision", "vit_")
"""Prefixes of configuration keys that concern images."""


def read_notes(folder: Path) -> dict[str, Any]:
    """Return what training wrote about a judge (`critic.json`) with its `architectures` (config.json).

    Empty for other models. Raises UsageError for a folder that holds no model, and for notes that are none.
    """
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{folder} is no model folder: {' and '.join(missing)} missing")
    file = folder / "critic.json"
    if not file.is_file():
        return {}
    try:
        facts: dict[str, Any] = loads(file.read_bytes())
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None
    recipe = facts.get("recipe", {}) if isinstance(facts, dict) else None
    if not isinstance(recipe, dict) or (recipe and not recipe.keys() >= {"max_source_tokens", "max_target_tokens"}):
        raise UsageError(f"{file}: not what training wrote (a recipe with its limits); copy the judge's folder anew")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return {**facts, "architectures": config.get("architectures") or []}


def own_name(model: str, facts: dict[str, Any], extra: Sequence[str] = (), settings: str = "") -> str:
    """Return a judge's name: its folder's name and a hash of all that determines its verdicts.

    The hash covers the weights and `settings` (`describe_settings`). It covers the processor if the model takes images
    or the processor differs from training. A model of the hub keeps its name there.
    """
    if not Path(model).is_dir():
        return model
    made_of = "".join(facts.get("weights", {}).values()) or _hash_weights(Path(model))
    if made_of:
        # A text judge with the processor of its training keeps the name that older files know it by.
        processor = hash_processor(model, extra) or ""
        made_of += processor if sees_images(model) or facts.get("processor", processor) != processor else ""
        made_of += settings
    mark = f"@{hashlib.sha256(made_of.encode()).hexdigest()[:8]}" if made_of else ""
    return Path(model).resolve().name + mark


EDGE = 65_536
"""Bytes at the end of a weights file that are hashed. The header is the same for two trainings of one base."""


def _hash_weights(folder: Path) -> str:
    """Return a hash for a folder without notes: its configuration, and each weights file's name, size, header and last
    bytes.

    The header of safetensors holds the names, types and shapes of all tensors. Reading whole files would take minutes.
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
    """Return vLLM's settings as its own `parser` reads `words`. Raises UsageError for an unknown option."""
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
    """Return vLLM's settings that make another judge than the `plain` ones, as JSON (files as hashes); empty if
    none."""
    others = {name: _describe_value(settings[name]) for name in OTHERS if settings.get(name) != plain.get(name)}
    return json.dumps(others, sort_keys=True, default=repr) if others else ""


def _describe_value(value: Any) -> Any:
    """Return a file's or folder's hash in place of its path; any other value unchanged."""
    # A chat template may be given as text, which no file system takes as a name.
    if not isinstance(value, str) or len(value) > 255 or "\n" in value:
        return value
    return jsonl.sha256(Path(value)) if Path(value).is_file() else hash_processor(value) or value


def hash_processor(model: str, extra: Sequence[str] = ()) -> str | None:
    """Return the hash of a folder's tokenizer, chat template and image processor, or None if `model` is no folder.

    The settings (pixels, tiles) that the `extra` options of vLLM give the processor are hashed with them.
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
    """Return whether a model's configuration or processor mentions images, or None if there is no configuration."""
    config = Path(model) / "config.json"
    if not config.is_file():
        return None
    if any(key.startswith(SIGHT) for key in json.loads(config.read_text("utf-8"))):
        return True
    # Some remote code keeps its vision settings out of the configuration.
    processors = Path(model).glob("*processor_config.json")
    return any(re.search("(?i)image", file.read_text("utf-8")) for file in processors)


def is_classifier(facts: dict[str, Any]) -> bool:
    """Return whether a judge is a scoring head, by its `read_notes`."""
    return any(name.endswith("ForSequenceClassification") for name in facts.get("architectures", ()))


def describe_head(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what a server says of a scoring head by its `read_notes`; nothing of a judge that writes.

    `gives` is what it gives. A head that compares has a `tie_band` as well: the difference of two scores up to which
    it says tie.
    """
    if "tie_band" in facts:
        return {"gives": "one score of each answer that is compared", "tie_band": float(facts["tie_band"])}
    return {"gives": "one rating on 1..10"} if is_classifier(facts) else {}


def list_learned_forms(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the forms that a judge's notes say it was trained in, in any language.

    A form of its recipe that no row taught (`untaught`) is none of them.

    >>> list_learned_forms({"recipe": {"forms": {"pointwise@en": 0.5, "pointwise@zh": 0.5, "pairwise": 0.0}}})
    ('pointwise',)
    """
    shares: dict[str, float] = facts.get("recipe", {}).get("forms", {})
    taught = (form for form, share in shares.items() if share > 0.0 and form not in facts.get("untaught", []))
    return tuple(dict.fromkeys(form.partition("@")[0] for form in taught))
