//! Recorded requests, read line by line from files of any length.
//!
//! | format | a line | time |
//! |---|---|---|
//! | `msr` | Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime | 100 ns since 1601 |
//! | `mqsim` | time, device, sector, sectors, 0 write or 1 read | ns; DiskSim's, with a point, ms |
//! | `blkparse` | default output of blkparse: events Q, or D if there are no Q | s |
//! | `iolog` | fio's log: file, action, offset, length; version 3 begins with the time | us |
//!
//! A sector has 512 bytes. If a trace has several disks, one is read: the first that occurs, or the
//! requested one. Parsing a line allocates nothing except the names of an iolog's files, whose
//! number is limited; a line may have at most 64 KiB.

mod blkparse;
mod columns;
mod iolog;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::str::FromStr;

use blkparse::Blkparse;
use iolog::Iolog;

use super::log_drive::Verb;
use crate::{Error, Result};

/// Longest line in bytes (arbitrary: lines of all formats are far shorter).
const LINE_BYTES_MAX: usize = 64 << 10;

/// Longest request in bytes: a longer one is an error (arbitrary).
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Largest offset in bytes: beyond the largest drive that a profile can describe.
const OFFSET_MAX: u64 = 1 << 60;

/// Bytes of a sector, the unit of three of the formats.
const SECTOR_BYTES: u64 = 512;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// CSV of Microsoft Research Cambridge, as SNIA distributes it.
    Msr,
    /// Five columns of MQSim and DiskSim.
    Mqsim,
    /// Text of blkparse in its default format.
    Blkparse,
    /// fio's log of version 2 or 3.
    Iolog,
}

/// A recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Time of the request, in ns since an arbitrary moment.
    pub time_ns: u64,
    /// Kind of the request.
    pub verb: Verb,
    /// Number of the disk or file; the one that the [`Reader`] was asked for.
    pub disk: u32,
    /// Offset in bytes; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: u64,
}

/// Options of a trace reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Format; detected from the beginning of the trace if absent.
    pub format: Option<Format>,
    /// Whether lines that cannot be parsed are counted instead of returned as an error.
    pub skips_bad: bool,
    /// Number of the disk to read; the first that occurs if absent.
    pub disk: Option<u32>,
}

/// Lines and requests that were skipped so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Lines that could not be parsed.
    pub bad_lines: u64,
    /// Requests of other disks.
    pub other_disks: u64,
}

/// Reads the entries of a trace.
#[derive(Debug)]
pub struct Reader<R> {
    source: BufReader<R>,
    parser: Parser,
    options: Options,
    line: Vec<u8>,
    line_number: u64,
    left_out: LeftOut,
}

#[derive(Debug)]
enum Parser {
    Msr,
    Mqsim,
    Blkparse(Blkparse),
    Iolog(Iolog),
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Msr, Self::Mqsim, Self::Blkparse, Self::Iolog];

    /// Returns the name of the format on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Msr => "msr",
            Self::Mqsim => "mqsim",
            Self::Blkparse => "blkparse",
            Self::Iolog => "iolog",
        }
    }

    /// Detects the format from the beginning of a file.
    pub fn detect(beginning: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(beginning);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        if iolog::version(line).is_some() {
            return Some(Self::Iolog);
        }
        if columns::is_msr_header(line) || columns::msr(line).is_ok() {
            return Some(Self::Msr);
        }
        if columns::mqsim(line).is_ok() {
            return Some(Self::Mqsim);
        }
        text.lines().take(100).any(blkparse::is_event).then_some(Self::Blkparse)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let known = Self::ALL.into_iter().find(|format| format.name() == text);
        known.ok_or_else(|| format!("invalid trace format '{text}': expected one of {names}"))
    }
}

fn invalid(what: String) -> Error {
    Error::InvalidInput(what.into())
}

impl<R: Read> Reader<R> {
    /// Creates a reader at the beginning of `source`, which it reads in units of 64 KiB.
    ///
    /// # Errors
    /// `InvalidInput` if the format is neither given nor detected; `Io`.
    pub fn new(source: R, options: Options) -> Result<Self> {
        let mut source = BufReader::with_capacity(LINE_BYTES_MAX, source);
        let beginning = source
            .fill_buf()
            .map_err(|error| Error::Io { what: "cannot read".into(), source: error })?;
        let format = options.format.or_else(|| Format::detect(beginning));
        let Some(format) = format else {
            let names = Format::ALL.map(Format::name).join(", ");
            return Err(invalid(format!("not a trace of a known format ({names})")));
        };
        let parser = match format {
            Format::Msr => Parser::Msr,
            Format::Mqsim => Parser::Mqsim,
            Format::Blkparse => Parser::Blkparse(Blkparse::new(beginning)),
            Format::Iolog => Parser::Iolog(Iolog::default()),
        };
        let left_out = LeftOut::default();
        Ok(Self { source, parser, options, line: Vec::new(), line_number: 0, left_out })
    }

    /// Returns the format of the trace.
    pub fn format(&self) -> Format {
        match self.parser {
            Parser::Msr => Format::Msr,
            Parser::Mqsim => Format::Mqsim,
            Parser::Blkparse(_) => Format::Blkparse,
            Parser::Iolog(_) => Format::Iolog,
        }
    }

    /// Returns what was skipped so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Returns the number of the line that was read last, from 1.
    pub fn line_number(&self) -> u64 {
        self.line_number
    }

    /// Returns the next request, or `None` at the end.
    ///
    /// # Errors
    /// `InvalidInput` with the line number for a line that cannot be parsed, unless such lines are
    /// skipped; `Io`.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        loop {
            let found = match self.read_line()? {
                None => return Ok(None),
                Some(false) => Err("longer than 64 KiB".to_owned()),
                Some(true) => self.parse(),
            };
            match found {
                Ok(None) => {}
                Ok(Some(entry)) => {
                    if *self.options.disk.get_or_insert(entry.disk) == entry.disk {
                        return Ok(Some(entry));
                    }
                    self.left_out.other_disks += 1;
                }
                Err(_) if self.options.skips_bad => self.left_out.bad_lines += 1,
                Err(what) => {
                    let (number, format) = (self.line_number, self.format());
                    return Err(invalid(format!(
                        "line {number} is not a line of format {format}: {what}"
                    )));
                }
            }
        }
    }

    /// Reads the next line. Returns whether it was short enough, or `None` at the end.
    fn read_line(&mut self) -> Result<Option<bool>> {
        let failed = |error| Error::Io { what: "cannot read".into(), source: error };
        self.line.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let got = self.source.by_ref().take(most).read_until(b'\n', &mut self.line);
        if got.map_err(failed)? == 0 {
            return Ok(None);
        }
        self.line_number += 1;
        if self.line.len() <= LINE_BYTES_MAX {
            return Ok(Some(true));
        }
        if self.line.last() != Some(&b'\n') {
            self.source.skip_until(b'\n').map_err(failed)?;
        }
        Ok(Some(false))
    }

    /// Parses the line. Returns a request, `None` for a line without one, or what is wrong.
    fn parse(&mut self) -> std::result::Result<Option<Entry>, String> {
        let line = str::from_utf8(&self.line).map_err(|_| "not valid UTF-8".to_owned())?.trim();
        if line.is_empty() {
            return Ok(None);
        }
        let entry = match &mut self.parser {
            Parser::Msr if self.line_number == 1 && columns::is_msr_header(line) => None,
            Parser::Msr => Some(columns::msr(line)?),
            Parser::Mqsim => Some(columns::mqsim(line)?),
            Parser::Blkparse(parser) => parser.entry(line)?,
            Parser::Iolog(parser) => parser.entry(line)?,
        };
        entry.map(checked).transpose()
    }
}

/// Checks that an entry has a possible size.
fn checked(entry: Entry) -> std::result::Result<Entry, String> {
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
fn number(name: &str, text: &str) -> std::result::Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.parse().ok().filter(|_| digits);
    parsed.ok_or_else(|| format!("its {name} '{}' is not a number", shown(text)))
}

/// Parses a number of sectors, and returns it in bytes.
fn sectors(name: &str, text: &str) -> std::result::Result<u64, String> {
    let bytes = number(name, text)?.checked_mul(SECTOR_BYTES);
    bytes.ok_or_else(|| format!("its {name} '{}' is too large", shown(text)))
}

/// Parses a decimal number of units, and returns it in ns.
fn time_ns(text: &str, unit_ns: f64) -> std::result::Result<u64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = text.parse::<f64>().ok().filter(|_| is_plain);
    let ns = value.map(|value| (value * unit_ns).round());
    let ns = ns.filter(|ns| *ns < u64::MAX as f64);
    ns.map(|ns| ns as u64).ok_or_else(|| format!("its time '{}' is invalid", shown(text)))
}

/// Returns the beginning of a field, for a message.
fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(24).map(plain).collect()
}
