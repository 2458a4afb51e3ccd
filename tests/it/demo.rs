//! Goal: a demo that is interrupted says so and leaves nothing behind.
//! Method: signals at moments that show in its scratch folder.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{PUMICE, skip, spawn, stand_in, wait, wait_until};

/// What the demo asks for with little real data, and some more.
const FREE_BYTES: u64 = 4 << 30;

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    if stand_in().is_some() {
        return;
    }
    let directory = tempfile::Builder::new().prefix("pumice-").tempdir().unwrap();
    let space = rustix::fs::statvfs(directory.path()).unwrap();
    if space.f_bavail * space.f_frsize < FREE_BYTES {
        skip::<()>("the temporary folder has less than 4 GiB free");
        return;
    }
    let [data, scratch, runtime] = ["data", "scratch", "run"].map(|name| {
        let path = directory.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    });
    fs::write(data.join("file"), vec![7; 4 << 20]).unwrap();
    for (signal, moment) in [(Signal::INT, "lz4"), (Signal::TERM, "lz4.sock")] {
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

/// Names in a directory; none if there is no such directory.
fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Command lines of running processes that name a path.
fn processes(path: &Path) -> Vec<String> {
    let path = path.to_str().expect("a plain path");
    let lines = entries(Path::new("/proc")).into_iter().filter_map(|process| {
        let line = fs::read(Path::new("/proc").join(process).join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(path)).collect()
}
