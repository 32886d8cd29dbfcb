"""critic judge: responses -> judgments, by one judge or a panel.

critic judge rows.jsonl --judge runs/demo/judge --out judged.jsonl
critic judge rows.jsonl --judge http://a:8000/v1 --judge gpt.jsonl --out panel.jsonl
critic judge replies.jsonl --benchmark convbench --as published --out judged.jsonl
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict, replace

from critic import human_scored
from critic.benchmarks import BENCHMARKS
from critic.cli import takes_options
from critic.errors import UsageError
from critic.judging.transcripts import benchmark_of
from critic.stages import options
from critic.stages.gpus import on_gpus
from critic.stages.judge_conversations import judge_conversations
from critic.stages.judge_responses import judge_rows
from critic.stages.run import check_plain

DEFAULT_URL = "http://127.0.0.1:8000/v1"


@on_gpus
@takes_options
def main(
    responses: Annotated[Path, typer.Argument(metavar="RESPONSES", help="Scored rows, or replies to a benchmark.")],
    out: Annotated[Path, options.data(metavar="FILE", help="Output file; rerun to resume.", callback=check_plain)],
    how: options.JudgeOptions,
    endpoint: options.Endpoint,
    questions: Annotated[Path | None, options.data(metavar="FILE", help="The benchmark's published file.")] = None,
    benchmark: Annotated[str | None, options.data(metavar="NAME", help=f"{', '.join(BENCHMARKS)}.")] = None,
) -> int:
    """Score responses with a judge or a panel. With --benchmark, judge a benchmark's replies by its protocols."""
    # AlignMMBench's answers name no benchmark, but come with its questions.
    named = benchmark or (None if how.mapped else benchmark_of(responses, questions))
    benchmark = named or ("alignmmbench" if questions else None)
    run = endpoint.run_options(out, how.certificate, how.recalibrate)
    # `critic serve` listens there.
    if not (how.judge or endpoint.base_url):
        endpoint = replace(endpoint, base_url=DEFAULT_URL)
    if how.repeat > 1 and endpoint.cache is not None:
        raise UsageError(f"--repeat {how.repeat} asks anew, where --cache would repeat what it holds: leave out one")
    is_panel = len(how.judge or []) > 1
    if how.aggregate != "mean" and not is_panel:
        raise UsageError(f"--aggregate {how.aggregate} makes one score of those of several --judge")
    # Rows have neither turns nor other models.
    if benchmark is None:
        given = asdict(how) | {"as published": how.published}
        _refuse("without --benchmark", {name: given[name] for name in options.NAMES["of_conversations"]})
        own = human_scored.OwnColumns.parse(how.mapped, how.scale, how.lang)
        return judge_rows(run, endpoint, how, responses, own, how.aggregate)
    _refuse("with --benchmark", {"map": how.mapped, "scale": how.scale, "lang": how.lang})
    # A panel makes one score of ratings; verdicts on conversations are of several kinds.
    if is_panel:
        raise UsageError("several --judge cannot be used with --benchmark")
    return judge_conversations(run, endpoint, how, [responses, *(how.against or [])], benchmark, questions)


def _refuse(where: str, options_given: dict[str, Any]) -> None:
    """Raise UsageError for the first of the options (name -> value) that is set; `where` says why it cannot be used."""
    for option, value in options_given.items():
        if value:
            raise UsageError(f"--{option.replace('_', '-')} cannot be used {where}")
