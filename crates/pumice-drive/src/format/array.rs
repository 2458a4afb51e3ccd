//! The header of a member of an array: the media that together hold one drive, and which of them
//! are complete.
//!
//! Every member stores the header twice, with its own identity and the common list of all members.
//! `events` grows whenever the list changes. A member that missed a write is marked out on the
//! others before the write counts, so of two members, the one with more events is authoritative.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::layout;
use crate::base::checksum::crc64;
use crate::base::{Error, ErrorContext, ErrorKind, Result, ensure};

/// Bytes of a header.
pub const ARRAY_HEADER_BYTES: usize = LENGTH as usize;

const LENGTH: u32 = 4096;

/// The first eight bytes of a header.
const ARRAY_MAGIC: [u8; 8] = *b"PUMICEAR";

const VERSION: u32 = 1;

/// Maximum number of members of an array.
pub const ARRAY_MEMBERS_MAX: usize = 8;

/// Maximum bytes of a member's path.
pub const MEMBER_PATH_MAX: usize = 440;

layout! {
    struct Layout: 4096 {
        magic: [u8; 8],
        version: U32,
        length: U32,
        checksum: U64,
        features: U64,
        array: [u8; 16],
        own: [u8; 16],
        events: U64,
        layout: U16,
        member_count: U16,
        padding: U32,
        members: [Entry; ARRAY_MEMBERS_MAX],
        reserved: [u8; 176],
    }
}

layout! {
    struct Entry: 480 {
        uuid: [u8; 16],
        events: U64,
        state: U32,
        first_segment: U32,
        segment_count: U32,
        path_bytes: U16,
        replaces: U16,
        path: [u8; MEMBER_PATH_MAX],
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;
pub(super) const MEMBER_FIELDS: &[super::layout::Field] = Entry::FIELDS;

/// The distribution of the drive's segments over the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ArrayLayout {
    /// Every member has all segments.
    Mirror = 1,
    /// Every member has a range of the segments.
    Concat = 2,
}

/// The data that a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MemberState {
    /// All durable data.
    Active = 1,
    /// All data written up to an event: the member failed, or was absent.
    Out = 2,
    /// All data written since it was added, and the data copied to it so far.
    Rebuilding = 3,
}

/// A member of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayMember {
    /// Identity of the member, not nil.
    pub uuid: Uuid,
    /// The data that it holds.
    pub state: MemberState,
    /// For a member that is out, the number of the last event that it was part of. Otherwise 0.
    pub events: u64,
    /// With [`ArrayLayout::Concat`], its first segment. Otherwise 0.
    pub first_segment: u32,
    /// With [`ArrayLayout::Concat`], the number of its segments, which follow the previous
    /// member's. Otherwise 0.
    pub segment_count: u32,
    /// Its last known absolute path, at most [`MEMBER_PATH_MAX`] bytes: a hint. Empty if unknown.
    pub path: String,
    /// For a member of a mirror that is not active: another member, which leaves the array when
    /// this one becomes active.
    pub replaces: Option<Uuid>,
}

/// The decoded header of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayHeader {
    /// Identity of the array.
    pub array: Uuid,
    /// Identity of the member that stores this header.
    pub own: Uuid,
    /// Number of changes to the list of members.
    pub events: u64,
    /// The distribution of the segments.
    pub layout: ArrayLayout,
    /// All members, 1 to [`ARRAY_MEMBERS_MAX`].
    pub members: Vec<ArrayMember>,
}

impl ArrayHeader {
    /// Encodes the header.
    ///
    /// # Panics
    /// If [`ArrayHeader::impossible`] returns a description.
    pub fn encode(&self) -> [u8; ARRAY_HEADER_BYTES] {
        assert_eq!(self.impossible(), None, "a header that no program would read");
        let mut layout = Layout::new_zeroed();
        layout.magic = ARRAY_MAGIC;
        layout.version = VERSION.into();
        layout.length = LENGTH.into();
        layout.array = *self.array.as_bytes();
        layout.own = *self.own.as_bytes();
        layout.events = self.events.into();
        layout.layout = (self.layout as u16).into();
        let count = u16::try_from(self.members.len()).expect("an array has few members");
        layout.member_count = count.into();
        for (target, member) in layout.members.iter_mut().zip(&self.members) {
            *target = Entry::of(member, &self.members);
        }
        layout.checksum = crc64(layout.as_bytes()).into();
        let mut bytes = [0; ARRAY_HEADER_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// `NotADrive` without the magic; `Corrupt` for a wrong checksum or impossible values;
    /// `Unsupported` for a newer version or unknown features.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let layout = Layout::read_from_bytes(bytes).ok();
        let mut layout = layout.or_error(CORRUPT, "the header of a member must be 4096 bytes")?;
        let is_member = layout.magic == ARRAY_MAGIC;
        ensure(is_member, ErrorKind::NotADrive, "there is no header of a member")?;
        let checksum = layout.checksum.get();
        layout.checksum = 0.into();
        if crc64(layout.as_bytes()) != checksum {
            return Err(Error::new(CORRUPT, "the checksum of a member's header is wrong"));
        }
        let is_newer = layout.version.get() > VERSION
            || layout.length.get() != LENGTH
            || layout.features.get() != 0;
        if is_newer {
            let what = "the array was made by a newer version: use a newer pumice";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let header = Self::from_layout(&layout)
            .or_error(CORRUPT, "the values of a member's header are invalid")?;
        // The number is counted up from here, so the encoder does not check it.
        let what = "a member's header has an impossible number of changes";
        ensure(header.events < 1 << 62, CORRUPT, what)?;
        match header.impossible() {
            Some(what) => Err(Error::new(CORRUPT, what)),
            None => Ok(header),
        }
    }

    fn from_layout(layout: &Layout) -> Option<Self> {
        let (members, unused) =
            layout.members.split_at_checked(layout.member_count.get().into())?;
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        let is_padded = layout.version.get() > 0
            && layout.padding.get() == 0
            && is_zero(&layout.reserved)
            && is_zero(unused.as_bytes());
        let header = Self {
            array: Uuid::from_bytes(layout.array),
            own: Uuid::from_bytes(layout.own),
            events: layout.events.get(),
            layout: match layout.layout.get() {
                1 => ArrayLayout::Mirror,
                2 => ArrayLayout::Concat,
                _ => return None,
            },
            members: members.iter().map(|entry| entry.decode(members)).collect::<Option<_>>()?,
        };
        is_padded.then_some(header)
    }

    /// Returns the entry of the member that stores this header.
    fn own_entry(&self) -> Option<&ArrayMember> {
        self.members.iter().find(|member| member.uuid == self.own)
    }

    /// Returns a description of the first impossible value, if there is one.
    pub fn impossible(&self) -> Option<&'static str> {
        if !(1..=ARRAY_MEMBERS_MAX).contains(&self.members.len()) {
            return Some("an array must have 1 to 8 members");
        }
        if self.own_entry().is_none() {
            return Some("a member's header does not list the member");
        }
        let is_active = |member: &ArrayMember| member.state == MemberState::Active;
        if !self.members.iter().any(is_active) {
            return Some("an array must have a member that is complete");
        }
        let mut next = 0u64;
        for (index, member) in self.members.iter().enumerate() {
            let mut others = self.members.iter().skip(index + 1);
            if member.uuid.is_nil() || others.any(|other| other.uuid == member.uuid) {
                return Some("members of an array have one identity");
            }
            if member.path.len() > MEMBER_PATH_MAX {
                return Some("the path of a member is too long");
            }
            if let Some(replaced) = member.replaces
                && (member.state == MemberState::Active
                    || replaced == member.uuid
                    || self.layout != ArrayLayout::Mirror
                    || !self.members.iter().any(|other| other.uuid == replaced))
            {
                return Some("a member of an array replaces another one of it until it is active");
            }
            let is_placed = match self.layout {
                ArrayLayout::Mirror => (member.first_segment, member.segment_count) == (0, 0),
                ArrayLayout::Concat => {
                    u64::from(member.first_segment) == next && member.segment_count > 0
                }
            };
            next += u64::from(member.segment_count);
            if !is_placed || next > u64::from(u32::MAX) {
                return Some("the segments of an array are divided wrongly");
            }
        }
        None
    }
}

impl Entry {
    /// Encodes a member, which is one of `all`.
    fn of(member: &ArrayMember, all: &[ArrayMember]) -> Self {
        let mut entry = Self::new_zeroed();
        entry.uuid = *member.uuid.as_bytes();
        entry.events = member.events.into();
        entry.state = (member.state as u32).into();
        entry.first_segment = member.first_segment.into();
        entry.segment_count = member.segment_count.into();
        let path_bytes = u16::try_from(member.path.len());
        entry.path_bytes = path_bytes.expect("a short path").into();
        let replaced =
            all.iter().zip(1u16..).find(|(other, _)| Some(other.uuid) == member.replaces);
        entry.replaces = replaced.map_or(0, |(_, number)| number).into();
        for (target, byte) in entry.path.iter_mut().zip(member.path.bytes()) {
            *target = byte;
        }
        entry
    }

    /// Decodes an entry, which is one of `all`.
    fn decode(&self, all: &[Self]) -> Option<ArrayMember> {
        let (path, rest) = self.path.split_at_checked(self.path_bytes.get().into())?;
        let is_padded = rest.iter().all(|&byte| byte == 0);
        let replaces = match self.replaces.get().checked_sub(1) {
            None => None,
            Some(index) => Some(Uuid::from_bytes(all.get(usize::from(index))?.uuid)),
        };
        let state = match self.state.get() {
            1 => MemberState::Active,
            2 => MemberState::Out,
            3 => MemberState::Rebuilding,
            _ => return None,
        };
        let member = ArrayMember {
            uuid: Uuid::from_bytes(self.uuid),
            state,
            events: self.events.get(),
            first_segment: self.first_segment.get(),
            segment_count: self.segment_count.get(),
            path: str::from_utf8(path).ok()?.to_owned(),
            replaces,
        };
        is_padded.then_some(member)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a header survives its encoding, and no damaged or impossible header is accepted.
    use super::*;

    fn header() -> ArrayHeader {
        let member = |number, state, path: &str| ArrayMember {
            uuid: Uuid::from_u128(number),
            state,
            events: 3,
            first_segment: 0,
            segment_count: 0,
            path: path.to_owned(),
            replaces: (state == MemberState::Rebuilding).then_some(Uuid::from_u128(2)),
        };
        ArrayHeader {
            array: Uuid::from_u128(9),
            own: Uuid::from_u128(2),
            events: 7,
            layout: ArrayLayout::Mirror,
            members: vec![
                member(1, MemberState::Active, "/a"),
                member(2, MemberState::Out, ""),
                member(3, MemberState::Rebuilding, &"p".repeat(MEMBER_PATH_MAX)),
            ],
        }
    }

    #[test]
    fn a_header_survives_and_no_flipped_bit_is_taken() {
        let bytes = header().encode();
        assert_eq!(ArrayHeader::decode(&bytes).unwrap(), header());
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 1 << (at % 8);
            assert!(ArrayHeader::decode(&damaged).is_err(), "byte {at}");
        }
        assert_eq!(ArrayHeader::decode(&[0; 4096]).unwrap_err().kind(), ErrorKind::NotADrive);
        assert_eq!(ArrayHeader::decode(&bytes[..512]).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    /// The header of a newer program is refused as newer, not as damaged.
    #[test]
    fn a_newer_header_is_unsupported() {
        for (at, kind) in [(8, ErrorKind::Unsupported), (24, ErrorKind::Unsupported)] {
            let mut bytes = header().encode();
            bytes[at] = 0x7f;
            bytes[16..24].fill(0);
            let checksum = crc64(&bytes).to_le_bytes();
            bytes[16..24].copy_from_slice(&checksum);
            assert_eq!(ArrayHeader::decode(&bytes).unwrap_err().kind(), kind, "byte {at}");
        }
    }

    /// Guards against an overflow when the list of members changes.
    #[test]
    fn a_number_of_changes_that_cannot_grow_is_refused() {
        for (events, is_taken) in [((1 << 62) - 1, true), (1 << 62, false), (u64::MAX, false)] {
            let bytes = ArrayHeader { events, ..header() }.encode();
            assert_eq!(ArrayHeader::decode(&bytes).is_ok(), is_taken, "{events}");
        }
    }

    #[test]
    fn impossible_headers_are_named() {
        type Change = fn(&mut ArrayHeader);
        let changes: [Change; 10] = [
            |header| header.members.clear(),
            |header| header.own = Uuid::from_u128(4),
            |header| header.members[0].state = MemberState::Out,
            |header| header.members[2].uuid = header.members[1].uuid,
            |header| header.members[0].path = "p".repeat(MEMBER_PATH_MAX + 1),
            |header| header.members[0].segment_count = 1,
            |header| header.layout = ArrayLayout::Concat,
            |header| header.members[0].replaces = Some(Uuid::from_u128(2)),
            |header| header.members[2].replaces = Some(Uuid::from_u128(3)),
            |header| header.members[2].replaces = Some(Uuid::from_u128(4)),
        ];
        assert_eq!(header().impossible(), None);
        for (number, change) in changes.iter().enumerate() {
            let mut wrong = header();
            change(&mut wrong);
            assert!(wrong.impossible().is_some(), "change {number}");
        }
        let mut concat = header();
        concat.layout = ArrayLayout::Concat;
        concat.members[2].replaces = None;
        for (first, member) in [0, 10, 15].into_iter().zip(&mut concat.members) {
            (member.first_segment, member.segment_count) = (first, if first == 0 { 10 } else { 5 });
        }
        assert_eq!(ArrayHeader::decode(&concat.encode()).unwrap(), concat);
    }
}
