# make demo: train a network with vlug.  make test: run the suite.  Both set up all they need, in .venv.
# ARGS are handed on: make test ARGS="-k conv -x", make demo ARGS="--quick".
PY := .venv/bin/python
ARGS ?=
# Processes that the tests are spread over, file by file: a crash of one costs a test, not the run.
WORKERS ?= 2

.PHONY: help env test test-all check demo bench fuzz clean
help:
	@echo "make demo      train a small network on real images, with and without vlug (minutes)"
	@echo "make test      the test suite, against the built wheel"
	@echo "make test-all  the suite again, on the oldest supported dependencies"
	@echo "make fuzz      random problems of every operation on every engine, for an hour (ARGS=\"--seconds 60\")"
	@echo "make bench     ResNet-50's layers against stock PyTorch"
	@echo "make check     lint, types, layers, docs: what a commit must pass"
	@echo "make env       only the environment (PYTHON=... chooses the Python)"
	@echo "make clean     remove what the above made"

env:
	@scripts/env

# The tests import the installed wheel: src/ is on nobody's path, and a test holds that.
test: env
	@scripts/qemu
	@EXPECT_WHEEL=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-all: env
	@$(PY) -m nox $(ARGS)

fuzz: env
	@$(PY) scripts/fuzz $(ARGS)

check: env
	@$(PY) scripts/check $(ARGS)

demo: env
	@$(PY) -m vlug demo $(ARGS)

bench: env
	@$(PY) -m vlug bench resnet_50 --force $(ARGS)

clean:
	rm -rf .venv .nox build dist demo_out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
