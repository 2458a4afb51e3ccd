//! NBD exports: their size, and their blocks that contain data.
//!
//! The metadata context `base:allocation`, which Pumice, qemu-nbd and nbdkit support, reports the
//! holes. If a server does not report holes, all blocks count as data, including zeroes.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use super::extents::Runs;
use super::options::ScanProgress;
use super::population::{Age, Location, Source};
use super::{Error, Result};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::Content;
use pumice_nbd::client::{Client, Uri, allocation};

/// Interval between progress reports, and between checks of the stop flag.
const LOOK_NS: u64 = 100_000_000;

/// Maximum number of checks without an answer about holes before the scan stops waiting: two
/// minutes.
const LOOKS_MAX: u32 = 1200;

/// Maximum time for all answers: one week. A remote server may need hours for a large disk;
/// progress is reported meanwhile.
const ALLOCATION_NS_MAX: u64 = 7 * 86_400 * 1_000_000_000;

/// The holes that a server has reported.
#[derive(Default)]
struct Map {
    /// The runs of blocks outside holes.
    runs: Runs,
    /// End of the range that the server has reported, in bytes.
    told: u64,
    /// The size of the export; 0 until known.
    bytes: u64,
}

impl Map {
    /// Adds the next extent. Returns whether more extents can be added.
    fn add(&mut self, length: u64, content: Content) -> bool {
        let range = self.told..self.told + length;
        self.told = range.end;
        if content != Content::Hole {
            self.runs.add(range);
        }
        !self.runs.is_full()
    }
}

/// Returns whether a named path is the URI of an export.
pub(super) fn is_uri(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("nbd" | "nbds" | "nbd+unix" | "nbds+unix"))
}

/// Returns the export with this URI, which is the `index`-th named path and is displayed as
/// `shown`; `None` if `stop` was set meanwhile.
///
/// # Errors
/// The URI is invalid, the server cannot be reached, or the export contains no data.
pub(super) fn source(
    index: usize,
    text: &str,
    shown: String,
    progress: &dyn ScanProgress,
    stop: &AtomicBool,
) -> Result<Option<Source>> {
    let uri = Uri::parse(text)?;
    let runtime = Runtime::new(Backend::Auto)?;
    let map = RefCell::new(Map::default());
    let asking = async {
        let client = Client::connect(&runtime, &uri).await?;
        map.borrow_mut().bytes = client.size_bytes();
        // The length is already known, so disconnection errors do not matter.
        let _ = client.disconnect().await;
        let told = allocation(&runtime, &uri, ALLOCATION_NS_MAX, |length, content| {
            map.borrow_mut().add(length, content)
        });
        Ok::<_, Error>(told.await)
    };
    let asked = runtime.block_on(async {
        let mut asking = pin!(asking);
        let (mut seen, mut looks) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            if let Some(asked) = runtime.timeout(LOOK_NS, asking.as_mut()).await {
                return asked.map(Some);
            }
            let Map { told, bytes, .. } = *map.borrow();
            progress.mapped(told, bytes);
            looks = if told == seen { looks + 1 } else { 0 };
            seen = told;
            if bytes > 0 && looks == LOOKS_MAX {
                return Ok(Some(Ok(false)));
            }
        }
        Ok(None)
    });
    runtime.drop_tasks();
    let Some(told) = asked? else { return Ok(None) };
    let Map { mut runs, told: at, bytes } = map.into_inner();
    // The remainder after a failure or after too many pieces counts as data. So does a short last
    // block, which no request can query.
    runs.add(at..bytes);
    let extents = (told.unwrap_or(false) || at > 0).then_some(runs.0);
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
        return Err(Error::InvalidInput(format!("{} holds no data", source.folder).into()));
    }
    Ok(Some(source))
}
