//! Bounds on the use of resources: bytes of buffers in flight, virtual time for a request, space in
//! use before the drive reports that it is full.
//!
//! The bounds follow from the drive's own statements (`Info`) and from the disk's content alone, so
//! that an error in the drive's accounts does not affect them.

use std::cell::Cell;
use std::rc::Rc;

use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::codec::{Codec, Engine};
use pumice_drive::controller::Info;

use super::oracle::{Mismatch, Oracle};

/// Maximum number of sequential operations of the medium that a request may wait for.
const OPERATIONS_MAX: u64 = 1000;

/// Time of a request in addition to these, in nanoseconds of virtual time. The longest measured
/// total is 5.9 s, for a write to a nearly full drive that waits for garbage collection.
const REST_NS: u64 = 10_000_000_000;

/// Bytes of all batch buffers of a drive, as GUARANTEES.md says; buffers released by now may have
/// been in flight.
const BATCH_BUFFER_BYTES: u64 = (134 << 20) / 10;

/// Bytes of buffers in flight other than batch buffers: reads of up to eight hosts, of garbage
/// collection and of a scrub. Twice the measured value.
const READING_BYTES_MAX: u64 = 16 << 20;

/// Bytes of map leaves beyond the budget: leaves that are kept regardless of the budget, and leaves
/// changed by requests in progress: up to 24 KiB of runs each, and twice 256 tables of 60 bytes.
const LEAF_BYTES_MORE: u64 = 8 * ((24 << 10) + 2 * 256 * 60);

/// Bytes of a record with one block, except its payload: header, source and seal.
const BLOCK_OVERHEAD: u64 = 92;

/// Segments of a full drive that may be partly empty: the open one of each stream, and one that
/// garbage collection gains nothing from emptying.
const LOOSE_SEGMENTS: u64 = 5;

/// Percent of the rest that may be dead, or too short for a frame.
const LOOSE_PERCENT: u64 = 15;

/// Bytes of buffers that operations of the medium hold.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    now: Cell<u64>,
    most: Cell<u64>,
}

impl InFlight {
    /// Counts a buffer until the result is dropped.
    pub(super) fn hold(self: &Rc<Self>, bytes: usize) -> Held {
        self.now.set(self.now.get() + bytes as u64);
        self.most.set(self.most.get().max(self.now.get()));
        Held { counted: self.clone(), bytes: bytes as u64 }
    }

    /// Returns the most bytes so far.
    pub(super) fn most(&self) -> u64 {
        self.most.get()
    }
}

/// A buffer in flight.
pub(super) struct Held {
    counted: Rc<InFlight>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counted.now.set(self.counted.now.get() - self.bytes);
    }
}

/// Checks the time that a request took, on a medium with operations of at most `latency_ns`.
pub(super) fn judge_time(what: &str, ns: u64, latency_ns: u64) -> Result<(), Mismatch> {
    let most = REST_NS + OPERATIONS_MAX * latency_ns;
    if ns <= most {
        return Ok(());
    }
    Err(Mismatch {
        promised: format!("{what} takes at most {} ms of virtual time", most / 1_000_000),
        found: format!("{} ms", ns / 1_000_000),
    })
}

/// Checks the memory of a drive.
pub(super) fn judge_memory(
    info: &Info,
    in_flight: u64,
    map_cache_bytes: u64,
) -> Result<(), Mismatch> {
    let memory = &info.memory;
    let bounds = [
        ("buffers in flight", in_flight, BATCH_BUFFER_BYTES + READING_BYTES_MAX),
        ("blocks in the read cache", memory.read_cache_bytes, memory.read_cache_bytes_max + 4096),
        ("leaves of the map", memory.map_leaf_bytes, map_cache_bytes + LEAF_BYTES_MORE),
    ];
    for (what, bytes, most) in bounds {
        if bytes > most {
            return Err(Mismatch {
                promised: format!("{what} take at most {most} bytes"),
                found: format!("{bytes} bytes"),
            });
        }
    }
    Ok(())
}

/// Returns an upper bound of the bytes that the content of a disk takes after garbage collection
/// has finished: each block in a frame of its own.
pub(super) fn needed_bytes(oracle: &Oracle, codec: Codec) -> u64 {
    let mut engine = Engine::new(codec);
    let mut target = vec![0; Engine::target_bytes(BLOCK_BYTES)];
    let mut needed = 0;
    for block in oracle.data_blocks() {
        let encoded = engine.encode(block, &mut target, BLOCK_BYTES - 1);
        needed += encoded.map_or(BLOCK_BYTES, |(_, len)| len) as u64 + BLOCK_OVERHEAD;
    }
    needed
}

/// Returns the share of the space for data that `needed` bytes take, in percent.
pub(super) fn needed_percent(info: &Info, needed: u64) -> u64 {
    needed * 100 / data_bytes(info).max(1)
}

/// Returns the bytes of the segments that data may take, as the drive states them.
fn data_bytes(info: &Info) -> u64 {
    if info.used_percent <= 0.0 {
        return info.capacity_bytes;
    }
    (info.live_bytes as f64 * 100.0 / info.used_percent) as u64
}

/// Checks a refusal for lack of space.
pub(super) fn judge_refusal(info: &Info, needed: u64) -> Result<(), Mismatch> {
    let loose = LOOSE_SEGMENTS * u64::from(info.segment_bytes);
    let firm = data_bytes(info).saturating_sub(loose);
    if needed >= firm - firm * LOOSE_PERCENT / 100 {
        return Ok(());
    }
    Err(Mismatch {
        promised: format!("a drive is full only when its data occupies {} bytes", data_bytes(info)),
        found: format!(
            "a write was refused with {needed} bytes of data at most, {:.1} % in use",
            info.used_percent
        ),
    })
}

#[cfg(test)]
mod tests {
    //! Goal: values within the bounds pass, and values beyond them are refused.
    use super::super::oracle::{Change, Content};
    use super::*;
    use pumice_drive::controller::{OpenOptions, Spec, create};
    use pumice_drive::media::mem::MemMedium;
    use pumice_drive::runtime::Runtime;
    use rand::Rng;

    fn info() -> Info {
        let runtime = Runtime::simulated();
        let spec = Spec { segment_bytes: 4 << 20, ..Spec::new(uuid::Uuid::nil(), 64 << 20) };
        let memory = MemMedium::new(spec.geometry().unwrap().medium_bytes());
        runtime.block_on(create(&memory, &spec)).unwrap();
        let options = OpenOptions::default();
        let opening = pumice_drive::Drive::open(Rc::new(memory), runtime.clock(), options);
        let info = runtime.block_on(opening).unwrap().info();
        runtime.drop_tasks();
        info
    }

    #[test]
    fn a_drive_that_takes_too_much_memory_is_reported() {
        let mut info = info();
        let budget = 1 << 20;
        let most = BATCH_BUFFER_BYTES + READING_BYTES_MAX;
        assert!(judge_memory(&info, most, budget).is_ok());
        assert!(judge_memory(&info, most + 1, budget).is_err());
        info.memory.map_leaf_bytes = budget + LEAF_BYTES_MORE;
        assert!(judge_memory(&info, 0, budget).is_ok());
        info.memory.map_leaf_bytes += 1;
        assert!(judge_memory(&info, 0, budget).is_err());
    }

    #[test]
    fn a_drive_that_is_full_too_early_is_reported() {
        let mut info = info();
        (info.live_bytes, info.used_percent) = (50 << 20, 50.0);
        assert!(judge_refusal(&info, 90 << 20).is_ok());
        assert!(judge_refusal(&info, 50 << 20).is_err());
        // The open segments may take all of the space.
        info.live_bytes = 10 << 20;
        assert!(judge_refusal(&info, 0).is_ok());
    }

    #[test]
    fn the_most_in_flight_is_remembered() {
        let counted = Rc::new(InFlight::default());
        let first = counted.hold(10);
        drop(counted.hold(5));
        drop(first);
        drop(counted.hold(12));
        assert_eq!((counted.most(), counted.now.get()), (15, 0));
    }

    #[test]
    fn only_data_needs_space() {
        let mut oracle = Oracle::new(16 * BLOCK_BYTES);
        let mut random = pumice_drive::base::seed::random(1);
        let mut noise = vec![0; BLOCK_BYTES];
        random.fill_bytes(&mut noise);
        let text = b"a sentence of some words. ".iter().copied().cycle().take(BLOCK_BYTES);
        for (block, bytes) in [noise, vec![7; BLOCK_BYTES], text.collect()].into_iter().enumerate()
        {
            let offset = block * BLOCK_BYTES;
            oracle.take(Change { request: 1, offset, content: Content::Bytes(bytes) });
        }
        let raw = BLOCK_BYTES as u64 + BLOCK_OVERHEAD;
        assert_eq!(needed_bytes(&oracle, Codec::None), 2 * raw);
        let needed = needed_bytes(&oracle, Codec::Lz4);
        assert!((raw + BLOCK_OVERHEAD..raw + 300).contains(&needed), "{needed}");
    }

    #[test]
    fn a_slow_request_is_reported() {
        assert!(judge_time("a read", REST_NS, 0).is_ok());
        assert!(judge_time("a read", REST_NS + 1, 0).is_err());
        assert!(judge_time("a read", REST_NS + OPERATIONS_MAX * 7, 7).is_ok());
    }
}
