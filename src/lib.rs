//! Pumice: an SSD controller in software that compresses as it writes.
//!
//! The modules are rooms, and imports point down only:
//!
//! ```text
//! base -> runtime, format, codec, media, report -> controller -> serve, torture, model -> bench
//! -> scan -> cli
//! ```
//!
//! `ARCHITECTURE.md` walks through them; `docs/terms.md` fixes the words used here.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod base;
#[cfg(feature = "bench")]
pub mod bench;
pub mod cli;
pub mod codec;
pub mod controller;
pub mod format;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
pub mod media;
#[cfg(feature = "bench")]
pub mod model;
pub mod report;
pub mod runtime;
#[cfg(feature = "bench")]
pub mod scan;
pub mod serve;
pub mod torture;
