"""A judge's certificate: the results of an audit, and everything that must stay the same for them to hold.

`critic audit --certificate` writes one; `critic judge --certificate` and `serve/judge.py --certificate` check it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from critic import jsonl
from critic.errors import UsageError, hash_value, located, notify, quoted
from critic.page.page import render
from critic.records import RATINGS, JudgeConfig, Judgment
from critic.stats.arrays import Floats
from critic.stats.estimate import Estimate

QUOTED = ("mae", "pearson", "accuracy", "kappa", "changed")
"""Measures of agreement in the line to quote, if they were measured."""


class ScoreMap(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A monotone map from a judge's scores to people's, on 1..10: linear between points, constant outside them.

    `judge`: the points' judge scores, ascending. `people`: the expected human score at each, non-decreasing.
    `by`: a property of answers ("lang" or "task") whose values have maps of their own, in `parts`; "" for one map.
    Values without a map in `parts` use this one.

    >>> ScoreMap(judge=[1, 3], people=[2, 6])(np.array([2.0, 9.0])).tolist()
    [4.0, 6.0]
    """

    judge: list[float]
    people: list[float]
    by: str = ""
    parts: dict[str, "ScoreMap"] = {}

    def __call__(self, scores: Floats) -> Floats:
        """Return the expected human score for each judge score, (n,), clipped to 1..10."""
        return np.clip(np.interp(scores, self.judge, self.people), RATINGS[0], RATINGS[-1])

    @property
    def digest(self) -> str:
        """A hash of the map, which judgments record."""
        return hash_value(self, 16)


def part_value(judgment: Judgment, part: str) -> str | None:
    """Return a judgment's value of the property `part`, "lang" or "task"; None if it is unknown."""
    if part == "lang":
        return judgment.conversation.lang
    asked = judgment.sample.asked if part == "task" else None
    return asked.task if asked else None


def row_key(judgment: Judgment) -> str:
    """Return a hash of the judged question and answer, to recognize answers that a map was fitted on (FittedMap.keys).

    Ids are not hashed, since other files use the same ids for other answers. For a judgment of a whole conversation,
    only its id is hashed.
    """
    asked = judgment.sample.asked
    return hash_value([asked.prompt, judgment.sample.answer] if asked else [judgment.id], 12)


class FittedMap(Struct, frozen=True, kw_only=True):
    """A map of a judge's scores, the answers that it was fitted on, and how well the mapped scores agree with people.

    `rows`, `groups`: numbers of labelled answers and of their questions. `keys`: the answers' hashes (`row_key`).
    `agreement`: measures by name, cross-validated: each fifth of the questions was mapped by a map fitted on the other
        four ("folds").
    """

    map: ScoreMap
    rows: int
    groups: int
    keys: list[str]
    agreement: dict[str, Estimate]

    def apply(self, judgment: Judgment) -> Judgment:
        """Return a judgment with its score mapped, and the raw score in `raw_score`; its repeats are mapped as well.

        A judgment without a score keeps none.
        """
        setup = replace(judgment.setup, recalibrated=self.map.digest)
        own = self.map.parts.get(part_value(judgment, self.map.by) or "", self.map)
        first, *repeats = (
            each if each.score is None else replace(each, score=float(own(np.array(each.score))), raw_score=each.score)
            for each in (judgment, *judgment.repeats)
        )
        return replace(first, setup=setup, repeats=repeats)


class HowJudged(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The judge that an audit measured, and how its verdicts were requested.

    `judge`: its name with a hash of its weights (NAME@HASH); for a panel, `members` lists the members' names.
    `prompts`: prompt hash -> prompt name.
    `setup`: how verdicts were sampled and scored (`select_sampling`).
    `processors`: model name -> hash of its tokenizer, chat template and image processor.
    `learned`: the prompt forms that the judge was trained in; empty if unknown. "head" stands for a scoring head.
    `answered_by`: the model names that the replies report.
    `recalibrated`: hash of the map that was applied to its scores; "" if none was.
    """

    judge: str
    members: list[str] = field(default_factory=list)
    prompts: dict[str, str]
    setup: dict[str, Any]
    processors: dict[str, str] = field(default_factory=dict)
    learned: list[str] = field(default_factory=list)
    answered_by: list[str] = field(default_factory=list)
    recalibrated: str = ""

    @classmethod
    def of(cls, judgments: Iterable[Judgment], judged: Path) -> "HowJudged":
        """Return how the judgments were made; all must share one judge and one setup.

        `judged`: their file. Raises UsageError if there are no judgments, if they differ in judge, panel members or
        setup, or if the file's sidecar is unreadable.
        """
        facts, sidecar = jsonl.facts(judged), jsonl.sidecar(judged)
        # Without it a certificate would say less of the judge than is known.
        if not facts and sidecar.is_file():
            raise UsageError(f"{sidecar}: not JSON; delete it if it is left over")
        prompts: dict[str, str] = {}
        answered_by: list[str] = []
        ways: dict[bytes, HowJudged] = {}
        for judgment in judgments:
            how = cls(
                judge=judgment.judge,
                members=[member.judge for member in judgment.members],
                prompts=prompts,
                setup=select_sampling(judgment.setup),
                processors=facts.get("processors", {}),
                learned=facts.get("learned") or [],
                answered_by=answered_by,
                recalibrated=judgment.setup.recalibrated,
            )
            ways[msgspec.json.encode([how.judge, how.members, how.setup, how.recalibrated])] = how
            prompts[judgment.prompt_hash] = judgment.prompt
            names = set(judgment.answered_by).union(*(member.answered_by for member in judgment.members))
            answered_by += sorted(names - {*answered_by})
        if len(ways) == 1:
            return ways.popitem()[1]
        raise UsageError("--certificate: it takes judgments made in one way, as critic judge writes them, not a table")


def select_sampling(setup: JudgeConfig) -> dict[str, Any]:
    """Return a judge's setup as a dict, without `judge`, `pointwise_prompt`, `recalibrated` and `repeat`."""
    sampling = msgspec.to_builtins({name: getattr(setup, name) for name in setup.__struct_fields__})
    # Those are compared by hashes: a name may stay while the weights or the text change.
    # A judge that is asked once is the one that was asked twice: the first verdict counts.
    del sampling["judge"], sampling["pointwise_prompt"], sampling["recalibrated"], sampling["repeat"]
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
    `recalibration`: the map for `critic judge --recalibrate`, or None. If the judge was audited with a map
    (`how.recalibrated`), it is that one; else it was fitted on these labels.
    `audits`: the number of this audit, from 1, among the audits of the same labels (from the ledger beside --out).
    `folds`: True if `agreement` was measured on scores that maps fitted on other folds of these labels recalibrated,
        instead of the map in `recalibration`.
    """

    how: HowJudged
    labels: Labels
    agreement: dict[str, Estimate]
    gate: list[str]
    kept: bool
    date: str
    judged: JudgedFile
    recalibration: FittedMap | None = None
    folds: bool = False
    audits: int = 1

    def line(self, recalibrated: bool = False) -> str:
        """Return the result in one line that can be quoted in a paper: judge, prompts, measures, labels and gate.

        `recalibrated`: True if the judge is used with the map in `recalibration`.

        >>> how = HowJudged(judge="mine@1a", prompts={"c3d4e5f6a7": "pointwise"}, setup={})
        >>> labels = Labels(file="labels.csv", sha256="0123456789", rows=200, raters=3)
        >>> measured = {"pearson": Estimate(value=0.8, n=200, interval=(0.7, 0.9))}
        >>> audit = {"gate": ["mae <= 1"], "kept": True, "date": "2026-11-29"}
        >>> judged = JudgedFile(file="judged.jsonl", sha256="89abcdef")
        >>> line = Certificate(how=how, labels=labels, agreement=measured, judged=judged, **audit).line()
        >>> line.partition(" on ")[0]
        'mine@1a, prompt pointwise@c3d4e5f6: pearson 0.80 [0.70, 0.90]'
        >>> line.partition(" labelled by ")[2].split("; ")
        ['3 raters (labels 01234567), 2026-11-29, first audit on these labels, the judge taken as fixed', 'mae <= 1']
        """
        agreement, judge, gate = self.agreement, self.how.judge, self.gate
        if recalibrated and self.recalibration:
            judge = f"{judge} recalibrated by a map fitted on {self.recalibration.rows} answers"
            # The audit of the judge without its map has other figures, and a gate that says nothing on the pair.
            if not self.how.recalibrated:
                agreement, gate = self.recalibration.agreement, []
            judge += " (figures from folds)" if self.folds or not self.how.recalibrated else ""
        prompts = sorted(f"{name}@{digest[:8]}" for digest, name in self.how.prompts.items())
        facts: dict[str, Any] = {"judge": judge, "prompts": prompts, "agreement": agreement, "measures": QUOTED}
        facts |= {"labels": self.labels, "date": self.date, "audit": name_audit(self.audits), "gate": gate}
        return render("critic.page", "certificate.jinja", facts).strip()


def name_audit(number: int) -> str:
    """Return in words which audit of the same labels this one is; `number` counts from 1.

    >>> name_audit(3), name_audit(12)
    ('third audit on these labels', 'audit 12 on these labels')
    """
    words = ("first", "second", "third", "fourth", "fifth")
    return f"{words[number - 1]} audit on these labels" if number <= len(words) else f"audit {number} on these labels"


def read(path: Path) -> Certificate:
    """Return the certificate in a file. Raises UsageError if the file is not a certificate."""
    with located(f"--certificate {path}: no certificate of critic audit", OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=Certificate)


def read_map(path: Path) -> FittedMap:
    """Return the map in a certificate. Raises UsageError if it has none."""
    certificate = read(path)
    if certificate.recalibration is None:
        raise UsageError(f"--recalibrate {path}: it holds no map: its judge gives no scores, or on too few questions")
    return certificate.recalibration


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
    judged = read(path).judged
    # The certificate and its judgments may have been copied together.
    file = Path(judged.file) if Path(judged.file).is_file() else path.parent / Path(judged.file).name
    if not file.is_file() or jsonl.sha256(file) != judged.sha256:
        raise UsageError(f"{path}: {judged.file}, by which it was made, is {'changed' if file.is_file() else 'gone'}")
    return file


def check_certificate(path: Path, processors: Mapping[str, str], prompts: Mapping[str, str], **now: Any) -> Certificate:
    """Return the certificate at `path` if it was made for the same judge, prompts and settings.

    `now` holds current values of fields of HowJudged, by name. A certificate of a judge without a map also holds for
    the judge with the map that it contains. Prints warnings to standard error: about unknown processors, changed
    labels, and a judge that missed its gate. Raises UsageError naming the first difference.
    """
    certificate = read(path)
    how, labels, fitted = certificate.how, Path(certificate.labels.file), certificate.recalibration
    setup, applied = now.pop("setup", {}), now.pop("recalibrated", how.recalibrated)
    if applied not in (how.recalibrated, fitted and fitted.map.digest):
        remedy = "audit again" if applied else f"add --recalibrate {path}"
        now_used = "with another map" if applied else "without it"
        raise UsageError(f"--certificate {path}: made of the judge with its map, now used {now_used}; {remedy}")
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
    # A gate on scores without the map says nothing on those with it.
    if not certificate.kept and applied == how.recalibrated:
        warnings.append("the judge did not keep its gate")
    for warning in warnings:
        notify(f"--certificate {path}: {warning}")
    return certificate


def check_log(path: Path, log: Path, models: Iterable[str]) -> str:
    """Check that the verdicts in another tool's log are by the certificate's judge, and return a line that says so.

    `path`: the certificate. `log`: the log file. `models`: the models that the log names as judges, if any.

    Warns and raises UsageError as `check_certificate` does.
    """
    with located(log, UsageError):
        judges = {check_certificate(path, {}, {}, judge=model).how.judge for model in models or ["(not named)"]}
    return f"{log}: the verdicts are of {min(judges)}, the judge in {path}"
