//! A drive that is simulated: without content if it is a log, else with content that is all zeroes,
//! which takes neither memory nor a codec.

use std::sync::atomic::AtomicBool;

use super::figures::Worn;
use super::{Data, Options};
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_sim::drive::{DesignCounts, SimDesign, SimDrive, SimSpec};
use pumice_sim::ftl::LogCounts;
use pumice_sim::log_drive::{Host, LogDrive, LogDriveSpec};
use pumice_sim::profile::{Design, Profile};
use pumice_sim::sim_host;

/// What is simulated for a profile.
#[derive(Clone, Debug)]
pub enum Spec {
    /// A log, of blocks of which only is known how much of them is stored.
    Log(Box<LogDriveSpec>),
    /// Any other drive.
    Other(Box<SimSpec>),
}

impl Spec {
    /// The drive of a profile with this data, sold and scaled as the options say.
    ///
    /// # Errors
    /// `Unsupported` for what only a log can be asked for; `InvalidInput` for what cannot be
    /// simulated.
    pub(super) fn of(profile: &Profile, data: &Data, options: &Options) -> Result<Self> {
        if !matches!(profile.design, Design::Log { .. }) {
            let asked = [
                ("--over-provisioning", options.over_provisioning_percent.is_some()),
                ("--scaled", options.scaled_bytes.is_some()),
            ];
            return match asked.iter().find(|(_, is_asked)| *is_asked) {
                None => Ok(Self::Other(Box::new(SimSpec::of(profile)?))),
                Some((option, _)) => {
                    let what = format!("{} is of kind \"{}\"", profile.id, profile.kind());
                    let what = format!("{what}: {option} is for a \"log\" only");
                    Err(Error::new(ErrorKind::Unsupported, what))
                }
            };
        }
        let mut spec = LogDriveSpec::of(profile, data.sizes(options.seed))?;
        if let Some(percent) = options.over_provisioning_percent {
            spec.log = spec.log.over_provisioned(percent)?;
        }
        if let Some(size_bytes) = options.scaled_bytes {
            spec.log = spec.log.scaled(size_bytes)?;
        }
        Ok(Self::Log(Box::new(spec)))
    }

    /// Bytes of the disk that the host sees.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Log(spec) => spec.size_bytes(),
            Self::Other(spec) => spec.size_bytes,
        }
    }

    /// Bytes of memory that its simulation takes at most; 0 if that is little.
    pub(super) fn memory_bytes_max(&self) -> Result<u64> {
        match self {
            Self::Log(spec) => Ok(spec.log.memory_bytes_max()?),
            Self::Other(_) => Ok(0),
        }
    }

    /// What its flash has room for beyond its size, in per cent of the size, if it is a log.
    pub(super) fn over_provisioning_percent(&self) -> Result<Option<f64>> {
        let Self::Log(spec) = self else { return Ok(None) };
        Ok(Some((spec.log.raw_bytes()? / spec.size_bytes() as f64 - 1.0) * 100.0))
    }

    /// What is stored of the data on average.
    pub(super) fn stored_mean(&self) -> Result<f64> {
        match self {
            Self::Log(spec) => Ok(spec.log.stored_mean()?),
            Self::Other(_) => Ok(1.0),
        }
    }

    /// Whether what was written before matters: not to a head over platters.
    pub(super) fn is_flash(&self) -> bool {
        !matches!(self, Self::Other(spec) if matches!(spec.design, SimDesign::Disk(_)))
    }

    /// Places of its queue.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::Log(spec) => spec.front.depth,
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
    /// `InvalidInput` for what cannot be built.
    pub(super) fn new(spec: &Spec) -> Result<Self> {
        Ok(match spec {
            Spec::Log(spec) => Self::Log(Box::new(LogDrive::new(LogDriveSpec::clone(spec))?)),
            Spec::Other(spec) => Self::Other(Box::new(SimDrive::new(SimSpec::clone(spec))?)),
        })
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

    /// Lets a log finish what it does behind the host's back; others do nothing there.
    pub(super) fn settle(&mut self) {
        if let Self::Log(drive) = self {
            drive.settle();
        }
    }

    /// What was written and why since it was made, when the host has written so many bytes: of a
    /// block-mapped drive, what merges copied counts as collected, and what is programmed beside
    /// the host's bytes in rows that they do not fill as padding.
    pub(super) fn counts(&self, written_bytes: u64) -> LogCounts {
        let drive = match self {
            Self::Log(drive) => return drive.counts(),
            Self::Other(drive) => drive,
        };
        let counts = drive.counts();
        let DesignCounts::BlockMapped(merges) = counts.design else { return LogCounts::default() };
        let row_bytes = match &drive.spec().design {
            SimDesign::BlockMapped(spec) => u64::from(spec.shape.row_bytes()),
            SimDesign::Log(_) | SimDesign::Disk(_) => 0,
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

    /// How often each block was erased that is not bad; empty for a disk.
    pub(super) fn erases(&self) -> Vec<u32> {
        match self {
            Self::Log(drive) => drive.erases().collect(),
            Self::Other(drive) => drive.counts().wear,
        }
    }

    /// Erasures of the blocks that are not bad; none for a disk.
    pub(super) fn wear(&self) -> Option<Worn> {
        if let Self::Log(drive) = self {
            return Some(drive.wear().into());
        }
        let erases = self.erases();
        let count = erases.len() as f64;
        let mean = erases.iter().copied().map(f64::from).sum::<f64>() / count;
        let squares: f64 = erases.iter().map(|&it| (f64::from(it) - mean).powi(2)).sum();
        let max = erases.iter().copied().max()?;
        Some(Worn { mean, max, deviation: (squares / count).sqrt() })
    }
}
