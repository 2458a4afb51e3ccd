//! Goal: the demo shows the promised results, and an interrupted one reports that and leaves
//! nothing. Method: a single round on a small folder; signals at moments that are visible in its
//! scratch folder.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pumice_drive::base::seed::mix;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{PUMICE, run_ok, skip, spawn, stand_in, wait, wait_until};

/// The space that the demo requires, plus a margin.
const FREE_BYTES: u64 = 2 << 30;

/// Creates folders for the data, the drives and sockets, if there is space.
fn folders(directory: &Path) -> Option<[PathBuf; 3]> {
    let space = rustix::fs::statvfs(directory).unwrap();
    if stand_in().is_some() {
        return None;
    }
    if space.f_bavail * space.f_frsize < FREE_BYTES {
        return skip("the temporary folder has less than 2 GiB free");
    }
    let folders = ["data", "scratch", "run"].map(|name| {
        let path = directory.join(name);
        fs::create_dir(&path).unwrap();
        path
    });
    // Half of each block is zeroes.
    let blocks: Vec<u8> = (0..4u64 << 20)
        .map(|at| if at % 4096 < 2048 { (mix(at / 8) >> (at % 8 * 8)) as u8 } else { 0 })
        .collect();
    fs::write(folders[0].join("file"), blocks).unwrap();
    Some(folders)
}

#[test]
fn a_round_shows_the_drives_side_by_side() {
    let directory = tempfile::Builder::new().prefix("pumice-").tempdir().unwrap();
    let Some([data, scratch, _]) = folders(directory.path()) else { return };
    let page = directory.path().join("page.html");
    let mut command = Command::new(PUMICE);
    command.arg("demo").arg(&data).arg("--scratch").arg(&scratch).arg("--page").arg(&page);
    let finished = run_ok(command.args(["--rounds", "1"]));
    let first = finished.stdout.lines().next().expect("a headline");
    assert!(first.starts_with("On flash of 97 MB/s, compression speeds up writes "), "{first}");
    for wanted in ["98 % saved", "PostgreSQL", "published", "page.html"] {
        assert!(finished.stdout.contains(wanted), "{wanted}: {}", finished.stdout);
    }
    let page = fs::read_to_string(page).unwrap();
    for wanted in
        ["<h1>On flash of 97 MB/s, compression", "<svg", "Micro Center 64 GB", "J. Layton"]
    {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    assert_eq!(entries(&scratch), [""; 0]);
    let mut command = Command::new(PUMICE);
    command.current_dir(&directory).arg("demo").arg(&data).arg("--scratch").arg(&scratch);
    let finished = run_ok(command.args(["--rounds", "1", "--json"]));
    let shown: Value = serde_json::from_str(&finished.stdout).unwrap();
    let cells = shown["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 7);
    // No faster than the flash and the link; the slowdown depends on the other load of the machine.
    let files = cells.iter().find(|cell| cell["kind"] == "files").expect("files");
    let mean = |name: &str| files[name]["mean"].as_f64().expect("a mean");
    assert!((1.0..98.0).contains(&mean("base")), "faster than its flash: {files:#}");
    assert!((1.0..262.0).contains(&mean("other")), "faster than its link: {files:#}");
    let amplification = shown["files"][0]["write_amplification"].as_f64().expect("a number");
    assert!((0.45..0.7).contains(&amplification), "{amplification}");
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let directory = tempfile::Builder::new().prefix("pumice-").tempdir().unwrap();
    let Some([data, scratch, runtime]) = folders(directory.path()) else { return };
    for (signal, moment) in [(Signal::INT, "lz4"), (Signal::TERM, "socket")] {
        let mut command = Command::new(PUMICE);
        command.arg("demo").arg(&data).arg("--scratch").arg(&scratch);
        let mut child = spawn(command.env("PUMICE_RUNTIME_DIR", runtime.join("pumice")));
        wait_until(moment, || {
            let folders = entries(&scratch);
            folders.iter().any(|folder| scratch.join(folder).join(moment).exists())
        });
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut stderr = child.stderr.take().expect("stderr is piped");
        let status = wait(&mut child, Duration::from_secs(60));
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        let code = status.expect("an end in time").code();
        assert_eq!(code, Some(128 + signal.as_raw()), "{signal:?}: {said}");
        assert!(said.contains("interrupted"), "{signal:?}: {said}");
        assert_eq!(entries(&scratch), [""; 0], "{signal:?}");
        assert_eq!(entries(&runtime.join("pumice")), [""; 0], "{signal:?}");
        assert_eq!(processes(&scratch), [""; 0], "{signal:?}");
    }
}

/// Returns the names in a directory; none if there is no such directory.
fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the command lines of running processes that name a path.
fn processes(path: &Path) -> Vec<String> {
    let path = path.to_str().expect("a plain path");
    let lines = entries(Path::new("/proc")).into_iter().filter_map(|process| {
        let line = fs::read(Path::new("/proc").join(process).join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(path)).collect()
}
