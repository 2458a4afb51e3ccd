//! Runs a benchmark, or the rest of an interrupted one.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::show::{self, Shown};
use super::{Args, dry};
use crate::cli::{Outcome, print, print_schema, say_error};
use crate::environment::unix_seconds;
use crate::signals::Interrupt;
use pumice_bench::interop::fio_job;
use pumice_bench::runner::End;
use pumice_bench::target::{Contender, Location};
use pumice_bench::workload::{Operation, Plan, Preset};
use pumice_bench::{Benchmark, Contest, FileSink, Resumption};

/// Runs the preset on the targets, or shows the plan.
///
/// # Errors
/// The options, the preset and the targets do not fit together, or a target fails.
pub(super) fn run(args: &Args, preset: Preset, locations: &[Location]) -> Result<Outcome> {
    let (mut plan, locations) = planned(args, &preset, locations)?;
    say_differences(args, &preset, plan.runs);
    leave_out(args, &mut plan, &locations);
    plan.check()?;
    if args.fio_job {
        let [target] = &args.targets[..] else { bail!("--fio-job needs one target") };
        print(&fio_job(&plan, target))?;
        return Ok(Outcome::Good);
    }
    if args.dry_run {
        if !args.destroy_data && !plan.only_looks() {
            // The run would also check this.
            locations.iter().try_for_each(Location::check_empty)?;
        }
        if args.json {
            print_schema("plan-1", &plan)?;
        } else {
            print(&dry::text(&plan, &args.targets, &locations))?;
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

/// Prints the differences from the tool whose file the preset is.
fn say_differences(args: &Args, preset: &Preset, runs: u32) {
    let say = |what: &str| say_error(&format!("{}: {what}", args.preset));
    preset.notes.iter().chain(&preset.measuring_notes).for_each(|note| say(note));
    if let Some(named) = preset.target.as_ref().filter(|named| !args.targets.contains(named)) {
        say(&format!("the target is {}, not {named}", args.targets.join(", ")));
    }
    if preset.is_imported && runs > 1 {
        say(&format!("each test runs {runs} times; --runs 1 runs it once"));
    }
}

/// Returns the plan of a preset, and the targets. If the plan only reads existing data, targets
/// that hold data are only read. Tests of a whole target use all of each target.
///
/// # Errors
/// The changes do not fit the preset; a target cannot be opened.
fn planned(args: &Args, preset: &Preset, locations: &[Location]) -> Result<(Plan, Vec<Location>)> {
    let mut changes = args.changes();
    let plan = preset.plan(&changes)?;
    let looks = plan.only_looks();
    let as_needed = |location: &Location| match looks {
        true => location.clone().as_it_is(),
        false => location.clone(),
    };
    let locations: Vec<Location> = locations.iter().map(as_needed).collect();
    if !preset.uses_all() || changes.span_bytes.is_some() {
        return Ok((plan, locations));
    }
    let sizes = locations.iter().map(Location::whole_bytes);
    let sizes: Option<Vec<u64>> = sizes.collect::<Result<_, _>>()?;
    changes.whole_bytes = sizes.and_then(|sizes| sizes.into_iter().min());
    Ok((preset.plan(&changes)?, locations))
}

/// Removes the tests that the targets do not support from a plan, and prints them.
fn leave_out(args: &Args, plan: &mut Plan, locations: &[Location]) {
    if plan.direct || !locations.iter().all(Location::is_made) {
        say_left_out(plan.leave_out_stdio(), "a file and buffered I/O");
    }
    if !locations.iter().all(|location| matches!(location, Location::Folder(_))) {
        say_left_out(plan.leave_out_copies(), "a folder");
    }
    // Threads that the user requested explicitly are an error instead.
    let is_preset = args.threads.is_none();
    if is_preset && locations.iter().any(Location::is_in_process) && plan.use_one_thread() {
        say_error(
            "a drive in this process has one thread: tests with several threads keep as many \
             requests in flight instead",
        );
    }
}

/// Prints the operations that are left out, because the target lacks a property that they require.
pub(super) fn say_left_out(left_out: Vec<Operation>, what: &str) {
    let names: Vec<_> = left_out.into_iter().map(Operation::name).collect();
    if !names.is_empty() {
        say_error(&format!("skipped {}: requires {what}", names.join(", ")));
    }
}

/// Continues an interrupted benchmark.
///
/// # Errors
/// The result file cannot be read, or belongs to other targets; a target fails.
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
