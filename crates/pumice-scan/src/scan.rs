//! The sequence of steps in a scan: list, draw, measure until the interval is narrow enough, or
//! read all data.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::duplicate_files::DuplicateFiles;
use super::everything::Everything;
use super::options::{NoProgress, ROUND_DRAWS, Reading, ScanOptions, ScanProgress};
use super::partial::{Measured, Partial};
use super::passed::Passed;
use super::population::{Draws, Population, Source};
use super::strata::{Adjusted, MeanInterval, Strata};
use super::sums::Known;
use super::walk::{Folder, Root, Walk};
use super::work::{Work, locked};
use super::{Error, Result, like, sample, walk};
use pumice_bench::payload::Profile;
use pumice_drive::base::units::BLOCK_BYTES;

/// All data is read if the draws would read at least this share of it.
const SHARE_WORTH_DRAWING: f64 = 0.5;

/// The result of a scan.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// The measurements of this shard.
    pub partial: Partial,
    /// A profile of the data, if requested; `None` if less than a window could be read.
    pub profile: Option<Profile>,
}

/// Scans files, folders, block devices and NBD exports; with `like`, also creates a profile of the
/// data. If `stop` is set, the scan ends soon and returns the measurements made until then, or
/// `None` if there are none yet.
///
/// # Errors
/// A named path cannot be scanned, or no named path contains data. Unreadable files below a folder
/// are counted instead.
pub fn scan(
    named: &[PathBuf],
    options: &ScanOptions,
    like: bool,
    progress: &dyn ScanProgress,
    stop: &AtomicBool,
) -> Result<Option<Scanned>> {
    let Some(roots) = walk::roots(named, &options.exports, progress, stop)? else {
        return Ok(None);
    };
    let shown = named.iter().map(|path| path.display().to_string()).collect();
    let mut partial = Partial::begin(shown, options);
    partial.remarks = walk::remarks(&roots);
    let population = Mutex::new(Population::new(options.seed, options.shard));
    let listing = Listing { roots: &roots, options, stop };
    let duplicates = Mutex::new(DuplicateFiles::default());
    let add = |source| {
        let source = Arc::new(source);
        locked(&duplicates).add(&source);
        locked(&population).add(source);
    };
    partial.passed = listing.run(&add, progress);
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut population = population.into_inner().unwrap_or_else(PoisonError::into_inner);
    check_has_data(&partial, &population)?;
    let strata = Strata::of(&population);
    partial.describe(&population, &strata);
    let draws = population.take_draws();
    let work = Work::new(options, progress, stop);
    let mut reads_all = options.reading == Reading::All
        || options.reading == Reading::Auto
            && is_little(options, &population, options.draws_first());
    if !reads_all {
        reads_all = !draw(&mut partial, &population, &strata, &draws, &work);
    }
    if reads_all {
        read_everything(&mut partial, &mut population, &listing, &work);
    }
    if matches!(partial.measured, Measured::Draws { .. }) {
        let duplicates = duplicates.into_inner().unwrap_or_else(PoisonError::into_inner);
        partial.duplicates = duplicates.compare(&work);
    }
    partial.is_complete = !work.is_stopped();
    let profile = if like {
        let bytes = population.blocks * BLOCK_BYTES as u64;
        like::like(&draws.list, partial.repeated(), bytes, &work)
    } else {
        None
    };
    (partial.failed, partial.efforts) = work.finish();
    Ok(Some(Scanned { partial, profile }))
}

/// Refuses paths that contain no data.
fn check_has_data(partial: &Partial, population: &Population) -> Result<()> {
    if population.blocks_of_all > 0 {
        return Ok(());
    }
    let mut what = format!("{} holds no data that could be scanned", partial.paths.join(", "));
    if let Some(example) = partial.passed.examples.first() {
        what += &format!("; {example}");
    }
    Err(Error::InvalidInput(what.into()))
}

/// The state required to list all sources.
struct Listing<'a> {
    roots: &'a [Root],
    options: &'a ScanOptions,
    stop: &'a AtomicBool,
}

impl Listing<'_> {
    /// Passes all sources to the sink. Returns the skipped files.
    fn run(&self, sink: &(dyn Fn(Source) + Sync), progress: &dyn ScanProgress) -> Passed {
        let mut passed = Passed::default();
        for (index, root) in self.roots.iter().enumerate() {
            match root {
                Root::Single(source) => {
                    progress.found(1, source.bytes);
                    let holes = source.blocks() - source.data_blocks();
                    passed.hole_bytes += holes * BLOCK_BYTES as u64;
                    sink(source.clone());
                }
                Root::Folder(path) => {
                    let folder = Folder { path, index, one_of_many: self.roots.len() > 1 };
                    let walk = Walk::new(folder, self.options, sink, progress, self.stop);
                    passed.add(&walk.run());
                }
            }
        }
        passed
    }
}

/// Returns whether this number of draws would read such a large share of the data that reading all
/// of it is not slower.
fn is_little(options: &ScanOptions, population: &Population, draws: f64) -> bool {
    let bytes = population.blocks_of_all as f64 * BLOCK_BYTES as f64;
    draws * options.chunk_bytes_max() as f64 >= SHARE_WORTH_DRAWING * bytes
}

fn read_everything(
    partial: &mut Partial,
    population: &mut Population,
    listing: &Listing<'_>,
    work: &Work<'_>,
) {
    work.progress.begin(false, population.blocks);
    let known = Known {
        extensions: std::mem::take(&mut population.extensions),
        folders: std::mem::take(&mut population.folders),
    };
    let everything = Everything { work, known: &known };
    let sums = everything.run(|sink| {
        // The first listing has already counted the skipped files.
        listing.run(sink, &NoProgress);
    });
    partial.bytes_read += sums.all.bytes();
    // After an interruption, the data read first is not a sample, but any earlier draws are.
    let has_drawn = matches!(&partial.measured, Measured::Draws { drawn, .. } if !drawn.is_empty());
    if !(work.is_stopped() && has_drawn) {
        partial.measured = Measured::All(Box::new(sums));
    }
}

/// Measures draws until they suffice. Returns false if reading all data turns out to be cheaper,
/// which the first round determines in most cases.
fn draw(
    partial: &mut Partial,
    population: &Population,
    strata: &Strata,
    draws: &Draws,
    work: &Work<'_>,
) -> bool {
    let options = work.options;
    let planned = options.draws_planned().map(|count| count as f64);
    let end = match planned {
        Some(count) => draws.end.min(count / population.blocks_of_all as f64),
        None => draws.end,
    };
    let list = &draws.list;
    let last = list.partition_point(|draw| draw.mark < end);
    let mut mean = Adjusted::new(&strata.list, options.confidence(), partial.plan());
    let expected = match planned {
        Some(_) => last as f64,
        None => options.draws_typical().min(last as f64),
    };
    work.progress.begin(true, expected as u64);
    let (mut all, mut lost, mut done, mut suffices) = (Vec::new(), 0, 0, true);
    while done < last {
        let round = &list[done..last.min(done + ROUND_DRAWS)];
        let Some(mut measured) = sample::round(work, round) else { break };
        let numbers: BTreeMap<u64, u32> =
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
            let MeanInterval { low, high, .. } = mean.estimate();
            if (high - low) / 2.0 <= options.aim() {
                break;
            }
            if options.reading == Reading::Auto && is_little(options, population, mean.needed()) {
                suffices = false;
                break;
            }
        }
    }
    // The mark of the next draw is the first one that has not been measured.
    let end = list.get(done).map_or(end, |draw| draw.mark.min(end));
    partial.measured = Measured::Draws { end, drawn: all, lost };
    suffices
}
