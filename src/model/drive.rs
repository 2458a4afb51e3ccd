//! The controller of this program on simulated flash, behind a host's link: real bytes, the real
//! codec, virtual time.
//!
//! ```text
//! host -> front: queue, wire, processor -> controller -> flash: channels, dies, planes
//! ```
//!
//! **What it costs**, beside what the flash and the front are told to take: nothing. Compressing
//! and looking the map up take no virtual time of their own; a profile puts them into the time of a
//! command. What the drive holds is in memory, compressed.

use std::rc::Rc;

use futures_util::future::try_join_all;

use super::front::{Front, FrontSpec};
use super::profile::{Design, Profile, Told};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result};
use crate::codec::Codec;
use crate::controller::{Drive, Info, OpenOptions, Spec, create};
use crate::media::nand::{Flash, FlashCounts, FlashShape, FlashTiming, NandMedium, NandSpec};
use crate::runtime::Runtime;

/// Longest command that a host sends: what systems of 2010 split requests into. Several are in
/// flight at once, so that the wire carries one while the flash reads the next.
const COMMAND_BYTES_MAX: u64 = 128 << 10;

/// What a simulated drive is.
#[derive(Clone, Debug)]
pub struct SimSpec {
    /// Bytes of the disk that the host sees: a multiple of 4096.
    pub size_bytes: u64,
    /// Codec of its controller; [`Codec::None`] for a drive that does not compress.
    pub codec: Codec,
    /// Blocks compressed together, a power of two up to 64.
    pub frame_blocks: u16,
    /// Its link and processor.
    pub front: FrontSpec,
    /// Longest command in bytes: what the host asks for beyond that goes as several at once.
    pub command_bytes_max: u64,
    /// Its flash.
    pub shape: FlashShape,
    /// See `shape`.
    pub timing: FlashTiming,
    /// See `shape`.
    pub nand: NandSpec,
}

impl SimSpec {
    /// The drive of a profile with this name, or in this file: see [`SimSpec::of`].
    ///
    /// # Errors
    /// Those of [`Profile::find`] and [`SimSpec::of`].
    pub fn find(id_or_path: &str) -> Result<Self> {
        Self::of(&Profile::find(id_or_path)?)
    }

    /// The drive of a profile. What its flash programs beside data (parity, ECC, its own metadata)
    /// is taken off the speed of programming.
    ///
    /// **Not as the profile says:** the floor under the stored fraction, and the size of the write
    /// buffer, are those of the controller of this program.
    ///
    /// # Errors
    /// `Unsupported` for drives that are no log; `InvalidInput` for flash beyond what can be
    /// simulated.
    pub fn of(profile: &Profile) -> Result<Self> {
        let Design::Log { flash } = &profile.design else {
            let what = format!("{}: drives of this kind cannot be simulated yet", profile.id);
            let what = format!("{what}: it is {}, what can is \"log\"", profile.kind());
            return Err(Error::new(ErrorKind::Unsupported, what));
        };
        let whole = |key: &str, told: &Told<u64>| {
            let too_large = |_| {
                let what = format!("{}: {key} of {} is too large", profile.id, told.is);
                Error::new(ErrorKind::InvalidInput, what)
            };
            u32::try_from(told.is).map_err(too_large)
        };
        let (link, controller) = (&profile.link, &profile.controller);
        let cap_ns = controller.cap_write_per_s.as_ref().map_or(0, |cap| 1_000_000_000 / cap.is);
        let front = FrontSpec {
            read_bytes_per_s: link.read_bytes_per_s.is,
            write_bytes_per_s: link.write_bytes_per_s.is,
            command_ns: link.command_ns.is,
            depth: whole("depth", &link.depth)?,
            read_ns: controller.read_ns.is,
            write_ns: controller.write_ns.is.max(cap_ns),
            engine_bytes_per_s: controller.engine_bytes_per_s.as_ref().map(|rate| rate.is),
        };
        let shape = FlashShape {
            channels: whole("channels", &flash.channels)?,
            dies_per_channel: whole("dies_per_channel", &flash.dies_per_channel)?,
            planes: whole("planes", &flash.planes)?,
            blocks_per_plane: whole("blocks_per_plane", &flash.blocks_per_plane)?,
            pages_per_block: whole("pages_per_block", &flash.pages_per_block)?,
            page_bytes: whole("page_bytes", &flash.page_bytes)?,
        };
        let sent_ns = flash.transfer_ns() * flash.planes_at_once() as f64;
        let row_ns =
            (sent_ns + flash.program_ns.is as f64) / (1.0 - flash.overhead_percent.is / 100.0);
        let timing = FlashTiming {
            read_ns: flash.read_ns.is,
            program_ns: (row_ns - sent_ns) as u64,
            erase_ns: flash.erase_ns.is,
            bus_bytes_per_s: flash.bus_bytes_per_s.is,
            multi_plane: flash.multi_plane.is,
            cache_program: flash.cache_program.is,
        };
        let nand = NandSpec {
            bad_percent: flash.bad_block_percent.is,
            seed: 1,
            store_bytes_per_s: controller.store_bytes_per_s.as_ref().map(|rate| rate.is),
        };
        Ok(Self {
            size_bytes: profile.size_bytes.is / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            codec: controller.codec(),
            frame_blocks: controller.frame_blocks() as u16,
            front,
            command_bytes_max: COMMAND_BYTES_MAX.min(link.request_bytes_max.is),
            shape,
            timing,
            nand,
        })
    }
}

/// What a simulated drive has done since it was made.
#[derive(Clone, Debug)]
pub struct SimCounts {
    /// As the controller says it.
    pub drive: Info,
    /// What was done to the flash.
    pub flash: FlashCounts,
    /// Bytes that were programmed.
    pub flash_bytes: u64,
    /// How often each block was erased.
    pub wear: Vec<u32>,
}

/// A drive in virtual time. All methods may be called while others are under way.
pub struct SimDrive {
    runtime: Runtime,
    drive: Rc<Drive<Rc<NandMedium<Runtime>>, Runtime>>,
    medium: Rc<NandMedium<Runtime>>,
    front: Front<Runtime>,
    spec: SimSpec,
}

impl SimDrive {
    /// Makes a new, empty drive, at virtual time 0.
    ///
    /// # Errors
    /// `InvalidInput` for what cannot be built, and a flash that does not hold the disk.
    pub fn new(spec: SimSpec) -> Result<Self> {
        let runtime = Runtime::simulated();
        let front = Front::new(spec.front, runtime.clone())?;
        if spec.command_bytes_max < BLOCK_BYTES as u64
            || !spec.command_bytes_max.is_multiple_of(BLOCK_BYTES as u64)
        {
            let what = "the longest command must be a multiple of 4096 bytes";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let flash = Flash::new(spec.shape, spec.timing)?;
        let medium = NandMedium::new(flash, spec.nand, runtime.clone())?;
        let medium = Rc::new(medium);
        let geometry = medium.geometry();
        let capacity_bytes = geometry.capacity_bytes();
        if capacity_bytes < spec.size_bytes {
            let what = format!("the flash holds {capacity_bytes} bytes, the disk");
            let what = format!("{what} has {}", spec.size_bytes);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let made = Spec {
            capacity_bytes: Some(capacity_bytes),
            segment_bytes: geometry.segment_bytes,
            frame_blocks: spec.frame_blocks,
            codec: spec.codec,
            ..Spec::new(uuid::Uuid::from_u128(spec.nand.seed.into()), spec.size_bytes)
        };
        let drive = runtime.block_on(async {
            create(&medium, &made).await?;
            Drive::open(Rc::clone(&medium), runtime.clone(), OpenOptions::default()).await
        })?;
        let drive = Rc::new(drive);
        for task in Drive::tasks(&drive) {
            runtime.spawn(task);
        }
        Ok(Self { runtime, drive, medium, front, spec })
    }

    /// Its runtime, on virtual time.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Bytes of its disk.
    pub fn size_bytes(&self) -> u64 {
        self.spec.size_bytes
    }

    /// What it has done so far.
    pub fn counts(&self) -> SimCounts {
        let flash = self.medium.counts();
        SimCounts {
            drive: self.drive.info(),
            flash,
            flash_bytes: flash.pages_programmed * u64::from(self.spec.shape.page_bytes),
            wear: self.medium.wear(),
        }
    }

    /// Reads from `offset` on; `target` is filled when this returns.
    ///
    /// # Errors
    /// Those of [`Drive::read`].
    pub async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let most = self.spec.command_bytes_max;
        let commands = (0..).zip(target.chunks_mut(most as usize)).map(|(number, part)| {
            let bytes = part.len() as u64;
            self.front.read(bytes, self.drive.read(offset + number * most, part))
        });
        try_join_all(commands).await.map(drop)
    }

    /// Writes at `offset`. Durable only after [`SimDrive::flush`].
    ///
    /// # Errors
    /// Those of [`Drive::write`].
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let most = self.spec.command_bytes_max;
        let commands = (0..).zip(bytes.chunks(most as usize)).map(|(number, part)| {
            let at = offset + number * most;
            self.front.write(part.len() as u64, self.drive.write(at, part, false))
        });
        try_join_all(commands).await.map(drop)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// Those of [`Drive::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.front.write(0, self.drive.flush()).await
    }

    /// Tells the drive that a range is not needed any more.
    ///
    /// # Errors
    /// Those of [`Drive::trim`].
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.front.write(0, self.drive.trim(offset, len, false)).await
    }
}

impl Drop for SimDrive {
    fn drop(&mut self) {
        // The drive's tasks hold the runtime that holds them.
        self.runtime.drop_tasks();
    }
}

#[cfg(test)]
mod tests;
