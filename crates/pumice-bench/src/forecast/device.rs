//! A simulated drive. A log has no contents. Any other drive contains only zeroes, which need
//! neither memory nor a codec.

use std::sync::atomic::AtomicBool;

use super::figures::Worn;
use super::{Data, ForecastOptions};
use crate::error::{Error, Result};
use pumice_drive::base::Clock;
use pumice_sim::LogStoreSpec;
use pumice_sim::drive::cached::CacheCounts;
use pumice_sim::drive::{DesignCounts, SimCounts, SimDesign, SimDrive, SimSpec};
use pumice_sim::ftl::LogCounts;
use pumice_sim::log_drive::{Host, LogDrive, LogDriveSpec};
use pumice_sim::profile::{Design, Profile};
use pumice_sim::sim_host;

/// The specification of the simulation of a profile.
#[derive(Clone, Debug)]
pub enum Spec {
    /// A log, for which only the stored size of each block is known.
    Log(Box<LogDriveSpec>),
    /// Any other drive, and any drive with a cache.
    Other(Box<SimSpec>),
}

/// Estimated memory of one cache line in bytes, including its tables.
const LINE_MEMORY_BYTES: u64 = 100;

/// Returns the translation layers of a drive and of its cache.
fn logs(design: &SimDesign) -> Vec<&LogStoreSpec> {
    match design {
        SimDesign::Log(_, store) => vec![store],
        SimDesign::Cached(spec) => {
            [&spec.fast, &spec.slow].into_iter().flat_map(|it| logs(&it.design)).collect()
        }
        SimDesign::BlockMapped(_) | SimDesign::Disk(_) | SimDesign::Memory => Vec::new(),
    }
}

/// Returns the design of the drive that stores all data: the slow one, if there is a cache.
fn below(design: &SimDesign) -> &SimDesign {
    match design {
        SimDesign::Cached(spec) => below(&spec.slow.design),
        other => other,
    }
}

impl Spec {
    /// Returns the drive of a profile for this data, with the size and over-provisioning of the
    /// options.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options that only a log supports; the errors of invalid profiles.
    pub fn of(profile: &Profile, data: &Data, options: &ForecastOptions) -> Result<Self> {
        let is_log = matches!(profile.design, Design::Log { .. });
        if !is_log || options.cache.is_some() {
            let asked = [
                ("--over-provisioning", options.over_provisioning_percent.is_some()),
                ("--scaled", options.scaled_bytes.is_some()),
                ("--stripe", options.stripe > 1),
                ("--fail", !options.faults.is_empty()),
            ];
            let refused = asked.iter().find(|(_, is_asked)| *is_asked);
            return match (refused, &options.cache) {
                (None, None) => Ok(Self::Other(Box::new(SimSpec::of(profile)?))),
                (None, Some(cache)) => {
                    let sizes = data.sizes(options.seed);
                    let slow = SimSpec::with_sizes(profile, sizes.clone())?;
                    Ok(Self::Other(Box::new(cache.before(slow, sizes)?)))
                }
                (Some((option, _)), Some(_)) => {
                    let what = format!("{option} is not possible with --cache: remove one");
                    Err(Error::unsupported(what))
                }
                (Some((option, _)), None) => {
                    let what = format!("{} is of kind \"{}\"", profile.id, profile.kind());
                    let what = format!("{what}: {option} is for profiles of kind \"log\" only");
                    Err(Error::unsupported(what))
                }
            };
        }
        let mut spec = LogDriveSpec::of(profile, data.sizes(options.seed))?;
        if let Some(percent) = options.over_provisioning_percent {
            spec.store.log = spec.store.log.over_provisioned(percent)?;
        }
        if let Some(size_bytes) = options.scaled_bytes {
            spec.store.log =
                spec.store.log.scaled(size_bytes / u64::from(options.stripe.max(1)))?;
        }
        spec.stripe = options.stripe;
        let dies = spec.store.log.shape.dies();
        if let Some(fault) = options.faults.iter().find(|fault| fault.die >= dies) {
            let what = format!("--fail {fault}: the drive has {dies} dies, 0 to {}", dies - 1);
            return Err(Error::invalid(what));
        }
        Ok(Self::Log(Box::new(spec)))
    }

    /// Returns the size of the disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Log(spec) => spec.size_bytes(),
            Self::Other(spec) => spec.size_bytes,
        }
    }

    /// Returns the number of cache lines; `None` without a cache.
    pub(super) fn cache_lines(&self) -> Option<u64> {
        match self {
            Self::Other(spec) => match &spec.design {
                SimDesign::Cached(spec) => Some(spec.size_bytes / spec.line_bytes),
                _ => None,
            },
            Self::Log(_) => None,
        }
    }

    /// Returns the maximum memory of the simulation in bytes; 0 if it is negligible.
    pub(super) fn memory_bytes_max(&self) -> Result<u64> {
        match self {
            Self::Log(spec) => Ok(spec.store.log.memory_bytes_max()? * u64::from(spec.stripe)),
            Self::Other(spec) => {
                let logs = logs(&spec.design).into_iter();
                let logs = logs.map(|store| store.log.memory_bytes_max());
                let lines = self.cache_lines().unwrap_or(0) * LINE_MEMORY_BYTES;
                Ok(logs.sum::<Result<u64, pumice_sim::Error>>()? + lines)
            }
        }
    }

    /// Returns the spare capacity of a log's flash in percent of the drive's size; `None` for other
    /// drives.
    pub(super) fn over_provisioning_percent(&self) -> Result<Option<f64>> {
        let Self::Log(spec) = self else { return Ok(None) };
        Ok(Some((spec.raw_bytes()? / spec.size_bytes() as f64 - 1.0) * 100.0))
    }

    /// Returns the mean stored fraction of the data.
    pub(super) fn stored_mean(&self) -> Result<f64> {
        match self {
            Self::Log(spec) => Ok(spec.store.log.stored_mean()?),
            Self::Other(spec) => match below(&spec.design) {
                SimDesign::Log(_, store) => Ok(store.log.stored_mean()?),
                _ => Ok(1.0),
            },
        }
    }

    /// Returns whether earlier writes affect later ones, which they do on flash but not on a hard
    /// disk.
    pub(super) fn is_flash(&self) -> bool {
        !matches!(self, Self::Other(spec)
            if matches!(below(&spec.design), SimDesign::Disk(_) | SimDesign::Memory))
    }

    /// Returns the queue depth of the drive.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::Log(spec) => spec.front.depth * spec.stripe,
            Self::Other(spec) => spec.front.depth,
        }
    }
}

/// A drive in virtual time.
pub(super) enum Device {
    Log(Box<LogDrive>),
    Other(Box<SimDrive>),
}

impl Device {
    /// # Errors
    /// The drive cannot be built.
    pub(super) fn new(spec: &Spec) -> Result<Self> {
        Ok(match spec {
            Spec::Log(spec) => Self::Log(Box::new(LogDrive::new(LogDriveSpec::clone(spec))?)),
            Spec::Other(spec) => Self::Other(Box::new(SimDrive::new(SimSpec::clone(spec))?)),
        })
    }

    /// Returns the log; `None` for other drives.
    pub(super) fn log(&self) -> Option<&LogDrive> {
        match self {
            Self::Log(drive) => Some(drive),
            Self::Other(_) => None,
        }
    }

    /// See [`LogDrive::run`].
    pub(super) fn run(
        &mut self,
        host: &mut impl Host,
        slots: u32,
        stop: &AtomicBool,
    ) -> Result<bool> {
        Ok(match self {
            Self::Log(drive) => drive.run(host, slots, stop)?,
            Self::Other(drive) => sim_host::run(drive, host, slots, stop)?,
        })
    }

    pub(super) fn now_ns(&self) -> u64 {
        match self {
            Self::Log(drive) => drive.now_ns(),
            Self::Other(drive) => drive.runtime().now_ns(),
        }
    }

    /// Completes a log's background work. Has no effect on other drives.
    pub(super) fn settle(&mut self) {
        if let Self::Log(drive) = self {
            drive.settle();
        }
    }

    /// Returns the bytes written since the drive was new, by cause, after the host has written
    /// `written_bytes`. For a block-mapped drive, bytes copied by merges count as collected. Bytes
    /// programmed in addition to the host's, in partly filled rows, count as padding.
    pub(super) fn counts(&self, written_bytes: u64) -> LogCounts {
        let drive = match self {
            Self::Log(drive) => return drive.counts(),
            Self::Other(drive) => drive,
        };
        let counts = match drive.counts() {
            SimCounts { design: DesignCounts::Cached(_, both), .. } => {
                let [_, slow] = *both;
                slow
            }
            counts => counts,
        };
        let merges = match counts.design {
            DesignCounts::BlockMapped(merges) => merges,
            DesignCounts::Log(counts) => return counts,
            _ => return LogCounts::default(),
        };
        let row_bytes = match below(&drive.spec().design) {
            SimDesign::BlockMapped(spec) => u64::from(spec.shape.row_bytes()),
            _ => 0,
        };
        let collected_bytes = merges.rows_copied * row_bytes;
        let others = counts.flash_bytes.saturating_sub(collected_bytes);
        let host_bytes = written_bytes.min(others);
        LogCounts {
            host_bytes,
            collected_bytes,
            padding_bytes: others - host_bytes,
            flash_bytes: counts.flash_bytes,
            segments_collected: merges.switches + merges.partial + merges.full,
            ..LogCounts::default()
        }
    }

    /// Returns the counters since the cache was new; `None` without a cache.
    pub(super) fn cache_counts(&self) -> Option<CacheCounts> {
        let Self::Other(drive) = self else { return None };
        match drive.counts().design {
            DesignCounts::Cached(counts, _) => Some(counts),
            _ => None,
        }
    }

    /// Returns the erase count of each good block; empty for a disk.
    pub(super) fn erases(&self) -> Vec<u32> {
        match self {
            Self::Log(drive) => drive.erases().collect(),
            Self::Other(drive) => drive.counts().wear,
        }
    }

    /// Returns the erase counts of the good blocks; `None` for a disk.
    pub(super) fn wear(&self) -> Option<Worn> {
        let erases = self.erases();
        let count = erases.len() as f64;
        let mean = erases.iter().copied().map(f64::from).sum::<f64>() / count;
        let squares: f64 = erases.iter().map(|&it| (f64::from(it) - mean).powi(2)).sum();
        let max = erases.iter().copied().max()?;
        Some(Worn { mean, max, deviation: (squares / count).sqrt() })
    }
}

/// Returns the size of a profile's drive in bytes, before scaling.
///
/// # Errors
/// The errors of [`Spec::of`].
pub fn size_bytes(profile: &Profile, data: &Data, options: &ForecastOptions) -> Result<u64> {
    match options.over_provisioning_percent {
        None => Ok(profile.size_bytes.is * u64::from(options.stripe)),
        Some(_) => {
            let whole = ForecastOptions { scaled_bytes: None, ..options.clone() };
            Ok(Spec::of(profile, data, &whole)?.size_bytes())
        }
    }
}
