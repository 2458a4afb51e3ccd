//! The population of blocks, and the selection of blocks to draw from it.
//!
//! The population consists of the 4 KiB blocks that contain data, in all files. Every block has the
//! same probability of being drawn, and a draw represents the chunk around it. For each part of a
//! file (1 GiB), a random process seeded by the file's name scatters *marks* over the part, with an
//! average of one mark per block in 0..1. The draws of a scan are the blocks with the lowest marks
//! overall. They depend neither on the order in which files are found nor on other machines: parts
//! can be distributed over several machines, whose combined draws equal the draws of a single
//! machine.
//!
//! The draws below a mark are independent and uniform over all blocks, with repetition, as required
//! by [`super::interval`].
//!
//! Memory use is limited. The population stores the lowest [`DRAWS_KEPT`] draws, and up to twice
//! that number; only the files that have draws or may be copies; and at most [`NAMES_MAX`] names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rand::RngExt;
use rand_distr::{Distribution, Exp1};
use serde::{Deserialize, Serialize};

use pumice_drive::base::seed::{mix, random};
use pumice_drive::base::units::BLOCK_BYTES;

/// Minimum number of draws that are kept, if there are enough: sufficient for a quarter of a point.
const DRAWS_KEPT: usize = 1 << 16;

/// Blocks in a part, which is the unit for distributing files over shards.
pub(super) const PART_BLOCKS: u64 = 1 << 18;

/// Maximum number of distinct extensions, and of distinct folders.
const NAMES_MAX: usize = 1 << 14;

/// Name of the group for all further extensions and folders.
pub(super) const OTHERS: &str = "(others)";

/// Number of largest files that are recorded.
const LARGEST_MAX: usize = 16;

/// A run of blocks with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// First block in the file.
    pub(super) first: u64,
    /// Number of blocks.
    pub(super) blocks: u64,
}

/// The location of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// A file or block device.
    File(PathBuf),
    /// An export, by its URI.
    Export(String),
}

/// A file, device or export.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) location: Location,
    /// Name relative to the named folder, independent of the machine.
    pub(super) name: String,
    /// Length in bytes.
    pub(super) bytes: u64,
    /// Runs of blocks with data, in ascending order; `None` if all blocks contain data.
    pub(super) extents: Option<Vec<Extent>>,
    /// Extension in lower case; empty if there is none.
    pub(super) extension: String,
    /// The folder group to which the file belongs.
    pub(super) folder: String,
    /// Time since the last change.
    pub(super) age: Age,
    /// Identity of a file with several names on its file system.
    pub(super) identity: Option<u64>,
}

impl Source {
    /// Returns the number of blocks in the file, including holes. The last block may be partial.
    pub(super) fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Returns the number of blocks with data.
    pub(super) fn data_blocks(&self) -> u64 {
        match &self.extents {
            None => self.blocks(),
            Some(extents) => extents.iter().map(|extent| extent.blocks).sum(),
        }
    }

    /// Returns the position in the file of the data block with this number.
    fn block_of(&self, mut number: u64) -> u64 {
        for extent in self.extents.iter().flatten() {
            match number.checked_sub(extent.blocks) {
                None => return extent.first + number,
                Some(rest) => number = rest,
            }
        }
        number
    }

    /// Returns the number of blocks with data in the range of `blocks` blocks that starts at
    /// `first`.
    pub(super) fn data_blocks_in(&self, first: u64, blocks: u64) -> u64 {
        self.runs_in(first, blocks).map(|run| run.blocks).sum()
    }

    /// Returns the runs of blocks with data in the range of `blocks` blocks that starts at `first`.
    pub(super) fn runs_in(&self, first: u64, blocks: u64) -> impl Iterator<Item = Extent> {
        let end = first + blocks;
        let (listed, whole) = match &self.extents {
            Some(extents) => {
                let from = extents.partition_point(|run| run.first + run.blocks <= first);
                (&extents[from..], None)
            }
            None => (&[][..], Some(Extent { first: 0, blocks: self.blocks() })),
        };
        let inside = listed.iter().copied().chain(whole).take_while(move |run| run.first < end);
        let cut = inside.map(move |run| {
            let start = run.first.max(first);
            let blocks = end.min(run.first + run.blocks).saturating_sub(start);
            Extent { first: start, blocks }
        });
        cut.filter(|run| run.blocks > 0)
    }

    /// Returns whether each block in the range of `blocks` blocks that starts at `first` contains
    /// data; `None` if all do.
    pub(super) fn data_mask(&self, first: u64, blocks: u64) -> Option<Vec<bool>> {
        if self.data_blocks_in(first, blocks) == blocks {
            return None;
        }
        let mut mask = vec![false; blocks as usize];
        for run in self.runs_in(first, blocks) {
            mask[(run.first - first) as usize..][..run.blocks as usize].fill(true);
        }
        Some(mask)
    }

    /// Returns a number for the file that is independent of the machine.
    fn key(&self) -> u64 {
        let name = pumice_drive::base::checksum::crc64(self.name.as_bytes());
        mix(self.identity.unwrap_or(name))
    }
}

/// Time since the last change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Age {
    Day,
    Week,
    Month,
    Year,
    Older,
    /// For devices and exports.
    Unknown,
}

impl Age {
    pub(super) const ALL: [Self; 6] =
        [Self::Day, Self::Week, Self::Month, Self::Year, Self::Older, Self::Unknown];

    pub(super) fn of_seconds(seconds: i64) -> Self {
        const DAY: i64 = 86_400;
        match seconds / DAY {
            ..1 => Self::Day,
            1..7 => Self::Week,
            7..31 => Self::Month,
            31..366 => Self::Year,
            _ => Self::Older,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Day => "within a day",
            Self::Week => "within a week",
            Self::Month => "within a month",
            Self::Year => "within a year",
            Self::Older => "longer ago",
            Self::Unknown => "unknown",
        }
    }
}

/// The draws of a population.
#[derive(Debug)]
pub(super) struct Draws {
    /// The draws, ordered by mark.
    pub(super) list: Vec<Draw>,
    /// The list contains all draws with a mark below this.
    pub(super) end: f64,
}

/// A drawn block.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    /// Rank of the draw among all draws.
    pub(super) mark: f64,
    pub(super) source: Arc<Source>,
    /// The block number in the file.
    pub(super) block: u64,
}

/// The part of the population that a scan covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Index, below `count`.
    pub index: u32,
    /// Number of shards, at least 1.
    pub count: u32,
}

impl Shard {
    /// The whole population.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// Returns whether the part with this key belongs to the shard.
    fn has(self, part_key: u64) -> bool {
        mix(part_key) % u64::from(self.count) == u64::from(self.index)
    }
}

impl std::str::FromStr for Shard {
    type Err = String;

    /// Parses `I/N` with I from 1 to N.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').map(|(index, count)| (index.parse(), count.parse()));
        match parts {
            Some((Ok(index), Ok(count))) if (1..=count).contains(&index) && count <= 1_000_000 => {
                Ok(Self { index: index - 1, count })
            }
            _ => {
                Err(format!("invalid shard '{text}': expected I/N with I from 1 to N, such as 3/8"))
            }
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.count)
    }
}

/// Blocks by name.
pub(super) type ByName = BTreeMap<String, u64>;

fn count(names: &mut ByName, name: &str, blocks: u64) {
    let name = if names.contains_key(name) || names.len() < NAMES_MAX { name } else { OTHERS };
    *names.entry(name.to_owned()).or_default() += blocks;
}

/// The files found so far, and the draws.
#[derive(Debug)]
pub(super) struct Population {
    seed: u64,
    shard: Shard,
    /// Number of files with data.
    pub(super) files: u64,
    /// Number of blocks with data in all shards.
    pub(super) blocks_of_all: u64,
    /// Number of blocks with data in this shard.
    pub(super) blocks: u64,
    /// Number of blocks in all shards by extension, which determines the strata.
    pub(super) extensions_of_all: ByName,
    pub(super) extensions: ByName,
    pub(super) folders: ByName,
    pub(super) ages: [u64; Age::ALL.len()],
    /// The largest files in all shards, in descending order of blocks.
    pub(super) largest: Vec<Arc<Source>>,
    /// Draws with a mark below this are kept.
    mark_end: f64,
    draws: Vec<Draw>,
}

impl Population {
    pub(super) fn new(seed: u64, shard: Shard) -> Self {
        Self {
            seed,
            shard,
            files: 0,
            blocks_of_all: 0,
            blocks: 0,
            extensions_of_all: ByName::new(),
            extensions: ByName::new(),
            folders: ByName::new(),
            ages: [0; Age::ALL.len()],
            largest: Vec::new(),
            mark_end: 1.0,
            draws: Vec::new(),
        }
    }

    /// Adds a file, and draws from it.
    pub(super) fn add(&mut self, source: impl Into<Arc<Source>>) {
        let source = source.into();
        let data_blocks = source.data_blocks();
        if data_blocks == 0 {
            return;
        }
        self.blocks_of_all += data_blocks;
        count(&mut self.extensions_of_all, &source.extension, data_blocks);
        self.keep_largest(&source);
        let mut own_blocks = 0;
        let source_key = source.key();
        for (part, (first, blocks)) in parts(data_blocks).enumerate() {
            let key = mix(source_key ^ part as u64);
            if self.shard.has(key) {
                own_blocks += blocks;
                self.draw(&source, key, first, blocks);
            }
        }
        if own_blocks == 0 {
            return;
        }
        self.files += 1;
        self.blocks += own_blocks;
        count(&mut self.extensions, &source.extension, own_blocks);
        count(&mut self.folders, &source.folder, own_blocks);
        self.ages[source.age as usize] += own_blocks;
        if self.draws.len() > 2 * DRAWS_KEPT {
            self.thin_out();
        }
    }

    /// Draws marks in ascending order, at a rate of one per block and unit, each at a random block.
    fn draw(&mut self, source: &Arc<Source>, key: u64, first: u64, blocks: u64) {
        let mut random = random(mix(key ^ mix(self.seed)));
        let mut mark = 0.0;
        loop {
            let gap: f64 = Exp1.sample(&mut random);
            mark += gap / blocks as f64;
            let block = first + random.random_range(0..blocks);
            if mark >= self.mark_end {
                return;
            }
            let block = source.block_of(block);
            self.draws.push(Draw { mark, source: source.clone(), block });
            // Only the first part of a huge file reaches this limit.
            if self.draws.len() > 4 * DRAWS_KEPT {
                self.thin_out();
            }
        }
    }

    fn thin_out(&mut self) {
        while self.draws.len() > 2 * DRAWS_KEPT {
            self.mark_end /= 2.0;
            self.draws.retain(|draw| draw.mark < self.mark_end);
        }
    }

    fn keep_largest(&mut self, source: &Arc<Source>) {
        let rank = |source: &Source| (std::cmp::Reverse(source.data_blocks()), source.key());
        let is_smaller = |last: &Arc<Source>| last.data_blocks() > source.data_blocks();
        if self.largest.len() == LARGEST_MAX && self.largest.last().is_some_and(is_smaller) {
            return;
        }
        let place = self.largest.partition_point(|other| rank(other) < rank(source));
        if place < LARGEST_MAX {
            self.largest.insert(place, source.clone());
            self.largest.truncate(LARGEST_MAX);
        }
    }

    /// Removes and returns the draws.
    pub(super) fn take_draws(&mut self) -> Draws {
        let mut list = std::mem::take(&mut self.draws);
        list.sort_by(|one, other| one.mark.total_cmp(&other.mark));
        Draws { list, end: self.mark_end }
    }
}

/// Returns whether the data block of `source` with this number belongs to a shard.
pub(super) fn is_own(shard: Shard, source: &Source, number: u64) -> bool {
    shard.has(mix(source.key() ^ (number / PART_BLOCKS)))
}

/// Returns the parts of `blocks` blocks, each as its first block and number of blocks.
fn parts(blocks: u64) -> impl Iterator<Item = (u64, u64)> {
    let firsts = (0..blocks).step_by(PART_BLOCKS as usize);
    firsts.map(move |first| (first, PART_BLOCKS.min(blocks - first)))
}

#[cfg(test)]
pub(super) mod tests {
    //! Goal: all blocks have the same probability of being drawn, on any machine and in any order.
    //! Method: files that exist only as names; counts are compared with their expected values.

    use super::*;

    pub(crate) fn source(name: &str, blocks: u64) -> Source {
        Source {
            location: Location::File(name.into()),
            name: name.to_owned(),
            bytes: blocks * BLOCK_BYTES as u64,
            extents: None,
            extension: name.rsplit_once('.').map_or("", |(_, end)| end).to_owned(),
            folder: name.split_once('/').map_or(".", |(folder, _)| folder).to_owned(),
            age: Age::Older,
            identity: None,
        }
    }

    fn drawn(shard: Shard, order: impl Iterator<Item = u64>) -> (Vec<(f64, String, u64)>, f64) {
        let mut population = Population::new(7, shard);
        order.for_each(|number| {
            population.add(source(&format!("d/{number}.x"), 1 + number % 700));
        });
        let Draws { list: draws, end } = population.take_draws();
        let draws = draws.into_iter().map(|draw| (draw.mark, draw.source.name.clone(), draw.block));
        (draws.collect(), end)
    }

    #[test]
    fn draws_do_not_depend_on_order_and_shards_share_them_out() {
        let (forward, end) = drawn(Shard::ALL, 0..2000);
        assert!(forward.len() > DRAWS_KEPT && forward.len() <= 2 * DRAWS_KEPT && end < 1.0);
        assert_eq!((forward.clone(), end), drawn(Shard::ALL, (0..2000).rev()));
        let mut together = Vec::new();
        for index in 0..3 {
            let (part, part_end) = drawn(Shard { index, count: 3 }, 0..2000);
            assert!(part_end >= end && part.len() > forward.len() / 6);
            together.extend(part.into_iter().filter(|draw| draw.0 < end));
        }
        together.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert_eq!(together, forward);
    }

    #[test]
    fn every_block_is_equally_likely() {
        // A small file among large ones, a sparse file, and a file with several parts.
        let mut population = Population::new(3, Shard::ALL);
        let sparse = vec![Extent { first: 5, blocks: 10_000 }, Extent { first: 90_000, blocks: 1 }];
        let mut holes = source("holes", 100_000);
        holes.extents = Some(sparse);
        for one in [source("small", 3000), holes, source("large", PART_BLOCKS + 30_000)] {
            population.add(one);
        }
        assert_eq!(population.blocks, 3000 + 10_001 + PART_BLOCKS + 30_000);
        let blocks = population.blocks as f64;
        let Draws { list: draws, end } = population.take_draws();
        let expected = blocks * end;
        assert!((draws.len() as f64 / expected - 1.0).abs() < 0.02, "{} {expected}", draws.len());
        let share = |wanted: &dyn Fn(&Draw) -> bool, blocks: f64| {
            let hits = draws.iter().filter(|draw| wanted(draw)).count() as f64;
            // Four standard deviations of a Poisson distribution.
            assert!((hits - blocks * end).abs() < 4.0 * (blocks * end).sqrt() + 1.0, "{hits}");
        };
        share(&|draw| draw.source.name == "small", 3000.0);
        share(&|draw| draw.source.name == "holes", 10_001.0);
        share(&|draw| draw.source.name == "large" && draw.block >= PART_BLOCKS, 30_000.0);
        let in_data = |draw: &Draw| (5..10_005).contains(&draw.block) || draw.block == 90_000;
        assert!(draws.iter().filter(|draw| draw.source.name == "holes").all(in_data));
        assert!(draws.is_sorted_by_key(|draw| draw.mark));
    }

    #[test]
    fn data_in_a_chunk_is_counted_without_its_holes() {
        let mut one = source("x", 100);
        one.bytes -= 1000;
        assert_eq!((one.data_blocks_in(96, 8), one.data_blocks_in(0, 8)), (4, 8));
        let extents = vec![Extent { first: 3, blocks: 2 }, Extent { first: 7, blocks: 90 }];
        one.extents = Some(extents);
        assert_eq!((one.data_blocks(), one.data_blocks_in(0, 8)), (92, 3));
        assert_eq!((one.data_blocks_in(4, 1), one.data_blocks_in(5, 2)), (1, 0));
        let places = [0, 1, 2, 91].map(|number| one.block_of(number));
        assert_eq!(places, [3, 4, 7, 96]);
    }

    #[test]
    fn shards_are_read_as_people_count() {
        assert_eq!("3/8".parse(), Ok(Shard { index: 2, count: 8 }));
        assert_eq!(Shard { index: 2, count: 8 }.to_string(), "3/8");
        for text in ["", "0/4", "5/4", "1", "1/0", "-1/3", "1/2/3"] {
            assert!(text.parse::<Shard>().unwrap_err().contains("such as 3/8"), "{text}");
        }
    }

    #[test]
    fn ages_begin_where_they_say() {
        let day = 86_400;
        let ages = [-5, day - 1, day, 7 * day, 31 * day, 366 * day].map(Age::of_seconds);
        use Age::{Day, Month, Older, Week, Year};
        assert_eq!(ages, [Day, Day, Week, Month, Year, Older]);
        assert!(Age::ALL.iter().enumerate().all(|(index, age)| *age as usize == index));
    }
}
