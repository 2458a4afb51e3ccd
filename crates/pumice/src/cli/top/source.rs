//! Sources of `pumice top`: the control socket of a drive on this machine, or the HTTP address of
//! any server.
//!
//! HTTP requests go only to the given server: no proxy, no redirect, no encryption. The token, if
//! there is one, is sent with every request.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::http::header::AUTHORIZATION;

use crate::control;
use crate::holder::Holder;
use crate::watch::Snapshot;

/// Time limit for an answer: longer than the server's own limit.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Longest answer in bytes: enough for thousands of drives.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Path of the request.
const PATH: &str = "/api/snapshot";

/// A drive or a server to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A drive served on this machine.
    Drive(PathBuf),
    /// A server, as `http://ADDRESS` without a trailing slash.
    Server(String),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.starts_with("https://") {
            return Err("https:// is not supported: tunnel to the server, as in \
                `ssh -L 9110:127.0.0.1:9110 HOST`, and use http://127.0.0.1:9110"
                .into());
        }
        let Some(address) = text.strip_prefix("http://") else {
            return Ok(Self::Drive(text.into()));
        };
        let is_plain = |c: char| c.is_ascii_graphic() && !"@?#".contains(c);
        match address.trim_end_matches('/') {
            "" => Err("expected a URL such as http://127.0.0.1:9110".into()),
            address if address.chars().all(is_plain) => {
                Ok(Self::Server(format!("http://{address}")))
            }
            _ => Err("expected only http://HOST:PORT; use --token-file for a \
                token"
                .into()),
        }
    }
}

/// Queries servers.
pub(super) struct Asker {
    agent: Agent,
    token: Option<String>,
}

impl Asker {
    /// Returns an asker that sends `token`, if there is one.
    pub(super) fn new(token: Option<String>) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(ANSWER_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        Self { agent: config.into(), token }
    }

    /// Returns the current snapshot of a source.
    ///
    /// # Errors
    /// No server answers, or it refuses the request; the error includes advice.
    pub(super) fn ask(&self, source: &Source) -> Result<Snapshot> {
        match source {
            Source::Drive(path) => {
                let snapshot = control::snapshot(path)?;
                if snapshot.is_none()
                    && let Some(holder) = Holder::of(path)
                {
                    return Err(holder.refusal(path).into());
                }
                snapshot.filter(|snapshot| !snapshot.drives.is_empty()).ok_or_else(|| {
                    let path = path.display();
                    anyhow!("{path} is not served: start `pumice serve {path}` first")
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
        let mut answer = request.call().with_context(|| {
            format!(
                "no answer from {url}: start `pumice serve DRIVE --http ADDR:PORT` there, and \
                 use that address"
            )
        })?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.with_context(|| format!("the answer of {url} is incomplete"))?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).with_context(|| {
                format!(
                    "unexpected answer from {url}: expected `pumice serve --http` of version {}",
                    env!("CARGO_PKG_VERSION")
                )
            });
        }
        Err(refused(url, status, &body, self.token.is_some()))
    }
}

/// Returns the error for an answer other than a snapshot.
fn refused(url: &str, status: StatusCode, body: &[u8], has_token: bool) -> anyhow::Error {
    // The message of the server, if it is a Pumice server.
    let said: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = said.as_ref().and_then(|said| said["error"].as_str()).unwrap_or_default();
    let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
    let what = match status {
        StatusCode::UNAUTHORIZED if has_token => {
            "refuses the token: check the file of --token-file"
        }
        StatusCode::UNAUTHORIZED => {
            "requires a token: use --token-file with the file that it was started with"
        }
        StatusCode::NOT_FOUND => "is not a `pumice serve --http`: use the address in its log",
        StatusCode::MISDIRECTED_REQUEST => {
            "refuses this name without a token: use its address, or localhost"
        }
        StatusCode::SERVICE_UNAVAILABLE => "is busy: try again",
        _ => "is not a `pumice serve --http`",
    };
    let reason = if said.is_empty() { String::new() } else { format!(", {said}") };
    anyhow!("{url} {what} ({status}{reason})")
}

#[cfg(test)]
mod tests {
    //! Goal: paths and servers are told apart, and anything else is rejected.

    use super::Source;

    #[test]
    fn paths_and_servers_are_told_apart() {
        let server = |url: &str| Ok(Source::Server(url.into()));
        assert_eq!("a/b.pumice".parse(), Ok(Source::Drive("a/b.pumice".into())));
        assert_eq!("http:/a".parse(), Ok(Source::Drive("http:/a".into())));
        assert_eq!("http://[::1]:9110/".parse(), server("http://[::1]:9110"));
        assert_eq!("http://host/path/".parse(), server("http://host/path"));
        for (wrong, words) in [
            ("https://host", "ssh -L"),
            ("http://", "such as"),
            ("http:///", "such as"),
            ("http://me:secret@host", "--token-file"),
            ("http://host/?q", "expected only"),
            ("http://ho st", "expected only"),
        ] {
            let refused = wrong.parse::<Source>().unwrap_err();
            assert!(refused.contains(words), "{wrong}: {refused}");
        }
    }
}
