//! Records as written by IOzone with `-+w P -+y P -+C P`, for comparison with published results.
//!
//! The first P*P of each record repeats one word, except that the last P of that part repeats
//! another word. The remainder is a buffer of random 31-bit numbers, equal in all records, XORed
//! with a number that differs between records:
//!
//! ```text
//! up to about 3.42x:  words of 64 bits; the upper 33 bits are zero
//! 3.489:              words of 32 bits; the second half of the remainder is zero
//! ```
//!
//! P is therefore not the saving. At P = 50, LZ4 saves 40 % of the first layout and 61 % of the
//! second; zstd:1 saves 60 % and 62 %. The random numbers come from this program's generator, not
//! from IOzone's.

use rand_xoshiro::rand_core::Rng;

use super::pool::{KEY_BYTES, copy_keyed, mix};
use super::saving::Saving;
use pumice_drive::base::seed::random;

/// Version of IOzone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IozoneLayout {
    /// As written by 64-bit builds of 3.420 and similar versions.
    V3420,
    /// As written by 3.489.
    V3489,
}

/// First word of every record.
const CONSTANT: u32 = 0xDEAD_BEEF;

/// Random 31-bit numbers: the low bits of a word.
const NUMBER_MASK: u64 = (1 << 31) - 1;

/// Records of one layout and percentage.
pub(super) struct Iozone {
    layout: IozoneLayout,
    constant_bytes: usize,
    first_constant_bytes: usize,
    /// Non-zero bytes of the remainder; zeroes follow.
    rest: Vec<u8>,
}

impl Iozone {
    /// Returns records of `record_bytes` with `percent` for all three options.
    pub(super) fn new(
        layout: IozoneLayout,
        percent: Saving,
        record_bytes: usize,
        seed: u64,
    ) -> Self {
        let part = percent.fraction();
        let word_bytes = if layout == IozoneLayout::V3420 { 8 } else { 4 };
        let round = |bytes: f64| (bytes as usize).next_multiple_of(word_bytes).min(record_bytes);
        let constant_bytes = round(record_bytes as f64 * part * part);
        let first_constant_bytes = round(constant_bytes as f64 * (1.0 - part)).min(constant_bytes);
        let rest_bytes = record_bytes - constant_bytes;
        let written_bytes = match layout {
            IozoneLayout::V3420 => rest_bytes,
            IozoneLayout::V3489 => (rest_bytes / 2).next_multiple_of(word_bytes),
        };
        let mut random = random(seed);
        let mut rest = Vec::with_capacity(written_bytes + word_bytes);
        while rest.len() < written_bytes {
            let number = random.next_u64() & NUMBER_MASK;
            rest.extend(&number.to_le_bytes()[..word_bytes]);
        }
        Self { layout, constant_bytes, first_constant_bytes, rest }
    }

    /// Fills `target` with the first bytes of a record of a stream.
    pub(super) fn fill(&self, base: u64, record: u64, target: &mut [u8]) {
        let first = u64::from(CONSTANT);
        let second = first ^ (mix(base) & NUMBER_MASK);
        let number = mix(base ^ mix(record)) & NUMBER_MASK;
        let [first, second, number] = [first, second, number].map(|word| self.repeated(word));
        let (constants, rest) = target.split_at_mut(self.constant_bytes.min(target.len()));
        let first_bytes = self.first_constant_bytes.min(constants.len());
        let (firsts, seconds) = constants.split_at_mut(first_bytes);
        fill_words(firsts, first);
        fill_words(seconds, second);
        let written_bytes = self.rest.len().min(rest.len());
        let (written, unwritten) = rest.split_at_mut(written_bytes);
        copy_keyed(written, &self.rest[..written_bytes], &[number; KEY_BYTES / 8]);
        unwritten.fill(0);
    }

    /// Repeats the eight bytes of a word.
    fn repeated(&self, word: u64) -> u64 {
        match self.layout {
            IozoneLayout::V3420 => word,
            IozoneLayout::V3489 => word | word << 32,
        }
    }
}

fn fill_words(target: &mut [u8], word: u64) {
    let bytes = word.to_le_bytes();
    let mut words = target.chunks_exact_mut(8);
    for target in &mut words {
        target.copy_from_slice(&bytes);
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&bytes[..rest.len()]);
}
