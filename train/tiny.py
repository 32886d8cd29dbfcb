"""A tiny judge from nothing: a byte-level BPE trained on the rendered prompts, and a random Llama.

It stands in for a 6B base where no weights can be had; everything else is the same code path.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


class TinySpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Shape of the random model. `layers`, `heads`, sizes as in LlamaConfig."""

    vocab_size: int
    longest_token: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    seed: int = 0


def train_tokenizer(texts: Iterable[str], spec: TinySpec) -> PreTrainedTokenizerFast:
    """Byte-level BPE without a word splitter, so that the fixed rubric becomes a few dozen tokens;
    digits and line ends stay alone, so that numbers can be compared digit by digit."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[0-9]|\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=spec.longest_token,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def random_model(spec: TinySpec, tokenizer: PreTrainedTokenizerFast, longest: int) -> Any:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        max_position_embeddings=longest,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)
