"""Agreement with people, of FastChat's single grading by a served judge and of `critic judge`, on the same rows.

python tests/bench/client_agreement.py ROWS --judge WRITER [--judge HEAD]

A writer is asked in the client's words (`--as-asked`) and as it learned, a head only as it learned. `ratio`: the error
(MAE) of the client's ratings as learned ÷ that of `critic judge` rounded to whole ratings, as clients read them; the
highest of the judges.
"""

import asyncio
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))

from clients.forms import single_grading
from conftest import run_apart, serving

from critic import jsonl
from eval_agreement import measured

RATING = re.compile(r"\[\[([0-9.]+)\]\]")
"""How FastChat reads a single rating."""


async def ask_as_client(url: str, rows: list[dict[str, Any]]) -> list[float | None]:
    """Return what FastChat reads of the replies: a rating a row, or None."""

    async def rate(client: httpx.AsyncClient, row: dict[str, Any]) -> float | None:
        messages = [{"role": "user", "content": single_grading(row)}]
        body = {"model": "gpt-4", "messages": messages, "max_tokens": 160, "temperature": 0}
        reply = await client.post("/v1/chat/completions", json=body)
        found = RATING.search(reply.json()["choices"][0]["message"]["content"]) if reply.is_success else None
        return None if found is None else min(10.0, max(1.0, float(found[1])))

    # A connection that idles for five seconds is closed by the server while the next request is on its way.
    limits = httpx.Limits(max_connections=16, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        return await asyncio.gather(*(rate(client, row) for row in rows))


def ask_every_way(judge: Path, rows_file: Path) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the scores of each way to ask a judge, by the way's name."""
    rows = [row for _, row in jsonl.read(rows_file, dict[str, Any])]
    is_head = "ForSequenceClassification" in (judge / "config.json").read_text("utf-8")
    for way, options in {"as asked": ["--as-asked"], "as learned": []}.items():
        if is_head and options:
            continue
        with serving(judge, "--alias", "gpt-4", *options) as (_, url):
            yield way, asyncio.run(ask_as_client(url, rows))
            if options:
                continue
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "judged.jsonl"
                asking = ["--base-url", f"{url}/v1", "--prompt", "pointwise_short", "--no-reason", "--out", str(out)]
                run_apart("critic", "judge", str(rows_file), *asking, code=0)
                score_of = {line["sample"]["id"]: line["score"] for _, line in jsonl.read(out, dict[str, Any])}
            yield "critic judge", (scores := [score_of[row["id"]] for row in rows])
            # A client's parser reads whole ratings.
            yield "critic judge, rounded", [None if score is None else math.floor(score + 0.5) for score in scores]


def main(rows: Path, judge: Annotated[list[Path], typer.Option()]) -> None:
    scored = [row for _, row in jsonl.read(rows, dict[str, Any])]
    people, groups = [row["score_1_10"] for row in scored], [row["group"] for row in scored]
    errors = dict[str, dict[str, float | None]]()
    for folder in judge:
        errors[folder.name] = {}
        for way, scores in ask_every_way(folder, rows):
            agreement = measured(people, scores, groups)
            errors[folder.name][way] = agreement.mae
            words = f"{agreement.n} read, {agreement.failed} not"
            for name in ("mae", "pearson"):
                estimate = agreement.estimates[name]
                words += f", {name} {estimate.value or math.nan:.3f} {np.round(estimate.interval or [], 2)}"
            print(folder.name, way, words, file=sys.stderr)
    ratio = max((each["as learned"] or 0) / (each["critic judge, rounded"] or 1) for each in errors.values())
    print(json.dumps({"name": "client_agreement", "ratio": round(ratio, 3), "mae": errors}))


if __name__ == "__main__":
    typer.run(main)
