//! A drive composed of its parts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Controller, Disk, Fact, Flash, Link, Mapping, Parity, Sourced};

/// A drive, described by numbers.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Profile {
    /// Short name, which is the file name without the extension.
    pub id: String,
    /// Product name.
    pub name: String,
    /// One sentence about the drive.
    pub about: String,
    /// Year of introduction.
    pub year: u16,
    /// Size of the disk seen by the host, in bytes: whole 4 KiB blocks, at most 16 PiB.
    pub size_bytes: Sourced<u64>,
    /// Link to the host.
    pub link: Link,
    /// Controller, with or without compression.
    pub controller: Controller,
    /// Storage and its address mapping.
    #[serde(flatten)]
    pub design: Design,
}

/// The storage of a drive and its address mapping.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Design {
    /// Flash with a map of small pages: every write goes to the end of a log.
    Log {
        /// The flash.
        flash: Flash,
        /// Parity over dies; absent if the drive has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        parity: Option<Parity>,
    },
    /// Flash with a map of large units. A small write rewrites a whole unit.
    BlockMapped {
        /// The flash.
        flash: Flash,
        /// The units.
        mapping: Mapping,
    },
    /// A hard disk.
    Disk {
        /// The platters.
        disk: Disk,
    },
}

/// The kind of a [`Design`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Log,
    BlockMapped,
    Disk,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::BlockMapped => "block-mapped",
            Self::Disk => "disk",
        }
    }
}

impl Profile {
    /// Returns the kind: `log`, `block-mapped` or `disk`.
    pub fn kind(&self) -> &'static str {
        let kind = match self.design {
            Design::Log { .. } => Kind::Log,
            Design::BlockMapped { .. } => Kind::BlockMapped,
            Design::Disk { .. } => Kind::Disk,
        };
        kind.name()
    }

    /// Returns the flash, if the drive has any.
    pub fn flash(&self) -> Option<&Flash> {
        match &self.design {
            Design::Log { flash, .. } | Design::BlockMapped { flash, .. } => Some(flash),
            Design::Disk { .. } => None,
        }
    }

    /// Returns the parity over dies, if the drive has any.
    pub fn parity(&self) -> Option<&Parity> {
        match &self.design {
            Design::Log { parity, .. } => parity.as_ref(),
            Design::BlockMapped { .. } | Design::Disk { .. } => None,
        }
    }

    /// Returns the same drive without parity. Its flash has the same size and can store more data.
    pub fn without_parity(mut self) -> Self {
        if let Design::Log { parity, .. } = &mut self.design {
            *parity = None;
        }
        self
    }

    /// Returns every number with its basis, section by section, in schema order.
    pub fn facts(&self) -> Vec<Fact<'_>> {
        let mut facts = vec![Fact::new("", "size_bytes", &self.size_bytes)];
        facts.extend(self.link.facts());
        facts.extend(self.controller.facts());
        facts.extend(self.flash().map(Flash::facts).into_iter().flatten());
        match &self.design {
            Design::Log { parity, .. } => {
                facts.extend(parity.iter().flat_map(Parity::facts));
            }
            Design::BlockMapped { mapping, .. } => facts.extend(mapping.facts()),
            Design::Disk { disk } => facts.extend(disk.facts()),
        }
        facts
    }
}
