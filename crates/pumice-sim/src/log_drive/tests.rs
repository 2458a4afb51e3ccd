//! Goal: the duration of a request is the sum of its parts, the bottleneck determines the speed,
//! and the queue is never longer than its depth; a profile produces the drive that it describes.
//! Method: sums calculated by hand for a small drive of 34 nm MLC; the asynchronous front end with
//! the same requests; built-in profiles.

use std::collections::VecDeque;

use super::*;
use crate::ftl::LogSpec;
use crate::ftl::sample::small;
use pumice_drive::base::{ErrorKind, chain};

const BLOCK: u64 = BLOCK_BYTES as u64;
static GO_ON: AtomicBool = AtomicBool::new(false);

fn spec() -> LogDriveSpec {
    LogDriveSpec {
        store: LogStoreSpec { log: small(), map_cached_bytes: None, unit_blocks: 1 },
        front: FrontSpec {
            read_bytes_per_s: 204_800_000,
            write_bytes_per_s: 102_400_000,
            command_ns: 5_000,
            depth: 4,
            read_ns: 20_000,
            write_ns: 30_000,
            scattered_write_ns: 0,
            engine_bytes_per_s: None,
            load_bytes_per_s: None,
        },
        command_bytes_max: 128 << 10,
        stripe: 1,
    }
}

/// Returns requests from a list, regardless of the slot, and records their durations.
#[derive(Default)]
struct List {
    requests: VecDeque<Request>,
    took_ns: Vec<u64>,
    in_flight: u32,
    in_flight_most: u32,
}

impl Host for List {
    fn next(&mut self, _slot: u32, _now_ns: u64) -> Result<Option<Request>> {
        let request = self.requests.pop_front();
        self.in_flight += u32::from(request.is_some());
        self.in_flight_most = self.in_flight_most.max(self.in_flight);
        Ok(request)
    }

    fn done(&mut self, _request: &Request, begun_ns: u64, done_ns: u64) {
        self.in_flight -= 1;
        self.took_ns.push(done_ns - begun_ns);
    }
}

fn request(verb: Verb, offset: u64, bytes: u64) -> Request {
    Request { verb, offset, bytes, due_ns: 0 }
}

/// Returns the duration of each request, and the end time of the last one.
fn run(drive: &mut LogDrive, slots: u32, requests: &[Request]) -> (Vec<u64>, u64) {
    let mut list = List { requests: requests.iter().copied().collect(), ..List::default() };
    assert!(drive.run(&mut list, slots, &GO_ON).unwrap());
    assert!(list.in_flight_most <= slots && list.in_flight == 0);
    (list.took_ns, drive.now_ns())
}

/// Returns a drive that has been completely written and then idle for a while.
fn filled(spec: LogDriveSpec) -> LogDrive {
    let mut drive = LogDrive::new(spec).unwrap();
    let writes: Vec<_> =
        (0..250).map(|at| request(Verb::Write, at * 8 * BLOCK, 8 * BLOCK)).collect();
    run(&mut drive, 1, &writes);
    let later = Request { due_ns: drive.now_ns + 1_000_000_000, ..request(Verb::Flush, 0, 0) };
    run(&mut drive, 1, &[later]);
    drive
}

#[test]
fn one_request_takes_the_sum_of_its_parts() {
    let mut drive = filled(spec());
    // tR, then the transfer of a block on the bus of the flash, then on the wire.
    let read_ns = 5_000 + 20_000 + 50_000 + 80_000 + 20_000;
    assert_eq!(run(&mut drive, 1, &[request(Verb::Read, 0, BLOCK)]).0, [read_ns]);
    // The buffer has space.
    let write_ns = 5_000 + 40_000 + 30_000;
    assert_eq!(run(&mut drive, 1, &[request(Verb::Write, 0, BLOCK)]).0, [write_ns]);
    // Half a block is written after the other half has been read.
    let part = run(&mut drive, 1, &[request(Verb::Write, 100 * BLOCK + 512, 2048)]).0;
    assert_eq!(part, [5_000 + 20_000 + 30_000 + 130_000]);
    let trim = run(&mut drive, 1, &[request(Verb::Trim, 512, 8 * BLOCK)]).0;
    assert_eq!((trim[0], drive.counts().blocks_trimmed), (35_000, 7));
    // The time of the engine is part of each write.
    let front = FrontSpec { engine_bytes_per_s: Some(51_200_000), ..spec().front };
    let mut drive = filled(LogDriveSpec { front, ..spec() });
    let engine = run(&mut drive, 1, &[request(Verb::Write, 0, BLOCK)]).0;
    assert_eq!(engine, [write_ns + 80_000]);
    assert_eq!(run(&mut drive, 1, &[request(Verb::Read, 8 * BLOCK, BLOCK)]).0, [read_ns]);
    // The times for decompression and for a page of the map are part of each read.
    let front = FrontSpec { load_bytes_per_s: Some(102_400_000), ..spec().front };
    let store = LogStoreSpec { map_cached_bytes: Some(4 << 20), ..spec().store };
    let mut drive = filled(LogDriveSpec { front, store, ..spec() });
    // A different region of the map is cached.
    drive.members[0].store.look_up(drive.now_ns, 4 << 20).unwrap();
    let later = Request { due_ns: drive.now_ns + 1_000_000, ..request(Verb::Flush, 0, 0) };
    run(&mut drive, 1, &[later]);
    let reads = [request(Verb::Read, 0, BLOCK); 2];
    let took = run(&mut drive, 1, &reads).0;
    // A page of the map takes tR and the transfer of a block on the bus.
    assert_eq!(took, [read_ns + 40_000 + 130_000, read_ns + 40_000]);
}

#[test]
fn requests_wait_for_their_time_and_for_a_place() {
    let mut drive = filled(spec());
    let start = drive.now_ns();
    let due = Request { due_ns: start + 7_000_000, ..request(Verb::Read, 0, BLOCK) };
    let (took, ended) = run(&mut drive, 1, &[due]);
    assert_eq!((took[0], ended), (175_000, start + 7_000_000 + 175_000));
    // Sixteen concurrent requests in a queue of four; the wire carries a command and a block for
    // each.
    let front = FrontSpec { depth: 1, ..spec().front };
    let mut alone = filled(LogDriveSpec { front, ..spec() });
    let begun = alone.now_ns();
    // Out of order, because sequential reads would trigger read-ahead.
    let reads: Vec<_> = (0..16).map(|at| request(Verb::Read, at * 7 % 16 * BLOCK, BLOCK)).collect();
    let (took, ended) = run(&mut alone, 16, &reads);
    assert_eq!(ended - begun, 16 * 175_000, "one place: one after the other");
    assert_eq!(took.iter().max(), Some(&(16 * 175_000)));
}

#[test]
fn long_requests_are_commands_at_once_that_end_together() {
    let mut drive = filled(LogDriveSpec { command_bytes_max: BLOCK, ..spec() });
    let (took, _) = run(&mut drive, 1, &[request(Verb::Write, 0, 3 * BLOCK)]);
    assert_eq!(took, [3 * 45_000 + 30_000], "the wire three times, then the processor");
}

#[test]
fn the_store_bounds_the_writes_to_the_flash() {
    let bandwidth = |store_bytes_per_s| {
        let mut of = spec();
        of.store.log.store_bytes_per_s = store_bytes_per_s;
        let mut drive = LogDrive::new(of).unwrap();
        let writes: Vec<_> = (0..1000).map(|at| request(Verb::Write, at * BLOCK, BLOCK)).collect();
        let (_, ended_ns) = run(&mut drive, 4, &writes);
        1000.0 * BLOCK as f64 * 1e3 / ended_ns as f64
    };
    let (free, bound) = (bandwidth(None), bandwidth(Some(10_000_000)));
    // Four dies program 8 KiB each in 1060 us.
    assert!((30.0..33.0).contains(&free), "{free} MB/s");
    assert!((9.9..10.4).contains(&bound), "{bound} MB/s");
}

#[test]
fn requests_beyond_the_drive_are_refused_and_a_stop_is_heard() {
    let mut drive = LogDrive::new(spec()).unwrap();
    let mut list = List::default();
    list.requests.push_back(request(Verb::Read, 1999 * BLOCK, BLOCK + 1));
    let refused = drive.run(&mut list, 1, &GO_ON).unwrap_err();
    assert!(refused.to_string().contains("beyond"), "{refused}");
    let mut drive = LogDrive::new(spec()).unwrap();
    let mut list =
        List { requests: vec![request(Verb::Read, 0, BLOCK); 9].into(), ..List::default() };
    assert!(!drive.run(&mut list, 1, &AtomicBool::new(true)).unwrap());
    assert_eq!(list.took_ns.len(), 1);
    assert!(LogDrive::new(LogDriveSpec { command_bytes_max: 1000, ..spec() }).is_err());
    let mut stopped = spec();
    stopped.store.log.store_bytes_per_s = Some(0);
    assert!(LogDrive::new(stopped).is_err());
    assert!(drive.run(&mut List::default(), 0, &GO_ON).is_err());
}

/// Guards against a RAID 0 that loses bytes between its drives, or has a single link for all of
/// them.
#[test]
fn drives_of_a_raid_share_the_work() {
    let ended = |stripe| {
        let mut drive = LogDrive::new(LogDriveSpec { stripe, ..spec() }).unwrap();
        let blocks = drive.spec().size_bytes() / (256 << 10);
        let writes: Vec<_> =
            (0..16).map(|at| request(Verb::Write, at % blocks * (256 << 10), 256 << 10)).collect();
        let (_, ended_ns) = run(&mut drive, 4, &writes);
        assert_eq!(drive.counts().host_blocks_written, 16 * 64);
        let flush = request(Verb::Flush, 0, 0);
        run(&mut drive, 1, &[flush]);
        ended_ns
    };
    let (one, two) = (ended(1), ended(2));
    let ratio = one as f64 / two as f64;
    assert!((1.8..2.1).contains(&ratio), "{one} ns, {two} ns with two drives");
    let two = LogDriveSpec { stripe: 2, ..spec() };
    assert_eq!(two.size_bytes(), 2 * (spec().size_bytes() / (128 << 10) * (128 << 10)));
    let mut drive = LogDrive::new(two).unwrap();
    let beyond = request(Verb::Read, drive.spec().size_bytes(), 4096);
    let mut list = List { requests: vec![beyond].into(), ..List::default() };
    assert!(drive.run(&mut list, 1, &GO_ON).is_err());
    for stripe in [0, 65] {
        assert!(LogDrive::new(LogDriveSpec { stripe, ..spec() }).is_err());
    }
}

#[test]
fn every_log_of_the_list_becomes_a_drive() {
    let half = || StoredSizes::Constant(0.5);
    for (id, _) in crate::profile::PROFILES {
        let profile = Profile::find(id).unwrap();
        let spec = LogDriveSpec::of(&profile, half());
        if profile.kind() != "log" {
            let refused = spec.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains(profile.kind()), "{refused}");
            continue;
        }
        let spec = spec.unwrap();
        let compresses = profile.controller.codec() != pumice_drive::codec::Codec::None;
        assert_eq!(
            spec.store.log.stored_mean().unwrap(),
            if compresses { 0.5 } else { 1.0 },
            "{id}"
        );
        assert_eq!(spec.size_bytes(), profile.size_bytes.is / BLOCK * BLOCK);
        let flash = profile.flash().unwrap().bytes().unwrap() as f64;
        let flash = flash * (1.0 - spec.store.log.parity_share());
        let raw = spec.store.log.raw_bytes().unwrap();
        assert!((0.93..1.0).contains(&(raw / flash)), "{id}: {raw} of {flash}");
    }
    let profile = Profile::find("micro-center-64").unwrap();
    // A measurement on flash includes the overhead.
    let floor = 0.14 * (1.0 - profile.flash().unwrap().overhead_percent.is / 100.0);
    let little = LogDriveSpec::of(&profile, StoredSizes::Constant(0.01)).unwrap();
    assert_eq!(little.store.log.stored_mean().unwrap(), (floor * 4096.0).ceil() / 4096.0);
}

#[test]
fn a_scaled_drive_keeps_the_share_of_over_provisioning() {
    for id in ["micro-center-64", "compressing-nvme-1tb"] {
        let profile = Profile::find(id).unwrap();
        let whole = LogSpec::of(&profile, StoredSizes::Constant(0.5)).unwrap();
        let small = whole.clone().scaled(4 << 30).unwrap();
        let ratio = |spec: &LogSpec| spec.raw_bytes().unwrap() / (spec.user_blocks * BLOCK) as f64;
        assert!((ratio(&small) / ratio(&whole) - 1.0).abs() < 1e-4, "{id}");
        let size = (small.user_blocks * BLOCK) as f64 / (4u64 << 30) as f64;
        assert!((0.99..1.02).contains(&size), "{id}: {size}");
        assert!(small.shape.blocks_per_plane >= 250, "{id}: {:?}", small.shape);
        assert_eq!(small.shape.dies(), whole.shape.dies());
        let erase = |spec: &LogSpec| spec.timing.erase_ns / u64::from(spec.shape.pages_per_block);
        assert!(erase(&small).abs_diff(erase(&whole)) <= 1, "{id}");
        assert_eq!(whole.clone().scaled(u64::MAX).unwrap(), whole);
        assert!(whole.scaled(1).is_err());
    }
}

#[test]
fn over_provisioning_is_the_requested_one() {
    let profile = Profile::find("micro-center-64").unwrap();
    let sold = LogSpec::of(&profile, StoredSizes::Constant(1.0)).unwrap();
    let raw = sold.raw_bytes().unwrap();
    for percent in [2.0, 7.0, 28.0, 300.0] {
        let spec = sold.clone().over_provisioned(percent).unwrap();
        assert_eq!((spec.shape, spec.raw_bytes().unwrap()), (sold.shape, raw), "the same flash");
        for spec in [spec.clone(), spec.scaled(2 << 30).unwrap()] {
            let ratio = spec.raw_bytes().unwrap() / (spec.user_blocks * BLOCK) as f64;
            assert!((ratio / (1.0 + percent / 100.0) - 1.0).abs() < 1e-4, "{percent}: {ratio}");
        }
    }
    let full = chain(&sold.over_provisioned(0.0).unwrap_err());
    assert!(full.contains("has room for"), "{full}");
}
