//! Serving drives: access to exports, concurrent clients, and restarts.

pub(crate) mod access;
mod config;
mod crowd;
mod exports;
mod restart;
mod serve;
pub(crate) mod tls;
#[cfg(feature = "vhost")]
mod vhost;
