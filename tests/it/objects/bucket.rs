//! Goal: a drive in a bucket survives the loss of its machine, and no second machine writes to it.
//! Method: a server of the S3 protocol (moto) on this machine, and a proxy in front of it that
//! refuses connections or drops answers; real clients; the journal deleted after the server was
//! killed, and another one created; the first of two servers stopped and resumed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    COMMAND_LIMIT, Finished, PUMICE, Server, noise, run, run_ok, tool, wait_until,
};

pub(crate) const BUCKET: &str = "drives";

/// Forwards everything.
const OPEN: u8 = 0;
/// Closes connections silently.
const DOWN: u8 = 1;
/// Drops about one answer in four.
const DEAF: u8 = 2;
/// Hides from the store the condition that an object must not exist yet.
const LYING: u8 = 3;
/// The condition, and a meaningless header of the same length.
const CONDITION: [&[u8]; 2] = [b"if-none-match", b"x-no-match-at"];

/// A store, which ends with the test.
pub(crate) struct Store {
    child: Child,
    /// Address of moto.
    address: String,
    /// Address of the proxy, and its behaviour.
    proxy: String,
    mode: Arc<AtomicU8>,
    folder: tempfile::TempDir,
}

/// Forwards data from one side to the other.
fn pass_on(from: &TcpStream, to: &TcpStream, is_answer: bool, mode: &AtomicU8, lot: &AtomicU64) {
    let (mut from, mut to, mut bytes) = (from, to, [0; 1 << 16]);
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let mode = mode.load(Ordering::Relaxed);
        let is_drawn =
            || lot.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9) >> 5 & 3 == 0;
        let is_lost = mode == DOWN || mode == DEAF && is_answer && is_drawn();
        if mode == LYING && !is_answer {
            hide_condition(&mut bytes[..len]);
        }
        if is_lost || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Overwrites the condition of a request, whose head is forwarded in one piece.
fn hide_condition(request: &mut [u8]) {
    let [condition, nothing] = CONDITION;
    for at in 0..request.len().saturating_sub(condition.len()) {
        if request[at..][..condition.len()].eq_ignore_ascii_case(condition) {
            request[at..][..condition.len()].copy_from_slice(nothing);
        }
    }
}

/// Starts a proxy, whose threads end with the connections of the test.
fn proxy(target: String, mode: Arc<AtomicU8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let lot = Arc::new(AtomicU64::new(0));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if mode.load(Ordering::Relaxed) == DOWN {
                continue;
            }
            let Ok(server) = TcpStream::connect(&target) else { return };
            let (mode, lot) = (mode.clone(), lot.clone());
            thread::spawn(move || {
                thread::scope(|scope| {
                    scope.spawn(|| pass_on(&server, &client, true, &mode, &lot));
                    pass_on(&client, &server, false, &mode, &lot);
                });
            });
        }
    });
    address
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Store {
    pub(crate) fn start() -> Option<Self> {
        let moto = tool("moto_server")?;
        let mut command = Command::new(moto);
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // moto checks whether an object exists and creates it in two steps: they are atomic if
        // threads switch only where they wait.
        let folder = tempfile::tempdir().expect("a directory");
        let once = "import sys\nsys.setswitchinterval(1000)\n";
        fs::write(folder.path().join("sitecustomize.py"), once).expect("a file");
        let mut child = command.env("PYTHONPATH", folder.path()).spawn().expect("moto starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.split_once("http://")?.1.trim().to_owned()));
        let address = address.expect("moto says where it listens");
        // moto writes a line for each request.
        thread::spawn(move || lines.for_each(drop));
        let mode = Arc::new(AtomicU8::new(OPEN));
        let proxy = proxy(address.clone(), mode.clone());
        let store = Self { child, address, proxy, mode, folder };
        wait_until("moto accepts connections", || TcpStream::connect(&store.address).is_ok());
        let answer = store.ask(&format!("PUT /{BUCKET}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(store)
    }

    /// Sends a request without a body; returns the answer.
    pub(crate) fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("moto");
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PUMICE);
        command
            .args(args)
            .current_dir(self.folder.path())
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.proxy))
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("PUMICE_RUNTIME_DIR", self.folder.path().join("run"));
        command
    }

    pub(crate) fn pumice(&self, args: &[&str]) -> Finished {
        run(&mut self.command(args), COMMAND_LIMIT)
    }

    fn ok(&self, args: &[&str]) {
        let finished = self.pumice(args);
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:#?}");
    }

    pub(crate) fn create(&self, name: &str, journal: &str) {
        let place = format!("s3://{BUCKET}/{name}");
        let sizes = ["--size", "64M", "--journal-size", "256M", "--lag-max", "32M", "--lag", "1"];
        self.ok(&[&["create", &place, "--journal", journal], &sizes[..]].concat());
    }

    fn take_over(&self, name: &str, journal: &str) {
        let place = format!("s3://{BUCKET}/{name}");
        let sizes = ["--journal-size", "256M", "--lag-max", "32M"];
        let args = ["create", &place, "--take-over", "--journal", journal];
        self.ok(&[&args[..], &sizes[..]].concat());
    }

    pub(crate) fn serve(&self, path: &str, args: &[&str]) -> Server {
        let socket = self.path(&format!("{}.sock", path.rsplit('/').next().expect("a name")));
        let address = socket.to_str().expect("UTF-8").to_owned();
        let mut command = self.command(&["serve", path, "--unix", &address]);
        command.args(args);
        Server::start(&mut command, socket)
    }

    /// Returns the status of the bucket from `pumice info`.
    fn status(&self, path: &str) -> serde_json::Value {
        let finished = self.pumice(&["info", path, "--json"]);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        let info: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
        info["bucket"].clone()
    }

    /// Waits until the bucket has everything.
    pub(crate) fn until_committed(&self, path: &str) {
        wait_until("everything is in the bucket", || {
            let status = self.status(path);
            status["lag_bytes"] == 0 && status["lag_ns"] == 0
        });
    }

    fn set_mode(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
    }
}

fn copy(store: &Store, server: &Server) -> Command {
    let mut copy = Command::new(tool("nbdcopy").expect("looked for before"));
    copy.arg("--flush").arg(store.path("source")).arg(server.uri());
    copy
}

/// Writes noise to a part of a disk, and flushes.
fn fill(store: &Store, server: &Server, seed: u64) -> Vec<u8> {
    let bytes = noise(seed, 24 << 20);
    fs::write(store.path("source"), &bytes).expect("the source");
    run_ok(&mut copy(store, server));
    bytes
}

fn assert_has(store: &Store, path: &str, expected: &[u8]) {
    let image = store.path("image");
    let target = image.to_str().expect("UTF-8");
    store.ok(&["extract", path, target, "--force"]);
    let disk = fs::read(&image).expect("the image");
    assert_eq!(disk.len(), 64 << 20);
    assert!(disk[..expected.len()] == *expected, "{path} has other data");
    assert!(disk[expected.len()..].iter().all(|&byte| byte == 0), "{path} has more data");
}

#[test]
fn a_drive_is_taken_over_after_its_machine_is_gone() {
    let (Some(_), Some(store)) = (tool("nbdcopy"), Store::start()) else { return };
    store.create("one", "first");
    let server = store.serve("first", &[]);
    let bytes = fill(&store, &server, 1);
    store.until_committed("first");
    server.kill();
    let place = format!("s3://{BUCKET}/one");
    assert_has(&store, &place, &bytes);
    assert_has(&store, "first", &bytes);
    fs::remove_file(store.path("first")).expect("the journal");
    store.take_over("one", "second");
    let server = store.serve("second", &[]);
    let bytes = fill(&store, &server, 2);
    server.stop();
    // A closed drive is completely in the bucket.
    store.ok(&["check", &place]);
    store.ok(&["check", "second"]);
    assert_has(&store, &place, &bytes);
}

#[test]
fn of_two_machines_the_first_is_shut_out() {
    let (Some(_), Some(store)) = (tool("nbdcopy"), Store::start()) else { return };
    let Some(io) = tool("qemu-io") else { return };
    store.create("two", "first");
    let first = store.serve("first", &[]);
    let bytes = fill(&store, &first, 3);
    store.until_committed("first");
    let process = Pid::from_raw(first.id().cast_signed()).expect("a process");
    kill_process(process, Signal::STOP).expect("SIGSTOP");
    store.take_over("two", "second");
    let second = store.serve("second", &[]);
    kill_process(process, Signal::CONT).expect("SIGCONT");
    // Further writes of the first server are refused once it has tried to commit one.
    let mut write = Command::new(&io);
    write.args(["-f", "raw", "-c", "write -P 9 60M 4k", "-c", "flush", &first.uri()]);
    run_ok(&mut write);
    wait_until("the first one is refused", || {
        run(&mut write, COMMAND_LIMIT);
        first.stderr().contains("another machine has taken the drive over")
    });
    let info = store.pumice(&["info", "first"]);
    assert!(info.stdout.contains("refuses writes"), "{info:#?}");
    first.kill();
    second.stop();
    assert_has(&store, &format!("s3://{BUCKET}/two"), &bytes);
    assert_has(&store, "second", &bytes);
    let refused = store.pumice(&["check", "first"]);
    assert!(refused.stderr.contains("another machine"), "{refused:#?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:#?}");
    // Its acknowledged writes are not lost to their owner.
    store.ok(&["extract", "first", "image", "--force", "--fenced"]);
    let image = fs::read(store.path("image")).expect("the image");
    assert!(image[..bytes.len()] == bytes[..], "the journal has what was committed");
    assert!(image[60 << 20..][..4096].iter().all(|&byte| byte == 9), "and what was not");
}

#[test]
fn writes_wait_in_an_outage_and_go_on_afterwards() {
    let (Some(_), Some(store)) = (tool("nbdcopy"), Store::start()) else { return };
    let place = format!("s3://{BUCKET}/three");
    let sizes = ["--size", "64M", "--journal-size", "64M", "--lag-max", "8M", "--lag", "1"];
    store.ok(&[&["create", &place, "--journal", "first"], &sizes[..]].concat());
    let server = store.serve("first", &[]);
    fs::write(store.path("source"), noise(4, 24 << 20)).expect("the source");
    // The server needs the bucket to open the drive.
    wait_until("the drive is served", || store.pumice(&["info", "first"]).code == Some(0));
    store.set_mode(DOWN);
    let mut copy = copy(&store, &server);
    thread::scope(|scope| {
        let copied = scope.spawn(move || run(&mut copy, COMMAND_LIMIT));
        wait_until("the alert", || {
            let info = store.pumice(&["info", "first"]);
            info.code == Some(0) && info.stdout.contains("only in the journal")
        });
        assert!(!copied.is_finished(), "24 MiB do not fit below a limit of 8");
        let status = store.status("first");
        assert!(status["lag_bytes"].as_u64() <= status["lag_bytes_max"].as_u64(), "{status}");
        // Answers are lost from now on.
        store.set_mode(DEAF);
        let copied = copied.join().expect("nbdcopy");
        assert_eq!(copied.code, Some(0), "{copied:#?}");
    });
    store.until_committed("first");
    store.set_mode(OPEN);
    server.kill();
    fs::remove_file(store.path("first")).expect("the journal");
    assert_has(&store, &place, &noise(4, 24 << 20));
}

#[test]
fn a_server_ends_in_an_outage_and_reports_the_missing_data() {
    let (Some(_), Some(store)) = (tool("nbdcopy"), Store::start()) else { return };
    let place = format!("s3://{BUCKET}/seven");
    let sizes = ["--size", "64M", "--journal-size", "64M", "--lag-max", "8M", "--lag", "1"];
    store.ok(&[&["create", &place, "--journal", "first"], &sizes[..]].concat());
    let server = store.serve("first", &[]);
    fs::write(store.path("source"), noise(7, 24 << 20)).expect("the source");
    wait_until("the drive is served", || store.pumice(&["info", "first"]).code == Some(0));
    store.set_mode(DOWN);
    let mut copy = copy(&store, &server);
    thread::scope(|scope| {
        scope.spawn(move || run(&mut copy, COMMAND_LIMIT));
        wait_until("writes wait at the limit", || {
            let info = store.pumice(&["info", "first"]);
            info.code == Some(0) && info.stdout.contains("only in the journal")
        });
        let text = server.stop_with(1);
        // The server cannot know if the outage began during a commit.
        let said = ["the bucket lacks the last", "the bucket may lack the last"];
        assert!(said.iter().any(|words| text.contains(words)), "{text}");
        assert!(text.contains("the next opening commits"), "{text}");
    });
    store.set_mode(OPEN);
    store.ok(&["check", "first"]);
    store.serve("first", &[]).stop();
    store.ok(&["check", &place]);
}

#[test]
fn a_flush_that_waits_for_the_bucket_fails_when_the_server_ends() {
    let (Some(io), Some(store)) = (tool("qemu-io"), Store::start()) else { return };
    store.create("eight", "first");
    let place = format!("s3://{BUCKET}/eight");
    let server = store.serve(&place, &["--diskless"]);
    let mut write = Command::new(io);
    write.args(["-f", "raw", "-c", "write -P 8 0 4k", "-c", "flush", &server.uri()]);
    run_ok(&mut write);
    store.set_mode(DOWN);
    write.args(["-c", "write -P 9 0 4k", "-c", "flush"]);
    thread::scope(|scope| {
        let flushing = scope.spawn(move || run(&mut write, COMMAND_LIMIT));
        wait_until("the flush waits", || server.stderr().contains("does not answer"));
        let text = server.stop_with(1);
        assert!(text.contains("LOST"), "{text}");
        let flushed = flushing.join().expect("qemu-io");
        assert_ne!(flushed.code, Some(0), "{flushed:#?}");
    });
    store.set_mode(OPEN);
    store.ok(&["extract", &place, "image", "--force"]);
    let image = fs::read(store.path("image")).expect("the image");
    assert!(image[..4096].iter().all(|&byte| byte == 8), "what was flushed is there");
}

#[test]
fn without_a_local_file_a_flush_is_in_the_bucket() {
    let (Some(_), Some(store)) = (tool("nbdcopy"), Store::start()) else { return };
    store.create("four", "first");
    let place = format!("s3://{BUCKET}/four");
    let server = store.serve(&place, &["--diskless"]);
    let bytes = fill(&store, &server, 5);
    server.kill();
    assert_has(&store, &place, &bytes);
    let refused = store.pumice(&["check", "first"]);
    assert!(refused.stderr.contains("another machine"), "{refused:#?}");
}

#[test]
fn every_command_takes_a_journal_and_those_that_read_a_bucket() {
    let (Some(_), Some(store)) = (tool("nbdcopy"), Store::start()) else { return };
    store.create("five", "first");
    let place = format!("s3://{BUCKET}/five");
    let server = store.serve("first", &[]);
    let bytes = fill(&store, &server, 6);
    store.ok(&["snapshot", "create", "first@one"]);
    store.ok(&["scrub", "first"]);
    server.stop();
    for args in [
        &["info", "first"][..],
        &["info", &place],
        &["check", "first@one"],
        &["check", &format!("{place}@one")],
        &["scrub", "first"],
        &["set", "first", "codec=zstd"],
        &["resize", "first", "--size", "72M"],
        &["snapshot", "list", "first"],
        &["compact", "first"],
        &["create", "copy", "--size", "64M"],
        &["create", "other", "--size", "64M"],
    ] {
        store.ok(args);
    }
    let send = |from: &str, to: &str| {
        let mut send = store.command(&["send", from]);
        let mut sending = send.stdout(Stdio::piped()).spawn().expect("send");
        let mut receive = store.command(&["receive", to]);
        receive.stdin(sending.stdout.take().expect("a pipe"));
        assert!(receive.status().expect("receive").success(), "{from}");
        assert!(sending.wait().expect("send").success(), "{from}");
    };
    send("first@one", "copy");
    send(&format!("{place}@one"), "other");
    for path in ["copy@one", "other@one", "first@one", &format!("{place}@one")] {
        assert_has(&store, path, &bytes);
    }
    // A segment that is only in the bucket does not prevent a rebuild.
    store.ok(&["rebuild", "first", "rebuilt"]);
    store.ok(&["check", "rebuilt"]);
    let overwrite = store.pumice(&["create", "first", "--size", "64M", "--force"]);
    assert!(overwrite.stderr.contains("journal of the Pumice drive"), "{overwrite:#?}");
}

#[test]
fn a_store_that_creates_objects_twice_is_refused() {
    let Some(store) = Store::start() else { return };
    store.set_mode(LYING);
    let place = format!("s3://{BUCKET}/lie");
    let refused = store.pumice(&["create", &place, "--size", "64M", "--journal", "journal"]);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(refused.stderr.contains("does not create objects exclusively"), "{refused:#?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:#?}");
    assert!(!store.path("journal").exists(), "a journal is left");
    let listed = store.ask(&format!("GET /{BUCKET}?list-type=2&prefix=lie/"));
    assert!(listed.contains("<KeyCount>0</KeyCount>"), "objects are left: {listed}");
}

#[test]
fn the_cost_of_a_bucket_follows_its_prices() {
    let Some(store) = Store::start() else { return };
    store.create("prices", "first");
    let prices = ["--price-storage=2000", "--price-puts=500", "--price-gets=4000"];
    let finished = store.pumice(&[&["info", "first", "--json"], &prices[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    let info: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let (bucket, cost) = (&info["bucket"], &info["bucket_cost"]);
    let stored = bucket["stored_bytes"].as_f64().expect("bytes") / 1e9 * 2000.0;
    assert_eq!(cost["storage_usd_per_month"].as_f64(), Some(stored), "{cost}");
    let count = |name: &str| bucket[name].as_f64().expect("a count");
    assert!(count("gets") > 0.0, "{bucket}");
    let spent = ((count("puts") + count("lists")) * 500.0 + count("gets") * 4000.0) / 1000.0;
    assert_eq!(cost["requests_usd"].as_f64(), Some(spent), "{cost}");
    assert_eq!(cost["prices"]["puts_usd"].as_f64(), Some(500.0), "{cost}");
}

#[test]
fn missing_buckets_and_objects_are_reported_in_one_line() {
    let Some(store) = Store::start() else { return };
    let create = |place: &str| {
        let args = ["create", place, "--size", "64M", "--journal", "journal"];
        let finished = store.pumice(&args);
        assert_eq!(finished.code, Some(2), "{finished:#?}");
        assert!(!Path::new(&store.path("journal")).exists(), "a journal of {place} is left");
        finished.stderr
    };
    let text = create("s3://absent/drive");
    assert!(text.contains("there is no such bucket") && text.lines().count() == 1, "{text}");
    assert!(create("s3://drives").contains("expected s3://BUCKET/NAME"));
    store.create("six", "first");
    let text = create(&format!("s3://{BUCKET}/six"));
    assert!(text.contains("there is a drive in the bucket"), "{text}");
    let serve = store.pumice(&["serve", &format!("s3://{BUCKET}/six")]);
    assert!(serve.stderr.contains("--take-over"), "{serve:#?}");
    let mut gone = store.command(&["check", "first"]);
    gone.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    let gone = run(&mut gone, Duration::from_secs(60));
    assert!(
        gone.code == Some(2) && gone.stderr.contains("cannot reach s3://drives/six"),
        "{gone:#?}"
    );
}
