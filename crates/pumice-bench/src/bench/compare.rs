//! Compares results: by what ratio each cell differs, and whether the difference is significant.
//!
//! Only like measurements are compared: the same tests on the same data with the same use of the
//! page cache. Targets, machines, rounds, seeds and order may differ: they are the subject of a
//! comparison, or chance. All cells of all results form one family of tests; the larger the family,
//! the less a single small p means.

use serde::Serialize;

use crate::bench::results::{Results, names};
use crate::error::{Error, Result};
use crate::stats::{self, Better, Summary, Verdict};
use crate::workload::{Plan, Unit};
use pumice_report::{Column, Document, Number, Section, Table};

/// Results compared with a base.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the base.
    pub base: String,
    /// The other results, in the order given.
    pub others: Vec<Against>,
}

/// One result compared with the base.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// Name of the result.
    pub other: String,
    /// Every cell of the plan, test by test.
    pub cells: Vec<ComparedCell>,
    /// Differences of the environment: the fact, the base's value, the other's value; empty if
    /// absent.
    pub environment: Vec<(String, String, String)>,
}

/// One cell of both results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedCell {
    /// Name of the test.
    pub test: String,
    /// Name of the level.
    pub level: String,
    /// Unit of the values; higher is better.
    pub unit: Unit,
    /// Summary of the base's runs; `None` without runs.
    pub base: Option<Summary>,
    /// Summary of the other result's runs; `None` without runs.
    pub other: Option<Summary>,
    /// The comparison; `None` if either result has no runs.
    pub compared: Option<stats::Comparison>,
}

/// Compares each of `others` with `base`.
///
/// # Errors
/// [`Error::Invalid`] with the first difference, if one of them measured something else.
pub fn compare(base: &Results, others: &[Results]) -> Result<Comparison> {
    let all: Vec<Results> = std::iter::once(base).chain(others).cloned().collect();
    let names = names(&all);
    for (other, name) in others.iter().zip(&names[1..]) {
        if let Some(difference) = difference(&base.header.plan, &other.header.plan) {
            let what = format!("{name} and {} measured different things: {difference}", names[0]);
            return Err(Error::invalid(what));
        }
    }
    let mut others: Vec<Against> =
        others.iter().zip(&names[1..]).map(|(other, name)| against(base, other, name)).collect();
    let cells = || others.iter().flat_map(|other| &other.cells);
    let mut family: Vec<stats::Comparison> = cells().filter_map(|cell| cell.compared).collect();
    stats::correct(&mut family);
    let mut corrected = family.into_iter();
    for cell in others.iter_mut().flat_map(|other| &mut other.cells) {
        cell.compared = cell.compared.and_then(|_| corrected.next());
    }
    Ok(Comparison { base: names[0].clone(), others })
}

fn against(base: &Results, other: &Results, name: &str) -> Against {
    let plan = &base.header.plan;
    let mut cells = Vec::new();
    for (test_index, test) in plan.tests.iter().enumerate() {
        for (level_index, level) in plan.levels.iter().enumerate() {
            let [one, two] = [base, other].map(|one| one.values(test_index, level_index));
            cells.push(ComparedCell {
                test: test.name.clone(),
                level: level.name.clone(),
                unit: test.unit,
                base: Summary::of(&one, plan.seed),
                other: Summary::of(&two, plan.seed),
                compared: stats::compare(&one, &two, Better::Higher, plan.seed),
            });
        }
    }
    Against { other: name.to_owned(), cells, environment: environment(base, other) }
}

/// Returns the first difference between the plans; `None` if their results are comparable.
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
            "warm_up_seconds": plan.warm_up_seconds,
        })
    };
    if base.direct != other.direct {
        return Some(format!("direct is {} instead of {}", other.direct, base.direct));
    }
    field(&around(base), &around(other))
}

/// Returns the first field in which two values of the same type differ, and how.
fn field(base: &impl Serialize, other: &impl Serialize) -> Option<String> {
    let json = |value: serde_json::Result<serde_json::Value>| value.expect("plans serialize");
    let [base, other] = [json(serde_json::to_value(base)), json(serde_json::to_value(other))];
    let fields = base.as_object()?.iter();
    let mut different = fields.filter(|(name, value)| other.get(name) != Some(value));
    let (name, value) = different.next()?;
    let theirs = other.get(name).unwrap_or(&serde_json::Value::Null);
    Some(format!("{name} is {theirs} instead of {value}"))
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
    /// Returns the cells whose whole 95 % interval is slower than the base by more than `percent`,
    /// with their results.
    pub fn slower_than(&self, percent: f64) -> Vec<(&Against, &ComparedCell)> {
        let limit = 1.0 - percent / 100.0;
        let is_slower = |cell: &ComparedCell| {
            let interval = cell.compared.and_then(|compared| compared.ratio_interval);
            interval.is_some_and(|interval| interval.high < limit)
        };
        let cells =
            self.others.iter().flat_map(|other| other.cells.iter().map(move |cell| (other, cell)));
        cells.filter(|(_, cell)| is_slower(cell)).collect()
    }

    /// Returns a summary for one screen: a table of all cells for each other result.
    pub fn summary(&self) -> Document {
        let mut document = Document::new(format!("Compared with {}", self.base), "");
        for other in &self.others {
            let section = document.section(format!("{} against {}", other.other, self.base));
            section.block(other.narrow_table());
        }
        document
    }

    /// Returns a section for each other result: a table of all cells, and the differences of the
    /// environment.
    pub fn document(&self) -> Document {
        let lead = "Ratios are of means; more is better. A difference is named where the interval \
                    of the ratio does not hold 1 and the rank test, corrected for the number of \
                    cells, has a p below 0.05.";
        let mut document = Document::new(format!("Compared with {}", self.base), lead);
        for other in &self.others {
            let section = document.section(format!("{} against {}", other.other, self.base));
            other.fill(section, &self.base);
        }
        document
    }
}

impl Against {
    /// Every cell in a line of at most 100 columns, if names are not too long.
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
                cell.compared.map_or("not in both", |one| words(one.verdict)).into(),
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
                compared.map_or("not measured in both", |one| words(one.verdict)).into(),
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
    /// Returns the ratio with its interval, as `1.88 (1.53 to 2.45)`; empty without a comparison.
    pub fn ratio(&self) -> String {
        let Some(compared) = self.compared else { return String::new() };
        match compared.ratio_interval {
            None => format!("{:.2}", compared.ratio),
            Some(interval) => {
                format!("{:.2} ({:.2} to {:.2})", compared.ratio, interval.low, interval.high)
            }
        }
    }
}

/// Returns a verdict in one or two words.
fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoDifference => "no difference",
        Verdict::TooFewRuns => "too few runs",
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what differs is found, what is no difference is not, and unlike things are not
    //! compared. Method: samples whose ratio is plain; plans changed in one thing each.
    use super::*;
    use crate::bench::results::sample::results;
    use crate::workload::Operation;

    const BASE: [f64; 8] = [1000.0, 1030.0, 980.0, 1010.0, 995.0, 1005.0, 1015.0, 990.0];

    #[test]
    fn ratios_and_verdicts_are_told() {
        let base = results(&BASE);
        let mut slower = results(&BASE.map(|value| value * 0.8));
        slower.header.target = "other.img".to_owned();
        slower.header.environment = vec![("memory".to_owned(), "2 GiB".to_owned())];
        let comparison = compare(&base, &[slower, base.clone()]).expect("alike");
        assert_eq!(comparison.others[0].other, "a sample on other.img");
        for cell in &comparison.others[0].cells {
            let compared = cell.compared.expect("measured in both");
            assert!((compared.ratio - 0.8).abs() < 1e-3, "{cell:?}");
            assert_eq!(compared.verdict, Verdict::Slower);
            // Of 8 comparisons, the smallest p counts eight times.
            assert!((compared.p_corrected / compared.p - 8.0).abs() < 5.0, "{compared:?}");
        }
        let all_same = comparison.others[1]
            .cells
            .iter()
            .all(|cell| cell.compared.expect("measured").verdict == Verdict::NoDifference);
        assert!(all_same);
        let text = comparison.document().to_text();
        assert!(text.contains("0.800") && text.contains("slower"), "{text}");
        assert!(text.contains("no difference") && text.contains("other.img"), "{text}");
        let facts: Vec<&str> =
            comparison.others[0].environment.iter().map(|(name, _, _)| name.as_str()).collect();
        assert_eq!(facts, ["target", "kernel", "memory"]);
        assert!(comparison.others[1].environment.is_empty());
    }

    #[test]
    fn all_cells_are_one_family() {
        // Two of 70 ways to order eight runs are as far: alone that is significant, four times not.
        let base = results(&[100.0, 101.0, 102.0, 103.0]);
        let other = results(&[110.0, 111.0, 112.0, 113.0]);
        let comparison = compare(&base, &[other]).expect("alike");
        let compared = comparison.others[0].cells[0].compared.expect("measured in both");
        assert!(compared.p < 0.05 && compared.p_corrected > 0.05, "{compared:?}");
        assert_eq!(compared.verdict, Verdict::TooFewRuns);
    }

    #[test]
    fn only_whole_intervals_are_slower() {
        let base = results(&BASE);
        let slower = results(&BASE.map(|value| value * 0.8));
        let comparison = compare(&base, &[slower]).expect("alike");
        let interval = comparison.others[0].cells[0].compared.and_then(|one| one.ratio_interval);
        let high = interval.expect("enough runs").high;
        assert!((0.80..0.83).contains(&high));
        assert_eq!(comparison.slower_than((1.0 - high) * 100.0 - 0.3).len(), 4);
        assert!(comparison.slower_than(20.0).is_empty());
        assert!(
            compare(&base, std::slice::from_ref(&base)).expect("alike").slower_than(1.0).is_empty()
        );
    }

    #[test]
    fn what_was_measured_otherwise_is_named() {
        let base = results(&BASE);
        let refused = |change: &dyn Fn(&mut Results)| {
            let mut other = base.clone();
            change(&mut other);
            compare(&base, &[other]).map(|_| ()).map_err(|error| error.chain())
        };
        let plan = |change: &'static dyn Fn(&mut Plan)| {
            refused(&|results: &mut Results| change(&mut results.header.plan))
        };
        for (told, wanted) in [
            (plan(&|plan| plan.tests[1].workload.depth = 9), "'random write': depth is 9 instead"),
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
    fn what_only_one_measured_is_said_so() {
        let base = results(&BASE);
        let mut other = base.clone();
        other.runs.retain(|run| run.level == 0);
        let comparison = compare(&base, &[other]).expect("alike");
        assert!(comparison.others[0].cells[1].compared.is_none());
        assert!(comparison.document().to_text().contains("not measured in both"));
    }
}
