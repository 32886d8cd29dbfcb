"""Random bases of the families that judges are trained from (tiny_bases.yaml), which transformers loads without
torchvision.

python tests/tiny_vlm.py FOLDER LAYERS writes an Idefics3, which vLLM loads without it too.
"""

import json
import sys
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from byte_pairs import train_byte_pairs
from ruamel.yaml import YAML

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == "text" -%}{{ part.text }}{%- else -%}<image>{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""

TEXTS = ("How many red boats lie in the harbour, and which one is the largest?", "图中有几条船？哪一条最大？")


def trained_tokenizer(around: list[str]) -> Any:
    """Byte pairs of a few texts, with the special tokens that a family puts around images."""
    return train_byte_pairs(TEXTS, 512, ["<pad>", "<|im_start|>", "<|im_end|>", *around], "<|im_end|>")


BASES: dict[str, dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("tiny_bases.yaml"))
"""Random bases of other families, by their names in transformers. Those without a processor read text alone."""


def processor_of(family: str, folder: Path | None = None) -> Any:
    """Return a family's processor, of a folder's tokenizer or a new one.

    Made from its parts it needs no torchvision, which transformers needs to read one from a folder.
    """
    from transformers import AutoTokenizer, ProcessorMixin

    entry = BASES[family]
    tokenizer = AutoTokenizer.from_pretrained(folder) if folder else trained_tokenizer(entry["tokens"])
    for name, token in entry.get("named", {}).items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    parts = [find_class(entry["pixels"])(**entry["image_options"]), tokenizer]
    parts += [find_class(entry["frames"])()] if "frames" in entry else []
    template = CHAT_TEMPLATE.replace("<image>", entry["image"])
    # It looks the parts' classes up among torchvision's.
    with mock.patch.object(ProcessorMixin, "check_argument_for_proper_class"):
        return find_class(entry["processor"])(*parts, chat_template=template, **entry.get("options", {}))


def find_class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"transformers.models.{module}"), name)


def read_processor(folder: Any, **_: Any) -> Any:
    """Return the processor of a folder that `build_base` wrote, as AutoProcessor does where torchvision is."""
    return processor_of(json.loads((Path(folder) / "config.json").read_text("utf-8"))["model_type"], folder)


def build(folder: Path, layers: int = 2) -> Path:
    """Write an Idefics3, which needs no torchvision, to `folder`."""
    return build_base("idefics3", folder, num_hidden_layers=layers)


def build_base(family: str, folder: Path, **changes: Any) -> Path:
    """Write a random model of a family (float32) and its processor or tokenizer to `folder`.

    `changes` are of the configuration of the part that reads.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config, sees = deepcopy(BASES[family]["config"]), "processor" in BASES[family]
    processor = processor_of(family) if sees else trained_tokenizer([])
    processor.chat_template = processor.chat_template or CHAT_TEMPLATE
    vocabulary = len(processor.tokenizer if sees else processor)
    config.get("text_config", config).update(vocab_size=vocabulary, **changes)
    torch.manual_seed(0)
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = kind.from_config(AutoConfig.for_model(family, **config))
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    build(Path(sys.argv[1]), layers=int(sys.argv[2]))
