//! Goal: hosts and backup tools learn more from a drive than its bytes: the available drives, the
//! content of a range and its stored size; many simultaneous connections disturb no client.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, PUMICE, Server, counter, pumice, python_with_libnbd, run, run_ok,
    serve_folder, stand_in, tool, wait_until,
};

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&run_ok(command).stdout).expect("JSON")
}

#[test]
fn backup_tools_see_holes_zeroes_and_data() {
    let (Some(nbdinfo), Some(qemu_io)) = (tool("nbdinfo"), tool("qemu-io")) else { return };
    let Some(qemu_img) = tool("qemu-img") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    // Text that compresses, zeroes that stay allocated, a hole in the middle of data.
    let text = drive.beside("text");
    fs::write(&text, "what hosts write is often this\n".repeat(40_000)).unwrap();
    let write = format!("write -s {} 0 1M", text.display());
    let commands = ["-c", &write, "-c", "write -z 1M 64k", "-c", "discard 512k 64k"];
    run_ok(
        Command::new(qemu_io).args(["-f", "raw", "-d", "unmap"]).args(commands).arg(server.uri()),
    );

    let map = json(Command::new(&nbdinfo).args(["--map", "--json"]).arg(server.uri()));
    let extents: Vec<_> = map
        .as_array()
        .unwrap()
        .iter()
        .map(|extent| {
            let number = |key: &str| extent[key].as_u64().unwrap();
            (number("offset") >> 10, number("length") >> 10, number("type"))
        })
        .collect();
    let expected =
        [(0, 512, 0), (512, 64, 3), (576, 448, 0), (1024, 64, 2), (1088, (64 << 10) - 1088, 3)];
    assert_eq!(extents, expected);

    let mut command = Command::new(&nbdinfo);
    let stored = json(command.args(["--map=x-pumice:stored", "--json"]).arg(server.uri()));
    let stored = stored.as_array().unwrap();
    let takes = |extent: &Value| {
        let number = |key: &str| extent[key].as_u64().unwrap() as f64;
        number("length") * number("type") / 65536.0
    };
    let sum: f64 = stored.iter().map(takes).sum();
    let live = counter(&drive.info(), "live_bytes") as f64;
    assert!(live > 0.0 && (sum / live - 1.0).abs() < 0.01, "{sum} of {live}: {stored:?}");

    let mut command = Command::new(qemu_img);
    let map = json(command.args(["map", "--output=json", "-f", "raw"]).arg(server.uri()));
    assert_eq!(map.as_array().unwrap().len(), 5, "{map:#}");
    server.stop();
}

#[test]
fn structured_reads_fast_zeroes_and_prefetch_work_with_libnbd() {
    let Some(python) = python_with_libnbd() else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    let script = "
import nbd, sys
h = nbd.NBD()
h.add_meta_context('base:allocation')
h.connect_uri(sys.argv[1])
assert h.get_structured_replies_negotiated()
assert h.can_fast_zero() and h.can_df() and h.can_cache()
h.pwrite(b'data' * 4096, 1 << 20)
parts = []
def part(buffer, offset, status, error):
    parts.append((offset, len(buffer), status))
data = h.pread_structured(3 << 20, 0, part)
assert data == bytes(1 << 20) + b'data' * 4096 + bytes((2 << 20) - 16384)
assert [p[2] for p in parts] == [nbd.READ_HOLE, nbd.READ_DATA, nbd.READ_HOLE], parts
parts.clear()
h.pread_structured(3 << 20, 0, part, nbd.CMD_FLAG_DF)
assert [p[2] for p in parts] == [nbd.READ_DATA], parts
h.cache(1 << 20, 1 << 20)
h.zero(1 << 20, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(16384, 1 << 20) == bytes(16384)
h.shutdown()
";
    run_ok(Command::new(python).args(["-c", script]).arg(server.uri()));
    server.stop();
}

#[test]
fn a_directory_of_drives_is_served_by_name() {
    let (Some(nbdinfo), Some(qemu_io)) = (tool("nbdinfo"), tool("qemu-io")) else { return };
    if stand_in().is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    for (name, size) in [("one.pumice", "64M"), ("two.pumice", "128M")] {
        assert_eq!(pumice(&["create", &path(name), "--size", size]).code, Some(0));
    }
    fs::write(path("notes"), "not a drive").unwrap();
    let socket = PathBuf::from(path("socket"));
    let mut command = Command::new(PUMICE);
    command.arg("serve").arg(folder.path()).arg("--unix").arg(&socket);
    command.env("PUMICE_RUNTIME_DIR", folder.path().join("pumice"));
    let server = Server::start(&mut command, socket);
    let listed = json(Command::new(&nbdinfo).args(["--json", "--list"]).arg(server.uri()));
    let exports = listed["exports"].as_array().unwrap();
    let shown: Vec<_> = exports
        .iter()
        .map(|export| (export["export-name"].as_str().unwrap(), export["export-size"].as_u64()))
        .collect();
    assert_eq!(shown, [("one", Some(64 << 20)), ("two", Some(128 << 20))]);
    assert_eq!(exports[0]["description"], "a Pumice drive of 64 MiB");
    for (name, pattern) in [("one", "1"), ("two", "2")] {
        let write = format!("write -P {pattern} 0 1M");
        let uri = server.uri_of(name);
        run_ok(Command::new(&qemu_io).args(["-f", "raw", "-c", &write]).arg(uri));
    }
    for (name, pattern) in [("one", "1"), ("two", "2")] {
        let read = format!("read -P {pattern} 0 1M");
        let uri = server.uri_of(name);
        run_ok(Command::new(&qemu_io).args(["-f", "raw", "-c", &read]).arg(uri));
    }
    let none = run(Command::new(&nbdinfo).arg(server.uri_of("three")), COMMAND_LIMIT);
    assert_ne!(none.code, Some(0), "{}", none.stdout);
    server.stop();
    for name in ["one.pumice", "two.pumice"] {
        assert_eq!(pumice(&["check", &path(name)]).code, Some(0));
    }
}

#[test]
fn ambiguous_or_missing_drives_are_refused() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let path = drive.path().to_str().unwrap();
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    for (args, why) in [
        (&[path, path][..], "would both be the export"),
        (&[empty], "contains no drives"),
        (&[path, "other", "--export-name", "x"], "need a single drive"),
        (&["/tmp/.pumice"], "has no name before .pumice"),
        (&[path, "--export-name", &"x".repeat(5000)], "takes up to 4096 bytes"),
    ] {
        let refused = pumice(&[&["serve"], args, &["--run", "true"]].concat());
        assert_eq!(refused.code, Some(2), "{args:?}");
        assert!(refused.stderr.contains(why), "{args:?}: {}", refused.stderr);
    }
    // When a drive cannot be opened, the drives before it are closed cleanly.
    let refused = pumice(&["serve", path, "/nonexistent.pumice", "--run", "true"]);
    assert_eq!(refused.code, Some(2));
    drive.assert_checks();
}

#[test]
fn a_bad_drive_of_a_directory_costs_only_itself() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    for threads in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("junk.pumice"), vec![7; 8 << 20]).unwrap();
        let server = serve_folder(folder.path(), &["good"], &["--threads", threads]);
        let is_left_out = |line: &str| line.contains("junk.pumice") && line.contains("left out");
        wait_until("it is left out", || server.stderr().lines().any(is_left_out));
        let size =
            || run_ok(Command::new(&nbdinfo).args(["--size", &server.uri_of("good")])).stdout;
        assert_eq!(size().trim(), "67108864");
        // Nor does it prevent the others from restarting.
        server.restart();
        assert_eq!(size().trim(), "67108864");
        server.stop();
        // Alone, it is the only requested drive.
        fs::remove_file(folder.path().join("good.pumice")).unwrap();
        let refused = pumice(&[
            "serve".as_ref(),
            folder.path().as_os_str(),
            "--run".as_ref(),
            "true".as_ref(),
        ]);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    }
}

#[test]
fn a_unix_socket_has_the_mode_and_owner_asked_for() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let user = rustix::process::geteuid().as_raw();
    let owner = format!("{user}:{}", rustix::process::getegid().as_raw());
    let server = drive.serve_with(&["--unix-mode", "0620", "--unix-owner", &owner]);
    let metadata = fs::symlink_metadata(server.socket()).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (0o620, user));
    server.stop();
    for (flag, value) in [("--unix-mode", "0999"), ("--unix-owner", "no-user-of-this-name")] {
        let path = drive.path().to_str().unwrap();
        assert_eq!(pumice(&["serve", path, "--unix", "socket", flag, value]).code, Some(2));
    }
}

#[test]
fn sockets_that_systemd_passes_are_served() {
    let (Some(activate), Some(nbdinfo)) = (tool("systemd-socket-activate"), tool("nbdinfo")) else {
        return;
    };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("activated");
    let mut command = Command::new(activate);
    command.arg("--listen").arg(&socket).arg("--setenv=PUMICE_RUNTIME_DIR");
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    command.arg(PUMICE).arg("serve").arg(drive.path());
    let server = Server::start(&mut command, socket);
    let uri = server.uri();
    assert_eq!(run_ok(Command::new(nbdinfo).arg("--size").arg(uri)).stdout.trim(), "67108864");
    // The socket file belongs to systemd.
    let socket = server.socket().to_owned();
    server.stop();
    assert!(socket.exists());
    drive.assert_checks();
}

#[test]
fn a_resized_drive_shows_its_size_to_the_next_client() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let size =
        |server: &Server| run_ok(Command::new(&nbdinfo).arg("--size").arg(server.uri())).stdout;
    let server = drive.serve();
    assert_eq!(size(&server).trim(), "67108864");
    server.stop();
    run_ok(Command::new(PUMICE).arg("resize").arg(drive.path()).args(["--size", "128M"]));
    let server = drive.serve();
    assert_eq!(size(&server).trim(), "134217728");
    server.stop();
}

/// A thousand connections in bursts, two hundred at a time, half of them silent or slow: the
/// working client is served all the time, and no trace of the others remains. Its longest wait is
/// measured by `benches/crowd.py`.
#[test]
fn crowds_of_connections_stall_nobody() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    let mut worker = Worker::enter(&server);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count();
    worker.round_trip();
    let before = descriptors();
    for _ in 0..5 {
        let mut crowd: Vec<_> = Vec::new();
        for number in 0..200 {
            let mut socket = UnixStream::connect(server.socket()).unwrap();
            match number % 4 {
                // Sends nothing at all.
                0 => {}
                // Stops in the middle of a word.
                1 => socket.write_all(b"\0\0\0\x03IHAVE").unwrap(),
                2 => socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0").unwrap(),
                // Leaves immediately.
                _ => continue,
            }
            crowd.push(socket);
            worker.round_trip();
        }
    }
    crate::harness::wait_until("the crowd is gone", || descriptors() <= before);
    worker.round_trip();
    server.stop();
}

/// A client that writes and reads 4 KiB.
struct Worker(UnixStream);

impl Worker {
    fn enter(server: &Server) -> Self {
        let mut socket = UnixStream::connect(server.socket()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.read_exact(&mut [0; 18]).unwrap();
        socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").unwrap();
        socket.read_exact(&mut [0; 32 + 20]).unwrap();
        Self(socket)
    }

    fn round_trip(&mut self) {
        let request = |command: u8| {
            [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, command], &[0; 16], &[0, 0, 16, 0]]
                .concat()
        };
        self.0.write_all(&[request(1), vec![7; 4096], request(0)].concat()).unwrap();
        let mut answer = vec![0; 16 + 16 + 4096];
        self.0.read_exact(&mut answer).unwrap();
        assert!(answer[32..] == [7; 4096]);
    }
}
