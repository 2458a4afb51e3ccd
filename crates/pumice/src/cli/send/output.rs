//! The target of a transfer: a thread writes while the next part is read.

use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Write};
use std::os::fd::AsFd;
use std::pin::pin;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use async_channel::{Receiver, Sender, bounded};

use super::Args;
use crate::cli::output::Draft;
use crate::signals::{self, Interrupt};
use pumice_drive::runtime::Runtime;

/// Parts that wait to be written, each of about 1 MiB: one is being written, one is next.
const PARTS_AHEAD: usize = 2;

/// Interval of checks for a signal while the receiver does not read.
const LOOK_NS: u64 = 100_000_000;

/// A file or stdout, with the thread that writes to it.
pub(super) struct Output {
    parts: Sender<Vec<u8>>,
    written: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// The target that is written to.
enum Target {
    File(File, Draft),
    /// Opened as a file, because stdout would be line-buffered.
    Stdout(File),
}

impl Output {
    /// Opens the file, and starts the thread.
    pub(super) fn open(args: &Args) -> Result<Self> {
        let target = match &args.output {
            None => {
                let stdout = std::io::stdout().as_fd().try_clone_to_owned();
                Target::Stdout(stdout.context("cannot write to stdout")?.into())
            }
            Some(path) => {
                // Files on the disk may be unreadable to other users, and so must the transfer be.
                let (draft, file) = Draft::create(path, args.force)?;
                Target::File(file, draft)
            }
        };
        let (parts, to_write) = bounded(PARTS_AHEAD);
        let (done, written) = bounded(PARTS_AHEAD);
        let thread = thread::Builder::new().name("transfer".into());
        let thread =
            signals::blocked(|| thread.spawn(move || write_all(target, &to_write, &done)))?;
        let thread = Some(thread.context("cannot start a thread")?);
        Ok(Self { parts, written, thread })
    }

    /// Passes a part on. Returns false if a signal arrived before the part was accepted.
    ///
    /// # Errors
    /// An earlier part cannot be written.
    pub(super) async fn write(
        &mut self,
        runtime: &Runtime,
        interrupt: &Interrupt,
        part: Vec<u8>,
    ) -> Result<bool> {
        let parts = self.parts.clone();
        let mut passing = pin!(parts.send(part));
        while !interrupt.came() {
            match runtime.timeout(LOOK_NS, passing.as_mut()).await {
                None => {}
                Some(Ok(())) => return Ok(true),
                Some(Err(_)) => return Err(self.end().err().unwrap_or_else(ended)),
            }
        }
        Ok(false)
    }

    /// Returns the buffer of a part that was written.
    pub(super) fn spare(&self) -> Option<Vec<u8>> {
        self.written.try_recv().ok()
    }

    /// Completes the transfer. A file is durable when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn end(&mut self) -> Result<()> {
        self.parts.close();
        let thread = self.thread.take().ok_or_else(ended)?;
        thread.join().unwrap_or_else(|_| Err(ended()))
    }
}

fn ended() -> anyhow::Error {
    anyhow!("the transfer is no longer written")
}

fn write_all(mut target: Target, parts: &Receiver<Vec<u8>>, done: &Sender<Vec<u8>>) -> Result<()> {
    while let Ok(part) = parts.recv_blocking() {
        target.write(&part)?;
        // The buffer is dropped if no part needs it any more.
        let _ = done.try_send(part);
    }
    target.end()
}

impl Target {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::File(file, draft) => file
                .write_all(bytes)
                .with_context(|| format!("cannot write {}", draft.part().display())),
            Self::Stdout(stdout) => match stdout.write_all(bytes) {
                Err(error) if error.kind() == IoErrorKind::BrokenPipe => {
                    bail!("the receiver ended before the transfer: see its error")
                }
                written => written.context("cannot write to stdout"),
            },
        }
    }

    fn end(&mut self) -> Result<()> {
        match self {
            Self::File(file, draft) => {
                let synced = file.sync_all();
                synced.with_context(|| format!("cannot write {}", draft.part().display()))?;
                draft.end()
            }
            Self::Stdout(_) => Ok(()),
        }
    }
}
