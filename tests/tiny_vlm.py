"""A vision-language model of a few million random parameters, which vLLM and transformers load without torchvision.

python tests/tiny_vlm.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any
from unittest import mock

from byte_pairs import train_byte_pairs

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


AROUND_QWEN = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]


def qwen_processor(folder: Path | None = None, **_: Any) -> Any:
    """A Qwen3-VL's processor, of a folder's tokenizer or a new one. Made from its parts it needs no torchvision, which
    transformers needs to read one from a folder."""
    from transformers import AutoTokenizer, Qwen3VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    tokenizer = AutoTokenizer.from_pretrained(folder) if folder else trained_tokenizer(AROUND_QWEN)
    size = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    images = Qwen2VLImageProcessorPil(patch_size=16, temporal_patch_size=2, merge_size=2, size=size)
    template = CHAT_TEMPLATE.replace("<image>", "".join(AROUND_QWEN[:3]))
    with mock.patch.object(Qwen3VLProcessor, "check_argument_for_proper_class"):  # which looks them up in torchvision's
        return Qwen3VLProcessor(images, tokenizer, Qwen3VLVideoProcessor(), chat_template=template)


QWEN = """
text_config:
  {hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1,
  head_dim: 64, max_position_embeddings: 4096, initializer_range: 0.1, bos_token_id: null, pad_token_id: 0,
  eos_token_id: 2, rope_parameters: {rope_type: default, rope_theta: 10000.0, mrope_section: [12, 10, 10]}}
vision_config:
  {depth: 2, hidden_size: 64, intermediate_size: 96, num_heads: 2, out_hidden_size: 64, num_position_embeddings: 16,
  deepstack_visual_indexes: [0], initializer_range: 0.2}
vision_start_token_id: 3
image_token_id: 4
vision_end_token_id: 5
video_token_id: 6
tie_word_embeddings: false
"""


def build_qwen(folder: Path) -> Path:
    """Write a random Qwen3-VL (float32) and its processor to `folder`."""
    import torch
    import yaml
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    processor, config = qwen_processor(), yaml.safe_load(QWEN)
    config["text_config"]["vocab_size"] = len(processor.tokenizer)
    assert processor.tokenizer.convert_tokens_to_ids([AROUND_QWEN[1], "<|im_end|>", "<pad>"]) == [4, 2, 0]
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config))
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    build(Path(sys.argv[1]), layers=int(sys.argv[2]))
