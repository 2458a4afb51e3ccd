//! Metrics, health, facts as JSON and a page over HTTP, by a thread of its own.
//!
//! ```text
//!  browser, Prometheus --> thread of this room (tokio, hyper, axum)
//!                            |  Ask, through a channel of a few places
//!                            v
//!                          the drives' thread: one snapshot, between two awaits
//! ```
//!
//! The HTTP thread never touches a drive: what it shows are snapshots that it asked for. Nobody
//! asks, nothing runs. Everything a client can make it hold has a limit: connections, their life,
//! headers, bodies, the time of a request, questions under way.
//!
//! | file | noun |
//! |---|---|
//! | `server` | socket, thread, connections |
//! | `ask` | the way to the drives' thread |
//! | `access` | who may ask for what |
//! | `routes` | what there is to ask for |
//! | `metrics` | a snapshot as Prometheus reads it |
//! | `page` | files of the page, in the program |
//!
//! Deliberately without TLS, and without anything that a host of a drive could notice: the only
//! changes are [`Action`]s, and those only with a token.
//!
//! [`Action`]: crate::watch::Action

mod access;
mod ask;
mod metrics;
mod page;
mod routes;
mod server;

pub(crate) use access::Access;
pub(crate) use server::{Http, Serving};
