//! Imports workloads of other tools as presets: job files of fio, and configurations of Iometer.
//!
//! * `sections`: the lines of a job file.
//! * `job`: one job as a test; `options`: its options; `data`: the written data; `kinds`: the kinds
//!   of requests; `sizes`: numbers in fio's notation.
//! * `fio`: a whole job file.
//! * `iometer`: access specifications.
//!
//! An option becomes part of the preset, makes no difference to the requests, or is named in an
//! error. A supported option with a different effect is noted. Files are not trusted: the caller
//! limits their size, and malformed parts are errors with the line or job.

mod data;
mod fio;
mod iometer;
mod job;
mod kinds;
mod options;
mod sections;
mod sizes;

/// A preset from another tool's file.
#[derive(Debug)]
pub(super) struct Imported {
    /// The preset, with the keys of a preset file.
    pub(super) table: toml::Table,
    /// Differences from the other tool.
    pub(super) notes: Notes,
    /// The target named in the file, in the notation of the command line.
    pub(super) target: Option<String>,
    /// Whether a workload has no size, so that a span must be specified.
    pub(super) needs_span: bool,
}

/// Differences from another tool, as sentences without a full stop.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Differences between the requests themselves.
    pub(super) requests: Vec<String>,
    /// Differences in the execution of requests: in the data, and in the path to the target.
    pub(super) measuring: Vec<String>,
}

/// Number of rounds: enough to judge targets that take turns.
const RUNS: i64 = 8;

/// Returns the preset for another tool's file; `None` if the text is not such a file.
///
/// # Errors
/// The reason, as text.
pub(super) fn import(text: &str, name: &str) -> Option<Result<Imported, String>> {
    let text = text.trim_start_matches('\u{feff}');
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(['#', ';']))?;
    if first.starts_with('\'') || is_version(first) {
        return Some(iometer::import(text));
    }
    // A preset starts with its description, which precedes any section.
    let is_job = first.starts_with('[') && !first.starts_with("[[");
    is_job.then(|| fio::import(text, name))
}

/// Returns whether this is the first line of an Iometer configuration: `Version 1.1.0`.
fn is_version(line: &str) -> bool {
    line.strip_prefix("Version ").is_some_and(|rest| {
        !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || c == '.' || c == '-')
    })
}

/// Returns a table with these keys.
fn table<const N: usize>(pairs: [(&str, toml::Value); N]) -> toml::Table {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns a unique name, with a number appended if the name is already used.
fn unused(name: &str, names: &[String]) -> String {
    let is_taken = |name: &String| names.contains(name);
    let numbered = (2..).map(|number| format!("{name} #{number}"));
    let all = std::iter::once(name.to_owned()).chain(numbered);
    all.into_iter().find(|name| !is_taken(name)).expect("there are more names than tests")
}

#[cfg(test)]
mod tests {
    //! Goal: no file of another tool causes a failure without a reason. Method: valid files,
    //! truncated and with random bytes replaced.
    use rand::RngExt;

    use super::*;
    use crate::workload::{Changes, Preset};
    use pumice_drive::base::seed::random;

    const FILES: [&str; 2] = [
        "[global]\nsize=64m\n[a]\nrw=randrw\nbssplit=4k/10:8k/,16k/100\nnumjobs=2\nba=512\n\
         runtime=5m\ntime_based\nbuffer_pattern=0xab\n[b]\nstonewall\nrw=read:-8k\nfsync=1\n",
        "Version 1.1.0\n'Run Time\n\t0 1 2\n'Test Type\n\tCYCLE_OUTSTANDING_IOS\n\
         'Queue Depth Cycling\n\t1 32 2 EXPONENTIAL\n\
         'Access specification name,default assignment\n\tx,NONE\n\
         'size,% of size,% reads,% random,delay,burst,align,reply\n\t4096,100,75,50,3,8,4096,0\n\
         'Disk maximum size,starting sector\n\t131072,64\n'Assigned access specs\n\tx\n",
    ];

    const BYTES: &[u8] = b"0123456789kmg%:/,-=[]\n' x\xff";

    fn try_all(text: &str) -> bool {
        let Some(Ok(imported)) = import(text, "x") else { return false };
        let preset = Preset::from_table(imported.table, "x");
        preset.is_ok_and(|preset| preset.plan(&Changes::default()).is_ok())
    }

    #[test]
    fn hostile_files_are_refused_or_planned() {
        for file in FILES {
            assert!(try_all(file), "{file}");
            assert!(try_all(&format!("\u{feff}{file}")), "with a byte order mark: {file}");
            (0..file.len()).for_each(|len| {
                try_all(&file[..len]);
            });
            let mut random = random(7);
            for _ in 0..2000 {
                let mut bytes = file.as_bytes().to_vec();
                for _ in 0..random.random_range(1..4) {
                    let place = random.random_range(0..bytes.len());
                    bytes[place] = BYTES[random.random_range(0..BYTES.len())];
                }
                try_all(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}
