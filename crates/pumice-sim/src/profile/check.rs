//! Validates a profile: finds numbers beyond their limits, and numbers that contradict each other.
//! Every error contains the section and the key, and suggests a remedy.

use super::sections::{Controller, Disk, Flash, Mapping, Parity};
use super::{Design, Profile};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::codec::Codec;

/// Maximum disk size in bytes, which is the limit of Pumice's own drives.
const SIZE_BYTES_MAX: u64 = 16 << 50;

type Checked = Result<(), String>;

/// Returns `what` as an error unless `is_so`.
fn hold(is_so: bool, what: impl FnOnce() -> String) -> Checked {
    if is_so { Ok(()) } else { Err(what()) }
}

impl Profile {
    /// Checks that the drive is possible.
    ///
    /// # Errors
    /// The first invalid key, the reason, and a remedy.
    pub(super) fn check(&self) -> Checked {
        for (key, text) in [("name", &self.name), ("about", &self.about)] {
            hold(!text.trim().is_empty(), || format!("{key} is blank: enter a text"))?;
        }
        let size = self.size_bytes.is;
        hold((1..=SIZE_BYTES_MAX).contains(&size), || {
            format!("size_bytes: {size} is not possible: expected 4096 to {SIZE_BYTES_MAX}")
        })?;
        hold(size.is_multiple_of(BLOCK_BYTES as u64), || {
            format!("size_bytes: {size} is not a multiple of 4096: round it down")
        })?;
        self.link.check_limits()?;
        self.controller.check_limits()?;
        check_compression(&self.controller)?;
        let has_codec = self.controller.codec() != Codec::None;
        let has_buffer = self.controller.buffer_bytes.is_some();
        hold(self.kind() == "log" || self.controller.unit_blocks.is_none(), || {
            "[controller] unit_blocks: only kind \"log\" has such a map: remove it".into()
        })?;
        match &self.design {
            Design::Log { flash, parity } => {
                check_flash(flash, size)?;
                parity.as_ref().map_or(Ok(()), |parity| check_parity(parity, flash, size))?;
            }
            Design::BlockMapped { flash, mapping } => {
                check_flash(flash, size)?;
                check_mapping(mapping, flash)?;
                hold(!has_codec, || {
                    "[controller] codec: compressed blocks need kind \"log\": change one".into()
                })?;
            }
            Design::Disk { disk } => {
                check_disk(disk)?;
                hold(!has_codec, || "[controller] codec: no disk compresses: remove it".into())?;
            }
        }
        match (self.flash(), has_buffer) {
            (Some(_), false) => Err("[controller] buffer_bytes is missing: add it".into()),
            (None, true) => {
                Err("[controller] buffer_bytes: a disk has [disk] cache_bytes: remove it".into())
            }
            _ => Ok(()),
        }
    }
}

fn check_compression(controller: &Controller) -> Checked {
    let keys = [
        ("stored_min", controller.stored_min.is_some()),
        ("engine_bytes_per_s", controller.engine_bytes_per_s.is_some()),
        ("load_bytes_per_s", controller.load_bytes_per_s.is_some()),
    ];
    let compresses = controller.codec() != Codec::None;
    for (key, is_there) in keys {
        hold(compresses || !is_there, || {
            format!("[controller] {key} without a codec: remove it, or name a codec")
        })?;
        hold(!compresses || is_there || key.ends_with("_per_s"), || {
            format!("[controller] {key} is missing: a codec needs it")
        })?;
    }
    let blocks = controller.unit_blocks();
    hold(blocks.is_power_of_two(), || {
        format!("[controller] unit_blocks: {blocks} is not a power of two: expected 1 to 4096")
    })
}

fn check_flash(flash: &Flash, size_bytes: u64) -> Checked {
    flash.check_limits()?;
    let page = flash.page_bytes.is;
    hold(page.is_power_of_two(), || {
        format!("[flash] page_bytes: {page} is not a power of two: do not count the spare area")
    })?;
    let (fast, program) = (flash.program_fast_ns(), flash.program_ns.is);
    hold(fast <= program, || {
        format!("[flash] program_fast_ns: {fast} is more than program_ns, {program}: swap them")
    })?;
    let flash_bytes = flash.bytes().ok_or_else(|| {
        "[flash] has more bytes than 64 bits can count: check blocks_per_plane and pages_per_block"
            .to_owned()
    })?;
    let good_bytes = good_bytes(flash, flash_bytes);
    hold(good_bytes >= size_bytes, || {
        format!(
            "[flash] has {flash_bytes} bytes, but only {good_bytes} are good, less than \
             size_bytes, {size_bytes}: look at the geometry"
        )
    })
}

/// Returns the number of bytes in the good blocks of a flash of `flash_bytes` bytes.
fn good_bytes(flash: &Flash, flash_bytes: u64) -> u64 {
    (flash_bytes as f64 * (1.0 - flash.bad_block_percent.is / 100.0)) as u64
}

fn check_parity(parity: &Parity, flash: &Flash, size_bytes: u64) -> Checked {
    parity.check_limits()?;
    let (count, dies) = (parity.stripe_dies.is, flash.dies());
    hold(dies.is_multiple_of(count), || {
        format!("[parity] stripe_dies: {count} does not divide the {dies} dies of [flash]")
    })?;
    let good_bytes = good_bytes(flash, flash.bytes().unwrap_or(u64::MAX));
    let data_bytes = (good_bytes as f64 * (1.0 - parity.share())) as u64;
    hold(data_bytes >= size_bytes, || {
        format!(
            "[parity] stripe_dies: of {good_bytes} good bytes it leaves {data_bytes} for data, \
             less than size_bytes, {size_bytes}: use longer stripes, or remove [parity]"
        )
    })
}

fn check_mapping(mapping: &Mapping, flash: &Flash) -> Checked {
    mapping.check_limits()?;
    let (unit, page) = (mapping.unit_bytes.is, flash.page_bytes.is);
    hold(unit.is_multiple_of(page), || {
        format!("[mapping] unit_bytes: {unit} is not a multiple of page_bytes, {page}")
    })?;
    let flash_bytes = flash.bytes().unwrap_or(u64::MAX);
    let log = mapping.log_blocks.is;
    // The limits of both factors keep the product below 64 bits.
    hold(unit * (log + 1) <= flash_bytes, || {
        format!("[mapping] log_blocks: {log} units of {unit} bytes do not fit the flash: reduce it")
    })
}

fn check_disk(disk: &Disk) -> Checked {
    disk.check_limits()?;
    let (outer, inner) = (disk.outer_bytes_per_s.is, disk.inner_bytes_per_s.is);
    hold(inner <= outer, || {
        format!(
            "[disk] inner_bytes_per_s: {inner} is more than outer_bytes_per_s, {outer}: swap them"
        )
    })?;
    let (track, average) = (disk.seek_track_ns.is, disk.seek_average_ns.is);
    let full = disk.seek_full_ns.is;
    hold(track <= average && average <= full, || {
        format!(
            "[disk] seek_track_ns, {track}, seek_average_ns, {average}, and seek_full_ns, {full}, \
             do not rise: order them"
        )
    })
}
