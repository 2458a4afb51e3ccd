//! Goal: the duration of a request is the sum of its parts, bandwidth agrees with the calculation,
//! reads are served between writes, and garbage collection slows a drive down evenly. Method: sums
//! calculated by hand for an idle drive; long runs compared with the maximum speed of the flash.

use super::*;

/// Writes all blocks once in order, and waits for the flash.
fn filled(spec: LogSpec) -> LogFtl {
    let mut drive = LogFtl::new(spec).unwrap();
    let blocks = drive.spec.user_blocks as u32;
    for lba in (0..blocks).step_by(8) {
        drive.write(0, Lba(lba.into()), 8.min(blocks - lba)).unwrap();
    }
    drive.flush(0).unwrap();
    drive.settle();
    drive
}

#[test]
fn one_request_takes_the_sum_of_its_parts() {
    let mut drive = LogFtl::new(small()).unwrap();
    assert_eq!(drive.read(5, Lba(0), 8).unwrap().last_ns, 5, "nothing was written");
    assert_eq!(drive.write(5, Lba(0), 1).unwrap(), 5, "there is room in the buffer");
    assert_eq!(drive.read(6, Lba(0), 1).unwrap().last_ns, 6, "it is in the buffer");
    let flushed = drive.flush(10).unwrap();
    assert_near(flushed, 10 + 2 * TRANSFER_NS + 900_000);
    assert_eq!(
        drive.read(flushed - 1, Lba(0), 1).unwrap().last_ns,
        flushed - 1,
        "still in the buffer"
    );
    let now = 10_000_000;
    assert_eq!(drive.flush(now).unwrap(), now, "nothing waits");
    assert_near(drive.read(now, Lba(0), 1).unwrap().last_ns, now + 50_000 + TRANSFER_NS);

    let mut drive = filled(small());
    let now = drive.settle();
    let read =
        |drive: &mut LogFtl, lba, blocks| drive.read(now, Lba(lba), blocks).unwrap().last_ns - now;
    let row = 50_000 + 2 * TRANSFER_NS;
    assert_near(read(&mut drive.clone(), 0, 2), row);
    // Two rows of two dies on two channels, then two more on the same channels.
    assert_near(read(&mut drive.clone(), 0, 4), row);
    assert_near(read(&mut drive.clone(), 0, 8), row + 2 * TRANSFER_NS);
    assert_near(read(&mut drive, 1, 2), 50_000 + TRANSFER_NS);
    drive.trim(now, Lba(0), 2).unwrap();
    assert_eq!(read(&mut drive, 0, 2), 0, "it was trimmed");
    assert_eq!(drive.counts().blocks_trimmed, 2);
}

/// A frame of 1024 + 24 bytes occupies one page, or two if it straddles a boundary.
#[test]
fn compressed_blocks_are_read_with_the_pages_they_touch() {
    let stored = StoredSizes::Constant(0.25);
    let mut drive = filled(LogSpec { stored, header_bytes: 24, ..small() });
    let mut now = drive.settle();
    let transfer_ns = |bytes: u64| TIMING.transfer_ns(bytes);
    for (lba, pages) in [(0, 1), (2, 1), (3, 2), (4, 1)] {
        let before = drive.flash_counts().pages_read;
        let took = drive.read(now, Lba(lba), 1).unwrap().last_ns - now;
        assert_near(took, 50_000 + transfer_ns(1048));
        assert_eq!(drive.flash_counts().pages_read - before, pages, "block {lba}");
        now += 1_000_000;
    }
    // Block 7 is in two rows, on two channels; the longer part determines the duration.
    let took = drive.read(now, Lba(7), 1).unwrap().last_ns - now;
    assert_near(took, 50_000 + transfer_ns(8192 - 7 * 1048));
}

/// Speeds of sequential writes and of the flash, in MB/s. The speed of the flash is calculated for
/// four dies with a row each.
#[test]
fn sequential_bandwidth_is_arithmetic() {
    let row_ns = 900_000.0 + 2.0 * TRANSFER_NS as f64;
    let plain = 4.0 * 8192.0 / row_ns * 1e3;
    for (spec, expected) in [
        (small(), plain),
        (LogSpec { stripe_dies: Some(4), user_blocks: 1600, ..small() }, 0.75 * plain),
        (LogSpec { stored: StoredSizes::Constant(0.5), ..small() }, 2.0 * plain),
        (LogSpec { timing: FlashTiming { cache_program: true, ..TIMING }, ..small() }, {
            4.0 * 8192.0 / 900_000.0 * 1e3
        }),
        // Both dies of a channel wait for the bus.
        (LogSpec { timing: FlashTiming { bus_bytes_per_s: 5_000_000, ..TIMING }, ..small() }, 10.0),
    ] {
        let mut drive = LogFtl::new(spec).unwrap();
        let blocks = drive.spec.user_blocks - drive.spec.user_blocks % 8;
        let spec =
            HostSpec { depth: 4, blocks: 8, order: Order::Sequential, read_percent: 0, seed: 1 };
        let mut host = Host::new(spec, 0).unwrap();
        host.run(&mut drive, blocks / 8).unwrap();
        let ended_ns = drive.settle();
        let measured = blocks as f64 * 4096.0 / ended_ns as f64 * 1e3;
        assert!((measured / expected - 1.0).abs() < 0.03, "{measured} MB/s, not {expected}");
    }
}

/// A write is acknowledged when the buffer has space for it, neither sooner nor later.
#[test]
fn a_full_buffer_makes_writes_wait() {
    let mut drive = LogFtl::new(small()).unwrap();
    let acknowledged = Vec::from_iter((0..32).map(|lba| drive.write(0, Lba(lba), 1).unwrap()));
    assert_eq!(acknowledged[..16], [0; 16], "64 KiB of buffer");
    // Rows 0 to 3 are being programmed on four dies, with two dies per bus.
    let row_ns = 900_000 + 2 * TRANSFER_NS;
    assert_near(acknowledged[16], row_ns);
    assert_near(acknowledged[18], row_ns);
    assert_near(acknowledged[24], 2 * row_ns);
    assert!(acknowledged.is_sorted());
    // Later writes include the delay of the buses.
    let flushed = drive.flush(0).unwrap();
    let settled = drive.settle();
    assert!(flushed <= settled && settled <= flushed + 2 * TRANSFER_NS + 8, "{settled}");
}

/// A read waits for the row that is being programmed, but not for queued rows.
#[test]
fn a_read_waits_for_one_row_at_most() {
    let mut drive = filled(LogSpec { user_blocks: 2000, buffer_bytes: 1 << 20, ..small() });
    let now = drive.settle();
    for lba in (1000..1256).step_by(8) {
        assert_eq!(drive.write(now, Lba(lba), 8).unwrap(), now);
    }
    let later = now + 100;
    let read_ns = drive.read(later, Lba(0), 1).unwrap().last_ns - later;
    let row_ns = 900_000 + 4 * TRANSFER_NS;
    assert!(read_ns > 500_000, "nothing was under way");
    assert!(read_ns <= row_ns + 50_000 + TRANSFER_NS, "{read_ns} ns");
    let flushed = drive.flush(later).unwrap() - later;
    assert!(flushed > 20 * row_ns, "most of it waits: {flushed} ns");
}

/// In steady state at 28 %, moved data slows writes down evenly, without stops.
#[test]
fn garbage_collection_slows_writes_evenly() {
    let mut drive = filled(small());
    let spec = HostSpec { depth: 1, blocks: 1, order: Order::Uniform, read_percent: 0, seed: 1 };
    let mut host = Host::new(spec, drive.settle()).unwrap();
    host.run(&mut drive, 10_000).unwrap();
    let (before, busy_from) = (drive.counts(), drive.now_ns);
    let run = host.run(&mut drive, 10_000).unwrap();
    let counts = drive.counts().since(&before);
    let rows = counts.flash_bytes as f64 / 8192.0;
    let least_ns = rows * (900_000.0 + 2.0 * TRANSFER_NS as f64) / 4.0;
    let took_ns = (run.ended_ns - busy_from) as f64;
    assert!(counts.write_amplification() > 2.0, "{counts:?}");
    // Erasures and reads take additional time, and dies wait for each other.
    assert!((1.0..1.6).contains(&(took_ns / least_ns)), "{took_ns} ns, at least {least_ns}");
    // Emptying a victim in one step would take the time of all rows in a segment.
    let segment_ns = 8 * (900_000 + 2 * TRANSFER_NS);
    assert!(run.writes.max_ns < 2 * segment_ns, "{run:?}");
    assert!(run.writes.max_ns < 25 * run.writes.mean_ns(), "{run:?}");
}

/// A row of moved data is not programmed before its data has been read, even if its die is idle.
#[test]
fn moved_data_is_read_first() {
    let timing = FlashTiming { read_ns: 5_000_000_000, ..TIMING };
    let mut drive = filled(LogSpec { timing, user_blocks: 35 * 64, ..small() });
    let now = drive.settle();
    // Each segment is overwritten except for its second row, which is on the second die.
    for lba in (0..35 * 64).filter(|lba| ![2, 3].contains(&(lba % 64))) {
        drive.write(now, Lba(lba), 1).unwrap();
        if drive.counts().collected_bytes >= 8192 {
            break;
        }
    }
    let entry = drive.map[2];
    let (segment, offset) = (drive.layout.segment(entry), drive.layout.offset(entry));
    let (address, row) = drive.row_address(segment, drive.layout.row_of(offset));
    assert_eq!((address.die, row), (0, 0), "it was moved to the first row of a segment");
    let later = now + 4_000_000_000;
    drive.trim(later, Lba(0), 1).unwrap();
    assert!(drive.flash.free_at_ns(address.die) < later, "its die is idle");
    assert!(drive.drain.is_buffered(&drive.flash, later, address, row), "it was not read yet");
    let settled = drive.settle();
    assert!(!drive.drain.is_buffered(&drive.flash, settled, address, row));
}
