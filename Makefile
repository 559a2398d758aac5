# make up      everything installed, engines and gateway started, a curl line to try
# make test    everything installed, every check and test (FOREBAY_DATA=dir adds the tests on reference data)
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
# Tests wait on sockets and processes more than they compute: several at a time, but never one per core of a large machine.
PARALLEL := -n auto --maxprocesses 4
PACKAGES := core cache router capacity gateway deploy bench forebay

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

$(VENV)/up.stamp: pyproject.toml requirements/gateway.lock requirements/cpu.lock requirements/install.sh
	@requirements/install.sh $(VENV) requirements/gateway.lock requirements/cpu.lock
	@touch $@

$(VENV)/dev.stamp: $(VENV)/up.stamp requirements/dev.lock
	@requirements/install.sh $(VENV) requirements/dev.lock
	@touch $@

install: $(VENV)/up.stamp  ## what `make up` needs, into .venv

up: $(VENV)/up.stamp  ## start two vLLM tiers and the gateway on this machine
	@$(BIN)/forebay up --detach

down: $(VENV)/up.stamp  ## stop what `make up` started
	@$(BIN)/forebay down

lint: $(VENV)/dev.stamp  ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A real server for the tests of the shared cache (Valkey comes with requirements/dev.lock). Without root and apt they are
# skipped, with that reason.
redis:
	@command -v redis-server >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && \
	  echo "install: redis-server with apt" >&2 && apt-get update -qq && \
	  apt-get install -y -qq --no-install-recommends redis-server >/dev/null; } || \
	  echo "install: no redis-server; tests that need one are skipped (Debian: apt-get install redis-server)" >&2

test-fast: $(VENV)/dev.stamp redis  ## tests without engines and models
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not e2e and not embedder and not slow"

test: lint redis  ## every check and test, with real Ray Serve and vLLM
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not e2e"
	$(BIN)/python -m pytest -q -m e2e

soak: $(VENV)/dev.stamp  ## runs of minutes on real engines
	$(BIN)/python -m pytest -q -s -m soak tests/soak

bench: $(VENV)/dev.stamp  ## the measurements behind the documentation's numbers
	$(BIN)/python -m bench.overhead
	@if [ -n "$$FOREBAY_DATA" ]; then $(BIN)/python -m bench.cache_trust && $(BIN)/python -m bench.router_quality --pairs && \
	  $(BIN)/python -m bench.capacity; else echo "bench.cache_trust, bench.router_quality and bench.capacity are left out:" \
	  "FOREBAY_DATA names no folder of reference data"; fi
	$(BIN)/python -m bench.router_latency

lock:  ## write the lock files from the environment in .venv
	$(BIN)/python requirements/lock.py

.PHONY: help install up down lint redis test-fast test soak bench lock
