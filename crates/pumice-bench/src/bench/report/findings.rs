//! Findings that a reader must know before trusting a number: warnings about runs, trends, steady
//! state, outliers.

use super::cells::{Cell, Cells};
use crate::bench::results::RunResult;
use crate::stats::{self, Better, Direction, Trend};
use pumice_report::{Number, Section};

/// Maximum number of cells that a finding names; the others are only counted.
const NAMED_MAX: usize = 3;

/// Maximum number of cells with outliers that are listed individually. More would fill the first
/// screens of a report.
const OUTLIERS_MAX: usize = 5;

/// Returns all findings; the section has no blocks if there are none.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let mut section = super::section("Read this first");
    for warning in warnings(cells) {
        section.warning(warning);
    }
    trends(cells, &mut section);
    steady(cells, &mut section);
    outliers(cells, &mut section);
    incomplete(cells, &mut section);
    section
}

/// Returns a warning with its numbers removed, which groups similar warnings.
fn kind(warning: &str) -> String {
    warning
        .split_whitespace()
        .filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()))
        .collect()
}

/// Returns the warnings about runs. Similar warnings become one, with the numbers of the first.
fn warnings(cells: &Cells<'_>) -> Vec<String> {
    let mut found: Vec<(&str, usize, Vec<String>)> = Vec::new();
    let runs: Vec<(&Cell<'_>, &RunResult)> =
        cells.iter().flat_map(|cell| cell.all.iter().map(move |run| (cell, *run))).collect();
    for (cell, run) in &runs {
        let name = cell.name();
        for warning in &run.warnings {
            let index = found.iter().position(|(text, _, _)| kind(text) == kind(warning));
            let index = index.unwrap_or_else(|| {
                found.push((warning, 0, Vec::new()));
                found.len() - 1
            });
            let (_, count, names) = &mut found[index];
            *count += 1;
            if names.last() != Some(&name) {
                names.push(name.clone());
            }
        }
    }
    let measured = cells.iter().filter(|cell| !cell.runs.is_empty()).count();
    let text = |(text, count, names): (&str, usize, Vec<String>)| {
        let of = format!("in {count} of {} runs: {text}", runs.len());
        if names.len() == measured { of } else { format!("{of} ({})", listed(&names)) }
    };
    found.into_iter().map(text).collect()
}

/// Returns the first few names, and the number of the others.
fn listed(names: &[String]) -> String {
    let text = names[..names.len().min(NAMED_MAX)].join("; ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

/// Adds the cells whose values rise or fall from round to round.
fn trends(cells: &Cells<'_>, section: &mut Section) {
    if cells.plan().steady.is_some() {
        // Such a plan continues until the values show no trend.
        return;
    }
    let all: Vec<(&Cell<'_>, Trend)> = cells
        .iter()
        .filter_map(|cell| Some((cell, stats::trend(&cell.values)?)))
        .filter(|(_, trend)| trend.direction != Direction::TooFewRuns)
        .collect();
    let mut any = false;
    for (cell, trend) in &all {
        let word = match (trend.direction, cell.test.unit.better()) {
            (Direction::Rising, Better::Higher) | (Direction::Falling, Better::Lower) => "faster",
            (Direction::Falling, Better::Higher) | (Direction::Rising, Better::Lower) => "slower",
            (Direction::None | Direction::TooFewRuns, _) => continue,
        };
        any = true;
        section.warning(format!(
            "{} got {word} from round to round (rank correlation {:.2}, p {:.3}): its mean depends \
             on the number of rounds.",
            cell.name(),
            trend.rho,
            trend.p
        ));
    }
    if any && all.len() > 1 {
        section.note(format!(
            "{} cells were tested for trends; by chance, one in twenty shows a trend.",
            all.len()
        ));
    }
}

/// Reports whether the tracked test reached steady state.
fn steady(cells: &Cells<'_>, section: &mut Section) {
    let plan = cells.plan();
    let Some(name) = &plan.steady else { return };
    for cell in cells.iter().filter(|cell| cell.test.name == *name && !cell.all.is_empty()) {
        let values: Vec<f64> = cell.all.iter().map(|run| run.value(cell.test.unit)).collect();
        let rounds = stats::steady(&values);
        let last = rounds.last.map_or(String::new(), |window| {
            let percent = |part: f64| part / window.average * 100.0;
            format!(
                ": in the last {} rounds values spread by {:.1} % and drift by {:.1} %",
                stats::WINDOW_ROUNDS,
                percent(window.range),
                percent(window.slope * (stats::WINDOW_ROUNDS - 1) as f64)
            )
        });
        let is_steady = rounds.last.is_some_and(stats::Window::is_steady);
        match rounds.steady_from.filter(|_| is_steady) {
            Some(round) => {
                let round = cell.all[round].round.saturating_add(1);
                section.note(format!(
                    "{} has been in steady state since round {round}{last}. All numbers are \
                     of these rounds.",
                    cell.name()
                ))
            }
            None => section.warning(format!("{} is not in steady state{last}.", cell.name())),
        };
    }
}

/// Adds outliers: each with its distance, or only the first few cells if there are many.
fn outliers(cells: &Cells<'_>, section: &mut Section) {
    let of_cell = |cell: &Cell<'_>| stats::outliers(&cell.values).unwrap_or_default();
    let apart: Vec<String> =
        cells.iter().filter(|cell| !of_cell(cell).is_empty()).map(Cell::name).collect();
    if apart.len() > OUTLIERS_MAX {
        section.note(format!(
            "in {} of {} cells a round is an outlier: {}. They are kept.",
            apart.len(),
            cells.iter().count(),
            listed(&apart)
        ));
        return;
    }
    for cell in cells.iter() {
        for outlier in of_cell(cell) {
            let value = Number::significant(outlier.value, 4).with_unit(cell.test.unit.name());
            let side = if outlier.score > 0.0 { "above" } else { "below" };
            section.note(format!(
                "{}: round {} is an outlier with {value}, {} robust deviations {side} the median. \
                 It is kept.",
                cell.name(),
                cell.runs[outlier.index].round.saturating_add(1),
                Number::significant(outlier.score.abs(), 2)
            ));
        }
    }
}

/// Reports whether the benchmark ended before all planned runs.
fn incomplete(cells: &Cells<'_>, section: &mut Section) {
    let planned = cells.plan().runs as usize;
    let short: Vec<String> =
        cells.iter().filter(|cell| cell.all.len() < planned).map(Cell::name).collect();
    if !short.is_empty() {
        section.warning(format!(
            "not all of the {planned} planned runs were made: fewer of {}",
            listed(&short)
        ));
    }
}
