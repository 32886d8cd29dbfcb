"""critic run: a benchmark's file, a model and a judge -> the benchmark's scores, in one command that goes on.

critic run convbench ConvBench.csv --model http://a:8000/v1 --judge runs/judge --as published --out runs/convbench
critic run alignmmbench metadata.jsonl --model runs/vlm --judge http://b:8000/v1 --out runs/alignmmbench
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from critic import benchmarks
from critic.stages import options


def main(
    benchmark: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(benchmarks.BENCHMARKS)}.")],
    benchmark_file: Annotated[Path, typer.Argument(metavar="FILE", help="The benchmark's published file.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="Under test: URL, URL#MODEL, FOLDER (vLLM in here).")],
    judged_by: Annotated[str, typer.Option("--judge", metavar="JUDGE", help="URL, URL#MODEL, FOLDER (vLLM in here).")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Replies, judgments and scores. Run again to resume.")],
    published: Annotated[
        Literal["published"] | None, typer.Option("--as", help="The paper's conditions, protocols and judge settings.")
    ] = None,
    condition: Annotated[list[str] | None, typer.Option(help="As of critic infer.")] = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the records.", show_default="its own")] = None,
    data_root: options.DataRoot = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first conversations.")] = None,
    reply_tokens: Annotated[int, typer.Option(min=1, help="Longest reply of the model.")] = 1024,
    verdict_tokens: Annotated[int | None, typer.Option(min=8, help="Longest verdict, as of critic judge.")] = None,
    force_form: Annotated[bool, typer.Option("--force-form", help="As of critic judge.")] = False,
    api_key: options.ApiKey = None,
    concurrency: options.Concurrency = None,
    max_failed: options.MaxFailed = options.MAX_FAILED,
    retry_failed: options.RetryFailed = False,
) -> int:
    """Run a model through a benchmark, judge its replies and score them: critic infer, judge and score in turn."""
    replies, judged = out / "replies.jsonl", out / "judged.jsonl"
    asking = {
        "api_key": api_key,
        "data_root": data_root,
        "concurrency": concurrency,
        "max_failed": max_failed,
        "retry_failed": retry_failed,
    }
    print(f"1/3 infer: {benchmark} by {model}", file=sys.stderr)
    code: int = import_module("critic.stages.infer").main(
        benchmark_file,
        benchmark,
        replies,
        name=name,
        condition=condition,
        published=published,
        max_tokens=reply_tokens,
        limit=limit,
        model=model,
        **asking,
    )
    if code:  # judging what is missing for the most part would be paid for in vain
        return code
    print(f"2/3 judge: by {judged_by}", file=sys.stderr)
    code = import_module("critic.stages.judge").main(
        replies,
        judged,
        benchmark=benchmark,
        judge=[judged_by],
        published=published,
        max_tokens=verdict_tokens,
        force_form=force_form,
        **asking,
    )
    print("3/3 score", file=sys.stderr)
    questions = benchmark_file if limit is None else None
    score = import_module("critic.stages.score").main
    scored: int = score([judged], benchmark, questions, out=out / "score", max_failed=max_failed)
    return scored or code
