# The two commands that matter: `make demo` and `make test`. Both do all the set-up themselves, and quickly when there is nothing to do.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CXX_FILES = $(shell git ls-files '*.cpp' '*.h' | grep -v third_party)

.PHONY: help setup build demo test test-second lint format bench docs clean

help:
	@echo 'make demo   train two real models on the OpenCL device beside the CPU     (ARGS="--epochs 5": its options)'
	@echo 'make test   run the tests                                                 (ARGS="-k name": pytest options)'
	@echo 'make test-second   some of the tests on another OpenCL implementation'
	@echo 'make lint   ruff, mypy --strict and clang-format                          make format   let them rewrite'
	@echo 'make bench  microseconds a call, GB/s and GFLOP/s beside the CPU          make clean    remove what was built'
	@echo 'make docs   the documentation as a site, in build/docs'
	@echo 'make setup  only the set-up: virtual environment, torch, OpenCL platform, both distributions compiled'

setup build:
	@$(PYTHON) scripts/setup --venv $(VENV)

demo: setup
	@$(BIN)/python -m torchgraft_opencl.demo $(ARGS)

test: setup
	@$(BIN)/python -m pytest $(ARGS)

# A second, independent OpenCL: Intel's runtime for the CPU, from PyPI. It serves as the only one here, with a part of the tests.
SECOND := from torchgraft_opencl.implementations import packaged_implementations as p; print(*p(), sep=":")
SECOND_TESTS ?= tests/test_copy.py tests/test_matmul.py tests/test_softmax.py tests/test_training.py opencl/tests

test-second:
	@$(PYTHON) scripts/setup --venv $(VENV) --opencl wheels
	@TORCHGRAFT_OPENCL_LIBRARY=$$($(BIN)/python -c '$(SECOND)') $(BIN)/python -m pytest $(SECOND_TESTS) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

bench: setup
	$(BIN)/python benchmarks/dispatch.py $(ARGS)
	$(BIN)/python benchmarks/ops.py $(ARGS)

# Broken links and missing parts of included files are errors.
docs: setup
	@$(BIN)/pip install -q -r docs/requirements.txt
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo build/docs/index.html

clean:
	rm -rf build opencl/build *.egg-info opencl/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -f torchgraft/*.so opencl/torchgraft_opencl/*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f $(VENV)/.stamp-*built $(VENV)/.stamp-*installed
