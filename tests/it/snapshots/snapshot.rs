//! Goal: snapshots of a closed and of a served drive are taken, read and deleted by name; a reader
//! of another project sees the disk as it was.
//!
//! Method: random disks are written with nbdcopy, and the data that `extract`, qemu-img and nbdcopy
//! read from `PATH@NAME` is compared with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{
    Drive, PUMICE, Server, noise, python_with_libnbd, run_ok, stand_in, tool, wait_until,
};

pub(crate) fn path(drive: &Drive) -> String {
    drive.path().display().to_string()
}

fn names(drive: &Drive) -> Vec<String> {
    let list = drive.ok(&["snapshot", "list", &path(drive), "--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let list = list["drives"][0]["snapshots"].as_array().expect("a list");
    list.iter().map(|info| info["name"].as_str().expect("a name").to_owned()).collect()
}

const DISK_BYTES: usize = 24 << 20;

/// Writes a disk of random bytes; returns its file.
pub(crate) fn disk(drive: &Drive, name: &str, seed: u64) -> PathBuf {
    let file = drive.beside(name);
    fs::write(&file, noise(seed, DISK_BYTES)).unwrap();
    file
}

pub(crate) fn same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

/// Returns the output of `pumice snapshot list` for a drive.
#[cfg(all(feature = "http", feature = "top"))]
fn listed(drive: &Drive) -> Value {
    let list = drive.ok(&["snapshot", "list", &path(drive), "--json"]);
    let mut list: Value = serde_json::from_str(&list).expect("JSON");
    list["drives"][0]["snapshots"].take()
}

#[cfg(all(feature = "http", feature = "top"))]
#[test]
fn the_retained_bytes_of_each_snapshot_are_shown_everywhere() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let drive = Drive::create("24M", &["--segment", "4M", "--capacity", "96M"]);
    let server = drive.serve_with_control(&["--http", "127.0.0.1:0"]);
    let address = crate::observing::http::address(&server);
    let write = |pattern: u8| {
        let noise = disk(&drive, "noise", pattern.into());
        let command = format!("write -s {} 0 8M", noise.display());
        run_ok(Command::new(&qemu_io).args(["-f", "raw", "-c", &command]).arg(server.uri()));
    };
    let none = crate::observing::http::get(&address, "/metrics").body;
    assert!(none.contains("\npumice_snapshots{drive=\"drive\"} 0.0\n"), "{none}");
    write(1);
    drive.ok(&["snapshot", "create", &drive.named("one")]);
    write(2);
    drive.ok(&["snapshot", "create", &drive.named("two")]);
    write(3);
    let all = listed(&drive);
    let [one, two] = all.as_array().expect("a list").as_slice() else { panic!("{all}") };
    for info in [one, two] {
        assert!(info["alone_bytes"].as_u64() > Some(4 << 20), "{info}");
    }
    assert_eq!(crate::observing::http::get(&address, "/api/drives/other/snapshots").status, 404);
    // Maintenance of the drive may change their sizes in between.
    wait_until("the page's list is the command's", || {
        let served = crate::observing::http::get(&address, "/api/drives/drive/snapshots").body;
        serde_json::from_str::<Value>(&served).expect("JSON") == listed(&drive)
    });
    wait_until("info has the same list, and metrics the sums", || {
        let info = drive.info();
        let metrics = crate::observing::http::get(&address, "/metrics").body;
        let is_there = |name: &str, value: &Value| {
            let value = value.as_u64().expect("a number") as f64;
            metrics.contains(&format!("\npumice_{name}{{drive=\"drive\"}} {value:?}\n"))
        };
        assert!(is_there("snapshots", &2.into()), "{metrics}");
        assert!(is_there("snapshot_oldest_timestamp_seconds", &one["created_seconds"]));
        assert_eq!(info["snapshot_oldest_seconds"], one["created_seconds"]);
        let is_same = is_there("snapshot_bytes", &info["snapshot_bytes"]);
        info["snapshot_list"] == listed(&drive) && is_same
    });
    let top = drive.ok(&["top", &path(&drive), "--once"]);
    assert!(top.contains("\n2 snapshots retain "), "{top}");
    server.stop();
    // A closed drive shows the same.
    assert_eq!(drive.info()["snapshot_list"], listed(&drive));
    let text = drive.ok(&["info", &path(&drive)]);
    let row = text.lines().find(|line| line.starts_with("snapshot  ")).expect("a row");
    assert!(row.contains(" one, 20") && row.contains(" alone, "), "{text}");
}

#[test]
fn snapshots_of_a_served_drive_are_read_after_it_was_overwritten() {
    let (Some(nbdcopy), None) = (tool("nbdcopy"), stand_in()) else { return };
    let drive = Drive::create("24M", &["--segment", "4M", "--capacity", "96M"]);
    let [first, second] = [disk(&drive, "first", 1), disk(&drive, "second", 2)];
    let server = drive.serve_with_control(&[]);
    run_ok(Command::new(&nbdcopy).arg(&first).arg(server.uri()));
    let taken = drive.ok(&["snapshot", "create", &drive.named("one")]);
    assert_eq!(taken, format!("{}: taken\n", drive.named("one")));
    run_ok(Command::new(&nbdcopy).arg(&second).arg(server.uri()));
    drive.ok(&["snapshot", "create", &drive.named("two")]);
    assert_eq!(names(&drive), ["one", "two"]);
    drive.refused(&["snapshot", "create", &drive.named("one")], "already");
    drive.refused(&["snapshot", "delete", &drive.named("three")], "the newest is two");
    for command in [&["extract", &drive.named("one"), "-"][..], &["check", &drive.named("one")]] {
        drive.refused(command, "in use");
        let uri = format!("nbd+unix:///{}?socket=", name_of(&drive, "one"));
        drive.refused(command, &format!("through the server of the drive, as in nbdcopy '{uri}"));
    }
    drop(server);
    // The drive is closed, or killed, and opened again.
    let image = drive.beside("image");
    for (name, wanted) in [("one", &first), ("two", &second)] {
        let image_text = image.display().to_string();
        drive.ok(&["extract", &drive.named(name), &image_text, "--force"]);
        assert!(same(&image, wanted), "{name}");
        if let Some(python) = tool("python3") {
            let decoder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/decoder.py");
            let mut command = Command::new(python);
            command.args([decoder, "--snapshot", name]).arg(drive.path()).arg(&image);
            run_ok(&mut command);
            assert!(same(&image, wanted), "{name}, by the decoder");
        }
        let checked = drive.ok(&["check", &drive.named(name)]);
        assert!(checked.starts_with("0 problems"), "{checked}");
    }
    drive.ok(&["check", &path(&drive)]);
    let info = drive.ok(&["info", &path(&drive)]);
    assert!(info.contains("snapshots            2, which retain"), "{info}");
    let deleted = drive.ok(&["snapshot", "delete", &drive.named("one")]);
    assert!(deleted.contains("MiB freed"), "{deleted}");
    assert_eq!(names(&drive), ["two"]);
}

#[test]
fn a_snapshot_is_served_read_only_under_its_name() {
    let (Some(nbdcopy), Some(qemu_img)) = (tool("nbdcopy"), tool("qemu-img")) else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("24M", &["--segment", "4M", "--capacity", "96M"]);
    let [first, second] = [disk(&drive, "first", 3), disk(&drive, "second", 4)];
    let server = drive.serve_with_control(&[]);
    run_ok(Command::new(&nbdcopy).arg(&first).arg(server.uri()));
    drive.ok(&["snapshot", "create", &drive.named("a")]);
    run_ok(Command::new(&nbdcopy).arg(&second).arg(server.uri()));
    drop(server);
    let socket = drive.beside("views");
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).stderr(Stdio::null());
    command.arg("serve").arg(drive.named("a")).arg("--unix").arg(&socket).arg("--run");
    let export = format!("nbd+unix:///{}?socket={}", name_of(&drive, "a"), socket.display());
    let qemu = qemu_img.display();
    let script = format!(
        "{qemu} compare -f raw -F raw '{}' '{export}' && {qemu} info '{export}' > /dev/null && \
         ! qemu-io -f raw -c 'write 0 4k' '{export}' > /dev/null 2>&1",
        first.display()
    );
    run_ok(command.arg(script));
    for command in ["info", "set"] {
        let of = drive.named("a");
        let mut args = vec![command, &of];
        args.extend((command == "set").then_some("codec=none"));
        drive
            .refused(&args, "names a snapshot, which extract, check, diff, scan, serve and attach");
    }
    drive.refused(&["attach", &drive.named("a")], "a snapshot can only be read: use --read-only");
    drive.refused(&["serve", &drive.named("nothing"), "--unix", "x"], "no snapshot named");
}

/// Returns the export of a snapshot as it appears in a URI.
fn name_of(drive: &Drive, snapshot: &str) -> String {
    let file = drive.path().file_stem().unwrap().to_string_lossy().into_owned();
    format!("{file}%40{snapshot}")
}

/// A backup of the first disk, updated by the output of `diff`, equals the second disk.
#[test]
fn the_ranges_of_diff_turn_one_disk_into_the_other() {
    let (Some(nbdcopy), None) = (tool("nbdcopy"), stand_in()) else { return };
    let drive = Drive::create("24M", &["--segment", "4M", "--capacity", "96M"]);
    let first = disk(&drive, "first", 5);
    let second = drive.beside("second");
    let mut bytes = fs::read(&first).unwrap();
    // Within a block, across blocks, a mebibyte, and zeroes.
    for (offset, len, byte) in [(5000, 10, 1), (1 << 20, 9000, 2), (9 << 20, 1 << 20, 3)] {
        bytes[offset..offset + len].fill(byte);
    }
    bytes[20 << 20..21 << 20].fill(0);
    fs::write(&second, &bytes).unwrap();
    let server = drive.serve_with_control(&[]);
    run_ok(Command::new(&nbdcopy).arg(&first).arg(server.uri()));
    drive.ok(&["snapshot", "create", &drive.named("a")]);
    drop(server);
    // Only the differences are written.
    let server = drive.serve_with_control(&[]);
    let Some(qemu_io) = tool("qemu-io") else { return };
    for (offset, len) in [(4096, 4096), (1 << 20, 12288), (9 << 20, 1 << 20), (20 << 20, 1 << 20)] {
        let part = drive.beside("part");
        fs::write(&part, &bytes[offset..offset + len]).unwrap();
        let write = format!("write -s {} {offset} {len}", part.display());
        run_ok(Command::new(&qemu_io).args(["-f", "raw", "-c", &write]).arg(server.uri()));
    }
    drive.ok(&["snapshot", "create", &drive.named("b")]);
    drop(server);
    let list = drive.ok(&["diff", &drive.named("a"), &drive.named("b"), "--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["changed_bytes"], 4096 + 12288 + (2 << 20), "{list}");
    let mut copy = fs::read(&first).unwrap();
    for range in list["ranges"].as_array().expect("a list") {
        let number = |key: &str| range[key].as_u64().expect("a number") as usize;
        let part = number("offset")..number("offset") + number("bytes");
        copy[part.clone()].copy_from_slice(&bytes[part]);
    }
    assert!(copy == bytes);
    let text = drive.ok(&["diff", &drive.named("a"), &path(&drive)]);
    assert_eq!(drive.ok(&["diff", &drive.named("a")]), text);
    assert!(text.starts_with("4096 4096 data\n"), "{text}");
    drive.refused(&["diff", &drive.named("b"), &drive.named("a")], "an earlier snapshot");
    drive.refused(&["diff", &path(&drive), &path(&drive)], "PATH@NAME");
}

#[test]
fn a_closed_drive_is_rolled_back() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let drive = Drive::create("24M", &["--segment", "4M", "--capacity", "192M"]);
    let disks: Vec<_> = (1..4).map(|seed| disk(&drive, &format!("disk-{seed}"), seed)).collect();
    let server = drive.serve_with_control(&[]);
    for (number, disk) in disks.iter().enumerate() {
        run_ok(Command::new(&nbdcopy).arg(disk).arg(server.uri()));
        drive.ok(&["snapshot", "create", &drive.named(&number.to_string())]);
    }
    server.stop();
    drive.refused(&["snapshot", "rollback", &drive.named("7")], "the newest is 2");
    drive.refused(&["snapshot", "rollback", &drive.named("1")], "--delete-newer deletes");
    assert_eq!(names(&drive), ["0", "1", "2"]);
    let rolled = drive.ok(&["snapshot", "rollback", &drive.named("1"), "--delete-newer"]);
    assert!(rolled.contains("rolled back to 1, 20"), "{rolled}");
    assert!(rolled.ends_with("@2: deleted\n"), "{rolled}");
    assert_eq!(names(&drive), ["0", "1"]);
    let image = drive.beside("image");
    for (place, wanted) in [(path(&drive), 1), (drive.named("0"), 0), (drive.named("1"), 1)] {
        drive.ok(&["extract", &place, &image.display().to_string(), "--force"]);
        assert!(same(&image, &disks[wanted]), "{place}");
    }
    let checked = drive.ok(&["check", &path(&drive)]);
    assert!(checked.starts_with("0 problems"), "{checked}");
}

#[test]
fn many_snapshots_of_a_served_drive_are_listed_and_rotated() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("16M", &["--segment", "4M", "--capacity", "256M"]);
    let server = drive.serve_with_control(&[]);
    for number in 0..40 {
        drive.ok(&["snapshot", "create", &drive.named(&format!("auto-{number}"))]);
    }
    drive.ok(&["snapshot", "create", &drive.named("mine")]);
    // More snapshots than fit in one answer.
    assert_eq!(names(&drive).len(), 41);
    let rotate = |more: &[&str]| {
        let drive_path = path(&drive);
        let mut args = vec!["snapshot", "rotate", &drive_path, "--keep", "daily:3"];
        args.extend(more);
        drive.ok(&args)
    };
    let tried = rotate(&["--dry-run"]);
    assert_eq!(tried.lines().count(), 39, "{tried}");
    assert!(tried.lines().all(|line| line.ends_with("would be deleted")), "{tried}");
    assert_eq!(names(&drive).len(), 41);
    let rotated = rotate(&["--json"]);
    let rotated: Value = serde_json::from_str(&rotated).expect("JSON");
    let done = &rotated["drives"][0];
    let taken = done["snapshots"][0]["name"].as_str().unwrap().to_owned();
    assert!(taken.starts_with("auto-20") && taken.ends_with('Z'), "{taken}");
    // At midnight, the last snapshot of the previous day is also kept.
    let left = names(&drive);
    assert!(left.len() <= 3 && left.first().unwrap().ends_with("mine") || left.len() == 3);
    assert_eq!(left.last().unwrap(), &taken);
    assert_eq!(done["deleted"].as_array().unwrap().len(), 42 - left.len());
    server.stop();
    // Of several concurrent snapshots, at least two are of the same second.
    let mut at_once = Command::new("sh");
    let script = "for i in 1 2 3 4 5; do \"$0\" snapshot rotate \"$1\" --keep daily:3 & done; wait";
    at_once.args(["-c", script, PUMICE]).arg(drive.path());
    let said = run_ok(&mut at_once).stderr;
    assert!(said.contains("a snapshot of this second exists already"), "{said}");
    assert!(!said.contains("pumice:"), "{said}");
    let wrong = ["snapshot", "rotate", &path(&drive), "--keep", "often:3"];
    drive.refused(&wrong, "hourly:24");
    drive.refused(&wrong, "(see pumice snapshot rotate --help)");
}

#[test]
fn a_bookmark_lists_changes_and_has_no_data() {
    let (Some(nbdcopy), Some(qemu_io)) = (tool("nbdcopy"), tool("qemu-io")) else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("24M", &["--segment", "4M", "--capacity", "96M"]);
    let first = disk(&drive, "first", 1);
    let server = drive.serve();
    run_ok(Command::new(&nbdcopy).arg(&first).arg(server.uri()));
    server.stop();
    drive.ok(&["snapshot", "create", &drive.named("auto-mark")]);
    let copy = Drive::create("24M", &["--segment", "4M", "--capacity", "96M", "--codec", "none"]);
    let transfer = drive.beside("transfer").display().to_string();
    drive.ok(&["send", &drive.named("auto-mark"), "--output", &transfer]);
    copy.ok(&["receive", &path(&copy), "--input", &transfer]);
    let marked = drive.ok(&["snapshot", "bookmark", &drive.named("auto-mark")]);
    assert!(marked.contains("now a bookmark, which retains"), "{marked}");
    drive.refused(&["snapshot", "bookmark", &drive.named("auto-mark")], "is a bookmark");
    let server = drive.serve();
    let writes = ["write -P 1 5000 1", "write -P 2 9M 5M"];
    let mut write = Command::new(&qemu_io);
    writes.iter().for_each(|text| {
        write.args(["-f", "raw", "-c", text]);
    });
    run_ok(write.arg(server.uri()));
    server.stop();
    drive.ok(&["snapshot", "create", &drive.named("later")]);
    drive.ok(&["compact", &path(&drive)]);
    let diff = drive.ok(&["diff", &drive.named("auto-mark"), &drive.named("later")]);
    assert_eq!(diff.lines().count(), 3, "{diff}");
    assert!(diff.starts_with("4096 4096 data\n9437184 5242880 data\n"), "{diff}");
    drive.ok(&["check", &path(&drive)]);
    let list = drive.ok(&["snapshot", "list", &path(&drive)]);
    assert!(list.contains("auto-mark (bookmark)"), "{list}");
    let image = drive.beside("image").display().to_string();
    let mark = drive.named("auto-mark");
    for command in [
        &["extract", &mark, &image][..],
        &["snapshot", "rollback", &mark, "--delete-newer"],
        &["diff", &mark, &mark],
        &["send", &mark, "--output", &image],
        &["serve", &mark, "--unix", &image, "--read-only"],
    ] {
        drive.refused(command, "is a bookmark, which has no data");
    }
    // The receiver has the snapshot.
    let args = ["send", &drive.named("later"), "--since", "auto-mark", "--output", &transfer];
    drive.ok(&[&args[..], &["--force"]].concat());
    copy.ok(&["receive", &path(&copy), "--input", &transfer]);
    drive.ok(&["extract", &drive.named("later"), &image]);
    let copied = copy.beside("image").display().to_string();
    copy.ok(&["extract", &copy.named("later"), &copied]);
    assert!(same(Path::new(&image), Path::new(&copied)));
    // Rotation leaves it, unless it is requested.
    let rotate = ["snapshot", "rotate", &path(&drive), "--keep", "hourly:1", "--dry-run"];
    assert_eq!(drive.ok(&rotate), "");
    let wanted = format!("{mark}: would be deleted\n");
    drive.ok(&["snapshot", "create", &drive.named("auto-next")]);
    assert_eq!(drive.ok(&[&rotate[..], &["--bookmarks"]].concat()), wanted);
    drive.ok(&["snapshot", "delete", &mark]);
    assert_eq!(names(&drive), ["later", "auto-next"]);
}

/// Two served drives and a closed one. A writer numbers its writes to the two in turn, so that the
/// content of one snapshot determines the content of the other.
#[test]
fn snapshots_of_several_drives_are_of_one_moment() {
    let (Some(python), None) = (python_with_libnbd(), stand_in()) else { return };
    let options = ["--segment", "4M", "--capacity", "256M"];
    let drives: Vec<_> = (0..3).map(|_| Drive::create("16M", &options)).collect();
    let first = drives[0].serve_with_control(&[]);
    let socket = drives[1].beside("socket");
    let mut command = Command::new(PUMICE);
    command.arg("serve").arg(drives[1].path()).arg("--unix").arg(&socket);
    // The directory that also has the first drive's control socket.
    command.env("PUMICE_RUNTIME_DIR", drives[0].beside("pumice"));
    let second = Server::start(&mut command, socket);
    wait_until("both control sockets are there", || drives[0].control_sockets().len() == 2);
    let writer = format!(
        "import nbd\n\
         disks = [nbd.NBD(), nbd.NBD()]\n\
         disks[0].connect_uri({:?})\n\
         disks[1].connect_uri({:?})\n\
         n = 0\n\
         while True:\n\
         \x20   n += 1\n\
         \x20   disks[n % 2].pwrite(n.to_bytes(8, 'little') * 512, 0)\n\
         \x20   if n == 100: print('ready', flush=True)\n",
        first.uri(),
        second.uri()
    );
    let mut writing =
        Command::new(&python).args(["-c", &writer]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = writing.stdout.as_mut().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let paths: Vec<String> = drives.iter().map(path).collect();
    for number in 0..10 {
        let name = format!("@{number}");
        let args = ["snapshot", "create", &paths[0], &paths[1], &paths[2], &name];
        let taken = drives[0].ok(&args);
        assert_eq!(taken.lines().count(), 3, "{taken}");
    }
    let args = ["snapshot", "create", &paths[0], &paths[1], "@3"];
    drives[0].refused(&args, "no snapshot was kept");
    let args = ["snapshot", "create", &paths[0], &paths[0], "@new"];
    drives[0].refused(&args, "is named twice");
    // If one snapshot cannot be taken, the other drive's is not kept either.
    let missing = drives[0].beside("missing").display().to_string();
    drives[0].refused(&["snapshot", "create", &paths[0], &missing, "@new"], "missing");
    assert_eq!(names(&drives[0]).len(), 10);
    writing.kill().unwrap();
    writing.wait().unwrap();
    first.stop();
    second.stop();
    let image = drives[0].beside("image");
    let number_in = |place: &str| {
        drives[0].ok(&["extract", place, &image.display().to_string(), "--force"]);
        u64::from_le_bytes(fs::read(&image).unwrap()[..8].try_into().unwrap())
    };
    let mut moved = 0;
    for number in 0..10 {
        let name = number.to_string();
        let numbers = [&drives[0], &drives[1]].map(|drive| number_in(&drive.named(&name)));
        assert_eq!(numbers[0].abs_diff(numbers[1]), 1, "{numbers:?}");
        moved += u64::from(number_in(&drives[0].named("0")) != numbers[0]);
    }
    assert!(moved > 3, "nothing was written meanwhile");
}
