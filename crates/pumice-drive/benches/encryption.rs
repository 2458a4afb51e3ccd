//! The cost of encryption in the process itself: random 4 KiB writes and reads of data that
//! compresses to a half, alternately on a plain and an encrypted drive in memory.
//!
//! ```text
//! cargo bench --package pumice-drive --bench encryption [ROUNDS]
//! ```
//!
//! Prints the median time of each, and the median of the rounds' ratios: the speed of the encrypted
//! drive relative to the plain one. The medium takes no time, so this is the maximum cost of
//! encryption.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs)]

use std::rc::Rc;
use std::time::Instant;

use pumice_drive::base::seed::random;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::controller::{Drive, OpenOptions, Spec, create, new_keys};
use pumice_drive::crypt::{Cipher, Randomness, Secret};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::{Backend, Runtime};
use rand::{Rng, RngExt};

const BLOCKS: u64 = 32 << 10;
const REQUESTS: u64 = 100_000;
const ROUNDS: usize = 9;

fn open(is_encrypted: bool, runtime: &Runtime) -> Rc<Drive> {
    let mut spec = Spec::new(uuid::Uuid::from_u128(1), BLOCKS * BLOCK_BYTES as u64);
    let mut cipher = Cipher::default();
    if is_encrypted {
        let secret = Secret::Key(vec![1; 32].into());
        let keys = new_keys(spec.uuid, &[secret], 0, Randomness::System).expect("keys");
        (cipher, spec.keys) = (keys.0, Some(keys.1));
    }
    let geometry = spec.geometry().expect("a possible drive");
    let medium = MemMedium::new(geometry.medium_bytes()).with_cipher(cipher);
    runtime.block_on(create(&medium, &spec)).expect("create");
    let options = OpenOptions { read_cache_bytes: 0, ..OpenOptions::default() };
    runtime.block_on(Drive::open(Rc::new(medium), runtime.clock(), options)).expect("open")
}

/// Returns the nanoseconds of a request.
fn measure(runtime: &Runtime, drive: &Drive, blocks: &[u8], writes: bool) -> f64 {
    let mut random = random(7);
    let mut target = vec![0; BLOCK_BYTES];
    let begun = Instant::now();
    runtime.block_on(async {
        for _ in 0..REQUESTS {
            let offset = random.random_range(0..BLOCKS) * BLOCK_BYTES as u64;
            if writes {
                let from = random.random_range(0..blocks.len() / BLOCK_BYTES) * BLOCK_BYTES;
                let data = &blocks[from..from + BLOCK_BYTES];
                drive.write(offset, data).await.expect("write");
            } else {
                drive.read(offset, &mut target).await.expect("read");
            }
            runtime.yield_now().await;
        }
    });
    begun.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(ROUNDS);
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let mut random = random(1);
    let mut blocks = vec![0; 256 * BLOCK_BYTES];
    for block in blocks.chunks_mut(BLOCK_BYTES) {
        random.fill_bytes(&mut block[..BLOCK_BYTES / 2]);
    }
    let drives = [false, true].map(|is_encrypted| open(is_encrypted, &runtime));
    println!("| 4 KiB at random | plain, ns | encrypted, ns | ratio |\n|---|---|---|---|");
    for (name, writes) in [("writes", true), ("reads", false)] {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (drive, times) in drives.iter().zip(&mut times) {
                let ns = measure(&runtime, drive, &blocks, writes);
                // The first round warms up.
                if round > 0 {
                    times.push(ns);
                }
            }
        }
        let ratios = times[0].iter().zip(&times[1]).map(|(plain, encrypted)| plain / encrypted);
        let ratio = median(ratios.collect());
        let [plain, encrypted] = times.map(median);
        println!("| {name} | {plain:.0} | {encrypted:.0} | {ratio:.2} |");
    }
    for drive in drives {
        runtime.block_on(drive.close()).expect("close");
    }
    runtime.drop_tasks();
}
