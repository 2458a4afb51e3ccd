//! Simulated drives in virtual time: flash drives with several designs, hard disks, and the hosts
//! that use them.
//!
//! A [`Profile`](profile::Profile) describes a drive in numbers, each with its source. A simulation
//! of that drive spends no wall-clock time on its operations: it calculates the time at which each
//! of them completes. The same profile, requests and seed always produce the same times.
//!
//! This is not an emulator: no guest or kernel sees these drives. The crate uses no attached drive,
//! no socket and no wall clock, and prints nothing.
//!
//! ```
//! use pumice_sim::Error;
//! use pumice_sim::drive::{SimDrive, SimSpec};
//!
//! let drive = SimDrive::new(SimSpec::find("micro-center-64")?)?;
//! let runtime = drive.runtime().clone();
//! runtime.block_on(async {
//!     drive.write(0, &[7; 4096]).await?;
//!     drive.flush().await?;
//!     let mut block = [0; 4096];
//!     drive.read(0, &mut block).await?;
//!     assert_eq!(block, [7; 4096]);
//!     Ok::<(), Error>(())
//! })?;
//! assert!(drive.counts().flash_bytes > 0);
//! # Ok::<(), Error>(())
//! ```
//!
//! # Map
//!
//! * `profile`: the parts of a drive, in numbers that each have a source; `convert`: conversion
//!   from a profile to the parameters of the simulations.
//! * `front`: the front end of a drive, which is the queue, the link and the processor between a
//!   host and the storage.
//! * `drive`: a drive with real bytes, for benchmarks: a front end and one of several designs.
//!   These are a log on simulated flash; `block_mapped`, flash with a map of large units; `disk`, a
//!   head over platters; memory; and `cached`, a drive with another drive as its cache. `content`
//!   stores the bytes.
//! * `nand`: simulated flash, with its rules, times and wear.
//! * `ftl`: a flash translation layer that stores sizes instead of bytes; `log_store`: the same
//!   layer with the cached part of its map (`map_pages`), read-ahead and larger units.
//! * `log_drive`: such a store with a front end, calculated without tasks; `streams`: sequential
//!   commands.
//! * `host`: a closed-loop host for such a layer; `sim_host`: runs a host on a drive with bytes.
//! * `system`: a host's operating system, with its page cache, above a drive.
//! * `formula`: the cost of garbage collection, and the endurance, without simulation.
//! * `trace`: recorded requests, in four formats.

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
mod log_store;
mod map_pages;
pub mod nand;
pub mod profile;
pub mod sim_host;
mod streams;
pub mod system;
pub mod trace;

pub use error::{Error, Result};
pub use log_store::LogStoreSpec;
