"""critic run: a benchmark's file, a model and a judge -> the benchmark's scores, in one command that can be resumed.

critic run convbench ConvBench.csv --model http://a:8000/v1 --judge runs/judge --as published --out runs/convbench
critic run alignmmbench metadata.jsonl --model runs/vlm --judge http://b:8000/v1 --out runs/alignmmbench
"""

import shutil
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import asdict, replace

from critic import benchmarks
from critic.errors import UsageError, notify
from critic.judging.assignments import VerdictPlan
from critic.judging.transcripts import Pair, Transcript
from critic.stages import infer, options, score
from critic.stages.judge_conversations import judge_conversations, plan_verdicts, prepare_judge, say_calls


@options.takes_common
def main(
    benchmark: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(benchmarks.BENCHMARKS)}.")],
    benchmark_file: Annotated[Path, typer.Argument(metavar="FILE", help="The benchmark's published file.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="Under test: URL, URL#MODEL or FOLDER (vLLM here).")],
    judged_by: Annotated[str, typer.Option("--judge", metavar="JUDGE", help="URL, URL#MODEL or FOLDER (vLLM here).")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for all results; rerun to resume.")],
    endpoint: options.Endpoint,
    asked: options.ModelOptions,
    how: options.JudgeOptions,
    reply_tokens: Annotated[int, typer.Option(min=1, help="Longest reply of the model, in tokens.")] = 1024,
    verdict_tokens: Annotated[int | None, typer.Option(min=8, help="Longest verdict, in tokens.")] = None,
) -> int:
    """Run a model through a benchmark, judge its replies and score them, as critic infer, judge and score do in
    turn."""
    replies, judged = out / "replies.jsonl", out / "judged.jsonl"
    how = replace(how, judge=[judged_by], max_tokens=verdict_tokens)
    asked = replace(asked, max_tokens=reply_tokens)
    # Whatever a later stage would refuse is refused here, before hours of inference.
    questions = infer.read_questions(benchmark_file, benchmark, endpoint, asked)
    pairs = list[Pair]()
    for conversation, condition in product(questions.conversations, questions.conditions):
        pairs.append((Transcript(conversation=conversation, condition=condition, system="", turns={}), None))
    plan = replace(plan_verdicts(how, benchmark), pairs=pairs)
    judge = prepare_judge(endpoint, how, plan, benchmark_file, questions.root, questions.uris)
    say_calls(plan, judge.setup)
    _check_room(plan, out.absolute())
    notify(f"1/3 infer: {benchmark} by {model}")
    model_options = asdict(replace(endpoint, model=model)) | asdict(asked)
    code = infer.main(benchmark_file, benchmark, replies, **model_options)
    # Judging a file that mostly failed would cost calls for nothing.
    if code:
        return code
    notify(f"2/3 judge: by {judged_by}")
    code = judge_conversations(endpoint.run_options(judged), endpoint, how, [replies], benchmark, benchmark_file)
    notify("3/3 score")
    # Coverage is of the whole benchmark, unless only a part was asked.
    published_file = benchmark_file if asked.limit is None else None
    scored = score.main(
        [judged], benchmark, published_file, out=out / "score", prices=endpoint.prices, max_failed=endpoint.max_failed
    )
    return scored or code


def _check_room(plan: VerdictPlan, out: Path) -> None:
    """Raise UsageError if the disk that holds `out` has too little space for the records of a run.

    The estimate is three copies of the conversation per verdict: in the reply's record, in the verdict's record, and in
    the judge's prompt.
    """
    bytes_of = {pair[0].conversation.id: len(msgspec.json.encode(pair[0].conversation)) for pair in plan.pairs}
    needed = 3 * sum(bytes_of[conversation_id] for _, conversation_id, *_ in plan.wanted())
    folder = next(folder for folder in (out, *out.parents) if folder.is_dir())
    # A run that is resumed has written a part of them.
    room = shutil.disk_usage(folder).free + sum(file.stat().st_size for file in out.glob("*.jsonl"))
    if room < needed:
        raise UsageError(f"{folder}: {room / 1e6:.0f} MB free, and the records take about {needed / 1e6:.0f} MB")
