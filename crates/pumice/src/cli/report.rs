//! `pumice report`: shows the results of benchmarks.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::documents::Documents;
use super::output::columns;
use super::{Outcome, chain, print};
use pumice_bench::results::Results;
use pumice_bench::stats::VISIT_SPREAD;
use pumice_bench::{compare, interop, report};

/// Show benchmark results as text, HTML, a spreadsheet, CSV or Markdown
///
/// A RESULT is a file written by pumice bench or by fio (with --output-format=json or json+), or
/// the printed output of IOzone. Several outputs of fio or IOzone in one file, one after another,
/// count as repeated runs. Without an output file, prints a summary of each result and, if there
/// are several, a comparison of the others with the first. Files contain everything: charts with
/// error bars, confidence intervals, latencies, time series, warnings and the environment.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice report compressibility-1.jsonl
  pumice report compressibility-1.jsonl --html page.html --xlsx numbers.xlsx
  pumice report before.jsonl after.jsonl --html both.html
  pumice report old.jsonl new.jsonl --label 'Linux 6.1' --label 'Linux 6.18' --html kernels.html
  fio --output-format=json+ --output=fio.json job.fio; pumice report fio.json --csv -")]
pub(crate) struct Args {
    /// Result files; the others are compared with the first
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,

    /// Name of a result in reports, in the order of the results; repeat it for each. A file of
    /// targets that took turns has several
    #[arg(long = "label", value_name = "NAME")]
    labels: Vec<String>,

    #[command(flatten)]
    documents: Documents,
}

/// Runs the subcommand.
///
/// # Errors
/// A file contains no results, or an output cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let inputs: Vec<&Path> = args.results.iter().map(PathBuf::as_path).collect();
    let opened = args.documents.open(&inputs)?;
    let all: Vec<Vec<Results>> =
        inputs.iter().map(|path| interop::read(path)).collect::<Result<_, _>>()?;
    let all = labelled(all.concat(), &args.labels)?;
    if opened.is_none() {
        print(&text(&all))?;
    } else {
        opened.write(&report::document(&all), &report::table(&all))?;
    }
    Ok(Outcome::Good)
}

/// Returns the results with these names instead of their own.
///
/// # Errors
/// There are more names than results.
pub(super) fn labelled(mut all: Vec<Results>, labels: &[String]) -> Result<Vec<Results>> {
    if labels.len() > all.len() {
        bail!("{} labels for {} results", labels.len(), all.len());
    }
    for (results, label) in all.iter_mut().zip(labels) {
        results.header.label.clone_from(label);
    }
    Ok(all)
}

/// Returns a summary of each result, and a comparison if there are several.
fn text(all: &[Results]) -> String {
    let mut parts: Vec<String> =
        all.iter().map(|one| report::summary(one).to_text_within(columns())).collect();
    if let [base, others @ ..] = all
        && !others.is_empty()
    {
        parts.push(match compare::compare(base, others, VISIT_SPREAD) {
            Ok(comparison) => comparison.summary().to_text_within(columns()),
            Err(error) => format!("Not compared: {}\n", chain(&error.into())),
        });
    }
    parts.join("\n")
}
