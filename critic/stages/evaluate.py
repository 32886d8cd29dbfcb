"""critic run: a benchmark's file, a model and a judge -> the benchmark's scores, in one command that can be resumed.

critic run convbench ConvBench.csv --model http://a:8000/v1 --judge runs/judge --as published --out runs/convbench
critic run alignmmbench metadata.jsonl --model runs/vlm --judge http://b:8000/v1 --out runs/alignmmbench
"""

import shutil
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import asdict, replace

from critic import benchmarks
from critic.errors import UsageError
from critic.judging.assignments import VerdictPlan
from critic.judging.transcripts import Pair, Transcript
from critic.stages import infer, options, score
from critic.stages.judge_conversations import choose_protocols, judge_conversations, prepare_judge, say_calls
from critic.stages.options import Endpoint, JudgeOptions

COMMON = (
    *("api_key", "data_root", "concurrency", "max_failed", "retry_failed", "cache", "budget", "attempts", "timeout"),
    *("max_image_pixels", "max_image_bytes"),
    *("images", "prompt", "published", "protocol", "score", "no_reason", "force_form", "judging"),
)
"""The options that critic run takes from critic infer and critic judge, as they are defined there."""


@partial(options.takes_options, names=COMMON)
def main(
    benchmark: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(benchmarks.BENCHMARKS)}.")],
    benchmark_file: Annotated[Path, typer.Argument(metavar="FILE", help="The benchmark's published file.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="Under test: URL, URL#MODEL, FOLDER (vLLM in here).")],
    judged_by: Annotated[str, typer.Option("--judge", metavar="JUDGE", help="URL, URL#MODEL, FOLDER (vLLM in here).")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Replies, judgments and scores. Run again to resume.")],
    endpoint: Endpoint,
    how: JudgeOptions,
    condition: options.Conditions = None,
    name: options.SystemName = None,
    limit: options.Limit = None,
    reply_tokens: Annotated[int, typer.Option(min=1, help="Longest reply of the model.")] = 1024,
    verdict_tokens: Annotated[int | None, typer.Option(min=8, help="Longest verdict, as of critic judge.")] = None,
) -> int:
    """Run a model through a benchmark, judge its replies and score them: critic infer, judge and score in turn."""
    replies, judged = out / "replies.jsonl", out / "judged.jsonl"
    how = replace(how, judge=[judged_by], max_tokens=verdict_tokens)
    # Whatever a later stage would refuse is refused here, before hours of inference.
    questions = infer.read_questions(benchmark_file, benchmark, endpoint, condition, how.published, limit)
    pairs = list[Pair]()
    for conversation in questions.conversations:
        for name_of_condition in questions.conditions:
            blank = Transcript(conversation=conversation, condition=name_of_condition, system="", turns={})
            pairs.append((blank, None))
    chosen = choose_protocols(how, benchmark)
    judge, plan = prepare_judge(endpoint, how, benchmark, chosen, pairs, benchmark_file, questions.root, questions.uris)
    say_calls(plan, benchmark, judge.setup)
    _check_room(plan, [replies, judged])
    print(f"1/3 infer: {benchmark} by {model}", file=sys.stderr)
    code = infer.main(
        benchmark_file,
        benchmark,
        replies,
        name=name,
        condition=condition,
        published=how.published,
        max_tokens=reply_tokens,
        limit=limit,
        **asdict(replace(endpoint, model=model)),
    )
    if code:  # judging what is missing for the most part would be paid for in vain
        return code
    print(f"2/3 judge: by {judged_by}", file=sys.stderr)
    code = judge_conversations(endpoint.run_options(judged), endpoint, how, replies, benchmark, benchmark_file)
    print("3/3 score", file=sys.stderr)
    published_file = benchmark_file if limit is None else None
    scored = score.main([judged], benchmark, published_file, out=out / "score", max_failed=endpoint.max_failed)
    return scored or code


def _check_room(plan: VerdictPlan, files: Iterable[Path]) -> None:
    """Raise UsageError if the disk has less room than the records take.

    Each record holds its conversation, and that of a verdict also what the judge is shown.
    """
    bytes_of = {pair[0].conversation.id: len(msgspec.json.encode(pair[0].conversation)) for pair in plan.pairs}
    needed = sum(len(transcript.asked) * bytes_of[transcript.conversation.id] for transcript, _ in plan.pairs)
    needed += sum(2 * bytes_of[conversation_id] for _, conversation_id, *_ in plan.wanted())
    folder = next(folder for folder in next(iter(files)).absolute().parents if folder.is_dir())
    room = shutil.disk_usage(folder).free
    for file in files:
        # A run that is resumed has written a part of them.
        room += file.stat().st_size if file.is_file() else 0
    if room < needed:
        raise UsageError(
            f"{folder}: {room / 1e6:.0f} MB free, and replies and judgments take {needed / 1e6:.0f} MB or more"
        )
