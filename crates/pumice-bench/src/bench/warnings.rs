//! Warnings about runs that could mislead a reader.
//!
//! A correct measurement may still answer a different question from the intended one. Each warning
//! is a sentence that contains the observed number.

use crate::bench::engine::Interval;
use crate::bench::results::{MachineLoad, RunResult};
use crate::workload::{Cache, Plan};
use crate::workload::{Flush, Operation};
use pumice_drive::base::units::format_size;

/// Share of the threads' time above which data generation limits the measurement.
const GENERATION_SHARE_MAX: f64 = 0.25;

/// Processor share above which the run may have measured the bench itself.
const PROCESSOR_SHARE_MAX: f64 = 0.95;

/// Minimum duration and number of requests of a meaningful run.
const SECONDS_MIN: f64 = 0.1;
const OPERATIONS_MIN: u64 = 16;

/// Ratio between the speeds of a run's second and first half. Outside these limits, the target has
/// changed its state.
const HALVES_MIN: f64 = 0.67;
const HALVES_MAX: f64 = 1.5;

/// Minimum number of intervals for comparing the halves.
const INTERVALS_MIN: usize = 10;

/// Minimum number of bytes that the device must have read, as a share of the bytes read by the
/// host.
const READ_SHARE_MIN: f64 = 0.5;

/// Processor share above which other programs may have disturbed a run, and the share of time with
/// a waiting task below which they have not.
const OTHERS_SHARE_MAX: f64 = 0.25;
const PRESSURE_MIN: f64 = 0.1;

/// Processor share above which the hypervisor disturbed a run.
const STOLEN_SHARE_MAX: f64 = 0.05;

/// Bytes that the device may write during a run in addition to the bench's writes: as a multiple of
/// those writes, or, for a run that reads, as a share of the bytes read. The limits allow for the
/// metadata of a file system. Every second run concurrent with other writers exceeded both.
const WRITTEN_TIMES_MAX: f64 = 1.5;
const WRITTEN_SHARE_MAX: f64 = 0.25;

/// Bytes that the device may always write in addition, for a journal.
const WRITTEN_BYTES_MIN: f64 = 1e6;

/// Returns the warnings about a run. `memory_bytes` is the memory size of the machine. `in_process`
/// means that the target is a drive in this process, whose device moves fewer bytes than the host
/// and which uses the processor.
pub(super) fn warnings(
    plan: &Plan,
    run: &RunResult,
    memory_bytes: Option<u64>,
    in_process: bool,
) -> Vec<String> {
    let workload = &plan.tests[run.test].workload;
    let mut warnings = Vec::new();
    let mut say = |doubt: String| warnings.push(doubt);
    let writes = workload.operation.writes() && workload.operation != Operation::Trim;
    if writes && workload.flush == Flush::Untimed {
        say(format!("the flush of {:.2} s at the end is not counted", run.sample.flush_seconds));
    }
    let is_warm = !plan.direct && !writes && plan.cache == Cache::Warm;
    let fits = memory_bytes.filter(|memory| is_warm && workload.span_bytes < *memory);
    if let Some(memory) = fits {
        let (span, memory) = (format_size(workload.span_bytes), format_size(memory));
        say(format!("the span of {span} fits in the memory of {memory}: reads may come from it"));
    }
    if run.sample.generation_share > GENERATION_SHARE_MAX {
        let percent = run.sample.generation_share * 100.0;
        say(format!("data generation took {percent:.0} % of the time"));
    }
    if run.processor_share > PROCESSOR_SHARE_MAX && !in_process {
        let percent = run.processor_share * 100.0;
        say(format!(
            "the bench used the processor {percent:.0} % of the time and may be the limit"
        ));
    }
    // A copied file is one request, regardless of its duration.
    let is_copy = workload.operation.file_set().is_some();
    let (operations, seconds) = (run.sample.operations, run.sample.seconds);
    match is_copy {
        true if seconds < SECONDS_MIN => say(format!("the copy took only {seconds:.3} s")),
        false if seconds < SECONDS_MIN || operations < OPERATIONS_MIN => {
            say(format!("only {operations} requests in {seconds:.3} s"));
        }
        _ => {}
    }
    if let Some(ratio) =
        halves(&run.sample.intervals).filter(|r| !(HALVES_MIN..=HALVES_MAX).contains(r))
    {
        say(format!("the second half ran at {ratio:.2} times the speed of the first"));
    }
    // A burst is expected to be served from a cache.
    let reads = !writes && !matches!(workload.operation, Operation::Trim | Operation::BurstRead);
    let reads = reads && run.sample.host_bytes > 0;
    if let Some(device) = run.device.filter(|_| reads && !in_process) {
        let share = device.read as f64 / run.sample.host_bytes as f64;
        if share < READ_SHARE_MIN {
            let percent = share * 100.0;
            say(format!(
                "the device below read only {percent:.0} % of the bytes: the rest came from a \
                 cache, or is stored compressed"
            ));
        }
    }
    if !in_process {
        warnings.extend(others_at_device(plan, run));
    }
    warnings.extend(run.machine.iter().flat_map(disturbances));
    warnings
}

/// Returns a warning if the device wrote much more than the bench.
fn others_at_device(plan: &Plan, run: &RunResult) -> Option<String> {
    let operation = plan.tests[run.test].workload.operation;
    let written = run.device?.written as f64;
    let own = run.sample.written_bytes as f64;
    if operation == Operation::Trim || written < own + WRITTEN_BYTES_MIN {
        return None;
    }
    if own > 0.0 {
        let times = written / own;
        return (times > WRITTEN_TIMES_MAX).then(|| {
            format!(
                "the device below wrote {times:.1} times the bytes of the bench: other programs \
                 wrote, too, or the file system adds writes"
            )
        });
    }
    (written > run.sample.host_bytes as f64 * WRITTEN_SHARE_MAX).then(|| {
        let (written, read) = (written / 1e6, run.sample.host_bytes as f64 / 1e6);
        format!(
            "other programs wrote {written:.0} MB to the device below while the bench read \
             {read:.0} MB"
        )
    })
}

/// Returns the warnings about other load on the machine.
fn disturbances(machine: &MachineLoad) -> Vec<String> {
    let mut warnings = Vec::new();
    let &MachineLoad { processors, others_processors: others, .. } = machine;
    let pressure = machine.processor_pressure;
    let waited = pressure.is_none_or(|pressure| pressure > PRESSURE_MIN);
    if others > processors * OTHERS_SHARE_MAX && waited {
        let pressure = pressure.map(|share| share * 100.0);
        let waited = pressure.map_or(String::new(), |percent| {
            format!(", and some program waited for one {percent:.0} % of the time")
        });
        warnings.push(format!(
            "others, including the target's server, used {others:.1} of {processors} \
             processors{waited}"
        ));
    }
    let stolen = machine.stolen_processors / processors;
    if stolen > STOLEN_SHARE_MAX {
        let percent = stolen * 100.0;
        warnings.push(format!("the hypervisor took {percent:.0} % of the processor time"));
    }
    if let Some(count) = machine.processor_throttles.filter(|count| *count > 0) {
        warnings.push(format!("the processor slowed down {count} times because it was hot"));
    }
    let hot = machine.device_celsius.zip(machine.device_celsius_limit);
    if let Some((celsius, limit)) = hot.filter(|(celsius, limit)| celsius >= limit) {
        warnings.push(format!(
            "the drive had {celsius:.0} degrees Celsius, at or above its limit of {limit:.0}: it \
             may have slowed down"
        ));
    }
    warnings
}

/// Returns the number of requests in the second half of a run's complete intervals, divided by the
/// number in the first half.
fn halves(intervals: &[Interval]) -> Option<f64> {
    // The last interval is incomplete.
    let whole = intervals.get(..intervals.len().saturating_sub(1))?;
    if whole.len() < INTERVALS_MIN {
        return None;
    }
    let operations = |part: &[Interval]| part.iter().map(|one| one.operations).sum::<u64>() as f64;
    let half = whole.len() / 2;
    let (first, second) = (operations(&whole[..half]), operations(&whole[whole.len() - half..]));
    (first > 0.0).then(|| second / first)
}

#[cfg(test)]
mod tests {
    //! Goal: a run that could mislead has a warning, and a valid run has none.
    use super::*;
    use crate::bench::engine::Sample;
    use crate::bench::results::{DeviceBytes, sample};
    use crate::workload::{Unit, Workload};

    fn plan(operation: Operation) -> Plan {
        let workload =
            Workload { depth: 1, span_bytes: 1 << 20, ..sample::workload(operation, 4096) };
        let tests = vec![sample::test("test", Unit::Rate, workload)];
        Plan { tests, direct: false, ..sample::plan() }
    }

    fn good() -> RunResult {
        let run = sample::run(0, 1, 0, 2200.0);
        let interval = Interval { operations: 100, ..Interval::default() };
        RunResult {
            test: 0,
            device: run.device.map(|bytes| DeviceBytes { read: 2200 * 4096, written: 0, ..bytes }),
            sample: Sample {
                flush_seconds: 0.1,
                written_bytes: 0,
                intervals: vec![interval; 22],
                ..run.sample
            },
            ..run
        }
    }

    #[test]
    fn a_good_run_is_not_doubted() {
        for operation in [Operation::RandomRead, Operation::RandomWrite, Operation::Trim] {
            assert_eq!(
                warnings(&plan(operation), &good(), Some(1 << 30), false),
                Vec::<String>::new()
            );
        }
    }

    const QUIET: MachineLoad = MachineLoad {
        processors: 4.0,
        others_processors: 0.1,
        stolen_processors: 0.0,
        processor_pressure: Some(0.02),
        processor_mhz: None,
        processor_celsius: Some(95.0),
        processor_throttles: Some(0),
        device_celsius: Some(60.0),
        device_celsius_limit: Some(81.0),
    };

    /// Guards against measuring the load of other programs without reporting it.
    #[test]
    fn disturbances_are_named() {
        let machine = |change: fn(&mut MachineLoad)| {
            let mut machine = QUIET;
            change(&mut machine);
            disturbances(&machine)
        };
        assert_eq!(machine(|_| ()), Vec::<String>::new());
        // Other programs run, but do not slow down the bench.
        assert_eq!(machine(|it| it.others_processors = 3.0), Vec::<String>::new());
        for (warnings, words) in [
            (
                machine(|it| {
                    (it.others_processors, it.processor_pressure) = (1.2, Some(0.4));
                }),
                "used 1.2 of 4 processors, and some program waited for one 40 % of the time",
            ),
            (
                machine(|it| (it.others_processors, it.processor_pressure) = (3.0, None)),
                "used 3.0 of 4 processors",
            ),
            (machine(|it| it.stolen_processors = 0.4), "took 10 % of the processor time"),
            (machine(|it| it.processor_throttles = Some(3)), "slowed down 3 times"),
            (machine(|it| it.device_celsius = Some(82.0)), "82 degrees Celsius, at or above"),
        ] {
            assert!(warnings.len() == 1 && warnings[0].contains(words), "{words}: {warnings:?}");
        }
        let mut run = good();
        run.machine = Some(MachineLoad { stolen_processors: 1.0, ..QUIET });
        assert_eq!(warnings(&plan(Operation::Read), &run, None, false).len(), 1);
    }

    #[test]
    fn other_writers_are_named() {
        let (read, write) = (plan(Operation::Read), plan(Operation::Write));
        let mut run = good();
        let wrote = |run: &mut RunResult, bytes| {
            run.device.as_mut().expect("counted").written = bytes;
        };
        wrote(&mut run, 1_900_000);
        assert_eq!(warnings(&read, &run, None, false), Vec::<String>::new());
        wrote(&mut run, 3_000_000);
        let told = warnings(&read, &run, None, false);
        assert!(told.len() == 1 && told[0].contains("other programs wrote 3 MB"), "{told:?}");
        run.sample.written_bytes = run.sample.host_bytes;
        wrote(&mut run, 2 * 2200 * 4096);
        let told = warnings(&write, &run, None, false);
        assert!(told.len() == 1 && told[0].contains("2.0 times the bytes"), "{told:?}");
        wrote(&mut run, 2200 * 4096 + 900_000);
        assert_eq!(warnings(&write, &run, None, false), Vec::<String>::new());
    }

    #[test]
    fn each_trap_is_named() {
        let (read, mut write) = (plan(Operation::Read), plan(Operation::Write));
        let mut warm = read.clone();
        warm.cache = Cache::Warm;
        write.tests[0].workload.flush = Flush::Untimed;
        let with = |change: fn(&mut RunResult)| {
            let mut run = good();
            change(&mut run);
            run
        };
        for (plan, run, words) in [
            (&write, good(), "flush of 0.10 s"),
            (&warm, good(), "fits in the memory"),
            (&read, with(|run| run.sample.generation_share = 0.3), "30 % of the time"),
            (&read, with(|run| run.processor_share = 0.99), "processor 99 %"),
            (&read, with(|run| run.sample.operations = 3), "only 3 requests"),
            (&read, with(|run| run.sample.seconds = 0.01), "in 0.010 s"),
            (&read, with(|run| run.device.as_mut().expect("counted").read = 0), "only 0 %"),
            (
                &read,
                with(|run| {
                    run.sample.intervals[11..].iter_mut().for_each(|one| one.operations = 50)
                }),
                "0.50 times",
            ),
        ] {
            let warnings = warnings(plan, &run, Some(1 << 30), false);
            assert!(warnings.len() == 1 && warnings[0].contains(words), "{words}: {warnings:?}");
        }
        assert_eq!(warnings(&warm, &good(), Some(1 << 10), false), Vec::<String>::new());
        // A drive in this process also issues its own I/O.
        let moved = with(|run| run.device.as_mut().expect("counted").written = 1 << 30);
        assert_eq!(warnings(&read, &moved, None, true), Vec::<String>::new());
        // A copied file is one request, and its copy may also be short.
        let copy = with(|run| (run.sample.operations, run.sample.seconds) = (1, 0.01));
        let mut copies = plan(Operation::RandomRead);
        copies.tests[0].workload.operation = Operation::CopyFile;
        let of_copy = |run: &RunResult| warnings(&copies, run, None, false);
        assert_eq!(of_copy(&copy), ["the copy took only 0.010 s"]);
        assert_eq!(of_copy(&with(|run| run.sample.operations = 1)), Vec::<String>::new());
        let burst = plan(Operation::BurstRead);
        let cached = with(|run| run.device.as_mut().expect("counted").read = 0);
        assert_eq!(warnings(&burst, &cached, None, false), Vec::<String>::new());
        let mut unread = good();
        unread.device =
            Some(DeviceBytes { read: 0, written: 0, discarded: 0, smart_written: None });
        unread.processor_share = 1.1;
        assert_eq!(warnings(&read, &unread, None, true), Vec::<String>::new());
    }
}
