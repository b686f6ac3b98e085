# Each target stands on its own, on a bare clone as on the tenth call: it makes .venv, installs what
# it needs into it (again only when pyproject.toml or constraints.txt change), then does its work.

SHELL := /bin/sh
VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=
HOST ?= 127.0.0.1
PORT ?= 5500
MLFLOW_DIR ?= .spa/mlflow
WORKERS ?= auto
# What `gpucheck` returns without a package index; in `test` it is no failure.
UNREACHED ?= 2

# Metaflow wants a user name, which a bare container doesn't set.
USER ?= $(shell id -un)
export USER
export MLFLOW_DISABLE_TELEMETRY := true
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The first of these that starts, is 3.11 or 3.12, and can make virtual environments.
FITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3 python,$(shell $(p) -c '$(FITS)' >/dev/null 2>&1 && echo $(p))))

VERL ?= .venv-verl
# For the machines that have GPUs, wherever this is run. Their C library is of 2018 or later.
RESOLVE = $(VENV)/bin/uv pip compile --quiet --no-header --no-annotate --extra gpu --python-version 3.12 \
  --python-platform x86_64-manylinux_2_28 pyproject.toml

# What verl's trainers import, beside the development environment with its torch for CPUs. Without
# their dependencies: verl's `packaging` and ours, tensordict's and verl's, can't be had together.
VERL_SET := verl==0.9.1 ray==2.60.0 tensordict==0.10.0 torchdata==0.11.0 transferqueue==0.1.11 \
  accelerate==1.15.0 codetiming==1.4.0 datasets==5.2.0 dill==0.4.1 hydra-core==1.3.2 \
  jsonschema==4.26.0 jsonschema-specifications==2025.9.1 msgpack==1.2.4 msgspec==0.22.0 \
  multiprocess==0.70.19 orjson==3.13.0 peft==0.21.2 psutil==7.2.2 pybind11==3.1.0 \
  pylatexenc==2.11 pyvers==0.2.3 pyzmq==27.3.0 referencing==0.37.0 rpds-py==2026.9.1 xxhash==4.1.0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test quick lint format ui bench verl gpulock gpucheck clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo 'ARGS="..." is handed on to run, test, quick and bench; PYTHON=... picks the interpreter.'

run: $(VENV)/.installed ## The whole recipe on FrozenLake; ARGS="--seed 1"
	$(PY) flows/spa_flow.py run $(if $(findstring --env,$(ARGS)),,--env frozenlake) $(ARGS)

# Files in the tree's order: by their number of tests, the few long ones would come last, and wait
# for one core.
test: lint ## Lint, types, the gpu extra's versions, and every test that this machine can run
	@$(MAKE) --no-print-directory gpucheck UNREACHED=0
	$(PY) -m pytest -n $(WORKERS) --maxprocesses=4 --dist=loadfile --no-loadscope-reorder \
	  -m "not gpu and not verl and not reference" $(ARGS)

quick: $(VENV)/.installed-dev ## The tests without the slow ones
	$(PY) -m pytest $(ARGS)

lint: $(VENV)/.installed-dev ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/.installed-dev ## Let ruff lay out the code
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

ui: $(VENV)/.installed ## MLflow on the local store; PORT=5501
	@$(PY) -c 'import socket; s = socket.socket(); \
	  s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("$(HOST)", $(PORT)))' \
	  >/dev/null 2>&1 || { echo "make ui: can't listen on $(HOST):$(PORT); most likely another \
	program does. Stop it, or choose another port: make ui PORT=5501" >&2; exit 1; }
	@test -f $(MLFLOW_DIR)/mlflow.db || echo "make ui: no runs in $(MLFLOW_DIR) yet; 'make run' writes the first."
	@mkdir -p $(MLFLOW_DIR)/artifacts
	@echo "MLflow: http://$(HOST):$(PORT)  (Ctrl-C ends it)"
	@$(PY) -m steps.tracking pages $(MLFLOW_DIR)/mlflow.db http://$(HOST):$(PORT)
	$(PY) -m mlflow server --host $(HOST) --port $(PORT) --workers 1 \
	  --backend-store-uri sqlite:///$(MLFLOW_DIR)/mlflow.db --artifacts-destination $(MLFLOW_DIR)/artifacts

bench: $(VENV)/.installed-dev ## Time the environments; ARGS="--env sokoban"
	$(PY) -m benchmarks.envs $(ARGS)

verl: $(VERL)/.installed ## The tests against verl itself, on CPU processes; VERL=folder of its environment
	$(VERL)/bin/python -m pytest -m verl $(ARGS)

gpulock: $(VENV)/.installed-dev ## Resolve the gpu extra anew, into constraints-gpu.txt; installs nothing
	{ sed -n '/^#/p' constraints-gpu.txt; $(RESOLVE); } > constraints-gpu.txt.new
	mv constraints-gpu.txt.new constraints-gpu.txt

gpucheck: $(VENV)/.installed-dev ## Whether the gpu extra still resolves to constraints-gpu.txt, alone and with the others; installs nothing
	@grep -v '^#' constraints-gpu.txt > $(VENV)/gpu-locked
	@$(RESOLVE) --constraint constraints-gpu.txt > $(VENV)/gpu-resolved || { code=$$?; \
	  test $$code -eq 2 || exit $$code; echo "make: the package index can't be reached: whether \
	constraints-gpu.txt still fits wasn't looked at" >&2; exit $(UNREACHED); }; \
	diff $(VENV)/gpu-locked $(VENV)/gpu-resolved && \
	$(RESOLVE) --extra constrained --extra dev --constraint constraints-gpu.txt > $(VENV)/gpu-with-all && \
	echo "constraints-gpu.txt fits pyproject.toml, and constrained and dev go beside it"

clean: ## Remove the virtual environment and caches; runs and metrics stay
	rm -rf $(VENV) $(VERL) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(PY):
	@python="$(PYTHON)"; test -n "$$python" || { echo "make: no Python 3.11 or 3.12 with the venv \
	module found (tried python3.11, python3.12, python3, python). Install one (on Debian also its \
	-venv package), or name it: make PYTHON=path/to/python3.12 ..." >&2; exit 1; }; \
	"$$python" -c '$(FITS)' >/dev/null 2>&1 || { echo "make: PYTHON=$$python isn't Python 3.11 or \
	3.12 with the venv module. Name another: make PYTHON=path/to/python3.12 ..." >&2; exit 1; }; \
	echo "making $(VENV) with $$("$$python" --version)"; "$$python" -m venv --clear $(VENV)

$(VERL)/.installed: $(VENV)/.installed-dev
	@echo "installing verl and Ray into $(VERL), over the packages of $(VENV)"
	$(PY) -m venv --clear $(VERL)
	$(PY) -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$($(VERL)/bin/python -c 'import site; print(site.getsitepackages()[0])')/under.pth"
	$(VERL)/bin/python -m pip install --quiet --no-deps $(VERL_SET)
	rm -rf "$$($(VERL)/bin/python -c 'import site; print(site.getsitepackages()[0])')/tests"
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(PY)
	@echo "installing into $(VENV): two minutes or so, once"
	$(PY) -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(PY)
	@echo "installing into $(VENV), with what the tests need: two minutes or so, once"
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed
