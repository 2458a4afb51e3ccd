#!/bin/bash
# Runs every test: with cargo-nextest where it is installed, which ends a test that hangs, and with
# `cargo test` otherwise. Arguments are passed to either. In CI (CI=true) nextest repeats a test
# that fails, and the last lines name those that passed only then.
#
# No process, mount or loop device of a test outlives the run, also if Ctrl-C or SIGTERM ends it:
# tests keep their files in one folder, and each of their processes inherits a variable. Anything
# that a test has left is named and removed. The folder stays if a test failed and left files there.
#
# Exit code: 0 if all tests passed; otherwise that of the last runner that failed.
set -uo pipefail
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
# On a disk, and short: paths of sockets have at most 107 bytes.
FOLDER=$(mktemp -d "${TMPDIR:-/var/tmp}/pt.XXXXXX") || exit 2
# Some tests run programs as another user.
chmod 755 "$FOLDER"
RUN=${FOLDER##*/}
INTERRUPTED=

processes() {
    grep -lszxF "PUMICE_TEST_RUN=$RUN" /proc/[0-9]*/environ 2> /dev/null | cut -d / -f 3
}

mounts() {
    awk -v folder="$FOLDER/" 'index($5, folder) == 1 { print $5 }' /proc/self/mountinfo | tac
}

loops() {
    local file
    for file in /sys/block/loop*/loop/backing_file; do
        case $(cat "$file" 2> /dev/null) in
            "$FOLDER"/* | "/dev/shm/$RUN"*) echo "/dev/$(echo "$file" | cut -d / -f 4)" ;;
        esac
    done
}

remove_leftovers() {
    local status=$? at
    export -n PUMICE_TEST_RUN
    if [ -z "$INTERRUPTED" ]; then
        { for at in $(processes); do tr '\0' ' ' < "/proc/$at/cmdline"; echo; done; mounts; loops; } |
            sed 's/^/left by a test, and removed: /' >&2
    fi
    # SIGTERM lets scripts and servers undo what they did.
    kill -TERM $(processes) 2> /dev/null
    for _ in $(seq 100); do
        [ -n "$(processes)" ] || break
        sleep 0.1
    done
    kill -KILL $(processes) 2> /dev/null
    for at in $(mounts); do umount --lazy "$at"; done
    for at in $(loops); do losetup --detach "$at"; done
    rm -rf "/dev/shm/$RUN"*
    if [ "$status" -eq 0 ] || [ -n "$INTERRUPTED" ]; then
        rm -rf "$FOLDER"
    elif ! rmdir "$FOLDER" 2> /dev/null; then
        echo "failed tests have left files in $FOLDER" >&2
    fi
}
trap remove_leftovers EXIT
trap 'INTERRUPTED=1; exit 130' INT
trap 'INTERRUPTED=1; exit 143' TERM

# A shell heeds signals while it waits for a job, not while it runs a command.
status=0
run() {
    "$@" &
    wait $! || status=$?
}

export PUMICE_TEST_RUN=$RUN TMPDIR=$FOLDER
# They wait for media and for each other's programs about as long as they compute.
export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$((2 * $(nproc)))}
if $CARGO nextest --version > /dev/null 2>&1; then
    profile=default
    [ "${CI:-}" != true ] || profile=ci
    run $CARGO nextest run --locked --profile "$profile" "$@"
    # nextest runs none of the examples in the documentation.
    [ $# -gt 0 ] || run $CARGO test --locked --no-fail-fast --doc
    [ "$profile" = default ] || tests/flaky.py target/nextest/ci/junit.xml
else
    run $CARGO test --locked --no-fail-fast "$@"
fi
exit $status
