//! Where `pumice top` asks: the control socket of a drive on this machine, or the HTTP of a server
//! anywhere.
//!
//! HTTP goes to the server that is named and nowhere else: no proxy, no redirect, no encryption. A
//! token goes with every request if there is one.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ureq::Agent;
use ureq::http::StatusCode;
use ureq::http::header::AUTHORIZATION;

use crate::control;
use crate::watch::Snapshot;
use pumice_drive::base::{Error, ErrorKind, Result};

/// How long a server may take to answer: its own limit for an answer is shorter.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Bytes of an answer at most: thousands of drives.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// What follows the address.
const PATH: &str = "/api/snapshot";

/// A drive or a server that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A drive that is served on this machine.
    Drive(PathBuf),
    /// A server, as `http://ADDRESS` without a slash at the end.
    Server(String),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.starts_with("https://") {
            return Err("https:// is not supported: tunnel to the server, as in \
                `ssh -L 9110:127.0.0.1:9110 HOST`, and name http://127.0.0.1:9110"
                .into());
        }
        let Some(address) = text.strip_prefix("http://") else {
            return Ok(Self::Drive(text.into()));
        };
        let is_plain = |c: char| c.is_ascii_graphic() && !"@?#".contains(c);
        match address.trim_end_matches('/') {
            "" => Err("a URL names a server: http://127.0.0.1:9110".into()),
            address if address.chars().all(is_plain) => {
                Ok(Self::Server(format!("http://{address}")))
            }
            _ => Err("a URL is http://HOST:PORT and nothing else; a token is given by \
                --token-file"
                .into()),
        }
    }
}

/// Asks servers over HTTP.
pub(super) struct Asker {
    agent: Agent,
    token: Option<String>,
}

impl Asker {
    /// With the token that is sent, if there is one.
    pub(super) fn new(token: Option<String>) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(ANSWER_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        Self { agent: config.into(), token }
    }

    /// What there is to see at a place now.
    ///
    /// # Errors
    /// Nobody serves there, or they do not let us look; with what to do about it.
    pub(super) fn ask(&self, source: &Source) -> Result<Snapshot> {
        match source {
            Source::Drive(path) => {
                let snapshot = control::snapshot(path)?;
                snapshot.filter(|snapshot| !snapshot.drives.is_empty()).ok_or_else(|| {
                    let path = path.display();
                    let what = format!(
                        "nobody serves {path}: start `pumice serve {path}`, then try again"
                    );
                    Error::new(ErrorKind::NotFound, what)
                })
            }
            Source::Server(url) => self.get(url),
        }
    }

    fn get(&self, url: &str) -> Result<Snapshot> {
        let mut request = self.agent.get(format!("{url}{PATH}"));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let mut answer = request.call().map_err(|error| {
            let what = format!(
                "nobody answers at {url}: start `pumice serve DRIVE --http ADDR:PORT` there, and \
                 name that address"
            );
            Error::os(what, std::io::Error::other(error))
        })?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| {
            Error::os(format!("{url} broke off its answer"), std::io::Error::other(error))
        })?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| {
                let what = format!(
                    "{url} does not answer as `pumice serve --http` of version {} does: {error}",
                    env!("CARGO_PKG_VERSION")
                );
                Error::new(ErrorKind::Unsupported, what)
            });
        }
        Err(refused(url, status, &body, self.token.is_some()))
    }
}

/// What to do about an answer that is none.
fn refused(url: &str, status: StatusCode, body: &[u8], has_token: bool) -> Error {
    // What a server says of itself, if it is one of ours.
    let said: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = said.as_ref().and_then(|said| said["error"].as_str()).unwrap_or_default();
    let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
    let (kind, what) = match status {
        StatusCode::UNAUTHORIZED if has_token => {
            (ErrorKind::PermissionDenied, "has another token: check the file of --token-file")
        }
        StatusCode::UNAUTHORIZED => (
            ErrorKind::PermissionDenied,
            "wants its token: give the file that it was started with, --token-file FILE",
        ),
        StatusCode::NOT_FOUND => {
            (ErrorKind::NotFound, "is no `pumice serve --http`: name the address that its log says")
        }
        StatusCode::MISDIRECTED_REQUEST => (
            ErrorKind::PermissionDenied,
            "answers to no such name without a token: name it by its address, or as localhost",
        ),
        StatusCode::SERVICE_UNAVAILABLE => (ErrorKind::Busy, "cannot say just now: try again"),
        _ => (ErrorKind::Unsupported, "does not answer as `pumice serve --http` does"),
    };
    let reason = if said.is_empty() { String::new() } else { format!(", {said}") };
    Error::new(kind, format!("{url} {what} ({status}{reason})"))
}

#[cfg(test)]
mod tests {
    //! Goal: paths are paths, servers are servers, and nothing else is taken for either.

    use super::Source;

    #[test]
    fn paths_and_servers_are_told_apart() {
        let server = |url: &str| Ok(Source::Server(url.into()));
        assert_eq!("a/b.pumice".parse(), Ok(Source::Drive("a/b.pumice".into())));
        assert_eq!("http:/a".parse(), Ok(Source::Drive("http:/a".into())));
        assert_eq!("http://[::1]:9110/".parse(), server("http://[::1]:9110"));
        assert_eq!("http://host/behind/".parse(), server("http://host/behind"));
        for (wrong, words) in [
            ("https://host", "ssh -L"),
            ("http://", "names a server"),
            ("http:///", "names a server"),
            ("http://me:secret@host", "--token-file"),
            ("http://host/?q", "nothing else"),
            ("http://ho st", "nothing else"),
        ] {
            let refused = wrong.parse::<Source>().unwrap_err();
            assert!(refused.contains(words), "{wrong}: {refused}");
        }
    }
}
