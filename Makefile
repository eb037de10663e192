# Runcast. `make up` and `make test` need a Python of 3.11 or later with venv, and make; nothing else.

VENV    ?= .venv
# The first interpreter that is new enough and can make an environment. PYTHON=… overrides it.
PYTHON  ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet install --root-user-action=ignore -c constraints.txt
PYTEST  := $(BIN)/python -m pytest
# Tests at once: most of them wait for a server, a clock or a browser, so two for each processor.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$((n > 4 ? 8 : 2 * n)))
ARGS    ?=

.PHONY: help up test test-long bench bench-check lint format clean

help:
	@echo "make up         install, then Redis, worker, gateway and page on this machine, and a demo run"
	@echo "make test       every test but the long ones     ARGS='tests/broker -k seam' picks some"
	@echo "make test-long  fuzzing, soaks, long schedules"
	@echo "make bench      measure, print the table, write bench/results.json and what docs/performance.md shows of it"
	@echo "make bench-check  the counts of all that alone: small, no peers, a line a row, exit code 1 if one is wrong"
	@echo "make lint       ruff, mypy --strict, import contracts"
	@echo "make format     ruff format and its safe fixes"
	@echo "make clean      remove caches and the environment; never .runcast, where runs are kept"

up: export RUNCAST_DATA_DIR ?= $(CURDIR)/.runcast
up: $(VENV)/.installed
	@$(BIN)/runcast up $(ARGS)

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not long and not alone" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || [ $$? -eq 5 ]
	$(PYTEST) -m "alone and not long" $(ARGS) || [ $$? -eq 5 ]

test-long: $(VENV)/.installed-dev
	$(PYTEST) -m long --timeout 900 $(ARGS)

bench: $(VENV)/.installed-dev
	$(BIN)/python -m bench $(ARGS)

bench-check: $(VENV)/.installed-dev
	$(BIN)/python -m bench --short $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Runcast needs Python 3.11 or later with the venv module (Debian: python3-venv). Found: $$(python3 --version 2>&1)"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing runcast and what it needs into $(VENV)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing runcast and the test tools into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed $@
