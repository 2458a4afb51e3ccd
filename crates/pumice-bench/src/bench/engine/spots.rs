//! Positions and durations of requests: the points of a chart over the address range of a target.
//!
//! Used only for operations that read existing data, which have one request in flight. At most
//! [`SPOTS_MAX`] spots are recorded.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::{Operation, Workload};

/// Maximum number of spots in a run. More would hide each other in a chart, and lines of a result
/// file have a maximum length.
pub(super) const SPOTS_MAX: usize = 1000;

/// Requests at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spot {
    /// Offset of the first request, in bytes from the start of the target.
    pub offset_bytes: u64,
    /// Bytes read.
    pub bytes: u64,
    /// From the first request to the last reply, in ns.
    pub ns: u64,
}

/// Collects the spots of a run.
pub(super) struct Spots {
    /// Requests per spot; 0 if spots are not collected.
    requests: u64,
    spots: Vec<Spot>,
    /// The incomplete spot, its number of requests, and the time at which the first one began.
    open: Option<(Spot, u64, u64)>,
}

impl Spots {
    pub(super) fn new(workload: &Workload) -> Self {
        let requests = match workload.operation {
            Operation::SurfaceRead => workload.surface().stretch_records,
            Operation::AccessRead => 1,
            _ => 0,
        };
        let capacity = if requests == 0 { 0 } else { SPOTS_MAX };
        Self { requests, spots: Vec::with_capacity(capacity), open: None }
    }

    /// Records a request of `bytes` at an offset, with its start and end times.
    pub(super) fn add(&mut self, offset_bytes: u64, bytes: u64, (begun_ns, ended_ns): (u64, u64)) {
        if self.requests == 0 || self.spots.len() == SPOTS_MAX {
            return;
        }
        let new = (Spot { offset_bytes, bytes: 0, ns: 0 }, 0, begun_ns);
        let (spot, count, first_ns) = self.open.get_or_insert(new);
        spot.bytes += bytes;
        spot.ns = ended_ns.saturating_sub(*first_ns).max(1);
        *count += 1;
        if *count == self.requests {
            self.spots.push(*spot);
            self.open = None;
        }
    }

    /// Returns the complete spots in chronological order.
    pub(super) fn into_vec(self) -> Vec<Spot> {
        self.spots
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each stretch is one spot, and the number of spots is limited.
    use super::*;
    use crate::bench::results::sample::workload;

    fn collected(operation: Operation, count: u64) -> Vec<Spot> {
        let mut spots = Spots::new(&workload(operation, 4096));
        for number in 0..count {
            spots.add(number * 4096, 4096, (number * 10, number * 10 + 7));
        }
        spots.into_vec()
    }

    #[test]
    fn a_spot_has_its_requests_and_time() {
        let surface = collected(Operation::SurfaceRead, 40);
        let spot = |first: u64| Spot { offset_bytes: first * 4096, bytes: 16 * 4096, ns: 157 };
        assert_eq!(surface, [spot(0), spot(16)]);
        let access = collected(Operation::AccessRead, 5000);
        assert_eq!(access.len(), SPOTS_MAX);
        assert_eq!(access[3], Spot { offset_bytes: 3 * 4096, bytes: 4096, ns: 7 });
        assert_eq!(collected(Operation::RandomRead, 100), []);
    }
}
