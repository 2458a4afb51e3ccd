#!/bin/bash
# Builds the programs of other projects' test suites that `list` names, for tests/it/clients/foreign.rs.
#
#   tests/foreign/build.sh LIBNBD NBD TARGET
#
# LIBNBD and NBD are unpacked source packages of those names; they go to TARGET/libnbd and
# TARGET/nbd. Needs a C compiler, libnbd-dev, libglib2.0-dev and libgnutls28-dev. The programs are
# compiled one by one, because a configured build adds only support for libraries that they do not
# use. Programs that load a server for ten seconds run for three instead.
set -euo pipefail
list=$(cd "$(dirname "$0")" && pwd)/list
# Whole or absent.
target=$3.new
rm -rf "$target" "$3"
mkdir -p "$target"
cp -r "$1" "$target/libnbd"
cp -r "$2" "$target/nbd"

cd "$target/libnbd"
: > config.h
sed -i 's/define RUN_TIME 10/define RUN_TIME 3/' tests/*.c
sed "s,@abs_top_srcdir@,$3/libnbd,; s,@[a-zA-Z_]*@,,g" tests/functions.sh.in > tests/functions.sh
server=(-DSERVER='"nbdkit"' -DSERVER_PARAMS='"-s","--exit-with-parent","memory","1M"')
activated=(-DSERVER='"nbdkit"' -DSERVER_PARAMS='"--exit-with-parent","memory","1M"')
sed -n 's,^libnbd/,,p' "$list" | while read -r program; do
    parameters=("${server[@]}")
    case $program in
        tests/*.sh) program=${program%.sh} ;;
        *.sh) continue ;;
        interop/socket-activation) parameters=("${activated[@]}") ;;
    esac
    extra=(tests/requires.c)
    grep -q pick-a-port.h "$program.c" && extra+=(tests/pick-a-port.c)
    [ "${program%/*}" = interop ] && extra=(interop/requires.c)
    cc -w "${parameters[@]}" -I. -Itests -Icommon/include -Icommon/utils "$program.c" "${extra[@]}" \
        -o "$program" -lnbd -lpthread
done

cd ../nbd
cat > config.h << 'END'
#define HAVE_FDATASYNC 1
#define HAVE_GNUTLS 1
#define HAVE_MKSTEMP 1
#define SIZEOF_UNSIGNED_INT 4
#define SIZEOF_UNSIGNED_LONG_INT 8
#define SIZEOF_UNSIGNED_SHORT_INT 2
END
# shellcheck disable=SC2046
cc -w -D_GNU_SOURCE -I. tests/run/nbd-tester-client.c cliserv.c buffer.c crypto-gnutls.c \
    -o tests/run/nbd-tester-client $(pkg-config --cflags --libs glib-2.0 gnutls)
mv "$target" "$3"
