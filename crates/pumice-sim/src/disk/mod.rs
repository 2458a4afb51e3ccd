//! A hard disk in virtual time, with its bytes in memory: a head that seeks and waits for its
//! sector, a cache, and a command scheduler.
//!
//! ```text
//! write   into the cache when it has room -> done;   later, in scheduled order: to the platters
//! read    in the cache, or passing under the head now -> done;   else into the queue
//! head    seek -> wait for the sector -> bytes pass;   after a read, it reads ahead
//! flush   waits until the cache holds no write; later requests wait for the flush
//! ```
//!
//! **Order**: operations that hosts wait for are first: reads, and also writes while the cache is
//! full or a flush waits. With NCQ, the head performs the operation that it can reach first among
//! the oldest `reorder_max`; without NCQ, the oldest. No operation is passed over forever.
//!
//! **The cache** has two independent parts that do not compete for space: pending writes, up to the
//! cache size, and one contiguous range of read data that extends up to the cache size ahead of the
//! reader. A second sequential reader replaces that range each time.
//!
//! Rewriting a sector while its write is pending needs no additional space. A read covered by one
//! pending write takes no time. A read covered by several pending writes goes to the platters,
//! which affects only its duration, because bytes are stored by LBA. The model has no bad sectors
//! and loses no data.

mod platters;
mod schedule;
mod simulated;
mod spec;
#[cfg(test)]
mod tests;

pub use schedule::DiskCounts;
pub use simulated::Disk;
pub use spec::DiskSpec;
