"""critic describe: what a benchmark is made of, as tables and pictures.

critic describe questions.jsonl --benchmark alignmmbench --out runs/alignmmbench
"""

from pathlib import Path
from typing import Annotated

import typer

from critic import benchmarks
from critic.building import card
from critic.building.bench import check_frozen


def main(
    file: Annotated[Path, typer.Argument(help="A benchmark's file: a published one, or one that critic build made.")],
    benchmark: Annotated[str, typer.Option(help=f"Benchmark of the file: {', '.join(benchmarks.BENCHMARKS)}.")],
    out: Annotated[Path, typer.Option(help="Folder for card.html and card.json.")],
) -> None:
    """Write the data card of a benchmark: counts, turns, lengths, lexical diversity, distributions."""
    frozen = check_frozen(file.parent)
    print(card.write(out, benchmark, file, frozen.get("steps", [])))
    if frozen:
        print(f"every file is as it was frozen: {frozen['hash']}")
    print(f"{out / 'card.html'}, card.json")
