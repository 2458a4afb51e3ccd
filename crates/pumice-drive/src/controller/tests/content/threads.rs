//! Goal: drives that share threads retain all written data, whatever is in flight, dropped or
//! closed. Method: real time, since virtual time does not wait for threads; no result depends on
//! their speed.

use futures_util::FutureExt;
use futures_util::future::join_all;
use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::runtime::Backend;

const SIZE: usize = 8 << 20;
const WORKERS: usize = 2;

struct Real {
    medium: MemMedium,
    runtime: Runtime,
}

impl Real {
    fn new(codec: Codec) -> Self {
        let spec = Spec { codec, ..small(SIZE as u64, 100) };
        let medium = MemMedium::new(1 << 30);
        let runtime = Runtime::new(Backend::Auto).unwrap();
        runtime.block_on(create(&medium, &spec)).unwrap();
        Self { medium, runtime }
    }

    fn open(&self) -> Rc<Drive> {
        let opening =
            Drive::open(Rc::new(self.medium.clone()), self.runtime.clock(), OpenOptions::default());
        self.runtime.block_on(opening).unwrap()
    }

    fn read(&self, drive: &Drive) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        self.runtime.block_on(drive.read(0, &mut bytes)).unwrap();
        bytes
    }
}

/// Returns partly compressible bytes, with an occasional block of one letter.
fn data(seed: u64, len: usize) -> Vec<u8> {
    let mut random = random(seed);
    let mut data = payload::noise(&mut random, len);
    for block in data.chunks_mut(BLOCK_BYTES) {
        let filled = [0, block.len() / 2, block.len()][random.random_range(0..3)];
        block[..filled].fill(seed.to_le_bytes()[0]);
    }
    data
}

#[test]
fn writes_in_flight_on_several_threads_are_kept() {
    for codec in [Codec::Zstd { level: 1 }, Codec::Lz4] {
        let real = Real::new(codec);
        let drive = real.open();
        drive.use_workers(Workers::start(WORKERS).unwrap());
        let mut plain = vec![0; SIZE];
        let mut random = random(7);
        for round in 0..30 {
            // Disjoint ranges, so that the order does not matter.
            let len = [4096, 20 << 10, 64 << 10, 512 << 10][random.random_range(0..4)];
            let offsets = (0..SIZE / len).filter(|at| at % 3 != round % 3).take(40);
            let writes: Vec<_> =
                offsets.map(|at| (at * len, data((round * 1000 + at) as u64, len))).collect();
            for (offset, bytes) in &writes {
                plain[*offset..][..len].copy_from_slice(bytes);
            }
            let all = writes.iter().map(|(offset, bytes)| drive.write(*offset as u64, bytes));
            let results = real.runtime.block_on(join_all(all));
            results.into_iter().for_each(|result| result.unwrap());
            // A dropped write may or may not take effect, so it writes the present content.
            let (offset, bytes) = &writes[0];
            drop(drive.write(*offset as u64, bytes).now_or_never());
        }
        assert!(real.read(&drive) == plain, "another disk than what was written");
        real.runtime.block_on(drive.close()).unwrap();
        drop(drive);
        let drive = real.open();
        assert!(real.read(&drive) == plain, "another disk after closing");
        real.runtime.block_on(drive.close()).unwrap();
    }
}

/// Each drive decides for itself when its data is not worth the attempt.
#[test]
fn noise_on_one_drive_leaves_the_other_compressed() {
    let codec = Codec::Zstd { level: 1 };
    let real = [Real::new(codec), Real::new(codec)];
    let [noisy, texts] = real.each_ref().map(Real::open);
    let workers = Workers::start(0).unwrap();
    let drives = [(&real[0], &noisy), (&real[1], &texts)];
    drives.iter().for_each(|(_, drive)| drive.use_workers(workers.clone()));
    let noise = payload::noise(&mut random(1), SIZE);
    let text: Vec<u8> =
        b"a line of text, again and again. ".iter().copied().cycle().take(SIZE).collect();
    for at in (0..SIZE).step_by(BLOCK_BYTES) {
        for ((real, drive), data) in drives.iter().zip([&noise, &text]) {
            let write = drive.write(at as u64, &data[at..][..BLOCK_BYTES]);
            real.runtime.block_on(write).unwrap();
        }
    }
    assert!(noisy.info().frame_bytes > SIZE as u64);
    assert!(texts.info().frame_bytes < SIZE as u64 / 8, "text was stored as it is");
    drives.iter().for_each(|(real, drive)| real.runtime.block_on(drive.close()).unwrap());
}
