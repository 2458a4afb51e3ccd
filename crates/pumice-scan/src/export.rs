//! NBD exports: their size, and which of their blocks hold data.
//!
//! Holes are those of the metadata context `base:allocation`, which Pumice, qemu-nbd and nbdkit
//! offer. Where a server does not tell, everything counts as data, zeroes included.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use super::extents::Runs;
use super::options::ScanProgress;
use super::population::{Age, Location, Source};
use super::{Error, Result};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::Content;
use pumice_nbd::client::{Client, Uri, allocation};

/// Time limit for all answers about holes: a server that knows them has them in memory.
const ALLOCATION_NS: u64 = 120_000_000_000;

/// Interval of progress, and of looks at whether to stop.
const LOOK_NS: u64 = 100_000_000;

/// Returns whether a named path is the address of an export.
pub(super) fn is_uri(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("nbd" | "nbds" | "nbd+unix" | "nbds+unix"))
}

/// Returns the export with this URI, the `index`-th of the named paths, as which it is `shown`;
/// `None` if `stop` was set meanwhile.
///
/// # Errors
/// The URI is invalid, or the server cannot be reached, or the export holds no data.
pub(super) fn source(
    index: usize,
    text: &str,
    shown: String,
    progress: &dyn ScanProgress,
    stop: &AtomicBool,
) -> Result<Option<Source>> {
    let uri = Uri::parse(text)?;
    let runtime = Runtime::new(Backend::Auto)?;
    let told = Cell::new((0, 0));
    let asking = async {
        let client = Client::connect(&runtime, &uri).await?;
        let bytes = client.size_bytes();
        // The length is known; how the server ends the connection does not matter.
        let _ = client.disconnect().await;
        let (mut runs, mut at) = (Runs::default(), 0);
        let is_told = allocation(&runtime, &uri, ALLOCATION_NS, |length, content| {
            if content != Content::Hole {
                runs.add(at..at + length);
            }
            at += length;
            told.set((at, bytes));
            !runs.is_full()
        });
        // A server that answers neither with holes nor with an error in time is read as it is.
        let is_told = is_told.await.unwrap_or(false);
        // The rest of an export in too many pieces counts as data, and so does its last, short
        // block, about which no request can ask.
        runs.add(at..bytes);
        Ok::<_, Error>((bytes, is_told.then_some(runs.0)))
    };
    let found = runtime.block_on(async {
        let mut asking = pin!(asking);
        while !stop.load(Ordering::Relaxed) {
            let found = runtime.timeout(LOOK_NS, asking.as_mut()).await;
            if found.is_some() {
                return found;
            }
            progress.mapped(told.get().0, told.get().1);
        }
        None
    });
    runtime.drop_tasks();
    let Some(found) = found else { return Ok(None) };
    let (bytes, extents) = found?;
    let source = Source {
        location: Location::Export(text.to_owned()),
        name: format!("{index}/"),
        bytes,
        extents,
        extension: String::new(),
        folder: shown,
        age: Age::Unknown,
        identity: None,
    };
    if source.data_blocks() == 0 {
        return Err(Error::InvalidInput(format!("{text} holds no data").into()));
    }
    Ok(Some(source))
}
