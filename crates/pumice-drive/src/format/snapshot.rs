//! The list of snapshots in a checkpoint: the name and the root location of each.
//!
//! A snapshot is a retained root. Every checkpoint writes the entire list, in pieces of
//! [`SNAPSHOTS_IN_A_PIECE`] entries, oldest first. The clones of a snapshot follow it in entries of
//! their own. Decoders accept untrusted bytes.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::layout;
use super::record::RecordAddress;
use super::superblock::CheckpointAddress;
use crate::base::{Error, ErrorContext, ErrorKind, Result, SegmentId, SeqNo, ensure};

/// Maximum number of snapshots of a drive.
pub const SNAPSHOTS_MAX: usize = 1024;

/// Number of entries in each piece of the list except the last.
pub const SNAPSHOTS_IN_A_PIECE: usize = (16 << 10) / Snapshot::BYTES;

/// Maximum number of clones of all snapshots of a drive.
pub(crate) const CLONES_MAX: usize = 1024;

/// Maximum number of bytes of the path of a clone.
pub const CLONE_PATH_MAX: usize = 255;

/// Maximum number of bytes of a name.
pub const SNAPSHOT_NAME_MAX: usize = 255;

layout! {
    struct SnapshotLayout: 384 {
        guid: [u8; 16],
        watermark: U64,
        watermark_checksum: U64,
        created_seconds: U64,
        root_generation: U64,
        root_segment: U32,
        root_offset: U32,
        root_bytes: U32,
        flags: U32,
        root_checksum: U64,
        size_bytes: U64,
        mapped_blocks: U64,
        live_bytes: U64,
        host_bytes: U64,
        reserved: [u8; 23],
        name_bytes: u8,
        name: [u8; 256],
    }
}

pub(super) const FIELDS: &[super::layout::Field] = SnapshotLayout::FIELDS;

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name, unique on the drive; see [`check_snapshot_name`].
    pub name: String,
    /// Its identity, shared with its copies on other drives. The program that takes the snapshot
    /// draws it at random.
    pub guid: Uuid,
    /// The last batch whose effects are in the snapshot, as numbered on this drive. No other
    /// snapshot of the drive ever has the same number.
    pub watermark: SeqNo,
    /// Header checksum of that batch.
    pub watermark_checksum: u64,
    /// Creation time, in seconds since 1970 by the program's clock. For display only.
    pub created_seconds: u64,
    /// Its root. `None` in the checkpoint that is itself the snapshot: the root is then the one
    /// that refers to this list.
    pub root: Option<CheckpointAddress>,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Blocks that held data other than zeroes, without ranges that were dropped as a whole.
    pub mapped_blocks: u64,
    /// Stored bytes of the frames that it refers to.
    pub live_bytes: u64,
    /// Bytes that the host had written to the drive by then, over the drive's life.
    pub host_bytes: u64,
    /// Whether the snapshot is deleted before a write is refused for lack of space.
    pub yields: bool,
    /// Whether only its map is retained, without data. A bookmark does not yield.
    pub is_bookmark: bool,
    /// Drives that read from it. The list stores them in entries of their own, after this one.
    pub clones: Vec<RegisteredClone>,
}

/// A drive that reads from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegisteredClone {
    /// Its identity.
    pub drive: Uuid,
    /// Its current or former path; see [`check_clone_path`].
    pub path: String,
    /// Registration time, in seconds since 1970.
    pub created_seconds: u64,
}

/// An entry of the list.
#[derive(Clone, Copy, Debug)]
pub enum Listed<'a> {
    /// A snapshot.
    Snapshot(&'a Snapshot),
    /// A clone of the preceding snapshot, whose last batch has this number.
    Clone(SeqNo, &'a RegisteredClone),
}

/// The flag of a snapshot that yields.
const YIELDS: u32 = 1;

/// The flag of a bookmark.
const BOOKMARK: u32 = 2;
/// The flag of the entry of a clone.
const CLONE: u32 = 4;

impl Listed<'_> {
    /// Appends the entry to `out`.
    ///
    /// # Panics
    /// If its name or path is impossible.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Snapshot(snapshot) => snapshot.encode_into(out),
            Self::Clone(watermark, clone) => clone.encode_into(*watermark, out),
        }
    }
}

impl RegisteredClone {
    fn encode_into(&self, of: SeqNo, out: &mut Vec<u8>) {
        assert!(check_clone_path(&self.path).is_ok(), "a clone has a possible path");
        let mut layout = SnapshotLayout::new_zeroed();
        layout.guid = *self.drive.as_bytes();
        layout.watermark = of.0.into();
        layout.created_seconds = self.created_seconds.into();
        layout.flags = CLONE.into();
        layout.set_name(&self.path);
        out.extend(layout.as_bytes());
    }

    /// Decodes the entry of a clone of the snapshot with this last batch.
    fn decode(layout: &SnapshotLayout, of: SeqNo) -> Option<Self> {
        let clone = Self {
            drive: Uuid::from_bytes(layout.guid),
            path: layout.name()?.to_owned(),
            created_seconds: layout.created_seconds.get(),
        };
        check_clone_path(&clone.path).ok()?;
        let mut bytes = Vec::new();
        clone.encode_into(of, &mut bytes);
        (bytes == layout.as_bytes()).then_some(clone)
    }
}

impl SnapshotLayout {
    fn set_name(&mut self, name: &str) {
        self.name_bytes = u8::try_from(name.len()).expect("a name has 255 bytes at most");
        for (target, byte) in self.name.iter_mut().zip(name.bytes()) {
            *target = byte;
        }
    }

    fn name(&self) -> Option<&str> {
        let (name, rest) = self.name.split_at_checked(self.name_bytes.into())?;
        let is_alone = rest.iter().all(|&byte| byte == 0);
        str::from_utf8(name).ok().filter(|_| is_alone)
    }
}

impl Snapshot {
    /// Bytes of an entry.
    pub const BYTES: usize = size_of::<SnapshotLayout>();

    /// Returns the entry of the bookmark that the snapshot becomes.
    pub(crate) fn as_bookmark(&self) -> Self {
        Self { yields: false, is_bookmark: true, ..self.clone() }
    }

    /// Returns its entries in the list: its own, and its clones'.
    pub fn listed(&self) -> impl Iterator<Item = Listed<'_>> {
        let clones = self.clones.iter().map(|clone| Listed::Clone(self.watermark, clone));
        std::iter::once(Listed::Snapshot(self)).chain(clones)
    }

    /// Appends its own entry to `out`, without its clones' entries.
    ///
    /// # Panics
    /// If [`check_snapshot_name`] does not accept the name, or a bookmark yields.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        assert!(check_snapshot_name(&self.name).is_ok(), "a snapshot has a possible name");
        assert!(!(self.yields && self.is_bookmark), "a bookmark has nothing to yield");
        let mut layout = SnapshotLayout::new_zeroed();
        layout.guid = *self.guid.as_bytes();
        layout.watermark = self.watermark.0.into();
        layout.watermark_checksum = self.watermark_checksum.into();
        layout.created_seconds = self.created_seconds.into();
        if let Some(root) = &self.root {
            layout.root_generation = root.address.generation.into();
            layout.root_segment = root.address.segment.0.into();
            layout.root_offset = root.address.offset.into();
            layout.root_bytes = root.record_bytes.into();
            layout.root_checksum = root.payload_checksum.into();
        }
        layout.size_bytes = self.size_bytes.into();
        layout.mapped_blocks = self.mapped_blocks.into();
        layout.live_bytes = self.live_bytes.into();
        layout.host_bytes = self.host_bytes.into();
        let flags = u32::from(self.yields) * YIELDS + u32::from(self.is_bookmark) * BOOKMARK;
        layout.flags = flags.into();
        layout.set_name(&self.name);
        out.extend(layout.as_bytes());
    }

    /// Decodes an entry of [`Snapshot::BYTES`] bytes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let decoded = Self::decode_parts(bytes);
        let decoded = decoded.or_error(ErrorKind::Corrupt, "a snapshot's entry is invalid")?;
        check_snapshot_name(&decoded.name).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "a snapshot's name is invalid").caused_by(error)
        })?;
        Ok(decoded)
    }

    fn decode_parts(bytes: &[u8]) -> Option<Self> {
        let layout = SnapshotLayout::read_from_bytes(bytes).ok()?;
        let root = CheckpointAddress {
            address: RecordAddress {
                generation: layout.root_generation.get(),
                segment: SegmentId(layout.root_segment.get()),
                offset: layout.root_offset.get(),
            },
            record_bytes: layout.root_bytes.get(),
            payload_checksum: layout.root_checksum.get(),
        };
        let decoded = Self {
            name: layout.name()?.to_owned(),
            guid: Uuid::from_bytes(layout.guid),
            watermark: SeqNo(layout.watermark.get()),
            watermark_checksum: layout.watermark_checksum.get(),
            created_seconds: layout.created_seconds.get(),
            root: (root.record_bytes > 0).then_some(root),
            size_bytes: layout.size_bytes.get(),
            mapped_blocks: layout.mapped_blocks.get(),
            live_bytes: layout.live_bytes.get(),
            host_bytes: layout.host_bytes.get(),
            yields: layout.flags.get() == YIELDS,
            is_bookmark: layout.flags.get() == BOOKMARK,
            clones: Vec::new(),
        };
        let is_possible = matches!(layout.flags.get(), 0 | YIELDS | BOOKMARK)
            && (decoded.root.is_some() || !decoded.is_bookmark)
            && layout.reserved == [0; 23]
            && (decoded.root.is_some() || root.is_nothing());
        is_possible.then_some(decoded)
    }
}

impl CheckpointAddress {
    fn is_nothing(&self) -> bool {
        let RecordAddress { generation, segment, offset } = self.address;
        (generation, segment.0, offset) == (0, 0, 0)
            && (self.record_bytes, self.payload_checksum) == (0, 0)
    }
}

/// Checks a name: 1 to [`SNAPSHOT_NAME_MAX`] bytes of UTF-8, valid as a file name, without `@`,
/// which separates it from a path, and without a leading `-`.
///
/// # Errors
/// `InvalidInput` with a description of the problem.
pub fn check_snapshot_name(name: &str) -> Result<()> {
    let wrong = |what: &str| {
        let what = format!("a snapshot cannot be named {name:?}: {what}");
        Error::new(ErrorKind::InvalidInput, what)
    };
    let ensure = |is_right: bool, what: &str| if is_right { Ok(()) } else { Err(wrong(what)) };
    ensure(!name.is_empty(), "a name has at least one character")?;
    ensure(name.len() <= SNAPSHOT_NAME_MAX, "a name has at most 255 bytes")?;
    ensure(name != "." && name != "..", "these are names of directories")?;
    ensure(!name.starts_with('-'), "a leading hyphen begins an option")?;
    ensure(!name.contains(['/', '@']), "a name contains neither / nor @")?;
    ensure(!name.contains(char::is_control), "a name contains no control characters")
}

/// Checks the path of a clone: absolute, at most [`CLONE_PATH_MAX`] bytes of UTF-8 without control
/// characters.
///
/// # Errors
/// `InvalidInput` with a description of the problem.
pub fn check_clone_path(path: &str) -> Result<()> {
    let is_short = path.len() <= CLONE_PATH_MAX;
    let is_possible = is_short && path.starts_with('/') && !path.contains(char::is_control);
    let what = "the absolute path of a clone has at most 255 bytes and no control characters";
    ensure(is_possible, ErrorKind::InvalidInput, what)
}

/// Decodes a complete list and checks its rules.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn decode_snapshots(bytes: &[u8]) -> Result<Vec<Snapshot>> {
    let mut list: Vec<Snapshot> = Vec::new();
    let mut clones = 0;
    for entry in bytes.chunks(Snapshot::BYTES) {
        let layout = SnapshotLayout::read_from_bytes(entry).ok();
        let Some(layout) = layout.filter(|layout| layout.flags.get() == CLONE) else {
            let is_full = list.len() >= SNAPSHOTS_MAX;
            ensure(!is_full, ErrorKind::Corrupt, "a drive has too many snapshots")?;
            list.push(Snapshot::decode(entry)?);
            continue;
        };
        let of = list.last_mut().filter(|_| clones < CLONES_MAX);
        let found = of.and_then(|of| {
            let clone = RegisteredClone::decode(&layout, of.watermark)?;
            let is_new = of.clones.iter().all(|other| other.drive != clone.drive);
            is_new.then(|| of.clones.push(clone))
        });
        found.or_error(ErrorKind::Corrupt, "the entry of a clone is invalid")?;
        clones += 1;
    }
    check_snapshots(&list)?;
    Ok(list)
}

/// Checks the rules of a complete list: oldest first, distinct names, at most [`SNAPSHOTS_MAX`]
/// entries, and a missing root in the last entry only.
///
/// # Errors
/// `Corrupt`.
pub fn check_snapshots(list: &[Snapshot]) -> Result<()> {
    let names: std::collections::BTreeSet<_> = list.iter().map(|entry| &entry.name).collect();
    let is_possible = list.len() <= SNAPSHOTS_MAX
        && list.is_sorted_by(|before, after| before.watermark < after.watermark)
        && names.len() == list.len()
        && list.iter().rev().skip(1).all(|entry| entry.root.is_some());
    ensure(is_possible, ErrorKind::Corrupt, "the list of snapshots is invalid")
}

#[cfg(test)]
mod tests {
    //! Goal: round trip; impossible names, entries and lists are refused.
    use super::*;

    fn sample(number: u64) -> Snapshot {
        Snapshot {
            name: format!("nightly-{number}"),
            guid: Uuid::from_u128(7 << 100 | u128::from(number)),
            watermark: SeqNo(1000 + number),
            watermark_checksum: 0xfeed,
            created_seconds: 1_790_000_000,
            root: Some(CheckpointAddress {
                address: RecordAddress { generation: 5, segment: SegmentId(6), offset: 4096 },
                record_bytes: 512,
                payload_checksum: 0xbeef,
            }),
            size_bytes: 1 << 30,
            mapped_blocks: 77,
            live_bytes: 123_456,
            host_bytes: 1 << 40,
            yields: false,
            is_bookmark: false,
            clones: Vec::new(),
        }
    }

    fn clone(number: u64) -> RegisteredClone {
        let path = format!("/vm/{number}.pumice");
        RegisteredClone { drive: Uuid::from_u128(number.into()), path, created_seconds: 7 }
    }

    fn list_of(list: &[Snapshot]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let entries = list.iter().flat_map(Snapshot::listed);
        entries.for_each(|entry| entry.encode_into(&mut bytes));
        bytes
    }

    fn encoded(snapshot: &Snapshot) -> Vec<u8> {
        let mut bytes = Vec::new();
        snapshot.encode_into(&mut bytes);
        assert_eq!(bytes.len(), Snapshot::BYTES);
        bytes
    }

    #[test]
    fn round_trip() {
        let longest = "ä".repeat(127) + "x";
        for name in ["a", "2026-11-24 12:00", longest.as_str()] {
            for root in [sample(1).root, None] {
                let yields = root.is_none();
                let snapshot = Snapshot { name: name.to_owned(), root, yields, ..sample(1) };
                assert_eq!(Snapshot::decode(&encoded(&snapshot)).unwrap(), snapshot);
            }
            let bookmark = Snapshot { name: name.to_owned(), is_bookmark: true, ..sample(1) };
            assert_eq!(Snapshot::decode(&encoded(&bookmark)).unwrap(), bookmark);
        }
        assert_eq!(SNAPSHOTS_IN_A_PIECE, 42);
    }

    #[test]
    fn clones_follow_their_snapshots() {
        let mut list: Vec<_> = (0..3).map(sample).collect();
        list[0].clones = vec![clone(1), clone(2)];
        list[2].clones = vec![clone(1)];
        list[2].root = None;
        let bytes = list_of(&list);
        assert_eq!(bytes.len(), 6 * Snapshot::BYTES);
        assert_eq!(decode_snapshots(&bytes).unwrap(), list);
        let refused = |bytes: &[u8]| {
            assert_eq!(decode_snapshots(bytes).unwrap_err().kind(), ErrorKind::Corrupt);
        };
        // A clone of no snapshot; of another snapshot; listed twice; truncated.
        refused(&bytes[Snapshot::BYTES..]);
        let (first, rest) = bytes.split_at(Snapshot::BYTES);
        let (one, rest) = rest.split_at(2 * Snapshot::BYTES);
        let (second, third) = rest.split_at(Snapshot::BYTES);
        refused(&[first, second, one, third].concat());
        refused(&[first, one, one, second, third].concat());
        refused(&bytes[..bytes.len() - 1]);
        for (at, byte) in [(16, 1), (32, 0), (48, 1), (104, 1), (127, 0), (128, b'x'), (383, 1)] {
            let mut bytes = bytes.clone();
            let is_refused = bytes[Snapshot::BYTES + at] != byte && at != 32;
            bytes[Snapshot::BYTES + at] = byte;
            assert_eq!(decode_snapshots(&bytes).is_err(), is_refused, "{at}");
        }
        list[1].clones = (0..CLONES_MAX as u64 - 2).map(clone).collect();
        refused(&list_of(&list));
        list[1].clones.pop();
        assert_eq!(decode_snapshots(&list_of(&list)).unwrap(), list);
    }

    #[test]
    fn impossible_names_are_refused() {
        let too_long = "x".repeat(256);
        for name in ["", ".", "..", "-f", "a/b", "a@b", "a\nb", "\0", too_long.as_str()] {
            let kind = check_snapshot_name(name).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::InvalidInput, "{name:?}");
        }
        for name in ["a", "...", "a-b", "ä ö"] {
            check_snapshot_name(name).unwrap();
        }
    }

    #[test]
    fn impossible_entries_are_refused() {
        let changes: [fn(&mut [u8]); 9] = [
            |bytes| bytes[60] = 3,
            |bytes| bytes[60] = 4,
            // A bookmark without a root.
            |bytes| {
                bytes[40..60].fill(0);
                bytes[60] = 2;
                bytes[64..72].fill(0);
            },
            |bytes| bytes[104] = 1,
            |bytes| bytes[127] = 0,
            |bytes| bytes[127] = 3,
            |bytes| bytes[128] = b'/',
            |bytes| bytes[128] = 0xff,
            // A location without a length.
            |bytes| bytes[56..60].fill(0),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut bytes = encoded(&sample(1));
            change(&mut bytes);
            let kind = Snapshot::decode(&bytes).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::Corrupt, "change {index}");
        }
        for len in [0, 383, 385] {
            assert!(Snapshot::decode(&vec![0; len]).is_err());
        }
    }

    #[test]
    fn impossible_lists_are_refused() {
        let good: Vec<_> = (0..3).map(sample).collect();
        check_snapshots(&good).unwrap();
        check_snapshots(&[]).unwrap();
        let mut last = good.clone();
        last[2].root = None;
        check_snapshots(&last).unwrap();
        let changes: [fn(&mut Vec<Snapshot>); 4] = [
            |list| list[1].root = None,
            |list| list[1].watermark = list[0].watermark,
            |list| list[1].name = list[0].name.clone(),
            |list| list.extend((3..1025).map(sample)),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut list = good.clone();
            change(&mut list);
            assert!(check_snapshots(&list).is_err(), "change {index}");
        }
    }
}
