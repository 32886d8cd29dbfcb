"""ChatGLM3 as published -> GLM: the same logits, the same token ids, and no half-made or wrong folder."""

import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Done, assert_one_line_error, run

torch = pytest.importorskip("torch", reason="needs the train extra")
transformers = pytest.importorskip("transformers", reason="needs the train extra")
sentencepiece = pytest.importorskip("sentencepiece", reason="needs the train extra")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="needs the train extra")

WORDS = "the,quick,brown,fox,rates,this,answer,with,philosophy,你好世界,今天天气很好,图片里有三个苹果,给回答打分"
CONFIG: dict[str, Any] = json.loads("""{"model_type": "chatglm", "num_layers": 2, "padded_vocab_size": 720,
  "hidden_size": 48, "ffn_hidden_size": 56, "kv_channels": 16, "num_attention_heads": 4, "seq_length": 8192,
  "multi_query_attention": true, "multi_query_group_num": 2, "layernorm_epsilon": 1e-5, "add_qkv_bias": true,
  "rope_ratio": 50}""")
HIDDEN, INNER, CHANNELS, HEADS, GROUPS = 48, 56, 16, 4, 2


@pytest.fixture(scope="module")
def spm() -> bytes:
    """A model like ChatGLM3's: BPE, bytes for unknown characters, text left as it is."""
    draw, model_file = random.Random(0), io.BytesIO()
    lines = [f"{' '.join(draw.choices(WORDS.split(','), k=9))}, {draw.randint(0, 9999)}" for _ in range(600)]
    how = {"vocab_size": 500, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    how |= {"model_type": "bpe", "byte_fallback": True, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model_file, **how)
    return model_file.getvalue()


def random_weights() -> dict[str, Any]:
    """Large enough for every part of the architecture to show in the logits."""
    generator, fused = torch.Generator().manual_seed(7), (HEADS + 2 * GROUPS) * CHANNELS
    shapes: dict[str, tuple[int, ...]] = {"encoder.final_layernorm": (HIDDEN,), "output_layer": (720, HIDDEN)}
    shapes |= {"embedding.word_embeddings": (720, HIDDEN)}
    for layer in (f"encoder.layers.{number}" for number in range(CONFIG["num_layers"])):
        shapes |= {f"{layer}.input_layernorm": (HIDDEN,), f"{layer}.post_attention_layernorm": (HIDDEN,)}
        shapes |= {f"{layer}.self_attention.query_key_value": (fused, HIDDEN)}
        shapes |= {f"{layer}.self_attention.dense": (HIDDEN, HEADS * CHANNELS)}
        shapes |= {f"{layer}.mlp.dense_h_to_4h": (2 * INNER, HIDDEN), f"{layer}.mlp.dense_4h_to_h": (HIDDEN, INNER)}
    named = {f"transformer.{name}.weight": shape for name, shape in shapes.items()}
    named |= {name.replace("weight", "bias"): (fused,) for name in named if "query_key" in name}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in named.items()}
    scaled = {name: w * 0.3 + 1 if w.ndim == 1 else w * 1.5 / math.sqrt(w.shape[1]) for name, w in drawn.items()}
    return {**scaled, "transformer.rotary_pos_emb.inv_freq": torch.ones(CHANNELS // 4)}


def published(folder: Path, spm: bytes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (folder / "tokenizer.model").write_bytes(spm)
    (folder / "MODEL_LICENSE").write_text("The license of the weights.", "utf-8")
    weights = random_weights()
    for shard in (0, 1):
        part = {name: weights[name] for name in list(weights)[shard::2]}
        safetensors_torch.save_file(part, folder / f"model-{shard + 1:05}-of-00002.safetensors")
    return folder


def convert(source: Path, out: Path) -> Done:
    return run("critic", "base", "chatglm3-6b", out, "--from", source)


@pytest.fixture(scope="module")
def converted(spm: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    done = convert(published(folder / "in", spm), folder / "out")
    assert done.returncode == 0 and "licence: ChatGLM3-6B License" in done.stdout, done.stderr
    assert "already" in convert(folder / "in", folder / "out").stdout
    return folder / "out"


def reference(weights: dict[str, Any], ids: list[int]) -> Any:
    """Logits of the original architecture, straight from its description (GLM-130B; ChatGLM2/3), in double precision:
    pre-norm with RMSNorm; rotary angles on the first half of each head, neighbouring channels a pair; a key and value
    shared by the heads of a group; SwiGLU."""
    w = {name.removeprefix("transformer."): tensor.double() for name, tensor in weights.items()}
    half, places = CHANNELS // 2, torch.arange(len(ids)).double()
    angles = torch.outer(places, (1e4 * CONFIG["rope_ratio"]) ** -(torch.arange(0, half, 2).double() / half))
    turn = torch.polar(torch.ones_like(angles), angles)

    def norm(x: Any, name: str) -> Any:
        return x / (x.square().mean(-1, keepdim=True) + CONFIG["layernorm_epsilon"]).sqrt() * w[f"{name}.weight"]

    def rotated(x: Any) -> Any:
        pairs = torch.complex(x[:, 0:half:2], x[:, 1:half:2]) * turn
        return torch.cat([torch.stack([pairs.real, pairs.imag], -1).flatten(1), x[:, half:]], 1)

    x, future = w["embedding.word_embeddings.weight"][ids], torch.ones(len(ids), len(ids)).triu(1).bool()
    for layer in (f"encoder.layers.{number}" for number in range(CONFIG["num_layers"])):
        fused, seen = f"{layer}.self_attention.query_key_value", []
        mixed = norm(x, f"{layer}.input_layernorm") @ w[f"{fused}.weight"].T + w[f"{fused}.bias"]
        heads = mixed.split(CHANNELS, 1)
        for head in range(HEADS):
            group = HEADS + head * GROUPS // HEADS
            scores = rotated(heads[head]) @ rotated(heads[group]).T / math.sqrt(CHANNELS)
            seen.append(scores.masked_fill(future, -math.inf).softmax(1) @ heads[group + GROUPS])
        x = x + torch.cat(seen, 1) @ w[f"{layer}.self_attention.dense.weight"].T
        inner = norm(x, f"{layer}.post_attention_layernorm") @ w[f"{layer}.mlp.dense_h_to_4h.weight"].T
        gate, up = inner.chunk(2, 1)
        x = x + (gate * gate.sigmoid() * up) @ w[f"{layer}.mlp.dense_4h_to_h.weight"].T
    return norm(x, "encoder.final_layernorm") @ w["output_layer.weight"].T


def test_the_converted_model_computes_what_the_original_does(converted: Path) -> None:
    """Row 9."""
    ids = random.Random(1).sample(range(720), 60)
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(converted, output_loading_info=True)
    assert type(model).__name__ == "GlmForCausalLM" and not any(loading.values()), loading
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    torch.testing.assert_close(logits, reference(random_weights(), ids), rtol=0, atol=1e-4)
    assert model.config.max_position_embeddings == 8192 and model.generation_config.eos_token_id == [2, 506, 508]
    assert (converted / "MODEL_LICENSE").is_file() and "auto_map" not in (converted / "config.json").read_text()


def test_the_tokenizer_reads_as_sentencepiece_and_the_template_as_published(converted: Path, spm: bytes) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=spm)
    for text in ("philosophy of a sop", "  two 苹果\n\n👋🏽 ﷽ e\u0301", '{"Rating":7}', "<s> ▁ <0x0A>", "", " "):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == pieces.encode(text) and tokenizer.decode(ids) == pieces.decode(ids)
    said = [("user", "今天\n好? "), ("assistant", "three apples"), ("user", "the quick")]
    # Behind [gMASK] and sop, each role, its line end and its content encoded apart.
    wanted = [501, 503]
    for role, content in said:
        wanted += [500 + (6 if role == "user" else 7), *pieces.encode("\n"), *pieces.encode(content)]
    messages = [{"role": role, "content": content} for role, content in said]
    prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert prompt_ids == [*wanted, 507, *pieces.encode("\n")]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "No such file"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}'), "only 'chatglm', as in"),
        (lambda folder: (folder / "tokenizer.model").write_bytes(b"IQ=="), "no SentencePiece model"),
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "Missing key"),
        (lambda folder: (folder / "model-00001-of-00002.safetensors").write_bytes(b"cut"), "are not those of"),
    ],
)
def test_what_is_no_chatglm3_is_refused_in_one_line(
    spm: bytes, tmp_path: Path, spoil: Callable[[Path], Any], said: str
) -> None:
    source = published(tmp_path / "in", spm)
    spoil(source)
    assert_one_line_error(convert(source, tmp_path / "out"), said)
    assert not (tmp_path / "out").exists()
