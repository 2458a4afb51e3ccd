#!/usr/bin/env python3
"""How long a client waits when its server restarts: 4 KiB writes at depth 1, SIGHUP every second.

    benches/restart.py SOCKET PID [SECONDS]     default 10 seconds

The server is to be started without a terminal, as in
    pumice serve drive.pumice --unix SOCKET < /dev/null 2> log &
Needs python3-libnbd. Writes over the drive's first MiB, so take one that holds nothing.
"""

import os
import signal
import sys
import time

import nbd

BLOCKS = 256


def main():
    socket, pid = sys.argv[1], int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 10
    client = nbd.NBD()
    client.connect_unix(socket)
    waits, restarts, block = [], 0, 0
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if now > began + 0.5 + restarts:
            os.kill(pid, signal.SIGHUP)
            restarts += 1
        client.pwrite(os.urandom(4096), 4096 * (block % BLOCKS))
        waits.append((time.monotonic() - now) * 1e3)
        block += 1
    # Those that met a restart are the longest.
    longest = sorted(waits)[-restarts:]
    middle = sorted(waits)[len(waits) // 2]
    print(f"{restarts} restarts, {len(waits)} writes of {middle:.3f} ms (median)")
    print("longest, ms:", " ".join(f"{wait:.1f}" for wait in longest))


main()
