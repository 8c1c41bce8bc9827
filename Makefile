# A thin door: the work is done by CMake presets (CMakePresets.json) and scripts/.
# `make help` says what there is.

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Tests start ranks of their own, so more than two at a time only slow each other down.
TEST_JOBS ?= 2
PREFIX ?= /usr/local
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := build
.PHONY: build run demo demo-failure test check soak bench nccl install clean distclean format setup help

build: ## build the release into build/
	@mkdir -p build
	@cmake --preset release >build/configure-release.log 2>&1 || \
	    { cat build/configure-release.log; \
	      echo "make: configuring failed (above); 'make setup' installs what is missing" >&2; exit 1; }
	@cmake --build --preset release -j $(JOBS)

run: ## install what is missing, build, verify and time every operation between two ranks
	@scripts/setup.sh build
	@cmake --preset release
	@cmake --build --preset release -j $(JOBS) --target spark-comm
	build/spark-comm perf -n 2 --op all

demo: ## a language model over two ranks (RANKS, PROMPT); fetches it once (93 MB)
	@scripts/setup.sh build
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS) --target spark-comm llm llm_random_model >/dev/null
	@scripts/demo.sh build

demo-failure: ## the same, with a rank killed in the middle
	@scripts/setup.sh build
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS) --target spark-comm llm llm_random_model >/dev/null
	@scripts/demo.sh build --failure

test: ## install what is missing, build, run the tests of the release
	@scripts/setup.sh test
	@cmake --preset release -D SPARK_COMM_TESTS=ON
	@cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(TEST_JOBS)

check: ## sanitizers, fuzzing, aarch64, static analysis, models
	@scripts/setup.sh check
	@JOBS=$(JOBS) TEST_JOBS=$(TEST_JOBS) scripts/check.sh

soak: ## long fuzzing, fault soaks, loops of thousands (hours)
	@test -x scripts/soak.sh || { echo "make: there is no scripts/soak.sh yet" >&2; exit 1; }
	@scripts/setup.sh check
	@scripts/soak.sh

bench: ## build the benchmarks into build/bench
	@cmake --preset release
	@cmake --build --preset release -j $(JOBS) --target benchmarks

install: build ## install under PREFIX (/usr/local); DESTDIR is respected
	cmake --install build --prefix "$(PREFIX)"

nccl: build ## fetch NCCL of several versions (1 GB) and say what each offers
	scripts/nccl_versions.sh build

clean: ## remove what was built
	@if [ -d build ]; then \
	    find build -mindepth 1 -maxdepth 1 ! -name aarch64-sysroot -exec rm -rf {} +; fi

distclean: ## remove all of build/, the unpacked aarch64 libraries too
	@rm -rf build

format: ## format the C sources with clang-format
	@find include src cli tests examples bench cmake \( -name '*.c' -o -name '*.h' \) \
	    -exec clang-format -i {} + 2>/dev/null || true

setup: ## install what the build and the tests need
	@scripts/setup.sh test

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
