//! Other tools' results and jobs: what fio and IOzone measured as results of ours, and a plan as a
//! job for fio.
//!
//! * `fio`: its JSON output; `iozone`: its text output; `job`: a job file.
//! * `found`: tests, runs and rounds as they are found in a file.
//!
//! Files are not trusted: they are bounded, and what is none of a known kind is refused with what
//! was expected. What another tool does not say is left out, never guessed: such results have one
//! level, `as measured`, and nothing about what its data saves.

mod fio;
mod found;
mod iozone;
mod job;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::bench::results::{self, Results};
use crate::error::{Error, Result};
use pumice_drive::base::units::format_size;

pub use job::fio_job;

/// Bytes of another tool's file at most: json+ of a hundred jobs has a few MB.
const BYTES_MAX: u64 = 64 << 20;

/// Bytes by which a file's kind is told. IOzone's banner is 1.5 KB, and fio may warn before its
/// output begins.
const HEAD_BYTES: usize = 16 << 10;

/// Reads results of ours, of fio or of IOzone, whichever the file's beginning says.
///
/// # Errors
/// `InvalidInput` for what is none of these, or not whole, with what was expected; `Unsupported`
/// for another version of ours; the operating system's.
pub fn read(path: &Path) -> Result<Results> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), error);
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
    let Some(parse) = parser(&bytes) else {
        let ours = bytes.trim_ascii_start().starts_with(b"{");
        return match ours {
            true => results::read(path),
            false => Err(wrong(path, EXPECTED)),
        };
    };
    file.take(BYTES_MAX + 1 - bytes.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        let what = format!("more than {}: no tool writes so much", format_size(BYTES_MAX));
        return Err(wrong(path, what));
    }
    // Names of files in it need not be text.
    let text = String::from_utf8_lossy(&bytes);
    let mut results = parse(&text).map_err(|what| wrong(path, what))?;
    if let Some(name) = path.file_stem() {
        results.header.title = name.to_string_lossy().into_owned();
    }
    Ok(results)
}

const EXPECTED: &str = "neither results of pumice bench, nor fio's --output-format=json or json+, \
                        nor what IOzone prints";

fn wrong(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {what}", path.display()))
}

type Parser = fn(&str) -> std::result::Result<Results, String>;

/// The reader for another tool's file that begins like this.
fn parser(head: &[u8]) -> Option<Parser> {
    let has = |what: &[u8]| head.windows(what.len()).any(|window| window == what);
    if head.starts_with(b"{\"pumice_bench\"") {
        None
    } else if has(b"\"fio version\"") {
        Some(fio::parse)
    } else if has(b"Iozone: Performance Test of File I/O") {
        Some(iozone::parse)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the kind of a file is told by its beginning, and nothing but whole files of known
    //! kinds gets through. Method: real output of fio 3.33 and IOzone 3.489, whole, cut off
    //! anywhere and with bytes changed.
    use std::fs;

    use super::*;
    use crate::bench::results::Writer;

    const FIO: &[u8] = include_bytes!("samples/fio-plus.json");
    const IOZONE: &[u8] = include_bytes!("samples/iozone-auto.txt");

    fn read_bytes(bytes: &[u8]) -> Result<Results> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("some.out");
        fs::write(&path, bytes).expect("written");
        read(&path)
    }

    #[test]
    fn kinds_are_told_apart() {
        assert_eq!(read_bytes(FIO).expect("fio's").header.tool, "fio-3.33");
        assert_eq!(read_bytes(IOZONE).expect("IOzone's").header.tool, "IOzone 3.489");
        assert_eq!(read_bytes(IOZONE).expect("IOzone's").header.title, "some");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ours");
        let ours = crate::bench::results::sample::results(&[1.0]);
        drop(Writer::create(&path, &ours.header).expect("written"));
        assert_eq!(read(&path).expect("ours").header, ours.header);
        for (bytes, wanted) in [
            (&b""[..], "nor what IOzone prints"),
            (b"\x7fELF\0\0", "nor what IOzone prints"),
            (b"{\"a\":1}\n", "no result of pumice bench"),
        ] {
            let error = read_bytes(bytes).expect_err("none of these").chain();
            assert!(error.contains(wanted) && error.contains("some.out"), "{error}");
        }
    }

    #[test]
    fn nothing_in_a_file_is_trusted() {
        let mut random = pumice_drive::base::seed::random(5);
        let mut draw = |below: usize| {
            use rand_xoshiro::rand_core::Rng;
            (random.next_u64() % below as u64) as usize
        };
        for (whole, parse) in [(FIO, fio::parse as Parser), (IOZONE, iozone::parse as Parser)] {
            for _ in 0..300 {
                let mut bytes = whole[..draw(whole.len())].to_vec();
                let _ = parse(&String::from_utf8_lossy(&bytes));
                bytes = whole.to_vec();
                for _ in 0..4 {
                    let at = draw(bytes.len());
                    bytes[at] = b"0919-e.{}[]\" \n\xff"[draw(15)];
                }
                if let Ok(results) = parse(&String::from_utf8_lossy(&bytes)) {
                    // Whatever got through can be shown.
                    super::super::report::summary(&results);
                }
            }
        }
    }
}
