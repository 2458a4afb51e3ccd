#!/bin/bash
# Drives in buckets of real object servers: each server that is installed is started on loopback,
# and a drive in it is written by fio and by PostgreSQL on ext4, killed, and taken over elsewhere
# after its journal was deleted.
#
#   tests/bucket_servers.sh [--server NAME]... [--seed N] [--pumice PROGRAM] [--keep]
#
# For each server (default: all of them; those that are not installed are named and left out):
#
#   fio         random writes over NBD. Once the bucket has everything: kill -9, and the journal is
#               deleted. Another machine's journal takes the drive over; every write must verify.
#   postgresql  a client commits numbered rows, on ext4. The number N of a row is noted, and until the
#               bucket has that the load goes on; kill -9 under load, and the journal is deleted.
#               After the take-over there are the rows 1 to K, without a gap, and K is N or more;
#               the balances of pgbench add up, pg_amcheck and e2fsck find nothing.
#   both        pumice check finds nothing, in the bucket alone
#
# A server that is known to create objects twice under If-None-Match is also started: `create` must
# refuse it with a line that states why, and leave no journal.
#
#   versitygw   go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
#   minio       go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
#   moto        pip install 'moto[server]'
#   s3s-fs      cargo install s3s-fs --features binary     (the one that must be refused)
#
# Prints a line for each step. Exit codes as in crash_rounds.sh: 0 all is well, 1 a check failed and
# everything is kept, 2 a program is missing, 77 no root, FUSE, loop device or server. Works in a
# folder below TMPDIR (default /var/tmp), which needs 2 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C.UTF-8

# Time limit of a step.
STEP_SECONDS=120
SIZE=256M
# Less than is written, so that segments are read from the bucket.
JOURNAL=128M
# Attempts to create a drive on a server that must be refused.
REFUSALS=5
KEY=pumice SECRET=pumice-secret BUCKET=drives
EMPTY=$(sha256sum < /dev/null | cut -d ' ' -f 1)

# Neither pumice nor nbdfuse may dump core.
ulimit -c 0
seed=$((RANDOM * 32768 + RANDOM)) pumice=$PWD/target/release/pumice keep=no servers=()
by=nbdfuse load='' round=1 rounds=1 type=ext4 store=''
while [ $# -gt 0 ]; do
    case $1 in
    --server) servers+=("$2") && shift ;;
    --seed) seed=$2 && shift ;;
    --pumice) pumice=$(realpath "$2") && shift ;;
    --keep) keep=yes ;;
    *) echo "unknown argument: $1" >&2 && exit 2 ;;
    esac
    shift
done
[ "${#servers[@]}" -gt 0 ] || servers=(versitygw minio moto s3s-fs)
# shellcheck source=tests/attached.sh
. tests/attached.sh

check_tools() {
    need "$pumice" curl fio qemu-io losetup setpriv timeout nbdinfo nbdfuse mkfs.ext4 e2fsck \
        "${pg:-the server of postgresql}/postgres" "$pg/pgbench" "$pg/pg_amcheck"
    id postgres > /dev/null || exit 2
    check_mounting
}

# ---- the object servers ----

program_of() {
    case $1 in
    moto) echo moto_server ;;
    versitygw | minio | s3s-fs) echo "$1" ;;
    *) echo "no server is called $1" >&2 && exit 2 ;;
    esac
}

# A port that was free a moment ago, below those that the kernel assigns.
free_port() {
    local port
    for port in $(shuf --input-range=20000-29999 --head-count=50); do
        (: > "/dev/tcp/127.0.0.1/$port") 2> /dev/null || { echo "$port" && return; }
    done
    fail "no port is free"
}

store_listens() {
    ended "$store" || (: > "/dev/tcp/127.0.0.1/$port") 2> /dev/null
}

bucket_is_made() {
    # curl signs the request, but its caller must supply the checksum of the empty body.
    ended "$store" || curl --silent --fail --request PUT --user "$KEY:$SECRET" \
        --aws-sigv4 aws:amz:us-east-1:s3 --header "x-amz-content-sha256: $EMPTY" \
        "$AWS_ENDPOINT_URL/$BUCKET"
}

start_store() {
    local data=$folder/objects
    mkdir "$data"
    port=$(free_port)
    # The process in the background is the server itself, so that it can be ended.
    case $load in
    versitygw)
        mkdir "$data/buckets" "$data/sidecar"
        exec versitygw --port "127.0.0.1:$port" --access "$KEY" --secret "$SECRET" --quiet \
            posix --sidecar "$data/sidecar" "$data/buckets" ;;
    minio)
        MINIO_ROOT_USER=$KEY MINIO_ROOT_PASSWORD=$SECRET MINIO_BROWSER=off MINIO_UPDATE=off \
            exec minio server --quiet --address "127.0.0.1:$port" "$data" ;;
    moto) exec moto_server -H 127.0.0.1 -p "$port" ;;
    s3s-fs) exec s3s-fs --host 127.0.0.1 --port "$port" --access-key "$KEY" \
        --secret-key "$SECRET" "$data" ;;
    esac > "$folder/store.log" 2>&1 &
    store=$!
    export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_REGION=us-east-1
    export AWS_ACCESS_KEY_ID=$KEY AWS_SECRET_ACCESS_KEY=$SECRET
    within_limit store_listens && ! ended "$store" && within_limit bucket_is_made &&
        ! ended "$store" || fail "the server does not come up: $(tail -n 5 "$folder/store.log")"
}

stop_store() {
    [ -z "$store" ] || kill -TERM "$store" 2> /dev/null || :
    [ -z "$store" ] || within_limit ended "$store" || kill -KILL "$store" || :
    [ -z "$store" ] || reap "$store" || :
    store=''
}

# Passes the exit code on to the next cleanup.
kill_store() {
    local status=$?
    [ -z "$store" ] || kill -KILL "$store" 2> /dev/null || :
    return "$status"
}

# ---- a drive ----

create() { # NAME
    place=s3://$BUCKET/$1
    export PUMICE_RUNTIME_DIR=$folder/pumice-$1
    "$pumice" create "$place" --size "$SIZE" --segment 4M --journal "$folder/drive" \
        --journal-size "$JOURNAL" --lag 1 --lag-max 32M > "$folder/create.log" 2>&1 ||
        fail "pumice create: $(cat "$folder/create.log")"
}

start_server() {
    serve
    within_limit answers && ! ended "$server" ||
        fail "the server does not come up: $(tail -n 5 "$folder/server.log")"
}

has_committed() {
    "$pumice" info "$folder/drive" --json > "$folder/info.json"
    grep -q '"lag_bytes": 0,' "$folder/info.json" && grep -q '"lag_ns": 0,' "$folder/info.json"
}

commit_of() {
    sed -n 's/^ *"commit": \([0-9]*\).*/\1/p' <<< "$("$pumice" info "$folder/drive" --json)"
}

has_commit() {
    [ "$(commit_of)" -ge "$1" ]
}

is_readable() {
    qemu-io -r -f raw -c 'read 0 4k' "$uri" | grep -q '^read 4096/4096'
}

milliseconds() {
    local now=${EPOCHREALTIME/[.,]/}
    echo $(((now - $1) / 1000))
}

# The machine is gone, and its disk: another one takes over. Sets `times`, the durations.
take_over() {
    local from=${EPOCHREALTIME/[.,]/} taken
    rm "$folder/drive"
    export PUMICE_RUNTIME_DIR=$PUMICE_RUNTIME_DIR-else
    "$pumice" create "$place" --take-over --journal "$folder/drive" --journal-size "$JOURNAL" \
        --lag-max 32M > "$folder/create.log" 2>&1 ||
        fail "pumice create --take-over: $(cat "$folder/create.log")"
    taken=$(milliseconds "$from")
    serve
    within_limit is_readable && ! ended "$server" ||
        fail "no answer after the take-over: $(tail -n 5 "$folder/server.log")"
    times="taken over in $taken ms, first reply after $(milliseconds "$from") ms"
}

end_server() {
    kill -TERM "$server"
    reap "$server" || fail "the server ended with $?: $(tail -n 5 "$folder/server.log")"
    server=''
    local path
    for path in "$folder/drive" "$place"; do
        timeout "$STEP_SECONDS" "$pumice" check "$path" > "$folder/check.log" 2>&1 ||
            fail "pumice check $path: $(cat "$folder/check.log")"
    done
    rm "$folder/drive"
}

# ---- fio ----

fio_job() {
    (cd "$folder" && exec timeout "$STEP_SECONDS" fio --name=job --ioengine=nbd --uri="$uri" \
        --iodepth=16 --rw=randwrite --size="$SIZE" --io_size=192M --bssplit=4k/50:16k/25:64k/25 \
        --randseed="$((seed % 32768))" --refill_buffers --buffer_compress_percentage=50 \
        --verify=crc32c --verify_fatal=1 "$@")
}

issued() { # FILE FIELD
    sed -n "s/.*issued rwts: total=\([0-9]*\),\([0-9]*\),.*/\\$2/p" "$1"
}

run_fio() {
    create fio
    start_server
    fio_job --do_verify=0 --verify_state_save=1 --end_fsync=1 > "$folder/fio-write.log" 2>&1 ||
        fail "fio: $(tail -n 5 "$folder/fio-write.log")"
    within_limit has_committed || fail "the bucket lags: $(cat "$folder/info.json")"
    kill_server
    take_over
    fio_job --verify_only=1 --verify_state_load=1 > "$folder/fio-verify.log" 2>&1 ||
        fail "fio does not find what it has written: $(tail -n 9 "$folder/fio-verify.log")"
    local written verified
    written=$(issued "$folder/fio-write.log" 2)
    verified=$(issued "$folder/fio-verify.log" 1)
    [ "${written:-0}" -gt 0 ] && [ "${verified:-0}" -ge "$written" ] ||
        fail "fio wrote ${written:-no} blocks and verified ${verified:-none}"
    end_server
    echo "$load, fio: $written writes verified after the take-over; $times"
}

# ---- PostgreSQL on ext4 ----

# One client, so that each number is committed after the previous one. psql prints a number once its
# COMMIT has returned.
start_rows() {
    seq --format='INSERT INTO rows VALUES (%.0f) RETURNING id;' 10000000 2> /dev/null |
        timeout "$STEP_SECONDS" setpriv --reuid=postgres --regid=postgres --clear-groups -- \
            "$pg/psql" --no-psqlrc --quiet --no-align --tuples-only --set=ON_ERROR_STOP=1 \
            --host="$folder/run" --dbname=postgres > "$folder/rows" 2>> "$folder/psql.log" &
    clients=($!)
    as_postgres timeout "$STEP_SECONDS" "$pg/pgbench" --no-vacuum --client=2 \
        --time="$STEP_SECONDS" --host="$folder/run" postgres > "$folder/pgbench.log" 2>&1 &
    clients+=($!)
}

join_clients() {
    local client
    for client in "${clients[@]}"; do reap "$client" || :; done
    clients=()
}

has_rows() {
    [ "$(grep -c . "$folder/rows")" -ge 50 ]
}

run_postgresql() {
    create postgresql
    attach
    mkfs.ext4 -q "$loop" || fail "mkfs.ext4"
    mount_disk
    new_postgresql 4 "CREATE TABLE rows (id bigint PRIMARY KEY)"
    start_rows
    within_limit has_rows || fail "no rows are committed: $(tail -n 5 "$folder/psql.log")"
    local noted commit lost found
    noted=$(grep -c . "$folder/rows")
    # The commit after the next was certainly cut after that row.
    commit=$(commit_of)
    within_limit has_commit $((commit + 2)) || fail "no commits are made under load"
    sleep "$(moment 1500)"
    kill_server
    join_clients
    stop_postgresql
    unmount_disk
    detach
    lost=$(grep -c . "$folder/rows")
    take_over
    kill -TERM "$server"
    reap "$server" || fail "the server ended with $?: $(tail -n 5 "$folder/server.log")"
    attach
    mount_disk
    unmount_disk
    timeout "$STEP_SECONDS" e2fsck -fn "$loop" > "$folder/fsck.log" 2>&1 ||
        fail "e2fsck ended with $?: $(cat "$folder/fsck.log")"
    mount_disk
    start_postgresql
    found=$(psql_here --command="SELECT count(*) = max(id), max(id) FROM rows") ||
        fail "PostgreSQL cannot count its rows"
    case $found in "t|"*) ;; *) fail "the rows have gaps: $found" ;; esac
    found=${found#t|}
    [ "$found" -ge "$noted" ] || fail "the bucket had row $noted, and $found are left"
    check_postgresql
    stop_postgresql INT
    unmount_disk
    detach
    end_server
    echo "$load, postgresql: $lost rows committed, $noted of them noted as in the bucket," \
        "$found there after the take-over, no gaps; $times"
}

# ---- a server that must be refused ----

run_refused() {
    local attempt code
    for ((attempt = 1; attempt <= REFUSALS; attempt++)); do
        code=0
        "$pumice" create "s3://$BUCKET/refused-$attempt" --size "$SIZE" \
            --journal "$folder/drive" > "$folder/create.log" 2>&1 || code=$?
        [ "$code" -eq 2 ] || fail "create ended with $code: $(cat "$folder/create.log")"
        grep -q 'does not create objects exclusively' "$folder/create.log" ||
            fail "create does not say why: $(cat "$folder/create.log")"
        [ "$(wc -l < "$folder/create.log")" -eq 1 ] || fail "create says more than a line"
        [ ! -e "$folder/drive" ] || fail "a journal is left"
    done
    echo "$load: refused $REFUSALS times of $REFUSALS: $(cat "$folder/create.log")"
}

run_server() {
    folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-bucket-$load-XXXXXX")
    # PostgreSQL runs as a user of its own, which needs access to its socket and its data.
    chmod 755 "$folder"
    mkdir "$folder/mount"
    serves=0
    start_store
    case $load in
    s3s-fs) run_refused ;;
    *)
        run_fio
        run_postgresql ;;
    esac
    stop_store
    [ "$keep" = yes ] || rm -rf --one-file-system "$folder"
    folder=''
    done_with+=("$load")
}

check_tools
echo "seed $seed, $("$pumice" --version)"
RANDOM=$((seed % 32768))
started=$SECONDS running=yes done_with=()
trap 'if kill_store; then cleanup; else cleanup; fi' EXIT
trap 'running=no; exit 130' INT TERM
for load in "${servers[@]}"; do
    program=$(program_of "$load")
    if [ -z "$(command -v "$program")" ]; then
        echo "$load: left out: $program is not installed"
        continue
    fi
    run_server
done
[ "${#done_with[@]}" -gt 0 ] || cannot "no object server is installed"
echo "${done_with[*]}: all is well, in $((SECONDS - started)) s"
