//! Access rules of the HTTP server.
//!
//! | listening on | token | GET | POST |
//! |---|---|---|---|
//! | loopback | no | everyone | refused |
//! | loopback | yes | everyone, or with the token if required | with the token |
//! | a Unix socket | as loopback | who may connect | |
//! | other addresses | yes | with the token | with the token |
//! | other addresses, `insecure` | no | everyone | refused |
//! | other addresses | no | refused to listen | |
//!
//! The token is sent as `Authorization: Bearer TOKEN`, or for GET as the password of any user, so
//! that a browser can prompt for it. POST accepts only the first form: a browser adds the second
//! automatically, even to forms of other sites.
//!
//! **DNS rebinding.** A page of another site can let its own name resolve to this address, and then
//! read everything that is open to everyone. Where no token is required, the `Host` header must
//! therefore be an address or `localhost`. No page reaches a Unix socket, but a proxy in front of
//! it may pass on any name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, Method, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use pumice_drive::base::{Error, ErrorKind, Result};

/// Shortest token in bytes: 16 characters of base64 are 96 bits.
const TOKEN_BYTES_MIN: usize = 16;

/// Longest token in bytes; headers have a limit, too.
const TOKEN_BYTES_MAX: usize = 1024;

/// An address or socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a TCP address.
    Tcp(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

impl Place {
    /// Whether only processes of this machine reach it.
    fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Unix(_) => true,
        }
    }
}

/// As a URL, and as the value of `--http`, respectively.
impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "http://{address}/"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Access rules.
#[derive(Clone)]
pub(crate) struct Access {
    place: Place,
    token: Option<String>,
    /// Whether reading needs the token on this machine as well.
    is_private: bool,
}

/// The reason why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) what: &'static str,
}

fn refuse<T>(status: StatusCode, what: &'static str) -> std::result::Result<T, Refusal> {
    Err(Refusal { status, what })
}

impl Access {
    /// Returns the rules for a server at `place`.
    ///
    /// # Errors
    /// `InvalidInput` for a place that other machines can reach without token and without
    /// `insecure`, and for a token that is too short, too long, or not printable ASCII.
    pub(crate) fn new(place: Place, token: Option<String>, insecure: bool) -> Result<Self> {
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
        if let Some(token) = &token {
            let is_good_length = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len());
            if !is_good_length || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return wrong(format!(
                    "a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} printable characters \
                     without blanks: create one with `openssl rand -hex 16`"
                ));
            }
        } else if !place.is_local() && !insecure {
            return wrong(format!(
                "other machines can reach {place}: use --http-token-file, or \
                 --http-insecure to allow reading without a token"
            ));
        }
        Ok(Self { place, token, is_private: false })
    }

    /// Returns rules under which reading needs the token on this machine as well.
    ///
    /// # Errors
    /// `InvalidInput` if there is no token.
    pub(crate) fn private(self) -> Result<Self> {
        if self.token.is_none() {
            let what = "--http-private needs --http-token-file";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(Self { is_private: true, ..self })
    }

    /// Returns the address or socket to listen on.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the same rules with the port that the operating system chose.
    pub(super) fn at(self, address: SocketAddr) -> Self {
        Self { place: Place::Tcp(address), ..self }
    }

    /// Checks whether a request may be answered.
    pub(super) fn check(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> std::result::Result<(), Refusal> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let is_open = self.place.is_local() && !self.is_private;
        let asks_always = self.token.is_some() && !is_open;
        let host = headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
        if !asks_always && !self.is_known(host) {
            let what = "use an address or localhost: other names are refused, so that no page of \
                        another site can read this";
            return refuse(StatusCode::MISDIRECTED_REQUEST, what);
        }
        let offered = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        match (&self.token, is_read) {
            (None, true) => Ok(()),
            (None, false) => {
                let what = "read-only: the server was started without --http-token-file";
                refuse(StatusCode::FORBIDDEN, what)
            }
            (Some(token), true) if asks_always && !is_token(offered, token, true) => {
                refuse(StatusCode::UNAUTHORIZED, "the token is missing or wrong")
            }
            (Some(_), true) => Ok(()),
            (Some(token), false) if !is_token(offered, token, false) => {
                let what =
                    "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`";
                refuse(StatusCode::UNAUTHORIZED, what)
            }
            (Some(_), false) => Ok(()),
        }
    }

    /// Whether a `Host` header cannot be a name that an attacker could resolve to this address.
    fn is_known(&self, host: &[u8]) -> bool {
        let Place::Tcp(address) = &self.place else { return true };
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        match name.parse::<IpAddr>() {
            Ok(ip) => is_loopback(ip) || !is_loopback(address.ip()),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether a client sent the token, as a bearer or as a password.
fn is_token(offered: Option<&[u8]>, token: &str, may_be_password: bool) -> bool {
    let Some((scheme, credentials)) = offered
        .and_then(|offered| std::str::from_utf8(offered).ok())
        .and_then(|offered| offered.split_once(' '))
    else {
        return false;
    };
    if scheme.eq_ignore_ascii_case("bearer") {
        return is_same(credentials.trim().as_bytes(), token.as_bytes());
    }
    if !scheme.eq_ignore_ascii_case("basic") || !may_be_password {
        return false;
    }
    let Ok(decoded) = STANDARD.decode(credentials.trim()) else { return false };
    let password = decoded.splitn(2, |&byte| byte == b':').nth(1);
    password.is_some_and(|password| is_same(password, token.as_bytes()))
}

/// Compares in a time that does not reveal the position of the first difference.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    let differences = left.iter().zip(right).fold(0, |found, (left, right)| found | (left ^ right));
    left.len() == right.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    //! Goal: every row of the table in the header holds, and foreign names are refused.
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn access(address: &str, token: bool, insecure: bool) -> Result<Access> {
        let place = match address.strip_prefix("unix:") {
            Some(path) => Place::Unix(path.into()),
            None => Place::Tcp(address.parse().unwrap()),
        };
        Access::new(place, token.then(|| TOKEN.to_owned()), insecure)
    }

    fn status(access: &Access, method: &str, host: &str, authorization: &str) -> u16 {
        let mut headers = HeaderMap::new();
        if !host.is_empty() {
            headers.insert(HOST, host.parse().unwrap());
        }
        if !authorization.is_empty() {
            headers.insert(AUTHORIZATION, authorization.parse().unwrap());
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        access.check(&method, &headers).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn the_table_holds() {
        let bearer = format!("Bearer {TOKEN}");
        let basic = format!("Basic {}", STANDARD.encode(format!("anyone:{TOKEN}")));
        let wrong = "Bearer 0123456789abcdee";
        let inside = access("127.0.0.1:80", false, false).unwrap();
        let inside_with = access("[::1]:80", true, false).unwrap();
        let local = access("unix:/run/web", false, false).unwrap();
        let local_with = access("unix:/run/web", true, false).unwrap();
        assert_eq!(status(&local, "GET", "proxy.example", ""), 200, "no page reaches it");
        let private = access("127.0.0.1:80", true, false).unwrap().private().unwrap();
        assert!(access("127.0.0.1:80", false, false).unwrap().private().is_err());
        let outside_with = access("192.0.2.1:80", true, false).unwrap();
        let outside_open = access("0.0.0.0:80", false, true).unwrap();
        assert!(access("192.0.2.1:80", false, false).is_err());
        assert!(access("[::]:80", false, false).is_err());
        for (rules, none, password, token) in [
            (&inside, [200, 403], [200, 403], [200, 403]),
            (&inside_with, [200, 401], [200, 401], [200, 200]),
            (&local, [200, 403], [200, 403], [200, 403]),
            (&local_with, [200, 401], [200, 401], [200, 200]),
            (&outside_with, [401, 401], [200, 401], [200, 200]),
            (&private, [401, 401], [200, 401], [200, 200]),
            (&outside_open, [200, 403], [200, 403], [200, 403]),
        ] {
            for (at, method) in ["GET", "POST"].into_iter().enumerate() {
                let asked = |authorization: &str| status(rules, method, "127.0.0.1", authorization);
                assert_eq!((asked(""), asked(wrong)), (none[at], none[at]), "{method}");
                assert_eq!(asked(&basic), password[at], "{method}");
                assert_eq!(asked(&bearer), token[at], "{method}");
            }
            let other = status(rules, "DELETE", "127.0.0.1", "");
            assert_eq!(other, none[1]);
        }
    }

    #[test]
    fn names_are_refused_where_no_token_is_asked_for() {
        let inside = access("127.0.0.1:80", true, false).unwrap();
        let outside = access("0.0.0.0:80", false, true).unwrap();
        let guarded = access("0.0.0.0:80", true, false).unwrap();
        let bearer = format!("Bearer {TOKEN}");
        for (host, inside_status, outside_status) in [
            ("localhost", 200, 200),
            ("LocalHost:8080", 200, 200),
            ("127.0.0.1:80", 200, 200),
            ("127.9.9.9", 200, 200),
            ("[::1]:80", 200, 200),
            ("192.0.2.7:80", 421, 200),
            ("evil.example", 421, 421),
            ("evil.example:80", 421, 421),
            ("localhost.evil.example", 421, 421),
            ("127.0.0.1.evil.example", 421, 421),
            ("", 421, 421),
        ] {
            assert_eq!(status(&inside, "GET", host, ""), inside_status, "{host}");
            assert_eq!(status(&outside, "GET", host, ""), outside_status, "{host}");
            assert_eq!(status(&guarded, "GET", host, &bearer), 200, "{host}");
        }
    }

    #[test]
    fn tokens_that_are_easily_guessed_or_cannot_be_sent_are_refused() {
        let place = || Place::Tcp("127.0.0.1:80".parse().unwrap());
        for token in
            ["", "short", "0123456789abcde ", "0123456789abcd\u{e4}", "0123456789abc\r\ndef"]
        {
            assert!(Access::new(place(), Some(token.to_owned()), true).is_err(), "{token:?}");
        }
        assert!(Access::new(place(), Some("x".repeat(1025)), true).is_err());
        let malformed = ["Bearer", "Basic", "Basic !!!", "Basic YWJj", "Digest x", "Bearer  "];
        for offered in malformed {
            assert!(!is_token(Some(offered.as_bytes()), TOKEN, true), "{offered}");
        }
    }
}
