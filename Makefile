# `make help` lists the targets.
# A machine needs Rust (with cargo), gcc, Python 3.11 or later with venv, and make. cmake and nasm,
# which build libjpeg-turbo, are installed on Debian if make is run by root, and so are Open MPI and
# libclang for the tests of peers over MPI (without them those are left out). Everything else is optional:
# cargo-nextest, cargo-deny and torch are used where they are found. Only `make fuzz` needs more.
#
# `make test` and `make lint` install what Python tests need (torch, JAX, TensorFlow: some gigabytes) into a
# cache directory, once for all checkouts: see scripts/python_env.py. `make demo` needs only NumPy.

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
RUFF = $(shell $(PYTHON) scripts/python_env.py --lint --where)/bin/ruff
PYTHON_CODE := python bench scripts fuzz

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prerequisites: ## Install cmake and nasm where that is possible (Debian, as root); takes no time if they are there
	@scripts/prerequisites.sh

build: prerequisites ## Build the release binary, target/release/belady
	$(CARGO) build --release --package belady

wheel: prerequisites environment ## Build the Python package as a wheel, in dist
	$(PYTHON) scripts/wheel_backend.py
	$(MATURIN) build --release --auditwheel check --out dist --interpreter $(VENV)/bin/python

environment: ## Install the Python packages of the tests, once for all checkouts (8 GB)
	@$(PYTHON) scripts/python_env.py

# In the profile of the tests, whose crates are built anyhow.
develop: prerequisites environment ## Install the package into .venv, editable
	$(PYTHON) scripts/wheel_backend.py --profile dev
	$(MATURIN) develop --profile dev

# In a profile that compiles fast, and in an environment with torch only where torch is installed already.
DEMO := $(or $(CARGO_TARGET_DIR),target)/demo

demo: prerequisites ## Train from a slow source, with torch's DataLoader or a plain reader, and with belady; writes out/demo.html
	@$(PYTHON) scripts/python_env.py --demo
	PYO3_PYTHON=$(PYTHON) $(CARGO) build --profile demo --package belady-python --package slowfs
	@for packages in .venv-demo/lib/python3*/site-packages; do \
		rm -rf $$packages/belady && cp -r python/belady $$packages/ && \
		cp $(DEMO)/lib_native.so $$packages/belady/_native.abi3.so || exit 1; \
	done
	.venv-demo/bin/python python/demo --slowfs $(DEMO)/slowfs

# Where a test that cannot run on this machine says so.
test: export BELADY_TEST_NOT_RUN := $(CURDIR)/out/not-run.txt
test: ## Run all tests, of Rust and of Python; the last lines say which did not run, and why
	@$(PYTHON) scripts/not_run.py --begin
	@$(MAKE) --no-print-directory --keep-going test-rust test-mpi test-python; status=$$?; \
		$(PYTHON) scripts/not_run.py && exit $$status

# The native module has no tests of its own in Rust: Python's load it.
RUST_TESTS := --workspace --exclude belady-python

test-rust: prerequisites ## Run the Rust tests: units, properties, examples in documentation, explored schedules
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo "$(CARGO) nextest run $(RUST_TESTS)" && $(CARGO) nextest run --no-fail-fast $(RUST_TESTS) && \
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
test-mpi: prerequisites ## Run the tests of peers over MPI, in processes of mpirun
	@if scripts/prerequisites.sh mpi; then \
		$(MAKE) --no-print-directory test-mpi-rust test-mpi-python; \
	else \
		echo "so peers over MPI are not tested"; \
		printf '%s\t%s\n' "no MPI" "make test-mpi: all of its tests" >> $${BELADY_TEST_NOT_RUN:-/dev/null}; \
	fi

test-mpi-rust: ## The Rust part of test-mpi
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo "$(CARGO) nextest run $(MPI_TESTS) --lib --test mpi -E 'binary(mpi) | test(mpi::)'" && \
		$(CARGO) nextest run $(MPI_TESTS) --lib --test mpi -E 'binary(mpi) | test(mpi::)'; \
	else \
		echo "$(CARGO) test $(MPI_TESTS) --lib mpi::" && $(CARGO) test $(MPI_TESTS) --lib mpi:: && \
		echo "$(CARGO) test $(MPI_TESTS) --test mpi" && $(CARGO) test $(MPI_TESTS) --test mpi; \
	fi

# The wheel of docs/mpi.md, in the profile of the tests.
test-mpi-python: environment ## The Python part of test-mpi
	@$(PYTHON) scripts/python_env.py --mpi
	rm -rf dist/mpi
	$(PYTHON) scripts/wheel_backend.py --profile dev --features mpi
	$(MATURIN) build --profile dev --features mpi --out dist/mpi --interpreter .venv-mpi/bin/python
	$(PACKAGES)/bin/python -m pip --python .venv-mpi/bin/python install \
		--disable-pip-version-check --quiet --no-deps --force-reinstall dist/mpi/*.whl
	.venv-mpi/bin/python -m pytest python/tests/over_mpi.py

test-python: develop ## Run the Python tests, with a real torch, JAX and TensorFlow
	$(PYTEST) python/tests

# Versions or executables, in place of all of 3.11 to 3.14 that are found.
PYTHONS ?=

test-pythons: develop ## Run the Python tests with every Python of 3.11 to 3.14 that is found; PYTHONS=3.13 for some of them
	rm -rf dist/pythons
	$(MATURIN) build --profile dev --out dist/pythons --interpreter $(VENV)/bin/python
	$(PYTHON) scripts/pythons.py dist/pythons/*.whl $(addprefix --python ,$(PYTHONS))

lint: prerequisites environment ## Check format, clippy, ruff, mypy, structure, language, rustdoc, published figures, and cargo-deny where it is installed
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
	@$(PYTHON) scripts/python_env.py --lint
	$(RUFF) check $(PYTHON_CODE)
	$(RUFF) format --check python
	$(PYTHON) scripts/check_structure.py
	$(PYTHON) scripts/check_language.py
	$(PYTHON) bench/summary.py --check > /dev/null
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		echo "$(CARGO) deny --offline check licenses bans sources" && \
		$(CARGO) deny --offline check licenses bans sources; \
	else \
		echo "cargo-deny is not installed, so licences and bans were not checked (cargo install --locked cargo-deny)"; \
	fi

bench: build ## Measure speed and memory beside targets; TORCH=python-with-torch adds torch's shuffle
	$(CARGO) build --release --package belady-control --example shuffle_speed
	$(CARGO) build --release --package slowfs --package baselines
	$(CARGO) build --release --package belady-engine --example ram_speed --example soak --example memory
	$(CARGO) build --release --package belady-transform --example bare_loop
	$(CARGO) build --release --package belady-peer --example network_speed
	$(PYTHON) bench/run.py $(if $(TORCH),--torch $(TORCH))
	$(PYTHON) bench/engine.py
	$(PYTHON) bench/network.py
	$(MAKE) bench-environment
	$(PYTHON) bench/python.py
	$(PYTHON) bench/balance.py
	$(PYTHON) bench/images.py
	$(PYTHON) bench/transparent.py

bench-cluster: prerequisites environment ## Measure four nodes in network namespaces as one cache; needs root
	$(CARGO) build --release --package slowfs --package baselines
	@if scripts/prerequisites.sh mpi; then \
		echo "$(CARGO) build --release --package belady --features mpi" && \
		$(CARGO) build --release --package belady --features mpi; \
	else \
		echo "$(CARGO) build --release --package belady" && $(CARGO) build --release --package belady; \
	fi
	$(PYTHON) bench/cluster.py

BENCH_PACKAGES = $(shell $(PYTHON) scripts/python_env.py --bench --where)

bench-environment: prerequisites ## The package as users install it, beside other loaders, into .venv-bench
	$(PYTHON) scripts/python_env.py --bench
	rm -rf dist/bench
	$(PYTHON) scripts/wheel_backend.py
	$(MATURIN) build --release --out dist/bench --interpreter $(VENV)/bin/python
	$(BENCH_PACKAGES)/bin/python -m pip --python .venv-bench/bin/python install \
		--disable-pip-version-check --quiet --no-deps --force-reinstall dist/bench/*.whl

mutants: prerequisites ## Check whether tests notice small changes of the code; needs cargo-mutants, writes out/mutants.json
	@if ! $(CARGO) mutants --version >/dev/null 2>&1; then \
		echo "make mutants needs cargo-mutants: cargo install --locked cargo-mutants" >&2; \
		exit 1; \
	fi
	$(PYTHON) scripts/mutants.py

# libFuzzer needs flags that stable Rust has only for itself.
fuzz: export RUSTC_BOOTSTRAP := 1
fuzz: prerequisites ## Run every fuzz target, RUNS=100000 executions each; needs cargo-fuzz
	@if ! $(CARGO) fuzz --version >/dev/null 2>&1; then \
		echo "make fuzz needs cargo-fuzz: cargo install --locked cargo-fuzz" >&2; \
		exit 1; \
	fi
	@for target in $$($(CARGO) fuzz list); do \
		mkdir -p out/fuzz/$$target && echo "== $$target" && \
		$(CARGO) fuzz run $$target out/fuzz/$$target fuzz/corpus/$$target -- -runs=$(RUNS) || exit 1; \
	done

picture: build ## Draw the README's picture of policies
	@mkdir -p out
	$(BELADY) simulate $(PICTURE_RUN) --html out/picture.html > out/picture.txt
	$(PYTHON) scripts/picture.py out/picture.html docs/img/hdmlp-4.svg

clean: ## Remove what was built and written
	$(CARGO) clean
	rm -rf out dist $(VENV) .venv-demo .venv-bench .venv-mpi .venv-3.*
