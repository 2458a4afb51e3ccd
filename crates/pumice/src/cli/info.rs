//! `pumice info`: identity, geometry and counters of a drive, closed or served.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

#[cfg(feature = "attach")]
use super::attach::Attachment;
use super::{Outcome, output, print, print_json};
use crate::control::{self, Service};
use pumice_drive::base::units::format_size;
use pumice_drive::controller::Info;
use pumice_drive::controller::OpenOptions;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_report::{Align, Table};

/// Show the identity, geometry and counters of a drive, closed or served
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, or it is in use by a process that does not answer.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (info, service) = read(&args.path)?;
    let shown = Shown { info, state: State::of(&args.path, service) };
    if args.json {
        print_json(&shown)?;
    } else {
        print(&text(&args.path, &shown))?;
    }
    Ok(Outcome::Good)
}

/// What is shown of a drive.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    info: Info,
    #[serde(flatten)]
    state: State,
}

/// How the drive is in use.
#[derive(Default, Serialize)]
struct State {
    /// The process that serves it, or has it attached.
    process: Option<u32>,
    /// Where clients reach it.
    uris: Vec<String>,
    /// Its devices, if it is attached, as they are shown.
    devices: Vec<String>,
    /// Where it is mounted.
    mountpoint: Option<String>,
    /// Log of the process that has it attached.
    log: Option<String>,
}

impl State {
    fn of(path: &Path, service: Option<Service>) -> Self {
        let Some(Service { process, uris }) = service else { return Self::default() };
        let state = Self { process: Some(process), uris, ..Self::default() };
        #[cfg(feature = "attach")]
        if let Ok(Some(attachment)) = Attachment::of(path) {
            let shown = |path: &Path| path.display().to_string();
            return Self {
                devices: attachment.devices().iter().map(|device| shown(device)).collect(),
                mountpoint: attachment.mountpoint().map(shown),
                log: Some(shown(&attachment.log_file())),
                ..state
            };
        }
        #[cfg(not(feature = "attach"))]
        let _ = path;
        state
    }
}

/// Asks the server if the drive is served; otherwise opens the drive read-only.
fn read(path: &Path) -> Result<(Info, Option<Service>)> {
    if let Some(info) = control::info(path)? {
        return Ok((info, control::service(path)?));
    }
    let runtime = Runtime::new(Backend::Auto)?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    Ok((super::open::drive(&runtime, path, options)?.info(), None))
}

fn text(path: &Path, shown: &Shown) -> String {
    let info = &shown.info;
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let mut row = |name: &str, value: String| table.row(vec![name.into(), value]);
    let percent = |fraction: f64| format!("{:.1} %", fraction * 100.0);
    row("drive", path.display().to_string());
    row("state", state(&shown.state));
    for alert in &info.alerts {
        row(if alert.refuses_writes { "refuses writes" } else { "alert" }, alert.what.clone());
    }
    if let Some(log) = &shown.state.log {
        row("log", log.clone());
    }
    row("uuid", info.uuid.to_string());
    row("format", info.format_version.to_string());
    row("size", format_size(info.size_bytes));
    row(
        "capacity",
        format!(
            "{} ({} over-provisioning)",
            format_size(info.capacity_bytes),
            percent(info.over_provisioning)
        ),
    );
    row(
        "segments",
        format!(
            "{} of {}, {} free",
            info.segment_count,
            format_size(info.segment_bytes.into()),
            info.free_segments
        ),
    );
    let form = if info.block_frames { " independent" } else { "" };
    row("codec", format!("{}, frames of up to {}{form} blocks", info.codec, info.frame_blocks));
    row("host written", format_size(info.host_bytes));
    row("frames", format_size(info.frame_bytes));
    row("media written", format_size(info.media_bytes));
    row("stored fraction", format!("{:.4} (ratio {})", info.stored_fraction, ratio(info)));
    row("write amplification", format!("{:.4}", info.write_amplification));
    row("mapped", format_size(info.mapped_bytes));
    row("live", format_size(info.live_bytes));
    row("occupied", occupied(info));
    row("used", used(info));
    row("batches", format!("{}, durable up to {}", info.sequence, info.watermark));
    for (name, fact) in troubles(info) {
        row(name, fact);
    }
    if let Some(scrub) = scrub(info) {
        row("scrub", scrub);
    }
    let memory = &info.memory;
    row("read cache", read_cache(info));
    row(
        "memory",
        format!(
            "map {}, batch buffers {}, read buffers {}, decoded frames {}, read cache {}",
            format_size(memory.map_bytes),
            format_size(memory.batch_bytes),
            format_size(memory.read_buffer_bytes),
            format_size(memory.frame_cache_bytes),
            format_size(memory.read_cache_bytes)
        ),
    );
    output::table(&table)
}

/// Returns what the drive takes of its medium.
fn occupied(info: &Info) -> String {
    let reserved = if info.preallocated { ", all of the capacity is reserved" } else { "" };
    let warm = match info.warm_bytes {
        0 => String::new(),
        bytes => format!(", and {} free, kept for flushes", format_size(bytes)),
    };
    format!("{}{warm}{reserved}", format_size(info.occupied_bytes))
}

/// Returns which process has the drive open.
fn state(state: &State) -> String {
    let State { process, uris, devices, mountpoint, .. } = state;
    let Some(process) = process else { return "closed".into() };
    if devices.is_empty() {
        return format!("served by process {process} at {}", uris.join(" "));
    }
    let mounted = mountpoint.as_ref().map(|path| format!(" on {path}")).unwrap_or_default();
    format!("attached by process {process} as {}{mounted}", devices.join(", "))
}

/// Returns the rows that a drive without trouble does not have.
fn troubles(info: &Info) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if info.medium_full {
        let what = "no space: make space in the file system that holds the drive";
        rows.push(("medium", what.to_owned()));
    }
    if !info.bad_segments.is_empty() {
        let numbers: Vec<String> = info.bad_segments.iter().map(u32::to_string).collect();
        rows.push(("bad segments", format!("{}, not written any more", numbers.join(", "))));
    }
    let cut = &info.operations;
    if cut.cut_batches > 0 || cut.cut_unreadable_bytes > 0 {
        let what = format!(
            "{} batches ({}) beyond the end of the log, {} unreadable",
            cut.cut_batches,
            format_size(cut.cut_bytes),
            format_size(cut.cut_unreadable_bytes)
        );
        rows.push(("torn tail", what));
    }
    rows
}

/// Returns the share of the capacity in use and the highest threshold that it has reached.
fn used(info: &Info) -> String {
    let warning = match info.warnings.last() {
        _ if info.used_percent >= 100.0 => {
            ", full: writes are refused: trim, or see `pumice resize --help`".to_owned()
        }
        Some(threshold) => format!(", above {threshold} %: trim, or see `pumice resize --help`"),
        None => String::new(),
    };
    format!("{:.1} % of the space for data{warning}", info.used_percent)
}

/// Returns the budget of the read cache, and the share of blocks of short reads that it served.
fn read_cache(info: &Info) -> String {
    let (hits, misses) = (info.operations.read_cache_hits, info.operations.read_cache_misses);
    let budget = format_size(info.memory.read_cache_bytes_max);
    match hits + misses {
        0 => format!("up to {budget}"),
        asked => format!("up to {budget}, {:.1} % hits", hits as f64 / asked as f64 * 100.0),
    }
}

/// Returns the progress of a running scrub, or the result of the last one.
fn scrub(info: &Info) -> Option<String> {
    let scrub = &info.scrub;
    let state = match (scrub.scrub_running, scrub.scrub_segments) {
        (false, 0) => return None,
        (false, _) => "finished",
        (true, _) => "running",
    };
    Some(format!(
        "{state}, {} of {} segments, {}, {} problems",
        scrub.scrub_segments_done,
        scrub.scrub_segments,
        format_size(scrub.scrub_checked_bytes),
        scrub.scrub_problems
    ))
}

fn ratio(info: &Info) -> String {
    if info.stored_fraction > 0.0 {
        format!("{:.2}", 1.0 / info.stored_fraction)
    } else {
        "unknown".into()
    }
}
