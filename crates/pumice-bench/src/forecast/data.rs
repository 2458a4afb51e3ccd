//! The stored fraction of data: one value for all blocks, or a distribution represented by its
//! quantiles.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::payload::{Kind, KindName, Saving};
use pumice_drive::codec::Codec;
use pumice_sim::ftl::StoredSizes;

/// Number of quantiles of a distribution. A larger number changes the mean by less than a
/// thousandth.
const QUANTILES: usize = 1024;

/// Minimum stored fraction of a block: one byte of 4 KiB. The drive determines the fraction that it
/// actually stores.
const STORED_LEAST: f64 = 1.0 / 4096.0;

/// The data that the host writes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Data {
    /// Name.
    pub name: String,
    /// Mean saving in 4 KiB blocks, before the drive's minimum.
    #[serde(flatten)]
    pub saved: Saving,
    /// Stored fractions in ascending order; empty if all blocks have the same fraction.
    #[serde(skip)]
    fractions: Vec<f64>,
}

impl Data {
    /// Returns incompressible data.
    pub fn none() -> Self {
        Self::saved(Saving::NONE)
    }

    /// Returns data with the same saving in every block.
    pub fn saved(saved: Saving) -> Self {
        Self { name: format!("{} % saved", saved.percent()), saved, fractions: Vec::new() }
    }

    /// Measures the data of a file, of all files below a folder, or of a saved profile: the codec's
    /// savings in 4 KiB blocks, in 128 MiB sampled at even distances if there is more. For a slower
    /// zstd, the saving of zstd:1 is used.
    ///
    /// # Errors
    /// The path cannot be read, or contains less than 64 KiB.
    pub fn of_path(path: &Path, codec: Codec) -> Result<Self> {
        let name = KindName::Like(PathBuf::from(path));
        let Kind::Like(profile) = name.load(None)? else {
            return Err(Error::invalid("the profile of the data is empty"));
        };
        Ok(Self::of_savings(path.display().to_string(), profile.unit_savings(codec)))
    }

    /// Returns data whose 4 KiB blocks have these savings with equal probability.
    pub fn of_savings(name: String, savings: Vec<Saving>) -> Self {
        let mut all: Vec<f64> = savings.iter().map(|saving| saving.stored_fraction()).collect();
        all.sort_by(f64::total_cmp);
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        let count = all.len().min(QUANTILES);
        // The midpoint of each part.
        let quantile = |number: usize| all[(2 * number + 1) * all.len() / (2 * count)];
        let fractions = (0..count).map(|number| quantile(number).clamp(STORED_LEAST, 1.0));
        Self { name, saved: Saving::from_fraction(1.0 - mean), fractions: fractions.collect() }
    }

    /// Returns the quantiles in ascending order; empty if all blocks have the same fraction.
    pub(super) fn fractions(&self) -> &[f64] {
        &self.fractions
    }

    /// Returns the mean stored fraction of a block, which is at least one byte.
    pub(super) fn stored_fraction(&self) -> f64 {
        self.saved.stored_fraction().max(STORED_LEAST)
    }

    /// Returns the stored fractions for a drive, assigned to blocks by the seed.
    pub(super) fn sizes(&self, seed: u64) -> StoredSizes {
        match self.fractions() {
            [] => StoredSizes::Constant(self.stored_fraction()),
            fractions => StoredSizes::Table { fractions: fractions.to_vec(), seed },
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a distribution has the mean and the spread of the measured data. Method: savings
    //! chosen by hand, and files with a known compressible half.

    use std::fs;

    use super::*;

    #[test]
    fn quantiles_are_spread_like_the_data() {
        let savings = (0..10_000).map(|number| Saving::from_fraction(f64::from(number) / 1e4));
        let data = Data::of_savings("x".into(), savings.collect());
        assert_eq!(data.fractions().len(), QUANTILES);
        assert!((data.saved.fraction() - 0.5).abs() < 1e-3);
        assert!(data.fractions().is_sorted() && data.fractions()[512] > 0.49);
        assert!((data.fractions()[102] - 0.1).abs() < 2e-3, "{}", data.fractions()[102]);
        let few = Data::of_savings("x".into(), vec![Saving::NONE, Saving::from_fraction(1.0)]);
        assert_eq!(few.fractions(), [STORED_LEAST, 1.0]);
        assert_eq!(Data::none().stored_fraction(), 1.0);
        assert!(Data::saved(Saving::from_fraction(1.0)).stored_fraction() > 0.0);
    }

    #[test]
    fn a_folder_is_measured_with_the_drives_codec() {
        let folder = tempfile::tempdir().unwrap();
        let mut noise = vec![0; 1 << 20];
        rand::Rng::fill_bytes(&mut pumice_drive::base::seed::random(1), &mut noise);
        fs::write(folder.path().join("noise"), &noise).unwrap();
        let text: Vec<u8> =
            (0..1 << 20).map(|at: u32| b"abcdefgh"[(at / 512 % 8) as usize]).collect();
        fs::write(folder.path().join("text"), &text).unwrap();
        let data = Data::of_path(folder.path(), Codec::Lz4).unwrap();
        assert!((0.49..0.5).contains(&data.saved.fraction()), "{}", data.saved);
        let zstd = Data::of_path(folder.path(), Codec::Zstd { level: 3 }).unwrap();
        assert!(zstd.saved.fraction() < 0.5 && zstd.saved != data.saved, "{}", zstd.saved);
        assert!(Data::of_path(&folder.path().join("nothing"), Codec::Lz4).is_err());
    }
}
