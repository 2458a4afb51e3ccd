//! `pumice info`: identity, geometry and counters of a drive, closed or served.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

use super::state::{self, State, saved_text};
use super::{Outcome, output, print, print_schema};
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Info, Spec};
use pumice_report::{Align, Table};

/// Show the identity, geometry and counters of a drive, closed or served
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice info drive.pumice
  pumice info drive.pumice --json | jq .used_percent")]
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
    let (info, state) = state::read(&args.path)?;
    let shown = Shown { info, state, file_bytes: state::file_bytes(&args.path) };
    if args.json {
        print_schema("info-1", &shown)?;
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
    /// Bytes that its file takes of its file system; none for a device.
    file_bytes: Option<u64>,
}

fn text(path: &Path, shown: &Shown) -> String {
    let info = &shown.info;
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let mut row = |name: &str, value: String| table.row(vec![name.into(), value]);
    row("drive", path.display().to_string());
    for (name, fact) in state_rows(&shown.state) {
        row(name, fact);
    }
    for alert in &info.alerts {
        row(if alert.refuses_writes { "refuses writes" } else { "alert" }, alert.what.clone());
    }
    row("uuid", info.uuid.to_string());
    row("format", info.format_version.to_string());
    row("size", format_size(info.size_bytes));
    row("capacity", format!("{} ({})", format_size(info.capacity_bytes), room(info)));
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
    row("stored fraction", share(info, info.stored_fraction));
    row("write amplification", share(info, info.write_amplification));
    row("mapped", format_size(info.mapped_bytes));
    row("live", format_size(info.live_bytes));
    row("saved", saved_text(info));
    if info.snapshots > 0 {
        let held = format_size(info.snapshot_bytes);
        let each = "see `pumice snapshot list`";
        row("snapshots", format!("{}, which hold {held} beyond the disk: {each}", info.snapshots));
    }
    row("occupied", occupied(info));
    if let Some(bytes) = shown.file_bytes {
        row("file", format!("{} of its file system", format_size(bytes)));
    }
    row("used", used(info));
    row("warnings", warnings(info));
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

/// Returns the rows on how the drive is in use.
fn state_rows(state: &State) -> Vec<(&'static str, String)> {
    let mut rows = vec![("state", state.word().to_owned())];
    let Some(process) = state.process else { return rows };
    let is_served = state.devices.is_empty();
    let name = if is_served { "address" } else { "device" };
    rows.extend(state.places().into_iter().map(|place| (name, place)));
    let clients = state.clients.map(|clients| match clients {
        1 => ", 1 client".to_owned(),
        clients => format!(", {clients} clients"),
    });
    rows.push(("process", format!("{process}{}", clients.unwrap_or_default())));
    rows.push(("log", state.log.clone().unwrap_or("standard error of the process".into())));
    rows
}

/// Returns what the capacity is beyond the size, or how far it is below.
fn room(info: &Info) -> String {
    // The capacity that `create` gives a drive with this much over-provisioning.
    let capacity = |over_provisioning_percent| {
        let spec = Spec {
            over_provisioning_percent,
            segment_bytes: info.segment_bytes,
            ..Spec::new(info.uuid, info.size_bytes)
        };
        spec.geometry().map_or(u64::MAX, |geometry| geometry.capacity_bytes())
    };
    let needed = capacity(0);
    match info.capacity_bytes.checked_sub(needed) {
        Some(spare) => {
            let whole = capacity(100).saturating_sub(needed).max(1);
            format!("spare {:.1} % of the size", spare as f64 * 100.0 / whole as f64)
        }
        None => {
            let times = info.size_bytes as f64 / info.capacity_bytes.max(1) as f64;
            format!("thin: the size is {times:.2} times that")
        }
    }
}

/// Returns the rows that a drive without trouble, clones or an origin does not have.
fn troubles(info: &Info) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(origin) = &info.origin {
        let bytes = format_size(origin.bytes);
        let what = format!("{}, snapshot {}, for holes of {bytes}", origin.path, origin.snapshot);
        rows.push(("origin", what));
    }
    if info.clones > 0 {
        let what = format!("{}: see `pumice snapshot list`", info.clones);
        rows.push(("clones", what));
    }
    if let Some(part) = info.receiving {
        let offset = format_size(part.offset);
        let what = format!("of snapshot {}, {offset} so far: see `pumice receive`", part.snapshot);
        rows.push(("part", what));
    }
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

/// Returns the thresholds of warnings about space.
fn warnings(info: &Info) -> String {
    let percents: Vec<_> = info.warn_percent.iter().map(|percent| format!("{percent} %")).collect();
    if percents.is_empty() { "none".into() } else { format!("at {}", percents.join(", ")) }
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

/// Returns a share of what the host has written; there is none before it has.
fn share(info: &Info, share: f64) -> String {
    if info.host_bytes > 0 { format!("{share:.4}") } else { "-".into() }
}

#[cfg(test)]
mod tests {
    //! Goal: the room of a drive is told in the words of `create`.
    use super::*;
    use crate::watch::tests::snapshot;

    #[test]
    fn spare_is_what_create_was_asked_for_and_thin_is_no_negative_number() {
        let mut info = snapshot("d").drives[0].info.clone();
        let spec = Spec { segment_bytes: 4 << 20, ..Spec::new(info.uuid, 1 << 40) };
        (info.size_bytes, info.segment_bytes) = (spec.size_bytes, spec.segment_bytes);
        info.capacity_bytes = spec.geometry().expect("a geometry").capacity_bytes();
        assert_eq!(room(&info), "spare 12.0 % of the size");
        info.capacity_bytes = 1 << 37;
        assert_eq!(room(&info), "thin: the size is 8.00 times that");
    }

    #[test]
    fn a_drive_that_was_not_written_has_no_shares() {
        let mut info = snapshot("d").drives[0].info.clone();
        (info.host_bytes, info.mapped_bytes) = (0, 0);
        let shown =
            text(Path::new("d"), &Shown { info, state: State::default(), file_bytes: None });
        for row in
            ["state                closed", "stored fraction      -", "saved                -"]
        {
            assert!(shown.contains(&format!("{row}\n")), "{row} in\n{shown}");
        }
    }
}
