//! Parsers for the values of flags, in the form that clap expects.
//!
//! Clap names the flag and the rejected text (`invalid value 'x' for '--gb-per-day <GB>'`), so
//! these messages only state the expected form.

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;

use pumice_drive::controller::WARN_THRESHOLDS_MAX;

/// Parses a size such as 64G, 4KiB or 512.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    pumice_drive::base::units::parse_size(text)
}

/// With less, a checkpoint follows every few frames, and headers and parity take the space that
/// garbage collection gains: with 1 MiB, they and the map are 6 % of 4 KiB random writes.
const MAP_CACHE_BYTES_MIN: u64 = 1 << 20;

/// Parses the memory for the map.
pub(super) fn map_cache(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let is_enough = bytes >= MAP_CACHE_BYTES_MIN;
    is_enough.then_some(bytes).ok_or_else(|| "at least 1M is needed".to_owned())
}

/// Parses the span of a benchmark: a size, or a multiple of the memory such as 2xmem.
#[cfg(feature = "bench")]
pub(super) fn span(text: &str) -> Result<u64, String> {
    pumice_bench::workload::parse_span(text)
}

/// Parses the address of a TCP socket: an IP address or a host name, and a port.
pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    const EXPECTED: &str = "expected an address with a port, such as 127.0.0.1:10809";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (name, port) = text.rsplit_once(':').unwrap_or_default();
    if name.is_empty() || name.contains(':') || port.parse::<u16>().is_err() {
        return Err(EXPECTED.into());
    }
    let addresses = text.to_socket_addrs().map_err(|error| format!("unknown host: {error}"))?;
    let mut addresses: Vec<_> = addresses.collect();
    // If a name has both kinds of address, IPv4 reaches more clients.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| format!("{name} has no address"))
}

/// Limit of the space that a drive may occupy beyond its live data while its host is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compaction {
    /// Any amount.
    Off,
    /// This limit, in percent.
    To(u32),
}

/// Parses a percentage of 0 to 1000, or `off`.
pub(crate) fn compaction(text: &str) -> Result<Compaction, String> {
    if text == "off" {
        return Ok(Compaction::Off);
    }
    let percent = text.strip_suffix('%').unwrap_or(text).trim_end().parse().ok();
    let percent = percent.filter(|percent| (0..=1000).contains(percent));
    percent.map(Compaction::To).ok_or_else(|| "expected a percentage such as 20, or off".into())
}

/// Parses a whole number without a unit.
#[cfg(feature = "bench")]
pub(crate) fn whole_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// Returns a parser for whole numbers from 1 to `most`.
#[cfg(feature = "bench")]
pub(super) fn up_to(most: u32) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(most))
}

/// Parses gigabytes per day.
#[cfg(feature = "bench")]
pub(super) fn gigabytes(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.001..=1e9).contains(number));
    number.ok_or_else(|| "expected a number such as 20".to_owned())
}

/// Parses a duration in seconds: a number of seconds, or a duration with a unit.
#[cfg(feature = "bench")]
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|seconds| (0.0..f64::INFINITY).contains(seconds));
    let with_unit = || humantime::parse_duration(text).ok().map(|time| time.as_secs_f64());
    number
        .or_else(with_unit)
        .ok_or_else(|| "expected a duration such as 0.5, 500ms or 2min".to_owned())
}

/// Parses a word that is a variant of `T`, as serde names it.
#[cfg(feature = "bench")]
pub(super) fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    use serde::de::IntoDeserializer;
    use serde::de::value::Error as WordError;
    T::deserialize(IntoDeserializer::<WordError>::into_deserializer(text)).map_err(|error| {
        let text = error.to_string();
        match text.split_once(", expected ") {
            Some((_, known)) => format!("expected {}", known.replace('`', "")),
            None => text,
        }
    })
}

/// Returns a parser for percentages in `range`. The percent sign is optional.
#[cfg(feature = "bench")]
pub(crate) fn percent(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        percentage(text, &range).ok_or_else(|| {
            format!("expected a percentage from {} to {}", range.start(), range.end())
        })
    }
}

/// Parses the thresholds of a warning: `80,90,95` or `none`.
pub(crate) fn thresholds(text: &str) -> Result<[u8; WARN_THRESHOLDS_MAX], String> {
    let mut thresholds = [0; WARN_THRESHOLDS_MAX];
    if text == "none" {
        return Ok(thresholds);
    }
    let whole = |part| percentage(part, &(1.0..=100.0)).filter(|percent| percent.fract() == 0.0);
    let percents: Option<Vec<f64>> = text.split(',').map(whole).collect();
    match percents {
        Some(percents) if percents.len() <= WARN_THRESHOLDS_MAX => {
            for (threshold, percent) in thresholds.iter_mut().zip(percents) {
                *threshold = percent as u8;
            }
            Ok(thresholds)
        }
        _ => Err(format!(
            "expected up to {WARN_THRESHOLDS_MAX} whole percentages such as 80,90,95, or none"
        )),
    }
}

fn percentage(text: &str, range: &RangeInclusive<f64>) -> Option<f64> {
    let text = text.trim();
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse().ok();
    number.filter(|number| range.contains(number))
}

#[cfg(test)]
mod tests {
    //! Goal: values are read as people type them, and no other text is accepted.
    use super::*;

    #[test]
    fn thresholds_are_up_to_four_whole_percentages() {
        assert_eq!(thresholds("80,90,95"), Ok([80, 90, 95, 0]));
        assert_eq!(thresholds("50%, 60"), Ok([50, 60, 0, 0]));
        assert_eq!(thresholds("none"), Ok([0; WARN_THRESHOLDS_MAX]));
        for wrong in ["", "0", "101", "80,", "1,2,3,4,5", "80.5", "nan", "-1"] {
            assert!(thresholds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_map_has_a_mebibyte() {
        assert_eq!((map_cache("1M"), map_cache("8G")), (Ok(1 << 20), Ok(8 << 30)));
        for wrong in ["1023K", "0", "64"] {
            assert_eq!(map_cache(wrong), Err("at least 1M is needed".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn an_address_has_a_port() {
        for (text, address) in [
            ("127.0.0.1:10809", "127.0.0.1:10809"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:10809", "127.0.0.1:10809"),
        ] {
            assert_eq!(socket_address(text).map(|address| address.to_string()), Ok(address.into()));
        }
        for wrong in ["9110", "127.0.0.1", ":9110", "localhost", "localhost:99999", "::1:80", ""] {
            let refusal = socket_address(wrong).expect_err(wrong);
            assert!(refusal.contains("such as 127.0.0.1:10809"), "{wrong}: {refusal}");
        }
    }

    #[cfg(feature = "bench")]
    #[test]
    fn seconds_may_have_a_unit() {
        let known = [("0.5", 0.5), ("500ms", 0.5), ("2min", 120.0), ("1m 30s", 90.0), ("0", 0.0)];
        for (text, expected) in known {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for wrong in ["", "-1", "inf", "nan", "1 hourglass"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[cfg(feature = "bench")]
    #[test]
    fn a_percentage_is_in_its_range_with_or_without_a_sign() {
        let parse = percent(0.1..=1000.0);
        assert_eq!([parse("7"), parse("12.5%"), parse(" 20 % ")], [Ok(7.0), Ok(12.5), Ok(20.0)]);
        for wrong in ["", "%", "0", "1001", "nan", "ten"] {
            assert_eq!(parse(wrong), Err("expected a percentage from 0.1 to 1000".into()));
        }
    }
}
