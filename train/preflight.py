"""What is looked at before the first step, so that hours of training are not in vain: whether what comes out can be
served."""

import transformers
from recipe import Recipe
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from critic.errors import UsageError


def served_tokens(base: str) -> float:
    """The most tokens that vLLM serves a base with: its positions, fewer where its tokenizer says so, and stretched
    where its rotation is. Infinite where nothing bounds them. Raises OSError or ValueError where it cannot be read."""
    config = transformers.AutoConfig.from_pretrained(base).get_text_config()
    bounds = [
        getattr(config, "max_position_embeddings", None),
        get_tokenizer_config(base).get("model_max_length"),
    ]
    rope = getattr(config, "rope_parameters", None) or {}
    # Of the other kinds the positions are those of the stretched rotation already.
    stretched = rope["factor"] if rope.get("rope_type") in ("linear", "dynamic") else 1.0
    return min((bound for bound in bounds if bound is not None), default=float("inf")) * stretched


def require_served_tokens(recipe: Recipe) -> None:
    """Raises UsageError where prompt and verdict may have more tokens than the judge could be served with. A base that
    cannot be read is left to what loads it."""
    if recipe.base is None:
        return
    try:
        most = served_tokens(recipe.base)
    except (OSError, ValueError):
        return
    longest = recipe.max_source_tokens + recipe.max_target_tokens
    if longest > most:
        raise UsageError(
            f"max_source_tokens {recipe.max_source_tokens} and max_target_tokens {recipe.max_target_tokens} are "
            f"{longest} tokens, but base {recipe.base} is served with {most:.0f} at most: set max_source_tokens to "
            f"{max(1, int(most) - recipe.max_target_tokens)}"
        )
