# Every command sets up on its own what it needs in .venv; the second time that takes a fraction of a second.

PYTHON ?=
SHARED ?= ../shared
PYTEST_EXTRA ?=
export PYTHON

BIN := .venv/bin
SETUP := @scripts/setup.sh
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test check lint bench evidence clean lock

help: ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a real training job breaks in five ways and recovers by itself (under a minute)
	$(SETUP) base
	@$(BIN)/reknit demo

# Most tests wait for real processes rather than compute: more workers than two cores.
test: ## everything: the tools of `check`, and all tests, PyTorch and real crashes included
	$(SETUP) torch
	@lint=0; $(MAKE) --no-print-directory lint || lint=1; \
	$(PYTEST) -n 3 --dist worksteal $(PYTEST_EXTRA) || exit; \
	if [ $$lint -ne 0 ]; then echo "the tests passed, but style, types or the order of the rooms did not: see above" >&2; fi; \
	exit $$lint

check: ## before each commit: style, types, the order of the rooms, quick tests (under two minutes)
	$(SETUP) dev
	@$(MAKE) --no-print-directory lint
	$(PYTEST) -n 2 --dist worksteal $(wildcard tests/unit tests/property) $(PYTEST_EXTRA)

lint: # part of check and test: all four, whichever fails
	@status=0; \
	for tool in "ruff check ." "ruff format --check ." "lint-imports --no-logo" pyright; do \
	  echo "== $$tool"; $(BIN)/$$tool || status=1; \
	done; \
	exit $$status

bench: ## every benchmark in turn, with its quick settings
	$(SETUP) base
	@for script in bench/*.py; do echo; echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

evidence: ## recorded real failures, from the folder SHARED (../shared), which is no part of the repository
	@if [ ! -d "$(SHARED)" ]; then \
	  echo "make evidence reads recorded failures from $(SHARED), and there is no such folder: make evidence SHARED=PATH" >&2; \
	  exit 2; \
	fi
	$(SETUP) dev
	@$(BIN)/python tests/evidence/read_cases.py "$(SHARED)"

clean: ## remove .venv and all caches
	rm -rf .venv .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## write requirements/ anew after a change of the dependencies in pyproject.toml
	@scripts/lock.sh
