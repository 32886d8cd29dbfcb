"""eval_agreement.measures.bias against least squares, resample by resample, and simulated judges."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from draws import share_that_holds, times_of
from numpy.typing import NDArray
from samples import build_sample, read_llmeval2

from critic.stats import estimate
from critic.stats.estimate import Bootstrap, holm
from eval_agreement.measures import bias
from eval_agreement.measures.bias import BiasEffect, offsets, severity, verbosity
from eval_agreement.metrics import half_up
from eval_agreement.sample import RatedSample

Floats = NDArray[np.float64]


class World:
    """Answers of 60 questions whose quality goes with their length, rated by people and a judge.

    The judge follows people's scores, likes some questions, and pays `per_doubling` for length and `own` to system
    `a`. With `sees_quality` it follows true quality instead, which people's scores then show with noise (their
    reliability in `reliability`).
    """

    def __init__(
        self, seed: int, per_doubling: float = 0.0, own: float = 0.0, sees_quality: bool = False, groups: int = 60
    ) -> None:
        random = np.random.default_rng(seed)
        n = 5 * groups
        self.group = np.repeat(np.arange(groups), 5)
        self.system = np.tile(list("abcde"), groups)
        quality = random.normal(0, 0.8, n) + 0.5 * (self.system == "a")
        self.doublings = 7 + quality + random.normal(0, 0.6, n)
        self.length = 2**self.doublings
        self.raters = 5.5 + quality[:, None] + random.normal(0, 0.8, (n, 3)) * (1 if sees_quality else 0)
        self.human = self.raters.mean(axis=1)
        if not sees_quality:
            self.human = np.clip(half_up(self.human), 1, 10)
        self.reliability = float(np.var(quality) / np.var(self.human))
        followed = quality if sees_quality else self.human - 5.5
        liked = random.normal(0, 0.3, groups)[self.group]
        self.judge = 5.5 + 0.5 * followed + liked + random.normal(0, 0.5, n)
        self.judge += per_doubling * (self.doublings - 7) + own * (self.system == "a")

    def rows(self, judge: Floats | None = None, **parts: list[str | None]) -> RatedSample:
        """Return the answers with their properties, of another judge if one is given."""
        return build_sample(self.human, self.judge if judge is None else judge, self.group, parts=parts)


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "RESAMPLES", 800)


def design(human: Floats, x: Floats) -> Floats:
    """One indicator per human level that occurs, and x."""
    levels = np.unique(half_up(human))
    return np.column_stack([*(half_up(human) == level for level in levels), x]).astype(float)


def refitted(draws: Bootstrap, fit: Callable[[NDArray[np.intp]], float]) -> Floats:
    """`fit` on the rows of each resample, repeated as often as they were drawn."""
    weights = times_of(draws)
    rows = np.arange(len(weights))
    return np.array([fit(np.repeat(rows, weights[:, index])) for index in range(weights.shape[1])])


def assert_same(effect: BiasEffect, whole: float, draws: Bootstrap, values: Floats) -> None:
    assert effect.value == pytest.approx(whole, abs=1e-9)
    assert effect.interval == pytest.approx(draws.interval(values), abs=1e-9)
    assert effect.p_value == pytest.approx(draws.p_value(values), abs=1e-9)


def rare_level(world: World) -> None:
    """Give one question alone a human level, so that some resamples lack it."""
    world.human[world.group == 3] = 10.0


def test_verbosity_is_least_squares_in_every_resample() -> None:
    world = World(1, per_doubling=0.05)
    rare_level(world)
    effect = verbosity(world.rows(), world.length)

    def fit(rows: NDArray[np.intp]) -> float:
        x = design(world.human[rows], world.doublings[rows])
        return float(np.linalg.lstsq(x, world.judge[rows], rcond=None)[0][-1])

    draws = Bootstrap(world.rows().groups)
    lacking = refitted(draws, lambda rows: float((world.human[rows] == 10).any()))
    assert 0 < lacking.mean() < 1
    assert_same(effect, fit(np.arange(300)), draws, refitted(draws, fit))


@pytest.mark.parametrize("people", ["whole", "fractions"])
def test_offsets_are_least_squares_in_every_resample(people: str) -> None:
    world = World(2, own=0.1)
    if people == "fractions":
        world.human = np.clip(world.human + np.tile([-0.5, 0.3, 0.499], 100), 1, 10)
    rare_level(world)
    family = offsets("answerer", world.rows(answerer=list(world.system)))
    draws = Bootstrap(world.rows().groups)
    uncorrected = []
    for effect in family.effects:

        def fit(rows: NDArray[np.intp], label: str | None = effect.label) -> float:
            x = design(world.human[rows], world.system[rows] == label)
            return float(np.linalg.lstsq(x, world.judge[rows], rcond=None)[0][-1])

        values = refitted(draws, fit)
        uncorrected.append(draws.p_value(values))
        assert_same(msgspec.structs.replace(effect, p_value=uncorrected[-1]), fit(np.arange(300)), draws, values)
        assert effect.n == 60
    assert [effect.p_value for effect in family.effects] == pytest.approx(holm(uncorrected))


def by_label(rows: RatedSample) -> dict[str | None, BiasEffect]:
    return {effect.label: effect for effect in offsets("answerer", rows).effects}


def covered(effects: list[BiasEffect], truth: float) -> float:
    return share_that_holds((effect.interval for effect in effects), truth)


def seen(effects: list[BiasEffect]) -> float:
    """Share of the effects whose interval leaves 0 out, checked against what they say."""
    apart = [e.interval is not None and not e.interval[0] <= 0 <= e.interval[1] for e in effects]
    assert apart == ["No sign" not in e.reading for e in effects]
    return float(np.mean(apart))


def judge_severity(seed: int, planted: float) -> BiasEffect:
    world = World(seed)
    judge = world.human + planted + world.judge - 5.5 - 0.5 * (world.human - 5.5)
    return severity(world.rows(np.clip(judge, 1, 10)))


def judge_verbosity(seed: int, planted: float) -> BiasEffect:
    world = World(seed, per_doubling=planted)
    return verbosity(world.rows(), world.length)


def judge_own_answers(seed: int, planted: float) -> BiasEffect:
    world = World(seed, own=planted)
    return by_label(world.rows(answerer=["a" if name == "a" else "rest" for name in world.system]))["a"]


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize(
    ("measure", "worlds", "size", "most"),
    [(judge_severity, 300, 0.4, 0.975), (judge_verbosity, 500, 0.3, 0.97), (judge_own_answers, 500, -0.4, 0.97)],
)
def test_an_effect_is_found_and_covered(
    measure: Callable[[int, float], BiasEffect], worlds: int, size: float, most: float, is_planted: bool
) -> None:
    planted = size * is_planted
    effects = [measure(seed, planted) for seed in range(worlds)]
    assert 0.93 <= covered(effects, planted) <= most
    assert seen(effects) > 0.99 if is_planted else seen(effects) < 0.07
    p = np.array([effect.p_value for effect in effects])
    assert np.mean(p < 0.05) == pytest.approx(seen(effects), abs=0.02)


def test_an_effect_that_is_detectable_is_seen_in_80_of_100_audits() -> None:
    """The width of the interval does not depend on what is planted, so the planted size can be read off first."""
    worlds = [World(seed) for seed in range(250)]
    unbiased = [verbosity(w.rows(), w.length) for w in worlds]
    size = float(np.mean([effect.detectable for effect in unbiased]))
    for effect in unbiased:
        assert "No sign" not in effect.reading or f"needs {effect.detectable:.2f} to show" in effect.reading
    planted = [verbosity(w.rows(w.judge + size * (w.doublings - 7)), w.length) for w in worlds]
    assert np.mean([effect.unseen is None for effect in planted]) == pytest.approx(0.8, abs=0.06)
    assert np.mean([effect.unseen is None for effect in unbiased]) < 0.08


def test_a_label_of_few_questions_is_covered() -> None:
    """A task is a matter of whole questions: its interval stands on as many groups as the task has."""
    effects = []
    for seed in range(400):
        w = World(seed)
        task = ["rare" if number < bias.FEWEST_LABEL_GROUPS else "common" for number in w.group]
        by_task = offsets("task", w.rows(task=task)).effects
        effects.append(next(effect for effect in by_task if effect.label == "rare"))
    assert 0.925 <= covered(effects, 0) <= 0.975


def test_noise_in_people_s_scores_makes_effects_and_is_said_to() -> None:
    """A fair judge seems to pay for length; how unreliable people would have to be is about how unreliable they are."""
    plain, explained = [], []
    for seed in range(300):
        w = World(seed, sees_quality=True)
        plain.append(verbosity(w.rows(), w.length))
        if plain[-1].noise_explains:
            explained.append(plain[-1].noise_explains / w.reliability)
    assert covered(plain, 0) < 0.5
    assert len(explained) > 150
    assert np.median(explained) == pytest.approx(1, abs=0.06)


def test_labels_that_cannot_be_compared() -> None:
    w = World(7)
    label = [None if row % 50 == 0 else "few" if row < 100 else "many" for row in range(300)]
    family = offsets("task", w.rows(task=label))
    assert [effect.label for effect in family.effects] == ["many", "few"]
    assert all(effect.undefined is None for effect in family.effects)
    few = offsets("task", w.rows(task=["few" if row < 95 else "many" for row in range(300)]))
    for effect, side in zip(few.effects, ("without", "with"), strict=True):
        assert effect.undefined == f"19 groups {side} it; at least 20 are needed"
    assert all(effect.value is effect.interval is effect.p_value is None for effect in few.effects)
    assert [effect.n for effect in few.effects] == [205, 95]
    alone = offsets("lang", w.rows(lang=["zh"] * 300)).effects
    assert len(alone) == 1 and alone[0].undefined == "0 groups without it; at least 20 are needed"
    level = ["high" if score >= 6 else "low" for score in w.human]
    apart = offsets("task", w.rows(task=level)).effects
    assert {effect.undefined for effect in apart} == {"no answer without it has the same human score"}
    assert offsets("task", build_sample([], [], parts={"task": []})).effects == []
    unjudged = offsets("task", build_sample([3, 4], [None, None], parts={"task": ["x", "y"]}))
    assert [(effect.n, effect.failed, effect.value) for effect in unjudged.effects] == [(0, 1, None)] * 2


def test_two_labels_are_one_test() -> None:
    w = World(8, own=-0.13)
    other, own = offsets("side", w.rows(side=["own" if name == "a" else "other" for name in w.system])).effects
    assert own.value is not None and other.value == pytest.approx(-own.value)
    assert other.p_value == pytest.approx(own.p_value)


def test_gpt4_on_llmeval2(shared: Path) -> None:
    rows, human, judge, group = read_llmeval2(shared)
    judged = build_sample(human, judge, group, parts={"answerer": [row["system"] for row in rows]})
    lenient = severity(judged)
    assert lenient.value == pytest.approx(0.301, abs=0.001) and "lenient" in lenient.reading
    length = verbosity(judged, np.array([len(row["response"]) for row in rows]))
    assert length.value == pytest.approx(0.293, abs=0.001) and length.noise_explains == pytest.approx(0.42, abs=0.01)
    own = by_label(judged)["GPT4"]
    assert own.value == pytest.approx(0.553, abs=0.001) and own.noise_explains == pytest.approx(0.82, abs=0.01)
    assert own.n == 399
