#!/bin/bash
# A year of daily backups of a PostgreSQL under load, in minutes: each day a snapshot of the served
# drive and an incremental send to a second drive, with kills in between, and restores that are
# compared and started.
#
#   tests/backups.sh [--days N] [--every N] [--seed N] [--pumice PROGRAM] [--keep]
#
# One day:
#
#   pgbench and a row with the day's number
#   every 5th day    kill -9 of the server under pgbench; it starts again, PostgreSQL recovers
#   snapshot create  of the served drive, while pgbench runs
#   send --since     the day before, from the server, | receive on the copy
#   every 7th day    that is cut off, by kill -9 of the receiver, of the sender or of the server in
#                    turn, and goes on with --resume-token
#   snapshot delete  the day before on the drive, the eighth last on the copy
#
# Every N days (--every, default 30) and on the last day: the copy's snapshot and the server's are
# one disk, as qemu-img compare reads them, and pumice check finds nothing in the copy. PostgreSQL
# starts on the image that extract writes, with each day's row and balances that add up, and
# pg_amcheck finds nothing.
#
# Prints a line for each restore and a summary. Exit codes as in crash_rounds.sh: 0 all is well, 1 a
# check failed and everything is kept, 2 a program is missing, 77 no root, FUSE or loop device.
# Works in a folder below TMPDIR (default /var/tmp), which needs 4 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C.UTF-8

KILLED_EVERY=5
CUT_EVERY=7
KEPT_DAYS=7
# Time limit of a step.
STEP_SECONDS=60

# Neither pumice nor nbdfuse may dump core.
ulimit -c 0
rounds=365 every=30 seed=$((RANDOM * 32768 + RANDOM)) pumice=$PWD/target/release/pumice keep=no
by=nbdfuse load=backups round=0 type=ext4
while [ $# -gt 0 ]; do
    case $1 in
    --days) rounds=$2 && shift ;;
    --every) every=$2 && shift ;;
    --seed) seed=$2 && shift ;;
    --pumice) pumice=$2 && shift ;;
    --keep) keep=yes ;;
    *) echo "unknown argument: $1" >&2 && exit 2 ;;
    esac
    shift
done
# shellcheck source=tests/attached.sh
. tests/attached.sh

check_tools() {
    need "$pumice" losetup setpriv timeout nbdinfo nbdfuse qemu-img mkfs.ext4 \
        "${pg:-the server of postgresql}/postgres" "$pg/pgbench" "$pg/pg_amcheck"
    id postgres > /dev/null || exit 2
    check_mounting
}

set_up() {
    "$pumice" create "$folder/drive" --size 256M --capacity 1G --segment 4M > /dev/null ||
        fail "pumice create"
    attach
    mkfs.ext4 -q "$loop" || fail "mkfs.ext4"
    mount_disk
    new_postgresql 1 "CREATE TABLE days (day bigint PRIMARY KEY)"
}

pgbench_here() {
    as_postgres timeout "$STEP_SECONDS" "$pg/pgbench" --no-vacuum --client=2 \
        --host="$folder/run" "$@" postgres > "$folder/pgbench.log" 2>&1
}

# Runs until the process $client is ended.
start_pgbench() {
    (exec setpriv --reuid=postgres --regid=postgres --clear-groups -- timeout "$STEP_SECONDS" \
        "$pg/pgbench" --no-vacuum --client=2 --time="$STEP_SECONDS" --host="$folder/run" \
        postgres > "$folder/pgbench.log" 2>&1) &
    client=$!
}

end_pgbench() {
    kill -TERM "$client" 2> /dev/null || :
    reap "$client" || :
}

# Removes everything that used the dead server, and starts all of it again.
start_again() {
    stop_postgresql
    unmount_disk
    detach
    attach
    mount_disk
    start_postgresql
}

crash() {
    local client
    start_pgbench
    sleep "$(moment 400)"
    kill_server
    start_again
    end_pgbench
}

# Starts to send the day to the copy, and kills one of the two or the server in the middle. A copy
# that has received nothing of it is unchanged.
cut_off() {
    local victim=$((round / CUT_EVERY % 3)) size_kib
    size_kib=$((RANDOM % 512 + 1))
    local killed=receiver
    case $victim in
    0)  "$pumice" send "$folder/drive@day-$round" "${since[@]}" 2> /dev/null |
            head -c "${size_kib}K" > "$folder/part" || :
        "$pumice" receive "$folder/copy" < "$folder/part" > /dev/null 2>&1 &
        local receiver=$!
        sleep "$(moment 100)"
        kill -KILL "$receiver" 2> /dev/null || :
        reap "$receiver" || : ;;
    1)  killed=sender
        "$pumice" send "$folder/drive@day-$round" "${since[@]}" 2> /dev/null |
            head -c "${size_kib}K" | "$pumice" receive "$folder/copy" > /dev/null 2>&1 || : ;;
    2)  killed=server
        mkfifo "$folder/fifo"
        "$pumice" receive "$folder/copy" < "$folder/fifo" > /dev/null 2>&1 &
        local receiver=$!
        "$pumice" send "$folder/drive@day-$round" "${since[@]}" > "$folder/fifo" 2> /dev/null &
        local sender=$!
        sleep "$(moment 100)"
        kill_server
        reap "$sender" || :
        reap "$receiver" || :
        rm "$folder/fifo"
        start_again ;;
    esac
    echo "day $round: the $killed was ended while the day was sent"
}

backup() {
    local since=() how=() token
    [ "$round" -eq 1 ] || since=(--since "day-$((round - 1))")
    [ "$round" -gt 1 ] || how=(--create)
    "$pumice" snapshot create "$folder/drive@day-$round" > /dev/null || fail "snapshot create"
    if [ "$round" -gt 1 ] && [ $((round % CUT_EVERY)) -eq 0 ]; then
        cut_off
        if token=$("$pumice" receive "$folder/copy" --resume-token 2> /dev/null); then
            since=(--resume "$token")
            resumed=$((resumed + 1))
        fi
    fi
    # All of it may have arrived.
    if ! "$pumice" snapshot list "$folder/copy" 2> /dev/null | grep -q "^day-$round "; then
        "$pumice" send "$folder/drive@day-$round" "${since[@]}" 2> "$folder/send.log" |
            "$pumice" receive "$folder/copy" "${how[@]}" > "$folder/receive.log" 2>&1 ||
            fail "day $round: $(cat "$folder/send.log" "$folder/receive.log")"
    fi
    [ "$round" -eq 1 ] ||
        "$pumice" snapshot delete "$folder/drive@day-$((round - 1))" > /dev/null ||
        fail "snapshot delete"
    [ "$round" -le "$KEPT_DAYS" ] ||
        "$pumice" snapshot delete "$folder/copy@day-$((round - KEPT_DAYS))" > /dev/null ||
        fail "snapshot delete of the copy"
}

# Starts PostgreSQL on the day's disk, in the place of the one on the drive.
restore() {
    local image=$folder/image days
    "$pumice" extract "$folder/copy@day-$round" "$image" --force > /dev/null || fail "extract"
    qemu-img compare -f raw -F raw "$image" \
        "nbd+unix:///drive@day-$round?socket=$folder/socket-$serves" > "$folder/compare.log" 2>&1 ||
        fail "the copy differs: $(cat "$folder/compare.log")"
    "$pumice" check "$folder/copy" > "$folder/check.log" 2>&1 ||
        fail "pumice check: $(cat "$folder/check.log")"
    stop_postgresql INT
    unmount_disk
    mount -o loop "$image" "$folder/mount" || fail "the restored disk does not mount"
    mounted=yes
    start_postgresql
    days=$(psql_here --command="SELECT count(*), min(day), max(day) FROM days")
    [ "$days" = "$round|1|$round" ] || fail "the restored database has other days: $days"
    check_postgresql
    stop_postgresql INT
    unmount_disk
    rm "$image"
    mount_disk
    start_postgresql
    restores=$((restores + 1))
    echo "day $round of $rounds: the copy is the drive's snapshot, and PostgreSQL runs on it"
}

run_day() {
    pgbench_here --transactions=20 || fail "pgbench: $(tail -n 5 "$folder/pgbench.log")"
    psql_here --command="INSERT INTO days VALUES ($round)" || fail "INSERT"
    if [ $((round % KILLED_EVERY)) -eq 0 ]; then
        crash
        kills=$((kills + 1))
    fi
    local client
    start_pgbench
    backup
    end_pgbench
    if [ $((round % every)) -eq 0 ] || [ "$round" -eq "$rounds" ]; then restore; fi
}

trap cleanup EXIT
trap 'running=no; exit 130' INT TERM
check_tools
echo "seed $seed, $("$pumice" --version)"
RANDOM=$((seed % 32768))
started=$SECONDS running=yes serves=0 kills=0 resumed=0 restores=0
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/pumice-backups-XXXXXX")
# PostgreSQL runs as a user of its own, which needs access to its socket and its data.
chmod 755 "$folder"
mkdir "$folder/mount"
export PUMICE_RUNTIME_DIR=$folder/pumice
set_up
for ((round = 1; round <= rounds; round++)); do run_day; done
round=$rounds
stop_postgresql INT
unmount_disk
detach
kill -TERM "$server"
reap "$server" || fail "the server ended with $?: $(tail -n 5 "$folder/server.log")"
server=
timeout "$STEP_SECONDS" "$pumice" check "$folder/drive" > "$folder/check.log" 2>&1 ||
    fail "pumice check: $(cat "$folder/check.log")"
echo "$rounds days, $kills kills under load, $resumed transfers resumed, $restores restores:" \
    "all is well, in $((SECONDS - started)) s"
