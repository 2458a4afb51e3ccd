//! Plants bugs in a copy of the tree, one after the other, and checks whether the test named for
//! each detects it: "every test was seen to fail", repeatable by anyone.
//!
//! ```text
//! tests/mutants/*.toml -> copy of the tree -> the named tests pass on it as it is
//!                      -> for each mutant: plant, build, run its one test, take it out
//! ```
//!
//! A mutant is *caught* if its test fails, crashes or does not end in time; *MISSED* if it passes.
//! One that cannot be planted or does not build is *stale*: an error of the list. Exit code 0 only
//! if all were caught.
//!
//! Works below `target/mutants` only, with a target directory of its own, so that neither the
//! sources nor a built program ever contains a planted bug by accident. Not part of `cargo test`: a
//! run takes minutes. Deliberately generates no mutants: each stands for a promise.
#![allow(clippy::disallowed_methods, reason = "how long a test takes is real time")]

mod list;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use list::{Mutant, Target};
use tree::{Ended, Tree};

/// Time limit of a test with a planted bug: a multiple of its time without, plus this extra for a
/// busy machine.
const LIMIT_FACTOR: u32 = 5;
const LIMIT_EXTRA: Duration = Duration::from_secs(30);

/// Time limit of a test on the unchanged tree.
const LIMIT_UNBROKEN: Duration = Duration::from_secs(300);

const HELP: &str = "\
Plants the bugs of tests/mutants/*.toml one by one and runs the test that must see each.

Usage: cargo test --locked --test mutants -- [--list] [FILTER]

  FILTER   only mutants with this text in their room, name, file or test
  --list   print them and run nothing
  --help   print this

Exit code: 0 all were caught, 1 some were not, 2 nothing could be run.";

/// Result of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Caught,
    Hung,
    Missed,
    Stale,
}

fn main() -> ExitCode {
    let mut filter = String::new();
    let mut only_list = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            "--list" => only_list = true,
            flag if flag.starts_with('-') => return refuse(&format!("unknown flag {flag}")),
            text => text.clone_into(&mut filter),
        }
    }
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mutants = match read_lists(root, &filter) {
        Ok(mutants) if mutants.is_empty() => return refuse(&format!("no mutant has '{filter}'")),
        Ok(mutants) => mutants,
        Err(error) => return refuse(&error),
    };
    if only_list {
        for mutant in &mutants {
            println!("{}: {}\n    {}", mutant.room, mutant.name, mutant.test().1);
        }
        println!("{} mutants", mutants.len());
        return ExitCode::SUCCESS;
    }
    match run(root, &mutants) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &str) -> ExitCode {
    eprintln!("mutants: {error}");
    ExitCode::from(2)
}

/// Reads the mutants that match `filter`, ordered by target, so that the build stays in step.
fn read_lists(root: &Path, filter: &str) -> Result<Vec<Mutant>, String> {
    let folder = root.join("tests/mutants");
    let entries = fs::read_dir(&folder).map_err(|error| format!("tests/mutants: {error}"))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    files.sort();
    let mut mutants = Vec::new();
    for path in files {
        let room = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).map_err(|error| format!("{room}.toml: {error}"))?;
        mutants.extend(list::parse(&room, &text).map_err(|error| format!("{room}.toml: {error}"))?);
    }
    mutants.retain(|mutant| {
        let line = format!("{}: {} {} {}", mutant.room, mutant.name, mutant.file, mutant.test().1);
        line.contains(filter)
    });
    mutants.sort_by_key(|mutant| mutant.test().0);
    Ok(mutants)
}

/// Runs everything. Returns whether all mutants were caught.
fn run(root: &Path, mutants: &[Mutant]) -> Result<bool, String> {
    let began = Instant::now();
    let tree = Tree::copy(root)?;
    let limits = run_unbroken(&tree, mutants)?;
    let mut counts = [0usize; 4];
    for (index, mutant) in mutants.iter().enumerate() {
        let started = Instant::now();
        let (verdict, why) = try_mutant(&tree, mutant, limits[mutant.test().1]);
        counts[verdict as usize] += 1;
        let word = match verdict {
            Verdict::Caught => "caught",
            Verdict::Hung => "caught (hung)",
            Verdict::Missed => "MISSED",
            Verdict::Stale => "STALE",
        };
        println!(
            "[{}/{}] {word:<6} {}: {} ({:.1} s)",
            index + 1,
            mutants.len(),
            mutant.room,
            mutant.name,
            started.elapsed().as_secs_f64()
        );
        if !matches!(verdict, Verdict::Caught | Verdict::Hung) {
            println!("    {} {}\n    {why}", mutant.file, mutant.test().1);
        }
    }
    let [caught, hung, missed, stale] = counts;
    println!(
        "{} of {} mutants caught ({hung} by a test that hung), {missed} missed, {stale} stale, in \
         {:.0} s",
        caught + hung,
        mutants.len(),
        began.elapsed().as_secs_f64()
    );
    Ok(missed + stale == 0)
}

/// Runs every named test without a bug. Returns the time limit of each with one.
fn run_unbroken<'a>(
    tree: &Tree,
    mutants: &'a [Mutant],
) -> Result<BTreeMap<&'a str, Duration>, String> {
    let mut limits = BTreeMap::new();
    let mut wrong = Vec::new();
    let targets: BTreeSet<Target> = mutants.iter().map(|mutant| mutant.test().0).collect();
    for target in targets {
        let mut tests: Vec<&str> =
            mutants.iter().map(Mutant::test).filter(|test| test.0 == target).map(|t| t.1).collect();
        tests.sort_unstable();
        tests.dedup();
        if tests.is_empty() {
            continue;
        }
        println!("building the tree as it is, for {} named tests", tests.len());
        let binary = tree.build(&target)?;
        for test in tests {
            let started = Instant::now();
            match tree.run(&binary, test, LIMIT_UNBROKEN)? {
                Ended::Passed => {}
                ended => wrong.push(format!("{test}: {ended:?}")),
            }
            limits.insert(test, started.elapsed() * LIMIT_FACTOR + LIMIT_EXTRA);
        }
    }
    match wrong.is_empty() {
        true => Ok(limits),
        false => Err(format!(
            "on the tree as it is:\n{}\nIf `make test` passes, remove target/mutants and try \
             again.",
            wrong.join("\n")
        )),
    }
}

/// Plants one mutant, runs its test, and removes it.
fn try_mutant(tree: &Tree, mutant: &Mutant, limit: Duration) -> (Verdict, String) {
    let planted = match tree.plant(mutant) {
        Ok(planted) => planted,
        Err(error) => return (Verdict::Stale, error),
    };
    let (target, test) = mutant.test();
    let ended = tree.build(&target).and_then(|binary| tree.run(&binary, test, limit));
    drop(planted);
    match ended {
        Ok(Ended::Failed) => (Verdict::Caught, String::new()),
        Ok(Ended::TookTooLong) => (Verdict::Hung, String::new()),
        Ok(Ended::Passed) => (Verdict::Missed, "the test passed".to_owned()),
        Err(error) => (Verdict::Stale, error),
    }
}
