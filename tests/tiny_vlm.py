"""A vision-language model of a few million random parameters, which vLLM and transformers load without torchvision.

python tests/tiny_vlm.py FOLDER
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

IMAGE_TOKENS = 4
"""Tokens of an image: a square of 64 pixels in patches of 16, four patches to a token."""

TEXTS = ("How many red boats lie in the harbour, and which one is the largest?", "图中有几条船？哪一条最大？")


def trained_tokenizer(around: list[str]) -> Any:
    """Byte pairs of a few texts, with the special tokens that a family puts around images."""
    return train_byte_pairs(TEXTS, 512, ["<pad>", "<|im_start|>", "<|im_end|>", *around], "<|im_end|>")


def build(folder: Path, hidden: int = 128, layers: int = 2) -> Path:
    """Write the model (Idefics3, float32) and its processor to `folder`."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessor, Idefics3Processor

    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer = trained_tokenizer(
        ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles]
    )
    tokenizer.image_token = "<image>"
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<image>", "<pad>", "<|im_end|>")}
    config = Idefics3Config(
        image_token_id=ids["<image>"],
        pad_token_id=ids["<pad>"],
        scale_factor=2,
        tie_word_embeddings=False,
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 16,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "initializer_range": 0.1,
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<pad>"],
            "tie_word_embeddings": False,
        },
    )
    torch.manual_seed(0)
    model = Idefics3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<pad>"]
    images = Idefics3ImageProcessor(
        size={"longest_edge": 128}, max_image_size={"longest_edge": 64}, do_image_splitting=False
    )
    processor = Idefics3Processor(images, tokenizer, image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


BASES: dict[str, dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("tiny_bases.yaml"))
"""Other families that see, by their names in transformers."""


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
    parts = [getattr_of(entry["pixels"])(**entry["image_options"]), tokenizer]
    parts += [getattr_of(entry["frames"])()] if "frames" in entry else []
    template = CHAT_TEMPLATE.replace("<image>", entry["image"])
    # It looks the parts' classes up among torchvision's.
    with mock.patch.object(ProcessorMixin, "check_argument_for_proper_class"):
        return getattr_of(entry["processor"])(*parts, chat_template=template, **entry.get("options", {}))


def getattr_of(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"transformers.models.{module}"), name)


def read_processor(folder: Any, **_: Any) -> Any:
    """Return the processor of a folder that `build_base` wrote, as AutoProcessor does where torchvision is."""
    return processor_of(json.loads((Path(folder) / "config.json").read_text("utf-8"))["model_type"], folder)


def build_base(family: str, folder: Path) -> Path:
    """Write a random model of a family (float32) and its processor to `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    processor, config = processor_of(family), deepcopy(BASES[family]["config"])
    config["text_config"]["vocab_size"] = len(processor.tokenizer)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(family, **config))
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    build(Path(sys.argv[1]), layers=int(sys.argv[2]))
