//! Sets of files to copy within a file system, as lists of sizes.
//!
//! AS SSD's copy test has three sets: an ISO image (two large files), a program (a folder with many
//! small files) and a game (small and large files).
//!
//! Source: Tom's Hardware, "Three PCI Express-Based SSDs: When SATA 6 Gb/s Is Too Slow",
//! tomshardware.com/reviews/pci-express-ssd,2952-6.html, for the types of files; UserBenchmark,
//! "What is AS SSD real world copy speed", userbenchmark.com/Faq, for the image (two files of 500
//! MB). No source was found for the numbers and sizes of the other files; the values here are our
//! own.

use rand::RngExt;

use pumice_drive::base::seed::{mix, random};

/// Maximum number of files; the last file has the remaining bytes. Arbitrary: enough for 4 GB of
/// small files.
pub const FILES_MAX: usize = 100_000;

/// Minimum and maximum sizes of small files, and of the large files of a game, in bytes.
const SMALL_BYTES: (f64, f64) = (1024.0, 262_144.0);
const LARGE_BYTES: (f64, f64) = (1_048_576.0, 67_108_864.0);

/// Number of small files after each large file of a game.
const SMALL_PER_LARGE: usize = 16;

/// A set of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSet {
    /// One file.
    One,
    /// Two files of equal size, like the images of two disks.
    Image,
    /// Only small files, of 1 to 256 KiB with a mean of 46 KiB.
    Program,
    /// Repeatedly one large file of 1 to 64 MiB and 16 small ones; 94 % of the bytes are in large
    /// files.
    Game,
}

impl FileSet {
    /// Returns the sizes of the files in bytes. There are at most [`FILES_MAX`], none has size 0,
    /// and their sum is `bytes`. The logarithms of small and of large sizes are uniform. Equal
    /// seeds produce equal sizes.
    pub fn sizes(self, bytes: u64, seed: u64) -> Vec<u64> {
        let mut draws = random(mix(seed));
        let mut drawn = |(least, greatest): (f64, f64)| -> u64 {
            let share: f64 = draws.random_range(0.0..1.0);
            (least * (greatest / least).powf(share)) as u64
        };
        let mut sizes = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let size = match self {
                Self::One => left,
                Self::Image => bytes.div_ceil(2),
                Self::Program => drawn(SMALL_BYTES),
                Self::Game if sizes.len() % (SMALL_PER_LARGE + 1) == 0 => drawn(LARGE_BYTES),
                Self::Game => drawn(SMALL_BYTES),
            };
            let is_last = sizes.len() + 1 == FILES_MAX;
            let size = if is_last { left } else { size.min(left) };
            sizes.push(size);
            left -= size;
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a set has the correct total size, the correct types of files, and the same files for
    //! the same seed.
    use super::*;

    #[test]
    fn sets_have_their_bytes_and_kinds() {
        for set in [FileSet::One, FileSet::Image, FileSet::Program, FileSet::Game] {
            for bytes in [0, 1, 3, 1 << 20, 256 << 20, 8 << 30] {
                let sizes = set.sizes(bytes, 7);
                assert_eq!(sizes.iter().sum::<u64>(), bytes, "{set:?}");
                assert!(sizes.len() <= FILES_MAX && !sizes.contains(&0), "{set:?}");
                assert_eq!(sizes, set.sizes(bytes, 7));
            }
        }
        assert_eq!(FileSet::One.sizes(1000, 1), [1000]);
        assert_eq!(FileSet::Image.sizes(1001, 1), [501, 500]);
        let small = FileSet::Program.sizes(256 << 20, 7);
        assert!((5000..6500).contains(&small.len()), "{} files", small.len());
        assert!(small.iter().all(|size| *size <= 256 << 10));
        assert_ne!(small, FileSet::Program.sizes(256 << 20, 8));
        let game = FileSet::Game.sizes(4 << 30, 7);
        let large: u64 = game.iter().filter(|size| **size > 256 << 10).sum();
        let share = large as f64 / (4u64 << 30) as f64;
        assert!((0.90..0.97).contains(&share), "{share} of the bytes are in large files");
    }
}
