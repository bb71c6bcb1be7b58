# The commands of the project. Each one sets the machine up first (cluster/setup.sh: idempotent, quick when all is there).
#
#   make demo                    corpus to trained, killed, resumed and exported model, in a few minutes
#   make demo CORPUS="a.txt b/"  the same with whatever `lambert prep` reads: files, folders, globs, URLs
#   make test                    formatting, lints, documentation and all tests but the long ones
#   make build                   the two programs, in target/release; manual pages and shell completions, in target/release/share
#   make check                   formatting, lints and documentation only
#   make audit                   licences, sources and known vulnerabilities of the dependencies (deny.toml); builds cargo-deny once
#   make book                    the pages of docs/ as a book, in target/book; builds mdbook once

SHELL := /bin/sh
CARGO := cargo
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
CORPUS ?=
# What the programs say they were built from: a coordinator refuses ranks of another commit.
export LAMBERT_GIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
DEMO ?= demo
# End-to-end tests wait more than they compute: one more of them at a time than there are processors.
export RUST_TEST_THREADS := $(or $(RUST_TEST_THREADS),$(shell expr $$(nproc) + 1))

# What `make audit` runs.
CARGO_DENY_VERSION := 0.20.2
CARGO_DENY := target/tools/bin/cargo-deny

# What `make book` runs.
MDBOOK_VERSION := 0.5.2
MDBOOK := target/tools/bin/mdbook

.PHONY: setup build demo test check audit book bench clean

setup:
	@sh cluster/setup.sh

build: setup
	$(CARGO) build --release --workspace --locked
	@# With CARGO_TARGET_DIR set, the programs are linked to where the documentation names them.
	@if [ -n "$(CARGO_TARGET_DIR)" ] && [ "$$(realpath "$(RELEASE)")" != "$$(realpath -m target/release)" ]; then \
		mkdir -p target/release && \
		for program in lambert lambert-worker; do ln -sf "$$(realpath $(RELEASE)/$$program)" target/release/$$program; done; \
	fi
	@# `cp -r target/release/share/. ~/.local/share/` installs the manual pages and the completions.
	@lambert=$(RELEASE)/lambert; share=target/release/share; \
		mkdir -p $$share/bash-completion/completions $$share/zsh/site-functions $$share/fish/vendor_completions.d && \
		$$lambert man --output $$share/man/man1 >/dev/null && \
		$$lambert completions bash >$$share/bash-completion/completions/lambert && \
		$$lambert completions zsh >$$share/zsh/site-functions/_lambert && \
		$$lambert completions fish >$$share/fish/vendor_completions.d/lambert.fish

demo: build
	@sh tests/demo.sh $(RELEASE) $(DEMO) $(CORPUS)

check: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --workspace --no-deps --locked --quiet

# Several tests share the processors, so threads of libtorch that wait for each other must not spin.
test: export GOMP_SPINCOUNT := 0
# Cargo builds the two programs too, before the first test: the end-to-end tests start them.
test: check
	@sh tests/setup.sh
	$(CARGO) test --release --workspace --locked --no-fail-fast

# Without network the rest is checked all the same: only the advisories come from a database.
audit:
	@[ "$$($(CARGO_DENY) --version 2>/dev/null)" = "cargo-deny $(CARGO_DENY_VERSION)" ] || \
		$(CARGO) install cargo-deny --version $(CARGO_DENY_VERSION) --locked --root target/tools
	$(CARGO_DENY) --locked check bans licenses sources
	@if $(CARGO_DENY) --locked fetch db; then \
		$(CARGO_DENY) --locked check --disable-fetch advisories; \
	else \
		echo "audit: advisories were NOT checked: the database, https://github.com/rustsec/advisory-db, cannot be fetched" >&2; \
	fi

# mdbook copies every file that is not a page; the book keeps images and tables, not scripts and configurations.
book:
	@case "$$($(MDBOOK) --version 2>/dev/null)" in \
		*v$(MDBOOK_VERSION)) ;; \
		*) $(CARGO) install mdbook --version $(MDBOOK_VERSION) --no-default-features --features search --locked \
			--root target/tools ;; \
	esac
	$(MDBOOK) build docs
	@# A folder's README.md becomes index.html, but mdbook leaves the links to it as they were.
	@find target/book -name '*.html' -exec sed -i 's|href="\([^":]*\)README\.html|href="\1index.html|g' {} +
	@find target/book \( -name '*.py' -o -name '*.sh' -o -name '*.toml' \) -delete

bench: build
	$(CARGO) bench --workspace --locked

clean:
	rm -rf target demo
