//! Runs a benchmark, or the rest of an interrupted one.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::show::{self, Shown};
use super::{Args, dry, unix_seconds};
use crate::cli::signals::Interrupt;
use crate::cli::{Outcome, print, print_schema, say_error};
use pumice_bench::interop::fio_job;
use pumice_bench::runner::End;
use pumice_bench::target::{Contender, Location};
use pumice_bench::workload::{Operation, Preset};
use pumice_bench::{Benchmark, Contest, FileSink, Resumption};

/// Runs the preset on the targets, or shows what it would do.
///
/// # Errors
/// The options, the preset and the targets do not fit together, or a target fails.
pub(super) fn run(args: &Args, preset: Preset, locations: &[Location]) -> Result<Outcome> {
    let mut plan = preset.plan(&args.changes())?;
    say_differences(args, &preset, plan.runs);
    if plan.direct || !locations.iter().all(Location::is_made) {
        let left_out = plan.leave_out_stdio();
        let names: Vec<_> = left_out.into_iter().map(Operation::name).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            say_error(&format!("skipped {names}: requires a file and buffered I/O"));
        }
        plan.check()?;
    }
    if args.fio_job {
        let [target] = &args.targets[..] else { bail!("--fio-job needs one target") };
        print(&fio_job(&plan, target))?;
        return Ok(Outcome::Good);
    }
    if args.dry_run {
        if args.json {
            print_schema("plan-1", &plan)?;
        } else {
            print(&dry::text(&plan, &args.targets))?;
        }
        return Ok(Outcome::Good);
    }
    let interrupt = Interrupt::catch()?;
    let path = args.output(&args.preset);
    let benchmark = Benchmark {
        title: args.preset.clone(),
        about: preset.about,
        plan,
        destroy: args.destroy_data,
        begun_unix_s: unix_seconds(),
    };
    let labels = args.labels.iter().cloned().chain(std::iter::repeat(String::new()));
    let contender =
        |(location, label): (&Location, String)| Contender { location: location.clone(), label };
    let contenders: Vec<Contender> = locations.iter().zip(labels).map(contender).collect();
    let mut shown = Shown::new(FileSink::new(path.clone()), 0);
    let ended = benchmark.run_in_turns(&contenders, interrupt.flag(), &mut shown);
    conclude(args, &path, &shown, ended)
}

/// Says what differs from the tool whose file the preset is.
fn say_differences(args: &Args, preset: &Preset, runs: u32) {
    let say = |what: &str| say_error(&format!("{}: {what}", args.preset));
    preset.notes.iter().for_each(|note| say(note));
    if let Some(named) = preset.target.as_ref().filter(|named| !args.targets.contains(named)) {
        say(&format!("the target is {}, not {named}", args.targets.join(", ")));
    }
    if preset.is_imported && runs > 1 {
        say(&format!("each test runs {runs} times; --runs 1 runs it once"));
    }
}

/// Continues an interrupted benchmark.
///
/// # Errors
/// The result file cannot be read, or is of other targets; a target fails.
pub(super) fn resume(args: &Args, locations: &[Location], path: &Path) -> Result<Outcome> {
    let interrupt = Interrupt::catch()?;
    let (file, results) = FileSink::resume(path.to_owned())?;
    let kept = results.iter().map(|one| one.runs.len()).sum();
    let mut shown = Shown::new(file, kept);
    let resumption = Resumption { results, destroy: args.destroy_data };
    let ended = resumption.run(locations, interrupt.flag(), &mut shown);
    conclude(args, path, &shown, ended)
}

/// Prints the outcome of a benchmark.
pub(super) fn conclude(
    args: &Args,
    path: &Path,
    shown: &Shown,
    ended: pumice_bench::Result<Contest>,
) -> Result<Outcome> {
    shown.finish();
    let (file, targets) = (path.display(), args.targets.join(", "));
    let kept = match shown.kept() {
        Some(1) => "1 run is".to_owned(),
        kept => format!("{} runs are", kept.unwrap_or(0)),
    };
    match ended {
        Err(error) if shown.kept().is_none() => Err(error.into()),
        Err(error) => {
            Err(error).with_context(|| format!("{targets}: the benchmark failed; {kept} in {file}"))
        }
        Ok(Contest { end: End::Stopped, .. }) => {
            say_error(&format!("interrupted: {kept} in {file}; continue with --resume {file}"));
            Ok(Outcome::Code(2))
        }
        Ok(Contest { end: End::Complete, results }) => {
            show::summary(&results, path, args.json)?;
            Ok(Outcome::Good)
        }
    }
}
