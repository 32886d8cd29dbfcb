"""A reward model by its own trainer: three steps on a CPU, then the scores that its writer's code gives to token ids.

    python reward_models.py trl|ms_swift|llamafactory full|lora FOLDER "[[5, 9], …]"

FOLDER has the base (`base`) and the pairs (`pairs.json`). Prints where the model lies and the scores. LLaMA-Factory's
are without the bias of its head, which is the same for all answers.
"""

import contextlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

OPTIONS = {"max_steps": 3, "learning_rate": 0.01, "per_device_train_batch_size": 4, "report_to": "none"}


def trl(kind: str, folder: Path, **options: Any) -> tuple[Any, str]:
    """TRL's RewardTrainer. The model is the trained one, still in memory."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import RewardConfig, RewardTrainer

    rows = Dataset.from_list(json.loads((folder / "pairs.json").read_text("utf-8")))
    adapter = LoraConfig(task_type="SEQ_CLS", modules_to_save=["score"]) if kind == "lora" else None
    config = RewardConfig(use_cpu=True, bf16=False, **options)
    trainer = RewardTrainer(str(folder / "base"), config, train_dataset=rows, peft_config=adapter)
    trainer.train()
    trainer.save_model()
    return trainer.model.eval(), options["output_dir"]


def ms_swift(kind: str, folder: Path, **options: Any) -> tuple[Any, str]:
    """`swift rlhf --rlhf_type rm`. The model is as `swift infer` loads it."""
    from swift.arguments import InferArguments, RLHFArguments
    from swift.pipelines import rlhf_main
    from swift.pipelines.utils import prepare_model_template

    options |= {"model": str(folder / "base"), "model_type": "llama", "template": "dummy", "torch_dtype": "float32"}
    options |= {"rlhf_type": "rm", "tuner_type": kind, "dataset": [str(folder / "pairs.json")]}
    options["columns"] = {"prompt": "query", "chosen": "response", "rejected": "rejected_response"}
    saved = rlhf_main(RLHFArguments(**options))["last_model_checkpoint"]
    return prepare_model_template(InferArguments(**{"adapters" if kind == "lora" else "model": saved}))[0], saved


def llamafactory(kind: str, folder: Path, **options: Any) -> tuple[Any, str]:
    """`llamafactory-cli train` of stage rm. The model is as its own stages load it, with TRL's head of values."""
    # It imports this for sounds, and for this torch there is none.
    (folder / "torchaudio.py").touch()
    sys.path.append(str(folder))
    from llamafactory.hparams import get_infer_args
    from llamafactory.model import load_model, load_tokenizer
    from llamafactory.train.tuner import run_exp

    names = {name: name for name in ("prompt", "chosen", "rejected")}
    data = {"pairs": {"file_name": "pairs.json", "ranking": True, "columns": names}}
    (folder / "dataset_info.json").write_text(json.dumps(data))
    own = {"model_name_or_path": str(folder / "base"), "template": "default", "finetuning_type": kind}
    run_exp({**own, **options, "stage": "rm", "do_train": True, "dataset_dir": str(folder), "dataset": "pairs"})
    own["adapter_name_or_path" if kind == "lora" else "model_name_or_path"] = saved = options["output_dir"]
    loaded, _, tuning, _ = get_infer_args(own)
    valued = load_model(load_tokenizer(loaded)["tokenizer"], loaded, tuning, add_valuehead=True)
    return (lambda ids: valued(ids)[2][:, -1:] - valued.v_head.summary.bias), saved


if __name__ == "__main__":
    (writer, kind), folder = sys.argv[1:3], Path(sys.argv[3])
    with contextlib.redirect_stdout(sys.stderr):
        model, saved = globals()[writer](kind, folder, output_dir=str(folder / "out"), **OPTIONS)
    given = [model(torch.tensor([ids])) for ids in json.loads(sys.argv[4])]
    scores = [getattr(score, "logits", score).item() for score in given]
    print(json.dumps({"version": f"{writer} {version(writer)}", "saved": saved, "scores": scores}))
