//! Connects a socket to an address.
//!
//! Name resolution and connecting may block for a long time, because of a silent name server or a
//! Unix socket with a full backlog. They run on a thread of their own, so that the runtime
//! continues and the caller's time limit is respected. An abandoned thread ends when the system
//! call returns, and closes its socket.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt;

use super::uri::ServerAddress;

/// Time limit for each address of a host. The caller's overall limit may be shorter.
const ADDRESS_LIMIT: Duration = Duration::from_secs(10);

/// Connects, and sets the options of a TCP socket.
///
/// # Errors
/// Errors of the operating system, for the last address if a host has several.
pub(super) async fn connect(server: &ServerAddress) -> io::Result<OwnedFd> {
    let server = server.clone();
    blocking::unblock(move || match server {
        ServerAddress::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        ServerAddress::Tcp { host, port } => connect_tcp(&host, port),
    })
    .await
}

fn connect_tcp(host: &str, port: u16) -> io::Result<OwnedFd> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ADDRESS_LIMIT) {
            Ok(stream) => {
                // A request must not wait for the next one, and the client must notice a server
                // that has vanished.
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                return Ok(stream.into());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    //! Goal: a TCP connection does not delay small requests, and notices a lost peer.
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn tcp_sockets_send_at_once_and_notice_a_lost_peer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = connect_tcp("127.0.0.1", port).unwrap();
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        drop(listener);
        assert!(connect_tcp("127.0.0.1", port).is_err());
    }
}
