//! The position of each sector of a disk, and the time that the head needs to reach it.
//!
//! The disk is one spiral from outside to inside: position *t*, in revolutions, passes the head
//! whenever the platters have turned by the fractional part of *t*. The transfer rate decreases
//! linearly over the LBAs, from the outer to the inner rate. These rates include head and track
//! switches, as do published sequential rates.
//!
//! **Seeks**: `track + b * sqrt(distance)` up to a third of the stroke, then linear up to `full` at
//! the full stroke. Short seeks are dominated by acceleration, long ones by constant speed. *b* is
//! chosen so that the mean over random seeks is `average`. Source of the form: Ruemmler and Wilkes,
//! An Introduction to Disk Drive Modeling, IEEE Computer 27(3), 1994. The third at which both parts
//! meet is arbitrary: it is the mean distance of random positions.

use super::DiskSpec;

/// Share of the stroke at which the seek curve becomes linear.
const KNEE: f64 = 1.0 / 3.0;

/// Remaining share of a revolution below which the head counts as being at the sector: less than a
/// sector, but more than the rounding error of nanoseconds.
const TURN_SLACK: f64 = 1e-4;

/// The platters and the seek curve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Platters {
    turn_ns: f64,
    /// Number of bytes on the outermost track.
    outer_bytes: f64,
    /// Decrease of the transfer rate per byte.
    fall: f64,
    turns: f64,
    seek: Seek,
}

/// The seek curve: nanoseconds as a function of the share of the stroke.
#[derive(Clone, Copy, Debug)]
struct Seek {
    track: f64,
    root: f64,
    knee: f64,
    full: f64,
}

impl Seek {
    fn new(track: f64, average: f64, full: f64) -> Self {
        // The distance f between two random positions has the density 2 (1 - f). The mean of the
        // curve is the sum of three parts, each weighted by that density: the constant; the root up
        // to the knee, and its value at the knee for larger distances; and the linear remainder.
        let root_mean = 4.0 / 3.0 * KNEE.powf(1.5) - 4.0 / 5.0 * KNEE.powf(2.5);
        let beyond = (1.0 - KNEE).powi(2);
        let (line_mean, knee_mean) = (beyond / 3.0, beyond * 2.0 / 3.0);
        let root = (average - track * (1.0 - line_mean) - full * line_mean)
            / (root_mean + KNEE.sqrt() * knee_mean);
        // If no such curve fits the numbers, use the nearest one that never decreases.
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
        platters.turns = platters.position(size_bytes);
        platters
    }

    /// Returns the position of a byte, in revolutions from the outermost one.
    pub(super) fn position(&self, offset: u64) -> f64 {
        let offset = offset as f64;
        if self.fall > 0.0 {
            -(-self.fall * offset / self.outer_bytes).ln_1p() / self.fall
        } else {
            offset / self.outer_bytes
        }
    }

    /// Returns the byte at a position: the inverse of [`Platters::position`].
    pub(super) fn offset(&self, position: f64) -> u64 {
        let offset = if self.fall > 0.0 {
            -(-self.fall * position).exp_m1() * self.outer_bytes / self.fall
        } else {
            position * self.outer_bytes
        };
        offset as u64
    }

    /// Returns the time until the byte at `offset` starts to pass a head that is at `from`.
    pub(super) fn access_ns(&self, now_ns: u64, from: f64, offset: u64) -> u64 {
        let to = self.position(offset);
        let distance = (to - from).abs();
        let seek_ns = if distance < 1.0 { 0.0 } else { self.seek.ns(distance / self.turns) };
        let turned = (now_ns as f64 + seek_ns) / self.turn_ns;
        let wait = (to - turned).rem_euclid(1.0);
        let wait = if wait > 1.0 - TURN_SLACK { 0.0 } else { wait };
        (seek_ns + wait * self.turn_ns) as u64
    }

    /// Returns the time that the bytes between two positions need to pass the head.
    pub(super) fn pass_ns(&self, from: f64, to: f64) -> u64 {
        ((to - from) * self.turn_ns) as u64
    }

    /// Returns the position that the head reaches from `from` after a time.
    pub(super) fn passed(&self, from: f64, ns: u64) -> f64 {
        from + ns as f64 / self.turn_ns
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the curve passes through the given numbers, and sectors pass at the specified rate.
    //! Method: comparison with sums over random distances, and with a rotation calculated by hand.

    use super::*;

    const SPEC: DiskSpec =
        DiskSpec { inner_bytes_per_s: 50_000_000, reorder_max: 4, ..super::super::tests::SPEC };
    const SIZE: u64 = 100_000_000_000;

    #[test]
    fn seeks_take_the_specified_time() {
        let seek = Seek::new(800e3, 8_900e3, 20_000e3);
        assert!((seek.ns(0.0) - 800e3).abs() < 1.0);
        assert!((seek.ns(1.0) - 20_000e3).abs() < 1.0);
        assert!((seek.ns(KNEE) - seek.ns(KNEE + 1e-9)).abs() < 1.0);
        // All pairs of a thousand positions.
        let count = 1000;
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let share = |(from, to): (i32, i32)| f64::from((from - to).abs()) / f64::from(count);
        let sum: f64 = pairs.map(|pair| seek.ns(share(pair))).sum();
        let mean = sum / f64::from(count * count);
        assert!((mean / 8_900e3 - 1.0).abs() < 0.005, "{mean}");
        // No curve fits these numbers; the substitute never decreases.
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
            let begin = platters.position(offset);
            let bytes = platters.offset(platters.passed(begin, 1_000_000)) - offset;
            assert!((bytes as f64 / bytes_per_ms - 1.0).abs() < 1e-3, "{offset}: {bytes}");
            let end = platters.position(offset + bytes);
            assert!(platters.pass_ns(begin, end).abs_diff(1_000_000) < 100, "{offset}");
        }
        // A revolution takes 10 ms, which is 1 MB on the outermost track.
        assert!((platters.position(1_000_000) - 1.0).abs() < 1e-4);
        let even = Platters::new(SIZE, &DiskSpec { inner_bytes_per_s: 100_000_000, ..SPEC });
        assert_eq!((even.position(2_000_000), even.offset(2.0)), (2.0, 2_000_000));
    }

    #[test]
    fn a_sector_passes_when_it_passes() {
        let platters = Platters::new(SIZE, &DiskSpec { inner_bytes_per_s: 100_000_000, ..SPEC });
        // The head is already on the track, a quarter or three quarters of a revolution before the
        // sector.
        assert_eq!(platters.access_ns(0, 0.0, 250_000), 2_500_000);
        assert_eq!(platters.access_ns(5_000_000, 0.5, 250_000), 7_500_000);
        assert_eq!(platters.access_ns(70_000_000, 0.0, 0), 0);
        // The sector is under the head only because of rounding.
        assert_eq!(platters.access_ns(2_500_001, 0.25, 250_000), 0);
        // The next track: a seek of slightly more than 800 us, then the rest of the revolution.
        let seek_ns = platters.seek.ns(1.0 / platters.turns);
        assert!((800_000.0..900_000.0).contains(&seek_ns));
        assert!(platters.access_ns(0, 0.0, 1_000_000).abs_diff(10_000_000) <= 1);
    }
}
