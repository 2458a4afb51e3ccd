//! Goal: hosts run in step, their results are recorded and summed, and a failure of one host ends
//! all. Method: agents on threads, over socket pairs, on files and on an export in memory; the test
//! acts as a misbehaving host.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::merge::{self, Named, Own};
use super::message::{Clocks, Order, PROTOCOL, Report, read, write};
use super::{Connection, run_on_hosts, serve};
use crate::bench::results::{Header, RunResult, sample};
use crate::bench::runner::End;
use crate::bench::target::Location;
use crate::bench::{Benchmark, Sink};
use crate::error::{Error, Result};
use crate::workload::{Changes, Preset};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::client::Uri;
use pumice_nbd::memory_disk::MemoryDisk;
use pumice_nbd::{Access, Export, Listen, Listener, Options as ServerOptions, Server};

const PRESET: &str = r#"
about = "Small."
runs = 2
span = "1M"
seconds = 0.02
[[level]]
saved = "50%"
[[test]]
operation = "write"
record = "64K"
[[test]]
operation = "random-read"
record = "4K"
unit = "IOPS"
"#;

fn benchmark() -> Benchmark {
    let preset = Preset::from_table(PRESET.parse().unwrap(), "small").unwrap();
    Benchmark {
        title: "small".into(),
        about: preset.about.clone(),
        plan: preset.plan(&Changes::default()).unwrap(),
        destroy: false,
        begun_unix_s: 1,
    }
}

/// Starts an agent on a thread.
fn agent(name: &str) -> (Connection, JoinHandle<Result<()>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let output = theirs.try_clone().unwrap();
    let thread = thread::spawn(move || serve(theirs, output, &Arc::new(AtomicBool::new(false))));
    (connection(name, ours), thread)
}

fn connection(name: &str, ours: UnixStream) -> Connection {
    Connection::over(name, ours.try_clone().unwrap(), Half(ours))
}

/// Shuts the stream down when dropped, as a pipe does.
struct Half(UnixStream);

impl Write for Half {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }
}

/// Counts the recorded runs of each target, and stops after a number of runs.
struct Kept<'a> {
    headers: Vec<Header>,
    runs: Vec<usize>,
    stop_after: usize,
    stop: &'a AtomicBool,
}

impl Sink for Kept<'_> {
    fn begin(&mut self, headers: &[Header]) -> Result<()> {
        self.headers = headers.to_vec();
        self.runs = vec![0; headers.len()];
        Ok(())
    }

    fn keep(&mut self, target: usize, _run: &RunResult) -> Result<()> {
        self.runs[target] += 1;
        if self.runs[0] == self.stop_after {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn kept(stop: &AtomicBool, stop_after: usize) -> Kept<'_> {
    Kept { headers: Vec::new(), runs: Vec::new(), stop_after, stop }
}

/// An export of 8 MiB in memory.
struct Served {
    uri: String,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || thread::panicking());
    }
}

fn export() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let uri = Uri::unix(&socket, "disk").to_string();
    let listener = Listener::bind(&Listen::Unix(socket), Access::default()).unwrap();
    let (stop, stopped) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        let disk = Rc::new(MemoryDisk::new(8 << 20));
        let export = Rc::new(Export::new("disk", "", disk));
        let server = Server::new(runtime.clone(), vec![export], ServerOptions::default());
        runtime.spawn(server.clone().serve(listener));
        let stopped = Arc::new(stopped.into());
        runtime.block_on(async {
            runtime.receive(&stopped, vec![0], 0..1).await.1.unwrap();
            server.shutdown().await.unwrap();
        });
        runtime.drop_tasks();
    });
    Served { uri, stop: Some(stop), thread: Some(thread), _folder: folder }
}

#[test]
fn one_host_measures_the_same_as_alone() {
    let folder = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let (a, thread) = agent("a");
    let mut sink = kept(&stop, usize::MAX);
    let target = folder.path().join("disk").display().to_string();
    let contest = run_on_hosts(&benchmark(), &target, vec![a], &stop, &mut sink).unwrap();
    assert_eq!((contest.end, sink.runs), (End::Complete, vec![4, 4]));
    assert_eq!(contest.results[0].runs[0].sample, contest.results[1].runs[0].sample);
    assert_eq!(contest.results[0].header.target, target);
    thread.join().unwrap().unwrap();
    assert!(!folder.path().join("disk").exists(), "the file is left");
}

#[test]
fn three_hosts_share_an_export_and_their_bytes_add_up() {
    let served = export();
    let stop = AtomicBool::new(false);
    let (connections, threads): (Vec<_>, Vec<_>) = ["a", "b", "c"].map(agent).into_iter().unzip();
    let mut sink = kept(&stop, usize::MAX);
    let contest = run_on_hosts(&benchmark(), &served.uri, connections, &stop, &mut sink).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    assert_eq!((contest.end, sink.runs), (End::Complete, vec![4; 4]));
    let [all, hosts @ ..] = &contest.results[..] else { panic!("no results") };
    for (index, run) in all.runs.iter().enumerate() {
        let own = hosts.iter().map(|host| &host.runs[index].sample);
        assert_eq!(run.sample.host_bytes, own.clone().map(|one| one.host_bytes).sum::<u64>());
        let counts = own.clone().map(|one| one.latency.count());
        assert_eq!(run.sample.latency.count(), counts.sum::<u64>());
        let longest = own.map(|one| one.seconds).fold(0.0, f64::max);
        assert_eq!(run.sample.seconds, longest);
    }
    assert_eq!(all.runs[0].sample.host_bytes, 3 << 20, "a part was written twice or not at all");
    let shifts: Vec<u64> =
        hosts.iter().map(|host| host.header.plan.tests[0].workload.shift_bytes).collect();
    assert_eq!(shifts, [0, 1 << 20, 2 << 20]);
    assert_eq!(all.header.plan, benchmark().plan, "the plan of all hosts is the one asked for");
    let fact = |name: &str| {
        let mut facts = all.header.environment.iter();
        facts.find(|(other, _)| other == name).map(|(_, fact)| fact.as_str())
    };
    assert_eq!(fact("hosts"), Some("a, b, c"));
    assert!(fact("clock of b").is_some_and(|clock| clock.contains('\u{b1}')), "no clock");
    assert!(fact("kernel").is_some() && fact("kernel of a").is_none(), "one machine, one kernel");
    assert_eq!(hosts[1].header.label, "b");
}

#[test]
fn each_host_writes_different_data() {
    let folder = tempfile::tempdir().unwrap();
    let mut contents = Vec::new();
    for host in 0..2 {
        let target = Location::File(folder.path().join(format!("disk-{host}")));
        let mut plan = benchmark().plan;
        plan.tests.truncate(1);
        let stop = AtomicBool::new(false);
        let mut look = Look { path: target.path().unwrap(), found: Vec::new() };
        Benchmark { plan, ..benchmark() }.run_as(host, &target, &stop, &mut look).unwrap();
        contents.push(look.found);
    }
    assert_eq!(contents[0].len(), 1 << 20);
    assert!(contents[0] != contents[1], "two hosts write one and the same data");
}

/// Reads the file after each run.
struct Look {
    path: PathBuf,
    found: Vec<u8>,
}

impl Sink for Look {
    fn keep(&mut self, _target: usize, _run: &RunResult) -> Result<()> {
        self.found = std::fs::read(&self.path).unwrap();
        Ok(())
    }
}

#[test]
fn a_stop_ends_all_hosts() {
    let served = export();
    let stop = AtomicBool::new(false);
    let (connections, threads): (Vec<_>, Vec<_>) = ["a", "b"].map(agent).into_iter().unzip();
    let mut sink = kept(&stop, 1);
    let contest = run_on_hosts(&benchmark(), &served.uri, connections, &stop, &mut sink).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    assert_eq!((contest.end, sink.runs), (End::Stopped, vec![1, 1, 1]));
    assert_eq!(contest.results[0].runs.len(), 1);
}

/// Runs a benchmark on a well-behaved host and on a host played by the function.
fn with_a_bad_host(play: impl FnOnce(&mut BufReader<UnixStream>, &mut UnixStream) + Send) -> Error {
    let served = export();
    let stop = AtomicBool::new(false);
    let (good, thread) = agent("good");
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let bad = connection("bad", ours);
    let failed = thread::scope(|scope| {
        scope.spawn(move || {
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            play(&mut reader, &mut theirs);
        });
        let hosts = vec![good, bad];
        run_on_hosts(&benchmark(), &served.uri, hosts, &stop, &mut ()).unwrap_err()
    });
    thread.join().unwrap().unwrap();
    assert!(matches!(failed, Error::Host { .. }), "{}", failed.chain());
    failed
}

fn hello(output: &mut UnixStream) {
    let tool = "pumice of a test".to_owned();
    write(output, &Report::Hello { protocol: PROTOCOL, tool }).unwrap();
}

/// Answers requests until the prepare order.
fn up_to_prepare(orders: &mut BufReader<UnixStream>, output: &mut UnixStream) {
    hello(output);
    loop {
        match read(orders).unwrap() {
            Some(Order::Clocks) => write(output, &Report::Clocks(Clocks::now())).unwrap(),
            Some(Order::Prepare(_)) => return,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_host_that_fails_ends_all_and_is_named() {
    type Play = fn(&mut BufReader<UnixStream>, &mut UnixStream);
    let cases: [(Play, &str); 6] = [
        (|_, output| output.write_all(b"Welcome!\n").unwrap(), "bad: not a message of pumice: 'W"),
        (|_, _| {}, "bad: the connection has ended"),
        (
            |_, output| {
                let tool = "pumice 9.9".to_owned();
                write(output, &Report::Hello { protocol: 99, tool }).unwrap();
            },
            "bad: it runs pumice 9.9, which is not compatible with",
        ),
        (
            |orders, output| {
                up_to_prepare(orders, output);
                write(output, &Report::Failed("/dev/x is mounted".into())).unwrap();
            },
            "bad: /dev/x is mounted",
        ),
        (|orders, output| up_to_prepare(orders, output), "bad: the connection has ended"),
        (
            |orders, output| {
                up_to_prepare(orders, output);
                write(output, &Report::Ended).unwrap();
            },
            "bad: a message out of turn",
        ),
    ];
    for (play, wanted) in cases {
        let said = with_a_bad_host(play).chain();
        assert!(said.starts_with(wanted), "{said}, not {wanted}");
    }
}

#[test]
fn hosts_that_cannot_be_in_step_are_refused() {
    let stop = AtomicBool::new(false);
    let mut plan = benchmark().plan;
    plan.precision_percent = Some(1.0);
    plan.runs_max = 9;
    let growing = Benchmark { plan, ..benchmark() };
    for (benchmark, hosts, wanted) in [
        (growing, vec![agent("a").0], "a fixed number of runs"),
        (benchmark(), Vec::new(), "0 hosts: expected 1 to 64"),
    ] {
        let refused = run_on_hosts(&benchmark, "x", hosts, &stop, &mut ()).unwrap_err();
        assert!(refused.to_string().contains(wanted), "{refused}");
    }
    let (a, _thread) = agent("a");
    let refused = run_on_hosts(&benchmark(), "sim:micro-center-64", vec![a], &stop, &mut ());
    assert!(refused.unwrap_err().to_string().contains("a simulated drive"));
}

/// A run that did not begin with the others does not measure all hosts together, and has a warning.
#[test]
fn a_late_start_is_told() {
    let own = |late_ns| Own { late_ns, run: sample::run(0, 0, 0, 100.0) };
    let named = |name: &str| Named { name: name.to_owned(), ahead_ns: 0, error_ns: 0 };
    let hosts = [named("a"), named("b")];
    let warned = |late_ns| merge::run(&sample::plan(), &hosts, &[own(0), own(late_ns)]).unwrap();
    assert!(warned(10_000_000).warnings.is_empty());
    assert_eq!(warned(25_000_000).warnings, ["b: the run began 25 ms after the others"]);
}

/// A host's numbers are added up only if they are plausible.
#[test]
fn impossible_numbers_are_refused() {
    let good = sample::run(0, 0, 0, 100.0).sample;
    assert!(good.is_plausible());
    let mut bad = vec![good.clone(); 6];
    bad[0].interval_ns = 0;
    bad[1].interval_ns = 150_000_000;
    bad[2].host_bytes = u64::MAX;
    bad[3].seconds = f64::NAN;
    bad[4].intervals[0].latency_ns_sum = u64::MAX;
    bad[5].intervals = vec![good.intervals[0]; 1000];
    for (index, bad) in bad.iter().enumerate() {
        assert!(!bad.is_plausible(), "{index}");
    }
}
