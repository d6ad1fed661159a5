# `make demo` and `make test` do all set-up on a machine that has python3, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two test processes by default: the suite is written for two cores.
JOBS ?= 2
# Each of them is one thread. Neighbouring tests stay in one process, which shares what they share.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q
# Tests start other processes: these need not compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install lock demo docs test test-all mutants lint types peers benchmark clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml papers/pyproject.toml requirements-dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements-dev.lock \
		--editable '.[dev]' --editable papers
	@touch $@

# The versions that everybody develops and tests with; `UPGRADE=--upgrade` takes the newest.
lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11.5 $(UPGRADE) \
		--no-header --quiet --output-file requirements-dev.lock

# In the developers' environment where there is one; else in a small one of its own.
DEMO := $(if $(wildcard $(VENV)/.installed),$(VENV),.demo)
DEMO_EXTRAS := train,sklearn,plot,cli,rigorous,sign,ledger

demo: $(DEMO)/.installed
	$(DEMO)/bin/tightrope demo

.demo/.installed: pyproject.toml requirements-dev.lock
	@echo "Setting up .demo: PyTorch and what the demo shows, no development tools."
	@$(PYTHON) -m venv .demo
	@.demo/bin/python -m pip install --progress-bar off --disable-pip-version-check \
		--constraint requirements-dev.lock --editable '.[$(DEMO_EXTRAS)]' | \
		awk '/^Collecting|^Installing/ {print "  " $$1, $$2; fflush()}'
	@test -x .demo/bin/tightrope
	@touch $@

# The documentation site, in site/: open site/index.html. It needs no network.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test: install
	$(PYTEST) -m "not slow"

test-all: install mutants
	$(PYTEST)

# Planted faults, one at a time: the tests named beside each must notice it.
mutants: install
	$(BIN)/python tests/mutants/run.py -j $(JOBS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

peers: .peers/.installed

.peers/.installed: benchmarks/peers.txt
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt
	@touch $@

benchmark: install peers
	$(BIN)/python benchmarks/accountants.py --peer-python .peers/bin/python
	$(BIN)/python benchmarks/events.py --peer-python .peers/bin/python
	$(BIN)/python benchmarks/conversions.py --peer-python .peers/bin/python

clean:
	rm -rf $(VENV) .demo .peers .mypy_cache .ruff_cache .pytest_cache
