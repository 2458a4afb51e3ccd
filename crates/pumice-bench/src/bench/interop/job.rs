//! Exports a plan as a job file for fio: the same tests on data as similar as fio can generate.
//!
//! Comments at the affected options of the job state the differences.

use std::fmt::Write;

use crate::workload::{Cache, Level, Plan, Test};
use crate::workload::{Flush, Operation, Pattern, Workload};

/// Returns the job file, with one job for each test at each level, in order.
///
/// `target` is the file or device for fio, as the value of `filename=`. A test without a
/// counterpart in fio becomes a comment.
pub fn fio_job(plan: &Plan, target: &str) -> String {
    let mut job = String::new();
    let mut line = |text: &str| {
        job += text;
        job.push('\n');
    };
    line("; A plan of pumice bench, as far as fio supports it.");
    line("; fio has no rounds: run this file once for each round of the plan and append each");
    line(&format!("; --output-format=json+ output to a file. The plan has {} rounds.", plan.runs));
    line("; Latencies exclude the generation of data, as in the plan.");
    if plan.fills || plan.precondition > 0 {
        line("; Before tests that read, the plan writes the level's data: write it with a job of");
        line("; your own, or reads return the data of the previous job.");
    }
    line("");
    line("[global]");
    line(&format!("filename={}", value(target)));
    line("ioengine=libaio");
    line(&format!("direct={}", u8::from(plan.direct)));
    if !plan.direct {
        line("; With the page cache, libaio waits for each request in turn.");
        line(&format!("invalidate={}", u8::from(plan.cache == Cache::Dropped)));
    }
    line(&format!("randseed={}", plan.seed));
    line("allow_file_create=1");
    line("fallocate=none");
    line("thread=1");
    line("group_reporting=1");
    line("stonewall");
    for test in &plan.tests {
        for level in &plan.levels {
            let name = match plan.levels.len() {
                1 => test.name.clone(),
                _ => format!("{}, {}", test.name, level.name),
            };
            line("");
            line(section(&name, test, level, plan.warm_up_seconds).trim_end());
        }
    }
    job
}

/// Returns one job.
fn section(name: &str, test: &Test, level: &Level, warm_up_seconds: f64) -> String {
    let workload = &test.workload;
    // A bracket or a line break would end the name.
    let name: String = name.chars().map(|c| if "[]\n\r".contains(c) { ' ' } else { c }).collect();
    let mut job = String::new();
    if !workload.mix.is_empty() {
        return format!("; [{name}]: a mix of several kinds of requests is not supported\n");
    }
    let Some(direction) = direction(workload) else {
        return format!("; [{name}]: fio has no {}\n", workload.operation.name());
    };
    let _ = writeln!(job, "[{name}]\n{direction}");
    let _ = writeln!(job, "bs={}\niodepth={}", workload.record_bytes, workload.depth);
    job += &span(workload);
    if workload.is_timed() {
        if !workload.ends_with_span() {
            job += "time_based=1\n";
        }
        let _ = writeln!(job, "runtime={}ms", (workload.seconds * 1e3).ceil());
        if warm_up_seconds > 0.0 {
            let _ = writeln!(job, "ramp_time={}ms", (warm_up_seconds * 1e3).ceil());
        }
    }
    if is_random(workload.operation) {
        job += &pattern(workload.pattern);
    }
    if workload.operation.writes() && workload.operation != Operation::Trim {
        job += &flush(workload.flush);
        job += &data(level);
    }
    job
}

fn is_random(operation: Operation) -> bool {
    use Operation::{AccessRead, Mixed, RandomRead, RandomWrite, Trim};
    matches!(operation, RandomRead | RandomWrite | Mixed | Trim | AccessRead)
}

/// The comment before operations that use the C library's buffer.
const NO_STDIO: &str = "; fio has no buffer of 4096 bytes, unlike fwrite and fread.\n";

/// Returns the options of the operation, with a comment about differences; `None` if fio does not
/// support it.
fn direction(workload: &Workload) -> Option<String> {
    let record = workload.record_bytes;
    // Without its map of blocks, fio draws each block independently.
    let map = if workload.pattern == Pattern::Once { "" } else { "\nnorandommap=1" };
    Some(match workload.operation {
        Operation::Write | Operation::Rewrite => "rw=write".to_owned(),
        Operation::Read | Operation::Reread => "rw=read".to_owned(),
        Operation::RandomRead => format!("rw=randread{map}"),
        Operation::RandomWrite => format!("rw=randwrite{map}"),
        Operation::Trim => format!("rw=randtrim{map}"),
        Operation::Mixed => format!("rw=randrw\nrwmixread={}{map}", workload.reads_percent),
        Operation::BackwardRead => {
            format!("; fio leaves the last record out.\nrw=read:-{}", 2 * record)
        }
        Operation::StrideRead => format!(
            "; fio reads every {}th record once and skips the records in between.\nrw=read:{}",
            workload.stride_records(),
            (workload.stride_records() - 1) * record
        ),
        Operation::RecordRewrite => "rw=write".to_owned(),
        Operation::FWrite | Operation::FRewrite => format!("{NO_STDIO}rw=write"),
        Operation::FRead | Operation::FReread => format!("{NO_STDIO}rw=read"),
        Operation::AccessRead => format!("rw=randread{map}"),
        Operation::BurstRead => "rw=read".to_owned(),
        Operation::SurfaceRead
        | Operation::Copy
        | Operation::CopyFile
        | Operation::CopyRange
        | Operation::CopyIso
        | Operation::CopyProgram
        | Operation::CopyGame => return None,
    })
}

/// Returns the offset and size options. Threads divide sequential spans; random threads use the
/// whole span.
fn span(workload: &Workload) -> String {
    let threads = u64::from(workload.threads);
    let mut span = match workload.operation {
        Operation::RecordRewrite | Operation::BurstRead => workload.record_bytes,
        _ => workload.records() * workload.record_bytes,
    };
    let mut text = format!("offset={}\n", workload.shift_bytes);
    let is_shared_out = !is_random(workload.operation);
    if is_shared_out && span > workload.record_bytes {
        span = span / threads / workload.record_bytes * workload.record_bytes;
    }
    if threads > 1 {
        text += &format!("numjobs={threads}\n");
        if is_shared_out {
            text += &format!("offset_increment={span}\n");
        }
    }
    text + &format!("size={span}\n")
}

fn pattern(pattern: Pattern) -> String {
    match pattern {
        Pattern::Uniform | Pattern::Once => String::new(),
        Pattern::HotCold => "random_distribution=zoned:80/20:20/80\n".to_owned(),
        Pattern::Zipf(1.0) => {
            "; fio does not support an exponent of 1.\nrandom_distribution=zipf:1.001\n".to_owned()
        }
        Pattern::Zipf(theta) => format!("random_distribution=zipf:{theta}\n"),
    }
}

fn flush(flush: Flush) -> String {
    match flush {
        Flush::EachWrite => "fsync=1\n".to_owned(),
        Flush::Timed => {
            "; fio does not count the flush at the end as time.\nend_fsync=1\n".to_owned()
        }
        Flush::Untimed => "end_fsync=1\n".to_owned(),
    }
}

/// Returns the options of the data.
fn data(level: &Level) -> String {
    let mut text = "refill_buffers=1\n".to_owned();
    let name = level.kind.split(':').next().unwrap_or_default();
    match (name, level.saved_percent) {
        ("random", _) => {}
        ("byte", _) => {
            let byte = level.kind.split_once(':').map_or("0x00", |(_, byte)| byte);
            text = format!("buffer_pattern={}\n", value(byte));
        }
        (kind, Some(percent)) => {
            if kind != "exact" {
                text += &format!("; fio has no data of the kind '{}'.\n", value(&level.kind));
            }
            text += "; fio fills this share of every 4 KiB with zeroes; the saving of a codec is\n";
            text += "; less or more, depending on codec and chunk. pumice payload measures it.\n";
            text += &format!("buffer_compress_percentage={percent:.0}\n");
            text += "buffer_compress_chunk=4096\n";
        }
        (_, None) => {
            let kind = value(&level.kind);
            text += &format!("; fio has no data of the kind '{kind}': it writes random bytes.\n");
        }
    }
    if let Some(percent) = level.duplicates_percent.filter(|percent| *percent > 0.0) {
        text += &format!("dedupe_percentage={percent:.0}\n");
    }
    text
}

/// Removes line breaks from a value.
fn value(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: a job does the same as the plan, or states the difference. Method: the lines of the
    //! job for every operation; another test runs the jobs with the real fio.
    use super::*;
    use crate::bench::results::sample::{plan, test, workload};
    use crate::workload::{Access, Ends, Unit};

    /// Returns the job of a test, by its lines.
    fn lines(change: impl Fn(&mut Workload), operation: Operation) -> Vec<String> {
        let mut plan = plan();
        let mut workload = workload(operation, 4096);
        change(&mut workload);
        plan.tests = vec![test("one", Unit::Rate, workload)];
        plan.levels.truncate(1);
        let job = fio_job(&plan, "disk.img");
        let (_, section) = job.split_once("\n\n[one]\n").unwrap_or(("", ""));
        section.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_job_contains_the_plan() {
        let job = fio_job(&plan(), "disk.img");
        for line in ["filename=disk.img", "direct=1", "randseed=7", "[random write, 98 % saved]"] {
            assert!(job.lines().any(|other| other == line), "{line} in {job}");
        }
        let has = |lines: &[String], wanted: &[&str]| {
            for line in wanted {
                assert!(lines.iter().any(|other| other == line), "{line} in {lines:?}");
            }
        };
        let random = lines(|_| {}, Operation::RandomWrite);
        has(&random, &["rw=randwrite", "bs=4096", "iodepth=4", "size=67108864", "offset=0"]);
        has(&random, &["time_based=1", "runtime=1000ms", "end_fsync=1", "refill_buffers=1"]);
        has(&random, &["buffer_compress_percentage=98", "buffer_compress_chunk=4096"]);
        let shared = lines(|load| load.threads = 4, Operation::Write);
        has(&shared, &["numjobs=4", "size=16777216", "offset_increment=16777216"]);
        assert!(!shared.iter().any(|line| line.starts_with("time_based")));
        let everywhere = lines(|load| load.threads = 4, Operation::RandomRead);
        has(&everywhere, &["numjobs=4", "size=67108864"]);
        assert!(
            !everywhere.iter().any(|line| line.contains("increment") || line.contains("refill"))
        );
        has(&lines(|load| load.flush = Flush::EachWrite, Operation::Mixed), &["fsync=1"]);
        has(&lines(|_| {}, Operation::Mixed), &["rw=randrw", "rwmixread=70"]);
        has(&lines(|_| {}, Operation::RandomRead), &["norandommap=1"]);
        let once = lines(|load| load.pattern = Pattern::Once, Operation::RandomRead);
        assert!(!once.contains(&"norandommap=1".to_owned()), "{once:?}");
        has(
            &lines(|load| load.pattern = Pattern::HotCold, Operation::RandomRead),
            &["random_distribution=zoned:80/20:20/80"],
        );
        has(
            &lines(|load| load.pattern = Pattern::Zipf(1.25), Operation::RandomWrite),
            &["random_distribution=zipf:1.25"],
        );
        let first = lines(|load| load.ends = Ends::First, Operation::RandomRead);
        assert!(!first.iter().any(|line| line.starts_with("time_based")), "{first:?}");
        has(&first, &["runtime=1000ms"]);
        has(&lines(|_| {}, Operation::StrideRead), &["rw=read:65536"]);
        has(&lines(|_| {}, Operation::BackwardRead), &["rw=read:-8192"]);
        has(&lines(|_| {}, Operation::RecordRewrite), &["size=4096", "time_based=1"]);
    }

    #[test]
    fn limits_of_fio_are_reported() {
        let mut plan = plan();
        plan.tests = vec![test("copy", Unit::Rate, workload(Operation::Copy, 4096))];
        let job = fio_job(&plan, "disk.img");
        assert!(job.contains("; [copy, 98 % saved]: fio has no copy"), "{job}");
        let mut mixed = workload(Operation::Mixed, 4096);
        mixed.mix = vec![Access {
            bytes: 4096,
            share_percent: 100,
            reads_percent: 50,
            random_percent: 0,
            align_bytes: 0,
            burst: 1,
            pause_ms: 0,
        }];
        plan.tests = vec![test("mix", Unit::Rate, mixed)];
        let job = fio_job(&plan, "disk.img");
        assert!(job.contains("; [mix, 98 % saved]: a mix of") && !job.contains("rw="), "{job}");
        plan.tests = vec![test("a]\nb", Unit::Rate, workload(Operation::Write, 4096))];
        plan.levels[0].kind = "spread".to_owned();
        (plan.levels[1].kind, plan.levels[1].saved_percent) = ("like:x".to_owned(), None);
        let job = fio_job(&plan, "disk.img\nrw=write");
        assert!(job.contains("no data of the kind 'spread'") && job.contains("'like:x'"), "{job}");
        assert!(job.contains("[a  b, 98 % saved]") && job.contains("filename=disk.img rw=write"));
    }
}
