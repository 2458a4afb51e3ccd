//! Names of the kinds of data on the command line and in presets.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::{IozoneLayout, Kind, PROFILE_FILE_BYTES_MAX, Profile, Saving};
use crate::error::{Error, Result};
use pumice_drive::base::near::nearest;

/// Maximum size of a replayed file in bytes. The file is held in memory.
const REPLAY_BYTES_MAX: u64 = 1 << 30;

/// All names, for messages.
const NAMES: [&str; 8] =
    ["random", "byte", "exact", "spread", "like", "replay", "iozone-3.420", "iozone-3.489"];

/// A kind by name, before any files are read.
#[derive(Clone, Debug, PartialEq)]
pub enum KindName {
    /// See [`Kind::Random`].
    Random,
    /// See [`Kind::Byte`].
    Byte(u8),
    /// See [`Kind::Exact`].
    Exact,
    /// See [`Kind::Spread`].
    Spread,
    /// See [`Kind::Like`]; the path is a file, folder, device or saved profile.
    Like(PathBuf),
    /// See [`Kind::Replay`]; the path is a file.
    Replay(PathBuf),
    /// See [`Kind::Iozone`].
    Iozone(IozoneLayout),
}

fn invalid(what: String) -> Error {
    Error::invalid(what)
}

impl FromStr for KindName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let plain = match name {
            "random" => Some(Self::Random),
            "exact" => Some(Self::Exact),
            "spread" => Some(Self::Spread),
            "iozone-3.420" => Some(Self::Iozone(IozoneLayout::V3420)),
            "iozone-3.489" => Some(Self::Iozone(IozoneLayout::V3489)),
            _ => None,
        };
        match (plain, name, argument) {
            (Some(kind), _, None) => Ok(kind),
            (Some(_), _, Some(_)) => {
                Err(format!("kind '{name}' takes no argument after the colon"))
            }
            (_, "byte", Some(value)) => byte(value).map(Self::Byte),
            (_, "byte", None) => Err("kind 'byte' needs a value, such as byte:0x00".into()),
            (_, "like", Some(path)) if !path.is_empty() => Ok(Self::Like(path.into())),
            (_, "replay", Some(path)) if !path.is_empty() => Ok(Self::Replay(path.into())),
            (_, "like" | "replay", _) => Err(format!("kind '{name}' needs a path: {name}:PATH")),
            _ => Err(unknown(name)),
        }
    }
}

fn byte(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("invalid byte '{text}': expected 0x00 to 0xff, or 0 to 255"))
}

fn unknown(name: &str) -> String {
    let near = nearest(name, &NAMES);
    let hint = near.map_or(".".to_owned(), |known| format!(", did you mean {known}?"));
    format!("unknown kind '{name}'{hint} Kinds: {}", NAMES.join(", "))
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Byte(byte) => write!(f, "byte:0x{byte:02x}"),
            Self::Exact => f.write_str("exact"),
            Self::Spread => f.write_str("spread"),
            Self::Like(path) => write!(f, "like:{}", path.display()),
            Self::Replay(path) => write!(f, "replay:{}", path.display()),
            Self::Iozone(IozoneLayout::V3420) => f.write_str("iozone-3.420"),
            Self::Iozone(IozoneLayout::V3489) => f.write_str("iozone-3.489"),
        }
    }
}

impl KindName {
    /// Returns whether the kind has a configurable saving.
    pub(crate) fn takes_saving(&self) -> bool {
        matches!(self, Self::Exact | Self::Spread | Self::Iozone(_))
    }

    /// Reads the required files and returns the kind.
    ///
    /// # Errors
    /// `saved` is missing or not applicable, or a file cannot be read.
    pub fn load(&self, saved: Option<Saving>) -> Result<Kind> {
        let needed = || saved.ok_or_else(|| invalid(format!("{self} needs --saved, such as 50%")));
        let kind = match self {
            Self::Exact => return Ok(Kind::Exact(needed()?)),
            Self::Spread => return Ok(Kind::Spread(needed()?)),
            Self::Iozone(layout) => return Ok(Kind::Iozone(*layout, needed()?)),
            _ if saved.is_some() => {
                let what = format!("the saving of {self} is fixed: remove --saved");
                return Err(invalid(what));
            }
            Self::Random => Kind::Random,
            Self::Byte(byte) => Kind::Byte(*byte),
            Self::Like(path) => Kind::Like(profile(path)?),
            Self::Replay(path) => Kind::Replay(replay(path)?),
        };
        Ok(kind)
    }
}

/// Reads a saved profile, or measures the profile of the data itself.
fn profile(path: &Path) -> Result<Profile> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_file() && metadata.len() <= PROFILE_FILE_BYTES_MAX {
        let text = std::fs::read(path).map_err(failed)?;
        let text = String::from_utf8_lossy(&text);
        if text.trim_start().starts_with("{") && text.contains("\"pumice_profile\"") {
            return Profile::from_json(&text)
                .map_err(|error| error.context(path.display().to_string()));
        }
    }
    Profile::of_path(path)
}

fn replay(path: &Path) -> Result<Arc<[u8]>> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), error);
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(REPLAY_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > REPLAY_BYTES_MAX {
        let path = path.display();
        return Err(invalid(format!(
            "{path} is larger than 1 GiB, the limit for replay from memory: use like:{path}"
        )));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    //! Goal: kinds are parsed as documented, and errors suggest the correct input.
    use super::*;

    #[test]
    fn kinds_are_read() {
        for (text, kind) in [
            ("random", KindName::Random),
            ("byte:0xFF", KindName::Byte(255)),
            ("byte:7", KindName::Byte(7)),
            ("like:a:b", KindName::Like("a:b".into())),
            ("replay:x", KindName::Replay("x".into())),
            ("iozone-3.489", KindName::Iozone(IozoneLayout::V3489)),
        ] {
            assert_eq!(text.parse(), Ok(kind.clone()), "{text}");
            assert_eq!(kind.to_string().parse(), Ok(kind), "{text}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, hint) in [
            ("exakt", "did you mean exact?"),
            ("spred", "did you mean spread?"),
            ("iozone-3.42", "did you mean iozone-3.420?"),
            ("zebra", "'zebra'. Kinds: random, byte"),
            ("byte", "byte:0x00"),
            ("byte:256", "0 to 255"),
            ("byte:0x100", "0 to 255"),
            ("like", "like:PATH"),
            ("like:", "like:PATH"),
            ("replay", "replay:PATH"),
            ("exact:5", "no argument"),
        ] {
            let error = text.parse::<KindName>().unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
