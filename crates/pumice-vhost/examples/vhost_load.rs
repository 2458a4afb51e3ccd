//! Measures random requests of 4 KiB, 32 in flight, through a vhost-user device or an NBD export:
//!
//! ```sh
//! pumice serve drive.pumice --unix nbd.sock --vhost-user vhost.sock &
//! vhost_load fill|read|write vhost|nbd SOCKET SECONDS
//! vhost_load serve memory|drive VHOST_SOCKET NBD_SOCKET
//! ```
//!
//! Prints requests per second. `fill` writes each block once. Half of each written block is random.
//! `serve` serves 256 MiB over both protocols: plain memory, which shows the cost of the protocols
//! alone, or a drive in memory.
#![allow(clippy::disallowed_methods, reason = "measures real time")]

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pumice_drive::AlignedBuffer;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_drive::{Drive, MemMedium, OpenOptions, Spec, Uuid, create};
use pumice_nbd::memory_disk::MemoryDisk;
use pumice_nbd::{Access, AnyDisk, Client, Durability, Export, Listen, Listener, Options, Uri};
use pumice_vhost::Identity;
use pumice_vhost::driver::{Driver, Setup, kind};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const DEPTH: usize = 32;
const BLOCK: usize = 4096;
const DISK_BYTES: u64 = 256 << 20;

/// The work to do, and its duration.
struct Plan {
    is_read: bool,
    is_fill: bool,
    is_over: bool,
    blocks: u64,
    end: Instant,
    random: Xoshiro256PlusPlus,
    begun: u64,
}

impl Plan {
    /// Returns the block of the next request.
    fn next(&mut self) -> Option<u64> {
        let at = self.begun;
        self.begun += 1;
        if self.is_fill {
            return (at < self.blocks).then_some(at);
        }
        // Reading the clock costs a small part of a request.
        self.is_over |= at.is_multiple_of(16) && Instant::now() >= self.end;
        if self.is_over {
            return None;
        }
        Some(self.random.random_range(0..self.blocks))
    }

    fn fill(&mut self, block: &mut [u8]) {
        self.random.fill_bytes(&mut block[..BLOCK / 2]);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [verb, disk, vhost, nbd] = &arguments[..]
        && verb == "serve"
    {
        return serve(disk == "drive", Path::new(vhost), Path::new(nbd));
    }
    let [verb, target, socket, seconds] = &arguments[..] else {
        return Err("usage: vhost_load fill|read|write vhost|nbd SOCKET SECONDS".into());
    };
    let plan = Plan {
        is_read: verb == "read",
        is_fill: verb == "fill",
        is_over: false,
        blocks: 0,
        end: Instant::now() + Duration::from_secs_f64(seconds.parse()?),
        random: Xoshiro256PlusPlus::from_seed(rand::random()),
        begun: 0,
    };
    let begun = Instant::now();
    let requests = match &target[..] {
        "vhost" => vhost(Path::new(socket), plan)?,
        _ => nbd(Path::new(socket), plan)?,
    };
    println!("{:.0}", requests as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

/// Serves a disk until the process is killed.
fn serve(is_drive: bool, vhost: &Path, nbd: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::new(Backend::Auto)?;
    if !is_drive {
        return serve_disk(&runtime, Rc::new(MemoryDisk::new(DISK_BYTES)), vhost, nbd);
    }
    let drive = runtime.block_on(async {
        let spec = Spec::new(Uuid::from_u128(1), DISK_BYTES);
        let medium = MemMedium::new(spec.geometry()?.medium_bytes());
        create(&medium, &spec).await?;
        Drive::open(Rc::new(medium), runtime.clock(), OpenOptions::default()).await
    })?;
    serve_disk(&runtime, drive, vhost, nbd)
}

fn serve_disk(
    runtime: &Runtime,
    disk: Rc<dyn AnyDisk>,
    vhost: &Path,
    nbd: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let bind = |path: &Path| Listener::bind(&Listen::Unix(path.to_owned()), Access::default());
    let export = Rc::new(Export::new("disk", "", disk.clone()));
    let server = pumice_nbd::Server::new(runtime.clone(), vec![export], Options::default());
    runtime.spawn(server.serve(bind(nbd)?));
    let identity = Identity { serial: "load".into(), guest: None };
    let device = pumice_vhost::Server::new(runtime.clone(), disk, &identity);
    runtime.block_on(device.serve(bind(vhost)?));
    Ok(())
}

fn vhost(socket: &Path, mut plan: Plan) -> Result<u64, Box<dyn std::error::Error>> {
    let mut driver = Driver::connect(socket, Setup::default())?;
    let config = driver.config()?;
    plan.blocks = u64::from_le_bytes(config[..8].try_into()?) / 8;
    let mut block = vec![0; BLOCK];
    let (mut in_flight, mut completed) = (0, 0);
    loop {
        let since = driver.next(0);
        while in_flight < DEPTH {
            let Some(at) = plan.next() else { break };
            let slot = driver.take(0);
            if !plan.is_read {
                plan.fill(&mut block);
                driver.put(driver.data(0, slot), &block);
            }
            let kind = if plan.is_read { kind::READ } else { kind::WRITE };
            driver.prepare(0, slot, kind, at * 8, BLOCK as u32);
            driver.offer(0, slot * 3);
            in_flight += 1;
        }
        if in_flight == 0 {
            return Ok(completed);
        }
        if driver.next(0) != since {
            driver.announce(0, since);
        }
        let mut ended = Some(driver.wait(0)?);
        while let Some(completion) = ended {
            if completion.status != 0 {
                return Err(format!("{completion:?}").into());
            }
            if plan.is_read {
                driver.get(driver.data(0, completion.slot), &mut block);
            }
            (in_flight, completed) = (in_flight - 1, completed + 1);
            ended = driver.completed(0);
        }
    }
}

fn nbd(socket: &Path, mut plan: Plan) -> Result<u64, Box<dyn std::error::Error>> {
    let runtime = Runtime::new(Backend::Auto)?;
    let client = runtime.block_on(Client::connect(&runtime, &Uri::unix(socket, "")))?;
    plan.blocks = client.size_bytes() / BLOCK as u64;
    let client = Rc::new(client);
    let plan = Rc::new(RefCell::new(plan));
    let is_read = plan.borrow().is_read;
    let tasks = (0..DEPTH).map(|_| {
        let (client, plan) = (client.clone(), plan.clone());
        async move {
            let mut buffer = AlignedBuffer::zeroed(BLOCK);
            let mut completed = 0;
            loop {
                let Some(at) = plan.borrow_mut().next() else { return completed };
                if is_read {
                    let (read, result) = client.read(at * BLOCK as u64, buffer).await;
                    result.expect("a read");
                    buffer = read;
                } else {
                    plan.borrow_mut().fill(&mut buffer);
                    let write = client.write(at * BLOCK as u64, &buffer, Durability::Volatile);
                    write.await.expect("a write");
                }
                completed += 1;
            }
        }
    });
    let done = Rc::new(RefCell::new((0, 0)));
    for task in tasks {
        let done = done.clone();
        runtime.spawn(async move {
            let completed = task.await;
            let mut done = done.borrow_mut();
            *done = (done.0 + 1, done.1 + completed);
        });
    }
    runtime.block_on(async {
        while done.borrow().0 < DEPTH {
            pumice_drive::base::Clock::sleep_ns(&runtime, 1_000_000).await;
        }
    });
    runtime.drop_tasks();
    let completed = done.borrow().1;
    Ok(completed)
}
