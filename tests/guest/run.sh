#!/bin/bash
# Boots Debian's kernel in QEMU under software emulation, with the necessary programs and a script
# as its first process, to test features that the machine's own kernel lacks, or has in another
# version.
#
#   tests/guest/run.sh SCRIPT PUMICE [PORT|SOCKET|URI]
#
# SCRIPT runs in the guest after prelude.sh and words.sh, by busybox's shell, as `/init`; `/pumice`
# is the program PUMICE, and 10.0.2.2, with $port in its environment, is the server on PORT of this
# machine's loopback; with SOCKET, /dev/vda is the vhost-user disk there; with URI, it is that NBD
# export, with a write cache. Lines of SCRIPT's output that begin with "| " go to standard output,
# everything on the guest's console to standard error. The last such line must be "good".
#
# A SCRIPT with a line `# needs systemd` gets this machine's systemd with its targets, none of its
# services, the units of Pumice, and booted.sh for the steps after the boot.
#
# PUMICE_GUEST_KERNEL names the folder of an unpacked kernel package: `dpkg-deb --extract` of the
# package that linux-image-cloud-amd64 depends on. `.ci/run` downloads it.
#
# Exit code 0: good. 1: not. 2: a program or the kernel is missing.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C.UTF-8
here=${BASH_SOURCE[0]%/*}
script=$1 pumice=$2 port='' socket='' uri=''
case ${3:-} in
    /*) socket=$3 ;;
    nbd*) uri=$3 ;;
    *) port=${3:-} ;;
esac

# Time limit of a guest; half a minute is usual.
GUEST_SECONDS=300
MODULES=(ext4 fuse loop nbd virtio_blk virtio_net virtio_pci)
PROGRAMS=(blkid e2fsck fstrim losetup mke2fs mount nbd-client nsenter umount)

missing() {
    echo "$*" >&2
    exit 2
}

kernel=${PUMICE_GUEST_KERNEL:-}
[ -n "$kernel" ] || missing "PUMICE_GUEST_KERNEL names no folder with a kernel"
image=$(echo "$kernel"/boot/vmlinuz-*)
[ -f "$image" ] || missing "there is no kernel in $kernel"
version=${image##*/vmlinuz-}
for program in busybox cpio depmod modprobe qemu-system-x86_64 strip "${PROGRAMS[@]}"; do
    command -v "$program" > /dev/null || missing "$program is not installed"
done

folder=$(mktemp -d "${TMPDIR:-/tmp}/pumice-guest-XXXXXX")
trap 'rm -rf "$folder"' EXIT

root=$folder/root
mkdir -p "$root"/{bin,sbin,proc,sys,dev,mnt,run,tmp,modules,etc}
# Puts a program and its libraries in place.
place() { # program, name in the guest
    cp "$1" "$root/$2"
    { ldd "$1" 2> /dev/null || :; } | sed -n 's|^[^/]*\(/[^ ]*\).*|\1|p' | while read -r library; do
        mkdir -p "$root/${library%/*}"
        cp -L "$library" "$root/$library"
    done
}
place "$(command -v busybox)" bin/busybox
for program in "${PROGRAMS[@]}"; do
    place "$(command -v "$program")" "sbin/$program"
done
ln -s mke2fs "$root/sbin/mkfs.ext4"
if grep -q '^# needs systemd$' "$script"; then
    mkdir -p "$root"/lib/systemd/system{,-generators} "$root/etc/systemd/system"
    for program in /lib/systemd/{systemd,system-generators/systemd-fstab-generator} /bin/systemctl; do
        [ -x "$program" ] || missing "$program is not installed"
        place "$program" "$program"
    done
    cp -P /lib/systemd/system/*.target "$root/lib/systemd/system/"
    cp "$here"/../../dist/*.service "$root/etc/systemd/system/"
    cp "$here"/{words,booted}.sh "$root/"
fi
strip -o "$folder/pumice" "$pumice"
place "$folder/pumice" pumice
cat "$here"/{prelude,words}.sh "$script" > "$root/init"
chmod +x "$root/init"

# The index of a package is made when it is installed; the package itself may be read-only.
mkdir -p "$folder/index/lib"
cp -r "$kernel/lib/modules" "$folder/index/lib/"
depmod -b "$folder/index" "$version" 2> /dev/null
for module in "${MODULES[@]}"; do
    modprobe --dirname "$folder/index" --set-version "$version" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$root/modules/$(printf '%02d' "$(find "$root/modules" -type f | wc -l)").ko"
done
(cd "$root" && find . | cpio --create --format=newc --quiet) > "$folder/initrd"

network=(-nic none)
if [ -n "$port" ]; then
    network=(-nic "user,model=virtio-net-pci")
fi
disk=()
if [ -n "$socket" ]; then
    disk=(-object "memory-backend-memfd,id=memory,size=1024M,share=on" -machine "memory-backend=memory"
        -chardev "socket,id=disk,path=$socket,reconnect=1"
        -device "vhost-user-blk-pci,chardev=disk")
fi
if [ -n "$uri" ]; then
    disk=(-drive "file=$uri,format=raw,if=virtio,cache=writeback")
fi
# Without no_timer_check a guest on a busy machine may stay in the check of its timer.
machine=(-accel tcg -m 1024 -smp 2 -no-reboot -nodefaults -display none -serial stdio
    -kernel "$image" -initrd "$folder/initrd"
    -append "console=ttyS0 loglevel=4 panic=-1 no_timer_check port=$port")
# The stream editors do not buffer; `|| :` because the output shows whether the guest succeeded.
timeout --foreground --kill-after=5 "$GUEST_SECONDS" \
    qemu-system-x86_64 "${machine[@]}" "${network[@]}" "${disk[@]}" < /dev/null |
    sed -u 's/\r$//' | tee /dev/stderr | sed -u -n 's/^| //p' | tee "$folder/said" || :
[ "$(tail -n 1 "$folder/said")" = good ]
