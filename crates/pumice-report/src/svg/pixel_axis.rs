//! Maps numbers to pixels on an axis: range, scale, round ticks and their labels.
//!
//! The axis is independent of the direction: the caller specifies the pixels of both ends.

use super::super::Scale;
use super::super::number::grouped;

/// Larger numbers are replaced by this value, so that sums stay finite.
const VALUE_MAX: f64 = 1e300;

/// Maximum number of nines for percentiles.
const NINES_MAX: f64 = 9.0;

/// The placement of an axis's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// At ticks; a linear axis includes zero. For heights.
    Ticks,
    /// At the first and the last number. For sequences.
    Data,
}

/// An axis between two pixels.
#[derive(Clone, Debug)]
pub(super) struct PixelAxis {
    scale: Scale,
    /// Ends of the axis, in units of `unit_of`; `low < high`.
    low: f64,
    high: f64,
    from_px: f64,
    to_px: f64,
    ticks: Vec<f64>,
}

impl PixelAxis {
    /// Returns an axis with about `ticks` ticks that shows all `values` that its scale can
    /// represent. A percentile axis always ends at the data.
    pub(super) fn new(scale: Scale, values: &[f64], ticks: usize, ends: Ends) -> Self {
        let with_zero = ends == Ends::Ticks;
        let with_ticks = with_zero && scale != Scale::Percentile;
        let shown = values.iter().copied().filter(|value| can_show(scale, *value));
        let shown = shown.chain((with_zero && scale == Scale::Linear).then_some(0.0));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value.max(-VALUE_MAX)), high.max(value.min(VALUE_MAX)))
        });
        let (low, high) = match (low > high, scale) {
            (false, _) => (low, high),
            // There are no values.
            (true, Scale::Log | Scale::Doubling) => (1.0, 10.0),
            (true, _) => (0.0, 1.0),
        };
        let ticks = match scale {
            Scale::Linear => linear_ticks(low, high, ticks),
            Scale::Log => log_ticks(low, high, ticks),
            Scale::Doubling => doubling_ticks(low, high, ticks),
            Scale::Percentile => percentile_ticks(low, high),
        };
        let (mut low, mut high) = (unit_of(scale, low), unit_of(scale, high));
        for end in ticks.first().into_iter().chain(ticks.last()).filter(|_| with_ticks) {
            (low, high) = (low.min(unit_of(scale, *end)), high.max(unit_of(scale, *end)));
        }
        if low == high {
            // The difference must exceed the rounding error of a large number.
            high = low + f64::max(1.0, low.abs() / 10.0);
        }
        let inside = |tick: &f64| {
            let margin = (high - low) * 1e-9;
            (low - margin..=high + margin).contains(&unit_of(scale, *tick))
        };
        let ticks = ticks.into_iter().filter(inside).collect();
        Self { scale, low, high, from_px: 0.0, to_px: 1.0, ticks }
    }

    /// Returns the axis placed between these pixels.
    pub(super) fn between(mut self, from_px: f64, to_px: f64) -> Self {
        (self.from_px, self.to_px) = (from_px, to_px);
        self
    }

    /// Returns the pixel position of a number, clamped to the ends of the axis.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = value.clamp(-VALUE_MAX, VALUE_MAX);
        let unit = if can_show(self.scale, value) {
            unit_of(self.scale, value)
        } else if value > 0.0 {
            self.high
        } else {
            self.low
        };
        let part = ((unit - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from_px + part * (self.to_px - self.from_px)
    }

    /// Returns the pixel position of the base of bars: zero, or the lower end.
    pub(super) fn floor(&self) -> f64 {
        match self.scale {
            Scale::Linear => self.at(0.0),
            Scale::Log | Scale::Doubling | Scale::Percentile => self.from_px,
        }
    }

    /// Returns whether the scale can represent this number.
    pub(super) fn shows(&self, value: f64) -> bool {
        can_show(self.scale, value)
    }

    /// Returns the ticks with their labels, in ascending order.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let step = self.ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::MAX, f64::min);
        let largest = self.ticks.iter().fold(0.0, |largest: f64, tick| largest.max(tick.abs()));
        let label = |tick: f64| match self.scale {
            Scale::Linear => tick_label(tick, largest, step),
            // Each label has its own suffix, in thousands from 10k upward. On a logarithmic axis,
            // plain numbers of similar length are easily confused.
            Scale::Doubling => tick_label(tick, largest.min(1e4), tick.min(1.0)),
            Scale::Log => tick_label(tick, if tick >= 1e4 { tick.max(1e5) } else { tick }, tick),
            Scale::Percentile => format!("{}", (tick * 1e9).round() / 1e9),
        };
        self.ticks.iter().map(|&tick| (tick, label(tick))).collect()
    }
}

/// Returns whether a scale can represent `value`.
fn can_show(scale: Scale, value: f64) -> bool {
    value.is_finite()
        && match scale {
            Scale::Linear => true,
            Scale::Log | Scale::Doubling => value >= f64::MIN_POSITIVE,
            Scale::Percentile => (0.0..100.0).contains(&value),
        }
}

/// Returns the quantity that is proportional to pixels.
fn unit_of(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log | Scale::Doubling => value.log10(),
        Scale::Percentile => (-(1.0 - value / 100.0).log10()).clamp(0.0, NINES_MAX),
    }
}

/// Returns multiples of 1, 2 or 5 times a power of ten that enclose the range from `low` to `high`.
fn linear_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let (low, high) =
        if low == high { (low.min(0.0), high.max(low.min(0.0) + 1.0)) } else { (low, high) };
    let rough = (high - low) / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power);
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    // Numbers whose difference is lost in rounding have no separate ticks.
    let steps = last - first;
    if !(1.0..=4.0 * count as f64 + 4.0).contains(&steps) {
        return vec![low, high];
    }
    (0..=steps as usize).map(|index| (first + index as f64) * step).collect()
}

/// Returns 1, 2 and 5 times powers of ten if about `count` of them are needed, otherwise powers of
/// ten.
fn log_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let decades = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let all = (decades.0 - 1..=decades.1)
        .flat_map(|decade| [1.0, 2.0, 5.0].map(|factor| factor * 10f64.powi(decade)));
    let all: Vec<f64> = all.filter(|tick| *tick > 0.0 && tick.is_finite()).collect();
    let first = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    let last = if last <= first { (first + 1).min(all.len() - 1) } else { last };
    if last - first <= count + 2 {
        return all[first..=last].to_vec();
    }
    // Labels of decades are shorter than other labels, so there may be twice as many.
    let every = ((decades.1 - decades.0) as usize).div_ceil(2 * count.max(1)).max(1);
    let powers = (decades.0..=decades.1).step_by(every).map(|decade| 10f64.powi(decade));
    powers.filter(|tick| *tick > 0.0 && tick.is_finite()).collect()
}

/// Returns powers of two; if more than about twice `count` would be needed, powers of four and so
/// on.
fn doubling_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
    let steps = usize::try_from(last - first).unwrap_or(0);
    let every = steps.div_ceil(2 * count.max(1)).max(1);
    let powers = (first..=last).step_by(every).map(f64::from).map(f64::exp2);
    powers.filter(|tick| *tick > 0.0 && tick.is_finite()).collect()
}

/// Returns 0, 50, 90, 99 and so on between `low` and `high`.
fn percentile_ticks(low: f64, high: f64) -> Vec<f64> {
    let nines = (1..=NINES_MAX as i32).map(|nines| 100.0 - 10f64.powi(2 - nines));
    let ticks = [0.0, 50.0].into_iter().chain(nines);
    ticks.filter(|tick| (low - 1e-9..=high + 1e-9).contains(tick)).collect()
}

/// Returns a tick's label with the decimals required by `step`, in thousands, millions and so on if
/// the `largest` tick is that large.
fn tick_label(tick: f64, largest: f64, step: f64) -> String {
    let (divisor, suffix) = match largest {
        ..1e-4 if largest > 0.0 => return format!("{tick:e}"),
        ..1e5 => (1.0, ""),
        ..1e6 => (1e3, "k"),
        ..1e9 => (1e6, "M"),
        ..1e12 => (1e9, "G"),
        ..1e15 => (1e12, "T"),
        _ => return format!("{tick:.1e}"),
    };
    let decimals = (-((step / divisor).log10() + 1e-9).floor()).clamp(0.0, 12.0) as usize;
    let text = grouped(&format!("{:.decimals$}", tick / divisor + 0.0));
    if tick == 0.0 { "0".to_owned() } else { format!("{text}{suffix}") }
}

#[cfg(test)]
mod tests {
    //! Goal: ticks are round, span the shown numbers, and are neither too many nor too few.
    use super::*;

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        let axis = PixelAxis::new(scale, values, 5, Ends::Ticks);
        axis.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        for (values, expected) in [
            (&[1712.9, 60.3][..], "0 500 1000 1500 2000"),
            (&[0.0], "0 0.2 0.4 0.6 0.8 1.0"),
            (&[-4.5, 38.0], "-10 0 10 20 30 40"),
            (&[0.031], "0 0.01 0.02 0.03 0.04"),
            (
                &[43_000.0],
                "0 10\u{2009}000 20\u{2009}000 30\u{2009}000 40\u{2009}000 50\u{2009}000",
            ),
            (&[412_000.0], "0 100k 200k 300k 400k 500k"),
            (&[f64::NAN, f64::INFINITY], "0 0.2 0.4 0.6 0.8 1.0"),
        ] {
            assert_eq!(labels(Scale::Linear, values).join(" "), expected, "{values:?}");
        }
        assert_eq!(labels(Scale::Log, &[48.0, 1970.0]).join(" "), "20 50 100 200 500 1000 2000");
        assert_eq!(labels(Scale::Log, &[3.0, 2e6, 9e6]).join(" "), "1 10 100 1000 10k 100k 1M 10M");
        let axis = PixelAxis::new(Scale::Doubling, &[1.0, 64.0], 5, Ends::Data);
        let marks: Vec<_> = axis.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(marks.join(" "), "1 2 4 8 16 32 64");
        assert_eq!(labels(Scale::Percentile, &[0.0, 99.95, 100.0]).join(" "), "0 50 90 99 99.9");
    }

    #[test]
    fn every_axis_is_finite_and_short() {
        let extremes = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            100.0,
            99.9999999999,
            f64::MIN_POSITIVE,
            5e-324,
            f64::MAX,
            f64::MIN,
            f64::NAN,
            f64::INFINITY,
            1e16 + 2.0,
            1e16,
            0.1,
            0.1 + f64::EPSILON,
        ];
        for scale in [Scale::Linear, Scale::Log, Scale::Doubling, Scale::Percentile] {
            for a in extremes {
                for b in extremes {
                    for ends in [Ends::Ticks, Ends::Data] {
                        let axis = PixelAxis::new(scale, &[a, b], 5, ends).between(10.0, 90.0);
                        let ticks = axis.ticks();
                        assert!(ticks.len() <= 26, "{scale:?} {a} {b}: {ticks:?}");
                        for value in ticks.iter().map(|tick| tick.0).chain(extremes) {
                            let at = axis.at(value);
                            assert!((10.0..=90.0).contains(&at), "{scale:?} {a} {b}: {value} {at}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_axis_ends_at_ticks_or_at_the_data() {
        let ticks = |ends| PixelAxis::new(Scale::Linear, &[3.0, 5003.0], 2, ends).ticks();
        let values = |ends| ticks(ends).into_iter().map(|tick| tick.0).collect::<Vec<_>>();
        assert_eq!(values(Ends::Ticks), [0.0, 5000.0, 10_000.0]);
        assert_eq!(values(Ends::Data), [5000.0]);
        let axis = PixelAxis::new(Scale::Linear, &[3.0, 5003.0], 2, Ends::Data).between(0.0, 10.0);
        assert_eq!((axis.at(3.0), axis.at(5003.0)), (0.0, 10.0));
    }

    #[test]
    fn numbers_are_at_their_places() {
        let axis = PixelAxis::new(Scale::Linear, &[8.0], 5, Ends::Ticks).between(100.0, 0.0);
        assert_eq!((axis.at(0.0), axis.at(4.0), axis.floor()), (100.0, 50.0, 100.0));
        let axis = PixelAxis::new(Scale::Log, &[1.0, 100.0], 2, Ends::Data).between(0.0, 10.0);
        assert!((axis.at(10.0) - 5.0).abs() < 1e-9);
        let axis =
            PixelAxis::new(Scale::Percentile, &[0.0, 99.99], 5, Ends::Data).between(0.0, 4.0);
        assert!((axis.at(99.0) - 2.0).abs() < 1e-9);
    }
}
