"""`--gate "mae<=0.9,pearson>=0.8,failed<=0.02"`: limits that an audit has to keep, decided on the interval's bound."""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from critic.errors import UsageError
from critic.stats.estimate import FEWEST_TO_DECIDE, Estimate
from critic.stats.verdicts import VerdictAgreement
from eval_agreement.metrics import METRICS, Agreement

_LIMIT = re.compile(
    r"\s*(?:(?P<sample>[^:,<>=]+):)?\s*(?P<metric>\w+)\s*(?P<sign><=|>=)\s*(?P<value>-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)\s*"
)

PREFERENCES = ("accuracy", "decided", "kappa", "failed")
"""What a limit on preferences may be set on; `failed` is the share (0..1) of pairs without a verdict."""

YES_OR_NO = (*PREFERENCES, "sensitivity", "specificity")


def of_preferences(result: VerdictAgreement, groups: int, **rates: Estimate) -> Agreement:
    """What limits on preferences look at: pairs that the judge was not asked about count as failed."""
    estimates = {"accuracy": result.accuracy, "decided": result.decided, "kappa": result.kappa, **rates}
    return Agreement(n=result.n, failed=result.failed + result.unasked, estimates=estimates, groups=groups)


class Limit(Struct, frozen=True):
    """`metric` of the judge must not lie beyond `value`; `sample` None: on every sample."""

    metric: str
    value: float
    sample: str | None = None

    @property
    def sign(self) -> str:
        lower = self.metric == "failed" or (self.metric in METRICS and METRICS[self.metric].lower_is_better)
        return "<=" if lower else ">="


class Outcome(Struct, frozen=True):
    """One limit on one sample. `bound` is what was compared: the interval's worse end; None where there is none."""

    sample: str
    limit: Limit
    bound: float | None
    holds: bool
    text: str


def parse(text: str, names: Sequence[str] = ()) -> list[Limit]:
    """`[SAMPLE:]METRIC<=NUMBER` or `>=`, separated by commas, the metrics out of `names` (unless given, those on scores
    and the share that failed). Raises UsageError, also for a limit against being too good (mae>=0.9)."""
    limits, names = [], names or (*METRICS, "failed")
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if not match:
            raise UsageError(f"--gate {part.strip()!r}: expected METRIC<=NUMBER or METRIC>=NUMBER, as in mae<=0.9")
        metric, sample = match["metric"], match["sample"]
        if metric not in names:
            there = ", ".join(names).replace("qwk", "qwk (kappa)")  # tables call it so
            raise UsageError(f"--gate {part.strip()!r}: no metric {metric!r}; there are {there}")
        limit = Limit(metric, float(match["value"]), sample and sample.strip())
        if match["sign"] != limit.sign:
            raise UsageError(f"--gate {part.strip()!r}: a gate on {metric} reads {metric}{limit.sign}{match['value']}")
        limits.append(limit)
    return limits


def check_samples(limits: Sequence[Limit], samples: Collection[str]) -> None:
    """Raises UsageError for a limit on a sample that is not there."""
    for limit in limits:
        if limit.sample is not None and limit.sample not in samples:
            raise UsageError(f"--gate: no sample {limit.sample!r}; there are {', '.join(samples)}")


def check(limits: Sequence[Limit], results: Mapping[str, Agreement]) -> list[Outcome]:
    """Every limit on every sample it is about. `results`: the judge by sample. A limit that cannot be decided (no
    interval, an undefined metric, few groups) is not kept. Raises UsageError for a sample that is not there."""
    check_samples(limits, results)
    about = ((limit, name) for limit in limits for name in results if limit.sample in (None, name))
    return [_outcome(name, limit, results[name]) for limit, name in about]


def _outcome(sample: str, limit: Limit, result: Agreement) -> Outcome:
    lower = limit.sign == "<="
    reason = "nothing was measured"
    if limit.metric == "failed":
        total = result.n + result.failed
        bound = result.failed / total if total else None
        shown = f"{result.failed} of {total} failed"
    else:
        estimate, groups = result.estimates[limit.metric], result.groups or 0
        enough = groups >= FEWEST_TO_DECIDE
        bound = estimate.interval[1 if lower else 0] if estimate.interval and enough else None
        shown = "undefined" if estimate.value is None else f"{estimate.value:.3f}"
        shown += "" if estimate.interval is None else f" [{estimate.interval[0]:.3f}, {estimate.interval[1]:.3f}]"
        if estimate.value is not None:
            reason = "no interval" if enough else f"{groups} questions, {FEWEST_TO_DECIDE} are needed"
    holds = bound is not None and (bound <= limit.value if lower else bound >= limit.value)
    undecided = "" if bound is not None else f" (not decided: {reason})"
    text = f"{sample}: {limit.metric}{limit.sign}{limit.value:g} {'' if holds else 'NOT '}kept: {shown}{undecided}"
    return Outcome(sample, limit, bound, holds, text)
