//! Splitting a write into frames and fills.
//!
//! A frame never crosses a multiple of the frame size in the LBA space, so that rewriting the same
//! range kills whole frames, and never crosses a leaf of the L2P. Blocks that consist of one
//! repeated byte are removed from the data and become fills.

use crate::base::Lba;
use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::codec::fill_byte;

/// A part of a write that becomes one record.
#[derive(Debug, PartialEq, Eq)]
pub enum Span<'a> {
    /// Blocks to compress together.
    Data {
        /// First block.
        lba: Lba,
        /// Their bytes, a multiple of 4096.
        bytes: &'a [u8],
    },
    /// Blocks all of whose bytes are the same.
    Fill {
        /// First block.
        lba: Lba,
        /// Number of blocks.
        count: u64,
        /// The byte.
        byte: u8,
    },
}

/// Returns the spans of `bytes` (whole blocks) written at `lba`, in order.
pub fn spans(lba: Lba, bytes: &[u8], frame_blocks: u16) -> Spans<'_> {
    assert!(bytes.len().is_multiple_of(BLOCK_BYTES), "a write is whole blocks");
    assert!(frame_blocks > 0, "a frame has a block");
    Spans {
        lba: lba.0,
        rest: bytes,
        fill: first_fill(bytes),
        frame_blocks: u64::from(frame_blocks),
    }
}

/// Iterator over the spans of a write.
pub struct Spans<'a> {
    lba: u64,
    rest: &'a [u8],
    /// The byte of the first block of `rest`, if that block is a fill, so that every block is
    /// tested once.
    fill: Option<u8>,
    frame_blocks: u64,
}

impl<'a> Iterator for Spans<'a> {
    type Item = Span<'a>;

    fn next(&mut self) -> Option<Span<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let lba = Lba(self.lba);
        let Some(byte) = self.fill else { return Some(self.data(lba)) };
        let mut count = 0;
        while self.fill == Some(byte) && !self.rest.is_empty() {
            self.advance(1);
            count += 1;
        }
        assert_eq!(lba.0 + count, self.lba, "a fill ends where the next span begins");
        Some(Span::Fill { lba, count, byte })
    }
}

impl<'a> Spans<'a> {
    fn data(&mut self, lba: Lba) -> Span<'a> {
        assert!(self.fill.is_none(), "a frame begins with a block of data");
        let whole = self.rest;
        let border = self.frame_blocks - self.lba % self.frame_blocks;
        let mut blocks = 0;
        while blocks < border && self.fill.is_none() && !self.rest.is_empty() {
            self.advance(1);
            blocks += 1;
        }
        assert!((1..=border).contains(&blocks), "a frame ends at a border of frames or before it");
        let (bytes, _) = whole.split_at(len_usize(blocks) * BLOCK_BYTES);
        Span::Data { lba, bytes }
    }

    fn advance(&mut self, blocks: u64) {
        let (_, rest) = self.rest.split_at(len_usize(blocks) * BLOCK_BYTES);
        self.lba += blocks;
        self.rest = rest;
        self.fill = first_fill(self.rest);
    }
}

fn first_fill(bytes: &[u8]) -> Option<u8> {
    bytes.get(..BLOCK_BYTES).and_then(fill_byte)
}

#[cfg(test)]
mod tests {
    //! Goal: spans cover a write exactly, in order, cut at frame borders and around fills.
    use super::*;

    /// Returns a write with one block for each letter: '0' a block of zeroes, 'f' of 0xff, 'd'
    /// data.
    fn write(letters: &str) -> Vec<u8> {
        let block = |letter| match letter {
            '0' => vec![0; BLOCK_BYTES],
            'f' => vec![0xff; BLOCK_BYTES],
            _ => (0..BLOCK_BYTES).map(|at| at.to_le_bytes()[0]).collect(),
        };
        letters.chars().flat_map(block).collect()
    }

    fn describe(lba: u64, letters: &str) -> String {
        let bytes = write(letters);
        let spans = spans(Lba(lba), &bytes, 4).map(|span| match span {
            Span::Data { lba, bytes } => format!("d{}+{}", lba, bytes.len() / BLOCK_BYTES),
            Span::Fill { lba, count, byte } => format!("{byte:x}:{lba}+{count}"),
        });
        spans.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn frames_are_cut_at_borders_and_around_fills() {
        assert_eq!(describe(0, "d"), "d0+1");
        assert_eq!(describe(0, "dddddddd"), "d0+4 d4+4");
        assert_eq!(describe(3, "dddddd"), "d3+1 d4+4 d8+1");
        assert_eq!(describe(5, "d00ffd"), "d5+1 0:6+2 ff:8+2 d10+1");
        assert_eq!(describe(0, "000000"), "0:0+6");
        assert_eq!(describe(0, ""), "");
    }
}
