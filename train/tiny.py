"""Build a tiny judge from scratch: a byte-level BPE trained on the rendered prompts, and a random Llama or Idefics3.

It replaces a 6B base if no weights are available. All other code is the same.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from recipe_keys import TinySpec, TransformerSpec, VisionSpec
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, trainers
from transformers.integrations import deepspeed as integration
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

CHAT_TEMPLATE = Path(__file__).with_name("tiny.jinja").read_text("utf-8").removesuffix("\n")

IMAGE_TOKENS = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
"""Tokens for an image and around it, as named by Idefics3's processor."""

SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]

UNTRAINED: dict[str, Any] = tomllib.loads(Path(__file__).with_name("tiny.toml").read_text("utf-8"))
"""The tokenizer before its training."""

LONGEST_TOKEN = 240
"""Most characters of a token. Constrained decoding keeps tokens in a tree about 1,000 bytes deep."""


def split_passages(prompt: str) -> Iterator[tuple[bool, str]]:
    """Yield the passages of a prompt as (quoted, text). Quoted lines begin with ">"; the others are the prompt's fixed
    wording.

    Fixed wording is split into pieces of at most LONGEST_TOKEN characters.

    >>> list(split_passages("Question:\\n> How many?\\n"))
    [(False, 'Question:\\n'), (True, '> How many?\\n')]
    """
    for quoted, lines in groupby(prompt.splitlines(keepends=True), lambda line: line.startswith(">")):
        text = "".join(lines)
        size = len(text) if quoted else LONGEST_TOKEN
        for start in range(0, len(text), size):
            yield quoted, text[start : start + size]


def train_tokenizer(
    examples: Iterable[tuple[str, str]], vocab_size: int, vision: VisionSpec | None = None
) -> transformers.PreTrainedTokenizerFast:
    """Train a tokenizer of `vocab_size` tokens on (prompt, verdict) pairs. `vision` is None for a model without images.

    The fixed wording of prompts becomes a few long tokens, so that the rubric costs next to nothing. Everything else is
    byte-level BPE within the pieces of tiny.toml.
    """
    fixed: dict[str, None] = {}
    free: list[str] = []
    for prompt, verdict in examples:
        for quoted, text in split_passages(prompt):
            # What people and models wrote differs from row to row; our own wording does not.
            if quoted:
                free.append(text)
            else:
                fixed[text] = None
        free.append(verdict)
    special = [*SPECIAL_TOKENS, *(IMAGE_TOKENS if vision is not None else [])]
    tokenizer = Tokenizer.from_str(json.dumps(UNTRAINED))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(free, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=special[2:],
        chat_template=CHAT_TEMPLATE,
    )


def tiny_processor(tokenizer: Any, vision: VisionSpec) -> transformers.Idefics3Processor:
    """Return a processor for images and text that needs neither torchvision nor a hub, and that vLLM can load."""
    edge = {"longest_edge": vision.image_size}
    images = Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False)
    tokens = (vision.image_size // vision.patch_size // vision.scale) ** 2
    tokenizer.image_token = "<image>"
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=tokens, chat_template=CHAT_TEMPLATE)


def _sizes_of(shape: TransformerSpec) -> dict[str, Any]:
    """Return the sizes of a transformer, by their names in transformers' configurations."""
    renamed = {"layers": "num_hidden_layers", "heads": "num_attention_heads"}
    return {renamed.get(name, name): getattr(shape, name) for name in TransformerSpec.__struct_fields__}


def random_model(
    spec: TinySpec, tokenizer: Any, longest: int, labels: dict[str, Any] | None = None, vision: VisionSpec | None = None
) -> Any:
    """Return a randomly initialised Llama with `longest` positions.

    - `labels`: configuration of a scoring head (`Objective.head_config`), None or empty for a generative model.
    - `vision`: makes the Llama the text part of an Idefics3; None for text only.
    """
    text = {
        **_sizes_of(spec),
        "vocab_size": len(tokenizer),
        "num_key_value_heads": spec.heads,
        "max_position_embeddings": longest,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(spec.seed)
    if vision is not None:
        return _seeing_model(text, tokenizer, vision, labels)
    kind = transformers.LlamaForSequenceClassification if labels else transformers.LlamaForCausalLM
    return kind(transformers.LlamaConfig(**text, **(labels or {})))


def with_head(seeing: Any) -> Any:
    """Return a subclass of a vision-language class that also has a scoring head, which transformers lacks.

    vLLM builds the same class from its name.
    """

    def __init__(self: Any, config: Any, *words: Any, **options: Any) -> None:
        seeing.__init__(self, config, *words, **options)
        self.score = torch.nn.Linear(config.get_text_config().hidden_size, config.num_labels, bias=False)
        if self.lm_head.weight is not self.get_input_embeddings().weight:
            # Nothing is learned through it.
            self.lm_head.requires_grad_(False)
        self.post_init()

    name = seeing.__name__.replace("ForConditionalGeneration", "ForSequenceClassification")
    return type(name, (seeing,), {"__init__": __init__, "__module__": seeing.__module__})


def _seeing_model(text: dict[str, Any], tokenizer: Any, vision: VisionSpec, labels: dict[str, Any] | None) -> Any:
    config = transformers.Idefics3Config(
        vision_config={**_sizes_of(vision), "image_size": vision.image_size, "patch_size": vision.patch_size},
        text_config={"model_type": "llama", **text},
        scale_factor=vision.scale,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        **(labels or {}),
    )
    # Under ZeRO-3 its two halves would be shared out before they have numbers; DeepSpeed shares them out later.
    previous, integration._hf_deepspeed_config_weak_ref = integration._hf_deepspeed_config_weak_ref, None
    try:
        seeing = transformers.Idefics3ForConditionalGeneration
        model = with_head(seeing)(config) if labels else seeing(config)
    finally:
        integration._hf_deepspeed_config_weak_ref = previous
    # What is made of a flat patch is about 1 large: beside it positions as small as weights, and with them places and
    # counts, are hardly seen.
    torch.nn.init.normal_(model.model.vision_model.embeddings.position_embedding.weight)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
