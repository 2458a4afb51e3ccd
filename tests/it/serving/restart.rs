//! Goal: clients do not notice a restart of their server, unless the requested drive is no longer
//! available.
//! Method: repeated SIGHUP under fio's own verification and under clients of libnbd that come, go
//! and stay; a program that is replaced, or broken, before the signal.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use crate::harness::{
    Drive, PUMICE, Server, Talker, notice, python_with_libnbd, run_ok, serve_folder, stand_in,
    tool, wait_until,
};

/// Restarts five times under one client after the other.
fn restart_under(server: &Server, start: impl Fn() -> Talker) {
    let mut restarts = 0;
    while restarts < 5 {
        restarts += restart_until_the_end(server, start());
    }
}

/// Restarts until a client ends; returns the number of restarts.
fn restart_until_the_end(server: &Server, mut client: Talker) -> u32 {
    let mut restarts = 0;
    while !client.has_ended() {
        server.restart();
        restarts += 1;
    }
    client.finish();
    restarts
}

#[test]
fn fio_verifies_its_writes_through_restarts() {
    if stand_in().is_some() {
        return;
    }
    let Some(fio) = tool("fio") else { return };
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    restart_under(&server, || {
        let mut job = Command::new(&fio);
        job.current_dir(drive.beside(""))
            .args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--size=24m"])
            .args(["--iodepth=16", "--serialize_overlap=1", "--randseed=11", "--rate=12m"])
            .args(["--bssplit=4k/80:64k/10:1m/10", "--buffer_compress_percentage=50"])
            .args(["--refill_buffers=1", "--verify=crc32c", "--verify_fatal=1"])
            .args(["--verify_state_save=0", "--do_verify=1"])
            .arg(format!("--uri={}", server.uri()));
        Talker::start(&mut job)
    });
    assert!(server.stderr().contains("restarted clients=1"), "{}", server.stderr());
    let socket = server.socket().to_owned();
    server.stop();
    assert!(!socket.exists(), "the last of the servers does not remove the socket");
    drive.assert_checks();
}

/// Clients of every dialect that stay, and one that reconnects for each round.
const CLIENTS: &str = r#"
import nbd, os, sys
uri, rounds = sys.argv[1], int(sys.argv[2])
def connect(contexts, structured):
    h = nbd.NBD()
    if contexts:
        h.add_meta_context("base:allocation")
        h.add_meta_context("x-pumice:stored")
    h.set_request_structured_replies(structured)
    h.connect_uri(uri)
    return h
stay = [connect(True, True), connect(False, True), connect(False, False)]
print("connected", flush=True)
for round in range(rounds):
    for index, h in enumerate(stay + [connect(False, True)]):
        at = index << 20
        data = os.urandom(71680)
        cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at) for _ in range(8)]
        while h.aio_in_flight() > 0:
            h.poll(-1)
        for cookie in cookies:
            assert h.aio_command_completed(cookie)
        assert h.pread(len(data), at) == data, (round, index)
    seen = {}
    note = lambda context, at, extents, error: seen.update({context: extents})
    stay[0].block_status(1 << 20, 0, note)
    assert sorted(seen) == ["base:allocation", "x-pumice:stored"], seen
    assert seen["base:allocation"][1] == 0, seen
for h in stay:
    h.flush()
    h.shutdown()
"#;

#[test]
fn clients_of_every_dialect_stay_and_new_ones_come_through_restarts() {
    let Some(python) = python_with_libnbd() else { return };
    if stand_in().is_some() {
        return;
    }
    for io in ["auto", "threads"] {
        let drive = Drive::create("64M", &[]);
        let server = drive.serve_with(&["--io", io]);
        restart_under(&server, || {
            let mut clients = Command::new(&python);
            clients.args(["-c", CLIENTS, &server.uri(), "12"]);
            let mut clients = Talker::start(&mut clients);
            assert_eq!(clients.next_line(), "connected");
            clients
        });
        server.stop();
        drive.assert_checks();
    }
}

/// One thread serves all drives; then two threads serve three.
#[test]
fn clients_of_several_drives_stay_through_restarts() {
    let Some(python) = python_with_libnbd() else { return };
    if stand_in().is_some() {
        return;
    }
    for threads in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let names = ["one", "two", "three"];
        let server = serve_folder(folder.path(), &names, &["--threads", threads]);
        let clients = names.map(|name| {
            let mut clients = Command::new(&python);
            clients.args(["-c", CLIENTS, &server.uri_of(name), "6"]);
            let mut clients = Talker::start(&mut clients);
            assert_eq!(clients.next_line(), "connected");
            clients
        });
        server.restart();
        assert!(server.stderr().contains("restarted clients="), "{}", server.stderr());
        for clients in clients {
            restart_until_the_end(&server, clients);
        }
        server.stop();
        for name in names {
            let path = folder.path().join(format!("{name}.pumice"));
            run_ok(Command::new(PUMICE).arg("check").arg(path));
        }
    }
}

#[test]
fn qemu_does_not_notice_restarts() {
    let Some(qemu_img) = tool("qemu-img") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    restart_under(&server, || {
        let mut bench = Command::new(&qemu_img);
        bench.args(["bench", "-w", "-f", "raw", "-t", "none", "-c", "6000", "-d", "16"]);
        bench.args(["-s", "4096", "--flush-interval=100", "--pattern=7", &server.uri()]);
        Talker::start(&mut bench)
    });
    server.stop();
    drive.assert_checks();
}

#[test]
fn the_port_stays_the_same() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve_with(&["--listen", "127.0.0.1:0"]);
    let uri_of = |line: &str| line.split_once(" nbd://").map(|(_, uri)| format!("nbd://{uri}"));
    let uris = || server.stderr().lines().filter_map(uri_of).collect::<Vec<_>>();
    let files = format!("/proc/{}/fd", server.id());
    let descriptors = || fs::read_dir(&files).expect("a process").count();
    let before = descriptors();
    for _ in 0..5 {
        server.restart();
    }
    wait_until("all servers have said where they are", || uris().len() == 6);
    assert!(uris().iter().all(|uri| *uri == uris()[0]), "{:?}", uris());
    // Connections come and go; five restarts would leave five of any leaked descriptor.
    wait_until("nothing is left open", || descriptors() < before + 5);
    let size = run_ok(Command::new(nbdinfo).args(["--size", &uris()[0]])).stdout;
    assert_eq!(size.trim(), (64 << 20).to_string());
    server.stop();
}

/// A client that writes and then waits for the end of its connection.
const CLOSED: &str = r#"
import nbd, sys
client = nbd.NBD()
client.connect_uri(sys.argv[1])
client.pwrite(b"x" * 4096, 0, nbd.CMD_FLAG_FUA)
print("connected", flush=True)
while not client.aio_is_closed() and not client.aio_is_dead():
    client.poll(-1)
"#;

/// A client continues neither with another drive, nor with an older copy of its own, which has the
/// same UUID.
#[test]
fn no_client_resumes_on_a_drive_that_replaced_its_own() {
    let Some(python) = python_with_libnbd() else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let other = Drive::create("64M", &[]);
    let copy = drive.beside("copy");
    fs::copy(drive.path(), &copy).unwrap();
    for place in [&copy, other.path()] {
        let server = drive.serve();
        let mut client = Command::new(&python);
        client.args(["-c", CLOSED, &server.uri()]);
        let mut client = Talker::start(&mut client);
        assert_eq!(client.next_line(), "connected");
        fs::rename(place, drive.path()).unwrap();
        server.restart();
        client.finish();
        let said = server.stderr();
        assert!(said.contains("its export is another drive now"), "{said}");
        server.stop();
    }
}

/// Replaces a program by another, as package managers do.
fn replace(program: &Path, text: Option<&str>) {
    let new = program.with_extension("new");
    match text {
        None => drop(fs::copy(PUMICE, &new).expect("a copy of the program")),
        Some(text) => fs::write(&new, text).expect("a program"),
    }
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("to be executed");
    fs::rename(&new, program).expect("in its place");
}

#[test]
fn a_newer_program_takes_over_and_a_broken_one_does_not() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let program = drive.beside("program");
    replace(&program, None);
    let socket = drive.beside("socket");
    let mut command = Command::new(&program);
    command.arg("serve").arg(drive.path()).arg("--unix").arg(&socket);
    let server = Server::start(command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")), socket);
    let runs = || fs::metadata(format!("/proc/{}/exe", server.id())).expect("a process").ino();
    let first = runs();

    replace(&program, Some("#!/bin/sh\nexit 3\n"));
    server.hang_up();
    wait_until("the broken program is refused", || server.stderr().contains("not restarted"));
    assert!(server.stderr().contains("--check: exit status: 3"));
    assert_eq!(runs(), first);

    // The server does not wait forever for a silent program, and keeps serving the drive.
    replace(&program, Some("#!/bin/sh\nexec sleep 600\n"));
    server.hang_up();
    wait_until("the silent program is refused", || {
        server.stderr().contains("it takes longer than 10 seconds")
    });
    assert_eq!(runs(), first);

    replace(&program, None);
    server.restart();
    let newer = fs::metadata(&program).expect("the program").ino();
    assert_ne!(newer, first);
    assert_eq!(runs(), newer);
    server.stop();
}

/// The service manager's side of `Type=notify` and `notify-reload`.
#[test]
fn a_service_manager_is_told_when_the_server_is_ready() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let notices = drive.beside("notify");
    let manager = UnixDatagram::bind(&notices).unwrap();
    let next = || notice(&manager);
    let is_reloading = |message: &str| {
        let time = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        time.is_some_and(|time| time.parse::<u64>().is_ok_and(|time| time > 0))
    };
    let program = drive.beside("program");
    replace(&program, None);
    let socket = drive.beside("socket");
    let mut command = Command::new(&program);
    command.arg("serve").arg(drive.path()).arg("--unix").arg(&socket);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    let server = Server::start(command.env("NOTIFY_SOCKET", &notices), socket);
    assert_eq!(next(), "READY=1");
    server.hang_up();
    assert!(is_reloading(&next()));
    assert_eq!(next(), "READY=1");
    // If the server continues unchanged, it reports that.
    replace(&program, Some("#!/bin/sh\nexit 3\n"));
    server.hang_up();
    assert!(is_reloading(&next()));
    assert_eq!(next(), "READY=1");
    server.stop();
}

#[test]
fn with_a_command_the_signal_is_the_end() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let script = format!(
        "{PUMICE} serve {} --run 'kill -HUP $PPID; sleep 60'; test $? = 143",
        drive.path().display()
    );
    run_ok(Command::new("sh").args(["-c", &script]));
}

/// A signal that comes while the program is being executed must neither end it nor be forgotten.
#[test]
fn a_burst_of_signals_is_survived() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    let starts = || server.stderr().matches("serving ").count();
    wait_until("a hundred signals and five restarts", || {
        (0..20).for_each(|_| server.hang_up());
        starts() > 5
    });
    run_ok(Command::new(nbdinfo).args(["--size", &server.uri()]));
    server.stop();
    drive.assert_checks();
}

/// Commands issued at any moment of a restart are answered by the old server or the new one, and
/// never open the drive themselves, which would lock out the new server.
#[test]
fn commands_are_answered_through_restarts() {
    if stand_in().is_some() {
        return;
    }
    for threads in ["1", "2"] {
        let drive = Drive::create("16M", &["--segment", "4M", "--capacity", "256M"]);
        let server = drive.serve_with_control(&["--threads", threads]);
        let script = "set -e; for i in $(seq 20); do \"$0\" snapshot create \"$1@s$i\"; \
             \"$0\" info \"$1\" | grep served; done";
        let mut commands = Command::new("sh");
        commands.args(["-c", script, PUMICE]).arg(drive.path());
        commands.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
        assert!(restart_until_the_end(&server, Talker::start(&mut commands)) > 1);
        let listed = drive.ok(&["snapshot", "list", &drive.path().display().to_string()]);
        assert!((1..=20).all(|i| listed.contains(&format!("s{i} "))), "{listed}");
        server.stop();
        assert!(drive.control_sockets().is_empty(), "left by the last of the servers");
    }
}

/// Behaves like scripts that wait for the socket, and like scripts that stop a server.
#[test]
fn commands_wait_for_a_server_that_begins_or_ends() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("16M", &["--segment", "4M", "--capacity", "256M"]);
    for round in 0..6 {
        let server = drive.serve();
        drive.ok(&["snapshot", "create", &drive.named(&format!("begin-{round}"))]);
        let mut last = Command::new(PUMICE);
        last.args(["snapshot", "create", &drive.named(&format!("end-{round}"))]);
        let last = Talker::start(last.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")));
        server.stop();
        last.finish();
    }
    let listed = drive.ok(&["snapshot", "list", &drive.path().display().to_string()]);
    assert_eq!(listed.matches("begin-").count() + listed.matches("end-").count(), 12, "{listed}");
    drive.assert_checks();
}

#[test]
fn a_signal_to_end_is_heard_in_the_middle_of_a_restart() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    for _ in 0..8 {
        let server = drive.serve();
        wait_until("it can be restarted", || server.stderr().contains("serving "));
        server.hang_up();
        wait_until("the program is executed", || server.stderr().contains("restarting "));
        server.stop();
    }
    drive.assert_checks();
}
