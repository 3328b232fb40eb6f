# make test, make demo: all they need is Python 3.11 or newer. No root, no Docker, no Redis.
#
#   make test     the tests             make check    what CI runs: format, lint, types, tests
#   make demo     a short tour          make bench    the numbers
#   make lint     format, lint, types   make lock     take newer versions into requirements.lock
#   make docs     the pages, in site/
#
# One test file: make test ARGS=tests/test_local.py

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help test demo check lint format bench docs lock setup clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

setup: $(READY)

$(READY): pyproject.toml requirements.lock
	@set -e; python=""; \
	for candidate in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "This needs Python 3.11 or newer with its venv module; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Say where one is: make test PYTHON=/path/to/python3.11 (Debian: apt install python3-venv)." >&2; \
	  exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  echo "setting up $(VENV) with $$python ($$("$$python" --version))"; \
	  "$$python" -m venv --clear $(VENV); \
	fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'; \
	touch $@

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

demo: $(READY)
	@$(BIN)/python -m examples.demo

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@for patch in tests/planted/*.patch; do git apply --check $$patch || { echo "$$patch does not apply any more: refresh it."; exit 1; }; done

check: lint test

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/python -m web > docs/openapi.json
	$(BIN)/mkdocs build --strict

# In a fresh environment, so that nothing gets in that pyproject.toml does not ask for.
lock:
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; \
	$(PYTHON) -m venv "$$place"; \
	"$$place/bin/pip" install --quiet --disable-pip-version-check -e '.[dev]'; \
	{ echo '# What `make` installs: the dev extra and all below it. Made by `make lock`.'; \
	  "$$place/bin/pip" freeze --exclude-editable; } > requirements.lock

clean:
	rm -rf $(VENV) site .orchestrator .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis
