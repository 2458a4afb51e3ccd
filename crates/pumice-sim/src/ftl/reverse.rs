//! A compact set of the LBAs in a segment.
//!
//! ```text
//! LBA   high part | low part, `low_bits` wide
//! low   the low parts, concatenated
//! high  for each high part in turn: a 1 per LBA with that high part, then a 0
//! ```
//!
//! With `low_bits` = log2(LBAs of the drive / LBAs in the set), rounded down, an entry needs that
//! number of bits plus two to three, for any distribution of the LBAs: 14 instead of 32 if a
//! segment contains one block in four thousand. In return, the order is lost: the set is enumerated
//! in ascending order, and only the map contains the position of a block in the segment.
//!
//! Source: Elias, "Efficient storage and retrieval by content and address of static files", 1974;
//! Fano, "On the number of bits required to implement an associative memory", 1971.

/// An immutable set of LBAs.
#[derive(Clone, Debug, Default)]
pub(super) struct LbaSet {
    low: Box<[u64]>,
    high: Box<[u64]>,
    len: u32,
    low_bits: u32,
}

impl LbaSet {
    /// Creates the set of `lbas`, which must be ascending, distinct and below `lba_count`.
    pub(super) fn new(lbas: &[u32], lba_count: u64) -> Self {
        debug_assert!(lbas.is_sorted_by(|a, b| a < b));
        if lbas.is_empty() {
            return Self::default();
        }
        let low_bits = low_bits(lbas.len() as u64, lba_count);
        let high_count = (lba_count >> low_bits) as usize + 1;
        let words = |bits: usize| vec![0u64; bits.div_ceil(64)].into_boxed_slice();
        // There are extra words, so that reading an entry that spans two words needs no bounds
        // check.
        let mut low = words(lbas.len() * low_bits as usize + 128);
        let mut high = words(lbas.len() + high_count);
        let mask = (1u64 << low_bits) - 1;
        for (index, &lba) in lbas.iter().enumerate() {
            let (word, shift) = split(index * low_bits as usize);
            let value = u64::from(lba) & mask;
            low[word] |= value << shift;
            // Two shifts are used, because a shift by 64 is undefined.
            low[word + 1] |= value >> 1 >> (63 - shift);
            let (word, shift) = split(index + (lba >> low_bits) as usize);
            high[word] |= 1 << shift;
        }
        Self { low, high, len: lbas.len() as u32, low_bits }
    }

    /// Returns the number of LBAs.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of heap bytes.
    pub(super) fn heap_bytes(&self) -> u64 {
        8 * (self.low.len() + self.high.len()) as u64
    }

    /// Visits all LBAs in ascending order.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u32)) {
        let mask = (1u64 << self.low_bits) - 1;
        let mut index = 0;
        for (at, &bits) in self.high.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let high = at * 64 + bits.trailing_zeros() as usize - index;
                let (word, shift) = split(index * self.low_bits as usize);
                let value = self.low[word] >> shift | self.low[word + 1] << 1 << (63 - shift);
                visit((high as u32) << self.low_bits | (value & mask) as u32);
                index += 1;
                bits &= bits - 1;
            }
        }
    }
}

/// Returns the maximum number of heap bytes for a set of `len` LBAs out of `lba_count`.
pub(super) fn bytes_max(len: u64, lba_count: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    let low_bits = u64::from(low_bits(len, lba_count));
    let high_bits = len + (lba_count >> low_bits) + 1;
    8 * ((len * low_bits + 128).div_ceil(64) + high_bits.div_ceil(64))
}

fn low_bits(len: u64, lba_count: u64) -> u32 {
    (lba_count / len.max(1)).max(1).ilog2()
}

fn split(bit: usize) -> (usize, u32) {
    (bit / 64, (bit % 64) as u32)
}

#[cfg(test)]
mod tests {
    //! Goal: a set returns its LBAs, within the specified space. Method: sets of all densities,
    //! drawn at random, and the extreme ones.

    use std::collections::BTreeSet;

    use rand::RngExt;

    use super::*;
    use pumice_drive::base::seed::random;

    fn assert_comes_back(lbas: &[u32], lba_count: u64) {
        let set = LbaSet::new(lbas, lba_count);
        let mut back = Vec::new();
        set.for_each(|lba| back.push(lba));
        assert_eq!(back, lbas, "of {lba_count}");
        assert_eq!(set.len() as usize, lbas.len());
        assert_eq!(set.heap_bytes(), bytes_max(lbas.len() as u64, lba_count));
    }

    #[test]
    fn entries_are_found_as_they_were_set() {
        let mut random = random(1);
        assert_comes_back(&[], 10);
        assert_comes_back(&[0], 1);
        assert_comes_back(&[u32::MAX - 1], u64::from(u32::MAX));
        assert_comes_back(&Vec::from_iter(0..1000), 1000);
        assert_comes_back(&Vec::from_iter(5_000_000..5_001_000), 1 << 28);
        for lba_count in [100, 4097, 1 << 20, 244_140_625] {
            for len in [1, 3, 64, 1000] {
                let drawn = (0..len).map(|_| random.random_range(0..lba_count) as u32);
                let lbas = Vec::from_iter(drawn.collect::<BTreeSet<u32>>());
                assert_comes_back(&lbas, lba_count);
            }
        }
    }

    #[test]
    fn an_entry_takes_three_bits_more_than_its_low_part() {
        for (len, lba_count, bits) in [(65536, 244_140_625, 14), (1024, 244_140_625, 20)] {
            let bytes = bytes_max(len, lba_count);
            assert!(bytes * 8 <= len * bits + 256, "{len} of {lba_count} take {bytes} bytes");
        }
    }
}
