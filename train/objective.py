"""What training minimises: cross-entropy of the verdict's tokens, and with `raft` the error of the rating too; of
scoring heads cross-entropy of ratings, or of which answer people preferred.

Regression-aware fine-tuning (Lukasik et al. 2024 and 2025, RAFT and TRACT) adds to the cross-entropy the error of
what is decoded in the end, a number made from the distribution over the ratings.
"""

import types
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attention
import torch
import transformers
from msgspec import Struct
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from critic.errors import UsageError
from critic.judging.targets import IGNORED, encode, target
from critic.records import RATINGS, Example, Message

if TYPE_CHECKING:
    from recipe import RaftSpec


def rows_at_once(vocabulary: int) -> int:
    """Rows whose logits, with copies and gradients, take a sixteenth of the GPU's memory, on a CPU 4 GiB."""
    room = torch.cuda.get_device_properties().total_memory // 16 if torch.cuda.is_available() else 2**32
    return max(1, room // (16 * vocabulary))


class RatingTokens(Struct, frozen=True):
    """How a tokenizer spells the ratings: `before` them stands the beginning of a verdict, `first[k - 1]` is the
    first token of rating k. `zero` is the token that turns a 1 into a 10, None where 10 is one token; instead of it may
    come, as the judge is constrained, those that go on in the verdict, or that end it where the rating is its last."""

    before: list[int]
    first: list[int]
    zero: int | None
    going_on: list[int] = []
    ending: list[int] = []


def rating_tokens(tokenizer: Any) -> RatingTokens:
    """Raises UsageError for a tokenizer in which ratings cannot be told apart by two tokens at most."""
    before: set[tuple[int, ...]] = set()
    spelt: list[list[int]] = []
    for rating in RATINGS:
        messages: list[Message] = [{"role": "user", "content": "?"}]
        example = Example(id="", messages=messages, target=target(rating, ""), form="pointwise", score=None, label=None)
        tokens = encode(tokenizer, example)
        learned = [position for position, label in enumerate(tokens.labels) if label != IGNORED]
        value = [position for position, spells in enumerate(tokens.rating) if spells]
        before.add(tuple(tokens.ids[learned[0] : value[0]]))
        spelt.append([tokens.ids[position] for position in value])
    first = [tokens[0] for tokens in spelt]
    one, ten = spelt[0], spelt[-1]
    if len(before) == 1 and len(set(first)) == len(RATINGS):
        return RatingTokens(list(before.pop()), first, None)
    if len(before) == 1 and len(set(first[:-1])) == len(RATINGS) - 1 and one == ten[:1] and len(ten) == 2:
        return RatingTokens(list(before.pop()), first, ten[1], *(_beginning_with(tokenizer, mark) for mark in ",}"))
    raise UsageError("this tokenizer does not spell the ratings 1..10 as digits; choose another base")


def _beginning_with(tokenizer: Any, mark: str) -> list[int]:
    """The tokens that begin with a mark, on its line."""
    ids = sorted(token_id for token, token_id in tokenizer.get_vocab().items() if token.startswith(mark))
    return [token_id for token_id in ids if not {*"\n\r"} & {*tokenizer.decode([token_id])}]


def log_distribution(
    tokens: RatingTokens, at_rating: torch.Tensor, behind_one: torch.Tensor | None, last: torch.Tensor | None = None
) -> torch.Tensor:
    """Log probabilities [rows × 10] of the ratings as the judge is asked for them: among what its constrained reply may
    go on with (critic.judging.distribution).

    `at_rating` [rows × vocabulary] are the logits where the rating's first token stands, `behind_one` those behind a 1
    in its place (unused where 10 is one token), where a 0 comes or what follows a rating: of the rows that are `last`
    [rows] (none without it) the verdict's end.
    """

    def picked(logits: torch.Tensor, columns: list[int]) -> torch.Tensor:
        return logits[:, _index(tuple(columns), logits.device)].float()

    scores = picked(at_rating, tokens.first)
    if tokens.zero is not None:
        assert behind_one is not None
        without_zero = picked(behind_one, tokens.going_on).logsumexp(-1)
        if last is not None:
            without_zero = torch.where(last, picked(behind_one, tokens.ending).logsumexp(-1), without_zero)
        more = behind_one[:, tokens.zero].float() - without_zero
        one, ten = scores[:, 0] + functional.logsigmoid(-more), scores[:, -1] + functional.logsigmoid(more)
        scores = torch.cat([one[:, None], scores[:, 1:-1], ten[:, None]], dim=1)
    return functional.log_softmax(scores, dim=-1)


@lru_cache
def _index(tokens: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Made once: a list as an index is taken to the GPU each time, which waits for all that the GPU has to do."""
    return torch.tensor(tokens, dtype=torch.long, device=device)


def rating_error(kind: str, log_probabilities: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
    """The error [rows] of rating distributions against people's, both [rows × 10].

    `squared` is (expected rating - people's mean)² (RAFT), `rps` the ranked probability score: the sum over the
    ratings of the squared difference of the cumulative distributions, which is least in expectation at the true
    distribution and so keeps its median and spread right, not its mean alone.
    """
    probabilities = log_probabilities.exp()
    if kind == "squared":
        return ((probabilities - people) @ _index(RATINGS, probabilities.device).to(probabilities.dtype)) ** 2
    return ((probabilities.cumsum(-1) - people.cumsum(-1)) ** 2).sum(-1)


def _nll(head: Any, hidden: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of negative log likelihoods of `labels` [n], from `hidden` [n × width]."""
    logits = functional.linear(hidden, head.weight, head.bias).float()
    return (functional.cross_entropy(logits, labels, reduction="none") * weights).sum()


def _with_loss(head: Any) -> None:
    """Let `head` (a linear layer) return the sum of `part(head, *rows)` where a part is given: for rows_at_once, if
    there are more computed again backwards. Under ZeRO-3 each call of a module is a collective, so all times, whose
    number differs between processes, lie within one."""

    def forward(self: Any, hidden: torch.Tensor, part: Any = None, *more: torch.Tensor) -> torch.Tensor:
        if part is None:
            return plain_forward(hidden)
        size = rows_at_once(self.weight.shape[0])
        if len(hidden) <= size:
            return part(self, hidden, *more)
        parts = zip(*(tensor.split(size) for tensor in (hidden, *more)), strict=True)
        return torch.stack([checkpoint(part, self, *rows, use_reentrant=False) for rows in parts]).sum()

    plain_forward = head.forward
    head.forward = types.MethodType(forward, head)


def preference_error(ahead: torch.Tensor, preferred: torch.Tensor, margin: torch.Tensor) -> torch.Tensor:
    """The error [n] of the differences s_A - s_B of two answers' scores `ahead` [n], against what people `preferred`
    [n]: 1 for A, 0 for B, 1/2 for a tie.

    -[y log σ(s_A - s_B - m) + (1 - y) log σ(s_B - s_A + m)]: Bradley & Terry 1952 with the margin m of Llama 2 (Touvron
    et al. 2023, arXiv 2307.09288, eq. 2), which is above 0 where A is to be ahead by so much, below 0 for B, 0 of ties.
    """
    return functional.binary_cross_entropy_with_logits(ahead - margin, preferred, reduction="none")


LOSS_INPUTS = frozenset(
    ("labels", "learned", "weights", "people", "rated", "branch", "last", "ends", "margins", "row_weights")
)
"""What of a batch the loss is made of, and the model is not given."""


def _trained_by(model: Any, loss: Callable[..., tuple[torch.Tensor, int]]) -> None:
    """Give `model` the forward pass of training: `loss`, of the model, the hidden states and a batch's LOSS_INPUTS, is
    a sum and how many it is of, for where `num_items_in_batch` does not say how many the whole step has. Without labels
    it stays what it was."""

    def forward(self: Any, input_ids: torch.Tensor, num_items_in_batch: Any = None, **options: Any) -> Any:
        if options.get("labels") is None:
            return plain_forward(input_ids=input_ids, **options)
        inputs = {name: options.pop(name) for name in LOSS_INPUTS & options.keys()}
        options["use_cache"] = False
        hidden = self.model(input_ids=input_ids, **options).last_hidden_state
        total, count = loss(self, hidden, **inputs)
        divisor = count if num_items_in_batch is None else num_items_in_batch
        return transformers.modeling_outputs.CausalLMOutputWithPast(loss=total / divisor)

    plain_forward = model.forward
    model.forward = types.MethodType(forward, model)
    attention.install(model)


def classify(model: Any) -> None:
    """Give `model`, a base with a linear layer `score`, the forward pass of training a scoring head, by `row_weights`
    [n]. With ten classes: cross-entropy against `people` [n × 10] at the tokens `ends` [n] of a batch. With one:
    `preference_error` of the two answers that end at `ends` [n × 2], against `people` [n] and `margins` [n]."""

    def loss(
        self: Any,
        hidden: torch.Tensor,
        people: torch.Tensor,
        ends: torch.Tensor,
        row_weights: torch.Tensor,
        margins: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, int]:
        scores = self.score(hidden.flatten(0, 1)[ends]).float()
        if margins is not None:
            first, second = scores.squeeze(-1).unbind(-1)
            errors = preference_error(first - second, people, margins)
        else:
            errors = -(people * functional.log_softmax(scores, dim=-1)).sum(-1)
        return (errors * row_weights).sum(), len(ends)

    _trained_by(model, loss)


_PLAIN = {"logits_scaling": 1.0, "logit_scale": 1.0, "lm_head_multiplier": 1.0, "final_logit_softcapping": None}
"""What families do with the logits behind `lm_head`, by the names of their configurations, and what does nothing."""


def _require_plain_logits(model: Any) -> None:
    """Raises UsageError for a base whose ratings would be served by other logits than those that are learned from."""
    config = model.config.get_text_config()
    for name, plain in _PLAIN.items():
        if (value := getattr(config, name, plain)) not in (plain, None):
            raise UsageError(f"base: {name} {value:g} changes its logits, which training does not; take another base")


def learn(model: Any, raft: "RaftSpec | None", tokens: RatingTokens | None) -> None:
    """Give `model` the forward pass of training.

    A judging prompt is thirty times as long as its verdict, so only the learned positions are turned into logits:
    the memory of the loss is [learned tokens × vocabulary], in parts, instead of [tokens × vocabulary]. The loss is
    the sum over `num_items_in_batch`, the learned tokens of the whole step, so that it does not depend on how the
    step's rows are shared out over processes and micro-batches. For `raft`, of the rows of a packed batch that have a
    rating, `people` [n × 10] is what people said, `rated` [n] the place whose logits are of the rating, `branch` [n]
    that of a 1 beside the row which sees what the rating sees, `last` [n] whether the rating ends the verdict, and
    `row_weights` [n] how much the row counts. `learned` is as in batches.learned_places.
    """

    def error(head: Any, hidden: Any, branch: Any, people: Any, last: Any, weights: Any) -> torch.Tensor:
        assert raft is not None and tokens is not None
        at_rating, behind_one = functional.linear(torch.cat([hidden, branch]), head.weight, head.bias).chunk(2)
        shares = log_distribution(tokens, at_rating, behind_one, last)
        return raft.weight * (rating_error(raft.kind, shares, people) * weights).sum()

    def loss(
        self: Any,
        hidden: torch.Tensor,
        labels: torch.Tensor,
        learned: torch.Tensor,
        weights: torch.Tensor,
        people: torch.Tensor | None = None,
        rated: torch.Tensor | None = None,
        branch: torch.Tensor | None = None,
        last: torch.Tensor | None = None,
        row_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, int]:
        states, behind = hidden.flatten(0, 1).index_select(0, learned), learned + 1
        total = self.lm_head(states, _nll, labels.flatten()[behind], weights.flatten()[behind])
        if people is not None:
            total = total + self.lm_head(hidden[0, rated], error, hidden[0, branch], people, last, row_weights)
        return total, len(learned)

    _require_plain_logits(model)
    _trained_by(model, loss)
    _with_loss(model.lm_head)
