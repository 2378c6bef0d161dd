# The two commands: `make demo` shows the product at work, `make test` proves it.
# Both start from a machine with Python 3.11 and make, and build their own .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv pip
export UV_CACHE_DIR ?= $(HOME)/.cache/uv
export UV_LINK_MODE ?= copy
# Tests start hundreds of processes: what the first compiles serves all.
unexport PYTHONDONTWRITEBYTECODE

# What does not depend on one another is made side by side: packages, linters, kernels.
MAKEFLAGS += --jobs=2

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all pytest check style types layers kernels programs docs wheel lock clean

help:
	@echo "make install   .venv with everything; then: . .venv/bin/activate"
	@echo "make demo      a building fire with real packets, with and without triage"
	@echo "make test      linters, types, layers, tests, documentation examples"
	@echo "make test-all  the same, with the slow experiments"
	@echo "make docs      the site of the documentation, in out/site"
	@echo "make wheel     dist/*.whl, tried in a clean environment with each extra"
	@echo "make programs  the eBPF programs from their C (needs clang-14), which are in the repository"
	@echo "make lock      renew the hash-pinned requirement files"
	@echo "make clean     remove what the other commands made"

# The pinned files name every package: nothing has to be looked up, and what was built once is not built again. A wheel
# of pyspark, which is half a gigabyte of archives, is made several times faster if nobody compresses it.
PINNED := $(UV) install --quiet --python $(BIN)/python --no-deps --require-hashes \
	--config-settings-package "pyspark:--build-option=bdist_wheel --compression=stored"

$(BIN)/uv: requirements/uv.txt
	$(PYTHON) -c 'import sys; sys.exit("TriageMQ needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

# The package itself is installed without dependencies: these come from the pinned files alone.
$(VENV)/lab: $(BIN)/uv requirements/build.txt requirements/lab.txt pyproject.toml
	$(PINNED) -r requirements/build.txt -r requirements/lab.txt
	$(UV) install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/test: $(VENV)/lab requirements/test.txt
	$(PINNED) -r requirements/test.txt
	@touch $@

# Real programs that tests run against. Without root, tests that need a missing one say so.
$(VENV)/debian: requirements/debian.txt | $(BIN)/uv
	sh requirements/debian.sh $<
	@touch $@

# `triage` is in .venv, which a shell does not know by itself.
GO_ON := @echo "to use triage in this shell: . $(BIN)/activate"

install: $(VENV)/lab
	$(GO_ON)

demo: $(VENV)/lab
	$(BIN)/triage demo
	$(GO_ON)

check: types style layers

# It takes longest and goes on beside the tests, of which some measure time.
types: $(VENV)/test
	nice $(BIN)/mypy

style: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: $(VENV)/test
	$(BIN)/lint-imports

# Once, before tests in many processes would each compile the same.
kernels: $(VENV)/lab
	$(BIN)/triage simulate examples/building-fire.yaml --publications 2000 >/dev/null
	$(BIN)/triage reproduce midas 8 --quick --seeds 1 --for 1 --in-process --out $(VENV)/kernels >/dev/null

test: TRIED := -m "not slow"
test test-all: style types pytest layers

pytest: kernels $(VENV)/debian $(VENV)/test
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=15 $(TRIED)

$(VENV)/docs: $(BIN)/uv requirements/docs.txt
	$(PINNED) -r requirements/docs.txt
	@touch $@

# The theme's makers announce on every run what comes after it.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/lab
	rm -rf dist
	$(BIN)/hatchling build -t wheel -d dist
	$(BIN)/python requirements/try_wheel.py $(BIN)/uv dist/*.whl

# Compiled eBPF programs are in the repository: who installs the package needs no compiler. A test compiles them anew.
programs: src/triagemq/network/linux/programs.o src/triagemq/lab/box/losing.o tests/live/up/losing_datagrams.o

%.o: %.c
	clang-14 -O2 -Wall -Wextra -Werror -target bpf -mcpu=v2 -fno-ident -fno-addrsig -I/usr/include/$(shell gcc -print-multiarch) -c $< -o $@

lock: $(BIN)/uv
	sh requirements/lock.sh $(BIN)/uv

clean:
	rm -rf $(VENV) out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
