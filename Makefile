# make demo   everything on this machine, in a browser         make test    checks and tests, under six minutes
# make test-slow  the tests of many processes, beside those
# make bench-planner  how far the planner is off published measurements
# make lint   ruff, mypy, import-linter                        make bench   benchmarks (ONLY=name,... for some)
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
ONLY ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-slow lint format bench bench-planner lock clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.server
	@$(BIN)/python manage.py demo

test: lint $(VENV)/.browser
	$(BIN)/pytest -m "not slow"
	PARLAB_TEST_DATABASE=postgres $(BIN)/pytest tests/lab tests/fleet tests/series tests/ingest tests/pages tests/api tests/admin tests/reports

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench $(ONLY)

bench-planner: $(VENV)/.dev
	$(BIN)/python -m tests.bench.planner

# The lock files hold what every machine gets; torch's local build tag is none of their business.
lock: $(VENV)/.dev
	set -e; for list in runners/requirements requirements requirements-dev; do \
	    $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-header --annotation-style=line \
	        --no-emit-options \
	        $$list.in --output-file $$list.txt; \
	    sed -i 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' $$list.txt; \
	done

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "parlab needs Python 3.11: install it, or name it with PYTHON="; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	    || { echo "parlab needs Python 3.11, $(PYTHON) is $$($(PYTHON) --version): name another with PYTHON="; exit 1; }
	@echo "parlab: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch goes first and alone: whatever asks for it later finds the pinned build in place.
$(VENV)/.server: requirements.txt | $(BIN)/python
	@echo "parlab: installing torch (once; the largest part)"
	@$(PIP) install --progress-bar on "$$(sed -n 's/^\(torch==[0-9.]*\).*/\1/p' requirements.txt)"
	@echo "parlab: installing the other requirements"
	@$(PIP) install --progress-bar on -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.server
	@echo "parlab: installing what tests and benchmarks need"
	@$(PIP) install --progress-bar on -r requirements-dev.txt
	@touch $@

$(VENV)/.browser: tests/browser/install.py $(VENV)/.dev
	@$(BIN)/python -m tests.browser.install
	@touch $@
