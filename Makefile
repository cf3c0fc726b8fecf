# make demo | test | test-all | bench | catalogue: each does everything on a machine with python3 >= 3.11, make and git.
PYTHON ?= python3
# one more than two cores have, as many tests wait
JOBS ?= 3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test test-all pytest bench catalogue lint clean

demo: $(VENV)/demo.stamp
	$(BIN)/python -m minari_pipe +dataset=door_expert

# Lint runs beside the tests, but not beside those that hold CPU time to a limit.
test: $(VENV)/test.stamp
	@$(MAKE) --no-print-directory --jobs 2 lint pytest
	$(BIN)/python -m pytest -m alone $$(grep -rl "mark.alone" --include=test_*.py tests)

pytest: $(VENV)/test.stamp
	$(BIN)/python -m pytest --doctest-modules -m "not alone" \
	  -n $(JOBS) --dist loadfile --no-loadscope-reorder tests minari_pipe

test-all: export MINARI_PIPE_FULL = 1
test-all: test

# SMALL=1: smaller sizes, within 3 minutes
bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks $(if $(SMALL),--small)

# makes the dataset of each recipe; SMALL=1: five episodes of each, within minutes
catalogue: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.catalogue $(if $(SMALL),--small)

lint: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; run make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "error: this Python has no ensurepip; install the package python3-venv (Debian: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[robotics,jpeg]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[test]'
	$(PIP) --no-deps metaworld
	@touch $@

$(VENV)/bench.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
