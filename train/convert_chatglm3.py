"""A ChatGLM3 checkpoint as published -> a folder that transformers and vLLM load without its remote code.

    python train/convert_chatglm3.py CHECKPOINT runs/chatglm3-6b

CHECKPOINT holds config.json, tokenizer.model and the weights in safetensors. OUT gets GLM's class with the same numbers
in the same dtype, a fast tokenizer with the same ids and a chat template. Weights are mapped from the disk, not read
into memory. OUT appears whole or not at all; run again, a finished OUT is left as it is.
"""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import sentencepiece
import torch
import typer
from checkpoints import let_others_read
from folders import is_made, made_whole, refusing
from licenses import copy_terms
from safetensors.torch import load_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import GenerationConfig, GlmConfig, GlmForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges

from critic import jsonl
from critic.cli import run_program
from critic.errors import UsageError

NOTES = "conversion.json"
"""What OUT was made from; written last."""

NAMES = {
    "num_layers": "num_hidden_layers",
    "padded_vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "kv_channels": "head_dim",
    "num_attention_heads": "num_attention_heads",
    "multi_query_group_num": "num_key_value_heads",
    "seq_length": "max_position_embeddings",
    "layernorm_epsilon": "rms_norm_eps",
}
"""What is read of the published config.json -> what GLM's class calls it."""

FIXED = {"model_type": "chatglm", "multi_query_attention": True, "quantization_bit": 0, "pre_seq_len": None}
"""What ChatGLM3 has, and its relatives and quantized copies have not."""


def read_config(folder: Path) -> GlmConfig:
    """The shape of the checkpoint in `folder`. Raises UsageError for anything that is not a plain ChatGLM3."""
    path = folder / "config.json"
    with refusing(path, "no ChatGLM3 configuration"):
        raw = json.loads(path.read_text("utf-8"))
        for key, value in FIXED.items():
            if raw.get(key, value) != value:
                raise UsageError(f"{path}: {key} is {raw[key]!r}; only {value!r}, as in ChatGLM3, can be converted")
        theta = 10000.0 * raw.get("rope_ratio", 1.0)
        config = GlmConfig(
            **{new: raw[old] for old, new in NAMES.items()},
            rope_parameters={"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5},
            attention_bias=raw.get("add_qkv_bias", False),
            tie_word_embeddings=False,
            bos_token_id=None,
        )
    # ChatGLM2 has the same layout, but no role tokens.
    if "chatglm2" in str(raw.get("_name_or_path")).lower():
        raise UsageError(f"{folder}: this is ChatGLM2, which knows no roles; expected a ChatGLM3 checkpoint")
    return config


RENAMED = {
    "transformer.embedding.word_embeddings": "model.embed_tokens",
    "transformer.encoder.layers": "model.layers",
    "transformer.encoder.final_layernorm": "model.norm",
    "transformer.output_layer": "lm_head",
    "self_attention.dense": "self_attn.o_proj",
    "mlp.dense_h_to_4h": "mlp.gate_up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}
FUSED = "self_attention.query_key_value"


def native_weights(name: str, tensor: torch.Tensor, config: GlmConfig) -> dict[str, torch.Tensor]:
    """A published tensor as GLM's class has it: renamed, the fused query, key and value (rows in this order) as three.
    Gate and up stay fused, in the same order."""
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    if FUSED not in name:
        return {name: tensor}
    queries, keys = (config.head_dim * heads for heads in (config.num_attention_heads, config.num_key_value_heads))
    parts = zip(("q_proj", "k_proj", "v_proj"), tensor.split([queries, keys, keys]), strict=True)
    # safetensors writes no two tensors that share memory.
    return {name.replace(FUSED, f"self_attn.{part}"): rows.clone() for part, rows in parts}


def weight_files(folder: Path) -> list[Path]:
    """Raises UsageError when there are none. One that is missing is noticed by the tensors that are."""
    if files := sorted(folder.glob("model*.safetensors")):
        return files
    raise UsageError(f"{folder}: no weights; expected model*.safetensors")


def native_model(folder: Path, config: GlmConfig, tokenizer: PreTrainedTokenizerFast) -> GlmForCausalLM:
    """The checkpoint as GLM's class. Raises UsageError for weights that are not those of its configuration."""
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with refusing(file, "cannot be read, or does not fit to config.json"):
            for name, tensor in load_file(file).items():
                # A buffer, which follows from the configuration.
                if not name.endswith("rotary_pos_emb.inv_freq"):
                    weights |= native_weights(name, tensor, config)
    stops = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(STOPS))]
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, stops
    with refusing(folder, "its weights are not those of ChatGLM3 by its config.json"), torch.device("meta"):
        model = GlmForCausalLM(config)
        model.load_state_dict(weights, assign=True)
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=tokenizer.pad_token_id)
    return model


# In a text, "sop" and "eop" are parts of words ("philosophy"), so that here these two tokens are written as GLM-4
# writes them; the ids are ChatGLM3's.
ADDED = ("[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
"""Tokens whose ids follow those of tokenizer.model, in this order."""

STOPS = ("<|user|>", "<|observation|>")
"""Where ChatGLM3 stops besides its end-of-sentence token: what comes next is not for it to write."""

CHAT_TEMPLATE = Path(__file__).with_name("chatglm3.jinja").read_text("utf-8").strip()
"""The published conversation format. ChatGLM3 encodes each content apart, which puts a space in front of it; a text
has to spell that space. A last answer stands where the model is to write it, right behind the generation prompt, and
ends with the end-of-sentence token, as ChatGLM3 was fine-tuned."""

SAMPLES = (
    "你好，世界！今天是2024年3月15日，气温23.5℃。",
    "Hello, world! It's 3.14159; philosophy isn't <b>sophistry</b>.",
    '{"Rating":10,"Reason":"回答 is correct, 但是 too short."}',
    "  two  spaces,\ttabs\t\tand\nline\n\n\nends \r\n  def f(x):\n        return x ** 2  # 平方\n",
    "👋🏽 emoji 👩‍👩‍👧‍👦 e\u0301 ﷽ ①Ａ　全角 \u200b \U00020000 1234567890 ½ ≠ <0x0A> ▁",
)
"""Texts that the fast tokenizer must read as SentencePiece does, besides every piece of its vocabulary."""


def fast_tokenizer(path: Path, config: GlmConfig) -> PreTrainedTokenizerFast:
    """The tokenizer in the SentencePiece file `path` as a fast one: same ids, the published special tokens, a chat
    template. Raises UsageError if the ids would differ, or the vocabulary does not fit the model."""
    with refusing(path, "no SentencePiece model"):
        processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    model: Any = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
    core = _core(model)
    eos, unknown, first = model.trainer_spec.eos_piece, model.trainer_spec.unk_piece, len(model.pieces)
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (eos, *ADDED)])
    if [core.token_to_id(token) for token in ADDED] != list(range(first, first + len(ADDED))):
        raise UsageError(f"{path}: expected a vocabulary that has {eos} and has not {', '.join(ADDED)}")
    check_ids(path, core, processor, model)
    core.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A",
        special_tokens=[(token, core.token_to_id(token)) for token in ("[gMASK]", "<sop>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token=unknown,
        pad_token=unknown,
        eos_token=eos,
        additional_special_tokens=list(ADDED),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )


def _core(model: Any) -> Tokenizer:
    """SentencePiece's BPE in terms of the tokenizers library: pieces merge in the order of their scores."""
    kinds = model.SentencePiece
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == kinds.NORMAL}
    whole = [piece.piece for piece in model.pieces if piece.type == kinds.USER_DEFINED]
    core = Tokenizer(
        models.BPE(
            vocab={piece.piece: number for number, piece in enumerate(model.pieces)},
            merges=generate_merges(scores, scores),
            unk_token=model.trainer_spec.unk_piece,
            fuse_unk=True,
            byte_fallback=model.trainer_spec.byte_fallback,
            ignore_merges=bool(whole),
        )
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if whole:
        longest_first = sorted(whole, key=len, reverse=True)
        core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core


def check_ids(path: Path, core: Tokenizer, processor: Any, model: Any) -> None:
    """Raises UsageError unless the fast tokenizer reads every piece and the samples as SentencePiece does, and a
    content behind a role as ChatGLM3 does: line end and content encoded apart."""
    pieces = [piece.piece.replace("▁", " ") for piece in model.pieces if piece.type == model.SentencePiece.NORMAL]
    wanted = {text: processor.encode(text) for text in (*SAMPLES, *pieces) if not any(map(text.__contains__, ADDED))}
    wanted |= {f"\n {text}": processor.encode("\n") + processor.encode(text) for text in SAMPLES}
    read = core.encode_batch(list(wanted), add_special_tokens=False)
    for (text, ids), encoded in zip(wanted.items(), read, strict=True):
        if encoded.ids != ids:
            raise UsageError(f"{path}: no fast tokenizer like it can be made: {text[:40]!r} would have other ids")


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a ChatGLM3 checkpoint, as published.")],
    out: Annotated[Path, typer.Argument(help="Folder to make; it must not exist, or be empty.")],
) -> None:
    """Convert a ChatGLM3 checkpoint to the GLM class of transformers."""
    config = read_config(checkpoint)
    tokenizer = fast_tokenizer(checkpoint / "tokenizer.model", config)
    files = [checkpoint / "config.json", checkpoint / "tokenizer.model", *weight_files(checkpoint)]
    source = {file.name: jsonl.sha256(file) for file in files}
    if is_made(out, NOTES, {"source": source}, "conversion"):
        print(f"{out} holds this model already")
        return
    with made_whole(out) as fresh:
        native_model(checkpoint, config, tokenizer).save_pretrained(fresh, max_shard_size="5GB")
        tokenizer.save_pretrained(fresh)
        copy_terms(checkpoint, fresh)
        let_others_read(fresh / "config.json")
        made_with = {name: version(name) for name in ("critic", "transformers", "tokenizers", "sentencepiece")}
        jsonl.write_json(fresh / NOTES, {"source": source, "versions": made_with})
    print(f"model saved in {out}")


if __name__ == "__main__":
    run_program(main)
