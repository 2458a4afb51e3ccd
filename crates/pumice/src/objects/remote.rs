//! Opening a drive in a bucket: with its journal, with a journal in memory, or the bucket alone,
//! for reading.

use std::path::Path;

use super::{BucketPlace, S3};
use crate::environment::new_identity;
use crate::storage::{Keyed, Storage};
use pumice_drive::Drive;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::crypt::Cipher;
use pumice_drive::media::file::FileMedium;
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::tier::{BucketView, Durable, Options, Tier};
use pumice_drive::media::{AnyMedium, Medium};
use pumice_drive::runtime::Runtime;

impl<L: Medium + 'static> Keyed for Tier<L, S3, Runtime> {
    fn set_cipher(&mut self, cipher: Cipher) {
        self.set_cipher(cipher);
    }
}

impl Keyed for BucketView<S3, Runtime> {
    fn set_cipher(&mut self, cipher: Cipher) {
        self.set_cipher(cipher);
    }
}

/// Returns the local file of a drive in a bucket, if there is one.
pub(crate) fn journal_of(medium: &dyn AnyMedium) -> Option<&FileMedium> {
    medium.downcast_ref::<Tier<FileMedium, S3, Runtime>>().map(Tier::journal)
}

fn view_of(drive: &Drive) -> Option<&BucketView<S3, Runtime>> {
    drive.medium().downcast_ref()
}

/// Returns the image of a newer valid commit, without keys; `None` if there is none, or the drive
/// is not in a bucket and open for reading.
///
/// # Errors
/// Errors of [`BucketView::newer`].
pub(crate) async fn newer(drive: &Drive) -> Result<Option<Storage>> {
    let Some(view) = view_of(drive) else { return Ok(None) };
    Ok(Box::pin(view.newer()).await?.map(of_view))
}

/// Whether an object that the image in a bucket names no longer exists.
pub(crate) fn is_stale(drive: &Drive) -> bool {
    view_of(drive).is_some_and(BucketView::is_stale)
}

fn of_view(view: BucketView<S3, Runtime>) -> Storage {
    let path = view.place.clone();
    Storage::new(view, path)
}

/// Returns the name of this machine.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Opens a drive in a bucket with its journal, which names the bucket. `read_only` opens it for
/// reading, and with `fenced` even if another machine has taken the drive over.
///
/// # Errors
/// The bucket cannot be used; another machine has taken the drive over; the journal is older.
pub(crate) async fn with_journal(
    runtime: &Runtime,
    journal: FileMedium,
    place: &str,
    (read_only, fenced): (bool, bool),
) -> Result<Storage> {
    let path = journal.path().to_owned();
    let named = |error: Error| Error::new(error.kind(), place.to_owned()).caused_by(error);
    let bucket = BucketPlace::of(Path::new(place)).ok().flatten();
    let unknown = || {
        let path = path.display();
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
    opened.map(|tier| Storage::new(tier, path)).map_err(named)
}

/// Maximum number of segments that a drive without a local file keeps in memory.
const DISKLESS_SLOTS: u32 = 20;

/// Opens a drive in a bucket for writing without a local file: takes it over, and a flush returns
/// once all data is in the bucket.
///
/// # Errors
/// There is no drive; another machine takes it over at the same time; the bucket cannot be used.
pub(crate) async fn diskless(runtime: &Runtime, place: &BucketPlace) -> Result<Storage> {
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
    Ok(Storage::new(taken.map_err(named)?, place.to_string()))
}

/// Opens a drive in a bucket for reading, in the state of its newest commit.
///
/// # Errors
/// Writing was requested; there is no drive; the bucket cannot be used.
pub(crate) async fn view(
    runtime: &Runtime,
    place: &BucketPlace,
    read_only: bool,
) -> Result<Storage> {
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
    let mut view = BucketView::open(store, runtime.clone()).await.map_err(named)?;
    view.place = place.to_string();
    Ok(of_view(view))
}
