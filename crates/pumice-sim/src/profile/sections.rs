//! The sections of a profile. One definition generates the struct, its keys in TOML and JSON, the
//! limits of each number, and the list of facts for display.
//!
//! The suffix of a key is its unit: `_ns`, `_bytes`, `_bytes_per_s`, `_per_s`, `_percent`.
//!
//! The limits ensure that a simulation is possible, not that it is realistic: they are far beyond
//! real products. They are arbitrary unless a comment states a reason.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sourced::{Basis, Sourced};
use pumice_drive::base::units::{BLOCK_BYTES, format_size};
use pumice_drive::codec::Codec;
use pumice_report::Number;

/// Maximum time in nanoseconds: ten seconds.
const TIME_NS_MAX: u64 = 10_000_000_000;

/// Maximum rate, in bytes or operations per second.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Maximum size of any buffer or cache that a simulation stores in memory, in bytes.
const BUFFER_BYTES_MAX: u64 = 16 << 30;

/// Number of disk bytes covered by one page of a map: 4 KiB of entries, with 4 bytes per block.
pub(crate) const MAP_REGION_BYTES: u64 = 4 << 20;

/// One 4 KiB block.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// One number of a profile, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact<'a> {
    /// Section; empty at the top level.
    pub section: &'static str,
    /// Key, which ends with its unit.
    pub key: &'static str,
    /// Value.
    pub value: Value,
    /// Basis of the value.
    pub basis: &'a Basis,
}

/// The value of a number of a profile.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Whole(u64),
    /// A real number.
    Real(f64),
    /// A boolean.
    Flag(bool),
    /// An identifier.
    Word(String),
}

impl<'a> Fact<'a> {
    pub(super) fn new<T: Quantity>(
        section: &'static str,
        key: &'static str,
        sourced: &'a Sourced<T>,
    ) -> Self {
        Self { section, key, value: sourced.is.value(), basis: &sourced.basis }
    }

    /// Returns the value with its unit, for display: `900 µs`, `4 KiB`, `60.02 GB`, `280 MB/s`.
    pub fn shown(&self) -> String {
        match &self.value {
            Value::Whole(value) => quantity_text(self.key, *value as f64),
            Value::Real(value) => quantity_text(self.key, *value),
            Value::Flag(true) => "yes".to_owned(),
            Value::Flag(false) => "no".to_owned(),
            Value::Word(word) => word.clone(),
        }
    }
}

/// Formats `value` in the unit at the end of `key`, with a suitable prefix.
pub(super) fn quantity_text(key: &str, value: f64) -> String {
    let plain = |value: f64, unit: &str| Number::plain(value).with_unit(unit).to_string();
    match key {
        _ if key.ends_with("_bytes_per_s") => plain(value / 1e6, "MB/s"),
        _ if key.ends_with("_per_s") => plain(value, "/s"),
        _ if key.ends_with("_percent") => plain(value, "%"),
        _ if key.ends_with("_ns") => match value {
            ..1e3 => plain(value, "ns"),
            ..1e6 => plain(value / 1e3, "µs"),
            _ => plain(value / 1e6, "ms"),
        },
        _ if key.ends_with("_bytes") || key.ends_with("_bytes_max") => size_text(value as u64),
        _ => plain(value, ""),
    }
}

/// Formats a size, in binary units if they are exact, as for memory, otherwise in decimal units, as
/// on product packaging.
fn size_text(bytes: u64) -> String {
    let is_round = bytes.trailing_zeros() >= bytes.max(1).ilog2() / 10 * 10;
    if is_round || bytes < 1000 {
        return format_size(bytes);
    }
    let power = (bytes.ilog10() / 3).min(6);
    let unit = ["KB", "MB", "GB", "TB", "PB", "EB"][power as usize - 1];
    format!("{:.2} {unit}", bytes as f64 / 1000f64.powi(power as i32))
}

/// A type of a number in a profile.
pub(super) trait Quantity {
    /// The range of valid values.
    type Limits;
    fn value(&self) -> Value;
    /// Returns the error message for a value outside the limits.
    fn misfit(&self, limits: &Self::Limits) -> Option<String>;
}

impl Quantity for u64 {
    type Limits = RangeInclusive<u64>;

    fn value(&self) -> Value {
        Value::Whole(*self)
    }

    fn misfit(&self, limits: &Self::Limits) -> Option<String> {
        let (low, high) = (limits.start(), limits.end());
        (!limits.contains(self))
            .then(|| format!("{self} is not possible: expected {low} to {high}"))
    }
}

impl Quantity for f64 {
    type Limits = RangeInclusive<f64>;

    fn value(&self) -> Value {
        Value::Real(*self)
    }

    /// NaN is outside every range.
    fn misfit(&self, limits: &Self::Limits) -> Option<String> {
        let (low, high) = (limits.start(), limits.end());
        (!limits.contains(self))
            .then(|| format!("{self} is not possible: expected {low} to {high}"))
    }
}

impl Quantity for bool {
    type Limits = ();

    fn value(&self) -> Value {
        Value::Flag(*self)
    }

    fn misfit(&self, (): &()) -> Option<String> {
        None
    }
}

impl Quantity for Codec {
    type Limits = ();

    fn value(&self) -> Value {
        Value::Word(self.to_string())
    }

    fn misfit(&self, (): &()) -> Option<String> {
        None
    }
}

/// A required or an optional number.
trait Field {
    type Of: Quantity;
    fn sourced(&self) -> Option<&Sourced<Self::Of>>;
}

impl<T: Quantity> Field for Sourced<T> {
    type Of = T;

    fn sourced(&self) -> Option<&Sourced<T>> {
        Some(self)
    }
}

impl<T: Quantity> Field for Option<Sourced<T>> {
    type Of = T;

    fn sourced(&self) -> Option<&Sourced<T>> {
        self.as_ref()
    }
}

/// Checks the limits of a number if it is present.
fn within<F: Field>(
    section: &str,
    key: &str,
    field: &F,
    limits: &<F::Of as Quantity>::Limits,
) -> Result<(), String> {
    match field.sourced().and_then(|sourced| sourced.is.misfit(limits)) {
        None => Ok(()),
        Some(what) => Err(format!("[{section}] {key}: {what}")),
    }
}

/// A section: its struct, its name in TOML, and the limits of each key.
macro_rules! section {
    (
        $(#[$about:meta])*
        $section:ident, $name:literal;
        $($(#[$meaning:meta])* $key:ident: $type:ty => $limits:expr;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        #[schemars(!deny_unknown_fields)]
        pub struct $section {
            $(
                $(#[$meaning])*
                pub $key: $type,
            )*
        }

        impl $section {
            /// Returns the numbers of the section in schema order. Absent numbers are omitted.
            pub(super) fn facts(&self) -> Vec<Fact<'_>> {
                let facts = [$(
                    self.$key.sourced().map(|sourced| Fact::new($name, stringify!($key), sourced)),
                )*];
                facts.into_iter().flatten().collect()
            }

            /// Checks that all numbers are within their limits.
            pub(super) fn check_limits(&self) -> Result<(), String> {
                $(within($name, stringify!($key), &self.$key, &$limits)?;)*
                Ok(())
            }
        }
    };
}

section! {
    /// The link to the host.
    Link, "link";
    /// Bytes per second to the host, without protocol overhead.
    read_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Bytes per second from the host, without protocol overhead.
    write_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Time of a command on the link in addition to its data.
    command_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Maximum number of commands in flight: 1 without queueing, 32 with NCQ, more with NVMe.
    depth: Sourced<u64> => 1..=65_536;
    /// Longest command.
    request_bytes_max: Sourced<u64> => BLOCK..=(1 << 30);
}

section! {
    /// The controller, with or without compression.
    Controller, "controller";
    /// Processing time of a 4 KiB read; commands are processed one at a time.
    read_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Processing time of a 4 KiB write; commands are processed one at a time.
    write_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Number of disk bytes covered by the cached pages of the map; a page that is not cached is
    /// read from a die. If absent, the whole map is in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    map_at_hand_bytes: Option<Sourced<u64>> => MAP_REGION_BYTES..=RATE_MAX;
    /// Codec; absent for a controller that does not compress.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Sourced<String>>")]
    codec: Option<Sourced<Codec>> => ();
    /// Minimum number of flash bytes per host byte for any data, including overhead, in (0, 1];
    /// requires a codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_min: Option<Sourced<f64>> => 0.001..=1.0;
    /// Number of 4 KiB blocks in a unit of the map; a write to any part of a unit rewrites the
    /// whole unit. A power of two; 1 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_blocks: Option<Sourced<u64>> => 1..=4096;
    /// Maximum number of host bytes compressed per second; absent for no limit; requires a codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_bytes_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Stored bytes decompressed per second, during which the link waits; absent if decompression
    /// takes no time; requires a codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_bytes_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Maximum number of stored bytes per second, regardless of the flash; absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_bytes_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Maximum number of write commands per second that do not continue an earlier one, a firmware
    /// limit; absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    cap_write_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Size of the write buffer, which contains data waiting for the flash; for flash drives.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer_bytes: Option<Sourced<u64>> => BLOCK..=BUFFER_BYTES_MAX;
}

section! {
    /// The flash: capacity, geometry and timing.
    Flash, "flash";
    /// Number of independent buses.
    channels: Sourced<u64> => 1..=1024;
    /// Number of dies that share a bus.
    dies_per_channel: Sourced<u64> => 1..=1024;
    /// Number of planes in a die.
    planes: Sourced<u64> => 1..=16;
    /// Number of erase blocks in a plane.
    blocks_per_plane: Sourced<u64> => 1..=(1 << 24);
    /// Number of pages in an erase block.
    pages_per_block: Sourced<u64> => 1..=(1 << 16);
    /// User bytes in a page, excluding its spare area: a power of two.
    page_bytes: Sourced<u64> => 512..=(1 << 20);
    /// Time from the cells of a page to its register (tR).
    read_ns: Sourced<u64> => 1..=TIME_NS_MAX;
    /// Time from the register to the cells of a page (tPROG), averaged over the pages of a block.
    program_ns: Sourced<u64> => 1..=TIME_NS_MAX;
    /// tPROG of the fast half of the pages, at most program_ns; absent if all pages have the same
    /// tPROG.
    #[serde(skip_serializing_if = "Option::is_none")]
    program_fast_ns: Option<Sourced<u64>> => 1..=TIME_NS_MAX;
    /// Time to erase a block (tBERS).
    erase_ns: Sourced<u64> => 1..=TIME_NS_MAX;
    /// Transfer rate between registers and the controller on each channel, in bytes per second.
    bus_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Whether the next page is transferred while a page is programmed.
    cache_program: Sourced<bool> => ();
    /// Whether the planes of a die work simultaneously.
    multi_plane: Sourced<bool> => ();
    /// Share of the programmed bytes that is neither data nor the parity of `[parity]`: ECC beyond
    /// the spare area, metadata, and parity that is not described in a separate section.
    overhead_percent: Sourced<f64> => 0.0..=90.0;
    /// Number of program/erase cycles in the lifetime of a block.
    pe_cycles: Sourced<u64> => 1..=1_000_000_000;
    /// Share of factory-bad blocks.
    bad_block_percent: Sourced<f64> => 0.0..=50.0;
}

section! {
    /// Parity over dies, which allows rebuilding the data of a failed die.
    Parity, "parity";
    /// Number of dies in a stripe, including one die for the parity of the others. The stripes
    /// together comprise all dies.
    stripe_dies: Sourced<u64> => 2..=1_048_576;
}

section! {
    /// The units of a map that is too coarse for small writes.
    Mapping, "mapping";
    /// Size of a unit. A small write rewrites a whole unit.
    unit_bytes: Sourced<u64> => BLOCK..=(1 << 30);
    /// Number of units that can accept writes before they are merged; 0 merges at every write.
    log_blocks: Sourced<u64> => 0..=(1 << 20);
}

section! {
    /// Platters and heads.
    Disk, "disk";
    /// Revolutions per minute.
    rpm: Sourced<u64> => 1..=1_000_000;
    /// Seek time to the next track.
    seek_track_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Mean seek time between two random tracks.
    seek_average_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Seek time over the full stroke.
    seek_full_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Bytes per second on the outermost tracks.
    outer_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Bytes per second on the innermost tracks.
    inner_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Memory for read-ahead and for pending writes.
    cache_bytes: Sourced<u64> => BLOCK..=BUFFER_BYTES_MAX;
    /// Whether the drive reorders queued commands.
    ncq: Sourced<bool> => ();
    /// Number of queued reads, or of pending writes in the cache, from which the drive chooses.
    reorder_max: Sourced<u64> => 1..=65_536;
}

impl Controller {
    /// Returns the codec.
    pub fn codec(&self) -> Codec {
        self.codec.as_ref().map_or(Codec::None, |codec| codec.is)
    }

    /// Returns the number of blocks in a unit of the map.
    pub fn unit_blocks(&self) -> u64 {
        self.unit_blocks.as_ref().map_or(1, |blocks| blocks.is)
    }

    /// Returns the minimum stored fraction; 1 without a codec.
    pub fn stored_min(&self) -> f64 {
        self.stored_min.as_ref().map_or(1.0, |fraction| fraction.is)
    }
}

impl Parity {
    /// Returns the share of parity in the flash and in the programmed bytes.
    pub fn share(&self) -> f64 {
        1.0 / self.stripe_dies.is as f64
    }
}

impl Flash {
    /// Returns tPROG of the fast half of the pages, in ns.
    pub fn program_fast_ns(&self) -> u64 {
        self.program_fast_ns.as_ref().map_or(self.program_ns.is, |time| time.is)
    }
}
