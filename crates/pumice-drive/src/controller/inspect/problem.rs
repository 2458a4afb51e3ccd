//! A problem on a medium, as reported by checks, scrubs and extracts.

use serde::{Deserialize, Serialize};

use crate::base::{Error, Lba};

/// Maximum number of problems listed one by one; more are only counted, so that a wrecked medium
/// cannot fill the memory.
pub(crate) const PROBLEMS_LISTED_MAX: usize = 10_000;

/// A problem on the medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// Description of the problem.
    pub what: String,
    /// The segment, if it is in one.
    pub segment: Option<u32>,
    /// First affected block, if known.
    pub lba: Option<u64>,
    /// Number of affected blocks.
    pub lba_count: Option<u64>,
}

impl Problem {
    /// Creates a problem from an error and the blocks that it affects.
    pub(crate) fn new(error: &Error, lbas: Option<(Lba, u64)>) -> Self {
        Self {
            what: error.chain(),
            segment: error.segment().map(|segment| segment.0),
            lba: lbas.map(|(lba, _)| lba.0),
            lba_count: lbas.map(|(_, count)| count),
        }
    }
}
