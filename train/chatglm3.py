"""Convert a published ChatGLM3 to a folder that transformers and vLLM load without remote code (`critic base --from`).

The result has transformers' GLM class with the same weights, memory-mapped from the disk, a fast tokenizer with the
same ids, and a chat template. Layout and special tokens are those of the published config.json and tokenizer.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import load_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import GenerationConfig, GlmConfig, GlmForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges

from critic.errors import UsageError, refusing

NAMES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("chatglm3.toml").read_text("utf-8"))
"""Published names -> transformers' names, of keys of the configuration (`config`) and of weights (`weights`)."""

FIXED = {"model_type": "chatglm", "multi_query_attention": True, "quantization_bit": 0, "pre_seq_len": None}
"""Keys with the values of ChatGLM3. Related and quantized models have other values."""

# "sop" and "eop" are parts of words, so that these two are written as GLM-4 writes them; the ids are ChatGLM3's.
ADDED = ("[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
"""Tokens whose ids follow those of tokenizer.model, in this order."""

STOPS = ("<|user|>", "<|observation|>")
"""Tokens besides end-of-sentence at which ChatGLM3 stops: they begin the turns of others."""

SAMPLES = "你好，世界！2024年3月15日，23.5℃。", '{"Rating":10,"Reason":"philosophy"}', "  two\n\n\t👋🏽 e\u0301 "
"""Texts that the fast tokenizer must encode as SentencePiece does, in addition to every piece."""


def convert(source: Path) -> tuple[GlmForCausalLM, PreTrainedTokenizerFast]:
    """Return the ChatGLM3 in `source` as a model and a tokenizer of transformers.

    Raise UsageError if `source` is not a ChatGLM3.
    """
    path = source / "config.json"
    with refusing(path, "no ChatGLM3 configuration"):
        raw = json.loads(path.read_text("utf-8"))
        for key, value in FIXED.items():
            if raw.get(key, value) != value:
                raise UsageError(f"{path}: {key} is {raw[key]!r}; only {value!r}, as in ChatGLM3, can be converted")
        rope = {"rope_type": "default", "rope_theta": 1e4 * raw.get("rope_ratio", 1.0), "partial_rotary_factor": 0.5}
        named: dict[str, Any] = {new: raw[old] for old, new in NAMES["config"].items()}
        bias = raw.get("add_qkv_bias", False)
        config = GlmConfig(**named, rope_parameters=rope, attention_bias=bias, tie_word_embeddings=False)
    tokenizer = fast_tokenizer(source / "tokenizer.model", config.max_position_embeddings)
    stops = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(STOPS))]
    config.pad_token_id, config.eos_token_id, config.bos_token_id = tokenizer.pad_token_id, stops, None
    weights: dict[str, torch.Tensor] = {}
    with refusing(source, "its weights are not those of ChatGLM3 by its config.json"), torch.device("meta"):
        for file in sorted(source.glob("model*.safetensors")):
            for name, tensor in load_file(file).items():
                weights |= native_weights(name, tensor, config)
        model = GlmForCausalLM(config)
        model.load_state_dict(weights, assign=True)
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=tokenizer.pad_token_id)
    return model, tokenizer


def native_weights(name: str, tensor: torch.Tensor, config: GlmConfig) -> dict[str, torch.Tensor]:
    """Return a published tensor under its names in GlmForCausalLM.

    The fused query, key and value (rows in this order) are split into three tensors. Gate and up projection stay fused.
    Rotary angles are dropped, because they follow from the configuration.
    """
    for old, new in NAMES["weights"].items():
        name = name.replace(old, new)
    if name.endswith("rotary_pos_emb.inv_freq"):
        return {}
    if "self_attn.qkv" not in name:
        return {name: tensor}
    queries, keys = (config.head_dim * heads for heads in (config.num_attention_heads, config.num_key_value_heads))
    parts = zip(("q_proj", "k_proj", "v_proj"), tensor.split([queries, keys, keys]), strict=True)
    # safetensors writes no two tensors that share memory.
    return {name.replace("qkv", part): rows.clone() for part, rows in parts}


def fast_tokenizer(path: Path, positions: int) -> PreTrainedTokenizerFast:
    """Return the SentencePiece BPE model in `path` as a fast tokenizer. `positions` is its maximum length in tokens.

    Raise UsageError if the fast tokenizer encodes a piece or a sample text differently from SentencePiece.
    """
    with refusing(path, "no SentencePiece model"):
        processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    model: Any = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
    normal = {piece.piece: piece.score for piece in model.pieces if piece.type == model.SentencePiece.NORMAL}
    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    eos, unknown = model.trainer_spec.eos_piece, model.trainer_spec.unk_piece
    merges = generate_merges(normal, normal)
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(spaces)
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (eos, *ADDED)])
    begin = [(token, core.token_to_id(token)) for token in ("[gMASK]", "<sop>")]
    for text in (*SAMPLES, *(piece.replace("▁", " ") for piece in normal)):
        if core.encode(text, add_special_tokens=False).ids != processor.encode(text):
            raise UsageError(f"{path}: no fast tokenizer like it can be made: {text[:40]!r} would have other ids")
    core.post_processor = processors.TemplateProcessing(single="[gMASK] <sop> $A", special_tokens=begin)
    named = {"unk_token": unknown, "pad_token": unknown, "eos_token": eos, "additional_special_tokens": list(ADDED)}
    template = Path(__file__).with_name("chatglm3.jinja").read_text("utf-8").strip()
    options = {"chat_template": template, "padding_side": "left", "model_max_length": positions}
    return PreTrainedTokenizerFast(tokenizer_object=core, **named, **options)
