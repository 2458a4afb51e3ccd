//! Figures calculated from a profile: a cross-check of its numbers, not a simulation.
//!
//! The calculation ignores queues, garbage collection and command times.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::sections::{Disk, Flash, Parity, quantity_text};
use super::{Design, Profile};

/// Figures of a profile.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Figures {
    /// Figures of a drive with flash.
    Flash(FlashFigures),
    /// Figures of a hard disk.
    Disk(DiskFigures),
}

/// Figures of flash.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FlashFigures {
    /// Number of dies on all channels.
    pub dies: u64,
    /// User bytes of all pages, including bad blocks.
    pub flash_bytes: u64,
    /// (flash bytes - size) / size.
    pub over_provisioning_percent: f64,
    /// Bytes per second that one die can program.
    pub die_program_bytes_per_s: f64,
    /// Bytes per second that all dies can program, limited by the channels.
    pub program_bytes_per_s: f64,
    /// Bytes of data per second that all dies can program, limited by the controller.
    pub store_bytes_per_s: f64,
    /// Bytes per second that all dies can read, limited by the channels.
    pub read_bytes_per_s: f64,
}

/// Calculated sequential speeds of a drive with a different number of channels. With the same
/// number of dies per channel, the speed of the flash is proportional to the number of channels,
/// until the controller or the link becomes the limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChannelFigures {
    /// Number of channels.
    pub channels: u64,
    /// Read speed of the flash in bytes per second.
    pub flash_read_bytes_per_s: f64,
    /// Programming speed of the flash in bytes per second.
    pub flash_program_bytes_per_s: f64,
    /// Read speed for incompressible data, in host bytes per second.
    pub read_bytes_per_s: f64,
    /// Write speed for incompressible data, in host bytes per second.
    pub write_bytes_per_s: f64,
}

/// The calculated cost of parity over dies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ParityFigures {
    /// Number of dies in a stripe, including one die for the parity of the others.
    pub stripe_dies: u64,
    /// User bytes of all pages that contain parity, including bad blocks: the lost capacity.
    pub parity_bytes: u64,
    /// Share of parity in the flash and in the programmed bytes, in percent.
    pub share_percent: f64,
    /// (flash bytes - parity bytes - size) / size, in percent.
    pub over_provisioning_percent: f64,
    /// (flash bytes - size) / size, in percent; the over-provisioning without parity.
    pub over_provisioning_percent_without: f64,
    /// Bytes of data per second that all dies can program, limited by the controller.
    pub store_bytes_per_s: f64,
    /// `store_bytes_per_s` without parity.
    pub store_bytes_per_s_without: f64,
}

/// Figures of a hard disk.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DiskFigures {
    /// Mean rotational delay: half a revolution.
    pub latency_average_ns: f64,
    /// Mean access time: an average seek and half a revolution.
    pub access_average_ns: f64,
    /// Number of random accesses per second, one at a time.
    pub access_per_s: f64,
}

impl Flash {
    /// Returns the user bytes of all pages; `None` if they exceed 64 bits, which is impossible in a
    /// valid profile.
    pub fn bytes(&self) -> Option<u64> {
        [&self.planes, &self.blocks_per_plane, &self.pages_per_block, &self.page_bytes]
            .into_iter()
            .try_fold(self.dies(), |product, factor| product.checked_mul(factor.is))
    }

    /// Returns the number of dies on all channels.
    pub fn dies(&self) -> u64 {
        self.channels.is.saturating_mul(self.dies_per_channel.is)
    }

    /// Returns the number of planes in a die that work simultaneously.
    pub(crate) fn planes_at_once(&self) -> u64 {
        if self.multi_plane.is { self.planes.is } else { 1 }
    }

    /// Returns the transfer time of a page on the bus, in ns.
    pub fn transfer_ns(&self) -> f64 {
        self.page_bytes.is as f64 * 1e9 / self.bus_bytes_per_s.is as f64
    }

    /// Returns the speed in bytes per second of a die whose cells need `cells_ns` for a page of
    /// each plane.
    fn die_bytes_per_s(&self, cells_ns: u64, overlaps: bool) -> f64 {
        let planes = self.planes_at_once() as f64;
        let (cells_ns, transfers_ns) = (cells_ns as f64, planes * self.transfer_ns());
        let step_ns = if overlaps { cells_ns.max(transfers_ns) } else { cells_ns + transfers_ns };
        planes * self.page_bytes.is as f64 * 1e9 / step_ns
    }

    /// Returns the speed of all dies in bytes per second, limited by the channels.
    fn all_bytes_per_s(&self, die_bytes_per_s: f64) -> f64 {
        let channels = self.channels.is as f64 * self.bus_bytes_per_s.is as f64;
        channels.min(self.dies() as f64 * die_bytes_per_s)
    }
}

impl Profile {
    /// Returns the figures of the profile.
    pub fn figures(&self) -> Figures {
        match &self.design {
            Design::Log { flash, .. } | Design::BlockMapped { flash, .. } => {
                Figures::Flash(self.flash_figures(flash))
            }
            Design::Disk { disk } => Figures::Disk(disk_figures(disk)),
        }
    }

    /// Returns the speeds with 1, 2, 4 and more channels, up to four times the number of channels
    /// of the drive; empty for a disk.
    pub fn by_channels(&self) -> Vec<ChannelFigures> {
        let Some(flash) = self.flash() else { return Vec::new() };
        let counts = (0..).map(|power| 1u64 << power).take_while(|&it| it <= 4 * flash.channels.is);
        let of = |channels: u64| {
            let mut flash = flash.clone();
            flash.channels.is = channels;
            let figures = self.flash_figures(&flash);
            let link = |rate: u64| rate as f64;
            ChannelFigures {
                channels,
                flash_read_bytes_per_s: figures.read_bytes_per_s,
                flash_program_bytes_per_s: figures.program_bytes_per_s,
                read_bytes_per_s: figures.read_bytes_per_s.min(link(self.link.read_bytes_per_s.is)),
                write_bytes_per_s: (figures.store_bytes_per_s)
                    .min(link(self.link.write_bytes_per_s.is)),
            }
        };
        counts.map(of).collect()
    }

    /// Returns (flash bytes - size) / size in percent; `None` for a disk.
    pub fn over_provisioning_percent(&self) -> Option<f64> {
        match self.figures() {
            Figures::Flash(figures) => Some(figures.over_provisioning_percent),
            Figures::Disk(_) => None,
        }
    }

    /// Returns the cost of parity; `None` for a drive without parity.
    pub fn parity_figures(&self) -> Option<ParityFigures> {
        let (flash, parity) = (self.flash()?, self.parity()?);
        let with = self.flash_figures(flash);
        let without = self.clone().without_parity().flash_figures(flash);
        let parity_bytes = with.flash_bytes / parity.stripe_dies.is;
        let size = self.size_bytes.is as f64;
        Some(ParityFigures {
            stripe_dies: parity.stripe_dies.is,
            parity_bytes,
            share_percent: parity.share() * 100.0,
            over_provisioning_percent: ((with.flash_bytes - parity_bytes) as f64 / size - 1.0)
                * 100.0,
            over_provisioning_percent_without: without.over_provisioning_percent,
            store_bytes_per_s: with.store_bytes_per_s,
            store_bytes_per_s_without: without.store_bytes_per_s,
        })
    }

    fn flash_figures(&self, flash: &Flash) -> FlashFigures {
        let flash_bytes = flash.bytes().unwrap_or(u64::MAX);
        let size = self.size_bytes.is as f64;
        let die = flash.die_bytes_per_s(flash.program_ns.is, flash.cache_program.is);
        let program = flash.all_bytes_per_s(die);
        let parity = self.parity().map_or(0.0, Parity::share);
        let data = program * (1.0 - flash.overhead_percent.is / 100.0) * (1.0 - parity);
        let ceiling = self.controller.store_bytes_per_s.as_ref().map(|rate| rate.is as f64);
        FlashFigures {
            dies: flash.dies(),
            flash_bytes,
            over_provisioning_percent: (flash_bytes as f64 - size) / size * 100.0,
            die_program_bytes_per_s: die,
            program_bytes_per_s: program,
            store_bytes_per_s: ceiling.map_or(data, |ceiling| ceiling.min(data)),
            read_bytes_per_s: flash.all_bytes_per_s(flash.die_bytes_per_s(flash.read_ns.is, false)),
        }
    }
}

fn disk_figures(disk: &Disk) -> DiskFigures {
    let latency_average_ns = 30e9 / disk.rpm.is as f64;
    let access_average_ns = disk.seek_average_ns.is as f64 + latency_average_ns;
    DiskFigures { latency_average_ns, access_average_ns, access_per_s: 1e9 / access_average_ns }
}

impl fmt::Display for ParityFigures {
    /// Writes one sentence without a full stop: the lost capacity, and the additional programmed
    /// bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stripe_dies, share_percent, .. } = self;
        let given_up = quantity_text("parity_bytes", self.parity_bytes as f64);
        let [with, without] =
            [self.over_provisioning_percent, self.over_provisioning_percent_without];
        let mb_per_s = [self.store_bytes_per_s, self.store_bytes_per_s_without].map(|it| it / 1e6);
        write!(
            f,
            "one die in {stripe_dies}: {given_up} of the flash, {share_percent:.2} % of the bytes \
             programmed; over-provisioning {with:.1} % instead of {without:.1} %, stores {:.0} \
             MB/s instead of {:.0}",
            mb_per_s[0], mb_per_s[1]
        )
    }
}

impl Figures {
    /// Returns the key and value of each figure, with its unit, for display.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        let figures: Vec<(&str, f64)> = match self {
            Self::Flash(of) => vec![
                ("dies", of.dies as f64),
                ("flash_bytes", of.flash_bytes as f64),
                ("over_provisioning_percent", of.over_provisioning_percent),
                ("die_program_bytes_per_s", of.die_program_bytes_per_s),
                ("program_bytes_per_s", of.program_bytes_per_s),
                ("store_bytes_per_s", of.store_bytes_per_s),
                ("read_bytes_per_s", of.read_bytes_per_s),
            ],
            Self::Disk(of) => vec![
                ("latency_average_ns", of.latency_average_ns),
                ("access_average_ns", of.access_average_ns),
                ("access_per_s", of.access_per_s),
            ],
        };
        figures.into_iter().map(|(key, value)| (key, quantity_text(key, value))).collect()
    }
}
