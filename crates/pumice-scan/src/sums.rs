//! What was measured, added up: in all, by extension, folder and age, and how it is spread.
//!
//! Used where everything is read. Sums are whole numbers, so parts added in any order come to the
//! same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::chunks::Taken;
use super::population::{OTHERS, Source};
use pumice_bench::payload::repeats::Repeats;
use pumice_drive::base::units::BLOCK_BYTES;

/// Steps in which fractions are counted: 0.4 points each.
pub(super) const STEPS: usize = 250;

/// Different contents that are remembered to find duplicates: 0.4 % of their share, one deviation.
const CONTENTS_MAX: usize = 1 << 16;

/// Files of which it is kept that they save most, or take most.
const FILES_MAX: usize = 32;

/// Blocks and what they take in each configuration.
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

/// A file and what it takes in the configuration that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSum {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) record_bytes: u64,
    /// What its first bytes say that it is.
    pub(super) format: Option<String>,
}

/// Sums over what was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sums {
    pub(super) all: Group,
    pub(super) extensions: Groups,
    pub(super) folders: Groups,
    /// In the order of [`super::population::Age::ALL`].
    pub(super) ages: Vec<Group>,
    /// Of each configuration: chunks' bytes by the fraction that their records take.
    pub(super) spread: Vec<Vec<u64>>,
    pub(super) repeats: Repeats,
    /// Blocks of formats that are compressed, by name.
    pub(super) formats: BTreeMap<String, u64>,
    /// Files that save most bytes, and files that take most, in descending order.
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

    /// Adds a piece of a file to all its groups; names that are not in `known` count as others.
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

    /// Counts a chunk of configuration `config`.
    pub(super) fn add_chunk(&mut self, config: usize, bytes: usize, taken: Taken) {
        self.spread[config][step(taken.record_bytes as f64 / bytes as f64)] += bytes as u64;
    }

    /// Adds what is known of a file as a whole.
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

/// The step of a fraction; what is above 1 counts as 1.
pub(super) fn step(fraction: f64) -> usize {
    ((fraction * STEPS as f64).round() as usize).min(STEPS)
}

/// Puts a file in its place by rank, highest first, then by name, if it has one. Parts of one file
/// are put together.
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

/// The names that are told apart.
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
