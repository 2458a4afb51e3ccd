//! Fuzz targets for files that other programs or machines wrote: traces, results of benchmarks,
//! partial results of scans.

use std::io::Write;

use pumice_bench::interop;
use pumice_scan::{Outcome, Partial};
use pumice_sim::trace::{Format, Options, Reader};

/// Reads a trace. Input: one byte that selects the format (0 to 3; otherwise it is detected) and
/// whether bad lines are skipped (bit 7), then the trace. Accepted if it has an entry and no error.
pub fn trace(input: &[u8]) -> bool {
    let Some((&mode, text)) = input.split_first() else { return false };
    let options = Options {
        format: Format::ALL.get(usize::from(mode & 0x7f)).copied(),
        skips_bad: mode & 0x80 != 0,
        disk: None,
    };
    let Ok(mut reader) = Reader::new(text, options) else { return false };
    let mut entries = 0;
    loop {
        match reader.next_entry() {
            Ok(Some(_)) => entries += 1,
            Ok(None) => return entries > 0,
            Err(_) => {
                assert!(!options.skips_bad, "a bad line is an error although it is skipped");
                return false;
            }
        }
    }
}

/// Reads results of `pumice bench`, fio or IOzone, whichever the input resembles.
pub fn bench_results(input: &[u8]) -> bool {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(input).expect("room for the input");
    interop::read(file.path()).is_ok()
}

/// Reads and merges the partial result of a scan, and computes its report. Accepted if it is the
/// result of a whole scan.
pub fn scan_partial(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Ok(partial) = Partial::from_json(text) else { return false };
    let again = Partial::from_json(&partial.to_json()).expect("a partial result can be read back");
    let Ok(merged) = Partial::merge(&[("input".to_owned(), again)]) else { return false };
    let outcome = Outcome::of(&merged);
    let _report = outcome.document(&[], None).to_text();
    true
}
