//! Detects sequential streams of commands, as the firmware of a drive does.

/// Number of streams that can be detected at the same time (arbitrary; more than a host usually
/// writes).
const STREAMS: usize = 8;

/// The end offsets of the latest commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    ends: [u64; STREAMS],
    next: usize,
}

impl Streams {
    /// Adds a command. Returns whether it continues an earlier one.
    pub(super) fn add(&mut self, offset: u64, bytes: u64) -> bool {
        let end = offset + bytes;
        if let Some(known) = self.ends.iter_mut().find(|known| **known == offset && offset > 0) {
            *known = end;
            return true;
        }
        self.ends[self.next] = end;
        self.next = (self.next + 1) % STREAMS;
        false
    }
}

#[cfg(test)]
mod tests {
    //! Goal: concurrent streams are detected, and commands elsewhere do not belong to them.
    use super::*;

    #[test]
    fn streams_are_told_from_random_commands() {
        let mut streams = Streams::default();
        assert!(!streams.add(0, 512), "the first command continues nothing");
        assert!(!streams.add(8192, 4096));
        assert!(streams.add(512, 512) && streams.add(12_288, 4096) && streams.add(1024, 512));
        assert!(!streams.add(0, 512));
        for offset in 1..9 {
            assert!(!streams.add(offset << 20, 512));
        }
        assert!(!streams.add(1536, 512), "forgotten");
    }
}
