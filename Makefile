# Each target makes or reuses .venv by itself; nothing has to be installed or set by hand.
#   PYTHON  interpreter that makes the environment (3.11 or newer)
#   VENV    where the environment lives
#   JOBS    test processes
#   DIST    where the wheel goes
#   ARGS    further arguments, e.g. make test ARGS="-k layout", make demo ARGS=--json
PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= auto
ARGS   ?=

DIST   ?= dist
EPOCH  ?= $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),315532800)

BIN    := $(VENV)/bin
PY     := $(BIN)/python
PIP    := $(PY) -m pip --disable-pip-version-check --no-input
PYTEST := $(PY) -m pytest -n $(JOBS) --maxprocesses=8

# The demo's real model comes out of this wheel; only the file inside is read, the package is never installed.
MODEL_PACKAGE := rapidocr-onnxruntime==1.4.4
MODEL_WHEEL   := $(VENV)/downloads/rapidocr_onnxruntime-1.4.4-py3-none-any.whl

.DEFAULT_GOAL := help
.PHONY: help demo test test-thorough test-full test-versions support sanitize lint format bench docs wheel reproducible sbom audit fuzz-parsers clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make demo       conv+bias+ReLU and the first block of a real model, compiled, run and checked"
	@echo "make test       the tests, without those marked thorough or slow; below 20 minutes on two cores"
	@echo "make test-thorough  those marked thorough: many cases of one kind, and long walks"
	@echo "make test-full  all tests, slow ones too; writes docs/support.json and its table in the README"
	@echo "make test-versions  a sample of the tests with other versions of IREE and ONNX Runtime; a table in docs/support.md"
	@echo "make support    docs/support.md and the README's table, from docs/support.json and the support rules"
	@echo "make sanitize   what is written in C under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer"
	@echo "make lint       ruff, ruff format, workflows (check-jsonschema, zizmor), pyright"
	@echo "make format     let ruff rewrite what it can"
	@echo "make bench      latencies next to the native compiler; memory and times of whole models"
	@echo "make docs       a site of the pages and the API in build/site; links are checked"
	@echo "make wheel      dist/fusilli_plugin-*.whl, dated by the last commit; make reproducible: twice, and the same bytes"
	@echo "make sbom       dist/fusilli_plugin.cdx.json: what the wheel brings with it; make audit: what is known to be unsafe of it"
	@echo "make fuzz-parsers  what reads foreign bytes, for an hour (ARGS='--seconds 60 --seed 7')"
	@echo "make clean      remove build products (distclean: .venv too)"

demo: $(VENV)/.installed-demo $(MODEL_WHEEL)
	@$(BIN)/fusilli demo --model $(MODEL_WHEEL) $(ARGS)

test: $(VENV)/.installed-dev
	@$(PYTEST) $(ARGS)

test-thorough: $(VENV)/.installed-dev
	@$(PYTEST) -m "thorough and not slow" $(ARGS)

test-full: $(VENV)/.installed-dev
	@$(PYTEST) -m "slow or not slow" --support-json docs/support.json $(ARGS)

test-versions: $(VENV)/.installed-dev
	@$(PY) -m tests.support.versions $(ARGS)
	@$(PY) -m tests.support.support_matrix

support: $(VENV)/.installed-dev
	@$(PY) -m tests.support.support_matrix $(ARGS)

sanitize: $(VENV)/.installed-dev
	@$(PYTEST) -m "slow or not slow" -k sanitizer tests/fusilli_plugin tests/iree_bridge/runtime/host $(ARGS)

lint: $(VENV)/.installed-dev
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet . || { echo "make format rewrites them"; exit 1; }
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/zizmor --offline --quiet --no-progress .github/workflows
	@$(PY) -m pyright --pythonpath $(PY)

format: $(VENV)/.installed-dev
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: $(VENV)/.installed-dev
	@$(PY) -m tests.support.bench --models $(ARGS)

# The variable turns off a notice of the theme about the next major version of mkdocs, which pyproject.toml excludes.
# Not --quiet: warnings that are not shown do not count.
docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)
	@echo build/site/index.html

# Of one source, one wheel: the dates in it are those of the last commit.
wheel: $(PY)
	@rm -rf build $(DIST)/fusilli_plugin-*.whl
	@SOURCE_DATE_EPOCH=$(EPOCH) $(PIP) wheel --quiet --no-deps --wheel-dir $(DIST) .
	@ls $(DIST)/*.whl

reproducible: wheel
	@$(MAKE) --no-print-directory wheel DIST=build/again
	@for made in build/again/*.whl; do cmp "$$made" "dist/$$(basename "$$made")"; done
	@echo "two builds, the same bytes"
	@cd dist && sha256sum *.whl

# The wheel alone in an environment: what users get.
build/users/bin/python: $(VENV)/.installed-release
	@$(MAKE) --no-print-directory wheel
	@$(PY) -m venv build/users
	@build/users/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl

sbom: build/users/bin/python
	@SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --of JSON --output-file dist/fusilli_plugin.cdx.json build/users/bin/python
	@echo dist/fusilli_plugin.cdx.json

audit: build/users/bin/python
	@build/users/bin/python -m pip freeze --exclude fusilli-plugin > build/requirements.txt
	@$(BIN)/pip-audit --requirement build/requirements.txt --no-deps --disable-pip $(ARGS)

fuzz-parsers: $(VENV)/.installed-dev
	@$(PY) -m tests.support.fuzz $(or $(ARGS),--seconds 3600)

clean:
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)

# Debian ships venv without ensurepip (package python3-venv); virtualenv does as well.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed and '$(PYTHON)' is not one; name one with make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@echo "making $(VENV)"
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then $(PYTHON) -m venv --clear $(VENV); \
	elif $(PYTHON) -c 'import virtualenv' 2>/dev/null; then $(PYTHON) -m virtualenv --quiet --clear $(VENV); \
	elif command -v virtualenv >/dev/null; then virtualenv --quiet --clear --python $(PYTHON) $(VENV); \
	else echo "'$(PYTHON)' can make no virtual environment: install python3-venv (apt-get install python3-venv)" \
	  "or virtualenv, then run make again" >&2; exit 1; fi

# dev is a superset of demo and docs: with it in place these install nothing and run without a network.
$(VENV)/.installed-%: pyproject.toml iree_bridge/runtime/host/launcher.c | $(PY)
	@echo "installing fusilli-plugin[$*] into $(VENV) (about a minute the first time)"
	@$(PIP) install --quiet --editable '.[$*]'
	@touch $@
	@if [ '$*' = dev ]; then touch $(VENV)/.installed-demo $(VENV)/.installed-docs; fi

$(MODEL_WHEEL): | $(PY)
	@echo "fetching $(MODEL_PACKAGE) for its model file"
	@$(PIP) download --quiet --no-deps --ignore-requires-python --dest $(@D) $(MODEL_PACKAGE)
