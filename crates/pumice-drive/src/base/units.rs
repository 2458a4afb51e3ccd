//! The integer types of a drive, one for each meaning, and sizes in the notation that people type.
//!
//! Invariant: an [`Lba`] counts 4 KiB logical blocks, never bytes; a byte offset on the host's
//! disk is always a plain `u64` named `offset`.

use std::fmt;

/// Size of one logical block in bytes: the unit of [`Lba`].
///
/// 4 KiB is the page size of every common file system and the smallest unit that today's SSDs map.
pub const BLOCK_BYTES: usize = 4096;

/// Address of one 4 KiB logical block of the host's disk, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// Number of a segment on its medium, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

/// Sequence number of a batch in the log; the first batch of a drive is 1, so that 0 can mean
/// "nothing yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqNo(pub u64);

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SeqNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns a length or an offset within a segment as the 32-bit integer of the format.
///
/// # Panics
/// If it exceeds the length of any segment.
#[inline]
pub(crate) fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("lengths within a segment have 32 bits")
}

/// Converts the length of an object in memory.
///
/// # Panics
/// If it exceeds the address space.
#[inline]
pub(crate) fn len_usize(len: u64) -> usize {
    usize::try_from(len).expect("lengths in memory fit the address space")
}

/// Returns the length of a buffer for `blocks` blocks, in bytes.
///
/// # Panics
/// If it exceeds the address space.
pub(crate) fn buffer_bytes(blocks: u64) -> usize {
    let blocks = usize::try_from(blocks).ok();
    let bytes = blocks.and_then(|blocks| blocks.checked_mul(BLOCK_BYTES));
    bytes.expect("blocks in a buffer fit in memory")
}

/// Returns the duration of a transfer of `bytes` at `bytes_per_s` in nanoseconds, rounded up. A
/// rate of 0 counts as 1. The result saturates at `u64::MAX`.
pub fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(bytes_per_s.max(1).into());
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Suffixes in the notation of coreutils (`dd`, `truncate`): a bare letter and `KiB` are powers of
/// 1024; `KB` is a power of 1000.
const SUFFIXES: [(&str, u32); 6] = [("k", 1), ("m", 2), ("g", 3), ("t", 4), ("p", 5), ("e", 6)];

/// Parses a size in bytes in the notation that people type: `4096`, `4k`, `64G`, `1.5TiB`, `100GB`.
///
/// A bare letter or the `KiB` style means powers of 1024, the `KB` style powers of 1000. Case does
/// not matter. A fraction is rounded down to whole bytes.
///
/// # Errors
/// A message that states the problem and lists the valid suffixes.
pub fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let text = text.trim();
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let invalid = || format!("'{text}' is not a size: expected a number such as 64G or 4KiB");
    if number.is_empty() {
        return Err(invalid());
    }
    let unit = size_unit(suffix.trim()).ok_or_else(|| {
        format!(
            "unknown size suffix '{}': use K, M, G, T, P or KiB, MiB ... (powers of 1024), \
             or KB, MB ... (powers of 1000)",
            suffix.trim()
        )
    })?;
    let bytes = match number.split_once('.') {
        None => number.parse::<u64>().map_err(|_| invalid())?.checked_mul(unit),
        Some(_) => {
            let value = number.parse::<f64>().map_err(|_| invalid())? * unit as f64;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the number has no sign and is below 2^63"
            )]
            let bytes = (value < 9e18).then_some(value as u64);
            bytes
        }
    };
    bytes.ok_or_else(|| format!("'{text}' is too large: the maximum is below 16 EiB"))
}

fn size_unit(suffix: &str) -> Option<u64> {
    let suffix = suffix.to_ascii_lowercase();
    if suffix.is_empty() || suffix == "b" {
        return Some(1);
    }
    let (letter, rest) = suffix.split_at(suffix.chars().next()?.len_utf8());
    let power = SUFFIXES.iter().find(|(name, _)| *name == letter)?.1;
    match rest {
        "" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// Names of the powers of 1024, from 1024^0.
const SIZE_NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Formats a number of bytes for people, with up to two decimals: `1.5 GiB`, `4 KiB`, `17 B`.
pub fn format_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut name = "B";
    for larger in SIZE_NAMES.iter().skip(1).take(bytes.ilog2() as usize / 10) {
        value /= 1024.0;
        name = larger;
    }
    let number = format!("{value:.2}");
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number} {name}")
}

/// Formats a number of bytes in the largest unit that divides it: `4 KiB`, `1536 B`. Different
/// sizes have different texts.
pub fn format_size_exact(bytes: u64) -> String {
    let mut units = SIZE_NAMES.iter().enumerate().rev();
    match units.find(|(power, _)| bytes.is_multiple_of(1 << (10 * power))) {
        Some((power, name)) if bytes > 0 => format!("{} {name}", bytes >> (10 * power)),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every spelling that a user of coreutils or qemu-img would type, and the errors.
    use super::*;

    #[test]
    fn sizes_are_read_as_coreutils_does() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4KB", 4000),
            ("64G", 64 << 30),
            ("1.5T", 3 << 39),
            (" 32 M ", 32 << 20),
            ("7b", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn errors_of_sizes_name_a_remedy() {
        for text in ["", "G", "64Q", "64Gx", "-1", "1.2.3", "12 parsecs", "99999999999999E"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("64Q").unwrap_err().contains("suffix 'Q'"));
        assert!(parse_size("-1G").unwrap_err().contains("'-1G' is not a size"));
    }

    #[test]
    fn sizes_are_written_in_binary_units() {
        assert_eq!(format_size(17), "17 B");
        assert_eq!(format_size(4096), "4 KiB");
        assert_eq!(format_size(3 << 29), "1.5 GiB");
        assert_eq!(format_size(100 << 20), "100 MiB");
        assert_eq!(format_size((7 << 30) / 3), "2.33 GiB");
        assert_eq!(format_size(u64::MAX), "16 EiB");
    }

    #[test]
    fn exact_sizes_are_whole_in_their_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1024, "1 KiB"),
            (1536, "1536 B"),
            (64 << 10, "64 KiB"),
            ((1 << 20) + 1024, "1025 KiB"),
            (3 << 29, "1536 MiB"),
            (7 << 40, "7 TiB"),
            (1 << 63, "8 EiB"),
            (u64::MAX, "18446744073709551615 B"),
        ] {
            assert_eq!(format_size_exact(bytes), text);
            assert_eq!(parse_size(text), Ok(bytes));
        }
    }
}
