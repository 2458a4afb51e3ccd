#!/bin/bash
# Compares pumice with qemu-nbd (raw, qcow2) and nbdkit (file, memory) in every cell of
#
#   disk filled {by 4 KiB at random, by 1 MiB in order, aged by skewed overwrites of 8 KiB}
#   x data {98, 50, 2 % compressible}
#   x {random, sequential} {reads, writes, mixed} at depth {1, 8, 32}, writes with and without flush
#
# over Unix sockets, with fio's nbd engine. Prints one table: the ratio of pumice's IOPS to those of
# each other server (median of the rounds' pairs, and their range), the ratio of the 99.9th percentile
# of latency, the weakest cell first.
#
#   benches/matrix.sh [ROUNDS [SECONDS [CELLS]]]    default 3 rounds of 2 seconds, all 180 cells: 2 h
#
# CELLS is a regular expression of cells to measure, such as '^sequential 50 randread'; a cell is
# named FILLING DATA TEST DEPTH. Environment: SIZE of the disks (2G; whole GiB), CAPACITY of the drive
# (20G), PEERS (qemu-raw qemu-qcow2 nbdkit-file nbdkit-memory), PUMICE (the program), SERVE (more
# options of `pumice serve`), TMPDIR (/var/tmp; must be on the disk to measure), RESULTS (a file to
# keep the single results in).
#
# All servers of a filling run at once and idle while another is measured; for each cell they take
# turns. Needs fio, qemu-nbd, qemu-img, nbdkit, nbdinfo, python3, a release build and 30 GB of disk.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3}
seconds=${2:-2}
cells=${3:-.}
size=${SIZE:-2G}
read -ra peers <<< "${PEERS:-qemu-raw qemu-qcow2 nbdkit-file nbdkit-memory}"
pumice=${PUMICE:-$PWD/target/release/pumice}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
results=${RESULTS:-$folder/results}
: > "$results"
stop_servers() {
    # shellcheck disable=SC2046
    kill $(jobs -p) 2> /dev/null || :
    wait || :
}
trap 'stop_servers; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

uri() {
    echo "nbd+unix:///?socket=$folder/$1.sock"
}

start() { # server
    local file=$folder/$1
    rm -f "$file" "$file.sock"
    case $1 in
        pumice)
            "$pumice" create "$file" --size "$size" --capacity "${CAPACITY:-20G}" > /dev/null
            # shellcheck disable=SC2086
            PUMICE_LOG=warn "$pumice" serve "$file" --unix "$file.sock" ${SERVE:-} &
            ;;
        qemu-raw | nbdkit-file)
            # Written once, so that the file system's allocation is not charged.
            fio --name=fill --filename="$file" --size="$size" --rw=write --bs=1M --direct=1 \
                --ioengine=psync --end_fsync=1 > /dev/null
            if [ "$1" = qemu-raw ]; then
                qemu-nbd -f raw --cache=none --aio=io_uring --discard=unmap -e 0 -t \
                    -k "$file.sock" "$file" &
            else
                nbdkit -f -U "$file.sock" file "$file" &
            fi
            ;;
        qemu-qcow2)
            qemu-img create -q -f qcow2 "$file" "$size"
            qemu-nbd -f qcow2 --cache=none --aio=io_uring -t -k "$file.sock" "$file" &
            ;;
        nbdkit-memory) nbdkit -f -U "$file.sock" memory "$size" & ;;
        *)
            echo "unknown server $1" >&2
            exit 2
            ;;
    esac
    for _ in $(seq 400); do
        if nbdinfo --size "$(uri "$1")" > /dev/null 2>&1; then return; fi
    done
    echo "$1 does not answer" >&2
    exit 1
}

run_fio() { # server data, options of fio
    fio --name=x --ioengine=nbd --uri="$(uri "$1")" --size="$size" --refill_buffers --randrepeat=0 \
        --buffer_compress_percentage="$2" --output-format=json "${@:3}"
}

fill() { # server filling data
    case $2 in
        random) run_fio "$1" "$3" --rw=randwrite --bs=4k --iodepth=32 ;;
        sequential) run_fio "$1" "$3" --rw=write --bs=1M --iodepth=8 ;;
        aged)
            run_fio "$1" "$3" --rw=write --bs=1M --iodepth=8 > /dev/null
            # Four times the disk, most of it on a few places, as pages of a database.
            run_fio "$1" "$3" --rw=randwrite --bs=8k --iodepth=8 --norandommap=1 \
                --random_distribution=zipf:1.1 --io_size="$((4 * ${size%G}))G" --fsync=64
            ;;
    esac > /dev/null
}

measure() { # server filling data test depth, options of fio: adds a line of results
    run_fio "$1" "$3" --iodepth="$5" --time_based=1 --runtime="$seconds" "${@:6}" | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
sides = [job[side] for side in ("read", "write") if job[side]["total_ios"]]
tail = max(side["clat_ns"].get("percentile", {}).get("99.900000", 0) for side in sides)
print(*sys.argv[1:6], round(sum(side["iops"] for side in sides), 1), round(tail / 1000, 1))
' "$@" >> "$results"
}

# name, fio's access, block, depths, more options
tests() {
    cat << 'TESTS'
randread randread 4k 1,8,32
seqread-4k read 4k 1,32
seqread-1m read 1M 1,8
randrw randrw 4k 1,8,32 --rwmixread=70
randwrite randwrite 4k 1,8,32
seqwrite-4k write 4k 1,32
seqwrite-1m write 1M 1,8
randwrite+flush randwrite 4k 1,8 --fsync=1
randrw+flush randrw 4k 8 --rwmixread=70 --fsync=1
TESTS
}

for filling in random sequential aged; do
    for data in 98 50 2; do
        wanted=$(tests | while read -r name access block depths more; do
            for depth in ${depths//,/ }; do
                if [[ "$filling $data $name $depth" =~ $cells ]]; then
                    echo "$name $access $block $depth $more"
                fi
            done
        done)
        if [ -z "$wanted" ]; then continue; fi
        echo "filling: $filling, $data %" >&2
        for server in pumice "${peers[@]}"; do
            start "$server"
            fill "$server" "$filling" "$data"
        done
        # Reads first: they find the disk as it was filled.
        while read -r name access block depth more; do
            echo "  $name $depth" >&2
            for _ in $(seq "$rounds"); do
                for server in pumice "${peers[@]}"; do
                    # shellcheck disable=SC2086
                    measure "$server" "$filling" "$data" "$name" "$depth" --rw="$access" \
                        --bs="$block" $more < /dev/null
                done
            done
        done <<< "$wanted"
        stop_servers
    done
done

python3 - "$results" "${peers[@]}" << 'PYTHON'
import collections, statistics, sys

peers = sys.argv[2:]
cells = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    server, filling, data, test, depth, iops, tail = line.split()
    cells[filling, data, test, depth][server].append((float(iops), float(tail)))


def ratios(cell, peer, index):
    pairs = zip(cell["pumice"], cell[peer])
    return sorted(ours[index] / theirs[index] for ours, theirs in pairs if theirs[index])


def shown(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"


def weakness(item):
    values = ratios(item[1], peers[0], 0)
    return statistics.median(values) if values else 0


print(f"| filling, data, test, depth | IOPS | {' | '.join(peers)} | p99.9 / {peers[0]} |")
print("|---" * (len(peers) + 3) + "|")
for name, cell in sorted(cells.items(), key=weakness):
    iops = statistics.median(value[0] for value in cell["pumice"])
    columns = [shown(ratios(cell, peer, 0)) for peer in peers]
    print(f"| {' '.join(name)} | {iops:.0f} | {' | '.join(columns)} |", end=" ")
    print(f"{shown(ratios(cell, peers[0], 1))} |")
PYTHON
