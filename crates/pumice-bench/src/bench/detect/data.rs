//! The test data of a detection: each kind differs from incompressible data in only one respect.
//!
//! Invariant: no two runs of one detection share a unit, so that no space is saved across runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::payload::{Kind, Payload, PayloadOptions, Saving, Stream};
use pumice_drive::base::units::format_size;

/// Bytes of the smallest independent unit.
const UNIT_BYTES: u64 = 512;

/// Distinct byte values in repeating data. The number is below 64, so that a file system that
/// estimates compressibility from the number of distinct bytes (as btrfs does) tries to compress.
/// It would not even try for random bytes that repeat.
const SYMBOLS: u8 = 61;

/// Copies of each block in duplicate data.
pub(super) const COPIES: u64 = 4;

/// One kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Data {
    /// Random bytes.
    Incompressible,
    /// Data that compresses by this percentage in every 4 KiB.
    Saving(f64),
    /// Zeroes.
    Zeroes,
    /// Random bytes; the four quarters of the span are equal.
    Duplicates,
    /// Random bytes from a small set of values.
    FewValues,
    /// Random bytes from a small set of values; each piece of this many bytes occurs twice in a
    /// row.
    Repeats(u64),
}

impl Data {
    /// The data for comparing speed and space; incompressible data is first.
    pub(super) const COMPARED: [Self; 5] = [
        Self::Incompressible,
        Self::Saving(50.0),
        Self::Saving(90.0),
        Self::Zeroes,
        Self::Duplicates,
    ];

    /// Returns the name in reports.
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

/// Generates the data of one run.
pub(super) struct Maker {
    data: Data,
    stream: Stream,
    span_bytes: u64,
}

impl Maker {
    /// Returns the generator of the run with this number, which must be unique within a detection.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a saving that cannot be reached.
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

    /// Fills a buffer of whole records with the data at `offset`, a multiple of 256 KiB.
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
