//! Goal: the program's output fits its terminal, has colours only where they are wanted, and shows
//! the progress of a command.
//!
//! Method: terminals of several widths, made by Python's `pty`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{COMMAND_LIMIT, Drive, Finished, PUMICE, fixture, pumice, run, run_ok, tool};

/// Runs `pumice` on a terminal of this width; `None` without Python.
fn on_terminal(columns: usize, args: &[&str], is_coloured: bool) -> Option<Finished> {
    let mut command = terminal(columns)?;
    if is_coloured {
        // The harness sets NO_COLOR.
        command.args(["/usr/bin/env", "-u", "NO_COLOR", "TERM=xterm-256color"]);
    }
    Some(run(command.arg(PUMICE).args(args), COMMAND_LIMIT))
}

/// Returns a command that runs another one, appended by the caller, on a terminal of this width.
fn terminal(columns: usize) -> Option<Command> {
    let mut command = Command::new(tool("python3")?);
    command.arg(fixture("columns.py")).arg(columns.to_string());
    Some(command)
}

/// Asserts that no line of `pumice`'s output is wider than the terminal.
fn assert_fits(columns: usize, args: &[&str]) -> Option<()> {
    assert_all_fit(columns, &on_terminal(columns, args, false)?, args);
    Some(())
}

fn assert_all_fit(columns: usize, finished: &Finished, args: &[&str]) {
    assert_eq!(finished.code, Some(0), "{args:?}: {}", finished.stdout);
    for line in finished.stdout.lines() {
        // Progress was shown before, and is cleared.
        let line = line.rsplit("\u{1b}[2K").next().unwrap_or(line);
        assert!(!line.contains('\u{1b}'), "{args:?}: {line:?}");
        // Clap does not wrap it.
        if line.starts_with("Usage: ") {
            continue;
        }
        let width = line.trim_end().chars().count();
        assert!(width <= columns, "{args:?} is {width} wide on {columns} columns: {line}");
    }
}

/// Returns the subcommands in the help.
fn subcommands() -> Vec<String> {
    let help = pumice(&["--help"]).stdout;
    let names = help.lines().filter_map(|line| {
        let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?;
        let is_none = |name: &str| name == "help" || name == "sudo" || name.starts_with('-');
        name.split_whitespace().next().filter(|name| !is_none(name))
    });
    names.skip_while(|name| *name == "pumice").map(str::to_owned).collect()
}

#[test]
fn help_fits_the_terminal() {
    let mut commands = subcommands();
    commands.retain(|name| name != "pumice");
    assert!(commands.len() > 10, "{commands:?}");
    let all = commands.iter().map(|name| format!("{PUMICE} {name} --help && "));
    let script = format!("{}{PUMICE} --help && {PUMICE} -h", all.collect::<String>());
    for columns in [60, 80] {
        let Some(mut terminal) = terminal(columns) else { return };
        let finished = run(terminal.args(["/bin/sh", "-c", &script]), COMMAND_LIMIT);
        assert_all_fit(columns, &finished, &[&script]);
    }
}

/// Creates a drive, and data to scan.
fn drive() -> Drive {
    let drive = Drive::create("64M", &[]);
    let folder = drive.beside("data/a-folder-with-a-long-name/another-folder-with-a-long-name");
    fs::create_dir_all(&folder).unwrap();
    for number in 0..20 {
        let text = format!("line {number}\n").repeat(10_000);
        fs::write(folder.join(format!("file-number-{number}.text")), text).unwrap();
    }
    drive
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn results_fit_the_terminal() {
    let drive = drive();
    let data = drive.beside("data");
    for columns in [60, 80] {
        let mut commands = vec![vec!["info", text(drive.path())]];
        if cfg!(feature = "bench") {
            commands.push(vec!["scan", text(&data)]);
            commands.push(vec!["drives"]);
            commands.push(vec!["drives", "corsair-force-100"]);
            commands.push(vec!["bench", "--list"]);
        }
        for command in commands {
            if assert_fits(columns, &command).is_none() {
                return;
            }
        }
    }
    // Other programs read whole lines.
    let info = pumice(&["info", text(drive.path())]).stdout;
    let memory = info.lines().find(|line| line.starts_with("memory ")).expect("a line");
    assert!(memory.contains("map ") && memory.contains("read cache "), "{info}");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let wrong = ["info", "/no/such/drive"];
    for args in [&["--help"][..], &["create", "--help"], &wrong] {
        let Some(finished) = on_terminal(80, args, true) else { return };
        assert!(finished.stdout.contains('\u{1b}'), "{args:?}: {:?}", finished.stdout);
        // The harness sets NO_COLOR.
        let Some(finished) = on_terminal(80, args, false) else { return };
        assert!(!finished.stdout.contains('\u{1b}'), "{args:?}: {:?}", finished.stdout);
        let mut command = Command::new("/usr/bin/env");
        command.args(["-u", "NO_COLOR", PUMICE]).args(args);
        let piped = run(&mut command, COMMAND_LIMIT);
        assert!(!(piped.stdout + &piped.stderr).contains('\u{1b}'), "{args:?}");
        let mut command = Command::new("/usr/bin/env");
        command.args(["-u", "NO_COLOR", "CLICOLOR_FORCE=1", PUMICE]).args(args);
        let forced = run(&mut command, COMMAND_LIMIT);
        assert!((forced.stdout + &forced.stderr).contains('\u{1b}'), "{args:?}");
    }
}

/// Guards against an estimate of half an hour for a minute's work: holes are not read.
#[test]
fn progress_has_an_end() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let drive = Drive::create("1G", &[]);
    let server = drive.serve();
    let mut write = Command::new(qemu_io);
    write.args(["-f", "raw", "-c", "write -P 7 0 4M", "-c", "flush"]).arg(server.uri());
    run_ok(&mut write);
    server.stop();
    let (path, image) = (text(drive.path()).to_owned(), drive.beside("image"));
    for (args, total) in [
        (&["extract", &path, text(&image)][..], " of 4.00 MiB ("),
        (&["check", &path], " of 2 segments, "),
        (&["scrub", &path, "--rate", "8K"], " of 2 segments, "),
    ] {
        let Some(finished) = on_terminal(60, args, false) else { return };
        assert_eq!(finished.code, Some(0), "{}", finished.stdout);
        assert!(finished.stdout.contains(total), "{total} in {:?}", finished.stdout);
    }
}
