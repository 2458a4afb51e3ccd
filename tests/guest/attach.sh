#!/bin/busybox sh
# In the guest (see run.sh): `pumice attach` with this kernel's FUSE and loop devices, from mkfs to
# the death of the process.
export PATH=/sbin:/bin HOME=/tmp
/bin/busybox --install -s /bin
# Those of util-linux and e2fsprogs know the flags that are needed.
for program in /sbin/*; do rm -f "/bin/${program##*/}"; done
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /tmp

say() { echo "| $*"; }
fail() {
    say "failed: $*"
    cat /run/pumice/*/log
    dmesg | tail -n 20
    poweroff -f
}

for module in /modules/*; do insmod "$module"; done
/pumice create /tmp/drive --size 256M || fail create
/pumice attach /tmp/drive /mnt --mkfs ext4 || fail attach
[ "$(cat /sys/block/loop0/loop/dio)" = 1 ] || fail "no direct I/O"
say attached
number=0
while [ "$number" -lt 20 ]; do
    {
        head -c 200000 /dev/urandom
        yes "$number" | head -c 200000
    } > "/mnt/$number"
    md5sum "/mnt/$number" >> /tmp/sums
    number=$((number + 1))
done
dd if=/dev/urandom of=/mnt/large bs=1M count=48 || fail "a large file"
sync
rm /mnt/large
fstrim /mnt || fail fstrim
/pumice detach /mnt || fail detach
/pumice check /tmp/drive || fail check
say detached
/pumice attach /tmp/drive /mnt || fail "second attach"
md5sum -c /tmp/sums > /tmp/found || fail "$(grep -v OK /tmp/found)"
echo unsynced > /mnt/unsynced
kill -9 "$(pidof pumice)" || fail "nothing to kill"
while pidof pumice; do :; done
say killed
/pumice attach /tmp/drive /mnt || fail "attach after the death of the process"
echo 3 > /proc/sys/vm/drop_caches
md5sum -c /tmp/sums > /tmp/found || fail "$(grep -v OK /tmp/found)"
/pumice detach /mnt || fail "last detach"
/pumice check /tmp/drive || fail "last check"
[ -z "$(ls /run/pumice)" ] || fail "left behind: $(ls /run/pumice)"
say good
poweroff -f
