#!/usr/bin/env python3
"""Extracts the disk of a Pumice drive: an independent implementation of docs/format.md.

    tests/decoder.py [--snapshot NAME] [--key-file FILE] DRIVE [IMAGE]

An encrypted drive needs --key-file, --passphrase-file or --recovery-code-file; decoder_keys.py has
the ciphers. With --snapshot, extracts the disk as it was when that snapshot was taken. Prints a
summary as JSON on stdout. With IMAGE, writes the disk to that file as a sparse raw image. Blocks
that cannot be read are zeroes in the image and are listed in the summary.

Exit code: 0 if every block was read, 1 if some blocks cannot be read, 2 if the drive does not open
(the error is on stderr).

This program shares no code with Pumice. It needs Python 3.8 and, for drives with zstd frames, the
library libzstd or the program zstd. It only reads the drive, which must not be in use. It is meant
to be read and compared with the document, and decodes about 20 MB/s.
"""

import array
import ctypes
import ctypes.util
import hashlib
import json
import mmap
import os
import struct
import subprocess
import sys
from collections import namedtuple

import decoder_keys

BLOCK = 4096
LEAF_BLOCKS = 1024
TABLE_BYTES = 48
HAS_TABLE = 128
HEADER = 128  # bytes of a batch header
RECORD = 28  # bytes of a record header
SOURCE = 16
BATCH_MAX = 4 << 20
NO_SEGMENT = 0xFFFFFFFF
NEEDS_NEXT = 1  # a flag of batches
DATA, FILL, TRIM, OPEN, META = 1, 2, 3, 4, 5
LEAF, PAGE, PAGE_LIST, TABLE, DROPPED, ROOT, SNAPSHOTS = 1, 2, 3, 4, 5, 6, 7
FORWARDS = 9
HOLE = None  # a mapping is HOLE, the byte of a fill (int), or a Frame


class Damage(Exception):
    """Bytes that violate the document."""


class Unsupported(Exception):
    """A feature that this program does not support."""


def crc_table(polynomial):
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
        table.append(crc)
    return table


CRC32C = crc_table(0x82F63B78)
CRC64 = crc_table(0x9A6C9329AC4BC9B5)


def crc64_words():
    """Returns four tables of 65,536 entries, which advance the CRC-64 by 8 bytes in one step."""
    tables = [[CRC64[c & 255] ^ c >> 8 for c in range(65536)]]
    tables[0] = [CRC64[c & 255] ^ c >> 8 for c in tables[0]]
    for _ in range(3):
        tables.append([tables[0][c & 65535] ^ c >> 16 for c in tables[-1]])
    # Lists of integers would not fit in a processor's cache.
    return [array.array("Q", table) for table in tables]


CRC64_WORDS = crc64_words()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def crc64(data):
    t0, t1, t2, t3 = CRC64_WORDS
    crc = 0xFFFFFFFFFFFFFFFF
    whole = len(data) & ~7
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        crc ^= word
        crc = t3[crc & 65535] ^ t2[crc >> 16 & 65535] ^ t1[crc >> 32 & 65535] ^ t0[crc >> 48]
    for byte in data[whole:]:
        crc = CRC64[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFFFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283
assert crc64(b"123456789") == 0xAE8B14860A799888


def checksum_with_hole(data, offset):
    """Returns the CRC-64 of a structure whose own checksum, at `offset`, counts as zero."""
    return crc64(data[:offset] + bytes(8) + data[offset + 8:])


def lz4_block(data, size):
    """Decodes an LZ4 block (lz4, doc/lz4_Block_format.md) to exactly `size` bytes."""
    out = bytearray()
    at = 0

    def length(nibble):
        nonlocal at
        total = nibble
        more = nibble == 15
        while more:
            total += data[at]
            more = data[at] == 255
            at += 1
        return total

    try:
        while True:
            token = data[at]
            at += 1
            literals = length(token >> 4)
            if at + literals > len(data):
                raise Damage("LZ4: literals beyond the end of the payload")
            out += data[at:at + literals]
            at += literals
            if at == len(data):
                break
            distance = data[at] | data[at + 1] << 8
            at += 2
            count = length(token & 15) + 4
            start = len(out) - distance
            if distance == 0 or start < 0 or len(out) + count > size:
                raise Damage("LZ4: invalid match")
            if distance >= count:
                out += out[start:start + count]
            else:
                out += (bytes(out[start:]) * (count // distance + 1))[:count]
    except IndexError:
        raise Damage("LZ4: the payload is truncated") from None
    if len(out) != size:
        raise Damage("LZ4: wrong length after decoding")
    return bytes(out)


def zstd_library():
    name = ctypes.util.find_library("zstd")
    if name is None:
        return None
    library = ctypes.CDLL(name)
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return library


ZSTD = zstd_library()


def zstd_frame(data, size):
    """Decodes a zstd frame (RFC 8878) to exactly `size` bytes."""
    if ZSTD is not None:
        out = ctypes.create_string_buffer(size)
        if ZSTD.ZSTD_decompress(out, size, data, len(data)) != size:
            raise Damage("zstd: the frame does not decode to the expected length")
        return out.raw
    try:
        run = subprocess.run(["zstd", "-dcq"], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise Unsupported("the drive has zstd frames: install libzstd or zstd") from None
    if run.returncode != 0 or len(run.stdout) != size:
        raise Damage("zstd: the frame does not decode to the expected length")
    return run.stdout


def chunk_entries(data, count):
    """Returns the chunks of a frame of `count` blocks: [encoding, length, checksum, blocks]."""
    if not 2 <= count <= 8 or len(data) < 6 * count:
        raise Damage("chunks: impossible lengths")
    chunks = []
    for word, checksum in struct.iter_unpack("<HI", data[:6 * count]):
        encoding, length = word >> 13, word & 8191
        if encoding == 3 and length == checksum == 0 and chunks and chunks[-1][0] != 0:
            chunks[-1][3] += 1
            continue
        if encoding > 2 or not (length == BLOCK if encoding == 0 else length):
            raise Damage("chunks: an impossible entry")
        chunks.append([encoding, length, checksum, 1])
    if any(encoding and length >= blocks * BLOCK for encoding, length, _, blocks in chunks):
        raise Damage("chunks: a chunk is too long")
    if not is_stored(chunks) and chunks_bytes(chunks) >= count * BLOCK:
        raise Damage("chunks: impossible lengths")
    return chunks


def is_stored(chunks):
    """Returns whether the payload is the content of the blocks, and has no entries."""
    return all(encoding == 0 for encoding, _, _, _ in chunks)


def chunks_bytes(chunks):
    """Returns the length of a payload with these chunks."""
    entries = 0 if is_stored(chunks) else 6
    return sum(entries * blocks + length for _, length, _, blocks in chunks)


def chunked(data, size):
    """Decodes a payload of chunks to exactly `size` bytes."""
    count = size // BLOCK
    at = 6 * count
    if size % BLOCK:
        raise Damage("chunks: impossible lengths")
    chunks = chunk_entries(data, count)
    if is_stored(chunks) or chunks_bytes(chunks) != len(data):
        raise Damage("chunks: wrong length of the payload")
    out = []
    for encoding, length, checksum, blocks in chunks:
        stored = data[at:at + length]
        at += length
        if crc32c(stored) != checksum:
            raise Damage("chunks: a damaged chunk")
        out.append(decode(encoding, stored, blocks * BLOCK))
    return b"".join(out)


def decode(encoding, data, size):
    if encoding == 4:
        return chunked(data, size)
    if encoding == 1:
        return lz4_block(data, size)
    if encoding == 2:
        return zstd_frame(data, size)
    if encoding == 3:
        raise Damage("the content was lost before garbage collection moved the frame")
    if encoding != 0:
        raise Damage(f"unknown encoding {encoding}")
    if len(data) != size:
        raise Damage("wrong length of a payload that is not compressed")
    return data


def structure(name, fields):
    """Defines a structure from "name format" pairs; `read` decodes it."""
    pairs = [field.split() for field in fields.split(",")]
    layout = struct.Struct("<" + "".join(form for _, form in pairs))
    made = namedtuple(name, [field for field, _ in pairs])
    made.bytes = layout.size
    made.read = staticmethod(lambda data, at=0: made(*layout.unpack_from(data, at)))
    return made


Superblock = structure("Superblock", """
    magic 8s, version I, length I, checksum Q, features_compatible Q, features_read_only Q,
    features_incompatible Q, uuid 16s, revision Q, epoch I, state I, size_bytes Q, segment_bytes I,
    segment_count I, data_offset Q, created_seconds Q, frame_blocks H, codec H, codec_level i,
    watermark Q, watermark_checksum Q, checkpoint_segment I, checkpoint_offset I,
    checkpoint_generation Q, checkpoint_bytes I, warn_percent 4s, checkpoint_checksum Q,
    bad_count I, detour_count I, bad_segments 512s, detour_seqs 128s, detour_generations 128s,
    detour_segments 64s, detour_streams 16s, receiving_snapshot 16s,
    receiving_base 16s, receiving_offset Q, origin_drive 16s, origin_snapshot 16s,
    origin_watermark Q, origin_blocks Q, origin_path_bytes H, origin_path 1024s,
    key_mac 16s, key_since Q, key_earlier 60s, key_slots 1024s, flat_since Q, reserved 842s""")
SegmentHeader = structure("SegmentHeader", """
    magic 8s, version I, length I, checksum Q, uuid 16s, generation Q, first_seq Q, segment I,
    stream H, frame_blocks H, size_bytes Q, data_offset Q, segment_bytes I, segment_count I,
    opening_seq Q, recovery_slot 128s, reserved 3872s""")
BatchHeader = structure("BatchHeader", """
    magic 8s, header_checksum Q, records_checksum I, epoch I, seq Q, previous_checksum Q,
    watermark Q, generation Q, host_bytes Q, frame_bytes Q, media_bytes Q, segment I, offset I,
    body_bytes I, record_bytes I, record_count I, version H, parity_pages B, flags B,
    moved_bytes Q, uuid 16s""")
RecordHeader = structure("RecordHeader", """
    header_checksum I, stored_bytes I, number Q, blocks B, source_count B, kind B, argument B,
    tail Q""")
Source = structure("Source", "birth_blocks Q, segment I, offset I")
Run = structure("Run", "start H, index B, blocks B, segment I, offset I, record_bytes I")
Root = structure("Root", """
    magic 8s, epoch I, segment_count I, watermark Q, watermark_checksum Q, host_bytes Q,
    frame_bytes Q, media_bytes Q, size_bytes Q, mapped_blocks Q, tails 48s, page_count I,
    dropped_count I, opened_count H, forward_lists H, page_lists I, tables I, dropped_lists I,
    moved_bytes Q, lost_leaves I, snapshot_lists H, retained_lists H, lost_until Q,
    lost_pieces H, reserved 6s, rolled_back Q""")
Tail = structure("Tail", "generation Q, segment I, used I")
TableEntry = structure("TableEntry", """
    generation Q, last_seq Q, age Q, live_bytes I, stream B, state B, reserved H""")
Dropped = structure("Dropped", "start Q, end Q, mapping Q")
Snapshot = structure("Snapshot", """
    guid 16s, watermark Q, watermark_checksum Q, created_seconds Q, root_generation Q,
    root_segment I, root_offset I, root_bytes I, flags I, root_checksum Q, size_bytes Q,
    mapped_blocks Q, live_bytes Q, host_bytes Q, reserved 23s, name_bytes B, name 256s""")

Forwards = structure("Forwards", "generation Q, emptied Q, segment I, reserved 12s")
Forward = structure("Forward", """
    offset I, new_segment I, new_offset I, new_bytes I, since Q, until Q""")

# Part of a mapping: the block `index` of the frame whose record is at `offset` in `segment`.
Frame = namedtuple("Frame", "segment offset index blocks record_bytes")
# A record of a batch: its header, its byte offset in the segment, its sources, and the reason why
# its payload is damaged, or None.
Record = namedtuple("Record", "header offset sources damage")
# The position of a root, and the checksum of its payload.
RootPlace = namedtuple("RootPlace", "segment offset record_bytes generation checksum")
# The position at which a stream continues. `started` is false if the segment has no batch yet.
Position = namedtuple("Position", "generation segment offset started")

assert (Superblock.bytes, SegmentHeader.bytes, BatchHeader.bytes) == (4096, 4096, HEADER)
assert (RecordHeader.bytes, Root.bytes, TableEntry.bytes) == (RECORD, 184, 32)
assert (Snapshot.bytes, Forwards.bytes, Forward.bytes) == (384, 32, 32)


def shown(ring, data, generation, segment, offset):
    """Returns a record in the clear except for its payload, and the reason why its header is not
    that of the location, or None."""
    bound = struct.pack("<QIII", generation, segment, offset, 0)
    checksum = None
    if ring:
        data, checksum = ring.show(data, (generation, segment, offset))
    header = RecordHeader.read(data)
    end = RECORD + SOURCE * header.source_count
    if end > len(data):
        return data, "sources beyond the end of the data"
    if checksum is None:
        checksum = crc32c(bound + data[4:end])
    return data, None if checksum == header.header_checksum else "wrong record header checksum"


Member = namedtuple("Member", "uuid state first_segment segment_count path")
ArrayHeader = namedtuple("ArrayHeader", "array own layout members")


class Drive:
    """A drive that is open for reading."""

    def __init__(self, path, snapshot=None, origin_of=None, secret=None):
        self.secret = secret
        self.ring = None
        self.file = open(path, "rb")
        size = self.file.seek(0, os.SEEK_END)
        if size < (1 << 20) + BLOCK:
            raise Damage("the medium is too short for two superblocks")
        self.medium = mmap.mmap(self.file.fileno(), size, access=mmap.ACCESS_READ)
        self.superblock = self.choose_superblock()
        self.parts = [(0, self.superblock.segment_count, self.medium)]
        if self.superblock.features_incompatible & 128:
            self.parts = self.find_members(path)
        self.size_bytes = self.superblock.size_bytes
        self.segment_count = self.superblock.segment_count
        self.blocks = self.size_bytes // BLOCK
        self.generations = {}  # of each segment in use
        self.whole = {}  # leaves that are one fill (int), or the location of their record
        self.leaves = {}  # leaves that the log changed: a list of 1024 mappings
        self.forwards = {}  # locations of the frames that snapshots name in a use of a segment
        self.tables = {}  # tables of frames, by segment, offset, first block
        self.verified = set()  # segment and offset of records whose payload was in the log
        self.number = None  # of the snapshot
        self.counts = {"batches": 0, "damaged_batches": 0, "moved_blocks": 0, "ignored_blocks": 0,
                       "echoes": 0}
        if origin_of is not None:
            if self.superblock.uuid != origin_of.origin_drive:
                raise Damage(f"{path} is not the origin of the clone")
            self.go_back(lambda entry: (entry.guid, entry.watermark) == (
                origin_of.origin_snapshot, origin_of.origin_watermark))
        elif snapshot is None:
            self.recover()
        else:
            self.go_back(lambda entry: entry.name[:entry.name_bytes] == snapshot.encode())
        self.origin = self.open_origin(path)

    def open_origin(self, path):
        """Returns the origin of a clone, from its recorded path or from the clone's folder."""
        found = self.superblock
        if not found.features_incompatible & 16:
            return None
        if found.flat_since and (self.number is None or self.number >= found.flat_since):
            return None
        named = found.origin_path[:found.origin_path_bytes].decode()
        if not os.path.exists(named):
            named = os.path.join(os.path.dirname(path), os.path.basename(named))
        return Drive(named, origin_of=found, secret=self.secret)

    def read(self, segment, offset, count):
        for first, segment_count, medium in self.parts:
            if first <= segment < first + segment_count:
                start = (segment - first) * self.superblock.segment_bytes + offset
                start += self.superblock.data_offset
                return medium[start:start + count].ljust(count, b"\0")
        return bytes(count)

    # -- Members of an array

    def find_members(self, path):
        """Returns first segment, number of segments and bytes of each part of the drive: only this
        member of a mirror, all members of a concatenation, found by recorded path or beside it."""
        header = self.array_header(self.medium)
        if header.layout == 1:
            if [own.state for own in header.members if own.uuid == header.own] != [1]:
                raise Damage("this member of the mirror does not have everything")
            return [(0, self.superblock.segment_count, self.medium)]
        parts = []
        for member in header.members:
            medium = self.medium
            if member.uuid != header.own:
                named = member.path
                if not os.path.exists(named):
                    named = os.path.join(os.path.dirname(path), os.path.basename(named))
                with open(named, "rb") as file:
                    medium = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                found = self.array_header(medium)
                if (found.array, found.own) != (header.array, member.uuid):
                    raise Damage(f"{named} is not the member of the array")
            parts.append((member.first_segment, member.segment_count, medium))
        return parts

    @staticmethod
    def array_header(medium):
        valid = []
        for offset in (1 << 19, 3 << 19):
            data = medium[offset:offset + BLOCK]
            if data[:8] != b"PUMICEAR" or len(data) != BLOCK:
                continue
            version, length, checksum, features = struct.unpack_from("<IIQQ", data, 8)
            if length != BLOCK or checksum_with_hole(data, 16) != checksum or version == 0:
                continue
            if version > 1 or features:
                raise Unsupported("the array has a newer version or unknown features")
            array, own, events, layout, count = struct.unpack_from("<16s16sQHH", data, 32)
            if layout not in (1, 2) or not 1 <= count <= 8:
                raise Damage("a field of the array's header is out of range")
            members = []
            for at in range(80, 80 + count * 480, 480):
                uuid, _, state, first, segments, path_bytes, _ = struct.unpack_from(
                    "<16sQIIIHH", data, at)
                path = data[at + 40:at + 40 + path_bytes].decode()
                members.append(Member(uuid, state, first, segments, path))
            valid.append((events, ArrayHeader(array, own, layout, members)))
        if not valid:
            raise Damage("no header of the array is valid")
        return max(valid, key=lambda found: found[0])[1]

    # -- Superblock

    def choose_superblock(self):
        valid, reasons = [], []
        for slot, offset in enumerate((0, 1 << 20)):
            try:
                valid.append(self.read_superblock(self.medium[offset:offset + BLOCK]))
            except Damage as error:
                reasons.append(f"slot {slot}: {error}")
        if not valid:
            raise Damage("no valid superblock: " + "; ".join(reasons))
        newest = max(valid, key=lambda found: found.revision)
        if newest.features_incompatible & 64:
            valid = self.unlock(newest)
            newest = max(valid, key=lambda found: found.revision)
        if newest.state == 2:
            raise Damage("the drive is the target of a rebuild that has not ended")
        return newest

    def unlock(self, newest):
        """Takes the keys of an encrypted drive; returns the superblocks that are authentic."""
        if self.secret is None:
            raise Unsupported("the drive is encrypted, and no key was given")
        self.ring = decoder_keys.Ring(newest, *self.secret)
        authentic = []
        for offset in (0, 1 << 20):
            data = self.medium[offset:offset + BLOCK]
            if self.ring.superblock_mac(data) == Superblock.read(data).key_mac:
                authentic.append(self.read_superblock(data))
        if not authentic:
            raise Damage("no superblock is authentic")
        return authentic

    def payload(self, header, payload, place):
        """Returns encoding and content of a payload, which has its checksum."""
        encrypted = header.argument & 128 != 0
        if encrypted != (self.ring is not None and header.argument != 3):
            raise Damage("a payload is encrypted, and the drive is not, or the other way round")
        if encrypted:
            try:
                payload = self.ring.open(header, place, payload)
            except decoder_keys.Refused as error:
                raise Damage(str(error)) from None
        return header.argument & 127, payload

    @staticmethod
    def read_superblock(data):
        found = Superblock.read(data)
        if found.magic != b"PUMICESB":
            raise Damage("no magic")
        if found.length != 4096 or checksum_with_hole(data, 16) != found.checksum:
            raise Damage("wrong checksum")
        if found.version == 0:
            raise Damage("version 0")
        if found.version > 1 or found.features_read_only or found.features_incompatible & ~255:
            raise Unsupported("the drive has a newer version or unknown features")
        segments = found.segment_bytes
        if (any(found.reserved) or found.state > 2 or found.codec > 2
                or not 4 << 20 <= segments <= 1 << 30 or segments % BLOCK
                or not 1 <= found.segment_count <= 1 << 26
                or not 8192 <= found.data_offset <= 1 << 40 or found.data_offset % BLOCK
                or found.frame_blocks not in (1, 2, 4, 8, 16, 32, 64)
                or found.features_incompatible & 1 and found.frame_blocks > 8
                or found.features_incompatible & 3 == 2
                or not BLOCK <= found.size_bytes <= 16 << 50 or found.size_bytes % BLOCK
                or (found.features_incompatible & 8 != 0) != any(found.receiving_snapshot)
                or (found.features_incompatible & 16 != 0) != any(found.origin_drive)
                or found.origin_blocks * BLOCK > found.size_bytes
                or found.origin_path_bytes > 1024
                or any(found.origin_path[found.origin_path_bytes:])
                or not found.features_incompatible & 16 and (
                    any(found.origin_snapshot) or found.origin_watermark
                    or found.origin_blocks or found.origin_path_bytes or found.flat_since)
                or found.features_incompatible & 65 == 65
                or not found.features_incompatible & 64 and (
                    any(found.key_mac) or found.key_since or any(found.key_earlier)
                    or any(found.key_slots))
                or found.bad_count > 128 or found.detour_count > 16
                or max(found.detour_streams) > 2):
            raise Damage("a field is out of range")
        return found

    # -- Checkpoint

    def meta(self, kind, number, segment, offset, record_bytes, generation=None):
        """Returns the content of a metadata record."""
        what = f"metadata record {kind}/{number} at segment {segment}, offset {offset}"
        if generation is None:
            generation = self.generations.get(segment)
        if generation is None:
            raise Damage(f"{what}: the segment is not in use")
        moved = self.forwards.get((segment, generation, offset))
        if moved:
            segment, generation, offset, record_bytes = moved
        if record_bytes < RECORD + 8 or offset + record_bytes > self.superblock.segment_bytes:
            raise Damage(f"{what}: invalid location")
        data = self.read(segment, offset, record_bytes)
        data, damage = shown(self.ring, data, generation, segment, offset)
        header = RecordHeader.read(data)
        payload = data[RECORD:]
        if damage:
            raise Damage(f"{what}: {damage}")
        if (header.kind, header.blocks, header.number) != (META, kind, number):
            raise Damage(f"{what}: another record")
        if header.stored_bytes != len(payload) or len(data) % 16 or header.source_count:
            raise Damage(f"{what}: wrong length")
        if crc64(payload) != header.tail:
            raise Damage(f"{what}: wrong payload checksum")
        encoding, payload = self.payload(header, payload, (generation, segment, offset))
        before, after = struct.unpack_from("<II", payload)
        padding = payload[8 + after:]
        if before > 524288 or 8 + after > len(payload) or len(padding) > 15 or any(padding):
            raise Damage(f"{what}: wrong lengths")
        if encoding == 4:
            raise Damage(f"{what}: chunks")
        return decode(encoding, payload[8:8 + after], before)

    def meta_at(self, kind, number, location):
        """Returns the content of the metadata record at the location of a directory entry."""
        segment, count = location >> 37, location & 2047
        offset = (location >> 11 & (1 << 26) - 1) * 16
        if location >> 63 or count == 0 or segment >= self.segment_count:
            raise Damage(f"metadata record {kind}/{number}: invalid location {location:#x}")
        return self.meta(kind, number, segment, offset, count * 16)

    def newest_root(self):
        """Returns the location of the newest checkpoint's root."""
        base = self.superblock
        return RootPlace(base.checkpoint_segment, base.checkpoint_offset, base.checkpoint_bytes,
                         base.checkpoint_generation, base.checkpoint_checksum)

    def read_checkpoint(self, place):
        """Reads a checkpoint except its leaves.

        Returns its root, the open segments, and the locations of the list of snapshots and of the
        forwarding tables.
        """
        base = self.superblock
        data = self.meta(ROOT, 0, *place[:4])
        stored = self.read(*place[:3])
        moved = (place.segment, place.generation, place.offset) in self.forwards
        if not moved and crc64(stored[RECORD:]) != place.checksum:
            raise Damage("the root is not the one that is named")
        root = Root.read(data)
        pieces = (root.page_lists + root.tables + root.dropped_lists
                  + root.snapshot_lists + root.retained_lists + root.forward_lists)
        if root.magic != b"PUMICECP":
            raise Damage("the root is damaged")
        if len(data) != Root.bytes + 16 * root.opened_count + 8 * pieces:
            raise Damage("the root has a wrong length")
        if self.number is not None:
            # The capacity may have shrunk since the snapshot.
            self.segment_count = max(self.segment_count, root.segment_count)
        if root.segment_count > self.segment_count or root.size_bytes > base.size_bytes:
            raise Damage("the root describes a larger drive than the superblock")
        lists = Root.bytes + 16 * root.opened_count
        places = list(struct.unpack_from(f"<{pieces}Q", data, lists))

        # The segment table names the generations, without which no other record can be verified,
        # not even its own pieces; these are in the metadata segments of the tails and below.
        tails = [Tail.read(root.tails, 16 * stream) for stream in range(3)]
        opened = [Tail.read(data, Root.bytes + 16 * i) for i in range(root.opened_count)]
        for tail in tails + opened:
            if tail.segment != NO_SEGMENT:
                self.generations[tail.segment] = tail.generation
        newer = dict(self.generations)
        tables = places[root.page_lists:root.page_lists + root.tables]
        table = b"".join(self.meta_at(TABLE, n, at) for n, at in enumerate(tables))
        if len(table) != 32 * root.segment_count:
            raise Damage("the segment table has a wrong length")
        for segment in range(root.segment_count):
            entry = TableEntry.read(table, 32 * segment)
            if entry.state > 1 or entry.reserved or entry.state == 0 and entry.generation:
                raise Damage(f"the table entry of segment {segment} is damaged")
            if entry.state == 1:
                self.generations[segment] = entry.generation
        self.generations.update(newer)

        self.read_directory(places[:root.page_lists], root.page_count)
        tables_end = root.page_lists + root.tables
        drops_end = tables_end + root.dropped_lists
        drops = places[tables_end:drops_end]
        dropped = b"".join(self.meta_at(DROPPED, n, at) for n, at in enumerate(drops))
        if len(dropped) != 24 * root.dropped_count:
            raise Damage("the list of dropped ranges has a wrong length")
        for at in range(0, len(dropped), 24):
            part = Dropped.read(dropped, at)
            for leaf in range(part.start, part.end):
                self.name_leaf(leaf, part.mapping)
        snapshots = places[drops_end:drops_end + root.snapshot_lists]
        return root, tails, snapshots, places[pieces - root.forward_lists:]

    def go_back(self, is_it):
        """Reads the checkpoint of a snapshot, instead of the newest one and the log after it."""
        if not self.superblock.checkpoint_bytes or not self.superblock.features_incompatible & 4:
            raise Damage("the drive has no snapshots")
        newest = self.newest_root()
        _, _, pieces, tables = self.read_checkpoint(newest)
        self.read_forwards(tables)
        entries = b"".join(self.meta_at(SNAPSHOTS, n, at) for n, at in enumerate(pieces))
        if len(entries) % Snapshot.bytes:
            raise Damage("the list of snapshots has a wrong length")
        names, found, watermark = set(), None, -1
        for at in range(0, len(entries), Snapshot.bytes):
            entry = Snapshot.read(entries, at)
            text = entry.name[:entry.name_bytes]
            if entry.flags == 4:
                # A clone of the snapshot before it.
                if (entry.watermark != watermark or not text.startswith(b"/")
                        or any(entry.name[entry.name_bytes:]) or any(entries[at + 40:at + 60])
                        or any(entries[at + 64:at + 127])):
                    raise Damage("the entry of a clone is damaged")
                continue
            if (not text or any(entry.name[entry.name_bytes:]) or any(entry.reserved)
                    or entry.flags > 2 or entry.watermark <= watermark or text in names):
                raise Damage("an entry in the list of snapshots is damaged")
            watermark = entry.watermark
            names.add(text)
            if is_it(entry):
                found = entry
        entry = found
        if entry is None:
            raise Damage("there is no such snapshot")
        if entry.flags == 2:
            raise Damage("that is a bookmark, which has no data")
        place = RootPlace(entry.root_segment, entry.root_offset, entry.root_bytes,
                          entry.root_generation, entry.root_checksum)
        if place == (0,) * 5:
            place = newest
        self.generations, self.whole = {}, {}
        self.number = entry.watermark
        self.size_bytes = entry.size_bytes
        self.blocks = entry.size_bytes // BLOCK
        root, _, _, _ = self.read_checkpoint(place)
        if ((root.watermark, root.watermark_checksum, root.size_bytes)
                != (entry.watermark, entry.watermark_checksum, entry.size_bytes)
                or not root.retained_lists):
            raise Damage("the root of the snapshot is another one")
        self.seq = root.watermark

    def read_forwards(self, tables):
        """Reads the forwarding tables of the newest checkpoint."""
        for location in tables:
            data = self.meta_at(FORWARDS, 0, location)
            if len(data) % Forward.bytes or len(data) < Forwards.bytes:
                raise Damage("a forwarding table has a wrong length")
            table = Forwards.read(data)
            last = -1
            for at in range(Forwards.bytes, len(data), Forward.bytes):
                entry = Forward.read(data, at)
                if any(table.reserved) or entry.offset <= last or entry.since > entry.until:
                    raise Damage("a forwarding table is damaged")
                last = entry.offset
                generation = self.generations.get(entry.new_segment)
                self.forwards[table.segment, table.generation, entry.offset] = (
                    entry.new_segment, generation, entry.new_offset, entry.new_bytes & ~(3 << 30))

    def read_directory(self, lists, page_count):
        pages = b"".join(self.meta_at(PAGE_LIST, n, at) for n, at in enumerate(lists))
        if len(pages) != 16 * page_count:
            raise Damage("the page lists have a wrong length")
        for page, location in struct.iter_unpack("<QQ", pages):
            entries = self.meta_at(PAGE, page, location)
            if len(entries) != 4096:
                raise Damage(f"directory page {page} has a wrong length")
            for index, (entry,) in enumerate(struct.iter_unpack("<Q", entries)):
                self.name_leaf(page * 512 + index, entry)

    def name_leaf(self, leaf, entry):
        """Sets a leaf to a directory entry."""
        if entry == 0:
            self.whole.pop(leaf, None)
            return
        if leaf * LEAF_BLOCKS >= self.blocks:
            raise Damage(f"leaf {leaf} is beyond the end of the disk")
        if entry >> 63 and entry & (1 << 63) - 1 > 255:
            raise Damage(f"the directory entry of leaf {leaf} is damaged")
        self.whole[leaf] = entry

    def mappings(self, leaf):
        """Returns the 1024 mappings of a leaf."""
        if leaf in self.leaves:
            return self.leaves[leaf]
        entry = self.whole.get(leaf, 0)
        if entry == 0:
            return [HOLE] * LEAF_BLOCKS
        if entry >> 63:
            return [entry & 255] * LEAF_BLOCKS
        data = self.meta_at(LEAF, leaf, entry)
        runs, tables = self.runs_and_tables(leaf, data)
        ends = [run.start for run in runs[1:]] + [LEAF_BLOCKS]
        made = []
        last = ...
        for run, end in zip(runs, ends):
            count = end - run.start
            if run.start != len(made) or count < 1:
                raise Damage(f"the runs of leaf {leaf} do not partition it")
            if run.blocks:
                if run.index + count > run.blocks or run.segment >= self.segment_count:
                    raise Damage(f"a run of leaf {leaf} does not fit its frame")
                table = tables.get((run.segment, run.offset))
                if table:
                    table.check(leaf, run, count)
                made += [Frame(run.segment, run.offset, run.index + i, run.blocks, run.record_bytes)
                         for i in range(count)]
                last = ...
                continue
            value = run.index if run.segment else HOLE
            if (run.segment > 1 or run.offset or run.record_bytes or value == last
                    or value is HOLE and run.index):
                raise Damage(f"a run of leaf {leaf} is damaged")
            made += [value] * count
            last = value
        if any(table.live < 4 for table in tables.values()):
            raise Damage(f"leaf {leaf} has a table of too few blocks")
        first = leaf * LEAF_BLOCKS
        self.tables.update(((segment, offset, first + table.start), table.bytes)
                           for (segment, offset), table in tables.items())
        return made

    @staticmethod
    def runs_and_tables(leaf, data):
        """Returns the runs of a leaf, and the tables of its frames that have one."""
        runs, tables, without = [], {}, set()
        while len(data) != 16 * len(runs) + TABLE_BYTES * len(tables):
            if len(runs) == LEAF_BLOCKS or len(data) < 16 * (len(runs) + 1):
                raise Damage(f"leaf {leaf} has a wrong length")
            run = Run.read(data, 16 * len(runs))
            if run.blocks & HAS_TABLE:
                run = run._replace(blocks=run.blocks - HAS_TABLE)
                tables.setdefault((run.segment, run.offset), LeafTable(run))
            elif run.blocks:
                without.add((run.segment, run.offset))
            runs.append(run)
        if not without.isdisjoint(tables):
            raise Damage(f"the runs of leaf {leaf} do not agree on a table")
        if not runs:
            raise Damage(f"leaf {leaf} has a wrong length")
        for number, table in enumerate(tables.values()):
            at = 16 * len(runs) + TABLE_BYTES * number
            table.take(leaf, data[at:at + TABLE_BYTES])
        return runs, tables

    # -- Log

    def recover(self):
        base = self.superblock
        self.seq, self.chain, self.epoch = 0, crc64(base.uuid), 0
        self.proof = base.watermark  # the highest batch that is known to have been durable
        self.streams = [None, None, None]
        self.waiting = []  # records of a batch that counts only together with the next one
        if base.checkpoint_bytes:
            root, tails, _, _ = self.read_checkpoint(self.newest_root())
            self.seq, self.chain = root.watermark, root.watermark_checksum
            for stream, tail in enumerate(tails):
                if tail.segment != NO_SEGMENT:
                    self.streams[stream] = Position(
                        tail.generation, tail.segment, tail.used or 4096, tail.used != 0)
        if self.streams[0] is None:
            self.streams[0] = Position(None, 0, 4096, False)
        while self.step():
            pass
        if self.waiting:
            # The last batch of a write is missing.
            self.seq, self.chain, self.epoch, self.streams = self.before
            self.counts["batches"] -= 1

    def step(self):
        """Applies the next batch of the log. Returns false at the log's end."""
        for stream, position in self.detours():
            self.streams[stream] = position
        damaged = []
        for stream, position in enumerate(self.streams):
            found = position and self.next_batch(stream, position)
            if not found:
                continue
            if not found[2]:
                self.apply(stream, *found)
                return True
            damaged.append((stream, found))
        missing = self.seq + 1
        if self.proof < missing:
            self.proof = max(self.proof, self.watermark_beyond())
        if self.proof < missing:
            return False
        # Of two batches, the one from the later opening is durable.
        for stream, found in sorted(damaged, key=lambda each: -each[1][0].epoch):
            if found[1] is not None and not self.is_another(found[0]):
                self.apply(stream, *found)
                return True
        raise Damage(f"batch {missing} is missing or damaged, and batch {self.proof} was durable: "
                     + ("; ".join(found[2] for _, found in damaged) or "no header of it was found"))

    def is_another(self, header):
        """Returns whether the superblock names another batch with that number."""
        base = self.superblock
        known = base.watermark_checksum != crc64(base.uuid)
        return known and header.seq == base.watermark and (
            header.header_checksum != base.watermark_checksum)

    def detours(self):
        """Returns the streams that continue elsewhere after batch `seq`, and their positions."""
        base = self.superblock
        seqs = struct.unpack("<16Q", base.detour_seqs)
        generations = struct.unpack("<16Q", base.detour_generations)
        segments = struct.unpack("<16I", base.detour_segments)
        return [(base.detour_streams[at], Position(generations[at], segments[at], 4096, False))
                for at in range(base.detour_count) if seqs[at] == self.seq]

    def next_batch(self, stream, position):
        """Looks for batch `seq + 1` at a stream's position.

        Returns None if there is no such batch, else its header, its records (None if a record
        header is damaged), and the damage, or None.
        """
        base = self.superblock
        data = self.read(position.segment, position.offset, HEADER)
        header = BatchHeader.read(data)
        generation = position.generation
        reason = None
        if not position.started:
            reason, start = self.segment_damage(stream, position)
            generation = start.generation if generation is None else generation
        if not self.batch_is_whole(header, data) or (
                header.seq != self.seq + 1 or header.previous_checksum != self.chain
                or header.epoch < self.epoch or header.generation != generation
                or header.seq > base.watermark and header.epoch < base.epoch
                or (header.segment, header.offset) != (position.segment, position.offset)):
            return None
        length = HEADER + header.body_bytes
        if (length % BLOCK or position.offset + length > self.superblock.segment_bytes
                or length > BATCH_MAX or header.version != 1 or header.parity_pages > 4
                or header.flags > NEEDS_NEXT
                or header.record_bytes + BLOCK * header.parity_pages > header.body_bytes):
            raise Damage(f"batch {header.seq} has a header with a field out of range")
        if reason:
            return header, None, reason
        return (header, *self.records(header))

    def batch_is_whole(self, header, data):
        if header.magic != b"PUMICEBT" or header.uuid != self.superblock.uuid:
            return False
        checksum = self.ring.batch_mac(header, data) if self.ring else checksum_with_hole(data, 8)
        return checksum == header.header_checksum

    def segment_damage(self, stream, position):
        """Returns why a segment's header starts no stream at batch `seq + 1`, and that header."""
        data = self.read(position.segment, 0, BLOCK)
        header = SegmentHeader.read(data)
        expected = (self.superblock.uuid, position.segment, stream, self.seq + 1)
        found = (header.uuid, header.segment, header.stream, header.first_seq)
        reason = None
        if (header.magic != b"PUMICESG" or header.length != 4096
                or checksum_with_hole(data, 16) != header.checksum):
            reason = f"the header of segment {position.segment} is damaged"
        elif header.version != 1 or any(header.reserved):
            reason = f"the header of segment {position.segment} has a field out of range"
        elif found != expected or position.generation not in (None, header.generation):
            reason = f"the header of segment {position.segment} is that of another use"
        return reason, header

    def records(self, header):
        """Returns the records of a batch, or None, and the damage, or None."""
        body = self.read(header.segment, header.offset + HEADER, header.body_bytes)
        at, chained, records, problem = 0, 0, [], None
        for _ in range(header.record_count):
            if at + RECORD > header.record_bytes:
                return None, f"batch {header.seq}: more records than bytes"
            offset = header.offset + HEADER + at
            what = f"record at segment {header.segment}, offset {offset}"
            longest = body[at:at + RECORD + 64 * SOURCE]
            data, damage = shown(self.ring, longest, header.generation, header.segment, offset)
            if damage:
                return None, f"{what}: {damage}"
            record = RecordHeader.read(data)
            chained = crc32c(struct.pack("<I", chained) + body[at:at + RECORD])
            start = at + RECORD + SOURCE * record.source_count
            at = start + record.stored_bytes
            if at > header.record_bytes:
                return None, f"{what}: ends beyond the batch"
            if record.kind in (DATA, META) and crc64(body[start:at]) != record.tail:
                problem = damage = f"{what}: wrong payload checksum"
            else:
                self.verified.add((header.segment, offset))
            sources = [Source.read(data, RECORD + SOURCE * n)
                       for n in range(record.source_count)]
            records.append(Record(record, offset, sources, damage))
        if at != header.record_bytes or chained != header.records_checksum:
            return None, f"batch {header.seq}: wrong records checksum"
        # This decoder does not restore anything from the parity.
        if not self.is_padding(header, body[at:len(body) - BLOCK * header.parity_pages]):
            problem = problem or f"batch {header.seq}: the padding is neither zero nor an echo"
        return records, problem

    def is_padding(self, header, padding):
        """Returns whether a batch's padding is zero, or an echo and zeroes."""
        if not any(padding):
            return True
        if len(padding) < HEADER:
            return False
        before = BatchHeader.read(padding)
        if (not self.batch_is_whole(before, padding[:HEADER]) or before.seq + 1 != header.seq
                or before.header_checksum != header.previous_checksum or before.parity_pages):
            return False
        at, place = HEADER, before.offset + HEADER
        for _ in range(before.record_count):
            longest = padding[at:at + RECORD + 64 * SOURCE]
            data, damage = shown(self.ring, longest, before.generation, before.segment, place)
            if damage:
                return False
            record = RecordHeader.read(data)
            headers = RECORD + SOURCE * record.source_count
            at, place = at + headers, place + headers + record.stored_bytes
        self.counts["echoes"] += 1
        return place == before.offset + HEADER + before.record_bytes and not any(padding[at:])

    def watermark_beyond(self):
        """Returns the highest watermark of the batches beyond the end of the log.

        The document names the segments in which such batches can be. This searches every segment:
        a watermark never exceeds the last batch that was durable when it was written, so batches
        elsewhere prove nothing false.
        """
        base = self.superblock
        highest = 0
        at = self.medium.find(b"PUMICEBT", base.data_offset)
        while at != -1:
            segment, offset = divmod(at - base.data_offset, base.segment_bytes)
            if offset % BLOCK == 0 and segment < base.segment_count:
                data = self.medium[at:at + HEADER]
                header = BatchHeader.read(data)
                if (header.segment, header.offset) == (segment, offset):
                    if self.batch_is_whole(header, data):
                        highest = max(highest, header.watermark)
            at = self.medium.find(b"PUMICEBT", at + 8)
        return highest

    def apply(self, stream, header, records, problem):
        self.before = self.seq, self.chain, self.epoch, self.streams.copy()
        self.counts["batches"] += 1
        self.counts["damaged_batches"] += problem is not None
        self.streams[stream] = Position(header.generation, header.segment,
                                        header.offset + HEADER + header.body_bytes, True)
        self.generations[header.segment] = header.generation
        self.seq, self.chain, self.epoch = header.seq, header.header_checksum, header.epoch
        self.proof = max(self.proof, header.watermark)
        for record in records:
            if record.header.kind == OPEN:
                self.open_segment(header, record)
        self.waiting += [(header, record) for record in records]
        if header.flags != NEEDS_NEXT:
            for batch, record in self.waiting:
                self.apply_record(batch, record)
            self.waiting = []

    def open_segment(self, batch, record):
        header = record.header
        if header.argument > 2 or header.tail >= self.superblock.segment_count:
            raise Damage(f"record at segment {batch.segment}, offset {record.offset}: "
                         "opens a segment that does not exist")
        self.streams[header.argument] = Position(header.number, header.tail, 4096, False)
        self.generations[header.tail] = header.number

    def apply_record(self, batch, record):
        header = record.header
        what = f"record at segment {batch.segment}, offset {record.offset}"
        if header.kind in (META, OPEN):
            return
        count = header.blocks if header.kind == DATA else header.tail
        if (header.kind not in (DATA, FILL, TRIM) or count < 1
                or header.number + count > self.blocks):
            raise Damage(f"{what}: unknown kind, or blocks beyond the end of the disk")
        if header.kind == FILL:
            self.set_range(header.number, count, header.argument)
        elif header.kind == TRIM:
            self.set_range(header.number, count, HOLE)
        else:
            self.apply_frame(what, batch, record)

    def set_range(self, first, count, mapping):
        end = first + count
        while first < end:
            leaf, index = divmod(first, LEAF_BLOCKS)
            part = min(LEAF_BLOCKS - index, end - first)
            if part == LEAF_BLOCKS:
                self.leaves.pop(leaf, None)
                self.name_leaf(leaf, 0 if mapping is HOLE else 1 << 63 | mapping)
            else:
                self.changed(leaf)[index:index + part] = [mapping] * part
            first += part

    def changed(self, leaf):
        self.leaves[leaf] = self.mappings(leaf)
        return self.leaves[leaf]

    def apply_frame(self, what, batch, record):
        header = record.header
        size = RECORD + SOURCE * header.source_count + header.stored_bytes
        leaf, first = divmod(header.number, LEAF_BLOCKS)
        if header.blocks > 64 or first + header.blocks > LEAF_BLOCKS:
            raise Damage(f"{what}: invalid number of blocks")
        mappings = self.changed(leaf)
        self.tables.pop((batch.segment, record.offset, header.number), None)
        if record.sources:
            sources = [source for source in record.sources
                       for _ in range(source.birth_blocks >> 56)]
            if len(sources) != header.blocks:
                raise Damage(f"{what}: the sources do not add up")
        for index in range(header.blocks):
            if record.sources:
                old = mappings[first + index]
                source = sources[index]
                if (not isinstance(old, Frame)
                        or (old.segment, old.offset) != (source.segment, source.offset)):
                    self.counts["ignored_blocks"] += 1
                    continue
                self.counts["moved_blocks"] += 1
            mappings[first + index] = Frame(
                batch.segment, record.offset, index, header.blocks, size)

    # -- The disk

    def frame(self, first, frame):
        """Returns the content of a frame whose first block is `first`."""
        segment, offset, record_bytes = frame.segment, frame.offset, frame.record_bytes
        generation = self.generations.get(segment)
        if (segment, generation, offset) in self.forwards:
            segment, generation, offset, record_bytes = self.forwards[segment, generation, offset]
        where = f"frame at segment {segment}, offset {offset}"
        if generation is None or offset + record_bytes > self.superblock.segment_bytes:
            raise Damage(f"{where}: invalid location")
        data = self.read(segment, offset, record_bytes)
        data, damage = shown(self.ring, data, generation, segment, offset)
        if damage:
            raise Damage(f"{where}: {damage}")
        header = RecordHeader.read(data)
        payload = data[RECORD + SOURCE * header.source_count:]
        if ((header.kind, header.blocks, header.number) != (DATA, frame.blocks, first)
                or len(payload) != header.stored_bytes):
            raise Damage(f"{where}: another record")
        if (segment, offset) not in self.verified and crc64(payload) != header.tail:
            raise Damage(f"{where}: wrong payload checksum")
        table = self.tables.get((segment, offset, first))
        if table is not None and table != self.table_of(header, payload):
            raise Damage(f"{where}: the map has another table")
        encoding, payload = self.payload(header, payload, (generation, segment, offset))
        return decode(encoding, payload, header.blocks * BLOCK)

    @staticmethod
    def table_of(header, payload):
        """Returns the table that a leaf may have of a frame with this payload, or None."""
        if header.argument == 4:
            return payload[:6 * header.blocks]
        if header.argument:
            return None
        blocks = (payload[at:at + BLOCK] for at in range(0, len(payload), BLOCK))
        return b"".join(struct.pack("<HI", BLOCK, crc32c(block)) for block in blocks)

    def disk(self, bad):
        """Yields the disk leaf by leaf: number of mapped blocks, and bytes or None for zeroes.

        Appends the blocks that cannot be read to `bad`.
        """
        below = self.origin.disk(bad) if self.origin else iter(())
        for leaf in range((self.blocks + LEAF_BLOCKS - 1) // LEAF_BLOCKS):
            inherited = self.superblock.origin_blocks - leaf * LEAF_BLOCKS
            base = next(below, (0, None))[1] if inherited > 0 else None
            if leaf not in self.leaves and leaf not in self.whole and base is None:
                yield 0, None
                continue
            count = min(LEAF_BLOCKS, self.blocks - leaf * LEAF_BLOCKS)
            try:
                mappings = self.mappings(leaf)
            except Damage as error:
                for lba in range(leaf * LEAF_BLOCKS, leaf * LEAF_BLOCKS + count):
                    self.note_unreadable(bad, lba, error)
                yield 0, None
                continue
            if any(mapping is not HOLE for mapping in mappings[count:]):
                raise Damage(f"leaf {leaf} maps blocks beyond the end of the disk")
            content = bytearray(count * BLOCK)
            decoded = {}
            for index, mapping in enumerate(mappings[:count]):
                if isinstance(mapping, Frame):
                    lba = leaf * LEAF_BLOCKS + index
                    content[index * BLOCK:(index + 1) * BLOCK] = self.block(
                        lba, mapping, decoded, bad)
                elif mapping is HOLE:
                    if base is not None and index < inherited:
                        part = base[index * BLOCK:(index + 1) * BLOCK]
                        content[index * BLOCK:index * BLOCK + len(part)] = part
                elif mapping:
                    content[index * BLOCK:(index + 1) * BLOCK] = bytes([mapping]) * BLOCK
            yield sum(mapping is not HOLE for mapping in mappings[:count]), content

    def block(self, lba, mapping, decoded, bad):
        key = (lba - mapping.index, mapping._replace(index=0))
        if key not in decoded:
            try:
                decoded[key] = self.frame(*key)
            except Damage as error:
                decoded[key] = error
        content = decoded[key]
        if isinstance(content, Damage):
            self.note_unreadable(bad, lba, content)
            return bytes(BLOCK)
        return content[mapping.index * BLOCK:(mapping.index + 1) * BLOCK]

    @staticmethod
    def note_unreadable(bad, lba, error):
        last = bad[-1] if bad else None
        if last and last["error"] == str(error) and last["lba"] + last["blocks"] == lba:
            last["blocks"] += 1
        else:
            bad.append({"lba": lba, "blocks": 1, "error": str(error)})


class LeafTable:
    """The table of a frame in a leaf."""

    def __init__(self, run):
        self.blocks, self.record_bytes = run.blocks, run.record_bytes
        self.start = run.start - run.index
        self.live = 0
        self.bytes = b""

    def take(self, leaf, stored):
        """Takes the bytes of the table, and checks that it is the table of such a frame."""
        used = 6 * self.blocks
        payload = chunks_bytes(chunk_entries(stored, self.blocks))
        sources, rest = divmod(self.record_bytes - RECORD - payload, SOURCE)
        if rest or not 0 <= sources <= self.blocks or any(stored[used:]):
            raise Damage(f"leaf {leaf} has a table of another frame")
        self.bytes = stored[:used]

    def check(self, leaf, run, count):
        """Counts the blocks of a run of the frame."""
        if ((run.blocks, run.record_bytes, run.start - run.index)
                != (self.blocks, self.record_bytes, self.start)):
            raise Damage(f"the runs of leaf {leaf} do not agree on a frame")
        self.live += count


def extract(drive, image):
    """Hashes the disk and writes it to the file `image` unless that is None."""
    hashed = hashlib.sha256()
    zeroes = bytes(LEAF_BLOCKS * BLOCK)
    mapped, bad, offset = 0, [], 0
    size = drive.size_bytes
    if image:
        image.truncate(size)
    for count, content in drive.disk(bad):
        mapped += count
        if content is None:
            content = zeroes[:size - offset]
        elif image:
            for at in range(0, len(content), BLOCK):
                if content[at:at + BLOCK] != zeroes[:BLOCK]:
                    image.seek(offset + at)
                    image.write(content[at:at + BLOCK])
        hashed.update(content)
        offset += len(content)
    return {"uuid": drive.superblock.uuid.hex(), "size_bytes": size,
            "epoch": drive.superblock.epoch, "state": drive.superblock.state,
            "last_batch": drive.seq, "replayed": drive.counts,
            "mapped_blocks": mapped, "sha256": hashed.hexdigest(), "unreadable": bad}


def read_secret(named):
    """Returns kind and bytes of the secret whose kind and file are `named`; None without."""
    if named is None:
        return None
    kind, path = named
    with open(path, "rb") as file:
        secret = file.read()
    if kind == 1 and secret.endswith(b"\n"):
        secret = secret[:-1]
    return kind, decoder_keys.recovery_code(secret.decode()) if kind == 3 else secret


def main(arguments):
    snapshot, secret_file = None, None
    kinds = {"--passphrase-file": 1, "--key-file": 2, "--recovery-code-file": 3}
    while len(arguments) > 1 and (arguments[0] == "--snapshot" or arguments[0] in kinds):
        if arguments[0] == "--snapshot":
            snapshot = arguments[1]
        else:
            secret_file = kinds[arguments[0]], arguments[1]
        arguments = arguments[2:]
    if len(arguments) not in (1, 2):
        print("usage: decoder.py [--snapshot NAME] [--key-file FILE] DRIVE [IMAGE]",
              file=sys.stderr)
        return 2
    try:
        drive = Drive(arguments[0], snapshot, secret=read_secret(secret_file))
        if len(arguments) == 2:
            with open(arguments[1], "wb") as image:
                summary = extract(drive, image)
        else:
            summary = extract(drive, None)
    except (Damage, Unsupported, decoder_keys.Refused, OSError) as error:
        print(f"decoder.py: {arguments[0]}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary, indent=2))
    return 1 if summary["unreadable"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
