#!/bin/bash
# How fast `pumice send` is, beside the medium: `read` is dd of the drive's file past the page cache,
# `copy` the same into a file. `send`, `pipe` and `served` send to /dev/null, to a pipe and from a
# server, `file` sends to a file, `receive` receives it. They take turns; prints MB/s of each, and
# ratios to `read` or `copy` (median of the rounds' pairs).
#
#   benches/send.sh [ROUNDS [SIZE]]           default 5 rounds of 2G; about 5 minutes
#
# The data compresses to about a half, so 2G are about 1 GB of transfer. Needs fio, nbdinfo, python3,
# a release build and 4 times SIZE of disk below TMPDIR (default /var/tmp, to be on that disk).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
size=${2:-2G}
pumice=${PUMICE:-$PWD/target/release/pumice}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
export PUMICE_RUNTIME_DIR=$folder

uri="nbd+unix:///?socket=$folder/socket"

serve() {
    rm -f "$folder/socket"
    "$pumice" serve "$folder/drive" --unix "$folder/socket" 2> "$folder/log" &
    server=$!
    until nbdinfo --size "$uri" > /dev/null 2>&1; do
        kill -0 "$server"
    done
}

stop() {
    kill "$server"
    wait "$server"
}

# Runs a command and adds a line "name bytes seconds".
measure() { # name bytes command...
    local name=$1 bytes=$2 from
    shift 2
    sync
    from=$(date +%s%N)
    "$@"
    echo "$name $bytes $(($(date +%s%N) - from))" >> "$folder/rounds"
}

read_medium() {
    dd if="$folder/drive" of=/dev/null bs=4M count="$blocks" iflag=direct status=none
}

# As the medium writes: with the sync that send and receive end with.
copy_medium() {
    dd if="$folder/drive" of="$folder/copied" bs=4M count="$blocks" iflag=direct conv=fsync \
        status=none
}

send_to_nothing() {
    "$pumice" send "$folder/drive@a" 2> /dev/null > /dev/null
}

# What a receiver at the other end of a pipe gets.
send_to_pipe() {
    "$pumice" send "$folder/drive@a" 2> /dev/null | dd of=/dev/null bs=1M iflag=fullblock status=none
}

send_to_file() {
    "$pumice" send "$folder/drive@a" --output "$folder/transfer" --force > /dev/null
}

receive() {
    "$pumice" receive "$folder/copy" --create --input "$folder/transfer" > /dev/null
}

"$pumice" create "$folder/drive" --size "$size" > /dev/null
serve
fio --name=fill --ioengine=nbd --uri="$uri" --rw=write --bs=1M --iodepth=8 --size="$size" \
    --refill_buffers --buffer_compress_percentage=50 > /dev/null
"$pumice" snapshot create "$folder/drive@a" > /dev/null
stop
send_to_file
bytes=$(stat -c %s "$folder/transfer")
blocks=$((bytes / (4 << 20)))
for _ in $(seq "$rounds"); do
    measure read "$((blocks * (4 << 20)))" read_medium
    measure send "$bytes" send_to_nothing
    measure pipe "$bytes" send_to_pipe
    measure copy "$((blocks * (4 << 20)))" copy_medium
    measure file "$bytes" send_to_file
    serve
    measure served "$bytes" send_to_nothing
    stop
    rm -f "$folder/copy" "$folder/copied"
    measure receive "$bytes" receive
done
python3 - "$folder/rounds" << 'END'
import collections, statistics, sys

rates = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, count, ns = line.split()
    rates[name].append(int(count) * 1000 / int(ns))
for name, of in rates.items():
    print(f"{name:8} {statistics.median(of):6.0f} MB/s ({min(of):.0f} to {max(of):.0f})")
for name, base in [("send", "read"), ("pipe", "read"), ("served", "read"), ("file", "copy"),
                   ("receive", "copy")]:
    ratios = sorted(one / other for one, other in zip(rates[name], rates[base]))
    print(f"{name} / {base}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
END
