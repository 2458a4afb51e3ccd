//! Measures the share of data that occurs more than once.
//!
//! Only hashes are stored, and only if they end in enough zero bits, so that a size limit is met.
//! They are an unbiased sample of the distinct contents, with all their repetitions. With `k`
//! stored contents, the relative error of the share is about `1 / sqrt(k)` (one standard deviation)
//! if contents repeat about equally often.
//!
//! Source of the method: Gibbons, "Distinct Sampling for Highly-Accurate Answers to Distinct Values
//! Queries and Event Reports", 2001.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::saving::Saving;
use pumice_drive::base::checksum;

/// The set of units seen so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeats {
    times: BTreeMap<u64, u64>,
    most: usize,
    zero_bits: u32,
    units: u64,
    fills: u64,
}

impl Repeats {
    /// Returns an empty set that stores at most `most` contents, which need about 32 bytes each.
    pub fn new(most: usize) -> Self {
        Self { times: BTreeMap::new(), most, zero_bits: 0, units: 0, fills: 0 }
    }

    /// Adds a unit. A unit of one repeated byte is counted, but not as a repetition.
    pub fn add(&mut self, unit: &[u8]) {
        self.units += 1;
        let Some(hash) = hash(unit) else {
            self.fills += 1;
            return;
        };
        if hash.trailing_zeros() >= self.zero_bits {
            *self.times.entry(hash).or_default() += 1;
            self.shrink();
        }
    }

    /// Adds the units of another set.
    pub fn merge(&mut self, other: &Self) {
        self.units += other.units;
        self.fills += other.fills;
        self.zero_bits = self.zero_bits.max(other.zero_bits);
        self.most = self.most.min(other.most);
        for (hash, times) in &other.times {
            *self.times.entry(*hash).or_default() += times;
        }
        let zero_bits = self.zero_bits;
        self.times.retain(|hash, _| hash.trailing_zeros() >= zero_bits);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.times.len() > self.most {
            self.zero_bits += 1;
            let zero_bits = self.zero_bits;
            self.times.retain(|hash, _| hash.trailing_zeros() >= zero_bits);
        }
    }

    /// Returns the share of units that repeat an earlier one, excluding fills.
    pub fn again(&self) -> Saving {
        let times: u64 = self.times.values().sum();
        let again = Saving::of(times, self.times.len() as u64);
        let not_fills = (self.units - self.fills) as f64 / self.units.max(1) as f64;
        Saving::from_fraction(again.fraction() * not_fills)
    }

    /// Returns whether some contents were not stored.
    pub fn forgets(&self) -> bool {
        self.zero_bits > 0
    }

    /// Returns the number of stored contents.
    pub fn remembered(&self) -> usize {
        self.times.len()
    }

    /// Returns the number of units added.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Returns the number of added units that are one repeated byte.
    pub fn fills(&self) -> u64 {
        self.fills
    }
}

/// Returns the hash of a unit; `None` if the unit is one repeated byte.
pub fn hash(unit: &[u8]) -> Option<u64> {
    match pumice_drive::codec::fill_byte(unit) {
        Some(_) => None,
        None => Some(super::pool::mix(checksum::crc64(unit))),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the share is correct even if only few contents are stored, and for any merge order.

    use super::*;

    fn unit(number: u64) -> Vec<u8> {
        number.to_le_bytes().repeat(8)
    }

    #[test]
    fn parts_together_are_the_whole() {
        // 30,000 units, with each content occurring twice, and in addition a quarter of fills.
        let mut whole = Repeats::new(1000);
        let mut parts = [Repeats::new(1000), Repeats::new(1000), Repeats::new(1000)];
        for number in 0..40_000u64 {
            let unit =
                if number % 4 == 0 { vec![0; 64] } else { unit(1 + number / 8 * 4 + number % 4) };
            whole.add(&unit);
            parts[(number % 3) as usize].add(&unit);
        }
        let [mut one, two, three] = parts;
        one.merge(&two);
        one.merge(&three);
        assert_eq!(one, whole);
        assert_eq!((whole.units(), whole.fills()), (40_000, 10_000));
        assert!(whole.forgets() && whole.remembered() <= 1000 && whole.remembered() > 400);
        assert!((whole.again().fraction() - 0.375).abs() < 0.01, "{}", whole.again());
        assert_eq!(Repeats::new(9).again(), Saving::NONE);
    }
}
