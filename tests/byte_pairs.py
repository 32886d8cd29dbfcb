"""The tokenizer of models that tests and measurements build: byte pairs of some texts."""

from collections.abc import Iterable, Sequence
from typing import Any


def train_byte_pairs(
    texts: Iterable[str], size: int, special: Sequence[str], end: str, pre_tokenizer: Any = None, **options: Any
) -> Any:
    """Return a byte-level BPE of `size` tokens as a tokenizer of transformers.

    `special`: control tokens, of which the first pads and `end` ends a text. `pre_tokenizer`: how texts are split
    before bytes are paired; without it as GPT-2 splits them. `options` are the tokenizer's own.
    """
    from tokenizers.implementations import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    pieces = ByteLevelBPETokenizer()
    if pre_tokenizer is not None:
        pieces.pre_tokenizer = pre_tokenizer
    pieces.train_from_iterator(texts, size, min_frequency=0, special_tokens=[*special], show_progress=False)
    others = [token for token in special if token not in (special[0], end)]
    options |= {"additional_special_tokens": others, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, pad_token=special[0], eos_token=end, **options)
