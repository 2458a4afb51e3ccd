//! A drive in a bucket, opened for reading in the state of its newest commit, without a claim or a
//! journal.

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use super::Status;
use super::history::{self, Newest};
use super::object::{DriveObject, Entry};
use super::reading::Reading;
use super::store::{Patience, Patient, Store};
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result, SegmentId};
use crate::crypt::Cipher;
use crate::media::{Capabilities, Geometry, Medium, Remote};

/// Number of searches for the newest commit, while a writer makes newer ones.
pub(super) const ATTEMPTS: u32 = 4;

/// The newest image of a drive in a bucket. Refuses writes. If the drive is open for writing,
/// objects that the image refers to may be deleted meanwhile. Bytes that have become part of a
/// longer chunk are read from that chunk. Other reads then fail, and [`newer`](BucketView::newer)
/// returns the image to continue with.
pub struct BucketView<S, C> {
    /// The location of the bucket, for messages.
    pub place: String,
    pub(super) store: Rc<Patient<S, C>>,
    pub(super) drive: DriveObject,
    pub(super) newest: Newest,
    pub(super) reading: Rc<Reading>,
    pub(super) cipher: Cipher,
    /// A later image, for chunks that the writer has replaced by longer ones.
    pub(super) later: RefCell<Option<Rc<Newest>>>,
    /// Whether bytes that the image refers to are no longer in the bucket.
    pub(super) is_stale: Cell<bool>,
}

impl<S: Store, C: Clock> BucketView<S, C> {
    /// Opens the newest image.
    ///
    /// # Errors
    /// `NotFound` if there is no drive; `Corrupt`, `Unsupported`; errors of the store.
    pub async fn open(store: S, clock: C) -> Result<Self> {
        let store = Rc::new(Patient::new(store, clock));
        let drive = history::drive(&store).await?;
        let newest = newest_of(&store, &drive).await?;
        store.set_patience(Patience::Endless);
        Ok(Self::of(store, drive, newest, Reading::new()))
    }

    pub(super) fn of(
        store: Rc<Patient<S, C>>,
        drive: DriveObject,
        newest: Newest,
        reading: Rc<Reading>,
    ) -> Self {
        let (cipher, later, is_stale) = (Cipher::default(), RefCell::default(), Cell::default());
        let place = String::new();
        Self { place, store, drive, newest, reading, cipher, later, is_stale }
    }

    /// Sets the keys of the drive.
    pub fn set_cipher(&mut self, cipher: Cipher) {
        self.cipher = cipher;
    }

    /// Returns the bytes of a segment.
    pub fn segment_bytes(&self) -> u32 {
        self.drive.segment_bytes
    }

    /// Returns the bytes of the drive that are in the bucket.
    pub fn stored_bytes(&self) -> u64 {
        self.newest.index.values().map(Entry::bytes).sum()
    }

    /// Returns the names and lengths of the chunks that the image refers to.
    pub fn chunks(&self) -> impl Iterator<Item = (String, u64)> {
        self.newest.index.iter().flat_map(|(&segment, entry)| {
            let name = move |chunk: &super::object::Chunk| chunk.name(segment, entry.use_id);
            entry.chunks.iter().map(move |chunk| (name(chunk), u64::from(chunk.bytes)))
        })
    }

    /// Returns epoch and number of the commit.
    pub fn commit(&self) -> (u32, u64) {
        (self.newest.id.epoch, self.newest.id.number)
    }
}

/// Returns the newest image of a drive that may be written meanwhile.
///
/// # Errors
/// The errors of [`history::newest_commit`].
pub(super) async fn newest_of<S: Store, C: Clock>(
    store: &Patient<S, C>,
    drive: &DriveObject,
) -> Result<Newest> {
    let mut attempts = 0;
    loop {
        let claim = history::newest_claim(store, drive).await?;
        let found = history::newest_commit(store, drive, claim.epoch).await;
        attempts += 1;
        // The writer deletes commits that are no longer needed.
        match found {
            Err(error) if error.kind() == ErrorKind::Corrupt && attempts < ATTEMPTS => {}
            found => return found,
        }
    }
}

fn refused() -> Error {
    Error::new(ErrorKind::ReadOnly, "the drive in the bucket is open for reading")
}

impl<S: Store, C: Clock> Medium for BucketView<S, C> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        super::check_geometry(geometry, self.drive.segment_bytes)
    }

    async fn append(&self, _: SegmentId, _: u32, _: Arc<AlignedBuffer>) -> Result<()> {
        Err(refused())
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        mut buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let Some(entry) = self.newest.index.get(&segment.0) else {
            buffer.fill(0);
            return (buffer, Ok(()));
        };
        let place = (segment.0, entry.use_id);
        let read = self.reading.read(&self.store, place, &entry.chunks, offset, &mut buffer).await;
        let read = match read {
            Err(error) if self.reading.has_missed() => {
                let later = self.read_later(place, &entry.chunks, offset, &mut buffer).await;
                if later { Ok(()) } else { Err(error) }
            }
            read => read,
        };
        (buffer, read.map_err(|error| error.in_segment(segment).at_offset(offset.into())))
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: SegmentId) -> Result<()> {
        Err(refused())
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        Ok(super::superblock(&self.newest.superblocks, slot))
    }

    async fn write_superblock(&self, _: u32, _: AlignedBuffer) -> Result<()> {
        Err(refused())
    }

    fn as_remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }
}

impl<S: Store, C: Clock> Remote for BucketView<S, C> {
    fn status(&self) -> Status {
        Status {
            place: self.place.clone(),
            stored_bytes: self.stored_bytes(),
            epoch: self.newest.id.epoch,
            commit: self.newest.id.number,
            requests: self.store.requests(),
            damaged_object: self.reading.damaged_object(),
            trouble: self.store.trouble(),
            ..Status::default()
        }
    }

    fn ending(&self) {
        // Another image of the drive may still use the store.
        if Rc::strong_count(&self.store) == 1 {
            self.store.begin_ending();
        }
    }

    fn finish(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(ready(Ok(())))
    }
}
