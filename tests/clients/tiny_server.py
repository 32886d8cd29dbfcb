"""An untrained tiny judge: what the tests and measurements of serving share."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from byte_pairs import train_byte_pairs
from clients.forms import FORMS
from clients.words import ASKED, PLAIN
from conftest import ROOT

CONTEXT = 4096
"""The longest prompt of other people's clients, of ragas' ContextRecall, has 3,600 tokens of this judge."""

VOCABULARY = 2000
"""So many that a token is about three characters of what clients send, as it is of a real judge."""


def make_judge(folder: Path, forms: Sequence[str] = (), head: bool = False) -> Path:
    """Make a judge whose replies are arbitrary: the server has to see to what it is asked for.

    Its notes say that it learned the `forms`. A `head` rates on 1..10 and writes nothing.
    """
    sys.path.insert(0, str(ROOT / "train"))
    from recipe_keys import TinySpec
    from tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, random_model

    requests = [form.request for form in FORMS] + [form.request for form in ASKED] + PLAIN
    texts = [json.dumps(request, ensure_ascii=False) for request in requests]
    tokenizer = train_byte_pairs(texts, VOCABULARY, SPECIAL_TOKENS, SPECIAL_TOKENS[1], chat_template=CHAT_TEMPLATE)
    spec = TinySpec(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, layers=2, heads=1, initializer_range=0.25, seed=1
    )
    model = random_model(spec, tokenizer, CONTEXT)
    if head:
        import torch
        from transformers import LlamaForSequenceClassification

        torch.manual_seed(1)
        model.config.num_labels = 10
        classifier = LlamaForSequenceClassification(model.config)
        classifier.model.load_state_dict(model.model.state_dict())
        # Ratings that differ from row to row.
        torch.nn.init.normal_(classifier.score.weight, std=0.2)
        model = classifier
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    notes: dict[str, Any] = {"weights": {"model.safetensors": "head" if head else "x"}}
    if forms:
        limits = {"max_source_tokens": CONTEXT - 64, "max_target_tokens": 64}
        notes |= {"recipe": {"forms": dict.fromkeys(forms, 1.0), **limits}}
    (folder / "critic.json").write_text(json.dumps(notes))
    return folder
