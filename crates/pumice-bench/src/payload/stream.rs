//! Prepared payloads, and the streams of their units.

use std::sync::Arc;

use super::WINDOW_BYTES;
use super::options::check;
use super::{Kind, PayloadOptions, exact, iozone, pool, profile, spread, texture, weave};
use crate::error::Result;

/// Distances between a repetition and its original, in groups of units.
const REPEAT_DISTANCES: [u64; 12] = [34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765];

/// Maximum share of groups that are repetitions.
const REPEATED_MAX: f64 = 0.99;

/// Data of one kind, ready for generation. It is cheap to clone and may be shared between threads.
#[derive(Clone)]
pub struct Payload(Arc<Shared>);

struct Shared {
    source: Source,
    seed: u64,
    /// Probability that a group of units repeats an earlier one, in units of 2^-64.
    repeats: u64,
    group_units: u64,
    unit_bytes: usize,
}

enum Source {
    Byte(u8),
    Exact { pool: pool::Pool, fresh_bytes: usize },
    Woven(weave::Weave),
    Replay(Arc<[u8]>),
    Iozone(iozone::Iozone),
}

impl Payload {
    /// Prepares a payload: draws random numbers and calibrates. This takes some hundredths of a
    /// second and up to 4 MiB of memory.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if a size or share is out of range, there is no
    /// data to replay, or the codec cannot reach the saving.
    pub fn new(options: PayloadOptions) -> Result<Self> {
        check(&options)?;
        let PayloadOptions { kind, seed, duplicates, codec, unit_bytes } = options;
        let mut group_units = 1;
        let source = match kind {
            Kind::Random => Source::Exact { pool: pool::Pool::new(seed), fresh_bytes: unit_bytes },
            Kind::Byte(byte) => Source::Byte(byte),
            Kind::Exact(saved) => {
                let pool = pool::Pool::new(seed);
                let fresh_bytes = exact::fresh_bytes(&pool, saved, codec, unit_bytes)?;
                Source::Exact { pool, fresh_bytes }
            }
            Kind::Spread(saved) => {
                group_units = profile::UNITS as u64;
                Source::Woven(spread::calibrated(saved, codec, seed)?)
            }
            Kind::Like(profile) => {
                group_units = profile::UNITS as u64;
                Source::Woven(weave::Weave::new(&profile, Arc::new(texture::Library::new(seed))))
            }
            Kind::Replay(bytes) => Source::Replay(bytes),
            Kind::Iozone(layout, percent) => {
                Source::Iozone(iozone::Iozone::new(layout, percent, unit_bytes, seed))
            }
        };
        // Only windows that are not fills can repeat.
        let fills = if let Source::Woven(weave) = &source { weave.fills() } else { 0.0 };
        let repeated = (duplicates.fraction() / (1.0 - fills).max(1e-9)).min(REPEATED_MAX);
        let repeats = (repeated * 2f64.powi(64)) as u64;
        Ok(Self(Arc::new(Shared { source, seed, repeats, group_units, unit_bytes })))
    }

    /// Returns a stream of units, for example for one thread of a workload. Streams with different
    /// numbers have no units in common (except fills and replayed data).
    pub fn stream(&self, number: u64) -> Stream {
        let base = pool::mix(self.0.seed ^ pool::mix(number));
        Stream { shared: Arc::clone(&self.0), base, next: 0 }
    }

    /// Returns the size of a unit in bytes.
    pub fn unit_bytes(&self) -> usize {
        self.0.unit_bytes
    }
}

/// An endless sequence of units.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
    base: u64,
    next: u64,
}

impl Stream {
    /// Fills `buffer` with the next units. If `buffer` ends within a unit, the remainder of that
    /// unit is skipped.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        self.fill_at(self.next, buffer);
        self.next += buffer.len().div_ceil(self.shared.unit_bytes) as u64;
    }

    /// Returns the number of the next unit, from 0.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Fills `buffer` with units, starting at number `unit`, independently of the stream's
    /// position.
    pub(crate) fn fill_at(&self, unit: u64, buffer: &mut [u8]) {
        for (number, target) in (unit..).zip(buffer.chunks_mut(self.shared.unit_bytes)) {
            self.fill_unit(self.content_unit(number), target);
        }
    }

    #[inline]
    fn fill_unit(&self, unit: u64, target: &mut [u8]) {
        let shared = &*self.shared;
        match &shared.source {
            Source::Byte(byte) => target.fill(*byte),
            Source::Exact { pool, fresh_bytes } => {
                let units = (WINDOW_BYTES / shared.unit_bytes) as u64;
                let offset = (unit % units) as usize * shared.unit_bytes;
                let position =
                    exact::PoolPosition { base: self.base, window: unit / units, offset };
                exact::fill(pool, *fresh_bytes, position, target);
            }
            Source::Woven(weave) => weave.fill(self.base, unit, target),
            Source::Replay(bytes) => replay(bytes, self.base, unit, shared.unit_bytes, target),
            Source::Iozone(iozone) => iozone.fill(self.base, unit, target),
        }
    }

    /// Returns the unit whose contents `unit` has: `unit` itself, or an earlier unit that it
    /// repeats.
    ///
    /// Distances between repetitions are Fibonacci numbers of groups. Windows that are visited in
    /// steps of the golden section have nearly the same saving at such distances, so the mix stays
    /// correct at any share of repetitions. The distances are also too long for 64 KiB chunks to
    /// compress the repetitions.
    fn content_unit(&self, unit: u64) -> u64 {
        let Shared { repeats, group_units, unit_bytes, .. } = *self.shared;
        if repeats == 0 {
            return unit;
        }
        let group_bytes = group_units * unit_bytes as u64;
        let nearest = (2 * WINDOW_BYTES as u64).div_ceil(group_bytes);
        let (mut group, index) = (unit / group_units, unit % group_units);
        loop {
            let draw = pool::mix(self.base ^ pool::mix(!group));
            let fits = |distance: &&u64| (nearest..=group).contains(distance);
            let count = REPEAT_DISTANCES.iter().filter(fits).count() as u64;
            if draw >= repeats || count == 0 {
                return group * group_units + index;
            }
            let choice = (pool::mix(draw) % count) as usize;
            let distance = REPEAT_DISTANCES.iter().filter(fits).nth(choice);
            group -= distance.expect("one of the counted distances");
        }
    }
}

fn replay(bytes: &[u8], base: u64, unit: u64, unit_bytes: usize, target: &mut [u8]) {
    let units = bytes.len().div_ceil(unit_bytes) as u64;
    let number = (base % units).wrapping_add(unit % units) % units;
    let mut at = number as usize * unit_bytes;
    for piece in target.chunks_mut(bytes.len().min(unit_bytes)) {
        let first = piece.len().min(bytes.len() - at);
        piece[..first].copy_from_slice(&bytes[at..at + first]);
        let rest = piece.len() - first;
        piece[first..].copy_from_slice(&bytes[..rest]);
        at = (at + piece.len()) % bytes.len();
    }
}
