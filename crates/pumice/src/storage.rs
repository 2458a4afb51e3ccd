//! The medium of a drive: one file or device, an array of them, which is found through any member,
//! or a bucket with a journal.
//!
//! ```text
//! path -> header of a member? -> the paths of all members -> those that are there -> array
//!            no: a journal? -> the bucket that it names
//!            no: a file or device alone
//! ```
//!
//! A member is looked for at its last path, and next to the member that was named; identities
//! decide whether it is the right one. Members that were moved are named on the command line, too.

use std::any::Any;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::RwLock;

use crate::objects::{self, BucketPlace};
use pumice_drive::Drive;
use pumice_drive::base::clock::while_busy;
use pumice_drive::base::{AlignedBuffer, Error, ErrorKind, Result};
use pumice_drive::crypt::Cipher;
use pumice_drive::format::{ARRAY_HEADER_BYTES, ArrayHeader, MemberState};
use pumice_drive::media::array::{Array, Assembly, Patience, read_header};
use pumice_drive::media::file::{FileMedium, FileOptions, PathWatch};
use pumice_drive::media::tier::place_of;
use pumice_drive::media::{AnyMedium, SLOTS, SUPERBLOCK_SLOTS, slot_offset};
use pumice_drive::runtime::Runtime;

/// The user's options for arrays and journals on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    /// Paths at which members may be.
    pub(crate) paths: Vec<PathBuf>,
    /// Whether absent members are left out.
    pub(crate) degraded: bool,
    /// Whether a journal is read whose drive another machine has taken over.
    pub(crate) fenced: bool,
    /// Whether a bucket is written to without a journal.
    pub(crate) diskless: bool,
}

static HINTS: RwLock<Hints> =
    RwLock::new(Hints { paths: Vec::new(), degraded: false, fenced: false, diskless: false });

/// Sets the user's options, for all arrays that are opened from now on.
pub(crate) fn hint(hints: Hints) {
    *HINTS.write().unwrap_or_else(std::sync::PoisonError::into_inner) = hints;
}

fn hints() -> Hints {
    HINTS.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

/// The medium of a drive that is not open yet.
pub(crate) struct Storage {
    medium: Box<dyn Keyed>,
    path: PathBuf,
}

/// A medium that takes the keys of the drive on it.
pub(crate) trait Keyed: AnyMedium {
    /// Sets the keys of the drive.
    fn set_cipher(&mut self, cipher: Cipher);
}

impl Keyed for FileMedium {
    fn set_cipher(&mut self, cipher: Cipher) {
        self.set_cipher(cipher);
    }
}

impl Keyed for Array<FileMedium> {
    fn set_cipher(&mut self, cipher: Cipher) {
        self.set_cipher(cipher);
    }
}

impl Deref for Storage {
    type Target = dyn AnyMedium;

    fn deref(&self) -> &dyn AnyMedium {
        &*self.medium
    }
}

/// The members that may be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// Members that the others know to be out.
    Known,
    /// Any, if a member is present that has everything, as far as it knows. For readers only.
    Allowed,
    /// Any; if members were used separately, the first one counts. For looking at a drive.
    AndApart,
}

/// Time that a member may keep the drive waiting for work that another one has completed: as long
/// as the kernel waits for a command of a disk before it resets the disk, and less than hosts wait
/// for a drive.
pub(crate) const PATIENCE_NS: u64 = 30_000_000_000;

/// Opens the member at a path.
type Open<'a> = &'a dyn Fn(&Path) -> Result<FileMedium>;

impl Storage {
    /// Opens a drive in a bucket without a journal.
    ///
    /// # Errors
    /// The bucket would be written, and the user did not allow this without a journal; the bucket
    /// cannot be used.
    pub(crate) async fn in_bucket(
        runtime: &Runtime,
        place: &BucketPlace,
        read_only: bool,
    ) -> Result<Self> {
        match hints().diskless && !read_only {
            true => Box::pin(objects::diskless(runtime, place)).await,
            false => Box::pin(objects::view(runtime, place, read_only)).await,
        }
    }

    /// Completes the medium that was opened at a path: if it is a member of an array, the others
    /// are opened with `open`; if it is a journal, its bucket. An absent member is left out if the
    /// user allows it, or if `absent` does.
    ///
    /// # Errors
    /// Errors of [`Array::assemble`], and of opening a member that is present, or the bucket.
    pub(crate) async fn complete(
        runtime: &Runtime,
        file: FileMedium,
        options: FileOptions,
        absent: Absent,
        open: Open<'_>,
    ) -> Result<Self> {
        let header = match read_header(&file).await {
            Ok(Some(header)) => header,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            // The superblocks of a medium without a header tell its kind.
            Ok(None) | Err(_) => return Self::without_array(runtime, file, options).await,
        };
        let named = file.path().to_owned();
        let clock = file.runtime().clone();
        let hints = hints();
        let (mut newest, mut seen) = (header.clone(), vec![header.own]);
        let mut members = vec![(file, shown(&named)?)];
        // A header that is found later may list members that the first one does not know.
        while let Some(member) = newest.members.iter().find(|member| !seen.contains(&member.uuid)) {
            seen.push(member.uuid);
            let places = places(&named, &member.path, &hints.paths);
            let found = places.iter().find_map(|path| {
                let found = header_at(path)?;
                let is_member = (found.array, found.own) == (header.array, member.uuid);
                is_member.then_some((path, found))
            });
            let Some((path, found)) = found else { continue };
            match while_busy(&clock, || open(path)).await {
                Ok(medium) => members.push((medium, shown(path)?)),
                Err(error) if error.kind() == ErrorKind::Busy => return Err(error),
                Err(error) => tracing::warn!(
                    member = %path.display(),
                    error = %error.chain(),
                    "a member of the array cannot be opened"
                ),
            }
            if found.events > newest.events {
                newest = found;
            }
        }
        let assembly = Assembly::default()
            .with_read_only(options.read_only)
            .with_absent(absent == Absent::Allowed)
            .with_degraded(hints.degraded || absent == Absent::AndApart)
            .with_patience(Patience::new(&clock, PATIENCE_NS));
        let array = Array::assemble(members, assembly).await?;
        Ok(Self::new(array, named))
    }

    /// Returns the medium of a journal, or of a file or device alone.
    async fn without_array(
        runtime: &Runtime,
        file: FileMedium,
        options: FileOptions,
    ) -> Result<Self> {
        let place = match place_of(&file).await {
            Ok(Some(place)) => place,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Ok(None) | Err(_) => return Ok(Self::of_file(file)),
        };
        let read_only = options.read_only;
        if options.unlocked {
            let what = format!(
                "{} is the journal of {place}: a clone cannot read from a drive in a bucket",
                file.path().display()
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let how = (read_only, hints().fenced);
        Box::pin(objects::with_journal(runtime, file, &place, how)).await
    }

    /// Returns the medium that was opened with a path, without any keys.
    pub(crate) fn new(medium: impl Keyed, path: impl Into<PathBuf>) -> Self {
        Self { medium: Box::new(medium), path: path.into() }
    }

    /// Returns the medium of a drive on one file or device.
    pub(crate) fn of_file(file: FileMedium) -> Self {
        let path = file.path().to_owned();
        Self::new(file, path)
    }

    /// Returns the file or device of a medium made by [`Storage::of_file`].
    pub(crate) fn into_file(self) -> FileMedium {
        let medium: Box<dyn Any> = self.medium;
        *medium.downcast().expect("the drive is on one file or device")
    }

    /// Returns the medium for opening the drive.
    pub(crate) fn into_shared(self) -> Rc<dyn AnyMedium> {
        Rc::from(self.medium as Box<dyn AnyMedium>)
    }

    /// Returns the medium with the keys of the drive on it.
    pub(crate) fn with_cipher(mut self, cipher: Cipher) -> Self {
        self.set_cipher(cipher);
        self
    }

    /// Sets the keys of the drive.
    pub(crate) fn set_cipher(&mut self, cipher: Cipher) {
        self.medium.set_cipher(cipher);
    }

    /// Returns the path with which the medium was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the file or device in bytes; for an array, the size of its first one;
    /// for a bucket, the size of the journal.
    pub(crate) fn bytes(&self) -> u64 {
        of_files(&**self, FileMedium::bytes).first().copied().unwrap_or(0)
    }
}

/// Returns the results of a function for the local files and devices of a medium.
fn of_files<T>(medium: &dyn AnyMedium, what: impl Fn(&FileMedium) -> T) -> Vec<T> {
    if let Some(array) = medium.downcast_ref::<Array<FileMedium>>() {
        return array.media().iter().map(|medium| what(medium)).collect();
    }
    let file = medium.downcast_ref().or_else(|| objects::journal_of(medium));
    file.map(what).into_iter().collect()
}

/// Whether a drive bypasses the page cache.
pub(crate) fn is_direct(drive: &Drive) -> bool {
    of_files(drive.medium(), FileMedium::is_direct).into_iter().all(|is_direct| is_direct)
}

/// Returns the watchers that check whether the paths of a drive still lead to its files.
pub(crate) fn path_watch(drive: &Drive) -> Vec<PathWatch> {
    of_files(drive.medium(), FileMedium::path_watch)
}

/// Overwrites the headers of a medium that was a member of an array.
///
/// # Errors
/// Errors of the medium.
pub(crate) async fn leave_array(medium: &FileMedium) -> Result<()> {
    for slot in SUPERBLOCK_SLOTS..SLOTS {
        let is_blank = |bytes: &AlignedBuffer| bytes.iter().all(|&byte| byte == 0);
        if !medium.read_superblock(slot).await.is_ok_and(|bytes| is_blank(&bytes)) {
            medium.write_superblock(slot, AlignedBuffer::zeroed(ARRAY_HEADER_BYTES)).await?;
            medium.sync().await?;
        }
    }
    Ok(())
}

/// Returns the header of the member at a path, without locking it; `None` if it is not a member.
pub(crate) fn header_at(path: &Path) -> Option<ArrayHeader> {
    let file = File::open(path).ok()?;
    let mut newest: Option<ArrayHeader> = None;
    for slot in SUPERBLOCK_SLOTS..SLOTS {
        let mut bytes = [0; ARRAY_HEADER_BYTES];
        let read = file.read_exact_at(&mut bytes, slot_offset(slot));
        let Ok(header) =
            read.map_err(|_| ()).and_then(|()| ArrayHeader::decode(&bytes).map_err(|_| ()))
        else {
            continue;
        };
        if newest.as_ref().is_none_or(|newest| newest.events < header.events) {
            newest = Some(header);
        }
    }
    newest
}

/// Returns the last known paths of the other members of the array of the one at `path`, those that
/// have everything first.
pub(crate) fn companions(path: &Path) -> Vec<PathBuf> {
    let Some(header) = header_at(path) else { return Vec::new() };
    let others = header.members.iter().filter(|member| member.uuid != header.own);
    let (active, rest): (Vec<_>, Vec<_>) =
        others.partition(|member| member.state == MemberState::Active);
    let all = active.into_iter().chain(rest);
    all.flat_map(|member| places(path, &member.path, &[])).collect()
}

/// Returns the paths at which a member may be whose last path was `last`.
fn places(named: &Path, last: &str, others: &[PathBuf]) -> Vec<PathBuf> {
    let last = PathBuf::from(last);
    let beside = last.file_name().map(|name| named.with_file_name(name));
    let mut places: Vec<PathBuf> = [Some(last), beside].into_iter().flatten().collect();
    places.extend(others.iter().cloned());
    places.retain(|path| path.is_absolute() || path.components().count() > 0);
    places.dedup();
    places
}

/// Returns a path in the form that headers use: absolute.
///
/// # Errors
/// `InvalidInput` if the path is not UTF-8.
pub(crate) fn shown(path: &Path) -> Result<String> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let wrong = || {
        let what = format!("{} is not UTF-8: rename it", path.display());
        Error::new(ErrorKind::InvalidInput, what)
    };
    whole.to_str().map(ToOwned::to_owned).ok_or_else(wrong)
}
