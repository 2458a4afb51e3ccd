//! Replaying the log: each record of a batch is applied by the same methods of the core as when it
//! was written.

use std::collections::BTreeMap;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::super::core::{Core, LOSE_ATTEMPTS, LeafPlace, table_of};
use super::super::log::records::{Found, records};
use super::super::log::walk::Batch;
use super::super::map::{L2p, Reap};
use super::super::place::{FramePlace, blocks_of_frame};
use super::{READS_AT_ONCE, Reader};
use crate::base::units::format_size;
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::format::{Record, Stream};

/// A replay under way.
pub(super) struct Replay<'a> {
    reader: Reader<'a>,
    core: Core,
    /// Bytes of leaves that the log may change.
    changed_bytes_max: usize,
}

impl<'a> Replay<'a> {
    /// Begins with the state of the newest checkpoint.
    pub(super) fn new(reader: Reader<'a>, core: Core, changed_bytes_max: usize) -> Self {
        Self { reader, core, changed_bytes_max }
    }

    /// Returns the core so far.
    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Ends the replay. Returns the core, and an error for each record that was restored from
    /// parity. The next checkpoint rewrites restored records of the map; a leaf that is no longer
    /// in memory is restored again when it is read.
    pub(super) fn end(mut self) -> (Core, Vec<Error>) {
        for wanted in self.reader.restored() {
            self.core.rewrite_metadata(wanted.kind, wanted.number, wanted.address());
        }
        (self.core, self.reader.take_restored())
    }

    /// Applies a batch.
    ///
    /// # Errors
    /// The errors of [`super::recover`].
    pub(super) async fn apply(&mut self, batch: &Batch<'_>) -> Result<()> {
        if let Some(header) = &batch.enters {
            self.enter(header.stream, header.segment, header.generation).await?;
        }
        self.core.note_batch(batch.header.segment, batch.header.seq);
        self.load_ahead(batch).await?;
        for found in records(self.reader.cipher(), &batch.header, batch.body) {
            self.apply_record(&found?, batch.damage.is_none()).await?;
            self.core.space().check()?;
            self.check_memory().await?;
        }
        Ok(())
    }

    /// Compares the leaves that the log changed, and that must stay in memory, with their limit.
    async fn check_memory(&mut self) -> Result<()> {
        if self.core.map().dirty_bytes() <= self.changed_bytes_max {
            return Ok(());
        }
        // The drive that wrote this log also reaped the leaves of ranges trimmed since.
        self.reap().await?;
        if self.core.map().dirty_bytes() <= self.changed_bytes_max {
            return Ok(());
        }
        let limit = format_size(self.changed_bytes_max as u64);
        let mebibytes = self.changed_bytes_max >> 21;
        let what = format!(
            "the log after the newest checkpoint changes more than {limit} of the map; open the \
             drive once for writing, with the map cache that it was written with or with \
             {mebibytes} MiB or more: when it closes, a checkpoint is written"
        );
        Err(Error::new(ErrorKind::InvalidInput, what))
    }

    /// Reads the leaves that a batch's records need concurrently. If they were read one by one,
    /// recovery of scattered writes would take as long as the writes.
    async fn load_ahead(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut places = BTreeMap::new();
        let map = self.core.map();
        for found in records(self.reader.cipher(), &batch.header, batch.body) {
            let record = found?.record;
            let (lba, count) = record.lba_range();
            let leaf = match record {
                Record::Data { .. } => map.missing(lba, count),
                Record::Fill { .. } | Record::Trim { .. } => map.missing_edges(lba, count),
                Record::Open { .. } | Record::Meta { .. } => None,
            };
            if let Some(leaf) = leaf
                && let Some(from) = self.core.leaf_to_load(leaf)
            {
                places.insert(leaf, from);
            }
        }
        self.load_side_by_side(places).await
    }

    async fn load_side_by_side(&mut self, places: BTreeMap<u64, LeafPlace>) -> Result<()> {
        let reader = &self.reader;
        let reads = places.into_iter().map(|(leaf, from)| async move {
            let loaded = match reader.leaf(leaf, from).await {
                Err(error) if error.kind() == ErrorKind::Corrupt => None,
                loaded => Some(loaded?),
            };
            Ok::<_, Error>((leaf, from.place, loaded))
        });
        let mut reads = iter(reads).buffer_unordered(READS_AT_ONCE);
        while let Some((leaf, place, loaded)) = reads.try_next().await? {
            if let Some(loaded) = loaded {
                self.core.install_leaf(leaf, place, loaded);
            }
        }
        Ok(())
    }

    /// Applies a record. `is_verified` states whether its payload was compared with its checksum.
    async fn apply_record(&mut self, found: &Found<'_>, is_verified: bool) -> Result<()> {
        let record = &found.record;
        let (lba, count) = record.lba_range();
        match *record {
            Record::Data { source_count, encoding, .. } => {
                self.load(|map| map.missing(lba, count)).await?;
                let frame = FramePlace {
                    segment: found.place.segment,
                    offset: found.place.offset,
                    record_bytes: record.record_bytes(),
                    blocks: blocks_of_frame(count),
                };
                let has_tables = self.core.superblock().has_chunks;
                let table = if has_tables && (is_verified || found.is_whole()) {
                    table_of(frame.blocks, encoding, found.payload())
                } else {
                    None
                };
                if source_count > 0 {
                    let sources = found.sources(self.reader.cipher());
                    self.core.map_moved(lba, frame, sources.into_iter(), table);
                } else {
                    self.core.map_frame(lba, frame, table);
                }
            }
            Record::Fill { .. } | Record::Trim { .. } => {
                self.load(|map| map.missing_edges(lba, count)).await?;
                self.core.map_range(record);
            }
            Record::Open { stream, segment, generation } => {
                if self.is_in(stream, segment, generation) {
                    // The segment would be written from its beginning again.
                    let what = "a log record names its stream's own segment as the next one";
                    return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
                }
                self.enter(stream, segment, generation).await?;
            }
            // A checkpoint that was not completed, or the one from which recovery began.
            Record::Meta { .. } => {}
        }
        Ok(())
    }

    /// Returns whether a stream has already reached this use of a segment.
    fn is_in(&self, stream: Stream, segment: SegmentId, generation: u64) -> bool {
        self.core.log().tail(stream).is_some_and(|tail| tail.segment == segment)
            && self.core.space().generation(segment) == generation
    }

    /// Continues a stream in a segment.
    ///
    /// # Errors
    /// The errors of [`super::recover`].
    pub(super) async fn enter(
        &mut self,
        stream: Stream,
        segment: SegmentId,
        generation: u64,
    ) -> Result<()> {
        if self.is_in(stream, segment, generation) {
            return Ok(());
        }
        let space = self.core.space();
        if space.generation(segment) != generation && !space.is_free(segment) {
            // The segment was freed since the checkpoint; its trimmed blocks are not yet released.
            self.reap().await?;
            self.core.forget_reused(segment);
        }
        self.core.occupy_segment(stream, segment, generation)?;
        // The unusable bytes at the end of the previous segment are no longer known.
        self.core.enter_segment(stream, segment, generation, 0);
        assert!(self.is_in(stream, segment, generation), "a segment is entered once");
        Ok(())
    }

    async fn load(&mut self, missing: impl Fn(&L2p) -> Option<u64>) -> Result<()> {
        while let Some(leaf) = missing(self.core.map()) {
            self.load_leaf(leaf).await?;
        }
        Ok(())
    }

    async fn load_leaf(&mut self, leaf: u64) -> Result<()> {
        let Some(from) = self.core.leaf_to_load(leaf) else { return Ok(()) };
        for attempt in 1.. {
            match self.reader.leaf(leaf, from).await {
                Ok(loaded) => self.core.install_leaf(leaf, from.place, loaded),
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                // The read may have been at fault.
                Err(_) if attempt < LOSE_ATTEMPTS => continue,
                // The log's records of its blocks are known; its other blocks cannot be read.
                Err(error) => {
                    let error = error.chain();
                    tracing::warn!(leaf, error, "cannot restore a leaf of the map");
                    self.core.lose_leaf(leaf);
                }
            }
            break;
        }
        Ok(())
    }

    async fn reap(&mut self) -> Result<()> {
        loop {
            match self.core.reap_resident() {
                Reap::Done => return Ok(()),
                Reap::More => {}
                Reap::Missing(leaf) => {
                    let leaves = self.core.map().missing_to_reap(READS_AT_ONCE);
                    assert!(leaves.contains(&leaf), "the leaf that is missing is looked for first");
                    let leaves = leaves.into_iter();
                    let places =
                        leaves.filter_map(|leaf| Some((leaf, self.core.leaf_to_load(leaf)?)));
                    self.load_side_by_side(places.collect()).await?;
                    if self.core.map().missing_to_reap(1).contains(&leaf) {
                        // The leaf is damaged.
                        self.load_leaf(leaf).await?;
                    }
                }
            }
        }
    }
}
