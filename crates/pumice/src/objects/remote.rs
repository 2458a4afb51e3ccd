//! The medium of a drive in a bucket: with its journal, or the bucket alone, for reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{BucketPlace, S3};
use crate::environment::new_identity;
use pumice_drive::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId};
use pumice_drive::crypt::Cipher;
use pumice_drive::media::file::FileMedium;
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::tier::{BucketView, Durable, Options, Status, Tier};
use pumice_drive::media::{Capabilities, Geometry, Medium};
use pumice_drive::runtime::Runtime;

/// A drive in a bucket.
pub(crate) enum Remote {
    /// A journal, and the bucket that it names.
    Journal(Tier<FileMedium, S3, Runtime>),
    /// A journal in memory, and the place of the bucket, which has all flushed data.
    Diskless(Tier<MemMedium, S3, Runtime>, PathBuf),
    /// A bucket, for reading, and its place.
    Bucket(BucketView<S3, Runtime>, PathBuf),
}

/// Passes a call on to the medium.
macro_rules! on {
    ($remote:expr, $medium:ident => $call:expr) => {
        match $remote {
            Remote::Journal($medium) => $call,
            Remote::Diskless($medium, _) => $call,
            Remote::Bucket($medium, _) => $call,
        }
    };
}

impl Remote {
    /// Returns the local file, if there is one.
    pub(crate) fn journal(&self) -> Option<&FileMedium> {
        match self {
            Self::Journal(tier) => Some(tier.journal()),
            Self::Diskless(..) | Self::Bucket(..) => None,
        }
    }

    /// Returns the path with which the drive was opened.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Journal(tier) => tier.journal().path(),
            Self::Diskless(_, place) | Self::Bucket(_, place) => place,
        }
    }

    /// Returns the image of a newer commit that counts, without keys, if this is a bucket for
    /// reading and there is one.
    ///
    /// # Errors
    /// Errors of [`BucketView::newer`].
    pub(crate) async fn newer(&self) -> Result<Option<Self>> {
        let Self::Bucket(view, place) = self else { return Ok(None) };
        Ok(view.newer().await?.map(|view| Self::Bucket(view, place.clone())))
    }

    /// Whether an object that the image names is no longer in the bucket.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Bucket(view, _) if view.is_stale())
    }

    /// Sets the keys of the drive.
    pub(crate) fn set_cipher(&mut self, cipher: Cipher) {
        on!(self, medium => medium.set_cipher(cipher));
    }
}

/// Returns the name of this machine.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Opens a drive in a bucket with its journal, which names the bucket; for reading, if `read_only`,
/// and then, if `fenced`, even if another machine has taken the drive over.
///
/// # Errors
/// The bucket cannot be used; another machine has taken the drive over; the journal is older.
pub(crate) async fn with_journal(
    runtime: &Runtime,
    journal: FileMedium,
    place: &str,
    (read_only, fenced): (bool, bool),
) -> Result<Remote> {
    let path = journal.path().display().to_string();
    let named = |error: Error| Error::new(error.kind(), place.to_owned()).caused_by(error);
    let bucket = BucketPlace::of(Path::new(place)).ok().flatten();
    let unknown = || {
        let what = format!("{path} is a journal, and its bucket is unknown: '{place}'");
        Error::new(ErrorKind::Corrupt, what)
    };
    let store = S3::new(&bucket.ok_or_else(unknown)?)?;
    store.check().await?;
    let clock = runtime.clone();
    let opened = match read_only {
        true => Tier::open_to_read(journal, store, clock, fenced).await,
        false => Tier::open(journal, store, clock, new_identity(), &host()).await,
    };
    opened.map(Remote::Journal).map_err(named)
}

/// Maximum number of segments that a drive without a local file keeps in memory.
const DISKLESS_SLOTS: u32 = 20;

/// Opens a drive in a bucket for writing without a local file: takes it over, and a flush returns
/// once the bucket has everything.
///
/// # Errors
/// There is no drive; another machine takes it over at the same time; the bucket cannot be used.
pub(crate) async fn diskless(runtime: &Runtime, place: &BucketPlace) -> Result<Remote> {
    let store = S3::new(place)?;
    store.check().await?;
    let mut options = Options::default();
    options.durable = Durable::Bucket;
    options.place = place.to_string();
    options.host = host();
    options.is_volatile = true;
    // Its segments take memory once they are written to.
    let journal = MemMedium::new(u64::MAX >> 1);
    let (clock, nonce) = (runtime.clone(), new_identity());
    let taken = Tier::take_over(journal, store, clock, DISKLESS_SLOTS, nonce, options).await;
    let named = |error: Error| Error::new(error.kind(), place.to_string()).caused_by(error);
    Ok(Remote::Diskless(taken.map_err(named)?, place.to_string().into()))
}

/// Opens a drive in a bucket for reading, in the state of its newest commit.
///
/// # Errors
/// It would be written; there is no drive; the bucket cannot be used.
pub(crate) async fn view(
    runtime: &Runtime,
    place: &BucketPlace,
    read_only: bool,
) -> Result<Remote> {
    if !read_only {
        let what = format!(
            "{place}: open its journal instead; if that is lost, make another one: `pumice create \
             {place} --journal FILE --take-over`; or serve it with --diskless"
        );
        return Err(Error::new(ErrorKind::ReadOnly, what));
    }
    let store = S3::new(place)?;
    store.check().await?;
    let named = |error: Error| Error::new(error.kind(), place.to_string()).caused_by(error);
    let view = BucketView::open(store, runtime.clone()).await.map_err(named)?;
    Ok(Remote::Bucket(view, place.to_string().into()))
}

impl Medium for Remote {
    fn capabilities(&self) -> Capabilities {
        on!(self, medium => medium.capabilities())
    }

    fn cipher(&self) -> &Cipher {
        on!(self, medium => medium.cipher())
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        on!(self, medium => medium.set_geometry(geometry))
    }

    fn reserve(&self) -> Result<()> {
        let what = "the space of a drive in a bucket cannot be reserved";
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    fn misplaced(&self) -> Option<String> {
        on!(self, medium => medium.misplaced())
    }

    async fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        on!(self, medium => medium.append(segment, offset, buffer).await)
    }

    async fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        on!(self, medium => medium.append_durably(segment, offset, buffer).await)
    }

    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        on!(self, medium => medium.spare_buffer())
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        on!(self, medium => medium.read(segment, offset, buffer).await)
    }

    async fn sync(&self) -> Result<()> {
        on!(self, medium => medium.sync().await)
    }

    async fn prepare(&self, segment: SegmentId) -> Result<bool> {
        on!(self, medium => medium.prepare(segment).await)
    }

    async fn discard(&self, segment: SegmentId) -> Result<()> {
        on!(self, medium => medium.discard(segment).await)
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        on!(self, medium => medium.read_superblock(slot).await)
    }

    async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        on!(self, medium => medium.write_superblock(slot, bytes).await)
    }

    fn bucket(&self) -> Option<Status> {
        let status = on!(self, medium => medium.bucket())?;
        Some(match self {
            Self::Journal(_) | Self::Diskless(..) => status,
            Self::Bucket(_, place) => Status { place: place.display().to_string(), ..status },
        })
    }

    fn ending(&self) {
        on!(self, medium => medium.ending());
    }

    async fn finish(&self) -> Result<()> {
        on!(self, medium => Medium::finish(medium).await)
    }
}
