//! Shared support of all tests that run the built program: a drive in a directory of its own, a
//! server as a child process, tools of other projects, and enforced time limits.
//!
//! Invariants: nothing outlives its test (children are killed with their process group when they
//! are dropped or late); servers listen only on unix sockets in the test's own directory; nothing
//! waits by sleeping for a guessed time.
//!
//! With `PUMICE_STAND_IN` set to a shell command that uses `$socket` and `$drive`, the client tests
//! run against that server on a plain file instead, which distinguishes a wrong expectation of a
//! test from a fault of the program:
//!
//! ```text
//! PUMICE_STAND_IN='exec nbdkit -f -U "$socket" file "$drive"' cargo test --test it
//! ```
//!
//! This file deliberately reads the real clock: deadlines of child processes are real time.
#![allow(clippy::disallowed_methods, reason = "deadlines of child processes are real time")]

use std::cell::Cell;
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use serde_json::Value;
use tempfile::TempDir;

/// Time limit of a command, ours or another project's: several times the time of the slowest one on
/// two busy cores.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// Time limit for a server to accept its first connection, and to end after SIGTERM.
const SERVER_LIMIT: Duration = Duration::from_secs(30);

/// The program under test.
pub(crate) const PUMICE: &str = env!("CARGO_BIN_EXE_pumice");

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command without input and waits for its end. JSON printed by Pumice is checked against
/// its schema.
///
/// Panics, after killing the command with all its children, if it takes longer than `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Finished {
    let mut child = spawn(command);
    let stdout = read_in_background(child.stdout.take().expect("stdout is piped"));
    let stderr = read_in_background(child.stderr.take().expect("stderr is piped"));
    let status = wait(&mut child, limit);
    let text = |reader: JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().expect("reader thread")).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    let Some(status) = status else {
        panic!("{command:?} took longer than {limit:?}\n{stdout}\n{stderr}");
    };
    if command.get_program() == PUMICE {
        crate::program::schemas::hold(&stdout);
    }
    Finished { code: status.code(), stdout, stderr }
}

/// Runs a command that must succeed within [`COMMAND_LIMIT`].
pub(crate) fn run_ok(command: &mut Command) -> Finished {
    let finished = run(command, COMMAND_LIMIT);
    assert_eq!(
        finished.code,
        Some(0),
        "{command:?}\n--- stdout\n{}\n--- stderr\n{}",
        finished.stdout,
        finished.stderr
    );
    finished
}

/// Runs `pumice` with these arguments, and accepts any exit code.
pub(crate) fn pumice<S: AsRef<OsStr>>(args: &[S]) -> Finished {
    run(Command::new(PUMICE).args(args), COMMAND_LIMIT)
}

/// Finds another project's program.
///
/// Without it, a test reports why it is skipped and returns; under CI a missing program fails the
/// test, so that no test is skipped there.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        // mkfs and fsck are not on every user's path.
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|directory| directory.join(name))
        .find(|file| file.is_file());
    found.or_else(|| skip(&format!("{name} is not installed ({})", package(name))))
}

/// Returns the Debian or PyPI package of a program, which usually has the program's name.
fn package(program: &str) -> &str {
    match program {
        "blkid" | "blockdev" | "fincore" | "fstrim" | "ionice" | "partx" | "setpriv" | "setsid" => {
            "util-linux"
        }
        "busybox" => "busybox-static",
        "depmod" => "kmod",
        "e2fsck" | "fsck.ext4" | "mkfs.ext4" => "e2fsprogs",
        "ip" => "iproute2",
        "losetup" => "mount",
        "mkfs.btrfs" => "btrfs-progs",
        "mkfs.xfs" => "xfsprogs",
        "moto_server" => "moto[server] of PyPI",
        "nbdcopy" | "nbdinfo" => "libnbd-bin",
        "promtool" => "prometheus",
        "sfdisk" => "fdisk",
        "qemu-img" | "qemu-io" | "qemu-nbd" => "qemu-utils",
        "qemu-system-x86_64" => "qemu-system-x86",
        "strip" => "binutils",
        "systemd-analyze" | "systemd-socket-activate" => "systemd",
        "timeout" => "coreutils",
        same => same,
    }
}

/// Finds a Python that has libnbd: Debian's module belongs to Debian's Python, which need not be
/// the first one on the path.
pub(crate) fn python_with_libnbd() -> Option<PathBuf> {
    let candidates = ["python3", "/usr/bin/python3"];
    let found = candidates.into_iter().find(|python| {
        let probe = Command::new(python).args(["-c", "import nbd"]).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    });
    found.map(PathBuf::from).or_else(|| skip("no python3 has the nbd module (python3-libnbd)"))
}

/// Returns incompressible bytes.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rand::Rng::fill_bytes(&mut pumice_drive::base::seed::random(seed), &mut bytes);
    bytes
}

/// Returns the path of a file in `tests/it/fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/it/fixtures").join(name)
}

/// A block device backed by a file; removed when dropped.
pub(crate) struct LoopDevice {
    path: PathBuf,
    losetup: PathBuf,
    _directory: TempDir,
}

impl LoopDevice {
    /// Creates a device of `bytes` zeroes, or reports why the test is skipped: a device requires
    /// privileges that not even CI has everywhere.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        Self::within(&env::temp_dir(), bytes)
    }

    /// Like [`Self::new`], with the device's file in memory if the machine has a place for such
    /// files.
    #[cfg(feature = "bench")]
    pub(crate) fn in_memory(bytes: u64) -> Option<Self> {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::within(memory, bytes) } else { Self::new(bytes) }
    }

    fn within(folder: &Path, bytes: u64) -> Option<Self> {
        let losetup = tool("losetup")?;
        // The name by which tests/run.sh also finds the file in memory.
        let name = env::var("PUMICE_TEST_RUN").unwrap_or_else(|_| "pumice-".into());
        let directory = tempfile::Builder::new().prefix(&name).tempdir_in(folder);
        let directory = directory.expect("temp dir");
        let backing = directory.path().join("backing");
        File::create(&backing).and_then(|file| file.set_len(bytes)).expect("the backing file");
        let mut command = Command::new(&losetup);
        // Partitions that a test adds disappear when the device is detached.
        let args = ["--find", "--show", "--partscan"];
        let finished = run(command.args(args).arg(backing), COMMAND_LIMIT);
        if finished.code != Some(0) {
            println!("skipped: no loop device to be had: {}", finished.stderr.trim());
            return None;
        }
        Some(Self { path: finished.stdout.trim().into(), losetup, _directory: directory })
    }

    /// Returns the device's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new(&self.losetup).arg("--detach").arg(&self.path).status();
    }
}

/// Reports why a test is skipped; under CI it fails the test instead.
pub(crate) fn skip<T>(reason: &str) -> Option<T> {
    assert!(env::var("CI").as_deref() != Ok("true"), "CI does not skip tests: {reason}");
    println!("skipped: {reason}");
    None
}

/// Returns the server command that stands in for `pumice serve`, if one is set.
pub(crate) fn stand_in() -> Option<String> {
    env::var("PUMICE_STAND_IN").ok()
}

/// A drive in a directory of its own, removed with it.
pub(crate) struct Drive {
    directory: TempDir,
    path: PathBuf,
    servers: Cell<u32>,
}

impl Drive {
    /// Creates a drive of `size` with further arguments for `pumice create`.
    pub(crate) fn create(size: &str, args: &[&str]) -> Self {
        Self::absent().created(size, args)
    }

    /// Creates the drive at this path.
    pub(crate) fn created(self, size: &str, args: &[&str]) -> Self {
        let drive = self;
        if stand_in().is_some() {
            let bytes = pumice_drive::base::units::parse_size(size).expect("a size");
            let file = File::create(&drive.path).expect("create the stand-in's file");
            file.set_len(bytes).expect("size the stand-in's file");
        } else {
            let mut command = Command::new(PUMICE);
            run_ok(command.arg("create").arg(&drive.path).args(["--size", size]).args(args));
        }
        drive
    }

    /// Returns the directory and the name of a drive that does not exist yet.
    pub(crate) fn absent() -> Self {
        let directory = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
        let path = directory.path().join("drive");
        Self { directory, path, servers: Cell::new(0) }
    }

    /// Returns the name of a drive on a block device; the drive does not exist yet.
    pub(crate) fn on(device: &LoopDevice) -> Self {
        Self { path: device.path().to_owned(), ..Self::absent() }
    }

    /// Returns a drive at a path with another owner, with a directory of its own.
    pub(crate) fn absent_at(path: &Path) -> Self {
        Self { path: path.to_owned(), ..Self::absent() }
    }

    /// Returns the name of a drive that does not exist yet, in a new folder of its directory.
    pub(crate) fn in_folder(folder: &str) -> Self {
        let drive = Self::absent();
        let folder = drive.beside(folder);
        std::fs::create_dir(&folder).expect("a folder");
        Self { path: folder.join("drive"), ..drive }
    }

    /// Returns the name of a drive in another directory; the drive does not exist yet.
    #[cfg(feature = "attach")]
    pub(crate) fn within(directory: &Path) -> Self {
        Self { path: directory.join("drive"), ..Self::absent() }
    }

    /// Returns the sockets at which servers of this drive answer `pumice info`.
    pub(crate) fn control_sockets(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.beside("pumice")) else { return Vec::new() };
        entries.map(|entry| entry.expect("directory entry").path()).collect()
    }

    /// Returns the drive's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path in the drive's directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a server and waits until it accepts connections.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    /// Like [`Drive::serve`], with further arguments for `pumice serve`.
    pub(crate) fn serve_with(&self, args: &[&str]) -> Server {
        // A new name each time: after `kill -9` the old socket file is still there.
        self.servers.set(self.servers.get() + 1);
        let socket = self.beside(&format!("socket-{}", self.servers.get()));
        let mut command = match stand_in() {
            Some(script) => {
                let mut command = Command::new("sh");
                command.args(["-c", &script]).env("socket", &socket).env("drive", &self.path);
                command
            }
            None => {
                let mut command = Command::new(PUMICE);
                command.arg("serve").arg(&self.path).arg("--unix").arg(&socket).args(args);
                // Files left by a killed server are removed with the drive.
                command.env("PUMICE_RUNTIME_DIR", self.beside("pumice"));
                command
            }
        };
        Server::start(&mut command, socket)
    }

    /// Like [`Drive::serve_with`], and waits until other commands can also reach the server.
    pub(crate) fn serve_with_control(&self, args: &[&str]) -> Server {
        let server = self.serve_with(args);
        let answers = |socket: &PathBuf| UnixStream::connect(socket).is_ok();
        wait_until("the control socket answers", || self.control_sockets().iter().any(answers));
        server
    }

    /// Runs `pumice` with the runtime directory of this drive's servers.
    pub(crate) fn pumice(&self, args: &[&str]) -> Finished {
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", self.beside("pumice"));
        run(command.args(args), COMMAND_LIMIT)
    }

    /// Runs [`Drive::pumice`], which must succeed; returns its standard output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let finished = self.pumice(args);
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
        finished.stdout
    }

    /// Runs [`Drive::pumice`], which must refuse and mention `mention`.
    pub(crate) fn refused(&self, args: &[&str], mention: &str) {
        let finished = self.pumice(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains(mention), "{args:?}: {}", finished.stderr);
    }

    /// Returns `PATH@NAME`.
    pub(crate) fn named(&self, snapshot: &str) -> String {
        format!("{}@{snapshot}", self.path.display())
    }

    /// Returns the output of `pumice info --json`.
    pub(crate) fn info(&self) -> Value {
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", self.beside("pumice"));
        let finished = run_ok(command.arg("info").arg(&self.path).arg("--json"));
        serde_json::from_str(&finished.stdout).expect("info --json prints JSON")
    }

    /// Asserts that `pumice check` finds no problem.
    pub(crate) fn assert_checks(&self) {
        if stand_in().is_none() {
            run_ok(Command::new(PUMICE).arg("check").arg(&self.path));
        }
    }
}

/// Creates a drive of 64 MiB for each name in a folder, and serves the folder with further
/// arguments for `pumice serve`.
pub(crate) fn serve_folder(folder: &Path, names: &[&str], args: &[&str]) -> Server {
    for name in names {
        let path = folder.join(format!("{name}.pumice"));
        run_ok(Command::new(PUMICE).arg("create").arg(path).args(["--size", "64M"]));
    }
    let socket = folder.join("socket");
    let mut command = Command::new(PUMICE);
    command.arg("serve").arg(folder).arg("--unix").arg(&socket).args(args);
    command.env("PUMICE_RUNTIME_DIR", folder.join("pumice"));
    Server::start(&mut command, socket)
}

/// Returns the number called `key`, wherever it is in `value`.
///
/// Panics if there is none: a renamed counter must not make a test ineffective.
pub(crate) fn counter(value: &Value, key: &str) -> u64 {
    fn find(value: &Value, key: &str) -> Option<u64> {
        match value {
            Value::Object(map) => map
                .get(key)
                .and_then(Value::as_u64)
                .or_else(|| map.values().find_map(|inner| find(inner, key))),
            Value::Array(list) => list.iter().find_map(|inner| find(inner, key)),
            _ => None,
        }
    }
    find(value, key).unwrap_or_else(|| panic!("no number '{key}' in {value:#}"))
}

/// A server in a process of its own; killed when dropped.
pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
    stderr: Arc<Mutex<String>>,
    lines: Receiver<()>,
}

impl Server {
    /// Starts any server that will listen on `socket`, and waits until it accepts connections.
    pub(crate) fn start(command: &mut Command, socket: PathBuf) -> Self {
        let mut child = spawn(command);
        drop(read_in_background(child.stdout.take().expect("stdout is piped")));
        let pipe = child.stderr.take().expect("stderr is piped");
        let stderr = Arc::new(Mutex::new(String::new()));
        let (sender, lines) = channel();
        let seen = Arc::clone(&stderr);
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                seen.lock().expect("stderr").push_str(&(line + "\n"));
                // The channel is closed once the server is up; its output is kept anyway.
                let _ = sender.send(());
            }
        });
        let server = Self { child, socket, stderr, lines };
        server.wait_until_it_accepts(command);
        server
    }

    fn wait_until_it_accepts(&self, command: &Command) {
        let deadline = Instant::now() + SERVER_LIMIT;
        while UnixStream::connect(&self.socket).is_err() {
            // A server that writes a line may be ready; one that closed its stderr is dead; a
            // silent one is tried again soon.
            let heard = self.lines.recv_timeout(Duration::from_millis(10));
            let dead = heard == Err(RecvTimeoutError::Disconnected);
            let late = Instant::now() > deadline;
            let state = if dead { "ended" } else { "does not accept connections" };
            assert!(!dead && !late, "{command:?} {state}\n{}", self.stderr());
        }
    }

    /// Returns the URI of the server's default export.
    pub(crate) fn uri(&self) -> String {
        self.uri_of("")
    }

    /// Returns the URI of an export, whose name must need no percent-encoding.
    pub(crate) fn uri_of(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Returns the socket on which the server listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard error of the server so far.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().expect("stderr").clone()
    }

    /// Sends SIGHUP.
    pub(crate) fn hang_up(&self) {
        kill_process(pid(&self.child), Signal::HUP).expect("SIGHUP");
    }

    /// Sends SIGHUP, and waits until the server's successor serves.
    pub(crate) fn restart(&self) {
        let starts = || self.stderr().matches("serving ").count();
        wait_until("the server says that it serves", || starts() > 0);
        let before = starts();
        self.hang_up();
        wait_until("the server restarts", || starts() > before);
    }

    /// Asks the server to end with SIGTERM and asserts that it ends in time and with exit 0.
    pub(crate) fn stop(self) {
        self.stop_with(0);
    }

    /// Like [`Self::stop`], with another exit code. Returns the server's standard error.
    pub(crate) fn stop_with(mut self, expected: i32) -> String {
        kill_process(pid(&self.child), Signal::TERM).expect("SIGTERM");
        let status = wait(&mut self.child, SERVER_LIMIT);
        let code = status.map(|status| status.code());
        assert_eq!(code, Some(Some(expected)), "end after SIGTERM\n{}", self.stderr());
        self.stderr()
    }

    /// Ends the server with SIGKILL, as a crash of the program would.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("wait for the killed server");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A reaped child's number may belong to another process by now.
        if let Ok(None) = self.child.try_wait() {
            end(&mut self.child);
        }
    }
}

/// A client that reports its progress line by line; killed when dropped.
pub(crate) struct Talker {
    child: Child,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Talker {
    /// Starts the client.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = spawn(command);
        let stderr = Some(read_in_background(child.stderr.take().expect("stderr is piped")));
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            // Lines that no test waits for are read anyway, so that the client never blocks.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines, stderr }
    }

    /// Waits for the client's next line; panics with its stderr if it ends or writes nothing for
    /// [`COMMAND_LIMIT`].
    pub(crate) fn next_line(&mut self) -> String {
        match self.lines.recv_timeout(COMMAND_LIMIT) {
            Ok(line) => line,
            Err(error) => panic!("no line from the client: {error}\n{}", self.end().1),
        }
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("state of a child").is_some()
    }

    /// Waits for the client's end and asserts exit 0.
    pub(crate) fn finish(mut self) {
        let status = wait(&mut self.child, COMMAND_LIMIT);
        let code = status.map(|status| status.code());
        assert_eq!(code, Some(Some(0)), "{}", self.end().1);
    }

    /// Ends the client and returns its status and stderr.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        // A reaped child's number may belong to another process by now.
        let status = match self.child.try_wait().expect("state of a child") {
            Some(status) => status,
            None => end(&mut self.child),
        };
        let stderr = self.stderr.take().map(|reader| reader.join().expect("reader thread"));
        (status, String::from_utf8_lossy(&stderr.unwrap_or_default()).into_owned())
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until a condition without an event of its own holds; panics after [`SERVER_LIMIT`].
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SERVER_LIMIT;
    let (_sender, never) = channel::<()>();
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {SERVER_LIMIT:?}");
        let _ = never.recv_timeout(Duration::from_millis(5));
    }
}

/// Returns the next message to a service manager; panics after [`COMMAND_LIMIT`].
pub(crate) fn notice(manager: &UnixDatagram) -> String {
    let mut events = [PollFd::new(manager, PollFlags::IN)];
    let limit = Timespec::try_from(COMMAND_LIMIT).expect("a limit of seconds");
    assert_eq!(poll(&mut events, Some(&limit)), Ok(1), "no message within {COMMAND_LIMIT:?}");
    let mut message = [0; 128];
    let length = manager.recv(&mut message).expect("a message");
    String::from_utf8(message[..length].to_vec()).expect("text")
}

/// Starts a child in a process group of its own, with piped output and no input.
pub(crate) fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("LC_ALL", "C.UTF-8").env("NO_COLOR", "1").env_remove("RUST_LOG").process_group(0);
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Waits for a child's end; `None` if it took longer than `limit` and was killed.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Ok(Some(status)) = child.try_wait() {
        return Some(status);
    }
    let pidfd = pidfd_open(pid(child), PidfdFlags::empty()).expect("pidfd of a child");
    let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
    let limit = Timespec::try_from(limit).expect("a limit of seconds");
    let ended = poll(&mut events, Some(&limit)).expect("poll a pidfd") == 1;
    let status = end(child);
    ended.then_some(status)
}

/// Kills the remaining process group of a child that is not reaped yet, so that its pipes close,
/// and reaps the child. A child that has ended already keeps its status.
fn end(child: &mut Child) -> ExitStatus {
    let _ = kill_process_group(pid(child), Signal::KILL);
    child.wait().expect("wait for a child")
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("read a child's output");
        bytes
    })
}
