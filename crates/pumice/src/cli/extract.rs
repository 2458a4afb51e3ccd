//! `pumice extract`: writes the disk of a drive to a raw image.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::KeyArgs;
use super::output::{Draft, counted};
use super::{Outcome, print, print_schema, progress};
use crate::open::{self, served_snapshot};
use crate::place::Place;
use crate::signals::Interrupt;
use crate::storage::{Absent, Access};
use pumice_drive::base::units::{BLOCK_BYTES, format_size};
use pumice_drive::controller::{Extract, Extracted, OpenOptions, Problem};
use pumice_drive::runtime::{Backend, Runtime};

/// Maximum number of problems that are listed; the rest are only counted.
const PROBLEMS_LISTED_MAX: usize = 10_000;

/// Context of every error while the image is written.
const CANNOT_WRITE: &str = "cannot write the image";

/// Size of a write where the content is one repeated byte.
const FILL_BYTES: usize = 1 << 20;

/// Copy the contents of a drive that is not in use to a raw disk image
///
/// Changes nothing on the drive, and also works after a crash. Unwritten ranges stay holes in the
/// image. Blocks that cannot be read become zeroes in the image; they are listed, with exit code 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice extract drive.pumice disk.img
  pumice extract drive.pumice - | zstd > disk.img.zst
  pumice extract drive.pumice@nightly disk.img
  pumice extract drive.pumice disk.img --force --json")]
pub(crate) struct Args {
    /// File or block device of the drive; PATH@NAME for a snapshot
    path: PathBuf,

    /// Image file, created sparse; - for stdout
    target: PathBuf,

    /// Overwrite the image if it exists
    #[arg(long)]
    force: bool,

    /// Read a mirror even if a missing member may have newer data; if members were written
    /// independently, read the member at PATH
    #[arg(long)]
    degraded: bool,

    /// Read a journal whose drive another machine has taken over: the local state of the drive,
    /// including changes that never reached the bucket
    #[cfg(feature = "objects")]
    #[arg(long)]
    fenced: bool,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result of the extraction.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Summary {
    /// Size of the image.
    size_bytes: u64,
    /// Bytes of data, including fills with a byte other than zero.
    data_bytes: u64,
    /// Blocks of 4 KiB that could not be read.
    lost_blocks: u64,
    /// Ranges that could not be read; at most 10,000 are listed.
    lost: Vec<Problem>,
    /// Number of these ranges.
    lost_count: u64,
    /// Bytes that were mapped, so far.
    #[serde(skip)]
    done_bytes: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive cannot be opened, or the image cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let to_stdout = args.target == Path::new("-");
    if to_stdout && args.json {
        bail!("--json and the image would both go to stdout: write the image to a file");
    }
    let interrupt = Interrupt::catch()?;
    let runtime = Runtime::new(Backend::Auto)?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let place = Place::of(&args.path)?;
    let medium = open::medium(&runtime, &place.path, &args.access());
    let medium = medium.map_err(|error| served_snapshot::advise(&place, error))?;
    let drive = open::on(&runtime, &place, medium, options)?;
    let mut image = if to_stdout {
        Image::Stream { stdout: std::io::stdout().lock(), at: 0, is_closed: false }
    } else {
        Image::file(&args.target, &place.path, args.force)?
    };
    let shown = image.part().unwrap_or(&args.target).display().to_string();
    let bar = progress::bytes(drive.info().mapped_bytes);
    let mut summary = Summary { size_bytes: drive.size_bytes(), ..Summary::default() };
    let mut extract = Extract::new(&drive);
    let ended: Result<bool> = runtime.block_on(async {
        loop {
            if interrupt.came() {
                return Ok(false);
            }
            bar.set_position(summary.done_bytes);
            if image.is_closed() {
                return Ok(true);
            }
            let Some(part) = extract.next().await else { return Ok(true) };
            summary.take(part, &mut image)?;
        }
    });
    let ended = ended.and_then(|ended| {
        if ended {
            image.end(drive.size_bytes())?;
        }
        Ok(ended)
    });
    bar.finish_and_clear();
    runtime.drop_tasks();
    if !ended.with_context(|| format!("the image {shown} is incomplete"))? {
        super::say_error(&format!("interrupted: the image {shown} is incomplete"));
        return Ok(Outcome::Code(2));
    }
    report(&summary, args, to_stdout)
}

impl Args {
    fn access(&self) -> Access {
        Access {
            truncated: true,
            absent: Absent::default().apart_if(self.degraded),
            #[cfg(feature = "objects")]
            fenced: self.fenced,
            ..Access::new(true)
        }
    }
}

fn report(summary: &Summary, args: &Args, to_stdout: bool) -> Result<Outcome> {
    if args.json {
        print_schema("extract-1", summary)?;
    } else if to_stdout {
        for line in summary.lost_list().lines() {
            super::say_error(line);
        }
    } else {
        let mut text = summary.lost_list();
        text += &format!(
            "extracted {} to {}: size {}, {} of data, {} lost\n",
            args.path.display(),
            args.target.display(),
            format_size(summary.size_bytes),
            format_size(summary.data_bytes),
            counted(summary.lost_blocks, "block")
        );
        print(&text)?;
    }
    Ok(if summary.lost_count == 0 { Outcome::Good } else { Outcome::Problem })
}

impl Summary {
    /// Writes a part of the disk to the image, or records that it is lost.
    fn take(&mut self, part: Extracted<'_>, image: &mut Image) -> Result<()> {
        self.done_bytes += match &part {
            Extracted::Data { bytes, .. } => bytes.len() as u64,
            Extracted::Fill { len, .. } => *len,
            Extracted::Lost(problem) => problem.lba_count.unwrap_or(0) * BLOCK_BYTES as u64,
        };
        match part {
            Extracted::Data { offset, bytes } => {
                self.data_bytes += bytes.len() as u64;
                image.write(offset, bytes)
            }
            Extracted::Fill { byte: 0, .. } => Ok(()),
            Extracted::Fill { offset, len, byte } => {
                let bytes = vec![byte; FILL_BYTES.min(len as usize)];
                let mut at = 0;
                while at < len {
                    let piece = (len - at).min(bytes.len() as u64);
                    image.write(offset + at, &bytes[..piece as usize])?;
                    at += piece;
                }
                self.data_bytes += len;
                Ok(())
            }
            Extracted::Lost(problem) => {
                self.lost_blocks += problem.lba_count.unwrap_or(0);
                self.lost_count += 1;
                if self.lost.len() < PROBLEMS_LISTED_MAX {
                    self.lost.push(problem);
                }
                Ok(())
            }
        }
    }

    fn lost_list(&self) -> String {
        super::check::list(&self.lost, self.lost_count)
    }
}

/// The image that is being written.
enum Image {
    File(File, Draft),
    /// Written in order, with zeroes for ranges that have no data.
    Stream {
        stdout: std::io::StdoutLock<'static>,
        at: u64,
        /// The reader has closed the pipe.
        is_closed: bool,
    },
}

impl Image {
    /// Creates the file, or truncates an existing one if `force` allows it.
    fn file(path: &Path, source: &Path, force: bool) -> Result<Self> {
        let inode = |path| {
            std::fs::metadata(path).map(|found: std::fs::Metadata| (found.dev(), found.ino())).ok()
        };
        if inode(path).is_some() && inode(path) == inode(source) {
            bail!("{} is the drive itself", path.display());
        }
        // Files on the disk may be unreadable to other users, and so must the image be.
        let (draft, file) = Draft::create(path, force)?;
        Ok(Self::File(file, draft))
    }

    /// Returns the path of a file until it is complete.
    fn part(&self) -> Option<&Path> {
        match self {
            Self::File(_, draft) => Some(draft.part()),
            Self::Stream { .. } => None,
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Self::File(file, _) = self {
            return file.write_all_at(bytes, offset).context(CANNOT_WRITE);
        }
        self.skip_to(offset)?;
        self.append(bytes)
    }

    /// Writes to a stream.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Self::Stream { stdout, at, is_closed } = self else { return Ok(()) };
        *at += bytes.len() as u64;
        match stdout.write_all(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => *is_closed = true,
            written => written.context(CANNOT_WRITE)?,
        }
        Ok(())
    }

    /// Writes zeroes to a stream up to `offset`.
    fn skip_to(&mut self, offset: u64) -> Result<()> {
        let zeroes = [0; 16 * BLOCK_BYTES];
        while let Self::Stream { at, is_closed: false, .. } = *self
            && at < offset
        {
            self.append(&zeroes[..(offset - at).min(zeroes.len() as u64) as usize])?;
        }
        Ok(())
    }

    /// Whether the reader has closed the stream, which is not an error.
    fn is_closed(&self) -> bool {
        matches!(self, Self::Stream { is_closed: true, .. })
    }

    /// Completes an image of `size_bytes`. A file is durable when this returns.
    fn end(&mut self, size_bytes: u64) -> Result<()> {
        self.skip_to(size_bytes)?;
        let ended = match self {
            Self::File(file, _) => file.set_len(size_bytes).and_then(|()| file.sync_all()),
            Self::Stream { is_closed: true, .. } => Ok(()),
            Self::Stream { stdout, .. } => stdout.flush(),
        };
        ended.context(CANNOT_WRITE)?;
        if let Self::File(_, draft) = self { draft.end() } else { Ok(()) }
    }
}
