//! Presets: plans in TOML files, and changes from the command line.
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
//! Unknown keys are refused, so that a misspelt key does not silently leave its default in effect.
//!
//! * `sweep`: the tests described by a `[[test]]`.

mod sweep;

use std::path::Path;

use serde::Deserialize;

use self::sweep::AccessText;
use crate::error::{Error, Result};
use crate::payload::{KindName, Saving};
use crate::workload::import::{Imported, import};
use crate::workload::{Cache, Level, Order, Plan, Unit};
use crate::workload::{Ends, Flush, Operation, Pattern};
use pumice_drive::base::near::nearest;
use pumice_drive::base::units::parse_size;

/// Expands to the name and text of each preset.
macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("presets/", $name, ".toml")))),*]
    };
}

/// The built-in presets; the first is the default.
pub const PRESETS: [(&str, &str); 20] = presets![
    "compressibility",
    "iozone-throughput",
    "iozone-iops",
    "crystaldiskmark",
    "crystaldiskmark-sizes",
    "crystaldiskmark-8",
    "crystaldiskmark-8-nvme",
    "as-ssd",
    "as-ssd-compression",
    "hd-tune",
    "atto",
    "iometer",
    "iometer-patterns",
    "queue-depth",
    "copy",
    "copy-paste",
    "snia-iops",
    "snia-tp",
    "snia-lat",
    "wsat",
];

/// Keys for presets only, for both presets and tests, and for tests only.
const TOP_KEYS: [&str; 16] = [
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
    "pause",
    "best-of",
    "level",
    "test",
];
const COMMON_KEYS: [&str; 12] = [
    "depth", "depths", "threads", "span", "spans", "shift", "seconds", "flush", "pattern", "reads",
    "unit", "ends",
];
const TEST_KEYS: [&str; 5] = ["operation", "name", "record", "records", "mix"];

/// The default span, and the word for the whole target.
const SPAN_DEFAULT: &str = "1G";
const WHOLE: &str = "all";

/// Maximum size of a preset file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A preset, which is the source of a plan.
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
    #[serde(default)]
    pause: f64,
    best_of: Option<u32>,
    #[serde(flatten)]
    common: Settings,
    #[serde(rename = "level")]
    levels: Vec<LevelText>,
    #[serde(rename = "test")]
    tests: Vec<TestText>,
    /// Differences between these requests and the requests of the tool that the file belongs to, as
    /// sentences without a full stop.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Differences in how a benchmark issues the requests, in the same form.
    #[serde(skip)]
    pub measuring_notes: Vec<String>,
    /// The target named in another tool's file.
    #[serde(skip)]
    pub target: Option<String>,
    /// Whether the preset was imported from another tool's file.
    #[serde(skip)]
    pub is_imported: bool,
    /// Whether any test has no span.
    #[serde(skip)]
    needs_span: bool,
}

fn ten() -> u32 {
    10
}

fn yes() -> bool {
    true
}

/// Keys that a preset sets for all tests, or a test for itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Settings {
    depth: Option<u32>,
    /// One test is created for each.
    depths: Option<Vec<u32>>,
    threads: Option<u32>,
    span: Option<String>,
    /// One test is created for each.
    spans: Option<Vec<String>>,
    shift: Option<String>,
    seconds: Option<f64>,
    flush: Option<Flush>,
    pattern: Option<Pattern>,
    reads: Option<String>,
    unit: Option<Unit>,
    ends: Option<Ends>,
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
    /// Kinds of requests in a mixed workload.
    #[serde(default)]
    mix: Vec<AccessText>,
    #[serde(flatten)]
    own: Settings,
}

/// Changes to a preset from a command line; absent fields have no effect.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Fewer and shorter runs.
    pub quick: bool,
    /// Number of rounds.
    pub runs: Option<u32>,
    /// Maximum number of rounds.
    pub runs_max: Option<u32>,
    /// Half the width of the mean's interval, in percent of the mean.
    pub precision_percent: Option<f64>,
    /// Duration of each time-based test, in seconds.
    pub seconds: Option<f64>,
    /// Duration of the warm-up of each time-based test, in seconds.
    pub warm_up_seconds: Option<f64>,
    /// Bytes of the target to use.
    pub span_bytes: Option<u64>,
    /// Size of the whole target in bytes, for tests with `span = "all"` and imported tests without
    /// a size. If absent, tests with `span = "all"` use the default span of 1 GiB.
    pub whole_bytes: Option<u64>,
    /// Offset of the used part within the target, in bytes.
    pub shift_bytes: Option<u64>,
    /// Requests in flight per thread.
    pub depth: Option<u32>,
    /// Number of threads.
    pub threads: Option<u32>,
    /// Record sizes that replace the sizes of the tests.
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
    /// See [`Ends`]; not used for operations with a C library buffer.
    pub ends: Option<Ends>,
    /// See [`Order`].
    pub order: Option<Order>,
    /// Seed for addresses, data and order.
    pub seed: Option<u64>,
}

/// Maximum rounds, seconds and span for `--quick`. Fewer rounds cannot show any difference.
const QUICK_RUNS: u32 = 4;
const QUICK_SECONDS: f64 = 1.0;
const QUICK_SPAN_BYTES: u64 = 256 << 20;

fn invalid(what: impl Into<String>) -> Error {
    Error::invalid(what.into())
}

impl Preset {
    /// Returns the preset with this name or from this file, which may be in TOML, a job file of
    /// fio, or a configuration of Iometer.
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
        let text = std::fs::read_to_string(path).map_err(failed)?;
        match import(&text, name) {
            None => Self::parse(&text, name),
            Some(Err(what)) => Err(invalid(format!("{name}: {what}"))),
            Some(Ok(Imported { table, notes, target, needs_span })) => Ok(Self {
                notes: notes.requests,
                measuring_notes: notes.measuring,
                target,
                needs_span,
                is_imported: true,
                ..Self::from_table(table, name)?
            }),
        }
    }

    fn parse(text: &str, name: &str) -> Result<Self> {
        let wrong = |error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            invalid(format!("{name}, line {line}: {}", error.message().replace('\n', " ")))
        };
        known_keys_only(&text.parse().map_err(wrong)?, name)?;
        toml::from_str(text).map_err(wrong)
    }

    /// Parses a preset that is part of a larger file. Error messages refer to it as `name`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the reason.
    pub(crate) fn from_table(table: toml::Table, name: &str) -> Result<Self> {
        known_keys_only(&table, name)?;
        let wrong = |error: toml::de::Error| invalid(format!("{name}: {}", error.message()));
        table.try_into().map_err(wrong)
    }

    /// Returns the plan of the preset after applying `changes`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a malformed or out-of-range number.
    pub fn plan(&self, changes: &Changes) -> Result<Plan> {
        if self.needs_span && changes.span_bytes.or(changes.whole_bytes).is_none() {
            return Err(invalid("a test has no size: add --span"));
        }
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
            pause_seconds: if changes.quick { 0.0 } else { self.pause },
            best_of: self.best_of,
            seed: changes.seed.unwrap_or(1),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Returns whether this text is from another tool's file that [`Self::load`] supports. The
    /// beginning of the file suffices.
    pub(crate) fn is_of_another_tool(text: &str) -> bool {
        import(text, "").is_some()
    }

    /// Returns whether the addresses scale with the target: false for an imported test with a size
    /// or offset.
    pub fn is_relative(&self) -> bool {
        let settings = self.tests.iter().map(|test| &test.own).chain([&self.common]);
        let has_place = |it: &Settings| {
            it.span.is_some() || it.shift.as_deref().is_some_and(|shift| shift != "0")
        };
        !self.is_imported || !settings.into_iter().any(has_place)
    }

    /// Returns whether any test uses the whole target; see [`Changes::whole_bytes`].
    pub fn uses_all(&self) -> bool {
        let settings = self.tests.iter().map(|test| &test.own).chain([&self.common]);
        let mut spans = settings.flat_map(|it| it.span.iter().chain(it.spans.iter().flatten()));
        spans.any(|span| span == WHOLE)
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
}

/// Refuses unknown keys in a preset and its tests. Serde cannot refuse them, because
/// `deny_unknown_fields` does not work with flattened fields.
fn known_keys_only(table: &toml::Table, name: &str) -> Result<()> {
    known_only(table, &TOP_KEYS, name)?;
    let tests = table.get("test").and_then(toml::Value::as_array);
    for test in tests.into_iter().flatten().filter_map(toml::Value::as_table) {
        known_only(test, &TEST_KEYS, name)?;
    }
    Ok(())
}

/// Refuses keys that are neither in `own` nor shared.
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

#[cfg(test)]
mod tests {
    //! Goal: every preset is a valid plan, a command line changes exactly the named parameters, and
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
    fn changes_affect_the_named_fields() {
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
        assert_eq!((quick.runs, quick.tests[0].workload.span_bytes), (4, 256 << 20));
    }

    #[test]
    fn a_test_is_swept_over_records_depths_and_spans() {
        let text = "about = \"\"\nspans = [\"1M\", \"2M\"]\npause = 1.5\nbest-of = 5\n\
            [[level]]\nkind = \"random\"\n\
            [[test]]\nname = \"x\"\noperation = \"random-read\"\nrecords = [\"4K\", \"8K\"]\n\
            depths = [1, 8]\nends = \"span\"\n\
            [[test]]\noperation = \"mixed\"\nspan = \"4M\"\n\
            mix = [{ size = \"512\", share = \"10%\", reads = \"80%\" },\n\
            { size = \"4K\", share = \"90%\", reads = \"50%\", random = \"0%\", \
              align = \"512\" }]\n";
        let preset = Preset::parse(text, "own.toml").expect("a preset");
        let plan = preset.plan(&Changes::default()).expect("a plan");
        assert_eq!((plan.tests.len(), plan.pause_seconds, plan.best_of), (9, 1.5, Some(5)));
        let names: Vec<_> = plan.tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names[0], "x, 4 KiB, depth 1, 1 MiB span");
        assert_eq!(names[7], "x, 8 KiB, depth 8, 2 MiB span");
        assert_eq!(names[8], "53 % reads, up to 4 KiB");
        let mixed = &plan.tests[8].workload;
        assert_eq!((mixed.span_bytes, mixed.mix.len(), mixed.piece_bytes()), (4 << 20, 2, 512));
        assert_eq!((mixed.mix[0].align_bytes, mixed.mix[1].random_percent), (512, 0));
        assert_eq!(plan.tests[0].workload.ends, Ends::Span);
        let changed = |changes: Changes| preset.plan(&changes).expect("a plan").tests;
        let quick = changed(Changes { quick: true, ..Changes::default() });
        assert_eq!(quick[0].workload.ends, Ends::First);
        let short = changed(Changes { seconds: Some(0.5), ..Changes::default() });
        assert_eq!((short[0].workload.ends, short[0].workload.seconds), (Ends::First, 0.5));
        let one = Changes {
            depth: Some(2),
            span_bytes: Some(1 << 20),
            records: vec![4096],
            ..Changes::default()
        };
        let names: Vec<_> = changed(one).into_iter().map(|test| test.name).collect();
        assert_eq!(names, ["x", "50 % reads, 4 KiB, depth 2"]);
        let many = text.replace("[1, 8]", &format!("{:?}", (1..=200).collect::<Vec<_>>()));
        let error = Preset::parse(&many, "own.toml").expect("a preset").plan(&Changes::default());
        assert!(error.unwrap_err().to_string().contains("800 tests"), "too many");
        assert!(Preset::parse(&text.replace("align =", "aling ="), "own.toml").is_err());
    }

    #[test]
    fn names_follow_the_changes() {
        let preset = Preset::load("crystaldiskmark").expect("a preset");
        let names = |changes: &Changes| -> Vec<String> {
            let plan = preset.plan(changes).expect("a plan");
            plan.tests.into_iter().map(|test| test.name).collect()
        };
        assert!(names(&Changes::default()).contains(&"4K QD32 write".to_owned()));
        let one = Changes { records: vec![8192], depth: Some(1), ..Changes::default() };
        let both = ["random read, 8 KiB", "random write, 8 KiB"];
        assert_eq!(names(&one), [&["Seq write", "Seq read"], &both[..]].concat());
    }

    /// The comments in the presets state the source of each number.
    #[test]
    fn presets_after_other_programs_have_their_numbers() {
        let plan = |name: &str| {
            Preset::load(name).and_then(|preset| preset.plan(&Changes::default())).expect(name)
        };
        let disk = plan("crystaldiskmark-8-nvme");
        let depths = |plan: &Plan| -> Vec<(u64, u32, u32)> {
            let of = |test: &crate::workload::Test| {
                (test.workload.record_bytes, test.workload.depth, test.workload.threads)
            };
            plan.tests.iter().map(of).collect()
        };
        let nvme = [(1 << 20, 8, 1), (128 << 10, 32, 1), (4096, 32, 16), (4096, 1, 1)];
        assert_eq!(depths(&disk), [nvme, nvme].concat());
        let usual = [(1 << 20, 8, 1), (1 << 20, 1, 1), (4096, 32, 1), (4096, 1, 1)];
        assert_eq!(depths(&plan("crystaldiskmark-8")), [usual, usual].concat());
        assert!(disk.tests.iter().all(|test| test.workload.is_timed()));
        let sizes = plan("crystaldiskmark-sizes");
        let spans: Vec<u64> =
            sizes.tests.iter().map(|test| test.workload.span_bytes >> 20).collect();
        assert_eq!((sizes.tests.len(), spans[0], spans[47]), (48, 50, 4000));
        let atto = plan("atto");
        let records: Vec<u64> = atto.tests.iter().map(|test| test.workload.record_bytes).collect();
        assert_eq!((records.len(), records[0], records[17]), (36, 512, 64 << 20));
        let as_ssd = [(16 << 20, 1, 1), (16 << 20, 1, 1), (4096, 1, 1), (4096, 1, 1)];
        let threads = [(4096, 1, 64), (4096, 1, 64), (4096, 1, 1), (512, 1, 1)];
        assert_eq!(depths(&plan("as-ssd"))[..8], [as_ssd, threads].concat());
        let surface = Preset::load("hd-tune").expect("hd-tune");
        assert!(surface.uses_all() && plan("hd-tune").only_looks());
        assert_eq!(depths(&plan("hd-tune"))[0], (64 << 10, 1, 1));
        let copies = plan("copy-paste");
        assert!(copies.tests.iter().all(|test| test.workload.flush == Flush::Timed));
        let all_depths = (0..9).map(|power| (4096, 1 << power, 1));
        assert_eq!(depths(&plan("queue-depth"))[..9], all_depths.collect::<Vec<_>>());
        let patterns = plan("iometer-patterns");
        assert_eq!(patterns.tests.len(), 20);
        let reads: Vec<u32> =
            patterns.tests.iter().step_by(5).map(|test| test.workload.reads_percent).collect();
        assert_eq!(reads, [80, 100, 80, 67]);
        for test in plan("iozone-iops").tests {
            let ends = test.workload.ends_with_span() && !test.workload.is_timed();
            assert!(ends, "{} does not end with the file", test.name);
        }
    }

    /// Guards against rounded sizes in names: two tests with the same name are not a valid plan.
    #[test]
    fn similar_records_have_different_names() {
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
