//! Goal: a target receives exactly the requests of the workload, at exactly its depth, and only the
//! requests are timed. Method: a target that records its requests and completes them in virtual
//! time, where durations are exact.

use std::sync::Arc;

use super::*;
use crate::workload::Access;
use pumice_drive::base::AlignedBuffer;

const MS: u64 = 1_000_000;

/// The durations of a target's requests and flushes.
#[derive(Clone, Copy)]
struct Pace {
    request_ns: u64,
    flush_ns: u64,
}

const PACE: Pace = Pace { request_ns: MS, flush_ns: 10 * MS };

#[derive(Default)]
struct Seen {
    /// Name, offset and length of each request, in start order.
    calls: Vec<(&'static str, u64, u64)>,
    now: u32,
    /// Maximum number of requests in flight.
    most: u32,
}

/// Number of the request that fails.
struct Traced {
    runtime: Runtime,
    pace: Pace,
    seen: Rc<RefCell<Seen>>,
    failing: Option<usize>,
}

impl Traced {
    async fn answer(&self, name: &'static str, offset: u64, len: u64, ns: u64) -> Result<()> {
        let number = {
            let mut seen = self.seen.borrow_mut();
            seen.calls.push((name, offset, len));
            seen.now += 1;
            seen.most = seen.most.max(seen.now);
            seen.calls.len() - 1
        };
        self.runtime.sleep_ns(ns).await;
        self.seen.borrow_mut().now -= 1;
        match self.failing {
            Some(failing) if failing == number => Err(Error::unsupported("as wanted")),
            _ => Ok(()),
        }
    }
}

impl Target for Traced {
    async fn read(&self, offset: u64, buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let len = buffer.len() as u64;
        (buffer, self.answer("read", offset, len, self.pace.request_ns).await)
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        self.answer("write", offset, buffer.len() as u64, self.pace.request_ns).await
    }

    async fn flush(&self) -> Result<()> {
        self.answer("flush", 0, 0, self.pace.flush_ns).await
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.answer("trim", offset, len, self.pace.request_ns).await
    }

    async fn close(&self) -> Result<()> {
        self.answer("close", 0, 0, 0).await
    }
}

/// Runs a workload in virtual time.
fn traced(workload: Workload, failing: Option<usize>) -> (Result<Sample>, Seen) {
    workload.check().unwrap();
    let runtime = Runtime::simulated();
    let seen = Rc::new(RefCell::new(Seen::default()));
    let target = Traced { runtime: runtime.clone(), pace: PACE, seen: Rc::clone(&seen), failing };
    let sample = on_target(&runtime, target, &run(workload), 0, &AtomicBool::new(false));
    runtime.drop_tasks();
    (sample, seen.take())
}

fn alone(operation: Operation) -> Workload {
    Workload { depth: 1, ..workload(operation) }
}

#[test]
fn sequential_operations_ask_for_every_record_in_their_order() {
    use Operation::*;
    let read = |record: u64| ("read", record * RECORD, RECORD);
    let write = |record: u64| ("write", record * RECORD, RECORD);
    let (flush, close) = (("flush", 0, 0), ("close", 0, 0));
    let half = RECORDS / 2;
    let is_here = |operation: &Operation| !operation.is_timed() && operation.file_set().is_none();
    for operation in Operation::ALL.into_iter().filter(is_here) {
        let mut wanted: Vec<_> = match operation {
            Write | Rewrite | FWrite | FRewrite => (0..RECORDS).map(write).collect(),
            // Four adjacent stretches.
            SurfaceRead => (0..RECORDS).map(read).collect(),
            Read | Reread | FRead | FReread => (0..RECORDS).map(read).collect(),
            BackwardRead => (0..RECORDS).rev().map(read).collect(),
            StrideRead => (0..17).flat_map(|lane| (lane..RECORDS).step_by(17)).map(read).collect(),
            Copy => (0..half).flat_map(|record| [read(record), write(half + record)]).collect(),
            _ => panic!("{operation:?} is not known here"),
        };
        if operation.writes() {
            wanted.push(flush);
        }
        wanted.push(close);
        let (sample, seen) = traced(alone(operation), None);
        assert_eq!(seen.calls, wanted, "{operation:?}");
        let sample = sample.unwrap();
        let steps = if operation == Copy { half } else { RECORDS };
        assert_eq!((sample.operations, sample.host_bytes), (steps, steps * RECORD));
        let written = if operation.writes() { steps * RECORD } else { 0 };
        assert_eq!(sample.written_bytes, written, "{operation:?}");
    }
}

#[test]
fn timed_operations_stay_in_the_span_as_long_as_asked() {
    use Operation::*;
    const SHIFT: u64 = 63 * 512;
    for operation in Operation::ALL.into_iter().filter(|operation| operation.is_timed()) {
        let depth = if operation.is_serial() { 1 } else { 4 };
        let timed = Workload { depth, shift_bytes: SHIFT, ..workload(operation) };
        let (sample, seen) = traced(timed, None);
        let names: &[&str] = match operation {
            RandomRead | AccessRead | BurstRead => &["read"],
            RandomWrite | RecordRewrite => &["write"],
            Mixed => &["read", "write"],
            Trim => &["trim"],
            _ => panic!("{operation:?} is not known here"),
        };
        let ending = if operation.writes() { 2 } else { 1 };
        let (requests, end) = seen.calls.split_at(seen.calls.len() - ending);
        assert_eq!(end[ending - 1].0, "close");
        // Total of 50 ms, with one or four requests at a time.
        let count = 50 * depth as usize;
        let counted = sample.unwrap().operations as usize;
        assert_eq!((requests.len(), counted), (count, count), "{operation:?}");
        for name in names {
            assert!(requests.iter().any(|request| request.0 == *name), "{operation:?}: no {name}");
        }
        for (name, offset, len) in requests {
            assert!(names.contains(name), "{operation:?} asks for a {name}");
            let record = (offset - SHIFT) / RECORD;
            assert_eq!((*offset, *len), (SHIFT + record * RECORD, RECORD));
            let is_first_only = matches!(operation, RecordRewrite | BurstRead);
            assert!(record < RECORDS && (record == 0 || !is_first_only));
        }
    }
}

#[test]
fn as_many_requests_are_in_flight_as_asked() {
    for depth in [1, 4, 32] {
        for operation in [Operation::Write, Operation::RandomRead, Operation::Copy] {
            let (sample, seen) = traced(Workload { depth, ..workload(operation) }, None);
            assert_eq!(seen.most, depth, "{operation:?}");
            sample.unwrap();
        }
    }
}

#[test]
fn latencies_are_the_requests_own() {
    let (sample, _) = traced(Workload { depth: 32, ..workload(Operation::Read) }, None);
    let sample = sample.unwrap();
    assert_eq!((sample.seconds, sample.flush_seconds), (0.002, 0.0));
    assert_eq!(sample.latency.count(), RECORDS);
    assert_eq!(sample.intervals.len(), 1);
    assert_eq!(sample.intervals[0].latency_ns_sum, RECORDS * MS);
    assert_eq!(sample.intervals[0].latency_ns_max, MS);
    // Both halves of a copy are one request.
    let (sample, _) = traced(alone(Operation::Copy), None);
    assert_eq!(sample.unwrap().intervals[0].latency_ns_max, 2 * MS);
}

#[test]
fn flushes_come_and_count_as_asked() {
    for (flush, flushes, seconds) in
        [(Flush::Timed, 1, 0.074), (Flush::Untimed, 1, 0.064), (Flush::EachWrite, 65, 0.714)]
    {
        let (sample, seen) = traced(Workload { flush, ..alone(Operation::Write) }, None);
        let found = seen.calls.iter().filter(|call| call.0 == "flush").count();
        assert_eq!(found, flushes, "{flush:?}");
        let sample = sample.unwrap();
        assert!((sample.seconds - seconds).abs() < 1e-9, "{flush:?}: {}", sample.seconds);
        assert_eq!(sample.flush_seconds, 0.01);
        if flush == Flush::EachWrite {
            assert!(seen.calls[..128].chunks(2).all(|pair| pair[1].0 == "flush"));
            assert_eq!(sample.intervals[0].latency_ns_max, 11 * MS);
        }
    }
}

#[test]
fn a_failure_ends_the_run_and_is_its_result() {
    for operation in [Operation::Write, Operation::Read, Operation::RandomRead, Operation::Copy] {
        let (sample, seen) = traced(alone(operation), Some(5));
        assert_eq!(sample.unwrap_err().to_string(), "as wanted", "{operation:?}");
        let requests = seen.calls.iter().filter(|call| ["read", "write"].contains(&call.0));
        assert_eq!(requests.count(), 6, "{operation:?} went on");
        assert_eq!(seen.calls.last().unwrap().0, "close");
    }
}

/// A target that completes requests immediately, without yielding the thread.
struct Immediate;

impl Target for Immediate {
    async fn read(&self, _offset: u64, buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        (buffer, Ok(()))
    }

    async fn write(&self, _offset: u64, _buffer: &Arc<AlignedBuffer>) -> Result<()> {
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn trim(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_run_on_a_target_that_never_waits_can_be_stopped() {
    const SECONDS: f64 = 20.0;
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let run = run(Workload { seconds: SECONDS, ..alone(Operation::RandomRead) });
    let sample = on_target(&runtime, Immediate, &run, 0, &AtomicBool::new(true)).unwrap();
    assert!(sample.operations > 0 && sample.seconds < SECONDS / 2.0, "{} s", sample.seconds);
}

#[test]
fn a_mix_asks_for_every_size_and_pauses_between_bursts() {
    let access = |bytes, reads_percent| Access {
        bytes,
        share_percent: 50,
        reads_percent,
        random_percent: 100,
        align_bytes: bytes,
        burst: 5,
        pause_ms: 0,
    };
    let mut mixed = alone(Operation::Mixed);
    mixed.record_bytes = RECORD;
    mixed.mix = vec![access(512, 100), access(RECORD, 0)];
    let (sample, seen) = traced(mixed.clone(), None);
    let sample = sample.unwrap();
    let calls = |name: &str| -> Vec<(u64, u64)> {
        let calls = seen.calls.iter().filter(|call| call.0 == name);
        calls.map(|(_, offset, len)| (*offset, *len)).collect()
    };
    let (reads, writes) = (calls("read"), calls("write"));
    assert!(reads.len() > 10 && writes.len() > 10, "{} {}", reads.len(), writes.len());
    assert!(reads.iter().all(|(offset, len)| *len == 512 && offset.is_multiple_of(512)));
    assert!(writes.iter().all(|(offset, len)| *len == RECORD && offset.is_multiple_of(RECORD)));
    let (read, written) = (reads.len() as u64 * 512, writes.len() as u64 * RECORD);
    assert_eq!((sample.host_bytes, sample.written_bytes), (read + written, written));
    // Total of 50 ms: five requests of one millisecond, each followed by a pause of ten.
    mixed.mix.iter_mut().for_each(|access| access.pause_ms = 10);
    let (sample, _) = traced(mixed, None);
    assert_eq!(sample.unwrap().operations, 20);
}

#[test]
fn random_requests_may_end_with_the_span_and_ordered_ones_by_time() {
    let counts = |operation, ends, seconds| {
        let (sample, _) = traced(Workload { ends, seconds, ..alone(operation) }, None);
        sample.unwrap().operations
    };
    assert_eq!(counts(Operation::RandomRead, Ends::Span, 0.001), RECORDS);
    assert_eq!(counts(Operation::RandomRead, Ends::First, 0.02), 20);
    assert_eq!(counts(Operation::Read, Ends::First, 1.0), RECORDS);
    assert_eq!(counts(Operation::Read, Ends::Time, 1.0), 1000);
}
