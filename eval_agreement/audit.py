"""critic audit: how far a judge's scores can be trusted -> a table, OUT/summary.json, OUT/report.md, OUT/report.html.

critic audit internal=internal.jsonl external=external.jsonl --train train.jsonl --out runs/audit
critic audit --human people.csv --judge ours=ours.csv --judge gpt4=gpt4.csv --out runs/audit
"""

import json
import math
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from tqdm import tqdm

from critic import human_scored, jsonl
from critic.counting.resampling import LEVEL, MANY_GROUPS, RESAMPLES, RESAMPLES_OF_MANY, SEED
from critic.errors import UsageError
from critic.records import Judgment, Response
from eval_agreement import gate
from eval_agreement.analysis import STEPS, Asked, Findings, Kind, examine
from eval_agreement.baselines import BASELINES
from eval_agreement.compare import MARGINS
from eval_agreement.injection import Injection, injection
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.page.decision import attack_verdict, verdict
from eval_agreement.page.preferences import preference_sections, preference_verdict
from eval_agreement.page.scores import sections
from eval_agreement.page.words import gate_sections
from eval_agreement.preferences import PEOPLE, preference_audit
from eval_agreement.raters import EPSILON
from eval_agreement.sample import Sample
from eval_agreement.sources import of_judgments, of_preferences, of_tables, states_preferences
from eval_agreement.tables import Scale, Source

RESERVED = ("baselines", "gate", "injection", "judges", "people", "provenance")
"""Keys of summary.json beside the names of the samples."""

DETAILS = ("comparisons", "over_trivial", "raters", "replaces", "biases", "calibration", "corrected", "plan")
"""Findings that stand in summary.json as they are."""

_MARGINS = ",".join(f"{metric}={value:g}" for metric, value in MARGINS.items())


class Inputs(Struct, frozen=True):
    """The samples of an audit by name, and the files that each was read from."""

    samples: dict[str, Sample]
    files: dict[str, dict[str, Path]]


def main(
    judgments: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=FILE or FILE (named by its stem): judgments of human-scored answers."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for summary.json, report.md and report.html.")] = Path("runs/audit"),
    human: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:COLUMN]",
            help="People's scores (id, score[, rater, group, …]) or preferences between two answers "
            "(id, preference: a, b or tie): CSV, JSONL or Parquet.",
        ),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE[:COLUMN]",
            help="A judge's scores of the same ids: a table with id, score, or judgments. Repeatable; "
            "the first is the one under audit.",
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(metavar="LOW:HIGH", help="The scale of the scores in tables; results are in points on 1..10.")
    ] = "1:10",
    judge_scale: Annotated[
        str | None, typer.Option(metavar="LOW:HIGH", help="That of the judges', if another.", show_default=False)
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="The judge's human-scored training rows; trivial judges are fitted on them.")
    ] = None,
    margin: Annotated[
        str, typer.Option(metavar="METRIC=NUMBER,…", help="By how much a judge may be worse and still be as good.")
    ] = _MARGINS,
    own: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JUDGE=ANSWERER", help="An answerer of the judge's own family: is it favoured? Repeatable."
        ),
    ] = None,
    epsilon: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="Alternative annotator test: 0.2 for experts, 0.15 skilled, 0.1 crowd."),
    ] = EPSILON,
    within: Annotated[
        float | None,
        typer.Option(min=0.001, max=9, help="Plan: how many human labels for a mean score within ± this many points?"),
    ] = None,
    attacked: Annotated[
        list[Path] | None, typer.Option(help="Judgments of the rows that critic attack made. Repeatable.")
    ] = None,
    gates: Annotated[
        str | None,
        typer.Option(
            "--gate",
            metavar="LIMITS",
            help="Limits on the judge, as in mae<=0.9,pearson>=0.8,failed<=0.02 (or internal:mae<=0.9): "
            "exit with 1 where the 95 % interval does not keep them.",
        ),
    ] = None,
    loss: Annotated[Path | None, typer.Option(help='Training log (JSONL, {"step": …, "loss": …}) to draw.')] = None,
    title: Annotated[str, typer.Option(help="Title of the report.")] = "Audit of {judge}",
    max_failed: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a larger share of any sample failed.")
    ] = 0.02,
) -> int:
    """How well a judge agrees with people, with 95 % intervals, beside other judges, trivial judges and people.

    \b
    Columns of tables; all but id and score (or preference) may be missing:
      people  id, score or preference (a, b, tie), rater, group (question or image),
              task, category, lang, turn, system (who answered), length or text
              (of pairs: length_a, length_b or text_a, text_b)
      judges  id, score or preference, first (which answer was shown first: a, b)

    \b
    critic audit --human people.csv --judge ours=ours.csv --judge gpt4=gpt4.csv
    critic audit internal=judged.jsonl --train train.jsonl --gate "mae<=0.9"

    Exit codes: 0; 1 when the gate is not kept; 2 for a mistake; 3 when too many judgments failed.
    """
    from eval_agreement.page import report  # noqa: PLC0415 - keeps --help fast
    from eval_agreement.page.pictures import read_loss  # noqa: PLC0415

    if human and states_preferences(Source.parse(human)):
        for option, given in {
            "--train": train,
            "--own": own,
            "--within": within,
            "--attacked": attacked,
            "--loss": loss,
        }.items():
            if given:
                raise UsageError(f"{option} says nothing about preferences; {human} holds preferences")
        return _of_preferences(human, judge or [], out, gates, title, max_failed)
    limits = [] if gates is None else gate.parse(gates)
    margins = parse_margins(margin)
    people_scale = parse_scale(scale)
    inputs = read(judgments or [], human, judge or [], people_scale, parse_scale(judge_scale or scale))
    steps = list(read_loss(loss)) if loss else []
    training = human_scored.load(train).responses if train else []
    if train and not training:
        raise UsageError(f"{train}: no usable row to fit the baselines on")
    injections = [attacks_of(path) for path in attacked or []]
    families = parse_own(own or [], inputs.samples.values())
    asked = Asked(training=training, margins=margins, own=families, epsilon=epsilon, within=within)
    first = next(iter(inputs.samples.values()))
    found = {}
    with tqdm(total=STEPS * len(inputs.samples), desc="audit", unit="step", leave=False, delay=2) as bar:
        for name, sample in inputs.samples.items():
            found[name] = examine(sample, asked, None if sample is first else first, bar.update)
    outcomes = gate.check(limits, {name: gate.of_scores(findings.judge) for name, findings in found.items()})
    origin = provenance(inputs, train, training)

    verdicts = {name: verdict(name, findings, outcomes, max_failed) for name, findings in found.items()}
    verdicts[first.name] += [attack_verdict(injected) for injected in injections]
    content = {**summary(found, outcomes), "injection": msgspec.to_builtins(injections), "provenance": origin}
    jsonl.write_json(out / "summary.json", content)
    pages = report.write(
        out,
        title.replace("{judge}", first.judge),
        verdicts,
        sections(found, outcomes, injections),
        origin,
        {name: findings.sample for name, findings in found.items()},
        steps,
    )
    print(table(found))
    print("", *(f"{name}: {sentences[0]}" for name, sentences in verdicts.items()), sep="\n")
    return _finish(outcomes, [out / "summary.json", *pages], _failed(found), max_failed)


def _of_preferences(
    human: str, judges: Sequence[str], out: Path, gates: str | None, title: str, max_failed: float
) -> int:
    from eval_agreement.page import report  # noqa: PLC0415 - keeps --help fast

    limits = [] if gates is None else gate.parse(gates, gate.PREFERENCES)
    people, sources = Source.parse(human), parse_judges(judges)
    sample = sample_name(people.path)
    found = preference_audit(of_preferences(people, sources))
    name, result = next(iter(found.agreement.items()))
    outcomes = gate.check(limits, {sample: gate.of_preferences(result, found.groups)})
    paths = {PEOPLE: people.path, **{judge: source.path for judge, source in sources.items()}}
    origin = {"samples": {sample: {"pairs": found.items, **files_of(paths)}}, "train": None, **made_by()}
    shown = [*preference_sections(sample, found), *gate_sections(outcomes)]
    verdicts = {sample: preference_verdict(sample, found, outcomes, max_failed)}
    pages = report.write(out, title.replace("{judge}", name), verdicts, shown, origin, {})
    content = {sample: msgspec.to_builtins(found), "gate": as_lines(outcomes), "provenance": origin}
    jsonl.write_json(out / "summary.json", content)
    print("\n".join(verdicts[sample]))
    failed = {sample: (result.failed + result.unasked, result.n + result.failed + result.unasked)}
    return _finish(outcomes, [out / "summary.json", *pages], failed, max_failed)


def parse_scale(text: str) -> Scale:
    """LOW:HIGH. Raises UsageError."""
    try:
        low, high = (float(end) for end in text.split(":"))
    except ValueError:
        raise UsageError(f"--scale {text!r}: expected LOW:HIGH, as in 1:5") from None
    if not low < high < math.inf or low == -math.inf:
        raise UsageError(f"--scale {text!r}: {low:g} is not below {high:g}, or one of them is not finite")
    return low, high


def parse_margins(text: str) -> dict[str, float]:
    """METRIC=NUMBER, separated by commas. Raises UsageError."""
    margins = {}
    for part in text.split(","):
        metric, _, value = part.partition("=")
        if metric.strip() not in METRICS:
            raise UsageError(f"--margin {part!r}: expected METRIC=NUMBER with a metric of {', '.join(METRICS)}")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise UsageError(f"--margin {part!r}: {value!r} is not a number from 0 up")
        margins[metric.strip()] = number
    return margins


def read(
    judgments: Sequence[str], human: str | None, judges: Sequence[str], scale: Scale, judge_scale: Scale
) -> Inputs:
    """The samples that the command line names: files of judgments, or tables. Raises UsageError."""
    if judgments and (human or judges):
        raise UsageError("give files of judgments, or --human with --judge, not both")
    if judgments:
        files = named_files(judgments)
        samples = {name: of_judgments(name, path) for name, path in files.items()}
        return Inputs(samples, {name: {samples[name].judge: path} for name, path in files.items()})
    if not human or not judges:
        raise UsageError("nothing to audit: give a file of judgments, or --human FILE and --judge NAME=FILE")
    people, sources = Source.parse(human), parse_judges(judges)
    if taken := sorted(BASELINES.keys() & sources.keys()):
        raise UsageError(f"--judge {taken[0]}: a trivial judge is called that; name yours otherwise")
    sample = of_tables(people, sources, scale, judge_scale)
    sample = replace(sample, name=sample_name(people.path))
    paths = {"people": people.path, **{name: source.path for name, source in sources.items()}}
    return Inputs({sample.name: sample}, {sample.name: paths})


def sample_name(path: Path) -> str:
    """A file's stem; its whole name where summary.json has another use for the stem."""
    return path.name if path.stem in RESERVED else path.stem


def parse_judges(texts: Iterable[str]) -> dict[str, Source]:
    """NAME=FILE[:COLUMN] -> sources by judge. Raises UsageError."""
    sources: dict[str, Source] = {}
    for text in texts:
        name, separator, file = text.partition("=")
        if not separator or not name or not file or name in sources:
            raise UsageError(f"--judge {text!r}: expected NAME=FILE[:COLUMN], each name once")
        sources[name] = Source.parse(file)
    if not sources:
        raise UsageError("no judge to audit: give --judge NAME=FILE")
    return sources


def parse_own(texts: Iterable[str], samples: Iterable[Sample]) -> dict[str, list[str]]:
    """JUDGE=ANSWERER -> answerers by judge. Raises UsageError for a judge or an answerer that is not there."""
    given = list(samples)
    judges = {judge for sample in given for judge in sample.judges}
    answerers = {name for sample in given for name in sample.parts.get("answerer", ()) if name}
    families: dict[str, list[str]] = {}
    for text in texts:
        judge, _, answerer = text.partition("=")
        for name, there, what in ((judge, judges, "judge"), (answerer, answerers, "answerer")):
            if name not in there:
                raise UsageError(f"--own {text!r}: no {what} {name!r}; there are {', '.join(sorted(there)) or 'none'}")
        families.setdefault(judge, []).append(answerer)
    return families


def attacks_of(path: Path) -> Injection:
    """What the attacks in a file of judgments do. Raises UsageError naming the file."""
    try:
        return injection([judgment for _, judgment in jsonl.read(path, Judgment)])
    except UsageError as error:
        raise UsageError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def named_files(arguments: Iterable[str]) -> dict[str, Path]:
    """NAME=FILE or FILE -> files by sample name, in the order given."""
    files: dict[str, Path] = {}
    for argument in arguments:
        name, separator, file = argument.partition("=")
        if not separator or Path(argument).is_file():
            name, file = Path(argument).stem, argument
        if not name or not file:
            raise UsageError(f"{argument!r}: expected NAME=FILE or FILE")
        if name in RESERVED:
            raise UsageError(f"{argument!r}: a sample cannot be called {name}; reserved: {', '.join(RESERVED)}")
        if name in files:
            raise UsageError(f"{argument!r}: the sample {name} is given twice; name them, as in NAME=FILE")
        files[name] = Path(file)
    return files


def provenance(inputs: Inputs, train: Path | None, training: list[Response]) -> dict[str, Any]:
    """What the numbers were made from. `in_training` counts rows of a sample whose response is also in the
    training file, `question_in_training` those whose question or image (group) is."""
    ids = {response.id for response in training}
    groups = {response.question.group for response in training}
    described: dict[str, Any] = {}
    for name, sample in inputs.samples.items():
        facts: dict[str, Any] = {"rows": len(sample.ids), "notes": sample.notes, **files_of(inputs.files[name])}
        for key in ("judge", "prompt", "prompt_hash", "score_kind"):
            if sample.judgments:
                facts[key] = ", ".join(sorted({getattr(judgment, key) for judgment in sample.judgments if judgment}))
        if train:
            facts["in_training"] = sum(key in ids for key in sample.ids)
            facts["question_in_training"] = sum(group in groups for group in sample.group)
        described[name] = facts
    return {
        "samples": described,
        "train": train
        and {
            "file": str(train),
            "sha256": jsonl.sha256(train) if train.is_file() else None,
            "rows": len(training),
            "run": run_facts(train),
        },
        **made_by(),
    }


def files_of(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Who is in which file, its hash, and what made it."""
    return {
        "files": {who: {"file": str(path), "sha256": jsonl.sha256(path)} for who, path in paths.items()},
        "runs": {who: run_facts(path) for who, path in paths.items()},
    }


def made_by() -> dict[str, Any]:
    """How this audit makes intervals, and with what."""
    method = "percentile bootstrap over groups, widened for few groups"
    resamples = {"resamples": RESAMPLES, f"resamples_above_{MANY_GROUPS}_groups": RESAMPLES_OF_MANY}
    versions = {name: version(name) for name in ("critic", "numpy", "scipy", "scikit-learn", "mapie", "sacrebleu")}
    return {
        "interval": {"level": LEVEL, "method": method, **resamples, "seed": SEED},
        "versions": {"python": platform.python_version()} | versions,
    }


def run_facts(path: Path) -> Any:
    """The content of a file's sidecar; None where it has none."""
    sidecar = jsonl.sidecar(path)
    if not sidecar.is_file():
        return None
    try:
        return json.loads(sidecar.read_text("utf-8"))
    except ValueError:
        raise UsageError(f"{sidecar}: not JSON; delete it if it is left over") from None


def summary(found: Mapping[str, Findings], outcomes: Sequence[gate.Outcome]) -> dict[str, Any]:
    """The audit as JSON values: None where a metric is undefined, never NaN."""
    result: dict[str, Any] = {}
    for name, findings in found.items():
        parts = {
            part: {value: as_json(agreed) for value, agreed in values.items()} for part, values in findings.by.items()
        }
        result[name] = as_json(findings.judge) | {
            "unlabelled": findings.unlabelled,
            "by": parts,
            **{name: msgspec.to_builtins(getattr(findings, name)) for name in DETAILS},
        }
    kinds: dict[str, Kind] = {"baselines": "baseline", "judges": "other"}
    for section, kind in kinds.items():
        result[section] = {}
        for name, findings in found.items():
            for line in findings.of(kind):
                result[section].setdefault(line.name, {})[name] = as_json(line.result)
    result["people"] = {
        name: as_json(line.result) for name, findings in found.items() for line in findings.of("people")[:1]
    }
    result["gate"] = as_lines(outcomes)
    return result


def as_lines(outcomes: Iterable[gate.Outcome]) -> list[dict[str, Any]]:
    return [{"text": outcome.text, "holds": outcome.holds, "bound": outcome.bound} for outcome in outcomes]


def as_json(result: Agreement) -> dict[str, Any]:
    total = result.n + result.failed
    values = {name: one.value for name, one in result.estimates.items()}
    about = {"undefined": result.undefined, "interval": result.interval, "groups": result.groups}
    return {"n": result.n, "failed": result.failed, **values, **about, "coverage": result.n / total}


def table(found: Mapping[str, Findings]) -> str:
    """The lines of the audit as aligned plain text, a block a sample."""
    head = ["judge", "n", "failed", *(metric.name for metric in METRICS.values())]
    blocks = []
    for name, findings in found.items():
        rows = [head, *(cells(line.name, line.result) for line in findings.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        total = len(findings.sample.ids)
        blocks.append("\n".join([f"{name}: {total} rows, {findings.judge.n / total:.1%} judged", *text]))
    return "\n\n".join(blocks)


def cells(name: str, result: Agreement) -> list[str]:
    """A line of the table; MAE and Pearson with their intervals."""
    texts = [name, str(result.n), str(result.failed)]
    for metric, one in result.estimates.items():
        text = "-" if one.value is None else f"{round(one.value, 3) + 0.0:.3f}"
        if one.interval and metric in ("mae", "pearson"):
            text += f" [{one.interval[0]:.2f}, {one.interval[1]:.2f}]"
        texts.append(text)
    return texts


def _failed(found: Mapping[str, Findings]) -> dict[str, tuple[int, int]]:
    return {name: (findings.judge.failed, findings.judge.n + findings.judge.failed) for name, findings in found.items()}


def _finish(
    outcomes: Sequence[gate.Outcome], written: Sequence[Path], failed: Mapping[str, tuple[int, int]], most: float
) -> int:
    """Say how the gate stands and where everything is; the exit code.

    1 when a limit is not kept, 3 when more than the share `most` of a sample (failed, of all) has no score, else 0,
    with the lines that say why on standard error.
    """
    print()
    for outcome in outcomes:
        print(f"gate: {outcome.text}", file=sys.stdout if outcome.holds else sys.stderr)
    print(*written, sep="\n")
    too_many = [name for name, (count, total) in failed.items() if count > most * total]
    for name in too_many:
        count, total = failed[name]
        print(f"{name}: {count} of {total} failed, more than {most:.1%}", file=sys.stderr)
    if not all(outcome.holds for outcome in outcomes):
        return 1
    return 3 if too_many else 0
