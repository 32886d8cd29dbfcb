"""critic audit: how far a judge's scores can be trusted -> a table, OUT/summary.json, OUT/report.html."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace

from critic import human_scored, jsonl, tables
from critic.certificate import HowJudged, find_judged_file, is_certificate
from critic.errors import UsageError
from critic.page.blocks import Section, as_text
from critic.records import Judgment
from critic.stats.estimate import Estimate
from eval_agreement.measures import gate
from eval_agreement.measures.analysis import AuditRequest, Findings, run_audit
from eval_agreement.measures.image_grounding import Looking
from eval_agreement.measures.injection import Injection
from eval_agreement.measures.preferences import PEOPLE, preference_audit
from eval_agreement.measures.raters import EPSILON
from eval_agreement.measures.savings import Savings, savings
from eval_agreement.measures.two_judges import both_ways, change
from eval_agreement.page import report
from eval_agreement.page.decision import preference_verdict, verdict
from eval_agreement.page.preferences import preference_sections
from eval_agreement.page.scores import change_sections, exchange_sections, models_of, sections
from eval_agreement.page.summary import (
    as_lines,
    facts_of,
    files_of,
    how_judged,
    provenance,
    row_lines,
    summary,
    table,
    write_certificate,
)
from eval_agreement.page.words import gate_sections
from eval_agreement.reading import inputs
from eval_agreement.reading.audit_items import Kind, read_items
from eval_agreement.reading.tables import SCALE, Source
from eval_agreement.sample import RatedSample

_SCALE = "{:g}:{:g}".format(*SCALE)

Files = Mapping[str, Source]
"""Who is in which file."""

Tables = Mapping[str, tuple[Source, Files]]
"""People and judges of each sample; of judgments no judges, who stand in the same file."""

_MANY: dict[Kind, str] = {"preference": "preferences", "yes or no": "verdicts of yes or no"}
_GATED: dict[Kind, Sequence[str]] = {"score": (), "preference": gate.PREFERENCES, "yes or no": gate.YES_OR_NO}


class _Target(Struct, frozen=True, kw_only=True):
    """Where an audit goes, and by what it is decided."""

    out: Path
    limits: Sequence[gate.Limit]
    max_failed: float
    certificate: Path | None

    def prepare(self, judged: Path, judgments: Iterable[Judgment | None]) -> HowJudged | None:
        """Make the folder before anything takes long; how the judge was asked, to be certified. Raises UsageError."""
        how = how_judged(judged, judgments) if self.certificate else None
        self.out.mkdir(parents=True, exist_ok=True)
        return how


class _Audited(Struct, frozen=True, kw_only=True):
    """What is to be written and said of an audit: `failed` verdicts of each sample, and all; `certified`, the judged
    file, people's with the labels and raters in it, and how far both agree."""

    title: str
    content: dict[str, Any]
    verdicts: Mapping[str, list[str]]
    sections: Sequence[Section]
    printed: Sequence[str]
    about: str = "How far a judge can stand in for people"
    how: HowJudged | None = None
    certified: tuple[Path, tuple[Path, int, int], Mapping[str, Estimate]] | None = None
    outcomes: Sequence[gate.Outcome] = ()
    failed: Mapping[str, tuple[int, int]] = {}
    findings: Mapping[str, Findings] = {}


def main(
    judgments: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=FILE or FILE: judgments, a tool's results or a table, with people's scores inside."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for summary.json and report.html.")] = Path("runs/audit"),
    human: Annotated[
        str | None,
        typer.Option(metavar="FILE[:COLUMN]", help="People's scores, preferences or verdicts; judged conversations."),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE[:COLUMN]", help="Scores of the same ids; repeatable, the first is audited."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="LOW:HIGH", help="The scale of scores in tables, 1:10 unless it is found.")
    ] = None,
    judge_scale: Annotated[
        str | None, typer.Option(metavar="LOW:HIGH", help="That of the judges', if another.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="Human-scored training rows, to fit trivial judges on.")] = None,
    epsilon: Annotated[
        float, typer.Option(min=0, max=0.99, help="Alternative annotator test: 0.2 experts, 0.15 skilled, 0.1 crowd.")
    ] = EPSILON,
    within: Annotated[
        float | None,
        typer.Option("--target-half-width", min=0.001, max=9, help="Plan labels for a mean within ± so many points."),
    ] = None,
    attacked: Annotated[list[Path] | None, typer.Option(help="Judgments of the rows that critic attack made.")] = None,
    gates: Annotated[
        str | None,
        typer.Option("--gate", metavar="LIMITS", help="Exit with 1 where not kept: mae<=0.9,SAMPLE:failed<=0.02."),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="Write what was found, for critic judge to hold to.")] = None,
    since: Annotated[
        Path | None,
        typer.Option(help="An earlier certificate or judged file: exit 1 where the judge changed or the model fell."),
    ] = None,
    exchange: Annotated[
        str | None,
        typer.Option(metavar="NAME=FILE[:COLUMN]", help="A retired judge's scores, to move onto --judge's scale."),
    ] = None,
    max_failed: Annotated[float, typer.Option(min=0, max=1, help="Exit with 3 where more of a sample failed.")] = 0.02,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="COLUMN=FIELD", help="What a column is: people, judge, id, model, text, …; a number: a, b."
        ),
    ] = None,
) -> int:
    """How well a judge agrees with people, with 95 % intervals, beside other judges, trivial judges and people.

    \b
    critic audit --human people.csv --judge ours=ours.csv --judge gpt4=gpt4.csv
    critic audit internal=judged.jsonl --train train.jsonl --gate "mae<=0.9"
    critic audit --human people.csv --judge ours=judged_conversations.jsonl
    critic audit logs/run.eval --map metadata.human_score=people

    Exit codes: 0; 1 when the gate is not kept, or --since finds a change; 2 for a mistake; 3 when too many failed.
    """
    if judgments and (human or judge):
        raise UsageError("give files of judgments, or --human with --judge, not both")
    target = _Target(out=out, limits=[], max_failed=max_failed, certificate=certificate)
    mapped = inputs.parse_map(columns or [])
    codes = inputs.parse_codes(columns or [])
    on = [human_scored.parse_scale(text) if text else None for text in (scale, judge_scale or scale)]
    files = inputs.named_files(judgments or [])
    if since or exchange:
        unused: dict[str, object] = {"--human": human, "--gate": gates, "--certificate": certificate, "--train": train}
        _refuse({**unused, "--attacked": attacked, "--target-half-width": within}, "two judges of the same answers")
        _refuse({"--map CODE=": codes}, "scores, which --since and --exchange compare")
        named = [f"{name}={path}" for name, path in files.items()]
        then_and_now = _then_and_now(since, exchange, named or judge or [], mapped, on)
        return _two_judges(inputs.of_judges(then_and_now, mapped), target)
    scales: dict[str, object] = {"--scale": scale, "--judge-scale": judge_scale}
    people, judges = inputs.parse_sources(human, judge or [], mapped, on, codes)
    kind, read = _tables(files, partial(inputs.found_sources, mapped=mapped, scales=on, codes=codes), people, judges)
    if not all(sources for _, sources in read.values()):
        _refuse({"--map": mapped or codes}, "files of judgments")
        _refuse(scales, f"judgments, which are on {_SCALE}")
    target = replace(target, limits=gate.parse(gates, _GATED[kind]) if gates is not None else [])
    if kind != "score":
        _refuse({"--train": train, "--attacked": attacked, **scales}, _MANY[kind])
        if within and within >= 1:
            raise UsageError(f"--target-half-width {within:g}: of {_MANY[kind]} it is that of a share, as in 0.05")
        request = AuditRequest(epsilon=epsilon, within=within)
        return _write(_audit_labels(read, kind, request, target), target)
    samples = _samples(read)
    training = human_scored.load(train).responses if train else []
    if train and not training:
        raise UsageError(f"{train}: no usable row to fit the baselines on")
    request = AuditRequest(training=training, epsilon=epsilon, within=within)
    return _write(_audit_scores(samples, request, train, inputs.attacks_of(attacked or []), target), target)


def _then_and_now(
    since: Path | None, exchange: str | None, judges: Sequence[str], mapped: Mapping[str, str], scales: inputs.Scales
) -> Files:
    """The judge before, called "then" where it is the same, and the one after it. Raises UsageError."""
    before, then = "then", str(find_judged_file(since) if since and is_certificate(since) else since)
    if exchange:
        ((before, _),) = inputs.parse_judges([exchange], "--exchange").items()
        then = exchange.partition("=")[2]
    old, new = inputs.parse_sources(then, judges, mapped, scales)
    if not old or len(new) != 1 or before in new or (since and exchange):
        raise UsageError("--since FILE, or --exchange NAME=FILE, takes one other judge: FILE, or --judge NAME=FILE")
    return {before: old, **new}


def _two_judges(files: Files, target: _Target) -> int:
    """A judge after another one, or after itself ("then"), without labels of people; the exit code."""
    from eval_agreement.reading.loaders import of_two_judges  # noqa: PLC0415 - pandas: keeps --help fast

    before, name = files
    sample = of_two_judges(files[before], files[name], name)
    difference = change(sample) if before == "then" else None
    converted = [] if difference else both_ways(sample, (before, name))
    target.prepare(files[name].path, [])
    shown = change_sections(name, difference) if difference else exchange_sections(converted)
    was, now = (jsonl.facts(files[who].path).get("answered_by", []) for who in (before, name))
    changed = was and now and was != now and before == "then"
    routed = [f"{name}: answered as {', '.join(was)} then, as {', '.join(now)} now"] if changed else []
    notes = [*routed, *sample.notes]
    readings = [difference.reading if difference else converted[0].reading, *notes]
    origin = provenance({name: files_of(files)})
    audited = _Audited(
        title=f"{name} after {before}",
        content={name: msgspec.to_builtins(difference or converted), "provenance": origin},
        verdicts={name: readings},
        sections=shown,
        printed=[as_text([replace(part, note="") for part in shown]), *notes],
        about="Two judges",
    )
    _write(audited, target)
    return 0 if difference is None or difference.holds else 1


def _refuse(options: Mapping[str, object], subject: str) -> None:
    """Raises UsageError for the first option that was given."""
    for option, value in options.items():
        if value:
            raise UsageError(f"{option} says nothing about {subject}")


def _tables(
    files: Mapping[str, Path],
    find: Callable[[Mapping[str, Path]], tuple[Kind, Source, Files] | None],
    people: Source | None,
    judges: Files,
) -> tuple[Kind, Tables]:
    """The kind of verdicts, with the sources of people and judges by sample: those that are named or, in files that are
    no judgments, found: of each file where each holds scores of both, else of all together."""
    from eval_agreement.reading.loaders import kind_of  # noqa: PLC0415 - pandas: keeps --help fast

    try:
        alone = {name: find({name: path}) for name, path in files.items()} if len(files) > 1 else {}
    except UsageError:
        alone = {}
    by_file = {name: (match[1], match[2]) for name, match in alone.items() if match and match[0] == "score"}
    if by_file and len(by_file) == len(files):
        return "score", by_file
    if files and (match := find(files)):
        return match[0], {inputs.sample_name(match[1].path): (match[1], match[2])}
    read: Tables = {name: (Source(path), {}) for name, path in files.items()}
    if people:
        read = {inputs.sample_name(people.path): (people, judges)}
    return next((kind for rated, _ in read.values() if (kind := kind_of(rated)) != "score"), "score"), read


def _samples(read: Tables) -> list[tuple[RatedSample, Files]]:
    """The samples that the command line names, files of judgments or tables, with their files. Raises UsageError."""
    from eval_agreement.reading.loaders import of_judgments, of_tables  # noqa: PLC0415 - pandas: keeps --help fast

    if not read:
        raise UsageError("nothing to audit: give a file of judgments, or --human FILE and --judge NAME=FILE")
    samples: list[tuple[RatedSample, Files]] = []
    for name, (people, judges) in read.items():
        if judges:
            samples.append((replace(of_tables(people, judges), name=name), {PEOPLE: people, **judges}))
        else:
            samples += [(sample, {sample.judge: people}) for sample in of_judgments(name, people.path)]
    for sample, sources in samples:
        inputs.check_no_attacks(sample.ids, next(iter(sources.values())).path)
    return samples


def _audit_scores(
    samples: Sequence[tuple[RatedSample, Files]],
    request: AuditRequest,
    train: Path | None,
    attacked: tuple[list[Injection], dict[Path, Looking]],
    target: _Target,
) -> _Audited:
    injections, looks = attacked
    (first, first_files), *_ = samples
    rated = [sample for sample, _ in samples]
    judged = first_files[first.judge].path
    gate.check_samples(target.limits, [sample.name for sample in rated])
    how = target.prepare(judged, first.judgments)
    audits = {sample.name: run_audit(sample, request) for sample in rated}
    outcomes = gate.check(target.limits, {name: findings.judge for name, findings in audits.items()})
    content = summary(audits, outcomes) | {"injection": msgspec.to_builtins(injections)}
    content |= {"looking": msgspec.to_builtins(list(looks.values()))} if looks else {}
    saved = savings(audits)
    content["savings"] = msgspec.to_builtins(saved)
    verdicts = {name: verdict(name, findings, outcomes, target.max_failed) for name, findings in audits.items()}
    verdicts[first.name] += [attacks.reading for attacks in injections]
    verdicts[first.name] += [f"{path.stem}: {looking.reading}" for path, looking in looks.items()]
    if lines := row_lines(rated, audits):
        tables.write_csv(target.out / "rows.csv", lines)
    raters = set[str]().union(*first.raters)
    origin = {sample.name: facts_of(sample, files, request.training) for sample, files in samples}
    labelled = next(iter(first_files.values())).path, len(first.labelled.ids), len(raters)
    return _Audited(
        title=f"Audit of {first.judge}",
        how=how,
        certified=(judged, labelled, audits[first.name].judge.estimates),
        outcomes=outcomes,
        content=content | {"provenance": provenance(origin, train, request.training)},
        verdicts=verdicts,
        sections=sections(audits, outcomes, injections, looks, saved),
        printed=[table(audits), "", *_lines(rated, audits, verdicts, looks, saved)],
        failed={name: (audit.judge.failed, audit.judge.n + audit.judge.failed) for name, audit in audits.items()},
        findings=audits,
    )


def _lines(
    samples: Sequence[RatedSample],
    audits: Mapping[str, Findings],
    verdicts: Mapping[str, Sequence[str]],
    looks: Mapping[Path, Looking],
    saved: Savings | None,
) -> Iterator[str]:
    """The models, what was left out on reading, the decisions, and what is saved over all."""
    yield from (as_text([replace(section, note="")]) + "\n" for section in models_of(audits))
    for sample in samples:
        yield from (f"{sample.name}: {note}" if len(samples) > 1 else note for note in sample.notes)
    yield from (f"{name}: {sentences[0]}" for name, sentences in verdicts.items())
    yield from (f"{path}: {looking.reading}" for path, looking in looks.items())
    if saved:
        yield saved.reading


def _audit_labels(read: Tables, kind: Kind, request: AuditRequest, target: _Target) -> _Audited:
    """An audit of preferences, or of yes and no."""
    from eval_agreement.reading.loaders import judge_in, of_labels  # noqa: PLC0415 - pandas: keeps --help fast

    if len(read) > 1:
        raise UsageError("of preferences, or verdicts of yes or no, one file of judgments is audited at a time")
    ((name, (people, judges)),) = read.items()
    sources = judges or {judge_in(people.path)[0]: people}
    sample = of_labels(people, sources, kind)
    inputs.check_no_attacks(sample.ids, people.path)
    judge, source = next(iter(sources.items()))
    items = read_items(source) if source.content == "judgments" else ()
    how = target.prepare(source.path, (item.judgment for item in items if item.kind == kind))
    audit = preference_audit(sample, request.epsilon)
    result = audit.agreement[judge]
    held = gate.of_preferences(result, audit.groups, **audit.rates.get(judge, {}))
    outcomes = gate.check(target.limits, {name: held})
    verdicts = preference_verdict(name, audit, outcomes, target.max_failed, request.within)
    facts = {"verdicts" if audit.yes_or_no else "pairs": audit.items, **files_of({PEOPLE: people, **sources})}
    agreement = {name: getattr(result, name) for name in ("accuracy", "decided", "kappa")}
    return _Audited(
        title=f"Audit of {judge}",
        how=how,
        certified=(source.path, (people.path, audit.rated, audit.raters), agreement),
        outcomes=outcomes,
        content={name: msgspec.to_builtins(audit), "gate": as_lines(outcomes), "provenance": provenance({name: facts})},
        verdicts={name: verdicts},
        sections=[*preference_sections(name, audit), *gate_sections(outcomes)],
        printed=[*verdicts, *audit.notes],
        failed={name: (result.failed + result.unasked, result.n + result.failed + result.unasked)},
    )


def _write(audited: _Audited, target: _Target) -> int:
    """Write what was found, say it, how the gate stands and where everything is; the exit code: 1 when a limit is not
    kept, 3 when more than the allowed share of a sample has no score, else 0; why is said on standard error."""
    outcomes, origin = audited.outcomes, jsonl.hide_places(audited.content["provenance"], target.out)
    if target.certificate and audited.how and audited.certified:
        write_certificate(target.certificate, audited.how, *audited.certified, outcomes)
    jsonl.write_json(target.out / "summary.json", jsonl.hide_places(audited.content, target.out))
    shown = audited.verdicts, audited.sections, origin, audited.findings
    page = report.write(target.out, audited.title, *shown, audited.about)
    print(*audited.printed, sep="\n", end="\n\n")
    for outcome in outcomes:
        print(f"gate: {outcome.text}", file=sys.stdout if outcome.holds else sys.stderr)
    print(target.out / "summary.json", page, sep="\n")
    too_many = {name: counts for name, counts in audited.failed.items() if counts[0] > target.max_failed * counts[1]}
    for name, (count, total) in too_many.items():
        print(f"{name}: {count} of {total} failed, more than {target.max_failed:.1%}", file=sys.stderr)
    if not all(outcome.holds for outcome in outcomes):
        return 1
    return 3 if too_many else 0
