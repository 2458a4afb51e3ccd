//! The parameters of a cache, and their text form.

use std::fmt;

use crate::drive::{SimDesign, SimSpec};
use crate::front::FrontSpec;
use crate::ftl::StoredSizes;
use crate::profile::Profile;
use crate::{Error, Result};
use pumice_drive::base::units::{format_size_exact, parse_size};
use pumice_drive::codec::Codec;

/// Default and minimum line size in bytes.
const LINE_BYTES: u64 = 4 << 10;

/// Maximum line size in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of lines in a cache. Each needs about 100 bytes of memory.
const LINES_MAX: u64 = 16 << 20;

/// Transfer rate of a card with memory, in bytes per second: eight lanes of PCIe 1.x, 2 GB/s, less
/// headers (a guess).
const CARD_BYTES_PER_S: u64 = 1_600_000_000;

/// Time that the firmware of such a card needs for a command, in ns (a guess).
const CARD_NS: u64 = 10_000;

/// Maximum number of commands in flight for a cache and its drive together: more than any host
/// sends.
const DEPTH: u32 = 1024;

/// Duration of a call without copying, in ns, with a page cache (a guess).
pub(crate) const CALL_NS: u64 = 1_500;

/// Rate of copying between a program and the page cache, in bytes per second (a guess, for memory
/// of 2010).
pub(crate) const COPY_BYTES_PER_S: u64 = 3_000_000_000;

/// A rate without a practical limit, in bytes per second.
const UNLIMITED: u64 = 1_000_000_000_000_000;

/// The medium of a cache.
#[derive(Clone, Debug, PartialEq)]
enum Medium {
    /// Host memory.
    Ram,
    /// Battery-backed memory on a card.
    RamCard,
    /// A drive.
    Drive(Box<Profile>),
}

/// A cache in front of a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveCache {
    medium: Medium,
    /// Size in bytes, a multiple of the line size.
    pub size_bytes: u64,
    /// Line size in bytes: a power of two from 4 KiB to 64 KiB.
    pub line_bytes: u64,
    /// Whether a write is acknowledged when only the cache has it.
    pub write_back: bool,
}

/// A drive with a cache in front.
#[derive(Clone, Debug)]
pub struct CachedSpec {
    /// The drive used as the cache.
    pub fast: SimSpec,
    /// The drive that eventually has all data.
    pub slow: SimSpec,
    /// Size of the cache in bytes, a multiple of the line size that does not exceed the fast drive.
    pub size_bytes: u64,
    /// Line size in bytes.
    pub line_bytes: u64,
    /// Whether a write is acknowledged when only the cache has it.
    pub write_back: bool,
    /// Whether the cache is empty after a power loss.
    pub is_volatile: bool,
}

impl DriveCache {
    /// Parses `NAME:SIZE[:write-back][:LINE]`: the name of a profile, `ram` or `ram-card`; the
    /// cache size; and the line size.
    ///
    /// # Errors
    /// `InvalidInput` for anything else; the errors of [`Profile::find`].
    pub fn find(text: &str) -> Result<Self> {
        let expected = || {
            let what = format!("'{text}' is not a cache: expected NAME:SIZE[:write-back][:LINE]");
            invalid(format!("{what}, such as intel-x25-e-32:8GiB:write-back or ram:1GiB"))
        };
        let number = |text: &str| parse_size(text).map_err(|error| invalid(error.to_string()));
        let mut parts = text.split(':');
        let (Some(name), Some(size)) = (parts.next(), parts.next()) else {
            return Err(expected());
        };
        let (mut write_back, mut line_bytes) = (false, LINE_BYTES);
        for part in parts {
            match part {
                "write-back" => write_back = true,
                "write-through" => write_back = false,
                line => line_bytes = number(line)?,
            }
        }
        let medium = match name {
            "ram" => Medium::Ram,
            "ram-card" => Medium::RamCard,
            name => Medium::Drive(Box::new(Profile::find(name)?)),
        };
        let mut spec = Self { medium, size_bytes: number(size)?, line_bytes, write_back };
        if !line_bytes.is_power_of_two() || !(LINE_BYTES..=LINE_BYTES_MAX).contains(&line_bytes) {
            return Err(invalid("a line of a cache must have 4, 8, 16, 32 or 64 KiB"));
        }
        spec.size_bytes = spec.size_bytes / line_bytes * line_bytes;
        if !(1..=LINES_MAX).contains(&(spec.size_bytes / line_bytes)) {
            let what = format!("a cache must have 1 to {LINES_MAX} lines: change its size or LINE");
            return Err(invalid(what));
        }
        match &spec.medium {
            Medium::Drive(profile) if profile.size_bytes.is < spec.size_bytes => {
                let has = format_size_exact(profile.size_bytes.is);
                Err(invalid(format!("{name} has {has}, less than the cache: reduce its size")))
            }
            _ => Ok(spec),
        }
    }

    /// Returns the name of the cache's medium: `ram`, `ram-card`, or the name of a profile.
    pub fn name(&self) -> &str {
        match &self.medium {
            Medium::Ram => "ram",
            Medium::RamCard => "ram-card",
            Medium::Drive(profile) => &profile.id,
        }
    }

    /// Returns the codec of the cache.
    pub fn codec(&self) -> Codec {
        match &self.medium {
            Medium::Drive(profile) => profile.controller.codec(),
            Medium::Ram | Medium::RamCard => Codec::None,
        }
    }

    /// Returns whether the cache is empty after a power loss.
    pub fn is_volatile(&self) -> bool {
        self.medium == Medium::Ram
    }

    /// Returns a drive with this cache in front. If the cache compresses, `stored` determines the
    /// stored sizes; with [`StoredSizes::AsWritten`], the data itself is compressed.
    ///
    /// # Errors
    /// The errors of [`SimSpec::of`].
    pub fn before(&self, slow: SimSpec, stored: StoredSizes) -> Result<SimSpec> {
        let fast = match &self.medium {
            Medium::Ram => memory(self.size_bytes, COPY_BYTES_PER_S, CALL_NS),
            Medium::RamCard => memory(self.size_bytes, CARD_BYTES_PER_S, CARD_NS),
            Medium::Drive(profile) => SimSpec::with_sizes(profile, stored)?,
        };
        Ok(SimSpec {
            size_bytes: slow.size_bytes,
            front: FrontSpec { depth: DEPTH, ..passing() },
            command_bytes_max: slow.command_bytes_max,
            design: SimDesign::Cached(Box::new(CachedSpec {
                fast,
                slow,
                size_bytes: self.size_bytes,
                line_bytes: self.line_bytes,
                write_back: self.write_back,
                is_volatile: self.is_volatile(),
            })),
        })
    }
}

impl fmt::Display for DriveCache {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, line) = (format_size_exact(self.size_bytes), format_size_exact(self.line_bytes));
        let mode = if self.write_back { "write-back" } else { "write-through" };
        write!(to, "{} of {}, {mode}, lines of {}", size, self.name(), line)
    }
}

/// Returns a front end that takes no time.
fn passing() -> FrontSpec {
    FrontSpec {
        read_bytes_per_s: UNLIMITED,
        write_bytes_per_s: UNLIMITED,
        command_ns: 0,
        depth: DEPTH,
        read_ns: 0,
        write_ns: 0,
        scattered_write_ns: 0,
        engine_bytes_per_s: None,
        load_bytes_per_s: None,
    }
}

/// Returns a memory drive.
fn memory(size_bytes: u64, bytes_per_s: u64, command_ns: u64) -> SimSpec {
    let front = FrontSpec {
        read_bytes_per_s: bytes_per_s,
        write_bytes_per_s: bytes_per_s,
        read_ns: command_ns,
        write_ns: command_ns,
        ..passing()
    };
    SimSpec { size_bytes, front, command_bytes_max: 1 << 20, design: SimDesign::Memory }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::InvalidInput(what.into().into())
}
