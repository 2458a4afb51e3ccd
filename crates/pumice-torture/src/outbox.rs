//! Transfers that hosts sent, and the drive that receives them.

use std::rc::Rc;

use super::medium::Layers;
use super::oracle::Image;
use pumice_drive::base::Result;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::controller::{SendStream, View};
use pumice_drive::media::mem::MemMedium;

/// A whole transfer.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) name: String,
    /// The snapshot that the receiver must have.
    pub(super) base: Option<String>,
    pub(super) image: Rc<Image>,
    pub(super) bytes: Vec<u8>,
}

/// The transfer that hosts sent, and the state of the other drive.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The last transfer.
    pub(super) sent: Option<Transfer>,
    /// The newest snapshot of the copy.
    pub(super) newest: Option<String>,
}

/// The drive that receives.
pub(super) struct Copy {
    pub(super) memory: MemMedium,
    /// The layer above `memory`, until the power is lost.
    pub(super) layers: Rc<Layers>,
    /// Its snapshots.
    pub(super) held: Vec<(String, Rc<Image>)>,
}

/// The receiving side of a world.
pub(super) struct Receiving {
    pub(super) random: Random,
    pub(super) copy: Option<Copy>,
}

impl Receiving {
    /// Returns the receiving side of the world of a seed.
    pub(super) fn new(seed: u64) -> Self {
        // An arbitrary constant keeps this stream apart from those of the drive and its hazards.
        Self { random: random(seed ^ 0x7472_616e_7366_6572), copy: None }
    }
}

/// Sends a snapshot; calls `pause` after each part.
pub(super) async fn collect(
    view: View<'_>,
    base: Option<View<'_>>,
    start: u64,
    mut pause: impl AsyncFnMut(),
) -> Result<Vec<u8>> {
    let mut send = SendStream::new(view, base, start)?;
    let mut bytes = Vec::new();
    while let Some(part) = send.next().await? {
        bytes.extend_from_slice(&part);
        send.reuse(part);
        pause().await;
    }
    Ok(bytes)
}
