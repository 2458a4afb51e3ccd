#!/bin/bash
# A thin drive of 4 TiB with writes scattered over its whole span, served with fio's nbd engine: the
# memory it takes, how often a leaf of the map is missed and what that costs, how long the first
# reply takes after a crash. Prints what docs/bench.md quotes.
#
#   benches/thin.sh [WRITES [MAP_CACHE]]     default 2000000 writes, 256M; about 3 minutes
#
# Needs fio, nbdinfo, python3, a release build and 16 GB of disk below TMPDIR (default /var/tmp).
set -euo pipefail
cd "$(dirname "$0")/.."
writes=${1:-2000000}
cache=${2:-256M}
pumice=$PWD/target/release/pumice
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
trap 'tail -n 3 "$folder/log" >&2 || :; kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
socket=$folder/drive.sock
uri="nbd+unix:///?socket=$socket"

now() {
    date +%s%N
}

start() { # serves the drive; prints the milliseconds until a client has the first reply
    local from
    from=$(now)
    "$pumice" serve "$folder/drive" --unix "$socket" --map-cache "$cache" 2>> "$folder/log" &
    server=$!
    until nbdinfo --size "$uri" > /dev/null 2>&1; do
        kill -0 "$server"
    done
    echo "first reply after $((($(now) - from) / 1000000)) ms, nbdinfo's own start included"
}

load() { # name rw number
    fio --name="$1" --ioengine=nbd --uri="$uri" --rw="$2" --bs=4k --iodepth=32 --size=4T \
        --number_ios="$3" --norandommap --randrepeat=0 --random_generator=tausworthe64 \
        --buffer_compress_percentage=50 --refill_buffers --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job["write" if "write" in sys.argv[2] else "read"]
latency = side["clat_ns"]
p99 = latency["percentile"]["99.000000"] / 1000
print(sys.argv[1] + ":", round(side["iops"]), "IOPS, mean", round(latency["mean"] / 1000), "us, p99",
      round(p99), "us, max", round(latency["max"] / 1e6), "ms")' "$1" "$2"
}

state() {
    "$pumice" info "$folder/drive" --json | python3 -c '
import json, sys
info = json.load(sys.stdin)
memory, operations = info["memory"], info["operations"]
mib = lambda bytes: round(bytes / 2**20, 1)
looked_up = operations["map_hits"] + operations["map_misses"]
print("recovery", operations["recovered_batches"], "batches in", operations["recovery_ns"] // 10**6, "ms")
print("map MiB", mib(memory["map_bytes"]), "of it leaves", mib(memory["map_leaf_bytes"]),
      "| hit rate", round(operations["map_hits"] / max(looked_up, 1), 3),
      "misses", operations["map_misses"], "| checkpoints", operations["checkpoints"],
      "metadata MiB", mib(operations["meta_bytes"]), "| media/host", round(info["write_amplification"], 2))'
    awk '/VmRSS/ { print "resident MiB", $2 / 1024 }' "/proc/$server/status"
}

"$pumice" create "$folder/drive" --size 4T --capacity 16G > /dev/null
start
load write randwrite "$writes"
state
load read-hits-and-misses randread 100000
state
kill -9 "$server"
wait "$server" || :
echo "after kill -9:"
start
load read-first randread 1
load read randread 50000
state
kill "$server"
wait "$server"
echo "after an orderly end:"
start
kill "$server"
wait "$server"
