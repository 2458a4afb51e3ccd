#!/bin/busybox sh
# In the guest (see run.sh): the beginning of every script, before words.sh.
export PATH=/sbin:/bin HOME=/tmp
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /tmp
for module in /modules/*; do insmod "$module"; done
# Programs that search /bin would find those of busybox, which have fewer flags.
for program in /sbin/*; do rm -f "/bin/${program##*/}"; done
