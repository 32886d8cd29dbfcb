"""Training from the outside: recipes, mistakes in them, the launcher, and the folder that comes out."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from conftest import ROOT, asked_of, assert_one_line_error, command, free_port, human_row, write_jsonl
from conftest import run as run_program
from training import (
    SEEING,
    Whole,
    logged,
    losses,
    objective_with,
    pairs_of_answers,
    recipe_with,
    refused,
    sample_rows,
    save_base,
    start,
    tokenizer_for,
    train,
    write_recipe,
    write_rows,
)

import export  # isort: skip
import loop  # isort: skip
import recipe_keys  # isort: skip
from recipe import objective_of  # isort: skip
import trainer_args  # isort: skip
import recipe as recipes  # isort: skip
import run as training_run  # isort: skip
import sft  # isort: skip
import base as bases  # isort: skip
from tiny import random_model  # isort: skip
import torch
import transformers
import yaml
from deepspeed.launcher import runner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

from critic import benchmarks, human_scored
from critic.errors import UsageError, install_extra
from critic.judging import protocols
from critic.judging.assignments import form_name
from critic.judging.prompt import prompt_hash
from critic.judging.targets import source_ids
from critic.records import JudgeConfig

RECIPES = sorted((ROOT / "train/recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_that_come_with_it_can_be_read(path: Path, tmp_path: Path) -> None:
    recipe = recipes.read_recipe(path)
    small = msgspec.structs.replace(recipe, training={**recipe.training, "bf16": False})
    assert trainer_args.arguments(small, tmp_path).max_steps > 0 or recipe.probe is not None
    text = path.read_text("utf-8")
    assert "# Memory: " in text and f"critic train {path.stem} " in text


def asked_by_benchmarks() -> set[str]:
    """The forms in which the benchmarks' protocols ask, by the papers' settings and by ours."""
    forms = set[str]()
    for benchmark_name in benchmarks.BENCHMARKS:
        benchmark = benchmarks.load(benchmark_name)
        (sample,) = (ROOT / "data/samples" / benchmark_name).glob("[!a]*.[cj]s*")
        talks = any(len(conversation.turns) > 1 for conversation in benchmark.read(sample))
        for setup in (benchmark.paper_setup(benchmark.protocols), JudgeConfig(judge="", score_kind="argmax")):
            for name in benchmark.protocols:
                turns = [1, None] if talks and protocols.load(name).whole_form else [1]
                forms |= {form_name(name, turn, setup) for turn in turns}
    return forms


@pytest.mark.parametrize("name", ["critic-6b-full", "critic-6b-lora", "qwen3.5-4b", "tiny-benchmarks"])
def test_recipes_for_all_benchmarks_teach_what_these_ask(name: str) -> None:
    """Those and no others, so that a benchmark that is added must be taught, or said to be none of theirs."""
    recipe = recipes.read_recipe(ROOT / f"train/recipes/{name}.yaml")
    assert {form for form, share in recipe.forms.items() if share > 0} == asked_by_benchmarks()


def test_a_recipe_has_the_papers_settings() -> None:
    """Row 5: EMA, weight decay .05, learning rate 1e-5, warm-up 1 %, 4,096 and 1,024 tokens, batch 128, 1,000 steps."""
    recipe = recipes.read_recipe(ROOT / "train/recipes/chatglm3-6b.yaml")
    training = [recipe.training[name] for name in ("weight_decay", "learning_rate", "warmup_steps", "max_steps")]
    assert recipe.ema and training == [0.05, 1e-5, 0.01, 1000]
    assert (recipe.max_source_tokens, recipe.max_target_tokens, recipe.global_batch) == (4096, 1024, 128)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_shared_out_over_any_number_of_processes(
    path: Path, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipes.read_recipe(path)
    batch, most = recipe.global_batch, recipe.training["per_device_train_batch_size"]
    small = msgspec.structs.replace(recipe, training={**recipe.training, "bf16": False})
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    # As torch.distributed would tell of so many processes, which are not there.
    state = SimpleNamespace(num_processes=processes, local_process_index=0, process_index=0)
    monkeypatch.setattr(transformers.TrainingArguments, "distributed_state", state, raising=False)
    monkeypatch.setattr(transformers.TrainingArguments, "_setup_devices", torch.device("cpu"))
    if batch % processes:
        works = ", ".join(str(number) for number in range(1, batch + 1) if batch % number == 0)
        with pytest.raises(UsageError, match=rf"no multiple of {processes} processes; .*start {works} of them"):
            trainer_args.arguments(small, tmp_path)
        return
    settings = trainer_args.arguments(small, tmp_path)
    rows = settings.per_device_train_batch_size
    assert processes * rows * settings.gradient_accumulation_steps == batch and rows <= most
    assert not any(batch // processes % more == 0 for more in range(rows + 1, most + 1))
    said = f"per_device_train_batch_size {rows} instead of {most}: the {batch} rows of a step over {processes} process"
    assert capsys.readouterr().out.startswith(said) is (rows < most)


def test_a_gpu_is_kept_busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trainer_args, "cpu_count", lambda: 16)
    for section, processes, ahead in (({}, 1, (4, 4)), ({}, 8, (1, 16)), ({"dataloader_num_workers": 0}, 1, (0, None))):
        options = trainer_args._overlap_batches(section, 16, processes)
        settings = transformers.TrainingArguments(str(tmp_path), use_cpu=True, **options)
        assert (settings.dataloader_num_workers, settings.dataloader_prefetch_factor) == ahead
        assert settings.accelerator_config.non_blocking and settings.dataloader_persistent_workers is (ahead[0] > 0)


def test_liger_is_used_where_it_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def used(family: str, **training: Any) -> tuple[bool, str | None]:
        recipe = recipes.read_recipe(write_recipe(tmp_path, training=training))
        settings, config = SimpleNamespace(use_liger_kernel=False), SimpleNamespace(model_type=family)
        text = trainer_args.use_liger(settings, recipe, SimpleNamespace(config=config))
        return settings.use_liger_kernel, text

    assert used("llama") == (False, None), "on a CPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert used("llama")[1].endswith(install_extra("gpu"))
    monkeypatch.setattr(trainer_args, "is_liger_kernel_available", lambda: True)
    known = SimpleNamespace(MODEL_TYPE_TO_APPLY_LIGER_FN={"llama": None})
    for name in ("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.monkey_patch"):
        monkeypatch.setitem(sys.modules, name, known)
    assert used("llama") == (True, "Liger computes norms, rotation and gates")
    assert used("glm") == (False, "Liger has no kernels for glm")
    assert used("llama", use_liger_kernel=False) == (False, None)


def test_gradients_of_adapters_are_added_up_in_fp32(tmp_path: Path) -> None:
    for lora, bf16, wanted in (({"r": 4}, True, "fp32"), (None, True, None), ({"r": 4}, False, None)):
        changes: dict[str, Any] = {"tiny": None, "base": "x", "lora": lora, "deepspeed": {"bf16": {"enabled": bf16}}}
        settings = trainer_args._deepspeed_config(recipes.read_recipe(write_recipe(tmp_path, **changes)))
        assert settings.get("data_types", {}).get("grad_accum_dtype") == wanted


PASSED_ON = [
    ("training.learning_rat=1", "training section: there is no learning_rat; did you mean learning_rate?"),
    ("deepspeed.zero_optimisation={}", "deepspeed section: there is no zero_optimisation; did you mean"),
    ("deepspeed.zero_optimization.stag=1", "deepspeed.zero_optimization section: stag Extra inputs are not permitted"),
    ("training.lr_scheduler_type=cosin", "training section: cosin is not a valid SchedulerType"),
    ("training.per_device_train_batch_size=0", "per_device_train_batch_size: Expected `int` >= 1, 0"),
    ("training.learning_rate=abc", "training section: learning_rate: Expected `float`, got `str`, 'abc'"),
    ("training.learning_rate=null", "training section: learning_rate: Expected `float`, got `null`, None"),
    ("training.max_steps=1.5", "training section: max_steps: Expected `int"),
    ("deepspeed.zero_optimization.stage=7", "deepspeed.zero_optimization section: stage Input should be 0"),
    ("deepspeed.zero_optimization=true", "deepspeed.zero_optimization section: expected keys and values, got True"),
    ("training.train_sampling_strategy=group_by_lenght", "'group_by_lenght' is none of random, sequential, gr"),
    ("rank.weight=1 objective=raft together=2 training={}", "rank compares answers to one question; set objective"),
    ("training.max_steps=0", "no step to take: max_steps, or else num_train_epochs, is above 0"),
    ("training.max_steps=-1 training.num_train_epochs=0", "no step to take"),
    ("training.remove_unused_columns=true", "training.remove_unused_columns is set by the program"),
    ("training.save_total_limit=2", "training.save_total_limit is set by the program; give keep"),
    ("deepspeed.gradient_accumulation_steps=2", "deepspeed.gradient_accumulation_steps is set by the program;"),
    ("keep", "KEY=VALUE"),
    ("keep=two", "`int`, got `str` - at `$.keep`"),
    ("kep=2", "did you mean keep"),
    ("tiny.layer=2", "did you mean layers"),
    ("keep.more=2", "keep.more is no place"),
    ("training.a.b.c=[", "--set training.a.b.c=[:1: not YAML: expected"),
]


@pytest.mark.parametrize(("words", "message"), PASSED_ON)
def test_mistakes_in_overrides_and_what_is_passed_on(words: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        trainer_args.arguments(recipes.read_recipe(write_recipe(tmp_path), words.split()), tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


RANDOM: dict[str, Any] = {"together": True, "training": {"train_sampling_strategy": "random"}}
HUB: dict[str, Any] = {"tiny": None, "base": "a/b"}
WRONG = [
    ({"packing": True, "attention": "eager"}, "sdpa or flex_attention, not eager"),
    ({"max_sorce_tokens": 9}, r"`max_sorce_tokens`.*did you mean max_source_tokens\?"),
    ({"evalution": {"every": 2}}, r"`evalution`.*did you mean evaluation\?"),
    ({"tiny": {"layer": 2}}, r"`layer`.*did you mean layers\?"),
    ({"lora": {"alfa": 3}, "tiny": None, "base": "x"}, r"`alfa`.*did you mean alpha\?"),
    ({"base": "some/model"}, "give either base"),
    ({"tiny": None}, "give either base"),
    ({"lora": {}}, "lora adapts a base"),
    ({"tiny": {"layers": 0}}, r">= 1 - at `\$\.tiny\.layers`"),
    ({"together": True}, "set train_sampling_strategy: random"),
    ({"rank": {"wieght": 1}}, r"`wieght`.*did you mean weight\?"),
    ({"rank": {}, "objective": "raft"}, "rank compares answers to one question; set objective: raft or head, group_by"),
    *(({"rank": {}, **RANDOM, **change}, "rank compares") for change in ({}, {"objective": "head", "together": 1})),
    ({"forms": {"pointwis": 1.0}}, "forms: unknown form 'pointwis'; did you mean pointwise"),
    ({"forms": {"pointwise": 1.5}}, "forms: .*0..1"),
    ({"raft": {"weight": -1.0}}, r">= 0\.0 - at `\$\.raft\.weight`"),
    ({"objective": "raft", "forms": {"correct": 1.0, "pointwise": 0.0}}, "needs a form on 1..10"),
    ({"forms": {"pointwise_reason_first": 1.0}, "evaluation": {"every": 2}}, "begins with the rating"),
    ({"precision": "auto", "training": {"bf16": True}}, "precision decides on bf16"),
    *(
        ({"objective": "head", "forms": {"pointwise": 1.0, form: 0.5}}, f"learns ratings on 1..10 alone, not {form}")
        for form in ("pairwise", "correct", "scale_5", "commit_first", "criteria")
    ),
    ({"objective": "pairwise"}, r"learns preferences \(forms pairwise, .*, pairwise_whole\) alone, not pointwise"),
    ({"objective": "pairwise", "forms": {"pairwise": 1.0}}, "evaluation judges ratings"),
    ({"max_source_tokens": None}, "max_source_tokens"),
    ({"probe": 10}, "probe is for a scoring head"),
    ({"tiny": None, "base": ".", "revision": "v1"}, r"revision is for a base by a hub's name; \. is a folder"),
    (HUB | {"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs"),
    (HUB | {"lora": {"bits": 8}}, r"lora\.bits"),
    (HUB | {"lora": {"bits": 4}, "deepspeed": {"zero_optimization": {"stage": 3}}}, "needs the base whole on each GPU"),
    (HUB | {"lora": {"bits": 4}, "objective": "head", "packing": True}, "lora bits 4 is for judges that write"),
    (SEEING | {"vision": None}, "a tiny model needs a vision section"),
    (SEEING | {"images": "blind"}, "a tiny model needs a vision section"),
    (SEEING | {"objective": "head", "probe": 4}, "probe is for a scoring head that sees no images"),
    (SEEING | {"objective": "head", "read_answer": True}, "read_answer is for a head that sees no images"),
    (SEEING | {"images": "look"}, "look"),
    (SEEING | {"arms": {"file": "f"}}, "how many points"),
    (SEEING | {"arms": {"file": "f", "edited": 0.5}}, "edited"),
    ({"arms": {"file": "f", "swapped": 3}, "images": "blind"}, "swapped teaches ratings by images"),
    (SEEING | {"arms": {"file": "f", "edited": 3}, "forms": {"correct": 1.0}}, "counterfactuals teach ratings"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_recipes_with_mistakes(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as error:
        recipes.read_recipe(write_recipe(tmp_path, **change))
    assert "\n" not in str(error.value) and "recipe.yaml: " in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "Expected `object`"),
        ("keep: 1\ntiny: [\n", r"recipe\.yaml:3: not YAML: expected"),
        ("keep: a: b\n", r"recipe\.yaml:1: not YAML: mapping values are not allowed here"),
        ("keep: \0\n", r"recipe\.yaml: not YAML: "),
        ("keep: 1\nkeep: 2\n", r"recipe\.yaml:2: not YAML: found duplicate key .keep."),
        ("", "Expected `object`"),
    ],
)
def test_files_that_are_no_recipes(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, "utf-8")
    for overrides in ([], ["keep=2"]):
        with pytest.raises(UsageError, match=message) as error:
            recipes.read_recipe(path, overrides)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", ["1e-5", "1.0e-5", "0.00001", "1E-05"])
def test_learning_rates_are_numbers_however_they_are_written(tmp_path: Path, number: str) -> None:
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text("utf-8").replace("learning_rate: 0.02", f"learning_rate: {number}"), "utf-8")
    assert recipes.read_recipe(recipe).training["learning_rate"] == 1e-5
    changed = recipes.read_recipe(recipe, [f"training.weight_decay={number}"])
    assert changed.training["weight_decay"] == 1e-5 and changed.training["learning_rate"] == 1e-5


def test_overrides(tmp_path: Path) -> None:
    words = ["keep=7", "tiny.layers=5", "training.lr_scheduler_kwargs.a=b", "forms={scale_5: 0.5}", "ema=null"]
    recipe = recipes.read_recipe(write_recipe(tmp_path), [*words, "raft.weight=9", "keep=8"])
    assert recipe.keep == 8 and recipe.tiny is not None and recipe.tiny.layers == 5
    assert objective_of(recipe).own("raft").weight == 9
    assert recipe.training["lr_scheduler_kwargs"] == {"a": "b"} and recipe.forms == {"scale_5": 0.5}
    assert recipe.ema is None
    # As YAML 1.2 has it: a word where 1.1 reads false.
    assert recipes.read_recipe(write_recipe(tmp_path), ["training.save_strategy=no"]).training["save_strategy"] == "no"
    assert recipes.read_recipe(write_recipe(tmp_path), ["packing=true"]).packing is True
    recipes.read_recipe(write_recipe(tmp_path), ["together=true", "training.train_sampling_strategy=random"])


@pytest.mark.parametrize(("key", "former"), [("group_by_question", "together"), ("counterfactuals", "arms")])
def test_keys_by_their_former_names(key: str, former: str, tmp_path: Path) -> None:
    """Either name is read, in files and overrides; what is saved keeps the former one, so that old runs are known."""
    value: Any = {"file": "f", "edited": 3} if key == "counterfactuals" else 4
    rest: dict[str, Any] = {"training": {"train_sampling_strategy": "random"}}
    read = [recipes.read_recipe(write_recipe(tmp_path, **rest | {name: value})) for name in (key, former)]
    word = json.dumps(value)
    read += [recipes.read_recipe(write_recipe(tmp_path, **rest), [f"{name}={word}"]) for name in (key, former)]
    assert all(getattr(recipe, key) for recipe in read) and all(recipe == read[0] for recipe in read)
    saved = msgspec.to_builtins(read[0])
    assert former in saved and key not in saved
    with pytest.raises(UsageError, match=rf"recipe\.yaml: {former} is the former name of {key}; give one of them"):
        recipes.read_recipe(write_recipe(tmp_path, **rest | {key: value, former: value}))
    with pytest.raises(UsageError, match=rf"`\$\.{key}"):
        recipes.read_recipe(write_recipe(tmp_path, **rest | {key: "x"}))


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What DeepSpeed's launcher is started with, instead of starting it."""
    calls: list[list[str]] = []
    monkeypatch.setattr(runner, "main", calls.append)
    return calls


@pytest.mark.parametrize("name", ["tiny", str(ROOT / "train/recipes/tiny.yaml")])
def test_the_command_hands_all_options_on(name: str, handed: list[list[str]], tmp_path: Path) -> None:
    launcher = ["--num_gpus", "2", "--no_ssh", "--master_port", "29501", "--bind_cores_to_rank"]
    program = ["--train", str(write_rows(tmp_path)), "--out", str(tmp_path / "out"), "--cache", "a folder"]
    program += ["--threads", "2", "--set", "training.max_steps=3", "--set", "keep=1"]
    run_program("critic", "train", name, *program, "--", *launcher, code=0)
    begun = ["--log_level", "critical", *launcher, sft.__file__]
    program[6:6] = ["--data-root", str(tmp_path)]
    assert handed == [[*begun, str(ROOT / "train/recipes/tiny.yaml"), *program]]


def test_trainings_on_one_machine_meet_at_ports_of_their_own(handed: list[list[str]], tmp_path: Path) -> None:
    words = ["critic", "train", "tiny", "--train", write_rows(tmp_path), "--out", tmp_path / "out"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for _ in range(2):
            assert run_program(*words, "--", "--num_gpus", "2").returncode == 0
        ports = [int(given[given.index("--master_port") + 1]) for given in handed]
        assert len(set(ports)) == 2 and taken.getsockname()[1] not in ports
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=1\n")
    assert run_program(*words, "--", "--hostfile", hosts).returncode == 0
    assert "--master_port" not in handed[-1]  # where all machines have to be told the same


def test_a_port_that_another_program_holds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as held:  # all addresses, as another training does
        monkeypatch.setenv("MASTER_PORT", str(port := held.getsockname()[1]))
        message = f"^port {port}, at which .*--master_port N.*already in use"
        with pytest.raises(UsageError, match=message), trainer_args.report_bad_values():
            torch.distributed.TCPStore("127.0.0.1", port, is_master=True)


def test_rows_of_ones_own_are_handed_on_with_our_columns(handed: list[list[str]], tmp_path: Path) -> None:
    stars = [1, 2, 3, 4, 5, None]
    lines = [{"ask": "3?", "said": f"{n}", "gold": "y", "stars": given} for n, given in enumerate(stars)]
    own = write_jsonl(tmp_path / "own.jsonl", lines)
    columns = ["--map", "ask=question", "--map", "said=response", "--map", "gold=reference"]
    words = ["critic", "train", "tiny", "--train", own, "--out", tmp_path / "out", *columns, "--scale", "1:5"]
    done = run_program(*words, "--", "--num_gpus", "2")
    assert done.returncode == 0 and "left out 1 rows: no score by people" in done.stderr
    assert "taken as human_score: stars on 1..5" in done.stderr
    (given,) = handed
    rows = human_scored.load(Path(given[given.index("--train") + 1])).responses
    assert [row.human.score for row in rows] == [1.0, 3.25, 5.5, 7.75, 10.0]
    assert given[given.index("--data-root") + 1] == str(tmp_path) and "--map" not in given


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tyni"], "tyni: no such recipe; give a file, or one of chatglm3-6b, "),
        (["tiny", "--train", "none.jsonl"], "none.jsonl: No such file"),
        (["tiny", "--internal", "none.jsonl"], "an evaluation section in the recipe"),
        (["tiny", "--set", "evaluation={every: 2}"], "to evaluate while training, give --internal FILE too"),
        (["tiny", "--set", "training.max_step=3"], "did you mean max_steps?"),
        (
            ["tiny", "--map", "a=respons"],
            "--map 'a=respons': expected COLUMN=FIELD, as in answer=response; did you mean",
        ),
        (["tiny", "--", "--num_gpus", "3"], "global_batch 16 is no multiple of 3 processes; give another, or "),
        (["tiny", "--", "--include", "localhost:0@localhost:1"], "DeepSpeed's launcher: "),
        (["tiny", "--", "--num_gpu"], "DeepSpeed's launcher: argument --num_gpus"),
        (["tiny", "--", "other.py"], "takes options alone, not 'other.py'"),
    ],
)
def test_a_mistake_starts_no_process(words: list[str], message: str, handed: list[list[str]], tmp_path: Path) -> None:
    rest = ["--out", tmp_path / "out", *(["--train", write_rows(tmp_path)] if "--train" not in words else [])]
    done = run_program("critic", "train", words[0], *rest, *words[1:])
    assert_one_line_error(done, message)
    assert done.stderr.count("\n") == 1 and not handed


def test_who_asks_for_the_cpu_sees_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "0"}.items():
        monkeypatch.setenv(name, value)
    seen: list[str] = []
    monkeypatch.setattr(training_run, "main", lambda *_: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    assert run_program("critic", "train", "tiny", "--train", "rows", "--out", tmp_path).returncode == 0
    assert seen == [""]


def test_one_process_needs_no_launcher(
    handed: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains where the options were read; an option of the launcher, or more devices, are the launcher's."""
    monkeypatch.setattr(os, "environ", {**os.environ})
    trained: list[Any] = []
    monkeypatch.setattr(training_run, "main", trained.append)
    own = write_jsonl(tmp_path / "own.jsonl", [{"question": "3?", "response": "3", "reference": "y", "stars": 5}])
    words = ["critic", "train", "tiny", "--train", own, "--out", tmp_path / "out", "--map", "stars=human_score"]
    words += ["--scale", "1:5", "--set", "global_batch=8"]
    run_program(*words, "--", "--num_gpus", "1", code=0)
    assert len(handed) == 1 and not trained
    run_program(*words, code=0)
    (run,) = trained
    assert len(handed) == 1 and run.train == tmp_path / "out/rows/train.jsonl" and run.recipe.global_batch == 8
    assert run.data_root == tmp_path and {os.environ[name] for name in ("RANK", "LOCAL_RANK")} == {"0"}


def test_more_processes_than_gpus(handed: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = SimpleNamespace(device_count=lambda: 2, device_name=lambda: "cuda")
    monkeypatch.setattr("deepspeed.accelerator.get_accelerator", lambda: gpus)
    words = ["critic", "train", "tiny", "--train", write_rows(tmp_path), "--out", tmp_path / "out", "--", "--num_gpus"]
    assert run_program(*words, "2").returncode == 0 and len(handed) == 1
    assert_one_line_error(run_program(*words, "4"), "--num_gpus 4: there are 2 GPUs here")
    assert len(handed) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("code", "line"), [(2, ""), (247, "training ended with code 247; run the same command again to")]
)
def test_the_code_of_training_is_that_of_the_command(
    code: int, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "main", lambda words: sys.exit(code))
    words = ["critic", "train", "tiny", "--train", write_rows(tmp_path), "--out", tmp_path / "out"]
    done = run_program(*words, "--", "--num_gpus", "2")
    assert done.returncode == code and done.stderr.startswith(line) and bool(done.stderr) == bool(line)


REFUSED_LATER = [
    ({"training": {"learning_rate": -1.0}}, "training section: Invalid learning rate: -1"),
    ({"training": {"lr_scheduler_kwargs": {"nope": 3}}}, "training section: get_linear_schedule_with_warmup"),
    ({"training": {"report_to": "nope"}}, "training section: nope is not supported, only "),
    ({"training": {"seed": -1}}, "training section: Seed must be between"),
    ({"deepspeed": {"gradient_clipping": 0.5}}, "ds gradient_clipping=0.5 vs hf max_grad_n"),
]
"""What transformers, PyTorch and DeepSpeed find out once the model is there."""


@pytest.mark.parametrize(("change", "message"), REFUSED_LATER)
def test_what_is_found_out_late_is_one_line_too(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, evaluation=None, ema=None, **change)
    refused(start(recipe, write_rows(tmp_path), tmp_path / "out", internal=False), message)


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
UNBUILDABLE = [
    pytest.param({"frozen": ["model"]}, "frozen: model leaves nothing of the model to train", id="all frozen"),
    pytest.param(
        {"attention": "flex_attention", "packing": True}, "needs a GPU; set attention: auto", id="no GPU", marks=NO_GPU
    ),
]


@pytest.mark.parametrize(("changes", "message"), UNBUILDABLE)
def test_recipes_of_which_no_model_can_be_built(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    recipe = recipes.read_recipe(write_recipe(tmp_path, **changes))
    with pytest.raises(UsageError, match=message):
        training_run.build_model(recipe, tokenizer_for(write_rows(tmp_path)), None)


def test_bases_that_cannot_be_loaded(tmp_path: Path, rows: Path) -> None:
    def assert_refused(base: str, message: str, **changes: Any) -> None:
        recipe = recipes.read_recipe(write_recipe(tmp_path, tiny=None, base=str(tmp_path / base), **changes))
        with pytest.raises(UsageError, match=message) as error:
            training_run.build_model(recipe, None, None)
        assert "\n" not in str(error.value)

    tokenizer_for(rows).save_pretrained(tmp_path / "base")  # and no model
    assert_refused("base", "cannot be loaded")
    save_base(tmp_path / "base", rows)
    assert_refused("base", r"lora: .*no_such", lora={"target_modules": ["no_such"]})
    assert_refused("base", r"lora: no adapter goes on lm_head", lora={"target_modules": ["q_proj", "lm_head"]})
    gpt2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt2)).save_pretrained(tmp_path / "gpt2")
    assert_refused("gpt2", "no layers are found in a GPT2LMHeadModel")


def test_adapters_go_on_the_layers_of_a_regular_expression_alone(tmp_path: Path) -> None:
    base = str(save_base(tmp_path / "base", write_rows(tmp_path)))
    recipe = recipes.read_recipe(write_recipe(tmp_path, tiny=None, base=base, objective="sft", lora={"r": 4}))
    onto = msgspec.structs.replace(recipe, lora=recipe_keys.LoraSpec(target_modules=r".*layers\.1\..*_proj"))
    model = training_run.build_model(onto, None, None)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained and all(".layers.1." in name and "lora_" in name for name in trained)


def test_a_finished_folder_is_another_judges(tmp_path: Path, done: Whole) -> None:
    recipe = recipes.read_recipe(done.recipe)

    def is_finished(recipe: Any = recipe, folder: Path = done.out, rows: Path = done.rows) -> bool:
        return training_run.is_finished(folder, training_run.describe(recipe, rows))

    watched_otherwise = recipes.read_recipe(done.recipe, ["keep=1", "evaluation.every=9"])
    assert is_finished() and is_finished(watched_otherwise) and not is_finished(folder=tmp_path)
    with pytest.raises(UsageError, match="another data"):
        is_finished(rows=write_rows(tmp_path, sample_rows(3)))
    reseeded = recipes.read_recipe(done.recipe, ["training.seed=1"])
    for other in (reseeded, msgspec.structs.replace(recipe, group_by_question=True)):
        with pytest.raises(UsageError, match="another recipe"):
            is_finished(other)


def test_what_comes_out(done: Whole) -> None:
    out = done.out
    files = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json"}
    files |= {"README.md", "critic.json"}
    for folder in (out, out / "best"):
        assert files <= {path.name for path in folder.iterdir()}
        pickled = [path for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".pkl", ".pickle"}]
        assert not pickled
        assert len({path.stat().st_mode for path in folder.iterdir() if path.is_file() and path.name != ".lock"}) == 1
    assert {"loss.jsonl", "tensorboard"} <= {path.name for path in out.iterdir()}
    facts = json.loads((out / "critic.json").read_text("utf-8"))
    data = hashlib.sha256(done.rows.read_bytes()).hexdigest()
    weights = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    assert facts["data"] == {done.rows.name: data} and facts["weights"] == {"model.safetensors": weights}
    assert facts["prompts"] == {"pointwise": prompt_hash("pointwise")} and facts["rows"] == 24
    assert facts["recipe"]["training"] == recipe_with()["training"] and facts["steps"] == 8
    card = (out / "README.md").read_text("utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers" and f"| {done.rows.name} | `{data}` |" in card
    assert prompt_hash("pointwise") in card and "8 steps of 4 rows" in card and "weights: ema" in card
    generation = GenerationConfig.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(generation.eos_token_id) == "<|end|>" and not generation.do_sample
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.architectures == ["LlamaForCausalLM"] and model.dtype == torch.float32
    response = human_scored.load(done.rows).responses[0]
    messages = asked_of("pointwise", response).messages
    wanted = source_ids(tokenizer_for(done.rows), messages)
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == wanted


Nodes = Callable[[Path, str], list[list[str]]]
"""(folder, port) -> options of the launcher, one list a node."""

MIX = {"pointwise": 1.0, "scale_5": 0.5, "pairwise": 1.0, "correct": 1.0}


def launched(recipe: Path, rows: Path, out: Path, *where: str) -> subprocess.Popen[str]:
    """As README.md says; ninja and deepspeed lie beside the interpreter."""
    words = [str(Path(sys.executable).with_name("deepspeed")), "--log_level", "error", *where]
    words += ["train/sft.py", str(recipe), "--train", str(rows)]
    words += ["--out", str(out), "--cache", str(out.parent / "cache")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PATH": path}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=ROOT, env=environment, **pipes)


def on_one_node(folder: Path, port: str) -> list[list[str]]:
    return [["--num_gpus", "2", "--master_port", port]]


def on_two_nodes(folder: Path, port: str) -> list[list[str]]:
    """Two launchers of a process each, as on machines that a scheduler starts them on; here both are this one."""
    hosts = folder / "hosts"
    hosts.write_text("node-a slots=1\nnode-b slots=1\n", "utf-8")
    place = ["--hostfile", str(hosts), "--no_ssh", "--master_addr", "127.0.0.1", "--master_port", port]
    return [[*place, "--node_rank", str(rank)] for rank in (0, 1)]


@pytest.mark.parametrize("nodes", [on_one_node, pytest.param(on_two_nodes, marks=pytest.mark.slow)])
@pytest.mark.e2e
def test_launched_on_two_processes_it_learns_as_on_one(nodes: Nodes, tmp_path: Path) -> None:
    """The same rows a step give the same losses, however they are shared out over processes and micro-batches."""
    rows = write_rows(tmp_path, [*sample_rows(), *(dict(row, id=f"p-{row['id']}") for row in pairs_of_answers())])
    changes: dict[str, Any] = {"evaluation": None, "ema": None, "global_batch": 8, "forms": MIX, "objective": "raft"}
    changes |= {"rating_weight": 3.0, "balance": 0.5}
    steps = {"max_steps": 4, "save_steps": 4, "train_sampling_strategy": "random"}
    recipe = write_recipe(tmp_path, "one.yaml", **changes, training={**steps, "per_device_train_batch_size": 8})
    train(recipe, rows, tmp_path / "one", internal=False)
    two = write_recipe(tmp_path, "two.yaml", **changes, training={**steps, "per_device_train_batch_size": 2})
    runs = [launched(two, rows, tmp_path / "two", *where) for where in nodes(tmp_path, str(free_port()))]
    said = [run.communicate(timeout=300) for run in runs]
    assert not any(run.returncode for run in runs), said
    assert "step 4/4" in said[0][0] and f"judge saved in {tmp_path / 'two'}" in said[0][0]
    assert len(losses(tmp_path / "one")) == 4
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    norms = [[line["grad_norm"] for line in logged(tmp_path / name)] for name in ("one", "two")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    ours, others = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(each, others[name], atol=2e-3) for name, each in ours.items())


@pytest.mark.e2e
def test_one_row_trains_and_refused_ones_are_named(tmp_path: Path) -> None:
    row = human_row(0, reason="Three.")
    rows = write_rows(tmp_path, [row, human_row(90, reason="9" * 900), human_row(91, question="8" * 6000)])
    run = train(write_recipe(tmp_path, training={"max_steps": 2}), rows, tmp_path / "out")
    assert "1 examples, 2 refused as too long (row-90 (pointwise), row-91 (pointwise)" in run.stdout
    facts = json.loads((tmp_path / "out/critic.json").read_text("utf-8"))
    assert facts["refused"] == ["row-90 (pointwise)", "row-91 (pointwise)"] and facts["rows"] == 1
    assert len(losses(tmp_path / "out")) == 2


def test_where_the_first_of_two_ends_the_other_says_so_in_a_line(tmp_path: Path) -> None:
    rows = write_rows(tmp_path, [human_row(90, reason="9" * 900)])
    recipe = write_recipe(tmp_path, evaluation=None, training={"per_device_train_batch_size": 2})
    run = start(recipe, rows, tmp_path / "out", processes=2, internal=False)
    for process in run.processes:
        process.join(120)
    assert [process.exitcode for process in run.processes] == [2, 2], run.stderr
    refused(run, "no row fits")
    other = (run.logs[1] / "stderr").read_text("utf-8").splitlines()
    assert sum(line.startswith("process 1 ends: the first is not heard of") for line in other) == 1


def train_a_recipe(path: Path, base: Path, rows: Path, out: Path) -> None:
    """Two steps with a recipe's own settings on two processes; only base, lengths and batch are smaller, and the
    attention is one that a CPU has."""
    recipe = yaml.safe_load(path.read_text("utf-8"))
    recipe |= {"base": str(base), "max_source_tokens": 2000, "max_target_tokens": 100, "global_batch": 8}
    recipe["training"] |= {"max_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2}
    recipe["training"].pop("save_steps", None)
    recipe["attention"] = "sdpa"
    recipe.pop("chat_template_kwargs", None)
    recipe["evaluation"] = {"every": 2}
    file = out.parent / "recipe.yaml"
    file.write_text(json.dumps(recipe), "utf-8")
    train(file, rows, out, processes=2)
    assert len(losses(out)) == 2
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (base, out))
    pairs = list(zip(before.parameters(), after.parameters(), strict=True))
    assert all(old.shape == new.shape for old, new in pairs)
    assert any(not torch.equal(old, new) for old, new in pairs)


BASES = {path: yaml.safe_load(path.read_text("utf-8")).get("base", "runs/") for path in RECIPES}
LARGE = [path for path, base in BASES.items() if not base.startswith("runs/") and "-VL-" not in base]
"""Of bases that a hub alone has; the others are trained whole, and some name layers that a tiny base lacks."""


@pytest.mark.slow
@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_a_large_recipe_runs_with_a_tiny_base(path: Path, tmp_path: Path, rows: Path, base: Path) -> None:
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    train_a_recipe(path, base, rows, tmp_path / "out")


def test_the_meter_counts_layers_below_the_first_adapter_once(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model  # takes seconds to import

    spec = recipe_keys.TinySpec(vocab_size=300, hidden_size=32, intermediate_size=64, layers=4, heads=2)
    tokenizer = tokenizer_for(write_rows(tmp_path))
    ids, labels = torch.full((1, 9), 7), torch.full((1, 9), -100)
    labels[0, 6:] = 7
    flops = []
    for wanted in (r".*_proj", r".*layers\.[23]\..*_proj"):
        model = get_peft_model(random_model(spec, tokenizer, 100), LoraConfig(r=2, target_modules=wanted))
        watched = loop.Meter(model, tokenizer.pad_token_id)
        watched.add({"input_ids": ids, "labels": labels})
        flops.append(float(watched.flops))
    layer, head = 2 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32) * 9, 2 * 32 * len(tokenizer) * 3
    attention = 2 * 32 * 9 * 9
    # What lies before the first adapter in its own layer hands no gradient on either.
    assert flops[0] == pytest.approx(2 * (4 * layer + head) + 3 * 4 * attention, rel=0.02)
    assert flops[1] == pytest.approx(2 * layer + 2 * (2 * layer + head) + (2 + 3 * 2) * attention, rel=0.02)


def test_the_meter_counts_what_is_computed(tmp_path: Path) -> None:
    """FLOPs of a forward and a backward pass by the formula, written out for two rows."""
    spec = recipe_keys.TinySpec(vocab_size=300, hidden_size=32, intermediate_size=64, layers=2, heads=2)
    tokenizer = tokenizer_for(write_rows(tmp_path))
    model = random_model(spec, tokenizer, 100)
    watched = loop.Meter(model, tokenizer.pad_token_id)
    ids = torch.full((2, 9), 7)
    ids[1, 5:] = tokenizer.pad_token_id
    labels = torch.full((2, 9), -100)
    labels[0, 6:], labels[1, 3:5] = 7, 7
    watched.add({"input_ids": ids, "labels": labels})
    layer = 4 * 32 * 32 + 3 * 32 * 64
    matrices = 2 * 2 * layer * 14
    head = 2 * 32 * len(tokenizer) * 5
    attention = 2 * (2 * 2 * 32 * (9 * 9 + 5 * 5)) / 2
    norms = 2 * 2 * 2 * 32 * 14  # of no weight beside the matrices, but counted with them
    assert float(watched.flops) == pytest.approx(3 * (matrices + head + attention + norms))
    watched.stop()
    taken = watched.take()
    assert taken["tokens_per_second"] > 0 and (watched.tokens, watched.flops) == (0, 0)
    held = 0 if torch.cuda.is_available() else psutil.Process().memory_info().rss / 2**30
    assert 0.9 * held < taken["memory_gib"] < psutil.virtual_memory().total / 2**30
    packed = {"position_ids": torch.tensor([[*range(9), *range(5)]]), "input_ids": torch.full((1, 14), 7)}
    watched.add({**packed, "labels": labels.reshape(1, -1)})
    assert float(watched.flops) == pytest.approx(3 * (matrices + head + attention + norms))


def test_what_is_watched_begins_with_the_rating(tmp_path: Path) -> None:
    forms = {"pointwise_reason_first": 1.0, "direct_turn": 0.2, "correct": 1.0}
    assert objective_of(recipes.read_recipe(write_recipe(tmp_path, forms=forms))).watched_form() == "direct_turn"
    head: dict[str, Any] = {"objective": "head", "forms": {"pointwise_reason_first": 1.0}, "attention": "sdpa"}
    assert objective_of(recipes.read_recipe(write_recipe(tmp_path, **head))).watched_form() == "pointwise_reason_first"


@pytest.mark.parametrize("changed", [{"logits_scaling": 8.0}, {"final_logit_softcapping": 30.0}, {"logit_scale": 0.25}])
def test_a_base_that_changes_its_logits_is_refused(changed: dict[str, float]) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    model = AutoModelForCausalLM.from_config(config)
    for name, value in changed.items():
        setattr(model.config, name, value)
    with pytest.raises(UsageError, match=f"{next(iter(changed))} .* changes its logits"):
        objective_with().install(model)
    for name in changed:
        setattr(model.config, name, None)
    objective_with().install(model)


def test_terms_of_a_base_by_a_hub_s_name_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, out = tmp_path / "hub", tmp_path / "out"
    cached = hub / "models--some--model"
    snapshot = cached / f"snapshots/{'a' * 40}"
    for folder in (cached / "refs", snapshot, out):
        folder.mkdir(parents=True)
    (cached / "refs/main").write_text("a" * 40)
    for name in ("LICENSE", "use_policy.md"):
        (snapshot / name).write_text("Apache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert bases.find_folder("some/other") == Path("some/other")
    bases.copy_terms(bases.find_folder("some/model"), out)
    assert {path.name: path.read_text() for path in out.iterdir()} == {"LICENSE": "Apache", "use_policy.md": "Apache"}


def test_a_card_tells_of_the_agreement() -> None:
    recipe = {"base": None, "global_batch": 4, "objective": "sft", "images": "blind"}
    facts: dict[str, Any] = {"recipe": recipe, "rows": 9, "forms": {"pointwise": 6, "scale_5": 3}, "steps": 4}
    facts |= {"data": {}, "prompts": {}, "set": "ema", "evaluation": None}
    assert "in the forms pointwise (6), scale_5 (3); 4 steps of 4 rows" in export.render_card(facts)
    assert export.render_card(facts).endswith("\nIt was not evaluated while it was trained.\n")
    metrics = {"step": 4, "n": 9.0, "mae": 1.25}
    assert export.render_card(facts | {"evaluation": metrics}).endswith("\n| mae | 1.250 |\n")


@pytest.mark.e2e
def test_ending_the_command_ends_the_training(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--train", write_rows(tmp_path), "--out", out, "--threads", 1, "--set", "training.max_steps=100000"]
    options += ["--", "--num_gpus", "1"]  # by the launcher, which would leave its processes alone
    training = subprocess.Popen(command("critic", "train", write_recipe(tmp_path, evaluation=None), *options), cwd=ROOT)
    until = time.monotonic() + 120
    while not (out / "loss.jsonl").is_file() and training.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    started = psutil.Process(training.pid).children(recursive=True)
    training.terminate()
    code = training.wait(60)
    _, left = psutil.wait_procs(started, 30)
    for process in left:
        process.kill()
    assert started and not left and code not in (0, 2)
