//! A drive on flash of 2011: a file in the temporary folder, limited to the speed of such flash,
//! and served over a link of that time.
//!
//! ```text
//! client -- NBD, Unix socket --> Linked: 260 MB/s --> the drive --> Throttle: 97 MB/s --> a file
//!                                +------------------- a thread -------------------+
//! ```
//!
//! Both limits are those of one published drive, see `published`, so that measurements between them
//! depend on the data and the drive, and not on the disk below.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use async_channel::{Receiver, Sender, bounded};

use super::load::Client;
use super::{DISK_BYTES, Defect};
use crate::cli::open;
use crate::signals;
use pumice_drive::base::{self, Clock};
use pumice_drive::controller::{Drive, Extent, Info, OpenOptions};
use pumice_drive::media::layer::{Kept, Pipe, Speed};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::{Access, Disk, Durability, Export, Listen, Listener, Options, Server};

/// The flash. Its write rate is that of the published drive for incompressible data. The rate of
/// reads is that of the link, because the drive's flash does not limit them; the latencies are
/// about those of a page and its command.
pub(super) const FLASH: Speed = Speed {
    read_bytes_per_s: LINK_BYTES_PER_S,
    append_bytes_per_s: 97_000_000,
    read_latency_ns: 100_000,
    append_latency_ns: 100_000,
};

/// The link: the write rate of the published drive for data that nearly vanishes, over SATA at 3
/// Gb/s.
pub(super) const LINK_BYTES_PER_S: u64 = 260_000_000;

/// Asks the thread of a drive for its state.
type Question = mpsc::Sender<State>;

/// The state that the thread of a drive reports.
pub(super) struct State {
    pub(super) info: Info,
    pub(super) kept: Kept,
}

/// A drive in the temporary folder, and the thread that serves it.
pub(super) struct DemoDrive {
    path: PathBuf,
    pub(super) socket: PathBuf,
    /// Ends the thread when dropped.
    questions: Option<Sender<Question>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl DemoDrive {
    fn start(folder: &Path, codec: &str) -> Result<Self> {
        let (path, socket) = (folder.join(codec), folder.join(format!("{codec}.sock")));
        let size = DISK_BYTES.to_string();
        let mut create = pumice()?;
        create.arg("create").arg(&path).args(["--size", &size, "--codec", codec]);
        let output = create.output().context("cannot run pumice create")?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let message = message.trim();
            bail!("{}", message.strip_prefix("pumice: ").unwrap_or(message));
        }
        let (questions, asked) = bounded(1);
        let (ready, served) = mpsc::channel();
        let (at, listen) = (path.clone(), socket.clone());
        let serving = move || serve(&at, listen, ready, &asked);
        let thread = signals::blocked(|| thread::spawn(serving))?;
        let mut drive = Self { path, socket, questions: Some(questions), thread: Some(thread) };
        match served.recv() {
            Ok(()) => Ok(drive),
            // The thread has ended before it served anything.
            Err(_) => {
                drive.stop()?;
                bail!("{} was not served", drive.path.display())
            }
        }
    }

    pub(super) fn state(&self) -> Result<State> {
        let (answer, answered) = mpsc::channel();
        let asked = self.questions.as_ref().is_some_and(|all| all.send_blocking(answer).is_ok());
        let state = answered.recv().ok().filter(|_| asked);
        state.with_context(|| format!("no answer from the thread of {}", self.path.display()))
    }

    /// Ends the thread; returns its error.
    fn stop(&mut self) -> Result<()> {
        self.questions = None;
        let ended = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        ended.unwrap_or_else(|_| Err(anyhow!("the thread of {} panicked", self.path.display())))
    }

    /// Closes the drive, checks it and removes it.
    pub(super) fn finish(mut self) -> Result<()> {
        self.stop()?;
        let check = pumice()?.arg("check").arg(&self.path).output();
        let check = check.context("cannot run pumice check")?;
        if !check.status.success() {
            let found = String::from_utf8_lossy(&check.stdout);
            let found = found.lines().collect::<Vec<_>>().join("; ");
            bail!(Defect(format!("pumice check found a problem: {found}")));
        }
        fs::remove_file(&self.path).context("cannot remove the drive")
    }
}

impl Drop for DemoDrive {
    fn drop(&mut self) {
        // Either it was stopped before, or another error is reported.
        let _ = self.stop();
    }
}

/// Returns a command that runs this program.
fn pumice() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    // In a separate process group, Ctrl-C reaches only the demo, which waits for its children.
    command.process_group(0);
    Ok(command)
}

/// Serves the drive at `path` until all senders of questions are gone.
fn serve(
    path: &Path,
    socket: PathBuf,
    ready: mpsc::Sender<()>,
    asked: &Receiver<Question>,
) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let medium = open::medium(&runtime, path, false)?;
    let medium = Rc::new(medium.slowed(&runtime, FLASH));
    let opening = Drive::open(medium.clone(), runtime.clock(), OpenOptions::default());
    let drive = runtime.block_on(opening)?;
    let listener = Listener::bind(&Listen::Unix(socket), Access::default())?;
    let linked = Linked { drive: drive.clone(), pipe: Pipe::default(), clock: runtime.clone() };
    let export = Rc::new(Export::new("", "a drive of the demo", Rc::new(linked)));
    let server = Server::new(runtime.clone(), vec![export], Options::default());
    runtime.spawn(server.clone().serve(listener));
    // The waiting thread may have been interrupted.
    let _ = ready.send(());
    runtime.block_on(async {
        while let Ok(question) = asked.recv().await {
            let _ = question.send(State { info: drive.info(), kept: medium.kept() });
        }
        let ended = server.shutdown().await;
        drive.close().await?;
        ended
    })?;
    runtime.drop_tasks();
    Ok(())
}

/// A drive at the end of a link, which passes one transfer after another.
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
        keep_allocated: bool,
        durability: Durability,
    ) -> base::Result<()> {
        Disk::write_zeroes(&*self.drive, offset, len, keep_allocated, durability).await
    }

    async fn prefetch(&self, offset: u64, len: u64) -> base::Result<()> {
        self.drive.prefetch(offset, len).await
    }

    async fn extents(
        &self,
        offset: u64,
        len: u64,
        visit: impl FnMut(Extent) -> bool,
    ) -> base::Result<()> {
        self.drive.extents(offset, len, visit).await
    }
}

/// A drive and its client.
pub(super) struct Side {
    pub(super) codec: &'static str,
    pub(super) client: Client,
    pub(super) drive: DemoDrive,
}

impl Side {
    pub(super) fn start(
        folder: &Path,
        codec: &'static str,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let drive = DemoDrive::start(folder, codec)?;
        let client = Client::connect(&drive.socket, interrupted.clone())?;
        Ok(Self { codec, client, drive })
    }
}
