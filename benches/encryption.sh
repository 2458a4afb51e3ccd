#!/bin/bash
# What encryption costs: random writes and reads of 4 KiB over NBD, at depth 32, of data that compresses
# to about a half, on a plain and an encrypted drive in turn. Prints IOPS of each, and the ratio of the
# encrypted to the plain drive (median of the rounds' pairs).
#
#   benches/encryption.sh [ROUNDS [SECONDS [SIZE]]]      default 5 rounds of 10 s, 2G; about 4 minutes
#
# Needs fio, nbdinfo, python3, a release build and 4 times SIZE of disk below TMPDIR (default /var/tmp,
# to be on that disk).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
seconds=${2:-10}
size=${3:-2G}
pumice=${PUMICE:-$PWD/target/release/pumice}
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bench-XXXXXX")
trap 'kill $(jobs -p) 2> /dev/null || :; wait || :; rm -rf "$folder"' EXIT
export PUMICE_RUNTIME_DIR=$folder

uri="nbd+unix:///?socket=$folder/socket"
head -c 32 /dev/urandom > "$folder/key"
declare -A flags=([plain]="" [encrypted]="--key-file $folder/key")

serve() { # kind
    rm -f "$folder/socket"
    # shellcheck disable=SC2086
    "$pumice" serve "$folder/$1" ${flags[$1]} --unix "$folder/socket" 2> "$folder/log" &
    server=$!
    until nbdinfo --size "$uri" > /dev/null 2>&1; do
        kill -0 "$server"
    done
}

stop() {
    kill "$server"
    wait "$server"
}

load() { # name rw more...
    fio --name="$1" --ioengine=nbd --uri="$uri" --rw="$2" --size="$size" --refill_buffers \
        --buffer_compress_percentage=50 --output-format=json "${@:3}"
}

"$pumice" create "$folder/plain" --size "$size" > /dev/null
"$pumice" create "$folder/encrypted" --size "$size" --encrypt --key-file "$folder/key" > /dev/null
for kind in plain encrypted; do
    serve "$kind"
    load fill write --bs=4k --iodepth=32 > /dev/null
    stop
done

for ((round = 0; round < rounds; round++)); do
    for kind in plain encrypted; do
        serve "$kind"
        for job in randwrite randread; do
            load "$job" "$job" --bs=4k --iodepth=32 --time_based --runtime="$seconds" \
                > "$folder/result"
            python3 - "$kind" "$job" "$folder/result" >> "$folder/rounds" << 'END'
import json
import sys

kind, job, path = sys.argv[1:]
text = open(path).read()
done = json.loads(text[text.index("{"):])["jobs"][0]["write" if job == "randwrite" else "read"]
print(job, kind, done["iops"])
END
        done
        stop
    done
done

python3 - "$folder/rounds" << 'END'
import statistics
import sys

found = {}
for line in open(sys.argv[1]):
    job, kind, iops = line.split()
    found.setdefault((job, kind), []).append(float(iops))
for job in ("randwrite", "randread"):
    plain, encrypted = found[job, "plain"], found[job, "encrypted"]
    ratio = statistics.median(b / a for a, b in zip(plain, encrypted))
    print(f"{job}: plain {statistics.median(plain):.0f}, "
          f"encrypted {statistics.median(encrypted):.0f} IOPS, {ratio:.3f}")
END
for kind in plain encrypted; do
    echo "$kind: $(stat -c %b "$folder/$kind") blocks of 512 bytes on the medium"
done
