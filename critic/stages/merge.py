"""critic merge: the files of all shards of one run -> one file.

critic judge rows.jsonl --shard 3/64 --out part.3.jsonl …    # one of 64, on any machine; killed, it goes on
critic merge part.*.jsonl --out judged.jsonl
"""

from pathlib import Path
from typing import Annotated

import typer

from critic import jsonl
from critic.errors import UsageError
from critic.stages import options, shards


def main(
    parts: Annotated[list[Path], typer.Argument(help="The files of all shards, in any order.")],
    out: Annotated[Path, typer.Option(help="Output file (.jsonl or .jsonl.gz).")],
    max_failed: options.MaxFailed = options.MAX_FAILED,
) -> int:
    """Merge the files that critic judge or critic infer made with --shard.

    Overlaps, gaps and a mixture of judges, prompts or sources are refused, naming the file. The merged file has the
    same lines as a run without --shard, in the order of the shards.
    """
    if jsonl.suffix(out) != ".jsonl":
        raise UsageError(f"--out {out}: JSON lines are written; give a name that ends in .jsonl or .jsonl.gz")
    return shards.merge(parts, out, max_failed)
