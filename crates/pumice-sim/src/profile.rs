//! Profiles: the parts of a drive, in TOML, with a basis for every number.
//!
//! ```toml
//! name = "Micro Center 64 GB"
//! about = "One sentence."
//! year = 2010
//! kind = "log"                   # or "block-mapped", "disk"
//! size_bytes = { is = 60_022_480_896, source = "data sheet" }
//! [link]                         # the link to the host
//! [controller]
//! [flash]                        # of "log" and "block-mapped"
//! [mapping]                      # of "block-mapped"
//! [disk]                         # of "disk"
//! ```
//!
//! * `sourced`: a number and its basis: a source, cells it was fitted to, or an admitted guess.
//! * `sections`: the keys of each section, defined once: type, limits and display.
//! * `check`: what makes a profile invalid.
//! * `figures`: what follows from a profile by arithmetic.
//!
//! Invariants of every [`Profile`] value: each number is within the limits of its key, the bytes of
//! the geometry fit 64 bits, and the good flash is not smaller than the disk. So a simulation need
//! not check again. The module simulates nothing.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};
use pumice_drive::base::near::nearest;

mod check;
mod figures;
mod sections;
mod sourced;
#[cfg(test)]
mod tests;

pub use figures::{DiskFigures, Figures, FlashFigures};
pub use sections::{Controller, Disk, Fact, Flash, Link, MAP_REGION_BYTES, Mapping, Value};
pub use sourced::{Basis, Sourced};

/// The id and the text of each built-in profile.
macro_rules! profiles {
    ($($id:literal),* $(,)?) => {
        [$(($id, include_str!(concat!("profiles/", $id, ".toml")))),*]
    };
}

/// The built-in profiles: id and text.
pub const PROFILES: [(&str, &str); 14] = profiles![
    "micro-center-64",
    "corsair-force-100",
    "ocz-agility-2-100",
    "ocz-vertex-2-50",
    "intel-x25-e-32",
    "intel-x25-m-g1-80",
    "intel-x25-m-g2-160",
    "indilinx-barefoot-120",
    "jmicron-jmf602b",
    "samsung-slc-64",
    "toshiba-128",
    "hdd-2010",
    "generic-nvme-tlc-1tb",
    "compressing-nvme-1tb",
];

/// Maximum size of a profile file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A drive, in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Short name: its file name without the extension.
    pub id: String,
    /// Product name.
    pub name: String,
    /// One sentence about the drive.
    pub about: String,
    /// Year of introduction.
    pub year: u16,
    /// Size of the disk that the host sees, in bytes: whole 4 KiB blocks, at most 16 PiB.
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
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Design {
    /// Flash with a map of small pages: every write goes to the end of a log.
    Log {
        /// The flash.
        flash: Flash,
    },
    /// Flash with a map of large units, which a small write rewrites.
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
enum Kind {
    Log,
    BlockMapped,
    Disk,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::BlockMapped => "block-mapped",
            Self::Disk => "disk",
        }
    }
}

/// A profile as written in its file, before it is validated.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    about: String,
    year: u16,
    kind: Kind,
    size_bytes: Sourced<u64>,
    link: Option<Link>,
    controller: Option<Controller>,
    flash: Option<Flash>,
    mapping: Option<Mapping>,
    disk: Option<Disk>,
}

impl Profile {
    /// Returns the built-in profile with this id, or the profile in this file.
    ///
    /// # Errors
    /// `NotFound` with the nearest ids; `InvalidInput` that names the file and the line or key;
    /// `Io`.
    pub fn find(id_or_path: &str) -> Result<Self> {
        if let Some((id, text)) = PROFILES.iter().find(|(known, _)| *known == id_or_path) {
            return Self::parse(text, id);
        }
        let path = Path::new(id_or_path);
        if !id_or_path.contains(['/', '.']) && !path.exists() {
            return Err(Error::NotFound(not_found(id_or_path).into()));
        }
        let mut text = String::new();
        // Not by its length: a device has none.
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
            .map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => invalid(format!("{id_or_path} is not a text file")),
            _ => Error::Io { what: format!("cannot read {id_or_path}"), source: error },
        })?;
        if text.len() as u64 > FILE_BYTES_MAX {
            let what = format!("{id_or_path} is larger than {FILE_BYTES_MAX} bytes");
            return Err(invalid(format!("{what}, the limit for a profile")));
        }
        Self::parse(&text, id_or_path)
    }

    /// Parses a profile; `file` is its name in errors, and its stem becomes the id.
    ///
    /// # Errors
    /// `InvalidInput` that names the file and the line or key.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        let parsed: Text = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            invalid(format!("{file}, line {line}: {}", error.message().replace('\n', " ")))
        })?;
        let stem = Path::new(file).file_stem().unwrap_or_default();
        let profile = parsed.designed(stem.to_string_lossy().into_owned());
        let profile = profile.and_then(|profile| profile.check().map(|()| profile));
        profile.map_err(|what| invalid(format!("{file}: {what}")))
    }

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
            Design::Log { flash } | Design::BlockMapped { flash, .. } => Some(flash),
            Design::Disk { .. } => None,
        }
    }

    /// Returns every number with its basis, section by section, in the order of the schema.
    pub fn facts(&self) -> Vec<Fact<'_>> {
        let mut facts = vec![Fact::new("", "size_bytes", &self.size_bytes)];
        facts.extend(self.link.facts());
        facts.extend(self.controller.facts());
        facts.extend(self.flash().map(Flash::facts).into_iter().flatten());
        match &self.design {
            Design::Log { .. } => {}
            Design::BlockMapped { mapping, .. } => facts.extend(mapping.facts()),
            Design::Disk { disk } => facts.extend(disk.facts()),
        }
        facts
    }
}

impl Text {
    /// Builds the profile from the sections of its kind; other sections are an error.
    fn designed(self, id: String) -> std::result::Result<Profile, String> {
        let kind = self.kind;
        let refuse = |section: &str, is_there: bool| {
            if is_there {
                Err(format!(
                    "[{section}] does not belong to kind \"{}\": remove it, or change kind",
                    kind.name()
                ))
            } else {
                Ok(())
            }
        };
        let design = match kind {
            Kind::Log => {
                refuse("disk", self.disk.is_some())?;
                refuse("mapping", self.mapping.is_some())?;
                Design::Log { flash: needed("flash", self.flash, kind)? }
            }
            Kind::BlockMapped => {
                refuse("disk", self.disk.is_some())?;
                let flash = needed("flash", self.flash, kind)?;
                Design::BlockMapped { flash, mapping: needed("mapping", self.mapping, kind)? }
            }
            Kind::Disk => {
                refuse("flash", self.flash.is_some())?;
                refuse("mapping", self.mapping.is_some())?;
                Design::Disk { disk: needed("disk", self.disk, kind)? }
            }
        };
        Ok(Profile {
            id,
            name: self.name,
            about: self.about,
            year: self.year,
            size_bytes: self.size_bytes,
            link: needed("link", self.link, kind)?,
            controller: needed("controller", self.controller, kind)?,
            design,
        })
    }
}

fn needed<T>(name: &str, section: Option<T>, kind: Kind) -> std::result::Result<T, String> {
    section.ok_or_else(|| {
        format!("there is no [{name}], which kind \"{}\" needs: add it", kind.name())
    })
}

/// Returns the message for an unknown name, with similar names.
fn not_found(typed: &str) -> String {
    let ids = PROFILES.map(|(id, _)| id);
    let slip = nearest(typed, &ids);
    let letters = |text: &str| text.to_lowercase().replace(['-', '_', ' '], "");
    let wanted = letters(typed);
    let near = ids
        .into_iter()
        .filter(|id| Some(*id) == slip || (!wanted.is_empty() && letters(id).contains(&wanted)));
    let near: Vec<&str> = near.collect();
    let hint =
        if near.is_empty() { ".".into() } else { format!(", did you mean {}?", near.join(" or ")) };
    format!("no drive or file is called {typed}{hint} Drives: {}", ids.join(", "))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::InvalidInput(what.into().into())
}
