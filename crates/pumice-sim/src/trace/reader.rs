//! Reads the requests of a trace, line by line.

use std::io::{BufRead, BufReader, Read};

use super::blkparse::Blkparse;
use super::columns;
use super::entry::{Entry, checked};
use super::format::Format;
use super::iolog::Iolog;
use crate::{Error, Result};

/// Maximum line length in bytes (arbitrary: lines of all formats are far shorter).
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// Options of a trace reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Format; if absent, it is detected from the beginning of the trace.
    pub format: Option<Format>,
    /// Whether lines that cannot be parsed are counted rather than reported as an error.
    pub skips_bad: bool,
    /// Number of the disk to read; if absent, the first that occurs.
    pub disk: Option<u32>,
}

/// Numbers of lines and requests skipped so far.
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
    has_requests: bool,
}

#[derive(Debug)]
enum Parser {
    Msr,
    Mqsim,
    Blkparse(Blkparse),
    Iolog(Iolog),
}

impl<R: Read> Reader<R> {
    /// Creates a reader at the beginning of `source`, which is read in units of 64 KiB.
    ///
    /// # Errors
    /// `InvalidInput` if the format is neither specified nor detected; `Io`.
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
        let line = Vec::new();
        Ok(Self { source, parser, options, line, line_number: 0, left_out, has_requests: false })
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

    /// Returns the lines and requests skipped so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// Returns the number of the last line read, starting at 1.
    pub fn line_number(&self) -> u64 {
        self.line_number
    }

    /// Returns the next request, or `None` at the end.
    ///
    /// # Errors
    /// `InvalidInput` with the line number for a line that cannot be parsed, unless such lines are
    /// skipped, or at the end of a trace without a request; `Io`.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        loop {
            let found = match self.read_line()? {
                None if self.has_requests => return Ok(None),
                None => return Err(self.no_request()),
                Some(false) => Err("longer than 64 KiB".to_owned()),
                Some(true) => self.parse(),
            };
            match found {
                Ok(None) => {}
                Ok(Some(entry)) => {
                    if *self.options.disk.get_or_insert(entry.disk) == entry.disk {
                        self.has_requests = true;
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

    fn no_request(&self) -> Error {
        let events = match self.parser {
            Parser::Blkparse(_) => ": none is queued (Q) or issued (D)",
            _ => "",
        };
        let LeftOut { bad_lines, other_disks } = self.left_out;
        invalid(format!(
            "no request in {} lines of format {}{events}; {bad_lines} lines and {other_disks} \
             requests of other disks were skipped",
            self.line_number,
            self.format()
        ))
    }

    /// Reads the next line. Returns whether its length was within the limit, or `None` at the end.
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

    /// Parses the line. Returns a request, `None` for a line without a request, or the reason for
    /// an error.
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

fn invalid(what: String) -> Error {
    Error::InvalidInput(what.into())
}
