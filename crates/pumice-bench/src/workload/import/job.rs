//! Imports one fio job as a test.
//!
//! Source: fio 3.33, HOWTO: the meanings and defaults of the options.

use super::data::Data;
use super::kinds::{Kind, kinds};
use super::options::Options;
use super::sections::Section;
use super::sizes::{number, percent, seconds, size, switch};
use super::{Notes, table};

/// Engines that support several requests in flight, and engines that support only one.
const ASYNCHRONOUS: [&str; 3] = ["libaio", "io_uring", "posixaio"];
const SYNCHRONOUS: [&str; 5] = ["psync", "sync", "vsync", "pvsync", "pvsync2"];

/// A job as a test, and its settings for the whole plan.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) test: toml::Table,
    pub(super) data: Data,
    pub(super) writes: bool,
    pub(super) direct: bool,
    pub(super) is_warm: bool,
    pub(super) ramp_seconds: f64,
    /// Whether the job starts when all earlier jobs have ended.
    pub(super) waits: bool,
    pub(super) target: Option<String>,
    pub(super) has_size: bool,
}

/// The direction and order of requests.
struct Direction {
    operation: &'static str,
    is_random: bool,
    reads_percent: u32,
}

/// The files used by the clones of a job.
#[derive(Clone, Copy, PartialEq)]
enum Files {
    /// All clones use one file or device.
    Shared,
    /// Each clone has its own file.
    Own,
}

impl Job {
    /// Returns the test for a job. Differences are added to `notes`.
    ///
    /// # Errors
    /// The reason: a value is malformed, or options are not supported.
    pub(super) fn new(section: &Section, notes: &mut Notes) -> Result<Self, String> {
        let options = &mut Options::of(section);
        let direction = direction(options)?;
        let writes = direction.reads_percent < 100 && direction.operation != "trim";
        let data = Data::take(options, writes, &mut notes.measuring)?;
        let direct = match (options.take_as(&["direct"], switch)?, options.take(&["buffered"])) {
            (Some(direct), _) => direct,
            (None, buffered) => buffered == Some("0"),
        };
        let mut test = table([("name", section.name.clone().into())]);
        let target = target(options)?;
        let files = if target.is_some() { Files::Shared } else { Files::Own };
        let target = target.or_else(|| options.take(&["directory"]).map(str::to_owned));
        requests(options, &direction, &mut test)?;
        let depth = depth(options, direct, notes)?;
        test.insert("depth".into(), i64::from(depth).into());
        let has_size = span(options, &direction, files, &mut test, &mut notes.requests)?;
        end(options, &mut test)?;
        let flush = flush(options)?;
        if writes {
            test.insert("flush".into(), flush.into());
        }
        if writes && direction.is_random {
            let what = "the span is written before random writes, as with overwrite=1";
            notes.measuring.push(what.into());
        }
        let is_warm = !options.take_as(&["invalidate"], switch)?.unwrap_or(true);
        let ramp_seconds = options.take_as(&["ramp_time"], seconds)?.unwrap_or(0.0);
        let waits = options.take(&["stonewall", "wait_for_previous"]).is_some_and(|it| it != "0");
        match options.left()[..] {
            [] => {}
            ref left => {
                let left = left.join(", ");
                return Err(format!("not supported: {left}; remove these options if possible"));
            }
        }
        Ok(Self { test, data, writes, direct, is_warm, ramp_seconds, waits, target, has_size })
    }
}

fn direction(options: &mut Options<'_>) -> Result<Direction, String> {
    let rw = options.take(&["rw", "readwrite"]).unwrap_or("read");
    let mixed = match options.take_as(&["rwmixwrite"], percent)? {
        Some(writes) => 100 - writes,
        None => 50,
    };
    let mixed = options.take_as(&["rwmixread"], percent)?.unwrap_or(mixed);
    let of =
        |operation, is_random, reads_percent| Direction { operation, is_random, reads_percent };
    Ok(match rw {
        "read" => of("read", false, 100),
        "write" => of("write", false, 0),
        "rw" | "readwrite" => of("mixed", false, mixed),
        "randread" => of("random-read", true, 100),
        "randwrite" => of("random-write", true, 0),
        "randrw" => of("mixed", true, mixed),
        "randtrim" => of("trim", true, 100),
        _ => {
            // The next offset is this many bytes before the end of the previous request.
            let back = rw.strip_prefix("read:-").and_then(|text| size(text).ok());
            let record = size(options.find(&["bs", "blocksize"]).unwrap_or("4k")).ok();
            if back.is_some() && back == record.and_then(|record| record.checked_mul(2)) {
                return Ok(of("backward-read", false, 100));
            }
            return Err(format!(
                "rw={rw} is not supported: expected read, write, rw, randread, randwrite, randrw, \
                 randtrim, or read with a step back to the record before"
            ));
        }
    })
}

/// Removes and returns the target: a file, a device or the URI of an NBD export.
fn target(options: &mut Options<'_>) -> Result<Option<String>, String> {
    let uri = options.take(&["uri"]).map(str::to_owned);
    let Some(name) = options.take(&["filename"]) else { return Ok(uri) };
    if name.contains(':') && !name.contains("\\:") {
        return Err(format!("filename={name}: several files are not supported"));
    }
    let name = name.replace("\\:", ":");
    let path = match options.take(&["directory"]) {
        Some(folder) if !name.starts_with('/') => format!("{folder}/{name}"),
        _ => name,
    };
    Ok(Some(uri.unwrap_or(path)))
}

/// Removes and parses the sizes and positions of requests.
fn requests(
    options: &mut Options<'_>,
    direction: &Direction,
    test: &mut toml::Table,
) -> Result<(), String> {
    let sizes = options.take(&["bs", "blocksize"]).unwrap_or("4k").to_owned();
    let split = options.take(&["bssplit"]);
    let align = options.take_as(&["blockalign", "ba"], size)?;
    let random = options.take_as(&["percentage_random"], percent)?.unwrap_or(100);
    let norandommap = options.take_as(&["norandommap"], switch)?.unwrap_or(false);
    let distribution = options.take(&["random_distribution"]).unwrap_or("random");
    let random = if direction.is_random { random } else { 0 };
    let kinds = kinds(split, &sizes, direction.reads_percent)?;
    let is_plain = kinds.len() == 1 || kinds.iter().all(|kind| kind.bytes == kinds[0].bytes);
    let is_aligned = align.is_none_or(|align| align == kinds[0].bytes);
    let is_usual = random == if direction.is_random { 100 } else { 0 };
    let is_sequential_mix = direction.operation == "mixed" && !direction.is_random;
    if is_plain && is_aligned && is_usual && !is_sequential_mix {
        test.insert("operation".into(), direction.operation.into());
        test.insert("record".into(), kinds[0].bytes.to_string().into());
        test.insert("reads".into(), format!("{}%", direction.reads_percent).into());
        if direction.is_random {
            let pattern = pattern(distribution, norandommap)?;
            test.insert("pattern".into(), pattern.into());
        }
    } else {
        if direction.operation == "trim" || direction.operation == "backward-read" {
            return Err(format!("{} has one size of requests", direction.operation));
        }
        if distribution != "random" {
            return Err(format!("random_distribution={distribution} is not supported in a mix"));
        }
        let per_direction = if direction.operation == "mixed" { 2 } else { 1 };
        if random < 100 && kinds.len() > per_direction {
            return Err("requests in order have one size in each direction".into());
        }
        let smallest = kinds.iter().map(|kind| kind.bytes).min().unwrap_or(4096);
        let align = align.unwrap_or(smallest);
        let line = |kind: &Kind| {
            toml::Value::Table(table([
                ("size", kind.bytes.to_string().into()),
                ("share", format!("{}%", kind.share_percent).into()),
                ("reads", format!("{}%", kind.reads_percent).into()),
                ("random", format!("{random}%").into()),
                ("align", align.to_string().into()),
            ]))
        };
        test.insert("operation".into(), "mixed".into());
        test.insert("mix".into(), kinds.iter().map(line).collect::<Vec<_>>().into());
    }
    if direction.is_random {
        test.insert("unit".into(), "IOPS".into());
    }
    Ok(())
}

/// Returns the pattern. Unless norandommap is set, fio writes every block once before it writes any
/// block again.
fn pattern(distribution: &str, norandommap: bool) -> Result<&str, String> {
    Ok(match distribution {
        "random" if norandommap => "uniform",
        "random" => "once",
        "zoned:80/20:20/80" => "80/20",
        "zipf" => "zipf:1.1",
        zipf if zipf.starts_with("zipf:") && !zipf[5..].contains(':') => zipf,
        other => {
            return Err(format!(
                "random_distribution={other} is not supported: expected random, zipf:EXPONENT or \
                 zoned:80/20:20/80"
            ));
        }
    })
}

fn depth(options: &mut Options<'_>, direct: bool, notes: &mut Notes) -> Result<u32, String> {
    let engine = options.take(&["ioengine"]).unwrap_or("psync");
    let depth = options.take_as(&["iodepth"], number)?.unwrap_or(1);
    if engine == "nbd" {
        return Ok(depth);
    }
    if !ASYNCHRONOUS.contains(&engine) && !SYNCHRONOUS.contains(&engine) {
        let known = ASYNCHRONOUS.iter().chain(&SYNCHRONOUS).copied().collect::<Vec<_>>();
        let known = known.join(", ");
        return Err(format!("ioengine={engine} is not supported: expected nbd, {known}"));
    }
    if engine != "io_uring" {
        notes.measuring.push(format!("ioengine={engine}: requests go through io_uring"));
    }
    let waits = SYNCHRONOUS.contains(&engine) || (engine == "libaio" && !direct);
    if waits && depth > 1 {
        let why = if engine == "libaio" { " without direct=1" } else { "" };
        let what = format!("iodepth={depth} becomes 1, as in fio with ioengine={engine}{why}");
        notes.requests.push(what);
        return Ok(1);
    }
    Ok(depth)
}

/// Removes and parses the size, offset and number of clones. Returns whether there is a size.
fn span(
    options: &mut Options<'_>,
    direction: &Direction,
    files: Files,
    test: &mut toml::Table,
    notes: &mut Vec<String>,
) -> Result<bool, String> {
    let copies = options.take_as(&["numjobs"], number)?.unwrap_or(1).max(1);
    let filesize = options.take(&["filesize"]);
    let text = options.take(&["size"]).filter(|text| *text != "100%").or(filesize);
    if let Some(text) = text.filter(|text| text.ends_with('%')) {
        return Err(format!("size={text}: expected bytes, such as 10g"));
    }
    let bytes = text.map(size).transpose()?;
    let offset = options.take_as(&["offset"], size)?.unwrap_or(0);
    let step = options.take_as(&["offset_increment"], size)?;
    let io_size = options.take_as(&["io_size", "io_limit"], size)?;
    if io_size.is_some() && io_size != bytes {
        return Err("io_size is not supported unless it is the size".into());
    }
    test.insert("threads".into(), i64::from(copies).into());
    test.insert("shift".into(), offset.to_string().into());
    let apart = files == Files::Own || (step.is_some() && step == bytes);
    if copies > 1 && step.is_some_and(|step| step > 0) && !apart {
        return Err("offset_increment is not supported unless it is the size".into());
    }
    if copies > 1 && !direction.is_random && !apart {
        return Err(format!(
            "numjobs={copies}: each copy covers the whole file in fio, and a part of it here; \
             set offset_increment to the size of a part"
        ));
    }
    if copies > 1 && direction.is_random && !apart && !options.is_on("time_based") {
        notes.push(format!(
            "without time_based the {copies} copies of numjobs divide the requests that one copy \
             makes in fio"
        ));
    }
    if copies > 1 && files == Files::Own {
        notes.push(format!("the {copies} files of numjobs are parts of one file"));
    }
    let Some(bytes) = bytes else { return Ok(false) };
    let parts = if apart { u64::from(copies) } else { 1 };
    let span = bytes.checked_mul(parts).ok_or("size is too large")?;
    test.insert("span".into(), span.to_string().into());
    Ok(true)
}

fn end(options: &mut Options<'_>, test: &mut toml::Table) -> Result<(), String> {
    let time_based = options.take_as(&["time_based"], switch)?.unwrap_or(false);
    let runtime = options.take_as(&["runtime", "timeout"], seconds)?.filter(|it| *it > 0.0);
    let ends = match (time_based, runtime) {
        (true, None) => return Err("time_based needs a runtime".into()),
        (true, Some(_)) => "time",
        (false, Some(_)) => "first",
        (false, None) => "span",
    };
    test.insert("ends".into(), ends.into());
    if let Some(seconds) = runtime {
        test.insert("seconds".into(), seconds.into());
    }
    Ok(())
}

/// Returns the flush mode. A flush by fio at the end is not part of the measured time.
fn flush(options: &mut Options<'_>) -> Result<&'static str, String> {
    let fsync = options.take_as(&["fsync"], number)?.unwrap_or(0);
    let fdatasync = options.take_as(&["fdatasync"], number)?.unwrap_or(0);
    match (fsync, fdatasync) {
        (0, 0) => Ok("untimed"),
        (1, 0 | 1) | (0, 1) => Ok("each-write"),
        _ => {
            Err(format!("a flush after {} writes is not supported: expected 1", fsync + fdatasync))
        }
    }
}
