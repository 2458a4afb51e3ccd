//! The source of nonces, salts and keys: the operating system, through the generator of the
//! cryptographic library, or a seed, so that a simulation can be repeated byte for byte.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use rand_xoshiro::rand_core::Rng;

use crate::base::seed::{self, Random};

/// Bytes that a thread draws at a time. One call for each nonce would add a tenth to the cost of
/// encrypting a frame. Nonces are public, so unused bytes are no secret.
const POOL_BYTES: usize = 4092;

/// A source of random bytes.
pub enum Randomness {
    /// The operating system.
    System,
    /// A seed: for tests and simulations only, since every byte is predictable.
    Seeded(Mutex<Random>),
}

impl Randomness {
    /// Returns the stream of a seed.
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Mutex::new(seed::random(seed)))
    }

    /// Fills `target` with random bytes for keys and salts.
    pub fn fill(&self, target: &mut [u8]) {
        match self {
            Self::System => {
                aws_lc_rs::rand::fill(target).expect("the system has random numbers");
            }
            Self::Seeded(random) => {
                random.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(target);
            }
        }
    }

    /// Returns random bytes that may become public.
    pub(super) fn nonce<const BYTES: usize>(&self) -> [u8; BYTES] {
        let mut nonce = [0; BYTES];
        match self {
            Self::System => POOL.with_borrow_mut(|pool| pool.take(&mut nonce)),
            Self::Seeded(_) => self.fill(&mut nonce),
        }
        nonce
    }
}

impl fmt::Debug for Randomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Seeded(_) => "Seeded",
        })
    }
}

struct Pool {
    bytes: [u8; POOL_BYTES],
    left: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], left: 0 }) };
}

impl Pool {
    fn take(&mut self, target: &mut [u8]) {
        if self.left < target.len() {
            Randomness::System.fill(&mut self.bytes);
            self.left = POOL_BYTES;
        }
        self.left -= target.len();
        let bytes = self.bytes.get(self.left..self.left + target.len());
        target.copy_from_slice(bytes.expect("a nonce is a small part of the pool"));
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a pool never repeats a nonce, and a seed repeats its stream.
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_nonce_is_used_twice() {
        let nonces: BTreeSet<[u8; 12]> = (0..2000).map(|_| Randomness::System.nonce()).collect();
        assert_eq!(nonces.len(), 2000);
    }

    #[test]
    fn a_seed_repeats() {
        let draw = |seed| {
            let source = Randomness::seeded(seed);
            [source.nonce::<12>(), source.nonce()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(draw(1)[0], draw(1)[1]);
    }
}
