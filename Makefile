# Needs Python 3.11 or newer, make and a package index. Everything lands in .venv/ here; `make clean` removes it.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
# Two workers: what the smallest machine that we develop on has. WORKERS=0 runs in one process (for a debugger).
WORKERS ?= 2
# Further arguments: make test ARGS='tests/unit/http -k framing', make demo ARGS=--json
ARGS ?=

.PHONY: help setup setup-base test compiled test-compiled demo check lint format types layers tidy docs bench bench-decision bench-scale bench-goodput test-engines lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with everything that the tests and checks need
	@scripts/setup.sh dev

setup-base:
	@scripts/setup.sh base

test: setup ## Set up and run the test suite
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

compiled: setup ## Build the wheel that users get, its hot modules compiled, and unpack it in build/compiled
	@scripts/compile.sh

test-compiled: compiled ## Build that wheel and run the unit, property and integration tests on it
	TEST_COMPILED=$(CURDIR)/build/compiled PYTHONPATH=$(CURDIR)/build/compiled \
	  $(PY) -m pytest -n $(WORKERS) --dist loadgroup tests/unit tests/property tests/integration $(ARGS)

demo: setup-base ## Set up and show the main job: one overload, with and without Forebay
	@$(VENV)/bin/forebay demo $(ARGS)

check: setup ## Everything but the tests: lint, format, types, layers, house rules, docs
	@$(MAKE) --no-print-directory --keep-going lint types layers tidy

lint: setup
	@$(VENV)/bin/ruff check .; found=$$?; $(VENV)/bin/ruff format --check . && exit $$found

format: setup ## Format the code and apply the safe fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: setup
	$(VENV)/bin/mypy

layers: setup
	$(VENV)/bin/lint-imports --no-logo

tidy: setup
	$(PY) -m pytest -q tests/tidy

docs: setup ## Make the generated pages of the documentation anew
	$(PY) scripts/config_reference.py

bench: setup ## Measure overhead against going direct and against Envoy
	@scripts/debian.sh wrk
	$(PY) -m benchmarks.overhead.run $(ARGS)

bench-decision: setup ## Measure what one decision costs with a long queue
	$(PY) -m benchmarks.decision.run --compiled $(ARGS)

bench-goodput: setup ## Compare policies in virtual time, by scenario and trace
	$(PY) -m benchmarks.goodput.run $(ARGS)

bench-scale: setup ## Measure memory and CPU with very many streams, waiting requests and large bodies
	$(PY) -m benchmarks.scale.run $(ARGS)

test-engines: setup ## Run in front of real vLLM and llama.cpp (installs them; takes long), and SGLang if installed
	@scripts/engines.sh all
	$(PY) -m pytest tests/engines -m engines --timeout 1800 $(ARGS)

lock: setup-base ## Make the lock files anew from pyproject.toml (ARGS=--upgrade for the newest versions)
	@scripts/lock.sh $(ARGS)

clean: ## Remove environments, caches and results
	rm -rf .venv .venv-* build dist results .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
