# Everything runs in a virtual environment of its own, .venv, which each target makes when it is missing or older
# than what it is made from. Python 3.11 or newer and make must be there; demo and test also want Java 17.
# Tests need no more than the 1,024 open files that systems usually allow (ulimit -n), the fast suites 256.
#
#   make test ARGS="tests/store -x -n 0"   arguments for pytest; -n 0: in one process
#   make demo ARGS="--watch"               options of trioha demo
#   PYTHON=/opt/python3.12/bin/python3     this Python and no other

N ?= 50
LEVEL ?= test
# Tests wait for processes a third of their time, those of RocketMQ most of it.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell expr 2 \* $(CORES))
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --level $(LEVEL)
# Where compiled code does the work: with TRIOHA_PURE=1 plain Python does it.
PURE_TESTS := $(addprefix tests/store/test_,batches.py commit_log.py dispatch.py dispatch_service.py reads.py recovery.py replica.py) \
	tests/broker/test_oneway_sends.py tests/broker/test_pulls.py tests/ha/test_replication_session.py tests/mutations \
	tests/recording/test_recorder.py tests/remoting
# What each Python has of its own: neither JVMs nor faults of live clusters.
SLOW_FOLDERS := $(addprefix --ignore=tests/,faults hostile interop power_cut spark)
VENV ?= .venv
# Installs from its cache in seconds, where it is; UV= for pip.
UV ?= $(shell command -v uv)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Tests start trioha some thousand times: without bytecode each time compiles all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup compile docs demo test test-all test-rest test-pure test-fast nightly lint bench bench-report faults power-cut hostile model simulation screenshots dist java

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: compile ## make the virtual environment .venv with all dependencies, and compile the hot loops

# Compiles the hot loops (see hatch_build.py) if one was edited, or was not compiled yet: some ten seconds. Without a C compiler,
# or with TRIOHA_PURE=1, trioha runs in plain Python.
compile: $(INSTALLED)
	@$(BIN)/python hatch_build.py

demo: java compile ## replicate, break, recover, verify, replay
	@$(BIN)/trioha demo $(ARGS)

test: java compile ## run the tests that a change needs (some minutes); its last line says what it leaves out
	@$(PYTEST) $(ARGS)

test-all: test test-rest ## run all that can find a regression: what CI runs

test-rest: java compile ## run what test-all has beyond test
	@$(MAKE) test LEVEL=rest WORKERS=$$((3 * $(CORES)))
	@$(MAKE) test-pure

nightly: java compile ## run every test, seed, Python and version of RocketMQ: hours; ends with build/nightly/report.md
	@$(BIN)/python -m tests.nightly $(ARGS)

test-pure: compile ## run the tests of compiled code in plain Python
	@TRIOHA_PURE=1 $(PYTEST) -m "not process" $(PURE_TESTS) $(ARGS)

test-fast: compile ## run the tests that need neither Java nor minutes (with PYTHON=... VENV=... on another Python)
	@$(PYTEST) -m "not interop and not spark" $(SLOW_FOLDERS) tests $(ARGS)

lint: $(INSTALLED) ## check format, style, types and the order of imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(INSTALLED) ## build the site of docs/ into build/site; a broken link or a page that nothing leads to ends it
	@$(BIN)/python docs/make_reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: java compile ## print the table of docs/benchmarks.md from one run (20 minutes; ARGS=--quick: a rough one in 8)
	@$(BIN)/python -m tests.benchmarks $(ARGS)

bench-report: java compile ## write the table of docs/benchmarks.md from five runs (100 minutes on an idle machine)
	@$(BIN)/python -m tests.benchmarks --runs 5 --page

faults: compile ## break real nodes in N seeded runs (make faults N=1000)
	@$(BIN)/python -m tests.faults --count $(N) $(ARGS)

power-cut: N = 3
power-cut: compile ## cut the power of nodes on ext4 and ext2, N times in each scenario (two minutes, root only)
	@$(BIN)/python -m tests.power_cut --cuts $(N) $(ARGS)

hostile: N = 100000
hostile: compile ## send N hostile frames of a seed to real nodes (make hostile N=1000000 SEED=7)
	@$(BIN)/python -m tests.hostile --count $(N) --seed $(or $(SEED),1) $(ARGS)

model: compile ## compare a node that is killed with a model of queues and groups, N times (make model N=1000)
	@TRIOHA_MODEL_EXAMPLES=$(N) $(BIN)/pytest -n 0 --level all tests/node/test_model.py $(ARGS)

simulation: N = 10000
simulation: compile ## simulate N seeds of failovers in virtual time on all cores (make simulation N=1000 SEED=5000)
	@$(BIN)/python -m tests.simulation.failover --seed $(or $(SEED),0) --count $(N) $(ARGS)

screenshots: compile ## take the pictures in docs/images, from nodes that really run (three minutes, with Java)
	@$(BIN)/python docs/make_screenshots.py

dist: compile ## build sdist, wheels, SBOM and checksums into dist, and install them (ARGS=--quick: for this Python alone)
	@$(BIN)/python -m tests.release $(ARGS)

# Spark and the tests against RocketMQ's own stores run on Java: told before anything else starts.
java:
	@java=java; [ -z "$$JAVA_HOME" ] || java="$$JAVA_HOME/bin/java"; \
	line=$$("$$java" -version 2>&1 | grep -E ' version "[0-9]' | head -n 1); \
	version=$$(printf '%s\n' "$$line" | sed -E 's/.* version "(1\.)?([0-9]+).*/\2/'); \
	if [ "$${version:-0}" -lt 17 ]; then \
		found="no Java ($$java)"; [ -z "$$line" ] || found="Java $$version ($$java)"; \
		echo "trioha needs a Java 17 JDK or newer and found $$found:" \
			"install one (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless; macOS: brew install openjdk@17)" \
			"or set JAVA_HOME to it." >&2; \
		exit 1; \
	fi

# uv.lock holds for every Python from 3.11 on, and requirements.lock is made from it. To renew both (--upgrade: with the
# newest releases; what is held back, and why, stands in pyproject.toml):
# uv lock && uv export --all-extras --group dev --group docs --no-group extras --no-emit-project --no-header \
#     --output-file requirements.lock
$(INSTALLED): requirements.lock pyproject.toml
	@found=; \
	for python in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "trioha needs Python 3.11 or newer and found none ($${PYTHON:-python3, python3.11 to python3.14}):" \
			"install it or set PYTHON to it." >&2; \
		exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "trioha needs the venv module of $$found: install it (Debian, Ubuntu: apt-get install python3-venv)." >&2; \
		exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		"$$found" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "Installing the locked dependencies into $(VENV): some minutes the first time."
	@if [ -n "$(UV)" ]; then \
		install="$(UV) pip install --quiet --python $(BIN)/python"; \
	else \
		install="$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input"; \
	fi; \
	$$install --require-hashes -r requirements.lock && $$install --no-deps --no-build-isolation -e .
	@touch $@
