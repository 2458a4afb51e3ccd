//! `pumice compare`: compares the results of benchmarks with a base.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::documents::{Documents, JSON_AND_STDOUT};
use super::output::columns;
use super::report::labelled;
use super::values::percent;
use super::{Outcome, print, print_schema};
use pumice_bench::compare::compare;
use pumice_bench::stats::Better;
use pumice_bench::{interop, report};

/// Compare results, with confidence intervals and significance
///
/// Shows each cell of OTHER as a multiple of the same cell of BASE, with a 95 % confidence
/// interval. Targets that took turns (pumice bench TARGET TARGET) are compared round by round; one
/// file with results of such targets is enough. Results of two sessions also differ because the
/// machine changed in between, which no number of runs reveals: --visit-spread is therefore added
/// to their noise, and small differences cannot be detected.
///
/// A cell counts as faster or slower only if the interval excludes 1 and the test, corrected for
/// the number of cells, is significant. Results of different tests or different data are refused.
/// The exit code is 1 if --fail-if-slower applies to any cell, and 2 if the results cannot be
/// compared, or have too few runs for --fail-if-slower.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice bench /mnt/old /mnt/new --output both.jsonl; pumice compare both.jsonl
  pumice compare both.jsonl --fail-if-slower 5
  pumice compare before.jsonl after.jsonl
  pumice compare disk.jsonl other-disk.jsonl third-disk.jsonl --html disks.html")]
pub(crate) struct Args {
    /// Results to compare with, in any format that pumice report reads
    #[arg(value_name = "BASE")]
    base: PathBuf,

    /// Results of the same tests with the same data
    #[arg(value_name = "OTHER")]
    others: Vec<PathBuf>,

    /// Standard deviation of the results from session to session on one machine
    #[arg(long, value_name = "PERCENT", value_parser = percent(0.0..=99.99), default_value = "3",
        allow_hyphen_values = true)]
    visit_spread: f64,

    /// Exit with code 1 if any cell is reported as slower and its whole interval is more than
    /// PERCENT slower
    #[arg(long, value_name = "PERCENT", value_parser = percent(0.0..=99.99),
        allow_hyphen_values = true)]
    fail_if_slower: Option<f64>,

    /// Name of a result in the comparison, in the order of the results; repeat it for each
    #[arg(long = "label", value_name = "NAME")]
    labels: Vec<String>,

    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    documents: Documents,
}

/// Runs the subcommand.
///
/// # Errors
/// The results cannot be read or compared, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let inputs: Vec<&Path> =
        std::iter::once(&args.base).chain(&args.others).map(PathBuf::as_path).collect();
    let opened = args.documents.open(&inputs)?;
    if args.json && opened.uses_stdout() {
        bail!(JSON_AND_STDOUT);
    }
    let all = inputs.iter().map(|path| interop::read(path)).collect::<Result<Vec<_>, _>>()?;
    let all = labelled(all.concat(), &args.labels)?;
    let [base, others @ ..] = &all[..] else { bail!("no results") };
    if others.is_empty() {
        bail!("{} has results of one target: name others to compare with", args.base.display());
    }
    let comparison = compare(base, others, args.visit_spread / 100.0)?;
    if args.json {
        print_schema("compare-1", &comparison)?;
    } else if opened.is_none() {
        print(&comparison.summary().to_text_within(columns()))?;
    }
    if !opened.is_none() {
        opened.write(&report::comparison(&all, &comparison), &report::table(&all))?;
    }
    let Some(percent) = args.fail_if_slower else { return Ok(Outcome::Good) };
    if let Some(runs) = comparison.runs_wanted() {
        bail!("too few runs for --fail-if-slower: {runs} of each cell are needed");
    }
    let slower = comparison.slower_than(percent);
    for (against, cell) in &slower {
        let interval = cell.compared.and_then(|compared| compared.ratio_interval);
        let limit = interval.map_or(String::new(), |interval| match cell.unit.better() {
            Better::Higher => format!("at most {:.3}", interval.high),
            Better::Lower => format!("at least {:.3}", interval.low),
        });
        let (other, test, level) = (&against.other, &cell.test, &cell.level);
        super::say_error(&format!("{other}: {test}, {level}: {limit} times the base"));
    }
    Ok(if slower.is_empty() { Outcome::Good } else { Outcome::Problem })
}
