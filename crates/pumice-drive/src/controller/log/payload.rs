//! The stored payload of a frame: encoded, and sealed on an encrypted drive.

use crate::base::units::buffer_bytes;
use crate::base::{Error, ErrorKind, Result};
use crate::codec::{Decompressor, Encoding};
use crate::crypt::{Binding, Cipher, NONCE_BYTES, SEAL_BYTES};
use crate::format::{Record, SEALED};

/// A stored payload, and the information needed to read it.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    /// How the blocks are encoded.
    pub(crate) encoding: Encoding,
    /// The stored bytes.
    pub(crate) bytes: &'a [u8],
    /// For a sealed payload, its binding, and the use of the segment that determines the key.
    seal: Option<(Binding, u64)>,
}

impl<'a> Stored<'a> {
    /// Returns the payload of a frame from its record, in a use of its segment.
    ///
    /// # Errors
    /// `Corrupt` for an unknown encoding, an unencrypted payload on an encrypted drive, or a sealed
    /// payload on another drive.
    pub(crate) fn of_frame(
        record: &Record,
        bytes: &'a [u8],
        generation: u64,
        cipher: &Cipher,
    ) -> Result<Self> {
        let wrong = |what: &'static str| Error::new(ErrorKind::Corrupt, what);
        let Record::Data { lba, lba_count, encoding: number, .. } = *record else {
            return Err(wrong("a record is not a frame"));
        };
        let unknown = || wrong("a frame has an unknown encoding");
        let encoding = Encoding::from_u8(number & !SEALED).ok_or_else(unknown)?;
        let is_sealed = number & SEALED != 0;
        if is_sealed == (cipher.is_plain() || encoding == Encoding::Lost) {
            return Err(if is_sealed {
                unknown()
            } else {
                wrong("a frame of an encrypted drive is not encrypted")
            });
        }
        if is_sealed && bytes.len() < SEAL_BYTES {
            return Err(wrong("an encrypted frame is truncated"));
        }
        let blocks = u8::try_from(lba_count).map_err(|_| unknown())?;
        let seal = is_sealed.then(|| (Binding::frame(lba, blocks, number), generation));
        let is_whole = encoding != Encoding::Store
            || bytes.len() == buffer_bytes(lba_count.into()) + seal.map_or(0, |_| SEAL_BYTES);
        if !is_whole {
            return Err(wrong("a stored frame has the wrong length"));
        }
        Ok(Self { encoding, bytes, seal })
    }

    /// Returns whether the payload is sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Decodes the payload into all of `target`.
    ///
    /// # Errors
    /// `Corrupt` if it differs from the sealed payload, or does not decode to that length.
    pub(crate) fn decode(
        &self,
        cipher: &Cipher,
        decompressor: &mut Decompressor,
        target: &mut [u8],
    ) -> Result<()> {
        let Some((binding, generation)) = self.seal else {
            return decompressor.decompress(self.encoding, self.bytes, target);
        };
        if self.encoding == Encoding::Store && self.bytes.len() == target.len() + SEAL_BYTES {
            return cipher.open(generation, binding, self.bytes, target);
        }
        let mut opened = decompressor.take_scratch(self.bytes.len() - SEAL_BYTES);
        let decoded = cipher
            .open(generation, binding, self.bytes, &mut opened)
            .and_then(|()| decompressor.decompress(self.encoding, &opened, target));
        decompressor.keep_scratch(opened);
        decoded
    }

    /// Returns the encoded bytes, decrypted.
    ///
    /// # Errors
    /// `Corrupt` if they differ from the sealed bytes.
    pub(crate) fn open(&self, cipher: &Cipher) -> Result<Vec<u8>> {
        let Some((binding, generation)) = self.seal else { return Ok(self.bytes.to_vec()) };
        let mut opened = vec![0; self.bytes.len() - SEAL_BYTES];
        cipher.open(generation, binding, self.bytes, &mut opened)?;
        Ok(opened)
    }
}

/// Encodes the payload of a frame at the start of `target`, sealed if the cipher encrypts. Returns
/// the encoding in the form that records store, and the bytes. `encode` writes the plaintext bytes;
/// `bind` returns their binding for that encoding.
#[inline]
pub(crate) fn encode_sealed(
    target: &mut [u8],
    generation: u64,
    cipher: &Cipher,
    encode: impl FnOnce(&mut [u8]) -> (Encoding, usize),
    bind: impl FnOnce(u8) -> Binding,
) -> (u8, usize) {
    if cipher.is_plain() {
        let (encoding, len) = encode(target);
        return (encoding as u8, len);
    }
    let (_, clear) = target.split_at_mut(NONCE_BYTES);
    let (encoding, len) = encode(clear);
    if encoding == Encoding::Lost {
        return (encoding as u8, 0);
    }
    let encoding = encoding as u8 | SEALED;
    (encoding, cipher.seal(generation, bind(encoding), target, len))
}
