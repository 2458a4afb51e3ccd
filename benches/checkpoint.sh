#!/bin/bash
# What checkpoints cost: random writes of 4 KiB over 8 GiB, the densest map, on a drive with the
# default distance of checkpoints and on one that writes none, in turns. Prints what docs/bench.md
# quotes.
#
#   benches/checkpoint.sh [ROUNDS [SECONDS]]     default 6 rounds of 8 seconds each; about 2 minutes
#
# Needs fio, nbdinfo, python3, a release build and 20 GB of disk below TMPDIR (default /var/tmp).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-6}
seconds=${2:-8}
pumice=$PWD/target/release/pumice
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT

uri() { # side
    echo "nbd+unix:///?socket=$folder/$1.sock"
}

start() { # side argument...
    "$pumice" create "$folder/$1" --size 8G > /dev/null
    "$pumice" serve "$folder/$1" --unix "$folder/$1.sock" "${@:2}" 2> "$folder/$1.log" &
    until nbdinfo --size "$(uri "$1")" > /dev/null 2>&1; do
        kill -0 $!
    done
}

load() { # side: prints the IOPS
    fio --name=load --ioengine=nbd --uri="$(uri "$1")" --rw=randwrite --bs=4k --iodepth=32 --size=8G \
        --time_based=1 --runtime="$seconds" --norandommap --randrepeat=0 --refill_buffers \
        --buffer_compress_percentage=50 --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
print(round(json.loads(text[text.index("{"):])["jobs"][0]["write"]["iops"]))'
}

start default
start none --checkpoint 1T
for round in $(seq "$rounds"); do
    # Each goes first every other time.
    if ((round % 2)); then
        default=$(load default)
        none=$(load none)
    else
        none=$(load none)
        default=$(load default)
    fi
    echo "$default $none"
done | tee "$folder/rounds"
python3 - "$folder/rounds" << 'END'
import statistics, sys
pairs = [tuple(map(int, line.split())) for line in open(sys.argv[1])]
ratios = sorted(default / none for default, none in pairs)
print(f"with checkpoints / without: median {statistics.median(ratios):.3f} "
      f"({ratios[0]:.3f} to {ratios[-1]:.3f})")
END
"$pumice" info "$folder/default" --json | python3 -c '
import json, sys
info = json.load(sys.stdin)
print(info["operations"]["checkpoints"], "checkpoints, metadata",
      round(100 * info["operations"]["meta_bytes"] / info["media_bytes"], 2), "% of media bytes")'
