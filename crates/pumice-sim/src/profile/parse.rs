//! Finds a profile by its name, or parses it from TOML.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::builtin::{PARTS, PROFILES, not_found};
use super::parts::Kind;
use super::{Controller, Design, Disk, Flash, Link, Mapping, Parity, Profile, Sourced};
use crate::{Error, Result};

/// Maximum size of a profile file in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum nesting depth of included parts.
const INCLUDES_MAX: u32 = 4;

/// A profile as written in its file, before validation.
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
    parity: Option<Parity>,
    mapping: Option<Mapping>,
    disk: Option<Disk>,
}

impl Profile {
    /// Returns the built-in profile with this id, or the profile in this file.
    ///
    /// # Errors
    /// `NotFound` with the most similar ids; `InvalidInput` with the file and the line or key;
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
        // The length of the file is not used as a limit, because a device has none.
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

    /// Returns the built-in profile with this id, without the values that were fitted to the
    /// published results of a drive. Values known from other sources take their place.
    ///
    /// # Errors
    /// The errors of [`Profile::find`]; `NotFound` for a profile in a file.
    pub fn find_without(id: &str, drive: &str) -> Result<Self> {
        let Some((id, text)) = PROFILES.iter().find(|(known, _)| *known == id) else {
            return Err(Error::NotFound(not_found(id).into()));
        };
        let wrong = |error: toml::de::Error| invalid(format!("{id}: {}", error.message()));
        let table: toml::Table = toml::from_str(text).map_err(wrong)?;
        let mut table = complete(table, id, INCLUDES_MAX)?;
        leave_out(&mut table, drive);
        let profile = table.try_into::<Text>().map_err(wrong)?.designed((*id).to_owned());
        let profile = profile.and_then(|profile| profile.check().map(|()| profile));
        profile.map_err(|what| invalid(format!("{id} without {drive}: {what}")))
    }

    /// Parses a profile. `file` is its name in error messages, and its stem becomes the id.
    ///
    /// # Errors
    /// `InvalidInput` with the file and the line or key.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        let located = |error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            invalid(format!("{file}, line {line}: {}", error.message().replace('\n', " ")))
        };
        let parsed: Text = if text.lines().any(|line| line.starts_with("include")) {
            let table: toml::Table = toml::from_str(text).map_err(located)?;
            let table = complete(table, file, INCLUDES_MAX)?;
            let wrong = |error: toml::de::Error| {
                invalid(format!("{file}: {}", error.message().replace('\n', " ")))
            };
            table.try_into().map_err(wrong)?
        } else {
            toml::from_str(text).map_err(located)?
        };
        let stem = Path::new(file).file_stem().unwrap_or_default();
        let profile = parsed.designed(stem.to_string_lossy().into_owned());
        let profile = profile.and_then(|profile| profile.check().map(|()| profile));
        profile.map_err(|what| invalid(format!("{file}: {what}")))
    }
}

/// Adds the keys that a profile lacks from the parts and profiles that it includes, in order.
fn complete(mut table: toml::Table, file: &str, includes_max: u32) -> Result<toml::Table> {
    let Some(includes) = table.remove("include") else { return Ok(table) };
    let names = match includes {
        toml::Value::String(name) => vec![name],
        toml::Value::Array(names) => {
            names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
        }
        _ => Vec::new(),
    };
    if names.is_empty() || includes_max == 0 {
        let what = format!("{file}: include: expected the names of parts or profiles");
        return Err(invalid(format!(
            "{what}, which include at most {INCLUDES_MAX} others in turn"
        )));
    }
    for name in names {
        let known = PARTS.iter().chain(&PROFILES).find(|(known, _)| *known == name);
        let Some((_, text)) = known else {
            let parts = PARTS.map(|(known, _)| known).join(", ");
            let what = format!("{file}: include: no part is called {name}");
            return Err(invalid(format!("{what}: use {parts} or a profile of pumice drives")));
        };
        let part: toml::Table = toml::from_str(text)
            .map_err(|error| invalid(format!("{name}: {}", error.message())))?;
        add(&mut table, complete(part, &name, includes_max - 1)?);
    }
    Ok(table)
}

/// Adds the keys that `table` lacks from `more`, section by section. A number with its basis is
/// treated as a unit.
fn add(table: &mut toml::Table, more: toml::Table) {
    for (key, value) in more {
        match (table.get_mut(&key), value) {
            (None, value) => drop(table.insert(key, value)),
            (Some(toml::Value::Table(own)), toml::Value::Table(more))
                if !own.contains_key("is") =>
            {
                add(own, more)
            }
            (Some(_), _) => {}
        }
    }
}

/// Replaces the numbers that were fitted to the published results of a drive.
fn leave_out(table: &mut toml::Table, drive: &str) {
    table.retain(|_, value| {
        let toml::Value::Table(number) = value else { return true };
        if number.get("of").and_then(toml::Value::as_str) != Some(drive) {
            leave_out(number, drive);
            return true;
        }
        match number.get("otherwise").cloned() {
            None => true,
            Some(otherwise) if otherwise.as_str() == Some("none") => false,
            Some(otherwise) => {
                number.insert("is".into(), otherwise);
                true
            }
        }
    });
}

impl Text {
    /// Builds the profile from the sections for its kind. Other sections are an error.
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
                Design::Log { flash: needed("flash", self.flash, kind)?, parity: self.parity }
            }
            Kind::BlockMapped => {
                refuse("parity", self.parity.is_some())?;
                refuse("disk", self.disk.is_some())?;
                let flash = needed("flash", self.flash, kind)?;
                Design::BlockMapped { flash, mapping: needed("mapping", self.mapping, kind)? }
            }
            Kind::Disk => {
                refuse("flash", self.flash.is_some())?;
                refuse("parity", self.parity.is_some())?;
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
