//! Profiles: the parts of a drive in TOML, with a basis for every number.
//!
//! ```toml
//! name = "Micro Center 64 GB"
//! about = "One sentence."
//! year = 2010
//! kind = "log"                   # or "block-mapped", "disk"
//! size_bytes = { is = 60_022_480_896, source = "data sheet" }
//! include = "sandforce-sf-1200"   # optional: parts or profiles that supply missing keys
//! [link]                         # the link to the host
//! [controller]
//! [flash]                        # of "log" and "block-mapped"
//! [parity]                       # optional, of "log"
//! [mapping]                      # of "block-mapped"
//! [disk]                         # of "disk"
//! ```
//!
//! * `sourced`: a number and its basis: a source, the cells that it was fitted to, or an admitted
//!   guess.
//! * `sections`: the keys of each section, defined once: type, limits and display.
//! * `check`: the validation of a profile.
//! * `figures`: figures calculated from a profile; `links`: other links for a drive.
//!
//! Invariants of every [`Profile`] value: each number is within the limits of its key, the bytes of
//! the geometry fit into 64 bits, and the good flash is not smaller than the disk. A simulation
//! therefore need not check again. The module does not simulate.

mod builtin;
mod check;
mod figures;
mod links;
mod parse;
mod parts;
mod sections;
mod sourced;
#[cfg(test)]
mod tests;

pub use builtin::PROFILES;
pub use figures::{ChannelFigures, DiskFigures, Figures, FlashFigures, ParityFigures};
pub use parts::{Design, Profile};
pub(crate) use sections::MAP_REGION_BYTES;
pub use sections::{Controller, Disk, Fact, Flash, Link, Mapping, Parity, Value};
pub use sourced::{Basis, Sourced};
