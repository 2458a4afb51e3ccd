//! Goal: snapshots of a served drive are exports of the server: they come and go with the
//! snapshots, are read-only, obey the rules of their drive, and list changed blocks.
//!
//! Method: drives of a folder, on one thread and on several; real clients read, and a client of
//! sockets stays while snapshots are deleted and the server restarts. Listed changes are compared
//! with the differences of two images, block by block.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Finished, PUMICE, Server, noise, python_with_libnbd, run, run_ok, stand_in,
    tool, wait_until,
};
use crate::serving::access::{ERR_POLICY, ERR_UNKNOWN, INFO, choose};
use crate::serving::tls::connect;

const SIZE: usize = 24 << 20;
const BLOCK: usize = 4096;

/// A server of drives in a folder.
struct World {
    folder: tempfile::TempDir,
    server: Server,
}

impl World {
    /// Creates drives and serves them; `configuration` may be empty.
    fn new(names: &[&str], args: &[&str], configuration: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(format!("{name}.pumice"));
            let sizes = ["--size", "24M", "--segment", "4M", "--capacity", "128M"];
            run_ok(Command::new(PUMICE).arg("create").arg(path).args(sizes));
        }
        let socket = folder.path().join("socket");
        let mut command = Command::new(PUMICE);
        command.arg("serve").arg(folder.path()).arg("--unix").arg(&socket).args(args);
        if !configuration.is_empty() {
            let file = folder.path().join("pumice.toml");
            fs::write(&file, configuration).unwrap();
            command.arg("--config").arg(file);
        }
        command.env("PUMICE_RUNTIME_DIR", folder.path().join("pumice")).env_remove("PUMICE_LOG");
        let server = Server::start(&mut command, socket);
        let world = Self { folder, server };
        wait_until("the control sockets answer", || {
            names.iter().all(|name| world.snapshot("list", name).code == Some(0))
        });
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `pumice snapshot`; a place is `DRIVE` or `DRIVE@NAME`.
    fn snapshot(&self, action: &str, place: &str) -> Finished {
        let whole = (place, "");
        let (drive, name) =
            if action == "list" { whole } else { place.split_once('@').unwrap_or(whole) };
        let path = self.path(&format!("{drive}.pumice")).display().to_string();
        let path = if name.is_empty() { path } else { format!("{path}@{name}") };
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", self.path("pumice"));
        run(command.args(["snapshot", action, &path]), COMMAND_LIMIT)
    }

    fn ok(&self, action: &str, place: &str) {
        let finished = self.snapshot(action, place);
        assert_eq!(finished.code, Some(0), "{action} {place}: {finished:?}");
    }

    fn uri(&self, export: &str) -> String {
        self.server.uri_of(&export.replace('@', "%40"))
    }

    /// Writes a file to an export, or an export to a file.
    fn copy(&self, from: &str, to: &str) {
        let Some(nbdcopy) = tool("nbdcopy") else { return };
        run_ok(Command::new(nbdcopy).arg(from).arg(to));
    }

    /// Writes a file of random bytes.
    fn random(&self, name: &str, seed: u64) -> Vec<u8> {
        let bytes = noise(seed, SIZE);
        fs::write(self.path(name), &bytes).unwrap();
        bytes
    }

    fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Connects to an export; also returns the type of the answer.
    fn enter(&self, export: &str) -> (UnixStream, u32) {
        let mut stream = connect(&self.server);
        let answer = choose(&mut stream, export);
        (stream, answer)
    }

    /// Returns the current content of an export, read by another program.
    fn image(&self, export: &str) -> Vec<u8> {
        let file = self.file("image");
        let _ = fs::remove_file(&file);
        self.copy(&self.uri(export), &file);
        fs::read(file).unwrap()
    }
}

/// Reads a block by the simple replies of the protocol.
fn read_block(stream: &mut UnixStream, offset: u64) -> Vec<u8> {
    let request = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0], &7_u64.to_be_bytes()[..]].concat();
    let range = [&offset.to_be_bytes()[..], &(BLOCK as u32).to_be_bytes()].concat();
    stream.write_all(&[request, range].concat()).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a reply without an error");
    let mut data = vec![0; BLOCK];
    stream.read_exact(&mut data).unwrap();
    data
}

fn come_and_go(args: &[&str]) {
    let (Some(_), Some(qemu_img)) = (tool("nbdcopy"), tool("qemu-img")) else { return };
    if stand_in().is_some() {
        return;
    }
    let world = World::new(&["a", "b@c"], args, "");
    let (first, second) = (world.random("first", 1), world.random("second", 2));
    world.copy(&world.file("first"), &world.uri("a"));
    assert_eq!(world.enter("a@one").1, ERR_UNKNOWN);
    world.ok("create", "a@one");
    world.copy(&world.file("second"), &world.uri("a"));
    world.ok("create", "a@two");
    assert!(world.image("a@one") == first, "the first");
    assert!(world.image("a@two") == second, "the second");
    let mut compare = Command::new(qemu_img);
    compare.args(["compare", "-f", "raw", "-F", "raw", &world.file("first"), &world.uri("a@one")]);
    run_ok(&mut compare);
    // A client keeps its snapshot, even across a restart, and nothing has changed meanwhile.
    let (mut client, answer) = world.enter("a@one");
    assert_eq!(answer, INFO);
    for _ in 0..2 {
        let refused = world.snapshot("delete", "a@one");
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("being read by a client"), "{}", refused.stderr);
        assert_eq!(refused.stderr.trim_end().lines().count(), 1, "{}", refused.stderr);
        assert!(read_block(&mut client, 8192) == first[8192..][..BLOCK]);
        assert_eq!(world.enter("a@one").1, INFO);
        world.server.restart();
        wait_until("it answers", || world.snapshot("list", "a").code == Some(0));
    }
    assert!(read_block(&mut client, 0) == first[..BLOCK]);
    drop(client);
    world.ok("delete", "a@one");
    assert_eq!(world.enter("a@one").1, ERR_UNKNOWN);
    assert!(world.image("a@two") == second, "the second, alone");
    assert!(world.image("a") == second, "the disk");
    // A new snapshot with the same name.
    world.ok("create", "a@one");
    assert!(world.image("a@one") == second, "another one");
    let path = world.path("a.pumice");
    world.server.stop();
    run_ok(Command::new(PUMICE).arg("check").arg(path));
}

#[test]
fn snapshots_are_exports_that_come_and_go() {
    come_and_go(&["--threads", "1"]);
}

#[test]
fn snapshots_on_other_threads_are_exports_that_come_and_go() {
    come_and_go(&["--threads", "3"]);
}

/// Guards against a snapshot that prevents clients from reaching the drive, or becomes their
/// default export.
#[test]
fn a_single_drive_stays_the_default_export() {
    if stand_in().is_some() || tool("nbdcopy").is_none() {
        return;
    }
    let world = World::new(&["only"], &[], "");
    let first = world.random("first", 3);
    world.copy(&world.file("first"), &world.uri(""));
    world.ok("create", "only@before");
    let second = world.random("second", 4);
    world.copy(&world.file("second"), &world.uri(""));
    assert!(world.image("") == second);
    assert!(world.image("only@before") == first);
    world.server.restart();
    assert!(world.image("") == second);
}

#[test]
fn rules_of_a_drive_hold_for_its_snapshots() {
    if stand_in().is_some() {
        return;
    }
    let configuration = "\
        [export.closed]\nallow-addresses = [\"10.0.0.0/8\"]\n\
        [export.one]\nconnections = 1\n";
    for threads in ["1", "3"] {
        let names = ["closed", "one", "open"];
        let world = World::new(&names, &["--threads", threads], configuration);
        for name in names {
            world.ok("create", &format!("{name}@s"));
        }
        assert_eq!(world.enter("closed").1, ERR_POLICY);
        assert_eq!(world.enter("closed@s").1, ERR_POLICY);
        assert_eq!(world.enter("open@s").1, INFO);
        let (first, answer) = world.enter("one@s");
        assert_eq!(answer, INFO);
        assert_eq!(world.enter("one").1, ERR_POLICY, "one connection to both");
        drop(first);
        wait_until("the connection is free", || world.enter("one").1 == INFO);
        let (first, _) = world.enter("open@s");
        // A new rule disconnects the clients that it excludes.
        let closed = format!("{configuration}[export.open]\nallow-addresses = [\"10.0.0.0/8\"]\n");
        fs::write(world.path("pumice.toml"), closed).unwrap();
        world.server.hang_up();
        wait_until("it is read", || world.enter("open@s").1 == ERR_POLICY);
        let mut gone = first;
        assert!(!matches!(gone.read(&mut [0]), Ok(1..)), "a client of the snapshot stays");
    }
}

/// Returns the blocks in which two images differ.
fn differing(one: &[u8], other: &[u8]) -> BTreeSet<usize> {
    let blocks = one.chunks(BLOCK).zip(other.chunks(BLOCK)).enumerate();
    blocks.filter(|(_, (one, other))| one != other).map(|(at, _)| at).collect()
}

/// Returns the blocks of the listed extents that satisfy `is_changed`.
fn listed(extents: &Value, offset: &str, is_changed: impl Fn(&Value) -> bool) -> BTreeSet<usize> {
    let extents = extents.as_array().expect("a list").iter().filter(|extent| is_changed(extent));
    let number = |extent: &Value, key: &str| extent[key].as_u64().expect("a number") as usize;
    let blocks = extents.flat_map(|extent| {
        let (from, len) = (number(extent, offset), number(extent, "length"));
        assert_eq!((from % BLOCK, len % BLOCK), (0, 0));
        from / BLOCK..(from + len) / BLOCK
    });
    blocks.collect()
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&run_ok(command).stdout).expect("JSON")
}

/// Returns the changed blocks, on which nbdinfo and QEMU must agree.
fn changed(world: &World, export: &str, since: &str) -> Option<BTreeSet<usize>> {
    let (nbdinfo, qemu_img) = (tool("nbdinfo")?, tool("qemu-img")?);
    let mut found = Vec::new();
    for context in [format!("qemu:dirty-bitmap:{since}"), format!("x-pumice:changed:{since}")] {
        let map = format!("--map={context}");
        let map = json(Command::new(&nbdinfo).args([&map, "--json"]).arg(world.uri(export)));
        found.push(listed(&map, "offset", |extent| extent["type"] == 1));
    }
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export={export},\
         x-dirty-bitmap=qemu:dirty-bitmap:{since}",
        world.server.socket().display()
    );
    let mut map = Command::new(&qemu_img);
    let map = json(map.args(["map", "--output=json", "--image-opts", &image]));
    found.push(listed(&map, "start", |extent| extent["data"] == false));
    assert!(found.iter().all(|blocks| *blocks == found[0]), "three clients disagree");
    found.pop()
}

#[test]
fn changed_blocks_are_exact_for_real_clients() {
    let (Some(_), Some(qemu_io)) = (tool("nbdcopy"), tool("qemu-io")) else { return };
    if stand_in().is_some() {
        return;
    }
    let world = World::new(&["a", "other"], &[], "");
    let first = world.random("first", 5);
    world.copy(&world.file("first"), &world.uri("a"));
    world.ok("create", "a@one");
    assert_eq!(changed(&world, "a", "one").unwrap().len(), 0);
    let write = |commands: &[&str]| {
        let mut command = Command::new(&qemu_io);
        command.args(["-f", "raw", "-d", "unmap"]);
        for text in commands {
            command.args(["-c", text]);
        }
        run_ok(command.arg(world.uri("a")));
    };
    // Single bytes, edges of blocks and of leaves (4 MiB), whole leaves, a trim, zeroes.
    write(&["write -P 1 5000 1", "write -P 2 4194303 2", "write -P 3 8M 4M", "write -P 4 20M 64k"]);
    let second = world.image("a");
    assert_eq!(changed(&world, "a", "one").unwrap(), differing(&first, &second));
    world.ok("create", "a@two");
    write(&["discard 13M 6M", "write -z 21M 1M", "write -P 5 5000 1", "write -P 6 23M 1M"]);
    let third = world.image("a");
    assert_eq!(changed(&world, "a", "one").unwrap(), differing(&first, &third));
    assert_eq!(changed(&world, "a", "two").unwrap(), differing(&second, &third));
    assert_eq!(changed(&world, "a@two", "one").unwrap(), differing(&first, &second));
    // Only earlier states, and only of this drive, are listed.
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let contexts = |export: &str| {
        let info = json(Command::new(&nbdinfo).arg("--json").arg(world.uri(export)));
        let contexts = info["exports"][0]["contexts"].as_array().expect("a list").clone();
        let names = contexts.iter().map(|name| name.as_str().expect("a name").to_owned());
        names.filter(|name| name.starts_with("qemu:")).collect::<Vec<_>>()
    };
    assert_eq!(contexts("a"), ["qemu:dirty-bitmap:one", "qemu:dirty-bitmap:two"]);
    assert_eq!(contexts("a@two"), ["qemu:dirty-bitmap:one"]);
    assert_eq!(contexts("a@one"), Vec::<String>::new());
    assert_eq!(contexts("other"), Vec::<String>::new());
    world.ok("delete", "a@one");
    assert_eq!(contexts("a"), ["qemu:dirty-bitmap:two"]);
    let map = ["--map=qemu:dirty-bitmap:one", &world.uri("a")];
    assert_ne!(run(Command::new(nbdinfo).args(map), COMMAND_LIMIT).code, Some(0));
}

/// Returns the block of `docs/operate.md` that follows this heading and begins with this line.
fn documented(heading: &str, first: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate.md");
    let text = fs::read_to_string(path).unwrap();
    let section = text.split_once(&format!("\n{heading}\n")).expect("the heading").1;
    let block = section.split("```").find(|block| block.contains(first)).expect("the script");
    block.split_once('\n').expect("lines").1.to_owned()
}

/// Guards against a script in the documentation that does not work as described.
#[test]
fn the_documented_script_makes_incremental_backups() {
    let (Some(python), Some(_)) = (python_with_libnbd(), tool("nbdcopy")) else { return };
    if stand_in().is_some() {
        return;
    }
    let Some(qemu_io) = tool("qemu-io") else { return };
    let world = World::new(&["vm"], &[], "");
    let script = documented("### Incremental backups", "#!/usr/bin/python3");
    assert!(script.lines().count() <= 30, "the script is short");
    fs::write(world.path("backup.py"), &script).unwrap();
    let first = world.random("first", 6);
    world.copy(&world.file("first"), &world.uri(""));
    world.ok("create", "vm@monday");
    world.copy(&world.uri("vm@monday"), &world.file("copy"));
    assert!(fs::read(world.path("copy")).unwrap() == first);
    for (old, new, commands) in [
        ("monday", "tuesday", ["write -P 1 5000 1", "write -P 2 9M 5M", "discard 12M 8M"]),
        ("tuesday", "wednesday", ["write -z 1M 1M", "write -P 3 23M 1M", "write -P 4 9M 4k"]),
    ] {
        let mut write = Command::new(&qemu_io);
        write.args(["-f", "raw", "-d", "unmap"]);
        for text in commands {
            write.args(["-c", text]);
        }
        run_ok(write.arg(world.uri("")));
        world.ok("create", &format!("vm@{new}"));
        let before = world.image("");
        // Continuing writes change neither the snapshot nor the copy.
        run_ok(
            Command::new(&qemu_io)
                .args(["-f", "raw", "-c", "write -P 9 20M 1M"])
                .arg(world.uri("")),
        );
        let mut backup = Command::new(&python);
        backup.arg(world.path("backup.py")).arg(world.server.socket());
        let copied = run_ok(backup.args(["vm", old, new]).arg(world.path("copy")));
        assert!(copied.stdout.contains("bytes"), "{}", copied.stdout);
        assert!(fs::read(world.path("copy")).unwrap() == before, "{new}");
        world.ok("delete", &format!("vm@{old}"));
    }
}

fn compare_with_a_bookmark(threads: &str) {
    let (Some(_), Some(qemu_io)) = (tool("nbdcopy"), tool("qemu-io")) else { return };
    if stand_in().is_some() {
        return;
    }
    let world = World::new(&["a", "other"], &["--threads", threads], "");
    let first = world.random("first", 7);
    world.copy(&world.file("first"), &world.uri("a"));
    world.ok("create", "a@one");
    let (client, answer) = world.enter("a@one");
    assert_eq!(answer, INFO);
    let refused = world.snapshot("bookmark", "a@one");
    assert!(refused.stderr.contains("being read by a client"), "{}", refused.stderr);
    drop(client);
    world.ok("bookmark", "a@one");
    assert_eq!(world.enter("a@one").1, ERR_UNKNOWN);
    let write = |text: &str| {
        run_ok(Command::new(&qemu_io).args(["-f", "raw", "-c", text]).arg(world.uri("a")));
    };
    ["write -P 1 5000 1", "write -P 3 8M 4M"].into_iter().for_each(write);
    let second = world.image("a");
    assert_eq!(changed(&world, "a", "one").unwrap(), differing(&first, &second));
    world.ok("create", "a@two");
    write("write -P 7 20M 1M");
    world.server.restart();
    wait_until("it answers", || world.snapshot("list", "a").code == Some(0));
    assert_eq!(world.enter("a@one").1, ERR_UNKNOWN);
    assert_eq!(changed(&world, "a@two", "one").unwrap(), differing(&first, &second));
    assert_eq!(changed(&world, "a", "one").unwrap(), differing(&first, &world.image("a")));
    world.ok("delete", "a@one");
    assert_eq!(world.enter("a@two").1, INFO);
}

#[test]
fn disks_are_compared_with_a_bookmark_that_cannot_be_read() {
    ["1", "3"].into_iter().for_each(compare_with_a_bookmark);
}

/// A snapshot being read does not stop rotation from deleting others.
#[test]
fn rotation_keeps_snapshots_in_use_and_deletes_the_others() {
    if stand_in().is_some() {
        return;
    }
    let world = World::new(&["a"], &[], "");
    for name in ["a@auto-1", "a@auto-2", "a@auto-3"] {
        world.ok("create", name);
    }
    let (reader, answer) = world.enter("a@auto-2");
    assert_eq!(answer, INFO);
    let rotate = || {
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", world.path("pumice"));
        command.args(["snapshot", "rotate", "--keep", "hourly:1", &world.file("a.pumice")]);
        run_ok(&mut command)
    };
    let said = rotate();
    let deleted = |said: &Finished| said.stdout.matches("deleted").count();
    assert_eq!(deleted(&said), 2, "{said:?}");
    assert!(said.stderr.contains("an expired snapshot was kept snapshot=\"auto-2\""), "{said:?}");
    assert!(said.stderr.contains("is being read by a client"), "{said:?}");
    drop(reader);
    // The rest waits for the next rotation.
    wait_until("the snapshot is deleted", || rotate().stdout.contains("auto-2"));
}

fn roll_back(threads: &str) {
    let (Some(_), Some(qemu_io)) = (tool("nbdcopy"), tool("qemu-io")) else { return };
    if stand_in().is_some() {
        return;
    }
    let world = World::new(&["a", "other"], &["--threads", threads], "");
    let disks = [8, 9, 10].map(|seed| {
        let disk = world.random("disk", seed);
        world.copy(&world.file("disk"), &world.uri("a"));
        world.ok("create", &format!("a@{seed}"));
        disk
    });
    let back = |more: &[&str]| {
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", world.path("pumice"));
        let place = format!("{}@8", world.file("a.pumice"));
        run(command.args(["snapshot", "rollback", &place]).args(more), COMMAND_LIMIT)
    };
    let refused = |finished: Finished, mention: &str| {
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(mention), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    };
    // A client of the disk has read data that would be lost; a client of a snapshot reads data that
    // would be deleted.
    let (mut client, answer) = world.enter("a");
    assert_eq!(answer, INFO);
    assert_eq!(read_block(&mut client, 0), disks[2][..BLOCK]);
    refused(back(&["--delete-newer"]), "in use by a client");
    drop(client);
    let (newer, answer) = world.enter("a@9");
    assert_eq!(answer, INFO);
    refused(back(&["--delete-newer"]), "read by a client");
    drop(newer);
    refused(back(&[]), "--delete-newer deletes");
    assert!(world.image("a") == disks[2] && world.image("a@9") == disks[1], "nothing has changed");
    // Clients of the remaining snapshots are not affected.
    let (mut older, _) = world.enter("a@8");
    let (_other, answer) = world.enter("other");
    assert_eq!(answer, INFO);
    let done = back(&["--delete-newer"]);
    assert!(done.code == Some(0) && done.stdout.contains("@10: deleted"), "{done:?}");
    assert_eq!(read_block(&mut older, 0), disks[0][..BLOCK]);
    for name in ["a@9", "a@10"] {
        assert_eq!(world.enter(name).1, ERR_UNKNOWN, "{name}");
    }
    assert!(world.image("a") == disks[0]);
    assert_eq!(changed(&world, "a", "8").unwrap(), differing(&disks[0], &disks[0]));
    let write = "write -P 1 5000 100k";
    run_ok(Command::new(qemu_io).args(["-f", "raw", "-c", write]).arg(world.uri("a")));
    let written = world.image("a");
    assert_eq!(changed(&world, "a", "8").unwrap(), differing(&disks[0], &written));
    world.server.restart();
    wait_until("it answers", || world.snapshot("list", "a").code == Some(0));
    assert!(world.image("a") == written && world.image("a@8") == disks[0]);
    assert_eq!(changed(&world, "a", "8").unwrap(), differing(&disks[0], &written));
}

#[test]
fn a_served_drive_is_rolled_back_once_its_clients_are_gone() {
    ["1", "3"].into_iter().for_each(roll_back);
}

/// Guards against exports that return errors until the next snapshot is taken.
#[test]
fn a_snapshot_that_was_given_up_for_space_is_no_export() {
    if stand_in().is_some() || tool("nbdcopy").is_none() {
        return;
    }
    let world = World::new(&["a"], &[], "");
    for number in 1..=5 {
        world.random("disk", number);
        world.copy(&world.file("disk"), &world.uri("a"));
        if number < 5 {
            let path = format!("{}@{number}", world.file("a.pumice"));
            let mut create = Command::new(PUMICE);
            create.env("PUMICE_RUNTIME_DIR", world.path("pumice"));
            run_ok(create.args(["snapshot", "create", "--yield", &path]));
        }
    }
    wait_until("the oldest is no export", || world.enter("a@1").1 == ERR_UNKNOWN);
    let list = world.snapshot("list", "a").stdout;
    assert!(!list.lines().any(|line| line.starts_with("1 ")), "{list}");
    assert_eq!(world.enter("a@4").1, INFO, "{list}");
}

/// Guards against recently read snapshots that keep the drive from being released.
#[test]
fn a_drive_whose_snapshots_were_read_is_closed_and_opened_again() {
    if stand_in().is_some() || tool("nbdcopy").is_none() {
        return;
    }
    let world = World::new(&["a"], &[], "");
    world.ok("create", "a@one");
    let (mut client, _) = world.enter("a@one");
    assert_eq!(read_block(&mut client, 0), [0; BLOCK]);
    let path = world.path("a.pumice");
    world.server.stop();
    let finished = run(Command::new(PUMICE).arg("check").arg(path), COMMAND_LIMIT);
    assert_eq!(finished.code, Some(0), "{finished:?}");
}
