"""A vision-language model of a few million random parameters, which vLLM and transformers load without torchvision.

python tests/tiny_vlm.py FOLDER
"""

import sys
from pathlib import Path

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


def build(folder: Path, hidden: int = 128, layers: int = 2) -> Path:
    """Write the model (Idefics3, float32) and its processor to `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessor,
        Idefics3Processor,
        PreTrainedTokenizerFast,
    )

    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    around = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles]
    special = ["<pad>", "<|im_start|>", "<|im_end|>", *around]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", *around],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.image_token = "<image>"
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in special}
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


if __name__ == "__main__":
    build(Path(sys.argv[1]))
