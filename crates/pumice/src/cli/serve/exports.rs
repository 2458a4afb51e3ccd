//! The drives that `pumice serve` serves, and their names.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use futures_util::stream::{StreamExt, iter};

use crate::cli::open::{self, FileDrive};
use crate::cli::remains;
use crate::cli::watch::MeasuredDrive;
use crate::control::ControlSocket;
use crate::watch::{Measured, Watch};
use pumice_drive::codec::Workers;
use pumice_drive::controller::{Drive, OpenOptions};
use pumice_drive::runtime::Runtime;
use pumice_nbd::Export;

/// Suffix of a drive's file: selects files of a directory, and is not part of the name.
const SUFFIX: &str = ".pumice";

/// Drives that are opened or closed at once, on all threads. Each opening waits for several syncs
/// of the medium, which file systems do together; each may take memory for a long log.
const AT_ONCE: usize = 8;

/// A drive that is to be served.
pub(super) struct Planned {
    pub(super) path: PathBuf,
    pub(super) name: String,
    description: Option<String>,
    options: OpenOptions,
}

/// A drive that is served.
pub(super) struct Served {
    pub(super) path: PathBuf,
    pub(super) drive: Rc<FileDrive>,
    pub(super) export: Rc<Export<MeasuredDrive>>,
    /// The control socket of the drive, while this lives.
    control: Option<ControlSocket>,
}

/// Options for the name of an export.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Names {
    /// Export name, for a single drive [default: the file name without .pumice]
    #[arg(long, value_name = "NAME")]
    export_name: Option<String>,

    /// Export description, for a single drive
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

/// Returns the paths, with each directory replaced by its drives in sorted order.
///
/// # Errors
/// A directory cannot be read, or contains no drives.
pub(super) fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let unreadable = || format!("cannot read the directory {}", path.display());
        let mut found = Vec::new();
        for entry in fs::read_dir(path).with_context(unreadable)? {
            let file = entry.with_context(unreadable)?.path();
            let is_named = file.as_os_str().as_encoded_bytes().ends_with(SUFFIX.as_bytes());
            if is_named && file.is_file() {
                found.push(file);
            }
        }
        if found.is_empty() {
            bail!("{} contains no drives (*{SUFFIX})", path.display());
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

/// Returns what is to be served: the drives at `paths`.
///
/// # Errors
/// Two drives have one name.
pub(super) fn plan(
    paths: &[PathBuf],
    names: &Names,
    options: impl Fn(&Path) -> OpenOptions,
) -> Result<Vec<Planned>> {
    let planned = paths.iter().zip(names.of(paths)?).map(|(path, name)| Planned {
        path: path.clone(),
        name,
        description: names.description.clone(),
        options: options(path),
    });
    Ok(planned.collect())
}

/// Opens drives, which share `workers`. If one of them cannot be opened, those already open are
/// closed again. `threads` open drives at the same time.
///
/// # Errors
/// Those of opening a drive.
pub(super) fn open_all(
    runtime: &Runtime,
    planned: &[Planned],
    workers: Option<&Workers>,
    threads: usize,
) -> Result<Vec<Served>> {
    let media = planned.iter();
    let media = media.map(|drive| open::medium(runtime, &drive.path, drive.options.read_only));
    let media = media.collect::<Result<Vec<_>>>()?;
    let openings = planned.iter().zip(media).map(|(planned, medium)| async move {
        let drive = Drive::open(medium, runtime.clone(), planned.options).await;
        drive.map_err(|error| remains::advise(&planned.path, error))
    });
    let at_once = AT_ONCE.div_ceil(threads);
    let opened: Vec<_> = runtime.block_on(iter(openings).buffered(at_once).collect());
    let mut served = Vec::new();
    // The first error is the one to report.
    let mut failed = None;
    for (Planned { path, name, description, .. }, opened) in planned.iter().zip(opened) {
        match opened {
            Ok(drive) => {
                workers.into_iter().for_each(|workers| drive.use_workers(workers.clone()));
                let description = description.clone().unwrap_or_else(|| describe(&drive));
                let measured = Measured::new(drive.clone(), runtime.clone());
                let export = Rc::new(Export::new(name.clone(), description, Rc::new(measured)));
                served.push(Served { path: path.clone(), drive, export, control: None });
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let Some(error) = failed else { return Ok(served) };
    let _ = close_all(runtime, &served);
    Err(error)
}

/// Makes all drives visible to monitoring and to other commands.
pub(super) fn show_all(
    runtime: &Runtime,
    served: &mut [Served],
    rated_write_bytes: Option<u64>,
    watch: &Rc<Watch>,
    uris: &[Vec<String>],
) {
    for (drive, uris) in served.iter_mut().zip(uris) {
        let (name, measured) = (drive.export.name.clone(), drive.export.disk.clone());
        let number = watch.add(name, drive.drive.clone(), measured, rated_write_bytes);
        drive.control = control(runtime, drive, (watch.clone(), number), uris);
    }
}

/// Closes drives; returns the first error, with its path.
pub(super) fn close_all(runtime: &Runtime, served: &[Served]) -> Result<()> {
    let closing = |served: &Served| {
        let (path, drive) = (served.path.clone(), served.drive.clone());
        async move { drive.close().await.with_context(|| path.display().to_string()) }
    };
    let closings = iter(served.iter().map(closing).collect::<Vec<_>>());
    let closed: Vec<Result<()>> = runtime.block_on(closings.buffered(AT_ONCE).collect());
    closed.into_iter().fold(Ok(()), Result::and)
}

impl Names {
    /// Returns the names of the exports at these paths.
    fn of(&self, paths: &[PathBuf]) -> Result<Vec<String>> {
        let is_asked = self.export_name.is_some() || self.description.is_some();
        if is_asked && paths.len() > 1 {
            bail!("--export-name and --description need a single drive");
        }
        if let Some(name) = &self.export_name {
            return Ok(vec![name.clone()]);
        }
        let names: Vec<_> = paths.iter().map(|path| name_of(path)).collect();
        for (index, name) in names.iter().enumerate() {
            if let Some(other) = names[..index].iter().position(|other| other == name) {
                let (one, two) = (paths[other].display(), paths[index].display());
                bail!("{one} and {two} would both be the export '{name}'");
            }
        }
        Ok(names)
    }
}

/// Returns the name of a drive: that of its file without the suffix.
pub(crate) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned()
}

fn describe(drive: &FileDrive) -> String {
    let size = indicatif::BinaryBytes(drive.size_bytes());
    format!("a Pumice drive of {size}")
}

/// Lets other commands reach the drive. A drive is served without it, too.
fn control(
    runtime: &Runtime,
    served: &Served,
    watch: (Rc<Watch>, usize),
    uris: &[String],
) -> Option<ControlSocket> {
    let path = &served.path;
    let socket = ControlSocket::bind(runtime, path).inspect_err(|error| {
        let (path, error) = (path.display(), error.chain());
        tracing::warn!(drive = %path, %error, "other commands cannot reach the drive");
    });
    let socket = socket.ok()?;
    runtime.spawn(socket.serve(runtime.clone(), served.drive.clone(), watch, uris.to_vec()));
    Some(socket)
}
