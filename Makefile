# The project's commands. Each one that runs code first sets up its own virtual environment, .venv, when it is missing
# or older than pyproject.toml or constraints.txt. Options go in ARGS: make test ARGS="-k masking -x"

PYTHON ?= python3
ARGS ?=
BENCH ?= pretraining encoding search
STAMP := .venv/.stamp
# A worker for each core, at most four: each imports torch and makes its own fixtures.
PYTEST := .venv/bin/python -m pytest -n logical --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check bench clean

# A virtual environment holds absolute paths. One that was copied here, or whose Python has gone, loses its stamp,
# and what has no stamp (a half-made one, too) is built anew.
ifneq ($(shell test -x .venv/bin/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP))
endif

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

# glibc keeps the memory of freed tensors, which saves a small training some of its time.
demo: export MALLOC_TRIM_THRESHOLD_ = 20000000000
demo: export MALLOC_MMAP_THRESHOLD_ = 20000000000
demo: $(STAMP) ## pre-train, fine-tune and compare on medical questions, on a CPU, in minutes
	@.venv/bin/python examples/demo.py $(ARGS)

test: $(STAMP) ## run the tests (offline, on a CPU)
	@$(PYTEST) $(ARGS)

test-all: $(STAMP) ## run the slow tests as well (processes, kills, the loopback Hub)
	@$(PYTEST) -m "not gpu" $(ARGS)

check: $(STAMP) ## lint, check the formatting and the types
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

bench: $(STAMP) ## measure speed and memory of pre-training, encoding and search (BENCH=encoding for one)
	@for part in $(BENCH); do .venv/bin/python -m benchmarks.$$part $(ARGS) || exit 1; done

clean: ## remove .venv, caches and build outputs (runs/ stays)
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp goes first and comes back last, so that an installation that was cut short is built anew.
$(STAMP): pyproject.toml constraints.txt
	@if [ -f $@ ]; then \
	  echo "Updating .venv, because pyproject.toml or constraints.txt has changed ..."; \
	  rm -f $@; \
	else \
	  command -v $(PYTHON) >/dev/null || { \
	    echo "error: no '$(PYTHON)' found; name a Python of 3.11 or newer: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	    exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "error: $(PYTHON) is Python %d.%d, and condenser needs 3.11 or newer; name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" \
	    % sys.version_info[:2])' || exit 1; \
	  echo "Setting up .venv: installing the tested versions of constraints.txt, one to two minutes the first time ..."; \
	  rm -rf .venv && $(PYTHON) -m venv .venv; \
	fi
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@pwd -P > $@
	@echo "The environment .venv is ready."
