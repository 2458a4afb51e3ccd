//! Creates a profile that the benchmark uses to generate similar data: windows of 64 KiB around
//! some of the draws.
//!
//! In a large file, a window is the data around the draw, and counts once, regardless of the number
//! of its draws. A profile with enough space for all windows of the data contains each of them.
//! Small files are concatenated, as in a file system, each with the same probability. A file with
//! `n` blocks is drawn `n` times as often as a file with a single block, so only one in `n` of its
//! draws counts.

use std::collections::HashSet;
use std::sync::Arc;

use super::population::{Draw, Source};
use super::read::Reader;
use super::work::Work;
use pumice_bench::payload::{Profile, Profiling, Saving, WINDOW_BYTES};
use pumice_drive::base::seed::mix;
use pumice_drive::base::units::BLOCK_BYTES;

/// Blocks per window.
const WINDOW_BLOCKS: u64 = (WINDOW_BYTES / BLOCK_BYTES) as u64;

/// Returns the profile of the drawn data, with draws ordered by mark; `None` if the data is smaller
/// than a window, or the scan was stopped. `duplicates` and `bytes` describe the whole data.
pub(super) fn like(
    draws: &[Draw],
    duplicates: Saving,
    bytes: u64,
    work: &Work<'_>,
) -> Option<Profile> {
    let is_small = |draw: &Draw| draw.source.blocks() < WINDOW_BLOCKS;
    let small_share =
        draws.iter().filter(|draw| is_small(draw)).count() as f64 / draws.len().max(1) as f64;
    let most = (bytes / WINDOW_BYTES as u64).clamp(1, Profiling::WINDOWS_MAX as u64) as f64;
    let small_most = (most * small_share).round() as usize;
    let large_most = most as usize - small_most.min(most as usize);
    let mut windows = Windows {
        reader: work.reader(1, false),
        profiling: Profiling::default(),
        buffer: Vec::new(),
        small: Vec::new(),
        seen: HashSet::new(),
    };
    let (mut small, mut large) = (0, 0);
    for draw in draws {
        if work.is_stopped() {
            return None;
        }
        match is_small(draw) {
            true if small < small_most => small += windows.add_small(draw),
            false if large < large_most => large += windows.add_large(draw),
            _ => {}
        }
        if small >= small_most && large >= large_most {
            break;
        }
    }
    windows.profiling.finish(duplicates, bytes)
}

struct Windows {
    reader: Reader,
    profiling: Profiling,
    buffer: Vec<u8>,
    /// Small files that together do not fill a window yet.
    small: Vec<u8>,
    /// Windows of large files that have been considered, by file and first block.
    seen: HashSet<(*const Source, u64)>,
}

impl Windows {
    /// Adds the window around a draw. Returns the number of windows added, which is 0 if the window
    /// was drawn before or cannot be read.
    fn add_large(&mut self, draw: &Draw) -> usize {
        let aligned = draw.block - draw.block % WINDOW_BLOCKS;
        let first = aligned.min(draw.source.blocks() - WINDOW_BLOCKS);
        if !self.seen.insert((Arc::as_ptr(&draw.source), first)) {
            return 0;
        }
        match self.reader.read(&draw.source, first, WINDOW_BLOCKS, &mut self.buffer) {
            Ok(_) => {
                self.profiling.add(&self.buffer);
                1
            }
            Err(_) => 0,
        }
    }

    fn add_small(&mut self, draw: &Draw) -> usize {
        let blocks = draw.source.blocks();
        if !mix(draw.mark.to_bits()).is_multiple_of(blocks)
            || self.reader.read(&draw.source, 0, blocks, &mut self.buffer).is_err()
        {
            return 0;
        }
        self.small.extend_from_slice(&self.buffer);
        if self.small.len() < WINDOW_BYTES {
            return 0;
        }
        let rest = self.small.split_off(WINDOW_BYTES);
        self.profiling.add(&self.small);
        self.small = rest;
        1
    }
}
