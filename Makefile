# posbench: what to type. `make help` lists it.

PYTHON ?= python3
# The torch that `make setup` installs when the environment has none: any version or wheel that pip takes.
TORCH ?= torch==2.13.0
VENV ?= .venv
ARGS ?=
PORT ?= 5000

POSBENCH = $(VENV)/bin/python -m posbench
READY = $(VENV)/ready
# One more than there are cores: some tests wait for processes that they started.
WORKERS = $$($(VENV)/bin/python -c 'import os; print(os.cpu_count() + 1)')

.PHONY: help setup test test-slow torture lint ui check report clean FORCE

help:  ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## create .venv and install posbench with everything it needs (choose a torch: TORCH='torch==2.13.0')

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "posbench needs Python 3.11 or newer: make setup PYTHON=python3.12" >&2; exit 2; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -c 'import torch' 2>/dev/null || $(VENV)/bin/python -m pip install -q '$(TORCH)'
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $(READY)

test: $(READY)  ## lint, types and the default tests
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

test-slow: $(READY)  ## the slow tests alone
	$(VENV)/bin/python -m pytest -q -m slow $(ARGS)

torture: $(READY)  ## kill a study 100 times at random moments and compare its tables (half an hour; ARGS='--kills 10')
	$(VENV)/bin/python -m tests.torture $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

suite-%: $(READY) FORCE  ## train every encoding on a suite: make suite-glue, make suite-glue ARGS='--seeds 6'
	$(POSBENCH) study $* $(ARGS)

check: $(READY)  ## prove every encoding
	$(POSBENCH) check $(ARGS)

report: $(READY)  ## write a study's tables again: make report ARGS=out/glue-mini
	$(POSBENCH) report $(ARGS)

ui: $(READY)  ## browse all runs in MLflow on 127.0.0.1 (PORT=5000)
	$(POSBENCH) ui --port $(PORT)

clean:  ## remove the environment and caches; results in out/ stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

FORCE:
