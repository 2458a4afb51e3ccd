//! Changing the members of a mirror while it is in use.
//!
//! ```text
//! add: superblocks zeroed, header: rebuilding -> it gets every write from now on
//!   -> copy: the ranges in use, as the drive reports them, in pieces; appends to a piece wait
//!      (the drive verifies the copied bytes that it is shown, and repairs damage of one member)
//!   -> superblocks by the drive -> sync -> header: active, and without the member it replaces
//! ```
//!
//! A crash before the end leaves a member that is still being rebuilt, and the one that it
//! replaces. Copying then starts over, with the ranges in use at that time.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{StreamExt, iter};
use uuid::Uuid;

use super::assemble::{NewMember, check_path};
use super::members::{Member, write_header};
use super::{Array, Place, RebuildProgress, Target, overlap, remove};
use crate::base::{AlignedBuffer, Error, ErrorContext, ErrorKind, Result, SegmentId, ensure};
use crate::format::{ARRAY_MEMBERS_MAX, ArrayLayout, ArrayMember, MemberState};
use crate::media::{Medium, SLOTS, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};

/// Bytes copied in one step. Appends to them wait meanwhile.
const PIECE_BYTES: u32 = 1 << 20;

/// Pieces of a segment copied concurrently: while one is being written, the next ones are read.
const PIECES_AT_ONCE: usize = 3;

/// Bytes copied in one step where a piece cannot be read as a whole.
const PAGE_BYTES: u32 = 4096;

impl<M: Medium> Array<M> {
    /// Adds a member to a mirror. The member receives every write from now on; [`Array::copy`] must
    /// copy the earlier data to it. The previous content of its medium is lost.
    ///
    /// # Errors
    /// `InvalidInput` if the array is not a mirror, has too many members or already has this one,
    /// or if the medium is too small; `Medium` if the medium fails. The array is unchanged then.
    pub async fn add_member(&self, medium: M, new: NewMember) -> Result<()> {
        self.add(medium, new, None).await
    }

    /// Adds a member like [`Array::add_member`], in place of another one, which leaves the array
    /// when the new one is complete.
    ///
    /// # Errors
    /// The errors of [`Array::add_member`]; `NotFound` if there is no such member.
    pub async fn replace_member(&self, medium: M, new: NewMember, old: Uuid) -> Result<()> {
        self.check_known(old)?;
        self.add(medium, new, Some(old)).await
    }

    async fn add(&self, medium: M, new: NewMember, replaces: Option<Uuid>) -> Result<()> {
        const INVALID: ErrorKind = ErrorKind::InvalidInput;
        ensure(self.layout == ArrayLayout::Mirror, INVALID, "the array is not a mirror")?;
        check_path(&new.path)?;
        self.check_room()?;
        self.clear_new_member(&medium).await?;
        // The drive may have grown meanwhile. From now on, this member grows with it.
        self.take_geometry(&medium)?;
        self.check_room()?;
        replaces.map_or(Ok(()), |old| self.check_known(old))?;
        let entry = ArrayMember {
            uuid: new.uuid,
            state: MemberState::Rebuilding,
            events: 0,
            first_segment: 0,
            segment_count: 0,
            path: new.path,
            replaces,
        };
        let is_new = self.members.borrow().iter().all(|member| member.entry.uuid != new.uuid);
        ensure(is_new, INVALID, "the array has this member")?;
        self.enlist(Member::new(entry, Some(Rc::new(medium))));
        self.note_change();
        self.save().await
    }

    /// Clears the superblocks of a medium that will become a member of a mirror. Success also shows
    /// that the medium answers.
    ///
    /// # Errors
    /// `InvalidInput` if the medium is too small; `Medium` if it fails, or does not answer in time.
    pub async fn clear_new_member(&self, medium: &M) -> Result<()> {
        self.take_geometry(medium)?;
        self.of_new_member(clear_superblocks(medium)).await?;
        self.of_new_member(medium.sync()).await
    }

    fn check_known(&self, uuid: Uuid) -> Result<()> {
        let is_known = self.members.borrow().iter().any(|member| member.entry.uuid == uuid);
        ensure(is_known, ErrorKind::NotFound, "the array has no such member")
    }

    fn check_room(&self) -> Result<()> {
        let is_room = self.members.borrow().len() < ARRAY_MEMBERS_MAX;
        let what = "an array has at most 8 members: remove one first";
        ensure(is_room, ErrorKind::InvalidInput, what)
    }

    /// Sets the geometry of the medium of a new member of a mirror to that of the drive.
    fn take_geometry(&self, medium: &M) -> Result<()> {
        let geometry = self.geometry.get();
        let geometry = geometry.or_error(ErrorKind::InvalidInput, "the array is not in use")?;
        medium.set_geometry(geometry)
    }

    /// Waits, within the limit, for an operation on a medium that is not a member yet.
    async fn of_new_member(&self, operation: impl Future<Output = Result<()>>) -> Result<()> {
        let what = "the new member does not answer";
        let ended = self.in_limit(operation).await;
        ended.unwrap_or_else(|| Err(Error::new(ErrorKind::Medium, what)))
    }

    /// Adds a member with `segment_count` segments at the end of a concatenation. The previous
    /// content of its medium is lost. When this returns, the drive can grow, and its next
    /// superblocks are also written to the new member.
    ///
    /// # Errors
    /// `InvalidInput` if the array is not a concatenation, or has too many members or segments;
    /// `Busy` if it was changed meanwhile. The array is unchanged in both cases. `Medium`: the
    /// medium may already be a member, without segments of the drive.
    pub async fn extend(&self, medium: M, new: NewMember) -> Result<()> {
        const INVALID: ErrorKind = ErrorKind::InvalidInput;
        ensure(self.layout == ArrayLayout::Concat, INVALID, "the array is not a concatenation")?;
        let geometry = self.geometry.get().or_error(INVALID, "the array is not in use")?;
        let (first, count) = self.last_segments();
        let entry = ArrayMember {
            uuid: new.uuid,
            state: MemberState::Active,
            events: 0,
            first_segment: first.saturating_add(count),
            segment_count: new.segment_count,
            path: new.path,
            replaces: None,
        };
        let member = Member::new(entry.clone(), Some(Rc::new(medium)));
        let mut header = self.header_of(entry.uuid);
        header.events += 1;
        header.members.push(entry);
        if let Some(what) = header.impossible() {
            return Err(Error::new(INVALID, what));
        }
        let medium = member.medium.clone().expect("a new member is present");
        medium.set_geometry(self.geometry_of(&member, geometry))?;
        self.of_new_member(clear_superblocks(&*medium)).await?;
        // This precedes the lists of the other members: they cannot be used without a member on
        // their list.
        self.of_new_member(write_header(&*medium, header.encode())).await?;
        let is_as_before = self.events.get() + 1 == header.events
            && self.geometry.get() == Some(geometry)
            && self.last_segments() == (first, count);
        ensure(is_as_before, ErrorKind::Busy, "the array was changed meanwhile: try again")?;
        self.enlist(member);
        self.note_change();
        self.save().await
    }

    /// Returns the first segment of the last member of a concatenation, and the number of its
    /// segments.
    pub fn last_segments(&self) -> (u32, u32) {
        let members = self.members.borrow();
        members.last().map_or((0, 0), |last| (last.entry.first_segment, last.entry.segment_count))
    }

    /// Checks that a member can leave a concatenation: it must be the last one of several.
    ///
    /// # Errors
    /// `InvalidInput`, with advice on how to proceed.
    pub fn check_last(&self, uuid: Uuid) -> Result<()> {
        const INVALID: ErrorKind = ErrorKind::InvalidInput;
        let members = self.members.borrow();
        ensure(members.len() > 1, INVALID, "it is the only member")?;
        let last = members.last().or_error(INVALID, "the array has no members")?;
        if last.entry.uuid == uuid {
            return Ok(());
        }
        let what = format!(
            "only the last member of a concatenation can be removed, which is {}: its segments \
             come last",
            last.entry.path
        );
        Err(Error::new(INVALID, what))
    }

    /// Returns whether a member with this path is in use.
    pub fn is_in_use(&self, path: &str) -> bool {
        let members = self.members.borrow();
        members.iter().any(|member| member.entry.path == path && member.medium.is_some())
    }

    /// Returns whether a member is being rebuilt.
    pub fn is_rebuilding(&self) -> bool {
        !self.rebuilding().is_empty()
    }

    /// Sets the number of bytes to copy.
    pub fn begin_progress(&self, total_bytes: u64) {
        self.progress.set(RebuildProgress { copied_bytes: 0, total_bytes });
    }

    fn rebuilding(&self) -> Vec<Target<M>> {
        let members = self.members.borrow();
        let rebuilding = |member: &&Member<M>| member.entry.state == MemberState::Rebuilding;
        members.iter().filter(rebuilding).filter_map(Member::target).collect()
    }

    /// Records that members are being rebuilt, until the guard is dropped; `None` if a rebuild is
    /// already in progress.
    pub fn begin_copying(&self) -> Option<Copying<'_, M>> {
        // Not `then_some`: a guard that is made in vain would end the work of the other one.
        (!self.is_copying.replace(true)).then(|| Copying(self))
    }

    /// Copies a range of a segment to the members that are being rebuilt. The caller must prevent a
    /// discard of the segment. Calls `show` with the copied bytes and their offset, in order,
    /// without pieces that cannot be read. A member that cannot be written is marked out.
    ///
    /// # Errors
    /// `Medium` if the list of members cannot be stored.
    pub async fn copy(
        &self,
        segment: SegmentId,
        range: Range<u32>,
        show: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<()> {
        let pieces = range.clone().step_by(PIECE_BYTES as usize);
        let copies = pieces.map(|from| async move {
            let piece = from..range.end.min(from.saturating_add(PIECE_BYTES));
            if !self.is_rebuilding() {
                return Ok(None);
            }
            let _piece = self.enter_copy(segment, piece.clone()).await;
            let bytes = u64::from(piece.end - piece.start);
            let copied = self.copy_piece(segment, piece.clone()).await?;
            let copied = match copied {
                Ok(copied) => Some((from, copied)),
                Err(_) => {
                    self.copy_pages(segment, piece).await?;
                    None
                }
            };
            let progress = self.progress.get();
            let copied_bytes = progress.copied_bytes + bytes;
            let total_bytes = progress.total_bytes.max(copied_bytes);
            self.progress.set(RebuildProgress { copied_bytes, total_bytes });
            Ok(copied)
        });
        let mut copies = iter(copies).buffered(PIECES_AT_ONCE);
        while let Some(copied) = copies.next().await {
            if let Some((from, bytes)) = copied? {
                show(from, &bytes);
            }
        }
        Ok(())
    }

    /// Copies the readable pages of a piece. The unreadable ones are no worse on the new member.
    async fn copy_pages(&self, segment: SegmentId, piece: Range<u32>) -> Result<()> {
        for from in piece.step_by(PAGE_BYTES as usize) {
            if let Err(error) = self.copy_piece(segment, from..from + PAGE_BYTES).await? {
                tracing::warn!(
                    %segment,
                    offset = from,
                    error = %error.chain(),
                    "a page cannot be read on any member, and is missing on the new one"
                );
            }
        }
        Ok(())
    }

    /// Copies a piece in one step. Returns its bytes, or the reason why it cannot be read.
    async fn copy_piece(
        &self,
        segment: SegmentId,
        piece: Range<u32>,
    ) -> Result<Result<Arc<AlignedBuffer>>> {
        assert!(piece.len() <= PIECE_BYTES as usize, "no more than a piece is copied in one step");
        let buffer = AlignedBuffer::zeroed(piece.len());
        let (bytes, read) = self.read_mirrored(segment, piece.start, buffer).await;
        if let Err(error) = read {
            return Ok(Err(error));
        }
        let bytes = Arc::new(bytes);
        let targets = self.rebuilding();
        let write = |medium: Rc<M>| {
            let bytes = bytes.clone();
            async move { medium.append(segment, piece.start, bytes).await }
        };
        for (target, written) in targets.iter().zip(self.on_each(&targets, write).await) {
            if let Err(error) = written {
                self.leave_out(target.uuid, &error);
            }
        }
        self.save().await?;
        Ok(Ok(bytes))
    }

    async fn enter_copy(&self, segment: SegmentId, piece: Range<u32>) -> Piece<'_, M> {
        let copy = (segment, piece);
        self.copying.borrow_mut().push(copy.clone());
        let copying = Piece { array: self, copy: copy.clone() };
        let is_clear = || {
            let appends = self.appends.borrow();
            (!appends.iter().any(|append| overlap(append, &copy))).then_some(())
        };
        self.cleared.wait_for(is_clear).await;
        copying
    }

    /// Makes the members that are being rebuilt active. The caller has copied everything in use to
    /// them and written the superblocks. The members that they replace leave the array.
    ///
    /// # Errors
    /// `Medium` if no member could be rebuilt.
    pub async fn finish_rebuild(&self) -> Result<()> {
        self.sync().await?;
        let (mut has_finished, mut replaced) = (false, Vec::new());
        for member in self.members.borrow_mut().iter_mut() {
            if member.entry.state == MemberState::Rebuilding && member.medium.is_some() {
                member.entry.state = MemberState::Active;
                replaced.extend(member.entry.replaces.take());
                has_finished = true;
                tracing::info!(member = %member.entry.path, "a member of the array is rebuilt");
            }
        }
        self.progress.set(RebuildProgress::default());
        let what = "the new member failed while it was being rebuilt";
        ensure(has_finished, ErrorKind::Medium, what)?;
        let removed: Vec<_> = {
            let mut members = self.members.borrow_mut();
            let is_replaced = |uuid: &Uuid| replaced.contains(uuid);
            members.iter_mut().for_each(|member| {
                member.entry.replaces.take_if(|old| is_replaced(old));
            });
            members.extract_if(.., |member| is_replaced(&member.entry.uuid)).collect()
        };
        assert!(self.has_complete(), "a member that is rebuilt has everything");
        self.note_change();
        self.save().await?;
        for member in &removed {
            self.in_limit(forget(member)).await;
        }
        Ok(())
    }

    /// Removes a member of a mirror, or the last member of a concatenation if it has no segments of
    /// the drive.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if it is the last complete member, or has segments of the drive.
    /// The array is unchanged then.
    pub async fn remove_member(&self, uuid: Uuid) -> Result<()> {
        const INVALID: ErrorKind = ErrorKind::InvalidInput;
        if self.layout == ArrayLayout::Concat {
            self.check_last(uuid)?;
            let segments = self.geometry.get().map_or(u32::MAX, |geometry| geometry.segment_count);
            let is_empty = segments <= self.last_segments().0;
            ensure(is_empty, INVALID, "it has segments of the drive: shrink the drive first")?;
        }
        let removed;
        {
            let mut members = self.members.borrow_mut();
            let at = members.iter().position(|member| member.entry.uuid == uuid);
            let at = at.or_error(ErrorKind::NotFound, "the array has no such member")?;
            let mut others = members.iter().enumerate().filter(|(index, _)| *index != at);
            let is_safe = others.any(|(_, member)| member.is_readable());
            let what = "it is the only member that has everything: add another one first";
            ensure(is_safe, INVALID, what)?;
            removed = members.remove(at);
            members.iter_mut().for_each(|member| {
                member.entry.replaces.take_if(|old| *old == uuid);
            });
        }
        self.note_change();
        self.save().await?;
        self.in_limit(forget(&removed)).await;
        Ok(())
    }

    /// Stops using a member, which stays in the list, marked out.
    ///
    /// # Errors
    /// The errors of [`Array::remove_member`].
    pub async fn fail_member(&self, uuid: Uuid) -> Result<()> {
        const INVALID: ErrorKind = ErrorKind::InvalidInput;
        ensure(self.layout == ArrayLayout::Mirror, INVALID, "the array is not a mirror")?;
        {
            let members = self.members.borrow();
            let is_known = members.iter().any(|member| member.entry.uuid == uuid);
            ensure(is_known, ErrorKind::NotFound, "the array has no such member")?;
            let mut others = members.iter().filter(|member| member.entry.uuid != uuid);
            let what = "it is the only member that has everything: add another one first";
            ensure(others.any(Member::is_readable), INVALID, what)?;
        }
        self.leave_out(uuid, &Error::new(ErrorKind::Medium, "it was declared failed"));
        self.save().await
    }

    /// Returns the member at a path that is being rebuilt to replace `replaced`, or as an
    /// additional member if `replaced` is `None`.
    pub fn rebuilding_at(&self, path: &str, replaced: Option<Uuid>) -> Option<Uuid> {
        let members = self.members.borrow();
        let found = members.iter().find(|member| {
            member.entry.path == path
                && member.entry.state == MemberState::Rebuilding
                && member.entry.replaces == replaced
                && member.medium.is_some()
        });
        found.map(|member| member.entry.uuid)
    }

    /// Returns the members that become obsolete through a new one at a path that replaces
    /// `replaced`: a member that is out at that path, and an incomplete replacement of the same
    /// member.
    pub fn superseded(&self, path: &str, replaced: Option<Uuid>) -> Vec<Uuid> {
        let members = self.members.borrow();
        let is_superseded = |member: &&Member<M>| {
            let entry = &member.entry;
            let is_out = entry.state == MemberState::Out && entry.path == path;
            is_out || replaced.is_some() && entry.replaces == replaced
        };
        members.iter().filter(is_superseded).map(|member| member.entry.uuid).collect()
    }

    /// Returns the member at a path.
    ///
    /// # Errors
    /// `NotFound`, with the paths of the members.
    pub fn member_at(&self, path: &str) -> Result<Uuid> {
        let members = self.members.borrow();
        let found = members.iter().find(|member| member.entry.path == path);
        found.map(|member| member.entry.uuid).ok_or_else(|| {
            let paths: Vec<&str> = members.iter().map(|member| &*member.entry.path).collect();
            let what = format!("{path} is not a member: the members are {}", paths.join(", "));
            Error::new(ErrorKind::NotFound, what)
        })
    }
}

/// Overwrites the superblocks of a new member.
async fn clear_superblocks<M: Medium>(medium: &M) -> Result<()> {
    for slot in 0..SUPERBLOCK_SLOTS {
        medium.write_superblock(slot, AlignedBuffer::zeroed(SUPERBLOCK_BYTES)).await?;
    }
    Ok(())
}

/// Overwrites headers and superblocks of a removed member, so that it is not mistaken for a part of
/// the drive. If that fails, or the member does not answer, the headers of the other members
/// exclude it.
async fn forget<M: Medium>(member: &Member<M>) {
    let Some(medium) = &member.medium else { return };
    for slot in (0..SLOTS).rev() {
        let zeroes = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        if medium.write_superblock(slot, zeroes).await.is_err() {
            return;
        }
    }
    let _ = medium.sync().await;
}

/// A piece that is being copied.
struct Piece<'a, M> {
    array: &'a Array<M>,
    copy: Place,
}

impl<M> Drop for Piece<'_, M> {
    fn drop(&mut self) {
        remove(&self.array.copying, &self.copy);
        self.array.cleared.wake_all();
    }
}

/// A rebuild in progress.
pub struct Copying<'a, M>(&'a Array<M>);

impl<M> Drop for Copying<'_, M> {
    fn drop(&mut self) {
        assert!(self.0.is_copying.replace(false), "the rebuilding of members ends once");
    }
}

const _: () = assert!(PIECE_BYTES.is_multiple_of(PAGE_BYTES), "pieces are whole pages");
