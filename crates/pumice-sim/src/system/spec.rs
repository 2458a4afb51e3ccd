//! The parameters of a simulated system, and their text form: a drive with settings.

use crate::drive::SimSpec;
use crate::drive::cached::{CALL_NS, COPY_BYTES_PER_S, DriveCache};
use crate::ftl::StoredSizes;
use crate::profile::Profile;
use crate::{Error, Result};
use pumice_drive::base::units::parse_size;

/// Share of the page cache that may be dirty before writers wait, in percent. This is Linux's
/// vm.dirty_ratio.
const DIRTY_PERCENT: u64 = 20;

/// Size of the read-ahead window in bytes. This is Linux's read_ahead_kb of 128.
const READAHEAD_BYTES: u64 = 128 << 10;

/// Minimum size of a page cache, which is larger than any request.
const CACHE_BYTES_MIN: u64 = 64 << 20;

/// Maximum size of a page cache, which is stored in memory.
const CACHE_BYTES_MAX: u64 = 16 << 30;

/// Parameters of a page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Size in bytes: 64 MiB to 16 GiB.
    pub cache_bytes: u64,
    /// Share that may be dirty before writers wait, in percent: 1 to 90.
    pub dirty_percent: u64,
    /// Size of the read-ahead window for a sequential reader, in bytes; 0 for no read-ahead.
    pub readahead_bytes: u64,
    /// Rate of copying between the cache and a program, in bytes per second.
    pub copy_bytes_per_s: u64,
}

/// A host and its drive.
#[derive(Clone, Debug)]
pub struct SystemSpec {
    /// The drive, with the queue depth and the maximum command length of the host's driver.
    pub drive: SimSpec,
    /// Offset of the target on the drive, a multiple of 512 bytes; for example the 63 sectors
    /// before the first partition in old partition tables.
    pub offset_bytes: u64,
    /// Duration of a program's call without copying, in ns.
    pub call_ns: u64,
    /// The page cache; `None` for direct I/O.
    pub cache: Option<CacheSpec>,
}

impl SystemSpec {
    /// Parses `PROFILE[?KEY=VALUE[&KEY=VALUE..]]`: the name or file of a profile, and settings:
    ///
    /// ```text
    /// cache_bytes        page cache, such as 1GiB; without it, calls bypass the page cache
    /// dirty_percent      share that may be dirty before writers wait; default 20
    /// readahead_bytes    read-ahead for a sequential reader; default 128KiB
    /// copy_bytes_per_s   between program and page cache; default 3GB
    /// call_ns            time of a program's call; default 1500 with a page cache, else 0
    /// depth              maximum number of commands in flight: 31 with NCQ on Linux, 1 in IDE mode
    /// command_bytes_max  longest command
    /// offset_bytes       offset of the target on the drive, such as 32256
    /// cached_by          a cache in front of the drive: see DriveCache::find
    /// without            a drive, to leave out numbers fitted to its published results
    /// ```
    ///
    /// # Errors
    /// The errors of [`SimSpec::find`]; `InvalidInput` for an unknown key or an invalid value.
    pub fn find(text: &str) -> Result<Self> {
        let (profile, conditions) = text.split_once('?').unwrap_or((text, ""));
        let without =
            conditions.split('&').find_map(|condition| condition.strip_prefix("without="));
        let drive = match without {
            None => SimSpec::find(profile)?,
            Some(drive) => SimSpec::of(&Profile::find_without(profile, drive)?)?,
        };
        let mut spec = Self { drive, offset_bytes: 0, call_ns: 0, cache: None };
        let mut call_ns = None;
        let mut cache = CacheSpec {
            cache_bytes: 0,
            dirty_percent: DIRTY_PERCENT,
            readahead_bytes: READAHEAD_BYTES,
            copy_bytes_per_s: COPY_BYTES_PER_S,
        };
        let (mut of_cache, mut cached_by) = (None, None);
        for condition in conditions.split('&').filter(|condition| !condition.is_empty()) {
            let (key, value) = condition.split_once('=').unwrap_or((condition, ""));
            match key {
                "without" => continue,
                "cached_by" => {
                    cached_by = Some(DriveCache::find(value)?);
                    continue;
                }
                _ => {}
            }
            let number = parse_size(value).map_err(|error| invalid(format!("{key}: {error}")))?;
            match key {
                "cache_bytes" => cache.cache_bytes = number,
                "dirty_percent" => cache.dirty_percent = number,
                "readahead_bytes" => cache.readahead_bytes = number,
                "copy_bytes_per_s" => cache.copy_bytes_per_s = number,
                "call_ns" => call_ns = Some(number),
                "depth" => {
                    let depth = u32::try_from(number).unwrap_or(u32::MAX);
                    spec.drive.front.depth = depth.min(spec.drive.front.depth);
                }
                "command_bytes_max" => spec.drive.command_bytes_max = number,
                "offset_bytes" => spec.offset_bytes = number,
                _ => {
                    let what = format!("'{key}' is not a condition of a simulated drive");
                    let keys = "cache_bytes, dirty_percent, readahead_bytes, copy_bytes_per_s, \
                                call_ns, depth, command_bytes_max, offset_bytes, cached_by, \
                                without";
                    return Err(invalid(format!("{what}: expected one of {keys}")));
                }
            }
            if matches!(key, "dirty_percent" | "readahead_bytes" | "copy_bytes_per_s") {
                of_cache = Some(key);
            }
        }
        if let (0, Some(key)) = (cache.cache_bytes, of_cache) {
            return Err(invalid(format!("{key} requires cache_bytes, the size of the page cache")));
        }
        if let Some(cache) = cached_by {
            // The other settings apply to the drive's driver, which is below the cache.
            spec.drive = cache.before(spec.drive, StoredSizes::AsWritten)?;
        }
        spec.cache = (cache.cache_bytes > 0).then_some(cache);
        spec.call_ns = call_ns.unwrap_or(if spec.cache.is_some() { CALL_NS } else { 0 });
        spec.check()?;
        Ok(spec)
    }

    /// Returns the name or file of the profile in a text for [`SystemSpec::find`].
    pub fn profile_of(text: &str) -> &str {
        text.split_once('?').map_or(text, |(profile, _)| profile)
    }

    /// Returns the size of the target in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.drive.size_bytes.saturating_sub(self.offset_bytes)
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible parameter.
    pub(super) fn check(&self) -> Result<()> {
        if !self.offset_bytes.is_multiple_of(512) || self.offset_bytes >= self.drive.size_bytes {
            let what = "offset_bytes must be a multiple of 512, within the drive";
            return Err(invalid(what));
        }
        let Some(cache) = &self.cache else { return Ok(()) };
        if !(CACHE_BYTES_MIN..=CACHE_BYTES_MAX).contains(&cache.cache_bytes) {
            return Err(invalid(
                "cache_bytes must be from 64 MiB to 16 GiB: the cache is held in memory",
            ));
        }
        // Reads also need clean pages.
        if !(1..=90).contains(&cache.dirty_percent) {
            return Err(invalid("dirty_percent must be from 1 to 90"));
        }
        if cache.readahead_bytes > cache.cache_bytes / 8 {
            return Err(invalid("readahead_bytes must be at most an eighth of cache_bytes"));
        }
        if cache.copy_bytes_per_s == 0 {
            return Err(invalid("copy_bytes_per_s must not be zero"));
        }
        Ok(())
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::InvalidInput(what.into().into())
}
