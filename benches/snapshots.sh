#!/bin/bash
# What snapshots cost: random writes of 4 KiB at depths 1 and 32 on drives with 0, 1 and 30 snapshots,
# in turns, each filled in order and then overwritten at random, and on qcow2 images with 0 and 30, as
# a peer; how long one takes to be taken, on a drive of 1 TiB at rest and under that load; how long the
# opening of 1 TiB takes with 22 and 52 snapshots, and a diff of two between which 1 % was written, in
# one piece and scattered in blocks of 4 KiB.
# Prints what docs/bench.md quotes.
#
#   benches/snapshots.sh [ROUNDS [SECONDS]]     default 9 rounds of 4 seconds each; about 15 minutes
#
# Needs fio, nbdinfo, python3, qemu-img, qemu-nbd, a release build and 40 GB of disk below TMPDIR (default /var/tmp).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-9}
seconds=${2:-4}
pumice=$PWD/target/release/pumice
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
export PUMICE_RUNTIME_DIR=$folder

uri() { # side
    echo "nbd+unix:///?socket=$folder/$1.sock"
}

now() {
    date +%s%N
}

serve() { # side: sets reply_ms, the milliseconds until a client has the first reply
    local from
    from=$(now)
    "$pumice" serve "$folder/$1" --unix "$folder/$1.sock" 2> "$folder/$1.log" &
    until nbdinfo --size "$(uri "$1")" > /dev/null 2>&1; do
        kill -0 $!
    done
    reply_ms=$((($(now) - from) / 1000000))
    server=$!
}

peer() { # side: serves a qcow2 image, with flushes as a file has them
    qemu-nbd --format qcow2 --cache none --aio io_uring --shared 8 --persistent \
        --socket "$folder/$1.sock" "$folder/$1" 2> "$folder/$1.log" &
    server=$!
    until nbdinfo --size "$(uri "$1")" > /dev/null 2>&1; do
        kill -0 $!
    done
}

stop() {
    kill "$server"
    wait "$server"
}

load() { # side seconds [option...]: prints IOPS, and p99.9 in us
    fio --name=load --ioengine=nbd --uri="$(uri "$1")" --rw=randwrite --bs=4k --iodepth=32 --size=1G \
        --time_based=1 --runtime="$2" --norandommap --randrepeat=0 --refill_buffers \
        --buffer_compress_percentage=50 --output-format=json "${@:3}" | python3 -c '
import json, sys
text = sys.stdin.read()
side = json.loads(text[text.index("{"):])["jobs"][0]["write"]
print(round(side["iops"]), round(side["clat_ns"]["percentile"]["99.900000"] / 1000))'
}

take() { # side name: prints the milliseconds of the whole command
    local from
    from=$(now)
    "$pumice" snapshot create "$folder/$1@$2" > /dev/null
    echo $((($(now) - from) / 1000000))
}

fill() { # side
    fio --name=fill --ioengine=nbd --uri="$(uri "$1")" --rw=write --bs=1M --iodepth=8 --size=1G \
        --refill_buffers --buffer_compress_percentage=50 > /dev/null
    load "$1" 0 --time_based=0 --io_size=1G > /dev/null
}

for count in 0 1 30; do
    "$pumice" create "$folder/$count" --size 1G --capacity 7G > /dev/null
    serve "$count"
    fill "$count"
    for number in $(seq "$count"); do
        load "$count" 0 --time_based=0 --io_size=1M > /dev/null
        take "$count" "$number" > /dev/null
    done
    # Until all of the file has been written: space that it has to allocate is slower, and snapshots
    # make a drive need it sooner.
    load "$count" 0 --time_based=0 --io_size=14G > /dev/null
done
for count in 0 30; do
    side=qcow2-$count
    qemu-img create -q -f qcow2 "$folder/$side" 1G
    peer "$side"
    fill "$side"
    for number in $(seq "$count"); do
        load "$side" 0 --time_based=0 --io_size=1M > /dev/null
        stop
        qemu-img snapshot -c "$number" "$folder/$side"
        peer "$side"
    done
done
counts=(0 1 30 qcow2-0 qcow2-30)
for round in $(seq "$rounds"); do
    for depth in 1 32; do
        for step in 0 1 2 3 4; do
            count=${counts[$(((round + step) % 5))]}
            echo "$depth $count $(load "$count" "$seconds" --iodepth="$depth")"
        done
    done
done > "$folder/rounds"
python3 - "$folder/rounds" << 'END'
import collections, statistics, sys
sides = collections.defaultdict(list)
for line in open(sys.argv[1]):
    depth, count, iops, p999 = line.split()
    sides[depth, count].append((int(iops), int(p999)))
for depth in ["1", "32"]:
    for count, base in [("1", "0"), ("30", "0"), ("qcow2-30", "qcow2-0"), ("30", "qcow2-30")]:
        for at, what in enumerate(["IOPS", "p99.9"]):
            ratios = sorted(a[at] / b[at] for a, b in zip(sides[depth, count], sides[depth, base]))
            print(f"depth {depth}, {what}, {count} / {base}: median {statistics.median(ratios):.3f} "
                  f"({ratios[0]:.3f} to {ratios[-1]:.3f})")
END
load 0 6 > /dev/null & loading=$!
sleep 1
echo "taken under this load, ms: $(for number in $(seq 20); do take 0 "busy-$number"; done | sort -n | tr '\n' ' ')"
wait "$loading"

"$pumice" create "$folder/large" --size 1T --capacity 1T > /dev/null
serve large
echo "1 TiB, empty: first reply after $reply_ms ms"
fio --name=fill --ioengine=nbd --uri="$(uri large)" --rw=write --bs=1M --iodepth=8 --size=16G \
    --buffer_compress_percentage=95 --refill_buffers > /dev/null
echo "taken with what was just written, ms: $(take large first)"
echo "taken at rest, ms: $(for number in $(seq 20); do take large "rest-$number"; done | sort -n | tr '\n' ' ')"
fio --name=change --ioengine=nbd --uri="$(uri large)" --rw=write --bs=1M --iodepth=8 --size=10486M \
    --offset=3G --buffer_compress_percentage=95 --refill_buffers > /dev/null
take large last > /dev/null
stop
serve large
echo "1 TiB: first reply with 22 snapshots after $reply_ms ms"
for number in $(seq 30); do take large "more-$number" > /dev/null; done
stop
serve large
echo "1 TiB: first reply with 52 snapshots after $reply_ms ms"
fio --name=scatter --ioengine=nbd --uri="$(uri large)" --rw=randwrite --bs=4k --iodepth=32 --size=1T \
    --io_size=10486M --norandommap --randrepeat=0 --buffer_compress_percentage=95 --refill_buffers \
    > /dev/null
echo "taken with leaves of 1 % scattered, ms: $(take large scattered)"
stop
for change in "first last in-one-piece" "last scattered scattered"; do
    read -r since until what <<< "$change"
    from=$(now)
    "$pumice" diff "$folder/large@$since" "$folder/large@$until" > "$folder/diff"
    echo "diff with 1 % changed, $what: $((($(now) - from) / 1000000)) ms"
done
