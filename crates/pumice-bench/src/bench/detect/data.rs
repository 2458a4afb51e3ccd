//! The data that tells what a target does with it: each kind differs from incompressible data in
//! one respect only.
//!
//! Invariant: two runs of one detection have no unit in common, so that nothing is saved across
//! runs.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::payload::{Kind, Payload, PayloadOptions, Saving, Stream};
use pumice_drive::base::units::format_size;

/// Bytes of the smallest unit that is drawn on its own.
const UNIT_BYTES: u64 = 512;

/// Different bytes in data that repeats. Below 64, so that a file system that guesses from the
/// bytes' variety whether data compresses (btrfs does) tries; random bytes that repeat it would
/// not even try.
const SYMBOLS: u8 = 61;

/// How often duplicate data holds each block.
pub(super) const COPIES: u64 = 4;

/// One kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Data {
    /// Random bytes.
    Incompressible,
    /// Every 4 KiB save this many per cent.
    Saving(f64),
    /// Nothing but zeroes.
    Zeroes,
    /// Random bytes, of which each quarter of the span is the same.
    Duplicates,
    /// Random bytes of few values.
    FewValues,
    /// The same, each piece of this many bytes twice in a row.
    Repeats(u64),
}

impl Data {
    /// What speed and space are compared on; incompressible data first.
    pub(super) const COMPARED: [Self; 5] = [
        Self::Incompressible,
        Self::Saving(50.0),
        Self::Saving(90.0),
        Self::Zeroes,
        Self::Duplicates,
    ];

    /// Its name in reports.
    pub fn name(self) -> String {
        match self {
            Self::Incompressible => "incompressible".into(),
            Self::Saving(percent) => format!("{percent} % saved"),
            Self::Zeroes => "zeroes".into(),
            Self::Duplicates => "duplicates".into(),
            Self::FewValues => "few values".into(),
            Self::Repeats(bytes) => format!("repeats {} apart", format_size(bytes)),
        }
    }
}

/// Makes the data of one run.
pub(super) struct Maker {
    data: Data,
    stream: Stream,
    span_bytes: u64,
}

impl Maker {
    /// For the run with this number; no other run of the detection may have the same.
    ///
    /// # Errors
    /// `InvalidInput` for a saving that cannot be made.
    pub(super) fn new(data: Data, seed: u64, run: u64, span_bytes: u64) -> Result<Self> {
        let kind = match data {
            Data::Zeroes => Kind::Byte(0),
            Data::Saving(percent) if percent > 0.0 => {
                Kind::Exact(Saving::from_fraction(percent / 100.0))
            }
            _ => Kind::Random,
        };
        let mut options = PayloadOptions { seed, ..PayloadOptions::new(kind) };
        if let Data::Repeats(_) | Data::FewValues = data {
            options.unit_bytes = UNIT_BYTES as usize;
        }
        Ok(Self { data, stream: Payload::new(options)?.stream(run), span_bytes })
    }

    /// Fills a buffer of whole records with what belongs at `offset`, a multiple of 256 KiB.
    pub(super) fn fill(&self, offset: u64, buffer: &mut [u8]) {
        match self.data {
            Data::Duplicates => {
                let period = (self.span_bytes / COPIES).next_multiple_of(buffer.len() as u64);
                self.stream.fill_at(offset % period / 4096, buffer);
            }
            Data::FewValues => self.few_values(offset, buffer),
            Data::Repeats(bytes) => {
                for (index, piece) in buffer.chunks_mut(bytes as usize).enumerate() {
                    let number = offset / bytes + index as u64;
                    self.few_values(number / 2 * bytes, piece);
                }
            }
            _ => self.stream.fill_at(offset / 4096, buffer),
        }
    }

    fn few_values(&self, offset: u64, buffer: &mut [u8]) {
        self.stream.fill_at(offset / UNIT_BYTES, buffer);
        for byte in buffer {
            *byte %= SYMBOLS;
        }
    }
}
