//! Looks for the remains of a drive on a file or device without superblocks, so that no message
//! leads a user to overwrite data.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use uuid::Uuid;

use crate::objects::BucketPlace;
use crate::place::cannot_open;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::format::{SEGMENT_BYTES_MIN, SUPERBLOCK_BYTES, SegmentHeader, Superblock};
use pumice_drive::media::tier::journal_in;
use pumice_drive::media::{SUPERBLOCK_SLOTS, SUPERBLOCK_STRIDE};

/// Byte offset of the first segment of every drive that `pumice create` made.
const DATA_OFFSET: u64 = 2 << 20;

/// Number of multiples of the smallest segment size at which a header is searched: the first 64
/// GiB. Segments of 32 MiB, the default, begin at such multiples.
const PROBES: u64 = 16_384;

/// The contents of a file or device.
pub(crate) enum Remains {
    /// A complete superblock, of the drive with this uuid.
    Drive(Uuid),
    /// The journal of the drive with this uuid, which is in a bucket.
    Journal(Uuid),
    /// A superblock, or a journal, of a newer format than this program supports.
    Newer,
    /// The target of an incomplete rebuild.
    IncompleteRebuild,
    /// A segment of the drive with this uuid.
    Segments(Uuid),
    /// Other data.
    Other,
    /// Zeroes, as far as it was read.
    Blank,
}

/// Looks for superblocks and segment headers. Bytes that cannot be read count as other data.
pub(crate) fn look(path: &Path) -> Remains {
    let Ok(file) = File::open(path) else { return Remains::Other };
    // A segment header is as long as a superblock.
    let mut page = [0; SUPERBLOCK_BYTES];
    let mut is_blank = true;
    let (mut newest, mut is_newer): (Option<Superblock>, _) = (None, false);
    for slot in 0..u64::from(SUPERBLOCK_SLOTS) {
        is_blank &= read(&file, slot * SUPERBLOCK_STRIDE, &mut page);
        match journal_in(&page) {
            Ok(Some(uuid)) => return Remains::Journal(uuid),
            Ok(None) => {}
            Err(_) => is_newer = true,
        }
        match Superblock::decode(&page) {
            Ok(found) if newest.as_ref().is_none_or(|newest| newest.revision < found.revision) => {
                newest = Some(found);
            }
            Err(error) => is_newer |= error.kind() == ErrorKind::Unsupported,
            Ok(_) => {}
        }
    }
    match newest {
        _ if is_newer => return Remains::Newer,
        Some(found) if found.incomplete => return Remains::IncompleteRebuild,
        Some(found) => return Remains::Drive(found.uuid),
        None => {}
    }
    for probe in 0..PROBES {
        is_blank &= read(&file, DATA_OFFSET + probe * u64::from(SEGMENT_BYTES_MIN), &mut page);
        if let Some(header) = SegmentHeader::found_in(&page) {
            return Remains::Segments(header.uuid);
        }
    }
    if is_blank { Remains::Blank } else { Remains::Other }
}

/// Reads a page, and returns whether it is blank, as all pages beyond the end of the file are.
fn read(file: &File, offset: u64, page: &mut [u8]) -> bool {
    page.fill(0);
    match file.read_exact_at(page, offset) {
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => false,
        _ => page.iter().all(|&byte| byte == 0),
    }
}

/// Adds the path to an error of opening a drive, and advice if the drive has no superblocks.
pub(crate) fn advise(path: &Path, error: Error) -> anyhow::Error {
    let shown = path.display();
    if error.kind() != ErrorKind::NotADrive {
        return anyhow::Error::new(error).context(shown.to_string());
    }
    match look(path) {
        Remains::Segments(uuid) => anyhow!(
            "{shown}: its superblocks are lost, but segments of the Pumice drive {uuid} remain: \
             create a working drive from them with `pumice rebuild {shown} NEW`"
        ),
        Remains::Blank => {
            anyhow!(
                "{shown}: it holds no Pumice drive and is blank: create one with `pumice create`"
            )
        }
        Remains::Other => anyhow!(
            "{shown}: it holds other data and no Pumice drive: check the path; `pumice list \
             DIRECTORY` shows the drives there"
        ),
        _ => anyhow::Error::new(error).context(shown.to_string()),
    }
}

/// Checks that a path holds a drive that can be served, as far as this can be determined without
/// opening it.
///
/// # Errors
/// It does not exist, cannot be read, or holds something else.
pub(crate) fn check(path: &Path) -> Result<()> {
    if BucketPlace::of(path)?.is_some() {
        return Ok(());
    }
    let shown = path.display();
    File::open(path).map_err(|error| cannot_open(path, error))?;
    if crate::members::header_at(path).is_some() {
        return Ok(());
    }
    match look(path) {
        Remains::Drive(_) | Remains::Journal(_) => Ok(()),
        Remains::Newer => bail!("{shown} holds a drive of a newer pumice"),
        Remains::IncompleteRebuild => bail!("{shown} is the target of an incomplete rebuild"),
        Remains::Segments(uuid) => bail!(
            "{shown} holds segments of the Pumice drive {uuid}, which `pumice rebuild {shown} \
             NEW` can recover"
        ),
        Remains::Other | Remains::Blank => bail!("{shown} holds no Pumice drive"),
    }
}

/// Refuses to overwrite a drive, or the remains of one.
///
/// # Errors
/// The path holds a drive that is not an incomplete rebuild, or segments of one.
pub(crate) fn refuse_drive(path: &Path) -> Result<()> {
    let shown = path.display();
    match look(path) {
        Remains::Drive(uuid) => bail!(
            "{shown} holds the Pumice drive {uuid}: add --overwrite-drive to destroy it for good"
        ),
        Remains::Journal(uuid) => bail!(
            "{shown} is the journal of the Pumice drive {uuid}, and may hold data that its bucket \
             lacks: add --overwrite-drive to destroy it for good"
        ),
        Remains::Newer => bail!(
            "{shown} holds a drive of a newer pumice: add --overwrite-drive to destroy it for good"
        ),
        Remains::Segments(uuid) => bail!(
            "{shown} holds segments of the Pumice drive {uuid}, which `pumice rebuild {shown} \
             NEW` can recover: add --overwrite-drive to destroy them for good"
        ),
        Remains::IncompleteRebuild | Remains::Other | Remains::Blank => Ok(()),
    }
}
