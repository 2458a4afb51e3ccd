//! The members of an array: their states, and how the states are stored.
//!
//! ```text
//! a write fails on B -> B is out, in memory -> events + 1 -> header on all others: copy 1, sync,
//!                                                            copy 2, sync -> the write counts
//! ```
//!
//! No operation counts before the header is stored, so a cancelled write is harmless: the next
//! write stores the list.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use uuid::Uuid;

use super::{Array, MemberInfo, MemberStatus};
use crate::base::{AlignedBuffer, Error, ErrorKind, Result};
use crate::format::{ArrayHeader, ArrayLayout, ArrayMember, MemberState};
use crate::media::{CopyId, Medium, SLOTS, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};

/// A member of an array.
pub(super) struct Member<M> {
    pub(super) entry: ArrayMember,
    /// See [`Array::enlist`].
    pub(super) copy: CopyId,
    /// `None` if it is absent, or out.
    pub(super) medium: Option<Rc<M>>,
    /// Weight of the reads in progress.
    pub(super) load: Rc<Cell<u64>>,
    pub(super) read_errors: Cell<u64>,
    pub(super) repaired: Cell<u64>,
    /// The reason why it is out.
    pub(super) error: Option<String>,
}

impl<M> Member<M> {
    pub(super) fn new(entry: ArrayMember, medium: Option<Rc<M>>) -> Self {
        Self {
            entry,
            copy: CopyId::default(),
            medium,
            load: Rc::default(),
            read_errors: Cell::default(),
            repaired: Cell::default(),
            error: None,
        }
    }

    /// Returns whether the member is present and complete.
    pub(super) fn is_readable(&self) -> bool {
        self.entry.state == MemberState::Active && self.medium.is_some()
    }

    /// Returns the member as a target of operations, if it is in use.
    pub(super) fn target(&self) -> Option<Target<M>> {
        Some(Target {
            uuid: self.entry.uuid,
            medium: self.medium.clone()?,
            load: self.load.clone(),
        })
    }

    pub(super) fn info(&self) -> MemberInfo {
        MemberInfo {
            uuid: self.entry.uuid,
            copy: self.copy,
            path: self.entry.path.clone(),
            state: match self.entry.state {
                MemberState::Active => MemberStatus::Online,
                MemberState::Rebuilding => MemberStatus::Rebuilding,
                MemberState::Out => MemberStatus::Out,
            },
            read_errors: self.read_errors.get(),
            repaired: self.repaired.get(),
            error: self.error.clone(),
        }
    }
}

/// A member that participates in an operation.
pub(super) struct Target<M> {
    pub(super) uuid: Uuid,
    pub(super) medium: Rc<M>,
    pub(super) load: Rc<Cell<u64>>,
}

impl<M> Clone for Target<M> {
    fn clone(&self) -> Self {
        Self { uuid: self.uuid, medium: self.medium.clone(), load: self.load.clone() }
    }
}

/// A read in progress.
pub(super) struct Load<'a> {
    load: &'a Cell<u64>,
    weight: u64,
}

impl<'a> Load<'a> {
    pub(super) fn new(load: &'a Cell<u64>, weight: u64) -> Self {
        load.set(load.get() + weight);
        Self { load, weight }
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        let rest = self.load.get().checked_sub(self.weight);
        self.load.set(rest.expect("a read under way is counted"));
    }
}

impl<M: Medium> Array<M> {
    /// Returns the members that writes go to.
    pub(super) fn targets(&self) -> Vec<Target<M>> {
        self.members.borrow().iter().filter_map(Member::target).collect()
    }

    /// Returns the first active member that was not tried.
    pub(super) fn choose_first(&self, tried: &[Uuid]) -> Option<Target<M>> {
        let members = self.members.borrow();
        let mut untried = members.iter().filter(|member| !tried.contains(&member.entry.uuid));
        untried.find(|member| member.is_readable()).and_then(Member::target)
    }

    /// Returns whether a member is in use.
    pub(super) fn is_used(&self, target: &Target<M>) -> bool {
        let members = self.members.borrow();
        members.iter().any(|member| member.entry.uuid == target.uuid && member.medium.is_some())
    }

    /// Returns whether several members are complete.
    pub(super) fn has_copies(&self) -> bool {
        let members = self.members.borrow();
        self.layout == ArrayLayout::Mirror
            && members.iter().filter(|member| member.is_readable()).count() > 1
    }

    /// Whether at least one member is complete, which every change of the list preserves.
    pub(super) fn has_complete(&self) -> bool {
        self.members.borrow().iter().any(Member::is_readable)
    }

    pub(super) fn is_active(&self, uuid: Uuid) -> bool {
        let members = self.members.borrow();
        members.iter().any(|member| member.entry.uuid == uuid && member.is_readable())
    }

    /// Counts a read that failed. Only the first failure of a member is logged.
    pub(super) fn note_read_error(&self, uuid: Uuid, error: &Error) {
        let members = self.members.borrow();
        let Some(member) = members.iter().find(|member| member.entry.uuid == uuid) else { return };
        if member.read_errors.replace(member.read_errors.get() + 1) == 0 {
            tracing::warn!(
                member = %member.entry.path,
                error = %error.chain(),
                "a member of the array cannot be read: reading from another"
            );
        }
    }

    /// Combines the results of a write on all targets into its outcome. If a target failed while an
    /// active one succeeded, the failed one is durably marked out when this returns.
    pub(super) async fn settle(
        &self,
        targets: &[Target<M>],
        results: Vec<Result<()>>,
    ) -> Result<()> {
        assert_eq!(targets.len(), results.len(), "each member has an outcome");
        let (mut is_written, mut full, mut failures) = (false, None, Vec::new());
        for (target, result) in targets.iter().zip(results) {
            let is_active = self.is_active(target.uuid);
            match result {
                Ok(()) => is_written |= is_active,
                // The drive repeats the write on all members, since each of the others may lack
                // space as well.
                Err(error) if error.kind() == ErrorKind::NoSpace && is_active => {
                    full.get_or_insert(error);
                }
                Err(error) => failures.push((target.uuid, error)),
            }
        }
        if let Some(full) = full {
            return Err(full);
        }
        if !is_written || self.layout == ArrayLayout::Concat {
            let first = failures.into_iter().map(|(_, error)| error).next();
            let absent = || Error::new(ErrorKind::Medium, "no member of the array is in use");
            return match first {
                None if is_written => Ok(()),
                first => Err(first.unwrap_or_else(absent)),
            };
        }
        for (uuid, error) in &failures {
            self.leave_out(*uuid, error);
        }
        self.save().await
    }

    /// Marks a member out, in memory.
    pub(super) fn leave_out(&self, uuid: Uuid, error: &Error) {
        if self.layout == ArrayLayout::Concat {
            // No other member has its segments, so the operation fails and the member remains.
            return;
        }
        let events = self.events.get();
        let mut members = self.members.borrow_mut();
        let Some(member) = members.iter_mut().find(|member| member.entry.uuid == uuid) else {
            return;
        };
        if member.medium.take().is_none() {
            return;
        }
        tracing::warn!(
            member = %member.entry.path,
            error = %error.chain(),
            "a member of the array failed and is out: the array is degraded"
        );
        member.entry.state = MemberState::Out;
        member.entry.events = events;
        member.error = Some(error.chain());
        drop(members);
        assert!(self.has_complete(), "the last member with everything stays");
        self.note_change();
    }

    /// Records that the list of members differs from the stored list.
    pub(super) fn note_change(&self) {
        self.events.set(self.events.get() + 1);
        self.is_unsaved.set(true);
    }

    /// Stores the list of members durably on all members in use, if the list has changed.
    ///
    /// # Errors
    /// `Medium` if no active member can store it.
    pub(super) async fn save(&self) -> Result<()> {
        if !self.is_unsaved.get() || self.is_read_only {
            return Ok(());
        }
        let _turn = self.saving.turn().await;
        while self.is_unsaved.get() {
            let events = self.events.get();
            let targets = self.targets();
            let headers: Vec<_> = targets.iter().map(|target| target.uuid).collect();
            let headers = headers.into_iter().map(|own| self.header_of(own).encode());
            let headers = RefCell::new(headers.collect::<Vec<_>>().into_iter());
            let write = |medium: Rc<M>| {
                let bytes = headers.borrow_mut().next().expect("a header for each");
                async move { write_header(&*medium, bytes).await }
            };
            let results = self.on_each(&targets, write).await;
            let is_stored = |(target, result): (&Target<M>, &Result<()>)| {
                result.is_ok() && self.is_active(target.uuid)
            };
            let is_any_stored = targets.iter().zip(&results).any(is_stored);
            for (target, result) in targets.iter().zip(results) {
                let Err(error) = result else { continue };
                if !is_any_stored || self.layout == ArrayLayout::Concat {
                    return Err(error);
                }
                self.leave_out(target.uuid, &error);
            }
            assert!(self.events.get() >= events, "the number of events only grows");
            // Otherwise another member has failed in the meantime.
            if self.events.get() == events {
                self.is_unsaved.set(false);
            }
        }
        Ok(())
    }

    pub(super) fn header_of(&self, own: Uuid) -> ArrayHeader {
        let members = self.members.borrow();
        ArrayHeader {
            array: self.uuid,
            own,
            events: self.events.get(),
            layout: self.layout,
            members: members.iter().map(|member| member.entry.clone()).collect(),
        }
    }
}

/// Writes the two copies of a header one after the other, so that one of them is always valid.
pub(super) async fn write_header<M: Medium>(
    medium: &M,
    bytes: [u8; SUPERBLOCK_BYTES],
) -> Result<()> {
    for slot in SUPERBLOCK_SLOTS..SLOTS {
        let mut buffer = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        buffer.copy_from_slice(&bytes);
        medium.write_superblock(slot, buffer).await?;
        medium.sync().await?;
    }
    Ok(())
}
