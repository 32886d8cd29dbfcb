"""Read files of judgments into the runs that `critic score` compares, and check that they fit together.

A run holds the verdicts on one model by one judge in one setup.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from critic import benchmarks, jsonl, tables
from critic.benchmarks import Run, Runs
from critic.errors import UsageError, quoted, replace_surrogates
from critic.images import name_images
from critic.judging.forms import BY_NAME
from critic.records import Conversation, JudgeConfig, Judgment, describe_difference, is_judgment

OF_SINGLE_ANSWERS = "alignmmbench"
"""The benchmark whose scores are computed from judgments of single answers, which name no benchmark."""

Judged = dict[str, tuple[Conversation, Path]]
"""Conversation id -> the judged conversation, and the first file that contains it."""


def read_runs(paths: Sequence[Path], benchmark: str | None = None, questions: Path | None = None) -> Runs:
    """Read files of judgments; return the runs to score and the conversations of the benchmark.

    `benchmark`: name of the benchmark; None for the one that the first file names.
    `questions`: the benchmark's file; None for only the judged conversations.

    Raises UsageError if a file belongs to another benchmark, holds several models or judges, or is given twice. Also
    raises it if a conversation differs between two files.
    """
    name = benchmark or _find_benchmark(paths[0])
    chosen = benchmarks.load(name)
    times = Counter(map(jsonl.identify, paths))
    for path in paths:
        if times[jsonl.identify(path)] > 1:
            raise UsageError(f"{path}: given twice, by this name or another")
    judged: Judged = {}
    runs = list[Run]()
    for path in paths:
        runs += _read_file(path, name, judged)
    conversations = _find_asked(judged, name, questions)
    return Runs(name=name, benchmark=chosen, runs=_name_apart(_join(runs)), conversations=conversations)


def _find_benchmark(path: Path) -> str:
    """Return the benchmark that the first judgment in a file names. Raises UsageError if the file holds something
    else."""
    first = tables.read_first_row(path)
    # If the file cannot be read, its reader says why.
    if first is not None and not is_judgment(first):
        raise UsageError(
            f"{path}: no judgments; `critic judge {path} --benchmark NAME --questions FILE` makes them of replies"
        )
    _, judgment = next(jsonl.read(path, Judgment))
    # Answers from rows have no benchmark.
    return judgment.conversation.benchmark or OF_SINGLE_ANSWERS


def _read_file(path: Path, benchmark: str, judged: Judged) -> list[Run]:
    """Return the runs in a file: one, or one per model if the file holds comparisons among several models.

    The file's conversations are added to `judged`, so that each is in memory only once. Raises UsageError if a
    conversation differs from an earlier file's, or if the file holds several models or judges without comparing them.
    """
    by_model: dict[str, list[Judgment]] = {}
    lines: dict[str, dict[JudgeConfig, int]] = {}
    for number, line in jsonl.read(path, Judgment):
        judgment = _make_scorable(line, path, number, benchmark)
        conversation, _ = judged.setdefault(judgment.sample.id, (judgment.conversation, path))
        if conversation != judgment.conversation:
            raise UsageError(f"{path}:{number}: conversation {quoted(judgment.sample.id)} reads otherwise than before")
        lines.setdefault(judgment.system, {}).setdefault(judgment.setup, number)
        judgment = replace(judgment, sample=replace(judgment.sample, conversation=conversation))
        by_model.setdefault(judgment.system, []).append(judgment)
    # Only a file of battles may hold several models: each verdict there concerns two.
    if len(by_model) > 1 and None in {judgment.opponent for verdicts in by_model.values() for judgment in verdicts}:
        raise _refuse_several(path, "models", by_model)
    return [_check_run(path, system, verdicts, lines[system]) for system, verdicts in by_model.items()]


def _make_scorable(line: Judgment, path: Path, number: int, benchmark: str) -> Judgment:
    """Return a judgment in the form in which it is scored.

    A judgment of a single row's answer gets the benchmark AlignMMBench, and the protocol on whose scale its form is
    scored. Raises UsageError, naming file and line number, if the judgment belongs to another benchmark.
    """
    judged_benchmark = line.conversation.benchmark or OF_SINGLE_ANSWERS
    if judged_benchmark != benchmark:
        raise UsageError(f"{path}:{number}: judges {judged_benchmark}, expected {benchmark}")
    if line.protocol is not None:
        return line
    # Answers to one question are told apart by their own ids.
    conversation = replace(line.conversation, id=line.sample.id, benchmark=judged_benchmark)
    sample = replace(line.sample, conversation=conversation, system=line.sample.system or replace_surrogates(path.stem))
    # Yes/no verdicts and textual comparisons are on the scale of checklists. An unknown form counts as a rating.
    form = BY_NAME.get(find_form(line.prompt))
    scored_as = form.kind.scored_as if form is not None else "pointwise"
    return replace(line, sample=sample, protocol=scored_as if line.opponent is None else "pairwise")


def find_form(prompt: str) -> str:
    """Return the name of the form in a judgment's `prompt`. Earlier versions wrote the form's file and language
    there."""
    return prompt.rpartition("/")[2].partition("@")[0]


def _check_run(path: Path, system: str, verdicts: list[Judgment], lines: Mapping[JudgeConfig, int]) -> Run:
    """Return the run of one model's verdicts. Raises UsageError if they are by several judges, or in several setups.

    `lines` maps each setup in the model's verdicts to the number of the first line that has it.
    """
    setup, *others = lines
    if len(judges := {setup.judge for setup in lines}) > 1:
        raise _refuse_several(path, "judges", judges)
    if others:
        how = describe_difference(setup, others[0], "here")
        raise UsageError(f"{path}:{lines[others[0]]}: {how}; one of each in a file")
    # A file of comparisons between two models is named by both, unless it has verdicts on the reference as well.
    opponents = sorted({judgment.opponent or "" for judgment in verdicts})
    against = " and ".join(opponents) if len(opponents) < 3 else f"{len(opponents)} models"
    name = system if "" in opponents else f"{system} against {against}"
    return Run(name=name, path=path, system=system, judge=setup.judge, setup=setup, turns=verdicts)


def _refuse_several(path: Path, kind: str, names: Iterable[str]) -> UsageError:
    """Return the error for a file that holds several models or judges (`kind`) with these names."""
    return UsageError(f"{path}: several {kind} ({', '.join(sorted(names))}); one of each in a file")


def _join(runs: Iterable[Run]) -> list[Run]:
    """Merge runs with the same model, judge and setup. Runs that contain the same verdict are not merged."""
    joined = list[Run]()
    for run in runs:
        verdicts = {judgment.key for judgment in run.turns}
        for index, earlier in enumerate(joined):
            same = (earlier.name, earlier.judge, earlier.setup) == (run.name, run.judge, run.setup)
            # A verdict that lies in two files may differ between them, so neither file can stand for both.
            if same and verdicts.isdisjoint(judgment.key for judgment in earlier.turns):
                joined[index] = replace(earlier, turns=[*earlier.turns, *run.turns])
                break
        else:
            joined.append(run)
    return joined


def _name_apart(runs: Sequence[Run]) -> list[Run]:
    """Return the runs under unique names.

    A run is named after its model. Runs that share a name also get the judge's name, and if they still share it, the
    name of their file.
    """
    runs = _lengthen_names(runs, lambda run: f"{run.name} by {run.judge}")
    stems = {run.path.stem for run in runs}
    # Files of one name lie in several folders.
    ambiguous = len(stems) < len(runs)
    return _lengthen_names(runs, lambda run: f"{run.name} ({run.path if ambiguous else run.path.stem})")


def _lengthen_names(runs: Sequence[Run], longer: Callable[[Run], str]) -> list[Run]:
    """Return the runs, replacing each name that several runs have by `longer(run)`."""
    shared = Counter(run.name for run in runs)
    return [replace(run, name=longer(run)) if shared[run.name] > 1 else run for run in runs]


def _find_asked(judged: Judged, benchmark: str, questions: Path | None) -> list[Conversation]:
    """Return the benchmark's conversations: all in the file `questions`, or the judged ones if it is None.

    Raises UsageError if a judged conversation is missing or different in `questions`.
    """
    if questions is None:
        return [conversation for conversation, _ in judged.values()]
    published, _ = name_images(benchmarks.read(benchmark, questions))
    benchmarks.check_asked(questions, published, judged.values())
    return published
