//! Long reads whose frames several threads verify and decode.
//!
//! ```text
//! frames in the buffer of one media read
//!    |-- the first share: here, into the host's buffer <-- copied --+
//!    +-- the others: other threads, into buffers of their own ------+
//! ```
//!
//! A share with a frame that does not verify or decode is decoded again here, which finds the
//! damage and restores it. Only whole frames are handed over: caches belong to this thread.

use std::sync::Arc;

use super::super::drive::Drive;
use super::read::{Piece, check_frame};
use crate::base::AlignedBuffer;
use crate::codec::{Aside, Codec, Decompressor, Encoding, PassedBytes, Workers};
use crate::crypt::Cipher;
use crate::format::{Record, SEALED};

/// Shortest read of which a part is handed over: half of it takes zstd longer than a thread takes
/// to wake.
const PASSED_READ_BYTES_MIN: usize = 128 << 10;

/// Frames that another thread decodes.
pub(super) struct Share<'p> {
    pub(super) pieces: &'p [Piece],
    /// The decoded pieces, one after the other, and whether all of them were decoded.
    decoded: Aside<(Vec<u8>, bool)>,
    _bytes: PassedBytes,
}

impl Drive {
    /// Returns the threads that should decode a part of these pieces, if any should. They lie in
    /// `bytes`, which begins at `start` of their segment.
    pub(super) fn workers_to_decode(
        &self,
        pieces: &[Piece],
        bytes: &[u8],
        start: u32,
    ) -> Option<&Workers> {
        let workers = self.workers.get()?;
        let frame_bytes: usize = pieces.iter().map(Piece::frame_bytes).sum();
        let is_long = frame_bytes >= PASSED_READ_BYTES_MIN && pieces.len() > 1;
        if !is_long || !workers.can_decode(frame_bytes) {
            return None;
        }
        let is_dear = |piece: &Piece| {
            let record = bytes.get((piece.place.offset - start) as usize..)?;
            let (place, cipher) = (piece.record_address(), self.medium.cipher());
            let record = Record::decode_with(record, place, cipher).ok()?;
            let Record::Data { encoding, .. } = record else { return None };
            match Encoding::from_u8(encoding & !SEALED)? {
                Encoding::Zstd => Some(()),
                Encoding::Blocks => matches!(self.codec.get(), Codec::Zstd { .. }).then_some(()),
                // LZ4 decodes about as fast as memory is copied.
                Encoding::Store | Encoding::Lz4 | Encoding::Lost => None,
            }
        };
        pieces.iter().find_map(is_dear).map(|()| workers)
    }
}

/// Cuts pieces into a share for each thread and hands over all but the first one. Returns the
/// pieces for this thread, and the shares of the others.
pub(super) fn begin_shares<'p>(
    workers: &Workers,
    pieces: &'p [Piece],
    bytes: &Arc<AlignedBuffer>,
    start: u32,
    cipher: &Cipher,
) -> (Vec<&'p [Piece]>, Vec<Share<'p>>) {
    let is_whole = |piece: &Piece| piece.is_whole_frame() && !piece.is_kept;
    // A read may begin and end within a frame.
    let (first, rest) = pieces.split_at(usize::from(!pieces.first().is_some_and(is_whole)));
    let (rest, last) = rest.split_at(rest.len() - usize::from(!rest.last().is_some_and(is_whole)));
    let (share, rest) = rest.split_at(rest.len().div_ceil(workers.shares()));
    let (mut own, mut others) = (vec![first, share, last], Vec::new());
    for part in rest.chunks(share.len().max(1)) {
        if !part.iter().all(is_whole) {
            own.push(part);
            continue;
        }
        let (part_owned, bytes, cipher) = (part.to_vec(), bytes.clone(), cipher.clone());
        let frame_bytes = part.iter().map(Piece::frame_bytes).sum();
        let (mut target, _bytes) = (workers.target(frame_bytes), workers.pass_bytes(frame_bytes));
        let decoded = workers.begin_aside(move |decompressor| {
            let from = (&bytes[..], start);
            let is_good = decode_all(&part_owned, from, decompressor, &cipher, &mut target);
            (target, is_good)
        });
        others.push(Share { pieces: part, decoded, _bytes });
    }
    (own, others)
}

impl Share<'_> {
    /// Waits for the share and copies the decoded bytes to the host's buffer, which begins at byte
    /// `out_at`. Returns false if any of it could not be decoded.
    pub(super) async fn take(self, workers: &Workers, out_at: usize, out: &mut [u8]) -> bool {
        let (decoded, is_good) = workers.finish_aside(self.decoded).await;
        let mut rest = &decoded[..];
        for piece in self.pieces.iter().filter(|_| is_good) {
            let (frame, later) = rest.split_at(piece.frame_bytes());
            piece.part_of(out, out_at).copy_from_slice(frame);
            rest = later;
        }
        workers.keep_target(decoded);
        is_good
    }
}

/// Verifies and decodes pieces that are whole frames to the start of `target`; `bytes` begins at
/// `start` of their segment. Returns whether all are as the map says.
fn decode_all(
    pieces: &[Piece],
    (bytes, start): (&[u8], u32),
    decompressor: &mut Decompressor,
    cipher: &Cipher,
    target: &mut [u8],
) -> bool {
    let mut rest = target;
    pieces.iter().all(|piece| {
        let (frame, later) = std::mem::take(&mut rest).split_at_mut(piece.frame_bytes());
        rest = later;
        let (_, record) = bytes.split_at((piece.place.offset - start) as usize);
        let checked = check_frame(piece, record, cipher);
        checked.and_then(|stored| stored.decode(cipher, decompressor, frame)).is_ok()
    })
}
