"""ChatGLM3 as published -> GLM: the same logits, the same token ids, and no half-made or wrong folder."""

import importlib
import io
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT, run
from hypothesis import example, given
from hypothesis import strategies as st

from critic.errors import UsageError

torch = pytest.importorskip("torch", reason="needs the train extra")
transformers = pytest.importorskip("transformers", reason="needs the train extra")
sentencepiece = pytest.importorskip("sentencepiece", reason="needs the train extra")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="needs the train extra")

PROGRAM = ROOT / "train/convert_chatglm3.py"
SPECIAL = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
"""The published special tokens, in the order of their ids behind the vocabulary."""

ZH = "你好世界今天天气很好图片里有三个苹果请给回答打分理由是它不够准确我们认为这个模型的评价"
EN = "the quick brown fox sees three apples on a table and rates this answer with philosophy in mind because"


@pytest.fixture(scope="module")
def converter() -> ModuleType:
    sys.path.insert(0, str(PROGRAM.parent))
    return importlib.import_module("convert_chatglm3")


def lines(count: int = 600) -> list[str]:
    draw = random.Random(0)
    made = []
    for _ in range(count):
        words = " ".join(draw.choices(EN.split(), k=8))
        made.append(f"{words}, {''.join(draw.choices(ZH, k=9))}。 {draw.randint(0, 9999)}")
    return made


def sentencepiece_model(**changes: Any) -> bytes:
    """A model like ChatGLM3's: BPE, bytes for unknown characters, text left as it is."""
    model = io.BytesIO()
    options = {
        "model_type": "bpe",
        "vocab_size": 700,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=model, minloglevel=2, **{**options, **changes}
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def spm() -> bytes:
    return sentencepiece_model()


@pytest.fixture(scope="module")
def pieces(spm: bytes) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=spm)


CONFIG: dict[str, Any] = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "num_layers": 3,
    "padded_vocab_size": 720,
    "hidden_size": 48,
    "ffn_hidden_size": 56,
    "kv_channels": 16,
    "num_attention_heads": 4,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "seq_length": 4096,
    "layernorm_epsilon": 1e-5,
    "add_qkv_bias": True,
    "add_bias_linear": False,
    "rmsnorm": True,
    "original_rope": True,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
Weights = dict[str, Any]


def random_weights(config: dict[str, Any], dtype: Any = torch.float32) -> Weights:
    """Large enough for every part of the architecture to show in the logits."""
    generator = torch.Generator().manual_seed(7)
    hidden, inner, channels = config["hidden_size"], config["ffn_hidden_size"], config["kv_channels"]
    queries, groups = config["num_attention_heads"] * channels, config["multi_query_group_num"] * channels

    def draw(*shape: int) -> Any:
        spread = 1.5 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.3
        return (torch.randn(shape, generator=generator) * spread + (len(shape) == 1)).to(dtype)

    weights = {
        "transformer.embedding.word_embeddings.weight": draw(config["padded_vocab_size"], hidden),
        "transformer.rotary_pos_emb.inv_freq": torch.ones(channels // 4, dtype=dtype),
        "transformer.encoder.final_layernorm.weight": draw(hidden),
        "transformer.output_layer.weight": draw(config["padded_vocab_size"], hidden),
    }
    for number in range(config["num_layers"]):
        layer = f"transformer.encoder.layers.{number}"
        weights |= {
            f"{layer}.input_layernorm.weight": draw(hidden),
            f"{layer}.self_attention.query_key_value.weight": draw(queries + 2 * groups, hidden),
            f"{layer}.self_attention.query_key_value.bias": draw(queries + 2 * groups),
            f"{layer}.self_attention.dense.weight": draw(hidden, queries),
            f"{layer}.post_attention_layernorm.weight": draw(hidden),
            f"{layer}.mlp.dense_h_to_4h.weight": draw(2 * inner, hidden),
            f"{layer}.mlp.dense_4h_to_h.weight": draw(hidden, inner),
        }
    return weights


def publish(
    folder: Path,
    spm: bytes,
    config: dict[str, Any] = CONFIG,
    weights: Weights | None = None,
    shards: int = 3,
) -> Path:
    """A checkpoint in the published layout."""
    weights = random_weights(config) if weights is None else weights
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer.model").write_bytes(spm)
    (folder / "MODEL_LICENSE").write_text("The license of the weights.", "utf-8")
    for shard in range(shards):
        part = {name: weights[name] for name in list(weights)[shard::shards]}
        safetensors_torch.save_file(part, folder / f"model-{shard + 1:05}-of-{shards:05}.safetensors")
    return folder


def reference(weights: Weights, config: dict[str, Any], ids: list[int]) -> Any:
    """Logits of the original architecture, straight from its description, in double precision.

    GLM-130B and ChatGLM2/3: pre-norm with RMSNorm; rotary angles on the first half of each head, neighbouring
    channels a pair; a key and value shared by the heads of a group; SwiGLU.
    """
    weights = {name: tensor.double() for name, tensor in weights.items()}
    channels, heads, groups = config["kv_channels"], config["num_attention_heads"], config["multi_query_group_num"]
    length, turned = len(ids), channels // 2
    rates = (10000.0 * config.get("rope_ratio", 1)) ** -(torch.arange(0, turned, 2).double() / turned)
    turn = torch.polar(torch.ones(length, turned // 2).double(), torch.outer(torch.arange(length).double(), rates))

    def norm(x: Any, name: str) -> Any:
        return x / (x.square().mean(-1, keepdim=True) + config["layernorm_epsilon"]).sqrt() * weights[name]

    def rotated(x: Any) -> Any:
        pairs = torch.complex(x[:, 0:turned:2], x[:, 1:turned:2]) * turn
        return torch.cat([torch.stack([pairs.real, pairs.imag], -1).flatten(1), x[:, turned:]], 1)

    x = weights["transformer.embedding.word_embeddings.weight"][ids]
    for number in range(config["num_layers"]):
        layer = f"transformer.encoder.layers.{number}"
        attention = f"{layer}.self_attention"
        fused = norm(x, f"{layer}.input_layernorm.weight") @ weights[f"{attention}.query_key_value.weight"].T
        parts = (fused + weights[f"{attention}.query_key_value.bias"]).split(channels, 1)
        queries, keys, values = parts[:heads], parts[heads : heads + groups], parts[heads + groups :]
        seen = []
        for head, query in enumerate(queries):
            group = head * groups // heads
            scores = rotated(query) @ rotated(keys[group]).T / math.sqrt(channels)
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
            seen.append(scores.softmax(1) @ values[group])
        x = x + torch.cat(seen, 1) @ weights[f"{attention}.dense.weight"].T
        inner = norm(x, f"{layer}.post_attention_layernorm.weight") @ weights[f"{layer}.mlp.dense_h_to_4h.weight"].T
        gate, up = inner.chunk(2, 1)
        x = x + (gate * gate.sigmoid() * up) @ weights[f"{layer}.mlp.dense_4h_to_h.weight"].T
    return norm(x, "transformer.encoder.final_layernorm.weight") @ weights["transformer.output_layer.weight"].T


def logits(folder: Path, ids: list[int]) -> Any:
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "GlmForCausalLM"
    assert not any(loading.values()), loading
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double()


IDS = random.Random(1).sample(range(720), 60)


@pytest.mark.parametrize(
    ("shards", "changes"),
    [(3, {"rope_ratio": 50}), (1, {"multi_query_group_num": 1, "num_attention_heads": 6})],
)
def test_the_converted_model_computes_what_the_original_does(
    converter: ModuleType, spm: bytes, tmp_path: Path, shards: int, changes: dict[str, Any]
) -> None:
    config = {**CONFIG, **changes}
    weights = random_weights(config)
    converter.main(publish(tmp_path / "in", spm, config, weights, shards), tmp_path / "out")
    torch.testing.assert_close(logits(tmp_path / "out", IDS), reference(weights, config, IDS), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def converted(converter: ModuleType, spm: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    config = {**CONFIG, "rope_ratio": 50, "torch_dtype": "float16"}
    source = publish(folder / "in", spm, config, random_weights(config, torch.float16))
    converter.main(source, folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def tokenizer(converted: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(converted)


def test_the_configuration_carries_over(converted: Path, tokenizer: Any) -> None:
    config = transformers.AutoConfig.from_pretrained(converted)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5}
    wanted = {
        "vocab_size": 720, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "attention_bias": True, "tie_word_embeddings": False, "dtype": torch.float16,
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": [2, 706, 708],
    }  # fmt: skip
    assert {name: getattr(config, name) for name in wanted} == wanted
    generation = transformers.GenerationConfig.from_pretrained(converted)
    assert generation.eos_token_id == [2, 706, 708] and generation.pad_token_id == 0
    assert tokenizer.convert_ids_to_tokens([2, 706, 708]) == ["</s>", "<|user|>", "<|observation|>"]


def test_the_licence_goes_with_the_weights_and_remote_code_does_not(converted: Path) -> None:
    assert (converted / "MODEL_LICENSE").is_file()
    assert "auto_map" not in (converted / "config.json").read_text("utf-8")


BATTERY = [
    "你好，世界！",
    "Hello, world!",
    "philosophy of a sop to the eop, sophisticated",
    "The 3 apples cost $1,234.50 (≈ 8,900元)。",
    "  leading, double  inside, trailing  ",
    "line\nanother\n\n\n  indented\tTab\r\nend\n",
    '{"Rating":7,"Reason":"答案 is right"}',
    "👋🏽👩‍👩‍👧‍👦 e\u0301 ﷽ \u200b\ufeff \U00020000",
    "ＦＵＬＬ　ｗｉｄｔｈ①½ﬁ",
    "<s> <0x0A> ▁ <|none|> <b>x</b>",
    "0123456789" * 5,
    "世" * 50,
    " ",
    "\n",
    "",
]


def test_the_fast_tokenizer_reads_and_writes_as_sentencepiece_does(tokenizer: Any, pieces: Any) -> None:
    for text in BATTERY:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == pieces.encode(text)
        assert tokenizer.decode(ids) == pieces.decode(ids)


@given(st.text(st.sampled_from("ab 苹果thequick\n\t,。1234😀\u3000<>▁") | st.characters(exclude_categories=["Cs"])))
@example("aaaaaaa")
def test_the_fast_tokenizer_reads_any_text_as_sentencepiece_does(tokenizer: Any, pieces: Any, text: str) -> None:
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == pieces.encode(text)


def test_tokens_that_nothing_is_merged_into_carry_over(converter: ModuleType, tmp_path: Path) -> None:
    model = sentencepiece_model(user_defined_symbols=["▁▁", "<n>", "app", "apples", "世界"])
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    fast = converter.fast_tokenizer(path, converter.read_config(tmp_path))
    for text in [*BATTERY, *lines(50)]:
        assert fast(text, add_special_tokens=False)["input_ids"] == pieces.encode(text), text


def test_special_tokens_have_the_published_ids(tokenizer: Any, pieces: Any) -> None:
    ours = [{"sop": "<sop>", "eop": "<eop>"}.get(token, token) for token in SPECIAL]
    assert tokenizer.convert_tokens_to_ids(ours) == list(range(700, 709))
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    assert len(tokenizer) == 709
    prefix = [701, 703]
    assert tokenizer("你好")["input_ids"] == prefix + pieces.encode("你好")
    batch = tokenizer(["a", "the fox sees"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"][0][0] == 0 and batch["attention_mask"][0][0] == 0  # padded on the left


def chat_input(pieces: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation by the published format: each role's line and each content encoded apart."""
    number = {token: 700 + place for place, token in enumerate(SPECIAL)}
    ids = [number["[gMASK]"], number["sop"]]
    for message in messages:
        content = message["content"]
        if message["role"] == "system" and "tools" in message:
            content += "\n" + json.dumps(message["tools"], indent=4, ensure_ascii=False)
        ids.append(number[f"<|{message['role']}|>"])
        ids += pieces.encode(message.get("metadata", "") + "\n") + pieces.encode(content)
    return ids


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "请回答", "tools": [{"name": "see", "description": '看图 "1" & <b>'}]},
    {"role": "user", "content": "今天天气\n很好?  "},
    {"role": "assistant", "metadata": "see", "content": "tool_call(x='苹果')"},
    {"role": "observation", "content": ""},
    {"role": "assistant", "content": " three apples"},
    {"role": "user", "content": "\nthe quick"},
]


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_a_conversation_has_the_published_ids(tokenizer: Any, pieces: Any, count: int) -> None:
    wanted = chat_input(pieces, CONVERSATION[:count])
    assert tokenizer.apply_chat_template(CONVERSATION[:count], return_dict=False) == wanted
    asked = tokenizer.apply_chat_template(CONVERSATION[:count], add_generation_prompt=True, return_dict=False)
    # ChatGLM3 itself writes the line end behind its role first.
    assert asked == [*wanted, 707, *pieces.encode("\n")]


def test_the_program_says_when_it_is_done_already(converted: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in converted.iterdir()}
    again = run(PROGRAM, converted.parent / "in", converted)
    assert again.returncode == 0 and "already" in again.stdout, again.stderr
    assert {file: file.stat().st_mtime_ns for file in converted.iterdir()} == before


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = {**CONFIG, **changes}
        kept = {name: value for name, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(kept), "utf-8")

    return edit


def edit_weights(tensor: Any) -> Callable[[Path], None]:
    """Save the weights anew, in one file: a matrix replaced, or left out where it is None."""

    def edit(folder: Path) -> None:
        weights = {**random_weights(CONFIG), "transformer.encoder.layers.2.mlp.dense_h_to_4h.weight": tensor}
        kept = {name: each for name, each in weights.items() if each is not None}
        remove_weights(folder)
        safetensors_torch.save_file(kept, folder / "model.safetensors")

    return edit


def remove_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def cut_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (lambda folder: (folder / "config.json").unlink(), ["config.json", "No such file"]),
        (edit_config(model_type="llama"), ["config.json", "'llama'", "'chatglm'"]),
        (edit_config(multi_query_group_num=1), ["does not fit to config.json"]),
        (edit_config(ffn_hidden_size=...), ["config.json", "ffn_hidden_size"]),
        (edit_config(multi_query_attention=False), ["multi_query_attention is False", "True"]),
        (edit_config(_name_or_path="THUDM/chatglm2-6b"), ["ChatGLM2"]),
        (lambda folder: (folder / "tokenizer.model").unlink(), ["tokenizer.model", "No such file"]),
        (write("tokenizer.model", b"IQ== 0\nIg== 1\n"), ["tokenizer.model", "no SentencePiece model"]),
        (remove_weights, ["no weights"]),
        (cut_shard, ["model-00002-of-00003.safetensors", "cannot be read"]),
        (edit_weights(None), ["Missing key", "2.mlp.gate_up_proj"]),
        (edit_weights(torch.zeros(56, 48)), ["2.mlp.gate_up_proj.weight", "[56, 48]", "[112, 48]"]),
    ],
)  # fmt: skip
def test_what_is_no_chatglm3_is_refused_in_one_line(
    converter: ModuleType, spm: bytes, tmp_path: Path, edit: Callable[[Path], None], parts: list[str]
) -> None:
    source = publish(tmp_path / "in", spm)
    edit(source)
    with pytest.raises(UsageError) as raised:
        converter.main(source, tmp_path / "out")
    assert "\n" not in str(raised.value)
    for part in parts:
        assert part in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "unigram"}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": True}],
)
def test_a_tokenizer_that_cannot_be_had_alike_is_refused(
    converter: ModuleType, tmp_path: Path, changes: dict[str, Any]
) -> None:
    source = publish(tmp_path / "in", sentencepiece_model(**changes))
    with pytest.raises(UsageError, match=r"tokenizer\.model"):
        converter.main(source, tmp_path / "out")
