//! AES-256-XTS with ciphertext stealing, over the library's AES block cipher. A unit has any length
//! of 16 bytes or more, and a 16-byte tweak of its own.
//!
//! Source: IEEE Std 1619-2018, section 5.

use aws_lc_rs::cipher::{
    AES_256, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey,
};

const BLOCK: usize = 16;

/// The feedback of a multiplication by x in the field of XTS.
const FEEDBACK: u128 = 0x87;

/// The two keys of XTS.
pub(super) struct Xts {
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
    tweak: EncryptingKey,
}

impl Xts {
    /// Prepares a pair of keys.
    pub(super) fn new(data: &[u8; 32], tweak: &[u8; 32]) -> Self {
        let key = |key| UnboundCipherKey::new(&AES_256, key).expect("a key of 32 bytes");
        let encrypting = |bytes| EncryptingKey::ecb(key(bytes)).expect("AES is available");
        Self {
            encrypt: encrypting(data),
            decrypt: DecryptingKey::ecb(key(data)).expect("AES is available"),
            tweak: encrypting(tweak),
        }
    }

    /// Encrypts a unit in place.
    ///
    /// # Panics
    /// If it is shorter than a block.
    pub(super) fn encrypt(&self, tweak: [u8; BLOCK], unit: &mut [u8]) {
        let mut mask = self.mask(tweak);
        let (blocks, rest) = unit.as_chunks_mut::<BLOCK>();
        let last = blocks.len().checked_sub(1).expect("a unit has a block");
        for (index, block) in blocks.iter_mut().enumerate() {
            mask = if index == 0 { mask } else { next(mask) };
            masked(block, mask, |block| encrypt(&self.encrypt, block));
        }
        if let (false, Some(block)) = (rest.is_empty(), blocks.get_mut(last)) {
            swap(rest, block);
            masked(block, next(mask), |block| encrypt(&self.encrypt, block));
        }
    }

    /// Decrypts a unit in place.
    ///
    /// # Panics
    /// See [`Xts::encrypt`].
    pub(super) fn decrypt(&self, tweak: [u8; BLOCK], unit: &mut [u8]) {
        let mut mask = self.mask(tweak);
        let (blocks, rest) = unit.as_chunks_mut::<BLOCK>();
        let last = blocks.len().checked_sub(1).expect("a unit has a block");
        for (index, block) in blocks.iter_mut().enumerate() {
            mask = if index == 0 { mask } else { next(mask) };
            if index == last && !rest.is_empty() {
                masked(block, next(mask), |block| decrypt(&self.decrypt, block));
                swap(rest, block);
            }
            masked(block, mask, |block| decrypt(&self.decrypt, block));
        }
    }

    fn mask(&self, mut tweak: [u8; BLOCK]) -> u128 {
        encrypt(&self.tweak, &mut tweak);
        u128::from_le_bytes(tweak)
    }
}

/// Exchanges a short last block with the beginning of the block before it.
fn swap(rest: &mut [u8], block: &mut [u8; BLOCK]) {
    assert!(rest.len() < BLOCK, "less than a block is left");
    for (one, other) in rest.iter_mut().zip(block) {
        std::mem::swap(one, other);
    }
}

/// Returns the mask of the next block.
fn next(mask: u128) -> u128 {
    (mask << 1) ^ ((mask >> 127) * FEEDBACK)
}

fn masked(block: &mut [u8; BLOCK], mask: u128, cipher: impl FnOnce(&mut [u8; BLOCK])) {
    *block = (u128::from_le_bytes(*block) ^ mask).to_le_bytes();
    cipher(block);
    *block = (u128::from_le_bytes(*block) ^ mask).to_le_bytes();
}

fn encrypt(key: &EncryptingKey, block: &mut [u8; BLOCK]) {
    key.encrypt(block).expect("one block is whole blocks");
}

fn decrypt(key: &DecryptingKey, block: &mut [u8; BLOCK]) {
    key.decrypt(block, DecryptionContext::None).expect("one block is whole blocks");
}

#[cfg(test)]
mod tests {
    //! Goal: the result equals that of another implementation, for full blocks and short last ones.
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.map(byte).collect()
    }

    fn key(from: u8) -> [u8; 32] {
        std::array::from_fn(|index| from + u8::try_from(index).unwrap())
    }

    /// Keys 0 to 31 and 32 to 63, tweak 100 to 115, bytes 0, 7, 14 and so on. Source: OpenSSL.
    #[test]
    fn known_answers() {
        let xts = Xts::new(&key(0), &key(32));
        let tweak = *key(100).first_chunk().unwrap();
        let whole = "a945182b1d42384ae4eac93f0b096faa80c092d3c716d3dcd95979f91e419314";
        let stolen = "cdc35529f5a7081f76c3f017183ced61a945182b1d42384a";
        let long = "a945182b1d42384ae4eac93f0b096faa80c092d3c716d3dcd95979f91e419314\
                    dd72eee6e04c0ae3d0e3373c745b617789b2cfcbb236ed3277b6edc3b8a1d5";
        for expected in [&whole[..32], stolen, whole, long] {
            let expected = hex(expected);
            let clear: Vec<u8> = (0..=u8::MAX).map(|at| at.wrapping_mul(7)).collect();
            let clear = &clear[..expected.len()];
            let mut unit = clear.to_vec();
            xts.encrypt(tweak, &mut unit);
            assert_eq!(unit, expected, "{} bytes", clear.len());
            xts.decrypt(tweak, &mut unit);
            assert_eq!(unit, *clear, "{} bytes", clear.len());
        }
    }

    #[test]
    fn another_tweak_is_another_permutation() {
        let xts = Xts::new(&key(0), &key(32));
        let mut units = [[9; 24]; 2];
        xts.encrypt([0; 16], &mut units[0]);
        xts.encrypt([1; 16], &mut units[1]);
        assert_ne!(units[0], units[1]);
    }
}
