"""Scoring head for comparisons: one score per answer, learned from human preferences between two answers."""

from typing import Any, ClassVar

import datasets
import numpy as np
import torch
from batches import Row, Tensors, Weights
from cpu import say
from evaluation import compute_head_scores
from msgspec.structs import replace
from numpy.typing import NDArray
from objective import ScoringHead, compute_preference_error
from recipe_keys import Weight

from critic.errors import UsageError
from critic.judging.examples import Plan, Planned
from critic.judging.forms import ONE_SIDE

BAND_PAIRS = 300
"""Number of training pairs to fit the tie band on."""


class Pairwise(ScoringHead):
    """Preferences: σ(s_A - s_B) is the probability that answer A is better.

    Each answer is shown in a prompt of its own; both are in the same batch.
    """

    classes = ("score",)
    learned = f"preferences (forms {', '.join(ONE_SIDE)})"
    compares = True
    keys: ClassVar = {"margin": (Weight, 1.0)}
    inputs = ScoringHead.inputs | {"margins"}

    def learns(self, form: str) -> bool:
        return form in ONE_SIDE

    def check_evaluation(self, forms: Any) -> None:
        later = f"critic judge --prompt {forms[0]} later"
        raise UsageError(f"evaluation judges ratings, which objective pairwise has none of; {later}")

    def prompt_form(self, form: str) -> str:
        return ONE_SIDE[form]

    def choose_examples(self, planned: Plan) -> Plan:
        """Return each pair once, because the order of its two answers makes no difference."""
        once = {(pair.form, *sorted(pair.ids)): Planned(ONE_SIDE[pair.form], pair.ids) for pair in planned.examples}
        return Plan([*once.values()], planned.left_out)

    def weights(self, rows: datasets.Dataset) -> Weights:
        """Return the loss weights, with the margins by which scores should differ.

        The margin of a pair is `margin` times the strength of its preference above the weakest preference in `rows`.
        """
        least = min((abs(ahead) for (ahead,) in rows["people"] if ahead), default=1.0)
        return replace(super().weights(rows), margin=self.own("margin"), least=least)

    def parts(self, row: Row) -> list[Row]:
        """Return the prompts of both answers of a row. The second one does not count as a learned position."""
        prompts, second = super().parts(row), row["other_ids"]
        # A blank row has no second answer.
        if not second:
            return prompts
        return [*prompts, {**prompts[0], "input_ids": second, "length": len(second), "source": len(second)}]

    def tensors(self, rows: list[Row], places: list[list[int]], weighing: Weights) -> Tensors:
        """Return tensors for the n pairs with human preferences.

        - `ends` [n × 2]: indices of the last tokens of both prompts.
        - `people` [n]: 1 if people prefer A, 0 for B, 1/2 for a tie. `margins` [n]: score differences to reach.
        - `row_weights` [n]: weights in the loss.
        """
        # One entry a prompt.
        each = super().tensors(rows, places, weighing)
        ahead = each["people"][::2, 0]
        # The strength of the preference is in the margin, not in the target.
        way = ahead.sign()
        return {
            "ends": each["ends"].reshape(-1, 2),
            "people": (1 + way) / 2,
            "margins": weighing.margin * way * (ahead.abs() - weighing.least).clamp(min=0),
            "row_weights": each["row_weights"][::2],
        }

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        first, second = model.score(hidden.flatten(0, 1)[batch["ends"]]).float().squeeze(-1).unbind(-1)
        errors = compute_preference_error(first - second, batch["people"], batch["margins"])
        return (errors * batch["row_weights"]).sum(), len(batch["ends"])

    def notes(self, model: Any, tokenizer: Any, rows: datasets.Dataset) -> dict[str, Any]:
        """Return the `tie_band`, fitted to the head's scores of some training pairs (`fit_band`)."""
        # Rows may stand in the order of their questions, so pairs are taken evenly from all of them.
        drawn = rows.select(np.linspace(0, len(rows) - 1, min(len(rows), BAND_PAIRS)).astype(int).tolist())
        # As precise as the head computes them.
        first, second = compute_head_scores(model, tokenizer, self, [*drawn])[:, :, 0].astype(np.float32).T
        band = fit_band((first - second).astype(np.float64), np.array(drawn["people"])[:, 0])
        say(f"ties: scores at most {band:.3f} apart, fitted on {len(drawn)} pairs")
        return {"tie_band": band}


OBJECTIVE = Pairwise


def fit_band(difference: NDArray[np.float64], ahead: NDArray[np.float64]) -> float:
    """Return the tie band: the largest score difference that counts as a tie.

    - `difference` [n]: score differences of pairs.
    - `ahead` [n]: human preference: above 0 if the first answer is better, below 0 for the second, 0 for a tie.

    The band is chosen to reproduce the most human verdicts. If several bands do, the smallest is returned, and 0.0 if
    no band helps. A pair with the wrong sign costs nothing as a tie, because its verdict is wrong in any case.

    >>> fit_band(np.array([0.1, -0.3, 0.25, 0.2, 2.0, -3.0]), np.array([0, 0, 0, 1, 1, -1]))
    0.3
    >>> fit_band(np.array([0.1, 0.2, 0.4]), np.array([0, 1, 0])), fit_band(np.array([0.1, 0.2]), np.array([-1, 0]))
    (0.1, 0.2)
    >>> fit_band(np.array([0.1, -0.3, 0.4]), np.array([1, -1, 0]))
    0.0
    """
    apart, right = np.abs(difference), np.sign(difference) == np.sign(ahead)
    order = np.argsort(apart, kind="stable")
    # A wider band gains the ties that it takes in, and loses the pairs that had the right sign.
    gained = np.cumsum(np.where(ahead == 0, 1, -1 * right)[order])
    best = int(np.argmax([0, *gained]))
    return float(apart[order[best - 1]]) if best else 0.0
