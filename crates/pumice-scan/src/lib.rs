//! How compressible data is, in the chunks that a controller sees, and what a compressing drive
//! would make of it.
//!
//! ```text
//! walk -> population (blocks, draws) -> sample (some chunks) or everything (all of them)
//!      -> partial (what was measured; shards are put together here) -> outcome -> report
//! ```
//!
//! * `walk`: what there is; `read`: its bytes; `work`: what the threads share.
//! * `population`: which blocks are drawn; `strata`, `interval`: how sure a mean of draws is.
//! * `twins`: copies of whole files.
//! * `chunks`: what a chunk takes with a codec, and as the drive's records; `sums`: added up.
//! * `outcome`: what that says; `verdict`: what it means for drives; `medium`: for a Pumice drive
//!   on a medium; `report`: for people.
//!
//! What is scanned is only read. Deliberately not here: printing, and changing anything.

mod chunks;
mod everything;
mod interval;
mod like;
mod medium;
mod outcome;
mod partial;
mod population;
mod read;
mod report;
mod sample;
mod strata;
mod sums;
#[cfg(test)]
mod tests;
mod twins;
mod verdict;
mod walk;
mod work;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use chunks::Config;
pub use medium::{Bound, Medium, OnMedium, Speed};
pub use outcome::Outcome;
pub use partial::{PARTIAL_BYTES_MAX, Partial};
pub use population::Shard;
pub use verdict::{Drive, Range, verdicts};

use everything::Everything;
use partial::Measured;
use population::{Draw, Population, Source};
use pumice_bench::payload::Profile;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{Error, ErrorKind, Result};
use sample::ROUND_DRAWS;
use strata::{Adjusted, Strata};
use sums::Known;
use walk::{Passed, Root, Walk};
use work::Work;

/// The standard deviation between chunks, as a fraction, for which draws are planned before any
/// was measured: real data has 0.25 to 0.27 (see `docs/scan.md`).
const DEVIATION_TYPICAL: f64 = 0.3;

/// Everything is read if draws would read this share of it.
const SHARE_WORTH_DRAWING: f64 = 0.5;

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Draws until the error is as small as asked, or everything where that is cheaper.
    Auto,
    /// So many draws.
    Draws(u64),
    /// Everything.
    All,
}

/// What a scan shall do.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// In which ways to compress: 1 to 64.
    pub configs: Vec<Config>,
    /// The one whose error counts, by its number.
    pub main: usize,
    /// Half-width of the interval that is aimed at, in percentage points, above 0.
    pub error_points: f64,
    /// How often the interval holds the truth at least, in per cent, below 100.
    pub confidence_percent: f64,
    /// How much is read.
    pub reading: Reading,
    /// Other seeds draw other blocks.
    pub seed: u64,
    /// Which part of it.
    pub shard: Shard,
    /// Threads that compress.
    pub threads: usize,
    /// Bytes read in a second at most.
    pub bytes_per_s: Option<u64>,
    /// Whether other file systems below the folders are scanned too.
    pub crosses: bool,
    /// Seconds since 1970, for the age of files.
    pub now_s: i64,
}

impl Options {
    fn chunk_bytes_max(&self) -> u64 {
        self.configs.iter().map(|config| config.chunk_bytes).max().unwrap_or(0).into()
    }

    fn aim(&self) -> f64 {
        self.error_points / 100.0
    }

    /// Draws of all shards together where they cannot be as many as turn out to be needed: shards
    /// do not know when all of them have enough.
    fn draws_planned(&self) -> Option<u64> {
        match self.reading {
            Reading::Draws(count) => Some(count),
            Reading::Auto if self.shard.count > 1 => Some(needed_typically(self) as u64),
            _ => None,
        }
    }

    fn confidence(&self) -> f64 {
        self.confidence_percent / 100.0
    }
}

/// Hears how a scan goes on, from several threads.
pub trait Watch: Sync {
    /// Files were found while folders are listed.
    fn found(&self, files: u64, bytes: u64);
    /// Reading begins, of about so many draws or of so many blocks.
    fn begins(&self, draws: bool, count: u64);
    /// So many more draws or blocks were measured.
    fn goes_on(&self, count: u64);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scans files, folders, block devices and NBD exports; with `like`, makes a profile of the data
/// too. If `stop` is set it ends soon, with what was measured until then; nothing if that was
/// before anything was.
///
/// # Errors
/// Something named cannot be scanned, or holds no data at all. What cannot be read below a folder
/// is counted instead.
pub fn scan(
    named: &[PathBuf],
    options: &Options,
    like: bool,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<(Partial, Option<Profile>)>> {
    let roots = walk::roots(named)?;
    let shown = named.iter().map(|path| path.display().to_string()).collect();
    let mut partial = Partial::begin(shown, options);
    partial.remarks = walk::containers(&roots);
    let population = Mutex::new(Population::new(options.seed, options.shard));
    let find = |sink: &(dyn Fn(Source) + Sync), watch: &dyn Watch| {
        find_all(&roots, options, sink, watch, stop)
    };
    partial.passed = find(&|source| locked(&population).add(source), watch);
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut population = population.into_inner().unwrap_or_else(PoisonError::into_inner);
    refuse_nothing(&partial, &population)?;
    let strata = Strata::of(&population);
    partial.describe(&population, &strata);
    let draws = population.take_draws();
    let work = Work::new(options, watch, stop);
    let mut reads_all = options.reading == Reading::All
        || options.reading == Reading::Auto
            && is_little(options, &population, needed_typically(options));
    if !reads_all {
        reads_all = !draw(&mut partial, &population, &strata, &draws, &work);
    }
    if !reads_all {
        partial.twins = population.take_twins().compare(&work);
    }
    if reads_all {
        watch.begins(false, population.blocks);
        let known = Known {
            extensions: std::mem::take(&mut population.extensions),
            folders: std::mem::take(&mut population.folders),
        };
        let everything = Everything { work: &work, known: &known };
        let sums = everything.run(|sink| {
            // What was passed by was counted before.
            find(sink, &Unwatched);
        });
        partial.bytes_read += sums.all.bytes();
        partial.measured = Measured::All(Box::new(sums));
    }
    partial.is_complete = !work.is_stopped();
    let whole = (partial.repeated(), population.blocks * BLOCK_BYTES as u64);
    let profile = like.then(|| like::like(&draws.0, whole, &work)).flatten();
    (partial.failed, partial.efforts) = work.finish();
    Ok(Some((partial, profile)))
}

fn refuse_nothing(partial: &Partial, population: &Population) -> Result<()> {
    if population.blocks_of_all > 0 {
        return Ok(());
    }
    let mut what = format!("{} holds no data that could be scanned", partial.paths.join(", "));
    if let Some(example) = partial.passed.examples.first() {
        what += &format!("; {example}");
    }
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// Gives all sources to the sink, and says what was passed by.
fn find_all(
    roots: &[Root],
    options: &Options,
    sink: &(dyn Fn(Source) + Sync),
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Passed {
    let mut passed = Passed::default();
    for (index, root) in roots.iter().enumerate() {
        match root {
            Root::Single(source) => {
                watch.found(1, source.bytes);
                sink(source.clone());
            }
            Root::Folder(path) => {
                let many = roots.len() > 1;
                let walk = Walk::new((index, path), options, many, sink, watch, stop);
                passed.add(&walk.run());
            }
        }
    }
    passed
}

struct Unwatched;

impl Watch for Unwatched {
    fn found(&self, _files: u64, _bytes: u64) {}
    fn begins(&self, _draws: bool, _count: u64) {}
    fn goes_on(&self, _count: u64) {}
}

/// Draws that typical data needs.
fn needed_typically(options: &Options) -> f64 {
    interval::draws_needed(options.confidence(), DEVIATION_TYPICAL.powi(2), options.aim())
}

/// Whether so many draws would read so much that all of it can be read as well.
fn is_little(options: &Options, population: &Population, draws: f64) -> bool {
    let bytes = population.blocks_of_all as f64 * BLOCK_BYTES as f64;
    draws * options.chunk_bytes_max() as f64 >= SHARE_WORTH_DRAWING * bytes
}

/// Measures draws until they suffice; false if reading everything is cheaper after all.
fn draw(
    partial: &mut Partial,
    population: &Population,
    strata: &Strata,
    (draws, kept_end): &(Vec<Draw>, f64),
    work: &Work<'_>,
) -> bool {
    let options = work.options;
    let planned = options.draws_planned().map(|count| count as f64);
    let end =
        planned.map_or(*kept_end, |count| kept_end.min(count / population.blocks_of_all as f64));
    let last = draws.partition_point(|draw| draw.mark < end);
    let mut mean = Adjusted::new(&strata.list, options.confidence(), partial.plan());
    let expected =
        planned.map_or_else(|| needed_typically(options).min(last as f64), |_| last as f64);
    work.watch.begins(true, expected as u64);
    let (mut all, mut lost, mut done) = (Vec::new(), 0, 0);
    while done < last {
        let round = &draws[done..last.min(done + ROUND_DRAWS)];
        let Some(mut measured) = sample::round(work, round) else { break };
        let numbers: std::collections::BTreeMap<u64, u32> =
            round.iter().map(|draw| (draw.mark.to_bits(), strata.of_draw(draw))).collect();
        for drawn in &mut measured.drawn {
            drawn.stratum = numbers[&drawn.mark.to_bits()];
            mean.push(drawn.stratum, drawn.fractions[options.main].1);
        }
        done += round.len();
        lost += measured.lost;
        partial.bytes_read += measured.bytes_read;
        all.append(&mut measured.drawn);
        if planned.is_none() {
            let (_, low, high) = mean.estimate();
            if (high - low) / 2.0 <= options.aim() {
                break;
            }
            if options.reading == Reading::Auto && is_little(options, population, mean.needed()) {
                return false;
            }
        }
    }
    // The next one's mark is the first that is not below.
    let end = draws.get(done).map_or(end, |draw| draw.mark.min(end));
    partial.measured = Measured::Draws { end, drawn: all, lost };
    true
}
