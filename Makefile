# Two commands for a start:  make demo  and  make test.  Both need python3 (3.11 or newer, with venv) and make.

PYTHON ?= python3
PORT ?= 8000
SANDBOX_PORT ?= 8001
LIFETIME ?= 60
PYTEST_ARGS ?= -n 2
BENCH_ARGS ?=
SECONDS ?= 3600
SEED ?=
BIN = .venv/bin
INSTALLED = .venv/.installed
SWEEPS = tests/test_sweep.py tests/test_marker.py tests/test_incidents.py
SOURCES = labsite sessions_app deploy tests manage.py

DEVELOPMENT = LABSITE_MODE=development
# Values as a production has them, none of them used anywhere: `check --deploy` judges the settings made from them.
PRODUCTION = LABSITE_MODE=production LABSITE_ENVIRONMENT=prod DATABASE_URL=postgresql://labsite@db.example.org/labsite \
	ALLOWED_HOSTS=labs.example.org LABSITE_URL=https://labs.example.org LAB_API_SERVER= \
	SECRET_KEY=$$($(RANDOM_KEY)) GRADING_KEY=$$($(RANDOM_KEY))
RANDOM_KEY = $(BIN)/python -c 'import secrets; print(secrets.token_urlsafe(64))'

.PHONY: help install demo test test-latest prove simulate screenshots messages bench check format constraints

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

install: $(INSTALLED) ## install everything into .venv

demo: $(INSTALLED) ## run the site on a stand-in cluster (PORT=8000 SANDBOX_PORT=8001 LIFETIME=60 minutes)
	@$(BIN)/python -m deploy.demo --port='$(PORT)' --sandbox-port='$(SANDBOX_PORT)' --lifetime='$(LIFETIME)'

test: $(INSTALLED) ## run the test suite on its own PostgreSQL and its own sandbox cluster
	$(BIN)/python -m pytest $(PYTEST_ARGS)

prove: $(INSTALLED) ## all of what `make test` samples: troubles, kill points, doors, the image; and each promise broken
	LABSITE_PROVE=all $(BIN)/python -m pytest $(PYTEST_ARGS) tests/prove tests/test_image.py
	LABSITE_DOOR=schedule $(BIN)/python -m pytest $(PYTEST_ARGS) $(SWEEPS)
	LABSITE_DOOR=command $(BIN)/python -m pytest $(PYTEST_ARGS) $(SWEEPS)
	$(BIN)/python tests/prove/mutations.py

simulate: $(INSTALLED) ## live through what chance has in store (SECONDS=3600 SEED=), and print the steps that break a promise
	SIMULATE_SECONDS=$(SECONDS) SIMULATE_SEED=$(SEED) $(BIN)/python -m pytest -x tests/simulation/test_simulation.py

screenshots: $(INSTALLED) ## picture every page in every state, into docs/pictures (needs Chromium and fonts-noto-cjk)
	$(BIN)/python -m pytest -q tests/screenshots.py

bench: $(INSTALLED) ## measure how fast the site is, as ratios to floors of the same run (BENCH_ARGS=--help)
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

# The newest Python of this machine that can make a venv, whether it is called in PATH or only pyenv knows it.
NEWEST_PYTHON = for minor in $$(seq 30 -1 11); do for python in python3.$$minor \
	$$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python3.$$minor 2>/dev/null | sort -V | tail -n 1); do \
	"$$python" -c 'import venv, ensurepip' 2>/dev/null && { echo "$$python"; exit; }; done; done

test-latest: ## the same on the newest Django and the newest Python of this machine, in var/latest
	python=$$($(NEWEST_PYTHON)); "$$python" -m venv --clear var/latest
	var/latest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@var/latest/bin/python -c 'import sys, django; print("Django", django.__version__, "on Python", sys.version.split()[0])'
	var/latest/bin/python -m pytest $(PYTEST_ARGS)

check: $(INSTALLED) ## lint, format, types, import layers, templates, migrations, production settings
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(DEVELOPMENT) $(BIN)/mypy labsite sessions_app deploy manage.py
	$(BIN)/lint-imports --no-logo
	$(BIN)/djlint --quiet --lint templates
	$(DEVELOPMENT) $(BIN)/python manage.py makemigrations --check --dry-run
	$(PRODUCTION) $(BIN)/python manage.py check --deploy --fail-level WARNING

messages: $(INSTALLED) ## collect the texts into the catalogues, and compile them
	$(DEVELOPMENT) $(BIN)/python -m deploy.messages

format: $(INSTALLED) ## let ruff put the code in order
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

constraints: $(INSTALLED) ## take the newest versions that pyproject.toml allows, and pin what production runs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager --editable .
	$(BIN)/python -m deploy.constraints > deploy/constraints.new
	mv deploy/constraints.new deploy/constraints.txt

$(INSTALLED): pyproject.toml deploy/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Missing: Python 3.11 or newer as $(PYTHON). Another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "Missing: venv of $(PYTHON) (on Debian and Ubuntu the package python3-venv)."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt --editable '.[dev]'
	@touch $@
