//! A profile: the statistics of real data that a generator needs, without any of its bytes.
//!
//! A profile is a list of windows (64 KiB) of the data. For each window, it contains the savings of
//! LZ4 and zstd:1 for each unit (4 KiB), and their savings for the whole window in chunks of 16 and
//! 64 KiB. It also contains the share of units that occur more than once. Windows preserve
//! correlations: the distribution of savings, the similarity of adjacent units and the gain of
//! larger chunks.
//!
//! The file format is JSON with each window as a line of hexadecimal digits; see [`WindowProfile`].
//! A profile from an untrusted source is checked and its size limited before it is used.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::measure::Meter;
use super::pool::WINDOW_BYTES;
use super::saving::Saving;
use crate::error::{Error, Result};
use pumice_drive::codec::Codec;

/// Size of the smallest piece in a profile in bytes: a logical block.
pub const UNIT_BYTES: usize = 4096;

/// Number of units in a window.
pub(super) const UNITS: usize = WINDOW_BYTES / UNIT_BYTES;

/// Size of the chunks between a unit and a window, in bytes.
const MIDDLE_BYTES: usize = 16 << 10;

/// Maximum number of windows. They cover 128 MiB, whose mean is within half a percentage point of
/// the true mean if the data has a deviation of 25 points.
pub(super) const PROFILE_WINDOWS_MAX: usize = 2048;

/// Maximum size of a profile file in bytes. The largest file that this program writes has a sixth
/// of this size.
pub(crate) const PROFILE_FILE_BYTES_MAX: u64 = 1 << 20;

/// Version of the file format.
const VERSION: u32 = 1;

/// Number that represents a saving of 100 % in the file.
const STEPS: f64 = 250.0;

/// Number that represents a unit of one repeated byte.
const FILL: u8 = 255;

const PROFILE_CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd { level: 1 }];

/// Savings of both codecs for one piece, as fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Savings {
    pub(super) lz4: f64,
    pub(super) zstd: f64,
}

/// One window. In the file it has 72 hexadecimal digits, two per number, in this order: LZ4 for
/// each unit; zstd:1 for each unit; LZ4 and then zstd:1 for the window in chunks of 16 KiB; both
/// again in chunks of 64 KiB. The numbers are in units of 1/250. The value 255 for LZ4 of a unit
/// means that the unit is one repeated byte.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WindowProfile {
    /// `None` for a unit of one repeated byte.
    pub(super) units: [Option<Savings>; UNITS],
    pub(super) middle: Savings,
    pub(super) whole: Savings,
}

const NUMBERS: usize = 2 * UNITS + 4;

/// Statistics of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub(super) windows: Vec<WindowProfile>,
    duplicates: Saving,
    source_bytes: u64,
}

/// The structure of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    pumice_profile: u32,
    /// Size of the data in bytes.
    source_bytes: u64,
    /// Repeated units, excluding fills, in percent of all units.
    duplicate_percent: f64,
    windows: Vec<String>,
}

impl Profile {
    /// Returns a profile that consists of these windows.
    pub(super) fn new(windows: Vec<WindowProfile>, duplicates: Saving, source_bytes: u64) -> Self {
        Self { windows, duplicates, source_bytes }
    }

    /// Returns the share of units that repeat an earlier one.
    pub fn duplicates(&self) -> Saving {
        self.duplicates
    }

    /// Returns the share of units that consist of one repeated byte.
    pub fn fills(&self) -> Saving {
        let units = self.windows.iter().flat_map(|window| window.units);
        let fills = units.filter(Option::is_none).count() as f64;
        Saving::from_fraction(fills / (self.windows.len() * UNITS) as f64)
    }

    /// Returns the savings of LZ4 and zstd:1 in 4 KiB chunks; fills count as fully saved.
    pub fn saved(&self) -> [Saving; 2] {
        let means: Vec<Savings> = self.windows.iter().map(WindowProfile::mean).collect();
        let count = means.len() as f64;
        let lz4 = means.iter().map(|mean| mean.lz4).sum::<f64>() / count;
        let zstd = means.iter().map(|mean| mean.zstd).sum::<f64>() / count;
        [lz4, zstd].map(Saving::from_fraction)
    }

    /// Returns the saving of each measured unit (4 KiB) in data order. A fill has a saving of 100
    /// %. Every zstd level is treated as zstd:1. Without a codec there is no saving.
    pub fn unit_savings(&self, codec: Codec) -> Vec<Saving> {
        let of = |unit: Option<Savings>| match (codec, unit) {
            (Codec::None, _) => 0.0,
            (_, None) => 1.0,
            (Codec::Lz4, Some(savings)) => savings.lz4,
            (Codec::Zstd { .. }, Some(savings)) => savings.zstd,
        };
        let units = self.windows.iter().flat_map(|window| window.units);
        units.map(|unit| Saving::from_fraction(of(unit))).collect()
    }

    /// Returns the number of measured windows.
    pub fn window_count(&self) -> usize {
        self.windows.len()
    }

    /// Returns the size of the data in bytes.
    pub fn source_bytes(&self) -> u64 {
        self.source_bytes
    }

    /// Returns the profile as the text of a file.
    pub fn to_json(&self) -> String {
        let file = File {
            pumice_profile: VERSION,
            source_bytes: self.source_bytes,
            duplicate_percent: self.duplicates.percent(),
            windows: self.windows.iter().copied().map(WindowProfile::to_hex).collect(),
        };
        serde_json::to_string_pretty(&file).expect("a profile serializes") + "\n"
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the text is not a profile; [`Error::Unsupported`] for another version.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |what: String| Error::invalid(what);
        let file: File = serde_json::from_str(text)
            .map_err(|error| Error::invalid_because("not a profile", error))?;
        if file.pumice_profile != VERSION {
            let version = file.pumice_profile;
            let what = format!("a profile of version {version}; this program reads {VERSION}");
            return Err(Error::unsupported(what));
        }
        if file.windows.is_empty() || file.windows.len() > PROFILE_WINDOWS_MAX {
            let count = file.windows.len();
            return Err(wrong(format!(
                "a profile with {count} windows: expected 1 to {PROFILE_WINDOWS_MAX}"
            )));
        }
        if !(0.0..=100.0).contains(&file.duplicate_percent) {
            return Err(wrong("the share of duplicates in the profile is out of range".into()));
        }
        let windows = file.windows.iter().enumerate().map(|(index, line)| {
            let number = index + 1;
            WindowProfile::from_hex(line)
                .ok_or_else(|| wrong(format!("window {number} of the profile is malformed")))
        });
        let duplicates = Saving::from_fraction(file.duplicate_percent / 100.0);
        Ok(Self::new(windows.collect::<Result<_>>()?, duplicates, file.source_bytes))
    }
}

impl WindowProfile {
    fn to_hex(self) -> String {
        let step = |fraction: f64| (fraction * STEPS).round() as u8;
        let lz4 = self.units.iter().map(|unit| unit.map_or(FILL, |savings| step(savings.lz4)));
        let zstd = self.units.iter().map(|unit| unit.map_or(0, |savings| step(savings.zstd)));
        let larger = [self.middle.lz4, self.middle.zstd, self.whole.lz4, self.whole.zstd];
        let mut text = String::with_capacity(2 * NUMBERS);
        for number in lz4.chain(zstd).chain(larger.map(step)) {
            write!(text, "{number:02x}").expect("strings take everything");
        }
        text
    }

    fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 2 * NUMBERS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut numbers = [0; NUMBERS];
        for (index, number) in numbers.iter_mut().enumerate() {
            *number = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        let fraction = |number: u8| {
            let fraction = f64::from(number) / STEPS;
            (fraction <= 1.0).then_some(fraction)
        };
        let pair = |lz4, zstd| Some(Savings { lz4: fraction(lz4)?, zstd: fraction(zstd)? });
        let mut units = [None; UNITS];
        for (index, unit) in units.iter_mut().enumerate() {
            if numbers[index] != FILL {
                *unit = Some(pair(numbers[index], numbers[UNITS + index])?);
            }
        }
        let [.., middle_lz4, middle_zstd, whole_lz4, whole_zstd] = numbers;
        let (middle, whole) = (pair(middle_lz4, middle_zstd)?, pair(whole_lz4, whole_zstd)?);
        Some(Self { units, middle, whole })
    }

    /// Returns the mean savings of the units; fills count as fully saved.
    pub(super) fn mean(&self) -> Savings {
        let full = Savings { lz4: 1.0, zstd: 1.0 };
        let units = self.units.map(|unit| unit.unwrap_or(full));
        Savings {
            lz4: units.iter().map(|unit| unit.lz4).sum::<f64>() / UNITS as f64,
            zstd: units.iter().map(|unit| unit.zstd).sum::<f64>() / UNITS as f64,
        }
    }
}

/// A profile under construction, window by window.
pub struct Profiling {
    meter: WindowMeter,
    windows: Vec<WindowProfile>,
}

impl Default for Profiling {
    fn default() -> Self {
        Self { meter: WindowMeter::new(), windows: Vec::new() }
    }
}

impl Profiling {
    /// Maximum number of windows in a profile.
    pub const WINDOWS_MAX: usize = PROFILE_WINDOWS_MAX;

    /// Measures a window, unless the profile is full.
    ///
    /// # Panics
    /// If `window` is not 64 KiB.
    pub fn add(&mut self, window: &[u8]) {
        if self.windows.len() < PROFILE_WINDOWS_MAX {
            self.windows.push(self.meter.measure(window));
        }
    }

    /// Returns the profile of `source_bytes` of data with this share of duplicates; `None` if no
    /// window was added.
    pub fn finish(self, duplicates: Saving, source_bytes: u64) -> Option<Profile> {
        let any = !self.windows.is_empty();
        any.then(|| Profile::new(self.windows, duplicates, source_bytes))
    }
}

/// Measures single windows.
pub(super) struct WindowMeter([Meter; 2]);

impl WindowMeter {
    pub(super) fn new() -> Self {
        Self(PROFILE_CODECS.map(Meter::new))
    }

    /// Returns the measurements of one window.
    ///
    /// # Panics
    /// If `window` is not 64 KiB.
    pub(super) fn measure(&mut self, window: &[u8]) -> WindowProfile {
        assert_eq!(window.len(), WINDOW_BYTES);
        let mut profile = WindowProfile::default();
        for (unit, bytes) in profile.units.iter_mut().zip(window.chunks(UNIT_BYTES)) {
            let fill = pumice_drive::codec::fill_byte(bytes).is_some();
            *unit = (!fill).then(|| self.savings(bytes, UNIT_BYTES));
        }
        profile.middle = self.savings(window, MIDDLE_BYTES);
        profile.whole = self.savings(window, WINDOW_BYTES);
        profile
    }

    fn savings(&mut self, bytes: &[u8], chunk_bytes: usize) -> Savings {
        let [lz4, zstd] = self.0.each_mut().map(|meter| {
            let chunks = bytes.chunks(chunk_bytes);
            let count = chunks.len() as f64;
            chunks.map(|chunk| meter.add(chunk).fraction()).sum::<f64>() / count
        });
        Savings { lz4, zstd }
    }
}
