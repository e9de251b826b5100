# The two main jobs are `make compare` and `make test`; each makes the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DATA ?= runs/stdlib
OUT ?= runs/compare
SITE ?= build/site
COMPARE_OPTIONS ?=
# Many tests wait for processes and clocks, so that three at a time keep two cores busy. SEED decides their order.
SEED ?= 1
TEST_OPTIONS ?= -n 3 --dist worksteal -p randomly --randomly-seed=$(SEED)
REFERENCE_VENV = reference/.venv
ACCELERATOR_VENV = .venv-accelerator
MINUTES ?= 9
DEVICE_CLIENT = clients/fedlm_client
JAVASCRIPT_PACKAGES = clients/javascript/node_modules/.package-lock.json
PEERS = benchmarks/simulation/peers
IS_PYTHON_311 = -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
REFERENCE_PYTHON ?= $(shell for p in python3.11 $(PYTHON); do $$p $(IS_PYTHON_311) 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help compare docs diagrams test test-long test-all test-thorough reference bench-peers lint bench accelerator clean

help:
	@echo "make compare     compare four architectures on the standard library's text; ends in $(OUT)/report.html"
	@echo "make docs        build the site of the documents; ends in $(SITE)/index.html"
	@echo "make diagrams    draw docs/diagrams/*.dot anew, which needs Graphviz"
	@echo "make test        run the tests, but for those that take long"
	@echo "make test-long   type the documents, kill processes, compare with other frameworks (see make reference)"
	@echo "make test-all    both"
	@echo "make test-thorough  repeat by the hundred what those have quicker tests of, type the longest pages, rehearse make accelerator"
	@echo "make reference   make the environment of the frameworks that some tests compare with (Python 3.11)"
	@echo "make lint        check style, types and the direction of imports"
	@echo "make bench       measure the tables of docs/speed.md in less than two hours, on a machine that does nothing else"
	@echo "make accelerator measure this machine's GPU for MINUTES=$(MINUTES) minutes, in an environment of its own"
	@echo "make bench-peers make the environment of two more frameworks that bench times (Python 3.11)"
	@echo "make clean       remove the environments, the site and all runs"

$(VENV)/installed: setup.cfg pyproject.toml constraints.txt $(DEVICE_CLIENT)/setup.cfg
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedlm needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench,docs,test,lint]' -e $(DEVICE_CLIENT)
	touch $@

$(DATA)/store.json: | $(VENV)/installed
	$(BIN)/fedlm data import stdlib --out $(DATA)

compare: $(VENV)/installed $(DATA)/store.json
	$(BIN)/fedlm compare --preset small --seeds 0 1 2 --halvings 1 --data $(DATA) --out $(OUT) $(COMPARE_OPTIONS)

docs: $(VENV)/installed
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs --doctree-dir $(SITE)/.doctrees . $(SITE)
	@echo "open $(SITE)/index.html"

diagrams:
	$(PYTHON) docs/diagrams/render.py

# Tests start many processes, each of which would compile our modules anew.
test test-long test-thorough: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/installed
	$(BIN)/python -m pytest $(TEST_OPTIONS) -m 'not (long or reference or thorough)'

test-long: $(VENV)/installed $(if $(shell command -v npm),$(JAVASCRIPT_PACKAGES))
	$(BIN)/python -m pytest $(TEST_OPTIONS) -m '(long or reference or hypothesis) and not thorough' \
	  --hypothesis-profile long

$(JAVASCRIPT_PACKAGES): clients/javascript/package-lock.json
	cd clients/javascript && npm ci --silent

# Compiled as a user's runs are; the others compile in less time (tests/conftest.py).
test-thorough: $(VENV)/installed
	XLA_FLAGS="$(XLA_FLAGS)" JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest $(TEST_OPTIONS) -m thorough --hypothesis-profile thorough

# Both are run also where the first fails.
test-all: $(VENV)/installed
	@$(MAKE) test; status=$$?; $(MAKE) test-long && exit $$status

reference: $(REFERENCE_VENV)/installed

# The frameworks ask for other versions of what fedlm depends on, so that it comes without these.
$(REFERENCE_VENV)/installed: reference/requirements.txt setup.cfg pyproject.toml
	@$(or $(REFERENCE_PYTHON),false) $(IS_PYTHON_311) 2>/dev/null || { \
	  echo "the reference environment needs Python 3.11: install it, or set REFERENCE_PYTHON= to one" >&2; exit 1; }
	$(REFERENCE_PYTHON) -m venv --clear $(REFERENCE_VENV)
	$(REFERENCE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r reference/requirements.txt -e .
	touch $@

bench-peers: $(PEERS)/.venv/installed

$(PEERS)/.venv/installed: $(PEERS)/requirements.txt setup.cfg pyproject.toml
	@$(or $(REFERENCE_PYTHON),false) $(IS_PYTHON_311) 2>/dev/null || { \
	  echo "the peers' environment needs Python 3.11: install it, or set REFERENCE_PYTHON= to one" >&2; exit 1; }
	$(REFERENCE_PYTHON) -m venv --clear $(PEERS)/.venv
	$(PEERS)/.venv/bin/python -m pip install --quiet --disable-pip-version-check -r $(PEERS)/requirements.txt
	$(PEERS)/.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed $(DATA)/store.json
	$(BIN)/python -m benchmarks.simulation.against_peers
	$(BIN)/python -m benchmarks.simulation.scaling
	$(BIN)/python -m benchmarks.simulation.whole_runs
	$(BIN)/python -m benchmarks.simulation.profile_round
	$(BIN)/python -m benchmarks.simulation.product_rates
	$(BIN)/python -m benchmarks.privacy.noise_cost
	$(BIN)/python -m benchmarks.clipping.against_peers
	$(BIN)/python -m benchmarks.generation.against_transformers
	$(BIN)/python -m benchmarks.speed_page

accelerator: $(ACCELERATOR_VENV)/installed
	$(ACCELERATOR_VENV)/bin/python -m benchmarks.accelerator --minutes $(MINUTES)

$(ACCELERATOR_VENV)/installed: setup.cfg pyproject.toml constraints.txt
	test -x $(ACCELERATOR_VENV)/bin/python || $(PYTHON) -m venv $(ACCELERATOR_VENV)
	$(ACCELERATOR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cuda,bench,pretrain]'
	touch $@

clean:
	rm -rf clients/javascript/node_modules clients/javascript/build $(VENV) $(ACCELERATOR_VENV) $(REFERENCE_VENV) $(PEERS)/.venv $(SITE) runs
