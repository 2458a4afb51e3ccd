//! Drives on several files or devices: a copy on each, or the space of all.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Args, check_place, device_bytes};
use crate::environment;
use crate::leftovers;
use crate::members;
use crate::open;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{DATA_OFFSET, Spec, create};
use pumice_drive::crypt::Cipher;
use pumice_drive::format::ArrayLayout;
use pumice_drive::media::array::{Array, NewMember};
use pumice_drive::media::file::FileMedium;
use pumice_drive::runtime::{Backend, Runtime};

/// Returns the files or devices of a new drive, in order.
pub(super) fn paths(args: &Args) -> Vec<&Path> {
    [&args.path].into_iter().chain(&args.members).map(PathBuf::as_path).collect()
}

/// Returns the layout of the drive on these members; `None` for a single member.
///
/// # Errors
/// There are several and no option specifies their use, or one is named twice.
pub(super) fn layout(args: &Args) -> Result<Option<ArrayLayout>> {
    let layout = match (args.mirror, args.concat) {
        (true, _) => ArrayLayout::Mirror,
        (_, true) => ArrayLayout::Concat,
        _ if args.members.is_empty() => return Ok(None),
        _ => bail!("several files or devices need --mirror, a copy on each, or --concat"),
    };
    if args.members.is_empty() {
        bail!("{} is the only one: name two or more files or devices", args.path.display());
    }
    let paths = paths(args);
    let file =
        |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino(), found.rdev()));
    for (index, one) in paths.iter().enumerate() {
        let is_same = |other: &&&Path| {
            *other == one
                || matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
        };
        if let Some(other) = paths.iter().skip(index + 1).find(is_same) {
            bail!("{} and {} are the same: name each once", one.display(), other.display());
        }
    }
    Ok(Some(layout))
}

/// Returns the bytes that devices provide for a new drive, as if they were one; `None` if a file
/// can grow to the required size.
pub(super) fn device_bytes_of(args: &Args, segment_bytes: Option<u32>) -> Result<Option<u64>> {
    if args.members.is_empty() {
        return device_bytes(&args.path);
    }
    let mut all = Vec::new();
    for path in paths(args) {
        all.push(device_bytes(path)?);
    }
    if args.mirror {
        return Ok(all.into_iter().flatten().min());
    }
    let whole = |bytes: u64| {
        let usable = bytes.saturating_sub(DATA_OFFSET);
        segment_bytes.map_or(usable, |segment| usable / u64::from(segment) * u64::from(segment))
    };
    let sum = all.into_iter().map(|bytes| bytes.map(whole)).sum::<Option<u64>>();
    Ok(sum.map(|bytes| bytes + DATA_OFFSET))
}

/// Returns the number of segments of each member; 0 for all in a mirror.
fn shares(paths: &[&Path], layout: ArrayLayout, spec: &Spec) -> Result<Vec<u32>> {
    let geometry = spec.geometry()?;
    if layout == ArrayLayout::Mirror {
        return Ok(vec![0; paths.len()]);
    }
    let segment_bytes = u64::from(geometry.segment_bytes);
    let mut left = geometry.segment_count;
    let mut shares = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let others = u32::try_from(paths.len() - index)?;
        let most = match device_bytes(path)? {
            Some(bytes) => {
                u32::try_from(bytes.saturating_sub(DATA_OFFSET) / segment_bytes).unwrap_or(u32::MAX)
            }
            None => left.div_ceil(others),
        };
        let share = most.min(left);
        if share == 0 {
            bail!("{} is too small, or not needed: leave it out", path.display());
        }
        shares.push(share);
        left -= share;
    }
    if left > 0 {
        let missing = format_size(u64::from(left) * segment_bytes);
        bail!("the devices are too small by {missing}: choose a smaller --capacity or --size");
    }
    Ok(shares)
}

/// Creates a drive on several files or devices.
///
/// # Errors
/// One of them cannot be used; those created here have been removed again.
pub(super) fn write(args: &Args, layout: ArrayLayout, spec: &Spec, cipher: Cipher) -> Result<()> {
    let paths = paths(args);
    let geometry = spec.geometry()?;
    let shares = shares(&paths, layout, spec)?;
    for path in &paths {
        check_place(path)?;
        if args.force && !args.overwrite_drive {
            leftovers::refuse_drive(path)?;
        }
    }
    let mut made: Vec<&Path> = Vec::new();
    let written = paths.iter().zip(&shares).try_for_each(|(path, &share)| {
        let existed = path.exists();
        let bytes = match layout {
            ArrayLayout::Mirror => geometry.medium_bytes(),
            ArrayLayout::Concat => {
                geometry.data_offset + u64::from(share) * u64::from(geometry.segment_bytes)
            }
        };
        FileMedium::create(path, bytes, args.force)?;
        if !existed {
            made.push(path);
        }
        anyhow::Ok(())
    });
    let written = written.and_then(|()| format(&paths, &shares, (layout, spec), cipher));
    written.inspect_err(|_| {
        for path in &made {
            // An unfinished file would block the next attempt.
            let _ = fs::remove_file(path);
        }
    })
}

fn format(
    paths: &[&Path],
    shares: &[u32],
    (layout, spec): (ArrayLayout, &Spec),
    cipher: Cipher,
) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let mut members = Vec::new();
    for (path, &segment_count) in paths.iter().zip(shares) {
        let new = NewMember {
            uuid: environment::new_identity(),
            path: members::shown(path)?,
            segment_count,
        };
        members.push((open::blank(&runtime, path)?, new));
    }
    let made = runtime.block_on(async {
        let mut array = Array::create(environment::new_identity(), layout, members).await?;
        array.set_cipher(cipher);
        create(&array, spec).await
    });
    made.with_context(|| paths.first().map(|path| path.display().to_string()).unwrap_or_default())
}
