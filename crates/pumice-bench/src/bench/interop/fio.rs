//! Imports fio's JSON output (`--output-format=json` and `json+`) of one or more concatenated runs.
//!
//! Each direction of a job becomes a test; the jobs of further outputs become further rounds. Only
//! json+ contains latencies, as bins. Each bin counts at its nominal latency: the total latency of
//! requests if fio reports it, otherwise the completion latency.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::imported::{About, Imported, Measured, workload};
use crate::bench::results::Results;
use crate::stats::Latencies;
use crate::workload::{Operation, RECORD_BYTES_MAX, RECORD_BYTES_MIN, Workload};
use crate::workload::{Test, Unit};

/// One output of fio.
#[derive(Deserialize)]
struct Output {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(default)]
    timestamp: u64,
    #[serde(default, rename = "global options")]
    options: Map<String, Value>,
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    #[serde(default)]
    error: i64,
    #[serde(default, rename = "job options")]
    options: Map<String, Value>,
    #[serde(default)]
    read: Direction,
    #[serde(default)]
    write: Direction,
    #[serde(default)]
    trim: Direction,
}

/// One direction of a job.
#[derive(Default, Deserialize)]
struct Direction {
    #[serde(default)]
    io_bytes: u64,
    #[serde(default)]
    total_ios: u64,
    /// In ms.
    #[serde(default)]
    runtime: u64,
    #[serde(default)]
    bw_bytes: f64,
    #[serde(default)]
    clat_ns: Latency,
    #[serde(default)]
    lat_ns: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

/// Parses fio's output.
///
/// # Errors
/// The reason, as text.
pub(super) fn parse(text: &str) -> Result<Results, String> {
    let wrong = |error| format!("incomplete or malformed fio output (json or json+): {error}");
    // Human-readable text may precede and follow the output, which begins with a brace on its own
    // line.
    let next = |text: &str| match text.starts_with('{') {
        true => Some(0),
        false => text.find("\n{").map(|before| before + 1),
    };
    let mut rest = text.trim_start_matches('\u{feff}');
    let mut found = Imported::default();
    let mut about: Option<About> = None;
    while let Some(start) = next(rest) {
        rest = &rest[start..];
        let mut outputs = serde_json::Deserializer::from_str(rest).into_iter::<Output>();
        let Some(output) = outputs.next() else { break };
        let output = output.map_err(wrong)?;
        rest = &rest[outputs.byte_offset()..];
        let mut names: Vec<String> = Vec::new();
        for job in &output.jobs {
            add(&mut found, &mut names, job, &output.options)?;
        }
        about.get_or_insert_with(|| output.about());
    }
    found.finish(about.ok_or("no JSON found")?)
}

impl Output {
    fn about(&self) -> About {
        let option = |name: &str| {
            let mut all = self.jobs.iter().map(|job| &job.options).chain([&self.options]);
            all.find_map(|options| options.get(name)?.as_str())
        };
        let has_bins =
            |one: &Direction| !one.clat_ns.bins.is_empty() || !one.lat_ns.bins.is_empty();
        let mut directions = self.jobs.iter().flat_map(|job| [&job.read, &job.write, &job.trim]);
        let about = if directions.any(has_bins) {
            "Measured by fio; latencies are rounded to its bins."
        } else {
            "Measured by fio, without latencies: they require --output-format=json+."
        };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let options = self.options.iter().map(|(name, value)| (format!("fio {name}"), text(value)));
        About {
            tool: self.version.clone(),
            about: about.to_owned(),
            target: option("filename").or(option("directory")).unwrap_or("not named").to_owned(),
            command: String::new(),
            begun_unix_s: self.timestamp,
            direct: option("direct") == Some("1"),
            environment: options.collect(),
        }
    }
}

/// Adds a test for each direction of a job that transferred data. `names` contains the names in
/// this output.
fn add(
    found: &mut Imported,
    names: &mut Vec<String>,
    job: &Job,
    global: &Map<String, Value>,
) -> Result<(), String> {
    let directions = [("read", &job.read), ("write", &job.write), ("trim", &job.trim)];
    let worked = directions.into_iter().filter(|(_, one)| one.io_bytes > 0 && one.total_ios > 0);
    let worked: Vec<_> = worked.collect();
    for (direction, done) in &worked {
        let name = match worked.len() {
            1 => job.jobname.clone(),
            _ => format!("{} ({direction})", job.jobname),
        };
        // Clones of a job (numjobs without group_reporting) have the same name.
        let copies = names.iter().filter(|other| **other == name).count();
        names.push(name.clone());
        let name = if copies > 0 { format!("{name} #{}", copies + 1) } else { name };
        let options = JobOptions { job: &job.options, global };
        let workload = options.workload(direction, done);
        let unit = match workload.operation {
            Operation::Write | Operation::Read => Unit::Throughput,
            _ => Unit::Rate,
        };
        let mut warnings = Vec::new();
        if job.error != 0 {
            warnings.push(format!("fio ended this job with error {}", job.error));
        }
        let measured = Measured {
            seconds: done.seconds(),
            operations: done.total_ios,
            host_bytes: done.io_bytes,
            latency: done.latency()?,
            warnings,
        };
        found.add(Test { name, unit, workload }, measured)?;
    }
    Ok(())
}

impl Direction {
    /// Returns the duration in seconds. For short jobs, whose runtime is 0 ms, it is derived from
    /// the rate.
    fn seconds(&self) -> f64 {
        match self.runtime {
            0 => self.io_bytes as f64 / self.bw_bytes,
            ms => ms as f64 / 1e3,
        }
    }

    fn latency(&self) -> Result<Latencies, String> {
        let complete = !self.lat_ns.bins.is_empty();
        let bins = if complete { &self.lat_ns.bins } else { &self.clat_ns.bins };
        let mut latency = Latencies::new();
        let mut total = 0u64;
        for (ns, count) in bins {
            let ns = ns.parse().map_err(|_| format!("invalid latency '{ns}' in ns"))?;
            let sum = total.checked_add(*count).filter(|sum| *sum <= self.total_ios);
            total = sum.ok_or("the bins contain more requests than were made")?;
            latency.record_many(ns, *count);
        }
        Ok(latency)
    }
}

/// Options of a job, which take precedence over the global ones.
struct JobOptions<'a> {
    job: &'a Map<String, Value>,
    global: &'a Map<String, Value>,
}

impl JobOptions<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.job.get(name).or_else(|| self.global.get(name))?.as_str()
    }

    fn number(&self, name: &str) -> Option<u64> {
        size(self.get(name)?)
    }

    fn workload(&self, direction: &str, done: &Direction) -> Workload {
        let kind = self.get("rw").or(self.get("readwrite")).unwrap_or(direction);
        let kind = kind.split(':').next().unwrap_or_default();
        let operation = match kind {
            "read" => Operation::Read,
            "write" => Operation::Write,
            "randread" => Operation::RandomRead,
            "randwrite" => Operation::RandomWrite,
            "trim" | "randtrim" => Operation::Trim,
            _ => Operation::Mixed,
        };
        let record = self.get("bs").or(self.get("blocksize")).and_then(|text| {
            // One value for each direction, or one for both.
            let mut parts = text.split(',');
            let first = parts.next()?;
            let own = match direction {
                "write" => parts.next(),
                "trim" => parts.nth(1),
                _ => None,
            };
            size(own.filter(|own| !own.is_empty()).unwrap_or(first))
        });
        let average = done.io_bytes / done.total_ios;
        let sectors = (average + RECORD_BYTES_MIN / 2) / RECORD_BYTES_MIN;
        let average =
            sectors.saturating_mul(RECORD_BYTES_MIN).clamp(RECORD_BYTES_MIN, RECORD_BYTES_MAX);
        let span = self.number("size").unwrap_or(done.io_bytes);
        let small = |name: &str, default: u64| {
            u32::try_from(self.number(name).unwrap_or(default)).unwrap_or(u32::MAX)
        };
        Workload {
            depth: small("iodepth", 1),
            threads: small("numjobs", 1),
            reads_percent: match operation {
                Operation::Mixed => small("rwmixread", 50).min(100),
                _ => 0,
            },
            ..workload(operation, record.unwrap_or(average), span)
        }
    }
}

/// Parses a size in fio's notation: `4k`, `4kb` and `4kib` are 4096.
fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_end_matches("ib").trim_end_matches('b');
    let shift = ["", "k", "m", "g", "t", "p"].iter().position(|known| *known == unit)?;
    number.parse::<u64>().ok()?.checked_mul(1 << (10 * shift))
}

#[cfg(test)]
mod tests {
    //! Goal: every number of fio's output is imported into the right field. Method: output of fio
    //! 3.33 for a sequential and a mixed job, as json and as json+; outputs with one error each.
    use super::*;

    const PLUS: &str = include_str!("samples/fio-plus.json");
    const PLAIN: &str = include_str!("samples/fio-plain.json");

    #[test]
    fn directions_of_jobs_are_tests() {
        let results = parse(PLUS).expect("output of fio");
        let tests = &results.header.plan.tests;
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["write", "mixed (read)", "mixed (write)"]);
        let workload = &tests[0].workload;
        assert_eq!((workload.operation, workload.record_bytes), (Operation::Write, 4096));
        assert_eq!((workload.span_bytes, tests[0].unit), (4 << 20, Unit::Throughput));
        let workload = &tests[1].workload;
        assert_eq!((workload.operation, workload.reads_percent), (Operation::Mixed, 70));
        assert_eq!(results.header.target, "data");
        assert!(!results.header.plan.direct);
        let run = &results.runs[0];
        assert_eq!(
            (run.sample.operations, run.sample.host_bytes, run.sample.written_bytes),
            (1024, 4 << 20, 4 << 20)
        );
        let json: Value = serde_json::from_str(PLUS).expect("JSON");
        for (run, job, direction) in [(0, 0, "write"), (1, 1, "read"), (2, 1, "write")] {
            let fio = &json["jobs"][job][direction];
            let number = |value: &Value| value.as_f64().expect("a number");
            let iops = results.runs[run].value(Unit::Rate);
            assert!((iops / number(&fio["iops"]) - 1.0).abs() < 1e-3, "{iops}");
            let told = results.runs[run].sample.latency.percentiles().expect("bins");
            for (mine, theirs) in [(told.p50_ns, "50.000000"), (told.p99_ns, "99.000000")] {
                let theirs = number(&fio["clat_ns"]["percentile"][theirs]);
                assert!((mine as f64 / theirs - 1.0).abs() < 0.02, "{mine} {theirs}");
            }
            assert_eq!(told.count, results.runs[run].sample.operations);
        }
    }

    #[test]
    fn plain_json_has_rates_and_names_missing_values() {
        let results = parse(PLAIN).expect("output of fio");
        assert!(
            results
                .runs
                .iter()
                .all(|run| run.sample.latency.count() == 0 && run.sample.operations > 0)
        );
        assert!(results.header.about.contains("json+"));
    }

    #[test]
    fn further_outputs_are_further_rounds() {
        let text = format!("fio: some note\n{PLUS}\n{PLUS}{PLUS}\nRun status group 0:\n");
        let results = parse(&text).expect("outputs of fio");
        assert_eq!((results.header.plan.tests.len(), results.runs.len()), (3, 9));
        assert_eq!(results.values(0, 0).len(), 3);
        assert_eq!(results.cell(1, 0).map(|run| run.round).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(results.header.plan.runs, 3);
        let marked = parse(&format!("\u{feff}{PLUS}")).expect("output of fio");
        assert_eq!(marked.runs.len(), 3);
    }

    #[test]
    fn copies_of_a_job_are_separate_tests() {
        let results = parse(&PLUS.replace("\"mixed\"", "\"write\"")).expect("output of fio");
        let names = results.header.plan.tests.iter().map(|test| test.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["write", "write (read)", "write (write)"]);
        let mut json: Value = serde_json::from_str(PLUS).expect("JSON");
        json["jobs"][1] = json["jobs"][0].clone();
        let results = parse(&json.to_string()).expect("output of fio");
        assert_eq!(results.header.plan.tests[1].name, "write #2");
    }

    #[test]
    fn impossible_reports_are_refused() {
        let refused = |from: &str, to: &str| {
            assert!(PLUS.contains(from), "{from}");
            parse(&PLUS.replace(from, to)).expect_err("refused")
        };
        assert!(refused("\"total_ios\" : 1024", "\"total_ios\" : 9").contains("more requests"));
        assert!(refused("\"bs\" : \"4k\"", "\"bs\" : \"128m\"").contains("64 MiB"));
        assert!(refused("\"jobs\"", "\"sboj\"").contains("malformed fio output"));
        assert!(parse(&PLUS[..PLUS.len() / 2]).expect_err("cut").contains("incomplete"));
        let error = refused("\"io_bytes\"", "\"oi_bytes\"");
        assert!(error.contains("no measurement"), "{error}");
        let failed = PLUS.replacen("\"error\" : 0", "\"error\" : 5", 1);
        let results = parse(&failed).expect("output of fio");
        assert!(results.runs[0].warnings[0].contains("error 5"));
    }

    #[test]
    fn sizes_are_read_as_fio_writes_them() {
        for (text, bytes) in [("4k", 4096), ("4KiB", 4096), ("512", 512), ("1m", 1 << 20)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "k", "50%", "1.5m", "99999999p"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
