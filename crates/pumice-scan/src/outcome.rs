//! The results of a scan, calculated only from a [`Partial`]: a partial result always has the same
//! outcome, on any machine.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use statrs::distribution::{ChiSquared, ContinuousCDF};

use super::chunks::Config;
use super::interval::{Betting, Plan, VALUE_MAX};
use super::partial::{Measured, Partial};
use super::passed::Passed;
use super::population::{Age, OTHERS};
use super::sample::Drawn;
use super::strata::{Adjusted, MeanInterval};
use super::sums::{FileSum, Group, STEPS, Sums, step};
use pumice_bench::payload::Saving;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::codec::Codec;
use pumice_drive::controller::FRAME_BLOCKS_DEFAULT;

/// Maximum number of groups listed for each kind; the remaining groups are summed.
const GROUPS_MAX: usize = 16;

/// Number of files listed.
const FILES_SHOWN: usize = 10;

/// Minimum number of draws required for a statement about a file.
const FILE_DRAWS_MIN: usize = 3;

/// Number of bars in a histogram.
pub(super) const BARS: usize = 20;

/// Minimum compression speed of the recommended configuration on one thread. At this speed, two
/// threads keep up with a SATA drive.
const CHOICE_BYTES_PER_S: f64 = 200e6;

/// The recommendation is the fastest configuration whose stored size is at most this multiple of
/// the densest configuration's.
const CHOICE_SLACK: f64 = 1.05;

/// A stored fraction and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Estimate {
    /// Saved share, stored share and ratio.
    #[serde(flatten)]
    pub saved: Saving,
    /// Stored fraction, including headers; above 1 if they outweigh the saving.
    pub stored: f64,
    /// Lower end of the interval, as a stored fraction; equal to the upper end if all data was
    /// read. If reading all data was interrupted, the remainder is unknown: the ends are the stored
    /// fractions of all data if the remainder takes no space, or the maximum space.
    pub stored_low: f64,
    /// Upper end of the interval.
    pub stored_high: f64,
}

impl Estimate {
    fn of(MeanInterval { mean: stored, low, high }: MeanInterval) -> Self {
        let saved = Saving::from_fraction(1.0 - stored);
        Self { saved, stored, stored_low: low, stored_high: high }
    }

    /// Returns half the width of the interval, in percentage points.
    pub fn error_points(&self) -> f64 {
        (self.stored_high - self.stored_low) * 50.0
    }
}

/// The result of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ConfigOutcome {
    /// Codec and chunk size.
    pub config: Config,
    /// As stored by a drive, including headers, fills and uncompressed chunks.
    pub drive: Estimate,
    /// With the codec alone.
    pub codec: Estimate,
    /// Compression speed of one thread on this machine in MB/s (10^6); `None` if too little was
    /// compressed.
    pub mb_per_s: Option<f64>,
    /// Shares of the data, in percent, by the stored fraction of its chunks as records: from 0 to 5
    /// %, and so on up to 95 to 100 % and more.
    pub spread_percent: Vec<f64>,
}

/// A part of the data.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GroupOutcome {
    /// Extension, folder or age.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Stored fraction as records of a drive, with the main configuration; `None` without draws.
    pub drive: Option<Estimate>,
}

/// A file with a large effect on the result.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FileOutcome {
    /// Name.
    pub name: String,
    /// Bytes with data.
    pub bytes: u64,
    /// Stored fraction of the part of the file that was read.
    pub stored: f64,
    /// Format according to the first bytes of the file, if the saving is small.
    pub format: Option<String>,
}

/// The share of data that occurs more than once, in percent of all data.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Duplicates {
    /// Estimate; `None` if unknown. Unless all data was read, it covers only additional copies of
    /// whole files.
    pub percent: Option<f64>,
    /// Standard deviation of the estimate, in points.
    pub deviation_points: f64,
    /// Upper limit for duplicate 4 KiB blocks, whether or not they are in copies of whole files.
    pub most_percent: f64,
    /// Method of the estimate.
    pub method: &'static str,
}

/// The results of a scan.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Outcome {
    /// The scanned paths.
    pub paths: Vec<String>,
    /// Remarks that readers of the figures must know.
    pub remarks: Vec<String>,
    /// The scanned shard.
    pub shard: String,
    /// Files with data.
    pub files: u64,
    /// Bytes with data, in blocks of 4 KiB, excluding holes.
    pub bytes: u64,
    /// Number of bytes read.
    pub bytes_read: u64,
    /// Whether the scan was completed.
    pub is_complete: bool,
    /// Share of the data represented by the figures, in percent: 100, or less if reading all data
    /// was interrupted, because the data read until then is not a sample of the remainder.
    pub covered_percent: f64,
    /// Whether all data was read; the figures are then exact.
    pub is_exact: bool,
    /// Number of draws measured.
    pub draws: u64,
    /// Share of the bytes (or draws) that could not be read, in percent.
    pub lost_percent: f64,
    /// Minimum probability that an interval contains the true value, in percent.
    pub confidence_percent: f64,
    /// Requested half-width, in points.
    pub error_points_asked: f64,
    /// Index of the main configuration.
    pub main: usize,
    /// All configurations.
    pub configs: Vec<ConfigOutcome>,
    /// Index of the recommended configuration, and the reason.
    pub choice: Option<(usize, String)>,
    /// Blocks that consist of zeroes or another repeated byte, in percent.
    pub fill_percent: f64,
    /// Data that occurs more than once.
    pub duplicates: Duplicates,
    /// Groups by extension, largest first.
    pub extensions: Vec<GroupOutcome>,
    /// Groups by folder, largest first.
    pub folders: Vec<GroupOutcome>,
    /// Groups by age, most recent first.
    pub ages: Vec<GroupOutcome>,
    /// Formats of files with small savings, in percent of all bytes, largest first.
    pub formats_percent: Vec<(String, f64)>,
    /// Files with the largest savings in bytes.
    pub best: Vec<FileOutcome>,
    /// Files that take the most space and save the least.
    pub worst: Vec<FileOutcome>,
    /// Skipped files and data.
    pub passed: Passed,
    /// Files and data that could not be read.
    pub failed: Passed,
    /// For forecasts: evenly spaced quantiles of the savings of single chunks, for each
    /// configuration.
    #[serde(skip)]
    pub(super) quantiles: Vec<Vec<Saving>>,
}

impl Outcome {
    /// Calculates the results from a partial result.
    pub fn of(partial: &Partial) -> Self {
        let seen = match &partial.measured {
            Measured::All(sums) => Seen::of_sums(partial, sums),
            Measured::Draws { drawn, lost, .. } => Seen::of_draws(partial, drawn, *lost),
        };
        let speed = |index: usize| {
            let effort = partial.efforts[index];
            (effort.bytes >= 1 << 20 && effort.ns > 0)
                .then(|| effort.bytes as f64 * 1e3 / effort.ns as f64)
        };
        let configs: Vec<ConfigOutcome> = partial
            .configs
            .iter()
            .enumerate()
            .map(|(index, config)| ConfigOutcome {
                config: *config,
                drive: Estimate::of(seen.records[index]),
                codec: Estimate::of(seen.alone[index]),
                mb_per_s: speed(index),
                spread_percent: bars(&seen.spread[index]),
            })
            .collect();
        Self {
            paths: partial.paths.clone(),
            remarks: partial.remarks.clone(),
            shard: partial.shard().to_string(),
            files: partial.files,
            bytes: partial.blocks * BLOCK_BYTES as u64,
            bytes_read: partial.bytes_read,
            is_complete: partial.is_complete,
            covered_percent: seen.covered_percent,
            is_exact: matches!(partial.measured, Measured::All(_)) && partial.is_complete,
            draws: seen.draws,
            lost_percent: seen.lost_percent,
            confidence_percent: partial.confidence_percent,
            error_points_asked: partial.error_points,
            main: partial.main,
            choice: (seen.covered_percent == 100.0).then(|| choice(&configs)).flatten(),
            configs,
            fill_percent: seen.fill_percent,
            duplicates: seen.duplicates,
            extensions: seen.extensions,
            folders: seen.folders,
            ages: seen.ages,
            formats_percent: seen.formats_percent,
            best: seen.best,
            worst: seen.worst,
            passed: partial.passed.clone(),
            failed: partial.failed.clone(),
            quantiles: seen.spread.iter().map(|steps| quantiles(steps)).collect(),
        }
    }

    /// Returns the outcome of the main configuration.
    pub fn main(&self) -> &ConfigOutcome {
        &self.configs[self.main]
    }

    /// Returns whether the scanned data is a single disk: an image, device or export, or another
    /// file.
    pub(super) fn is_disk(&self) -> bool {
        let is_unknown = |age: &GroupOutcome| age.name == Age::Unknown.name();
        self.paths.len() == 1 && !self.ages.is_empty() && self.ages.iter().all(is_unknown)
    }

    /// Returns whether the figures represent all data. They do not if reading all data was
    /// interrupted, or before the first draws were measured.
    pub fn is_known(&self) -> bool {
        self.covered_percent == 100.0 && (self.is_exact || self.draws > 0)
    }
}

/// The results that draws and sums have in common.
struct Seen {
    /// Mean and interval of each configuration.
    records: Vec<MeanInterval>,
    alone: Vec<MeanInterval>,
    spread: Vec<Vec<u64>>,
    draws: u64,
    covered_percent: f64,
    lost_percent: f64,
    fill_percent: f64,
    duplicates: Duplicates,
    extensions: Vec<GroupOutcome>,
    folders: Vec<GroupOutcome>,
    ages: Vec<GroupOutcome>,
    formats_percent: Vec<(String, f64)>,
    best: Vec<FileOutcome>,
    worst: Vec<FileOutcome>,
}

/// Returns `bytes` as a fraction of `of` bytes.
fn exactly(bytes: u64, of: u64) -> MeanInterval {
    MeanInterval::exact(bytes as f64 / of.max(1) as f64)
}

/// Returns the share of all data that was read. It is 1 for a complete scan, even if files
/// vanished.
fn share_read(partial: &Partial, sums: &Sums) -> f64 {
    if partial.is_complete {
        return 1.0;
    }
    sums.all.blocks as f64 / partial.blocks.max(sums.all.blocks).max(1) as f64
}

fn percent(part: f64, of: f64) -> f64 {
    if of > 0.0 { 100.0 * part / of } else { 0.0 }
}

impl Seen {
    fn of_sums(partial: &Partial, sums: &Sums) -> Self {
        let bytes = sums.all.bytes();
        let share = share_read(partial, sums);
        let bounded = |of: MeanInterval| {
            let low = share * of.mean;
            MeanInterval { mean: of.mean, low, high: low + (1.0 - share) * VALUE_MAX }
        };
        let taken = |index: usize| sums.all.taken.get(index).copied().unwrap_or_default();
        let group = |(name, group): (String, &Group)| GroupOutcome {
            name,
            bytes: group.bytes(),
            drive: group
                .taken
                .get(partial.main)
                .map(|taken| Estimate::of(bounded(exactly(taken.record_bytes, group.bytes())))),
        };
        let named = |groups: &super::sums::Groups| {
            listed(groups.iter().map(|(name, it)| group((name.clone(), it))).collect())
        };
        let ages = Age::ALL.iter().zip(&sums.ages);
        let repeats = &sums.repeats;
        let again = repeats.again().percent();
        // Standard deviation of a share of contents, if some contents were not recorded.
        let deviation =
            if repeats.forgets() { again / (repeats.remembered() as f64).sqrt() } else { 0.0 };
        let file = |file: &FileSum| FileOutcome {
            name: file.name.clone(),
            bytes: file.bytes,
            stored: file.record_bytes as f64 / file.bytes.max(1) as f64,
            format: file.format.clone(),
        };
        let configs = 0..partial.configs.len();
        Self {
            records: configs
                .clone()
                .map(|i| bounded(exactly(taken(i).record_bytes, bytes)))
                .collect(),
            alone: configs.map(|i| bounded(exactly(taken(i).codec_bytes, bytes))).collect(),
            spread: sums.spread.clone(),
            draws: 0,
            covered_percent: 100.0 * share,
            lost_percent: if partial.is_complete {
                percent(
                    partial.blocks.saturating_sub(sums.all.blocks) as f64,
                    partial.blocks as f64,
                )
            } else {
                0.0
            },
            fill_percent: percent(repeats.fills() as f64, repeats.units() as f64),
            duplicates: Duplicates {
                percent: Some(again),
                deviation_points: deviation,
                most_percent: (again + 2.0 * deviation).min(100.0),
                method: "every block was read; a uniform sample of their contents was compared",
            },
            extensions: named(&sums.extensions),
            folders: named(&sums.folders),
            ages: ages
                .filter(|(_, it)| it.blocks > 0)
                .map(|(age, it)| group((age.name().to_owned(), it)))
                .collect(),
            formats_percent: most_first(sums.formats.iter().map(|(name, blocks)| {
                (name.clone(), percent(*blocks as f64, sums.all.blocks as f64))
            })),
            best: sums.best.iter().take(FILES_SHOWN).map(file).collect(),
            worst: sums.worst.iter().take(FILES_SHOWN).map(file).collect(),
        }
    }

    fn of_draws(partial: &Partial, drawn: &[Drawn], lost: u64) -> Self {
        let (main, confidence) = (partial.main, partial.confidence_percent / 100.0);
        let mean = |of: &dyn Fn(&Drawn) -> f64| {
            let mut mean = Adjusted::new(&partial.strata, confidence, partial.plan());
            drawn.iter().for_each(|draw| mean.push(draw.stratum, of(draw)));
            mean.estimate()
        };
        let configs = 0..partial.configs.len();
        let mut spread = vec![vec![0; STEPS + 1]; partial.configs.len()];
        for draw in drawn {
            for (steps, (_, records)) in spread.iter_mut().zip(&draw.fractions) {
                steps[step(*records)] += 1;
            }
        }
        let group = |name: &str, blocks: u64, is_in: &dyn Fn(&Drawn) -> bool| {
            let mut game = Betting::new(confidence, Plan::Any);
            let mut sum = 0.0;
            for draw in drawn.iter().filter(|draw| is_in(draw)) {
                game.push(draw.fractions[main].1, 0.0);
                sum += draw.fractions[main].1;
            }
            let (low, high) = game.interval();
            let mean = sum / game.count().max(1) as f64;
            GroupOutcome {
                name: name.to_owned(),
                bytes: blocks * BLOCK_BYTES as u64,
                drive: (game.count() > 0).then(|| Estimate::of(MeanInterval { mean, low, high })),
            }
        };
        let ages = Age::ALL.iter().zip(&partial.ages).filter(|(_, blocks)| **blocks > 0);
        let (fills, all) =
            (drawn.iter().filter(|draw| draw.content.is_none()).count(), drawn.len());
        let mut formats: BTreeMap<String, f64> = BTreeMap::new();
        for format in drawn.iter().filter_map(|draw| draw.format.as_ref()) {
            *formats.entry(format.clone()).or_default() += 1.0;
        }
        let (best, worst) = files(drawn, main);
        Self {
            records: configs.clone().map(|i| mean(&|draw| draw.fractions[i].1)).collect(),
            alone: configs.map(|i| mean(&|draw| draw.fractions[i].0)).collect(),
            spread,
            draws: all as u64,
            covered_percent: 100.0,
            lost_percent: percent(lost as f64, all as f64 + lost as f64),
            fill_percent: percent(fills as f64, all as f64),
            duplicates: duplicates_of(partial, drawn, confidence),
            extensions: largest(&partial.extensions, &group, &|draw| &draw.extension),
            folders: largest(&partial.folders, &group, &|draw| &draw.folder),
            ages: ages
                .map(|(age, blocks)| group(age.name(), *blocks, &|draw| draw.age == *age as u8))
                .collect(),
            formats_percent: most_first(
                formats.into_iter().map(|(name, draws)| (name, percent(draws, all as f64))),
            ),
            best,
            worst,
        }
    }
}

type OfGroup<'a> = dyn Fn(&str, u64, &dyn Fn(&Drawn) -> bool) -> GroupOutcome + 'a;

/// Returns the largest groups by name, and the sum of the others.
fn largest(
    names: &BTreeMap<String, u64>,
    group: &OfGroup<'_>,
    name_of: &dyn Fn(&Drawn) -> &String,
) -> Vec<GroupOutcome> {
    let mut by_size: Vec<(&String, u64)> =
        names.iter().filter(|(name, _)| *name != OTHERS).map(|(name, n)| (name, *n)).collect();
    by_size.sort_by(|one, other| (other.1, one.0).cmp(&(one.1, other.0)));
    by_size.truncate(GROUPS_MAX);
    let mut all: Vec<GroupOutcome> = by_size
        .iter()
        .map(|(name, blocks)| group(name, *blocks, &|draw| name_of(draw) == *name))
        .collect();
    let listed: u64 = by_size.iter().map(|(_, blocks)| blocks).sum();
    let rest = names.values().sum::<u64>() - listed;
    if rest > 0 {
        let is_other = |draw: &Drawn| by_size.iter().all(|(name, _)| name_of(draw) != *name);
        all.push(group(OTHERS, rest, &is_other));
    }
    all
}

/// Returns the largest groups, and the sum of the others.
fn listed(mut groups: Vec<GroupOutcome>) -> Vec<GroupOutcome> {
    groups.sort_by(|one, other| {
        let rank = |it: &GroupOutcome| (it.name == OTHERS, std::cmp::Reverse(it.bytes));
        (rank(one), &one.name).cmp(&(rank(other), &other.name))
    });
    let rest = groups.split_off(GROUPS_MAX.min(groups.len()));
    let bytes: u64 = rest.iter().map(|group| group.bytes).sum();
    if bytes > 0 {
        let stored =
            |it: &GroupOutcome| it.drive.map_or(0.0, |drive| drive.stored * it.bytes as f64);
        let fraction = rest.iter().map(stored).sum::<f64>() / bytes as f64;
        let drive = Some(Estimate::of(MeanInterval::exact(fraction)));
        groups.push(GroupOutcome { name: OTHERS.to_owned(), bytes, drive });
    }
    groups
}

fn most_first(all: impl Iterator<Item = (String, f64)>) -> Vec<(String, f64)> {
    let mut all: Vec<(String, f64)> = all.collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    all.truncate(GROUPS_MAX);
    all
}

/// Returns two lists of files that have several draws: the files with the largest savings, and the
/// files that take the most space.
fn files(drawn: &[Drawn], main: usize) -> (Vec<FileOutcome>, Vec<FileOutcome>) {
    let mut by_file: BTreeMap<&String, Vec<&Drawn>> = BTreeMap::new();
    drawn.iter().for_each(|draw| by_file.entry(&draw.file).or_default().push(draw));
    by_file.retain(|_, draws| draws.len() >= FILE_DRAWS_MIN);
    let mut all: Vec<FileOutcome> = by_file
        .into_iter()
        .map(|(name, draws)| FileOutcome {
            name: name.clone(),
            bytes: draws[0].file_bytes,
            stored: draws.iter().map(|draw| draw.fractions[main].1).sum::<f64>()
                / draws.len() as f64,
            format: draws.iter().find_map(|draw| draw.format.clone()),
        })
        .collect();
    let stored = |file: &FileOutcome| file.bytes as f64 * file.stored;
    let saved = |file: &FileOutcome| file.bytes as f64 * (1.0 - file.stored);
    all.sort_by(|one, other| saved(other).total_cmp(&saved(one)));
    let best = all.iter().take(FILES_SHOWN).cloned().collect();
    all.sort_by(|one, other| stored(other).total_cmp(&stored(one)));
    all.truncate(FILES_SHOWN);
    (best, all)
}

/// Estimates the number of copies of blocks from pairs of draws with equal contents at different
/// offsets.
///
/// The probability that two draws are such a pair is `A / N`, with `N` blocks that have `A` other
/// copies on average. Of blocks with `m` copies each, a share of `1 - 1/m` is duplicate. This share
/// is concave in `m`, so at most `A / (1 + A)` of all blocks are duplicate (Jensen). The number of
/// pairs is assumed to have a Poisson distribution.
fn duplicates_of(partial: &Partial, drawn: &[Drawn], confidence: f64) -> Duplicates {
    let mut contents: BTreeMap<u64, Vec<&Drawn>> = BTreeMap::new();
    for draw in drawn {
        if let Some(content) = draw.content {
            contents.entry(content).or_default().push(draw);
        }
    }
    // Two draws of the same block are not a pair.
    let mut pairs = 0.0;
    for draws in contents.values() {
        let mut places: BTreeMap<(&String, u64), u64> = BTreeMap::new();
        for draw in draws {
            *places.entry((&draw.file, draw.block)).or_default() += 1;
        }
        let count = draws.len() as f64;
        let same: f64 = places.values().map(|times| (times * times) as f64).sum();
        pairs += (count * count - same) / 2.0;
    }
    let all = drawn.len() as f64;
    let possible = all * (all - 1.0) / 2.0;
    let most_pairs = ChiSquared::new(2.0 * (pairs + 1.0))
        .map_or(f64::MAX, |law| law.inverse_cdf((1.0 + confidence) / 2.0) / 2.0);
    let copies =
        if possible > 0.0 { most_pairs * partial.blocks as f64 / possible } else { f64::MAX };
    // A single file cannot be a copy of another.
    let duplicates =
        super::duplicate_files::share(&partial.duplicates).filter(|_| partial.files > 1);
    Duplicates {
        percent: duplicates.map(|(share, _)| 100.0 * share),
        deviation_points: duplicates.map_or(0.0, |(_, deviation)| 100.0 * deviation),
        most_percent: 100.0 * (copies / (1.0 + copies)).min(1.0),
        method: "further copies of whole files: files of equal size with two equal blocks; the \
                 maximum is estimated from pairs of draws, and is imprecise if there are few \
                 draws; --all counts blocks",
    }
}

fn bars(steps: &[u64]) -> Vec<f64> {
    let all: u64 = steps.iter().sum();
    let mut bars = vec![0.0; BARS];
    for (step, bytes) in steps.iter().enumerate() {
        bars[(step * BARS / STEPS).min(BARS - 1)] += percent(*bytes as f64, all as f64);
    }
    bars
}

/// Returns 1000 savings with the same distribution as the steps.
fn quantiles(steps: &[u64]) -> Vec<Saving> {
    const COUNT: u64 = 1000;
    let all: u64 = steps.iter().sum();
    if all == 0 {
        return Vec::new();
    }
    let (mut step, mut below) = (0, 0u128);
    let quantile = |number: u64| {
        let wanted = u128::from(2 * number + 1) * u128::from(all) / u128::from(2 * COUNT);
        while step < STEPS && below + u128::from(steps[step]) <= wanted {
            below += u128::from(steps[step]);
            step += 1;
        }
        Saving::from_fraction(1.0 - step as f64 / STEPS as f64)
    };
    (0..COUNT).map(quantile).collect()
}

impl Config {
    /// Returns whether it is possible to create a drive that compresses with this configuration.
    /// The drive must support the codec. The chunk size is that of its frames or, if these were not
    /// measured, one block, which takes more.
    pub(super) fn is_of_drive(&self, all: &[ConfigOutcome]) -> bool {
        let solid = u32::from(FRAME_BLOCKS_DEFAULT) * BLOCK_BYTES as u32;
        let has_solid = all.iter().any(|it| it.config.chunk_bytes == solid);
        let chunk_bytes = if has_solid { solid } else { BLOCK_BYTES as u32 };
        let codec = self.codec.of_drive().is_some_and(|codec| codec != Codec::None);
        codec && self.chunk_bytes == chunk_bytes
    }
}

/// Returns the fastest drive configuration of all that compress fast enough and store hardly more
/// than the densest one.
fn choice(configs: &[ConfigOutcome]) -> Option<(usize, String)> {
    let speed = |it: &ConfigOutcome| it.mb_per_s.unwrap_or(0.0) * 1e6;
    let fast: Vec<(usize, &ConfigOutcome)> = configs
        .iter()
        .enumerate()
        .filter(|(_, it)| it.config.is_of_drive(configs) && speed(it) >= CHOICE_BYTES_PER_S)
        .collect();
    let densest = fast.iter().map(|(_, it)| it.drive.stored).fold(f64::MAX, f64::min);
    let good = fast.into_iter().filter(|(_, it)| it.drive.stored <= CHOICE_SLACK * densest);
    let (index, chosen) = good.max_by(|(_, one), (_, other)| {
        // Smaller chunks make random reads cheaper.
        let rank = |it: &ConfigOutcome| (speed(it), std::cmp::Reverse(it.config.chunk_bytes));
        rank(one).0.total_cmp(&rank(other).0).then_with(|| rank(one).1.cmp(&rank(other).1))
    })?;
    let why = format!(
        "{}: the fastest that stores at most {:.0} % more than the densest, among codecs that \
         compress at least {:.0} MB/s per thread",
        chosen.config,
        (CHOICE_SLACK - 1.0) * 100.0,
        CHOICE_BYTES_PER_S / 1e6
    );
    Some((index, why))
}
