//! Imports Iometer's access specifications as a preset.
//!
//! ```text
//! 'ACCESS SPECIFICATIONS ====
//! 'Access specification name,default assignment
//!     File server,NONE
//! 'size,% of size,% reads,% random,delay,burst,align,reply
//!     512,10,80,100,0,1,0,0
//!     4096,90,80,100,0,1,0,0
//! 'END access specifications
//! ```
//!
//! A line that starts with an apostrophe is a key or a comment; the lines after it are the key's
//! values. Source: Iometer 1.1.0, AccessSpecList.cpp, PageSetup.cpp and Worker.cpp.

use super::{Imported, Notes, RUNS, table, unused};

/// Maximum number of depths in a cycle (arbitrary).
const DEPTHS_MAX: usize = 64;

/// A number in an Iometer line.
type Number = u32;

/// One access specification.
#[derive(Clone, Debug, Default)]
struct Spec {
    name: String,
    lines: Vec<[Number; 8]>,
}

/// The tests of a configuration.
#[derive(Debug, Default)]
struct Config {
    specs: Vec<Spec>,
    /// Names of the specifications used by any worker.
    assigned: Vec<String>,
    seconds: u64,
    ramp_seconds: u64,
    cycles_depth: bool,
    /// Start, end and step of the cycle, and whether the step is a factor.
    cycle: Option<([u64; 3], bool)>,
    depths: Vec<u64>,
    /// Maximum size and starting sector of a worker's disk, in sectors.
    sectors: Vec<(u64, u64)>,
    workers: usize,
}

/// Returns the preset for a configuration.
///
/// # Errors
/// The reason, with the line or the specification.
pub(super) fn import(text: &str) -> Result<Imported, String> {
    let config = Config::parse(text)?;
    let mut notes = Vec::new();
    let specs = config.used();
    if specs.is_empty() {
        return Err("the file has no access specification with a line".into());
    }
    let depths = config.depths(&mut notes)?;
    let mut preset = table([
        ("about", "Access specifications of Iometer.".into()),
        ("runs", RUNS.into()),
        ("direct", true.into()),
        ("unit", "IOPS".into()),
        ("depths", depths.iter().map(|depth| *depth as i64).collect::<Vec<_>>().into()),
        ("level", vec![toml::Value::Table(table([("kind", "random".into())]))].into()),
    ]);
    if config.seconds > 0 {
        preset.insert("seconds".into(), (config.seconds as f64).into());
    }
    preset.insert("warm-up".into(), (config.ramp_seconds as f64).into());
    let needs_span = config.place(&mut preset, &mut notes);
    let mut names: Vec<String> = Vec::new();
    let mut tests = Vec::new();
    for spec in specs {
        let name = unused(&spec.name, &names);
        let test = spec.test(&name).map_err(|what| format!("'{}': {what}", spec.name))?;
        names.push(name);
        tests.push(toml::Value::Table(test));
    }
    preset.insert("test".into(), tests.into());
    if config.workers > 1 {
        let workers = config.workers;
        notes.push(format!("{workers} workers are one thread; --threads {workers} runs as many"));
    }
    let data = "writes have random bytes; --kind byte:0x5a repeats one, as old versions do";
    let notes = Notes { requests: notes, measuring: vec![data.into()] };
    Ok(Imported { table: preset, notes, target: None, needs_span })
}

impl Spec {
    fn test(&self, name: &str) -> Result<toml::Table, String> {
        let line = |&[size, share, reads, random, delay, burst, align, reply]: &[Number; 8]| {
            if reply > 0 {
                return Err(format!("a reply of {reply} bytes is for network tests"));
            }
            Ok(toml::Value::Table(table([
                ("size", size.to_string().into()),
                ("share", format!("{share}%").into()),
                ("reads", format!("{reads}%").into()),
                ("random", format!("{random}%").into()),
                ("align", align.to_string().into()),
                ("burst", i64::from(burst).into()),
                ("pause-ms", i64::from(delay).into()),
            ])))
        };
        let mix = self.lines.iter().map(line).collect::<Result<Vec<_>, String>>()?;
        Ok(table([("name", name.into()), ("operation", "mixed".into()), ("mix", mix.into())]))
    }
}

impl Config {
    fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        let mut key = String::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('\'') {
                // Column headings are comments within their key.
                let is_heading = line.starts_with("'\t") || name.starts_with([' ', '\t']);
                if !is_heading {
                    key = name.trim().to_ascii_lowercase();
                }
                continue;
            }
            config.value(&key, line).map_err(|what| format!("line {number}: {what}"))?;
        }
        Ok(config)
    }

    fn value(&mut self, key: &str, line: &str) -> Result<(), String> {
        match key {
            "access specification name,default assignment" => {
                let name = line.rsplit_once(',').map_or(line, |(name, _)| name).trim();
                self.specs.push(Spec { name: name.to_owned(), lines: Vec::new() });
            }
            "size,% of size,% reads,% random,delay,burst,align,reply" => {
                let numbers = numbers(line, ',')?;
                let count = numbers.len();
                let numbers: Result<[u64; 8], _> = numbers.try_into();
                let numbers = numbers.map_err(|_| format!("{count} numbers: expected 8"))?;
                let small = |number| Number::try_from(number).map_err(|_| "a number is too large");
                let mut line = [0; 8];
                for (place, number) in line.iter_mut().zip(numbers) {
                    *place = small(number)?;
                }
                let spec = self.specs.last_mut().ok_or("a line without a specification")?;
                if spec.lines.len() == crate::workload::ACCESSES_MAX {
                    return Err("too many lines of a specification".into());
                }
                spec.lines.push(line);
            }
            "assigned access specs" => self.assigned.push(line.to_owned()),
            "run time" => {
                let time = numbers(line, ' ')?;
                self.seconds =
                    time.iter().fold(0u64, |sum, it| sum.saturating_mul(60).saturating_add(*it));
            }
            "ramp up time (s)" => self.ramp_seconds = number(line)?,
            "test type" => self.cycles_depth = line.starts_with("CYCLE_OUTSTANDING_IOS"),
            "queue depth cycling" => {
                let words: Vec<&str> = line.split_whitespace().collect();
                let [start, end, step, kind] = words[..] else {
                    return Err(format!("'{line}': expected start, end, step and its type"));
                };
                let is_factor = kind.eq_ignore_ascii_case("EXPONENTIAL");
                self.cycle = Some(([number(start)?, number(end)?, number(step)?], is_factor));
            }
            "worker type" => self.workers += usize::from(line.starts_with("DISK")),
            key if key.starts_with("number of outstanding ios") => {
                let first = line.split(',').next().unwrap_or_default();
                self.depths.push(number(first)?);
            }
            key if key.starts_with("disk maximum size,starting sector") => {
                match numbers(line, ',')?[..] {
                    [size, start, ..] => self.sectors.push((size, start)),
                    _ => return Err(format!("'{line}': expected a size and a sector")),
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the specifications used by workers, or all specifications if no worker uses any.
    fn used(&self) -> Vec<&Spec> {
        let is_used = |spec: &&Spec| {
            !spec.lines.is_empty()
                && (self.assigned.is_empty() || self.assigned.contains(&spec.name))
        };
        self.specs.iter().filter(is_used).collect()
    }

    fn depths(&self, notes: &mut Vec<String>) -> Result<Vec<u64>, String> {
        if let Some(([start, end, step], is_factor)) = self.cycle.filter(|_| self.cycles_depth) {
            if start == 0 || step == 0 || (is_factor && step == 1) {
                return Err("a cycle of the queue depth that never ends".into());
            }
            let next = |depth: &u64| {
                Some(if is_factor {
                    depth.saturating_mul(step)
                } else {
                    depth.saturating_add(step)
                })
            };
            let depths = std::iter::successors(Some(start), next).take_while(|depth| *depth <= end);
            return Ok(depths.take(DEPTHS_MAX).collect());
        }
        let mut depths = self.depths.clone();
        depths.sort_unstable();
        depths.dedup();
        match depths[..] {
            [] => Ok(vec![1]),
            [depth] => Ok(vec![depth]),
            [.., deepest] => {
                notes.push(format!("workers have different depths; all have {deepest} here"));
                Ok(vec![deepest])
            }
        }
    }

    /// Sets the span and shift. Returns whether the span is the whole target.
    fn place(&self, preset: &mut toml::Table, notes: &mut Vec<String>) -> bool {
        let Some(&(size, start)) = self.sectors.first() else { return true };
        if self.sectors.iter().any(|other| *other != (size, start)) {
            notes.push("workers have different parts of the disk; all have the first one's".into());
        }
        preset.insert("shift".into(), start.saturating_mul(512).to_string().into());
        if size > 0 {
            preset.insert("span".into(), size.saturating_mul(512).to_string().into());
        }
        size == 0
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("'{text}' is not a whole number"))
}

fn numbers(line: &str, separator: char) -> Result<Vec<u64>, String> {
    if separator == ' ' {
        return line.split_whitespace().map(number).collect();
    }
    line.split(separator).map(number).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: an access specification produces the same requests as in Iometer. Method: a
    //! configuration written by Iometer 1.1.0.
    use super::super::import;
    use crate::workload::{Access, Changes, Operation, Plan, Preset};

    const FILE: &str = "Version 1.1.0 \n\
        'TEST SETUP ====================================================================\n\
        'Test Description\n\t\n\
        'Run Time\n'\thours      minutes    seconds\n\t0          1          30\n\
        'Ramp Up Time (s)\n\t5\n\
        'Queue Depth Cycling\n'\tstart      end        step       step type\n\
        \t1          32         4          EXPONENTIAL\n\
        'Test Type\n\tCYCLE_OUTSTANDING_IOS\n\
        'END test setup\n\
        'ACCESS SPECIFICATIONS =========================================================\n\
        'Access specification name,default assignment\n\tIdle,NONE\n\
        'size,% of size,% reads,% random,delay,burst,align,reply\n\
        'Access specification name,default assignment\n\tFile, server,NONE\n\
        'size,% of size,% reads,% random,delay,burst,align,reply\n\
        \t512,10,80,100,0,1,0,0\n\t4096,90,75,50,3,8,4096,0\n\
        'END access specifications\n\
        'MANAGER LIST ==================================================================\n\
        'Worker\n\tWorker 1\n'Worker type\n\tDISK\n\
        'Number of outstanding IOs,test connection rate,transactions per connection\n\
        \t16,DISABLED,1\n\
        'Disk maximum size,starting sector\n\t131072,64\n\
        'End default target settings for worker\n\
        'Assigned access specs\n\tFile, server\n'End assigned access specs\n\
        'END manager list\n";

    fn plan(text: &str) -> Result<Plan, String> {
        let imported = import(text, "x.icf").expect("a configuration")?;
        let preset = Preset::from_table(imported.table, "x.icf").map_err(|error| error.chain())?;
        preset.plan(&Changes::default()).map_err(|error| error.chain())
    }

    #[test]
    fn a_configuration_is_a_plan() {
        let made = plan(FILE).unwrap();
        let names: Vec<&str> = made.tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(
            names,
            ["File, server, depth 1", "File, server, depth 4", "File, server, depth 16"]
        );
        let workload = &made.tests[2].workload;
        assert_eq!((workload.operation, workload.depth), (Operation::Mixed, 16));
        assert_eq!((workload.span_bytes, workload.shift_bytes), (64 << 20, 32 << 10));
        assert_eq!((workload.seconds, made.warm_up_seconds), (90.0, 5.0));
        let second = Access {
            bytes: 4096,
            share_percent: 90,
            reads_percent: 75,
            random_percent: 50,
            align_bytes: 4096,
            burst: 8,
            pause_ms: 3,
        };
        assert_eq!(workload.mix[1], second);
        assert_eq!((workload.mix[0].align_bytes, workload.reads_percent), (0, 75));
        let normal = plan(&FILE.replace("CYCLE_OUTSTANDING_IOS", "NORMAL")).unwrap();
        assert_eq!(normal.tests.len(), 1);
        assert_eq!(normal.tests[0].workload.depth, 16);
    }

    #[test]
    fn features_that_cannot_be_imported_are_named() {
        for (from, to, words) in [
            ("\t4096,90,75", "\t4096,80,75", "the sum 90 %"),
            ("4096,0\n'END", "4096,64\n'END", "network tests"),
            ("\t512,10,80,100,0,1,0,0", "\t512,10,80", "3 numbers: expected 8"),
            ("\t512,10,80,100,0,1,0,0", "\t512,10,x,100,0,1,0,0", "line 23: 'x'"),
            ("4          EXP", "1          EXP", "never ends"),
            ("131072,64", "0,0", "add --span"),
            ("\tFile, server\n'End", "\tOther\n'End", "no access specification"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = match import(&FILE.replace(from, to), "x.icf").expect("a configuration") {
                Err(error) => error,
                Ok(imported) if imported.needs_span => "add --span".to_owned(),
                Ok(_) => plan(&FILE.replace(from, to)).expect_err(words),
            };
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
