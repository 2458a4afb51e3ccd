//! `pumice clone`: creates a writable drive from a snapshot of another drive, from which it
//! continues to read.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::KeyArgs;
use super::{Outcome, create, lossy, print, print_schema, size, snapshot, state};
use crate::environment;
use crate::keys;
use crate::open::origin::{self, CHAIN_MAX};
use crate::place::Place;
use pumice_drive::base::SeqNo;
use pumice_drive::base::units::format_size;
use pumice_drive::codec::{Codec, FrameForm};
use pumice_drive::controller::{Origin, RegisteredClone, SnapshotInfo, Spec};
use pumice_drive::format::check_clone_path;
use pumice_drive::runtime::{Backend, Runtime};

/// Create a writable copy-on-write drive from a snapshot
///
/// The clone stores new writes and reads everything else from the snapshot, in units of 4 KiB,
/// until `pumice flatten` makes it independent. Until then the drive of the snapshot, its origin,
/// must remain, served or closed, and cannot delete the snapshot. The clone records the path of its
/// origin, which is looked up there, then in the clone's folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice snapshot create template.pumice@golden
  pumice clone template.pumice@golden vm1.pumice
  pumice clone template.pumice@golden vm2.pumice --size 128G
  pumice flatten vm1.pumice")]
pub(crate) struct Args {
    /// File or block device, and the name of its snapshot
    #[arg(value_name = "PATH@NAME")]
    snapshot: PathBuf,

    /// File of the new drive, or an empty block device
    #[arg(value_name = "NEW")]
    target: PathBuf,

    /// Size of the disk, at least the size of the snapshot [default: the snapshot's size]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    size: Option<u64>,

    /// Size of the log on the medium [default: enough for a completely written disk]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    capacity: Option<u64>,

    /// Codec for new data: none, lz4, zstd or zstd:LEVEL [default: the origin's]
    #[arg(long, value_name = "CODEC")]
    codec: Option<Codec>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The new clone.
#[derive(Serialize, JsonSchema)]
pub(super) struct Cloned {
    /// The clone's file or device.
    path: String,
    /// Identity of the clone.
    uuid: uuid::Uuid,
    /// Size of its disk in bytes.
    size_bytes: u64,
    /// Bytes of all its segments.
    capacity_bytes: u64,
    /// Codec for new data.
    codec: String,
    /// File or device of the drive that it reads from.
    origin: String,
    /// The snapshot of that drive.
    snapshot: SnapshotInfo,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no such snapshot, the new drive cannot be created, or its path is too long: nothing has
/// changed then.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let (path, name) = Place::snapshot(&args.snapshot)?;
    let runtime = Runtime::new(Backend::Auto)?;
    let (info, _) = state::read(&path)?;
    let found = snapshot::named(&path, &name)?;
    let shown = || args.snapshot.display().to_string();
    if origin::depth(&runtime, &path).with_context(shown)? > CHAIN_MAX {
        bail!(
            "{}: the chain of clones is too long (at most {CHAIN_MAX}): make this clone \
             independent with `pumice flatten` first",
            path.display()
        );
    }
    if args.size.is_some_and(|size| size < found.size_bytes) {
        bail!(
            "the disk of the snapshot has {}: a clone cannot be smaller",
            format_size(found.size_bytes)
        );
    }
    let codec = args.codec.map_or_else(|| info.codec.parse(), Ok);
    let codec = codec.map_err(|error| anyhow::anyhow!("the codec of the origin: {error}"))?;
    let size_bytes = args.size.unwrap_or(found.size_bytes);
    let wanted = Origin {
        drive: info.uuid,
        snapshot: found.guid,
        watermark: SeqNo(found.sequence),
        blocks: found.size_bytes / 4096,
        path: absolute(&path)?,
    };
    let spec = Spec {
        created_seconds: environment::unix_seconds(),
        segment_bytes: create::segment_bytes_of(args.capacity.unwrap_or(size_bytes)),
        capacity_bytes: args.capacity,
        codec,
        frame_form: FrameForm::from_format(info.has_chunks),
        frame_blocks: info.frame_blocks,
        origin: Some(wanted),
        ..Spec::new(environment::new_identity(), size_bytes)
    };
    // New data, and data that `flatten` copies, is as secret as the origin.
    let keys = info.encrypted.then_some(&args.keys);
    let snapshot = make(&args.target, (&path, &name), &spec, keys)?;
    let cloned = Cloned {
        path: lossy(&args.target),
        uuid: spec.uuid,
        size_bytes,
        capacity_bytes: spec.geometry()?.capacity_bytes(),
        codec: codec.to_string(),
        origin: lossy(&path),
        snapshot,
    };
    if args.json {
        print_schema("clone-1", &cloned)?;
    } else {
        print(&text(&cloned))?;
    }
    Ok(Outcome::Good)
}

/// Registers the clone, then creates it.
fn make(
    target: &Path,
    (path, name): (&Path, &str),
    spec: &Spec,
    keys: Option<&KeyArgs>,
) -> Result<SnapshotInfo> {
    create::check_new(target, spec)?;
    // Checked before anything has changed.
    if let Some(keys) = keys {
        keys::given_or_asked(keys.source()?, target)?;
    }
    let clone = RegisteredClone {
        drive: spec.uuid,
        path: absolute(target)?,
        created_seconds: spec.created_seconds,
    };
    check_clone_path(&clone.path)?;
    let registered = snapshot::register(path, name, clone)?;
    let guid = spec.origin.as_ref().map(|origin| origin.snapshot);
    let made = if Some(registered.guid) == guid {
        create::on_new(target, spec, keys)
    } else {
        Err(anyhow::anyhow!("{}@{name} was replaced in the meantime: try again", path.display()))
    };
    if let Err(error) = made {
        // Otherwise the clone stays registered although it does not exist, and prevents deletion of
        // the snapshot.
        let _ = snapshot::forget(path, spec.uuid);
        return Err(error);
    }
    Ok(registered)
}

/// Registers the new drive, on which the clone at `source` is rebuilt, with the origin of the
/// clone; returns the path of the origin. `None` if the source is no clone.
///
/// # Errors
/// The origin is missing, or has no such snapshot: nothing has changed.
pub(super) fn list_rebuilt(source: &Path, target: &Path, spec: &Spec) -> Result<Option<PathBuf>> {
    let Some(wanted) = &spec.origin else { return Ok(None) };
    let path = origin::path_of(source, wanted);
    let listing = || {
        let found = snapshot::list(&path)?.into_iter().find(|info| info.guid == wanted.snapshot);
        let found = found.context("it no longer has the snapshot")?;
        let (drive, created_seconds) = (spec.uuid, spec.created_seconds);
        let clone = RegisteredClone { drive, path: absolute(target)?, created_seconds };
        check_clone_path(&clone.path)?;
        snapshot::register(&path, &found.name, clone)
    };
    let what = || {
        let (clone, origin) = (source.display(), path.display());
        let next = if path.exists() { "" } else { ": move it back there or beside the clone" };
        format!(
            "{clone} is a clone, and so is the new drive: its origin {origin} must list it{next}"
        )
    };
    listing().with_context(what)?;
    Ok(Some(path))
}

/// Returns the absolute path of a file that may not exist yet, without links in its folder.
fn absolute(path: &Path) -> Result<String> {
    let whole = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let folder = whole.parent().and_then(|folder| folder.canonicalize().ok());
    let whole = match (whole.canonicalize(), folder, whole.file_name()) {
        (Ok(whole), ..) => whole,
        (_, Some(folder), Some(name)) => folder.join(name),
        _ => whole,
    };
    let text = whole.to_str().map(ToOwned::to_owned);
    text.with_context(|| {
        format!("{}: the path of a clone or an origin must be UTF-8", whole.display())
    })
}

fn text(cloned: &Cloned) -> String {
    let Cloned { path, size_bytes, capacity_bytes, codec, origin, snapshot, .. } = cloned;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "created {path}: size {}, capacity {}, codec {codec}, a clone of {origin}@{}",
        format_size(*size_bytes),
        format_size(*capacity_bytes),
        snapshot.name
    );
    text
}
