//! Compares results: the ratio of each cell, and whether the difference is significant.
//!
//! Only like measurements are compared: the same tests on the same data with the same use of the
//! page cache. Targets, machines, rounds, seeds and order may differ, because a comparison either
//! studies their effect or treats it as chance. Targets that took turns in one session are compared
//! pair by pair. A comparison of two sessions includes the difference between the sessions, and
//! supports weaker claims.

use schemars::JsonSchema;
use serde::Serialize;

use crate::bench::results::{Results, names};
use crate::error::{Error, Result};
use crate::stats::{self, Better, Design, Interval, Pair, Summary, Verdict};
use crate::workload::{Plan, Unit};
use pumice_report::{Column, Document, Number, Section, Table};

/// Results compared with a base.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Comparison {
    /// Name of the base.
    pub base: String,
    /// The other results, in the order given.
    pub others: Vec<Against>,
}

/// One result compared with the base.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Against {
    /// Name of the result.
    pub other: String,
    /// Whether the targets took turns in one session.
    pub took_turns: bool,
    /// The design used to judge the difference.
    pub design: Design,
    /// Every cell of the plan, test by test.
    pub cells: Vec<ComparedCell>,
    /// Differences of the environment: the name of the fact, the base's value, the other result's
    /// value; an absent value is empty.
    pub environment: Vec<(String, String, String)>,
}

/// One cell of both results.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ComparedCell {
    /// Name of the test.
    pub test: String,
    /// Name of the level.
    pub level: String,
    /// Unit of the values, which determines whether higher ones are better.
    pub unit: Unit,
    /// Summary of the base's runs; `None` without runs.
    pub base: Option<Summary>,
    /// Summary of the other result's runs; `None` without runs.
    pub other: Option<Summary>,
    /// The comparison; `None` if either result has no runs.
    pub compared: Option<stats::Comparison>,
}

/// Compares each of `others` with `base`. `visit_spread` is the expected relative difference
/// between two sessions on the same machine; see [`VISIT_SPREAD`](stats::VISIT_SPREAD).
///
/// # Errors
/// [`Error::Invalid`] with the first difference, if one of the results belongs to a different plan.
pub fn compare(base: &Results, others: &[Results], visit_spread: f64) -> Result<Comparison> {
    let all: Vec<Results> = std::iter::once(base).chain(others).cloned().collect();
    let names = names(&all);
    for (other, name) in others.iter().zip(&names[1..]) {
        if let Some(difference) = difference(&base.header.plan, &other.header.plan) {
            let what = format!("{name} and {} measured different things: {difference}", names[0]);
            return Err(Error::invalid(what));
        }
    }
    let against = |(other, name): (&Results, &String)| {
        let design = design(base, other, visit_spread);
        let cells = cells(base, other, design, others.len());
        let rounds = cells.iter().filter_map(|cell| cell.compared).map(|one| one.runs).max();
        Against {
            other: name.clone(),
            took_turns: design == Design::Turns,
            design: design.of_rounds(rounds.unwrap_or(0), others.len()),
            cells,
            environment: environment(base, other),
        }
    };
    let others = others.iter().zip(&names[1..]).map(against).collect();
    Ok(Comparison { base: names[0].clone(), others })
}

/// Returns the design of two results.
fn design(base: &Results, other: &Results, visit_spread: f64) -> Design {
    let is_virtual = |results: &Results| {
        results.header.environment.iter().any(|(name, fact)| name == "time" && fact == "virtual")
    };
    if base.header.is_in_turns_with(&other.header) {
        Design::Turns
    } else if is_virtual(base) && is_virtual(other) {
        Design::Visits(0.0)
    } else {
        Design::Visits(visit_spread)
    }
}

fn cells(base: &Results, other: &Results, design: Design, families: usize) -> Vec<ComparedCell> {
    let plan = &base.header.plan;
    let tests = 0..plan.tests.len();
    let all: Vec<(usize, usize)> =
        tests.flat_map(|test| (0..plan.levels.len()).map(move |level| (test, level))).collect();
    let pair = |&(test, level): &(usize, usize)| match design {
        Design::Turns => {
            let [base, other] = [base, other].map(|one| one.rounds(test, level));
            Pair { base, other }
        }
        Design::Visits(_) => Pair::of(&base.values(test, level), &other.values(test, level)),
    };
    let pairs: Vec<Pair> = all.iter().map(pair).collect();
    let compared = stats::compare(&pairs, design, Better::Higher, families, plan.seed);
    let compared = all.iter().zip(compared).map(|((test, _), compared)| {
        compared.map(|compared| compared.with_better(plan.tests[*test].unit.better()))
    });
    let compared: Vec<Option<stats::Comparison>> = compared.collect();
    let cell = |((test, level), compared): ((usize, usize), _)| ComparedCell {
        test: plan.tests[test].name.clone(),
        level: plan.levels[level].name.clone(),
        unit: plan.tests[test].unit,
        base: Summary::of(&base.values(test, level)),
        other: Summary::of(&other.values(test, level)),
        compared,
    };
    all.into_iter().zip(compared).map(cell).collect()
}

/// Returns the first difference that makes the plans incomparable; `None` if their results are
/// comparable.
fn difference(base: &Plan, other: &Plan) -> Option<String> {
    let [tests, levels] =
        [[base, other].map(|plan| plan.tests.len()), [base, other].map(|plan| plan.levels.len())];
    if tests[0] != tests[1] {
        return Some(format!("{} tests instead of {}", tests[1], tests[0]));
    }
    if levels[0] != levels[1] {
        return Some(format!("{} levels instead of {}", levels[1], levels[0]));
    }
    for (one, two) in base.tests.iter().zip(&other.tests) {
        if one.name != two.name {
            return Some(format!("test '{}' instead of '{}'", two.name, one.name));
        }
        if one.unit != two.unit {
            let (one_unit, two_unit) = (one.unit.name(), two.unit.name());
            return Some(format!("test '{}': {two_unit} instead of {one_unit}", one.name));
        }
        if let Some(field) = field(&one.workload, &two.workload) {
            return Some(format!("test '{}': {field}", one.name));
        }
    }
    for (one, two) in base.levels.iter().zip(&other.levels) {
        if let Some(field) = field(one, two) {
            return Some(format!("level '{}': {field}", one.name));
        }
    }
    let around = |plan: &Plan| {
        let cache = if plan.direct { None } else { Some(plan.cache) };
        serde_json::json!({
            "cache": cache, "fills": plan.fills, "precondition": plan.precondition,
            "warm_up_seconds": plan.warm_up_seconds, "pause_seconds": plan.pause_seconds,
        })
    };
    if base.direct != other.direct {
        return Some(format!("direct is {} instead of {}", other.direct, base.direct));
    }
    field(&around(base), &around(other))
}

/// Returns the first field that differs between two values of the same type, and both values.
fn field(base: &impl Serialize, other: &impl Serialize) -> Option<String> {
    let json = |value: serde_json::Result<serde_json::Value>| value.expect("plans serialize");
    let [base, other] = [json(serde_json::to_value(base)), json(serde_json::to_value(other))];
    // Either value may omit a field that has its default.
    let mut names = base.as_object()?.keys().chain(other.as_object()?.keys());
    let name = names.find(|name| base.get(name) != other.get(name))?;
    let value =
        |of: &serde_json::Value| of.get(name).map_or("the default".into(), |it| it.to_string());
    Some(format!("{name} is {} instead of {}", value(&other), value(&base)))
}

/// Returns the facts that differ, the base's first.
fn environment(base: &Results, other: &Results) -> Vec<(String, String, String)> {
    let facts = |results: &Results| {
        let header = &results.header;
        let mut facts = vec![
            ("target".to_owned(), header.target.clone()),
            ("measured by".to_owned(), header.tool.clone()),
            ("command".to_owned(), header.command.clone()),
        ];
        facts.extend(header.environment.iter().cloned());
        facts
    };
    let (base, other) = (facts(base), facts(other));
    let value = |facts: &[(String, String)], name: &str| {
        let fact = facts.iter().find(|(other, _)| other == name);
        fact.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let mut names: Vec<&String> = base.iter().map(|(name, _)| name).collect();
    for (name, _) in &other {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let all = names.into_iter().map(|name| (name.clone(), value(&base, name), value(&other, name)));
    all.filter(|(_, one, two)| one != two).collect()
}

impl Comparison {
    /// Returns the cells that are slower than the base by more than `percent`, with their results.
    /// The verdict must be `Slower`, and the whole interval must be beyond that limit.
    pub fn slower_than(&self, percent: f64) -> Vec<(&Against, &ComparedCell)> {
        let limit = 1.0 - percent / 100.0;
        let is_slower = |cell: &ComparedCell| {
            let slower = cell.compared.filter(|compared| compared.verdict == Verdict::Slower);
            let interval = slower.and_then(|compared| compared.ratio_interval);
            interval.is_some_and(|interval| match cell.unit.better() {
                Better::Higher => interval.high < limit,
                Better::Lower => interval.low * limit > 1.0,
            })
        };
        let cells =
            self.others.iter().flat_map(|other| other.cells.iter().map(move |cell| (other, cell)));
        cells.filter(|(_, cell)| is_slower(cell)).collect()
    }

    /// Returns the number of runs that each target needs; `None` if a cell already has that many.
    pub fn runs_wanted(&self) -> Option<usize> {
        let cells = self.others.iter().flat_map(|other| &other.cells);
        let compared: Vec<stats::Comparison> = cells.filter_map(|cell| cell.compared).collect();
        let is_few = |one: &stats::Comparison| one.verdict == Verdict::TooFewRuns;
        let wanted = compared.iter().map(|one| one.runs_wanted).max();
        wanted.filter(|_| compared.iter().all(is_few))
    }

    /// Returns a summary for one screen, with a table of all cells for each of the other results.
    pub fn summary(&self) -> Document {
        let mut document = Document::new(format!("Compared with {}", self.base), "");
        for other in &self.others {
            let section = document.section(format!("{} against {}", other.other, self.base));
            section.paragraph(other.method());
            section.block(other.narrow_table());
        }
        document
    }

    /// Returns a section for each of the other results, with a table of all cells and the
    /// differences of the environment.
    pub fn document(&self) -> Document {
        let lead = "Ratios of geometric means; higher is better, except for times in ms and s. A \
                    difference is reported if the 95 % interval of the ratio excludes 1 and p, \
                    corrected for the number of cells and results, is below 0.05.";
        let mut document = Document::new(format!("Compared with {}", self.base), lead);
        for other in &self.others {
            let section = document.section(format!("{} against {}", other.other, self.base));
            section.paragraph(other.method());
            other.fill(section, &self.base);
        }
        document
    }
}

impl Against {
    /// Returns the method of the comparison, in one or two sentences.
    fn method(&self) -> String {
        let runs = self.cells.iter().filter_map(|cell| cell.compared).map(|one| one.runs).max();
        let wanted = self.cells.iter().filter_map(|cell| cell.compared);
        let wanted = wanted.map(|one| one.runs_wanted).max().unwrap_or(0);
        let few = if runs.unwrap_or(0) < wanted {
            format!(" At least {wanted} runs are needed to detect a difference.")
        } else {
            String::new()
        };
        match self.design {
            Design::Turns => format!("Measured in turns and compared round by round.{few}"),
            Design::Visits(spread) if spread <= 0.0 => {
                format!("Measured in virtual time, in which sessions do not differ.{few}")
            }
            Design::Visits(spread) if self.took_turns => format!(
                "Too few rounds for a comparison round by round: compared as two sessions, which \
                 are assumed to differ by {:.0} %.{few}",
                spread * 100.0
            ),
            Design::Visits(spread) => format!(
                "Compared as two sessions, which are assumed to differ by {:.0} % on one machine \
                 with any targets. Measuring both in turns detects smaller differences: pumice \
                 bench TARGET TARGET.{few}",
                spread * 100.0
            ),
        }
    }

    /// Returns one line for each cell, of at most 100 columns unless names are too long.
    fn narrow_table(&self) -> Table {
        let mut table = Table::with_columns(vec![
            Column::left("test"),
            Column::left("level"),
            Column::right("base"),
            Column::right("other"),
            Column::left("unit"),
            Column::left("ratio (95 %)"),
            Column::left("verdict"),
        ]);
        let mean =
            |summary: Option<Summary>| summary.map(|summary| Number::significant(summary.mean, 4));
        for cell in &self.cells {
            table.push(vec![
                cell.test.as_str().into(),
                cell.level.as_str().into(),
                mean(cell.base).into(),
                mean(cell.other).into(),
                cell.unit.name().into(),
                cell.ratio().into(),
                cell.verdict("not in both").into(),
            ]);
        }
        table
    }

    fn fill(&self, section: &mut Section, base: &str) {
        let mut table = Table::with_columns(vec![
            Column::left("test"),
            Column::left("level"),
            Column::right("base"),
            Column::right("other"),
            Column::right("ratio"),
            Column::right("low"),
            Column::right("high"),
            Column::left("verdict"),
        ]);
        let shown = |summary: Option<Summary>, unit: Unit| {
            summary.map(|summary| Number::significant(summary.mean, 4).with_unit(unit.name()))
        };
        for cell in &self.cells {
            let compared = cell.compared;
            let interval = compared.and_then(|compared| compared.ratio_interval);
            let ratio = |value: f64| Number::new(value, 3);
            table.push(vec![
                cell.test.as_str().into(),
                cell.level.as_str().into(),
                shown(cell.base, cell.unit).into(),
                shown(cell.other, cell.unit).into(),
                compared.map(|compared| ratio(compared.ratio)).into(),
                interval.map(|interval| ratio(interval.low)).into(),
                interval.map(|interval| ratio(interval.high)).into(),
                cell.verdict("not measured in both").into(),
            ]);
        }
        section.block(table);
        let mut facts = Table::with_columns(vec![
            Column::left("fact"),
            Column::left(base),
            Column::left(&self.other),
        ])
        .titled("Differences of the environment");
        for (name, one, two) in &self.environment {
            facts.push(vec![name.as_str().into(), one.as_str().into(), two.as_str().into()]);
        }
        if !facts.rows().is_empty() {
            section.block(facts);
        }
    }
}

impl ComparedCell {
    /// Returns the verdict in a few words; `none` without a comparison.
    pub fn verdict(&self, none: &str) -> String {
        let Some(compared) = self.compared else { return none.to_owned() };
        match compared.verdict {
            Verdict::Faster => "faster".to_owned(),
            Verdict::Slower => "slower".to_owned(),
            Verdict::NoDifference => "no difference".to_owned(),
            Verdict::TooFewRuns => format!("{} runs needed", compared.runs_wanted),
        }
    }

    /// Returns the ratio with its interval, such as `1.88 (1.53 to 2.45)`; empty without a
    /// comparison. An interval that excludes 1 is printed with enough decimals to show this, up to
    /// four.
    pub fn ratio(&self) -> String {
        let Some(compared) = self.compared else { return String::new() };
        let ratio = compared.ratio;
        let Some(Interval { low, high }) = compared.ratio_interval else {
            return format!("{ratio:.2}");
        };
        let nearest = if low > 1.0 { low } else { high };
        let is_one =
            |decimals: i32| (nearest * 10f64.powi(decimals)).round() == 10f64.powi(decimals);
        let leaves_one_out = low > 1.0 || high < 1.0;
        let decimals = if leaves_one_out { (2..4).find(|&of| !is_one(of)).unwrap_or(4) } else { 2 };
        let of = decimals as usize;
        format!("{ratio:.of$} ({low:.of$} to {high:.of$})")
    }
}

#[cfg(test)]
mod tests {
    //! Goal: real differences are found, chance differences are not reported, and unlike
    //! measurements are not compared. Method: samples with an obvious ratio; plans that differ in
    //! one parameter each.
    use super::*;
    use crate::bench::results::Turns;
    use crate::bench::results::sample::results;
    use crate::stats::VISIT_SPREAD;
    use crate::workload::{Ends, Operation};

    const BASE: [f64; 8] = [1000.0, 1030.0, 980.0, 1010.0, 995.0, 1005.0, 1015.0, 990.0];

    /// Returns the results as targets that took turns.
    fn in_turns<const N: usize>(mut all: [Results; N]) -> [Results; N] {
        for (index, results) in (0..).zip(&mut all) {
            let turns = Turns { session: "one".into(), index, of: N as u32 };
            results.header.turns = Some(turns);
            results.header.target = format!("target {index}");
        }
        all
    }

    fn compared(base: &Results, others: &[Results]) -> Comparison {
        compare(base, others, VISIT_SPREAD).expect("alike")
    }

    fn verdicts(against: &Against) -> Vec<Verdict> {
        against.cells.iter().map(|cell| cell.compared.expect("measured").verdict).collect()
    }

    #[test]
    fn an_interval_shows_on_which_side_of_one_it_lies() {
        for (ratio, low, high, text) in [
            (1.884, 1.531, 2.449, "1.88 (1.53 to 2.45)"),
            (1.0, 0.98, 1.02, "1.00 (0.98 to 1.02)"),
            (0.9979, 0.9968, 0.9991, "0.998 (0.997 to 0.999)"),
            (1.0006, 1.0001, 1.0011, "1.0006 (1.0001 to 1.0011)"),
            (1.5, 1.00001, 2.0, "1.5000 (1.0000 to 2.0000)"),
        ] {
            let base = results(&BASE);
            let mut cell = compared(&base, std::slice::from_ref(&base)).others[0].cells[0].clone();
            let compared = cell.compared.as_mut().expect("measured");
            (compared.ratio, compared.ratio_interval) = (ratio, Some(Interval { low, high }));
            assert_eq!(cell.ratio(), text);
        }
    }

    #[test]
    fn ratios_and_verdicts_are_told() {
        let base = results(&BASE);
        let mut slower = results(&BASE.map(|value| value * 0.8));
        slower.header.target = "other.img".to_owned();
        slower.header.environment = vec![("memory".to_owned(), "2 GiB".to_owned())];
        let comparison = compared(&base, &[slower, base.clone()]);
        let [other, same] = &comparison.others[..] else { panic!("two results") };
        assert_eq!((other.other.as_str(), other.took_turns), ("a sample on other.img", false));
        assert!(
            other.cells.iter().all(|cell| {
                (cell.compared.expect("measured in both").ratio - 0.8).abs() < 1e-3
            })
        );
        assert_eq!(verdicts(other), [Verdict::Slower; 4]);
        assert_eq!(verdicts(same), [Verdict::NoDifference; 4]);
        let text = comparison.document().to_text();
        for wanted in ["0.800", "slower", "no difference", "other.img", "as two sessions"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        let facts: Vec<&str> = other.environment.iter().map(|(name, _, _)| name.as_str()).collect();
        assert_eq!(facts, ["target", "kernel", "memory"]);
        assert!(same.environment.is_empty());
    }

    /// Guards against reporting a shorter time as slower, and against a gate that accepts it.
    #[test]
    fn of_times_less_is_better() {
        let mut base = results(&BASE);
        let mut other = results(&BASE.map(|value| value * 0.8));
        for results in [&mut base, &mut other] {
            for (run, value) in results.runs.iter_mut().zip(BASE.iter().cycle()) {
                run.sample.seconds = value / 1000.0;
            }
            results.header.plan.tests.iter_mut().for_each(|test| test.unit = Unit::Duration);
        }
        other.runs.iter_mut().for_each(|run| run.sample.seconds *= 0.8);
        let comparison = compared(&base, &[other.clone()]);
        assert_eq!(verdicts(&comparison.others[0]), [Verdict::Faster; 4]);
        assert!(comparison.slower_than(0.0).is_empty());
        let comparison = compared(&other, &[base]);
        assert_eq!(verdicts(&comparison.others[0]), [Verdict::Slower; 4]);
        assert_eq!(comparison.slower_than(5.0).len(), 4);
        assert!(comparison.slower_than(30.0).is_empty());
    }

    /// Guards against attributing the difference between two sessions to the targets, and against
    /// ignoring turns.
    #[test]
    fn small_differences_are_told_in_turns_only() {
        let both = [results(&BASE), results(&BASE.map(|value| value * 0.95))];
        let [base, other] = both.clone();
        let visits = compared(&base, &[other]);
        assert_eq!(verdicts(&visits.others[0]), [Verdict::NoDifference; 4]);
        assert!(visits.slower_than(0.0).is_empty());
        let [base, other] = in_turns(both.clone());
        let turns = compared(&base, std::slice::from_ref(&other));
        assert_eq!(verdicts(&turns.others[0]), [Verdict::Slower; 4]);
        assert_eq!((turns.base.as_str(), turns.others[0].other.as_str()), ("target 0", "target 1"));
        assert!(turns.summary().to_text().contains("Measured in turns"));
        // Runs of two sessions are not pairs.
        let mut elsewhere = other;
        elsewhere.header.turns.as_mut().expect("turns").session = "another".into();
        let visits = compared(&base, &[elsewhere]);
        assert_eq!(verdicts(&visits.others[0]), [Verdict::NoDifference; 4]);
        // In virtual time, only the drives differ.
        let mut both = both;
        for results in &mut both {
            results.header.environment.push(("time".to_owned(), "virtual".to_owned()));
        }
        let [base, other] = both;
        assert_eq!(verdicts(&compared(&base, &[other]).others[0]), [Verdict::Slower; 4]);
    }

    #[test]
    fn rounds_are_paired_in_any_order() {
        let falling = [400.0, 320.0, 250.0, 210.0, 160.0, 100.0];
        let [base, mut other] = in_turns([results(&falling), results(&falling.map(|v| v * 0.9))]);
        other.runs.reverse();
        other.runs.retain(|run| run.round > 0 || run.test == 1);
        let comparison = compared(&base, &[other]);
        let (few, slower) = (Verdict::TooFewRuns, Verdict::Slower);
        assert_eq!(verdicts(&comparison.others[0]), [few, few, slower, slower]);
        assert_eq!(comparison.runs_wanted(), None);
    }

    #[test]
    fn too_few_runs_are_reported_with_the_number_needed() {
        let [base, other] = in_turns([results(&BASE[..3]), results(&BASE[3..6])]);
        let comparison = compared(&base, &[other]);
        assert_eq!(comparison.runs_wanted(), Some(4));
        let text = comparison.summary().to_text();
        assert!(text.contains("4 runs needed") && text.contains("4 runs are needed"), "{text}");
    }

    /// Guards against an alarm that contradicts the verdict.
    #[test]
    fn only_tests_called_slower_fail() {
        let [base, slower] = in_turns([results(&BASE), results(&BASE.map(|value| value * 0.8))]);
        let comparison = compared(&base, &[slower]);
        assert_eq!(comparison.slower_than(19.0).len(), 4);
        assert!(comparison.slower_than(21.0).is_empty());
        // The interval of one cell excludes 1; with four cells, this is chance.
        let mut one = results(&BASE);
        for run in one.runs.iter_mut().filter(|run| (run.test, run.level) == (0, 0)) {
            run.sample.host_bytes =
                [99, 98, 100, 97, 99, 98, 99, 97][run.round as usize] * 10_000_000;
        }
        let [base, one] = in_turns([results(&BASE), one]);
        let comparison = compared(&base, &[one]);
        let cell = comparison.others[0].cells[0].compared.expect("measured");
        assert!(cell.ratio_interval.expect("enough runs").high < 1.0, "{cell:?}");
        assert_eq!(cell.verdict == Verdict::Slower, !comparison.slower_than(0.0).is_empty());
    }

    #[test]
    fn different_methods_are_named() {
        let base = results(&BASE);
        let refused = |change: &dyn Fn(&mut Results)| {
            let mut other = base.clone();
            change(&mut other);
            compare(&base, &[other], 0.0).map(|_| ()).map_err(|error| error.chain())
        };
        let plan = |change: &'static dyn Fn(&mut Plan)| {
            refused(&|results: &mut Results| change(&mut results.header.plan))
        };
        for (told, wanted) in [
            (plan(&|plan| plan.tests[1].workload.depth = 9), "'random write': depth is 9 instead"),
            (
                plan(&|plan| plan.tests[1].workload.ends = Ends::Span),
                "'random write': ends is \"span\" instead of the default",
            ),
            (
                plan(&|plan| plan.tests[0].workload.operation = Operation::Read),
                "operation is \"read\" instead of \"write\"",
            ),
            (plan(&|plan| plan.tests[0].unit = Unit::Rate), "IOPS instead of MB/s"),
            (plan(&|plan| plan.tests[0].name = "x".into()), "'x' instead of 'sequential write'"),
            (plan(&|plan| plan.levels[1].saved_percent = None), "saved_percent is null instead of"),
            (plan(&|plan| plan.direct = false), "direct is false instead of true"),
            (plan(&|plan| plan.tests.truncate(1)), "1 tests instead of 2"),
        ] {
            let error = told.expect_err("unlike");
            assert!(error.contains(wanted), "{error}");
        }
        let free = |plan: &mut Plan| {
            (plan.seed, plan.runs, plan.runs_max) = (99, 3, 30);
            plan.order = crate::workload::Order::Given;
        };
        refused(&|results| free(&mut results.header.plan)).expect("alike");
    }

    #[test]
    fn tests_of_only_one_side_are_reported() {
        let base = results(&BASE);
        let mut other = base.clone();
        other.runs.retain(|run| run.level == 0);
        let comparison = compared(&base, &[other]);
        assert!(comparison.others[0].cells[1].compared.is_none());
        assert!(comparison.document().to_text().contains("not measured in both"));
    }
}
