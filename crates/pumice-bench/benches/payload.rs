//! Payload generation speed: one thread repeatedly fills one buffer from one stream.
//!
//! For each kind and saving, reports the median and best rate of interleaved rounds, in GB (10^9
//! bytes) per second, for buffers of 4 KiB, 64 KiB and 1 MiB. For comparison, reports the rate of
//! plain copying from a 64 MiB pool, the method of some generators.
//!
//! ```text
//! cargo bench --bench payload              # every kind
//! cargo bench --bench payload -- spread    # kinds with this in their name
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Instant;

use pumice_bench::payload::{IozoneLayout, Kind, Payload, PayloadOptions, Saving};

const BUFFERS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const ROUNDS: usize = 15;
const ROUND_BYTES: usize = 64 << 20;
const PERCENTS: [f64; 3] = [2.0, 50.0, 98.0];

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    println!("{:24} {:>16} {:>16} {:>16}", "GB/s, median (best)", "4 KiB", "64 KiB", "1 MiB");
    let mut kinds = vec![("random".to_owned(), Kind::Random)];
    for percent in PERCENTS {
        let saved = Saving::from_fraction(percent / 100.0);
        kinds.push((format!("exact {percent} %"), Kind::Exact(saved)));
        kinds.push((format!("spread {percent} %"), Kind::Spread(saved)));
        kinds.push((format!("iozone-3.420 {percent} %"), Kind::Iozone(IozoneLayout::V3420, saved)));
        kinds.push((format!("iozone-3.489 {percent} %"), Kind::Iozone(IozoneLayout::V3489, saved)));
    }
    for (name, kind) in kinds.into_iter().filter(|(name, _)| name.contains(&filter)) {
        let payload = Payload::new(PayloadOptions::new(kind)).expect("a payload");
        let mut stream = payload.stream(0);
        row(&name, |buffer| stream.fill(buffer));
    }
    let pool = vec![7; 64 << 20];
    let mut at = 0;
    row("copy of 64 MiB", |buffer| {
        buffer.copy_from_slice(&pool[at..at + buffer.len()]);
        at = (at + buffer.len()) % (pool.len() - (1 << 20));
    });
}

fn row(name: &str, mut fill: impl FnMut(&mut [u8])) {
    let mut rates = BUFFERS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (bytes, rates) in BUFFERS.iter().zip(&mut rates) {
            let mut buffer = vec![0; *bytes];
            let start = Instant::now();
            for _ in 0..ROUND_BYTES / bytes {
                fill(black_box(&mut buffer));
            }
            rates.push(ROUND_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
    }
    let cells = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        format!("{:.1} ({:.1})", rates[ROUNDS / 2], rates[ROUNDS - 1])
    });
    println!("{name:24} {:>16} {:>16} {:>16}", cells[0], cells[1], cells[2]);
}
