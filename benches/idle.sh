#!/bin/bash
# Resident memory of a server of many small drives that are not in use, and how long it takes until
# it serves them: the figures of docs/bench.md.
#
#   benches/idle.sh [DRIVES]       needs nbdinfo, a release build and 1 GB below TMPDIR
set -euo pipefail
cd "$(dirname "$0")/.."
pumice=${PUMICE:-$PWD/target/release/pumice}
drives=${1:-1000}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-idle-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
export PUMICE_RUNTIME_DIR=$folder/pumice
mkdir "$folder/drives"
for number in $(seq "$drives"); do
    "$pumice" create "$folder/drives/$number.pumice" --size 16M --segment 4M > /dev/null
done
for turn in first second; do
    start=$(date +%s.%N)
    PUMICE_LOG=warn "$pumice" serve "$folder/drives" --unix "$folder/socket" &
    server=$!
    until nbdinfo --size "nbd+unix:///1?socket=$folder/socket" > /dev/null 2>&1; do
        kill -0 "$server"
        sleep 0.05
    done
    awk -v what="$turn time, $drives drives" -v start="$start" -v end="$(date +%s.%N)" '
        BEGIN { ARGC = 2 }
        /^VmRSS/ { printf "%-28s %8.1f MiB, %5.1f s until served\n", what, $2 / 1024, end - start }
    ' "/proc/$server/status"
    start=$(date +%s.%N)
    kill "$server"
    wait "$server" || true
    awk -v start="$start" -v end="$(date +%s.%N)" \
        'BEGIN { printf "closing took %.1f s\n", end - start }'
done
