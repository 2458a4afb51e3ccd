//! The clones that the origin of a world lists or may list, and the tasks of a clone's process.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use uuid::Uuid;

use super::oracle::Mismatch;
use pumice_drive::base::clock::Task;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::controller::SnapshotInfo;

/// Knowledge about whether the origin lists a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is being registered, or the registration failed or crashed.
    Making,
    /// It is listed.
    Sure,
    /// It is being forgotten, or that failed or crashed; or it was registered and never made.
    Forgetting,
}

/// A clone that the origin lists, or may list.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    pub(super) clone: Uuid,
    pub(super) snapshot: String,
    pub(super) presence: Presence,
}

/// The clones of one world.
pub(super) struct Clones {
    /// Draws what happens to the clone between the lives of its origin.
    pub(super) random: Random,
    /// The clones that the origin lists or may list.
    pub(super) registered: Vec<Registration>,
    /// Number of clones begun so far, for identities.
    pub(super) named: u64,
    /// Whether a host makes, uses or gives up the clone.
    is_busy: Rc<Cell<bool>>,
}

/// A host that makes, uses or gives up the clone.
pub(super) struct Turn(Rc<Cell<bool>>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Clones {
    /// Returns the clones of the world of a seed, initially none.
    pub(super) fn new(seed: u64) -> Self {
        // An arbitrary constant keeps this stream apart from those of the drive and its hazards.
        let random = random(seed ^ 0x636c_6f6e_6573_2121);
        let (registered, is_busy) = (Vec::new(), Rc::default());
        Self { random, registered, named: 0, is_busy }
    }

    /// Returns whether the origin must list a clone of a snapshot.
    pub(super) fn keep(&self, snapshot: &str) -> bool {
        let mut of = self.registered.iter().filter(|it| it.snapshot == snapshot);
        of.any(|it| it.presence == Presence::Sure)
    }

    /// Returns whether the origin may list a clone of a snapshot.
    pub(super) fn may_keep(&self, snapshot: &str) -> bool {
        self.registered.iter().any(|it| it.snapshot == snapshot)
    }

    /// Returns a turn with the clone, unless another host has it.
    pub(super) fn turn(&self) -> Option<Turn> {
        (!self.is_busy.replace(true)).then(|| Turn(self.is_busy.clone()))
    }

    /// Records what is known of a clone.
    pub(super) fn set(&mut self, clone: Uuid, presence: Presence) {
        let found = self.registered.iter_mut().find(|it| it.clone == clone);
        found.expect("a clone of the world").presence = presence;
    }

    /// Returns a clone that the origin may list, other than the one that needs it.
    pub(super) fn orphan(&self, needed: Option<Uuid>) -> Option<Uuid> {
        self.registered.iter().map(|it| it.clone).find(|&clone| Some(clone) != needed)
    }

    /// Adopts the clones that an opening found.
    ///
    /// # Errors
    /// A clone that must be listed is not, or a listed one was never made.
    pub(super) fn settle(&mut self, found: &[SnapshotInfo]) -> Result<(), Mismatch> {
        let wrong = |promised: &str, found: (String, Uuid)| {
            Err(Mismatch { promised: promised.to_owned(), found: format!("{found:?}") })
        };
        let mut listed = found
            .iter()
            .flat_map(|info| info.clones.iter().map(move |clone| (info.name.clone(), clone.drive)));
        let known = |(name, clone): &(String, Uuid)| {
            self.registered.iter().any(|it| (&it.snapshot, it.clone) == (name, *clone))
        };
        if let Some(stranger) = listed.find(|listed| !known(listed)) {
            return wrong("no clone is listed that was never made, or was forgotten", stranger);
        }
        let is_there = |it: &Registration| {
            let of = found.iter().find(|info| info.name == it.snapshot);
            of.is_some_and(|info| info.clones.iter().any(|clone| clone.drive == it.clone))
        };
        if let Some(lost) =
            self.registered.iter().find(|it| it.presence == Presence::Sure && !is_there(it))
        {
            return wrong("a clone is listed", (lost.snapshot.clone(), lost.clone));
        }
        self.registered.retain(is_there);
        for it in &mut self.registered {
            if it.presence == Presence::Making {
                it.presence = Presence::Forgetting;
            }
        }
        Ok(())
    }
}

/// The tasks of a clone's process, which end with it while other tasks continue.
#[derive(Default)]
pub(super) struct Nest(RefCell<Vec<Task>>);

impl Nest {
    /// Drops the tasks that were not yet run.
    pub(super) fn clear(&self) {
        self.0.take();
    }

    /// Starts a task, which runs as part of [`Nest::run`].
    pub(super) fn spawn(&self, task: Task) {
        self.0.borrow_mut().push(task);
    }

    /// Runs `life` and the tasks that are started meanwhile; they end with it.
    pub(super) async fn run<T>(&self, life: impl Future<Output = T>) -> T {
        let mut life = pin!(life);
        let mut tasks = FuturesUnordered::new();
        poll_fn(|context| {
            loop {
                if let Poll::Ready(result) = life.as_mut().poll(context) {
                    return Poll::Ready(result);
                }
                let new = self.0.take();
                let is_quiet = new.is_empty();
                tasks.extend(new);
                while let Poll::Ready(Some(())) = tasks.poll_next_unpin(context) {}
                if is_quiet {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}
