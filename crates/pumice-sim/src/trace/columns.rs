//! Parses the two column formats.
//!
//! Source: the README of the MSR Cambridge traces at SNIA's repository (timestamps are Windows
//! file times, in 100 ns); MQSim's README, section on traces; the DiskSim manual, appendix on
//! ASCII traces (bit 0 of the flags is set for reads, times are ms with decimals).

use super::entry::{Entry, number, sectors, shown, time_ns};
use crate::log_drive::Verb;

type Parsed = Result<Entry, String>;

/// Nanoseconds of a tick of Windows file time.
const TICK_NS: u64 = 100;

const MS_NS: f64 = 1e6;

/// Returns whether the line contains the names of the columns, as in some copies of the traces.
pub(super) fn is_msr_header(line: &str) -> bool {
    line.to_ascii_lowercase().starts_with("timestamp,hostname,")
}

/// Parses Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime. The last column is optional.
pub(super) fn msr(line: &str) -> Parsed {
    let fields = fields(line.split(','))?;
    let (time, disk, verb, offset, bytes) = match fields.as_slice() {
        [time, _, disk, verb, offset, bytes] => (time, disk, verb, offset, bytes),
        [time, _, disk, verb, offset, bytes, _] => (time, disk, verb, offset, bytes),
        _ => return Err(format!("it has {} columns, not 7", fields.len())),
    };
    let ticks = number("time", time)?;
    let verb = match verb.to_ascii_lowercase().as_str() {
        "read" => Verb::Read,
        "write" => Verb::Write,
        _ => return Err(format!("its type '{}' is neither Read nor Write", shown(verb))),
    };
    Ok(Entry {
        time_ns: ticks.checked_mul(TICK_NS).ok_or("its time is beyond the year 2185")?,
        verb,
        disk: disk_number(disk)?,
        offset: number("offset", offset)?,
        bytes: number("size", bytes)?,
    })
}

/// Parses five columns: time, device, sector, number of sectors, and 0 for a write or 1 for a read.
pub(super) fn mqsim(line: &str) -> Parsed {
    let fields = fields(line.split_ascii_whitespace())?;
    let [time, disk, sector, count, flags] = fields.as_slice() else {
        return Err(format!("it has {} columns, not 5", fields.len()));
    };
    let time_ns = if time.contains('.') { time_ns(time, MS_NS)? } else { number("time", time)? };
    Ok(Entry {
        time_ns,
        verb: if number("type", flags)? & 1 == 1 { Verb::Read } else { Verb::Write },
        disk: disk_number(disk)?,
        offset: sectors("sector", sector)?,
        bytes: sectors("size", count)?,
    })
}

/// Returns at most one more field than any format has, so that excess fields are detected.
fn fields<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Vec<&'a str>, String> {
    Ok(parts.map(str::trim).take(8).collect())
}

fn disk_number(text: &str) -> Result<u32, String> {
    let disk = number("disk", text)?;
    u32::try_from(disk).map_err(|_| format!("its disk {disk} is invalid"))
}
