//! A pseudo-random permutation that needs no memory.
//!
//! A Feistel network of four rounds permutes the numbers below a power of four. Results outside the
//! range are permuted again until they are within it.
//!
//! Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002 (cycle walking).

use pumice_drive::base::seed::mix;

const ROUNDS: u64 = 4;

/// A permutation of the numbers below `count`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shuffle {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    /// Returns the permutation for a seed. `count` must be 1 to 2^62.
    pub(super) fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - (count.max(1) - 1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// Returns the number at `index`, below `count`. The average cost is below four permutations.
    pub(super) fn record(&self, place: u64) -> u64 {
        let mut number = self.permuted(place);
        while number >= self.count {
            number = self.permuted(number);
        }
        number
    }

    fn permuted(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            let drawn = mix(self.seed ^ right ^ round << 60) & mask;
            (left, right) = (right, left ^ drawn);
        }
        left << self.half_bits | right
    }
}
