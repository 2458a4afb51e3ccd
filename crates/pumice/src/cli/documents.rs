//! Files that a report is written to, in the forms that were asked for.
//!
//! All are opened before the work starts, so that nothing is computed for a file that cannot be
//! written; what was there is emptied only when its successor is complete in memory.

use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Write};
use std::path::{Path, PathBuf};

use super::at_path;
use super::output::open_output;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_report::{Document, Table};

/// Where the report goes.
#[derive(Debug, clap::Args)]
pub(crate) struct Documents {
    /// Write a page that stands alone, with charts; - is stdout
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write a workbook with numbers and charts; - is stdout
    #[arg(long, value_name = "FILE")]
    xlsx: Option<PathBuf>,

    /// Write the numbers of every cell as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write the whole report as Markdown; - is stdout
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
}

/// A form of a report.
#[derive(Clone, Copy, Debug)]
enum Form {
    Html,
    Xlsx,
    Csv,
    Markdown,
}

/// Files that are open.
pub(crate) struct Opened(Vec<(Form, Place)>);

enum Place {
    Stdout,
    File { file: File, path: PathBuf, is_new: bool },
}

impl Documents {
    /// Whether files that exist may be overwritten.
    pub(crate) fn force(&self) -> bool {
        self.force
    }

    /// Opens all files; those that are made and not written go again when this is dropped.
    ///
    /// # Errors
    /// `AlreadyExists` without `--force`; `InvalidInput` for an input as output, or stdout twice;
    /// the operating system's.
    pub(crate) fn open(&self, inputs: &[&Path]) -> Result<Opened> {
        let asked = [
            (Form::Html, &self.html),
            (Form::Xlsx, &self.xlsx),
            (Form::Csv, &self.csv),
            (Form::Markdown, &self.markdown),
        ];
        let mut opened = Opened(Vec::new());
        for (form, path) in asked {
            let Some(path) = path else { continue };
            let place = match path == Path::new("-") {
                true if opened.uses_stdout() => {
                    return Err(invalid("only one of the outputs can go to stdout".to_owned()));
                }
                true => Place::Stdout,
                false => self.file(path, inputs, &opened)?,
            };
            opened.0.push((form, place));
        }
        Ok(opened)
    }

    fn file(&self, path: &Path, inputs: &[&Path], opened: &Opened) -> Result<Place> {
        let is_new = !path.exists();
        let same = |other: &Path| match (path.canonicalize(), other.canonicalize()) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        };
        if inputs.iter().any(|input| same(input)) {
            let what = format!("{} is read: name another file to write to", path.display());
            return Err(invalid(what));
        }
        let others = opened.0.iter().filter_map(|(_, place)| match place {
            Place::File { path, .. } => Some(path),
            Place::Stdout => None,
        });
        if others.into_iter().any(|other| same(other)) {
            return Err(invalid(format!("{} is named twice", path.display())));
        }
        let file = open_output(path, self.force)?;
        Ok(Place::File { file, path: path.to_owned(), is_new })
    }
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

impl Opened {
    /// Whether nothing was asked for.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them is stdout.
    pub(crate) fn uses_stdout(&self) -> bool {
        self.0.iter().any(|(_, place)| matches!(place, Place::Stdout))
    }

    /// Writes the document, or for CSV the table, to all of them.
    ///
    /// # Errors
    /// The operating system's; a document that no workbook can hold.
    pub(crate) fn write(mut self, document: &Document, table: &Table) -> Result<()> {
        for (form, place) in &mut self.0 {
            let bytes = match form {
                Form::Html => document.to_html().into_bytes(),
                Form::Xlsx => document
                    .to_xlsx()
                    .map_err(|error| Error::os("no workbook can hold these results", error))?,
                Form::Csv => table.to_csv().into_bytes(),
                Form::Markdown => document.to_markdown().into_bytes(),
            };
            place.write(&bytes)?;
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for (_, place) in &self.0 {
            if let Place::File { path, is_new: true, .. } = place {
                // What went wrong before counts for more.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Place {
    /// Writes all of it; from then on the file stays.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = std::io::stdout().lock();
                match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
                    Err(error) if error.kind() != IoErrorKind::BrokenPipe => {
                        Err(Error::os("cannot write to stdout", error))
                    }
                    _ => Ok(()),
                }
            }
            Self::File { file, path, is_new } => {
                let written = file.set_len(0).and_then(|()| file.write_all(bytes));
                written.map_err(|error| at_path(path, Error::os("cannot write", error)))?;
                *is_new = false;
                Ok(())
            }
        }
    }
}
