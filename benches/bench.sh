#!/bin/bash
# Compares `pumice bench` with fio on the same kind of target, taking turns: whether the bench itself
# is what limits what it measures. Prints medians, and the ratio (median of the rounds' pairs) that
# docs/bench.md quotes.
#
#   benches/bench.sh [ROUNDS [SECONDS]]     default 5 rounds of 2 seconds; about 2 minutes
#
#   read     4 KiB random reads, depth 32, io_uring, one thread, of a file in the page cache
#   write    4 KiB random writes likewise, of a file in memory (tmpfs), with new data for every write
#            that compresses by 50 %
#   nbd      both of them on an export of nbdkit's memory, with fio's nbd engine
#
# Needs fio, nbdkit, python3, a release build and 1 GB of memory. The file to be read lies below
# TMPDIR (default /var/tmp).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
seconds=${2:-2}
pumice=$PWD/target/release/pumice
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
memory=$(mktemp -d /dev/shm/pumice-bench-XXXXXX)
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder" "$memory"' EXIT
span=256M

nbdkit --foreground --unix "$folder/nbd.sock" memory 1G &
uri="nbd+unix:///?socket=$folder/nbd.sock"
until [ -S "$folder/nbd.sock" ]; do :; done

for operation in read write; do
    cat > "$folder/$operation.toml" <<END
about = "One test."
runs = 1
span = "$span"
seconds = $seconds
depth = 32
cache = "warm"
unit = "IOPS"
[[level]]
saved = "50%"
[[test]]
operation = "random-$operation"
record = "4K"
END
done
dd if=/dev/urandom of="$folder/file" bs=1M count=256 status=none

ours() { # operation target
    rm -f "$folder/result"
    "$pumice" bench "$2" --preset "$folder/$1.toml" --destroy-data --output "$folder/result" \
        --json 2> "$folder/log" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["mean"])'
}

fio_iops() { # operation, options
    local operation=$1
    shift
    fio --name=x --rw="rand$operation" --bs=4k --iodepth=32 --size="$span" --time_based=1 \
        --runtime="$seconds" --norandommap=1 --randrepeat=0 --refill_buffers --invalidate=0 \
        --buffer_compress_percentage=50 --output-format=json "$@" | python3 -c '
import json, sys
text = sys.stdin.read()
print(json.loads(text[text.index("{"):])["jobs"][0][sys.argv[1]]["iops"])' "$operation"
}

for ((round = 1; round <= rounds; round++)); do
    echo "read ours $(ours read "$folder/ours")"
    echo "read fio $(fio_iops read --ioengine=io_uring --filename="$folder/file")"
    echo "write ours $(ours write "$memory/ours")"
    echo "write fio $(fio_iops write --ioengine=io_uring --filename="$memory/file")"
    for operation in read write; do
        echo "nbd-$operation ours $(ours "$operation" "$uri")"
        echo "nbd-$operation fio $(fio_iops "$operation" --ioengine=nbd --uri="$uri")"
    done
done | tee /dev/stderr | python3 -c '
import statistics, sys
rates = {}
for line in sys.stdin:
    test, who, iops = line.split()
    rates.setdefault(test, {}).setdefault(who, []).append(float(iops))
for test, by in rates.items():
    ratios = sorted(a / b for a, b in zip(by["ours"], by["fio"]))
    ours, fio = (statistics.median(by[who]) for who in ("ours", "fio"))
    middle = statistics.median(ratios)
    print(f"{test}: {ours:.0f} IOPS, fio {fio:.0f}; ratio {middle:.2f} "
          f"({ratios[0]:.2f} to {ratios[-1]:.2f})")'
