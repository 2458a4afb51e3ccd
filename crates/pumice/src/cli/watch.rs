//! Options of `pumice serve` for monitoring, and what they start.

use std::rc::Rc;

#[cfg(feature = "http")]
use anyhow::Context;
use anyhow::Result;

use super::open::FileDrive;
use super::size;
#[cfg(feature = "http")]
use crate::http::{Access, Http, Serving};
use crate::watch::{Connections, Measured, Watch};
use pumice_drive::runtime::Runtime;
use pumice_nbd::Disk;
use pumice_nbd::Server;

/// Without `http` nothing listens and nothing serves.
#[cfg(not(feature = "http"))]
pub(crate) enum Http {}
#[cfg(not(feature = "http"))]
pub(crate) type Serving = Box<Http>;

/// A drive with counters of its requests.
pub(crate) type MeasuredDrive = Measured<FileDrive>;

/// Monitoring options.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Watching")]
pub(crate) struct Args {
    /// Serve a web page, metrics, health and JSON over HTTP; read-only without a token
    #[cfg(feature = "http")]
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<std::net::SocketAddr>,

    /// File with a token of 16 or more characters, which permits flush and checkpoint; required for
    /// reading from other machines
    #[cfg(feature = "http")]
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token_file: Option<std::path::PathBuf>,

    /// Allow reading from other machines without a token
    #[cfg(feature = "http")]
    #[arg(long, requires = "http")]
    http_insecure: bool,

    /// Rated write endurance of the medium (TBW), to show how much of it is left
    #[arg(long, value_parser = size, value_name = "SIZE")]
    rated_tbw: Option<u64>,
}

impl Args {
    /// Listens for HTTP if an address is given.
    ///
    /// # Errors
    /// Other machines can reach the address and there is no token; the token cannot be read; the
    /// port is in use.
    #[cfg(feature = "http")]
    pub(crate) fn bind(&self) -> Result<Option<Http>> {
        let Some(address) = self.http else { return Ok(None) };
        let token = match &self.http_token_file {
            Some(path) => {
                let token = std::fs::read_to_string(path);
                let token = token.with_context(|| format!("cannot read {}", path.display()))?;
                Some(token.trim().to_owned())
            }
            None => None,
        };
        let access = Access::new(address, token, self.http_insecure)?;
        Ok(Some(Http::bind(access)?))
    }

    #[cfg(not(feature = "http"))]
    pub(crate) fn bind(&self) -> Result<Option<Http>> {
        Ok(None)
    }

    /// Adds a drive to those that are watched; returns its number.
    pub(crate) fn add(
        &self,
        watch: &Watch,
        name: String,
        drive: &Rc<FileDrive>,
        measured: &Rc<MeasuredDrive>,
    ) -> usize {
        watch.add(name, drive.clone(), measured.clone(), self.rated_tbw)
    }
}

/// Returns the watch of a server, without drives yet.
pub(crate) fn watch<D: Disk + 'static>(runtime: &Runtime, server: &Rc<Server<D>>) -> Rc<Watch> {
    let server = server.clone();
    Watch::new(runtime.clone(), move || Connections {
        open: server.connections() as u64,
        accepted: server.accepted(),
        refused_requests: server.exports().iter().map(|export| export.refused_requests()).sum(),
    })
}

/// Serves the watch over HTTP until the result is dropped.
///
/// # Errors
/// The operating system cannot start a thread.
#[cfg(feature = "http")]
pub(crate) fn serve(
    http: Option<Http>,
    runtime: &Runtime,
    watch: &Rc<Watch>,
) -> Result<Option<Serving>> {
    let Some(http) = http else { return Ok(None) };
    tracing::info!(url = %format_args!("http://{}/", http.address()), "HTTP server started");
    Ok(Some(http.serve(runtime, watch.clone())?))
}

#[cfg(not(feature = "http"))]
pub(crate) fn serve(_: Option<Http>, _: &Runtime, _: &Rc<Watch>) -> Result<Option<Serving>> {
    Ok(None)
}
