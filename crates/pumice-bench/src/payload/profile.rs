//! What a generator needs to know about somebody's data, without any of its bytes.
//!
//! A profile is a list of windows (64 KiB) of the data: for each unit (4 KiB) what LZ4 and zstd:1
//! save of it, and what they save of the whole window in chunks of 16 and 64 KiB; besides, how many
//! units occur more than once. The windows keep together what belongs together: how savings are
//! spread, how alike neighbours are, and what larger chunks gain.
//!
//! As a file it is JSON with each window as a line of hexadecimal digits; see [`WindowProfile`].
//! A profile from outside is checked and bounded before anything is made of it.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::measure::Meter;
use super::pool::WINDOW_BYTES;
use super::saving::Saving;
use crate::error::{Error, Result};
use pumice_drive::codec::Codec;

/// Bytes of the smallest piece that a profile speaks of, a logical block.
pub const UNIT_BYTES: usize = 4096;

/// Units of a window.
pub(super) const UNITS: usize = WINDOW_BYTES / UNIT_BYTES;

/// Bytes of the chunks between a unit and a window.
const MIDDLE_BYTES: usize = 16 << 10;

/// Windows of a profile at most: 128 MiB, the mean of which is within half a point of that of data
/// with a deviation of 25 points.
pub(super) const PROFILE_WINDOWS_MAX: usize = 2048;

/// Bytes of a profile's file at most; the largest that is written has a sixth.
pub const PROFILE_FILE_BYTES_MAX: u64 = 1 << 20;

/// The version of the file.
const VERSION: u32 = 1;

/// Steps of a saving of 100 % in the file.
const STEPS: f64 = 250.0;

/// Stands for a unit of one byte repeated.
const FILL: u8 = 255;

/// The codecs that a profile speaks of.
const PROFILE_CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd { level: 1 }];

/// What both codecs save of one piece, as fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Savings {
    pub(super) lz4: f64,
    pub(super) zstd: f64,
}

/// One window. In the file 72 hexadecimal digits, two for each number in this order: LZ4 of each
/// unit, zstd:1 of each unit; LZ4 then zstd:1 of the window in chunks of 16 KiB, then of 64 KiB.
/// The numbers count 250ths; 255 for LZ4 of a unit means that it is one byte repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WindowProfile {
    /// `None` for a unit of one byte repeated.
    pub(super) units: [Option<Savings>; UNITS],
    pub(super) middle: Savings,
    pub(super) whole: Savings,
}

const NUMBERS: usize = 2 * UNITS + 4;

/// The statistics of some data.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub(super) windows: Vec<WindowProfile>,
    duplicates: Saving,
    source_bytes: u64,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    pumice_profile: u32,
    /// Bytes of the data that was looked at.
    source_bytes: u64,
    /// Units that have occurred before, fills not counted, in per cent of all units.
    duplicate_percent: f64,
    windows: Vec<String>,
}

impl Profile {
    /// A profile of these windows.
    pub(super) fn new(windows: Vec<WindowProfile>, duplicates: Saving, source_bytes: u64) -> Self {
        Self { windows, duplicates, source_bytes }
    }

    /// The share of units that have occurred before.
    pub fn duplicates(&self) -> Saving {
        self.duplicates
    }

    /// The share of units that are one byte repeated.
    pub fn fills(&self) -> Saving {
        let units = self.windows.iter().flat_map(|window| window.units);
        let fills = units.filter(Option::is_none).count() as f64;
        Saving::from_fraction(fills / (self.windows.len() * UNITS) as f64)
    }

    /// What LZ4 and zstd:1 save in chunks of 4 KiB, fills as if nothing of them were stored.
    pub fn saved(&self) -> [Saving; 2] {
        let means: Vec<Savings> = self.windows.iter().map(WindowProfile::mean).collect();
        let count = means.len() as f64;
        let lz4 = means.iter().map(|mean| mean.lz4).sum::<f64>() / count;
        let zstd = means.iter().map(|mean| mean.zstd).sum::<f64>() / count;
        [lz4, zstd].map(Saving::from_fraction)
    }

    /// What a codec saves of each unit (4 KiB) that was measured, in the order of the data; of a
    /// fill all. For any zstd it is what zstd:1 saves; without a codec nothing.
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

    /// Windows that were measured.
    pub fn window_count(&self) -> usize {
        self.windows.len()
    }

    /// Bytes of the data that was looked at.
    pub fn source_bytes(&self) -> u64 {
        self.source_bytes
    }

    /// The profile as the text of a file.
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
    /// The text is not a profile, or one of another version: `InvalidInput`, `Unsupported`.
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
                "a profile of {count} windows; it may have 1 to {PROFILE_WINDOWS_MAX}"
            )));
        }
        if !(0.0..=100.0).contains(&file.duplicate_percent) {
            return Err(wrong("a profile whose duplicates are not a share".into()));
        }
        let windows = file.windows.iter().enumerate().map(|(index, line)| {
            let number = index + 1;
            WindowProfile::from_hex(line)
                .ok_or_else(|| wrong(format!("window {number} of the profile is not one")))
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

    /// Means over the units; fills count as saved.
    pub(super) fn mean(&self) -> Savings {
        let full = Savings { lz4: 1.0, zstd: 1.0 };
        let units = self.units.map(|unit| unit.unwrap_or(full));
        Savings {
            lz4: units.iter().map(|unit| unit.lz4).sum::<f64>() / UNITS as f64,
            zstd: units.iter().map(|unit| unit.zstd).sum::<f64>() / UNITS as f64,
        }
    }
}

/// A profile in the making, window by window.
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
    /// Windows of a profile at most.
    pub const WINDOWS_MAX: usize = PROFILE_WINDOWS_MAX;

    /// Measures a window, unless there are enough.
    ///
    /// # Panics
    /// If `window` is not of 64 KiB.
    pub fn add(&mut self, window: &[u8]) {
        if self.windows.len() < PROFILE_WINDOWS_MAX {
            self.windows.push(self.meter.measure(window));
        }
    }

    /// The profile of data of which this share repeats other units, of so many bytes; none without
    /// a window.
    pub fn finish(self, duplicates: Saving, source_bytes: u64) -> Option<Profile> {
        let any = !self.windows.is_empty();
        any.then(|| Profile::new(self.windows, duplicates, source_bytes))
    }
}

/// Measures windows.
pub(super) struct WindowMeter([Meter; 2]);

impl WindowMeter {
    pub(super) fn new() -> Self {
        Self(PROFILE_CODECS.map(Meter::new))
    }

    /// What one window of data comes to.
    ///
    /// # Panics
    /// If `window` is not one.
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
