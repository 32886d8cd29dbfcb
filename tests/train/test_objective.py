"""What training minimises: equal to the plain thing written out, alone, padded and packed, and small in memory."""

from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from byte_pairs import train_byte_pairs
from hypothesis import given
from hypothesis import strategies as st
from training import FAMILIES, objective_with, pairs_of_answers, prepare_rows, recipe_with, sample_rows, tiny_model

from objective import RatingTokens, log_distribution, rating_tokens  # isort: skip
from recipe import FullRecipe, objective_of  # isort: skip
from objectives import sft  # isort: skip
from objectives.raft import RaftSpec, compute_rating_error  # isort: skip
from recipe_keys import RankSpec  # isort: skip
from tiny import random_model  # isort: skip
import batches as batches_module  # isort: skip
import loop  # isort: skip
import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from torch.nn.functional import logsigmoid
from torch.utils._python_dispatch import TorchDispatchMode

from critic.errors import UsageError
from critic.judging.targets import IGNORED, target

MIX = {"pointwise": 1.0, "pointwise_reason_first": 1.0, "scale_5": 1.0, "correct": 1.0, "pairwise": 1.0}
EACH_ATTENTION = pytest.mark.parametrize("attention", ["sdpa", "eager"])
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Tokenized rows in every form, the tokenizer, and five rows of different lengths, the last without a rating."""
    folder = tmp_path_factory.mktemp("objective")
    people = [*sample_rows(12), *(dict(row, id=f"pair-{row['id']}") for row in pairs_of_answers(8))]
    recipe, data, tokenizer = prepare_rows(folder, people, forms=MIX)
    every = [data.rows[place] for place in range(len(data.rows))]
    rated = [row for row in every if row["form"] == "pointwise"]
    several = next(row for row in rated if len([share for share in row["people"] if share]) == 3)
    half = next(row for row in rated if len([share for share in row["people"] if share]) == 2)
    ten = next(row for row in rated if row["rating"] == 10)
    lowest = next(row for row in rated if row["rating"] == 1)
    chosen = [several, ten, half, lowest, next(row for row in every if row["form"] == "pairwise")]
    assert len({row["length"] for row in chosen}) >= 4
    return SimpleNamespace(
        recipe=recipe,
        data=data,
        tokenizer=tokenizer,
        tokens=rating_tokens(tokenizer),
        rows=chosen,
        even=batches_module.Weights(1.0, [1.0] * 11),
        uneven=batches_module.Weights(3.0, [0.5 + 0.1 * rating for rating in range(11)]),
    )


def batches(env: SimpleNamespace, weighing: Any = None, **options: Any) -> Any:
    return batches_module.Batches(env.tokenizer.pad_token_id, weighing or env.uneven, **options)


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def same(ours: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    scale = max(float(each.abs().max()) for each in others)
    assert scale > 1e-3
    for mine, other in zip(ours, others, strict=True):
        assert float((mine - other).abs().max()) < 2e-5 * scale


@EACH_ATTENTION
@EACH_FAMILY
def test_the_loss_is_transformers_own(env: SimpleNamespace, family: str, attention: str) -> None:
    batch = batches(env, env.even)(env.rows)
    weights = batch.pop("weights")
    assert bool((weights[batch["labels"] != IGNORED] == 1).all())
    model = tiny_model(family, attention, len(env.tokenizer))
    plain = model(**batch, use_cache=False).loss
    wanted = gradients(model, plain)
    objective_with().install(model)
    ours = model(**batch, weights=weights).loss
    assert ours.item() == pytest.approx(plain.item(), rel=1e-6)
    same(gradients(model, ours), wanted)
    count = int((batch["labels"] != IGNORED).sum())
    assert model(**batch, weights=3 * weights).loss.item() == pytest.approx(3 * plain.item(), rel=1e-6)
    halved = model(**batch, weights=weights, num_items_in_batch=2 * count).loss
    assert halved.item() == pytest.approx(plain.item() / 2, rel=1e-6)
    assert model(input_ids=batch["input_ids"]).logits.shape[-1] == len(env.tokenizer)


@pytest.mark.parametrize(("packing", "name"), [(False, "sft"), (True, "sft"), (True, "raft")])
def test_parts_are_the_whole(env: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, packing: bool, name: str) -> None:
    model = tiny_model("llama", "sdpa", len(env.tokenizer))
    objective = objective_with(name, env.tokens)
    objective.install(model)
    batch = batches(env, collation=objective, packing=packing)(env.rows)
    whole = model(**batch).loss
    wanted = gradients(model, whole)
    learned = int((batch["labels"] != IGNORED).sum())
    for size in (1, 7, learned - 1, learned):
        monkeypatch.setattr(sft, "rows_at_once", lambda _, size=size: size)
        parts = model(**batch).loss
        assert parts.item() == pytest.approx(whole.item(), rel=1e-6)
        same(gradients(model, parts), wanted)


class Sizes(TorchDispatchMode):
    """The most rows of a tensor as wide as the vocabulary that any operation makes."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.most = vocabulary, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if func.is_view:  # of the head's weights
                continue
            if isinstance(each, torch.Tensor) and each.dim() > 1 and each.shape[-1] == self.vocabulary:
                self.most = max(self.most, each.numel() // self.vocabulary)
        return out


def test_logits_of_all_tokens_are_never_in_memory(env: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", "sdpa", len(env.tokenizer))
    batch = batches(env)(env.rows)
    learned, tokens = int((batch["labels"] != IGNORED).sum()), batch["input_ids"].numel()
    assert learned < tokens / 2

    def most(**options: Any) -> int:
        with Sizes(len(env.tokenizer)) as sizes:
            model(**options).loss.backward()
        return sizes.most

    plain = {name: value for name, value in batch.items() if name != "weights"}
    assert most(**plain) >= tokens - len(env.rows)
    objective_with().install(model)
    assert most(**batch) == learned
    monkeypatch.setattr(sft, "rows_at_once", lambda _: 8)
    assert most(**batch) == 8
    raft = tiny_model("llama", "sdpa", len(env.tokenizer))
    objective = objective_with("raft", env.tokens)
    objective.install(raft)
    model = raft
    rated = [row for row in env.rows if row["rating"]]
    monkeypatch.setattr(sft, "rows_at_once", lambda _: 1)
    assert len(rated) > 1 and most(**batches(env, collation=objective)(env.rows)) == 2, "behind a rating and behind a 1"


class Waits(TorchDispatchMode):
    """Raises where the GPU would be waited for: a number is asked for, or how many are true."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = args[1] if func is torch.ops.aten.index.Tensor else []
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        assert not any(each is not None and each.dtype is torch.bool for each in masks)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["squared", "rps"])
def test_a_micro_batch_waits_for_nothing(env: SimpleNamespace, kind: Literal["squared", "rps"]) -> None:
    model = tiny_model("llama", "sdpa", len(env.tokenizer)).train()
    counts = loop.Meter(model, env.tokenizer.pad_token_id)
    objective = objective_with("raft", env.tokens, raft=RaftSpec(kind=kind))
    objective.install(model)
    batch = batches(env, collation=objective)(env.rows)
    with Waits():
        counts.add(batch)
        model(**batch, num_items_in_batch=torch.tensor(9)).loss.backward()
    with pytest.raises(AssertionError), Waits():
        batches_module.find_learned_places(batch["labels"])


def spelt(model: Any, row: dict[str, Any], tokens: Any) -> torch.Tensor:
    """Probabilities of 1..10, from plain forward passes of a row's beginning, alone and with a 1 behind it: a 0 comes
    there, or what may follow a rating."""
    prefix = list(row["input_ids"][: row["value"][0]])
    follows = tokens.ending if row["input_ids"][row["value"][-1] + 1] in tokens.ending else tokens.going_on

    def after(ids: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].softmax(-1)

    first = after(prefix)
    shares = [first[token] for token in tokens.first]
    if tokens.zero is not None:
        behind = after([*prefix, tokens.first[0]])
        zero = behind[tokens.zero] / (behind[tokens.zero] + behind[follows].sum())
        shares = [shares[0] * (1 - zero), *shares[1:9], shares[0] * zero]
    whole = torch.stack(shares)
    return whole / whole.sum()


def raft_by_hand(model: Any, rows: list[dict[str, Any]], weighing: Any, tokens: Any, kind: str) -> torch.Tensor:
    """The sum over rated rows of row weight times error."""
    total = torch.zeros(())
    for row in rows:
        if not row["rating"]:
            continue
        mine, people = spelt(model, row, tokens), torch.tensor(row["people"])
        if kind == "squared":
            error = sum((mine[i] - people[i]) * (i + 1) for i in range(10)) ** 2
        else:
            error = sum((mine[: i + 1].sum() - people[: i + 1].sum()) ** 2 for i in range(10))
        total = total + weighing.by_rating[row["rating"]] * error
    return total


@pytest.mark.parametrize(
    ("family", "attention", "kind"), [("llama", "sdpa", "squared")] + [(family, "sdpa", "rps") for family in FAMILIES]
)
def test_raft_is_sft_and_the_error_of_the_distribution(
    env: SimpleNamespace, family: str, attention: str, kind: Literal["squared", "rps"]
) -> None:
    model = tiny_model(family, attention, len(env.tokenizer)).train()
    by_hand = raft_by_hand(model, env.rows, env.uneven, env.tokens, kind)
    objective_with().install(model)
    cross_entropy = model(**batches(env)(env.rows), num_items_in_batch=50).loss
    wanted = gradients(model, cross_entropy + 4.0 * by_hand / 50)
    raft = tiny_model(family, attention, len(env.tokenizer)).train()
    objective = objective_with("raft", env.tokens, raft=RaftSpec(kind=kind, weight=4.0))
    objective.install(raft)
    loss = raft(**batches(env, collation=objective)(env.rows), num_items_in_batch=50).loss
    assert by_hand.item() > 0.1
    assert loss.item() - cross_entropy.item() == pytest.approx(4.0 * by_hand.item() / 50, rel=2e-4)
    same(gradients(raft, loss), wanted)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", ["raft", "head"])
def test_a_ranking_is_bradley_and_terrys_of_expected_ratings(env: SimpleNamespace, name: str, packing: bool) -> None:
    """Of three answers in a group, by points; none of a tie, of a judge's score with people's, or of other groups."""
    rows = [{**env.rows[place], "group": group} for place, group in zip([0, 1, 2, 3, 3, 1, 0], "aaabbbc", strict=True)]
    rows[5]["scorer"] = "gpt4"
    tokens, model, losses = env.tokens if name == "raft" else None, None, []
    for rank in (None, RankSpec(weight=0.5, margin=0.2)):
        objective = objective_with(name, tokens, rank=rank)
        model = model or random_model(env.recipe.tiny, env.tokenizer, 2000, objective.head_config())
        objective.install(model)
        losses.append(model(**batches(env, collation=objective, packing=packing)(rows), num_items_in_batch=50).loss)
    total, scores, expected = torch.zeros(()), [], []
    for row in rows[:3]:
        prompt = torch.tensor([row["input_ids"][: row["source"]]])
        shares = spelt(model, row, tokens) if tokens else model(input_ids=prompt).logits[0].softmax(-1)
        expected.append(shares @ torch.arange(1.0, 11.0))
        scores.append(sum(share * rating for rating, share in enumerate(row["people"], 1)))
    for better, worse in ((1, 0), (1, 2), (0, 2)):
        points, ahead = scores[better] - scores[worse], expected[better] - expected[worse]
        weight = (env.uneven.of_row(rows[better]) * env.uneven.of_row(rows[worse])) ** 0.5 / 2
        total = total - 0.5 * weight * points * logsigmoid(ahead - 0.2 * points) / 50
    assert scores[1] > scores[0] > scores[2] and total.item() > 0.01
    assert (losses[1] - losses[0]).item() == pytest.approx(total.item(), rel=1e-4)
    same(gradients(model, losses[1] - losses[0]), gradients(model, total))


TWO_TOKENS = RatingTokens([3], [*range(10, 19), 10], 20, [21, 22], [23])
ONE_TOKEN = RatingTokens([3], list(range(10, 20)), None)


@given(st.lists(st.floats(-8, 8), min_size=60, max_size=60))
def test_the_distribution_by_its_definition(numbers: list[float]) -> None:
    at_rating, behind = torch.tensor(numbers).reshape(2, 1, 30)
    first, second = at_rating.softmax(-1)[0].double().numpy(), behind.softmax(-1)[0].double().numpy()
    for last, follows in ((None, [21, 22]), (torch.tensor([False]), [21, 22]), (torch.tensor([True]), [23])):
        ten = second[20] / (second[20] + second[follows].sum())
        raw = np.array([first[10] * (1 - ten), *first[11:19], first[10] * ten])
        shares = log_distribution(TWO_TOKENS, at_rating, behind, last).exp()[0].numpy()
        assert shares == pytest.approx(raw / raw.sum(), abs=2e-6)
    raw = first[10:20]
    shares = log_distribution(ONE_TOKEN, at_rating, None).exp()[0].numpy()
    assert shares == pytest.approx(raw / raw.sum(), abs=2e-6)


@pytest.mark.parametrize("sure", [-200.0, 200.0])
def test_certainty_has_a_finite_loss_and_gradient(sure: float) -> None:
    """Behind a 1 a 0 is certain, or cannot come; and the 1 itself is certain."""
    at_rating, behind = torch.zeros(1, 30), torch.zeros(1, 30)
    at_rating[0, 10], behind[0, 20] = 200.0, sure
    at_rating.requires_grad_(), behind.requires_grad_()
    people = torch.eye(10)[4:5]
    for kind in ("squared", "rps"):
        error = compute_rating_error(kind, log_distribution(TWO_TOKENS, at_rating, behind), people)
        parts = torch.autograd.grad(error.sum(), [at_rating, behind])
        assert bool(error.isfinite().all()) and all(bool(part.isfinite().all()) for part in parts)


def tokenizer_that_isolates(pattern: str, texts: list[str]) -> Any:
    split = Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    template = "{% for m in messages %}{{ m['content'] }}<end>{% endfor %}"
    return train_byte_pairs(texts * 5, 320, ["<pad>", "<end>"], "<end>", pre_tokenizer=split, chat_template=template)


VERDICTS = [target(rating, "") for rating in range(1, 11)]


def test_ratings_however_a_tokenizer_spells_them(env: SimpleNamespace) -> None:
    digits = rating_tokens(env.tokenizer)
    assert [env.tokenizer.decode([token]) for token in digits.first] == [*"123456789", "1"]
    assert env.tokenizer.decode([digits.zero]) == "0"
    assert env.tokenizer.decode(digits.before) == '{"Rating":'
    going_on = {env.tokenizer.decode([token]) for token in digits.going_on}
    assert {",", ',"Reason":"'} <= going_on and all(text[0] == "," and "\n" not in text for text in going_on)
    assert {env.tokenizer.decode([token])[0] for token in digits.ending} == {"}"}
    whole = tokenizer_that_isolates("10|[0-9]", VERDICTS)
    tokens = rating_tokens(whole)
    assert tokens.zero is None and [whole.decode([token]) for token in tokens.first] == [str(n) for n in range(1, 11)]
    with pytest.raises(UsageError, match="does not spell the ratings"):
        rating_tokens(tokenizer_that_isolates('[":]+[0-9]+', VERDICTS[:3]))


@pytest.mark.parametrize("kind", ["squared", "rps"])
def test_raft_where_ten_is_one_token(kind: Literal["squared", "rps"]) -> None:
    tokenizer = tokenizer_that_isolates("10|[0-9]", VERDICTS)
    tokens = rating_tokens(tokenizer)
    rows = []
    for rating, prompt in ((10, "good"), (1, "no good at all"), (4, "?")):
        source = tokenizer(prompt).input_ids
        ids = source + tokenizer(target(rating, "so")).input_ids + [1]
        value = ids.index(tokens.first[rating - 1], len(source))
        people = [float(each == rating) for each in range(1, 11)]
        rows.append(
            {"input_ids": ids, "source": len(source), "value": [value]}
            | {"length": len(ids), "rating": rating, "people": people, "weight": 1.0}
        )
    weighing = batches_module.Weights(1.0, [1.0] * 11)
    model = tiny_model("llama", "sdpa", len(tokenizer))
    by_hand = raft_by_hand(model, rows, weighing, tokens, kind)
    objective = objective_with("raft", tokens, raft=RaftSpec(kind=kind, weight=4.0))
    objective.install(model)
    written = tiny_model("llama", "sdpa", len(tokenizer))
    objective_with().install(written)
    plain = written(**batches_module.Batches(0, weighing)(rows), num_items_in_batch=10).loss
    loss = model(**batches_module.Batches(0, weighing, objective)(rows), num_items_in_batch=10).loss
    assert loss.item() - plain.item() == pytest.approx(0.4 * by_hand.item(), rel=2e-4)


def test_the_value_counts_more_in_every_form(env: SimpleNamespace) -> None:
    recipe = msgspec.convert(recipe_with(forms=MIX, rating_weight=5.0), FullRecipe)
    weighing = objective_of(recipe).weights(env.data.rows)
    values: dict[str, set[str]] = {}
    for row in env.data.rows:
        batch = batches(env, weighing)([row])
        labels, shares = batch["labels"][0].tolist(), batch["weights"][0].tolist()
        learned = [(share, label) for share, label in zip(shares, labels, strict=True) if label != IGNORED]
        light = min(share for share, _ in learned)
        assert {round(share / light, 4) for share, _ in learned} == {1.0, 5.0}
        heavy = env.tokenizer.decode([label for share, label in learned if share > light])
        values.setdefault(row["form"], set()).add(heavy)
    assert values["pointwise"] == values["pointwise_reason_first"] == {"1", "2", "5", "6", "7", "9", "10"}
    assert values["scale_5"] <= {*"12345"} and len(values["scale_5"]) >= 4
    assert values["correct"] == {"yes", "no"} and values["pairwise"] == {"A", "B"}


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rating_weight", [1.0, 4.0])
def test_weights_average_one_and_balance_the_ratings(
    env: SimpleNamespace, balance: float, rating_weight: float
) -> None:
    recipe = msgspec.convert(recipe_with(forms=MIX, rating_weight=rating_weight, balance=balance), FullRecipe)
    weighing = objective_of(recipe).weights(env.data.rows)
    every = [env.data.rows[place] for place in range(len(env.data.rows))]
    batch = batches(env, weighing)(every)
    learned = batch["labels"] != IGNORED
    assert float(batch["weights"][learned].mean()) == pytest.approx(1.0, rel=1e-5)
    counts = {k: sum(row["rating"] == k for row in every) for k in range(1, 11)}
    present = [k for k in counts if counts[k]]
    assert len(set(counts.values())) > 2
    products = [weighing.by_rating[k] * (counts[k] / len(every)) ** balance for k in present]
    assert products == pytest.approx([products[0]] * len(present))
    rated = [weighing.by_rating[row["rating"]] for row in every if row["rating"]]
    assert np.mean(rated) == pytest.approx(weighing.by_rating[0]), "rated rows count as much as the others on average"
