//! Two drives on flash of 2011: files in the temporary folder, limited to the speed of such flash,
//! and served over links of that time.
//!
//! ```text
//! client -- NBD, Unix socket --> Linked: 260 MB/s --> a drive --> Throttle: 97 MB/s --> a file
//! a thread for the benchmark     +------------ the main thread, for both drives ------------+
//! ```
//!
//! Both limits come from one published drive, see `published`, so measurements between them depend
//! on the data and the drive, not on the disk underneath.

use std::path::Path;
use std::rc::Rc;
use std::thread;

use anyhow::{Result, anyhow, bail};
use async_channel::bounded;

use super::{DISK_BYTES, Defect};
use crate::cli::check::list;
use crate::cli::create::segment_bytes_of;
use crate::environment::{new_identity, unix_seconds};
use crate::open;
use pumice_drive::base::{self, Clock};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{Allocation, Depth, Drive, OpenOptions, Spec, check, create};
use pumice_drive::media::file::FileMedium;
use pumice_drive::media::layer::{Pipe, Speed, Throttle};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::client::Uri;
use pumice_nbd::{Access, Disk, Durability, Export, Listen, Listener, Options, Server};

/// The flash. Its write rate is that of the published drive for incompressible data. The read rate
/// is the link's, because the drive's flash does not limit reads; the latencies are roughly those
/// of a page and its command.
pub(super) const FLASH: Speed = Speed {
    read_bytes_per_s: LINK_BYTES_PER_S,
    append_bytes_per_s: 97_000_000,
    read_latency_ns: 100_000,
    append_latency_ns: 100_000,
};

/// The link: the write rate of the published drive for data that nearly vanishes, over SATA at 3
/// Gb/s.
pub(super) const LINK_BYTES_PER_S: u64 = 260_000_000;

/// A drive in the temporary folder.
pub(super) struct Side {
    pub(super) codec: Codec,
    pub(super) uri: Uri,
    pub(super) drive: Rc<Drive>,
    flash: Rc<Throttle<FileMedium, Runtime>>,
}

impl Side {
    fn create(runtime: &Runtime, folder: &Path, socket: &Path, codec: Codec) -> Result<Self> {
        let name = codec.to_string();
        let path = folder.join(&name);
        let spec = Spec {
            created_seconds: unix_seconds(),
            segment_bytes: segment_bytes_of(DISK_BYTES),
            codec,
            ..Spec::new(new_identity(), DISK_BYTES)
        };
        FileMedium::create(&path, spec.geometry()?.medium_bytes(), false)?;
        let file = open::blank(runtime, &path)?;
        runtime.block_on(create(&file, &spec))?;
        let flash = Rc::new(Throttle::new(file, runtime.clone(), FLASH));
        let opening = Drive::open(flash.clone(), runtime.clock(), OpenOptions::default());
        let drive = runtime.block_on(opening)?;
        Ok(Self { codec, uri: Uri::unix(socket, &name), drive, flash })
    }
}

/// Both drives and their server, which runs while this thread runs `runtime`.
pub(super) struct Drives {
    pub(super) runtime: Runtime,
    /// The drive that compresses, and the other.
    pub(super) sides: [Side; 2],
    server: Rc<Server>,
}

impl Drives {
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let runtime = Runtime::new(Backend::Auto)?;
        let socket = folder.join("socket");
        let side = |codec| Side::create(&runtime, folder, &socket, codec);
        let sides = [side(Codec::Lz4)?, side(Codec::None)?];
        let export = |Side { uri, drive, .. }: &Side| {
            let (drive, clock) = (drive.clone(), runtime.clone());
            let linked = Linked { drive, pipe: Pipe::default(), clock };
            Rc::new(Export::new(uri.export(), "a drive of the demo", Rc::new(linked)))
        };
        let exports = sides.iter().map(export).collect();
        let server = Server::new(runtime.clone(), exports, Options::default());
        let listener = Listener::bind(&Listen::Unix(socket), Access::default())?;
        runtime.spawn(server.clone().serve(listener));
        Ok(Self { runtime, sides, server })
    }

    /// Serves the drives until `work`, on another thread, has ended.
    pub(super) fn serve_during<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let (working, ended) = bounded::<()>(1);
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let _working = working;
                work()
            });
            // Fails once the thread has dropped its end of the channel.
            let _ = self.runtime.block_on(ended.recv());
            thread.join().unwrap_or_else(|_| Err(anyhow!("the benchmark panicked")))
        })
    }

    /// Closes and checks the drives. Returns the share of the operations for which the disk below
    /// took longer than the limit.
    pub(super) fn finish(&self) -> Result<f64> {
        let (mut operations, mut late) = (0, 0);
        for kept in self.sides.iter().map(|side| side.flash.kept()) {
            operations += kept.operations;
            late += kept.late;
        }
        self.runtime.block_on(async {
            self.server.shutdown().await?;
            for Side { drive, flash, .. } in &self.sides {
                drive.close().await?;
                let report = check(flash.inner(), Depth::Full, &mut |_| ()).await?;
                if report.problem_count > 0 {
                    let found = list(&report.problems, report.problem_count);
                    let found = found.lines().collect::<Vec<_>>().join("; ");
                    bail!(Defect(format!("the check of a drive found a problem: {found}")));
                }
            }
            anyhow::Ok(())
        })?;
        Ok(late as f64 / operations.max(1) as f64)
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        // Tasks keep the files open.
        self.runtime.drop_tasks();
    }
}

/// A drive at the end of a link, which carries one transfer at a time.
struct Linked {
    drive: Rc<Drive>,
    pipe: Pipe,
    clock: Runtime,
}

impl Linked {
    /// Carries out a request while its bytes are on the link.
    async fn transfer<T>(&self, bytes: usize, request: impl Future<Output = T>) -> T {
        let due_ns = self.pipe.reserve(self.clock.now_ns(), bytes as u64, LINK_BYTES_PER_S);
        let answer = request.await;
        let now_ns = self.clock.now_ns();
        if due_ns > now_ns {
            self.clock.sleep_ns(due_ns - now_ns).await;
        }
        answer
    }
}

impl Disk for Linked {
    fn size_bytes(&self) -> u64 {
        self.drive.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.drive.is_read_only()
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> base::Result<()> {
        self.transfer(out.len(), self.drive.read(offset, out)).await
    }

    fn try_write(&self, _offset: u64, _data: &[u8]) -> Option<base::Result<()>> {
        None
    }

    async fn write(&self, offset: u64, data: &[u8], durability: Durability) -> base::Result<()> {
        self.transfer(data.len(), Disk::write(&*self.drive, offset, data, durability)).await
    }

    async fn flush(&self) -> base::Result<()> {
        self.drive.flush().await
    }

    async fn trim(&self, offset: u64, len: u64, durability: Durability) -> base::Result<()> {
        Disk::trim(&*self.drive, offset, len, durability).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> base::Result<()> {
        Disk::write_zeroes(&*self.drive, offset, len, allocation, durability).await
    }

    async fn prefetch(&self, offset: u64, len: u64) -> base::Result<()> {
        self.drive.prefetch(offset, len).await
    }
}
