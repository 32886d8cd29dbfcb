"""What the audit promises, in simulated worlds whose truth is known; 400 worlds of each design.

python tests/bench/audit_promises.py [NAME …]
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from critic.stats.estimate import Bootstrap
from eval_agreement.measures import two_judges
from eval_agreement.sample import RatedSample

WORLDS = 400
Floats = NDArray[np.float64]
Random = np.random.Generator


def on_scale(scores: Floats) -> Floats:
    return np.clip(np.rint(scores), 1, 10)


def sample_of(human: Floats, judge: Floats, group: Any, **facts: Any) -> RatedSample:
    ids, groups = [str(row) for row in range(len(human))], [f"q{number}" for number in group]
    return RatedSample(name="s", ids=ids, human=human, judges={"judge": judge}, group=groups, **facts)


def exchange(noise: float, anchors: int, whole: bool) -> dict[str, Any]:
    """Four models, 120 questions, two noisy judges of one truth; the new judge scored `anchors` questions of each model.

    `whole`: the same questions for every model.
    """
    steps, model, group = np.linspace(-1, 1, 4), np.repeat(np.arange(4), 120), np.tile(np.arange(120), 4)

    def both(random: Random, questions: int) -> tuple[Floats, Floats]:
        hard = random.normal(0, 1.2, questions)
        quality = (6 + steps[:, None] + hard + random.normal(0, 0.8, (4, questions))).ravel()
        odd = np.tile(random.normal(0, 0.4, questions), 4)
        old = on_scale(quality + random.normal(0, noise, len(quality)))
        return old, on_scale(1.2 * (quality - 5) + 4.6 + odd + random.normal(0, 0.8, len(quality)))

    large = both(np.random.default_rng(2), 200_000)[1].reshape(4, -1).mean(axis=1)
    truth = [large.mean(), *large]
    held = []
    for world in range(WORLDS):
        random = np.random.default_rng([31, world])
        old, new = both(random, 120)
        drawn = [random.choice(120, anchors, replace=False) for _ in range(4)]
        kept = np.concatenate([np.isin(np.arange(120), drawn[0 if whole else number]) for number in range(4)])
        sample = sample_of(old, np.where(kept, new, np.nan), group, parts={"answerer": [f"m{each}" for each in model]})
        answers = sample_of(np.where(kept, new, np.nan), old, group, parts=sample.parts)
        lines, _ = two_judges._convert_means(answers, "new")
        held.append([line.mean.interval[0] <= mean <= line.mean.interval[1] for line, mean in zip(lines, truth)])  # type: ignore[index]
    return {"all": np.mean(held, axis=0)[0], "models": np.mean(held, axis=0)[1:].round(3).tolist()}


def boards(models: int, questions: int) -> float:
    """How many of 100 boards of equal models tell any two apart."""
    apart = []
    for world in range(WORLDS):
        random = np.random.default_rng([1, world])
        shape = models, questions
        scores = on_scale(6 + random.normal(0, 1, (1, questions)) + random.normal(0, 1.5, shape))
        draws = Bootstrap(np.arange(questions))
        means = draws.resample_group_sums(scores).T / questions
        places = draws.places({str(number): values for number, values in enumerate(means)})
        apart.append(set(places.values()) != {(1, models)})
    return float(np.mean(apart))


DESIGNS: dict[str, Callable[[], Any]] = {
    **{
        f"exchange {noise} {anchors} {whole}": lambda noise=noise, anchors=anchors, whole=whole: exchange(
            noise, anchors, whole
        )
        for noise, anchors, whole in (
            (0.5, 40, True),
            (1.5, 40, True),
            (2.0, 40, False),
            (1.5, 10, True),
            (1.5, 15, False),
            (1.5, 20, False),
        )
    },
    "boards 20 100": lambda: boards(20, 100),
    "boards 20 25": lambda: boards(20, 25),
}

if __name__ == "__main__":
    found = {}
    for name, simulate in DESIGNS.items():
        if not sys.argv[1:] or any(name.startswith(word) for word in sys.argv[1:]):
            found[name] = simulate()
            print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps(found))
