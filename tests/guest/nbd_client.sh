#!/bin/busybox sh
# In the guest (see run.sh): ext4 on the kernel's own NBD client, while the server restarts.
export PATH=/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

say() { echo "| $*"; }
fail() {
    say "failed: $*"
    dmesg | tail -n 20
    poweroff -f
}

for module in /modules/*; do insmod "$module"; done
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
/sbin/nbd-client 10.0.2.2 "$port" /dev/nbd0 -N '' -b 4096 || fail connecting
[ "$(cat /sys/block/nbd0/queue/write_cache)" = "write back" ] || fail "no flushes"
[ "$(cat /sys/block/nbd0/queue/fua)" = 1 ] || fail "no forced unit access"
[ "$(cat /sys/block/nbd0/queue/discard_granularity)" = 4096 ] || fail "no trims"
/sbin/mkfs.ext4 -q /dev/nbd0 || fail mkfs
/sbin/mount -t ext4 /dev/nbd0 /mnt || fail mount
say mounted
number=0
while [ "$number" -lt 40 ]; do
    {
        head -c 200000 /dev/urandom
        yes "$number" | head -c 200000
    } > /mnt/new
    cp /mnt/new "/mnt/$number" && sync || fail "file $number"
    md5sum "/mnt/$number" >> /tmp/sums
    number=$((number + 1))
    say "wrote $number"
done
rm /mnt/new
/sbin/fstrim /mnt || fail fstrim
/sbin/umount /mnt || fail umount
# Nothing of what follows comes out of the guest's memory.
echo 3 > /proc/sys/vm/drop_caches
/sbin/e2fsck -fn /dev/nbd0 || fail e2fsck
/sbin/mount -t ext4 -o ro /dev/nbd0 /mnt || fail "second mount"
md5sum -c /tmp/sums > /tmp/found || fail "$(grep -v OK /tmp/found)"
/sbin/umount /mnt || fail "second umount"
/sbin/nbd-client -d /dev/nbd0 || fail disconnecting
dmesg | grep -i 'I/O error' && fail "errors of the device"
say good
poweroff -f
