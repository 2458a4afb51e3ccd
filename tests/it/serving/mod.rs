//! How drives are served: who may use which export, beside whom, and across restarts.

pub(crate) mod access;
mod config;
mod crowd;
mod exports;
mod restart;
mod serve;
pub(crate) mod tls;
#[cfg(feature = "vhost")]
mod vhost;
