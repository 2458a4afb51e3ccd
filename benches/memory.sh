#!/bin/bash
# Resident memory of a server after 8 GiB of 4 KiB random writes over an 8 GiB disk, half of each
# block compressible, and how long the drive takes to open again: the figures of docs/bench.md.
#
#   benches/memory.sh       needs fio, nbdinfo, a release build and 10 GB below TMPDIR
set -euo pipefail
cd "$(dirname "$0")/.."
pumice=$PWD/target/release/pumice
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-memory-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
uri="nbd+unix:///?socket=$folder/socket"

resident() {
    awk -v what="$1" '/^VmRSS/ { printf "%-28s %8.1f MiB resident\n", what, $2 / 1024 }' \
        "/proc/$server/status"
}

serve() {
    PUMICE_LOG=warn "$pumice" serve "$folder/drive" --unix "$folder/socket" &
    server=$!
    until nbdinfo --size "$uri" > /dev/null 2>&1; do kill -0 "$server"; done
}

"$pumice" create "$folder/drive" --size 8G --capacity 9G > /dev/null
serve
resident "empty"
fio --name=fill --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --iodepth=32 --size=8G \
    --refill_buffers --buffer_compress_percentage=50 --end_fsync=1 > /dev/null
resident "after 8 GiB of 4 KiB writes"
"$pumice" info "$folder/drive" | grep -E 'written|frames|memory'
kill "$server"
wait "$server" || true
start=$(date +%s.%N)
serve
awk -v start="$start" -v end="$(date +%s.%N)" \
    'BEGIN { printf "opening again took %.1f s\n", end - start }'
resident "after opening"
