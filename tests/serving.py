"""The modules of serve/, which its programs import from their own folder, for tests."""

import importlib
import sys
from types import ModuleType

from conftest import ROOT

sys.path.insert(0, str(ROOT / "serve"))

api_formats: ModuleType = importlib.import_module("api_formats")
compose: ModuleType = importlib.import_module("compose")
contracts: ModuleType = importlib.import_module("contracts")
control_tokens: ModuleType = importlib.import_module("control_tokens")
judge: ModuleType = importlib.import_module("judge")
layer: ModuleType = importlib.import_module("layer")
options: ModuleType = importlib.import_module("options")
parts: ModuleType = importlib.import_module("parts")
ratings: ModuleType = importlib.import_module("ratings")
schemas: ModuleType = importlib.import_module("schemas")
token_budget: ModuleType = importlib.import_module("token_budget")
