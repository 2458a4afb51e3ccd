//! The forwarding tables of a drive that is being opened, or of one of its snapshots.

use std::collections::BTreeSet;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::super::core::Forwards;
use super::super::log::metadata::Wanted;
use super::super::space::Space;
use super::READS_AT_ONCE;
use super::reader::Reader;
use crate::base::{Error, ErrorKind, Result, SeqNo};
use crate::format::{ForwardPiece, MetaKind, Root};

impl Reader<'_> {
    /// Reads the forwarding tables that the newest root names, as far as they can be read. `space`
    /// is the segment table of its checkpoint, `newest` the last batch of the newest snapshot.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(super) async fn forwards(
        &self,
        root: &Root,
        space: &Space,
        newest: SeqNo,
    ) -> Result<Forwards> {
        let limits = self.limits();
        let distinct: BTreeSet<_> = root.forward_lists.iter().collect();
        if distinct.len() < root.forward_lists.len() {
            let what = "a root names a piece of a forwarding table twice";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let reads = root.forward_lists.iter().map(|&place| async move {
            let generation = space.generation(place.segment);
            let read = self.read(Wanted::at(place, generation, MetaKind::Forwards, 0)).await;
            match read.and_then(|read| ForwardPiece::decode(&read.raw, &limits)) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    tracing::warn!(error = %error.chain(), "a forwarding table is damaged");
                    Ok((place, None))
                }
                read => Ok::<_, Error>((place, Some(read?))),
            }
        });
        let read: Vec<_> = iter(reads).buffered(READS_AT_ONCE).try_collect().await?;
        let is_lost = |(_, piece): &(_, Option<_>)| piece.is_none();
        let known = usize::from(root.lost_pieces);
        let until = if read.iter().skip(known).any(is_lost) { newest } else { root.lost_until };
        let (mut pieces, mut lost) = (Vec::new(), Vec::new());
        for (place, piece) in read {
            match piece {
                Some(piece) => pieces.push((place, piece)),
                None => lost.push(place),
            }
        }
        match Forwards::restore(pieces, |segment| space.generation(segment)) {
            Ok(mut forwards) => {
                forwards.set_lost(lost, until);
                Ok(forwards)
            }
            // It is unknown which of them is right.
            Err(error) => {
                tracing::warn!(error = %error.chain(), "no forwarding table is used");
                let mut forwards = Forwards::default();
                forwards.set_lost(root.forward_lists.clone(), newest);
                Ok(forwards)
            }
        }
    }
}
