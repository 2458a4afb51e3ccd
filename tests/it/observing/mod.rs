//! The reports of a server: log, metrics, pages, warnings.

#[cfg(feature = "http")]
mod dashboard;
#[cfg(feature = "http")]
pub(crate) mod http;
mod log;
#[cfg(feature = "http")]
mod page;
#[cfg(feature = "top")]
mod top;
mod warn;
