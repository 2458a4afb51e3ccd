# In the guest (see run.sh): boots systemd with a drive in fstab, which the first boot makes on
# /dev/vda. booted.sh follows.
# needs systemd
# shellcheck shell=sh
mkdir -p /data /srv/attached /usr/bin /usr/sbin /var/lib/pumice
ln -s /pumice /usr/bin/pumice
ln -s /pumice /sbin/mount.pumice
ln -s /pumice /sbin/umount.pumice
# Where systemd looks for them.
ln -s /sbin/mount /sbin/umount /bin/
ln -s /sbin/nsenter /usr/bin/
if blkid /dev/vda > /dev/null; then boot=second; else boot=first; fi
[ $boot = second ] || mkfs.ext4 -q /dev/vda || fail "mkfs of the disk"
mount -t ext4 /dev/vda /data || fail "mount of the disk"
if [ $boot = first ]; then
    /pumice create /data/data.pumice --size 256M || fail create
    /pumice attach /data/data.pumice /mnt --mkfs ext4 || fail attach
    /pumice detach /mnt || fail detach
    sync
fi
rm -rf /run/*

echo "/data/data.pumice /mnt pumice noatime,map-cache=64M 0 0" > /etc/fstab
echo 'root:x:0:0::/:/bin/sh
pumice:x:900:900::/:/bin/sh' > /etc/passwd
echo 'root:x:0:
pumice:x:900:' > /etc/group
echo 0123456789abcdef0123456789abcdef > /etc/machine-id
echo '[Manager]
DefaultStandardOutput=null
ShowStatus=no' > /etc/systemd/system.conf
echo '[Unit]
Requires=local-fs.target
Wants=test.service
AllowIsolate=yes' > /etc/systemd/system/test.target
echo "[Unit]
DefaultDependencies=no
After=local-fs.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
StandardOutput=tty
IgnoreSIGPIPE=no
ExecStart=/bin/sh /booted.sh $boot" > /etc/systemd/system/test.service
exec /lib/systemd/systemd --unit=test.target --log-target=console --log-level=warning
