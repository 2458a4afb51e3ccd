//! Interoperation with other tools: imports measurements of fio and IOzone as results, and exports
//! plans as fio jobs.
//!
//! * `fio`: its JSON output; `iozone`: its text output; `job`: a job file.
//! * `imported`: tests, runs and rounds of an imported file.
//!
//! Files are not trusted: their size is limited, and files of unknown format are refused. Facts
//! that another tool does not report are omitted, never guessed. Such results have one level,
//! `as measured`, and no findings about the compressibility of the data.

mod fio;
mod imported;
mod iozone;
mod job;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::bench::results::{self, Results};
use crate::error::{Error, Result};
use pumice_drive::base::units::format_size;

pub use job::fio_job;

/// Maximum size of another tool's file in bytes. The json+ output of a hundred jobs has a few MB.
const BYTES_MAX: u64 = 64 << 20;

/// Bytes at the beginning of a file that are searched for the format. IOzone's banner has 1.5 KB,
/// and fio may print warnings first.
const HEAD_BYTES: usize = 16 << 10;

/// Reads results of this program, of fio or of IOzone. The beginning of the file determines the
/// format. A file of this program contains the results of each target that took turns.
///
/// # Errors
/// [`Error::Invalid`] for other or incomplete files; the errors of [`results::read`];
/// [`Error::Io`].
pub fn read(path: &Path) -> Result<Vec<Results>> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), error);
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
    let Some(parse) = parser(&bytes) else {
        let ours = bytes.trim_ascii_start().starts_with(b"{");
        return if ours { results::read(path) } else { Err(wrong(path, EXPECTED)) };
    };
    file.take(BYTES_MAX + 1 - bytes.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        let what = format!("the file is larger than {}", format_size(BYTES_MAX));
        return Err(wrong(path, what));
    }
    // File names in the output need not be UTF-8.
    let text = String::from_utf8_lossy(&bytes);
    let mut results = parse(&text).map_err(|what| wrong(path, what))?;
    if let Some(name) = path.file_stem() {
        results.header.title = name.to_string_lossy().into_owned();
    }
    Ok(vec![results])
}

const EXPECTED: &str = "unknown format: expected results of pumice bench, fio's \
                        --output-format=json or json+, or output of IOzone";

fn wrong(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {what}", path.display()))
}

type Parser = fn(&str) -> std::result::Result<Results, String>;

/// Returns the parser for another tool's file, based on its beginning.
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
    //! Goal: the beginning of a file identifies its format, and only complete files of known
    //! formats are accepted. Method: real output of fio 3.33 and IOzone 3.489, complete, truncated
    //! at any position and with changed bytes.
    use std::fs;

    use super::*;
    use crate::bench::results::Writer;

    const FIO: &[u8] = include_bytes!("samples/fio-plus.json");
    const IOZONE: &[u8] = include_bytes!("samples/iozone-auto.txt");

    fn read_bytes(bytes: &[u8]) -> Result<Results> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("some.out");
        fs::write(&path, bytes).expect("written");
        read(&path).map(|mut all| all.remove(0))
    }

    #[test]
    fn kinds_are_told_apart() {
        assert_eq!(read_bytes(FIO).expect("fio's").header.tool, "fio-3.33");
        assert_eq!(read_bytes(IOZONE).expect("IOzone's").header.tool, "IOzone 3.489");
        assert_eq!(read_bytes(IOZONE).expect("IOzone's").header.title, "some");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ours");
        let ours = crate::bench::results::sample::results(&[1.0]);
        drop(Writer::create(&path, std::slice::from_ref(&ours.header)).expect("written"));
        assert_eq!(read(&path).expect("ours"), [Results { runs: Vec::new(), ..ours }]);
        for (bytes, wanted) in [
            (&b""[..], "or output of IOzone"),
            (b"\x7fELF\0\0", "or output of IOzone"),
            (b"{\"a\":1}\n", "not a result of pumice bench"),
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
                    // Accepted results can be displayed.
                    super::super::report::summary(&results);
                }
            }
        }
    }
}
