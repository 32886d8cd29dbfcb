"""An untrained tiny judge: what the tests and measurements of serving share."""

import json
import sys
from pathlib import Path

from clients.forms import FORMS
from conftest import ROOT

CONTEXT = 1536


def make_judge(folder: Path, context: int = CONTEXT) -> Path:
    """A judge whose replies are arbitrary: what it is asked for, the server has to see to."""
    sys.path.insert(0, str(ROOT / "train"))
    from tiny import TinySpec, random_model, train_tokenizer

    spec = TinySpec(
        vocab_size=800, hidden_size=64, intermediate_size=128, layers=2, heads=1, initializer_range=0.25, seed=1
    )
    prompts = [json.dumps(form.request["messages"]) for form in FORMS]
    tokenizer = train_tokenizer(((prompt, '{"Rating":7,"Reason":"It says so."}') for prompt in prompts), spec)
    random_model(spec, tokenizer, context).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "critic.json").write_text(json.dumps({"weights": {"model.safetensors": "x"}}))
    return folder
