//! A Pumice drive: a compressing log-structured block device, as a library.

pub mod base;
pub mod codec;
pub mod controller;
pub mod format;
pub mod media;
pub mod runtime;
