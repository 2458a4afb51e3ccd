//! Recorded requests, read line by line from files of any length.
//!
//! | format | a line | time |
//! |---|---|---|
//! | `msr` | Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime | 100 ns since 1601 |
//! | `mqsim` | time, device, sector, sectors, 0 write or 1 read | ns; DiskSim's, with a point, ms |
//! | `blkparse` | default output of blkparse: events Q, or D if there are no Q | s |
//! | `iolog` | fio's log: file, action, offset, length; version 3 begins with the time | us |
//!
//! A sector has 512 bytes. If a trace has several disks, one is read: the first that occurs, or the
//! requested one. Parsing a line allocates nothing except the names of an iolog's files, whose
//! number is limited; a line may have at most 64 KiB.

mod blkparse;
mod columns;
mod entry;
mod format;
mod iolog;
mod reader;
#[cfg(test)]
mod tests;

pub use entry::Entry;
pub use format::Format;
pub use reader::{LeftOut, Options, Reader};
