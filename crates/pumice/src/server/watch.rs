//! The services that show the drives to monitoring.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;

use super::disk::ServedDisk;
#[cfg(feature = "http")]
pub(crate) use crate::http::{Access, Answerer, Http, Serving};
use crate::watch::{Connections, Measured, Names, Validity, Watch};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Roster, Tally};

/// Stands in for `http`: without it, nothing listens or serves.
#[cfg(not(feature = "http"))]
pub(crate) enum Http {}
#[cfg(not(feature = "http"))]
pub(crate) enum Answerer {}
#[cfg(not(feature = "http"))]
#[derive(Clone)]
pub(crate) enum Access {}
#[cfg(not(feature = "http"))]
pub(crate) type Serving = Box<Http>;

/// A drive, or a snapshot of one, with counters of its requests.
pub(crate) type MeasuredDrive = Measured<ServedDisk>;

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
