//! The parameters of a simulated drive, from a profile or from a test.

use super::cached::CachedSpec;
use crate::block_mapped::BlockMappedSpec;
use crate::disk::DiskSpec;
use crate::front::FrontSpec;
use crate::ftl::StoredSizes;
use crate::nand::FlashShape;
use crate::profile::{Design, Disk, Mapping, Profile};
use crate::{Error, LogStoreSpec, Result, convert};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::codec::Codec;

/// Parameters of a simulated drive.
#[derive(Clone, Debug)]
pub struct SimSpec {
    /// Size of the disk seen by the host, in bytes: a multiple of 4096.
    pub size_bytes: u64,
    /// Link and processor.
    pub front: FrontSpec,
    /// Maximum command length in bytes. A longer request is sent as several concurrent commands.
    pub command_bytes_max: u64,
    /// The storage.
    pub design: SimDesign,
}

/// The storage of a simulated drive.
#[derive(Clone, Debug)]
pub enum SimDesign {
    /// A log on flash with this codec; [`Codec::None`] for a drive that does not compress, or whose
    /// stored sizes are independent of its data.
    Log(Codec, Box<LogStoreSpec>),
    /// Flash with a map of large units.
    BlockMapped(BlockMappedSpec),
    /// A hard disk.
    Disk(DiskSpec),
    /// Memory, which takes no time in addition to the front end.
    Memory,
    /// A drive with another drive as its cache.
    Cached(Box<CachedSpec>),
}

impl SimSpec {
    /// Returns the drive of the profile with this name or file; see [`SimSpec::of`].
    ///
    /// # Errors
    /// The errors of [`Profile::find`] and [`SimSpec::of`].
    pub fn find(id_or_path: &str) -> Result<Self> {
        Self::of(&Profile::find(id_or_path)?)
    }

    /// Returns the drive of a profile. Programmed bytes that are not data (parity, ECC, metadata)
    /// reduce the programming speed.
    ///
    /// **Deviations from the profile:** a block-mapped drive ignores `store_bytes_per_s`; only a
    /// log spends time on map pages that are not cached.
    ///
    /// # Errors
    /// `InvalidInput` for flash that is too large to simulate, or for a block-mapped drive whose
    /// unit is not one erase block on each plane of a die.
    pub fn of(profile: &Profile) -> Result<Self> {
        Self::with_sizes(profile, StoredSizes::AsWritten)
    }

    /// Returns the drive of a profile, like [`SimSpec::of`]. If the drive compresses, it stores the
    /// fraction `stored` of each block, regardless of its bytes. With [`StoredSizes::AsWritten`],
    /// the data itself is compressed.
    ///
    /// # Errors
    /// The errors of [`SimSpec::of`].
    pub fn with_sizes(profile: &Profile, stored: StoredSizes) -> Result<Self> {
        let controller = &profile.controller;
        let design = match &profile.design {
            Design::Log { .. } => {
                let is_written = stored == StoredSizes::AsWritten;
                let codec = if is_written { controller.codec() } else { Codec::None };
                SimDesign::Log(codec, Box::new(LogStoreSpec::of(profile, stored)?))
            }
            Design::BlockMapped { flash, mapping } => {
                let shape = convert::shape(profile, flash)?;
                let buffer_bytes = controller.buffer_bytes.as_ref().map_or(0, |bytes| bytes.is);
                SimDesign::BlockMapped(BlockMappedSpec {
                    shape,
                    timing: convert::timing(flash),
                    bad_percent: flash.bad_block_percent.is,
                    log_blocks: log_blocks(profile, mapping, &shape)?,
                    buffer_bytes,
                    out_bytes_per_s: profile.link.read_bytes_per_s.is,
                })
            }
            Design::Disk { disk } => SimDesign::Disk(disk_spec(profile, disk)?),
        };
        Ok(Self {
            size_bytes: profile.size_bytes.is / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            front: convert::front(profile)?,
            command_bytes_max: convert::command_bytes_max(profile),
            design,
        })
    }
}

/// Returns the number of units with a log, for a map whose units are blocks of this flash.
fn log_blocks(profile: &Profile, mapping: &Mapping, shape: &FlashShape) -> Result<u32> {
    if mapping.unit_bytes.is != shape.block_bytes() {
        let what = format!("{}: unit_bytes is {}", profile.id, mapping.unit_bytes.is);
        let what = format!("{what}, which cannot be simulated: use one erase block on each");
        let what = format!("{what} plane of a die, {} bytes", shape.block_bytes());
        return Err(Error::InvalidInput(what.into()));
    }
    convert::whole(profile, "log_blocks", &mapping.log_blocks)
}

fn disk_spec(profile: &Profile, disk: &Disk) -> Result<DiskSpec> {
    Ok(DiskSpec {
        rpm: disk.rpm.is,
        seek_track_ns: disk.seek_track_ns.is,
        seek_average_ns: disk.seek_average_ns.is,
        seek_full_ns: disk.seek_full_ns.is,
        outer_bytes_per_s: disk.outer_bytes_per_s.is,
        inner_bytes_per_s: disk.inner_bytes_per_s.is,
        cache_bytes: disk.cache_bytes.is,
        ncq: disk.ncq.is,
        reorder_max: convert::whole(profile, "reorder_max", &disk.reorder_max)?,
    })
}
