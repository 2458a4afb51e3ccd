//! One value for each stream of the log, indexed by the stream.

use std::ops::{Index, IndexMut};

use crate::format::Stream;

/// One value for each stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByStream<T>(pub(super) [T; Stream::COUNT]);

impl<T> Index<Stream> for ByStream<T> {
    type Output = T;

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "there is one value for each stream")]
    fn index(&self, stream: Stream) -> &T {
        &self.0[stream as usize]
    }
}

impl<T> IndexMut<Stream> for ByStream<T> {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "there is one value for each stream")]
    fn index_mut(&mut self, stream: Stream) -> &mut T {
        &mut self.0[stream as usize]
    }
}
