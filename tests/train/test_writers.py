"""Reward models that TRL, ms-swift and LLaMA-Factory train and save themselves become judges that score as they do.

    make test-clients

Each is installed beside the tests' torch and transformers (clients.toml), and trains a random Llama for three steps.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers
from clients.environments import PROGRAMS, had, installed, printed
from conftest import run

pytestmark = pytest.mark.clients

ALONE = {"HF_HUB_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
"""No hub and no GPU; LLaMA-Factory takes newer packages than it knows."""

IDS = [[5, 9, 2, 7, 4], [8, 100, 33], [200, 20, 21, 22, 23, 24]]


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("writer", ["trl", "ms_swift", "llamafactory"])
def test_it_scores_as_its_writer_does(writer: str, kind: str, base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python, folder = had(lambda: installed(writer)) / "bin/python", base.parent
    # LLaMA-Factory does not save whole models whose output layer is the embeddings.
    transformers.LlamaForCausalLM.from_pretrained(base, tie_word_embeddings=False).save_pretrained(base)
    pairs = [{"prompt": f"What is {n} + {n}?", "chosen": f"It is {2 * n}.", "rejected": "No."} for n in range(12)]
    (folder / "pairs.json").write_text(json.dumps(pairs))
    words = [python, PROGRAMS / "reward_models.py", writer, kind, folder, json.dumps(IDS)]
    (theirs,) = printed(words, folder, {**ALONE, "HF_HOME": str(folder), "MODELSCOPE_CACHE": str(folder)})
    done = run("critic", "adopt", theirs["saved"], folder / "judge", code=0)
    adopted = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "judge")
    ours = [adopted(torch.tensor([ids])).logits.item() for ids in IDS]
    widest = max(abs(a - b) for a, b in zip(ours, theirs["scores"], strict=True))
    with capfd.disabled():
        print(f"\n| {theirs['version']} | {kind} | {done.stdout.splitlines()[0]} | {widest:.1e} |")
    assert done.stdout.startswith("found: a reward model (Llama")
    assert widest < 1e-5 < max(ours) - min(ours)
