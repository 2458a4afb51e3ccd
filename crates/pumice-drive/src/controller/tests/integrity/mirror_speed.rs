//! Goal: a mirror writes as fast as one of its devices and reads faster, and rebuilds a member at
//! the speed of the slower device. Method: members in memory under the throttle layer, in virtual
//! time, so that only the devices take time. The tests measure how well the mirror keeps them busy,
//! with the same result in each run. `benches/mirror.sh` measures the processor time of the mirror.

use futures_util::stream::{StreamExt, iter};

use super::*;
use crate::base::seed::random;
use crate::format::ArrayLayout;
use crate::media::AnyMedium;
use crate::media::array::{Array, Assembly, NewMember};
use crate::media::layer::{Speed, Throttle};
use rand::{Rng, RngExt};

type Device = Rc<Throttle<MemMedium, Runtime>>;

const MIB: u64 = 1 << 20;

/// Bytes that are written and read.
const BYTES: u64 = 24 * MIB;

/// A kind of load: the bytes of each request, and the number of concurrent ones.
#[derive(Clone, Copy)]
struct Load {
    request_bytes: u64,
    at_once: usize,
    is_random: bool,
}

const LOADS: [Load; 5] = [
    Load { request_bytes: MIB, at_once: 1, is_random: false },
    Load { request_bytes: MIB, at_once: 8, is_random: false },
    Load { request_bytes: 128 << 10, at_once: 1, is_random: false },
    Load { request_bytes: 128 << 10, at_once: 4, is_random: false },
    Load { request_bytes: 16 << 10, at_once: 32, is_random: true },
];

/// Returns a flash device on SATA, or a hard disk whose heads need not move.
fn device(runtime: &Runtime, memory: &MemMedium, bytes_per_s: u64) -> Device {
    let speed = Speed {
        read_bytes_per_s: bytes_per_s,
        append_bytes_per_s: bytes_per_s,
        read_latency_ns: 80_000,
        append_latency_ns: 40_000,
    };
    Rc::new(Throttle::new(memory.clone(), runtime.clone(), speed))
}

fn spec() -> Spec {
    small(32 * MIB, 24)
}

fn memory() -> MemMedium {
    MemMedium::new(spec().geometry().unwrap().medium_bytes())
}

/// Makes a mirror of devices in memory.
fn mirror(runtime: &Runtime, devices: &[Device]) -> Rc<Array<Device>> {
    let names = (0..).map(|index| {
        let path = format!("/m{index}");
        NewMember { uuid: uuid::Uuid::from_u128(index + 1), path, segment_count: 0 }
    });
    runtime.block_on(async {
        let members = devices.iter().cloned().zip(names).collect();
        let array = Array::create(uuid::Uuid::from_u128(9), ArrayLayout::Mirror, members).await;
        create(&array.unwrap(), &spec()).await.unwrap();
        let paths = (0..).map(|index: u128| format!("/m{index}"));
        let members = devices.iter().cloned().zip(paths).collect();
        Rc::new(Array::assemble(members, Assembly::default()).await.unwrap())
    })
}

fn open(runtime: &Runtime, medium: Rc<dyn AnyMedium>) -> Rc<Drive> {
    let options = OpenOptions { read_cache_bytes: 0, ..OpenOptions::default() };
    runtime.block_on(Drive::open(medium, runtime.clock(), options)).unwrap()
}

/// Returns the offsets of the requests of a load.
fn offsets(load: Load) -> Vec<u64> {
    let mut offsets: Vec<u64> = (0..BYTES).step_by(load.request_bytes as usize).collect();
    if load.is_random {
        let mut random = random(3);
        for at in (1..offsets.len()).rev() {
            offsets.swap(at, random.random_range(0..=at));
        }
    }
    offsets
}

/// Writes and flushes, or reads, and returns the bytes per microsecond.
fn measure(runtime: &Runtime, drive: &Drive, load: Load, noise: &[u8], is_write: bool) -> f64 {
    let begun_ns = runtime.now_ns();
    let requests = offsets(load).into_iter().map(|offset| async move {
        let range = offset as usize..(offset + load.request_bytes) as usize;
        let expected = &noise[range];
        if is_write {
            return drive.write(offset, expected).await.unwrap();
        }
        let mut found = vec![0; expected.len()];
        drive.read(offset, &mut found).await.unwrap();
        assert!(found == expected, "{offset}");
    });
    runtime.block_on(async {
        iter(requests).buffer_unordered(load.at_once).collect::<()>().await;
        drive.flush().await.unwrap();
    });
    BYTES as f64 * 1000.0 / (runtime.now_ns() - begun_ns) as f64
}

fn speeds(runtime: &Runtime, medium: Rc<dyn AnyMedium>, noise: &[u8]) -> Vec<[f64; 2]> {
    let drive = open(runtime, medium);
    let speeds = LOADS
        .map(|load| [true, false].map(|is_write| measure(runtime, &drive, load, noise, is_write)));
    runtime.drop_tasks();
    speeds.to_vec()
}

fn noise() -> Vec<u8> {
    let mut noise = vec![0; BYTES as usize];
    random(1).fill_bytes(&mut noise);
    noise
}

#[test]
fn a_mirror_writes_like_one_device_and_reads_faster() {
    let noise = noise();
    let runtime = Runtime::simulated();
    let one = device(&runtime, &memory(), 100 * MIB);
    runtime.block_on(create(&one, &spec())).unwrap();
    let one = speeds(&runtime, one, &noise);
    let runtime = Runtime::simulated();
    let devices = [0, 1].map(|_| device(&runtime, &memory(), 100 * MIB));
    let both = speeds(&runtime, mirror(&runtime, &devices), &noise);
    for (load, (one, both)) in LOADS.iter().zip(one.iter().zip(&both)) {
        let Load { request_bytes, at_once, is_random } = load;
        let what = format!("{request_bytes} bytes, {at_once} at once, random: {is_random}");
        let speeds =
            format!("{what}: write {} and {}, read {} and {}", one[0], both[0], one[1], both[1]);
        assert!(both[0] >= 0.9 * one[0] && both[1] >= 1.5 * one[1], "{speeds}");
    }
}

#[test]
fn a_member_is_rebuilt_at_the_speed_of_the_slower_device() {
    let noise = noise();
    for (old, new) in [(100, 100), (100, 50), (50, 100)] {
        let runtime = Runtime::simulated();
        let array = mirror(&runtime, &[device(&runtime, &memory(), old * MIB)]);
        let drive = open(&runtime, array.clone());
        measure(&runtime, &drive, LOADS[1], &noise, true);
        let member = device(&runtime, &memory(), new * MIB);
        let named =
            NewMember { uuid: uuid::Uuid::from_u128(7), path: "/new".into(), segment_count: 0 };
        let begun_ns = runtime.now_ns();
        let used_bytes = Cell::new(0);
        runtime.block_on(async {
            array.add_member(member, named).await.unwrap();
            let copy = async |segment, range, show: &mut dyn FnMut(u32, &[u8])| {
                array.copy(segment, range, show).await
            };
            drive.copy_in_use(|bytes| used_bytes.set(bytes), copy).await.unwrap();
            array.finish_rebuild().await.unwrap();
        });
        let speed = used_bytes.get() as f64 * 1000.0 / (runtime.now_ns() - begun_ns) as f64;
        let slower = (old.min(new) * MIB) as f64 / 1e6;
        assert!(speed >= 0.8 * slower, "{old} to {new} MiB/s: {speed:.1} MB/s of {slower:.1}");
        runtime.drop_tasks();
    }
}
