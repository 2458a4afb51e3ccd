//! Following a drive that another machine writes: finds the next image after the present one.
//!
//! ```text
//! is there claims/E+1, commits/E/N+1, or the next commit of E that is kept?
//!   yes -> the newest commit F -> claims/F+1 does not exist -> F counts: its image
//! ```
//!
//! A commit counts if the next claim does not exist after the commit was found: a machine that
//! makes that claim later finds the commit. A commit of a fenced writer may not count, and is never
//! shown: its changes could be missing from all later ones.
//!
//! Sends three requests while nothing has changed, and writes nothing.

use std::rc::Rc;

use super::commits::KEPT_EVERY;
use super::history::Newest;
use super::object::{Chunk, CommitId, EPOCH_MAX, NUMBER_MAX, claim_name};
use super::store::Store;
use super::view::{ATTEMPTS, BucketView, newest_of};
use crate::base::{AlignedBuffer, Clock, Result};

impl<S: Store, C: Clock> BucketView<S, C> {
    /// Returns the newest image, without keys, if it is newer than this one and its commit
    /// certainly counts. Waits while the store does not answer. Both images share the line cache
    /// and the client of the store.
    ///
    /// # Errors
    /// `Corrupt` if the newest commit is damaged; `Unsupported`.
    pub async fn newer(&self) -> Result<Option<Self>> {
        if !self.may_be_newer().await? {
            return Ok(None);
        }
        let is_newer = |newest: &Newest| newest.id > self.newest.id;
        let Some(newest) = self.counted().await?.filter(is_newer) else { return Ok(None) };
        let reading = self.reading.for_another();
        let newer = Self::of(self.store.clone(), self.drive, newest, reading);
        Ok(Some(Self { place: self.place.clone(), ..newer }))
    }

    /// Returns whether an object that the image refers to is no longer in the bucket: a newer image
    /// then exists, or soon will.
    pub fn is_stale(&self) -> bool {
        self.is_stale.get()
    }

    /// Reads bytes of deleted chunks of this image from the chunks of a later image with the same
    /// use: the bytes of a use never change, and the writer has uploaded them again in longer
    /// chunks. Returns whether they were found.
    pub(super) async fn read_later(
        &self,
        place: (u32, u64),
        chunks: &[Chunk],
        offset: u32,
        buffer: &mut AlignedBuffer,
    ) -> bool {
        let mut later = self.later.borrow().clone();
        for _ in 0..ATTEMPTS {
            let is_fresh = later.is_none();
            let image = match later.take() {
                Some(image) => image,
                None => match self.counted().await {
                    Ok(Some(image)) => Rc::new(image),
                    Ok(None) | Err(_) => break,
                },
            };
            *self.later.borrow_mut() = Some(image.clone());
            let entry = image.index.get(&place.0).filter(|entry| entry.use_id == place.1);
            let Some(entry) = entry else {
                // The use has ended: its bytes are lost.
                if is_fresh {
                    break;
                }
                continue;
            };
            let mut whole = AlignedBuffer::zeroed(buffer.len());
            let read = self.reading.read(&self.store, place, &entry.chunks, offset, &mut whole);
            if read.await.is_ok() {
                take_part(chunks, offset, &whole, buffer);
                return true;
            }
        }
        self.is_stale.set(true);
        false
    }

    /// Returns the newest image if it is certain that its commit counts.
    async fn counted(&self) -> Result<Option<Newest>> {
        let newest = newest_of(&self.store, &self.drive).await?;
        let is_certain = !self.store.exists(&claim_name(newest.id.epoch + 1)).await?;
        Ok(Some(newest).filter(|_| is_certain))
    }

    /// Returns whether a newer commit may exist.
    async fn may_be_newer(&self) -> Result<bool> {
        let CommitId { epoch, number } = self.newest.id;
        let kept = (number / KEPT_EVERY + 1) * KEPT_EVERY;
        assert!(kept > number, "the next commit that is kept comes later");
        // If there are many later commits, the next one may have been deleted, but not the next
        // retained one.
        for number in [number + 1, kept] {
            let id = CommitId { epoch, number };
            if number <= NUMBER_MAX && self.store.exists(&id.name()).await? {
                return Ok(true);
            }
        }
        Ok(epoch < EPOCH_MAX && self.store.exists(&claim_name(epoch + 1)).await?)
    }
}

/// Copies the bytes from `offset` of a segment that are in chunks, and zeroes the rest.
fn take_part(chunks: &[Chunk], offset: u32, whole: &[u8], part: &mut [u8]) {
    assert_eq!(whole.len(), part.len(), "both are bytes of the same range");
    part.fill(0);
    for chunk in chunks {
        let from = chunk.offset.saturating_sub(offset) as usize;
        let to = (chunk.end().saturating_sub(offset) as usize).min(whole.len());
        if let (Some(source), Some(target)) = (whole.get(from..to), part.get_mut(from..to)) {
            target.copy_from_slice(source);
        }
    }
}
