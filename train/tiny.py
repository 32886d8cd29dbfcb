"""A tiny judge from nothing: a byte-level BPE trained on the rendered prompts, and a random Llama.

It stands in for a 6B base where no weights can be had; everything else is the same code path.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import torch
from msgspec import Struct
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]

PIECES = r'\{"Rating":|,"Reason":"|"\}|> |\n|\p{Han}| ?[A-Za-z]+|[0-9]|[^\p{Han}A-Za-z0-9\s]|\s+'
"""What no token crosses: words, single digits and Chinese characters (so that what is compared are the
same tokens wherever they stand), and the frame of a verdict."""


class TinySpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Shape of the random model; sizes as in LlamaConfig."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    initializer_range: float = 0.02
    seed: int = 0


LONGEST_TOKEN = 240
"""Characters of a token at most: constrained decoding keeps tokens in a tree about 1,000 bytes deep."""


def passages(prompt: str) -> Iterator[tuple[bool, str]]:
    """The prompt cut where quoted lines and our own wording meet, the latter into pieces of at most
    LONGEST_TOKEN characters: (quoted, text)."""
    for quoted, lines in groupby(prompt.splitlines(keepends=True), lambda line: line.startswith(">")):
        text = "".join(lines)
        size = len(text) if quoted else LONGEST_TOKEN
        for start in range(0, len(text), size):
            yield quoted, text[start : start + size]


def train_tokenizer(examples: Iterable[tuple[str, str]], spec: TinySpec) -> PreTrainedTokenizerFast:
    """A tokenizer for (prompt, verdict) pairs. Our own wording, the same in every prompt, becomes a few long
    tokens, so that the rubric costs next to nothing; the rest is byte-level BPE within PIECES."""
    fixed: dict[str, None] = {}
    free: list[str] = []
    for prompt, verdict in examples:
        for quoted, text in passages(prompt):
            if quoted:
                free.append(text)
            else:
                fixed[text] = None
        free.append(verdict)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(free, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def random_model(
    spec: TinySpec, tokenizer: PreTrainedTokenizerFast, longest: int, labels: dict[int, str] | None = None
) -> Any:
    """A random Llama; with `labels` it has a scoring head in place of one for tokens."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        max_position_embeddings=longest,
        initializer_range=spec.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(spec.seed)
    if labels:
        config.id2label = labels
        return LlamaForSequenceClassification(config)
    return LlamaForCausalLM(config)
