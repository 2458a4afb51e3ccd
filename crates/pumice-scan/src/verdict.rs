//! What the data means for drives: speed, write amplification and life, with compression and
//! without, and how sure that is.
//!
//! A drive is simulated with the data as it was measured and with both ends of its interval: what
//! every block stores is taken in proportion. The same drive without compression does not look at
//! data, and is simulated once. Random writes of 4 KiB over the whole drive, until
//! it is steady: what is hardest for flash, so that what compression is worth shows. The drive is
//! scaled down; see `docs/forecast.md` for what that changes.

use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::outcome::{Estimate, Outcome};
use pumice_bench::forecast::{
    Asked, Data, Figures, ForecastOptions, Scenario, Source, Watch, forecasts, spec_of,
};
use pumice_bench::payload::Saving;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::codec::Codec;
use pumice_drive::controller::OVER_PROVISIONING_PERCENT_DEFAULT;
use pumice_sim::formula;
use pumice_sim::profile::Profile;

/// Bytes of the drives that are simulated.
const SCALED_BYTES: u64 = 1 << 30;

/// Shares saved above which compression is called worth it, and below which it is not: a quarter
/// of a drive, and what the headers of a log take.
const WORTH: f64 = 0.25;
const WORTHLESS: f64 = 0.05;

/// A number and what it is at the ends of the interval, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// As measured.
    pub is: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Range {
    /// Of what was measured, and what else it may be.
    pub(super) fn of(is: f64, others: &[f64]) -> Self {
        let low = others.iter().copied().fold(is, f64::min);
        let high = others.iter().copied().fold(is, f64::max);
        Self { is, low, high }
    }
}

/// What a drive would do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// Random writes of 4 KiB, steady, in MB/s.
    pub mb_per_s: Range,
    /// Bytes programmed for each of the host.
    pub write_amplification: Range,
    /// TB that the host can write.
    pub endurance_tb: Option<Range>,
    /// Years at what is written a day.
    pub years: Option<Range>,
}

/// A drive and what it would do with the data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drive {
    /// Id of the profile.
    pub profile: String,
    /// Its name.
    pub name: String,
    /// As it is.
    pub drive: Expected,
    /// Without compression; nothing if it does not compress anyway.
    pub uncompressed: Option<Expected>,
    /// The answer to "is this drive for me?".
    pub verdict: String,
}

/// Simulates drives under the data; nothing if `stop` was set.
///
/// # Errors
/// A profile is unknown, or of a kind that cannot be simulated so; no block was measured.
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
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let options = ForecastOptions {
        bytes_per_day,
        scaled_bytes: Some(SCALED_BYTES),
        ..ForecastOptions::default()
    };
    let mut ends = vec![measured.stored, measured.stored_low, measured.stored_high];
    // What was read whole has one end only, and the rest is nothing to a drive that does not
    // compress.
    ends.dedup();
    if profile.controller.codec() == Codec::None {
        ends.truncate(1);
    }
    let all: Vec<Data> = ends.into_iter().map(|stored| at(savings, stored)).collect();
    let asked = Asked::default();
    let size_bytes = spec_of(profile, &all[0], &options)?.size_bytes();
    let (source, _) = Source::find("random-write", &asked)?;
    let cases = source.cases(size_bytes, &asked)?;
    let scenario = Scenario { profile, cases: &cases, options: &options };
    let Some(made) = forecasts(scenario, &all, watch, stop)? else {
        return Ok(None);
    };
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

/// The configuration that is most like a drive's codec in blocks of 4 KiB, by its number.
fn best_match(outcome: &Outcome, codec: Codec) -> (usize, &Estimate) {
    let is_zstd = |codec| matches!(codec, Codec::Zstd { .. });
    let distance = |number: &usize| {
        let config = &outcome.configs[*number].config;
        let other_kind = is_zstd(config.codec) != is_zstd(codec);
        (config.codec == Codec::None, other_kind, config.codec != codec, config.chunk_bytes)
    };
    let index = (0..outcome.configs.len()).min_by_key(distance).unwrap_or(outcome.main);
    (index, &outcome.configs[index].drive)
}

/// The savings of blocks, moved so that this fraction of all is stored.
fn at(savings: &[Saving], stored: f64) -> Data {
    let mean =
        savings.iter().map(|saving| saving.stored_fraction()).sum::<f64>() / savings.len() as f64;
    let factor = if mean > 0.0 { stored / mean } else { 1.0 };
    let moved =
        savings.iter().map(|saving| Saving::from_fraction(1.0 - factor * saving.stored_fraction()));
    Data::of_savings("what was scanned".to_owned(), moved.collect())
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
        return "This drive does not compress: what the data is makes no difference to it.".into();
    };
    let faster = drive.mb_per_s.is / plain.mb_per_s.is;
    let longer = plain.write_amplification.is / drive.write_amplification.is;
    format!(
        "{} Against the same drive without compression it writes at random {faster:.1} times as \
         fast, and its flash lasts {longer:.1} times as long.",
        worth(outcome)
    )
}

/// Whether compression is worth it for the data, in a sentence.
fn worth(outcome: &Outcome) -> String {
    let saved = outcome.main().drive.saved;
    let (percent, points) = (saved.percent(), outcome.main().drive.error_points());
    let sure = match outcome.is_exact {
        true => format!("{percent:.1} %"),
        false => format!("{percent:.1} % (within {points:.1} points)"),
    };
    let cause = outcome.formats_percent.first().filter(|(_, share)| *share > 10.0);
    let cause = cause.map_or(String::new(), |(name, share)| {
        format!(" {share:.0} % of the bytes is {name}, which is compressed already.")
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

/// What a Pumice drive would make of the data, in one paragraph.
pub(super) fn pumice(outcome: &Outcome) -> String {
    let estimate = outcome.main().drive;
    let overhead = 1.0 + super::chunks::LOG_OVERHEAD;
    let [is, low, high] = [estimate.stored, estimate.stored_low, estimate.stored_high]
        .map(|stored| stored * overhead);
    let held = |stored: f64| 1.0 / stored.max(1e-3);
    let spare = 1.0 + f64::from(OVER_PROVISIONING_PERCENT_DEFAULT) / 100.0;
    // A full drive whose log is as large as that of one without compression.
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
        &format!(" Each TB that the medium is rated for takes {:.2} TB of the host so.", held(is));
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
            " One thread compresses {mb_per_s:.0} MB/s here: a medium that takes less than {:.0} \
             MB/s becomes faster by it, a faster one waits for the codec.",
            mb_per_s * is
        );
    }
    text
}
