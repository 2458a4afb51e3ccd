#!/bin/bash
# Runs jobs of fio with fio and with `pumice bench --preset JOB.fio`, taking turns, on one target.
# Prints medians, and the ratio (median of the rounds' pairs) that docs/bench.md quotes.
#
#   benches/job.sh TARGET [ROUNDS [SECONDS]]     default 7 rounds of 2 seconds, five jobs
#
# TARGET is a file, which is created, or a device or NBD URI, which is overwritten. 256 MiB are used.
# Needs fio and python3; PUMICE names the program (default: the release build).
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
rounds=${2:-7}
seconds=${3:-2}
pumice=${PUMICE:-$PWD/target/release/pumice}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-job-XXXXXX")
trap 'rm -rf "$folder"' EXIT

case $target in
nbd*) where="ioengine=nbd
uri=$target" ;;
*) where="ioengine=io_uring
filename=$target" ;;
esac

job() { # name, lines
    cat > "$folder/$1.fio" <<END
[global]
$where
direct=1
size=256m
overwrite=1
refill_buffers
buffer_compress_percentage=50
buffer_compress_chunk=4k
time_based
runtime=$seconds
randrepeat=0
[$1]
$2
END
}
job random-read $'rw=randread\nbs=4k\niodepth=32'
job random-write $'rw=randwrite\nbs=4k\niodepth=32'
job mixed $'rw=randrw\nrwmixread=70\nbs=8k\niodepth=8'
job split $'rw=randrw\nrwmixread=80\nbssplit=4k/60:16k/30:64k/10\niodepth=8'
job read $'rw=read\nbs=128k\niodepth=4'

for ((round = 1; round <= rounds; round++)); do
    for path in "$folder"/*.fio; do
        name=$(basename "$path" .fio)
        echo "$name fio $(fio "$path" --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
print(job["read"]["iops"] + job["write"]["iops"])')"
        rm -f "$folder/result"
        "$pumice" bench "$target" --preset "$path" --runs 1 --seed "$round" --destroy-data \
            --output "$folder/result" > /dev/null 2> "$folder/log"
        echo "$name ours $(tail -1 "$folder/result" | python3 -c '
import json, sys
run = json.load(sys.stdin)
print(run["operations"] / run["seconds"])')"
    done
done | grep -E ' (fio|ours) [0-9]' | tee /dev/stderr | python3 -c '
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
