# In the guest (see run.sh): ext4 on the kernel's own NBD client, while the server restarts.
# shellcheck shell=sh
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
# shellcheck disable=SC2154
nbd-client 10.0.2.2 "$port" /dev/nbd0 -N '' -b 4096 || fail connecting
[ "$(cat /sys/block/nbd0/queue/write_cache)" = "write back" ] || fail "no flushes"
[ "$(cat /sys/block/nbd0/queue/fua)" = 1 ] || fail "no forced unit access"
[ "$(cat /sys/block/nbd0/queue/discard_granularity)" = 4096 ] || fail "no trims"
use_ext4 /dev/nbd0
nbd-client -d /dev/nbd0 || fail disconnecting
dmesg | grep -i 'I/O error' && fail "errors of the device"
say good
poweroff -f
