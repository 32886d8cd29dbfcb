"""Base classes of training objectives, which define the forward pass for training, and functions that they share.

The functions find out how a tokenizer spells the ratings, and compute the errors of preferences and of rankings.
"""

import types
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import attention
import datasets
import numpy as np
import pyarrow.compute
import torch
import transformers
from batches import Collation, PromptCollation, Row, Tensors, Weights
from msgspec import Struct
from recipe_keys import RankSpec, Recipe, used_forms
from torch.nn import functional

from critic.errors import UsageError
from critic.judging.forms import REASON_FIRST, rates
from critic.judging.targets import encode, target
from critic.records import RATINGS, Example, Message, Scale

if TYPE_CHECKING:
    from critic.judging.examples import Plan


class RatingTokens(Struct, frozen=True):
    """How a tokenizer spells the ratings.

    - `before`: tokens of a verdict before the rating.
    - `first[k - 1]`: first token of rating k.
    - `zero`: token that turns a 1 into a 10, or None if 10 is one token; the following two are then empty.
    - `going_on`: tokens that may follow the rating if the verdict has a value after it (they begin with a comma).
    - `ending`: tokens that may follow the rating if it is the verdict's last value (they begin with a brace).
    """

    before: list[int]
    first: list[int]
    zero: int | None
    going_on: list[int] = []
    ending: list[int] = []


def rating_tokens(tokenizer: Any) -> RatingTokens:
    """Return how a tokenizer spells the ratings.

    Raise UsageError unless all ratings differ in their first token, or only 1 and 10 share it and 10 has two tokens.
    """
    before: set[tuple[int, ...]] = set()
    spelt: list[list[int]] = []
    for rating in RATINGS:
        messages: list[Message] = [{"role": "user", "content": "?"}]
        example = Example(id="", messages=messages, target=target(rating, ""), form="pointwise")
        tokens = encode(tokenizer, example)
        before.add(tuple(tokens.ids[tokens.source : tokens.value[0]]))
        spelt.append([tokens.ids[position] for position in tokens.value])
    first = [tokens[0] for tokens in spelt]
    one, ten = spelt[0], spelt[-1]
    # Ten different first tokens: 10 is one of them.
    if len(before) == 1 and len(set(first)) == len(RATINGS):
        return RatingTokens(list(before.pop()), first, None)
    if len(before) == 1 and len(set(first[:-1])) == len(RATINGS) - 1 and one == ten[:1] and len(ten) == 2:
        return RatingTokens(list(before.pop()), first, ten[1], *(_find_tokens(tokenizer, mark) for mark in ",}"))
    raise UsageError("this tokenizer does not spell the ratings 1..10 as digits; choose another base")


def _find_tokens(tokenizer: Any, mark: str) -> list[int]:
    """Return the ids of tokens that start with `mark` and contain no line break."""
    ids = sorted(token_id for token, token_id in tokenizer.get_vocab().items() if token.startswith(mark))
    return [token_id for token_id in ids if not {*"\n\r"} & {*tokenizer.decode([token_id])}]


def log_distribution(
    tokens: RatingTokens, at_rating: torch.Tensor, behind_one: torch.Tensor | None, last: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the log probabilities [rows × 10] of the ratings, normalised over what a constrained reply may contain.

    - `at_rating` [rows × vocabulary]: logits at the rating's first token.
    - `behind_one` [rows × vocabulary]: logits after a 1 at that position; None if 10 is one token.
    - `last` [rows]: True if the rating is the verdict's last value (default: in no row).

    critic.judging.distribution reads a server's reply in the same way.

    >>> tokens = RatingTokens(before=[], first=list(range(10)), zero=None)
    >>> log_distribution(tokens, torch.zeros(1, 12), None).exp()[0, :2]
    tensor([0.1000, 0.1000])
    """

    def picked(logits: torch.Tensor, columns: list[int]) -> torch.Tensor:
        return logits[:, token_index(tuple(columns), logits.device)].float()

    scores = picked(at_rating, tokens.first)
    if tokens.zero is not None:
        assert behind_one is not None
        without_zero = picked(behind_one, tokens.going_on).logsumexp(-1)
        # Behind the last value of a verdict only its end may follow.
        if last is not None:
            without_zero = torch.where(last, picked(behind_one, tokens.ending).logsumexp(-1), without_zero)
        # Behind a 1 there are two ways on: the 0 that makes it a 10, and the rest of the verdict.
        more = behind_one[:, tokens.zero].float() - without_zero
        one, ten = scores[:, 0] + functional.logsigmoid(-more), scores[:, -1] + functional.logsigmoid(more)
        scores = torch.cat([one[:, None], scores[:, 1:-1], ten[:, None]], dim=1)
    return functional.log_softmax(scores, dim=-1)


@lru_cache
def token_index(tokens: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return token ids as an index tensor on a device.

    It is cached, because copying a list to the GPU waits for all of the GPU's pending work.
    """
    return torch.tensor(tokens, dtype=torch.long, device=device)


def compute_preference_error(ahead: torch.Tensor, preferred: torch.Tensor, margin: torch.Tensor) -> torch.Tensor:
    """Return the error [n] of score differences against human preferences.

    - `ahead` [n]: the difference s_A - s_B of the scores.
    - `preferred` [n]: 1 if people prefer A, 0 for B, 1/2 for a tie.
    - `margin` [n]: the difference to reach: above 0 if A is preferred, below 0 for B, 0 for a tie.

    The error is -[y log σ(s_A - s_B - m) + (1 - y) log σ(s_B - s_A + m)]: Bradley & Terry 1952 with the margin m of
    Llama 2 (Touvron et al. 2023, arXiv 2307.09288, eq. 2).
    """
    return functional.binary_cross_entropy_with_logits(ahead - margin, preferred, reduction="none")


def number_groups(spec: RankSpec | None, rows: list[Row]) -> Tensors:
    """Return the tensor `groups` [rows] with equal numbers for rows that are compared; {} if `spec` is None.

    Rows are compared if they have the same group, form and scorer. Different scorers may use the scale differently, and
    different forms show the judge different material.

    >>> rows = [{"group": group, "form": "pointwise", "scorer": "people"} for group in "abba"]
    >>> number_groups(RankSpec(), rows)
    {'groups': tensor([0, 1, 1, 0])}
    """
    if spec is None:
        return {}
    keys = [(row["group"], row["form"], row["scorer"]) for row in rows]
    return {"groups": torch.tensor([keys.index(key) for key in keys], dtype=torch.long)}


def compute_rank_error(spec: RankSpec | None, log_probabilities: torch.Tensor, batch: Tensors) -> torch.Tensor | float:
    """Return the weighted Bradley-Terry error of expected ratings, summed over the pairs of a batch; 0 without `spec`.

    `log_probabilities` [rows × 10] are those of the ratings. `batch` holds `people`, `row_weights` and `groups` of the
    same rows. A pair's error is multiplied by the points between its human scores, so a tie does not count. The
    k (k - 1) / 2 pairs of k rows in a group together weigh as much as k / 2 rows. So the weight of the ranking relative
    to the ratings does not depend on how many rows of a group are in the batch.

    A gradient step moves the expected ratings apart:

    >>> shares = torch.full((2, 10), 0.1).log().requires_grad_()
    >>> batch = {"people": torch.eye(10)[[6, 2]], "row_weights": torch.ones(2), "groups": torch.zeros(2)}
    >>> error = compute_rank_error(RankSpec(weight=0.5), shares, batch)
    >>> error.backward()
    >>> print(f"{error.item():.3f} = 0.5 * 4 * log(2)")
    1.386 = 0.5 * 4 * log(2)
    >>> (shares - shares.grad).softmax(-1).detach() @ torch.arange(1.0, 11.0) > 5.5
    tensor([ True, False])
    """
    if spec is None:
        return 0.0
    ratings = token_index(RATINGS, log_probabilities.device).to(log_probabilities.dtype)
    # Rounded, so that equal means of several raters are equal.
    human, expected = (batch["people"] @ ratings).round(decimals=3), log_probabilities.exp() @ ratings
    groups, weights, points = batch["groups"], batch["row_weights"], human[:, None] - human
    together = (groups[:, None] == groups).float()
    errors = compute_preference_error(expected[:, None] - expected, (points > 0).float(), spec.margin * points)
    counts = points.abs() * (weights[:, None] * weights).sqrt() / (together.sum(-1) - 1).clamp(min=1)
    # Each pair is there twice.
    return spec.weight * (errors * counts * together).sum() / 2


def name_classes(classes: Sequence[str]) -> dict[str, Any]:
    """Return the model configuration of a scoring head with these classes.

    >>> name_classes(["score"])
    {'id2label': {0: 'score'}, 'label2id': {'score': 0}, 'problem_type': 'regression'}
    """
    names = dict(enumerate(classes))
    # vLLM gives the score of a regression as it is, and classes as probabilities.
    kind = {"problem_type": "regression"} if len(names) == 1 else {}
    return {"id2label": names, "label2id": {name: index for index, name in names.items()}, **kind}


class Objective(Collation):
    """A training objective: the loss, and everything in recipe, rows, batches and judge that depends on it.

    `recipe` is the recipe that names the objective. `tokens` say how the tokenizer spells ratings, None for a scoring
    head. The defaults suit a generative judge that rates; subclasses override what differs. `Collation` turns rows into
    tensors.
    """

    classes: ClassVar[Sequence[str]] = ()
    """Names of the scores of a scoring head, in order; empty for a generative judge."""

    compares: ClassVar[bool] = False
    """True if preferences are learned. An edited answer is then compared with the original."""

    keys: ClassVar[dict[str, tuple[Any, Any]]] = {}
    """Recipe keys of this objective: name -> (type, default). Every recipe may contain them; `own` reads them."""

    ranks: ClassVar[bool] = False
    """True if the order of the answers to one question can be learned too (`compute_rank_error`)."""

    takes_probe: ClassVar[bool] = False
    """True if training can start from a logistic regression on ratings (linear_head.py)."""

    def __init__(self, recipe: Recipe, tokens: RatingTokens | None = None) -> None:
        self.recipe, self.tokens = recipe, tokens

    def own(self, key: str) -> Any:
        """Return the value of one of the objective's own recipe keys."""
        return getattr(self.recipe, key)

    @classmethod
    def is_head(cls) -> bool:
        """Return True if the judge is a scoring head, which generates no text."""
        return bool(cls.classes)

    @property
    def criteria(self) -> Mapping[str, Scale]:
        """Criterion by which a scoring head rates -> its scale (lowest, highest); empty for judges without criteria."""
        return {}

    def head_config(self) -> dict[str, Any]:
        """Return the model configuration for the classes of a scoring head; empty for a generative judge."""
        return name_classes(self.classes) if self.is_head() else {}

    def read_tokens(self, tokenizer: Any) -> RatingTokens | None:
        """Return how a tokenizer spells the ratings, or None for a scoring head.

        Raise UsageError if it does not spell them as digits.
        """
        return None if self.is_head() else rating_tokens(tokenizer)

    # The recipe.

    def check(self, forms: Sequence[str]) -> None:
        """Raise UsageError if the objective cannot learn one of the recipe's `forms`."""

    def check_evaluation(self, forms: Sequence[str]) -> None:
        """Raise UsageError if none of the recipe's `forms` can be used to judge held-out rows during training."""
        rated = [*filter(rates, forms)]
        if rated and not any(self.rates_at_once(form) for form in rated):
            raise UsageError(f"evaluation needs a form that begins with the rating, not {', '.join(rated)} alone")

    def rates_at_once(self, form: str) -> bool:
        """Return True if the rating directly follows the prompt. `form` is one that rates on 1..10."""
        # A head has no reason to write first.
        return self.is_head() or REASON_FIRST not in form

    def watched_form(self) -> str:
        """Return the form for judging held-out rows: pointwise, or else the most frequent form that can be used."""
        rated = [form for form in used_forms(self.recipe) if rates(form) and self.rates_at_once(form)]
        return "pointwise" if "pointwise" in rated or not rated else max(rated, key=self.recipe.forms.__getitem__)

    # Rows.

    def prompt_form(self, form: str) -> str:
        """Return the form whose prompt is used for rows of the trained form `form`."""
        return form

    def choose_examples(self, planned: "Plan") -> "Plan":
        """Return those of the planned examples that this objective learns, if need be in another form."""
        return planned

    def weights(self, rows: datasets.Dataset) -> Weights:
        """Return the loss weights of the learned tokens of `rows` (rows.Data); they average 1.

        A row with a rating has the weight (frequency of its rating) ** -balance.
        """
        columns = rows.select_columns(["rating", "length", "source", "value", "weight"]).with_format("arrow")[:]
        rating = columns["rating"].to_numpy().astype(np.intp)
        counts = columns["weight"].to_numpy().astype(np.float64)
        frequency = np.bincount(rating, counts, minlength=len(RATINGS) + 1) / counts.sum()
        raw = np.where(frequency > 0, np.maximum(frequency, 1e-12) ** -self.recipe.balance, 0.0)
        if (rating > 0).any():
            raw /= np.average(raw[rating[rating > 0]], weights=counts[rating > 0])
        raw[0] = 1.0
        spelling = pyarrow.compute.list_value_length(columns["value"]).to_numpy()
        learned = columns["length"].to_numpy() - columns["source"].to_numpy()
        # A row has one place that is learned, and no verdict.
        if self.is_head():
            spelling, learned = np.zeros_like(spelling), np.ones_like(learned)
        total = (counts * raw[rating] * (learned + (self.recipe.rating_weight - 1.0) * spelling)).sum()
        return Weights(self.recipe.rating_weight, (raw * learned.sum() / total).tolist())

    # The loss, and the judge.

    def install(self, model: Any) -> None:
        """Replace `model.forward` with the training forward pass, which returns the objective's `loss`.

        A batch without labels still gets the original forward pass.
        """

        def forward(self_: Any, input_ids: torch.Tensor, num_items_in_batch: Any = None, **options: Any) -> Any:
            if options.get("labels") is None:
                return plain_forward(input_ids=input_ids, **options)
            batch = {name: options.pop(name) for name in self.inputs & options.keys()}
            options["use_cache"] = False
            hidden = self_.model(input_ids=input_ids, **options).last_hidden_state
            total, count = self.loss(self_, hidden, batch)
            divisor = count if num_items_in_batch is None else num_items_in_batch
            return transformers.modeling_outputs.CausalLMOutputWithPast(loss=total / divisor)

        plain_forward = model.forward
        model.forward = types.MethodType(forward, model)
        attention.install(model)

    def loss(self, model: Any, hidden: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, int]:
        """Return the sum of the loss over a batch, and the number of positions in that sum.

        `hidden` [rows × tokens × width] are the last hidden states, `batch` holds the tensors named in `inputs`. The
        sum is later divided by the positions of the whole step, so the loss does not depend on how rows are divided
        over processes and micro-batches.
        """
        raise NotImplementedError

    def notes(self, model: Any, tokenizer: Any, rows: datasets.Dataset) -> dict[str, Any]:
        """Return additional contents of critic.json for the finished judge: `model`, trained on `rows`."""
        return {}


class ScoringHead(PromptCollation, Objective):
    """Objective for a linear layer `score` on the last token of each prompt. The judge is a classifier."""

    learned: ClassVar[str]
    """Description of the verdicts that the head learns, for messages."""

    def learns(self, form: str) -> bool:
        """Return True if the head can give the verdict of a form."""
        return rates(form)

    def check(self, forms: Sequence[str]) -> None:
        if others := ", ".join(form for form in forms if not self.learns(form)):
            raise UsageError(f"objective {self.recipe.objective} learns {self.learned} alone, not {others}")
