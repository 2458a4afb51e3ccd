//! The copy of the tree in which bugs are planted: copying, planting, building, running one test.
//!
//! The copy stays from run to run, and files that are equal are not written again, so that cargo
//! builds only the changes. Invariant: between two mutants every file of the copy equals the file
//! in the tree; the next run's copying repairs the copy of a killed run.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::list::{Mutant, Target};

/// Lines of compiler output shown for a mutant that does not build.
const ERROR_LINES: usize = 12;

/// Returns the setting that turns off optimisation of a package: building takes most of a mutant's
/// time, and five times less without optimisation.
fn unoptimised(package: &str) -> String {
    format!("profile.dev.package.{package}.opt-level=0")
}

/// The copy, locked for this process.
pub(crate) struct Tree {
    root: PathBuf,
    build: PathBuf,
    output: PathBuf,
    _lock: File,
}

/// Outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It passed.
    Passed,
    /// It failed, or took the process down.
    Failed,
    /// It was killed at the end of its time.
    TookTooLong,
}

/// A planted bug, which is removed when this is dropped.
pub(crate) struct Planted {
    path: PathBuf,
    source: String,
}

impl Drop for Planted {
    fn drop(&mut self) {
        // The next run's copying would repair it, but the next mutant of this run must not contain
        // it.
        fs::write(&self.path, &self.source).expect("take a planted bug out");
    }
}

impl Tree {
    /// Copies every file that git knows or does not ignore.
    ///
    /// # Errors
    /// There is no git or no space, or another run is active.
    pub(crate) fn copy(source: &Path) -> Result<Self, String> {
        let folder = source.join("target/mutants");
        let failed = |error: std::io::Error| format!("cannot copy the tree: {error}");
        fs::create_dir_all(&folder).map_err(failed)?;
        let lock = File::create(folder.join("lock")).map_err(failed)?;
        lock.try_lock().map_err(|_| "another run is at work below target/mutants".to_owned())?;
        let root = folder.join("tree");
        let files = files(source)?;
        for file in &files {
            let content = fs::read(source.join(file)).map_err(failed)?;
            let target = root.join(file);
            if fs::read(&target).is_ok_and(|copied| copied == content) {
                continue;
            }
            fs::create_dir_all(target.parent().unwrap_or(&root)).map_err(failed)?;
            fs::copy(source.join(file), target).map_err(failed)?;
        }
        remove_others(&root, &root, &files).map_err(failed)?;
        let (build, output) = (folder.join("build"), folder.join("output.txt"));
        Ok(Self { root, build, output, _lock: lock })
    }

    /// Puts a mutant into the copy.
    ///
    /// # Errors
    /// The mutant does not fit the file.
    pub(crate) fn plant(&self, mutant: &Mutant) -> Result<Planted, String> {
        let path = self.root.join(&mutant.file);
        let source = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let broken = mutant.plant(&source)?;
        fs::write(&path, broken).map_err(|error| error.to_string())?;
        Ok(Planted { path, source })
    }

    /// Builds the tests of a target. Returns their binary.
    ///
    /// # Errors
    /// The errors of the compiler.
    pub(crate) fn build(&self, target: &Target) -> Result<PathBuf, String> {
        let (package, which): (&str, &[&str]) = match target {
            Target::Unit(package) if package == "pumice" => (package, &["--bin", "pumice"]),
            Target::Unit(package) => (package, &["--lib"]),
            Target::It => ("pumice", &["--test", "it"]),
        };
        let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
            .args(["--package", package])
            .args(which)
            .args(["--config", &unoptimised(package)])
            .arg("--target-dir")
            .arg(&self.build)
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run cargo: {error}"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let from_error = text.lines().skip_while(|line| !line.starts_with("error"));
            let lines: Vec<&str> = from_error.take(ERROR_LINES).collect();
            return Err(format!("it does not build:\n    {}", lines.join("\n    ")));
        }
        let binary = String::from_utf8_lossy(&output.stdout).lines().find_map(test_binary);
        binary.ok_or_else(|| "cargo named no test binary".to_owned())
    }

    /// Runs one test by its full name.
    ///
    /// # Errors
    /// There is no such test.
    pub(crate) fn run(&self, binary: &Path, test: &str, limit: Duration) -> Result<Ended, String> {
        let failed = |error: std::io::Error| format!("cannot run {test}: {error}");
        let output = File::create(&self.output).map_err(failed)?;
        let mut child = Command::new(binary)
            .args([test, "--exact"])
            .current_dir(&self.root)
            // A test whose client is missing is skipped elsewhere; here that would prove nothing.
            .env("CI", "true")
            // Futures built without optimisation are large.
            .env("RUST_MIN_STACK", "16777216")
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        let limit = Timespec::try_from(limit).expect("a limit of seconds");
        let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
        let in_time = poll(&mut events, Some(&limit)).map_err(|error| failed(error.into()))? == 1;
        // Processes started by the test end with it.
        let _ = kill_process_group(pid, Signal::KILL);
        let status = child.wait().map_err(failed)?;
        if !in_time {
            return Ok(Ended::TookTooLong);
        }
        let said = String::from_utf8_lossy(&fs::read(&self.output).map_err(failed)?).into_owned();
        if !said.contains("running 1 test\n") {
            return Err(format!("there is no test {test}"));
        }
        Ok(if status.success() { Ended::Passed } else { Ended::Failed })
    }
}

/// Returns every file of the tree, relative to its root.
fn files(source: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(source)
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(names.filter(|name| source.join(name).is_file()).collect())
}

/// Removes files that the tree no longer has from its copy.
fn remove_others(root: &Path, folder: &Path, kept: &BTreeSet<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, kept)?;
        } else if path.strip_prefix(root).is_ok_and(|name| !kept.contains(name)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Returns the executable of a line of cargo's output, if it is about a test binary.
fn test_binary(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_test = message["profile"]["test"] == true;
    message["executable"].as_str().filter(|_| is_test).map(PathBuf::from)
}
