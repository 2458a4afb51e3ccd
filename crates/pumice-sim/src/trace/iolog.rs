//! Parses the log that fio writes with `write_iolog`, versions 2 and 3.
//!
//! ```text
//! fio version 2 iolog            fio version 3 iolog
//! FILE add                       MICROSECONDS FILE add
//! FILE open                      MICROSECONDS FILE open
//! FILE write OFFSET LENGTH       MICROSECONDS FILE write OFFSET LENGTH
//! FILE wait MICROSECONDS 0
//! ```
//!
//! Actions on files are skipped, and files are numbered in order of appearance. A wait is relative
//! to the previous one. `sync` and `datasync` are treated as flushes.
//!
//! Source: fio's documentation, "Trace file format v2" and "v3". Times in version 3 are in
//! microseconds since the start of the job, as written by fio of 2024.

use super::entry::{Entry, number, shown};
use crate::log_drive::Verb;

/// Maximum number of distinct files. More are an error.
const FILES_MAX: usize = 1024;

/// Maximum length of a file name in bytes.
const NAME_BYTES_MAX: usize = 4096;

const MICROSECOND_NS: u64 = 1000;

/// Parser state.
#[derive(Debug, Default)]
pub(super) struct Iolog {
    /// Version 2 or 3, known after the first line.
    version: Option<u32>,
    files: Vec<String>,
    /// Sum of the waits so far.
    now_ns: u64,
}

/// Returns the version declared in the first line.
pub(super) fn version(line: &str) -> Option<u32> {
    match line.trim() {
        "fio version 2 iolog" => Some(2),
        "fio version 3 iolog" => Some(3),
        _ => None,
    }
}

fn microseconds(text: &str) -> Result<u64, String> {
    let ns = number("time", text)?.checked_mul(MICROSECOND_NS);
    ns.ok_or_else(|| format!("its time '{}' is invalid", shown(text)))
}

impl Iolog {
    /// Parses a line.
    pub(super) fn entry(&mut self, line: &str) -> Result<Option<Entry>, String> {
        let Some(log_version) = self.version else {
            let first = version(line)
                .ok_or("the first line must be 'fio version 2 iolog' or 'fio version 3 iolog'");
            self.version = Some(first?);
            return Ok(None);
        };
        let mut fields = line.split_ascii_whitespace();
        let time_ns = match (log_version, &mut fields) {
            (3, fields) => microseconds(fields.next().unwrap_or_default())?,
            _ => self.now_ns,
        };
        let (file, action) = (fields.next().unwrap_or_default(), fields.next());
        let action = action.ok_or("the action is missing")?;
        if matches!(action, "add" | "open" | "close") {
            return Ok(None);
        }
        let range = (fields.next(), fields.next());
        let verb = match action {
            "wait" if log_version == 2 => {
                let wait_ns = microseconds(range.0.unwrap_or_default())?;
                self.now_ns = self.now_ns.checked_add(wait_ns).ok_or("its wait is too long")?;
                return Ok(None);
            }
            "read" => Verb::Read,
            "write" => Verb::Write,
            "trim" => Verb::Trim,
            "sync" | "datasync" | "sync_file_range" => Verb::Flush,
            _ => return Err(format!("its action '{}' is unknown", shown(action))),
        };
        let disk = self.file(file)?;
        let (offset, bytes) = match (verb, range) {
            (Verb::Flush, _) => (0, 0),
            (_, (Some(offset), Some(bytes))) => {
                (number("offset", offset)?, number("length", bytes)?)
            }
            _ => return Err("offset and length are missing".to_owned()),
        };
        Ok(Some(Entry { time_ns, verb, disk, offset, bytes }))
    }

    /// Returns the number of a file.
    fn file(&mut self, name: &str) -> Result<u32, String> {
        if let Some(number) = self.files.iter().position(|known| known == name) {
            return Ok(number as u32);
        }
        if self.files.len() == FILES_MAX || name.len() > NAME_BYTES_MAX {
            return Err(format!("more than {FILES_MAX} files, or a file name that is too long"));
        }
        self.files.push(name.to_owned());
        Ok(self.files.len() as u32 - 1)
    }
}
