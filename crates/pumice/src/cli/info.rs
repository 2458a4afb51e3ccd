//! `pumice info`: identity, geometry and counters of a drive, closed or served.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Serialize;

use super::key::Slot;
use super::key_args::KeyArgs;
use super::state::{self, State};
use super::{Outcome, lossy, output, print, print_schema, snapshot};
use crate::objects::{Cost, Prices};
use crate::open;
use crate::partitions;
use crate::savings::saved_text;
use crate::storage::Access;
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::{Info, Locked, SnapshotInfo, Spec};
use pumice_drive::media::tier::{Durable, Status};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_report::{Align, Table};
use uuid::Uuid;

/// Maximum number of snapshots that each have a row of their own.
const FEW: usize = 4;

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

    #[command(flatten)]
    keys: KeyArgs,

    #[command(flatten)]
    prices: Prices,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, or it is in use by a process that does not answer.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let (info, state, snapshot_list) = match state::read_with_snapshots(&args.path) {
        Err(error) if args.keys.is_empty() && is_locked(&error) => {
            let shown = Visible::of(&args.path)?.ok_or(error)?;
            match args.json {
                true => print_schema("locked-1", &shown)?,
                false => print(&shown.text())?,
            }
            return Ok(Outcome::Good);
        }
        read => read?,
    };
    let file_bytes = state::file_bytes(&args.path);
    let bucket_cost = info.bucket.as_ref().map(|bucket| args.prices.cost(bucket));
    let shown = Shown { info, state, snapshot_list, file_bytes, bucket_cost };
    if args.json {
        print_schema("info-1", &shown)?;
    } else {
        print(&text(&args.path, &shown))?;
    }
    Ok(Outcome::Good)
}

fn is_locked(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// The properties of an encrypted drive that are readable without its key. They are not verified.
#[derive(Serialize, JsonSchema)]
pub(super) struct Visible {
    /// The drive's file or device.
    path: String,
    /// Identity.
    uuid: Uuid,
    /// Size of the disk; `None` if the superblocks are lost.
    size_bytes: Option<u64>,
    /// Bytes of all segments.
    capacity_bytes: Option<u64>,
    /// Bytes of one segment.
    segment_bytes: Option<u32>,
    /// Number of segments.
    segment_count: Option<u32>,
    /// Whether a key that was replaced is still in use.
    has_earlier_key: bool,
    /// The keys that open it.
    keys: Vec<Slot>,
}

impl Visible {
    /// Returns the readable properties of a drive; `None` if it is not encrypted.
    fn of(path: &Path) -> Result<Option<Self>> {
        let runtime = Runtime::new(Backend::Auto)?;
        let medium = open::locked(&runtime, path, &Access::new(true))?;
        let locked = runtime.block_on(Locked::on(&*medium)).with_context(|| lossy(path))?;
        let Some(locked) = locked else { return Ok(None) };
        let shape = locked.shape;
        let capacity_bytes =
            shape.map(|shape| u64::from(shape.segment_bytes) * u64::from(shape.segment_count));
        Ok(Some(Self {
            path: lossy(path),
            uuid: locked.uuid,
            size_bytes: shape.map(|shape| shape.size_bytes),
            capacity_bytes,
            segment_bytes: shape.map(|shape| shape.segment_bytes),
            segment_count: shape.map(|shape| shape.segment_count),
            has_earlier_key: locked.has_earlier_key(),
            keys: locked.slots().into_iter().map(Slot::from).collect(),
        }))
    }

    fn text(&self) -> String {
        let mut text = format!(
            "drive                {}\nstate                encrypted, and no key was given\n\
             uuid                 {}\n",
            self.path, self.uuid
        );
        if let (Some(size), Some(capacity)) = (self.size_bytes, self.capacity_bytes) {
            text += &format!("size                 {}\n", format_size(size));
            text += &format!("capacity             {}\n", format_size(capacity));
        }
        if self.has_earlier_key {
            text += "replaced key         still in use, see `pumice rekey`\n";
        }
        for slot in &self.keys {
            text += &format!("key {}                {}\n", slot.slot, slot.kind);
        }
        text
    }
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    #[serde(flatten)]
    info: Info,
    #[serde(flatten)]
    state: State,
    /// The snapshots, oldest first; `None` for a served drive whose file is gone.
    snapshot_list: Option<Vec<SnapshotInfo>>,
    /// Bytes that its file takes on its file system; `None` for a device.
    file_bytes: Option<u64>,
    /// The cost of the bucket at the prices of `--price-storage`, `--price-puts` and
    /// `--price-gets`, for a drive in a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_cost: Option<Cost>,
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
    if let Some(bytes) = shown.state.table_sector_bytes {
        let advice = partitions::advice(bytes);
        row("partition table", format!("for sectors of {bytes} bytes: {advice}"));
    }
    row("capacity", format!("{} ({})", format_size(info.capacity_bytes), room(info)));
    let segment = format_size(info.segment_bytes.into());
    row("segments", format!("{} of {segment}, {} free", info.segment_count, info.free_segments));
    let form = if info.has_chunks { ", in chunks" } else { "" };
    row("codec", format!("{}, frames of up to {} blocks{form}", info.codec, info.frame_blocks));
    if info.encrypted {
        let unfinished = "; a replaced key is still in use: `pumice rekey` completes the \
                          replacement";
        let more = if info.has_earlier_key { unfinished } else { "" };
        row("encryption", format!("everything on the medium{more}"));
    }
    row("host written", format_size(info.host_bytes));
    row("frames", format_size(info.frame_bytes));
    row("media written", format_size(info.media_bytes));
    row("stored fraction", share(info, info.stored_fraction));
    row("write amplification", share(info, info.write_amplification));
    row("mapped", format_size(info.mapped_bytes));
    row("live", format_size(info.live_bytes));
    row("saved", saved_text(info));
    for (name, fact) in snapshots(info, shown.snapshot_list.as_deref().unwrap_or_default()) {
        row(name, fact);
    }
    row("occupied", occupied(info));
    if let Some(bytes) = shown.file_bytes {
        row("file", format!("{} of its file system", format_size(bytes)));
    }
    row("used", used(info));
    row("warnings", warnings(info));
    row("batches", format!("{}, durable up to {}", info.sequence, info.watermark));
    let bucket = info.bucket.iter().zip(shown.bucket_cost);
    for (name, fact) in bucket.flat_map(|(bucket, cost)| bucket_rows(bucket, cost)) {
        row(name, fact);
    }
    troubles(info).into_iter().for_each(|(name, fact)| row(name, fact));
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

/// Returns the space that the drive takes on its medium.
fn occupied(info: &Info) -> String {
    let reserved = if info.preallocated { ", all of the capacity is reserved" } else { "" };
    let warm = match info.warm_bytes {
        0 => String::new(),
        bytes if info.low_room_bytes.is_some() => {
            format!(", and {} kept as a reserve", format_size(bytes))
        }
        bytes => format!(", and {} free, kept for flushes", format_size(bytes)),
    };
    let left = info.low_room_bytes.map(format_size);
    let left = left.map_or(String::new(), |left| format!(", its file system has {left} left"));
    format!("{}{warm}{left}{reserved}", format_size(info.occupied_bytes))
}

/// Returns the rows about the use of the drive.
fn state_rows(state: &State) -> Vec<(&'static str, String)> {
    let cleaned = match state.word() {
        "stale" => ": its process was killed; `pumice detach` cleans up, `pumice attach` as well",
        _ => "",
    };
    let mut rows = vec![("state", format!("{}{cleaned}", state.word()))];
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

/// Returns the rows about the space that snapshots retain: a row for each, or if there are many,
/// for the oldest and the one that retains most.
fn snapshots(info: &Info, list: &[SnapshotInfo]) -> Vec<(&'static str, String)> {
    if info.snapshots == 0 {
        return Vec::new();
    }
    let retained = format_size(info.snapshot_bytes);
    let each = if list.len() > FEW { ": see `pumice snapshot list`" } else { "" };
    let what = format!("{}, which retain {retained} beyond the disk{each}", info.snapshots);
    let of = |name, info: &SnapshotInfo| {
        let [alone, shared] = [info.alone_bytes, info.shared_bytes].map(format_size);
        let kind = if info.is_bookmark { " (bookmark)" } else { "" };
        let time = snapshot::time(info.created_seconds);
        (name, format!("{}{kind}, {time}: {alone} alone, {shared} with others", info.name))
    };
    let mut rows = vec![("snapshots", what)];
    if list.len() <= FEW {
        rows.extend(list.iter().map(|info| of("snapshot", info)));
    } else {
        rows.extend(list.first().map(|info| of("oldest", info)));
        // The oldest among snapshots that retain the same amount.
        let most = list.iter().rev().max_by_key(|info| info.alone_bytes);
        rows.extend(most.map(|info| of("retains most", info)));
    }
    let damaged = list.iter().filter_map(|info| {
        let damage = info.damage.as_ref()?;
        Some(("damaged", format!("{}: {damage}: see `pumice snapshot delete`", info.name)))
    });
    rows.extend(damaged);
    rows
}

/// Returns the spare capacity relative to the size, or the ratio of size to capacity if the
/// capacity is smaller.
fn room(info: &Info) -> String {
    // The capacity that `create` chooses for a drive with this much over-provisioning.
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

/// Returns the rows of a drive in a bucket.
fn bucket_rows(bucket: &Status, cost: Cost) -> Vec<(&'static str, String)> {
    let requests = &bucket.requests;
    let Cost { requests_usd, storage_usd_per_month, .. } = cost;
    let mut rows = vec![
        ("bucket", format!("{}, {} stored", bucket.place, format_size(bucket.stored_bytes))),
        ("commit", format!("{} of epoch {}", bucket.commit, bucket.epoch)),
        (
            "requests",
            format!(
                "{} PUT, {} GET or HEAD, {} LIST, {} DELETE since the opening",
                requests.puts, requests.gets, requests.lists, requests.deletes
            ),
        ),
        (
            "cost",
            format!(
                "about ${requests_usd:.4} for requests so far, ${storage_usd_per_month:.2} a month \
                 for storage"
            ),
        ),
    ];
    // Without a journal, nothing lags.
    if bucket.lag_bytes_max > 0 {
        let seconds = bucket.lag_ns as f64 / 1e9;
        let (held, most) = (format_size(bucket.lag_bytes), format_size(bucket.lag_bytes_max));
        rows.insert(1, ("lag", format!("{seconds:.1} s, {held} of at most {most}")));
        let returns = match bucket.durable {
            Durable::Local => "the journal",
            Durable::Bucket => "the bucket",
        };
        rows.insert(2, ("flush", format!("returns once all data is in {returns}")));
    }
    rows
}

/// Returns the rows that only a drive with problems, clones or an origin has.
fn troubles(info: &Info) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    for member in info.array.iter().flat_map(|array| &array.members) {
        rows.push(("member", format!("{}, {}", member.path, super::device::word(member.state))));
    }
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
        rows.push(("bad segments", format!("{}, no longer written", numbers.join(", "))));
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

/// Returns a share of the host's writes as text, or "-" if there are none yet.
fn share(info: &Info, share: f64) -> String {
    if info.host_bytes > 0 { format!("{share:.4}") } else { "-".into() }
}

#[cfg(test)]
mod tests {
    //! Goal: the spare space of a drive is stated in the terms of `create`.
    use super::*;
    use crate::watch::tests::snapshot;

    #[test]
    fn spare_is_the_requested_one_and_thin_is_not_negative() {
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
        let (state, snapshot_list, file_bytes) = (State::default(), None, None);
        let bucket_cost = None;
        let shown = Shown { info, state, snapshot_list, file_bytes, bucket_cost };
        let shown = text(Path::new("d"), &shown);
        for row in
            ["state                closed", "stored fraction      -", "saved                -"]
        {
            assert!(shown.contains(&format!("{row}\n")), "{row} in\n{shown}");
        }
    }

    fn kept(name: &str, alone_bytes: u64) -> SnapshotInfo {
        serde_json::from_value(serde_json::json!({
            "name": name, "guid": uuid::Uuid::from_u128(1), "sequence": 1,
            "created_seconds": 1_700_000_000, "size_bytes": 1, "mapped_bytes": 1, "live_bytes": 1,
            "written_bytes": 1, "alone_bytes": alone_bytes, "shared_bytes": 2048
        }))
        .expect("a snapshot")
    }

    #[test]
    fn long_lists_of_snapshots_are_shortened() {
        let mut info = snapshot("d").drives[0].info.clone();
        assert!(snapshots(&info, &[]).is_empty());
        (info.snapshots, info.snapshot_bytes) = (2, 4096);
        let all = ["a", "b", "c", "d", "e"].map(|name| kept(name, 1024 * u64::from(name == "c")));
        let rows = snapshots(&info, &all[..2]);
        let names: Vec<&str> = rows.iter().map(|row| row.0).collect();
        assert_eq!(names, ["snapshots", "snapshot", "snapshot"]);
        assert_eq!(rows[0].1, "2, which retain 4 KiB beyond the disk");
        assert_eq!(rows[2].1, "b, 2023-11-14T22:13:20Z: 0 B alone, 2 KiB with others");
        let rows = snapshots(&info, &all);
        let names: Vec<&str> = rows.iter().map(|row| row.0).collect();
        assert_eq!(names, ["snapshots", "oldest", "retains most"]);
        assert!(rows[0].1.ends_with(": see `pumice snapshot list`"), "{rows:?}");
        assert!(rows[1].1.starts_with("a, ") && rows[2].1.starts_with("c, "), "{rows:?}");
        let mut damaged = kept("f", 1);
        damaged.damage = Some("no bitmap".to_owned());
        let rows = snapshots(&info, &[damaged]);
        assert_eq!(rows[2], ("damaged", "f: no bitmap: see `pumice snapshot delete`".to_owned()));
    }
}
