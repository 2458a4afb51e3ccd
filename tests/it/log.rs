//! Goal: the log keeps the promises of docs/operate.md: an ordinary life is nothing to look at, and
//! what goes wrong is on the level of those whom it concerns.
//!
//! Method: servers whose whole log is read as JSON, under real clients and one that is wrong.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, PUMICE, Server, pumice, run, run_ok, stand_in, tool, wait_until,
};

fn serve(drive: &Drive) -> Server {
    let socket = drive.beside("socket");
    let mut command = Command::new(PUMICE);
    // The flag wins over the variable; what io_uring the machine has is not the question.
    command.env("PUMICE_LOG", "off").env("XDG_RUNTIME_DIR", drive.beside(""));
    command.args(["--log", "debug", "--log-format", "json", "serve"]).arg(drive.path());
    Server::start(command.args(["--io", "threads", "--unix"]).arg(&socket), socket)
}

/// Level and message of each line.
fn lines(server: &Server) -> Vec<(String, String)> {
    let text = |line: &Value, key: &str| line[key].as_str().expect("a text").to_owned();
    let said = server.stderr();
    let lines = said.lines().map(|line| serde_json::from_str(line).expect("a line of JSON"));
    lines.map(|line: Value| (text(&line, "level"), text(&line, "message"))).collect()
}

#[test]
fn an_ordinary_life_is_nothing_to_look_at() {
    let (Some(qemu_io), Some(nbdinfo)) = (tool("qemu-io"), tool("nbdinfo")) else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = serve(&drive);
    let work = ["write -P 7 0 8M", "flush", "discard 0 4M", "read -P 7 4M 4M", "write -z 8M 1M"];
    let mut client = Command::new(qemu_io);
    client.args(["-f", "raw"]).args(work.iter().flat_map(|work| ["-c", *work]));
    run_ok(client.arg(server.uri()));
    run_ok(Command::new(nbdinfo).args(["--map", &server.uri()]));
    wait_until("the control socket answers", || !drive.control_sockets().is_empty());
    drive.info();
    let mut resize = Command::new(PUMICE);
    resize.env("XDG_RUNTIME_DIR", drive.beside("")).arg("resize").arg(drive.path());
    assert_eq!(run(resize.args(["--size", "1M"]), COMMAND_LIMIT).code, Some(2), "no size shrinks");
    server.restart();
    // What is written at the very end is read before the server is waited for.
    server.hang_up();
    let restarts =
        || lines(&server).iter().filter(|(_, what)| what.starts_with("serving ")).count();
    wait_until("it has been stopped and started", || restarts() == 3);
    let lines = lines(&server);
    let above: Vec<_> =
        lines.iter().filter(|(level, _)| level != "INFO" && level != "DEBUG").collect();
    assert!(above.is_empty(), "{above:?}");
    for (level, what) in [("INFO", "restarting "), ("INFO", "not resized"), ("DEBUG", "read ")] {
        let is_said = lines.iter().any(|(of, said)| of == level && said.starts_with(what));
        assert!(is_said, "{level} {what}: {lines:?}");
    }
    server.stop();
}

#[test]
fn a_client_that_breaks_the_protocol_is_on_the_promised_level() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = serve(&drive);
    let mut client = UnixStream::connect(server.socket()).unwrap();
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).unwrap();
    client.write_all(&[0xff; 64]).unwrap();
    let refusal = || lines(&server).into_iter().find(|(_, what)| what.contains("refused"));
    wait_until("the log tells of it", || refusal().is_some());
    assert_eq!(refusal().unwrap().0, "DEBUG");
    let operate = include_str!("../../docs/operate.md");
    let row = operate.lines().find(|line| line.contains("a client that breaks the protocol"));
    assert!(row.is_some_and(|row| row.starts_with("| `debug`")), "{row:?}");
    server.stop();
}

#[test]
fn levels_are_checked_wherever_they_come_from() {
    let path = Drive::absent();
    let info = |command: &mut Command| run(command.arg("info").arg(path.path()), COMMAND_LIMIT);
    for refused in [
        pumice(&["--log", "loud", "info", "x"]),
        info(Command::new(PUMICE).env("PUMICE_LOG", "pumice=debug")),
    ] {
        assert_eq!(refused.code, Some(2));
        let levels = "[possible values: off, error, warn, info, debug]";
        assert!(refused.stderr.contains(levels), "{}", refused.stderr);
    }
    let quiet = Drive::create("64M", &[]);
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_LOG", "debug").args(["--log", "error", "serve"]).arg(quiet.path());
    let said = run_ok(command.args(["--run", "true"])).stderr;
    assert_eq!(said, "", "the flag wins over the variable");
}
