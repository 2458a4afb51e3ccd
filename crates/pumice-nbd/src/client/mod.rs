//! The NBD client: fixed newstyle handshake, simple replies, any server.
//!
//! ```text
//! caller's task --+                                            +--> caller's task
//! caller's task --+-> outgoing -> sender -> SERVER -> receiver +--> caller's task
//! caller's task --+      table (slot and generation = cookie)  +--> caller's task
//! ```
//!
//! Everything runs on the runtime's one thread. Requests that the tasks of one turn make leave
//! together; replies that came together are given out together. Offers no TLS, no structured
//! replies, no metadata contexts, no second try after a connection was lost. Nothing that a server
//! sends is trusted: no byte of it can panic or allocate more than a fixed buffer.
//!
//! | file | noun |
//! |---|---|
//! | `uri` | where an export is |
//! | `connect` | from an address to a socket |
//! | `handshake` | from a socket to an export |
//! | `table` | requests under way |
//! | `outgoing` | what is to be sent |
//! | `connection` | one request's way, the sender, the end |
//! | `receiver` | replies |
//! | `verbs` | the client: what can be asked |

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

pub use handshake::Capabilities;
pub use uri::Uri;
pub use verbs::Client;
