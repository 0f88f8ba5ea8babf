PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PYTEST := $(RUN) -m pytest --numprocesses 2 --dist loadfile
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup train sweep test test-all check bench bounds clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.done  ## Make .venv and install everything in it

$(VENV)/.done: pyproject.toml
	@$(PYTHON) -c 'import sys; v = "%d.%d.%d" % sys.version_info[:3]; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, but $(PYTHON) is " + v + "; name another one: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --editable '.[train,dev]'
	@touch $@

train: setup  ## Train: make train ARGS="lifetime=4"
	$(RUN) train.py lifetime=2 seed=42 $(ARGS)

sweep: setup  ## Compare lifetimes: accuracy, time, and which one to choose
	$(RUN) train.py experiment=lifetime_sweep $(ARGS)

test: setup  ## Run the tests, without the slow ones
	$(PYTEST) $(ARGS)

test-all: setup  ## Run all the tests
	$(PYTEST) -m 'slow or not slow' $(ARGS)

check: setup  ## Lint, and check the types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: setup  ## Measure reading beside other caches: make bench ARGS="--workers 2"
	$(RUN) -m pip install --quiet --editable '.[bench]'
	$(RUN) benchmarks/loader.py $(ARGS)

bounds: setup  ## Say what bounds a training, and which lifetime would change it
	$(RUN) -m training.bounds $(ARGS)

clean:  ## Remove what running and testing left, the runs excepted
	rm -rf .pytest_cache .mypy_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
