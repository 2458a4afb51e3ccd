//! The forwarding tables of a drive that is opened, or of one of its snapshots.

use std::collections::BTreeSet;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::super::core::Forwards;
use super::super::log::metadata::Wanted;
use super::super::space::Space;
use super::READS_AT_ONCE;
use super::reader::Reader;
use crate::base::{Error, ErrorKind, Result};
use crate::format::{ForwardPiece, MetaKind, Root};

impl Reader<'_> {
    /// Reads the forwarding tables that the newest root names. `space` is the segment table of its
    /// checkpoint.
    ///
    /// # Errors
    /// `Medium`, `Corrupt`.
    pub(super) async fn forwards(&self, root: &Root, space: &Space) -> Result<Forwards> {
        let limits = self.limits();
        let distinct: BTreeSet<_> = root.forward_lists.iter().collect();
        if distinct.len() < root.forward_lists.len() {
            let what = "a root names a piece of a forwarding table twice";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let reads = root.forward_lists.iter().map(|&place| async move {
            let generation = space.generation(place.segment);
            let read = self.read(Wanted::at(place, generation, MetaKind::Forwards, 0)).await?;
            Ok::<_, Error>((place, ForwardPiece::decode(&read.raw, &limits)?))
        });
        let pieces = iter(reads).buffered(READS_AT_ONCE).try_collect().await?;
        Forwards::restore(pieces, |segment| space.generation(segment))
    }
}
