# The few commands a developer needs; CI runs the same ones through .ci/run.

CARGO ?= cargo
PUMICE := ./target/release/pumice
PREFIX ?= /usr/local

# What `make fuzz` runs, and for how long each.
FUZZ_TARGETS := superblock segment batch record leaf checkpoint open nbd_handshake nbd_transmission nbd_client nbd_handover fuse vhost_message vhost_request trace bench_results scan_partial
SECONDS ?= 60

# What `make mutants-diff` compares with.
BASE := main~1

# Rounds of each load of `make crash-rounds`, three to five seconds a round.
ROUNDS := 50

.DEFAULT_GOAL := help
.PHONY: help demo build install picture deb package-files test torture torture-night sweep crash-rounds test-mutants mutants-diff lint bench fuzz docs clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Build the release binary and let it show what it does.
	$(CARGO) build --locked --release --package pumice
	$(PUMICE) demo

build: ## Build the release binary.
	$(CARGO) build --locked --release --package pumice

install: build ## Install the program in PREFIX/bin (/usr/local).
	install -D -m 755 $(PUMICE) $(DESTDIR)$(PREFIX)/bin/pumice

picture: build ## Record docs/picture.svg from the program (root; needs rich from PyPI).
	docs/picture.py $(PUMICE)

# Where the assets of [package.metadata.deb] in crates/pumice/Cargo.toml look for what the program
# writes itself.
PACKAGE_FILES := target/package

deb: build package-files ## Build the Debian package, in target/debian; needs cargo-deb.
	$(CARGO) deb --locked --no-build --package pumice

# Manual pages and completions from the program's own definition of its command line, and the list
# of changes in Debian's form, of the version that is built and the day of its last change.
package-files:
	rm -rf $(PACKAGE_FILES)
	$(PUMICE) man $(PACKAGE_FILES)/man
	$(PUMICE) completions bash > $(PACKAGE_FILES)/pumice.bash
	$(PUMICE) completions zsh > $(PACKAGE_FILES)/_pumice
	$(PUMICE) completions fish > $(PACKAGE_FILES)/pumice.fish
	version=$$($(PUMICE) --version | cut -d ' ' -f 2); \
	maintainer=$$(sed -n 's/^maintainer = "\(.*\)"/\1/p' crates/pumice/Cargo.toml); \
	date=$$(git log -1 --format=%cD 2> /dev/null || date -R); \
	printf 'pumice (%s-1) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n' \
		"$$version" "What has changed is in CHANGELOG.md of the source." "$$maintainer" "$$date" \
		> $(PACKAGE_FILES)/changelog

# The dev profile optimises at level 1 and keeps overflow checks: fast enough for the client tests,
# and sooner built than a release build.
test: ## Run every test: beside the code, tests/tidy and tests/it with real clients.
	$(CARGO) test --locked --no-fail-fast

crash-rounds: build ## Kill the server under fio, ext4, XFS and PostgreSQL 2 x ROUNDS times each (root).
	tests/crash_rounds.sh --rounds $(ROUNDS) --pumice $(PUMICE)
	tests/crash_rounds.sh --rounds $(ROUNDS) --pumice $(PUMICE) --attach

torture: ## Crash simulated drives by seed for SECONDS (60); see `pumice-torture --help`.
	$(CARGO) run --locked --release --package pumice-torture -- --time $(SECONDS)s

# A million requests to drives with bad sectors and rot, then worlds of every kind for the rest of
# the night. HOURS=0 leaves those out.
HOURS := 6

torture-night: ## Crash drives with bad sectors for 1,000,000 requests, then all kinds for HOURS (6).
	$(CARGO) run --locked --release --package pumice-torture -- --requests 1000000 \
		--weight bad-reads=100 --weight rot=50
	$(CARGO) run --locked --release --package pumice-torture -- --seed 1000000 --time $(HOURS)h

sweep: ## Damage 10,000 sectors of drives, one at a time; none may go unnoticed.
	$(CARGO) run --locked --release --package pumice-torture -- --sweep 10000

# FILTER=text takes only the planted bugs with that text in their room, name, file or test.
test-mutants: ## Plant bugs one by one; each must be caught by its test.
	$(CARGO) test --locked --package pumice --test mutants -- "$(FILTER)"

mutants-diff: ## Mutate the lines that differ from BASE (main~1); needs cargo-mutants.
	mkdir -p target && git diff $(BASE) > target/mutants.diff
	$(CARGO) mutants --in-diff target/mutants.diff --output target --baseline skip --timeout 300

lint: ## Check format, lints, documentation and dependency licences.
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --package pumice --no-default-features --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items
	@if $(CARGO) deny --version > /dev/null 2>&1; then \
		echo "$(CARGO) deny check licenses bans sources"; \
		$(CARGO) deny check licenses bans sources; \
	elif [ "$$CI" = true ]; then \
		echo "cargo-deny is missing, and CI does not skip its checks" >&2; exit 1; \
	else \
		echo "skipped: cargo deny is not installed (CI runs it)"; \
	fi

bench: ## Run the in-process benchmark; benches/*.sh measure the server.
	$(CARGO) bench --locked

# RUSTC_BOOTSTRAP lets the stable compiler take the sanitizer's and libFuzzer's flags. New inputs
# go below target/fuzz; an input that fails is left in fuzz/artifacts, which fails this rule. The
# sanitizer's quarantine of freed memory is made small: media and windows of 4 MiB come and go.
fuzz: ## Run every fuzzer for SECONDS (60) with AddressSanitizer; needs cargo-fuzz.
	cd fuzz && RUSTC_BOOTSTRAP=1 $(CARGO) fuzz build --target-dir ../target/fuzz
	@set -e; for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz/corpus/$$target; \
		echo "== $$target, $(SECONDS) s"; \
		(cd fuzz && RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=quarantine_size_mb=8 \
			$(CARGO) fuzz run --target-dir ../target/fuzz $$target ../target/fuzz/corpus/$$target \
			corpus/$$target -- -max_total_time=$(SECONDS) \
			-timeout=10 -rss_limit_mb=1024 -max_len=16384 -print_final_stats=1 -verbosity=0); \
	done

docs: ## Rewrite the help texts in docs/cli.md from the built program.
	UPDATE_DOCS=1 $(CARGO) test --locked --package pumice --test it cli_doc

clean: ## Remove everything that was built.
	$(CARGO) clean
