//! What a benchmark needs that is not a drive.
//!
//! * `payload`: data of a given saving, as a host would write it.
//!
//! Reaches a drive only as a host does; prints nothing.

pub mod payload;
