#!/bin/bash
# Compares a file on ext4 on an attached drive (FUSE and loop device) with the same drive's NBD export
# over a Unix socket, both by fio and taking turns, so that a disk whose speed drifts favours neither.
# Prints each round, medians, and the ratio (median of the rounds' pairs) that docs/operate.md quotes.
#
#   benches/attach.sh [ROUNDS [SECONDS]]     default 3 rounds of 8 seconds, on SIZE=2G; about 4 minutes
#
# Needs root, fio, mkfs.ext4, nbdinfo, python3, a release build (or PUMICE=PROGRAM) and 20 GB of disk.
# Works in a folder below TMPDIR (default /var/tmp), which must be on the disk to measure.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3}
seconds=${2:-8}
pumice=${PUMICE:-$PWD/target/release/pumice}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
export PUMICE_RUNTIME_DIR=$folder/pumice
cleanup() {
    kill $(jobs -p) 2> /dev/null || :
    wait || :
    # A drive that is still attached must keep its files.
    if [ ! -d "$folder/pumice" ] || ! mountpoint -q "$folder/mnt" ||
        "$pumice" detach "$folder/mnt"; then
        rm -rf --one-file-system "$folder"
    fi
}
trap cleanup EXIT
size=${SIZE:-2G}

measure() { # way test rw bs depth, options of the way: adds a line "test way MB/s"
    fio --name=x --rw="$3" --bs="$4" --iodepth="$5" --size="$size" --time_based=1 \
        --runtime="$seconds" --refill_buffers --randrepeat=0 --buffer_compress_percentage=50 \
        --output-format=json "${@:6}" | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job["write" if "write" in sys.argv[3] else "read"]
print(sys.argv[2], sys.argv[1], round(side["bw_bytes"] / 1e6, 1))
' "$1" "$2" "$3" | tee -a "$folder/results"
}

mkdir "$folder/mnt"
for drive in attached served; do
    "$pumice" create "$folder/$drive" --size 4G --capacity 10G > /dev/null
done
"$pumice" attach "$folder/attached" "$folder/mnt" --mkfs ext4 > /dev/null
"$pumice" serve "$folder/served" --unix "$folder/socket" 2> "$folder/log" &
uri="nbd+unix:///?socket=$folder/socket"
until nbdinfo --size "$uri" > /dev/null 2>&1; do :; done
# Written once, so that ext4 is not charged for allocating blocks.
fio --name=fill --filename="$folder/mnt/file" --size="$size" --rw=write --bs=1M --direct=1 \
    --ioengine=psync --end_fsync=1 > /dev/null
fio --name=fill --ioengine=nbd --uri="$uri" --size="$size" --rw=write --bs=1M > /dev/null

while read -r test; do
    name=${test// /-}
    for _ in $(seq "$rounds"); do
        # shellcheck disable=SC2086
        measure nbd "$name" $test --ioengine=nbd --uri="$uri"
        # shellcheck disable=SC2086
        measure attached "$name" $test --ioengine=libaio --direct=1 --filename="$folder/mnt/file"
    done
done <<END
randwrite 4k 32
randread 4k 32
write 1M 8
read 1M 8
END

python3 - "$folder/results" <<'END'
import statistics, sys
runs = {}
for line in open(sys.argv[1]):
    test, way, speed = line.split()
    runs.setdefault(test, {}).setdefault(way, []).append(float(speed))
for test, ways in runs.items():
    nbd, attached = ways["nbd"], ways["attached"]
    ratio = statistics.median(b / a for a, b in zip(nbd, attached))
    medians = statistics.median(nbd), statistics.median(attached)
    print(f"{test}: NBD {medians[0]:.0f} MB/s, attached {medians[1]:.0f} MB/s, {ratio:.2f} x")
END
