//! Records drawn from a Zipf distribution: a smooth transition from few hot records to many cold
//! ones.
//!
//! Ranks are scattered over the span, so that hot records are not adjacent. Every thread and run of
//! a workload has the same hot records. There is no shuffled table, because a span may have more
//! records than fit into memory.

use rand::distr::Distribution;

use pumice_drive::base::seed::Random;

/// The fractional part of the golden ratio. Used as a factor, it maximizes the distances between
/// the multiples of a number.
///
/// Source: Knuth, The Art of Computer Programming, vol. 3, section 6.4, Fibonacci hashing.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Number of candidate steps: more than the longest run of consecutive numbers that all share a
/// divisor with some number below 2^64.
const STEPS_TRIED: u64 = 128;

/// An exponent closer to 1 than this is treated as 1, because the general formula loses precision.
const NEAR_ONE: f64 = 1e-9;

/// A Zipf distribution over records numbered from 0.
pub(super) struct Zipf {
    ranks: rand_distr::Zipf<f64>,
    records: u64,
    /// Distance between the records of two consecutive ranks; coprime to `records`, so that every
    /// record has a rank.
    step: u64,
}

impl Zipf {
    /// Returns the distribution over `records` records, at least one, with the exponent `theta`,
    /// which must be above 0. Rank r has the probability r^-theta divided by the sum over all
    /// ranks.
    pub(super) fn new(records: u64, theta: f64) -> Self {
        let theta = if (theta - 1.0).abs() < NEAR_ONE { 1.0 } else { theta };
        let ranks = rand_distr::Zipf::new(records as f64, theta);
        let golden = ((records as f64 * GOLDEN) as u64).max(1);
        let tried = golden..golden + STEPS_TRIED;
        let rated = tried.filter_map(|step| Some((largest_quotient(step, records)?, step)));
        let (_, step) = rated.min().expect("no divisor is shared by that many in a row");
        Self { ranks: ranks.expect("an exponent and a number that were checked"), records, step }
    }

    /// Returns a random record.
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        // Rounding may exceed the last rank.
        let rank = (self.ranks.sample(random) as u64).clamp(1, self.records);
        self.record(rank)
    }

    /// Returns the record of a rank; ranks start at 1.
    fn record(&self, rank: u64) -> u64 {
        (u128::from(rank - 1) * u128::from(self.step) % u128::from(self.records)) as u64
    }
}

/// Returns the largest quotient in Euclid's algorithm, or `None` if the numbers share a divisor. A
/// smaller quotient means that the multiples of `step` modulo `records` are further apart.
///
/// Source: the three-distance theorem (Sos, 1958).
fn largest_quotient(step: u64, records: u64) -> Option<u64> {
    let (mut one, mut other, mut largest) = (records, step % records, 0);
    while other != 0 {
        largest = largest.max(one / other);
        (one, other) = (other, one % other);
    }
    (one == 1).then_some(largest)
}

#[cfg(test)]
mod tests {
    //! Goal: records follow the distribution, every record has a rank, and hot records are not
    //! adjacent. Method: draws are counted and compared with the distribution's own sum; whole
    //! spans are listed.
    use super::*;
    use pumice_drive::base::seed::random;

    #[test]
    fn ranks_are_drawn_as_the_law_says() {
        const DRAWS: u32 = 200_000;
        for theta in [0.5, 0.99, 1.0, 1.0 + f64::EPSILON, 1.5] {
            let zipf = Zipf::new(1000, theta);
            let random = &mut random(4);
            let mut counts = vec![0u32; 1000];
            for _ in 0..DRAWS {
                counts[zipf.draw(random) as usize] += 1;
            }
            let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-theta)).sum();
            for rank in [1, 2, 3, 10, 100] {
                let share = (rank as f64).powf(-theta) / sum;
                let wanted = f64::from(DRAWS) * share;
                let found = f64::from(counts[zipf.record(rank) as usize]);
                // Five standard deviations.
                assert!(
                    (found - wanted).abs() < 5.0 * wanted.sqrt(),
                    "{theta}: rank {rank} was drawn {found} times, not {wanted}"
                );
            }
            assert_eq!(counts.iter().sum::<u32>(), DRAWS);
        }
    }

    #[test]
    fn every_record_has_one_rank() {
        for records in [1, 2, 3, 4, 6, 10, 16, 89, 1000, 1024, 4096, 6765, 10_007] {
            let zipf = Zipf::new(records, 0.99);
            let mut found: Vec<_> = (1..=records).map(|rank| zipf.record(rank)).collect();
            found.sort_unstable();
            assert!(found.into_iter().eq(0..records), "{records} records");
        }
    }

    #[test]
    fn hot_records_are_far_apart() {
        for records in [1000, 1024, 65_536, 10_000_019, 1 << 40] {
            let zipf = Zipf::new(records, 0.99);
            let mut hot: Vec<_> = (1..=100).map(|rank| zipf.record(rank)).collect();
            hot.sort_unstable();
            let nearest = hot.windows(2).map(|pair| pair[1] - pair[0]).min();
            // With even spacing, they would be 1/100 of the span apart.
            assert!(nearest > Some(records / 300), "{records} records: {nearest:?}");
        }
    }

    #[test]
    fn spans_of_any_size_have_a_law() {
        for records in [1, 2, 1 << 55] {
            for theta in [0.01, 0.99, 1.0, 10.0] {
                let zipf = Zipf::new(records, theta);
                let random = &mut random(1);
                assert!((0..1000).all(|_| zipf.draw(random) < records), "{records}, {theta}");
            }
        }
    }
}
