# The commands of this repository; `make help` lists them.
# A machine needs Rust (with cargo), Python 3 and make. Nothing else is asked for:
# what makes things faster or stricter (cargo-nextest, cargo-deny, torch) is used
# where it is found and named where it is not.

CARGO ?= cargo
PYTHON ?= python3
# A Python that has torch, for the comparison in `make bench`.
TORCH ?=

BELADY := $(or $(CARGO_TARGET_DIR),target)/release/belady
PICTURE_RUN := scenarios/hdmlp-4.toml --set cluster.source.sharing=aggregate

.DEFAULT_GOAL := help
.PHONY: help build demo test lint bench picture clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## The release binary, target/release/belady
	$(CARGO) build --release --package belady

demo: build ## Simulate every policy on one cluster; writes out/demo.html
	@mkdir -p out
	$(BELADY) simulate $(PICTURE_RUN) --html out/demo.html
	@echo "Open out/demo.html in a browser: where the time goes, how steady batches are, what the source sees."

test: ## All tests, the documentation's examples among them
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo "$(CARGO) nextest run --workspace" && $(CARGO) nextest run --workspace; \
	else \
		echo "cargo-nextest is not installed; using cargo test" && $(CARGO) test --workspace --all-targets; \
	fi
	$(CARGO) test --workspace --doc

lint: ## Format, clippy without warnings, and cargo-deny where it is installed
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		echo "$(CARGO) deny --offline check licenses bans sources" && \
		$(CARGO) deny --offline check licenses bans sources; \
	else \
		echo "cargo-deny is not installed, so licences and bans were not checked (cargo install --locked cargo-deny)"; \
	fi

bench: build ## Speed and memory beside their targets; TORCH=python-with-torch adds torch's shuffle
	$(CARGO) build --release --package belady-control --example shuffle_speed
	$(CARGO) build --release --package slowfs --package peers
	$(CARGO) build --release --package belady-engine --example ram_speed --example soak
	$(PYTHON) bench/run.py $(if $(TORCH),--torch $(TORCH))
	$(PYTHON) bench/engine.py

picture: build ## Draw the README's picture anew
	@mkdir -p out
	$(BELADY) simulate $(PICTURE_RUN) --html out/picture.html > out/picture.txt
	$(PYTHON) scripts/picture.py out/picture.html docs/img/hdmlp-4.svg

clean: ## Remove what was built and written
	$(CARGO) clean
	rm -rf out
