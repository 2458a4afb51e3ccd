//! The agent on each host: runs the plan, and waits for the other hosts before each activity.

use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::message::{Clocks, Order, PROTOCOL, Report, Task, read, write};
use crate::bench::results::{Header, RunResult};
use crate::bench::runner::End;
use crate::bench::sink::{Sink, Status};
use crate::bench::target::Location;
use crate::bench::{Benchmark, Finished};
use crate::error::{Error, Result};

/// Runs the benchmark that the coordinating machine requests over `input`, and reports over
/// `output`. The end of `input` sets `stop`, which ends the benchmark.
///
/// # Errors
/// The coordinating machine cannot be reached or violates the protocol. An error of the benchmark
/// is reported to that machine.
pub fn serve(
    input: impl Read + Send + 'static,
    output: impl Write,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let (sender, orders) = channel();
    let ended = Arc::clone(stop);
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        // An invalid order also ends the connection.
        while let Ok(Some(order)) = read::<Order>(&mut input) {
            if sender.send(order).is_err() {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    let mut agent = Agent { output, orders, stop: Arc::clone(stop), late_ns: 0 };
    let tool = format!("pumice {}", env!("CARGO_PKG_VERSION"));
    agent.say(&Report::Hello { protocol: PROTOCOL, tool })?;
    let task = loop {
        match agent.orders.recv() {
            Ok(Order::Clocks) => agent.say(&Report::Clocks(Clocks::now()))?,
            Ok(Order::Prepare(task)) => break *task,
            Ok(Order::Go { .. }) => return Err(Error::invalid("a start message before any task")),
            Err(_) => return Ok(()),
        }
    };
    match agent.run(task) {
        Ok(End::Complete) => agent.say(&Report::Ended),
        Ok(End::Stopped) => Ok(()),
        Err(error) => agent.say(&Report::Failed(error.chain())),
    }
}

struct Agent<W> {
    output: W,
    orders: Receiver<Order>,
    stop: Arc<AtomicBool>,
    /// The start delay of the last activity.
    late_ns: u64,
}

impl<W: Write> Agent<W> {
    fn run(&mut self, task: Task) -> Result<End> {
        let Task { title, about, plan, target, destroy, begun_unix_s, host } = task;
        plan.check()?;
        let location = Location::parse(&target)?;
        if let Location::Sim(_) = location {
            return Err(Error::unsupported("a simulated drive has no other hosts"));
        }
        let stop = Arc::clone(&self.stop);
        let benchmark = Benchmark { title, about, plan, destroy, begun_unix_s };
        let Finished { end, .. } = benchmark.run_as(host, &location, &stop, self)?;
        Ok(end)
    }

    fn say(&mut self, report: &Report) -> Result<()> {
        let failed = |error| Error::io("cannot report to the coordinating machine", error);
        write(&mut self.output, report).map_err(failed)
    }

    /// Waits until all hosts are ready, and then until the common start time.
    fn wait(&mut self) {
        if let Ok(Order::Go { at_ns }) = self.orders.recv() {
            let left_ns = at_ns.saturating_sub(Clocks::now().monotonic_ns);
            // No order is sent meanwhile, so this is a sleep that ends early if the connection
            // ends.
            let waited = self.orders.recv_timeout(Duration::from_nanos(left_ns));
            if waited.err() == Some(RecvTimeoutError::Timeout) {
                self.late_ns = Clocks::now().monotonic_ns.saturating_sub(at_ns);
                return;
            }
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl<W: Write> Sink for Agent<W> {
    fn begin(&mut self, headers: &[Header]) -> Result<()> {
        self.say(&Report::Ready(Box::new(headers[0].clone())))?;
        self.wait();
        Ok(())
    }

    fn progress(&mut self, status: Status) {
        match self.say(&Report::Waiting(status)) {
            Ok(()) => self.wait(),
            Err(_) => self.stop.store(true, Ordering::Relaxed),
        }
    }

    fn keep(&mut self, _target: usize, run: &RunResult) -> Result<()> {
        self.say(&Report::Ran { late_ns: self.late_ns, run: Box::new(run.clone()) })
    }
}
