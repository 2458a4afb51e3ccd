//! Several media as one: an array, whose members together hold one drive.
//!
//! ```text
//! mirror   segment n, superblocks  -> every member            one may fail, or be damaged
//! concat   segment n               -> the member that has it  superblocks: every member
//!
//! member   | slot 0 | header | slot 1 | header | segment 0 | segment 1 | ...
//! ```
//!
//! A member has the layout of a single medium, and the array's header next to its superblocks
//! ([`ArrayHeader`](crate::format::ArrayHeader)). The header lists the members of the array and
//! records which of them are *active*, that is, hold everything that is durable.
//!
//! Invariants:
//! * Nothing is reported as written, or as durable, before every active member has it. A member
//!   that fails is first marked *out* on all others, durably, with a higher event count. It
//!   therefore does not count as complete again until it has been rebuilt.
//! * The last active member is never marked out: its errors are errors of the array.
//! * A read is served by one active member. Reads alternate between members, by their load. A read
//!   that fails on one member is repeated on another.
//! * Active members may differ in bytes that no sync has covered, and in free segments. Before the
//!   drive reports batches that it found in the log as durable, it makes the members equal there.
//! * Repairs write only bytes that the caller has verified. Unverified bytes of another copy never
//!   overwrite bytes that can be read.
//!
//! * `assemble`: assembling an array from its members. `members`: their states, and how the states
//!   are stored. `rebuild`: adding and removing members while the array is in use. `repair`:
//!   repairing one location. `patience`: members that do not answer. `found`: reading where members
//!   are not equal yet.
//!
//! An array does not interpret the bytes and does not search for members.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Capabilities, Copies, CopyId, Geometry, Medium, SLOTS, SUPERBLOCK_BYTES, slot_offset};
use crate::base::wait::{Line, WaitQueue};
use crate::base::{AlignedBuffer, Error, ErrorContext, ErrorKind, Result, SegmentId};
use crate::crypt::Cipher;
use crate::format::ArrayLayout;

mod assemble;
mod found;
mod members;
mod patience;
mod rebuild;
mod repair;
#[cfg(test)]
mod tests;

pub use assemble::{Assembly, NewMember, read_header};
use found::Holders;
use members::{Load, Member, Target};
pub use patience::Patience;
pub use rebuild::Copying;

/// Weight of a read in addition to its bytes when loads are compared: roughly the number of bytes
/// that a flash device transfers in the time of one operation.
const READ_COST_BYTES: u64 = 32 << 10;

/// Several media as one. See the [module](self).
pub struct Array<M> {
    uuid: Uuid,
    layout: ArrayLayout,
    capabilities: Capabilities,
    is_read_only: bool,
    events: Cell<u64>,
    members: RefCell<Vec<Member<M>>>,
    /// Number of members since the array was opened, including members that have left it.
    enlisted: Cell<u32>,
    geometry: Cell<Option<Geometry>>,
    /// Whether the list of members has changes that are not stored yet.
    is_unsaved: Cell<bool>,
    saving: Line,
    repairing: Line,
    /// Number of the next read.
    turn: Cell<usize>,
    /// Appends and repairs in progress, and ranges being copied to new members. The two never
    /// overlap.
    appends: RefCell<Vec<Place>>,
    copying: RefCell<Vec<Place>>,
    cleared: WaitQueue,
    progress: Cell<RebuildProgress>,
    /// Whether a rebuild is in progress.
    is_copying: Cell<bool>,
    patience: Option<Patience>,
    cipher: Cipher,
    /// For a reader: the ranges in which members differ, and the members that hold the bytes it
    /// found.
    holders: RefCell<Holders>,
}

/// Progress of the rebuilding of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RebuildProgress {
    /// Bytes that have been copied.
    pub copied_bytes: u64,
    /// Bytes to copy, as far as known; 0 if no rebuild is in progress.
    pub total_bytes: u64,
}

/// The state of an array. Fields appear in JSON under these names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ArrayInfo {
    /// Identity of the array.
    pub uuid: Uuid,
    /// The way in which the members hold the drive: `mirror` or `concat`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["mirror", "concat"])))]
    pub layout: String,
    /// The worst of its members.
    pub state: ArrayState,
    /// Changes of the list of members over the array's life.
    pub events: u64,
    /// The members.
    pub members: Vec<MemberInfo>,
    /// Progress of a rebuild.
    pub rebuild: RebuildProgress,
}

/// The state of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ArrayState {
    /// Every member has everything.
    Online,
    /// A member is being rebuilt, and none is out.
    Rebuilding,
    /// A member is out.
    Degraded,
}

/// A member, for display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemberInfo {
    /// Identity.
    pub uuid: Uuid,
    /// The copy of a mirror that the member is, as named by [`Copies::copies`].
    #[serde(skip)]
    pub copy: CopyId,
    /// Where it is, or was.
    pub path: String,
    /// Its state.
    pub state: MemberStatus,
    /// Reads of it that failed since the opening.
    pub read_errors: u64,
    /// Damaged places that were overwritten with the bytes of another member, since the opening.
    pub repaired: u64,
    /// Why it is out, if that happened since the opening.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MemberStatus {
    /// It has everything.
    Online,
    /// It is getting everything.
    Rebuilding,
    /// It failed, or was absent while the array was written to.
    Out,
}

impl ArrayInfo {
    /// Returns the problem and the remedy as a message, if a member is out.
    pub fn alert(&self) -> Option<String> {
        let out: Vec<&str> = self
            .members
            .iter()
            .filter(|member| member.state == MemberStatus::Out)
            .map(|member| member.path.as_str())
            .collect();
        let (first, rest) = out.split_first()?;
        let others = if rest.is_empty() { "" } else { " and others" };
        Some(format!("the mirror is degraded: {first}{others} is out: replace it"))
    }
}

impl<M: Medium> Array<M> {
    /// Returns the state of the array.
    pub fn info(&self) -> ArrayInfo {
        let members: Vec<MemberInfo> = self.members.borrow().iter().map(Member::info).collect();
        let has = |state| members.iter().any(|member| member.state == state);
        let state = if has(MemberStatus::Out) {
            ArrayState::Degraded
        } else if has(MemberStatus::Rebuilding) {
            ArrayState::Rebuilding
        } else {
            ArrayState::Online
        };
        let layout = match self.layout {
            ArrayLayout::Mirror => "mirror",
            ArrayLayout::Concat => "concat",
        };
        ArrayInfo {
            uuid: self.uuid,
            layout: layout.into(),
            state,
            events: self.events.get(),
            members,
            rebuild: self.progress.get(),
        }
    }

    /// Returns how the array distributes the segments of its drive over the members.
    pub fn layout(&self) -> ArrayLayout {
        self.layout
    }

    /// Returns the array with the keys of its drive.
    #[must_use]
    pub fn with_cipher(self, cipher: Cipher) -> Self {
        Self { cipher, ..self }
    }

    /// Sets the keys of the array's drive.
    pub fn set_cipher(&mut self, cipher: Cipher) {
        self.cipher = cipher;
    }

    /// Returns the media of the members that are in use.
    pub fn media(&self) -> Vec<Rc<M>> {
        self.members.borrow().iter().filter_map(|member| member.medium.clone()).collect()
    }

    /// Performs a write on all members in use, and marks out the members on which it fails.
    async fn on_all<F>(&self, operation: impl Fn(Rc<M>) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let targets = self.targets();
        let results = self.on_each(&targets, operation).await;
        self.settle(&targets, results).await
    }

    /// Returns the member that has a segment, and its number there.
    fn place(&self, segment: SegmentId) -> Result<(Rc<M>, SegmentId)> {
        let members = self.members.borrow();
        let found = members.iter().find_map(|member| {
            let number = segment.0.checked_sub(member.entry.first_segment)?;
            (number < member.entry.segment_count).then_some((member, SegmentId(number)))
        });
        let (member, number) =
            found.or_error(ErrorKind::InvalidInput, "no member of the array has the segment")?;
        let medium = member.medium.clone();
        let medium = medium.or_error(ErrorKind::Medium, "a member of the array is absent")?;
        Ok((medium, number))
    }

    /// Chooses the active member with the lowest load among those not yet tried.
    fn choose(&self, tried: &[Uuid]) -> Option<Target<M>> {
        let members = self.members.borrow();
        let turn = self.turn.replace(self.turn.get().wrapping_add(1));
        let mut best: Option<(u64, usize)> = None;
        for step in 0..members.len() {
            // A reader must not see two histories, so the first member serves all its reads.
            let start = if self.is_read_only { 0 } else { turn };
            let index = start.wrapping_add(step) % members.len();
            let Some(member) = members.get(index) else { continue };
            if !member.is_readable() || tried.contains(&member.entry.uuid) {
                continue;
            }
            let load = if self.is_read_only { 0 } else { member.load.get() };
            if best.is_none_or(|(least, _)| load < least) {
                best = Some((load, index));
            }
        }
        members.get(best?.1).and_then(Member::target)
    }

    /// Adds a member to the list.
    fn enlist(&self, member: Member<M>) {
        let enlisted = self.enlisted.get();
        let is_known = |other: &Member<M>| other.entry.uuid == member.entry.uuid;
        assert!(!self.members.borrow().iter().any(is_known), "a member is listed once");
        let copy = CopyId(enlisted);
        self.enlisted.set(enlisted.checked_add(1).expect("2^32 members since the opening"));
        self.members.borrow_mut().push(Member { copy, ..member });
    }

    /// Returns the active member that holds a copy.
    fn copy_of(&self, copy: CopyId) -> Result<Target<M>> {
        let members = self.members.borrow();
        let mut found = members.iter().filter(|member| member.is_readable());
        let found = found.find(|member| member.copy == copy).and_then(Member::target);
        found.or_error(ErrorKind::Medium, "the mirror no longer has this copy")
    }

    async fn read_mirrored(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let (buffer, result) = self.read_any(segment, offset, buffer).await;
        if self.holders.borrow().is_empty() {
            return (buffer, result);
        }
        self.read_as_found(segment, offset, buffer, result).await
    }

    /// Waits until no copy in progress overlaps the range of an append. The append counts as in
    /// progress until the guard is dropped.
    async fn enter_append(&self, append: Place) -> Appending<'_, M> {
        let is_clear = || {
            let copying = self.copying.borrow();
            (!copying.iter().any(|copy| overlap(copy, &append))).then_some(())
        };
        self.cleared.wait_for(is_clear).await;
        self.appends.borrow_mut().push(append.clone());
        Appending { array: self, append }
    }

    fn check_geometry(&self, geometry: Geometry) -> Result<()> {
        let headers_end = slot_offset(SLOTS - 1) + SUPERBLOCK_BYTES as u64;
        if geometry.data_offset < headers_end {
            let what = "segments begin too early for an array: its headers would be overwritten";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let members = self.members.borrow();
        let segments: u64 =
            members.iter().map(|member| u64::from(member.entry.segment_count)).sum();
        if self.layout == ArrayLayout::Concat && segments < u64::from(geometry.segment_count) {
            let what = "the members of the array have fewer segments than the drive";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(())
    }

    /// Returns the geometry of a member of an array with this geometry.
    fn geometry_of(&self, member: &Member<M>, geometry: Geometry) -> Geometry {
        match self.layout {
            ArrayLayout::Mirror => geometry,
            ArrayLayout::Concat => {
                let Geometry { segment_count, .. } = geometry;
                let entry = &member.entry;
                let segment_count = segment_count.saturating_sub(entry.first_segment);
                Geometry { segment_count: segment_count.min(entry.segment_count), ..geometry }
            }
        }
    }
}

type Place = (SegmentId, Range<u32>);

fn overlap(one: &Place, other: &Place) -> bool {
    one.0 == other.0 && one.1.start < other.1.end && other.1.start < one.1.end
}

fn remove(places: &RefCell<Vec<Place>>, place: &Place) {
    let mut places = places.borrow_mut();
    let at = places.iter().position(|other| other == place);
    places.swap_remove(at.expect("an operation under way is noted"));
}

/// An append or a repair in progress.
struct Appending<'a, M> {
    array: &'a Array<M>,
    append: Place,
}

impl<M> Drop for Appending<'_, M> {
    fn drop(&mut self) {
        remove(&self.array.appends, &self.append);
        if !self.array.copying.borrow().is_empty() {
            self.array.cleared.wake_all();
        }
    }
}

/// Returns the location of an append.
fn place_of(segment: SegmentId, offset: u32, buffer: &AlignedBuffer) -> Place {
    let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    (segment, offset..offset.saturating_add(len))
}

impl<M: Medium> Medium for Array<M> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        self.check_geometry(geometry)?;
        let members = self.members.borrow();
        let mut changed: Vec<&Member<M>> = Vec::new();
        for member in members.iter() {
            let Some(medium) = &member.medium else { continue };
            if let Err(error) = medium.set_geometry(self.geometry_of(member, geometry)) {
                for (member, old) in changed.iter().zip(self.geometry.get().into_iter().cycle()) {
                    let old = self.geometry_of(member, old);
                    let _ = member.medium.as_ref().map(|medium| medium.set_geometry(old));
                }
                return Err(error);
            }
            changed.push(member);
        }
        drop(changed);
        drop(members);
        self.geometry.set(Some(geometry));
        Ok(())
    }

    fn reserve(&self) -> Result<()> {
        self.media().iter().try_for_each(|medium| medium.reserve())
    }

    /// Returns the free space of the member with the least, even in a concatenation: segments may
    /// be stored there.
    fn room(&self) -> Option<u64> {
        self.media().iter().filter_map(|medium| medium.room()).min()
    }

    async fn preallocate(&self, segment: SegmentId) -> Result<()> {
        if self.layout == ArrayLayout::Concat {
            let (medium, segment) = self.place(segment)?;
            return medium.preallocate(segment).await;
        }
        let targets = self.targets();
        let preallocate = |medium: Rc<M>| async move { medium.preallocate(segment).await };
        let results = self.on_each(&targets, preallocate).await;
        let mut in_use = targets.iter().zip(results).filter(|(target, _)| self.is_used(target));
        in_use.find_map(|(_, result)| result.err()).map_or(Ok(()), Err)
    }

    fn misplaced(&self) -> Option<String> {
        self.media().iter().find_map(|medium| medium.misplaced())
    }

    async fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        if self.layout == ArrayLayout::Concat {
            let (medium, segment) = self.place(segment)?;
            return medium.append(segment, offset, buffer).await;
        }
        let _append = self.enter_append(place_of(segment, offset, &buffer)).await;
        self.on_all(|medium| {
            let buffer = buffer.clone();
            async move { medium.append(segment, offset, buffer).await }
        })
        .await
    }

    async fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        if self.layout == ArrayLayout::Concat {
            let (medium, segment) = self.place(segment)?;
            return medium.append_durably(segment, offset, buffer).await;
        }
        let _append = self.enter_append(place_of(segment, offset, &buffer)).await;
        self.on_all(|medium| {
            let buffer = buffer.clone();
            async move { medium.append_durably(segment, offset, buffer).await }
        })
        .await
    }

    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        let members = self.members.borrow();
        members.iter().find_map(|member| member.medium.as_ref()?.spare_buffer())
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        if self.layout == ArrayLayout::Mirror {
            return self.read_mirrored(segment, offset, buffer).await;
        }
        match self.place(segment) {
            Ok((medium, segment)) => medium.read(segment, offset, buffer).await,
            Err(error) => (buffer, Err(error)),
        }
    }

    async fn sync(&self) -> Result<()> {
        self.on_all(|medium| async move { medium.sync().await }).await
    }

    /// Discards on each member that has the segment. A member on which this fails does not free the
    /// space.
    async fn discard(&self, segment: SegmentId) -> Result<()> {
        if self.layout == ArrayLayout::Concat {
            let (medium, segment) = self.place(segment)?;
            return medium.discard(segment).await;
        }
        let targets = self.targets();
        let discard = |medium: Rc<M>| async move { medium.discard(segment).await };
        let results = self.on_each(&targets, discard).await;
        self.save().await?;
        let mut in_use = targets.iter().zip(results).filter(|(target, _)| self.is_used(target));
        in_use.find_map(|(_, result)| result.err()).map_or(Ok(()), Err)
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        self.read_any_superblock(slot).await
    }

    async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        self.on_all(|medium| {
            let bytes = bytes.clone();
            async move { medium.write_superblock(slot, bytes).await }
        })
        .await
    }

    fn as_array(&self) -> Option<&dyn Copies> {
        Some(self)
    }
}

impl<M: Medium> Copies for Array<M> {
    fn info(&self) -> ArrayInfo {
        Array::info(self)
    }

    fn copies(&self) -> Vec<CopyId> {
        if self.layout == ArrayLayout::Concat {
            return vec![CopyId::default()];
        }
        let members = self.members.borrow();
        members.iter().filter(|member| member.is_readable()).map(|member| member.copy).collect()
    }

    fn read_copy(
        &self,
        copy: CopyId,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> LocalBoxFuture<'_, (AlignedBuffer, Result<()>)> {
        Box::pin(async move {
            if self.layout == ArrayLayout::Concat {
                return self.read(segment, offset, buffer).await;
            }
            let target = match self.copy_of(copy) {
                Ok(target) => target,
                Err(error) => return (buffer, Err(error)),
            };
            if let Err(error) = self.check_holds(&target, place_of(segment, offset, &buffer)) {
                return (buffer, Err(error));
            }
            let (buffer, result) = self.read_one(&target, segment, offset, buffer).await;
            if let Err(error) = &result {
                self.note_read_error(target.uuid, error);
            }
            (buffer, result)
        })
    }

    fn read_superblock_copy(
        &self,
        copy: CopyId,
        slot: u32,
    ) -> LocalBoxFuture<'_, Result<AlignedBuffer>> {
        Box::pin(async move {
            if self.layout == ArrayLayout::Concat {
                return self.read_superblock(slot).await;
            }
            self.read_superblock_of(&self.copy_of(copy)?, slot).await
        })
    }

    fn repair<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<u32>> {
        Box::pin(self.repair_mirrored(segment, offset, bytes))
    }

    fn note_holders(&self, copies: &[CopyId], segment: SegmentId, range: Range<u32>) {
        self.note_found(copies, segment, range);
    }
}
