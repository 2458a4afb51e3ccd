//! `pumice report`: results of a benchmark for people.

use std::path::{Path, PathBuf};

use super::documents::Documents;
use super::{Outcome, print};
use pumice_bench::results::Results;
use pumice_bench::{compare, interop, report};
use pumice_drive::base::Result;

/// Show results of a benchmark, as text or as a page, workbook, table or Markdown
///
/// A RESULT is what pumice bench wrote, what fio wrote with --output-format=json or json+, or what
/// IOzone printed. Several outputs of fio or IOzone one behind the other in a file are repeated
/// runs. Without any output named, a screen for each result is printed and, for several, how the
/// others compare with the first; files hold everything: charts with error bars, intervals,
/// latencies, the course over time, warnings, and what it was measured on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice report compressibility-1.jsonl
  pumice report compressibility-1.jsonl --html page.html --xlsx numbers.xlsx
  pumice report before.jsonl after.jsonl --html both.html
  fio --output-format=json+ --output=fio.json job.fio; pumice report fio.json --csv -")]
pub(crate) struct Args {
    /// Files of results; the first is the one that others are compared with
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,

    #[command(flatten)]
    documents: Documents,
}

/// Runs the subcommand.
///
/// # Errors
/// A file holds no results, or one cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let inputs: Vec<&Path> = args.results.iter().map(PathBuf::as_path).collect();
    let opened = args.documents.open(&inputs)?;
    let all: Vec<Results> =
        inputs.iter().map(|path| interop::read(path)).collect::<pumice_bench::Result<_>>()?;
    if opened.is_none() {
        print(&text(&all))?;
    } else {
        opened.write(&report::document(&all), &report::table(&all))?;
    }
    Ok(Outcome::Good)
}

/// A screen for each, and the comparison of several.
fn text(all: &[Results]) -> String {
    let mut parts: Vec<String> = all.iter().map(|one| report::summary(one).to_text()).collect();
    if let [base, others @ ..] = all
        && !others.is_empty()
    {
        parts.push(match compare::compare(base, others) {
            Ok(comparison) => comparison.summary().to_text(),
            Err(error) => format!("Not compared: {}\n", error.chain()),
        });
    }
    parts.join("\n")
}
