//! Recorded requests, read line by line from files of arbitrary length.
//!
//! | format | a line | time |
//! |---|---|---|
//! | `msr` | Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime | 100 ns since 1601 |
//! | `mqsim` | time, device, sector, sectors, 0 write or 1 read | ns; DiskSim's, with a point, ms |
//! | `blkparse` | default output of blkparse: events Q, or D if there are no Q | s |
//! | `iolog` | fio's log: file, action, offset, length; version 3 begins with the time | us |
//!
//! A sector has 512 bytes. If a trace contains several disks, only one is read: the selected one,
//! or otherwise the first that occurs. Parsing a line allocates nothing except for the file names
//! of an iolog, whose number is limited. A line may have at most 64 KiB.

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
