"""The modules of serve/, which its programs import from their own folder, for tests: `from serving import layer`."""

import importlib
import sys
from typing import Any

from conftest import ROOT

sys.path.insert(0, str(ROOT / "serve"))


def __getattr__(name: str) -> Any:
    """Return a module of serve/ by its name (PEP 562)."""
    if not (ROOT / f"serve/{name}.py").is_file():
        raise AttributeError(name)
    return importlib.import_module(name)
