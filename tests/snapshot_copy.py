"""A second drive, for snapshot_rounds.py. It receives snapshots in transfers that are cut and
resumed.
"""

import contextlib
import subprocess

from snapshot_model import MIB, Down, Failure


class Copy:
    """The receiving drive, and its expected content."""

    def __init__(self, world):
        self.world, self.path = world, world.file("copy")
        self.begin_again()

    def begin_again(self):
        """Forgets everything; the next snapshot is sent whole."""
        self.world.remove("copy")
        # The expected content of snapshots, by name; the last complete snapshot; the partial one.
        self.received, self.last, self.partial = {}, None, None

    def receive(self, draw):
        """Sends a snapshot, or the changes since an earlier one, and compares everything."""
        world = self.world
        snapshot = self.partial if self.partial in world.readable() else self.choose(draw)
        if not snapshot:
            return
        world.compare(snapshot, True, draw)
        if snapshot not in world.snapshots:
            return
        cut = draw.choice((None, None, "sender", "receiver"))
        if not self.partial:
            self.partial = snapshot
            self.transfer(*self.whole(), cut and (cut, draw.randrange(8 * MIB)))
        self.complete()
        self.received[snapshot.name] = snapshot.moment
        self.partial, self.last = None, snapshot
        if len(self.received) > 3:
            oldest = next(iter(self.received))
            world.cli("snapshot", "delete", f"{self.path}@{oldest}")
            del self.received[oldest]
        world.cli("check", self.path)
        for name, moment in self.received.items():
            moment.check(world.extract(f"{self.path}@{name}"), f"the copy of {name}")
        world.counts["transfers"] += 1

    def choose(self, draw):
        """Returns a snapshot that can be sent, or None."""
        world = self.world
        later = []
        if self.last in world.snapshots and not self.partial:
            after = world.snapshots.index(self.last) + 1
            later = [known for known in world.snapshots[after:] if not known.is_bookmark]
            if not later and draw.random() < 0.8:
                return None
        if not later:
            self.begin_again()
            later = world.readable()
        return draw.choice(later) if later else None

    def whole(self):
        """Returns the options that send and receive the partial snapshot from its beginning."""
        place = f"{self.world.drive}@{self.partial.name}"
        if self.last:
            return [place, "--since", self.last.name], []
        self.world.remove("copy")
        return [place], ["--create"]

    def transfer(self, sends, receives, cut=None):
        """Pipes the sender into the receiver, and kills one of them after some bytes."""
        world = self.world
        sender = world.start(world.pumice, "send", *sends, stdout=subprocess.PIPE)
        receiver = world.start(world.pumice, "receive", self.path, *receives,
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        passed = 0
        with contextlib.suppress(BrokenPipeError):
            while chunk := sender.stdout.read1(1 << 16):
                if cut and passed > cut[1]:
                    (sender if cut[0] == "sender" else receiver).kill()
                    break
                receiver.stdin.write(chunk)
                passed += len(chunk)
        sender.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            receiver.stdin.close()
        sender.wait()
        receiver.wait()

    def complete(self):
        """Completes a transfer that may have been cut."""
        world = self.world
        for _ in range(3):
            listed = world.run(world.pumice, "snapshot", "list", self.path, "--json")
            if listed.returncode == 0 and f'"{self.partial.name}"' in listed.out:
                return
            if world.is_dying:
                raise Down
            token = world.run(world.pumice, "receive", self.path, "--resume-token")
            if token.returncode == 0:
                world.counts["resumed"] += 1
                self.transfer([world.drive, "--resume", token.out.strip()], [])
            else:
                self.transfer(*self.whole())
        if world.is_dying:
            raise Down
        raise Failure(f"{self.partial.name} does not arrive: the log says why")
