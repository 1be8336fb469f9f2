# `make` builds the command line tool; `make help` lists what else there is.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
# Cargo uses every core by itself, and the targets share one PostgreSQL.
.NOTPARALLEL:

# Runs what follows with a private PostgreSQL (installed if there is none) and stops it after.
WITH_POSTGRES := scripts/postgres with target/postgres --

# Every Rust file, because some modules are declared by a macro, where `cargo fmt` does not find them.
# `wildcard` leaves out what is deleted but not yet committed; without git (a source archive) all are taken.
RUST_FILES = $(or $(wildcard $(shell git ls-files -co --exclude-standard '*.rs' 2>/dev/null || \
	find crates -name '*.rs')),$(error no Rust files found))

.PHONY: build
build: ## Build the command line tool (the default)
	cargo build --release -p fencepost-cli
	@echo "The binary is $${CARGO_TARGET_DIR:-target}/release/fence"

# Four tests at a time, also on two cores: many of them wait for processes, and do nothing meanwhile.
.PHONY: test
test: ## Run every test, against SQLite and a private PostgreSQL
	RUST_BACKTRACE=1 RUST_TEST_THREADS=4 $(WITH_POSTGRES) cargo test --workspace --locked

.PHONY: fmt
fmt: ## Format every Rust file
	@rustfmt --edition 2024 $(RUST_FILES)

.PHONY: check
check: ## All that must pass: formatting, clippy, tests
	@rustfmt --edition 2024 --check $(RUST_FILES)
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@$(MAKE) --no-print-directory test

.PHONY: bench
bench: ## Measure; options go in ARGS: make bench ARGS="--quick"
	$(WITH_POSTGRES) cargo run --release --locked -p fencepost-bench -- $(ARGS)

.PHONY: fuzz
fuzz: ## Feed the server's OpenAPI document to schemathesis (from PyPI, kept under target/)
	$(WITH_POSTGRES) scripts/fuzz

.PHONY: soak
soak: ## Run the long tests
	$(WITH_POSTGRES) cargo test --workspace --release --locked soak -- --ignored --nocapture

.PHONY: clean-postgres
clean-postgres: ## Stop the private PostgreSQL and delete it
	scripts/postgres rm target/postgres

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
