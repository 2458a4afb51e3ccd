//! A drive in a bucket: a medium whose segments are stored in a local journal, in an object store,
//! or in both.
//!
//! * `store`: the interface of an object store, and retries.
//! * `object`: names and bytes of the objects, and of the journal's state. `history`: finding the
//!   newest ones.
//! * `local`: the journal. `uses`, `ranges`: the locations of bytes.
//! * `state`, `medium`: the drive while it is open for writing. `opening`, `commits`: how it is
//!   opened, and how its changes reach the bucket.
//! * `view`: the drive for reading. `following`: its next image. `reading`: reads from the bucket.
//!
//! ```text
//!  append, sync            read
//!       |                   |  \
//!    journal <--------------+   +--> bucket
//!       |  a commit every few seconds   ^
//!       +-------------------------------+
//! ```
//!
//! A commit is an image of the medium as a power loss could have left it, so recovery from the
//! bucket is recovery after a power loss. See `docs/objects.md` for the format and the argument.
//!
//! The tier has no notion of drives, batches or LBAs.

mod commits;
mod following;
mod history;
mod local;
mod medium;
mod object;
mod opening;
mod options;
mod ranges;
mod reading;
mod state;
mod store;
mod uses;
mod view;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "patterns of test data")]
mod tests;

use std::rc::Rc;

use uuid::Uuid;

pub use self::object::{ObjectKind, encode_again};
pub use self::options::{Durable, Options, Status};
use self::state::{State, Superblocks};
use self::store::Patient;
pub use self::store::{Listed, Requests, Store};
pub use self::view::BucketView;
use super::{Geometry, Medium, SUPERBLOCK_BYTES};
use crate::base::clock::Spawn;
use crate::base::{AlignedBuffer, Error, ErrorKind, Result};
use crate::crypt::Cipher;

/// A drive in a bucket, open for writing. A task on `C` makes its commits and ends when this is
/// dropped; [`finish`](Tier::finish) makes the last commit.
pub struct Tier<L, S, C> {
    state: Rc<State<L, S, C>>,
    cipher: Cipher,
}

/// The parameters of a new drive in a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Identity of the drive.
    pub uuid: Uuid,
    /// Bytes of a segment: a multiple of 4096, from 64 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// Number of segments that fit in the journal: 16 to 16,777,216.
    pub slots: u32,
}

impl Shape {
    /// Returns the bytes that a file needs as the journal.
    pub fn journal_bytes(&self) -> u64 {
        local::geometry(self.segment_bytes, self.slots).medium_bytes()
    }
}

impl<L: Medium + 'static, S: Store + 'static, C: Spawn + Clone + 'static> Tier<L, S, C> {
    /// Creates an empty drive in a bucket, with an empty medium as its journal. `nonce` must be
    /// drawn for this opening and never have been used before.
    ///
    /// # Errors
    /// `AlreadyExists` if a drive exists, or the journal is not empty; `Unsupported` if the store
    /// does not create objects exclusively; `InvalidInput` if the journal is too small, or the
    /// shape or the lag is impossible; errors of the store and the medium.
    pub async fn create(
        journal: L,
        store: S,
        clock: C,
        shape: Shape,
        nonce: Uuid,
        options: Options,
    ) -> Result<Self> {
        Ok(Self::start(State::create(journal, store, clock, shape, nonce, options).await?))
    }

    /// Opens a drive in a bucket with its journal, and with the options with which the journal was
    /// created. `host` is the name of this machine, for messages on other machines.
    ///
    /// # Errors
    /// `NotFound` if there is no drive; `NotADrive` if the medium is not a journal; `Busy` if
    /// another machine has opened the drive since; `InvalidInput` if the journal is older than the
    /// bucket, or belongs to another drive; errors of the store and the medium.
    pub async fn open(journal: L, store: S, clock: C, nonce: Uuid, host: &str) -> Result<Self> {
        Ok(Self::start(State::open(journal, store, clock, nonce, host).await?))
    }

    /// Opens a drive in a bucket with an empty medium of `slots` segments as its journal. A journal
    /// on another machine becomes useless: those of its changes that are not in the bucket are not
    /// part of the drive.
    ///
    /// # Errors
    /// `NotFound` if there is no drive; `AlreadyExists` if the journal is not empty; `Busy` if
    /// another machine opens the drive at the same time; errors of the store and the medium.
    pub async fn take_over(
        journal: L,
        store: S,
        clock: C,
        slots: u32,
        nonce: Uuid,
        options: Options,
    ) -> Result<Self> {
        Ok(Self::start(State::take_over(journal, store, clock, slots, nonce, options).await?))
    }

    /// Opens a drive in a bucket with its journal, to read the data of both. Makes no claim, writes
    /// nothing, and requests from the store only the data that is read. If `fenced`, also accepts a
    /// journal after another machine has taken over the drive. The view then includes the journal's
    /// changes that are not in the bucket, and lacks the objects that the other machine has
    /// deleted.
    ///
    /// # Errors
    /// The errors of [`open`](Tier::open).
    pub async fn open_to_read(journal: L, store: S, clock: C, fenced: bool) -> Result<Self> {
        let state = Rc::new(State::open_to_read(journal, store, clock, fenced).await?);
        Ok(Self { state, cipher: Cipher::default() })
    }

    fn start(state: State<L, S, C>) -> Self {
        let state = Rc::new(state);
        let (committer, sweeper) = (state.clone(), state.clone());
        state.clock.spawn(Box::pin(async move { committer.run_commits().await }));
        state.clock.spawn(Box::pin(async move { sweeper.run_sweep().await }));
        Self { state, cipher: Cipher::default() }
    }

    /// Commits everything that has completed. Fails once the store has refused for ten seconds, or
    /// has not responded for a minute; the journal then has everything.
    ///
    /// # Errors
    /// Errors of the store and the journal; `Poisoned` if another machine has taken over the drive.
    pub async fn finish(&self) -> Result<()> {
        if self.state.is_for_reading.get() {
            return Ok(());
        }
        self.state.begin_ending();
        let _ending = Ending(&self.state.store);
        let committed = self.state.until_committed(false).await;
        committed.map_err(|error| self.state.lacking(ErrorKind::Io, error))
    }
}

/// The closing of a drive, until this is dropped. A drive that could not be finished continues.
struct Ending<'a, S, C>(&'a Patient<S, C>);

impl<S, C> Drop for Ending<'_, S, C> {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

impl<L, S, C> Drop for Tier<L, S, C> {
    fn drop(&mut self) {
        // A commit in progress is abandoned: its task must release the journal.
        self.state.is_closing.set(true);
        self.state.wake();
    }
}

impl<L: Medium, S: Store, C: Spawn> Tier<L, S, C> {
    /// Returns the local medium.
    pub fn journal(&self) -> &L {
        self.state.local.medium()
    }

    /// Sets the keys of the drive.
    pub fn set_cipher(&mut self, cipher: Cipher) {
        self.cipher = cipher;
    }
}

/// Returns the location of the bucket whose drive has this medium as its journal; `None` if the
/// medium is not a journal.
///
/// # Errors
/// `Unsupported` if a newer version created the journal; errors of the medium.
pub async fn place_of<L: Medium>(medium: &L) -> Result<Option<String>> {
    match local::find_journal(medium).await? {
        Ok(journal) => Ok(Some(journal.place)),
        Err(error) if error.kind() == ErrorKind::Unsupported => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns the identity of the drive to which a journal belongs, from a superblock slot of the
/// journal; `None` if the slot does not hold a journal.
///
/// # Errors
/// `Unsupported` if a newer version created the journal.
pub fn journal_in(superblock: &[u8]) -> Result<Option<Uuid>> {
    match object::Journal::decode(superblock) {
        Ok(journal) => Ok(Some(journal.uuid)),
        Err(error) if error.kind() == ErrorKind::Unsupported => Err(error),
        Err(_) => Ok(None),
    }
}

/// Refuses segments whose size differs from that in the bucket.
fn check_geometry(geometry: Geometry, segment_bytes: u32) -> Result<()> {
    if geometry.segment_bytes != segment_bytes {
        let what = format!("segments have {segment_bytes} bytes in the bucket, not {geometry:?}");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(())
}

/// Returns the content of a superblock slot of the drive.
fn superblock(superblocks: &Superblocks, slot: u32) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
    if let Some(Some(superblock)) = superblocks.get(slot as usize) {
        bytes.copy_from_slice(superblock);
    }
    bytes
}
