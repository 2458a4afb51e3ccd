//! Generates data that is statistically similar to a profile's data.
//!
//! Each window of the output represents a window of the profile, unit by unit: each unit is the
//! texture with the most similar compressibility, XORed with a separate key. The gain of larger
//! chunks results from pieces that several units of a window share:
//!
//! ```text
//! unit   | shared at a distance of 16 KiB and more | shared within 16 KiB | its own |
//!          found in chunks of 64 KiB                 and of 16 KiB
//! ```
//!
//! The windows are ordered so that any part of the output, however short, has the mix of the
//! profile: they are sorted by saving and visited in steps of the golden section, in a different
//! order for each stream. The order is therefore less random than in real data.

use std::sync::Arc;

use super::pool::{KEY_BYTES, Key, copy_keyed, key, mix};
use super::profile::{Profile, Savings, UNIT_BYTES, UNITS, WindowProfile};
use super::texture::{Library, TextureId};

/// Number of units in 16 KiB.
const QUAD: usize = 4;

/// Maximum size of each of the two shared pieces, in bytes.
const SHARED_BYTES_MAX: usize = UNIT_BYTES / 2 - 256;

/// Maximum difference in saving between units that share pieces, so that a piece of another unit
/// hardly changes the saving.
const ALIKE: f64 = 0.2;

/// Bytes at the beginning of a piece that save nothing because their originals are missing: about
/// half the copy distance.
const SEAM_BYTES: f64 = 60.0;

/// Number of fresh bytes in a unit that is otherwise zeroes: enough to make all units of a drive
/// distinct.
const STAMP_BYTES: usize = 16;
const _: () = assert!(STAMP_BYTES <= KEY_BYTES);

/// The plan for generating a window.
#[derive(Clone, Copy)]
struct Plan {
    /// Textures of the units; `None` for a unit of zeroes, which may begin with fresh bytes.
    own: [Option<TextureId>; UNITS],
    shares: [bool; UNITS],
    shared: TextureId,
    far_bytes: usize,
    near_bytes: usize,
}

/// A profile prepared for generation.
pub(super) struct Weave {
    library: Arc<Library>,
    plans: Vec<Plan>,
    step: u64,
    /// Number of fresh bytes at the start of units that are fills in the profile.
    stamp_bytes: usize,
    fills: f64,
}

impl Weave {
    /// Plans every window of the profile.
    pub(super) fn new(profile: &Profile, library: Arc<Library>) -> Self {
        let mut windows = profile.windows.clone();
        windows.sort_by(|a, b| a.mean().lz4.total_cmp(&b.mean().lz4));
        let plans: Vec<Plan> = windows.iter().map(|window| plan(window, &library)).collect();
        let step = golden_step(plans.len() as u64);
        Self { library, plans, step, stamp_bytes: 0, fills: profile.fills().fraction() }
    }

    /// Adds fresh bytes to the start of units that are fills in the profile, so that all units are
    /// distinct.
    pub(super) fn with_stamps(self) -> Self {
        Self { stamp_bytes: STAMP_BYTES, fills: 0.0, ..self }
    }

    /// Returns the share of units that consist only of zeroes.
    pub(super) fn fills(&self) -> f64 {
        self.fills
    }

    /// Fills `target` with the first bytes of a unit of a stream.
    #[inline]
    pub(super) fn fill(&self, base: u64, unit: u64, target: &mut [u8]) {
        let (window, index) = (unit / UNITS as u64, (unit % UNITS as u64) as usize);
        let count = self.plans.len() as u64;
        let start = mix(base) % count;
        let place = (start + (window % count) * self.step) % count;
        let plan = &self.plans[place as usize];
        // Every window has 32 key numbers: one for each unit, four for pieces with distant sharing
        // and four for pieces with near sharing.
        let key_at = |number: usize| key(base, window * 2 * UNITS as u64 + number as u64);
        let Some(own) = plan.own[index] else {
            let (stamp, zeroes) = target.split_at_mut(self.stamp_bytes.min(target.len()));
            let words = key_at(index);
            let fresh = words.iter().flat_map(|word| word.to_le_bytes());
            stamp.iter_mut().zip(fresh).for_each(|(byte, fresh)| *byte = fresh);
            zeroes.fill(0);
            return;
        };
        let mut at = 0;
        if plan.shares[index] {
            let far = plan.far_bytes.min(target.len());
            self.copy(plan.shared, 0, key_at(UNITS + index % QUAD), &mut target[..far]);
            let near_end = (plan.far_bytes + plan.near_bytes).min(target.len());
            let near = &mut target[far..near_end];
            self.copy(plan.shared, UNIT_BYTES / 2, key_at(UNITS + QUAD + index / QUAD), near);
            at = near_end;
        }
        self.copy(own, at, key_at(index), &mut target[at..]);
    }

    #[inline]
    fn copy(&self, texture: TextureId, from: usize, key: Key, target: &mut [u8]) {
        let mask = self.library.mask(texture);
        let source = &self.library.bytes(texture)[from..from + target.len()];
        copy_keyed(target, source, &key.map(|word| word & mask));
    }
}

/// Returns the step nearest to the golden section of `count` that visits all numbers.
fn golden_step(count: u64) -> u64 {
    let wanted = (count as f64 * 0.618).round() as u64;
    let coprime = |step: &u64| {
        let (mut a, mut b) = (*step, count);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    (wanted.max(1)..).find(coprime).unwrap_or(1)
}

fn plan(window: &WindowProfile, library: &Library) -> Plan {
    let mean = alike_mean(window);
    let shares = window.units.map(|unit| unit.is_some_and(|unit| is_alike(unit, mean)));
    let shared = library.nearest(mean);
    let gain = [window.middle.lz4 - window.mean().lz4, window.whole.lz4 - window.middle.lz4];
    // A shared piece is stored once instead of four times.
    let sharing = shares.iter().filter(|shares| **shares).count() as f64 / UNITS as f64;
    let bytes = gain.map(|gain| {
        let stored = (1.0 - library.savings(shared).lz4) * sharing * 3.0 / 4.0;
        let bytes = (gain.max(0.0) / stored.max(0.01) * UNIT_BYTES as f64) as usize;
        bytes.min(SHARED_BYTES_MAX) / KEY_BYTES * KEY_BYTES
    });
    let [near_bytes, far_bytes] = bytes;
    let part = (near_bytes + far_bytes) as f64 / UNIT_BYTES as f64;
    let seams = u8::from(near_bytes > 0) + u8::from(part > 0.0);
    let lost = f64::from(seams) * SEAM_BYTES / UNIT_BYTES as f64;
    let shared_savings = library.savings(shared);
    let mut own = [None; UNITS];
    for (index, unit) in window.units.iter().enumerate() {
        let Some(unit) = unit else { continue };
        let rest = |whole: f64, shared: f64| {
            ((whole * (1.0 + lost) - shared * part) / (1.0 - part)).clamp(0.0, 1.0)
        };
        own[index] = Some(library.nearest(if shares[index] {
            Savings {
                lz4: rest(unit.lz4, shared_savings.lz4),
                zstd: rest(unit.zstd, shared_savings.zstd),
            }
        } else {
            *unit
        }));
    }
    Plan { own, shares, shared, far_bytes, near_bytes }
}

fn is_alike(unit: Savings, mean: Savings) -> bool {
    (unit.lz4 - mean.lz4).abs() < ALIKE
}

/// Returns the mean of the units that are neither fills nor far from the median.
fn alike_mean(window: &WindowProfile) -> Savings {
    let mut units: Vec<Savings> = window.units.iter().flatten().copied().collect();
    if units.is_empty() {
        return Savings::default();
    }
    units.sort_by(|a, b| a.lz4.total_cmp(&b.lz4));
    let median = units[units.len() / 2];
    units.retain(|unit| is_alike(*unit, median));
    let count = units.len() as f64;
    Savings {
        lz4: units.iter().map(|unit| unit.lz4).sum::<f64>() / count,
        zstd: units.iter().map(|unit| unit.zstd).sum::<f64>() / count,
    }
}
