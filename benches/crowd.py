#!/usr/bin/env python3
"""What hostile clients cost the client at work, and one that comes while they are there.

usage: benches/crowd.py SOCKET [--clients 256] [--seconds 2] [--rounds 3] [--tls] [--json]

For each kind of hostile client: one client writes and reads 4 KiB, over and over, by turns alone
and beside them, while others come, choose the export and read a block. The hostile ones have a
process of their own. Each that the server disconnects, or that leaves, comes again after a quarter
of a second.

Prints, for each kind, medians of the rounds: round trips per second alone, and beside them from a
second after they came on, and the ratio of the two in one round; and the longest time until a new
client had its block, from the first second on. Takes three minutes with the defaults.

The server needs room for the hostile ones in its limit of connections: `pumice serve --connections
1000`; for the kinds of --tls also `--tls-certificates DIR --tls allow`.
"""

import argparse
import json
import multiprocessing
import os
import select
import socket
import statistics
import struct
import threading
import time

AGAIN_S = 0.25
SETTLE_S = 1
READ, WRITE, STATUS = 0, 1, 7
SEEN = b"\0\0\0\x03"
LIVE = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP


def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data


def request(command, offset=0, length=4096):
    return struct.pack(">IHHQQI", 0x25609513, 0, command, 1, offset, length)


CONTEXT = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fx-pumice:stored"
GO = option(7, bytes(6))
ENTER = SEEN + GO
SELECT = SEEN + option(8) + option(10, CONTEXT) + GO
READS = request(READ, 0, 32 << 20) * 64
# The head of a record of 512 bytes with the start of a ClientHello.
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20)

# What a client of a kind sends, and then does.
KINDS = {
    "says nothing": (b"", "stays"),
    "half an option": (SEEN + b"IHAVE", "stays"),
    "garbage": (None, "reads"),
    "enters, says nothing": (ENTER, "stays"),
    "reads of 2 GiB, not taken": (ENTER + READS, "stays"),
    "reads of 2 GiB, then leaves": (ENTER + READS, "leaves"),
    "half a write": (ENTER + request(WRITE, 0, 1 << 20) + bytes(1000), "stays"),
    "1,000 status requests, not taken": (SELECT + request(STATUS, 0, 16 << 20) * 1000, "stays"),
}
TLS_KINDS = {
    "says nothing after STARTTLS": (SEEN + option(5), "stays"),
    "half a ClientHello": (SEEN + option(5) + HALF_HELLO, "stays"),
    "garbage after STARTTLS": (SEEN + option(5) + b"\x16\x03\x01\0\x40" + b"\1" * 64, "reads"),
}


def attack(path, kind, count, ready, stop):
    """Keeps `count` clients of a kind at the server until `stop`; `ready` once they are there."""
    words, then = {**KINDS, **TLS_KINDS}[kind]
    poll, clients, due = select.epoll(), {}, [0.0] * count

    def enter():
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        try:
            client.connect(path)
        except BlockingIOError:
            # The queue of the listening socket is full.
            client.close()
            due.append(time.monotonic() + AGAIN_S)
            return
        clients[client.fileno()] = [client, os.urandom(2000) if words is None else words]
        poll.register(client, LIVE)

    def leave(number):
        poll.unregister(number)
        clients.pop(number)[0].close()
        due.append(time.monotonic() + AGAIN_S)

    def turn(number, events):
        client, left = clients[number]
        if events & select.EPOLLIN and then == "reads" and not client.recv(1 << 16):
            raise ConnectionError("disconnected")
        if events & select.EPOLLOUT:
            left = left[client.send(left) if left else 0 :]
            clients[number][1] = left
            if not left:
                poll.modify(number, select.EPOLLRDHUP | select.EPOLLIN * (then == "reads"))
        if events & (select.EPOLLRDHUP | select.EPOLLHUP) or not left and then == "leaves":
            raise ConnectionError("the end")

    while not stop.is_set():
        now = time.monotonic()
        coming = [moment for moment in due if moment <= now]
        due[:] = [moment for moment in due if moment > now]
        for _ in coming:
            enter()
        for number, events in poll.poll(0.02):
            try:
                turn(number, events)
            except BlockingIOError:
                pass
            except OSError:
                leave(number)
        ready.set()


def enter(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    while True:
        try:
            client.connect(path)
            break
        except BlockingIOError:
            # The queue of the listening socket is full.
            time.sleep(0.01)
    client.sendall(ENTER)
    receive(client, 18 + 32 + 20)
    return client


def receive(client, length):
    while length:
        part = client.recv(min(length, 1 << 16))
        if not part:
            raise ConnectionError("the server has closed the connection")
        length -= len(part)


def fill(path):
    """Writes every other block, so that a status request has thousands of answers."""
    with enter(path) as client:
        for block in range(0, 4096, 2):
            client.sendall(request(WRITE, block * 4096) + os.urandom(4096))
            receive(client, 16)


def work(path, seconds):
    """Round trips per second of one client, and the times of others that come meanwhile."""
    both = request(WRITE, 32 << 20) + bytes([7]) * 4096 + request(READ, 32 << 20)
    stop, times = threading.Event(), []
    coming = threading.Thread(target=newcomers, args=(path, stop, times))
    coming.start()
    try:
        with enter(path) as client:
            count, start = 0, time.monotonic()
            while time.monotonic() - start < seconds:
                client.sendall(both)
                receive(client, 16 + 16 + 4096)
                count += 1
            return count / (time.monotonic() - start), times
    finally:
        stop.set()
        coming.join()


def newcomers(path, stop, times):
    """Clients that come one after the other and read a block, and how long each took."""
    while True:
        start = time.monotonic()
        with enter(path) as client:
            client.sendall(request(READ))
            receive(client, 16 + 4096)
        times.append(time.monotonic() - start)
        if stop.wait(0.1):
            return


def beside(path, kind, args):
    """The same beside hostile clients."""
    ready, stop = multiprocessing.Event(), multiprocessing.Event()
    hostile = multiprocessing.Process(target=attack, args=(path, kind, args.clients, ready, stop))
    hostile.start()
    try:
        ready.wait(10)
        # What they ask for at once when they come is over then, as far as it is carried out.
        _, first = work(path, SETTLE_S)
        rate, times = work(path, args.seconds)
        return rate, first + times
    finally:
        stop.set()
        hostile.join(20)
        hostile.kill()


def measure(path, kind, args):
    rounds = [(work(path, args.seconds)[0], *beside(path, kind, args)) for _ in range(args.rounds)]
    alone, crowded, times = zip(*rounds)
    return {
        "kind": kind,
        "alone": statistics.median(alone),
        "beside": statistics.median(crowded),
        "ratio": statistics.median(rate / base for base, rate in zip(alone, crowded)),
        "new_client_s_max": max(sum(times, [])),
    }


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].removeprefix("usage: "))
    parser.add_argument("socket")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    fill(args.socket)
    if not args.json:
        print(f"{args.clients} of each kind       alone, 1/s  beside, 1/s  ratio  new client, ms")
    for kind in KINDS | (TLS_KINDS if args.tls else {}):
        found = measure(args.socket, kind, args)
        if args.json:
            print(json.dumps(found), flush=True)
        else:
            print(f"{kind:32} {found['alone']:8.0f} {found['beside']:8.0f} {found['ratio']:6.2f}"
                  f" {found['new_client_s_max'] * 1e3:8.0f}", flush=True)


if __name__ == "__main__":
    main()
