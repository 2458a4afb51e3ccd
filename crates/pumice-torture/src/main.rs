//! `pumice-torture`: runs crash worlds by seed until one breaks a promise or the time is up.

#![allow(clippy::disallowed_methods, reason = "worlds are counted by the real second")]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use pumice_drive::base::{Error, Result};
use pumice_report::{Align, Table};
use pumice_torture::{
    Hazard, Rules, STEPS_DEFAULT, SweepReport, Tally, Violation, Weights, run_mirrors, run_world,
    sweep,
};

/// Number of worlds without --worlds and --time: about a minute.
const WORLDS_DEFAULT: u64 = 200;

/// Crash, rot and fail simulated drives, and check that every promise holds
///
/// A world is a small drive in memory, in virtual time, drawn from a seed: its geometry and codec,
/// the behaviour of its hosts, the moments of power loss, the unsynced writes that survive, the
/// bits that rot. An oracle knows the promises. The first broken promise is printed with the
/// command that reproduces it, and the exit code is 1. A seed and a number of steps determine a
/// run.
#[derive(Debug, Parser)]
#[command(version, after_help = after_help())]
struct Args {
    /// Seed of the first world; later worlds use the following seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Number of worlds [default: 200, or as many as the time allows]
    #[arg(long, value_name = "W")]
    worlds: Option<u64>,

    /// Maximum number of requests of one life of a drive
    #[arg(long, value_name = "M", default_value_t = STEPS_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,

    /// Start no world after this time, such as 60s, 10m or 8h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,

    /// Start no world after this number of requests in all worlds
    #[arg(long, value_name = "R")]
    requests: Option<u64>,

    /// Chance of a hazard in percent; can be repeated, `all` sets every hazard
    #[arg(long = "weight", value_name = "KIND=PERCENT", value_parser = weight)]
    weights: Vec<String>,

    /// Damage must not spread: writes and trims of whole blocks succeed despite any damage, and a
    /// drive with space for its data is never full
    #[arg(long)]
    strict: bool,

    /// Write the medium before each life, and the disk found on it, to this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Damage this many sectors of nine drives, one at a time, instead of running worlds
    #[arg(long, value_name = "N", conflicts_with_all = ["worlds", "time", "keep"])]
    sweep: Option<u64>,

    /// Run this many worlds of a mirror, whose members fail independently, instead of others
    #[arg(long, value_name = "W", conflicts_with_all = ["worlds", "time", "keep", "sweep"])]
    mirrors: Option<u64>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn rules(&self) -> Rules {
        let mut weights = Weights::default();
        for text in &self.weights {
            weights.set(text).expect("clap has checked it");
        }
        Rules { steps: self.steps, weights, is_strict: self.strict }
    }
}

/// Checks a weight.
fn weight(text: &str) -> Result<String, String> {
    Weights::default().set(text).map(|()| text.to_owned())
}

/// Returns the help text after the list of options.
fn after_help() -> String {
    format!("Hazards, with their default weights:\n{}\n{EXAMPLES}", Hazard::list())
}

const EXAMPLES: &str = "\
Examples:
  pumice-torture
  pumice-torture --time 10m
  pumice-torture --seed 42 --worlds 1 --steps 1000
  pumice-torture --weight all=0 --weight rot=100 --time 10m
  pumice-torture --sweep 10000";

#[derive(Serialize)]
struct Summary {
    first_seed: u64,
    steps: u64,
    #[serde(flatten)]
    tally: Tally,
    seconds: f64,
    worlds_per_second: f64,
    violation: Option<Violation>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(damages) = args.sweep {
        return run_sweep(&args, damages);
    }
    if let Some(worlds) = args.mirrors {
        return match run_mirrors(args.seed, worlds) {
            Ok(lives) => {
                println!("{worlds} mirrors kept every promise in {lives} lives");
                ExitCode::SUCCESS
            }
            Err(violation) => {
                eprintln!("pumice-torture: {violation}");
                ExitCode::from(1)
            }
        };
    }
    match run(&args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(violation)) => {
            eprintln!("pumice-torture: {violation}");
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("pumice-torture: {}", error.chain());
            ExitCode::from(2)
        }
    }
}

/// Sweeps, and prints the result; the exit code is 1 if a promise is broken.
fn run_sweep(args: &Args, damages: u64) -> ExitCode {
    let style = ProgressStyle::with_template("{pos} of {len} sectors ({per_sec}), {msg} refused");
    let bar = ProgressBar::new(damages).with_style(style.expect("a constant template"));
    let report = sweep(args.seed, damages, &mut |report: &SweepReport| {
        bar.set_message(report.refused.to_string());
        bar.set_position(report.damages);
    });
    bar.finish_and_clear();
    println!("{}", serde_json::to_string_pretty(&report).expect("results serialize"));
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Returns the first broken promise, if any.
fn run(args: &Args) -> Result<Option<Violation>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first signal ends the run after the current world, the second one immediately.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Error::os("cannot catch signals", error))?;
    }
    if let Some(folder) = &args.keep {
        std::fs::create_dir_all(folder)
            .map_err(|error| Error::os(format!("cannot create {}", folder.display()), error))?;
    }
    let summary = torture(args, &stop);
    let shown = if args.json {
        serde_json::to_string_pretty(&summary).expect("results serialize") + "\n"
    } else {
        text(&summary)
    };
    std::io::stdout()
        .write_all(shown.as_bytes())
        .map_err(|error| Error::os("cannot write the result", error))?;
    Ok(summary.violation)
}

fn torture(args: &Args, stop: &AtomicBool) -> Summary {
    let is_limited = args.time.is_some() || args.requests.is_some();
    let worlds = args.worlds.unwrap_or(if is_limited { u64::MAX } else { WORLDS_DEFAULT });
    let style = ProgressStyle::with_template("{pos} worlds ({per_sec}), {msg} crash states");
    let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
    let start = Instant::now();
    let rules = args.rules();
    let mut tally = Tally::default();
    let mut violation = None;
    for index in 0..worlds {
        let is_over = args.time.is_some_and(|time| start.elapsed() >= time)
            || args.requests.is_some_and(|requests| tally.requests >= requests);
        if is_over || stop.load(Ordering::Relaxed) {
            break;
        }
        match run_world(args.seed.wrapping_add(index), &rules, args.keep.as_deref()) {
            Ok(world) => tally.add(&world),
            Err(broken) => {
                violation = Some(*broken);
                break;
            }
        }
        bar.set_message(tally.crash_states.to_string());
        bar.set_position(tally.worlds);
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let worlds_per_second = if seconds > 0.0 { tally.worlds as f64 / seconds } else { 0.0 };
    let (first_seed, steps) = (args.seed, args.steps);
    Summary { first_seed, steps, tally, seconds, worlds_per_second, violation }
}

fn text(summary: &Summary) -> String {
    let tally = &summary.tally;
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let mut row = |name: &str, value: String| table.row(vec![name.into(), value]);
    row(
        "worlds",
        format!(
            "{} in {:.1} s, {:.2} a second",
            tally.worlds, summary.seconds, summary.worlds_per_second
        ),
    );
    row(
        "lives",
        format!(
            "{}: {} power losses, {} kills, {} closes, {} poisonings",
            tally.lives, tally.power_losses, tally.kills, tally.closes, tally.poisonings
        ),
    );
    row(
        "crashes",
        format!(
            "{} while opening, {} while closing",
            tally.crashes_while_opening, tally.crashes_while_closing
        ),
    );
    row("crash states", tally.crash_states.to_string());
    row(
        "requests",
        format!(
            "{}: {} reads, {} writes, {} flushes, {} trims",
            tally.requests, tally.reads, tally.writes, tally.flushes, tally.trims
        ),
    );
    row("", format!("{} refused for space, {} failed", tally.no_space, tally.failed));
    row(
        "changes at risk",
        format!("{} kept, {} lost in crashes", tally.changes_kept, tally.changes_lost),
    );
    row(
        "drives",
        format!(
            "{} segments emptied, {} checkpoints, {} leaves loaded, {} batches rolled forward",
            tally.gc_victims, tally.checkpoints, tally.map_misses, tally.recovered_batches
        ),
    );
    row("media operations", tally.media_operations.to_string());
    row("polls", tally.polls.to_string());
    row(
        "unsynced writes",
        format!(
            "{} kept, {} dropped, {} torn in crashes",
            tally.writes_kept, tally.writes_dropped, tally.writes_torn
        ),
    );
    row(
        "bit rot",
        format!(
            "{} bits: {} unreadable blocks, {} refusals to open",
            tally.rotten_bits, tally.rotten_blocks, tally.rot_refusals
        ),
    );
    for (name, value) in hazard_rows(tally) {
        row(name, value);
    }
    row("fingerprint", format!("{:016x}", tally.fingerprint));
    table.to_text()
}

/// Returns the effects of the hazards, and how close the drives came to their bounds.
fn hazard_rows(tally: &Tally) -> [(&'static str, String); 7] {
    let damage = format!(
        "{} places under served drives, {} wrong bits in openings: {} blocks unreadable when \
         opened, {} refusals to open",
        tally.damaged_places, tally.misreads, tally.unreadable_blocks, tally.refusals
    );
    let chores = format!(
        "{} scrubs, {} resizes, {} compactions, {} rescues",
        tally.scrubs, tally.resizes, tally.compactions, tally.rescues
    );
    let keys = format!("{} keys replaced, {} after a crash", tally.rekeys, tally.rekeys_gone_on);
    let snapshots = format!(
        "{} taken, {} refused, {} deleted, {} compared whole after lives, {} rolled back to, {} \
         made bookmarks, {} of these compared, {} audits, {} listed as damaged for {} damaged \
         tables",
        tally.snapshots,
        tally.snapshots_refused,
        tally.snapshots_deleted,
        tally.snapshots_compared,
        tally.rollbacks,
        tally.bookmarks,
        tally.bookmarks_compared,
        tally.audits,
        tally.tables_damaged[1],
        tally.tables_damaged[0]
    );
    let transfers = format!(
        "{} views read, {} diffs, {} sent while hosts wrote, {} received, {} interruptions, {} by \
         a fault, {} for want of room",
        tally.views_read,
        tally.diffs,
        tally.sends,
        tally.received,
        tally.receives_interrupted,
        tally.receives_failed,
        tally.receives_full
    );
    let clones = format!(
        "{} made, {} lives with {} requests, {} ended by a crash of the origin, {} flattened",
        tally.clones,
        tally.clone_lives,
        tally.clone_requests,
        tally.clones_crashed,
        tally.flattenings
    );
    let refused = tally.refused_at_percent.map_or("never".to_owned(), |at| format!("at {at} %"));
    let bounds = format!(
        "longest request {} ms, at most {} KiB in flight, full {refused} at the earliest",
        tally.request_ns_max / 1_000_000,
        tally.in_flight_bytes_max / 1024
    );
    [
        ("damage", damage),
        ("chores", chores),
        ("encryption", keys),
        ("snapshots", snapshots),
        ("transfers", transfers),
        ("clones", clones),
        ("bounds", bounds),
    ]
}

/// Parses a duration such as `90`, `60s`, `10m` or `8h`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let seconds = match unit {
        "m" => 60,
        "h" => 3600,
        _ => 1,
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| format!("invalid time '{text}': expected a duration such as 60s, 10m or 8h"))
}

#[cfg(test)]
mod tests {
    //! Goal: durations are parsed with all their suffixes.
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("0", 0), ("90", 90), ("60s", 60), ("10m", 600), ("8h", 28800)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "-1s", "1.5m", "10 m", "5d", "9999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
