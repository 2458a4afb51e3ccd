//! The control socket, through which other commands reach a drive that a server has locked.
//!
//! There is one Unix socket for each served drive, named after the device and inode of the drive's
//! file, so that any path to the drive leads to it, in a private directory of the user. A client
//! sends one request and receives one or several answers.
//!
//! * `directory`: where sockets and records of running drives are.
//! * `protocol`: requests and answers; `transfer`: which snapshots are sent.
//! * `socket`: the listening socket; `session`: serves its clients.
//! * `client`: the other side.

// Requests come from other processes. Tests index and cast only their own data.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing
    )
)]

mod client;
mod directory;
mod protocol;
mod session;
mod socket;
mod transfer;

#[cfg(feature = "attach")]
pub(crate) use client::Loan;
#[cfg(feature = "top")]
pub(crate) use client::snapshot;
pub(crate) use client::{
    Arrival, Arrived, Client, Serving, connect, info, served_or_open, servers, service, serving,
};
#[cfg(feature = "attach")]
pub(crate) use directory::{place, private_directory};
pub(crate) use protocol::{Answer, ListedClient, Progress, Request, Service};
pub(crate) use session::SnapshotExports;
pub(crate) use socket::{
    ControlSocket, keep_sockets, kept_sockets, remove_kept_sockets, take_over_sockets,
};
pub(crate) use transfer::{Sending, Wanted};
