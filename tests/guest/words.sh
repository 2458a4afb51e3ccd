# In the guest (see run.sh): the commands shared by all scripts.
# shellcheck shell=sh

# The shell also prefers its own programs of these names.
for program in /sbin/*; do
    # shellcheck disable=SC2139
    alias "${program##*/}=$program"
done

say() { echo "| $*"; }
fail() {
    say "failed: $*"
    cat /run/pumice/*/log 2> /dev/null
    dmesg | tail -n 20
    poweroff -f
}
# Files that compress by half, and their checksums.
write() { # name in /mnt
    {
        head -c 200000 /dev/urandom
        yes "$1" | head -c 200000
    } > "/mnt/$1" || fail "file $1"
    md5sum "/mnt/$1" >> /tmp/sums
}
# The comparison must read nothing from the guest's memory.
compare() {
    echo 3 > /proc/sys/vm/drop_caches
    md5sum -c /tmp/sums > /tmp/found || fail "$(grep -v OK /tmp/found)"
}

# Makes a file system on a disk and writes to it while the server restarts, then compares.
use_ext4() { # disk
    mkfs.ext4 -q "$1" || fail mkfs
    mount -t ext4 "$1" /mnt || fail mount
    number=0
    while [ "$number" -lt 40 ]; do
        write "$number"
        sync
        number=$((number + 1))
        say "wrote $number"
    done
    fstrim /mnt || fail fstrim
    umount /mnt || fail umount
    e2fsck -fn "$1" || fail e2fsck
    mount -t ext4 -o ro "$1" /mnt || fail "second mount"
    compare
    umount /mnt || fail "second umount"
}
