//! Detection of blocks that consist of one repeated byte.
//!
//! The caller records the byte and the number of blocks instead of a payload.

/// Returns the byte that `block` consists of; `None` if its bytes differ or the block is empty.
///
/// Ordinary data differs in its first bytes, so the test is cheap enough for every block of a
/// write.
#[inline]
pub fn fill_byte(block: &[u8]) -> Option<u8> {
    let (&first, rest) = block.split_first()?;
    // The block equals itself shifted by one byte. This is a single memory comparison, which stops
    // at the first difference and otherwise runs at cache speed.
    (Some(rest) == block.get(..rest.len())).then_some(first)
}
