//! Where the sectors of a disk are, and how long its head is on the way to them.
//!
//! All of the disk is one spiral, outside in: place *t*, in turns, passes the head whenever the
//! platters have turned by the fraction of *t*. Bytes under the head in a second fall linearly over
//! the LBAs, from the outer to the inner rate. What changes of head and track cost in between is in
//! these rates, as in those that are published of reading in order.
//!
//! **Seeks**: `track + b * sqrt(distance)` up to a third of the way across, linear beyond, through
//! `full` at the whole way: short seeks are spent accelerating, long ones at full speed. *b* is
//! such that seeks between two random places take `average`.
//! Source: the form: Ruemmler and Wilkes, An Introduction to Disk Drive Modeling, IEEE Computer
//! 27(3), 1994. The third, where both meet, is arbitrary: it is the mean distance of random places.

use super::DiskSpec;

/// Where the curve of seeks becomes a line: a share of the whole way.
const KNEE: f64 = 1.0 / 3.0;

/// What is left of a turn when its sector counts as being under the head: less than a sector, more
/// than what rounding to nanoseconds leaves.
const TURN_SLACK: f64 = 1e-4;

/// Sectors and head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Platters {
    turn_ns: f64,
    /// Bytes that pass in a turn, on the outermost track.
    outer_bytes: f64,
    /// By how much that falls with each byte.
    fall: f64,
    turns: f64,
    seek: Seek,
}

/// The curve of seeks, in nanoseconds by share of the whole way.
#[derive(Clone, Copy, Debug)]
struct Seek {
    track: f64,
    root: f64,
    knee: f64,
    full: f64,
}

impl Seek {
    fn new(track: f64, average: f64, full: f64) -> Self {
        // Two random places are the share f apart with density 2 (1 - f). The mean of the curve is
        // the sum of its three parts, each with its share of that: the constant, the root up to the
        // knee and its value there beyond, the rest of the line.
        let root_mean = 4.0 / 3.0 * KNEE.powf(1.5) - 4.0 / 5.0 * KNEE.powf(2.5);
        let beyond = (1.0 - KNEE).powi(2);
        let (line_mean, knee_mean) = (beyond / 3.0, beyond * 2.0 / 3.0);
        let root = (average - track * (1.0 - line_mean) - full * line_mean)
            / (root_mean + KNEE.sqrt() * knee_mean);
        // Numbers that no such curve goes through: the nearest that never falls.
        let root = root.clamp(0.0, (full - track) / KNEE.sqrt());
        Self { track, root, knee: track + root * KNEE.sqrt(), full }
    }

    fn ns(&self, share: f64) -> f64 {
        if share <= KNEE {
            return self.track + self.root * share.sqrt();
        }
        self.knee + (self.full - self.knee) * (share - KNEE) / (1.0 - KNEE)
    }
}

impl Platters {
    pub(super) fn new(size_bytes: u64, spec: &DiskSpec) -> Self {
        let turn_ns = 60e9 / spec.rpm as f64;
        let in_turn = |bytes_per_s: u64| bytes_per_s as f64 * turn_ns / 1e9;
        let outer_bytes = in_turn(spec.outer_bytes_per_s);
        let fall = (outer_bytes - in_turn(spec.inner_bytes_per_s)) / size_bytes as f64;
        let times =
            [spec.seek_track_ns, spec.seek_average_ns, spec.seek_full_ns].map(|ns| ns as f64);
        let seek = Seek::new(times[0], times[1], times[2]);
        let mut platters = Self { turn_ns, outer_bytes, fall, turns: 0.0, seek };
        platters.turns = platters.place(size_bytes);
        platters
    }

    /// Where a byte is, in turns from the outermost one.
    pub(super) fn place(&self, offset: u64) -> f64 {
        let offset = offset as f64;
        match self.fall > 0.0 {
            true => -(-self.fall * offset / self.outer_bytes).ln_1p() / self.fall,
            false => offset / self.outer_bytes,
        }
    }

    /// Which byte is there; the other way round.
    pub(super) fn offset(&self, place: f64) -> u64 {
        let offset = match self.fall > 0.0 {
            true => -(-self.fall * place).exp_m1() * self.outer_bytes / self.fall,
            false => place * self.outer_bytes,
        };
        offset as u64
    }

    /// How long a head that is at `from` takes until the byte at `offset` begins to pass under it.
    pub(super) fn access_ns(&self, now_ns: u64, from: f64, offset: u64) -> u64 {
        let to = self.place(offset);
        let distance = (to - from).abs();
        let seek_ns = if distance < 1.0 { 0.0 } else { self.seek.ns(distance / self.turns) };
        let turned = (now_ns as f64 + seek_ns) / self.turn_ns;
        let wait = (to - turned).rem_euclid(1.0);
        let wait = if wait > 1.0 - TURN_SLACK { 0.0 } else { wait };
        (seek_ns + wait * self.turn_ns) as u64
    }

    /// How long the bytes from one place to another take to pass.
    pub(super) fn pass_ns(&self, from: f64, to: f64) -> u64 {
        ((to - from) * self.turn_ns) as u64
    }

    /// What passes from one place on in a time; gives where that ends.
    pub(super) fn passed(&self, from: f64, ns: u64) -> f64 {
        from + ns as f64 / self.turn_ns
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the curve goes through the numbers that it is made of, and sectors pass at their rate.
    //! Method: against sums over random distances, and against the wheel turned by hand.

    use super::*;

    const SPEC: DiskSpec =
        DiskSpec { inner_bytes_per_s: 50_000_000, reorder_max: 4, ..super::super::tests::SPEC };
    const SIZE: u64 = 100_000_000_000;

    #[test]
    fn seeks_take_what_was_said_of_them() {
        let seek = Seek::new(800e3, 8_900e3, 20_000e3);
        assert!((seek.ns(0.0) - 800e3).abs() < 1.0);
        assert!((seek.ns(1.0) - 20_000e3).abs() < 1.0);
        assert!((seek.ns(KNEE) - seek.ns(KNEE + 1e-9)).abs() < 1.0);
        // All pairs of a thousand places.
        let count = 1000;
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let share = |(from, to): (i32, i32)| f64::from((from - to).abs()) / f64::from(count);
        let sum: f64 = pairs.map(|pair| seek.ns(share(pair))).sum();
        let mean = sum / f64::from(count * count);
        assert!((mean / 8_900e3 - 1.0).abs() < 0.005, "{mean}");
        // None goes through these; what is taken instead never falls.
        for average in [800e3, 1_000e3, 19_000e3] {
            let seek = Seek::new(800e3, average, 20_000e3);
            let curve: Vec<f64> = (0..=100).map(|at| seek.ns(f64::from(at) / 100.0)).collect();
            assert!(curve.is_sorted(), "{average}: {curve:?}");
        }
    }

    #[test]
    fn rates_fall_linearly_from_the_outer_to_the_inner() {
        let platters = Platters::new(SIZE, &SPEC);
        for (offset, bytes_per_ms) in [(0, 100e3), (SIZE / 2, 75e3), (SIZE - (1 << 20), 50e3)] {
            let begin = platters.place(offset);
            let bytes = platters.offset(platters.passed(begin, 1_000_000)) - offset;
            assert!((bytes as f64 / bytes_per_ms - 1.0).abs() < 1e-3, "{offset}: {bytes}");
            let end = platters.place(offset + bytes);
            assert!(platters.pass_ns(begin, end).abs_diff(1_000_000) < 100, "{offset}");
        }
        // A turn takes 10 ms: 1 MB outside.
        assert!((platters.place(1_000_000) - 1.0).abs() < 1e-4);
        let even = Platters::new(SIZE, &DiskSpec { inner_bytes_per_s: 100_000_000, ..SPEC });
        assert_eq!((even.place(2_000_000), even.offset(2.0)), (2.0, 2_000_000));
    }

    #[test]
    fn a_sector_passes_when_it_passes() {
        let platters = Platters::new(SIZE, &DiskSpec { inner_bytes_per_s: 100_000_000, ..SPEC });
        // On the track already: a quarter of a turn ahead, or three of them.
        assert_eq!(platters.access_ns(0, 0.0, 250_000), 2_500_000);
        assert_eq!(platters.access_ns(5_000_000, 0.5, 250_000), 7_500_000);
        assert_eq!(platters.access_ns(70_000_000, 0.0, 0), 0);
        // Under the head by rounding only.
        assert_eq!(platters.access_ns(2_500_001, 0.25, 250_000), 0);
        // The next track: a seek of 800 us and a little, then the rest of the turn.
        let seek_ns = platters.seek.ns(1.0 / platters.turns);
        assert!((800_000.0..900_000.0).contains(&seek_ns));
        assert!(platters.access_ns(0, 0.0, 1_000_000).abs_diff(10_000_000) <= 1);
    }
}
