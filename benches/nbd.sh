#!/bin/bash
# Compares pumice with qemu-nbd and nbdkit over Unix sockets, with fio's nbd engine. All servers run
# at once and idle while another is measured; for each test they take turns, round after round, so
# that a machine or disk whose speed drifts cannot favour one. Prints medians, and the ratios (median
# of the rounds' pairs) that docs/bench.md quotes.
#
#   benches/nbd.sh [ROUNDS [SECONDS]]     default 5 rounds of 2 seconds; about 6 minutes
#
# Needs fio, qemu-nbd, nbdkit, nbdinfo, python3, a release build and 50 GB of disk. Works in a folder
# below TMPDIR (default /var/tmp), which must be on the disk to measure.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
seconds=${2:-2}
pumice=$PWD/target/release/pumice
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
size=2G

answers() {
    for _ in $(seq 400); do
        if nbdinfo --size "$(uri "$1")" > /dev/null 2>&1; then return; fi
    done
    echo "$1 does not answer" >&2
    exit 1
}

uri() {
    echo "nbd+unix:///?socket=$folder/$1.sock"
}

measure() { # server test rw bs depth saved: adds a line "server test iops mean-latency-us"
    fio --name=x --ioengine=nbd --uri="$(uri "$1")" --rw="$3" --bs="$4" --iodepth="$5" \
        --size="$size" ${7:---time_based=1 --runtime=$seconds} --refill_buffers --randrepeat=0 \
        --buffer_compress_percentage="$6" --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job["write" if "write" in sys.argv[3] else "read"]
print(sys.argv[1], sys.argv[2], round(side["iops"], 1), round(side["clat_ns"]["mean"] / 1000, 2))
' "$1" "$2" "$3" >> "$folder/results"
}

turns() { # "servers" test rw bs depth saved
    echo "$2" >&2
    for _ in $(seq "$rounds"); do
        for server in $1; do measure "$server" "${@:2}"; done
    done
}

for drive in "pumice lz4 40G" "plain none 40G"; do
    read -r name codec capacity <<< "$drive"
    "$pumice" create "$folder/$name" --size "$size" --capacity "$capacity" --codec "$codec" \
        > /dev/null
    PUMICE_LOG=warn "$pumice" serve "$folder/$name" --unix "$folder/$name.sock" &
done
# Written once, so that qemu-nbd is not charged for allocating blocks.
fio --name=fill --filename="$folder/raw" --size="$size" --rw=write --bs=1M --direct=1 \
    --ioengine=psync --end_fsync=1 > /dev/null
qemu-nbd -f raw --cache=none --aio=io_uring -t -k "$folder/qemu-nbd.sock" "$folder/raw" &
nbdkit -f -U "$folder/nbdkit.sock" memory "$size" &
for server in pumice plain qemu-nbd nbdkit; do answers "$server"; done

all="pumice qemu-nbd nbdkit"
# Every block once, in random order, so that the reads find full drives.
for server in $all; do measure "$server" fill randwrite 4k 32 50 --loops=1; done
turns "$all" rand-read randread 4k 32 50
turns "$all" rand-write-50 randwrite 4k 32 50
turns "$all" rand-write-98 randwrite 4k 32 98
turns "$all" rand-write-d1 randwrite 4k 1 50
turns "pumice plain qemu-nbd nbdkit" seq-write-0 write 1M 8 0
turns "$all" seq-write-98 write 1M 8 98
turns "$all" seq-read read 1M 8 98

python3 - "$folder/results" << 'PYTHON'
import collections, statistics, sys

rows = collections.defaultdict(list)
for line in open(sys.argv[1]):
    server, test, iops, latency = line.split()
    rows[test, server].append((float(iops), float(latency)))
print(f"{'test':15} {'server':9} {'IOPS':>9} {'min':>9} {'max':>9} {'latency us':>11}")
for (test, server), values in rows.items():
    iops = [value[0] for value in values]
    latency = statistics.median(value[1] for value in values)
    median = statistics.median(iops)
    print(f"{test:15} {server:9} {median:9.0f} {min(iops):9.0f} {max(iops):9.0f} {latency:11.1f}")

print()
for test, other, index, bar in [
    ("rand-write-50", "qemu-nbd", 0, ">= 2.0"),
    ("rand-write-50", "nbdkit", 0, ">= 0.6"),
    ("rand-write-98", "nbdkit", 0, ">= 0.8"),
    ("rand-read", "qemu-nbd", 0, ">= 1.0"),
    ("rand-write-d1", "nbdkit", 1, "<= 1.3"),
    ("seq-write-0", "plain", 0, ">= 0.9"),
    ("seq-write-0", "qemu-nbd", 0, ">= 1.0"),
    ("seq-write-98", "qemu-nbd", 0, ">= 1.5"),
    ("seq-read", "qemu-nbd", 0, "none"),
]:
    pairs = zip(rows[test, "pumice"], rows[test, other])
    ratios = sorted(ours[index] / theirs[index] for ours, theirs in pairs)
    what = "latency" if index else "IOPS"
    print(
        f"{test:15} {what:8} / {other:9} {statistics.median(ratios):5.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})   bar {bar}"
    )
PYTHON
