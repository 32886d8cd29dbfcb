"""The functions that the task names, which lmms-eval looks for here."""

from typing import Any

from lmms_eval.tasks.mmvet.utils import mmvet_aggregate_results, mmvet_process_results

__all__ = ["mmvet_aggregate_results", "mmvet_process_results", "show_nothing"]


def show_nothing(_: Any) -> list[Any]:
    """Return the pictures of a question: none."""
    return []
