"""The probabilities that transformers gives for a judge's ratings, one prompt at a time and without any server."""

from pathlib import Path
from typing import Any

from critic.judging.targets import source_ids
from critic.records import Message


def by_transformers(
    judge: Path, prompts_messages: list[list[Message]], head: bool = False, end: str = "}"
) -> list[list[float]]:
    """Behind a 1 stands what can be a verdict, a 0 or the rating's `end`, which begins many tokens."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(judge)
    prompts = [source_ids(tokenizer, messages) for messages in prompts_messages]
    kind = "AutoModelForSequenceClassification" if head else "AutoModelForCausalLM"
    model = getattr(transformers, kind).from_pretrained(judge, dtype=torch.float32).eval()

    def read(ids: list[int], messages: list[Message]) -> Any:
        """The logits of a head's classes, and of as many more that read the answer: all but what begins alike."""
        last = sum(not name.startswith("answer: ") for name in model.config.id2label.values())
        if model.config.num_labels == last:
            return logits(ids)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        answer = tokenizer(text, add_special_tokens=False).char_to_token(text.rindex("\n> ") + 1)
        by_token = model.score(model.model(torch.tensor([ids])).last_hidden_state[0])
        return by_token[-1, :last] + by_token[answer:, last:].mean(0)

    def logits(ids: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0]

    if head:
        return [read(*each).softmax(-1).tolist() for each in zip(prompts, prompts_messages, strict=True)]
    digits = [tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)]
    begins = tokenizer('{"Rating":', add_special_tokens=False)["input_ids"]
    closing = [place for word, place in tokenizer.get_vocab().items() if word.startswith(end)]
    ends = [place for place in closing if "\n" not in tokenizer.decode([place])]
    distributions = []
    for ids in prompts:
        first, behind = logits([*ids, *begins, digits[1]])[-2:]
        shares = first[digits[1:]].softmax(-1).tolist()
        zero = float(behind[[digits[0], *ends]].softmax(-1)[0])
        distributions.append([shares[0] * (1.0 - zero), *shares[1:], shares[0] * zero])
    return distributions
