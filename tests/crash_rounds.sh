#!/bin/bash
# Kills the server with SIGKILL under real loads, round after round on the same drive, and checks
# that all data acknowledged as durable is present.
#
#   tests/crash_rounds.sh [--rounds N] [--load NAME]... [--attach] [--seed N] [--pumice PROGRAM]
#                         [--keep]
#
# One round, for each load (default: all four, one round):
#
#   pumice serve - nbdfuse - loop device - load      kill -9 of pumice at a random moment
#   pumice serve - nbdfuse - loop device - check     fsck after the journal was replayed; the
#                                                    load's own check; pumice check
#
# With --attach, `pumice attach` creates the loop device, and is killed.
#
#   fio         random writes with O_DSYNC on the loop device. Each write that returned must verify.
#   ext4, xfs   four threads make, replace and remove files, with fsync; fixtures/files.py checks
#               each file. e2fsck -fn or xfs_repair -n must find nothing.
#   postgresql  pgbench beside two clients that note the number of each committed row, on ext4 and
#               on xfs in turn. After recovery each noted row must be there, the balances must add
#               up, and pg_amcheck, pg_checksums and fsck must find nothing.
#
# fsync reaches the drive as FLUSH through nbdfuse and loop: a round continues only when the
# server's count of flushes grows. Every third round also kills the server within 60 ms of its next
# start. A kill leaves the operating system's page cache alone, so this tests the server's own
# buffers; the simulated power losses of crates/pumice-drive/src/controller/tests/ show that it
# syncs the medium too.
#
# Prints a line a round and a summary. Exit code 0: all clean. 1: a check failed, and everything
# needed to examine it is kept, including the drive as the crash left it (`crashed`). 2: a program
# is missing. 77: no root, FUSE, loop device or file system here. Works in a folder below TMPDIR
# (default /var/tmp), which needs 6 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C.UTF-8

# Number of crashes of a drive before a new one is created, so that young drives crash, too.
ROUNDS_PER_DRIVE=10
CAPACITY=4G
SIZE=512M
# Time limits of a client after the crash, of a step, and of a load.
STEP_SECONDS=60
LOAD_SECONDS=20

# Neither pumice nor nbdfuse may dump core.
ulimit -c 0
rounds=1 seed=$((RANDOM * 32768 + RANDOM)) pumice=$PWD/target/release/pumice keep=no loads=()
by=nbdfuse
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 && shift ;;
    --load) loads+=("$2") && shift ;;
    --attach) by=attach ;;
    --seed) seed=$2 && shift ;;
    --pumice) pumice=$2 && shift ;;
    --keep) keep=yes ;;
    *) echo "unknown argument: $1" >&2 && exit 2 ;;
    esac
    shift
done
[ "${#loads[@]}" -gt 0 ] || loads=(fio ext4 xfs postgresql)
fixture=$PWD/tests/it/fixtures/files.py
# shellcheck source=tests/attached.sh
. tests/attached.sh

check_tools() {
    need "$pumice" losetup setpriv timeout
    [ "$by" = attach ] || need nbdinfo nbdfuse
    local load
    for load in "${loads[@]}"; do
        case $load in
        fio) need fio ;;
        ext4) need python3 mkfs.ext4 e2fsck ;;
        xfs) need python3 mkfs.xfs xfs_repair ;;
        postgresql)
            need mkfs.ext4 mkfs.xfs e2fsck xfs_repair "${pg:-the server of postgresql}/postgres" \
                "$pg/pgbench" "$pg/pg_amcheck" "$pg/pg_checksums"
            id postgres > /dev/null || exit 2 ;;
        *) echo "no load is called $load" >&2 && exit 2 ;;
        esac
    done
    check_mounting
    case ${loads[*]} in *xfs* | *postgresql*)
        grep -qw xfs /proc/filesystems || modprobe xfs 2> /dev/null || cannot "there is no XFS" ;;
    esac
}

# The journal is replayed by mounting; fsck must then find nothing to do.
fsck_disk() {
    mount_disk
    unmount_disk
    local fsck=(e2fsck -fn "$loop")
    [ "$type" = ext4 ] || fsck=(xfs_repair -n "$loop")
    timeout "$STEP_SECONDS" "${fsck[@]}" > "$folder/fsck.log" 2>&1 ||
        fail "${fsck[*]} ended with $?: $(cat "$folder/fsck.log")"
}

make_file_system() {
    if [ "$type" = ext4 ]; then
        mkfs.ext4 -q "$loop" || fail "mkfs.ext4"
    else
        mkfs.xfs -q "$loop" || fail "mkfs.xfs"
    fi
    mount_disk
}

flushes() {
    "$pumice" info "$folder/drive" --json | sed -n 's/^ *"flushes": \([0-9]*\).*/\1/p'
}

# Waits for the clients and demands that each of them met the crash.
join_clients() {
    local client status
    for client in "${clients[@]}"; do
        status=0
        reap "$client" || status=$?
        # 124: timeout ended it.
        case $status in 0 | 124) fail "a client did not meet the crash: exit code $status" ;; esac
    done
    clients=()
}

# ---- fio: every write that returned is verified; those that failed may be anything ----

fio_job() {
    (cd "$folder" && exec timeout "$STEP_SECONDS" fio --name=job --filename="$loop" \
        --ioengine=libaio --iodepth=16 --direct=1 --sync=dsync --rw=randwrite --size="$SIZE" \
        --bssplit=4k/50:16k/25:64k/25 --randseed="$round" --rate=,100m --refill_buffers \
        --buffer_compress_percentage=50 --verify=crc32c --verify_fatal=0 "$@" 2>&1)
}

fio_new() { :; }

fio_resume() { :; }

fio_start() {
    fio_job --do_verify=0 --verify_state_save=1 > "$folder/fio-write.log" &
    clients=($!)
}

fio_crashed() {
    grep -o 'io_u error .* write offset=[0-9]*' "$folder/fio-write.log" | sed 's/.*=//' |
        sort -u > "$folder/fio-failed"
    [ -s "$folder/fio-failed" ] || fail "no write of fio failed"
}

fio_check() {
    # fio keeps its place in a file, and counts writes that failed among those it verifies.
    fio_job --verify_only=1 --verify_state_load=1 --verify_state_save=0 \
        --continue_on_error=verify > "$folder/fio-verify.log" || :
    sed -n 's/.*requested block: offset=\([0-9]*\).*/\1/p' "$folder/fio-verify.log" |
        sort -u > "$folder/fio-bad"
    local lost written verified
    lost=$(comm -13 "$folder/fio-failed" "$folder/fio-bad" | tr '\n' ' ')
    [ -z "$lost" ] || fail "writes that returned do not verify, at offsets $lost"
    written=$(sed -n 's/.*issued rwts: total=[0-9]*,\([0-9]*\),.*/\1/p' "$folder/fio-write.log")
    verified=$(sed -n 's/.*issued rwts: total=\([0-9]*\),.*/\1/p' "$folder/fio-verify.log")
    promised=$((written - $(wc -l < "$folder/fio-failed")))
    [ "$promised" -gt 0 ] && [ "${verified:-0}" -ge "$promised" ] ||
        fail "fio wrote $promised blocks and verified ${verified:-none}"
    promised="$promised writes"
}

# ---- ext4, xfs ----

files_new() {
    type=$load
    make_file_system
    : > "$folder/files.log"
}

files_resume() {
    mount_disk
}

files_start() {
    python3 "$fixture" write --folder "$folder/mount" --log "$folder/files.log" \
        --seed "$seed-$round" --seconds "$LOAD_SECONDS" > "$folder/files-write.log" 2>&1 &
    clients=($!)
}

files_crashed() {
    grep -q 'operations acknowledged' "$folder/files-write.log" ||
        fail "the writer failed: $(cat "$folder/files-write.log")"
}

files_check() {
    fsck_disk
    mount_disk
    promised=$(timeout "$STEP_SECONDS" python3 "$fixture" check --folder "$folder/mount" \
        --log "$folder/files.log" --killed "$killed_us" 2>&1) || fail "files are not as promised: $promised"
    [ "$promised" -gt 0 ] || fail "no file was made durable before the crash"
    promised="$promised files"
}

# ---- postgresql ----

postgresql_new() {
    type=ext4
    [ $((drives % 2)) -eq 1 ] || type=xfs
    make_file_system
    new_postgresql 4 "CREATE TABLE noted (id bigserial PRIMARY KEY, body text NOT NULL,
        digest text GENERATED ALWAYS AS (md5(body)) STORED)"
    : > "$folder/noted-1" > "$folder/noted-2"
}

# psql prints a row once its COMMIT has returned. It ends with the connection; its last line is
# complete.
note_commits() {
    yes 'INSERT INTO noted (body) SELECT repeat(md5(random()::text), 1 + (random() * 99)::int)
         RETURNING id;' 2> /dev/null |
        timeout "$LOAD_SECONDS" setpriv --reuid=postgres --regid=postgres --clear-groups -- \
            "$pg/psql" --no-psqlrc --quiet --no-align --tuples-only --set=ON_ERROR_STOP=1 \
            --host="$folder/run" --dbname=postgres >> "$folder/noted-$1" 2>> "$folder/psql.log"
}

postgresql_resume() {
    mount_disk
    start_postgresql
}

postgresql_start() {
    note_commits 1 &
    clients=($!)
    note_commits 2 &
    clients+=($!)
    as_postgres timeout "$LOAD_SECONDS" "$pg/pgbench" --no-vacuum --client=2 \
        --time="$LOAD_SECONDS" --host="$folder/run" postgres > "$folder/pgbench.log" 2>&1 &
    clients+=($!)
}

postgresql_crashed() {
    stop_postgresql
}

postgresql_check() {
    fsck_disk
    mount_disk
    start_postgresql
    cat "$folder/noted-1" "$folder/noted-2" > "$folder/noted"
    local lost
    lost=$(psql_here <<< "CREATE TEMPORARY TABLE promised (id bigint);
        \\copy promised FROM '$folder/noted'
        SELECT id FROM promised WHERE NOT EXISTS (
            SELECT FROM noted WHERE noted.id = promised.id AND md5(body) = digest) LIMIT 20") ||
        fail "PostgreSQL cannot say which rows are there"
    [ -z "$lost" ] || fail "committed rows are lost:" $lost
    check_postgresql
    stop_postgresql INT
    as_postgres "$pg/pg_checksums" --check -D "$folder/mount/data" \
        > "$folder/checksums.log" 2>&1 || fail "pg_checksums: $(head -n 5 "$folder/checksums.log")"
    promised="$(wc -l < "$folder/noted") commits"
    [ -s "$folder/noted" ] || fail "nothing was committed before the crash"
}

# ---- the rounds ----

new_drive() {
    drives=$((drives + 1))
    rm -f "$folder/drive"
    "$pumice" create "$folder/drive" --size "$SIZE" --capacity "$CAPACITY" > /dev/null ||
        fail "pumice create"
}

# The load is under way, and its fsyncs reach the server.
flushes_arrive() {
    [ "$(flushes)" -ge $((before + 20)) ]
}

run_round() {
    local verbs=$load before after delay killed_us interrupted=''
    case $load in ext4 | xfs) verbs=files ;; esac
    local first=$(((round - 1) % ROUNDS_PER_DRIVE == 0))
    if [ "$first" -eq 1 ]; then new_drive; fi
    attach
    if [ "$first" -eq 1 ]; then "${verbs}_new"; else "${verbs}_resume"; fi
    before=$(flushes)
    "${verbs}_start"
    within_limit flushes_arrive || fail "no flushes reach the server: $before, then $(flushes)"
    delay=$(moment 1500)
    sleep "$delay"
    after=$(flushes)
    killed_us=${EPOCHREALTIME/[.,]/}
    kill_server
    join_clients
    "${verbs}_crashed"
    [ -z "$mounted" ] || unmount_disk
    detach 1
    cp --sparse=auto --reflink=auto "$folder/drive" "$folder/crashed"
    if [ $((round % 3)) -eq 0 ]; then
        if [ "$by" = attach ]; then start_attaching; else serve; fi
        sleep "$(moment 60)"
        kill_server
        interrupted=' and again at its start'
    fi
    attach
    "${verbs}_check"
    [ -z "$mounted" ] || unmount_disk
    detach
    [ "$by" = attach ] || kill -TERM "$server"
    reap "$server" || fail "the server ended with $?: $(tail -n 5 "$folder/server.log")"
    server=
    timeout "$STEP_SECONDS" "$pumice" check "$folder/drive" > "$folder/check.log" 2>&1 ||
        fail "pumice check: $(cat "$folder/check.log")"
    echo "$load round $round of $rounds: killed after $delay s$interrupted," \
        "$((after - before)) flushes, $promised promised and there, all clean"
}

trap cleanup EXIT
trap 'running=no; exit 130' INT TERM
check_tools
echo "seed $seed, $("$pumice" --version)"
RANDOM=$((seed % 32768))
started=$SECONDS running=yes
for load in "${loads[@]}"; do
    folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-crash-$load-XXXXXX")
    # PostgreSQL runs as a user of its own, which needs access to its socket and its data.
    chmod 755 "$folder"
    mkdir "$folder/mount"
    export PUMICE_RUNTIME_DIR=$folder/pumice
    serves=0 drives=0 type=''
    for ((round = 1; round <= rounds; round++)); do run_round; done
    [ "$keep" = yes ] || rm -rf --one-file-system "$folder"
done
echo "$rounds rounds each of ${loads[*]} by $by: all clean, in $((SECONDS - started)) s"
folder=''
