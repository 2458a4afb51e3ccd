//! Converts the numbers of a profile into the parameters of the simulations.
//!
//! **Programmed bytes that are not data** (ECC beyond the spare area, the drive's own metadata)
//! reduce the programming speed, not the space: the flash of a profile has the stated size, and the
//! disk size was chosen with this overhead in mind. The parity of a section `[parity]` does use
//! space: its rows are programmed, and counted, as rows.

use super::front::FrontSpec;
use super::ftl::{BLOCK_BYTES, LogSpec, StoredSizes, VictimPolicy};
use super::log_store::LogStoreSpec;
use super::profile::{Design, Flash, Parity, Profile, Sourced};
use crate::nand::{FlashShape, FlashTiming};
use crate::{Error, Result};
use pumice_drive::codec::Codec;

/// Longest command that a host sends: systems of 2010 split requests at this size. Several commands
/// are in flight concurrently, so that the link transfers one while the flash reads the next.
const COMMAND_BYTES_MAX: u64 = 128 << 10;

/// Number of free segments below which garbage collection starts: one more than its minimum.
const FREE_SEGMENTS: u32 = 3;

/// Difference between the erase counts of blocks, as a percentage of their lifetime, above which
/// wear leveling starts. Arbitrary: no vendor publishes this value.
const WEAR_GAP_PERCENT: u64 = 5;

/// Minimum number of segments in a scaled-down drive, unless its blocks cannot be shortened enough.
/// Garbage collection among fewer segments is noticeably more expensive.
const SCALED_SEGMENTS: u32 = 256;

/// Minimum number of pages in a shortened block (arbitrary).
const SCALED_PAGES: u32 = 8;

/// Returns the flash of a log-structured drive.
///
/// # Errors
/// `Unsupported` for any other kind of drive.
pub(super) fn log_flash(profile: &Profile) -> Result<&Flash> {
    let Design::Log { flash, .. } = &profile.design else {
        let what = format!("{} is of kind \"{}\"", profile.id, profile.kind());
        let what = format!("{what}, which cannot be simulated without content: use a \"log\"");
        return Err(Error::Unsupported(what.into()));
    };
    Ok(flash)
}

/// Converts a number from a profile to a count.
///
/// # Errors
/// `InvalidInput` if it does not fit into 32 bits.
pub(super) fn whole(profile: &Profile, key: &str, number: &Sourced<u64>) -> Result<u32> {
    let too_large = |_| {
        let what = format!("{}: {key} of {} is too large", profile.id, number.is);
        Error::InvalidInput(what.into())
    };
    u32::try_from(number.is).map_err(too_large)
}

/// Returns the parameters of the front end: the queue, the link and the processor.
///
/// # Errors
/// `InvalidInput` if the queue is too deep.
pub(super) fn front(profile: &Profile) -> Result<FrontSpec> {
    let (link, controller) = (&profile.link, &profile.controller);
    let cap = &controller.cap_write_per_s;
    Ok(FrontSpec {
        read_bytes_per_s: link.read_bytes_per_s.is,
        write_bytes_per_s: link.write_bytes_per_s.is,
        command_ns: link.command_ns.is,
        depth: whole(profile, "depth", &link.depth)?,
        read_ns: controller.read_ns.is,
        write_ns: controller.write_ns.is,
        scattered_write_ns: cap.as_ref().map_or(0, |cap| 1_000_000_000 / cap.is),
        engine_bytes_per_s: controller.engine_bytes_per_s.as_ref().map(|rate| rate.is),
        load_bytes_per_s: controller.load_bytes_per_s.as_ref().map(|rate| rate.is),
    })
}

/// Returns the maximum length of a command sent to the drive, in bytes.
pub(super) fn command_bytes_max(profile: &Profile) -> u64 {
    let block = u64::from(BLOCK_BYTES);
    COMMAND_BYTES_MAX.min(profile.link.request_bytes_max.is / block * block)
}

/// Returns the geometry of the flash.
///
/// # Errors
/// `InvalidInput` for flash that is too large to simulate.
pub(super) fn shape(profile: &Profile, flash: &Flash) -> Result<FlashShape> {
    let whole = |key, number| whole(profile, key, number);
    Ok(FlashShape {
        channels: whole("channels", &flash.channels)?,
        dies_per_channel: whole("dies_per_channel", &flash.dies_per_channel)?,
        planes: whole("planes", &flash.planes)?,
        blocks_per_plane: whole("blocks_per_plane", &flash.blocks_per_plane)?,
        pages_per_block: whole("pages_per_block", &flash.pages_per_block)?,
        page_bytes: whole("page_bytes", &flash.page_bytes)?,
    })
}

/// Returns the timing of the flash. Programming times include the overhead that is not data.
pub(super) fn timing(flash: &Flash) -> FlashTiming {
    let sent_ns = flash.transfer_ns() * flash.planes_at_once() as f64;
    let with_overhead = |program_ns: u64| {
        let row_ns = (sent_ns + program_ns as f64) / (1.0 - flash.overhead_percent.is / 100.0);
        (row_ns - sent_ns) as u64
    };
    FlashTiming {
        read_ns: flash.read_ns.is,
        program_ns: with_overhead(flash.program_ns.is),
        program_fast_ns: with_overhead(flash.program_fast_ns()),
        erase_ns: flash.erase_ns.is,
        bus_bytes_per_s: flash.bus_bytes_per_s.is,
        multi_plane: flash.multi_plane.is,
        cache_program: flash.cache_program.is,
    }
}

impl LogStoreSpec {
    /// Returns the storage of a profile; see [`LogSpec::of`].
    ///
    /// # Errors
    /// The errors of [`LogSpec::of`].
    pub fn of(profile: &Profile, stored: StoredSizes) -> Result<Self> {
        let controller = &profile.controller;
        Ok(Self {
            log: LogSpec::of(profile, stored)?,
            map_cached_bytes: controller.map_at_hand_bytes.as_ref().map(|bytes| bytes.is),
            unit_blocks: controller.unit_blocks() as u32,
        })
    }
}

impl LogSpec {
    /// Returns the translation layer of a profile. It compresses if the profile has a codec, and
    /// then stores the fraction `stored` of each block. Otherwise it is page-mapped and ignores
    /// `stored`. Frames do not have a separate header, because profiles include it in `stored_min`
    /// and `overhead_percent`.
    ///
    /// # Errors
    /// `Unsupported` for other kinds of drives; `InvalidInput` for drives that cannot be simulated.
    pub fn of(profile: &Profile, stored: StoredSizes) -> Result<Self> {
        let flash = log_flash(profile)?;
        let shape = shape(profile, flash)?;
        let controller = &profile.controller;
        let compresses = controller.codec() != Codec::None;
        let buffer_min = 2 * u64::from(shape.row_bytes()) + u64::from(BLOCK_BYTES);
        let buffer_bytes = controller.buffer_bytes.as_ref().map_or(0, |bytes| bytes.is);
        let wear_gap = (flash.pe_cycles.is * WEAR_GAP_PERCENT / 100).max(1);
        let stripe_dies = profile.parity().map(|it| whole(profile, "stripe_dies", &it.stripe_dies));
        let stripe_dies = stripe_dies.transpose()?;
        let parity_share = profile.parity().map_or(0.0, Parity::share);
        let spec = Self {
            shape,
            timing: timing(flash),
            user_blocks: profile.size_bytes.is / u64::from(BLOCK_BYTES),
            stored: if compresses { stored } else { StoredSizes::Constant(1.0) },
            // The minimum that a drive stores was measured on its flash, so it includes overhead
            // and parity.
            stored_min: if compresses {
                let data_share = (1.0 - flash.overhead_percent.is / 100.0) * (1.0 - parity_share);
                controller.stored_min() * data_share
            } else {
                0.0
            },
            header_bytes: 0,
            stripe_dies,
            victims: VictimPolicy::Greedy,
            moved_apart: true,
            buffer_bytes: buffer_bytes.max(buffer_min),
            store_bytes_per_s: controller.store_bytes_per_s.as_ref().map(|rate| rate.is),
            free_segments: FREE_SEGMENTS,
            bad_percent: flash.bad_block_percent.is,
            seed: 1,
            wear_gap_max: Some(u32::try_from(wear_gap).unwrap_or(u32::MAX)),
        };
        let of_profile =
            |error: Error| Error::Profile { profile: profile.id.clone(), source: Box::new(error) };
        spec.check().map_err(of_profile)?;
        Ok(spec)
    }

    /// Returns the same flash as a drive of another size, over-provisioned by `percent` of that
    /// size. The flash is counted as in [`raw_bytes`](Self::raw_bytes).
    ///
    /// # Errors
    /// `InvalidInput` if garbage collection would have too little space.
    pub fn over_provisioned(mut self, percent: f64) -> Result<Self> {
        // The blocks need not fit yet.
        self.user_blocks = 1;
        let user_bytes = self.raw_bytes()? / (1.0 + percent / 100.0);
        self.user_blocks = (user_bytes / f64::from(BLOCK_BYTES)) as u64;
        self.check()?;
        Ok(self)
    }

    /// Returns a smaller drive that behaves almost identically and takes less time to simulate. It
    /// has the same number of dies, the same over-provisioning, fewer blocks, and no bad blocks. If
    /// necessary, its blocks are shorter, and take proportionally less time to erase. Its size is
    /// about `size_bytes`. A drive that is not larger is returned unchanged.
    ///
    /// # Errors
    /// `InvalidInput` if the result would be too small to be a drive.
    pub fn scaled(mut self, size_bytes: u64) -> Result<Self> {
        let user = self.user_blocks;
        let ratio = size_bytes as f64 / (user * u64::from(BLOCK_BYTES)) as f64;
        if ratio >= 1.0 {
            return Ok(self);
        }
        let segment = |spec: &Self| spec.shape.block_bytes() * u64::from(spec.shape.dies());
        let (raw, before) = (self.raw_bytes()?, segment(&self));
        let data_share = 1.0 - self.parity_share();
        let of_data = |spec: &Self| segment(spec) as f64 * data_share;
        while raw * ratio / of_data(&self) < f64::from(SCALED_SEGMENTS)
            && self.shape.pages_per_block.is_multiple_of(2)
            && self.shape.pages_per_block > SCALED_PAGES
        {
            self.shape.pages_per_block /= 2;
        }
        self.timing.erase_ns = self.timing.erase_ns * segment(&self) / before;
        self.bad_percent = 0.0;
        // Segments in addition to the segments with data, counted as in `raw_bytes`.
        let spare = f64::from(self.free_segments) + 0.5;
        let segments = (raw * ratio / of_data(&self) + spare).ceil();
        self.shape.blocks_per_plane = segments as u32;
        // The blocks need not fit yet.
        self.user_blocks = 1;
        self.user_blocks = (user as f64 * self.raw_bytes()? / raw) as u64;
        self.check()?;
        Ok(self)
    }
}
