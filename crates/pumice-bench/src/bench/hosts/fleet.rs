//! The coordinating machine: synchronizes the hosts, and stops them all at the end.

use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::merge::{self, Named, Own};
use super::message::{Clocks, Order, PROTOCOL, Report, Task, read, write};
use crate::bench::results::{Header, Results};
use crate::bench::runner::End;
use crate::bench::sink::{Sink, Status};
use crate::bench::{Benchmark, Contest};
use crate::error::{Error, Result};
use crate::workload::Plan;

/// Maximum number of hosts. Each needs a process and a thread on this machine.
const HOSTS_MAX: usize = 64;

/// Maximum time for a host's first message, including a login over a slow network.
const HELLO_NS: u64 = 60_000_000_000;

/// Maximum time for all hosts to end after their connections were closed. A host waits up to 5 s
/// for its requests in flight.
const END_NS: u64 = 10_000_000_000;

/// Interval between checks of the stop flag.
const POLL: Duration = Duration::from_millis(50);

/// Clock readings requested from each host. The reading with the shortest round trip is used.
const CLOCK_QUESTIONS: u32 = 8;

/// Minimum time between an order to go and the common start, in nanoseconds. It is longer if round
/// trips are longer.
const LEAD_NS: u64 = 20_000_000;

/// Granularity of the parts of a shared target.
const PART_BYTES: u64 = 1 << 20;

/// A connection to a host.
pub struct Connection {
    name: String,
    reader: Box<dyn Read + Send>,
    writer: Box<dyn Write + Send>,
    child: Option<Child>,
}

impl Connection {
    /// Returns a connection over these streams. [`serve`](super::serve) must run at their other
    /// end.
    pub fn over(
        name: &str,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Self {
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        Self { name: name.to_owned(), reader, writer, child: None }
    }

    /// Starts `program` on `host` with a remote shell such as `ssh`. The command consists of the
    /// words of `shell`, the host, and the program with its arguments. The program's stderr goes to
    /// the stderr of this process.
    ///
    /// # Errors
    /// The shell cannot be started.
    pub fn start(shell: &[String], host: &str, program: &[String]) -> Result<Self> {
        let [first, rest @ ..] = shell else {
            return Err(Error::invalid("the command for reaching hosts is empty"));
        };
        let mut command = Command::new(first);
        command.args(rest).arg(host).args(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C reaches only this process, which then stops the hosts in an orderly way.
        command.process_group(0);
        let failed = |error| Error::io(format!("cannot run {first} for {host}"), error);
        let mut child = command.spawn().map_err(failed)?;
        let missing = || Error::invalid("a child without pipes");
        let reader = Box::new(child.stdout.take().ok_or_else(missing)?);
        let writer = Box::new(child.stdin.take().ok_or_else(missing)?);
        Ok(Self { name: host.to_owned(), reader, writer, child: Some(child) })
    }
}

/// Runs the benchmark on all hosts concurrently. Returns the combined results of all hosts, then
/// the results of each host. The headers that `sink` receives, and the targets whose runs it
/// records, have the same order. An NBD export is divided into equal parts, one for each host,
/// because all hosts would otherwise write the same blocks. Any other target is local to its host.
///
/// # Errors
/// [`Error::Host`] for a host that fails or cannot be reached, once all hosts have ended;
/// [`Error::Invalid`] for a plan whose number of runs depends on the measurements; the errors of
/// the sink.
pub fn run_on_hosts(
    benchmark: &Benchmark,
    target: &str,
    connections: Vec<Connection>,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<Contest> {
    if !(1..=HOSTS_MAX).contains(&connections.len()) {
        let what = format!("{} hosts: expected 1 to {HOSTS_MAX}", connections.len());
        return Err(Error::invalid(what));
    }
    if benchmark.plan.precision_percent.is_some() || benchmark.plan.steady.is_some() {
        let what = "several hosts need a fixed number of runs: use --runs, and a preset without \
                    'precision' and 'steady'";
        return Err(Error::invalid(what));
    }
    let mut fleet = Fleet::new(connections, stop);
    let ended = fleet.run(benchmark, target, sink);
    fleet.end();
    ended
}

/// An event from a host.
enum Event {
    Said(Report),
    /// The host sent an invalid message.
    Garbled(String),
    /// The connection has ended.
    Closed,
}

struct Host {
    named: Named,
    /// Closing this ends the host.
    writer: Option<Box<dyn Write + Send>>,
    child: Option<Child>,
    /// Monotonic clock of the host minus the clock of this machine.
    monotonic_offset_ns: i64,
    /// Whether the host has completed all runs; its connection then ends.
    has_ended: bool,
    is_closed: bool,
}

struct Fleet<'a> {
    hosts: Vec<Host>,
    events: Receiver<(usize, Event)>,
    stop: &'a AtomicBool,
}

/// The progress of a host.
enum At {
    Waiting(Status),
    Ended,
}

/// No more events are expected, because [`Fleet::stop`] is set.
struct Stopped;

/// An error, or `Ok(Err(Stopped))` after a stop.
type Heard<T> = Result<std::result::Result<T, Stopped>>;

/// Unwraps the value, or returns from the function: after a stop, with the given value.
macro_rules! heard {
    ($heard:expr, $stopped:expr) => {
        match $heard? {
            Ok(value) => value,
            Err(Stopped) => return $stopped,
        }
    };
}

impl<'a> Fleet<'a> {
    fn new(connections: Vec<Connection>, stop: &'a AtomicBool) -> Self {
        let (sender, events) = channel();
        let host = |(index, connection): (usize, Connection)| {
            let Connection { name, reader, writer, child } = connection;
            let sender = sender.clone();
            thread::spawn(move || listen(index, reader, &sender));
            let named = Named { name, ahead_ns: 0, error_ns: u64::MAX };
            let writer = Some(writer);
            Host {
                named,
                writer,
                child,
                monotonic_offset_ns: 0,
                has_ended: false,
                is_closed: false,
            }
        };
        Self { hosts: connections.into_iter().enumerate().map(host).collect(), events, stop }
    }

    fn run(&mut self, benchmark: &Benchmark, target: &str, sink: &mut dyn Sink) -> Result<Contest> {
        let nothing = || Ok(Contest { end: End::Stopped, results: Vec::new() });
        heard!(self.hello(), nothing());
        for index in 0..self.hosts.len() {
            heard!(self.clocks(index), nothing());
        }
        for index in 0..self.hosts.len() {
            let task = task(benchmark, target, index);
            self.tell(index, &Order::Prepare(Box::new(task)))?;
        }
        let own = heard!(self.ready(), nothing());
        let named = self.named();
        let mut headers = vec![merge::header(&benchmark.plan, &named, &own)];
        headers.extend(own.into_iter().zip(&named).map(|(mut header, host)| {
            header.label.clone_from(&host.name);
            header
        }));
        sink.begin(&headers)?;
        let new = |header| Results { header, runs: Vec::new() };
        let mut results: Vec<Results> = headers.into_iter().map(new).collect();
        let end = self.rounds(&benchmark.plan, &mut results, sink)?;
        Ok(Contest { end, results })
    }

    fn named(&self) -> Vec<Named> {
        self.hosts.iter().map(|host| host.named.clone()).collect()
    }

    /// Starts one activity after another on all hosts, until all have ended.
    fn rounds(&mut self, plan: &Plan, results: &mut [Results], sink: &mut dyn Sink) -> Result<End> {
        let named = self.named();
        loop {
            self.go()?;
            let (runs, at) = heard!(self.gather(), Ok(End::Stopped));
            if runs.len() == self.hosts.len() {
                let merged = merge::run(plan, &named, &runs)?;
                let own = runs.into_iter().map(|own| own.run);
                for (index, run) in std::iter::once(merged).chain(own).enumerate() {
                    sink.keep(index, &run)?;
                    results[index].runs.push(run);
                }
            } else if !runs.is_empty() {
                return Err(Error::invalid("some hosts made runs that others did not make"));
            }
            match at {
                At::Ended => return Ok(End::Complete),
                At::Waiting(status) => sink.progress(status),
            }
        }
    }

    /// Waits until each host is ready for its next activity, or has ended. Returns the runs that
    /// have completed meanwhile.
    fn gather(&mut self) -> Heard<(Vec<Own>, At)> {
        let mut runs: Vec<Option<Own>> = self.hosts.iter().map(|_| None).collect();
        let mut at: Vec<Option<Option<Status>>> = vec![None; self.hosts.len()];
        while at.iter().any(Option::is_none) {
            let (index, report) = heard!(self.next(None), Ok(Err(Stopped)));
            let is_new = at[index].is_none();
            match report {
                Report::Ran { late_ns, run } if is_new && runs[index].is_none() => {
                    runs[index] = Some(Own { late_ns, run: *run });
                }
                Report::Waiting(status) if is_new => at[index] = Some(Some(status)),
                Report::Ended if is_new => {
                    self.hosts[index].has_ended = true;
                    at[index] = Some(None);
                }
                _ => return Err(self.out_of_turn(index)),
            }
        }
        let first = at[0].flatten();
        if let Some(index) = at.iter().position(|other| other.flatten() != first) {
            let what = "it is out of step with the others: install the same version on all hosts";
            return Err(Error::host(&self.hosts[index].named.name, what));
        }
        let at = first.map_or(At::Ended, At::Waiting);
        Ok(Ok((runs.into_iter().flatten().collect(), at)))
    }

    /// Waits for the first message of each host.
    fn hello(&mut self) -> Heard<()> {
        let deadline_ns = Clocks::now().monotonic_ns + HELLO_NS;
        let mut met = vec![false; self.hosts.len()];
        while let Some(missing) = met.iter().position(|met| !met) {
            let (index, report) = match self.next(Some(deadline_ns))? {
                Ok(heard) => heard,
                Err(Stopped) if self.stop.load(Ordering::Relaxed) => return Ok(Err(Stopped)),
                Err(Stopped) => {
                    let what = format!("it has not answered for {} s", HELLO_NS / 1_000_000_000);
                    return Err(Error::host(&self.hosts[missing].named.name, what));
                }
            };
            let Report::Hello { protocol, tool } = report else {
                return Err(self.out_of_turn(index));
            };
            if protocol != PROTOCOL {
                let what = format!(
                    "it runs {tool}, which is not compatible with pumice {}: install the same \
                     version",
                    env!("CARGO_PKG_VERSION")
                );
                return Err(Error::host(&self.hosts[index].named.name, what));
            }
            met[index] = true;
        }
        Ok(Ok(()))
    }

    /// Measures the offset between the clocks of a host and of this machine.
    fn clocks(&mut self, index: usize) -> Heard<()> {
        for _ in 0..CLOCK_QUESTIONS {
            let asked = Clocks::now();
            self.tell(index, &Order::Clocks)?;
            let (from, report) = heard!(self.next(None), Ok(Err(Stopped)));
            let answered = Clocks::now();
            let theirs = match report {
                Report::Clocks(theirs) if from == index => theirs,
                _ => return Err(self.out_of_turn(from)),
            };
            let half_ns = answered.monotonic_ns.saturating_sub(asked.monotonic_ns) / 2;
            let host = &mut self.hosts[index];
            if half_ns < host.named.error_ns {
                host.named.error_ns = half_ns;
                let ahead = |theirs: u64, ours: u64| theirs.wrapping_sub(ours + half_ns) as i64;
                host.named.ahead_ns = ahead(theirs.unix_ns, asked.unix_ns);
                host.monotonic_offset_ns = ahead(theirs.monotonic_ns, asked.monotonic_ns);
            }
        }
        Ok(Ok(()))
    }

    /// Waits until each host has prepared its target.
    fn ready(&mut self) -> Heard<Vec<Header>> {
        let mut headers: Vec<Option<Header>> = self.hosts.iter().map(|_| None).collect();
        while headers.iter().any(Option::is_none) {
            let (index, report) = heard!(self.next(None), Ok(Err(Stopped)));
            match report {
                Report::Ready(header) if headers[index].is_none() => headers[index] = Some(*header),
                _ => return Err(self.out_of_turn(index)),
            }
        }
        Ok(Ok(headers.into_iter().flatten().collect()))
    }

    /// Starts the next activity on all hosts at a common time.
    fn go(&mut self) -> Result<()> {
        let errors = self.hosts.iter().map(|host| host.named.error_ns);
        let lead_ns = errors.max().unwrap_or(0).saturating_mul(4).max(LEAD_NS);
        let begin_ns = Clocks::now().monotonic_ns.saturating_add(lead_ns);
        for index in 0..self.hosts.len() {
            let at_ns = begin_ns.saturating_add_signed(self.hosts[index].monotonic_offset_ns);
            self.tell(index, &Order::Go { at_ns })?;
        }
        Ok(())
    }

    fn tell(&mut self, index: usize, order: &Order) -> Result<()> {
        let writer = self.hosts[index].writer.as_mut();
        if writer.is_some_and(|writer| write(&mut **writer, order).is_ok()) {
            return Ok(());
        }
        // The host may have sent the reason before it disconnected.
        let said = self.next_of(index);
        Err(said.unwrap_or_else(|| Error::host(&self.hosts[index].named.name, ENDED)))
    }

    /// Returns the error of a host that has stopped listening, if it sent one.
    fn next_of(&mut self, index: usize) -> Option<Error> {
        loop {
            match self.events.recv_timeout(POLL).ok()? {
                (from, Event::Said(Report::Failed(what))) if from == index => {
                    return Some(Error::host(&self.hosts[index].named.name, what));
                }
                (from, Event::Closed) => {
                    self.hosts[from].is_closed = true;
                    if from == index {
                        return None;
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the next message, or [`Stopped`] after a stop or at the deadline.
    fn next(&mut self, deadline_ns: Option<u64>) -> Heard<(usize, Report)> {
        loop {
            if self.stop.load(Ordering::Relaxed)
                || deadline_ns.is_some_and(|deadline| Clocks::now().monotonic_ns >= deadline)
            {
                return Ok(Err(Stopped));
            }
            let (index, event) = match self.events.recv_timeout(POLL) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::invalid(ENDED)),
            };
            if matches!(event, Event::Closed) {
                self.hosts[index].is_closed = true;
                // This host may have been faster than the others.
                if self.hosts[index].has_ended {
                    continue;
                }
            }
            let name = &self.hosts[index].named.name;
            return match event {
                Event::Said(Report::Failed(what)) => Err(Error::host(name, what)),
                Event::Said(report) => Ok(Ok((index, report))),
                Event::Garbled(what) => Err(Error::host(name, what)),
                Event::Closed => Err(Error::host(name, ENDED)),
            };
        }
    }

    fn out_of_turn(&self, index: usize) -> Error {
        Error::host(&self.hosts[index].named.name, "a message out of turn")
    }

    /// Closes all connections, waits until all hosts have ended, and kills those that do not end.
    fn end(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.writer = None);
        let deadline_ns = Clocks::now().monotonic_ns + END_NS;
        while self.hosts.iter().any(|host| !host.is_closed)
            && Clocks::now().monotonic_ns < deadline_ns
        {
            match self.events.recv_timeout(POLL) {
                Ok((index, Event::Closed)) => self.hosts[index].is_closed = true,
                Err(RecvTimeoutError::Disconnected) => break,
                _ => {}
            }
        }
        for host in &mut self.hosts {
            let Some(child) = &mut host.child else { continue };
            if !host.is_closed {
                // The host has already ended, or ends now.
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

/// The error for a host that has disconnected without a message.
const ENDED: &str = "the connection has ended";

/// Forwards the messages of a host.
fn listen(index: usize, reader: Box<dyn Read + Send>, events: &Sender<(usize, Event)>) {
    let mut reader = BufReader::new(reader);
    loop {
        let event = match read(&mut reader) {
            Ok(Some(report)) => Event::Said(report),
            Ok(None) => break,
            Err(error) => {
                let garbled = Event::Garbled(error.to_string());
                // The receiver may already be closed.
                let _ = events.send((index, garbled));
                break;
            }
        };
        if events.send((index, event)).is_err() {
            return;
        }
    }
    let _ = events.send((index, Event::Closed));
}

/// Returns the benchmark of one host.
fn task(benchmark: &Benchmark, target: &str, index: usize) -> Task {
    let Benchmark { title, about, plan, destroy, begun_unix_s } = benchmark.clone();
    let mut plan = plan;
    if is_shared(target) {
        let part = (plan.end_bytes() - plan.begin_bytes()).next_multiple_of(PART_BYTES);
        for test in &mut plan.tests {
            test.workload.shift_bytes += part * index as u64;
        }
    }
    let (target, host) = (target.to_owned(), index as u32);
    Task { title, about, plan, target, destroy, begun_unix_s, host }
}

/// Returns whether the target is the same for all hosts.
fn is_shared(target: &str) -> bool {
    target.split_once("://").is_some_and(|(scheme, _)| scheme.starts_with("nbd"))
}

#[cfg(test)]
mod tests {
    //! Goal: a host that ends before the others is not a failure, but a host that disconnects is.
    //! Method: events in a given order.
    use super::*;

    fn gathered(events: Vec<(usize, Event)>) -> Result<bool> {
        let host = |name: &str| Host {
            named: Named { name: name.into(), ahead_ns: 0, error_ns: 0 },
            writer: None,
            child: None,
            monotonic_offset_ns: 0,
            has_ended: false,
            is_closed: false,
        };
        let (sender, receiver) = channel();
        events.into_iter().for_each(|event| sender.send(event).unwrap());
        let stop = AtomicBool::new(false);
        let hosts = vec![host("a"), host("b")];
        let mut fleet = Fleet { hosts, events: receiver, stop: &stop };
        let Ok((runs, at)) = fleet.gather()? else { panic!("stopped") };
        assert!(runs.is_empty());
        Ok(matches!(at, At::Ended))
    }

    #[test]
    fn a_host_may_end_before_the_others() {
        let ended = || Event::Said(Report::Ended);
        assert!(gathered(vec![(1, ended()), (1, Event::Closed), (0, ended())]).unwrap());
        let gone = gathered(vec![(1, Event::Closed), (0, ended())]).unwrap_err();
        assert_eq!(gone.to_string(), "b: the connection has ended");
    }
}
