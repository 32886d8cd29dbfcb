"""Helpers of the tests of training: rows, recipes, tiny models, and training in processes of their own.

The launcher takes twelve seconds to start a run. Here a process that has the heavy libraries loaded (multiprocessing's
fork server) starts the others, so that a run takes a few; what is run is train/sft.py itself, as the launcher runs it.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import random
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT, Done, assert_one_line_error, example_in, free_port, human_row, on_gpu, write_jsonl

pytest.importorskip("deepspeed", reason="needs the train extra")

os.environ.setdefault("DS_ACCELERATOR", "cpu")
ON_GPU = on_gpu()
"""With `pytest -m gpu`. Else training is tested on the CPU, and a GPU that there is stays unseen by it."""

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # before the fork server starts, whose processes see what is set here
sys.path.insert(0, str(ROOT / "train"))
if not ON_GPU:
    torch.cuda.is_available = lambda: False

_CONTEXT: Any = multiprocessing.get_context("spawn" if ON_GPU else "forkserver")  # what has seen CUDA cannot be forked
_CONTEXT.set_forkserver_preload(
    [
        "datasets",
        "deepspeed",
        "deepspeed.runtime.zero.muon.muon_optimizer",  # a second, where the first step imports it
        "peft",
        "scipy.stats",
        "torch.utils.tensorboard",
        "transformers.integrations.deepspeed",
        "transformers.models.llama.modeling_llama",
        "transformers.trainer",
    ]
)

RECIPE: dict[str, Any] = {
    "tiny": {
        "vocab_size": 400,
        "hidden_size": 32,
        "intermediate_size": 64,
        "layers": 2,
        "heads": 2,
        "initializer_range": 0.15,  # more than usual, so that an untrained model tells rows apart
    },
    "max_source_tokens": 2000,
    "max_target_tokens": 100,
    "global_batch": 4,
    "keep": 20,
    # Low, so that it is reached within a few steps: before, the decay follows from the number of updates.
    "ema": {"decay": 0.3},
    "evaluation": {"every": 2, "batch_size": 5},
    "training": {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.02,
        "logging_steps": 1,
        "save_steps": 1,
        "train_sampling_strategy": "group_by_length",
        "seed": 0,
    },
    "deepspeed": {"zero_optimization": {"stage": 1}},
}
"""Eight steps, a checkpoint after each; with the rows below one epoch is six steps."""


def sample_rows(count: int = 24) -> list[dict[str, Any]]:
    """Human-scored rows of different lengths in both languages; some with several raters or half a point."""
    rows = []
    for n in range(count):
        changes: dict[str, Any] = {"reason": f"It says {n % 5 + 2}.", "lang": ["en", "zh"][n // 2 % 2]}
        changes["response"] = f"I see {n % 5 + 2} apples." + " They are red." * (n % 4)
        changes["human_score"] = [1.0, 10.0, 4.5, 7.0, 9.0][n % 5]
        if n % 6 == 3:
            changes["human_score"] = 6.0
            changes["annotators"] = {"anna": 3, "ben": 6, "chen": 9}
        rows.append(human_row(n, **changes))
    return rows


CRITERIA: dict[str, tuple[int, int]] = {"right": (1, 3), "explained": (1, 2), "fluent": (0, 4), "true": (1, 5)}


def criteria_rows(count: int = 24) -> list[dict[str, Any]]:
    """Rows whose score is the sum of scores by two criteria. Odd rows have others, and one of them counts twice."""
    rows = sample_rows(count)
    for n, row in enumerate(rows):
        first, second = [("right", "explained"), ("fluent", "true")][n % 2]
        scores = {first: (1, 3, 2, 1.5)[n // 2 % 4], second: 1 + n // 3 % 2}
        weights = {second: 2.0} if n % 2 else {}
        ends = [sum(weights.get(name, 1) * CRITERIA[name][end] for name in scores) for end in (0, 1)]
        row |= {"criteria": {name: f"Is it {name}?" for name in scores}, "criteria_scores": scores, "annotators": None}
        row |= {"criteria_scales": {name: CRITERIA[name] for name in scores}, "criteria_weights": weights}
        total = sum(weights.get(name, 1) * score for name, score in scores.items())
        row |= {"human_score": total, "scale_min": ends[0], "scale_max": ends[1]}
    return rows


def pairs_of_answers(count: int = 12) -> list[dict[str, Any]]:
    """Rows in which every question has two answers that people told apart."""
    rows = []
    for n in range(count):
        same = {"question": f"How many pears lie on table {n // 2}?", "reference": "Three.", "image": f"{n // 2}.png"}
        same |= {"group": f"group-{n // 2}", "task": "Counting", "reason": "So."}
        rows.append(human_row(n, **same, response=f"{n % 2 + 2} pears", human_score=[2.0, 9.0][n % 2]))
    return rows


def two_kinds(turned: bool = False, **changes: str) -> list[dict[str, Any]]:
    """Rows whose long answers are good, or bad if `turned`. `changes` are columns whose text each row numbers."""
    rows = sample_rows()
    for place, row in enumerate(rows):
        row.pop("annotators", None)
        row |= {name: f"{value} {place}" for name, value in changes.items()}
        row["response"] = "no" if place % 2 else "yes it is " * 12
        row["human_score"] = 2.0 if place % 2 != turned else 8.5
    return rows


def write_rows(folder: Path, rows: list[dict[str, Any]] | None = None, name: str = "rows.jsonl") -> Path:
    return write_jsonl(folder / name, sample_rows() if rows is None else rows)


GRADES = (4.0, 2.0, 0.0, -1.0, -4.0, 1.0, 0.0, -2.0)


def preferences(graded: bool = True) -> list[dict[str, Any]]:
    """Pairs whose first answer people find better by -4..4; what is good is long."""
    rows = []
    for n, grade in enumerate(GRADES):
        row = human_row(n, group=f"group-{n}", human_score=grade, scale_min=-4, scale_max=4)
        row |= {"response_a": "very " * int(4 + grade) + "red.", "response_b": "very " * int(4 - grade) + "red, I see."}
        row |= {} if graded else {"preference": "tie" if grade == 0 else "A" if grade > 0 else "B"}
        rows.append(row)
    return rows


COLOURS = ("red", "green", "blue", "white")

SEEING: dict[str, Any] = {
    "images": "show",
    "vision": {
        "image_size": 32,
        "patch_size": 16,
        "hidden_size": 32,
        "intermediate_size": 64,
        "layers": 1,
        "heads": 2,
        "initializer_range": 0.2,
    },
    "forms": {"pointwise_short": 1.0},
    "evaluation": None,
    "ema": None,
    "training": {"max_steps": 3, "save_steps": 3, "train_sampling_strategy": "random"},
}


def pictured(folder: Path, count: int = 12) -> Path:
    """Rows of one text about pictures of three colours, in which nothing else tells them apart: two with several
    pictures, some without any."""
    from PIL import Image

    for name in COLOURS:
        Image.new("RGB", (40, 24), name).save(folder / f"{name}.png")
    rows = []
    for n in range(count):
        names = [f"{COLOURS[n % 3]}.png"] + (["white.png"] if n % 5 == 4 else [])
        same = {"question": "Which colour?", "response": "It is red.", "image": None, "reference": None}
        row = human_row(n, **same, images=names, human_score=[9.0, 2.0, 3.0][n % 3], group=f"g{n}")
        if n % 4 == 3:
            row |= {"images": [], "reference": f"It is {COLOURS[n % 3]}."}
        rows.append(row)
    return write_rows(folder, rows)


def recipe_with(**changes: Any) -> dict[str, Any]:
    """RECIPE with `changes`: sections are merged, None takes a key away."""
    recipe = json.loads(json.dumps(RECIPE))
    for name, value in changes.items():
        if isinstance(value, dict) and name in recipe:
            recipe[name] |= value
        else:
            recipe[name] = value
    return {name: value for name, value in recipe.items() if value is not None}


def write_recipe(folder: Path, name: str = "recipe.yaml", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(yaml.safe_dump(recipe_with(**changes)), "utf-8")
    return path


def prepare_rows(folder: Path, rows: list[dict[str, Any]] | None = None, **changes: Any) -> tuple[Any, Any, Any]:
    """Return RECIPE with `changes`, what it learns of rows, and the tokenizer."""
    import recipe as recipes
    import rows as rows_module

    recipe = recipes.read_recipe(write_recipe(folder, **changes))
    return recipe, *rows_module.prepare(recipe, write_rows(folder, rows), folder / "cache", 1)


def _in_process(function: Callable[..., None], arguments: tuple[Any, ...], place: dict[str, str], log: Path) -> None:
    os.environ.pop("TENSORBOARD_LOGGING_DIR", None)  # passed_on.arguments sets it, in the process of the tests too
    os.environ.update(place)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(log / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    gc.freeze()  # what was loaded before: the trainer collects garbage again and again
    function(*arguments)


class Processes:
    """A function in `count` processes that torch.distributed can join; what the first prints is kept."""

    def __init__(self, log: Path, count: int, function: Callable[..., None], *arguments: Any) -> None:
        self.logs = [log / str(rank) for rank in range(count)]
        port = str(free_port())
        self.processes = []
        for rank, folder in enumerate(self.logs):
            folder.mkdir(parents=True, exist_ok=True)
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
            place |= {} if ON_GPU else {"CUDA_VISIBLE_DEVICES": ""}
            place |= {"LOCAL_SIZE": str(count), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = _CONTEXT.Process(target=_in_process, args=(function, arguments, place, folder))
            process.start()
            self.processes.append(process)

    def wait(self, limit: float = 240) -> int:
        """The first exit code that is not 0, at which the others are ended; 0 if all went well."""
        end = time.monotonic() + limit
        while any(process.exitcode is None for process in self.processes):
            if any(process.exitcode for process in self.processes) or time.monotonic() > end:
                break
            time.sleep(0.02)
        codes = [process.exitcode for process in self.processes]
        self.kill()
        assert time.monotonic() < end, f"still running after {limit:.0f} s\n{self.stderr}"
        return next((code for code in codes if code), 0)

    def kill(self) -> None:
        """End all at once, as SIGKILL does."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                if process.exitcode is None and process.pid is not None:
                    os.kill(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.join()

    @property
    def stdout(self) -> str:
        return (self.logs[0] / "stdout").read_text("utf-8")

    @property
    def stderr(self) -> str:
        """Return the standard error of all processes."""
        return "".join((log / "stderr").read_text("utf-8") for log in self.logs if (log / "stderr").is_file())


def run_sft(words: list[str]) -> None:
    sys.argv = ["train/sft.py", *words]
    sys.path.insert(0, str(ROOT / "train"))
    runpy.run_path(str(ROOT / "train/sft.py"), run_name="__main__")


def run_sft_without(library: str, folder: str) -> None:
    """Run train/sft.py where a folder hides a library, though it has been loaded."""
    del sys.modules[library]
    sys.path.insert(0, folder)
    run_sft(["tiny", "--train", "x.jsonl", "--out", "y"])


def start(
    recipe: Path, rows: Path, out: Path, *words: str, processes: int = 1, internal: bool = True, by: Any = run_sft
) -> Processes:
    """Start train/sft.py; it judges `rows` themselves while it trains, where `internal` says so. `by` runs it."""
    line = [str(recipe), "--train", str(rows), "--out", str(out), "--cache", str(out.parent / "cache")]
    line += ["--internal", str(rows)] if internal else []
    line += [] if "--threads" in words else ["--threads", "1"]  # the same bits, whatever else is running
    return Processes(out.parent / f"{out.name}.log", processes, by, [*line, *words])


def train(recipe: Path, rows: Path, out: Path, *words: str, **how: Any) -> Processes:
    """Train to the end, as `start` does by its keyword arguments."""
    run = start(recipe, rows, out, *words, **how)
    assert run.wait() == 0, run.stderr
    return run


def refused(run: Processes, *parts: str) -> str:
    """Return the one line of a run that ends with exit code 2; it must contain `parts`."""
    return assert_one_line_error(Done([], run.wait(), stderr=run.stderr), *parts)


TIMES = {"tokens_per_second", "gflops", "cpu_gflops", "memory_gib"}


def logged(out: Path) -> list[dict[str, float]]:
    """The lines of loss.jsonl without what the clock and the kernel say."""
    lines = (out / "loss.jsonl").read_text("utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in logged(out) if "loss" in line]


class Whole:
    """A run that nothing interrupted: RECIPE over the sample rows."""

    def __init__(self, folder: Path, processes: int, **changes: Any) -> None:
        self.processes = processes
        self.recipe = write_recipe(folder, **changes)
        self.rows = write_rows(folder)
        self.out = folder / "out"
        self.run = train(self.recipe, self.rows, self.out, processes=processes)


_DONE: dict[str, Whole] = {}
"""One of a kind for all test files."""


def whole(factory: pytest.TempPathFactory) -> Whole:
    """One process, ZeRO-1."""
    if "one" not in _DONE:
        _DONE["one"] = Whole(factory.mktemp("one"), 1)
    return _DONE["one"]


def whole_of_two(factory: pytest.TempPathFactory) -> Whole:
    """Two processes, ZeRO-3, two micro-batches a step. Parameters of up to 100 numbers stay in both processes."""
    zero = {"stage": 3, "stage3_param_persistence_threshold": 100}
    changes = {"training": {"per_device_train_batch_size": 1}, "deepspeed": {"zero_optimization": zero}}
    if "two" not in _DONE:
        _DONE["two"] = Whole(factory.mktemp("two"), 2, **changes)
    return _DONE["two"]


ORDERS = ("pointwise", "pointwise_reason_first")
"""The forms that the tiny judge is trained in."""


def tiny_judge(folder: Path) -> Path:
    """The tiny recipe in both orders, for as many steps as it takes to write verdicts of its own accord."""
    steps: dict[str, float] = {"max_steps": 240, "save_steps": 240, "logging_steps": 60, "warmup_steps": 20}
    steps |= {"per_device_train_batch_size": 8, "learning_rate": 0.004}
    changes: dict[str, Any] = {"evaluation": None, "ema": None, "global_batch": 8, "max_source_tokens": 500}
    # vLLM on a CPU knows no smaller heads than of 32 numbers.
    changes["tiny"] = {"hidden_size": 64, "heads": 1, "initializer_range": 0.06}
    recipe = write_recipe(folder, forms=dict.fromkeys(ORDERS, 1.0), **changes, training=steps)
    train(recipe, write_rows(folder), folder / "judge", internal=False)
    return folder / "judge"


TWO = pytest.param(whole_of_two, marks=pytest.mark.e2e)
"""For tests that hold with one process and with two."""


def tokenizer_for(rows: Path, **spec: Any) -> Any:
    """The tiny recipe's tokenizer, trained on the rows' prompts."""
    from tiny import train_tokenizer

    from critic import human_scored

    texts = []
    for response in human_scored.load(rows).responses:
        planned = example_in("pointwise", response)
        assert planned is not None
        texts.append((planned.messages[0]["content"], planned.target))
    return train_tokenizer(texts, {**RECIPE["tiny"], **spec}["vocab_size"])


def objective_with(name: str = "sft", tokens: Any = None, **changes: Any) -> Any:
    """Return an objective of the table for a recipe that is plain but for `changes`."""
    from recipe import FullRecipe, objective_of

    limits = {"max_source_tokens": 1000, "max_target_tokens": 100, "global_batch": 1, "deepspeed": {}}
    return objective_of(FullRecipe(objective=name, **{**limits, **changes}), tokens)


FAMILIES = ("llama", "qwen2", "qwen3", "glm", "gemma3_text")
HYBRID = "qwen3_5_text"
"""A family whose first layer here has a state of its own, so that its rows cannot be packed."""


def tiny_model(family: str, attention: str, vocabulary: int) -> Any:
    """A random model of a family in float32, with grouped key/value heads and weights large enough to matter."""
    import torch
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    if family == "gemma3_text":
        # Its first layer sees a few tokens back, fewer than a row has.
        shape |= {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}
    if family == HYBRID:
        shape |= {"layer_types": ["linear_attention", "full_attention"], "rope_parameters": {"rope_type": "default"}}
        shape |= {f"linear_{side}_head_dim": 8 for side in ("key", "value")}
        shape |= {f"linear_num_{side}_heads": 2 for side in ("key", "value")}
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(family, **shape)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)


def save_base(folder: Path, rows: Path) -> Path:
    """A random base with a chat tokenizer, as a folder that `base:` can name."""
    import torch
    from recipe_keys import TinySpec
    from tiny import random_model

    tokenizer = tokenizer_for(rows)
    torch.manual_seed(0)
    random_model(TinySpec(**RECIPE["tiny"]), tokenizer, 2100).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def wait_for_lines(out: Path, count: int, run: Processes, limit: float = 120) -> None:
    """Until a run has logged `count` lines."""
    end = time.monotonic() + limit
    log = out / "loss.jsonl"
    while not log.is_file() or log.read_text("utf-8").count("\n") < count:
        assert all(process.exitcode is None for process in run.processes), run.stderr
        assert time.monotonic() < end, run.stderr
        time.sleep(0.005)


def moments(count: int, seed: int = 0) -> list[tuple[int, float]]:
    """When to kill: (lines logged before, seconds after)."""
    draw = random.Random(seed)
    return [(draw.randint(1, 8), draw.uniform(0.0, 0.2)) for _ in range(count)]
