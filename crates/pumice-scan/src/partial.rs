//! The partial result of a scan, as JSON: all data required to calculate the results.
//!
//! The files of a shard and of a whole scan have the same format. Merged shards form the partial
//! result of one scan. Sums are added. Draws are kept below the lowest mark up to which all shards
//! have measured their draws; they are the draws of a single scan that stopped at this mark.
//! `merge` therefore returns exactly the result of a single scan with the same number of draws.
//!
//! Files are not trusted: inconsistent numbers are refused.

use serde::{Deserialize, Serialize};

use super::chunks::{Config, Effort};
use super::duplicate_files::Compared;
use super::interval::Plan;
use super::passed::Passed;
use super::population::{Age, ByName, Population, Shard};
use super::sample::Drawn;
use super::strata::{Strata, Stratum};
use super::sums::{STEPS, Sums};
use super::{Error, Result};
use pumice_bench::payload::Saving;

/// Version of the file format.
const VERSION: u32 = 1;

/// Maximum size of a file: about 300,000 draws.
pub const PARTIAL_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of configurations.
pub(super) const CONFIGS_MAX: usize = 64;

/// A partial result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partial {
    pumice_scan: u32,
    /// The scanned paths, as specified.
    pub(super) paths: Vec<String>,
    /// Remarks that readers of the figures must know.
    pub(super) remarks: Vec<String>,
    pub(super) configs: Vec<Config>,
    /// Index of the main configuration.
    pub(super) main: usize,
    /// Requested half-width, in percentage points.
    pub(super) error_points: f64,
    pub(super) confidence_percent: f64,
    /// Total number of draws of all shards, if it was fixed in advance.
    pub(super) draws_planned: Option<u64>,
    pub(super) seed: u64,
    pub(super) shard: Shard,
    /// Number of files with data in this shard.
    pub(super) files: u64,
    /// Blocks with data, in this shard and in all shards.
    pub(super) blocks: u64,
    pub(super) blocks_of_all: u64,
    pub(super) extensions: ByName,
    pub(super) folders: ByName,
    pub(super) ages: Vec<u64>,
    pub(super) strata: Vec<Stratum>,
    /// Skipped files and data, in all shards.
    pub(super) passed: Passed,
    /// Files and data that could not be read.
    pub(super) failed: Passed,
    pub(super) efforts: Vec<Effort>,
    pub(super) bytes_read: u64,
    /// Comparison of whole files, small and large ones; empty if all data was read. Its key in the
    /// file dates from version 1 of the format.
    #[serde(rename = "twins")]
    pub(super) duplicates: Vec<Compared>,
    /// Whether the scan was completed without interruption.
    pub(super) is_complete: bool,
    pub(super) measured: Measured,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Measured {
    /// All draws below a mark, ordered by mark.
    Draws {
        /// The mark.
        end: f64,
        /// The draws that could be read.
        drawn: Vec<Drawn>,
        /// Number of draws that could not be read.
        lost: u64,
    },
    /// All data was read.
    All(Box<Sums>),
}

impl Partial {
    /// Creates a partial result without measurements.
    pub(super) fn begin(paths: Vec<String>, options: &super::ScanOptions) -> Self {
        Self {
            pumice_scan: VERSION,
            paths,
            remarks: Vec::new(),
            configs: options.configs.clone(),
            main: options.main,
            error_points: options.error_points,
            confidence_percent: options.confidence_percent,
            draws_planned: options.draws_planned(),
            seed: options.seed,
            shard: options.shard,
            files: 0,
            blocks: 0,
            blocks_of_all: 0,
            extensions: ByName::new(),
            folders: ByName::new(),
            ages: vec![0; Age::ALL.len()],
            strata: Vec::new(),
            passed: Passed::default(),
            failed: Passed::default(),
            efforts: vec![Effort::default(); options.configs.len()],
            bytes_read: 0,
            duplicates: Vec::new(),
            is_complete: true,
            measured: Measured::Draws { end: 0.0, drawn: Vec::new(), lost: 0 },
        }
    }

    /// Records the description of the population.
    pub(super) fn describe(&mut self, population: &Population, strata: &Strata) {
        self.files = population.files;
        self.blocks = population.blocks;
        self.blocks_of_all = population.blocks_of_all;
        self.extensions.clone_from(&population.extensions);
        self.folders.clone_from(&population.folders);
        self.ages = population.ages.to_vec();
        self.strata.clone_from(&strata.list);
    }

    /// Returns the number of draws used to optimize the intervals.
    pub(super) fn plan(&self) -> Plan {
        match self.draws_planned {
            Some(draws) => Plan::Draws(draws as f64),
            None => Plan::Aim(self.error_points / 100.0),
        }
    }

    /// Returns the share of blocks known to be duplicates, which draws cannot determine.
    pub(super) fn repeated(&self) -> Saving {
        match &self.measured {
            Measured::All(sums) => sums.repeats.again(),
            Measured::Draws { .. } => Saving::NONE,
        }
    }

    /// Returns the shard of this partial result.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Returns whether the scan was completed.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the text of a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a scan serializes") + "\n"
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// `NotAPartial` or `InvalidInput` for anything other than a partial result, `Unsupported` for
    /// another version.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |what: String| Error::InvalidInput(what.into());
        let partial: Self = serde_json::from_str(text).map_err(Error::NotAPartial)?;
        if partial.pumice_scan != VERSION {
            let version = partial.pumice_scan;
            let what = format!("a scan of version {version}; this program reads {VERSION}");
            return Err(Error::Unsupported(what.into()));
        }
        match partial.problem() {
            Some(what) => Err(wrong(format!("not the result of a scan: {what}"))),
            None => Ok(partial),
        }
    }

    fn problem(&self) -> Option<&'static str> {
        let count = self.configs.len();
        let fits = |config: &Config| {
            let chunk = config.chunk_bytes;
            chunk.is_power_of_two() && (4096..=256 << 10).contains(&chunk)
        };
        let finite = |number: f64| (0.0..=1e9).contains(&number);
        if count == 0 || count > CONFIGS_MAX || !self.configs.iter().all(fits) {
            return Some("invalid configurations");
        }
        if self.main >= count || self.efforts.len() != count || self.ages.len() != Age::ALL.len() {
            return Some("lists of different lengths");
        }
        if self.shard.count == 0 || self.shard.index >= self.shard.count {
            return Some("invalid shard");
        }
        if !(0.001..=50.0).contains(&self.error_points)
            || !(50.0..=99.999).contains(&self.confidence_percent)
        {
            return Some("invalid error or confidence");
        }
        if self.duplicates.len() > 2 || !self.duplicates.iter().all(Compared::is_possible) {
            return Some("invalid copies");
        }
        match &self.measured {
            Measured::Draws { end, drawn, .. } => {
                let good = |draw: &Drawn| {
                    (draw.stratum as usize) < self.strata.len()
                        && usize::from(draw.age) < Age::ALL.len()
                        && draw.fractions.len() == count
                        && draw.fractions.iter().all(|pair| finite(pair.0) && finite(pair.1))
                        && (0.0..*end).contains(&draw.mark)
                };
                let sorted = drawn.is_sorted_by(|one, other| one.mark <= other.mark);
                (!finite(*end) || !sorted || !drawn.iter().all(good)).then_some("invalid draws")
            }
            Measured::All(sums) => {
                let groups = sums.extensions.values().chain(sums.folders.values());
                let mut groups = groups.chain(&sums.ages).chain([&sums.all]);
                let bad = sums.spread.len() != count
                    || sums.spread.iter().any(|steps| steps.len() != STEPS + 1)
                    || sums.ages.len() != Age::ALL.len()
                    || groups.any(|group| group.blocks > 0 && group.taken.len() != count);
                bad.then_some("sums of different lengths")
            }
        }
    }

    /// Merges all shards of one scan.
    ///
    /// # Errors
    /// `InvalidInput` if the parts belong to different scans, or if a part is missing, duplicate or
    /// interrupted.
    pub fn merge(parts: &[(String, Partial)]) -> Result<Self> {
        let wrong = |what: String| Error::InvalidInput(what.into());
        let Some(((first_name, first), rest)) = parts.split_first() else {
            return Err(wrong("there is nothing to merge: name the files of all shards".into()));
        };
        for (name, part) in rest {
            if let Some(what) = first.difference(part) {
                let what = format!("{first_name} and {name} belong to different scans: {what}");
                return Err(wrong(what));
            }
        }
        let mut found = vec![None; first.shard.count as usize];
        for (name, part) in parts {
            if !part.is_complete {
                let what = "was interrupted: scan this shard again";
                return Err(wrong(format!("{name} {what}")));
            }
            if let Some(other) = found[part.shard.index as usize].replace(name) {
                let what = format!("{other} and {name} are both shard {}", part.shard);
                return Err(wrong(what));
            }
        }
        if let Some(index) = found.iter().position(Option::is_none) {
            let missing = Shard { index: index as u32, count: first.shard.count };
            return Err(wrong(format!("shard {missing} is missing: name the files of all shards")));
        }
        let mut ordered: Vec<&Self> = parts.iter().map(|(_, part)| part).collect();
        ordered.sort_by_key(|part| part.shard.index);
        let mut whole = ordered[0].clone();
        whole.shard = Shard::ALL;
        ordered[1..].iter().for_each(|part| whole.add(part));
        // Blocks are recounted because the tree may have changed between the scans of the shards.
        whole.blocks_of_all = whole.blocks;
        Ok(whole)
    }

    fn difference(&self, other: &Self) -> Option<String> {
        let kind = |part: &Self| match part.measured {
            Measured::Draws { .. } => "draws",
            Measured::All(_) => "everything",
        };
        let pairs = [
            ("paths", self.paths.join(" "), other.paths.join(" ")),
            ("configurations", format!("{:?}", self.configs), format!("{:?}", other.configs)),
            ("main configuration", self.main.to_string(), other.main.to_string()),
            ("error", self.error_points.to_string(), other.error_points.to_string()),
            (
                "confidence",
                self.confidence_percent.to_string(),
                other.confidence_percent.to_string(),
            ),
            (
                "planned draws",
                format!("{:?}", self.draws_planned),
                format!("{:?}", other.draws_planned),
            ),
            ("seed", self.seed.to_string(), other.seed.to_string()),
            ("shards", self.shard.count.to_string(), other.shard.count.to_string()),
            ("read", kind(self).to_owned(), kind(other).to_owned()),
        ];
        let names = |part: &Self| part.strata.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        let different = pairs.into_iter().find(|(_, one, other)| one != other);
        match different {
            Some((what, one, other)) => Some(format!("{what} {one} and {other}")),
            None if names(self) != names(other) => {
                Some("the scanned files changed too much between them".to_owned())
            }
            None => None,
        }
    }

    fn add(&mut self, part: &Self) {
        self.files += part.files;
        self.blocks += part.blocks;
        for (names, others) in
            [(&mut self.extensions, &part.extensions), (&mut self.folders, &part.folders)]
        {
            for (name, blocks) in others {
                *names.entry(name.clone()).or_default() += blocks;
            }
        }
        self.ages.iter_mut().zip(&part.ages).for_each(|(sum, blocks)| *sum += blocks);
        // Every shard walks the whole tree, so only one shard's skipped files are counted.
        self.failed.add(&part.failed);
        self.efforts.iter_mut().zip(&part.efforts).for_each(|(sum, effort)| sum.add(*effort));
        self.bytes_read += part.bytes_read;
        self.duplicates
            .iter_mut()
            .zip(&part.duplicates)
            .for_each(|(sum, duplicates)| sum.add(duplicates));
        match (&mut self.measured, &part.measured) {
            (Measured::All(sums), Measured::All(others)) => sums.merge(others),
            (
                Measured::Draws { end, drawn, lost },
                Measured::Draws { end: other_end, drawn: others, lost: others_lost },
            ) => {
                *end = end.min(*other_end);
                drawn.extend(others.iter().cloned());
                drawn.retain(|draw| draw.mark < *end);
                drawn.sort_by(|one, other| one.mark.total_cmp(&other.mark));
                *lost += others_lost;
            }
            // This case has already been refused as different scans.
            _ => {}
        }
    }
}
