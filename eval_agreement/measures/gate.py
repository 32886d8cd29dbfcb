"""The gate of an audit, `--gate "mae<=0.9,pearson>=0.8,failed<=0.02"`: limits decided on the interval's worse end."""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from critic.errors import UsageError
from critic.stats.estimate import FEWEST_TO_DECIDE, Estimate
from critic.stats.verdicts import VerdictAgreement
from eval_agreement.metrics import METRICS, Agreement
from eval_agreement.sentences import say

_LIMIT = re.compile(
    r"\s*(?:(?P<sample>[^:,<>=]+):)?\s*(?P<metric>\w+)\s*(?P<sign><=|>=)\s*(?P<value>-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)\s*"
)

PREFERENCES = ("accuracy", "decided", "kappa", "failed", "changed")
"""Metrics that a limit on preferences may name. `changed` is the share (0..1) of verdicts that change when the judge is
asked again. `failed` is the share (0..1) of pairs without a verdict."""

YES_OR_NO = (*PREFERENCES, "sensitivity", "specificity")
"""Metrics that a limit on yes/no verdicts may name."""


def of_preferences(result: VerdictAgreement, groups: int, **rates: Estimate) -> Agreement:
    """Convert the agreement on preferences or yes/no verdicts to an Agreement for `check`.

    Items that the judge was not asked about count as failed. `rates`: sensitivity and specificity, if any, and the
    share of verdicts that change.
    """
    estimates = {"accuracy": result.accuracy, "decided": result.decided, "kappa": result.kappa, **rates}
    return Agreement(n=result.n, failed=result.failed + result.unasked, estimates=estimates, groups=groups)


class Limit(Struct, frozen=True):
    """A limit of the gate: `metric` must not be worse than `value` on `sample` (None: on every sample)."""

    metric: str
    value: float
    sample: str | None = None

    @property
    def sign(self) -> str:
        """`<=` if lower is better, else `>=`."""
        metric = METRICS.get(self.metric)
        return "<=" if self.metric in ("changed", "failed") or (metric and metric.lower_is_better) else ">="


class Outcome(Struct, frozen=True):
    """Outcome of a limit of the gate on one sample.

    `bound`: the number that was compared with the limit: the worse end of the metric's interval, or the share of failed
    judgments; None if there is none. `text`: the outcome as a sentence.
    """

    sample: str
    limit: Limit
    bound: float | None
    holds: bool
    text: str


def parse(text: str, names: Sequence[str] = ()) -> list[Limit]:
    """Parse limits `[SAMPLE:]METRIC<=NUMBER` or `[SAMPLE:]METRIC>=NUMBER`, separated by commas.

    `names`: the metrics allowed; empty for those of scores, `changed` and `failed`.
    Raises UsageError for a malformed limit, an unknown metric, or a sign in the wrong direction (mae>=0.9).

    >>> parse("mae<=0.9, people.csv:failed<=0.02")
    [Limit(metric='mae', value=0.9, sample=None), Limit(metric='failed', value=0.02, sample='people.csv')]
    >>> parse("internal: pearson >= .8")
    [Limit(metric='pearson', value=0.8, sample='internal')]
    >>> for text in ("mae<0.9", "mae<=", "mae<=0.9,,", "__import__('os')<=1", "mea<=0.9", "kappa>=0.9", "mae>=0.9"):
    ...     try:
    ...         parse(text)
    ...     except UsageError as error:
    ...         print(str(error).replace("pearson, spearman, kendall", "…"))
    --gate 'mae<0.9': expected METRIC<=NUMBER or METRIC>=NUMBER, as in mae<=0.9
    --gate 'mae<=': expected METRIC<=NUMBER or METRIC>=NUMBER, as in mae<=0.9
    --gate '': expected METRIC<=NUMBER or METRIC>=NUMBER, as in mae<=0.9
    --gate "__import__('os')<=1": expected METRIC<=NUMBER or METRIC>=NUMBER, as in mae<=0.9
    --gate 'mea<=0.9': no metric 'mea'; there are mae, …, fuzzy, strict, qwk (kappa), within, failed, changed
    --gate 'kappa>=0.9': no metric 'kappa'; there are mae, …, fuzzy, strict, qwk (kappa), within, failed, changed
    --gate 'mae>=0.9': a gate on mae reads mae<=0.9
    """
    names = names or (*METRICS, "failed", "changed")
    limits = []
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if not match:
            raise UsageError(f"--gate {part.strip()!r}: expected METRIC<=NUMBER or METRIC>=NUMBER, as in mae<=0.9")
        metric, sample = match["metric"], match["sample"]
        if metric not in names:
            # Tables show qwk under the heading "kappa".
            known = ", ".join(names).replace("qwk", "qwk (kappa)")
            raise UsageError(f"--gate {part.strip()!r}: no metric {metric!r}; there are {known}")
        limit = Limit(metric, float(match["value"]), sample and sample.strip())
        # A limit that only a good judge breaks is a slip of the pen.
        if match["sign"] != limit.sign:
            raise UsageError(f"--gate {part.strip()!r}: a gate on {metric} reads {metric}{limit.sign}{match['value']}")
        limits.append(limit)
    return limits


def check_samples(limits: Sequence[Limit], samples: Collection[str]) -> None:
    """Raise UsageError if a limit names a sample that does not exist."""
    for limit in limits:
        if limit.sample is not None and limit.sample not in samples:
            raise UsageError(f"--gate: no sample {limit.sample!r}; there are {', '.join(samples)}")


def check(limits: Sequence[Limit], results: Mapping[str, Agreement]) -> list[Outcome]:
    """Check every limit on every sample that it applies to. `results`: the judge's agreement by sample.

    A limit that cannot be decided (no interval, undefined metric, few groups) is broken. Raises UsageError as
    `check_samples` does.
    """
    check_samples(limits, results)
    outcomes = []
    for limit in limits:
        samples = list(results) if limit.sample is None else [limit.sample]
        outcomes += [_outcome(name, limit, results[name]) for name in samples]
    return outcomes


def _outcome(sample: str, limit: Limit, result: Agreement) -> Outcome:
    """Check a limit on one sample, given the judge's agreement there."""
    lower, total = limit.sign == "<=", result.n + result.failed
    # With few groups an interval may be too narrow, and a gate must not pass by chance.
    few = (result.groups or 0) < FEWEST_TO_DECIDE
    # A count of failures has no interval: all of them are known.
    bound = result.failed / total if total else None
    if estimate := result.estimates.get(limit.metric):
        bound = estimate.interval[1 if lower else 0] if estimate.interval and not few else None
        few = few and estimate.value is not None
    holds = bound is not None and (bound <= limit.value if lower else bound >= limit.value)
    facts = {"sample": sample, "limit": limit, "result": result, "few": few, "fewest": FEWEST_TO_DECIDE}
    text = say("limit", estimate=estimate, bound=bound, holds=holds, **facts)
    return Outcome(sample, limit, bound, holds, text)
