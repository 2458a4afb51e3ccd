//! Metrics, health, JSON and a web page over HTTP, on a thread of its own.
//!
//! ```text
//!  browser, Prometheus --> HTTP thread (tokio, hyper, axum)
//!                            |  Ask, through a bounded channel
//!                            v
//!                          threads of drives: a snapshot of each, between two awaits
//! ```
//!
//! The HTTP thread never touches a drive: it shows snapshots that it requested. Without clients it
//! requests one every five seconds, for the history that a page shows first. All resources that
//! clients can occupy are limited: connections and their duration, headers, bodies, the time of a
//! request, questions in flight. So is the history.
//!
//! | file | contents |
//! |---|---|
//! | `server` | socket, thread, connections |
//! | `ask` | questions to the threads of the drives |
//! | `access` | access rules |
//! | `history` | the last hour of each drive |
//! | `routes` | paths and answers |
//! | `metrics` | a snapshot in the format of Prometheus |
//! | `page` | files of the page, embedded in the program |
//!
//! Deliberately without TLS, and without effects that a host of a drive could notice: the only
//! changes are [`Action`]s, which need a token.
//!
//! [`Action`]: crate::watch::Action

// Requests come from other machines. Tests index and cast only their own data.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing
    )
)]

mod access;
mod ask;
mod history;
mod metrics;
mod page;
mod routes;
mod server;

pub(crate) use access::{Access, Place};
pub(crate) use ask::Answerer;
pub(crate) use server::{Http, Serving};
