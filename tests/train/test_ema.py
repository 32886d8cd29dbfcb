"""The moving average under ZeRO: the one that a single process takes of the whole weights, and no trace left behind."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training import TWO, Processes, Whole, refused, save_base, start, train, whole, write_recipe, write_rows

import deepspeed  # isort: skip
import ema as ema_module  # isort: skip
import recipe as recipes  # isort: skip
import recipe_keys  # isort: skip
import rows as rows_module  # isort: skip
import run as training_run  # isort: skip
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.utils import safe_get_full_fp32_param
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

DECAY = 0.3


def decay_at(update: int) -> float:
    """Of the update number `update`, from 0."""
    return min(DECAY, (1 + update) / (10 + update))


def small_model(lora: bool) -> Any:
    torch.manual_seed(5)
    shape = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1, initializer_range=0.1))
    adapters = LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(model, adapters) if lora else model


def engine_for(model: Any, stage: int, bf16: bool) -> Any:
    trained = [each for each in model.parameters() if each.requires_grad]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bf16},
        # Norms (24 numbers) stay in every process, matrices do not.
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 30},
    }
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trained, lr=0.05), config=config)[0]


def masters_of(model: Any) -> dict[str, torch.Tensor]:
    """The whole fp32 weights that are trained."""
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    return {name: safe_get_full_fp32_param(each).detach().double().clone() for name, each in trained.items()}


def computed_with(model: Any) -> dict[str, torch.Tensor]:
    """The weights that the model computes with, as this process sees them. Those that ZeRO-3 keeps whole in every
    process are read where they are: gathering would bring them up to date, and let them go."""
    weights = {}
    for name, each in model.named_parameters():
        whole = getattr(each, "ds_status", None) == ZeroParamStatus.AVAILABLE
        with nullcontext() if whole else deepspeed.zero.GatheredParameters([each]):
            weights[name] = each.detach().clone()
    return weights


def a_step(engine: Any, number: int) -> None:
    ids = (torch.arange(12) * (number + 3) + torch.distributed.get_rank()).remainder(64)[None]
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()


def close(ours: torch.Tensor, other: torch.Tensor, part: float) -> bool:
    ours, other = ours.detach().double(), other.detach().double()
    return float((ours - other).abs().max()) <= part * float(other.abs().max())


def follow(stage: int, bf16: bool, lora: bool, folder: Path) -> None:
    """Train with an average, looked at in the middle, and without; both must end at the same weights."""
    model = small_model(lora)
    engine = engine_for(model, stage, bf16)
    if stage == 3 and not lora:
        assert [each.ds_numel for each in engine.optimizer.persistent_parameters] == [24] * 5, "the norms"
    average = ema_module.ShardedEma(engine, recipe_keys.EmaSpec(decay=DECAY))
    plain = masters_of(model)
    for step in range(6):
        a_step(engine, step)
        average.update()
        weights, kept = masters_of(model), decay_at(step)
        plain = {name: kept * plain[name] + (1 - kept) * weights[name] for name in plain}
        if step not in (2, 5):
            continue
        before = computed_with(model)
        masters = [each.clone() for each in ema_module.find_masters(engine.optimizer)]
        with average.in_place():
            inside, full = computed_with(model), masters_of(model)
            assert all(close(full[name], plain[name], 2e-6) for name in plain)
            # bfloat16 has eight bits.
            assert all(close(inside[name], plain[name], 2**-8 if bf16 else 2e-6) for name in plain)
            assert not all(torch.equal(inside[name], before[name]) for name in plain)
        assert all(torch.equal(each, before[name]) for name, each in computed_with(model).items())
        assert all(map(torch.equal, ema_module.find_masters(engine.optimizer), masters))
    sizes = [each.numel() for each in average.shadow]
    share = sum(each.numel() for each in plain.values()) / torch.distributed.get_world_size()
    assert share <= sum(sizes) <= 1.2 * share + 64, "a process keeps its own part alone"
    rank = torch.distributed.get_rank()
    average.save(folder / f"{rank}.pt")
    again = ema_module.ShardedEma(engine, recipe_keys.EmaSpec(decay=DECAY))
    again.load(folder / f"{rank}.pt")
    assert again.updates == 6 and all(map(torch.equal, again.shadow, average.shadow))
    other = small_model(lora)
    unwatched = engine_for(other, stage, bf16)
    for step in range(6):
        a_step(unwatched, step)
    mine, others = computed_with(model), computed_with(other)
    assert all(torch.equal(mine[name], others[name]) for name in mine)
    print(f"stage {stage} bf16 {bf16} lora {lora}: equal", flush=True)


def follow_all(combinations: list[tuple[int, bool, bool]], folder: Path) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled
    deepspeed.init_distributed()
    for each in combinations:
        follow(*each, folder)


FULL = [(stage, bf16, False) for stage in (1, 2, 3) for bf16 in (False, True)]
LORA = [(stage, bf16, True) for stage in (2, 3) for bf16 in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 1])
def test_the_average_is_that_of_a_single_process(processes: int, tmp_path: Path) -> None:
    run = Processes(tmp_path / "log", processes, follow_all, [*FULL, *LORA], tmp_path)
    assert run.wait() == 0, run.stderr
    assert run.stdout.count("equal") == len([*FULL, *LORA])


@pytest.mark.parametrize(("free", "said"), [(9000, "on the GPU"), (8999, "in the host's memory")])
def test_the_average_goes_where_there_is_room(free: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.ones(1000)
    engine = SimpleNamespace(optimizer=SimpleNamespace(single_partition_of_fp32_groups=[weights]))
    assert ema_module.ShardedEma(engine, recipe_keys.EmaSpec()).settle() is None, "on a CPU there is nothing to decide"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100_000))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    average = ema_module.ShardedEma(engine, recipe_keys.EmaSpec())
    weights += 1.0
    average.update()
    assert said in average.settle() and average.settle() is None
    assert average.shadow[0].tolist() == pytest.approx([1.9] * 1000)


def raw_weights(done: Whole, step: int) -> dict[str, torch.Tensor]:
    if step == 0:
        recipe = recipes.read_recipe(done.recipe)
        _, tokenizer = rows_module.prepare(recipe, done.rows, done.out.parent / "cache", 1)
        return dict(training_run.build_model(recipe, tokenizer, None).state_dict())
    return dict(get_fp32_state_dict_from_zero_checkpoint(str(done.out / f"checkpoint-{step}")))


def averages(done: Whole, steps: int) -> list[dict[str, torch.Tensor]]:
    """After each step, taken from the weights in the checkpoints."""
    averaged = [{name: each.detach().double().clone() for name, each in raw_weights(done, 0).items()}]
    for step in range(1, steps + 1):
        weights, kept = raw_weights(done, step), decay_at(step - 1)
        averaged.append(
            {name: kept * each + (1 - kept) * weights[name].double() for name, each in averaged[-1].items()}
        )
    return averaged


def over(stage: int) -> Any:
    """A run from a base, by one process."""

    def made(factory: pytest.TempPathFactory) -> Whole:
        folder = factory.mktemp(f"stage{stage}")
        base = save_base(folder / "base", write_rows(folder))
        zero = {"stage": stage, "stage3_param_persistence_threshold": 100}
        return Whole(folder, 1, tiny=None, base=str(base), deepspeed={"zero_optimization": zero})

    return pytest.param(made, id=f"stage{stage}", marks=[pytest.mark.gpu, pytest.mark.slow])


@pytest.mark.parametrize("done", [whole, TWO, over(2), over(3)], indirect=True)
def test_a_run_exports_the_average_of_its_checkpoints(done: Whole) -> None:
    plain = averages(done, 8)
    exported, best = load_file(done.out / "model.safetensors"), load_file(done.out / "best/model.safetensors")
    step = json.loads((done.out / "best/critic.json").read_text("utf-8"))["steps"]
    raw = raw_weights(done, 8)
    assert len(exported) > 10
    for name, each in exported.items():
        assert close(each, plain[8][name], 2e-6), name
        assert close(best[name], plain[step][name], 2e-6), name
    assert not any(close(each, raw[name], 1e-4) for name, each in exported.items())


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("stage", "bf16"),
    [
        pytest.param(2, False, marks=pytest.mark.gpu),
        *(pytest.param(stage, True, marks=pytest.mark.slow) for stage in (1, 3)),
    ],
)
def test_adapters_are_averaged_and_merged(stage: int, bf16: bool, tmp_path: Path, rows: Path, base: Path) -> None:
    """What lies in OUT is the base with the averaged adapter added, which lies in OUT/adapter."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    changes: dict[str, Any] = {"tiny": None, "base": str(base), "lora": {"r": 4, "alpha": 16, "dropout": 0.1}}
    changes |= {"training": {"max_steps": 4, "bf16": bf16}, "deepspeed": {"zero_optimization": {"stage": stage}}}
    out = tmp_path / "out"
    train(write_recipe(tmp_path, **changes), rows, out)
    plain: dict[str, torch.Tensor] = {}
    for step in range(1, 5):
        weights = get_fp32_state_dict_from_zero_checkpoint(str(out / f"checkpoint-{step}"))
        trained = {name.replace(".default", ""): each.double() for name, each in weights.items() if "lora_" in name}
        kept = decay_at(step - 1)
        # B starts from 0; for A the start is not known from the checkpoints.
        begin = {name: torch.zeros_like(each) for name, each in trained.items() if "lora_B" in name}
        plain = {name: kept * (plain or begin)[name] + (1 - kept) * trained[name] for name in begin}
    adapter = load_file(out / "adapter/adapter_model.safetensors")
    assert len(plain) == 14 and all("lora_" in name for name in adapter)
    assert all(close(adapter[name], each, 2**-8 if bf16 else 2e-6) for name, each in plain.items())
    assert max(each.abs().max().item() for each in plain.values()) > 0.01

    ids = torch.tensor([AutoTokenizer.from_pretrained(out)("How many apples? 1234567").input_ids])
    start_of = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad():
        plain_logits, merged_logits = start_of(ids).logits, merged(ids).logits
        adapted = PeftModel.from_pretrained(start_of, out / "adapter")(ids).logits
    assert float((merged_logits - adapted).abs().max()) < 1e-4
    assert float((merged_logits - plain_logits).abs().max()) > 0.01
    assert not list(out.rglob("training_args.bin")) and (out / "best/adapter/adapter_model.safetensors").is_file()


def test_without_zero_there_is_nothing_to_average(tmp_path: Path, rows: Path) -> None:
    recipe = write_recipe(tmp_path, deepspeed={"zero_optimization": {"stage": 0}})
    refused(start(recipe, rows, tmp_path / "out"), "keeps no fp32 weights", "deepspeed.zero_optimization.stage")
