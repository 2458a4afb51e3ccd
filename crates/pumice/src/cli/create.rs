//! `pumice create`: creates a drive.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Outcome, print, print_json, size, thresholds};
use pumice_drive::base::units::{format_size, format_size_exact};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{
    OVER_PROVISIONING_PERCENT_DEFAULT, SEGMENT_BYTES_DEFAULT, Spec, WARN_THRESHOLDS_MAX, create,
};
use pumice_drive::media::file::FileMedium;
use pumice_drive::runtime::{Backend, Runtime};

/// Create a drive on a file (created sparse) or a block device
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice create drive.pumice --size 64G
  pumice create drive.pumice --size 64G --codec zstd:3
  pumice create drive.pumice --size 64G --over-provisioning 28
  pumice create /dev/sdx --size 2T --capacity 1T --force")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Size of the disk that hosts see, a multiple of 4 KiB
    #[arg(long, value_parser = size, value_name = "SIZE", allow_hyphen_values = true)]
    size: u64,

    /// Size of the log on the medium [default: enough for incompressible data of the drive's size,
    /// plus over-provisioning]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    capacity: Option<u64>,

    /// Capacity in addition to size and overhead, in percent of the size, 1 to 1000
    #[arg(long, default_value_t = OVER_PROVISIONING_PERCENT_DEFAULT, value_name = "PERCENT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "capacity")]
    over_provisioning: u32,

    /// Codec for new data: none, lz4, zstd or zstd:LEVEL
    #[arg(long, default_value = "lz4", value_name = "CODEC")]
    codec: Codec,

    /// Segment size, 4M to 1G
    #[arg(long, value_parser = size, default_value = "32M", value_name = "SIZE")]
    segment: u64,

    /// Warn when this much of the capacity is in use, up to four percentages; or none
    #[arg(long, value_parser = thresholds, default_value = "80,90,95", value_name = "PERCENT,...")]
    warn: [u8; WARN_THRESHOLDS_MAX],

    /// Overwrite existing data
    #[arg(long)]
    force: bool,

    /// With --force: overwrite even a Pumice drive, or what is left of one
    #[arg(long, requires = "force")]
    overwrite_drive: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Created {
    path: PathBuf,
    uuid: uuid::Uuid,
    size_bytes: u64,
    capacity_bytes: u64,
    segment_bytes: u32,
    codec: String,
}

/// Returns the specification of the drive, with a new identity and the current time.
#[allow(clippy::disallowed_methods, reason = "a new drive's identity and date come from outside")]
fn spec(args: &Args, segment_bytes: u32) -> Spec {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Spec {
        created_seconds: since_1970.map_or(0, |since| since.as_secs()),
        capacity_bytes: args.capacity,
        over_provisioning_percent: args.over_provisioning,
        segment_bytes,
        codec: args.codec,
        warn_percent: args.warn,
        ..Spec::new(uuid::Uuid::new_v4(), args.size)
    }
}

fn write(path: &Path, spec: &Spec) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let medium = super::open::medium(&runtime, path, false)?;
    runtime.block_on(create(&medium, spec)).with_context(|| path.display().to_string())
}

/// Runs the subcommand.
///
/// # Errors
/// The specification is impossible, or the medium cannot be used; nothing has changed then.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let segment_bytes = u32::try_from(args.segment).ok().with_context(|| {
        let usual = format_size_exact(SEGMENT_BYTES_DEFAULT.into());
        format!("invalid segment size: expected 4M to 1G (the default is {usual})")
    })?;
    let spec = spec(args, segment_bytes);
    let geometry = spec.geometry().with_context(|| args.path.display().to_string())?;
    if args.force && !args.overwrite_drive {
        super::remains::refuse_drive(&args.path)?;
    }
    let existed = args.path.exists();
    FileMedium::create(&args.path, geometry.medium_bytes(), args.force)?;
    write(&args.path, &spec).inspect_err(|_| {
        if !existed {
            // An unfinished file would be in the way of the next attempt.
            let _ = std::fs::remove_file(&args.path);
        }
    })?;
    let created = Created {
        path: args.path.clone(),
        uuid: spec.uuid,
        size_bytes: args.size,
        capacity_bytes: geometry.capacity_bytes(),
        segment_bytes,
        codec: args.codec.to_string(),
    };
    if args.json {
        print_json(&created)?;
    } else {
        print(&format!(
            "created {}: size {}, capacity {}, codec {}\n",
            args.path.display(),
            format_size(created.size_bytes),
            format_size(created.capacity_bytes),
            created.codec
        ))?;
    }
    Ok(Outcome::Good)
}
