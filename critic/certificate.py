"""A judge's certificate: the results of an audit, and everything that must stay the same for them to hold.

`critic audit --certificate` writes one; `critic judge --certificate` and `serve/judge.py --certificate` check it.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from critic import jsonl
from critic.errors import UsageError, quoted
from critic.records import JudgeConfig, Judgment
from critic.stats.estimate import Estimate

QUOTED = ("mae", "pearson", "accuracy", "kappa")
"""Measures of agreement in the line to quote, if they were measured."""


class HowJudged(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The judge that an audit measured, and how its verdicts were requested.

    `judge`: its name with a hash of its weights (NAME@HASH); for a panel, `members` lists the members' names.
    `prompts`: prompt hash -> prompt name.
    `setup`: how verdicts were sampled and scored (`select_sampling`).
    `processors`: model name -> hash of its tokenizer, chat template and image processor.
    `learned`: the prompt forms that the judge was trained in; empty if unknown. "head" stands for a scoring head.
    `answered_by`: the model names that the replies report.
    """

    judge: str
    members: list[str] = field(default_factory=list)
    prompts: dict[str, str]
    setup: dict[str, Any]
    processors: dict[str, str] = field(default_factory=dict)
    learned: list[str] = field(default_factory=list)
    answered_by: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, judgments: Iterable[Judgment], processors: Mapping[str, str]) -> "HowJudged":
        """Return how the judgments were made; all must share one judge and one setup.

        `processors` maps model names to processor hashes. Raises UsageError if there are no judgments, or if they
        differ in judge, panel members or setup.
        """
        prompts: dict[str, str] = {}
        answered_by: list[str] = []
        ways: dict[bytes, HowJudged] = {}
        for judgment in judgments:
            how = cls(
                judge=judgment.judge,
                members=[member.judge for member in judgment.members],
                prompts=prompts,
                setup=select_sampling(judgment.setup),
                processors=dict(processors),
                answered_by=answered_by,
            )
            ways[msgspec.json.encode([how.judge, how.members, how.setup])] = how
            prompts[judgment.prompt_hash] = judgment.prompt
            names = set(judgment.answered_by).union(*(member.answered_by for member in judgment.members))
            answered_by += sorted(names - {*answered_by})
        if len(ways) == 1:
            return ways.popitem()[1]
        raise UsageError("--certificate: it takes judgments made in one way, as critic judge writes them, not a table")


def select_sampling(setup: JudgeConfig) -> dict[str, Any]:
    """Return a judge's setup as a dict, without the keys `judge` and `pointwise_prompt`."""
    sampling = msgspec.to_builtins({name: getattr(setup, name) for name in setup.__struct_fields__})
    # Those are compared by hashes: a name may stay while the weights or the text change.
    del sampling["judge"], sampling["pointwise_prompt"]
    return cast(dict[str, Any], sampling)


class JudgedFile(Struct, frozen=True, kw_only=True):
    """The file of judgments that was audited, with its SHA-256."""

    file: str
    sha256: str


class Labels(JudgedFile, frozen=True, kw_only=True):
    """The file of human labels that the judge was compared with, and its numbers of rows and raters."""

    rows: int
    raters: int


class Certificate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of an audit for one judge.

    `agreement`: the measures of agreement by name.
    `gate`: the limits requested with --gate, as sentences.
    `kept`: True if the judge is within all of these limits.
    `labels` and `judged`: the files that were compared. `date`: the day of the audit.
    """

    how: HowJudged
    labels: Labels
    agreement: dict[str, Estimate]
    gate: list[str]
    kept: bool
    date: str
    judged: JudgedFile

    def line(self) -> str:
        """Return the result in one line that can be quoted in a paper: judge, prompts, measures, labels and gate."""
        measured = []
        for name in QUOTED:
            estimate = self.agreement.get(name)
            if estimate is not None and estimate.value is not None:
                bounds = " [{:.2f}, {:.2f}]".format(*estimate.interval) if estimate.interval else ""
                measured.append(f"{name} {estimate.value:.2f}{bounds}")
        who = f"{self.labels.raters} raters" if self.labels.raters > 1 else "people"
        labels = f"{self.labels.rows} answers labelled by {who} (labels {self.labels.sha256[:8]}), {self.date}"
        prompts = ", ".join(sorted(f"{name}@{digest[:8]}" for digest, name in self.how.prompts.items()))
        return "; ".join([f"{self.how.judge}, prompt {prompts}: {', '.join(measured)} on {labels}", *self.gate])


def read(path: Path) -> tuple[Certificate, str]:
    """Return the certificate in a file, and the SHA-256 of the file. Raises UsageError if the file is not a
    certificate."""
    try:
        content = path.read_bytes()
        return msgspec.json.decode(content, type=Certificate), hashlib.sha256(content).hexdigest()
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"--certificate {path}: no certificate of critic audit: {error}") from None


def is_certificate(path: Path) -> bool:
    """Return True if a file has the keys of a certificate of this or an earlier version, False for any other file."""
    try:
        content = msgspec.json.decode(path.read_bytes()) if path.suffix == ".json" else None
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(content, dict) and {"how", "labels"} <= content.keys()


def find_judged_file(path: Path) -> Path:
    """Return the path of the judgments that the certificate at `path` was made from.

    If the recorded path does not exist, look in the certificate's folder. Raises UsageError if the judgments are
    missing or have changed.
    """
    judged = read(path)[0].judged
    # The certificate and its judgments may have been copied together.
    file = Path(judged.file) if Path(judged.file).is_file() else path.parent / Path(judged.file).name
    if not file.is_file() or jsonl.sha256(file) != judged.sha256:
        raise UsageError(f"{path}: {judged.file}, by which it was made, is {'changed' if file.is_file() else 'gone'}")
    return file


def print_quotable(
    path: Path,
    processors: Mapping[str, str],
    prompts: Mapping[str, str],
    setup: JudgeConfig,
    members: Sequence[str] = (),
) -> None:
    """Print the quotable line of the certificate at `path`, after checking that it is about this judge.

    `processors`: model name -> processor hash; `prompts`: prompt hash -> prompt name.
    `members`: the judges of a panel; empty for a single judge.

    Raises UsageError if judge, prompts, setup or members differ from the certificate (`check_certificate`).
    """
    now = {"judge": setup.judge, "members": list(members), "setup": select_sampling(setup)}
    print(check_certificate(path, processors, prompts, **now).line())


def check_certificate(path: Path, processors: Mapping[str, str], prompts: Mapping[str, str], **now: Any) -> Certificate:
    """Return the certificate at `path` if it was made for the same judge, prompts and settings.

    `now` holds current values of fields of HowJudged, by name. Prints warnings to standard error: about unknown
    processors, changed labels, and a judge that missed its gate. Raises UsageError naming the first difference.
    """
    certificate, _ = read(path)
    how, labels = certificate.how, Path(certificate.labels.file)
    setup = now.pop("setup", {})
    facts = [(name, getattr(how, name), value) for name, value in now.items()]
    facts += [(name, how.setup.get(name), value) for name, value in setup.items()]
    facts += [("prompt", list(how.prompts), f"{name}@{key}") for key, name in prompts.items() if key not in how.prompts]
    facts += [(f"processor of {name}", how.processors.get(name, value), value) for name, value in processors.items()]
    # One difference is enough: the agreement was measured for another judge.
    for name, then, value in facts:
        if then != value:
            raise UsageError(f"--certificate {path}: made with {name} {quoted(then)}, now {quoted(value)}; audit again")
    warnings = [
        f"the processor of {name} is unknown, and may have changed" for name in how.processors.keys() - processors
    ]
    # The certificate stays true of the old labels, so this is only a warning.
    if labels.is_file() and jsonl.sha256(labels) != certificate.labels.sha256:
        warnings.append(f"{labels} has changed since; audit again")
    if not certificate.kept:
        warnings.append("the judge did not keep its gate")
    for warning in warnings:
        print(f"--certificate {path}: {warning}", file=sys.stderr)
    return certificate
