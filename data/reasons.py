"""Generate reasons for human scores, so that forms with the reason first can be trained on rows without reasons.

    python data/reasons.py rows.jsonl --judge runs/judge --out with-reasons.jsonl

As in `critic judge`, a generative judge replies several times to each row without a reason. Of these replies, the one
whose rating is nearest to the human score is kept if the two differ by at most --band (rejection sampling: STaR, arXiv
2203.14465, §3.1).
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from critic import human_scored, jsonl
from critic.cli import run_program, takes_options
from critic.records import Judgment
from critic.stages.options import Endpoint, Temperature, check, root_of


def choose_reasons(judgments: Iterable[Judgment], band: float) -> dict[str, str]:
    """Return the best reason of each row, by row id. Ids of `judgments` are ROW#NUMBER.

    The best one has the rating nearest to the human score. A row has none if no rating is within `band` points (on
    1..10).
    """
    samples = [
        (abs(judgment.verdict.rating - judgment.sample.human.score), judgment.sample.id, judgment.verdict.reason)
        for judgment in judgments
        if judgment.sample.human and judgment.verdict.rating and judgment.verdict.reason
    ]
    # Sorted from far to near, so that the nearest sample of a row overwrites the others.
    return {name.rpartition("#")[0]: reason for points, name, reason in sorted(samples, reverse=True) if points <= band}


@partial(takes_options, names={*Endpoint.__struct_fields__} - {"shard", "gpus"})
def main(
    rows: Path,
    out: Annotated[Path, typer.Option()],
    endpoint: Endpoint,
    judge: list[str] | None = None,
    samples: Annotated[int, typer.Option(min=1)] = 4,
    band: Annotated[float, typer.Option(min=0)] = 1.0,
    temperature: Temperature = 0.8,
    force_form: Annotated[bool, typer.Option("--force-form")] = False,
) -> int:
    """Generate reasons with a judge, and keep those whose rating is close to the human score.
    \f
    - rows: Human-scored rows.
    - out: Rows with reasons (.jsonl); all replies are saved next to it.
    - judge: Judge, as for critic judge: FOLDER, URL or replies.jsonl.
    - samples: Replies per row.
    - band: Most points (on 1..10) between rating and human score.
    - force_form: Use the form even if the judge was not trained on it.
    """
    from critic.stages import judge as judging  # noqa: PLC0415 - whose chain of imports is long

    loaded = human_scored.load(rows, pictures=True)
    lacking = {response.id for response in loaded.responses if response.human and not response.human.reason}
    check((lacking, f"{rows}: none of {len(loaded.rows)} rows has a score and no reason"))
    by_id = {row.id: raw for row, raw in zip(loaded.rows, loaded.raw, strict=True)}
    requests, sampled = (out.with_suffix(f".{name}.jsonl") for name in ("asked", "samples"))
    copies = [(raw, f"{row}#{n}") for row, raw in by_id.items() if row in lacking for n in range(samples)]
    jsonl.write(requests, ({**raw, "id": name} for raw, name in copies))
    how = asdict(endpoint) | {"data_root": endpoint.data_root or root_of(rows), "temperature": temperature}
    how |= {"prompt": "pointwise_reason_first", "score": "argmax", "force_form": force_form}
    code = judging.main(requests, sampled, judge=judge, **how)
    reasons = choose_reasons((judgment for _, judgment in jsonl.read(sampled, Judgment)), band)
    check((reasons, f"{sampled}: no reply has a reason and a rating within {band:g} of people's; widen --band"))
    added = {row: {"reason": reason, "reason_by": jsonl.facts(sampled).get("judge")} for row, reason in reasons.items()}
    jsonl.write(out, ({**raw, **added.get(row, {})} for row, raw in by_id.items()))
    human_scored.say_left_out(loaded.left_out)
    print(f"{out}: {len(added)} of {len(lacking)} rows got a reason whose rating is within {band:g} of people's score")
    return code


if __name__ == "__main__":
    run_program(main)
