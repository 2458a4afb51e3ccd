//! The consequences of the data for drives: speed, write amplification and lifetime, with and
//! without compression, and the uncertainty of each.
//!
//! A drive is simulated with the measured data and with both ends of its interval, by scaling the
//! stored size of every block. The drive without compression does not depend on the data, and is
//! simulated only once. The workload is random 4 KiB writes over the whole drive until it is
//! steady, which is the hardest workload for flash and shows the effect of compression. The drive
//! is scaled down; see `docs/forecast.md` for the effects.

use std::sync::atomic::AtomicBool;

use schemars::JsonSchema;
use serde::Serialize;

use super::outcome::{Estimate, Outcome};
use super::{Error, Result};
use pumice_bench::forecast::{
    Asked, Data, Figures, ForecastOptions, Scenario, Source, Spec, Watch, forecasts,
};
use pumice_bench::payload::Saving;
use pumice_drive::codec::Codec;
use pumice_drive::controller::OVER_PROVISIONING_PERCENT_DEFAULT;
use pumice_sim::formula;
use pumice_sim::profile::Profile;

/// Size of the simulated drives in bytes.
const SCALED_BYTES: u64 = 1 << 30;

/// Saved share above which compression is described as worthwhile, and below which it is not: a
/// quarter of a drive, and the overhead of a log's headers.
const WORTH: f64 = 0.25;
const WORTHLESS: f64 = 0.05;

/// A number, and its values at the ends of the interval, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Range {
    /// Value for the measured data.
    pub is: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Range {
    /// Creates the range of a measured value and its other possible values.
    pub(super) fn of(is: f64, others: &[f64]) -> Self {
        let low = others.iter().copied().fold(is, f64::min);
        let high = others.iter().copied().fold(is, f64::max);
        Self { is, low, high }
    }
}

/// The expected behaviour of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Expected {
    /// Random 4 KiB writes in steady state, in MB/s.
    pub mb_per_s: Range,
    /// Programmed bytes divided by host bytes.
    pub write_amplification: Range,
    /// TB that the host can write before the flash is worn out.
    pub endurance_tb: Option<Range>,
    /// Years until the flash is worn out, for the given daily writes.
    pub years: Option<Range>,
}

/// A drive, and its expected behaviour with the data.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Drive {
    /// Id of the drive's profile.
    pub profile: String,
    /// Name of the drive's profile.
    pub name: String,
    /// The drive with its codec, if it has one.
    pub drive: Expected,
    /// The drive without compression; `None` if the drive does not compress.
    pub uncompressed: Option<Expected>,
    /// The answer to "is this drive for me?".
    pub verdict: String,
}

/// Simulates drives with the data; `None` if `stop` was set.
///
/// # Errors
/// A profile is unknown or cannot be simulated, or no block was measured.
pub fn verdicts(
    outcome: &Outcome,
    profiles: &[String],
    bytes_per_day: Option<f64>,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Vec<Drive>>> {
    let mut drives = Vec::new();
    for name in profiles {
        let profile = Profile::find(name)?;
        match drive(outcome, &profile, bytes_per_day, watch, stop)? {
            Some(drive) => drives.push(drive),
            None => return Ok(None),
        }
    }
    Ok(Some(drives))
}

fn drive(
    outcome: &Outcome,
    profile: &Profile,
    bytes_per_day: Option<f64>,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Drive>> {
    let (index, measured) = best_match(outcome, profile.controller.codec());
    let savings = &outcome.quantiles[index];
    if savings.is_empty() {
        let what = "no block was measured: there is nothing to forecast";
        return Err(Error::InvalidInput(what.into()));
    }
    let options = ForecastOptions {
        bytes_per_day,
        scaled_bytes: Some(SCALED_BYTES),
        ..ForecastOptions::default()
    };
    let mut ends = vec![measured.stored, measured.stored_low, measured.stored_high];
    // Data that was read completely has only one end. A drive that does not compress is independent
    // of the data.
    ends.dedup();
    if profile.controller.codec() == Codec::None {
        ends.truncate(1);
    }
    let all: Vec<Data> = ends.into_iter().map(|stored| at(savings, stored)).collect();
    let asked = Asked::default();
    let size_bytes = Spec::of(profile, &all[0], &options)?.size_bytes();
    let (source, _) = Source::find("random-write", &asked)?;
    let cases = source.cases(size_bytes, &asked)?;
    let scenario = Scenario { profile, cases: &cases, options: &options };
    let made = forecasts(scenario, &all, watch, stop)?;
    let Some(made) = made else { return Ok(None) };
    let tests: Vec<_> = made.iter().filter_map(|made| made.tests.first()).collect();
    let drive = expected(&tests.iter().map(|test| &test.drive).collect::<Vec<_>>());
    let plain = tests.first().and_then(|test| test.uncompressed.as_ref());
    let uncompressed = plain.map(|plain| expected(&[plain]));
    Ok(Some(Drive {
        profile: profile.id.clone(),
        name: profile.name.clone(),
        verdict: words(outcome, &drive, uncompressed.as_ref()),
        drive,
        uncompressed,
    }))
}

/// Returns the index of the configuration that is most similar to a drive's codec in 4 KiB blocks.
fn best_match(outcome: &Outcome, codec: Codec) -> (usize, &Estimate) {
    let is_zstd = |codec| matches!(codec, Codec::Zstd { .. });
    let distance = |number: &usize| {
        let config = &outcome.configs[*number].config;
        // liblz4 is most similar to a drive's LZ4.
        let measured = config.codec.of_drive().unwrap_or(Codec::Lz4);
        let other_kind = is_zstd(measured) != is_zstd(codec);
        let is_other = config.codec != codec.into();
        (measured == Codec::None, other_kind, is_other, config.chunk_bytes)
    };
    let index = (0..outcome.configs.len()).min_by_key(distance).unwrap_or(outcome.main);
    (index, &outcome.configs[index].drive)
}

/// Returns the savings of the blocks, scaled to this stored fraction of all data.
fn at(savings: &[Saving], stored: f64) -> Data {
    let mean =
        savings.iter().map(|saving| saving.stored_fraction()).sum::<f64>() / savings.len() as f64;
    let factor = if mean > 0.0 { stored / mean } else { 1.0 };
    let moved =
        savings.iter().map(|saving| Saving::from_fraction(1.0 - factor * saving.stored_fraction()));
    Data::of_savings("scanned data".to_owned(), moved.collect())
}

fn expected(figures: &[&Figures]) -> Expected {
    let range = |of: &dyn Fn(&Figures) -> Option<f64>| {
        let all: Option<Vec<f64>> = figures.iter().map(|figures| of(figures)).collect();
        all.and_then(|all| Some(Range::of(*all.first()?, &all)))
    };
    let none = Range { is: 0.0, low: 0.0, high: 0.0 };
    Expected {
        mb_per_s: range(&|it| Some(it.writes.mb_per_s)).unwrap_or(none),
        write_amplification: range(&|it| it.write_amplification.map(|all| all.all)).unwrap_or(none),
        endurance_tb: range(&|it| it.endurance.map(|it| it.host_bytes / 1e12)),
        years: range(&|it| it.endurance.and_then(|it| it.years)),
    }
}

fn words(outcome: &Outcome, drive: &Expected, plain: Option<&Expected>) -> String {
    let Some(plain) = plain else {
        return "This drive does not compress: its behaviour does not depend on the data.".into();
    };
    let faster = drive.mb_per_s.is / plain.mb_per_s.is;
    let longer = plain.write_amplification.is / drive.write_amplification.is;
    format!(
        "{} Against the same drive without compression it writes at random {faster:.1} times as \
         fast, and its flash lasts {longer:.1} times as long.",
        worth(outcome)
    )
}

/// States in a sentence whether compression is worthwhile for the data.
fn worth(outcome: &Outcome) -> String {
    let saved = outcome.main().drive.saved;
    let (percent, points) = (saved.percent(), outcome.main().drive.error_points());
    if !outcome.is_known() {
        return unknown(outcome);
    }
    let sure = if outcome.is_exact {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.1} % (within {points:.1} points)")
    };
    let cause = outcome.formats_percent.first().filter(|(_, share)| *share > 10.0);
    let cause = cause.map_or(String::new(), |(name, share)| {
        format!(" {share:.0} % of the bytes is {name}, which is already compressed.")
    });
    match saved.fraction() {
        share if share >= WORTH => {
            format!("Yes: compression saves {sure} of this data.{cause}")
        }
        share if share >= WORTHLESS => {
            format!("A little: compression saves {sure} of this data.{cause}")
        }
        _ => format!("No: compression saves only {sure} of this data.{cause}"),
    }
}

/// Returns the statement about an interrupted scan.
fn unknown(outcome: &Outcome) -> String {
    if outcome.bytes_read == 0 {
        return "Nothing was measured before the interruption.".to_owned();
    }
    format!(
        "Of the {:.1} % of the data that were read before the interruption, compression saves \
         {:.1} %. The rest is unknown: the data read first is not a random sample. Without --all, \
         an interrupted scan still has a valid interval.",
        outcome.covered_percent,
        outcome.main().drive.saved.percent()
    )
}

/// Describes the effect on a Pumice drive in a paragraph.
pub(super) fn pumice(outcome: &Outcome) -> String {
    if !outcome.is_known() {
        return worth(outcome);
    }
    let estimate = outcome.main().drive;
    let [is, low, high] = [estimate.stored, estimate.stored_low, estimate.stored_high]
        .map(|stored| stored + super::chunks::LOG_OVERHEAD);
    let held = |stored: f64| 1.0 / stored.max(1e-3);
    let spare = 1.0 + f64::from(OVER_PROVISIONING_PERCENT_DEFAULT) / 100.0;
    // A full drive whose log has the same size as without compression.
    let amplified = |stored: f64| formula::first_order(spare, 1.0, stored.min(1.0));
    let mut text = format!(
        "{} A Pumice drive with {} would write {is:.3} bytes to its medium for each byte written \
         in order ({low:.3} to {high:.3}), and hold {:.2} times as much ({:.2} to {:.2}).",
        worth(outcome),
        outcome.main().config,
        held(is),
        held(high),
        held(low),
    );
    text +=
        &format!(" Each TB that the medium is rated for stores {:.2} TB of the host.", held(is));
    text += &format!(
        " Filled to its size with {OVER_PROVISIONING_PERCENT_DEFAULT} % over-provisioning and \
         overwritten at random, {:.2} bytes for each byte by formula ({:.2} to {:.2}), {:.2} \
         without compression.",
        amplified(is),
        amplified(low),
        amplified(high),
        amplified(1.0)
    );
    if let Some(mb_per_s) = outcome.main().mb_per_s {
        text += &format!(
            " One thread compresses {mb_per_s:.0} MB/s here: a medium slower than {:.0} MB/s \
             becomes faster, a faster one waits for the codec.",
            mb_per_s * is
        );
    }
    text
}
