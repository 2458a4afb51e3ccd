//! `pumice compare`: results of benchmarks against a base.

use std::path::{Path, PathBuf};

use super::documents::Documents;
use super::{Outcome, print, print_json};
use pumice_bench::compare::compare;
use pumice_bench::{interop, report};
use pumice_drive::base::{Error, ErrorKind, Result};

/// Compare results of the same benchmark, cell by cell, and say what may be said
///
/// Each cell of OTHER is told as a multiple of the one of BASE, with a 95 % interval. It is called
/// faster or slower only where the interval leaves 1 out and the ranks of the runs, with regard to
/// how many cells there are, could hardly be chance. Targets, machines, rounds and seeds may
/// differ; results of other tests or other data are refused. Exit code 1 if --fail-if-slower found
/// something, 2 if the results cannot be compared.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice compare before.jsonl after.jsonl
  pumice compare before.jsonl after.jsonl --fail-if-slower 5
  pumice compare disk.jsonl other-disk.jsonl third-disk.jsonl --html disks.html")]
pub(crate) struct Args {
    /// Results that the others are held against: as for pumice report
    #[arg(value_name = "BASE")]
    base: PathBuf,

    /// Results of the same tests on the same data
    #[arg(required = true, value_name = "OTHER")]
    others: Vec<PathBuf>,

    /// Exit with 1 if the whole interval of any cell is slower by more than PCT per cent
    #[arg(long, value_name = "PCT", value_parser = percent, allow_hyphen_values = true)]
    fail_if_slower: Option<f64>,

    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    documents: Documents,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    number
        .filter(|percent| (0.0..100.0).contains(percent))
        .ok_or_else(|| format!("'{text}' is not a number of per cent from 0 to below 100"))
}

/// Runs the subcommand.
///
/// # Errors
/// The results cannot be compared or read, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let inputs: Vec<&Path> =
        std::iter::once(&args.base).chain(&args.others).map(PathBuf::as_path).collect();
    let opened = args.documents.open(&inputs)?;
    if args.json && opened.uses_stdout() {
        let what = "--json and a file of - would both go to stdout";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let all =
        inputs.iter().map(|path| interop::read(path)).collect::<pumice_bench::Result<Vec<_>>>()?;
    let comparison = compare(&all[0], &all[1..])?;
    if args.json {
        print_json(&comparison)?;
    } else if opened.is_none() {
        print(&comparison.summary().to_text())?;
    }
    if !opened.is_none() {
        opened.write(&comparison.document(), &report::table(&all))?;
    }
    let Some(percent) = args.fail_if_slower else { return Ok(Outcome::Good) };
    let slower = comparison.slower_than(percent);
    for (against, cell) in &slower {
        let interval = cell.compared.and_then(|compared| compared.ratio_interval);
        let at_most = interval.map_or(f64::NAN, |interval| interval.high);
        super::say_error(&format!(
            "{}: {}, {}: at most {at_most:.3} times the base",
            against.other, cell.test, cell.level
        ));
    }
    Ok(if slower.is_empty() { Outcome::Good } else { Outcome::Problem })
}
