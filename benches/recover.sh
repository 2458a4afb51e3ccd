#!/bin/bash
# How long the opening of a crashed drive takes whose map is dense: 8 GiB under random writes of
# 4 KiB, killed with all the log after its checkpoint that it lets stand. Prints what docs/bench.md
# quotes.
#
#   benches/recover.sh [WRITES [ROUNDS]]     default 450000 writes, 5 rounds; about a minute
#
# PROGRAMS names the programs that take turns (default: target/release/pumice). Needs fio, nbdinfo,
# python3, a release build and 2 GB of disk below TMPDIR (default /var/tmp).
set -euo pipefail
cd "$(dirname "$0")/.."
writes=${1:-450000}
rounds=${2:-5}
read -ra programs <<< "${PROGRAMS:-target/release/pumice}"
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
uri="nbd+unix:///?socket=$folder/drive.sock"

"${programs[0]}" create "$folder/drive" --size 8G > /dev/null
"${programs[0]}" serve "$folder/drive" --unix "$folder/drive.sock" 2> "$folder/log" &
server=$!
until nbdinfo --size "$uri" > /dev/null 2>&1; do
    kill -0 "$server"
done
fio --name=fill --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --iodepth=32 --size=8G \
    --number_ios="$writes" --norandommap --randrepeat=0 --buffer_compress_percentage=50 \
    --refill_buffers --output-format=terse > /dev/null
kill -9 "$server"
wait "$server" || :

# A closed drive is opened, looked at and left as it is.
for round in $(seq "$rounds"); do
    for program in "${programs[@]}"; do
        "$program" info "$folder/drive" --json | python3 -c '
import json, sys
info = json.load(sys.stdin)
print(sys.argv[1], round(info["media_bytes"] / 2**20), "MiB written in all,",
      info["operations"]["recovered_batches"], "batches read in",
      info["operations"]["recovery_ns"] // 10**6, "ms")' "$program"
    done
done
