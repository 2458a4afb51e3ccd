//! The sections of a profile. One definition gives the struct, its keys in TOML and JSON, the
//! limits of each number, and the list of facts that is shown.
//!
//! The last part of a key is its unit: `_ns`, `_bytes`, `_bytes_per_s`, `_per_s`, `_percent`.
//!
//! Limits keep a simulation possible, not realistic: they stand far beyond what is built. Where a
//! comment does not say otherwise they are arbitrary.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::sourced::{Basis, Sourced};
use pumice_drive::base::units::{BLOCK_BYTES, format_size};
use pumice_drive::codec::Codec;
use pumice_report::Number;

/// Longest time in nanoseconds: ten seconds.
const TIME_NS_MAX: u64 = 10_000_000_000;

/// Highest rate, in bytes or operations a second.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Most bytes of anything that a simulation may keep in memory.
const BUFFER_BYTES_MAX: u64 = 16 << 30;

/// Bytes of the disk that one page of a map covers: 4 KiB of entries of 4 bytes a block.
pub const MAP_REGION_BYTES: u64 = 4 << 20;

/// One 4 KiB block.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// One number of a profile, as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact<'a> {
    /// Its section; empty at the top.
    pub section: &'static str,
    /// Its key, which ends with its unit.
    pub key: &'static str,
    /// What it is.
    pub value: Value,
    /// How it is known.
    pub basis: &'a Basis,
}

/// What a number of a profile is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
    /// Yes or no.
    Flag(bool),
    /// A word.
    Word(String),
}

impl<'a> Fact<'a> {
    pub(super) fn new<T: Quantity>(
        section: &'static str,
        key: &'static str,
        told: &'a Sourced<T>,
    ) -> Self {
        Self { section, key, value: told.is.value(), basis: &told.basis }
    }

    /// The value with its unit, as people say it: `900 µs`, `4 KiB`, `60.02 GB`, `280 MB/s`.
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

/// `value` in the unit at the end of `key`, scaled as people say it.
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

/// Binary units where they are exact, as in memories, else decimal ones, as on boxes.
fn size_text(bytes: u64) -> String {
    let binary = format_size(bytes);
    match binary.split_once(".00 ") {
        Some((number, unit)) if is_round(bytes) => format!("{number} {unit}"),
        _ if bytes < 1000 => binary,
        _ => {
            let power = (bytes.ilog10() / 3).min(6);
            let unit = ["KB", "MB", "GB", "TB", "PB", "EB"][power as usize - 1];
            format!("{:.2} {unit}", bytes as f64 / 1000f64.powi(power as i32))
        }
    }
}

/// Whether a size is a whole number of its binary unit.
fn is_round(bytes: u64) -> bool {
    let power = (63 - bytes.max(1).leading_zeros()) / 10;
    bytes.trailing_zeros() >= power * 10
}

/// What a number can be.
pub(super) trait Quantity {
    /// What it must lie within.
    type Limits;
    fn value(&self) -> Value;
    /// What is wrong with it, if it does not lie within.
    fn misfit(&self, limits: &Self::Limits) -> Option<String>;
}

impl Quantity for u64 {
    type Limits = RangeInclusive<u64>;

    fn value(&self) -> Value {
        Value::Whole(*self)
    }

    fn misfit(&self, limits: &Self::Limits) -> Option<String> {
        let (low, high) = (limits.start(), limits.end());
        (!limits.contains(self)).then(|| format!("{self} is not possible: take {low} to {high}"))
    }
}

impl Quantity for f64 {
    type Limits = RangeInclusive<f64>;

    fn value(&self) -> Value {
        Value::Real(*self)
    }

    /// Not a number lies within nothing.
    fn misfit(&self, limits: &Self::Limits) -> Option<String> {
        let (low, high) = (limits.start(), limits.end());
        (!limits.contains(self)).then(|| format!("{self} is not possible: take {low} to {high}"))
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

/// A number that is there, or may be.
trait Field {
    type Of: Quantity;
    fn told(&self) -> Option<&Sourced<Self::Of>>;
}

impl<T: Quantity> Field for Sourced<T> {
    type Of = T;

    fn told(&self) -> Option<&Sourced<T>> {
        Some(self)
    }
}

impl<T: Quantity> Field for Option<Sourced<T>> {
    type Of = T;

    fn told(&self) -> Option<&Sourced<T>> {
        self.as_ref()
    }
}

/// What is wrong with a number that may be there.
fn within<F: Field>(
    section: &str,
    key: &str,
    field: &F,
    limits: &<F::Of as Quantity>::Limits,
) -> Result<(), String> {
    match field.told().and_then(|told| told.is.misfit(limits)) {
        None => Ok(()),
        Some(what) => Err(format!("[{section}] {key}: {what}")),
    }
}

/// A section: its struct, named in TOML by the text behind its name, with the limits of each key.
macro_rules! section {
    (
        $(#[$about:meta])*
        $section:ident, $name:literal;
        $($(#[$meaning:meta])* $key:ident: $type:ty => $limits:expr;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $section {
            $(
                $(#[$meaning])*
                pub $key: $type,
            )*
        }

        impl $section {
            /// Its numbers, in the order of the schema; those that are absent are left out.
            pub(super) fn facts(&self) -> Vec<Fact<'_>> {
                let facts = [$(
                    self.$key.told().map(|told| Fact::new($name, stringify!($key), told)),
                )*];
                facts.into_iter().flatten().collect()
            }

            /// What lies outside its limits.
            pub(super) fn check_limits(&self) -> Result<(), String> {
                $(within($name, stringify!($key), &self.$key, &$limits)?;)*
                Ok(())
            }
        }
    };
}

section! {
    /// What the host is attached by.
    Link, "link";
    /// Bytes a second to the host, after the protocol's overhead.
    read_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Bytes a second from the host, after the protocol's overhead.
    write_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// What a command costs on the link besides its data.
    command_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Commands in flight: 1 without queueing, 32 with NCQ, more with NVMe.
    depth: Sourced<u64> => 1..=65_536;
    /// Longest command.
    request_bytes_max: Sourced<u64> => BLOCK..=(1 << 30);
}

section! {
    /// What takes commands, and maybe compresses.
    Controller, "controller";
    /// Processing of a read of 4 KiB, one after the other.
    read_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Processing of a write of 4 KiB, one after the other.
    write_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// What a read takes beside that, while others go on, if the map of its place is not at hand;
    /// absent is nothing: the whole map is in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    map_read_ns: Option<Sourced<u64>> => 0..=TIME_NS_MAX;
    /// Bytes of the disk whose map is at hand, those used last; with map_read_ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    map_at_hand_bytes: Option<Sourced<u64>> => MAP_REGION_BYTES..=RATE_MAX;
    /// What data is compressed with; absent is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<Sourced<Codec>> => ();
    /// Least stored fraction that any data comes to, in (0, 1]; with a codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_min: Option<Sourced<f64>> => 0.001..=1.0;
    /// LBAs that are compressed together: a power of two up to 64; with a codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    frame_blocks: Option<Sourced<u64>> => 1..=64;
    /// Host bytes a second that are compressed at most; absent is no limit; with a codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_bytes_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Stored bytes a second that are unpacked while the link waits; absent is no time; with a
    /// codec.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_bytes_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Stored bytes a second at most, whatever the flash could take; absent is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_bytes_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Random writes of 4 KiB a second that the firmware admits; absent is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    cap_write_per_s: Option<Sourced<u64>> => 1..=RATE_MAX;
    /// Written data that waits for the flash at most; of flash drives.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer_bytes: Option<Sourced<u64>> => BLOCK..=BUFFER_BYTES_MAX;
}

section! {
    /// Flash: how much, how arranged, how fast.
    Flash, "flash";
    /// Buses that work side by side.
    channels: Sourced<u64> => 1..=1024;
    /// Dies that share a bus.
    dies_per_channel: Sourced<u64> => 1..=1024;
    /// Planes of a die.
    planes: Sourced<u64> => 1..=16;
    /// Erase blocks of a plane.
    blocks_per_plane: Sourced<u64> => 1..=(1 << 24);
    /// Pages of an erase block.
    pages_per_block: Sourced<u64> => 1..=(1 << 16);
    /// User bytes of a page, without its spare area: a power of two.
    page_bytes: Sourced<u64> => 512..=(1 << 20);
    /// From the cells of a page to its register (tR).
    read_ns: Sourced<u64> => 1..=TIME_NS_MAX;
    /// From the register to the cells of a page (tPROG), averaged over the pages of a block.
    program_ns: Sourced<u64> => 1..=TIME_NS_MAX;
    /// Erasing a block (tBERS).
    erase_ns: Sourced<u64> => 1..=TIME_NS_MAX;
    /// Bytes a second between registers and controller, on each channel.
    bus_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Whether the next page is transferred while one is programmed.
    cache_program: Sourced<bool> => ();
    /// Whether the planes of a die work at the same time.
    multi_plane: Sourced<bool> => ();
    /// Share of the programmed bytes that is no data: parity, ECC beyond the spare area, metadata.
    overhead_percent: Sourced<f64> => 0.0..=90.0;
    /// Program and erase cycles that a block lasts.
    pe_cycles: Sourced<u64> => 1..=1_000_000_000;
    /// Share of blocks that are bad from the beginning.
    bad_block_percent: Sourced<f64> => 0.0..=50.0;
}

section! {
    /// The units of a map that is too coarse for small writes.
    Mapping, "mapping";
    /// What a small write rewrites.
    unit_bytes: Sourced<u64> => BLOCK..=(1 << 30);
    /// Units that take writes before they are merged; 0 merges at every write.
    log_blocks: Sourced<u64> => 0..=(1 << 20);
}

section! {
    /// Platters and heads.
    Disk, "disk";
    /// Turns a minute.
    rpm: Sourced<u64> => 1..=1_000_000;
    /// Seek to the next track.
    seek_track_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Seek between two random places.
    seek_average_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Seek over the whole disk.
    seek_full_ns: Sourced<u64> => 0..=TIME_NS_MAX;
    /// Bytes a second under the head on the outermost tracks.
    outer_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Bytes a second under the head on the innermost tracks.
    inner_bytes_per_s: Sourced<u64> => 1..=RATE_MAX;
    /// Memory for reading ahead and for writes that wait.
    cache_bytes: Sourced<u64> => BLOCK..=BUFFER_BYTES_MAX;
    /// Whether the drive chooses the order of queued commands.
    ncq: Sourced<bool> => ();
    /// Reads that are queued, or writes that wait in the cache, among which it chooses.
    reorder_max: Sourced<u64> => 1..=65_536;
}

impl Controller {
    /// What data is compressed with.
    pub fn codec(&self) -> Codec {
        self.codec.as_ref().map_or(Codec::None, |codec| codec.is)
    }

    /// LBAs that are stored together: 1 without a codec.
    pub fn frame_blocks(&self) -> u64 {
        self.frame_blocks.as_ref().map_or(1, |blocks| blocks.is)
    }

    /// Least stored fraction: 1 without a codec.
    pub fn stored_min(&self) -> f64 {
        self.stored_min.as_ref().map_or(1.0, |fraction| fraction.is)
    }
}
