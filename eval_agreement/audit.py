"""critic audit: scores by judges and people -> samples -> findings -> a table, OUT/summary.json, OUT/report.html.

Steps: `reading` finds and joins the files. MEASURES or PREFERENCE_MEASURES (`measure_tables.py`) compute the findings
of each sample. `page` formats them. An `_audit_…` function does this for one kind of verdict and hands the
results to `_write`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct, convert, to_builtins
from msgspec.structs import asdict, replace

from critic import human_scored, jsonl, tables
from critic.certificate import Certificate, HowJudged, Labels, check_log, find_judged_file, is_certificate, name_audit
from critic.cli import takes_options
from critic.errors import UsageError, notify
from critic.page.blocks import Section
from critic.page.page import as_text
from critic.records import Judgment
from critic.stats.verdicts import UNASKED
from eval_agreement.measure_tables import MEASURES, PREFERENCE_MEASURES, preference_sections
from eval_agreement.measures import gate
from eval_agreement.measures.attacks import Looking
from eval_agreement.measures.calibration import check_unseen
from eval_agreement.measures.doubts import DOUBTS
from eval_agreement.measures.measure import Findings, RatedFindings, draw_parts, run_audit, written_values
from eval_agreement.measures.ppi import Savings, measure_savings
from eval_agreement.measures.preferences import PEOPLE
from eval_agreement.measures.two_judges import convert_both_ways, measure_change
from eval_agreement.metrics import Agreement
from eval_agreement.page import report
from eval_agreement.page.decision import Decision, decide_scores, decide_verdicts
from eval_agreement.page.scores import change_sections, exchange_sections, injection_part, looking_part, savings_part
from eval_agreement.page.words import build_sections, gate_part
from eval_agreement.reading import inputs
from eval_agreement.reading.tables import SCALE, Source, TableOptions
from eval_agreement.sample import EPSILON, AuditRequest, RatedSample

Files = Mapping[str, Source]
"""The file of each scorer, by the scorer's name."""

Tables = Mapping[str, tuple[Source, Files]]
"""By name of the sample: the file of people's scores, and the judges' files. A file of judgments holds both kinds of
scores; its judges' files are {}."""

_MANY: dict[tables.Kind, str] = {"preference": "preferences", "yes or no": "verdicts of yes or no"}
_GATED: dict[tables.Kind, Sequence[str]] = {"score": (), "preference": gate.PREFERENCES, "yes or no": gate.YES_OR_NO}


class AuditOptions(Struct, frozen=True, kw_only=True):
    """Options of `critic audit`.

    - judgments: FILE or NAME=FILE: judgments, a tool's results, or a table that holds people's scores.
    - out: Output folder for summary.json and report.html.
    - human: File of people's scores, preferences or verdicts.
    - judge: A judge's scores by id; repeatable, the first is audited.
    - scale: Scale of scores in tables; default: as found, else 1:10.
    - judge_scale: Scale of the judges' scores, if it differs.
    - train: Human-scored training rows to fit trivial judges on.
    - epsilon: Alternative annotator test: 0.2 experts, 0.15 skilled, 0.1 crowd.
    - within: Plan labels for a mean within ± this many points.
    - attacked: Judgments of rows from critic attack.
    - gates: Exit with 1 if a limit breaks: mae<=0.9,SAMPLE:failed<=0.02.
    - certificate: Write the findings to this file; critic judge refuses other judges. Of a log: compare it.
    - since: Earlier certificate or judged file; exit 1 if the judge changed or the model got worse.
    - looks: Planned number of audits with --since, which share 5 % of false alarms; 52 for weekly.
    - exchange: A retired judge's scores, to convert to --judge.
    - use_folds: Audit a recalibrated judge by maps fitted on other folds of these labels.
    - max_failed: Exit with 3 if a larger share failed.
    - columns: Meaning of a column: people, judge, id, model, text, …; of a number: a, b, tie.
    """

    judgments: Annotated[list[str] | None, typer.Argument()] = None
    out: Path = Path("runs/audit")
    human: Annotated[str | None, typer.Option(metavar="FILE[:COLUMN]")] = None
    judge: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE[:COLUMN]")] = None
    scale: Annotated[str | None, typer.Option(metavar="LOW:HIGH")] = None
    judge_scale: Annotated[str | None, typer.Option(metavar="LOW:HIGH")] = None
    train: Path | None = None
    epsilon: Annotated[float, typer.Option(min=0, max=0.99)] = EPSILON
    within: Annotated[float | None, typer.Option("--target-half-width", min=0.001, max=9)] = None
    attacked: list[Path] | None = None
    gates: Annotated[str | None, typer.Option("--gate", metavar="LIMITS")] = None
    certificate: Path | None = None
    since: Path | None = None
    looks: Annotated[int | None, typer.Option(min=1)] = None
    exchange: Annotated[str | None, typer.Option(metavar="NAME=FILE[:COLUMN]")] = None
    use_folds: Annotated[bool, typer.Option("--folds")] = False
    max_failed: Annotated[float, typer.Option(min=0, max=1)] = 0.02
    accepted: Annotated[
        list[str] | None,
        typer.Option("--accept", help=f"Decide in spite of a doubt about the files: {', '.join(DOUBTS)}."),
    ] = None
    columns: Annotated[list[str] | None, typer.Option("--map", metavar="COLUMN=FIELD")] = None

    def prepare(self, judges: Sequence[Source], judgments: Iterable[Judgment | None]) -> HowJudged | None:
        """Create the output folder, and return how the first judge was run, or None if no certificate is to be written.

        `judges`: the file of each sample's judge. `judgments`: the judgments of the first judge. Call this method
        before long computations.
        Raises UsageError if the judge cannot be certified, or if a log names another judge than the certificate.
        """
        # A tool's log does not say how its judge was asked, so it gets no certificate, but is held to one.
        logs = [judge for judge in judges if judge.answered_by is not None]
        if self.certificate and logs:
            for log in logs:
                print(check_log(self.certificate, log.path, log.answered_by or ()))
        how = HowJudged.of(filter(None, judgments), judges[0].path) if self.certificate and not logs else None
        self.out.mkdir(parents=True, exist_ok=True)
        return how

    def request(self) -> AuditRequest:
        """Return the options that measures and decisions depend on. Raises UsageError if --train has no usable row."""
        training = human_scored.load(self.train).responses if self.train else ()
        if self.train and not training:
            raise UsageError(f"{self.train}: no usable row to fit the baselines on")
        return convert({**asdict(self), "training": training, "accepted": self.accepted or ()}, AuditRequest)


@takes_options
def main(options: AuditOptions) -> int:
    """Measure how well a judge agrees with people, beside other judges, trivial judges and people themselves.

    Every figure has a 95 % confidence interval, computed over questions.

    \b
    critic audit --human people.csv --judge ours=ours.csv --judge gpt4=gpt4.csv
    critic audit internal=judged.jsonl --train train.jsonl --gate "mae<=0.9"
    critic audit --human people.csv --judge ours=judged_conversations.jsonl
    critic audit logs/run.eval --map metadata.human_score=people

    Exit codes: 0; 1 if a limit of --gate breaks or --since finds a change; 2 for a mistake; 3 if too many failed.
    """
    if options.judgments and (options.human or options.judge):
        raise UsageError("give files of judgments, or --human with --judge, not both")
    if unknown := set(options.accepted or []) - set(DOUBTS):
        raise UsageError(f"--accept {min(unknown)}: unknown; choose {', '.join(DOUBTS)}")
    if options.looks and not options.since:
        raise UsageError(f"--looks {options.looks} plans audits against an earlier one; name it with --since FILE")
    scale, judge_scale = options.scale, options.judge_scale
    ends = [human_scored.parse_scale(text) if text else None for text in (scale, judge_scale or scale)]
    mapped, codes = inputs.parse_map(options.columns or []), inputs.parse_codes(options.columns or [])
    given = TableOptions(mapped, codes, scales=(ends[0], ends[1]))
    files = inputs.name_files(options.judgments or [])
    fitted: dict[str, object] = {"--train": options.train, "--folds": options.use_folds}
    # A comparison of two judges needs no people, so the options about people are refused.
    if options.since or options.exchange:
        unused = {"--human": options.human, "--gate": options.gates, "--certificate": options.certificate, **fitted}
        unused |= {"--attacked": options.attacked, "--target-half-width": options.within}
        _refuse(unused, "two judges of the same answers")
        _refuse({"--map CODE=": codes}, "scores, which --since and --exchange compare")
        return _audit_two_judges(inputs.find_scores(_then_and_now(files, options, given)), options)
    scales: dict[str, object] = {"--scale": scale, "--judge-scale": judge_scale}
    kind, sources = _find_sources(files, given, *inputs.parse_sources(options.human, options.judge or [], given))
    # Judgments record themselves who scored what, and on which scale.
    if not all(judges_of for _, judges_of in sources.values()):
        _refuse({"--map": mapped or codes}, "files of judgments")
        _refuse(scales, "judgments, which are on {:g}:{:g}".format(*SCALE))
    limits = gate.parse(options.gates, _GATED[kind]) if options.gates is not None else []
    # Verdicts have no scale, and the trivial judges that are fitted on rows give scores.
    if kind != "score":
        _refuse({**fitted, "--attacked": options.attacked, **scales}, _MANY[kind])
        if options.within and options.within >= 1:
            problem = f"of {_MANY[kind]} it is that of a share, as in 0.05"
            raise UsageError(f"--target-half-width {options.within:g}: {problem}")
    request = options.request()
    if kind != "score":
        return _audit_labels(sources, kind, request, limits, options)
    return _audit_scores(_read_samples(sources, options.use_folds), request, limits, options)


def _refuse(options: Mapping[str, object], subject: str) -> None:
    """Raise UsageError if one of the options was given. `subject`: what is audited, for the message."""
    for option, value in options.items():
        if value:
            raise UsageError(f"{option} says nothing about {subject}")


def _find_sources(
    files: Mapping[str, Path], given: TableOptions, people: Source | None, judges: Files
) -> tuple[tables.Kind, Tables]:
    """Return the kind of verdicts, and for each sample the files of people and judges.

    `files`: files named as arguments. `people`, `judges`: files named by --human and --judge.
    If every file holds scores by people and by judges, each file is a sample. Otherwise people and judges are searched
    for in all files together. Files of judgments are samples of their own.
    """
    from eval_agreement.reading.loaders import find_kind  # noqa: PLC0415 - pandas: keeps --help fast

    try:
        each = {name: inputs.find_sources([path], given) for name, path in files.items() if len(files) > 1}
    except UsageError:
        # A file without people, or without judges, may belong to another file.
        each = {}
    # Only scores are audited file by file.
    by_file = {name: (match[1], match[2]) for name, match in each.items() if match and match[0] == "score"}
    if by_file and len(by_file) == len(files):
        return "score", by_file
    if files and (match := inputs.find_sources([*files.values()], given)):
        return match[0], {inputs.sample_name(match[1].path): (match[1], match[2])}
    sources: Tables = {name: (Source(path), {}) for name, path in files.items()}
    if people:
        sources = {inputs.sample_name(people.path): (people, judges)}
    kinds = (find_kind(rated) for rated, _ in sources.values())
    return next((kind for kind in kinds if kind != "score"), "score"), sources


def _read_samples(sources: Tables, use_folds: bool) -> list[tuple[RatedSample, Files]]:
    """Read the samples of scores, and return each with its files by scorer. `use_folds`: as in `check_unseen`.

    Raises UsageError if there is no sample, if rows are copies made by `critic attack`, if `use_folds` is set but no
    judge was recalibrated, and as `check_unseen` does.
    """
    from eval_agreement.reading.loaders import read_judgments, read_scores  # noqa: PLC0415 - pandas: keeps --help fast

    if not sources:
        raise UsageError("nothing to audit: give a file of judgments, or --human FILE and --judge NAME=FILE")
    samples: list[tuple[RatedSample, Files]] = []
    for name, (people, judges) in sources.items():
        if judges:
            samples.append((replace(read_scores(people, judges), name=name), {PEOPLE: people, **judges}))
        else:
            # A file of judgments holds a sample per criterion.
            samples += [(sample, {sample.judge: people}) for sample in read_judgments(name, people.path)]
    checked = []
    for sample, files in samples:
        inputs.check_no_attacks(sample.ids, next(iter(files.values())).path)
        judged = {name: file.path for name, file in files.items() if name != PEOPLE and file.content == "judgments"}
        checked.append((check_unseen(sample, judged, use_folds=use_folds), files))
    if use_folds and all(before is after for (before, _), (after, _) in zip(samples, checked, strict=True)):
        raise UsageError("--folds: no judge was recalibrated (critic judge --recalibrate)")
    return checked


def _audit_scores(
    samples: Sequence[tuple[RatedSample, Files]],
    request: AuditRequest,
    limits: Sequence[gate.Limit],
    options: AuditOptions,
) -> int:
    """Audit rating judges: compute every measure for each sample, then the gate, the label savings and the decisions.

    `limits`: the limits of the gate. Returns the exit code.
    """
    injections, looks = inputs.read_attacks(options.attacked or [])
    (first, first_files), *_ = samples
    judged = first_files[first.judge].path
    gate.check_samples(limits, [sample.name for sample, _ in samples])
    # The first sample's judge is the one that is certified, and under attack.
    how = options.prepare([files[sample.judge] for sample, files in samples], first.judgments)
    audits = {sample.name: run_audit(sample, request, MEASURES) for sample, _ in samples}
    agreements = {}
    for name, findings in audits.items():
        judge = findings.scorers.judge
        # The gate may limit the share of verdicts that change when the judge is asked again.
        agreements[name] = replace(judge, estimates={**judge.estimates, "changed": findings.repeats.changed})
    outcomes = gate.check(limits, agreements)
    certificate = None
    if how:
        labels = report.name_file(next(iter(first_files.values())).path)
        certified = Labels(**labels, rows=len(first.labelled.ids), raters=len(set[str]().union(*first.raters)))
        certificate = report.certify(how, judged, certified, agreements[first.name], outcomes, audits[first.name])
    savings = measure_savings(audits)
    decisions, verdicts = {}, {}
    for name, findings in audits.items():
        decisions[name] = decide_scores(name, findings, outcomes)
        verdicts[name] = [*decisions[name].judges, *decisions[name].steps]
    verdicts[first.name] += [injection.reading for injection in injections]
    verdicts[first.name] += [f"{path.stem}: {looking.reading}" for path, looking in looks.items()]
    # Without intervals nobody can be told which rows to leave to the judge.
    if lines := report.row_lines(audits):
        tables.write_csv(options.out / "rows.csv", lines)
    content = report.summarise(audits, MEASURES, outcomes)
    content |= {"injection": to_builtins(injections), "savings": to_builtins(savings)}
    if looks:
        content["looking"] = to_builtins(list(looks.values()))
    origin = {sample.name: report.sample_facts(sample, files, request.training) for sample, files in samples}
    parts = draw_parts(audits, MEASURES)
    parts["gate"] = [gate_part(outcomes)]
    parts["injection"] = list(map(injection_part, injections))
    parts["savings"] = [savings_part(savings)] if savings else []
    parts["looking"] = [looking_part(path, looking) for path, looking in looks.items()]
    parts["failures"] = [report.failures_part(name, findings.sample.labelled) for name, findings in audits.items()]
    sections = build_sections(parts)
    return _write(
        options,
        title=f"Audit of {first.judge}",
        certificate=certificate,
        outcomes=outcomes,
        content=content | {"provenance": report.provenance(origin, request)},
        verdicts=verdicts,
        sections=sections,
        printed=_list_printed(audits, sections, decisions, looks, savings),
        agreements=agreements,
        findings=audits,
        labels=[*zip(first.labelled.ids, first.labelled.human.tolist(), strict=True)],
    )


def _list_printed(
    audits: Mapping[str, RatedFindings],
    sections: Sequence[Section],
    decisions: Mapping[str, Decision],
    looks: Mapping[Path, Looking],
    savings: Savings | None,
) -> Iterator[str]:
    """Yield the lines for the terminal: scorers, models, notes on reading, decisions and savings."""
    yield report.text_table(audits)
    yield ""
    # Who is better is what most audits are made for; the other sections are on the page.
    for part in sections:
        if part.key == "models":
            yield f"{as_text([replace(part, note='')])}\n"
    for name, findings in audits.items():
        yield from (f"{name}: {note}" if len(audits) > 1 else note for note in findings.sample.notes)
    for name, decision in decisions.items():
        yield from (f"{name}: {sentence}" for sentence in decision.judges)
        if audits[name].repeats.times > 1:
            yield f"{name}: {audits[name].repeats.reading}"
    for path, looking in looks.items():
        yield f"{path}: {looking.reading}"
    if savings:
        yield savings.reading


def _audit_labels(
    sources: Tables, kind: tables.Kind, request: AuditRequest, limits: Sequence[gate.Limit], options: AuditOptions
) -> int:
    """Audit judges of preferences or of yes/no verdicts. Raises UsageError if there are several samples.

    `limits`: the limits of the gate. Returns the exit code.
    """
    from eval_agreement.reading.loaders import find_judge, read_labels  # noqa: PLC0415 - pandas: keeps --help fast

    # Pairs of several files have no ids in common, and nothing is pooled over preferences.
    if len(sources) > 1:
        raise UsageError("of preferences, or verdicts of yes or no, one file of judgments is audited at a time")
    ((name, (people, judges)),) = sources.items()
    files = judges or {find_judge(people.path)[0]: people}
    sample = read_labels(people, files, kind)
    inputs.check_no_attacks(sample.ids, people.path)
    judge, source = next(iter(files.items()))
    how = options.prepare([source], sample.judgments)
    audit = run_audit(sample, request, PREFERENCE_MEASURES)
    scorers = audit.scorers
    rates = {**scorers.rates.get(judge, {}), "changed": audit.repeats.changed}
    gated = gate.of_preferences(scorers.agreement[judge], scorers.groups, **rates)
    outcomes = gate.check(limits, {name: gated})
    labels = Labels(**report.name_file(people.path), rows=scorers.rated, raters=scorers.raters)
    decision = decide_verdicts(name, audit, outcomes)
    verdicts = [*decision.judges, *decision.steps]
    content = {name: written_values(audit, PREFERENCE_MEASURES)}
    facts = {
        "verdicts" if scorers.yes_or_no else "pairs": scorers.items,
        **report.file_facts({PEOPLE: people, **files}),
    }
    origin = report.provenance({name: facts})
    sections = preference_sections(name, audit, gate_part(outcomes))
    shown = [as_text([replace(part, note="")]) for part in sections if part.key == "rates"]
    return _write(
        options,
        title=f"Audit of {judge}",
        certificate=report.certify(how, source.path, labels, gated, outcomes, audit) if how else None,
        outcomes=outcomes,
        content=content | {"gate": report.gate_values(outcomes), "provenance": origin},
        verdicts={name: verdicts},
        sections=sections,
        findings={name: audit},
        printed=[*shown, *verdicts, *([audit.repeats.reading] if audit.repeats.times > 1 else []), *sample.notes],
        labels=[(key, int(code)) for key, code in zip(sample.ids, sample.verdict, strict=True) if code != UNASKED],
        agreements={name: gated},
    )


def _then_and_now(files: Mapping[str, Path], options: AuditOptions, given: TableOptions) -> Files:
    """Return the files of two judges by name, the earlier judge first. With --since its name is "then".

    `files`: files named as arguments; if there are none, --judge names the later judge.
    Raises UsageError unless exactly one of --since and --exchange is given, and exactly one later judge.
    """
    since, exchange = options.since, options.exchange
    judges = [f"{name}={path}" for name, path in files.items()] or options.judge or []
    # A certificate names the file of judgments that it was made from.
    before, then = "then", str(find_judged_file(since) if since and is_certificate(since) else since)
    # A retired judge has a name of its own, under which its scores are shown.
    if exchange:
        ((before, _),) = inputs.parse_judges([exchange], "--exchange").items()
        then = exchange.partition("=")[2]
    old, new = inputs.parse_sources(then, judges, given)
    if not old or len(new) != 1 or before in new or (since and exchange):
        raise UsageError("--since FILE, or --exchange NAME=FILE, takes one other judge: FILE, or --judge NAME=FILE")
    return {before: old, **new}


def _audit_two_judges(files: Files, options: AuditOptions) -> int:
    """Compare two judges without people's labels, and return the exit code.

    `files`: the earlier and the later judge's file, by name. If the earlier name is "then" (--since), a change is
    measured, and the code is 1 unless it `holds` (`Change`). Otherwise scores are converted, and the code is 0.
    """
    from eval_agreement.reading.loaders import read_two_judges  # noqa: PLC0415 - pandas: keeps --help fast

    before, name = files
    sample = read_two_judges(files[before], files[name], name)
    change = measure_change(sample, options.looks) if before == "then" else None
    conversions = [] if change else convert_both_ways(sample, (before, name))
    means = [conversion.reading for conversion in conversions]
    options.prepare([files[name]], [])
    sections = change_sections(name, change) if change else exchange_sections(conversions)
    notes = [*_routing_notes(files), *sample.notes]
    origin = report.provenance({name: report.file_facts(files)})
    _write(
        options,
        title=f"{name} after {before}",
        content={name: to_builtins(change or conversions), "provenance": origin},
        verdicts={name: [change.reading if change else means[0], *notes]},
        sections=sections,
        printed=[*means, as_text([replace(part, note="") for part in sections]), *notes],
        about="Two judges",
    )
    return 0 if change is None or change.holds else 1


def _routing_notes(files: Files) -> list[str]:
    """Return a list with one note if the endpoint now answers with another model than before (--since), else [].

    Another model is a possible reason for a change of the scores.
    """
    before, name = files
    was, now = (jsonl.facts(source.path).get("answered_by", []) for source in files.values())
    if before != "then" or not was or not now or was == now:
        return []
    return [f"{name}: answered as {', '.join(was)} then, as {', '.join(now)} now"]


def _write(
    options: AuditOptions,
    content: Mapping[str, Any],
    printed: Iterable[str],
    *,
    certificate: Certificate | None = None,
    outcomes: Sequence[gate.Outcome] = (),
    agreements: Mapping[str, Agreement] = {},
    findings: Mapping[str, Findings[Any]] = {},
    labels: Sequence[tuple[str, float]] = (),
    **page: Any,
) -> int:
    """Write the results, print them and the outcomes of the gate, and return the exit code.

    - content: values of summary.json. printed: lines for the terminal.
    - certificate: the certificate to write, to which the number of the audit is added; None if none is wanted.
    - outcomes: results of the gate.
    - agreements: the judge's agreement by sample; items that it was not asked about count as failed.
    - findings: by sample, for the answers on the page. labels: id and label of each labelled answer, for the ledger.
    - page: title, verdicts (sentences by sample), sections and about, as `report.write` takes them.

    The code is 1 if a limit of the gate is broken. Otherwise it is 3 if the share of failures in a sample is too large,
    and 0 if not. The reason is printed to standard error.
    """
    # Absolute paths would say where the user works, and differ between machines.
    jsonl.write_json(options.out / "summary.json", jsonl.hide_places(content, options.out))
    report_path = report.write(options.out, content["provenance"], findings, **page)
    print(*printed, sep="\n", end="\n\n")
    # A ledger that cannot be written must not cost the other results.
    number = report.count_audits(options.out, labels) if labels else 1
    if number > 1:
        print(f"This is the {name_audit(number)}.")
    if options.certificate and certificate:
        jsonl.write_json(options.certificate, to_builtins(replace(certificate, audits=number)))
    for outcome in outcomes:
        (print if outcome.holds else notify)(f"gate: {outcome.text}")
    print(options.out / "summary.json", report_path, sep="\n")
    exit_code = 0
    for name, judge in agreements.items():
        total = judge.n + judge.failed
        if judge.failed > options.max_failed * total:
            notify(f"{name}: {judge.failed} of {total} failed, more than {options.max_failed:.1%}")
            exit_code = 3
    # A broken gate is the worse news.
    return exit_code if all(outcome.holds for outcome in outcomes) else 1
