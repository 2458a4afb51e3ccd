//! Reads all data: a walk finds the files, and several threads measure them in pieces of 256 KiB.
//!
//! Memory does not grow with the number of files, because the queue between the walk and the
//! threads is bounded.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::chunks::{ChunkMeter, Piece, Taken};
use super::population::{Source, is_own};
use super::read::Reader;
use super::sample::{PACKED_MIN, format_of};
use super::sums::{FileSum, Known, Sums};
use super::work::{Work, locked};
use pumice_drive::base::units::BLOCK_BYTES;

/// Blocks per read. This is the largest chunk, so that the data is still in the processor's cache
/// when it is compressed.
const PIECE_BLOCKS: u64 = 64;

/// Blocks per stretch, the unit of work. A single large file keeps all threads busy.
const STRETCH_BLOCKS: u64 = 64 * PIECE_BLOCKS;

/// Maximum number of stretches in the queue.
const WAITING_MAX: usize = 256;

/// A part of a file that consists of whole pieces.
struct Stretch {
    source: std::sync::Arc<Source>,
    first: u64,
    blocks: u64,
}

/// One scan of all data.
pub(super) struct Everything<'a> {
    pub(super) work: &'a Work<'a>,
    pub(super) known: &'a Known,
}

impl Everything<'_> {
    /// Measures all files that `find` reports, or those reported before the stop.
    pub(super) fn run(&self, find: impl FnOnce(&(dyn Fn(Source) + Sync))) -> Sums {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let receiver = Mutex::new(receiver);
        let all = Mutex::new(Sums::new(self.work.options.configs.len()));
        std::thread::scope(|scope| {
            for _ in 0..self.work.options.threads {
                scope.spawn(|| {
                    let sums = self.take(&receiver);
                    locked(&all).merge(&sums);
                });
            }
            find(&|source| self.deal_out(source, &sender));
            // The workers end when the queue is closed.
            drop(sender);
        });
        all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn deal_out(&self, source: Source, sender: &SyncSender<Stretch>) {
        let source = std::sync::Arc::new(source);
        let blocks = source.blocks();
        for first in (0..blocks).step_by(STRETCH_BLOCKS as usize) {
            let blocks = STRETCH_BLOCKS.min(blocks - first);
            // Workers end early only if the scan is stopped.
            let _ = sender.send(Stretch { source: source.clone(), first, blocks });
        }
    }

    fn take(&self, waiting: &Mutex<Receiver<Stretch>>) -> Sums {
        let mut sums = Sums::new(self.work.options.configs.len());
        let mut meter = self.work.meter();
        let mut reader = self.work.reader(self.work.options.threads, true);
        let mut buffer = Vec::new();
        loop {
            let next = locked(waiting).recv();
            let Ok(stretch) = next else { break };
            // After a stop, workers only drain the queue, so that senders do not block.
            if !self.work.is_stopped() {
                let read = self.stretch(&stretch, &mut sums, &mut meter, &mut reader, &mut buffer);
                if let Err(error) = read {
                    self.work.failed(&stretch.source, &error);
                }
            }
        }
        self.work.add_efforts(&meter);
        sums
    }

    fn stretch(
        &self,
        stretch: &Stretch,
        sums: &mut Sums,
        meter: &mut ChunkMeter,
        reader: &mut Reader,
        buffer: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        let (source, main) = (&*stretch.source, self.work.options.main);
        let (mut whole, mut whole_blocks, mut format) = (Taken::default(), 0, None);
        let mut number = source.data_blocks_in(0, stretch.first);
        for first in (stretch.first..stretch.first + stretch.blocks).step_by(PIECE_BLOCKS as usize)
        {
            let blocks = PIECE_BLOCKS.min(stretch.first + stretch.blocks - first);
            let data_blocks = source.data_blocks_in(first, blocks);
            let own = data_blocks > 0 && is_own(self.work.options.shard, source, number);
            number += data_blocks;
            if !own || self.work.is_stopped() {
                continue;
            }
            let bytes = reader.read(source, first, blocks, buffer)?;
            let has_data = source.data_mask(first, blocks);
            let piece = Piece { bytes: buffer, has_data: has_data.as_deref() };
            let taken = self.piece(piece, sums, meter);
            sums.add_piece(source, self.known, data_blocks, &taken);
            for (index, block) in buffer.chunks(BLOCK_BYTES).enumerate() {
                // A hole is not a fill.
                if has_data.as_ref().is_none_or(|all| all[index]) {
                    sums.repeats.add(block);
                }
            }
            if first == 0 && taken[main].record_bytes as f64 > PACKED_MIN * bytes as f64 {
                format = format_of(&buffer[..buffer.len().min(super::sample::HEAD_BYTES)]);
            }
            whole.add(taken[main]);
            whole_blocks += data_blocks;
            self.work.progress.advance(data_blocks);
        }
        if whole_blocks > 0 {
            sums.add_file(FileSum {
                name: source.name.clone(),
                bytes: whole_blocks * BLOCK_BYTES as u64,
                record_bytes: whole.record_bytes,
                format,
            });
        }
        Ok(())
    }

    fn piece(&self, piece: Piece<'_>, sums: &mut Sums, meter: &mut ChunkMeter) -> Vec<Taken> {
        let measure =
            |index| meter.measure(index, piece, |bytes, taken| sums.add_chunk(index, bytes, taken));
        (0..self.work.options.configs.len()).map(measure).collect()
    }
}
