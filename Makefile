# The few commands a developer needs; CI runs the same ones through .ci/run.

CARGO ?= cargo
PUMICE := ./target/release/pumice
PREFIX ?= /usr/local
# The only place where mount(8) looks for its helpers.
HELPERS ?= /sbin

# What `make fuzz` runs, and for how long each.
FUZZ_TARGETS := superblock array key_slot object segment batch record leaf checkpoint open transfer nbd_handshake nbd_transmission nbd_client nbd_allocation nbd_handover fuse vhost_message vhost_request trace bench_results scan_partial
SECONDS ?= 60

# What `make mutants-diff` compares with.
BASE := main~1

# Rounds of each load of `make crash-rounds`, three to five seconds a round, and of
# `make snapshot-rounds`, ten to twenty.
ROUNDS := 50

# Days of `make backups`, two seconds a day.
DAYS := 365

.DEFAULT_GOAL := help
.PHONY: help demo build install uninstall picture tables deb package-files test check hooks torture torture-night sweep crash-rounds snapshot-rounds backups bucket-servers test-mutants mutants-diff lint audit advisories bench fuzz docs clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Build what the demonstration needs, and let it show what compression does.
	$(CARGO) build --locked --release --package pumice --no-default-features --features bench
	$(PUMICE) demo

build: ## Build the release binary, its manual pages and completions.
	$(CARGO) build --locked --release --package pumice
	$(MAKE) --no-print-directory package-files

# What is installed, from where: in PREFIX, but for the helpers of mount(8).
INSTALLED = $(addprefix $(DESTDIR)$(PREFIX)/,bin/pumice share/man/man1/pumice*.1 \
	share/bash-completion/completions/pumice share/zsh/site-functions/_pumice \
	share/fish/vendor_completions.d/pumice.fish lib/systemd/system/pumice@.service \
	lib/systemd/system/pumice@.socket lib/systemd/system/pumice-attach@.service \
	lib/systemd/system/pumice-rotate@.service lib/systemd/system/pumice-rotate@.timer \
	lib/sysusers.d/pumice.conf) $(addprefix $(DESTDIR)$(HELPERS)/,mount.pumice umount.pumice)

# Builds nothing: root often has no cargo, and must not own what is in target.
install: ## Install what `make build` has built, in PREFIX (/usr/local).
	@test -x $(PUMICE) && test -d $(PACKAGE_FILES)/man || { \
		echo "run make build first, without sudo: it builds the program and its manual" >&2; exit 1; }
	install -D -m 755 $(PUMICE) $(DESTDIR)$(PREFIX)/bin/pumice
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 $(PACKAGE_FILES)/man/*.1
	install -D -m 644 $(PACKAGE_FILES)/pumice.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/pumice
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(PACKAGE_FILES)/_pumice
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d \
		$(PACKAGE_FILES)/pumice.fish
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(HELPERS)
	for unit in 'pumice@.service' 'pumice@.socket' 'pumice-attach@.service' \
		'pumice-rotate@.service' 'pumice-rotate@.timer'; do \
		sed 's,/usr/bin/pumice,$(PREFIX)/bin/pumice,' "dist/$$unit" \
			> "$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit"; done
	install -D -m 644 dist/pumice.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/pumice.conf
	for helper in mount umount; do \
		ln -sf $(PREFIX)/bin/pumice $(DESTDIR)$(HELPERS)/$$helper.pumice; done
	@if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then \
		systemd-sysusers pumice.conf && systemctl daemon-reload; fi

uninstall: ## Remove what `make install` has installed; drives and /etc/pumice stay.
	rm -f $(INSTALLED)

picture: build ## Record docs/picture.svg from the program (root; needs rich from PyPI).
	docs/picture.py $(PUMICE)

tables: build ## Simulate the tables in docs/bench.md and docs/forecast.md again.
	docs/tables.py $(PUMICE)

# Where the assets of [package.metadata.deb] in crates/pumice/Cargo.toml look for what the program
# writes itself.
PACKAGE_FILES := target/package

deb: build ## Build the Debian package, in target/debian; needs cargo-deb.
	$(CARGO) deb --locked --no-build --package pumice

# Manual pages and completions from the program's own definition of its command line, and the list
# of changes in Debian's form, of the version that is built and the day of its last change.
package-files:
	rm -rf $(PACKAGE_FILES)
	$(PUMICE) man $(PACKAGE_FILES)/man
	$(PUMICE) completions bash > $(PACKAGE_FILES)/pumice.bash
	$(PUMICE) completions zsh > $(PACKAGE_FILES)/_pumice
	$(PUMICE) completions fish > $(PACKAGE_FILES)/pumice.fish
	ln -s ../bin/pumice $(PACKAGE_FILES)/mount.pumice
	ln -s ../bin/pumice $(PACKAGE_FILES)/umount.pumice
	version=$$($(PUMICE) --version | cut -d ' ' -f 2); \
	maintainer=$$(sed -n 's/^maintainer = "\(.*\)"/\1/p' crates/pumice/Cargo.toml); \
	date=$$(git log -1 --format=%cD 2> /dev/null || date -R); \
	printf 'pumice (%s-1) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n' \
		"$$version" "What has changed is in CHANGELOG.md of the source." "$$maintainer" "$$date" \
		> $(PACKAGE_FILES)/changelog

# The dev profile optimises at level 1 and keeps overflow checks: fast enough for the client tests,
# and sooner built than a release build.
test: ## Run every test: beside the code, tests/tidy and tests/it with real clients.
	CARGO="$(CARGO)" tests/run.sh

# A commit; by default that at which HEAD left its upstream.
SINCE :=

check: ## Check format, lints, style, and unit tests of the crates that differ from SINCE.
	CARGO="$(CARGO)" tests/check.sh $(SINCE)

hooks: ## Let git run `make check` before each push.
	printf '#!/bin/sh\nexec make check\n' > "$$(git rev-parse --git-path hooks)/pre-push"
	chmod +x "$$(git rev-parse --git-path hooks)/pre-push"

crash-rounds: build ## Kill the server under fio, ext4, XFS and PostgreSQL 2 x ROUNDS times each (root).
	tests/crash_rounds.sh --rounds $(ROUNDS) --pumice $(PUMICE)
	tests/crash_rounds.sh --rounds $(ROUNDS) --pumice $(PUMICE) --attach

# Debian's Python has its libnbd.
snapshot-rounds: build ## Overwrite a nearly full drive while snapshots come and go, ROUNDS times.
	/usr/bin/python3 tests/snapshot_rounds.py --rounds $(ROUNDS) --pumice $(PUMICE)

backups: build ## Back a PostgreSQL up for DAYS (365) days, with kills between, and restore it (root).
	tests/backups.sh --days $(DAYS) --pumice $(PUMICE)

bucket-servers: build ## Kill and take over drives in the object servers that are installed (root).
	tests/bucket_servers.sh --pumice $(PUMICE)

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
	$(CARGO) test --locked --package tidy --test mutants -- "$(FILTER)"

mutants-diff: ## Mutate the lines that differ from BASE (main~1); needs cargo-mutants.
	mkdir -p target && git diff $(BASE) > target/mutants.diff
	$(CARGO) mutants --in-diff target/mutants.diff --output target --baseline skip --timeout 300

lint: ## Check format, lints, documentation, and dependencies: licences and advisories.
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --package pumice --no-default-features --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items
	@if $(CARGO) deny --version > /dev/null 2>&1; then \
		echo "$(CARGO) deny check licenses bans sources"; \
		$(CARGO) deny check licenses bans sources && $(MAKE) --no-print-directory audit; \
	elif [ "$$CI" = true ]; then \
		echo "cargo-deny is missing, and CI does not skip its checks" >&2; exit 1; \
	else \
		echo "skipped: cargo deny is not installed (CI runs it)"; \
	fi

# The copy in .ci/advisories makes the check work without a network, and the same everywhere. It has
# only what is about packages of Cargo.lock. cargo-deny wants a git repository of this name.
ADVISORY_DB := https://github.com/RustSec/advisory-db
AUDIT := target/advisories/advisory-db-3157b0e258782691

audit: ## Check dependencies for known vulnerabilities; needs cargo-deny, and no network.
	rm -rf $(AUDIT)
	mkdir -p $(AUDIT)
	cp -r .ci/advisories/. $(AUDIT)
	git -C $(AUDIT) init --quiet && git -C $(AUDIT) add --all
	git -C $(AUDIT) -c user.name=audit -c user.email=audit@localhost commit --quiet -m copy
	$(CARGO) deny --offline check advisories

advisories: ## Renew the copy of the advisories in .ci/advisories from ADVISORY_DB.
	rm -rf target/advisory-db .ci/advisories/crates
	git clone --quiet --depth 1 $(ADVISORY_DB) target/advisory-db
	mkdir -p .ci/advisories/crates
	for name in $$(sed -n 's/^name = "\(.*\)"/\1/p' Cargo.lock | sort -u); do \
		if [ -d target/advisory-db/crates/$$name ]; then \
			cp -r target/advisory-db/crates/$$name .ci/advisories/crates/; fi; done
	git -C target/advisory-db log -1 --format=%cs > .ci/advisories/date

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

docs: ## Rewrite the help texts in docs/cli.md, and the list of the library, from the source.
	UPDATE_DOCS=1 $(CARGO) test --locked --package pumice --test it cli_doc
	UPDATE_DOCS=1 $(CARGO) test --locked --package tidy --lib face

clean: ## Remove everything that was built.
	$(CARGO) clean
