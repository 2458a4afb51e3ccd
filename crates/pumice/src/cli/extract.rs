//! `pumice extract`: the disk of a drive as a raw image.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::output::open_output;
use super::signals::Interrupt;
use super::{Outcome, print, print_json};
use pumice_drive::base::units::{BLOCK_BYTES, format_size};
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{Extract, Extracted, OpenOptions, Problem};
use pumice_drive::runtime::{Backend, Runtime};

/// Problems listed one by one; more are only counted.
const PROBLEMS_LISTED_MAX: usize = 10_000;

/// Bytes written at once where the content is all the same.
const FILL_BYTES: usize = 1 << 20;

/// Write the disk of a drive that is not in use to a raw image
///
/// Changes nothing on the drive; one whose process crashed needs nothing special. Holes stay holes.
/// Blocks that cannot be read are left out: they are zeroes in the image, and listed, and the exit
/// code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice extract drive.pumice disk.img
  pumice extract drive.pumice - | zstd > disk.img.zst
  pumice extract drive.pumice disk.img --force --json")]
pub(crate) struct Args {
    /// File or block device of the drive
    path: PathBuf,

    /// The image, made as a sparse file; - is stdout
    target: PathBuf,

    /// Overwrite the image if it exists
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What was extracted.
#[derive(Debug, Default, Serialize)]
struct Summary {
    size_bytes: u64,
    /// Bytes of content, of fills with another byte than zero too.
    data_bytes: u64,
    lost_blocks: u64,
    lost: Vec<Problem>,
    lost_count: u64,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive cannot be opened, or the image cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let to_stdout = args.target == Path::new("-");
    if to_stdout && args.json {
        let what = "--json has no place on a stdout that the image goes to";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let interrupt = Interrupt::catch()?;
    let runtime = Runtime::new(Backend::Auto)?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let drive = super::open::drive(&runtime, &args.path, options)?;
    let mut image = match to_stdout {
        true => Image::Stream { stdout: std::io::stdout().lock(), at: 0, is_closed: false },
        false => Image::file(&args.target, &args.path, args.force)?,
    };
    let bar = progress(drive.size_bytes());
    let mut summary = Summary { size_bytes: drive.size_bytes(), ..Summary::default() };
    let mut extract = Extract::new(&*drive);
    let ended = runtime.block_on(async {
        loop {
            if interrupt.came() {
                return Ok(false);
            }
            bar.set_position(extract.offset());
            if image.is_closed() {
                return Ok(true);
            }
            let Some(part) = extract.next().await else { return Ok(true) };
            summary.take(part, &mut image)?;
        }
    });
    let ended = ended.and_then(|ended| match ended {
        true => image.end(drive.size_bytes()).map(|()| true),
        false => Ok(false),
    });
    bar.finish_and_clear();
    runtime.drop_tasks();
    if !ended.map_err(|error| super::at_path(&args.target, error))? {
        let target = args.target.display();
        super::say_error(&format!("interrupted: the image {target} is incomplete"));
        return Ok(Outcome::Code(2));
    }
    report(&summary, args, to_stdout)
}

fn report(summary: &Summary, args: &Args, to_stdout: bool) -> Result<Outcome> {
    if args.json {
        print_json(summary)?;
    } else if to_stdout {
        for line in summary.lost_list().lines() {
            super::say_error(line);
        }
    } else {
        let mut text = summary.lost_list();
        text += &format!(
            "extracted a disk of {} to {}: {} of content, {} blocks lost\n",
            format_size(summary.size_bytes),
            args.target.display(),
            format_size(summary.data_bytes),
            summary.lost_blocks
        );
        print(&text)?;
    }
    Ok(if summary.lost_count == 0 { Outcome::Good } else { Outcome::Problem })
}

impl Summary {
    /// Writes a part of the disk to the image, or notes that it is lost.
    fn take(&mut self, part: Extracted<'_>, image: &mut Image) -> Result<()> {
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

/// A bar on stderr for work that goes through a disk of `size_bytes`.
pub(crate) fn progress(size_bytes: u64) -> ProgressBar {
    let template = "{bar:30} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)";
    let style = ProgressStyle::with_template(template).expect("a constant template");
    ProgressBar::new(size_bytes).with_style(style)
}

/// Where the image goes.
enum Image {
    File(File),
    /// Only ever forward, with zeroes for what is left out.
    Stream {
        stdout: std::io::StdoutLock<'static>,
        at: u64,
        /// Nobody reads it any more.
        is_closed: bool,
    },
}

impl Image {
    /// Makes the file, or empties the one that is there if that is allowed.
    fn file(path: &Path, source: &Path, force: bool) -> Result<Self> {
        let wrong = |what: &str| {
            Err(Error::new(ErrorKind::InvalidInput, format!("{} {what}", path.display())))
        };
        let place = |path| {
            std::fs::metadata(path).map(|found: std::fs::Metadata| (found.dev(), found.ino())).ok()
        };
        if place(path).is_some() && place(path) == place(source) {
            return wrong("is the drive itself");
        }
        let file = open_output(path, force)?;
        if file.try_lock().is_err() {
            return wrong("is in use by another process");
        }
        let emptied = file.set_len(0);
        emptied.map_err(|error| Error::os(format!("cannot write {}", path.display()), error))?;
        Ok(Self::File(file))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Self::File(file) = self {
            return file.write_all_at(bytes, offset).map_err(cannot_write);
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
            written => written.map_err(cannot_write)?,
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

    /// Whether nobody reads the stream any more; that is not an error.
    fn is_closed(&self) -> bool {
        matches!(self, Self::Stream { is_closed: true, .. })
    }

    /// Ends an image of `size_bytes`; a file is durable then.
    fn end(&mut self, size_bytes: u64) -> Result<()> {
        self.skip_to(size_bytes)?;
        let ended = match self {
            Self::File(file) => file.set_len(size_bytes).and_then(|()| file.sync_all()),
            Self::Stream { is_closed: true, .. } => Ok(()),
            Self::Stream { stdout, .. } => stdout.flush(),
        };
        ended.map_err(cannot_write)
    }
}

fn cannot_write(error: std::io::Error) -> Error {
    Error::os("cannot write the image", error)
}
