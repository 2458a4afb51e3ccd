//! Reports progress to the service manager that started this process, if it requested reports.
//!
//! Source: sd_notify(3): datagrams of text to the socket `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with,
};
use rustix::time::{ClockId, clock_gettime};

const SOCKET: &str = "NOTIFY_SOCKET";

/// Reports that the drives are served.
pub(crate) fn ready() {
    tell("READY=1");
}

/// Reports that the server may restart; [`ready`] must follow.
pub(crate) fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os(SOCKET).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(state, %error, "cannot notify the service manager");
    }
}

fn send(socket: &OsStr, state: &str) -> Result<(), Errno> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let sender = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sendto(&sender, state.as_bytes(), SendFlags::NOSIGNAL, &address).map(drop)
}
