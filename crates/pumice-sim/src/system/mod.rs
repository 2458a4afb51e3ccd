//! A host's operating system above a simulated drive, in virtual time.
//!
//! ```text
//! program -> call -> page cache -> commands -> drive        buffered
//! program -> call ---------------> commands -> drive        direct
//! ```
//!
//! **Buffered writes** are copied and acknowledged. When more than half of the allowance for dirty
//! pages is used, pages are written back in ascending order, adjacent pages together, with as many
//! commands in flight as the queue has slots. When all of it is used, programs wait. A flush writes
//! back all dirty pages. For **buffered reads** that continue where the previous one ended, the
//! next window is read ahead while the current one is being used.
//!
//! The calls of a program use the processor one after another. Not simulated: file systems and
//! their metadata, more than one file, and writing back pages because of their age.

mod page_cache;
mod simulated;
mod spec;
#[cfg(test)]
mod tests;

pub use simulated::System;
pub use spec::{CacheSpec, SystemSpec};
