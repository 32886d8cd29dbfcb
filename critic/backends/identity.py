"""Which judge a checkpoint's folder is: its name, what training wrote about it, and what makes another judge of it."""

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
"""Files of a model's folder that make text and images ready for it."""

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
MOST_HEADER = 100_000_000
"""Bytes; safetensors itself allows no longer header."""

OTHERS = (
    *("tokenizer", "tokenizer_mode", "tokenizer_revision", "revision", "code_revision", "dtype", "kv_cache_dtype"),
    *("quantization", "quantization_config", "load_format", "config_format", "hf_config_path"),
    *("hf_overrides", "model_impl", "runner", "convert", "pooler_config", "enable_lora", "lora_modules"),
    *("language_model_only", "logits_processors", "generation_config", "override_generation_config"),
    *("chat_template", "chat_template_content_format", "default_chat_template_kwargs", "trust_request_chat_template"),
)
"""vLLM's settings that make another judge of the same folder."""

SIGHT = ("vision", "visual", "image", "img", "video", "mm_vision", "vit_")
"""How the keys of a configuration begin that speak of images."""


def read_notes(folder: Path) -> dict[str, Any]:
    """What training wrote about a judge (`critic.json`), empty for other models. Raises UsageError for a folder that
    holds no model, and for notes that are none."""
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
    return facts


def own_name(model: str, facts: dict[str, Any], extra: Sequence[str] = (), settings: str = "") -> str:
    """A judge's name: its folder's, with a mark of its weights, of what makes text and images ready where it sees or
    where that is not as training left it, and of `describe_settings`; the hub's name of another model."""
    if not Path(model).is_dir():
        return model
    made_of = "".join(facts.get("weights", {}).values()) or _hash_weights(Path(model))
    if made_of:
        processor = hash_processor(model, extra) or ""
        made_of += processor if sees_images(model) or facts.get("processor", processor) != processor else ""
        made_of += settings
    mark = f"@{hashlib.sha256(made_of.encode()).hexdigest()[:8]}" if made_of else ""
    return Path(model).resolve().name + mark


EDGE = 65_536
"""Bytes at the end of a file of weights that tell two trainings of one base apart; the header is the same."""


def _hash_weights(folder: Path) -> str:
    """Return a hash of what a folder without notes holds: its configuration, and of each file of weights the name, the
    size, the header (safetensors: the names, types and shapes of its tensors) and the last bytes. Reading them all
    would take minutes."""
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
    """vLLM's settings by its own `parser`. Raises UsageError for what it does not take."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return dict(vars(parser.parse_args(list(words))))
    except SystemExit:
        lines = [line.partition("error: ")[2] for line in output.getvalue().splitlines() if "error: " in line]
        raise UsageError(f"behind the --: {lines[-1] if lines else 'only options of vLLM'}") from None
    except Exception as error:
        raise UsageError(f"behind the --: {error}") from None


def describe_settings(plain: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Those of vLLM's settings that make another judge than the `plain` ones do, as a text, files as their hashes."""
    others = {name: _describe_value(settings[name]) for name in OTHERS if settings.get(name) != plain.get(name)}
    return json.dumps(others, sort_keys=True, default=repr) if others else ""


def _describe_value(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > 255 or "\n" in value:  # a text, and no name
        return value
    return jsonl.sha256(Path(value)) if Path(value).is_file() else hash_processor(value) or value


def hash_processor(model: str, extra: Sequence[str] = ()) -> str | None:
    """The hash of tokenizer, chat template and image processor in a model's folder, and of the settings (pixels, tiles)
    that the `extra` options of vLLM give it. None for a model that is not in a folder."""
    files = sorted(path for part in PROCESSOR for path in Path(model).glob(part)) if Path(model).is_dir() else []
    digests = "".join(f"{path.name} {jsonl.sha256(path)}\n" for path in files)
    spelt = [word.partition("=")[0].replace("_", "-") for word in extra]
    indices = [index for index, word in enumerate(spelt) if word.startswith(("--mm-processor-k", "--media-io-k"))]
    digests += "".join(f"{extra[index : index + 1 + ('=' not in extra[index])]}\n" for index in indices)
    return hashlib.sha256(digests.encode()).hexdigest() if files else None


def sees_images(model: str) -> bool | None:
    """Whether a model's configuration or its processor speaks of images; None where there is no configuration."""
    config = Path(model) / "config.json"
    if not config.is_file():
        return None
    ready = (file.read_text("utf-8") for file in Path(model).glob("*processor_config.json"))
    return any(key.startswith(SIGHT) for key in json.loads(config.read_text("utf-8"))) or any(
        re.search("(?i)image", text) for text in ready
    )


HEADS = ("head", "pairwise")
"""The objectives of training that make a scoring head: one that rates, one that scores answers to compare them."""


def is_classifier(facts: dict[str, Any]) -> bool:
    """Whether a judge's notes say that it is a scoring head."""
    return facts.get("recipe", {}).get("objective") in HEADS


def describe_head(facts: dict[str, Any]) -> dict[str, Any]:
    """What a server says of a scoring head by its notes: what it gives, and of one that compares the difference of two
    scores up to which it says tie. Empty for a judge that writes."""
    if facts.get("recipe", {}).get("objective") == "pairwise":
        return {"gives": "one score of each answer that is compared", "tie_band": float(facts.get("tie_band", 0.0))}
    return {"gives": "one rating on 1..10"} if is_classifier(facts) else {}


def list_learned_forms(facts: dict[str, Any]) -> tuple[str, ...]:
    """The forms that a judge's notes say it was trained in, in any language."""
    shares: dict[str, float] = facts.get("recipe", {}).get("forms", {})
    return tuple(dict.fromkeys(form.partition("@")[0] for form, share in shares.items() if share > 0.0))
