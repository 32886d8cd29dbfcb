"""What rows begin with in common is computed once, and nothing else changes: losses and gradients are those of rows
that stand alone in transformers' own model, and a mask, a position or a window that is wrong shows."""

import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import FAMILIES, HYBRID, logged, objective_with, save_base, tiny_model, train, write_recipe, write_rows

import attention  # isort: skip
import evaluation  # isort: skip
import loop  # isort: skip
from objective import RatingTokens, log_distribution  # isort: skip
from objectives.raft import RaftSpec, compute_rating_error  # isort: skip
import packing  # isort: skip
import batches as batches_module  # isort: skip
import torch
import transformers
from torch.nn import functional
from torch.nn.attention import flex_attention
from torch.utils.data import DataLoader

VOCABULARY = 60
TOKENS = RatingTokens([3], [*range(10, 19), 10], 20, [21, 22], [7, 9])
WEIGHING = batches_module.Weights(3.0, [0.5 + rating / 8 for rating in range(11)])
COUNT = 40
"""Learned tokens of the step; any number will do."""


def made_row(ids: list[int], source: int, rating: int) -> dict[str, Any]:
    value = source + 2
    people = [0.0] * 10
    if rating:
        people[rating - 1], people[(rating + 2) % 10] = 0.75, 0.25
    spelt = {"value": [value] if rating else []}
    known = {"source": source, "length": len(ids), "rating": rating, "people": people, "weight": 1.0}
    return {"input_ids": ids, **known, **spelt}


@pytest.fixture(scope="module")
def batch() -> list[dict[str, Any]]:
    """Seven rows of two rubrics, one with two questions; one row is another's beginning, one has no rating, one is
    alike but for what people said of it, and one has nothing in common with any."""
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> list[int]:
        return torch.randint(21, VOCABULARY, (count,), generator=draw).tolist()

    rubric, other = some(40), some(30)
    question, prompt = [*rubric, *some(20)], [*other, *some(9)]
    first = [*question, *some(11)]
    rows = [
        made_row([*first, 3, 3, 15, 7, 8], len(first), 6),
        made_row([*first, 4, 3, 11, 7], len(first), 2),
        made_row([*question, *some(7), 3, 3, 10, 20, 9], len(question) + 7, 10),
        made_row([*rubric, *some(17), 3, 3, 12, 9], len(rubric) + 17, 3),
        made_row([*prompt, 3, 4], len(prompt), 0),
        made_row([*prompt, 3, 4, 13, 9], len(prompt), 4),
    ]
    lonely = some(33)
    rows[1]["weight"] = 0.25
    return [*rows, {**rows[0], "rating": 1, "people": [1.0] + [0.0] * 9}, made_row([*lonely, 3, 4, 14, 21], 33, 5)]


def alone(model: Any, rows: list[dict[str, Any]], raft: Any) -> torch.Tensor:
    """The loss by plain forward passes of one row at a time."""
    total = torch.zeros(())

    def after(ids: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()

    for row in rows:
        ids, of_row = row["input_ids"], WEIGHING.by_rating[row["rating"]] * row["weight"]
        nll = functional.cross_entropy(after(ids)[:-1], torch.tensor(ids[1:]), reduction="none")
        for place in range(row["source"], len(ids)):
            value = place in row["value"]
            total = total + of_row * (WEIGHING.value if value else 1.0) * nll[place - 1]
        if raft and row["rating"]:
            begun = ids[: row["value"][0]]
            ends = after(begun)[-1:], after([*begun, TOKENS.first[0]])[-1:]
            last = torch.tensor([ids[row["value"][-1] + 1] in TOKENS.ending])
            logs = log_distribution(TOKENS, *ends, last)
            error = compute_rating_error(raft.kind, logs, torch.tensor([row["people"]]))
            total = total + raft.weight * of_row * error[0]
    return total / COUNT


def learning(raft: Any) -> Any:
    """Return the objective raft by its section of a recipe, sft without one."""
    return objective_with("raft", TOKENS, raft=raft) if raft else objective_with()


def packed(rows: list[dict[str, Any]], raft: Any, **options: Any) -> dict[str, Any]:
    batch: dict[str, Any] = batches_module.Batches(0, WEIGHING, learning(raft), packing=True, **options)(rows)
    return batch


def off(ours: torch.Tensor, model: Any, plain: torch.Tensor, reference: Any) -> tuple[float, float]:
    """How far a loss and its gradients are from the reference's, as shares of the loss and of the largest gradient."""
    ours.backward()
    plain.backward()
    pairs = [(a.grad, b.grad) for a, b in zip(model.parameters(), reference.parameters(), strict=True)]
    scale = max(float(b.abs().max()) for _, b in pairs)
    assert scale > 1e-3
    return abs(1 - ours.item() / plain.item()), max(float((a - b).abs().max()) for a, b in pairs) / scale


@pytest.fixture
def flex_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention uncompiled, which has a backward pass on a CPU if it is not asked whether it has one."""

    def uncompiled(*given: Any, training: bool, **options: Any) -> Any:
        return flex_attention.flex_attention(*given, **options)

    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", uncompiled)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)


EACH = [(family, kind, RaftSpec()) for family in FAMILIES for kind in ("sdpa", "flex_attention", None)]


@pytest.mark.parametrize(("family", "kind", "raft"), [*EACH, ("gemma3_text", "sdpa", None), (HYBRID, None, RaftSpec())])
def test_shared_or_padded_it_is_the_rows_alone(
    batch: list[dict[str, Any]],
    family: str,
    kind: str | None,
    raft: Any,
    monkeypatch: pytest.MonkeyPatch,
    flex_on_a_cpu: None,
) -> None:
    """Key/value heads that queries share, windows, three levels of prefixes and the 1 beside each rating; without a
    `kind` of attention rows are padded."""
    monkeypatch.setattr(packing, "IN_VAIN", 100)  # as with long rows: hardly any are taken together
    if raft is None:
        monkeypatch.setattr(attention, "KEPT", 0)  # as with longer ones still: PyTorch's kernel
    reference, model = (tiny_model(family, "sdpa", VOCABULARY).train() for _ in range(2))
    assert attention.install(model, kind) == (family != HYBRID)
    learning(raft).install(model)
    if kind is None:
        given = batches_module.Batches(0, WEIGHING, learning(raft), packing=False)(batch)
        assert len(given["input_ids"]) == len(batch) + sum(row["rating"] > 0 for row in batch)
    else:
        assert model.model.config._attn_implementation == attention.OVER_TREES[kind]
        given = packed(batch, raft)
        assert given["input_ids"].shape[1] < 0.6 * sum(row["length"] for row in batch)
    loss, gradient = off(model(**given, num_items_in_batch=COUNT).loss, model, alone(reference, batch, raft), reference)
    assert loss < 1e-6 and gradient < 2e-6
    masks = 2 if family == "gemma3_text" else 1
    assert kind is None or len(given["tree"]._kept) == masks, "a mask for each window, not each layer"


@pytest.mark.parametrize("family", ["gemma3_text", "glm"])
def test_checkpointed_and_adapted_it_is_the_same(batch: list[dict[str, Any]], family: str) -> None:
    from peft import LoraConfig, get_peft_model

    def adapted(model: Any) -> Any:
        torch.manual_seed(2)
        config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        return get_peft_model(model, config).train()

    raft = RaftSpec()
    reference = adapted(tiny_model(family, "sdpa", VOCABULARY))
    model = tiny_model(family, "sdpa", VOCABULARY)
    learning(raft).install(model)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    model = adapted(model)
    ours, plain = model(**packed(batch, raft), num_items_in_batch=COUNT).loss, alone(reference, batch, raft)
    ours.backward()
    plain.backward()
    assert ours.item() == pytest.approx(plain.item(), rel=1e-6)
    pairs = [
        (a.grad, b.grad) for a, b in zip(model.parameters(), reference.parameters(), strict=True) if a.requires_grad
    ]
    scale = max(float(b.abs().max()) for _, b in pairs)
    assert len(pairs) > 20 and max(float((a - b).abs().max()) for a, b in pairs) < 2e-6 * scale


def test_large_keys_cost_a_cpu_no_precision_in_bf16() -> None:
    """What all keys share, as of a base with biases (Qwen2), makes scores of hundreds."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 50, 32) for heads in (4, 2, 2))
    query[..., 0], key[..., 0] = query[..., 0] + 5, key[..., 0] + 300
    exact = [each.bfloat16().double().requires_grad_() for each in (query, key, value)]
    query, key, value = given = [each.detach().bfloat16().requires_grad_() for each in exact]
    mask = torch.full((1, 1, 50, 50), -torch.inf).triu(1)
    ours, _ = attention._attend_by_matmuls(None, query, key, value, mask.bfloat16())
    plain = torch.nn.functional.scaled_dot_product_attention(*exact, attn_mask=mask.double(), enable_gqa=True)
    for result in (ours.transpose(1, 2), plain):
        (result * torch.linspace(-1, 1, 32, dtype=result.dtype)).sum().backward()
    results = [ours.transpose(1, 2), *(each.grad for each in given)]
    wanted = [plain, *(each.grad for each in exact)]
    assert all((a - b).norm().item() < 0.02 * b.norm().item() for a, b in zip(results, wanted, strict=True))


def test_the_window_is_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a prefix longer than the window a token sees the last of it alone."""
    monkeypatch.setattr(packing, "IN_VAIN", -1)
    tree = packing.Tree([6, 2, 3], [-1, 0, 0])
    seen = [(mask[0, 0] == 0).int().tolist() for mask in tree.masks(4, torch.zeros(()))]
    assert seen[1] == [[0, 0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1]]
    assert seen[2][2] == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert (tree.masks(None, torch.zeros(()))[1] == 0).int()[0, 0].tolist() == [[1] * 7 + [0], [1] * 8]


def test_auto_is_flex_attention_where_it_can_be(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    there: set[str] = set()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "a GPU" in there)
    monkeypatch.setattr(attention, "find_spec", lambda name: name if name in there else None)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert attention.choose_attention("auto", packed=True) == "sdpa" and not capsys.readouterr().out
    for packed, more, kind in (
        (True, "a GPU", "sdpa"),
        (True, "triton", "sdpa"),
        (True, "clang", "sdpa"),
        (True, "Python.h", "flex_attention"),
        (False, "", "sdpa"),
    ):
        there.add(more)
        (tmp_path / more).touch()
        assert attention.choose_attention("auto", packed=packed) == kind
        said = capsys.readouterr().out
        assert said.startswith(f"attention {kind}") and ("a C compiler" in said) == (kind == "sdpa")
    assert attention.choose_attention("flash_attention_2", packed=True) == "flash_attention_2"


def test_layers_that_keep_a_state_do_not_pack() -> None:
    def model(*kinds: str) -> Any:
        text = SimpleNamespace(layer_types=list(kinds), _attn_implementation="tree_sdpa")
        decoder = SimpleNamespace(config=text)
        return SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text), get_decoder=lambda: decoder)

    assert attention.install(model("full_attention", "sliding_attention"))
    assert not attention.install(model("full_attention", "linear_attention"))
    assert attention.list_obstacles(tiny_model(HYBRID, "sdpa", VOCABULARY)) == ["linear_attention"]
    state = transformers.AutoConfig.for_model("mamba2", hidden_size=8, num_heads=4, head_dim=4, num_hidden_layers=1)
    assert attention.list_obstacles(transformers.AutoModelForCausalLM.from_config(state)), "it names no kinds of layers"


@pytest.mark.parametrize(("family", "zero"), [("llama", 20), ("glm", None), ("gemma3_text", 20), (HYBRID, 20)])
def test_held_out_rows_are_judged_as_alone(batch: list[dict[str, Any]], family: str, zero: int | None) -> None:
    tokens = RatingTokens([3], [*range(10, 19), 10 if zero else 19], zero, [21, 22], [23])
    objective = objective_with("sft", tokens)
    rows = [row["input_ids"][: row["source"] + 2] + ([10] if zero else []) for row in batch]
    prompts = [batches_module.build_prompt_row(ids, [], []) for ids in rows]
    model = tiny_model(family, "sdpa", VOCABULARY)
    computed: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, given: computed.append(given["input_ids"].numel()), with_kwargs=True
    )
    padded = SimpleNamespace(pad_token_id=0)
    for size in (2, 3, 16):
        distributions = torch.tensor(evaluation.compute_distributions(model, padded, prompts, objective, size))
        plain = tiny_model(family, "sdpa", VOCABULARY)
        for ids, shares in zip(rows, distributions, strict=True):
            logits = plain(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
            behind = logits[-1:] if zero else None
            wanted = log_distribution(tokens, logits[-2:-1] if zero else logits[-1:], behind).exp()[0]
            assert shares.float().tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    assert (computed[-1] < 0.6 * sum(map(len, rows))) == (family != HYBRID)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(("lora", "stages"), [(None, (1, 2, 3)), ({"r": 4}, (2, 3))], ids=["whole", "adapters"])
def test_on_two_processes_it_learns_as_rows_one_by_one(lora: Any, stages: tuple[int, ...], tmp_path: Path) -> None:
    """Micro-batches of one row share nothing; those of four do, checkpointed, under each of ZeRO's stages."""
    rows = write_rows(tmp_path)
    changes: dict[str, Any] = {"tiny": None, "base": str(save_base(tmp_path / "base", rows)), "lora": lora}
    changes |= {"objective": "raft", "packing": True, "global_batch": 8, "rating_weight": 3.0, "balance": 0.5}
    # A learning rate at which rounding does not grow within three steps.
    steps: dict[str, Any] = {"max_steps": 3, "save_steps": 3, "learning_rate": 1e-3}
    runs = {}
    for stage, size, processes in [(1, 1, 1), *((stage, 4, 2) for stage in stages)]:
        training = {**steps, "per_device_train_batch_size": size, "gradient_checkpointing": size > 1}
        zero = {"zero_optimization": {"stage": stage}}
        recipe = write_recipe(tmp_path, f"{stage}-{size}.yaml", **changes, training=training, deepspeed=zero)
        train(recipe, rows, tmp_path / f"{stage}-{size}", processes=processes)
        runs[stage, size] = logged(tmp_path / f"{stage}-{size}")
    alone = runs.pop((1, 1))
    assert len(runs) == len(stages) and {"loss", "grad_norm"} <= set(alone[0])
    assert any("eval_mae" in line for line in alone)
    for lines in runs.values():
        for line, wanted in zip(lines, alone, strict=True):
            assert line == pytest.approx(wanted, rel=1e-4, abs=1e-4)


WORDS = st.lists(st.sampled_from([[1] * 9, [2] * 8, [1, 2, 3], [3]]), min_size=1, max_size=7)
ROWS = st.lists(WORDS.map(lambda words: [token for word in words for token in word] + [7, 8]), min_size=1, max_size=9)


def paths(tree: packing.Tree) -> list[torch.Tensor]:
    """The places of all tokens that a segment's last one sees, for each segment."""
    seen: list[torch.Tensor] = []
    for own, parent in zip(torch.arange(sum(tree.lengths)).split(tree.lengths), tree.parents, strict=True):
        seen.append(torch.cat([seen[parent], own]) if parent >= 0 else own)
    return seen


@given(ROWS, st.integers(1, 20))
def test_every_row_is_a_path(rows: list[list[int]], least: int) -> None:
    nodes = packing.build_prefix_tree(rows, [len(row) - 2 for row in rows], least)
    tree = packing.Tree([node.end - node.start for node in nodes], [node.parent for node in nodes])
    given = packing.build_sequence(nodes, rows)
    tokens = torch.stack([given["input_ids"][0], given["position_ids"][0]], -1)
    assert tree.spans[0].tolist() == given["position_ids"][0].tolist()
    assert sorted(node.row for node in nodes if node.leaf) == list(range(len(rows)))
    children = [sum(each.parent == place for each in nodes) for place in range(len(nodes))]
    for place, (node, path) in enumerate(zip(nodes, paths(tree), strict=True)):
        assert tokens[path].tolist() == [[token, at] for at, token in enumerate(rows[node.row][: node.end])]
        assert tree.depths[place] == node.end
        if node.leaf:
            assert node.end == len(rows[node.row]) and node.end - node.start >= 2 and not children[place]
        else:
            assert node.end - node.start >= least and children[place] >= 2
    if least == 1:
        prefixes = {tuple(row[:end]) for row in rows for end in range(1, len(row) - 1)}
        assert sum(tree.lengths) == len(prefixes) + 2 * len(rows), "nothing that could be shared is computed twice"


@given(ROWS, st.sampled_from([-1, 30, 200, 10**6]), st.sampled_from([None, 1, 4]))
def test_calls_look_at_paths(rows: list[list[int]], in_vain: int, window: int | None) -> None:
    """Whichever segments are taken together, each token sees its path and no more."""
    nodes = packing.build_prefix_tree(rows, [len(row) - 2 for row in rows], 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "IN_VAIN", in_vain)
        tree = packing.build_sequence(nodes, rows)["tree"]
    places = torch.arange(sum(tree.lengths), dtype=torch.float32)[:, None]
    wanted = []
    for length, path in zip(tree.lengths, paths(tree), strict=True):
        looks = range(len(path) - length, len(path))
        wanted += [path[max(0, at + 1 - (window or at + 1)) : at + 1].tolist() for at in looks]
    visible = []
    for mask, looked_at in zip(tree.masks(window, places), tree.keys(places), strict=True):
        visible += [looked_at[row == 0, 0].int().tolist() for row in mask[0, 0]]
    assert visible == wanted
    mask = packing._build_block_mask(tree.spans, window, tile=4)
    count = len(wanted)
    seen = flex_attention.create_mask(mask.mask_mod, 1, 1, count, count, device="cpu")[0, 0]
    assert [row.nonzero()[:, 0].tolist() for row in seen] == [sorted(each) for each in wanted]
    pairs = functional.pad(seen, (0, -count % 4, 0, -count % 4)).unfold(0, 4, 4).unfold(1, 4, 4)
    whole, some = pairs.all(-1).all(-1), pairs.any(-1).any(-1)
    assert mask.to_dense()[0, 0].bool().ge(some).all() and (window or mask.to_dense()[0, 0].bool().equal(some))
    for tiles, listed, number in zip(whole, mask.full_kv_indices[0, 0], mask.full_kv_num_blocks[0, 0], strict=True):
        assert tiles[listed[:number].long()].all(), "computed without being masked"
        assert window or number == tiles.sum()
    assert len(tree.calls) == len(nodes) if in_vain < 0 else len(tree.calls) == 1 or in_vain < 10**6


@given(ROWS, st.integers(1, 5))
def test_rows_that_begin_alike_meet(rows: list[list[int]], size: int) -> None:
    order = packing.order_by_prefix(rows, size)
    assert sorted(order) == list(range(len(rows)))

    def computed(places: list[int]) -> int:
        tokens = 0
        for start in range(0, len(places), size):
            chosen = [rows[place] for place in places[start : start + size]]
            tokens += sum(
                node.end - node.start for node in packing.build_prefix_tree(chosen, list(map(len, chosen)), 1)
            )
        return tokens

    assert packing.order_by_prefix([[1] * 9, [2] * 9, [1] * 8, [2] * 8], 2) in (
        [0, 2, 1, 3],
        [2, 0, 3, 1],
        [2, 0, 1, 3],
    )
    if len(rows) <= size:
        assert computed(order) == computed(list(range(len(rows))))


def test_other_processes_make_the_same_batches(batch: list[dict[str, Any]]) -> None:
    def loaded(workers: int) -> list[dict[str, Any]]:
        collate = batches_module.Batches(0, WEIGHING, learning(RaftSpec()))
        options: dict[str, Any] = {"prefetch_factor": 2, "persistent_workers": True} if workers else {}
        loader = DataLoader(batch, 2, sampler=range(7, -1, -1), collate_fn=collate, num_workers=workers, **options)
        return [*loader, *loader]

    for own, other in zip(loaded(0), loaded(2), strict=True):
        trees = own.pop("tree"), other.pop("tree")
        assert trees[0].calls == trees[1].calls and torch.equal(trees[0].spans, trees[1].spans)
        assert own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


def test_the_meter_counts_a_prefix_once(batch: list[dict[str, Any]]) -> None:
    model = tiny_model("llama", "sdpa", VOCABULARY)
    shared, apart = loop.Meter(model, 0), loop.Meter(model, 0)
    given = packed(batch, None)
    for row in batch:
        apart.add(packed([row], None))
    shared.add(given)
    learned = (given["labels"] >= 0).sum()
    assert shared.tokens == given["input_ids"].shape[1] < apart.tokens
    # Each pair of a token and one that it sees, once.
    pairs = sum(float((mask == 0).sum()) for mask in given["tree"].masks(None, torch.zeros(())))
    rest = 2 * shared.matrices * shared.tokens + 2 * shared.head * learned
    assert float(shared.flops / 3 - rest) == pytest.approx(
        2 * shared.attention * (2 * pairs - float(shared.tokens)), rel=0.03
    )
