#!/bin/bash
# What watching a served drive costs: 1,000 scrapes of /metrics on one connection, idle and under
# fio; processor time of the server with no viewer, and while a browser shows the page.
#
# Usage: benches/watch.sh [PUMICE]
# Needs fio, python3 and chromium. The drive has 1 TiB (32,768 segments of 32 MiB), sparse, in
# $TMPDIR.
set -euo pipefail
PUMICE=$(realpath "${1:-target/release/pumice}")
BROWSER=$(realpath "$(dirname "$0")/../tests/it/fixtures/browser.py")
DIRECTORY=$(mktemp -d)
export PUMICE_RUNTIME_DIR="$DIRECTORY/pumice"
cd "$DIRECTORY"
SERVER=
trap 'kill $SERVER 2> /dev/null || true; wait; rm -rf "$DIRECTORY"' EXIT

"$PUMICE" create drive --size 1T > /dev/null
"$PUMICE" serve drive --unix socket --http 127.0.0.1:0 2> log &
SERVER=$!
until grep -q 'url=http' log; do sleep 0.1; done
ADDRESS=$(sed -n 's|.*url=http://\(.*\)/|\1|p' log)

# User and system time of the server in ticks of 10 ms.
ticks() {
    awk '{ print $14 + $15 }' "/proc/$SERVER/stat"
}

# scrape COUNT PATH: times of COUNT requests.
scrape() {
    python3 - "$ADDRESS" "$1" "$2" << 'PYTHON'
import http.client, re, sys, time
host, count, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
connection, whole, thread = http.client.HTTPConnection(host), [], []
for _ in range(count):
    began = time.perf_counter()
    connection.request("GET", path)
    body = connection.getresponse().read()
    whole.append(time.perf_counter() - began)
    found = re.search(rb"\npumice_snapshot_duration_seconds (\S+)", body)
    thread += [float(found[1])] if found else []
for name, times in [("whole request", whole), ("drives' thread", thread)]:
    if times:
        times.sort()
        middle, high = times[count // 2] * 1e6, times[count * 99 // 100] * 1e6
        print(f"{path}: {name} median {middle:.1f} us, p99 {high:.1f} us, {len(body)} bytes")
PYTHON
}

before=$(ticks)
scrape 1000 /metrics
echo "processor time: $((($(ticks) - before) * 10)) us a scrape"
scrape 300 /api/snapshot
scrape 300 '/api/drives/drive/segments?cells=1024'

before=$(ticks)
sleep 30
echo "no viewer: $(($(ticks) - before)) ticks of 3000"

python3 - "$BROWSER" "http://$ADDRESS/" "$DIRECTORY/profile" << 'PYTHON' > looking &
import sys, time
path, url, profile = sys.argv[1:]
exec(open(path).read().replace("\nmain()\n", "\n"))
browser = Browser(profile)
browser.show(1280, 900, dark=False)
browser.ask("Page.navigate", url=url)
browser.until("the page", "document.querySelector('#host-write') !== null")
time.sleep(3)
print("looking", flush=True)
time.sleep(36)
browser.child.kill()
browser.child.wait()
PYTHON
LOOKER=$!
until grep -q looking looking; do sleep 0.2; done
before=$(ticks)
sleep 30
echo "one looks: $(($(ticks) - before)) ticks of 3000"
wait $LOOKER

timeout 60 fio --name=load --ioengine=nbd --rw=randwrite --bs=4k --size=4g --iodepth=32 \
    --time_based --runtime=20 --buffer_compress_percentage=50 --refill_buffers=1 \
    --uri="nbd+unix:///?socket=$DIRECTORY/socket" > fio.log 2>&1 &
LOAD=$!
sleep 5
echo "under 4 KiB random writes at depth 32:"
scrape 200 /metrics
wait $LOAD
grep -o 'IOPS=[0-9.k]*' fio.log
