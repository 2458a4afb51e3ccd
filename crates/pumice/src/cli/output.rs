//! Results on stdout and in files, and messages on stderr. On a terminal they fit its width and
//! have colours, unless NO_COLOR is set; CLICOLOR_FORCE requests colours everywhere.
//!
//! A file for a result is opened before the work starts, so that no work is wasted on a file that
//! cannot be written. It is not truncated here: its old content stays until the new one is ready.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind as IoErrorKind, StdoutLock, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anstream::{AutoStream, ColorChoice};
use anyhow::{Context, Result, bail};
use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

/// Columns of text on anything but a terminal, and on wide terminals: longer lines are hard to
/// read.
const COLUMNS_MAX: u16 = 100;

/// Bytes of a long result that are written in one call: the capacity of a pipe.
const PRINT_BYTES: usize = 64 << 10;

/// Columns of text on narrow terminals.
const COLUMNS_MIN: u16 = 40;

/// The style of errors and problems.
pub(crate) const WRONG: Style = AnsiColor::Red.on_default().bold();

/// The style of good states.
pub(crate) const WELL: Style = AnsiColor::Green.on_default();

/// Returns the columns of the terminal on stdout, within limits; `None` if stdout is no terminal.
pub(crate) fn terminal_columns() -> Option<u16> {
    let (Width(columns), _) = terminal_size_of(std::io::stdout())?;
    Some(columns.clamp(COLUMNS_MIN, COLUMNS_MAX))
}

/// Returns the columns for text on stdout.
pub(crate) fn columns() -> u16 {
    terminal_columns().unwrap_or(COLUMNS_MAX)
}

/// Whether stdout has colours.
pub(crate) fn is_coloured() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// Whether stderr has colours.
pub(crate) fn is_stderr_coloured() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}

/// Returns a word in a style for stdout.
pub(crate) fn styled(word: &str, style: Style) -> String {
    if is_coloured() { format!("{style}{word}{style:#}") } else { word.to_owned() }
}

/// Prints one line to stderr.
pub(crate) fn say_error(line: &str) {
    let style = if is_stderr_coloured() { WRONG } else { Style::new() };
    // A closed stderr must not change how the program ends.
    let _ = writeln!(std::io::stderr(), "{style}pumice:{style:#} {line}");
}

/// Returns the text of a table, as wide as its cells if no terminal shows it.
pub(crate) fn table(table: &pumice_report::Table) -> String {
    match terminal_columns() {
        Some(columns) => table.to_text_within(columns),
        None => table.to_text(),
    }
}

/// Returns a path for JSON, which can contain only UTF-8.
pub(crate) fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns a number with its noun, whose plural ends in s.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// Prints a result to stdout. A reader that has closed it is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Prints a result that is not text to stdout. A reader that has closed it is not an error.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    print_with(|out| out.write_all(bytes))
}

/// The standard output, with a buffer; not a trait object, since long results are written in pieces
/// of a few bytes.
pub(crate) type Stdout = BufWriter<StdoutLock<'static>>;

/// Prints a long result to stdout as `write` produces it, without a copy of it in memory. A reader
/// that has closed it is not an error.
pub(crate) fn print_with(write: impl FnOnce(&mut Stdout) -> std::io::Result<()>) -> Result<()> {
    let mut stdout = BufWriter::with_capacity(PRINT_BYTES, std::io::stdout().lock());
    match write(&mut stdout).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != IoErrorKind::BrokenPipe => {
            Err(error).context("cannot write to stdout")
        }
        _ => Ok(()),
    }
}

/// Prints a long result to stdout as [`json_text`].
pub(crate) fn print_long_schema(schema: &'static str, value: &impl Serialize) -> Result<()> {
    print_with(|out| {
        serde_json::to_writer_pretty(&mut *out, &Named { schema, value })?;
        out.write_all(b"\n")
    })
}

/// A result with the name of its JSON schema.
#[derive(Serialize)]
struct Named<'a, T: ?Sized> {
    schema: &'static str,
    #[serde(flatten)]
    value: &'a T,
}

/// Returns a result as indented JSON, with the name of its schema as first field, such as `info-1`.
/// The value must be an object.
pub(crate) fn json_text(schema: &'static str, value: &(impl Serialize + ?Sized)) -> String {
    indented(&Named { schema, value })
}

/// Prints a result to stdout as [`json_text`].
pub(crate) fn print_schema(schema: &'static str, value: &(impl Serialize + ?Sized)) -> Result<()> {
    print(&json_text(schema, value))
}

/// Prints results to stdout as a list of objects, each with the name of their schema.
pub(crate) fn print_schemas(schema: &'static str, values: &[impl Serialize]) -> Result<()> {
    let named: Vec<_> = values.iter().map(|value| Named { schema, value }).collect();
    print(&indented(&named))
}

fn indented(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("results serialize") + "\n"
}

/// Opens a file for writing without truncating it. A file that exists is opened only with `force`.
///
/// # Errors
/// The file exists and `force` is not set; the path is not a regular file; I/O errors.
#[cfg(feature = "bench")]
pub(crate) fn open_output(path: &Path, force: bool) -> Result<File> {
    open_output_with(path, force, 0o666)
}

/// A file that gets its name only once it is complete. Until then it is `NAME.part`, which stays if
/// the work fails or is interrupted: it may be the only data that can be recovered.
pub(crate) struct Draft {
    whole: PathBuf,
    part: PathBuf,
}

impl Draft {
    /// Creates the file, accessible to its owner only. An existing file of the final name is
    /// removed, with `force`.
    ///
    /// # Errors
    /// Errors of [`open_output`]; the file is in use.
    pub(crate) fn create(path: &Path, force: bool) -> Result<(Self, File)> {
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if fs::symlink_metadata(path).is_ok() {
            let file = open_output_with(path, force, 0o600)?;
            if file.try_lock().is_err() {
                bail!("{} is in use by another process", path.display());
            }
        }
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let draft = Self { whole: path.clone(), part: part.into() };
        let cannot = || format!("cannot write {}", path.display());
        let file = open_output_with(&draft.part, force, 0o600)?;
        if file.try_lock().is_err() {
            bail!("{} is in use by another process", draft.part.display());
        }
        file.set_len(0).with_context(cannot)?;
        // Both files would need space.
        match fs::remove_file(path) {
            Err(error) if error.kind() != IoErrorKind::NotFound => Err(error).with_context(cannot),
            _ => Ok((draft, file)),
        }
    }

    /// Returns the name of the file until it is complete.
    pub(crate) fn part(&self) -> &Path {
        &self.part
    }

    /// Renames the file, which is complete and durable, to its final name.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub(crate) fn end(&self) -> Result<()> {
        let renamed = fs::rename(&self.part, &self.whole);
        renamed.with_context(|| format!("cannot name {}", self.whole.display()))?;
        let folder = self.whole.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        // Not all file systems support this; then the name is as durable as they make it.
        let _ = folder.and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// [`open_output`] with the permissions of a new file, which the umask may restrict further.
fn open_output_with(path: &Path, force: bool, mode: u32) -> Result<File> {
    let shown = path.display();
    if path.is_dir() {
        bail!("{shown} is a directory: name a file in it");
    }
    let mut options = File::options();
    options.write(true).mode(mode);
    if force {
        options.create(true).truncate(false);
    } else {
        options.create_new(true);
    }
    let file = match options.open(path) {
        Err(error) if error.kind() == IoErrorKind::AlreadyExists => {
            bail!("{shown} exists: use --force to overwrite it")
        }
        Err(error) if error.kind() == IoErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(path).display();
            bail!("cannot write {shown}: there is no folder {folder}: create it first")
        }
        opened => opened.with_context(|| format!("cannot write {shown}"))?,
    };
    let metadata = file.metadata().with_context(|| format!("cannot write {shown}"))?;
    if !metadata.is_file() {
        bail!("{shown} is not a regular file: use - and redirect stdout to write anywhere else");
    }
    Ok(file)
}
