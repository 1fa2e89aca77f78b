# Everything from a clone with Python >= 3.11, git and make. `make` alone lists the targets.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
ARGS ?=
unexport VIRTUAL_ENV
export PYTHONUNBUFFERED ?= 1

.PHONY: help venv demo up test test-vllm unit fuzz lint format bench schemas docs drift clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 10

venv: $(STAMP) ## make .venv with what uv.lock names (done by every target that needs it)
	@:

$(STAMP): pyproject.toml uv.lock .ci/venv
	@.ci/venv $(VENV)
	@touch $@

demo: $(STAMP) ## text, images and videos through the whole pipeline, as a table; exit code 0 only if all went right
	@$(BIN)/kvroute demo --table $(ARGS)

up: $(STAMP) ## everything in one process with an embedded broker and SQLite; ARGS="--engines 3"
	@$(BIN)/kvroute up $(ARGS)

test: $(STAMP) ## unit, contract, integration, end to end; KAFKA_HOME=... adds Apache Kafka; ARGS="-k router"
	@$(BIN)/pytest -q -n 2 $(ARGS) tests/unit
	@$(BIN)/pytest $(ARGS) --ignore tests/unit tests

test-vllm: $(STAMP) ## two real vLLM workers, some 15 minutes; VLLM_HOME=... holds vLLM's environment in venv/; VLLM_MODEL=qwen3-vl
	@VLLM_HOME=$${VLLM_HOME:?names the folder with venv/bin/vllm} $(BIN)/pytest --timeout 1200 $(ARGS) tests/vllm

unit: $(STAMP) ## the quick tests only
	@$(BIN)/pytest -q -n 2 $(ARGS) tests/unit

fuzz: $(STAMP) ## 50,000 damaged images and 2,000 damaged videos through decoding; ARGS="--images 1000 --first 50000"
	@$(BIN)/python -m tests.fuzz $(ARGS)

lint: $(STAMP) ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(STAMP) ## mend what ruff can mend by itself
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## benchmarks as a table and JSON (out/bench.json); KAFKA_HOME=... runs them on Apache Kafka
	@$(BIN)/python -m benchmarks $(ARGS)

schemas: $(STAMP) ## JSON Schema files and the AsyncAPI document, from code
	@$(BIN)/python -m schemas.generate

docs: $(STAMP) ## the generated pages and tables of docs/, from code
	@$(BIN)/python -m docs.generate

drift: $(STAMP) ## fail if generated schemas or docs differ from code
	@$(BIN)/python -m schemas.generate --check
	@$(BIN)/python -m docs.generate --check

clean: ## remove caches, run data and outputs; keeps .venv
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .kvroute out dist build
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
