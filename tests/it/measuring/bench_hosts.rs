//! Goal: `pumice bench --hosts` measures one server from several hosts simultaneously, keeps the
//! results of all and of each, and ends on all of them whatever happens to one. Method: a remote
//! shell that runs its command on this machine, and network namespaces in its place.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use pumice_bench::results::{Results, read};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, Server, run, run_ok, skip, spawn, stand_in, tool, wait,
    wait_until,
};
use crate::measuring::bench::Place;

const PRESET: &str = r#"
about = "Small."
runs = 2
span = "1M"
seconds = 0.05
[[level]]
saved = "50%"
[[test]]
operation = "write"
record = "64K"
[[test]]
operation = "random-write"
record = "4K"
unit = "IOPS"
"#;

/// A remote shell for hosts that are all this machine; `gone` is no host. Records the process of
/// each.
const SHELL: &str = r#"
host=$1
shift
if [ "$host" = gone ]; then echo "no route to gone" >&2; exit 255; fi
own=$(dirname "$0")/$host
echo $$ > "$own.part" && mv "$own.part" "$own.pid"
exec "$@"
"#;

fn place() -> Place {
    let place = Place::with(PRESET);
    fs::write(place.path("shell"), SHELL).expect("a shell");
    place
}

/// Returns the command for these hosts, with the results in `r`.
fn command(place: &Place, hosts: &str, target: &str, more: &[&str]) -> Command {
    let shell = format!("sh {}", place.path("shell").display());
    let mut command = place.command(&["--preset", "small.toml", "--hosts", hosts, target]);
    command.args(["--hosts-program", PUMICE, "--ssh", &shell, "--output", "r"]).args(more);
    command
}

fn results(path: &Path) -> Results {
    read(path).expect("results").remove(0)
}

/// Returns the process of a host.
fn process(place: &Place, host: &str) -> Pid {
    let text = fs::read_to_string(place.path(&format!("{host}.pid"))).expect("a process");
    Pid::from_raw(text.trim().parse().expect("a number")).expect("a process")
}

fn is_running(process: Pid) -> bool {
    Path::new(&format!("/proc/{}", process.as_raw_nonzero())).exists()
}

/// Starts a long benchmark, and waits until some runs are kept.
fn started(place: &Place, target: &str) -> Child {
    let child = spawn(&mut command(place, "a,b", target, &["--runs", "500"]));
    let lines = || fs::read_to_string(place.path("r")).map_or(0, |text| text.lines().count());
    wait_until("some runs are kept", || lines() >= 3);
    child
}

#[test]
fn several_hosts_measure_one_server_together() {
    if stand_in().is_some() {
        return;
    }
    let (place, drive) = (place(), Drive::create("64M", &[]));
    let server = drive.serve();
    let more = ["--label", "both", "--dry-run"];
    let planned = run_ok(&mut command(&place, "a,b", &server.uri(), &more)).stdout;
    assert!(planned.contains(" on b at once: 2 tests"), "{planned}");
    let finished = run_ok(&mut command(&place, "a,b", &server.uri(), &more[..2]));
    for words in ["random write, 4 KiB", "Results: r"] {
        assert!(finished.stdout.contains(words), "{words}: {}", finished.stdout);
    }
    let all = results(&place.path("r"));
    let each = ["a", "b"].map(|host| results(&place.path(&format!("r-{host}.jsonl"))));
    assert_eq!((all.header.name(), each[1].header.name()), ("both", "b"));
    assert_eq!([all.runs.len(), each[0].runs.len(), each[1].runs.len()], [4; 3]);
    for (index, run) in all.runs.iter().enumerate() {
        let sum: u64 = each.iter().map(|one| one.runs[index].sample.host_bytes).sum();
        assert_eq!(run.sample.host_bytes, sum);
    }
    assert!(all.header.command.contains("--hosts a,b"), "{}", all.header.command);
    // Each host writes its own part, and all blocks of the two parts remain.
    server.stop();
    assert_eq!(drive.info()["mapped_bytes"].as_u64().unwrap_or(0), 2 << 20, "{}", drive.info());
    let again = run(&mut command(&place, "a,b", "x", &[]), COMMAND_LIMIT);
    assert_eq!(again.code, Some(2));
    assert!(again.stderr.contains("r exists"), "{}", again.stderr);
}

#[test]
fn a_host_that_dies_ends_the_benchmark_on_all() {
    if stand_in().is_some() {
        return;
    }
    let (place, drive) = (place(), Drive::create("64M", &[]));
    let server = drive.serve();
    let mut child = started(&place, &server.uri());
    let hosts = ["a", "b"].map(|host| process(&place, host));
    kill_process(hosts[1], Signal::KILL).expect("a host to kill");
    let mut stderr = child.stderr.take().expect("stderr is piped");
    let status = wait(&mut child, COMMAND_LIMIT).expect("an end in time");
    let mut said = String::new();
    stderr.read_to_string(&mut said).expect("stderr");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("b: the connection has ended"), "{said}");
    assert!(said.contains("runs are in r"), "{said}");
    assert!(!hosts.into_iter().any(is_running), "a host still runs");
    assert!(!results(&place.path("r")).runs.is_empty(), "what was measured is lost");
}

#[test]
fn an_interrupt_ends_all_hosts() {
    if stand_in().is_some() {
        return;
    }
    let (place, drive) = (place(), Drive::create("64M", &[]));
    let server = drive.serve();
    let mut child = started(&place, &server.uri());
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    let mut stderr = child.stderr.take().expect("stderr is piped");
    let status = wait(&mut child, COMMAND_LIMIT).expect("an end in time");
    let mut said = String::new();
    stderr.read_to_string(&mut said).expect("stderr");
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted: all hosts have ended"), "{said}");
    assert!(!["a", "b"].map(|host| process(&place, host)).into_iter().any(is_running));
}

#[test]
fn hosts_that_cannot_take_part_are_named() {
    let place = place();
    let shell = format!("sh {}", place.path("shell").display());
    let refused = |hosts: &str, shell: &str, program: &str, more: &[&str]| {
        let mut command = place.command(&["--preset", "small.toml", "--hosts", hosts, "disk"]);
        command.args(["--hosts-program", program, "--ssh", shell]).args(more);
        let finished = run(&mut command, COMMAND_LIMIT);
        assert_eq!(finished.code, Some(2), "{command:?}: {}", finished.stderr);
        finished.stderr
    };
    type Case<'a> = (&'a str, &'a str, &'a str, &'a [&'a str], &'a str);
    let cases: [Case<'_>; 6] = [
        ("a,gone", &shell, PUMICE, &[], "gone: the connection has ended"),
        ("a,gone", &shell, PUMICE, &[], "no route to gone"),
        ("a,b", &shell, "/nowhere/pumice", &[], ": the connection has ended"),
        ("a,a", &shell, PUMICE, &[], "host a is named twice"),
        ("a,b", &shell, PUMICE, &["--precision", "1%"], "cannot be used with"),
        ("a", "/nowhere/ssh", PUMICE, &[], "cannot run /nowhere/ssh for a"),
    ];
    for (hosts, shell, program, more, wanted) in cases {
        let said = refused(hosts, shell, program, more);
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(!place.path("disk").exists(), "a host left its file");
}

/// Network namespaces of a server and two hosts; gone when dropped.
struct Network {
    ip: PathBuf,
    names: [String; 3],
}

/// The address of the server in all of them.
const ADDRESS: &str = "10.98.0.1";

impl Network {
    /// Creates the namespaces, or reports why the test is skipped.
    fn new() -> Option<Self> {
        let ip = tool("ip")?;
        if !rustix::process::geteuid().is_root() {
            return skip("network namespaces need root");
        }
        let names =
            ["server", "alpha", "beta"].map(|name| format!("pumice-{}-{name}", std::process::id()));
        let network = Self { ip, names };
        let [server, hosts @ ..] = &network.names;
        let made = network.run(&["netns", "add", server]);
        if made.code != Some(0) {
            return skip(&format!("no network namespaces: {}", made.stderr.trim()));
        }
        network.ok(&["-n", server, "link", "set", "lo", "up"]);
        network.ok(&["-n", server, "addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"]);
        for (index, host) in hosts.iter().enumerate() {
            let (link, subnet) = (format!("link{index}"), format!("10.98.{}", index + 1));
            network.ok(&["netns", "add", host]);
            let pair = ["link", "add", &link, "netns", server, "type", "veth", "peer", "name"];
            network.ok(&[&pair[..], &["eth0", "netns", host]].concat());
            network.ok(&["-n", server, "addr", "add", &format!("{subnet}.1/24"), "dev", &link]);
            network.ok(&["-n", server, "link", "set", &link, "up"]);
            network.ok(&["-n", host, "addr", "add", &format!("{subnet}.2/24"), "dev", "eth0"]);
            network.ok(&["-n", host, "link", "set", "eth0", "up"]);
            network.ok(&["-n", host, "route", "add", ADDRESS, "via", &format!("{subnet}.1")]);
        }
        Some(network)
    }

    fn run(&self, args: &[&str]) -> Finished {
        run(Command::new(&self.ip).args(args), COMMAND_LIMIT)
    }

    fn ok(&self, args: &[&str]) {
        run_ok(Command::new(&self.ip).args(args));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new(&self.ip).args(["netns", "delete", name]).status();
        }
    }
}

#[test]
fn hosts_with_separate_networks_reach_one_server() {
    if stand_in().is_some() {
        return;
    }
    let Some(network) = Network::new() else { return };
    let [namespace, alpha, beta] = &network.names;
    let (place, drive) = (Place::with(PRESET), Drive::create("64M", &[]));
    let mut serve = Command::new(&network.ip);
    let (socket, listen) = (drive.beside("socket"), format!("{ADDRESS}:10809"));
    serve.args(["netns", "exec", namespace, PUMICE, "serve"]).arg(drive.path());
    serve.arg("--unix").arg(&socket).args(["--insecure", "--listen", &listen]);
    serve.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    let server = Server::start(&mut serve, socket);
    let (hosts, target) = (format!("{alpha},{beta}"), format!("nbd://{ADDRESS}:10809/drive"));
    let mut bench = place.command(&["--preset", "small.toml", "--hosts", &hosts, &target]);
    bench.args(["--hosts-program", PUMICE, "--ssh", "ip netns exec", "--output", "r"]);
    run_ok(&mut bench);
    let all = results(&place.path("r"));
    let each = [alpha, beta].map(|host| results(&place.path(&format!("r-{host}.jsonl"))));
    assert_eq!(all.runs.len(), 4);
    assert!(each.iter().all(|one| one.runs.len() == 4 && one.header.target == target));
    server.stop();
}
