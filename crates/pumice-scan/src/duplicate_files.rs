//! Finds copies of whole files without reading all data, by comparing two blocks of files with
//! equal size.
//!
//! Copies have equal sizes, so a sample of *sizes*, with all files of each, contains every sampled
//! file together with its copies. Sizes are sampled by hash, up to a limit. Small and large files
//! are sampled separately, so that a few large files do not make the share of the small ones
//! uncertain. Two blocks at fixed offsets are read from every file of each sampled size, and files
//! in which both blocks agree count as copies. Their share of the sampled bytes is the estimate for
//! all files.
//!
//! Bias: shared blocks in files that are not copies are missed; files that agree in the two blocks
//! but differ elsewhere count as copies. The reported deviation is caused by the sampling of sizes
//! (a ratio over clusters), and is 0 if all sizes were used. Source: Cochran, "Sampling
//! Techniques", 1977, eq. 6.13, for the deviation of a ratio.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::population::Source;
use super::work::{Work, locked};
use pumice_bench::payload::repeats;
use pumice_drive::base::seed::mix;
use pumice_drive::base::units::BLOCK_BYTES;

/// Maximum number of files compared in a tier.
const FILES_MAX: usize = 8192;

/// Minimum size of a large file.
const LARGE_BYTES: u64 = 1 << 20;

/// The files of one tier that have sampled sizes.
#[derive(Debug, Default)]
struct Tier {
    by_size: BTreeMap<u64, Vec<Arc<Source>>>,
    files: usize,
    zero_bits: u32,
    bytes: u64,
}

impl Tier {
    fn add(&mut self, source: &Arc<Source>) {
        self.bytes += source.bytes;
        if mix(source.bytes).trailing_zeros() < self.zero_bits {
            return;
        }
        self.by_size.entry(source.bytes).or_default().push(source.clone());
        self.files += 1;
        while self.files > FILES_MAX && self.zero_bits < 63 {
            self.zero_bits += 1;
            let zero_bits = self.zero_bits;
            self.by_size.retain(|bytes, _| mix(*bytes).trailing_zeros() >= zero_bits);
            self.files = self.by_size.values().map(Vec::len).sum();
        }
    }
}

/// Files that have sampled sizes.
#[derive(Debug, Default)]
pub(super) struct DuplicateFiles([Tier; 2]);

impl DuplicateFiles {
    /// Adds a file, unless it contains no data.
    pub(super) fn add(&mut self, source: &Arc<Source>) {
        if source.data_blocks() > 0 {
            self.0[usize::from(source.bytes >= LARGE_BYTES)].add(source);
        }
    }

    /// Compares the files of this shard's sizes. A file that cannot be read is not a copy.
    pub(super) fn compare(self, work: &Work<'_>) -> Vec<Compared> {
        self.0.into_iter().map(|tier| compare(tier, work)).collect()
    }
}

/// Sums over the sizes of one tier: `s` bytes were sampled, and `r` of them belong to copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Compared {
    /// Bytes of all files in all shards, sampled or not.
    bytes: f64,
    /// Whether all sizes were used.
    is_whole: bool,
    sizes: f64,
    s: f64,
    r: f64,
    ss: f64,
    rs: f64,
    rr: f64,
}

impl Compared {
    pub(super) fn add(&mut self, other: &Self) {
        self.sizes += other.sizes;
        self.s += other.s;
        self.r += other.r;
        self.ss += other.ss;
        self.rs += other.rs;
        self.rr += other.rr;
    }

    pub(super) fn is_possible(&self) -> bool {
        let all = [self.bytes, self.sizes, self.s, self.r, self.ss, self.rs, self.rr];
        all.iter().all(|number| number.is_finite() && *number >= 0.0)
    }
}

/// Returns the share of all bytes that belongs to additional copies of files, and its deviation, as
/// fractions; `None` if there are no files.
pub(super) fn share(tiers: &[Compared]) -> Option<(f64, f64)> {
    let all: f64 = tiers.iter().map(|tier| tier.bytes).sum();
    let (mut share, mut variance) = (0.0, 0.0);
    for tier in tiers.iter().filter(|tier| tier.s > 0.0) {
        let (weight, ratio) = (tier.bytes / all, tier.r / tier.s);
        share += weight * ratio;
        if !tier.is_whole && tier.sizes > 1.0 {
            let squares = tier.rr - 2.0 * ratio * tier.rs + ratio * ratio * tier.ss;
            let of_ratio = tier.sizes / (tier.sizes - 1.0) * squares.max(0.0) / (tier.s * tier.s);
            variance += weight * weight * of_ratio;
        }
    }
    (all > 0.0).then(|| (share, variance.sqrt()))
}

fn compare(tier: Tier, work: &Work<'_>) -> Compared {
    let shard = work.options.shard;
    let is_own = |bytes: u64| mix(mix(bytes)) % u64::from(shard.count) == u64::from(shard.index);
    let sizes: Vec<(u64, Vec<Arc<Source>>)> =
        tier.by_size.into_iter().filter(|(bytes, _)| is_own(*bytes)).collect();
    let sums = Mutex::new(Compared {
        bytes: tier.bytes as f64,
        is_whole: tier.zero_bits == 0,
        ..Compared::default()
    });
    work.share_out(&sizes, |reader, (bytes, files)| {
        let mut contents = BTreeSet::new();
        let mut copies = 0;
        // A file of unique size has no copy, so it is not read.
        for source in files.iter().filter(|_| files.len() > 1) {
            if let Ok(content) = two_blocks(source, reader) {
                copies += u64::from(!contents.insert(content));
            }
        }
        let (s, r) = ((bytes * files.len() as u64) as f64, (bytes * copies) as f64);
        let one =
            Compared { sizes: 1.0, s, r, ss: s * s, rs: r * s, rr: r * r, ..Compared::default() };
        locked(&sums).add(&one);
    });
    sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns hashes of a middle block, chosen by the file size, and of the last block.
fn two_blocks(
    source: &Source,
    reader: &mut super::read::Reader,
) -> std::io::Result<[Option<u64>; 2]> {
    let blocks = source.blocks();
    let mut buffer = Vec::new();
    let mut contents = [None; 2];
    for (content, block) in contents.iter_mut().zip([mix(source.bytes) % blocks, blocks - 1]) {
        reader.read(source, block, 1, &mut buffer)?;
        *content = repeats::hash(&buffer[..BLOCK_BYTES]);
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    //! Goal: the share of copies is correct, both for all sizes and for a sample of them, and its
    //! deviation matches the deviation between samples. Method: sums calculated by hand; sizes with
    //! a known share of copies.

    use super::*;

    fn sums(sizes: impl Iterator<Item = (f64, f64)>, bytes: f64, is_whole: bool) -> Compared {
        let mut all = Compared { bytes, is_whole, ..Compared::default() };
        for (s, r) in sizes {
            let one = Compared {
                sizes: 1.0,
                s,
                r,
                ss: s * s,
                rs: r * s,
                rr: r * r,
                ..Compared::default()
            };
            all.add(&one);
        }
        all
    }

    #[test]
    fn tiers_count_by_their_bytes() {
        let small = sums([(100.0, 50.0), (300.0, 0.0)].into_iter(), 400.0, true);
        let large = sums([(1000.0, 1000.0)].into_iter(), 1600.0, true);
        let (share, deviation) = share(&[small, large]).unwrap();
        assert!((share - (50.0 + 1600.0) / 2000.0).abs() < 1e-12 && deviation == 0.0, "{share}");
        assert_eq!(super::share(&[Compared::default()]), None);
    }

    #[test]
    fn the_deviation_matches_the_samples() {
        // In every other one of 4096 sizes, half of the bytes are copies; samples contain one size
        // in 16, chosen by hash.
        let size = |number: u64| (1000.0, if number.is_multiple_of(2) { 500.0 } else { 0.0 });
        let (mut shares, mut said) = (Vec::new(), 0.0);
        for sample in 0..16 {
            let taken = (0..4096).filter(|number| mix(*number) % 16 == sample).map(size);
            let (share, deviation) = share(&[sums(taken, 1e6, false)]).unwrap();
            shares.push(share);
            said += deviation / 16.0;
        }
        let mean = shares.iter().sum::<f64>() / 16.0;
        assert!((mean - 0.25).abs() < 0.01, "{mean}");
        let spread = shares.iter().map(|share| (share - 0.25).powi(2)).sum::<f64>() / 16.0;
        assert!((0.6..1.6).contains(&(spread.sqrt() / said)), "{} {said}", spread.sqrt());
    }
}
