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

# What `make install` installs, and where: DESTDIR goes before PREFIX, for packages. Named on the command line, BINARY is
# installed as it is, and nothing is built: for root, who may have no cargo.
PREFIX = /usr/local
BINARY = $(or $(CARGO_TARGET_DIR),target)/release/fence
ROOT = $(DESTDIR)$(PREFIX)
BASH_COMPLETIONS = $(ROOT)/share/bash-completion/completions
ZSH_COMPLETIONS = $(ROOT)/share/zsh/site-functions
FISH_COMPLETIONS = $(ROOT)/share/fish/vendor_completions.d
MAN_PAGES = $(ROOT)/share/man/man1

.PHONY: build
build: ## Build the command line tool (the default)
	@scripts/size build cargo build --release --locked -p fencepost-cli
	@echo "The binary is $(BINARY)"

.PHONY: size
size: ## Show how heavy the binary is: cold build time, size, the largest groups of symbols
	@scripts/size

.PHONY: install
install: $(if $(filter file,$(origin BINARY)),build) ## Install the binary, completions and manual pages: PREFIX=/usr/local
	install -d "$(ROOT)/bin" "$(BASH_COMPLETIONS)" "$(ZSH_COMPLETIONS)" "$(FISH_COMPLETIONS)"
	install -m 755 "$(BINARY)" "$(ROOT)/bin/fence"
	"$(BINARY)" completions bash >"$(BASH_COMPLETIONS)/fence"
	"$(BINARY)" completions zsh >"$(ZSH_COMPLETIONS)/_fence"
	"$(BINARY)" completions fish >"$(FISH_COMPLETIONS)/fence.fish"
	"$(BINARY)" man "$(MAN_PAGES)"

.PHONY: uninstall
uninstall: ## Remove what `make install` installed, from the same PREFIX
	rm -f "$(ROOT)/bin/fence" "$(BASH_COMPLETIONS)/fence" "$(ZSH_COMPLETIONS)/_fence" \
		"$(FISH_COMPLETIONS)/fence.fish" "$(MAN_PAGES)"/fence.1 "$(MAN_PAGES)"/fence-*.1

# Four tests at a time, also on two cores: many of them wait for processes, and do nothing meanwhile.
.PHONY: test
test: ## Run every test, against SQLite and a private PostgreSQL
	RUST_BACKTRACE=1 RUST_TEST_THREADS=4 $(WITH_POSTGRES) cargo test --workspace --locked

.PHONY: fmt
fmt: ## Format every Rust file
	@rustfmt --edition 2024 $(RUST_FILES)

.PHONY: check
check: ## All that must pass: formatting, clippy, documentation, tests
	@rustfmt --edition 2024 --check $(RUST_FILES)
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	@$(MAKE) --no-print-directory test

.PHONY: bench
bench: ## Measure; options go in ARGS: make bench ARGS="--quick"
	$(WITH_POSTGRES) cargo run --release --locked -p fencepost-bench -- $(ARGS)

.PHONY: fuzz
fuzz: ## Feed the server's OpenAPI document to schemathesis (from PyPI, kept under target/)
	$(WITH_POSTGRES) scripts/fuzz

.PHONY: audit
audit: ## Check dependencies: licences, bans, sources, known vulnerabilities (cargo-deny, kept under target/)
	@scripts/audit

.PHONY: soak
soak: ## Run the long tests
	$(WITH_POSTGRES) cargo test --workspace --release --locked soak -- --ignored --nocapture

# A debug build: the clock that jumps is in no other.
.PHONY: chaos
chaos: ## Break things for a while and check what was promised: make chaos ARGS="--seconds 600 --seed 7"
	cargo build --locked -p fencepost-chaos
	$(or $(CARGO_TARGET_DIR),target)/debug/chaos $(ARGS)

.PHONY: clean-postgres
clean-postgres: ## Stop the private PostgreSQL and delete it
	scripts/postgres rm target/postgres

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
