//! Seeded randomness with a documented stream: the same seed gives the same numbers on every
//! machine and in every version, which reproducible tests and data sets need.
//!
//! The core never asks the operating system for randomness, except for a drive's identity when it
//! is created.

use rand_xoshiro::rand_core::SeedableRng;

/// The generator: xoshiro256++ seeded through SplitMix64.
///
/// Source: Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators", 2021.
pub type Random = rand_xoshiro::Xoshiro256PlusPlus;

/// A generator for `seed`.
pub fn random(seed: u64) -> Random {
    Random::seed_from_u64(seed)
}
