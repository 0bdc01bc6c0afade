# The commands of this repository; `make help` lists them.
# A machine needs Rust (with cargo), gcc, Python 3.11 or later with venv, and make. cmake and nasm,
# which build libjpeg-turbo, are installed on Debian if make is run by root, and so are Open MPI and
# libclang for the tests of peers over MPI (without them those are left out). Nothing else
# is asked for: what makes things faster or stricter (cargo-nextest, cargo-deny, torch) is used
# where it is found and named where it is not. Only `make fuzz` needs more.
#
# `make test`, `make lint` and `make demo` install what Python tests need (torch, JAX, TensorFlow: some
# gigabytes) into a cache directory, once for all checkouts: see scripts/python_env.py.

CARGO ?= cargo
PYTHON ?= python3
# A Python that has torch, for the comparison in `make bench`.
TORCH ?=
# Executions of each target in `make fuzz`.
RUNS ?= 100000

BELADY := $(or $(CARGO_TARGET_DIR),target)/release/belady
PICTURE_RUN := scenarios/hdmlp-4.toml --set cluster.source.sharing=aggregate

SHUTTLE := --package belady-data --features shuttle --test stage_shuttle --test tier_shuttle
BOARD_SHUTTLE := --package belady-board --features shuttle --lib

.DEFAULT_GOAL := help
.PHONY: help prerequisites build wheel environment develop demo test test-rust test-mpi test-mpi-rust test-mpi-python test-python test-pythons lint bench bench-cluster bench-environment fuzz mutants picture clean

# The checkout's own environment, which sees the packages of the shared one.
VENV := .venv
PACKAGES = $(shell $(PYTHON) scripts/python_env.py --where)
MATURIN = env -u CONDA_PREFIX VIRTUAL_ENV=$(CURDIR)/$(VENV) $(PACKAGES)/bin/maturin
PYTEST := $(VENV)/bin/python -m pytest

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# It looks whether there is anything to do, which takes no time.
prerequisites:
	@scripts/prerequisites.sh

build: prerequisites ## The release binary, target/release/belady
	$(CARGO) build --release --package belady

wheel: prerequisites environment ## The Python package as a wheel, in dist
	$(MATURIN) build --release --auditwheel check --out dist --interpreter $(VENV)/bin/python

# So does this.
environment:
	@$(PYTHON) scripts/python_env.py

# In the profile of the tests, whose crates are built anyhow.
develop: prerequisites environment ## Install the package into .venv, as it lies here
	$(MATURIN) develop --profile dev

demo: build environment ## Train from a slow source, with torch's DataLoader and with belady; writes out/demo.html
	$(CARGO) build --release --package slowfs
	$(MATURIN) develop --release
	@printf '\n%s\n' "== Simulated: every policy, 1.2 TB on four nodes that can hold half of it"
	@mkdir -p out
	$(BELADY) simulate $(PICTURE_RUN) --html out/simulated.html
	@printf '\n'
	$(VENV)/bin/python python/demo --slowfs $(dir $(BELADY))slowfs

# Where a test that cannot run on this machine says so.
test: export BELADY_TEST_NOT_RUN := $(CURDIR)/out/not-run.txt
test: ## All tests, of Rust and of Python; its last lines say which did not run, and why
	@$(PYTHON) scripts/not_run.py --begin
	@$(MAKE) --no-print-directory test-rust test-mpi test-python; status=$$?; \
		$(PYTHON) scripts/not_run.py && exit $$status

# The native module has no tests of its own in Rust: Python's load it.
RUST_TESTS := --workspace --exclude belady-python

test-rust: prerequisites ## Units, properties, documentation's examples, explored schedules
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo "$(CARGO) nextest run $(RUST_TESTS)" && $(CARGO) nextest run $(RUST_TESTS) && \
		echo "$(CARGO) nextest run $(SHUTTLE)" && $(CARGO) nextest run $(SHUTTLE) && \
		echo "$(CARGO) nextest run $(BOARD_SHUTTLE)" && $(CARGO) nextest run $(BOARD_SHUTTLE); \
	else \
		echo "cargo-nextest is not installed; using cargo test" && $(CARGO) test $(RUST_TESTS) --all-targets && \
		echo "$(CARGO) test $(SHUTTLE)" && $(CARGO) test $(SHUTTLE) && \
		echo "$(CARGO) test $(BOARD_SHUTTLE)" && $(CARGO) test $(BOARD_SHUTTLE); \
	fi
	$(CARGO) test $(RUST_TESTS) --doc

MPI_TESTS := --package belady-peer --features mpi

# A machine that has no MPI, and cannot install it, says so and tests everything else.
test-mpi: prerequisites ## Peers over MPI, in processes of mpirun, of Rust and of Python
	@if scripts/prerequisites.sh mpi; then \
		$(MAKE) --no-print-directory test-mpi-rust test-mpi-python; \
	else \
		echo "so peers over MPI are not tested"; \
		printf '%s\t%s\n' "no MPI" "make test-mpi: all of its tests" >> $${BELADY_TEST_NOT_RUN:-/dev/null}; \
	fi

test-mpi-rust:
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo "$(CARGO) nextest run $(MPI_TESTS) --lib --test mpi -E 'binary(mpi) | test(mpi::)'" && \
		$(CARGO) nextest run $(MPI_TESTS) --lib --test mpi -E 'binary(mpi) | test(mpi::)'; \
	else \
		echo "$(CARGO) test $(MPI_TESTS) --lib mpi::" && $(CARGO) test $(MPI_TESTS) --lib mpi:: && \
		echo "$(CARGO) test $(MPI_TESTS) --test mpi" && $(CARGO) test $(MPI_TESTS) --test mpi; \
	fi

# The wheel of docs/mpi.md, in the profile of the tests.
test-mpi-python: environment
	@$(PYTHON) scripts/python_env.py --mpi
	rm -rf dist/mpi
	$(MATURIN) build --profile dev --features mpi --out dist/mpi --interpreter .venv-mpi/bin/python
	$(PACKAGES)/bin/python -m pip --python .venv-mpi/bin/python install \
		--disable-pip-version-check --quiet --no-deps --force-reinstall dist/mpi/*.whl
	.venv-mpi/bin/python -m pytest python/tests/over_mpi.py

test-python: develop ## The Python package, with a real torch, JAX and TensorFlow
	$(PYTEST) python/tests

# Versions or executables, in place of all of 3.11 to 3.14 that are found.
PYTHONS ?=

test-pythons: develop ## The Python tests with every Python of 3.11 to 3.14 that is found; PYTHONS=3.13 for some of them
	rm -rf dist/pythons
	$(MATURIN) build --profile dev --out dist/pythons --interpreter $(VENV)/bin/python
	$(PYTHON) scripts/pythons.py dist/pythons/*.whl $(addprefix --python ,$(PYTHONS))

lint: prerequisites environment ## Format, clippy, mypy, a free-threaded build, and cargo-deny where it is installed
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@if scripts/prerequisites.sh mpi; then \
		echo "$(CARGO) clippy $(MPI_TESTS) --package belady-python --all-targets -- -D warnings" && \
		$(CARGO) clippy $(MPI_TESTS) --package belady-python --all-targets -- -D warnings; \
	else \
		echo "so clippy has not seen peers over MPI"; \
	fi
	@# For a free-threaded Python, of which this file tells PyO3 what it would ask it.
	PYO3_CONFIG_FILE=$(CURDIR)/crates/python/free-threaded.txt $(CARGO) check --package belady-python
	$(VENV)/bin/python -m mypy --strict --package belady
	$(PYTHON) bench/summary.py --check > /dev/null
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		echo "$(CARGO) deny --offline check licenses bans sources" && \
		$(CARGO) deny --offline check licenses bans sources; \
	else \
		echo "cargo-deny is not installed, so licences and bans were not checked (cargo install --locked cargo-deny)"; \
	fi

bench: build ## Speed and memory beside their targets; TORCH=python-with-torch adds torch's shuffle
	$(CARGO) build --release --package belady-control --example shuffle_speed
	$(CARGO) build --release --package slowfs --package peers
	$(CARGO) build --release --package belady-engine --example ram_speed --example soak --example memory
	$(CARGO) build --release --package belady-transform --example bare_loop
	$(CARGO) build --release --package belady-peer --example network_speed
	$(PYTHON) bench/run.py $(if $(TORCH),--torch $(TORCH))
	$(PYTHON) bench/engine.py
	$(PYTHON) bench/network.py
	$(MAKE) bench-environment
	$(PYTHON) bench/python.py
	$(PYTHON) bench/images.py
	$(PYTHON) bench/transparent.py

bench-cluster: prerequisites environment ## Four nodes in network namespaces as one cache; needs root
	$(CARGO) build --release --package slowfs --package peers
	@if scripts/prerequisites.sh mpi; then \
		echo "$(CARGO) build --release --package belady --features mpi" && \
		$(CARGO) build --release --package belady --features mpi; \
	else \
		echo "$(CARGO) build --release --package belady" && $(CARGO) build --release --package belady; \
	fi
	$(PYTHON) bench/cluster.py

# The package as people install it, beside loaders of others.
BENCH_PACKAGES = $(shell $(PYTHON) scripts/python_env.py --bench --where)

bench-environment: prerequisites
	$(PYTHON) scripts/python_env.py --bench
	rm -rf dist/bench
	$(MATURIN) build --release --out dist/bench --interpreter $(VENV)/bin/python
	$(BENCH_PACKAGES)/bin/python -m pip --python .venv-bench/bin/python install \
		--disable-pip-version-check --quiet --no-deps --force-reinstall dist/bench/*.whl

mutants: prerequisites ## Whether tests notice changes of what decides, loads and keeps; needs cargo-mutants, writes out/mutants.json
	@if ! $(CARGO) mutants --version >/dev/null 2>&1; then \
		echo "make mutants needs cargo-mutants: cargo install --locked cargo-mutants" >&2; \
		exit 1; \
	fi
	$(PYTHON) scripts/mutants.py

fuzz: prerequisites ## Every fuzz target, RUNS=100000 executions each; needs nightly Rust and cargo-fuzz
	@if ! $(CARGO) +nightly fuzz --version >/dev/null 2>&1; then \
		echo "make fuzz needs nightly Rust and cargo-fuzz: rustup toolchain install nightly && cargo install --locked cargo-fuzz" >&2; \
		exit 1; \
	fi
	@for target in $$($(CARGO) +nightly fuzz list); do \
		mkdir -p out/fuzz/$$target && echo "== $$target" && \
		$(CARGO) +nightly fuzz run $$target out/fuzz/$$target fuzz/corpus/$$target -- -runs=$(RUNS) || exit 1; \
	done

picture: build ## Draw the README's picture anew
	@mkdir -p out
	$(BELADY) simulate $(PICTURE_RUN) --html out/picture.html > out/picture.txt
	$(PYTHON) scripts/picture.py out/picture.html docs/img/hdmlp-4.svg

clean: ## Remove what was built and written
	$(CARGO) clean
	rm -rf out dist $(VENV) .venv-bench .venv-mpi .venv-3.*
