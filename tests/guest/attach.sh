# In the guest (see run.sh): `pumice attach` with this kernel's FUSE and loop devices, from mkfs to
# the death of the process.
# shellcheck shell=sh
/pumice create /tmp/drive --size 256M || fail create
/pumice attach /tmp/drive /mnt --mkfs ext4 || fail attach
[ "$(cat /sys/block/loop0/loop/dio)" = 1 ] || fail "no direct I/O"
say attached
number=0
while [ "$number" -lt 20 ]; do
    write "$number"
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
compare
echo unsynced > /mnt/unsynced
kill -9 "$(pidof pumice)" || fail "nothing to kill"
while pidof pumice; do :; done
say killed
/pumice attach /tmp/drive /mnt || fail "attach after the death of the process"
compare
/pumice detach /mnt || fail "last detach"
/pumice check /tmp/drive || fail "last check"
[ -z "$(ls /run/pumice)" ] || fail "left behind: $(ls /run/pumice)"
say good
poweroff -f
