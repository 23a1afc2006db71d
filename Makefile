# `make run` and `make test` work on a machine with nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: help run otel cluster test test-fast test-spark check bench crash soak catch-up torture fuzz supply docs site lock clean

.DEFAULT_GOAL := run

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / {printf "%-12s%s\n", $$1, $$2}' Makefile

run: $(VENV)/.demo  ## telemetry into a real Kafka, private components out, a live view; for a while: make run ARGS="--seconds 45"
	@$(BIN)/python -m demo $(ARGS)

otel: $(VENV)/.demo  ## a real OpenTelemetry Collector into a real Kafka, components of this machine; needs Go
	@$(BIN)/python -m demo.otel $(ARGS)

cluster: $(VENV)/.cluster  ## the same on a Spark cluster: a master, two workers, one model; needs Java 17
	@$(BIN)/python -m demo --engine spark $(ARGS)

# Several processes share the cores: threads of BLAS in each of them would wait for one another, at
# twice the processor time. Tests that are about its digits turn them on again (`several_threads`).
test test-fast: export OPENBLAS_NUM_THREADS := 1
test test-fast: export OMP_NUM_THREADS := 1
# Hundreds of processes start: none of them should compile the package and the tests anew.
test test-fast test-spark: export PYTHONDONTWRITEBYTECODE :=

# Three processes more than cores: many tests wait for timers, sessions and brokers, not for a processor.
# Without brokers, one more is enough.
CORES := $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
WORKERS ?= $(shell expr $(CORES) + 3)
test-fast: WORKERS := $(shell expr $(CORES) + 1)

# The same examples of hypothesis in every run; plain pytest tries others.
test: $(VENV)/.ready  ## every test but those on Spark, every doctest and README example
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --hypothesis-profile=ci -m "not spark" $(ARGS)

test-spark: $(VENV)/.ready  ## one model on a real Spark cluster; needs Java 17
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[spark,test]"
	@$(BIN)/python -m pytest tests/spark $(ARGS)

test-fast: $(VENV)/.ready  ## what needs no broker, without `audit` and `slow` (pyproject.toml)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --hypothesis-profile=ci -m "not (broker or spark or audit or slow)" $(ARGS)

check: $(VENV)/.ready  ## lint, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: $(VENV)/.ready  ## accuracy and speed: the figures of the README
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	@$(BIN)/python -m benchmarks.speed $(ARGS)
	@$(BIN)/python -m benchmarks.accuracy $(ARGS)

crash: $(VENV)/.ready  ## the crash matrix, with 50 random kills
	@STREAM_DPPCA_CRASHES=50 STREAM_DPPCA_TIMED=1 $(BIN)/python -m pytest tests/crash $(ARGS)

catch-up: $(VENV)/.ready  ## two million messages on each reader, 20 kills, partitions added
	@$(BIN)/python -m tests.crash.catch_up $(ARGS)

soak: $(VENV)/.ready  ## ten minutes at full speed, memory flat
	@$(BIN)/python -m tests.crash.soak $(ARGS)

torture: $(VENV)/.ready  ## a thousand kills and everything else that breaks; resumes where it was stopped
	@$(BIN)/python -m tests.torture --report $(ARGS)

fuzz: $(VENV)/.ready  ## a million made-up messages of all formats, guided by coverage
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "atheris>=2.3"
	@$(BIN)/python -m tests.fuzz $(ARGS)

supply: $(VENV)/.ready  ## known vulnerabilities of what the image holds, and its bill of materials
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip-audit>=2.7" "cyclonedx-bom>=5"
	@.ci/supply

docs: $(VENV)/.ready  ## the tables of the settings in docs/service-reference.md
	@$(BIN)/python -m docs.settings_table

site: $(VENV)/.ready  ## the documentation as a site, links checked
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@$(BIN)/python -m mkdocs build --strict

lock:  ## docker/requirements.txt: what the image holds, pinned with hashes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/python -m uv pip compile pyproject.toml --extra service --extra avro --extra protobuf --extra otlp \
		--generate-hashes --python-version 3.11 --no-header --quiet --output-file docker/requirements.txt

clean:  ## removes the environment and all that was built
	rm -rf $(VENV) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Only what the demonstration needs, in a third of the time of everything; pip shows how far it is.
$(VENV)/.demo: pyproject.toml
	@echo "setting up $(VENV) (once, about a minute): 1 of 2, an empty environment"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "2 of 2, the packages of the demonstration"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-compile -e ".[demo]"
	@touch $@

$(VENV)/.cluster: $(VENV)/.demo
	@echo "pyspark, which holds Spark (once, 450 MB)"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-compile -e ".[demo,spark]"
	@touch $@

$(VENV)/.ready: pyproject.toml
	@echo "setting up $(VENV) (once, a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test,check]"
	@touch $@ $(VENV)/.demo
