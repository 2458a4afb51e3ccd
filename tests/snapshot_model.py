"""The expected content of drives and snapshots, and the clients that write it, for
snapshot_rounds.py.

A block's content follows from its number and its version, a serial number and a kind, so that the
content of a block can be recognized. Writers own disjoint stripes and have one request in flight
each; an image must hold a prefix of the requests of each writer.
"""

import array
import contextlib
import errno
import random
import struct
import threading
import time

try:
    import nbd
except ImportError:
    nbd = None

MIB = 1 << 20
BLOCK = 4096
# Blocks of a stripe, which belongs to one writer; also the longest request, which is atomic.
STRIPE = 256

ZEROES = bytes(BLOCK)
FILLS = [bytes([byte]) * BLOCK for byte in range(256)]
POOL = random.Random(0).randbytes(4 * MIB + BLOCK)
# Kinds of versions: a hole or zeroes, one repeated byte, or data with (kind - 2) KiB of noise.
HOLE, FILL, NOISE = 0, 1, 2


class Failure(Exception):
    """A check failed."""


class Down(Exception):
    """The server was killed while an action needed it."""


def content(block, version):
    """Returns the content of a version of a block: the low byte is the kind, the rest the serial
    number."""
    serial, kind = version >> 8, version & 255
    if kind == HOLE:
        return ZEROES
    if kind == FILL:
        return FILLS[serial & 255]
    noise = max((kind - NOISE) << 10, 16)
    at = (block * 0x9E3779B1 + serial * 0x85EBCA6B) % (4 * MIB)
    return struct.pack("<QQ", block, version) + POOL[at:at + noise - 16] + ZEROES[noise:]


class Request:
    """A change that a writer has sent: its blocks, their version, times of sending and reply."""

    def __init__(self, first, count, version):
        self.first, self.count, self.version = first, count, version
        self.sent, self.done = time.monotonic(), None

    def apply(self, versions):
        # A change that was refused for lack of space must have changed nothing.
        if self.version is not None:
            versions[self.first:self.first + self.count] = \
                array.array("Q", [self.version]) * self.count


class Moment:
    """The expected content of an image: versions of all blocks, and requests of each writer, of
    which the image also has a prefix, possibly empty or complete."""

    def __init__(self, versions, tails):
        self.versions, self.tails = versions, tails

    def settle(self, image, what):
        """Determines the requests that are in an image."""
        def same(block, version):
            return image[block * BLOCK:(block + 1) * BLOCK] == content(block, version)

        ends = []
        for tail in self.tails:
            touched = {block for request in tail
                       for block in range(request.first, request.first + request.count)}
            wrong = {block for block in touched if not same(block, self.versions[block])}
            fits, least = [] if wrong else [0], (len(wrong), 0, sorted(wrong)[:4])
            for index, request in enumerate(tail, 1):
                if request.version is not None:
                    blocks = range(request.first, request.first + request.count)
                    wrong.difference_update(blocks)
                    wrong.update(block for block in blocks if not same(block, request.version))
                if not wrong:
                    fits.append(index)
                least = min(least, (len(wrong), index, sorted(wrong)[:4]))
            if not fits:
                raise Failure(f"{what} has no beginning of the {len(tail)} requests of a writer: "
                              f"at best {least[1]}, and then blocks {least[2]} are wrong")
            ends.append((tail, fits[0], fits[-1]))
        # Chooses the alternative with the fewest requests.
        last_sent = max((tail[least - 1].sent for tail, least, _ in ends if least), default=0)
        for tail, _, most in ends:
            if most < len(tail) and (tail[most].done or last_sent) < last_sent:
                raise Failure(f"{what} lacks a request that returned before another was sent, "
                              "which it has")
        for tail, least, _ in ends:
            for request in tail[:least]:
                request.apply(self.versions)
        self.tails = []

    def check(self, image, what):
        if self.tails:
            self.settle(image, what)
        if len(image) != len(self.versions) * BLOCK:
            raise Failure(f"{what} has {len(image)} bytes")
        if image == b"".join(map(content, range(len(self.versions)), self.versions)):
            return
        wrong = [block for block, version in enumerate(self.versions)
                 if image[block * BLOCK:(block + 1) * BLOCK] != content(block, version)]
        found = struct.unpack_from("<QQ", image, wrong[0] * BLOCK)
        raise Failure(f"{what}: {len(wrong)} blocks are wrong, the first is {wrong[0]}, expected "
                      f"version {self.versions[wrong[0]]:#x}, found block {found[0]:#x} version "
                      f"{found[1]:#x}; then {wrong[1:9]}")


class Snapshot:
    """A snapshot that the drive must have."""

    def __init__(self, name, yields=False):
        self.name, self.yields, self.moment = name, yields, None
        self.is_bookmark, self.views = False, []


class Writer(threading.Thread):
    """A client that changes its stripes at random until it is told to stop or cut off."""

    def __init__(self, world, number, of, draw):
        super().__init__(daemon=True)
        self.world, self.draw = world, draw
        self.requests, self.acked, self.durable = [], 0, 0
        self.lock, self.error = threading.Lock(), None
        self.stripes = range(number, world.blocks // STRIPE, of)
        self.hot = draw.sample(self.stripes, max(1, len(self.stripes) // 4))
        self.disk = world.connect("d")

    def run(self):
        try:
            while not self.world.stops:
                self.world.gate.wait()
                with self.lock:
                    self.step()
                self.world.note_step()
        except nbd.Error as error:
            self.error = None if self.world.is_dying else error
            self.world.note_step()
        with contextlib.suppress(nbd.Error):
            self.disk.shutdown()

    def step(self):
        draw = self.draw
        first = draw.choice(self.hot if draw.random() < 0.6 else self.stripes) * STRIPE
        count = min(STRIPE, draw.choice((1, 2, 8, 8, 24, 64, STRIPE)))
        at = first + draw.randrange(STRIPE - count + 1)
        noise = NOISE + draw.randrange(5)
        what = draw.random()
        if what < 0.60:
            self.change(at, count, noise, draw.random() < 0.05)
        elif what < 0.72:
            # Little of this stripe stays live: its blocks in snapshots are copied with the rest.
            self.change(first, STRIPE, noise, False)
            kept = draw.randrange(16, 128)
            self.change(first + kept, STRIPE - kept, HOLE, False)
        elif what < 0.84:
            self.change(at, count, HOLE, draw.random() < 0.05)
        elif what < 0.90:
            self.change(at, count, FILL, False)
        else:
            counts = self.world.acked()
            self.disk.flush()
            self.world.note_durable(counts)

    def change(self, first, count, kind, is_durable):
        version = next(self.world.serials) << 8 | kind
        counts = self.world.acked()
        request = Request(first, count, version)
        self.requests.append(request)
        flags = nbd.CMD_FLAG_FUA if is_durable else 0
        at, length = first * BLOCK, count * BLOCK
        try:
            if kind != HOLE:
                data = b"".join(content(block, version) for block in range(first, first + count))
                self.disk.pwrite(data, at, flags)
            elif self.draw.random() < 0.5:
                self.disk.trim(length, at, flags)
            else:
                flags |= nbd.CMD_FLAG_NO_HOLE if self.draw.random() < 0.5 else 0
                self.disk.zero(length, at, flags)
        except nbd.Error as error:
            if error.errnum != errno.ENOSPC:
                raise
            request.version, is_durable = None, False
            self.world.refused += 1
        request.done = time.monotonic()
        self.acked = len(self.requests)
        if is_durable:
            self.world.note_durable(counts)
            self.durable = max(self.durable, self.acked)
