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

# A real Prometheus and promtool for the tests of dashboards, alerts and the review, in the same way.
prometheus:
	@command -v promtool >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && \
	  echo "install: prometheus with apt" >&2 && apt-get update -qq && \
	  apt-get install -y -qq --no-install-recommends prometheus >/dev/null; } || \
	  echo "install: no prometheus; tests that need one are skipped (Debian: apt-get install prometheus)" >&2

# A real browser for the tests of the console, in the same way.
chromium:
	@command -v chromium-headless-shell >/dev/null 2>&1 || command -v chromium >/dev/null 2>&1 || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && \
	  echo "install: chromium-headless-shell with apt" >&2 && apt-get update -qq && \
	  apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null; } || \
	  echo "install: no Chromium; tests of the console's page are skipped (Debian: apt-get install" \
	  "chromium-headless-shell)" >&2

test-fast: $(VENV)/dev.stamp redis  ## tests without engines and models
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not e2e and not embedder and not slow"

test: lint redis prometheus chromium  ## every check and test, with real Ray Serve and vLLM
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not e2e"
	$(BIN)/python -m pytest -q -m e2e

soak: $(VENV)/dev.stamp  ## runs of minutes on real engines
	$(BIN)/python -m pytest -q -s -m soak tests/soak tests/e2e/test_apart.py

# Peers, each in an environment of its own: what `make bench` compares with, at these versions.
PEERS := build/peers
ROUTER := $(PEERS)/vllm-router-0.1.17
LITELLM := $(PEERS)/litellm-1.108.7
GUIDELLM := $(PEERS)/guidellm-0.8.1

$(ROUTER)/bin/vllm-router:
	@$(PYTHON_FOR_PEERS) -m venv $(ROUTER) && $(ROUTER)/bin/pip install -q vllm-router==0.1.17

$(LITELLM)/bin/litellm:
	@$(PYTHON_FOR_PEERS) -m venv $(LITELLM) && $(LITELLM)/bin/pip install -q 'litellm[proxy]==1.108.7'

$(GUIDELLM)/bin/guidellm:
	@$(PYTHON_FOR_PEERS) -m venv $(GUIDELLM) && $(GUIDELLM)/bin/pip install -q guidellm==0.8.1

PYTHON_FOR_PEERS := $(if $(PYTHON),$(PYTHON),python3.11)

peers: $(ROUTER)/bin/vllm-router $(LITELLM)/bin/litellm $(GUIDELLM)/bin/guidellm

# BENCH adds options of bench.whole (`--without live`); FOREBAY_DATA=dir adds what needs traces and labelled pairs.
bench: $(VENV)/dev.stamp peers  ## every comparison, and the README's table from them (BENCH='--rounds 5')
	$(BIN)/python -m bench.whole --guidellm $(GUIDELLM)/bin/guidellm \
	  --peer 'vllm-router 0.1.17=$(ROUTER)/bin/vllm-router --port {port} --worker-urls {engine} --log-level error' \
	  --peer 'LiteLLM 1.108.7=bench/litellm.sh $(LITELLM)/bin/litellm {port} {engine}' \
	  --peer 'LiteLLM 1.108.7 with its cache in memory=bench/litellm.sh $(LITELLM)/bin/litellm {port} {engine} cached' \
	  $(if $(FOREBAY_DATA),--trace $(FOREBAY_DATA)/traces/azure_conv_2023.csv) $(BENCH)
	@if [ -n "$$FOREBAY_DATA" ]; then $(BIN)/python -m bench.cache_trust && $(BIN)/python -m bench.router_quality --pairs && \
	  $(BIN)/python -m bench.capacity; else echo "bench.cache_trust, bench.router_quality and bench.capacity are left out:" \
	  "FOREBAY_DATA names no folder of reference data"; fi
	$(BIN)/python -m bench.router_latency

# Checkov brings a hundred packages of its own, so it has an environment of its own. What is skipped, and why, is in its file.
lint-chart: $(VENV)/dev.stamp  ## the chart's manifests through checkov (minutes the first time)
	@[ -x .tools/checkov/bin/checkov ] || { $(BIN)/python -m venv .tools/checkov && \
	  .tools/checkov/bin/pip install -q --disable-pip-version-check checkov==3.3.30; }
	@$(BIN)/python -m tests.helm.tools >/dev/null
	@for values in helm/forebay/values.yaml helm/forebay/values/*.yaml; do \
	  .tools/helm-4.3.1 template forebay helm/forebay --namespace llm -f $$values >.tools/rendered.yaml && \
	  .tools/checkov/bin/checkov -f .tools/rendered.yaml --framework kubernetes --compact --quiet --skip-download \
	    --config-file helm/checkov.yaml && echo "checkov: $$values is clean" || exit 1; done

lock:  ## write the lock files from the environment in .venv
	$(BIN)/python requirements/lock.py

.PHONY: help install up down lint redis prometheus chromium test-fast test soak peers bench lint-chart lock
