//! A broken promise, with everything needed to reproduce it.

use std::fmt;

use serde::Serialize;

/// The promise, the finding that contradicts it, and its place in a world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Seed of the world.
    pub seed: u64,
    /// Maximum number of requests of a life: it is part of the definition of a world.
    pub steps: u64,
    /// The other rules, as arguments of the program; empty for the default.
    pub arguments: String,
    /// The life in which the violation was found, from 1; after a crash, that is the next life.
    pub life: u64,
    /// Number of requests issued in the world until then.
    pub request: u64,
    /// The promise.
    pub promised: String,
    /// The finding that contradicts the promise.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, steps, arguments, life, request, promised, found } = self;
        writeln!(f, "a promise was broken: seed {seed}, life {life}, request {request}")?;
        writeln!(f, "  promised: {promised}")?;
        writeln!(f, "  found:    {found}")?;
        write!(f, "  again:    pumice-torture --seed {seed} --worlds 1 --steps {steps}{arguments}")
    }
}
