#!/bin/bash
# Compares a mirror of two devices with one device, all of the same limited speed, and measures how
# fast a member is rebuilt. Prints each round, medians, and the ratios that docs/operate.md promises:
# writes of a mirror >= 0.9 x one device, reads >= 1.5 x, a rebuild >= 0.8 x the device.
#
#   benches/mirror.sh [ROUNDS [SECONDS]]     default 3 rounds of 8 seconds; about 3 minutes
#
# Each device is a loop device that passes RATE bytes a second each way (default 100M): on a file in
# memory, limited by the block controller of a cgroup; where there is no such controller, on a file
# of nbdfuse, limited by nbdkit's rate filter.
# Needs root, fio with its NBD engine, losetup, nbdinfo, python3, nbdkit and nbdfuse in the latter
# case, and a release build (or PUMICE=PROGRAM).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3}
seconds=${2:-8}
size=${SIZE:-1G}
rate=${RATE:-100M}
pumice=${PUMICE:-$PWD/target/release/pumice}
folder=$(mktemp -d "${TMPDIR:-/dev/shm}/pumice-bench-XXXXXX")
group=/sys/fs/cgroup/pumice-bench-$$
export PUMICE_RUNTIME_DIR=$folder/pumice
devices=()
helpers=()
server=
stop() {
    [ -z "$server" ] || { kill "$server" 2> /dev/null && wait "$server"; } || :
    server=
}
cleanup() {
    stop
    for device in "${devices[@]}"; do losetup --detach "$device" || :; done
    for mounted in "$folder"/nbdfuse-*; do umount --lazy "$mounted" 2> /dev/null || :; done
    [ ${#helpers[@]} = 0 ] || kill "${helpers[@]}" 2> /dev/null || :
    wait || :
    rmdir "$group" 2> /dev/null || :
    rm -rf --one-file-system "$folder"
}
trap cleanup EXIT

limited=no
if grep -qw io /sys/fs/cgroup/cgroup.controllers 2> /dev/null &&
    echo +io > /sys/fs/cgroup/cgroup.subtree_control 2> /dev/null && mkdir "$group"; then
    limited=yes
fi
bytes=$(numfmt --from=iec "$rate")
by_cgroup() { # number bytes: adds a device
    truncate -s "$2" "$folder/backing-$1"
    local device major
    device=$(losetup --find --show --direct-io=off "$folder/backing-$1")
    devices+=("$device")
    major=$(lsblk -ndo MAJ:MIN "$device" | tr -d ' ')
    echo "$major rbps=$bytes wbps=$bytes" > "$group/io.max"
}

by_nbdkit() { # number bytes: adds a device
    local uri="nbd+unix:///?socket=$folder/nbdkit-$1" file=$folder/nbdfuse-$1/file
    # Its buckets hold what passes in a twentieth of a second: otherwise short loads are all burst.
    nbdkit --foreground --unix "$folder/nbdkit-$1" --filter=rate memory "$2" \
        rate=$((bytes * 8)) burstiness=0.05 &
    helpers+=($!)
    until nbdinfo --size "$uri" > /dev/null 2>&1; do kill -0 "${helpers[-1]}"; done
    mkdir "$folder/nbdfuse-$1"
    nbdfuse "$file" "$uri" &
    helpers+=($!)
    until [ -s "$file" ]; do kill -0 "${helpers[-1]}"; done
    devices+=("$(losetup --find --show --direct-io=on "$file")")
}

for number in 1 2 3 4; do
    room=$(($(numfmt --from=iec "$size") * 2))
    if [ $limited = yes ]; then
        by_cgroup "$number" "$room"
    else
        by_nbdkit "$number" "$room"
    fi
done
"$pumice" create "${devices[0]}" --size "$size" --force > /dev/null
"$pumice" create "${devices[1]}" "${devices[2]}" --mirror --size "$size" --force > /dev/null

serve() { # device: sets $uri
    stop
    (
        [ $limited = no ] || echo $BASHPID > "$group/cgroup.procs"
        exec "$pumice" serve "$1" --unix "$folder/socket" --cache 0
    ) 2> "$folder/log" &
    server=$!
    uri="nbd+unix:///?socket=$folder/socket"
    until nbdinfo --size "$uri" > /dev/null 2>&1; do kill -0 $server; done
}

measure() { # name way rw bs depth: adds a line "name way MB/s"
    fio --name=x --ioengine=nbd --uri="$uri" --rw="$3" --bs="$4" --iodepth="$5" --size="$size" \
        --time_based=1 --runtime="$seconds" --refill_buffers --randrepeat=0 \
        --buffer_compress_percentage=0 --end_fsync=1 --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job["write" if "write" in sys.argv[3] else "read"]
print(sys.argv[1], sys.argv[2], round(side["bw_bytes"] / 1e6, 1))
' "$1" "$2" "$3" | tee -a "$folder/results"
}

for _ in $(seq "$rounds"); do
    for way in one mirror; do
        if [ $way = one ]; then serve "${devices[0]}"; else serve "${devices[1]}"; fi
        measure write $way write 1M 8
        measure randwrite $way randwrite 16k 32
        measure read $way read 1M 8
        measure randread $way randread 16k 32
    done
done
serve "${devices[1]}"
begun=$(date +%s.%N)
"$pumice" device replace "${devices[1]}" "${devices[2]}" "${devices[3]}" --force > /dev/null
ended=$(date +%s.%N)
used=$("$pumice" info "${devices[1]}" --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["occupied_bytes"])')

python3 - "$folder/results" "$begun" "$ended" "$used" "$bytes" <<'END'
import statistics, sys
runs = {}
for line in open(sys.argv[1]):
    test, way, speed = line.split()
    runs.setdefault(test, {}).setdefault(way, []).append(float(speed))
for test, ways in runs.items():
    one, mirror = ways["one"], ways["mirror"]
    ratio = statistics.median(b / a for a, b in zip(one, mirror))
    print(f"{test}: one {statistics.median(one):.0f} MB/s, mirror {statistics.median(mirror):.0f} MB/s, {ratio:.2f} x")
seconds, used, rate = float(sys.argv[3]) - float(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
speed = used / seconds / 1e6
share = speed * 1e6 / rate
print(f"rebuild: {used / 1e6:.0f} MB in {seconds:.1f} s, {speed:.0f} MB/s, {share:.2f} x the device")
END
