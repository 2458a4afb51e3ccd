//! `pumice create`: creates a drive.

#[cfg(feature = "objects")]
mod bucket;
mod members;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::KeyArgs;
use super::{Outcome, lossy, print, print_schema, size, thresholds};
use crate::environment;
use crate::keys;
use crate::open;
use pumice_drive::base::units::{format_size, format_size_exact};
use pumice_drive::codec::{Codec, FrameForm};
use pumice_drive::controller::{
    DATA_OFFSET, KeyArea, OVER_PROVISIONING_PERCENT_DEFAULT, SEGMENT_BYTES_DEFAULT, Spec,
    WARN_THRESHOLDS_MAX, create, new_keys,
};
use pumice_drive::crypt::{Cipher, Randomness, RecoveryCode};
use pumice_drive::media::file::FileMedium;
use pumice_drive::runtime::{Backend, Runtime};

/// Sizes chosen by default are multiples of this.
const MIB: u64 = 1 << 20;

/// Minimum number of segments, unless they are of the smallest size: eight times the number that a
/// drive reserves for itself.
const SEGMENTS_FEW: u64 = 88;

/// `f_type` of a tmpfs. Source: statfs(2).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Create a drive on a file (created sparse) or a block device
///
/// A file occupies space as the drive is written, up to the capacity plus 2 MiB. If the file system
/// has less free space, a warning is printed: the drive can then use only the free space.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice create drive.pumice --size 64G
  pumice create drive.pumice --size 64G --codec zstd:3
  pumice create drive.pumice --size 64G --over-provisioning 28
  pumice create /dev/sdx --force
  pumice create /dev/sdx --thin 3x --force
  pumice create /dev/sdx /dev/sdy --mirror
  pumice create s3://BUCKET/NAME --size 1T --journal drive.journal")]
pub(crate) struct Args {
    /// File or block device, or s3://BUCKET/NAME for a drive in a bucket of an S3-compatible store,
    /// which the environment describes (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY)
    path: PathBuf,

    /// More files or devices, with --mirror or --concat
    #[arg(value_name = "PATH")]
    members: Vec<PathBuf>,

    /// Keep a copy of everything on each file or device: the drive survives the loss of all but one
    /// of them, and damage on one is repaired from another
    #[arg(long)]
    mirror: bool,

    /// Use the space of all files or devices, which may differ in size: the drive is lost with any
    /// of them
    #[arg(long, conflicts_with = "mirror")]
    concat: bool,

    /// Size of the disk that hosts see, a multiple of 4 KiB [default: with a capacity or on a block
    /// device, the largest size that fits even if nothing compresses]
    #[arg(long, value_parser = disk_size, value_name = "SIZE", allow_hyphen_values = true)]
    size: Option<u64>,

    /// Size of the disk as a multiple of the capacity, for data that compresses at least this well;
    /// once the log is full, writes fail until the host trims
    #[arg(long, value_parser = factor, value_name = "TIMES", conflicts_with = "size")]
    thin: Option<f64>,

    /// Size of the log on the medium [default: all of a block device; for a file, enough for
    /// incompressible data of the drive's size, plus over-provisioning]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    capacity: Option<u64>,

    /// Capacity in addition to size and overhead, in percent of the size, 1 to 1000; with --size,
    /// the rest of a block device stays unused [default: 12]
    #[arg(long, value_name = "PERCENT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    #[arg(conflicts_with_all = ["capacity", "thin"])]
    over_provisioning: Option<u32>,

    /// Codec for new data: none, lz4, zstd or zstd:LEVEL
    #[arg(long, default_value = "lz4", value_name = "CODEC")]
    codec: Codec,

    /// Unit of compression within a write of several blocks: chunks (of blocks that compress to
    /// one or two pages) are read without the rest of their frame, of up to 32 KiB; solid frames
    /// are denser, and their map needs less memory (--map-cache of serve) [default: chunks; solid
    /// with --encrypt]
    #[arg(long, value_name = "chunks|solid")]
    frame: Option<FrameForm>,

    /// Segment size, 4M to 1G [default: 32M, or less for a small drive: 4M below 704M, 8M below
    /// 1408M, 16M below 2816M]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    segment: Option<u64>,

    /// Percentages of the capacity in use at which to warn, up to four; or none
    #[arg(long, value_parser = thresholds, default_value = "80,90,95", value_name = "PERCENT,...")]
    warn: [u8; WARN_THRESHOLDS_MAX],

    /// Reserve space for the whole capacity, and keep it reserved
    #[arg(long)]
    preallocate: bool,

    /// Overwrite existing data
    #[arg(long)]
    force: bool,

    /// With --force: overwrite even a Pumice drive, or the remains of one
    #[arg(long, requires = "force")]
    overwrite_drive: bool,

    /// Encrypt everything on the medium, with a key from the flags below or from a passphrase
    /// prompt; prints a recovery code, once
    #[arg(long)]
    encrypt: bool,

    #[command(flatten)]
    keys: KeyArgs,

    #[cfg(feature = "objects")]
    #[command(flatten)]
    bucket: bucket::BucketArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Parses the size of a disk. A number without a unit is unlikely to mean bytes.
fn disk_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_bare && bytes > 0 && bytes < 4096 {
        return Err(format!("this is in bytes: did you mean {text}G?"));
    }
    Ok(bytes)
}

/// Parses the ratio of a disk's size to its capacity.
fn factor(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('x').unwrap_or(text).parse().ok();
    let number = number.filter(|times| (1.0..=1000.0).contains(times));
    number.ok_or_else(|| "expected a factor from 1x to 1000x, such as 3x".to_owned())
}

/// The new drive.
#[derive(Serialize, JsonSchema)]
pub(super) struct Created {
    /// The drive's file or device.
    path: String,
    /// Identity.
    uuid: uuid::Uuid,
    /// Size of the host's disk.
    size_bytes: u64,
    /// Bytes of all segments.
    capacity_bytes: u64,
    /// Bytes of one segment.
    segment_bytes: u32,
    /// Codec for new data.
    codec: String,
    /// The files or devices, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<String>,
    /// Bytes that the file may take, or the bytes of a device that the drive uses.
    medium_bytes: u64,
    /// Bytes that the file system of a file has left.
    free_bytes: Option<u64>,
    /// Whether space for all segments is reserved on the medium.
    preallocated: bool,
    /// Whether everything on the medium is encrypted.
    encrypted: bool,
    /// The code that opens the drive when all its other keys are lost. Shown only once.
    recovery_code: Option<String>,
}

/// Returns the segment size for a drive of `bytes`: its capacity, or the size of its device or its
/// disk. A drive reserves 11 or more segments for itself, which must be a small part.
pub(crate) fn segment_bytes_of(bytes: u64) -> u32 {
    let sizes = [SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT / 2, SEGMENT_BYTES_DEFAULT / 4];
    let fits = |segment_bytes: &u32| bytes / u64::from(*segment_bytes) >= SEGMENTS_FEW;
    sizes.into_iter().find(fits).unwrap_or(SEGMENT_BYTES_DEFAULT / 8)
}

/// Returns the requested segment size, or one that suits the drive.
fn segment_bytes(args: &Args) -> Result<u32> {
    let Some(bytes) = args.segment else {
        let given = args
            .capacity
            .map_or_else(|| members::device_bytes_of(args, None), |bytes| Ok(Some(bytes)));
        return Ok(segment_bytes_of(given?.or(args.size).unwrap_or(0)));
    };
    u32::try_from(bytes).ok().with_context(|| {
        let usual = format_size_exact(SEGMENT_BYTES_DEFAULT.into());
        format!("invalid segment size: expected 4M to 1G (the default is {usual})")
    })
}

/// Returns the specification of the drive, with a new identity and the current time.
fn spec(args: &Args, segment_bytes: u32) -> Result<Spec> {
    if args.encrypt && args.frame == Some(FrameForm::Chunks) {
        bail!("an encrypted drive has solid frames: omit --frame");
    }
    let over_provisioning = args.over_provisioning.unwrap_or(OVER_PROVISIONING_PERCENT_DEFAULT);
    let spec = Spec {
        created_seconds: environment::unix_seconds(),
        over_provisioning_percent: over_provisioning,
        preallocated: args.preallocate,
        segment_bytes,
        codec: args.codec,
        frame_form: args.frame.unwrap_or(FrameForm::Chunks),
        warn_percent: args.warn,
        // The capacity covers the overhead of encryption; the keys are drawn later.
        keys: args.encrypt.then(KeyArea::default),
        ..Spec::new(environment::new_identity(), 0)
    };
    let capacity_bytes = match (args.capacity, args.over_provisioning, args.size) {
        (Some(bytes), ..) => Some(bytes),
        // The capacity follows from size and over-provisioning.
        (None, Some(_), Some(_)) => None,
        _ => {
            let bytes = members::device_bytes_of(args, Some(segment_bytes))?;
            bytes.map(|bytes| bytes.saturating_sub(DATA_OFFSET))
        }
    };
    let size_bytes = match (args.size, args.thin, capacity_bytes) {
        (Some(bytes), ..) => bytes,
        (None, Some(times), Some(bytes)) => (bytes as f64 * times) as u64 / MIB * MIB,
        (None, None, Some(bytes)) => size_covered(&spec, bytes),
        (None, Some(_), None) => bail!("--thin needs the --capacity of a file, such as 100G"),
        (None, None, None) => bail!("--size is missing: specify the size of the disk, such as 64G"),
    };
    // A capacity that covers no disk is refused as such, not for its size.
    let size_bytes = args.size.unwrap_or(size_bytes.max(MIB));
    Ok(Spec { size_bytes, capacity_bytes, ..spec })
}

/// Returns the largest size, in whole mebibytes, that a capacity covers even if nothing compresses;
/// 0 if there is none.
fn size_covered(spec: &Spec, capacity_bytes: u64) -> u64 {
    let is_covered = |size: u64| {
        let spec = Spec { size_bytes: size * MIB, ..spec.clone() };
        spec.geometry().is_ok_and(|needed| needed.capacity_bytes() <= capacity_bytes)
    };
    let (mut covered, mut too_much) = (0, capacity_bytes / MIB + 1);
    while too_much - covered > 1 {
        let size = covered.midpoint(too_much);
        if is_covered(size) { covered = size } else { too_much = size }
    }
    covered * MIB
}

/// Returns the size of a block device; `None` for anything else.
fn device_bytes(path: &Path) -> Result<Option<u64>> {
    let is_device = |metadata: fs::Metadata| metadata.file_type().is_block_device();
    if !fs::metadata(path).is_ok_and(is_device) {
        return Ok(None);
    }
    let size = File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0)));
    Ok(Some(size.with_context(|| format!("cannot read the size of {}", path.display()))?))
}

/// Checks that a file belongs at its path: a mistyped name of a device would become a file in
/// memory.
fn check_place(path: &Path) -> Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(());
    }
    let folder = folder_of(path);
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let is_below = |top: &str| folder.starts_with(top);
    if is_below("/dev") && !is_below("/dev/shm") {
        bail!("{} is not a block device: choose a path outside of /dev", path.display());
    }
    if is_below("/proc") || is_below("/sys") {
        bail!(
            "{} cannot hold a drive: choose a path outside of {}",
            path.display(),
            folder.display()
        );
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the bytes that the file system has left for a file, including the space that it already
/// takes; `None` for a device, or if the file system does not report it.
fn free_bytes(path: &Path) -> Option<u64> {
    let own_bytes = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return None,
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    let space = rustix::fs::statvfs(folder_of(path)).ok()?;
    Some((space.f_bavail * space.f_frsize).saturating_add(own_bytes))
}

/// Warns about properties of the file's file system that the user may not expect.
fn warn(path: &Path, needed: u64, free: Option<u64>) {
    let (path, folder) = (path.display(), folder_of(path));
    if let Some(free) = free.filter(|free| *free < needed) {
        tracing::warn!(
            "{path} may grow to {}, and its file system has {} free: the drive refuses writes \
             once neither has space left (--capacity makes it smaller)",
            format_size(needed),
            format_size(free)
        );
    }
    let is_in_memory = || {
        let found = rustix::fs::statfs(folder);
        found.is_ok_and(|found| found.f_type == TMPFS_MAGIC)
    };
    if free.is_some() && is_in_memory() {
        tracing::warn!("{path} is in memory (tmpfs): it is lost when the machine restarts");
    }
}

/// Creates a drive at a path without a file, or on an empty device; encrypted if there are `keys`,
/// with the key that they name.
///
/// # Errors
/// The specification is impossible, the path is in use, the key cannot be read, or the medium
/// cannot be used; nothing has changed then.
pub(crate) fn on_new(path: &Path, spec: &Spec, keys: Option<&KeyArgs>) -> Result<()> {
    check_place(path)?;
    let (spec, cipher) = &with_keys_of(spec.clone(), keys, path)?;
    let shown = || path.display().to_string();
    let geometry = spec.geometry().with_context(shown)?;
    let existed = path.exists();
    FileMedium::create(path, geometry.medium_bytes(), false)?;
    write(path, spec, cipher.clone()).inspect_err(|_| {
        if !existed {
            // An unfinished file would block the next attempt.
            let _ = fs::remove_file(path);
        }
    })
}

/// Checks that [`on_new`] can create a drive, as far as this can be determined in advance.
///
/// # Errors
/// The specification is impossible, or the path is in use.
pub(crate) fn check_new(path: &Path, spec: &Spec) -> Result<()> {
    check_place(path)?;
    spec.geometry().with_context(|| path.display().to_string())?;
    let is_full = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0);
    if is_full {
        bail!("{} already exists, and is not empty", path.display());
    }
    Ok(())
}

fn write(path: &Path, spec: &Spec, cipher: Cipher) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let medium = open::blank(&runtime, path)?.with_cipher(cipher);
    runtime.block_on(create(&medium, spec)).with_context(|| path.display().to_string())
}

/// Runs the subcommand.
///
/// # Errors
/// The specification is impossible, or the medium cannot be used; nothing has changed then.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    #[cfg(feature = "objects")]
    if let Some(place) = bucket::of(args)? {
        return bucket::run(args, &place);
    }
    check_place(&args.path)?;
    let layout = members::layout(args)?;
    let segment_bytes = segment_bytes(args)?;
    let spec = spec(args, segment_bytes)?;
    let (spec, cipher, recovery_code) = encrypted(args, spec)?;
    let geometry = spec.geometry().with_context(|| args.path.display().to_string())?;
    let (needed, free) = (geometry.medium_bytes(), free_bytes(&args.path));
    if args.preallocate && free.is_some_and(|free| free < needed) {
        bail!(
            "cannot reserve {} for {}: its file system has {} free",
            format_size(needed),
            args.path.display(),
            format_size(free.unwrap_or(0))
        );
    }

    match layout {
        Some(layout) => members::write(args, layout, &spec, cipher)?,
        None => make(args, &spec, geometry.medium_bytes(), cipher)?,
    }
    let created = Created {
        path: lossy(&args.path),
        uuid: spec.uuid,
        size_bytes: spec.size_bytes,
        capacity_bytes: geometry.capacity_bytes(),
        segment_bytes,
        codec: args.codec.to_string(),
        members: match layout {
            Some(_) => members::paths(args).into_iter().map(lossy).collect(),
            None => Vec::new(),
        },
        medium_bytes: needed,
        free_bytes: free,
        preallocated: args.preallocate,
        encrypted: args.encrypt,
        recovery_code: recovery_code.map(|code| code.to_string()),
    };
    warn(&args.path, needed, free.filter(|_| !args.preallocate));
    if args.json {
        print_schema("create-1", &created)?;
    } else {
        print(&text(&created))?;
    }
    Ok(Outcome::Good)
}

/// Adds keys to the specification of a drive at `path`, if there are `keys`: the key that they name
/// opens it. Returns the specification and its cipher.
///
/// # Errors
/// The key cannot be read.
pub(crate) fn with_keys_of(
    spec: Spec,
    keys: Option<&KeyArgs>,
    path: &Path,
) -> Result<(Spec, Cipher)> {
    let Some(keys) = keys else { return Ok((spec, Cipher::default())) };
    let secrets = [keys::given_or_asked(keys.source()?, path)?];
    let (cipher, area) = new_keys(spec.uuid, &secrets, spec.created_seconds, Randomness::System)?;
    Ok((Spec { keys: Some(area), ..spec }, cipher))
}

/// Draws the keys of a drive if it is encrypted: adds them to its specification, and returns the
/// specification, the cipher and the recovery code.
fn encrypted(args: &Args, spec: Spec) -> Result<(Spec, Cipher, Option<RecoveryCode>)> {
    if !args.encrypt {
        if !args.keys.is_empty() {
            bail!("a key was given without --encrypt");
        }
        return Ok((spec, Cipher::default(), None));
    }
    let secret = keys::new_secret(args.keys.source()?)?;
    let code = RecoveryCode::draw(&Randomness::System);
    let secrets = [secret, code.secret()];
    let (cipher, area) = new_keys(spec.uuid, &secrets, spec.created_seconds, Randomness::System)?;
    // The capacity covers the seals.
    Ok((Spec { keys: Some(area), ..spec }, cipher, Some(code)))
}

/// Creates a drive on one file or device.
fn make(args: &Args, spec: &Spec, medium_bytes: u64, cipher: Cipher) -> Result<()> {
    if args.force && !args.overwrite_drive {
        crate::leftovers::refuse_drive(&args.path)?;
    }
    let existed = args.path.exists();
    FileMedium::create(&args.path, medium_bytes, args.force)?;
    write(&args.path, spec, cipher).inspect_err(|_| {
        if !existed {
            // An unfinished file would block the next attempt.
            let _ = std::fs::remove_file(&args.path);
        }
    })
}

/// Returns a part of a whole in percent, or as a fraction where that would be 0.
fn share(part: u64, whole: u64) -> String {
    match part as f64 * 100.0 / whole as f64 {
        percent if percent < 0.5 => format!("1/{}", whole / part.max(1)),
        percent => format!("{percent:.0} %"),
    }
}

/// Returns the warning for a drive with less capacity than size, in bytes; `None` for any other
/// drive.
pub(super) fn thin(size: u64, capacity: u64) -> Option<String> {
    let told = |share| {
        format!(
            "thin: the log fills up unless the data of a full disk compresses to {share} or \
                 less"
        )
    };
    (capacity < size).then(|| told(share(capacity, size)))
}

fn text(created: &Created) -> String {
    let path = &created.path;
    let (size, capacity) = (created.size_bytes, created.capacity_bytes);
    let mut text = format!(
        "created {path}: size {}, capacity {}, codec {}\n",
        format_size(size),
        format_size(capacity),
        created.codec
    );
    if let Some(thin) = thin(size, capacity) {
        text += &format!("{thin}\n");
    }
    if let Some(code) = &created.recovery_code {
        text += &format!(
            "encrypted; its recovery code, which is not shown again and opens the drive when every \
             other key is lost:\n{code}\n"
        );
    }
    // If the free space is too small, a warning was already printed.
    if let Some(free) = created.free_bytes.filter(|free| *free >= created.medium_bytes) {
        let (medium, free) = (format_size(created.medium_bytes), format_size(free));
        text += &if created.preallocated {
            format!("{medium} of {free} are reserved for the file\n")
        } else {
            format!("the file may grow to {medium}; its file system has {free} free\n")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    //! Goal: default sizes are covered by the capacity, and numbers are read as they are meant.
    use super::*;

    #[test]
    fn the_size_that_is_covered_is_the_largest() {
        for (capacity, segment_bytes) in
            [(1 << 30, 4 << 20), (75 << 30, 32 << 20), (1 << 43, 1 << 28)]
        {
            let spec = Spec { segment_bytes, ..Spec::new(uuid::Uuid::nil(), 0) };
            let size_bytes = size_covered(&spec, capacity);
            let needed = |size_bytes| {
                let geometry = Spec { size_bytes, ..spec.clone() }.geometry();
                geometry.expect("a geometry").capacity_bytes()
            };
            assert!(size_bytes > capacity / 2 && needed(size_bytes) <= capacity, "{size_bytes}");
            assert!(needed(size_bytes + MIB) > capacity, "{size_bytes}");
        }
        assert_eq!(size_covered(&Spec::new(uuid::Uuid::nil(), 0), 64 << 20), 0);
    }

    #[test]
    fn small_drives_have_small_segments() {
        let mib = |bytes: u64| segment_bytes_of(bytes * MIB) >> 20;
        let sizes = [1, 703, 704, 1407, 1408, 2815, 2816, 1 << 20].map(mib);
        assert_eq!(sizes, [4, 4, 8, 8, 16, 16, 32, 32]);
        for (size, most) in [(100, 210), (1024, 1450), (4096, 5300)] {
            let segment_bytes = segment_bytes_of(size * MIB);
            let spec = Spec { segment_bytes, ..Spec::new(uuid::Uuid::nil(), size * MIB) };
            let capacity = spec.geometry().expect("a geometry").capacity_bytes();
            assert!(capacity < most * MIB, "{size} MiB: {} MiB", capacity / MIB);
        }
    }

    #[test]
    fn a_number_alone_is_not_taken_for_a_size() {
        assert_eq!(disk_size("64G"), Ok(64 << 30));
        assert_eq!(disk_size("8192"), Ok(8192));
        assert_eq!(disk_size("64"), Err("this is in bytes: did you mean 64G?".into()));
        assert_eq!([factor("3x"), factor("1.5")], [Ok(3.0), Ok(1.5)]);
        for wrong in ["", "x", "0.5x", "nan", "-1x", "3xx", "1001"] {
            assert!(factor(wrong).is_err(), "{wrong}");
        }
    }
}
