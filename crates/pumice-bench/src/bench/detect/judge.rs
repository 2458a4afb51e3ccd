//! Draws conclusions from the readings. Pure functions without I/O.
//!
//! ```text
//! an account of space is usable   incompressible data takes its full space, about the same in
//!                                 each run
//! it shows a saving               every run of that data took less than any incompressible one,
//!                                 by more than runs of the same data differ, and at least 5 % less
//!                                 on median
//! speed shows a difference        significant among all comparisons, and faster by over 10 %
//!
//! a shown saving -> yes; speed alone -> perhaps; usable and no saving shown -> no;
//! nothing usable -> unknown
//! ```

use super::data::Data;
use super::{
    Account, Amount, Answer, Class, Detection, Operation, Speed, Strength, Sweep, SweepStep, Zeroes,
};
use crate::stats::{Better, Comparison, Design, Pair, Verdict, compare};

/// Limits for the space of incompressible data, as a multiple of its bytes: each reading must be
/// nearly the whole amount, and the median must not be large enough to suspect other writers. The
/// limits allow for metadata, even if it is written twice. Arbitrary within those bounds.
const LEAST_TAKEN: f64 = 0.9;
const MOST_TAKEN: f64 = 1.5;

/// Largest difference between runs of incompressible data, as a share of their bytes. A larger one
/// would hide a saving of 50 %. Arbitrary within that bound.
const SPREAD_MAX: f64 = 0.25;

/// Minimum saving that counts. It is above the granularity of a file system's blocks.
const SAVED_MIN: f64 = 0.05;

/// Minimum speed ratio that counts.
pub(super) const RATIO_MIN: f64 = 1.10;

/// Zeroes that take less than this share of their size are not stored at all. The best common file
/// systems store 4 KiB for 128 KiB of zeroes, which is 3 %.
const ZEROES_LEFT_OUT: f64 = 0.01;

/// Minimum share of the possible saving for a level to count as saved.
const SWEEP_SHARE: f64 = 0.5;

/// Minimum share of the space that repeats must save; the maximum is half.
const REPEATS_SHARE: f64 = 0.2;

/// Growth of one source with one kind of data.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) data: Data,
    /// Growth in bytes, one number per run.
    pub(super) bytes: Vec<i64>,
}

/// Speeds of one operation with one kind of data.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    pub(super) data: Data,
    pub(super) operation: Operation,
    /// 10^6 bytes per second, one number per run.
    pub(super) rates: Vec<f64>,
}

/// One run of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepReading {
    /// Saving in percent, or distance between repeats in bytes.
    pub(super) value: f64,
    pub(super) taken_bytes: i64,
}

/// Judges the readings of one usage source. The readings of incompressible data must be first.
/// `hindrance` is a reason, known in advance, why the source is unusable.
pub(super) fn account(
    name: &str,
    class: Class,
    span_bytes: u64,
    readings: &[Reading],
    hindrance: Option<&str>,
) -> Account {
    let base = readings.first().map_or(&[][..], |reading| reading.bytes.as_slice());
    let unusable = hindrance.map(str::to_owned).or_else(|| unusable(base, span_bytes));
    let base_median = median(base);
    let amounts: Vec<Amount> = readings
        .iter()
        .map(|Reading { data, bytes }| {
            let saved = (base_median > 0.0).then(|| 1.0 - median(bytes) / base_median);
            let shown = unusable.is_none() && is_apart(bytes, base) && saved >= Some(SAVED_MIN);
            Amount { data: *data, bytes: bytes.clone(), saved, shown }
        })
        .collect();
    let strength = match unusable {
        Some(_) => Strength::Unusable,
        None if amounts.iter().any(|amount| amount.shown) => Strength::Sure,
        None => Strength::Nothing,
    };
    Account { name: name.to_owned(), class, strength, unusable, amounts }
}

/// Returns whether the gap between `less` and `more` is wider than the spread of either. If both
/// sets of six readings have the same distribution, one pair in 924 does not overlap. One pair in
/// 80,000 is apart for a uniform distribution, and fewer for a normal or exponential one (1.5
/// million pairs of each).
fn is_apart(less: &[i64], more: &[i64]) -> bool {
    let ends = |values: &[i64]| Some((*values.iter().min()?, *values.iter().max()?));
    let (Some(less), Some(more)) = (ends(less), ends(more)) else { return false };
    more.0 - less.1 > (less.1 - less.0).max(more.1 - more.0)
}

fn unusable(base: &[i64], span_bytes: u64) -> Option<String> {
    let share = |bytes: &i64| *bytes as f64 / span_bytes as f64;
    let (least, most) = (base.iter().min().map(share)?, base.iter().max().map(share)?);
    let middle = median(base) / span_bytes as f64;
    if least < LEAST_TAKEN {
        return Some(format!(
            "incompressible data seemed to take only {least:.2} of its bytes: this number does not \
             follow the data written, or other programs free space at the same time"
        ));
    }
    if middle > MOST_TAKEN {
        let what = "times its bytes: there are other writers";
        return Some(format!("incompressible data took {middle:.1} {what}"));
    }
    (most - least > SPREAD_MAX).then(|| {
        format!(
            "incompressible data took {least:.2} to {most:.2} times its bytes: there are other \
             writers"
        )
    })
}

fn median(values: &[i64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2] as f64,
        len => (sorted[len / 2 - 1] as f64 + sorted[len / 2] as f64) / 2.0,
    }
}

/// Compares the speed of each kind of data with the speed of incompressible data.
pub(super) fn speeds(rates: &[Rates], seed: u64) -> Vec<Speed> {
    let is_base = |of: &Rates| of.data == Data::Incompressible;
    let base =
        |of: &Rates| rates.iter().find(|base| is_base(base) && base.operation == of.operation);
    let others = rates.iter().filter(|of| !is_base(of));
    let pairs: Vec<_> = others.filter_map(|of| Some((base(of)?, of))).collect();
    let cells: Vec<_> = pairs.iter().map(|(base, of)| Pair::of(&base.rates, &of.rates)).collect();
    let compared = compare(&cells, Design::Turns, Better::Higher, 1, seed);
    let speed = |((base, of), comparison): ((&Rates, &Rates), Option<Comparison>)| {
        let comparison = comparison?;
        Some(Speed {
            data: of.data,
            operation: of.operation,
            base_rates: base.rates.clone(),
            rates: of.rates.clone(),
            comparison,
            counts: comparison.verdict == Verdict::Faster && comparison.ratio > RATIO_MIN,
        })
    };
    pairs.into_iter().zip(compared).filter_map(speed).collect()
}

/// Returns whether data of this kind is compressible.
pub(super) fn is_compressible(data: Data) -> bool {
    matches!(data, Data::Saving(percent) if percent > 0.0)
}

/// Returns the account with the clearest compression: usage is preferred over counters, then the
/// largest saving wins.
pub(super) fn best(accounts: &[Account]) -> Option<usize> {
    let saving = |account: &Account| {
        let shown = account.amounts.iter().filter(|one| one.shown && is_compressible(one.data));
        shown.filter_map(|one| one.saved).reduce(f64::max)
    };
    let order = |index: &usize| {
        let account = &accounts[*index];
        (account.class == Class::Usage, saving(account).unwrap_or(0.0))
    };
    let showing = (0..accounts.len()).filter(|index| saving(&accounts[*index]).is_some());
    showing.max_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal))
}

/// Returns the conclusion from all evidence.
pub(super) fn answer(accounts: &[Account], speeds: &[Speed]) -> Answer {
    let shows = |wanted: fn(Data) -> bool| {
        let amounts = accounts.iter().flat_map(|account| &account.amounts);
        amounts.into_iter().any(|amount| amount.shown && wanted(amount.data))
    };
    let (compresses, deduplicates) =
        (shows(is_compressible), shows(|data| data == Data::Duplicates));
    match (compresses, deduplicates) {
        (true, true) => Answer::Both,
        (true, false) => Answer::Compresses,
        (false, true) => Answer::Deduplicates,
        (false, false) if faster(speeds, |data| data != Data::Zeroes) => Answer::CannotTell,
        (false, false) if accounts.iter().any(Account::is_usable) => Answer::ShowsNone,
        (false, false) => Answer::CannotTell,
    }
}

/// Returns whether any data selected by `wanted` was significantly faster than incompressible data.
pub(super) fn faster(speeds: &[Speed], wanted: fn(Data) -> bool) -> bool {
    speeds.iter().any(|speed| speed.counts && wanted(speed.data))
}

/// Returns how zeroes are stored. `listed` is the result from a block list, if one is available.
pub(super) fn zeroes(accounts: &[Account], listed: Option<Zeroes>) -> Zeroes {
    let usable = accounts.iter().filter(|account| account.is_usable());
    let of_zeroes = usable.flat_map(|account| &account.amounts);
    // A saving without evidence may be caused by other writers.
    let taken = of_zeroes.filter(|amount| amount.data == Data::Zeroes).filter_map(|amount| {
        amount.saved.map(|saved| if amount.shown { 1.0 - saved } else { 1.0 })
    });
    match taken.reduce(f64::min) {
        None => Zeroes::Unknown,
        Some(1.0) => Zeroes::Stored,
        Some(taken) if taken > ZEROES_LEFT_OUT => Zeroes::Compressed,
        Some(_) => listed.unwrap_or(Zeroes::LeftOut),
    }
}

/// Returns the smallest saving that reduces used space. The steps are savings in percent, in
/// ascending order; the first has no saving.
pub(super) fn threshold(source: &str, steps: &[SweepReading]) -> Sweep {
    sweep(
        source,
        steps,
        |percent| percent > 0.0,
        |percent, saved| saved >= percent / 100.0 * SWEEP_SHARE,
        f64::min,
    )
}

/// Returns the largest distance in bytes at which repeats were saved. The first step has no repeats
/// (0).
pub(super) fn reach(source: &str, steps: &[SweepReading]) -> Sweep {
    sweep(source, steps, |bytes| bytes > 0.0, |_, saved| saved >= REPEATS_SHARE, f64::max)
}

impl Detection {
    /// Adds remarks about the circumstances of the detection.
    pub(super) fn remark(&mut self) {
        let fact = |name: &str| self.environment.iter().find(|(one, _)| one == name);
        let mounted = fact("file system").map_or("", |(_, value)| value.as_str());
        if self.direct && mounted.starts_with("btrfs") {
            self.remarks.push(
                "btrfs does not compress direct writes: repeat the detection without --direct."
                    .into(),
            );
        }
        let uneven = |sweep: &Option<Sweep>, rises| {
            sweep.as_ref().is_some_and(|sweep| is_uneven(sweep, rises))
        };
        if uneven(&self.threshold, true) || uneven(&self.reach, false) {
            self.remarks.push(
                "The savings of the threshold or unit rise and fall: other programs may have been \
                 writing; repeat the detection."
                    .into(),
            );
        }
        let is_drive = self.accounts.iter().any(|account| account.name.starts_with("drive"));
        if is_drive {
            self.remarks.push("Reads may have been answered from the drive's own cache.".into());
        }
    }
}

/// Returns whether a sweep's savings both rise and fall. Other writers can cause this, because each
/// step has only one run. With `rises`, savings should rise from step to step; otherwise they
/// should fall from the second step on.
pub(super) fn is_uneven(sweep: &Sweep, rises: bool) -> bool {
    let steps = if rises { &sweep.steps[..] } else { sweep.steps.get(1..).unwrap_or_default() };
    let falls = |pair: &[SweepStep]| pair[0].saved - pair[1].saved > SAVED_MIN;
    let climbs = |pair: &[SweepStep]| pair[1].saved - pair[0].saved > SAVED_MIN;
    if rises { steps.windows(2).any(falls) } else { steps.windows(2).any(climbs) }
}

fn sweep(
    source: &str,
    steps: &[SweepReading],
    counts: fn(f64) -> bool,
    is_saved: fn(f64, f64) -> bool,
    choose: fn(f64, f64) -> f64,
) -> Sweep {
    let base = steps.first().map_or(0, |step| step.taken_bytes) as f64;
    let judged = steps.iter().map(|&SweepReading { value, taken_bytes }| {
        let saved = if base > 0.0 { 1.0 - taken_bytes as f64 / base } else { 0.0 };
        let is_saved = counts(value) && is_saved(value, saved);
        SweepStep { value, taken_bytes, saved, is_saved }
    });
    let steps: Vec<SweepStep> = judged.collect();
    let limit = steps.iter().filter(|step| step.is_saved).map(|step| step.value).reduce(choose);
    Sweep { usage_source: source.to_owned(), steps, limit }
}
