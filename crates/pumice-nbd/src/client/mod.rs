//! The NBD client: fixed newstyle handshake, simple replies, any server.
//!
//! ```text
//! caller's task --+                                            +--> caller's task
//! caller's task --+-> outgoing -> sender -> SERVER -> receiver +--> caller's task
//! caller's task --+      table (slot and generation = cookie)  +--> caller's task
//! ```
//!
//! Everything runs on the one thread of the runtime. Requests that tasks make in one turn are sent
//! together; replies received together are delivered together. The client has no TLS, no structured
//! replies, and no metadata contexts except [`allocation()`], and does not reconnect. No input from
//! a server is trusted: none causes a panic or an allocation of more than a fixed buffer.
//!
//! | file | contents |
//! |---|---|
//! | `uri` | address of an export |
//! | `connect` | from an address to a socket |
//! | `handshake` | from a socket to an export |
//! | `table` | requests in flight |
//! | `outgoing` | unsent requests |
//! | `connection` | one request from start to end, the sender, the end |
//! | `receiver` | replies |
//! | `verbs` | the client: the requests it offers |
//! | `allocation` | the holes of an export, over a connection of its own |

mod allocation;
mod connect;
mod connection;
mod handshake;
mod outgoing;
mod receiver;
mod table;
mod uri;
mod verbs;

#[cfg(test)]
mod tests;

pub use allocation::allocation;
pub use handshake::Capabilities;
pub use uri::Uri;
pub use verbs::Client;
