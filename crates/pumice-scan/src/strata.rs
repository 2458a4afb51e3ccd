//! Strata: homogeneous parts of the data. They are files grouped by extension, and regions of large
//! files.
//!
//! The number of draws in a stratum is proportional to its size. The mean of a stratum, as
//! estimated before a draw, is subtracted from the draw (see [`Adjusted`]), so that only the spread
//! within strata widens the interval. This needs no further assumptions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::interval::{Betting, Plan};
use super::population::{Draw, OTHERS, Population, Source};

/// Maximum number of extensions that have their own strata.
const EXTENSIONS_MAX: usize = 24;

/// Number of regions in all data. A file has a proportional share of them.
const REGIONS: u64 = 16;

/// Weight of the overall mean in the expected value of a stratum, in draws.
const PRIOR_DRAWS: f64 = 4.0;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stratum {
    pub(super) name: String,
    /// Blocks with data, in all shards.
    pub(super) blocks: u64,
}

/// The strata of a population.
pub(super) struct Strata {
    pub(super) list: Vec<Stratum>,
    by_extension: BTreeMap<String, u32>,
    /// Large files, with the index of the first region and the number of blocks per region.
    large: Vec<(Arc<Source>, u32, u64)>,
    others: u32,
}

impl Strata {
    pub(super) fn of(population: &Population) -> Self {
        let mut strata =
            Self { list: Vec::new(), by_extension: BTreeMap::new(), large: Vec::new(), others: 0 };
        let mut extensions = population.extensions_of_all.clone();
        for source in &population.largest {
            let data_blocks = source.data_blocks();
            let regions = data_blocks * REGIONS / population.blocks_of_all.max(1);
            if regions == 0 {
                break;
            }
            let name =
                if extensions.contains_key(&source.extension) { &source.extension } else { OTHERS };
            if let Some(blocks) = extensions.get_mut(name) {
                *blocks = blocks.saturating_sub(data_blocks);
            }
            let region_blocks = source.blocks().div_ceil(regions);
            strata.large.push((source.clone(), strata.list.len() as u32, region_blocks));
            for first in (0..source.blocks()).step_by(region_blocks as usize) {
                let blocks = source.data_blocks_in(first, region_blocks);
                strata.push(format!("{} from block {first}", source.name), blocks);
            }
        }
        let mut by_size: Vec<(String, u64)> =
            extensions.into_iter().filter(|(_, blocks)| *blocks > 0).collect();
        by_size.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        let rest = by_size.split_off(EXTENSIONS_MAX.min(by_size.len()));
        for (name, blocks) in by_size {
            let number = strata.push(format!(".{name}"), blocks);
            strata.by_extension.insert(name, number);
        }
        strata.others = strata.push(OTHERS.to_owned(), rest.iter().map(|(_, blocks)| blocks).sum());
        strata
    }

    fn push(&mut self, name: String, blocks: u64) -> u32 {
        self.list.push(Stratum { name, blocks });
        self.list.len() as u32 - 1
    }

    /// Returns the index of a draw's stratum.
    pub(super) fn of_draw(&self, draw: &Draw) -> u32 {
        let is_same = |(source, _, _): &&(Arc<Source>, u32, u64)| source.name == draw.source.name;
        match self.large.iter().find(is_same) {
            Some((_, first, region_blocks)) => first + (draw.block / region_blocks) as u32,
            None => *self.by_extension.get(&draw.source.extension).unwrap_or(&self.others),
        }
    }
}

/// A mean and the ends of its interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeanInterval {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl MeanInterval {
    /// Returns a mean that is known exactly.
    pub(super) fn exact(mean: f64) -> Self {
        Self { mean, low: mean, high: mean }
    }
}

/// A stratified mean with its interval.
pub(super) struct Adjusted {
    game: Betting,
    weights: Vec<f64>,
    /// Number and sum of the draws of each stratum.
    seen: Vec<(f64, f64)>,
}

impl Adjusted {
    pub(super) fn new(strata: &[Stratum], confidence: f64, plan: Plan) -> Self {
        let all: u64 = strata.iter().map(|stratum| stratum.blocks).sum();
        let weight = |stratum: &Stratum| stratum.blocks as f64 / all.max(1) as f64;
        Self {
            game: Betting::new(confidence, plan),
            weights: strata.iter().map(weight).collect(),
            seen: vec![(0.0, 0.0); strata.len()],
        }
    }

    /// Adds a draw. Draws must be added in the order of their marks.
    pub(super) fn push(&mut self, stratum: u32, value: f64) {
        let stratum = (stratum as usize).min(self.seen.len().saturating_sub(1));
        let (count, sum) =
            self.seen.iter().fold((0.0, 0.0), |all, seen| (all.0 + seen.0, all.1 + seen.1));
        let mean = if count > 0.0 { sum / count } else { 0.5 };
        let expected =
            |(count, sum): (f64, f64)| (sum + PRIOR_DRAWS * mean) / (count + PRIOR_DRAWS);
        let pairs = self.weights.iter().zip(&self.seen);
        let of_all: f64 = pairs.map(|(weight, seen)| weight * expected(*seen)).sum();
        self.game.push(value, expected(self.seen[stratum]) - of_all);
        self.seen[stratum].0 += 1.0;
        self.seen[stratum].1 += value;
    }

    /// Returns the mean, in which strata are weighted by size, and the ends of its interval.
    pub(super) fn estimate(&self) -> MeanInterval {
        let (low, high) = self.game.interval();
        let seen = || self.weights.iter().zip(&self.seen).filter(|(_, seen)| seen.0 > 0.0);
        let weight: f64 = seen().map(|(weight, _)| weight).sum();
        let sum: f64 = seen().map(|(weight, (count, sum))| weight * sum / count).sum();
        let mean = if weight > 0.0 { sum / weight } else { (low + high) / 2.0 };
        MeanInterval { mean: mean.clamp(low, high), low, high }
    }

    /// Returns the expected number of draws for the requested half-width.
    pub(super) fn needed(&self) -> f64 {
        self.game.needed()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every draw belongs to the stratum that counts its block, and strata make the interval
    //! narrower without shifting it. Method: a population that exists only as names; values that
    //! depend on the stratum.

    use rand::RngExt;

    use super::super::population::Shard;
    use super::super::population::tests::source;
    use super::*;
    use pumice_drive::base::seed::random;

    #[test]
    fn draws_fall_where_blocks_were_counted() {
        let mut population = Population::new(1, Shard::ALL);
        population.add(source("disk.img", 40_000));
        for number in 0..40u64 {
            population.add(source(&format!("a{number}.e{number}"), 100 * (number + 1)));
            population.add(source(&format!("b{number}.txt"), 500));
        }
        let strata = Strata::of(&population);
        let all: u64 = strata.list.iter().map(|stratum| stratum.blocks).sum();
        assert_eq!(all, population.blocks_of_all);
        let super::super::population::Draws { list: draws, end } = population.take_draws();
        let mut hits = vec![0.0; strata.list.len()];
        draws.iter().for_each(|draw| hits[strata.of_draw(draw) as usize] += 1.0);
        for (stratum, hits) in strata.list.iter().zip(hits) {
            let expected = stratum.blocks as f64 * end;
            assert!((hits - expected).abs() < 4.5 * expected.sqrt(), "{stratum:?} {hits}");
        }
        assert_eq!(strata.list.iter().filter(|s| s.name.starts_with("disk.img")).count(), 4);
        assert!(strata.list.iter().any(|stratum| stratum.name == ".txt"));
        assert!(strata.list.last().unwrap().blocks > 0, "sixteen extensions are too many");
    }

    #[test]
    fn strata_narrow_the_interval() {
        let strata = [("a", 3), ("b", 1)];
        let strata = strata.map(|(name, blocks)| Stratum { name: name.into(), blocks });
        let blind = [Stratum { name: "all".into(), blocks: 4 }];
        let widths = [&strata[..], &blind[..]].map(|strata| {
            let mut mean = Adjusted::new(strata, 0.95, Plan::Aim(0.02));
            let mut draws = random(5);
            for _ in 0..1000 {
                let stratum = u32::from(draws.random::<f64>() >= 0.75);
                let noise = 0.02 * (draws.random::<f64>() - 0.5);
                mean.push(stratum, [0.2, 0.9][stratum as usize] + noise);
            }
            let MeanInterval { mean, low, high } = mean.estimate();
            assert!(low <= 0.375 && 0.375 <= high, "{low} {high}");
            if strata.len() == 2 {
                assert!((mean - 0.375).abs() < 0.002, "{mean}");
            }
            high - low
        });
        assert!(widths[0] < 0.6 * widths[1], "{widths:?}");
    }
}
