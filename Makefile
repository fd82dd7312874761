# Everything here works on a fresh machine: the first target that needs it makes .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Which build of torch; see "Choosing torch" in README.md.
TORCH ?= torch==2.13.0
SOURCES := hpc_resume tests benchmarks
PYTEST := $(BIN)/python -m pytest
# Many tests start processes and wait for them: three at a time, what shares a fixture of its module in one worker.
PYTEST_HERE := $(PYTEST) -n 3 --dist loadscope --no-loadscope-reorder
# Tests on Slurm mostly wait: three at a time, each worker with a cluster of its own; see tests/slurm/conftest.py.
PYTEST_SLURM := $(PYTEST) -n 3 tests/slurm
# HPC_RESUME_TEST_APT=1: install what the tests on a real Slurm cluster need (as root), and fail where it is missing.
ifdef HPC_RESUME_TEST_APT
export HPC_RESUME_TEST_APT
SLURM := slurm-packages
endif

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-full slurm-packages check format clean

help:  ## Say what can be made.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

venv: $(STAMP)  ## Make .venv with everything in it.

$(STAMP): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

demo: $(STAMP)  ## Train a small model whose loss spikes on purpose, and see it recover.
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m hpc_resume submit configs/quickstart.yaml name=demo-$$(date +%Y%m%d-%H%M%S)

test: $(STAMP) $(SLURM)  ## Run the tests that a newcomer runs.
	$(PYTEST_HERE) -m 'not (slurm or slow or full)'
	$(PYTEST_SLURM) -m 'not (slow or full)'

test-slow: $(STAMP) $(SLURM)  ## Run the tests that take minutes each.
	$(PYTEST_HERE) -m 'slow and not (slurm or full)'
	$(PYTEST_SLURM) -m 'slow and not full'

test-full: $(STAMP) $(SLURM)  ## Run what shows the same as other tests, once more in another variation.
	$(PYTEST) -m full

slurm-packages:  ## Install Slurm with apt-get, as root, for the tests that start a cluster.
	tests/slurm/install-packages

check: $(STAMP)  ## Check format, lint, types, layers and links; change nothing.
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; false; }
	$(PYTEST) -q tests/test_documents.py

format: $(STAMP)  ## Bring the code into format and renew generated pages.
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/python -m hpc_resume.config.reference > docs/configuration.md

clean:  ## Remove what was made here, except runs.
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
