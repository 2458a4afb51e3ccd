//! Compression of frames.
//!
//! * `engine`: the codecs with their tables and contexts.
//! * `compress`: encodes a frame's payload if that saves enough, and otherwise stores it as it is.
//! * `decompress`: decodes untrusted bytes.
//! * `chunks`: payloads whose parts are encoded separately.
//! * `backoff`: decides when to stop trying to compress a stream that does not compress.
//! * `fill`: detects blocks that consist of one repeated byte, which need no payload.
//! * `workers`: threads that compress for several drives.
//!
//! Every context is reused, so the work for one frame allocates nothing (zstd resizes its workspace
//! when the size of frames changes a lot; see [`Compressor`]).
//!
//! This module has no notion of addresses or headers. The only checksum that it computes is that of
//! a chunk in a payload of several. The caller stores the encoding and the length of a
//! payload. Only [`Workers`] have threads. An embedder needs [`Codec`] and [`FrameForm`] and, for
//! more than one thread, [`Workers`]; the rest serves the other crates of the workspace.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod backoff;
mod chunks;
mod compress;
mod decompress;
mod engine;
mod fill;
mod workers;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use backoff::FRAMES_MISSED_MAX;
pub(crate) use chunks::CHUNK_TABLE_BYTES;
pub(crate) use chunks::cut as cut_chunks;
pub use chunks::{CHUNKED_BLOCKS_MAX, ChunkTable};
pub use compress::{Compressor, Encoder};
pub use decompress::Decompressor;
pub use engine::Engine;
pub use fill::fill_byte;
pub(crate) use workers::{Coding, CompressedFrames};
pub use workers::{Pool, Workers};

/// The level of `zstd` without a number. On a system's programs, libraries and documents,
/// in frames of 32 KiB, level -1 stores 10 % more and encodes 11 % faster
/// (see `benches/frame_size.rs`).
const ZSTD_LEVEL_DEFAULT: i32 = 1;

/// Lowest zstd level on offer, though zstd has lower ones. Arbitrary: LZ4 serves users who want
/// more speed.
const ZSTD_LEVEL_MIN: i32 = -7;

/// Highest zstd level on offer: the last one below those that zstd calls "ultra".
const ZSTD_LEVEL_MAX: i32 = 19;
const _: () = assert!(
    ZSTD_LEVEL_MIN <= ZSTD_LEVEL_DEFAULT && ZSTD_LEVEL_DEFAULT <= ZSTD_LEVEL_MAX,
    "the default level is on offer"
);

/// A payload is stored encoded only if that saves at least one byte in this many.
///
/// Every later read pays for the decoding. On 1 GiB of a system's programs, libraries and documents
/// 1/32 avoids the decoding of 2 % of the 4 KiB frames with LZ4 (1 % with zstd), which together
/// would have saved 0.04 % of the bytes; with frames of 32 KiB, of 4 % (2 %) and 0.06 %.
pub const SAVING_DIVISOR: usize = 32;
const _: () = assert!(SAVING_DIVISOR > 1, "an encoding may save less than everything");

/// The codec that compresses the frames of a drive. It affects writes only: every frame records its
/// own [encoding](Encoding), so one drive can hold frames of several codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Codec {
    /// No compression. Frames are stored as they are.
    None,
    /// LZ4: the fastest.
    Lz4,
    /// Zstandard: denser.
    Zstd {
        /// The level, from -7 to 19 without 0. Higher levels are denser and slower.
        level: i32,
    },
}

impl FromStr for Codec {
    type Err = String;

    /// Parses `none`, `lz4`, `zstd` (level 1) or `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Self, String> {
        let level = match text {
            "none" => return Ok(Codec::None),
            "lz4" => return Ok(Codec::Lz4),
            "zstd" => Some(ZSTD_LEVEL_DEFAULT),
            _ => text.strip_prefix("zstd:").and_then(|level| level.parse().ok()),
        };
        match level {
            Some(level) if level != 0 && (ZSTD_LEVEL_MIN..=ZSTD_LEVEL_MAX).contains(&level) => {
                Ok(Codec::Zstd { level })
            }
            _ => Err(format!(
                "unknown codec '{text}': use none, lz4, zstd or zstd:LEVEL with a level from \
                 {ZSTD_LEVEL_MIN} to {ZSTD_LEVEL_MAX}, not 0"
            )),
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

impl Codec {
    /// Returns the number and the level in the form of the superblock.
    pub(crate) fn to_format(self) -> (u16, i32) {
        match self {
            Codec::None => (0, 0),
            Codec::Lz4 => (1, 0),
            Codec::Zstd { level } => (2, level),
        }
    }

    /// Returns the codec recorded in a superblock. A level out of range becomes the nearest one on
    /// offer. The superblock's decoder refuses unknown numbers; here they count as zstd.
    pub fn from_format(number: u16, level: i32) -> Self {
        match number {
            0 => Codec::None,
            1 => Codec::Lz4,
            _ => Codec::Zstd { level: level.clamp(ZSTD_LEVEL_MIN, ZSTD_LEVEL_MAX) },
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::None => f.write_str("none"),
            Codec::Lz4 => f.write_str("lz4"),
            Codec::Zstd { level } => write!(f, "zstd:{level}"),
        }
    }
}

/// The form of frames: compressed as a whole, or in chunks. Like the codec, it affects writes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameForm {
    /// The whole frame at once: the densest.
    #[default]
    Solid,
    /// In chunks of some adjacent blocks that compress to between one and two pages of the medium:
    /// random reads read and decode one chunk instead of a frame.
    Chunks,
}

impl FrameForm {
    /// Returns the form of new frames recorded in a superblock.
    pub fn from_format(has_chunks: bool) -> Self {
        if has_chunks { FrameForm::Chunks } else { FrameForm::Solid }
    }
}

impl FromStr for FrameForm {
    type Err = String;

    /// Parses `solid` or `chunks`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "solid" => Ok(FrameForm::Solid),
            "chunks" => Ok(FrameForm::Chunks),
            _ => Err(format!("unknown form of frames '{text}': use solid or chunks")),
        }
    }
}

impl fmt::Display for FrameForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrameForm::Solid => "solid",
            FrameForm::Chunks => "chunks",
        })
    }
}

/// The encoding of a frame's payload on the medium. The numbers are part of the format and never
/// change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// The bytes as they are.
    Store = 0,
    /// One LZ4 block, without frame or size. Source: lz4, doc/lz4_Block_format.md.
    Lz4 = 1,
    /// One zstd frame, without dictionary or checksum. Source: RFC 8878.
    Zstd = 2,
    /// No payload: the content was damaged when the frame was moved. Decodes to nothing.
    Lost = 3,
    /// Chunks, each with its length, encoding and checksum.
    Chunks = 4,
}

impl Encoding {
    /// Returns the encoding with this number on the medium, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Encoding::Store),
            1 => Some(Encoding::Lz4),
            2 => Some(Encoding::Zstd),
            3 => Some(Encoding::Lost),
            4 => Some(Encoding::Chunks),
            _ => None,
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "patterns of test data")]
mod tests;
