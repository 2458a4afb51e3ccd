//! Detection of blocks that consist of one repeated byte.
//!
//! The caller records the byte and the number of blocks instead of a payload.

/// Returns the byte that `block` consists of. Returns `None` if its bytes differ and for an empty
/// block.
///
/// The first bytes of ordinary data decide, so the test is cheap enough for every block of a write.
#[inline]
pub fn fill_byte(block: &[u8]) -> Option<u8> {
    let (&first, rest) = block.split_first()?;
    // The block equals itself shifted by one byte: a single comparison of memory, which stops at
    // the first difference and runs at the speed of the cache if there is none.
    (Some(rest) == block.get(..rest.len())).then_some(first)
}
