//! Monitoring options of `pumice serve`.

#[cfg(feature = "http")]
use anyhow::Context;
use anyhow::Result;

use super::size;
#[cfg(feature = "http")]
use crate::http::Place;
use crate::objects::Prices;
use crate::server::Access;
use crate::watch::Terms;

/// Monitoring options.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Watching")]
pub(crate) struct Args {
    /// Serve a web page, metrics, health and JSON over HTTP, at an address or at unix:SOCKET;
    /// read-only without a token
    #[cfg(feature = "http")]
    #[arg(long, value_name = "ADDR:PORT", value_parser = place)]
    http: Option<Place>,

    /// File with a token of 16 or more characters, which permits flush and checkpoint; required for
    /// reading from other machines
    #[cfg(feature = "http")]
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token_file: Option<std::path::PathBuf>,

    /// Allow reading from other machines without a token
    #[cfg(feature = "http")]
    #[arg(long, requires = "http")]
    http_insecure: bool,

    /// Require the token also for reading from this machine
    #[cfg(feature = "http")]
    #[arg(long, requires = "http_token_file")]
    http_private: bool,

    /// Rated write endurance of the medium (TBW), to show how much of it is left
    #[arg(long, value_parser = size, value_name = "SIZE")]
    rated_tbw: Option<u64>,

    #[command(flatten)]
    prices: Prices,
}

impl Args {
    /// Returns the access rules for HTTP, if a place is given.
    ///
    /// # Errors
    /// Other machines can reach the place and there is no token; the token cannot be read.
    #[cfg(feature = "http")]
    pub(crate) fn access(&self) -> Result<Option<Access>> {
        let Some(place) = &self.http else { return Ok(None) };
        let token = match &self.http_token_file {
            Some(path) => {
                let token = std::fs::read_to_string(path);
                let token = token.with_context(|| format!("cannot read {}", path.display()))?;
                Some(token.trim().to_owned())
            }
            None => None,
        };
        let access = Access::new(place.clone(), token, self.http_insecure)?;
        Ok(Some(if self.http_private { access.private()? } else { access }))
    }

    #[cfg(not(feature = "http"))]
    pub(crate) fn access(&self) -> Result<Option<Access>> {
        Ok(None)
    }

    /// Returns the terms of the storage that holds the drives.
    pub(crate) fn terms(&self) -> Terms {
        Terms { rated_write_bytes: self.rated_tbw, prices: self.prices }
    }
}

/// Parses an address or socket to listen on.
#[cfg(feature = "http")]
fn place(text: &str) -> std::result::Result<Place, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("expected a path after unix:".into()),
        Some(path) => Ok(Place::Unix(path.into())),
        None => super::socket_address(text).map(Place::Tcp),
    }
}
