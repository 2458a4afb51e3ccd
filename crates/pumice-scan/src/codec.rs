//! The codecs that a scan measures: the codecs of a drive, and liblz4.
//!
//! A drive's LZ4 is lz4_flex. liblz4, the reference implementation, makes different choices within
//! the same format, and most other users of LZ4 get its sizes.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use pumice_drive::codec as drive;

/// Name of the codec in options and files.
const LIBLZ4: &str = "liblz4";

/// A codec to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Codec {
    /// A codec of a drive.
    Drive(drive::Codec),
    /// LZ4 by the reference implementation, at its default acceleration.
    Liblz4,
}

impl Codec {
    /// Returns the corresponding codec of a drive; `None` if no drive supports it.
    pub fn of_drive(self) -> Option<drive::Codec> {
        match self {
            Self::Drive(codec) => Some(codec),
            Self::Liblz4 => None,
        }
    }
}

impl From<drive::Codec> for Codec {
    fn from(codec: drive::Codec) -> Self {
        Self::Drive(codec)
    }
}

impl FromStr for Codec {
    type Err = String;

    /// Parses the name of a drive's codec, or `liblz4`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            LIBLZ4 => Ok(Self::Liblz4),
            _ => text.parse().map(Self::Drive).map_err(|error| format!("{error}; or {LIBLZ4}")),
        }
    }
}

impl TryFrom<String> for Codec {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Codec> for String {
    fn from(codec: Codec) -> Self {
        codec.to_string()
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drive(codec) => codec.fmt(f),
            Self::Liblz4 => f.write_str(LIBLZ4),
        }
    }
}

/// A codec with its tables and contexts.
pub(super) enum Engine {
    Drive(drive::Engine),
    Liblz4,
}

impl Engine {
    pub(super) fn new(codec: Codec) -> Self {
        match codec {
            Codec::Drive(codec) => Self::Drive(drive::Engine::new(codec)),
            Codec::Liblz4 => Self::Liblz4,
        }
    }

    /// Returns the target buffer size for a source of this length, in bytes.
    pub(super) fn target_bytes(source_bytes: usize) -> usize {
        drive::Engine::target_bytes(source_bytes).max(lzzzz::lz4::max_compressed_size(source_bytes))
    }

    /// Returns the length of the encoded source; `None` if it would not be shorter, or if the codec
    /// encodes nothing. The target must have a length of at least [`Self::target_bytes`].
    pub(super) fn encode(&mut self, source: &[u8], target: &mut [u8]) -> Option<usize> {
        match self {
            Self::Drive(engine) => {
                engine.encode(source, target, source.len()).map(|(_, length)| length)
            }
            Self::Liblz4 => {
                let length =
                    lzzzz::lz4::compress(source, target, lzzzz::lz4::ACC_LEVEL_DEFAULT).ok()?;
                (length <= source.len()).then_some(length)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: displayed names can be parsed, and liblz4 is really used, on data in which the drive's
    //! LZ4 finds different matches.

    use super::*;

    #[test]
    fn names_are_read_as_shown() {
        for text in ["lz4", "liblz4", "none", "zstd:1", "zstd:-1"] {
            assert_eq!(text.parse::<Codec>().unwrap().to_string(), text);
        }
        let error = "lzo".parse::<Codec>().unwrap_err();
        assert!(error.contains("unknown codec 'lzo'") && error.ends_with("; or liblz4"), "{error}");
        assert_eq!(Codec::Liblz4.of_drive(), None);
    }

    #[test]
    fn liblz4_makes_its_own_choices() {
        let text: String = (0..2000).map(|number| format!("{} ", number * number % 977)).collect();
        let text = text.as_bytes();
        let mut target = vec![0; Engine::target_bytes(text.len())];
        let ours = Engine::new(Codec::Drive(drive::Codec::Lz4)).encode(text, &mut target);
        let length = Engine::new(Codec::Liblz4).encode(text, &mut target).unwrap();
        assert_ne!(Some(length), ours, "the two differ on this data");
        let mut expected = Vec::new();
        lzzzz::lz4::compress_to_vec(text, &mut expected, 1).unwrap();
        assert_eq!(target[..length], expected);
        let noise: Vec<u8> = {
            use rand::Rng;
            let mut bytes = vec![0; 4096];
            pumice_drive::base::seed::random(1).fill_bytes(&mut bytes);
            bytes
        };
        assert_eq!(Engine::new(Codec::Liblz4).encode(&noise, &mut target), None);
    }
}
