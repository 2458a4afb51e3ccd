//! The formats of traces, their names, and their detection.

use std::fmt;
use std::str::FromStr;

use super::{blkparse, columns, iolog};

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The CSV format of Microsoft Research Cambridge, as distributed by SNIA.
    Msr,
    /// The five columns used by MQSim and DiskSim.
    Mqsim,
    /// The default text format of blkparse.
    Blkparse,
    /// fio's log, version 2 or 3.
    Iolog,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Msr, Self::Mqsim, Self::Blkparse, Self::Iolog];

    /// Returns the name of the format for the command line.
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
