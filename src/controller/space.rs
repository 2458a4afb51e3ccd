//! The segment table: which segments are free, open or sealed, and how many live bytes each holds.
//!
//! Live bytes are record bytes (header and payload) that the L2P still maps. Free segments are
//! handed out lowest number first. Without garbage collection a sealed segment stays sealed, even
//! with nothing live in it: replaying the log needs its records.

use crate::base::{Error, ErrorKind, Result, SegmentId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Sealed,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    generation: u64,
    live_bytes: u32,
    state: State,
}

/// The segment table of one drive.
#[derive(Debug)]
pub(crate) struct Space {
    segments: Vec<Segment>,
    free_count: u32,
    /// No segment below this one is free.
    lowest_free: u32,
    live_bytes: u64,
}

impl Space {
    /// A table of `segment_count` free segments. The number comes from a superblock, so memory for
    /// it is asked for and not taken.
    ///
    /// # Errors
    /// `InvalidInput` if there is not enough memory.
    pub(crate) fn new(segment_count: u32) -> Result<Self> {
        let segments = free_segments(segment_count as usize)?;
        Ok(Self { segments, free_count: segment_count, lowest_free: 0, live_bytes: 0 })
    }

    /// Number of free segments.
    pub(crate) fn free_count(&self) -> u32 {
        self.free_count
    }

    /// Number of segments.
    pub(crate) fn segment_count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Live record bytes of the drive.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Generation of a segment in use; 0 of a free one.
    pub(crate) fn generation(&self, segment: SegmentId) -> u64 {
        self.segments[segment.0 as usize].generation
    }

    /// Takes the lowest free segment for `generation` and marks it open.
    pub(crate) fn allocate(&mut self, generation: u64) -> Option<SegmentId> {
        let from = self.lowest_free as usize;
        let found =
            self.segments[from..].iter().position(|segment| segment.state == State::Free)?;
        let segment = SegmentId((from + found) as u32);
        self.occupy(segment, generation);
        Some(segment)
    }

    /// Marks a segment as open with `generation`, as recovery finds it.
    ///
    /// # Panics
    /// If it is not free.
    pub(crate) fn occupy(&mut self, segment: SegmentId, generation: u64) {
        let entry = &mut self.segments[segment.0 as usize];
        assert_eq!(entry.state, State::Free, "segment {segment} is in use already");
        *entry = Segment { generation, live_bytes: 0, state: State::Open };
        self.free_count -= 1;
        if segment.0 == self.lowest_free {
            self.lowest_free += 1;
        }
    }

    /// Marks an open segment as full.
    pub(crate) fn seal(&mut self, segment: SegmentId) {
        let entry = &mut self.segments[segment.0 as usize];
        debug_assert_eq!(entry.state, State::Open);
        entry.state = State::Sealed;
    }

    /// Counts `bytes` of a segment as live.
    pub(crate) fn add_live(&mut self, segment: u32, bytes: u32) {
        self.segments[segment as usize].live_bytes += bytes;
        self.live_bytes += u64::from(bytes);
    }

    /// Counts `bytes` of a segment as dead.
    ///
    /// # Panics
    /// If it has fewer live bytes.
    pub(crate) fn release(&mut self, segment: u32, bytes: u32) {
        let live = &mut self.segments[segment as usize].live_bytes;
        *live = live.checked_sub(bytes).expect("more bytes died than were live");
        self.live_bytes -= u64::from(bytes);
    }

    /// Live bytes of each segment in use: number, bytes.
    #[cfg(test)]
    pub(crate) fn live_by_segment(&self) -> impl Iterator<Item = (SegmentId, u32)> {
        let used = self.segments.iter().enumerate().filter(|(_, entry)| entry.state != State::Free);
        used.map(|(number, entry)| (SegmentId(number as u32), entry.live_bytes))
    }
}

fn free_segments(count: usize) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    segments.try_reserve_exact(count).map_err(|error| {
        let what = format!("no memory for a table of {count} segments");
        Error::new(ErrorKind::InvalidInput, what).caused_by(error)
    })?;
    segments.resize(count, Segment { generation: 0, live_bytes: 0, state: State::Free });
    Ok(segments)
}

#[cfg(test)]
mod tests {
    //! Goal: segments are handed out once, lowest first, and live bytes add up.
    use super::*;

    #[test]
    fn segments_are_handed_out_lowest_first_and_once() {
        let mut space = Space::new(3).unwrap();
        space.occupy(SegmentId(1), 7);
        assert_eq!(space.allocate(8), Some(SegmentId(0)));
        assert_eq!(space.allocate(9), Some(SegmentId(2)));
        assert_eq!(space.allocate(10), None);
        assert_eq!(space.free_count(), 0);
        let generations = [0, 1, 2].map(|segment| space.generation(SegmentId(segment)));
        assert_eq!(generations, [8, 7, 9]);
    }

    #[test]
    #[should_panic(expected = "in use already")]
    fn a_segment_in_use_is_not_handed_out() {
        let mut space = Space::new(2).unwrap();
        space.occupy(SegmentId(1), 1);
        space.occupy(SegmentId(1), 2);
    }

    #[test]
    fn live_bytes_add_up() {
        let mut space = Space::new(2).unwrap();
        space.occupy(SegmentId(0), 1);
        space.add_live(0, 100);
        space.release(0, 40);
        assert_eq!(space.live_bytes(), 60);
        assert_eq!(space.live_by_segment().collect::<Vec<_>>(), [(SegmentId(0), 60)]);
    }

    /// Guards against a process that aborts on the word of a superblock.
    #[test]
    fn a_table_that_no_memory_holds_is_an_error() {
        assert_eq!(free_segments(usize::MAX / 2).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    #[should_panic(expected = "more bytes died")]
    fn dying_twice_is_a_bug() {
        let mut space = Space::new(1).unwrap();
        space.release(0, 1);
    }
}
