# `make demo` shows it, `make test` proves it; `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
export TRIALTAP_CACHE ?= $(HOME)/.cache/trialtap
VENV := .venv
BIN := $(VENV)/bin
CC ?= cc

.PHONY: help install demo test check format lock proto tap clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 16

install: $(VENV)/.installed collector/tap ## make .venv and install everything into it, build tap

$(VENV)/.installed: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

collector/tap: collector/tap.c
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -static -o $@ $<

tap: collector/tap ## build tap for this machine

demo: install ## run a real training from Trial to metrics, with no cluster
	$(BIN)/trialtap run -f examples/job.yaml

test: install ## unit, golden and local end-to-end tests, on SQLite, without cluster or network
	$(BIN)/pytest -m 'not (cluster or node or postgresql or mysql or browser or images or sdk)' $(ARGS)

check: install ## format, lint, types, import rules, dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

format: install ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --select I,UP,RUF100 .

LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 pyproject.toml
lock: ## resolve the dependencies anew and write the lock files
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) --all-extras -o requirements.lock
	$(LOCK) --extra server -c requirements.lock -o requirements-server.lock
	$(LOCK) --extra collector -c requirements.lock -o requirements-collector.lock

proto: install ## trialtap/api.proto -> trialtap/api.binpb
	$(BIN)/python -m grpc_tools.protoc -I trialtap --descriptor_set_out=/dev/stdout api.proto | $(BIN)/python -c 'import sys; from google.protobuf.descriptor_pb2 import FileDescriptorSet as S; sys.stdout.buffer.write(S.FromString(sys.stdin.buffer.read()).file[0].SerializeToString())' > trialtap/api.binpb.new
	mv trialtap/api.binpb.new trialtap/api.binpb

clean: ## remove what was built, .venv included
	rm -rf $(VENV) build dist collector/tap .mypy_cache .ruff_cache .pytest_cache .hypothesis
