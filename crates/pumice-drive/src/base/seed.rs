//! Seeded randomness with a documented stream: one seed yields the same numbers on every machine
//! and in every version, which reproducible tests and data sets require.
//!
//! The crate never asks the operating system for randomness, except for a drive's identity when the
//! drive is created.

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
/// The results of neighbouring values are uncorrelated. Needs no memory, unlike a generator.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
pub fn mix(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
