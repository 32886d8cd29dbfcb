"""A ChatGLM3 checkpoint as published -> a folder that transformers and vLLM load without its remote code.

    python train/convert_chatglm3.py CHECKPOINT runs/chatglm3-6b

CHECKPOINT holds config.json, tokenizer.model and the weights, in shards or whole: safetensors if there are any,
else .bin. OUT gets GLM's class with the same numbers in the same dtype, a fast tokenizer with the same ids and a
chat template. Weights pass through shard by shard: memory is one shard of CHECKPOINT and one of OUT, about 7 GB
for the 6B at the default size. OUT appears whole or not at all; run again, a finished OUT is left as it is.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec
import sentencepiece
import torch
import typer
from checkpoints import let_others_read
from msgspec import Meta, Struct
from safetensors import safe_open
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2
from terms import copy_terms
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tqdm import tqdm
from transformers import GenerationConfig, GlmConfig, PreTrainedTokenizerFast

from critic import jsonl
from critic.cli import run_program
from critic.errors import UsageError, one_line

NOTES = "conversion.json"
"""What OUT was made from; written last."""

Size = Annotated[int, Meta(gt=0)]


class Published(Struct, frozen=True, kw_only=True):
    """What is read of the published config.json. `seq_length` is in tokens; `rope_ratio` multiplies the base of
    the rotary angles."""

    num_layers: Size
    padded_vocab_size: Size
    hidden_size: Size
    ffn_hidden_size: Size
    kv_channels: Size
    num_attention_heads: Size
    multi_query_attention: bool
    multi_query_group_num: Size
    seq_length: Size
    layernorm_epsilon: Annotated[float, Meta(gt=0)]
    add_qkv_bias: bool = False
    rope_ratio: Annotated[float, Meta(gt=0)] = 1.0

    @property
    def query_rows(self) -> int:
        return self.num_attention_heads * self.kv_channels

    @property
    def key_rows(self) -> int:
        return self.multi_query_group_num * self.kv_channels


FIXED: dict[str, Any] = {
    "multi_query_attention": True,
    "rmsnorm": True,
    "post_layer_norm": True,
    "apply_residual_connection_post_layernorm": False,
    "add_bias_linear": False,
    "interleaved_qkv": False,
    "original_rope": True,
    "tie_word_embeddings": False,
    "quantization_bit": 0,
    "pre_seq_len": None,
}
"""Switches of the published class that GLM's has built in, as ChatGLM3 sets them."""


def read_config(folder: Path) -> Published:
    """The shape of the checkpoint in `folder`. Raises UsageError for anything that is not a plain ChatGLM3."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text("utf-8"))
        if raw.get("model_type") != "chatglm":
            raise UsageError(f"{path}: model_type is {raw.get('model_type')!r}; expected 'chatglm' (ChatGLM3)")
        config = msgspec.convert(raw, Published)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; expected the folder of a ChatGLM3 checkpoint") from None
    except (ValueError, AttributeError) as error:  # msgspec's errors are ValueErrors too
        raise UsageError(f"{path}: no ChatGLM3 configuration: {one_line(error)}") from None
    for key, value in FIXED.items():
        if raw.get(key, value) != value:
            raise UsageError(f"{path}: {key} is {raw[key]!r}; only {value!r}, as in ChatGLM3, can be converted")
    if config.num_attention_heads % config.multi_query_group_num:
        raise UsageError(
            f"{path}: num_attention_heads {config.num_attention_heads} is no multiple of"
            f" multi_query_group_num {config.multi_query_group_num}"
        )
    # ChatGLM2 has the same layout, but no role tokens, and reads rope_ratio otherwise.
    code = folder / "tokenization_chatglm.py"
    without_roles = code.is_file() and "<|assistant|>" not in code.read_text("utf-8", errors="replace")
    if without_roles or "chatglm2" in str(raw.get("_name_or_path")).lower():
        raise UsageError(f"{folder}: this is ChatGLM2, which knows no roles; expected a ChatGLM3 checkpoint")
    return config


def native_config(config: Published, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype) -> GlmConfig:
    return GlmConfig(
        architectures=["GlmForCausalLM"],
        dtype=dtype,
        vocab_size=config.padded_vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.multi_query_group_num,
        head_dim=config.kv_channels,
        max_position_embeddings=config.seq_length,
        rms_norm_eps=config.layernorm_epsilon,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0 * config.rope_ratio,
            "partial_rotary_factor": 0.5,
        },
        attention_bias=config.add_qkv_bias,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=stop_ids(tokenizer),
        bos_token_id=None,
    )


def shapes(config: Published) -> dict[str, tuple[int, ...]]:
    """The tensors of a published checkpoint."""
    hidden, inner, vocabulary = config.hidden_size, config.ffn_hidden_size, config.padded_vocab_size
    fused = config.query_rows + 2 * config.key_rows
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attention.query_key_value.weight": (fused, hidden),
        "self_attention.dense.weight": (hidden, config.query_rows),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.dense_h_to_4h.weight": (2 * inner, hidden),
        "mlp.dense_4h_to_h.weight": (hidden, inner),
    }
    if config.add_qkv_bias:
        layer["self_attention.query_key_value.bias"] = (fused,)
    layers = {
        f"transformer.encoder.layers.{number}.{name}": shape
        for number in range(config.num_layers)
        for name, shape in layer.items()
    }
    return layers | {
        "transformer.embedding.word_embeddings.weight": (vocabulary, hidden),
        "transformer.encoder.final_layernorm.weight": (hidden,),
        "transformer.output_layer.weight": (vocabulary, hidden),
    }


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


def native(config: Published, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A published tensor as GLM's class has it, in memory of its own: renamed, the fused query, key and value
    (rows in this order) as three. Gate and up stay fused, in the same order."""
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    parts = {"": tensor}
    if FUSED in name:
        rows = tensor.split([config.query_rows, config.key_rows, config.key_rows])
        parts = dict(zip(("q_proj", "k_proj", "v_proj"), rows, strict=True))
    for part, values in parts.items():
        yield name.replace(FUSED, f"self_attn.{part}"), values.clone(memory_format=torch.contiguous_format)


def weight_files(folder: Path) -> dict[Path, list[str]]:
    """The files that hold the weights, each with the tensors that the index says are in it (none without an index).

    Raises UsageError when there are none, or one is missing.
    """
    for whole in ("model.safetensors", "pytorch_model.bin"):
        index, file = folder / f"{whole}.index.json", folder / whole
        if index.is_file():
            return _indexed(index)
        if file.is_file():
            return {file: []}
    raise UsageError(
        f"{folder}: no weights; expected model.safetensors or pytorch_model.bin, or one of them in shards with an index"
    )


def _indexed(index: Path) -> dict[Path, list[str]]:
    try:
        place = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])["weight_map"]
        files: dict[Path, list[str]] = {}
        for name, file in msgspec.convert(place, dict[str, str]).items():
            files.setdefault(index.parent / Path(file).name, []).append(name)
    except (msgspec.MsgspecError, KeyError) as error:
        raise UsageError(f"{index}: no index of weights: {one_line(error)}") from None
    if absent := [file.name for file in files if not file.is_file()]:
        raise UsageError(f"{index} names {absent[0]}, which is not there ({len(absent)} of {len(files)} missing)")
    return files


def tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a file, which lets go of each as it is handed out. Raises UsageError for a damaged file."""
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no dictionary
                    yield name, opened.get_tensor(name)
        else:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
            for name in list(loaded):
                yield name, loaded.pop(name)
    except Exception as error:  # as many kinds as there are ways for a file to be damaged
        raise UsageError(f"{file}: cannot be read: {one_line(error)}") from None


def check_names(where: Path, found: Iterable[str], expected: Iterable[str]) -> None:
    """Raises UsageError unless all expected tensors were found, and no others but buffers."""
    found, expected = {name for name in found if not _is_buffer(name)}, set(expected)
    if missing := sorted(expected - found):
        raise UsageError(f"{where}: {len(missing)} tensors missing: {', '.join(missing[:3])}")
    if others := sorted(found - expected):
        raise UsageError(f"{where}: {len(others)} tensors that ChatGLM3 has not: {', '.join(others[:3])}")


def _is_buffer(name: str) -> bool:
    return name.endswith("rotary_pos_emb.inv_freq")


def published(folder: Path, config: Published) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of a checkpoint, each once and as its configuration says. Raises UsageError otherwise."""
    expected, files = shapes(config), weight_files(folder)
    if listed := [name for names in files.values() for name in names]:
        check_names(folder, listed, expected)
    seen = set()
    for file in files:
        for name, tensor in tensors(file):
            if _is_buffer(name):
                continue
            if name in seen or name not in expected:
                problem = "is here a second time" if name in seen else "is no tensor of ChatGLM3"
                raise UsageError(f"{file}: {name} {problem}")
            if tuple(tensor.shape) != expected[name] or not tensor.is_floating_point():
                raise UsageError(
                    f"{file}: {name} is {tensor.dtype} {tuple(tensor.shape)};"
                    f" by config.json it should be floating-point {expected[name]}"
                )
            seen.add(name)
            yield name, tensor
    check_names(folder, seen, expected)


class Shards:
    """Writes model*.safetensors of at most `limit` bytes (a larger tensor alone), holding one file in memory."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.files: list[list[str]] = []
        self.total = 0
        self._held: dict[str, torch.Tensor] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if self._held and sum(held.nbytes for held in self._held.values()) + tensor.nbytes > self.limit:
            self._write()
        self._held[name] = tensor

    def close(self) -> None:
        """Write what is left, and name the files by how many there are."""
        self._write()
        count = len(self.files)
        place: dict[str, str] = {}
        for number, names in enumerate(self.files, 1):
            file = f"model-{number:05}-of-{count:05}.safetensors" if count > 1 else "model.safetensors"
            self._file(number).rename(self.folder / file)
            place |= dict.fromkeys(names, file)
        if count > 1:
            index = {"metadata": {"total_size": self.total}, "weight_map": place}
            jsonl.write_json(self.folder / "model.safetensors.index.json", index)

    def _write(self) -> None:
        self.files.append(list(self._held))
        self.total += sum(tensor.nbytes for tensor in self._held.values())
        save_file(self._held, self._file(len(self.files)), metadata={"format": "pt"})
        self._held = {}

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:05}.safetensors"


def convert_weights(folder: Path, config: Published, out: Path, limit: int) -> torch.dtype:
    """Write the weights of `folder` to `out` in files of at most `limit` bytes; returns the dtype of the first."""
    shards = Shards(out, limit)
    dtype = None
    for name, tensor in tqdm(published(folder, config), total=len(shapes(config)), desc="convert", unit="tensor"):
        dtype = dtype or tensor.dtype
        for new, values in native(config, name, tensor):
            shards.add(new, values)
    shards.close()
    assert dtype is not None, "published() refuses a checkpoint without weights"
    return dtype


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


def fast_tokenizer(path: Path, config: Published) -> PreTrainedTokenizerFast:
    """The tokenizer in the SentencePiece file `path` as a fast one: same ids, the published special tokens, a chat
    template. Raises UsageError if the ids would differ, or the vocabulary does not fit the model."""
    processor = _processor(path)
    model: Any = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
    core = _core(model)
    eos, unknown, first = model.trainer_spec.eos_piece, model.trainer_spec.unk_piece, len(model.pieces)
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (eos, *ADDED)])
    if [core.token_to_id(token) for token in ADDED] != list(range(first, first + len(ADDED))):
        raise UsageError(f"{path}: expected a vocabulary that has {eos} and has not {', '.join(ADDED)}")
    if (count := core.get_vocab_size()) > config.padded_vocab_size:
        raise UsageError(f"{path}: {count} tokens, but padded_vocab_size in config.json is {config.padded_vocab_size}")
    check_ids(path, core, processor, model)
    core.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A",
        pair=f"[gMASK] <sop> $A $B {eos}",
        special_tokens=[(token, core.token_to_id(token)) for token in ("[gMASK]", "<sop>", eos)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token=unknown,
        pad_token=unknown,
        eos_token=eos,
        additional_special_tokens=list(ADDED),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=config.seq_length,
        clean_up_tokenization_spaces=False,
    )


def _processor(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; expected ChatGLM3's SentencePiece model")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    except RuntimeError as error:
        raise UsageError(f"{path}: no SentencePiece model: {one_line(error)}") from None


def _core(model: Any) -> Tokenizer:
    """SentencePiece's BPE in terms of the tokenizers library: pieces merge in the order of their scores."""
    kinds = model.SentencePiece
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == kinds.NORMAL}
    whole = [piece.piece for piece in model.pieces if piece.type == kinds.USER_DEFINED]
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(scores, key=scores.__getitem__, reverse=True)
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    core = Tokenizer(
        models.BPE(
            vocab={piece.piece: number for number, piece in enumerate(model.pieces)},
            merges=merges,
            unk_token=model.trainer_spec.unk_piece,
            fuse_unk=True,
            byte_fallback=model.trainer_spec.byte_fallback,
            ignore_merges=bool(whole),
        )
    )
    core.normalizer = normalizers.Sequence(_normalizers(model.normalizer_spec))
    if whole:
        longest_first = sorted(whole, key=len, reverse=True)
        core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core


def _normalizers(spec: Any) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    if spec.remove_extra_whitespaces:
        fewer = [normalizers.Replace(Regex(r"\A +"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        steps = [*fewer, *steps, normalizers.Replace(Regex(r"▁+\z"), "")]
    if spec.precompiled_charsmap:
        steps.insert(0, normalizers.Precompiled(spec.precompiled_charsmap))
    return steps


def check_ids(path: Path, core: Tokenizer, processor: Any, model: Any) -> None:
    """Raises UsageError unless the fast tokenizer reads every piece and the samples as SentencePiece does, and a
    content behind a role as ChatGLM3 does: line end and content encoded apart."""
    pieces = [piece.piece.replace("▁", " ") for piece in model.pieces if piece.type == model.SentencePiece.NORMAL]
    wanted = {text: processor.encode(text) for text in (*SAMPLES, *pieces) if not any(map(text.__contains__, ADDED))}
    wanted |= {f"\n {text}": processor.encode("\n") + processor.encode(text) for text in SAMPLES}
    read = core.encode_batch(list(wanted), add_special_tokens=False)
    for (text, ids), encoded in zip(wanted.items(), read, strict=True):
        if encoded.ids != ids:
            raise UsageError(
                f"{path}: no fast tokenizer like it can be made: of {text[:40]!r} it would make"
                f" {encoded.tokens[:8]}, SentencePiece makes {[processor.id_to_piece(number) for number in ids[:8]]}"
            )


def stop_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(STOPS))]


def byte_count(size: str) -> int:
    """Bytes of a size such as 500MB or 5GB (powers of 1,000). Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])B", size.strip(), re.IGNORECASE)
    count = int(float(found[1]) * 1000 ** (1 + "KMGT".index(found[2].upper()))) if found else 0
    if not count:
        raise UsageError(f"--max-shard-size is {size!r}; expected a size such as 500MB or 5GB")
    return count


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that a conversion reads, by name."""
    files = [folder / "config.json", folder / "tokenizer.model", *weight_files(folder)]
    return {file.name: jsonl.sha256(file) for file in files}


def finished(out: Path, source: dict[str, str]) -> bool:
    """Whether `out` holds the conversion of these files. Raises UsageError when it holds anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    notes = out / NOTES
    if not notes.is_file():
        raise UsageError(f"{out} is not empty and holds no conversion; choose another folder")
    if json.loads(notes.read_text("utf-8"))["source"] != source:
        raise UsageError(f"{out} holds the conversion of another checkpoint; choose another folder")
    return True


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a ChatGLM3 checkpoint, as published.")],
    out: Annotated[Path, typer.Argument(help="Folder to make; it must not exist, or be empty.")],
    max_shard_size: Annotated[str, typer.Option(help="Size of a file of weights at most.")] = "5GB",
) -> None:
    """Convert a ChatGLM3 checkpoint to the GLM class of transformers."""
    limit = byte_count(max_shard_size)
    config = read_config(checkpoint)
    tokenizer = fast_tokenizer(checkpoint / "tokenizer.model", config)
    source = fingerprint(checkpoint)
    if finished(out, source):
        print(f"{out} holds this model already")
        return
    place = out.resolve()
    fresh = place.with_name(f"{place.name}.partial") / "folder"
    with jsonl.alone_in(fresh.parent), jsonl.removed_on_failure(fresh):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        native_config(config, tokenizer, convert_weights(checkpoint, config, fresh, limit)).save_pretrained(fresh)
        GenerationConfig(eos_token_id=stop_ids(tokenizer), pad_token_id=tokenizer.pad_token_id).save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        copy_terms(checkpoint, fresh)
        let_others_read(fresh / "config.json")
        made_with = {name: version(name) for name in ("critic", "transformers", "tokenizers", "sentencepiece")}
        jsonl.write_json(fresh / NOTES, {"source": source, "versions": made_with})
        fresh.rename(place)
        shutil.rmtree(fresh.parent)
    print(f"model saved in {out}")


if __name__ == "__main__":
    run_program(main)
