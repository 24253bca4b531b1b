# The commands people, hooks and CI share. Each makes .venv if it is missing and installs what it needs, pinned.
PYTHON ?= python3
BIN := .venv/bin
PEERS := .venv-peers/bin
PIP_OPTIONS := --quiet --disable-pip-version-check
INSTALL := $(BIN)/python -m pip install $(PIP_OPTIONS) --constraint tools/constraints.txt
BENCHMARKS := loop transition check startup state data resume checkpoint tensors scale scale_checkpoint soak
RESULTS := tools/benchmarks/results

# Else each process of the tests would compile all of the code anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo browser cuda test test-all test-lowest test-newest sweep simulate bugs mutants figures lint docs bench bench-peers clean

demo: .venv/.installed-examples  ## train, stop inside a window, resume in a new process, compare, draw the loop
	$(BIN)/python examples/demo.py

test: .venv/.installed-dev  ## every promise once, and all doctests: before each commit
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 20

test-all: .venv/.installed-dev  ## all tests but the long proofs: what CI runs
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal --durations 20 -m 'not sweep'

test-lowest: .venv-lowest/.installed  ## the same tests on the lowest versions that pyproject.toml allows, but for torch
	.venv-lowest/bin/python -m pytest --numprocesses 3 --dist worksteal -m 'not sweep'

NEWEST ?= python3.13
test-newest:  ## the same tests on the newest Python, where there is one (NEWEST=python3.13)
	@if $(NEWEST) -c '' 2>/dev/null; then $(MAKE) --no-print-directory .venv-newest/.installed && \
	  .venv-newest/bin/python -m pytest --numprocesses 3 --dist worksteal -m 'not sweep'; \
	else echo "there is no $(NEWEST) here: nothing was tested"; fi

cuda: .venv/.installed-dev  ## on a CUDA device: the tests marked `cuda`, and how fast it trains and saves there
	$(BIN)/python -m pytest -p no:cacheprovider -m cuda tests
	mkdir -p $(RESULTS)
	$(BIN)/python tools/benchmarks/device.py --json $(RESULTS)/device.json

sweep: .venv/.installed-dev  ## the long proofs: every cut, all data, all settings
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m sweep tests

MINUTES ?= 10
simulate: .venv/.installed-dev  ## random lives of runs: kills, failing disks, stops, other graphs and ranks (MINUTES=10 SEED=...)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulation --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bugs: .venv/.installed-dev  ## put bugs into the source, one after the other: how many simulated lives until one is found?
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulation.bugs

mutants: .venv/.installed-dev  ## change the source in one place after the other: does a test notice? (PACKAGES="graph plan" EACH=25)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants $(PACKAGES) $(if $(EACH),--each $(EACH)) $(if $(SEED),--seed $(SEED))

figures: .venv/.installed-dev  ## the size of the house: lines by room, long functions, what the smallest run enters
	$(BIN)/python -m tests.figures

lint: .venv/.installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser: .venv/.installed-dev  ## the page of runs in a real browser (apt-get install chromium)
	$(BIN)/python -m pytest -m 'not sweep' tests/looking/test_browser.py tests/looking/test_report.py tests/looking/test_server.py

docs: .venv/.installed-docs  ## the pages as a site, in site/: python -m http.server --directory site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/.installed-examples  ## every benchmark on one thread, the targets beside the figures; also as JSON
	mkdir -p $(RESULTS)
	@failed=; for name in $(BENCHMARKS); do \
	  OMP_NUM_THREADS=1 $(BIN)/python tools/benchmarks/$$name.py --json $(RESULTS)/$$name.json || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

bench-peers: .venv-peers/.installed  ## the loop beside those of other frameworks, which get an environment of their own
	mkdir -p $(RESULTS)
	OMP_NUM_THREADS=1 $(PEERS)/python tools/benchmarks/loop.py --peers --rounds 11 --json $(RESULTS)/peers.json

clean:  ## remove everything that was made here
	rm -rf .venv .venv-lowest .venv-newest .venv-peers $(RESULTS) build dist site demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch first and by its pinned version, so that nothing that merely requires "torch" chooses another build of it.
.venv/.installed-examples: .venv/bin/python pyproject.toml tools/constraints.txt
	rm -rf *.egg-info  # an old one would hide entry points that have changed since
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable '.[examples]'
	touch $@

.venv/.installed-dev: .venv/.installed-examples
	$(INSTALL) --editable '.[dev,examples,lightning,notebook,tensorboard,torchdata,transformers,watch]'
	touch $@

.venv/.installed-docs: .venv/.installed-examples
	$(INSTALL) --editable '.[docs]'
	touch $@

.venv-lowest/.installed: pyproject.toml tools/constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	rm -rf *.egg-info
	.venv-lowest/bin/python -m pip install $(PIP_OPTIONS) --constraint tools/constraints-lowest.txt torch==2.13.0
	.venv-lowest/bin/python -m pip install $(PIP_OPTIONS) --constraint tools/constraints-lowest.txt \
	  --editable '.[dev,examples,lightning,notebook,tensorboard,torchdata,transformers,watch]'
	touch $@

.venv-newest/.installed: pyproject.toml tools/constraints.txt
	$(NEWEST) -m venv .venv-newest
	rm -rf *.egg-info
	.venv-newest/bin/python -m pip install $(PIP_OPTIONS) --constraint tools/constraints.txt torch==2.13.0
	.venv-newest/bin/python -m pip install $(PIP_OPTIONS) --constraint tools/constraints.txt \
	  --editable '.[dev,examples,lightning,notebook,tensorboard,torchdata,transformers,watch]'
	touch $@

# The last without constraints: it needs an older setuptools than the tests have.
.venv-peers/.installed: pyproject.toml tools/constraints.txt tools/benchmarks/peers.txt
	$(PYTHON) -m venv .venv-peers
	rm -rf *.egg-info
	$(PEERS)/python -m pip install $(PIP_OPTIONS) --constraint tools/constraints.txt torch==2.13.0
	$(PEERS)/python -m pip install $(PIP_OPTIONS) --constraint tools/constraints.txt --editable .
	$(PEERS)/python -m pip install $(PIP_OPTIONS) --requirement tools/benchmarks/peers.txt
	touch $@
