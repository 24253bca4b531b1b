# The commands people, hooks and CI share. Each makes .venv if it is missing and installs what it needs, pinned.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test sweep lint clean

demo: .venv/.installed-examples  ## train, stop inside a window, go on in a new process, compare, draw the loop
	$(BIN)/python examples/demo.py

test: .venv/.installed-dev  ## all tests and doctests
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

sweep: .venv/.installed-dev  ## the long proofs: every cut, every loader
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m sweep tests

lint: .venv/.installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove everything that was made here
	rm -rf .venv build dist demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch first and by its pinned version, so that nothing that merely requires "torch" chooses another build of it.
.venv/.installed-examples: .venv/bin/python pyproject.toml constraints.txt
	rm -rf *.egg-info  # an old one would hide entry points that were added since
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable '.[examples]'
	touch $@

.venv/.installed-dev: .venv/.installed-examples
	$(INSTALL) --editable '.[dev,examples,notebook,tensorboard,torchdata,transformers]'
	touch $@
