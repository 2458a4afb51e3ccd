//! Reclaiming space.
//!
//! ```text
//! collect     the segment to empty next, the credit that it earns
//! compact     when space is returned to the medium
//! warm        free segments kept for fast flushes
//! low_room    free segments kept because other files may take the space
//! full        the share in use, warnings
//! unreadable  when frames that the medium cannot read are given up
//! ```
//!
//! Other parts of the core see none of the fields except `carries_dead`. Decisions that also depend
//! on reserves, checkpoints or snapshots are methods of the core.

mod collect;
mod compact;
mod full;
mod low_room;
mod unreadable;
mod warm;

pub(crate) use collect::Victim;
pub(crate) use compact::{GivesBack, Occupied};
pub(crate) use unreadable::GIVE_UP_NS;
pub(crate) use warm::FreeWork;

/// The state of reclaiming space.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    collector: collect::Collector,
    /// Whether a copy in the open batch of moved frames carries dead blocks along.
    pub(super) carries_dead: bool,
    compaction: compact::Compaction,
    fullness: full::Fullness,
    warming: warm::Warming,
    room: low_room::LowRoom,
    /// Segments that garbage collection left as they were because part of them cannot be read.
    unreadable: Vec<unreadable::Unreadable>,
}
