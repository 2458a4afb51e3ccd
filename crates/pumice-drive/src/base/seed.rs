//! Seeded randomness with a documented stream. A seed yields the same numbers on every machine and
//! in every version, as reproducible tests and data sets require.
//!
//! The crate requests randomness from the operating system only for the nonces, salts and keys of
//! encrypted drives. Callers draw the identities.

use rand_xoshiro::rand_core::SeedableRng;

/// A random number generator: xoshiro256++ seeded through SplitMix64.
///
/// Source: Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators", 2021.
pub type Random = rand_xoshiro::Xoshiro256PlusPlus;

/// Returns a generator for `seed`.
pub fn random(seed: u64) -> Random {
    Random::seed_from_u64(seed)
}

/// Returns a pseudorandom number that depends on `value` alone: the output function of SplitMix64.
/// The results of neighbouring values are uncorrelated. Unlike a generator, it needs no state.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
pub fn mix(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
