# `make` builds the command line tool; `make help` lists all targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
# Cargo uses every core by itself, and the targets share one PostgreSQL.
.NOTPARALLEL:

# Runs a command with a private PostgreSQL, which is installed if there is none and stopped afterwards.
WITH_POSTGRES := scripts/postgres with target/postgres --

# Every Rust file: `cargo fmt` does not find modules that a macro declares. `wildcard` leaves out files that are deleted but
# not yet committed. Without git (a source archive) it is every file below crates/.
RUST_FILES = $(or $(wildcard $(shell git ls-files -co --exclude-standard '*.rs' 2>/dev/null || \
	find crates -name '*.rs')),$(error no Rust files found))

# The files of `make install`. DESTDIR is put before PREFIX, for packages. A BINARY that is given on the command line is
# installed without a build, because root may have no cargo. Everybody can read the files, whatever the umask: root's may be 077.
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
size: ## Show the cold build time, the size of the binary, and its largest groups of symbols
	@scripts/size

.PHONY: install
install: $(if $(filter file,$(origin BINARY)),build) ## Install the binary, completions and manual pages: PREFIX=/usr/local
	install -d "$(ROOT)/bin" "$(BASH_COMPLETIONS)" "$(ZSH_COMPLETIONS)" "$(FISH_COMPLETIONS)" "$(MAN_PAGES)"
	install -m 755 "$(BINARY)" "$(ROOT)/bin/fence"
	"$(BINARY)" completions bash >"$(BASH_COMPLETIONS)/fence"
	"$(BINARY)" completions zsh >"$(ZSH_COMPLETIONS)/_fence"
	"$(BINARY)" completions fish >"$(FISH_COMPLETIONS)/fence.fish"
	"$(BINARY)" man "$(MAN_PAGES)"
	chmod 644 "$(BASH_COMPLETIONS)/fence" "$(ZSH_COMPLETIONS)/_fence" "$(FISH_COMPLETIONS)/fence.fish" \
		"$(MAN_PAGES)"/fence.1 "$(MAN_PAGES)"/fence-*.1

.PHONY: uninstall
uninstall: ## Remove the files of `make install`; use the same PREFIX
	rm -f "$(ROOT)/bin/fence" "$(BASH_COMPLETIONS)/fence" "$(ZSH_COMPLETIONS)/_fence" \
		"$(FISH_COMPLETIONS)/fence.fish" "$(MAN_PAGES)"/fence.1 "$(MAN_PAGES)"/fence-*.1

# Six tests at a time, even on two cores, because many tests only wait for processes. PostgreSQL without fsync: the tests kill
# its processes, which it survives all the same, but not the machine; with fsync they take a quarter longer.
.PHONY: test
test: ## Run every test, against SQLite and a private PostgreSQL
	RUST_BACKTRACE=1 RUST_TEST_THREADS=6 POSTGRES_FSYNC=off $(WITH_POSTGRES) cargo test --workspace --locked

.PHONY: fmt
fmt: ## Format every Rust file
	@rustfmt --edition 2024 $(RUST_FILES)

.PHONY: check
check: ## Check everything: formatting, clippy, documentation, tests
	@rustfmt --edition 2024 --check $(RUST_FILES)
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	@$(MAKE) --no-print-directory test

.PHONY: bench
bench: ## Run the benchmarks; options go in ARGS: make bench ARGS="--quick"
	$(WITH_POSTGRES) cargo run --release --locked -p fencepost-bench -- $(ARGS)

.PHONY: fuzz
fuzz: ## Feed the server's OpenAPI document to schemathesis (from PyPI, kept under target/)
	$(WITH_POSTGRES) scripts/fuzz

.PHONY: agents
agents: ## Drive the real Claude Code and Codex with a scripted model (from npm, kept under target/)
	@scripts/agents $(ARGS)

.PHONY: audit
audit: ## Check dependencies: licences, bans, sources, known vulnerabilities (cargo-deny, kept under target/); not part of `make check`
	@scripts/audit

.PHONY: soak
soak: ## Run the long tests
	$(WITH_POSTGRES) cargo test --workspace --release --locked soak -- --ignored --nocapture

# A debug build, because only debug builds have a clock that can jump.
.PHONY: chaos
chaos: ## Inject faults, and check the promises: make chaos ARGS="--seconds 600 --seed 7"
	cargo build --locked -p fencepost-chaos
	$(or $(CARGO_TARGET_DIR),target)/debug/chaos $(ARGS)

.PHONY: clean-postgres
clean-postgres: ## Stop the private PostgreSQL and delete it
	scripts/postgres rm target/postgres

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
