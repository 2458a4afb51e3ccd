//! Data with a known compressibility.
//!
//! A [`Payload`] is a kind of data with its parameters; a [`Stream`] is an endless sequence of its
//! units (4 KiB, or the record size of a host that writes smaller records). The content of a unit
//! is a function of the payload's options, the stream number and the unit number, so data can be
//! verified without being stored. Data that is fitted to codecs, above all spread and like data,
//! may change between versions of this program.
//!
//! * `saving`: a saving as a type.
//! * `measure`: what codecs save.
//! * `pool`: fresh bytes at the speed of copying.
//! * `exact`, `weave` with `texture`, `profile` and `spread`, `iozone`: the kinds.
//! * `corpus`: profiles of files, folders and devices; `repeats`: data that occurs more than once.
//! * `kind`: names of the kinds.
//!
//! No two units are equal unless duplicates or fills were requested or the replayed data contains
//! them. Savings depend on the codec; a payload is calibrated when it is created, for LZ4 by
//! default. The data is not encrypted: an observer can distinguish it from random bytes. Uses only
//! the codecs of the drive and this crate's error.

mod corpus;
mod exact;
mod iozone;
mod kind;
mod measure;
mod pool;
mod profile;
pub mod repeats;
mod saving;
mod spread;
mod texture;
mod weave;

use std::sync::Arc;

use crate::error::{Error, Result};
use pumice_drive::codec::Codec;

pub use iozone::IozoneLayout;
pub use kind::KindName;
pub use measure::{Finding, Meter, Survey, Tally, measure};
pub use pool::WINDOW_BYTES;
pub use profile::{PROFILE_FILE_BYTES_MAX, Profile, Profiling, UNIT_BYTES};
pub use saving::Saving;

/// Maximum record of IOzone in bytes; IOzone's own limit.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// Minimum unit in bytes, a sector.
pub const UNIT_BYTES_MIN: usize = 512;

/// Distances between a repetition and its original, in groups of units.
const REPEAT_DISTANCES: [u64; 12] = [34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765];

/// Maximum share of groups that repeat others.
const REPEATED_MAX: f64 = 0.99;

/// Trials to calibrate the mean of spread data; the third rarely changes anything.
const SPREAD_TRIALS: usize = 4;

/// Units measured in each trial: one in three of as many windows as a spread has.
const SPREAD_TRIAL_UNITS: u64 = 512 * 16;
const SPREAD_TRIAL_STEP: usize = 3;

/// Error in percentage points at which the trials end.
const SPREAD_MISS_POINTS: f64 = 0.1;

/// Kind of data.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Random bytes, which cannot be compressed.
    Random,
    /// One byte repeated.
    Byte(u8),
    /// Every unit has this saving.
    Exact(Saving),
    /// Units have this saving on average in chunks of 4 KiB and vary as units of real data do: many
    /// hardly compress, zstd saves more than LZ4, and larger chunks save more than smaller ones.
    Spread(Saving),
    /// Statistically similar to profiled data, including fills and duplicates.
    Like(Profile),
    /// These bytes repeated, from a different offset in each stream.
    Replay(Arc<[u8]>),
    /// Records as IOzone writes them with this percentage for `-+w`, `-+y` and `-+C`; each unit is
    /// a record.
    Iozone(IozoneLayout, Saving),
}

/// Parameters of a payload.
#[derive(Clone, Debug, PartialEq)]
pub struct PayloadOptions {
    /// Kind of data.
    pub kind: Kind,
    /// Payloads with different seeds have no units in common.
    pub seed: u64,
    /// The share of units that repeat an earlier unit of the stream, below 100 %; at most 99 % of
    /// units that are not fills. Units of spread and like data repeat in windows of 64 KiB, so that
    /// chunks keep their savings.
    pub duplicates: Saving,
    /// The codec that exact and spread data are calibrated for.
    pub codec: Codec,
    /// Bytes of a unit: a power of two from 512 to 4096; up to 16 MiB for IOzone's records. Always
    /// 4096 for spread and like data.
    pub unit_bytes: usize,
}

impl PayloadOptions {
    /// Returns units of 4 KiB with seed 1, calibrated for LZ4, without duplicates; [`Kind::Like`]
    /// has the duplicates of its profile.
    pub fn new(kind: Kind) -> Self {
        let duplicates = match &kind {
            Kind::Like(profile) => profile.duplicates(),
            _ => Saving::NONE,
        };
        Self { kind, seed: 1, duplicates, codec: Codec::Lz4, unit_bytes: UNIT_BYTES }
    }
}

/// Data of one kind, ready to be generated. Cheap to clone; may be shared between threads.
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
    /// Prepares a payload: draws random numbers and calibrates. Takes some hundredths of a second
    /// and up to 4 MiB of memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a size or share is out of range, there is no data to replay, or the
    /// codec cannot reach the saving.
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
                Source::Woven(calibrated_spread(saved, codec, seed))
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
        // Only windows that are no fills can repeat.
        let fills = if let Source::Woven(weave) = &source { weave.fills() } else { 0.0 };
        let repeated = (duplicates.fraction() / (1.0 - fills).max(1e-9)).min(REPEATED_MAX);
        let repeats = (repeated * 2f64.powi(64)) as u64;
        Ok(Self(Arc::new(Shared { source, seed, repeats, group_units, unit_bytes })))
    }

    /// Returns a stream of units, for example for one thread of a load. Streams with different
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

fn check(options: &PayloadOptions) -> Result<()> {
    let wrong = |what: String| Err(Error::invalid(what));
    let unit_bytes = options.unit_bytes;
    let (largest, only) = match options.kind {
        Kind::Iozone(..) => (RECORD_BYTES_MAX, false),
        Kind::Spread(_) | Kind::Like(_) => (UNIT_BYTES, true),
        _ => (UNIT_BYTES, false),
    };
    let smallest = if only { UNIT_BYTES } else { UNIT_BYTES_MIN };
    if !unit_bytes.is_power_of_two() || !(smallest..=largest).contains(&unit_bytes) {
        return wrong(format!(
            "units of {unit_bytes} bytes: this kind takes powers of two from {smallest} to \
             {largest}"
        ));
    }
    if options.duplicates.fraction() >= 1.0 {
        return wrong("duplicates must be less than 100 %: the first unit cannot be one".into());
    }
    match &options.kind {
        Kind::Replay(bytes) if bytes.is_empty() => wrong("the file to replay is empty".into()),
        _ => Ok(()),
    }
}

/// Returns a spread with the right mean for `codec`. The profile is fitted for LZ4 and no texture
/// fits exactly, so each trial corrects the requested saving by the measured error.
fn calibrated_spread(saved: Saving, codec: Codec, seed: u64) -> weave::Weave {
    let mut wanted = saved;
    let mut best: Option<(f64, weave::Weave)> = None;
    let library = Arc::new(texture::Library::new(seed));
    let mut unit = vec![0; UNIT_BYTES];
    for _ in 0..SPREAD_TRIALS {
        let weave = weave::Weave::new(&spread::profile(wanted), Arc::clone(&library));
        let mut meter = Meter::new(codec);
        for number in (0..SPREAD_TRIAL_UNITS).step_by(SPREAD_TRIAL_STEP) {
            weave.fill(0, number, &mut unit);
            meter.add(&unit);
        }
        let measured = meter.tally().saved();
        let miss = measured.points_from(saved);
        wanted = Saving::from_fraction(wanted.fraction() + saved.fraction() - measured.fraction());
        if best.as_ref().is_none_or(|(least, _)| miss < *least) {
            best = Some((miss, weave));
        }
        if miss < SPREAD_MISS_POINTS {
            break;
        }
    }
    best.expect("there was a trial").1
}

/// An endless sequence of units.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
    base: u64,
    next: u64,
}

impl Stream {
    /// Fills `buffer` with the next units. If `buffer` ends within a unit, the rest of that unit is
    /// skipped.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        self.fill_at(self.next, buffer);
        self.next += buffer.len().div_ceil(self.shared.unit_bytes) as u64;
    }

    /// Returns the number of the next unit, from 0.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Fills `buffer` with the units from number `unit` on, independently of the stream's position.
    pub fn fill_at(&self, unit: u64, buffer: &mut [u8]) {
        for (number, target) in (unit..).zip(buffer.chunks_mut(self.shared.unit_bytes)) {
            self.fill_unit(self.origin(number), target);
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

    /// Returns the unit that has the content of `unit`: `unit` itself, or an earlier unit that it
    /// repeats.
    ///
    /// Distances between repetitions are Fibonacci numbers of groups: windows that are woven in
    /// steps of the golden section save nearly the same at such distances, so the mix stays right
    /// at any share of repetitions. The distances are also too long for chunks of 64 KiB to
    /// compress the repetitions.
    fn origin(&self, unit: u64) -> u64 {
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
            group -= distance.expect("one of those that were counted");
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

#[cfg(test)]
mod tests;
