"""How well a judge's scores agree with people's: `agreement(human, judge)`, with intervals and a report."""

from eval_agreement.metrics import FUZZY_RANGES, METRICS, STRICT_RANGES, Agreement, agreement, measured

__all__ = ["FUZZY_RANGES", "METRICS", "STRICT_RANGES", "Agreement", "agreement", "measured"]
