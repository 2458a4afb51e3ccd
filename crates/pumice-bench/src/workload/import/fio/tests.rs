//! Goal: a job has the same meaning as in fio; unsupported options are refused by name, and
//! differences are noted. Method: realistic jobs; changes of one option at a time; a plan converted
//! to a job and back.

use super::super::{Imported, import};
use crate::bench::interop::fio_job;
use crate::bench::results::sample;
use crate::workload::{
    Access, Cache, Changes, Ends, Flush, Operation, Pattern, Plan, Preset, Unit,
};

const FILE: &str = "\
# Random and sequential.
[global]
ioengine=libaio
direct=1
size=64m
filename=/dev/sdx
refill_buffers
buffer_compress_percentage=50
buffer_compress_chunk=4k
ramp_time=2
group_reporting

[random]
rw=randrw
rwmixread=70
bs=8k
iodepth=16
numjobs=2
norandommap
runtime=5m
time_based

[sequential]
stonewall
rw=write
bs=1M
iodepth=4
";

fn imported(text: &str) -> Result<Imported, String> {
    import(text, "x.fio").expect("a job file")
}

fn plan(text: &str) -> Result<Plan, String> {
    let preset = Preset::from_table(imported(text)?.table, "x.fio").map_err(|it| it.chain())?;
    preset.plan(&Changes::default()).map_err(|error| error.chain())
}

/// Returns the plan for a job with these lines.
fn job(lines: &str) -> Result<Plan, String> {
    plan(&format!("[x]\nsize=64m\n{lines}\n"))
}

fn notes(lines: &str) -> String {
    let notes = imported(&format!("[x]\nsize=64m\n{lines}\n")).expect("a job").notes;
    [notes.requests, notes.measuring].concat().join("\n")
}

#[test]
fn jobs_are_tests() {
    let made = plan(FILE).unwrap();
    assert!(made.direct && made.warm_up_seconds == 2.0);
    assert_eq!((made.levels.len(), made.levels[0].saved_percent), (1, Some(50.0)));
    let (random, sequential) = (&made.tests[0], &made.tests[1]);
    assert_eq!((random.name.as_str(), random.unit), ("random", Unit::Rate));
    let load = &random.workload;
    assert_eq!((load.operation, load.reads_percent), (Operation::Mixed, 70));
    assert_eq!((load.record_bytes, load.depth, load.threads), (8192, 16, 2));
    assert_eq!((load.seconds, load.ends), (300.0, Ends::Time));
    assert_eq!(
        (load.pattern, load.flush, load.span_bytes),
        (Pattern::Uniform, Flush::Untimed, 64 << 20)
    );
    let load = &sequential.workload;
    assert_eq!((load.operation, load.ends), (Operation::Write, Ends::Span));
    assert_eq!((load.record_bytes, load.depth), (1 << 20, 4));
    assert_eq!(imported(FILE).unwrap().target.as_deref(), Some("/dev/sdx"));
    assert!(!imported(FILE).unwrap().needs_span);
}

#[test]
fn every_form_of_rw_is_taken() {
    for (lines, operation, pattern) in [
        ("rw=read", Operation::Read, Pattern::Uniform),
        ("readwrite=write", Operation::Write, Pattern::Uniform),
        ("rw=randread", Operation::RandomRead, Pattern::Once),
        ("rw=randwrite\nnorandommap=1", Operation::RandomWrite, Pattern::Uniform),
        ("rw=randtrim", Operation::Trim, Pattern::Once),
        ("rw=read:-8k", Operation::BackwardRead, Pattern::Uniform),
        ("rw=randread\nrandom_distribution=zipf:1.2", Operation::RandomRead, Pattern::Zipf(1.2)),
        (
            "rw=randwrite\nrandom_distribution=zoned:80/20:20/80",
            Operation::RandomWrite,
            Pattern::HotCold,
        ),
    ] {
        let made = job(lines).expect(lines);
        let load = &made.tests[0].workload;
        assert_eq!((load.operation, load.pattern, load.record_bytes), (operation, pattern, 4096));
        assert!(load.mix.is_empty(), "{lines}");
    }
}

#[test]
fn mixes_are_kinds_of_requests() {
    let kinds = |lines: &str| {
        let made = job(lines).expect(lines);
        let of = |it: &Access| (it.bytes, it.share_percent, it.reads_percent, it.random_percent);
        made.tests[0].workload.mix.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        kinds("rw=rw\nrwmixwrite=30\nbs=64k"),
        [(65536, 70, 100, 0), (65536, 30, 0, 0)],
        "in order, each direction has a position of its own"
    );
    assert_eq!(kinds("rw=randrw\nbs=4k,8k"), [(4096, 50, 100, 100), (8192, 50, 0, 100)]);
    assert_eq!(
        kinds("rw=randrw\nrwmixread=80\nbssplit=512/10:4k/60:64k/"),
        [(512, 10, 80, 100), (4096, 60, 80, 100), (65536, 30, 80, 100)]
    );
    assert_eq!(kinds("rw=randread\npercentage_random=40"), [(4096, 100, 100, 40)]);
    assert_eq!(kinds("rw=randwrite\nba=512"), [(4096, 100, 0, 100)]);
}

#[test]
fn other_options_are_where_they_belong() {
    let load = |lines: &str| job(lines).expect(lines).tests[0].workload.clone();
    assert_eq!(load("rw=write\nfsync=1").flush, Flush::EachWrite);
    assert_eq!(load("rw=write\nend_fsync=1").flush, Flush::Untimed);
    assert_eq!(load("rw=read\nruntime=10").ends, Ends::First);
    assert_eq!(load("rw=read\noffset=1m").shift_bytes, 1 << 20);
    assert_eq!(load("rw=write\nnumjobs=4").span_bytes, 256 << 20);
    assert_eq!(load("rw=read\nfilename=a\nnumjobs=4\noffset_increment=64m").span_bytes, 256 << 20);
    assert_eq!(load("rw=randread\nfilename=a\nnumjobs=4").span_bytes, 64 << 20);
    assert_eq!(job("rw=read\ninvalidate=0").unwrap().cache, Cache::Warm);
    assert!(job("rw=read\nbuffered=0").unwrap().direct && !job("rw=read").unwrap().direct);
    for (lines, kind) in [
        ("rw=write\nzero_buffers", "byte:0x00"),
        ("rw=write\nbuffer_pattern=0xff", "byte:0xff"),
        ("rw=write\nrefill_buffers", "random"),
    ] {
        assert_eq!(job(lines).unwrap().levels[0].kind, kind);
    }
    let duplicates = job("rw=write\ndedupe_percentage=30").unwrap();
    assert_eq!(duplicates.levels[0].duplicates_percent, Some(30.0));
    let sized = imported("[x]\nrw=read\nfilename=/dev/sdx\n").unwrap();
    assert!(sized.needs_span);
    let nbd = "[x]\nioengine=nbd\nuri=nbd+unix:///?socket=s\nrw=randread\niodepth=8\nsize=1m\n";
    assert_eq!(imported(nbd).unwrap().target.as_deref(), Some("nbd+unix:///?socket=s"));
    // The last of several values is used, so the options of a job take precedence over [global].
    assert_eq!(load("rw=read\nbs=4k\nbs=8k").record_bytes, 8192);
    let own = plan("[global]\nbs=4k\n[a]\nrw=read\nsize=1m\nbs=8k\n").unwrap();
    assert_eq!(own.tests[0].workload.record_bytes, 8192);
    let made = plan("[a]\nrw=read\nsize=1m\n[a]\nstonewall\nrw=read\nsize=1m\n").unwrap();
    assert_eq!(made.tests[1].name, "a #2");
}

#[test]
fn differences_are_noted() {
    for (lines, words) in [
        ("rw=read\nioengine=libaio\niodepth=8", "iodepth=8 becomes 1"),
        ("rw=read\nioengine=psync\ndirect=1\niodepth=8", "ioengine=psync"),
        ("rw=write", "without refill_buffers"),
        ("rw=randwrite\nrefill_buffers", "overwrite=1"),
        ("rw=write\nbuffer_compress_percentage=50", "buffer_compress_chunk"),
        ("rw=write\nnumjobs=2", "parts of one file"),
        ("rw=randread\nfilename=a\nnumjobs=2", "the requests that one copy makes"),
    ] {
        assert!(notes(lines).contains(words), "{words}: {}", notes(lines));
    }
    assert!(!notes("rw=read\nioengine=io_uring\ndirect=1\niodepth=8").contains("iodepth"));
}

#[test]
fn unsupported_options_are_named() {
    for (lines, words) in [
        ("rw=read\nrate=1m\nthinktime=5", "job 'x': not supported: rate=1m, thinktime=5"),
        ("rw=trimwrite", "rw=trimwrite is not supported"),
        ("rw=read:64k", "rw=read:64k"),
        ("rw=read\nioengine=mmap", "ioengine=mmap"),
        ("rw=read\nbs=4k-64k", "bs=4k-64k"),
        ("rw=read\nbs=x", "'x' is not a size"),
        ("rw=read\nsize=50%", "size=50%"),
        ("rw=read\nfilename=a:b", "several files"),
        ("rw=read\nfilename=a\nnumjobs=4", "numjobs=4"),
        ("rw=read\nfilename=a\nnumjobs=4\noffset_increment=1m", "offset_increment"),
        ("rw=read\ntime_based", "needs a runtime"),
        ("rw=write\nfsync=32", "after 32 writes"),
        ("rw=randread\nrandom_distribution=pareto:0.2", "pareto"),
        ("rw=randrw\nrandom_distribution=zipf\nbs=4k,8k", "in a mix"),
        ("rw=read\nbssplit=4k/50:8k/50", "in order"),
        ("rw=randrw\nbssplit=4k/50:8k/60", "110 %"),
        ("rw=randrw\nrwmixread=33\nbssplit=4k/50:8k/50,4k", "not a whole percentage"),
        ("rw=write\nbuffer_pattern=\"abcd\"", "buffer_pattern"),
        ("rw=read\nio_size=1m", "io_size"),
        ("rw=read\nbs=129m", "64 MiB"),
        ("rw=read\ndirect=maybe", "direct: 'maybe'"),
    ] {
        let error = job(lines).expect_err(lines);
        assert!(error.contains(words), "{lines}: {error}");
    }
    for (text, words) in [
        (FILE.replace("stonewall\n", ""), "'random' and 'sequential' run at once"),
        (FILE.replace("[sequential]", "[sequential]\ndirect=0"), "direct differs"),
        (
            FILE.replace("[sequential]", "[sequential]\nbuffer_compress_percentage=10"),
            "different data",
        ),
    ] {
        let error = plan(&text).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
}

/// Guards against changes to the plan when it is converted to a job and back.
#[test]
fn a_plan_as_a_job_is_that_plan() {
    use Operation::{BackwardRead, Mixed, RandomRead, RandomWrite, Read, Trim, Write};
    for operation in [BackwardRead, Mixed, RandomRead, RandomWrite, Read, Trim, Write] {
        for (ends, pattern) in [(Ends::Usual, Pattern::Uniform), (Ends::Time, Pattern::Once)] {
            let mut plan = sample::plan();
            let mut workload = sample::workload(operation, 4096);
            let is_random = operation.is_timed();
            workload.ends = ends;
            workload.pattern = if is_random { pattern } else { Pattern::Uniform };
            plan.tests = vec![sample::test("one", Unit::Rate, workload.clone())];
            plan.levels.truncate(1);
            let text = fio_job(&plan, "disk.img");
            let again = self::plan(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            let found = &again.tests[0].workload;
            assert_eq!(
                (found.is_timed(), found.ends_with_span()),
                (workload.is_timed(), workload.ends_with_span())
            );
            let same = |load: &crate::workload::Workload| crate::workload::Workload {
                ends: Ends::Usual,
                flush: Flush::Untimed,
                reads_percent: if operation == Mixed { load.reads_percent } else { 0 },
                ..load.clone()
            };
            let expected = crate::workload::Workload {
                seconds: if workload.is_timed() { workload.seconds } else { 5.0 },
                ..same(&workload)
            };
            assert_eq!(same(found), expected, "{text}");
            // Read-only operations have no options for data.
            if operation.writes() && operation != Trim {
                assert_eq!(again.levels[0].saved_percent, plan.levels[0].saved_percent);
            }
            assert_eq!(again.direct, plan.direct);
        }
    }
}
