#!/bin/bash
# The gate before a push, in about three minutes: format, lints, the style of the tree, and the unit
# tests of the crates that differ from COMMIT (default: where HEAD left its upstream, or its
# parent), committed or not. `make hooks` lets git run it; .ci/run decides.
#
# Usage: tests/check.sh [COMMIT]
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
for program in rustfmt clippy-driver; do
    command -v $program > /dev/null || {
        echo "$program is missing: run 'rustup component add rustfmt clippy'" >&2
        exit 2
    }
done

commit=${1:-$(git merge-base HEAD '@{upstream}' 2> /dev/null || echo HEAD~1)}
changed=$(git diff --name-only "$commit" -- crates && git ls-files --others --exclude-standard crates)
mapfile -t crates < <(echo "$changed" | cut -s -d / -f 2 | sort -u)

(
    set -x
    $CARGO fmt --all --check
    $CARGO clippy --locked --all-targets -- -D warnings
    $CARGO test --locked --quiet --package tidy
)
# Simulations of whole drives take minutes, which CI has: here the drive's are left out, and torture
# tests run for a few seconds.
libraries=() binary= torture=
for crate in "${crates[@]}"; do
    case $crate in
        pumice) binary=1 ;;
        pumice-torture) torture=1 ;;
        *) [ ! -d "crates/$crate" ] || libraries+=(--package "$crate") ;;
    esac
done
[ ${#libraries[@]} -eq 0 ] ||
    tests/run.sh --lib "${libraries[@]}" -- --skip controller::tests:: --skip worlds::
[ -z "$binary" ] || tests/run.sh --bins --package pumice
[ -z "$torture" ] || $CARGO run --locked --package pumice-torture -- --time 15s
