//! Data for tests, of every kind that takes a separate path through the codec.

use rand::{Rng, RngExt};

use crate::base::seed::Random;
use crate::base::units::BLOCK_BYTES;

/// Returns `len` bytes of a random kind: zeroes, 0xff, one byte, text, noise, or a mixture by
/// block.
pub(super) fn any(random: &mut Random, len: usize) -> Vec<u8> {
    let kind = random.random_range(0..7);
    if kind < 6 {
        return of_kind(random, kind, len);
    }
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let kind = random.random_range(0..6);
        let piece = BLOCK_BYTES.min(len - bytes.len());
        bytes.extend(of_kind(random, kind, piece));
    }
    bytes
}

fn of_kind(random: &mut Random, kind: u32, len: usize) -> Vec<u8> {
    match kind {
        0 => vec![0; len],
        1 => vec![0xff; len],
        2 => vec![random.random(); len],
        3 | 4 => text(random, len),
        _ => noise(random, len),
    }
}

/// Returns words in random order, which compress to about a third.
pub(super) fn text(random: &mut Random, len: usize) -> Vec<u8> {
    const WORDS: [&[u8]; 8] =
        [b"the ", b"segment ", b"of a ", b"log ", b"holds ", b"frames ", b"and ", b"batches\n"];
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        bytes.extend(WORDS[random.random_range(0..WORDS.len())]);
        bytes.push(random.random());
    }
    bytes.truncate(len);
    bytes
}

/// Returns incompressible bytes.
pub(super) fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill_bytes(&mut bytes);
    bytes
}
