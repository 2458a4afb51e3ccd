#!/bin/bash
# Runs pgbench on ext4 on an attached drive, on ext4 on a loop device on a raw file, and on btrfs with
# zstd:1 on another. All three databases run at once and idle while another is measured; they take
# turns, and each turn begins with a checkpoint. Prints each round's transactions per second, the
# ratios (median of the rounds' pairs) and the space below the file systems.
#
#   benches/postgres.sh [ROUNDS [SECONDS [SCALE]]]    default 5 rounds of 20 s, scale 100; 20 minutes
#
# BUSY=1 loads one core meanwhile. Environment: PUMICE (the program), WAYS (pumice raw btrfs), TMPDIR
# (/var/tmp; must be on the disk to measure). Needs root, PostgreSQL with pgbench, mkfs.ext4,
# mkfs.btrfs, python3, a release build and 30 GB of disk.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
seconds=${2:-20}
scale=${3:-100}
size=${SIZE:-12G}
read -ra ways <<< "${WAYS:-pumice raw btrfs}"
pumice=${PUMICE:-$PWD/target/release/pumice}
bin=$(for dir in /usr/lib/postgresql/*/bin; do echo "$dir"; done | sort -V | tail -1)
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
export PUMICE_RUNTIME_DIR=$folder/run/pumice
chmod 755 "$folder"
mkdir -m 700 "$folder/run"
declare -A port=([pumice]=54321 [raw]=54322 [btrfs]=54323)

as_postgres() {
    setpriv --reuid=postgres --regid=postgres --clear-groups env HOME="$folder" "$@"
}

cleanup() {
    # shellcheck disable=SC2046
    kill $(jobs -p) 2> /dev/null || :
    local way
    for way in "${ways[@]}"; do
        as_postgres "$bin/pg_ctl" -D "$folder/$way/data" -m fast stop > /dev/null 2>&1 || :
        if ! mountpoint -q "$folder/$way"; then continue; fi
        if [ "$way" = pumice ]; then
            "$pumice" detach "$folder/$way" > /dev/null || return
        else
            umount "$folder/$way" || return
        fi
    done
    rm -rf --one-file-system "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

make_file_system() { # way
    mkdir "$folder/$1"
    if [ "$1" = pumice ]; then
        "$pumice" create "$folder/drive" --size "$size" > /dev/null
        "$pumice" attach "$folder/drive" "$folder/$1" --mkfs ext4 > /dev/null
        return
    fi
    # Written once, so that the file system's allocation is not charged.
    dd if=/dev/zero of="$folder/$1.img" bs=1M count=$((${size%G} * 1024)) oflag=direct status=none
    if [ "$1" = btrfs ]; then
        mkfs.btrfs -q "$folder/$1.img" > /dev/null
        mount -o loop,compress=zstd:1 "$folder/$1.img" "$folder/$1"
    else
        mkfs.ext4 -q -E nodiscard "$folder/$1.img"
        mount -o loop "$folder/$1.img" "$folder/$1"
    fi
}

make_database() { # way
    mkdir "$folder/$1/data"
    chown postgres: "$folder/$1/data"
    as_postgres "$bin/initdb" -D "$folder/$1/data" --auth=trust > /dev/null
    cat >> "$folder/$1/data/postgresql.conf" << CONF
port = ${port[$1]}
listen_addresses = ''
unix_socket_directories = '$folder/$1/data'
shared_buffers = 256MB
max_wal_size = 4GB
CONF
    as_postgres "$bin/pg_ctl" -D "$folder/$1/data" -l "$folder/$1/data/log" -w start > /dev/null
    bench "$1" -i -s "$scale" -q 2> /dev/null
}

bench() { # way, options of pgbench
    as_postgres "$bin/pgbench" -h "$folder/$1/data" -p "${port[$1]}" "${@:2}" postgres
}

measure() { # way name, options of pgbench: adds a line "name way tps"
    as_postgres "$bin/psql" -q -h "$folder/$1/data" -p "${port[$1]}" -c checkpoint postgres
    local tps
    tps=$(bench "$1" -c 8 -j 2 -T "$seconds" "${@:3}" 2> /dev/null |
        sed -n 's/^tps = \([0-9.]*\).*/\1/p')
    echo "$2 $1 $tps" | tee -a "$folder/results"
}

for way in "${ways[@]}"; do
    make_file_system "$way"
    make_database "$way"
done
if [ -n "${BUSY:-}" ]; then
    timeout 7200 sh -c 'while :; do :; done' &
fi
for _ in $(seq "$rounds"); do
    for way in "${ways[@]}"; do measure "$way" read-write; done
    for way in "${ways[@]}"; do measure "$way" read-only -S; done
done

# What lies below: blocks in use of the file system, or of the drive's file.
sync
for way in "${ways[@]}"; do
    if [ "$way" = pumice ]; then
        used=$("$pumice" info "$folder/drive" --json | python3 -c '
import json, sys
info = json.load(sys.stdin)
print(info["live_bytes"] if "live_bytes" in info else info["space"]["live_bytes"])')
    else
        used=$(df --output=used -B1 "$folder/$way" | tail -1)
    fi
    echo "space $way $used" | tee -a "$folder/results"
done

python3 - "$folder/results" "${ways[@]}" << 'PYTHON'
import collections, statistics, sys

ways = sys.argv[2:]
rows = collections.defaultdict(list)
for line in open(sys.argv[1]):
    test, way, value = line.split()
    rows[test, way].append(float(value))
print()
for test in ("read-write", "read-only", "space"):
    for other in ways[1:]:
        pairs = zip(rows[test, ways[0]], rows[test, other])
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        median = statistics.median(ratios)
        print(f"{test:10} {ways[0]} / {other:6} {median:5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
PYTHON
