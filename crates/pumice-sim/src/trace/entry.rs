//! A recorded request, and the parsers of its fields.

use crate::log_drive::Verb;

/// Maximum request length in bytes. A longer request is an error (arbitrary).
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Maximum offset in bytes, which is beyond the largest drive that a profile can describe.
pub(super) const OFFSET_MAX: u64 = 1 << 60;

/// Size of a sector in bytes, the unit of three of the formats.
const SECTOR_BYTES: u64 = 512;

/// A recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Time of the request, in ns since an arbitrary moment.
    pub time_ns: u64,
    /// Kind of the request.
    pub verb: Verb,
    /// Number of the disk or file, which is the one selected in the [`Reader`](super::Reader).
    pub disk: u32,
    /// Offset in bytes; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: u64,
}

/// Checks that an entry has a possible size.
pub(super) fn checked(entry: Entry) -> std::result::Result<Entry, String> {
    let Entry { verb, offset, bytes, .. } = entry;
    match verb {
        Verb::Flush => Ok(Entry { offset: 0, bytes: 0, ..entry }),
        // A trim may cover a whole drive.
        Verb::Trim if bytes > 0 && bytes <= OFFSET_MAX && offset <= OFFSET_MAX => Ok(entry),
        _ if bytes == 0 => Err("a request of no bytes".to_owned()),
        _ if bytes > REQUEST_BYTES_MAX => Err(format!("a request of {bytes} bytes")),
        _ if offset > OFFSET_MAX => Err(format!("a request at {offset} bytes")),
        _ => Ok(entry),
    }
}

/// Parses an integer.
pub(super) fn number(name: &str, text: &str) -> std::result::Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.parse().ok().filter(|_| digits);
    parsed.ok_or_else(|| format!("its {name} '{}' is not a number", shown(text)))
}

/// Parses a number of sectors, and returns it in bytes.
pub(super) fn sectors(name: &str, text: &str) -> std::result::Result<u64, String> {
    let bytes = number(name, text)?.checked_mul(SECTOR_BYTES);
    bytes.ok_or_else(|| format!("its {name} '{}' is too large", shown(text)))
}

/// Parses a decimal number of units, and returns it in ns.
pub(super) fn time_ns(text: &str, unit_ns: f64) -> std::result::Result<u64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = text.parse::<f64>().ok().filter(|_| is_plain);
    let ns = value.map(|value| (value * unit_ns).round());
    let ns = ns.filter(|ns| *ns < u64::MAX as f64);
    ns.map(|ns| ns as u64).ok_or_else(|| format!("its time '{}' is invalid", shown(text)))
}

/// Returns the beginning of a field for a message.
pub(super) fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(24).map(plain).collect()
}
