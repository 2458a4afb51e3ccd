//! Drives in virtual time: what a drive would do, without owning it.
//!
//! * `profile`: what a drive is built of, in numbers that each say where they come from.
//! * `front`: the queue, the wire and the processor between a host and a drive's controller.
//! * `stored`: what its blocks take, and the least; `map_pages`: what of its map is at hand.
//! * `drive`: a drive that is benchmarked, with real bytes: one of three behind such a front. The
//!   controller of this program on simulated flash; `block_mapped`: a map of large units, on flash
//!   too; `disk`: a head over platters. `content` holds the bytes of the latter two.
//! * `ftl`: a flash translation layer that holds stored sizes instead of bytes.
//! * `system`: a host's operating system, with its page cache, in front of such a drive.
//! * `host`: a host that keeps so many requests to such a layer in flight.
//! * `log_drive`: such a layer behind the same front, by arithmetic.
//! * `formula`: what garbage collection costs, and how long a drive lasts, without simulation.
//! * `trace`: requests that somebody recorded, in four formats.
//! * `convert`: from a profile to what the others take.
//!
//! The same seed gives the same run. Deliberately knows no real drive that is attached to this
//! machine, no socket and no wall clock, and prints nothing.

pub mod block_mapped;
mod content;
mod convert;
pub mod disk;
pub mod drive;
mod error;
pub mod formula;
pub mod front;
pub mod ftl;
pub mod host;
pub mod log_drive;
mod map_pages;
pub mod nand;
pub mod profile;
pub mod sim_host;
mod stored;
pub mod system;
pub mod trace;

pub use error::{Error, Result};
pub use map_pages::MapSpec;
