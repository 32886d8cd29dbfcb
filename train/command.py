"""The options of sft.py, apart from it: `critic train --help`, and a mistake in them, need not wait for torch."""

from pathlib import Path
from typing import Annotated

import typer


def main(
    config: Annotated[Path, typer.Option(help="A recipe (train/recipes/*.yaml).")],
    train: Annotated[Path, typer.Option(help="Human-scored rows to learn from: JSONL, CSV or a folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the judge, a Hugging Face model folder.")],
    internal: Annotated[
        Path | None, typer.Option(help="Human-scored rows to judge while training (the recipe's evaluation section).")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE put into the recipe, such as training.max_steps=100.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for token ids [default: critic in HF_HOME].")] = None,
    keep: Annotated[int | None, typer.Option(help="Checkpoints that stay, instead of the recipe's.")] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder below which the rows' images lie.", show_default="that of --train")
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="A text judge of the same language model to go on from (images: show).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a process on a CPU [default: cores that are free].")
    ] = None,
    local_rank: Annotated[int, typer.Option("--local_rank", hidden=True)] = -1,
) -> None:
    """Fine-tune a judge on human-scored rows; started again, it goes on from the newest checkpoint."""
    import sft  # noqa: PLC0415 - with torch, DeepSpeed and transformers

    sft.main(config, train, out, internal, overrides, cache, keep, data_root, init, threads)
