//! Data with a known compressibility.
//!
//! A [`Payload`] is a kind of data with its parameters. A [`Stream`] is an endless sequence of its
//! units (4 KiB, or the record size of a host that writes smaller records). The contents of a unit
//! are a function of the payload's options, the stream number and the unit number, so data can be
//! verified without being stored. Data that is fitted to codecs, in particular spread and like
//! data, may change between versions of this program.
//!
//! * `options`: the parameters; `stream`: payloads and their streams.
//! * `saving`: a saving as a type.
//! * `measure`: the savings of codecs.
//! * `pool`: fresh random bytes at the speed of copying.
//! * `exact`, `weave` with `texture`, `profile` and `spread`, `iozone`: the kinds.
//! * `corpus`: profiles of files, folders and devices; `repeats`: duplicate data.
//! * `kind`: names of the kinds.
//!
//! No two units are equal unless duplicates or fills were requested, or the imitated or replayed
//! data contains them. This holds only for whole units: a piece of exact data that is smaller than
//! a unit may be all zeroes, because the compressible part of a unit consists of zeroes at its end.
//! Savings depend on the codec; a payload is calibrated when it is created, for LZ4 by default. The
//! data is not encrypted: an observer can distinguish it from random bytes. The module uses only
//! the codecs of the drive and this crate's error.

mod corpus;
mod exact;
mod iozone;
mod kind;
mod measure;
mod options;
mod pool;
mod profile;
pub mod repeats;
mod saving;
mod spread;
mod stream;
#[cfg(test)]
mod tests;
mod texture;
mod weave;

pub use iozone::IozoneLayout;
pub use kind::KindName;
pub use measure::{Finding, Meter, Survey, Tally, measure};
pub use options::{Kind, PayloadOptions, RECORD_BYTES_MAX};
pub use pool::WINDOW_BYTES;
pub(crate) use profile::PROFILE_FILE_BYTES_MAX;
pub use profile::{Profile, Profiling, UNIT_BYTES};
pub use saving::Saving;
pub use stream::{Payload, Stream};
