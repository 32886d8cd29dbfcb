"""What the clients' programs share; it needs no package."""

import json
from collections.abc import Callable, Mapping
from typing import Any


def print_reads(calls: Mapping[str, Callable[[], Any]]) -> None:
    """Print a JSON line a call: its name, the value that the client read, and what went wrong if anything did.

    A judge need not serve every call: a scoring head compares nothing.
    """
    for name, call in calls.items():
        try:
            value, problem = call(), None
        except Exception as error:
            value, problem = None, f"{type(error).__name__}: {error}"[:300]
        print(json.dumps({"call": name, "value": value, "problem": problem}), flush=True)
