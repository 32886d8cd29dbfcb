"""What a scoring head is worth that is fitted on a base as it is: by layer and place, by labels, on sets it never saw.

    python tests/bench/heads.py runs/base/qwen2.5-coder-1.5b --set llmeval2=runs/llmeval2/data,4,10 \
        --set topical_chat=runs/topical_chat/data --other gpt4 --keep runs/states

A set is NAME=FOLDER[,N[,M]]: of each question at most N answers of train.jsonl are learned from, and M of
internal.jsonl are judged; a set may have one of the two alone. What the base makes of a prompt (`pointwise_short`) is
computed once for all heads, kept in `--keep` file by file, and takes nearly all of the time: 2 s a row of llmeval2 on a
core with AVX512-bf16. A head is a ridge-penalized logistic regression, as in `train/probe.py`; it judges by the median.

Ends in one JSON line: `ratio` is the MAE with the other judge's labels beside 100 of people's over that without.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import warnings
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train")]
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import attention  # noqa: E402
import machine  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from msgspec.structs import replace  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from objective import RatingTokens, rating_tokens  # noqa: E402
from packing import common, prefix_tree, sequence  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GroupKFold  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from critic import human_scored  # noqa: E402
from critic.asking import rating  # noqa: E402
from critic.asking.examples import TooLong, example  # noqa: E402
from critic.asking.tokens import source_ids  # noqa: E402
from critic.records import RATINGS, Response  # noqa: E402
from eval_agreement.metrics import agreement, agreement_interval  # noqa: E402

FORM, LIMIT, TOGETHER = "pointwise_short", 560, 12
"""What is asked, in how many tokens at most, and rows that are computed together."""

PLACES = ("behind the verdict's beginning", "last token of the prompt", "mean over the answer")
HEAD_READS = 1
"""Of PLACES, where `objective: head` reads."""

STRENGTHS = (1e-3, 3e-3, 1e-2, 3e-2)
LABELS, DRAWS, SHARE = (100, 1000), 3, 0.3
"""People's labels that are learned from, draws of so many, and the weight of one of the other judge's labels."""

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Answers, what the base makes of them [rows x layers x places x width], and who scored them how."""

    states: NDArray[np.float16]
    group: NDArray[Any]
    human: Floats
    other: Floats
    layers: list[int]

    def at(self, layer: int, place: int = HEAD_READS) -> NDArray[np.float32]:
        return self.states[:, self.layers.index(layer), place].astype(np.float32)


class Base:
    """The first layers of a model, and what they make of prompts."""

    def __init__(self, folder: str, layers: list[int]) -> None:
        machine.keep_memory()
        self.layers, self.tokenizer = layers, AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        tokens = rating_tokens(self.tokenizer)
        assert isinstance(tokens, RatingTokens)
        self.behind = list(tokens.before)
        self.inner = model.model
        self.inner.layers = self.inner.layers[: max(layers)]
        model.config.num_hidden_layers = max(layers)
        if not attention.install(model):
            raise SystemExit(f"{folder}: its attention cannot look at rows that share what they begin with")
        self.made: dict[int, torch.Tensor] = {}
        for layer in layers:
            self.inner.layers[layer - 1].register_forward_hook(self._remember(layer))

    def _remember(self, layer: int) -> Any:
        def hook(_: Any, __: Any, made: Any) -> None:
            self.made[layer] = (made[0] if isinstance(made, tuple) else made)[0].float()

        return hook

    def ids(self, response: Response) -> tuple[list[int], int, int] | None:
        """A prompt with the verdict's beginning behind it, and where the answer's tokens begin and end; None where it
        does not fit."""

        def asked(text: str) -> list[int] | None:
            made = example(
                replace(response, text=text), FORM, LIMIT, lambda said: len(source_ids(self.tokenizer, said))
            )
            return None if isinstance(made, TooLong) else source_ids(self.tokenizer, made.messages)

        ids, other = asked(response.text), asked("\u00a7")
        if ids is None or other is None:
            return None
        start = min(common(ids, other), len(ids) - 2)
        return ids + self.behind, start, max(start + 1, len(ids) - common(ids[::-1], other[::-1]))

    def states(self, rows: list[tuple[list[int], int, int]]) -> NDArray[np.float16]:
        """[rows x layers x places x width]."""
        ids = [each for each, _, _ in rows]
        nodes = prefix_tree(ids, [len(each) - 1 - len(self.behind) for each in ids])
        begins = np.cumsum([0, *(node.end - node.start for node in nodes)])
        with torch.no_grad():
            self.inner(**sequence(nodes, ids), use_cache=False)
        leaf = {node.row: place for place, node in enumerate(nodes) if node.leaf}
        found = np.empty((len(rows), len(self.layers), len(PLACES), self.inner.config.hidden_size), dtype=np.float16)
        for row, (_, start, end) in enumerate(rows):
            path, node = list[NDArray[np.intp]](), leaf[row]
            while node >= 0:
                path.insert(0, np.arange(begins[node], begins[node + 1]))
                node = nodes[node].parent
            where = np.concatenate(path)
            for number, layer in enumerate(self.layers):
                made = self.made[layer]
                last, prompt = made[where[-1]], made[where[-1 - len(self.behind)]]
                for place, state in enumerate((last, prompt, made[where[start:end]].mean(0))):
                    found[row, number, place] = state.numpy()
        return found


def drawn(file: Path, each: int) -> list[Response]:
    """At most so many answers to each question, by a hash of their ids; those to one question stand together."""
    by_group: dict[str, list[Response]] = defaultdict(list)
    for response in human_scored.load(file).responses:
        by_group[response.question.group].append(response)

    def number(text: str) -> str:
        return hashlib.sha1(text.encode()).hexdigest()

    of_group = (sorted(by_group[group], key=lambda one: number("0" + one.id)) for group in sorted(by_group, key=number))
    return [one for some in of_group for one in some[:each]]


def rows_of(file: Path, each: int, kept: Path, base: str, layers: list[int], other: str | None) -> Rows:
    """What is kept of a file, else computed and kept."""
    responses = {response.id: response for response in drawn(file, each)}
    if not kept.is_file():
        model = Base(base, layers)
        some = [(one.id, made) for one in responses.values() if (made := model.ids(one)) is not None]
        begun, states = time.monotonic(), []
        for start in range(0, len(some), TOGETHER):
            states.append(model.states([made for _, made in some[start : start + TOGETHER]]))
            done = min(start + TOGETHER, len(some))
            left = (time.monotonic() - begun) / done * (len(some) - done)
            print(f"{file}: {done} of {len(some)} rows, {left:.0f} s left", file=sys.stderr, flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with kept.with_suffix(".partial").open("wb") as file_made:
            np.savez(file_made, states=np.concatenate(states), ids=[name for name, _ in some], layers=layers)
        kept.with_suffix(".partial").rename(kept)
    found = np.load(kept)
    answers = [responses[name] for name in found["ids"].tolist()]
    column = human_scored.column_of(other) if other else ""
    return Rows(
        found["states"],
        np.array([one.question.group for one in answers]),
        np.array([one.human.score if one.human else np.nan for one in answers]),
        np.array([one.columns.get(column, np.nan) for one in answers]),
        found["layers"].tolist(),
    )


class Head:
    """A logistic regression on states [n x width] and scores (n,), each row with a weight."""

    def __init__(self, states: NDArray[Any], scores: Floats, strength: float, weight: Floats | None = None) -> None:
        self.centre, self.scale = states.mean(axis=0), states.std(axis=0) + 1e-6
        whole = np.floor(scores + 0.5).astype(int)
        known = (states - self.centre) / self.scale
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early is penalized more
        self.fitted = LogisticRegression(C=strength, max_iter=150).fit(known, whole, sample_weight=weight)

    def shares(self, states: NDArray[Any]) -> Floats:
        found = np.zeros((len(states), len(RATINGS)))
        found[:, self.fitted.classes_ - 1] = self.fitted.predict_proba((states - self.centre) / self.scale)
        return found

    def scores(self, states: NDArray[Any], kind: Any = "median") -> Floats:
        return np.array([rating.score(each, kind) for each in self.shares(states).tolist()])


def best_head(states: NDArray[Any], scores: Floats, group: NDArray[Any], weight: Floats | None = None) -> Head:
    """The head by the strength of penalty with the least MAE on held-out questions."""
    parts = list(GroupKFold(3).split(states, groups=group))

    def held_out(strength: float) -> float:
        errors = []
        for inside, outside in parts:
            head = Head(states[inside], scores[inside], strength, None if weight is None else weight[inside])
            errors.append(np.abs(head.scores(states[outside]) - scores[outside]))
        return float(np.average(np.concatenate(errors), weights=_in_order(weight, parts)))

    return Head(states, scores, min(STRENGTHS, key=held_out), weight)


def _in_order(weight: Floats | None, parts: list[Any]) -> Floats | None:
    return None if weight is None else np.concatenate([weight[outside] for _, outside in parts])


def figures(human: Floats, judge: Floats) -> tuple[float, float]:
    """MAE and Pearson."""
    found = agreement(human, judge).estimates
    return (found["mae"].value or 0.0), (found["pearson"].value or 0.0)


def with_intervals(human: Floats, judge: Floats, group: NDArray[Any]) -> str:
    ends = agreement_interval(human, judge, group)
    cells = []
    for name, value in zip(("mae", "pearson"), figures(human, judge), strict=True):
        told = ends[name]
        cells.append(f"{value:.3f}" + (f" [{told[0]:.2f}, {told[1]:.2f}]" if told else ""))
    return " | ".join(cells)


def search(rows: Rows) -> int:
    """The best layer where the head reads, by held-out questions of what is learned from."""
    print("\n| layer | place | strength | median: MAE | Pearson | expected: MAE | Pearson |")
    print("|---" * 7 + "|")
    best: dict[int, float] = {}
    for (place, name), layer in product(enumerate(PLACES), rows.layers):
        states, found = rows.at(layer, place), {}
        for strength in STRENGTHS:
            shares = np.zeros((len(states), len(RATINGS)))
            for inside, outside in GroupKFold(4).split(states, groups=rows.group):
                shares[outside] = Head(states[inside], rows.human[inside], strength).shares(states[outside])
            kinds = [np.array([rating.score(one, kind) for one in shares.tolist()]) for kind in ("median", "expected")]
            found[strength] = [figures(rows.human, scores) for scores in kinds]
        strength = min(found, key=lambda one: found[one][0][0])
        cells = " | ".join(f"{mae:.3f} | {pearson:.3f}" for mae, pearson in found[strength])
        print(f"| {layer} | {name} | {strength:g} | {cells} |", flush=True)
        if place == HEAD_READS:
            best[layer] = found[strength][0][0]
    return min(best, key=lambda one: best[one])


def curve(train: Rows, test: Rows, layer: int) -> float:
    """People's labels alone and with the other judge's, on the same rows and on all. Mean of draws, and their range."""
    states, told, whole = train.at(layer), test.at(layer), len(train.human)
    random, first = np.random.default_rng(0), dict[str, float]()
    print("\n| people's labels | and the other judge's | MAE | Pearson |\n|---|---|---|---|")

    def tried(own: NDArray[np.intp], others: NDArray[np.intp]) -> tuple[float, float]:
        weight = np.concatenate([np.ones(len(own)), np.full(len(others), SHARE if len(own) else 1.0)])
        scores = np.concatenate([train.human[own], train.other[others]])
        chosen = np.concatenate([own, others])
        head = best_head(states[chosen], scores, train.group[chosen], weight)
        return figures(test.human, head.scores(told))

    every, none = np.arange(whole), np.arange(0)
    for count in (0, *(each for each in LABELS if each < whole), whole):
        draws = [random.permutation(whole)[:count] for _ in range(DRAWS if 0 < count < whole else 1)]
        arms = {"none": none, "on the same rows": None, "on all rows": every} if count else {"on all rows": every}
        for arm, others in arms.items():
            if arm == "on all rows" and count == whole:
                continue  # the same rows
            found = [tried(chosen, chosen if others is None else others) for chosen in draws]
            cells = [
                f"{np.mean(metric):.3f}" + (f" ({min(metric):.2f}–{max(metric):.2f})" if len(draws) > 1 else "")
                for metric in zip(*found, strict=True)
            ]
            print(f"| {count} | {arm} | {' | '.join(cells)} |", flush=True)
            if count == LABELS[0]:
                first[arm] = float(np.mean([mae for mae, _ in found]))
    return first["on all rows"] / first["none"]


def foreign(train: dict[str, Rows], tests: dict[str, Rows], layer: int) -> None:
    """Each set by a head that learned from all others, from all, and from its own, each set as much as another."""

    def head(names: list[str]) -> Head:
        states = np.concatenate([train[name].at(layer) for name in names])
        weight = [np.full(len(train[name].human), 1 / len(train[name].human)) for name in names]
        weights = np.concatenate(weight)
        scores = np.concatenate([train[name].human for name in names])
        group = np.concatenate([train[name].group for name in names])
        return best_head(states, scores, group, weights / weights.mean())

    print("\n| judged | learned from | n | MAE | Pearson |\n|---|---|---|---|---|")
    for name, rows in tests.items():
        others = [one for one in train if one != name]
        arms = {"all other sets": others} | ({"all sets": list(train), "its own": [name]} if name in train else {})
        for arm, names in arms.items():
            scores = head(names).scores(rows.at(layer))
            print(
                f"| {name} | {arm} | {len(rows.human)} | {with_intervals(rows.human, scores, rows.group)} |", flush=True
            )
        for arm, names in list(arms.items())[::2]:
            constant = np.full(len(rows.human), np.mean([np.median(train[one].human) for one in names]))
            told = f"{figures(rows.human, constant)[0]:.3f} | –"
            print(f"| {name} | a constant by {arm} | {len(rows.human)} | {told} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a model's folder")
    parser.add_argument("--set", action="append", required=True, help="NAME=FOLDER[,N[,M]]")
    parser.add_argument("--other", help="another judge, whose column the first set has")
    parser.add_argument("--keep", type=Path, default=Path("runs/states"), help="folder for what the base makes of rows")
    parser.add_argument("--layers", default="16,18,20,22")
    given = parser.parse_args()
    layers = [int(each) for each in given.layers.split(",")]
    train, tests = dict[str, Rows](), dict[str, Rows]()
    for word in given.set:
        name, _, rest = word.partition("=")
        folder, each, judged = [*rest.split(","), "1000000", "1000000"][:3]
        for part, most, into in (("train", each, train), ("internal", judged, tests)):
            file, kept = Path(folder) / f"{part}.jsonl", given.keep / f"{name}-{part}.npz"
            if file.is_file():
                into[name] = rows_of(file, int(most), kept, given.base, layers, given.other if not into else None)
    first = next(iter(train))
    layer = search(train[first])
    line: dict[str, Any] = {"name": "heads", "ratio": None, "layer": layer}
    if given.other:
        line["ratio"] = round(curve(train[first], tests[first], layer), 4)
    if len(train) > 1:
        foreign(train, tests, layer)
    print(json.dumps(line | {"cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
