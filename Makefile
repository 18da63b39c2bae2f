# Every target makes the virtual environment and builds the package when that is needed; nothing else has to be installed.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
RUN := $(BIN)/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile
SOURCES := $(shell find csrc hostcann/csrc hostcann/src -name '*.cpp' -o -name '*.h')
HOSTCANN := hostcann/setup.py hostcann/pyproject.toml $(filter hostcann/%,$(SOURCES))
OPERATORS := $(filter csrc/emulated_operators/%.cpp,$(SOURCES))

FUZZ_SECONDS ?= 600
WORKERS ?= 2

# OpenMP threads spin at barriers by default: beside another busy process on two cores, training then crawls. Spinning
# for a moment (GOMP_SPINCOUNT) costs little there, and makes a demo that is alone faster.
export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-device test-rows test-shards test-drafts test-statistics build verify lint format \
  sanitize fuzz test-aarch64 mutation wheel bench bench-docs bench-npu bench-decoding bench-decoding-docs pictures docs clean

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 23

demo: export GOMP_SPINCOUNT ?= 1000
# glibc gives large tensors back to the system with each step of the training, and clearing new pages takes long.
demo: export MALLOC_MMAP_MAX_ ?= 0
demo: export MALLOC_TRIM_THRESHOLD_ ?= 4294967296
demo: $(BIN)/.built  ## generate text with a language model on the CPU and on npu:0, emulated where there is none
	$(RUN) examples/demo.py

# Tests run in a random order, whose seed the first lines name; a skip counts as a failure (conftest.py).
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --randomly-dont-reset-seed --numprocesses $(WORKERS) --dist worksteal

# Empty: modules are kept compiled, as tests start Python often.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: lint  ## linters and the tests that a person waits for, in WORKERS (2) processes: minutes
	$(PYTEST) --durations 25 -m "not long"

test-all: lint  ## linters and all tests, those marked long too: many minutes
	$(PYTEST) --durations 25

test-statistics: $(BIN)/.tools  ## the gates of the sampling layer with few draws and with many: some minutes
	$(PYTEST) tests/statistics

# What is made of torch's operators, on a device that torch has here beside the CPU: cuda, say.
DEVICE ?= cuda
test-device: $(BIN)/.tools  ## the tests of the layers, the operators and the adapters on DEVICE (cuda)
	ASCEND_SAMPLE_TEST_DEVICE=$(DEVICE) $(PYTEST) --allow-skips -k $(DEVICE) \
	  tests/sampling tests/operators tests/decoding tests/integrations

build: $(BIN)/.built  ## the virtual environment with the package in it

verify: $(BIN)/.built  ## 20,000 rows of parity of each operator, on the CPU and on the emulated NPU
	for operator in top_k_top_p_sample top_k_top_p_sample_v2 apply_top_k_top_p; do \
	  $(RUN) -m ascend_sample verify --operator $$operator --device cpu --rows 20000 && \
	  $(BIN)/hostcann run $(RUN) -m ascend_sample verify --operator $$operator \
	    --device npu --rows 20000 || exit 1; \
	done

lint: $(BIN)/.tools  ## ruff, mypy, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(SOURCES)

format: $(BIN)/.tools  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)

sanitize: $(BIN)/.tools  ## hostcann, the binding and the CPU kernel under AddressSanitizer and UBSan; the kernel under TSan too
	$(RUN) tests/conformance/run_sanitized.py --binding
	$(RUN) tests/cpu/run_sanitized.py

fuzz: $(BIN)/.tools  ## random rows through the CPU kernel under AddressSanitizer and UBSan, for FUZZ_SECONDS (600)
	$(RUN) tests/cpu/run_fuzz.py --seconds $(FUZZ_SECONDS)

test-aarch64: $(BIN)/.tools  ## the CPU kernel's aarch64 code, cross-compiled, under qemu: bit for bit what it is here
	$(RUN) tests/cpu/run_aarch64.py

mutation: $(BIN)/.tools  ## plant faults in WORKERS (2) copies of the sources and see that the tests catch each: hours; an interrupted run goes on where it was
	$(RUN) -m tests.mutation.run --copies $(WORKERS)

wheel: $(BIN)/.tools  ## a wheel that needs no compiler, with a core for each torch since 2.7: build/wheel; minutes, 5 GB
	$(RUN) csrc/wheel.py

test-rows: $(BIN)/.tools  ## 1,000,000 rows of the sampling layer beside the float64 reference, and 100,000 on the emulated NPU
	$(RUN) tests/sampling/run_rows.py --rows 1000000 --workers $(WORKERS)
	$(BIN)/hostcann run $(RUN) tests/sampling/run_rows.py --device npu --rows 100000

test-shards: $(BIN)/.tools  ## 1,000,000 rows split over 1 to 8 simulated ranks, and 100,000 places of drafts, 10,000 over processes of gloo, 1,000 and more over HCCL: hours
	$(RUN) tests/sampling/vocabulary_parallel/run_split_rows.py --rows 1000000 --workers $(WORKERS)
	$(RUN) tests/sampling/vocabulary_parallel/run_split_rows.py --rows 100000 --drafts --workers $(WORKERS)
	$(RUN) tests/sampling/vocabulary_parallel/run_split_rows.py --rows 10000 --gloo 3
	$(BIN)/hostcann run --strict $(RUN) -m torch.distributed.run --standalone \
	  --nproc_per_node=2 tests/sampling/vocabulary_parallel/hccl_ranks.py --rows 1000
	$(BIN)/hostcann run --strict --stream-mode lazy --without aclnnTopKTopPSampleV2 $(RUN) \
	  -m torch.distributed.run --standalone --nproc_per_node=2 tests/sampling/vocabulary_parallel/hccl_ranks.py --rows 200

test-drafts: $(BIN)/.tools  ## 100,000 random texts with drafts beside the same texts without, and 2,000 on the emulated NPU
	$(RUN) tests/sampling/run_drafts.py --texts 100000 --workers $(WORKERS)
	$(BIN)/hostcann run $(RUN) tests/sampling/run_drafts.py --device npu --texts 2000

bench: $(BIN)/.tools  ## time the CPU kernel beside its peers and beside one read of its input: some minutes
	$(RUN) -m benchmarks prepare
	env -u OMP_WAIT_POLICY $(RUN) -m benchmarks

bench-docs: $(BIN)/.tools  ## take the last run of `make bench` into docs/performance.md
	$(RUN) -m benchmarks publish

bench-npu: $(BIN)/.tools  ## device memory and host time of a call beside torch_npu's built-in, on the emulated NPU
	$(BIN)/hostcann run $(RUN) benchmarks/npu_call.py

bench-decoding: $(BIN)/.tools  ## speculative sampling and beam search; trains a draft and a target on the first run: minutes
	env -u OMP_WAIT_POLICY $(RUN) -m benchmarks.speculative
	env -u OMP_WAIT_POLICY $(RUN) -m benchmarks.beam_search

bench-decoding-docs: $(BIN)/.tools  ## take the last run of `make bench-decoding` into docs/decoding.md
	$(RUN) -m benchmarks.decoding_docs

pictures: $(BIN)/.tools  ## the pictures of the documentation
	$(RUN) docs/pictures/make.py

docs: $(BIN)/.docs  ## the documentation as a site, with what the examples print: build/site/html/index.html
	$(RUN) docs/site/make.py

clean:  ## remove what was built
	rm -rf build dist ascend_sample.egg-info hostcann/build hostcann/src/*.egg-info hostcann/src/hostcann/home $(BIN)/.built $(BIN)/.docs
	find ascend_sample -name '*.so' -delete

$(BIN)/.requirements: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.txt
	touch $@

$(BIN)/.tools: requirements-dev.txt | $(BIN)/.built
	$(INSTALL) -r requirements-dev.txt
	touch $@

$(BIN)/.docs: docs/site/requirements.txt | $(BIN)/.tools
	$(INSTALL) -r docs/site/requirements.txt
	touch $@

$(BIN)/.built: $(BIN)/.requirements setup.py pyproject.toml csrc/cpu/flags.json $(HOSTCANN) $(SOURCES)
	@echo "compiling what has changed: two to three minutes on two cores for all of it"
	$(INSTALL) --no-build-isolation --no-deps -e . -e ./hostcann
	$(BIN)/hostcann add-operators ascend_sample $(OPERATORS)
	touch $@
