//! Goal: the ways to serve a drive, and to query it while it is served.
//!
//! Method: real clients on each kind of listener and each kind of I/O; the exit codes users script
//! against.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    COMMAND_LIMIT, Drive, PUMICE, Server, counter, fixture, pumice, run, run_ok, skip, stand_in,
    tool, wait_until,
};

#[test]
fn a_served_drive_answers_info() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    let write = ["-f", "raw", "-c", "write -P 7 0 1M", "-c", "flush"];
    run_ok(Command::new(qemu_io).args(write).arg(server.uri()));
    let info = drive.info();
    assert_eq!(counter(&info, "host_bytes"), 1 << 20);
    assert_eq!(counter(&info, "mapped_bytes"), 1 << 20);
    server.stop();
    assert_eq!(counter(&drive.info(), "host_bytes"), 1 << 20, "counters survive the server");
}

/// Guards against a panic where a container's filter refuses any call of io_uring.
#[test]
fn a_drive_is_served_without_io_uring() {
    let (Some(python), Some(_)) = (tool("python3"), tool("qemu-io")) else { return };
    if stand_in().is_some() || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let [setup, enter, register] = ["425", "426", "427"];
    for call in [setup, enter, register] {
        let drive = Drive::absent();
        let refused = |args: &[&str]| {
            let mut command = Command::new(&python);
            command.arg(fixture("refuse.py")).arg(call).arg(PUMICE).args(args);
            run(&mut command, COMMAND_LIMIT)
        };
        let path = drive.path().to_str().expect("a plain path");
        let created = refused(&["create", path, "--size", "64M"]);
        assert_eq!(created.code, Some(0), "{created:#?}");
        assert!(created.stderr.contains("no io_uring: using threads"), "{created:#?}");
        let script = "qemu-io -f raw -c 'write -P 7 0 1M' -c flush -c 'read -P 7 0 1M' \"$uri\"";
        let socket = drive.beside("socket");
        let socket = socket.to_str().expect("a plain path");
        let served = refused(&["serve", path, "--unix", socket, "--run", script]);
        assert_eq!(served.code, Some(0), "{served:#?}");
        assert!(!served.stdout.contains("Pattern verification failed"), "{served:#?}");
        let demanded = refused(&["serve", path, "--io", "uring", "--run", "true"]);
        assert_eq!(demanded.code, Some(2), "{demanded:#?}");
        assert!(demanded.stderr.contains("cannot set up io_uring"), "{demanded:#?}");
        drive.assert_checks();
    }
}

#[test]
fn run_gives_the_uri_and_passes_the_exit_code_on() {
    if tool("nbdinfo").is_none() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let serve = |command: &str| {
        pumice(&["serve".as_ref(), drive.path().as_os_str(), "--run".as_ref(), command.as_ref()])
    };
    let finished = serve("nbdinfo --size \"$uri\"");
    assert_eq!((finished.code, finished.stdout.trim()), (Some(0), "67108864"));
    assert_eq!(serve("exit 7").code, Some(7));
    // Even under the most lenient umask, only the command's user can access the socket.
    let stat = "socket=${uri##*=}; stat -c %a \"${socket%/*}\"";
    let served = format!("umask 0; exec \"$0\" serve \"$1\" --run '{stat}'");
    let mut command = Command::new("sh");
    let folder = run_ok(command.args(["-c", &served, PUMICE]).arg(drive.path()));
    assert_eq!(folder.stdout.trim(), "700");
    assert_eq!(serve("kill -9 $$").code, Some(128 + 9));
}

#[test]
fn a_signal_ends_the_command_and_leaves_no_socket() {
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("socket");
    // If the signal were not passed on, the command would end by itself, with 0.
    let mut child = Command::new(PUMICE)
        .args(["serve".as_ref(), drive.path().as_os_str(), "--unix".as_ref(), socket.as_os_str()])
        .args(["--run", "echo ready; exec sleep 20"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert!(!socket.exists(), "the socket was not removed");
    drive.assert_checks();
}

/// Starts a process with this number, once the number is free; `None` if this machine assigns
/// numbers in no predictable order.
fn process_with(number: u32) -> Option<Child> {
    for _ in 0..200 {
        fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).ok()?;
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        if child.id() == number {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    None
}

/// Guards against a signal for the command of `--run` that reaches another process, which has the
/// number of the command by then.
#[test]
fn a_signal_after_the_end_of_the_command_reaches_nobody() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("socket");
    let mut server = Command::new(PUMICE)
        .args(["serve".as_ref(), drive.path().as_os_str(), "--unix".as_ref(), socket.as_os_str()])
        .args(["--run", "echo $$; read word; exit 7"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let command: u32 = line.trim().parse().unwrap();
    // A client that stops in the middle of a write delays the shutdown by seconds.
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 18 + 32 + 20]).unwrap();
    client.write_all(b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\0\x01").unwrap();
    client.write_all(b"\0\0\0\0\0\0\0\0\0\x10\0\0half").unwrap();
    drop(server.stdin.take());
    wait_until("the command has ended", || !Path::new(&format!("/proc/{command}")).exists());
    let Some(mut stranger) = process_with(command) else {
        server.wait().unwrap();
        return skip("the number of a process cannot be chosen here").unwrap_or_default();
    };
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(7));
    assert_eq!(stranger.try_wait().unwrap(), None, "another process was signalled");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn the_control_socket_goes_with_its_server_and_a_dead_ones_is_replaced() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let answers = || match &drive.control_sockets()[..] {
        [] => false,
        [socket] => UnixStream::connect(socket).is_ok(),
        several => panic!("{several:?}"),
    };
    let server = drive.serve();
    wait_until("the control socket answers", answers);
    server.stop();
    assert_eq!(drive.control_sockets().len(), 0, "not removed by an orderly end");
    let server = drive.serve();
    wait_until("the control socket answers", answers);
    server.kill();
    // The kernel may still be completing operations of the killed server.
    wait_until("the dead server's socket does not answer", || !answers());
    assert_eq!(drive.control_sockets().len(), 1, "no process removes it");
    let server = drive.serve();
    wait_until("the next server answers", answers);
    assert_eq!(counter(&drive.info(), "size_bytes"), 64 << 20);
    server.stop();
    assert_eq!(drive.control_sockets().len(), 0, "not removed after a replacement");
}

/// Guards against a server started by a service, or by sudo, that commands of a login shell do not
/// find.
#[test]
fn a_server_is_found_in_any_environment() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("socket");
    let mut command = Command::new(PUMICE);
    command.arg("serve").arg(drive.path()).arg("--unix").arg(&socket);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("PUMICE_RUNTIME_DIR");
    let server = Server::start(&mut command, socket);
    let session = drive.beside("session");
    DirBuilder::new().mode(0o700).create(&session).unwrap();
    let mut info = Command::new(PUMICE);
    info.arg("info").arg(drive.path()).env("XDG_RUNTIME_DIR", session);
    // The control socket listens a moment after the first client is accepted.
    let mut said = String::new();
    wait_until("info finds the server", || {
        said = run(&mut info, COMMAND_LIMIT).stdout;
        said.contains("served")
    });
    assert!(said.contains(&server.id().to_string()), "{said}");
    server.stop();
}

/// Guards against answers from another user who created the directory first.
#[test]
fn a_directory_of_another_user_is_not_asked() {
    if stand_in().is_some() || !rustix::process::geteuid().is_root() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let foreign = drive.beside("pumice");
    DirBuilder::new().mode(0o700).create(&foreign).unwrap();
    std::os::unix::fs::chown(&foreign, Some(1), None).unwrap();
    let mut info = Command::new(PUMICE);
    info.env("PUMICE_RUNTIME_DIR", &foreign).arg("info").arg(drive.path());
    let finished = run(&mut info, COMMAND_LIMIT);
    assert_eq!(finished.code, Some(2), "{finished:#?}");
    assert!(finished.stderr.contains("is not a private directory of this user"), "{finished:#?}");
}

#[test]
fn two_read_only_servers_keep_both_control_sockets() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let first = drive.serve_with_control(&["--read-only"]);
    let second = drive.serve_with(&["--read-only"]);
    assert_eq!(counter(&drive.info(), "size_bytes"), 64 << 20);
    second.stop();
    let sockets = drive.control_sockets();
    assert!(UnixStream::connect(&sockets[0]).is_ok(), "the second server took it away");
    first.stop();
    assert_eq!(drive.control_sockets().len(), 0, "not removed by an orderly end");
}

/// Runs the example of the README, except for its load, with a server that is slow to start:
/// nothing in it may rely on the server being faster than its client.
#[test]
fn the_readme_s_example_works_with_a_slow_server() {
    if stand_in().is_some() || tool("qemu-img").is_none() {
        return;
    }
    let readme = include_str!("../../../README.md");
    let from = readme.find("$ pumice create").expect("the example");
    let block = &readme[from..from + readme[from..].find("```").expect("its end")];
    let block = block.replace("\\\n", " ");
    let commands = block.lines().filter_map(|line| line.strip_prefix("$ "));
    let shown: Vec<&str> = commands.filter(|command| !command.starts_with("fio")).collect();
    assert!(shown.len() >= 5, "{shown:?}");
    let drive = Drive::absent();
    let socket = drive.beside("drive.sock");
    let script = shown.join("\n").replace("/tmp/drive.sock", socket.to_str().expect("plain"));
    let slow = format!(
        "set -e\npumice() {{ if [ $1 = serve ]; then sleep 0.5; exec {PUMICE} \"$@\"; fi; \
         {PUMICE} \"$@\"; }}\n{script}\n# Known after the job has ended, unlike %1.\nwait $!\n"
    );
    let mut command = Command::new("bash");
    let directory = drive.path().parent().expect("a directory");
    let said = run_ok(command.args(["-c", &slow]).current_dir(directory)).stdout;
    assert!(said.contains("64 GiB") && !socket.exists(), "{said}");
}

#[test]
fn tcp_and_threads_serve_as_well() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let drive = Drive::create("64M", &["--codec", "zstd:3"]);
    let io = format!(
        "{} -f raw -c 'write -P 1 512 1536' -c 'write -P 2 1M 2M' -c flush -c 'read -P 1 512 1536' \
         -c 'read -P 2 1M 2M' -c 'read -P 0 4k 4k' \"$uri\"",
        qemu_io.display()
    );
    let io = format!("echo \"$uri\"; {io}");
    let ways = [
        (&["--listen", "127.0.0.1:0"][..], "nbd://127.0.0.1:", "io="),
        (&["--io", "threads"], "nbd+unix:///", "io=\"threads\""),
        (&["--io", "uring"], "nbd+unix:///", "io=\"io_uring\""),
    ];
    for (extra, uri, log) in ways {
        let mut args = vec!["serve", drive.path().to_str().expect("a plain path"), "--run", &io];
        args.extend(extra);
        let finished = pumice(&args);
        let wrong = finished.stdout.contains("Pattern verification failed");
        assert!(finished.code == Some(0) && !wrong, "{extra:?}: {finished:#?}");
        let as_asked = finished.stdout.starts_with(uri) && finished.stderr.contains(log);
        assert!(as_asked, "{extra:?}: {finished:#?}");
    }
    drive.assert_checks();
}

#[test]
fn a_read_only_server_changes_nothing() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let drive = Drive::create("64M", &[]);
    let before = std::fs::read(drive.path()).unwrap();
    let io = format!("{} -f raw -r -c 'read 0 1M' \"$uri\"", qemu_io.display());
    let path = drive.path().to_str().expect("a plain path");
    let finished = pumice(&["serve", path, "--read-only", "--run", &io]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(before == std::fs::read(drive.path()).unwrap(), "the file was changed");
}

#[test]
fn check_lists_the_blocks_of_a_damaged_frame() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let drive = Drive::create("64M", &["--codec", "none"]);
    let path = drive.path().to_str().expect("a plain path");
    // Written as one frame of two blocks of LBA 4 and 5, not all of one byte.
    let write = format!(
        "{} -f raw -c 'write -P 1 16k 6k' -c 'write -P 3 22k 2k' -c flush \"$uri\"",
        qemu_io.display()
    );
    assert_eq!(pumice(&["serve", path, "--run", &write]).code, Some(0));
    assert_eq!(pumice(&["check", path]).code, Some(0));
    let bytes = std::fs::read(path).unwrap();
    let boundary = [[1; 2048], [3; 2048]].concat();
    let at = bytes.windows(4096).position(|window| window == boundary).expect("the data's place");
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[2], at as u64).unwrap();
    let finished = pumice(&["check", path]);
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    assert!(finished.stdout.contains("LBA 5"), "{finished:#?}");
    let json: serde_json::Value =
        serde_json::from_str(&pumice(&["check", path, "--json"]).stdout).unwrap();
    let problems = json["problems"].as_array().expect("a list");
    assert!(problems.iter().any(|problem| problem["lba"] == 5), "{json:#}");
    // Reading it fails, and reading its neighbour does not.
    let read = |range: &str| {
        let io = format!("{} -f raw -r -c 'read {range}' \"$uri\"", qemu_io.display());
        pumice(&["serve", path, "--read-only", "--run", &io])
    };
    let damaged = read("20k 4k");
    assert!((damaged.stdout + &damaged.stderr).contains("Input/output error"));
    let whole = read("16k 4k");
    assert!(whole.code == Some(0) && whole.stdout.contains("read 4096/4096"), "{whole:#?}");
}
