//! The address of an export: the NBD URI.
//!
//! ```text
//! nbd://HOST[:PORT][/EXPORT]              TCP; port 10809 unless said otherwise
//! nbd+unix:///[EXPORT]?socket=PATH        Unix socket
//! ```
//!
//! Unknown parts of a URI are an error and never ignored, because an unknown parameter was meant to
//! change the behaviour. TLS (`nbds`), abstract sockets and other transports are not supported, and
//! the error states this.
//!
//! Source: NetworkBlockDevice/nbd, doc/uri.md; RFC 3986.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::listen::percent_encode;
use pumice_drive::base::{Error, ErrorKind, Result};

/// NBD's port, assigned by IANA.
const PORT: u16 = 10809;

/// Longest name of an export in bytes, by the protocol.
const EXPORT_NAME_BYTES_MAX: usize = 4096;

/// An export of a server, and the server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    pub(super) server: ServerAddress,
    pub(super) export: String,
}

/// The address at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerAddress {
    /// A socket file.
    Unix(PathBuf),
    /// A host name or an address, without brackets.
    Tcp { host: String, port: u16 },
}

impl Uri {
    /// Parses `nbd://host[:port]/export` or `nbd+unix:///export?socket=PATH`. Any part may be
    /// percent-encoded; an IPv6 address is in brackets; a URI without an export means the default
    /// export.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for TLS and for other transports, [`ErrorKind::InvalidInput`] for
    /// any other text that is not such a URI; both with the reason.
    pub fn parse(text: &str) -> Result<Uri> {
        let parsed = text
            .split_once("://")
            .ok_or_else(|| wrong("it must start with nbd:// or nbd+unix://"))
            .and_then(|(scheme, rest)| parse_rest(&scheme.to_ascii_lowercase(), rest));
        parsed.map_err(|error| {
            let what = format!("invalid NBD URI '{}'", text.escape_debug());
            Error::new(error.kind(), what).caused_by(error)
        })
    }

    /// Returns the URI of an export of a server on a Unix socket. The protocol must allow the name:
    /// at most 4096 bytes, no NUL.
    pub fn unix(socket: &Path, export: &str) -> Uri {
        Uri { server: ServerAddress::Unix(socket.to_owned()), export: export.to_owned() }
    }

    /// Returns the name of the export; empty for the default export.
    pub fn export(&self) -> &str {
        &self.export
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = percent_encode(self.export.as_bytes());
        match &self.server {
            ServerAddress::Unix(path) => {
                write!(
                    f,
                    "nbd+unix:///{export}?socket={}",
                    percent_encode(path.as_os_str().as_bytes())
                )
            }
            ServerAddress::Tcp { host, port } if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/{export}")
            }
            ServerAddress::Tcp { host, port } => write!(f, "nbd://{host}:{port}/{export}"),
        }
    }
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what.into())
}

fn parse_rest(scheme: &str, rest: &str) -> Result<Uri> {
    if rest.contains('#') {
        return Err(wrong("a fragment (#) is not supported: write %23 for a literal #"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = String::from_utf8(percent_decode(path)?)
        .map_err(|_| wrong("the name of the export is not UTF-8"))?;
    if export.len() > EXPORT_NAME_BYTES_MAX || export.contains('\0') {
        return Err(wrong("an export name has at most 4096 bytes and no NUL"));
    }
    let socket = socket_of(query)?;
    let server = match (scheme, socket) {
        ("nbds" | "nbds+unix", _) => {
            let what = "TLS is not supported yet: use nbd:// or nbd+unix://";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        ("nbd", None) => parse_authority(authority)?,
        ("nbd", Some(_)) => return Err(wrong("?socket= needs nbd+unix://")),
        ("nbd+unix", Some(path)) if authority.is_empty() => ServerAddress::Unix(path),
        ("nbd+unix", Some(_)) => {
            return Err(wrong("a Unix socket has no host: write nbd+unix:/// with three slashes"));
        }
        ("nbd+unix", None) => return Err(wrong("the socket is missing: add ?socket=PATH")),
        (other, _) => {
            let what = format!("'{}' is not supported", other.escape_debug());
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
    };
    Ok(Uri { server, export })
}

/// Returns the path in the only known parameter, `socket`.
fn socket_of(query: &str) -> Result<Option<PathBuf>> {
    let mut socket = None;
    for parameter in query.split(['&', ';']).filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name != "socket" {
            return Err(wrong(format!("unknown parameter '{}'", name.escape_debug())));
        }
        let path = percent_decode(value)?;
        if path.first() == Some(&0) {
            let what = "sockets of the abstract namespace are not supported";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if path.is_empty() || path.contains(&0) {
            return Err(wrong("the path of the socket is empty or contains NUL"));
        }
        if socket.replace(PathBuf::from(OsString::from_vec(path))).is_some() {
            return Err(wrong("two sockets are given"));
        }
    }
    Ok(socket)
}

fn parse_authority(authority: &str) -> Result<ServerAddress> {
    if authority.contains('@') {
        return Err(wrong("a user name (@) has a meaning only with TLS"));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| wrong("missing ']' after the IPv6 address"))?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| wrong("the text in brackets is not an IPv6 address"))?;
            let port = match rest.strip_prefix(':') {
                None if !rest.is_empty() => return Err(wrong("expected ':' and a port after ']'")),
                port => port,
            };
            (host.to_owned(), port)
        }
        None => {
            let (host, port) = match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            };
            let host = String::from_utf8(percent_decode(host)?).ok();
            // The resolver would refuse NUL and blanks with an unrelated error.
            let host = host.filter(|host| {
                host.chars().all(|c| c.is_alphanumeric() || c == '.' || c == '-' || c == '_')
            });
            (
                host.ok_or_else(|| wrong("invalid host name; write an IPv6 address in brackets"))?,
                port,
            )
        }
    };
    if host.is_empty() {
        return Err(wrong("the host is missing"));
    }
    let port = match port {
        None | Some("") => PORT,
        Some(digits) => {
            let port = digits.parse().ok().filter(|port| *port > 0);
            let only_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            port.filter(|_| only_digits).ok_or_else(|| wrong("expected a port from 1 to 65535"))?
        }
    };
    Ok(ServerAddress::Tcp { host, port })
}

/// Decodes `%XX`; the result may be any bytes. The library ignores a malformed `%`; here it is an
/// error.
fn percent_decode(text: &str) -> Result<Vec<u8>> {
    let is_escape = |rest: &str| {
        rest.get(..2).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    if !text.split('%').skip(1).all(is_escape) {
        return Err(wrong("% is not followed by two hexadecimal digits"));
    }
    Ok(percent_encoding::percent_decode_str(text).collect())
}

#[cfg(test)]
mod tests {
    //! Goal: URIs are read as the specification requires, and invalid ones are refused. Method: its
    //! examples, each with the expected parts; printed URIs are read again.
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        Uri { server: ServerAddress::Tcp { host: host.into(), port }, export: export.into() }
    }

    fn unix(path: &[u8], export: &str) -> Uri {
        let path = OsString::from_vec(path.to_vec());
        Uri { server: ServerAddress::Unix(path.into()), export: export.into() }
    }

    #[test]
    fn good_uris_give_their_parts_and_print_the_same_again() {
        for (text, expected) in [
            ("nbd://example.com/disk", tcp("example.com", 10809, "disk")),
            ("nbd://example.com/", tcp("example.com", 10809, "")),
            ("nbd://example.com", tcp("example.com", 10809, "")),
            ("nbd://example.com:/", tcp("example.com", 10809, "")),
            ("nbd://example.com//disk", tcp("example.com", 10809, "/disk")),
            ("nbd://example.com:11/hello%20world", tcp("example.com", 11, "hello world")),
            ("NBD://127.0.0.1:65535/a/b", tcp("127.0.0.1", 65535, "a/b")),
            ("nbd://[::1]/x", tcp("::1", 10809, "x")),
            ("nbd://[2001:db8::7]:1", tcp("2001:db8::7", 1, "")),
            ("nbd+unix:///disk?socket=sock", unix(b"sock", "disk")),
            ("nbd+unix:///?socket=/tmp/a%20b", unix(b"/tmp/a b", "")),
            ("nbd+unix://?socket=/tmp/%ff", unix(b"/tmp/\xff", "")),
            ("nbd+unix:///%C3%A4?socket=/a+b%26c", unix(b"/a+b&c", "ä")),
        ] {
            let uri = Uri::parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert_eq!(uri, expected, "{text}");
            assert_eq!(Uri::parse(&uri.to_string()).unwrap(), uri, "{uri}");
        }
        assert_eq!(Uri::unix(Path::new("/tmp/a b"), "x"), unix(b"/tmp/a b", "x"));
        assert_eq!(tcp("::1", 7, "a b").to_string(), "nbd://[::1]:7/a%20b");
    }

    #[test]
    fn unknown_uris_are_refused() {
        let long = format!("nbd://h/{}", "x".repeat(4097));
        for text in [
            "",
            "nbd",
            "nbd:host",
            "/dev/nbd0",
            "nbd:///export",
            "nbd://h:0",
            "nbd://h:65536",
            "nbd://h:+1",
            "nbd://h:1:2",
            "nbd://::1/",
            "nbd://[::1",
            "nbd://[h]",
            "nbd://[::1]x",
            "nbd://u@h/",
            "nbd://h/%",
            "nbd://h/%1",
            "nbd://h/%gg",
            "nbd://h/%00",
            "nbd://h/%ff",
            "nbd://h/?socket=/s",
            "nbd://h/?tls-type=psk",
            "nbd://h/x#y",
            "nbd://a b/",
            &long,
            "nbd+unix:///",
            "nbd+unix:///?socket=",
            "nbd+unix:///?socket=a%00b",
            "nbd+unix://h/?socket=/s",
            "nbd+unix:///?socket=a&socket=b",
            "nbd+unix:///?sock=a",
        ] {
            let error = Uri::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}: {error:?}");
        }
        for text in [
            "nbds://h/",
            "nbds+unix:///?socket=a",
            "nbd+vsock://2/",
            "http://h/",
            "nbd+unix:///?socket=%00a",
        ] {
            let error = Uri::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}: {error:?}");
        }
        let refused = Uri::parse("nbds://h/").unwrap_err().chain();
        assert!(refused.contains("TLS is not supported yet"), "{refused}");
    }
}
