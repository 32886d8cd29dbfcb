"""critic card: what a benchmark is made of, as tables and pictures.

critic card questions.jsonl --benchmark alignmmbench --out runs/alignmmbench
"""

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from critic import benchmarks
from critic.building import card, pictures
from critic.building.bench import check_frozen, leaks
from critic.errors import UsageError
from critic.stages import options
from critic.stages.score import read_runs

TokenizerName = Annotated[str, typer.Option(help="Lengths in: words, characters, or a folder's tokenizer.json.")]


def main(
    file: Annotated[Path, typer.Argument(help="A benchmark's file: a published one, or one of critic build.")],
    benchmark: Annotated[str, typer.Option(help=f"Which one: {', '.join(benchmarks.BENCHMARKS)}.")],
    out: Annotated[Path, typer.Option(help="Folder for card.md, card.html and card.json.")],
    tokenizer: TokenizerName = "words",
    judged: Annotated[list[Path] | None, typer.Option(help="A model's judgments, a file each: how hard it is.")] = None,
    data_root: options.DataRoot = None,
    near: Annotated[int, typer.Option(min=0, max=32, help="Bits by which near-duplicate images differ.")] = (
        pictures.NEAR
    ),
) -> None:
    """The data card of a benchmark: counts, turns, lengths, lexical diversity, distributions, near-duplicates left."""
    frozen = check_frozen(file.parent)
    root, steps, shared = data_root or file.parent, frozen.get("steps", []), list[str]()
    with nullcontext() if frozen else suppress(UsageError):  # what lies beside a published file may be anything
        shared = leaks(file.parent, benchmark)
    runs = read_runs(judged, benchmark) if judged else ()
    print(card.write(out, benchmark, file, root, tokenizer, near, runs, steps, shared))
    if frozen:
        print(f"every file is as it was frozen: {frozen['hash']}")
    print(f"{out / 'card.html'}, card.md, card.json")
