//! A broken promise, with everything needed to see it again.

use std::fmt;

use serde::Serialize;

/// What was promised and what was found, in which world, when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Seed of the world.
    pub seed: u64,
    /// Requests a life may issue: a part of what the world is.
    pub steps: u64,
    /// The life in which it was noticed, from 1; after a crash that is the next one.
    pub life: u64,
    /// Requests issued in the world until then.
    pub request: u64,
    /// The promise.
    pub promised: String,
    /// What was found instead.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, steps, life, request, promised, found } = self;
        writeln!(f, "a promise was broken: seed {seed}, life {life}, request {request}")?;
        writeln!(f, "  promised: {promised}")?;
        writeln!(f, "  found:    {found}")?;
        write!(f, "  again:    pumice-torture --seed {seed} --worlds 1 --steps {steps}")
    }
}
