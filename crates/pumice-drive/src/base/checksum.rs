//! The two checksums of the format, and where each is used.
//!
//! * [`crc64`]: CRC-64/NVME, for structures of any length: payloads, batches, superblocks.
//! * [`crc32`]: CRC-32C (iSCSI), for short headers.
//!
//! Neither protects against an adversary.

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC-64/NVME of `bytes`.
///
/// Source: NVM Express NVM Command Set Specification 1.0, section 5.2.1.3.4.
#[inline]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// Returns the CRC-32C of `bytes`.
///
/// Source: RFC 3720, appendix B.4.
#[inline]
pub fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the CRC-32C of `first` followed by `second`.
#[expect(clippy::cast_possible_truncation, reason = "the digest of a 32-bit CRC has 32 bits")]
pub(crate) fn crc32_pair(first: &[u8], second: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    digest.update(second);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    //! Goal: pin both algorithms to the check values of the CRC catalogue.
    use super::*;

    #[test]
    fn check_values() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(crc32(b"123456789"), 0xe306_9283);
        assert_eq!(crc32_pair(b"1234", b"56789"), crc32(b"123456789"));
    }
}
