//! From a name or a text in TOML to a profile.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::builtin::{PROFILES, not_found};
use super::{Controller, Design, Disk, Flash, Link, Mapping, Profile, Sourced};
use crate::{Error, Result};

/// Maximum size of a profile file in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;

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

fn invalid(what: impl Into<String>) -> Error {
    Error::InvalidInput(what.into().into())
}
