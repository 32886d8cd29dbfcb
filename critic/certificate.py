"""A judge's certificate: what an audit found of it, and everything that must still be so for that to hold.

`critic audit --certificate` writes one, `critic judge --certificate` and `serve/judge.py --certificate` hold to it.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from critic import jsonl
from critic.counting.resampling import Estimate
from critic.errors import UsageError
from critic.records import ConversationJudgment, Judgment, Setup

QUOTED = ("mae", "pearson", "accuracy", "kappa")
"""The agreement that stands in the line to quote, where it was measured."""


class HowJudged(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a judge was asked. `judge` is its name with the mark of its weights (NAME@HASH), `members` are those of a
    panel, `prompts` the names of the prompts by their hashes, `setup` how verdicts were drawn and scored, `processors`
    the hashes of what makes text and images ready for whom, where they are known."""

    judge: str
    members: list[str] = field(default_factory=list)
    prompts: dict[str, str]
    setup: dict[str, Any]
    processors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, judgments: Iterable[Judgment | ConversationJudgment], processors: Mapping[str, str]) -> "HowJudged":
        """How all of them were made. Raises UsageError where there are none, or not all were made alike."""
        prompts: dict[str, str] = {}
        found: dict[bytes, HowJudged] = {}
        for one in judgments:
            if isinstance(one, Judgment):
                judge, members, prompt, setup = one.judge, [each.judge for each in one.members], one.prompt, drawn(one)
            else:
                judge, members, prompt, setup = one.setup.judge, [], one.verdict.protocol, drawn(one.setup)
            prompts[one.prompt_hash] = prompt
            how = cls(judge=judge, members=members, prompts=prompts, setup=setup, processors=dict(processors))
            found[msgspec.json.encode([judge, members, setup])] = how
        if len(found) != 1:
            raise UsageError(
                "--certificate: it takes judgments made in one way, as critic judge writes them, not a table"
            )
        return found.popitem()[1]


def drawn(one: Any) -> dict[str, Any]:
    """How verdicts are drawn and scored, as a setup, a judgment of a response or its judge says it."""
    names = one.__struct_fields__ if isinstance(one, Setup) else ("score_kind", "decoding")
    return {name: msgspec.to_builtins(getattr(one, name)) for name in names if name != "judge"}


class Labels(Struct, frozen=True, kw_only=True):
    """The people's labels that a judge was compared with."""

    file: str
    sha256: str
    rows: int
    raters: int

    @classmethod
    def of(cls, file: Path, rows: int, raters: int) -> "Labels":
        return cls(file=str(file), sha256=jsonl.sha256(file), rows=rows, raters=raters)


class Measured(Struct, frozen=True, kw_only=True):
    """An agreement with its 95 % interval; None where it is not defined."""

    value: float | None
    interval: tuple[float, float] | None


class Certificate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`gate` are the limits that were asked for, in words, and `kept` whether all of them hold."""

    how: HowJudged
    labels: Labels
    agreement: dict[str, Measured]
    gate: list[str]
    kept: bool
    date: str

    def line(self) -> str:
        """What may be quoted."""
        found = {name: one for name in QUOTED if (one := self.agreement.get(name)) and one.value is not None}
        bounds = {
            name: " [{:.2f}, {:.2f}]".format(*one.interval) if one.interval else "" for name, one in found.items()
        }
        measured = ", ".join(f"{name} {one.value:.2f}{bounds[name]}" for name, one in found.items())
        who = f"{self.labels.raters} raters" if self.labels.raters > 1 else "people"
        labels = f"{self.labels.rows} answers labelled by {who} (labels {self.labels.sha256[:8]}), {self.date}"
        prompts = ", ".join(sorted(f"{name}@{digest[:8]}" for digest, name in self.how.prompts.items()))
        return "; ".join([f"{self.how.judge}, prompt {prompts}: {measured} on {labels}", *self.gate])


def certify(
    path: Path, how: HowJudged, labels: Labels, agreement: Mapping[str, Estimate], gate: Mapping[str, bool]
) -> None:
    """Write a certificate; `gate` says of each limit, in words, whether it holds."""
    measured = {name: Measured(value=one.value, interval=one.interval) for name, one in agreement.items()}
    date, kept = datetime.now(UTC).date().isoformat(), all(gate.values())
    found = Certificate(how=how, labels=labels, agreement=measured, gate=list(gate), kept=kept, date=date)
    jsonl.write_json(path, msgspec.to_builtins(found))


def read(path: Path) -> tuple[Certificate, str]:
    """A certificate and the hash of its file. Raises UsageError for anything else."""
    try:
        content = path.read_bytes()
        return msgspec.json.decode(content, type=Certificate), hashlib.sha256(content).hexdigest()
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"--certificate {path}: no certificate of critic audit: {error}") from None


def hold_to(path: Path, processors: Mapping[str, str], prompts: Mapping[str, str], **now: Any) -> Certificate:
    """The certificate, which says of the judge, of each of its prompts and of all else (`HowJudged`) what is so `now`;
    says on standard error what cannot be known, and where the labels have changed since. Raises UsageError naming the
    first thing that is not as it was."""
    found, _ = read(path)
    told = [(name, getattr(found.how, name), value) for name, value in now.items()]
    told += [
        ("prompt", sorted(found.how.prompts), f"{name}@{key}")
        for key, name in prompts.items()
        if key not in found.how.prompts
    ]
    told += [
        (f"processor of {name}", found.how.processors.get(name, value), value) for name, value in processors.items()
    ]
    for name, then, value in told:
        if then != value:
            raise UsageError(f"--certificate {path}: made with {name} {then!r}, now {value!r}; audit again")
    warnings = {
        f"the processor of {name} is not told, so whether it has changed is not known": name not in processors
        for name in found.how.processors
    }
    labels = Path(found.labels.file)
    changed = labels.is_file() and jsonl.sha256(labels) != found.labels.sha256
    warnings |= {f"{labels} has changed since; audit again": changed, "the judge did not keep its gate": not found.kept}
    for said in (said for said, holds in warnings.items() if holds):
        print(f"--certificate {path}: {said}", file=sys.stderr)
    return found
