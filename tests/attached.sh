#!/bin/bash
# Shared code of the scripts that kill a server while a file system on its drive is in use: a drive,
# served by `pumice serve`, nbdfuse and a loop device, or by `pumice attach` ($by); PostgreSQL on
# it; and cleanup after a failure at any point. To be sourced; the script sets $pumice, $load,
# $round, $rounds, $seed, $keep, $by and STEP_SECONDS.
# shellcheck disable=SC2154

# Time limit of a step.
: "${STEP_SECONDS:=60}"
# Debian keeps PostgreSQL's programs off the path, a directory for each version.
pg=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2> /dev/null | sort -V | tail -n 1) || :

need() {
    local name
    for name; do
        [ -n "$(command -v "$name")" ] || { echo "$name is not installed" >&2 && exit 2; }
    done
}

cannot() {
    echo "$*" >&2
    exit 77
}

# The parts that are currently up, for cleanup after a failure at any point.
running='' folder='' server='' nbdfuse='' loop='' mounted='' postmaster='' clients=()

fail() {
    echo "FAILED: $load, round $round of $rounds, seed $seed: $*" >&2
    running=no
    keep=yes
    exit 1
}

# Ends the script as skipped if drives cannot be attached and mounted here.
check_mounting() {
    [ "$(id -u)" -eq 0 ] || cannot "mounting needs root"
    [ -c /dev/fuse ] || cannot "there is no FUSE"
    losetup --find > /dev/null 2>&1 || cannot "there is no loop device"
    unshare --mount true 2> /dev/null || cannot "mounting is not allowed"
}

# Waits up to STEP_SECONDS for a command to succeed.
within_limit() {
    local end=$((SECONDS + STEP_SECONDS))
    until "$@" > /dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.02
    done
}

ended() {
    ! kill -0 "$1" 2> /dev/null
}

reap() {
    wait "$1" 2> /dev/null
}

# Unmounts a place that may be unmounted already: nbdfuse ends its mount itself on a signal.
release() {
    ! grep -q " $1 " /proc/self/mounts || umount "$1"
}

# The same, but lazily if a process still keeps the mount point busy.
release_anyhow() {
    within_limit release "$1" || umount --lazy "$1" || :
}

cleanup() {
    local status=$?
    trap '' INT TERM
    # Neither fail nor a signal: an unexpected command failed.
    if [ "$running" = yes ] && [ "$status" -ne 0 ]; then
        echo "FAILED: $load, round $round of $rounds, seed $seed: exit code $status" >&2
        keep=yes status=1
    fi
    if [ -n "$server" ]; then
        kill -KILL "$server" 2> /dev/null || :
        reap "$server" || :
    fi
    [ "${#clients[@]}" -eq 0 ] || kill -TERM "${clients[@]}" 2> /dev/null || :
    STEP_SECONDS=10
    [ -z "$postmaster" ] || stop_postgresql
    [ -z "$mounted" ] || release_anyhow "$folder/mount"
    if [ "$by" = attach ] && [ -n "$loop" ]; then
        "$pumice" detach "$folder/drive" || :
        loop=
    fi
    [ -z "$loop" ] || losetup --detach "$loop" || :
    [ -z "$nbdfuse" ] || release_anyhow "$folder/disk"
    if [ -n "$folder" ] && [ "$keep" = yes ]; then
        echo "kept: $folder" >&2
    elif [ -n "$folder" ]; then
        rm -rf --one-file-system "$folder"
    fi
    exit "$status"
}

answers() {
    ended "$server" || nbdinfo --size "$uri"
}

serve() {
    serves=$((serves + 1))
    uri="nbd+unix:///?socket=$folder/socket-$serves"
    PUMICE_LOG=warn "$pumice" serve "$folder/drive" --unix "$folder/socket-$serves" \
        2>> "$folder/server.log" &
    server=$!
}

has_size() {
    ended "$nbdfuse" || [ -s "$folder/disk" ]
}

# The process that makes a device of the drive, in the foreground so that it can be killed.
start_attaching() {
    : > "$folder/device"
    PUMICE_LOG=error "$pumice" attach "$folder/drive" --foreground > "$folder/device" \
        2>> "$folder/server.log" &
    server=$!
}

has_device() {
    ended "$server" || [ -s "$folder/device" ]
}

# serve, nbdfuse, loop. In every other round the loop device bypasses the page cache.
attach() {
    if [ "$by" = attach ]; then
        start_attaching
        within_limit has_device && ! ended "$server" ||
            fail "pumice attach does not come up: $(tail -n 5 "$folder/server.log")"
        loop=$(cat "$folder/device")
        return
    fi
    serve
    within_limit answers && ! ended "$server" || fail "the server does not come up"
    : > "$folder/disk"
    # When the server dies, nbdfuse 1.14 may abort; the disk is dead either way. The subshell keeps
    # bash's message about it in the log.
    (nbdfuse "$folder/disk" "$uri" || exit) 2>> "$folder/nbdfuse.log" &
    nbdfuse=$!
    within_limit has_size && ! ended "$nbdfuse" || fail "nbdfuse does not come up"
    local direct=off
    [ $((round % 2)) -eq 0 ] || direct=on
    loop=$(losetup --find --show --direct-io="$direct" "$folder/disk") || fail "no loop device"
}

loop_is_free() {
    ! losetup "$loop"
}

# Succeeds once the drive is detached, with exit code CODE: 1 after its process was killed.
is_detached() { # CODE
    local code=0
    "$pumice" detach "$folder/drive" || code=$?
    [ "$code" -eq "$1" ]
}

# Also ends an attaching process that was not killed.
detach() { # [CODE]
    if [ "$by" = attach ]; then
        within_limit is_detached "${1:-0}" || fail "pumice detach"
        loop=
        return
    fi
    losetup --detach "$loop" && within_limit loop_is_free || fail "$loop stays busy"
    loop=
    within_limit release "$folder/disk" || fail "nbdfuse stays busy"
    reap "$nbdfuse" || :
    nbdfuse=
}

mount_disk() {
    mount -t "$type" -o discard "$loop" "$folder/mount" || fail "$type does not mount"
    mounted=yes
}

unmount_disk() {
    within_limit release "$folder/mount" || fail "$type stays busy"
    mounted=
}

as_postgres() {
    setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"
}

psql_here() {
    as_postgres "$pg/psql" --no-psqlrc --quiet --no-align --tuples-only \
        --set=ON_ERROR_STOP=1 --host="$folder/run" --dbname=postgres "$@"
}

start_postgresql() {
    setpriv --reuid=postgres --regid=postgres --clear-groups -- "$pg/postgres" \
        -D "$folder/mount/data" -c listen_addresses= -c unix_socket_directories="$folder/run" \
        -c max_wal_size=32MB -c shared_buffers=16MB >> "$folder/postgresql.log" 2>&1 &
    postmaster=$!
    within_limit "$pg/pg_isready" --host="$folder/run" --timeout=5 && ! ended "$postmaster" ||
        fail "PostgreSQL does not start: $(tail -n 5 "$folder/postgresql.log")"
}

stop_postgresql() {
    kill "-${1:-QUIT}" "$postmaster" 2> /dev/null || :
    within_limit ended "$postmaster" || kill -KILL "$postmaster"
    reap "$postmaster" || :
    postmaster=
}

# A number of milliseconds below $1, in seconds.
moment() {
    local milliseconds=$(((RANDOM * 32768 + RANDOM) % $1))
    printf '%d.%03d' $((milliseconds / 1000)) $((milliseconds % 1000))
}

kill_server() {
    kill -KILL "$server" || fail "the server ended by itself: $(tail -n 5 "$folder/server.log")"
    reap "$server" || :
    server=
}

# Creates a database on the mounted disk, with the tables of pgbench and those that TABLES creates.
new_postgresql() { # WAL_MIB TABLES
    install -d -o postgres -g postgres -m 700 "$folder/mount/data" "$folder/run"
    as_postgres "$pg/initdb" -D "$folder/mount/data" --data-checksums --auth=trust \
        --wal-segsize="$1" --no-locale > "$folder/initdb.log" 2>&1 || fail "initdb"
    start_postgresql
    as_postgres "$pg/pgbench" --initialize --scale=2 --quiet --host="$folder/run" postgres \
        > "$folder/pgbench-new.log" 2>&1 || fail "pgbench --initialize"
    psql_here --command="CREATE EXTENSION amcheck" --command="$2" || fail "CREATE TABLE"
}

# The balances of pgbench add up, and pg_amcheck finds nothing.
check_postgresql() {
    local sums
    sums=$(psql_here --command="SELECT count(DISTINCT total) FROM (
        SELECT sum(abalance) AS total FROM pgbench_accounts
        UNION ALL SELECT sum(tbalance) FROM pgbench_tellers
        UNION ALL SELECT sum(bbalance) FROM pgbench_branches
        UNION ALL SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS totals") ||
        fail "PostgreSQL cannot add up the balances"
    [ "$sums" = 1 ] || fail "the balances of pgbench do not add up: $sums different sums"
    as_postgres "$pg/pg_amcheck" --host="$folder/run" --heapallindexed --database=postgres \
        > "$folder/amcheck.log" 2>&1 || fail "pg_amcheck: $(head -n 5 "$folder/amcheck.log")"
}
