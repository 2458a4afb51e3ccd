# In the guest (see run.sh): ext4 on a vhost-user disk, while the server restarts.
# shellcheck shell=sh
queue=/sys/block/vda/queue
[ -b /dev/vda ] || fail "no disk"
[ "$(cat /sys/block/vda/size)" = 524288 ] || fail "size"
[ "$(cat $queue/write_cache)" = "write back" ] || fail "no flushes"
[ "$(cat $queue/physical_block_size)" = 4096 ] || fail "no topology"
[ "$(cat $queue/discard_granularity)" = 4096 ] || fail "no discards"
[ "$(cat $queue/write_zeroes_max_bytes)" -gt 0 ] || fail "no write-zeroes"
[ "$(find /sys/block/vda/mq -mindepth 1 -maxdepth 1 | wc -l)" = 2 ] || fail "queues"
[ "$(wc -c < /sys/block/vda/serial)" = 20 ] || fail "no serial number"
use_ext4 /dev/vda
say resize
turns=0
until [ "$(cat /sys/block/vda/size)" = 655360 ]; do
    sleep 1
    turns=$((turns + 1))
    [ "$turns" -lt 60 ] || fail "no new size"
done
dmesg | grep -i 'I/O error' && fail "errors of the device"
say good
poweroff -f
