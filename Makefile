# The commands a newcomer needs. Each target first creates .venv, a virtual environment with the package and its tools.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

unexport PYTHONDONTWRITEBYTECODE  # tests start many processes, and each would compile everything again

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint attack flower bench docs links release browser clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## make the virtual environment in .venv and install everything

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	$(PYTHON) -m venv .venv || { echo "On Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,flower]'
	@touch $(READY)

demo: $(READY)  ## train nine clients with FedHCA² on rendered scenes and compare with training alone
	$(BIN)/fedhca2 run demo

test: lint browser  ## format, lint, imports, types, all tests but the longest attacks (minutes; may install chromium)
	$(BIN)/pytest -n 4 -m 'not long'  # more workers than cores: some of them wait for other processes

check: lint  ## format, lint, imports, types, fast tests
	$(BIN)/pytest -m 'not slow'

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

attack: $(READY)  ## run every attack on a federation of real processes, and every poisoning, and print the outcomes
	$(BIN)/pytest -m attack
	$(BIN)/python tests/poison.py

FLWR ?= 1.41.0
OTHER = build/flwr-$(FLWR)
flower: $(READY)  ## run the tests of Flower on another version of it: make flower FLWR=1.42.0
	$(PYTHON) -m venv $(OTHER)
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' > $(OTHER)/.shared
	cp $(OTHER)/.shared $(OTHER)/lib/python3*/site-packages/shared.pth  # the rest is installed once
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) 'flwr==$(FLWR)'
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(OTHER)/bin/python -m pytest -m 'not long' tests/unit/federation/flower tests/flower

bench: $(READY)  ## measure speed, memory and bytes against their bounds (13 minutes on 2 cores; longer with CUDA)
	$(BIN)/python benchmarks/run.py --json build/bench.json

docs: $(READY)  ## build the documentation site in build/docs/html and check it (2 minutes; half a minute when repeated)
	mkdir -p build/docs/source
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs/site build/docs/source build/docs/html
	$(BIN)/python docs/site/check.py build/docs/html

links: docs  ## check that the site's links to other sites lead somewhere; needs the network
	$(BIN)/sphinx-build --builder linkcheck --quiet -c docs/site build/docs/source build/docs/links

AWAY = build/release
BRIEF = rounds=1 data.outdoor.train=24 data.indoor.train=12 data.outdoor.val=2 data.indoor.val=2 training.batch_size=2
release: $(READY)  ## build sdist and wheel in dist/, install the wheel in an empty environment and run a brief demo there
	rm -rf dist $(AWAY) && mkdir -p dist $(AWAY)/empty
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >$(AWAY)/log
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist dist/fedhca2-*.tar.gz
	$(PYTHON) -m venv $(AWAY)/venv
	$(AWAY)/venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/fedhca2-*.whl
	cd $(AWAY)/empty && ../venv/bin/fedhca2 run $(addprefix --set ,$(BRIEF))
	ls -l dist

browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
		|| { echo "The tests of the page need chromium: apt-get install chromium"; exit 1; }

clean:  ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build
