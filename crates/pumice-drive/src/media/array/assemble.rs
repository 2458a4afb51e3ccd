//! Assembling an array from its members: determines which members are complete, and refuses if that
//! is uncertain.
//!
//! ```text
//! headers of the members found -> one array? each once? -> none used apart from another?
//!   -> the newest list of members -> an active one absent? only if the caller insists
//!   -> the changed list is stored, before anything else is written
//! ```
//!
//! **An absent member.** If the newest list marks it as out, the other members are complete.
//! Otherwise it may have been written to without the members that are present. It must then be
//! found, or the caller must assert that it was not written to ([`Assembly::degraded`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use uuid::Uuid;

use super::Array;
use super::members::{Member, write_header};
use super::patience::{Patience, all_in_time};
use crate::base::wait::{Line, WaitQueue};
use crate::base::{Error, ErrorContext, ErrorKind, Remedy, Result, ensure};
use crate::crypt::Cipher;
use crate::format::{
    ARRAY_MEMBERS_MAX, ArrayHeader, ArrayLayout, ArrayMember, MEMBER_PATH_MAX, MemberState,
};
use crate::media::{Capabilities, Medium, SLOTS, SUPERBLOCK_SLOTS};

/// A medium that is to become a member.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// Identity of the new member.
    pub uuid: Uuid,
    /// Its absolute path; at most [`MEMBER_PATH_MAX`] bytes.
    pub path: String,
    /// With [`ArrayLayout::Concat`], the number of its segments; otherwise 0.
    pub segment_count: u32,
}

/// Options for [`Array::assemble`].
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Assembly {
    /// Write nothing.
    pub read_only: bool,
    /// Continue without an absent member, as [`degraded`](Self::degraded) does, but not with
    /// members that were used separately. For readers: the absent member may be newer.
    pub absent: bool,
    /// Continue without an absent member, although it may have been written to without the present
    /// ones. If members were used separately, the first one's view is used.
    pub degraded: bool,
    /// How long a member may delay the others. A member that exceeds the limit while the array is
    /// being opened counts as absent. `None` sets no limit.
    pub patience: Option<Patience>,
}

impl Assembly {
    /// Sets whether to write nothing.
    #[must_use]
    pub fn with_read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether to continue without absent members, unless the others were used separately.
    #[must_use]
    pub fn with_absent(mut self, absent: bool) -> Self {
        self.absent = absent;
        self
    }

    /// Sets how long a member may delay the others.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Sets whether to continue without absent members.
    #[must_use]
    pub fn with_degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }
}

/// A member that was found.
struct Found<M> {
    medium: M,
    path: String,
    header: ArrayHeader,
    /// Whether its two headers are valid and identical.
    is_whole: bool,
}

/// Reads the header of a member; `None` if the medium is not a member.
///
/// # Errors
/// `Medium`; `Corrupt` if neither header is valid; `Unsupported`.
pub async fn read_header<M: Medium>(medium: &M) -> Result<Option<ArrayHeader>> {
    Ok(headers(medium).await?.map(|(header, _)| header))
}

/// Reads both headers. Returns the newer one, and whether the other one is identical.
async fn headers<M: Medium>(medium: &M) -> Result<Option<(ArrayHeader, bool)>> {
    let mut newest: Option<ArrayHeader> = None;
    let (mut is_whole, mut failure) = (true, None);
    for slot in SUPERBLOCK_SLOTS..SLOTS {
        let read = medium.read_superblock(slot).await;
        match read.and_then(|bytes| ArrayHeader::decode(&bytes)) {
            Ok(header) => {
                is_whole &= newest.as_ref().is_none_or(|newest| *newest == header);
                if newest.as_ref().is_none_or(|newest| newest.events < header.events) {
                    newest = Some(header);
                }
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(error) => {
                is_whole = false;
                if error.kind() != ErrorKind::NotADrive {
                    failure.get_or_insert(error);
                }
            }
        }
    }
    match (newest, failure) {
        (Some(newest), _) => Ok(Some((newest, is_whole))),
        (None, Some(failure)) => Err(failure),
        (None, None) => Ok(None),
    }
}

impl<M: Medium> Array<M> {
    /// Creates an array from media, whose previous content is lost. The headers are durable when
    /// this returns. All members are active.
    ///
    /// # Errors
    /// `InvalidInput` if there are too many; errors of the media.
    pub async fn create(
        uuid: Uuid,
        layout: ArrayLayout,
        members: Vec<(M, NewMember)>,
    ) -> Result<Self> {
        let count = members.len();
        let what = "an array must have 1 to 8 members";
        ensure((1..=ARRAY_MEMBERS_MAX).contains(&count), ErrorKind::InvalidInput, what)?;
        let mut first_segment = 0u32;
        let mut list = Vec::new();
        for (medium, new) in members {
            let NewMember { uuid, path, segment_count } = new;
            check_path(&path)?;
            let state = MemberState::Active;
            let entry = ArrayMember {
                uuid,
                state,
                events: 0,
                first_segment,
                segment_count,
                path,
                replaces: None,
            };
            first_segment = first_segment.saturating_add(segment_count);
            list.push(Member::new(entry, Some(Rc::new(medium))));
        }
        let header = ArrayHeader {
            array: uuid,
            own: list.first().map_or_else(Uuid::nil, |member| member.entry.uuid),
            events: 1,
            layout,
            members: list.iter().map(|member| member.entry.clone()).collect(),
        };
        if let Some(what) = header.impossible() {
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        for member in &list {
            let Some(medium) = &member.medium else { continue };
            let header = ArrayHeader { own: member.entry.uuid, ..header.clone() };
            write_header(&**medium, header.encode()).await?;
        }
        Ok(Self::of(&header, list, false))
    }

    /// Assembles an array from its members, each with the path at which it was found. The first is
    /// the one that the caller named: it prevails if members were written separately and
    /// [`degraded`](Assembly::degraded) is set.
    ///
    /// # Errors
    /// `InvalidInput`, with advice, if they do not belong together, or if it is uncertain whether
    /// the present ones are complete; errors of the media. The members are unchanged then.
    pub async fn assemble(members: Vec<(M, String)>, options: Assembly) -> Result<Self> {
        members.iter().try_for_each(|(_, path)| check_path(path))?;
        let reads: Vec<_> = members.iter().map(|(medium, _)| headers(medium)).collect();
        let has_read = |_: usize, read: &Result<_>| read.is_ok();
        let reads = all_in_time(reads, options.patience.as_ref(), has_read).await;
        let mut found = Vec::new();
        for ((medium, path), headers) in members.into_iter().zip(reads) {
            let Some(headers) = headers else {
                tracing::warn!(member = %path, "a member of the array does not answer");
                continue;
            };
            let headers = headers?;
            let what = || format!("{path} is not a member of an array");
            let (header, is_whole) =
                headers.ok_or_else(|| Error::new(ErrorKind::InvalidInput, what()))?;
            found.push(Found { medium, path, header, is_whole });
        }
        check_together(&found)?;
        let apart = used_apart(&found);
        if let (Some((one, other)), false) = (&apart, options.degraded) {
            let what = format!(
                "{one} and {other} were each written without the other: detach the one with the \
                 unwanted data, continue without it, and replace it"
            );
            return Err(Error::new(ErrorKind::InvalidInput, what).with_remedy(Remedy::Degraded));
        }
        let newest = if apart.is_some() {
            found.first()
        } else {
            found.iter().max_by_key(|found| found.header.events)
        };
        let header = newest.map(|found| found.header.clone());
        let header = header.or_error(ErrorKind::InvalidInput, "an array needs a member")?;
        let (list, has_changed) = place(found, &header, apart.is_some(), &options)?;
        let mut array = Self::of(&header, list, options.read_only);
        array.patience = options.patience;
        if has_changed && !options.read_only {
            array.note_change();
            array.save().await?;
        }
        Ok(array)
    }

    fn of(header: &ArrayHeader, members: Vec<Member<M>>, is_read_only: bool) -> Self {
        assert!(members.iter().any(Member::is_readable), "an array has a complete member");
        let media = members.iter().filter_map(|member| member.medium.as_deref());
        let array = Self {
            uuid: header.array,
            layout: header.layout,
            capabilities: capabilities(media),
            is_read_only,
            events: Cell::new(header.events),
            members: RefCell::default(),
            enlisted: Cell::default(),
            geometry: Cell::new(None),
            is_unsaved: Cell::new(false),
            saving: Line::default(),
            repairing: Line::default(),
            turn: Cell::new(0),
            appends: RefCell::default(),
            copying: RefCell::default(),
            cleared: WaitQueue::default(),
            progress: Cell::default(),
            is_copying: Cell::default(),
            patience: None,
            cipher: Cipher::default(),
            holders: RefCell::default(),
        };
        members.into_iter().for_each(|member| array.enlist(member));
        array
    }
}

/// Returns the capabilities that all media have in common.
fn capabilities<'a, M: Medium + 'a>(media: impl Iterator<Item = &'a M>) -> Capabilities {
    let all = media.map(Medium::capabilities);
    all.reduce(|one, other| {
        Capabilities::default()
            .with_write_unit(one.write_unit.max(other.write_unit))
            .with_read_unit(one.read_unit.max(other.read_unit))
            .with_discard(one.discard || other.discard)
            .with_durable_appends(one.durable_appends && other.durable_appends)
            .with_prefers_written(one.prefers_written || other.prefers_written)
    })
    .unwrap_or_default()
}

pub(super) fn check_path(path: &str) -> Result<()> {
    let what = "the path of a member must have at most 440 bytes";
    ensure(path.len() <= MEMBER_PATH_MAX, ErrorKind::InvalidInput, what)
}

/// Checks that all members belong to one array and are distinct.
fn check_together<M>(found: &[Found<M>]) -> Result<()> {
    for (index, one) in found.iter().enumerate() {
        for other in found.iter().skip(index + 1) {
            if one.header.array != other.header.array {
                let what = format!("{} and {} belong to different arrays", one.path, other.path);
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
            if one.header.own == other.header.own {
                let what = format!(
                    "{} and {} are the same member, one perhaps a copy: leave one of them out",
                    one.path, other.path
                );
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
        }
    }
    Ok(())
}

/// Returns two members, if there are any, of which the second was written to after the first had
/// marked it out.
fn used_apart<M>(found: &[Found<M>]) -> Option<(String, String)> {
    for one in found {
        for other in found {
            let listed = one.header.members.iter().find(|member| member.uuid == other.header.own);
            let is_apart = listed.is_some_and(|entry| {
                entry.state == MemberState::Out && other.header.events > entry.events
            });
            if is_apart {
                return Some((one.path.clone(), other.path.clone()));
            }
        }
    }
    None
}

/// Assigns the members to their entries in the newest list. Returns whether that list has changed.
fn place<M: Medium>(
    found: Vec<Found<M>>,
    newest: &ArrayHeader,
    is_apart: bool,
    options: &Assembly,
) -> Result<(Vec<Member<M>>, bool)> {
    let invalid = |what: String| Error::new(ErrorKind::InvalidInput, what);
    let mut list: Vec<Member<M>> =
        newest.members.iter().map(|entry| Member::new(entry.clone(), None)).collect();
    let mut has_changed = false;
    for Found { medium, path, header, is_whole } in found {
        let member = list.iter_mut().find(|member| member.entry.uuid == header.own);
        let Some(member) = member else {
            let what =
                format!("{path} is no longer a member of the array: leave it out, or add it again");
            return Err(invalid(what));
        };
        has_changed |= !is_whole || header.events != newest.events || member.entry.path != path;
        member.entry.path = path;
        // If a member was used separately, the other member's view of it does not count.
        let is_stale = is_apart && header.own != newest.own;
        if is_stale && member.entry.state != MemberState::Out {
            member.entry.state = MemberState::Out;
            member.entry.events = header.events;
        }
        if member.entry.state != MemberState::Out {
            member.medium = Some(Rc::new(medium));
        }
    }
    for member in &mut list {
        let path = &member.entry.path;
        match (member.entry.state, member.medium.is_some()) {
            (MemberState::Out, _) => tracing::warn!(
                member = %path,
                "a member of the array is out: the array is degraded"
            ),
            (_, true) => {}
            (MemberState::Active, _) if newest.layout == ArrayLayout::Concat => {
                let what = format!("{path}, a member of the array, is missing: attach it");
                return Err(invalid(what));
            }
            (MemberState::Active, _) if !(options.degraded || options.absent) => {
                let what = format!(
                    "{path}, a member of the mirror, is missing: attach it, or, if nothing was \
                     written to it alone, continue without it"
                );
                return Err(invalid(what).with_remedy(Remedy::Degraded));
            }
            _ => {
                tracing::warn!(member = %path, "a member of the array is missing: it is left out");
                member.entry.state = MemberState::Out;
                member.entry.events = newest.events;
                has_changed = true;
            }
        }
    }
    if !list.iter().any(Member::is_readable) {
        let what = "no member with all data is present: attach a member that was in use last";
        return Err(invalid(what.into()));
    }
    Ok((list, has_changed))
}
