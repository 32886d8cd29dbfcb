"""What the audit promises, in simulated worlds whose truth is known; 400 worlds of each design.

python tests/bench/audit_promises.py [NAME …]
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from critic.stats.estimate import Bootstrap
from eval_agreement.measures import two_judges
from eval_agreement.measures.bias import offsets
from eval_agreement.measures.compare import compare
from eval_agreement.measures.ppi import compare_models, corrected_mean, plan_labels
from eval_agreement.sample import AuditRequest, RatedSample

WORLDS = 400
Floats = NDArray[np.float64]
Random = np.random.Generator


def on_scale(scores: Floats) -> Floats:
    return np.clip(np.rint(scores), 1, 10)


def sample_of(human: Floats, judge: Floats, group: Any, **facts: Any) -> RatedSample:
    facts |= {"ids": [str(row) for row in range(len(human))], "group": [f"q{number}" for number in group]}
    return RatedSample(name="s", human=human, judges={"judge": judge}, **facts)


def exchange(noise: float, anchors: int, whole: bool) -> dict[str, Any]:
    """Four models, 120 questions, two noisy judges of one truth; the new one scored `anchors` questions a model.

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
        ends = [line.mean.interval or (np.nan, np.nan) for line in lines]
        held.append([low <= mean <= high for (low, high), mean in zip(ends, truth, strict=True)])
    return {"all": np.mean(held, axis=0)[0], "models": np.mean(held, axis=0)[1:].round(3).tolist()}


def shown(line: Callable[[int, float], Any], is_shown: Callable[[Any], bool]) -> dict[str, float]:
    """Return the size that "needs … to show" names where there is no effect, and how often one of that size is shown.

    `line` is a line of an audit of the world of a seed, with an effect of this size.
    """
    needs = float(np.median([unseen for seed in range(40) if (unseen := line(10**6 + seed, 0.0).unseen)]))
    return {"needs": needs, "shown": float(np.mean([is_shown(line(seed, needs)) for seed in range(WORLDS)]))}


def seen_models(models: int, questions: int, labelled: int) -> dict[str, float]:
    """How many of 100 audits show a model's lead of the size that "needs … to show" named, among equal models."""

    def world(seed: int, lead: float) -> RatedSample:
        random = np.random.default_rng([4, seed])
        quality = 5.5 + random.normal(0, 1, questions) + random.normal(0, 1, (models, questions))
        quality[1] += lead
        human, judge = quality, quality + random.normal(0, 1, quality.shape)
        human = np.where(random.permutation(questions) < labelled, human, np.nan)
        human, judge = (np.clip(scores, 1, 10).ravel() for scores in (human, judge))
        names = [f"m{number}" for number in range(models) for _ in range(questions)]
        return sample_of(human, judge, np.tile(np.arange(questions), models), parts={"answerer": names})

    def first_pair(seed: int, lead: float) -> Any:
        pairs = compare_models(world(seed, lead), AuditRequest())
        return next(pair for pair in pairs if {pair.first, pair.second} == {"m0", "m1"})

    return shown(first_pair, lambda pair: pair.ahead is not None)


def seen_judges(groups: int, each: int) -> dict[str, float]:
    """How many of 100 audits show a judge's error larger by the size that "needs … to show" named (7 metrics)."""

    def line(seed: int, more: float) -> Any:
        random = np.random.default_rng([5, seed])
        group = np.repeat(np.arange(groups), each)
        human = np.clip(5.5 + random.normal(0, 1.2, groups)[group] + random.normal(0, 1, len(group)), 1, 10)
        first, second = human + random.normal(0, 1, (2, len(group)))
        # Errors larger by as much each: factors would make them vary more than where "needs … to show" was said.
        second += more * np.sign(second - human)
        sample = sample_of(human, np.clip(first, 1, 10), group)
        sample.judges["other"] = np.clip(second, 1, 10)
        return next(each for each in compare(sample, "judge", "other").differences if each.metric == "mae")

    return shown(line, lambda difference: difference.better is not None)


def seen_biases(labels: int, groups: int, each: int) -> dict[str, float]:
    """How many of 100 audits show the offset of one task of the size that "needs … to show" named."""

    def effect(seed: int, offset: float) -> Any:
        random = np.random.default_rng([6, seed])
        group = np.repeat(np.arange(groups), each)
        human = on_scale(5.5 + random.normal(0, 1.2, groups)[group] + random.normal(0, 1, len(group)))
        label = np.arange(groups)[group] % labels
        judge = human + random.normal(0, 0.4, groups)[group] + random.normal(0, 1, len(group)) + offset * (label == 0)
        parts = {"task": [f"t{number}" for number in label]}
        by_task = offsets("task", sample_of(human, np.clip(judge, 1, 10), group, parts=parts))
        return next(each for each in by_task.effects if each.label == "t0")

    return shown(effect, lambda offset: (offset.p_value or 1) <= 0.05)


def looks(planned: int | None, years: int = WORLDS, weeks: int = 52) -> dict[str, float]:
    """Weekly looks at a model and a judge that stay as they are: years, and weeks, with a false alarm, of 100."""
    alarms = np.zeros((years, weeks), dtype=bool)
    group = np.tile(np.arange(80), 6)
    for year in range(years):
        random = np.random.default_rng([7, year])
        quality, then = 6 + random.normal(0, 1, 80), np.full(480, np.nan)
        then[:240] = on_scale(quality[group[:240]] + random.normal(0, 1, 240))
        for week in range(weeks):
            now = on_scale(quality[group] + random.normal(0, 1, 480))
            now[:240] = np.where(group[:240] < 40, on_scale(then[:240] + random.normal(0, 0.4, 240)), np.nan)
            alarms[year, week] = not two_judges.measure_change(sample_of(then, now, group), planned).holds
    return {"years": float(alarms.any(axis=1).mean()), "weeks": float(alarms.mean())}


def plans(questions: int, each: int, labelled: int, within: float = 0.2) -> dict[str, Any]:
    """Half widths that the planned number of labels reaches, with a judge of r about .8; ± `within` is promised."""
    reached, asked = [], []
    for world in range(WORLDS):
        random = np.random.default_rng([8, world])
        group = np.repeat(np.arange(questions), each)
        human = on_scale(6 + random.normal(0, 1, questions)[group] + random.normal(0, 1.2, len(group)))
        judge = on_scale(human + random.normal(0, 1.1, len(group)))
        order = random.permutation(len(group))
        pilot = np.where(np.argsort(order) < labelled, human, np.nan)
        plan = plan_labels(sample_of(pilot, judge, group), AuditRequest(within=within))
        if plan is None or plan.with_judge is None:
            continue
        later = random.permutation(len(group))
        mean = corrected_mean(sample_of(np.where(np.argsort(later) < plan.with_judge, human, np.nan), judge, group))
        assert mean.interval is not None
        reached.append((mean.interval[1] - mean.interval[0]) / 2)
        asked.append(plan.with_judge)
    quarters = np.quantile(reached, [0.1, 0.5, 0.9]).round(3).tolist()
    return {"planned": len(reached) / WORLDS, "labels": float(np.median(asked)), "half widths (10, 50, 90 %)": quarters}


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


EXCHANGES = [(0.5, 40, True), (1.5, 40, True), (2.0, 40, False), (1.5, 10, True), (1.5, 15, False), (1.5, 20, False)]
DESIGNS: dict[str, Callable[[], Any]] = {
    **{" ".join(map(str, ("exchange", *design))): partial(exchange, *design) for design in EXCHANGES},
    "seen models 3 100": partial(seen_models, 3, 100, 50),
    "seen models 10 100": partial(seen_models, 10, 100, 100),
    "seen judges 40 5": partial(seen_judges, 40, 5),
    "seen judges 200 1": partial(seen_judges, 200, 1),
    "seen biases 4": partial(seen_biases, 4, 120, 3),
    "seen biases 12": partial(seen_biases, 12, 360, 2),
    "looks 52": partial(looks, 52),
    "looks none": partial(looks, None, 20),
    "plans 1000 1 100": partial(plans, 1000, 1, 100),
    "plans 400 5 100": partial(plans, 400, 5, 100),
    "plans 300 3 150": partial(plans, 300, 3, 150),
    "boards 20 100": partial(boards, 20, 100),
    "boards 20 25": partial(boards, 20, 25),
}


def main() -> None:
    results = {}
    for name, simulate in DESIGNS.items():
        if not sys.argv[1:] or any(name.startswith(word) for word in sys.argv[1:]):
            results[name] = simulate()
            print(name, results[name], file=sys.stderr, flush=True)
    held = [min(results[name]["models"]) for name in results if name.startswith("exchange")]
    # The least coverage of a model's converted mean, of the 95 % that are promised.
    print(json.dumps({"name": "audit_promises", "ratio": min(held, default=0.95) / 0.95, "designs": results}))


if __name__ == "__main__":
    main()
