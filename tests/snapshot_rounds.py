#!/usr/bin/env python3
r"""Tests snapshots from outside: round after round, real clients overwrite a small, nearly full
drive, while snapshots are taken and deleted and the server is killed.

    tests/snapshot_rounds.py [--rounds N] [--minutes M] [--seed N] [--pumice PROGRAM] [--keep]
                             [--plant FAULT]

One round:

    pumice serve, one to three writers      write, trim, write zeroes, FUA, flush
      concurrently, in a random order: snapshot create, delete, bookmark, rotate; compact;
      clone, flatten; views that stay open; send | receive, which may be cut and resumed
    kill -9 (often in the middle of one of these) or SIGTERM
    list, compare everything                of the crashed drive (at times) and of its server
    snapshot rollback (at times)            killed, too, and compared again
    SIGTERM, list, compare everything       of the closed drive, also after it was compacted

The content of a block follows from its number and its version, so every block is recognized.
Writers own disjoint stripes and have one request in flight each. So the content of a snapshot taken
while they wait is known exactly. A snapshot taken while they write has the requests of each writer
up to some request, between those that had returned before the command and those sent before its
end; the check determines that request once, and it holds from then on. If a request is in the
snapshot, so must be all requests that had returned before it was sent. The same holds for the disk
after a crash, from the last flush on. Every acknowledged snapshot must be present and whole; a
snapshot whose creation or deletion was cut must be whole or absent. Images are read by nbdcopy and
qemu-img from the server and by `pumice extract` from the closed drive.

Snapshots hold segments that garbage collection empties, again and again. decoder.py counts the
frames copied for them in the forwarding tables; a run of ten rounds in which too few were copied,
or none was copied twice, fails as too weak.

--plant damages a frame that a snapshot needs (frame), rolls the disk back (rollback) or expects
another block in a snapshot (model), unknown to the checks, which must then end the run with exit
code 1.

Prints a line per round and a summary. A seed repeats the draws, not the timing. Exit code 0: all
clean. 1: a check failed; the folder with the drive, the drive as the last kill left it (`crashed`),
the model and the server's log is kept. 2: a program is missing. 77: Unix sockets cannot be created
here. Works in a folder below TMPDIR (default /var/tmp), which needs 2 GB.
"""

import argparse
import array
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import decoder
from snapshot_drive import World
from snapshot_model import BLOCK, MIB, NOISE, POOL, Down, Failure, Moment, Snapshot, content, nbd

# Rounds before a drive is replaced by a new one, so that young drives crash, too.
ROUNDS_PER_DRIVE = 10
# Maximum number of snapshots at a time; more would fill every drive permanently.
SNAPSHOTS_MAX = 6
# Frames that a run of ten rounds must have copied for snapshots.
COPIES_MIN = 200


class Rounds(World):
    """The actions of a round, and the checks after it."""

    def reconcile(self):
        """Compares the list of snapshots with the expected one, given the commands cut."""
        listed = {entry["name"]: entry
                  for entry in json.loads(self.list_text())["drives"][0]["snapshots"]}
        action, about, *_ = *self.doubt, None, None
        for name in [name for name in listed if not self.named(name)]:
            if action == "create" and name == about.name:
                new = about
            elif action == "rotate" and name.startswith("auto-"):
                new = Snapshot(name)
            else:
                raise Failure(f"the snapshot {name} was not asked for")
            new.moment = self.durable()
            self.snapshots.append(new)
        newer = self.snapshots[self.snapshots.index(about) + 1:] if action == "rollback" else []
        is_rolled_back = newer and not any(known.name in listed for known in newer)
        for known in [known for known in self.snapshots if known.name not in listed]:
            is_cut = known is about if action == "delete" else known in newer and is_rolled_back
            is_rotated = action == "rotate" and known.name.startswith("auto-")
            if not (is_cut or is_rotated or known.yields):
                raise Failure(f"the snapshot {known.name} was acknowledged and is gone")
            self.snapshots.remove(known)
        if list(listed) != [known.name for known in self.snapshots]:
            raise Failure(f"the list has another order: {list(listed)}")
        for known in self.snapshots:
            is_bookmark = listed[known.name]["is_bookmark"]
            if is_bookmark != known.is_bookmark and not (action == "bookmark" and known is about):
                raise Failure(f"{known.name} became {'a bookmark' if is_bookmark else 'whole'}")
            known.is_bookmark = is_bookmark
        return {name: [clone["path"] for clone in entry.get("clones", ())]
                for name, entry in listed.items()}, is_rolled_back

    def verify(self, is_served, draw):
        """Compares the disk and every snapshot with the model; no writer runs."""
        clones, is_rolled_back = self.reconcile()
        image = self.read(None, is_served, draw)
        disks = [self.durable()]
        if self.doubt[:1] == ("rollback",):
            back = Moment(array.array("Q", self.doubt[1].moment.versions), [])
            disks = [back] if is_rolled_back else disks + [back] * (not self.doubt[2])
        self.doubt = ()
        for disk in disks:
            try:
                disk.check(image, "the disk")
                break
            except Failure:
                if disk is disks[-1]:
                    raise
        self.versions, self.writers = disk.versions, []
        for snapshot in self.readable():
            self.compare(snapshot, is_served, draw)
        if not is_served:
            self.check_closed(draw)
        for name, paths in clones.items():
            # Needed only if the deletion of the clone was cut.
            if paths and is_served:
                options = [option for path in paths for option in ("--forget", path)]
                self.cli("snapshot", "delete", f"{self.drive}@{name}", *options)
                self.forget({name})

    def check_closed(self, draw):
        for place in (self.drive, *(f"{self.drive}@{known.name}" for known in self.readable())):
            found = json.loads(self.cli("check", place, "--json").out)["problem_count"]
            if found != 0:
                raise Failure(f"pumice check {place}: {found} problems")
        if len(self.snapshots) > 1 and self.readable():
            later = draw.choice(self.readable())
            for earlier in self.snapshots[:self.snapshots.index(later)]:
                if not earlier.moment.tails:
                    self.check_changes(earlier, later)

    def check_changes(self, earlier, later):
        """Checks that the differences between two snapshots are in the list of written ranges."""
        done = self.cli("diff", f"{self.drive}@{earlier.name}", f"{self.drive}@{later.name}",
                        "--json")
        listed = set()
        for change in json.loads(done.out)["ranges"]:
            start, length = change["offset"], change["bytes"]
            listed.update(range(start // BLOCK, (start + length) // BLOCK))
        pairs = enumerate(zip(earlier.moment.versions, later.moment.versions))
        missing = [block for block, (old, new) in pairs if old != new and block not in listed
                   and content(block, old) != content(block, new)]
        if missing:
            raise Failure(f"diff {earlier.name} {later.name} lacks blocks {missing[:8]}")

    def count_copies(self):
        """Counts the frames copied for snapshots since the last count, by the forwarding tables."""
        if not self.readable():
            return
        forwards = decoder.Drive(self.drive, self.readable()[0].name).forwards
        for place, target in forwards.items():
            times, seen = self.moved.get(place, (0, None))
            if target != seen:
                self.moved[place] = (times + 1, target)
                self.counts[f"copies-{min(times + 1, 3)}"] += 1

    def roll_back(self, draw, is_killed):
        """Rolls the disk back, which is refused until the server has noticed that readers left."""
        snapshot = draw.choice(self.readable())
        newer = self.snapshots[self.snapshots.index(snapshot) + 1:]
        self.doubt = ("rollback", snapshot, newer)
        killer = threading.Timer(draw.uniform(0, 0.05), self.kill)
        if is_killed:
            killer.start()
        try:
            busy = "client"
            while busy and "client" in busy:
                busy = self.cli("snapshot", "rollback", f"{self.drive}@{snapshot.name}",
                                "--delete-newer", fails=("client",)).err
            self.versions = array.array("Q", snapshot.moment.versions)
            self.snapshots = self.snapshots[:self.snapshots.index(snapshot) + 1]
            self.doubt = ()
        finally:
            if is_killed:
                killer.join()
        self.counts["rollbacks"] += 1

    def plant(self, fault, draw):
        """Damages data that a snapshot of the closed drive needs, or changes the disk. Returns
        whether there was a snapshot for that."""
        known = [known for known in self.readable() if known.moment.versions != self.versions]
        if not known:
            return False
        snapshot = known[-1]
        if fault == "rollback":
            self.cli("snapshot", "rollback", f"{self.drive}@{snapshot.name}", "--delete-newer")
            self.snapshots = self.snapshots[:self.snapshots.index(snapshot) + 1]
        elif fault == "model":
            snapshot.moment.versions[draw.randrange(self.blocks)] = 1 << 40 | NOISE
        else:
            disk = decoder.Drive(self.drive, snapshot.name)
            block = next(block for block, version in enumerate(snapshot.moment.versions)
                         if version & 255 > NOISE and version != self.versions[block])
            leaf, index = divmod(block, decoder.LEAF_BLOCKS)
            frame = list(disk.mappings(leaf))[index]
            place = (frame.segment, disk.generations[frame.segment], frame.offset)
            segment, _, offset, _ = disk.forwards.get(place, (*place, 0))
            at = disk.superblock.data_offset + segment * disk.superblock.segment_bytes + offset
            with open(self.drive, "r+b") as file:
                file.seek(at)
                # More data than parity can restore.
                file.write(POOL[:MIB])
        print(f"planted: {fault}, which snapshot {snapshot.name} must show", flush=True)
        return True

    # -- Rounds

    def act(self, draw):
        """Draws the actions concurrent with the writers."""
        if self.refused or len(self.snapshots) >= SNAPSHOTS_MAX:
            self.refused = 0
            return self.delete
        actions = {self.create: 8, self.delete: 3, self.rotate: 2, self.bookmark: 1,
                   self.compact: 4, self.view: 4, self.send: 3, self.clone: 1,
                   self.empty_again: 2}
        return draw.choices(list(actions), list(actions.values()))[0]

    def work(self, draw, ending):
        """Lets the writers and all other actions run, until the server must end."""
        for _ in range(draw.randrange(5, 12)):
            self.write(draw.randrange(5, 60))
            with self.limit("one of the actions"):
                self.act(draw)(draw)
        self.write(20)
        if ending == "at its own end":
            return ending
        actions = (self.create, self.delete, self.rotate, self.bookmark, self.send,
                   self.compact_whole)
        action = draw.choice(actions) if ending == "in the middle" else self.write_more
        is_long = action not in actions[:4]
        killer = threading.Timer(draw.uniform(0, 0.6 if is_long else 0.04), self.kill)
        killer.start()
        try:
            with self.limit("the last action"):
                action(draw)
        except Down:
            pass
        killer.join()
        return f"{ending} of {action.__name__}"

    def run_round(self, round_number, fault):
        self.round = round_number
        draw = random.Random(f"{self.seed} {round_number}")
        started, before = time.monotonic(), collections.Counter(self.counts)
        if (round_number - 1) % ROUNDS_PER_DRIVE == 0:
            self.new_drive(draw)
        with self.limit("the start"):
            self.serve(draw)
            self.wait_served()
            self.start_writers(draw)
        ending = draw.choice(("in the middle", "in the middle", "at any moment", "at its own end"))
        how = self.work(draw, ending)
        requests = sum(len(writer.requests) for writer in self.writers)
        with self.limit("the end of the server"):
            is_killed = ending != "at its own end"
            self.end_server(is_killed)
            if not is_killed:
                for writer in self.writers:
                    writer.durable = len(writer.requests)
        if is_killed:
            self.counts["kills"] += 1
            shutil.copyfile(self.drive, self.file("crashed"))
            if draw.random() < 0.5:
                with self.limit("the checks of the crashed drive"):
                    self.verify(False, draw)
            if draw.random() < 0.3:
                self.serve(draw)
                killer = threading.Timer(draw.uniform(0, 0.1), self.kill)
                killer.start()
                killer.join()
                self.end_server(True)
        with self.limit("the checks of the served drive"):
            self.serve(draw)
            self.wait_served()
            self.verify(True, draw)
        if self.readable() and draw.random() < 0.3:
            is_killed = draw.random() < 0.5
            with self.limit("a rollback"):
                try:
                    self.roll_back(draw, is_killed)
                except Down:
                    pass
                if is_killed:
                    self.end_server(True)
                    self.serve(draw)
                    self.wait_served()
                self.verify(True, draw)
        with self.limit("the checks of the closed drive"):
            self.end_server(False)
            is_planted = bool(fault) and self.plant(fault, draw)
            self.verify(False, draw)
            self.count_copies()
            if draw.random() < 0.6:
                self.run(self.pumice, "compact", self.drive, "--to", "0")
                self.verify(False, draw)
            self.count_copies()
        self.counts["requests"] += requests
        new = self.counts - before
        print(f"round {round_number}: drive {self.drives}, {requests} requests, ended {how}, "
              f"{len(self.readable())} snapshots, {new['images']} images, {copies_of(new)}, "
              f"all clean, {time.monotonic() - started:.1f} s", flush=True)
        return is_planted

    def close(self, keeps):
        """Ends running processes, and removes the folder, or keeps it with the model."""
        self.is_dying = self.stops = True
        self.gate.set()
        for child in self.children:
            child.kill()
            child.wait()
        if not keeps:
            shutil.rmtree(self.folder)
            return
        model = {"disk": list(self.versions), "doubt": str(self.doubt)}
        for known in self.snapshots:
            model[known.name] = list(known.moment.versions) if known.moment else None
        with open(self.file("model.json"), "w", encoding="utf-8") as file:
            json.dump(model, file)
        print(f"kept: {self.folder}", file=sys.stderr)


def copies_of(counts):
    """Reports how often frames were copied for snapshots."""
    once, again, more = (counts[f"copies-{times}"] for times in (1, 2, 3))
    return f"{once} frames copied for snapshots, {again} again, {more} a third time"


def check_tools(pumice):
    packages = {"nbdcopy": "libnbd-bin", "qemu-img": "qemu-utils", pumice: "pumice: make build"}
    missing = [package for tool, package in packages.items() if not shutil.which(tool)]
    missing += [] if nbd else ["python3-libnbd"]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        sys.exit(2)


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description="Proves snapshots from outside; see the header.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--minutes", type=float, help="stop after this time, if sooner")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--pumice", default=os.path.join(root, "target/release/pumice"))
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    parser.add_argument("--plant", choices=("frame", "rollback", "model"))
    options = parser.parse_args()
    options.pumice = os.path.abspath(options.pumice)
    options.folder = os.environ.get("TMPDIR", "/var/tmp")
    check_tools(options.pumice)
    version = subprocess.run([options.pumice, "--version"], capture_output=True, text=True).stdout
    print(f"seed {options.seed}, {version.strip()}", flush=True)
    # The path of a socket has at most 107 bytes.
    if len(options.folder) > 70 or not os.access(options.folder, os.W_OK):
        print(f"no socket can be made in {options.folder}", file=sys.stderr)
        sys.exit(77)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    world, started, status, done = Rounds(options), time.monotonic(), 1, 0
    try:
        for number in range(1, options.rounds + 1):
            if options.minutes and time.monotonic() - started > options.minutes * 60:
                break
            world.run_round(number, options.plant if number > 1 else None)
            done += 1
        counts = world.counts
        summary = (f"{done} rounds, {counts['kills']} kills, {counts['rollbacks']} rollbacks, "
                   f"{counts['transfers']} transfers, {counts['resumed']} resumed, "
                   f"{counts['images']} images; {copies_of(counts)}")
        if done >= 10 and (counts["copies-1"] < COPIES_MIN or not counts["copies-2"]):
            raise Failure(f"too tame: {summary}")
        print(f"{summary}: all clean, in {time.monotonic() - started:.0f} s")
        status = 0
    except (Failure, Down) as failure:
        print(f"FAILED: round {world.round}, seed {options.seed}: {world.hung or failure}",
              file=sys.stderr)
    except KeyboardInterrupt:
        status = 130
    finally:
        # Running work is ended once, even if several signals request it.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        world.close(options.keep or status == 1)
    sys.exit(status)


if __name__ == "__main__":
    main()
