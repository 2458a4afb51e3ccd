# In the guest (see run.sh), started by systemd after the file systems of fstab. The first boot
# writes until the power is cut. The second finds the synced data, and starts the units with all
# their restrictions.
# shellcheck shell=sh
. /words.sh
drive=/data/data.pumice
grep -q ' /mnt ext4 .*noatime' /proc/mounts || fail "not mounted by fstab: $(cat /proc/mounts)"
if [ "$1" = first ]; then
    number=0
    while [ "$number" -lt 6 ]; do
        write "$number"
        number=$((number + 1))
    done
    cp /tmp/sums /mnt/sums
    sync
    say synced
    write late
    say writing
    while :; do write late; done
fi

cp /mnt/sums /tmp/sums || fail "nothing of what was synced"
compare
say found
umount /mnt || fail umount
/pumice check $drive || fail check

mkdir -p /etc/pumice
echo 'path = "/data/data.pumice"
mountpoint = "/srv/attached"' > /etc/pumice/attached.toml
systemctl start pumice-attach@attached || fail "unit of attach: $(systemctl status pumice-attach@attached)"
grep -q ' /srv/attached ext4 .*nosuid' /proc/mounts || fail "not mounted by the unit"
cmp /srv/attached/sums /tmp/sums || fail "not the same drive"
/pumice info $drive | grep attached || fail "not found by info"
grep fuse.pumice /proc/mounts && fail "the device's file is among the machine's mounts"
cp /tmp/sums /srv/attached/new && sync || fail "writing by the unit"
killed=$(systemctl show --value --property MainPID pumice-attach@attached)
kill -9 "$killed"
looks=0
until [ "$(systemctl is-active pumice-attach@attached)" = active ] &&
    [ "$(systemctl show --value --property MainPID pumice-attach@attached)" != "$killed" ]; do
    looks=$((looks + 1))
    [ $looks -lt 30 ] || fail "not restarted: $(systemctl status pumice-attach@attached)"
    sleep 1
done
cmp /srv/attached/new /tmp/sums || fail "not mounted again"
systemctl stop pumice-attach@attached || fail "stop of attach"
grep /srv/attached /proc/mounts && fail "still mounted"
/pumice check $drive || fail "check after the unit"
say attached

/pumice create /var/lib/pumice/served.pumice --size 64M || fail "create served"
chown -R 900:900 /var/lib/pumice
echo 'paths = ["/var/lib/pumice/served.pumice"]
unix = "/run/pumice-served/socket"' > /etc/pumice/served.toml
systemctl start pumice@served || fail "unit of serve: $(systemctl status pumice@served)"
/pumice info /var/lib/pumice/served.pumice | grep served || fail "no server found by info"
nbd-client -unix /run/pumice-served/socket /dev/nbd0 -N '' -b 4096 || fail connecting
mkfs.ext4 -q /dev/nbd0 || fail "mkfs of the export"
mount -t ext4 /dev/nbd0 /mnt || fail "mount of the export"
cp /tmp/sums /mnt/ && sync
process=$(systemctl show --value --property MainPID pumice@served)
systemctl reload pumice@served || fail reload
cp /tmp/sums /mnt/again && sync || fail "writing after a reload"
[ "$(systemctl show --value --property MainPID pumice@served)" = "$process" ] || fail "another process"
umount /mnt || fail "umount of the export"
nbd-client -d /dev/nbd0
systemctl stop pumice@served || fail "stop of serve"
/pumice check /var/lib/pumice/served.pumice || fail "check of the served"
say good
poweroff -f
