"""The benchmarks: one module each, which reads its published files and computes its scores."""

from importlib import import_module
from pathlib import Path

from critic.errors import UsageError
from critic.records import Conversation

BENCHMARKS = ("alignmmbench", "convbench", "multiverse", "visitbench")


def read(name: str, path: Path) -> list[Conversation]:
    """The conversations of a benchmark's published file. Raises UsageError for an unknown benchmark, or naming file,
    line and key."""
    if name not in BENCHMARKS:
        raise UsageError(f"{name}: unknown benchmark; choose {', '.join(BENCHMARKS)}")
    conversations: list[Conversation] = import_module(f"{__name__}.{name}").read_conversations(path)
    return conversations
