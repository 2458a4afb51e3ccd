//! Blocks that consist of one byte repeated.
//!
//! Does not say what becomes of them: a caller records the byte and its count instead of a payload.

/// The byte that all of `block` consists of, if it does; `None` for an empty block.
///
/// Ordinary data is told apart at its first bytes, so that the test can stand in front of every
/// block that is written.
#[inline]
pub fn fill_byte(block: &[u8]) -> Option<u8> {
    let (&first, rest) = block.split_first()?;
    // Equal to itself moved by one byte: a single comparison of memory, which stops at the first
    // difference and runs at the speed of the cache if there is none.
    (rest == &block[..rest.len()]).then_some(first)
}
