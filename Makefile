# Every target sets up what it needs. A machine has Python 3.11, Java 17 and make; the rest is installed here.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# `make TARGET SPARK=4.3` (or 4.2) uses another version of PySpark (docs/limits.md), in an environment of its own.
SPARK ?= 3.5
ifeq ($(SPARK),3.5)
EXTRA := spark35
VENV := .venv
CONSTRAINTS := constraints.txt
PYTHONS := 3.11
else ifeq ($(SPARK),4.3)
EXTRA := spark4
VENV := .venv-spark4
CONSTRAINTS := constraints-spark4.txt
PYTHONS := 3.11 3.12 3.13
else ifeq ($(SPARK),4.2)
EXTRA := spark4
VENV := .venv-spark4.2
CONSTRAINTS := constraints-spark4.2.txt
PYTHONS := 3.11
else
$(error SPARK is 3.5, 4.2 or 4.3)
endif
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# what everything started from here writes for a while
export TMPDIR := $(CURDIR)/.tmp
$(shell mkdir -p .tmp)

.PHONY: help
help: ## Show what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: machine
machine:
	@"$(PYTHON)" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv)' $(PYTHONS) 2>/dev/null \
	  || { fit="$(PYTHONS)"; echo "missing: Python $${fit// / or } (set PYTHON=/path/to/python)"; exit 1; }
	@java -version 2>&1 | grep -Eq 'version "(17|21)' \
	  || { echo "missing: Java 17 (java -version must say 17)"; exit 1; }

.PHONY: setup
setup: machine $(READY) ## Make the virtual environment (.venv; SPARK=4.3: .venv-spark4; SPARK=4.2: .venv-spark4.2) with everything pinned

$(READY): pyproject.toml constraints.txt $(CONSTRAINTS)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[$(EXTRA),sandbox,dev,otlp]'
	@touch $(READY)

.PHONY: demo
demo: setup ## Run the main job on a real cluster, from leak to proof (about three minutes)
	@$(BIN)/python -m streaming.sandbox.demo

.PHONY: test
test: setup ## Run the tests, the embedded cluster included (about ten minutes on two cores)
	@$(BIN)/python -m pytest -m "not long" --numprocesses 3 --dist loadgroup --no-loadscope-reorder --durations=20

.PHONY: test-fast
test-fast: setup ## Run the tests that need neither servers nor Spark (under two minutes)
	@$(BIN)/python -m pytest tests/unit tests/model tests/architecture -m "not cluster and not slow and not long" \
	  --numprocesses 4 --dist loadgroup --no-loadscope-reorder

.PHONY: test-long
test-long: setup ## Run the tests that take many minutes each
	@$(BIN)/python -m pytest -m long --timeout 7200

.PHONY: test-versions
test-versions: setup ## Run the main scenes on each version of Pulsar (PULSAR=5.0.0-M1: on that one; 6 minutes each)
	@LEDGER_REAPER_TEST_PULSAR="$(PULSAR)" $(BIN)/python -m pytest tests/integration/test_pulsar_versions.py -m long \
	  --durations=0 --durations-min=1

.PHONY: test-spark4
ifeq ($(SPARK),3.5)
test-spark4: ## Run the tests of Spark and the main scene of the service with PySpark 4 (about four minutes)
	@$(MAKE) --no-print-directory test-spark4 SPARK=4.3
else
test-spark4: setup
	@$(BIN)/python -m pytest tests/spark tests/integration/test_service.py \
	  tests/integration/test_spark4_source.py::test_the_example_copies_topics_and_continues \
	  -m "not long or long and cluster" --numprocesses 2 --dist loadgroup --no-loadscope-reorder --durations=10
endif

.PHONY: test-model
test-model: setup ## Run the model test for long (LEDGER_REAPER_MODEL_EXAMPLES=2000)
	@LEDGER_REAPER_MODEL_EXAMPLES=$${LEDGER_REAPER_MODEL_EXAMPLES:-2000} $(BIN)/python -m pytest tests/model --timeout 7200

.PHONY: test-mutations
test-mutations: setup ## Break each safety line once and see which tests notice (hours)
	@$(BIN)/python -m tests.mutation

.PHONY: soak
soak: setup ## Load, and something dies every minute, for 20 minutes; prints the account (MINUTES=20)
	@$(BIN)/python -m bench.soak --minutes $${MINUTES:-20}

.PHONY: check
check: setup tools ## Lint, format, types, import rules; render chart and manifests; check alerts, dashboard and pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@cd clients/python && ../../$(BIN)/mypy --python-version 3.10  # mypy knows no older one
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest --quiet tests/architecture/test_alerts.py tests/architecture/test_chart.py \
	  tests/architecture/test_dashboard.py tests/architecture/test_docs.py tests/architecture/test_site.py

.PHONY: tools
tools: setup ## Build promtool, helm and kustomize into the user's cache, where there is Go (once, a few minutes)
	@$(BIN)/python -m tests.go_tools

.PHONY: dist
dist: setup ## Build what a Spark cluster needs into dist/: wheel, packed environment, jars
	@SPARK=$(SPARK) PYTHON=$(PYTHON) VENV_PACK=$(CURDIR)/$(BIN)/venv-pack deploy/dist.sh dist

.PHONY: man
man: setup ## Write the man pages into dist/man, from the help of the commands
	@$(BIN)/python deploy/man_pages.py dist/man

.PHONY: release
release: setup ## Build a release into dist/ and verify it (DRAFT=1: although the changelog is not complete)
	@PATH=$(CURDIR)/$(BIN):$$PATH deploy/release.sh dist $(if $(DRAFT),--draft)

.PHONY: format
format: setup ## Format the code
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

.PHONY: credentials-jar
credentials-jar: setup ## Compile streaming/spark/java into credentials.jar
	@$(BIN)/python -m tests.credentials_jar

.PHONY: proto
proto: setup ## Generate udfs/proto/*_pb2.py anew
	@$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. udfs/proto/*.proto

.PHONY: pages
pages: setup ## Write the generated parts of docs/ (configuration keys, commands, metrics), the dashboard, copies of the alerts
	@$(BIN)/python -m tests.doc_site pages

.PHONY: site
site: setup ## Build the documentation site into build/site, and check it
	@$(BIN)/python -m tests.doc_site site build

.PHONY: clean
clean: ## Remove the virtual environments and everything that was built or left behind
	rm -rf .venv .venv-spark4 .venv-spark4.2 build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache artifacts .demo .tmp spark-warehouse
