//! Monitoring options of `pumice serve`, and the services that they start.

use std::rc::Rc;
use std::sync::Arc;

#[cfg(feature = "http")]
use anyhow::Context;
use anyhow::Result;

use super::serve::ServedDisk;
use super::size;
#[cfg(feature = "http")]
pub(crate) use crate::http::{Access, Answerer, Http, Place, Serving};
use crate::objects::Prices;
use crate::watch::{Connections, Measured, Names, Terms, Validity, Watch};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Roster, Tally};

/// Stands in for `http`: without it, nothing listens or serves.
#[cfg(not(feature = "http"))]
pub(crate) enum Http {}
#[cfg(not(feature = "http"))]
pub(crate) enum Answerer {}
#[cfg(not(feature = "http"))]
pub(crate) enum Access {}
#[cfg(not(feature = "http"))]
pub(crate) type Serving = Box<Http>;

/// A drive, or a snapshot of one, with counters of its requests.
pub(crate) type MeasuredDrive = Measured<ServedDisk>;

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

    /// Require the token for reading from this machine, too
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

/// Listens for HTTP.
///
/// # Errors
/// The port or the socket is in use.
#[cfg(feature = "http")]
pub(crate) fn bind(access: Option<Access>) -> Result<Option<Http>> {
    Ok(access.map(Http::bind).transpose()?)
}

#[cfg(not(feature = "http"))]
pub(crate) fn bind(_: Option<Access>) -> Result<Option<Http>> {
    Ok(None)
}

/// Returns the watch of the drives of one thread, without drives yet.
pub(crate) fn watch(runtime: &Runtime, tally: Arc<Tally>, roster: Arc<Roster>) -> Rc<Watch> {
    let connections = move || Connections {
        open: tally.open(),
        accepted: tally.accepted(),
        refused: tally.refused_clients(),
        refused_requests: tally.refused_requests(),
        validities: tally.validities().into_iter().map(Validity::from).collect(),
    };
    Watch::new(runtime.clone(), connections, roster)
}

/// Serves drives, whose names are given for each of their threads, over HTTP until the first result
/// is dropped. Each thread needs its answerer.
///
/// # Errors
/// The operating system cannot start a thread.
#[cfg(feature = "http")]
pub(crate) fn serve(
    http: Option<Http>,
    names: Vec<Names>,
) -> Result<(Option<Serving>, Vec<Option<Answerer>>)> {
    let Some(http) = http else { return Ok((None, names.iter().map(|_| None).collect())) };
    tracing::info!(url = %http.place(), "HTTP server started");
    let (serving, answerers) = http.serve(names)?;
    Ok((Some(serving), answerers.into_iter().map(Some).collect()))
}

#[cfg(not(feature = "http"))]
pub(crate) fn serve(
    _: Option<Http>,
    names: Vec<Names>,
) -> Result<(Option<Serving>, Vec<Option<Answerer>>)> {
    Ok((None, names.iter().map(|_| None).collect()))
}

/// Answers questions about the drives of this thread, in a task.
#[cfg(feature = "http")]
pub(crate) fn answer(answerer: Option<Answerer>, runtime: &Runtime, watch: &Rc<Watch>) {
    if let Some(answerer) = answerer {
        runtime.spawn(answerer.run(runtime.clone(), watch.clone()));
    }
}

#[cfg(not(feature = "http"))]
pub(crate) fn answer(_: Option<Answerer>, _: &Runtime, _: &Rc<Watch>) {}
