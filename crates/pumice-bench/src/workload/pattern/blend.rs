//! Draws the requests of a mix.

use rand::RngExt;

use super::request::{Action, Request};
use crate::workload::{Access, Workload};
use pumice_drive::base::seed::Random;

const NS_PER_MS: u64 = 1_000_000;

/// The state of a mix in one thread.
pub(super) struct Blend {
    shift_bytes: u64,
    span_bytes: u64,
    accesses: Vec<Access>,
    /// End offset of the previous request of each kind, within the span.
    next: Vec<u64>,
    /// Requests since the previous pause.
    since_pause: u32,
}

impl Blend {
    /// Returns the mix of a checked workload. The sequential requests of each thread start in its
    /// part of the span.
    pub(super) fn new(workload: &Workload, thread: u32) -> Self {
        let part = workload.records() / u64::from(workload.threads) * u64::from(thread);
        Self {
            shift_bytes: workload.shift_bytes,
            span_bytes: workload.span_bytes,
            next: vec![part * workload.record_bytes; workload.mix.len()],
            accesses: workload.mix.clone(),
            since_pause: 0,
        }
    }

    /// Draws the next request.
    pub(super) fn draw(&mut self, random: &mut Random) -> Request {
        let kind = self.kind(random);
        let access = &self.accesses[kind];
        let bytes = access.bytes;
        let last = self.span_bytes - bytes;
        let within = if random.random_range(0..100) < access.random_percent {
            random.random_range(0..=last / access.step_bytes()) * access.step_bytes()
        } else {
            let next = self.next[kind];
            if next > last { 0 } else { next }
        };
        let is_read = random.random_range(0..100) < access.reads_percent;
        self.next[kind] = within + bytes;
        let pause_ns = if access.pause_ms > 0 && self.since_pause >= access.burst {
            self.since_pause = 0;
            u64::from(access.pause_ms) * NS_PER_MS
        } else {
            0
        };
        self.since_pause = self.since_pause.saturating_add(1);
        let offset = self.shift_bytes + within;
        let action = if is_read { Action::Read(offset) } else { Action::Write(offset) };
        Request { action, bytes, pause_ns }
    }

    /// Draws a kind according to the shares, whose sum is 100.
    fn kind(&self, random: &mut Random) -> usize {
        let mut place = random.random_range(0..100);
        for (index, access) in self.accesses.iter().enumerate() {
            if place < access.share_percent {
                return index;
            }
            place -= access.share_percent;
        }
        self.accesses.len() - 1
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a mix has the sizes, shares, offsets and pauses of its specification. Method: many
    //! requests are drawn and counted.
    use super::super::requests::Requests;
    use super::*;
    use crate::bench::results::sample::workload;
    use crate::workload::{Ends, Operation};

    fn access(bytes: u64, share: u32, reads: u32, random: u32) -> Access {
        Access {
            bytes,
            share_percent: share,
            reads_percent: reads,
            random_percent: random,
            align_bytes: bytes,
            burst: 1,
            pause_ms: 0,
        }
    }

    fn drawn(mix: Vec<Access>, count: usize) -> Vec<Request> {
        let mut load = workload(Operation::Mixed, mix.iter().map(|it| it.bytes).max().unwrap());
        (load.mix, load.shift_bytes) = (mix, 1 << 20);
        load.check().unwrap();
        Requests::new(&load, 0, 7).take(count).collect()
    }

    fn place(request: &Request) -> (bool, u64) {
        match request.action {
            Action::Read(offset) => (true, offset - (1 << 20)),
            Action::Write(offset) => (false, offset - (1 << 20)),
            other => panic!("{other:?} is not in the mix"),
        }
    }

    #[test]
    fn shares_and_sizes_match_the_mix() {
        let mix =
            vec![access(512, 10, 80, 100), access(4096, 60, 80, 100), access(65536, 30, 0, 100)];
        let all = drawn(mix, 20_000);
        let share = |bytes: u64| {
            let count = all.iter().filter(|request| request.bytes == bytes).count();
            count as f64 / all.len() as f64
        };
        assert!((share(512) - 0.1).abs() < 0.01, "{}", share(512));
        assert!((share(4096) - 0.6).abs() < 0.015, "{}", share(4096));
        assert!((share(65536) - 0.3).abs() < 0.015, "{}", share(65536));
        for request in &all {
            let (is_read, offset) = place(request);
            assert!(offset.is_multiple_of(request.bytes) && offset + request.bytes <= 64 << 20);
            assert!(!is_read || request.bytes < 65536);
        }
        let small: Vec<_> = all.iter().filter(|request| request.bytes == 4096).collect();
        let reads = small.iter().filter(|request| place(request).0).count() as f64;
        assert!((reads / small.len() as f64 - 0.8).abs() < 0.02, "{reads}");
    }

    #[test]
    fn sequential_requests_continue_their_own_kind() {
        let mix = vec![access(4096, 50, 100, 0), access(8192, 50, 0, 0)];
        let all = drawn(mix, 2000);
        for reads in [true, false] {
            let places: Vec<u64> =
                all.iter().map(place).filter(|it| it.0 == reads).map(|it| it.1).collect();
            let bytes = if reads { 4096 } else { 8192 };
            assert!(places.windows(2).all(|pair| pair[1] == pair[0] + bytes), "{reads}");
        }
        let one = drawn(vec![access(8 << 20, 100, 100, 0)], 20);
        let places: Vec<u64> = one.iter().map(|it| place(it).1 >> 20).collect();
        assert_eq!(places[..10], [0, 8, 16, 24, 32, 40, 48, 56, 0, 8]);
    }

    #[test]
    fn random_offsets_obey_the_alignment_and_reach_the_end() {
        let mut odd = access(4096, 100, 100, 100);
        odd.align_bytes = 0;
        let places: Vec<u64> = drawn(vec![odd], 40_000).iter().map(|it| place(it).1).collect();
        assert!(places.iter().all(|offset| offset.is_multiple_of(512)));
        let aligned = places.iter().filter(|offset| offset.is_multiple_of(4096)).count();
        assert!((4500..5500).contains(&aligned), "{aligned} of 40,000, one in eight expected");
        assert!(places.iter().any(|offset| *offset > (64 << 20) - (1 << 18)));
    }

    #[test]
    fn bursts_are_as_long_as_asked() {
        let mut bursts = access(4096, 100, 100, 100);
        (bursts.burst, bursts.pause_ms) = (4, 3);
        let pauses: Vec<u64> = drawn(vec![bursts], 12).iter().map(|it| it.pause_ns).collect();
        let ms = 1_000_000;
        assert_eq!(pauses, [0, 0, 0, 0, 3 * ms, 0, 0, 0, 3 * ms, 0, 0, 0]);
    }

    #[test]
    fn a_mix_that_ends_with_the_span_has_its_bytes() {
        let mut load = workload(Operation::Mixed, 65536);
        load.mix = vec![access(4096, 50, 80, 100), access(65536, 50, 80, 100)];
        (load.ends, load.span_bytes) = (Ends::Span, 8 << 20);
        let bytes: u64 = Requests::new(&load, 0, 7).map(|request| request.bytes).sum();
        assert!((8 << 20..(8 << 20) + 65536).contains(&bytes), "{bytes}");
    }
}
