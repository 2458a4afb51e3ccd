#!/usr/bin/env python3
"""How long a client of an NBD server waits while others crowd it.

usage: benches/crowd.py SOCKET [BURSTS]

One client writes and reads 4 KiB, over and over, while bursts of 200 connections come and go: a
quarter says nothing, a quarter stops in the middle of a word, a quarter asks for the exports and
does not read the answer, a quarter leaves at once. Prints round trips in microseconds, alone and in
the crowd. The default is 5 bursts: 1,000 connections, 200 at once.
"""

import socket
import struct
import sys
import threading
import time

SEEN = b"\0\0\0\x03"
ENTER = SEEN + b"IHAVEOPT\0\0\0\x07\0\0\0\x06" + bytes(6)
WORDS = [b"", SEEN + b"IHAVE", SEEN + b"IHAVEOPT\0\0\0\x03\0\0\0\0"]


def connect(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(path)
    return client


def receive(client, length):
    while length:
        length -= len(client.recv(length))


def request(command):
    return struct.pack(">IHHQQI", 0x25609513, 0, command, 1, 0, 4096)


def work(path, stop, times):
    client = connect(path)
    client.sendall(ENTER)
    receive(client, 18 + 32 + 20)
    both = request(1) + bytes([7]) * 4096 + request(0)
    while not stop.is_set():
        start = time.perf_counter()
        client.sendall(both)
        receive(client, 16 + 16 + 4096)
        times.append((time.perf_counter() - start) * 1e6)


def measure(path, during):
    stop, times = threading.Event(), []
    worker = threading.Thread(target=work, args=(path, stop, times))
    worker.start()
    during()
    stop.set()
    worker.join()
    times.sort()
    show = {"median": times[len(times) // 2], "99 %": times[len(times) * 99 // 100]}
    show["longest"] = times[-1]
    return len(times), ", ".join(f"{name} {value:.0f}" for name, value in show.items())


def crowd(path, bursts):
    for _ in range(bursts):
        clients = []
        for number in range(200):
            client = connect(path)
            if number % 4 < 3:
                client.sendall(WORDS[number % 4])
                clients.append(client)
            else:
                client.close()
        for client in clients:
            client.close()


def main():
    path = sys.argv[1]
    bursts = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    print("alone:       %d round trips, %s us" % measure(path, lambda: time.sleep(2)))
    print("in a crowd:  %d round trips, %s us" % measure(path, lambda: crowd(path, bursts)))


main()
