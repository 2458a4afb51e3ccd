//! Sums of measurements: in total; by extension, folder and age; and as a distribution.
//!
//! Used when all data is read. Sums are integers, so they do not depend on the order of addition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::chunks::Taken;
use super::population::{OTHERS, Source};
use pumice_bench::payload::repeats::Repeats;
use pumice_drive::base::units::BLOCK_BYTES;

/// Number of steps for counting fractions; each has 0.4 points.
pub(super) const STEPS: usize = 250;

/// Number of contents that are recorded to find duplicates. With this number, one standard
/// deviation is 0.4 % of the share.
const CONTENTS_MAX: usize = 1 << 16;

/// Number of files that are recorded for the largest savings, and for the largest sizes.
const FILES_MAX: usize = 32;

/// Blocks and their stored sizes in each configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) blocks: u64,
    pub(super) taken: Vec<Taken>,
}

impl Group {
    fn add(&mut self, blocks: u64, taken: &[Taken]) {
        self.blocks += blocks;
        self.taken.resize(taken.len().max(self.taken.len()), Taken::default());
        self.taken.iter_mut().zip(taken).for_each(|(sum, taken)| sum.add(*taken));
    }

    pub(super) fn bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }
}

/// Groups by name.
pub(super) type Groups = BTreeMap<String, Group>;

/// A file and its stored size in the main configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSum {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) record_bytes: u64,
    /// Format according to the first bytes of the file.
    pub(super) format: Option<String>,
}

/// Sums over all data that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sums {
    pub(super) all: Group,
    pub(super) extensions: Groups,
    pub(super) folders: Groups,
    /// Groups in the order of [`super::population::Age::ALL`].
    pub(super) ages: Vec<Group>,
    /// For each configuration, the bytes of chunks by the stored fraction of their records.
    pub(super) spread: Vec<Vec<u64>>,
    pub(super) repeats: Repeats,
    /// Blocks of compressed formats, by name.
    pub(super) formats: BTreeMap<String, u64>,
    /// Files with the largest savings, and files that take the most space, both in descending
    /// order.
    pub(super) best: Vec<FileSum>,
    pub(super) worst: Vec<FileSum>,
}

impl Sums {
    pub(super) fn new(configs: usize) -> Self {
        Self {
            all: Group::default(),
            extensions: Groups::new(),
            folders: Groups::new(),
            ages: vec![Group::default(); super::population::Age::ALL.len()],
            spread: vec![vec![0; STEPS + 1]; configs],
            repeats: Repeats::new(CONTENTS_MAX),
            formats: BTreeMap::new(),
            best: Vec::new(),
            worst: Vec::new(),
        }
    }

    /// Adds a piece of a file to all its groups. Names that are not in `known` are counted as
    /// others.
    pub(super) fn add_piece(
        &mut self,
        source: &Source,
        known: &Known,
        blocks: u64,
        taken: &[Taken],
    ) {
        self.all.add(blocks, taken);
        let extension = known.extension(&source.extension);
        self.extensions.entry(extension.to_owned()).or_default().add(blocks, taken);
        let folder = known.folder(&source.folder);
        self.folders.entry(folder.to_owned()).or_default().add(blocks, taken);
        self.ages[source.age as usize].add(blocks, taken);
    }

    /// Adds a chunk of configuration `config` with `bytes` bytes of data.
    pub(super) fn add_chunk(&mut self, config: usize, bytes: u64, taken: Taken) {
        if bytes > 0 {
            self.spread[config][step(taken.record_bytes as f64 / bytes as f64)] += bytes;
        }
    }

    /// Adds the sums of a whole file.
    pub(super) fn add_file(&mut self, file: FileSum) {
        if let Some(format) = &file.format {
            *self.formats.entry(format.clone()).or_default() += file.bytes / BLOCK_BYTES as u64;
        }
        keep(&mut self.best, file.clone(), |file| file.bytes.saturating_sub(file.record_bytes));
        keep(&mut self.worst, file, |file| file.record_bytes);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.all.add(other.all.blocks, &other.all.taken);
        let pairs =
            [(&mut self.extensions, &other.extensions), (&mut self.folders, &other.folders)];
        for (groups, others) in pairs {
            for (name, group) in others {
                groups.entry(name.clone()).or_default().add(group.blocks, &group.taken);
            }
        }
        for (age, other) in self.ages.iter_mut().zip(&other.ages) {
            age.add(other.blocks, &other.taken);
        }
        for (steps, others) in self.spread.iter_mut().zip(&other.spread) {
            steps.iter_mut().zip(others).for_each(|(step, other)| *step += other);
        }
        self.repeats.merge(&other.repeats);
        for (name, blocks) in &other.formats {
            *self.formats.entry(name.clone()).or_default() += blocks;
        }
        other.best.iter().for_each(|file| {
            keep(&mut self.best, file.clone(), |file| file.bytes.saturating_sub(file.record_bytes));
        });
        other.worst.iter().for_each(|file| {
            keep(&mut self.worst, file.clone(), |file| file.record_bytes);
        });
    }
}

/// Returns the step of a fraction. Fractions above 1 are treated as 1.
pub(super) fn step(fraction: f64) -> usize {
    ((fraction * STEPS as f64).round() as usize).min(STEPS)
}

/// Inserts a file if its rank is high enough. Files are ordered by descending rank and then by
/// name, and parts of one file are merged.
fn keep(files: &mut Vec<FileSum>, mut file: FileSum, rank: impl Fn(&FileSum) -> u64) {
    if let Some(place) = files.iter().position(|other| other.name == file.name) {
        let other = files.remove(place);
        file.bytes += other.bytes;
        file.record_bytes += other.record_bytes;
    }
    let key = |file: &FileSum| (std::cmp::Reverse(rank(file)), file.name.clone());
    if files.len() == FILES_MAX && rank(&files[FILES_MAX - 1]) > rank(&file) {
        return;
    }
    let place = files.partition_point(|other| key(other) < key(&file));
    files.insert(place, file);
    files.truncate(FILES_MAX);
}

/// The names that have their own groups.
pub(super) struct Known {
    pub(super) extensions: super::population::ByName,
    pub(super) folders: super::population::ByName,
}

impl Known {
    fn extension<'a>(&self, name: &'a str) -> &'a str {
        if self.extensions.contains_key(name) { name } else { OTHERS }
    }

    fn folder<'a>(&self, name: &'a str) -> &'a str {
        if self.folders.contains_key(name) { name } else { OTHERS }
    }
}
