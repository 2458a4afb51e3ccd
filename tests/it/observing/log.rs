//! Goal: the log keeps the promises of docs/operate.md: normal operation logs nothing that needs
//! attention, and failures are logged at the level of the readers they concern.
//!
//! Method: servers whose whole log is read as JSON, under real clients and a misbehaving one.

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
    // The flag takes precedence over the variable; the machine's support of io_uring must not
    // matter.
    command.env("PUMICE_LOG", "off").env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    command.args(["--log", "debug", "--log-format", "json", "serve"]).arg(drive.path());
    Server::start(command.args(["--io", "threads", "--unix"]).arg(&socket), socket)
}

/// Returns the level and the message of each line.
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
    resize.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).arg("resize").arg(drive.path());
    assert_eq!(run(resize.args(["--size", "1M"]), COMMAND_LIMIT).code, Some(2), "no size shrinks");
    server.restart();
    // The last lines are read before the test waits for the server's end.
    server.hang_up();
    let restarts =
        || lines(&server).iter().filter(|(_, what)| what.starts_with("serving ")).count();
    wait_until("it has been stopped and started", || restarts() == 3);
    let lines = lines(&server);
    let above: Vec<_> =
        lines.iter().filter(|(level, _)| level != "INFO" && level != "DEBUG").collect();
    assert!(above.is_empty(), "{above:?}");
    for (level, what) in [
        ("INFO", "restarting"),
        ("INFO", "resize failed"),
        ("INFO", "closed: all data is durable"),
        ("DEBUG", "replayed the log"),
    ] {
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
    assert_eq!(refusal().unwrap().0, "INFO");
    let operate = include_str!("../../../docs/operate.md");
    let row = operate.lines().find(|line| line.contains("clients that connect, disconnect or are"));
    assert!(row.is_some_and(|row| row.starts_with("| `info`")), "{row:?}");
    server.stop();
}

/// Enters the transmission phase of the default export and requests bytes beyond its end.
fn read_beyond_the_end(server: &Server) -> UnixStream {
    let mut client = UnixStream::connect(server.socket()).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    // Flags; the option EXPORT_NAME without a name.
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
    let mut request = [0; 28];
    request[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
    request[16..24].copy_from_slice(&(1_u64 << 40).to_be_bytes());
    request[24..].copy_from_slice(&4096_u32.to_be_bytes());
    client.write_all(&request).unwrap();
    client
}

#[test]
fn events_carry_fields() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = serve(&drive);
    let mut client = read_beyond_the_end(&server);
    let event = |message: &str| {
        let lines = server.stderr();
        let mut lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["message"] == message)
    };
    wait_until("the request is refused", || event("request refused").is_some());
    let refused = event("request refused").unwrap();
    assert_eq!(refused["export"], "drive", "{refused}");
    assert_eq!(refused["command"], 0, "{refused}");
    assert_eq!((&refused["offset"], &refused["length"]), (&(1_u64 << 40).into(), &4096.into()));
    let process = format!("unix:pid={}", std::process::id());
    assert_eq!(refused["client"], process.as_str(), "{refused}");
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("end of the export")));
    let serving = event("serving a drive").unwrap();
    assert_eq!(serving["drive"].as_str(), drive.path().to_str());
    assert!(serving["uris"].as_str().is_some_and(|uris| uris.starts_with("nbd+unix:///?socket=")));
    // An unread reply would make the end of the stream an error.
    client.read_exact(&mut [0; 16]).unwrap();
    drop(client);
    wait_until("the client is gone", || {
        event("client closed its connection without DISC").is_some()
    });
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
