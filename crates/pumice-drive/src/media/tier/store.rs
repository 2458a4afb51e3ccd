//! The object store, and the handling of its failures.
//!
//! A store is a map from names to immutable bytes. The protocol needs one conditional operation,
//! [`Store::put_if_absent`], once per opening, and reads that see every earlier write. It does not
//! rely on listings: they only serve to find unreferenced objects.
//!
//! An operation that fails may have taken effect, or may take effect at any later time. Therefore
//! every name is always written with the same content: repeating a write is harmless, and so is a
//! write that arrives late.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use serde::{Deserialize, Serialize};

use crate::base::wait::WaitQueue;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result};

/// Pause after the first failure of an operation; it doubles up to [`PAUSE_NS_MAX`]. Arbitrary: on
/// the order of a round trip to a remote store.
const PAUSE_NS: u64 = 100_000_000;

/// Longest pause between attempts, and so the longest time until work resumes after an outage.
/// Arbitrary.
const PAUSE_NS_MAX: u64 = 5_000_000_000;

/// Attempts of an operation that may be abandoned: about ten seconds.
const ATTEMPTS: u32 = 8;

/// How long the closing of a drive waits for a store whose requests fail, in nanoseconds: service
/// managers allow a server a minute or two to end.
const REFUSED_NS: u64 = 10_000_000_000;

/// How long the closing of a drive waits for a store that neither answers nor fails, in
/// nanoseconds: the time to transfer four of the largest objects in parallel at 5 Mbit/s.
const SILENT_NS: u64 = 60_000_000_000;

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name of the object.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// A store of named objects. Names are ASCII, with `/` between their parts.
///
/// All methods are called on the thread of the drive. Reads see every write that has completed. The
/// future of an operation may be dropped; the operation then counts as failed.
///
/// # Errors
/// Each method fails with `PermissionDenied`, `NotFound` (of the bucket, not of an object),
/// `InvalidInput` or `Unsupported` if repeating it cannot help, and with another kind otherwise.
/// Except after one of those four, the operation may have taken effect, or take effect later.
pub trait Store {
    /// Writes an object, which may already exist.
    fn put(&self, name: &str, bytes: Arc<AlignedBuffer>) -> impl Future<Output = Result<()>>;

    /// Writes an object unless it exists. Returns whether it was written. At most one of several
    /// concurrent calls for one name returns true.
    fn put_if_absent(
        &self,
        name: &str,
        bytes: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<bool>>;

    /// Reads an object or a range, which must be within the object. `None` if there is no such
    /// object.
    fn get(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> impl Future<Output = Result<Option<Vec<u8>>>>;

    /// Returns whether an object exists.
    fn exists(&self, name: &str) -> impl Future<Output = Result<bool>>;

    /// Returns the objects below `prefix`, which ends in `/`, in any order. May miss recently
    /// written objects and include deleted ones.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Listed>>>;

    /// Deletes an object, which need not exist.
    fn delete(&self, name: &str) -> impl Future<Output = Result<()>>;
}

/// Requests to a store since it was opened, including repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Requests {
    /// Writes of objects.
    pub puts: u64,
    /// Reads, and checks whether an object exists.
    pub gets: u64,
    /// Listings.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
    /// Bytes written.
    pub put_bytes: u64,
    /// Bytes read.
    pub get_bytes: u64,
}

/// How often an operation is repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// For about ten seconds, or not at all if repeating cannot help: nothing is served yet.
    Limited,
    /// Until it succeeds. Hosts wait meanwhile, as they do for any slow disk; an error would look
    /// like damage to the drive.
    Endless,
}

/// A store whose operations are repeated when they fail.
pub(super) struct Patient<S, C> {
    store: S,
    clock: C,
    patience: Cell<Patience>,
    /// When the closing of the drive began; `None` unless it is being closed.
    ending_since_ns: Cell<Option<u64>>,
    /// When a request last succeeded.
    answered_ns: Cell<u64>,
    /// Woken when an attempt has ended, or when the closing of the drive begins.
    changed: WaitQueue,
    requests: Cell<Requests>,
    /// The last failure, until an operation succeeds.
    trouble: RefCell<Option<String>>,
}

impl<S, C> Patient<S, C> {
    /// Sets how often operations are repeated, including operations in progress.
    pub(super) fn set_patience(&self, patience: Patience) {
        let is_more = patience == Patience::Endless || self.patience.get() == patience;
        assert!(is_more, "a drive that is served waits for its store");
        self.patience.set(patience);
    }

    /// Cancels the closing of the drive, which then continues.
    pub(super) fn go_on(&self) {
        self.ending_since_ns.set(None);
    }

    /// Returns whether the drive is being closed.
    pub(super) fn is_ending(&self) -> bool {
        self.ending_since_ns.get().is_some()
    }
}

impl<S: Store, C: Clock> Patient<S, C> {
    pub(super) fn new(store: S, clock: C) -> Self {
        Self {
            store,
            clock,
            patience: Cell::new(Patience::Limited),
            ending_since_ns: Cell::default(),
            answered_ns: Cell::default(),
            changed: WaitQueue::default(),
            requests: Cell::default(),
            trouble: RefCell::default(),
        }
    }

    pub(super) fn requests(&self) -> Requests {
        self.requests.get()
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Begins the closing of the drive: operations, including those in progress, end once the store
    /// has not answered for a while.
    pub(super) fn begin_ending(&self) {
        if !self.is_ending() {
            self.ending_since_ns.set(Some(self.clock.now_ns()));
            self.changed.wake_all();
        }
    }

    /// Returns the time after which no operation waits any more, if the drive is being closed.
    fn deadline_ns(&self) -> Option<u64> {
        let since_ns = self.ending_since_ns.get()?.max(self.answered_ns.get());
        let is_refused = self.trouble.borrow().is_some();
        Some(since_ns + if is_refused { REFUSED_NS } else { SILENT_NS })
    }

    /// Returns whether a drive that is being closed has waited too long for the store.
    pub(super) fn is_over(&self) -> bool {
        self.deadline_ns().is_some_and(|deadline_ns| self.clock.now_ns() >= deadline_ns)
    }

    /// Waits until [`Self::is_over`] holds.
    pub(super) async fn until_over(&self) {
        loop {
            let deadline_ns = self.changed.wait_for(|| self.deadline_ns()).await;
            let left_ns = deadline_ns.saturating_sub(self.clock.now_ns());
            if left_ns == 0 {
                return;
            }
            let other = || (self.deadline_ns() != Some(deadline_ns)).then_some(());
            let changed = pin!(self.changed.wait_for(other));
            select(pin!(self.clock.sleep_ns(left_ns)), changed).await;
        }
    }

    fn given_up(&self) -> Error {
        let trouble = self.trouble().unwrap_or_else(|| "the object store does not answer".into());
        Error::new(ErrorKind::Io, trouble)
    }

    fn count(&self, change: impl FnOnce(&mut Requests)) {
        let mut requests = self.requests.get();
        change(&mut requests);
        self.requests.set(requests);
    }

    async fn repeat<T>(&self, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let mut pause_ns = PAUSE_NS;
        let mut attempts = 0;
        loop {
            let attempted = {
                let (attempt, over) = (pin!(attempt()), pin!(self.until_over()));
                match select(attempt, over).await {
                    Either::Left((attempted, _)) => attempted,
                    Either::Right(_) => return Err(self.given_up()),
                }
            };
            let error = match attempted {
                Ok(value) => {
                    self.answered_ns.set(self.clock.now_ns());
                    // Also releases the waiters of attempts that have ended.
                    self.changed.wake_all();
                    if self.trouble.take().is_some() {
                        tracing::info!("the object store answers again");
                    }
                    return Ok(value);
                }
                Err(error) => error,
            };
            attempts += 1;
            let is_limited = self.patience.get() == Patience::Limited;
            let is_in_vain = is_final(&error) && (is_limited || self.is_ending());
            if is_in_vain || is_limited && attempts >= ATTEMPTS {
                return Err(error);
            }
            self.changed.wake_all();
            let text = error.chain();
            if self.trouble.replace(Some(text.clone())).is_none() {
                tracing::warn!(error = text, "the object store does not answer: trying again");
            }
            let (pause, over) = (pin!(self.clock.sleep_ns(pause_ns)), pin!(self.until_over()));
            if let Either::Right(_) = select(pause, over).await {
                return Err(error);
            }
            pause_ns = (2 * pause_ns).min(PAUSE_NS_MAX);
            assert!(pause_ns >= PAUSE_NS, "pauses never get shorter than the first");
        }
    }

    /// Writes an object whose name never has any other content.
    pub(super) async fn put(&self, name: &str, bytes: &Arc<AlignedBuffer>) -> Result<()> {
        self.repeat(async || {
            self.count(|requests| {
                requests.puts += 1;
                requests.put_bytes += bytes.len() as u64;
            });
            self.store.put(name, bytes.clone()).await
        })
        .await
    }

    /// Writes an object unless it exists. Returns whether it has this content afterwards. Any
    /// answer other than success proves nothing, because an earlier attempt may have written the
    /// object.
    pub(super) async fn claim(&self, name: &str, bytes: &Arc<AlignedBuffer>) -> Result<bool> {
        self.repeat(async || {
            self.count(|requests| requests.puts += 1);
            let created = self.store.put_if_absent(name, bytes.clone()).await;
            if let Ok(true) = created {
                return Ok(true);
            }
            self.count(|requests| requests.gets += 1);
            match (self.store.get(name, None).await?, created) {
                (Some(found), _) => Ok(found == bytes[..]),
                (None, Err(error)) => Err(error),
                (None, Ok(_)) => {
                    let what = format!("{name} exists and cannot be read");
                    Err(Error::new(ErrorKind::Io, what))
                }
            }
        })
        .await
    }

    /// Tries once to create an object, for the probe.
    pub(super) async fn try_create(&self, name: &str, bytes: Arc<AlignedBuffer>) -> Result<bool> {
        self.count(|requests| requests.puts += 1);
        self.store.put_if_absent(name, bytes).await
    }

    /// Reads an object, or a range of it.
    pub(super) async fn get(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<Vec<u8>>> {
        self.repeat(async || {
            self.count(|requests| requests.gets += 1);
            let found = self.store.get(name, range.clone()).await?;
            let bytes = found.as_ref().map_or(0, Vec::len) as u64;
            self.count(|requests| requests.get_bytes += bytes);
            Ok(found)
        })
        .await
    }

    /// Returns whether an object exists.
    pub(super) async fn exists(&self, name: &str) -> Result<bool> {
        self.repeat(async || {
            self.count(|requests| requests.gets += 1);
            self.store.exists(name).await
        })
        .await
    }

    /// Returns the objects below `prefix`; see [`Store::list`]. Tries once, since nothing depends
    /// on it.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.count(|requests| requests.lists += 1);
        self.store.list(prefix).await
    }

    /// Deletes an unreferenced object. If that fails, a later sweep deletes it.
    pub(super) async fn delete(&self, name: &str) {
        self.count(|requests| requests.deletes += 1);
        let (deletion, over) = (pin!(self.store.delete(name)), pin!(self.until_over()));
        if let Either::Left((Err(error), _)) = select(deletion, over).await {
            let error = error.chain();
            tracing::debug!(name, error, "an object was not deleted: it is swept later");
        }
    }
}

/// Returns whether repeating the operation cannot help.
fn is_final(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::InvalidInput
            | ErrorKind::Unsupported
    )
}

impl<S: Store> Store for std::rc::Rc<S> {
    fn put(&self, name: &str, bytes: Arc<AlignedBuffer>) -> impl Future<Output = Result<()>> {
        (**self).put(name, bytes)
    }

    fn put_if_absent(
        &self,
        name: &str,
        bytes: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<bool>> {
        (**self).put_if_absent(name, bytes)
    }

    fn get(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> impl Future<Output = Result<Option<Vec<u8>>>> {
        (**self).get(name, range)
    }

    fn exists(&self, name: &str) -> impl Future<Output = Result<bool>> {
        (**self).exists(name)
    }

    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Listed>>> {
        (**self).list(prefix)
    }

    fn delete(&self, name: &str) -> impl Future<Output = Result<()>> {
        (**self).delete(name)
    }
}
