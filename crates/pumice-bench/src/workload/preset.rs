//! Presets: plans as TOML files, and changes from a command line.
//!
//! ```toml
//! about = "What it shows."
//! runs = 10                      # keys at this level apply to every test
//! span = "1G"
//! [[level]]
//! saved = "50%"                  # kind: exact
//! [[test]]
//! operation = "random-read"
//! records = ["4K", "64K"]        # one test for each
//! depth = 32
//! ```
//!
//! Unknown keys are refused, so that a misspelt key is not silently a default.

use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::payload::{KindName, Saving};
use crate::workload::{Cache, Level, Order, Plan, Test, Unit};
use crate::workload::{Flush, Operation, Pattern, Workload};
use pumice_drive::base::near::nearest;
use pumice_drive::base::units::{format_size_exact, parse_size};

/// Name and text of a preset.
macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("presets/", $name, ".toml")))),*]
    };
}

/// The built-in presets; the first is the default.
pub const PRESETS: [(&str, &str); 15] = presets![
    "compressibility",
    "iozone-throughput",
    "iozone-iops",
    "crystaldiskmark",
    "as-ssd",
    "as-ssd-compression",
    "hd-tune",
    "atto",
    "iometer",
    "copy",
    "copy-paste",
    "snia-iops",
    "snia-tp",
    "snia-lat",
    "wsat",
];

/// Keys of a preset, of both a preset and a test, and of a test only.
const TOP_KEYS: [&str; 14] = [
    "about",
    "runs",
    "runs-max",
    "precision",
    "steady",
    "purge",
    "precondition",
    "fills",
    "order",
    "direct",
    "cache",
    "warm-up",
    "level",
    "test",
];
const COMMON_KEYS: [&str; 9] =
    ["depth", "threads", "span", "shift", "seconds", "flush", "pattern", "reads", "unit"];
const TEST_KEYS: [&str; 4] = ["operation", "name", "record", "records"];

/// Default span, and the word for the whole target.
const SPAN_DEFAULT: &str = "1G";
const WHOLE: &str = "all";

/// Maximum size of a preset file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A preset, from which a plan is made.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Preset {
    /// Description.
    pub about: String,
    #[serde(default = "ten")]
    runs: u32,
    runs_max: Option<u32>,
    precision: Option<String>,
    steady: Option<String>,
    #[serde(default)]
    purge: bool,
    #[serde(default)]
    precondition: u32,
    #[serde(default = "yes")]
    fills: bool,
    #[serde(default)]
    order: Order,
    #[serde(default)]
    direct: bool,
    #[serde(default)]
    cache: Cache,
    #[serde(default)]
    warm_up: f64,
    #[serde(flatten)]
    common: Settings,
    #[serde(rename = "level")]
    levels: Vec<LevelText>,
    #[serde(rename = "test")]
    tests: Vec<TestText>,
}

fn ten() -> u32 {
    10
}

fn yes() -> bool {
    true
}

/// Keys that a preset sets for all tests and a test for itself.
#[derive(Clone, Debug, Default, Deserialize)]
struct Settings {
    depth: Option<u32>,
    threads: Option<u32>,
    span: Option<String>,
    shift: Option<String>,
    seconds: Option<f64>,
    flush: Option<Flush>,
    pattern: Option<Pattern>,
    reads: Option<String>,
    unit: Option<Unit>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelText {
    name: Option<String>,
    kind: Option<String>,
    saved: Option<String>,
    duplicates: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct TestText {
    operation: Operation,
    name: Option<String>,
    record: Option<String>,
    #[serde(default)]
    records: Vec<String>,
    #[serde(flatten)]
    own: Settings,
}

/// Changes of a preset from a command line; absent fields change nothing.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Fewer and shorter runs.
    pub quick: bool,
    /// Rounds.
    pub runs: Option<u32>,
    /// Rounds at most.
    pub runs_max: Option<u32>,
    /// Half the width of the mean's interval, in per cent of the mean.
    pub precision_percent: Option<f64>,
    /// Duration of each time-based test, in seconds.
    pub seconds: Option<f64>,
    /// Duration of its warm-up, in seconds.
    pub warm_up_seconds: Option<f64>,
    /// Bytes of the target to use.
    pub span_bytes: Option<u64>,
    /// Bytes of the whole target, which tests with `span = "all"` use; without them these use the
    /// default span of 1 GiB.
    pub whole_bytes: Option<u64>,
    /// Offset of the used part within the target, in bytes.
    pub shift_bytes: Option<u64>,
    /// Requests in flight per thread.
    pub depth: Option<u32>,
    /// Number of threads.
    pub threads: Option<u32>,
    /// Record sizes that replace those of the tests.
    pub records: Vec<u64>,
    /// Operations to keep.
    pub operations: Vec<Operation>,
    /// Savings that replace the preset's levels.
    pub saved: Vec<Saving>,
    /// Kinds of data that replace the preset's levels.
    pub kinds: Vec<KindName>,
    /// Share of duplicates at every level.
    pub duplicates: Option<Saving>,
    /// Whether to bypass the page cache.
    pub direct: Option<bool>,
    /// See [`Cache`].
    pub cache: Option<Cache>,
    /// See [`Flush`].
    pub flush: Option<Flush>,
    /// See [`Pattern`].
    pub pattern: Option<Pattern>,
    /// See [`Order`].
    pub order: Option<Order>,
    /// Seed of addresses, data and order.
    pub seed: Option<u64>,
}

/// Maximum rounds, seconds and span of `--quick`.
const QUICK_RUNS: u32 = 3;
const QUICK_SECONDS: f64 = 1.0;
const QUICK_SPAN_BYTES: u64 = 256 << 20;

fn invalid(what: impl Into<String>) -> Error {
    Error::invalid(what.into())
}

impl Preset {
    /// Returns the preset with this name, or from this file.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the nearest name; [`Error::Invalid`] with the invalid line.
    pub fn load(name: &str) -> Result<Self> {
        if let Some((_, text)) = PRESETS.iter().find(|(known, _)| *known == name) {
            return Self::parse(text, name);
        }
        let path = Path::new(name);
        if !name.contains(['/', '.']) && !path.exists() {
            let names = PRESETS.map(|(known, _)| known);
            let hint = nearest(name, &names).map(|near| format!(", did you mean {near}?"));
            let (hint, names) = (hint.unwrap_or_else(|| ".".into()), names.join(", "));
            let what = format!("no preset or file with the name {name}{hint} Presets: {names}");
            return Err(Error::NotFound(what));
        }
        let failed = |error| Error::io(format!("cannot read {name}"), error);
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(invalid(format!("{name} has {bytes} bytes: too large for a preset")));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(failed)?, name)
    }

    fn parse(text: &str, name: &str) -> Result<Self> {
        let wrong = |error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            invalid(format!("{name}, line {line}: {}", error.message().replace('\n', " ")))
        };
        known_keys_only(&text.parse().map_err(wrong)?, name)?;
        toml::from_str(text).map_err(wrong)
    }

    /// Parses a preset that is part of a larger file; error messages call it `name`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason.
    pub(crate) fn from_table(table: toml::Table, name: &str) -> Result<Self> {
        known_keys_only(&table, name)?;
        let wrong = |error: toml::de::Error| invalid(format!("{name}: {}", error.message()));
        table.try_into().map_err(wrong)
    }

    /// Returns the plan of the preset with `changes`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number that is malformed or out of range.
    pub fn plan(&self, changes: &Changes) -> Result<Plan> {
        let runs = changes.runs.unwrap_or(self.runs);
        let runs =
            if changes.quick && changes.runs.is_none() { runs.min(QUICK_RUNS) } else { runs };
        let precision = self.precision.as_deref().map(percent).transpose()?;
        let precision_percent = changes.precision_percent.or(precision);
        let may_grow = precision_percent.is_some() || self.steady.is_some();
        let runs_max = match (changes.runs_max, may_grow) {
            (Some(most), _) => most,
            (None, true) if changes.runs.is_none() => self.runs_max.unwrap_or(3 * runs),
            (None, true) => self.runs_max.unwrap_or(3 * runs).max(runs),
            (None, false) => runs,
        };
        match changes.runs_max {
            Some(most) if !may_grow => {
                let what = format!(
                    "a maximum of {most} runs needs a precision; without one there are {runs}"
                );
                return Err(invalid(what));
            }
            Some(most) if most < runs => {
                let what =
                    format!("a maximum of {most} runs is below the {runs} runs: reduce the runs");
                return Err(invalid(what));
            }
            _ => {}
        }
        let plan = Plan {
            tests: self.tests(changes)?,
            levels: self.levels(changes)?,
            runs,
            runs_max: runs_max.max(runs),
            precision_percent,
            steady: self.steady.clone(),
            purge: self.purge,
            precondition: self.precondition,
            fills: self.fills,
            order: changes.order.unwrap_or(self.order),
            direct: changes.direct.unwrap_or(self.direct),
            cache: changes.cache.unwrap_or(self.cache),
            warm_up_seconds: changes.warm_up_seconds.unwrap_or(self.warm_up),
            seed: changes.seed.unwrap_or(1),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Returns whether a test uses the whole of the target: see [`Changes::whole_bytes`].
    pub fn uses_all(&self) -> bool {
        let own = self.tests.iter().map(|test| test.own.span.as_ref());
        own.chain([self.common.span.as_ref()]).flatten().any(|span| span == WHOLE)
    }

    fn levels(&self, changes: &Changes) -> Result<Vec<Level>> {
        let duplicates = |own: Option<f64>| changes.duplicates.map(Saving::percent).or(own);
        let given = |kind: &KindName, saved: Option<Saving>| {
            let saved_percent = saved.map(Saving::percent);
            let kind = kind.to_string();
            let name = level_name(&kind, saved_percent);
            Level { name, kind, saved_percent, duplicates_percent: duplicates(None) }
        };
        if !changes.kinds.is_empty() || !changes.saved.is_empty() {
            let exact = [KindName::Exact];
            let kinds = if changes.kinds.is_empty() { &exact[..] } else { &changes.kinds };
            let mut levels = Vec::new();
            for kind in kinds {
                if !kind.takes_saving() {
                    levels.push(given(kind, None));
                } else if changes.saved.is_empty() {
                    return Err(invalid(format!("{kind} needs --saved, such as 50%")));
                } else {
                    levels.extend(changes.saved.iter().map(|saved| given(kind, Some(*saved))));
                }
            }
            return Ok(levels);
        }
        let level = |text: &LevelText| {
            let saved_percent = text.saved.as_deref().map(percent).transpose()?;
            let default = if saved_percent.is_some() { "exact" } else { "random" };
            let kind = text.kind.clone().unwrap_or_else(|| default.to_owned());
            let name = text.name.clone().unwrap_or_else(|| level_name(&kind, saved_percent));
            let own = text.duplicates.as_deref().map(percent).transpose()?;
            Ok(Level { name, kind, saved_percent, duplicates_percent: duplicates(own) })
        };
        self.levels.iter().map(level).collect()
    }

    fn tests(&self, changes: &Changes) -> Result<Vec<Test>> {
        let mut tests = Vec::new();
        for text in &self.tests {
            let chosen = &changes.operations;
            if !chosen.is_empty() && !chosen.contains(&text.operation) {
                continue;
            }
            let own: Vec<u64> =
                text.records.iter().chain(&text.record).map(|s| bytes(s)).collect::<Result<_>>()?;
            let records = if changes.records.is_empty() { &own } else { &changes.records };
            if records.is_empty() {
                return Err(invalid(format!("test {} has no record size", text.operation.name())));
            }
            for record_bytes in records {
                let workload = self.workload(text, *record_bytes, changes)?;
                let unit = text.own.unit.or(self.common.unit).unwrap_or_default();
                let name = match &text.name {
                    Some(name) if records.len() == 1 => name.clone(),
                    Some(name) => format!("{name}, {}", format_size_exact(*record_bytes)),
                    None => test_name(&workload),
                };
                tests.push(Test { name, unit, workload });
            }
        }
        // A change may have made two tests equal.
        let mut seen: Vec<Test> = Vec::new();
        tests.retain(|test| {
            let is_new = !seen.contains(test);
            seen.push(test.clone());
            is_new
        });
        if tests.is_empty() {
            let known: Vec<_> = self.tests.iter().map(|test| test.operation.name()).collect();
            let known = known.join(", ");
            return Err(invalid(format!(
                "the preset has no test of these operations; it has: {known}"
            )));
        }
        Ok(tests)
    }

    fn workload(&self, text: &TestText, record_bytes: u64, changes: &Changes) -> Result<Workload> {
        let Settings { depth, threads, span, shift, seconds, flush, pattern, reads, .. } =
            text.own.clone();
        let common = &self.common;
        let size = |own: Option<String>, all: &Option<String>, default: &str| {
            bytes(own.as_deref().or(all.as_deref()).unwrap_or(default))
        };
        let is_whole = span.as_ref().or(common.span.as_ref()).is_some_and(|span| span == WHOLE);
        let whole_bytes = changes.whole_bytes.filter(|_| is_whole);
        let mut span_bytes = match is_whole {
            true => bytes(SPAN_DEFAULT)?,
            false => size(span, &common.span, SPAN_DEFAULT)?,
        };
        let mut seconds = seconds.or(common.seconds).unwrap_or(5.0);
        if changes.quick {
            span_bytes = span_bytes.min(QUICK_SPAN_BYTES);
            seconds = seconds.min(QUICK_SECONDS);
        }
        // The whole of a target is not filled, whatever it takes to read it.
        span_bytes = whole_bytes.unwrap_or(span_bytes);
        let reads = reads.or(common.reads.clone());
        // Some operations have one request in flight, some one thread besides.
        let is_serial = text.operation.is_serial();
        let is_single = is_serial || text.operation.is_stdio();
        let depth = if is_single { Some(1) } else { changes.depth.or(depth) };
        let threads = if is_serial { Some(1) } else { changes.threads.or(threads) };
        Ok(Workload {
            operation: text.operation,
            record_bytes,
            depth: depth.or(common.depth).unwrap_or(1),
            threads: threads.or(common.threads).unwrap_or(1),
            span_bytes: changes.span_bytes.unwrap_or(span_bytes),
            shift_bytes: changes.shift_bytes.map_or_else(|| size(shift, &common.shift, "0"), Ok)?,
            pattern: changes.pattern.or(pattern).or(common.pattern).unwrap_or_default(),
            reads_percent: reads.as_deref().map_or(Ok(50.0), percent)? as u32,
            seconds: changes.seconds.unwrap_or(seconds),
            flush: changes.flush.or(flush).or(common.flush).unwrap_or_default(),
        })
    }
}

/// Refuses unknown keys of a preset and its tests. Serde cannot: `deny_unknown_fields` does not
/// work with flattened fields.
fn known_keys_only(table: &toml::Table, name: &str) -> Result<()> {
    known_only(table, &TOP_KEYS, name)?;
    let tests = table.get("test").and_then(toml::Value::as_array);
    for test in tests.into_iter().flatten().filter_map(toml::Value::as_table) {
        known_only(test, &TEST_KEYS, name)?;
    }
    Ok(())
}

/// Refuses keys that are neither in `own` nor common.
fn known_only(table: &toml::Table, own: &[&str], name: &str) -> Result<()> {
    let known: Vec<&str> = own.iter().chain(&COMMON_KEYS).copied().collect();
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let hint = nearest(key, &known).map(|near| format!(", did you mean '{near}'?"));
            let hint = hint.unwrap_or_else(|| format!("; keys: {}", known.join(", ")));
            Err(invalid(format!("{name}: unknown key '{key}'{hint}")))
        }
    }
}

fn bytes(text: &str) -> Result<u64> {
    parse_size(text).map_err(invalid)
}

fn percent(text: &str) -> Result<f64> {
    text.parse::<Saving>().map(Saving::percent).map_err(invalid)
}

fn level_name(kind: &str, saved_percent: Option<f64>) -> String {
    match (kind, saved_percent) {
        ("exact", Some(percent)) => format!("{percent} % saved"),
        (_, Some(percent)) => format!("{kind}, {percent} % saved"),
        (_, None) => kind.to_owned(),
    }
}

/// Returns the default name of a test.
fn test_name(workload: &Workload) -> String {
    let mut name = workload.operation.name().replace('-', " ");
    if workload.operation == Operation::Mixed {
        name = format!("{} % reads", workload.reads_percent);
    }
    name += &format!(", {}", format_size_exact(workload.record_bytes));
    if workload.depth > 1 {
        name += &format!(", depth {}", workload.depth);
    }
    if workload.threads > 1 {
        name += &format!(", {} threads", workload.threads);
    }
    name
}

#[cfg(test)]
mod tests {
    //! Goal: every preset is a plan, a command line changes what it names and nothing else, and
    //! mistakes are explained.
    use super::*;

    fn plan(changes: &Changes) -> Plan {
        Preset::load("iozone-throughput").and_then(|preset| preset.plan(changes)).expect("a plan")
    }

    #[test]
    fn all_presets_are_plans() {
        for (name, _) in PRESETS {
            let preset = Preset::load(name).expect(name);
            for quick in [false, true] {
                let changes = Changes { quick, ..Changes::default() };
                let plan = preset.plan(&changes).expect(name);
                for level in &plan.levels {
                    let unit_bytes = level.unit_bytes(plan.tests[0].workload.record_bytes);
                    level.payload(1, unit_bytes).expect(name);
                }
            }
        }
        let snia = Preset::load("snia-iops").expect("a preset").plan(&Changes::default());
        let snia = snia.expect("a plan");
        assert_eq!((snia.tests.len(), snia.runs_max, snia.precondition), (56, 25, 2));
    }

    #[test]
    fn the_throughput_preset_is_as_published() {
        let plan = plan(&Changes::default());
        let percents: Vec<_> = plan.levels.iter().map(|level| level.saved_percent).collect();
        assert_eq!(percents, [98.0, 75.0, 50.0, 25.0, 2.0].map(Some));
        assert_eq!((plan.runs, plan.runs_max, plan.direct), (10, 10, false));
        assert_eq!(plan.tests.len(), 126);
        let sizes: Vec<_> = plan.tests.iter().map(|test| test.workload.record_bytes).collect();
        assert_eq!(sizes[..9], [16, 17, 18, 19, 20, 21, 22, 23, 24].map(|power| 1 << power));
        assert_eq!(plan.tests[0].name, "write, 64 KiB");
    }

    #[test]
    fn changes_change_what_they_name() {
        let standard = plan(&Changes::default());
        let changes = Changes {
            runs: Some(4),
            seconds: Some(0.5),
            warm_up_seconds: Some(0.25),
            span_bytes: Some(32 << 20),
            shift_bytes: Some(32256),
            depth: Some(7),
            threads: Some(2),
            records: vec![512, 8192],
            operations: vec![Operation::RandomRead, Operation::Mixed],
            saved: vec![Saving::from_fraction(0.9), Saving::NONE],
            kinds: vec![KindName::Spread, KindName::Byte(7)],
            duplicates: Some(Saving::from_fraction(0.25)),
            direct: Some(true),
            cache: Some(Cache::Warm),
            flush: Some(Flush::EachWrite),
            pattern: Some(Pattern::HotCold),
            order: Some(Order::Given),
            seed: Some(9),
            ..Changes::default()
        };
        let changed = plan(&changes);
        let names: Vec<_> = changed.tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(names[0], "random read, 512 B, depth 7, 2 threads");
        assert_eq!(names[3], "50 % reads, 8 KiB, depth 7, 2 threads");
        let levels: Vec<_> = changed.levels.iter().map(|level| level.name.as_str()).collect();
        assert_eq!(levels, ["spread, 90 % saved", "spread, 0 % saved", "byte:0x07"]);
        assert!(changed.levels.iter().all(|level| level.duplicates_percent == Some(25.0)));
        let workload = &changed.tests[0].workload;
        assert_eq!((workload.span_bytes, workload.shift_bytes), (32 << 20, 32256));
        assert_eq!((workload.seconds, workload.flush), (0.5, Flush::EachWrite));
        assert_eq!((workload.pattern, changed.cache), (Pattern::HotCold, Cache::Warm));
        assert_eq!((changed.runs, changed.runs_max, changed.seed), (4, 4, 9));
        assert_eq!(changed.warm_up_seconds, 0.25);
        assert!(changed.direct && changed.order == Order::Given && !standard.direct);
        let precise = plan(&Changes { precision_percent: Some(2.0), ..Changes::default() });
        assert_eq!((precise.runs, precise.runs_max), (10, 30));
        let quick = plan(&Changes { quick: true, ..Changes::default() });
        assert_eq!((quick.runs, quick.tests[0].workload.span_bytes), (3, 256 << 20));
    }

    /// Guards against sizes that are rounded: two tests of one name are no plan.
    #[test]
    fn records_that_nearly_agree_have_names_of_their_own() {
        let records = vec![10241 << 10, 10242 << 10];
        let operations = vec![Operation::Write];
        let near = plan(&Changes { records, operations, ..Changes::default() });
        let names: Vec<_> = near.tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["write, 10241 KiB", "write, 10242 KiB"]);
    }

    #[test]
    fn mistakes_are_explained() {
        let load = |name: &str| Preset::load(name).map(|_| ()).unwrap_err().to_string();
        assert!(load("atot").contains("did you mean atto?"));
        assert!(load("./missing.toml").contains("missing.toml"));
        let head = "about = \"\"\n[[level]]\nkind = \"random\"\n";
        let test = "[[test]]\noperation = \"write\"\nrecord = \"4K\"\n";
        let parse = |text: String| {
            let plan = Preset::parse(&text, "own.toml").and_then(|p| p.plan(&Changes::default()));
            plan.map(|_| ()).map_err(|error| error.chain())
        };
        assert_eq!(parse(format!("{head}{test}")), Ok(()));
        for (text, words) in [
            (format!("dept = 3\n{head}{test}"), "unknown key 'dept', did you mean 'depth'?"),
            (format!("{head}{test}recrod = 3\n"), "unknown key 'recrod', did you mean 'record'?"),
            (format!("{head}{test}depth = \"x\"\n"), "own.toml, line"),
            (format!("{head}[[test]]\noperation = \"wirte\"\n"), "line 5: unknown variant"),
            (format!("{head}[[test]]\noperation = \"write\"\n"), "no record size"),
            (format!("{head}{test}{test}").replace("4K", "3"), "records of 3 bytes"),
            (format!("steady = \"x\"\n{head}{test}"), "no test has the name 'x'"),
            (format!("precision = \"2\"\n{head}{test}"), "such as 50%"),
            (format!("fills = false\n{head}{}", test.replace("write", "read")), "never written"),
        ] {
            let error = parse(text.clone()).expect_err(&text);
            assert!(error.contains(words), "{words}: {error}");
        }
        let none = Changes { operations: vec![Operation::Trim], ..Changes::default() };
        let preset = Preset::load("copy").expect("a preset");
        assert!(preset.plan(&none).unwrap_err().to_string().contains("it has: copy"));
        for (precision_percent, words) in
            [(None, "needs a precision"), (Some(2.0), "below the 10 runs")]
        {
            let few = Changes { runs_max: Some(3), precision_percent, ..Changes::default() };
            assert!(preset.plan(&few).unwrap_err().to_string().contains(words), "{words}");
        }
        let unsaid = Changes { kinds: vec![KindName::Exact], ..Changes::default() };
        assert!(preset.plan(&unsaid).unwrap_err().to_string().contains("needs --saved"));
    }
}
