//! Overwriting damaged bytes of one member with verified bytes.
//!
//! ```text
//! verified          |---- record ----|
//! member    |  page     |  page     |  page     |   read; other bytes stay as they are
//! ```
//!
//! The pages around a record hold other records, which may be damaged on the member that has this
//! one intact. Therefore only verified bytes are copied from one member to another, unless a page
//! cannot be read at all.

use std::sync::Arc;

use super::patience::no_answer;
use super::{Array, Target};
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::format::ArrayLayout;
use crate::media::Medium;

/// The unit in which members are overwritten.
const PAGE_BYTES: usize = 4096;

/// Attempts to read a page before it counts as unreadable.
const READS_MAX: usize = 3;

impl<M: Medium> Array<M> {
    pub(super) async fn repair_mirrored(
        &self,
        segment: SegmentId,
        offset: u32,
        bytes: &[u8],
    ) -> Result<u32> {
        if self.layout == ArrayLayout::Concat || self.is_read_only || bytes.is_empty() {
            return Ok(0);
        }
        // Two repairs of the same page would undo each other.
        let _turn = self.repairing.turn().await;
        let mut repaired = 0;
        for target in self.targets() {
            if self.repair_member(&target, segment, offset, bytes).await? {
                repaired += 1;
                self.note_repair(&target, segment, offset);
            }
        }
        Ok(repaired)
    }

    /// Repairs one member. Returns whether it was damaged.
    async fn repair_member(
        &self,
        target: &Target<M>,
        segment: SegmentId,
        offset: u32,
        bytes: &[u8],
    ) -> Result<bool> {
        let start = offset as usize / PAGE_BYTES * PAGE_BYTES;
        let end = (offset as usize + bytes.len()).next_multiple_of(PAGE_BYTES);
        let at = offset as usize - start;
        // A concurrent copy to these pages would be undone.
        let _append = self.enter_append((segment, len_u32(start)..len_u32(end))).await;
        let mut pages = AlignedBuffer::zeroed(end - start);
        assert!(at + bytes.len() <= pages.len(), "bytes are repaired within their pages");
        let mut is_damaged = false;
        for from in (0..pages.len()).step_by(PAGE_BYTES) {
            let place = len_u32(start + from);
            let page = match self.read_page(target, segment, place).await {
                Ok(page) => page,
                Err(_) => {
                    is_damaged = true;
                    self.page_of_another(target, segment, place).await
                }
            };
            let (_, rest) = pages.split_at_mut(from);
            let (here, _) = rest.split_at_mut(PAGE_BYTES);
            here.copy_from_slice(&page);
        }
        let (_, rest) = pages.split_at_mut(at);
        let (stored, _) = rest.split_at_mut(bytes.len());
        if !is_damaged && *stored == *bytes {
            return Ok(false);
        }
        stored.copy_from_slice(bytes);
        if !self.is_used(target) {
            // The member was marked out when it was read.
            return Ok(false);
        }
        let (start, pages) = (len_u32(start), Arc::new(pages));
        let append = || target.medium.append(segment, start, pages.clone());
        let written = match self.in_time(append()).await {
            Some(written) => written,
            None if self.has_another_answer(target, segment, start, pages.len()).await => {
                Err(no_answer())
            }
            None => append().await,
        };
        if let Err(error) = written {
            let others = self.targets().into_iter().filter(|other| other.uuid != target.uuid);
            let others: Vec<Target<M>> = others.collect();
            if others.is_empty() {
                return Err(error);
            }
            // The others count as successful: they have the bytes, or receive them next.
            let results = others.iter().map(|_| Ok(())).chain([Err(error)]).collect();
            let targets: Vec<Target<M>> = others.into_iter().chain([target.clone()]).collect();
            self.settle(&targets, results).await?;
        }
        Ok(true)
    }

    /// Returns the page of another member, or zeroes if no other member can read it.
    async fn page_of_another(
        &self,
        target: &Target<M>,
        segment: SegmentId,
        offset: u32,
    ) -> AlignedBuffer {
        let mut tried = vec![target.uuid];
        while let Some(other) = self.choose_first(&tried) {
            tried.push(other.uuid);
            if let Ok(page) = self.read_page(&other, segment, offset).await {
                return page;
            }
        }
        AlignedBuffer::zeroed(PAGE_BYTES)
    }

    fn note_repair(&self, target: &Target<M>, segment: SegmentId, offset: u32) {
        let members = self.members.borrow();
        let Some(member) = members.iter().find(|member| member.entry.uuid == target.uuid) else {
            return;
        };
        member.repaired.set(member.repaired.get() + 1);
        tracing::info!(
            member = %member.entry.path,
            %segment,
            offset,
            "a damaged range of a member was overwritten with intact data"
        );
    }

    async fn read_page(
        &self,
        target: &Target<M>,
        segment: SegmentId,
        offset: u32,
    ) -> Result<AlignedBuffer> {
        let mut attempts = 1;
        loop {
            let buffer = AlignedBuffer::zeroed(PAGE_BYTES);
            let (page, result) = self.read_one(target, segment, offset, buffer).await;
            match result {
                Ok(()) => return Ok(page),
                Err(error) if attempts == READS_MAX || !self.is_used(target) => return Err(error),
                Err(_) => attempts += 1,
            }
        }
    }
}
