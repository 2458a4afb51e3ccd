"""A drive under test, its server, and the actions concurrent with the writers: snapshots, views
and clones. For snapshot_rounds.py.
"""

import array
import collections
import contextlib
import json
import os
import random
import subprocess
import tempfile
import threading

from snapshot_copy import Copy
from snapshot_model import BLOCK, MIB, Down, Failure, Moment, Snapshot, Writer, content, nbd

# Maximum duration of a step.
STEP_SECONDS = 120


class World:
    """A drive, its server and clients, and the expected content of the drive."""

    def __init__(self, options):
        self.pumice, self.seed = options.pumice, options.seed
        self.folder = tempfile.mkdtemp(prefix="pumice-snapshots-", dir=options.folder)
        self.drive = self.file("d")
        self.env = {**os.environ, "PUMICE_RUNTIME_DIR": self.file("run"), "PUMICE_LOG": "info"}
        self.log = open(self.file("server.log"), "ab")
        self.children, self.writers, self.background = [], [], []
        self.server, self.hung, self.is_dying, self.stops = None, None, False, False
        self.gate, self.progress, self.steps = threading.Event(), threading.Condition(), 0
        self.serials, self.refused, self.drives, self.round = iter(range(1, 1 << 48)), 0, 0, 0
        self.snapshots, self.versions, self.doubt, self.moved = [], array.array("Q"), (), {}
        self.copy, self.counts = Copy(self), collections.Counter()

    def file(self, name):
        return os.path.join(self.folder, name)

    def remove(self, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file(name))

    # -- Programs and clients

    def start(self, *command, **how):
        how = {"stderr": self.log, "env": self.env, "cwd": self.folder, **how}
        child = subprocess.Popen(command, **how)
        self.children = [known for known in self.children if known.poll() is None] + [child]
        return child

    def run(self, *command):
        child = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        child.out, child.err = child.communicate()
        return child

    def cli(self, *arguments, fails=()):
        """Runs a command of pumice, which may fail only with one of the given messages."""
        finished = self.run(self.pumice, *arguments)
        if finished.returncode == 0 or any(text in finished.err for text in fails):
            return finished
        if self.is_dying:
            raise Down
        raise Failure(f"pumice {' '.join(arguments)} ended with {finished.returncode}: "
                      f"{finished.err.strip()[:500]} {finished.out.strip()[:500]}")

    def connect(self, export):
        client = nbd.NBD()
        client.set_export_name(export)
        client.connect_unix(self.file("socket"))
        return client

    @contextlib.contextmanager
    def limit(self, what):
        """Ends all processes if a step takes too long."""
        def end():
            running = [" ".join(child.args) for child in self.children if child.poll() is None]
            self.hung = f"{what}, with {running}"
            self.kill()
            for child in self.children:
                child.kill()
        timer = threading.Timer(STEP_SECONDS, end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if self.hung:
                raise Failure(f"{self.hung} took longer than {STEP_SECONDS} s")

    def serve(self, draw):
        self.is_dying = False
        self.remove("socket")
        options = ["--compact", draw.choice(("off", "20")), "--checkpoint",
                   draw.choice(("8M", "32M", "1G")), "--unix", "socket", "--json"]
        self.server = self.start(self.pumice, "serve", self.drive, *options,
                                 stdout=subprocess.PIPE, text=True)

    def wait_served(self):
        while (line := self.server.stdout.readline()) != "}\n":
            if not line:
                raise Failure("pumice serve does not start")
        while self.run(self.pumice, "snapshot", "list", self.drive).returncode != 0:
            if self.server.poll() is not None:
                raise Failure("pumice serve ended")

    def kill(self):
        self.is_dying = True
        self.server.kill()

    def end_server(self, is_killed):
        """Waits for the end of the server, possibly until the timer of a killer fires."""
        self.stops = True
        self.gate.set()
        if not is_killed:
            self.join_writers()
        for snapshot in self.snapshots:
            snapshot.views = []
        if not is_killed:
            self.server.terminate()
        if self.server.wait() != 0 and not is_killed:
            raise Failure(f"the server ended with {self.server.returncode}")
        self.join_writers()
        self.is_dying = True
        for child in self.background:
            child.wait()
        self.background, self.is_dying = [], False

    def join_writers(self):
        for writer in self.writers:
            writer.join()
            if writer.error:
                raise Failure(f"a request failed: {writer.error.string}")

    # -- The model

    def acked(self):
        return [writer.acked for writer in self.writers]

    def note_durable(self, counts):
        for writer, count in zip(self.writers, counts):
            writer.durable = max(writer.durable, count)

    def moment(self, first, last=None):
        """Returns the disk with the `first` requests of each writer, and maybe those up to `last`,
        or up to the last one sent if `last` is None."""
        versions, tails = array.array("Q", self.versions), []
        for index, writer in enumerate(self.writers):
            for request in writer.requests[:first[index]]:
                request.apply(versions)
            tails.append(writer.requests[first[index]:last and last[index]])
        return Moment(versions, tails)

    def durable(self):
        """Returns the disk after the last flush, possibly with later requests."""
        return self.moment([writer.durable for writer in self.writers])

    def new_drive(self, draw):
        self.remove("d")
        self.copy.begin_again()
        size = draw.choice((32, 64))
        self.blocks = size * MIB // BLOCK
        options = ["--size", f"{size}M", "--segment", "4M", "--codec",
                   draw.choice(("none", "lz4", "zstd")), "--capacity",
                   f"{size + draw.choice((56, 72, 96))}M"]
        self.cli("create", self.drive, *options)
        self.drives += 1
        self.versions, self.snapshots = array.array("Q", [0]) * self.blocks, []
        self.moved = {}

    def start_writers(self, draw):
        self.stops, self.writers = False, []
        count = draw.randint(1, 3)
        self.writers = [Writer(self, number, count, random.Random(draw.random()))
                        for number in range(count)]
        self.gate.set()
        for writer in self.writers:
            writer.start()

    def note_step(self):
        with self.progress:
            self.steps += 1
            self.progress.notify()

    def write_more(self, _draw):
        self.write(1000)

    def write(self, steps):
        """Waits until the writers have made `steps` more steps."""
        with self.progress:
            target = self.steps + steps
            self.progress.wait_for(lambda: self.steps >= target or self.is_dying or not any(
                writer.is_alive() for writer in self.writers), STEP_SECONDS)
        if self.is_dying:
            raise Down

    @contextlib.contextmanager
    def held(self):
        """Holds the writers, so that no request is in flight."""
        self.gate.clear()
        with contextlib.ExitStack() as locks:
            for writer in self.writers:
                locks.enter_context(writer.lock)
            try:
                yield
            finally:
                self.gate.set()

    # -- Actions concurrent with the writers

    def readable(self):
        return [snapshot for snapshot in self.snapshots if not snapshot.is_bookmark]

    def is_gone(self, snapshot):
        """Checks whether a snapshot was given up for space, and forgets such a snapshot."""
        if snapshot.yields and f'"{snapshot.name}"' not in self.list_text():
            self.snapshots.remove(snapshot)
            return True
        return False

    def list_text(self):
        return self.cli("snapshot", "list", self.drive, "--json").out

    def image(self):
        self.counts["images"] += 1
        with open(self.file("image"), "rb") as file:
            return file.read()

    def extract(self, place):
        """Returns the image of a closed drive or of a snapshot of it."""
        self.cli("extract", place, "image", "--force")
        return self.image()

    def read(self, snapshot, is_served, draw):
        """Returns the image of a snapshot, or of the disk (None)."""
        place = f"d@{snapshot.name}" if snapshot else "d"
        if not is_served:
            return self.extract(place)
        uri = f"nbd+unix:///{place.replace('@', '%40')}?socket={self.file('socket')}"
        command = draw.choice((("nbdcopy", uri, "image"),
                               ("qemu-img", "convert", "-f", "raw", "-O", "raw", uri, "image")))
        self.remove("image")
        finished = self.run(*command)
        if finished.returncode == 0:
            return self.image()
        if self.is_dying:
            raise Down
        if snapshot and self.is_gone(snapshot):
            return None
        raise Failure(f"{' '.join(command)}: {finished.err.strip()} {finished.out.strip()}")

    def compare(self, snapshot, is_served, draw):
        image = self.read(snapshot, is_served, draw)
        if image is not None:
            how = "served" if is_served else "closed"
            snapshot.moment.check(image, f"snapshot {snapshot.name}, {how}")

    def create(self, draw):
        snapshot = Snapshot(f"s{next(self.serials)}", draw.random() < 0.2)
        options = ("--yield",) if snapshot.yields else ()
        with self.held() if draw.random() < 0.5 else contextlib.nullcontext():
            counts = self.acked()
            self.doubt = ("create", snapshot)
            place = f"{self.drive}@{snapshot.name}"
            finished = self.cli("snapshot", "create", place, *options, fails=("free segments",))
            sent = [len(writer.requests) for writer in self.writers]
        self.doubt = ()
        if finished.returncode == 0:
            self.add(snapshot, counts, sent)
            if draw.random() < 0.3:
                self.compare(snapshot, True, draw)
        else:
            self.delete(draw)

    def rotate(self, draw):
        counts = self.acked()
        self.doubt = ("rotate", None)
        finished = self.cli("snapshot", "rotate", self.drive, "--keep", "hourly:1", "--json",
                            fails=("free segments",))
        sent = [len(writer.requests) for writer in self.writers]
        self.doubt = ()
        if finished.returncode != 0:
            return
        done = json.loads(finished.out)["drives"][0]
        self.forget({entry["name"] if isinstance(entry, dict) else entry
                     for entry in done["deleted"]})
        taken = [entry["name"] for entry in done["snapshots"] if not self.named(entry["name"])]
        if taken:
            self.add(Snapshot(taken[0]), counts, sent)
        elif "exists already: kept" not in finished.err:
            raise Failure("rotate took no snapshot, and does not say why")

    def add(self, snapshot, counts, sent):
        """Notes a snapshot. If the server was killed, the command may have taken the snapshot from
        the closed drive; it then has the durable content."""
        snapshot.moment = self.durable() if self.is_dying else self.moment(counts, sent)
        self.snapshots.append(snapshot)

    def named(self, name):
        return next((known for known in self.snapshots if known.name == name), None)

    def forget(self, names):
        self.snapshots = [known for known in self.snapshots if known.name not in names]

    def change_snapshot(self, action, snapshot, *options):
        """Deletes a snapshot or makes it a bookmark, which is refused while it is read."""
        place = f"{self.drive}@{snapshot.name}"
        fails = ("is being read", *(("there is no snapshot",) if snapshot.yields else ()))
        self.doubt = (action, snapshot)
        finished = self.cli("snapshot", action, place, *options, fails=fails)
        if snapshot.views and finished.returncode == 0 and not self.is_dying:
            raise Failure(f"{action} of {snapshot.name}, which is read, is not refused")
        snapshot.views = []
        # The server notices a moment later that its client has left.
        while "is being read" in finished.err:
            finished = self.cli("snapshot", action, place, *options, fails=fails)
        self.doubt = ()
        snapshot.is_bookmark = action == "bookmark" and finished.returncode == 0
        if not snapshot.is_bookmark:
            self.snapshots.remove(snapshot)

    def delete(self, draw, at=None):
        if not self.snapshots:
            return
        if at is None:
            # Old snapshots have copies that are copied again.
            at = draw.randrange(len(self.snapshots))
        self.change_snapshot("delete", self.snapshots[at])
        for neighbour in self.snapshots[max(at - 1, 0):at + 1]:
            if not neighbour.is_bookmark and draw.random() < 0.5:
                self.compare(neighbour, True, draw)

    def bookmark(self, draw):
        if self.readable():
            self.change_snapshot("bookmark", draw.choice(self.readable()))

    def compact(self, _draw):
        """Begins to empty segments in the background."""
        self.background.append(self.start(self.pumice, "compact", self.drive, "--to", "0",
                                          stdout=subprocess.DEVNULL))

    def compact_whole(self, draw):
        self.compact(draw)
        self.background[-1].wait()

    def empty_again(self, draw):
        """Takes snapshots while segments are emptied, and snapshots of copies that die later, and
        deletes the oldest: this order once lost the content of copies."""
        self.create(draw)
        self.write(draw.randrange(10, 60))
        self.compact(draw)
        self.write(draw.randrange(4))
        self.create(draw)
        self.background[-1].wait()
        self.write(draw.randrange(30, 90))
        self.create(draw)
        self.write(draw.randrange(10, 60))
        self.compact_whole(draw)
        self.delete(draw, 0)
        for snapshot in self.readable():
            self.compare(snapshot, True, draw)

    def send(self, draw):
        self.copy.receive(draw)

    def view(self, draw):
        """Opens or closes a view, and reads from the open views."""
        if not self.readable():
            return
        snapshot = draw.choice(self.readable())
        if len(snapshot.views) > 1:
            snapshot.views.pop()
        try:
            snapshot.views.append(self.connect(f"d@{snapshot.name}"))
            for other in self.readable():
                for view in other.views:
                    first = draw.randrange(self.blocks - 64)
                    data = view.pread(64 * BLOCK, first * BLOCK)
                    if not other.moment.tails and data != b"".join(
                            content(block, other.moment.versions[block])
                            for block in range(first, first + 64)):
                        raise Failure(f"a view of {other.name} reads wrong from block {first}")
        except nbd.Error as error:
            if self.is_dying:
                raise Down from error
            if not self.is_gone(snapshot):
                raise Failure(f"a view of {snapshot.name}: {error.string}") from error

    def clone(self, draw):
        """Makes a clone, reads it, and deletes it: after it is flattened, or with its snapshot."""
        if not self.readable():
            return
        snapshot, clone = draw.choice(self.readable()), self.file("clone")
        self.compare(snapshot, True, draw)
        if snapshot not in self.snapshots:
            return
        self.remove("clone")
        self.cli("clone", f"{self.drive}@{snapshot.name}", clone)
        is_flattened = draw.random() < 0.6
        for step in range(1 + is_flattened):
            if step:
                self.cli("flatten", clone)
            snapshot.moment.check(self.extract(clone), f"a clone of {snapshot.name}")
        os.unlink(clone)
        if not is_flattened:
            self.change_snapshot("delete", snapshot, "--forget", clone)
